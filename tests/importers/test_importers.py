"""What is read from miniatures of every format: golden files, and laws over all their keys."""

from __future__ import annotations

import copy
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placealg.errors import InputError
from placealg.importers.detect import parsed
from placealg.importers.document import Document, Key
from placealg.importers.read import read, reader_of
from placealg.importers.reading import LISTS, Options, Reading
from placealg.importers.tables import formats
from placealg.importers.write import model_text, written
from placealg.placement import Mode
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import overlay

HERE = Path(__file__).parent
MINIATURES = sorted(p for p in (HERE / "miniatures").rglob("*") if p.is_file() and p.suffix != ".golden"
                    and "configs" not in p.parts)
"""All but the files that a Primus experiment is made of."""
BESIDE = {"with_file": ("zero2.json",)}
"""Miniature -> the files that it names, which lie beside it."""


def options(path: Path) -> Options:
    return Options(files=tuple(str(path.parent / name) for name in BESIDE.get(path.stem, ())))


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", MINIATURES, ids=name)
def test_a_miniature_reads_as_its_golden_file(path: Path) -> None:
    """PLACEALG_WRITE_GOLDEN=1 writes them: read what changed."""
    golden = path.with_suffix(path.suffix + ".golden")
    try:
        text = str(read(path, files=options(path).files)) + "\n"
    except InputError as error:
        text = f"{error}\n".replace(f"{path.parent}/", "")
    if os.environ.get("PLACEALG_WRITE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def tried(document: Document, form: str, said: Options) -> Reading | str:
    """The reading of a document, or why it is refused."""
    try:
        return reader_of(form)(document, said)
    except InputError as error:
        return error.what


def fingerprint(found: Reading | str) -> Any:
    """What two readings must share to be one: all but the lines."""
    if isinstance(found, str):
        return found
    return (found.strategy, found.model, found.sizes,
            [[(i.key, i.value, i.text, i.line > 0) for i in getattr(found, kind)] for kind in LISTS])


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 2 + 1
    if isinstance(value, str):
        return value + "x"
    return [*value, "x"] if isinstance(value, list) else {"x": 1} if isinstance(value, dict) else 3


def mutants(document: Document) -> Iterator[tuple[str, Key, Document]]:
    """The document with each key dropped, changed, and misspelt."""
    for path, value in document.leaves():
        for what in ("dropped", "changed", "misspelt"):
            data = copy.deepcopy(document.data)
            inner: Any = data
            for part in path[:-1]:
                inner = inner[part]
            last: Any = path[-1]
            if isinstance(last, int) and what == "misspelt":
                continue
            if what == "changed":
                inner[last] = changed(value)
            else:
                del inner[last]
                if what == "misspelt":
                    inner[f"{last[:-1]}q{last[-1]}"] = value
            lines = {p: n for p, n in document.lines.items() if what == "changed" or p[:len(path)] != path}
            yield what, path, replace(document, data=data, lines=lines)


DOCUMENTS = [path for path in MINIATURES if path.suffix in (".json", ".yaml", ".yml", ".toml")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_no_key_is_passed_over(path: Path) -> None:
    """Dropping, changing or misspelling any one key changes the reading, or one of its lists, or is refused."""
    form, document = parsed(path.read_text(encoding="utf-8"), str(path))
    whole = fingerprint(tried(document, form, options(path)))
    if isinstance(whole, str):
        return
    for what, key, mutant in mutants(document):
        assert fingerprint(tried(mutant, form, options(path))) != whole, f"{what}: {key}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_what_is_ignored_places_nothing(path: Path) -> None:
    """A key that is ignored may have any value: the strategy, the model and the sizes stay."""
    form, document = parsed(path.read_text(encoding="utf-8"), str(path))
    whole = tried(document, form, options(path))
    if isinstance(whole, str):
        return
    ignored = {(i.file, i.line, i.key) for i in whole.ignored}
    for what, key, mutant in mutants(document):
        line = document.line(key)
        same = [i for i in ignored if i[1] == line and i[2].rpartition(".")[2].partition("[")[0] == str(key[-1])]
        found = tried(mutant, form, options(path))
        if what == "dropped" and same and not isinstance(found, str) and not _active(whole, key):
            assert (found.strategy, found.sizes) == (whole.strategy, whole.sizes), key


PRIMUS = HERE / "miniatures" / "primus"


@pytest.mark.parametrize("path", sorted(PRIMUS.rglob("configs/**/*.yaml")), ids=name)
def test_no_key_of_a_file_beside_is_passed_over(path: Path, tmp_path: Path) -> None:
    """The files that a Primus experiment is made of: the same law, but for keys that a later file sets again."""
    shutil.copytree(PRIMUS, tmp_path / "primus")
    experiment, mine = tmp_path / "primus/experiment.yaml", tmp_path / "primus" / path.relative_to(PRIMUS)
    whole = fingerprint(read(experiment))
    above = {"base": ("module", "model", "experiment"), "module": ("model", "experiment"), "model": ("experiment",)}
    later = [f.read_text(encoding="utf-8") for f in PRIMUS.rglob("*.yaml") if f.stem in above[path.stem]]
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for at, line in enumerate(lines):
        key, mark, value = line.partition(": ")
        if not mark or any(re.search(rf"^ *{key}: ", text, re.MULTILINE) for text in later):
            continue
        said = {"true": "false", "false": "true"}.get(value.strip(), f"{value.strip()}1")
        for other in (f"{key}: {said}\n", f"{key[:-1]}q{key[-1]}: {value}"):
            mine.write_text("".join((*lines[:at], other, *lines[at + 1:])), encoding="utf-8")
            try:
                found: Any = fingerprint(read(experiment))
            except InputError as error:
                found = error.what
            assert found != whole, f"{line.strip()} -> {other.strip()}"


def _active(reading: Reading, key: Key) -> bool:
    """Whether a key is in another list, too."""
    word = str(key[-1])
    return any(i.key.rpartition(".")[2] == word for kind in ("read", "unsaid", "approximated")
               for i in getattr(reading, kind))


@pytest.mark.parametrize("path", MINIATURES, ids=name)
def test_what_is_written_reads_back_equal(path: Path) -> None:
    try:
        reading = read(path, files=options(path).files)
    except InputError:
        return
    file = parse_strategy_file(written(reading, "model.config.json"), "s.toml")
    assert file.strategy == reading.strategy
    assert file.strategy.name == reading.strategy.name
    assert len(file.left_out) == len(reading.approximated)
    assert bool(model_text(reading)) == (file.model == "model.config.json")


def printed(reading: Reading) -> str:
    return " ".join(i.text for kind in ("read", "unsaid", "approximated") for i in getattr(reading, kind))


@pytest.mark.parametrize("path", MINIATURES, ids=name)
def test_the_expression_that_is_printed_is_the_strategy(path: Path) -> None:
    """Typed back with the tables that the page names, it shards the same states over the same axes."""
    try:
        reading = read(path, files=options(path).files)
    except InputError:
        return
    typed = parse_strategy(reading.expression)
    for state in ("parameters", "optimizer", "gradients"):
        if f"[states] {state}" not in printed(reading):
            modes = {a: m for a, m in typed.state(state).modes.items() if m is not Mode.R}
            own = {a: m for a, m in reading.strategy.state(state).modes.items() if m is not Mode.R}
            assert modes == own, state
    sizes = {a.name: a.size for a in reading.strategy.mesh if a.size}
    assert set(overlay(typed, {"mesh": sizes}).mesh.axes) == set(reading.strategy.mesh.axes)


def test_every_format_has_a_miniature_that_is_read() -> None:
    """So that what is said of all miniatures is said of all formats."""
    found = set()
    for path in MINIATURES:
        with suppress(InputError):
            found.add(read(path, files=options(path).files).format)
    assert found == set(formats())


AXOLOTL = "base_model: {name}\nfsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\nmicro_batch_size: 1\n" \
          "datasets:\n  - path: mine\n"


def test_a_model_by_the_configuration_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (tmp_path / "run.yaml").write_text(AXOLOTL.format(name="mine"))
    (folder / "config.json").write_text('{"model_type": "qwen3_moe"}')
    reading = read(str(tmp_path / "run.yaml"))
    assert reading.model == str(folder / "config.json")
    assert any("of the family qwen3_moe" in item.text for item in reading.read)
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(InputError, match="it has state-space layers"):
        read(str(tmp_path / "run.yaml"))
    assert read(str(tmp_path / "run.yaml"), model="llama-3-8b").model == "llama-3-8b"
    (folder / "config.json").unlink()
    assert any("its config.json is not here" in item.text for item in read(str(tmp_path / "run.yaml")).unsaid)
