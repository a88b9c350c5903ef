"""One edit that makes a program provable again, found by holding it against the derived program."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from placealg.announce import say
from placealg.cost.communication import communication
from placealg.cost.formula import Formula
from placealg.errors import InputError
from placealg.prove.prover import examine
from placealg.prove.verdict import PROVED, Repair
from placealg.step.edit import edit
from placealg.step.fields import FIELDS
from placealg.step.program import Event, Step
from placealg.step.text import event_keys, subjects
from placealg.strategy.write import toml_value

Table = Mapping[str, Any]
"""One [[edit]] table."""


def find_repair(step: Step, base: Step) -> Repair | None:
    """The first edit towards `base` whose program is proved, as [[edit]] tables, with what it does to communication.

    One edit restores, exchanges, drops, inserts or moves events of one kind, in every parameter group that lacks them.
    """
    for tables in _edits(step, base):
        try:
            repaired = edit(step, *tables)
        except InputError:
            continue
        say("looking for a repair")
        if all(v.verdict == PROVED for v in examine(repaired).verdicts):
            return Repair("\n".join(map(written, tables)), _cost(step, repaired))
    return None


def written(table: Table) -> str:
    """An [[edit]] table on one line.

    >>> written({"set": "update.norm.all_reduce[dp]", "op": "sum"})
    'set = "update.norm.all_reduce[dp]", op = "sum"'
    """
    return ", ".join(f"{key} = {toml_value(value)}" for key, value in table.items())


_LONGEST = 160
"""Signs beyond which two formulas are told by their difference."""


def _cost(step: Step, repaired: Step) -> str:
    try:
        before, after = communication(step), communication(repaired)
    except InputError as error:
        return f"not known: {error}"
    changes = (("communication", before.total, after.total), ("host link", before.host_link, after.host_link),
               ("nvme link", before.nvme_link, after.nvme_link))
    told = [_change(*change) for change in changes if change[1] != change[2]]
    return "; ".join(told) or "nothing that the totals of a training step count"


def _change(what: str, before: Formula, after: Formula) -> str:
    both = f"{what} {before.text()} -> {after.text()} bytes per step"
    return both if len(both) <= _LONGEST else f"{what}: {(after - before).tidied().text()} bytes per step more"


def _edits(step: Step, base: Step) -> Iterator[list[Table]]:
    here, there = {e.path: e for e in step.events}, {e.path: e for e in base.events}
    changed = [p for p in there if p in here and here[p] != there[p]]
    if changed:
        yield [{"set": p, **_changes(here[p], there[p])} for p in changed]
    extra = _kinds(here, [p for p in here if p not in there])
    missing = _kinds(there, [p for p in there if p not in here])
    if len(extra) == len(missing) == 1:
        for later in (False, True):
            yield [*_drops(extra[0]), *_inserts(step, base, missing[0], extra[0], later)]
    for paths in extra:
        yield _drops(paths)
    for paths in missing:
        yield _inserts(step, base, paths, [])
    for paths in _kinds(there, out_of_place(list(here), list(there))):
        yield _moves(list(here), list(there), paths)


def _kinds(events: Mapping[str, Event], paths: list[str]) -> list[list[str]]:
    """Paths whose events do the same to different parameter groups, together."""
    found: dict[str, list[str]] = {}
    for path in paths:
        group = events[path].group
        found.setdefault(path.replace(f".{group}", ".*", 1) if group else path, []).append(path)
    return list(found.values())


def out_of_place(here: list[str], there: list[str]) -> list[str]:
    """The fewest paths without which two programs run what they share in one order."""
    order = {path: k for k, path in enumerate(there)}
    shared = [path for path in here if path in order]
    best: list[list[str]] = []
    for path in shared:
        k = bisect([order[run[-1]] for run in best], order[path])
        best[k:k + 1] = [[*(best[k - 1] if k else []), path]]
    return [path for path in shared if path not in (best[-1] if best else ())]


def _moves(here: list[str], there: list[str], paths: list[str]) -> list[Table]:
    """Each path where it stands among the others in the program `there`."""
    stay = set(here) - set(paths)
    return [{"move": path, **_place(there, path, stay)} for path in paths]


def _place(order: list[str], path: str, present: Collection[str], later: bool = False) -> Table:
    """After the nearest path of `order` before it that is present, or before the nearest one after it."""
    at = order.index(path)
    before = next((p for p in reversed(order[:at]) if p in present), "")
    after = next((p for p in order[at:] if p in present), "")
    return {"before": after} if after and (later or not before) else {"after": before}


def _changes(mine: Event, wanted: Event) -> dict[str, Any]:
    """The keys that turn one event into another of the same path."""
    return {g.key: g.write(getattr(wanted, g.field)) for g in FIELDS.values()
            if g.key not in ("rule", "why") and getattr(wanted, g.field) != getattr(mine, g.field)}


def _drops(paths: list[str]) -> list[Table]:
    return [{"drop": path} for path in paths]


def _inserts(step: Step, base: Step, paths: list[str], dropped: list[str], later: bool = False) -> list[Table]:
    """Each event of `paths` after the nearest event before it, or before the nearest after it, in both programs.

    `later`: before the nearest after it, wherever there is one.
    """
    known, order = subjects(base.reference), [e.path for e in base.events]
    here = {e.path for e in step.events} - set(dropped)
    tables: list[Table] = []
    for path in paths:
        place = _place(order, path, here, later)
        event = replace(base.events[order.index(path)], copy=1)
        keys = {k: v for k, v in event_keys(event, known) if k not in ("rule", "why")}
        tables.append({"insert": keys, **place})
    return tables
