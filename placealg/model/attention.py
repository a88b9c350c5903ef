"""Attention as ops: heads of their own or grouped, or from low-rank latents; fused into one op, or written out."""

from __future__ import annotations

from placealg.model.build import Builder
from placealg.model.graph import Tensor
from placealg.model.style import Style


def attention(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """Attention of the layer `at`, up to its output projection, whose bias is left to the block."""
    return _latent(g, f"{at}.attn", x, style) if style.latent else _plain(g, f"{at}.attn", x, style)


def dropped(g: Builder, name: str, x: Tensor, style: Style) -> Tensor:
    """`x` under dropout where the style has it."""
    return g.dropout(name, x) if style.dropout else x


def _plain(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    queries, keys = ("kv group head_dim", "kv head_dim") if style.grouped else ("heads head_dim", "heads head_dim")
    made = {}
    for name, dims in (("q", queries), ("k", keys), ("v", keys)):
        path = f"{at}.{name}"
        y = g.linear(path, x, f"batch seq {dims}", f"embed {dims}", dims if style.attention_bias else None)
        if style.qk_norm and name != "v":
            y = g.norm(f"{path}.norm", y, "head_dim", bias=False)
        if style.rotary and name != "v":
            y = g.rope(f"{path}.rotated", y, over="head_dim", region=at)
        made[name] = y
    mixed = _core(g, f"{at}.core", made["q"], made["k"], made["v"], (), style, queries)
    return g.einsum(f"{at}.out", mixed, g.parameter(f"{at}.out.weight", f"{queries} embed"), to="batch seq embed")


def _latent(g: Builder, at: str, x: Tensor, style: Style) -> Tensor:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, equations 37 to 47), keys and values written out.

    Projections that a checkpoint keeps in one matrix are told apart where their dims differ; the count is the same.
    """
    q, rank = x, "embed"
    if "q_rank" in g.dims:
        q, rank = g.norm(f"{at}.q_norm", g.linear(f"{at}.q_down", x, "batch seq q_rank", "embed q_rank"), "q_rank",
                         bias=False), "q_rank"
    kv = g.norm(f"{at}.kv_norm", g.linear(f"{at}.kv_down", x, "batch seq kv_rank", "embed kv_rank"), "kv_rank",
                bias=False)
    queries, keys, values = (g.linear(f"{at}.{name}", y, f"batch seq {dims}", f"{low} {dims}")
                             for name, y, low, dims in (("q", q, rank, "heads nope_dim"),
                                                        ("k", kv, "kv_rank", "heads nope_dim"),
                                                        ("v", kv, "kv_rank", "heads value_dim")))
    turned = [g.rope(f"{at}.{name}.rotated", g.linear(f"{at}.{name}", y, f"batch seq {dims}", f"{low} {dims}"),
                     over="rope_dim", region=at)
              for name, y, low, dims in (("q_rope", q, rank, "heads rope_dim"), ("k_rope", x, "embed", "rope_dim"))]
    mixed = _core(g, f"{at}.core", queries, keys, values, tuple(turned), style, "heads value_dim")
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
    factor = "(nope_dim + rope_dim)**(-1/2)" if rotary else "head_dim**(-1/2)"
    if style.flash:
        over = "seq_kv nope_dim rope_dim value_dim" if rotary else "seq_kv head_dim"
        dropout = {"dropout": "keyed"} if style.dropout else {}
        return g.flash(f"{at}.mixed", q, k, v, over=over, rotary=rotary, mask="causal", factor=factor, **dropout)
    grid = f"batch {heads.rpartition(' ')[0]} seq seq_kv"
    scores = g.einsum(f"{at}.scores", q, k, to=grid)
    if rotary:
        scores = g.add(f"{at}.both", scores, g.einsum(f"{at}.rotary_scores", *rotary, to=grid))
    scores = g.scale(f"{at}.scaled", scores, factor)
    probs = dropped(g, f"{at}.dropped", g.softmax(f"{at}.probs", scores, over="seq_kv", mask="causal"), style)
    return g.einsum(f"{at}.mixed", probs, v, to=f"batch seq {heads}")
