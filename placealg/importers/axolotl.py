"""Axolotl YAML: fine-tuning by the HF Trainer, full or of adapters, under DeepSpeed, FSDP or DDP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.fsdp import Sharded, read_fsdp, shard_adapters
from placealg.importers.hf import (
    read_adapter_ddp,
    read_ddp,
    read_deepspeed_path,
    read_float8,
    read_model_name,
    read_optimizer,
    read_trainer_arguments,
)
from placealg.importers.kernels import CUT, read_words
from placealg.importers.key_log import Said
from placealg.importers.launcher import launched_precision, launcher_of, read_launched_deepspeed, sets_up
from placealg.importers.lora import ALL, AdapterKeys, read_adapters
from placealg.importers.reading import Options, Reading
from placealg.importers.token_attributes import DOCUMENTS, POSITIONS, read_tokens

LORA = ("lora_target_linear", "lora_target_modules", "lora_r", "lora_dropout", "lora_modules_to_save", "lora_model_dir",
        "peft_use_dora", "relora")

HALVES = ("bf16", "fp16", "bfloat16", "float16")

PLUGINS = ("liger", "cut_cross_entropy", "kernels", "swanlab", "lm_eval", "llm_compressor", "expert_parallel",
           "diffusion", "kd")
"""Plugins of axolotl.integrations of which everything is told by their keys, or that change no step."""


def read_axolotl(document: Document, options: Options) -> Reading:
    """The reading of a training configuration."""
    draft = Draft("axolotl", document, options)
    said = draft.said
    _refused(draft)
    lora = _adapters(draft)
    read_model_name(draft, "base_model")
    steps = said.whole("gradient_accumulation_steps", said.value("gradient_accumulation_steps")) or 1
    precision = _precision(draft)
    launcher = launcher_of(draft, ("deepspeed", "fsdp", "fsdp_config"))
    launched_precision(launcher, precision or "no", "bf16, fp16 and float16")
    whole = _engine(draft, precision, steps, lora, launcher)
    read_float8(draft, "fp8_enable_fsdp_float8_all_gather", lora is not None)
    if draft.microbatches is None:
        draft.accumulation(steps, "gradient_accumulation_steps")
    draft.size("b", "micro_batch_size", "sequences of a microbatch", said.whole("micro_batch_size", said.value(
        "micro_batch_size")))
    draft.size("s", "sequence_len", "tokens of a sequence", said.whole("sequence_len", said.value("sequence_len")))
    again = said.value("gradient_checkpointing")
    away = isinstance(again, str) and ("offload" in again or again == "unsloth")
    if away or said.truth("gradient_checkpointing", again):
        draft.parts.modifier("recompute_full")
        said.read("gradient_checkpointing", "recompute_full" + ("*offload_activations: inputs of layers rest on the "
                                                                "host" if away else ""))
    else:
        said.leave("gradient_checkpointing", "nothing is computed again")
    where = said.value("activation_offloading")
    disk = where == "disk"
    if where in ("legacy", "disk") or said.flag("activation_offloading"):
        away = True
        said.read("activation_offloading", "offload_activations: what layers keep rests on the "
                                           f"{'nvme' if disk else 'host'}")
    if away:
        draft.parts.modifier("offload_activations")
    if disk:
        draft.parts.say("activations", "tier", "nvme")
    draft.clip("max_grad_norm", said.value("max_grad_norm"))
    read_optimizer(draft, "optimizer")
    if lora:
        read_adapters(draft, replace(lora, whole_types=whole))
    if said.raw("rl"):
        said.approximated("rl", f"{said.raw('rl')}: another loss, and a second model beside this one: both are left "
                                "out")
    read_trainer_arguments(draft)
    read_tokens(draft, "sample_packing", DOCUMENTS, POSITIONS)
    _plugins(draft)
    if said.flag("tiled_mlp"):
        said.approximated("tiled_mlp", "MLPs run a tile of tokens at a time, again in backward: what they keep inside "
                                       "is counted whole here")
    read_words(draft)
    for key in (*HALVES, "adapter", *LORA, "load_in_4bit", "load_in_8bit", "activation_offloading", "rl",
                "unfrozen_parameters", "llmcompressor", "fsdp", "fsdp_version", "deepspeed",
                "dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size",
                "sequence_parallel_degree", "ring_attn_func", "tiled_mlp", "llama4_linearized_experts"):
        said.leave(key, "told with the rest, or off")
    if said.raw("deepspeed"):
        said.leave("fsdp_config", "DeepSpeed shards the states")
    if launcher:
        draft.include(launcher)
    return draft.reading()


def _precision(draft: Draft) -> str:
    """In which 16 bits the step runs: bf16 or fp16 in autocast, float16 without it; "" in 32 bits."""
    said = draft.said
    bf16 = said.value("bf16")
    on = bf16 not in ("auto", "full") and said.truth("bf16", bf16)
    fp16 = said.flag("fp16")
    if on or bf16 == "full" or said.flag("bfloat16") or (bf16 == "auto" and not fp16):
        return "bf16"
    return "fp16" if fp16 else "float16" if said.flag("float16") else ""


def _plugins(draft: Draft) -> None:
    """Plugins that run the loss: Liger's keys are its plugin's, and that of cut cross entropy is on where it stands."""
    said = draft.said
    named = said.raw("plugins")
    listed = [str(plugin) for plugin in named] if isinstance(named, list) else [str(named)] if named else []
    text = " ".join(listed)
    other = [plugin for plugin in listed if plugin.removeprefix("axolotl.integrations.").split(".")[0] not in PLUGINS]
    if other:
        said.approximated("plugins", f"{', '.join(other)}: what such a plugin changes is not read")
    for key in ("liger_fused_linear_cross_entropy", "liger_cross_entropy"):
        if "liger" not in text.lower():
            said.leave(key, "Liger is not among the plugins")
    if "CutCrossEntropyPlugin" not in text:
        said.leave("cut_cross_entropy", "its plugin is not among the plugins")
    elif not said.has("cut_cross_entropy"):
        draft.runs["loss"] = "chunked"
        said.approximated("plugins", CUT)


def _refused(draft: Draft) -> None:
    """What leaves parts of the base frozen, or changes parameters otherwise."""
    said = draft.said
    plugins = said.raw("plugins") or []
    if said.raw("unfrozen_parameters") or any("spectrum" in str(p) for p in plugins):
        raise said.refuse("unfrozen_parameters" if said.raw("unfrozen_parameters") else "plugins",
                          "only some parameters are trained")
    if said.raw("llmcompressor") or any("llm_compressor" in str(p) for p in plugins):
        raise said.refuse("llmcompressor" if said.raw("llmcompressor") else "plugins",
                          "a base that is compressed and pruned while training")


def _adapters(draft: Draft) -> AdapterKeys | None:
    """What adapters the file sets up; None where it sets up none."""
    said = draft.said
    bits = next((n for n in (4, 8) if said.flag(f"load_in_{n}bit")), 0)
    kind = said.raw("adapter") or ""
    if not kind:
        if bits:
            raise said.refuse(f"load_in_{bits}bit", f"load_in_{bits}bit: the base rests in fewer bits, and trains")
        return None
    said.choice("adapter", kind, ("lora", "qlora"))
    for key in ("peft_use_dora", "relora"):
        if said.flag(key):
            raise said.refuse(key, f"{key}: adapters also scale the base" if key == "peft_use_dora" else
                              f"{key}: adapters join the base while training")
    if said.has("peft_autocast_adapter_dtype") and not said.flag("peft_autocast_adapter_dtype"):
        raise said.refuse("peft_autocast_adapter_dtype", "peft_autocast_adapter_dtype false: adapters rest in the type "
                                                         "of what was loaded, which is not read")
    said.leave("peft_autocast_adapter_dtype", "adapters rest in fp32")
    said.read("adapter", "[adapters]: the base is frozen, without gradients and optimizer state")
    said.leave("lora_model_dir", "how adapters begin")
    linear = said.flag("lora_target_linear")
    targets = said.raw("lora_target_modules")
    if not linear and not targets:
        raise said.refuse("adapter", f"adapter {kind}: neither lora_target_modules nor lora_target_linear says beside "
                                     "which modules")
    if linear and said.flag("llama4_linearized_experts"):
        said.approximated("llama4_linearized_experts", "experts are linear modules there: adapters stand beside them, "
                                                       "too")
    if linear and targets:
        said.read("lora_target_modules", "with all linear modules, by lora_target_linear")
    return AdapterKeys("lora_r", said.whole("lora_r", said.value("lora_r")) or 8,
                       "lora_target_linear" if linear else "lora_target_modules", ALL if linear else targets,
                       "lora_modules_to_save", said.raw("lora_modules_to_save"), f"load_in_{bits}bit" if bits else "",
                       bits, "lora_dropout")


def _engine(draft: Draft, precision: str, steps: int, lora: AdapterKeys | None, launcher: Said | None
            ) -> Mapping[str, Any]:
    """DeepSpeed, FSDP or DDP, with context and tensor parallelism; the bytes of modules that train beside adapters."""
    said, parts = draft.said, draft.parts
    tp = said.whole("tensor_parallel_size", said.value("tensor_parallel_size")) or 1
    cp_key = "sequence_parallel_degree" if said.has("sequence_parallel_degree") else "context_parallel_size"
    cp = said.whole(cp_key, said.value(cp_key)) or 1
    replicas = said.number("dp_replicate_size") or 1
    sharded: Sharded | None = None
    whole: Mapping[str, Any] = {}
    fsdp = bool(said.raw("fsdp") or said.raw("fsdp_config")) or sets_up(launcher, "FSDP")
    deepspeed = bool(said.raw("deepspeed")) or sets_up(launcher, "DEEPSPEED")
    ep = _experts(draft, tp, cp, replicas, fsdp, deepspeed)
    if lora and tp > 1:
        raise said.refuse("tensor_parallel_size", f"tensor_parallel_size {tp} beside adapters: along which dims they "
                                                  "are split is not read")
    if lora and ep > 1 and fsdp:
        raise said.refuse("expert_parallel_size", f"expert_parallel_size {ep} beside adapters under FSDP, which is not "
                                                  "read")
    if precision == "float16" and (deepspeed or fsdp):
        raise said.refuse("float16", "weights of float16 without autocast under DeepSpeed or FSDP, which is not read")
    if deepspeed:
        if tp > 1:
            raise said.refuse("tensor_parallel_size", f"tensor_parallel_size {tp} under DeepSpeed, which is not read")
        if launcher and not said.raw("deepspeed"):
            read_launched_deepspeed(draft, launcher, precision, steps, cp)
        else:
            read_deepspeed_path(draft, "deepspeed", "axolotl", precision, steps, cp)
        for key in HALVES:
            if said.has(key):
                said.read(key, "the precision of DeepSpeed's \"auto\"")
    elif fsdp:
        data, replicas = _data(draft, tp * cp * ep, replicas)
        sharded = read_fsdp(draft, data, replicas, steps, precision, lora is not None,
                            launcher if sets_up(launcher, "FSDP") else None, raised=(1,))
        if lora:
            whole = _sharded_adapters(draft, sharded, cp, precision, lora)
    else:
        _replicated(draft, tp * cp * ep, replicas)
        key = next((k for k in HALVES if said.raw(k) not in (None, False)), "bf16" if precision else "fp16")
        wide = 2 if precision else 4
        if lora and precision:
            whole = read_adapter_ddp(draft, key, split=tp * cp * ep)
        else:
            read_ddp(draft, wide, key, wide, tp * cp * ep, weights=precision)
    if ep > 1:
        parts.axis("ep", ep)
        if sharded and sharded.axes:
            _joined(draft, sharded.axes, steps, "ep", deepspeed)
    if cp > 1:
        ring = "batch_ring" in str(said.value("ring_attn_func"))
        parts.axis("cp_ring" if ring else "cp", cp)
        if deepspeed or (sharded and sharded.axes):
            _joined(draft, sharded.axes if sharded else ("dp",), steps, "cp", deepspeed)
        said.read(cp_key, f"{'cp_ring' if ring else 'cp'} over {cp} ranks")
        said.read("ring_attn_func", "how keys and values travel")
    if tp > 1:
        parts.axis("tp", tp)
        parts.say("dims", "tp", ["embedding.none", "heads", "ffn", "vocab"])
        parts.gather_logits()
        said.read("tensor_parallel_size", "tp by the usual tp_plan, logits gathered before the loss")
    if precision == "fp16":
        draft.overflow()
        said.read("fp16", "[optimizer] skip = \"overflow\"")
    return whole


def _sharded_adapters(draft: Draft, sharded: Sharded, cp: int, precision: str, lora: AdapterKeys) -> Mapping[str, Any]:
    """Adapters under FSDP; the bytes of modules that train whole.

    FSDP2 is prepared by axolotl (monkeypatch/accelerate/fsdp2.py: fsdp2_prepare_model): it shards each factor of an
    adapter by itself and raises nothing to fp32.
    """
    said = draft.said
    storage = "bnb_config_kwargs.bnb_4bit_quant_storage"
    if lora.bits == 4 and "int" in str(said.raw(storage)):
        raise said.refuse(storage, f"bnb_4bit_quant_storage {said.raw(storage)}: FSDP shards types of floating point "
                                   "alone")
    if lora.bits == 8 and sharded.version == 1:
        raise said.refuse(lora.bits_key, "load_in_8bit under FSDP1: in which bytes the base is flattened is not read",
                          "4 bits are, and fsdp_version 2")
    context = ("cp",) if cp > 1 and sharded.axes else ()
    return shard_adapters(draft, sharded, (*sharded.axes, *context), precision, sharded.version == 1, True)


def _experts(draft: Draft, tp: int, cp: int, replicas: int, sharded: bool, deepspeed: bool) -> int:
    """The ranks over which experts are split, each with tokens of its own; 1 where none are.

    The plugin wants as many devices as expert_parallel_size times dp_shard_size. Everything but experts is sharded over
    both by FSDP, or replicated by DDP, and an expert over dp_shard alone.
    """
    said, key = draft.said, "expert_parallel_size"
    ep, shard = said.whole(key, said.value(key)) or 1, said.number("dp_shard_size") or 1
    if ep == 1 or "ExpertParallelPlugin" not in str(said.raw("plugins")):
        said.leave(key, "1: none" if ep == 1 else "its plugin is not among the plugins")
        return 1
    for other, size in (("tensor_parallel_size", tp), ("context_parallel_size", cp), ("dp_replicate_size", replicas)):
        if size > 1:
            raise said.refuse(key, f"{key} {ep} beside {other} {size}, which is not read")
    if deepspeed:
        raise said.refuse(key, f"{key} {ep} under DeepSpeed, which is not read")
    if sharded and shard == 1:
        raise said.refuse(key, f"{key} {ep} under FSDP without dp_shard_size: experts outside its mesh are not read")
    if draft.options.world_size not in (None, ep * shard):
        raise said.refuse(key, f"{key} times dp_shard_size is {ep * shard} devices, --world-size "
                               f"{draft.options.world_size}")
    capacity = said.number("expert_parallel_token_capacity")
    tokens = ep * (said.number("micro_batch_size") or 1) * (said.whole("sequence_len", said.value("sequence_len")) or 1)
    if capacity is not None and capacity < tokens:
        raise said.refuse("expert_parallel_token_capacity", f"an expert takes {capacity} tokens of {tokens}, and drops "
                                                            "the rest")
    said.leave("expert_parallel_token_capacity", "an expert takes all tokens that there are")
    draft.options = replace(draft.options, world_size=ep * shard)
    said.follows("devices", f"{ep * shard}: {key} times dp_shard_size")
    said.read(key, f"ep over {ep} ranks, each with tokens of its own")
    said.read("plugins", "ExpertParallelPlugin: it splits the experts")
    if not sharded and not said.raw("adapter") and said.value("max_grad_norm"):
        said.approximated("max_grad_norm of experts", "each rank's norm is of the experts that it holds, so that ranks "
                          "clip what all of them hold by norms that differ: here by one norm over all")
    return ep


def _data(draft: Draft, split: int, replicas: int) -> tuple[int | None, int]:
    """The ranks of data, replicas among them, and the replicas: as dp_shard_size and dp_replicate_size say.

    Where dp_shard_size stands alone, devices beyond it replicate the shards.
    """
    said, shard = draft.said, draft.said.number("dp_shard_size")
    world = draft.options.world_size
    if shard is None or shard == 1:
        data = draft.divided(world, split, "tensor and context parallelism")
        if data is not None and data % replicas:
            raise said.refuse("dp_replicate_size", f"{data} ranks of data are not a multiple of {replicas} replicas")
        return data, replicas
    said.read("dp_shard_size", f"{shard} ranks over which states are sharded")
    if world is None:
        if replicas == 1:
            said.unsaid("world_size", f"{shard * split} devices are read; more of them replicate the shards",
                        "--world-size")
    elif replicas == 1 and world % (shard * split) == 0:
        replicas = world // (shard * split)
    elif world != shard * replicas * split:
        raise said.refuse("dp_shard_size", f"the degrees make {shard * replicas * split} devices, --world-size {world}")
    return shard * replicas, replicas


def _replicated(draft: Draft, split: int, replicas: int) -> None:
    """What the sizes of data parallelism say without FSDP: dp_replicate_size is all ranks of data."""
    said, world = draft.said, draft.options.world_size
    if (said.number("dp_shard_size") or 1) > 1:
        raise said.refuse("dp_shard_size", "dp_shard_size without fsdp_config: axolotl does not start with it")
    if replicas > 1:
        if world not in (None, replicas * split):
            raise said.refuse("dp_replicate_size", f"the degrees make {replicas * split} devices, --world-size {world}")
        draft.options = replace(draft.options, world_size=replicas * split)
        said.read("dp_replicate_size", f"dp over {replicas} replicas")


def _joined(draft: Draft, axes: tuple[str, ...], steps: int, axis: str, deepspeed: bool) -> None:
    """States are sharded over an axis that joins, too: FSDP's mesh is the product, ZeRO's group all ranks."""
    parts = draft.parts
    name = next(name for name, sizes in parts.factors if axes[0] in sizes)
    if name in ("zero3", "fsdp_no_reshard", "hsdp"):
        life = parts.tables.get("schedule", {}).get("lifetime", {})
        if axes[0] in life or name == "fsdp_no_reshard":
            parts.say("schedule", "lifetime", {axis: life.get(axes[0], "microbatch")})
        if steps > 1 and not deepspeed:
            parts.accumulate_whole(*axes, axis)
