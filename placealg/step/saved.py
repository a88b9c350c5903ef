"""What the forward leaves for the backward under a placement, and what the backward gathers again.

An operand is saved as its reader used it (mode R: a gathered value stays gathered), or as the shard it came from
(mode S*: gathered again once per backward for all its readers). One storage in one layout is saved once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.model.backward import backward, kept
from placealg.model.graph import Tensor
from placealg.placement import Kind
from placealg.step.split import WHOLE, Layout, Move, Place, Placed, PlacedOp


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One saved storage: the tensor, the layout in which it is held, the ops whose backward reads it.

    `again` is the move by which the backward brings it into the layout in which it is used; None when it is held so.
    """

    tensor: Tensor
    layout: Layout
    readers: tuple[str, ...]
    again: Move | None = None

    @property
    def local(self) -> Monomial:
        """Elements held by one rank, for one instance of the unit."""
        return local(self.tensor, self.layout)


def local(tensor: Tensor, layout: Layout) -> Monomial:
    """Elements of `tensor` on one rank: its size, divided by every axis that splits it."""
    elements = tensor.elements
    for axis, at in layout.items():
        if at.kind is Kind.S:
            elements = elements / Monomial.of(axis)
    return elements


def saved_tensors(placed: Placed, unit: str, sharded: Collection[str] = (), statistics: bool = False,
                  ) -> tuple[SavedTensor, ...]:
    """The storages that the backward of `unit` reads; on the axes of `sharded`, gathered values are held as shards.

    `statistics` counts the row statistics of norms.
    """
    found: dict[tuple[str, Layout], SavedTensor] = {}
    for tensor, use, reader in _reads(placed, unit, statistics):
        source = _source(placed, tensor.name, use, sharded)
        held = _stored(source or use)
        root = placed.graph.tensors.get(placed.graph.storage(tensor.name), tensor)
        old = found.get((root.name, held))
        readers = tuple(dict.fromkeys((*(old.readers if old else ()), reader)))
        found[root.name, held] = SavedTensor(root, held, readers, Move(tensor.name, source, use) if source else None)
    return tuple(found.values())


def _reads(placed: Placed, unit: str, statistics: bool) -> Iterator[tuple[Tensor, Layout, str]]:
    """(tensor, layout in which it is used, reading op) of everything but parameters that the unit's backward reads."""
    graph = placed.graph
    for step in backward(graph):
        at = placed.op(step.forward)
        if at.op.unit != unit:
            continue
        values = {t.name: (t, row) for t, row in kept(graph, at.op)}
        for name in step.reads:
            if name in values:
                tensor, row = values[name]
                if statistics or not row.optional:
                    yield tensor, _narrowed(at.result, tensor), step.forward
            elif graph.tensors[name].kind != "parameter":
                yield graph.tensors[name], _layout_in(at, name), step.forward


def _layout_in(at: PlacedOp, name: str) -> Layout:
    """The layout in which a placed op uses an operand, or makes its result."""
    return at.result if name == at.op.output else at.uses[at.op.inputs.index(name)]


def _narrowed(layout: Layout, tensor: Tensor) -> Layout:
    """A result's layout for a value that the op keeps beside it: whole along dims that the value lacks."""
    return FrozenMap({a: p if p.kind is not Kind.S or p.dim in tensor.dims else WHOLE for a, p in layout.items()})


def _source(placed: Placed, name: str, use: Layout, sharded: Collection[str]) -> Layout | None:
    """The shards from which a gathered use came, on the axes where shards are held; None when nothing was gathered."""
    for _, move in placed.moves:
        if move.tensor == name and move.target == use:
            axes = [a for a in sharded if move.source[a].kind is Kind.S and use[a].kind in (Kind.R, Kind.I)]
            if axes:
                return FrozenMap({a: move.source[a] if a in axes else p for a, p in use.items()})
    return None


def _stored(layout: Layout) -> Layout:
    """[I] and [R] hold the same bytes."""
    return FrozenMap({a: Place(Kind.I) if p.kind is Kind.R else p for a, p in layout.items()})
