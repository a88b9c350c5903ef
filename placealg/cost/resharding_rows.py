"""Elements of several parameters in one row, of which every rank has an equal share: what two layouts have in common.

What a layout leaves to a rank of a parameter is a block of each dim, its elements in the order of the dims. The
elements that are in the blocks of two layouts have one order in both, so that those before a place of one row are the
first so many of them. Both shares are thus stretches of what is common, however a dim is split and whatever does not
divide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import sympy

from placealg.arith import Monomial
from placealg.cost.bindings import Bindings
from placealg.cost.expressions import monomial
from placealg.cost.indices import Of, index_of, least, most
from placealg.cost.resharding_parts import common, digits, opened
from placealg.cost.resharding_stages import Bounds, Side
from placealg.frozen import FrozenMap
from placealg.step.checkpoint import Item

PLACE, LENGTH = index_of("place"), index_of("length")
"""A place of a row, of which it is told how many common elements are before it; a length of which ranks have shares."""

Block = tuple[Any, Any, Any]
"""The first place that a rank has, the first one after its last, and how many it has."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Parameters that are counted together: their items in both meshes, in the order of their row.

    `size` is the bytes of an element. Other than in a row there is one parameter in each.
    """

    pairs: tuple[tuple[Item, Item], ...]
    size: Any

    @property
    def old(self) -> Item:
        """The first item of the old mesh; it is on the same ranks as all others, and has as many instances."""
        return self.pairs[0][0]

    @property
    def new(self) -> Item:
        """The first item of the new mesh."""
        return self.pairs[0][1]

    @property
    def flat(self) -> bool:
        """Whether one of the meshes has them in one row."""
        return self.old.flat or self.new.flat

    @property
    def elements(self) -> Any:
        """The elements of one instance of all of them."""
        return sympy.Add(*(monomial(item.elements) for _, item in self.pairs))


def bundles(pairs: Iterable[tuple[Item, Item, Any]]) -> list[Bundle]:
    """The pairs of an old item, a new one, and the bytes of an element, those together that share their rows."""
    found: dict[Any, list[tuple[Item, Item]]] = {}
    sizes: dict[Any, Any] = {}
    for one, two, size in pairs:
        key: Any = two.key
        if (one.flat or two.flat) and all(item.flat or not item.cut for item in (one, two)):
            key = (size, two.value, *((i.units, i.count, i.at, i.flat and i.group) for i in (one, two)))
        found.setdefault(key, []).append((one, two))
        sizes[key] = size
    made: list[Bundle] = []
    for key, together in found.items():
        ordered = sorted(together, key=lambda pair: [i.before for i in pair if i.flat])
        follow = all(a.before < b.before for pair in pairwise(ordered)
                     for a, b in zip(*pair, strict=True) if a.flat)
        made += [Bundle(tuple(ordered), sizes[key])] if follow else [Bundle((p,), sizes[key]) for p in ordered]
    return made


Ats = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The coordinates of a rank in the old mesh, and in the new one."""


def shared_of_rows(sides: tuple[Side, Side], pairs: tuple[tuple[Item, Item], ...], at: Ats, known: Bindings,
                   dims: Collection[str] | None = None) -> Any:
    """The elements of one instance that the ranks at some coordinates of both meshes have in common.

    With `dims` they are places of the line that runs through these dims of one parameter.
    """
    if dims is not None:
        pairs = tuple((_along(one, dims), _along(two, dims)) for one, two in pairs)
    for k, side in enumerate(sides):
        if inside := opened(side, pairs[0][k], at[k]):
            names, cut = known.inside(), inside.item.cut
            told = tuple((replace(a, cut=cut), b) if k == 0 else (a, replace(b, cut=cut)) for a, b in pairs)
            there = (inside.at, at[1]) if k == 0 else (at[0], inside.at)
            return inside.every(names.around(shared_of_rows(sides, told, there, names)))
    parts = [[_blocks(side, pair[k].dims, pair[k].splits, at[k], known) for pair in pairs]
             for k, side in enumerate(sides)]
    ends = []
    for k, side in enumerate(sides):
        items = [pair[k] for pair in pairs]
        if items[0].cut:
            before = _before(side, items, at[k], list(zip(parts[k], parts[1 - k], strict=True)), known)
            ends.append(tuple(_at(before, end, known) for end in _share_of(side, items[0], at[k], known)))
    if not ends:
        return sympy.Add(*(sympy.prod([level.common for level in _levels(sides[0], one, two, pair[0].dims, known)])
                           for pair, one, two in zip(pairs, *parts, strict=True)))
    if len(ends) == 1:
        return _of_length("own", ends, lambda own: own[1] - own[0], known)
    return _of_length("both", ends, common, known)


def _of_length(name: str, bounds: Sequence[Bounds], value: Callable[..., Any], known: Bindings) -> Any:
    """A value of bounds, as a function of the length if all of them are shares of one length."""
    ends = [end for pair in bounds for end in pair]
    if all(isinstance(end, Of) for end in ends) and len({end.args[1] for end in ends}) == 1:
        told = [(low.func(low.args[0], LENGTH), high.func(high.args[0], LENGTH)) for low, high in bounds]
        return Of(known.function(name, LENGTH, value(*told)), ends[0].args[1])
    return value(*bounds)


def amount_of(side: Side, item: Item, at: Mapping[str, Any], known: Bindings) -> Any:
    """How much of a row the rank at some coordinates has: of all its elements, or of a parameter's rows."""
    if inside := opened(side, item, at):
        names = known.inside()
        return inside.every(names.around(amount_of(side, inside.item, inside.at, names)))
    start, end = _share_of(side, item, at, known)
    return end - start


def _share_of(side: Side, item: Item, at: Mapping[str, Any], known: Bindings) -> Bounds:
    """The stretch of a row that the rank at some coordinates has."""
    if item.flat:
        length = row_of(side, item, at, known)
        length = known.named("row" + side.suffix, length) if known.speaks(length) else length
        return _cut(side, item, length, at, known)
    own_of = {d: n for d, (_, _, n) in _blocks(side, item.dims, item.splits, at, known).items()}
    width = sympy.prod([n for d, n in own_of.items() if d not in item.row_dims])
    start, end = _cut(side, item, sympy.prod([own_of[d] for d in item.row_dims]), at, known)
    return width * start, width * end


def row_of(side: Side, item: Item, at: Mapping[str, Any], known: Bindings) -> Any:
    """The elements of a row, of which the ranks of a mesh have shares."""
    return sympy.Add(*(_number(_blocks(side, dims, splits, at, known)) for dims, splits in item.beside))


def whole_row(bundle: Bundle) -> bool:
    """Whether every layout that has a row has all of these parameters in it and nothing else, none of them split."""
    return not any(splits for item in (bundle.old, bundle.new) if item.flat for _, splits in item.beside) and all(
        len(item.beside) == len(bundle.pairs) if item.flat else not (item.cut or any(pair[k].splits for pair in
                                                                                     bundle.pairs))
        for k, item in enumerate((bundle.old, bundle.new)))


def _along(item: Item, dims: Collection[str]) -> Item:
    """An item as it is along some of its dims, if it is in no row with others."""
    rows = set(item.row_dims) <= set(dims)
    return replace(item, dims=FrozenMap({d: n for d, n in item.dims.items() if d in dims}),
                   cut=item.cut if rows else (), levels=item.levels if rows else ())


def _cut(side: Side, item: Item, length: Any, at: Mapping[str, Any], known: Bindings) -> Bounds:
    """The share of a length that the levels of an item leave to a rank."""
    low, high = _share(side, item.levels[0], length, at, known)
    for outer, level in pairwise(item.levels):
        length = length / digits(side, outer, at)[1] if not side.whole_shares else _of_length(
            f"own_{'_'.join(outer)}{side.suffix}", [(low, high)], lambda own: own[1] - own[0], known)
        start, end = _share(side, level, length, at, known)
        low, high = low + start, low + end
    return low, high


def _share(side: Side, axes: tuple[str, ...], length: Any, at: Mapping[str, Any], known: Bindings) -> Bounds:
    """The share of a length that a rank has along some axes: ⌈length/ranks⌉ where shares are filled up, or the rest."""
    place, ranks = digits(side, axes, at)
    place = known.plain(place)
    if not side.whole_shares:
        return place * length / ranks, (place + 1) * length / ranks
    if place == 0:
        return sympy.S.Zero, sympy.ceiling(length / ranks)
    ends = {"from": place, "to": place + 1}
    low, high = (Of(known.function("_".join((name, *axes)) + side.suffix, LENGTH,
                                   least(number * sympy.ceiling(LENGTH / ranks), LENGTH)), length)
                 for name, number in ends.items())
    return low, high


def _blocks(side: Side, dims: Mapping[str, Monomial], splits: Mapping[str, str], at: Mapping[str, Any],
            known: Bindings) -> dict[str, Block]:
    """Of every dim, what the axes that split it leave to a rank."""
    found: dict[str, Block] = {d: (sympy.S.Zero, monomial(n), monomial(n)) for d, n in dims.items()}
    for axis, dim in splits.items():
        if dim in found:
            low, _, length = found[dim]
            start, end = share = _share(side, (axis,), length, at, known)
            own = _of_length(f"own_{axis}{side.suffix}", [share], lambda own: own[1] - own[0], known)
            found[dim] = low + start, low + end, own
    return found


def _number(blocks: Mapping[str, Block]) -> Any:
    return sympy.prod([n for _, _, n in blocks.values()])


@dataclass(frozen=True, slots=True)
class _Level:
    """Dims that follow each other: how many places a rank has along them, and which of them the other rank has, too."""

    own: Any
    skipped: Any
    common: Any

    @property
    def whole(self) -> bool:
        """Whether the other rank has all of these places."""
        return bool(self.skipped == 0 and self.own == self.common)


def _levels(side: Side, here: Mapping[str, Block], there: Mapping[str, Block], dims: Mapping[str, Monomial],
            known: Bindings) -> list[_Level]:
    """The dims of a parameter as levels: a dim that a layout splits with those behind it that are whole."""
    found = [_Level(sympy.S.One, sympy.S.Zero, sympy.S.One)]
    for dim, length in dims.items():
        (low, high, own), (other, end, its), every = here[dim], there[dim], monomial(length)
        if own == its == every:
            last = found.pop()
            found.append(_Level(last.own * own, last.skipped * own, last.common * own))
        elif its == every:
            found.append(_Level(own, sympy.S.Zero, own))
        elif own == every:
            found.append(_Level(own, other, its))
        else:
            found.append(_Level(own, known.named(f"{dim}_skipped{side.suffix}", most(0, other - low)),
                                _of_length("both", [(low, high), (other, end)], common, known)))
    return [level for k, level in enumerate(found) if level.own != 1 or not level.whole or k == len(found) - 1]


def _common_before(levels: list[_Level], place: Any, known: Bindings) -> Any:
    """The number of common elements that are before a place of what a rank has of one parameter."""
    first, rest = levels[0], levels[1:]
    if all(level.whole for level in levels):
        return place
    if not rest:
        return _clamped(place - first.skipped, first.common)
    inside = sympy.prod([level.own for level in rest])
    each = sympy.prod([level.common for level in rest])
    number = sympy.floor(place / (most(1, inside) if known.speaks(inside) else inside))  # a rank may have none of a dim
    further = _common_before(rest, place - inside * number, known)
    if first.whole:
        return each * number + further
    passed = _clamped(number - first.skipped, first.common)
    return each * passed + (_clamped(number + 1 - first.skipped, first.common) - passed) * further


def _before(side: Side, items: list[Item], at: Mapping[str, Any],
            parts: list[tuple[Mapping[str, Block], Mapping[str, Block]]], known: Bindings) -> Any:
    """The number of common elements before PLACE of a row, or of what a rank has of one parameter."""
    told = {item.before if item.flat else 0: pair for item, pair in zip(items, parts, strict=True)}
    row = items[0].beside if items[0].flat else ((items[0].dims, items[0].splits),)
    terms, passed, stretch = [], sympy.S.Zero, sympy.S.Zero
    for k, (dims, splits) in enumerate(row):
        here, there = told.get(k, (_blocks(side, dims, splits, at, known), None))
        levels = _levels(side, here, there, dims, known) if there else []
        if there and all(level.whole for level in levels):
            stretch += _number(here)
            continue
        terms.append(_clamped(PLACE - passed, stretch))
        passed, stretch = passed + stretch, sympy.S.Zero
        if len(levels) == 1:
            terms.append(_clamped(PLACE - passed - levels[0].skipped, levels[0].common))
        elif levels:
            terms.append(_at(_common_before(levels, PLACE, known), _clamped(PLACE - passed, _number(here)), known))
        passed += _number(here)
    return PLACE if not terms else sympy.Add(*terms, _clamped(PLACE - passed, stretch))


def _clamped(place: Any, number: Any) -> Any:
    """A number of places, but not below 0, and not more than there are."""
    if number == 0:
        return number
    return least(place if place.is_Symbol else most(place, 0), number)


def _at(before: Any, place: Any, known: Bindings) -> Any:
    """The number of common elements before a place."""
    return place if before == PLACE else Of(known.function("before", PLACE, before), place)
