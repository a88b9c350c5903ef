"""Names for values that stand in several places of a formula, and what the names mean around it.

A name is a symbol of which SymPy knows nothing, so that what is built of it stays short and is made at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy

from placealg.cost.algebra import FUNCTIONS
from placealg.cost.indices import OVER, Of, Where, gathered, index_of


class Bindings:
    """Names and what they stand for: one name for each value, whichever formula it stands in.

    >>> import sympy
    >>> from placealg.cost.expressions import symbol
    >>> h, tp, known = symbol("h"), symbol("tp"), Bindings(("tp",))
    >>> rows = known.named("rows", sympy.ceiling(h / tp))
    >>> known.named("other", sympy.ceiling(h / tp)), known.named("tp", rows + 1), known.named("other", h * tp)
    (rows, tp2, h*tp)
    >>> known.around(rows + h)
    Where(h + rows, (rows, ceiling(h/tp)))
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._values: dict[Any, Any] = {}
        self._names: dict[Any, Any] = {}
        self._places: dict[Any, Any] = {}

    def inside(self) -> Bindings:
        """None of these names, but further ones, for what is taken over an index that these do not speak of."""
        found = Bindings()
        found._taken = self._taken
        return found

    def named(self, name: str, value: Any) -> Any:
        """The symbol that stands for a value, by this name or the next one that is free; a fraction of sizes itself."""
        if isinstance(value, Of) or not (value.has(*FUNCTIONS.values(), *OVER.values(), Of) or self.speaks(value)):
            return value
        if value not in self._names:
            made = index_of(next(n for n in self._free(name) if n not in self._taken))
            self._taken.add(made.name)
            self._values[made] = value.xreplace(self._names) if value.is_Add else value
            self._names[value] = made
        return self._names[value]

    def function(self, name: str, place: Any, value: Any) -> Any:
        """The symbol of the function of `place` that has this value."""
        key = place, value
        if key not in self._names:
            made = index_of(next(n for n in self._free(name) if n not in self._taken))
            self._taken.add(made.name)
            self._names[key], self._values[made], self._places[made] = made, value, place
        return self._names[key]

    @staticmethod
    def _free(name: str) -> Iterable[str]:
        yield name
        number = 2
        while True:
            yield f"{name}{number}"
            number += 1

    def plain(self, expr: Any) -> Any:
        """What an expression means, if that is one symbol alone; else as it is."""
        if len(expr.free_symbols) < 2 or not self.speaks(expr):
            return expr
        meant = expr
        while self.speaks(meant):
            meant = meant.xreplace(self._values)
        meant = sympy.expand(meant)
        return meant if meant.is_Symbol else expr

    def speaks(self, expr: Any) -> bool:
        """Whether an expression has any of the names."""
        return not expr.free_symbols.isdisjoint(self._values)

    def speaks_of(self, expr: Any, symbol: Any) -> bool:
        """Whether a symbol stands in an expression, or in what its names mean."""
        return symbol in self.symbols(expr)

    def symbols(self, expr: Any) -> set[Any]:
        """The symbols of an expression and of what its names mean, with these names."""
        found: set[Any] = set()
        left = list(expr.free_symbols)
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += self._values[one].free_symbols - {self._places.get(one)} if one in self._values else ()
        return found

    def gathered(self, expr: Any) -> Any:
        """A sum with one term for each product of names and of functions of sizes."""
        return gathered(expr, self._values.keys())

    def around(self, expr: Any) -> Any:
        """The expression, a term for each name, with their meanings around it; a name may speak of those before it."""
        expr = self.gathered(expr)
        for name, value in reversed(self._values.items()):
            if name in expr.free_symbols:
                expr = Where(expr, name, value, *([self._places[name]] if name in self._places else []))
        return expr
