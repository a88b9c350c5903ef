"""Boxes of elements that are sums of contributions, each with how often it is counted.

The contributions are the terms of contractions, the operands of additions, the ways back from the loss. What no linear
op has made is one number, right or garbage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as tuples
from typing import Any

from worlds import GARBAGE

from placealg.frozen import FrozenMap

Contribution = frozenset[tuple[str, int]]
"""Which index of each contracted dim it is of, by "OP/DIM", and of each addition which operand, by "+OP".

An op of a repeated unit is called "OP#INSTANCE".
"""

Number = Any
"""Contribution -> how often it is counted; or garbage."""

Extent = dict[str, tuple[int, ...]]
RIGHT: Mapping[Contribution, Fraction | int] = FrozenMap({frozenset(): 1})
"""A number that is what it should be."""

MOST = 400
"""Of more contributions to one element there is no table."""


class TooMany(Exception):
    """An element has too many contributions to follow each."""


@dataclass(frozen=True)
class Box:
    """A number at every combination of indices."""

    extent: Extent
    numbers: dict[tuple[int, ...], Number]

    @staticmethod
    def made(extent: Extent, number: Callable[[Mapping[str, int]], Number]) -> Box:
        return Box(extent, {tuple(p.values()): number(p) for p in points(extent)})

    def at(self, point: Mapping[str, int]) -> Number:
        return self.numbers[tuple(point[d] for d in self.extent)]

    def holds(self, point: Mapping[str, int]) -> bool:
        return all(point[d] in held for d, held in self.extent.items())

    def renamed(self, names: Mapping[str, str]) -> Box:
        """The same under other names of dims."""
        return Box({names.get(d, d): held for d, held in self.extent.items()}, self.numbers)

    def cut(self, wanted: Extent) -> Box:
        """The part at the indices that are also in `wanted`."""
        extent = {d: tuple(i for i in held if i in wanted.get(d, held)) for d, held in self.extent.items()}
        return Box.made(extent, self.at)

    def each(self, change: Callable[[Number], Number]) -> Box:
        return Box(self.extent, {point: change(number) for point, number in self.numbers.items()})

    @property
    def garbage(self) -> Box:
        return self.each(lambda _: GARBAGE)


def points(extent: Extent) -> Iterator[dict[str, int]]:
    for indices in tuples(*extent.values()):
        yield dict(zip(extent, indices, strict=True))


def common(boxes: Iterable[Box]) -> Extent:
    """The indices that all boxes hold that have the dim."""
    shared: Extent = {}
    for box in boxes:
        for dim, held in box.extent.items():
            shared[dim] = tuple(i for i in shared.get(dim, held) if i in held)
    return shared


def union(boxes: Iterable[Box]) -> Extent:
    extent: Extent = {}
    for box in boxes:
        for dim, held in box.extent.items():
            extent[dim] = tuple(sorted({*extent.get(dim, ()), *held}))
    return extent


def times(numbers: Sequence[Number]) -> Number:
    if GARBAGE in numbers:
        return GARBAGE
    result = dict(RIGHT)
    for number in numbers:
        if number != RIGHT:
            if len(result) * len(number) > MOST:
                raise TooMany
            result = {a | b: x * y for a, x in result.items() for b, y in number.items()}
    return result


def plus(numbers: Iterable[Number]) -> Number:
    result: dict[Contribution, Fraction | int] = {}
    for number in numbers:
        if number == GARBAGE:
            return GARBAGE
        for contribution, count in number.items():
            result[contribution] = result.get(contribution, 0) + count
    if len(result) > MOST:
        raise TooMany
    return result


def of(number: Number, mark: str, which: int) -> Number:
    """The number as a part of a sum."""
    return number if number == GARBAGE else {c | {(mark, which)}: n for c, n in number.items()}


def below(number: Number, operand: int) -> Number:
    """The number as an operand of a product: its own contributions keep apart from those of other operands."""
    return number if number == GARBAGE else {
        frozenset((f"{operand}>{key}", k) for key, k in c): n for c, n in number.items()}


def scaled(number: Number, factor: Fraction) -> Number:
    return number if number == GARBAGE else {c: n * factor for c, n in number.items()}


def contracted(boxes: Sequence[Box], dims: Iterable[str], op: str, along: Extent) -> Box:
    """The product, summed over every dim that is not among `dims`; repeated `along` those that no box has."""
    shared = common(boxes)
    summed = {d: held for d, held in shared.items() if d not in dims}

    def number(point: Mapping[str, int]) -> Number:
        return plus(labelled(times([b.at({**point, **inner}) for b in boxes]), op, inner) for inner in points(summed))

    return Box.made({d: shared[d] if d in shared else along[d] for d in dims}, number)


def labelled(number: Number, op: str, indices: Mapping[str, int]) -> Number:
    labels = {(f"{op}/{dim}", index) for dim, index in indices.items()}
    return number if number == GARBAGE or not labels else {c | labels: n for c, n in number.items()}


def added(boxes: Sequence[Box], extent: Extent, tag: str) -> Box:
    return Box.made(extent, lambda p: plus(of(b.at(p), f"+{tag}", k) for k, b in enumerate(boxes)))


def all_of(boxes: Sequence[Box], extent: Extent, whole: bool, over: Sequence[str]) -> Box:
    """A function of whole rows: right where all that it reads is."""
    def number(point: Mapping[str, int]) -> Number:
        if not whole:
            return GARBAGE
        for box in boxes:
            inner = {d: at for d, at in box.extent.items() if d in over or d not in point}
            fixed = {d: point[d] for d in box.extent if d not in inner}
            if any(box.at({**fixed, **p}) == GARBAGE for p in points(inner)):
                return GARBAGE
        return RIGHT
    return Box.made(extent, number)
