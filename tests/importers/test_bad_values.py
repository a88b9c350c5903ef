"""Every value of every small configuration, made into what it cannot be: it is read, or refused in one line."""

from __future__ import annotations

import json
import math
import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
import yaml
from conftest import ROOT

from placealg.errors import InputError
from placealg.importers.read import reading_of
from placealg.importers.reading import Options
from placealg.importers.tables import formats, table

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


def wrong_of(text: str, name: str, form: str = "") -> str:
    """What escapes from reading a text; "" where it is read, or refused in one line."""
    try:
        reading_of(text, name, Options(format=form))
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


KINDS: tuple[Any, ...] = (True, False, 0, 1, -1, 1.5, "", "x", [], [1], {}, {"a": 1}, None, 10**400, math.nan,
                          [[1, [2]], {"a": [3]}], "two\nlines")
"""A value of each kind that a file can hold."""

FRONT_ENDS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "bridge": ("megatron_bridge", "model", ("model", "train", "ddp", "optimizer", "mixed_precision", "peft", "dist")),
    "flagscale": ("flagscale", "", ("experiment", "experiment.task", "experiment.task.type", "experiment.runner",
                                    "experiment.runner.nnodes", "defaults", "train", "system", "model", "data")),
    "train": ("flagscale", "system", ("system", "model", "data", "model.multiple_of", "model.hidden_size")),
    "primus": ("primus", "modules.pre_trainer.overrides", (
        "modules", "modules.pre_trainer", "modules.pre_trainer.framework", "modules.pre_trainer.config",
        "modules.pre_trainer.model", "modules.pre_trainer.overrides")),
}
"""Folder of small configurations of a front end of Megatron-LM -> format, where its arguments stand, its own keys."""

TABLES = [(p, p.parent.name) for p in FILES if p.suffix in (".yaml", ".json", ".toml") and "configs" not in p.parts
          and p.parent.name in (*formats(), *FRONT_ENDS)]
"""The small configurations that are tables of keys, each with its format or its front end."""


def keys_of(name: str) -> tuple[str, ...]:
    """Every key of a format's table, whether a small configuration holds it or not, and every section of them.

    Of a front end, its own keys, and Megatron-LM's arguments where it has them.
    """
    if name in FRONT_ENDS:
        _, place, own = FRONT_ENDS[name]
        return (*own, *(f"{place}.{key.replace('-', '_')}" for key in table("megatron").keys if place))
    found = dict.fromkeys(key[:at] for key in table(name).keys for at in (
        *(k for k, sign in enumerate(key) if sign == "."), len(key)))
    return tuple(found)


def holding(data: Any, key: str, value: Any) -> Any:
    """The tables with a value under a dotted key; what is no table on the way becomes one."""
    first, _, rest = key.partition(".")
    inner = data if isinstance(data, dict) else {}
    return {**inner, first: holding(inner.get(first), rest, value) if rest else value}


def toml_of(value: Any) -> str:
    """A value as TOML has it, in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)} = {toml_of(v)}' for k, v in value.items() if v is not None)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_of, value))}]"
    return json.dumps(value).lower() if isinstance(value, float) else json.dumps(value)


def written(data: Mapping[str, Any], suffix: str) -> str:
    """The text of tables in the syntax of a file."""
    if suffix == ".json":
        return json.dumps(data)
    if suffix == ".yaml":
        return str(yaml.safe_dump(data))
    flat = "".join(f"{json.dumps(k)} = {toml_of(v)}\n" for k, v in data.items() if not isinstance(v, (dict, NoneType)))
    return flat + "".join(f"[{k}]\n" + "".join(f"{json.dumps(i)} = {toml_of(w)}\n" for i, w in v.items()
                                               if w is not None)
                          for k, v in data.items() if isinstance(v, dict))


@cache
def loaded(path: Path) -> Any:
    """The tables of a small configuration, by other readers than the product's."""
    text = path.read_text().replace("!include", "")
    return tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)


def wrong_with(path: Path, name: str, key: str, value: Any) -> str:
    """What escapes where a key of the format holds a value; it is read as a file of the format."""
    text = written(holding(loaded(path), f"MODEL_ARGS.--{key}" if name == "megatron" else key, value), path.suffix)
    form = FRONT_ENDS[name][0] if name in FRONT_ENDS else name
    return wrong_of(text, str(path)) or wrong_of(text, str(path), form)


def test_a_key_of_a_format_with_a_value_of_any_kind_is_read_or_refused() -> None:
    draw = random.Random(7)
    drawn = [(p, name, draw.choice(keys_of(name)), draw.choice(KINDS)) for p, name in draw.choices(TABLES, k=40)]
    small = ROOT / "tests" / "importers" / "miniatures"
    of_fronts = [(p, name) for p, name in TABLES if name in FRONT_ENDS]
    drawn += [(p, name, draw.choice(keys_of(name)), draw.choice(KINDS)) for p, name in draw.choices(of_fronts, k=20)]
    drawn += [(small / "torchtitan" / "zbv.toml", "torchtitan", "training", True),
              (small / "torchtitan" / "of_2024.toml", "torchtitan", "training", True),
              (small / "flagscale" / "train" / "small.yaml", "train", "model.hidden_size", 10**400),
              (small / "axolotl" / "qlora.yaml", "axolotl", "lora_modules_to_save", True),
              (small / "llamafactory" / "lora.yaml", "llamafactory", "additional_target", 1),
              (small / "nemo" / "gpt.yaml", "nemo", "model", 1), (small / "nemo" / "gpt.yaml", "nemo", "model", ""),
              (small / "nemo" / "gpt.yaml", "nemo", "trainer.gradient_clip_val", 10**400),
              (small / "axolotl" / "qlora.yaml", "axolotl", "base_model", 10**400)]
    assert [(p.name, name, key, value, wrong) for p, name, key, value in drawn
            if (wrong := wrong_with(p, name, key, value))] == []


@pytest.mark.slow
@pytest.mark.parametrize("path, name", [pytest.param(p, n, id=f"{n}/{p.name}") for p, n in TABLES])
def test_every_key_of_a_format_with_a_value_of_every_kind_is_read_or_refused(path: Path, name: str) -> None:
    assert [(key, value, wrong) for key in keys_of(name) for value in KINDS
            if (wrong := wrong_with(path, name, key, value))] == []


@pytest.mark.parametrize("first", ["full_shard", "shard_grad_op", "hybrid_shard"])
def test_words_of_fsdp_may_be_a_list(first: str) -> None:
    text = "stage: sft\nfinetuning_type: full\nmodel_name_or_path: x\nbf16: true\nfsdp: "
    one, other = (reading_of(text + said, "a.yaml", Options()) for said in (
        f"{first} auto_wrap\n", f"[{first}, auto_wrap]\n"))
    assert one.strategy == other.strategy


def test_a_kernel_of_experts_places_nothing() -> None:
    path = ROOT / "tests" / "importers" / "miniatures" / "axolotl" / "fsdp_cp.yaml"
    text = path.read_text()
    reading = reading_of(f"{text}\nuse_sonicmoe: true\n", path.name, Options())
    assert reading.strategy == reading_of(text, path.name, Options()).strategy
    assert any(item.key == "use_sonicmoe" for item in reading.ignored)
