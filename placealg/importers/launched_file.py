"""Launches whose words name a file of LLaMA-Factory or Axolotl: that file, what the words change of it, the devices.

`accelerate launch --config_file` names a second one, which sets up the engine of LLaMA-Factory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.importers.beside import beside
from placealg.importers.command_line import Open, devices, flags_of, launch_of
from placealg.importers.document import Document, read_text
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.shell import OPEN, Command, Script

ENTRIES = ("llamafactory-cli", "llamafactory", "axolotl", "axolotl.cli.train", "src/train.py")
"""What runs such a file."""

ENGINES = ("use-fsdp", "fsdp", "use-deepspeed", "deepspeed", "zero", "use-megatron-lm", "megatron-lm",
           "use-parallelism", "parallelism-config", "offload")
"""How flags of `accelerate launch` begin that set up an engine."""


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
    before = flags_of(launch.launcher)[0]
    if engine := [flag for flag in before if flag.startswith(ENGINES)]:
        raise refusal(f"--{engine[0]}: flags of the launcher that set up an engine are not read", where,
                      "a file of accelerate, by --config_file, is")
    files = options.files
    launcher = str(before.get("config-file", ""))
    if launcher:
        if name != "llamafactory":
            raise refusal("--config_file beside a file of Axolotl, which sets up the engine, too", where)
        engine_file = path_of(launcher)
        if parsed(read_text(engine_file), engine_file)[0] != "accelerate":
            raise refusal(f"--config_file names {Path(launcher).name}, which is not accelerate's", where)
        files = (engine_file, *files)
    world = devices(launch, {**script.variables, **options.env})
    inner = replace(options, files=files, world_size=options.world_size or world,
                    settings={**settings, **options.settings}, format="")
    found = reading_of(read_text(file), file, inner)
    told = ReadingItem(document.file, command.line, "launch", "", f"{Path(file).name} decides"
                       + (f", and {Path(launcher).name} the engine" if launcher else "")
                       + "".join(f"; {key} = {value}" for key, value in settings.items()))
    return replace(found, file=document.file, read=(told, *found.read),
                   texts={**found.texts, document.file: document.text})
