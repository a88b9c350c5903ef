"""The obligations of one parameter group: formulas that are satisfiable iff something can go wrong.

Each is generated from the reference step and the declared update, never from an event alone, so that
deleting an event cannot delete its obligation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import z3

from placealg.prover import correct
from placealg.prover.calculus.contribution import Slot
from placealg.prover.calculus.event_ranks import left_out, pairs
from placealg.prover.calculus.explore import Chain, again, chain, initialised, observed, shapes, top
from placealg.prover.calculus.machine import Read, Relied, Site, Updated
from placealg.prover.calculus.microbatches import Case
from placealg.prover.calculus.one_step import AGAIN, Prefixes, Program, Run, run_step
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import PEER, Pairs
from placealg.prover.evidence import symbols
from placealg.prover.evidence.logic import and_, not_, or_
from placealg.prover.ops.findings import FailureKind
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.paths import Sum
from placealg.prover.ops.stages import no_end, on_ends
from placealg.step.program import Group, Step
from placealg.step.verbs import VERBS

OWN_KIND = {"weight": "view", "hyper": "update", "scale": "update", "rng": "random", "store": "invariant",
            "result": "invariant"}
"""Kind of read -> the obligation that fails if the step itself makes the read wrong."""


WRONG = {
    "gradient": "reads a gradient that is not the reference's",
    "normalizer": "reads a gradient weighted by how the tokens are distributed",
    "update": "is not the reference's update",
}
"""Obligation -> what an update does wrong if the obligation fails."""

FACTS: Mapping[str, tuple[str, ...]] = {
    "partition": ("an owner function is total: an element has one owner along an axis",),
    "random": ("an op draws from a stream keyed by logical coordinates",),
    "schedule": ("a collective without `where` is called by every rank of its group",),
}
"""Obligation -> the fact that holds of an instance by how every program is built, so that it needs no formula."""

LEFT = "leaves no rank with the new parameters, in"
UNSET = "reads a copy that initialisation did not set, in"

MISSES = {
    "norm": "clips by a norm that miscounts this group",
    "skip": "skips the step or not without regard to each element of this group, or to another value of it",
}
"""Value of which an event reads every group's part -> what it does wrong to one part."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One way for an obligation to fail: its formula is satisfiable iff it can happen; the other fields describe it.

    `cases` are the positions of the unit's microbatch for which the same formula arises, `instances` is how often it
    does. `slot` holds the partial norm or the flag if the event is not the group's own, `held` what an op reads, `kind`
    how a counterexample describes it.
    """

    obligation: str
    event: str
    formula: Any
    says: str
    cases: tuple[Case, ...] = ()
    instances: int = 0
    update: Updated | None = None
    read: Read | None = None
    slot: tuple[Slot | None, ...] = ()
    site: Site | None = None
    exact: bool = True
    held: Sum = ()
    kind: FailureKind = FailureKind.FORMULA


@dataclass(slots=True)
class Obligations:
    """All failures of one group, the number of instances checked, and what could not be closed.

    `full`: formulas are made even for instances that their data decide, as a certificate holds them. `facts` counts the
    instances without a formula, by obligation and fact; `data` those that their data decide, for which no formula is
    made. `updates` are those that are the same for every m of their case, by event, flag, site and case.
    """

    full: bool = False
    failures: dict[Hashable, Failure] = field(default_factory=dict)
    facts: dict[str, Counter[str]] = field(default_factory=dict)
    updates: dict[tuple[str, str, Site, Case], Updated] = field(default_factory=dict)
    instances: Counter[str] = field(default_factory=Counter)
    data: Counter[str] = field(default_factory=Counter)
    open: list[str] = field(default_factory=list)

    def add(self, obligation: str, key: Hashable, case: Case | None, failure: Callable[[], Failure],
            decided: bool = False, times: int = 1) -> None:
        """Add an instance, or several that are alike: a way to fail, or a further case of a known way.

        `decided`: its data show it is right.
        """
        self.instances[obligation] += times
        if decided and not self.full:
            self.data[obligation] += times
            return
        known = self.failures.get(key) or failure()
        more = () if case is None or case in known.cases else (case,)
        self.failures[key] = replace(known, cases=(*known.cases, *more), instances=known.instances + times)

    def hold(self, obligation: str) -> None:
        """Count one instance that is true by construction (no formula)."""
        self.instances[obligation] += 1
        self.facts.setdefault(obligation, Counter())[FACTS[obligation][0]] += 1


def obligations(step: Step, group: Group, sites: Iterable[Site], flows: Flows,
                full: bool = False) -> Obligations:
    """Every obligation of one group, for each class of m, site of use and step of a run; `full` as in `Obligations`."""
    for event in no_end(step, group):
        raise NoRule(event.path, "no transfer rule for a stage by its number, which may be no end of the pipeline")
    found, step = Obligations(full), on_ends(step, group)
    for site in sites:
        alone = untransformed(of_loss(step, site.loss)) if group.statistic or group.frozen else of_loss(step, site.loss)
        program = Program.of(alone, group, site.parameter)
        for cases in shapes(step.reference):
            _of_shape(found, alone, group, site, program, cases, flows)
    _schedule(found, step, group)
    return found


def of_loss(step: Step, loss: str) -> Step:
    """The step for the tokens of one loss: no other loss affects what those tokens contribute.

    Gradients are linear in the losses, each of which starts its own backward: the gradient of a step is right iff it is
    right for the tokens of every loss. Where counts are assumed to be equal, they are those of what the first loss of
    an op graph sums: of later tokens each rank has those that follow its own.
    """
    if step.reference.losses == (loss,):
        return step
    reference = step.reference
    others = {name for name in reference.losses if name != loss}
    apart = ("loss", "count") if reference.whole else ("count",)
    alone = tuple(e for e in step.events if e.value not in apart or e.unit not in others)
    assumed = reference.hypotheses if loss in reference.separate else ()
    return replace(step, reference=replace(reference, losses=(loss,), hypotheses=assumed), events=alone)


def untransformed(step: Step) -> Step:
    """The step for a statistic or a frozen group, which is not clipped, and which no flag checks."""
    return replace(step, reference=replace(step.reference, clip=False, skip=False))


def _of_shape(found: Obligations, step: Step, group: Group, site: Site, program: Program, cases: tuple[Case, ...],
              flows: Flows) -> None:
    start = initialised(step.reference, group, site, program, flows)
    steps = chain(start, program, cases[0])
    ideal = chain(top(steps), program, cases[0])
    resumed, followed = again(steps, program, cases[0])
    if not all(c.closed for c in (steps, ideal, *resumed)):
        found.open.append("the states of a run do not repeat")
    if not followed:
        found.open.append("runs that are resumed again and again do not repeat")
    _reads(found, steps, ideal, resumed)
    for run in (*steps.runs, *(r for c in resumed for r in c.runs)):
        shown, followed = observed(run, program)
        if not followed:
            found.open.append("the states in which an update would show do not repeat")
        alike = Prefixes()
        for case in cases:
            mine = run if case == run.case else run_step(run.start, program, case, run.index, alike)
            if not mine.whole:
                found.open.append("the loop over microbatches has no fixpoint: checked for small m only")
            _updates(found, step, group, mine, shown)
            _norms(found, step, mine)


def _reads(found: Obligations, steps: Chain, ideal: Chain, resumed: Sequence[Chain]) -> None:
    """Add every observed read of every step of a run, with the obligation that fails if the read is wrong.

    From an ideal state the step's own reads are right or the step is at fault (`view`, or `invariant` if only a later
    step sees it); a read that is wrong only from the real start is the fault of `init`.
    """
    ideals = _lasting(ideal)
    for run in steps.runs:
        for read in run.end.reads:
            blamed = OWN_KIND[read.kind] if run.index == 0 else "invariant"
            _blame(found, read, ideals.get((read.event, read.kind, read.position), ()), blamed, run)
    before = _lasting(steps)
    for steps, run in ((c, r) for c in resumed for r in c.runs):
        for read in run.end.reads:
            known = before.get((read.event, read.kind, read.position), ())
            found.add("init", ("resume", run.index, read, known), _case_of(run, read.position),
                      partial(_restored, read, known, run, steps.resumes),
                      correct.always_right(read))


def _lasting(steps: Chain) -> dict[tuple[str, str, str], tuple[Read, ...]]:
    """(event, kind, position) -> the reads of the steps after which no state is new: several if they differ."""
    found: dict[tuple[str, str, str], tuple[Read, ...]] = {}
    for read in (r for run in steps.lasting for r in run.end.reads):
        key = read.event, read.kind, read.position
        known = found.get(key, ())
        found[key] = known if read in known else (*known, read)
    return found


def _restored(read: Read, before: tuple[Read, ...], run: Run, resumes: int) -> Failure:
    """The failure of a read that is wrong after resuming, and was right before saving."""
    what = "resuming" if resumes == 1 else "resuming a resumed run"
    lasting = [not_(correct.wrong_read(r)) for r in before]
    says = (f"{LEFT} step {run.index + 1} after {what}" if read.kind == "result" else
            f"reads a copy that {what} did not restore, in step {run.index + 1} after it")
    return Failure("init", read.event, and_(correct.wrong_read(read), *lasting), says, read=read)


def _blame(found: Obligations, read: Read, ideally: tuple[Read, ...], blamed: str, run: Run) -> None:
    def fault(obligation: str, own: bool, says: str) -> Failure:
        at_fault = or_([correct.wrong_read(r) for r in ideally])
        formula = and_(correct.wrong_read(read), at_fault if own else not_(at_fault))
        return Failure(obligation, read.event, formula, f"{says} step {run.index + 1}", read=read)

    right = correct.always_right(read)
    what = LEFT if read.kind == "result" else "reads a stale or undefined copy in"
    found.add(blamed, (blamed, run.index, read, ideally), _case_of(run, read.position),
              lambda: fault(blamed, True, what), right)
    found.add("init", ("init", run.index, read, ideally), _case_of(run, read.position),
              lambda: fault("init", False, what if read.kind == "result" else UNSET), right)


def _case_of(run: Run, position: str) -> Case:
    """The case in which something happens at a position: a second passive middle microbatch needs an m one larger."""
    return replace(run.case, least=run.case.least + 1) if position == AGAIN else run.case


def _updates(found: Obligations, step: Step, group: Group, run: Run, shown: tuple[Read, ...]) -> None:
    """Add the wrong updates that make an observed read wrong which is right otherwise: dead updates do not count."""
    reference = step.reference

    @cache
    def weighted(update: Updated, equal: bool) -> Any:
        weighting = correct.equal_counts(reference) if equal else correct.own_counts(reference)
        return correct.gradient_integrity(update, reference, group, weighting)

    @cache
    def trusted() -> list[Any]:
        return [not_(correct.wrong_read(r)) for r in shown]

    @cache
    def seen(flag: str, right: Any) -> Any:
        of = correct.on_ranks(lambda name: right if name == flag else z3.BoolVal(True))
        return or_([and_(correct.wrong_read(read, of), well) for read, well in zip(shown, trusted(), strict=True)])

    conditions: Mapping[str, Callable[[Updated], Any]] = {
        "gradient": lambda u: weighted(u, True),
        "normalizer": lambda u: weighted(u, "equal_counts" in reference.hypotheses),
        "update": lambda u: correct.update_integrity(u, reference, group),
    }
    for name, condition in conditions.items():
        for update in run.end.updates:
            if run.whole:
                found.updates.setdefault((update.event, update.flag, run.end.site, run.case), update)

            def failure(name: str = name, update: Updated = update,
                        condition: Callable[[Updated], Any] = condition) -> Failure:
                return Failure(name, update.event, seen(update.flag, condition(update)), WRONG[name], update=update,
                               site=run.end.site, exact=run.whole)
            found.add(name, (name, update, shown, run.whole), run.case, failure)


def _norms(found: Obligations, step: Step, run: Run) -> None:
    """Add the failures of this group's partial norm and flag where clips and updates of other groups read them."""
    reference, alike = step.reference, dict[tuple[str, int, Pairs], list[Relied]]()
    for relied in run.end.relied:
        if reference.clip if relied.value == "norm" else reference.skip or relied.slot:
            alike.setdefault((relied.value, id(relied.slot), relied.where), []).append(relied)
    for relied, *others in alike.values():
        conditions: Mapping[str, Callable[[Relied], Any]] = {
            "gradient": lambda r: correct.counted_integrity(r.slot, reference, correct.equal_counts(reference)),
            "normalizer": lambda r: correct.counted_integrity(r.slot, reference, correct.own_counts(reference)),
            "update": lambda r: correct.part_integrity(r, reference),
        }
        for name, condition in conditions.items():

            def failure(name: str = name, relied: Relied = relied,
                        holds: Callable[[Relied], Any] = condition) -> Failure:
                kind = FailureKind.NORM if relied.value == "norm" else FailureKind.FLAG
                return Failure(name, relied.event, not_(holds(relied)), MISSES[relied.value],
                               slot=(relied.slot,), exact=run.whole, kind=kind)
            found.add(name, (name, relied.value, relied.slot, relied.where, run.whole), run.case, failure,
                      times=1 + len(others))


def _schedule(found: Obligations, step: Step, group: Group) -> None:
    """Add the deadlocks: a collective is called by all ranks of its group or by none, or else some wait forever.

    Stages of a pipeline call no collective on each other's parameters.
    """
    for event in step.events:
        if event.group not in ("", group.name) or not VERBS[event.verb].collective or not event.axes:
            continue
        if event.group and step.reference.pipeline.among(event.axes):
            several = and_(symbols.at_pairs(pairs(event)), symbols.size(step.reference.pipeline.axis) > 1)
            failure = Failure("schedule", event.path, several, "waits for stages that hold other parameters: deadlock")
            found.add("schedule", ("schedule", event), None, lambda failure=failure: failure)  # type: ignore[misc]
        elif not event.where:
            found.hold("schedule")
        else:
            called = and_(symbols.at_pairs(pairs(event)), *(not_(symbols.at_pairs([p])) for p in left_out(event)))
            peer = correct.on_rank(called, dict.fromkeys(event.axes, PEER))
            failure = Failure("schedule", event.path, and_(called, not_(peer)),
                              "some ranks of the group do not take part: deadlock")
            found.add("schedule", ("schedule", event), None, lambda failure=failure: failure)  # type: ignore[misc]
