"""Short names for the parts of formulas that are shown together: places of a rank, what two parts have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy

from placealg.cost.formula import Formula
from placealg.cost.notation import text_of
from placealg.cost.resharding_stages import OLD, RANK, Side
from placealg.step.reshard import Reshard

_BRIEF = 30
"""What is not longer as text is not named, but for extremes that stand in every term."""

_STEMS = (("fewer", sympy.Min), ("more", sympy.Max), ("k", sympy.ceiling))


class Names:
    """The names of parts of formulas, one for each part, whichever formula it stands in.

    >>> names = Names()
    >>> names.shortened(Formula.parse("Min(dp, pp)*Psi + Min(dp, pp)/dp", "bytes"))
    'Ψ·fewer + fewer/dp'
    >>> names.shortened(Formula.parse("Min(dp, tp)*Psi", "bytes")), list(names.told())
    ('Ψ·fewer2', ['fewer = min(dp, pp)', 'fewer2 = min(dp, tp)'])
    """

    def __init__(self, reshard: Reshard | None = None) -> None:
        self._places: dict[Any, str] = {}
        self._named: dict[Any, str] = {}
        for found, suffix in ((reshard.old, OLD), (reshard.new, "")) if reshard else ():
            side = Side(found, suffix)
            if len(found.axes) > 1:
                self._places |= {side.coordinate(a): f"k_{a}{suffix}" for a in found.axes}
        self._used: dict[Any, str] = {}

    def shortened(self, formula: Formula) -> str:
        """The text of a formula, with names for its parts."""
        expr = formula.expr
        for place, name in self._places.items():
            expr = self._put(expr, place, name)
        common = sorted((e for e in expr.atoms(sympy.Max) if _of_ranks(e)), key=sympy.default_sort_key)
        for part in common:
            if expr.has(part) and len(text_of(part)) > _BRIEF:
                expr = self._put(expr, part, self._name(part, "common"))
        for stem, kind in _STEMS:
            found = sorted((e for e in expr.atoms(kind) if not e.atoms(kind) - {e}), key=sympy.default_sort_key)
            if len(found) == 1 and len(expr.atoms(kind)) <= 2 and not _of_ranks(found[0]):
                expr = self._put(expr, found[0], self._name(found[0], stem))
        return text_of(expr)

    def told(self) -> Iterator[str]:
        """What the names mean that were used, in words of formulas."""
        for part, name in self._used.items():
            yield f"{name} = {text_of(part)}"

    def _name(self, part: Any, stem: str) -> str:
        taken = [n for n in self._named.values() if n.startswith(stem)]
        return self._named.setdefault(part, stem + (str(len(taken) + 1) if taken else ""))

    def _put(self, expr: Any, part: Any, name: str) -> Any:
        if not expr.has(part):
            return expr
        self._used.setdefault(part, name)
        return expr.xreplace({part: sympy.Symbol(name, positive=True, integer=True)})


def _of_ranks(part: Any) -> bool:
    """Whether a part speaks of one rank, by its number or by its places."""
    return any(s.name == RANK or s.name.startswith("k_") for s in part.free_symbols)
