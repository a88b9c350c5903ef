"""The part of one line of a parameter that a rank of a mesh has, in closed form, and what two of them have in common.

Where sizes divide, a part is told as a share of its line: parts of all lines that are cut alike are one expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy

from placealg.arith import Monomial
from placealg.cost.bindings import Bindings
from placealg.cost.expressions import monomial
from placealg.cost.indices import Of, index_of, least, most, summed
from placealg.cost.resharding_stages import Bounds, Side
from placealg.step.checkpoint import ELEMENTS, Item

At = Mapping[str, Any]
"""Axis -> the coordinate of a rank."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank has of a line of so many places: `size` of them, from the first to the second of `bounds`.

    `shares` says that bounds are shares of the line, not places. `place` and `ranks` are there if it is one of so many
    equal blocks of the whole line. Without `bounds` its places do not follow each other.
    """

    length: Any
    size: Any
    bounds: Bounds | None
    shares: bool = False
    place: Any = None
    ranks: Any = None

    @property
    def whole(self) -> bool:
        """Whether it is the whole line."""
        return self.size is self.length


def part(side: Side, item: Item, line: str, dims: tuple[str, ...], at: At) -> Part:
    """The part of a line, which runs through these dims, that the rank at the given coordinates has."""
    length = monomial(Monomial.product(item.dims[d] for d in dims))
    splits = [(a, d) for a, d in item.splits.items() if d in dims]
    cut = item.cut if line == ELEMENTS or dims == item.row_dims else ()
    if not splits and not cut:
        return Part(length, length, (sympy.S.Zero, length))
    levels = item.levels if cut else ()
    if (inside := opened(side, item, at)) and levels:
        return Part(length, inside.every(part(side, inside.item, line, dims, inside.at).size), None)
    single = bool(cut) != bool(splits) and len(splits) < 2 and (len(levels) < 2 or not side.whole_shares)
    told = digits(side, [a for level in levels for a in level] or (splits[0][0],), at) if single else (None, None)
    follow = all(d == dims[0] for _, d in splits)
    if not side.whole_shares:
        low, size = sympy.S.Zero, sympy.S.One
        for number, count in (digits(side, axes, at) for axes in (*((a,) for a, _ in splits), *levels)):
            size = size / count
            low += number * size
        return Part(length, length * size, (low, low + size) if follow else None, True, *told)
    blocks = _blocks(side, item.dims, item.splits, at)
    sizes = {d: blocks[d][1] - blocks[d][0] for d in dims}
    start, end = sympy.S.Zero, sympy.prod(list(sizes.values()))
    if cut:
        row = sympy.prod([n for d, n in sizes.items() if d not in item.row_dims])
        start, end = (row * end for end in _cut(side, item, sympy.prod([sizes[d] for d in item.row_dims]), at))
    before = blocks[dims[0]][0] * monomial(Monomial.product(item.dims[d] for d in dims[1:]))
    told = told if not cut or line != ELEMENTS else (None, None)
    return Part(length, end - start, (before + start, before + end) if follow else None, False, *told)


def stretch(side: Side, item: Item, length: Any, at: At) -> Part:
    """The share of a whole row that the rank at the given coordinates has."""
    if inside := opened(side, item, at):
        return Part(length, inside.every(stretch(side, inside.item, length, inside.at).size), None)
    start, end = _cut(side, item, length, at)
    told = digits(side, item.levels[0], at) if len(item.levels) == 1 else (None, None)
    return Part(length, end - start, (start, end), False, *told)


def digits(side: Side, axes: Iterable[str], at: At) -> tuple[Any, Any]:
    """The number of a rank among those along some axes, major to minor, and how many they are."""
    place, ranks = sympy.S.Zero, sympy.S.One
    for axis in axes:
        place, ranks = place * side.size(axis) + at[axis], ranks * side.size(axis)
    return sympy.expand(place), ranks


def _cut(side: Side, item: Item, length: Any, at: At) -> Bounds:
    """The part of a line that the levels of an item leave to a rank."""
    found: Bounds = (sympy.S.Zero, length)
    for level in item.levels:
        found = block(found, *digits(side, level, at))
    return found


@dataclass(frozen=True, slots=True)
class Opened:
    """An item that has a stretch of its line in each block of some axes: as it is in one of the blocks.

    `at` has an index for the rank along each such axis; `over` are these indices, with the number of ranks.
    """

    item: Item
    at: At
    over: tuple[tuple[Any, Any], ...]

    def every(self, amount: Any) -> Any:
        """An amount of one block, summed over all."""
        for index, ranks in self.over:
            amount = summed(amount, index, ranks)
        return amount


def opened(side: Side, item: Item, at: At) -> Opened | None:
    """An item in one block of the axes that are among its levels and that do not cut it; None without such axes."""
    free = [a for level in item.levels for a in level if a not in item.cut]
    of = {a: index_of(f"block_{a}{side.suffix}") for a in free}
    found = Opened(replace(item, cut=(*item.cut, *free)), {**at, **of}, tuple((of[a], side.size(a)) for a in free))
    return found if free else None


def _blocks(side: Side, dims: Mapping[str, Monomial], splits: Mapping[str, str], at: At) -> dict[str, Bounds]:
    """The block of every dim that the axes which split it leave to a rank."""
    found: dict[str, Bounds] = {d: (sympy.S.Zero, monomial(n)) for d, n in dims.items()}
    for axis, dim in splits.items():
        if dim in found:
            found[dim] = block(found[dim], at[axis], side.size(axis))
    return found


def block(bounds: Bounds, place: Any, ranks: Any) -> Bounds:
    """The part of a line that belongs to one of some ranks: ⌈length/ranks⌉ places, or what is left."""
    low, high = bounds
    each = sympy.ceiling((high - low) / ranks)
    if place == 0:
        return low, low + each
    return least(low + place * each, high), least(low + (place + 1) * each, high)


def shared(one: Part, two: Part) -> Any:
    """The number of places that two parts of a line have in common; None if those of one do not follow each other."""
    if one.whole or two.whole:
        return two.size if one.whole else one.size
    if one.bounds is None or two.bounds is None:
        return None
    if one.shares and two.shares:
        return one.length * common(one.bounds, two.bounds)
    return common(*(tuple(p.length * b for b in p.bounds) if p.shares else p.bounds for p in (one, two) if p.bounds))


@lru_cache(maxsize=4096)
def common(one: Bounds, two: Bounds) -> Any:
    """The number of places that two parts of a line have in common."""
    if one == two:
        return one[1] - one[0]
    return most(0, least(one[1], two[1]) - most(one[0], two[0]))


def staircase(length: Any, one: Any, two: Any, known: Bindings) -> Any:
    """The places common to the k-th block of `one` places and the k-th block of `two` places on a line, summed over k.

    With a the smaller and b the larger block, the k-th blocks have min(length, (k + 1)a) - kb places in common, as long
    as that is positive: for k below ⌈length/b⌉ and a/(b - a). Only the last of these can meet the end of the line.
    """
    def named(name: str, value: Any) -> Any:
        return Of(known.function(name, length, value), length)

    small, large = named("small", sympy.Min(one, two)), named("large", sympy.Max(one, two))
    blocks = sympy.ceiling(length / large)
    count = named("count", sympy.ceiling(small / sympy.Max(large - small, small / blocks)))
    return small * count * (count + 1) / 2 - large * count * (count - 1) / 2 - sympy.Max(0, small * count - length)


def steps(one: Any, two: Any) -> Any:
    """The same sum, as a share of a line that divides into `one` and into `two` blocks."""
    fewer, more = sympy.Min(one, two), sympy.Max(one, two)
    count = sympy.ceiling(fewer / sympy.Max(1, more - fewer))
    return count * ((count + 1) * fewer - (count - 1) * more) / (2 * one * two)
