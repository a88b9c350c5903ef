"""Low-rank adapters as front ends of Megatron-LM set them up: beside its linear modules, some of them joint products.

Megatron-LM keeps queries, keys and values in one product, and the gate and the up projection of an MLP: one adapter
stands beside each there, and one beside every part of it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from placealg.importers.draft import Draft
from placealg.importers.lora import model_beside
from placealg.models.adapters import linear_ops

MODULES: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("attn.q", "attn.k", "attn.v"), "linear_proj": ("attn.out",),
    "linear_fc1": ("mlp.gate", "mlp.up"), "linear_fc2": ("mlp.down",),
}
"""Linear module of Megatron Core -> the linear ops of a layer that it is (megatron/core/transformer)."""

LATENT: Mapping[str, tuple[str, ...]] = {
    **{name: ops for name, ops in MODULES.items() if name != "linear_qkv"},
    "linear_q_proj": ("attn.q", "attn.q_rope"), "linear_q_down_proj": ("attn.q_down",),
    "linear_q_up_proj": ("attn.q", "attn.q_rope"), "linear_kv_down_proj": ("attn.kv_down", "attn.k_rope"),
    "linear_kv_up_proj": ("attn.k", "attn.v"),
}
"""The same with latent attention."""

NEMO: Mapping[str, tuple[str, ...]] = {
    "attention_qkv": ("linear_qkv",), "attention_dense": ("linear_proj",), "mlp_fc1": ("linear_fc1",),
    "mlp_fc2": ("linear_fc2",), "attention": ("linear_qkv", "linear_proj"), "mlp": ("linear_fc1", "linear_fc2"),
    "all": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
}
"""Target of NeMo 1 -> the linear modules that it names (peft_config.py)."""

ALL = "all-linear"


def read_megatron_adapters(draft: Draft, rank_key: str, rank: int, targets_key: str, targets: Iterable[str]) -> None:
    """[adapters] of the strategy: called when the model is known."""
    said = draft.said
    model = model_beside(draft)
    here = {op.rpartition("layer.")[2] for op in linear_ops(model.graph)} if model else {
        op for ops in MODULES.values() for op in ops}
    name = model.name if model else "Megatron-LM"
    modules = LATENT if "attn.q_rope" in here else MODULES
    words = [inner for word in targets for inner in (NEMO.get(word) or (tuple(modules) if word == ALL else (word,)))]
    unknown = [word for word in words if word not in modules]
    if unknown:
        raise said.refuse(targets_key, f"{targets_key} names {unknown[0]}, which is no linear module of {name}: "
                                       f"there is {', '.join((*modules, *NEMO, ALL))}")
    experts = model is not None and any(op.kind == "route" for op in model.graph.ops)
    if experts and any(word.startswith("linear_fc") for word in words):
        raise said.refuse(targets_key, "adapters beside the grouped products of experts, which is not read",
                          "adapters of attention alone are")
    chosen = [op for word in dict.fromkeys(words) for op in modules[word] if op in here]
    if not chosen:
        raise said.refuse(targets_key, f"{targets_key} names no linear module of {name}")
    draft.parts.say("adapters", "match", list(dict.fromkeys(chosen)))
    draft.parts.say("adapters", "rank", rank)
    said.read(rank_key, f"[adapters] rank = {rank}")
    said.read(targets_key, f"[adapters] match: adapters beside {', '.join(dict.fromkeys(chosen))}")
    joint = [word for word in dict.fromkeys(words) if len([op for op in modules[word] if op in here]) > 1]
    if joint:
        said.approximated("adapters of joint products", f"{', '.join(joint)}: one product with one adapter there, "
                          "several here, each with an adapter of its own, whose first factors count once each")
