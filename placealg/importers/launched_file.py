"""Launches whose words name a file of LLaMA-Factory or Axolotl: that file, what the words change of it, the devices.

What `accelerate launch` sets up by its own file and flags stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.importers.command_line import Launch, Open, devices, flags_of, launch_of
from placealg.importers.document import Document, read_text
from placealg.importers.further_files import beside, text_beside
from placealg.importers.launcher import PLUGIN, SWITCHES, launched_by
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.shell import OPEN, Command, Script
from placealg.importers.yaml_document import yaml_document

TRAINERS = ("llamafactory", "axolotl", "trl", "trainer")
"""Formats of trainers of transformers, which `accelerate launch` launches."""

ENTRIES = ("llamafactory-cli", "llamafactory", "axolotl", "axolotl.cli.train", "src/train.py")
"""What runs such a file."""

def launched_file(script: Script, document: Document, options: Options) -> Reading | None:
    """The reading of the file that the launches of a script name; None where none names one."""
    found = [(command, at) for command in script.commands if (at := _file_at(command.words))]
    return _of_command(*one_launch(found, document.file, options), script, document, options) if found else None


def one_launch(found: Sequence[tuple[Command, Any]], file: str, options: Options) -> tuple[Command, Any]:
    """The one of several launches that --launch names; launches of the same words are one."""
    if options.launch:
        if options.launch > len(found):
            raise refusal(f"{options.launch} of {len(found)} launches", "--launch")
        return found[options.launch - 1]
    if len({(command.words, str(said)) for command, said in found}) > 1:
        lines = ", ".join(str(command.line) for command, _ in found)
        raise refusal(f"{len(found)} launches (lines {lines})", f"{file}:{found[0][0].line}",
                      "--launch 1 takes the first")
    return found[0]


def _file_at(words: Sequence[str]) -> int:
    """Where the words name the file, right behind one of ENTRIES, or behind its `train`; 0 where they name none."""
    entry = next((at for at, word in enumerate(words) if word in ENTRIES or word.endswith("/src/train.py")), len(words))
    at = entry + 1 + (words[entry + 1:entry + 2] == ("train",))
    return at if at < len(words) and words[at].endswith((".yaml", ".yml")) else 0


def trainer_beside(document: Document, options: Options) -> Reading | None:
    """The reading of a trainer's file or script among the further files, beside accelerate's `document`."""
    from placealg.importers.detect import parsed
    from placealg.importers.read import reading_of

    for file in options.files if options.launcher is None else ():
        text = read_text(file)
        try:
            name, _ = parsed(text, file)
        except InputError:
            continue
        if name in TRAINERS or name == "megatron_sh":
            rest = tuple(other for other in options.files if other != file)
            found = reading_of(text, file, replace(options, launcher=document, files=rest, format=""))
            if found.format in TRAINERS:
                told = ReadingItem(document.file, 0, "trainer", "", f"{Path(file).name} is launched by this file")
                return replace(found, file=document.file, read=(told, *found.read),
                               texts={**found.texts, document.file: document.text})
    return None


def with_launcher(launch: Launch, script: Script, document: Document, options: Options, where: str) -> Options:
    """The options beside what a launcher says: its devices, what `accelerate launch` sets up, files that are written.

    The launcher's flags go before accelerate's file, which may come from --config_file.
    """
    before = flags_of(launch.launcher)[0]
    if opened := next((key for key, value in before.items() if isinstance(value, Open) and (
            key.startswith("fsdp") or key.replace("-", "_") in (*PLUGIN, *SWITCHES, "config_file"))), ""):
        raise refusal(f"--{opened} is open: nothing sets it", where, "--env sets it")
    made = replace(options, written={**options.written, **script.files})
    world = devices(launch, {**script.variables, **options.env})
    if "accelerate" in [Path(word).name for word in launch.launcher]:
        named, file = before.get("config-file"), options.launcher
        if named is not None and file is None:
            found = text_beside(str(named), document.file, made)
            if found is None:
                raise refusal(f"the launch names another file, {named}, which is not here", where,
                              "give it with --with")
            file = yaml_document(*found)
            if not isinstance(file.data, Mapping) or "distributed_type" not in file.data:
                raise refusal(f"--config_file names {Path(str(named)).name}, which is not accelerate's", where)
        made = replace(made, launcher=launched_by(before, file, document.file))
        world = None if file or "num-processes" in before else world
    elif options.launcher is not None:
        raise refusal(f"is not launched by `accelerate launch`, which {Path(options.launcher.file).name} is of", where)
    return replace(made, world_size=options.world_size or world)


def _of_command(command: Command, at: int, script: Script, document: Document, options: Options) -> Reading:
    from placealg.importers.detect import parsed
    from placealg.importers.read import reading_of

    where = f"{document.file}:{command.line}" if command.line else document.file

    def path_of(named: str) -> str:
        path = None if OPEN in named else beside(named, document.file, options)
        if path is None:
            raise refusal(f"the launch names another file, {named}, which is not here", where, "give it with --with")
        return path

    file = path_of(command.words[at])
    name, _ = parsed(read_text(file), file, options.format)
    if name not in ("llamafactory", "axolotl"):
        raise refusal(f"the launch names {Path(file).name}, which is neither LLaMA-Factory's nor Axolotl's", where)
    flags, rest = flags_of(command.words[at + 1:])
    if opened := [key for key, value in flags.items() if isinstance(value, Open)]:
        raise refusal(f"--{opened[0]} is open: nothing sets it", where, "--env sets it")
    settings = {key.replace("-", "_"): json.dumps(value) if isinstance(value, list) else str(value)
                for key, value in flags.items()}
    for key, equals, value in (word.partition("=") for word in rest):
        settings.update({key: value} if equals else {})
    if odd := [word for word in rest if "=" not in word]:
        raise refusal(f"'{odd[0]}' behind {Path(file).name}: a launch names one file", where)
    launch = launch_of(command.words[:at], document.file, "")
    inner = with_launcher(launch, script, document, options, where)
    found = reading_of(read_text(file), file, replace(inner, settings={**settings, **options.settings}, format=""))
    engine = f", and {Path(inner.launcher.file).name} the engine" if inner.launcher and inner.launcher.text else ""
    told = ReadingItem(document.file, command.line, "launch", "", f"{Path(file).name} decides{engine}"
                       + "".join(f"; {key} = {value}" for key, value in settings.items()))
    return replace(found, file=document.file, read=(told, *found.read),
                   texts={**found.texts, document.file: document.text})
