"""Sums and largest values over a named index, such as the number of a rank: exact where no closed form is known.

Both read back as they are printed, and both have exact values at sizes. SymPy's own sums are not used: it asks itself
much about the index each time that one is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import prod
from typing import Any

import sympy

from placealg.cost.algebra import FUNCTIONS
from placealg.errors import InputError

MOST = 1 << 16
"""The most terms that are added up for a value; beyond, a formula has none."""


class Over(sympy.Expr):  # type: ignore[misc]  # SymPy has no types
    """An expression over an index that goes from 0 to a last value: what is taken of it, the index, and this value."""

    is_commutative = True
    is_extended_real = True
    is_finite = True

    @property
    def body(self) -> Any:
        """What is summed, or of which the largest value is taken."""
        return self.args[0]

    @property
    def index(self) -> Any:
        """The symbol of the index."""
        return self.args[1]

    @property
    def last(self) -> Any:
        """The last value of the index."""
        return self.args[2]

    @property
    def free_symbols(self) -> set[Any]:
        """All symbols but the index."""
        found: set[Any] = (self.body.free_symbols - {self.index}) | self.last.free_symbols
        return found

    def _sympystr(self, printer: Any) -> str:
        body, index, last = map(printer.doprint, self.args)
        return f"{type(self).__name__}({body}, ({index}, 0, {last}))"


class Sum(Over):
    """The sum of an expression over an index."""

    def _latex(self, printer: Any) -> str:
        body, index, last = map(printer.doprint, self.args)
        return rf"\sum_{{{index}=0}}^{{{last}}} \left({body}\right)"


class Largest(Over):
    """The largest value of an expression over an index."""

    def _latex(self, printer: Any) -> str:
        body, index, last = map(printer.doprint, self.args)
        return rf"\max_{{0 \leq {index} \leq {last}}} \left({body}\right)"


OVER: Mapping[str, Any] = {"Sum": Sum, "Largest": Largest}
"""What may be taken over an index, by the name that it has in text."""


def index_of(name: str) -> Any:
    """The symbol of an index: a whole number that may be 0."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def summed(body: Any, index: Any, count: Any) -> Any:
    """The sum of an expression over an index from 0 below `count`; terms without the index are multiplied.

    >>> h, n = sympy.symbols("h n", positive=True, integer=True)
    >>> summed(h + index_of("k"), index_of("k"), n)
    h*n + Sum(k, (k, 0, n - 1))
    """
    if count == 1:
        return body.xreplace({index: sympy.S.Zero})
    free, bound = sympy.expand(body, deep=False).as_independent(index, as_Add=True)
    return free * count + (Sum(gathered(bound), index, count - 1) if bound != 0 else 0)


def gathered(expr: Any) -> Any:
    """A sum with one term for each factor that is no fraction of polynomials.

    >>> h, n = sympy.symbols("h n", positive=True, integer=True)
    >>> gathered(h * sympy.floor(n / 2) + h**2 * sympy.floor(n / 2) + h)
    h*(h + 1)*floor(n/2) + h
    """
    found: dict[Any, Any] = {}
    for term in sympy.Add.make_args(sympy.expand(expr, deep=False)):
        rounded, plain = sympy.S.One, sympy.S.One
        for factor in sympy.Mul.make_args(term):
            if factor.has(*FUNCTIONS.values(), *OVER.values()):
                rounded *= factor
            else:
                plain *= factor
        found[rounded] = found.get(rounded, sympy.S.Zero) + plain
    return sympy.Add(*(sympy.factor(plain) * rounded for rounded, plain in found.items()))


def largest(body: Any, index: Any, count: Any) -> Any:
    """The largest value of an expression over an index from 0 below `count`.

    >>> largest(sympy.floor(index_of("k") / 2), index_of("k"), sympy.Symbol("n", positive=True))
    Largest(floor(k/2), (k, 0, n - 1))
    """
    return Largest(body, index, count - 1) if body.has(index) else body


def over_index(name: Callable[[str], Any]) -> dict[str, Callable[..., Any]]:
    """What makes a sum or a largest value as it is read; `name` makes the symbols other than its index."""
    return {kind: lambda body, index, last, made=made: made(
        body(lambda n: index_of(n) if n == index else name(n)), index_of(index), last) for kind, made in OVER.items()}


def valued(expr: Any, sizes: Mapping[str, Fraction]) -> Fraction | None:
    """The exact value at sizes; None where it divides by zero, or where that is to add up too much.

    >>> k = index_of("k")
    >>> valued(Sum(sympy.floor(k / 2), k, sympy.Symbol("n") - 1) + 1, {"n": Fraction(5)})
    Fraction(5, 1)
    """
    if not expr.has(*OVER.values()):
        found = expr.xreplace({s: sympy.Rational(sizes[s.name].numerator, sizes[s.name].denominator)
                               for s in expr.free_symbols})
        if not found.is_finite:
            return None
        number = sympy.Rational(found)
        return Fraction(int(number.p), int(number.q))
    known = {name: int(size) if size.denominator == 1 else size for name, size in sizes.items()}
    try:
        return Fraction(_Program(expr).run(known, [0]))
    except (ZeroDivisionError, _TooMany):
        return None


class _TooMany(InputError):
    """More terms than are added up."""


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda *a: sum(a), "Mul": lambda *a: prod(a), "Max": max, "Min": min, "floor": lambda a: a // 1,
    "ceiling": lambda a: -(-a // 1)}


class _Program:
    """An expression as a list of steps, each of which takes the values of earlier ones; run once for every index."""

    def __init__(self, expr: Any) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.places: dict[Any, int] = {}
        self.last = self._add(expr)

    def _add(self, expr: Any) -> int:
        if expr in self.places:
            return self.places[expr]
        step: tuple[Any, ...]
        if expr.is_Rational:
            step = "number", int(expr) if expr.is_Integer else Fraction(int(expr.p), int(expr.q))
        elif expr.is_Symbol:
            step = "name", expr.name
        elif isinstance(expr, Over):
            step = "over", isinstance(expr, Sum), expr.index.name, self._add(expr.last), _Program(expr.body)
        elif expr.is_Pow:
            step = "power", int(expr.exp), self._add(expr.base)
        else:
            step = "call", _FUNCTIONS[type(expr).__name__], tuple(map(self._add, expr.args))
        self.steps.append(step)
        self.places[expr] = len(self.steps) - 1
        return self.places[expr]

    def run(self, at: Mapping[str, int | Fraction], terms: list[int]) -> Any:
        """The value at sizes and indices; `terms` counts what was added up."""
        found: list[Any] = []
        for step in self.steps:
            match step:
                case ("number", number):
                    found.append(number)
                case ("name", name):
                    found.append(at[name])
                case ("power", exponent, base):
                    found.append(Fraction(found[base]) ** exponent if exponent < 0 else found[base] ** exponent)
                case ("over", is_sum, name, last, body):
                    terms[0] += int(found[last]) + 1
                    if terms[0] > MOST:
                        raise _TooMany("too many terms")
                    values = [body.run({**at, name: k}, terms) for k in range(int(found[last]) + 1)]
                    found.append(sum(values) if is_sum else max(values, default=0))
                case (_, function, places):
                    found.append(function(*(found[p] for p in places)))
        return found[self.last]
