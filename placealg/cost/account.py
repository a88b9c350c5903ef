"""The buffers of one program: those of its states, at every event and on every tier, and the tensors held with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from placealg.arith import ONE
from placealg.cost.activations import Activations, Picture
from placealg.cost.amounts import Buffer, Tally
from placealg.cost.held import Key, Share, State, accesses, initial, origin_of, visits
from placealg.cost.storages import DEVICE
from placealg.step.program import GROUP_VALUES, STEP_PHASES, Step
from placealg.strategy.vocabulary import ACC, AVG, USE

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Numbered(Generic[T]):
    """What is held at many places, often the same: the `distinct` values, and each place's number among them."""

    distinct: tuple[T, ...]
    which: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """What is held at one visit: one instance of `unit` holds `work`, its other instances `others`.

    `waits` names what the others hold: the number of the run of events, and whether they are before or behind it.
    """

    visit: int
    unit: str
    work: State
    others: State
    waits: tuple[int, str] = (0, "")


class Account:
    """The buffers of one program: which are held at every event, by the first and by the last instance of a unit.

    Inside a unit's loop an instance is at work while the others wait, before their turn or after it; what is
    held is linear in the instance's number, so the first and the last one bound all.
    """

    def __init__(self, step: Step):
        self.step = step
        self.visits = visits(step)
        self._pictures: dict[str, Numbered[Tally]] = {}
        self.in_place = frozenset(g.name for g in step.reference.groups if self._accumulates_in_place(g.name))
        self.streamed = self._streamed()
        self.reduced_once = frozenset(e.group for e in step.events if e.verb == "reduce" and e.value == "grad_sum")

    def _accumulates_in_place(self, group: str) -> bool:
        """Whether no event acts on a gradient before its accumulation, and both values have one layout."""
        grad, total = (group, "grad", "device"), (group, "grad_sum", "device")
        alike = all(v.before[grad].space == v.before[total].space for v in self.visits
                    if v.event.group == group and v.event.verb == "accumulate" and {grad, total} <= set(v.before))
        return alike and not any(e.group == group and "grad" in (e.value, e.source) for e in self.step.events)

    def _streamed(self) -> frozenset[Key]:
        """The values that cross the host link only to be published or accumulated, which happens as they arrive."""
        arriving: set[Key] = set()
        kept: set[Key] = set()
        for event in self.step.phase(*STEP_PHASES):
            if event.verb in ("offload", "fetch"):
                arriving.add((event.group, event.value, event.tiers[1]))
            used = accesses(self.step, event)[0]
            kept |= used - {origin_of(event)} if event.verb in ("publish", "accumulate") else used
        return frozenset(arriving - kept)

    def rest(self, values: Collection[str] = GROUP_VALUES) -> Tally:
        """The buffers of some values that the device holds at a step boundary."""
        whole = self.visits[0].before if self.visits else initial(self.step)
        state = {key: held for key, held in whole.items() if key[1] in values}
        (found,), _ = _Counting(self, "device").all((View(0, "", state, state),))
        return found

    def tensors(self, activations: Activations, tier: str = DEVICE) -> Numbered[Picture]:
        """The tensors that a tier holds at every visit; none outside the microbatch loop."""
        distinct: list[Picture] = [Picture()]
        which = [0] * len(self.visits)
        known: dict[tuple[int, ...], range] = {}
        for position in dict.fromkeys(v.position for v in self.visits if v.position):
            inside = [k for k, v in enumerate(self.visits) if v.position == position]
            places = tuple(self.visits[k].place for k in inside)
            if places not in known:
                known[places] = range(len(distinct), len(distinct) + len(places))
                distinct += activations.pictures(places, tier)
            for k, number in zip(inside, known[places], strict=True):
                which[k] = number
        return Numbered(tuple(distinct), tuple(which))

    @cached_property
    def views(self) -> tuple[View, ...]:
        """What is held at every event; twice in a unit's loop: with the other instances before and after their turn."""
        return tuple(self._views())

    def _views(self) -> Iterator[View]:
        ends = {v.run: v.after for v in self.visits if v.run is not None}
        starts: dict[int | None, State] = {}
        for k, visit in enumerate(self.visits):
            if visit.run is None:
                yield View(k, "", visit.during, visit.during)
                continue
            unit = self.step.unit_of(visit.event)
            starts.setdefault(visit.run, visit.before)
            yield View(k, unit, visit.during, starts[visit.run], (visit.run, "before"))
            yield View(k, unit, visit.during, ends[visit.run], (visit.run, "behind"))

    def pictures(self, tier: str) -> Numbered[Tally]:
        """The buffers of states on `tier` at every view."""
        if tier not in self._pictures:
            self._pictures[tier] = Numbered(*_Counting(self, tier).all(self.views))
        return self._pictures[tier]

    def of_group(self, state: State, group: str, tier: str, parts: Iterable[str]) -> Iterator[tuple[Buffer, int]]:
        """The buffers of one group in `parts` of its instances, and how many of each."""
        for size, share, copies in self._buffers(state, group, tier):
            for part in parts:
                yield (group, part, size, share), copies if part == "one" else 1

    def _buffers(self, state: State, group: str, tier: str) -> Iterator[tuple[str, Share, int]]:
        held = {v: state[group, v, tier] for v in GROUP_VALUES
                if (group, v, tier) in state and (group, v, tier) not in self.streamed}
        if tier == "device" and group in self.in_place:
            held.pop("grad", None)
        mine_of = self.step.reference.group(group)
        types = self.step.reference.types.plus(mine_of.types)
        for value, mine in held.items():
            rests = copied = mine_of.bytes_of(value)
            if value == "weight" and USE in types:
                copied = USE
            if value == "average" and AVG in types:
                rests = copied = AVG
            if ACC in types and (value == "grad" or (value == "grad_sum" and group in self.reduced_once)):
                rests = copied = ACC
            if mine.stored:
                yield rests, mine.space, mine.stored
            yield from ((copied, share, units) for share, units in mine.copied)


class _Counting:
    """The buffers of states on one tier, updated from view to view: only groups that changed are counted again."""

    def __init__(self, account: Account, tier: str):
        self.account, self.tier = account, tier
        self.groups = account.step.reference.groups
        self.unit, self.tally = "", Tally()
        self.before: State = {}
        self.waiting: dict[tuple[str, tuple[int, str]], Tally] = {}

    def all(self, views: Iterable[View]) -> tuple[tuple[Tally, ...], tuple[int, ...]]:
        """The distinct tallies, and the number of each view's tally: the previous view's if nothing changed."""
        distinct: list[Tally] = []
        which: list[int] = []
        made: dict[tuple[str, tuple[int, str]], int] = {}
        for view in views:
            if self._count(view):
                made = {}
            key = (view.unit, view.waits)
            if key not in made:
                made[key] = len(distinct)
                distinct.append(self._with_others(view, key))
            which.append(made[key])
        return tuple(distinct), tuple(which)

    def _count(self, view: View) -> bool:
        """Count the buffers at work, and those of other units' other instances; returns whether anything changed."""
        anew = view.unit != self.unit
        if anew:
            self.unit, self.before, self.tally = view.unit, {}, Tally()
        before, now = self.before, view.work
        if now is before:
            return False
        changed = {key[0] for key, held in now.items() if before.get(key) is not held}
        changed.update(key[0] for key in before if key not in now)
        for group in (g for g in self.groups if g.name in changed):
            parts = ("one", "others") if group.count != ONE and group.unit != view.unit else ("one",)
            for state, sign in ((before, -1), (now, 1)):
                for buffer, count in self.account.of_group(state, group.name, self.tier, parts):
                    self.tally[buffer] += sign * count
                    if not self.tally[buffer]:
                        del self.tally[buffer]
        self.before = now
        return anew or bool(changed)

    def _with_others(self, view: View, key: tuple[str, tuple[int, str]]) -> Tally:
        """The current tally, with the buffers of the other instances of the view's unit."""
        if key not in self.waiting:
            tally = Tally()
            for group in self.groups:
                if group.unit == view.unit and group.count != ONE:
                    for buffer, count in self.account.of_group(view.others, group.name, self.tier, ("others",)):
                        tally[buffer] += count
            self.waiting[key] = tally
        found = Tally(self.tally)
        for buffer, count in self.waiting[key].items():
            found[buffer] += count
        return found
