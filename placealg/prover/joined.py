"""Events that a prover may take together: two that stand side by side and run on complementary ranks are one event.

The calculus follows what one event does on some ranks, and claims nothing of the others. Of two that do the same, one
where a condition holds and one where it does not, each rank runs one: together they are the event without it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from placealg.step.event import PARTIALS, Event, Rule
from placealg.step.lower import lowered
from placealg.step.program import Step


def prepared(step: Step) -> Step:
    """The step as ops on tensors, with complementary neighbours as one event."""
    events = list(step.events)
    while (k := next((k for k, pair in enumerate(pairwise(events)) if complementary(*pair)), None)) is not None:
        shared = tuple(c for c in events[k].where if c in events[k + 1].where)
        events[k:k + 2] = [replace(events[k], where=shared)]
    return lowered(step if len(events) == len(step.events) else replace(step, events=tuple(events)))


def complementary(one: Event, other: Event) -> bool:
    """Whether two events are the same but for one condition that one of them has, and the other one negated.

    A condition on an axis of the event itself splits those who run it together, and is none that is left out.
    """
    if not one.where or _same(one) != _same(other):
        return False
    apart = {*one.where} ^ {*other.where}
    if len(apart) != 2 or len(one.where) != len(other.where):
        return False
    first, second = apart
    if replace(first, but=not first.but) != second or first.axis in one.axes:
        return False
    whole = one.verb == "update" and first.rank is None  # of a matrix, an owner's part may read the others as they were
    return not whole and not (one.value in PARTIALS and not one.axes)


def _same(event: Event) -> Event:
    return replace(event, where=(), copy=1, rule=Rule("", ""), said="", bytes="")
