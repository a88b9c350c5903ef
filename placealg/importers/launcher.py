"""What `accelerate launch` sets up beside a trainer's own file: DDP, FSDP or DeepSpeed, by its file or its flags.

A trainer of transformers reads its environment: the engine and the number of devices are the launcher's, and so is the
precision where the trainer says none (transformers, training_args.py: __post_init__).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.importers.accelerate import (
    DATA_PARALLEL,
    ENGINE_KEYS,
    NAMED,
    Plugin,
    deepspeed_file,
    names_file,
    precision,
    precision_key,
)
from placealg.importers.document import Document, read_text, typed
from placealg.importers.draft import Draft
from placealg.importers.hf import run_engine
from placealg.importers.key_log import Said
from placealg.importers.reading import Options
from placealg.importers.tables import table
from placealg.importers.yaml_document import yaml_document

KINDS = ("NO", "FSDP", "DEEPSPEED", *(kind for kind in DATA_PARALLEL if kind.startswith("MULTI")))
"""Values of distributed_type that a trainer's file is read beside."""

SECTION = "deepspeed_config"
PLUGIN = (*ENGINE_KEYS.values(), "deepspeed_config_file", "zero3_init_flag", "zero3_save_16bit_model",
          "offload_optimizer_nvme_path", "offload_param_nvme_path", "deepspeed_hostfile", "deepspeed_exclusion_filter",
          "deepspeed_inclusion_filter", "deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names")
"""Flags of `accelerate launch` that are keys of its section of DeepSpeed."""

SWITCHES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "use_megatron_lm": "MEGATRON_LM",
            "multi_gpu": "MULTI_GPU", "tpu": "TPU"}
"""Flag of `accelerate launch` -> the distributed_type that it switches on."""


def launched_by(flags: Mapping[str, Any], file: Document | None, where: str) -> Document:
    """accelerate's configuration as its flags make it of `file`: a flag goes before the file's key.

    >>> launched_by({"use-fsdp": True, "fsdp-version": "2", "num-processes": "8"}, None, "run.sh").data
    {'distributed_type': 'FSDP', 'fsdp_config': {'fsdp_version': 2}, 'num_processes': 8}
    """
    data = {key: dict(value) if isinstance(value, Mapping) else value for key, value in (
        file.data if file else {}).items()}
    if kind := next((kind for flag, kind in SWITCHES.items() if flags.get(flag.replace("_", "-"))), ""):
        data["distributed_type"] = kind
    for name, value in flags.items():
        key, kept = name.replace("-", "_"), value if isinstance(value, bool) else typed(str(value))
        section = (SECTION if key in PLUGIN else "fsdp_config" if key.startswith("fsdp_") else
                   "megatron_lm_config" if key.startswith("megatron_lm_") else
                   "parallelism_config" if key.startswith("parallelism_config_") else "")
        inner = data.setdefault(section, {}) if section else data
        if key not in (*SWITCHES, "config_file", "use_parallelism_config", "m", "module"):
            inner[key] = kept
    return Document(file.file if file else where, data, file.lines if file else {}, file.text if file else "")


def launcher_of(draft: Draft, own: Iterable[str]) -> Said | None:
    """accelerate's configuration beside the file, with what it says of the devices; None where there is none.

    `own` are the keys by which the file sets up an engine itself, which goes with none of accelerate's.
    """
    found = next((Said(table("accelerate"), document, draft.options) for document in _beside(draft.options)), None)
    if found is None:
        return None
    file = Path(found.document.file).name
    kind = found.choice("distributed_type", str(found.raw("distributed_type") or "MULTI_GPU").upper(), KINDS)
    for key in own if kind in ("FSDP", "DEEPSPEED") or draft.options.launcher is None else ():
        if draft.said.raw(key):
            raise draft.said.refuse(key, f"{key} beside {file}, which sets up an engine, too")
    if found.raw("parallelism_config"):
        raise found.refuse("parallelism_config", f"parallelism_config beside a file of "
                           f"{draft.said.table.title.removesuffix(' YAML')} is not read")
    if not found.has("distributed_type") and any(draft.said.raw(key) for key in own):
        found.leave("distributed_type", "the trainer sets up an engine")
    elif not found.has("distributed_type"):
        found.missing("distributed_type", "accelerate's default_config.yaml decides, where there is one: read as dp "
                                          "over all devices", "--with")
    else:
        found.read("distributed_type", {"FSDP": "the section of FSDP", "DEEPSPEED": "the section of DEEPSPEED",
                                        "NO": "one device"}.get(kind, "dp over all devices"))
    with draft.of(found):
        world = draft.world(found.number("num_processes") or (1 if kind == "NO" else None), "num_processes")
    draft.options = replace(draft.options, world_size=world)
    if found.has("num_processes"):
        found.read("num_processes", f"{world} devices in all")
    for section, owner in (("fsdp_config", "FSDP"), (SECTION, "DEEPSPEED")):
        if kind != owner:
            found.leave(section, f"of distributed_type {owner}")
    return found


def _beside(options: Options) -> Iterable[Document]:
    """accelerate's configurations among what a user or a launch gives."""
    if options.launcher is not None:
        yield options.launcher
    for file in options.files:
        if Path(file).suffix in (".yaml", ".yml"):
            document = yaml_document(read_text(file), file)
            if isinstance(document.data, Mapping) and "distributed_type" in document.data:
                yield document


def sets_up(launcher: Said | None, kind: str) -> bool:
    """Whether there is a launcher that sets up this engine."""
    return launcher is not None and str(launcher.raw("distributed_type")).upper() == kind


def launched_precision(launcher: Said | None, own: str, key: str = "bf16 and fp16") -> str:
    """The 16 bits of the step: the trainer's `own`, else the launcher's; "" in 32 bits."""
    if launcher is None:
        return own
    word = precision(launcher)
    if own or word == "no":
        launcher.leave(precision_key(launcher), f"{key} of the trainer decide")
        return own
    if word == "fp8":
        launcher.approximated(precision_key(launcher), "read as bf16: linears compute in fp8, and saved activations "
                                                       "are costed at act")
        return "bf16"
    launcher.read(precision_key(launcher), f"the trainer says neither bf16 nor fp16: {word}")
    return word


def read_launched_deepspeed(draft: Draft, launcher: Said, word: str, steps: int, outer: int = 1) -> None:
    """DeepSpeed by the launcher's section, or by the file that it names, beside axes of `outer` ranks."""
    if names_file(launcher):
        inner = deepspeed_file(draft, launcher)
        run_engine(draft, inner, word, steps, outer)
        draft.include(inner)
        return
    launcher.leave(NAMED, "no file")
    plugin = Plugin(table("deepspeed"), launcher.document, draft.options)
    run_engine(draft, plugin, word, steps, outer)
    launcher.take(plugin)
