"""The operands to whose gradients the event of an op's backward adds: all, or those of one of its two parts."""

from __future__ import annotations

from placealg.models.backward import differentiated
from placealg.step.event import Event, Phase, Reference

WEIGHTS: Phase = "weights"
"""The phase of the backward for the weights, if a pipeline's order runs that apart."""


def receivers(event: Event, reference: Reference) -> tuple[int, ...]:
    """The positions of the operands of an op that receive a gradient from the event of its backward.

    In the phase `weights` these are its parameters; in `backward` all, or all others if the order of the pipeline
    splits the backward.
    """
    graph = reference.graph
    op = graph.producer(event.tensor)
    if op is None:
        return ()
    split = event.phase == WEIGHTS or reference.pipeline.splits
    return tuple(k for k in differentiated(graph, op) if not split or
                 (graph.tensors[op.inputs[k]].kind == "parameter") == (event.phase == WEIGHTS))
