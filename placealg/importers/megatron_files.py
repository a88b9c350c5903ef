"""Front ends that make Megatron-LM's arguments of tables: FlagScale, Primus, and what Megatron-Bridge prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from placealg.importers.command_line import Flags, Open, plain
from placealg.importers.document import Document, Key, dotted, read_text
from placealg.importers.draft import Draft
from placealg.importers.further_files import beside, is_there
from placealg.importers.megatron import Megatron
from placealg.importers.megatron_lines import PRINTED, REQUIRED, printed_names
from placealg.importers.names import kind_without_graph
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.yaml_document import yaml_document

SECTIONS = ("system", "model", "data")
"""The tables of a FlagScale train file, whose keys at any depth are arguments (FlagScale, runner_train.py)."""

BRIDGE_SECTIONS = ("model", "ddp", "optimizer", "train", "mixed_precision", "dist", "validation")
"""The tables of Megatron-Bridge's configuration that hold arguments of Megatron-LM."""

BRIDGE_NAMES = {"num-moe-experts": "num-experts", "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-"
                "layers", "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
                "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank"}
"""Field of Megatron-Bridge's providers -> the argument that it is."""

NOT_READ = ("patch-zero-bubble", "patch-primus-pipeline", "enable-hetero", "decoder-pipeline-manual-split-list",
            "enable-zero-bubble", "dualpipe", "moe-fb-overlap")
"""Arguments of forks under which another schedule runs, or stages are made otherwise, where they are on."""

MODULE = ("framework", "config", "model")
"""The keys of a Primus module that say which files it is made of."""

MOST_FILES = 40
"""How many files one run may be made of."""


@dataclass
class Gathered:
    """Arguments with the file and the line of each: those put in last hold."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def put(self, name: str, value: Any, file: str, line: int) -> None:
        """One argument over what stood there before; null is the same as silence."""
        flag = plain(name.lstrip("-"))
        self.data.pop(flag, None)
        self.places[flag] = (file, line)
        self.silent.discard(flag)
        if value is None:
            self.silent.add(flag)
        else:
            self.data[flag] = value


class _Placed(Flags):
    """Flags that stand in several files."""

    places: Mapping[str, tuple[str, int]] = {}

    def _item(self, key: str, text: str, value: Any, option: str = "") -> ReadingItem:
        return self._put(super()._item(key, text, value, option))

    def _put(self, item: ReadingItem) -> ReadingItem:
        place = self.places.get(item.key.partition("[")[0])
        return replace(item, file=place[0], line=place[1]) if place else item

    def where(self, key: str) -> str:
        """`FILE:LINE` of an argument."""
        file, line = self.places.get(key, ("", 0))
        return f"{file}:{line}" if line else super().where(key)

    def finish(self) -> None:
        """Put every argument that is in no list among the ignored ones, with its file."""
        super().finish()
        self.lists["ignored"] = [self._put(item) for item in self.lists["ignored"]]


def is_flagscale(data: Mapping[str, Any]) -> bool:
    """Whether a table is an experiment of FlagScale, or its train file."""
    inside = data.get("experiment")
    if isinstance(inside, Mapping) and (isinstance(inside.get("task"), Mapping) or "runner" in inside):
        return True
    system = data.get("system")
    return isinstance(system, Mapping) and ("tensor_model_parallel_size" in system or (
        isinstance(data.get("model"), Mapping) and bool({"precision", "checkpoint", "logging"} & set(system))))


def is_primus(data: Mapping[str, Any]) -> bool:
    """Whether a table is an experiment of Primus: modules, each of a framework."""
    modules = data.get("modules")
    return isinstance(modules, Mapping) and any(isinstance(m, Mapping) and "framework" in m for m in modules.values())


def is_bridge(data: Mapping[str, Any]) -> bool:
    """Whether a table is a whole configuration of Megatron-Bridge, as a run prints it and a checkpoint keeps it."""
    return str(data.get("_target_", "")).endswith("config.ConfigContainer") or all(
        isinstance(data.get(name), Mapping) and "_target_" in data[name] for name in ("model", "ddp"))


def read_flagscale(document: Document, options: Options) -> Reading:
    """The reading of a FlagScale train file, or of an experiment and the train file that it names."""
    train = document
    world, told, others = None, list[ReadingItem](), list[ReadingItem]()
    if isinstance(document.data.get("experiment"), Mapping):
        world, train, told = _experiment(document, options)
        of = {item.key for item in told}
        others = [_ignored(document, path, value) for path, value in document.leaves() if dotted(path) not in of
                  and path[0] not in (*SECTIONS, "train")]
    if not isinstance(train.data.get("system"), Mapping):
        raise refusal("a FlagScale file without the table system, in which a train file holds its degrees", train.file)
    _network(train)
    outer = document.data if document is not train else {}
    gathered = Gathered()
    for path, value in train.leaves():
        if path[0] in SECTIONS:
            gathered.put(str(path[-1]), _value(value, {**outer, **train.data}, options), train.file, train.line(path))
        elif train.file != document.file or train is document:
            others.append(_ignored(train, path, value))
    told += _feed_forward(gathered)
    return _arguments(document, gathered, options, told, others, world)


def _experiment(document: Document, options: Options) -> tuple[int | None, Document, list[ReadingItem]]:
    """(the devices that a runner starts, the train file's document, what says so) of an experiment."""
    data = document.data
    task = _table_of(document, ("experiment", "task"))
    kind = str(task.get("type", "train"))
    if kind != "train":
        raise refusal(f"a FlagScale experiment of the task {kind}, which trains nothing",
                      document.where(("experiment", "task", "type")))
    if str(task.get("backend", "megatron")) != "megatron":
        raise refusal(f"a FlagScale experiment of the backend {task.get('backend')}: megatron is read",
                      document.where(("experiment", "task", "backend")))
    runner = _table_of(document, ("experiment", "runner"))
    counts = [_value(runner.get(k), data, options) for k in ("nnodes", "nproc_per_node")]
    world = counts[0] * counts[1] if all(isinstance(n, int) and n > 0 for n in counts) else None
    told = [ReadingItem(document.file, document.line(("experiment", "runner", k)), f"experiment.runner.{k}",
                        str(runner[k]), f"{world} devices" if world else "the devices stay open")
            for k in ("nnodes", "nproc_per_node") if k in runner]
    if isinstance(data.get("train"), Mapping):
        inner = replace(document, data=data["train"], lines={k[1:]: n for k, n in document.lines.items() if len(k) > 1
                                                             and k[0] == "train"})
        return world, inner, told
    parts = data["defaults"] if isinstance(data.get("defaults"), list) else []
    named = next((d["train"] for d in parts if isinstance(d, Mapping) and "train" in d), None)
    if not isinstance(named, str):
        raise refusal("a FlagScale experiment that names no train file", document.where(("experiment",)))
    path = beside(f"train/{named.removesuffix('.yaml')}.yaml", document.file, options)
    if path is None:
        raise refusal(f"a FlagScale experiment: its train file train/{named}.yaml decides, which is not here",
                      document.where(("defaults",)), "--with gives it")
    at = next(k for k, d in enumerate(parts) if isinstance(d, Mapping) and "train" in d)
    told.append(ReadingItem(document.file, document.line(("defaults", at, "train")), f"defaults[{at}].train", named,
                            f"the arguments of {Path(path).name}"))
    return world, yaml_document(read_text(path), path), told


def _table_of(document: Document, path: Key) -> Mapping[str, Any]:
    """The table at a path, an empty one where there is none."""
    found = document.get(path)
    if found is not None and not isinstance(found, Mapping):
        raise refusal(f"{dotted(path)} is {found}: expected a table", document.where(path))
    return found or {}


def _network(document: Document) -> None:
    """A refusal where a train file is of another network than a decoder of text."""
    words = [str(document.get(path) or "") for path in (("model", "model_name"), ("model", "type"), ("model", "name"))]
    words += re.findall(r"^# *([\w.-]+)", document.text, re.MULTILINE) if "model_name" in document.text else []
    inner = [str(document.get(("model", "checkpoint_dir")) or ""), Path(document.file).stem]
    for word in (w for text in (*words, *inner) for w in re.findall(r"[\w.-]+", text)):
        if kind := kind_without_graph(word):
            raise refusal(f"a FlagScale file of {kind}, of which there is no op graph", document.where(("system",)))


def _feed_forward(gathered: Gathered) -> list[ReadingItem]:
    """FlagScale's size of MLPs where a file rounds it to a multiple: what becomes of that."""
    data = gathered.data
    hidden, multiple = data.get("hidden-size"), data.get("multiple-of")
    if not (isinstance(hidden, int) and isinstance(multiple, int) and multiple > 0 and data.get("swiglu") is True) or \
            "ffn-hidden-size" in data:
        return []
    factor = data.get("hidden-dim-multiplier", 1)
    if not isinstance(factor, (int, float)) or not 0 < factor < 10**9 or not 0 < hidden < 10**9:
        return []
    size = int(int(4 * hidden * 2 / 3) * factor)
    data["ffn-hidden-size"] = multiple * -(-size // multiple)
    gathered.places["ffn-hidden-size"] = gathered.places["multiple-of"]
    del data["multiple-of"]
    return [ReadingItem(*gathered.places["multiple-of"], "multiple-of", str(multiple),
                        f"ffn-hidden-size = {data['ffn-hidden-size']}: 2/3 of 4 hidden sizes, rounded up")]


def read_primus(document: Document, options: Options) -> Reading:
    """The reading of a Primus experiment, with the files of its module and its model."""
    inside = document.data.get("modules")
    modules = {k: m for k, m in (inside.items() if isinstance(inside, Mapping) else ()) if isinstance(m, Mapping)
               and "framework" in m}
    if not modules:
        raise refusal("no module of Primus: none says its framework", document.where(("modules",)))
    if len(modules) > 1 and not options.function:
        raise refusal(f"{len(modules)} modules, {', '.join(modules)}", document.where(("modules",)),
                      f"--function {next(iter(modules))} takes one")
    name = options.function or next(iter(modules))
    if name not in modules:
        raise refusal(f"no module '{name}'", document.where(("modules",)), f"there is {', '.join(modules)}")
    module, at = modules[name], ("modules", name)
    if str(module["framework"]) != "megatron":
        raise refusal(f"a Primus module of {module['framework']}: those of megatron are read",
                      document.where((*at, "framework")))
    if "config" not in module:
        raise refusal("a Primus module without config, the file of its arguments", document.where(at))
    gathered = Gathered()
    files: list[str] = []
    for key, folder in (("config", "modules"), ("model", "models")):
        if key not in module:
            continue
        named = str(module[key])
        if kind := kind_without_graph(Path(named).stem):
            raise refusal(f"{named} is {kind}, of which there is no op graph", document.where((*at, key)))
        path = _primus_file(named, document.file, options, f"primus/configs/{folder}/megatron")
        if path is None:
            raise refusal(f"a Primus module: {key} {named} decides what it leaves open, another file",
                          document.where((*at, key)), "--with gives it and what it extends, or give the arguments "
                                                      "that the run prints at its start")
        _extended(path, gathered, options, files)
    overrides = _table_of(document, (*at, "overrides"))
    for path_, value in replace(document, data=overrides).leaves() if overrides else ():
        where = (*at, "overrides", *path_)
        gathered.put(str(path_[0]), _value(value, document.data, options), document.file, document.line(where))
    told = [ReadingItem(document.file, document.line((*at, key)), dotted((*at, key)), str(module[key]), "arguments")
            for key in MODULE if key in module]
    others = [_ignored(document, path_, value) for path_, value in document.leaves()
              if path_[:3] != (*at, "overrides") and path_[:3] not in [(*at, key) for key in MODULE]]
    gathered.data = printed_names(gathered.data)
    return _arguments(document, gathered, options, told, others)


def _primus_file(named: str, file: str, options: Options, folder: str) -> str | None:
    """The path of a file of Primus: one of --with, one beside, or one of the clone that `file` lies in."""
    found = next((g for g in options.files if Path(g).name == Path(named).name), None)
    if found is not None:
        return found
    for path in (Path(file).parent / named, *(up / folder / named for up in Path(file).resolve().parents)):
        if path.suffix in (".yaml", ".yml") and is_there(path):
            return str(path)
    return None


def _extended(path: str, gathered: Gathered, options: Options, files: list[str]) -> None:
    """Merge a Primus file over its bases, recursively."""
    if path in files or len(files) > MOST_FILES:
        raise refusal("extends itself" if path in files else f"is made of more than {MOST_FILES} files", path)
    files.append(path)
    document = yaml_document(read_text(path), path)
    if not isinstance(document.data, Mapping):
        raise refusal("holds no table of arguments", path)
    for key in ("extends", "includes", "bases"):
        bases = document.data.get(key) or ()
        for base in bases if isinstance(bases, (list, tuple)) else (bases,):
            inner = _primus_file(str(base), path, options, "primus/configs/modules/megatron")
            if inner is None:
                raise refusal(f"extends {base}, which is not here", document.where((key,)), "--with gives it")
            if inner not in files:
                _extended(inner, gathered, options, files)
    for name, value in document.data.items():
        if name not in ("extends", "includes", "bases"):
            plain_value = value if not isinstance(value, Mapping) else None
            gathered.put(str(name), _value(plain_value, {}, options), path, document.line((str(name),)))


def read_bridge(document: Document, options: Options) -> Reading:
    """The reading of a whole configuration of Megatron-Bridge."""
    data = document.data
    if kind := kind_without_graph(str(document.get(("model", "_target_")) or "").rpartition(".")[2]):
        raise refusal(f"the model is {kind}, of which there is no op graph", document.where(("model",)))
    if isinstance(data.get("peft"), Mapping):
        raise refusal("peft: adapters of Megatron-Bridge stand beside its joint products, which is not read",
                      document.where(("peft",)))
    gathered = Gathered()
    others: list[ReadingItem] = []
    for section in ("model", "train"):
        _table_of(document, (section,))
        if section not in data:
            raise refusal(f"a configuration of Megatron-Bridge without the table {section}", document.file)
    for section in BRIDGE_SECTIONS:
        table = data.get(section)
        for name, value in table.items() if isinstance(table, Mapping) else ():
            if not isinstance(value, Mapping) and not str(name).startswith("_") and (
                    value is not None or plain(str(name)) not in gathered.data):
                flag = BRIDGE_NAMES.get(plain(str(name)), plain(str(name)))
                if flag in gathered.data:
                    others.append(ReadingItem(*gathered.places[flag], name, str(gathered.data[flag]),
                                              f"{section} says it, too, and holds"))
                gathered.put(flag, _value(value, data, options), document.file, document.line((section, str(name))))
    others += [_ignored(document, path, value) for path, value in document.leaves()
               if path[0] not in BRIDGE_SECTIONS or len(path) != 2 or str(path[1]).startswith("_")]
    _bridge(document, gathered)
    return _arguments(document, gathered, options, [], others)


def _bridge(document: Document, gathered: Gathered) -> None:
    """What Megatron-Bridge says otherwise than Megatron's arguments: activation, norms, ties, precision, groups."""
    said = gathered.data
    function = document.get(("model", "activation_func"))
    word = str(function.get("_target_") if isinstance(function, Mapping) else function or "").rpartition(".")[2]
    gated = said.pop("gated-linear-unit", False) is True
    said.pop("activation-func", None)

    def made(name: str, value: Any, of: Key) -> None:
        said[name] = value
        gathered.places[name] = (document.file, document.line(of))

    if gated and word in ("silu", "swish", ""):
        made("swiglu", True, ("model", "gated_linear_unit"))
    elif gated:
        made("glu-activation", word, ("model", "gated_linear_unit"))
    elif word in ("squared_relu", "relu2"):
        made("squared-relu", True, ("model", "activation_func"))
    if said.pop("share-embeddings-and-output-weights", None) is False:
        made("untie-embeddings-and-output-weights", True, ("model", "share_embeddings_and_output_weights"))
    heads, groups = said.get("num-attention-heads"), said.get("num-query-groups")
    if groups is not None and groups != heads:
        made("group-query-attention", True, ("model", "num_query_groups"))
    preset = document.get(("mixed_precision",))
    if isinstance(preset, str):
        for name, mark in (("bf16", "bf16"), ("fp16", "fp16")):
            made(name, preset.startswith(mark), ("mixed_precision",))
        if "fp8" in preset:
            made("fp8", "hybrid", ("mixed_precision",))
    whole = said.pop("grad-reduce-in-fp32", None)
    if whole is not None and said.get("bf16"):
        made("grad-reduce-in-bf16", not whole, ("ddp", "grad_reduce_in_fp32"))
    gathered.data = printed_names(said)


def _value(value: Any, data: Mapping[str, Any], options: Options, depth: int = 0) -> Any:
    """A value with `${a.b}` of the file and `${NAME:default}` of the environment put in; what stays open says so."""
    if isinstance(value, list):
        return [_value(v, data, options, depth) if not isinstance(v, (Mapping, list)) else str(v) for v in value]
    if not isinstance(value, str) or "${" not in value or depth > 5:
        return value
    inside = re.fullmatch(r"\$\{([A-Za-z_][\w.]*)\}", value)
    if inside:
        found: Any = data
        for part in inside[1].split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None and not isinstance(found, Mapping):
            return _value(found, data, options, depth + 1)
        return _typed(options.env[inside[1]]) if inside[1] in options.env else Open(inside[1])
    filled = re.fullmatch(r"\$\{(?:oc\.env:)?(\w+)[:,](?!\?)([^{}$]*)\}", value)
    if filled:
        return _typed(options.env.get(filled[1], filled[2].strip()))
    return Open(value)


def _typed(text: str) -> Any:
    """A word as YAML has it."""
    words: Mapping[str, Any] = {"true": True, "false": False, "null": None, "none": None, "": None}
    return int(text) if re.fullmatch(r"-?\d{1,30}", text) else words.get(text.lower(), text)


def _ignored(document: Document, path: Key, value: Any) -> ReadingItem:
    return ReadingItem(document.file, document.line(path), dotted(path), str(value),
                       "the run: environment, logs, launcher")


def _arguments(document: Document, gathered: Gathered, options: Options,
               told: list[ReadingItem], others: list[ReadingItem], world: int | None = None) -> Reading:
    """The reading of arguments that were gathered; `told` and `others` are what was read and ignored beside them."""
    for flag, of in PRINTED.items():
        if flag in gathered.data and of in gathered.places and flag not in gathered.places:
            gathered.places[flag] = gathered.places[of]
    data = {k: (str(v) if isinstance(v, float) and not v.is_integer() else v) for k, v in gathered.data.items()}
    lines: dict[Key, int] = {(k,): place[1] for k, place in gathered.places.items() if k in data}
    flat = replace(document, data=data, lines=lines, twice={})
    draft = Draft("megatron", flat, options)
    draft.said = said = _Placed(draft.said.table, flat, options)
    said.required, said.hint, said.places = REQUIRED, "--env sets it", gathered.places
    said.lists["ignored"] += others
    said.lists["ignored"] += [ReadingItem(file, line, flag, "null", "null says nothing") for flag, (file, line)
                              in gathered.places.items() if flag not in data and flag in gathered.silent]
    for name in NOT_READ:
        if data.get(name) not in (None, False, 0, "", [], "false"):
            raise said.refuse(name, f"{name}: stages or a schedule of their own, which is not read")
    method = str(data.get("schedules-method") or "")
    if method not in ("", "None", "1f1b", "interleaved"):
        raise said.refuse("schedules-method", f"{method}: another schedule than the pipelines here")
    said.lists["read"] += told
    Megatron(draft, said, options.world_size or world).read()
    return draft.reading()
