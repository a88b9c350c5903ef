"""Lines of styled text, and the one table layout: exact plain text, colour only where the stream shows it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TextIO


class Span(NamedTuple):
    """A piece of text in one style (a rich style: bold, dim, green, ...)."""

    text: str
    style: str = ""


Line = tuple[Span, ...]
Cell = str | Span | Line

NARROWEST, WIDEST = 60, 120
"""The widths between which pages are laid out, in columns."""
_LEAST = 8
_NO_BREAK, _MAY_BREAK = "\u00a0", "\u200b"
_WHOLE = re.compile(r"\([^()]{1,24}\)|[\w.]+ [=×] [\w.,]+")


def line(*cells: Cell) -> Line:
    """One line made of cells, end to end.

    >>> plain(line("a", Span("b", "bold")))
    'ab'
    """
    return tuple(span for cell in cells for span in _spans(cell))


def plain(text: Line) -> str:
    """The line without its styles."""
    return "".join(span.text for span in text)


def bold(text: str) -> Span:
    """Text that heads."""
    return Span(text, "bold")


def dim(text: str) -> Span:
    """Text that steps back."""
    return Span(text, "dim")


def indent(lines: Iterable[Line], by: int = 2) -> list[Line]:
    """The lines moved to the right; empty lines stay empty."""
    return [(Span(" " * by), *text) if text else text for text in lines]


def prose(text: str, width: int, style: str = "", hang: int = 0) -> list[Line]:
    """A paragraph broken at spaces and before brackets, not inside `a = 1` or a short bracket; later lines hang.

    A word that is wider than the paragraph is broken after a sign, else anywhere.
    """
    kept = _WHOLE.sub(lambda found: found[0].replace(" ", _NO_BREAK), text).replace("·(", f"·{_MAY_BREAK}(")
    lines, last = [""], ""
    for part in re.split(f"([ {_MAY_BREAK}])", kept):
        if part in (" ", _MAY_BREAK):
            last = part.strip(_MAY_BREAK)
            continue
        if not lines[-1].strip() or len(lines[-1] + last + part) <= width:
            lines[-1] += (last if lines[-1].strip() else "") + part
        else:
            lines.append(" " * hang + part)
        while len(lines[-1]) > width > hang:
            at = _broken_at(lines[-1], width, hang)
            lines[-1:] = [lines[-1][:at].rstrip(_NO_BREAK), " " * hang + lines[-1][at:].lstrip(_NO_BREAK)]
    return [(Span(part.replace(_NO_BREAK, " "), style),) for part in lines]


def _broken_at(word: str, width: int, hang: int) -> int:
    """Where a word too wide ends its line: after a blank or sign that fits, outside brackets if any does."""
    depth, outside, inside = 0, 0, 0
    for k, sign in enumerate(word[:width], 1):
        depth += (sign in "([") - (sign in ")]")
        if k > hang and sign in _NO_BREAK + "·*/.,_-]" and word[:k].strip(_NO_BREAK + " "):
            outside, inside = (outside, k) if depth else (k, k)
    return outside or inside or width


def table(rows: Sequence[Sequence[Cell]], align: str = "", width: int = WIDEST, gap: int = 2,
          wrap: Mapping[int, int] | None = None, spill: int = WIDEST) -> list[Line]:
    """Rows as aligned columns: l left, r right, c centred, d on the decimal point.

    No line is wider than `width`. `wrap` names the columns that are broken first, each with the width down to which
    it is; the last of them gives way first, and then the widest of all columns. A first cell wider than `spill` has
    a line of its own, as has the only cell of a row.

    >>> for text in table([["1.5", "a"], ["10", "bb"]], "dl"): print(plain(text).rstrip())
     1.5  a
    10    bb
    """
    if not rows:
        return []
    columns = max(len(row) for row in rows)
    align = align.ljust(columns, "l")
    single = [len(row) == 1 < columns for row in rows]
    cells = [[_spans(row[k]) if k < len(row) else () for k in range(columns)] for row in rows]
    for k in (k for k in range(columns) if align[k] == "d"):
        _align_points(cells, k)
    alone = [one or len(plain(row[0])) > spill for row, one in zip(cells, single, strict=True)]
    widths = [max((len(plain(row[k])) for row, own in zip(cells, alone, strict=True) if not (own and k == 0)),
                  default=0) for k in range(columns)]
    over = sum(widths) + gap * (columns - 1) - width
    for k, least in sorted((wrap or {}).items(), reverse=True):
        if over > 0 and widths[k] > least:
            kept = max(least, widths[k] - over)
            over -= widths[k] - kept
            widths[k] = kept
    while over > 0 and max(widths) > _LEAST:
        k = max((n for n in range(columns) if align[n] == "l"), key=widths.__getitem__, default=0)
        if widths[k] <= _LEAST:
            break
        widths[k] -= 1
        over -= 1
    lines: list[Line] = []
    for row, own in zip(cells, alone, strict=True):
        if own:
            lines += _broken(row[0], width)
            row[0] = ()
        parts = [_broken(cell, widths[k]) for k, cell in enumerate(row)] if any(row) or not own else []
        for level in range(max((len(p) for p in parts), default=0)):
            pieces: list[Span] = []
            for k, part in enumerate(parts):
                cell = part[level] if level < len(part) else ()
                space = max(widths[k] - len(plain(cell)), 0)
                left = space if align[k] == "r" else space // 2 if align[k] == "c" else 0
                pieces += [Span(" " * left), *cell, Span(" " * (space - left + (gap if k < columns - 1 else 0)))]
            lines.append(tuple(s for s in pieces if s.text))
    return lines


def _spans(cell: Cell) -> Line:
    if isinstance(cell, str):
        return (Span(cell),)
    return (cell,) if isinstance(cell, Span) else cell


def _align_points(cells: list[list[Line]], column: int) -> None:
    def tail(cell: Line) -> int:
        text = plain(cell)
        point = text.rfind(".")
        return len(text) - point if point >= 0 and text[point + 1:].isdigit() else 0

    def head(cell: Line) -> int:
        return len(plain(cell)) - tail(cell)

    longest = max(tail(row[column]) for row in cells)
    widest = max(head(row[column]) for row in cells)
    for row in cells:
        cell = row[column]
        if cell and plain(cell):
            before = widest - head(cell)
            row[column] = (Span(" " * before), *cell, Span(" " * (longest - tail(cell))))


def _broken(cell: Line, width: int) -> list[Line]:
    if len(plain(cell)) <= width:
        return [cell]
    return prose(plain(cell), width, cell[0].style if cell else "")


def width_of(stream: TextIO, narrowest: int = NARROWEST) -> int:
    """The width to lay out for: the terminal's, between `narrowest` and 120; 120 where there is none."""
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdecimal() and len(said) < 6 and int(said):
        columns = int(said)
    else:
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError, AttributeError):
            columns = WIDEST
    return min(max(columns, narrowest), WIDEST)


def in_colour(stream: TextIO) -> bool:
    """Whether to style: only on a terminal, unless NO_COLOR is set."""
    terminal = bool(getattr(stream, "isatty", bool)())
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write(lines: Iterable[Line], stream: TextIO) -> None:
    """Print lines, without trailing blanks, styled where the stream shows it."""
    if not in_colour(stream):
        for text in lines:
            stream.write(plain(text).rstrip() + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True)
    for text in lines:
        styled = Text.assemble(*((s.text, s.style) for s in text))
        styled.rstrip()
        console.print(styled, soft_wrap=True)
