"""Biases of routers that the load of their experts moves: a state that no gradient reaches.

The bias is added to a router's scores for the choice of experts alone, the gates of the chosen come from the scores
without it, and a step moves it by how often each expert was chosen in the whole batch: up where that is less than the
mean, down where it is more (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). What is said here holds for every such
function of the bias and of the loads.
"""

from __future__ import annotations

from dataclasses import replace

from placealg.frozen import FrozenMap
from placealg.models.build import Builder
from placealg.models.experts import BALANCING
from placealg.models.graph import Graph, Op
from placealg.models.model import Model, Statistic
from placealg.models.router_losses import routers

BIAS, LOAD = "choice_bias", "expert_load"
"""The names of the bias and of the load of its experts, beside the op that chooses experts."""


def with_router_bias(model: Model) -> Model:
    """The model whose routers each have a bias for the choice, which the load of their experts moves.

    >>> from placealg.models.transformer import moe
    >>> with_router_bias(moe()).statistics
    {layer.router.choice_bias: Statistic(of='layer.router.expert_load', merge='sum')}
    """
    graph = model.graph
    if not routers(graph):
        return model
    g, ops, found = Builder.beside(graph), list[Op](), dict[str, Statistic]()
    for op in graph.ops:
        if op.kind != "route":
            ops.append(op)
            continue
        known, at = len(g.ops), op.output.rpartition(".")[0]
        bias = g.parameter(f"{at}.{BIAS}", op.over[0])
        biased = g.add(f"{at}.choice_scores", op.inputs[0], bias, region=op.region)
        before = len(g.ops)
        load = g.statistic(f"{at}.{LOAD}", op.output, to=op.over[0], region=op.region)
        ops += [*g.ops[known:before], replace(op, inputs=(biased.name, *op.inputs[1:])), *g.ops[before:]]
        found[bias.name] = Statistic(load.name, "sum")
    tensors = {name: replace(t, frozen=t.frozen or name in found) for name, t in g.tensors.items()}
    made = Graph(FrozenMap(tensors), tuple(ops), graph.loops)
    left_out = tuple(said for said in model.left_out if said != BALANCING)
    return replace(model.over(made), statistics=model.statistics.plus(found), left_out=left_out)
