"""One edit that makes a program provable again, found by holding it against the derived program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from placealg.cost.communication import communication
from placealg.prove.prover import examine
from placealg.prove.verdict import PROVED, Repair
from placealg.step.program import Event, Step

Kind = tuple[str, ...]
"""What an event does, whichever parameter group it does it to: events of one kind are edited by one pattern."""


def find_repair(step: Step, base: Step) -> Repair | None:
    """The first single edit towards `base` whose program is proved, with what it does to communication."""
    for edit, events in _edits(step.events, base.events):
        repaired = replace(step, events=events)
        if all(v.verdict == PROVED for v in examine(repaired).verdicts):
            return Repair(edit, _cost(step, repaired))
    return None


def _cost(step: Step, repaired: Step) -> str:
    before, after = (communication(s).total for s in (step, repaired))
    return "no communication" if before == after else f"communication {before.text()} -> {after.text()} bytes per step"


def _edits(mine: tuple[Event, ...], base: tuple[Event, ...]) -> Iterator[tuple[str, tuple[Event, ...]]]:
    """Restoring changed events, exchanging one kind for another, dropping one kind, inserting one kind."""
    here, there = {e.path: e for e in mine}, {e.path: e for e in base}
    changed = [p for p in there if p in here and here[p] != there[p]]
    for kind, paths in _kinds(there, changed).items():
        yield f'restore "{pattern(kind)}" as derived', tuple(there[e.path] if e.path in paths else e for e in mine)
    extra = _kinds(here, [p for p in here if p not in there])
    missing = _kinds(there, [p for p in there if p not in here])
    if len(extra) == len(missing) == 1:
        (old, gone), (new, wanted) = next(iter(extra.items())), next(iter(missing.items()))
        kept = tuple(e for e in mine if e.path not in gone)
        yield f'replace "{pattern(old)}" by "{pattern(new)}"', _inserted(kept, base, wanted)
    for kind, paths in extra.items():
        yield f'drop = "{pattern(kind)}"', tuple(e for e in mine if e.path not in paths)
    for kind, paths in missing.items():
        anchor = _anchor(mine, base, paths[0])
        place = f' after "{anchor}"' if anchor and len(paths) == 1 else ""
        yield f'insert "{pattern(kind)}"{place}', _inserted(mine, base, paths)


def _kinds(events: dict[str, Event], paths: list[str]) -> dict[Kind, list[str]]:
    """Paths by what their events do."""
    found: dict[Kind, list[str]] = {}
    for path in paths:
        event = events[path]
        rest = path[len(event.phase):].replace(f".{event.group}", ".*", 1) if event.group else path[len(event.phase):]
        found.setdefault((event.phase, rest), []).append(path)
    return {(k if len(v) > 1 else (v[0],)): v for k, v in found.items()}


def pattern(kind: Kind) -> str:
    """The pattern that matches the paths of one kind."""
    return "".join(kind)


def _inserted(mine: tuple[Event, ...], base: tuple[Event, ...], paths: list[str]) -> tuple[Event, ...]:
    """`mine` with these events of `base`, each after the nearest event before it that both programs have."""
    for path in paths:
        anchor = _anchor(mine, base, path)
        position = next((k + 1 for k, e in enumerate(mine) if e.path == anchor), 0)
        mine = (*mine[:position], next(e for e in base if e.path == path), *mine[position:])
    return mine


def _anchor(mine: tuple[Event, ...], base: tuple[Event, ...], path: str) -> str:
    order, here = [e.path for e in base], {e.path for e in mine}
    return next((p for p in reversed(order[: order.index(path)]) if p in here), "")
