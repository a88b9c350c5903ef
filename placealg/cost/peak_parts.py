"""The parts of the most that a device holds: states, activations, and what the largest moment adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import sympy

from placealg.cost.compute import value_of
from placealg.cost.formula import Formula
from placealg.cost.memory import Memory

MOMENT = "largest moment"
"""The part of the peak that neither rests as a state nor is kept for backward."""


def moment(held: Memory, kind: str, sizes: Mapping[str, Fraction]) -> tuple[tuple[str, Formula], ...]:
    """(name, formula) of the terms that sum to the `peak`, or to the `total`, at sizes; terms of 0 are left out.

    A maximum is replaced by the argument that is largest at these sizes. What the largest moment adds is negative if
    activations are gone by then.

    >>> from placealg.cost.memory import memory
    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import zero3
    >>> sizes = {"Psi": Fraction(100), "Psi_unit": Fraction(10), "dp": Fraction(4)}
    >>> moment(memory(derive(zero3(), abstract())), "peak", sizes)[-1]
    ('largest moment', Ψ_unit·(w + g) bytes)
    """
    parts = {name: getattr(held, name) for name in ("parameters", "optimizer", "gradients", "activations")}
    found = {name: f for name, f in parts.items() if f.expr not in (None, 0)}
    if kind == "total":
        found["transient"] = attained(held.transient, sizes)
    else:
        rest = attained(held.peak, sizes) - held.states
        found[MOMENT] = (rest - held.activations if held.activations.expr is not None else rest).tidied()
    return tuple((name, f) for name, f in found.items() if f.expr != 0)


def attained(formula: Formula, sizes: Mapping[str, Fraction]) -> Formula:
    """The formula with, for every Max, the argument that is largest at `sizes`.

    >>> attained(Formula.parse("h + Max(2*b, s)", "bytes"), {"b": Fraction(3), "s": Fraction(4), "h": Fraction(1)})
    2·b + h bytes
    """
    if formula.expr is None:
        return formula

    def largest(*arguments: Any) -> Any:
        return max(arguments, key=lambda a: Fraction(value_of(replace(formula, expr=a), sizes) or 0))
    return replace(formula, expr=formula.expr.replace(sympy.Max, largest))
