"""Precision presets: by name, the bytes per element that a training engine holds and sends."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.number_formats import element

PRESET = "preset"
"""The key of element sizes that names the bytes of an engine, beside which other keys say what differs."""


@dataclass(frozen=True, slots=True)
class Precision:
    """One preset: what it is, who says so, and the bytes of each element."""

    name: str
    title: str
    source: str
    types: FrozenMap[str, Any]


@lru_cache(maxsize=1)
def precisions() -> Mapping[str, Precision]:
    """Every preset by its name.

    >>> precisions()["fsdp2"].types
    {w: 4, wire_w: 2, use: 2, g: 4, wire: 4, o: 8, act: 2}
    """
    text = files("placealg.strategy").joinpath("precision.toml").read_text(encoding="utf-8")
    return FrozenMap({name: Precision(name, said["title"], said["source"], FrozenMap(said["types"]))
                      for name, said in tomllib.loads(text).items()})


def precision(name: str) -> Precision:
    """The preset called `name`.

    >>> precision("megatro")
    Traceback (most recent call last):
    placealg.errors.InputError: unknown precision 'megatro'; did you mean 'megatron'?
    """
    if name not in precisions():
        raise InputError(f"unknown precision '{name}'", name=name, valid=precisions())
    return precisions()[name]


def preset_bytes(said: Mapping[str, str]) -> dict[str, str]:
    """Element sizes with those of the preset that they name in its place; what is said beside it holds.

    >>> preset_bytes({"preset": "megatron", "wire": "2"})
    {'w': '2', 'g': '4', 'wire': '2', 'o': '12', 'act': '2'}
    """
    named = said.get(PRESET, "")
    own = {symbol: number for symbol, number in said.items() if symbol != PRESET}
    return {**{s: element(str(n)) for s, n in precision(named).types.items()}, **own} if named else own
