"""Which of several amounts are never exceeded by another, whatever the sizes: exact comparison of sums of monomials."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import gcd, lcm
from typing import TypeVar

from placealg.arith import Monomial
from placealg.mesh import SYMBOLS
from placealg.polynomial import Polynomial

T = TypeVar("T")


def factored(total: Polynomial) -> tuple[Monomial, Polynomial]:
    """A sum as the common factor of all its terms, and the rest.

    >>> factored(Polynomial.of([Monomial.parse("4*b*s"), Monomial.parse("2*b*h")]))
    (2*b, h + 2*s)
    """
    terms = total.monomials()
    if not terms:
        return Monomial(), total
    powers = {name: _shared([dict(t.powers).get(name, 0) for t in terms]) for t in terms for name in t.names()}
    number = Fraction(gcd(*(t.coefficient.numerator for t in terms)), lcm(*(t.coefficient.denominator for t in terms)))
    common = Monomial(number, tuple(sorted((n, p) for n, p in powers.items() if p)))
    return common, total.times(Monomial() / common)


def _shared(powers: list[int]) -> int:
    """The power of one symbol that all terms have: the least, in the numerator or in the denominator."""
    return min(powers) if min(powers) > 0 else max(powers) if max(powers) < 0 else 0


def at_most(small: Polynomial, large: Polynomial) -> bool:
    """Whether `small` never exceeds `large`: each of its excess terms is covered by excess terms of `large`.

    Sizes are at least 1; all other symbols are positive. False if this test does not show it.

    >>> at_most(Polynomial.of([Monomial.parse("2*h/dp")]), Polynomial.of([Monomial.parse("2*h*L")]))
    True
    """
    scale = Scale((small, large))
    return scale.at_most(scale.row(small), scale.row(large))


def largest(amounts: Iterable[tuple[T, Polynomial]]) -> list[T]:
    """The candidates for the maximum: every given amount is at most one of theirs."""
    every = list(amounts)
    scale = Scale(total for _, total in every)
    return scale.largest((name, scale.row(total)) for name, total in every)


Row = dict[int, int]
"""A sum on a scale: the number of a monomial -> how often it is in there; none of these is 0."""


class Scale:
    """Sums as rows of whole numbers: multiples of one fraction, with a number for each monomial of any of them.

    >>> half, whole = (Polynomial.of([Monomial.parse(text)]) for text in ("h/2", "3*h"))
    >>> scale = Scale([half, whole])
    >>> scale.row(half), scale.row(whole)
    ({0: 1}, {0: 6})
    """

    def __init__(self, sums: Iterable[Polynomial]):
        every = list(sums)
        self.shared = lcm(*{c.denominator for total in every for c in total.terms.values()})
        self.columns: dict[Monomial, int] = {}
        for total in every:
            for term in total.terms:
                self.columns.setdefault(term, len(self.columns))
        self.names = list(self.columns)
        self._known: dict[tuple[int, int], bool] = {}

    def row(self, total: Polynomial) -> Row:
        """One of the sums."""
        return {self.columns[m]: c.numerator * (self.shared // c.denominator) for m, c in total.terms.items()}

    def covers(self, large: int, small: int) -> bool:
        """Whether a monomial never falls below another."""
        if (large, small) not in self._known:
            self._known[large, small] = _covers(self.names[large], self.names[small])
        return self._known[large, small]

    def at_most(self, small: Row, large: Row) -> bool:
        """Whether a sum never exceeds another, as `at_most`."""
        beyond = {m: large.get(m, 0) - small.get(m, 0) for m in (small | large)}
        spare = {m: c for m, c in beyond.items() if c > 0}
        for term, more in ((m, -c) for m, c in beyond.items() if c < 0):
            for cover in spare:
                if more > 0 and spare[cover] > 0 and self.covers(cover, term):
                    used = min(more, spare[cover])
                    more, spare[cover] = more - used, spare[cover] - used
            if more > 0:
                return False
        return True

    def largest(self, amounts: Iterable[tuple[T, Row]]) -> list[T]:
        """The candidates for the maximum of rows, as `largest`."""
        best: list[tuple[T, Row]] = []
        for name, amount in sorted(amounts, key=lambda a: -sum(a[1].values())):
            if not any(self.at_most(amount, other) for _, other in best):
                best = [*(b for b in best if not self.at_most(b[1], amount)), (name, amount)]
        return [name for name, _ in best]


def total_of(rows: Iterable[tuple[Row, int]]) -> Row:
    """The sum of rows of one scale, each so many times."""
    found: Row = {}
    for row, times in rows:
        for name, number in row.items():
            found[name] = found.get(name, 0) + number * times
    return {name: number for name, number in found.items() if number}


def _covers(large: Monomial, small: Monomial) -> bool:
    """Whether a monomial of sizes never falls below another."""
    powers = dict(large.powers)
    for name, power in small.powers:
        powers[name] = powers.get(name, 0) - power
    return all(power == 0 or (power > 0 and _whole(name)) for name, power in powers.items())


def _whole(name: str) -> bool:
    """Whether the symbol is a size, at least 1: neither bytes per element nor an amount."""
    return name.isidentifier() and (name not in SYMBOLS or SYMBOLS[name].assumption == "positive integer")
