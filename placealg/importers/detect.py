"""Which format a text is of, from its content: never from its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.importers.automodel import is_automodel
from placealg.importers.document import MAX_BYTES, Document, json_document, toml_document
from placealg.importers.llamafactory_v1 import is_v1
from placealg.importers.megatron_files import is_bridge, is_flagscale, is_primus
from placealg.importers.nemo import is_nemo
from placealg.importers.tables import formats, table
from placealg.importers.trainer import is_trainer
from placealg.importers.trl import is_trl

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "fp16", "bf16")
BESIDE = ("steps_per_print", "wall_clock_breakdown", "gradient_clipping", "zero_allow_untested_optimizer")


def _deepspeed(data: Mapping[str, Any]) -> bool:
    optimizer = data.get("optimizer")
    beside = any(key in data for key in BESIDE) or (isinstance(optimizer, Mapping) and "type" in optimizer)
    said = sum(key in data for key in BATCH)
    other = {"model_type", "per_device_train_batch_size"} & set(data)
    return not other and ("zero_optimization" in data or said >= 2 or (said == 1 and beside))


def _maxtext(data: Mapping[str, Any]) -> bool:
    degrees = any(str(k).startswith(("ici_", "dcn_")) and str(k).endswith("_parallelism") for k in data)
    return degrees or ("base_config" in data and bool(set(data) & set(table("maxtext").keys)))


JSON: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {"deepspeed": _deepspeed}
YAML: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "accelerate": lambda data: "distributed_type" in data or "compute_environment" in data,
    "llamafactory": lambda data: "finetuning_type" in data or (
        "model_name_or_path" in data and data.get("stage") in ("sft", "pt", "dpo", "kto", "rm", "ppo")),
    "trl": is_trl,
    "trainer": is_trainer,
    "llamafactory_v1": is_v1,
    "axolotl": lambda data: "base_model" in data and bool({"datasets", "micro_batch_size", "pretraining_dataset"} & set(
        data)),
    "maxtext": _maxtext,
    "levanter": lambda data: isinstance(data.get("trainer"), Mapping) and bool(
        {"mp", "train_batch_size", "fsdp_axis"} & set(data["trainer"])),
    "primus": lambda data: is_primus(data) and not is_automodel(data),
    "flagscale": is_flagscale,
    "megatron_bridge": is_bridge,
    "nemo": lambda data: is_nemo(data) and not is_automodel(data) and not is_bridge(data),
    "automodel": is_automodel,
    "megatron": lambda data: isinstance(data.get("MODEL_ARGS"), Mapping),
    "nanotron": lambda data: isinstance(data.get("parallelism"), Mapping) and (
        bool({"dp", "tp", "pp"} & set(data["parallelism"])) and bool({"tokens", "optimizer", "general"} & set(data))),
}


def _titan(data: Mapping[str, Any]) -> bool:
    sections = [data.get(section) for section in ("training", "experimental")]
    return "parallelism" in data or {"job", "model"} <= set(data) or any(
        str(key).endswith(("_degree", "batch_size")) for inside in sections if isinstance(inside, Mapping)
        for key in inside)


TOML: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {"torchtitan": _titan}


_OURS = re.compile(r"^[ \t]*(?:\[(?:mesh|dims|states|groups\b.*|schedule|\[edit\]|\[event\])\]|base\s*=|expect\s*=)",
                   re.MULTILINE)
_TABLE = re.compile(r"^[ \t]*\[[\w.\"-]+\]\s*(#.*)?$", re.MULTILINE)
_KEY = re.compile(r"^[ \t]*[\w.\"-]+\s*=", re.MULTILINE)
_THEIRS = re.compile(r"^[ \t]*\[(?:job|training|parallelism|activation_checkpoint|experimental)\]", re.MULTILINE)


def is_configuration(path: Path) -> bool:
    """Whether a file is meant for a training framework rather than for placealg: anything that is no strategy file."""
    try:
        with open(path, "rb") as stream:
            text = stream.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return False
    if _OURS.search(text):
        return False
    return path.suffix != ".toml" or bool(_THEIRS.search(text))


_SHELL = re.compile(r"\A#!.*\b(?:ba|z|da|k)?sh\b|^[ \t]*(?:export\s+)?[A-Za-z_]\w*=[^\s=].*$|^[ \t]*(?:torchrun|srun|"
                    r"sbatch|mpirun|deepspeed|accelerate launch|python3?|uv run|megatron|swift|trl|axolotl|"
                    r"llamafactory-cli)\s", re.MULTILINE)


_LAUNCH = re.compile(r"^[ \t]*(?:[A-Z_]+=\S+[ \t]+)*python3?[ \t]", re.MULTILINE)
_PYTHON = re.compile(r"^(?:from [\w.]+ import |import \w|class \w+.*:|def \w+\(.*|@\w)", re.MULTILINE)


def is_python(text: str) -> bool:
    """Whether a text is Python: it imports, and defines a class or a function, or is Python from end to end."""
    if len(_PYTHON.findall(text)) < 2 or text.startswith("#!/bin/"):
        return False
    if re.search(r"^(?:class|def|@) ?\w", text, re.MULTILINE):
        return True
    try:
        compile(text, "", "exec", flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _python(text: str, file: str, forced: str) -> str:
    """The format of a Python text."""
    marks = (("tp_plan", r"base_model_tp_plan\b[^\n=]*="), ("torchtitan_py", r"Trainer\.Config\b"),
             ("titan_layouts", r"\.sharding_config = |\bset_\w+sharding\w*\("), ("dtensor", r"\bparallelize_module\b"))
    found = [name for name, mark in marks if re.search(mark, text)]
    if forced or len(found) == 1:
        return {"torchtitan": "torchtitan_py"}.get(forced, forced) or found[0]
    if len(found) > 1:
        raise InputError(f"may be {' or '.join(table(n).title for n in found)}: say which with --as {'|'.join(found)}",
                         where=file)
    raise InputError("is Python of no format that is known here: tp_plan, torchtitan, titan_layouts, dtensor are read",
                     where=file)


def is_shell(text: str) -> bool:
    """Whether a text is a shell script: it begins as one, or assigns without blanks, or launches."""
    if text.startswith("#!"):
        return bool(re.match(r"#!.*\b(?:ba|z|da|k)?sh\b", text))
    if _TABLE.search(text) and _KEY.search(text) and "--" not in text:
        return False
    return bool(re.match(r"#SBATCH", text, re.MULTILINE)) or ((" --" in text or "\t--" in text) and bool(
        _SHELL.search(text)) and not re.match(r"\s*[\w\"'-]+:\s", text) and text.lstrip()[0] not in "{[")


def parsed(text: str, file: str, forced: str = "") -> tuple[str, Document]:
    """(format, document) of a text: what its syntax is, and which format's keys it holds."""
    body = text.lstrip()
    if not body:
        raise InputError("is empty", where=file)
    from placealg.importers.megatron_lines import is_log

    if is_python(text):
        return _python(text, file, forced), Document(file, {}, {}, text)
    from placealg.importers.pipeline_csv import is_rows

    if is_rows(text) or forced == "pipeline_csv":
        return "pipeline_csv", Document(file, {}, {}, text)
    if is_log(text):
        return "megatron_log", Document(file, {}, {}, text)
    from placealg.importers.maxtext import is_maxtext

    launched = is_shell(text) or (is_maxtext(text) and _LAUNCH.search(text))
    if launched or (forced == "megatron" and "MODEL_ARGS" not in text):
        name = "maxtext_sh" if is_maxtext(text) and forced != "megatron" else "megatron_sh"
        return name, Document(file, {}, {}, text)
    if body[0] == "{" or (body[0] == "[" and not _TABLE.match(body)):
        document = json_document(text, file)
        data = document.data
        known = JSON if not isinstance(data, Mapping) or any(fits(data) for fits in JSON.values()) else YAML
        return _one(document, known, "JSON", forced), document
    if _TABLE.search(text) and _KEY.search(text):
        document = toml_document(text, file)
        return _one(document, TOML, "TOML", forced), document
    from placealg.importers.yaml_document import yaml_document

    document = yaml_document(text, file)
    return _one(document, YAML, "YAML", forced), document


def _one(document: Document, known: Mapping[str, Callable[[Mapping[str, Any]], bool]], syntax: str, forced: str) -> str:
    if not isinstance(document.data, Mapping):
        raise InputError(f"holds no table of keys: a {syntax} configuration is one", where=f"{document.file}:1")
    if forced:
        return forced
    found = [name for name, fits in known.items() if fits(document.data)]
    if len(found) > 1:
        titles = [table(name).title if name in formats() else name for name in found]
        raise InputError(f"may be {' or '.join(titles)}: say which with --as {'|'.join(found)}", where=document.file)
    if not found:
        raise InputError(f"is {syntax} of no format that is known here; --as names one of {', '.join(formats())}",
                         where=document.file)
    return found[0]
