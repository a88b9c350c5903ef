"""Families of models as data: one file per `model_type` says what of a configuration makes which blocks.

A file has `source`; `like`, a family whose entries it takes over; `nullable`, the fields that may be null; `null`, those
that are null where a configuration leaves them out; `floors`, that heads need not divide the hidden size; and tables.
`fields`: field -> what transformers fills in where a configuration leaves it out; no entry is null. `spelled`: another
name of a field. `sizes`: symbol -> expression. `style`: option of Style -> expression, of the layer `i` where it depends
on it. `refused`: expression -> the part that no model here has. `names`: parameters, or what their names begin with
-> the name in a checkpoint. An empty text takes an entry of the other family away. `pattern`: what a family says of its layers in a word of its own -> expression.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from placealg.frozen import FrozenMap
from placealg.model.style import Style

FAMILIES = Path(__file__).parent / "families"

_TABLES = ("fields", "spelled", "sizes", "style", "refused", "names", "pattern")
_LISTS = ("aliases", "refused")


@dataclass(frozen=True, slots=True)
class Family:
    """What is read of a configuration of one `model_type`, and which blocks follow; see the module for each table."""

    name: str
    source: str
    like: str
    nullable: frozenset[str]
    fields: FrozenMap[str, Any]
    spelled: FrozenMap[str, str]
    sizes: FrozenMap[str, str]
    style: FrozenMap[str, Any]
    refused: FrozenMap[str, str]
    names: FrozenMap[str, str]
    pattern: FrozenMap[str, str]
    lines: int
    floors: bool

    def spellings(self, field: str) -> tuple[str, ...]:
        """The names under which a configuration may give a field, its own first."""
        return (field, *(alias for alias, of in self.spelled.items() if of == field))


@cache
def families() -> tuple[str, ...]:
    """Every `model_type` that is read, sorted, without aliases.

    >>> "llama" in families() and "mamba" not in families()
    True
    """
    return tuple(sorted(p.stem for p in FAMILIES.glob("*.toml") if p.stem not in _LISTS))


@cache
def aliases() -> Mapping[str, str]:
    """`model_type` that transformers lacks, or makes of another's blocks -> the family whose blocks it has."""
    return FrozenMap(_read("aliases")["families"])


@cache
def refusals() -> Mapping[str, str]:
    """`model_type` of transformers that is not read -> the part of it that no model here has."""
    return FrozenMap({name: part for part, names in _read("refused").items() for name in names})


@cache
def family(name: str) -> Family:
    """The family of a `model_type`, with what it takes over from the family that it is like."""
    data = _read(name)
    base = family(data["like"]) if "like" in data else None
    tables = {}
    for table in _TABLES:
        taken: dict[str, Any] = dict(getattr(base, table)) if base else {}
        tables[table] = FrozenMap({**taken, **_flat(data.get(table, {}))} if table == "fields" else
                                  {**taken, **data.get(table, {})})
    unknown = set(tables["style"]) - {f.name for f in fields(Style)}
    if unknown or set(data) - {*_TABLES, "source", "like", "nullable", "null", "floors"}:
        raise ValueError(f"families/{name}.toml: {sorted(unknown) or sorted(data)} is not what a family says")
    for table in ("refused", "names"):
        spread = {word: said for key, said in tables[table].items() for word in (key.split() if table == "names" else
                                                                                 (key,))}
        tables[table] = FrozenMap({key: said for key, said in spread.items() if said})
    null = frozenset(data.get("null", ()))
    tables["fields"] = FrozenMap({f: v for f, v in tables["fields"].items() if f not in null})
    nullable = frozenset(data.get("nullable", ())) | null
    lines = sum(1 for line in (FAMILIES / f"{name}.toml").read_text(encoding="utf-8").splitlines() if line.strip())
    return Family(name, data.get("source", ""), data.get("like", ""), nullable, **tables, lines=lines,
                  floors=data.get("floors", False))


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table whose tables are dotted names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return found


def _read(name: str) -> dict[str, Any]:
    with (FAMILIES / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)
