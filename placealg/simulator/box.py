"""Boxes: what a rank holds of a tensor, a set of indices for each dim with the residues at them.

Operands of one computation are first cut to the indices that all of them hold, dim by dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placealg.simulator.field import Array, contract, element_type, reduced

Indices = tuple[int, ...]
Extent = dict[str, Indices]
"""Dim -> the sorted indices held along it."""


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Residues at every combination of `extent`; the array's dims stand in the extent's order.

    >>> box = Box({"a": (0, 2), "b": (1,)}, np.array([[5], [6]]))
    >>> box.cut({"a": (1, 2)})
    Box({'a': (2,), 'b': (1,)}, [[6]])
    """

    extent: Extent
    numbers: Array

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the dims, in the array's order."""
        return tuple(self.extent)

    def cut(self, wanted: Mapping[str, Indices]) -> Box:
        """The part at the indices that are also in `wanted`; a dim that `wanted` lacks stays as it is."""
        extent, numbers = self.extent, self.numbers
        for axis, (dim, held) in enumerate(self.extent.items()):
            if dim in wanted and wanted[dim] != held:
                inside = set(wanted[dim])
                positions = [k for k, index in enumerate(held) if index in inside]
                numbers = numbers.take(positions, axis=axis)
                extent = {**extent, dim: tuple(held[k] for k in positions)}
        return self if extent is self.extent else Box(extent, numbers)

    def ordered(self, dims: Sequence[str]) -> Box:
        """The same box with its dims in this order."""
        if self.dims == tuple(dims):
            return self
        return Box({d: self.extent[d] for d in dims}, self.numbers.transpose([self.dims.index(d) for d in dims]))

    def renamed(self, names: Mapping[str, str]) -> Box:
        """The same box under other names of dims."""
        return Box({names.get(d, d): at for d, at in self.extent.items()}, self.numbers)

    def __repr__(self) -> str:
        return f"Box({self.extent}, {self.numbers.tolist()})"


def common(boxes: Sequence[Box]) -> tuple[list[Box], Extent]:
    """The boxes cut to what all that have a dim hold of it, and that extent."""
    shared: Extent = {}
    for box in boxes:
        for dim, held in box.extent.items():
            if shared.setdefault(dim, held) != held:
                inside = set(held)
                shared[dim] = tuple(i for i in shared[dim] if i in inside)
    return [box.cut(shared) for box in boxes], shared


def product(boxes: Sequence[Box], dims: Sequence[str], along: Mapping[str, Indices] | None = None) -> Box:
    """The product of boxes summed over every dim that `dims` lacks; repeated along dims that none of them has.

    `along` gives the indices of the latter.

    >>> ones = Box({"a": (0, 1)}, np.array([1, 1]))
    >>> product([ones, ones], ()), product([ones], ("b",), {"b": (4,)})
    (Box({}, 2), Box({'b': (4,)}, [2]))
    """
    parts, shared = common(boxes)
    present = tuple(d for d in dims if d in shared)
    made = Box({d: shared[d] for d in present}, contract([(b.dims, b.numbers) for b in parts], present))
    return made if len(present) == len(dims) else spread(
        made, {d: shared[d] if d in shared else (along or {})[d] for d in dims})


def spread(box: Box, extent: Extent) -> Box:
    """The box repeated along the dims of `extent` that it lacks, and cut to the others."""
    inside = box.cut(extent)
    everywhere = {d: inside.extent.get(d, at) for d, at in extent.items()}
    return Box(everywhere, np.broadcast_to(aligned(inside, tuple(extent)), [len(at) for at in everywhere.values()]))


def aligned(box: Box, dims: Sequence[str]) -> Array:
    """The box's array with one axis per name of `dims`, of length 1 where the box lacks the dim."""
    own = box.ordered([d for d in dims if d in box.extent])
    return own.numbers.reshape([len(box.extent[d]) if d in box.extent else 1 for d in dims])


def elementwise(function: Callable[..., Array], boxes: Sequence[Box], dims: Sequence[str]) -> Box:
    """`function` of the boxes' numbers at every point of `dims` that all hold, reduced modulo the prime."""
    parts, shared = common(boxes)
    made = reduced(function(*(aligned(b, dims) for b in parts)))
    return Box({d: shared[d] for d in dims}, np.broadcast_to(made, [len(shared[d]) for d in dims]))


def union(boxes: Iterable[Box]) -> Extent:
    """The smallest extent that contains every box."""
    found: Extent = {}
    for box in boxes:
        for dim, held in box.extent.items():
            if found.setdefault(dim, held) != held:
                found[dim] = tuple(sorted({*found[dim], *held}))
    return found


def place(numbers: Array, extent: Extent, box: Box) -> None:
    """Write the box into an array of a larger extent."""
    if all(extent[d] == at for d, at in box.extent.items()):
        numbers[...] = box.numbers
    else:
        numbers[np.ix_(*([extent[d].index(i) for i in at] for d, at in box.extent.items()))] = box.numbers


def total(boxes: Sequence[Box], garbage: Callable[[Sequence[int]], Array]) -> Box:
    """The sum of boxes: on their union, garbage where only some hold a point."""
    if len(boxes) == 1:
        return boxes[0]
    ordered = [box.ordered(boxes[0].dims) for box in boxes]
    extent = union(ordered)
    if all(box.extent == extent for box in ordered):
        return Box(extent, _sum([box.numbers for box in ordered]))
    made, held = garbage([len(at) for at in extent.values()]), common(ordered)[1]
    place(made, extent, Box(held, _sum([box.cut(held).numbers for box in ordered])))
    return Box(extent, made)


def _sum(arrays: Sequence[Array]) -> Array:
    """The sum of arrays: of fractions, or of residues."""
    found: Array = np.sum(arrays, axis=0)
    return reduced(found)


def nothing(extent: Extent) -> Box:
    """The box of an extent without a point."""
    return Box(extent, np.zeros([len(at) for at in extent.values()], element_type()))


def largest(box: Box, dims: tuple[str, ...]) -> Box:
    """The largest number over every dim but these, 0 where there is none; of residues the largest representative."""
    along = tuple(k for k, dim in enumerate(box.dims) if dim not in dims)
    kept = {d: box.extent[d] for d in box.dims if d in dims}
    return Box(kept, np.max(box.numbers, axis=along, initial=0)).ordered(dims)
