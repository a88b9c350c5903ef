"""One abstract step of one group, for every number of microbatches of a case.

The loop over microbatches is run for the one that holds the unit that is followed, and for those before and behind it,
of which any number changes nothing more than one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from placealg.prover.calculus import overlap, phases, transfer, versions
from placealg.prover.calculus.machine import Machine, Read
from placealg.prover.calculus.microbatches import Case, Iteration
from placealg.prover.calculus.parameter_uses import concerns
from placealg.prover.calculus.places import NoRule, leave
from placealg.prover.calculus.versions import UNHELD
from placealg.step.event import READERS, takes_part
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.program import LOOPED, STEP_PHASES, Event, Group, Step
from placealg.step.verbs import CARRIED

OUTSIDE = Iteration("", False)
GRADIENTS = ("grad", "grad_sum")
AGAIN = "middle, again"
"""The position of reads that only a second consecutive middle microbatch makes: they need an m that is one larger."""


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

def execute(machine: Machine, events: tuple[Event, ...]) -> Machine:
    """Run events outside the microbatch loop, in place."""
    for event in events:
        transfer.execute(machine, event, OUTSIDE)
    return machine

def run_step(start: Machine, program: Program, case: Case, index: int = 0, shared: Prefixes | None = None) -> Run:
    """The run of one step from `start`, for every m of `case`.

    Runs from the same start with the same `shared` run the microbatches once with which their loops begin alike.
    """
    machine = start.copy()
    machine.counts = {}  # a step starts without the counts of earlier steps, of init and of resume
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
    if machine.reference.pipeline.axis and body:
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
    if between.counts != end.counts and iteration.position not in ("last", "only"):
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
    if changed or between.counts != end.counts:
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
        if any(between.counts.get(c) != start.counts.get(c) for c in start.reference.counters_of(event)):
            raise NoRule(event.path, "in a pipeline the next forward may have changed the count")
