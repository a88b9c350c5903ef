"""Expressions as plain rows, and made of them again as they were.

SymPy evaluates anew what it unpickles. Of a Max over many moments that takes seconds, and may have another form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import sympy

from placealg.frozen import FrozenMap

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an expression: a symbol or a number, or a function with the places of its arguments; itself last."""

    each: tuple[tuple[Any, tuple[int, ...]], ...]


_PLAIN = (sympy.Add, sympy.Mul, sympy.Pow, sympy.Max, sympy.Min, sympy.ceiling, sympy.floor)
"""The functions that are made without being evaluated."""


def parts_of(expr: Any) -> Parts:
    """The parts of an expression, each once and behind its arguments.

    >>> x = sympy.Symbol("x")
    >>> [of for _, of in parts_of(x + x**2).each] in ([(), (), (0, 1), (0, 2)], [(), (), (1, 0), (1, 2)])
    True
    """
    places: dict[Any, int] = {}
    found: list[tuple[Any, tuple[int, ...]]] = []

    def place(part: Any) -> int:
        if part not in places:
            of = tuple(place(argument) for argument in part.args)
            found.append((part.func, of) if of else (part, ()))
            places[part] = len(found) - 1
        return places[part]

    place(expr)
    return Parts(tuple(found))


def made_of(parts: Parts) -> Any:
    """The expression that has these parts.

    >>> x = sympy.Symbol("x", positive=True)
    >>> expr = sympy.Max(x + 1, sympy.Max(x, 2, evaluate=False), evaluate=False)
    >>> made_of(parts_of(expr)) == expr
    True
    """
    made: list[Any] = []
    for part, of in parts.each:
        arguments = [made[k] for k in of]
        made.append(part if not of else part(*arguments, evaluate=False) if part in _PLAIN else part(*arguments))
    return made[-1]


def packed(value: Any) -> Any:
    """A value with the parts of every expression in its place, in tuples and maps, too."""
    if isinstance(value, sympy.Basic):
        return parts_of(value)
    if isinstance(value, FrozenMap):
        return FrozenMap({key: packed(item) for key, item in value.items()})
    return tuple(map(packed, value)) if type(value) is tuple else value


def unpacked(value: Any) -> Any:
    """The value that was packed."""
    if isinstance(value, Parts):
        return made_of(value)
    if isinstance(value, FrozenMap):
        return FrozenMap({key: unpacked(item) for key, item in value.items()})
    return tuple(map(unpacked, value)) if type(value) is tuple else value


def unpickled(make: Callable[..., Made], fields: Mapping[str, Any]) -> Made:
    """What a pickle of packed fields is read as."""
    return make(**{name: unpacked(value) for name, value in fields.items()})
