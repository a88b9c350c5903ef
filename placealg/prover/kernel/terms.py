"""Terms of Coq, and their text."""

from __future__ import annotations

import functools
import re
from typing import Any, TypeAlias

Term: TypeAlias = "int | bool | str | tuple[Term, ...] | list[Term]"
"""A value of Coq: a number, a boolean, a constructor with its arguments as a tuple, a list."""


def coq_text(term: Term) -> str:
    """A term in Coq's syntax.

    >>> coq_text(("Each", 0, True, [("On", 1, ("Keep", ("At", "Weight", "Device"), [0]))]))
    '(Each 0 true [On 1 (Keep (At Weight Device) [0])])'
    """
    if isinstance(term, bool):
        return "true" if term else "false"
    if isinstance(term, list):
        return "[" + "; ".join(_bare(coq_text(t)) for t in term) + "]"
    if isinstance(term, tuple):
        return _number(term) if term[0] in ("xO", "xI") else f"({' '.join(map(coq_text, term))})"
    return str(term)


@functools.cache
def _number(term: Any) -> str:
    """A binary number; the same ones stand in a program very often."""
    return term if isinstance(term, str) else f"({term[0]} {_number(term[1])})"


def _bare(text: str) -> str:
    inner = text[1:-1]
    return inner if text.startswith("(") and not re.search(r"^[^(]*\)", inner) else text
