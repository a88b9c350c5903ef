"""Sums of monomials with rational coefficients, powers of either sign, and the functions of sums that stand in them.

This is the one form in which figures are bounded, compared, solved and evaluated without SymPy. A name that ends in `'`
is what is left of a size after its least value: at least 0. A name with `#` stands for the value of a `Call`, of either
sign. Any other name is positive; one that is no identifier is arithmetic, whose value it stands for, such as
`Min(m, pp)` or `ceiling((V)/(dp))`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from math import comb, lcm
from typing import Generic, Protocol, Self, TypeVar

from placealg.arith import FUNCTIONS, ONE, Expr, Monomial, parse
from placealg.errors import InputError
from placealg.frozen import FrozenMap

REST = "'"
"""What the name of a size ends in when its least value was taken off."""


Powers = dict[tuple[str, int], tuple[int, int]]
"""(a size, an exponent) -> the numerator and the denominator of that power."""

CALL = "#"
"""What the name of a function's value has in it."""


def positive(name: str) -> bool:
    """Whether a name stands for what is never 0 nor less."""
    return not name.endswith(REST) and CALL not in name


def add(total: dict[Monomial, Fraction], term: Monomial, times: int | Fraction = 1) -> None:
    """Add `times` a monomial to a sum that is being collected."""
    base = Monomial(powers=term.powers)
    more = term.coefficient if times == 1 else term.coefficient * times
    total[base] = total[base] + more if base in total else more


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum: monomial of coefficient 1 -> its coefficient, none of them 0.

    >>> x = Polynomial.of([Monomial.parse("3*dp"), Monomial.parse("1/tp")]) - Polynomial.number(2)
    >>> x + x, x.evaluate({"dp": 2, "tp": 4})
    (6*dp + 2/tp - 4, Fraction(17, 4))
    """

    terms: FrozenMap[Monomial, Fraction] = FrozenMap()

    @staticmethod
    def of(monomials: Iterable[Monomial]) -> Polynomial:
        """The sum of monomials."""
        total: dict[Monomial, Fraction] = {}
        for m in monomials:
            add(total, m)
        return Polynomial.collected(total)

    @staticmethod
    def collected(total: Mapping[Monomial, int | Fraction]) -> Polynomial:
        """The sum that was collected in a mapping from monomials of coefficient 1."""
        return Polynomial(FrozenMap({m: c if isinstance(c, Fraction) else Fraction(c)
                                     for m, c in total.items() if c}))

    @staticmethod
    def number(value: int | Fraction) -> Polynomial:
        """A constant."""
        return Polynomial.of([Monomial.number(value)])

    @staticmethod
    def name(name: str) -> Polynomial:
        """One size."""
        return Polynomial.of([Monomial.of(name)])

    @staticmethod
    def total(parts: Iterable[Polynomial]) -> Polynomial:
        """The sum of sums."""
        total: dict[Monomial, Fraction] = {}
        for part in parts:
            for m, c in part.terms.items():
                total[m] = total[m] + c if m in total else c
        return Polynomial.collected(total)

    def monomials(self) -> list[Monomial]:
        """The terms, each with its coefficient."""
        return [Monomial(c, m.powers) for m, c in self.terms.items()]

    def names(self) -> tuple[str, ...]:
        """The names that occur, sorted."""
        return tuple(sorted({n for m in self.terms for n in m.names()}))

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial.total((self, other))

    def __neg__(self) -> Polynomial:
        return Polynomial(FrozenMap({m: -c for m, c in self.terms.items()}))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        total: dict[Monomial, Fraction] = {}
        for a, c in self.terms.items():
            for b, d in other.terms.items():
                product = a * b
                total[product] = total[product] + c * d if product in total else c * d
        return Polynomial.collected(total)

    def __truediv__(self, other: Polynomial) -> Polynomial:
        """The sum over a single monomial; what else is divided by is an InputError."""
        below = other.monomials()
        if len(below) != 1:
            raise InputError(f"{other} is no single term to divide by")
        return self.times(ONE / below[0])

    def __pow__(self, exponent: int) -> Polynomial:
        return Polynomial.of(_power(self, exponent))

    @staticmethod
    def read(text: str, names: Mapping[str, Polynomial] = FrozenMap()) -> Polynomial:
        """The sum that arithmetic is, with sums in the place of some names; a function of sizes becomes one name.

        >>> Polynomial.read("(h + 2)*m/dp"), Polynomial.read("Max(p - 1, 0)*m", {"p": Polynomial.name("pp")})
        (h*m/dp + 2*m/dp, Max(0, pp - 1)*m)
        """
        return _folded(parse(text), names) if names else _read(text)

    def times(self, factor: Monomial) -> Polynomial:
        """The sum with every term multiplied."""
        if not factor.coefficient:
            return Polynomial()
        base, number = Monomial(powers=factor.powers), factor.coefficient
        return Polynomial(FrozenMap({m * base: c * number for m, c in self.terms.items()}))

    def evaluate(self, sizes: Mapping[str, Fraction | int], powers: Powers | None = None) -> Fraction:
        """The exact value: whole numbers until the end, since a quotient of each term would be reduced in vain.

        `powers` are those of the sizes that are known, to which it adds: sums at the same sizes may share them.
        """
        known: Powers = {} if powers is None else powers
        over: dict[int, int] = {}
        for term, coefficient in self.terms.items():
            above, below = coefficient.numerator, coefficient.denominator
            for each in term.powers:
                if each not in known:
                    known[each] = Monomial(powers=(each,)).evaluate(sizes).as_integer_ratio()
                above, below = above * known[each][0], below * known[each][1]
            over[below] = over.get(below, 0) + above
        return sum((Fraction(above, below) for below, above in over.items()), Fraction(0))

    def coefficient(self, name: str) -> Polynomial:
        """What `name` is multiplied by, in a sum that has it in the first power only."""
        return Polynomial.of([m / Monomial.of(name) for m in self.monomials() if name in m.names()])

    def without(self, name: str) -> Polynomial:
        """The terms in which `name` does not occur."""
        return Polynomial.of([m for m in self.monomials() if name not in m.names()])

    def powers(self, name: str) -> set[int]:
        """The powers, other than 0, in which `name` occurs."""
        return {p for m in self.terms for n, p in m.powers if n == name}

    def put(self, name: str, value: Polynomial) -> Polynomial:
        """The sum with `value` in the place of `name`; where it has negative powers, `value` is one term.

        >>> Polynomial.of([Monomial.parse("x**2/y")]).put("x", Polynomial.of([Monomial.of("y"), Monomial()]))
        1/y + y + 2
        """
        known: dict[int, list[Monomial]] = {1: value.monomials()}
        found: list[Monomial] = []
        for m in self.monomials():
            power = dict(m.powers).get(name, 0)
            rest = Monomial(m.coefficient, tuple((n, p) for n, p in m.powers if n != name))
            if power not in known:
                known[power] = _power(value, power)
            found += [rest * v for v in known[power]] if power else [rest]
        return Polynomial.of(found)

    def lowest(self) -> Monomial:
        """The least monomial whose product with the sum has whole coefficients and no negative power: positive."""
        number = lcm(*(c.denominator for c in self.terms.values())) if self.terms else 1
        powers: dict[str, int] = {}
        for m in self.terms:
            for n, p in m.powers:
                powers[n] = max(powers.get(n, 0), -p)
        return Monomial(Fraction(number), tuple(sorted((n, p) for n, p in powers.items() if p)))

    def cleared(self) -> Polynomial:
        """The sum times what clears its denominators, divided by what all its terms share: of the same sign.

        >>> Polynomial.of([Monomial.parse("x/(2*y)"), Monomial.parse("3*x")]).cleared()
        6*y + 1
        """
        whole = self.times(self.lowest())
        shared = {n: min(dict(m.powers).get(n, 0) for m in whole.terms) for n in whole.names() if positive(n)}
        return whole.times(ONE / Monomial(powers=tuple((n, p) for n, p in shared.items() if p)))

    def __repr__(self) -> str:
        """As people write sums, a constant last."""
        listed = sorted(self.monomials(), key=lambda m: (not m.powers, m.powers))
        text = " + ".join(map(str, listed)) or "0"
        return text.replace("+ -1*", "- ").replace("+ -", "- ")


class Summable(Protocol):
    """What can be added and multiplied."""

    def __add__(self, other: Self, /) -> Self: ...
    def __mul__(self, other: Self, /) -> Self: ...


R = TypeVar("R", bound=Summable)


@dataclass(frozen=True, slots=True)
class Ring(Generic[R]):
    """What sums and products of sizes are made of: a figure that is written over a ring is written once.

    `read` is arithmetic, with values in the place of some names; `of` a monomial; `spread` a value multiplied out.
    With `known`, numbers that are known take the place of sizes.
    """

    read: Callable[[str, Mapping[str, R]], R]
    of: Callable[[Monomial], R]
    spread: Callable[[R], R]
    known: bool


SUMS: Ring[Polynomial] = Ring(Polynomial.read, lambda m: Polynomial.of([m]), lambda total: total, True)
"""Sums of monomials."""


@dataclass(frozen=True, slots=True)
class Call:
    """The value of Max, Min, ceiling or floor, under a name that no size has, at arguments that use earlier names only.

    >>> Call("ceiling#1", "ceiling", (Polynomial.of([Monomial.parse("h/dp")]),)).value({"h": 7, "dp": 2})
    Fraction(4, 1)
    """

    name: str
    function: str
    arguments: tuple[Polynomial, ...]

    def value(self, sizes: Mapping[str, Fraction | int]) -> Fraction:
        """The exact value."""
        return called(self.function, [a.evaluate(sizes) for a in self.arguments])


def called(function: str, arguments: Sequence[Fraction]) -> Fraction:
    """The exact value of a function."""
    if function in ("Max", "Min"):
        return max(arguments) if function == "Max" else min(arguments)
    return Fraction(-(-arguments[0] // 1) if function == "ceiling" else arguments[0] // 1)


def completed(calls: Iterable[Call], sizes: Mapping[str, Fraction | int]) -> dict[str, Fraction | int]:
    """The sizes with the values of functions, each of which may use those before it."""
    known = dict(sizes)
    for call in calls:
        known[call.name] = call.value(known)
    return known


@dataclass(frozen=True, slots=True)
class Plain:
    """numerator / denominator, over sizes and the names of `calls`; a call's arguments use earlier names only.

    >>> x, call = Polynomial.name("x"), Call("Max#1", "Max", (Polynomial.name("x"), Polynomial.number(3)))
    >>> Plain(x + Polynomial.name("Max#1"), Polynomial.number(2), (call,)).evaluate({"x": 2})
    Fraction(5, 2)
    """

    numerator: Polynomial
    denominator: Polynomial
    calls: tuple[Call, ...] = ()

    def evaluate(self, sizes: Mapping[str, Fraction | int]) -> Fraction:
        """The exact value; a denominator that is 0 is a ZeroDivisionError."""
        known = completed(self.calls, sizes)
        return self.numerator.evaluate(known) / self.denominator.evaluate(known)


@lru_cache(4096)
def _read(text: str) -> Polynomial:
    return _folded(parse(text), FrozenMap())


def _folded(text: Expr, names: Mapping[str, Polynomial]) -> Polynomial:
    found = text.fold(Polynomial.number, lambda n: names.get(n) or Polynomial.name(n),
                      {function: partial(_function, function) for function in FUNCTIONS})
    assert isinstance(found, Polynomial)
    return found


def _function(function: str, *arguments: Polynomial) -> Polynomial:
    """A function of sums: its value where they are numbers, else one name."""
    if not any(a.names() for a in arguments):
        return Polynomial.number(called(function, [a.evaluate({}) for a in arguments]))
    listed = sorted(map(repr, arguments)) if function in ("Max", "Min") else map(repr, arguments)
    return Polynomial.name(f"{function}({', '.join(listed)})")


def _power(value: Polynomial, power: int) -> list[Monomial]:
    """A power of a sum: repeated multiplication, or the power of its one term."""
    listed = value.monomials()
    if len(listed) == 1:
        return [listed[0] ** power]
    if power < 0:
        raise ValueError("a negative power of a sum")
    if len(listed) == 2:
        one, two = listed
        return [Monomial.number(comb(power, k)) * one ** (power - k) * two**k for k in range(power + 1)]
    result = Polynomial.number(1)
    for _ in range(power):
        result = result * value
    return result.monomials()
