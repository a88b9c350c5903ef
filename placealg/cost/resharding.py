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

from placealg.cost.algebra import tidy
from placealg.cost.amounts import Amounts, monomial
from placealg.cost.formula import Formula, symbol
from placealg.cost.indices import OVER, gathered, index_of, largest, summed
from placealg.cost.notation import text_of
from placealg.cost.resharding_names import Names
from placealg.cost.resharding_parts import Part, common, part, shared
from placealg.cost.resharding_stages import (
    OLD,
    RANK,
    STAGE,
    Run,
    Side,
    first_stages,
    is_equal,
    layers_of,
    own_instances,
    parts_of,
    stations,
)
from placealg.frozen import FrozenMap
from placealg.step.checkpoint import Item, lines_of
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
    every_read = made.formula(read)
    stays, note = made.stay(every)
    on_device = made.formula(stays, note)
    moved = on_device if on_device.expr is None else replace(on_device, expr=every_read.expr - on_device.expr, note="")
    rank_has = made.summed((e, made.rank_has(one, two)) for one, two, e in every)
    return Volumes(stored=made.formula(stored), read=every_read, rank_reads=made.formula(made.most(every)),
                   rank_has=made.formula(rank_has), stays=on_device, moved=moved)


def _copies(new: Side, item: Item) -> Any:
    """The number of ranks that have each element of an item."""
    found = new.ranks()
    for axis in (*item.splits, *item.cut, *item.at):
        found /= new.size(axis)
    if new.found.pipeline:
        axis, parts = new.size(new.found.pipeline.axis), parts_of(new, item)
        found = found / axis * (sympy.Min(2, axis) if parts == (FIRST, LAST) else max(1, len(parts)))
    return found


Pairs = list[tuple[Item, Item, Any]]
"""(old item, new item, the bytes of an element in the files)."""


class _Made:
    """The terms of the formulas; a text in place of an expression says why there is none."""

    def __init__(self, reshard: Reshard, old: Side, new: Side) -> None:
        self.reshard, self.old, self.new = reshard, old, new
        self.rank = symbol(RANK)
        self.both = sympy.Min(old.ranks(), new.ranks())
        self.at = {side.suffix: {a: side.coordinate(a) for a in side.found.axes} for side in (old, new)}
        self._instances: dict[Any, Any] = {}

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

    def formula(self, expr: Any, note: str = "") -> Formula:
        """An expression as a Formula with the values of both sides, in one fraction if nothing is rounded."""
        old, new = self.reshard.old.step.reference, self.reshard.new.step.reference
        values = {**Amounts(new).values, **Amounts(old).values}
        values = {n: v for n, v in values.items() if n not in old.mesh.names}
        values |= {a + OLD: Fraction(n) for a, n in old.mesh.sizes().items()}
        values |= {a: Fraction(n) for a, n in new.mesh.sizes().items()}
        axes = (*(a + OLD for a in old.mesh.names), *new.mesh.names)
        if isinstance(expr, str):
            return Formula.none("bytes", expr)
        expr = gathered(expr) if expr.has(sympy.floor, sympy.ceiling, *OVER.values()) else tidy(sympy.factor(expr))
        return Formula(expr, "bytes", values=FrozenMap(values), axes=axes, note=note)

    def most(self, every: Pairs) -> Any:
        """The most that one rank reads: where all axes but that of a pipeline have 0, whose shares are the largest.

        Of layers of one unit that are spread evenly over stages of one chunk no stage has more than the last one that
        has layers; besides it those have most that have what stands on single stages.
        """
        side, pipeline = self.new, self.new.found.pipeline
        if any(rank for _, two, _ in every for rank in two.at.values()):
            has = self.summed((e, self.read_by(two, self.at[""])) for _, two, e in every)
            return has if isinstance(has, str) else largest(has, self.rank, side.ranks())
        first = dict.fromkeys(side.found.axes, sympy.S.Zero)
        if pipeline is None:
            return self.summed((e, self.read_by(two, first)) for _, two, e in every)

        def of(stage: Any) -> Any:
            return gathered(self.summed((e, self.read_by(two, {**first, pipeline.axis: stage})) for _, two, e in every))

        stages = side.size(pipeline.axis)
        if stages.is_Integer:
            return sympy.Max(*(of(sympy.Integer(k)) for k in range(int(stages))))
        if pipeline.chunks == 1 and not pipeline.folded and len(layers_of(side.found)) == 1:
            behind = len([part for part in pipeline.alone if part != FIRST])
            last = [of(sympy.Max(0, stages - 1 - k)) for k in range(behind + 1)]
            return sympy.Max(of(sympy.S.Zero), *last)
        return largest(of(index_of(STAGE)), index_of(STAGE), stages)

    def read_by(self, item: Item, at: Mapping[str, Any]) -> Any:
        """The elements of an item that the rank at these coordinates of the new mesh reads."""
        found = sympy.prod([is_equal(at[a], rank) for a, rank in item.at.items()])
        found *= sum((_in_turns(run, run.times * run.length)
                      for run in own_instances(self.new, item, at)), sympy.S.Zero)
        for line, dims in lines_of(item).items():
            found *= part(self.new, item, line, dims, at).size
        return found

    def rank_has(self, one: Item, two: Item) -> Any:
        """The elements that rank number `rank` reads and its device already had."""
        sides = ((self.old, one), (self.new, two))
        found = sympy.prod([is_equal(self.at[side.suffix][a], rank)
                            for side, item in sides for a, rank in item.at.items()]) * self.instances(one, two)
        for parts in self.parts(one, two):
            elements = shared(*parts)
            if isinstance(elements, str):
                return elements
            found *= elements
        return found

    def parts(self, one: Item, two: Item) -> list[tuple[Part, Part]]:
        """Of every line, what rank number `rank` has of it in both meshes."""
        return [(part(self.old, one, line, dims, self.at[OLD]), part(self.new, two, line, dims, self.at[""]))
                for line, dims in lines_of(one, two).items()]

    def instances(self, item: Item, other: Item) -> Any:
        """The number of instances of an item's unit that the rank's device had and still has."""
        key = item.units, other.units, item.count
        if key not in self._instances:
            self._instances[key] = sum((
                _in_turns(two, _in_turns(one, _both(one, two)))
                for one in own_instances(self.old, item, self.at[OLD])
                for two in own_instances(self.new, other, self.at[""])), sympy.S.Zero)
        return self._instances[key]

    def stay(self, every: Pairs) -> tuple[Any, str]:
        """What all ranks read and their devices already had, and a note on it.

        What has a closed form of its own is told so; of the rest rank after rank is summed up.
        """
        found, each, even = sympy.S.Zero, sympy.S.Zero, sympy.S.Zero
        for one, two, size in every:
            has = self.rank_has(one, two)
            if isinstance(has, str):
                return has, ""
            closed = self.stays(one, two, has)
            found += size * closed if closed is not None else 0
            each += size * has if closed is None else 0
            if closed is None and even is not None:
                where = self._stays_where_layers_divide(one, two)
                even = None if where is None else even + size * where
        if each == 0 or even is None:
            return found + summed(each, self.rank, self.both), ""
        layers = " and ".join(text_of(monomial(loop.count)) for loop in layers_of(self.new.found))
        stages = " and by ".join(text_of(side.ranks()) for side in (self.old, self.new))
        names = Names()
        told = names.shortened(Formula(gathered(even), "bytes"))
        return (found + summed(each, self.rank, self.both),
                f"where {layers} divides by {stages}, the sum over ranks is {told}, with {', '.join(names.told())}")

    def stays(self, one: Item, two: Item, has: Any) -> Any:
        """The elements that all ranks read and their devices already had; None where no closed form is known.

        `has` is what rank number `rank` has of them.
        """
        if not has.has(self.rank):
            return has * self.both
        for side, item in ((self.old, one), (self.new, two)):
            if item.at and set(item.at) == set(side.found.axes):
                return self._of_one_rank(side, item, has)
        if one.at or two.at:
            return None
        if self.old.found.pipeline or self.new.found.pipeline:
            single = len(self.old.found.axes) == len(self.new.found.axes) == 1
            return self._stays_of_stages(one, two) if single else None
        parts = self.parts(one, two)
        cut = [[not p.whole for p in pair] for pair in parts]
        for pair in parts:
            for side, each in zip((self.old, self.new), pair, strict=True):
                if not each.whole and (each.place != self.rank or each.ranks != side.ranks()):
                    return None
        exact = None if self.old.whole_shares or self.new.whole_shares else (self.old.ranks(), self.new.ranks())
        ends = [[p.size.xreplace({self.rank: sympy.S.Zero}) for p in pair] for pair in parts]
        cuts = [(old, new, pair[0].length) for (old, new), pair in zip(cut, parts, strict=True)]
        over = _over_ranks(cuts, ends, self.both, exact)
        return None if over is None else monomial(one.count) * over

    def _of_one_rank(self, side: Side, item: Item, has: Any) -> Any:
        """What the only rank has that stored an item, or loads it."""
        number = sympy.S.Zero
        for axis in side.found.axes:
            number = number * side.size(axis) + item.at[axis]
        return has.xreplace({self.rank: number}) * sympy.Min(1, sympy.Max(0, self.both - number))

    def _stays_where_layers_divide(self, one: Item, two: Item) -> Any:
        """What stays of layers from stages to stages of one chunk each, if every stage has equally many; else None."""
        for side in (self.old, self.new):
            pipeline = side.found.pipeline
            if pipeline is None or len(side.found.axes) > 1 or len(layers_of(side.found)) > 1 or (
                    pipeline.chunks != 1 or pipeline.stages or pipeline.alone):
                return None
        return monomial(one.count * one.elements) * _steps(self.old.ranks(), self.new.ranks())

    def _stays_of_stages(self, one: Item, two: Item) -> Any:
        """The same where one mesh, or both, is a pipeline: what stages have, rank by rank, in closed form."""
        if stations(self.old, one) or stations(self.new, two):
            return self._stays_at_ends(one, two)
        if self.old.found.pipeline and self.new.found.pipeline:
            return None
        staged, other, there = (self.old, self.new, two) if self.old.found.pipeline else (self.new, self.old, one)
        if other.whole_shares and (there.cut or there.splits):
            return None
        layers = first_stages(staged, one if staged is self.old else two, self.both)
        return layers * self._share(other, there, one, two, sympy.S.Zero)

    def _share(self, side: Side, item: Item, one: Item, two: Item, rank: Any) -> Any:
        """The elements of one instance that a rank of a mesh without stages has."""
        at = dict.fromkeys(side.found.axes, rank)
        return sympy.prod([part(side, item, line, dims, at).size for line, dims in lines_of(one, two).items()])

    def _stays_at_ends(self, one: Item, two: Item) -> Any:
        """The elements of what stands on single stages: summed over those ranks of one mesh that have it in both."""
        count, here = monomial(two.count), [stations(self.old, one), stations(self.new, two)]
        if all(here):
            return count * monomial(two.elements) * sum(
                (once * there * is_equal(a, b)
                 for a, once in here[0] for b, there in here[1]), sympy.S.Zero)
        side, item = (self.new, two) if here[0] else (self.old, one)
        return count * sum((once * sympy.Min(1, sympy.Max(0, side.ranks() - rank))
                            * self._share(side, item, one, two, rank) for rank, once in here[0] or here[1]),
                           sympy.S.Zero)


def _both(one: Run, two: Run) -> Any:
    """The instances that two runs have in common, in each turn."""
    times = one.times if one.times == two.times else one.times * two.times
    if one.whole or two.whole:
        return times * (two.length if one.whole else one.length)
    return times * common(one.bounds, two.bounds)


def _in_turns(run: Run, instances: Any) -> Any:
    """What a rank has in all turns of a run."""
    return instances if run.turn is None else summed(instances, run.turn, run.turns)


def _over_ranks(cuts: list[tuple[bool, bool, Any]], ends: list[Any], ranks: Any,
                exact: tuple[Any, Any] | None) -> Any:
    """The sum, over the ranks that both meshes have, of the product over lines of what a rank has in both.

    `exact` are the numbers of ranks if all sizes divide. None if shares of two lines are rounded.
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
    if any(share.has(sympy.ceiling) for _, share in others):
        return None
    for _, share in others:
        whole *= share
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
