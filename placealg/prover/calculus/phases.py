"""A pipeline in which a stage runs the forwards of all microbatches before their backwards (GPipe).

No other microbatch comes between two events of a phase: what one leaves gathered the next one finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from placealg.arith import Monomial
from placealg.prover.calculus.machine import Machine
from placealg.prover.calculus.microbatches import Case, Iteration
from placealg.prover.calculus.places import leave
from placealg.step.event import Reference
from placealg.step.program import Event

ALL_FORWARDS_FIRST = "gpipe"
"""The order of a pipeline of which that is so."""


def apart(reference: Reference) -> bool:
    """Whether a step's forwards all come before its backwards."""
    return reference.pipeline.order == ALL_FORWARDS_FIRST


Seed = Monomial | None
"""What a forward leaves of one microbatch for its backward: the value from which that starts."""


@dataclass(frozen=True, slots=True)
class Phases:
    """The two phases of a loop body; `run` runs events, `again` is the position of what a second microbatch reads."""

    ahead: tuple[Event, ...]
    behind: tuple[Event, ...]
    run: Callable[[Machine, tuple[Event, ...], Iteration], None]
    again: str

    def forwards(self, machine: Machine, case: Case) -> tuple[list[Seed], bool]:
        """What each microbatch leaves, and whether that stands for every m of the case."""
        left, whole = list[Seed](), True
        for iteration in case.iterations:
            whole = self._repeated(machine, self.ahead, iteration, None) and whole
            left.append(machine.seed)
        return left, whole

    def backwards(self, machine: Machine, case: Case, left: Sequence[Seed]) -> bool:
        """Run the backwards of all microbatches; whether that stands for every m of the case."""
        whole = True
        for iteration, seed in zip(case.iterations, left, strict=True):
            whole = self._repeated(machine, self.behind, iteration, seed) and whole
        return whole

    def _repeated(self, machine: Machine, events: tuple[Event, ...], iteration: Iteration, seed: Seed) -> bool:
        """One phase of a microbatch; of a run of them, whether a second one changes nothing."""
        machine.begin()
        machine.seed = seed
        self.run(machine, events, iteration)
        if not iteration.many or not events:
            return True
        before, again = machine.snapshot(), machine.copy()
        again.begin()
        again.seed = seed
        self.run(again, events, iteration)
        machine.reads += [replace(r, position=self.again) for r in again.reads if r not in machine.reads]
        leave(machine, events[-1])
        return again.snapshot() == before
