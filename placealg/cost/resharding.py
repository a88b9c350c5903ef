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
from placealg.cost.amounts import Amounts
from placealg.cost.bindings import Bindings
from placealg.cost.expressions import EXPRESSIONS, monomial, symbol
from placealg.cost.formula import Formula
from placealg.cost.indices import OVER, Of, gathered, index_of, largest, summed
from placealg.cost.irreducible import factored
from placealg.cost.notation import text_of
from placealg.cost.resharding_names import Names
from placealg.cost.resharding_parts import Part, common, part, shared, staircase, steps, stretch
from placealg.cost.resharding_rows import LENGTH, Bundle, amount_of, bundles, shared_of_rows, whole_row
from placealg.cost.resharding_stages import (
    OLD,
    RANK,
    STAGE,
    TURN,
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
from placealg.mesh import SYMBOLS
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
    every = bundles((one, two, made.element(one)) for one, two in reshard.pairs)
    stored = sum((b.size * made.elements(one) for b in every for one, _ in b.pairs), sympy.S.Zero)
    read = sum((b.size * made.elements(one) * _copies(new, two) for b in every for one, two in b.pairs), sympy.S.Zero)
    every_read = made.formula(read)
    stays, note = made.stay(every)
    on_device = made.formula(stays, note)
    moved = on_device if on_device.expr is None else replace(on_device, expr=every_read.expr - on_device.expr, note="")
    rank_has = made.known.around(sum((b.size * made.rank_has(b) for b in every), sympy.S.Zero))
    return Volumes(stored=made.formula(stored), read=every_read, rank_reads=made.formula(made.most(every)),
                   rank_has=made.formula(rank_has), stays=on_device, moved=moved)


def _copies(new: Side, item: Item) -> Any:
    """The number of ranks that have each element of an item."""
    found = new.ranks()
    for axis in (*item.splits, *item.cut, *item.at):
        found /= new.size(axis)
    if new.found.pipeline.axis:
        axis, parts = new.size(new.found.pipeline.axis), parts_of(new, item)
        found = found / axis * (sympy.Min(2, axis) if parts == (FIRST, LAST) else max(1, len(parts)))
    return found


Bundles = list[Bundle]
"""What is counted together, with the bytes of an element in the files."""


class _Made:
    """The terms of the formulas. `known` names the places of rank number `rank` in both meshes, and what they share."""

    def __init__(self, reshard: Reshard, old: Side, new: Side) -> None:
        self.reshard, self.old, self.new = reshard, old, new
        self.rank = symbol(RANK)
        self.both = sympy.Min(old.ranks(), new.ranks())
        self.known = Bindings((*SYMBOLS, "v" + OLD, RANK, STAGE, TURN, TURN + OLD, *old.found.axes, *new.found.axes,
                               *(a + OLD for a in old.found.axes)))
        self.sides = old, new
        self.at = self._at(old), self._at(new)
        self._instances: dict[Any, Any] = {}

    def _at(self, side: Side) -> Mapping[str, Any]:
        """The coordinates of rank number `rank` by name."""
        return {a: self.known.named(f"k_{a}{side.suffix}", side.coordinate(a)) for a in side.found.axes}

    def element(self, item: Item) -> Any:
        """The bytes of an element in the files."""
        amounts = Amounts(self.reshard.old.step.reference)
        return sympy.expand(amounts.size(amounts.reference.group(item.group), item.bytes, EXPRESSIONS))

    def elements(self, item: Item) -> Any:
        """The elements of all instances of an item."""
        return monomial(item.count * item.elements)

    def formula(self, expr: Any, note: str = "") -> Formula:
        """An expression as a Formula with the values of both sides, in one fraction if nothing is rounded."""
        old, new = self.reshard.old.step.reference, self.reshard.new.step.reference
        values = {**self.reshard.new.sizes, **self.reshard.old.sizes, **Amounts(new).values, **Amounts(old).values}
        values = {n: v for n, v in values.items() if n not in old.mesh.names}
        values |= {a + OLD: Fraction(n) for a, n in old.mesh.sizes().items()}
        values |= {a: Fraction(n) for a, n in new.mesh.sizes().items()}
        axes = (*(a + OLD for a in old.mesh.names), *new.mesh.names)
        rounded = expr.has(sympy.floor, sympy.ceiling, *OVER.values())
        expr = gathered(expr) if rounded else self._by_kind(tidy(factored(expr)))
        return Formula(expr, "bytes", values=FrozenMap(values), axes=axes, note=note)

    def _by_kind(self, expr: Any) -> Any:
        """The expression, sums of which are gathered by the layers of each kind where there are several kinds."""
        counts = {monomial(count) for count in layers_of(self.new.found).values()}
        return expr if len(counts) < 2 else expr.replace(
            lambda part: part.is_Add and len(counts & part.free_symbols) > 1,
            lambda part: sympy.collect(part, counts, sympy.gcd_terms))

    def most(self, every: Bundles) -> Any:
        """The most that one rank reads: where all axes but that of a pipeline have 0, whose shares are the largest.

        Of layers of one unit that are spread evenly over stages of one chunk no stage has more than the last one that
        has layers; besides it those have most that have what stands on single stages.
        """
        side, pipeline = self.new, self.new.found.pipeline
        rows = {(b.size, item.value, item.group if item.flat else item.parameter): (b.size, item)
                for b in every for _, item in b.pairs}

        def read_at(at: Mapping[str, Any]) -> Any:
            return self.known.gathered(sympy.Add(*(size * self.read_by(item, at) for size, item in rows.values())))

        if any(rank for _, item in rows.values() for rank in item.at.values()):
            return largest(self.known.around(read_at(self.at[1])), self.rank, side.ranks())
        first = dict.fromkeys(side.found.axes, sympy.S.Zero)
        if not pipeline.axis:
            return self.known.around(read_at(first))

        def of(stage: Any) -> Any:
            return read_at({**first, pipeline.axis: stage})

        stages = side.size(pipeline.axis)
        if stages.is_Integer:
            return self.known.around(sympy.Max(*(of(sympy.Integer(k)) for k in range(int(stages)))))
        if pipeline.chunks == 1 and not pipeline.folded and len(layers_of(side.found)) == 1:
            behind = len([part for part in pipeline.alone if part != FIRST])
            last = [of(sympy.Max(0, stages - 1 - k)) for k in range(behind + 1)]
            return self.known.around(sympy.Max(of(sympy.S.Zero), *last))
        return self.known.around(largest(of(index_of(STAGE)), index_of(STAGE), stages))

    def read_by(self, item: Item, at: Mapping[str, Any]) -> Any:
        """The elements of an item, or of its whole row, that the rank at these coordinates of the new mesh reads."""
        found = sympy.prod([is_equal(at[a], rank) for a, rank in item.at.items()])
        key = item.units, item.count, at.get(self.new.found.pipeline.axis)
        if key not in self._instances:
            self._instances[key] = sum((_in_turns(run, run.times * run.length)
                                        for run in own_instances(self.new, item, at)), sympy.S.Zero)
        found *= self._instances[key]
        if item.flat:
            return found * amount_of(self.new, item, at, self.known)
        for line, dims in lines_of(item).items():
            found *= part(self.new, item, line, dims, at).size
        return found

    def rank_has(self, bundle: Bundle) -> Any:
        """The elements that rank number `rank` reads and its device already had."""
        one, two = bundle.old, bundle.new
        found = sympy.prod([is_equal(self.at[k][a], rank) for k, item in enumerate((one, two))
                            for a, rank in item.at.items()]) * self.instances(one, two)
        if bundle.flat:
            return found * self._named(shared_of_rows(self.sides, bundle.pairs, self.at, self.known))
        padded = self.old.whole_shares or self.new.whole_shares
        for line, dims in lines_of(one, two).items():
            both = None if padded else shared(part(self.old, one, line, dims, self.at[0]),
                                              part(self.new, two, line, dims, self.at[1]))
            found *= self._named(shared_of_rows(self.sides, bundle.pairs, self.at, self.known, dims)
                                 if both is None else both)
        return found

    def _named(self, elements: Any) -> Any:
        """A name for what rank number `rank` has, or the value of a function that says it."""
        if isinstance(elements, Of):
            return elements
        sizes, amount = elements.as_independent(*elements.atoms(sympy.Max, sympy.Min, Of), as_Add=False)
        return sizes * self.known.named("common", amount)

    def parts(self, bundle: Bundle, place: Any = None) -> list[tuple[Part, Part]]:
        """Of every line, what rank number `rank` has of it in both meshes; of a row that both have, of the row.

        With `place` it is the rank that has this coordinate along all axes.
        """
        at = tuple({a: side.coordinate(a) if place is None else place for a in side.found.axes} for side in self.sides)
        if bundle.flat:
            return [(self._row(0, bundle, at[0]), self._row(1, bundle, at[1]))] if whole_row(bundle) else []
        return [(part(self.old, bundle.old, line, dims, at[0]), part(self.new, bundle.new, line, dims, at[1]))
                for line, dims in lines_of(bundle.old, bundle.new).items()]

    def _row(self, which: int, bundle: Bundle, at: Mapping[str, Any]) -> Part:
        """What a rank has of the row of one mesh, or of all that another one has in a row."""
        side, item = self.sides[which], (bundle.old, bundle.new)[which]
        return stretch(side, item, bundle.elements, at) if item.cut else Part(bundle.elements, bundle.elements, None)

    def instances(self, item: Item, other: Item) -> Any:
        """The number of instances of an item's unit that the rank's device had and still has."""
        key = item.units, other.units, item.count
        if key not in self._instances:
            self._instances[key] = sum((
                _in_turns(two, _in_turns(one, _both(one, two)))
                for one in own_instances(self.old, item, self.at[0])
                for two in own_instances(self.new, other, self.at[1])), sympy.S.Zero)
        return self._instances[key]

    def stay(self, every: Bundles) -> tuple[Any, str]:
        """What all ranks read and their devices already had, and a note on it.

        What has a closed form of its own is told so; of the rest rank after rank is summed up.
        """
        found, each, even = sympy.S.Zero, sympy.S.Zero, sympy.S.Zero
        for bundle in every:
            has, size = self.rank_has(bundle), bundle.size
            closed = self.stays(bundle, has)
            found += size * closed if closed is not None else 0
            each += size * has if closed is None else 0
            if closed is None and even is not None:
                where = self._stays_where_layers_divide(bundle)
                even = None if where is None else even + size * where
        of_ranks = summed(self.known.around(each), self.rank, self.both)
        if each == 0 or even is None:
            return self.known.around(found + of_ranks), ""
        layers = " and ".join(text_of(monomial(number)) for number in layers_of(self.new.found).values())
        stages = " and by ".join(text_of(side.ranks()) for side in (self.old, self.new))
        names = Names()
        told = names.shortened(Formula(gathered(even), "bytes"))
        return (self.known.around(found + of_ranks),
                f"where {layers} divides by {stages}, the sum over ranks is {told}, with {', '.join(names.told())}")

    def stays(self, bundle: Bundle, has: Any) -> Any:
        """The elements that all ranks read and their devices already had; None where no closed form is known.

        `has` is what rank number `rank` has of them.
        """
        one, two = bundle.old, bundle.new
        if not self.known.speaks_of(has, self.rank):
            return has * self.both
        for side, item in ((self.old, one), (self.new, two)):
            if item.at and set(item.at) == set(side.found.axes):
                return self._of_one_rank(side, item, has)
        if one.at or two.at:
            return None
        if self.old.found.pipeline.axis or self.new.found.pipeline.axis:
            single = len(self.old.found.axes) == len(self.new.found.axes) == 1
            return self._stays_of_stages(bundle) if single else None
        parts = self.parts(bundle)
        if not parts:
            return None
        first = self.parts(bundle, sympy.S.Zero)
        cut = [[not p.whole for p in pair] for pair in parts]
        for pair in parts:
            for side, each in zip((self.old, self.new), pair, strict=True):
                if not each.whole and (each.place != self.rank or each.ranks != side.ranks()):
                    return None
        exact = None if self.old.whole_shares or self.new.whole_shares else (self.old.ranks(), self.new.ranks())
        ends = [[p.size for p in pair] for pair in first]
        cuts = [(old, new, pair[0].length) for (old, new), pair in zip(cut, parts, strict=True)]
        over = self._over_ranks(cuts, ends, exact)
        return None if over is None else monomial(one.count) * over

    def _over_ranks(self, cuts: list[tuple[bool, bool, Any]], ends: list[Any], exact: tuple[Any, Any] | None) -> Any:
        """The sum, over the ranks that both meshes have, of the product over lines of what a rank has in both.

        `exact` are the numbers of ranks if all sizes divide. None if shares of two lines are rounded.
        """
        whole, over = sympy.S.One, None
        apart: list[tuple[Any, Any]] = []
        for (old, new, length), (one, two) in zip(cuts, ends, strict=True):
            if old and new:
                over = length * steps(*exact) if exact else self._stairs(length)
            elif old or new:
                apart.append((length, one if old else two))
            else:
                whole *= length
        if over is not None:
            return whole * over
        if not apart:
            return whole * self.both
        *others, (length, each) = sorted(apart, key=lambda cut: bool(cut[1].has(sympy.ceiling)))
        if any(share.has(sympy.ceiling) for _, share in others):
            return None
        for _, share in others:
            whole *= share
        return whole * (sympy.Min(self.both * each, length) if each.has(sympy.ceiling) else self.both * each)

    def _stairs(self, length: Any) -> Any:
        """What stays of a line that all ranks of both meshes share, as the value of a function of its length."""
        each = [sympy.ceiling(LENGTH / side.ranks()) if side.whole_shares else LENGTH / side.ranks()
                for side in self.sides]
        return Of(self.known.function("stay", LENGTH, staircase(LENGTH, each[0], each[1], self.known)), length)

    def _of_one_rank(self, side: Side, item: Item, has: Any) -> Any:
        """What the only rank has that stored an item, or loads it."""
        number = sympy.S.Zero
        for axis in side.found.axes:
            number = number * side.size(axis) + item.at[axis]
        return self.known.around(has).xreplace({self.rank: number}) * sympy.Min(1, sympy.Max(0, self.both - number))

    def _stays_where_layers_divide(self, bundle: Bundle) -> Any:
        """What stays of layers from stages to stages of one chunk each, if every stage has equally many; else None."""
        for side in (self.old, self.new):
            pipeline = side.found.pipeline
            if not pipeline.axis or len(side.found.axes) > 1 or len(layers_of(side.found)) > 1 or (
                    pipeline.chunks != 1 or pipeline.stages or pipeline.alone):
                return None
        return monomial(bundle.old.count) * bundle.elements * steps(self.old.ranks(), self.new.ranks())

    def _stays_of_stages(self, bundle: Bundle) -> Any:
        """The same where one mesh, or both, is a pipeline: what stages have, rank by rank, in closed form."""
        one, two = bundle.old, bundle.new
        if stations(self.old, one) or stations(self.new, two):
            return self._stays_at_ends(bundle)
        if self.old.found.pipeline.axis and self.new.found.pipeline.axis:
            return None
        staged, other, there = (self.old, self.new, two) if self.old.found.pipeline.axis else (self.new, self.old, one)
        if other.whole_shares and (there.cut or there.splits):
            return None
        layers = first_stages(staged, one if staged is self.old else two, self.both)
        return layers * self._share(bundle, int(other is self.new), sympy.S.Zero)

    def _share(self, bundle: Bundle, which: int, rank: Any) -> Any:
        """The elements of one instance that a rank of a mesh without stages has, of what another one has whole."""
        at = dict.fromkeys(self.sides[which].found.axes, rank)
        if bundle.flat:
            return self.known.around(shared_of_rows(self.sides, bundle.pairs, (at, at), self.known))
        return sympy.prod([part(self.sides[which], bundle.pairs[0][which], line, dims, at).size
                           for line, dims in lines_of(bundle.old, bundle.new).items()])

    def _stays_at_ends(self, bundle: Bundle) -> Any:
        """The elements of what stands on single stages: summed over those ranks of one mesh that have it in both."""
        one, two = bundle.old, bundle.new
        count, here = monomial(two.count), [stations(self.old, one), stations(self.new, two)]
        if all(here):
            # A last stage that is not the first one, as `once` then says, equals no first one.
            apart = [(once * there, a, b) for a, once in here[0] for b, there in here[1]
                     if not ((a == 0 and there != 1) or (b == 0 and once != 1))]
            return count * bundle.elements * sum((times * is_equal(a, b) for times, a, b in apart), sympy.S.Zero)
        which = int(bool(here[0]))
        side = self.sides[which]
        return count * sum((once * sympy.Min(1, sympy.Max(0, side.ranks() - rank))
                            * self._share(bundle, which, rank) for rank, once in here[0] or here[1]),
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
