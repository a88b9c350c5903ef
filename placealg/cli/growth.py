"""`cost --per SIZE` and `cost --leading SIZE`: every figure as it grows with one size."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from fractions import Fraction

from placealg.cli.output import print_json, print_lines, width
from placealg.cli.verdicts import DONE
from placealg.cost.costs import Costs
from placealg.cost.formula import Formula
from placealg.errors import InputError
from placealg.render.cost import value_of
from placealg.render.text_layout import Cell, bold, dim, indent, line, table
from placealg.step.program import Step

OWN = ("communication.events.", "regions.")
"""The prefixes of the paths that a page of growth leaves out."""


def growth(chosen: Namespace, title: str, step: Step, sizes: Mapping[str, Fraction]) -> int:
    """Print the figures that a size changes, as text or JSON."""
    name = chosen.per or chosen.leading
    if chosen.format not in ("text", "json"):
        raise InputError(f"growth is printed as text or json, not as {chosen.format}", where="--format")
    figures = {path: f for path, f in Costs(step, chosen.convention, chosen.unit).figures.items()
               if f.expr is not None or not path.startswith("schedule.")}
    found = grown(figures, name, bool(chosen.leading))
    if chosen.format == "json":
        print_json({"version": 1, "of": title, "leading" if chosen.leading else "per": name, "figures": {
            path: {"expr": str(f.expr), "unit": f.unit, "value": _number(value_of(f, sizes))}
            for path, f in found.items()}})
        return DONE
    told = f"what grows fastest with {name}" if chosen.leading else f"what one more of {name} takes"
    rows: list[list[Cell]] = [[dim(path), f.text(), dim(f.unit)] for path, f in found.items()]
    print_lines([line(bold(title), f": {told}"), *indent(table(rows, "lll", width() - 2, wrap={1: 30}))])
    return DONE


def _number(value: object) -> float | int | None:
    return value if isinstance(value, int) else float(value) if isinstance(value, Fraction) else None


def grown(figures: Mapping[str, Formula], name: str, fastest: bool) -> dict[str, Formula]:
    """Every figure of a program that depends on a size: its leading term in it, or its increase per unit of it."""
    found = {}
    every = {path: figure.written_out() for path, figure in figures.items() if not path.startswith(OWN)}
    for path, figure in every.items():
        if figure.expr is not None and name in figure.names:
            found[path] = figure.leading(name) if fastest else figure.per(name)
    if not found:
        valid = dict.fromkeys(n for f in every.values() if f.expr is not None for n in f.names)
        raise InputError(f"no figure depends on '{name}'", name=name, valid=valid)
    return found
