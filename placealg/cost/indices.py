"""Sums and largest values over a named index, such as the number of a rank: exact where no closed form is known.

What stands in several places of an expression may have a name there, too. All of them read back as they are printed,
and have exact values at sizes. SymPy's own sums are not used: it asks itself much about the index each time that one is
looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

import sympy

from placealg.arith import OF
from placealg.cost.algebra import FUNCTIONS
from placealg.cost.irreducible import factored
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


class Where(Over):
    """An expression in which a name, the index, stands for a value, which is `last`.

    With a fourth argument it stands for a function of that symbol.
    """

    @property
    def place(self) -> Any:
        """The symbol of which the name is a function; None if it stands for a value."""
        return self.args[3] if len(self.args) > 3 else None

    @property
    def free_symbols(self) -> set[Any]:
        """All symbols but the name, and but that of the argument in what a function stands for."""
        found: set[Any] = (self.body.free_symbols - {self.index}) | (self.last.free_symbols - {self.place})
        return found

    @property
    def named(self) -> Any:
        """The name, with its argument if it is a function."""
        return self.index if self.place is None else Of(self.index, self.place)

    def _sympystr(self, printer: Any) -> str:
        body, name, value = map(printer.doprint, (self.body, self.named, self.last))
        return f"Where({body}, ({name}, {value}))"

    def _latex(self, printer: Any) -> str:
        body, name, value = map(printer.doprint, (self.body, self.named, self.last))
        return rf"\left({body} \;\middle|\; {name} = {value}\right)"


class Of(sympy.Expr):  # type: ignore[misc]  # SymPy has no types
    """The value of a function, which has a name, at an argument."""

    is_commutative = True
    is_extended_real = True
    is_finite = True

    def _sympystr(self, printer: Any) -> str:
        return f"{self.args[0]}({printer.doprint(self.args[1])})"

    def _latex(self, printer: Any) -> str:
        name, argument = map(printer.doprint, self.args)
        return rf"{name}\left({argument}\right)"


class Largest(Over):
    """The largest value of an expression over an index."""

    def _latex(self, printer: Any) -> str:
        body, index, last = map(printer.doprint, self.args)
        return rf"\max_{{0 \leq {index} \leq {last}}} \left({body}\right)"


OVER: Mapping[str, Any] = {"Sum": Sum, "Largest": Largest, "Where": Where}
"""What may be taken over an index or a name, by the name that it has in text."""


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


def gathered(expr: Any, names: Collection[Any] = ()) -> Any:
    """A sum with one term for each factor that is no fraction of polynomials, or that has one of some names.

    >>> h, n = sympy.symbols("h n", positive=True, integer=True)
    >>> gathered(h * sympy.floor(n / 2) + h**2 * sympy.floor(n / 2) + h)
    h*(h + 1)*floor(n/2) + h
    """
    found: dict[Any, Any] = {}
    for term in sympy.Add.make_args(sympy.expand(expr, deep=False)):
        rounded, plain = sympy.S.One, sympy.S.One
        for factor in sympy.Mul.make_args(term):
            if factor.has(*FUNCTIONS.values(), *OVER.values(), Of) or not factor.free_symbols.isdisjoint(names):
                rounded *= factor
            else:
                plain *= factor
        found[rounded] = found.get(rounded, sympy.S.Zero) + plain
    return sympy.Add(*(factored(plain) * rounded for rounded, plain in found.items()))


def largest(body: Any, index: Any, count: Any) -> Any:
    """The largest value of an expression over an index from 0 below `count`.

    >>> largest(sympy.floor(index_of("k") / 2), index_of("k"), sympy.Symbol("n", positive=True))
    Largest(floor(k/2), (k, 0, n - 1))
    """
    return Largest(body, index, count - 1) if body.has(index) else body


def least(*numbers: Any) -> Any:
    """An unevaluated Min: evaluating it is slow."""
    return sympy.Min(*numbers, evaluate=False)


def most(*numbers: Any) -> Any:
    """The largest of some numbers, likewise."""
    return sympy.Max(*numbers, evaluate=False)


def over_index() -> dict[str, Callable[..., Any]]:
    """What makes expressions over an index or a name as they are read, with extremes as they are written there."""
    def made(kind: Any, body: Any, last: Any, index: str | tuple[str, str], name: Callable[[str], Any]) -> Any:
        def inside(own: str) -> Callable[[str], Any]:
            return lambda n: index_of(n) if n == own else name(n)

        if isinstance(index, tuple):
            return kind(body(name), index_of(index[0]), last(inside(index[1])), index_of(index[1]))
        return kind(body(inside(index)), index_of(index), last(name))

    return {name: partial(made, kind) for name, kind in OVER.items()} | {
        OF: lambda function, argument: Of(index_of(function), argument), "Max": most, "Min": least}


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
        elif isinstance(expr, Of):
            step = "of", expr.args[0].name, self._add(expr.args[1])
        elif isinstance(expr, Where) and expr.place is not None:
            step = "Function", expr.index.name, expr.place.name, _Program(expr.last), _Program(expr.body)
        elif isinstance(expr, Over):
            step = type(expr).__name__, expr.index.name, self._add(expr.last), _Program(expr.body)
        elif expr.is_Pow:
            step = "power", int(expr.exp), self._add(expr.base)
        else:
            step = "call", _FUNCTIONS[type(expr).__name__], tuple(map(self._add, expr.args))
        self.steps.append(step)
        self.places[expr] = len(self.steps) - 1
        return self.places[expr]

    def of(self, at: Mapping[str, Any], terms: list[int], place: str, argument: Any) -> Any:
        """The value of the expression as a function of one of its symbols."""
        return self.run({**at, place: argument}, terms)

    def run(self, at: Mapping[str, Any], terms: list[int]) -> Any:
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
                case ("of", name, argument):
                    found.append(at[name](found[argument]))
                case ("Function", name, place, value, body):
                    found.append(body.run({**at, name: partial(value.of, at, terms, place)}, terms))
                case ("Where", name, value, body):
                    found.append(body.run({**at, name: found[value]}, terms))
                case ("Sum" | "Largest" as kind, name, last, body):
                    terms[0] += int(found[last]) + 1
                    if terms[0] > MOST:
                        raise _TooMany("too many terms")
                    values = [body.run({**at, name: k}, terms) for k in range(int(found[last]) + 1)]
                    found.append(sum(values) if kind == "Sum" else max(values, default=0))
                case (_, function, places):
                    found.append(function(*(found[p] for p in places)))
        return found[self.last]
