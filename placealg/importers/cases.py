"""A framework's configuration as a case: what the core asks of this room where a word names such a file."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from placealg.cases.case import CommandCase, CommandOptions, default_model, model_on, precise, run_as, style_of
from placealg.cases.sizes import read_sizes, said_sizes, symbols_of
from placealg.errors import InputError
from placealg.importers.detect import is_configuration
from placealg.importers.model import model_as_read, model_of, runs_of
from placealg.importers.model import run_as as model_run_as
from placealg.importers.read import read, read_file, read_once
from placealg.importers.reading import Options, Reading
from placealg.models.model import Model
from placealg.step.compatibility import bound_sizes
from placealg.step.derive import derive


def reading_of_file(word: str, beside: object = None) -> Reading:
    """The reading of a file, with what a command line says beside it."""
    return read_file(word, beside if isinstance(beside, Options) else Options())


def model_named(word: str, said: CommandOptions) -> Model | None:
    """The model that a file names; None where it names none."""
    return model_of(reading_of_file(word, said.get("foreign")), **style_of(said))


def case_of_file(word: str, model: Model | str | None, sizes: tuple[str, ...], axes: tuple[str, ...],
                 default: Model | str, said: CommandOptions) -> CommandCase:
    """The case of a file that stands where a strategy does; its headline goes to stderr."""
    beside = said.get("foreign")
    beside = beside if isinstance(beside, Options) else Options()
    reading = read_file(word, replace(beside, model=model) if isinstance(model, str) else beside)
    counts = ", ".join(f"{len(items)} {name}" for name, items in (("unsaid", reading.unsaid),
                                                                  ("approximated", reading.approximated)) if items)
    with suppress(BrokenPipeError):
        print(f"placealg: {word} {reading.headline}" + (f" ({counts}: placealg import {word})" if counts else ""),
              file=sys.stderr)
    case = _of_reading(reading, word, model, sizes, axes, default, said)
    return case.once() if case.once and case.sizes.get("m") == 1 else case


def _of_reading(reading: Reading, word: str, model: Model | str | None, sizes: tuple[str, ...], axes: tuple[str, ...],
                default: Model | str, said: CommandOptions) -> CommandCase:
    strategy = precise(reading.strategy, said, sizes)
    try:
        named = None if model else model_of(reading, **style_of(said))
        stand_in = model or reading.stand_in or default or default_model(strategy)
        if named is None and isinstance(stand_in, str):
            as_read: Any = {**said, **runs_of(reading, stand_in, said)}
            named = model_run_as(reading, model_on(stand_in, "", as_read, strategy))
        chosen = run_as(_with(reading, named or model_on(stand_in, "", said, strategy)), said)
        step = derive(strategy, chosen)
    except InputError as error:
        raise (error.moved(word) if error.key else error.at(word)) from None
    given, known = said_sizes(sizes), symbols_of(chosen)
    words = [*sizes, *(f"{s}={n}" for s, n in reading.sizes.items() if s in known and s not in given and
                       s not in bound_sizes(strategy, chosen))]
    once = partial(_once, reading, word, model, sizes, axes, default, said) if reading.accumulates else None
    return CommandCase(strategy, chosen, step, read_sizes(words, strategy, chosen, axes), step,
                       source=Path(word).name, once=once)


def _once(reading: Reading, *words: Any) -> CommandCase:
    return _of_reading(read_once(reading), *words)


def model_for(reading: Reading, name: str = "") -> Model:
    """The model of a name, run as a file runs it; without a name the one that the file names, or on which it stands."""
    named = None if name else model_of(reading)
    return named or model_as_read(reading, name or reading.stand_in or default_model(reading.strategy))


def _with(reading: Reading, model: Model) -> Model:
    """The model, with what the reading leaves out beside what the model itself does."""
    return replace(model, left_out=(*model.left_out, *reading.not_covered))


__all__ = ["case_of_file", "is_configuration", "model_for", "model_named", "read", "read_once", "reading_of_file"]
