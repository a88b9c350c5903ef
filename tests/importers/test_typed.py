"""What is printed of a reading, typed back, is the same program, the same bytes, the same picture and verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from test_importers import MINIATURES, name, options

from placealg.errors import InputError
from placealg.importers.read import read
from placealg.importers.reading import Reading
from placealg.importers.write import OPEN, model_text, typed
from placealg.strategy.file import parse_strategy_file

Run = Callable[..., Outcome]
QUICK = "deepspeed/misplaced"


def reading_of(path: Path) -> Reading | None:
    try:
        return read(path, files=options(path).files)
    except InputError:
        return None


@given(st.sampled_from(MINIATURES))
@settings(max_examples=8, deadline=None)
def test_each_printed_key_says_something(path: Path) -> None:
    """The file that is typed is the strategy, and is another one without any of its keys."""
    reading = reading_of(path)
    if reading is None:
        return
    text = typed(reading, "config.json")
    file = parse_strategy_file(text, "s.toml")
    assert file.strategy == reading.strategy
    assert f"base = {json.dumps(reading.expression)}\n" in text
    lines, table = text.splitlines(), ""
    for k, line in enumerate(lines):
        table = line if line.startswith("[") else table
        if table and " = " in line and not table.startswith(("[groups", "[mesh")):
            fewer = "\n".join(lines[:k] + lines[k + 1:])
            try:
                other = parse_strategy_file(fewer, "s.toml").strategy
            except InputError:
                continue
            assert other != reading.strategy, line


def both(run: Run, path: Path, reading: Reading, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the configuration, and of the file that its page prints: program, bytes, picture and verdict."""
    beside = [word for file in options(path).files for word in ("--with", file)]
    model = ("--model", "llama-3-8b") if reading.unread else ()
    mine, picture = folder / "typed.toml", folder / "picture.svg"
    assert run("import", str(path), *beside, *model, "--format", "toml", "-o", str(mine)).code in (0, 1)
    sized = reading.sizes and (reading.model or reading.unread or reading.stand_in)  # an abstract model has no sizes
    sizes = ("--set", *(f"{s}={n}" for s, n in reading.sizes.items())) if sized else ()
    found = []
    for words, own in (((str(path), *beside, *model), ()), ((str(mine), *model), sizes)):
        picture.unlink(missing_ok=True)
        run("show", *words, "--graph", str(picture))
        drawn = picture.read_text(encoding="utf-8") if picture.exists() else ""
        told = [run(*command).out for command in (
            ("show", *words), ("cost", *words, *own, "--format", "json"), ("prove", *words, "--no-timing"))]
        called = json.loads(told[1])["model"] if told[1] else ""  # a network of the file's own is named after the file
        found.append(tuple(text.replace(f" on {called}", " on it").replace(f'"model": "{called}"', '"model": "it"')
                           for text in (*told, drawn)))
    return found[0], found[1]


def test_what_is_printed_is_typed_back(placealg: Run, tmp_path: Path) -> None:
    path = next(path for path in MINIATURES if name(path) == QUICK)
    reading = reading_of(path)
    assert reading is not None
    one, other = both(placealg, path, reading, tmp_path)
    assert one == other and "hypotheses" in one[1] and "PROVED" in one[2] and "svg" in one[3]


@pytest.mark.slow
@pytest.mark.parametrize("path", MINIATURES, ids=name)
def test_what_is_printed_of_every_format_is_typed_back(path: Path, placealg: Run, tmp_path: Path) -> None:
    if (reading := reading_of(path)) is None:
        return
    if isinstance(reading.model, Mapping) and not model_text(reading):
        assert f"# {OPEN}" in typed(reading)
        return
    one, other = both(placealg, path, reading, tmp_path)
    assert one == other and (any(one) or reading.unread)  # what is given in the place of its model may not fit
