"""Launches of trainers of transformers by flags alone: `trl sft`, `llamafactory-cli train`, scripts of one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from placealg.importers.command_line import Launch, Open, launch_of
from placealg.importers.document import Document, Key, typed
from placealg.importers.further_files import text_beside
from placealg.importers.launched_file import one_launch, with_launcher
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.shell import Command, Script
from placealg.importers.tables import table
from placealg.importers.trainer import BATCH
from placealg.importers.yaml_document import yaml_document

TRL = ("sft", "dpo", "kto", "grpo", "rloo", "reward")
"""What the command `trl` trains by, and how its scripts are called, in trl/scripts and in its examples/scripts."""

FACTORY = ("llamafactory-cli", "llamafactory")
OF_FACTORY = {"stage", "finetuning-type", "cutoff-len", "template", "lora-target"}


def launched_flags(script: Script, document: Document, options: Options) -> Reading | None:
    """The reading of the launch of a script that the Trainer of transformers runs; None where none is one."""
    found = [(command, name) for command in script.commands if (name := trainer_of(command))]
    return _of_flags(*one_launch(found, document.file, options), script, document, options) if found else None


def trainer_of(command: Command) -> str:
    """The format of a launch's flags: trl, llamafactory or trainer; "" where they are of no such trainer.

    >>> trainer_of(Command(("torchrun", "run_clm.py", "--per_device_train_batch_size", "1"), 1, True))
    'trainer'
    """
    words = list(command.words)
    if "swift" in words:
        return ""
    flags = launch_of(words, "", "")
    data, path = flags.flags.data, Path(flags.script)
    of_trl = "trl" in path.parts or path.parts[-3:-1] == ("examples", "scripts")
    if any(a == "trl" and b in TRL for a, b in pairwise(words)) or (path.stem in TRL and of_trl):
        return "trl"
    if any(word in FACTORY for word in words) and len(OF_FACTORY & set(data)) > 1:
        return "llamafactory"
    if path.stem in ("train", "train_bash") and {"stage", "finetuning-type"} & set(data):
        return "llamafactory"
    known = BATCH.replace("_", "-") in data or {"model-name-or-path", "output-dir"} <= set(data)
    return "trainer" if known and flags.script else ""


def _of_flags(command: Command, name: str, script: Script, document: Document, options: Options) -> Reading:
    from placealg.importers.read import overridden, reader_of

    where = f"{document.file}:{command.line}" if command.line else document.file
    launch = launch_of(command.words, document.file, document.text)
    made = with_launcher(launch, script, document, options, where)
    given = document_of_flags(launch, name, where)
    if (config := given.data.pop("config", None)) is not None and name == "trl":
        found = text_beside(str(config), document.file, made)
        if found is None:
            raise refusal(f"the launch names another file, {config}, which is not here", where, "give it with --with")
        file = yaml_document(*found)
        lines = {key: line for key, line in file.lines.items() if key[0] not in given.data}
        given = replace(file, data={**(file.data or {}), **given.data}, lines=lines)
    if name == "trl":
        words = (*command.words, Path(launch.script).stem)
        given.data["command"] = next((word for word in words if word in TRL), TRL[0])
    reading = reader_of(name)(overridden(given, options.settings), made)
    told = ReadingItem(document.file, command.line, "launch", "", f"{Path(launch.script).name or 'trl'} is run by "
                       f"{table(name).title.removesuffix(' YAML').removesuffix(' arguments')}")
    return replace(reading, file=document.file, read=(told, *reading.read),
                   texts={**reading.texts, document.file: document.text})


def document_of_flags(launch: Launch, name: str, where: str) -> Document:
    """The flags as keys of the format `name`; a flag that nothing sets is refused where a row names it."""
    rows = table(name).keys
    data: dict[str, Any] = {}
    lines: dict[Key, int] = {}
    for flag, value in launch.flags.data.items():
        key = flag.replace("-", "_")
        if key.startswith("no_") and key[3:] in rows and value is True:
            key, value = key[3:], False
        if isinstance(value, Open) and key in rows:
            raise refusal(f"--{key} is open: nothing sets {value}", where, f"--env {value}=VALUE")
        data[key] = _value(value)
        lines[(key,)] = launch.flags.line((flag,))
    return Document(launch.flags.file, data, {key: line for key, line in lines.items() if line}, launch.flags.text)


def _value(value: Any) -> Any:
    """A flag's value: a text of JSON as the table that it is, a number as one."""
    if isinstance(value, Open) or not isinstance(value, str):
        return str(value) if isinstance(value, Open) else value
    if value.startswith("{"):
        try:
            made = json.loads(value)
        except ValueError:
            return value
        return made if isinstance(made, Mapping) else value
    made = typed(value)
    return made if isinstance(made, int | float | bool) else value
