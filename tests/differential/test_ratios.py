"""The ratio of a counterexample against a run: what the rank's gradient is of the single device's, number by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from nets import language_model, scaled
from random_nets import some_model, some_step

from placealg.check.prove import prove
from placealg.check.refutation import setting
from placealg.errors import InputError
from placealg.models.build import Builder
from placealg.models.transformer import mlp
from placealg.prover.calculus.machine import Site
from placealg.prover.evidence import parts
from placealg.prover.evidence.counterexample import WEIGHED, Facts, facts
from placealg.prover.evidence.parts import Part
from placealg.prover.examine import Candidate, examine
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED
from placealg.simulator import device, execute
from placealg.simulator.field import PRIME, Number, Residues, residues
from placealg.simulator.machine import Machine
from placealg.simulator.run import simulate
from placealg.step.derive import derive
from placealg.step.event import Event
from placealg.step.lower import lowered
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

Gradients = dict[tuple[str, int], list[dict[int, Number]]]
"""(group, instance) -> what every rank holds of its gradient, before anything transforms or reads it."""


def read(step: Step, found: Facts) -> tuple[Gradients, dict[tuple[str, int], tuple[Number, ...]], Machine]:
    """The gradients that the first step's updates read in a run of the facts, and the single device's."""
    seen: Gradients = {}
    last: list[Machine] = []

    def looking(verb: str) -> None:
        original = execute.EXECUTE[verb]

        def run(m: Machine, e: Event) -> None:
            if e.group and m.number == 0 and not m.resumed and m.slot(e) not in seen:
                seen[m.slot(e)] = [dict(table) for table in m.table(e.tiers[0], "grad_sum", *m.slot(e))]
                last.append(m)
            original(m, e)
        patch.setitem(execute.EXECUTE, verb, run)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        for verb in ("clip", "update"):
            looking(verb)
        simulate(step, setting(step, found, 1, 1), 1)
    if not last:
        return {}, {}, None  # type: ignore[return-value]
    machine = last[-1]
    start = device.trajectory(machine.reference, machine.setting, 0)[0]
    return seen, device.gradient(machine.space, 0, start)[0], machine


def multiple(got: list[Number | None], want: list[Number]) -> Fraction | int | None:
    """The one factor between two numbers or more, modulo PRIME where they are residues; None where there is none."""
    factors: list[Fraction | int | None] = []
    for g, w in zip(got, want, strict=True):
        if g is None:
            return None
        if isinstance(w, Residues):
            wanted = np.atleast_1d(residues(w)).astype(object)
            found = np.broadcast_to(residues(g), wanted.shape).astype(object)
            pairs = [(int(a), int(b)) for a, b in zip(found.flat, wanted.flat, strict=True)]
            factors += [a * pow(b, -1, PRIME) % PRIME if b else None for a, b in pairs if a or b]
        elif g or w:
            factors.append(Fraction(g) / w if w else None)  # type: ignore[arg-type]
    return factors[0] if len(factors) > 1 and len({*factors}) == 1 else None


def told(ratio: str, sizes: dict[str, int], modulo: bool) -> Fraction | int:
    """A printed ratio at sizes."""
    value = Fraction(eval(ratio.replace("^", "**"), {}, {a: Fraction(n) for a, n in sizes.items()}))
    return value.numerator * pow(value.denominator, -1, PRIME) % PRIME if modulo else value


def held(step: Step, candidate: Candidate) -> str:
    """What a ratio is held against: "none" printed, no "multiple" of the gradient, or "the run"; raises if it is wrong.

    Where the single device's gradient is one multiple on the rank, of all instances and elements of the parameter, a
    printed ratio is that factor.
    """
    found, failure = facts(candidate, step.reference), candidate.failure
    if failure.update is None or failure.site is None or failure.obligation not in WEIGHED:
        return "other"
    if found.mass is None:
        return "none"
    gradients, wanted, machine = read(step, found)
    if machine is None:
        return "deadlock"
    rank = machine.coordinates.index(tuple(found.device[a] for a in machine.axes))
    got: list[Number | None] = []
    want: list[Number] = []
    for (group, instance), tables in gradients.items():
        if group == candidate.group.name:
            for k, part in enumerate(machine.space.parts(machine.reference.group(group))):
                if part.parameter == failure.site.parameter:
                    got.append(tables[rank].get(k))
                    want.append(wanted[group, instance][k])
    if "0 on" not in found.got and "elsewhere" not in found.got:  # what it does not hold, the rank does not update
        here = [k for k, number in enumerate(got) if number is not None]
        got, want = [got[k] for k in here], [want[k] for k in here]
    factor = multiple(got, want)
    if factor is None:
        return "no multiple"
    says = told(found.mass, {**found.sizes, "m": found.microbatches}, any(isinstance(w, Residues) for w in want))
    assert says == factor, (found.mass, found, factor)
    return "the run"


POSITIONS = (("first",), ("last",), ("middle",), ("only", "first"), ("only", "last"))


def one_change(seed: int) -> Step:
    """A random net under a placement of data, with one event of its backward or reduction left out, twice, or moved."""
    rng, step = Random(seed), None
    while step is None:
        try:
            step = derive(parse_strategy(rng.choice(["dp", "zero1", "zero2", "zero3"])), some_model(rng, staged=False))
        except InputError:  # a tensor that no op reads
            continue
    events = list(step.events)
    k = rng.choice([k for k, e in enumerate(events) if e.phase in ("backward", "weights", "reduce", "prepare")])
    kind = rng.choice(["drop", "drop", "double", "at"])
    if kind == "drop":
        del events[k]
    elif kind == "double":
        events.insert(k + 1, replace(events[k], copy=events[k].copy + 7))
    else:
        events[k] = replace(events[k], at=rng.choice(POSITIONS))
    return replace(step, events=tuple(events))


def ratios(steps: Iterable[Step]) -> Counter[str]:
    """What became of the ratios of all candidates of some programs."""
    counted: Counter[str] = Counter()
    for step in map(lowered, steps):
        try:
            candidates = examine(step).candidates
        except InputError:
            continue
        counted.update(held(step, candidate) for candidate in candidates)
    return counted


ONLY_IN_THE_MIDDLE, ROWS, CUT = 61, 117, 1009
"""Seeds: a ratio for m from 3 on that is none at 1; two classes of contributions, of which one is held whole; data that
an axis cuts which splits none."""


def twice_in_a_layer() -> Step:
    """A backward that doubles the gradient in every layer, so that the factor depends on how many there are."""
    step = derive(parse_strategy("dp"), language_model("scaled", scaled))
    k = next(k for k, e in enumerate(step.events) if e.path == "backward.layer.up.grad.compute")
    return replace(step, events=(*step.events[:k], replace(step.events[k], copy=7), *step.events[k:]))


def test_ratios_are_those_of_a_run() -> None:
    drawn = map(one_change, (ONLY_IN_THE_MIDDLE, *range(200, 210)))
    found = ratios([twice_in_a_layer(), *drawn, some_step(Random(ROWS)), some_step(Random(CUT))])
    assert found["the run"] >= 4, found


@pytest.mark.slow
@pytest.mark.parametrize("number", range(12))
def test_ratios_of_many_programs_are_those_of_a_run(number: int) -> None:
    seeds = range(1000 + 40 * number, 1040 + 40 * number)
    assert ratios([*map(one_change, seeds), *(some_step(Random(k)) for k in seeds)])["the run"] >= 5


def test_a_parameter_with_two_paths_has_no_ratio_of_one() -> None:
    """A tied embedding whose gradient through the head is left out: the half through the lookup arrives."""
    step = derive(parse_strategy("pp_zb_h1"), language_model("tied", scaled, tied=True))
    left = tuple(e for e in step.events if e.path != "weights.head.logits.grad.compute")
    report = prove(replace(step, events=left))
    found = report.counterexample
    assert report.verdict == REFUTED and found is not None and len(left) < len(step.events)
    assert found.mass is None
    assert found.got == "through head.logits: 0; through embedding.tokens: 1/(m*tokens_per_cell)"
    assert "through head.logits" in found.explanation and "embedding.tokens" not in found.explanation


def test_two_operands_of_one_op_are_two_paths_by_name() -> None:
    """An op that reads a parameter twice: where the words tell its paths apart, they name the operands."""
    def squared(g: Builder, x: str) -> str:
        weight = g.parameter("layer.weight", "embed")
        return g.einsum("layer.up", x, weight, weight, to="batch seq embed")

    step = derive(parse_strategy("dp"), language_model("squared", squared))
    assert prove(step).verdict == PROVED
    sites = [Site(f"layer.up/{k}", "layer.weight") for k in (1, 2)]
    alone, [first, second] = Part(sites[0], {}), [Part(site, {}) for site in sites]
    assert parts.named(first.site, [alone], step.reference) == "layer.up"
    assert [parts.named(p.site, [first, second], step.reference) for p in (first, second)] == [
        "layer.up as operand 2", "layer.up as operand 3"]


def cut_off(seed: int) -> tuple[str, Step]:
    """A random net under a random placement, without the backward of one op: as if its result were detached."""
    rng, step = Random(seed), None
    while step is None:
        try:
            step = derive(parse_strategy(rng.choice(["dp", "zero1", "zero2", "zero3", "pp", "zero1*pp_zb_h1"])),
                          some_model(rng, staged=True))
        except InputError:
            continue
    left_out = rng.choice([e for e in step.events if e.on_gradient and e.verb == "compute"])
    return left_out.path, replace(step, events=tuple(e for e in step.events if e != left_out))


def is_zero(path: str, step: Step) -> None:
    """What is cut off is told as zero, never as undefined, unless what is cut off is zero or behind no parameter."""
    report = prove(step)
    found = report.counterexample
    if report.verdict == PROVED or (all("does not replay" in v.reason for v in report.obligations
                                       if v.verdict == UNDECIDED) and report.verdict == UNDECIDED):
        return
    assert report.verdict == REFUTED and found is not None, (path, report.verdict)
    assert found.obligation == "gradient" and "undefined" not in found.got, (path, found)
    assert (found.mass == "0" and "that is zero" in found.explanation) or found.mass is None, (path, found)


def test_a_gradient_that_is_cut_off_is_zero() -> None:
    step = derive(parse_strategy("dp"), mlp())
    path = "backward.layer.mlp.down.grad.compute"
    found = prove(replace(step, events=tuple(e for e in step.events if e.path != path))).counterexample
    assert found and (found.got, found.mass) == ("0", "0")
    assert found.explanation == "update.layer.weight.update reads a gradient that is zero"
    for seed in range(6):
        is_zero(*cut_off(seed))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_whatever_is_cut_off_is_zero(number: int) -> None:
    for seed in range(100 + 30 * number, 130 + 30 * number):
        is_zero(*cut_off(seed))
