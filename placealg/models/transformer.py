"""Decoder transformers as op graphs, of layers of one kind or of several; and a plain MLP.

Sizes are monomials, so that counts, saved tensors and everything after hold for every size at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from placealg.arith import Monomial
from placealg.errors import need
from placealg.models.adapters import frozen, is_adapter
from placealg.models.attention import SLOPES, attention, capped, dropped, normed
from placealg.models.build import Builder, Size, graph
from placealg.models.experts import BALANCING, experts
from placealg.models.graph import DEPTH, Graph, Tensor
from placealg.models.mixers import mixer
from placealg.models.model import Model
from placealg.models.style import DEEPSEEK, GPT, LLAMA, MLA, MOE, Style

__all__ = ["DEEPSEEK", "GPT", "LATENT", "LLAMA", "MLA", "MOE", "Layers", "Style", "gpt", "mla", "mlp", "moe",
           "transformer"]


def gpt(style: Style = GPT) -> Model:
    """A dense GPT with symbolic sizes: b, s, h, a, L, V; its positions are s, its feed-forward size 4*h.

    >>> gpt().total({"h": 768, "L": 12, "V": 50257, "s": 1024, "a": 12})
    124439808
    """
    need(style, Style, "Style of a transformer")
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
    g.sum("loss.sum", _loss(g, "head", "layer.mlp.down.biased", replace(GPT, tied=False), tokens="batch"))
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


@dataclass(frozen=True, slots=True)
class Layers:
    """Equal layers that stand together: the unit's name, how many there are, and their style.

    The unit that most layers are in is called `layer`; the ops of another unit are named UNIT.layer.NAME.
    """

    unit: str
    count: str
    style: Style

    @property
    def at(self) -> str:
        """What the names of its ops begin with."""
        return DEPTH if self.unit == DEPTH else f"{self.unit}.{DEPTH}"


def transformer(style: Style, sizes: Mapping[str, Size], layers: tuple[Layers, ...] = (),
                predicting: tuple[Layers, ...] = ()) -> Graph:
    """The graph of a decoder; `sizes` gives vocab, embed, heads or kv and group, head_dim, ffn.

    Its layers are L of one `style`, or, where they are of several kinds, `layers`. Activations have the dims batch (b)
    and seq (s), keys and values seq_kv. Learned positions need `position`, experts `expert` and `choice`, shared ones
    `shared`, or `shared_ffn` where they are of a width of their own, layers with an MLP among those of experts
    `dense_ffn`. Latent attention needs the dims of LATENT in place of head_dim; without `q_rank` its queries come from
    the hidden state. Each layer of `predicting` predicts one token further than the one before it.
    """
    more = {"embed_in": sizes["embed"]} if predicting else {}
    g = graph({"batch": "b", "seq": "s", "seq_kv": "s", **more, **sizes})
    kinds = layers or _kinds(style)
    x = _embedding(g, style)
    if any(kind.style.positions == "alibi" and not kind.style.flash for kind in kinds):
        g.data(SLOPES, ("kv group" if style.grouped else "heads") + " seq_kv")
    mixed = any(kind.style.experts for kind in (*kinds, *predicting))
    for kind in kinds:
        x = g.repeat(kind.unit, kind.count, x)
        x = _block(g, kind.at, x, kind.style, "dense_ffn" if mixed and not kind.style.experts else "ffn")
    if style.final_norm:
        x = normed(g, "head.norm", x, style)
    if style.embedding_projection:
        x = g.linear("head.project", x, "batch seq embed_low", "embed embed_low")
    loss = _loss(g, "head", x, style, "embed_low" if style.embedding_projection else "embed")
    for kind in predicting:
        x, further = _predicted(g, kind, x, style, "dense_ffn" if mixed and not kind.style.experts else "ffn")
        loss = g.add(f"{kind.unit}.losses", loss, g.scale(f"{kind.unit}.weighted", further, "its weight"))
    g.sum("loss.sum", loss)
    return g.build()


def _kinds(style: Style) -> tuple[Layers, ...]:
    """L layers, or L_dense with an MLP before L_moe of experts."""
    if not style.first_dense:
        return (Layers(DEPTH, "L", style),)
    return Layers("dense", "L_dense", replace(style, experts=False)), Layers(DEPTH, "L_moe", style)


def _embedding(g: Builder, style: Style) -> Tensor:
    dim = "embed_low" if style.embedding_projection else "embed"
    x = g.lookup("embedding.tokens", g.parameter("embedding.weight", f"vocab {dim}"), g.ids("data.tokens", "batch seq"),
                 over="vocab")
    if style.embedding_projection:
        x = g.linear("embedding.project", x, "batch seq embed", "embed_low embed")
    if style.embedding_scale:
        x = g.scale("embedding.scaled", x, "embedding_multiplier")
    if style.positions == "learned" and not style.rotary:
        table = g.parameter("embedding.position.weight", "position embed")
        at = g.lookup("embedding.positions", table, g.ids("data.positions", "batch seq"), over="position")
        x = g.add("embedding.sum", x, at)
    elif style.positions == "sinusoid":
        x = g.add("embedding.sum", x, g.data("data.sinusoids", "seq embed"))
    if style.embedding_norm:
        x = normed(g, "embedding.norm", x, style)
    return dropped(g, "embedding.dropped", x, style)


def _block(g: Builder, at: str, x: Tensor, style: Style, ffn: str) -> Tensor:
    """One layer, its names beginning with `at`: attention, and an MLP or experts."""
    biased = style.mlp_bias and not style.experts
    out_biased = style.attention_bias if style.out_bias is None else style.out_bias
    if style.parallel:
        y = normed(g, f"{at}.norm1", x, style)
        z = normed(g, f"{at}.norm2", x, style) if style.two_norms else y
        both = g.add(f"{at}.sum", attention(g, at, y, style), _inner(g, at, z, style, ffn))
        for name, there in (("attn.out", out_biased), ("mlp.down", biased)):
            both = g.biased(f"{at}.{name}", both, "embed") if there else both
        return g.add(f"{at}.out", x, dropped(g, f"{at}.dropped", both, style))
    if style.part != "mlp":
        y = _mixed(g, at, normed(g, f"{at}.norm1", x, style) if style.pre_norm else x, style, out_biased)
        x = _residual(g, at, "mlp" if style.part else "attn", x, y, style)
    if style.part == "mixer":
        return x
    y = _inner(g, at, normed(g, f"{at}.norm2", x, style) if style.pre_norm else x, style, ffn)
    y = g.biased(f"{at}.mlp.down", y, "embed") if biased else y
    return _residual(g, at, "mlp", x, y, style)


def _mixed(g: Builder, at: str, x: Tensor, style: Style, out_biased: bool) -> Tensor:
    """Attention, or what stands in its place, or both."""
    beside = mixer(g, at, x, style) if style.mixer else None
    if beside is not None and not style.both:
        return beside
    y = attention(g, at, x, style)
    y = g.biased(f"{at}.attn.out", y, "embed") if out_biased else y
    return y if beside is None else g.add(f"{at}.mixers", beside, y)


def _residual(g: Builder, at: str, part: str, x: Tensor, y: Tensor, style: Style) -> Tensor:
    """The sum of `x` and of what attention or the MLP made of it, with the norms around it."""
    number, name = ("1", "residual1") if part == "attn" else ("2", "out")
    if style.post_norm:
        y = normed(g, f"{at}.post_norm{number}", y, style)
    if style.residual_scale:
        y = g.scale(f"{at}.{part}.scaled", y, "residual_multiplier")
    x = g.add(f"{at}.{name}", x, dropped(g, f"{at}.{part}.dropped", y, style))
    return normed(g, f"{at}.norm{number}", x, style) if style.residual_norm else x


def _inner(g: Builder, at: str, x: Tensor, style: Style, ffn: str) -> Tensor:
    """What stands beside attention: an MLP, or experts."""
    if not style.experts:
        return _mlp(g, f"{at}.mlp", x, style, "batch seq", ffn)
    y = experts(g, at, x, style)
    if style.shared:
        plain = replace(style, mlp_bias=False, gated=style.expert_gated)
        width = "shared_ffn" if style.shared_own else "shared ffn"
        shared = _mlp(g, f"{at}.shared_expert", x, plain, "batch seq", width)
        if style.shared_gate:
            path = f"{at}.shared_expert.gated"
            logits = g.einsum(f"{path}.logits", x, g.parameter(f"{path}.weight", "embed"), to="batch seq")
            shared = g.mul(f"{path}.out", shared, g.unary(f"{path}.open", logits, "sigmoid"))
        y = g.add(f"{at}.combine.out", y, shared)
    return g.norm(f"{at}.combine.norm", y, "embed", bias=False, **style.written) if style.expert_norm else y


def _mlp(g: Builder, at: str, x: Tensor, style: Style, tokens: str, ffn: str) -> Tensor:
    """The MLP up to its down projection, whose bias is left to the block."""
    names = ("gate", "up") if style.gated else ("up",)
    made = [g.linear(f"{at}.{n}", x, f"{tokens} {ffn}", f"embed {ffn}", ffn if style.mlp_bias else None)
            for n in names]
    y = _activated(g, at, made[0], style)
    y = g.mul(f"{at}.product", y, made[1]) if style.gated else y
    if style.sub_norm:
        y = g.norm(f"{at}.sub_norm", y, ffn, bias=False, **style.written)
    return g.linear(f"{at}.down", y, f"{tokens} embed", f"{ffn} embed")


def _activated(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """`x` under the activation; a gelu of a tanh is one op, or x/2 (1 + tanh(c (x + c' x**3)))."""
    function = style.activation or ("silu" if style.gated else "gelu")
    if function == "gelu_new" and not style.fused:
        cube = g.scale(f"{at}.gelu.scaled_cube", g.unary(f"{at}.gelu.cube", x, "cube"), "0.044715")
        inner = g.scale(f"{at}.gelu.inner", g.add(f"{at}.gelu.sum", x, cube), "(2/pi)**(1/2)")
        tanh = g.unary(f"{at}.gelu.tanh", inner, "tanh")
        half = g.scale(f"{at}.gelu.half", x, "1/2")
        return g.mul(f"{at}.gelu", half, g.unary(f"{at}.gelu.opened", tanh, "one_plus"), region=at)
    kind = "gelu" if function == "gelu_new" else function.removesuffix("2")
    y = g.unary(f"{at}.{kind}", x, kind)
    return g.mul(f"{at}.square", y, y) if function == "relu2" else y


def _predicted(g: Builder, kind: Layers, x: Tensor, style: Style, ffn: str) -> tuple[Tensor, Tensor]:
    """A layer that predicts one token further: what it makes, and the loss of each token.

    It reads what comes before it and the embedding of the next token, each under a norm and through a product, which a
    checkpoint keeps in one matrix; embedding and head are the model's (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    unit, dims = kind.unit, "embed embed_in"
    tokens = g.ids(f"data.tokens_{unit}", "batch seq")
    y = g.lookup(f"{unit}.tokens", g.parameter("embedding.weight", "vocab embed"), tokens, over="vocab")
    y = g.scale(f"{unit}.embedding_scaled", y, "embedding_multiplier") if style.embedding_scale else y
    halves = [g.rename(f"{unit}.{name}.read", normed(g, f"{unit}.{name}_norm", z, style), {"embed": "embed_in"})
              for name, z in (("token", y), ("hidden", x))]
    token, hidden = (g.einsum(f"{unit}.{name}", z, g.parameter(f"{unit}.{name}.weight", dims), to="batch seq embed")
                     for name, z in zip(("token", "hidden"), halves, strict=True))
    x = _block(g, kind.at, g.add(f"{unit}.both", token, hidden), kind.style, ffn)
    x = normed(g, f"{unit}.norm", x, style)
    return x, _loss(g, unit, x, style)


def _loss(g: Builder, unit: str, x: Tensor | str, style: Style, dim: str = "embed",
          tokens: str = "batch seq") -> Tensor:
    """The loss of each token, from what enters the head; a unit beside the head has targets of its own."""
    name, dims = ("embedding.weight", f"vocab {dim}") if style.tied else ("head.weight", f"{dim} vocab")
    logits = g.einsum(f"{unit}.logits", x, g.parameter(name, dims), to=f"{tokens} vocab")
    if style.head_bias:
        logits = g.add(f"{unit}.biased", logits, g.parameter("head.bias", "vocab"))
    if style.logit_scale:
        logits = g.scale(f"{unit}.scaled", logits, "logit_scale")
    if style.logit_softcap:
        logits = capped(g, f"{unit}.capped", logits)
    targets = g.ids("data.targets" if unit == "head" else f"data.targets_{unit}", tokens)
    return g.cross_entropy(f"{unit}.loss", logits, targets, over="vocab")
