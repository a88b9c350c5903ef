"""The cost of a program as one JSON document: every figure a leaf with its expression, unit and value."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from placealg.cost.amounts import Tally
from placealg.cost.costs import Costs
from placealg.cost.expressions import Size, exact_size
from placealg.cost.formula import Formula, json_number
from placealg.cost.memory import chosen
from placealg.cost.memory_hypotheses import LEAST, certain_if
from placealg.cost.rings import RING
from placealg.cost.schedule import NO_STAGES
from placealg.cost.schedule import assumed as of_stage
from placealg.cost.stage import StageStep
from placealg.cost.walk import Walk, walked
from placealg.mesh import PREDICTION, SYMBOLS, axis_symbol
from placealg.placement import MEMORY_TIERS
from placealg.step.event import dim_of
from placealg.step.program import Step
from placealg.step.verbs import BYTES, MOMENT
from placealg.strategy.vocabulary import DOUBTED, WIRE_W

ASSUMED = (
    "sizes divide: every shard is exactly 1/n of its tensor",
    "the figures are those of the most loaded device",
    "a gradient is reduced in place: where wire exceeds g, the wire - g more bytes of a unit are not counted",
)
"""The assumptions behind every figure."""

MOMENTUM = ("Muon keeps one moment of the matrices that it updates, where o counts Adam's two, 4 bytes each; the "
            "embedding, the head and vectors are Adam's")
"""What the figures take for granted of Muon's state."""

APART = "4 of the o bytes per element are the fp32 master copy, the other o - 4 the moments"
"""What the figures take for granted besides where the two are not always on one tier and in one layout."""

OF_TENSORS = (
    "b is the sequences of one device and microbatch, however many axes split the batch",
    "act is the size of activations and of their gradients; a mask takes 1 byte, a statistic or a choice 4",
    "token ids and targets are no activations, attributes of tokens are; norms keep no row statistics",
    "a product takes 2 flop per multiply-add; attention is counted full, norms and elementwise work are not",
)
"""The further assumptions behind the figures of a program of ops."""

ROUNDED = "a weight on the wire takes no buffer of its own: only what it becomes, w or use bytes each, is counted"
"""The further assumptions if gathered weights have an element size of their own."""

BALANCED = f"balanced_experts: {LEAST['balanced_experts']}"
"""The further assumptions behind the figures of a program whose experts are split."""

RINGS = "of what goes round a ring a device holds two blocks at a time, one in use and one that arrives"
"""The further assumptions behind the figures of a program with rings."""

SUMMED_IN_RINGS = ("a ring sums a gradient with its owner's part last, in n - 1 hops; PyTorch's starts at the owner "
                   "and brings it home, which makes n")
"""The further assumptions behind the figures of a program with rings that sum gradients."""


OVERLAPPED = ("of what overlaps the flat buffers of gathers are counted where [overlap] buffers is a number, beside "
              "the copy in use; inputs and results of reductions are not")
"""The further assumptions behind the figures of a program that says on which streams events run."""

PREDICTS = "the model has its layers that predict later tokens (--mtp), since a stage has these alone"
"""Said of a strategy that gives those layers a stage: it asks for a model that has them."""


def assumed(program: Step | Walk, of_tensors: bool = True) -> tuple[str, ...]:
    """The assumptions behind the figures of a program; with `of_tensors` also those of a program of ops."""
    walk = walked(program)
    step = walk.step
    missing = tuple(f"the model leaves out {part}" for part in step.reference.left_out)
    if PREDICTION in step.reference.pipeline.alone:
        missing = (PREDICTS, *missing)
    graph = step.reference.graph
    every = ASSUMED if not isinstance(step, StageStep) else (ASSUMED[0], *of_stage(step), *ASSUMED[2:])
    if _master_apart(walk):
        every = (*every, APART)
    used = {group.optimizer for group in step.reference.groups}
    every = (*every, *(why for name, why in DOUBTED.items() if name in used))
    if any(g.one_moment for g in step.reference.groups):
        every = (*every, MOMENTUM)
    if any(e.bytes == WIRE_W for e in step.events):
        every = (*every, ROUNDED)
    if step.reference.buffers:
        every = (*every, OVERLAPPED)
    every = (*every, f"memory is what the program must hold, never more, under {', '.join(certain_if(step))}")
    if walk.unknown or not of_tensors:
        return (*every, *missing)
    routed = {d for t in graph.tensors.values() for d in t.sparse}
    rings = [e for e in step.events if e.verb == RING]
    split = {dim_of(place) for e in step.events if e.on_tensor for place in (e.source, e.to)}
    return (*every, *OF_TENSORS, *((BALANCED,) if routed & split else ()),
            *((RINGS,) if rings else ()), *((SUMMED_IN_RINGS,) if any(e.on_gradient for e in rings) else ()), *missing)


def _master_apart(walk: Walk) -> bool:
    """Whether at some event the master copy and the moments of a group are held on two tiers, or in two layouts."""
    pictures = (tally for tier in MEMORY_TIERS for tally in walk.account.pictures(tier).distinct)
    return any(_where(tally, BYTES["master"]) != _where(tally, BYTES["moments"], MOMENT) for tally in pictures)


def _where(tally: Tally, *sizes: str) -> Tally:
    """The buffers of some element sizes, as buffers of none."""
    return Tally({(group, part, "", axes): n for (group, part, of, axes), n in tally.items() if of in sizes})


def cost_json(step: Step, sizes: Mapping[str, Size] | None = None, convention: str = "exact",
              unit: str = "bytes", stage: int | str | None = None) -> dict[str, Any]:
    """The document `cost` (version 1): symbols stay in `expr`; each `value` is at `sizes` and the defaults.

    `unit` is that of communication; memory is in bytes. Volumes keep m, whose default is 1. With a pipeline, every
    figure is that of `stage`, as in `chosen`.
    """
    step = chosen(step, stage, {n: exact_size(n, v) for n, v in (sizes or {}).items()})
    costs = Costs(step, convention, unit)
    count, sent, order = costs.parameters, costs.communication, costs.schedule
    leaves = [count, *costs.named("memory", "communication", "schedule").values(),
              *(f for e in sent.events for f in (e.formula, e.count)), costs.flop, *(k.bytes for k in costs.kept)]
    bound = {n: exact_size(n, v) for n, v in (sizes or {}).items()}
    named = {*bound}.union(*(f.names for f in leaves))
    used = [n for n in (*SYMBOLS, *step.reference.mesh.names) if n in named]
    known = {**count.values, **bound}
    if "Psi" in used and "Psi" not in known and (total := _value(count, bound)) is not None:
        known["Psi"] = Fraction(total)

    def leaf(formula: Formula) -> dict[str, Any]:
        inputs = formula.inputs
        return formula.to_json(**{n: v for n, v in bound.items() if n in inputs})

    return {
        "version": 1,
        "strategy": step.reference.strategy,
        "model": step.reference.model,
        "sizes": {n: json_number(known[n]) for n in used if n in known},
        "convention": convention,
        "unit": unit,
        "hypotheses": list(assumed(costs.walk)),
        "symbols": {n: _symbol(n) for n in used},
        "parameters": leaf(count),
        "memory": {name: leaf(f) for name, f in costs.memory.items()},
        "communication": {
            "total": leaf(sent.total),
            "by_axes": {axes: leaf(f) for axes, f in sent.by_axes.items()},
            "by_phase": {phase: leaf(f) for phase, f in sent.by_phase.items()},
            "host_link": leaf(sent.host_link),
            "nvme_link": leaf(sent.nvme_link),
            "events": [{"path": e.path, "axes": list(e.axes), "collective": e.collective, **leaf(e.formula),
                        "count": leaf(e.count), "convention": e.convention, "left_out": e.left_out or None}
                       for e in sent.events],
        },
        "saved": [{"tensor": k.tensor, "region": k.region, "layout": k.layout, "mode": k.mode,
                   "readers": list(k.readers), "why": k.why, "count": leaf(k.count), "bytes": leaf(k.bytes)}
                  for k in costs.kept],
        "regions": [{"region": r.region, "activations": leaf(r.activations), "sent": leaf(r.sent)}
                    for r in costs.regions],
        "compute": {"flop": leaf(costs.flop)},
        "schedule": {"stage": step.stage.name, **{name: leaf(f) for name, f in order.items()}}
        if order and isinstance(step, StageStep)
        else {name: leaf(Formula.none("1", NO_STAGES)) for name in ("bubble", "in_flight")},
    }


def _value(formula: Formula, bound: Mapping[str, Fraction]) -> int | Fraction | None:
    return formula.if_known(**{n: v for n, v in bound.items() if n in formula.inputs})


def _symbol(name: str) -> dict[str, str]:
    known = SYMBOLS.get(name) or axis_symbol(name)
    return {"meaning": known.meaning, "assumptions": known.assumption}
