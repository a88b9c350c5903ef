"""The sizes at which two formulas are equal: their difference solved for one size, if that has a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import sympy

from placealg.cost.expressions import symbol
from placealg.cost.formula import Formula
from placealg.cost.plain import put
from placealg.errors import InputError

_HIGHEST = 2


def crossings(left: Formula, right: Formula, name: str, sizes: Mapping[str, Fraction]) -> tuple[Formula, ...]:
    """The values of the size `name` at which the formulas are equal, as formulas; none if they never are.

    Only roots of factors of degree 1 and 2 are given. It is an InputError if the difference has other factors or a
    function of the size, or if the formulas are equal everywhere.

    >>> pairs, tokens = Formula.parse("b*topk*(ep - 1)/ep", "bytes"), Formula.parse("b*(ep - 1)", "bytes")
    >>> crossings(pairs, tokens, "ep", {})
    (1, topk)
    """
    size = symbol(name)
    expr = put(left, sizes) - put(right, sizes)
    if size not in expr.free_symbols:
        raise InputError(f"the formulas do not depend on {name} in different ways",
                         valid=[s.name for s in expr.free_symbols])
    top = sympy.fraction(sympy.cancel(sympy.together(expr)))[0] if not expr.has(sympy.Max, sympy.Min) else expr
    if not top.is_polynomial(size):
        raise InputError(f"the difference is no polynomial in {name}: it has a maximum, or a rounding, of it")
    if top == 0:
        raise InputError("the formulas are equal for all sizes")
    found: list[Any] = []
    for factor, _ in sympy.factor_list(top, size)[1]:
        poly = sympy.Poly(factor, size)
        if poly.degree() > _HIGHEST:
            raise InputError(f"the difference has degree {poly.degree()} in {name}: no closed form is given")
        found += [] if poly.degree() == 0 else sympy.roots(poly, multiple=True)
    values = (sympy.factor(root) for root in found if root.is_zero is not True and root.is_negative is not True)
    return tuple(Formula(value, "1") for value in dict.fromkeys(values) if value.is_real is not False)
