"""NeMo-Automodel and verl: FSDP2 of a model from the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.hf import read_model_name
from placealg.importers.lora import ALL, AdapterKeys, read_adapters
from placealg.importers.names import kind_without_graph
from placealg.importers.reading import Options, Reading

OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "fusedadam": "adamw", "sgd": "sgd", "muon": "muon"}
BYTES = {"bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "float32": 4, "fp32": 4, "auto": 2, "torch.bfloat16": 2,
         "torch.float32": 4}


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
    for key in draft.said.table.keys:
        if not isinstance(draft.said.raw(key), Mapping):
            draft.said.leave(key, "of the other trainer, or told with the rest")
    return draft.reading()


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
    said.read("model.strategy", "zero3")
    if sp > 1:
        parts.axis("cp_ulysses", sp=sp)
        parts.shard(3, "dp", "sp")
        said.read("ulysses_sequence_parallel_size", f"cp_ulysses over sp = {sp}")
    parts.types("fsdp2")
    said.read("model.fsdp_config.model_dtype", "[types] of precision fsdp2")
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
    sizes = {n: _size(draft, n) for n in ("tp", "cp", "dp_replicate")}
    split = sizes["tp"] * sizes["cp"] * sizes["dp_replicate"]
    said_dp = said.number("distributed.dp_size") if str(said.raw("distributed.dp_size")).isdecimal() else None
    data = said_dp if said_dp and draft.options.world_size is None else draft.divided(
        draft.options.world_size, split, "distributed")
    if said_dp:
        said.read("distributed.dp_size", f"{data} ranks of data")
    if sizes["dp_replicate"] > 1:
        parts.axis("hsdp", dp_replicate=sizes["dp_replicate"], dp_shard=data)
    else:
        parts.axis("zero3", data)
    axes = ["dp_shard" if sizes["dp_replicate"] > 1 else "dp"]
    said.follows("FSDP2", "zero3 over the ranks of data")
    if sizes["cp"] > 1:
        parts.axis("cp", sizes["cp"])
        axes.append("cp")
        parts.shard(3, *axes)
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
    w = BYTES.get(str(said.value("model.torch_dtype")), 2)
    parts.types(w=w, wire_w=2, g=w, wire=4, o=2 * w, act=2)
    said.read("model.torch_dtype", f"[types] w = g = {w}, wire = 4, o = {2 * w}")
    if said.flag("distributed.activation_checkpointing"):
        parts.modifier("recompute_full")
        said.read("distributed.activation_checkpointing", "recompute_full")
    target = str(said.raw("optimizer._target_") or "")
    if target:
        draft.optimizer("optimizer._target_", target.rpartition(".")[2], OPTIMIZERS)
    said.unsaid("clip", "the recipe decides (max_grad_norm 1.0): clipped by the global norm")
    draft.token_mean()
    said.follows("loss", "[loss] preset = \"token_mean\": divided by the tokens of the step")
    read_model_name(draft, "model.pretrained_model_name_or_path")
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
