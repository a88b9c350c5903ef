"""NeMo-Automodel and verl: FSDP2 of a model from the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.hf import read_model_name
from placealg.importers.kernels import read_words, run_loss
from placealg.importers.lora import ALL, AdapterKeys, read_adapters
from placealg.importers.names import kind_without_graph
from placealg.importers.reading import Options, Reading
from placealg.importers.token_attributes import DOCUMENTS, POSITIONS, read_tokens
from placealg.importers.torchtitan_degrees import float8_compute, float8_gather

OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "fusedadam": "adamw", "sgd": "sgd", "muon": "muon"}
LOSSES = {"FusedLinearCrossEntropy": "chunked", "TEParallelCrossEntropy": "fused"}
"""The class of a loss that is no plain cross entropy -> the way to run it that holds as much."""
BYTES = {"bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "float32": 4, "fp32": 4, "auto": 2}

PACKED = "packed_sequence.packed_sequence_size"
"""How many tokens of packed samples a row has; 0 where none are packed."""


def is_verl(data: Mapping[str, Any]) -> bool:
    """Whether a table is verl's configuration of supervised training."""
    model, inner = data.get("model"), data.get("data")
    return isinstance(model, Mapping) and isinstance(inner, Mapping) and "train_batch_size" in inner and bool(
        {"fsdp_config", "partial_pretrain", "strategy"} & set(model))


def is_automodel(data: Mapping[str, Any]) -> bool:
    """Whether a table is NeMo-Automodel's."""
    if is_verl(data):
        return True
    found = data.get("distributed") or data.get("dist_env") or data.get("fsdp")
    scheduled = "step_scheduler" in data or "loss_fn" in data
    return (isinstance(found, Mapping) and scheduled) or (isinstance(found, Mapping) and bool(
        {"dp_size", "tp_size", "cp_size"} & set(found)))


def read_automodel(document: Document, options: Options) -> Reading:
    """The reading of either."""
    draft = Draft("automodel", document, options)
    if is_verl(document.data):
        _verl(draft)
    else:
        _automodel(draft)
    _loss(draft)
    read_words(draft)
    for key in draft.said.table.keys:
        if not isinstance(draft.said.raw(key), Mapping):
            draft.said.leave(key, "of the other trainer, or told with the rest")
    return draft.reading()


def _loss(draft: Draft) -> None:
    """How the loss is run, by its class; Liger's kernels of the model are of norms and activations there."""
    draft.said.leave("model.use_liger_kernel", "kernels of the model: the loss is loss_fn's")
    key = "loss_fn._target_"
    name = str(draft.said.raw(key) or "").rpartition(".")[2]
    if name in LOSSES:
        run_loss(draft, key, LOSSES[name])


def _verl(draft: Draft) -> None:
    """verl's supervised trainer."""
    said, parts = draft.said, draft.parts
    nodes = said.whole("trainer.nnodes", said.value("trainer.nnodes")) or 1
    each = said.whole("trainer.n_gpus_per_node", said.value("trainer.n_gpus_per_node")) or 1
    world = draft.world(nodes * each, "trainer.n_gpus_per_node")
    said.read("trainer.nnodes", f"{nodes} nodes")
    said.read("trainer.n_gpus_per_node", f"{each} devices of each")
    sp = said.whole("ulysses_sequence_parallel_size", said.value("ulysses_sequence_parallel_size")) or 1
    data = draft.divided(world, sp, "ulysses_sequence_parallel_size")
    parts.axis("zero3", data)
    said.choice("model.strategy", said.value("model.strategy"), ("fsdp", "fsdp2"))
    said.read("model.strategy", "zero3")
    if sp > 1:
        parts.axis("cp_ulysses", sp=sp)
        said.read("ulysses_sequence_parallel_size", f"cp_ulysses over sp = {sp}")
    key = "model.fsdp_config.model_dtype"
    w = BYTES[said.choice(key, str(said.value(key)).removeprefix("torch."), BYTES)]
    parts.types("fsdp2", **({"w": w, "g": w, "o": 2 * w} if w != 4 else {}))
    said.read(key, "[types] of precision fsdp2" + (f", with w = g = {w}, o = {2 * w}" if w != 4 else ""))
    offload = said.flag("model.fsdp_config.cpu_offload") or said.flag("model.fsdp_config.offload_params")
    if offload:
        parts.modifier("offload_optimizer")
        parts.modifier("offload_parameters")
        said.read("model.fsdp_config.cpu_offload", "[parameters] and [optimizer] tier = \"host\"")
    if said.flag("model.enable_gradient_checkpointing"):
        parts.modifier("recompute_full")
    said.read("model.enable_gradient_checkpointing", "recompute_full" if "recompute_full" in parts.modifiers else
              "nothing is computed again")
    micro, total = said.number("data.micro_batch_size_per_gpu"), said.number("data.train_batch_size")
    draft.size("b", "data.micro_batch_size_per_gpu", "sequences of a microbatch")
    draft.size("s", "data.max_length", "longest sequence")
    steps = None
    if micro and total and data:
        if total % (micro * data):
            raise said.refuse("data.train_batch_size", f"train_batch_size {total} is not a multiple of {micro} x "
                                                       f"{data}")
        steps = total // (micro * data)
    draft.accumulation(steps, "data.train_batch_size", "the ranks of data are open")
    draft.clip("optim.clip_grad", said.value("optim.clip_grad"))
    said.unsaid("loss", "the trainer averages means of microbatches: mean_of_means")
    said.unsaid("mixed precision", "the trainer's own: gathered in bf16, reduced in fp32")
    if said.has("defaults"):
        said.unsaid("defaults", "further files, for the update: they are not read")
    read_model_name(draft, "model.partial_pretrain")
    rank = said.number("model.lora_rank", 0) or 0
    if rank:
        read_adapters(draft, AdapterKeys("model.lora_rank", rank, "model.target_modules",
                                         said.value("model.target_modules")))


def _automodel(draft: Draft) -> None:
    """NeMo-Automodel under FSDP2."""
    said, parts = draft.said, draft.parts
    for path, value in said.document.leaves():
        for word in str(value).replace("/", ".").split(".") if path and path[-1] in ("_target_", "recipe", "model_type",
                                                                                    "mode") else ():
            if kind := kind_without_graph(word.lower()):
                raise said.refuse(".".join(map(str, path)), f"{value} is {kind}, of which there is no op graph")
    name = Path(str(said.raw("model.pretrained_model_name_or_path") or "")).name
    if kind := kind_without_graph(name):
        raise said.refuse("model.pretrained_model_name_or_path", f"{name} is {kind}, of which there is no op graph")
    if not said.has("model.pretrained_model_name_or_path") and not said.has("model.config"):
        raise said.refuse("model", "no model is named: another file decides")
    _refused(draft)
    strategy = _strategy(draft)
    sizes = {n: _size(draft, n) for n in ("tp", "cp", "dp_replicate")}
    split = sizes["tp"] * sizes["cp"] * sizes["dp_replicate"]
    said_dp = said.number("distributed.dp_size") if str(said.raw("distributed.dp_size")).isdecimal() else None
    data = said_dp if said_dp and draft.options.world_size is None else draft.divided(
        draft.options.world_size, split, "distributed")
    if said_dp:
        said.read("distributed.dp_size", f"{data} ranks of data")
    if strategy == "ddp":
        _ddp(draft, data, sizes)
        return
    axes = _fsdp(draft, data, sizes["dp_replicate"])
    if sizes["cp"] > 1:
        parts.axis("cp", sizes["cp"])
        axes.append("cp")
    if sizes["tp"] > 1:
        along = said.flag("distributed.sequence_parallel")
        said.read("distributed.sequence_parallel", "tp_sp_keep" if along else "tp, without sequence parallelism")
        parts.axis("tp_sp_keep" if along else "tp", sizes["tp"])
        if not along:
            parts.say("dims", "tp", ["loss.none", "embedding.none", "heads", "ffn", "vocab"])
    _batch(draft, data, sizes["dp_replicate"])
    if draft.microbatches != 1 and said.flag("distributed.defer_fsdp_grad_sync"):
        parts.accumulate_whole(*axes)
        said.read("distributed.defer_fsdp_grad_sync", "[states] gradients = R between microbatches")
    w = _loaded(draft)
    parts.types(w=w, wire_w=2, g=w, wire=4, o=2 * w, act=2)
    said.read("model.torch_dtype", f"[types] w = g = {w}, wire = 4, o = {2 * w}")
    for key, symbol in (("distributed.mp_policy.param_dtype", "wire_w"), ("distributed.mp_policy.reduce_dtype",
                                                                          "wire")):
        if said.has(key):
            count = BYTES[said.choice(key, str(said.raw(key)).removeprefix("torch."), BYTES)]
            parts.say("types", symbol, count)
            said.read(key, f"[types] {symbol} = {count}")
    _rest(draft)


def _loaded(draft: Draft) -> int:
    """The bytes of a weight as it is loaded."""
    said = draft.said
    return BYTES[said.choice("model.torch_dtype", str(said.value("model.torch_dtype")).removeprefix("torch."), BYTES)]


def _refused(draft: Draft) -> None:
    """What no reading says."""
    said = draft.said
    for name, what in (("pp", "a pipeline of stages that the recipe cuts"),
                       ("ep", "experts over ranks of data and context, with units of their own")):
        key = f"distributed.{name}_size"
        if (said.number(key) or 1) > 1:
            raise said.refuse(key, f"{key} {said.raw(key)}: {what}, which is not read")
        said.leave(key, "1: none")
    for key in ("distributed.tp_plan", "distributed.custom_tp_plan", "distributed.offload_policy"):
        if said.raw(key):
            raise said.refuse(key, f"{key}: a placement of its own, which is not read")
        said.leave(key, "none")
    freeze = said.raw("freeze_config")
    for name, value in freeze.items() if isinstance(freeze, Mapping) else ():
        if value is True and name not in ("freeze_vision_tower", "freeze_audio_tower"):
            raise said.refuse(f"freeze_config.{name}", f"{name}: part of the model is frozen")
    for key in ("quantization.load_in_4bit", "quantization.load_in_8bit"):
        if said.flag(key):
            raise said.refuse(key, f"{key}: the base rests in fewer bits, which is not read here")
        said.leave(key, "off")
    if said.has("teacher_model"):
        name = "teacher_model.pretrained_model_name_or_path"
        said.approximated(name if said.has(name) else "teacher_model", "a teacher stands beside, which is not counted")


def _strategy(draft: Draft) -> str:
    """fsdp2 or ddp, by its name or by the class that sets it up."""
    said, key = draft.said, "distributed.strategy"
    target = str(said.raw("distributed._target_") or "").rpartition(".")[2].lower()
    found = {"ddpmanager": "ddp", "ddpconfig": "ddp", "fsdp2manager": "fsdp2", "fsdp2config": "fsdp2"}.get(target)
    if target and not found:
        raise said.refuse("distributed._target_", f"{said.raw('distributed._target_')}: neither FSDP2 nor DDP, whose "
                                                  "states are not read")
    if found:
        said.read("distributed._target_", found)
        said.leave(key, "told by the class")
        return found
    word = str(said.value(key))
    if word in ("megatron_fsdp", "nvfsdp"):
        raise said.refuse(key, f"{word}: Megatron-FSDP holds states that are not read here")
    word = said.choice(key, word, ("fsdp2", "ddp"))
    said.read(key, word)
    return word


def _ddp(draft: Draft, data: int | None, sizes: Mapping[str, int]) -> None:
    """DDP of what was loaded, without autocast."""
    said = draft.said
    for name, size in sizes.items():
        if size > 1:
            raise said.refuse(f"distributed.{name}_size", f"{name} of {size} ranks goes with FSDP2 alone")
    draft.parts.axis("dp", data)
    w = _loaded(draft)
    draft.parts.types(w=w, g=w, wire=w, o=2 * w, act=w)
    said.read("model.torch_dtype", f"[types] w = g = wire = {w}, o = {2 * w}")
    _batch(draft, data, 1)
    _rest(draft)


def _fsdp(draft: Draft, data: int | None, replicas: int) -> list[str]:
    """FSDP2 over the ranks of data: the axes over which the states are sharded."""
    said, parts, key = draft.said, draft.parts, "distributed.reshard_after_forward"
    kept = said.raw(key) is False
    axis = "dp_shard" if replicas > 1 else "dp"
    if replicas > 1:
        parts.axis("hsdp", dp_replicate=replicas, dp_shard=data)
        if kept:
            parts.say("schedule", "lifetime", {axis: "microbatch"})
    else:
        parts.axis("fsdp_no_reshard" if kept else "zero3", data)
    said.follows("FSDP2", f"{parts.factors[-1][0]} over the ranks of data")
    if said.has(key):
        said.read(key, "gathered once per microbatch" if kept else "gathered for each use")
    return [axis]


def _recompute(draft: Draft) -> None:
    """Activation checkpointing, by any of the keys of its years."""
    said = draft.said
    for key in ("distributed.activation_checkpointing", "parallelizer.activation_checkpointing",
                "distributed.moe.activation_checkpointing"):
        value = said.raw(key)
        if value == "selective":
            said.approximated(key, "ops that a list does not save are computed again; here nothing is: activations "
                                   "are overstated, and the verdict does not cover what is computed again")
        elif value == "full" or (value is not None and said.truth(key, value)):
            draft.parts.modifier("recompute_full")
            said.read(key, "recompute_full")
        else:
            said.leave(key, "nothing is computed again")


def _float8(draft: Draft) -> None:
    """fp8 of torchao."""
    said = draft.said
    if not said.flag("fp8.enabled"):
        said.leave("fp8.enabled", "off")
        return
    float8_compute(draft, "fp8.enabled")
    if said.flag("fp8.enable_fsdp_float8_all_gather"):
        float8_gather(draft, "fp8.enable_fsdp_float8_all_gather")


def _rest(draft: Draft) -> None:
    """Recompute, the update, the loss, the model and what is frozen of it."""
    said = draft.said
    _recompute(draft)
    _float8(draft)
    target = str(said.raw("optimizer._target_") or "")
    if target:
        draft.optimizer("optimizer._target_", target.rpartition(".")[2], OPTIMIZERS)
    clip = next((k for k in ("clip_grad_norm.max_norm", "max_grad_norm") if said.has(k)), "")
    if clip:
        draft.clip(clip, said.raw(clip))
    else:
        said.unsaid("clip", "the recipe decides (max_grad_norm 1.0): clipped by the global norm")
    draft.token_mean()
    read_tokens(draft, PACKED, DOCUMENTS, POSITIONS, on=bool(draft.said.number(PACKED, 0)))
    said.follows("loss", "[loss] preset = \"token_mean\": divided by the tokens of the step")
    inner = "model.config.pretrained_model_name_or_path"
    read_model_name(draft, inner if said.has(inner) else "model.pretrained_model_name_or_path")
    if said.raw("peft"):
        _peft(draft)


def _peft(draft: Draft) -> None:
    """Adapters, whose weights have the bytes of the base."""
    said = draft.said
    if said.flag("peft.use_dora"):
        raise said.refuse("peft.use_dora", "use_dora: adapters also scale the columns of the base")
    if said.raw("peft.exclude_modules"):
        raise said.refuse("peft.exclude_modules", "exclude_modules: which modules are left is not read")
    linear = said.flag("peft.match_all_linear")
    key = "peft.match_all_linear" if linear else "peft.target_modules"
    if not linear and not said.raw(key):
        raise said.refuse("peft", "peft: neither target_modules nor match_all_linear says beside which modules")
    read_adapters(draft, AdapterKeys("peft.dim", said.whole("peft.dim", said.value("peft.dim")) or 8, key,
                                     ALL if linear else said.raw(key), dropout_key="peft.dropout"))
    for key in ("peft.use_dora", "peft.match_all_linear", "peft.target_modules", "peft._target_"):
        said.leave(key, "told with the adapters, or off")


def _size(draft: Draft, name: str) -> int:
    said, key = draft.said, f"distributed.{name}_size"
    value = said.raw(key)
    if value in (None, "none", "None", "null"):
        return 1
    size = said.whole(key, value) or 1
    said.read(key, f"{name} over {size} ranks") if size > 1 else said.inactive(key, f"1: no {name}")
    return size


def _batch(draft: Draft, data: int | None, replicas: int) -> None:
    said = draft.said
    local, total = said.number("step_scheduler.local_batch_size"), said.number("step_scheduler.global_batch_size")
    draft.size("b", "step_scheduler.local_batch_size", "sequences of a microbatch")
    steps = None
    if local and total and data:
        if total % (local * data * replicas):
            raise said.refuse("step_scheduler.global_batch_size", f"global_batch_size {total} is not a multiple of "
                              f"{local} x {data * replicas} ranks")
        steps = total // (local * data * replicas)
    draft.accumulation(steps, "step_scheduler.global_batch_size", "the ranks of data are open")
