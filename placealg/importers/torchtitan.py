"""torchtitan TOML: FSDP2, tensor, context, pipeline and expert parallelism of a job configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from placealg.importers.composed_strategy import TYPE_NAMES
from placealg.importers.document import Document, written
from placealg.importers.draft import Draft
from placealg.importers.kernels import run_loss
from placealg.importers.key_log import Said
from placealg.importers.names import kind_without_graph, shipped_name
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.token_attributes import DOCUMENTS, read_tokens
from placealg.importers.torchtitan_degrees import (
    IN_A_V,
    IN_TURNS,
    Degrees,
    float8_compute,
    float8_gather,
    is_routed,
    low_rank,
    place,
    stages,
)
from placealg.models.config import resolve_model

SECTIONS = ("parallelism", "training", "experimental")
OPTIMIZERS = {"adamw": "adamw", "adam": "adam", "muon": "muon", "sgd": "sgd"}
TYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOAT8_FLAGS = ("float8.enable_float8_linear", "training.enable_float8_linear", "training.enable_fp8_linear")
"""What turned float8 on in 2024, before converters did."""
CHUNKED = re.compile("Chunked(?:CELoss|LossWrapper|CrossEntropy)")
"""Losses that make the logits of a few tokens at a time (components/loss.py)."""

RAMP = "batch_size_scheduler.mode"
FLOAT8_GATHERS = ("float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather",
                  "quantize.dense.float8.enable_fsdp_float8_all_gather", "training.enable_fsdp_float8_all_gather")
FIELDS = {"replicate": "data_parallel_replicate_degree", "shard": "data_parallel_shard_degree",
          "tensor": "tensor_parallel_degree", "context": "context_parallel_degree",
          "pipeline": "pipeline_parallel_degree", "expert": "expert_parallel_degree",
          "expert_tensor": "expert_tensor_parallel_degree", "reshard": "fsdp_reshard_after_forward",
          "sequence_parallel": "enable_sequence_parallel", "rotate": "context_parallel_rotate_method",
          "schedule": "pipeline_parallel_schedule", "actions": "pipeline_parallel_schedule_csv",
          "layers_per_stage": "pipeline_parallel_layers_per_stage",
          "first_less": "pipeline_parallel_first_stage_less_layers",
          "last_less": "pipeline_parallel_last_stage_less_layers"}


class _Titan(Said):
    """torchtitan's keys wherever a year put them: a key of [parallelism] may stand in [training] or [experimental]."""

    renamed: Mapping[str, str] = {}

    def _item(self, key: str, text: str, value: Any, option: str = "") -> ReadingItem:
        item = super()._item(key, text, value, option)
        return replace(item, key=self.renamed[key]) if key in self.renamed else item

    def path(self, key: str) -> tuple[str | int, ...]:
        section, _, name = key.partition(".")
        if section == "parallelism":
            for other in SECTIONS:
                if self.document.get((other, name)) is not None:
                    return (other, name)
        return super().path(key)


def read_torchtitan(document: Document, options: Options) -> Reading:
    """The reading of a job configuration."""
    return read_titan(document, options, {})


def read_titan(document: Document, options: Options, renamed: Mapping[str, str]) -> Reading:
    """The reading of a job configuration, or of a Trainer.Config in its keys; `renamed` are the latter's names."""
    draft = Draft("torchtitan", document, options)
    form = draft.said.table
    if renamed:
        form = replace(form, title="torchtitan Python registry", newest="HEAD of 2026-08")
    draft.said = said = _Titan(form, document, options)
    said.renamed = renamed
    keys = {field: f"parallelism.{name}" for field, name in FIELDS.items()}
    if said.has("training.data_parallel_degree"):
        keys["shard"] = "training.data_parallel_degree"
    layers = _model(draft)
    degrees = _degrees(draft, keys)
    _replicas(draft, degrees)
    word = _backend(draft, degrees)
    if degrees.tensor > 1 and isinstance(draft.model, str):
        degrees.routed = is_routed(draft.model)
        degrees.low_rank = low_rank(draft.model, bool(renamed) and word in ("", "spmd_types"))
    old = not any(document.get(("parallelism", n)) is not None for n in ("pipeline_parallel_first_stage_less_layers",
                                                                         "pipeline_parallel_layers_per_stage"))
    if (document.get(("parallelism",)) is None and old) or said.raw("parallelism.pipeline_parallel_split_points"):
        degrees.first_less = degrees.last_less = None
    data = place(draft, degrees, keys)
    pipeline = stages(draft, degrees, layers, keys)
    _splits(draft, degrees, layers, pipeline)
    _batch(draft, degrees, data)
    _bytes(draft, degrees)
    _rest(draft, degrees)
    return draft.reading()


def _model(draft: Draft) -> int | None:
    """The model by name and flavor; its layers where it is read."""
    said = draft.said
    name, flavor = str(said.raw("model.name") or ""), str(said.value("model.flavor"))
    if kind := kind_without_graph(name) or kind_without_graph(flavor):
        raise said.refuse("model.name", f"model '{name}' is {kind}, of which there is no op graph")
    shipped = draft.options.model or shipped_name("torchtitan", f"{name} {flavor}")
    if not shipped:
        for key in ("model.name", "model.flavor"):
            if said.has(key):
                said.unsaid(key, f"{name} {flavor} is no configuration that is read", "--model")
        if name:
            draft.unread_model(f"{name} {flavor} is no configuration that is read")
        return None
    draft.model = shipped
    said.read("model.name", f"model {shipped}")
    said.read("model.flavor", f"model {shipped}")
    return layers_of(shipped)


def layers_of(name: str) -> int | None:
    """The layers of a model by its name; None where a symbol stands for them."""
    sizes = resolve_model(name).sizes
    return sizes.get("L") or (sizes["L_dense"] + sizes["L_moe"] if "L_moe" in sizes else None)


def _degrees(draft: Draft, keys: dict[str, str]) -> Degrees:
    """Every degree as the file has it."""
    said = draft.said

    def whole(field: str) -> int:
        value = said.value(keys[field])
        return said.whole(keys[field], value, 0 if field.endswith("less") else 1) or 0

    shard = said.whole(keys["shard"], said.value(keys["shard"]), -1)
    if shard == 0:
        raise said.refuse(keys["shard"], "a degree of 0")
    reshard = said.value(keys["reshard"])
    word = {True: "always", False: "never"}.get(reshard, str(reshard)) if isinstance(reshard, bool) else str(reshard)
    return Degrees(
        whole("replicate"), None if shard == -1 else shard, whole("tensor"), whole("context"), whole("pipeline"),
        whole("expert"), whole("expert_tensor"), said.choice(keys["reshard"], word, ("default", "always", "never")),
        said.truth(keys["sequence_parallel"], said.value(keys["sequence_parallel"])),
        said.choice(keys["rotate"], said.value(keys["rotate"]), ("allgather", "alltoall")),
        str(said.value(keys["schedule"])), said.number(keys["layers_per_stage"]), whole("first_less"),
        whole("last_less"), actions=str(said.raw(keys["actions"]) or ""))


def _replicas(draft: Draft, degrees: Degrees) -> None:
    """DDP by its key of 2024, and the replica groups of torchft."""
    said = draft.said
    key = "training.data_parallel_type"
    if said.choice(key, said.value(key), ("fsdp", "ddp")) == "ddp":
        degrees.ddp = True
        said.read(key, "dp: DDP in the place of FSDP")
    else:
        said.leave(key, "fsdp")
    for section in ("fault_tolerance", "ft"):
        on, how = f"{section}.enable", f"{section}.semi_sync_method"
        if not said.flag(on):
            continue
        if said.raw(how) not in (None, "", "none"):
            raise said.refuse(how, f"{said.raw(how)}: replica groups take steps of their own, and average weights "
                                   "later")
        said.approximated(on, "torchft averages gradients over replica groups that come and go: the reading is of one "
                              "group, and the verdict does not cover what they exchange")


def _splits(draft: Draft, degrees: Degrees, layers: int | None, pipeline: str) -> None:
    """Stages that the file names itself."""
    said = draft.said
    said.leave("parallelism.pipeline_parallel_schedule_csv", "no pipeline" if degrees.actions else "empty")
    key = "parallelism.module_fqns_per_model_part"
    if said.raw(key) and pipeline:
        raise said.refuse(key, f"{key}: stages of its own, which are not read")
    said.leave(key, "no pipeline" if said.raw(key) else "empty")
    key = "parallelism.pipeline_parallel_split_points"
    points = said.raw(key)
    if not points or not pipeline:
        said.leave(key, "no pipeline" if points else "empty")
        return
    words = points if isinstance(points, list) else str(points).split(",")
    found = [n for w in words if (n := written(str(w).strip().removeprefix("layers."))) is not None]
    if len(found) < len(words) or layers is None:
        raise said.refuse(key, f"split points {words}, of a model that is not read", "--model names it")
    cuts = [0, *found, layers]
    sizes = [b - a for a, b in pairwise(cuts)]
    if min(sizes) < 0 or 0 in sizes[1:-1] or len(sizes) % degrees.pipeline:
        raise said.refuse(key, f"split points {words} do not make stages of {layers} layers for {degrees.pipeline} "
                               "ranks")
    draft.parts.say("schedule", "stages", sizes)
    if pipeline in IN_TURNS:
        draft.parts.say("schedule", "chunks", len(sizes) // degrees.pipeline)
    elif pipeline in IN_A_V and len(sizes) != 2 * degrees.pipeline:
        raise said.refuse(key, f"split points {words} make {len(sizes)} stages, and a V has 2 per rank")
    said.read(key, f"[schedule] stages = {sizes}")


def _batch(draft: Draft, degrees: Degrees, data: int | None) -> None:
    """b, s and the microbatches."""
    said = draft.said
    local_key = "training.batch_size" if said.has("training.batch_size") else "training.local_batch_size"
    local = said.whole(local_key, said.value(local_key)) or 1
    steps = _steps(draft, local, data)
    why = "the batch grows" if said.accounted(said.path(RAMP)) else "the ranks of data are open"
    if degrees.pipeline > 1:
        count = said.number("parallelism.pipeline_parallel_microbatches")
        size = said.whole("parallelism.pipeline_parallel_microbatch_size",
                          said.value("parallelism.pipeline_parallel_microbatch_size")) or 1
        old = draft.said.document.get(("parallelism",)) is None
        each = count or (degrees.pipeline if old else local // size)
        if local % each:
            raise said.refuse(local_key, f"a local batch of {local} does not divide into {each} microbatches")
        draft.sizes["b"] = local // each
        said.read(local_key, f"b = {local // each} in each of {each} microbatches of the pipeline")
        said.leave("parallelism.pipeline_parallel_microbatch_size", "as read")
        said.leave("parallelism.pipeline_parallel_microbatches", "as read")
        draft.accumulation(None if steps is None else steps * each, "training.global_batch_size", why)
    else:
        draft.size("b", local_key, "sequences of a rank", local)
        said.leave("parallelism.pipeline_parallel_microbatch_size", "no pipeline")
        said.leave("parallelism.pipeline_parallel_microbatches", "no pipeline")
        draft.accumulation(steps, "training.global_batch_size", why)
    draft.size("s", "training.seq_len", "tokens of a sequence", said.whole("training.seq_len",
                                                                          said.value("training.seq_len")))


def _steps(draft: Draft, local: int, data: int | None) -> int | None:
    """The accumulation: from the global batch, or a fork's key."""
    said = draft.said
    fork = said.number("training.gradient_accumulation_steps")
    if fork is not None:
        said.read("training.gradient_accumulation_steps", f"accumulation over {fork}")
        return fork
    total = said.whole("training.global_batch_size", said.value("training.global_batch_size"), -1)
    if said.raw(RAMP) not in (None, "", "constant"):
        said.unsaid(RAMP, "a fork's schedule, under which the batch grows: microbatches stay m", "--microbatches")
        return None
    if total is None or total <= 0:
        return 1
    if data is None:
        return None
    if total % (local * data):
        raise refusal(f"global_batch_size {total} is not a multiple of {local} x {data} ranks",
                      said.where("training.global_batch_size"))
    return total // (local * data)


def _bytes(draft: Draft, degrees: Degrees) -> None:
    """The bytes of FSDP2, and of float8."""
    said, parts = draft.said, draft.parts
    half = said.value("training.dtype") in ("bfloat16", "float16")
    if half:
        parts.types("fsdp2_bf16")
        parts.half = TYPE_NAMES[str(said.value("training.dtype"))]
        said.read("training.dtype", "[types] of precision fsdp2_bf16")
        for key in ("training.mixed_precision_param", "training.mixed_precision_reduce"):
            said.leave(key, "the shards are in 16 bits already")
    else:
        parts.types("fsdp2")
        parts.half = "bf16"
        said.read("training.dtype", "[types] of precision fsdp2: shards in fp32")
        for key, symbol in (("training.mixed_precision_param", "wire_w"), ("training.mixed_precision_reduce", "wire")):
            word = said.choice(key, said.value(key), TYPES)
            parts.say("types", symbol, TYPES[word])
            parts.exact[symbol] = TYPE_NAMES[word]
            if symbol == "wire_w" and TYPES[word] == 4:
                parts.types(act=4, use=4)
            said.read(key, f"[types] {symbol} = {TYPES[word]}")
    if degrees.ddp or (degrees.replicate > 1 and degrees.shard == 1):
        parts.tables["types"].pop("wire_w", None)
    _float8(draft)


def _float8(draft: Draft) -> None:
    """What computes and is gathered in 8 bits: a converter turns it on, or a flag of 2024."""
    said = draft.said
    converters = said.value("model.converters")
    words = converters if isinstance(converters, list) else [converters]
    names = [str(word).lower() for word in words if word]
    if adapters := [name for name in names if re.search("lora|adapter", name)]:
        raise said.refuse("model.converters", f"{adapters[0]}: adapters train beside a base that rests, which is not "
                                              "read of torchtitan")
    quantised = [name for name in names if re.search("float8|mx|nvfp4|fp8", name)]
    by = ["model.converters"] if quantised else []
    if others := [name for name in names if name not in quantised]:
        said.approximated("model.converters", f"{', '.join(others)} changes modules: they are costed as they were")
    by += [key for key in FLOAT8_FLAGS if said.flag(key)]
    for key in by:
        float8_compute(draft, key)
    for key in FLOAT8_GATHERS:
        if by and said.flag(key):
            float8_gather(draft, key)
        said.leave(key, "off" if by else "nothing turns it on")
    for key in ("model.converters", *FLOAT8_FLAGS):
        said.leave(key, "none" if key == "model.converters" else "off")


def _rest(draft: Draft, degrees: Degrees) -> None:
    """Offload, recompute, clipping, loss and optimizer."""
    said, parts = draft.said, draft.parts
    assert isinstance(said, _Titan)
    if said.flag("training.enable_cpu_offload"):
        parts.modifier("offload_optimizer")
        parts.modifier("offload_parameters")
        said.read("training.enable_cpu_offload", "[parameters] and [optimizer] tier = \"host\"")
    else:
        said.leave("training.enable_cpu_offload", "nothing is offloaded")
    recompute(draft, str(said.value("activation_checkpoint.mode")), str(said.value(
        "activation_checkpoint.selective_ac_option")), "activation_checkpoint.mode",
        "activation_checkpoint.selective_ac_option")
    draft.clip("training.max_norm", said.value("training.max_norm"))
    _loss(draft)
    if said.flag("optimizer.early_step_in_backward"):
        raise said.refuse("optimizer.early_step_in_backward", "updates run inside the backward")
    said.leave("optimizer.early_step_in_backward", "updates follow the backward")
    draft.optimizer("optimizer.name", str(said.value("optimizer.name")), OPTIMIZERS)
    if said.has("optimizer.state_dtype"):
        word = said.choice("optimizer.state_dtype", said.raw("optimizer.state_dtype"), TYPES)
        parts.types(o=2 * TYPES[word])
        said.read("optimizer.state_dtype", f"[types] o = {2 * TYPES[word]}: moments in {word}")
    for key in ("parallelism.disable_loss_parallel", "training.enable_loss_parallel"):
        off = said.flag(key) is (key == "parallelism.disable_loss_parallel")
        if off and degrees.tensor > 1:
            said.read(key, "[dims] head.loss.none: logits are gathered before the loss")
            draft.parts.gather_logits()
        else:
            said.leave(key, "as read" if degrees.tensor > 1 else "no tensor parallelism")


def _loss(draft: Draft) -> None:
    """The loss of a step, as of the file's date: that of --framework, else its keys tell it, else it is the last."""
    said = draft.said
    tables: dict[str, Any] = {part: said.document.get((part,)) for part in SECTIONS[1:]}
    old = [part for part, table in tables.items() if isinstance(table, Mapping) and any(
        str(name).endswith("_degree") for name in table)]
    if old and not said.asked:
        word, why = "mean_of_means", f"as long as degrees stood in [{old[0]}]; a token mean since 2026-01-25"
    else:
        word, why = str(said.default("loss of a step")), "sums over all tokens of the step (0cb743558)"
    if word == "token_mean":
        draft.token_mean()
        said.follows("loss", f"[loss] preset = \"token_mean\": {why}")
    else:
        said.follows("loss", f"[loss] mean_of_means: each rank's mean, averaged{f', {why}' if old else ''}")
    masked = said.choice("model.attn_mask_type", said.value("model.attn_mask_type"), ("causal", "block_causal"))
    read_tokens(draft, "model.attn_mask_type", DOCUMENTS, on=masked == "block_causal", off="causal alone")
    said.follows("attention", "--flash: attention is one op of PyTorch under every backend")
    draft.runs["flash"] = True
    key = "loss.function"
    name = str(said.value(key))
    if CHUNKED.match(name):
        run_loss(draft, key, "chunked")
    elif name != said.default(key):
        said.approximated(key, f"{name}: the cross entropy of the next token stands in its place")
    said.leave(key, "the cross entropy of the next token")


def _backend(draft: Draft, degrees: Degrees) -> str:
    """Which code places tensors, "" where that is the default, and whether it takes context parallelism."""
    said, key = draft.said, "parallelism.spmd_backend"
    word = said.choice(key, said.raw(key), ("spmd_types", "partial_dtensor", "full_dtensor", "default")) if said.has(
        key) else ""
    if degrees.context > 1 and word == "partial_dtensor" and said.default(
            "partial_dtensor with context parallelism") == "refused":
        raise said.refuse(key, f"{word} with context parallelism, which torchtitan refuses since 2026-08-19",
                          "spmd_types takes both")
    if degrees.context > 1 and word == "full_dtensor":
        said.unsaid("attention", "full_dtensor takes context parallelism with FlexAttention alone")
    said.leave(key, "the same placement by other code")
    return word


def recompute(draft: Draft, mode: str, option: str, mode_key: str, option_key: str) -> None:
    """Activation checkpointing by mode."""
    said: Any = draft.said
    if mode == "full" or (mode == "selective" and option == "1"):
        draft.parts.modifier("recompute_full")
        said.read(mode_key, "recompute_full")
        said.leave(option_key, "every layer" if option == "1" else "of mode selective alone")
    elif mode == "none":
        said.read(mode_key, "nothing is computed again")
        said.leave(option_key, "of mode selective alone")
    else:
        what = f"every {option}. layer is computed again" if option.isdecimal() and mode == "selective" else \
            "ops that a list does not save are computed again"
        said.approximated(mode_key, f"{what}; here nothing is: activations are overstated, and the verdict does not "
                                    "cover what is computed again", f"{mode} {option}" if mode == "selective" else mode)
        said.leave(option_key, "told with mode")
