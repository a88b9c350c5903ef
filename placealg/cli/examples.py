"""Examples for explanations, each found rather than written: in derived programs, among the bugs, in Coq's files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from placealg.cases.case import default_model
from placealg.cli import bug_files
from placealg.models.config import resolve_model
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Event, Step
from placealg.strategy.catalogue import catalogue
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

COMPOSITES = ("zero3*tp_sp", "zero1*tp_sp*pp*cp_ring*ep", "zero3*cp_ulysses")
"""Expressions beside the catalogue's own strategies in which examples are looked for."""


def names() -> tuple[str, ...]:
    """What a user would say to get the programs, those first that have most: catalogue, composites, options, edits."""
    return tuple(dict.fromkeys(("dp", "zero1", *COMPOSITES, *catalogue(), *_VARIED)))


def program(name: str) -> Step:
    """The program of one of `names`."""
    return _derived(name)


@cache
def _derived(name: str) -> Step:
    if name in _VARIED:
        return _VARIED[name]()
    strategy = parse_strategy(name)
    return derive(strategy, resolve_model(default_model(strategy)))


def _on(model: str) -> Step:
    return derive(parse_strategy("dp"), resolve_model(model))


def _with(name: str, **tables: Mapping[str, str]) -> Step:
    return derive(overlay(parse_strategy(name), tables), resolve_model("abstract"))


_VARIED: Mapping[str, Callable[[], Step]] = {
    "dp on balanced, a model with losses of its router": lambda: _on("balanced"),
    "dp on statistics": lambda: _on("statistics"),
    'zero2 with skip = "overflow" and scale = "dynamic"': lambda: _with(
        "zero2", optimizer={"skip": "overflow"}, loss={"scale": "dynamic"}),
    'zero1 with average = "parameters"': lambda: _with("zero1", optimizer={"average": "parameters"}),
    'zero1 with [[edit]] drop and insert': lambda: edit(
        program("zero1"), {"drop": "publish.*"},
        {"insert": {"path": "publish.layer.weight.publish[dp]"}, "after": "update.rng.update"}),
}
"""Programs that are no expression's."""


def event_where(holds: Callable[[Event], bool]) -> str:
    """The first event for which something holds, with the program in which it stands; "" where there is none."""
    for name in names():
        event = next((e for e in program(name).events if holds(e)), None)
        if event is not None:
            return f"{event.path} of {name}"
    return ""


def bug_refuted_by(obligation: str) -> str:
    """A bug that its file expects to be refuted by an obligation, real ones first; "" where there is none."""
    found = []
    for path in sorted(bug_files.folder().glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        expect = table.get("expect", {})
        if isinstance(expect, dict) and expect.get("obligation") == obligation:
            found.append(("source" not in table, path.stem, str(table.get("name", path.stem))))
    return f"{min(found)[1]}: {min(found)[2]}" if found else ""


class Theorem(NamedTuple):
    """A theorem that Coq checks: what it says in words, its statement, what it backs in the code, its file."""

    name: str
    says: str
    statement: str
    counterpart: str
    file: str


_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \| (.*?) \|$", re.MULTILINE)
_STATED = re.compile(r"^Theorem (\w+)(.*?)\.\s*\nProof", re.MULTILINE | re.DOTALL)


def theorems() -> Iterator[Theorem]:
    """The theorems that `proofs/coq/README.md` lists, with the statements of the files in which they are proved.

    What two developments call alike is listed in the order of their folders.
    """
    room = bug_files.folder().parent / "coq"
    stated: dict[str, list[tuple[str, Path]]] = {}
    for path in sorted(room.rglob("*.v")):
        for name, text in _STATED.findall(path.read_text(encoding="utf-8")):
            stated.setdefault(name, []).append((" ".join(text.split()), path))
    listed = (room / "README.md").read_text(encoding="utf-8")
    for names, says, counterpart in _ROW.findall(listed):
        for name in re.findall(r"\w+", names):
            statement, path = stated[name].pop(0)
            yield Theorem(name, says, statement.lstrip(": "), counterpart, f"proofs/coq/{path.relative_to(room)}")
