"""How far rounding moves gradients, as text and as a document: sums with their types, bounds, expected errors."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from placealg.cost.rounding import LIKELY, Tolerance, Tolerances
from placealg.measure.rounding import Measured
from placealg.render.text_layout import Cell, Line, bold, dim, indent, line, prose, table

BOUND = "bound: over the sum of |contributions|; never exceeded where nothing overflows or underflows"
EXPECTED = ("expected: of the norm, where roundings are independent (Higham and Mary, 2019) and contributions cancel; "
            "an estimate, which heavy tails and equal values break, and below which fp32 sums of few numbers stay")
NEITHER = "products, activations and the optimizer round as well: neither counts them"
"""What the figures are, and what they leave out."""


def page(strategy: str, model: str, found: Tolerances, sizes: Mapping[str, int], ran: Mapping[str, Measured],
         difference: float | None, explained: bool | None, width: int) -> list[Line]:
    """A part for each set of groups that round alike."""
    lines = [line(bold(f"{strategy} on {model}"), dim(f"  at {_at(sizes)}" if sizes else ""))]
    for row in found.rows:
        lines += [(), *prose(_groups(row), width, "bold"), *indent(_row(row, sizes, ran, width - 2))]
    lines.append(())
    for text in (BOUND, EXPECTED, NEITHER):
        lines += prose(text, width, "dim", hang=2)
    if difference is not None and explained is not None:
        least = found.expected(**sizes)
        told = "rounding explains it" if explained else "rounding does not explain it"
        lines += [(), *prose(f"a difference of {difference:.2g}: {told}: two runs are expected to differ by "
                             f"{2**0.5 * least:.2g}, and by {LIKELY} times that hardly ever", width)]
    return lines


def _at(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sizes.items())


def _groups(row: Tolerance) -> str:
    return ", ".join(row.groups)


def _row(row: Tolerance, sizes: Mapping[str, int], ran: Mapping[str, Measured], width: int) -> list[Line]:
    rows: list[list[Cell]] = [[dim(head) for head in ("sum", "over", "rounds", "in")]]
    for one in row.roundings:
        what = {"cast": "cast", "sum": str(one.times), "mean": "divided"}[one.what]
        rows.append([one.event, " ".join(one.over), what, one.format.name])
    lines = table(rows, "llll", width, wrap={0: 30})
    told: list[list[Cell]] = [["bound", row.worst.text()], ["expected²", f"0.18·({row.cancel.text()})"]]
    if sizes:
        most = row.bound(**sizes)
        told += [["bound", f"{most:.3g}" if isfinite(most) else "none: as many roundings may add up to the whole"],
                 ["expected", f"{row.expected(**sizes):.3g}"]]
    if kept := ran.get(row.groups[0]):
        own = row.expected(kept.contribution, kept.whole, **sizes)
        told += [["measured", f"{kept.relative:.3g} of the norm, {own:.3g} expected of these numbers; at most "
                              f"{kept.share:.3g} of the sum of |contributions|"]]
    return [*lines, *table([[dim(str(name)), text] for name, text in told], "ll", width, wrap={1: 30})]


def document(strategy: str, model: str, found: Tolerances, sizes: Mapping[str, int], ran: Mapping[str, Measured],
             difference: float | None, explained: bool | None) -> dict[str, Any]:
    """The same as a JSON object; numbers are null where a size is open."""
    return {"version": 1, "strategy": strategy, "model": model, "sizes": dict(sizes),
            "difference": difference, "explained": explained,
            "groups": [{
                "groups": list(row.groups), "contributions": str(row.contributions),
                "sums": [{"event": s.event, "over": list(s.terms), "type": str(getattr(s.type, "name", s.type)),
                          "least": str(getattr(s.least, "name", s.least)), "asked_by": s.says} for s in row.sums],
                "roundings": [{"event": r.event, "what": r.what, "over": list(r.over), "type": r.format.name,
                               "times": str(r.times)} for r in row.roundings],
                "bound": row.worst.to_json(), "cancel": row.cancel.to_json(), "agree": row.agree.to_json(),
                "at": {"bound": most if isfinite(most := row.bound(**sizes)) else None,
                       "expected": row.expected(**sizes)} if sizes else None,
                "measured": _ran(row, ran.get(row.groups[0]), sizes),
            } for row in found.rows]}


def _ran(row: Tolerance, kept: Measured | None, sizes: Mapping[str, int]) -> dict[str, float] | None:
    return None if kept is None else {"relative": kept.relative, "share": kept.share,
                                      "expected": row.expected(kept.contribution, kept.whole, **sizes)}
