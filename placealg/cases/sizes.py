"""The sizes of `--set`: read, held against what strategy and model bind, and completed from a number of devices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

from placealg.arith import parse
from placealg.errors import InputError
from placealg.mesh import PACKED, STAGED, SYMBOLS, Mesh, check_size, meant_size
from placealg.models.model import Model
from placealg.progress import remark
from placealg.step.compatibility import bound_sizes, check_sizes
from placealg.step.pipeline import TIMES, counted, flying, starting
from placealg.step.place import ANY
from placealg.step.trainable import trained
from placealg.strategy.catalogue import names
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import DEFAULTS, Strategy

if TYPE_CHECKING:
    pass

DEVICES = "devices"

MANY = 10**7
"""Above so many devices a line says so."""


def said_sizes(words: Iterable[str]) -> set[str]:
    """The names of the sizes that words of `--set` say.

    >>> sorted(said_sizes(["dp=8", "m = 4"]))
    ['dp', 'm']
    """
    return {word.partition("=")[0].strip() for word in words}


def read_sizes(words: Iterable[str], strategy: Strategy, model: Model, axes: Iterable[str] = ()) -> dict[str, Fraction]:
    """The sizes of `--set`: symbols that strategy or model use, consistent with what both of them bind.

    Sizes of `axes` that the mesh lacks are read and left out.

    >>> from placealg.models.config import resolve_model
    >>> from placealg.strategy.expression import parse_strategy
    >>> read_sizes(["w=1/2", "devices=16"], parse_strategy("hsdp[dp_shard=8]"), resolve_model("abstract"))
    {'w': Fraction(1, 2), 'dp_replicate': Fraction(2, 1)}
    """
    mesh, others, bound = strategy.mesh, set(axes), bound_sizes(strategy, model)
    said = tuple(t for t in strategy.tables.get("types", ()) if t not in DEFAULTS["types"])
    chunks = ("v",) if strategy.pipeline_axis and strategy.option("schedule", "chunks") == "v" else ()
    staged = (ANY, *TIMES, *(n for loop in model.graph.loops for name in (counted, flying, starting)
                            if (n := name(loop.unit)) in SYMBOLS)) if strategy.pipeline_axis else ()
    symbols = symbols_of(trained(strategy, model))
    used = (*mesh.names, *sorted(others - set(mesh.names)), DEVICES, *symbols, *chunks, *staged, *said)
    sizes: dict[str, Fraction] = {}
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        where = f"--set {word}"
        if not equals or not name or not text:
            raise InputError(f"'{word}' is not NAME=VALUE", where="--set")
        if name not in used:
            unused = f"{strategy.name} on {model.name} has no '{name}' ({SYMBOLS[name].meaning})" if name in SYMBOLS \
                else f"unknown symbol or axis '{name}'"
            parts = [axis for axis in mesh.names if axis.startswith(f"{name}_")]
            near = "" if parts else with_axis(strategy.name, name) or meant_size(name, used)
            unused += f": its axes are {' and '.join(parts)}" if parts else ""
            raise InputError(unused, where=where, name=name, valid=() if parts else used, near=near)
        try:
            value = parse(text, ()).evaluate({})
        except InputError as error:
            if short := re.fullmatch(r"([0-9]+)([kKmMgG])", text):
                whole = int(short[1]) * 1024 ** (1 + "kmg".index(short[2].lower()))
                raise InputError(f"'{text}' is not arithmetic; did you mean '{name}={whole}'?", where=where) from None
            raise error.at(where) from None
        rational = name in SYMBOLS and SYMBOLS[name].assumption == "positive rational"
        least = 0 if name in map(counted, STAGED) else 1
        if (value <= 0 if rational else value < least or value.denominator != 1):
            positive = "a positive number" + " of bytes" * (name not in (*TIMES, PACKED))
            kind = positive if rational else f"a whole number of at least {least}"
            raise InputError(f"{name} = {text} is not {kind}", where=where)
        try:
            check_size(name, value)
        except InputError as error:
            raise error.at(where) from None
        if sizes.get(name, value) != value:
            raise InputError(f"{name} is already {sizes[name]}", where=where)
        sizes[name] = value
        owner, own = bound.get(name, ("", value))
        if own != value:
            raise InputError(f"{name} = {value} contradicts {owner}'s {name} = {own}", where=where)
        if sizes.get("Psi_unit", 0) > sizes.get("Psi", sizes.get("Psi_unit", 0)):
            raise InputError(f"Psi_unit = {sizes['Psi_unit']} exceeds Psi = {sizes['Psi']}", where=where)
    found = _complete({n: v for n, v in sizes.items() if n in (*mesh.names, *SYMBOLS, DEVICES)}, mesh)
    known: dict[str, Fraction | int] = {**mesh.sizes(), **found}
    devices = prod(known.get(a, 1) for a in mesh.names)
    if devices > MANY:
        remark(f"warning: {int(devices):,} devices are more than any cluster has")
    try:
        check_sizes(strategy, model, found)
    except InputError as error:
        raise error.at("--set") from None
    return found


def symbols_of(model: Model) -> tuple[str, ...]:
    """The symbols, in the table's order, that can stand in a formula about `model`."""
    found = {"Psi", "Psi_unit", "m", *model.sizes, *(t for t in DEFAULTS["types"] if t != "act" or not model.opaque)}
    if not model.opaque:
        found |= {n for size in model.graph.dims.values() for n in size.names()}
    found |= {PACKED} if any(op.row.family == "flash" and op.row.attributes for op in model.graph.ops) else set()
    for size in (*(u.count for u in model.units), *(p.elements for p in model.parameters)):
        found |= set(size.names())
    return tuple(n for n in SYMBOLS if n in found)


def _complete(sizes: dict[str, Fraction], mesh: Mesh) -> dict[str, Fraction]:
    if DEVICES not in sizes:
        return sizes
    devices = sizes.pop(DEVICES)
    bound = {a: Fraction(n) for a, n in mesh.sizes().items()} | {a: n for a, n in sizes.items() if a in mesh.names}
    free = [a for a in mesh.names if a not in bound]
    product = prod(bound.values(), start=Fraction(1))
    shown = " x ".join(f"{a} = {n}" for a, n in bound.items())
    where = f"--set {DEVICES}={devices}"
    if len(free) > 1:
        raise InputError(f"{devices} devices do not settle {' and '.join(free)}: set all but one", where=where)
    if not free:
        if product != devices:
            raise InputError(f"the mesh has {product} devices ({shown or 'no axes'}), not {devices}", where=where)
        return sizes
    if devices % product:
        raise InputError(f"{devices} devices are not a multiple of {shown}", where=where)
    return {**sizes, free[0]: devices / product}


def with_axis(strategy: str, axis: str) -> str:
    """An expression that has the axis, made from one that has not; "" where it has, or where none is.

    >>> with_axis("zero3", "tp"), with_axis("zero3", "dp"), with_axis("zero3", "h")
    ('zero3*tp', '', '')
    """
    whole = f"{strategy}*{axis}"
    try:
        return "" if axis in parse_strategy(strategy).mesh.names or axis not in names() else parse_strategy(whole).name
    except InputError:
        return ""
