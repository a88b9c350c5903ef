"""Formulas as JavaScript over exact fractions, for pages that evaluate them without Python."""

from __future__ import annotations

from typing import Any

from placealg.cost.algebra import FUNCTIONS
from placealg.cost.formula import Formula
from placealg.errors import InputError

OPERATIONS = {"Add": "add", "Mul": "mul", "Max": "max", "Min": "min", "ceiling": "ceiling", "floor": "floor"}
"""Class of a SymPy node -> the function of `render/report.js` that computes it; powers are `pow(base, n)`."""

SIZES = "x"
"""The name of the one argument: an object with a fraction per size."""


def javascript(formula: Formula) -> str:
    """An arrow function from sizes to the formula's exact value, or `null` if there is no closed form.

    Numbers are BigInt literals, so that nothing is rounded, however large.

    >>> javascript(Formula.parse("w*Psi*(dp - 1)/dp", "bytes"))
    'x => mul(x.w, x.Psi, pow(x.dp, -1), add(num(-1n, 1n), x.dp))'
    >>> javascript(Formula.none("bytes", "the model has no activations"))
    'null'
    """
    return "null" if formula.expr is None else f"{SIZES} => {_written(formula.expr)}"


def definitions(formula: Formula) -> dict[str, str]:
    """Symbol defined in other sizes -> the arrow function of its value; symbols that have a value are left out.

    >>> import placealg as pa
    >>> sorted(definitions(pa.memory(pa.zero1(), pa.gpt()).states))
    ['Psi']
    """
    return {name: f"{SIZES} => {_written(expr)}"
            for name, expr in formula.defined.items() if name not in formula.values}


def _written(expr: Any) -> str:
    if expr.is_Symbol:
        return f"{SIZES}.{expr.name}"
    if expr.is_Rational:
        return f"num({int(expr.p)}n, {int(expr.q)}n)"
    args = ", ".join(map(_written, expr.args))
    kind = type(expr).__name__
    if expr.is_Pow and expr.exp.is_Integer:
        return f"pow({_written(expr.base)}, {int(expr.exp)})"
    if expr.is_Add or expr.is_Mul or kind in FUNCTIONS:
        return f"{OPERATIONS[kind]}({args})"
    raise InputError(f"'{expr}' has no exact value in JavaScript")


