"""Decoder transformers as op graphs: GPT style, Llama style, a parallel block, mixtures of experts; and a plain MLP.

Sizes are monomials, so that counts, saved tensors and everything after hold for every size at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from placealg.arith import Monomial
from placealg.model.build import Builder, Size, graph
from placealg.model.graph import Graph, Tensor
from placealg.model.model import Model


@dataclass(frozen=True, slots=True)
class Style:
    """What distinguishes one transformer from another, beyond its sizes.

    `grouped` heads are kv x group. `attention_bias` and `mlp_bias` put biases on the projections. `gated` is SwiGLU,
    else gelu. `rotary` positions, else learned ones. `layer_norm`, else the root-mean-square norm. `dropout` follows
    attention probabilities, both outputs and the embedding. `flash` attention is one op. `tied` logits use the
    embedding. In a `parallel` block attention and MLP read one norm, and their outputs are added before the biases.
    `experts` takes the place of the MLP by a router and experts; the gates of a token's experts are their probabilities
    among all, or, `normalized`, among the chosen. `qk_norm` normalises queries and keys per head.
    """

    grouped: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    gated: bool = False
    rotary: bool = False
    layer_norm: bool = True
    dropout: bool = True
    flash: bool = False
    tied: bool = True
    parallel: bool = False
    experts: bool = False
    normalized: bool = False
    qk_norm: bool = False


GPT = Style()
LLAMA = Style(grouped=True, attention_bias=False, mlp_bias=False, gated=True, rotary=True, layer_norm=False,
              dropout=False, flash=True, tied=False)
MOE = replace(LLAMA, experts=True)
STYLES: Mapping[str, Style] = {"gpt2": GPT, "llama": LLAMA, "mixtral": replace(MOE, normalized=True),
                               "qwen3_moe": replace(MOE, qk_norm=True)}
"""Family, the `model_type` of a configuration -> its style; flags of the configuration override fields."""


def gpt(style: Style = GPT) -> Model:
    """A dense GPT with symbolic sizes: b, s, h, a, L, V; its positions are s, its feed-forward size 4*h.

    >>> gpt().total({"h": 768, "L": 12, "V": 50257, "s": 1024, "a": 12})
    124439808
    """
    h, a = Monomial.of("h"), Monomial.of("a")
    sizes: dict[str, Size] = {"vocab": "V", "embed": h, "heads": a, "kv": a, "group": 1, "head_dim": h / a,
                              "ffn": "4*h", "position": "s"}
    return Model.of_graph("gpt", transformer(style, sizes))


def mlp() -> Model:
    """A plain MLP: L times up, gelu, down, then logits and their cross entropy.

    >>> mlp().total({"h": 8, "f": 32, "V": 10, "L": 2})
    1184
    """
    g = graph(batch="b", embed="h", ffn="f", vocab="V")
    x = g.repeat("layer", "L", g.data("data.input", "batch embed"))
    x = _mlp(g, x, Style(), "batch")
    g.biased("layer.mlp.down", x, "embed")
    _loss(g, "layer.mlp.down.biased", "head.weight", "embed vocab", "batch")
    return Model.of_graph("mlp", g.build())


def moe() -> Model:
    """A mixture of experts with symbolic sizes: b, s, h, a, kv, f, L, V, of which each token uses topk of experts.

    >>> moe().total({"h": 8, "a": 2, "kv": 1, "f": 16, "L": 2, "V": 10, "experts": 4})
    3720
    """
    sizes: dict[str, Size] = {"vocab": "V", "embed": "h", "kv": "kv", "group": "a/kv", "head_dim": "h/a", "ffn": "f",
                              "expert": "experts", "choice": "topk"}
    return Model.of_graph("moe", transformer(MOE, sizes))


def transformer(style: Style, sizes: Mapping[str, Size]) -> Graph:
    """The graph of a decoder of L layers; `sizes` gives vocab, embed, heads or kv and group, head_dim, ffn.

    Activations have the dims batch (b) and seq (s), keys and values seq_kv. Learned positions need `position`, experts
    `expert` and `choice`.
    """
    g = graph({"batch": "b", "seq": "s", "seq_kv": "s", **sizes})
    x = g.repeat("layer", "L", _embedding(g, style))
    biased = style.mlp_bias and not style.experts
    if style.parallel:
        y = g.norm("layer.norm1", x, "embed", bias=style.layer_norm)
        both = g.add("layer.sum", _attention(g, y, style), _inner(g, y, style))
        for name, there in (("layer.attn.out", style.attention_bias), ("layer.mlp.down", biased)):
            both = g.biased(name, both, "embed") if there else both
        g.add("layer.out", x, _dropped(g, "layer.dropped", both, style))
    else:
        y = _attention(g, g.norm("layer.norm1", x, "embed", bias=style.layer_norm), style)
        y = g.biased("layer.attn.out", y, "embed") if style.attention_bias else y
        x = g.add("layer.residual1", x, _dropped(g, "layer.attn.dropped", y, style))
        y = _inner(g, g.norm("layer.norm2", x, "embed", bias=style.layer_norm), style)
        y = g.biased("layer.mlp.down", y, "embed") if biased else y
        g.add("layer.out", x, _dropped(g, "layer.mlp.dropped", y, style))
    final = g.norm("head.norm", "layer.out", "embed", bias=style.layer_norm)
    if style.tied:
        _loss(g, final, "embedding.weight", "vocab embed", "batch seq")
    else:
        _loss(g, final, "head.weight", "embed vocab", "batch seq")
    return g.build()


def _embedding(g: Builder, style: Style) -> Tensor:
    x = g.lookup("embedding.tokens", g.parameter("embedding.weight", "vocab embed"), g.ids("data.tokens", "batch seq"),
                 over="vocab")
    if not style.rotary:
        table = g.parameter("embedding.position.weight", "position embed")
        at = g.lookup("embedding.positions", table, g.ids("data.positions", "batch seq"), over="position")
        x = g.add("embedding.sum", x, at)
    return _dropped(g, "embedding.dropped", x, style)


def _attention(g: Builder, x: Tensor, style: Style) -> Tensor:
    """Attention up to its output projection, whose bias is left to the block."""
    queries, keys = ("kv group head_dim", "kv head_dim") if style.grouped else ("heads head_dim", "heads head_dim")
    made = {}
    for name, dims in (("q", queries), ("k", keys), ("v", keys)):
        path = f"layer.attn.{name}"
        y = g.linear(path, x, f"batch seq {dims}", f"embed {dims}", dims if style.attention_bias else None)
        if style.qk_norm and name != "v":
            y = g.norm(f"{path}.norm", y, "head_dim", bias=False)
        if style.rotary and name != "v":
            y = g.rope(f"{path}.rotated", y, over="head_dim", region="layer.attn")
        made[name] = y
    return g.einsum("layer.attn.out", _core(g, made["q"], made["k"], made["v"], style, queries),
                    g.parameter("layer.attn.out.weight", f"{queries} embed"), to="batch seq embed")


def _core(g: Builder, q: Tensor, k: Tensor, v: Tensor, style: Style, heads: str) -> Tensor:
    core, factor = "layer.attn.core", "head_dim**(-1/2)"
    k = g.rename(f"{core}.keys", k, {"seq": "seq_kv"})
    v = g.rename(f"{core}.values", v, {"seq": "seq_kv"})
    if style.flash:
        dropout = {"dropout": "keyed"} if style.dropout else {}
        return g.flash(f"{core}.mixed", q, k, v, over="seq_kv head_dim", mask="causal", factor=factor, **dropout)
    grid = f"batch {heads.removesuffix(' head_dim')} seq seq_kv"
    scores = g.scale(f"{core}.scaled", g.einsum(f"{core}.scores", q, k, to=grid), factor)
    probs = _dropped(g, f"{core}.dropped", g.softmax(f"{core}.probs", scores, over="seq_kv", mask="causal"), style)
    return g.einsum(f"{core}.mixed", probs, v, to=f"batch seq {heads}")


def _inner(g: Builder, x: Tensor, style: Style) -> Tensor:
    """What stands beside attention: an MLP, or experts, which have no biases."""
    return _experts(g, x, style) if style.experts else _mlp(g, x, style, "batch seq")


def _mlp(g: Builder, x: Tensor, style: Style, tokens: str) -> Tensor:
    """The MLP up to its down projection, whose bias is left to the block."""
    names = ("gate", "up") if style.gated else ("up",)
    made = [g.linear(f"layer.mlp.{n}", x, f"{tokens} ffn", "embed ffn", "ffn" if style.mlp_bias else None)
            for n in names]
    y = g.unary("layer.mlp.silu" if style.gated else "layer.mlp.gelu", made[0], "silu" if style.gated else "gelu")
    y = g.mul("layer.mlp.product", y, made[1]) if style.gated else y
    return g.linear("layer.mlp.down", y, f"{tokens} embed", "ffn embed")


def _experts(g: Builder, x: Tensor, style: Style) -> Tensor:
    """A router and gated experts: every token goes to the experts chosen for it, whose results are added by gates.

    The choice is a one-hot tensor, by which what is dispatched, and what is combined again, is multiplied.
    """
    router, pairs = "layer.router", "batch seq choice expert"
    scores = g.einsum(f"{router}.logits", x, g.parameter(f"{router}.weight", "embed expert"), to="batch seq expert")
    if not style.normalized:
        scores = g.softmax(f"{router}.probs", scores, over="expert")
    route = g.route(f"{router}.route", scores, over="expert", choice="choice")
    gates = g.einsum(f"{router}.chosen", scores, route, to="batch seq choice")
    if style.normalized:
        gates = g.softmax(f"{router}.gates", gates, over="choice")
    y = g.einsum("layer.dispatch.pairs", x, route, to=f"{pairs} embed")
    gate, up = (g.linear(f"layer.expert.{n}", y, f"{pairs} ffn", "expert embed ffn", region="layer.expert")
                for n in ("gate", "up"))
    y = g.mul("layer.expert.product", g.unary("layer.expert.silu", gate, "silu"), up)
    y = g.linear("layer.expert.down", y, f"{pairs} embed", "expert ffn embed", region="layer.expert")
    return g.einsum("layer.combine.sum", y, gates, route, to="batch seq embed")


def _dropped(g: Builder, name: str, x: Tensor, style: Style) -> Tensor:
    return g.dropout(name, x) if style.dropout else x


def _loss(g: Builder, x: Tensor | str, weight: str, dims: str, tokens: str) -> None:
    logits = g.einsum("head.logits", x, g.parameter(weight, dims), to=f"{tokens} vocab")
    g.cross_entropy("head.loss", logits, g.ids("data.targets", tokens), over="vocab")
    g.sum("loss.sum", "head.loss")
