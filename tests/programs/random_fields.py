"""Random edits in the words in which a file says them: any field of any event, so that none can be forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import random_dims

from placealg.errors import InputError
from placealg.models.abstract import abstract
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.event_fields import KINDS, OPERATORS, values_of
from placealg.step.program import GROUP_VALUES, POSITIONS, TIERS, Event, Step
from placealg.step.verbs import VERBS
from placealg.strategy.expression import parse_strategy

PLAIN = ("dp", "zero1", "zero2", "zero3", "hsdp", "zero1*offload_optimizer", "zero3*offload_parameters", "mics")
"""Strategies whose programs run unit by unit."""


def _axes(step: Step) -> tuple[str, ...]:
    return step.reference.mesh.names


def _places(_: Event, step: Step) -> Sequence[str]:
    return (*KINDS, *GROUP_VALUES, *(f"S({d})" for d in step.reference.graph.dims))


WORDS: Mapping[str, Callable[[Event, Step], Sequence[Any]]] = {
    "verb": lambda event, step: tuple(VERBS),
    "value": lambda event, step: values_of(event.verb, step.reference),
    "group": lambda event, step: [g.name for g in step.reference.groups],
    "unit": lambda event, step: [u.name for u in step.reference.units],
    "axes": lambda event, step: [*([a] for a in _axes(step)), list(_axes(step)), list(reversed(_axes(step))), []],
    "op": lambda event, step: OPERATORS,
    "divisor": lambda event, step: ("1", "2", "m", "tokens", "count", *_axes(step), f"m*{_axes(step)[0]}"),
    "at": lambda event, step: (*POSITIONS, ["first", "middle"], ["only", "last"]),
    "where": lambda event, step: ("all", *(w for a in _axes(step) for w in (f"owner({a})", f"rank({a})=0",
                                                                             f"rank({a})=1", f"rank({a})=last",
                                                                             f"not rank({a})=0", f"not owner({a})"))),
    "from": _places,
    "to": _places,
    "version": lambda event, step: (*_axes(step), "other"),
    "reads": lambda event, step: [[f"{r.partition('@')[0]}@{a}" for r in event.reads] for a in (*_axes(step), "other")],
    "root": lambda event, step: (0, 1),
    "tier": lambda event, step: TIERS,
    "layout": lambda event, step: ("alt", *(f"shuffled({a})" for a in _axes(step))),
    "bytes": lambda event, step: ("act", "w", "2"),
}
"""Key of an edit -> words that may stand there."""

SHARED = ("phase", "verb", "value", "group", "unit")
"""What events have in common that are dropped together."""


def edited(draw: Random, step: Step) -> tuple[str, Step]:
    """(story, program) after one edit; raises InputError where what was drawn means nothing."""
    event = draw.choice(step.events)
    what = draw.choice((*WORDS, "from", "clear", "move", "double"))
    if what == "clear":
        shared = draw.choice(SHARED)
        gone = getattr(event, shared)
        left = tuple(e for e in step.events if getattr(e, shared) != gone)
        return f"clear {shared} {gone}", replace(step, events=left)
    words: dict[str, Any] = {what: event.path}
    if what == "move":
        words[draw.choice(("before", "after"))] = draw.choice(step.events).path
    elif what in WORDS:
        words = {"set": event.path, what: draw.choice(list(WORDS[what](event, step)))}
    return str(words), edit(step, words)


def derived(draw: Random) -> Iterator[tuple[str, Step]]:
    """Programs without end: of ops, or of units."""
    of_ops = random_dims.programs(draw.randrange(10**9))
    while True:
        if draw.random() < 0.4:
            name = draw.choice(PLAIN)
            yield name, derive(parse_strategy(name), abstract())
        else:
            sample = next(of_ops)
            yield sample.story, sample.step


def programs(seed: int, count: int) -> Iterator[tuple[str, Step]]:
    """(story, program): derived ones, with one edit or two that mean something."""
    return islice(_programs(Random(seed)), count)


def _programs(draw: Random) -> Iterator[tuple[str, Step]]:
    for story, step in derived(draw):
        for _ in range(draw.choice((1, 1, 1, 2))):
            for _ in range(100):
                try:
                    told, changed = edited(draw, step)
                except InputError:
                    continue
                if changed.events != step.events:
                    story, step = f"{story}; {told}", changed
                    break
        yield story, step
