"""What the formats say, as data: keys with defaults, effects and sources, and what has no bearing on placement."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from typing import Any

from placealg.errors import InputError
from placealg.importers.kinds import KeyKind, kind_of


@dataclass(frozen=True, slots=True)
class Moved:
    """A default that was another before: `value` up to version `until`, the present one from `since` or `date` on."""

    value: Any
    until: str
    since: str
    date: str
    source: str


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key that bears on the strategy: its default, what it becomes, where the framework says so."""

    key: str
    default: Any
    effect: str
    source: str
    moved: tuple[Moved, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """One format: its keys, what it leaves alone and why, and the sections in which an unknown key is an error."""

    name: str
    title: str
    framework: str
    newest: str
    source: str
    detect: str
    keys: Mapping[str, KeyRow]
    ignored: Mapping[str, str]
    closed: tuple[str, ...]
    note: str = ""
    rest: Mapping[str, str] = field(default_factory=dict)

    def why_ignored(self, key: str) -> str:
        """Why a key has no bearing on the placement; "" where the format does not know it.

        >>> table("deepspeed").why_ignored("wandb.enabled")
        'logging'
        """
        return _reason(self.ignored, key)

    def decides(self, key: str, kind: KeyKind) -> bool:
        """Whether a row for a key is about the kind: by the key's name or a section's, or by words of the kind.

        >>> from placealg.importers.kinds import kind_of
        >>> table("llamafactory").decides("freeze_trainable_layers", kind_of("freeze_trainable_layers"))
        True
        """
        rows = {p: w for p, w in self.ignored.items() if "*" not in p or kind_of(p) == kind}
        return key in self.keys or bool(_reason(rows, key))

    def why_left(self, key: str) -> str:
        """What a key that no row names is held for, unless its name speaks of placement; "" outside such sections.

        >>> table("nemo").why_left("model.hidden_dropout")
        'of the model, or of Megatron, without bearing on placement'
        """
        return _reason(self.rest, key)


def _reason(patterns: Mapping[str, str], key: str) -> str:
    if key in patterns:
        return patterns[key]
    above = [key[:at] for at, sign in enumerate(key) if sign == "."]
    return next((why for pattern, why in patterns.items() for name in (key, *reversed(above))
                 if name == pattern or ("*" in pattern and fnmatchcase(name, pattern))), "")


@lru_cache(maxsize=1)
def formats() -> tuple[str, ...]:
    """The names of all formats, in the order of their title."""
    return tuple(_load()["formats"])


@lru_cache(maxsize=1)
def _load() -> dict[str, Any]:
    return tomllib.loads(files("placealg.importers").joinpath("formats", "formats.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=32)
def table(name: str) -> Format:
    """The table of the format `name`.

    >>> table("deepspeed").keys["zero_optimization.stage"].default
    0
    """
    text = files("placealg.importers").joinpath("formats", f"{name}.toml").read_text(encoding="utf-8")
    said = tomllib.loads(text)
    keys = {key: KeyRow(key, row.get("default"), row["effect"], row.get("source", ""),
                        tuple(Moved(**moved) for moved in row.get("before", ())))
            for key, row in said["keys"].items()}
    ignored, rest = ({pattern: why for why, patterns in said.get(part, {}).items() for pattern in patterns}
                     for part in ("ignored", "rest"))
    return Format(name, said["title"], said["framework"], said["newest"], said["source"], said["detect"], keys,
                  ignored, tuple(said.get("closed", ())), said.get("note", ""), rest)


def version(text: str) -> tuple[int, ...]:
    """A version or a date as numbers that compare.

    >>> version("0.16.5") < version("0.19")
    True
    """
    numbers = re.findall(r"\d+", text)
    if not numbers or not re.fullmatch(r"v?\d+(?:[.-]\w+)*", text):
        raise InputError(f"'{text}' is no version, such as 0.16.5 or 2025-06", where="--framework")
    return tuple(map(int, numbers))


def default_of(row: KeyRow, asked: str) -> tuple[Any, str]:
    """The default of a key at the version that was asked for ("": the newest), and what is open about it.

    >>> default_of(table("deepspeed").keys["gradient_clipping"], "0.16")
    (0.0, '')
    """
    if not asked:
        return row.default, ""
    at, dated = version(asked), version(asked)[0] >= 2000
    for moved in row.moved:
        if dated:
            if at < version(moved.date):
                return moved.value, ""
        elif at <= version(moved.until)[:len(at)]:
            return moved.value, ""
        elif at < version(moved.since):
            return row.default, (f"it was {moved.value} up to {moved.until}, and moved on {moved.date}: which of the "
                                 "releases between has it, the table does not say")
    return row.default, ""
