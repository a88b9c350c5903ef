"""Buffers: which slot of memory an instance of a value is put in, where events overlap.

A value without an entry has a slot of its own for each instance of its unit, written again in every microbatch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placealg.errors import InputError, shown
from placealg.strategy.kinds import Kind, Path, Where, placed

SIZE = "K"
"""The symbol of the number of slots of a ring."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}\Z", re.ASCII)
"""The name of a buffer, or of a stream."""

_KEYS = {"ring": ("kind", "size"), "alloc": ("kind", "home", "recorded"), "with": ("with",)}


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where the instances of one value of a parameter group are put.

    A ring has `size` slots, a number or "K", taken in turn by the instances of a unit. An allocator gives a block that
    was freed to whoever asks next, on the stream `home`, without waiting for other streams than those on which the
    block was `recorded`. `alias` is the value in whose slot it is put.

    >>> Buffer(size="K"), Buffer("alloc", home="compute", recorded=("gather",)), Buffer("with", alias="grad_sum")
    (ring of K, allocated on compute, recorded on gather, with grad_sum)
    """

    kind: str = "ring"
    size: int | str = 1
    home: str = "compute"
    recorded: tuple[str, ...] = ()
    alias: str = ""

    def __repr__(self) -> str:
        if self.kind == "with":
            return f"with {self.alias}"
        if self.kind == "ring":
            return f"ring of {self.size}"
        return f"allocated on {self.home}" + (f", recorded on {', '.join(self.recorded)}" if self.recorded else "")

    def said(self) -> dict[str, Any]:
        """The table that a file says."""
        if self.kind == "with":
            return {"with": self.alias}
        if self.kind == "ring":
            return {"kind": "ring", "size": self.size}
        recorded = {"recorded": list(self.recorded)} if self.recorded else {}
        return {"kind": "alloc", "home": self.home, **recorded}


def _read(label: str, value: Any, _axes: tuple[str, ...], where: Where, path: Path) -> Buffer:
    if isinstance(value, Buffer):
        return value
    if not isinstance(value, Mapping) or not ("kind" in value or "with" in value):
        raise InputError(f"{label} is {shown(value)}: expected {BUFFER.words}")
    kind = "with" if "with" in value else value["kind"]
    if kind not in ("ring", "alloc", "with"):
        raise InputError(f"{label} kind is {shown(kind)}", name=str(kind), valid=("ring", "alloc"))
    for key in value:
        with placed(where, *path, key):
            if key not in _KEYS[kind]:
                raise InputError(f"{label}: unknown key '{key}' of a buffer of kind {kind}", name=str(key),
                                 valid=_KEYS[kind])
    size = value.get("size", 1)
    if size != SIZE and (type(size) is not int or size < 1):
        raise InputError(f"{label} size is {shown(size)}: expected a whole number of at least 1, or \"{SIZE}\"")
    recorded = value.get("recorded", ())
    if not isinstance(recorded, list | tuple):
        raise InputError(f"{label} recorded is {shown(recorded)}: expected a list of streams")
    home, alias = value.get("home", "compute"), value.get("with", "")
    for name in (home, *recorded, *([alias] if kind == "with" else [])):
        if not isinstance(name, str) or not NAME.match(name):
            raise InputError(f"{label} names {shown(name)}: expected a name")
    return Buffer(kind, size, home, tuple(recorded), alias)


_NAMED = {"type": "string", "pattern": NAME.pattern.replace(r"\Z", "$")}
BUFFER = Kind(f'{{ kind = "ring", size = NUMBER or "{SIZE}" }}, {{ kind = "alloc", home = STREAM, recorded = [STREAM, '
              '...] }, or { with = VALUE }', _read, {"anyOf": [
                  {"type": "object", "properties": {"kind": {"const": "ring"}, "size": {"anyOf": [
                      {"const": SIZE}, {"type": "integer", "minimum": 1}]}}, "required": ["kind"],
                   "additionalProperties": False},
                  {"type": "object", "properties": {"kind": {"const": "alloc"}, "home": _NAMED, "recorded": {
                      "type": "array", "items": _NAMED}}, "required": ["kind"], "additionalProperties": False},
                  {"type": "object", "properties": {"with": _NAMED}, "required": ["with"],
                   "additionalProperties": False}]})
"""How a file says a buffer."""
