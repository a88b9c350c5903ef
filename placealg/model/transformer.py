"""Decoder transformers as op graphs: GPT style, Llama style, a parallel block; and a plain MLP.

Sizes are monomials, so that counts, saved tensors and everything after hold for every size at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from placealg.arith import Monomial
from placealg.model.adapters import frozen, is_adapter
from placealg.model.attention import attention, dropped
from placealg.model.build import Builder, Size, graph
from placealg.model.experts import BALANCING, experts
from placealg.model.graph import Graph, Tensor
from placealg.model.model import Model
from placealg.model.style import GPT, LLAMA, MLA, MOE, STYLES, Style

__all__ = ["GPT", "LATENT", "LLAMA", "MLA", "MOE", "STYLES", "Style", "gpt", "mla", "mlp", "moe", "transformer"]


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
    _mlp(g, "layer.mlp", x, Style(), "batch", "ffn")
    g.biased("layer.mlp.down", "layer.mlp.down", "embed")
    _loss(g, "layer.mlp.down.biased", "head.weight", "embed vocab", "batch")
    return Model.of_graph("mlp", g.build())


def moe(*, shared: bool = False, first_dense: bool = False, adapters: bool = False) -> Model:
    """A mixture of experts with symbolic sizes: b, s, h, a, kv, f, V, of which each token uses topk of experts.

    It has L layers; with `first_dense` L_dense layers with an MLP of size f_dense and L_moe layers of experts.
    `shared` experts, as many as the symbol says, see every token beside the chosen ones. With `adapters` of rank
    adapter_rank beside the experts' last products it is the model `lora`: they train, and all else is frozen.

    >>> moe().total({"h": 8, "a": 2, "kv": 1, "f": 16, "L": 2, "V": 10, "experts": 4})
    3720
    """
    sizes: dict[str, Size] = {"vocab": "V", "embed": "h", "kv": "kv", "group": "a/kv", "head_dim": "h/a", "ffn": "f",
                              "expert": "experts", "choice": "topk", "shared": "shared", "dense_ffn": "f_dense",
                              "adapter": "adapter_rank"}
    style = replace(MOE, shared=shared, first_dense=first_dense, adapters=adapters)
    made = Model.of_graph("lora" if adapters else "moe", transformer(style, sizes), left_out=(BALANCING,))
    return frozen(made, lambda name: not is_adapter(name)) if adapters else made


def mla(style: Style = MLA) -> Model:
    """A dense decoder with multi-head latent attention and symbolic sizes: b, s, h, a, f, L, V, ranks and head sizes.

    >>> mla().total({"h": 8, "a": 2, "f": 16, "L": 1, "V": 10, "q_rank": 4, "kv_rank": 2, "d_nope": 4, "d_rope": 2,
    ...              "d_v": 4})
    782
    """
    sizes: dict[str, Size] = {"vocab": "V", "embed": "h", "heads": "a", "ffn": "f", **LATENT}
    return Model.of_graph("mla", transformer(style, sizes))


LATENT: Mapping[str, str] = {"q_rank": "q_rank", "kv_rank": "kv_rank", "nope_dim": "d_nope", "rope_dim": "d_rope",
                             "value_dim": "d_v"}
"""Dim of latent attention -> the symbol of its size."""


def transformer(style: Style, sizes: Mapping[str, Size]) -> Graph:
    """The graph of a decoder of L layers; `sizes` gives vocab, embed, heads or kv and group, head_dim, ffn.

    Activations have the dims batch (b) and seq (s), keys and values seq_kv. Learned positions need `position`, experts
    `expert` and `choice`, shared ones `shared`, first dense layers `dense_ffn`. Latent attention needs the dims of
    LATENT in place of head_dim; without `q_rank` its queries come from the hidden state.
    """
    g = graph({"batch": "b", "seq": "s", "seq_kv": "s", **sizes})
    x = _embedding(g, style)
    if style.first_dense:
        x = g.repeat("dense", "L_dense", x)
        x = _block(g, "dense.layer", x, replace(style, experts=False), "dense_ffn")
    x = g.repeat("layer", "L_moe" if style.first_dense else "L", x)
    x = _block(g, "layer", x, style, "ffn")
    final = g.norm("head.norm", x, "embed", bias=style.layer_norm)
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
    return dropped(g, "embedding.dropped", x, style)


def _block(g: Builder, at: str, x: Tensor, style: Style, ffn: str) -> Tensor:
    """One layer, its names beginning with `at`: attention, and an MLP or experts."""
    biased = style.mlp_bias and not style.experts
    out_biased = style.attention_bias and not style.latent
    if style.parallel:
        y = g.norm(f"{at}.norm1", x, "embed", bias=style.layer_norm)
        both = g.add(f"{at}.sum", attention(g, at, y, style), _inner(g, at, y, style, ffn))
        for name, there in (("attn.out", out_biased), ("mlp.down", biased)):
            both = g.biased(f"{at}.{name}", both, "embed") if there else both
        return g.add(f"{at}.out", x, dropped(g, f"{at}.dropped", both, style))
    y = attention(g, at, g.norm(f"{at}.norm1", x, "embed", bias=style.layer_norm), style)
    y = g.biased(f"{at}.attn.out", y, "embed") if out_biased else y
    x = g.add(f"{at}.residual1", x, dropped(g, f"{at}.attn.dropped", y, style))
    y = _inner(g, at, g.norm(f"{at}.norm2", x, "embed", bias=style.layer_norm), style, ffn)
    y = g.biased(f"{at}.mlp.down", y, "embed") if biased else y
    return g.add(f"{at}.out", x, dropped(g, f"{at}.mlp.dropped", y, style))


def _inner(g: Builder, at: str, x: Tensor, style: Style, ffn: str) -> Tensor:
    """What stands beside attention: an MLP, or experts, which have no biases."""
    if not style.experts:
        return _mlp(g, f"{at}.mlp", x, style, "batch seq", ffn)
    routed = experts(g, at, x, style)
    if not style.shared:
        return routed
    plain = replace(style, mlp_bias=False, gated=True)
    return g.add(f"{at}.combine.out", routed, _mlp(g, f"{at}.shared_expert", x, plain, "batch seq", "shared ffn"))


def _mlp(g: Builder, at: str, x: Tensor, style: Style, tokens: str, ffn: str) -> Tensor:
    """The MLP up to its down projection, whose bias is left to the block."""
    names = ("gate", "up") if style.gated else ("up",)
    made = [g.linear(f"{at}.{n}", x, f"{tokens} {ffn}", f"embed {ffn}", ffn if style.mlp_bias else None)
            for n in names]
    y = g.unary(f"{at}.silu" if style.gated else f"{at}.gelu", made[0], "silu" if style.gated else "gelu")
    y = g.mul(f"{at}.product", y, made[1]) if style.gated else y
    return g.linear(f"{at}.down", y, f"{tokens} embed", f"{ffn} embed")


def _loss(g: Builder, x: Tensor | str, weight: str, dims: str, tokens: str) -> None:
    logits = g.einsum("head.logits", x, g.parameter(weight, dims), to=f"{tokens} vocab")
    g.cross_entropy("head.loss", logits, g.ids("data.targets", tokens), over="vocab")
    g.sum("loss.sum", "head.loss")
