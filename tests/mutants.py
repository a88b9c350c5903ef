"""Every single-event mutant of a program: deletions, doublings, axis changes, adjacent swaps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from placealg.step.program import LOOPED, Event, Step

Mutant = tuple[str, Step]


def deletions(step: Step) -> Iterator[Mutant]:
    """Each event deleted, one at a time."""
    for k, event in enumerate(step.events):
        yield f"drop {event.path}", _with(step, [*step.events[:k], *step.events[k + 1:]])


def tensor_deletions(step: Step) -> Iterator[Mutant]:
    """Each event on a tensor of the op graph, its loss among them, deleted, one at a time."""
    for k, event in enumerate(step.events):
        if event.on_tensor or event.value == "loss":
            yield f"drop {event.path}", _with(step, [*step.events[:k], *step.events[k + 1:]])


def tensor_doublings(step: Step) -> Iterator[Mutant]:
    """Each event on a tensor of the op graph run twice in a row, one at a time."""
    for k, event in enumerate(step.events):
        if event.on_tensor:
            again = replace(event, copy=event.copy + 1)
            yield f"double {event.path}", _with(step, [*step.events[: k + 1], again, *step.events[k + 1:]])


def doublings(step: Step) -> Iterator[Mutant]:
    """Each event run twice in a row, one at a time."""
    for k, event in enumerate(step.events):
        again = replace(event, copy=event.copy + 1)
        yield f"double {event.path}", _with(step, [*step.events[: k + 1], again, *step.events[k + 1:]])


def axis_changes(step: Step) -> Iterator[Mutant]:
    """Each event's axis set with one axis taken away, added, or exchanged for another."""
    names = step.reference.mesh.names
    for k, event in enumerate(step.events):
        if not event.axes:
            continue
        sets = [tuple(a for a in event.axes if a != gone) for gone in event.axes if len(event.axes) > 1]
        sets += [tuple(a for a in names if a in (*event.axes, new)) for new in names if new not in event.axes]
        sets += [tuple(new if a == old else a for a in event.axes)
                 for old, new in itertools.product(event.axes, names) if new not in event.axes]
        for axes in sets:
            events = [*step.events[:k], replace(event, axes=axes), *step.events[k + 1:]]
            yield f"axes of {event.path} -> {list(axes)}", _with(step, events)


def swaps(step: Step) -> Iterator[Mutant]:
    """Each adjacent pair exchanged: the second event moves before the first, into its phase."""
    for k, (one, two) in enumerate(itertools.pairwise(step.events)):
        moved = replace(two, phase=one.phase)
        if (one.phase in LOOPED) != (two.phase in LOOPED) and not two.group and two.verb == "compute":
            continue
        yield f"swap {one.path} / {two.path}", _with(step, [*step.events[:k], moved, one, *step.events[k + 2:]])


def _with(step: Step, events: list[Event]) -> Step:
    return replace(step, events=tuple(events))
