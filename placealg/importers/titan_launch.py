"""Launches of torchtitan: the TOML file, or the module and function, that they name, and the fields that they set."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from placealg.importers.command_line import Open, devices, flags_of, launch_of
from placealg.importers.document import Document, read_text, toml_document
from placealg.importers.further_files import beside, module_beside
from placealg.importers.launched_file import one_launch
from placealg.importers.reading import Options, Reading, ReadingItem, refusal
from placealg.importers.shell import OPEN, Command, Script
from placealg.importers.torchtitan import read_torchtitan
from placealg.importers.torchtitan_py import read_registry

Reader = Callable[[Options], Reading]

ENTRY = re.compile(r"torchtitan\.train|(?:.*/)?torchtitan/train\.py")
"""What trains."""

WRAPPER = {"MODULE": "llama3", "CONFIG": "llama3_debugmodel", "NGPU": "8"}
"""Variables that run_train.sh passes on, with what it has where they are not set (run_train.sh)."""

FILE = "job.config_file"
"""The flag by which a launch names a TOML file; run_train.sh of that time passes $CONFIG_FILE on."""

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
        file = environment.get("CONFIG_FILE")
        named = [f"--{FILE}", file] if file else ["--module", module, "--config", config]
        words = ["torchrun", f"--nproc_per_node={ranks}", "-m", "torchtitan.train", *named, *words[wrapper + 1:]]
    at = next((at for at, word in enumerate(words) if ENTRY.fullmatch(word)), None)
    naming = {"--module", "--config", f"--{FILE}"}
    inside = at is not None and {word.partition("=")[0].replace("config-file", "config_file") for word in words[at:]}
    return tuple(words) if inside and inside & naming else ()


def _of_command(command: Command, words: Sequence[str], script: Script, document: Document,
                options: Options) -> Reading:
    where = f"{document.file}:{command.line}" if command.line else document.file
    at = next(at for at, word in enumerate(words) if ENTRY.fullmatch(word))
    flags, rest = flags_of(words[at + 1:])
    if opened := [key for key, value in flags.items() if isinstance(value, Open) or OPEN in str(value)]:
        raise refusal(f"--{opened[0]} is open: nothing sets it", where, "--env sets it")
    if chosen := [word for word in words[at + 1:] if re.fullmatch(r"[\w.-]+:[\w.-]+", word)] or rest:
        raise refusal(f"'{chosen[0]}' chooses a class of the configuration, which is not read", where)
    settings = {}
    for flag, value in flags.items():
        key, given = flag.replace("-", "_"), value
        if value is True and (off := re.fullmatch(r"(.*\.)no_(\w+)", key)):
            key, given = off[1] + off[2], False
        settings[key] = ",".join(given) if isinstance(given, list) else str(given)
    file = settings.pop(FILE, None)
    read, path, config = _of_file(file, document, options, where) if file else _of_registry(
        settings, document, options, where)
    launch = launch_of(words, document.file, "")
    world = devices(launch, {**script.variables, **options.env})
    inner = replace(options, function=config, world_size=options.world_size or world, format="",
                    settings={**settings, **options.settings})
    reading = read(inner)
    what = f"{config} of {Path(path).name}" if config else Path(path).name
    told = ReadingItem(document.file, command.line, "launch", "", f"{what} decides"
                       + "".join(f"; {key} = {value}" for key, value in settings.items()))
    return replace(reading, file=document.file, read=(told, *reading.read),
                   texts={**reading.texts, document.file: document.text})


def _of_file(named: str, document: Document, options: Options, where: str) -> tuple[Reader, str, str]:
    """The reader of a TOML file, its path, and no function."""
    from placealg.importers.read import overridden

    path = beside(named, document.file, options)
    if path is None:
        raise refusal(f"the launch names another file, {named}, which is not here", where, "--with gives it")
    file = toml_document(read_text(path), path)
    return lambda inner: read_torchtitan(overridden(file, inner.settings), replace(inner, function="")), path, ""


def _of_registry(settings: dict[str, str], document: Document, options: Options, where: str
                 ) -> tuple[Reader, str, str]:
    """The reader of a function of a module, the module's path, and the function, which are taken out of `settings`."""
    if missing := [f"--{key}" for key in ("module", "config") if settings.get(key, "True") == "True"]:
        raise refusal(f"{missing[0]} is not given, and torchtitan wants it", where)
    module, config = settings.pop("module"), settings.pop("config")
    path = next((path for package in PACKAGES if (path := module_beside(package.format(module), document.file,
                                                                        options))), None)
    if path is None:
        raise refusal(f"the launch names {config} of the module {module}, which is not here", where,
                      "--with gives its file")
    file = Document(path, {}, {}, read_text(path))
    return lambda inner: read_registry(file, inner), path, config
