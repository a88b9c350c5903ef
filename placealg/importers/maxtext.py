"""MaxText: KEY=VALUE words of a command or a script, or a YAML, become axes of slices and devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.importers.command_line import HOLDS, Open
from placealg.importers.document import Document, Key, read_text
from placealg.importers.draft import Draft
from placealg.importers.further_files import beside
from placealg.importers.kernels import read_words
from placealg.importers.key_log import Said
from placealg.importers.names import kind_without_graph, shipped_name
from placealg.importers.reading import Options, Reading, refusal
from placealg.importers.shell import Script, follow
from placealg.importers.token_attributes import DOCUMENTS, POSITIONS, read_owners, read_tokens
from placealg.importers.yaml_document import yaml_document

AXES = ("data", "fsdp", "fsdp_transpose", "tensor", "tensor_transpose", "tensor_sequence", "context", "sequence",
        "expert", "pipeline", "autoregressive")
MARKS = re.compile(r"(?:ici|dcn)_\w+_parallelism=|per_device_batch_size=|remat_policy=")
OTHERS = re.compile(r"\bpython3?\s+(?:-[um]\s+)*([\w./]*(?:decode|quantize|convert|logit|inference|maxengine|"
                    r"checkpoint|microbench)[\w.]*)\s")
"""Programs of MaxText that take the same words and train nothing."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "": 0}
OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adam", "adam": "adam", "sgd": "sgd", "muon": "muon"}
CARRIED = "decoder_layer_input"
"""Where the input of a layer is held, if remat_policy is custom: on the device, or the host."""

WITH_FSDP = ("context", "sequence", "expert")
"""Axes over which weights are sharded with fsdp, where that is 1, too (base.yml: logical_axis_rules of embed)."""

RINGS = {"all_gather": "cp", "ring": "cp_ring", "ulysses": "cp_ulysses"}


def is_maxtext(text: str) -> bool:
    """Whether a text launches MaxText.

    >>> is_maxtext("python3 -m MaxText.train base.yml ici_fsdp_parallelism=8 per_device_batch_size=4")
    True
    """
    return len(MARKS.findall(text)) >= 2 or bool(re.search(r"max_?text", text, re.IGNORECASE) and MARKS.search(text))


def read_maxtext_script(document: Document, options: Options) -> Reading:
    """The reading of a shell script that launches MaxText."""
    script = follow(document.text, document.file, dict(options.env), options.arguments)
    words = _words(script, document, options)
    return read_maxtext_words(words, document.file, document.text, options)


def _words(script: Script, document: Document, options: Options) -> list[str]:
    """The KEY=VALUE words of the one launch, or of the variable that holds them."""
    texts = [(" ".join(c.words), c.line) for c in script.commands]
    texts += [(" ".join(v) if isinstance(v, list) else v, 0) for v in script.variables.values()]
    found = [(text, line) for text, line in texts if len(MARKS.findall(text)) >= 2 or (
        MARKS.search(text) and ".yml" in text)]
    launched = [t for t in found if t[1]] or found[-1:]
    if not launched:
        raise refusal("no launch of MaxText is found", document.file)
    trains = [t for t in launched if not OTHERS.search(t[0])]
    if not trains:
        raise refusal(f"{OTHERS.findall(launched[0][0])[0]} is no training", f"{document.file}:{launched[0][1]}")
    launched = trains
    if len({t for t, _ in launched}) > 1 and not options.launch:
        raise refusal(f"{len(launched)} launches (lines {', '.join(str(n) for _, n in launched)})",
                      f"{document.file}:{launched[0][1]}", "--launch 1 takes the first")
    return launched[(options.launch or 1) - 1][0].split()


def read_maxtext_words(words: Sequence[str], file: str, text: str, options: Options) -> Reading:
    """The reading of KEY=VALUE words."""
    data: dict[str, Any] = {}
    lines: dict[Key, int] = {}
    for word in words:
        found = re.match(r"(?:--)?([a-z]\w*)=(.*)\Z", word)
        if found:
            value = found[2].strip("'\"")
            open_ = HOLDS.search(value)
            data[found[1]] = Open(open_[1]) if open_ else value
            at = text.rfind(f"{found[1]}=") if text else -1
            lines[(found[1],)] = text.count("\n", 0, at) + 1 if at >= 0 else 0
    base = next((Path(w).name for w in words if re.search(r"\.ya?ml\Z", w)), "base.yml")
    document = Document(file, data, lines, text)
    if base == "base.yml":
        return read_maxtext(document, options)
    path = beside(base, file, options)
    if path is None:
        return read_maxtext(document, options, base)
    under = yaml_document(read_text(path), path).data
    return read_maxtext(replace(document, data={**under, **data}), options)


class _Keys(Said):
    """MaxText's keys: an open value is refused where it is a degree."""

    def raw(self, key: str) -> Any:
        value = super().raw(key)
        if not isinstance(value, Open):
            return value
        if "parallelism" in key or key == "remat_policy":
            raise self.refuse(key, f"{key} is {value}, which nothing sets", f"--env {value}=VALUE")
        if not self.accounted(self.path(key)):
            self.unsaid(key, f"{value} is set by nobody here", f"--env {value}=VALUE")
        return None


def read_maxtext(document: Document, options: Options, other: str = "") -> Reading:
    """The reading of a table of MaxText's keys; `other` is the file under it that is not here, "" where base.yml is."""
    draft = Draft("maxtext", document, options)
    table = draft.said.table
    keys = {**table.keys, **{f"{level}_{a}_parallelism": replace(table.keys["data_parallelism"]) for level in (
        "ici", "dcn") for a in AXES}}
    draft.said = said = _Keys(replace(table, keys=keys), document, options)
    _refused(draft)
    sizes = {axis: _degree(draft, axis) for axis in AXES}
    for axis in ("tensor_transpose", "autoregressive"):
        if sizes[axis] != 1:
            raise said.refuse(f"ici_{axis}_parallelism", f"{axis}_parallelism: an axis that is not read")
    _axes(draft, sizes)
    if other and not said.has("remat_policy"):
        said.unsaid("remat_policy", f"{other} decides, which is not here: no recompute is read", f"--with {other}")
    else:
        _recompute(draft)
    _bytes(draft)
    for key, modifier in (("optimizer_memory_host_offload", "offload_optimizer"),
                          ("parameter_memory_host_offload", "offload_parameters")):
        if said.flag(key):
            draft.parts.modifier(modifier)
            said.read(key, modifier)
        else:
            said.leave(key, "nothing is offloaded")
    steps = said.whole("gradient_accumulation_steps", said.value("gradient_accumulation_steps")) or 1
    draft.accumulation(steps if sizes["pipeline"] == 1 else None, "gradient_accumulation_steps",
                       "num_pipeline_microbatches follows from the stages")
    shared = [sizes[a] for a in ("tensor", "tensor_sequence", "context", "sequence", "pipeline")]
    batch = said.value("per_device_batch_size")
    if other and not said.has("per_device_batch_size"):
        said.unsaid("per_device_batch_size", f"{other} decides, which is not here", f"--with {other}")
    elif batch is not None and None in shared:
        said.unsaid("per_device_batch_size", f"{batch} of each device, times the ranks of an axis that is open: b "
                                             "stays symbolic", "--set b=1")
    elif batch is not None:
        number = said.amount("per_device_batch_size")
        for size in shared:
            number *= size or 1
        if number.is_integer() and number >= 1:
            draft.size("b", "per_device_batch_size", "sequences of a rank of data", int(number))
        else:
            said.approximated("per_device_batch_size", f"{batch}: a part of a sequence per device; b stays symbolic")
    if not other or said.has("max_target_length"):
        draft.size("s", "max_target_length", "tokens of a sequence", said.whole("max_target_length", said.value(
            "max_target_length")))
    draft.clip("gradient_clipping_threshold", _number(said.value("gradient_clipping_threshold")))
    draft.optimizer("opt_type", str(said.value("opt_type")), OPTIMIZERS)
    draft.token_mean()
    made_up = str(said.value("dataset_type")) == "synthetic"
    read_tokens(draft, "packing", DOCUMENTS, POSITIONS, on=said.flag("packing") and not made_up,
                off="a row of made-up tokens is one document" if made_up else "a row is one document")
    said.leave("dataset_type", "the run: data, logs, checkpoints")
    read_owners(draft, ["context_parallel_load_balance"], sizes["context"] != 1 or sizes["sequence"] != 1)
    said.follows("loss", "[loss] preset = \"token_mean\": sums over all tokens of the step")
    _model(draft, other)
    read_words(draft)
    return draft.reading()


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return value


def _refused(draft: Draft) -> None:
    said = draft.said
    for key in ("logical_axis_rules", "custom_mesh_and_rule"):
        if said.raw(key):
            raise said.refuse(key, f"{key}: a placement of its own, which is not read")
    capacity = said.amount("capacity_factor")
    if capacity >= 0 and not said.flag("sparse_matmul"):
        raise said.refuse("capacity_factor", f"capacity_factor {capacity}: tokens beyond it are dropped")
    said.leave("capacity_factor", "no token is dropped")
    said.leave("sparse_matmul", "no token is dropped")
    for path, value in said.document.leaves():
        if isinstance(value, str) and value == "offload" and str(path[-1]) not in ("remat_policy", CARRIED):
            raise said.refuse(str(path[-1]), f"{path[-1]} = {value}: results of single ops rest on the host")


def _degree(draft: Draft, axis: str) -> int | None:
    """The product of an axis's degrees; None where one of them takes what is left, of a world that is open."""
    said = draft.said
    total: int | None = 1
    for level in ("dcn", "ici"):
        key = f"{level}_{axis}_parallelism"
        value = said.raw(key)
        default = -1 if (level, axis) in (("dcn", "data"), ("ici", "fsdp")) else 1
        number = default if value is None else said.whole(key, value, -1)
        if number == 0 or number is None:
            raise said.refuse(key, f"{key} is {value}: expected -1 or at least 1")
        if number == -1:
            number = _rest(draft, level, axis)
        elif value is not None:
            said.read(key, f"{number} of {'the slices' if level == 'dcn' else 'a slice'} on the axis {axis}")
        total = None if total is None or number is None else total * number
    return total


def _rest(draft: Draft, level: str, axis: str) -> int | None:
    """What the other degrees of a level leave: known where the world is, and all of the other level."""
    said = draft.said
    key = f"{level}_{axis}_parallelism"
    others = 1
    for name in AXES:
        for at in ("dcn", "ici"):
            if (at, name) == (level, axis):
                continue
            value = said.raw(f"{at}_{name}_parallelism")
            number = int(str(value)) if value is not None and re.fullmatch(r"-?\d{1,30}", str(value)) else (
                -1 if (at, name) in (("dcn", "data"), ("ici", "fsdp")) else 1)
            if number == -1:
                others = 0
            others *= number
    world = draft.options.world_size
    if world is not None and others > 0:
        if world % others:
            raise said.refuse(key, f"{world} devices are not a multiple of the {others} of the other degrees")
        said.read(key, f"-1: {world // others} of {world} devices", -1)
        return world // others
    said.unsaid(key, f"-1: the devices {'of a slice' if level == 'ici' else 'in slices'} that the others leave: the "
                     "axis "
                     "stays symbolic", "--world-size, with the other level's degrees")
    return None


def _axes(draft: Draft, sizes: Mapping[str, int | None]) -> None:
    said, parts = draft.said, draft.parts
    data, fsdp = sizes["data"], sizes["fsdp"]
    whole = fsdp == 1 and all(sizes[axis] == 1 for axis in WITH_FSDP)
    if data == 1:
        parts.axis("dp" if whole else "zero3", fsdp)
    elif whole:
        parts.axis("dp", data)
    else:
        over = said.flag("shard_optimizer_over_data")
        parts.replicated(3, data, fsdp, over)
        if over:
            said.read("shard_optimizer_over_data", "[states] optimizer over both")
    if sizes["fsdp_transpose"] != 1:
        parts.axis("zero3", fsdp_transpose=sizes["fsdp_transpose"])
    if sizes["context"] != 1 and sizes["sequence"] != 1:
        raise said.refuse("ici_sequence_parallelism", "sequence_parallelism beside context_parallelism: two axes that "
                                                      "split the same sequences, which is not read")
    if sizes["context"] != 1 or sizes["sequence"] != 1:
        if said.raw("context_parallel_strategy") == "usp":
            raise said.refuse("context_parallel_strategy", "usp: heads over one axis and positions over another, which "
                                                           "is not read")
        way = RINGS[said.choice("context_parallel_strategy", said.value("context_parallel_strategy"), RINGS)]
        parts.axis(way, cp=sizes["context"] if sizes["context"] != 1 else sizes["sequence"])
        said.read("context_parallel_strategy", way)
    if sizes["tensor"] != 1:
        parts.axis("tp", sizes["tensor"])
        parts.say("dims", "tp", ["heads", "ffn", "vocab", "embed"])
    if sizes["tensor_sequence"] != 1:
        parts.axis("tp_sp", tps=sizes["tensor_sequence"])
    if sizes["expert"] != 1:
        parts.axis("ep", sizes["expert"])
    if sizes["pipeline"] != 1:
        parts.axis("pp_gpipe", sizes["pipeline"])
        said.approximated("ici_pipeline_parallelism", "stages run in the order of a scan with repeats; all forwards, "
                                                      "then "
                                                      "all backwards here")
    for key in ("context_parallel_strategy", "shard_optimizer_over_data", "num_layers_per_pipeline_stage",
                "custom_mesh"):
        said.leave(key, "no bearing here")


def _recompute(draft: Draft) -> None:
    said = draft.said
    policy = str(said.value("remat_policy"))
    if "offload" in policy:
        raise said.refuse("remat_policy", f"remat_policy {policy}: results of single ops rest on the host")
    kept = [str(path[-1]) for path, value in said.document.leaves() if value == "device" and path[-1] != CARRIED]
    whole = policy == "full" or (policy == "custom" and not kept)
    if whole:
        draft.parts.modifier("recompute_full")
        said.read("remat_policy", "recompute_full")
    if whole and policy == "custom" and said.raw(CARRIED) == "offload":
        draft.parts.modifier("offload_activations")
        said.read(CARRIED, "offload_activations: inputs of layers rest on the host")
    elif said.raw(CARRIED) == "offload" and policy == "custom":
        raise said.refuse(CARRIED, f"{CARRIED} = offload beside {kept[0]} = device: some of what layers keep rests on "
                                   "the host")
    else:
        said.leave(CARRIED, "inputs of layers are held on the device")
    if whole:
        return
    if policy in ("none", "no_remat"):
        said.read("remat_policy", "nothing is computed again")
    else:
        said.approximated("remat_policy", f"{policy}: products of some layers are kept; here nothing is computed "
                                          "again: "
                          "activations are overstated, and the verdict does not cover what is computed again")


def _bytes(draft: Draft) -> None:
    said, parts = draft.said, draft.parts
    w, act, g = (BYTES[said.choice(k, str(said.value(k)), BYTES)] for k in ("weight_dtype", "dtype", "grad_dtype"))
    mu = BYTES[said.choice("mu_dtype", str(said.value("mu_dtype")), BYTES)] or w
    parts.types(w=w, wire_w=act, g=g, wire=g, o=w + mu, act=act)
    said.read("weight_dtype", f"[types] w = {w}")
    said.read("dtype", f"[types] wire_w = act = {act}: what XLA gathers in is its own choice")
    said.read("grad_dtype", f"[types] g = wire = {g}")
    said.read("mu_dtype", f"[types] o = {w + mu}")
    word = said.raw("quantization")
    if word:
        said.approximated("quantization", f"{word}: linears compute in fewer bits; saved inputs are costed at act")


def _model(draft: Draft, other: str) -> None:
    said = draft.said
    name = str(said.raw("model_name") or Path(other).stem.replace("_", "-"))
    if kind := kind_without_graph(name):
        raise said.refuse("model_name", f"{name} is {kind}, of which there is no op graph")
    shipped = shipped_name("maxtext", name)
    if shipped:
        draft.model = shipped
        if said.has("model_name"):
            said.read("model_name", f"model {shipped}")
        else:
            said.follows("model", f"{shipped}, by the name of {other}")
    else:
        draft.unread_model(f"{name or 'sizes of base.yml'}: no configuration that is read")
        said.leave("model_name", "no configuration that is read")
