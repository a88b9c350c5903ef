"""Seeded random pairs of events, one that undoes the other, put around what lies between; and one more change beside.

A single edit is hardly ever right by accident. Two that hide each other are: most holes that readers found in the
prover took two edits, of which one alone was refuted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from nets import NETS
from random_programs import two_units

from placealg.arith import ONE, Monomial
from placealg.errors import InputError
from placealg.models.abstract import abstract
from placealg.models.backward import GRAD, needs_gradient
from placealg.models.model import Model
from placealg.models.transformer import mlp, moe
from placealg.step.derive import derive
from placealg.step.event import LOOPED, POSITIONS, Clause, Event
from placealg.step.program import Step
from placealg.step.well_formed import check_event
from placealg.strategy.spec import Strategy, strategy_on

MODELS: Mapping[str, Model] = {"abstract": abstract(), "two units": two_units(False), "mlp": mlp(), "moe": moe(),
                               **{name: net() for name, net in NETS.items()}}
ENTRIES = (["batch"], ["batch"], ["ffn"], ["ffn", "vocab"], ["embed"], ["vocab"], ["seq"], ["expert.expert", "batch"],
           ["loss.none", "vocab", "embed"], [])
ZERO: Mapping[str, Sequence[str]] = {"R": (), "zero1": ("optimizer",), "zero2": ("optimizer", "gradients"),
                                     "zero3": ("optimizer", "gradients", "parameters")}
COPY = 50
"""Events that are put in are numbered from here, so that no two have one path."""


def strategy(draw: Random, model: str) -> Strategy:
    """One or two axes with any dims."""
    axes = ("a1", "a2")[:draw.choice((1, 2, 2))]
    units = model in ("abstract", "two units")
    dims = {a: ["batch"] if units else draw.choice(ENTRIES) for a in axes}
    states: dict[str, dict[str, str]] = {}
    for axis in (a for a in axes if dims[a] == ["batch"]):
        for state in ZERO[draw.choice(list(ZERO))]:
            states.setdefault(state, {})[axis] = "S*" if state == "parameters" else "S"
    optimizer = {"name": draw.choice(("adamw", "adamw", "adamw", "muon", "lamb")),
                 "clip": draw.choice(("global_norm", "none")), "skip": draw.choice(("none", "none", "overflow")),
                 "tier": draw.choice(("device", "device", "host"))}
    return strategy_on("pairs", dict.fromkeys(axes), dims=dims, states=states, optimizer=optimizer,
                       loss={"preset": draw.choice(("mean_of_means", "token_mean"))})


def _axes(draw: Random, step: Step) -> tuple[str, ...]:
    names = step.reference.mesh.names
    return draw.choice([*((a,) for a in names), names])


def _where(draw: Random, step: Step) -> tuple[Clause, ...]:
    if draw.random() < 0.6:
        return ()
    return (Clause(draw.choice(step.reference.mesh.names), draw.choice((None, None, 0, 1))),)


def of_a_group(draw: Random, step: Step, group: str) -> list[Event]:
    """Two events on a state or a gradient of a group: gathered and dropped, away and back, divided and multiplied."""
    axes, where = _axes(draw, step), _where(draw, step)
    value = draw.choice(("weight", "master", "moments", "grad", "grad_sum"))
    layout = draw.choice(("own", "own", "own", "alt"))
    gather = Event("", "gather" if value == "weight" else "all_gather", value, group, axes=axes, layout=layout)
    drop = Event("", draw.choice(("slice", "free")), value, group, axes=axes, layout=layout, where=where)
    by = draw.choice((*map(Monomial.of, (axes[0], "m", "tokens", "count")), Monomial.number(2)))
    scaled = draw.choice(("grad", "grad_sum"))
    state = draw.choice(("weight", "master", "moments", "grad_sum"))
    return draw.choice((
        [gather, drop], [gather, drop], [drop, gather],
        [Event("", "scale", scaled, group, divisor=d, where=where) for d in (by, ONE / by)],
        [Event("", verb, state, group, tier=tier, where=where)
         for verb, tier in (("offload", "host"), ("free", "device"), ("fetch", "device"))],
        [Event("", "assign", "master", group, where=where), Event("", "assign", "weight", group, where=where)],
        [Event("", "broadcast", value, group, axes=axes, root=draw.choice((0, 0, 1))) for _ in range(2)]))


def of_a_tensor(draw: Random, step: Step, name: str, dims: Sequence[str]) -> list[Event]:
    """Two or three redistributions of a tensor, or of its gradient, that leave what was there, or seem to."""
    axes, one, two = _axes(draw, step), f"S({draw.choice(dims)})", f"S({draw.choice(dims)})"

    def event(verb: str, source: str = "", to: str = "", op: str = "", by: Monomial = ONE) -> Event:
        return Event("", verb, name, axes=axes, source=source, to=to, op=op, divisor=by)

    ranks = Monomial.of(*axes)
    gather, cut, pad = event("all_gather", one), event("slice", to=one), event("pad", one)
    total = event("all_reduce", op="sum")
    return draw.choice((
        [gather, cut], [cut, gather], [cut, pad, total], [pad, total], [pad, cut], [pad, total, cut],
        [pad, event("reduce_scatter", to=one, op="sum")], [event("scale", by=ranks), total],
        [event("scale", by=ranks), event("scale", by=ONE / ranks)], [event("all_reduce", op="mean")],
        [event("all_to_all", one, two), event("all_to_all", two, one)], [event("shift", one), cut], [cut]))


def put_in(draw: Random, step: Step) -> tuple[str, list[Event]]:
    """(what was put in, the events with it): each of a pair where the group or the tensor is at work."""
    events, graph = list(step.events), step.reference.graph
    if step.reference.whole or draw.random() < 0.5:
        group = draw.choice(step.reference.groups).name
        pair = of_a_group(draw, step, group)
        near = [k for k, e in enumerate(events) if e.group == group or not (e.on_tensor or e.group)]
        version = ""
    else:
        tensor = draw.choice([t for t in graph.tensors.values() if t.kind != "parameter" and t.dims])
        grad = tensor.name in needs_gradient(graph) and draw.random() < 0.4
        pair = of_a_tensor(draw, step, tensor.name + (GRAD if grad else ""), [*tensor.dims])
        about = {tensor.name, *(op.output for op in graph.consumers(tensor.name))}
        near = [k for k, e in enumerate(events) if e.on_tensor and e.tensor in about
                and e.phase == ("backward" if grad else "forward")]
        labels = [r.partition("@")[2] for e in events for r in e.reads if r.startswith(f"{tensor.name}@")]
        version = draw.choice(("", "", *labels, step.reference.mesh.names[0]))
    if not near:
        return put_in(draw, step)
    first = draw.randrange(len(near))
    places = sorted(near[min(len(near) - 1, first + draw.choice((0, 0, 1, 1, 2, 3)))] for _ in pair)
    behind, told = draw.random() < 0.7, []
    for number, (place, event) in reversed(list(enumerate(zip(places, pair, strict=True)))):
        anchor = events[place]
        at = (draw.choice(POSITIONS),) if anchor.phase in LOOPED and draw.random() < 0.1 else ()
        new = replace(event, phase=anchor.phase, unit=anchor.unit if event.group == "" else "", at=at, version=version,
                      copy=COPY + number)
        events.insert(place + behind, new)
        told.append(f"{new} {'behind' if behind else 'before'} {anchor.path}")
    return "; ".join(reversed(told)), events


def beside(draw: Random, step: Step, events: list[Event]) -> str:
    """One more change of one event; "" for none."""
    place = draw.randrange(len(events))
    event, kind = events[place], draw.choice(("drop", "axes", "where", "move", "layout", "none", "none"))
    if kind == "drop":
        del events[place]
    elif kind == "move":
        goal = max(0, min(len(events) - 1, place + draw.choice((-3, -2, -1, 1, 2, 3))))
        if events[goal].phase == event.phase:
            events.insert(goal, events.pop(place))
    else:
        if kind == "axes" and event.axes:
            event = replace(event, axes=_axes(draw, step))
        if kind == "layout" and event.group:
            event = replace(event, layout="alt")
        if kind == "where" and not event.on_tensor:
            event = replace(event, where=_where(draw, step))
        events[place] = event
    return f"; {kind} {event.path}" if kind != "none" else ""


def programs(seed: int) -> Iterator[tuple[str, Step]]:
    """(story, program) without end; what means nothing is passed over."""
    draw = Random(seed)
    while True:
        model = draw.choice(list(MODELS))
        try:
            drawn = strategy(draw, model)
            step = derive(drawn, MODELS[model])
        except InputError:
            continue
        for _ in range(3):
            told, events = put_in(draw, step)
            told += beside(draw, step, events)
            try:
                for event in events:
                    check_event(event, step.reference)
            except InputError:
                continue
            yield f"{drawn} on {model}; {told}", replace(step, events=tuple(events))
