"""Formulas in MathML, which browsers typeset by themselves: terms and factors in the order of `notation.py`."""

from __future__ import annotations

from html import escape
from typing import Any

import sympy

from placealg.cost.formula import Formula
from placealg.cost.notation import in_factors, in_terms

_NAMES = {"Psi": "<mi>Ψ</mi>", "Psi_unit": "<msub><mi>Ψ</mi><mtext>unit</mtext></msub>"}
_FENCES = {"ceiling": ("⌈", "⌉"), "floor": ("⌊", "⌋"), "Max": ("(", ")"), "Min": ("(", ")")}
_WORDS = {"Max": "<mi>max</mi>", "Min": "<mi>min</mi>"}


def mathml(formula: Formula) -> tuple[str, ...]:
    r"""A `math` element per term of the outermost sum, so that a line may break between them; none without a formula.

    >>> print(*mathml(Formula.parse("w*Psi/dp + g", "bytes")), sep="\n")
    <math displaystyle="true"><mrow><mfrac><mrow><mi>Ψ</mi><mo>·</mo><mi>w</mi></mrow><mi>dp</mi></mfrac></mrow></math>
    <math displaystyle="true"><mrow><mo form="infix">+</mo><mi>g</mi></mrow></math>
    """
    if formula.expr is None:
        return ()
    terms = _signed(formula.expr)
    return tuple(f'<math displaystyle="true"><mrow>{sign}{written}</mrow></math>' for sign, written in terms)


def _signed(expr: Any) -> list[tuple[str, str]]:
    """The terms of a sum, each with its sign."""
    found = []
    for k, (minus, term) in enumerate(in_terms(expr)):
        form = ' form="infix"' if k else ""
        found.append((f"<mo{form}>{'−' if minus else '+'}</mo>" if minus or k else "", _written(term)))
    return found


def _written(expr: Any) -> str:
    if expr.is_Symbol:
        return _NAMES.get(expr.name, f"<mi>{escape(expr.name)}</mi>")
    if expr.is_Integer and expr >= 0:
        return f"<mn>{expr}</mn>"
    if expr.is_Add or expr.could_extract_minus_sign():
        return f"<mrow>{''.join(sign + text for sign, text in _signed(expr))}</mrow>"
    kind = type(expr).__name__
    if kind in _FENCES:
        left, right = _FENCES[kind]
        args = "<mo>,</mo>".join(map(_written, sorted(expr.args, key=str)))
        return f"<mrow>{_WORDS.get(kind, '')}<mo>{left}</mo>{args}<mo>{right}</mo></mrow>"
    top, bottom = sympy.fraction(expr, exact=True)
    if bottom != 1:
        return f"<mfrac>{_product(top)}{_product(bottom)}</mfrac>"
    if expr.is_Pow:
        return f"<msup>{_atom(expr.base)}<mn>{expr.exp}</mn></msup>"
    return _product(expr)


def _product(expr: Any) -> str:
    factors = in_factors(expr)
    if len(factors) == 1:
        return _written(factors[0])
    return f"<mrow>{'<mo>·</mo>'.join(map(_atom, factors))}</mrow>"


def _atom(expr: Any) -> str:
    """A factor, in brackets if it is a sum."""
    return f"<mrow><mo>(</mo>{_written(expr)}<mo>)</mo></mrow>" if expr.is_Add else _written(expr)
