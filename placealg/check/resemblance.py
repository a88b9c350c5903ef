"""What is wrong with a program, in words that fit any program: by which two bugs are seen to be alike.

A program is held against the one that its strategy derives. Every event that is missing, extra, moved or changed
leaves a mark: verb and value (and whether that is a statistic's), what its axes split in place of their names, how the
parameters it concerns are split.
What a strategy itself declares otherwise (its normaliser, its random keys) leaves one, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from placealg.models.backward import GRAD
from placealg.step.difference import CHANGED, LEFT, MOVED, RIGHT, difference
from placealg.step.event import MICROBATCH
from placealg.step.event_fields import FIELDS
from placealg.step.program import LOOPED, Event, Reference, Step
from placealg.strategy.spec import Strategy

Mark = tuple[str, ...]
"""(how, where in the step, verb, value, what its axes split, how its parameters are split, what was changed)."""

_KINDS = {"batch": "data", "seq": "sequence", "layer": "stages", "expert": "experts", "none": ""}
_UNTOLD = ("rule", "why", "bytes", "version", "reads")


@dataclass(frozen=True)
class Likeness:
    """A refuted program as others may resemble it: an obligation that it fails, its marks, its placement.

    `groups` are the parameter groups concerned; they and the placement only decide between equal marks.
    """

    obligation: str
    marks: frozenset[Mark]
    placement: frozenset[tuple[str, str, str]]
    groups: frozenset[str]

    def resembles(self, other: Likeness) -> bool:
        """Whether both fail the same obligation, by the same changes."""
        return bool(self.marks) and (self.obligation, self.marks) == (other.obligation, other.marks)

    def closeness(self, other: Likeness) -> tuple[int, int]:
        """How much of placement and parameter groups two programs share, beyond what makes them alike."""
        return (len(self.placement & other.placement) - len(self.placement ^ other.placement),
                len(self.groups & other.groups) - len(self.groups ^ other.groups))


def likeness(obligation: str, strategy: Strategy, step: Step, base: Step) -> Likeness:
    """The fingerprint of a refuted program: its edits relative to the derived one."""
    events = list(_differences(step, base))
    marks = {_mark(how, e, old, step.reference) for how, e, old in events} | set(_declared(strategy, step.reference))
    placement = {(_kind(axis, step.reference), state, strategy.mode_text(state, axis))
                 for state in ("parameters", "optimizer", "gradients") for axis in strategy.mesh.names}
    return Likeness(obligation, frozenset(marks), frozenset(placement), frozenset(e.group for _, e, _ in events))


def _differences(step: Step, base: Step) -> Iterator[tuple[str, Event, Event | None]]:
    """(how, event, what it was) of every event that is not as derived."""
    said = {LEFT: "extra", RIGHT: "missing", MOVED: "moved", CHANGED: "changed"}
    for d in difference(step, base):
        if d.kind != CHANGED:
            yield said[d.kind], d.event, None
        elif d.one and any(key != "bytes" for key, _, _ in d.fields):
            yield said[d.kind], d.one, d.two


def _mark(how: str, event: Event, old: Event | None, reference: Reference) -> Mark:
    value = event.value if not event.on_tensor else "gradient" if event.value.endswith(GRAD) else "activation"
    group = reference.group(event.group) if event.group else None
    split = sorted(_kind(a, reference) for a in group.split) if group else []
    of_statistic = bool(group and group.statistic)
    phase = "loop" if event.phase in LOOPED else event.phase
    plain = old or Event(event.phase, event.verb, event.value, axes=event.axes, group=event.group, unit=event.unit,
                         source=event.source, to=event.to, tier=event.tier)
    value = f"statistic {value}" if of_statistic else value
    return (how, phase, event.verb, value, _kinds(event.axes, reference), ",".join(split),
            "; ".join(_changes(event, plain, reference)))


def _changes(event: Event, old: Event, reference: Reference) -> Iterator[str]:
    """The fields that differ, with axes by their kinds."""
    for gloss in (g for g in FIELDS.values() if g.key not in _UNTOLD):
        value, before = getattr(event, gloss.field), getattr(old, gloss.field)
        if value != before:
            yield f"{gloss.key} {_said(before, reference)} -> {_said(value, reference)}"


def _said(value: object, reference: Reference) -> str:
    """A field's value, with axes by their kinds, and all owner functions but "own" as one."""
    names = {a: f"<{_kind(a, reference)}>" for a in reference.mesh.names}
    if isinstance(value, str) and "(" in value and not value.startswith(("S(", "rank(", "local(")):
        value = f"another({value.partition('(')[2]}"
    return re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), str(value))


def _declared(strategy: Strategy, reference: Reference) -> Iterator[Mark]:
    """What a strategy declares that no derived step should: tokens counted over some ranks only, streams by rank."""
    counted = strategy.loss()["count_axes"] or ()
    if counted and set(counted) != {*strategy.data_axes, MICROBATCH}:
        yield "declared", "loss", "count_axes", _kinds(counted, reference)
    for key in reference.random_keys:
        yield "declared", "random", _said(str(key), reference)


def _kinds(axes: Iterable[str], reference: Reference) -> str:
    return ",".join(sorted({_kind(a, reference) for a in axes}))


def _kind(axis: str, reference: Reference) -> str:
    """What an axis splits first: the data, the sequence, experts, stages, or tensors; "microbatch" is itself."""
    if axis not in reference.mesh.names:
        return axis
    entries = (entry.rpartition(".")[2] for entry in reference.dims.get(axis, ()))
    return next((kind for kind in (_KINDS.get(e, "tensors") for e in entries) if kind), "data")
