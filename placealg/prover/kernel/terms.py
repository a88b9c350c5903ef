"""Terms of Coq, and their text."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

Term: TypeAlias = "int | bool | str | tuple[Term, ...] | list[Term]"
"""A value of Coq: a number, a boolean, a constructor with its arguments as a tuple, a list."""


def coq_text(term: Term) -> str:
    """A term in Coq's syntax.

    >>> coq_text(("Each", 0, True, [("On", 1, ("Keep", ("At", "Weight", "Device"), [0]))]))
    '(Each 0 true [On 1 (Keep (At Weight Device) [0])])'
    """
    if isinstance(term, tuple):
        return _number(term) if term[0] in ("xO", "xI") else f"({' '.join(map(coq_text, term))})"
    if isinstance(term, list):
        parts = map(coq_text, term)
        return f"[{'; '.join(p[1:-1] if p.startswith('(') else p for p in parts)}]"
    return str(term).lower() if isinstance(term, bool) else str(term)


@functools.cache
def _number(term: Any) -> str:
    """A binary number; the same ones stand in a program very often."""
    return term if isinstance(term, str) else f"({term[0]} {_number(term[1])})"
