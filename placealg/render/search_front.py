"""The front of a search as lines, CSV and data: what no other configuration beats in memory, time and card traffic."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from placealg.configurations.found import Configuration
from placealg.prover.verdict import Report
from placealg.render.proof import coloured
from placealg.render.text_layout import Cell, Line, bold, dim, indent, line, table

_GB = 10**9

Reports = Mapping[str, Report]
"""Verdict of each expression."""


def laid(one: Configuration) -> str:
    """The sizes of a configuration and its place in the nodes."""
    sizes = "  ".join(f"{n} {v}" for n, v in {**one.axes, **one.counts}.items())
    places = ", ".join(f"{a} {n}" for a, n in one.places.items())
    return f"{sizes}" + (f"; in a node {places}" if places else "")


def decimal(value: Fraction) -> int | float:
    """A whole number as it is, another as the nearest double.

    >>> decimal(Fraction(6023294976)), decimal(Fraction(1, 4))
    (6023294976, 0.25)
    """
    return int(value) if value.denominator == 1 else float(value)


def front_page(front: Sequence[Configuration], reports: Reports, width: int) -> list[Line]:
    """The front as a table."""
    rows: list[list[Cell]] = [[bold("needs, GB"), bold("about, s"), bold("card, GB"), bold("verdict"),
                               bold("strategy and sizes")]]
    for one in front:
        report = reports.get(one.expression)
        rows.append([f"{float(one.need) / _GB:,.3f}", f"{float(one.estimate):.4g}", f"{float(one.card) / _GB:,.3f}",
                     "" if report is None else coloured(report.verdict), f"{one.expression}  {laid(one)}"])
    return [line(bold("front"), dim(f"  {len(front)} of which none other needs less, takes less time and sends "
                                    "less through the card")),
            *indent(table(rows, "rrrll", width - 2, wrap={4: 30}))]


def front_as_csv(front: Sequence[Configuration], reports: Reports) -> str:
    """A row for each of the front; a size that a strategy lacks is 1."""
    names = tuple(dict.fromkeys(n for one in front for n in (*one.axes, *one.counts)))
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(["strategy", *names, *(f"{n}_in_node" for n in names if any(n in one.axes for one in front)),
                   "needs_bytes", "at_least_seconds", "about_seconds", "card_bytes", "verdict"])
    for one in front:
        sizes, report = {**one.axes, **one.counts}, reports.get(one.expression)
        rows.writerow([one.expression, *(sizes.get(n, 1) for n in names),
                       *(one.places.get(n, 1) for n in names if any(n in other.axes for other in front)),
                       *map(decimal, (one.need, one.bound, one.estimate, one.card)),
                       "" if report is None else str(report.verdict)])
    return written.getvalue()


def front_document(front: Sequence[Configuration], reports: Reports) -> list[dict[str, Any]]:
    """The front as data."""
    return [{**one.to_json(), "verdict": str(reports[one.expression].verdict) if one.expression in reports else None}
            for one in front]
