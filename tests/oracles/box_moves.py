"""What each redistribution does to the boxes of the ranks that meet in it, by its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from counted import Box, Extent, Number, plus, scaled, union
from worlds import GARBAGE

from placealg.frozen import FrozenMap
from placealg.step.event import Event

Rank = FrozenMap[str, int]
Owners = Callable[[str, str, int, str, int], int]
"""(axis, dim, index, layout, the coordinate of the rank that asks, where each has an order of its own) -> its owner."""


@dataclass(frozen=True)
class Layout:
    """All indices of every dim, the sizes of the axes, and who owns an index along an axis."""

    whole: Extent
    sizes: FrozenMap[str, int]
    owners: Owners

    def owned(self, axes: Iterable[str], rank: Rank, dim: str, drawn: str = "", along: str = "") -> tuple[int, ...]:
        """The indices that a rank owns, or takes for its own, where each along an axis says that for itself."""
        asks = rank[along] if along else 0
        return tuple(i for i in self.whole[dim] if all(
            self.owners(a, dim, i, drawn if along else "", asks) == rank[a] for a in axes))


def teams_of(ranks: Iterable[Rank], axes: Sequence[str]) -> list[list[Rank]]:
    """The ranks that meet along axes."""
    teams: dict[tuple[int, ...], list[Rank]] = {}
    for rank in ranks:
        teams.setdefault(tuple(rank[a] for a in rank if a not in axes), []).append(rank)
    return list(teams.values())


def rows_met(layout: Layout, held: Mapping[Rank, Box | None], over: Sequence[str], axes: Sequence[str]) -> set[Rank]:
    """The ranks whose teams have every index of a row, and have it once."""
    found, (dim,) = set[Rank](), over
    for team in teams_of(held, axes):
        boxes = [box for rank in team if (box := held[rank]) is not None]
        rows = [{d: at for d, at in b.extent.items() if d != dim} for b in boxes]
        indices = sorted(i for b in boxes for i in b.extent[dim])
        if len(boxes) == len(team) and all(r == rows[0] for r in rows) and tuple(indices) == layout.whole[dim]:
            found |= {*team}
    return found


Held = list[Box | None]


def _dim(place: str) -> str:
    return place[2:-1]


def _gather(layout: Layout, event: Event, team: list[Rank], boxes: Held) -> Held:
    held = [b for b in boxes if b is not None]
    if not held:
        return boxes
    dim = _dim(event.source)

    def number(point: Mapping[str, int]) -> Number:
        owner = {a: layout.owners(a, dim, point[dim], "", 0) for a in event.axes}
        for rank, box in zip(team, boxes, strict=True):
            if all(rank[a] == k for a, k in owner.items()):
                return box.at(point) if box is not None and box.holds(point) else GARBAGE
        return GARBAGE

    return [Box.made(union(held), number)] * len(boxes)


def _keep(layout: Layout, event: Event, team: list[Rank], boxes: Held) -> Held:
    dim = _dim(event.to)
    return [box and box.cut({dim: layout.owned(event.axes, rank, dim, event.layout.partition("(")[0], event.drawn)})
            for rank, box in zip(team, boxes, strict=True)]


def _sum(layout: Layout, event: Event, team: list[Rank], boxes: Held) -> Held:
    held = [b for b in boxes if b is not None]
    if not held:
        return boxes
    factor = Fraction(1, len(team)) if event.op == "mean" else Fraction(1) / _number(layout, event)

    def number(point: Mapping[str, int]) -> Number:
        parts = [b.at(point) for b in held if b.holds(point)]
        return scaled(plus(parts), factor) if len(parts) == len(team) else GARBAGE

    return [Box.made(union(held), number)] * len(boxes)


def _number(layout: Layout, event: Event) -> Fraction:
    result = Fraction(event.divisor.coefficient)
    for name, power in event.divisor.powers:
        result *= Fraction(layout.sizes[name]) ** power
    return result


def _sum_kept(layout: Layout, event: Event, team: list[Rank], boxes: Held) -> Held:
    return _keep(layout, event, team, _sum(layout, event, team, boxes))


def _exchanged(layout: Layout, event: Event, team: list[Rank], boxes: Held) -> Held:
    return _keep(layout, event, team, _gather(layout, event, team, boxes))


def _ring(layout: Layout, event: Event, team: list[Rank], boxes: Held) -> Held:
    return (_sum_kept if event.source == "P" else _gather)(layout, event, team, boxes)


def _pad(layout: Layout, event: Event, team: list[Rank], boxes: Held) -> Held:
    dim, found = _dim(event.source), Held()
    anyone = [k for k in layout.whole[dim] if any(box is not None and k in box.extent[dim] for box in boxes)]
    for rank, box in zip(team, boxes, strict=True):
        if box is not None:
            own = box.cut({dim: layout.owned(event.axes, rank, dim)})
            box = Box.made({**box.extent, dim: tuple(anyone)},
                           lambda p, own=own: own.at(p) if p[dim] in own.extent[dim] else {})  # type: ignore[misc]
        found.append(box)
    return found


def _scale(layout: Layout, event: Event, _team: list[Rank], boxes: Held) -> Held:
    factor = 1 / _number(layout, event)
    return [box and box.each(lambda n: scaled(n, factor)) for box in boxes]


MOVES: Mapping[str, Callable[[Layout, Event, list[Rank], Held], Held]] = {
    "all_gather": _gather, "slice": _keep, "all_reduce": _sum, "reduce_scatter": _sum_kept, "all_to_all": _exchanged,
    "shift": _ring, "pad": _pad, "scale": _scale}
"""Verb -> what each member of a team holds after it."""
