"""The machine: what every rank holds, and how an event finds the numbers on which it acts.

Storage is a table element -> number per rank, for every (tier, value, group, instance). A missing entry is *not
held*; a number that no event defined is *garbage*, a fresh odd integer of 63 bits. Values without elements (step,
rng, count, a partial norm, a flag) are tables with one entry, on no tier, owned by coordinate 0.

An element stands for a part of a parameter, all elements with the same owners (`space.py`): its number is the vector of
their residues. Where units run whole it is one number of a 2x2 matrix, a fraction.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np

from placealg.models.graph import Op
from placealg.models.tokens import ahead, weights_of_loss
from placealg.simulator.box import Box, Indices
from placealg.simulator.field import PRIME, Array, Number, Residues, element_type, objects, overflows
from placealg.simulator.reference import Slot, at_risk, slots
from placealg.simulator.setting import Setting
from placealg.simulator.space import OwnedElements
from placealg.simulator.space import of as space_of
from placealg.simulator.stages import SCALARS
from placealg.simulator.stages import of as stages_of
from placealg.simulator.store import Store
from placealg.step.program import GROUP_VALUES, Event, Group, Step
from placealg.step.where import LAST_RANK

Table = dict[int, Number]
Team = Mapping[tuple[int, ...], int]
"""Coordinates on the axes of a collective -> rank: the ranks that take part in it together."""

Message = tuple[int, str, int, int]
"""(rank that gets it, the tensor or gradient, its instance, microbatch)."""

_READS = {"accumulate": "grad", "publish": "master", "norm": "grad_sum"}


class Deadlock(Exception):
    """Some ranks of a group enter the collective `event` and others do not, or `rank` waits in it without end."""

    def __init__(self, event: Event, rank: int | None = None):
        super().__init__(event.path)
        self.event, self.rank = event, rank


class RankMessage(NamedTuple):
    """A message on its way: the `send`, the rank that sent it, what it carries."""

    event: Event
    rank: int
    box: Box | None


class Watch(Protocol):
    """Who looks on: it sees every number that a computation reads or a checkpoint receives."""

    def parameter(self, machine: Machine, event: Event, rank: int, slot: Slot, name: str, box: Box | None,
                  missing: Sequence[OwnedElements]) -> None:
        """An op's forward or backward reads a parameter; `missing` are the parts that should be held and are not."""

    def mask(self, machine: Machine, event: Event, rank: int, op: Op, box: Box) -> None:
        """An op, or a whole unit, draws its random factors."""

    def losses(self, machine: Machine, event: Event, rank: int, of: tuple[str, int], box: Box | None) -> None:
        """A loss, or a term in an instance of a unit, reads what it sums; None where nothing of it is held."""

    def stream(self, machine: Machine, event: Event, rank: int, rng: Fraction | None) -> None:
        """An op's forward reads the random stream."""

    def scale(self, machine: Machine, event: Event, rank: int, scale: Fraction | None) -> None:
        """An event divides, or multiplies, by the loss scale."""

    def stored(self, machine: Machine, event: Event, rank: int, element: int, number: Number) -> None:
        """A number enters the checkpoint."""

    def result(self, machine: Machine) -> None:
        """A step has ended."""


class Machine:
    """Every rank of one run: its tables, its tensors, its checkpoint, and where it stands in the step.

    `stores` are the tensors that ranks hold, and `users` maps (tensor, label) to the tensors that forward makes of that
    version, or of one that comes from it.

    `number` counts the steps that the run has finished, `microbatch` is None outside the loop, `instance` is the
    current instance of the unit whose loop is running. With `reads_only`, ops read and do not compute. A
    `resumed` machine is one that starts from a checkpoint.

    Of a pipeline `stages` say where things are, `messages` are those not received, and `meeting` are the stages that
    run an event of the loop over microbatches together: one, or, of a collective along the pipeline axis, all that
    enter it. `undefined` are the numbers that stood for one that no event defined.
    """

    def __init__(self, step: Step, setting: Setting, watch: Watch, resumed: bool = False) -> None:
        reference = step.reference
        self.reference, self.setting, self.watch, self.resumed = reference, setting, watch, resumed
        self.space = space_of(reference, setting)
        self.axes = {a: i for i, a in enumerate(reference.mesh.names)}
        self.stages = stages_of(reference, setting)
        self.meeting: frozenset[int] | None = None
        self.messages: dict[Message, list[RankMessage]] = {}
        self.coordinates = tuple(itertools.product(*(range(setting.sizes[a]) for a in self.axes)))
        self.ranks = range(len(self.coordinates))
        self.slots = slots(reference, setting.layers)
        self.among = sum(self.numbers(name, entry) for name, _ in self.slots if name in at_risk(reference, setting)
                         for entry in self.entries(name))
        self.number = 0
        self.microbatch: int | None = None
        self.instance = 0
        self.reads_only = False
        self.stores = [Store() for _ in self.ranks]
        self.users: dict[tuple[str, str], set[str]] = {}
        for made, name, label in ((e.tensor, *text.split("@", 1)) if "@" in text else (e.tensor, text, "")
                                  for e in step.phase("forward") for text in e.reads):
            for end in range(label.count("/") + 1):
                self.users.setdefault((name, "/".join(label.split("/")[:end + 1])), set()).add(made)
        self.checkpoint: dict[tuple[str, str, int], list[Table]] = {}
        self._groups = {g.name: i for i, g in enumerate(reference.groups)}
        self._tables: dict[tuple[str, str, str, int], list[Table]] = {}
        self._teams: dict[tuple[tuple[str, ...], frozenset[int]], tuple[Team, ...]] = {}
        self._on: dict[frozenset[int], tuple[int, ...]] = {}
        self._in_flight: dict[int, list[Store]] = {}
        self.undefined: set[Fraction] = set()
        self._draw = random.Random(f"garbage {resumed} {setting.seed}")
        self._noise = random.Random(f"noise {resumed} {setting.seed}")
        self._owners: dict[tuple[str, str, str, int, int], int] = {}
        self._group_of = {p: g for g in reference.groups for p in g.parameters}

    def fork(self) -> Machine:
        """The same state of the same run, which may go on otherwise."""
        twin = copy.copy(self)
        twin.checkpoint, twin._in_flight = {}, {}
        twin._tables, twin.messages, twin.stores = copy.deepcopy((self._tables, self.messages, self.stores))
        return twin

    def garbage(self) -> Fraction:
        """A number that no event defined."""
        number = Fraction(self._draw.getrandbits(62) | (1 << 62) | 1)
        self.undefined.add(number)
        return number

    def noise(self, shape: Sequence[int]) -> Array:
        """Numbers that no event defined."""
        if self.space.whole:
            return objects([self.garbage() for _ in range(math.prod(shape))]).reshape(tuple(shape))
        drawn = [self._noise.randrange(1, PRIME) for _ in range(math.prod(shape))]
        return np.array(drawn, element_type()).reshape(tuple(shape))

    def begin(self) -> None:
        """Begin a step: its batch has tokens of its own, and what was counted before are others."""
        for counter in self.reference.counters:
            for table in self.table("", "count", counter):
                table.clear()

    def enter(self, microbatch: int | None) -> None:
        """Begin a microbatch, with no tensors, or come back to one that is in flight; None leaves the loop."""
        self.microbatch = microbatch
        if microbatch is None:
            self._in_flight.clear()
            self.stores = [Store() for _ in self.ranks]
            return
        if microbatch not in self._in_flight:
            if self.stages is None:
                self._in_flight.clear()
            self._in_flight[microbatch] = [Store() for _ in self.ranks]
        self.stores = self._in_flight[microbatch]

    def acting(self, event: Event) -> Sequence[int]:
        """The ranks on which an event acts: of a pipeline those of its stages, inside the loop those that meet now."""
        return self.ranks if self.stages is None else self.on_stages(self._stages(event))

    def _stages(self, event: Event) -> frozenset[int]:
        if self.stages is None:
            return frozenset()
        found = self.stages.stages(event, self.instance)
        return found if self.meeting is None else found & self.meeting

    def on_stages(self, stages: frozenset[int]) -> tuple[int, ...]:
        """The ranks that stand on these stages of the pipeline."""
        if stages not in self._on:
            axis = self.axes[self.stages.pipeline.axis] if self.stages else 0
            self._on[stages] = tuple(r for r in self.ranks if self.coordinates[r][axis] in stages)
        return self._on[stages]

    def group_of(self, parameter: str) -> Group:
        """The group of a parameter."""
        return self._group_of[parameter]

    def sequences(self) -> Indices:
        """The sequences of the microbatch."""
        return () if self.microbatch is None else self.space.sequences(self.microbatch)

    def named(self, rank: int) -> Mapping[str, int]:
        """The coordinates of a rank by axis."""
        return dict(zip(self.axes, self.coordinates[rank], strict=True))

    def owns(self, rank: int, split: Mapping[str, int]) -> bool:
        """Whether a rank stands at these coordinates."""
        return all(self.coordinates[rank][self.axes[a]] == c for a, c in split.items())

    def split(self, event: Event, element: int) -> Mapping[str, int]:
        """Where the owner of an element stands along the axes that split its parameter."""
        if not event.group:
            return {}
        found = self.space.parts(self.reference.group(event.group))[element].split
        if self.stages is None or self.stages.tied(event.group):
            return found
        (chunk,) = self.stages.holding(event.group, self.instance)
        return {**found, self.stages.pipeline.axis: self.stages.home(chunk)}

    def _has(self, event: Event, rank: int, element: int) -> bool:
        return self.owns(rank, {a: c for a, c in self.split(event, element).items() if a not in event.axes})

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

    def copies(self, slot: Slot, values: Sequence[str]) -> list[tuple[int, Table]]:
        """What ranks hold of some values of a group's instance, on any tier: (rank, its elements)."""
        return [(rank, table) for (_, value, *of), tables in self._tables.items()
                if value in values and tuple(of) == slot for rank, table in enumerate(tables)]

    def scalar(self, value: str, rank: int, loss: str = "") -> Fraction | None:
        """What a rank holds of step, rng, or of a loss's count."""
        return fraction(self.table("", value, loss)[rank].get(0))

    def numbers(self, group: str, entry: int) -> int:
        """How many numbers an entry of a group's tables stands for."""
        return self.space.parts(self.reference.group(group))[entry].numbers.size

    def overflows(self, group: str, number: Number) -> bool:
        """Whether a gradient of the group overflows."""
        return group in at_risk(self.reference, self.setting) and overflows(number, self.among)

    def skips(self, rank: int) -> bool:
        """Whether a rank skips the step: it holds a flag that is not 0."""
        return any(self.table("", "skip", *slot)[rank].get(0, 0) != 0 for slot in self.slots)

    def slot(self, event: Event) -> Slot:
        """(group, instance) on which the event acts; ("", 0) for global values, of a count its loss."""
        if event.value == "count":
            return event.unit, 0
        return (event.group, self.instance) if event.group else ("", 0)

    def source(self, event: Event) -> list[Table]:
        """What the event reads. A `source` that is a kind, as [S] or [P], is a claim and names no value."""
        value = event.source if event.source in GROUP_VALUES else _READS.get(event.verb, event.value)
        return self.table(event.tiers[0], value, *self.slot(event))

    def target(self, event: Event) -> list[Table]:
        """What the event writes."""
        return self.table(event.tiers[1], event.value, *self.slot(event))

    def owner(self, event: Event, axis: str, element: int, rank: int) -> int:
        """The coordinate on `axis` that owns `element` of the event's value, under the event's layout as `rank` has it.

        Coordinate 0 owns what no group has. Along a pipeline axis: the stage; of what several stages hold, one of them.
        """
        if not event.group:
            return 0
        layout = event.layout
        if event.drawn:
            layout += f"={self.coordinates[rank][self.axes[event.drawn]]}"
        key = (layout, axis, event.group, self.instance, element)
        if key not in self._owners:
            self._owners[key] = self._owner(event, layout, axis, element)
        return self._owners[key]

    def _owner(self, event: Event, layout: str, axis: str, element: int) -> int:
        if self.stages is not None and axis == self.stages.pipeline.axis:
            held = sorted(set(map(self.stages.home, self.stages.holding(event.group, self.instance))))
            return held[self._turn(event, layout, axis, element) % len(held)]
        if axis in self.split(event, element) and layout == "own":
            return self.split(event, element)[axis]
        return self._turn(event, layout, axis, element)

    def _turn(self, event: Event, layout: str, axis: str, element: int) -> int:
        """The setting's owner, of the first element of an entry."""
        element = self.space.parts(self.reference.group(event.group))[element].first
        return self.setting.owner(layout, axis, element, self._groups[event.group] + self.instance)

    def entries(self, group: str) -> Sequence[int]:
        """The entries of the tables of one instance of a group."""
        return range(len(self.space.parts(self.reference.group(group))))

    def elements(self, event: Event) -> Sequence[int]:
        """The entries of what the event acts on: those of its group, or the one of a global value or norm."""
        return self.entries(event.group) if event.group and event.value not in SCALARS else (0,)

    def owners(self, event: Event, element: int, rank: int) -> tuple[int, ...]:
        """The coordinates, on the event's axes, of the owner of `element` in the layout of `rank`."""
        return tuple(self.owner(event, axis, element, rank) for axis in event.axes)

    def on_axes(self, event: Event, rank: int) -> tuple[int, ...]:
        """The coordinates of `rank` on the event's axes."""
        return tuple(self.coordinates[rank][self.axes[a]] for a in event.axes)

    def chosen(self, event: Event, rank: int, element: int = 0) -> bool:
        """Whether `where` selects this rank and element."""
        at = self.coordinates[rank]
        for clause in event.where:
            number = clause.rank if clause.rank != LAST_RANK else self.setting.sizes[clause.axis] - 1
            wanted = self.owner(event, clause.axis, element, rank) if number is None else number
            if (at[self.axes[clause.axis]] == wanted) == clause.but:
                return False
        return True

    def pairs(self, event: Event) -> Iterator[tuple[int, int]]:
        """The (rank, element) pairs on which a local event acts."""
        for rank in self.acting(event):
            for element in self.elements(event):
                if self.chosen(event, rank, element):
                    yield rank, element

    def teams(self, event: Event) -> Iterator[tuple[int, Team]]:
        """The (element, team) pairs on which a collective acts; Deadlock where `where` splits a team.

        A team that stands elsewhere along an axis that splits the parameter has no part in an element. What lives on
        one stage of a pipeline cannot meet that of another: their ranks wait for each other.
        """
        alone = bool(event.group and self.stages and self.stages.ranks > 1 and not self.stages.tied(event.group)
                     and self.stages.pipeline.axis in event.axes)
        for team in self.together(event):
            for element in self.elements(event):
                if not self._has(event, next(iter(team.values())), element):
                    continue
                entering = sum(self.chosen(event, r, element) for r in team.values()) if event.where else len(team)
                if 0 < entering < len(team):
                    raise Deadlock(event)
                if entering and alone:
                    raise Deadlock(event, next(iter(team.values())))
                if entering:
                    yield element, team

    def together(self, event: Event) -> tuple[Team, ...]:
        """The ranks that differ along the event's axes alone, each by its place there."""
        key = event.axes, self._stages(event)
        if key not in self._teams:
            inside = {self.axes[a] for a in event.axes}
            found: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
            for rank in self.acting(event):
                outside = tuple(c for i, c in enumerate(self.coordinates[rank]) if i not in inside)
                found.setdefault(outside, {})[self.on_axes(event, rank)] = rank
            self._teams[key] = tuple(found.values())
        return self._teams[key]

    def token_count(self, rank: int, loss: str = "", how: str = "", read: str = "") -> int:
        """The weight of what the rank has of what a loss sums, of the first loss where none is named.

        `how` may be the label of weights that are left out, or taken once, and `read` the weights that are read where
        they need not be those of the loss. It is that of the microbatch inside the loop, of all microbatches outside.
        """
        named = self.reference.loss_of(loss)
        rows = named if named in self.reference.separate else self.reference.losses[0]
        return sum(self.space.tokens(self.named(rank), k, rows, how, ahead(read or weights_of_loss(named)))
                   for k in self.counting)

    def sample_count(self, rank: int) -> int:
        """The number of samples that the rank has, of the microbatch inside the loop, of all microbatches outside."""
        return sum(self.space.samples(self.named(rank), k) for k in self.counting)

    @property
    def counting(self) -> Sequence[int]:
        """The microbatches of which a count is."""
        return range(self.setting.microbatches) if self.microbatch is None else (self.microbatch,)


def fraction(number: Number | None) -> Fraction | None:
    """The number of a value that is never a residue."""
    assert not isinstance(number, Residues)
    return number
