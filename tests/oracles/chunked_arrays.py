"""What ranks hold of a parameter, by cutting arrays of element numbers: no interval, no formula.

It reads what a strategy and a model say, and no checkpoint: which axes split which dims, and over which a state is
sharded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

import placealg as pa
from placealg.step.derive import derive, operations_of
from placealg.step.groups import group_parameters
from placealg.step.split import split_dims, summed

Sizes = Mapping[str, int]


def chunk(array: np.ndarray, place: int, ranks: int, axis: int) -> np.ndarray:
    """What torch.chunk gives to one of some ranks; nothing where it gives fewer chunks than there are ranks."""
    each = -(-array.shape[axis] // ranks)
    return array.take(range(min(place * each, array.shape[axis]), min((place + 1) * each, array.shape[axis])), axis)


def ranks(strategy: pa.Strategy, mesh: Sizes) -> list[dict[str, int]]:
    names = strategy.mesh.names
    return [dict(zip(names, at, strict=True)) for at in product(*(range(mesh[a]) for a in names))]


class Held:
    """One strategy on one model at some sizes: the numbers of the elements that each rank stores."""

    def __init__(self, strategy: pa.Strategy, model: pa.Model, mesh: Sizes, sizes: Sizes) -> None:
        self.strategy, self.model, self.mesh, self.sizes = strategy, model, mesh, sizes
        operations = operations_of(strategy, model)
        placed = operations.placed if operations else None
        plans = group_parameters(strategy, model, summed(placed), split_dims(placed)) if placed else \
            group_parameters(strategy, model)
        self.plans = {p: plan for plan in plans for p in plan.group.parameters}
        self.splits = split_dims(placed) if placed else {}
        self.ranks = ranks(strategy, mesh)
        self.pipeline = derive(strategy, model).reference.pipeline
        self.pad = strategy.option("shards", "pad")

    def number(self, name: str) -> int:
        """The elements of all instances of a parameter."""
        parameter = next(p for p in self.model.parameters if p.name == name)
        count = next(u.count for u in self.model.units if u.name == parameter.unit)
        return int((parameter.elements * count).evaluate(self.sizes))

    def numbers(self, name: str) -> np.ndarray:
        """The numbers of a parameter's elements, (instance, rows..., others...)."""
        parameter = next(p for p in self.model.parameters if p.name == name)
        unit = next(u for u in self.model.units if u.name == parameter.unit)
        dims = self.dims(name)
        shape = [int(unit.count.evaluate(self.sizes)), *(int(parameter.dims[d].evaluate(self.sizes)) for d in dims)]
        return np.arange(prod(shape)).reshape(shape)

    def dims(self, name: str) -> tuple[str, ...]:
        parameter = next(p for p in self.model.parameters if p.name == name)
        rows = parameter.rows or tuple(parameter.dims)
        return (*rows, *(d for d in parameter.dims if d not in rows))

    def local(self, name: str, at: Sizes) -> np.ndarray:
        """What the splits by dims leave on a rank."""
        found = self.numbers(name)
        for axis in self.strategy.mesh.names:
            dim = self.splits.get(name, {}).get(axis)
            if dim and dim != "layer":
                found = chunk(found, at[axis], self.mesh[axis], 1 + self.dims(name).index(dim))
        return found

    def of(self, name: str, value: str, at: Sizes) -> set[int]:
        """The numbers of the elements of a state that a rank has."""
        plan = self.plans[name]
        cut = plan.gathered if value == "weight" else plan.owned
        found = self.local(name, at)
        place, n = 0, 1
        for axis in cut:
            place, n = place * self.mesh[axis] + at[axis], n * self.mesh[axis]
        parameter = next(p for p in self.model.parameters if p.name == name)
        rows = len(parameter.rows) or len(parameter.dims)
        if n > 1 and self.pad == "elements":
            mine = [(p, self.local(p, at)) for p in plan.group.parameters]
            kept: set[int] = set()
            for k in range(found.shape[0]):
                flat = [(p, x) for p, a in mine for x in a[k].ravel()]
                each = -(-len(flat) // n)
                kept |= {int(x) for p, x in flat[place * each:(place + 1) * each] if p == name}
            found = np.array(sorted(kept))
        elif n > 1:
            shape = found.shape
            found = chunk(found.reshape(shape[0], prod(shape[1:1 + rows]), -1), place, n, 1)
        return self.on_stage(name, at, {int(x) for x in found.ravel()})

    def on_stage(self, name: str, at: Sizes, numbers: set[int]) -> set[int]:
        """Those of the instances that the rank's stage has, of layers dealt out evenly."""
        if not self.pipeline.axis:
            return numbers
        stage, stages = at[self.pipeline.axis], self.mesh[self.pipeline.axis]
        parameter = next(p for p in self.model.parameters if p.name == name)
        whole = self.numbers(name)
        if parameter.unit == "layer":
            layers = whole.shape[0]
            inside = range(layers * stage // stages, layers * (stage + 1) // stages)
            return numbers & {int(x) for k in inside for x in whole[k].ravel()}
        ends = {"embedding": 0, "head": stages - 1}
        return numbers if stage in {ends[site] for site in parameter.sites} else set()


def bytes_read(old: Held, new: Held, element: Mapping[str, int], names: Sequence[str]) -> dict[tuple[int, int], int]:
    """(reader, source) -> bytes: every element from the reader's own device, else from the first rank that has it."""
    found: dict[tuple[int, int], int] = {}
    for name in names:
        for value in ("weight", "moments"):
            had = [old.of(name, value, at) for at in old.ranks]
            for reader, at in enumerate(new.ranks):
                need = new.of(name, value, at)
                order = [reader, *range(len(had))] if reader < len(had) else range(len(had))
                for source in order:
                    taken = need & had[source]
                    need -= taken
                    if taken:
                        key = reader, source
                        found[key] = found.get(key, 0) + len(taken) * element[value]
                assert not need
    return found
