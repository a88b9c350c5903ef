"""Every state that a run can reach, abstractly: initialise, then steps until no state is new, then resume.

Behind a step a checkpoint may be saved, or none: a step is followed from both states. Steps from an initial state
close when every state after a step has been seen before: from then on all steps are alike. That is the induction over
steps. What is saved is resumed from, by resumed runs, too, until no state is new.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from placealg.prover import correct
from placealg.prover.calculus import transfer, versions
from placealg.prover.calculus.machine import Machine, Read, Site
from placealg.prover.calculus.microbatches import CASES, Case, Iteration
from placealg.prover.calculus.parameter_uses import concerns
from placealg.prover.calculus.places import NoRule, leave
from placealg.prover.calculus.versions import CURRENT, GARBAGE, UNHELD, Version
from placealg.prover.ops.flow import Flows
from placealg.step.event import READERS, takes_part
from placealg.step.program import LOOPED, STEP_PHASES, Event, Group, Reference, Step

OUTSIDE = Iteration("", False)
AGAIN = "middle, again"
"""The position of what a second passive middle microbatch reads otherwise than the first: it needs one m more."""

_LONGEST_CHAIN = 4
_MOST_RESUMES = 4


@dataclass(frozen=True, slots=True)
class Program:
    """The events that touch one group, by phase: its own, the global ones, and clips and updates."""

    init: tuple[Event, ...]
    step: tuple[Event, ...]
    save: tuple[Event, ...]
    resume: tuple[Event, ...]

    @staticmethod
    def of(step: Step, group: Group, parameter: str = "") -> Program:
        """The part of `step` that one group sees; of the ops, those that use `parameter` or draw random numbers."""
        mine = tuple(e for e in step.events if (e.group in ("", group.name) or e.verb in READERS)
                     and (not e.on_tensor or concerns(e, parameter, step.reference)))
        for event in mine:
            transfer.check(event)

        def phase(*names: str) -> tuple[Event, ...]:
            return tuple(e for e in mine if e.phase in names)
        return Program(phase("init"), phase(*STEP_PHASES), phase("save"), phase("resume"))

    @property
    def everything(self) -> tuple[Event, ...]:
        """All of its events, in order."""
        return (*self.init, *self.step, *self.save, *self.resume)


@dataclass(frozen=True, slots=True)
class Run:
    """One abstract step: where it started, where it ended (with its log), whether it stands for every m of its case.

    `end` is the state behind a save, `unsaved` that of a step which is not saved.
    """

    case: Case
    start: Machine
    end: Machine
    unsaved: Machine
    whole: bool
    index: int = 0

    @property
    def later(self) -> tuple[Machine, ...]:
        """The states in which the next step may start: behind a save, and without one where that is another."""
        saved, unsaved = self.end.next_step(), self.unsaved.next_step()
        return (saved,) if saved.snapshot() == unsaved.snapshot() else (saved, unsaved)


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps from an initial state, each state once; `closed` when every state after a step is among them.

    `lasting` are the steps behind which no state is new, the last step where there is none. `resumes` says how often
    the run was resumed.
    """

    runs: tuple[Run, ...]
    lasting: tuple[Run, ...]
    closed: bool
    resumes: int = 0


def initial(reference: Reference, group: Group, site: Site, flows: Flows | None) -> Machine:
    """Before `init`: rank 0 of the mesh holds the initial weights, every other copy is garbage.

    Along the axes that split the parameter itself each owner holds its elements, and nobody else any.
    """
    machine = Machine(reference, group, site, flows)
    first = [(a, "0") for a in reference.mesh.names if a not in group.split]
    held = versions.where(first, CURRENT, GARBAGE)
    machine.versions["weight", "device"] = versions.where(machine.owners, held, UNHELD)
    return machine


def execute(machine: Machine, events: tuple[Event, ...]) -> Machine:
    """Run events outside the microbatch loop, in place."""
    for event in events:
        transfer.execute(machine, event, OUTSIDE)
    return machine


def initialised(reference: Reference, group: Group, site: Site, program: Program, flows: Flows | None) -> Machine:
    """The state after `init`."""
    return execute(initial(reference, group, site, flows), program.init)


def checkpoint(machine: Machine) -> dict[str, Version]:
    """Where what `machine` stored is held; that it is right is the store's own obligation."""
    return {k: versions.each(v, lambda leaf: UNHELD if versions.trusted(leaf) == UNHELD else CURRENT)
            for k, v in machine.stored.items()}


def resumed(machine: Machine, program: Program) -> Machine:
    """A machine switched on for `resume`, where `machine` had stored."""
    fresh = Machine(machine.reference, machine.group, machine.site, machine.flows, stored=checkpoint(machine))
    fresh.versions["weight", "device"] = versions.where(machine.owners, GARBAGE, UNHELD)
    execute(fresh, program.resume).stored.clear()
    return fresh


def run_step(start: Machine, program: Program, case: Case, index: int = 0) -> Run:
    """One step, for every m of `case`."""
    machine = start.copy()
    machine.count = None  # a step forgets what was counted before it, in init and resume, too
    whole = True
    for looped, events in itertools.groupby(program.step, key=lambda e: e.phase in LOOPED):
        if not looped:
            execute(machine, tuple(events))
            continue
        body = tuple(events)
        for iteration in case.iterations:
            _iterate(machine, body, iteration)
            if iteration.many:
                before = machine.snapshot()
                again = machine.copy()
                _iterate(again, body, iteration)
                whole = whole and again.snapshot() == before
                machine.reads += [replace(r, position=AGAIN) for r in again.reads if r not in machine.reads]
                machine.ran += [replace(r, position=AGAIN) for r in again.ran if r not in machine.ran]
    machine.reads.append(result(machine))
    unsaved = machine.copy()
    execute(machine, program.save)
    return Run(case, start, machine, unsaved, whole, index)


def result(machine: Machine) -> Read:
    """What a step is for: some rank holds the new parameters, as weights or as master weights, whoever reads them.

    Where none does, it is a rank that should that the read is about.
    """
    want = machine.after("weight")
    held = [machine.versions[key] for key in sorted(machine.versions, reverse=True) if key[0] in ("weight", "master")]
    found = (versions.somewhere(version, want) for version in held)
    best = next(found, UNHELD)
    for version in found:
        best = versions.either(best, version, want)
    there = {axis: positions[0] for version in reversed(held) for axis, positions in versions.places(version).items()}
    return Read(_left(machine), "result", "", versions.where(there.items(), best, want), want)


def _left(machine: Machine) -> str:
    """The event that leaves the parameters of a step: their update, or, of what is frozen, the save that reads them."""
    phase, verb = ("save", "weight.store") if machine.group.frozen else ("update", "update")
    return f"{phase}.{machine.group.name}.{verb}"


def _iterate(machine: Machine, body: tuple[Event, ...], iteration: Iteration) -> None:
    """One microbatch, forward and backward."""
    behind = tuple(itertools.dropwhile(lambda e: e.phase != "backward", body))
    overlap = machine.reference.pipeline is not None
    start = machine.copy()
    machine.begin()
    _run(machine, body[:len(body) - len(behind)], iteration)
    between = machine.copy()
    _run(machine, behind, iteration)
    if overlap and body:
        _apart(start, between, machine, body[-1], iteration)
        _in_turn(start, between, behind)
    if iteration.many:
        leave(machine, body[-1])


def _run(machine: Machine, events: tuple[Event, ...], iteration: Iteration) -> None:
    for event in events:
        if takes_part(event.at, iteration.position):
            transfer.execute(machine, event, iteration)


def _apart(start: Machine, between: Machine, end: Machine, event: Event, iteration: Iteration) -> None:
    """In a pipeline, forwards of later microbatches run between a forward and its backward.

    That makes no difference where, after the first forward and before the last backward, no copy of a state changes,
    a forward changes no gradient and a backward no count: this is checked here; else nothing is claimed.
    """
    changed: list[tuple[str, str]] = []
    if between.count != end.count and iteration.position not in ("last", "only"):
        changed.append(("count", ""))
    for before, after, free in ((start, between, ("first", "only")), (between, end, ("last", "only"))):
        keys = {*before.versions, *after.versions} if iteration.position not in free else set()
        changed += [k for k in keys if before.version(*k) != after.version(*k)]
    changed += [k for k in {*start.values, *between.values} if start.value(*k) != between.value(*k)]
    if changed:
        raise NoRule(event.path, "microbatches overlap in a pipeline, and each changes "
                     f"{', '.join(v for v, _ in sorted(changed))} of {end.group.name}")


def _in_turn(start: Machine, between: Machine, behind: tuple[Event, ...]) -> None:
    """Behind the first backward event there is no forward, and no count that another forward has changed."""
    for event in behind:
        if event.phase != "backward":
            raise NoRule(event.path, "a forward behind a backward of its microbatch, in a pipeline")
        if between.count != start.count and "count" in event.divisor.names():
            raise NoRule(event.path, "in a pipeline the next forward may have changed the count")


def settled(machine: Machine) -> Machine:
    """The state when every update in it was right."""
    state = machine.copy()
    state.versions = {k: versions.each(v, versions.trusted) for k, v in machine.versions.items()}
    state.stored = {k: versions.each(v, versions.trusted) for k, v in machine.stored.items()}
    return state


def shapes(reference: Reference) -> tuple[tuple[Case, ...], ...]:
    """The cases by class of m; only m = 1 when the strategy fixes a single microbatch."""
    chosen = [c for c in CASES if reference.microbatches != 1 or c.least == 1]
    return tuple(tuple(g) for _, g in itertools.groupby(chosen, key=lambda c: c.shape))


def chain(start: Machine, program: Program, case: Case) -> Chain:
    """Steps from `start`, with and without a save behind each, until no state is new."""
    return _follow((start,), program, case, settled)


def _follow(states: Sequence[Machine], program: Program, case: Case, trusted: Callable[[Machine], Machine]) -> Chain:
    """Steps from every one of `states` until no state, `trusted`, is new."""
    seen, runs, lasting = list[object](), list[Run](), list[Run]()
    for index in range(_LONGEST_CHAIN):
        later = list[Machine]()
        for state in states:
            if state.snapshot() in seen:
                continue
            seen.append(state.snapshot())
            run = run_step(state, program, case, index)
            runs.append(run)
            found = [trusted(after) for after in run.later]
            later += found
            if all(after.snapshot() in seen for after in found):
                lasting.append(run)
        states = later
    closed = all(state.snapshot() in seen for state in states)
    return Chain(tuple(runs), tuple(lasting or runs[-1:]), closed)


def again(steps: Chain, program: Program, case: Case) -> tuple[tuple[Chain, ...], bool]:
    """Steps of the runs resumed from what `steps` and resumed runs saved; whether no run is left out."""
    found, new = list[Chain](), steps.runs if program.resume else ()
    saved, seen = list[dict[str, Version]](), [r.start.snapshot() for r in steps.runs]
    for resumes in range(1, _MOST_RESUMES + 1):
        chains = list[Chain]()
        for end in (r.end for r in new):
            if checkpoint(end) in saved:
                continue
            saved.append(checkpoint(end))
            state = resumed(end, program)
            if state.snapshot() not in seen:
                chains.append(replace(chain(state, program, case), resumes=resumes))
                seen += [r.start.snapshot() for r in chains[-1].runs]
        found += chains
        new = tuple(r for c in chains for r in c.runs)
    return tuple(found), not new


def top(steps: Chain) -> Machine:
    """The state in which every copy that `steps` know is held everywhere and right."""
    like = steps.runs[0].end
    state = Machine(like.reference, like.group, like.site, like.flows)
    state.versions = {key: CURRENT for run in steps.runs for key in run.end.versions}
    return state


def observed(run: Run, program: Program) -> tuple[tuple[Read, ...], bool]:
    """What shows whether the updates of `run` were right: its result, what it stores, what later passes read, store.

    An update that reads a whole matrix shows others of that step, too.

    Later steps are followed, trusting their own updates, until no state is new: else what is returned is not all.
    """
    flag = f"right{run.end.steps}:"

    def trusted(machine: Machine) -> Machine:
        return trusting(machine, flag)

    following = _follow([trusted(state) for state in run.later], program, run.case, trusted)
    reads = [r for r in run.end.reads if r.kind in ("result", "store")]
    reads += [r for later in following.runs for r in trusted(later.end).reads if r.kind in ("weight", "store")]
    reads += [r for end in (run.end, *(trusted(later.end) for later in following.runs)) for r in matrices(end)]
    distinct = {(r.version, r.want): r for r in reads if r.version != r.want}
    return tuple(distinct.values()), following.closed


def matrices(machine: Machine) -> Iterator[Read]:
    """What updates that read whole matrices find of an element when they update another one of its matrix."""
    if machine.group.locality != "elementwise":
        for update in machine.updates:
            others = [(axis, p if axis in machine.group.stacked else correct.other_position(p))
                      for axis, p in update.where]
            for value, version in update.others:
                if value in machine.group.whole_reads:
                    yield Read(update.event, "matrix", "", versions.where(others, version, CURRENT), CURRENT)


def trusting(machine: Machine, flag: str) -> Machine:
    """The state and its log when every update was right but those whose name begins with `flag`."""
    def change(leaf: versions.Leaf) -> versions.Leaf:
        if not isinstance(leaf, versions.Guarded):
            return leaf
        kept = frozenset((name, rank) for name, rank in leaf.updates if name.startswith(flag))
        return versions.Guarded(kept, leaf.version) if kept else leaf.version

    state = machine.copy()
    state.versions = {k: versions.each(v, change) for k, v in machine.versions.items()}
    state.reads = [replace(r, version=versions.each(r.version, change)) for r in machine.reads]
    state.updates = [replace(u, others=tuple((value, versions.each(version, change)) for value, version in u.others))
                     for u in machine.updates]
    return state
