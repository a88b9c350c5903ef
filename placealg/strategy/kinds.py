"""The kinds of values that the tables of a strategy accept: each with its words, its reader and its JSON schema.

A reader takes a label for messages, the value, the axes of the mesh, and the value's place in the text; it returns the
canonical form, or raises an InputError that says what would be valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from placealg.arith import parse
from placealg.errors import InputError, shown
from placealg.frozen import FrozenMap
from placealg.mesh import check_size
from placealg.number_formats import FORMATS, Element
from placealg.placement import MODES, REGION, StatePlacement
from placealg.strategy.streams import Stream
from placealg.strategy.vocabulary import EACH, GATHERS, LIFETIMES, NONE, OPTIMIZERS, REDUCTIONS

Schema = Mapping[str, Any]

Path = tuple[str | int, ...]
Where = Callable[[Path], str]
"""From a path of keys to the place in the text, `FILE:LINE`."""


def nowhere(_path: Path) -> str:
    """The place of tables that come from no text."""
    return ""


@contextmanager
def placed(where: Where, *path: str | int) -> Iterator[None]:
    """Give every InputError of the body its place, unless it has one."""
    try:
        yield
    except InputError as error:
        raise error.at(where(path)) from None


def unknown_axis(label: str, axis: str, axes: Iterable[str]) -> InputError:
    """The error of a table that names an axis which the mesh lacks."""
    return InputError(f"{label} names axis '{axis}', which the mesh lacks", name=axis, valid=axes)


def known_axis(label: str, axis: str, axes: tuple[str, ...]) -> None:
    """Raise InputError unless the mesh has `axis`."""
    if axis not in axes:
        raise unknown_axis(label, axis, axes)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: what is accepted, in words, who reads it, and the JSON schema of what may stand there."""

    words: str
    reader: Callable[..., Any]
    schema: Schema

    def read(self, label: str, value: Any, axes: tuple[str, ...] = (), where: Where = nowhere, path: Path = ()) -> Any:
        """The canonical form of a value, or an InputError at its place that says what would be valid.

        >>> choice("host", "nvme").read("[optimizer] tier", "disk")
        Traceback (most recent call last):
        placealg.errors.InputError: [optimizer] tier is 'disk'; valid: host, nvme
        """
        with placed(where, *path):
            return self.reader(label, value, axes, where, path)


def _text(label: str, value: Any, *_: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise InputError(f"{label} is {shown(value)}: expected a non-empty string")


def _choice(valid: tuple[str, ...], label: str, value: Any, *_: Any) -> str:
    if value not in valid:
        raise InputError(f"{label} is {shown(value)}", name=str(value), valid=valid)
    return str(value)


def _strings(label: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise InputError(f"{label} is {shown(value)}: expected a list of strings")
    for at, name in enumerate(value):
        if name in value[:at]:
            raise InputError(f"{label} names '{name}' twice")
    return tuple(value)


def _choices(valid: tuple[str, ...], label: str, value: Any, *_: Any) -> tuple[str, ...]:
    names = _strings(label, value)
    for name in names:
        if name not in valid:
            raise InputError(f"{label} names '{name}'", name=name, valid=valid)
    return names


def _size(label: str, value: Any, *_: Any) -> int | None:
    if value is None or value == "symbolic":
        return None
    if type(value) is not int or value < 1:
        raise InputError(f"{label} is {shown(value)}: a size is a whole number of at least 1, or \"symbolic\"")
    return value


_ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z", re.ASCII)


def check_entry(label: str, entry: str) -> None:
    """Raise InputError unless an entry of [dims] is written as one; which dims and regions there are, a model says.

    >>> check_entry("[dims] tp", "none")
    Traceback (most recent call last):
    placealg.errors.InputError: [dims] tp names 'none' alone: say REGION.none, or [] for an axis that splits nothing
    """
    if not _ENTRY.match(entry):
        raise InputError(f"{label} names '{entry}': an entry is DIM, REGION.DIM, REGION.none or REGION.each")
    if entry in (NONE, EACH):
        raise InputError(f"{label} names '{entry}' alone: say REGION.{entry}, or [] for an axis that splits nothing")


def _dims(label: str, value: Any, _axes: tuple[str, ...], where: Where, path: Path) -> tuple[str, ...]:
    entries = _strings(label, value)
    for at, entry in enumerate(entries):
        with placed(where, *path, at):
            check_entry(label, entry)
    return entries


def _table(label: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{label} is {shown(value)}: expected a table, such as {{ dp = ... }}")
    return value


_REGION = re.compile(rf"{REGION}[A-Za-z_]\w*\Z", re.ASCII)


def _modes(regions: bool, label: str, value: Any, axes: tuple[str, ...], where: Where, path: Path) -> StatePlacement:
    table = _table(label, value)
    for axis, mode in table.items():
        with placed(where, *path, axis):
            if regions and axis.startswith(REGION) and "." in axis:
                raise InputError(f"{label} names region '{axis.removeprefix(REGION)}': a region is named by one word, "
                                 f"such as '{axis.rpartition('.')[2]}'")
            if not regions or not _REGION.match(axis):
                known_axis(label, axis, axes)
            if not isinstance(mode, str):
                raise InputError(f"{label} on {axis} is {shown(mode)}: a mode is a string such as \"S*\"")
            StatePlacement.parse({axis: mode})
    return StatePlacement.parse(table)


def _group_optimizer(label: str, value: Any, axes: tuple[str, ...], where: Where, path: Path
                     ) -> tuple[str, StatePlacement | None]:
    if isinstance(value, str):
        return _choice(tuple(OPTIMIZERS), label, value), None
    table = dict(_table(f"{label} (an optimizer's name, or a mode per axis)", value))
    name = table.pop("name", "")
    if name:
        _choice(tuple(OPTIMIZERS), f"{label} name", name)
    return name, _modes(False, label, table, axes, where, path)


def _bytes(label: str, value: Any, *_: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError(f"{label} is {shown(value)}: bytes per element are a positive number")
    try:
        number = parse(value, ()).evaluate({}) if isinstance(value, str) else Fraction(str(value))
    except (InputError, ValueError, OverflowError):
        number = Fraction(0)
    if number <= 0:
        raise InputError(f"{label} is {shown(value)}: bytes per element are a positive number, such as 2 or \"1/2\"")
    check_size(label.replace(".", " ").split()[-1], number)
    return str(number)


def _element(label: str, value: Any, *rest: Any) -> str:
    if isinstance(value, Element):
        return value
    if isinstance(value, str) and value.strip()[:1].isalpha():
        if value not in FORMATS:
            raise InputError(f"{label} is {shown(value)}: bytes per element are a positive number, or a type",
                             name=value, valid=FORMATS)
        return Element(value)
    return _bytes(label, value, *rest)


def _counted(symbol: str, label: str, value: Any, *_: Any) -> int | str:
    if value != symbol and (type(value) is not int or value < 1):
        raise InputError(f"{label} is {shown(value)}: expected {counted(symbol).words}")
    return value  # type: ignore[no-any-return]  # narrowed by the test above


def _whole(least: int, label: str, value: Any, *_: Any) -> int:
    if type(value) is not int or value < least:
        raise InputError(f"{label} is {shown(value)}: expected a whole number of at least {least}")
    return value


def _share(label: str, value: Any, *_: Any) -> str:
    try:
        found = Fraction(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, ZeroDivisionError):
        found = None
    if found is None or not 0 < found < 1 or len(str(value)) > 40:
        raise InputError(f"{label} is {shown(value)}: expected {SHARE.words}")
    return str(found)


def _patterns(label: str, value: Any, *_: Any) -> tuple[str, ...]:
    names = _strings(label, [value] if isinstance(value, str) else value)
    if any(not name.strip() for name in names):
        raise InputError(f"{label} is {shown(value)}: a pattern is a non-empty string")
    return names


def _names(label: str, value: Any, *_: Any) -> tuple[str, ...]:
    names = _strings(label, value)
    if any(not name.strip() for name in names):
        raise InputError(f"{label} is {shown(value)}: a dim is a non-empty string")
    return names


def _flag(label: str, value: Any, *_: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{label} is {shown(value)}: expected true or false")
    return value


def _layers(label: str, value: Any, *_: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not all(type(n) is int and n >= 0 for n in value):
        raise InputError(f"{label} is {shown(value)}: expected a list of whole numbers of at least 1, one per stage")
    if 0 in value[1:-1 if any(value[-2:]) else -2]:
        raise InputError(f"{label} is {shown(value)}: a stage between the first and the last has at least 1 layer; "
                         "those two may have none, and the one before a last one with none")
    return tuple(value)


def _rows(label: str, value: Any, *_: Any) -> tuple[str, ...]:
    rows = _strings(label, value)
    if not rows or not all(row.strip() and row.isprintable() for row in rows):
        raise InputError(f"{label} is {shown(value)[:80]}: expected a list of rows of actions, one for each rank")
    return rows


def _layers_chosen(label: str, value: Any, *_: Any) -> FrozenMap[str, int]:
    if not isinstance(value, Mapping):
        raise InputError(f"{label} is {shown(value)}: expected a table, such as {{ first = 12 }} or {{ every = 2 }}")
    for how, number in value.items():
        if how not in ("first", "every"):
            raise InputError(f"{label} names '{how}'", name=how, valid=("first", "every"))
        if type(number) is not int or number < 1:
            raise InputError(f"{label} {how} is {shown(number)}: expected a whole number of at least 1")
    if len(value) > 1:
        raise InputError(f"{label} says first and every: layers are chosen in one way")
    return FrozenMap(value)


def _by_axis(valid: tuple[str, ...], label: str, value: Any, axes: tuple[str, ...], where: Where, path: Path
             ) -> FrozenMap[str, str]:
    table = _table(label, value)
    for axis, chosen in table.items():
        with placed(where, *path, axis):
            known_axis(label, axis, axes)
            _choice(valid, f"{label} of {axis}", chosen)
    return FrozenMap(table)


def _wires(label: str, value: Any, axes: tuple[str, ...], where: Where, path: Path) -> FrozenMap[str, str]:
    read = {}
    for axis, number in _table(label, value).items():
        with placed(where, *path, axis):
            known_axis(label, axis, axes)
            read[axis] = _element(f"{label} of {axis}", number)
    return FrozenMap(read)


def _count_axes(label: str, value: Any, axes: tuple[str, ...], *_: Any) -> str | tuple[str, ...]:
    if value == "data":
        return "data"
    if isinstance(value, str):
        raise InputError(f"{label} is {shown(value)}: expected \"data\" or a list of axes")
    names = _strings(label, value)
    for axis in names:
        known_axis(label, axis, (*axes, "microbatch"))
    return names


def _streams(label: str, value: Any, axes: tuple[str, ...], *_: Any) -> tuple[str, ...]:
    names = _strings(label, value)
    for name in names:
        try:
            stream = Stream.parse(name)
        except InputError:
            raise InputError(f"{label} names '{name}'; valid: rank(AXIS), local(DIM)") from None
        if stream.axis:
            known_axis(label, stream.axis, axes)
    return names


_TEXT: Schema = {"type": "string", "pattern": r"\S"}
_NAME = r"^[A-Za-z_]\w*$"
_MODE: Schema = {"enum": [*(row.mode for row in MODES), *(f"{row.mode}+O" for row in MODES if row.mode != "O")]}
_STRINGS: Schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
_BYTES: Schema = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"\d"}]}
_LEAST_1: Schema = {"type": "integer", "minimum": 1}


def by_name(value: Schema, names: str = _NAME) -> Schema:
    """The schema of a table whose keys are names of the user's."""
    return {"type": "object", "patternProperties": {names: value}, "additionalProperties": False}


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def choice(*names: str) -> Kind:
    """One of some names."""
    return Kind(f"one of {_quoted(names)}", partial(_choice, names), {"enum": list(names)})


def choices(*names: str) -> Kind:
    """A list of some names, each once."""
    return Kind(f"a list of {_quoted(names)}", partial(_choices, names),
                {"type": "array", "items": {"enum": list(names)}, "uniqueItems": True})


def counted(symbol: str) -> Kind:
    """A number from 1 that may be open: then a symbol stands for it."""
    return Kind(f'"{symbol}" (symbolic), or a whole number of at least 1', partial(_counted, symbol),
                {"anyOf": [{"const": symbol}, _LEAST_1]})


def whole(least: int) -> Kind:
    """A whole number from `least` on."""
    return Kind(f"a whole number of at least {least}", partial(_whole, least), {"type": "integer", "minimum": least})


def along_axes(what: str, *names: str) -> Kind:
    """One of some names for each axis; `what` is what they are."""
    return Kind(f"{{ AXIS = {what}, ... }}; {what} is {_quoted(names)}", partial(_by_axis, names),
                by_name({"enum": list(names)}))


TEXT = Kind("a non-empty string", _text, _TEXT)
SIZE = Kind('a whole number of at least 1, or "symbolic"', _size, {"anyOf": [{"const": "symbolic"}, _LEAST_1]})
DIMS = Kind('a list of "DIM", "REGION.DIM", "REGION.none", "REGION.each"', _dims, {
    **_STRINGS, "items": {"type": "string", "pattern": r"^(?!(none|each)$)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"}})
PLACEMENT = Kind(f'{{ AXIS = MODE, ... }}; MODE is {_quoted(row.mode for row in MODES)}, or one with "+O"',
                 partial(_modes, False), by_name(_MODE))
ACTIVATIONS = Kind('{ AXIS = MODE, "region:NAME" = "M", ... }; MODE is "S*" or "R", and "S" along the batch; a region '
                   'may be "O" or "M+O"', partial(_modes, True), by_name(_MODE, rf"^({REGION})?[A-Za-z_]\w*$"))
GROUP_OPTIMIZER = Kind("{ AXIS = MODE, ... }, an optimizer's name, or both as { name = NAME, AXIS = MODE, ... }",
                       _group_optimizer, {"anyOf": [{"enum": list(OPTIMIZERS)}, {
                           **by_name(_MODE, r"^(?!name$)[A-Za-z_]\w*$"),
                           "properties": {"name": {"enum": list(OPTIMIZERS)}}}]})
BYTES = Kind('a positive number, such as 2 or "1/2"', _bytes, _BYTES)
ELEMENT = Kind(f"{BYTES.words}, or a type, {_quoted(FORMATS)}", _element, {
    "anyOf": [*_BYTES["anyOf"], {"enum": list(FORMATS)}]})
SHARE = Kind('a number between 0 and 1, such as 0.25 or "1/4"', _share,
             {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, _TEXT]})
FLAG = Kind("true or false", _flag, {"type": "boolean"})
PATTERNS = Kind("a pattern of names, in which * is any text, or a list of them", _patterns,
                {"anyOf": [_TEXT, {**_STRINGS, "items": _TEXT}]})
MATRIX = Kind("a list of dims; [] where the parameters are no matrices", _names, {**_STRINGS, "items": _TEXT})
STAGES = Kind("a list of the layers of each stage, whole numbers of at least 1; the first and the last may have "
              "0, and the one before a last one with 0", _layers,
              {"type": "array", "items": {"type": "integer", "minimum": 0}})
ROWS = Kind("a list of rows, one for each rank, such as \"0F0,0F1,0B0,0B1\"", _rows, {**_STRINGS, "items": _TEXT})
LAYERS_CHOSEN = Kind("{ first = N } or { every = N }, N a whole number of at least 1", _layers_chosen, {"anyOf": [
    {"type": "object", "additionalProperties": False, "required": [how], "properties": {how: _LEAST_1}}
    for how in ("first", "every")]})
LIVES = along_axes("LIFE", *LIFETIMES)
GATHERED_HOW = along_axes("HOW", *GATHERS)
REDUCED_HOW = along_axes("HOW", *REDUCTIONS)
WIRES = Kind(f"{{ AXIS = BYTES, ... }}; BYTES is {ELEMENT.words}", _wires, by_name(ELEMENT.schema))
COUNT_AXES = Kind('"data" (every axis that splits the batch, and microbatch), or a list of axes', _count_axes,
                  {"anyOf": [{"const": "data"}, _STRINGS]})
STREAMS = Kind('a list of "rank(AXIS)", "local(DIM)"', _streams,
               {**_STRINGS, "items": {"type": "string", "pattern": r"^(rank|local)\(\w+\)$"}})
