"""Runs held against the single device: what is observed, the first difference, the outcome."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np

from placealg.models.graph import Op
from placealg.simulator import device
from placealg.simulator.box import Box
from placealg.simulator.execute import run
from placealg.simulator.field import PRIME, Array, Number, Residues, in_floats, residues, told, unequal
from placealg.simulator.machine import Deadlock, Machine, Table
from placealg.simulator.played import played
from placealg.simulator.reference import Numbers, Slot, State
from placealg.simulator.setting import Setting
from placealg.simulator.space import OwnedElements, Space
from placealg.step.lower import lowered
from placealg.step.program import Event, Node, Step

PRIME_TOLD = f"(mod {PRIME})"
"""Ends a number of a run in residues."""

BETWEEN = ("init", "save", "resume")
"""The phases between two steps."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a run first differs from the single device.

    `step` counts from 1 (0: initialisation); `event` is the path of the event that shows it, or, of a `deadlock`, at
    which ranks wait without end; `rank` are the coordinates by axis; `subject` is the group, unit or global value, or
    a tensor with an index; `got` and `want` are numbers.
    """

    step: int
    event: str
    rank: tuple[tuple[str, int], ...]
    subject: str
    instance: int
    element: int | None
    got: str
    want: str
    microbatch: int | None = None
    resumed: bool = False
    deadlock: bool = False

    @property
    def where(self) -> str:
        """The event's name, prefixed "deadlock at" if it is one."""
        return f"deadlock at {self.event}" if self.deadlock else self.event

    def __str__(self) -> str:
        run = " of the resumed run" if self.resumed else ""
        where = ", ".join(f"{a}={c}" for a, c in self.rank) or "the only rank"
        inside = "" if self.microbatch is None else f", microbatch {self.microbatch}"
        element = "" if self.element is None else f", element {self.element}"
        return (f"step {self.step}{run}: {self.where} on {where}{inside}: "
                f"{self.subject}, instance {self.instance}{element}: got {self.got}, want {self.want}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a run equals the single device's, its first difference, how many numbers were compared, and which run."""

    equal: bool
    difference: Difference | None
    observed: int
    setting: Setting | None = None

    def __bool__(self) -> bool:
        raise TypeError("an outcome is not a truth value: say .equal")


class Differs(Exception):
    """A run differs from the single device."""

    def __init__(self, difference: Difference):
        super().__init__(str(difference))
        self.difference = difference


class Comparison:
    """The Watch that holds every observed number against the reference's."""

    def __init__(self, states: Sequence[State]) -> None:
        self.states, self.observed = states, 0
        self.left: Difference | None = None
        self._wholes: dict[tuple[int, Slot], dict[str, Array]] = {}

    def parameter(self, machine: Machine, event: Event, rank: int, slot: Slot, name: str, box: Box | None,
                  missing: Sequence[OwnedElements]) -> None:
        """What the rank should hold of the parameter, and all else that it holds."""
        wanted = self._whole(machine.space, machine.number, slot, name)
        for part in missing:
            want = machine.space.number(wanted.numbers.reshape(-1)[part.numbers[:1]])
            raise Differs(difference(machine, event, rank, slot, part.first, *_texts(machine, None, want)))
        if box is not None and machine.space.whole:
            for element, (got, want) in enumerate(zip(box.numbers.flat, wanted.numbers.flat, strict=True)):
                self._compare(machine, event, rank, slot, element, got, want)
        elif box is not None:
            self._box(machine, event, rank, (slot[0], slot[1]), box, wanted.cut(box.extent), name)

    def mask(self, machine: Machine, event: Event, rank: int, op: Op, box: Box) -> None:
        """The factors, under the logical key."""
        stream = self.states[machine.number].rng
        wanted = Box(box.extent, machine.space.mask(op, machine.instance, stream, box.extent))
        self._box(machine, event, rank, (f"random factors of {op.output}", machine.instance), box, wanted)

    def losses(self, machine: Machine, event: Event, rank: int, of: tuple[str, int], box: Box | None) -> None:
        """What is summed of each token that the rank holds; a rank that has tokens holds some."""
        losses = self.states[machine.number + 1].losses.get(of) if machine.number + 1 < len(self.states) else None
        if losses is None:
            return
        told = of if event.on_tensor else ("loss", 0)
        if box is not None:
            self._box(machine, event, rank, told, box, losses.ordered(box.dims).cut(box.extent))
        elif machine.token_count(rank):
            raise Differs(difference(machine, event, rank, told, None, "nothing (not held)",
                                      _text(losses.numbers.flat[0])))

    def _whole(self, space: Space, number: int, slot: Slot, name: str) -> Box:
        """A parameter of the single device in step `number`."""
        if (number, slot) not in self._wholes:
            self._wholes[number, slot] = device.whole(space, slot, self.states[number].weight[slot])
        return Box(space.extent(space.graph.tensors[name].dims, ()), self._wholes[number, slot][name])

    def _box(self, machine: Machine, event: Event, rank: int, slot: Slot, got: Box, want: Box, name: str = "") -> None:
        """Two boxes of one extent, number by number."""
        self.observed += got.numbers.size
        apart = unequal(got.numbers, want.numbers)
        if not np.any(apart):
            return
        at = tuple(int(k) for k in np.argwhere(apart)[0])
        index = ", ".join(f"{d}={got.extent[d][k]}" for d, k in zip(got.dims, at, strict=True))
        subject = f"{name or slot[0]}({index})"
        if isinstance(got.numbers[at], Fraction):
            texts = _texts(machine, got.numbers[at], want.numbers[at])
        else:
            texts = _text(got.numbers[at]), _text(want.numbers[at])
        raise Differs(difference(machine, event, rank, (subject, slot[1]), None, *texts))

    def stream(self, machine: Machine, event: Event, rank: int, rng: Fraction | None) -> None:
        """The stream's value."""
        self._compare(machine, event, rank, ("rng", 0), None, rng, self.states[machine.number].rng)

    def scale(self, machine: Machine, event: Event, rank: int, scale: Fraction | None) -> None:
        """The scale of the step."""
        self._compare(machine, event, rank, ("loss_scale", 0), None, scale, self.states[machine.number].scale)

    def stored(self, machine: Machine, event: Event, rank: int, element: int, number: Number) -> None:
        """One number of the checkpoint: of the state after the step, between steps of the one that is there."""
        state = self.states[machine.number + (event.phase not in BETWEEN)]
        wanted = {"weight": state.weight, "moments": state.moments, "average": state.average}.get(event.value)
        if wanted is not None:
            slot = machine.slot(event)
            self._compare(machine, event, rank, slot, element, number, wanted[slot][element])
        else:
            self._compare(machine, event, rank, (event.value, 0), None, number,
                          {"step": state.step, "rng": state.rng, "loss_scale": state.scale}[event.value])

    def result(self, machine: Machine) -> None:
        """Some rank holds the new number, as a weight or as a master weight, and its average.

        Else that is told if nothing else differs.

        A wrong result that is read later shows there, too, and better.
        """
        after = self.states[machine.number + 1]
        left: list[tuple[Slot, Numbers, tuple[str, ...]]] = [
            (s, after.weight[s], ("master", "weight")) for s in machine.slots]
        left += [(s, after.average[s], ("average",)) for s in machine.slots if machine.reference.group(s[0]).averaged]
        for slot, wanted, values in left:
            for element in machine.entries(slot[0]) if self.left is None else ():
                self._left(machine, slot, element, wanted[element], values)

    def _left(self, machine: Machine, slot: Slot, element: int, want: Number, values: tuple[str, ...]) -> None:
        """Some rank holds the number `want` in a copy under one of these names."""
        self.observed += 1
        held = [(rank, table.get(element)) for rank, table in machine.copies(slot, values)]
        if self.left is None and not any(got is not None and got == want for _, got in held):
            rank, got = next(((r, n) for r, n in held if n is not None), (0, None))
            update = Event("update", "update", values[0], slot[0])
            self.left = difference(machine, update, rank, slot, element, *_texts(machine, got, want))

    def end(self) -> None:
        """A run has ended, and nothing else differed."""
        if self.left is not None:
            raise Differs(self.left)

    def _compare(self, machine: Machine, event: Event, rank: int, slot: Slot, element: int | None,
                 got: Number | None, want: Number) -> None:
        self.observed += 1
        if got != want:
            if element is not None and not machine.space.whole:
                element, got, want = _first(machine.space.parts(machine.reference.group(slot[0]))[element], got, want)
            raise Differs(difference(machine, event, rank, slot, element, *_texts(machine, got, want)))


def _first(part: OwnedElements, got: Number | None, want: Number) -> tuple[int, Number | None, Number]:
    """(element, got, want) of the first number that differs in a part of a parameter."""
    wanted = np.broadcast_to(residues(want), part.numbers.shape)
    if got is None:
        return part.first, got, Residues(wanted[0])
    found = np.broadcast_to(residues(got), part.numbers.shape)
    k = int(np.argmax(unequal(found, wanted)))
    return int(part.first + part.numbers[k] - part.numbers[0]), Residues(found[k]), Residues(wanted[k])


def difference(machine: Machine, event: Event, rank: int, slot: Slot, element: int | None, got: str,
               want: str) -> Difference:
    """The difference that `event` shows on `rank`, at the machine's place in the run."""
    at = tuple(zip(machine.axes, machine.coordinates[rank], strict=True))
    number = machine.number + (event.phase not in BETWEEN)
    return Difference(number, event.path, at, slot[0], slot[1], element, got, want, machine.microbatch, machine.resumed)


def _texts(machine: Machine, got: Number | None, want: Number) -> tuple[str, str]:
    if got is None:
        return "nothing (not held)", _number(want)
    if isinstance(got, Fraction) and got in machine.undefined:
        return "garbage: a number that no event defined", _number(want)
    if isinstance(got, Fraction) and isinstance(want, Fraction) and _number(got) == _number(want):
        return f"{_number(want)} {'+' if got > want else '-'} {_number(abs(got - want))}", _number(want)
    return _number(got), _number(want)


def _text(number: object) -> str:
    """A number of a tensor: a residue, or where units run whole the vector of a token."""
    return f"({', '.join(map(_number, number))})" if isinstance(number, tuple) else told(np.asarray(number))


def _number(x: Number) -> str:
    if isinstance(x, Residues):
        return repr(x)
    if max(map(int.bit_length, x.as_integer_ratio())) < 80 and len(text := str(x)) <= 24:
        return text
    try:
        return f"about {float(x):.9g}"
    except OverflowError:
        return f"about 2**{x.numerator.bit_length() - x.denominator.bit_length()}"


@dataclass(frozen=True, slots=True)
class Trees:
    """The parts of a program that a run repeats; `apart`: a step behind a save may find another state than without."""

    training: tuple[Node, ...]
    saving: tuple[Node, ...]
    ahead: tuple[Node, ...]
    apart: bool

    @staticmethod
    def of(step: Step) -> Trees:
        """The parts of a step's program."""
        forward = Step(step.reference, tuple(itertools.takewhile(lambda e: e.phase != "backward", step.events)))
        return Trees(step.tree(), step.tree("save"), forward.tree("prepare", "forward"),
                      any(e.verb != "store" for e in step.phase("save")))


Checkpoint = dict[tuple[str, str, int], list[Table]]
"""(value, group, instance) -> what each rank stored of it."""


def floats_beside(step: Step, outcome: Outcome) -> Difference | None:
    """The difference that a run shows, of the same run in floats.

    It may be at a later element: the first at which floats differ by more than rounding. None where the run has no
    residues, where floats differ first at another event, on another rank or in another parameter, and where they are
    too large.
    """
    exact, setting = outcome.difference, outcome.setting
    if exact is None or setting is None or PRIME_TOLD not in exact.want:
        return None
    with np.errstate(all="ignore"):
        found = simulate(step, replace(setting, floats=True)).difference
    if found is None or replace(exact, got=found.got, want=found.want, element=found.element) != found:
        return None
    if any(word in found.got + found.want for word in ("nan", "inf")):
        return None
    return found


def simulate(step: Step, setting: Setting, steps: int = 2) -> Outcome:
    """Execute `steps` steps on every rank, then resumed runs of one step, and compare all that is observed.

    A checkpoint is saved behind any step or behind none: where saving changes what ranks hold, each step goes on with
    and without it. A run is resumed from every checkpoint, those of resumed runs included, until they hold on every
    rank what an earlier one held.

    Observed are the parameters and random streams that ops read, the random factors that they use, what the loss reads
    of every token, what enters a checkpoint, and that each step leaves the new parameters somewhere. After the last
    step the forward reads of the next one are observed too. Raises InputError when the setting does not fit the
    program.
    """
    with in_floats(setting.floats):
        return replace(_simulated(lowered(step), setting, steps), setting=setting)


def _simulated(step: Step, setting: Setting, steps: int) -> Outcome:
    trees, states = Trees.of(step), partial(device.trajectory, step.reference, setting)
    comparison = Comparison(states(steps))
    if step.reference.pipeline.actions and (wrong := played(step.reference.pipeline)):
        return Outcome(False, Difference(1, "the rows of its order", (), "order", 0, None, wrong,
                                         "each rank comes to the end of its row"), 0)
    try:
        machine = Machine(step, setting, comparison)
        switch_on(machine, {s: comparison.states[0].weight[s] for s in machine.slots})
        go_through(machine, step.tree("init"))
        checkpoints = train(machine, trees, steps)
        comparison.end()
        seen: list[dict[tuple[str, str, int], list[set[int]]]] = []
        while checkpoints and step.phase("resume"):
            number, checkpoint = checkpoints.pop(0)
            held = {key: [set(table) for table in tables] for key, tables in checkpoint.items()}
            if held in seen:
                continue
            seen.append(held)
            if number + 1 >= len(comparison.states):
                comparison.states = states(number + 1)
            machine = Machine(step, setting, comparison, resumed=True)
            machine.checkpoint, machine.number = checkpoint, number
            switch_on(machine, {})
            go_through(machine, step.tree("resume"))
            checkpoints += train(machine, trees, number + 1)
            comparison.end()
    except Differs as found:
        return Outcome(False, found.difference, comparison.observed)
    return Outcome(True, None, comparison.observed)


def switch_on(machine: Machine, known: Mapping[Slot, Sequence[Number]]) -> None:
    """Weights are garbage, but for the `known` ones on the first rank of the mesh; nothing else is held.

    Along an axis that splits a parameter every rank holds what it owns, and is the first one of its owners; along a
    pipeline axis the stages hold it that use it.
    """
    for slot in machine.slots:
        weight, tables = Event("init", "assign", "weight", slot[0]), machine.table("device", "weight", *slot)
        machine.instance = slot[1]
        for rank in machine.acting(weight):
            for element in machine.entries(slot[0]):
                split = machine.split(weight, element)
                if machine.owns(rank, split):
                    first = not any(c for a, c in machine.named(rank).items() if a not in split)
                    tables[rank][element] = known[slot][element] if slot in known and first else machine.garbage()
    machine.instance = 0


def train(machine: Machine, trees: Trees, until: int) -> list[tuple[int, Checkpoint]]:
    """Run until `until` steps are finished, then the reads of the next one; the checkpoints, by steps finished."""
    if machine.number == until:
        machine.reads_only = True
        machine.begin()
        go_through(machine, trees.ahead, microbatches=1)
        return []
    machine.checkpoint = {}
    machine.begin()
    go_through(machine, trees.training)
    machine.watch.result(machine)
    machine.number += 1
    unsaved = machine.fork() if trees.apart else None
    go_through(machine, trees.saving)
    saved = [(machine.number, machine.checkpoint), *train(machine, trees, until)]
    return [*saved, *train(unsaved, trees, until)] if unsaved else saved


def go_through(machine: Machine, nodes: Sequence[Node], microbatches: int | None = None) -> None:
    """Execute `nodes`; a deadlock is a difference."""
    try:
        run(machine, nodes, microbatches)
    except Deadlock as found:
        raise Differs(_deadlock(machine, found.event, found.rank)) from None


def _deadlock(machine: Machine, event: Event, rank: int | None) -> Difference:
    if rank is not None:
        found = difference(machine, event, rank, (event.subject, machine.instance), None,
                           "a stage that waits forever", "what it waits for")
    else:
        waiting = [r for r in machine.acting(event)
                   if any(not machine.chosen(event, r, e) for e in machine.elements(event))]
        found = difference(machine, event, waiting[0], (event.subject, machine.instance), None,
                           "some ranks of a group waiting for the others", "all of them, or none")
    return replace(found, event=event.path, deadlock=True)
