"""Every value of every small configuration, made into what it cannot be: it is read, or refused in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from placealg.errors import InputError
from placealg.importers.read import reading_of
from placealg.importers.reading import Options

NASTY = ("2dp=2", "\u00b2", "-1", "0", "1e999", "[]", "{}", "'x'", "9" * 5000, "null", "(E|t)*99999999", "true", "nan")
VALUE = re.compile(r"""(?<=[:=\[,])([ \t]*)("[^"\n]*"|[^\s,{}\[\]#"']+)(?=[ \t]*(?:[,}\]#]|$))""", re.MULTILINE)
"""What stands behind a colon or an equals sign, or in a list, up to the end of the line or of the item."""

FILES = sorted(p for p in (ROOT / "tests" / "importers" / "miniatures").rglob("*")
               if p.is_file() and p.suffix != ".golden" and p.stat().st_size < 8000)


def spoiled(text: str) -> Iterator[str]:
    """The text with one value made into something else, for each value and each that it may become."""
    for found in VALUE.finditer(text):
        for value in NASTY:
            yield f"{text[:found.start(2)]}{value}{text[found.end(2):]}"


def wrong_of(text: str, name: str) -> str:
    """What escapes from reading a text; "" where it is read, or refused in one line."""
    try:
        reading_of(text, name, Options())
    except InputError as error:
        return f"of {len(str(error))} letters" if "\n" in str(error) else ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def test_a_few_values_of_small_configurations_are_read_or_refused() -> None:
    drawn = [(p, text) for k, p in enumerate(FILES[::4]) for text in list(spoiled(p.read_text()))[k::61]][::4]
    assert len(drawn) > 5
    assert {p.name: wrong for p, text in drawn if (wrong := wrong_of(text, p.name))} == {}


@pytest.mark.parametrize("name, key, value, says", [
    ("axolotl/fsdp_cp.yaml", "fsdp_version: ", "2dp=2", "fsdp_version is '2dp=2': expected a whole number"),
    ("llamafactory/lora.yaml", "lora_target: ", "-1", "lora_target is -1: expected a list of modules"),
    ("bridge/run_config.yaml", "cp_comm_type: ", "[]", "cp-comm-type names no way"),
])
def test_a_value_of_another_kind_is_one_line(name: str, key: str, value: str, says: str) -> None:
    text = (ROOT / "tests" / "importers" / "miniatures" / name).read_text()
    assert key in text
    with pytest.raises(InputError, match=re.escape(says)):
        reading_of(re.sub(f"{key}.*", f"{key}{value}", text), name, Options())


def test_what_escapes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("invalid literal")
    monkeypatch.setattr("placealg.importers.axolotl._engine", fails)
    path = next(p for p in FILES if p.parent.name == "axolotl")
    assert wrong_of(path.read_text(), path.name) == "ValueError: invalid literal"


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted({p.parent.name for p in FILES}))
def test_every_value_of_small_configurations_is_read_or_refused(folder: str) -> None:
    found: dict[str, str] = {}
    for path in (p for p in FILES if p.parent.name == folder):
        for text in spoiled(path.read_text()):
            if wrong := wrong_of(text, path.name):
                found[f"{path.name}: {wrong}"] = text
    assert list(found) == []


def test_the_small_configurations_are_there() -> None:
    assert len(FILES) > 40 and all(isinstance(p, Path) for p in FILES)
