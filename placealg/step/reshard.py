"""A checkpoint read onto another mesh: which rank of the new mesh reads what from whose file, at given sizes.

Rank k of the new mesh is taken to run on the device of rank k of the old one, if there is one. If several ranks stored
the same block, a rank reads its own device's, or else that of the lowest rank.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod

from placealg.arith import parse
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.difference import first_difference
from placealg.models.model import Model
from placealg.models.stage_parts import original
from placealg.step.checkpoint import (
    Checkpoint,
    Item,
    Sizes,
    Spans,
    coordinates,
    held,
    instances,
    lines_of,
    meet,
    size,
    stored,
)
from placealg.step.program import Group

INSTANCES = "instance"
"""The line of the instances of a unit."""

Box = FrozenMap[str, Spans]
"""Line -> spans: the part of an item that a rank has, as a product over lines."""


@dataclass(frozen=True, slots=True)
class Read:
    """One read: the `elements` of an item at `box`, by rank `reader` from the file of rank `source`."""

    item: Item
    reader: int
    source: int
    box: Box
    elements: int


@dataclass(frozen=True)
class Reshard:
    """An old checkpoint `old`, and the checkpoint `new` that the new run would store, which is what it reads."""

    old: Checkpoint
    new: Checkpoint

    @cached_property
    def pairs(self) -> tuple[tuple[Item, Item], ...]:
        """(old item, new item) for everything that the new run reads."""
        found = {i.key: i for i in self.old.items}
        return tuple((found[i.key], i) for i in self.new.items)

    def reads(self, old: Sizes, new: Sizes, readers: tuple[int, ...] | None = None) -> Iterator[Read]:
        """The reads by `readers` (by default all ranks of the new mesh)."""
        ranks = list(coordinates(self.new.axes, new))
        for one, two in self.pairs:
            lines = lines_of(one, two)
            files = _files(self.old, one, old, lines)
            for reader in range(len(ranks)) if readers is None else readers:
                need = _box(self.new, two, ranks[reader], new, lines)
                if not stored(two, ranks[reader]):
                    continue
                for box, holders in files.items():
                    common = FrozenMap({line: meet(spans, need[line]) for line, spans in box.items()})
                    if elements := prod(map(size, common.values())):
                        yield Read(two, reader, reader if reader in holders else holders[0], common, elements)


def _box(found: Checkpoint, item: Item, at: Mapping[str, int], sizes: Sizes,
         lines: Mapping[str, tuple[str, ...]]) -> Box:
    return FrozenMap({INSTANCES: instances(found, item, at, sizes), **held(item, at, sizes, lines)})


def _files(found: Checkpoint, item: Item, sizes: Sizes, lines: Mapping[str, tuple[str, ...]]) -> dict[Box, list[int]]:
    """Each distinct part of an item that was stored -> the ranks that stored exactly this part, in order."""
    files: dict[Box, list[int]] = {}
    for rank, at in enumerate(coordinates(found.axes, sizes)):
        if stored(item, at):
            box = _box(found, item, at, sizes, lines)
            if all(map(size, box.values())):
                files.setdefault(box, []).append(rank)
    return files


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes of all ranks of the new mesh, and the number of reads.

    `stored` counts every element that is read once, `read` counts it as often as a rank reads it; `stays` is the part
    of `read` that was on the reader's own device, `largest` the most that one rank reads.
    """

    stored: Fraction
    read: Fraction
    stays: Fraction
    largest: Fraction
    reads: int

    @property
    def moved(self) -> Fraction:
        """The least that must move between devices: what a rank reads and its device does not have."""
        return self.read - self.stays


def width(checkpoint: Checkpoint, item: Item) -> Fraction:
    """The bytes of one element in the files, with the types of the strategy."""
    reference = checkpoint.step.reference
    types = reference.types.plus(reference.group(item.group).types)
    return parse(item.bytes).evaluate({n: parse(t).evaluate({}) for n, t in types.items()})


def totals(reshard: Reshard, old: Sizes, new: Sizes) -> Totals:
    """The sums over all reads.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.checkpoint import checkpoint
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.expression import parse_strategy
    >>> zero3 = parse_strategy("zero3")
    >>> found = checkpoint(derive(zero3, abstract()), zero3, abstract())
    >>> model = FrozenMap({"Psi": Fraction(12)})
    >>> two, three = (Sizes(FrozenMap({"dp": n}), model) for n in (2, 3))
    >>> counted = totals(Reshard(found, found), two, three)
    >>> counted.read, counted.stays, counted.reads
    (Fraction(120, 1), Fraction(60, 1), 8)
    """
    ranks = (list(coordinates(reshard.old.axes, old)), list(coordinates(reshard.new.axes, new)))
    by_rank = [Fraction(0)] * len(ranks[1])
    every, stay, reads = Fraction(0), Fraction(0), 0
    for one, two in reshard.pairs:
        lines, element = lines_of(one, two), width(reshard.old, one)
        had = [_box(reshard.old, one, at, old, lines) if stored(one, at) else None for at in ranks[0]]
        need = [_box(reshard.new, two, at, new, lines) if stored(two, at) else None for at in ranks[1]]
        for rank, box in enumerate(need):
            by_rank[rank] += element * _elements(box) if box else 0
        stay += element * sum(_elements(_common(a, b)) for a, b in zip(had, need, strict=False) if a and b)
        every += element * old.length(one.count) * old.length(one.elements)
        reads += _meetings([b for b in had if b], [b for b in need if b])
    return Totals(every, sum(by_rank, Fraction(0)), stay, max(by_rank), reads)


def _elements(box: Box) -> int:
    return prod(map(size, box.values()))


def _common(one: Box, two: Box) -> Box:
    return FrozenMap({line: meet(spans, two[line]) for line, spans in one.items()})


def _meetings(had: list[Box], need: list[Box]) -> int:
    """The number of pairs of a rank's need and a distinct stored block that have elements in common."""
    files, wanted = dict.fromkeys(b for b in had if _elements(b)), [b for b in need if _elements(b)]
    distinct = dict.fromkeys(wanted)
    if not files or not distinct:
        return 0
    spans = [(list(dict.fromkeys(b[line] for b in files)), list(dict.fromkeys(b[line] for b in distinct)))
             for line in wanted[0]]
    if len(files) == prod(len(a) for a, _ in spans) and len(distinct) == prod(len(b) for _, b in spans):
        copies = len(wanted) // len(distinct)
        if len(wanted) == copies * len(distinct):
            return copies * prod(_pairs(a, b) for a, b in spans)
    return sum(1 for box in wanted for file in files if _elements(_common(file, box)))


def _pairs(one: list[Spans], two: list[Spans]) -> int:
    """The number of pairs of spans, one of each list, that intersect."""
    if len(one) * len(two) < 4096 or any(len(s) > 1 for s in (*one, *two)):
        return sum(1 for a in one for b in two if meet(a, b))
    starts, ends = sorted(s[0][0] for s in one), sorted(s[0][1] for s in one)
    return sum(bisect_left(starts, high) - bisect_right(ends, low) for ((low, high),) in two)


def check_alike(reshard: Reshard, models: tuple[Model, Model], taught: tuple[Model, Model] | None = None) -> None:
    """Raise InputError if the two runs do not train alike, or the old checkpoint lacks what the new one loads.

    `models` are those of both runs, `taught` the same with what each strategy adds to what is computed.
    """
    old, new = reshard.old.step.reference, reshard.new.step.reference
    if not reshard.new.step.phase("resume"):
        raise InputError(f"{new.strategy} resumes from no checkpoint: its program loads nothing, as with [checkpoint] "
                         "holds = \"parameters\"")
    if differs := first_difference(*models):
        raise InputError(f"{old.strategy} trains {old.model}, {new.strategy} {new.model}: a checkpoint holds the "
                         f"states of one model; {differs}")
    for what, told in (("weighs tokens by", "weighting"), ("clips", "clip"), ("skips steps", "skip")):
        if getattr(old, told) != getattr(new, told):
            raise InputError(f"{old.strategy} {what} {getattr(old, told)}, {new.strategy} {getattr(new, told)}: they "
                             "are not held against one reference")
    of = {original(p): (g.optimizer, g.locality, g.frozen, g.statistic) for g in old.groups for p in g.parameters}
    for group in new.groups:
        for parameter in map(original, group.parameters):
            if parameter not in of:
                raise InputError(f"the checkpoint of {old.strategy} has no parameter '{parameter}'", name=parameter,
                                 valid=of)
    for item in reshard.new.items:
        if reshard.old.item(*item.key) is None:
            raise InputError(f"the checkpoint of {old.strategy} has no {item.value} of {item.parameter}, which "
                             f"{new.strategy} loads")
    for name in reshard.new.scalars:
        if name not in reshard.old.scalars:
            raise InputError(f"the checkpoint of {old.strategy} has no {name}, which {new.strategy} loads")
    for group in new.groups:
        for parameter in map(original, group.parameters):
            mine = (group.optimizer, group.locality, group.frozen, group.statistic)
            if of[parameter] != mine:
                raise InputError(f"{parameter} is updated by {of[parameter][0]} in {old.strategy}, by {mine[0]} in "
                                 f"{new.strategy}: they are not held against one reference")
            if group.statistic and (kept := _kept(reshard, group)):
                raise InputError(f"the state that moves {parameter} takes {kept[0]} bytes in the checkpoint of "
                                 f"{old.strategy}, {kept[1]} in {new.strategy}: they are not held against one "
                                 "reference")
    if taught and (differs := first_difference(*taught)):
        raise InputError(f"{old.strategy} and {new.strategy} are not held against one reference: {differs}")


def _kept(reshard: Reshard, group: Group) -> tuple[str, str] | None:
    """The bytes that both runs keep for a state that no gradient moves, of its history say; None if as many."""
    old = reshard.old.step.reference
    there = next(g for g in old.groups if {*map(original, g.parameters)} & {*map(original, group.parameters)})
    one, two = (r.types.plus(g.types)["o"] for r, g in ((old, there), (reshard.new.step.reference, group)))
    return (one, two) if one != two else None
