"""What goes round a ring: two of its blocks are held at a time, one in use and one that arrives.

A version that a ring brings passes by if no event of another phase reads it: then no device holds it whole. The
gradient that a ring sums is made block by block as well, each block where it stands when its turn comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from placealg.arith import ONE, Monomial
from placealg.step.event import Event

RING = "shift"

BLOCKS = 2
"""How many blocks of what goes round a device holds at a time, beside the one that it owns."""


def part(axes: Iterable[str]) -> Monomial:
    """The part of a value that its blocks in a ring over some axes are.

    >>> part(("cp",))
    2/cp
    """
    return Monomial.number(BLOCKS) / Monomial.of(*axes)


def brought(event: Event, later: Sequence[Event]) -> Monomial:
    """The part that is held at a time of a version that an event makes; 1 where that is no ring, or it is kept.

    `later` are the events that follow.
    """
    if event.verb != RING or event.on_gradient:
        return ONE
    text = f"{event.value}@{event.version}" if event.version else event.value
    until = takewhile(lambda e: not (e.verb == RING and (e.value, e.version) == (event.value, event.version)), later)
    return ONE if any(e.phase != event.phase and text in e.reads for e in until) else part(event.axes)


def summed(events: Iterable[Event]) -> dict[str, tuple[tuple[str, Monomial], ...]]:
    """Gradient -> (the label of a version that a ring sums, the part of it that is held at a time)."""
    found: dict[str, tuple[tuple[str, Monomial], ...]] = {}
    for event in events:
        if event.verb == RING and event.on_gradient:
            found[event.value] = (*found.get(event.value, ()), (event.version, part(event.axes)))
    return found
