"""Complementary neighbours: an event that is split by a condition means the same, is proved, and else named as open."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.prover.joined import complementary, prepared
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED
from placealg.simulator import Setting, simulate
from placealg.step.event import Event
from placealg.step.lower import lowered
from placealg.step.program import Step
from placealg.step.where import LAST_RANK, Clause

PROGRAMS = (("dp", "abstract"), ("zero1", "abstract"), ("zero3", "abstract"), ("hsdp", "abstract"), ("dp", "mlp"),
            ("zero1*pp", "mlp"), ("pp_zb_h1", "mlp"))


def split(draw: Random, step: Step, event: Event | None = None) -> tuple[Step, Event, Event]:
    """The program with an event in two: where a random condition holds, and where it does not, in random order."""
    while True:
        one = event or draw.choice(step.events)
        axis = draw.choice(step.reference.mesh.names)
        clause = Clause(axis, draw.choice([None, 0, 1, LAST_RANK]), draw.random() < 0.5)
        parts = [replace(one, where=(*one.where, c), copy=one.copy + n)
                 for c, n in ((clause, 0), (replace(clause, but=not clause.but), 7))]
        k = step.events.index(one)
        try:
            return replace(step, events=(*step.events[:k], *parts, *step.events[k + 1:])), *parts
        except InputError:
            continue


def right(step: Step) -> list[bool]:
    """Whether runs equal the single device, at two sizes each."""
    found = []
    for ranks in (2, 3) if len(step.reference.mesh.names) == 1 else (2,):
        sizes = dict.fromkeys(step.reference.mesh.names, ranks)
        found.append(simulate(step, Setting.equal(step.reference, sizes, 2, 1, seed=ranks)).equal)
    return found


def judged(seed: int) -> str:
    """What becomes of a split event: joined, it runs alike and is proved; open, the verdict names what is unclaimed."""
    draw = Random(seed)
    base = read_case(*draw.choice(PROGRAMS), []).step
    step, one, other = split(draw, base)
    if complementary(one, other):
        assert len(prepared(step).events) == len(lowered(base).events)
        assert all(right(step)), (seed, one)
        assert prove(step).verdict == PROVED, (seed, one)
        return "joined"
    try:
        report = prove(step)
    except InputError:
        return "refused"
    why = [v.reason for v in report.obligations if v.verdict == UNDECIDED]
    assert all("no transfer rule" in text or "leaves out nothing is claimed" in text or " once more" in text
               or "is not followed" in text or "no rank satisfies" in text for text in why), (seed, one, why)
    return report.verdict


def test_a_split_event_is_one_event() -> None:
    found = [judged(seed) for seed in range(5)]
    assert found.count("joined") >= 2, found


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_every_split_event_is_one_event(number: int) -> None:
    assert "joined" in [judged(seed) for seed in range(100 + 30 * number, 130 + 30 * number)]


@pytest.mark.parametrize(("case", "path", "clause", "verdict"), [
    (("zero1", "abstract"), "update.layer.weight.norm", Clause("dp"), REFUTED),
    (("dp", "abstract"), "reduce.layer.weight.grad_sum.reduce[dp]", Clause("dp", 0), REFUTED)])
def test_what_is_more_than_its_parts_is_not_joined(
        case: tuple[str, str], path: str, clause: Clause, verdict: str) -> None:
    """Of two norms, of a rank's own elements and of others, the second counts; ranks reduce together or not at all."""
    base = read_case(*case, []).step
    event = replace(base.event(path), where=())
    one, other = (replace(event, where=(replace(clause, but=but),), copy=1 + but) for but in (False, True))
    k = base.events.index(base.event(path))
    step = replace(base, events=(*base.events[:k], one, other, *base.events[k + 1:]))
    assert not complementary(one, other) and prove(step).verdict == verdict


def test_what_is_apart_in_more_than_one_condition_is_no_pair() -> None:
    event, a, b = Event("update", "clip", "grad_sum", "layer.weight"), Clause("dp", 0), Clause("tp", 1)
    for one, other in ((("dp", a), (a, b)), ((a,), (a,)), ((a,), (b,)), ((), (a,)), ((a, b), (replace(a, but=True),))):
        assert not complementary(replace(event, where=tuple(c for c in one if c != "dp")), replace(event, where=other))
    assert complementary(replace(event, where=(b, a)), replace(event, where=(replace(a, but=True), b)))
