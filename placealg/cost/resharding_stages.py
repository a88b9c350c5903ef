"""Stages of a pipeline of which a checkpoint is read, in closed form: which ranks have what, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from placealg.cost.amounts import monomial
from placealg.cost.formula import symbol
from placealg.mesh import ALONE, PREDICTION
from placealg.models.graph import Loop
from placealg.step.checkpoint import Checkpoint, Item
from placealg.step.pipeline import FIRST, LAST, part_of

OLD = "_old"
"""The suffix of sizes of the old mesh."""

RANK = "rank"
"""The number of a rank, which runs on the same device in both meshes."""

Bounds = tuple[Any, Any]
"""The first place on a line that a rank has, and the first place after its last."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two meshes: its checkpoint, and the suffix of the names of its sizes."""

    found: Checkpoint
    suffix: str

    def size(self, axis: str) -> Any:
        """The size of an axis, by the name that it has on this side."""
        return symbol(axis + self.suffix)

    def ranks(self) -> Any:
        """The number of devices."""
        return sympy.prod([self.size(a) for a in self.found.axes])

    def coordinate(self, axis: str) -> Any:
        """The coordinate along an axis of rank number `rank`; the last axis is the fastest."""
        axes = self.found.axes
        inside = sympy.prod([self.size(a) for a in axes[axes.index(axis) + 1:]])
        here = sympy.floor(symbol(RANK) / inside)
        return here if axis == axes[0] else here - self.size(axis) * sympy.floor(
            symbol(RANK) / inside / self.size(axis))

    @property
    def whole_shares(self) -> bool:
        """Whether shares are padded to whole rows or elements; otherwise sizes are taken to divide."""
        return self.found.step.reference.pad != "none"


def layers_of(found: Checkpoint) -> tuple[Loop, ...]:
    """The repeated units of a model, but for those of which there is one."""
    graph = found.step.reference.graph
    return tuple(loop for loop in graph.loops if not graph.single(loop.unit))


def stations(side: Side, item: Item) -> tuple[Bounds, ...]:
    """The ranks of a pipeline that have what stands on single stages, each with 1, or 0 where it is one before it, too.

    () if it belongs to layers, or there is no pipeline.
    """
    parts, pipeline = parts_of(side, item), side.found.pipeline
    if pipeline is None:
        return ()
    last = sympy.S.Zero if pipeline.folded else side.size(pipeline.axis) - 1
    at = {FIRST: sympy.S.Zero, PREDICTION: sympy.S.One if pipeline.folded else side.size(pipeline.axis) - 2, LAST: last}
    return tuple((at[part], 1 - is_zero(last) if part == LAST and FIRST in parts else sympy.S.One) for part in parts)


def parts_of(side: Side, item: Item) -> tuple[str, ...]:
    """The parts of the model with one stage each that an item belongs to; () if it belongs to layers."""
    graph = side.found.step.reference.graph
    parts = {PREDICTION if graph.single(u) else part_of(u, graph) for u in item.units}
    return tuple(part for part in ALONE if part in parts)


def first_stages(side: Side, item: Item, stages: Any) -> Any:
    """The number of instances of an item's unit on the first so many stages, all chunks of each; or why none is told.

    The chunks of one turn follow each other, so that what they have is what lies before the end of the last of them.
    """
    pipeline = side.found.pipeline
    assert pipeline is not None
    end = chunk_ends(side, item)
    if isinstance(end, str):
        return end
    ranks = side.ranks()
    if pipeline.folded:
        return end(stages) + end(2 * ranks) - end(2 * ranks - stages)
    return sum((end(ranks * turn + stages) - end(ranks * turn) for turn in range(pipeline.chunks or 1)), sympy.S.Zero)


def own_instances(side: Side, item: Item, at: Mapping[str, Any]) -> Any:
    """The bounds, on the line of its unit's instances, of what a rank has: a pair for each of its chunks.

    Of n layers in c chunks, chunk k has those from ⌊n k/c⌋ to ⌊n (k + 1)/c⌋. What lives on an end of the model is
    there, or not. A text says why there is no closed form.
    """
    pipeline, count = side.found.pipeline, monomial(item.count)
    if pipeline is None:
        return [(sympy.S.Zero, count)]
    place, ranks = at[pipeline.axis], side.size(pipeline.axis)
    if found := stations(side, item):
        here = [is_equal(place, rank) for rank, _ in found]
        return [(sympy.S.Zero, count * sympy.Max(*here))]
    end = chunk_ends(side, item)
    if isinstance(end, str):
        return end
    turns = [place, 2 * ranks - 1 - place] if pipeline.folded else [
        place + ranks * turn for turn in range(pipeline.chunks or 1)]
    return [(end(chunk), end(chunk + 1)) for chunk in turns]


def chunk_ends(side: Side, item: Item) -> Callable[[Any], Any] | str:
    """Where the layers of a chunk begin, among the instances of an item's unit; a text says why that is not known."""
    pipeline, count = side.found.pipeline, monomial(item.count)
    assert pipeline is not None
    if pipeline.chunks is None or pipeline.stages:
        return "the layers of its stages are said in numbers, or their chunks in a symbol: it is counted at sizes"
    ranks = side.size(pipeline.axis)
    counts = {loop.unit: monomial(loop.count) for loop in layers_of(side.found)}
    units, alone = list(counts), len(pipeline.alone)
    before = sum((counts[u] for u in units[:units.index(item.units[0])]), sympy.S.Zero)
    every, parts = sum(counts.values(), sympy.S.Zero), ranks * pipeline.chunks - alone

    def end(chunk: Any) -> Any:
        """Where the layers of a chunk begin, among those of the unit."""
        inside = sympy.Min(sympy.Max(chunk - int(FIRST in pipeline.alone), 0), parts) if alone else chunk
        found = sympy.floor(every * inside / parts) - before
        return sympy.Min(sympy.Max(found, 0), count) if len(units) > 1 else found

    return end


def is_zero(number: Any) -> Any:
    """1 where a whole number is 0, 0 where it is larger."""
    return sympy.Max(0, 1 - number)


def is_equal(one: Any, other: Any) -> Any:
    """1 where two whole numbers are equal, 0 where they are not."""
    return is_zero(sympy.Max(one, other) - sympy.Min(one, other))
