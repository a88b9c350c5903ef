"""A rechecked certificate of a search as text: what it claims, what nobody asked, and where it is contradicted."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from placealg.configurations.recheck import REGENERATED, UNKNOWABLE, RecheckedSearch
from placealg.render.text_layout import Cell, Line, Span, dim, indent, line, prose, table
from placealg.render.values import number

_LISTED = 20


def rechecked_search(found: RecheckedSearch, path: str, width: int) -> list[Line]:
    """The page of a rechecked certificate; what it cannot know stands in its first line."""
    known = REGENERATED if found.regenerated else UNKNOWABLE
    if found.wrong:
        rows: list[list[Cell]] = [[line(Span("✗", "bold red"), " ", name), what]
                                  for name, what in list(found.wrong.items())[:_LISTED]]
        more = len(found.wrong) - len(rows)
        return [*prose(f"{path}: the certificate of a search is contradicted", width, "bold"), (),
                *indent(table(rows, "ll", width - 2, wrap={0: 30, 1: 30})),
                *([line(dim(f"  and {number(more)} more"))] if more else [])]
    return [*prose(f"{path}: {_claim(found.said)}; {known}", width, "bold"), (),
            *indent(table(_rows(found), "ll", width - 2, wrap={1: 30})),
            *prose(f"file SHA-256 {found.seal}, to be held against the one that `search` printed", width, "dim")]


def _claim(said: Any) -> str:
    winner, asked = said["winner"], said["question"]
    every = number(len(said["strategies"]) + len(said["pruned"]))
    where = f"{asked['model']} on {number(asked['devices'])} devices, {every} strategies"
    if winner is None:
        return f"{where}, none fits"
    sizes = " ".join(f"{n}={v}" for n, v in winner["sizes"].items() if not n.endswith("_in_node"))
    return f"{where}, the best by {asked['objective']} is {winner['strategy']} {sizes}"


def _rows(found: RecheckedSearch) -> list[list[Cell]]:
    ok = line(Span("✓", "green"), " ")
    said = found.said
    many = f"{number(found.layouts)} configurations and {number(found.places)} places"
    rows: list[list[Cell]] = [[line(*ok, "space"), "has these strategies and no other"],
                              [line(*ok, "replayed"), f"{many}, in fractions: as many fit, and none is better"]]
    if said["winner"] is not None:
        winner = said["winner"]
        need, bound, about = (float(Fraction(winner[name])) for name in ("need", "bound", "estimate"))
        rows += [[line(*ok, "winner"), f"needs {need / 10**9:.3f} GB, takes at least {bound:.4g} s, about "
                  f"{about:.4g} s, by the formulas of its stages too"],
                 [line(*ok, "proof"), f"{winner['verdict']} {winner['class'] or ''}".rstrip() + ", proved again"]]
    if said["pruned"]:
        rows.append([line(*ok, "left out"), f"{number(len(said['pruned']))} strategies, every layout of which is worse "
                     "by its bound, in fractions"])
    elif said["least_bound"] is not None:
        rows.append([line(*ok, "bound"), f"nothing takes less than {float(Fraction(said['least_bound'])):.4g} s"])
    return rows
