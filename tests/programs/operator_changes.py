"""Changes of what an event does, its axes apart: its operator, its target, where it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mutants import Mutant

from placealg.step.program import Clause, Event, Step

_LOCAL = ("assign", "zero", "accumulate", "norm", "clip", "update", "store", "load", "publish", "offload", "fetch")


def operator_changes(step: Step) -> Iterator[Mutant]:
    """Each event with another operator, another target, and with `where` widened, narrowed, or moved."""
    for k, event in enumerate(step.events):
        for changed in _changes(step, event):
            events = (*step.events[:k], changed, *step.events[k + 1:])
            yield Mutant(f"another operator, target or place of {event}", replace(step, events=events), (event,),
                         (changed,))


def _changes(step: Step, event: Event) -> Iterator[Event]:
    if event.verb == "reduce":
        yield replace(event, op="sum" if event.op == "mean" else "mean")
        yield replace(event, to="I" if event.to == "S" else "S")
    if event.group and event.verb in _LOCAL and not event.axes:
        for n in range(len(event.where)):
            yield replace(event, where=(*event.where[:n], *event.where[n + 1:]))
            clause = event.where[n]
            yield replace(event, where=(*event.where[:n], Clause(clause.axis, 0 if clause.rank is None else None),
                                        *event.where[n + 1:]))
        for axis in step.reference.mesh.names:
            if axis not in [c.axis for c in event.where]:
                yield replace(event, where=(*event.where, Clause(axis)))
                yield replace(event, where=(*event.where, Clause(axis, 0)))
