"""Launches of torchtitan that name a module and a function of it, and the fields of its configuration that they set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from placealg.importers.beside import module_beside
from placealg.importers.command_line import Open, devices, flags_of, launch_of
from placealg.importers.document import Document, read_text
from placealg.importers.launched_file import one_launch
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.shell import OPEN, Command, Script
from placealg.importers.torchtitan_py import read_registry

ENTRY = re.compile(r"torchtitan\.train|(?:.*/)?torchtitan/train\.py")
"""What trains."""

WRAPPER = {"MODULE": "llama3", "CONFIG": "llama3_debugmodel", "NGPU": "8"}
"""Variables that run_train.sh passes on, with what it has where they are not set (run_train.sh)."""

PACKAGES = ("torchtitan.models.{}.config_registry", "torchtitan.experiments.{}.config_registry",
            "torchtitan.experiments.rl.examples.{}.config_registry", "{}.config_registry", "{}")
"""Where --module is looked for, in this order (config/manager.py)."""


def launched_registry(script: Script, document: Document, options: Options) -> Reading | None:
    """The reading of the configuration that the launches of a script name; None where none is torchtitan's."""
    found = [(command, words) for command in script.commands if (words := _run(command, options))]
    return _of_command(*one_launch(found, document.file, options), script, document, options) if found else None


def _run(command: Command, options: Options) -> tuple[str, ...]:
    """The words of a command as torchtitan is run by them, with what run_train.sh puts in; () where it is not."""
    words, environment = list(command.words), {**options.env, **command.environment}
    while words and (set_ := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
        environment[set_[1]] = set_[2]
        words.pop(0)
    wrapper = next((at for at, word in enumerate(words) if Path(word).name == "run_train.sh"), None)
    if wrapper is not None and (wrapper == 0 or words[0] in ("bash", "sh")):
        module, config, ranks = (environment.get(name) or default for name, default in WRAPPER.items())
        words = ["torchrun", f"--nproc_per_node={ranks}", "-m", "torchtitan.train", "--module", module, "--config",
                 config, *words[wrapper + 1:]]
    at = next((at for at, word in enumerate(words) if ENTRY.fullmatch(word)), None)
    inside = at is not None and {word.partition("=")[0] for word in words[at:]} & {"--module", "--config"}
    return tuple(words) if inside else ()


def _of_command(command: Command, words: Sequence[str], script: Script, document: Document,
                options: Options) -> Reading:
    where = f"{document.file}:{command.line}" if command.line else document.file
    at = next(at for at, word in enumerate(words) if ENTRY.fullmatch(word))
    flags, rest = flags_of(words[at + 1:])
    if opened := [key for key, value in flags.items() if isinstance(value, Open) or OPEN in str(value)]:
        raise refusal(f"--{opened[0]} is open: nothing sets it", where, "--env sets it")
    if chosen := [word for word in words[at + 1:] if re.fullmatch(r"[\w.-]+:[\w.-]+", word)] or rest:
        raise refusal(f"'{chosen[0]}' chooses a class of the configuration, which is not read", where)
    if missing := [f"--{key}" for key in ("module", "config") if not isinstance(flags.get(key), str)]:
        raise refusal(f"{missing[0]} is not given, and torchtitan wants it", where)
    module, config = str(flags.pop("module")), str(flags.pop("config"))
    path = next((path for package in PACKAGES if (path := module_beside(package.format(module), document.file,
                                                                        options))), None)
    if path is None:
        raise refusal(f"the launch names {config} of the module {module}, which is not here", where,
                      "--with gives its file")
    settings = {}
    for flag, value in flags.items():
        key, given = flag.replace("-", "_"), value
        if value is True and (off := re.fullmatch(r"(.*\.)no_(\w+)", key)):
            key, given = off[1] + off[2], False
        settings[key] = ",".join(given) if isinstance(given, list) else str(given)
    launch = launch_of(words, document.file, "")
    world = devices(launch, {**script.variables, **options.env})
    inner = replace(options, function=config, world_size=options.world_size or world, format="",
                    settings={**settings, **options.settings})
    text = read_text(path)
    reading = read_registry(Document(path, {}, {}, text), inner)
    told = ReadingItem(document.file, command.line, "launch", "", f"{config} of {Path(path).name} decides"
                       + "".join(f"; {key} = {value}" for key, value in settings.items()))
    return replace(reading, file=document.file, read=(told, *reading.read),
                   texts={**reading.texts, document.file: document.text})
