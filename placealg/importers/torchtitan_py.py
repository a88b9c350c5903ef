"""torchtitan's Python registry: a function that returns a Trainer.Config, evaluated without importing anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from placealg.importers.document import Document, Key
from placealg.importers.python_text import Evaluator, Record, Unknown, parse_python
from placealg.importers.reading import Options, Reading, refusal
from placealg.importers.torchtitan import read_titan

CHECKPOINTING = {"FullAC": ("full", ""), "SelectiveAC": ("selective", "op"), "MemoryBudgetAC": ("memory_budget", "")}
TOKENS = "num_tokens_per_microbatch_per_dp_rank"
RENAMED = {"training.local_batch_size": f"training.{TOKENS}", "training.seq_len": "training.max_context_length",
           "training.global_batch_size": "training.num_tokens_per_train_step",
           "activation_checkpoint.mode": "activation_checkpoint", "model.flavor": "model_spec",
           "model.name": "model_spec",
           "activation_checkpoint.selective_ac_option": "activation_checkpoint",
           "model.converters": "model_spec.converters", "optimizer.name": "optimizer"}
"""torchtitan's TOML key -> the field of Trainer.Config that took its place."""


def read_registry(document: Document, options: Options) -> Reading:
    """The reading of the function that --function names, or of the only one."""
    tree = parse_python(document.text, document.file)
    evaluator = Evaluator(tree, document.file)
    configs = [n for n, node in evaluator.functions.items() if not n.startswith("_") and _returns_config(node)]
    if not configs:
        raise refusal("no function returns a Trainer.Config", document.file)
    if not options.function and len(configs) > 1:
        raise refusal(f"{len(configs)} configurations: {', '.join(configs[:4])}, ...", document.file,
                      f"--function {configs[0]} takes one")
    name = options.function or configs[0]
    if name not in evaluator.functions:
        from placealg.errors import InputError

        raise InputError(f"no function '{name}' in {document.file}", where="--function", name=name, valid=configs)
    found = evaluator.function(name)
    line = evaluator.functions[name].lineno
    if not isinstance(found, Record):
        where = found.line if isinstance(found, Unknown) else line
        what = found.text if isinstance(found, Unknown) else "nothing"
        raise refusal(f"{name} returns {what}, which is more than a configuration in one piece",
                      f"{document.file}:{where}")
    if not {"training", "parallelism", "model_spec"} & set(found.fields):
        raise refusal(f"{name} returns {found.name}, which is no configuration of a run", f"{document.file}:{line}")
    return read_titan(_flat(found, name, document, options), options, RENAMED)


def _returns_config(node: ast.FunctionDef) -> bool:
    return (node.returns is not None and ast.unparse(node.returns).endswith("Config")) or any(
        isinstance(n, ast.Return) and n.value is not None and "Trainer.Config" in ast.unparse(n.value)
        for n in ast.walk(node))


def _flat(config: Record, function: str, document: Document, options: Options) -> Document:
    """The configuration as the tables of a job file."""
    data: dict[str, Any] = {}
    lines: dict[Key, int] = {}
    for name, value in config.fields.items():
        if name not in ("model_spec", "activation_checkpoint", "training", "optimizer"):
            _put(data, lines, (name,), value, config.lines.get(name, config.line))
    training = config.fields.get("training")
    for name, value in (training.fields.items() if isinstance(training, Record) else ()):
        _put(data, lines, ("training", name), value, training.lines.get(name, 0) if training else 0)
    _tokens(data.setdefault("training", {}), lines, document)
    parallel = data.get("parallelism")
    if isinstance(parallel, dict) and "num_pp_microbatches" in parallel:
        parallel["pipeline_parallel_microbatches"] = parallel.pop("num_pp_microbatches")
        lines[("parallelism", "pipeline_parallel_microbatches")] = lines.pop(("parallelism", "num_pp_microbatches"), 0)
    _checkpointing(config, data, lines)
    _model(config, function, data, lines)
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


def _tokens(training: dict[str, Any], lines: dict[Key, int], document: Document) -> None:
    """Tokens of a microbatch, as sequences of the longest context."""
    tokens, length = training.pop(TOKENS, None), training.pop("max_context_length", None)
    step = training.pop("num_tokens_per_train_step", None)
    if length is None and tokens is None:
        return
    for name, value in ((TOKENS, tokens), ("max_context_length", length), ("num_tokens_per_train_step", step)):
        if value is not None and not isinstance(value, int):
            raise refusal(f"{name} is {value}, no number", f"{document.file}:{lines.get(('training', name), 0)}")
    length = length or tokens or 1
    tokens = tokens or length
    training["seq_len"] = min(length, tokens)
    training["local_batch_size"] = max(1, tokens // length)
    for old, new in ((TOKENS, "local_batch_size"), ("max_context_length", "seq_len"),
                     ("num_tokens_per_train_step", "global_batch_size")):
        lines[("training", new)] = lines.pop(("training", old), 0)
    if step is not None and step > 0:
        training["global_batch_size"] = step // training["seq_len"]
    else:
        lines.pop(("training", "global_batch_size"), None)


def _checkpointing(config: Record, data: dict[str, Any], lines: dict[Key, int]) -> None:
    """Activation checkpointing, by its class."""
    found = config.fields.get("activation_checkpoint")
    mode = ("none", "")
    if isinstance(found, Record):
        mode = CHECKPOINTING.get(found.name.partition(".")[0], (found.name, ""))
    elif found is not None:
        mode = ("selective", "unknown")
    data["activation_checkpoint"] = {"mode": mode[0], **({"selective_ac_option": mode[1]} if mode[1] else {})}
    lines[("activation_checkpoint", "mode")] = config.lines.get("activation_checkpoint", 0)
    if mode[1]:
        lines[("activation_checkpoint", "selective_ac_option")] = config.lines.get("activation_checkpoint", 0)


def _model(config: Record, function: str, data: dict[str, Any], lines: dict[Key, int]) -> None:
    """The model: the flavor of model_registry, the name from the function's."""
    spec = config.fields.get("model_spec")
    flavor = str(spec.arguments[0]) if isinstance(spec, Record) and spec.arguments else ""
    stem = re.sub(rf"_{re.escape(flavor.lower().replace('-', '_'))}.*$|_debugmodel.*$", "", function)
    data["model"] = {"name": stem, "flavor": flavor or "debugmodel"}
    line = config.lines.get("model_spec", 0)
    lines[("model", "name")] = lines[("model", "flavor")] = line
    converters = spec.fields.get("converters") if isinstance(spec, Record) else None
    if isinstance(converters, list):
        names = [c.name.partition(".")[0] if isinstance(c, Record) else _plain(c) for c in converters]
        data["model"]["converters"] = [str(n).lower() for n in names]
        for record in (c for c in converters if isinstance(c, Record)):
            for field, value in record.fields.items():
                _put(data, lines, ("mx" if record.name.startswith("MX") else "float8", field), value,
                     record.lines.get(field, record.line))
        lines[("model", "converters")] = spec.lines.get("converters", line) if isinstance(spec, Record) else line
