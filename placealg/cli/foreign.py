"""Configurations of training frameworks on the command line: `placealg import`, and such a file as a STRATEGY."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from placealg.cli.output import check_file, print_json, print_lines, print_text, width, write_file
from placealg.cli.verdicts import DONE, FAILED
from placealg.errors import InputError, nearest
from placealg.importers.model import model_of
from placealg.importers.read import read_file, read_words
from placealg.importers.reading import Options, Reading
from placealg.importers.tables import formats
from placealg.importers.write import model_text, typed, written
from placealg.render.reading import reading_page


def foreign_options(chosen: Namespace) -> Options:
    """What the words of a command line say beside a foreign file."""
    return Options(
        world_size=_world(chosen), files=tuple(chosen.files), format=chosen.form or "", model=_model(chosen),
        env=_pairs("--env", chosen.env), settings=_pairs("--key", chosen.settings), arguments=tuple(chosen.arguments),
        function=chosen.function or "", versions=_pairs("--framework", chosen.framework), trainer=chosen.trainer or "",
        microbatches=_count("--microbatches", chosen.microbatches), ignore=tuple(k.lstrip("-") for k in chosen.ignore),
        launch=_count("--launch", chosen.launch) or 0, strict=getattr(chosen, "strict", False))


def _model(chosen: Namespace) -> str:
    return (chosen.model or "") if chosen.command == "import" else ""


def _world(chosen: Namespace) -> int | None:
    world, nodes = _count("--world-size", chosen.world_size), _count("--nodes", chosen.nodes)
    each = _count("--per-node", chosen.per_node)
    if (nodes is None) != (each is None):
        raise InputError("say both: world size = nodes x devices per node", where="--nodes and --per-node")
    if nodes and each:
        if world not in (None, nodes * each):
            raise InputError(f"{world} is not {nodes} x {each}", where="--world-size")
        return nodes * each
    return world


def _count(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise InputError(f"'{text}' is not a whole number of at least 1", where=option)
    return int(text)


def _pairs(option: str, words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InputError(f"'{word}' is not NAME=VALUE", where=option)
        found[name.strip()] = value
    return found


def import_command(chosen: Namespace) -> int:
    """`placealg import FILE`, or `placealg import -- torchrun ...`: print the reading, or write its strategy.

    The exit code is 1 where the order of a pipeline that it has written down does not run.
    """
    options = foreign_options(chosen)
    if chosen.argv:
        if chosen.file:
            raise InputError(f"a file, {chosen.file}, and a command line: one of them", where="import")
        reading = read_words(chosen.argv, options)
    elif chosen.file:
        if not Path(chosen.file).exists() and nearest(chosen.file, formats()) == chosen.file:
            raise InputError(f"'{chosen.file}' is a format, and no file: --as {chosen.file} FILE", where="import")
        reading = read_file(chosen.file, options)
    else:
        raise InputError("missing FILE, or -- and a command line", where="import")
    model_of(reading)
    if chosen.output:
        _write(reading, chosen.output, typed if chosen.format == "toml" else written)
    if chosen.format == "json":
        print_json(reading.to_json())
    elif chosen.format == "toml" and not chosen.output:
        print_text(typed(reading, "config.json"))
    elif not chosen.output:
        print_lines(reading_page(reading, width(40), chosen.long))
    return FAILED if reading.faults else DONE


def _write(reading: Reading, output: str, form: Callable[[Reading, str], str]) -> None:
    """Write the strategy, and the model beside it where the configuration holds one of its own."""
    if reading.unread and reading.strategy.option("adapters", "match"):
        raise InputError(f"adapters beside a model that is not read: {reading.unread}", where=reading.file)
    if not output.endswith(".toml"):
        raise InputError("a strategy file ends in .toml", where=f"-o {output}")
    check_file(output)
    beside = Path(output).with_suffix(".config.json")
    text = model_text(reading)
    if text:
        write_file(str(beside), text)
    write_file(output, form(reading, beside.name))
