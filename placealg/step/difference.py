"""How two programs differ: the events of one alone, those that stand elsewhere, and those that say something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from placealg.step.event_fields import FIELDS
from placealg.step.program import Event, Step

LEFT, RIGHT, MOVED, CHANGED = "left", "right", "moved", "changed"
"""Only in the first program; only in the second; in both, in another order; in both, with other fields."""

_UNSAID = ("why", "rule")
"""Why an event is there is no part of what it does."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One event that differs: how, and of a changed one (field, before, after) for each field as files write it."""

    kind: str
    event: Event
    fields: tuple[tuple[str, Any, Any], ...] = ()


def difference(one: Step, two: Step) -> tuple[Difference, ...]:
    """Every event in which `two` differs from `one`, in the order of the first program and then of the second.

    An event is identified by its path. If the order differs, as few events as possible are reported as moved.

    >>> import placealg as pa
    >>> step = pa.derive(pa.zero1(), pa.abstract())
    >>> [(d.kind, d.event.path) for d in difference(step, pa.edit(step, drop="publish.*"))]
    [('left', 'publish.layer.weight.publish[dp]')]
    """
    left, right = ({e.path: e for e in step.events} for step in (one, two))
    both = [path for path in left if path in right]
    kept = _in_order(both, [path for path in right if path in left])
    found = []
    for path, event in left.items():
        if path not in right:
            found.append(Difference(LEFT, event))
            continue
        if path not in kept:
            found.append(Difference(MOVED, right[path]))
        if changed := _changed(event, right[path]):
            found.append(Difference(CHANGED, right[path], changed))
    return (*found, *(Difference(RIGHT, event) for path, event in right.items() if path not in left))


def _in_order(one: Sequence[str], two: Sequence[str]) -> set[str]:
    """The paths that keep their order."""
    blocks = SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks()
    return {path for block in blocks for path in one[block.a:block.a + block.size]}


def _changed(one: Event, two: Event) -> tuple[tuple[str, Any, Any], ...]:
    return tuple((gloss.key, gloss.write(getattr(one, gloss.field)), gloss.write(getattr(two, gloss.field)))
                 for gloss in FIELDS.values()
                 if gloss.key not in _UNSAID and getattr(one, gloss.field) != getattr(two, gloss.field))
