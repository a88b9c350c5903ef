"""Expressions over the catalogue: `zero3`, `zero3[fsdp]*dp[8]`, `hsdp[dp_replicate=2,dp_shard=4]`.

A factor in braces is an axis with its list of dims and its modes, whether or not somebody named it:
`dp{batch,optimizer=S}` is zero1, and `dp{batch,parameters=S*,optimizer=S}` has no name. A precision preset is a
modifier: `zero1*tp_sp*megatron` has the bytes per element of `--precision megatron`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from placealg.errors import InputError, need
from placealg.mesh import Axis
from placealg.placement import STATES
from placealg.strategy.catalogue import entry, instantiate, standalone
from placealg.strategy.precision import PRESET, precisions
from placealg.strategy.spec import Strategy, overlay, strategy_on
from placealg.strategy.validation import check

_MAX_TEXT = 2000
_FACTOR = re.compile(r"\s*(?P<name>\w+)\s*(?:\[(?P<items>[^\[\]*]*)\]|\{(?P<table>[^{}]*)\})?\s*")
_FILE = re.compile(r"\s*(?P<name>[^\s*\[\]{}](?:[^*\[\]{}]*[^\s*\[\]{}])?\.toml)\s*(?=\*|\Z)")
"""A factor that is a strategy file."""

_ITEM = re.compile(r"\s*(?:(?P<axis>[A-Za-z]\w*)\s*(?:=\s*(?P<bound>[-+]?\w+))?|(?P<size>[-+]?\d+))\s*\Z")


def parse_strategy(text: str, read: Callable[[str], Strategy] | None = None) -> Strategy:
    """The strategy that an expression writes: names joined by `*`, each with optional axes and sizes in brackets.

    `read` gives the strategy of a factor that is a file; without it there is none.

    >>> parse_strategy("dp{batch,optimizer=S}").states == parse_strategy("zero1").states
    True
    >>> parse_strategy("zero3[fsdp]*dp[8]").mesh.axes
    (fsdp, dp=8)
    >>> parse_strategy("zero33")
    Traceback (most recent call last):
    placealg.errors.InputError: strategy 'zero33', column 1: unknown strategy 'zero33'; did you mean 'zero3'?
    """
    need(text, str, "strategy expression, such as 'zero3*tp_sp'")
    if len(text) > _MAX_TEXT:
        raise InputError(f"a strategy expression of {len(text)} characters is too long (at most {_MAX_TEXT})")
    product: Strategy | None = None
    at = 0
    while True:
        filed = _FILE.match(text, at)
        found = filed or _FACTOR.match(text, at)
        if not found:
            raise _error(text, at, "expected the name of a strategy")
        if text[found.end():].startswith("[") and "]" not in text[found.end():]:
            raise _error(text, len(text), "missing ']'")
        if text[found.end():].startswith("{") and "}" not in text[found.end():]:
            raise _error(text, len(text), "missing '}'")
        column = found.start("name")
        try:
            if filed and read is None:
                raise InputError(f"'{filed['name']}' is a file, and no file is read here")
            factor = read(filed["name"]) if filed and read else _factor(text, found)
            if product is None and factor.modifiers and not factor.mesh.names and found.end() < len(text):
                raise InputError(f"modifier {factor.name} applies to what stands to its left, and nothing does")
            product = _precise(product, factor) if product and factor.name in precisions() else (
                product * factor if product else factor)
        except InputError as error:
            raise error.at(_place(text, column)) from None
        at = found.end()
        if at == len(text):
            break
        if text[at] != "*":
            raise _error(text, at, f"unexpected '{text[at]}'; factors are joined by *")
        at += 1
    strategy = standalone(product)
    try:
        check(strategy)
    except InputError as error:
        raise error.at(f"strategy '{text}'") from None
    return strategy


def file_factors(text: str) -> tuple[str, ...]:
    """The strategy files among the factors of an expression.

    >>> file_factors("mine.toml * recompute_full"), file_factors("zero1*tp")
    (('mine.toml',), ())
    """
    return tuple(found["name"] for found in (_FILE.match(part) for part in text.split("*")) if found)


def _factor(text: str, found: re.Match[str]) -> Strategy:
    name = found["name"]
    if found["table"] is not None:
        return on_one_axis(name, found["table"])
    if found["items"] is None and name in precisions():
        return replace(strategy_on(name, {}, types={PRESET: name}), modifiers=(name,))
    entry(name)
    if found["items"] is None:
        return _plain(name)
    items: list[Axis | int] = []
    column = found.start("items")
    for item in found["items"].split(","):
        read = _ITEM.match(item)
        if not read:
            raise _error(text, column, f"'{item.strip()}' is not an axis, a size or axis=size")
        try:
            items.append(_size(read["size"]) if read["size"] else
                         Axis(read["axis"], _size(read["bound"]) if read["bound"] else None))
        except InputError as error:
            raise error.at(_place(text, column)) from None
        column += len(item) + 1
    return instantiate(name, *items)


def _precise(left: Strategy, preset: Strategy) -> Strategy:
    """What stands to the left, with the bytes of a preset in the place of those that it says itself."""
    for name in left.modifiers:
        if name in precisions():
            raise InputError(f"says two precisions, {name} and {preset.name}")
    made = overlay(left, {"types": {PRESET: preset.name}})
    return replace(made, name=f"{left.name}*{preset.name}", modifiers=(*left.modifiers, preset.name))


def precision_of(text: str) -> str:
    """The precision preset among the factors of an expression; "" where there is none.

    >>> precision_of("zero1*tp_sp*megatron"), precision_of("zero1")
    ('megatron', '')
    """
    return next((word for word in words(text) if word in precisions()), "")


@lru_cache(maxsize=256)
def _plain(name: str) -> Strategy:
    """The catalogue's strategy on its own axes: a space of strategies names each of a few in hundreds of products."""
    return instantiate(name)


def on_one_axis(axis: str, table: str) -> Strategy:
    """A strategy of one axis: entries of its list of dims, in order, and `STATE=MODE`, `lifetime=LIFE`, by commas.

    >>> on_one_axis("cp", "core.heads,seq,optimizer=S").dims["cp"]
    ('core.heads', 'seq')
    """
    dims: list[str] = []
    said: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in table.split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            dims.append(key)
        elif key not in (*STATES, LIFETIME):
            raise InputError(f"'{key}' is no state of an axis", name=key, valid=(*STATES, LIFETIME))
        elif key in said:
            raise InputError(f"says {key} twice")
        else:
            said[key] = value
    life = said.pop(LIFETIME, "")
    made = strategy_on(f"{axis}{{{','.join([*dims, *(f'{k}={v}' for k, v in said.items())])}"
                       f"{f',{LIFETIME}={life}' if life else ''}}}", {axis: None}, dims={axis: dims},
                       **({"states": {state: {axis: mode} for state, mode in said.items()}} if said else {}),
                       **({"schedule": {LIFETIME: {axis: life}}} if life else {}))
    if not dims:
        raise InputError(f"{made.name} has no dims, such as {axis}{{batch}}")
    return made


LIFETIME = "lifetime"
"""What is said beside the modes of states: how long gathered copies live."""


def words(text: str) -> tuple[str, ...]:
    """The factors of an expression.

    >>> words("dp{batch,parameters=S*}*tp_sp")
    ('dp{batch,parameters=S*}', 'tp_sp')
    """
    return tuple(re.findall(r"(?:\{[^{}]*\}|[^*{])+", text))


def _size(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise InputError(f"'{text}' is not a size: a whole number of at least 1")
    return int(text)


def _place(text: str, at: int) -> str:
    return f"strategy '{text}', column {at + 1}"


def _error(text: str, at: int, what: str) -> InputError:
    return InputError(what, where=_place(text, at))
