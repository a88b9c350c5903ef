"""The readers of values: one for each kind of value that the tables of a strategy accept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from placealg.arith import parse
from placealg.errors import InputError, shown
from placealg.frozen import FrozenMap
from placealg.mesh import check_bytes
from placealg.placement import StatePlacement
from placealg.strategy.options import (
    GATHERS,
    KINDS,
    LIFETIMES,
    NONE,
    OPTIMIZERS,
    RANK,
    REDUCTIONS,
    REGION,
    SCHEMA,
    Key,
    Path,
    Where,
    known_axis,
    nowhere,
    placed,
)
from placealg.strategy.precision import preset_bytes
from placealg.strategy.streams import Stream


def read_value(label: str, key: Key, value: Any, axes: tuple[str, ...], where: Where = nowhere, path: Path = ()) -> Any:
    """The canonical form of a value, or an InputError at its place that says what would be valid."""
    with placed(where, *path):
        return _READERS[key.kind](label, key, value, axes, where, path)


def _text(label: str, _key: Key, value: Any, *_: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise InputError(f"{label} is {shown(value)}: expected a non-empty string")


def _choice(label: str, key: Key, value: Any, *_: Any) -> str:
    if value not in key.valid:
        raise InputError(f"{label} is {shown(value)}", name=str(value), valid=key.valid)
    return str(value)


def _strings(label: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise InputError(f"{label} is {shown(value)}: expected a list of strings")
    for at, name in enumerate(value):
        if name in value[:at]:
            raise InputError(f"{label} names '{name}' twice")
    return tuple(value)


def _choices(label: str, key: Key, value: Any, *_: Any) -> tuple[str, ...]:
    names = _strings(label, value)
    for name in names:
        if name not in key.valid:
            raise InputError(f"{label} names '{name}'", name=name, valid=key.valid)
    return names


def _size(label: str, _key: Key, value: Any, *_: Any) -> int | None:
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
        raise InputError(f"{label} names '{entry}': an entry is DIM, REGION.DIM or REGION.none")
    if entry == NONE:
        raise InputError(f"{label} names 'none' alone: say REGION.none, or [] for an axis that splits nothing")


def _dims(label: str, _key: Key, value: Any, _axes: tuple[str, ...], where: Where, path: Path) -> tuple[str, ...]:
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


def _modes(label: str, key: Key, value: Any, axes: tuple[str, ...], where: Where, path: Path) -> StatePlacement:
    table = _table(label, value)
    for axis, mode in table.items():
        with placed(where, *path, axis):
            if key.kind == "activations" and axis.startswith(REGION) and "." in axis:
                raise InputError(f"{label} names region '{axis.removeprefix(REGION)}': a region is named by one word, "
                                 f"such as '{axis.rpartition('.')[2]}'")
            if key.kind != "activations" or not _REGION.match(axis):
                known_axis(label, axis, axes)
            if not isinstance(mode, str):
                raise InputError(f"{label} on {axis} is {shown(mode)}: a mode is a string such as \"S*\"")
            StatePlacement.parse({axis: mode})
    return StatePlacement.parse(table)


def _group_optimizer(label: str, key: Key, value: Any, axes: tuple[str, ...], where: Where,
                     path: Path) -> tuple[str, StatePlacement | None]:
    if isinstance(value, str):
        return _choice(label, Key("choice", tuple(OPTIMIZERS)), value), None
    table = dict(_table(f"{label} (an optimizer's name, or a mode per axis)", value))
    name = table.pop("name", "")
    if name:
        _choice(f"{label} name", Key("choice", tuple(OPTIMIZERS)), name)
    return name, _modes(label, key, table, axes, where, path)


def _types(label: str, _key: Key, value: Any, axes: tuple[str, ...], where: Where, path: Path) -> FrozenMap[str, str]:
    read = {}
    for symbol, number in _table(label, value).items():
        if symbol not in SCHEMA["types"]:
            raise InputError(f"{label} names '{symbol}'", where=where((*path, symbol)), name=symbol,
                             valid=SCHEMA["types"])
        read[symbol] = read_value(f"{label}.{symbol}", SCHEMA["types"][symbol], number, axes, where, (*path, symbol))
    return FrozenMap(preset_bytes(read))


def _bytes(label: str, _key: Key, value: Any, *_: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError(f"{label} is {shown(value)}: bytes per element are a positive number")
    try:
        number = parse(value, ()).evaluate({}) if isinstance(value, str) else Fraction(str(value))
    except (InputError, ValueError, OverflowError):
        number = Fraction(0)
    if number <= 0:
        raise InputError(f"{label} is {shown(value)}: bytes per element are a positive number, such as 2 or \"1/2\"")
    check_bytes(label.replace(".", " ").split()[-1], number)
    return str(number)


def _counted(label: str, key: Key, value: Any, *_: Any) -> int | str:
    symbol = "v" if key.kind == "chunks" else "m"
    if value != symbol and (type(value) is not int or value < 1):
        raise InputError(f"{label} is {shown(value)}: expected \"{symbol}\" or a whole number of at least 1")
    return value  # type: ignore[no-any-return]  # narrowed by the test above


def _whole(label: str, _key: Key, value: Any, *_: Any) -> int:
    if type(value) is not int or value < 0:
        raise InputError(f"{label} is {shown(value)}: expected a whole number of at least 0")
    return value


def _count(label: str, _key: Key, value: Any, *_: Any) -> int:
    if type(value) is not int or value < 1:
        raise InputError(f"{label} is {shown(value)}: expected a whole number of at least 1")
    return value


def _share(label: str, _key: Key, value: Any, *_: Any) -> str:
    try:
        found = Fraction(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, ZeroDivisionError):
        found = None
    if found is None or not 0 < found < 1 or len(str(value)) > 40:
        raise InputError(f"{label} is {shown(value)}: expected {KINDS['share']}")
    return str(found)


def _patterns(label: str, _key: Key, value: Any, *_: Any) -> tuple[str, ...]:
    names = _strings(label, [value] if isinstance(value, str) else value)
    if any(not name.strip() for name in names):
        raise InputError(f"{label} is {shown(value)}: a pattern is a non-empty string")
    return names


def _names(label: str, _key: Key, value: Any, *_: Any) -> tuple[str, ...]:
    names = _strings(label, value)
    if any(not name.strip() for name in names):
        raise InputError(f"{label} is {shown(value)}: a dim is a non-empty string")
    return names


def _rank(label: str, _key: Key, value: Any, *_: Any) -> int | str:
    if value == RANK or (type(value) is int and value >= 1):
        return value  # type: ignore[no-any-return]  # read from a file
    raise InputError(f"{label} is {shown(value)}: expected \"{RANK}\" (symbolic), or a whole number of at least 1")


def _flag(label: str, _key: Key, value: Any, *_: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{label} is {shown(value)}: expected true or false")
    return value


def _layers(label: str, _key: Key, value: Any, *_: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not all(type(n) is int and n >= 0 for n in value):
        raise InputError(f"{label} is {shown(value)}: expected a list of whole numbers of at least 1, one per stage")
    if 0 in value[1:-1 if any(value[-2:]) else -2]:
        raise InputError(f"{label} is {shown(value)}: a stage between the first and the last has at least 1 layer; "
                         "those two may have none, and the one before a last one with none")
    return tuple(value)


def _rows(label: str, _key: Key, value: Any, *_: Any) -> tuple[str, ...]:
    rows = _strings(label, value)
    if not rows or not all(row.strip() and row.isprintable() for row in rows):
        raise InputError(f"{label} is {shown(value)[:80]}: expected a list of rows of actions, one for each rank")
    return rows


def _layers_chosen(label: str, _key: Key, value: Any, *_: Any) -> FrozenMap[str, int]:
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


def _by_axis(label: str, key: Key, value: Any, axes: tuple[str, ...], where: Where, path: Path) -> FrozenMap[str, str]:
    table = _table(label, value)
    for axis, chosen in table.items():
        with placed(where, *path, axis):
            known_axis(label, axis, axes)
            _choice(f"{label} of {axis}", Key("choice", _OF_AXES[key.kind]), chosen)
    return FrozenMap(table)


_OF_AXES = {"lifetimes": LIFETIMES, "gathers": GATHERS, "reductions": REDUCTIONS}
"""Kind of a table of axes -> what may be said of each."""


def _wires(label: str, key: Key, value: Any, axes: tuple[str, ...], where: Where, path: Path) -> FrozenMap[str, str]:
    read = {}
    for axis, number in _table(label, value).items():
        with placed(where, *path, axis):
            known_axis(label, axis, axes)
            read[axis] = _bytes(f"{label} of {axis}", key, number)
    return FrozenMap(read)


def _count_axes(label: str, _key: Key, value: Any, axes: tuple[str, ...], *_: Any) -> str | tuple[str, ...]:
    if value == "data":
        return "data"
    if isinstance(value, str):
        raise InputError(f"{label} is {shown(value)}: expected \"data\" or a list of axes")
    names = _strings(label, value)
    for axis in names:
        known_axis(label, axis, (*axes, "microbatch"))
    return names


def _streams(label: str, _key: Key, value: Any, axes: tuple[str, ...], *_: Any) -> tuple[str, ...]:
    names = _strings(label, value)
    for name in names:
        try:
            stream = Stream.parse(name)
        except InputError:
            raise InputError(f"{label} names '{name}'; valid: rank(AXIS), local(DIM)") from None
        if stream.axis:
            known_axis(label, stream.axis, axes)
    return names


_READERS: Mapping[str, Callable[..., Any]] = {
    "text": _text, "choice": _choice, "choices": _choices, "size": _size, "dims": _dims, "modes": _modes,
    "activations": _modes, "group_optimizer": _group_optimizer, "types": _types, "bytes": _bytes,
    "microbatches": _counted, "chunks": _counted, "whole": _whole, "layers": _layers, "rows": _rows,
    "layers_chosen": _layers_chosen,
    "flag": _flag, "patterns": _patterns, "count": _count, "share": _share, "names": _names, "rank": _rank,
    "lifetimes": _by_axis, "gathers": _by_axis, "reductions": _by_axis, "wires": _wires,
    "count_axes": _count_axes, "streams": _streams,
}
