"""The catalogue, a model, and the three sentences that explain a name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from placealg.arith import Monomial
from placealg.models.backward import saved
from placealg.models.model import Model, Unit
from placealg.models.names import UNMOVED
from placealg.placement import STATES
from placealg.render.show import mode_span
from placealg.render.text_layout import Cell, Line, Span, bold, dim, indent, line, prose, table
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
            away = [Span("+O", "yellow") if strategy.state(s).offloaded else "" for s in ("parameters", "optimizer")]
            kept = ", ".join(f"{mode} on {region}" for region, mode in strategy.region_modes.items())
            rows.append([name, dim("any"), *away, "",
                         Span(kept, "magenta") if kept else ""])
        told.append((entry.name, entry.title, entry.source))
    lines += table(rows, "llllll", width)
    lines.append(())
    for name, title, source in told:
        lines.append(line(bold(name)))
        lines += indent(prose(title, width - 2)) + indent(prose(source, width - 2, "dim"))
    return lines


def model_page(model: Model, width: int) -> list[Line]:
    """Sizes, dims and regions; per unit its parameters with exact counts, and its ops with what each keeps."""
    lines: list[Line] = []
    if model.abstract:
        lines.append(line(bold(model.name), ": Ψ parameters"))
    elif model.sizes:
        total, met = model.total(), model.activated()
        routed = any(op.kind == "route" for op in model.graph.ops)
        lines.append(line(bold(model.name), f": {number(total)} parameters",
                          f", of which a token meets {number(met)}" if routed else ""))
    else:
        lines += prose(f"{model.name}: {readable(_total(model))} parameters", width, "bold", 2)
    if model.sizes:
        lines += indent(prose(", ".join(f"{n} = {v}" for n, v in model.sizes.items()), width - 2, "dim"))
    if model.filled:
        lines += indent(prose(f"filled in  {', '.join(model.filled)}, which the file leaves out", width - 2, hang=11))
    if trains := _trains(model):
        lines += indent(prose(trains, width - 2, hang=2))
    if model.sizes and (unmoved := model.unmoved()):
        lines += indent(prose(f"trains {number(model.total() - unmoved)}; {UNMOVED.format(number(unmoved))}", width - 2,
                              hang=2))
    for part in model.left_out:
        lines += indent(prose(f"left out  {part}", width - 2, hang=10))
    dims = ", ".join(f"{d} = {readable(str(n))}" for d, n in model.graph.dims.items())
    lines += [(), *prose(f"dims     {dims}", width, hang=9), *prose(f"regions  {', '.join(model.graph.regions)}", width,
                                                                   hang=9)]
    for unit in (*model.units, Unit("loss")):
        count = f" × {readable(str(unit.count))}" if unit.repeated else ""
        elements = sum(int(p.elements.evaluate(model.sizes)) for p in model.of_unit(unit.name)) if model.sizes else 0
        lines += [(), line(bold(unit.name + count), f"  {number(elements)} each" if count and elements else
                           f"  {number(elements)}" if elements else "")]
        rows: list[list[Cell]] = []
        for p in model.of_unit(unit.name):
            named = " × ".join(f"{dim_name}" for dim_name in p.dims)
            shown = number(int(p.elements.evaluate(model.sizes))) if model.sizes else ""
            tied = f"also used by {', '.join(s for s in p.sites if s != unit.name)}" if len(p.sites) > 1 else ""
            rows.append([p.name.removeprefix(unit.name + "."), readable(str(p.elements)), shown,
                         dim(named + (f"; {tied}" if tied else ""))])
        lines += indent(table(rows, "llrl", width - 2, wrap={3: 20}))
        lines += indent(_ops(model, unit.name, width - 2))
    return lines


def _total(model: Model) -> str:
    """The number of parameters in symbols, like terms collected."""
    terms: dict[tuple[tuple[str, int], ...], Fraction] = {}
    for p in model.parameters:
        term = p.elements * model.unit(p.unit).count
        terms[term.powers] = terms.get(term.powers, Fraction(0)) + term.coefficient
    return " + ".join(str(Monomial(c, powers)) for powers, c in terms.items())


def _ops(model: Model, unit: str, width: int) -> list[Line]:
    """A row per op: its kind, operands and result dims, and what is kept for its backward and for none before it."""
    kept = [(s, s.tensor.name) for s in saved(model.graph) if s.unit == unit]

    def short(name: str) -> str:
        return name.removeprefix(unit + ".")

    rows: list[list[Cell]] = []
    for op in model.graph.of_unit(unit):
        first = ", ".join(short(name).removeprefix(short(op.output) + ".") for s, name in kept
                          if s.readers[0] == op.output)
        rows.append([short(op.output), dim(op.kind), ", ".join(map(short, op.inputs)),
                     dim(" ".join(model.graph.tensors[op.output].dims)), first])
    if not rows:
        return []
    head: list[Cell] = [bold(w) for w in ("op", "kind", "operands", "dims", "saved")]
    return [(), *table([head, *rows], "lllll", width, wrap={2: 18, 3: 16, 4: 12})]


def explanation(name: str, kind: str, sentences: Iterable[str], rows: Sequence[tuple[str, str]],
                width: int) -> list[Line]:
    """What kind of thing a name is, its sentences, and the rows below them."""
    cells: list[list[Cell]] = [[dim(title), text] for title, text in rows]
    return [line(bold(name), dim(f"  {kind}")), *indent(prose(" ".join(sentences), width - 2)),
            *indent(table(cells, "ll", width - 2, wrap={1: 30}))]


_ALL_COLUMNS = 76
"""The width from which there is room for what of a mixture of experts a token meets."""


def models_page(sized: Iterable[Model], symbolic: Iterable[Model], read: Iterable[tuple[str, str, Sequence[str]]],
                width: int) -> list[Line]:
    """The models with sizes, those whose sizes are symbols, and the types of which a config.json is read."""
    wide = width >= _ALL_COLUMNS
    heads = ("model", "parameters", *(("a token meets",) if wide else ()), "L", "h", "V", "type")
    rows: list[list[Cell]] = [[bold(w) for w in heads]]
    for m in sized:
        total, met = m.total(), m.activated()
        rows.append([m.name, number(total), *([number(met) if met != total else ""] if wide else []),
                     number(sum(n for size, n in m.sizes.items() if size.partition("_")[0] == "L")),
                     *(number(m.sizes[s]) for s in ("h", "V")), dim(m.family)])
    free: list[list[Cell]] = [[m.name, dim("Ψ parameters" if m.abstract else ", ".join(u.name for u in m.units)),
                               dim(_trains(m))] for m in symbolic]
    types: list[list[Cell]] = [[bold("model_type"), bold("like"), bold("also read for")]]
    types += [[name, dim(like), dim(", ".join(others))] for name, like, others in read]
    return [line(bold("with sizes"), dim("  --model NAME, as everywhere below")),
            *table(rows, "lrrrrrl" if wide else "lrrrrl", width), (),
            line(bold("whose sizes are symbols")), *table(free, "lll", width), (),
            line(bold("a config.json of your own")),
            *indent(prose("--model PATH, of one of these types; docs/models.md has what was held against transformers",
                          width - 2)),
            *table(types, "lll", width)]


def _trains(model: Model) -> str:
    """What of a model trains, where that is not all of it."""
    parameters = [p.name for p in model.parameters]
    kept = [name for name in parameters if name in model.graph.tensors and not model.graph.tensors[name].frozen]
    return f"trains {', '.join(kept)} alone" if kept and len(kept) < len(parameters) else ""
