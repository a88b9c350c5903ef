"""A figure as the largest of some sums of monomials, and its exact value: what searches evaluate, without SymPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from placealg.arith import Monomial, parse
from placealg.polynomial import Polynomial, Powers

ONE = Polynomial.number(1)


@dataclass(frozen=True, slots=True)
class Figure:
    """The largest of some sums, divided by a sum that is positive.

    >>> Figure((Polynomial.read("h/dp"), Polynomial.read("2*w"))).value({"h": 12, "dp": 2, "w": 2})
    Fraction(6, 1)
    """

    pieces: tuple[Polynomial, ...]
    over: Polynomial = ONE

    def value(self, sizes: Mapping[str, Fraction | int]) -> Fraction:
        """The exact value."""
        known, powers = dict(sizes), Powers()
        found = max(exact(piece, known, powers) for piece in self.pieces)
        return found if self.over == ONE else found / exact(self.over, known, powers)

    def names(self) -> tuple[str, ...]:
        """The sizes on which it depends."""
        sums = (*self.pieces, self.over)
        return tuple(sorted({n for s in sums for name in s.names() for n in inside(name)}))

    def put(self, sizes: Mapping[str, Fraction | int]) -> Figure:
        """The figure with numbers substituted for some sizes; equal pieces are merged."""
        if not sizes:
            return Figure(tuple(dict.fromkeys(self.pieces)), self.over)
        pieces = dict.fromkeys(_put(piece, sizes) for piece in self.pieces)
        return Figure(tuple(pieces), _put(self.over, sizes))


def exact(total: Polynomial, known: dict[str, Fraction | int], powers: Powers | None = None) -> Fraction:
    """The exact value of a sum; a name that is arithmetic has the value of that arithmetic, and is known from then."""
    for term in total.terms:
        for name, _ in term.powers:
            if name not in known and not name.isidentifier():
                known[name] = parse(name).evaluate(known)
    return total.evaluate(known, powers)


@lru_cache(maxsize=4096)
def inside(name: str) -> tuple[str, ...]:
    """The sizes in a name: itself, or those of the arithmetic that it is."""
    return (name,) if name.isidentifier() else parse(name).names()


def _put(total: Polynomial, sizes: Mapping[str, Fraction | int]) -> Polynomial:
    known = {n: Polynomial.number(v) for n, v in sizes.items()}
    found: dict[Monomial, Fraction] = {}
    for term, coefficient in total.terms.items():
        number, rest = coefficient, Polynomial.number(1)
        for name, power in term.powers:
            if name in sizes:
                number *= Fraction(sizes[name]) ** power
            elif name.isidentifier() or not set(inside(name)) & set(sizes):
                rest = rest.times(Monomial.of(name) ** power)
            else:
                inner = Polynomial.read(name, known)
                rest = rest * (inner**power if power > 0 else Polynomial.number(1) / inner**-power)
        for m, c in rest.terms.items():
            found[m] = found.get(m, Fraction(0)) + number * c
    return Polynomial.collected(found)
