"""Parameters of an op graph on a machine: read as boxes from a rank's tables, gradients put back into them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from placealg.models.graph import unit_of
from placealg.simulator.box import Box, Extent, nothing
from placealg.simulator.field import Array, Number
from placealg.simulator.machine import Machine
from placealg.simulator.reference import Slot
from placealg.simulator.space import OwnedElements, Space
from placealg.step.program import Event


def read(m: Machine, e: Event, rank: int, name: str) -> Box | None:
    """What a rank holds of a parameter that an op reads: the smallest box around it, with garbage in its gaps.

    A rank that owns no index of a split dim holds the empty box.
    """
    space, slot = m.space, slot_of(m, e, name)
    table = m.table(e.tiers[0], "weight", *slot)[rank]
    entries = [(part, table.get(k)) for k, part in enumerate(space.parts(m.group_of(name))) if part.parameter == name]
    held = [(part, number) for part, number in entries if number is not None]
    missing = [part for part, number in entries if number is None and m.owns(rank, part.split)]
    box = _box(m, space, name, held) if held else None
    if box is None and not missing:
        box = _empty(space, name)
    m.watch.parameter(m, e, rank, slot, name, box, missing)
    return box


def slot_of(m: Machine, e: Event, name: str) -> Slot:
    """(group, instance) of a parameter that an op of the event's unit reads."""
    return m.group_of(name).name, m.instance if unit_of(name) == e.unit else 0


def _box(m: Machine, space: Space, name: str, held: list[tuple[OwnedElements, Number]]) -> Box:
    everywhere = space.extent(space.graph.tensors[name].dims, ())
    shape = [len(at) for at in everywhere.values()]
    extent = _around(space, name, tuple(part for part, _ in held), everywhere)
    gaps = math.prod(map(len, extent.values())) > sum(part.numbers.size for part, _ in held)
    flat = m.noise([math.prod(shape)]) if gaps else space.zeros([math.prod(shape)])
    for part, number in held:
        flat[part.numbers] = space.numbers(number)
    return Box(everywhere, flat.reshape(shape)).cut(extent)


def _empty(space: Space, name: str) -> Box:
    """No element of a parameter: no index of the dims by which it is split."""
    split = set(space.reference.split_dims.get(name, {}).values())
    return nothing({d: () if d in split else at for d, at in space.extent(
        space.graph.tensors[name].dims, ()).items()})


def _around(space: Space, name: str, parts: tuple[OwnedElements, ...], everywhere: Extent) -> Extent:
    """The smallest extent that contains these parts of a parameter."""
    key = name, tuple(part.first for part in parts)
    if key not in space.extents:
        shape = [len(at) for at in everywhere.values()]
        inside = np.zeros(shape, dtype=bool)
        for part in parts:
            inside.reshape(-1)[part.numbers] = True
        axes = range(len(shape))
        space.extents[key] = {
            dim: tuple(np.flatnonzero(inside.any(axis=tuple(a for a in axes if a != k))).tolist())
            for k, dim in enumerate(everywhere)}
    return space.extents[key]


def deposit(m: Machine, e: Event, rank: int, name: str, gradient: Box | None) -> None:
    """Set grad at the first contribution to a parameter in a microbatch, add to it at later ones.

    Garbage where the contribution could not be computed (None), or where only one of two that are added is there. Of a
    whole unit the first contribution is that of the last unit that uses the parameter.
    """
    space, slot = m.space, slot_of(m, e, name)
    table = m.table(e.tiers[1], "grad", *slot)[rank]
    first = (*slot, name) not in m.stores[rank].touched
    if space.whole:
        alone = unit_of(name) == e.unit or not space.graph.loop(e.unit) or (
            m.instance == m.setting.instances(e.unit, space.graph) - 1)
        first = alone and e.unit == m.group_of(name).sites[-1]
    m.stores[rank].touched.add((*slot, name))
    found = _spread(space, name, gradient) if gradient is not None else None
    for k, part in enumerate(space.parts(m.group_of(name))):
        if part.parameter != name:
            continue
        number = _contribution(m, rank, part, found)
        before = Fraction(0) if first else table.get(k)
        if number is None and (first or before is None):
            table.pop(k, None)
        else:
            table[k] = m.garbage() if number is None or before is None else number + before


def unset(m: Machine, e: Event) -> None:
    """Let grad be 0 where the microbatch has added nothing to a parameter of the group; of ops, not of whole units."""
    slot, group = m.slot(e), m.reference.group(e.group)
    for rank in m.acting(e):
        table, touched = m.table("device", "grad", *slot)[rank], m.stores[rank].touched
        for k, part in enumerate(m.space.parts(group)):
            if (*slot, part.parameter) not in touched:
                if m.owns(rank, part.split):
                    table[k] = Fraction(0)
                else:
                    table.pop(k, None)


def take(m: Machine, e: Event, rank: int, over: Callable[[Number], Number | None]) -> None:
    """Set grad of a group to what a rank holds of the tensor that moves it, divided: garbage where nothing is held."""
    group, table = m.reference.group(e.group), m.table(e.tiers[1], "grad", *m.slot(e))[rank]
    name = group.parameters[0]
    m.stores[rank].touched.add((*m.slot(e), name))
    box = m.stores[rank].read((group.taken, m.instance), "")
    found = _spread(m.space, name, box) if box is not None else None
    for k, part in enumerate(m.space.parts(group)):
        number = _contribution(m, rank, part, found)
        if m.chosen(e, rank, k):
            if number is None:
                table.pop(k, None)
            else:
                made = over(number)
                table[k] = m.garbage() if made is None else made


def _spread(space: Space, name: str, gradient: Box) -> tuple[Array, Array]:
    """The gradient as a flat array over the whole parameter, and where it is held."""
    everywhere = space.extent(space.graph.tensors[name].dims, ())
    shape = [len(at) for at in everywhere.values()]
    numbers, held = space.zeros(shape), np.zeros(shape, dtype=bool)
    where = np.ix_(*gradient.extent.values())
    numbers[where], held[where] = gradient.numbers, True
    return numbers.reshape(-1), held.reshape(-1)


def _contribution(m: Machine, rank: int, part: OwnedElements,
                  found: tuple[Array, Array] | None) -> Number | None:
    """What a part of the parameter receives; None where nothing is held of it."""
    if found is None:
        return m.garbage() if m.owns(rank, part.split) else None
    numbers, held = found[0][part.numbers], found[1][part.numbers]
    if not held.any():
        return None
    return m.space.number(numbers if held.all() else np.where(held, numbers, m.noise(numbers.shape)))
