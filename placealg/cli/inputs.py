"""What a command works on: strategy, model, program and sizes, read and checked against each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from pathlib import Path

from placealg.arith import parse
from placealg.errors import InputError
from placealg.mesh import SYMBOLS, Mesh
from placealg.model.config import resolve_model
from placealg.model.model import Model
from placealg.step.derive import derive
from placealg.step.edit import apply_edits, read_edits
from placealg.step.program import Step
from placealg.step.text import read_program
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import Expect, read_strategy_file
from placealg.strategy.spec import Strategy

DEVICES = "devices"
DEFAULT_MODEL = "abstract"


@dataclass(frozen=True)
class Case:
    """One strategy on one model at some sizes.

    `base` is the program as derived, before a file's edits or events; `expect` is what the file promises, `source`
    where it comes from.
    """

    strategy: Strategy
    model: Model
    step: Step
    sizes: Mapping[str, Fraction]
    base: Step
    expect: Expect | None = None
    source: str = ""


def is_file(word: str) -> bool:
    """Whether a strategy word names a file rather than an expression."""
    return word.endswith(".toml") or Path(word).is_file()


def read_strategy(word: str) -> Strategy:
    """The strategy alone of a TOML file or an expression."""
    return read_strategy_file(word).strategy if is_file(word) else parse_strategy(word)


def read_case(word: str, model: str | None, sizes: Iterable[str], axes: Iterable[str] = ()) -> Case:
    """The case that the words of a command line describe; `axes` are those of strategies beside this one."""
    if is_file(word):
        return _read_file(word, model, sizes, axes)
    strategy, chosen = parse_strategy(word), resolve_model(model or DEFAULT_MODEL)
    with_sizes = read_sizes(sizes, strategy.mesh, chosen, axes)
    step = derive(strategy, chosen)
    return Case(strategy, chosen, step, with_sizes, step)


def _read_file(word: str, model: str | None, sizes: Iterable[str], axes: Iterable[str]) -> Case:
    file = read_strategy_file(word)
    beside = Path(word).parent / file.model
    named = str(beside) if file.model and beside.exists() else file.model
    try:
        chosen = resolve_model(model or named or DEFAULT_MODEL)
        step = base = derive(file.strategy, chosen)
    except InputError as error:
        raise error.at(word) from None
    if file.events:
        step = replace(step, events=read_program(file.events, step.reference, file.positions, file.loops))
    if file.edits:
        step = apply_edits(step, read_edits(file.edits, step.reference, file.positions))
    return Case(file.strategy, chosen, step, read_sizes(sizes, file.strategy.mesh, chosen, axes), base,
                file.expect, file.source)


def read_sizes(words: Iterable[str], mesh: Mesh, model: Model, axes: Iterable[str] = ()) -> dict[str, Fraction]:
    """The sizes of `--set`: known symbols and axes, consistent with what mesh and model bind.

    Sizes of `axes` that the mesh lacks are read and left out.

    >>> read_sizes(["w=1/2", "devices=16"], parse_strategy("hsdp[dp_shard=8]").mesh, resolve_model("abstract"))
    {'w': Fraction(1, 2), 'dp_replicate': Fraction(2, 1)}
    """
    known = (*mesh.names, *sorted(set(axes) - set(mesh.names)), *SYMBOLS, DEVICES)
    sizes: dict[str, Fraction] = {}
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        where = f"--set {word}"
        if not equals or not name or not text:
            raise InputError(f"'{word}' is not NAME=VALUE", where="--set")
        if name not in known:
            raise InputError(f"unknown symbol or axis '{name}'", where=where, name=name, valid=known)
        try:
            value = parse(text, ()).evaluate({})
        except InputError as error:
            raise error.at(where) from None
        rational = name in SYMBOLS and SYMBOLS[name].assumption == "positive rational"
        if value <= 0 or (value.denominator != 1 and not rational):
            kind = "a positive number of bytes" if rational else "a whole number of at least 1"
            raise InputError(f"{name} = {text} is not {kind}", where=where)
        if sizes.get(name, value) != value:
            raise InputError(f"{name} is already {sizes[name]}", where=where)
        sizes[name] = value
        for owner, bound in ((f"the strategy's {name}", mesh.sizes()), (f"{model.name}'s {name}", model.sizes)):
            if name in bound and bound[name] != value:
                raise InputError(f"{name} = {value} contradicts {owner} = {bound[name]}", where=where)
    return _complete({n: v for n, v in sizes.items() if n in (*mesh.names, *SYMBOLS, DEVICES)}, mesh)


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
