"""Inserted events whose results nothing reads: most likely a typing error, since the program runs as without them."""

from __future__ import annotations

from collections.abc import Iterable

from placealg.step.event import PARTIALS, Event
from placealg.step.graph import reads, writes
from placealg.step.program import LOOPED, Step

WITHIN_A_STEP = ("grad", "count", *PARTIALS)
"""The values, besides tensors, that no step leaves to the next."""


def unread(step: Step, inserted: Iterable[Event]) -> tuple[Event, ...]:
    """The inserted events whose results no later event of the step reads.

    A value that lasts from step to step counts as read; what is written in the loop over microbatches may be read by
    events of the next iteration.
    """
    order = {event.path: k for k, event in enumerate(step.events)}
    found = []
    for event in inserted:
        made = set(writes(event, step.reference))
        if event.path not in order or event.verb in ("free", "store", "send") or not made:
            continue
        if not (event.on_tensor or event.value in WITHIN_A_STEP):
            continue
        at = order[event.path]
        later = [*step.events[at + 1:], *(e for e in step.events[:at] if event.phase in LOOPED and e.phase in LOOPED)]
        if not any(made.intersection(reads(other, step.reference)) for other in later):
            found.append(event)
    return tuple(found)
