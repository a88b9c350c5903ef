"""Terms of the loss that routers have: one that balances the load of experts, and one that bounds the router's logits.

They stand beside each router, for the op that chooses experts, and are of each token: a sum to one number that nobody
reads. The load of an expert is how often the sequence chose it, which takes no gradient (DeepSeek-V3, arXiv 2412.19437,
section 2.1.2); the logits are bounded by the square of their logarithm of a sum of exponentials (Zoph et al., arXiv
2202.08906).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from placealg.loss_terms import BALANCE, BOUND, TERMS
from placealg.models.build import Builder
from placealg.models.experts import BALANCING
from placealg.models.graph import Graph, Op, Tensor
from placealg.models.model import Model
from placealg.models.tokens import WEIGHTS

OF_A_SEQUENCE = "batch"
"""The dim of sequences, each of which has a load of its own."""


def routers(graph: Graph) -> tuple[Op, ...]:
    """The ops that choose experts.

    >>> from placealg.models.transformer import moe
    >>> [op.output for op in routers(moe().graph)]
    ['layer.router.route']
    """
    return tuple(op for op in graph.ops if op.kind == "route")


def with_router_losses(model: Model, terms: Collection[str] = TERMS, weighted: bool = False) -> Model:
    """The model whose routers each have these `terms` of the loss, of all tokens alike, or each by its weight.

    >>> from placealg.models.transformer import moe
    >>> [op.output for op in with_router_losses(moe(), ["z"]).graph.ops if op.output.endswith("_loss")]
    ['layer.router.z_loss']
    """
    graph = model.graph
    if not terms or not routers(graph):
        return model
    g, ops = Builder.beside(graph), list[Op]()
    for op in graph.ops:
        ops.append(op)
        if op.kind == "route":
            known = len(g.ops)
            if BALANCE in terms:
                _balance(g, op, graph, weighted)
            if BOUND in terms:
                _bound(g, op, graph, weighted)
            ops += g.ops[known:]
    left_out = tuple(said for said in model.left_out if said != BALANCING)
    return replace(model, graph=Graph(g.tensors, tuple(ops), graph.loops), left_out=left_out)


def _summed(g: Builder, name: str, term: Tensor, region: str, weighted: bool) -> None:
    """The sum of a term over tokens."""
    g.sum(f"{name}_loss", g.mul(f"{name}_weighted", term, WEIGHTS, region=region) if weighted else term, region=region)


def _balance(g: Builder, op: Op, graph: Graph, weighted: bool) -> None:
    """How loaded the experts are that a token scores, by the scores' shares of their sum."""
    at, region = op.output.rpartition(".")[0], op.region
    scores, expert = graph.tensors[op.inputs[0]], op.over[0]
    tokens = [d for d in scores.dims if d != expert]
    shares: Tensor = scores
    made = graph.producer(scores.name)
    if made is not None and made.kind == "sigmoid":
        total = g.sum(f"{at}.balance_total", scores, to=tokens, region=region)
        shares = g.mul(f"{at}.balance_shares", scores, g.unary(f"{at}.balance_share", total, "reciprocal", region),
                       region=region)
    elif made is None or made.kind != "softmax":
        shares = g.softmax(f"{at}.balance_shares", scores, over=expert, region=region)
    sequences = [d for d in scores.dims if d in (OF_A_SEQUENCE, expert)]
    load = g.sum(f"{at}.load", op.output, to=sequences, region=region)
    balance = g.einsum(f"{at}.balance", load, shares, to=tokens, region=region)
    _summed(g, f"{at}.balance", g.scale(f"{at}.balance_scaled", balance, "balance_coefficient", region), region,
            weighted)


def _bound(g: Builder, op: Op, graph: Graph, weighted: bool) -> None:
    """How large the logits of a token are."""
    at, region, logits = op.output.rpartition(".")[0], op.region, op.inputs[0]
    while (made := graph.producer(logits)) is not None and made.row.family in ("softmax", "unary"):
        logits = made.inputs[0]
    size = g.logsumexp(f"{at}.size", logits, over=op.over[0], region=region)
    square = g.mul(f"{at}.z", size, size, region=region)
    _summed(g, f"{at}.z", g.scale(f"{at}.z_scaled", square, "z_coefficient", region), region, weighted)


def balanced() -> Model:
    """The model `moe` with both terms: its sizes are all symbols.

    >>> balanced().name
    'balanced'
    """
    from placealg.models.transformer import moe

    return replace(with_router_losses(moe()), name="balanced")

