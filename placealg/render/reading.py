"""The page of a reading: what was read as what, then what became of every key."""

from __future__ import annotations

from placealg.importers.reading import Reading, ReadingItem
from placealg.render.text_layout import Cell, Line, Span, bold, dim, indent, line, plain, prose, table

_COLUMNS = 80
"""The width from which a reading stands in columns; below it, each entry in lines of its own."""

_STYLES = {"unsaid": "yellow", "approximated": "magenta", "ignored": "dim"}


def reading_page(reading: Reading, width: int, long: bool = False) -> list[Line]:
    """The headline, and a row per key; ignored keys are counted by reason unless `long`.

    On a narrow page what became of a key stands below it.
    """
    lines = prose(reading.headline, width, "bold", hang=2)
    if reading.model is not None:
        name = reading.model if isinstance(reading.model, str) else str(reading.model.get("model_type", "own"))
        kind = "" if isinstance(reading.model, str) else ", with the sizes that the file gives"
        lines += indent(prose(f"model {name}{kind}", width - 2, "dim", hang=2))
    if reading.run_with:
        lines += indent(prose(f"run with {reading.run_with}", width - 2, "dim", hang=2))
    if reading.sizes:
        lines += indent(prose(", ".join(f"{s} = {n}" for s, n in reading.sizes.items()), width - 2, "dim"))
    for fault in reading.faults[:8]:
        lines += indent(prose(f"does not run: {fault}", width - 2, "red", hang=2))
    if len(reading.faults) > 8:
        lines += indent(prose(f"and {len(reading.faults) - 8} more", width - 2, "red"))
    rows: list[list[Cell]] = [_row(item, item.place or dim("default")) for item in reading.read]
    for name in ("unsaid", "approximated"):
        rows += [_row(item, Span(name, _STYLES[name])) for item in getattr(reading, name)]
    if long:
        rows += [_row(item, Span("ignored", "dim")) for item in reading.ignored]
    if width < _COLUMNS:
        for row in rows:
            lines += indent(_stacked(row, width - 2))
    elif rows:
        lines += indent(table(rows, "lll", width - 2))
    if reading.ignored and not long:
        lines += indent(_ignored(reading, width - 2))
    return lines


def _row(item: ReadingItem, first: Cell) -> list[Cell]:
    said = f"{item.key} = {item.value}" if item.value else item.key
    option = line(item.text, "  ", dim(item.option)) if item.option else line(item.text)
    return [first, said, option]


def _stacked(row: list[Cell], width: int) -> list[Line]:
    """A row as a line with the place and the key, and below it what became of it."""
    place, said, text = (line(cell) for cell in row)
    head = line(*place, "  ", *said)
    lines = [head]
    if len(plain(head)) > width:
        lines = [*prose(plain(place), width), *indent(prose(plain(said), width - 2))]
    return [*lines, *indent(prose(plain(text), width - 4), 4)]


def _ignored(reading: Reading, width: int) -> list[Line]:
    """How many keys have no bearing, and why."""
    reasons: dict[str, list[str]] = {}
    for item in reading.ignored:
        reasons.setdefault(item.text, []).append(item.key.rpartition(".")[2])
    count = f"  {len(reading.ignored)} keys; --long lists them with their lines"
    lines: list[Line] = [line(bold("ignored"), dim(count))]
    for why, keys in reasons.items():
        names = ", ".join(keys[:4]) + (", ..." if len(keys) > 4 else "")
        lines += indent(prose(f"{why}: {names}", width - 2, "dim", hang=2))
    return lines
