"""Expressions of SymPy over sizes: symbols, arithmetic that users write, monomials; and sizes as exact numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy

from placealg.arith import Monomial, parse
from placealg.cost.algebra import FUNCTIONS
from placealg.cost.indices import over_index
from placealg.errors import InputError
from placealg.mesh import SYMBOLS
from placealg.polynomial import Ring

Size = int | Fraction | float | str


@lru_cache(maxsize=1024)
def symbol(name: str) -> Any:
    """The SymPy symbol of a size: a positive integer, or a positive rational for bytes per element; a rank may be 0."""
    if name in SYMBOLS and SYMBOLS[name].assumption == "positive rational":
        return sympy.Symbol(name, positive=True, rational=True)
    return sympy.Symbol(name, integer=True, **{"nonnegative" if name == "rank" else "positive": True})


def expression(text: str, symbols: Iterable[str] | None = None, name: Callable[[str], Any] = symbol,
               over: bool = False) -> Any:
    """The SymPy expression of arithmetic over `symbols`, with each symbol made by `name`; with `over`, sums are read.

    >>> expression("(dp - 1)/dp")
    (dp - 1)/dp
    """
    return parse(text, symbols, over).fold(rational, name, {**FUNCTIONS, **over_index()} if over else FUNCTIONS)


def monomial(value: Monomial) -> Any:
    """The SymPy expression of a monomial."""
    return sympy.Mul(rational(value.coefficient), *(symbol(n) ** p for n, p in value.powers))


def rational(value: Fraction) -> Any:
    """The SymPy number."""
    return sympy.Rational(value.numerator, value.denominator)


def _read(text: str, names: Mapping[str, Any]) -> Any:
    return expression(text, name=lambda n: names[n] if n in names else symbol(n))


EXPRESSIONS: Ring[Any] = Ring(_read, monomial, sympy.expand, False)
"""Expressions of SymPy, in which sizes are symbols."""


def exact_size(name: str, size: Size) -> Fraction:
    """`size` as an exact positive number, an integer unless it is a number of bytes per element."""
    try:
        exact = Fraction(str(size)) if isinstance(size, float | str) else Fraction(size)
    except (TypeError, ValueError, ZeroDivisionError):
        raise InputError(f"{name} = {size!r} is not a number") from None
    broken = name in SYMBOLS and SYMBOLS[name].assumption == "positive rational"
    if exact <= 0 or (exact.denominator != 1 and not broken):
        raise InputError(f"{name} = {size}: " + ("bytes per element are a positive number" if broken else
                                                 "a size is a whole number of at least 1"))
    return exact
