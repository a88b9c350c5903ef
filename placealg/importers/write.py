"""The TOML of a reading: a strategy file that says of every line where it is from, and reads back equal."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from placealg.importers.reading import Reading, ReadingItem
from placealg.strategy.write import toml_value, write_strategy

_WIDTH = 118
_TABLE = re.compile(r"^\[(\w+)")


def written(reading: Reading, model_file: str = "") -> str:
    """The strategy file of a reading; `model_file` is the config.json beside it, if the reading has its own model."""
    text = write_strategy(reading.strategy)
    name, _, tables = text.partition("\n")
    own = model_file if model_text(reading) else ""
    model = own if isinstance(reading.model, Mapping) else reading.model or ("" if reading.unread else reading.stand_in)
    head = [*_comment(reading.headline), name, f"source = {toml_value(Path(reading.file).name)}"]
    head += [f"model = {toml_value(model)}"] if model else []
    if reading.not_covered:
        head += ["left_out = [", *(f"  {toml_value(_printable(text))}," for text in reading.not_covered), "]"]
    if reading.sizes:
        head += _comment("sizes: --set " + " ".join(f"{s}={n}" for s, n in reading.sizes.items()))
    if reading.runs:
        head += ["runs = { " + ", ".join(f"{key} = {toml_value(value)}" for key, value in reading.runs.items()) + " }"]
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
