"""torchtitan's Python registry: a function that returns a Trainer.Config, evaluated without importing anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from placealg.errors import InputError
from placealg.importers.document import Document, Key, read_text, typed
from placealg.importers.further_files import module_beside
from placealg.importers.python_text import Evaluator, Record, Unknown, parse_python
from placealg.importers.reading import Options, Reading, refusal
from placealg.importers.titan_sharding import held_beside
from placealg.importers.torchtitan import read_titan

CHECKPOINTING = {"FullAC": ("full", ""), "SelectiveAC": ("selective", "op"), "MemoryBudgetAC": ("memory_budget", "")}
TOKENS = "num_tokens_per_microbatch_per_dp_rank"
CONFIG = ("Trainer.Config", "TrainerConfig")
"""How the names end of the classes that configure a run."""

STEP, COUNT = "num_tokens_per_train_step", "num_pp_microbatches"
DEFAULTS = {TOKENS: 16384, "max_context_length": 2048, STEP: -1, COUNT: 1}
"""Sizes of a step where a configuration is silent (config/configs.py, since 73aed7f6c)."""

RENAMED = {"parallelism.pipeline_parallel_microbatches": f"parallelism.{COUNT}",
           "training.local_batch_size": f"training.{TOKENS}", "training.seq_len": "training.max_context_length",
           "training.global_batch_size": "training.num_tokens_per_train_step",
           "activation_checkpoint.mode": "activation_checkpoint", "model.flavor": "model_spec",
           "model.name": "model_spec",
           "activation_checkpoint.selective_ac_option": "activation_checkpoint",
           "model.converters": "model_spec.converters", "optimizer.name": "optimizer", "loss.function": "loss"}
"""torchtitan's TOML key -> the field of Trainer.Config that took its place."""


def read_registry(document: Document, options: Options) -> Reading:
    """The reading of the function that --function names, or of the only one."""
    evaluator = _evaluator(document.text, document.file, options)
    configs = [n for n, node in evaluator.functions.items() if not n.startswith("_") and _returns_config(node)]
    if not configs:
        raise refusal("no function returns a Trainer.Config", document.file)
    if not options.function and len(configs) > 1:
        raise refusal(f"{len(configs)} configurations: {', '.join(configs[:4])}, ...", document.file,
                      f"--function {configs[0]} takes one")
    name = options.function or configs[0]
    if name not in evaluator.functions:
        raise InputError(f"no function '{name}' in {document.file}", where="--function", name=name, valid=configs)
    found = evaluator.function(name)
    if not isinstance(found, Record) or not found.name.endswith(CONFIG):
        raise _no_configuration(found, name, evaluator)
    _settle(found, options.settings)
    flat = _flat(found, name, document, options)
    parallel = flat.get(("parallelism",)) or {}
    sequence = str(parallel.get("enable_sequence_parallel")).lower() != "false"
    experts = parallel.get("expert_parallel_degree", 1) != 1
    return held_beside(read_titan(flat, options, RENAMED), options, sequence, experts)


WITHIN_DOCUMENTS = ("flex", "flex_flash", "varlen")
"""The values of attn_backend under which a registry's attention has mask_type block_causal (models/*/__init__.py)."""


def _evaluator(text: str, file: str, options: Options) -> Evaluator:
    """The evaluator of a file, which follows functions of Trainer.Config into the files from which they come."""
    found: dict[str, Evaluator | None] = {}

    def of(text: str, file: str) -> Evaluator:
        return Evaluator(parse_python(text, file), file, lambda module: beside(module, file), _of_configs)

    def beside(module: str, file: str) -> Evaluator | None:
        path = module_beside(module, file, options)
        if path is not None and path not in found:
            found[path] = None
            found[path] = of(read_text(path), path)
        return found[path] if path is not None else None

    return of(text, file)


def _returns_config(node: ast.FunctionDef) -> bool:
    return (node.returns is not None and ast.unparse(node.returns).endswith("Config")) or any(
        isinstance(n, ast.Return) and n.value is not None and "Trainer.Config" in ast.unparse(n.value)
        for n in ast.walk(node))


def _of_configs(node: ast.FunctionDef) -> bool:
    """Whether a function takes a Trainer.Config, or returns one."""
    said = [node.returns, *(a.annotation for a in (*node.args.args, *node.args.kwonlyargs))]
    return any(a is not None and any(c in ast.unparse(a) for c in CONFIG) for a in said)


def _no_configuration(found: Any, name: str, evaluator: Evaluator) -> InputError:
    """The refusal of a function that returns something else, or what another file makes."""
    line = found.line if isinstance(found, (Unknown, Record)) else evaluator.functions[name].lineno
    what = found.text if isinstance(found, Unknown) else found.name if isinstance(found, Record) else "nothing"
    maker = re.split(r"[(.]", what)[0]
    module = evaluator.imported.get(maker, ("",))[0] if not maker[:1].isupper() else ""
    return refusal(f"{name} returns {what}, which is no Trainer.Config that this file makes",
                   f"{evaluator.file}:{line}", f"--with gives the file of {module}" if module else "")


def _settle(config: Record, settings: Mapping[str, str]) -> None:
    """Put the values of --key, or of a launch's words, in the place of the function's own."""
    for key, value in settings.items():
        *above, last = key.lstrip("-").replace("-", "_").split(".")
        inner = config
        for part in above:
            section = inner.fields.setdefault(part, Record("", (), {}, 0))
            if not isinstance(section, Record):
                raise InputError(f"'{part}' holds no fields", where=f"--key {key}={value}")
            inner = section
        inner.fields[last], inner.lines[last] = typed(value), 0


def _flat(config: Record, function: str, document: Document, options: Options) -> Document:
    """The configuration as the tables of a job file."""
    data: dict[str, Any] = {}
    lines: dict[Key, int] = {}
    for name in ("training", "parallelism"):
        if not isinstance(config.fields.get(name, config), Record):
            raise refusal(f"{name} is {_plain(config.fields[name])}, which is not followed",
                          f"{document.file}:{config.lines.get(name, config.line)}")
    data.update({"parallelism": {}} if "parallelism" in config.fields else {})
    for name, value in config.fields.items():
        if name == "parallelism" and not value.fields:
            continue
        if name not in ("model_spec", "activation_checkpoint", "training", "optimizer", "loss"):
            _put(data, lines, (name,), value, config.lines.get(name, config.line))
    training = config.fields.get("training")
    for name, value in (training.fields.items() if isinstance(training, Record) else ()):
        _put(data, lines, ("training", name), value, training.lines.get(name, 0) if training else 0)
    _tokens(data.setdefault("training", {}), data.setdefault("parallelism", {}), lines, document)
    _checkpointing(config, data, lines, document)
    if "loss" in config.fields:
        data["loss"] = {"function": str(_plain(config.fields["loss"])).removesuffix("(...)").removesuffix(".Config")}
        lines["loss", "function"] = config.lines.get("loss", config.line)
    _model(config, function, data, lines, document)
    optimizer = config.fields.get("optimizer")
    if isinstance(optimizer, Record):
        word = re.sub(r"^default_|\.Config$", "", optimizer.name)
        word = _of_groups(optimizer) if word == "OptimizersContainer" else word
        for field, value in optimizer.fields.items():
            _put(data, lines, ("optimizer", field), value, optimizer.lines.get(field, config.line))
        _put(data, lines, ("optimizer", "name"), word, config.lines.get("optimizer", 0))
    return Document(document.file, data, lines, document.text)


def _of_groups(container: Record) -> str:
    """The optimizers of a container's groups of parameters, each once: one name where all have the same."""
    groups = container.fields.get("param_groups")
    records = [g for g in groups if isinstance(g, Record)] if isinstance(groups, list) else []
    names = [str(_plain(g.fields.get("optimizer_name", "AdamW"))) for g in records]
    return " and ".join(dict.fromkeys(names)) or container.name


def _put(data: dict[str, Any], lines: dict[Key, int], path: Key, value: Any, line: int) -> None:
    """A value at a path; the fields of a record become a table."""
    *above, last = path
    inner = data
    for part in above:
        inner = inner.setdefault(str(part), {})
    if isinstance(value, Record):
        inner[str(last)] = {}
        for name, field in value.fields.items():
            _put(data, lines, (*path, name), field, value.lines.get(name, line))
        if not value.fields:
            inner[str(last)] = f"{value.name}()"
    else:
        inner[str(last)] = [_plain(v) for v in value] if isinstance(value, list) else _plain(value)
    lines[path] = line


def _plain(value: Any) -> Any:
    if isinstance(value, Unknown):
        return value.text
    if isinstance(value, Record):
        return f"{value.name}(...)"
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _tokens(training: dict[str, Any], parallelism: dict[str, Any], lines: dict[Key, int], document: Document) -> None:
    """Tokens of a microbatch, as sequences of the longest context; a pipeline has as many microbatches as are said."""
    if {"local_batch_size", "seq_len", "global_batch_size"} & set(training):
        return
    said = {}
    for table, inside, name in (("training", training, TOKENS), ("training", training, "max_context_length"),
                                ("training", training, STEP), ("parallelism", parallelism, COUNT)):
        value = inside.pop(name, DEFAULTS[name])
        if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and name != STEP):
            raise refusal(f"{name} is {value}, no number of at least 1",
                          f"{document.file}:{lines.get((table, name), 0)}")
        said[name] = value
        new = {TOKENS: "local_batch_size", "max_context_length": "seq_len", STEP: "global_batch_size",
               COUNT: "pipeline_parallel_microbatches"}[name]
        if (table, name) in lines:
            lines[table, new] = lines.pop((table, name))
    length = training["seq_len"] = min(said["max_context_length"], said[TOKENS])
    staged = parallelism.get("pipeline_parallel_degree", 1) != 1
    training["local_batch_size"] = said[TOKENS] // length * (said[COUNT] if staged else 1)
    if staged or ("parallelism", "pipeline_parallel_microbatches") in lines:
        parallelism["pipeline_parallel_microbatches"] = said[COUNT]
    if said[STEP] > 0:
        training["global_batch_size"] = said[STEP] // length


def _checkpointing(config: Record, data: dict[str, Any], lines: dict[Key, int], document: Document) -> None:
    """Activation checkpointing, by its class."""
    found = config.fields.get("activation_checkpoint")
    mode = ("none", "")
    if isinstance(found, Record) and "mode" in found.fields:
        raise refusal("activation_checkpoint has no field mode: its class is the mode", document.file)
    if isinstance(found, Record):
        mode = CHECKPOINTING.get(found.name.partition(".")[0], (found.name, ""))
    elif found is not None:
        mode = ("selective", "unknown")
    data["activation_checkpoint"] = {"mode": mode[0], **({"selective_ac_option": mode[1]} if mode[1] else {})}
    lines[("activation_checkpoint", "mode")] = config.lines.get("activation_checkpoint", 0)
    if mode[1]:
        lines[("activation_checkpoint", "selective_ac_option")] = config.lines.get("activation_checkpoint", 0)


def _model(config: Record, function: str, data: dict[str, Any], lines: dict[Key, int], document: Document) -> None:
    """The model: the flavor of model_registry, the name from the function's."""
    spec = config.fields.get("model_spec")
    if isinstance(spec, Record) and "model" in spec.fields:
        raise refusal("model_spec.model is changed in Python, which is not followed",
                      f"{document.file}:{spec.lines.get('model', spec.line)}")
    if isinstance(spec, Record) and spec.within:
        function = spec.within
    flavor = str(spec.arguments[0]) if isinstance(spec, Record) and spec.arguments else ""
    stem = re.sub(rf"_{re.escape(flavor.lower().replace('-', '_'))}.*$|_debugmodel.*$", "", function)
    data["model"] = {"name": stem, "flavor": flavor or "debugmodel"}
    line = config.lines.get("model_spec", 0)
    lines[("model", "name")] = lines[("model", "flavor")] = line
    backend = spec.fields.get("attn_backend") if isinstance(spec, Record) else None
    if isinstance(spec, Record) and isinstance(backend, str):
        data["model"]["attn_mask_type"] = "block_causal" if backend in WITHIN_DOCUMENTS else "causal"
        lines["model", "attn_mask_type"] = spec.lines.get("attn_backend", line)
    converters = spec.fields.get("converters") if isinstance(spec, Record) else None
    if isinstance(converters, list):
        names = [c.name.partition(".")[0] if isinstance(c, Record) else _plain(c) for c in converters]
        data["model"]["converters"] = [str(n).lower() for n in names]
        for record in (c for c in converters if isinstance(c, Record)):
            for field, value in record.fields.items():
                _put(data, lines, ("mx" if record.name.startswith("MX") else "float8", field), value,
                     record.lines.get(field, record.line))
        lines[("model", "converters")] = spec.lines.get("converters", line) if isinstance(spec, Record) else line
