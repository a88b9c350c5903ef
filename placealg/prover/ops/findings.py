"""The findings of following one microbatch: what ops demand, what parameters receive, and what stays open."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from placealg.prover.calculus.contribution import Value
from placealg.prover.calculus.positions import Pairs
from placealg.prover.ops import paths
from placealg.prover.ops.paths import Sum
from placealg.step.event import Event

SEED = "#seed"
"""The symbol of the gradient from which backward starts; no axis has such a name."""


def seed_of(event: Event) -> str:
    """The symbol of the gradient from which the backward of a further term of the loss starts at an event."""
    return f"{SEED}:{event.path}"


def started_by(seed: str) -> str:
    """The path of the event from which the backward of a term with this symbol starts."""
    return seed.removeprefix(f"{SEED}:")


class FailureKind(Enum):
    """The kinds of failure that a counterexample describes differently."""

    FORMULA = "what the formula of its obligation says"
    SUPPOSED = "what cannot be followed, only run"
    UNSENT = "a message that is received and not sent"
    UNRECEIVED = "a message that is sent and not received"
    OUT_OF_TURN = "a message that is received before another that was sent first"
    MISMATCHED = "a message that is not what is handed on locally"
    NORM = "a norm that miscounts a group"
    FLAG = "a flag that misses elements of a group"


@dataclass(frozen=True, slots=True)
class Demand:
    """A value that an event reads and that must be exact, () if nothing is held; and what is wrong if it is not.

    A whole unit must run on every rank: its demand has instead the ranks on which it `ran` on ready inputs, one entry
    per run. `obligation` is the one that fails otherwise. It is `exact` if every contribution counts once, or the unit
    ran on every rank, compared as data.
    """

    event: str
    says: str
    held: Sum
    mask: Pairs
    obligation: str = "forward"
    kind: FailureKind = FailureKind.FORMULA
    ran: tuple[Pairs, ...] | None = None
    exact: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        exact = paths.is_exact(self.held) if self.ran is None else not all(self.ran)
        object.__setattr__(self, "exact", exact)


@dataclass(frozen=True, slots=True)
class GradientPart:
    """What one backward event adds to the gradient of one parameter, at one use."""

    event: str
    parameter: str
    use: str
    held: Sum


@dataclass(slots=True)
class Flow:
    """The findings of one microbatch: demands, contributions to parameters, the split of each loss, what stays open.

    `masks` says for every event of an op, by its path, where its results were held, in any instance of its unit.
    `taken` says for every event that takes a statistic how often each rank counts a token in it; () if nothing is held.
    """

    demands: list[Demand] = field(default_factory=list)
    parts: dict[str, dict[tuple[str, str], GradientPart]] = field(default_factory=dict)
    masks: dict[str, Pairs] = field(default_factory=dict)
    loss: dict[str, Pairs] = field(default_factory=dict)
    taken: dict[str, Sum] = field(default_factory=dict)
    open: list[Demand] = field(default_factory=list)

    @property
    def faults(self) -> list[Demand]:
        """The demands that are not exact."""
        return [d for d in self.demands if not d.exact]

    def add(self, part: GradientPart) -> None:
        """Add a part; what an event adds in another instance of a repeated unit is a further class of the same part."""
        mine = self.parts.setdefault(part.event, {})
        old = mine.get((part.parameter, part.use))
        held = part.held or (Value(garbage=True),)
        mine[part.parameter, part.use] = replace(part, held=paths.distinct((*(old.held if old else ()), *held)))

    def of(self, event: str, parameter: str) -> tuple[GradientPart, ...]:
        """The parts that an event adds to the gradient of a parameter."""
        return tuple(p for (name, _), p in self.parts.get(event, {}).items() if name == parameter)
