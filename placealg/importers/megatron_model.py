"""The model of Megatron's flags: a shipped configuration where all sizes agree, else a config.json of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from placealg.errors import InputError
from placealg.importers.draft import Draft
from placealg.importers.key_log import Said
from placealg.importers.megatron_experts import LATENT, OFF, experts
from placealg.importers.model import model_of_fields
from placealg.importers.names import shipped_name
from placealg.models.config import SHIPPED, resolve_model, shipped
from placealg.models.stage_parts import predicting

FLAGS = ("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "group-query-attention",
         "num-query-groups", "kv-channels", "max-position-embeddings", "position-embedding-type", "embed-layernorm",
         "use-rotary-position-embeddings", "no-position-embedding", "normalization", "swiglu", "squared-relu",
         "disable-bias-linear", "add-qkv-bias", "qk-layernorm", "untie-embeddings-and-output-weights", "vocab-size",
         "padded-vocab-size", "pad-vocab-size-to", "make-vocab-size-divisible-by", "num-experts", "moe-router-topk",
         "moe-ffn-hidden-size", "moe-layer-freq", "moe-shared-expert-intermediate-size", "multi-latent-attention",
         "seq-length", *LATENT, "moe-shared-expert-gate", "moe-router-score-function", "moe-router-num-groups",
         "moe-router-group-topk")
OTHER = ("attention-head-type", "glu-activation", "use-rms-norm", "use-post-ln", "parallel-attn", "parallel-layernorm",
         "parallel-attention", "use-parallel-residual",
         "num-attention-heads-kv", "num-key-value-heads", "embed-layernorm", "use-alibi-position-embeddings",
         "apply-residual-connection-post-layernorm", "window-size", "window-attn-skip-freq", "is-hybrid-model",
         "hybrid-attention-ratio", "hybrid-override-pattern", "heterogeneous-layers-config-path", "softmax-type")
"""Flags, some of forks, that make other blocks than those of a family that is read."""

SILENT = "the flags hold no sizes of a network"

NAMES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
         "n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}


def read_model(draft: Draft, said: Said, tp: int) -> None:
    """Set draft.model from the flags, or record why they name no supported model."""
    named = str(said.raw("model") or "")
    if named and (name := shipped_name("huggingface", named)):
        draft.model = name
        said.read("model", f"model {name}")
        return
    found, why = _fields(said, tp)
    matching = shipped_alike(found) if found else ""
    if matching:
        draft.model = matching
        _tell(said, f"of the model: all sizes agree with {matching}")
    elif found:
        draft.model = found
        _tell(said, "of the model")
        if not found.get("vocab_size"):
            said.unsaid("vocab-size", "the tokenizer decides the vocabulary: V stays symbolic", "--set V=N")
    else:
        if why == SILENT and not named:
            said.unsaid("model", f"{why}: figures and proof stand on an abstract network or a stand-in", "--model")
        else:
            draft.unread_model(f"{named}: its config.json is not here" if named else why)
        _tell(said, "of a model that is not read")


def read_predictions(draft: Draft, said: Said) -> None:
    """What divides the losses of layers that predict later tokens, where the model has as many of them as are told."""
    if not (told := said.number("mtp-num-layers", 0)):
        said.leave("mtp-num-layers", "off")
        return
    if draft.model and not draft.options.model and isinstance(draft.model, Mapping):
        told_too = {**draft.model, "num_nextn_predict_layers": told}
        draft.model = told_too if _predicting(told_too) == told else draft.model
    if _predicting(draft.options.model or draft.model) == told:
        draft.parts.say("loss", "predictions", "counted")
        if said.flag("calculate-per-token-loss"):
            said.approximated("mtp-num-layers", "[loss] predictions = \"counted\", over all later tokens of the step: "
                              "Megatron-LM takes the mean over those of each rank and microbatch, which weighs by its "
                              "first tokens")
        else:
            draft.parts.say("loss", "term_divisor", "count")
            draft.parts.say("loss", "term_axes", [])
            said.read("mtp-num-layers", "[loss] predictions = \"counted\", term_axes = []: the mean over later tokens "
                                        "of each rank and microbatch, averaged")
        return
    said.approximated("mtp-num-layers", "layers that predict later tokens are those of the model, which has them with "
                                        "--mtp; without it their parameters are left out, and what they add to the "
                                        "loss")


def _predicting(model: str | Mapping[str, Any] | None) -> int:
    """How many layers of a model predict later tokens, if it has any."""
    try:
        found = (model_of_fields(model, "", mtp=True) if isinstance(model, Mapping) else
                 resolve_model(model or "", mtp=True))
    except InputError:
        return 0
    return len(predicting(found.graph))


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
        return {}, SILENT
    others = [flag for flag in OTHER if said.raw(flag) not in (*OFF, "multihead", "vanilla")]
    if others == ["embed-layernorm"] and _is_bloom(said, hidden, heads):
        return {"model_type": "bloom", "hidden_size": hidden, "n_layer": layers, "n_head": heads,
                "tie_word_embeddings": not said.flag("untie-embeddings-and-output-weights"),
                **_vocabulary(said, tp)}, ""
    other = next(iter(others), "")
    if other:
        return {}, f"{other} makes blocks of no family that is read"
    swiglu = said.flag("swiglu")
    grouped = said.flag("group-query-attention")
    ffn = said.number("ffn-hidden-size") or (int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden)
    fields = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
              "intermediate_size": ffn, **_vocabulary(said, tp)}
    kv = said.whole("num-query-groups", said.value("num-query-groups")) if grouped else heads
    head = said.number("kv-channels")
    tied = {"tie_word_embeddings": not said.flag("untie-embeddings-and-output-weights")}
    rope = said.flag("use-rotary-position-embeddings") or said.value("position-embedding-type") == "rope"
    rms = said.value("normalization") == "RMSNorm"
    plain = said.flag("disable-bias-linear")
    if (rope and said.raw("num-experts") not in OFF) or said.flag("multi-latent-attention"):
        if not (rms and swiglu and plain):
            return {}, "experts or latent attention with another norm, activation or biases are no family that is read"
        return experts(said, {**fields, **tied}, kv, head)
    if said.raw("num-experts") not in OFF:
        return {}, "experts without rotary positions are no family that is read"
    family, nearest = _dense(said)
    if family == "gpt2":
        old = {value: key for key, value in NAMES.items()}
        gpt = {old.get(name, name): value for name, value in fields.items()}
        if not (said.number("max-position-embeddings") or said.number("seq-length")):
            return {}, "the flags do not say how many positions are learned"
        return {"model_type": "gpt2", **gpt, "n_positions": said.number("max-position-embeddings") or said.number(
            "seq-length"), **tied}, ""
    if not family:
        return {}, f"the flags describe blocks of no family that is read; the nearest, {nearest}"
    if family == "stablelm" and head not in (None, hidden // heads):
        return {}, f"blocks as StableLM's have heads of hidden-size / num-attention-heads, and kv-channels is {head}"
    more = ({"use_qkv_bias": said.flag("add-qkv-bias")} if family == "stablelm" else
            {"use_bias": not plain} if family == "starcoder2" else {})
    return {"model_type": family, **fields, "num_key_value_heads": kv, **tied, **more,
            **({"head_dim": head or hidden // heads} if head or family == "qwen3" else {})}, ""


def _is_bloom(said: Said, hidden: int, heads: int) -> bool:
    """Whether blocks under a norm of the embedding are BLOOM's: slopes for positions, LayerNorm, gelu and biases."""
    on = ("swiglu", "squared-relu", "disable-bias-linear", "qk-layernorm", "group-query-attention")
    return (said.value("position-embedding-type") == "alibi" and said.value("normalization") == "LayerNorm"
            and not any(map(said.flag, on)) and said.raw("num-experts") in OFF
            and said.number("ffn-hidden-size") in (None, 4 * hidden)
            and said.number("kv-channels") in (None, hidden // heads))


_DENSE: Mapping[str, Mapping[str, str]] = {
    family: dict(zip(("positions", "norm", "activation", "bias", "qkv", "qk", "groups"), words.split(), strict=True))
    for family, words in {
        "llama": "rope RMSNorm swiglu none none none any", "qwen2": "rope RMSNorm swiglu none bias none any",
        "qwen3": "rope RMSNorm swiglu none none norm any", "arcee": "rope RMSNorm squared none none none any",
        "nemotron": "rope LayerNorm squared none none none any", "stablelm": "rope LayerNorm swiglu none any none any",
        "starcoder2": "rope LayerNorm gelu any none none any", "gpt2": "learned LayerNorm gelu bias none none none",
    }.items()}
"""What the blocks of each family without experts have; `bias` is of every linear op, `qkv` of those three alone."""

_SAID = {
    ("positions", "rope"): "--position-embedding-type rope", ("norm", "RMSNorm"): "--normalization RMSNorm",
    ("positions", "learned"): "--position-embedding-type learned_absolute", ("norm", "LayerNorm"):
    "--normalization LayerNorm", ("activation", "swiglu"): "--swiglu alone", ("activation", "squared"):
    "--squared-relu alone",
    ("activation", "gelu"): "no --swiglu or --squared-relu", ("bias", "none"): "--disable-bias-linear",
    ("bias", "bias"): "no --disable-bias-linear", ("qkv", "none"): "no --add-qkv-bias", ("qkv", "bias"):
    "--add-qkv-bias", ("qk", "none"): "no --qk-layernorm", ("qk", "norm"): "--qk-layernorm",
    ("groups", "none"): "no --group-query-attention",
}
"""The flag that says it."""


def _dense(said: Said) -> tuple[str, str]:
    """The family without experts whose blocks the flags describe; or none, and what the nearest one has instead."""
    rope = said.flag("use-rotary-position-embeddings") or said.value("position-embedding-type") == "rope"
    learned = said.value("position-embedding-type") == "learned_absolute"
    plain = said.flag("disable-bias-linear")
    both = said.flag("swiglu") and said.flag("squared-relu")
    has = {
        "positions": "rope" if rope else "other" if said.flag("no-position-embedding") or not learned else "learned",
        "norm": "RMSNorm" if said.value("normalization") == "RMSNorm" else "LayerNorm",
        "activation": "both" if both else "swiglu" if said.flag("swiglu") else "squared" if said.flag("squared-relu")
        else "gelu",
        "bias": "none" if plain else "bias", "qkv": "bias" if plain and said.flag("add-qkv-bias") else "none",
        "qk": "norm" if said.flag("qk-layernorm") else "none",
        "groups": "groups" if said.flag("group-query-attention") else "none"}
    others = {family: [_SAID[part, word] for part, word in blocks.items() if word not in ("any", has[part])]
              for family, blocks in _DENSE.items()}
    nearest = min(others, key=lambda family: len(others[family]))
    return ("", f"{nearest}, has {', '.join(others[nearest])}") if others[nearest] else (nearest, "")


def _vocabulary(said: Said, tp: int) -> dict[str, int]:
    padded = said.number("padded-vocab-size") or said.number("pad-vocab-size-to")
    if padded:
        return {"vocab_size": padded}
    asked = said.options.settings.get("vocab-size")
    size = said.number("vocab-size") or (said.whole("vocab-size", asked) if asked else None)
    if not size:
        return {}
    multiple = (said.whole("make-vocab-size-divisible-by", said.value("make-vocab-size-divisible-by")) or 1) * tp
    return {"vocab_size": -(-size // multiple) * multiple}


def shipped_alike(fields: Mapping[str, Any]) -> str:
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
    theirs.setdefault("tie_word_embeddings", data["model_type"] == "gpt2")
    mine.setdefault("num_key_value_heads", mine["num_attention_heads"])
    passed = {"vocab_size", "num_nextn_predict_layers", *(() if "n_positions" in fields else (
        "max_position_embeddings",))}
    if any(mine[n] != theirs[n] for n in mine if n in theirs and n not in passed):
        return False
    vocabulary = mine.get("vocab_size")
    return vocabulary is None or 0 <= vocabulary - theirs["vocab_size"] < 1024
