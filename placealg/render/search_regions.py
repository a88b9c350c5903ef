"""Where the best changes along parameters, rates and memory, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from placealg.configurations.question import Question
from placealg.configurations.regions import MEMORY, Region, current
from placealg.cost.machines import RATES
from placealg.render.text_layout import Cell, Line, bold, dim, indent, line, prose, table

_UNITS = {"flop/s": ("TFLOPS", 10**12), "bytes/s": ("GB/s", 10**9)}


def quantity(name: str, value: Fraction) -> str:
    """The value of a parameter, a rate or the memory, with its unit.

    >>> quantity("card_bw", Fraction(50 * 10**9)), quantity("efficiency", Fraction(3, 5))
    ('50 GB/s', '0.6')
    """
    if name == MEMORY:
        return f"{float(value / 10**9):.4g} GB"
    if name in RATES:
        unit, scale = _UNITS[RATES[name]]
        return f"{float(value / scale):.4g} {unit}"
    return f"{float(value):.4g}" + (" s" if name == "latency" else "")


def _range(region: Region) -> str:
    low, high = (quantity(region.name, end) for end in (region.low, region.high))
    unit = low.partition(" ")[2]
    return f"{low.partition(' ')[0]} to {high}" if unit and high.endswith(f" {unit}") else f"{low} to {high}"


def robust(found: Mapping[str, tuple[Region | None, Region, Region | None]], question: Question,
           width: int) -> list[Line]:
    """For each parameter alone: over what range the best stays the best, and what is the best beyond its ends."""
    head: list[Cell] = [bold("alone"), bold("now"), bold("the best stays from"), bold("else")]
    rows: list[list[Cell]] = [head]
    for name, (before, here, after) in found.items():
        told = [f"{word} {other.best.text}" for word, other in (("below", before), ("above", after)) if other]
        rows.append([name, quantity(name, current(question, name)), _range(here),
                     dim("; ".join(told) or "nothing within the range")])
    return [(), line(bold("robust"), dim("  one parameter varied at a time, from half to twice; ends are exact")),
            *indent(table(rows, "llll", width - 2, wrap={3: 28}))]


def regions(found: Mapping[str, Sequence[Region]], width: int) -> list[Line]:
    """The best over a range of each parameter."""
    lines: list[Line] = []
    for name, every in found.items():
        changes = len(every) - 1
        lines += [(), *prose(f"regions  of {name}: the best changes {changes} time{'' if changes == 1 else 's'}", width,
                             "bold", hang=9),
                  *indent(table([[_range(one), one.best.text] for one in every], "ll", width - 2, wrap={1: 30}))]
    return lines


def document(region: Region) -> dict[str, Any]:
    """A region as data: exact ends as text beside their decimals."""
    return {"name": region.name, **{end: {"exact": str(value), "value": float(value)}
                                    for end, value in (("low", region.low), ("high", region.high))},
            "best": region.best.to_json()}
