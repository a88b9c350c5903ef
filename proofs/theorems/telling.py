"""How an essay argues: every claim is asked of Z3 or run, a claim that fails ends the essay, and what held is printed.

A theorem comes with two companions, or it is not taken: its premise has a model at small sizes, so that it says
something; and a twin, the theorem with one thing wrong, is refuted there. A run comes as it went, on exact fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import z3

from placealg.check.prove import prove
from placealg.models.model import Model
from placealg.prover.evidence.solver import PROCESS, SAT, UNSAT, Reply
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import apply_edits, read_edits
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

Bool = Any
Int = Any
PROVED, REFUTED, RUN = "proved", "refuted", "run"


class NotEstablished(Exception):
    """A claim of an essay does not hold."""


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that an essay established: `kind` is PROVED, REFUTED or RUN."""

    kind: str
    claim: str


@dataclass(frozen=True, slots=True)
class Twin:
    """A theorem with one thing wrong: its claim, its goal, and its premises where they differ from the theorem's."""

    claim: str
    goal: Bool
    given: Sequence[Bool] | None = None


@dataclass(slots=True)
class Account:
    """What an essay has established so far; `small` gives the sizes at which premises and refutations are shown."""

    title: str
    small: Mapping[str, int] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        print(f"\n{self.title}\n{'=' * len(self.title)}")
        if self.small:
            print(f"premises and refutations are shown at {', '.join(f'{a} = {b}' for a, b in self.small.items())}")

    def say(self, text: str) -> None:
        """A sentence between two claims."""
        print(f"\n{text}")

    def theorem(self, claim: str, goal: Bool, given: Sequence[Bool] = (), *, twin: Twin,
                model: Sequence[Bool] | None = None) -> None:
        """`goal` follows from `given`, which is satisfiable; the twin's goal does not follow from its premises.

        `model` is `given` at a small size, where its quantifiers hide a model of it from the solver.
        """
        self._want(SAT, self._ask_small(given if model is None else model), f"the premise of: {claim}")
        self._want(UNSAT, PROCESS.ask([*given, z3.Not(goal)]), claim)
        self._tell(PROVED, claim)
        self.refuted(twin.claim, twin.goal, given if twin.given is None else twin.given)

    def refuted(self, claim: str, goal: Bool, given: Sequence[Bool] = ()) -> None:
        """`goal` does not follow from `given`: a counterexample stands at the small sizes."""
        self._want(SAT, self.counterexample(goal, given), f"the refutation of: {claim}")
        self._tell(REFUTED, claim)

    def counterexample(self, goal: Bool, given: Sequence[Bool] = ()) -> Reply:
        """What Z3 says of `goal` failing under `given`, at the small sizes."""
        return self._ask_small([*given, z3.Not(goal)])

    def _ask_small(self, formulas: Sequence[Bool]) -> Reply:
        sizes = [(z3.Int(name), z3.IntVal(value)) for name, value in self.small.items()]
        return PROCESS.ask([z3.substitute(formula, *sizes) if sizes else formula for formula in formulas])

    def run(self, claim: str, holds: bool) -> None:
        """`claim` held in a computation on exact numbers."""
        if holds is not True:
            raise NotEstablished(f"{self.title}: {claim}: it does not")
        self._tell(RUN, claim)

    def _want(self, status: str, answer: Reply, claim: str) -> None:
        if answer.status != status:
            raise NotEstablished(f"{self.title}: {claim}: {answer.status} {answer.reason} {dict(answer.model)}")

    def _tell(self, kind: str, claim: str) -> None:
        self.told.append(Told(kind, claim.strip()))
        print(f"  {kind:8} {claim}")

    def count(self, kind: str) -> int:
        """How many claims of a kind were established."""
        return sum(1 for told in self.told if told.kind == kind)

    def close(self) -> Account:
        """The account, with its sum printed."""
        print(f"\n{self.count(PROVED)} proved, each with a premise that has a model and a twin that is refuted; "
              f"{self.count(REFUTED)} refuted; {self.count(RUN)} run")
        return self


def inductive(summand: Callable[[Int], Int], partial: Callable[[Int], Int], k: Int) -> Bool:
    """`partial(k)` is the sum of `summand` over 0..k-1: right at 0 (base), and one more summand at k+1 (step)."""
    return z3.And(partial(z3.IntVal(0)) == 0, partial(k + 1) == partial(k) + summand(k))


def step_of(text: str, model: Model) -> Step:
    """The step program of a strategy file's text, edits applied."""
    file = parse_strategy_file(text)
    step = derive(file.strategy, model)
    return apply_edits(step, read_edits(file.edits, step.reference, file.positions))


def verdict(step: Step) -> tuple[str, tuple[str, ...]]:
    """placealg's verdict on a step, and the obligations that it refutes."""
    report = prove(step)
    return str(report.verdict), report.refuted()


def run_equals(step: Step, sizes: dict[str, int], *, unequal: bool = False) -> bool:
    """Whether the step, run rank by rank with two microbatches, equals the single device's."""
    setting = Setting.unequal if unequal else Setting.equal
    return simulate(step, setting(step.reference, sizes, 2)).equal
