"""From a Step to verdicts and candidate counterexamples: generate the obligations, ask the solver, report.

What the solver finds satisfiable is a *candidate*: it becomes REFUTED only after an independent engine, which this
package does not import, has replayed it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import z3

from placealg.frozen import FrozenMap
from placealg.models.backward import terms
from placealg.models.stage_parts import predicting
from placealg.models.tokens import summed
from placealg.progress import say
from placealg.prover.calculus.machine import Site
from placealg.prover.calculus.places import NoRule
from placealg.prover.evidence import lemmas, symbols
from placealg.prover.evidence.logic import and_, or_
from placealg.prover.evidence.parts import Part, parts
from placealg.prover.evidence.premises import ask
from placealg.prover.evidence.solver import SAT, UNSAT, Reply, versions
from placealg.prover.evidence.vacuity import vacuity
from placealg.prover.joined import prepared
from placealg.prover.obligations import Failure, Obligations, obligations
from placealg.prover.ops.findings import FailureKind
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import WHOLE, network_obligations, paths_of, supposed, unfollowed
from placealg.prover.schedule import acyclic
from placealg.prover.symmetry import signature
from placealg.prover.verdict import (
    BOUNDED,
    OBLIGATIONS,
    PARAMETRIC,
    PROVED,
    REFUTED,
    UNDECIDED,
    Decided,
    Hypothesis,
    Verdict,
)
from placealg.step.event import COUNTS_OF_SAMPLES, MICROBATCH, STEP_PHASES
from placealg.step.program import LOOPED, Group, Step

OF_OPS = ("forward", "random")
PER_GROUP = ("gradient", "normalizer", "view", "update", "invariant", "init", "random", "schedule")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible counterexample: the failure, and a model of it as integers by constant name.

    `parts` are those of the gradient that the failing update reads, by the paths of the parameter; `followed` says that
    every event on a tensor could be followed through all layers, so that their weights are those of a run.
    """

    verdict: Verdict
    group: Group
    failure: Failure
    model: dict[str, int]
    parts: tuple[Part, ...] = ()
    followed: bool = True


@dataclass(frozen=True, slots=True)
class Findings:
    """All verdicts of a step (REFUTED ones pending their replay), and the candidates behind them."""

    verdicts: tuple[Verdict, ...]
    candidates: tuple[Candidate, ...]
    hypotheses: tuple[Hypothesis, ...]
    lemmas: tuple[str, ...]
    versions: str


def examine(step: Step) -> Findings:
    """Check every obligation of every parameter group; groups with equal signatures are checked once."""
    step = prepared(step)
    say("proving the lemmas")
    proved, unproved = _lemmas(step)
    verdicts: list[Verdict] = [vacuity(step)]
    candidates: list[Candidate] = []
    say("proving forward, op by op")
    flows = Flows(step)
    verdicts, candidates = _examine_network(step, flows, verdicts)
    done: dict[object, list[Verdict]] = {}
    for group in step.reference.groups:
        try:
            paths = paths_of(step, group, flows)
            sites = tuple(dict.fromkeys(paths.values()))
            if not sites:
                raise NoRule(group.name, "nothing that runs uses it, so that nothing would be judged")
            key = signature(step, group, sites, flows)
        except NoRule as gap:
            verdicts += _open(group.name, PER_GROUP, gap)
            continue
        if key in done:
            verdicts += [replace(v, group=group.name, seconds=0.0, reason=v.reason or f"as {v.group}")
                         for v in done[key]]
            continue
        say(f"proving what concerns {group.name}")
        found, maybe = _examine_group(step, group, paths, flows)
        verdicts += found
        candidates += maybe
        if not maybe:
            done[key] = found
    if not candidates:
        candidates = _suppose(step, flows, verdicts)
        verdicts += [c.verdict for c in candidates]
    clash = _disagreement(step, candidates)
    verdicts.append(clash.verdict if clash else _partition(step))
    candidates += [clash] if clash else []
    if unproved:
        verdicts = [replace(v, verdict=UNDECIDED, cls=None, reason=unproved) if v.verdict == PROVED else v
                    for v in verdicts]
    order = list(OBLIGATIONS)
    verdicts.sort(key=lambda v: order.index(v.id))
    return Findings(tuple(verdicts), tuple(candidates), hypotheses(step), proved, versions())


def _lemmas(step: Step) -> tuple[tuple[str, ...], str]:
    """(proved lemmas, "") or ((), reason) if some lemma could not be proved."""
    try:
        return lemmas.proved_lemmas(lemmas.used(step)), ""
    except lemmas.Unproved as gap:
        return (), str(gap)


def hypotheses(step: Step) -> tuple[Hypothesis, ...]:
    """The named hypotheses under which the verdicts hold."""
    named = []
    cells = (*step.reference.data_axes, *((MICROBATCH,) if step.reference.microbatches != 1 else ()))
    if "equal_counts" in step.reference.hypotheses and cells:
        named.append(Hypothesis("equal_counts", _of_means(summed(step.reference.graph)), over=cells))
    graph = step.reference.graph
    if step.reference.whole:
        named.append(Hypothesis("units_independent",
                                "the model outside the parameters is computed alike on every device"))
    elif any(op.kind == "route" for op in graph.ops):
        named.append(Hypothesis("dropless", "every token reaches the experts that its router chose"))
    if further := predicting(graph):
        apart = any(op.unit in further for op in terms(graph))
        named.append(Hypothesis("predictions", _of_predictions(further, apart)))
    means = step.reference.weighting == "microbatch_mean" and step.reference.microbatches != 1
    if step.reference.weighting == "sample_mean":
        named.append(Hypothesis("sample_mean", "the loss of the single device is the mean of its microbatches' means, "
                                               "of which each counts by its samples"))
    if means and "equal_counts" not in step.reference.hypotheses:
        named.append(Hypothesis("microbatch_mean",
                                "the loss of the single device is the mean of its microbatches' means"))
    divisors = {n for e in step.events for n in e.divisor.names()}
    if "equal_counts" not in step.reference.hypotheses and ("tokens" in divisors or _part_divides(step)):
        named.append(Hypothesis("nonzero_divisors", "a token count by which something is divided is not zero there"))
    if not step.phase("resume"):
        named.append(Hypothesis("never_resumed", "the program has no resume phase, so a resumed run is not covered"))
    if step.reference.microbatches == 1:
        named.append(Hypothesis("microbatches", is_=1))
    return tuple(named)


def _of_means(of: str) -> str:
    """What equal counts are of where means are summed; "" where tokens are.

    >>> _of_means("sequence"), _of_means("token")
    ('every rank of the data axes holds equally many sequences with a valid token in every microbatch', '')
    """
    return "" if of == "token" else (
        f"every rank of the data axes holds equally many {of}s with a valid token in every microbatch")


def _of_predictions(units: Sequence[str], apart: bool = False) -> str:
    """What is assumed of units that predict later tokens.

    >>> _of_predictions(["mtp1"])
    "what mtp1 reads and predicts, later tokens, is data that each rank has as it has its own; to a token's loss that \
of mtp1 is added, times a weight, and all are divided by one count of tokens"
    """
    names = " and ".join(units)
    read = f"what {names} {'read and predict' if len(units) > 1 else 'reads and predicts'}, later tokens, is data"
    if apart:
        return f"{read} that each rank has as it has its own"
    return (f"{read} that each rank has as it has its own; to a token's loss that of {names} is added, times a weight, "
            "and all are divided by one count of tokens")


def _part_divides(step: Step) -> bool:
    """Whether a divisor counts a part of the batch: one microbatch, or the tokens of some ranks only.

    The loop over microbatches is walked twice: an event may divide by a count that the microbatch before has made.
    """
    whole, summed = {*step.reference.data_axes, MICROBATCH}, dict[str, set[str]]()
    runs = [tuple(run) for _, run in itertools.groupby(step.events, key=lambda e: e.phase in LOOPED)]
    for event in (e for run in runs for _ in range(1 + (run[0].phase in LOOPED)) for e in run):
        if "count" in event.divisor.names():
            counts = [over for counter, over in summed.items() if counter not in COUNTS_OF_SAMPLES]
            read = [summed[event.unit]] if event.unit in summed else counts
            if any(not whole <= over for over in read):
                return True
        if event.value == "count" and event.verb == "compute":
            summed[event.unit] = set() if event.phase in LOOPED else {MICROBATCH}
        elif event.value == "count" and not (event.where or event.at) and event.unit in summed:
            summed[event.unit] |= set(event.axes)
    return False


def _examine_network(step: Step, flows: Flows, before: list[Verdict]) -> tuple[list[Verdict], list[Candidate]]:
    """The verdicts `before`, followed by those on the ops; and the candidates of the latter."""
    try:
        generated = network_obligations(step, flows)
    except NoRule as gap:
        return [*before, *_open("", of_ops(step), gap)], []
    decided = [_decide(step, WHOLE, identifier, generated) for identifier in of_ops(step)]
    if step.reference.pipeline.axis:
        decided = [_ordered(step, v, c) if v.id == "schedule" else (v, c) for v, c in decided]
    return [*before, *(verdict for verdict, _ in decided)], [c for _, c in decided if c]


def _ordered(step: Step, verdict: Verdict, candidate: Candidate | None) -> tuple[Verdict, Candidate | None]:
    """The verdict on the messages, joined with the fact that the order in which stages run has no deadlock.

    An order that is written down and cannot run is a candidate at its own sizes.
    """
    pipeline = step.reference.pipeline
    fact = acyclic(pipeline)
    verdict = replace(verdict, instances=verdict.instances + 1, decided=verdict.decided + Decided(solver=1))
    if verdict.verdict != PROVED:
        return verdict, candidate
    if fact.verdict == PROVED:
        return replace(verdict, reason="", cls=fact.cls if fact.cls == BOUNDED else verdict.cls), None
    if pipeline.actions and fact.verdict == REFUTED:
        event = next((e.path for e in step.events if e.verb == "send"), step.events[-1].path)
        failure = Failure("schedule", event, z3.BoolVal(True), fact.reason, kind=FailureKind.SUPPOSED)
        sizes = {**dict.fromkeys(step.reference.mesh.names, 1), pipeline.axis: pipeline.table.ranks,
                 "m": pipeline.table.microbatches}
        refuted = replace(verdict, verdict=REFUTED, cls=BOUNDED, event=event, reason=fact.reason)
        return refuted, Candidate(refuted, WHOLE, failure, sizes)
    return replace(verdict, verdict=UNDECIDED, cls=None, reason=f"the order {fact.order}: {fact.reason}"), None


def _open(group: str, identifiers: Iterable[str], gap: NoRule) -> list[Verdict]:
    """The UNDECIDED verdicts that follow from an event without a rule."""
    return [Verdict(i, group, OBLIGATIONS[i], UNDECIDED, None, 0, 0.0, str(gap), gap.event) for i in identifiers]


def _suppose(step: Step, flows: Flows, verdicts: list[Verdict]) -> list[Candidate]:
    """If nothing else is wrong, a candidate from what could not be followed or has no rule, for a run to confirm.

    The effect of an event of init, save or resume shows in a resumed run at the latest.
    """
    failures = [supposed(demand, step) for demand in unfollowed(step, flows)]
    failures += [_by_run_alone("invariant" if step.event(v.event).phase in STEP_PHASES else "init", v.event,
                               v.reason.removeprefix(f"{v.event}: "))
                 for v in verdicts if v.verdict == UNDECIDED and v.event]
    return [_unconfirmed(f, {**dict.fromkeys(step.reference.mesh.names, 2), "m": 2}) for f in failures[:1]]


def by_run(identifier: str, event: str, why: str, model: dict[str, int]) -> Candidate:
    """The candidate of a failure that no formula describes, but that a run shows at the sizes of `model`."""
    return _unconfirmed(_by_run_alone(identifier, event, why), model)


def _by_run_alone(identifier: str, event: str, why: str) -> Failure:
    """A failure that only a run can show."""
    says = f"cannot be followed, only run: {why}"
    return Failure(identifier, event, z3.BoolVal(True), says, kind=FailureKind.SUPPOSED)


def _unconfirmed(failure: Failure, model: dict[str, int]) -> Candidate:
    """The candidate, for the whole step, of a failure at the sizes of `model`, for a run to confirm."""
    verdict = Verdict(failure.obligation, "", OBLIGATIONS[failure.obligation], REFUTED, BOUNDED, 1, 0.0,
                      failure.says, failure.event, Decided(solver=1))
    return Candidate(verdict, WHOLE, failure, model)


def _examine_group(step: Step, group: Group, paths: Mapping[Site, Site],
                   flows: Flows) -> tuple[list[Verdict], list[Candidate]]:
    try:
        generated = obligations(step, group, tuple(dict.fromkeys(paths.values())), flows)
    except NoRule as gap:
        return _open(group.name, PER_GROUP, gap), []
    verdicts, candidates = [], []
    for identifier in PER_GROUP:
        verdict, candidate = _decide(step, group, identifier, generated, paths)
        verdicts.append(verdict)
        if candidate:
            candidates.append(replace(candidate, followed=not unfollowed(step, flows)))
    return verdicts, candidates


def of_ops(step: Step) -> tuple[str, ...]:
    """The identifiers that are checked on the ops of the whole step: `schedule` only if messages are sent."""
    return (*OF_OPS, "schedule") if step.reference.pipeline.axis else OF_OPS


def _decide(step: Step, group: Group, identifier: str, generated: Obligations,
            paths: Mapping[Site, Site] = FrozenMap()) -> tuple[Verdict, Candidate | None]:
    start = time.perf_counter()
    failures = [f for f in generated.failures.values() if f.obligation == identifier]
    possible = [f for f in failures if not z3.is_false(z3.simplify(f.formula))]
    instances = generated.instances[identifier]
    asked = sum(f.instances for f in possible)
    decided = Decided(generated.data[identifier], sum(generated.facts.get(identifier, {}).values()),
                      sum(f.instances for f in failures) - asked, asked)
    verdict = Verdict(identifier, group.name, OBLIGATIONS[identifier], PROVED, PARAMETRIC, instances, decided=decided)
    if not instances:
        verdict = replace(verdict, reason=f"no event of {group.name or 'the ops'} has anything to check")
    candidate: Candidate | None = None
    if possible:
        answer = ask(step, [or_([in_case(f) for f in possible])])
        if answer.status == SAT:
            failure, model = _smallest(step, possible, answer)
            model = _fewest(step, failure, model)
            verdict = replace(verdict, verdict=REFUTED, cls=BOUNDED, event=failure.event, reason=failure.says)
            candidate = Candidate(verdict, group, failure, model, parts(failure, generated, paths))
        elif answer.status != UNSAT:
            verdict = replace(verdict, verdict=UNDECIDED, cls=None, reason=answer.reason or "the solver gave up")
    if verdict.verdict == PROVED and generated.open:
        verdict = replace(verdict, verdict=UNDECIDED, cls=None, reason="; ".join(dict.fromkeys(generated.open)))
    verdict = replace(verdict, seconds=time.perf_counter() - start)
    if candidate:
        candidate = replace(candidate, verdict=verdict)
    return verdict, candidate


def in_case(failure: Failure) -> Any:
    """The failure formula restricted to its microbatch cases; satisfiable iff the failure is possible."""
    count = symbols.size(symbols.MICROBATCH)
    cases = [count == c.least if c.exact or not failure.exact else count >= c.least for c in failure.cases]
    return and_(failure.formula, or_(cases)) if cases else failure.formula


LARGEST_REPLAY = 64
"""The product of devices and microbatches above which a counterexample is not replayed."""

_SIZES = ((2, 2, 3), (2, 3, 3), (1, 3, 3), (1, 6, 6))
"""Bounds tried for a counterexample: smallest and largest axis size, largest m.

An axis of which the program names a rank may also have one rank more than that.
"""


def _smallest(step: Step, failures: list[Failure], answer: Reply) -> tuple[Failure, dict[str, int]]:
    """The first failure in program order that can happen, at the smallest sizes tried; own updates before norms.

    If those are too large to replay, at most four axes have two ranks, and the others one, if it can happen there.
    """
    order, axes = {e.path: k for k, e in enumerate(step.events)}, step.reference.mesh.names
    ranked = sorted(failures, key=lambda f: (bool(f.slot), order.get(f.event, len(order))))

    def first(low: int, high: int, most: int, *more: Any) -> tuple[Failure, dict[str, int]] | None:
        bounds = [and_(symbols.size(a) >= low, symbols.size(a) <= max(high, step.enough(a))) for a in axes]
        return next(_possible(step, ranked, [*bounds, symbols.size(symbols.MICROBATCH) <= most, *more]), None)
    for low, high, most in _SIZES:
        found = first(low, high, most)
        if found and prod(found[1].get(a, 1) for a in (*axes, "m")) > LARGEST_REPLAY:
            return first(1, 2, 3, z3.Sum([symbols.size(a) for a in axes]) <= len(axes) + 4) or found
        if found:
            return found
    return next(_possible(step, ranked, []), (ranked[0], dict(answer.model)))


def _fewest(step: Step, failure: Failure, model: dict[str, int]) -> dict[str, int]:
    """A model of the failure at the same sizes with as few microbatches as possible."""
    sizes = [symbols.size(a) == model.get(a, 1) for a in step.reference.mesh.names]
    for m in range(1, model.get("m", 1)):
        for _, found in _possible(step, [failure], [*sizes, symbols.size(symbols.MICROBATCH) == m]):
            return found
    return model


def _possible(step: Step, failures: list[Failure], bounds: list[Any]) -> Iterator[tuple[Failure, dict[str, int]]]:
    """The failures that can happen within bounds, each with a model."""
    for failure in failures:
        found = ask(step, [in_case(failure), *bounds])
        if found.status == SAT:
            yield failure, dict(found.model)


def _partition(step: Step) -> Verdict:
    """Owner functions are total: units and elements have exactly one owner each; only agreement is left to show."""
    start = time.perf_counter()
    places = len(step.reference.data_axes) + len(layouts(step))
    return Verdict("partition", "", OBLIGATIONS["partition"], PROVED, PARAMETRIC, places, time.perf_counter() - start,
                   "owner functions are total" if places else "nothing is split", decided=Decided(construction=places))


def layouts(step: Step) -> set[tuple[str, str, str]]:
    """(group, axis, layout) for every event that uses the owner function along an axis."""
    return {(e.group or e.tensor, a, e.layout) for e in step.events if e.group or e.drawn for a in e.owning}


def _disagreement(step: Step, candidates: list[Candidate]) -> Candidate | None:
    """The candidate whose cause is that layouts disagree: with one layout everywhere nothing is wrong."""
    data = {e.layout for e in step.events if e.drawn and not e.group}
    differ = {e.layout for e in step.events if e.drawn and e.group and e.owning}
    named = {name for _, _, name in layouts(step)} - data
    if (len(named) < 2 and not data and not differ) or not candidates:
        return None
    common = min(named - differ, default="own")
    one = replace(step, events=tuple(replace(e, layout=common if e.group else "own") for e in step.events))
    if examine(one).candidates:
        return None
    first = candidates[0]
    reason = (f"{' and '.join(sorted(data))} is no partition: each rank takes data for itself" if data else
              f"{' and '.join(sorted(differ))} is one layout here and another there, and they meet" if differ else
              f"layouts {' and '.join(sorted(named))} disagree where they meet")
    places = len(layouts(step))
    verdict = Verdict("partition", first.group.name, OBLIGATIONS["partition"], REFUTED, BOUNDED, places, None, reason,
                      first.failure.event, Decided(solver=places))
    return replace(first, verdict=verdict)
