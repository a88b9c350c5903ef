"""Exact figures of many layouts at once: fractions, by whole numbers over one denominator.

Of every factor of a sum, a power of a size, the values are few. They are multiplied by what makes all of them whole, so
that a sum is a sum of products of whole numbers over one denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import reduce
from math import lcm
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from placealg.arith import parse
from placealg.configurations.programs import NOTHING, Program, Programs
from placealg.configurations.question import Question
from placealg.configurations.stages import grouped, spread
from placealg.cost.figure import ONE, Figure, inside
from placealg.polynomial import Polynomial

Whole = npt.NDArray[np.int64]
Fractions = npt.NDArray[np.object_]
"""An array of fractions."""


class Exact:
    """The figures of a strategy at columns of layouts, with the numbers of a question put in once."""

    def __init__(self, programs: Programs, question: Question):
        self.programs, self.question = programs, question
        self.known: dict[tuple[int, str], Figure] = {}

    def largest(self, path: str, columns: dict[str, Whole]) -> Fractions:
        """A figure on the stage where it is largest, in seconds or bytes."""
        return self._over_stages((path,), columns, lambda figure: figure)

    def need(self, paths: tuple[str, str], columns: dict[str, Whole]) -> Fractions:
        """What the fullest stage's device needs with the margin; `paths` are those of the peak and of the states."""
        return self._over_stages(paths, columns, self.question.needed)

    def _over_stages(self, paths: tuple[str, ...], columns: dict[str, Whole], told: Callable[..., Any]
                     ) -> Fractions:
        strategy, units, held = self.programs.strategy, self.question.units, len(paths) > 1
        groups, count = grouped(strategy, columns), len(columns["b"])
        found = np.full(count, Fraction(0), dtype=object)
        for k, program in enumerate(self.programs.stages):
            for rows, symbols in spread(strategy, units, groups, program.kind, held, held and not program.grows):
                where = np.arange(count) if rows is None else rows
                part = {**{n: c[where] for n, c in columns.items()},
                        **{n: c.astype(np.int64) for n, c in symbols.items()}}
                each = [values(self._figure(k, program, path, columns), part, len(where)) for path in paths]
                found[where] = np.maximum(found[where], told(*each))
        return found

    def _figure(self, k: int, program: Program, path: str, columns: Mapping[str, Whole]) -> Figure:
        if (k, path) not in self.known:
            self.known[k, path] = program.figures.get(path, NOTHING).put(self.question.fixed(program, columns))
        return self.known[k, path]


def values(figure: Figure, columns: Mapping[str, Whole], count: int) -> Fractions:
    """The exact values of a figure at so many rows of its sizes.

    >>> values(Figure((Polynomial.read("h/dp + 1/2"), Polynomial.read("dp"))), {
    ...     "h": np.array([7, 8]), "dp": np.array([2, 4])}, 2).tolist()
    [Fraction(4, 1), Fraction(4, 1)]
    """
    names = figure.names()
    if not names or not count:
        return np.full(count, figure.value({}) if not names else Fraction(0), dtype=object)
    distinct, which = np.unique(np.stack([columns[n] for n in names]), axis=1, return_inverse=True)
    alike = dict(zip(names, distinct, strict=True))
    tops, below = _sums(figure.pieces, alike)
    top = reduce(np.maximum, tops)
    if figure.over == ONE:
        found = [Fraction(int(n), below) for n in top]
    else:
        (over,), under = _sums((figure.over,), alike)
        found = [Fraction(int(n) * under, below * int(d)) for n, d in zip(top, over, strict=True)]
    return _objects(found)[which.ravel()]


def _sums(pieces: tuple[Polynomial, ...], columns: Mapping[str, Whole]) -> tuple[list[Fractions], int]:
    """Sums at every row as whole numbers, and their one denominator."""
    factors = {factor for piece in pieces for m in piece.terms for factor in m.powers}
    sizes = {name: _sizes(name, columns) for name in {name for name, _ in factors}}
    tables = {(name, power): _powers(sizes[name], power) for name, power in factors}
    over = {term: term[1].denominator * reduce(mul, (tables[f][1] for f in term[0].powers), 1)
            for piece in pieces for term in piece.terms.items()}
    below, count = reduce(lcm, over.values(), 1), len(next(iter(columns.values())))
    found = []
    for piece in pieces:
        total: Any = np.zeros(count, dtype=object)
        for m, c in piece.terms.items():
            total += reduce(mul, (tables[f][0] for f in m.powers), c.numerator * (below // over[m, c]))
        found.append(total)
    return found, below


def _sizes(name: str, columns: Mapping[str, Whole]) -> Fractions:
    """A size at every row, or the arithmetic of sizes that a name is."""
    if name.isidentifier():
        return columns[name].astype(object)
    names, of = inside(name), parse(name)
    known: dict[tuple[int, ...], Fraction] = {}
    rows = list(zip(*(columns[n].tolist() for n in names), strict=True))
    for row in set(rows):
        known[row] = of.evaluate(dict(zip(names, map(Fraction, row), strict=True)))
    return _objects(known[row] for row in rows)


def _powers(sizes: Fractions, power: int) -> tuple[Fractions, int]:
    """A power at every row, times the number that makes all its values whole, and that number."""
    each = {size: Fraction(size) ** power for size in set(sizes)}
    below = reduce(lcm, (value.denominator for value in each.values()), 1)
    whole = {size: int(value * below) for size, value in each.items()}
    return _objects(whole[size] for size in sizes), below


def _objects(values: Iterable[Any]) -> Fractions:
    """An array of whole numbers of any length, or of fractions."""
    listed = list(values)
    found = np.empty(len(listed), dtype=object)
    found[:] = listed
    return found
