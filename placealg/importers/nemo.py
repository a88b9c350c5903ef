"""NeMo 1 YAML, whose model section is Megatron's flags by other names; and files that only override a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from placealg.errors import shown
from placealg.importers.document import Document, Key, dotted, written
from placealg.importers.draft import Draft
from placealg.importers.key_log import Said
from placealg.importers.megatron import TOKENS, Megatron
from placealg.importers.megatron_adapters import read_megatron_adapters
from placealg.importers.names import kind_without_graph
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.tables import table
from placealg.importers.token_attributes import DOCUMENTS, POSITIONS, read_tokens

FLAGS = {"virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
         "activations_checkpoint_granularity": "recompute-granularity",
         "activations_checkpoint_method": "recompute-method",
         "activations_checkpoint_num_layers": "recompute-num-layers",
         "encoder_seq_length": "seq-length", "num_moe_experts": "num-experts", "moe_router_topk": "moe-router-topk",
         "mcore_gpt": "use-mcore-models", "ffn_hidden_size": "ffn-hidden-size"}
"""Key of NeMo's model -> Megatron's flag, where it is not the same word with dashes."""

SAME = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "sequence_parallel",
        "expert_model_parallel_size", "expert_tensor_parallel_size", "micro_batch_size", "global_batch_size",
        "rampup_batch_size", "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
        "max_position_embeddings", "seq_length", "distribute_saved_activations", "vocab_size",
        "make_vocab_size_divisible_by", "moe_expert_capacity_factor", "moe_token_drop_policy",
        "moe_pad_expert_input_to_capacity", "cpu_offloading", "fp8_param_gather", "qk_layernorm", "add_qkv_bias",
        "attention_dropout", "hidden_dropout", "ffn_dropout", "attention_backend", "cross_entropy_loss_fusion",
        "cross_entropy_fusion_impl")
DEGREES = frozenset((*SAME[:9], "virtual_pipeline_model_parallel_size", "activations_checkpoint_granularity",
                     "activations_checkpoint_method", "activations_checkpoint_num_layers", "num_layers"))
"""What must be a value, and no interpolation that another file or the launcher fills in."""

OFF = (None, "", "null", "none", "None", False, 0)


def is_nemo(data: Mapping[str, Any]) -> bool:
    """Whether a table is of NeMo, or of what overrides recipes of Megatron-LM."""
    model = data.get("model")
    if isinstance(data.get("policy"), Mapping) and "megatron_cfg" in data["policy"]:
        return True
    if not isinstance(model, Mapping):
        return False
    return "tensor_model_parallel_size" in model or "megatron_amp_O2" in model or bool(
        isinstance(data.get("trainer"), Mapping) and {"micro_batch_size", "restore_from_path"} & set(model))


def read_nemo(document: Document, options: Options) -> Reading:
    """The reading of a NeMo configuration."""
    _other_files(document)
    resolved = _resolved(document)
    draft = Draft("nemo", resolved, options)
    _kinds(draft)
    said = _Nemo(table("megatron"), resolved, options)
    _engine(draft, said)
    said.prepare()
    Megatron(draft, said, _world(draft)).read()
    own = draft.said
    _autocast(draft, said)
    read_tokens(draft, "model.data.train_ds.packed_sequence", DOCUMENTS, POSITIONS)
    if str(own.raw("model.peft.peft_scheme")).lower() == "lora":
        _adapters(draft)
    for name, items in said.lists.items():
        own.lists[name] += items
    own.listed |= said.listed
    for key in ("trainer.precision", "trainer.gradient_clip_val", "trainer.accumulate_grad_batches", "model.optim.name",
                "model.optim.grad_sync_dtype", "model.optim.contiguous_grad_buffer", "model.megatron_amp_O2",
                "model.grad_allreduce_chunk_size_mb", "model.fsdp", "model.fsdp_sharding_strategy", "model.peft",
                "model.freeze"):
        if not isinstance(own.raw(key), Mapping):
            own.leave(key, "told with the rest, or off")
    return draft.reading()


def _other_files(document: Document) -> None:
    """Files that only override: what they name decides."""
    data = document.data
    if isinstance(data.get("policy"), Mapping):
        raise refusal("a NeMo-RL file overrides its defaults, another file, in policy.megatron_cfg",
                      document.where(("policy", "megatron_cfg")), "give the arguments that the run prints at its "
                                                                  "start")
    model = data.get("model")
    if isinstance(model, Mapping) and not isinstance(data.get("trainer"), Mapping):
        raise refusal("an override of a recipe of Megatron-Bridge, which is Python: the recipe decides what it "
                      "leaves open",
                      document.where(("model",)), "give the arguments that the run prints at its start")


def _resolved(document: Document) -> Document:
    """The document with `${a.b}` and `${oc.env:NAME,default}` of keys that matter put in; others stay text."""
    def value(found: Any, path: Key, depth: int = 0) -> Any:
        if isinstance(found, Mapping):
            return {k: value(v, (*path, str(k))) for k, v in found.items()}
        if not isinstance(found, str) or depth > 5:
            return found
        whole = re.fullmatch(r"\$\{(\.*)([\w.]+)\}", found)
        if whole:
            above = path[:len(path) - len(whole[1])] if whole[1] else ()
            target = (*above, *whole[2].split("."))
            inner = document.get(target)
            return value(inner, target, depth + 1) if inner is not None and not isinstance(inner, Mapping) else found
        env = re.fullmatch(r"\$\{(?:oc\.env:)?\w+[,:]([^{}$]*)\}", found)
        return _typed(env[1].strip()) if env else found

    return replace(document, data=value(document.data, ()))


def _typed(text: str) -> Any:
    """The default of a variable of the environment, as YAML has it."""
    return int(text) if re.fullmatch(r"-?\d{1,30}", text) else {"true": True, "false": False}.get(text.lower(), text)


def _kinds(draft: Draft) -> None:
    """Networks without an op graph, by the file's own name for them."""
    said = draft.said
    data: Any = said.document.data
    words = [str(data.get("name") or ""), str((data.get("run") or {}).get("name") or "") if isinstance(
        data.get("run"), Mapping) else ""]
    for word in words:
        if kind := kind_without_graph(word):
            raise refusal(f"{word} is {kind}, of which there is no op graph", said.document.where(("name",)))
    model = data.get("model", {})
    if not isinstance(model, Mapping):
        raise said.refuse("model", f"model is {shown(model)}: expected a table")
    if any(k in model for k in ("mm_cfg", "vision_config", "encoder", "decoder", "unet_config", "first_stage_config",
                                "audio_encoder", "perception")):
        key = next(k for k in ("mm_cfg", "vision_config", "encoder", "decoder", "unet_config", "first_stage_config",
                               "audio_encoder", "perception") if k in model)
        raise said.refuse(f"model.{key}", f"model.{key}: a network of which there is no op graph")
    peft = model.get("peft")
    if isinstance(peft, Mapping) and str(peft.get("peft_scheme", "none")).lower() not in ("none", "null", "", "lora"):
        raise said.refuse("model.peft.peft_scheme", f"peft {peft.get('peft_scheme')}: adapters of another kind than "
                                                    "lora")
    if isinstance(model.get("freeze"), Mapping) or model.get("freeze") is True:
        raise said.refuse("model.freeze", "part of the model is frozen")
    for path, value in said.document.leaves():
        if isinstance(value, str) and re.search(r"\$\{|\?\?\?", value) and str(path[-1]) in DEGREES:
            raise refusal(f"{dotted(path)} is {value}, which another file or the launcher decides",
                          said.document.where(path), f"--key {dotted(path)}=VALUE")


def _autocast(draft: Draft, said: _Nemo) -> None:
    """Weights in 32 bits, and ops in autocast, where O2 is off."""
    own, key = draft.said, "model.megatron_amp_O2"
    on = own.flag(key)
    if not said.autocast:
        if on:
            own.read(key, "16-bit weights and a master")
        own.leave(key, "32 bits throughout")
        return
    draft.parts.types(act=2)
    own.read(key, f"[types] act = 2 beside 4 of weights and gradients: ops run in {said.autocast} by autocast, and the "
                  "weights are their own master")
    if said.autocast == "fp16":
        draft.overflow()


def _adapters(draft: Draft) -> None:
    """LoRA of NeMo 1."""
    said = draft.said
    rank, targets = "model.peft.lora_tuning.adapter_dim", "model.peft.lora_tuning.target_modules"
    tuning = said.raw("model.peft.lora_tuning")
    if tuning is not None and not isinstance(tuning, Mapping):
        raise said.refuse("model.peft.lora_tuning", f"model.peft.lora_tuning is {tuning}: expected a table")
    found = said.raw(targets)
    words = [str(w) for w in found] if isinstance(found, list) else ["attention_qkv"]
    if said.raw("model.peft.lora_tuning.layer_selection") is not None:
        raise said.refuse("model.peft.lora_tuning.layer_selection", "adapters in some layers alone, which is not read")
    said.read("model.peft.peft_scheme", "[adapters]: the base is frozen")
    read_megatron_adapters(draft, rank, said.number(rank) or 32, targets, words)
    if said.raw("model.peft.lora_tuning.adapter_dropout"):
        said.approximated("model.peft.lora_tuning.adapter_dropout", "dropout of what enters an adapter is left out")


def _world(draft: Draft) -> int | None:
    """Nodes times devices."""
    said = draft.said
    devices, nodes = said.raw("trainer.devices"), said.raw("trainer.num_nodes")
    counts = [written(v) for v in (devices, nodes)]
    for key, count in zip(("trainer.devices", "trainer.num_nodes"), counts, strict=True):
        if count and all(counts):
            said.read(key, f"{count} of {counts[0]} x {counts[1]} devices")
        elif said.has(key):
            said.inactive(key, "the other of devices and nodes is the launcher's")
    if counts[0] and counts[1]:
        return draft.world(counts[0] * counts[1], "trainer.devices")
    return draft.options.world_size


class _Nemo(Said):
    """NeMo's sections as Megatron's reader asks for them."""

    def prepare(self) -> None:
        """What NeMo decides by other keys."""
        self.made: dict[str, Any] = {}
        document = self.document
        name = str(document.get(("model", "optim", "name")) or "fused_adam")
        zero = name in ("mcore_distributed_optim", "distributed_fused_adam")
        self.made["use-distributed-optimizer"] = zero
        if name == "distributed_fused_adam" and document.get(("model", "optim", "contiguous_grad_buffer")) is False:
            self.made["zero-stage"] = 2
        self.made["optimizer"] = "adam" if "adam" in name or "distributed_optim" in name else name
        word = str(document.get(("trainer", "precision")) or "32").removesuffix("-mixed").removesuffix("-true")
        whole = document.get(("model", "megatron_amp_O2")) is not True
        self.autocast = {"bf16": "bf16", "16": "fp16"}.get(word, "") if whole else ""
        self.made["bf16"], self.made["fp16"] = word == "bf16" and not whole, word == "16" and not whole
        sync = str(document.get(("model", "optim", "grad_sync_dtype")) or "")
        self.made["grad-reduce-in-bf16"] = sync in ("bf16", "bfloat16")
        clip = document.get(("trainer", "gradient_clip_val"))
        self.made["clip-grad"] = 0.0 if clip is None else clip
        kernels = document.get(("model", "transformer_engine")) is True
        self.made["transformer-impl"] = "transformer_engine" if kernels else "local"
        self.made["use-flash-attn"] = document.get(("model", "use_flash_attention")) is True and not kernels
        self.made["group-query-attention"] = document.get(("model", "num_query_groups")) not in OFF
        activation = str(document.get(("model", "activation")) or "gelu")
        self.made["swiglu"] = activation in ("fast-swiglu", "swiglu")
        self.made["squared-relu"] = activation == "squared-relu"
        read = ("gelu", "fast-swiglu", "swiglu", "squared-relu")
        self.made["glu-activation"] = None if activation in read else activation
        self.made["normalization"] = "RMSNorm" if document.get(("model", "normalization")) == "rmsnorm" else "LayerNorm"
        self.made["position-embedding-type"] = str(document.get(("model", "position_embedding_type")) or
                                                   "learned_absolute")
        self.made["disable-bias-linear"] = document.get(("model", "bias")) is False
        self.made["untie-embeddings-and-output-weights"] = document.get(
            ("model", "share_embeddings_and_output_weights")) is False
        if document.get(("model", "fp8")) is True:
            self.made["fp8-format"] = "hybrid"
        here: Any = document.get(("model",)) or {}
        self.keys = {k.replace("_", "-"): k for k in SAME} | {
            flag: key for key, flag in FLAGS.items() if key in here or flag.replace("-", "_") not in SAME}

    def path(self, key: str) -> Key:
        sources = {"use-distributed-optimizer": ("model", "optim", "name"), "optimizer": ("model", "optim", "name"),
                   "bf16": ("trainer", "precision"), "fp16": ("trainer", "precision"),
                   "grad-reduce-in-bf16": ("model", "optim", "grad_sync_dtype"),
                   "clip-grad": ("trainer", "gradient_clip_val"), "fp8-format": ("model", "fp8"),
                   "transformer-impl": ("model", "transformer_engine"),
                   "use-flash-attn": ("model", "use_flash_attention"),
                   "swiglu": ("model", "activation"), "squared-relu": ("model", "activation"),
                   "glu-activation": ("model", "activation"), "normalization": ("model", "normalization"),
                   "position-embedding-type": ("model", "position_embedding_type"),
                   "disable-bias-linear": ("model", "bias"),
                   "untie-embeddings-and-output-weights": ("model", "share_embeddings_and_output_weights"),
                   **{flag: ("model", "data", flag.replace("-", "_")) for flag in TOKENS}}
        if key in sources:
            return sources[key]
        own = self.keys.get(key, "")
        return ("model", own) if own else ("", key)

    def raw(self, key: str) -> Any:
        if key in self.made:
            return self.made[key]
        found = super().raw(key)
        open_ = isinstance(found, str) and ("${" in found or found == "???")
        return None if open_ or found in ("null", "None") else found

    def _item(self, key: str, text: str, value: Any, option: str = "") -> ReadingItem:
        item = super()._item(key, text, value, option)
        path = self.path(key)
        return replace(item, key=dotted(path)) if path[0] else item


def _engine(draft: Draft, said: _Nemo) -> None:
    """FSDP of Lightning, and autocast without O2."""
    own = draft.said
    if own.raw("model.fsdp") is True:
        raise own.refuse("model.fsdp", "FSDP of NeMo beside Megatron's parallelism is not read")
