"""The named hypotheses under which a step needs at least the memory that is counted: no fit is then final."""

from __future__ import annotations

from collections.abc import Mapping

from placealg.cost.stage import local
from placealg.cost.unsupported import unknown
from placealg.step.event import LOOPED, dim_of
from placealg.step.program import Step

LEAST: Mapping[str, str] = {
    "even_shares": "every shard is exactly 1/n of its tensor",
    "copies_apart": "a gathered copy of a weight is a buffer of its own beside the shard that rests on the device",
    "units_whole": "a gathered unit is held from the first of its ops to the last; the loss is an op of the head's",
    "gradients_rest": "the buffers of gradients are held throughout the step, from its start",
    "fresh_results": "an op makes its result in a buffer of its own; collectives of one size and casts work in place",
    "saved_as_listed": "an op saves for its backward what its kind does, with act bytes an element of an activation",
    "loss_as_run": "the cross entropy is run as --loss says",
    "balanced_experts": "the devices of an axis that splits experts receive equally many pairs of a token and an "
                        "expert",
}
"""Hypothesis -> its statement: an implementation that violates it may need less than is counted."""


def certain_if(step: Step) -> tuple[str, ...]:
    """The names of the hypotheses under which a device cannot do with less memory than is counted.

    >>> import placealg as pa
    >>> certain_if(pa.derive(pa.dp(), pa.abstract())), certain_if(pa.derive(pa.zero3(), pa.abstract()))
    (('even_shares', 'gradients_rest'), ('even_shares', 'copies_apart', 'gradients_rest'))
    """
    step = local(step)
    reference, graph = step.reference, step.reference.graph
    listed = not unknown(reference)
    routed = {d for t in graph.tensors.values() for d in t.sparse}
    split = {dim_of(place) for e in step.events if e.on_tensor for place in (e.source, e.to)}
    fetched = {e.group for e in step.events if e.verb == "fetch" and e.value == "weight" and e.phase in LOOPED}
    gathered = {e.group for e in step.events if e.verb == "gather"} - fetched
    loss = any(op.kind == "cross_entropy" for op in graph.ops)
    holds = {
        "even_shares": reference.pad == "none",
        "copies_apart": bool(gathered),
        "units_whole": bool(gathered) and loss,
        "gradients_rest": any(not g.frozen for g in reference.groups),
        "fresh_results": listed,
        "saved_as_listed": listed,
        "loss_as_run": loss,
        "balanced_experts": bool(routed & split),
    }
    return tuple(name for name in LEAST if holds[name])
