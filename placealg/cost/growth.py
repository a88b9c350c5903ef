"""How a formula grows with one size: what grows fastest with it, and what one more of it takes."""

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
"""The power of a size that a formula's leading term may not reach."""

OWN = ("communication.events.", "regions.")
"""What the paths of figures begin with that a page of growth leaves out."""


def leading(formula: Formula, name: str) -> Formula:
    """The term of a formula that grows fastest with a size; an InputError where it outgrows every power tried.

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
    """What one more of a size takes: the formula there less the formula here.

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
    """The formula with the amounts that have a name, such as all parameters, in sizes of the model."""
    if formula.expr is None or not formula.defined:
        return formula
    defined = {symbol(name): expr for name, expr in formula.defined.items()}
    return replace(formula, expr=formula.expr.xreplace(defined), defined=FrozenMap())


def _over(expr: Any, power: Any) -> Any:
    """An expression over a power of a positive size, which goes into every part of a maximum and of a sum."""
    if isinstance(expr, sympy.Add | sympy.Max | sympy.Min):
        return expr.func(*(_over(part, power) for part in expr.args))
    if isinstance(expr, sympy.Mul):
        parts = [part for part in expr.args if isinstance(part, sympy.Max | sympy.Min)]
        if parts:
            return expr / parts[0] * _over(parts[0], power)
    return expr / power


def grown(figures: Mapping[str, Formula], name: str, fastest: bool) -> dict[str, Formula]:
    """Every figure of a program that a size changes, as it grows with it: its leading term, or what one more takes."""
    found = {}
    every = {path: written_out(figure) for path, figure in figures.items() if not path.startswith(OWN)}
    for path, figure in every.items():
        if figure.expr is not None and name in figure.names:
            found[path] = leading(figure, name) if fastest else per(figure, name)
    if not found:
        valid = dict.fromkeys(n for f in every.values() if f.expr is not None for n in f.names)
        raise InputError(f"no figure depends on '{name}'", name=name, valid=valid)
    return found
