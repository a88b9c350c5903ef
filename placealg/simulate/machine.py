"""The machine: what every rank holds, and how an event finds the numbers on which it acts.

Storage is a table element -> number per rank, for every (tier, value, group, instance). A missing entry is *not
held*; a number that no event defined is *garbage*, a fresh odd integer of 63 bits. Values without elements (step,
rng, count, a partial norm) are tables with one entry, on no tier, owned by coordinate 0.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from placealg.simulate.network import Kept, Vector
from placealg.simulate.reference import Slot, chain, slots, token_ids
from placealg.simulate.setting import ELEMENTS, Setting
from placealg.step.program import GROUP_VALUES, Event, Reference

Table = dict[int, Fraction]
Team = Mapping[tuple[int, ...], int]
"""Coordinates on the axes of a collective -> rank: the ranks that take part in it together."""

SCALARS = ("step", "rng", "count", "norm")
_READS = {"accumulate": "grad", "publish": "master", "norm": "grad_sum"}
_ACROSS = {"offload": ("device", "host"), "fetch": ("host", "device")}


class Deadlock(Exception):
    """Some ranks of a group enter the collective `event` and others do not."""

    def __init__(self, event: Event):
        super().__init__(event.path)
        self.event = event


class Watch(Protocol):
    """Who looks on: it sees every number that a computation reads or a checkpoint receives."""

    def weight(self, machine: Machine, event: Event, rank: int, slot: Slot, numbers: Sequence[Fraction | None]) -> None:
        """A unit's forward or backward reads one matrix; None marks an element that is not held."""

    def stream(self, machine: Machine, event: Event, rank: int, rng: Fraction | None) -> None:
        """A unit's forward reads the random stream."""

    def factor(self, machine: Machine, event: Event, rank: int, token: int, number: Fraction) -> None:
        """A unit's forward uses a random factor for a token."""

    def stored(self, machine: Machine, event: Event, rank: int, element: int, number: Fraction) -> None:
        """A number enters the checkpoint."""


@dataclass(slots=True)
class Activations:
    """What one rank computes in one microbatch: by position in the chain, outputs, what backward needs, gradients.

    `final` are the outputs that the loss has read, `seed` the value from which backward starts. None, or no entry,
    is a value that no event has produced.
    """

    outputs: dict[int, tuple[Vector, ...]] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    gradients: dict[int, tuple[Vector, ...]] = field(default_factory=dict)
    final: tuple[Vector, ...] | None = None
    seed: Fraction | None = None


class Machine:
    """Every rank of one run: its tables, its activations, its checkpoint, and where it stands in the step.

    `number` counts the steps that the run has finished, `microbatch` is None outside the loop, `instance` is the
    current instance of the unit whose loop is running. With `reads_only`, units read and do not compute. A
    `resumed` machine is one that starts from a checkpoint.
    """

    def __init__(self, reference: Reference, setting: Setting, watch: Watch, resumed: bool = False) -> None:
        self.reference, self.setting, self.watch, self.resumed = reference, setting, watch, resumed
        self.axes = {a: i for i, a in enumerate(reference.mesh.names)}
        self.coordinates = tuple(itertools.product(*(range(setting.sizes[a]) for a in self.axes)))
        self.ranks = range(len(self.coordinates))
        self.slots, self.chain = slots(reference, setting.layers), chain(reference, setting.layers)
        self.positions = {(place.unit, place.instance): i for i, place in enumerate(self.chain)}
        self.number = 0
        self.microbatch: int | None = None
        self.instance = 0
        self.reads_only = False
        self.activations = [Activations() for _ in self.ranks]
        self.checkpoint: dict[tuple[str, str, int], list[Table]] = {}
        self._groups = {g.name: i for i, g in enumerate(reference.groups)}
        self._ids = token_ids(reference, setting)
        self._tables: dict[tuple[str, str, str, int], list[Table]] = {}
        self._teams: dict[tuple[str, ...], tuple[Team, ...]] = {}
        self._draw = random.Random(f"garbage {resumed} {setting.seed}")

    def garbage(self) -> Fraction:
        """A number that no event defined."""
        return Fraction(self._draw.getrandbits(62) | (1 << 62) | 1)

    def enter(self, microbatch: int | None) -> None:
        """Begin a microbatch, with no activations; None leaves the loop."""
        self.microbatch = microbatch
        if microbatch is not None:
            self.activations = [Activations() for _ in self.ranks]

    def runs_now(self, event: Event) -> bool:
        """Whether `at` lets the event run in this microbatch; outside the loop it says nothing."""
        if not event.at or self.microbatch is None:
            return True
        k, last = self.microbatch, self.setting.microbatches - 1
        here = {"only": last == 0, "first": k == 0, "last": k == last, "middle": 0 < k < last}
        return any(here[position] for position in event.at)

    def table(self, tier: str, value: str, group: str = "", instance: int = 0) -> list[Table]:
        """What each rank holds of `value`, by element."""
        key = ("" if value in SCALARS else tier, value, group, instance)
        if key not in self._tables:
            self._tables[key] = [{} for _ in self.ranks]
        return self._tables[key]

    def scalar(self, value: str, rank: int) -> Fraction | None:
        """What a rank holds of step, rng or count."""
        return self.table("", value)[rank].get(0)

    def slot(self, event: Event) -> Slot:
        """(group, instance) on which the event acts; ("", 0) for global values."""
        return (event.group, self.instance) if event.group else ("", 0)

    def source(self, event: Event) -> list[Table]:
        """What the event reads. A `source` that is a kind, as [S] or [P], is a claim and names no value."""
        value = event.source if event.source in GROUP_VALUES else _READS.get(event.verb, event.value)
        return self.table(tiers(event)[0], value, *self.slot(event))

    def target(self, event: Event) -> list[Table]:
        """What the event writes."""
        return self.table(tiers(event)[1], event.value, *self.slot(event))

    def owner(self, event: Event, axis: str, element: int) -> int:
        """The coordinate on `axis` that owns `element` of the event's value, under the event's layout."""
        if not event.group:
            return 0
        return self.setting.owner(event.layout, axis, element, self._groups[event.group] + self.instance)

    def owners(self, event: Event, element: int) -> tuple[int, ...]:
        """The coordinates, on the event's axes, of the owner of `element`."""
        return tuple(self.owner(event, axis, element) for axis in event.axes)

    def on_axes(self, event: Event, rank: int) -> tuple[int, ...]:
        """The coordinates of `rank` on the event's axes."""
        return tuple(self.coordinates[rank][self.axes[a]] for a in event.axes)

    def chosen(self, event: Event, rank: int, element: int = 0) -> bool:
        """Whether `where` selects this rank and element."""
        at = self.coordinates[rank]
        for clause in event.where:
            wanted = self.owner(event, clause.axis, element) if clause.rank is None else clause.rank
            if at[self.axes[clause.axis]] != wanted:
                return False
        return True

    def pairs(self, event: Event) -> Iterator[tuple[int, int]]:
        """The (rank, element) pairs on which a local event acts."""
        for rank in self.ranks:
            for element in elements(event):
                if self.chosen(event, rank, element):
                    yield rank, element

    def teams(self, event: Event) -> Iterator[tuple[int, Team]]:
        """The (element, team) pairs on which a collective acts; Deadlock where `where` splits a team."""
        for team in self._teams_of(event):
            for element in elements(event):
                entering = sum(self.chosen(event, r, element) for r in team.values()) if event.where else len(team)
                if 0 < entering < len(team):
                    raise Deadlock(event)
                if entering:
                    yield element, team

    def _teams_of(self, event: Event) -> tuple[Team, ...]:
        if event.axes not in self._teams:
            inside = {self.axes[a] for a in event.axes}
            found: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
            for rank, at in enumerate(self.coordinates):
                outside = tuple(c for i, c in enumerate(at) if i not in inside)
                found.setdefault(outside, {})[self.on_axes(event, rank)] = rank
            self._teams[event.axes] = tuple(found.values())
        return self._teams[event.axes]

    def token_ids(self, rank: int, microbatch: int) -> range:
        """The logical numbers of the rank's tokens of a microbatch."""
        at = self.coordinates[rank]
        return self._ids[tuple(at[self.axes[a]] for a in self.reference.data_axes), microbatch]

    def token_count(self, rank: int) -> int:
        """The rank's tokens: of the microbatch inside the loop, of all microbatches outside."""
        inside = range(self.setting.microbatches) if self.microbatch is None else (self.microbatch,)
        return sum(len(self.token_ids(rank, k)) for k in inside)

    def divided(self, event: Event, rank: int, number: Fraction) -> Fraction | None:
        """`number` over the event's divisor on this rank; None where the divisor is zero or unknown."""
        if not event.divisor.powers:
            return number / event.divisor.coefficient
        known: dict[str, Fraction | int] = {**self.setting.sizes, "m": self.setting.microbatches,
                                            "tokens": self.token_count(rank)}
        if "count" in event.divisor.names():
            count = self.scalar("count", rank)
            if count is None:
                return None
            known["count"] = count
        try:
            return number / event.divisor.evaluate(known)
        except ZeroDivisionError:
            return None


def elements(event: Event) -> Sequence[int]:
    """The elements of what the event acts on: those of a matrix, or the one entry of a global value or norm."""
    return ELEMENTS if event.group and event.value not in SCALARS else (0,)


def tiers(event: Event) -> tuple[str, str]:
    """(tier read, tier written): a copy between tiers that names no pair takes its verb's."""
    return event.tiers if "->" in event.tier else _ACROSS.get(event.verb, event.tiers)
