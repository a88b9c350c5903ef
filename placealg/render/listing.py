"""The catalogue, a model, and the three sentences that explain a name."""

from __future__ import annotations

from collections.abc import Iterable

from placealg.model.model import Model
from placealg.placement import STATES
from placealg.render.page import Cell, Line, Span, bold, dim, indent, line, prose, table
from placealg.render.show import mode_span
from placealg.render.values import number, readable
from placealg.strategy.catalogue import Entry
from placealg.strategy.spec import Strategy


def catalogue_rows(entries: Iterable[tuple[Entry, Strategy]], width: int) -> list[Line]:
    """A row per axis of each strategy: the modes of its states; then its title and source."""
    lines: list[Line] = []
    rows: list[list[Cell]] = [[bold("strategy"), bold("axis"), *(bold(s) for s in STATES)]]
    told: list[tuple[str, str, str]] = []
    for entry, strategy in entries:
        name = entry.name + (f" = {', '.join(entry.aliases)}" if entry.aliases else "")
        lifetimes = dict(strategy.option("schedule", "lifetime"))
        for k, axis in enumerate(strategy.mesh.names if entry.axes else ()):
            modes: list[Cell] = [mode_span(strategy.mode_text(state, axis)) for state in STATES]
            if axis in lifetimes:
                modes[0] = line(modes[0], dim(f" per {lifetimes[axis]}"))
            rows.append([name if k == 0 else "", axis, *modes])
        if not entry.axes:
            rows.append([name, dim("any"), "", Span("+O", "yellow") if "optimizer" in name else "", "", ""])
        told.append((entry.name, entry.title, entry.source))
    lines += table(rows, "llllll", width)
    lines.append(())
    for name, title, source in told:
        lines.append(line(bold(name)))
        lines += indent(prose(title, width - 2)) + indent(prose(source, width - 2, "dim"))
    return lines


def model_page(model: Model, width: int) -> list[Line]:
    """Sizes, units and parameters with their dims and exact counts."""
    lines: list[Line] = []
    if model.abstract:
        lines.append(line(bold(model.name), ": Ψ parameters"))
    else:
        lines.append(line(bold(model.name), f": {number(model.total())} parameters"))
    if model.sizes:
        lines += indent(prose(", ".join(f"{n} = {v}" for n, v in model.sizes.items()), width - 2, "dim"))
    for unit in model.units:
        count = f" × {readable(str(unit.count))}" if unit.repeated else ""
        elements = sum(int(p.elements.evaluate(model.sizes)) for p in model.of_unit(unit.name)) if model.sizes else 0
        lines += [(), line(bold(unit.name + count), f"  {number(elements)} each" if count and elements else
                           f"  {number(elements)}" if elements else "")]
        rows: list[list[Cell]] = []
        for p in model.of_unit(unit.name):
            dims = " × ".join(f"{dim_name}" for dim_name in p.dims)
            shown = number(int(p.elements.evaluate(model.sizes))) if model.sizes else ""
            tied = f"also used by {', '.join(s for s in p.sites if s != unit.name)}" if len(p.sites) > 1 else ""
            rows.append([p.name.removeprefix(unit.name + "."), readable(str(p.elements)), shown,
                         dim(dims + (f"; {tied}" if tied else ""))])
        lines += indent(table(rows, "llrl", width - 2, wrap={3: 20}))
    return lines


def explanation(name: str, kind: str, sentences: Iterable[str], width: int) -> list[Line]:
    """What kind of thing a name is, and its sentences."""
    return [line(bold(name), dim(f"  {kind}")), *indent(prose(" ".join(sentences), width - 2))]
