"""Whether a program fits, as text: what is held against the memory, the sizes that would fit, and the wires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from placealg.check.changes import Change
from placealg.cost.compute import Compute, value_of
from placealg.cost.formula import json_number
from placealg.cost.layouts import Layout
from placealg.cost.machines import found_in
from placealg.cost.memory_hypotheses import LEAST, certain_if
from placealg.cost.sizing import NO_MARGIN, Degree, Fit, Margin
from placealg.cost.times import HYPOTHESES
from placealg.frozen import FrozenMap
from placealg.render.cost import known_sizes
from placealg.render.text_layout import Cell, Line, Span, bold, dim, indent, line, plain, prose, table
from placealg.render.values import Scale, number, scale_for, scaled

_LISTED = 8
_NONE = "—"
CONVENTIONS: Mapping[str, str] = {
    "peak": "peak: the most that a device holds at any moment of the step, with the tensors that its ops work on",
    "total": "total: states, activations and the most of states beyond rest, each at its largest; working tensors are "
             "left out",
}
"""What is held against the memory -> what it counts."""
NOT_COUNTED = ("what the framework itself holds, for which --reserve and --activation-factor set memory aside: "
               "fragmentation, buffers of its libraries, copies that a kernel keeps")
LOWER_BOUND = "the largest of its parts, since a step may overlap them all, under "


@dataclass(frozen=True, slots=True, repr=False)
class Sized:
    """All that is told: the stages, the tightest first, whose `compute` is told; the sizes they stand at, the layouts
    that fit where devices were to be laid out.

    `rate` is in flop per second, `speeds` in bytes per second by set of axes, `seconds` what each takes alone at its
    bandwidth, `bound` the parts of what a step takes at least, as far as rates are known.
    `sequences` are those of a step, `batch` as many of them as were asked for; `measured` is the peak of a real step.
    `changes` are those with which it fits where it does not, priced at the rates of the machine `priced`.
    """

    title: str
    stages: Sequence[Fit]
    sizes: Mapping[str, Fraction]
    axes: Sequence[str]
    layouts: Sequence[Layout] | None
    compute: Compute
    rate: Fraction | None
    speeds: Mapping[str, Fraction]
    seconds: Mapping[str, Fraction]
    sequences: int | None = None
    batch: int | None = None
    measured: Fraction | None = None
    bound: Mapping[str, Fraction] = FrozenMap()
    changes: Sequence[Change] | None = None
    priced: str = ""

    @property
    def fits(self) -> bool:
        """Whether every stage fits, with what is set aside."""
        return all(f.fits for f in self.stages)

    def __repr__(self) -> str:
        return "\n".join(plain(text).rstrip() for text in page(self, 100))

    @property
    def devices(self) -> int:
        """How many devices the sizes have."""
        count = 1
        for axis in self.axes:
            count *= int(self.sizes[axis])
        return count


def page(sized: Sized, width: int, gib: bool = False) -> list[Line]:
    """The whole page: a block per stage, layouts, compute, and what would fit where it does not."""
    fits = all(f.fits for f in sized.stages)
    verdict = Span("FITS", "green") if fits else Span("DOES NOT FIT", "bold red")
    lines = [line(bold(sized.title), ": ", verdict), *indent(prose(meaning(sized, gib), width - 2, hang=2))]
    formulas = [*(f.formula for f in sized.stages), sized.compute.flop, *(t.bytes for t in sized.compute.traffic)]
    known: list[list[Cell]] = [[dim(kind), dim(text)] for kind, text in known_sizes(formulas, sized.sizes)]
    known.append([dim("devices"), dim(number(sized.devices))])
    if sized.sequences is not None:
        known.append([dim("batch"), dim(f"{number(sized.sequences)} sequences in a step")])
    lines += [*indent(table(known, "ll", width - 2, wrap={1: 30})), ()]
    for found in sized.stages:
        measured = sized.measured if found is sized.stages[0] else None
        lines += [*_stage(found, found is sized.stages[-1], width, gib, measured), ()]
    if sized.layouts is not None:
        lines += [*_layouts(sized, width, gib), ()]
    lines += _compute(sized, width, gib)
    return lines if sized.changes is None else [*lines, (), *_changes(sized, sized.changes, width, gib)]


def meaning(sized: Sized, gib: bool = False) -> str:
    """What the verdict says: how much a device needs at least, and what is set aside beyond that."""
    full = sized.stages[0]
    scale = scale_for("bytes", [full.memory, full.value], gib)
    need, memory = scaled(full.counted, scale.divisor), scaled(full.memory, scale.divisor)
    aside = full.value - full.counted
    if aside:
        margin = f"{scaled(aside, scale.divisor)} {scale.head} are set aside ({_margin(full.margin, scale)})"
    elif full.fits:
        margin = f"what frameworks hold besides must fit in the other {scaled(full.left, scale.divisor)} {scale.head}"
    else:
        margin = "nothing is set aside for what frameworks hold besides"
    unknown = "" if full.held.activations.expr is not None else f", and activations, which are not counted: " \
        f"{full.held.activations.reason}"
    return f"needs at least {need} of {memory} {scale.head}{unknown}; {margin}{_sold(sized, scale)}"


def _sold(sized: Sized, scale: Scale) -> str:
    """Of a memory as devices are sold, that programs find more in them, where that would do."""
    limit, need = sized.stages[0].memory, max(f.value for f in sized.stages)
    one = None if sized.fits else found_in(limit, need)
    if one is None or one.memory is None:
        return ""
    return (f"; it would fit where programs find {scaled(one.memory, scale.divisor)} {scale.head}, as drivers report "
            f"of the {float(limit / 10**9):g} GB of {one.name}: --device-memory {int(one.memory / 2**20)}MiB")


def _margin(margin: Margin, scale: Scale) -> str:
    told = [f"--reserve {scaled(margin.reserve, scale.divisor)}{scale.head}"] if margin.reserve else []
    told += [f"--activation-factor {float(margin.factor):g}"] if margin.factor != 1 else []
    return ", ".join(told)


def _stage(found: Fit, last: bool, width: int, gib: bool, measured: Fraction | None) -> list[Line]:
    """What a device of a stage holds, and which sizes would fit; under the last one, what is counted."""
    scale = scale_for("bytes", [found.memory, found.value], gib)
    lines = [line(bold(f"memory of {_device(found)}"), dim(f", in {scale.head}"))]
    rows: list[list[Cell]] = []
    for term in sorted(found.terms, key=lambda t: -t.value):
        share = f"{float(100 * term.value / found.value):.1f} %" if found.value else _NONE
        text = term.formula.text()
        rows.append([term.name, text if len(text) <= 240 else dim(f"{_NONE} {len(text)} signs: --format json has it"),
                     scaled(term.value, scale.divisor), share])
    total = found.kind if found.margin == NO_MARGIN else f"{found.kind} and margin"
    rows += [[bold(total), "", bold(scaled(found.value, scale.divisor)), ""],
             [f"{'≤' if found.fits else '>'} memory", "", scaled(found.memory, scale.divisor), ""],
             ["left" if found.fits else "over", "", scaled(abs(found.left), scale.divisor), ""]]
    lines += [*indent(table(rows, "lldr", width - 2, wrap={1: 30})), ()]
    facts: list[list[Cell]] = [[dim("in the way"), _way(found)], [dim("microbatch"), _microbatch(found, scale)]]
    facts += [[dim("smallest" if k == 0 else ""), _degree(d)] for k, d in enumerate(found.degrees)]
    if measured is not None:
        facts += [[dim("measured" if k == 0 else ""), text] for k, text in enumerate(_measured(found, measured, scale))]
    if last:
        facts += [[dim("loss" if k == 0 else ""), note] for k, note in enumerate(_loss(found))]
        facts += [[dim("convention"), CONVENTIONS[found.kind]], [dim("certain"), certain(found)]]
        facts += [[dim("left out" if k == 0 else ""), text] for k, text in enumerate(left_out(found))]
    return lines + indent(table(facts, "ll", width - 2, wrap={1: 30}))


def _device(found: Fit) -> str:
    return f"a device of {found.stage}" if found.step.reference.pipeline.axis else "a device"


def certain(found: Fit) -> str:
    """Under what it is certain that less memory than is counted does not do."""
    return f"that less does not do, under {', '.join(certain_if(found.step))}: placealg explain NAME"


def left_out(found: Fit) -> list[str]:
    """What is not held against the memory."""
    return [NOT_COUNTED] if found.held.activations.expr is not None else [found.held.activations.reason, NOT_COUNTED]


def _measured(found: Fit, measured: Fraction, scale: Scale) -> list[str]:
    """A measured peak beside what is counted, and the margins that make them equal."""
    told = f"{scaled(measured, scale.divisor)} {scale.head}"
    if measured < found.counted:
        return [f"{told} are {float(measured / found.counted):.3f} of what is counted: at other sizes, or of another "
                "placement"]
    reserve, factor = found.margin.to_hold(measured, found.counted, found.states)
    ways = f"--reserve {scaled(reserve, scale.divisor)}{scale.head}" + (
        "" if factor is None else f", or --activation-factor {float(factor):.3f}")
    return [f"{told} are {float(measured / found.counted):.3f} of what is counted; {ways} counts as much"]


def _loss(found: Fit) -> list[str]:
    """How the loss is run, as the note of the activations says."""
    return [n for n in found.held.activations.note.split("; ") if n.startswith("the loss ")]


def _way(found: Fit) -> str:
    term = found.largest
    names = ", ".join(term.formula.names).replace("Psi", "Ψ")
    rest = found.value - term.value
    without = "the rest would fit" if rest <= found.memory else "the rest alone does not fit either"
    return f"{term.name}, the largest term ({names})" + ("" if found.fits else f"; without it, {without}")


def _microbatch(found: Fit, scale: Scale) -> str:
    if found.microbatch is None:
        return "b does not matter: activations are not known" if "b" not in found.formula.inputs else "any b fits"
    told = f"the largest b that fits is {number(found.microbatch)}" if found.microbatch else "not even b = 1 fits"
    if found.rising is None:
        return told
    rest, slope, memory = (scaled(v, scale.divisor) for v in (*found.rising, found.memory))
    return f"{told}: {rest} + {slope}·b ≤ {memory} {scale.head}"


def _degree(found: Degree) -> str:
    tried = f" (of the divisors {_some(found.tried)})" if found.tried else ""
    if found.smallest is None:
        left = f": {scaled(found.left, 10**9)} GB stay however large it is" if found.left is not None else ""
        return f"no {found.axis} fits{tried}{left}"
    power = f", {found.axis} = {number(found.power)} of the powers of two" if found.power not in (
        None, found.smallest) else ""
    return f"{found.axis} = {number(found.smallest)}{power}{tried}, the other sizes as they are"


def _some(values: Sequence[int]) -> str:
    listed = [str(v) for v in values]
    return ", ".join(listed if len(listed) <= 10 else [*listed[:4], "...", *listed[-2:]])


def _changes(sized: Sized, every: Sequence[Change], width: int, gib: bool) -> list[Line]:
    """What would fit, the least device time first."""
    if not every:
        return [line(bold("changes"), dim(": of those that are tried none fits, nor do two together"))]
    scale = scale_for("bytes", [change.need for change in every], gib)
    priced = every[0].price is not None
    rows: list[list[Cell]] = [[bold("change"), bold(f"needs, {scale.head}"), bold("devices"),
                               *([bold("device time")] if priced else [])]]
    for change in every:
        price: list[Cell] = [] if change.price is None else [f"x {float(change.price):.2f}"]
        rows.append([" and ".join(change.words), scaled(change.need, scale.divisor), number(change.devices), *price])
    steps = "single changes" if len(every[0].words) == 1 else "no single change does; of two at once those"
    told = "what they cost is not known where units run whole: say --model" if not priced else (
        "device time: what a sequence takes of all devices, beside the case above, by the estimate of search at the "
        f"rates of {sized.priced}")
    order = "cheapest" if priced else "fewest devices"
    return [line(bold("changes"), dim(f" that fit: {steps}, {order} first")),
            *indent(table(rows, "lrrr"[:len(rows[0])], width - 2)), *indent(prose(told, width - 2, "dim", hang=2))]


def _layouts(sized: Sized, width: int, gib: bool) -> list[Line]:
    """The layouts of the devices that fit: most flop per byte first, or least sent where flop are not known."""
    every = sized.layouts or ()
    if not every:
        return [line(bold("layouts"), dim(": none fits; the one above holds least"))]
    held = scale_for("bytes", [layout.value for layout in every], gib)
    sent = scale_for("bytes", [layout.sent for layout in every], gib)
    count = "m" if sized.batch else "batch"
    head: list[Cell] = [*(bold(a) for a in sized.axes), bold(count), bold(f"held, {held.head}"),
                        bold(f"sent, {sent.head}"), bold("flop per byte"), bold("largest b")]
    rows: list[list[Cell]] = [head]
    for layout in every[:_LISTED]:
        batch = layout.microbatches if sized.batch else layout.sequences
        rows.append([*(number(layout.axes[a]) for a in sized.axes), _NONE if batch is None else number(batch),
                     scaled(layout.value, held.divisor),
                     scaled(layout.sent, sent.divisor),
                     _NONE if layout.per_byte is None else f"{float(layout.per_byte):,.1f}",
                     _NONE if layout.microbatch is None else number(layout.microbatch)])
    more = f"; the first {_LISTED} are" if len(every) > _LISTED else " is" if len(every) == 1 else "; all are"
    order = "least sent first" if sized.batch or every[0].per_byte is None else "most flop per byte sent first"
    lines = [line(bold("layouts"), dim(f": {len(every)} fit{'s' * (len(every) == 1)}{more} shown, {order}")),
             *indent(table(rows, "r" * len(head), width - 2))]
    if not sized.batch and len({layout.sequences for layout in every}) > 1:
        lines += indent(prose("batch: the sequences of a step, which differ; --batch N compares layouts at the same "
                              "work", width - 2, "dim", hang=2))
    if any(not layout.even for layout in every):
        lines += indent(prose("stages that do not divide the layers differ by one layer; the fullest is printed",
                              width - 2, "dim", hang=2))
    return lines


def _compute(sized: Sized, width: int, gib: bool) -> list[Line]:
    """Arithmetic, and of every set of axes the traffic, flop per byte, and the bandwidth that hides it."""
    work, sizes = sized.compute, sized.sizes
    if work.flop.expr is None:
        lines = [line(bold("compute"), dim(f" {_NONE} {work.flop.reason}"))]
    else:
        value = value_of(work.flop, sizes)
        lines = [line(bold("compute"), f", flop of {_device(sized.stages[0])} in a step: {work.flop.text()}",
                      "" if value is None else f" = {float(value):.4g}")]
        lines = prose("".join(s.text for s in lines[0]), width, hang=2)
    scale = scale_for("bytes", [value_of(t.bytes, sizes) for t in work.traffic], gib)
    head: list[Cell] = [bold("over"), bold(f"sent, {scale.head}"), bold("flop per byte")]
    head += [bold("hidden at, GB/s")] if sized.rate else []
    head += [bold("alone, s")] if sized.seconds else []
    rows = [head]
    for traffic in work.traffic:
        intensity = value_of(traffic.intensity, sizes)
        row: list[Cell] = [traffic.axes, scaled(value_of(traffic.bytes, sizes), scale.divisor),
                           _NONE if intensity is None else f"{float(intensity):,.1f}"]
        if sized.rate:
            needed = traffic.needed(sized.rate, sizes)
            row.append(_NONE if needed is None else f"{float(needed / 10**9):,.3f}")
        if sized.seconds:
            row.append(_seconds(sized.seconds.get(traffic.axes)))
        rows.append(row)
    if work.traffic:
        lines += indent(table(rows, "lrrrr"[:len(head)], width - 2))
    if sized.bound:
        parts = sorted(sized.bound, key=lambda part: -sized.bound[part])
        told = ", ".join(f"{part} {_seconds(sized.bound[part])} s" for part in parts)
        lines += indent(prose(f"a step takes at least {_seconds(sized.bound[parts[0]])} s ({told}): {LOWER_BOUND}"
                              f"{', '.join(HYPOTHESES)}: placealg explain NAME", width - 2, hang=2))
    return lines


def _seconds(value: Fraction | None) -> str:
    return _NONE if value is None else f"{float(value):.4g}"


def document(sized: Sized) -> dict[str, Any]:
    """The same as JSON; a formula is a leaf with its value at the sizes."""
    def leaf(formula: Any) -> dict[str, Any]:
        found: dict[str, Any] = formula.to_json(**{n: v for n, v in sized.sizes.items() if n in formula.inputs})
        return found
    work = sized.compute
    return {
        "fits": sized.fits,
        "meaning": meaning(sized), "sequences": sized.sequences,
        "sizes": {n: json_number(v) for n, v in sized.sizes.items()}, "devices": sized.devices,
        "stages": [{
            "stage": f.stage, "convention": f.kind, "fits": f.fits, "memory": json_number(f.memory),
            "held": leaf(f.formula), "left": json_number(f.left), "needs_at_least": json_number(f.counted),
            "reserve": json_number(f.margin.reserve), "activation_factor": json_number(f.margin.factor),
            "terms": [{"name": t.name, **leaf(t.formula), "share": float(t.value / f.value) if f.value else None}
                      for t in f.terms],
            "in_the_way": f.largest.name, "largest_b": f.microbatch,
            "left_out": left_out(f), "certain_if": {name: LEAST[name] for name in certain_if(f.step)},
            "inequality": f"{f.formula.expr} <= {json_number(f.memory)}",
            "smallest": {d.axis: {"degree": d.smallest, "power_of_two": d.power, "divisors": list(d.tried),
                                  "stays": None if d.left is None else json_number(d.left)} for d in f.degrees},
        } for f in sized.stages],
        "layouts": None if sized.layouts is None else [
            {"axes": dict(o.axes), "held": json_number(o.value), "sent": json_number(o.sent),
             "flop_per_byte": _optional(o.per_byte), "largest_b": o.microbatch, "sequences": o.sequences,
             "microbatches": o.microbatches, "even_stages": o.even}
            for o in sized.layouts],
        "changes": None if sized.changes is None else [
            {"words": list(c.words), "needs": json_number(c.need), "devices": c.devices,
             "device_time": _optional(c.price)} for c in sized.changes],
        "compute": {
            "flop": leaf(work.flop),
            "traffic": [{"axes": t.axes, "sent": leaf(t.bytes), "flop_per_byte": leaf(t.intensity),
                         "bytes_per_second_to_hide": _optional(t.needed(sized.rate, sized.sizes) if sized.rate
                                                               else None)} for t in work.traffic],
            "seconds_alone": {n: json_number(v) for n, v in sized.seconds.items()},
            "lower_bound": {"seconds": _optional(max(sized.bound.values(), default=None)),
                            "of": {n: json_number(v) for n, v in sized.bound.items()},
                            "certain_if": dict(HYPOTHESES)} if sized.bound else None,
        },
    }


def _optional(value: Fraction | None) -> int | float | None:
    return None if value is None else json_number(value)
