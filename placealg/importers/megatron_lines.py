"""The front ends of Megatron's flags: command lines, shell scripts, YAML of flags, and what a run prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.importers.command_line import HOLDS, Flags, Launch, Open, devices, flags_of, launch_of, plain
from placealg.importers.document import Document, Key, written
from placealg.importers.draft import Draft
from placealg.importers.launched_file import launched_file
from placealg.importers.launched_flags import launched_flags
from placealg.importers.megatron import Megatron
from placealg.importers.megatron_entries import SWIFT, check_entry, check_recipe, trains
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.shell import CLOSE, OPEN, Command, Script, follow
from placealg.importers.titan_launch import launched_registry

MARKS = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "num-layers", "hidden-size", "micro-batch-size",
         "model-parallel-size", "num-attention-heads", "use-distributed-optimizer", "context-parallel-size",
         "recompute-granularity", "num-layers-per-virtual-pipeline-stage", "seq-length", "global-batch-size")
REQUIRED = frozenset((
    "tensor-model-parallel-size", "model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
    "expert-model-parallel-size", "moe-expert-parallel-size", "expert-tensor-parallel-size", "sequence-parallel",
    "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "ds-sequence-parallel-size",
    "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout",
    "zero-stage", "data-parallel-sharding-strategy", "recompute-granularity", "recompute-method",
    "recompute-num-layers", "optimizer-offload-fraction", "num-distributed-optimizer-instances", "optimizer",
    "use-distributed-optimizer", "num-experts"))


def read_command(words: Sequence[str], options: Options, file: str = "command line") -> Reading:
    """The reading of a command line, given as its words."""
    script = Script(file, commands=[Command(tuple(words), 0, True)])
    found = launched_other(script, Document(file, {}, {}, ""), options)
    return found or _of_launch(launch_of(words, file, ""), Script(file), options, "")


def launched_other(script: Script, document: Document, options: Options) -> Reading | None:
    """The reading of a launch of another trainer, which names a file of its own; None where none is one."""
    return (launched_file(script, document, options) or launched_registry(script, document, options)
            or launched_flags(script, document, options))


def read_script(document: Document, options: Options) -> Reading:
    """The reading of a shell script that launches Megatron-LM, or names a file of another trainer."""
    script = follow(document.text, document.file, dict(options.env), options.arguments)
    if found := launched_other(script, document, options):
        return found
    launch = chosen_launch(script, document, options)
    return _of_launch(launch, script, options, document.text)


def chosen_launch(script: Script, document: Document, options: Options) -> Launch:
    """The one launch of a script, or the one that --launch names; else the variable that holds the flags."""
    launches = [(c, launch_of(c.words, document.file, "")) for c in script.commands]
    known = [c for c, launch in launches if launch.script and trains(launch.script, launch.flags.data)]
    found = known or [c for c in script.commands if _marks(c.words) >= 2]
    if len(found) > 1:
        different = {tuple(w for w in c.words) for c in found}
        if options.launch:
            if options.launch > len(found):
                raise InputError(f"{options.launch} of {len(found)} launches", where="--launch")
            found = [found[options.launch - 1]]
        elif len(different) > 1:
            lines = ", ".join(str(c.line) for c in found)
            raise refusal(f"{len(found)} launches (lines {lines})", f"{document.file}:{found[0].line}",
                          "--launch 1 takes the first")
    if found:
        command = found[0]
        launch = launch_of(command.words, document.file, document.text)
        if _marks(command.words) < 1:
            raise _without_flags(command, "its launch holds no flags of Megatron-LM", document.file)
        return replace(launch, empty=command.empty)
    for command, launch in launches:
        check_recipe(launch, f"{document.file}:{command.line}")
        told = launch.script.endswith(".py") or launch.script in SWIFT or Path(command.words[0]).name not in LAUNCHERS
        if not told and (_open_names(command) or command.empty):
            raise _without_flags(command, "what its launch runs is not told", document.file)
    experiment = script.variables.get("EXP")
    if isinstance(experiment, str) and experiment.endswith((".yaml", ".yml")):
        raise refusal("a launch of Primus, whose file decides", document.file, f"give {experiment}")
    flags = _variable(script)
    if flags is None:
        raise refusal("no launch of Megatron-LM is found", document.file,
                      "import -- and the command that it runs reads that")
    return launch_of(flags, document.file, document.text)


LAUNCHERS = ("torchrun", "deepspeed", "srun", "mpirun", "python", "python3", "accelerate")
"""Commands that run what stands behind them."""


def _open_names(command: Command) -> list[str]:
    """The variables of a command that nothing sets, each a whole word of it."""
    return [found[1] for word in command.words if (found := HOLDS.fullmatch(word)) and found[1].isidentifier()]


def _without_flags(command: Command, what: str, file: str) -> InputError:
    """The refusal of a launch that has no flags, by the variables that would bring them."""
    names = [*_open_names(command), *command.empty]
    why = f": {' and '.join(f'${name}' for name in names)} came out empty" if names else ""
    return refusal(f"{what}{why}", f"{file}:{command.line}", f"--env {names[0]}=VALUE sets it" if names else "")


def _marks(words: Sequence[str]) -> int:
    flags, _ = flags_of(words)
    return sum(mark in flags for mark in MARKS)


def _variable(script: Script) -> list[str] | None:
    """The words of the variable that holds most flags."""
    best: list[str] = []
    for value in script.variables.values():
        words = value if isinstance(value, list) else value.split()
        words = [w for text in words for w in text.split()]
        if _marks(words) >= max(2, _marks(best)) and len(words) > len(best):
            best = words
    return best or None


def _of_launch(launch: Launch, script: Script, options: Options, text: str) -> Reading:
    """The reading of a launch."""
    flags = launch.flags
    draft = Draft("megatron", flags, options)
    draft.said = said = Flags(draft.said.table, flags, options)
    said.required = REQUIRED
    check_entry(launch, options)
    if _marks([f"--{key}" for key in flags.data]) < 1 and not (
            launch.script and trains(launch.script, flags.data)):
        raise refusal("no launch of Megatron-LM: its flags are others", flags.file)
    _open_words(draft, launch, script)
    world = devices(launch, {**script.variables, **options.env})
    if launch.script in SWIFT[2:]:
        said.approximated("rlhf-type", f"{launch.script}: another loss, and a second model beside this one: both are "
                                       "left out")
    front = SWIFT_DEFAULTS if launch.script in SWIFT else SLIME_DEFAULTS if "actor-num-nodes" in flags.data else {}
    if front:
        world = _of_front(draft, launch, script, front) or world
    if world is not None and options.world_size is None:
        said.follows("devices", f"{world} devices, as the launcher or Slurm says")
    _deepspeed_config(draft, launch, script)
    Megatron(draft, said, options.world_size or world, 1 if launch.script in SWIFT else None).read()
    return draft.reading()


SWIFT_DEFAULTS: dict[str, Any] = {"bf16": True, "use-distributed-optimizer": True, "micro-batch-size": "1",
                                  "global-batch-size": "16", "recompute-granularity": "selective",
                                  "attention-backend": "flash", "attention-dropout": "0", "hidden-dropout": "0"}
"""What `megatron sft` of ms-swift sets where a command line is silent (modelscope/ms-swift, megatron_args.py)."""

SLIME_DEFAULTS: dict[str, Any] = {"bf16": True, "use-distributed-optimizer": True}
"""What slime sets where a command line is silent (THUDM/slime, arguments.py)."""


def _of_front(draft: Draft, launch: Launch, script: Script, front: dict[str, Any]) -> int | None:
    """The devices of a front end of Megatron-LM, whose defaults go before Megatron's."""
    said = draft.said
    data = launch.flags.data
    silent = {key: value for key, value in front.items() if key not in data and not (key == "bf16" and "fp16" in data)}
    for key, value in silent.items():
        said.follows(key, f"{'true' if value is True else value}, the front end's default")
    said.document = replace(said.document, data={**data, **silent})
    if "actor-num-nodes" in data:
        actors, devices_ = _number(data["actor-num-nodes"]), _number(data.get("actor-num-gpus-per-node")) or 8
        for key in ("actor-num-nodes", "actor-num-gpus-per-node"):
            said.leave(key, "of the devices")
        if data.get("loss-type") != "sft_loss":
            said.approximated("loss-type", "policy_loss: the cross entropy of the next token stands in its place"
                              if "loss-type" not in data else "the cross entropy of the next token stands in its place")
        return actors * devices_ if actors else None
    each = _number(script.variables.get("NPROC_PER_NODE"))
    nodes = script.variables.get("NNODES")
    seen = script.variables.get("CUDA_VISIBLE_DEVICES")
    if each is None and isinstance(seen, str) and re.fullmatch(r"\d+(,\d+)*", seen):
        each = seen.count(",") + 1
    return each * (_number(nodes) or 1) if each and (nodes is None or _number(nodes)) else None


def _number(value: Any) -> int | None:
    return written(value, 19) or None if isinstance(value, str) else None


def _open_words(draft: Draft, launch: Launch, script: Script) -> None:
    """Words that a variable would bring which nothing sets: they may hold flags."""
    said = draft.said
    values = [v for value in launch.flags.data.values() for v in (value if isinstance(value, list) else [value])]
    whole = [w for w in (*launch.rest, *map(str, values)) if w.startswith(OPEN) and w.endswith(CLOSE)]
    for name in dict.fromkeys(found for w in whole for found in HOLDS.findall(w)):
        texts = script.candidates.get(name, [])
        placing = [flag for text in texts for flag in flags_of(text.split())[0] if flag in REQUIRED]
        if placing:
            raise refusal(f"whether --{placing[0]} is given depends on what cannot be decided ({name})",
                          said.document.file, "--env sets the variables of its condition")
    for name in launch.empty:
        said.lists["unsaid"].append(ReadingItem(said.document.file, 0, f"${name}", "", "comes out empty: it brings no "
                                                "flags", f"--env {name}=..."))
    for name, line in script.open.items():
        if any(name in w for w in whole):
            said.lists["unsaid"].append(ReadingItem(
                said.document.file, line, f"${name}", "", "may bring further flags: read as empty",
                f"--env {name}=..."))


def _deepspeed_config(draft: Draft, launch: Launch, script: Script) -> None:
    """The stage of Megatron-DeepSpeed, where a file decides it."""
    said, flags = draft.said, launch.flags.data
    if "deepspeed" not in flags or "zero-stage" in flags:
        return
    named = flags.get("deepspeed-config")
    if named is None:
        return
    if not isinstance(named, str) or isinstance(named, Open) or OPEN in named:
        raise said.refuse("deepspeed-config", "a file decides the ZeRO stage whose name depends on what nothing sets",
                          "give it with --with, and its name with --env")
    from placealg.importers.document import json_document, read_text
    from placealg.importers.further_files import beside

    text, where = script.files.get(str(named), ""), said.document.file
    if not text:
        path = beside(str(named), said.document.file, draft.options)
        if path is None:
            raise said.refuse("deepspeed-config", f"{named} decides the ZeRO stage, another file, which is not here",
                              "give it with --with")
        text, where = read_text(path), path
    if OPEN in text:
        raise said.refuse("deepspeed-config", f"{named} is written with {HOLDS.findall(text)[0]}, which nothing sets",
                          "--env sets it")
    config = json_document(text, where)
    zero = config.get(("zero_optimization",)) or {}
    known = {"stage", "offload_optimizer", "overlap_comm", "contiguous_gradients", "reduce_scatter",
             "reduce_bucket_size", "allgather_bucket_size", "allgather_partitions", "elastic_checkpoint"}
    more = [k for k in zero if k not in known and zero[k] not in (False, None, 0)] if isinstance(zero, dict) else ["?"]
    if more:
        raise refusal(f"zero_optimization.{more[0]} beside the flags of Megatron-DeepSpeed is not read", where)
    data = dict(flags)
    data["zero-stage"] = str(zero.get("stage") or 0)
    device = (zero.get("offload_optimizer") or {}).get("device", "none")
    if device != "none":
        data["cpu-optimizer"] = True
    said.document = replace(said.document, data=data, lines={**said.document.lines, ("zero-stage",): said.document.line(
        ("deepspeed-config",))})


def read_flags_yaml(document: Document, options: Options) -> Reading:
    """The reading of a YAML whose MODEL_ARGS are flags."""
    found: dict[str, Any] = {}
    lines: dict[Key, int] = {}
    others: list[ReadingItem] = []
    for path, value in document.leaves():
        if path[0] == "MODEL_ARGS" and len(path) >= 2:
            flag = plain(str(path[1]).lstrip("-"))
            whole = document.get(path[:2])
            found[flag] = [str(v) for v in whole] if isinstance(whole, list) else whole
            lines[(flag,)] = document.line(path[:2])
        else:
            others.append(ReadingItem(document.file, document.line(path), ".".join(map(str, path)), str(value),
                               "the run: environment, metrics, launcher"))
    open_ = {flag for flag, value in found.items() if isinstance(value, str) and re.search(r"\$\{?\w+", value)}
    flat = replace(document, data={k: (v if k not in open_ else Open(v)) for k, v in found.items()}, lines=lines)
    draft = Draft("megatron", flat, options)
    draft.said = said = Flags(draft.said.table, flat, options)
    said.required = REQUIRED
    said.lists["ignored"] += others
    said.hint = "--key sets it"
    Megatron(draft, said, options.world_size).read()
    return draft.reading()


LOG = re.compile(r"(?:^|[ \t:\]])([a-z][a-z0-9_]*) \.{2,} (.*?)[ \t]*$", re.MULTILINE)


def is_log(text: str) -> bool:
    """Whether a text holds the arguments that Megatron-LM prints at its start."""
    return len(LOG.findall(text[:400_000])) >= 10 and "tensor_model_parallel_size" in text


def read_log(document: Document, options: Options) -> Reading:
    """The reading of the arguments that a run printed."""
    data: dict[str, Any] = {}
    lines: dict[Key, int] = {}
    for found in LOG.finditer(document.text):
        flag, value = plain(found[1]), found[2]
        if value in ("None", ""):
            continue
        data[flag] = {"True": True, "False": False}.get(value, value)
        if value.startswith("["):
            data[flag] = re.findall(r"[\w.+-]+", value)
        lines[(flag,)] = document.text.count("\n", 0, found.start()) + 1
    if data.get("num-experts") == ["1"]:
        del data["num-experts"]  # Megatron-DeepSpeed prints a list, of one number per layer that may have experts
    dtype = data.pop("params-dtype", None)
    if dtype and "bf16" not in data and "fp16" not in data:
        data["bf16"], data["fp16"] = "bfloat16" in str(dtype), "float16" in str(dtype) and "bfloat" not in str(dtype)
    data = printed_names(data)
    for flag, of in PRINTED.items():
        if flag in data and (of,) in lines:
            lines[(flag,)] = lines[(of,)]
    flat = Document(document.file, data, lines, document.text)
    draft = Draft("megatron", flat, options)
    draft.said = said = _Printed(draft.said.table, flat, options)
    Megatron(draft, said, options.world_size).read()
    return draft.reading()


PRINTED = {"disable-bias-linear": "add-bias-linear", "no-position-embedding": "add-position-embedding",
           "fp8-format": "fp8", "fp4-format": "fp4", "fp8-param-gather": "fp8-param",
           "num-virtual-stages-per-pipeline-rank": "virtual-pipeline-model-parallel-size"}
"""Flag of a command line -> the argument that it sets, as a run prints it (Megatron-LM, arguments.py)."""


def printed_names(data: dict[str, Any]) -> dict[str, Any]:
    """Arguments under the names of the flags that set them; those that a flag turns off are its opposite.

    >>> printed_names({"add-bias-linear": False, "virtual-pipeline-model-parallel-size": "2"})
    {'disable-bias-linear': True, 'num-virtual-stages-per-pipeline-rank': '2'}
    """
    found = dict(data)
    for flag, argument in PRINTED.items():
        if argument not in found:
            continue
        value = found.pop(argument)
        if flag in ("disable-bias-linear", "no-position-embedding"):
            value = not value if isinstance(value, bool) else value
        if flag not in data:
            found[flag] = value
    if "num-virtual-stages-per-pipeline-rank" in found:
        found.pop("num-layers-per-virtual-pipeline-stage", None)
    return found


class _Printed(Flags):
    """What a run printed: it knows every argument, so that no name can be a mistake."""

    def ignores(self, key: str) -> bool:
        """Every name is the framework's own."""
        return True
