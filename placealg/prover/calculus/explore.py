"""Every state that a run can reach, abstractly: initialise, then steps until no state is new, then resume.

After a step a checkpoint may or may not be saved: the next step is followed from both states. The steps from an initial
state are closed when every state after a step has been seen before: from then on all steps are alike, which is the
induction over steps. Every saved checkpoint is resumed from, also one that a resumed run saved, until no state is new.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from placealg.prover.calculus import overlap, phases, transfer, versions
from placealg.prover.calculus.machine import Machine, Read, Site
from placealg.prover.calculus.microbatches import CASES, Case, Iteration
from placealg.prover.calculus.parameter_uses import concerns
from placealg.prover.calculus.places import NoRule, leave
from placealg.prover.calculus.positions import of_another, rank
from placealg.prover.calculus.versions import CURRENT, GARBAGE, UNHELD, Version
from placealg.prover.ops.flow import Flows
from placealg.step.event import READERS, takes_part
from placealg.step.program import LOOPED, STEP_PHASES, Event, Group, Reference, Step
from placealg.step.receivers import WEIGHTS
from placealg.step.verbs import CARRIED

OUTSIDE = Iteration("", False)
GRADIENTS = ("grad", "grad_sum")
AGAIN = "middle, again"
"""The position of reads that only a second consecutive middle microbatch makes: they need an m that is one larger."""

_LONGEST_CHAIN = 4
_MOST_RESUMES = 4


@dataclass(frozen=True, slots=True)
class Program:
    """The events that concern one group, by phase: its own, those without a group, and all clips and updates."""

    init: tuple[Event, ...]
    step: tuple[Event, ...]
    save: tuple[Event, ...]
    resume: tuple[Event, ...]

    @staticmethod
    def of(step: Step, group: Group, parameter: str = "") -> Program:
        """The part of `step` that one group sees.

        An op event is part of it only if it uses `parameter`, draws random numbers or starts backward.
        """
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
    """One abstract step: its start, its end (with the log), and whether it holds for every m of its case (`whole`).

    `end` is the state after a save, `unsaved` the state if the step is not saved.
    """

    case: Case
    start: Machine
    end: Machine
    unsaved: Machine
    whole: bool
    index: int = 0

    @property
    def later(self) -> tuple[Machine, ...]:
        """The states in which the next step may start: after a save, and without one if that state differs."""
        saved, unsaved = self.end.next_step(), self.unsaved.next_step()
        return (saved,) if saved.snapshot() == unsaved.snapshot() else (saved, unsaved)


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps from an initial state, one for each state; `closed` if every state after a step is among them.

    `lasting` are the steps after which no state is new, or the last step if there are none. `resumes` is the number of
    times that the run was resumed.
    """

    runs: tuple[Run, ...]
    lasting: tuple[Run, ...]
    closed: bool
    resumes: int = 0


def initial(reference: Reference, group: Group, site: Site, flows: Flows | None) -> Machine:
    """The state before `init`: rank 0 of the mesh holds the initial weights, every other copy is garbage.

    Along the axes that split the parameter itself each owner holds its elements, and no other rank holds any.
    """
    machine = Machine(reference, group, site, flows)
    first = [(a, rank(0)) for a in reference.mesh.names if a not in group.split]
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
    """The states that `machine` stored, CURRENT where they are held: the store has its own obligation on them."""
    return {k: versions.each(v, lambda leaf: UNHELD if versions.trusted(leaf) == UNHELD else CURRENT)
            for k, v in machine.stored.items()}


def resumed(machine: Machine, program: Program) -> Machine:
    """A machine that has run `resume` from what `machine` stored."""
    fresh = Machine(machine.reference, machine.group, machine.site, machine.flows, stored=checkpoint(machine))
    fresh.versions["weight", "device"] = versions.where(machine.owners, GARBAGE, UNHELD)
    execute(fresh, program.resume).stored.clear()
    return fresh


def run_step(start: Machine, program: Program, case: Case, index: int = 0, shared: Prefixes | None = None) -> Run:
    """The run of one step from `start`, for every m of `case`.

    Runs from the same start with the same `shared` run the microbatches once with which their loops begin alike.
    """
    machine = start.copy()
    machine.count = None  # a step starts without the counts of earlier steps, of init and of resume
    whole, known = True, {} if shared is None else shared
    for looped, events in itertools.groupby(program.step, key=lambda e: e.phase in LOOPED):
        if not looped:
            execute(machine, tuple(events))
            continue
        body = tuple(events)
        if phases.apart(machine.reference):
            whole = _phase_by_phase(machine, body, case) and whole
            continue
        before_all, end = machine.copy(), _loop(machine, body, case.iterations, known)
        machine, whole, known = end.machine.copy(log=True), end.whole and whole, {}
        if end.overlaps:
            overlap.in_every_order(before_all, machine, _parts(body), case.iterations, _run)
    machine.reads += results(machine)
    unsaved = machine.copy()
    execute(machine, program.save)
    return Run(case, start, machine, unsaved, whole, index)


@dataclass(frozen=True, slots=True)
class Looped:
    """The state after some iterations of the loop over microbatches, with the log since the step began.

    `overlaps`: copies of states change that overlapping microbatches may find. `whole`: it stands for every m.
    """

    machine: Machine
    overlaps: bool = False
    whole: bool = True


Prefixes = dict[tuple[Iteration, ...], Looped]
"""What is known of a step's first loop: the state after each beginning of it that has been run."""


def _loop(start: Machine, body: tuple[Event, ...], iterations: tuple[Iteration, ...], known: Prefixes) -> Looped:
    """The state after `iterations` of the loop's body, from `start`; each beginning of them is run once."""
    if not iterations:
        return Looped(start)
    if iterations not in known:
        *before, iteration = iterations
        last = _loop(start, body, tuple(before), known)
        machine, whole = last.machine.copy(log=True), last.whole
        overlaps = _iterate(machine, body, iteration) or last.overlaps
        if iteration.many:
            after, again = machine.snapshot(), machine.copy()
            _iterate(again, body, iteration)
            whole = whole and again.snapshot() == after
            machine.reads += [replace(r, position=AGAIN) for r in again.reads if r not in machine.reads]
        known[iterations] = Looped(machine, overlaps, whole)
    return known[iterations]


def results(machine: Machine) -> Iterator[Read]:
    """The reads that judge a step: some rank holds the new parameters, and their new average if there is one."""
    yield result(machine)
    for value in CARRIED if machine.group.averaged else ():
        yield result(machine, (value,), f"update.{machine.group.name}.{value}.update")


def result(machine: Machine, values: tuple[str, ...] = ("weight", "master"), event: str = "") -> Read:
    """The read of the new version of a state, of the parameters say, that has copies under these names.

    If no rank holds it, the read is about a rank that should.
    """
    want = machine.after(values[0])
    held = [machine.versions[key] for key in sorted(machine.versions, reverse=True) if key[0] in values]
    found = (versions.somewhere(version, want) for version in held)
    best = next(found, UNHELD)
    for version in found:
        best = versions.either(best, version, want)
    there = {axis: positions[0] for version in reversed(held) for axis, positions in versions.places(version).items()}
    return Read(event or _left(machine), "result", "", versions.where(there.items(), best, want), want)


def _left(machine: Machine) -> str:
    """The event that produces the parameters of a step: their update, or the save that reads them if frozen."""
    phase, verb = ("save", "weight.store") if machine.group.frozen else ("update", "update")
    return f"{phase}.{machine.group.name}.{verb}"


def _phase_by_phase(machine: Machine, body: tuple[Event, ...], case: Case) -> bool:
    """All forwards of the loop, then all backwards; whether they stand for every m of the case."""
    behind = tuple(itertools.dropwhile(lambda e: e.phase != "backward", body))
    parts, start = phases.Phases(body[:len(body) - len(behind)], behind, _run, AGAIN), machine.copy()
    left, whole = parts.forwards(machine, case)
    _in_turn(start, machine, behind)
    return parts.backwards(machine, case, left) and whole


def _parts(body: tuple[Event, ...]) -> overlap.Parts:
    """The forward and the backward of the loop's body."""
    behind = tuple(itertools.dropwhile(lambda e: e.phase != "backward", body))
    return body[:len(body) - len(behind)], behind


def _iterate(machine: Machine, body: tuple[Event, ...], iteration: Iteration) -> bool:
    """Run the loop's body for one iteration: forward, then backward.

    Returns whether copies of states change in it that microbatches which overlap with it in a pipeline may find.
    """
    ahead, behind = _parts(body)
    start, changes = machine.copy(), False
    machine.begin()
    _run(machine, ahead, iteration)
    between = machine.copy()
    own = tuple(itertools.takewhile(lambda e: e.phase != WEIGHTS, behind))
    _run(machine, own, iteration)
    if len(own) < len(behind):
        _before_weights(between, machine, own[-1] if own else behind[0])
    _run(machine, behind[len(own):], iteration)
    if machine.reference.pipeline is not None and body:
        alone = not any(e.group == machine.group.name and e.value in GRADIENTS for e in behind)
        changes = _apart(start, between, machine, body[-1], iteration, alone and bool(machine.group.taken))
        _in_turn(start, between, behind)
    if iteration.many:
        leave(machine, body[-1])
    return changes


def _run(machine: Machine, events: tuple[Event, ...], iteration: Iteration) -> None:
    for event in events:
        if takes_part(event.at, iteration.position):
            transfer.execute(machine, event, iteration)


def _apart(start: Machine, between: Machine, end: Machine, event: Event, iteration: Iteration, alone: bool) -> bool:
    """Raise NoRule if a forward changes a gradient, or a backward a count; whether copies of states change.

    With `alone` no backward has to do with what forwards add up: they do it one after the other.

    In a pipeline, forwards of later microbatches run between a forward and its backward. That makes no difference to
    states if, after the first forward and before the last backward, no copy of one changes.
    """
    changed: list[tuple[str, str]] = []
    if between.count != end.count and iteration.position not in ("last", "only"):
        changed.append(("count", ""))
    changed += [k for k in {*start.values, *between.values} if start.value(*k) != between.value(*k) and not alone]
    if changed:
        raise NoRule(event.path, "microbatches overlap in a pipeline, and each changes "
                     f"{', '.join(v for v, _ in sorted(changed))} of {end.group.name}")
    return any(before.version(*k) != after.version(*k)
               for before, after, free in ((start, between, ("first", "only")), (between, end, ("last", "only")))
               if iteration.position not in free for k in {*before.versions, *after.versions})


def _before_weights(between: Machine, end: Machine, event: Event) -> None:
    """Raise NoRule unless backwards for inputs leave every state, gradient and count as it is.

    The backward for the weights of a microbatch runs behind them of later microbatches.
    """
    changed = [k for k in {*between.versions, *end.versions} if between.version(*k) != end.version(*k)]
    changed += [k for k in {*between.values, *end.values} if between.value(*k) != end.value(*k)]
    if changed or between.count != end.count:
        raise NoRule(event.path, "the backward for the weights runs behind later backwards for inputs, and each of "
                     f"these changes {', '.join(v for v, _ in sorted(changed)) or 'the count'} of {end.group.name}")


def _in_turn(start: Machine, between: Machine, behind: tuple[Event, ...]) -> None:
    """Raise NoRule if a forward follows the first backward, or a backward divides by a count that forwards change."""
    apart = False
    for event in behind:
        apart = apart or event.phase == WEIGHTS
        if event.phase == "backward" and apart:
            raise NoRule(event.path, "a backward for inputs behind one for the weights of its microbatch")
        if event.phase == "forward":
            raise NoRule(event.path, "a forward behind a backward of its microbatch, in a pipeline")
        if between.count != start.count and "count" in event.divisor.names():
            raise NoRule(event.path, "in a pipeline the next forward may have changed the count")


def settled(machine: Machine) -> Machine:
    """The state if every update in it was right."""
    state = machine.copy()
    state.versions = {k: versions.each(v, versions.trusted) for k, v in machine.versions.items()}
    state.stored = {k: versions.each(v, versions.trusted) for k, v in machine.stored.items()}
    return state


def shapes(reference: Reference) -> tuple[tuple[Case, ...], ...]:
    """The cases, grouped by class of m; only m = 1 if the strategy fixes a single microbatch."""
    chosen = [c for c in CASES if reference.microbatches != 1 or c.least == 1]
    return tuple(tuple(g) for _, g in itertools.groupby(chosen, key=lambda c: c.shape))


def chain(start: Machine, program: Program, case: Case) -> Chain:
    """The steps from `start`, with and without a save after each, until no state is new."""
    return _follow((start,), program, case, settled)


def _follow(states: Sequence[Machine], program: Program, case: Case, trusted: Callable[[Machine], Machine]) -> Chain:
    """The steps from each of `states` until no state is new once `trusted` has been applied to it."""
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
    """The chains of runs resumed from every checkpoint that `steps` and resumed runs saved; whether these are all."""
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
    """The top state of the lattice: every copy that occurs in `steps` is held everywhere and right."""
    like = steps.runs[0].end
    state = Machine(like.reference, like.group, like.site, like.flows)
    state.versions = {key: CURRENT for run in steps.runs for key in run.end.versions}
    return state


def observed(run: Run, program: Program) -> tuple[tuple[Read, ...], bool]:
    """The reads that show whether the updates of `run` were right, and whether these are all.

    They are the step's result, what it stores, what later steps read as weights and store, and what updates that read
    whole matrices read of other elements. Later steps are followed, trusting their own updates, until no state is new.
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
    """The reads of this element by updates of another element of its matrix, if updates read whole matrices."""
    if machine.group.locality != "elementwise":
        for update in machine.updates:
            others = [(axis, p if axis in machine.group.stacked else of_another(p))
                      for axis, p in update.where]
            for value, version in update.others:
                if value in machine.group.whole_reads:
                    yield Read(update.event, "matrix", "", versions.where(others, version, CURRENT), CURRENT)


def trusting(machine: Machine, flag: str) -> Machine:
    """The state and its log if every update was right except those whose name begins with `flag`."""
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
