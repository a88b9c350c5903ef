"""Every single-event mutant of a program: deletions, doublings, axis changes, adjacent swaps; and which are alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from placealg.step.edit import edit
from placealg.step.program import LOOPED, Event, Step


@dataclass(frozen=True)
class Mutant:
    """A program with one change: what was changed, at which events, and what stands there instead."""

    story: str
    step: Step
    events: tuple[Event, ...]
    instead: tuple[Event, ...]

    @property
    def kind(self) -> object:
        """What mutants have in common that change events which do the same, to values of the same sort."""
        return tuple(tuple(map(sort, events)) for events in (self.events, self.instead))


Kind = Callable[[Step], Iterator[Mutant]]


def sort(event: Event) -> object:
    """What an event does and why, whatever the tensor or the group that it does it to."""
    return (event.phase, event.verb, event.on_tensor, event.on_gradient, "" if event.on_tensor else event.value,
            event.axes, event.op, event.at, event.where, event.source[:1], event.to[:1], bool(event.version),
            event.rule.name)


def of_every_sort(kind: Kind, step: Step) -> Iterator[Mutant]:
    """The first mutant of every sort."""
    seen = set()
    for mutant in kind(step):
        if mutant.kind not in seen:
            seen.add(mutant.kind)
            yield mutant


def deletions(step: Step) -> Iterator[Mutant]:
    """Each event deleted, one at a time."""
    for k, event in enumerate(step.events):
        yield _mutant("drop", step, k, (event,), ())


def doublings(step: Step) -> Iterator[Mutant]:
    """Each event run twice in a row, one at a time."""
    for k, event in enumerate(step.events):
        yield _mutant("double", step, k, (event,), (event, replace(event, copy=event.copy + 1)))


POSITIONS = ("first", "middle", "last", ["first", "last"])
"""Microbatches at which an event may run, as `at` says them."""


def at_other_microbatches(name: str, step: Step, group: str) -> Iterator[tuple[str, Step]]:
    """Each event of the microbatch loop on a group at other microbatches, left out, or twice."""
    for event in (e for e in step.events if e.phase in LOOPED and e.group == group):
        for at in POSITIONS:
            yield f"{name}: {event.path} at {at}", edit(step, set=event.path, at=at)
        yield f"{name}: no {event.path}", edit(step, drop=event.path)
        yield f"{name}: {event.path} twice", edit(step, double=event.path)


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
            yield _mutant(f"axes {list(axes)} of", step, k, (event,), (replace(event, axes=axes),))


def swaps(step: Step) -> Iterator[Mutant]:
    """Each adjacent pair exchanged: the second event moves before the first, into its phase.

    Ops stay in the loop that runs their unit, and a checkpoint is stored in its own phase.
    """
    for k, (one, two) in enumerate(itertools.pairwise(step.events)):
        if (one.phase in LOOPED) != (two.phase in LOOPED) and not two.group and two.verb == "compute":
            continue
        if (one.on_tensor or two.on_tensor) and (one.phase, one.unit) != (two.phase, two.unit):
            continue
        if two.verb == "store" and one.phase != two.phase:
            continue
        yield _mutant("swap", step, k, (one, two), (replace(two, phase=one.phase), one))


KINDS: dict[str, Kind] = {k.__name__: k for k in (deletions, doublings, axis_changes, swaps)}


def _mutant(what: str, step: Step, k: int, events: tuple[Event, ...], instead: tuple[Event, ...]) -> Mutant:
    changed = (*step.events[:k], *instead, *step.events[k + len(events):])
    return Mutant(f"{what} {' / '.join(e.path for e in events)}", replace(step, events=changed), events, instead)
