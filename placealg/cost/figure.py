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
        put = _Put(sizes)
        return Figure(tuple(dict.fromkeys(map(put.into, self.pieces))), put.into(self.over))


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


class _Put:
    """Numbers that are substituted into several sums, which share the powers of these numbers."""

    def __init__(self, sizes: Mapping[str, Fraction | int]):
        self.sizes = {n: Fraction(v) for n, v in sizes.items()}
        self.as_sums = {n: Polynomial.number(v) for n, v in sizes.items()}
        self.powers: Powers = {}
        self.arithmetic: dict[str, bool] = {}

    def into(self, total: Polynomial) -> Polynomial:
        """The sum with the numbers in it; whole numbers until the end, as `Polynomial.evaluate` has them."""
        found: dict[Monomial, dict[int, int]] = {}
        for term, coefficient in total.terms.items():
            above, below = coefficient.numerator, coefficient.denominator
            rest: list[tuple[str, int]] = []
            inner = ONE
            for each in term.powers:
                if each[0] in self.sizes:
                    top, bottom = self.powers.get(each) or self._power(each)
                    above, below = above * top, below * bottom
                elif self._holds(each[0]):
                    inner = inner * self._read(*each)
                else:
                    rest.append(each)
            for m, c in inner.times(Monomial(powers=tuple(rest))).terms.items():
                over = found.setdefault(m, {})
                under = below * c.denominator
                over[under] = over.get(under, 0) + above * c.numerator
        return Polynomial.collected({m: sum((Fraction(top, under) for under, top in over.items()), Fraction(0))
                                     for m, over in found.items()})

    def _power(self, each: tuple[str, int]) -> tuple[int, int]:
        self.powers[each] = (self.sizes[each[0]] ** each[1]).as_integer_ratio()
        return self.powers[each]

    def _holds(self, name: str) -> bool:
        """Whether a name is arithmetic over a size that has a number."""
        if name not in self.arithmetic:
            self.arithmetic[name] = not name.isidentifier() and any(n in self.sizes for n in inside(name))
        return self.arithmetic[name]

    def _read(self, name: str, power: int) -> Polynomial:
        found = Polynomial.read(name, self.as_sums)
        return found**power if power > 0 else ONE / found**-power
