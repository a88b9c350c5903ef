"""Which sizes a formula refuses: those that do not divide what the strategy splits, of which the formula was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from placealg.arith import Monomial
from placealg.models.model import Model
from placealg.step.compatibility import check_sizes, quotients
from placealg.strategy.spec import Strategy


@dataclass(frozen=True, eq=False)
class Divides:
    """The rule that the axes of a strategy divide the dims of a model that they split.

    >>> import placealg as pa
    >>> rule = Divides(pa.tp(), pa.gpt())
    >>> rule.check({"tp": Fraction(4), "a": Fraction(8), "kv": Fraction(8)})
    >>> rule.check({"tp": Fraction(3), "a": Fraction(8), "kv": Fraction(8)})
    Traceback (most recent call last):
    placealg.errors.InputError: tp = 3 does not divide kv = 8 of gpt
    """

    strategy: Strategy
    model: Model

    @cached_property
    def whole(self) -> tuple[Monomial, ...]:
        """The quotients that are whole numbers where sizes fit."""
        return quotients(self.strategy, self.model)

    @cached_property
    def names(self) -> frozenset[str]:
        """The sizes on which they depend."""
        return frozenset(name for quotient in self.whole for name in quotient.names())

    def check(self, sizes: Mapping[str, Any]) -> None:
        """Raise the InputError of the command line where sizes do not divide; sizes that are not told are free."""
        known = {n: Fraction(sizes[n]) for n in self.names if n in sizes}
        if any(set(q.names()) <= set(known) and q.evaluate(known).denominator != 1 for q in self.whole):
            check_sizes(self.strategy, self.model, known)

    def check_arrays(self, sizes: Mapping[str, Any]) -> None:
        """The same where some sizes are numpy arrays: at each of their places."""
        import numpy as np

        known = {n: np.asarray(sizes[n], dtype=np.float64) for n in sorted(self.names) if n in sizes}
        if not known:
            return
        rows = np.stack([column.ravel() for column in np.broadcast_arrays(*known.values())])
        for row in np.unique(rows, axis=1).T.tolist():
            self.check(dict(zip(known, row, strict=True)))
