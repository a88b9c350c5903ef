"""Operations on the expressions of formulas: quotients, equality, limits, and the shorter of two forms."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy

from placealg.cost.irreducible import expanded, factored, irreducible_quotient
from placealg.mesh import SYMBOLS

FUNCTIONS = {"Max": sympy.Max, "Min": sympy.Min, "ceiling": sympy.ceiling, "floor": sympy.floor}
"""The functions that may occur in a formula."""

POINTS = (0, 1)
"""The numbers of the points at which formulas are evaluated to tell them apart."""


def limit(expr: Any, size: Any) -> Any:
    """The limit as `size` grows: by degrees in a fraction, part by part around Max and Min; None when it diverges."""
    top, bottom = sympy.fraction(sympy.together(expr))
    if top.is_polynomial(size) and bottom.is_polynomial(size):
        top, bottom = sympy.fraction(sympy.cancel(top / bottom))
        high, low = sympy.Poly(top, size), sympy.Poly(bottom, size)
        if top == 0 or high.degree() < low.degree():
            return sympy.S.Zero
        return high.LC() / low.LC() if high.degree() == low.degree() else None
    parts = [limit(part, size) for part in expr.args]
    if isinstance(expr, sympy.Min) and any(part is not None for part in parts):
        parts = [p for p, part in zip(parts, expr.args, strict=True) if p is not None or not _rises(part, size)]
    if None not in parts and isinstance(expr, sympy.Add | sympy.Mul | sympy.Max | sympy.Min):
        return expr.func(*parts)
    return None


def _rises(expr: Any, size: Any) -> bool:
    """Whether an expression is a polynomial that grows above every bound with `size`."""
    return bool(expr.is_polynomial(size) and sympy.Poly(expr, size).degree() > 0
                and sympy.Poly(expr, size).LC().is_positive)


def at_point(expr: Any, point: int) -> Any:
    """The value at one of several arbitrary points: a SymPy number, which compares exactly."""
    return expr.xreplace({s: sympy.Rational(5 + (sum(map(ord, s.name)) * 7919 + 104729 * point) % 9973)
                          for s in expr.free_symbols})


def agree(one: Any, other: Any) -> bool:
    """Whether two expressions have equal values at the points tried, as equal expressions do."""
    return all(bool(at_point(one, point) == at_point(other, point)) for point in POINTS)


def equal(one: Any, other: Any) -> bool:
    """Whether a difference cancels, with a symbol in place of every Max, Min and rounding."""
    known: dict[Any, Any] = {}
    return bool(sympy.cancel(sympy.together(_named(one, known) - _named(other, known))) == 0)


_LONG = 100
"""The number of operations from which a quotient is left as it was factored."""


def quotient(one: Any, other: Any) -> Any:
    """One expression over another, factored, and tidied unless it is long; functions of sizes are taken for symbols."""
    known: dict[Any, Any] = {}
    top, bottom = _named(one, known), _named(other, known)
    found = irreducible_quotient(top, bottom)
    if found is None:
        found = sympy.factor(top / bottom)
    found = tidy(found) if sympy.count_ops(found) <= _LONG else found
    for (function, arguments), name in reversed(known.items()):
        found = found.xreplace({name: function(*arguments, evaluate=False)})
    return found


def _named(expr: Any, known: dict[Any, Any]) -> Any:
    """The expression with a symbol in place of every function of sizes, the same one for equal text."""
    if not expr.args or not expr.has(*FUNCTIONS.values()):
        return expr
    arguments = [_named(a, known) for a in expr.args]
    function = expr.func
    if function not in FUNCTIONS.values():
        return function(*arguments)
    key = function, tuple(sorted(map(expanded, arguments), key=sympy.default_sort_key))
    return known.setdefault(key, sympy.Dummy(positive=True))


@lru_cache(maxsize=4096)
def tidy(expr: Any) -> Any:
    """The shorter of two exact forms: one factored fraction, or a sum with one term per function of the axes.

    >>> dp, w, o = sympy.symbols("dp w o", positive=True)
    >>> tidy(w - w / dp), tidy(w + o / dp)
    (w*(dp - 1)/dp, w + o/dp)
    """
    if expr.is_number or expr.is_Symbol:
        return expr
    by_axes: dict[Any, Any] = {}
    for term in sympy.Add.make_args(expr):
        outside, axes = sympy.S.One, sympy.S.One
        for part in sympy.Mul.make_args(term):
            if all(s.name in SYMBOLS for s in part.free_symbols):
                outside *= part
            else:
                axes *= part
        by_axes[axes] = by_axes.get(axes, sympy.S.Zero) + outside
    if len(by_axes) == 1:
        ((axes, outside),) = by_axes.items()
        return factored(outside) * (axes if axes.is_Add else factored(axes))
    split = sum((factored(outside) * axes for axes, outside in by_axes.items()), sympy.S.Zero)
    whole = factored(expr)
    negative = any(outside.could_extract_minus_sign() for outside in by_axes.values())
    return whole if negative or sympy.count_ops(whole) <= sympy.count_ops(split) else split
