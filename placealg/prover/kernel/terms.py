"""Terms of Coq, and their text."""

from __future__ import annotations

import re
from typing import TypeAlias

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
        return f"({' '.join(coq_text(t) for t in term)})"
    return str(term)


def _bare(text: str) -> str:
    inner = text[1:-1]
    return inner if text.startswith("(") and not re.search(r"^[^(]*\)", inner) else text
