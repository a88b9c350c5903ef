"""Drawing in SVG: elements with escaped text, a palette that colour-blind readers tell apart, and a picture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from placealg.atomic_files import write_whole
from placealg.errors import InputError, need

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#B8860B", "#56B4E9", "#882255")
"""Colours for things without an order: Okabe and Ito's, with Tol's where theirs are too light for thin lines."""

INK, SOFT, FAINT, PAPER = "#222222", "#6b6b6b", "#d4d4d4", "#ffffff"
"""Text; text that steps back; lines in the background; the background itself."""

CHARACTER, BOLD = 0.57, 0.62
"""The width of a character of the font, on average, as a part of its size: usual, and bold."""

_FONT = "system-ui, 'DejaVu Sans', Verdana, sans-serif"
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def element(tag: str, /, *children: str, **attributes: object) -> str:
    """One element; `_` in the name of an attribute stands for `-`, and numbers are written short.

    >>> element("line", x1=0, x2=10.50, stroke_width=2)
    '<line x1="0" x2="10.5" stroke-width="2"/>'
    >>> element("title", written("<script>"))
    '<title>&lt;script&gt;</title>'
    """
    said = "".join(f' {key.rstrip("_").replace("_", "-")}="{written(_short(value))}"'
                   for key, value in attributes.items() if value != "")
    return f"<{tag}{said}>{''.join(children)}</{tag}>" if children else f"<{tag}{said}/>"


def written(text: str) -> str:
    """Text as XML writes it: escaped, without characters that XML has no place for."""
    return escape(_NOT_IN_XML.sub("\ufffd", text))


def label(x: float, y: float, text: str, size: float = 11, **attributes: object) -> str:
    """Text whose baseline starts at (x, y)."""
    return element("text", written(text), x=x, y=y, **({"font_size": size} if size != 11 else {}), **attributes)


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 2.5, **attributes: object) -> str:
    """A straight line along one direction of the page, with a head at its end."""
    head = 2.4 * width
    along, across = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    back_x, back_y = x2 - head * along, y2 - head * across
    sides = [(back_x + head * 0.6 * across, back_y + head * 0.6 * along),
             (back_x - head * 0.6 * across, back_y - head * 0.6 * along)]
    points = " ".join(f"{_short(x)},{_short(y)}" for x, y in ((x2, y2), *sides))
    return (element("line", x1=x1, y1=y1, x2=back_x, y2=back_y, stroke=colour, stroke_width=width, **attributes)
            + element("polygon", points=points, fill=colour))


def clipped(text: str, width: float, size: float = 11, character: float = CHARACTER) -> str:
    """Text that fits into a width, with an ellipsis where it would not.

    >>> clipped("layer.norm1.weight", 60)
    'layer.no…'
    """
    room = int(width / (character * size))
    return text if len(text) <= room else text[:max(room - 1, 1)] + "…"


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG image that notebooks show by themselves; `str(picture)` is its text."""

    width: float
    height: float
    body: str
    title: str

    def __str__(self) -> str:
        size: Mapping[str, object] = {"width": self.width, "height": self.height}
        return element("svg", element("title", written(self.title)),
                       element("rect", **size, fill=PAPER), self.body,
                       xmlns="http://www.w3.org/2000/svg", **size, viewBox=f"0 0 {_short(self.width)} "
                       f"{_short(self.height)}", font_family=_FONT, font_size=11, fill=INK, role="img") + "\n"

    def save(self, path: str | Path) -> None:
        """Write the picture to a file of a name that ends in .svg, whole or not at all."""
        need(path, (str, Path), "path of a file")
        if Path(path).suffix.lower() != ".svg":
            raise InputError(f"'{path}' is no name of a drawing: it is an SVG; say FILE.svg")
        try:
            write_whole(Path(path), str(self))
        except OSError as error:
            raise InputError(f"cannot write there: {error.strerror}", where=str(path)) from None

    def __repr__(self) -> str:
        return f"{self.title}: a picture of {_short(self.width)} by {_short(self.height)}"

    def _repr_svg_(self) -> str:
        return str(self)


def _short(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
