"""A `config.json` with its lines: fields by their spellings, and every fault as one line that says where."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placealg.arith import Monomial
from placealg.errors import InputError, nearest

_LARGEST = 10**12


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a configuration: its spellings, the symbol of its size, its default, and the least that it may be.

    `default` is None where the field is required, a monomial in other sizes, or a truth value for a
    flag, whose `symbol` is then the flag's name.
    """

    names: tuple[str, ...]
    symbol: str
    meaning: str
    default: Monomial | bool | None = None
    least: int = 1


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration's data, with its text so that an error can point at a line."""

    path: Path
    text: str
    data: Mapping[str, Any]
    families: Mapping[str, tuple[Field, ...]]

    @staticmethod
    def read(path: Path, families: Mapping[str, tuple[Field, ...]]) -> Config:
        """The configuration in a file; `families` are the fields of every `model_type` that is read."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"cannot be read: {reason}", where=str(path)) from None
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
        except (RecursionError, ValueError):
            raise InputError("not a configuration: nested too deeply, or a number too long",
                             where=str(path)) from None
        if not isinstance(data, dict):
            raise InputError(f"not a configuration: the file holds {_kind(data)}, not an object", where=f"{path}:1")
        return Config(path, text, data, families)

    def place(self, key: str) -> str:
        """file:line of `key`, or the file alone when the key is absent."""
        found = re.search(rf'"{re.escape(key)}"\s*:', self.text)
        return f"{self.path}:{self.text.count(chr(10), 0, found.start()) + 1}" if found else str(self.path)

    def family(self) -> str:
        """The family that `model_type` names."""
        families = tuple(self.families)
        if self.data.get("model_type") is None:
            raise InputError(f"missing field 'model_type' (one of {', '.join(families)})", where=str(self.path))
        family = self.data["model_type"]
        if not isinstance(family, str) or family not in families:
            raise InputError(f"model_type {shown(family)} is not read (families read: {', '.join(families)})",
                             where=self.place("model_type"), name=str(family),
                             valid=families if nearest(str(family), families) else ())
        return family

    def key(self, field: Field) -> str | None:
        """The spelling under which the file gives `field`; two that disagree are an InputError."""
        given = [n for n in field.names if self.data.get(n) is not None]
        if len({json.dumps(self.data[n]) for n in given}) > 1:
            raise InputError(f"'{given[0]}' and '{given[1]}' both give the {field.meaning}, and disagree: "
                             f"{shown(self.data[given[0]])} and {shown(self.data[given[1]])}",
                             where=self.place(given[1]))
        return given[0] if given else None

    def name(self, field: Field) -> str:
        """The spelling under which the file gives `field`, or the first one where it leaves it out."""
        return self.key(field) or field.names[0]

    def flag(self, field: Field) -> bool:
        """The truth value of a flag."""
        key = self.key(field)
        if key is None:
            return bool(field.default)
        if not isinstance(self.data[key], bool):
            raise InputError(f"{key} = {shown(self.data[key])} is not true or false", where=self.place(key))
        return bool(self.data[key])

    def size(self, field: Field) -> int | None:
        """The whole number that the file gives; None where it leaves a field out that has a default."""
        key = self.key(field)
        if key is None:
            if field.default is not None:
                return None
            raise self.missing(field)
        return self.whole(key, field.meaning, field.least)

    def missing(self, field: Field) -> InputError:
        """What is said of a required field that is not there."""
        spellings = " or ".join(f"'{n}'" for n in field.names)
        read = {n for fields in self.families.values() for f in fields for n in f.names if self.data.get(n) is not None}
        near = next((k for n in field.names if (k := nearest(n, self.data)) and k not in read), "")
        hint = f"; did you mean it by '{near}'?" if near else ""
        return InputError(f"missing field {spellings} ({field.meaning}){hint}",
                          where=self.place(near) if near else str(self.path))

    def whole(self, key: str, meaning: str, least: int) -> int:
        """The whole number that stands under `key`."""
        value = self.data[key]
        if type(value) is not int or not least <= value <= _LARGEST:
            raise InputError(f"{key} = {shown(value)}: the {meaning} is a whole number of at least {least}"
                             + (f" and at most {_LARGEST}" if type(value) is int and value > least else ""),
                             where=self.place(key))
        return value

    def divides(self, part: str, whole: str, fields: Mapping[str, Field], sizes: Mapping[str, int]) -> None:
        """An InputError unless the size `part` divides the size `whole`."""
        if sizes[whole] % sizes[part]:
            names = {s: self.name(fields[s]) for s in (part, whole)}
            raise InputError(f"{names[whole]} = {sizes[whole]} is not divisible by {names[part]} = {sizes[part]}",
                             where=self.place(names[part]))

    def at_most(self, part: str, whole: str, fields: Mapping[str, Field], sizes: Mapping[str, int]) -> None:
        """An InputError unless the size `part` is at most the size `whole`."""
        if sizes[part] > sizes[whole]:
            names = {s: self.name(fields[s]) for s in (part, whole)}
            raise InputError(f"{names[part]} = {sizes[part]} is more than {names[whole]} = {sizes[whole]}",
                             where=self.place(names[part]))


def shown(value: Any) -> str:
    """A value of a configuration, cut to what fits a line."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", type(None): "null", bool: "a truth value"}.get(type(value), "a number")
