"""The TOML text of a strategy, which reads back equal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from placealg.number_formats import Element, told
from placealg.placement import StatePlacement
from placealg.strategy.options import DEFAULTS
from placealg.strategy.spec import GroupRule, Strategy

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def toml_key(key: str) -> str:
    """A key, quoted where it is not bare."""
    return key if _BARE.match(key) else toml_value(key)


def toml_value(value: Any) -> str:
    """A string, number, list or inline table in TOML.

    >>> toml_value({"dp": "S*", "at": ["first", 2]})
    '{ dp = "S*", at = ["first", 2] }'
    """
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return str(value)


def toml_table(header: str, values: Mapping[str, Any]) -> str:
    """A table: its header, then one key on each line."""
    return "\n".join((header, *(f"{toml_key(k)} = {toml_value(v)}" for k, v in values.items()), ""))


def write_strategy(strategy: Strategy) -> str:
    """The tables of `strategy` as TOML text; reading it back gives an equal strategy."""
    return "\n".join(_tables(strategy))


def _tables(strategy: Strategy) -> Iterator[str]:
    yield f"name = {toml_value(strategy.name)}\n"
    yield toml_table("[mesh]", {a.name: "symbolic" if a.size is None else a.size for a in strategy.mesh})
    yield toml_table("[dims]", strategy.dims)
    if strategy.states:
        yield toml_table("[states]", {state: _modes(p) for state, p in strategy.states.items()})
    for rule in strategy.groups:
        yield toml_table(f"[groups.{toml_key(rule.name)}]", _group(rule))
    for table in sorted(strategy.tables, key=list(DEFAULTS).index):  # the order in which a file is read
        said = strategy.tables[table]
        yield toml_table(f"[{table}]", {
            k: _bytes(v) if table == "types" else v.said() if table == "buffers" else _wires(v) if k == "wire" else v
            for k, v in said.items()})


def _modes(placement: StatePlacement) -> dict[str, str]:
    return {axis: placement.text(axis) for axis in placement.modes}


def _wires(said: Mapping[str, str]) -> dict[str, str]:
    return {axis: told(text) for axis, text in said.items()}


def _bytes(text: str) -> int | str:
    if isinstance(text, Element):
        return text.name
    number = Fraction(text)
    return number.numerator if number.denominator == 1 else text


def _group(rule: GroupRule) -> dict[str, Any]:
    said: dict[str, Any] = {"match": rule.match, **{state: _modes(p) for state, p in rule.states.items()}}
    if rule.optimizer:
        said["optimizer"] = {"name": rule.optimizer, **said["optimizer"]} if "optimizer" in said else rule.optimizer
    if rule.types:
        said["types"] = {symbol: _bytes(text) for symbol, text in rule.types.items()}
    for key, value in (("lifetime", rule.lifetime), ("wire", _wires(rule.wire)), ("frozen", rule.frozen)):
        if value:
            said[key] = value
    if rule.matrix is not None:
        said["matrix"] = list(rule.matrix)
    return said
