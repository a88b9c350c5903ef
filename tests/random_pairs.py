"""Seeded random pairs of edits that may undo each other: what is right in one reading of a program, wrong in another.

One edit is seldom right by accident. Two that belong together are: a factor and its inverse, on the same tensor at two
places, in other units, on copies, in other instances; with a `pad` that changes nothing beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from random_dims import programs as derived

from placealg.errors import InputError
from placealg.model.backward import GRAD
from placealg.step.edit import edit
from placealg.step.program import LOOPED, Event, Step

LABELS = ("", "", "", "x")
"""The versions on which a factor stands: the tensor's own, or a copy."""


def programs(seed: int, number: int) -> Iterator[tuple[str, Step]]:
    """So many programs, each with what was done to it."""
    draw = Random(f"pairs {seed}")
    source = derived(seed)
    for _ in range(number):
        while True:
            sample = next(source)
            tables = [*_padded(draw, sample.step), *_undone(draw, sample.step)]
            try:
                yield f"{sample.story}; {tables}", edit(sample.step, *tables)
            except InputError:
                continue
            break


def _padded(draw: Random, step: Step) -> list[dict[str, Any]]:
    """Half of the time: what an op makes of a split dim, with zeros where others own it."""
    graph = step.reference.graph
    assert graph is not None
    made = [e for e in step.phase("forward") if e.on_tensor and e.verb == "compute" and graph.tensors[e.tensor].dims]
    if draw.random() < 0.5 or not made:
        return []
    event = draw.choice(made)
    axis, dim = draw.choice(step.reference.mesh.names), draw.choice(list(graph.tensors[event.tensor].dims))
    pad = {"path": f"forward.{event.tensor}.pad[{axis}]", "unit": event.unit, "from": f"S({dim})"}
    return [{"insert": pad, "after": event.path}]


def _undone(draw: Random, step: Step) -> list[dict[str, Any]]:
    """A factor on a tensor or its gradient, and its inverse behind another event of the same loop."""
    events = [e for e in step.events if e.phase in LOOPED and e.on_tensor]
    one = draw.choice([e for e in events if e.verb in ("compute", "assign", "recv")])
    axis, label = draw.choice(step.reference.mesh.names), draw.choice(LABELS)
    near = [e for e in events if e.phase == one.phase]
    other = draw.choice([e for e in near if e.tensor == one.tensor or draw.random() < 0.2] or near)
    value = one.tensor + GRAD if one.on_gradient else one.tensor
    return [_scale(one, value, axis, label, axis, "#5"), _scale(other, value, axis, label, f"1/{axis}", "#6")]


def _scale(at: Event, value: str, axis: str, label: str, divisor: str, copy: str) -> dict[str, Any]:
    made = {"path": f"{at.phase}.{value}.scale[{axis}]{copy}", "unit": at.unit, "divisor": divisor}
    return {"insert": {**made, "version": label} if label else made, "after": at.path}
