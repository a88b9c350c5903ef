"""Edits of several groups as one: a pattern that matches exactly the paths that were edited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from placealg.check.candidates import Table
from placealg.step.edit import ACTIONS, matches
from placealg.step.program import Step
from placealg.step.text import read_path, subjects

ANCHORS = ("before", "after")


def folded(tables: Sequence[Table], step: Step, same: Callable[[Sequence[Table]], bool]) -> list[Table]:
    """The tables with those that say the same of different paths as one; `same` says whether they do the same."""
    runs = [list(run) for _, run in groupby(tables, key=lambda table: _says(table, step))]
    short = [table for run in runs for table in (_as_one(run, step) or run)]
    return short if len(short) < len(tables) and same(short) else list(tables)


def pattern_of(targets: Sequence[str], paths: Sequence[str]) -> str:
    """A pattern that matches `targets` and no other of `paths`; "" where there is none.

    >>> pattern_of(["update.a.norm", "update.b.norm"], ["update.a.norm", "update.b.norm", "update.a.clip"])
    'update.*.norm'
    >>> pattern_of(["init.a.load", "save.a.store"], ["init.a.load", "save.a.store", "save.b.store"])
    '*.a.*'
    """
    if len(set(targets)) == 1:
        return targets[0]
    start = _common(targets)
    end = _common([t[len(start):][::-1] for t in targets])[::-1]
    dotted = start[:start.rfind(".") + 1], end[end.find("."):] if "." in end else ""
    inside = max((f".{'.'.join(part)}." for part in _runs(targets[0].split("."))
                  if all(f".{'.'.join(part)}." in t for t in targets)), key=len, default="")
    for pattern in ("*".join(dotted), f"{start}*{end}", f"*{inside}*" if inside else ""):
        if pattern and {p for p in paths if matches(pattern, p)} == set(targets):
            return pattern
    return ""


def _common(texts: Sequence[str]) -> str:
    """What all texts begin with."""
    least, most = min(texts), max(texts)
    return next((least[:k] for k, sign in enumerate(least) if most[k] != sign), least)


def _runs(parts: Sequence[str]) -> list[Sequence[str]]:
    return [parts[i:j] for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)]


def _action(table: Table) -> str:
    return next(key for key in table if key in ACTIONS)


def _says(table: Table, step: Step) -> str:
    """What a table says, but for the paths of which it says so."""
    action = _action(table)
    rest = {k: v for k, v in table.items() if k not in (action, *ANCHORS)}
    return str((action, [k for k in table if k in ANCHORS], rest, _new(table, step) if action == "insert" else ""))


def _new(table: Table, step: Step) -> dict[str, Any]:
    """The keys of an inserted event without its path: its group and its phase are its anchor's."""
    fields = dict(table["insert"])
    event = read_path(fields.pop("path"), step.reference, subjects(step.reference))
    return {"verb": event.verb, "value": event.value, **({"axes": list(event.axes)} if event.axes else {}), **fields}


def _as_one(run: list[Table], step: Step) -> list[Table] | None:
    """One table for a run of tables that say the same; None where no pattern fits."""
    if len(run) < 2:
        return None
    paths, action = [e.path for e in step.events], _action(run[0])
    anchor = next((key for key in run[0] if key in ANCHORS), "")
    one = dict(run[0])
    if anchor:
        one[anchor] = pattern_of([t[anchor] for t in run], paths)
    one[action] = _new(run[0], step) if action == "insert" else pattern_of([t[action] for t in run], paths)
    return [one] if one[action] and (not anchor or one[anchor]) else None
