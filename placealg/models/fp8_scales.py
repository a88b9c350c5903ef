"""Scales of inputs that are cast to 8 bits: states that no gradient reaches, each moved by a largest magnitude.

What a linear op reads is multiplied by a scale on its way to 8 bits; the scale of a step comes from a history of the
largest magnitudes that its tensor had in steps before (delayed scaling: Micikevicius et al., arXiv 2209.05433, section
3; Transformer Engine, `DelayedScaling`). Forward takes the largest of the rank's part of the tensor, microbatches and
ranks merge these by their maximum, and the update moves the history on: any function of the scale, the history and the
new largest. All ranks that hold parts of one tensor must scale them alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.adapters import linear_ops
from placealg.models.build import Builder
from placealg.models.graph import Graph, Op
from placealg.models.model import Model, Statistic

SCALE, LARGEST, CAST = "scale", "amax", "cast"
"""The names of a scale, of the largest magnitude that moves it, and of what is in 8 bits, beside the first linear op
that reads it."""

LEFT_OUT = "the scales of weights and of gradients in 8 bits, with their histories"


def with_fp8_scales(model: Model, chosen: Callable[[str], bool]) -> Model:
    """The model in which what the linear ops read whose names are `chosen` is scaled, once for all that read it.

    >>> from placealg.models.transformer import gpt
    >>> made = with_fp8_scales(gpt(), lambda name: ".attn." in name)
    >>> list(made.statistics), made.graph.producer("layer.attn.k").inputs[0]
    (['layer.attn.q.scale', 'layer.attn.out.scale'], 'layer.attn.q.cast')
    """
    graph = model.graph
    names = {name for name in linear_ops(graph) if chosen(name)}
    g, ops, found, cast = Builder.beside(graph), list[Op](), dict[str, Statistic](), dict[tuple[str, str], str]()
    for op in graph.ops:
        if op.output not in names:
            ops.append(op)
            continue
        read = op.inputs[0]
        if (op.unit, read) not in cast:
            known, at = len(g.ops), op.output
            largest = g.largest(f"{at}.{LARGEST}", read, region=op.region)
            scale = g.parameter(f"{at}.{SCALE}", "")
            cast[op.unit, read] = g.mul(f"{at}.{CAST}", read, scale, region=op.region).name
            ops += g.ops[known:]
            found[scale.name] = Statistic(largest.name, "max")
        ops.append(replace(op, inputs=(cast[op.unit, read], *op.inputs[1:])))
    if not found:
        raise InputError(f"no linear op of {model.name} reads what is cast to 8 bits")
    tensors = {name: replace(t, frozen=t.frozen or name in found) for name, t in g.tensors.items()}
    return replace(model.over(Graph(FrozenMap(tensors), tuple(ops), graph.loops)),
                   statistics=model.statistics.plus(found), left_out=(*model.left_out, LEFT_OUT))
