"""Gradients summed in the types that a program says, rank by rank, beside the same sum in doubles: what rounding does.

It runs the events that add, each rank and microbatch with numbers of its own, and rounds every result; it shares no
count and no formula with `cost/rounding.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from placealg.number_formats import FORMATS, NumberFormat, told
from placealg.step.program import LOOPED, STEP_PHASES, Event, Step
from placealg.step.sums import type_of
from placealg.strategy.vocabulary import ACC


@dataclass(frozen=True, slots=True)
class Measured:
    """What rounding did to one gradient: `relative` its error over its norm, `share` the largest error of an element
    over the sum of its |contributions|; and the norms of one contribution (the mean square over all) and of the whole.
    """

    relative: float
    share: float
    contribution: float
    whole: float


def rounded(values: Any, form: NumberFormat) -> Any:
    """Doubles rounded to the nearest number of a format, to even where two are, whatever its range.

    >>> rounded(np.array([1 + 2**-9, 1 + 3 * 2**-8]), FORMATS["bf16"]).tolist()
    [1.0, 1.015625]
    """
    part, exponent = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(part, form.digits)), exponent - form.digits)


def measure(step: Step, group: str, sizes: Mapping[str, int], half: str = "", order: str = "", adds: str = "",
            mean: float = 0.0, deviation: float = 1.0, elements: int = 2000, seed: int = 0) -> Measured:
    """One step of a group's gradient: contributions are normal with `mean` and `deviation`, rounded to their type.

    `half`, `order` and `adds` as in `cost.rounding.tolerance`.
    """
    found = step.reference.group(group)
    types = {**step.reference.types, **found.types}
    events = [e for e in step.phase(*STEP_PHASES) if e.group == group and e.verb in ("reduce", "accumulate")
              and e.op != "max"]
    axes = tuple(dict.fromkeys(a for e in events if e.verb == "reduce" for a in e.axes))

    def form(size: str) -> NumberFormat:
        name = told(size)
        return FORMATS[name if name in FORMATS else {"2": half, "4": "fp32"}[name]]

    adding = adds or step.reference.adds
    machine = _Machine(axes, [sizes[a] for a in axes], order or step.reference.algorithm,
                       FORMATS[adding] if adding else None)
    shape = (sizes["m"], *machine.shape, elements)
    leaves = rounded(np.random.default_rng(seed).normal(mean, deviation, shape), form(types.get("use", types["w"])))
    late = {e for e in events if {"last", "only"} & set(e.at) or e.phase not in LOOPED}
    reduced = any(e.verb == "reduce" and e.value == "grad" for e in events)
    total: Any = 0.0
    for each in leaves:
        value, done = each, set[tuple[str, ...]]()
        for event in (e for e in events if e not in late):
            if event.verb == "reduce" and event.axes not in done:
                done.add(event.axes)
                value = machine.reduce(value, event, form(type_of(step, found, event, "wire")))
            elif event.verb == "accumulate":
                into = form(type_of(step, found, event, "g" if reduced else ACC))
                total = rounded(value + total, into)
    for event in (e for e in events if e in late and e.verb == "reduce"):
        total = rounded(machine.reduce(total, event, form(type_of(step, found, event, "wire"))), form(types["g"]))
    over = prod(sizes[a] for e in events if e.verb == "reduce" for a in e.axes
                if e.op == "mean" or a in e.divisor.names())
    flat = leaves.reshape(-1, elements)
    right, most = flat.sum(0), np.abs(flat).sum(0)
    error = total.reshape(-1, elements)[0] * over - right
    return Measured(float(np.linalg.norm(error) / np.linalg.norm(right)), float((np.abs(error) / most).max()),
                    float(np.sqrt((flat**2).sum(1).mean())), float(np.linalg.norm(right)))


class _Machine:
    """Ranks along axes, and how a collective over some of them adds."""

    def __init__(self, axes: tuple[str, ...], shape: list[int], order: str, adds: NumberFormat | None):
        self.axes, self.shape, self.order, self.adds = axes, tuple(shape), order, adds

    def reduce(self, values: Any, event: Event, wire: NumberFormat) -> Any:
        """The sum over an event's axes, which every rank has afterwards; a mean is divided and rounded again."""
        places = tuple(self.axes.index(a) for a in event.axes)
        parts = rounded(np.moveaxis(values, places, range(len(places))), wire)
        count = prod(parts.shape[:len(places)])
        parts = parts.reshape(count, *parts.shape[len(places):])
        into = self.adds or wire
        total = rounded(self._pairs(parts, into) if self.order == "tree" else self._ring(parts, into), wire)
        divided = count if event.op == "mean" else prod(
            self.shape[self.axes.index(a)] for a in event.divisor.names() if a in self.axes)
        if divided != 1:
            total = rounded(total / divided, wire)
        for place in sorted(places):
            total = np.expand_dims(total, place)
        return np.broadcast_to(total, values.shape)

    @staticmethod
    def _ring(parts: Any, form: NumberFormat) -> Any:
        total = parts[0]
        for part in parts[1:]:
            total = rounded(total + part, form)
        return total

    def _pairs(self, parts: Any, form: NumberFormat) -> Any:
        if len(parts) == 1:
            return parts[0]
        half = (len(parts) + 1) // 2
        return rounded(self._pairs(parts[:half], form) + self._pairs(parts[half:], form), form)
