"""The model of Megatron's flags: a shipped configuration where all sizes agree, else a config.json of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from placealg.importers.draft import Draft
from placealg.importers.names import shipped_name
from placealg.importers.said import Said
from placealg.model.config import SHIPPED, shipped

FLAGS = ("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "group-query-attention",
         "num-query-groups", "kv-channels", "max-position-embeddings", "position-embedding-type",
         "use-rotary-position-embeddings", "no-position-embedding", "normalization", "swiglu", "squared-relu",
         "disable-bias-linear", "add-qkv-bias", "qk-layernorm", "untie-embeddings-and-output-weights", "vocab-size",
         "padded-vocab-size", "make-vocab-size-divisible-by", "num-experts", "moe-router-topk", "moe-ffn-hidden-size",
         "moe-layer-freq", "moe-shared-expert-intermediate-size", "multi-latent-attention", "seq-length")
NAMES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
         "n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}
COMPARED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
            "max_position_embeddings")
OFF = (None, "", "null", "none", "None", "0", 0, False, "false", "False")


def read_model(draft: Draft, said: Said, tp: int) -> None:
    """The model that the flags describe; the reading's model where one is read, else what keeps it from that."""
    named = str(said.raw("model") or "")
    if named and (name := shipped_name("huggingface", named)):
        draft.model = name
        said.read("model", f"model {name}")
        return
    found, why = _fields(said, tp)
    matching = _shipped(found) if found else ""
    if matching:
        draft.model = matching
        _tell(said, f"of the model: all sizes agree with {matching}")
    elif found and found.get("vocab_size"):
        draft.model = found
        _tell(said, "of the model")
    else:
        why = why or "the tokenizer decides the vocabulary"
        said.unsaid("model", f"{why}: the proof stands on a stand-in", "--model")
        _tell(said, "of a model that is not read")


def _tell(said: Said, text: str) -> None:
    for flag in FLAGS:
        if said.has(flag) and not said.accounted(said.path(flag)):
            if text.endswith("not read"):
                said.inactive(flag, text)
            else:
                said.read(flag, text)


def _fields(said: Said, tp: int) -> tuple[dict[str, Any], str]:
    """(the fields of a config.json, "") or ({}, why there are none)."""
    layers, hidden, heads = (said.number(f) for f in ("num-layers", "hidden-size", "num-attention-heads"))
    if not layers or not hidden or not heads:
        return {}, "the flags hold no sizes of a network"
    for flag, what in (("multi-latent-attention", "latent attention"), ("squared-relu", "a squared ReLU"),
                       ("add-qkv-bias", "biases of q, k and v alone")):
        if said.flag(flag):
            return {}, f"{what} beside other sizes is no family that is read from flags"
    swiglu = said.flag("swiglu")
    grouped = said.flag("group-query-attention")
    ffn = said.number("ffn-hidden-size") or (int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden)
    fields = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
              "intermediate_size": ffn, **_vocabulary(said, tp)}
    kv = said.whole("num-query-groups", said.value("num-query-groups")) if grouped else heads
    head = said.number("kv-channels")
    if said.raw("num-experts") not in OFF:
        return _experts(said, {**fields, "num_key_value_heads": kv, **({"head_dim": head} if head else {})})
    rope = said.flag("use-rotary-position-embeddings") or said.value("position-embedding-type") == "rope"
    rms = said.value("normalization") == "RMSNorm"
    if swiglu and rms and rope and said.flag("disable-bias-linear") and not said.flag("qk-layernorm"):
        return {"model_type": "llama", **fields, "num_key_value_heads": kv,
                "tie_word_embeddings": not said.flag("untie-embeddings-and-output-weights"),
                **({"head_dim": head} if head else {})}, ""
    if not any((swiglu, rms, rope, grouped, said.flag("qk-layernorm"), said.flag("disable-bias-linear"),
                said.flag("no-position-embedding"))):
        old = {value: key for key, value in NAMES.items()}
        gpt = {old.get(name, name): value for name, value in fields.items()}
        return {"model_type": "gpt2", **gpt, "n_positions": said.number("max-position-embeddings") or said.number(
            "seq-length"), "tie_word_embeddings": not said.flag("untie-embeddings-and-output-weights")}, ""
    return {}, "activation, norm and positions together are no family that is read"


def _vocabulary(said: Said, tp: int) -> dict[str, int]:
    padded = said.number("padded-vocab-size")
    if padded:
        return {"vocab_size": padded}
    size = said.number("vocab-size")
    if not size:
        return {}
    multiple = (said.whole("make-vocab-size-divisible-by", said.value("make-vocab-size-divisible-by")) or 1) * tp
    return {"vocab_size": -(-size // multiple) * multiple}


def _experts(said: Said, fields: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """A network of experts in every layer, without shared ones."""
    if said.raw("moe-shared-expert-intermediate-size") not in OFF:
        return {}, "shared experts without latent attention are no family that is read"
    frequency = said.raw("moe-layer-freq")
    if frequency not in (None, "1", 1):
        return {}, f"experts in some layers (moe-layer-freq {frequency}) are no family that is read from flags"
    size = said.number("moe-ffn-hidden-size") or fields["intermediate_size"]
    topk = said.whole("moe-router-topk", said.value("moe-router-topk")) or 1
    number = said.number("num-experts")
    kept = {k: v for k, v in fields.items() if k != "intermediate_size"}
    tied = {"tie_word_embeddings": not said.flag("untie-embeddings-and-output-weights")}
    if said.flag("qk-layernorm"):
        return {"model_type": "qwen3_moe", **kept, **tied, "moe_intermediate_size": size, "num_experts": number,
                "num_experts_per_tok": topk, "norm_topk_prob": True}, ""
    return {"model_type": "mixtral", **kept, **tied, "intermediate_size": size, "num_local_experts": number,
            "num_experts_per_tok": topk}, ""


def _shipped(fields: Mapping[str, Any]) -> str:
    """The shipped configuration of this family whose sizes are these; the vocabulary may be open, or padded."""
    for name in shipped():
        data = json.loads((SHIPPED / f"{name}.json").read_text(encoding="utf-8"))
        if data["model_type"] == fields["model_type"] and _alike(fields, data):
            return name
    return ""


def _alike(fields: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    mine = {NAMES.get(k, k): v for k, v in fields.items()}
    theirs = {NAMES.get(k, k): v for k, v in data.items()}
    theirs.setdefault("intermediate_size", 4 * theirs["hidden_size"])
    theirs.setdefault("num_key_value_heads", theirs["num_attention_heads"])
    mine.setdefault("num_key_value_heads", mine["num_attention_heads"])
    names = [n for n in (*COMPARED, "moe_intermediate_size", "num_experts", "num_local_experts", "num_experts_per_tok")
             if n in mine and n in theirs and (n != "max_position_embeddings" or "n_positions" in fields)]
    if any(mine[n] != theirs[n] for n in names):
        return False
    vocabulary = mine.get("vocab_size")
    return vocabulary is None or 0 <= vocabulary - theirs["vocab_size"] < 1024
