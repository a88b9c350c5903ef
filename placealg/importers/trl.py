"""TRL YAML (`trl sft --config FILE`): fine-tuning by the HF Trainer, under DeepSpeed, FSDP or DDP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.fsdp import read_fsdp
from placealg.importers.further_files import text_beside
from placealg.importers.hf import (
    read_adapter_ddp,
    read_ddp,
    read_deepspeed_path,
    read_model_name,
    read_optimizer,
    read_trainer_arguments,
    recomputes,
)
from placealg.importers.kernels import LIGER, read_words, run_loss
from placealg.importers.key_log import Said
from placealg.importers.launcher import (
    launched_by,
    launched_precision,
    launcher_of,
    read_launched_deepspeed,
    sets_up,
)
from placealg.importers.lora import ALL, AdapterKeys, read_adapters
from placealg.importers.reading import Options, Reading
from placealg.importers.token_attributes import DOCUMENTS, POSITIONS, read_tokens
from placealg.importers.yaml_document import yaml_document

MARKS = {
    "trl grpo or rloo": ("reward_funcs", "num_generations", "max_completion_length", "generation_batch_size",
                         "steps_per_generation", "scale_rewards", "num_iterations", "importance_sampling_level",
                         "multi_objective_aggregation", "off_policy_mask_threshold", "use_bias_correction_kl",
                         "cast_lm_head_to_fp32", "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos",
                         "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg", "normalize_advantages"),
    "trl dpo": ("precompute_ref_log_probs", "f_divergence_type", "f_alpha_divergence_coef", "ld_alpha", "discopop_tau",
                "use_weighting", "loss_weights", "label_smoothing"),
    "trl kto": ("desirable_weight", "undesirable_weight"),
    "trl dpo, kto or grpo": ("beta", "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"),
    "trl reward": ("center_rewards_coefficient",),
}
"""A command that is not `trl sft` -> keys that it has and `trl sft` lacks."""

NEXT_TOKEN = ("nll", "chunked_nll", "dft")
"""Losses of `trl sft`."""

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}

LAUNCHED = ("multi_gpu", "single_gpu", "fsdp1", "fsdp2", "zero1", "zero2", "zero3")
"""Configurations of accelerate that come with TRL, of 8 processes but for single_gpu."""

ADAPTERS = ("lora_r", "lora_target_modules", "lora_modules_to_save", "lora_dropout", "use_dora")


def is_trl(data: Any) -> bool:
    """Whether a table is TRL's: a model beside a data set of the hub, or beside PEFT's switch, and no stage."""
    return "model_name_or_path" in data and not {"stage", "finetuning_type"} & set(data) and bool(
        {"dataset_name", "datasets", "dataset_mixture", "dataset_mixer", "use_peft", "reward_funcs"} & set(data))


def read_trl(document: Document, options: Options) -> Reading:
    """The reading of a training configuration."""
    draft = Draft("trl", document, options)
    said = draft.said
    lora = _adapters(draft)
    read_model_name(draft, "model_name_or_path")
    other = _command(draft)
    fp16 = said.flag("fp16")
    autocast = said.flag("bf16") if said.has("bf16") else not fp16
    launcher = _launcher(draft)
    precision = launched_precision(launcher, "bf16" if autocast else "fp16" if fp16 else "")
    steps = said.whole("gradient_accumulation_steps", said.value("gradient_accumulation_steps")) or 1
    whole = _engine(draft, precision, steps, lora, launcher)
    if draft.microbatches is None:
        draft.accumulation(steps, "gradient_accumulation_steps")
    draft.size("b", "per_device_train_batch_size", "sequences of a microbatch", said.whole(
        "per_device_train_batch_size", said.value("per_device_train_batch_size")))
    _length(draft, other)
    if not recomputes(draft, "gradient_checkpointing"):
        said.read("gradient_checkpointing", "nothing is computed again")
    if said.flag("activation_offloading"):
        draft.parts.modifier("offload_activations")
        said.read("activation_offloading", "offload_activations: what layers keep rests on the host")
    if said.flag("disable_dropout"):
        draft.runs["dropout"] = False
        said.read("disable_dropout", "--no-dropout")
    draft.clip("max_grad_norm", said.value("max_grad_norm"))
    read_optimizer(draft, "optim")
    read_trainer_arguments(draft)
    if not other:
        _loss(draft)
        _packing(draft)
    read_words(draft)
    if lora:
        read_adapters(draft, replace(lora, whole_types=whole))
        if not said.has("lora_dropout"):
            said.approximated("lora_dropout", "dropout of what enters an adapter is left out, with its masks (default)",
                              said.default("lora_dropout"))
    for key in ("packing", "packing_strategy", "padding_free", "bf16", "fp16", "dtype", "torch_dtype", "use_peft",
                "load_in_4bit", "load_in_8bit", "max_length",
                "activation_offloading", "disable_dropout", "deepspeed", "fsdp", "accelerate_config"):
        said.leave(key, "told with the rest, or off")
    return draft.reading()


def _length(draft: Draft, other: str) -> None:
    """The longest sequence: that of rows of data, or a prompt with the answer that is generated to it."""
    said = draft.said
    if "grpo or rloo" in other:
        parts = {key: said.whole(key, said.raw(key)) for key in ("max_prompt_length", "max_completion_length")}
        longest = [n for n in parts.values() if n is not None]
        if len(longest) == len(parts):
            draft.size("s", "max_prompt_length", "longest prompt and the longest answer to it", sum(longest))
        else:
            said.unsaid("max_completion_length", "a sequence is a prompt with its answer, and the file does not bound "
                                                 "both: s stays symbolic", "--set s=N")
        return
    length = "max_seq_length" if said.has("max_seq_length") else "max_length"
    if length == "max_length" and "max_length" in said.document.data and not said.has("max_length"):
        said.unsaid("max_length", "nothing is cut off: s is that of the data")
    else:
        draft.size("s", length, "longest sequence", said.whole(length, said.value(length)))


def _command(draft: Draft) -> str:
    """The command whose keys a file holds, where it is not `trl sft`; "" for that, which is read."""
    said = draft.said
    kind = said.raw("loss_type")
    found = {key: name for name, keys in MARKS.items() for key in keys if said.has(key)}
    if kind is not None and str(kind) not in NEXT_TOKEN:
        found["loss_type"] = "another command than trl sft"
    for key, name in found.items():
        what = "answers are generated and rewarded, and " if "grpo or rloo" in name else ""
        said.approximated(key, f"of {name}: {what}another loss, with other models beside this one, is left out")
    command = said.raw("command")
    if command not in (None, "sft"):
        found["command"] = f"trl {command}"
        said.approximated("command", f"trl {command}: another loss, with other models beside this one, is left out")
    elif command:
        said.read("command", "the loss of the next token")
    elif not found:
        said.missing("command", "whoever launches says trl sft, dpo, kto or reward: read as trl sft")
    return next(iter(found.values()), "")


def _loss(draft: Draft) -> None:
    """The cross entropy of `trl sft`, which is chunked unless the file says otherwise or Liger runs it."""
    said = draft.said
    kind, liger = said.raw("loss_type"), any(said.raw(key) not in (None, False) for key in LIGER)
    if kind == "dft":
        said.approximated("loss_type", "dft: each token weighs by its own probability: it is the plain cross entropy "
                                       "here")
    elif kind == "nll" or (kind is None and liger):
        said.read("loss_type", "the cross entropy of the next token", "nll")
    else:
        run_loss(draft, "loss_type", "chunked")


def _packing(draft: Draft) -> None:
    """Whether rows have several documents, and keep them apart."""
    said = draft.said
    strategy = said.choice("packing_strategy", said.value("packing_strategy"), ("bfd", "bfd_split", "wrapped"))
    packed = said.flag("packing")
    read_tokens(draft, "packing", DOCUMENTS, POSITIONS, on=packed and strategy != "wrapped",
                off="rows are cut from one stream" if packed else "off")
    read_tokens(draft, "padding_free", DOCUMENTS, POSITIONS)
    said.leave("packing_strategy", "told with packing")


def _adapters(draft: Draft) -> AdapterKeys | None:
    """What adapters the file sets up; None where it sets up none."""
    said = draft.said
    bits = next((n for n in (4, 8) if said.flag(f"load_in_{n}bit")), 0)
    if not said.flag("use_peft"):
        if bits:
            raise said.refuse(f"load_in_{bits}bit", f"load_in_{bits}bit: the base rests in fewer bits, and trains")
        for key in ADAPTERS:
            said.leave(key, "no adapters")
        return None
    if said.flag("use_dora"):
        raise said.refuse("use_dora", "use_dora: adapters also scale the columns of the base")
    said.leave("use_dora", "off")
    said.read("use_peft", "[adapters]: the base is frozen, without gradients and optimizer state")
    targets = said.value("lora_target_modules")
    if targets in (ALL, [ALL]):
        targets = ALL
    return AdapterKeys("lora_r", said.whole("lora_r", said.value("lora_r")) or 16, "lora_target_modules", targets,
                       "lora_modules_to_save", said.raw("lora_modules_to_save"), f"load_in_{bits}bit" if bits else "",
                       bits, "lora_dropout")


def _launcher(draft: Draft) -> Said | None:
    """accelerate's configuration: the one that the file names, which may come with TRL, or one that is beside."""
    said = draft.said
    named, count = said.raw("accelerate_config"), said.number("num_processes")
    if named is not None:
        word = str(named)
        found = None if word in LAUNCHED else text_beside(word, said.document.file, draft.options)
        if word not in LAUNCHED and found is None:
            raise said.refuse("accelerate_config", f"accelerate_config names {word}, another file, which is not here",
                              f"give it with --with, or name one of {', '.join(LAUNCHED)}")
        document = yaml_document(*found) if found else Document(f"{word}.yaml", _packaged(word), {}, "")
        flags = {} if count is None else {"num-processes": count}
        draft.options = replace(draft.options, launcher=launched_by(flags, document, document.file))
        said.read("accelerate_config", f"{Path(document.file).name} decides the states"
                  + ("" if found else ", which comes with TRL"))
    launcher = launcher_of(draft, ("deepspeed", "fsdp"))
    if count is not None:
        said.read("num_processes", f"{draft.world(count, 'num_processes')} devices in all")
        draft.options = replace(draft.options, world_size=count)
    return launcher


def _packaged(name: str) -> dict[str, Any]:
    """The configuration of accelerate that comes with TRL under a name (trl/accelerate_configs)."""
    data: dict[str, Any] = {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 8}
    if name == "single_gpu":
        return {**data, "distributed_type": "NO", "num_processes": 1}
    if name.startswith("fsdp"):
        return {**data, "distributed_type": "FSDP", "fsdp_config": {"fsdp_version": int(name[-1]),
                "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
    if name.startswith("zero"):
        return {**data, "distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": int(name[-1])}}
    return data


def _engine(draft: Draft, precision: str, steps: int, lora: AdapterKeys | None, launcher: Said | None
            ) -> Mapping[str, Any]:
    """DeepSpeed, FSDP or DDP, by the file's own keys or by accelerate's configuration.

    The answer are the bytes of modules that train whole beside adapters.
    """
    said = draft.said
    whole: Mapping[str, Any] = {}
    dtype = "torch_dtype" if said.has("torch_dtype") else "dtype"
    word = said.choice(dtype, said.value(dtype), BYTES)
    if word == "auto":
        said.unsaid(dtype, "the checkpoint's own type: 16 bits are read")
    loaded = BYTES[word]
    if said.raw("deepspeed") or sets_up(launcher, "DEEPSPEED"):
        if said.raw("deepspeed"):
            read_deepspeed_path(draft, "deepspeed", "trl", precision, steps)
        elif launcher:
            read_launched_deepspeed(draft, launcher, precision, steps)
        said.leave(dtype, "DeepSpeed decides the bytes")
    elif said.raw("fsdp") or sets_up(launcher, "FSDP"):
        key = "fsdp" if said.raw("fsdp") else "accelerate_config" if said.raw("accelerate_config") else dtype
        if lora:
            raise said.refuse(key, f"{key} with adapters: in which bytes frozen and trained parameters are flattened "
                                   "is not read")
        if word not in ("float32", "auto"):
            raise said.refuse(dtype, f"{dtype} {word} under FSDP: shards of 16 bits are not read")
        read_fsdp(draft, draft.divided(draft.options.world_size, 1, "FSDP"), 1, steps, precision, False,
                  launcher if sets_up(launcher, "FSDP") else None)
        said.leave(dtype, "shards rest in fp32")
    elif lora:
        base, adapter = loaded, 2 if lora.bits else 4
        whole = read_adapter_ddp(draft, dtype, base, adapter, 2 if precision or base == 2 else 4)
    else:
        read_ddp(draft, loaded, dtype, 2 if precision or loaded == 2 else 4, weights=word, autocast=precision)
    if launcher:
        draft.include(launcher)
    if precision == "fp16":
        draft.overflow()
        said.read("fp16", "[optimizer] skip = \"overflow\"")
    elif precision and not (said.raw("fsdp") or sets_up(launcher, "FSDP")):
        said.read("bf16", "autocast: ops run in bf16", True)
    elif not precision:
        said.read("bf16", "no autocast", False)
    return whole
