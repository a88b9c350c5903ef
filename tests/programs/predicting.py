"""Models with layers that predict later tokens, small enough to be run rank by rank."""

from __future__ import annotations

from dataclasses import replace

from placealg.models.build import graph
from placealg.models.model import Model
from placealg.models.transformer import LLAMA, Layers, transformer


def predicting(count: int = 1, tied: bool = False) -> Model:
    """A small decoder with so many layers that each predict one token further."""
    style = replace(LLAMA, tied=tied)
    sizes = {"vocab": "V", "embed": "h", "kv": "kv", "group": "a/kv", "head_dim": "h/a", "ffn": "f"}
    layers = tuple(Layers(f"mtp{k + 1}", "1", style) for k in range(count))
    return Model.of_graph("predicting", transformer(style, sizes, predicting=layers))


def small() -> Model:
    """The least model with a layer that predicts: one product, which embeddings pass through, and a head for both."""
    g = graph(batch="b", embed="h", vocab="V")
    table, head = g.parameter("embedding.weight", "vocab embed"), g.parameter("head.weight", "embed vocab")
    x = g.lookup("embedding.tokens", table, g.ids("data.tokens", "batch"), over="vocab")
    x = g.repeat("layer", "L", x)
    x = g.add("layer.out", x, g.mul("layer.gated", x, g.parameter("layer.weight", "embed")))
    loss = g.cross_entropy("head.loss", g.einsum("head.logits", x, head, to="batch vocab"),
                           g.ids("data.targets", "batch"), over="vocab")
    y = g.lookup("mtp1.tokens", table, g.ids("data.tokens_mtp1", "batch"), over="vocab")
    y = g.mul("mtp1.out", g.add("mtp1.both", x, y), g.parameter("mtp1.weight", "embed"))
    further = g.cross_entropy("mtp1.loss", g.einsum("mtp1.logits", y, head, to="batch vocab"),
                              g.ids("data.targets_mtp1", "batch"), over="vocab")
    g.sum("loss.sum", g.add("mtp1.losses", loss, further))
    return Model.of_graph("small", g.build())
