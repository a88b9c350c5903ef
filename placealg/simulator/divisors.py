"""Quotients: what an event divides by, on the rank that divides."""

from __future__ import annotations

import math
from fractions import Fraction

from placealg.simulator.field import Number
from placealg.simulator.machine import Machine
from placealg.step.event import COUNT, COUNTS_OF_SAMPLES, PADDING
from placealg.step.program import Event


def divided(machine: Machine, event: Event, rank: int, number: Number, tokens: int | None = None) -> Number | None:
    """`number` over the event's divisor on this rank; None where the divisor is zero or unknown.

    `tokens` are those of the rank, unless the event counts them otherwise.
    """
    if not event.divisor.powers:
        return number / event.divisor.coefficient
    known: dict[str, Fraction | int] = {**machine.setting.sizes, "m": machine.setting.microbatches,
                                        "tokens": machine.token_count(rank, event.unit) if tokens is None else tokens}
    if PADDING in event.divisor.names():
        known[PADDING] = _padding(machine, event, rank)
    if "loss_scale" in event.divisor.names():
        scale = machine.scalar("loss_scale", rank)
        machine.watch.scale(machine, event, rank, scale)
        if scale is None:
            return None
        known["loss_scale"] = scale
    for name in (COUNT, *COUNTS_OF_SAMPLES):
        if name in event.divisor.names():
            count = machine.scalar("count", rank, machine.reference.counter(event, name))
            if count is None:
                return None
            known[name] = count
    try:
        return number / event.divisor.evaluate(known)
    except ZeroDivisionError:
        return None


def _padding(machine: Machine, event: Event, rank: int) -> Fraction:
    """What the shards along the axes whose owners an event names take when all are as large as the largest."""
    held: dict[tuple[int, ...], int] = {}
    axes = set(event.owning)
    for element in machine.elements(event):
        at = tuple(machine.owner(event, axis, element, rank) for axis in axes)
        held[at] = held.get(at, 0) + machine.numbers(event.group, element)
    shards = math.prod(machine.setting.sizes[axis] for axis in axes)
    return Fraction(shards * max(held.values()), sum(held.values()))
