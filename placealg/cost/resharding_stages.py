"""Stages of a pipeline of which a checkpoint is read, in closed form: which ranks have what, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import sympy

from placealg.arith import Monomial
from placealg.cost.expressions import monomial, symbol
from placealg.cost.indices import index_of, summed
from placealg.mesh import ALONE, PREDICTION
from placealg.step.checkpoint import Checkpoint, Item
from placealg.step.pipeline import FIRST, LAST, part_of

OLD = "_old"
"""The suffix of sizes of the old mesh."""

RANK = "rank"
"""The number of a rank, which runs on the same device in both meshes."""

STAGE, TURN = "stage", "turn"
"""The number of a stage of the new mesh, and that of a turn in which a stage has one of its chunks."""

Bounds = tuple[Any, Any]
"""The first place on a line that a rank has, and the first place after its last."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two meshes: its checkpoint, and the suffix of the names of its sizes."""

    found: Checkpoint
    suffix: str

    def size(self, axis: str) -> Any:
        """The size of an axis, by the name that it has on this side; of a pipeline whose stages are said, a number."""
        if axis == (pipeline := self.found.pipeline).axis and pipeline.stages and pipeline.chunks:
            return sympy.Integer(len(pipeline.stages) // pipeline.chunks)
        return symbol(axis + self.suffix)

    @property
    def chunks(self) -> Any:
        """The chunks of every stage: a number, or v by the name that it has on this side."""
        said = self.found.pipeline.chunks
        return symbol("v" + self.suffix) if said is None else said

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


def layers_of(found: Checkpoint) -> Mapping[str, Monomial]:
    """The repeated units of a model, but for those of which there is one, and how many instances each has."""
    return found.layers


def stations(side: Side, item: Item) -> tuple[Bounds, ...]:
    """The ranks of a pipeline that have what stands on single stages, each with 1, or 0 where it is one before it, too.

    () if it belongs to layers, or there is no pipeline.
    """
    parts, pipeline = parts_of(side, item), side.found.pipeline
    if not pipeline.axis:
        return ()
    last = sympy.S.Zero if pipeline.folded else side.size(pipeline.axis) - 1
    at = {FIRST: sympy.S.Zero, PREDICTION: sympy.S.One if pipeline.folded else side.size(pipeline.axis) - 2, LAST: last}
    return tuple((at[part], 1 - is_zero(last) if part == LAST and FIRST in parts else sympy.S.One) for part in parts)


def parts_of(side: Side, item: Item) -> tuple[str, ...]:
    """The parts of the model with one stage each that an item belongs to; () if it belongs to layers."""
    graph = side.found.step.reference.graph
    parts = {PREDICTION if graph.single(u) else part_of(u, graph) for u in item.units}
    return tuple(part for part in ALONE if part in parts)


@dataclass(frozen=True, slots=True)
class Run:
    """Instances of a unit that follow each other: the bounds on their line, and how often a rank has them: 0 or 1.

    With a `turn` there is such a run for each of so many turns. `whole` says that they are all instances.
    """

    bounds: Bounds
    times: Any = sympy.S.One
    turn: Any = None
    turns: Any = sympy.S.One
    whole: bool = False

    @property
    def length(self) -> Any:
        """The number of instances."""
        return self.bounds[1] - self.bounds[0]


def first_stages(side: Side, item: Item, stages: Any) -> Any:
    """The number of instances of an item's unit on the first so many stages, all chunks of each.

    The chunks of one turn follow each other, so that what they have is what lies before the end of the last of them.
    """
    pipeline, ranks = side.found.pipeline, side.ranks()
    if pipeline.stages:
        return sum((sympy.Min(1, sympy.Max(0, stages - rank)) * (high - low)
                    for rank, low, high in _listed(side, item)), sympy.S.Zero)
    end = chunk_ends(side, item)
    if pipeline.folded:
        return end(stages) + end(2 * ranks) - end(2 * ranks - stages)
    if pipeline.chunks is None:
        turn = index_of(TURN + side.suffix)
        return summed(end(ranks * turn + stages) - end(ranks * turn), turn, side.chunks)
    return sum((end(ranks * turn + stages) - end(ranks * turn) for turn in range(pipeline.chunks)), sympy.S.Zero)


def own_instances(side: Side, item: Item, at: Mapping[str, Any]) -> tuple[Run, ...]:
    """What a rank has of the instances of an item's unit, one run for each of its chunks.

    Of n layers in c chunks, chunk k has those from ⌊n k/c⌋ to ⌊n (k + 1)/c⌋. What lives on an end of the model is
    there, or not.
    """
    pipeline, count = side.found.pipeline, monomial(item.count)
    if not pipeline.axis:
        return (Run((sympy.S.Zero, count), whole=True),)
    place, ranks = at[pipeline.axis], side.size(pipeline.axis)
    if found := stations(side, item):
        here = (is_zero(ranks - 1 - place) if rank == ranks - 1 else is_equal(place, rank) for rank, _ in found)
        return (Run((sympy.S.Zero, count), sympy.Max(*here), whole=True),)
    if pipeline.stages:
        return tuple(Run((low, high), is_equal(place, rank)) for rank, low, high in _listed(side, item))
    end = chunk_ends(side, item)
    if pipeline.chunks is None:
        turn = index_of(TURN + side.suffix)
        chunk = place + ranks * turn
        return (Run((end(chunk), end(chunk + 1)), turn=turn, turns=side.chunks),)
    turns = [place, 2 * ranks - 1 - place] if pipeline.folded else [
        place + ranks * turn for turn in range(pipeline.chunks)]
    return tuple(Run((end(chunk), end(chunk + 1))) for chunk in turns)


def _listed(side: Side, item: Item) -> Iterator[tuple[Any, Any, Any]]:
    """(rank, first instance, the one after the last) of every chunk that has any, where the layers of each are said.

    Where the number of chunks is a symbol, so is that of the ranks, among which chunks are dealt out in turn.
    """
    pipeline = side.found.pipeline
    count, before = monomial(item.count), _before(side, item)
    one_kind = len(layers_of(side.found)) == 1
    ranks = side.size(pipeline.axis)
    for chunk, ends in enumerate(pairwise([0, *accumulate(pipeline.stages)])):
        low, high = (sympy.Integer(end) if one_kind else sympy.Min(sympy.Max(end - before, 0), count) for end in ends)
        if low != high:
            yield (pipeline.rank(chunk, int(ranks)) if ranks.is_Integer else chunk - ranks * sympy.floor(chunk / ranks),
                   low, high)


def _before(side: Side, item: Item) -> Any:
    """The layers of the units in front of an item's."""
    layers = layers_of(side.found)
    before = list(layers)[:list(layers).index(item.units[0])]
    return sum((monomial(layers[unit]) for unit in before), sympy.S.Zero)


def chunk_ends(side: Side, item: Item) -> Callable[[Any], Any]:
    """Where the layers of a chunk begin, among the instances of an item's unit, if layers are spread evenly."""
    pipeline, count = side.found.pipeline, monomial(item.count)
    loops, alone, before = layers_of(side.found), len(pipeline.alone), _before(side, item)
    every = sum((monomial(number) for number in loops.values()), sympy.S.Zero)
    parts = side.size(pipeline.axis) * side.chunks - alone

    def end(chunk: Any) -> Any:
        """Where the layers of a chunk begin, among those of the unit."""
        inside = sympy.Min(sympy.Max(chunk - int(FIRST in pipeline.alone), 0), parts) if alone else chunk
        found = sympy.floor(every * inside / parts) - before
        return sympy.Min(sympy.Max(found, 0), count) if len(loops) > 1 else found

    return end


def is_zero(number: Any) -> Any:
    """1 where a whole number is 0, 0 where it is larger."""
    return sympy.Max(0, 1 - number)


def is_equal(one: Any, other: Any) -> Any:
    """1 where two whole numbers of no less than 0 are equal, 0 where they are not."""
    one, other = sympy.sympify((one, other))
    if sympy.S.Zero in (one, other):
        return is_zero(one + other)
    if one.as_coeff_Add()[0] == other.as_coeff_Add()[0] == -1:  # two last stages are one where there are as many
        one, other = one + 1, other + 1
    return is_zero(sympy.Max(one, other) - sympy.Min(one, other))
