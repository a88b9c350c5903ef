"""The differences of two programs: events of only one of them, events in another order, events with other fields.

Every comparison of programs reads them: `placealg diff`, the search for a repair, and what a refuted program resembles.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placealg.step.event_fields import FIELDS
from placealg.step.program import Event, Step

LEFT, RIGHT, MOVED, CHANGED = "left", "right", "moved", "changed"
"""Only in the first program; only in the second; in both, in another order; in both, with other fields."""

UNSAID = ("why", "rule")
"""The fields that give the reason for an event, and are no part of what it does."""


@dataclass(frozen=True, slots=True)
class EventChange:
    """One event that differs: how, the event in the first and in the second program, and the fields that changed.

    A field is (key, before, after) as files write it.
    """

    kind: str
    one: Event | None
    two: Event | None
    fields: tuple[tuple[str, Any, Any], ...] = ()

    @property
    def event(self) -> Event:
        """The event of the second program, or of the first if the second lacks it."""
        event = self.two or self.one
        assert event is not None
        return event


def difference(one: Step, two: Step) -> tuple[EventChange, ...]:
    """Every event in which `two` differs from `one`, in the order of the first program and then of the second.

    An event is identified by its path. If the order differs, as few events as possible are reported as moved.

    >>> import placealg as pa
    >>> step = pa.derive(pa.zero1(), pa.abstract())
    >>> [(d.kind, d.event.path) for d in difference(step, pa.edit(step, drop="publish.*"))]
    [('left', 'publish.layer.weight.publish[dp]')]
    """
    left, right = by_path(one), by_path(two)
    moved = set(out_of_place(list(left), list(right)))
    found = []
    for path, event in left.items():
        if path not in right:
            found.append(EventChange(LEFT, event, None))
            continue
        if path in moved:
            found.append(EventChange(MOVED, event, right[path]))
        if changed := _changed(event, right[path]):
            found.append(EventChange(CHANGED, event, right[path], changed))
    return (*found, *(EventChange(RIGHT, None, event) for path, event in right.items() if path not in left))


def by_path(step: Step) -> Mapping[str, Event]:
    """Path -> event, in program order."""
    return {event.path: event for event in step.listing}


def out_of_place(here: Sequence[str], there: Sequence[str]) -> list[str]:
    """The fewest paths without which two programs run what they share in one order.

    >>> out_of_place(["a", "b", "c", "x"], ["c", "a", "b"])
    ['c']
    """
    order = {path: k for k, path in enumerate(there)}
    shared = [path for path in here if path in order]
    best: list[list[str]] = []
    for path in shared:
        k = bisect([order[run[-1]] for run in best], order[path])
        best[k:k + 1] = [[*(best[k - 1] if k else []), path]]
    return [path for path in shared if path not in (best[-1] if best else ())]


def _changed(one: Event, two: Event) -> tuple[tuple[str, Any, Any], ...]:
    return tuple((gloss.key, gloss.write(getattr(one, gloss.field)), gloss.write(getattr(two, gloss.field)))
                 for gloss in FIELDS.values()
                 if gloss.key not in UNSAID and getattr(one, gloss.field) != getattr(two, gloss.field))
