"""Costs as text: every formula with its number beside it, units and conventions said."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from placealg.cost.activations import KeptStorage
from placealg.cost.communication import Communication, EventVolume
from placealg.cost.costs import Costs
from placealg.cost.formula import Formula
from placealg.cost.memory import Memory
from placealg.cost.peak_parts import MOMENT, moment
from placealg.cost.regions import RegionCost
from placealg.mesh import SYMBOLS
from placealg.models.names import UNMOVED
from placealg.render.text_layout import Cell, Line, bold, dim, indent, line, table
from placealg.render.values import Scale, number, plain_number, scale_for, scaled
from placealg.step.pipeline import TIMES

Sizes = Mapping[str, Fraction]
CONVENTIONS = {
    "exact": "exact: an event on n devices keeps its factor (n − 1)/n",
    "asymptotic": "asymptotic: (n − 1)/n is replaced by 1 in communication, never in memory",
}
QUANTITIES: Mapping[str, str] = {
    "parameters": "bytes of the weights that rest on a device between steps",
    "optimizer": "bytes of the optimizer state, fp32 master copy included, that rest on a device",
    "gradients": "bytes of the accumulated gradients that rest on a device",
    "states": "parameters + optimizer + gradients: what rests on a device at a step boundary",
    "activations": "bytes that forward keeps for backward, of all of a device's layers and microbatches in flight",
    "transient": "the most of states that a device holds beyond rest at once, such as a gathered unit",
    "host": "the most that the host holds at once for one device",
    "nvme": "the most that the host's nvme holds at once for one device",
    "total": "states + activations + transient on the device; of what is sent, the sum over all axes",
    "peak": "the most that a device holds at once, with the tensors that its ops work on",
    "sent": "what one device sends in a step over the axes of the mesh, scalars left out",
    "host link": "what crosses the link between a device and its host in a step, apart from what is sent",
    "nvme link": "what crosses the link between a device's host and its nvme in a step, apart from what is sent",
    "bubble": "the time that a stage of a pipeline waits in a step, over the time that it works",
    "in flight": "the most microbatches that a stage of a pipeline has run forward and not backward, chunks as parts",
    "waiting": "the time that the first stage of a pipeline waits between its first and its last item of a step",
}
"""Quantity -> what it counts, on the most loaded device."""

_NOTHING = "—"
_LONGEST = 320
"""A formula longer than this, in characters, stands in the documents only."""


def value_of(formula: Formula, sizes: Sizes) -> int | Fraction | None:
    """The formula's value at `sizes`; None while a symbol is free."""
    return formula.if_known(**{n: v for n, v in sizes.items() if n in formula.inputs})


def known_sizes(formulas: Iterable[Formula], sizes: Sizes, without: Collection[str] = ()) -> list[tuple[str, str]]:
    """What the values stand on: axis sizes and m, bytes per element, the model's sizes, and what is free."""
    every = list(formulas)
    bound: dict[str, Fraction] = {}
    for f in every:
        bound.update(f.values)
    bound.update(sizes)
    for f in every:
        bound.update({n: Fraction(value) for n, value in f.amounts(sizes).items() if n not in bound})
    used = dict.fromkeys(n for f in every for n in (*f.names, *(n for n in f.inputs if n in bound))
                         if n not in without)
    kinds: dict[str, list[str]] = {"sizes": [], "bytes": [], "model": [], "free": []}
    for name in (*(n for n in used if n not in SYMBOLS), *(n for n in SYMBOLS if n in used)):
        if name not in bound:
            kinds["free"].append(_sign(name))
            continue
        element = name in SYMBOLS and SYMBOLS[name].assumption == "positive rational"
        size = name not in SYMBOLS or name in ("m", "b", "s", *TIMES)
        kind = "sizes" if size else "bytes" if element else "model"
        value = bound[name]
        kinds[kind].append(f"{_sign(name)} = {number(int(value)) if value >= 10**4 else plain_number(value)}")
    return [(kind, ", ".join(shown)) for kind, shown in kinds.items() if shown]


def _sign(name: str) -> str:
    return name.replace("Psi", "Ψ")


def cost(title: str, costs: Costs, sizes: Sizes, hypotheses: Iterable[str], width: int, gib: bool = False,
         detail: tuple[str, list[Line]] | None = None, unmoved: int = 0) -> list[Line]:
    """The parameters, memory, communication by axes and phase, then event by event or `detail`; what they stand on.

    Of a pipeline's stage also its schedule. `unmoved` are further numbers of a checkpoint, which no gradient moves.
    """
    count, held, sent = costs.parameters, costs.memory, costs.communication
    order = costs.named("schedule")
    formulas = [count, *(f for _, f in held.items()), *(e.formula for e in sent.events), *order.values()]
    held_in = scale_for("bytes", (value_of(f, sizes) for _, f in held.items()), gib)
    moved = (sent.total, sent.host_link, sent.nvme_link)
    sent_in = scale_for(sent.total.unit, (value_of(f, sizes) for f in moved), gib)
    number_of = value_of(count, sizes)
    known: list[list[Cell]] = [
        [dim("parameters"), count.text() + ("" if number_of is None else f" = {number(int(number_of))}")]]
    if (trained := costs.trained) is not None:
        met = value_of(trained, sizes)
        known.append([dim("trains"), trained.text() + ("" if met is None else f" = {number(int(met))}") +
                      "; all other parameters are frozen"])
    if unmoved and number_of is not None:
        known.append([dim("checkpoint"), f"{number(int(number_of) + unmoved)}; {UNMOVED.format(number(unmoved))}"])
    for kind, text in known_sizes(formulas, sizes):
        known.append([dim(kind), dim(text)])
    lines = [line(bold(title)), *indent(table(known, "ll", width - 2, wrap={1: 30})), ()]
    lines.append(line(bold("memory of a device"), dim(f", bytes; values in {held_in.head}")))
    lines += indent(_block(_held(held, sizes), sizes, held_in, width - 2)) + [()]
    lines.append(line(bold("sent by a device in a step"), dim(f", {sent.total.unit}; values in {sent_in.head}")))
    lines += indent(_block(_sums(sent), sizes, sent_in, width - 2)) + [()]
    if order:
        lines.append(line(bold("schedule of the pipeline")))
        lines += indent(_block([(n, f, f.text()) for n, f in order.items()], sizes,
                        scale_for("1", ()), width - 2)) + [()]
    heading, rest = detail or ("of which, event by event", _events([e for e in sent.events if not e.left_out], sizes,
                                                                   sent_in, width - 2))
    lines += [line(bold(heading)), *indent(rest), ()]
    rows: list[list[Cell]] = [[dim("convention"), CONVENTIONS[sent.total.convention]]]
    notes = dict.fromkeys(n for _, f in held.items() for n in f.note.split("; ") if n)
    rows += [[dim("note" if k == 0 else ""), note.replace("Psi", "Ψ")] for k, note in enumerate(notes)]
    rows += [[dim("left out" if k == 0 else ""), text] for k, text in enumerate(_left_out(sent))]
    rows += [[dim("assuming" if k == 0 else ""), text] for k, text in enumerate(hypotheses)]
    return lines + indent(table(rows, "ll", width - 2, wrap={1: 30}))


def _block(items: Iterable[tuple[str, Formula, str]], sizes: Sizes, scale: Scale,
           width: int) -> list[Line]:
    rows: list[list[Cell]] = []
    for name, formula, text in items:
        value = value_of(formula, sizes)
        shown = scaled(value, scale.divisor)
        told: Cell = dim(f"{_NOTHING} {formula.reason}") if formula.expr is None else _told(text)
        main = name in ("states", "total", "peak")
        rows.append([bold(name) if main else name, told, bold(shown) if main else shown])
    return table(rows, "lld", width, gap=3, wrap={1: 30})


def _held(held: Memory, sizes: Sizes) -> Iterator[tuple[str, Formula, str]]:
    """The rows of memory; one too long to be read is written by the names of the others.

    Of a peak that is what the largest moment adds at `sizes`, where they are known and it is not too long itself.
    """
    kept = {"states": held.states, "activations": held.activations, "transient": held.transient}
    sums = [name for name, f in kept.items() if f.expr not in (None, 0)]
    for name, formula in ((n, f) for n, f in held.items() if n != "nvme" or f.expr != 0):
        text = formula.text() if formula.expr is not None else ""
        if len(text) > _LONGEST and name == "total":
            text = " + ".join(sums)
        elif len(text) > _LONGEST and name == "peak":
            more = "the largest moment: --format json has it"
            if value_of(formula, sizes) is not None:
                here = dict(moment(held, "peak", sizes)).get(MOMENT)
                adds = here.text() if here else "0"
                more = f"{adds} here, at the largest moment" if len(adds) <= _LONGEST else more
            text = " + ".join([*(n for n in sums if n != "transient"), more])
        yield name, formula, text


def _told(text: str) -> Cell:
    """A formula, unless it is too long to be read."""
    if len(text) <= _LONGEST:
        return text
    return dim(f"{_NOTHING} {len(text)} signs: --format json has it")


def saved(kept: Sequence[KeptStorage], sizes: Sizes, width: int, gib: bool = False) -> list[Line]:
    """A row per tensor that forward keeps for backward: how it is held, what it takes in all layers, and for what."""
    if not kept:
        return [line(dim("no tensor is kept: units run whole"))]
    scale = scale_for("bytes", (value_of(k.bytes, sizes) for k in kept), gib)
    head: list[Cell] = [bold(w) for w in ("kept for backward", "split", "mode", "bytes", scale.head, "why")]
    rows: list[list[Cell]] = [head]
    for k in kept:
        rows.append([k.tensor, dim(k.layout), k.mode, k.bytes.text(),
                     scaled(value_of(k.bytes, sizes), scale.divisor), dim(k.why)])
    return table(rows, "llllrl", width, wrap={1: 14, 3: 16, 5: 20})


def by_region(rows: Sequence[RegionCost], sizes: Sizes, width: int, gib: bool = False) -> list[Line]:
    """A row per region of the model: what is kept for backward, and what is sent."""
    held = scale_for("bytes", (value_of(r.activations, sizes) for r in rows), gib)
    unit = rows[0].sent.unit if rows else "bytes"
    moved = scale_for(unit, (value_of(r.sent, sizes) for r in rows), gib)
    head: list[Cell] = [bold(w) for w in ("region", "activations, bytes", held.head, f"sent, {unit}", moved.head)]
    cells: list[list[Cell]] = [head]
    for r in rows:
        cells.append([r.region, r.activations.text() or dim(_NOTHING),
                      scaled(value_of(r.activations, sizes), held.divisor), r.sent.text(),
                      scaled(value_of(r.sent, sizes), moved.divisor)])
    return table(cells, "llrlr", width, wrap={1: 20, 3: 20})


def _sums(sent: Communication) -> list[tuple[str, Formula, str]]:
    several = len(sent.by_axes) > 1
    total = " + ".join(f.text() for f in sent.by_axes.values()) if several else sent.total.text()
    if several and len(total) > _LONGEST:
        total = " + ".join(f"over {axes}" for axes in sent.by_axes)
    rows = [("total", sent.total, total)]
    if several:
        rows += [(f"over {axes}", f, f.text()) for axes, f in sent.by_axes.items()]
    rows += [(f"in {phase}", f, f.text()) for phase, f in sent.by_phase.items()]
    rows += [(f"{name}, apart", f, f.text()) for name, f in (("host link", sent.host_link),
                                                             ("nvme link", sent.nvme_link)) if f.expr != 0]
    return rows


def _events(events: Iterable[EventVolume], sizes: Sizes, scale: Scale, width: int) -> list[Line]:
    rows: list[list[Cell]] = []
    for event in events:
        rows.append([event.path, dim(event.collective), event.formula.text(),
                     scaled(value_of(event.formula, sizes), scale.divisor)])
    return table(rows, "llld", width, wrap={2: 24}, spill=46 if width > 100 else 0)


def _left_out(sent: Communication) -> list[str]:
    found: dict[str, list[str]] = {}
    for event in sent.events:
        if event.left_out:
            found.setdefault(event.left_out, []).append(event.path)
    return [f"{len(paths)} event{'s' * (len(paths) > 1)} ({', '.join(paths[:2])}{', ...' * (len(paths) > 2)}): {why}"
            for why, paths in found.items()]
