"""Axes that nobody has named: every list of dims and every table of modes, by the rules that a strategy has to keep.

A space says of an axis which dims its lists may hold and which modes each state may have. Two lists that split every op
of the model alike are one. Each table is derived on the model alone: what the rules refuse is counted by the rule, and
of tables that give the same program one is kept, by the catalogue's name where it has one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from hashlib import sha256
from itertools import permutations, product
from pathlib import Path

from placealg.configurations.programs import sources
from placealg.configurations.space import Space, Tables
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.model import Model
from placealg.placement import STATES
from placealg.progress import say
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.step.split import split_of
from placealg.strategy.catalogue import catalogue, instantiate
from placealg.strategy.expression import LIFETIME, on_one_axis, parse_strategy
from placealg.strategy.spec import Strategy
from placealg.strategy.validation import check


def expanded(space: Space, model: Model, folder: Path | None = None) -> Space:
    """The space with every axis of tables as a part of its words; `folder` keeps what was enumerated.

    >>> from placealg.models.transformer import gpt
    >>> axis = {"dims": ("batch",), "optimizer": ("R", "S"), "gradients": ("R", "M")}
    >>> space = expanded(Space("mine", FrozenMap(), axes=FrozenMap({"dp": FrozenMap(axis)})), gpt())
    >>> (found,) = space.enumerated
    >>> space.parts["dp"], found.tables, sum(found.refused.values())
    (('', 'dp', 'zero1'), 4, 2)
    """
    found = tuple(_kept(axis, said, model, folder) for axis, said in space.axes.items())
    return replace(space, parts=FrozenMap({**{one.axis: ("", *one.words) for one in found}, **space.parts}),
                   axes=FrozenMap(), enumerated=found)


def _kept(axis: str, said: Mapping[str, tuple[str, ...]], model: Model, folder: Path | None) -> Tables:
    key = sha256(f"{sources()}{model!r}{axis}{sorted(said.items())}".encode()).hexdigest()[:24]
    file = folder / f"{key}.tables.json" if folder else None
    try:
        if file:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return Tables(**{**kept, "words": tuple(kept["words"]), "refused": FrozenMap(kept["refused"])})
    except (OSError, ValueError, TypeError, KeyError):
        pass
    found = _enumerated(axis, said, model)
    if file:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({**{f.name: getattr(found, f.name) for f in fields(found)},
                                        "refused": dict(found.refused)}), encoding="utf-8")
        except OSError:
            pass
    return found


def _enumerated(axis: str, said: Mapping[str, tuple[str, ...]], model: Model) -> Tables:
    lists = list(ordered(said["dims"]))
    distinct: dict[tuple[str, ...], tuple[str, ...]] = {}
    for entries in lists:
        distinct.setdefault(tuple(split_of(entries, op, model.graph) for op in model.graph.ops), entries)
    names = dict(_named(axis, model))
    programs: dict[object, str] = {}
    refused: Counter[str] = Counter()
    tables = alike = 0
    for k, entries in enumerate(distinct.values(), 1):
        say(f"{k} of {len(distinct)} lists of dims along {axis}")
        for table in _tables(said):
            tables += 1
            text = ",".join((*entries, *(f"{key}={mode}" for key, mode in table.items())))
            try:
                program = _program(on_one_axis(axis, text), model)
            except InputError as error:
                refused[rule(str(error), axis)] += 1
                continue
            alike += program in programs
            programs.setdefault(program, f"{axis}{{{text}}}")
    words = tuple(names.get(program, word) for program, word in programs.items())
    return Tables(axis, len(lists), len(distinct), tables, FrozenMap(dict(refused.most_common())), alike, words,
                  sum(program in names for program in programs))


def ordered(entries: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Every ordered list of some of the entries, one at least.

    >>> list(ordered(["batch", "seq"]))
    [('batch',), ('seq',), ('batch', 'seq'), ('seq', 'batch')]
    """
    every = tuple(entries)
    for count in range(1, len(every) + 1):
        yield from permutations(every, count)


def _tables(said: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Every table of modes; R of a state that no dim splits, and `use`, are what holds where nothing is said."""
    for modes in product(*(said.get(state, ("",)) for state in STATES)):
        table = {state: mode for state, mode in zip(STATES, modes, strict=True)
                 if mode and (mode != "R" or state == "activations")}
        lives = said.get(LIFETIME, ("use",)) if table.get("parameters", "").startswith("S*") else ("use",)
        for life in lives:
            yield table if life == "use" else {**table, LIFETIME: life}


def _program(strategy: Strategy, model: Model) -> object:
    check(strategy)
    return of_program(derive(strategy, model))


def of_program(step: Step) -> object:
    """What two steps share if they are one program: all but the strategy's name and its lists of dims."""
    return step.events, replace(step.reference, strategy="", dims=FrozenMap())


def _named(axis: str, model: Model) -> Iterator[tuple[object, str]]:
    """(program, name) of each entry of the catalogue that has one axis and no order of stages; aliases come last."""
    found: dict[object, str] = {}
    for entry in catalogue().values():
        if entry.kind != "axis" or len(entry.axes) != 1:
            continue
        name = entry.name if entry.axes == (axis,) else f"{entry.name}[{axis}]"
        try:
            found.setdefault(_program(parse_strategy(entry.name) if entry.axes == (axis,)
                                      else instantiate(entry.name, axis), model), name)
        except InputError:
            continue
    yield from found.items()


def rule(message: str, axis: str) -> str:
    """The rule by which a table is refused: the message without the names of strategy, model, axis and dims.

    >>> rule("dp{seq} on gpt: [states] parameters on dp: S says so, but no dim of dp splits it; valid: a, b", "dp")
    '[states] parameters: S says so, but no dim of the axis splits it'
    """
    text = re.sub(rf"\A{re.escape(axis)}\{{[^}}]*\}} on \S+: ", "", message).partition("; valid:")[0]
    text = re.sub(rf" on {re.escape(axis)}:", ":", text)
    text = re.sub(rf"\[(dims|schedule)\] {re.escape(axis)} ", r"[\1] the axis ", text)
    return re.sub(rf"\b{re.escape(axis)}\b", "the axis", text)


def by_rule(refused: Iterable[str], limit: int = 12) -> list[tuple[str, int]]:
    """(rule, how many it refuses) of messages, the most frequent first; numbers and names in quotes are left out."""
    found = Counter(re.sub(r"'[^']*'|\A.*? on \S+: ", "", message.partition("; valid:")[0]) for message in refused)
    return found.most_common(limit)
