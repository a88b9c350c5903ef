"""Families of models as data: one file per `model_type` says what of a configuration makes which blocks.

A file has `source`; `like`, a family whose entries it takes over, and takes away by an empty text; `nullable`, the
fields that may be null; `null`, those that are null where a configuration leaves them out; `loose`, those whose type is
not that of what is filled in; `floors`, that heads need not divide the hidden size; `head`, that the model has its own
head inside a larger one, too; and tables. `fields`: field -> what transformers fills in where a configuration leaves it
out; "outside.NAME" is the field of the file around the table that is read. `spelled`: another name of a field. `sizes`:
symbol -> expression. `style`: option of Style -> expression, of the layer `i` where it depends on it. `refused`:
expression -> the part that no model here has. `names`: parameters, or what their names begin with -> the name in a
checkpoint; several that are one matrix there stand in one key, and "self_attn.{q,k}_proj" is a name for each.
`pattern`: what a family says of its layers in a word of its own -> expression; `kind` is one of KINDS. `predicting`:
option of Style -> expression, where the layers that predict tokens after the next differ from the last one. `kinds` are
those of a family that has other ones. A table may be written as a list of tables, which it joins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from placealg.frozen import FrozenMap
from placealg.models.rule import LAYER, names
from placealg.models.style import Style

FAMILIES = Path(__file__).parent / "families"

_TABLES = ("fields", "spelled", "sizes", "style", "refused", "names", "pattern", "predicting")
_CHOICE = re.compile(r"\{([^{}]*,[^{}]*)\}")
_LISTS = ("aliases", "refused")

KINDS = ("full_attention", "sliding_attention", "chunked_attention", "global", "local")
"""The kinds of attention that a layer may have, in the words of configurations."""


@dataclass(frozen=True, slots=True)
class Family:
    """What is read of a configuration of one `model_type`, and which blocks follow; see the module for each table.

    `read` are the fields that its expressions read, in order; `lines` is how long its file is.
    """

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
    predicting: FrozenMap[str, Any]
    lines: int
    floors: bool
    head: bool = False
    kinds: tuple[str, ...] = ()
    loose: frozenset[str] = frozenset()
    read: tuple[str, ...] = ()

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
    """`model_type` that has the blocks of another -> that family."""
    found = _read("aliases")
    return FrozenMap({**found["same"], **found["lacking"]})


@cache
def lacking() -> frozenset[str]:
    """The aliases of which transformers has no configuration: what it would fill in is not known."""
    return frozenset(_read("aliases")["lacking"])


@cache
def flat() -> Mapping[str, str]:
    """`model_type` of a larger model -> that of its language model, whose fields a file may give at the top."""
    return FrozenMap(_read("aliases")["flat"])


@cache
def inside() -> Mapping[str, str]:
    """`model_type` of a larger model -> that of its text_config, where it names none.

    >>> inside()["llava"], inside()["qwen3_5"]
    ('llama', 'qwen3_5_text')
    """
    return FrozenMap({outer: name for name, larger in _read("aliases")["inside"].items() for outer in larger})


@cache
def refusals() -> Mapping[str, str]:
    """`model_type` of transformers that is not read -> the part of it that no model here has."""
    return FrozenMap({name: part for part, names in _read("refused").items() for name in names})


@cache
def family(name: str) -> Family:
    """The family of a `model_type`, with what it takes over from the family that it is like."""
    data = _read(name)
    base = family(data["like"]) if "like" in data else None
    tables: dict[str, Any] = {}
    for table in _TABLES:
        taken: dict[str, Any] = dict(getattr(base, table)) if base else {}
        tables[table] = FrozenMap({**taken, **_READ[table](_joined(data.get(table, {})))})
    unknown = {*tables["style"], *tables["predicting"]} - {f.name for f in fields(Style)}
    if unknown or set(data) - {*_TABLES, "source", "like", "nullable", "null", "loose", "floors", "head", "kinds"}:
        raise ValueError(f"families/{name}.toml: {sorted(unknown) or sorted(data)} is not what a family says")
    for table in ("refused", "sizes", "spelled"):
        tables[table] = FrozenMap({key: said for key, said in tables[table].items() if said})
    null = frozenset(data.get("null", ()))
    tables["fields"] = FrozenMap({f: v for f, v in tables["fields"].items() if f not in null})
    nullable = frozenset(data.get("nullable", ())) | null
    lines = sum(1 for line in (FAMILIES / f"{name}.toml").read_text(encoding="utf-8").splitlines() if line.strip())
    found = Family(name, data.get("source", ""), data.get("like", ""), nullable, **tables, lines=lines,
                   floors=data.get("floors", False), head=data.get("head", False),
                   kinds=tuple(data.get("kinds", base.kinds if base else ())),
                   loose=frozenset(data.get("loose", ())) | (base.loose if base else frozenset()))
    return replace(found, read=_fields_read(found))


def _fields_read(of: Family) -> tuple[str, ...]:
    options = (*of.style.values(), *of.predicting.values())
    told = (*of.sizes.values(), *of.pattern.values(), *(v for v in options if isinstance(v, str)),
            *of.refused, *(v.removeprefix("=") for v in of.names.values() if v.startswith("=")))
    found = dict.fromkeys(name for text in told for name in names(text))
    return tuple(name for name in found if name not in of.pattern and name != LAYER)


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table whose tables are dotted names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return found


def _joined(table: Mapping[str, Any] | list[Mapping[str, Any]]) -> dict[str, Any]:
    """A table, which a list gives part by part."""
    parts = table if isinstance(table, list) else [table]
    return {key: value for part in parts for key, value in part.items()}


def _spread(table: Mapping[str, str]) -> dict[str, str]:
    """A table with one entry for each word of its keys, in the order of the choices that its values have.

    >>> _spread({"mlp.up mlp.down": "mlp.{up,down}_proj", "attn.q attn.k": "attn.qkv"})["mlp.down"]
    'mlp.down_proj'
    """
    found = {}
    for key, said in table.items():
        choice = _CHOICE.search(said)
        words = choice[1].split(",") if choice else [""] * len(key.split())
        for name, word in zip(key.split(), words, strict=True):
            found[name] = said.replace(choice[0], word) if choice else said
    return found


_READ: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    **dict.fromkeys(_TABLES, dict), "fields": _flat, "names": _spread,
}
"""Table -> how its entries are read."""


def _read(name: str) -> dict[str, Any]:
    with (FAMILIES / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)
