"""Values that show themselves in a notebook; how they look is said by the room `render`."""

from __future__ import annotations

from placealg.annexes import annex


class Shown:
    """Something that a notebook shows as a page of HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        pages = annex("pages")
        return None if pages is None else str(pages.html(self))
