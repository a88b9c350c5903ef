"""The memory of rings: two blocks of a value are held at a time, one in use and one that arrives.

A version that a ring brings is never held whole by a device if no event of another phase reads it. The gradient that a
ring sums is made block by block as well, each block on the rank that it has reached, at that turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from placealg.arith import ONE, Monomial
from placealg.step.event import Event

RING = "shift"

BLOCKS = 2
"""The number of blocks of a ring's value that a device holds at a time, beside the one that it owns."""


def part(axes: Iterable[str]) -> Monomial:
    """The fraction of a value that its blocks in a ring over some axes make up.

    >>> part(("cp",))
    2/cp
    """
    return Monomial.number(BLOCKS) / Monomial.of(*axes)


def brought(event: Event, later: Sequence[Event]) -> Monomial:
    """The fraction of a version that is held at a time if a ring brings it; 1 for other events, or if it is kept.

    `later` are the events that follow.
    """
    if event.verb != RING or event.on_gradient:
        return ONE
    text = f"{event.value}@{event.version}" if event.version else event.value
    until = takewhile(lambda e: not (e.verb == RING and (e.value, e.version) == (event.value, event.version)), later)
    return ONE if any(e.phase != event.phase and text in e.reads for e in until) else part(event.axes)


def summed(events: Iterable[Event]) -> dict[str, tuple[tuple[str, Monomial], ...]]:
    """Gradient -> (the label of a version that a ring sums, the fraction of it that is held at a time)."""
    found: dict[str, tuple[tuple[str, Monomial], ...]] = {}
    for event in events:
        if event.verb == RING and event.on_gradient:
            found[event.value] = (*found.get(event.value, ()), (event.version, part(event.axes)))
    return found
