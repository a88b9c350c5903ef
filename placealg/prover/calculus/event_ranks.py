"""The ranks on which an event runs, and the owners that it speaks of, as positions along the axes of the mesh."""

from __future__ import annotations

from placealg.prover.calculus.positions import LAST, Pairs, Position, all_but, owner, rank
from placealg.step.event import Event
from placealg.step.where import LAST_RANK, Clause

_ALL: Pairs = frozenset()


def pairs(event: Event) -> Pairs:
    """The `where` of an event as (axis, position) pairs; values without elements are owned by coordinate 0.

    Ranks that it leaves out are those of `left_out`.
    """
    return frozenset((c.axis, _position(event, c)) for c in event.where if not c.but) if event.where else _ALL


def left_out(event: Event) -> Pairs:
    """The (axis, position) pairs of which the `where` of an event leaves out every rank that is at one."""
    return frozenset((c.axis, _position(event, c)) for c in event.where if c.but) if event.where else _ALL


def among(event: Event) -> Pairs:
    """The (axis, position) pairs at all of which a rank stands on which the event runs."""
    return pairs(event) | frozenset((axis, all_but(position)) for axis, position in left_out(event))


def _position(event: Event, clause: Clause) -> Position:
    if clause.rank is None:
        return owner_of(event) if event.group else rank(0)
    return LAST if clause.rank == LAST_RANK else rank(clause.rank)


def owner_of(event: Event) -> Position:
    """The position of the owner of the element under the event's layout."""
    return owner(event.layout.partition("(")[0], event.drawn)


def owner_pairs(event: Event) -> Pairs:
    """The owners along the event's axes."""
    return frozenset((a, owner_of(event)) for a in event.axes)
