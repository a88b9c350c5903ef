"""Runs held against the single device: what is observed, the first difference, the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from placealg.simulate import network
from placealg.simulate.execute import run
from placealg.simulate.machine import Deadlock, Machine, Table, elements
from placealg.simulate.reference import Slot, State, trajectory
from placealg.simulate.setting import ELEMENTS, Setting
from placealg.step.program import Event, Step


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a run first differs from the single device.

    `step` counts from 1 (0: initialisation); `event` is the path of the event that shows it, or `deadlock at PATH`;
    `rank` are the coordinates by axis; `subject` is the group, unit or global value; `got` and `want` are numbers.
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

    def __str__(self) -> str:
        run = " of the resumed run" if self.resumed else ""
        where = ", ".join(f"{a}={c}" for a, c in self.rank) or "the only rank"
        inside = "" if self.microbatch is None else f", microbatch {self.microbatch}"
        element = "" if self.element is None else f", element {self.element}"
        return (f"step {self.step}{run}: {self.event} on {where}{inside}: "
                f"{self.subject}, instance {self.instance}{element}: got {self.got}, want {self.want}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a run equals the single device's, its first difference, and how many numbers were compared."""

    equal: bool
    difference: Difference | None
    observed: int

    def __bool__(self) -> bool:
        raise TypeError("an outcome is not a truth value: say .equal")


class _Differs(Exception):
    def __init__(self, difference: Difference):
        super().__init__(str(difference))
        self.difference = difference


class _Comparison:
    """The Watch that holds every observed number against the reference's."""

    def __init__(self, states: Sequence[State], setting: Setting) -> None:
        self.states, self.seed, self.observed = states, setting.seed, 0

    def weight(self, machine: Machine, event: Event, rank: int, slot: Slot, numbers: Sequence[Fraction | None]) -> None:
        """One matrix, element by element."""
        wanted = self.states[machine.number].weight[slot]
        for element in ELEMENTS:
            self._compare(machine, event, rank, slot, element, numbers[element], wanted[element])

    def stream(self, machine: Machine, event: Event, rank: int, rng: Fraction | None) -> None:
        """The stream's value."""
        self._compare(machine, event, rank, ("rng", 0), None, rng, self.states[machine.number].rng)

    def factor(self, machine: Machine, event: Event, rank: int, token: int, number: Fraction) -> None:
        """The factor, under the logical key."""
        wanted = network.random_factor(self.seed, self.states[machine.number].rng, token, event.unit, machine.instance)
        subject = f"random factor of token {token} in {event.unit}"
        self._compare(machine, event, rank, (subject, machine.instance), None, number, wanted)

    def stored(self, machine: Machine, event: Event, rank: int, element: int, number: Fraction) -> None:
        """One number of the checkpoint, which holds the state after the step."""
        state = self.states[machine.number + (event.phase != "save")]
        wanted = {"weight": state.weight, "moments": state.moments}.get(event.value)
        if wanted is not None:
            slot = machine.slot(event)
            self._compare(machine, event, rank, slot, element, number, wanted[slot][element])
        else:
            self._compare(machine, event, rank, (event.value, 0), None, number,
                          state.step if event.value == "step" else state.rng)

    def _compare(self, machine: Machine, event: Event, rank: int, slot: Slot, element: int | None,
                 got: Fraction | None, want: Fraction) -> None:
        self.observed += 1
        if got != want:
            raise _Differs(difference(machine, event, rank, slot, element, *_texts(got, want)))


def difference(machine: Machine, event: Event, rank: int, slot: Slot, element: int | None, got: str,
               want: str) -> Difference:
    """The difference that `event` shows on `rank`, at the machine's place in the run."""
    between = event.phase in ("init", "save", "resume")
    at = tuple(zip(machine.axes, machine.coordinates[rank], strict=True))
    return Difference(machine.number + (not between), event.path, at, slot[0], slot[1], element, got, want,
                      machine.microbatch, machine.resumed)


def _texts(got: Fraction | None, want: Fraction) -> tuple[str, str]:
    if got is None:
        return "nothing (not held)", _number(want)
    if _number(got) == _number(want):
        return f"{_number(want)} {'+' if got > want else '-'} {_number(abs(got - want))}", _number(want)
    return _number(got), _number(want)


def _number(x: Fraction) -> str:
    text = str(x)
    if len(text) <= 24:
        return text
    try:
        return f"about {float(x):.9g}"
    except OverflowError:
        return f"about 2**{x.numerator.bit_length() - x.denominator.bit_length()}"


def simulate(step: Step, setting: Setting, steps: int = 2) -> Outcome:
    """Execute `steps` steps on every rank, then a run resumed after the first, and compare all that is observed.

    Observed are the parameters and random streams that units read, and what enters a checkpoint. After the last step
    the forward reads of the next one are observed too. Raises InputError when the setting does not fit the program.
    """
    states = trajectory(step.reference, setting, steps)
    comparison = _Comparison(states, setting)
    machine = Machine(step.reference, setting, comparison)
    try:
        _switch_on(machine, {s: states[0].weight[s] for s in machine.slots})
        run(machine, step.tree("init"))
        saved = _steps(machine, step, steps)
        if steps and step.phase("resume"):
            machine = Machine(step.reference, setting, comparison, resumed=True)
            machine.checkpoint, machine.number = saved, 1
            _switch_on(machine, {})
            run(machine, step.tree("resume"))
            _steps(machine, step, min(steps, 2))
    except _Differs as found:
        return Outcome(False, found.difference, comparison.observed)
    except Deadlock as found:
        return Outcome(False, _deadlock(machine, found.event), comparison.observed)
    return Outcome(True, None, comparison.observed)


def _switch_on(machine: Machine, known: Mapping[Slot, Sequence[Fraction]]) -> None:
    """Weights are garbage, but for the `known` ones on the first rank of the mesh; nothing else is held."""
    for slot in machine.slots:
        for rank, table in enumerate(machine.table("device", "weight", *slot)):
            for element in ELEMENTS:
                table[element] = known[slot][element] if slot in known and rank == 0 else machine.garbage()


def _steps(machine: Machine, step: Step, steps: int) -> dict[tuple[str, str, int], list[Table]]:
    """Run until `steps` steps are finished, then the reads of the next one; the checkpoint saved after the first."""
    training, saving = step.tree(), step.tree("save")
    saved: dict[tuple[str, str, int], list[Table]] = {}
    while machine.number < steps:
        machine.checkpoint = {}
        run(machine, training)
        machine.number += 1
        run(machine, saving)
        saved = saved or machine.checkpoint
    machine.reads_only = True
    run(machine, step.tree("prepare", "forward"), microbatches=1)
    return saved


def _deadlock(machine: Machine, event: Event) -> Difference:
    waiting = [r for r in machine.ranks if any(not machine.chosen(event, r, e) for e in elements(event))]
    found = difference(machine, event, waiting[0], (event.subject, machine.instance), None,
                       "some ranks of a group waiting for the others", "all of them, or none")
    return replace(found, event=f"deadlock at {event.path}")
