"""How a formula grows with one size: its leading term, and its increase if the size grows by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sympy

from placealg.cost.algebra import tidy
from placealg.cost.formula import Formula, symbol
from placealg.errors import InputError
from placealg.frozen import FrozenMap

HIGHEST = 8
"""The least power of a size that is too high for a formula's leading term."""

OWN = ("communication.events.", "regions.")
"""The prefixes of the paths that a page of growth leaves out."""


def leading(formula: Formula, name: str) -> Formula:
    """The term of a formula that grows fastest with a size; an InputError if it outgrows every power tried.

    >>> leading(Formula.parse("b*s*h*(34 + 5*a*s/h)", "bytes"), "s")
    5·b·s²·a bytes
    """
    formula = written_out(formula)
    if formula.expr is None:
        return formula
    for power in range(HIGHEST):
        limit = replace(formula, expr=_over(formula.expr, symbol(name) ** power)).limit(name)
        if limit.expr is not None:
            return replace(formula, expr=tidy(limit.expr * symbol(name) ** power), note="")
    raise InputError(f"{formula} grows faster with {name} than any power up to {HIGHEST - 1}")


def per(formula: Formula, name: str) -> Formula:
    """The increase of a formula if a size grows by one.

    >>> per(Formula.parse("L*(w + g)*h**2 + V*h*w", "bytes"), "L")
    h²·(w + g) bytes
    """
    formula = written_out(formula)
    if name not in formula.names:
        formula.limit(name)  # refuses a name that stands for nothing
    if formula.expr is None:
        return formula
    size = symbol(name)
    grown_by = formula.expr.xreplace({size: size + 1}).expand() - formula.expr.expand()
    return replace(formula, expr=tidy(grown_by), note="")


def written_out(formula: Formula) -> Formula:
    """The formula with named amounts, such as all parameters, written in sizes of the model."""
    if formula.expr is None or not formula.defined:
        return formula
    defined = {symbol(name): expr for name, expr in formula.defined.items()}
    return replace(formula, expr=formula.expr.xreplace(defined), defined=FrozenMap())


def _over(expr: Any, power: Any) -> Any:
    """An expression over a power of a positive size, divided term by term inside maxima and sums."""
    if isinstance(expr, sympy.Add | sympy.Max | sympy.Min):
        return expr.func(*(_over(part, power) for part in expr.args))
    if isinstance(expr, sympy.Mul):
        parts = [part for part in expr.args if isinstance(part, sympy.Max | sympy.Min)]
        if parts:
            return expr / parts[0] * _over(parts[0], power)
    return expr / power


def grown(figures: Mapping[str, Formula], name: str, fastest: bool) -> dict[str, Formula]:
    """Every figure of a program that depends on a size: its leading term in it, or its increase per unit of it."""
    found = {}
    every = {path: written_out(figure) for path, figure in figures.items() if not path.startswith(OWN)}
    for path, figure in every.items():
        if figure.expr is not None and name in figure.names:
            found[path] = leading(figure, name) if fastest else per(figure, name)
    if not found:
        valid = dict.fromkeys(n for f in every.values() if f.expr is not None for n in f.names)
        raise InputError(f"no figure depends on '{name}'", name=name, valid=valid)
    return found
