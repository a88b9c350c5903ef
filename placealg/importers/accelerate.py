"""accelerate YAML: DDP, FSDP, and the sections that hand over to DeepSpeed and Megatron-LM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.importers.accelerate_mesh import mesh_of, place_axes, sequence_of, unused_mesh
from placealg.importers.deepspeed import Engine
from placealg.importers.document import Document, Key, dotted, json_document
from placealg.importers.draft import Draft
from placealg.importers.fsdp import sharding_word
from placealg.importers.further_files import text_beside
from placealg.importers.key_log import Said
from placealg.importers.kinds import says_nothing
from placealg.importers.reading import Options, Reading
from placealg.importers.tables import table

PRECISIONS = ("no", "fp16", "bf16", "fp8")
DATA_PARALLEL = ("MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU",
                 "MULTI_CPU", "TPU", "XLA")
OTHERS = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED", "megatron_lm_config": "MEGATRON_LM"}
ENGINE_KEYS = {
    "zero_optimization.stage": "zero_stage",
    "zero_optimization.offload_optimizer.device": "offload_optimizer_device",
    "zero_optimization.offload_param.device": "offload_param_device",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
}
"""DeepSpeed's key -> accelerate's, under deepspeed_config."""

NAMED = "deepspeed_config.deepspeed_config_file"
"""The key that names a file of DeepSpeed."""


def read_accelerate(document: Document, options: Options) -> Reading:
    """The reading of an accelerate configuration."""
    from placealg.importers.launched_file import trainer_beside

    if found := trainer_beside(document, options):
        return found
    draft = Draft("accelerate", document, options)
    said = draft.said
    if said.value("compute_environment") == "AMAZON_SAGEMAKER":
        raise said.refuse("compute_environment", "AMAZON_SAGEMAKER: the service decides the devices")
    kind = str(said.value("distributed_type")).upper()
    kind = "NO" if kind == "FALSE" else kind
    if said.flag("use_cpu") and kind == "NO":
        said.approximated("use_cpu", "the run is on a CPU; placement and proof are the same, figures are of one "
                                     "device")
    world = draft.world(said.number("num_processes"), "num_processes")
    if said.has("num_processes"):
        said.read("num_processes", f"{world} devices in all")
    if kind in ("DEEPSPEED", "MEGATRON_LM", "FSDP"):
        {"DEEPSPEED": _deepspeed, "MEGATRON_LM": _megatron, "FSDP": _fsdp}[kind](draft, world)
        said.read("distributed_type", f"the section of {kind}")
    elif kind == "NO":
        draft.parts.axis("dp", 1)
        said.read("distributed_type", "dp over one device")
        _ddp(draft)
    elif kind in DATA_PARALLEL:
        draft.parts.axis("dp", draft.divided(world, 1, kind))
        said.read("distributed_type", "dp over all devices")
        _ddp(draft)
    else:
        raise said.refuse("distributed_type", f"distributed_type {kind} is not read")
    for section, owner in OTHERS.items():
        if owner != kind:
            said.leave(section, f"of distributed_type {owner}")
    _unknown(said, next((section for section, owner in OTHERS.items() if owner == kind), ""))
    if kind not in ("FSDP", "DEEPSPEED"):
        unused_mesh(draft, mesh_of(draft, None))
    if kind != "MEGATRON_LM":
        said.missing("adapters", "the trainer decides whether a base is frozen beside them: all parameters train here",
                     "--with its file, or the script that launches it")
    for key in ("num_machines", "compute_environment", "use_cpu", "mixed_precision", "fp16"):
        said.leave(key, "no bearing here")
    return draft.reading()


def _unknown(said: Said, section: str) -> None:
    """Keys of the active section that no row knows: what they change is not read."""
    for path, value in said.document.leaves():
        key = dotted(path)
        known = key in said.table.keys or said.table.why_ignored(key) or says_nothing(value)
        if section and path[0] == section and len(path) > 1 and not said.accounted(path) and not known:
            said.approximated(key, f"no key of {section} that is known here: it is read as if it were not there")


def precision(said: Said) -> str:
    """mixed_precision, with YAML's false for 'no'."""
    if precision_key(said) == "fp16":
        return "fp16"
    value = said.value("mixed_precision")
    word = "no" if value in (False, None, "False", "false") else str(value).lower()
    return said.choice("mixed_precision", word, PRECISIONS)


def precision_key(said: Said) -> str:
    """The key that says the precision: the oldest files say `fp16: true`."""
    return "fp16" if not said.has("mixed_precision") and said.flag("fp16") else "mixed_precision"


def _ddp(draft: Draft) -> None:
    """Data parallelism on what was loaded, in autocast or not."""
    said = draft.said
    word = precision(said)
    said.unsaid("[types]", "bytes are those of the model that was loaded: they stay the defaults", "--precision")
    _loss_and_clip(draft)
    if word == "fp16":
        draft.overflow()
        said.read(precision_key(said), "[optimizer] skip = \"overflow\": a gradient scaler skips steps")
    elif word == "fp8":
        said.approximated(precision_key(said), "linears compute in fp8: saved activations are costed at act")
    else:
        said.read(precision_key(said), f"autocast in {word}" if word != "no" else "no autocast")
    draft.accumulation(None, "gradient_accumulation_steps", "Accelerator or TrainingArguments decides")


def _loss_and_clip(draft: Draft) -> None:
    """What the trainer decides."""
    said = draft.said
    said.unsaid("clip", "the trainer decides (max_grad_norm, 1.0 in HF): clipped by the global norm")
    if draft.options.trainer == "hf":
        draft.token_mean()
        said.follows("loss", "[loss] preset = \"token_mean\": HF Trainer averages over all tokens of the step")
    else:
        said.unsaid("loss", "the trainer decides: mean_of_means", "--trainer hf")
    said.unsaid("optimizer", "the trainer decides: AdamW")


def _fsdp(draft: Draft, world: int | None) -> None:
    """FSDP 1 or 2."""
    said, parts = draft.said, draft.parts

    def key(name: str) -> str:
        return f"fsdp_config.{name}" if said.has(f"fsdp_config.{name}") else f"fsdp_config.fsdp_{name}"

    def value(name: str) -> Any:
        found = said.raw(key(name))
        return said.default(f"fsdp_config.fsdp_{name}") if found is None else found

    version = said.whole(key("version"), value("version")) or 1
    if version not in (1, 2):
        raise said.refuse(key("version"), f"fsdp_version {version}: 1 or 2 are read")
    said.read(key("version"), f"FSDP{version}", version)
    sharding = _sharding(draft, key, value, version)
    mesh = mesh_of(draft, world)
    micro = draft.accumulation(None, "gradient_accumulation_steps", "Accelerator or TrainingArguments decides")
    axes = place_axes(draft, sharding, mesh, world, key)
    whole = micro != 1 and sharding != "NO_SHARD"
    if whole and axes:
        parts.accumulate_whole(*axes)
        said.follows("no_sync", "[states] gradients = R: accumulation runs under no_sync, and gradients stay whole "
                                "until "
                             "the last microbatch (trainer.py:1896-1909)")
    _fsdp_bytes(draft, whole)
    if said.truth(key("offload_params"), value("offload_params")):
        parts.modifier("offload_optimizer")
        parts.modifier("offload_parameters")
        said.read(key("offload_params"), "[parameters] and [optimizer] tier = \"host\"")
    else:
        said.leave(key("offload_params"), "nothing is offloaded")
    if said.truth(key("activation_checkpointing"), value("activation_checkpointing")):
        parts.modifier("recompute_full")
        said.read(key("activation_checkpointing"), "recompute_full")
    else:
        said.unsaid(key("activation_checkpointing"), "none here; the trainer may checkpoint: no recompute is read")
    kept = key("activation_checkpointing_offload")
    if said.has(kept) and said.truth(kept, said.raw(kept)):
        raise said.refuse(kept, "the inputs of checkpointed layers rest on the host")
    said.leave(kept, "nothing is offloaded")
    _units(draft, key, value, version)
    _loss_and_clip(draft)


def _sharding(draft: Draft, key: Any, value: Any, version: int) -> str:
    """The sharding strategy by its name in version 1."""
    said = draft.said
    said.leave(key("sharding_strategy" if version == 2 else "reshard_after_forward"), f"of FSDP{3 - version} alone")
    return sharding_word(said, version, *((key(n), value(n)) for n in ("sharding_strategy", "reshard_after_forward")))


def _fsdp_bytes(draft: Draft, whole: bool) -> None:
    """The bytes of FSDP under mixed precision."""
    said = draft.said
    word = precision(said)
    if word == "no":
        said.unsaid("mixed_precision", "no: bytes are those of the model that was loaded; they stay the defaults",
                    "--precision")
        return
    draft.parts.types("accelerate_fsdp", **({} if whole else {"g": 4}))
    draft.parts.half = "bf16" if word == "fp8" else word
    if word == "fp8":
        said.approximated(precision_key(said), "read as bf16: linears compute in fp8, and saved activations are costed "
                                             "at act")
        return
    said.read(precision_key(said), "[types] of precision accelerate_fsdp: shards in fp32, gathered and reduced in 16 "
                                 "bits")
    if word == "fp16":
        draft.overflow()
        said.read(precision_key(said), "[optimizer] skip = \"overflow\": a gradient scaler skips steps")


def _units(draft: Draft, key: Any, value: Any, version: int) -> None:
    """What is gathered at once."""
    said = draft.said
    policy = str(value("auto_wrap_policy")).upper()
    if policy == "TRANSFORMER_BASED_WRAP":
        said.read(key("auto_wrap_policy"), "units are the layers that the model's class names")
    elif policy == "NO_WRAP" or policy == "NONE":
        said.approximated(key("auto_wrap_policy"), "the whole model is one unit, gathered at once: transient and peak "
                                                   "are of one layer here", policy)
    else:
        said.approximated(key("auto_wrap_policy"), "units of another size than layers: transient and peak are off")
    said.approximated("root unit", "the root unit (embedding, head) stays gathered after forward"
                      + (", and with FSDP2 the tail" if version == 2 else "") + ": it is gathered again here")


class Plugin(Said):
    """accelerate's section as DeepSpeed's engine asks for it: its keys by DeepSpeed's names."""

    def path(self, key: str) -> Key:
        """accelerate's path of DeepSpeed's key; no path of the document where it has none."""
        own = ENGINE_KEYS.get(key)
        return ("deepspeed_config", own) if own else ("", key)

    def raw(self, key: str) -> Any:
        """What the section says under DeepSpeed's key, or accelerate's default."""
        found = super().raw(key)
        if found is None and key in ENGINE_KEYS:
            return table("accelerate").keys[f"deepspeed_config.{ENGINE_KEYS[key]}"].default
        return found

    def _item(self, key: str, text: str, value: Any, option: str = "") -> Any:
        item = super()._item(key, text, value, option)
        own = ENGINE_KEYS.get(key)
        return replace(item, key=f"deepspeed_config.{own}") if own else item


def names_file(said: Said) -> bool:
    """Whether the section of DeepSpeed names a file."""
    return said.raw(NAMED) not in (None, "", "none", "None")


def deepspeed_file(draft: Draft, said: Said) -> Said:
    """The file that the section of DeepSpeed names."""
    named = str(said.raw(NAMED))
    found = text_beside(named, said.document.file, draft.options)
    if found is None:
        raise said.refuse(NAMED, f"deepspeed_config_file names another file, {named}, which is not here",
                          "give it with --with")
    text, path = found
    said.read(NAMED, f"{Path(path).name} decides")
    for own in ENGINE_KEYS.values():
        if said.has(f"deepspeed_config.{own}"):
            said.inactive(f"deepspeed_config.{own}", f"{Path(path).name} decides; accelerate refuses another value")
    return Said(table("deepspeed"), json_document(text, path), draft.options)


def _engine(draft: Draft, said: Said, world: int | None, word: str, sequence: tuple[str, int] | None) -> None:
    """What DeepSpeed's keys say, beside the launcher's precision and sequence parallelism."""
    engine = Engine(draft, said, world, "" if word == "no" else word)
    engine.sequence = sequence
    engine.read()


def _deepspeed(draft: Draft, world: int | None) -> None:
    """DeepSpeed: by the file that the section names, or by the section."""
    said = draft.said
    word = precision(said)
    sequence = sequence_of(draft, world)
    if names_file(said):
        inner = deepspeed_file(draft, said)
        _engine(draft, inner, world, word, sequence)
        draft.include(inner)
    else:
        said.leave(NAMED, "no file")
        plugin = Plugin(table("deepspeed"), said.document, draft.options)
        _engine(draft, plugin, world, word, sequence)
        said.take(plugin)
    if word == "fp8":
        said.approximated(precision_key(said), "linears compute in fp8: saved activations are costed at act")
    elif word != "no":
        said.read(precision_key(said), "fills in what DeepSpeed's section of precision leaves open")
    else:
        said.read(precision_key(said), "adds no 16-bit section")


def _megatron(draft: Draft, world: int | None) -> None:
    """Megatron-LM by its section."""
    from placealg.importers.megatron import Megatron

    said = draft.said
    word = precision(said)
    section = _Section(table("megatron"), said.document, draft.options)
    section.precision = word
    for key in said.raw("megatron_lm_config") or {}:
        name = key.removeprefix("megatron_lm_")
        if name not in MEGATRON_KEYS and f"megatron_lm_config.megatron_lm_{name}" not in said.table.keys:
            if name == "no_wd_decay_cond":
                continue
            section.unknown.append(key)
    if section.unknown:
        raise said.refuse(f"megatron_lm_config.{section.unknown[0]}", f"{section.unknown[0]} is no known key of "
                          "megatron_lm_config")
    Megatron(draft, section, world).read()
    said.take(section)
    said.leave("mixed_precision", "the bytes of Megatron-LM")


MEGATRON_KEYS = {"tp_degree": "tensor-model-parallel-size", "pp_degree": "pipeline-model-parallel-size",
                 "gradient_clipping": "clip-grad", "sequence_parallelism": "sequence-parallel",
                 "recompute_activations": "recompute-activations",
                 "use_distributed_optimizer": "use-distributed-optimizer",
                 "expert_model_parallel_size": "expert-model-parallel-size",
                 "context_parallel_size": "context-parallel-size", "recompute_granularity": "recompute-granularity",
                 "recompute_method": "recompute-method", "recompute_num_layers": "recompute-num-layers",
                 "num_micro_batches": "num-micro-batches"}
"""Key of megatron_lm_config, without its prefix -> Megatron's flag."""


class _Section(Said):
    """accelerate's section as Megatron's reader asks for it: its keys by Megatron's flags."""

    precision = "no"

    def __init__(self, form: Any, document: Document, options: Options):
        super().__init__(form, document, options)
        self.unknown: list[str] = []
        self.flags = {flag: key for key, flag in MEGATRON_KEYS.items()}

    def path(self, key: str) -> Key:
        own = self.flags.get(key)
        if own is None:
            return ("", key)
        plain = ("megatron_lm_config", own)
        return plain if self.document.get(plain) is not None else ("megatron_lm_config", f"megatron_lm_{own}")

    def raw(self, key: str) -> Any:
        if key in ("bf16", "fp16"):
            return self.precision == key
        found = super().raw(key)
        return None if found in ("None", "none", "null") else found

    def _item(self, key: str, text: str, value: Any, option: str = "") -> Any:
        item = super()._item(key, text, value, option)
        return replace(item, key=".".join(map(str, self.path(key)))) if key in self.flags else item
