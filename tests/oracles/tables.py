"""One element as a program runs, rank by rank on one mesh: what each verb does, in plain numbers.

A table says what each rank holds of each value; a rank that has no entry holds nothing. It runs the meaning of each
verb (step/verbs.py) for one element of one parameter group, and of all contributions to its gradient follows that of
one token. Nothing in it is a rule of the prover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from typing import Any

from worlds import GARBAGE, World

from placealg.frozen import FrozenMap
from placealg.step.event import LOOPED, Clause, Event

CURRENT, NEXT = "current", "next"
"""What is held of a state: the copy of the step's start, or the one that its update makes."""

Place = FrozenMap[str, int]
"""A rank: axis -> coordinate."""

Row = dict[Place, Any]
"""What each rank holds of one value: a number, a copy of a state, or garbage."""


class Stuck(Exception):
    """A collective that not all ranks of a team enter: nothing behind it has a meaning."""


@dataclass(frozen=True)
class Number:
    """A gradient's element: the weight in it of the token that is followed; `zero` where it is 0 for every batch."""

    weight: Fraction
    zero: bool = False

    def times(self, factor: Fraction) -> Number:
        return Number(self.weight * factor, self.zero)


ZERO = Number(Fraction(0), zero=True)


def total(parts: Sequence[Any]) -> Any:
    """The sum of numbers; garbage where one of them is."""
    if GARBAGE in parts:
        return GARBAGE
    return Number(sum((p.weight for p in parts), Fraction(0)), all(p.zero for p in parts))


def divided(held: Any, by: Any) -> Any:
    return GARBAGE if GARBAGE in (held, by) else held.times(1 / by)


def clip_factor(norm: Fraction) -> Fraction:
    """A function of the norm that tells any two norms apart."""
    return 1 / (2 + norm)


@dataclass
class Table:
    """What every rank holds. `split` are the axes along which a rank has only the elements that it owns.

    `held` is by value and tier. `partial` is the norm, the flag skip and the count of each rank, of which a norm and
    a flag tell how often the element was looked at, and `seen` what was found there. `seed` is where backward starts.
    """

    world: World
    split: tuple[str, ...] = ()
    held: dict[tuple[str, str], Row] = field(default_factory=dict)
    partial: dict[str, Row] = field(default_factory=dict)
    seen: dict[str, Row] = field(default_factory=dict)
    seed: Row = field(default_factory=dict)
    microbatch: int | None = None
    ranks: list[Place] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = [FrozenMap(rank) for rank in self.world.ranks()]

    def row(self, value: str, tier: str) -> Row:
        return self.held.setdefault((value, tier), {})

    def owner(self, axis: str, rank: Place, layout: str = "own") -> int:
        """The coordinate that owns the element along an axis, under a layout that each rank may draw for itself."""
        name, _, along = layout.rstrip(")").partition("(")
        return self.world.position(axis, f"own:{name}^{along}={rank[along]}" if along else f"own:{name}", rank)

    def owns(self, axes: Sequence[str], rank: Place, layout: str = "own") -> bool:
        return all(rank[a] == self.owner(a, rank, layout) for a in axes)

    def contribution(self, rank: Place, weight: Fraction) -> Number:
        """What a rank's tokens contribute to a gradient: `weight` times the token that is followed, if it has that."""
        has_it = all(rank[a] == self.world.position(a, "unit", rank) for a in rank)
        return Number(weight if has_it else Fraction(0))

    def stands(self, where: Sequence[Clause], rank: Place, layout: str = "own") -> bool:
        """Whether a rank is among those of `where`."""
        return all(rank[c.axis] == (self.owner(c.axis, rank, layout) if c.rank is None else c.rank) for c in where)

    def selected(self, event: Event) -> list[Place]:
        return [rank for rank in self.ranks if self.stands(event.where, rank, event.layout)]

    def begin(self, value: str, tier: str, what: str, where: Sequence[Clause]) -> None:
        """The owners of the element among some ranks hold a state, a zero, or what their own tokens contribute."""
        for rank in self.ranks:
            if self.stands(where, rank) and self.owns(self.split, rank):
                held: Any = ZERO if what == "zero" else what
                if what in ("sum", "mean"):
                    held = self.contribution(rank, 1 / self.tokens(rank) if what == "mean" else Fraction(1))
                self.row(value, tier)[rank] = held

    def teams(self, event: Event) -> Iterator[list[Place]]:
        """The ranks that meet along the event's axes: all owners of the element along those that split it."""
        selected = self.selected(event)
        split = [a for a in self.split if event.group and a not in event.axes]
        teams: dict[tuple[int, ...], list[Place]] = {}
        for rank in self.ranks:
            if self.owns(split, rank):
                teams.setdefault(tuple(rank[a] for a in rank if a not in event.axes), []).append(rank)
        for team in teams.values():
            entering = [rank for rank in team if rank in selected]
            if entering and entering != team:
                raise Stuck
            if entering:
                yield team

    def owner_of(self, team: list[Place], event: Event) -> Place:
        return next(rank for rank in team if self.owns(event.axes, rank, event.layout))

    def tokens(self, rank: Place) -> Fraction:
        """The rank's tokens: of this microbatch inside the loop, of all of them outside."""
        here = range(self.world.microbatches) if self.microbatch is None else (self.microbatch,)
        return Fraction(sum(self.world.tokens({**rank, "microbatch": k}) for k in here))

    def divisor(self, event: Event, rank: Place) -> Any:
        """The event's divisor on a rank; garbage where it reads a count that the rank lacks."""
        result = Fraction(event.divisor.coefficient)
        for name, power in event.divisor.powers:
            known = self.amount(name, rank)
            if known == GARBAGE:
                return GARBAGE
            result *= Fraction(known) ** power
        return result

    def amount(self, name: str, rank: Place) -> Any:
        """What a name in a divisor stands for on a rank."""
        if name == "tokens":
            return self.tokens(rank)
        if name == "count":
            return self.partial.get("count", {}).get(rank, GARBAGE)
        return self.world.microbatches if name == "m" else self.world.sizes[name]

    def run(self, *events: Event) -> None:
        for event in events:
            MEANINGS[event.verb](self, event)

    def run_step(self, events: Sequence[Event]) -> None:
        """One step, with its loop over microbatches."""
        self.partial.pop("count", None)
        for looped, some in groupby(events, key=lambda e: e.phase in LOOPED):
            body, last = tuple(some), self.world.microbatches - 1
            for microbatch in range(last + 1) if looped else ():
                self.microbatch, self.seed = microbatch, {}
                self.run(*(e for e in body if takes_part(e, microbatch, last)))
            self.microbatch = None
            if not looped:
                self.run(*body)

    def next_step(self) -> None:
        """Another step begins: what was next is current, and but for zeros all else is of no use."""
        for row in self.held.values():
            for rank, held in row.items():
                row[rank] = CURRENT if held == NEXT else held if held == ZERO else GARBAGE
        self.partial.clear()


def takes_part(event: Event, microbatch: int, last: int) -> bool:
    """Whether an event runs in a microbatch: the only one is the first and the last, too."""
    stands = {"first": microbatch == 0, "last": microbatch == last, "only": last == 0, "middle": 0 < microbatch < last}
    return not event.at or any(stands[position] for position in event.at)


def _put(row: Row, rank: Place, held: Any) -> None:
    if held is None:
        row.pop(rank, None)
    else:
        row[rank] = held


def _copy(table: Table, event: Event) -> None:
    """Weights and master weights are the same numbers, moments are others, and so is an average when init is over.

    A gradient and a sum of gradients may be the same numbers. An initial value is current in init.
    """
    read, written = event.tiers
    source, target = table.held.get((event.origin, read), {}), table.row(event.value, written)
    weights = ("weight", "master", "average") if event.phase == "init" else ("weight", "master")
    alike = any({event.origin, event.value} <= {*one} for one in (weights, ("grad", "grad_sum"), (event.value,)))
    begun = CURRENT if event.phase == "init" else GARBAGE
    for rank in table.selected(event):
        if event.origin:
            _put(target, rank, source.get(rank) if alike or rank not in source else GARBAGE)
        else:
            _put(target, rank, begun if table.owns(table.split, rank) else None)


def _keep(table: Table, event: Event) -> None:
    row = table.row(event.value, event.tier)
    for rank in table.selected(event):
        if not event.axes or not table.owns(event.axes, rank, event.layout):
            row.pop(rank, None)


def _gather(table: Table, event: Event) -> None:
    source, target = table.row(event.origin, event.tier), table.row(event.value, event.tier)
    for team in table.teams(event):
        held = source.get(table.owner_of(team, event), GARBAGE)
        target.update(dict.fromkeys(team, held))


def _publish(table: Table, event: Event) -> None:
    if event.axes:
        _gather(table, event)
        return
    master = table.row("master", event.tier)
    table.row("weight", event.tier).update({r: master[r] for r in table.selected(event) if r in master})


def _broadcast(table: Table, event: Event) -> None:
    row = table.row(event.value, event.tier)
    for team in table.teams(event):
        roots = [rank for rank in team if all(rank[a] == event.root for a in event.axes)]
        row.update(dict.fromkeys(team, row.get(roots[0], GARBAGE) if roots else GARBAGE))


def _zero(table: Table, event: Event) -> None:
    owners = [rank for rank in table.selected(event) if table.owns(table.split, rank)]
    table.row(event.value, event.tier).update(dict.fromkeys(owners, ZERO))


def _scale(table: Table, event: Event) -> None:
    row = table.seed if event.value == "loss" else table.row(event.value, event.tier)
    for rank in table.selected(event):
        if rank in row:
            row[rank] = divided(row[rank], table.divisor(event, rank))


def _accumulate(table: Table, event: Event) -> None:
    grad, row = table.row("grad", event.tier), table.row("grad_sum", event.tier)
    for rank in table.selected(event):
        if rank in row:
            row[rank] = total([row[rank], grad.get(rank, GARBAGE)])


def _reduce(table: Table, event: Event) -> None:
    row = table.row(event.value, event.tier)
    for team in table.teams(event):
        by = {rank: table.divisor(event, rank) for rank in team}
        early = event.op == "premultiplied"
        parts = [divided(row[rank], by[rank]) if early else row[rank] for rank in team if rank in row]
        summed = total(parts) if len(parts) == len(team) else GARBAGE
        if event.op == "mean":
            summed = divided(summed, Fraction(len(team)))
        receivers = [table.owner_of(team, event)] if event.to == "S" else team
        for rank in team:
            held = summed if early else divided(summed, by[rank])
            _put(row, rank, held if parts and rank in receivers else None)


def _all_reduce(table: Table, event: Event) -> None:
    """Of flags, too, the sum will do for the largest: it says whether one is not 0."""
    row = table.partial.setdefault(event.value, {})
    for team in table.teams(event):
        parts = [row[rank] for rank in team if rank in row]
        if parts:
            undefined = GARBAGE in parts or len(parts) < len(team)
            whole = GARBAGE if undefined else sum(parts) / (len(team) if event.op == "mean" else 1)
            row.update(dict.fromkeys(team, whole))


def _look(table: Table, event: Event) -> None:
    """How often a rank looks at the element: once where it is held and selected."""
    row, selected = table.row("grad_sum", event.tier), table.selected(event)
    seen = {rank: row[rank] for rank in selected if rank in row}
    table.seen[event.value] = seen
    table.partial[event.value] = {
        rank: GARBAGE if seen.get(rank) == GARBAGE else Fraction(rank in seen) for rank in table.ranks}


def _compute(table: Table, event: Event) -> None:
    """A unit that runs backward makes a gradient of what the loss began with.

    In a microbatch without the token that is followed its weight is 0, whatever the seed is.
    """
    if event.value == "skip":
        _look(table, event)
    elif event.value == "count":
        table.partial.setdefault("count", {}).update({r: table.tokens(r) for r in table.selected(event)})
    elif event.value == "loss":
        by = {rank: table.divisor(event, rank) for rank in table.ranks}
        table.seed = {rank: divided(Number(Fraction(1)), by[rank]) for rank in table.ranks}
    elif event.phase == "backward":
        active = table.microbatch == table.world.position("microbatch", "unit", {})
        for rank in table.ranks:
            seed = table.seed.get(rank, GARBAGE) if active else Number(Fraction(0))
            table.row("grad", "device")[rank] = (
                GARBAGE if seed == GARBAGE else table.contribution(rank, seed.weight))


def _clip(table: Table, event: Event) -> None:
    row, norm = table.row(event.value, event.tier), table.partial.get("norm", {})
    for rank in table.selected(event):
        if rank in row:
            found = norm.get(rank, GARBAGE)
            row[rank] = GARBAGE if GARBAGE in (found, row[rank]) else row[rank].times(clip_factor(found))


def _update(table: Table, event: Event) -> None:
    """The gradient is taken to be right. An average takes in weights that are new."""
    if event.value == "average":
        average, taken = table.row("average", event.tier), table.held.get((event.origin, event.tier), {})
        for rank in table.selected(event):
            if rank in average:
                right = average[rank] == CURRENT and taken.get(rank) == NEXT and event.origin in ("weight", "master")
                average[rank] = NEXT if right else GARBAGE
        return
    master, moments = (table.row(value, event.tier) for value in ("master", "moments"))
    for rank in table.selected(event):
        if rank in master:
            right = master[rank] == CURRENT == moments.get(rank)
            master[rank] = moments[rank] = NEXT if right else GARBAGE


MEANINGS: Mapping[str, Callable[[Table, Event], None]] = {
    "assign": _copy, "offload": _copy, "fetch": _copy, "slice": _keep, "free": _keep, "gather": _gather,
    "all_gather": _gather, "publish": _publish, "broadcast": _broadcast, "zero": _zero, "scale": _scale,
    "accumulate": _accumulate, "reduce": _reduce, "all_reduce": _all_reduce, "norm": _look, "compute": _compute,
    "clip": _clip, "update": _update,
}
"""Verb -> what it does to a table."""
