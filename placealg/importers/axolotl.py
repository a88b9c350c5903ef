"""Axolotl YAML: full fine-tuning by the HF Trainer, under DeepSpeed, FSDP or DDP."""

from __future__ import annotations

from typing import Any

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.hf import read_ddp, read_deepspeed_path, read_model_name, read_optimizer
from placealg.importers.reading import Options, Reading


def read_axolotl(document: Document, options: Options) -> Reading:
    """The reading of a training configuration."""
    draft = Draft("axolotl", document, options)
    said = draft.said
    _refused(draft)
    read_model_name(draft, "base_model")
    steps = said.whole("gradient_accumulation_steps", said.value("gradient_accumulation_steps")) or 1
    bf16 = said.value("bf16")
    fp16 = said.flag("fp16")
    precision = "fp16" if fp16 else "bf16" if bf16 in (True, "auto", "full", "true") else ""
    _engine(draft, precision, steps)
    if draft.microbatches is None:
        draft.accumulation(steps, "gradient_accumulation_steps")
    draft.size("b", "micro_batch_size", "sequences of a microbatch", said.whole("micro_batch_size", said.value(
        "micro_batch_size")))
    draft.size("s", "sequence_len", "tokens of a sequence", said.whole("sequence_len", said.value("sequence_len")))
    again = said.value("gradient_checkpointing")
    if isinstance(again, str) and "offload" in again:
        raise said.refuse("gradient_checkpointing", f"gradient_checkpointing {again}: activations rest on the host")
    if said.truth("gradient_checkpointing", again):
        draft.parts.modifier("recompute_full")
        said.read("gradient_checkpointing", "recompute_full")
    else:
        said.leave("gradient_checkpointing", "nothing is computed again")
    draft.clip("max_grad_norm", said.value("max_grad_norm"))
    read_optimizer(draft, "optimizer")
    if said.raw("rl"):
        said.approximated("rl", f"{said.raw('rl')}: another loss, and a second model beside this one: both are left "
                                "out")
    draft.token_mean()
    said.follows("loss", "[loss] preset = \"token_mean\": HF Trainer averages over all tokens of the step")
    for key in ("bf16", "fp16", "adapter", "load_in_4bit", "load_in_8bit", "activation_offloading", "rl",
                "unfrozen_parameters", "llmcompressor", "fsdp", "fsdp_version", "fsdp_config", "deepspeed",
                "dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size",
                "sequence_parallel_degree", "ring_attn_func"):
        said.leave(key, "told with the rest, or off")
    return draft.reading()


def _refused(draft: Draft) -> None:
    """What leaves parameters frozen, or changes them otherwise."""
    said = draft.said
    if said.raw("adapter") not in (None, "", False):
        bits = " in 4 bits" if said.flag("load_in_4bit") else ""
        raise said.refuse("adapter", f"adapter {said.raw('adapter')}: the base is frozen{bits}, without gradients and "
                                     "optimizer state")
    for key in ("load_in_4bit", "load_in_8bit"):
        if said.flag(key):
            raise said.refuse(key, f"{key}: the base rests in fewer bits")
    if said.raw("unfrozen_parameters"):
        raise said.refuse("unfrozen_parameters", "only some parameters are trained")
    plugins = said.raw("plugins") or []
    if said.raw("llmcompressor") or any("llm_compressor" in str(p) for p in plugins):
        raise said.refuse("llmcompressor" if said.raw("llmcompressor") else "plugins",
                          "a base that is compressed and pruned while training")
    if said.flag("activation_offloading"):
        raise said.refuse("activation_offloading", "activations rest on the host")


def _engine(draft: Draft, precision: str, steps: int) -> None:
    """DeepSpeed, FSDP or DDP, with context and tensor parallelism."""
    said, parts, world = draft.said, draft.parts, draft.options.world_size
    tp = said.whole("tensor_parallel_size", said.value("tensor_parallel_size")) or 1
    cp_key = "sequence_parallel_degree" if said.has("sequence_parallel_degree") else "context_parallel_size"
    cp = said.whole(cp_key, said.value(cp_key)) or 1
    replicas = said.number("dp_replicate_size") or 1
    config: Any = said.raw("fsdp_config") or {}
    if said.raw("deepspeed"):
        read_deepspeed_path(draft, "deepspeed", "axolotl", precision, steps)
        for key in ("bf16", "fp16"):
            if said.has(key):
                said.read(key, "the precision of DeepSpeed's \"auto\"")
    elif said.raw("fsdp") or config or said.raw("dp_shard_size"):
        data = draft.divided(world, tp * cp, "tensor and context parallelism")
        _fsdp(draft, config, data, replicas, steps)
    else:
        if tp * cp == 1:
            read_ddp(draft, 2 if precision else 4, "bf16" if precision == "bf16" else "fp16")
        else:
            parts.axis("dp", draft.divided(world, tp * cp, "tensor and context parallelism"))
            parts.types(w=2, g=2, wire=2, o=4, act=2)
            said.read("bf16", "[types] w = g = wire = 2, o = 4")
    if cp > 1:
        ring = "batch_ring" in str(said.value("ring_attn_func"))
        parts.axis("cp_ring" if ring else "cp", cp)
        said.read(cp_key, f"{'cp_ring' if ring else 'cp'} over {cp} ranks")
        said.read("ring_attn_func", "how keys and values travel")
    if tp > 1:
        parts.axis("tp", tp)
        parts.say("dims", "tp", ["loss.none", "embedding.none", "heads", "ffn", "vocab"])
        said.read("tensor_parallel_size", "tp by the usual tp_plan")
    if precision == "fp16":
        draft.overflow()
        said.read("fp16", "[optimizer] skip = \"overflow\"")


def _fsdp(draft: Draft, config: Any, data: int | None, replicas: int, steps: int) -> None:
    """FSDP by fsdp_config, whose keys may begin with fsdp_."""
    said, parts = draft.said, draft.parts
    fields = {str(k).removeprefix("fsdp_"): (f"fsdp_config.{k}", v) for k, v in config.items()} if isinstance(
        config, dict) else {}

    def field(name: str, default: Any) -> Any:
        return fields.get(name, ("", default))[1]

    version = int(said.raw("fsdp_version") or field("version", 1))
    word = str(field("sharding_strategy", "FULL_SHARD")).upper()
    keep = (word == "SHARD_GRAD_OP") if version == 1 else field("reshard_after_forward", True) is False
    if replicas > 1 or word.startswith("HYBRID"):
        parts.axis("hsdp", dp_replicate=replicas if replicas > 1 else None, dp_shard=None if data is None or
                   replicas == 1 else data // replicas)
        axes = ("dp_shard",)
    else:
        parts.axis("fsdp_no_reshard" if keep else "zero3", data)
        axes = ("dp",)
    parts.types("accelerate_fsdp", **({} if steps > 1 else {"g": 4}))
    if steps > 1:
        parts.accumulate_whole(*axes)
    said.follows("fsdp", f"FSDP{version}; [states] gradients = {'R' if steps > 1 else 'S'}: accumulation runs under "
                         "no_sync")
    if said.truth("fsdp_config", field("offload_params", False)):
        parts.modifier("offload_optimizer")
        parts.modifier("offload_parameters")
    if said.truth("fsdp_config", field("activation_checkpointing", False)):
        parts.modifier("recompute_full")
    for key, _ in fields.values():
        said.read(key, "of FSDP")
    if str(field("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")).upper() != "TRANSFORMER_BASED_WRAP":
        said.approximated("fsdp_config", "units of another size than layers: transient and peak are off")
