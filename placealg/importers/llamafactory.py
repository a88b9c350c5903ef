"""LLaMA-Factory YAML: fine-tuning by the HF Trainer, full or of adapters, under DeepSpeed, FSDP or DDP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.fsdp import read_fsdp, shard_adapters
from placealg.importers.hf import (
    read_adapter_ddp,
    read_ddp,
    read_deepspeed_path,
    read_float8,
    read_model_name,
    read_optimizer,
    read_trainer_arguments,
)
from placealg.importers.kernels import read_words
from placealg.importers.key_log import Said
from placealg.importers.launcher import launched_precision, launcher_of, read_launched_deepspeed, sets_up
from placealg.importers.lora import ALL, AdapterKeys, read_adapters
from placealg.importers.reading import Options, Reading
from placealg.importers.token_attributes import DOCUMENTS, read_tokens

PROJECTED = ("use_galore", "use_apollo", "use_badam")


def read_llamafactory(document: Document, options: Options) -> Reading:
    """The reading of a training configuration."""
    draft = Draft("llamafactory", document, options)
    said = draft.said
    idle = next((key for key in ("do_predict", "do_eval") if said.truth(key, said.raw(key) or False)), "")
    if idle and not said.flag("do_train"):
        raise said.refuse(idle, f"{idle} without do_train: nothing is trained")
    said.leave("do_train", "a file is read as it trains")
    lora = _trained(draft)
    for key in PROJECTED:
        if said.flag(key):
            raise said.refuse(key, f"{key}: an optimizer of parts or projections of the gradients")
        said.leave(key, "off")
    _stage(draft)
    launcher = launcher_of(draft, ("deepspeed", "fsdp"))
    precision = launched_precision(launcher, "bf16" if said.flag("bf16") or said.flag("pure_bf16") else
                                   "fp16" if said.flag("fp16") else "")
    steps = said.whole("gradient_accumulation_steps", said.value("gradient_accumulation_steps")) or 1
    whole = _engine(draft, precision, steps, lora, launcher)
    if draft.microbatches is None:
        draft.accumulation(steps, "gradient_accumulation_steps")
    draft.size("b", "per_device_train_batch_size", "sequences of a microbatch", said.whole(
        "per_device_train_batch_size", said.value("per_device_train_batch_size")))
    draft.size("s", "cutoff_len", "longest sequence", said.whole("cutoff_len", said.value("cutoff_len")))
    if said.flag("disable_gradient_checkpointing"):
        said.read("disable_gradient_checkpointing", "nothing is computed again")
    else:
        draft.parts.modifier("recompute_full")
        said.read("disable_gradient_checkpointing", "recompute_full")
        if said.flag("use_unsloth_gc"):
            draft.parts.modifier("offload_activations")
            said.read("use_unsloth_gc", "offload_activations: inputs of layers rest on the host")
    said.leave("use_unsloth_gc", "off, or nothing is computed again")
    said.leave("gradient_checkpointing", "disable_gradient_checkpointing decides")
    if said.raw("mixture_of_depths"):
        raise said.refuse("mixture_of_depths", "mixture_of_depths: tokens skip layers")
    said.leave("mixture_of_depths", "off")
    read_float8(draft, "fp8_enable_fsdp_float8_all_gather", lora)
    if said.flag("use_adam_mini"):
        said.approximated("use_adam_mini", "Adam-mini keeps one second moment per block: bytes and update are of AdamW")
    said.leave("use_adam_mini", "off")
    draft.clip("max_grad_norm", said.value("max_grad_norm"))
    if said.flag("use_muon"):
        draft.optimizer("use_muon", "muon", {"muon": "muon"})
        said.leave("optim", "use_muon is on")
    else:
        said.leave("use_muon", "off")
        read_optimizer(draft, "optim")
    read_trainer_arguments(draft)
    read_tokens(draft, "neat_packing", DOCUMENTS)
    read_words(draft)
    read_model_name(draft, "model_name_or_path")
    if lora:
        read_adapters(draft, AdapterKeys(
            "lora_rank", said.whole("lora_rank", said.value("lora_rank")) or 8, "lora_target", _targets(draft),
            "additional_target", said.raw("additional_target"), "quantization_bit",
            said.number("quantization_bit", 0) or 0, "lora_dropout", whole))
    for key in ("bf16", "fp16", "pure_bf16"):
        said.leave(key, "told with the precision, or off")
    return draft.reading()


def _trained(draft: Draft) -> bool:
    """Whether adapters alone train; all parameters do, where they do not."""
    said = draft.said
    kind = said.choice("finetuning_type", said.value("finetuning_type"), ("full", "lora", "freeze", "oft"))
    if kind in ("freeze", "oft"):
        what = "some layers of the base alone train" if kind == "freeze" else "orthogonal adapters multiply the base"
        raise said.refuse("finetuning_type", f"finetuning_type {kind}: {what}")
    if kind == "full":
        said.read("finetuning_type", "every parameter is trained")
        if said.raw("quantization_bit"):
            raise said.refuse("quantization_bit", f"the base rests in {said.raw('quantization_bit')} bits, and trains")
        for key in ("lora_rank", "lora_target", "lora_dropout", "additional_target", "use_dora"):
            said.leave(key, "no adapters")
        return False
    said.read("finetuning_type", "[adapters]: the base is frozen, without gradients and optimizer state")
    if said.flag("use_dora"):
        raise said.refuse("use_dora", "use_dora: adapters also scale the columns of the base")
    said.leave("use_dora", "off")
    return True


def _targets(draft: Draft) -> Any:
    """The modules that have adapters, as `lora_target` names them."""
    said = draft.said.value("lora_target")
    return ALL if str(said).strip() == "all" else said


def _stage(draft: Draft) -> None:
    said = draft.said
    stage = said.choice("stage", str(said.value("stage")), ("pt", "sft", "rm", "dpo", "kto", "ppo"))
    if stage in ("pt", "sft"):
        said.read("stage", "the loss of the next token")
    else:
        said.approximated("stage", f"{stage}: another loss, and a second model beside this one: both are left out")


def _engine(draft: Draft, precision: str, steps: int, lora: bool, launcher: Said | None) -> Mapping[str, Any]:
    """DeepSpeed, FSDP or DDP; the bytes of modules that train whole beside adapters."""
    said = draft.said
    whole: Mapping[str, Any] = {}
    if said.raw("deepspeed") or (launcher and sets_up(launcher, "DEEPSPEED")):
        if said.raw("deepspeed"):
            read_deepspeed_path(draft, "deepspeed", "llamafactory", precision, steps)
        elif launcher:
            read_launched_deepspeed(draft, launcher, precision, steps)
        for key in ("bf16", "fp16", "pure_bf16"):
            if said.has(key):
                said.read(key, "the precision of DeepSpeed's \"auto\"")
    elif said.raw("fsdp") or sets_up(launcher, "FSDP"):
        whole = _fsdp(draft, precision, steps, lora, launcher)
    else:
        loaded = 2 if said.flag("pure_bf16") else 4
        if lora and precision and loaded == 4:
            whole = read_adapter_ddp(draft, "bf16" if precision == "bf16" else "fp16", raised=True)
        else:
            read_ddp(draft, loaded, "pure_bf16" if loaded == 2 else "bf16" if said.has("bf16") else "fp16",
                     2 if precision or loaded == 2 else 4, weights="bf16" if loaded == 2 else "", autocast=precision)
    if launcher:
        draft.include(launcher)
    if precision == "fp16":
        draft.overflow()
        said.read("fp16", "[optimizer] skip = \"overflow\"")
    said.leave("deepspeed", "none")
    if not said.raw("fsdp"):
        said.leave("fsdp", "none")
        said.leave("fsdp_config", "no FSDP")
    return whole


def _fsdp(draft: Draft, precision: str, steps: int, lora: bool, launcher: Said | None) -> Mapping[str, Any]:
    """FSDP as accelerate prepares it; the bytes of modules that train whole beside adapters."""
    said = draft.said
    pure = said.flag("pure_bf16")
    if lora and pure:
        raise said.refuse("pure_bf16", "pure_bf16 beside adapters under FSDP: in which bytes these are gathered is not "
                                       "read")
    if lora and said.number("quantization_bit", 0) == 8:
        raise said.refuse("quantization_bit", "quantization_bit 8 under FSDP, with which LLaMA-Factory does not start")
    sharded = read_fsdp(draft, draft.divided(draft.options.world_size, 1, "FSDP"), 1, steps,
                        "pure_bf16" if pure else precision, lora, launcher if sets_up(launcher, "FSDP") else None,
                        () if pure else (1, 2))
    return shard_adapters(draft, sharded, sharded.axes, precision, True, sharded.version == 1) if lora else {}
