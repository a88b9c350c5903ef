"""Formulas and conditions as plain data, for readers without SymPy: sums of monomials, and functions by name.

A difference of formulas becomes a fraction of two sums. Max, Min, ceiling and floor become names such as `Max#1`, each
with the sums that are its arguments (polynomial.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import sympy

from placealg.arith import Expr, Monomial, parse
from placealg.cost.algebra import FUNCTIONS
from placealg.cost.expressions import expression, rational, symbol
from placealg.errors import InputError
from placealg.polynomial import Call, Plain, Polynomial

if TYPE_CHECKING:
    from placealg.cost.formula import Formula

ONE = Polynomial.number(1)

def plain(expr: Any) -> Plain:
    """The plain form of an expression.

    >>> plain(expression("dp/2 + Max(2*tp, b)")).numerator
    Max#1 + dp/2
    >>> plain(expression("dp/2 + Max(2*tp, b)")).calls
    (Call(name='Max#1', function='Max', arguments=(b, 2*tp)),)
    >>> plain(expression("m/(m + pp - 1)")).denominator
    m + pp - 1
    """
    calls: dict[Any, Call] = {}
    top, bottom = _fraction(_named(expr, calls))
    return Plain(top, bottom, tuple(calls.values()))


def put(formula: Formula, sizes: Mapping[str, Fraction]) -> Any:
    """The expression of a formula with sizes substituted, and definitions for symbols that have no value."""
    expr = formula.expr.xreplace({symbol(n): to for n, to in formula.defined.items() if n not in sizes})
    return expr.xreplace({symbol(n): rational(v) for n, v in sizes.items()})


def difference(larger: Formula, smaller: Formula, sizes: Mapping[str, Fraction]) -> Plain:
    """`larger` minus `smaller` at the sizes that are known, in plain form.

    >>> from placealg.cost.formula import Formula
    >>> volume = Formula.parse("2*Psi*(dp - 1)/dp", "bytes")
    >>> difference(volume, Formula.parse("Psi", "bytes"), {"dp": Fraction(4)}).numerator
    Psi/2
    """
    return plain(put(larger, sizes) - put(smaller, sizes))


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of sizes: the sum `terms` is in `relation` (>=, > or ==) to 0. `text` is the user's text."""

    text: str
    terms: Polynomial
    relation: str

    def opposites(self) -> tuple[Condition, ...]:
        """The alternatives of which one holds where the condition does not."""
        less = -self.terms
        if self.relation == "==":
            return (Condition(f"{self.text} from above", self.terms, ">"),
                    Condition(f"{self.text} from below", less, ">"))
        return (Condition(f"not {self.text}", less, ">" if self.relation == ">=" else ">="),)


def conditions(text: str, symbols: Iterable[str], sizes: Mapping[str, Fraction]) -> tuple[Condition, ...]:
    """Comparisons joined by `and`, over `symbols`, with known sizes substituted.

    >>> conditions("tp >= 2 and m > 4", ("tp", "m"), {})
    (Condition(text='tp >= 2', terms=tp - 2, relation='>='), Condition(text='m > 4', terms=m - 4, relation='>'))
    """
    known, found = tuple(symbols), []
    for part in re.split(r"\s+and\s+", text.strip()):
        sides = _RELATION.split(part)
        if len(sides) != 3:
            raise InputError(f"'{part}' is not A <= B, with one of <, <=, ==, >=, >")
        left, relation, right = sides
        if max(_height(parse(left, known)), _height(parse(right, known))) > HIGHEST:
            raise InputError(f"'{part}' has powers above {HIGHEST}")
        if relation in ("<", "<="):
            left, right = right, left
        expr = (expression(left, known) - expression(right, known)).xreplace(
            {symbol(n): rational(v) for n, v in sizes.items()})
        plain_sum = not expr.has(sympy.zoo, sympy.nan, *FUNCTIONS.values())
        top, bottom = _fraction(expr) if plain_sum else (Polynomial(), Polynomial())
        if bottom != ONE:
            raise InputError(f"'{part}' divides by a sum, or has a function")
        found.append(Condition(part.strip(), top, {"<": ">", "<=": ">="}.get(relation, relation)))
    return tuple(found)


HIGHEST = 8
"""The highest power that may occur in a condition."""


def _height(value: Expr) -> int:
    """The highest power in an expression, with powers of powers multiplied."""
    inside = max((_height(a) for a in value.args), default=1)
    return abs(int(value.value)) * inside if value.op == "**" else inside


_RELATION = re.compile(r"(<=|>=|==|<|>)")


def _named(expr: Any, calls: dict[Any, Call]) -> Any:
    """The expression with a symbol for every function, the innermost first."""
    if not expr.args:
        return expr
    args = [_named(a, calls) for a in expr.args]
    function = type(expr).__name__
    if function not in FUNCTIONS:
        return expr.func(*args)
    key = (function, *args)
    if key not in calls:
        listed = []
        for arg in sorted(args, key=sympy.default_sort_key):
            top, bottom = _fraction(arg)
            if bottom != ONE:
                raise InputError(f"a sum divides inside {function}")
            listed.append(top)
        calls[key] = Call(f"{function}#{len(calls) + 1}", function, tuple(listed))
    return sympy.Symbol(calls[key].name, real=True)


def _fraction(expr: Any) -> tuple[Polynomial, Polynomial]:
    """An expression as a sum of monomials over another, which is 1 if nothing is divided by a sum."""
    spread = sympy.expand(expr)
    try:
        return _terms(spread), ONE
    except InputError:
        top, bottom = sympy.fraction(sympy.cancel(sympy.together(expr)))
        return _terms(sympy.expand(top)), _terms(sympy.expand(bottom))


def _terms(expr: Any) -> Polynomial:
    """An expanded sum; anything else is an InputError."""
    return Polynomial.of(sorted((_monomial(t) for t in sympy.Add.make_args(expr) if t != 0), key=lambda m: m.powers))


def _monomial(term: Any) -> Monomial:
    number, powers = Fraction(1), dict[str, int]()
    for factor in sympy.Mul.make_args(term):
        base, power = factor.as_base_exp()
        if factor.is_Rational:
            number *= Fraction(int(factor.p), int(factor.q))
        elif base.is_Symbol and power.is_Integer:
            powers[base.name] = powers.get(base.name, 0) + int(power)
        else:
            raise InputError(f"'{factor}' is not a power of a size")
    return Monomial(number, tuple(sorted(powers.items())))
