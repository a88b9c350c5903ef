"""Attention as ops: heads of their own, grouped, of experts, or from low-rank latents; as one op, or written out."""

from __future__ import annotations

from placealg.models.build import Builder
from placealg.models.experts import PAIRS, routed
from placealg.models.graph import Tensor
from placealg.models.style import Style

FACTOR = "head_dim**(-1/2)"
"""By what scores are multiplied, unless a configuration says otherwise."""

SLOPES = "data.alibi"
"""What is added to the scores in place of positions: per head a slope times the key's position."""


def attention(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """Attention of the layer `at`, up to its output projection, whose bias is left to the block."""
    made = _latent if style.latent else _of_experts if style.query_experts else _plain
    return made(g, f"{at}.attn", x, style)


def dropped(g: Builder, name: str, x: Tensor, style: Style) -> Tensor:
    """`x` under dropout where the style has it."""
    return g.dropout(name, x) if style.dropout else x


def normed(g: Builder, name: str, x: Tensor, style: Style, over: str = "embed") -> Tensor:
    """`NAME.out`: `x` under the style's norm."""
    centred = style.layer_norm
    return g.norm(name, x, over, bias=centred and style.norm_bias, centred=centred, weight=style.norm_weight,
                  **style.written)


def _plain(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    queries, keys = ("kv group head_dim", "kv head_dim") if style.grouped else ("heads head_dim", "heads head_dim")
    made = {}
    for name, dims in (("q", queries), ("k", keys), ("v", keys)):
        path = f"{at}.{name}"
        y = g.linear(path, x, f"batch seq {dims}", f"embed {dims}", dims if style.attention_bias else None)
        y = g.unary(f"{path}.clipped", y, "clamp", region=at) if style.clip else y
        turns, norms = style.rotary and name != "v", style.qk_norm and name != "v"
        y = _of_heads(g, path, y, dims, style) if norms and not style.qk_norm_last else y
        y = g.rope(f"{path}.rotated", y, over="head_dim", region=at) if turns else y
        y = _of_heads(g, path, y, dims, style) if norms and style.qk_norm_last else y
        made[name] = y
    mixed = _core(g, f"{at}.core", made["q"], made["k"], made["v"], (), style, queries)
    mixed = _gated(g, at, x, mixed, queries, style)
    if style.sub_norm:
        mixed = g.norm(f"{at}.sub_norm", mixed, queries, bias=False, **style.written)
    return g.einsum(f"{at}.out", mixed, g.parameter(f"{at}.out.weight", f"{queries} embed"), to="batch seq embed")


def _of_experts(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """A mixture of attention heads (Zhang et al., arXiv 2210.05144): the experts project queries and results.

    For each of a token's experts there are as many query heads as keys and values have, which all experts share; what
    the heads of an expert make goes through its other projection, and the results are added by gates.
    """
    heads = "kv head_dim"
    gates, route = routed(g, f"{at}.router", x, style)
    y = g.einsum(f"{at}.dispatch.pairs", x, route, to=f"{PAIRS} embed")
    y = g.linear(f"{at}.expert.q", y, f"{PAIRS} {heads}", f"expert embed {heads}")
    q = g.einsum(f"{at}.combine.q", y, route, to=f"batch seq choice {heads}")
    k, v = (g.linear(f"{at}.{name}", x, f"batch seq {heads}", f"embed {heads}") for name in ("k", "v"))
    q, k = (g.rope(f"{at}.{name}.rotated", y, over="head_dim", region=at) for name, y in (("q", q), ("k", k)))
    mixed = _core(g, f"{at}.core", q, k, v, (), style, f"choice {heads}")
    y = g.einsum(f"{at}.dispatch.mixed", mixed, route, to=f"{PAIRS} {heads}")
    y = g.linear(f"{at}.expert.out", y, f"{PAIRS} embed", f"expert {heads} embed")
    return g.einsum(f"{at}.combine.sum", y, gates, route, to="batch seq embed")


def _of_heads(g: Builder, path: str, x: Tensor, dims: str, style: Style) -> Tensor:
    """Queries or keys under their norm."""
    if style.qk_norm != "each":
        return g.norm(f"{path}.norm", x, dims if style.qk_norm == "all" else "head_dim", bias=style.qk_norm_bias,
                      centred=style.qk_layer_norm, weight=style.qk_norm_weight, **style.written)
    x = g.norm(f"{path}.norm", x, "head_dim", bias=False, centred=style.qk_layer_norm, weight=False, **style.written)
    x = g.mul(f"{path}.norm.scaled", x, g.parameter(f"{path}.norm.weight", dims))
    return g.biased(f"{path}.norm", x, dims) if style.qk_norm_bias else x


def _gated(g: Builder, at: str, x: Tensor, mixed: Tensor, heads: str, style: Style) -> Tensor:
    """What the heads make, times a sigmoid of what enters the layer."""
    if not style.gate:
        return mixed
    dims = heads if style.gate == "full" else heads.rpartition(" ")[0]
    logits = g.linear(f"{at}.gate", x, f"batch seq {dims}", f"embed {dims}", dims if style.gate_bias else None)
    return g.mul(f"{at}.gated", mixed, g.unary(f"{at}.gate.open", logits, "sigmoid"))


def _latent(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, equations 37 to 47), keys and values written out.

    Projections that a checkpoint keeps in one matrix are told apart where their dims differ; the count is the same.
    Biases stand on the projections that make latents.
    """
    def low(name: str, dim: str) -> Tensor:
        return g.linear(f"{at}.{name}", x, f"batch seq {dim}", f"embed {dim}", dim if style.attention_bias else None)

    q, rank = x, "embed"
    if "q_rank" in g.dims:
        q, rank = g.norm(f"{at}.q_norm", low("q_down", "q_rank"), "q_rank", bias=False, **style.written), "q_rank"
    kv = g.norm(f"{at}.kv_norm", low("kv_down", "kv_rank"), "kv_rank", bias=False, **style.written)
    queries, keys, values = (g.linear(f"{at}.{name}", y, f"batch seq {dims}", f"{low} {dims}")
                             for name, y, low, dims in (("q", q, rank, "heads nope_dim"),
                                                        ("k", kv, "kv_rank", "heads nope_dim"),
                                                        ("v", kv, "kv_rank", "heads value_dim")))
    q_rope = g.linear(f"{at}.q_rope", q, "batch seq heads rope_dim", f"{rank} heads rope_dim")
    turned = tuple(g.rope(f"{at}.{name}.rotated", y, over="rope_dim", region=at)
                   for name, y in (("q_rope", q_rope), ("k_rope", low("k_rope", "rope_dim"))))
    mixed = _core(g, f"{at}.core", queries, keys, values, turned, style, "heads value_dim")
    return g.einsum(f"{at}.out", mixed, g.parameter(f"{at}.out.weight", "heads value_dim embed"), to="batch seq embed")


def _core(g: Builder, at: str, q: Tensor, k: Tensor, v: Tensor, rotary: tuple[Tensor, ...], style: Style,
          heads: str) -> Tensor:
    """Scores, softmax and the product with the values, whose dims but batch and seq are `heads`.

    `rotary` are a query and a key whose product is added to the scores.
    """
    def along_keys(name: str, x: Tensor) -> Tensor:
        return g.rename(f"{at}.{name}", x, {"seq": "seq_kv"})

    k, v = along_keys("keys", k), along_keys("values", v)
    rotary = (rotary[0], along_keys("rotary_keys", rotary[1])) if rotary else ()
    factor = "(nope_dim + rope_dim)**(-1/2)" if rotary else FACTOR
    near = {name: str(n) for name, n in (("window", style.window), ("chunk", style.chunk)) if n}
    head = heads.rpartition(" ")[0]
    sink = g.parameter(f"{at.removesuffix('.core')}.sink.weight", head) if style.sinks else None
    if style.flash:
        over = "seq_kv nope_dim rope_dim value_dim" if rotary else "seq_kv head_dim"
        more = {"dropout": "keyed"} if style.dropout else {}
        more |= {"softcap": "yes"} if style.softcap else {}
        more |= {"alibi": "yes"} if style.positions == "alibi" else {}
        return g.flash(f"{at}.mixed", q, k, v, over=over, rotary=rotary, sink=sink, mask="causal", factor=factor,
                       **near, **more)
    grid = f"batch {head} seq seq_kv"
    scores = g.einsum(f"{at}.scores", q, k, to=grid)
    if rotary:
        scores = g.add(f"{at}.both", scores, g.einsum(f"{at}.rotary_scores", *rotary, to=grid))
    scores = g.scale(f"{at}.scaled", scores, factor)
    if style.positions == "alibi":
        scores = g.add(f"{at}.sloped", scores, SLOPES)
    if style.softcap:
        scores = capped(g, f"{at}.capped", scores)
    probs = g.softmax(f"{at}.probs", scores, over="seq_kv", sink=sink, upcast=style.upcast, mask="causal", **near)
    return g.einsum(f"{at}.mixed", dropped(g, f"{at}.dropped", probs, style), v, to=f"batch seq {heads}")


def capped(g: Builder, name: str, x: Tensor) -> Tensor:
    """`x` bounded: a tanh of its share of the bound, times the bound."""
    return g.scale(name, g.unary(f"{name}.tanh", g.scale(f"{name}.share", x, "1/cap"), "tanh"), "cap")
