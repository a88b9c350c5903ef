"""Published numbers as text: ours beside what is printed, by source; and one of them with its derivation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from placealg.render.text_layout import Cell, Line, bold, dim, indent, line, prose, table

_LONGEST = 8
"""A ratio longer than this stands below its row."""


class PublishedRow(NamedTuple):
    """A published number as it is told; `agrees` says whether it follows from its own inputs, `why` why not.

    `instead` is what does give the print.
    """

    name: str
    claim: str
    source: str
    kind: str
    ours: str
    printed: str
    ratio: str
    verdict: str
    agrees: bool
    why: str
    instead: str


def table_of(rows: Sequence[PublishedRow], kinds: Mapping[str, str], width: int) -> list[Line]:
    """Everything that agrees, kind by kind and source by source; then what does not, each with its reason."""
    differing = [row for row in rows if not row.agrees]
    counts = {verdict: sum(r.verdict == verdict for r in rows) for verdict in dict.fromkeys(
        r.verdict for r in rows if r.agrees)}
    lines = [line(bold(f"{len(rows)} published numbers"), ": ", ", ".join(f"{n} {v}" for v, n in counts.items()),
                  f", {len(differing)} that do not follow from their own inputs" if differing else ""),
             line(dim("name, claim, ours, as printed, and the ratio of the two where it is not 1"))]
    for kind, meaning in kinds.items():
        chosen = [row for row in rows if row.kind == kind and row.agrees]
        if chosen:
            lines += [(), *prose(f"{kind} ({len(chosen)}): {meaning}", width, "bold"), *_by_source(chosen, width)]
    if differing:
        lines += [(), line(bold(f"do not follow from their own inputs ({len(differing)})")),
                  *_by_source(differing, width)]
    return lines


def page_of(row: PublishedRow, derivation: Iterable[tuple[str, str]], width: int) -> list[Line]:
    """One published number: what is claimed, where, how it is derived, what comes out."""
    told = [("claim", row.claim), ("source", row.source), *derivation, ("ours", row.ours), ("printed", row.printed),
            ("ratio", row.ratio), ("verdict", row.verdict), ("why", row.why),
            ("printed is", row.instead)]
    rows: list[list[Cell]] = [[dim(name), said] for name, said in told if said]
    return [line(bold(row.name), dim(f"  published number, {row.kind}")), *indent(table(rows, "ll", width - 2))]


def _by_source(rows: Sequence[PublishedRow], width: int) -> list[Line]:
    """A table per source under its name; reasons below it."""
    lines: list[Line] = []
    longest = max(len(row.name) for row in rows)
    for source, group in groupby(rows, key=lambda row: row.source):
        chosen = list(group)
        cells: list[list[Cell]] = [[row.name.ljust(longest), row.claim, row.ours, row.printed,
                                    row.ratio if row.ratio != "1" and len(row.ratio) <= _LONGEST else ""]
                                   for row in chosen]
        lines += prose(source, width, "cyan")
        lines += indent(table(cells, "lllll", width - 2, wrap={1: 24, 2: 17, 3: 22}))
        for row in chosen:
            for word, text in (("ratio", row.ratio if len(row.ratio) > _LONGEST else ""), ("why", row.why)):
                lines += indent(prose(f"{word}: {text}", width - 4, "dim"), 4) if text else []
    return lines
