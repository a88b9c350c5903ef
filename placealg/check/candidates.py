"""Candidate repairs: single edits that lead from a program towards the one that its strategy derives.

One edit restores, exchanges, moves, drops or inserts events of one kind: those that do the same to different parameter
groups, or, coarser, those of one verb along the same axes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from placealg.step.difference import LEFT, MOVED, RIGHT, UNSAID, by_path, difference
from placealg.step.event_fields import FIELDS
from placealg.step.program import LOOPED, Event, Step
from placealg.step.text import event_keys, subjects

Table = Mapping[str, Any]
"""One [[edit]] table."""

Events = Mapping[str, Event]
"""Path -> event, in program order."""

_MOST_KINDS = 8
"""Kinds of missing and of extra events beyond which they are not paired: no one edit is behind so many."""


def candidates(step: Step, base: Step) -> Iterator[list[Table]]:
    """Edits of `step` towards `base`, each as [[edit]] tables: the likeliest first."""
    here, there, differing = by_path(step), by_path(base), difference(step, base)
    yield from _restored(here, there)
    more, gone, astray = ([d.event.path for d in differing if d.kind == kind] for kind in (LEFT, RIGHT, MOVED))
    extra, missing = _kinds(here, more), _kinds(there, gone)
    if len(extra) + len(missing) <= _MOST_KINDS:
        yield from _exchanged(here, there, extra, missing)
    if returned := _returned(here, there, more, gone):
        yield returned
    if len(extra) == len(missing) == 1:
        for later in (False, True):
            yield [*_drops(extra[0]), *_inserts(step, base, missing[0], extra[0], later)]
    moved = _kinds(there, astray)
    coarse = [k for k in _kinds(here, more, _coarsely) if k not in extra]
    coarser = [k for k in _kinds(there, gone, _coarsely) if k not in missing]
    yield from (_drops(paths) for paths in (*extra, *coarse))
    yield from (_inserts(step, base, paths, [], later) for paths in (*missing, *coarser) for later in (False, True))
    yield from (_moves(list(here), list(there), paths) for paths in (*moved, *([astray] if len(moved) > 1 else [])))


def _finely(path: str, event: Event) -> str:
    """The same for events that do the same to different parameter groups."""
    return path.replace(f".{event.group}", ".*", 1) if event.group else path


def _coarsely(_path: str, event: Event) -> str:
    """The same for events of one verb along the same axes, in one phase."""
    return f"{event.phase}.{event.verb}{list(event.axes)}"


def _kinds(events: Events, paths: Iterable[str], key: Callable[[str, Event], str] = _finely) -> list[list[str]]:
    """Paths of one kind together."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(key(path, events[path]), []).append(path)
    return list(found.values())


def _restored(here: Events, there: Events) -> Iterator[list[Table]]:
    """Fields back to what the derived event says: those that were changed alike, then all of them."""
    changed = {p: _changes(here[p], there[p]) for p in there if p in here}
    tables: list[Table] = [{"set": p, **fields} for p, fields in changed.items() if fields]
    alike: dict[str, list[Table]] = {}
    for table in tables:
        alike.setdefault(str({k: v for k, v in table.items() if k != "set"}), []).append(table)
    yield from alike.values()
    if len(alike) > 1:
        yield tables


def _exchanged(here: Events, there: Events, extra: list[list[str]], missing: list[list[str]]) -> Iterator[list[Table]]:
    """Events that became others, back to what they were: in place, else where they belong.

    Beside a scale that is missing, too, its divisor may stand on the event itself.
    """
    pairs = [(likeness, mine, wanted) for mine in extra for wanted in missing
             if (likeness := _likeness(here, there, mine, wanted)) > 1 and _sayable(here, there, mine, wanted)]
    for _, mine, wanted in sorted(pairs, key=lambda pair: -pair[0]):
        twins = _by_group(here, mine)
        rest = [kind for kind in missing if kind != wanted]
        scales = _by_group(there, rest[0]) if len(rest) == 1 and there[rest[0][0]].verb == "scale" else {}
        if here[mine[0]].phase == there[wanted[0]].phase:
            yield [{"set": twins[there[p].group], **_changes(here[twins[there[p].group]], there[p])} for p in wanted]
            if set(scales) == set(twins):
                yield [{"set": twins[g], **_changes(here[twins[g]], replace(
                    there[p], divisor=there[p].divisor * there[scales[g]].divisor))}
                    for p in wanted for g in (there[p].group,)]
        for later in (False, True):
            yield [_moved(here, there, twins[there[p].group], p, mine, later) for p in wanted]


def _by_group(events: Events, paths: list[str]) -> dict[str, str]:
    return {events[p].group: p for p in paths}


def _likeness(here: Events, there: Events, mine: list[str], wanted: list[str]) -> int:
    """How much events of two kinds have in common; 0 where they concern other groups, or other units."""
    one, other = here[mine[0]], there[wanted[0]]
    if set(_by_group(here, mine)) != set(_by_group(there, wanted)) or one.unit != other.unit:
        return 0
    return sum((one.verb == other.verb, one.value == other.value, one.axes == other.axes, one.phase == other.phase))


def _sayable(here: Events, there: Events, mine: list[str], wanted: list[str]) -> bool:
    """Whether an edit can make the one what the other is: no file takes a place, a version or a size away."""
    fields = _changes(here[mine[0]], there[wanted[0]])
    return not any(value == "" for key, value in fields.items() if key != "where")


def _returned(here: Events, there: Events, more: list[str], gone: list[str]) -> list[Table]:
    """Events that stand in another phase, all back where they belong; [] where others differ, too."""
    def named(path: str) -> str:
        return path.partition(".")[2]

    twins = {named(p): p for p in more}
    if len(gone) < 2 or sorted(twins) != sorted(map(named, gone)):
        return []
    return [_moved(here, there, twins[named(p)], p, more) for p in gone]


def _moved(here: Events, there: Events, mine: str, wanted: str, leaving: Collection[str], later: bool = False) -> Table:
    """An edit that moves and changes one surplus event into a missing one."""
    fields = _changes(here[mine], there[wanted])
    if there[wanted].phase not in LOOPED:
        fields.pop("at", None)
    return {"move": mine, **_place(list(there), wanted, set(here) - set(leaving), later), **fields}


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
    """The keys that turn one event into another of the same group."""
    return {g.key: g.write(getattr(wanted, g.field)) for g in FIELDS.values()
            if g.key not in UNSAID and g.key != "group" and getattr(wanted, g.field) != getattr(mine, g.field)}


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
        keys = {k: v for k, v in event_keys(event, known) if k not in UNSAID}
        tables.append({"insert": keys, **place})
    return tables
