"""A checkpoint read onto another mesh, in closed form for all sizes of both: what is stored, read, and must move.

A size of the old mesh is the axis's name followed by `_old`. Rank k of the new mesh runs on the device of rank k of the
old one: what it reads and this device already had need not move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

import sympy

from placealg.arith import Monomial
from placealg.cost.algebra import tidy
from placealg.cost.amounts import Amounts, monomial
from placealg.cost.formula import Formula
from placealg.cost.notation import text_of
from placealg.cost.resharding_stages import (
    OLD,
    Bounds,
    Side,
    first_stages,
    is_equal,
    layers_of,
    own_instances,
    parts_of,
    stations,
)
from placealg.frozen import FrozenMap
from placealg.step.checkpoint import ELEMENTS, Item, lines_of
from placealg.step.pipeline import FIRST, LAST
from placealg.step.reshard import Reshard


@dataclass(frozen=True, slots=True)
class Volumes:
    """Bytes of a reshard, over all ranks of the new mesh.

    `stored` counts every element that is read once, `read` counts it as often as a rank reads it; `stays` is the part
    of `read` that the reader's device already had, `moved` the rest: the least that must move. `rank_reads` is the most
    that one rank reads, `rank_has` the part of its reads that the device of rank number `rank` already had.
    """

    stored: Formula
    read: Formula
    rank_reads: Formula
    rank_has: Formula
    stays: Formula
    moved: Formula

    def items(self) -> tuple[tuple[str, Formula], ...]:
        """(name, formula), in order."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))


def volumes(reshard: Reshard) -> Volumes:
    """The volumes of a reshard.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.checkpoint import checkpoint
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.expression import parse_strategy
    >>> old, new = (checkpoint(derive(s, abstract()), s, abstract()) for s in map(parse_strategy, ("zero3", "dp")))
    >>> found = volumes(Reshard(old, new))
    >>> found.read, found.stays
    (Ψ·dp·(w + o − 4) bytes, Ψ·min(dp, dp_old)·(w + o − 4)/dp_old bytes)
    """
    old, new = Side(reshard.old, OLD), Side(reshard.new, "")
    made = _Made(reshard, old, new)
    every = [(one, two, made.element(one)) for one, two in reshard.pairs]
    stored = sum((e * made.elements(one) for one, _, e in every), sympy.S.Zero)
    read = sum((e * made.elements(one) * _copies(new, two) for one, two, e in every), sympy.S.Zero)
    stays = made.summed((e, made.stays(one, two)) for one, two, e in every)
    rank_has = made.summed((e, made.rank_has(one, two)) for one, two, e in every)
    rank_reads = made.summed((e, made.rank_reads(two)) for _, two, e in every)
    every_read, on_device = made.formula(read), made.formula(stays, made.layers_divide())
    moved = on_device if on_device.expr is None else replace(on_device, expr=every_read.expr - on_device.expr)
    return Volumes(stored=made.formula(stored), read=every_read, rank_reads=made.formula(rank_reads),
                   rank_has=made.formula(rank_has), stays=on_device, moved=moved)


def shortened(formula: Formula) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The text of a formula with names for repeated parts, and (name, text) of each named part.

    >>> shortened(Formula.parse("Min(dp, pp)*Psi + Min(dp, pp)/dp", "bytes"))
    ('Ψ·fewer + fewer/dp', (('fewer', 'min(dp, pp)'),))
    """
    expr, parts = formula.expr, []
    for name, kind in (("fewer", sympy.Min), ("more", sympy.Max), ("k", sympy.ceiling)):
        found = sorted((e for e in expr.atoms(kind) if not e.atoms(kind) - {e}), key=sympy.default_sort_key)
        if len(found) == 1 and len(expr.atoms(kind)) <= 2:
            known = sympy.Symbol(name, positive=True, integer=True)
            parts.append((name, text_of(found[0])))
            expr = expr.xreplace({found[0]: known})
    return text_of(expr), tuple(parts)


def _copies(new: Side, item: Item) -> Any:
    """The number of ranks that have each element of an item."""
    found = new.ranks()
    for axis in (*item.splits, *item.cut, *item.at):
        found /= new.size(axis)
    if new.found.pipeline:
        axis, parts = new.size(new.found.pipeline.axis), parts_of(new, item)
        found = found / axis * (sympy.Min(2, axis) if parts == (FIRST, LAST) else max(1, len(parts)))
    return found


@dataclass(frozen=True)
class _Made:
    """The terms of the formulas; a text in place of an expression says why there is none."""

    reshard: Reshard
    old: Side
    new: Side

    def element(self, item: Item) -> Any:
        """The bytes of an element in the files."""
        amounts = Amounts(self.reshard.old.step.reference)
        return sympy.expand(amounts.size(amounts.reference.group(item.group), item.bytes))

    def elements(self, item: Item) -> Any:
        """The elements of all instances of an item."""
        return monomial(item.count * item.elements)

    def summed(self, terms: Any) -> Any:
        """The sum of element size times amount, or the first reason for which an amount has no closed form."""
        found = sympy.S.Zero
        for size, amount in terms:
            if isinstance(amount, str):
                return amount
            found += size * amount
        return found

    def formula(self, expr: Any, where: tuple[Bounds, ...] = ()) -> Formula:
        """An expression as a Formula with the values of both sides, in one fraction if nothing is rounded.

        It is claimed only where the first of each pair of `where` is at most the second.
        """
        old, new = self.reshard.old.step.reference, self.reshard.new.step.reference
        values = {**Amounts(new).values, **Amounts(old).values}
        values = {n: v for n, v in values.items() if n not in old.mesh.names}
        values |= {a + OLD: Fraction(n) for a, n in old.mesh.sizes().items()}
        values |= {a: Fraction(n) for a, n in new.mesh.sizes().items()}
        axes = (*(a + OLD for a in old.mesh.names), *new.mesh.names)
        if isinstance(expr, str):
            return Formula.none("bytes", expr)
        expr = expr if expr.has(sympy.floor, sympy.ceiling) else tidy(sympy.factor(expr))
        return Formula(expr, "bytes", values=FrozenMap(values), axes=axes, where=where)

    def rank_reads(self, item: Item) -> Any:
        """The elements that rank 0 reads, whose shares are the largest."""
        if self.new.found.pipeline is not None:
            return "which rank reads most depends on the stages: it is counted at sizes"
        parts = [self._bounds(self.new, item, line, dims, dict.fromkeys(self.new.found.axes, sympy.S.Zero))
                 for line, dims in lines_of(item).items()]
        return _product(parts, monomial(item.count))

    def rank_has(self, one: Item, two: Item) -> Any:
        """The elements that rank number `rank` reads and its device already had."""
        if one.at or two.at:
            return "not every rank has a part of the checkpoint"
        sides = ((self.old, one), (self.new, two))
        at = {side: {a: side.coordinate(a) for a in side.found.axes} for side in (self.old, self.new)}
        found = self._layers(one, two, at)
        if isinstance(found, str):
            return found
        for line, dims in lines_of(one, two).items():
            parts = [self._bounds(side, item, line, dims, at[side]) for side, item in sides]
            why = next((p for p in parts if isinstance(p, str)), None)
            if why:
                return why
            found *= _common(*parts)
        return found

    def _layers(self, item: Item, other: Item, at: Mapping[Side, Mapping[str, Any]]) -> Any:
        """The number of instances of an item's unit that the rank's device had and still has."""
        parts = []
        for side, mine in ((self.old, item), (self.new, other)):
            found = own_instances(side, mine, at[side])
            if isinstance(found, str):
                return found
            parts.append(found)
        return sum((_common(one, two) for one in parts[0] for two in parts[1]), sympy.S.Zero)

    def _bounds(self, side: Side, item: Item, line: str, dims: tuple[str, ...], at: Mapping[str, Any]) -> Any:
        """The part of a line that the rank at the given coordinates has."""
        splits = [(a, d) for a, d in item.splits.items() if d in dims]
        if any(d != dims[0] for _, d in splits):
            return f"{item.parameter} is split inside its rows: it is counted at sizes"
        if item.flat and (len(item.beside) > 1 or splits):
            return f"the elements of {item.group} are cut in one row: they are counted at sizes"
        inside = monomial(Monomial.product(item.dims[d] for d in dims[1:]))
        bounds: Bounds = (sympy.S.Zero, monomial(item.dims[dims[0]]))
        for axis, _ in splits:
            bounds = _block(side, bounds, at[axis], side.size(axis))
        bounds = bounds[0] * inside, bounds[1] * inside
        if item.cut and (line == ELEMENTS or dims == item.row_dims):
            place, ranks = sympy.S.Zero, sympy.S.One
            for axis in item.cut:
                place, ranks = place * side.size(axis) + at[axis], ranks * side.size(axis)
            inner = sympy.S.One
            if line == ELEMENTS and not item.flat:
                if item.splits:
                    return f"the elements of {item.group} are cut in one row: they are counted at sizes"
                inner = monomial(Monomial.product(n for d, n in item.dims.items() if d not in item.row_dims))
            low, high = _block(side, (bounds[0] / inner, bounds[1] / inner), place, ranks)
            bounds = low * inner, high * inner
        return bounds

    def stays(self, one: Item, two: Item) -> Any:
        """The elements that all ranks read and their devices already had, if each mesh has one axis."""
        if len(self.old.found.axes) != 1 or len(self.new.found.axes) != 1 or one.at or two.at:
            return "the sum over ranks has no closed form on meshes of several axes: it is counted at sizes"
        if self.old.found.pipeline or self.new.found.pipeline:
            return self._stays_of_stages(one, two)
        n, k = self.old.size(self.old.found.axes[0]), self.new.size(self.new.found.axes[0])
        both = sympy.Min(n, k)
        ends: list[Any] = []
        cuts: list[tuple[bool, bool, Any]] = []
        for line, dims in lines_of(one, two).items():
            found = []
            for side, item in ((self.old, one), (self.new, two)):
                first = self._bounds(side, item, line, dims, dict.fromkeys(side.found.axes, sympy.S.Zero))
                if isinstance(first, str):
                    return first
                found.append(first[1] - first[0])
            length = monomial(Monomial.product(one.dims[d] for d in dims))
            cuts.append((_cuts(one, line, dims), _cuts(two, line, dims), length))
            ends.append(found)
        exact = None if self.old.whole_shares or self.new.whole_shares else (n, k)
        return monomial(one.count) * _over_ranks(cuts, ends, both, exact)


    def layers_divide(self) -> tuple[Bounds, ...]:
        """That the stages of both meshes have equally many layers each, where both have stages: pairs for `where`."""
        if not (self.old.found.pipeline and self.new.found.pipeline):
            return ()
        counts = [monomial(loop.count) for loop in layers_of(self.new.found)]
        return tuple((count - n * sympy.floor(count / n), sympy.S.Zero) for count in counts
                     for n in (self.old.ranks(), self.new.ranks()))

    def _stays_of_stages(self, one: Item, two: Item) -> Any:
        """The same where one mesh, or both, is a pipeline: what stages have, rank by rank, in closed form."""
        n, k = self.old.ranks(), self.new.ranks()
        if stations(self.old, one) or stations(self.new, two):
            return self._stays_at_ends(one, two)
        if self.old.found.pipeline and self.new.found.pipeline:
            for side in (self.old, self.new):
                pipeline = side.found.pipeline
                assert pipeline is not None
                if pipeline.chunks != 1 or pipeline.stages or pipeline.alone or len(layers_of(side.found)) > 1:
                    return ("what two pipelines have in common is a sum of rounded numbers, which has no closed form "
                            "but for one chunk of equal layers on every stage: it is counted at sizes")
            return monomial(one.count * one.elements) * _steps(n, k)
        staged, other, there = (self.old, self.new, two) if self.old.found.pipeline else (self.new, self.old, one)
        first = self._share(other, there, one, two, sympy.S.Zero)
        if isinstance(first, str):
            return first
        if other.whole_shares and (there.cut or there.splits):
            return "stages of several layers, each in shares that are padded: it is counted at sizes"
        layers = first_stages(staged, one if staged is self.old else two, sympy.Min(n, k))
        return layers if isinstance(layers, str) else layers * first

    def _share(self, side: Side, item: Item, one: Item, two: Item, rank: Any) -> Any:
        """The elements of one instance that a rank of a mesh without stages has; a text says why they are not known."""
        parts = [self._bounds(side, item, line, dims, dict.fromkeys(side.found.axes, rank))
                 for line, dims in lines_of(one, two).items()]
        return _product(parts, sympy.S.One)

    def _stays_at_ends(self, one: Item, two: Item) -> Any:
        """The elements of what stands on single stages: summed over those ranks of one mesh that have it in both."""
        count, here = monomial(two.count), [stations(self.old, one), stations(self.new, two)]
        if all(here):
            return count * monomial(two.elements) * sum(
                (once * there * is_equal(a, b)
                 for a, once in here[0] for b, there in here[1]), sympy.S.Zero)
        side, item = (self.new, two) if here[0] else (self.old, one)
        found = sympy.S.Zero
        for rank, once in here[0] or here[1]:
            share = self._share(side, item, one, two, rank)
            if isinstance(share, str):
                return share
            found += once * sympy.Min(1, sympy.Max(0, side.ranks() - rank)) * share
        return count * found


def _cuts(item: Item, line: str, dims: tuple[str, ...]) -> bool:
    """Whether the one axis of a mesh cuts a line of an item."""
    return any(d in dims for d in item.splits.values()) or bool(
        item.cut and (line == ELEMENTS or dims == item.row_dims))


def _over_ranks(cuts: list[tuple[bool, bool, Any]], ends: list[Any], ranks: Any,
                exact: tuple[Any, Any] | None) -> Any:
    """The sum, over the ranks that both meshes have, of the product over lines of what a rank has in both.

    `exact` are the numbers of ranks if all sizes divide.
    """
    whole, summed = sympy.S.One, None
    apart: list[tuple[Any, Any]] = []
    for (old, new, length), (one, two) in zip(cuts, ends, strict=True):
        if old and new:
            summed = length * _steps(*exact) if exact else _staircase(length, one, two)
        elif old or new:
            apart.append((length, one if old else two))
        else:
            whole *= length
    if summed is not None:
        return whole * summed
    if not apart:
        return whole * ranks
    *others, (length, each) = sorted(apart, key=lambda cut: bool(cut[1].has(sympy.ceiling)))
    for _, part in others:
        whole *= part
    return whole * (sympy.Min(ranks * each, length) if each.has(sympy.ceiling) else ranks * each)


def _staircase(length: Any, one: Any, two: Any) -> Any:
    """The places common to the k-th block of `one` places and the k-th block of `two` places on a line, summed over k.

    With a the smaller and b the larger block, the k-th blocks have min(length, (k + 1)a) - kb places in common, as long
    as that is positive: for k below ⌈length/b⌉ and a/(b - a). Only the last of these can meet the end of the line.
    """
    if one == two:
        return length
    small, large = sympy.Min(one, two), sympy.Max(one, two)
    most = sympy.ceiling(length / large)
    count = sympy.ceiling(small / sympy.Max(large - small, small / most))
    return small * count * (count + 1) / 2 - large * count * (count - 1) / 2 - sympy.Max(0, small * count - length)


def _steps(one: Any, two: Any) -> Any:
    """The same sum, as a share of a line that divides into `one` and into `two` blocks."""
    fewer, more = sympy.Min(one, two), sympy.Max(one, two)
    count = sympy.ceiling(fewer / sympy.Max(1, more - fewer))
    return count * ((count + 1) * fewer - (count - 1) * more) / (2 * one * two)


def _block(side: Side, bounds: Bounds, place: Any, ranks: Any) -> Bounds:
    """The part of a line that belongs to one of some ranks."""
    low, high = bounds
    if not side.whole_shares:
        return low + place * (high - low) / ranks, low + (place + 1) * (high - low) / ranks
    each = sympy.ceiling((high - low) / ranks)
    return sympy.Min(low + place * each, high), sympy.Min(low + (place + 1) * each, high)


def _common(one: Bounds, two: Bounds) -> Any:
    """The number of places that two parts of a line have in common."""
    if one == two:
        return one[1] - one[0]
    return sympy.Max(0, sympy.Min(one[1], two[1]) - sympy.Max(one[0], two[0]))


def _product(parts: list[Any], found: Any) -> Any:
    for part in parts:
        if isinstance(part, str):
            return part
        found *= part[1] - part[0]
    return found
