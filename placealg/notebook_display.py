"""Values that show themselves in a notebook; how they look is said by the room `render`, which is found by its name.

No floor imports from above: a value knows that it can be shown, and asks for the page only when it is.
"""

from __future__ import annotations

from importlib import import_module

PAGES = "placealg.render.notebook"
"""The module whose function `html` makes the page of a value."""


class Shown:
    """Something that a notebook shows as a page of HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(import_module(PAGES).html(self))
