"""The space of strategies that a search goes through, as data: parts, of each of which one choice, and what is fixed.

An empty choice leaves a part out, which is what an axis of one device means, unless states are sharded over another
axis together with it: so no other axis has one, and a strategy and its reduced form are never both counted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from itertools import product
from typing import Any

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.placement import STATES
from placealg.strategy.expression import LIFETIME, parse_strategy, precision_of, words
from placealg.strategy.precision import precision

PRECISION = "precision"
"""The part of a space that names the bytes per element of its strategies."""

UNEVEN = "uneven"
"""What `without` calls the pipelines whose stages run different numbers of layers."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A choice that the space leaves out, since `better` needs no more memory and sends no more, for all sizes."""

    worse: str
    better: str


@dataclass(frozen=True, slots=True)
class Tables:
    """What was enumerated along one axis: lists of dims, tables of modes over those that differ, and what became of it.

    `refused` says how many tables each rule refuses; `words` are the tables that are kept, one for each program, of
    which `named` have a name in the catalogue. `alike` give the same program as a table that is kept.
    """

    axis: str
    lists: int
    distinct: int
    tables: int
    refused: FrozenMap[str, int]
    alike: int
    words: tuple[str, ...]
    named: int

    def to_json(self) -> dict[str, Any]:
        """The figures as data."""
        return {"axis": self.axis, "lists": self.lists, "distinct_lists": self.distinct, "tables": self.tables,
                "refused": dict(self.refused), "alike": self.alike, "programs": len(self.words), "named": self.named}


@dataclass(frozen=True, slots=True)
class Space:
    """Parts and their choices; `fixed` sizes of axes, b, m or v; `only` patterns, one of which a strategy matches.

    `axes` are axes of any table: the dims of which their lists consist, and the modes that each state may have;
    `enumerated` says what became of them on a model, whose words then are choices.
    `uneven` pipelines have stages of different numbers of layers, where their number does not divide the layers.

    >>> space = Space("small", parts=FrozenMap({"data": ("", "zero1"), "tp": ("", "tp")}))
    >>> space.expressions()
    ('tp', 'zero1', 'zero1*tp')
    """

    name: str
    parts: FrozenMap[str, tuple[str, ...]]
    title: str = ""
    left_out: tuple[LeftOut, ...] = ()
    fixed: FrozenMap[str, int] = FrozenMap()
    only: tuple[str, ...] = ()
    axes: FrozenMap[str, FrozenMap[str, tuple[str, ...]]] = FrozenMap()
    enumerated: tuple[Tables, ...] = ()
    uneven: bool = True

    def expressions(self) -> tuple[str, ...]:
        """The strategies, as expressions over the catalogue; one at least of their parts is an axis."""
        return tuple(self.choices())

    def choices(self) -> dict[str, tuple[str, ...]]:
        """Expression -> what is chosen of each part."""
        every = {"*".join(filter(None, chosen)): chosen for chosen in product(*self.parts.values())
                 if any(map(_has_axes, filter(None, chosen)))}
        return {text: chosen for text, chosen in every.items() if not self.only or matches(text, self.only)}

    def precisely(self, name: str) -> Space:
        """The space with the bytes per element of a preset, which every strategy then names; "" leaves it as it is.

        >>> Space("small", FrozenMap({"data": ("zero1",)})).precisely("megatron").expressions()
        ('zero1*megatron',)
        """
        if not name:
            return self
        precision(name)
        if PRECISION in self.parts:
            raise InputError(f"the space {self.name} says precisions itself")
        return replace(self, parts=self.parts.plus({PRECISION: (name,)}))

    def said(self, expression: str) -> str:
        """An expression with the precision that all strategies of the space have, where it says none."""
        only = self.parts.get(PRECISION, ())
        return f"{expression}*{only[0]}" if len(only) == 1 and only[0] and not precision_of(expression) else expression

    def without(self, names: Iterable[str]) -> Space:
        """The space without some parts or choices, or without uneven stages.

        >>> spaces()["dense"].without(["offload", "tp_sp"]).parts["tp"]
        ('', 'tp')
        """
        parts = dict(self.parts)
        uneven = self.uneven
        for name in names:
            if name == UNEVEN:
                uneven = False
                continue
            every = {UNEVEN, *parts, *(c for choices in parts.values() for c in choices if c)}
            if name not in every:
                raise InputError(f"the space {self.name} has no part or choice '{name}'", name=name, valid=every)
            for part, choices in parts.items():
                left = ("",) if name == part else tuple(c for c in choices if name not in words(c))
                if not left:
                    raise InputError(f"without {name} the space {self.name} has no choice of {part}")
                parts[part] = left
        return replace(self, parts=FrozenMap(parts), uneven=uneven)

    def to_json(self) -> dict[str, Any]:
        """The space as data."""
        return {"name": self.name, "parts": {part: list(choices) for part, choices in self.parts.items()},
                "fixed": dict(self.fixed), "only": list(self.only), "uneven": self.uneven,
                "left_out": [{"worse": out.worse, "better": out.better} for out in self.left_out],
                **({"enumerated": [one.to_json() for one in self.enumerated]} if self.enumerated else {})}


def matches(expression: str, patterns: Iterable[str]) -> bool:
    """Whether a strategy matches one of the patterns, which need not say its precision.

    >>> matches("zero1*tp*megatron", ["zero1[*]tp"]), matches("zero1*tp", ["zero1"])
    (True, False)
    """
    said = precision_of(expression)
    told = {expression, expression.removesuffix(f"*{said}")} if said else {expression}
    return any(fnmatchcase(text, pattern) for pattern in patterns for text in told)


@lru_cache(maxsize=1024)
def _has_axes(choice: str) -> bool:
    """Whether a choice brings axes: one that consists of modifiers applies to what stands to its left."""
    return any(not parse_strategy(word).modifiers for word in words(choice))


@lru_cache(maxsize=1)
def spaces() -> Mapping[str, Space]:
    """The shipped spaces by name.

    >>> len(spaces()["dense"].expressions())
    966
    """
    text = files("placealg.configurations").joinpath("spaces.toml").read_text(encoding="utf-8")
    return read_spaces(text)


def read_spaces(text: str, where: str = "spaces.toml") -> Mapping[str, Space]:
    """The spaces that a file says."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"no TOML: {error}", where=where) from None
    return FrozenMap({name: _read(name, table, where) for name, table in said.items()})


_KEYS = ("title", "parts", "axes", "proved", "fixed", "only", UNEVEN)


def _read(name: str, table: Any, where: str) -> Space:
    if not isinstance(table, dict) or not isinstance(table.get("parts", {}), dict) or not (
            table.get("parts") or table.get("axes")):
        raise InputError(f"[{name}] is no space: it has no [{name}.parts]", where=where)
    for key in table:
        if key not in _KEYS:
            raise InputError(f"[{name}] has no key '{key}'", where=where, name=key, valid=_KEYS)
    parts = {}
    for part, choices in table.get("parts", {}).items():
        if not isinstance(choices, list) or not choices or not all(isinstance(c, str) for c in choices):
            raise InputError(f"[{name}.parts] {part} is not a list of choices, such as [\"\", \"tp\"]", where=where)
        for choice in filter(None, choices):
            for word in words(choice):
                try:
                    parse_strategy(word)
                except InputError as error:
                    raise error.at(f"{where}: [{name}.parts] {part}") from None
        parts[part] = tuple(dict.fromkeys(choices))
    proved = tuple(LeftOut(str(o.get("worse")), str(o.get("better"))) for o in table.get("proved", ()))
    fixed = table.get("fixed", {})
    if not all(type(n) is int and n >= 1 for n in fixed.values()):
        raise InputError(f"[{name}.fixed] takes whole numbers of at least 1", where=where)
    if type(table.get(UNEVEN, True)) is not bool:
        raise InputError(f"[{name}] {UNEVEN} is true or false", where=where)
    return Space(name, FrozenMap(parts), str(table.get("title", "")), proved, FrozenMap(fixed),
                 tuple(map(str, table.get("only", ()))), _axes(name, table.get("axes", {}), where),
                 uneven=table.get(UNEVEN, True))


def _axes(name: str, said: Any, where: str) -> FrozenMap[str, FrozenMap[str, tuple[str, ...]]]:
    """The axes of any table: a list of dims, and lists of modes and lifetimes."""
    found = {}
    known = ("dims", *STATES, LIFETIME)
    for axis, table in (said.items() if isinstance(said, dict) else ()):
        label = f"[{name}.axes.{axis}]"
        if not isinstance(table, dict) or not table.get("dims"):
            raise InputError(f"{label} says no dims, such as dims = [\"batch\"]", where=where)
        for key, values in table.items():
            if key not in known:
                raise InputError(f"{label} has no key '{key}'", where=where, name=key, valid=known)
            if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
                raise InputError(f"{label} {key} is not a list of texts", where=where)
        if len(table["dims"]) > _MOST_DIMS:
            raise InputError(f"{label} has {len(table['dims'])} dims, whose lists are too many: at most {_MOST_DIMS}",
                             where=where)
        found[axis] = FrozenMap({key: tuple(dict.fromkeys(values)) for key, values in table.items()})
    return FrozenMap(found)


_MOST_DIMS = 8
"""The dims of which all ordered lists are made: eight have 109,600."""
