"""Short names for the parts of formulas that are shown together: places of a rank, what two parts have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import sympy

from placealg.cost.formula import Formula
from placealg.cost.indices import Where
from placealg.cost.notation import text_of
from placealg.cost.resharding_stages import RANK

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
    >>> names.shortened(Formula.parse("Min(h, pp)*Psi", "bytes"), most=3), len(list(names.told()))
    ('Ψ·fewer3', 2)
    """

    def __init__(self, formulas: Iterable[Formula] = ()) -> None:
        self._named: dict[Any, str] = {}
        self._taken = {str(part.index) for f in formulas if f.expr is not None for part in f.expr.atoms(Where)}
        self._used: dict[Any, str] = {}

    def shortened(self, formula: Formula, most: int | None = None) -> str:
        """The text of a formula, with names for its parts: none that are told, where it has more than `most` signs."""
        before = dict(self._named), dict(self._used)
        expr = self._opened(formula.expr)
        common = sorted((e for e in expr.atoms(sympy.Max) if _of_ranks(e)),  # the outermost ones first
                        key=lambda e: (-sympy.count_ops(e), sympy.default_sort_key(e)))
        for part in common:
            if expr.has(part) and len(text_of(part)) > _BRIEF:
                expr = self._put(expr, part, self._name(part, "common"))
        for stem, kind in _STEMS:
            found = sorted((e for e in expr.atoms(kind) if not e.atoms(kind) - {e}), key=sympy.default_sort_key)
            if len(found) == 1 and len(expr.atoms(kind)) <= 2 and not _of_ranks(found[0]):
                expr = self._put(expr, found[0], self._name(found[0], stem))
        text = text_of(expr)
        if most is not None and len(text) > most:
            self._named, self._used = before
        return text

    def told(self) -> Iterator[str]:
        """What the names mean that were used, in words of formulas."""
        for part, name in self._used.items():
            yield f"{name} = {text_of(part)}"

    def _opened(self, expr: Any) -> Any:
        """The expression without the meanings of its own names, which are kept."""
        if not expr.has(Where):
            return expr
        if isinstance(expr, Where):
            self._used.setdefault(expr.last, text_of(expr.named))
            return self._opened(expr.body)
        return expr.func(*map(self._opened, expr.args))

    def _name(self, part: Any, stem: str) -> str:
        names = (f"{stem}{k if k > 1 else ''}" for k in count(1))
        free = next(n for n in names if n not in self._taken and n not in self._named.values())
        return self._named.setdefault(part, free)

    def _put(self, expr: Any, part: Any, name: str) -> Any:
        if not expr.has(part):
            return expr
        self._used.setdefault(part, name)
        return expr.xreplace({part: sympy.Symbol(name, positive=True, integer=True)})


def _of_ranks(part: Any) -> bool:
    """Whether a part speaks of one rank, by its number or by its places."""
    return any(s.name == RANK or s.name.startswith("k_") for s in part.free_symbols)
