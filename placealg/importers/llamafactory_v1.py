"""LLaMA-Factory's YAML of version 1: a trainer of its own, with FSDP2, DeepSpeed or DDP as a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.fsdp import Sharded, shard_adapters
from placealg.importers.hf import read_adapter_ddp, read_ddp, read_deepspeed_path, read_model_name, recomputes
from placealg.importers.kernels import read_words
from placealg.importers.lora import ALL, AdapterKeys, read_adapters
from placealg.importers.reading import Options, Reading


def is_v1(data: Mapping[str, Any]) -> bool:
    """Whether a table is of version 1: a data set for training beside the model, or beside a plugin's table."""
    return "train_dataset" in data and isinstance(data.get("model", ""), str) and bool(
        {"model", "model_class", "dist_config"} & set(data)) and "finetuning_type" not in data


def read_v1(document: Document, options: Options) -> Reading:
    """The reading of a training configuration."""
    draft = Draft("llamafactory_v1", document, options)
    said = draft.said
    if said.value("model_class") != "llm":
        raise said.refuse("model_class", f"model_class {said.raw('model_class')}: a network that is no decoder of text")
    said.leave("model_class", "a decoder of text")
    kind, quantised = _plugin(draft, "peft_config"), _plugin(draft, "quant_config")
    if kind not in ("", "lora"):
        raise said.refuse("peft_config.name", f"peft_config {kind}: some layers of the base alone train")
    read_model_name(draft, "model")
    whole = _engine(draft, bool(kind))
    if draft.microbatches is None:
        _batch(draft)
    draft.size("b", "micro_batch_size", "sequences of a microbatch", said.whole("micro_batch_size", said.value(
        "micro_batch_size")))
    draft.size("s", "cutoff_len", "longest sequence", said.whole("cutoff_len", said.value("cutoff_len")))
    if said.value("batching_strategy") != "normal":
        said.approximated("batching_strategy", "sequences are packed, or batches are of other sizes: b and s are those "
                                               "of a batch that is filled")
    said.leave("batching_strategy", "b sequences")
    if not recomputes(draft, "enable_activation_checkpointing"):
        said.read("enable_activation_checkpointing", "nothing is computed again")
    draft.clip("max_grad_norm", said.value("max_grad_norm"))
    optimizer = _plugin(draft, "optim_config") or "adamw"
    draft.optimizer("optim_config.name" if said.has("optim_config.name") else "optim_config", optimizer,
                    {"adamw": "adamw", "muon": "muon"})
    draft.token_mean()
    said.follows("loss", "[loss] preset = \"token_mean\": sums over all tokens of the step (core/base_trainer.py)")
    said.unsaid("command", "llamafactory-cli sft, dpo or rm: the cross entropy of the next token is read")
    read_words(draft)
    if kind:
        bits = said.number("quant_config.quantization_bit", 0) or 0
        targets = said.value("peft_config.target_modules")
        read_adapters(draft, AdapterKeys(
            "peft_config.r", said.whole("peft_config.r", said.value("peft_config.r")) or 8,
            "peft_config.target_modules", ALL if str(targets).strip() in ("all", ALL) else targets,
            "peft_config.modules_to_save", said.raw("peft_config.modules_to_save"),
            "quant_config.quantization_bit" if bits else "", bits, "peft_config.lora_dropout", whole))
    elif quantised:
        raise said.refuse("quant_config", "quant_config: the base rests in fewer bits, and trains")
    for key in ("bf16", "cp_size", "cp_mode", "mp_replicate_size", "mp_shard_size", "dp_size", "flash_attn",
                "global_batch_size"):
        said.leave(key, "told with the rest, or off")
    return draft.reading()


def _plugin(draft: Draft, key: str) -> str:
    """The name of a plugin whose table stands under a key; "" where there is none."""
    table = draft.said.raw(key)
    if table is None:
        return ""
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise draft.said.refuse(key, f"{key} has no name")
    name = str(table["name"])
    draft.said.read(f"{key}.name", f"the plugin {name}")
    return name


def _batch(draft: Draft) -> None:
    """The microbatches of a step, by the batch of all ranks of data."""
    said, key = draft.said, "global_batch_size"
    total, each = said.number(key), said.whole("micro_batch_size", said.value("micro_batch_size")) or 1
    data = draft.options.world_size
    cp = said.whole("cp_size", said.value("cp_size")) or 1
    if total is None:
        draft.accumulation(1, key)
    elif data is None:
        draft.accumulation(None, key, "the ranks of data are open")
    elif total % (each * data // cp or 1):
        raise said.refuse(key, f"{key} {total} is not a multiple of {each} on {data // cp} ranks of data")
    else:
        draft.accumulation(total // (each * data // cp), key)


def _engine(draft: Draft, lora: bool) -> Mapping[str, Any]:
    """FSDP2, DeepSpeed or DDP; the bytes of modules that train whole beside adapters.

    Weights load in the checkpoint's type, which is read as 16 bits.
    """
    said, parts = draft.said, draft.parts
    name = _plugin(draft, "dist_config")
    cp = said.whole("cp_size", said.value("cp_size")) or 1
    replicas = said.whole("mp_replicate_size", said.value("mp_replicate_size")) or 1
    if cp > 1 and name != "fsdp2":
        raise said.refuse("cp_size", f"cp_size {cp} goes with dist_config.name fsdp2 alone")
    if name == "deepspeed":
        if lora:
            raise said.refuse("dist_config.name", "deepspeed with adapters is not read")
        total = said.number("global_batch_size")
        if total is not None:
            raise said.refuse("global_batch_size", "global_batch_size under DeepSpeed is not read")
        read_deepspeed_path(draft, "dist_config.config_file", "llamafactory", "bf16", 1, agree=False)
        return {}
    said.unsaid("dtype", "the checkpoint's own type: 16 bits are read")
    if name == "":
        if lora:
            return read_adapter_ddp(draft, "bf16")
        read_ddp(draft, 2, "bf16")
        return {}
    if name != "fsdp2":
        raise said.refuse("dist_config.name", f"dist_config {name}: experts over ranks of their own, which is not read")
    data = draft.divided(draft.options.world_size, cp, "context parallelism")
    each_use = said.truth("dist_config.reshard_after_forward", said.value("dist_config.reshard_after_forward"))
    if replicas > 1:
        parts.axis("hsdp", dp_replicate=replicas, dp_shard=None if data is None else data // replicas)
        said.read("mp_replicate_size", f"hsdp with {replicas} replicas")
        axes: tuple[str, ...] = ("dp_shard",)
        if not each_use:
            parts.say("schedule", "lifetime", {"dp_shard": "microbatch"})
    else:
        parts.axis("zero3" if each_use else "fsdp_no_reshard", data)
        axes = ("dp",)
    said.read("dist_config.reshard_after_forward", "a copy lives for one use" if each_use else "for a microbatch")
    if cp > 1:
        parts.axis("cp_ulysses", cp)
        said.read("cp_size", f"cp_ulysses over {cp} ranks, over which states are sharded, too")
        if not each_use:
            parts.say("schedule", "lifetime", {"cp": "microbatch"})
    if said.truth("dist_config.offload_params", said.value("dist_config.offload_params")):
        parts.modifier("offload_optimizer")
        parts.modifier("offload_parameters")
        said.read("dist_config.offload_params", "[parameters] and [optimizer] tier = \"host\"")
    half = said.flag("bf16")
    use = 2 if half else 4
    parts.types(w=2, wire_w=use, use=use, wire=4, g=4 if lora else 2, o=8 if lora else 4, act=use)
    said.read("bf16", f"[types] wire_w = use = {use}, wire = 4: shards rest as they were loaded, and are reduced in "
                      "fp32")
    said.follows("sync", "[states] gradients = S: every microbatch reduces them")
    if not lora:
        return {}
    sharded = Sharded(2, axes, each_use)
    shard_adapters(draft, sharded, (*axes, *(("cp",) if cp > 1 else ())), "bf16", False, True)
    return {"w": 2, "g": 2, "wire": 4, "o": 4}
