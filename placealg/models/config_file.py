"""A `config.json` with its lines: fields by their spellings, and every fault as one line that says where."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.family import Family, aliases, families, flat, inside, refusals
from placealg.models.family import family as family_of

_LARGEST = 10**12

TIED = "tie_word_embeddings"

OUTSIDE = "outside."
"""What the name of a field begins with that is one of the file around the table that is read."""

OLDER_KINDS: Mapping[str, str] = {"attention": "full_attention", "mamba": "linear_attention"}
"""A layer's kind in older files -> its name in newer ones (transformers 5.23.0, remap_legacy_layer_types)."""


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration's data, with its text so that an error can point at a line.

    `part` is the field whose table is read, "" where it is the whole file; dotted, of a table inside a table. `around`
    is the table that it stands in.
    """

    path: Path
    text: str
    data: Mapping[str, Any]
    part: str = ""
    around: Mapping[str, Any] = FrozenMap()

    @staticmethod
    def read(path: Path, part: str = "") -> Config:
        """The configuration in a file, or in the table under `part` of it."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"cannot be read: {reason}", where=str(path)) from None
        try:
            data = json.loads(text, object_pairs_hook=partial(_once, path, text))
        except json.JSONDecodeError as error:
            raise InputError(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
        except InputError:
            raise
        except (RecursionError, ValueError):
            raise InputError("not a configuration: nested too deeply, or a number too long",
                             where=str(path)) from None
        if not isinstance(data, dict):
            raise InputError(f"not a configuration: the file holds {_kind(data)}, not an object", where=f"{path}:1")
        if not part:
            return Config(path, text, data)
        around, table = _inside(data, part)
        said = data.get("model_type")
        if isinstance(table, dict):
            return Config(path, text, _named(table, part, said), part, around)
        if part == "text_config" and isinstance(said, str) and said in flat():
            return Config(path, text, {**data, "model_type": flat()[said]}, part, data)
        raise InputError(f"no table '{part}' in the configuration", where=str(path), name=part,
                         valid=[k for k, v in data.items() if isinstance(v, dict)])

    def place(self, key: str) -> str:
        """file:line of `key`, or the file alone when the key is absent."""
        table = "" if key.startswith(OUTSIDE) else self.part.rpartition(".")[2]
        inside = re.search(rf'"{re.escape(table)}"\s*:', self.text) if table else None
        start = inside.end() if inside else 0
        found = re.compile(rf'"{re.escape(key.rpartition(".")[2])}"\s*:').search(self.text, start)
        return f"{self.path}:{self.text.count(chr(10), 0, found.start()) + 1}" if found else str(self.path)

    def has(self, name: str) -> bool:
        """Whether the file gives a field, null included; the field of a table is dotted."""
        table, inner = self._table(name)
        return isinstance(table, Mapping) and inner in table

    def value(self, name: str) -> Any:
        """What the file gives for a field."""
        table, inner = self._table(name)
        return table[inner]

    def _table(self, name: str) -> tuple[Any, str]:
        """The table that a field stands in, and what it is called there."""
        outer, _, inner = name.rpartition(".")
        if name.startswith(OUTSIDE):
            return self.around or self.data, inner
        return (self.data.get(outer) if outer else self.data), inner

    def family(self) -> Family:
        """The family that `model_type` names; an InputError says which part of one that is not read is missing."""
        said = self.data.get("model_type")
        if said is None:
            what = "is null" if "model_type" in self.data else "is missing"
            raise InputError(f"missing field 'model_type', which says how the others are read: it {what}",
                             where=self.place("model_type"))
        name = aliases().get(said, said) if isinstance(said, str) else said
        if isinstance(name, str) and name in families():
            return family_of(name)
        where = self.place("model_type")
        if name in (refusals() if isinstance(name, str) else ()):
            part = refusals()[name]
            inner = next((k for k in ("text_config", "llm_config", "thinker_config.text_config") if self._reads(k)),
                         "text_config" if name in flat() and "text_config" not in self.data else "")
            hint = f"; its language model alone is read as {self.path}#{inner}" if inner else ""
            raise InputError(f"model_type {shown(name)} is not read: it has {part}{hint}", where=where)
        if "auto_map" in self.data:
            raise InputError(f"model_type {shown(name)} is not read: its layers are code of its own (auto_map), no "
                             "family of this tool", where=where)
        near = str(name) if _misspelled(str(name)) else ""
        raise InputError(f"model_type {shown(name)} is not read, and no model of transformers has it",
                         where=where, name=near, valid=families() if near else ())

    def _reads(self, table: str) -> bool:
        """Whether a table inside is a configuration of a family that is read."""
        found = _inside(self.data, table)[1]
        name = _named(found, table, self.data.get("model_type")).get("model_type") if isinstance(found, dict) else None
        return isinstance(name, str) and aliases().get(name, name) in families()

    def key(self, family: Family, field: str) -> str | None:
        """The spelling under which the file gives `field`; two that disagree are an InputError.

        Whether the head is the embedding is said of a larger model by its own file, where the head is the larger one's.
        """
        if field == TIED and TIED in self.around and not family.head and OUTSIDE + TIED not in family.read:
            return OUTSIDE + TIED
        given = [n for n in family.spellings(field) if self.has(n)]
        if len({json.dumps(self.value(n)) for n in given}) > 1:
            raise InputError(f"'{given[0]}' and '{given[1]}' are one field, and disagree: "
                             f"{shown(self.value(given[0]))} and {shown(self.value(given[1]))}",
                             where=self.place(given[1]))
        return given[0] if given else None

    def fields(self, family: Family, fills: bool = True) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Field -> its value, and the fields that the file leaves out and the family fills in.

        Where `fills` is not, nothing is known of what a field is that is left out, but for null and false.
        """
        if self.data.get("per_layer_config"):
            raise InputError("per_layer_config gives layers sizes of their own, which is not read",
                             where=self.place("per_layer_config"))
        found: dict[str, Any] = {}
        filled = []
        for field in family.read:
            default = family.fields.get(field)
            key = self.key(family, field)
            if key is None:
                self._misspelt(family, field)
                found[field] = default if fills or not isinstance(default, (int, str)) or default is False else None
                if default is not None and fills:
                    filled.append(field)
                continue
            found[field] = self._checked(family, field, key, default)
        return found, tuple(filled)

    def _checked(self, family: Family, field: str, key: str, default: Any) -> Any:
        value, said = self.value(key), key.removeprefix(OUTSIDE)
        if value is None:
            if field not in family.nullable:
                rest = f"; left out it would be {shown(default)}" if default is not None else ""
                raise InputError(f"{said} is null, which {family.name} has no meaning for{rest}", where=self.place(key))
            return None
        if field in family.loose:
            return value
        if field in ("layer_types", "layers_block_type") and isinstance(value, list):
            return [OLDER_KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in value]
        if isinstance(default, bool) and not isinstance(value, bool):
            raise InputError(f"{said} = {shown(value)} is not true or false", where=self.place(key))
        if isinstance(default, str) and not isinstance(value, str):
            raise InputError(f"{said} = {shown(value)} is not a text such as {shown(default)}", where=self.place(key))
        if isinstance(default, int) and not isinstance(default, bool) and (type(value) is not int or value < -1):
            raise InputError(f"{said} = {shown(value)} is not a whole number such as {default}", where=self.place(key))
        return value

    def _misspelt(self, family: Family, field: str) -> None:
        """An InputError where the file has another word in place of a field that it lacks."""
        known = {*family.fields, *family.nullable, *family.spelled}
        other = [k for k in self.data if k not in known and not k.startswith("_")]
        near = difflib.get_close_matches(field, other, n=1, cutoff=0.92)
        if near and not any(near[0] in read.fields or near[0] in read.nullable for read in map(family_of, families())):
            raise InputError(f"missing field '{field}'; did you mean it by '{near[0]}'?", where=self.place(near[0]))

    def whole(self, key: str, meaning: str, least: int) -> int:
        """The whole number that stands under `key`."""
        return self.number(key, self.value(key), meaning, least)

    def number(self, key: str, value: Any, meaning: str, least: int) -> int:
        """A value as a whole number in bounds."""
        if type(value) is not int or not least <= value <= _LARGEST:
            raise InputError(f"{key} = {shown(value)}: the {meaning} is a whole number of at least {least}"
                             + (f" and at most {_LARGEST}" if type(value) is int and value > least else ""),
                             where=self.place(key))
        return value


def _inside(data: Mapping[str, Any], part: str) -> tuple[Mapping[str, Any], Any]:
    """The table that `part` stands in, and what it is; a dotted part is of a table inside a table."""
    outer, _, inner = part.partition(".")
    if part not in data and inner and isinstance(data.get(outer), dict):
        return data[outer], data[outer].get(inner)
    return data, data.get(part)


def _named(table: Mapping[str, Any], part: str, larger: Any) -> Mapping[str, Any]:
    """The table of a language model with its type, which is that of the larger model's where it names none."""
    told = inside().get(larger) if part == "text_config" and isinstance(larger, str) else None
    return table if told is None or "model_type" in table else {"model_type": told, **table}


def _once(path: Path, text: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The table of a file's pairs; an InputError where a key stands twice with different values."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and found[key] != value:
            last = text.rfind(f'"{key}"')
            raise InputError(f"{key} stands twice in one table: {shown(found[key])} and {shown(value)}",
                             where=f"{path}:{text.count(chr(10), 0, last) + 1}")
        found[key] = value
    return found


def _misspelled(name: str) -> bool:
    """Whether a `model_type` differs from one that is read by letters, not by the number of a version."""
    near = difflib.get_close_matches(name, families(), n=1, cutoff=0.75)
    if not near or name in refusals():
        return False
    digits = [re.findall(r"[0-9]+|_[a-z]+", word) for word in (name, near[0])]
    return digits[0] == digits[1]


def shown(value: Any) -> str:
    """A value of a configuration, cut to what fits a line."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", type(None): "null", bool: "a truth value"}.get(type(value), "a number")
