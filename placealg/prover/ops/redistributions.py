"""Redistributions of tensors and of their gradients, as transfer rules on what every rank holds: one for each verb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from placealg.arith import ONE, Monomial
from placealg.models.backward import terms
from placealg.models.graph import Graph, unit_of
from placealg.prover.calculus.positions import DEVICE, at, dim_of, drawn, rank
from placealg.prover.ops import paths
from placealg.prover.ops.paths import Sum
from placealg.prover.ops.tensors import Tensors
from placealg.step.event import ACROSS, Event
from placealg.step.event import dim_of as dim_named
from placealg.step.pipeline import LAST, ONE_STAGE, Pipeline, part_of
from placealg.step.program import LOOPED
from placealg.step.verbs import MESSAGES


def uncovered(event: Event, graph: Graph, pipeline: Pipeline = ONE_STAGE) -> str:
    """The aspect of an event of the loop over microbatches that no rule covers; "" if a rule covers it whole.

    Stages run their microbatches in different orders: in an event in which all take part they may wait for each other.
    """
    if pipeline.among(event.axes) and event.verb not in MESSAGES and event.phase in LOOPED:
        return f"{event.verb} of {event.value} among stages of {pipeline.axis} inside the loop over microbatches"
    if not event.on_tensor:
        return ""
    if event.said:
        return _of_a_unit(event)
    if event.verb in MESSAGES:
        leaves = (event.verb == "send") != event.on_gradient
        passed = [n for x in graph.loops for n in graph.leaving(x.unit)] if leaves else [x.slot for x in graph.handed]
        if event.tensor not in passed:
            return f"{event.verb} of {event.value}, which no instance passes on"
    if pipeline.axis and _elsewhere(event, graph):
        return f"{event.verb} of {event.value} on the stage of {event.unit}"
    if event.where and event.verb in MESSAGES:
        return f"{event.verb} of {event.value} on some ranks only"
    if any(c.axis == pipeline.axis for c in event.where):
        return f"{event.verb} of {event.value} on a stage by its number"
    named = event.layout != "own" and not (event.drawn or event.renumbered)
    if (event.tier != "device" and event.verb not in ("free", *ACROSS)) or named:
        return f"{event.verb} of a tensor on tier {event.tier} in layout {event.layout}"
    effect = event.effect
    early = event.op == "premultiplied" and effect.sums and effect.divides
    starts = event.on_gradient and event.verb == "compute" and graph.producer(event.tensor) in terms(graph)
    if event.divisor != ONE and event.verb != "scale" and not (early or starts):
        return f"{event.verb} of a tensor with a divisor"
    if event.verb == "compute" and event.op not in ("", "sum"):
        return f"a computation with operator {event.op}"
    if event.phase not in LOOPED:
        return f"{event.verb} of a tensor in phase {event.phase}"
    if "from" in effect.dims and not dim_named(event.source):
        return f"{event.verb} from {event.source or 'an unnamed place'}"
    if "to" in effect.dims and not dim_named(event.to):
        return f"{event.verb} to {event.to or 'an unnamed place'}"
    if effect.sums and event.op not in ("", "sum", "mean") and not early:
        return f"{event.verb} with operator {event.op}"
    if (event.verb == "scale" or early) and not set(event.divisor.names()) <= set(event.axes):
        return "a tensor divided by more than sizes of its axes"
    producer = graph.producer(event.tensor)
    if event.verb == "compute" and (producer is None or (event.reads and len(event.reads) != len(producer.inputs))):
        return f"a computation of {event.value} from {len(event.reads)} operands"
    return ""


def _of_a_unit(event: Event) -> str:
    """The aspect of a whole unit's computation that no rule covers; "" if there is none."""
    if event.tier != "device":
        return f"compute of activation on tier {event.tier}"
    return "" if event.phase in LOOPED else f"a computation in phase {event.phase}"


def _elsewhere(event: Event, graph: Graph) -> bool:
    """Whether a tensor is moved on another stage than that of its op, or, for data, than those of its readers.

    What the last instance of the last repeated unit hands on is also on the stage of what follows.
    """
    name, here = event.tensor, part_of(event.unit, graph)
    if name not in graph.tensors:
        return False
    units = {unit_of(name)}
    if graph.tensors[name].kind == "data":
        units = {op.unit for op in graph.consumers(name)} | {e.unit for e in graph.handed if e.first == name}
    left = {loop.unit for loop in graph.loops[-1:] if name in graph.leaving(loop.unit) and here == LAST}
    return any(part_of(unit, graph) != here for unit in units - left)


def _sum(tensors: Tensors, event: Event) -> Sum:
    factor = ONE / (Monomial.of(*event.axes) if event.op == "mean" else event.divisor)
    return paths.reduced(tensors.here(event), event.axes, factor, tensors.reference.unrolled)


def _all_gather(tensors: Tensors, event: Event) -> None:
    tensors.put(event, paths.gathered(tensors.here(event), event.axes, dim_named(event.source)))


def _all_reduce(tensors: Tensors, event: Event) -> None:
    tensors.put(event, _sum(tensors, event))


def _reduce_scatter(tensors: Tensors, event: Event) -> None:
    tensors.put(event, paths.narrowed(_sum(tensors, event), [(a, at(dim_named(event.to))) for a in event.axes]))


def _all_to_all(tensors: Tensors, event: Event) -> None:
    whole = paths.gathered(tensors.here(event), event.axes, dim_named(event.source))
    tensors.put(event, paths.narrowed(whole, [(a, at(dim_named(event.to))) for a in event.axes]))


def _shift(tensors: Tensors, event: Event) -> None:
    """A ring with as many turns as there are other ranks: by lemma `ring` every rank receives every block, once."""
    (_reduce_scatter if event.source == "P" else _all_gather)(tensors, event)


def _slice(tensors: Tensors, event: Event) -> None:
    """A part; where each rank counts it from its own start it is right on the rank that has the start alone."""
    dim = dim_named(event.to)
    if event.renumbered:
        p, q = sorted((DEVICE, rank(0)))
        first = frozenset((a, p, q) for a in event.axes)
        held = paths.each(tensors.here(event), lambda v: replace(v, sides=v.sides | first))
        tensors.put(event, paths.narrowed(held, [(a, at(dim)) for a in event.axes]))
        return
    place = drawn(dim, event.layout.partition("(")[0], event.drawn) if event.drawn else at(dim)
    tensors.put(event, paths.narrowed(tensors.here(event), [(a, place) for a in event.axes]))


def _pad(tensors: Tensors, event: Event) -> None:
    """What the ranks along the axes have of the dim is held, 0 where a rank does not own it.

    Along other axes it stays split. It is garbage if ranks have parts of their own.
    """
    held, dim = tensors.here(event), dim_named(event.source)
    split = frozenset((a, p) for a, p in paths.mask_of(held) if dim_of(p) == dim)
    if all(p == at(dim) for _, p in split):
        tensors.put(event, paths.padded(held, event.axes, dim))
    else:
        tensors.put(event, paths.undefined(paths.mask_of(held) - split))


def _free(tensors: Tensors, event: Event) -> None:
    tensors.free(event)


def _carry(tensors: Tensors, event: Event) -> None:
    tensors.carry(event)


def _scale(tensors: Tensors, event: Event) -> None:
    tensors.put(event, paths.scaled(tensors.here(event), ONE / event.divisor))


MOVES: Mapping[str, Callable[[Tensors, Event], None]] = {
    "free": _free, "all_gather": _all_gather, "all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all, "slice": _slice, "pad": _pad, "scale": _scale, "shift": _shift,
    "offload": _carry, "fetch": _carry,
}
"""Verb -> its transfer rule on a tensor."""
