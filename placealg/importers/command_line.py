"""Command lines of training: the launcher with its devices, the script, and its flags as a document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placealg.importers.document import Document, Key
from placealg.importers.key_log import Said
from placealg.importers.shell import CLOSE, OPEN

FLAG = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?\Z", re.DOTALL)
HOLDS = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
WORLD = ("nproc-per-node", "nnodes", "num-gpus", "num-nodes", "np", "nodes", "ntasks-per-node", "ntasks",
         "gpus-per-node", "gres", "num-processes", "num-machines")


class Open(str):
    """A value that depends on a variable which nothing sets; its text is the variable's name."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A training command: the words before its script, the script, the document of its flags, the other words.

    `empty` are the variables that come out empty in it.
    """

    launcher: tuple[str, ...]
    script: str
    flags: Document
    rest: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


def plain(name: str) -> str:
    """A flag's name as tables have it.

    >>> plain("tensor_model_parallel_size")
    'tensor-model-parallel-size'
    """
    return name.replace("_", "-")


def launch_of(words: Sequence[str], file: str, text: str) -> Launch:
    """A command's words, taken apart; lines of flags are looked up in `text`."""
    at = script_at(words)
    script = words[at] if 0 <= at < len(words) else ""
    flags, rest = flags_of(words[at + 1:])
    document = Document(file, flags, _lines(flags, text, words), text)
    return Launch(tuple(words[:max(at, 0)]), script, document, tuple(rest))


def script_at(words: Sequence[str]) -> int:
    """Where the training script stands: the first word that ends in .py, or what a module or a tool is called by.

    Without one, before the first flag: -1 where that is the first word.
    """
    for at, word in enumerate(words):
        if word.endswith(".py") and not word.startswith("-"):
            return at
        if word == "-m" and at + 1 < len(words) and "distributed" not in words[at + 1] and words[at + 1] not in (
                "torch.distributed.run", "torch.distributed.launch", "coverage", "deepspeed.launcher.runner"):
            return at + 1
        if word in ("megatron", "swift") and at + 1 < len(words) and words[at + 1] in ("sft", "pt", "rlhf", "pretrain",
                                                                                       "dpo", "kto", "grpo"):
            return at + 1
    return next((k - 1 for k, w in enumerate(words) if FLAG.match(w)), len(words))


def flags_of(words: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """(flags with their values, words that belong to none): a flag alone is True, several values are a list.

    >>> flags_of(["--bf16", "--split", "98,2,0", "--x=1"])[0]
    {'bf16': True, 'split': '98,2,0', 'x': '1'}

    A word that nothing sets belongs to none where it can bring flags of its own: by its name, or behind a value.
    """
    flags: dict[str, Any] = {}
    rest: list[str] = []
    name = ""
    for word in words:
        found = FLAG.match(word)
        if found and not re.fullmatch(r"-\d.*", word):
            name = plain(found[1])
            flags[name] = True if found[2] is None else _value(found[2])
        elif name and not _brings(word, name, flags[name]):
            old = flags[name]
            new = _value(word)
            flags[name] = new if old is True else [*old, new] if isinstance(old, list) else [old, new]
        else:
            rest.append(word)
    return flags, rest


BRINGS = re.compile(r"(?:^|_)(?:ARG(?:UMENT)?S?|OPTIONS?|OPTS?|FLAGS?|PARAMS?|EXTRAS?|CMD)(?:_|$)", re.IGNORECASE)
"""Variables that are called after flags."""

MANY = re.compile(r"data|path|blend|modules|files|dirs|names|layers|range|split|metrics|ranks")
"""Flags that take several values."""


def _brings(word: str, flag: str, value: Any) -> bool:
    """Whether a word behind a flag and its value, if it has one, is flags that nothing sets."""
    found = HOLDS.fullmatch(word)
    if found is None:
        return False
    return bool(BRINGS.search(found[1])) or (value is not True and not MANY.search(flag))


def _value(word: str) -> str:
    found = HOLDS.search(word)
    return Open(found[1]) if found else word


def _lines(flags: Mapping[str, Any], text: str, words: Sequence[str]) -> dict[Key, int]:
    """The line of each flag in the text, the last where it stands; its place among the words where there is no text."""
    lines: dict[Key, int] = {}
    for name in flags:
        if not text:
            own = (k for k, w in enumerate(words, 1) if w.startswith("-") and
                   plain(w.lstrip("-")).partition("=")[0] == name)
            lines[(name,)] = next(own, 0)
            continue
        pattern = r"--?" + re.escape(name).replace(r"\-", "[-_]") + r"(?![\w-])"
        found = list(re.finditer(pattern, text))
        if found:
            lines[(name,)] = text.count("\n", 0, found[-1].start()) + 1
    return lines


def devices(launch: Launch, environment: Mapping[str, Any]) -> int | None:
    """The number of devices that a launcher starts, or that Slurm gives; None where neither says it."""
    words, _ = flags_of(launch.launcher)
    counts = {name: _count(words.get(name)) for name in WORLD}
    slurm = any(Path(w).name == "srun" for w in launch.launcher)
    for short, name in (("n", "ntasks" if slurm else "np"), ("N", "nodes")):
        joined = next((w[2:] for w in launch.launcher if re.fullmatch(rf"-{short}[0-9]+", w)), None)
        counts[name] = counts[name] or _count(words.get(short, joined))
    each = counts["nproc-per-node"] or counts["num-gpus"]
    if counts["num-processes"]:
        return counts["num-processes"]
    if each:
        nodes = words.get("nnodes", words.get("num-nodes"))
        number = 1 if nodes is None else _count(nodes)
        return each * number if number else None
    if "nproc-per-node" in words or "num-gpus" in words:
        return None
    if counts["np"] and any("mpi" in w for w in launch.launcher):
        return counts["np"]
    nodes, tasks = counts["nodes"] or _count(environment.get("SLURM_NNODES")), counts["ntasks-per-node"]
    if slurm and (counts["ntasks"] or (nodes and tasks)):
        return counts["ntasks"] or (nodes or 0) * (tasks or 0)
    return slurm_devices(environment)


def slurm_devices(environment: Mapping[str, Any]) -> int | None:
    """The devices of a Slurm job: nodes times devices, or tasks, of each; else WORLD_SIZE."""
    nodes = _count(environment.get("SLURM_NNODES"))
    each = _count(environment.get("SLURM_GPUS_ON_NODE")) or _count(environment.get("SLURM_NTASKS_PER_NODE"))
    if nodes and each:
        return nodes * each
    return _count(environment.get("SLURM_NTASKS"))


def _count(value: Any) -> int | None:
    text = value[0] if isinstance(value, list) and value else value  # what follows is the command that is launched
    text = re.sub(r"\Agpu:(?:\w+:)?", "", str(text)) if text is not None and text is not True else ""
    return int(text) if re.fullmatch(r"[0-9]{1,7}", text) and int(text) > 0 else None


class Flags(Said):
    """Asks a document of flags; a value that depends on an open variable is refused where it places something."""

    required: frozenset[str] = frozenset()
    hint = ""

    def path(self, key: str) -> Key:
        """Flags hold no tables."""
        return (key,)

    def raw(self, key: str) -> Any:
        """The value of a flag; None where it is open and may be."""
        value = super().raw(key)
        open_ = next((v for v in (value if isinstance(value, list) else [value]) if isinstance(v, Open)), None)
        if open_ is None:
            return value
        if key in self.required:
            remedy = f"--env {open_}=VALUE" if re.fullmatch(r"\w+", open_) else "put its value in its place"
            raise self.refuse(key, f"--{key} is {open_}, which nothing sets", self.hint or remedy)
        if not self.accounted(self.path(key)):
            self.unsaid(key, f"{open_} is set by nobody here", f"--env {open_}=VALUE")
        return None
