"""Figures at many sizes at once: numpy arrays in double precision, with a proven bound of the error of each.

A monomial is a product of powers, a sum is a matrix product of coefficients and monomials, a figure the largest of its
sums. With u = 2**-53, a term of degree d goes through at most 3*d + 2 roundings (of its factors' values, its products
and quotients, and its coefficient), and a sum of k terms through k more in any order; so what is computed differs from
the exact sum by at most gamma(k + 3*d + 2) times the sum of the terms' absolute values, gamma(n) = n*u/(1 - n*u)
(Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Where the bounds leave a comparison open, the
exact value decides: `Figure.value`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from placealg.cost.bounds import largest
from placealg.cost.curve import spread
from placealg.cost.expressions import exact_size
from placealg.cost.figure import ONE, Figure, inside
from placealg.cost.plain import plain, put
from placealg.cost.products import Powers, Products
from placealg.errors import InputError
from placealg.polynomial import Polynomial

if TYPE_CHECKING:
    from placealg.cost.formula import Formula

Column = npt.NDArray[np.float64]
Columns = Mapping[str, Column]

CHUNK = 8192
"""How many configurations are evaluated at a time: this many doubles of each term stay in the processor's cache."""

UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Arrays:
    """Figures of the sizes in `names`, compiled: `coefficients` of `monomials` (their powers), a row per sum.

    `slices` says which rows are the sums of each figure, and by which row it is divided. `magnitudes` are the sums of
    the absolute values of which the coefficients are sums, where they are.
    """

    paths: tuple[str, ...]
    names: tuple[str, ...]
    monomials: tuple[Powers, ...]
    coefficients: npt.NDArray[np.float64]
    slices: tuple[tuple[int, int, int | None], ...]
    roundings: int
    magnitudes: npt.NDArray[np.float64] | None = None

    @staticmethod
    def of(figures: Mapping[str, Figure], sizes: Mapping[str, Fraction | int] | None = None) -> Arrays:
        """Figures with the numbers of `sizes` substituted, exactly.

        >>> figures = {"held": Figure((Polynomial.read("w*h/dp"), Polynomial.read("2*h")))}
        >>> Arrays.of(figures, {"h": 10, "w": 16}).values({"dp": np.array([1.0, 8.0, 16.0])})["held"].tolist()
        [160.0, 20.0, 20.0]
        """
        put = {path: figure.put(sizes or {}) for path, figure in figures.items()}
        totals: list[Polynomial] = []
        known: dict[tuple[Polynomial, ...], tuple[int, int]] = {}
        slices: list[tuple[int, int, int | None]] = []
        for figure in put.values():
            ends = []
            for pieces in (_candidates(figure.pieces), (figure.over,)):
                if pieces not in known and pieces != (ONE,):
                    known[pieces] = len(totals), len(totals) + len(pieces)
                    totals += pieces
                ends.append(known.get(pieces, (0, 0)))
            slices.append((*ends[0], None if figure.over == ONE else ends[1][0]))
        terms = tuple(dict.fromkeys(m for total in totals for m in total.terms))
        place = {m: k for k, m in enumerate(terms)}
        coefficients = np.zeros((len(totals), max(len(terms), 1)))
        for row, total in enumerate(totals):
            for m, c in total.terms.items():
                coefficients[row, place[m]] = c.numerator / c.denominator
        degree = max((sum(abs(p) for _, p in m.powers) for m in terms), default=0)
        names = tuple(sorted({n for f in put.values() for n in f.names()}))
        width = max((len(total.terms) for total in totals), default=0)
        return Arrays(tuple(put), names, tuple(m.powers for m in terms), coefficients, tuple(slices),
                      width + 3 * degree + 2)

    @property
    def gamma(self) -> float:
        """The bound of the error of a sum, relative to the sum of its terms' absolute values."""
        return self.roundings * UNIT / (1 - self.roundings * UNIT)

    def values(self, columns: Columns) -> dict[str, Column]:
        """Path -> its value at every configuration: columns of sizes and rates, each the double nearest to it."""
        flat, shape, many = self._flat(columns)
        found = np.empty((len(self.paths), many))
        for chunk, _, totals in self._totals(flat, many):
            for into, (first, end, below) in zip(found, self.slices, strict=True):
                top = totals[first] if end == first + 1 else totals[first:end].max(axis=0)
                if below is None:
                    into[chunk] = top
                else:
                    np.divide(top, totals[below], out=into[chunk])
        return {path: into.reshape(shape) for path, into in zip(self.paths, found, strict=True)}

    def _totals(self, columns: Columns, many: int) -> Iterator[tuple[slice, Column, Column]]:
        """(where, the monomials, the sums) chunk by chunk, in memory that the next chunk reuses."""
        made = Products(self.monomials)
        count, size = max(len(self.monomials), 1), min(many, CHUNK)
        rows, sums = np.zeros((max(made.rows, 1), size)), np.empty((len(self.coefficients), size))
        for start in range(0, many, CHUNK):
            chunk = slice(start, min(start + CHUNK, many))
            here = rows[:, :chunk.stop - start]
            made.run({n: c[chunk] for n, c in columns.items()}, list(here))
            terms, totals = here[:count], sums[:, :chunk.stop - start]
            np.matmul(self.coefficients, terms, out=totals)
            yield chunk, terms, totals

    def fixed(self, constants: Mapping[str, float]) -> Arrays:
        """The same with numbers for some sizes, so that terms which differ in them alone become one.

        >>> arrays = Arrays.of({"held": Figure((Polynomial.read("w*h + 2*g*h"),))}).fixed({"w": 2.0, "g": 4.0})
        >>> arrays.monomials, arrays.values({"h": np.array([3.0])})["held"].tolist()
        (((('h', 1),),), [30.0])
        """
        known: dict[tuple[str, int], float | None] = {}
        places: dict[Powers, int] = {}
        rows, values = [], []
        for powers in self.monomials:
            value, rest = 1.0, []
            for each in powers:
                if each not in known:
                    name, power = each
                    known[each] = _power(constants[name], power) if name in constants else None
                factor = known[each]
                if factor is None:
                    rest.append(each)
                else:
                    value *= factor
            rows.append(places.setdefault(tuple(rest), len(places)))
            values.append(value)
        scatter = np.zeros((self.coefficients.shape[1], max(len(places), 1)))
        scatter[np.arange(len(rows)), rows] = values
        names = {n for powers in places for name, _ in powers for n in inside(name)}
        sizes = np.abs(self.coefficients) if self.magnitudes is None else self.magnitudes
        return Arrays(self.paths, tuple(n for n in self.names if n in names), tuple(places),
                      self.coefficients @ scatter, self.slices, self.roundings + 1, sizes @ scatter)

    def bounded(self, columns: Columns) -> dict[str, tuple[Column, Column]]:
        """Path -> numbers between which the exact value lies, at every configuration.

        >>> low, high = Arrays.of({"held": Figure((Polynomial.read("h/dp"),))}).bounded(
        ...     {"h": np.array([1.0]), "dp": np.array([3.0])})["held"]
        >>> Fraction(low[0]) < Fraction(1, 3) < Fraction(high[0])
        True
        """
        sizes = np.abs(self.coefficients) if self.magnitudes is None else self.magnitudes
        signed = np.flatnonzero((sizes != self.coefficients).any(axis=1))
        place = {int(row): k for k, row in enumerate(signed)}
        flat, shape, many = self._flat(columns)
        ends = np.empty((2, len(self.paths), many))
        less, more = 1 - self.slack, 1 + self.slack
        for chunk, terms, totals in self._totals(flat, many):
            apart = np.matmul(sizes[signed], terms) * self.slack if place else totals

            def between(first: int, end: int, low: Column, high: Column, totals: Column = totals,
                        apart: Column = apart) -> None:
                """Write between which numbers the largest of some sums lies."""
                if any(row in place for row in range(first, end)):
                    own = totals[first:end]
                    by = np.zeros_like(own)
                    for row in range(first, end):
                        by[row - first] = apart[place[row]] if row in place else self.slack * totals[row]
                    (own - by).max(axis=0, out=low)
                    (own + by).max(axis=0, out=high)
                    return
                top = totals[first] if end == first + 1 else totals[first:end].max(axis=0)
                np.multiply(top, less, out=low)
                np.multiply(top, more, out=high)

            for low, high, (first, end, below) in zip(ends[0, :, chunk], ends[1, :, chunk], self.slices, strict=True):
                between(first, end, low, high)
                if below is not None:
                    under = np.empty((2, len(low)))
                    between(below, below + 1, *under)
                    every = np.stack([n / d for n in (low, high) for d in under])
                    low[:], high[:] = _outward(every.min(axis=0), every.max(axis=0))
        return {path: (low.reshape(shape), high.reshape(shape))
                for path, low, high in zip(self.paths, *ends, strict=True)}

    @property
    def slack(self) -> float:
        """How far from a computed sum the exact one lies at most, relative to the computed sum of absolute values.

        That sum is itself too small by a factor of at most gamma, hence twice gamma; the rounding of the ends of the
        interval is at most a unit of each of the two numbers that are added, or of the factor 1 - slack or 1 + slack
        and of the product with it, hence four units more.
        """
        return 2 * self.gamma + 4 * UNIT

    def _flat(self, columns: Columns) -> tuple[dict[str, Column], tuple[int, ...], int]:
        """The columns broadcast to one shape and laid flat, that shape, and the number of configurations."""
        missing = [n for n in self.names if n not in columns]
        if missing:
            raise InputError(f"what is evaluated depends on {', '.join(missing)}: give a number or an array of them")
        every = [np.asarray(columns[n], dtype=np.float64) for n in self.names]
        shape = np.broadcast_shapes(*(c.shape for c in every)) if every else (1,)
        flat = {n: np.broadcast_to(c, shape).ravel() for n, c in zip(self.names, every, strict=True)}
        return flat, shape, int(np.prod(shape))


def at(formula: Formula, sizes: Mapping[str, Any]) -> Column:
    """The values of a formula where some sizes are arrays, which are broadcast; the others are numbers or defaults.

    What is not claimed, by the formula's `where`, is not a number.

    >>> from placealg.cost.formula import Formula
    >>> at(Formula.parse("w*h/dp + Max(h, 20)", "bytes", values={"w": 2}), {"h": 16, "dp": np.array([1, 2])}).tolist()
    [52.0, 36.0]
    """
    shapes = {n: v.shape for n, v in sizes.items() if isinstance(v, np.ndarray)}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        shown = ", ".join(f"{n} {shape}" for n, shape in shapes.items())
        raise InputError(f"arrays of sizes of shapes {shown} do not broadcast") from None
    values, told = _everywhere(formula, sizes), {*formula.values, *sizes}
    for less, more in formula.where:
        over = replace(formula, expr=less - more, where=())
        if set(over.inputs) <= told:
            values = np.where(_everywhere(over, sizes) > 0, np.nan, values)
    return values


def _everywhere(formula: Formula, sizes: Mapping[str, Any]) -> Column:
    """The values of the expression, claimed or not."""
    columns = {n: _numbers(n, v) for n, v in sizes.items() if isinstance(v, np.ndarray)}
    known = {**formula.values, **{n: exact_size(n, v) for n, v in sizes.items() if n not in columns}}
    found = plain(put(formula, {n: v for n, v in known.items() if n not in columns}))
    pieces = spread(found)
    if pieces:
        return Arrays.of({"": Figure(tuple(pieces), found.denominator)}).values(columns)[""]
    names = sorted({n for n in formula.inputs if n in columns})
    grid = np.broadcast_arrays(*(columns[n] for n in names))
    rows = zip(*(c.ravel() for c in grid), strict=True)
    values = [float(found.evaluate({n: Fraction(v) for n, v in zip(names, row, strict=True)})) for row in rows]
    return np.asarray(values).reshape(grid[0].shape)


def _numbers(name: str, sizes: npt.NDArray[Any]) -> Column:
    """An array of sizes in double precision."""
    if sizes.dtype.kind not in "iuf":
        raise InputError(f"{name}: an array of {sizes.dtype} is no array of sizes, which are numbers")
    return sizes.astype(np.float64)


def _candidates(pieces: tuple[Polynomial, ...]) -> tuple[Polynomial, ...]:
    """The sums of which one is the largest, whatever the sizes that are still free: at least 1 each."""
    named = {repr(piece): piece for piece in pieces}
    return tuple(named[name] for name in largest(named.items())) if len(named) > 1 else pieces


def _power(value: float, power: int) -> float:
    """A power, in at most twice as many roundings as it has factors."""
    found = value
    for _ in range(abs(power) - 1):
        found *= value
    return found if power > 0 else 1 / found


def _outward(low: Column, high: Column) -> tuple[Column, Column]:
    """Both bounds, one double further out, for the rounding of their own computation."""
    return np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
