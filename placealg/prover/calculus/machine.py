"""The abstract machine: what one parameter group's values are, on every rank at once, as events run.

For one unknown element i of the group, one unknown unit (token), and one unknown device c, the machine holds
a *version* of each state and a *value* of each gradient (see versions.py and contribution.py). Events change
it by the rules of transfer.py. No solver is needed here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from placealg.arith import ONE, Monomial
from placealg.prover.calculus import versions
from placealg.prover.calculus.contribution import ABSENT, STALE, Slot, Value
from placealg.prover.calculus.positions import OWNER, Pairs
from placealg.prover.calculus.versions import CURRENT, NEXT, UNHELD, Version
from placealg.prover.ops.flow import Flows
from placealg.step.program import Group, Reference
from placealg.step.verbs import STATES

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Read:
    """An observed read, right iff `version` is `want`; on ranks that read nothing, `version` is `want`."""

    event: str
    kind: str
    position: str
    version: Version
    want: int


@dataclass(frozen=True, slots=True)
class Updated:
    """One execution of an update: what it read, and the name (`flag`) of the function that says whether it was right.

    `slot` is the group's partial norm, `skip` its flag, `divisor` the divisor of its step; each is None if it is not
    known. `where` are the ranks, and elements, that it updates.
    """

    event: str
    flag: str
    gradient: Value
    slot: Slot | None
    skip: Slot | None
    others: tuple[tuple[str, Version], ...]
    divisor: Monomial | None = ONE
    where: Pairs = frozenset()


@dataclass(frozen=True, slots=True)
class Relied:
    """An event of another group, or of none, that reads this group's part of `value`: its norm, or its flag skip."""

    event: str
    value: str
    slot: Slot | None
    where: Pairs


@dataclass(frozen=True, slots=True)
class Site:
    """A use of a parameter: a unit, or one operand of an op ("OP/K"); and the loss whose tokens are followed.

    For an operand, `part` numbers the classes of contributions to its gradient that ranks count differently.
    """

    use: str
    parameter: str = ""
    part: int = 0
    loss: str = "loss"


@dataclass(slots=True)
class Machine:
    """The state of the abstract machine, and the log of what was observed.

    `flows` are the contributions of ops to gradients. In a microbatch, `started` is the seed with which its backward
    started, `terms` maps the symbols of the seeds of further terms of the loss to their values, and `begun` are the
    parameters and uses whose gradient has received a contribution.
    """

    reference: Reference
    group: Group
    site: Site
    flows: Flows | None = None
    versions: dict[Key, Version] = field(default_factory=dict)
    stored: dict[str, Version] = field(default_factory=dict)
    values: dict[Key, Value] = field(default_factory=dict)
    slot: Slot | None = None
    skip: Slot | None = None
    counts: dict[str, Monomial] = field(default_factory=dict)
    seed: Monomial | None = None
    started: Monomial | None = None
    terms: dict[str, Monomial | None] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    reads: list[Read] = field(default_factory=list)
    updates: list[Updated] = field(default_factory=list)
    relied: list[Relied] = field(default_factory=list)
    steps: int = 0

    def copy(self, log: bool = False) -> Machine:
        """The same state, with a copy of the log or with an empty one."""
        reads, updates, relied = (self.reads[:], self.updates[:], self.relied[:]) if log else ([], [], [])
        return type(self)(self.reference, self.group, self.site, self.flows, dict(self.versions), dict(self.stored),
                          dict(self.values), self.slot, self.skip, dict(self.counts), self.seed, self.started,
                          dict(self.terms), set(self.begun), reads, updates, relied, self.steps)

    @property
    def owners(self) -> Pairs:
        """The ranks that hold the element at all: its owners along the axes that split the parameter itself."""
        return frozenset((a, OWNER) for a in self.group.split)

    def version(self, value: str, tier: str = "device") -> Version:
        """The version of a state; UNHELD if it was never written."""
        return self.versions.get((value, tier), UNHELD)

    def value(self, value: str, tier: str = "device") -> Value:
        """A gradient's value; not held if it was never written."""
        return self.values.get((value, tier), ABSENT)

    def snapshot(self) -> tuple[object, ...]:
        """Equal snapshots mean equal states."""
        return (dict(self.versions), dict(self.stored), dict(self.values), self.slot, self.skip,
                dict(self.counts), self.seed)

    def begin(self) -> None:
        """Begin a microbatch: what the one before left in the network is stale."""
        self.begun.clear()
        self.terms.clear()
        self.seed = self.started = None

    def after(self, value: str) -> int:
        """The version that the reference has after a step: NEXT, or CURRENT for the states of a frozen group."""
        return CURRENT if self.group.frozen and value in STATES else NEXT

    def next_step(self) -> Machine:
        """The state as the next step finds it: the reference's version after the step is CURRENT, all else is stale."""
        later = self.copy()
        later.versions = {k: versions.every(v, versions.kept if self.after(k[0]) == CURRENT else versions.aged)
                          for k, v in self.versions.items()}
        later.stored = {}
        later.values = {k: v.stale() for k, v in self.values.items()}
        later.skip = later.skip and STALE
        later.slot = later.seed = None
        later.counts = {}
        later.begin()
        later.steps += 1
        return later
