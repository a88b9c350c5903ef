"""A JSON Schema of strategy files, made from the tables that read them: editors complete and check by it.

`python -m placealg.strategy.json_schema` prints it. What a schema cannot say is left to the reader of files: that an
axis is one of the mesh, that tables agree with each other, that a pattern matches an event.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from placealg.placement import MODES
from placealg.strategy.file import COUNTS, EXPECT, RUNS, TOP
from placealg.strategy.options import (
    GATHERS,
    LIFETIMES,
    OPTIMIZERS,
    RANK,
    REDUCTIONS,
    REGION,
    SCHEMA,
    TABLES,
    TYPES,
    Key,
    accepted,
)
from placealg.strategy.precision import PRESET, precisions

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "pattern": r"\S"}
_NAME = r"^[A-Za-z_]\w*$"
_MODE: Schema = {"enum": [*(row.mode for row in MODES), *(f"{row.mode}+O" for row in MODES if row.mode != "O")]}
_STRINGS: Schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
_FORMS: Mapping[str, str] = {"name": "what the strategy is called", "source": "where it comes from",
                             "model": "a shipped name, or the path of a config.json",
                             "runs": "how the model is run: attention as one op, dropout, the cross entropy",
                             "left_out": "what the run has and the strategy lacks, which a verdict then does not cover",
                             "base": "the strategy that the tables change, an expression over the catalogue",
                             "expect": "the verdict that it must get", "masked": "where what is refuted does not show",
                             "edit": "changes of the derived program", "loops": "the loops of a whole program",
                             "event": "the events of a whole program"}


def json_schema() -> Schema:
    """The schema of a whole file, as plain data.

    >>> json_schema()["properties"]["schedule"]["properties"]["sharing"]["enum"]
    ['shared', 'per_use']
    """
    properties = {name: {**_top(key), "description": _FORMS[name]} for name, key in TOP.items()}
    for table, rows in SCHEMA.items():
        properties[table] = {**_table(table, rows), "description": TABLES[table]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "a placealg strategy",
            "type": "object", "properties": properties, "additionalProperties": False,
            "anyOf": [{"required": ["base"]}, {"required": ["mesh", "dims"]}]}


def _table(table: str, rows: Mapping[str, Key]) -> Schema:
    keys = {key: _value(row) for key, row in rows.items() if key != "*"}
    made: Schema = {"type": "object", "properties": keys, "additionalProperties": False}
    if "*" in rows:
        made = _by_name(_value(rows["*"]))
    return _by_name(made) if table == "groups" else made


def _by_name(value: Schema, names: str = _NAME) -> Schema:
    """A table whose keys are names of the user's."""
    return {"type": "object", "patternProperties": {names: value}, "additionalProperties": False}


def _value(key: Key) -> Schema:
    """What a key accepts, with the words in which the readers say it."""
    if key.kind == "choice":
        return {"enum": list(key.valid)}
    if key.kind == "choices":
        return {"type": "array", "items": {"enum": list(key.valid)}, "uniqueItems": True}
    return {**_KINDS[key.kind](), "description": accepted(key)}


def _whole(least: int) -> Schema:
    return {"type": "integer", "minimum": least}


def _or_symbol(symbol: str) -> Schema:
    return {"anyOf": [{"const": symbol}, _whole(1)]}


def _bytes() -> Schema:
    return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"\d"}]}


def _types() -> Schema:
    return {"type": "object", "properties": {PRESET: {"enum": list(precisions())},
                                              **{name: _bytes() for name in TYPES}},
            "additionalProperties": False}


def _group_optimizer() -> Schema:
    names: Schema = {"enum": list(OPTIMIZERS)}
    table = {**_by_name(_MODE), "properties": {"name": names}}
    table["patternProperties"] = {r"^(?!name$)[A-Za-z_]\w*$": _MODE}
    return {"anyOf": [names, table]}


_KINDS: Mapping[str, Callable[[], Schema]] = {
    "text": lambda: dict(_TEXT),
    "size": lambda: _or_symbol("symbolic"),
    "dims": lambda: {**_STRINGS, "items": {"type": "string", "pattern": r"^(?!none$)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"}},
    "modes": lambda: _by_name(_MODE),
    "activations": lambda: _by_name(_MODE, rf"^({REGION})?[A-Za-z_]\w*$"),
    "group_optimizer": _group_optimizer,
    "types": _types,
    "bytes": _bytes,
    "microbatches": lambda: _or_symbol("m"),
    "whole": lambda: _whole(0), "count": lambda: _whole(1),
    "share": lambda: {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, dict(_TEXT)]},
    "flag": lambda: {"type": "boolean"},
    "names": lambda: {**_STRINGS, "items": dict(_TEXT)},
    "patterns": lambda: {"anyOf": [dict(_TEXT), {**_STRINGS, "items": dict(_TEXT)}]},
    "rank": lambda: _or_symbol(RANK),
    "chunks": lambda: _or_symbol("v"),
    "layers_chosen": lambda: {"anyOf": [{"type": "object", "additionalProperties": False, "required": [how],
                                         "properties": {how: _whole(1)}} for how in ("first", "every")]},
    "rows": lambda: {**_STRINGS, "items": dict(_TEXT)},
    "layers": lambda: {"type": "array", "items": _whole(0)},
    "lifetimes": lambda: _by_name({"enum": list(LIFETIMES)}),
    "gathers": lambda: _by_name({"enum": list(GATHERS)}),
    "reductions": lambda: _by_name({"enum": list(REDUCTIONS)}),
    "wires": lambda: _by_name(_bytes()),
    "count_axes": lambda: {"anyOf": [{"const": "data"}, dict(_STRINGS)]},
    "streams": lambda: {**_STRINGS, "items": {"type": "string", "pattern": r"^(rank|local)\(\w+\)$"}},
}
"""Kind of value -> its schema; the kinds are those of options.KINDS."""


def _top(key: Key) -> Schema:
    """What a key beside the tables accepts."""
    if key.kind == "text":
        return dict(_TEXT)
    if key.kind == "runs":
        return {"type": "object", "properties": {name: {"type": "boolean"} if row.kind == "flag" else dict(_TEXT)
                                                 for name, row in RUNS.items()}, "additionalProperties": False}
    if key.kind == "texts":
        return {"type": "array", "items": dict(_TEXT), "minItems": 1}
    if key.kind == "expect":
        rows = {name: _expected(row) for name, row in EXPECT.items()}
        return {"anyOf": [rows["verdict"], {"type": "object", "properties": rows, "required": ["verdict"],
                                            "additionalProperties": False}]}
    if key.kind == "masked":
        runs: Schema = {**_by_name(_whole(1), r"^(?!counts$)[A-Za-z_]\w*$"), "properties": {
            "counts": {"enum": list(COUNTS)}}, "minProperties": 1}
        return {"anyOf": [runs, {"type": "array", "items": runs, "minItems": 1}]}
    return {"type": "object"} if key.kind == "table" else {"type": "array", "items": {"type": "object"}, "minItems": 1}


def _expected(row: Key) -> Schema:
    """What a key of `expect` accepts; a class may be written in small letters."""
    if row.kind == "ratio":
        return {"anyOf": [{"type": "integer"}, dict(_TEXT)]}
    if row.kind == "choice" and any(name.isupper() for name in row.valid):
        return {"enum": [*row.valid, *(name.lower() for name in row.valid)]}
    return _value(row) if row.kind == "choice" else dict(_TEXT)


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
