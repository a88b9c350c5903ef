"""Changes of when a counter moves: the step counter, the random stream, the loss scale, at every other place of a step.

A counter belongs to no unit, and everything that reads it reads it where it stands: a mask that is drawn again, an
update. So its events are tried between any two runs of events that belong together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mutants import Mutant

from placealg.step.program import LOOPED, STEP_PHASES, Event, Step

COUNTERS = ("step", "rng", "loss_scale")
_TIMES = ((), ("first",), ("last",))
"""The microbatches in which an event of the loop is tried."""


def counter_changes(step: Step) -> Iterator[Mutant]:
    """Each event of a step on a counter moved to another place, or run there besides, in all microbatches or at an end;
    and the counter broadcast there over the whole mesh.
    """
    places = list(_places(step))
    for event in step.events:
        if event.value not in COUNTERS or event.phase not in STEP_PHASES:
            continue
        for before, phase in places:
            for at in _TIMES if phase in LOOPED else ((),):
                there = replace(event, phase=phase, at=at)
                yield _put("move", step, event, there, before, leave=False)
                yield _put("add", step, event, replace(there, copy=9), before, leave=True)
            shared = Event(phase, "broadcast", event.value, axes=step.reference.mesh.names, copy=9)
            yield _put("share", step, event, shared, before, leave=True)


def _places(step: Step) -> Iterator[tuple[int, str]]:
    """(index of an event before which another one may stand, its phase), where a run of events of one unit begins."""
    for k, event in enumerate(step.events[1:], 1):
        last = step.events[k - 1]
        if event.phase in STEP_PHASES and (last.phase, step.unit_of(last)) != (event.phase, step.unit_of(event)):
            yield k, event.phase


def _put(what: str, step: Step, old: Event, new: Event, before: int, leave: bool) -> Mutant:
    events = [*step.events[:before], new, *step.events[before:]]
    if not leave:
        events.remove(old)
    anchor = step.events[before]
    return Mutant(f"{what} {old} to {' '.join(new.at) or 'all'}, before {anchor}", replace(step, events=tuple(events)),
                  (old,), (new,) if not leave else (old, new))
