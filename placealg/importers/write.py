"""The TOML of a reading: a strategy file that says of every line where it is from, and reads back equal."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.importers.reading import Reading, ReadingItem
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy, overlay
from placealg.strategy.write import toml_key, toml_table, toml_value, write_strategy

OPEN = "the model of the file has an open vocabulary, which no config.json says: --model gives one"
"""What stands in the place of the model where it lacks a field."""

_WIDTH = 118
_TABLE = re.compile(r"^\[(\w+)")


def written(reading: Reading, model_file: str = "") -> str:
    """The strategy file of a reading; `model_file` is the config.json beside it, if the reading has its own model."""
    tables = write_strategy(reading.strategy).partition("\n")[2]
    head = [*_comment(reading.headline), *_head(reading, model_file)]
    placed = {line[1:-1].partition(".")[0] for line in tables.splitlines() if _TABLE.match(line)}
    by_table: dict[str, list[ReadingItem]] = {}
    for item in reading.read:
        found = re.search(r"\[(\w+)\]", item.text)
        by_table.setdefault(found[1] if found and found[1] in placed else "", []).append(item)
    head += [line for item in by_table.pop("", []) for line in _comment(_told(item))]
    for title in ("unsaid", "approximated"):
        head += [line for item in getattr(reading, title) for line in _comment(f"{title}: {_told(item)}")]
    if reading.ignored:
        keys = ", ".join(dict.fromkeys(item.key for item in reading.ignored))
        head += _comment(f"ignored: {keys}")
    body = []
    for line in tables.splitlines():
        table = _TABLE.match(line)
        if table and table[1] in by_table:
            body += [comment for item in by_table.pop(table[1]) for comment in _comment(_told(item))]
        body.append(line)
    return "\n".join([*head, *body]) + "\n"


def typed(reading: Reading, model_file: str = "") -> str:
    """The strategy file of a reading as a person would type it: the printed expression, and the keys beyond it.

    A key without which the strategy is the same is left out.
    """
    kept = {(table, key): value for table, said in reading.tables.items() for key, value in said.items()}
    sizes = {a.name: a.size for a in reading.strategy.mesh if a.size is not None}
    for place in tuple(kept):
        fewer = {k: v for k, v in kept.items() if k != place}
        with suppress(InputError):
            if _strategy(reading, sizes, fewer) == reading.strategy:
                kept = fewer
    tables: dict[str, dict[str, Any]] = {"mesh": sizes} if sizes else {}
    for (table, key), value in kept.items():
        tables.setdefault(f"groups.{toml_key(key)}" if table == "groups" else table, {}).update(
            value if table == "groups" else {key: value})
    head = [*_head(reading, model_file), f"base = {toml_value(reading.expression)}"]
    return "\n".join([*head, "", *(toml_table(f"[{table}]", said) for table, said in tables.items())]).rstrip() + "\n"


def _strategy(reading: Reading, sizes: Mapping[str, int], keys: Mapping[tuple[str, str], Any]) -> Strategy:
    tables: dict[str, dict[str, Any]] = {"mesh": dict(sizes)}
    for (table, key), value in keys.items():
        tables.setdefault(table, {})[key] = value
    return replace(overlay(parse_strategy(reading.expression), tables), name=reading.strategy.name)


def _head(reading: Reading, model_file: str) -> list[str]:
    """What a reading is called, its model, what it leaves out, its sizes, and how the model is run."""
    own = model_file if model_text(reading) else ""
    model = own if isinstance(reading.model, Mapping) else reading.model or ("" if reading.unread else reading.stand_in)
    runs = ", ".join(f"{key} = {toml_value(value)}" for key, value in reading.runs.items())
    sizes = " ".join(f"{s}={n}" for s, n in reading.sizes.items())
    return [f"name = {toml_value(reading.strategy.name)}", f"source = {toml_value(Path(reading.file).name)}",
            *([f"model = {toml_value(model)}"] if model else []),
            *(_comment(OPEN) if isinstance(reading.model, Mapping) and not model else ()),
            *(["left_out = [", *(f"  {toml_value(_printable(text))}," for text in reading.not_covered), "]"]
              if reading.not_covered else []),
            *(_comment(f"sizes: --set {sizes}") if sizes else ()), *([f"runs = {{ {runs} }}"] if runs else [])]


def model_text(reading: Reading) -> str:
    """The config.json of a reading that has the fields of its own model; "" where it lacks one of them."""
    fields = reading.model if isinstance(reading.model, Mapping) else {}
    return json.dumps(dict(fields), indent=1) + "\n" if fields.get("vocab_size") else ""


def _told(item: ReadingItem) -> str:
    said = f"{item.key} = {item.value}" if item.value else item.key
    return f"{item.place} {said}: {item.text}".strip()


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _comment(text: str) -> Iterator[str]:
    for line in textwrap.wrap(_printable(text), _WIDTH, subsequent_indent="  ", break_long_words=False,
                              break_on_hyphens=False):
        yield f"# {line}"
