"""Networks of experts, and of latent attention, as Megatron's flags describe them: the family that has these blocks."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from placealg.importers.document import written
from placealg.importers.key_log import Said

OFF = (None, "", "null", "none", "None", "0", 0, False, "false", "False")
"""What a flag says that turns nothing on."""

LATENT: Mapping[str, tuple[str, int | None]] = {
    "q-lora-rank": ("q_lora_rank", None), "kv-lora-rank": ("kv_lora_rank", 32),
    "qk-head-dim": ("qk_nope_head_dim", 128),
    "qk-pos-emb-head-dim": ("qk_rope_head_dim", 64), "v-head-dim": ("v_head_dim", 128),
}
"""Flag of latent attention -> field of DeepSeek's config.json, and Megatron's default (transformer_config.py)."""


def experts(said: Said, fields: Mapping[str, Any], kv: int | None, head: int | None) -> tuple[dict[str, Any], str]:
    """(the fields of a config.json, "") or ({}, why there are none); `fields` are the sizes of a dense network."""
    latent = said.flag("multi-latent-attention")
    depth = int(fields["num_hidden_layers"])
    number = said.number("num-experts") if said.raw("num-experts") not in OFF else 0
    sparse = _layers(said.raw("moe-layer-freq"), depth) if number else []
    if sparse is None:
        return {}, f"moe-layer-freq {said.raw('moe-layer-freq')} is no pattern that is read"
    first = next((k for k, one in enumerate(sparse) if one), depth)
    size = said.number("moe-ffn-hidden-size") or fields["intermediate_size"]
    wide = said.number("moe-shared-expert-intermediate-size", 0) or 0
    topk = said.whole("moe-router-topk", said.value("moe-router-topk")) or 1
    sigmoid = said.raw("moe-router-score-function") == "sigmoid"
    normed, biased = said.flag("qk-layernorm"), said.flag("add-qkv-bias")
    group = {"n_group": said.number("moe-router-num-groups") or 1,
             "topk_group": said.number("moe-router-group-topk") or 1}
    shared = {"n_shared_experts": wide // size, "n_routed_experts": number, "num_experts_per_tok": topk,
              "moe_intermediate_size": size, "first_k_dense_replace": first, **group}
    only_first = all(sparse[first:])
    if latent:
        if not normed or biased or wide % size or not only_first or not number:
            return {}, "latent attention with other blocks than DeepSeek's is no family that is read"
        ranks = {name: said.number(flag) or default for flag, (name, default) in LATENT.items()}
        if sigmoid:
            return {"model_type": "deepseek_v3", **fields, **ranks, **shared, "norm_topk_prob": True,
                    "num_key_value_heads": fields["num_attention_heads"], "num_nextn_predict_layers": 0}, ""
        return {"model_type": "deepseek_v2", **fields, **ranks, **shared}, ""
    kept = {**fields, "num_key_value_heads": kv, **({"head_dim": head} if head else {})}
    if not wide and not biased:
        if normed:
            dense = [k for k, one in enumerate(sparse) if not one]
            return {"model_type": "qwen3_moe", **kept, "head_dim": head or fields["hidden_size"] // fields[
                "num_attention_heads"], "moe_intermediate_size": size, "num_experts": number,
                "num_experts_per_tok": topk, "norm_topk_prob": True, "mlp_only_layers": dense}, ""
        if all(sparse):
            return {"model_type": "mixtral", **kept, "intermediate_size": size, "num_local_experts": number,
                    "num_experts_per_tok": topk}, ""
    if wide and all(sparse) and not sigmoid and not normed and said.flag("moe-shared-expert-gate"):
        return {"model_type": "qwen2_moe", **kept, "moe_intermediate_size": size, "num_experts": number,
                "num_experts_per_tok": topk, "shared_expert_intermediate_size": wide, "qkv_bias": biased}, ""
    if sigmoid and only_first and wide % size == 0 and not said.flag("moe-shared-expert-gate"):
        return {"model_type": "glm4_moe", **kept, **shared, "attention_bias": biased, "use_qk_norm": normed,
                "num_nextn_predict_layers": 0}, ""
    return {}, "experts, shared experts, scores and biases together are no family that is read"


def _layers(said: Any, depth: int) -> list[bool] | None:
    """Which layers have experts: all, every n-th, or those of a list that is written as sums and multiples of lists.

    >>> _layers("([0]*1+[1]*3)", 4), _layers("2", 4)
    ([False, True, True, True], [True, False, True, False])
    """
    if said in (None, ""):
        return [True] * depth
    every = said if isinstance(said, int) else written(said, 9)
    if every is not None:
        return [k % every == 0 for k in range(depth)] if every else None
    try:
        found = _list(ast.parse(str(said).strip("'\""), mode="eval").body)
    except (SyntaxError, ValueError):
        return None
    return [bool(n) for n in found] if len(found) == depth else None


def _list(node: ast.expr) -> list[int]:
    """A list of numbers, as an expression of lists, + and * has it."""
    match node:
        case ast.List():
            return [int(ast.literal_eval(n)) for n in node.elts]
        case ast.BinOp(op=ast.Add()):
            return _list(node.left) + _list(node.right)
        case ast.BinOp(op=ast.Mult(), left=ast.List(), right=ast.Constant(value=int(times))) if 0 <= times <= 10_000:
            return _list(node.left) * times
        case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=int(times)), right=ast.List()) if 0 <= times <= 10_000:
            return _list(node.right) * times
    raise ValueError("no list")
