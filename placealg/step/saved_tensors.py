"""What the forward leaves for the backward under a placement, and what the backward gathers again.

An operand is saved as its reader used it (mode R: a gathered value stays gathered), as the shard it came from (S*:
gathered again once per backward for all its readers), or not at all (M: its region is recomputed, from the region's
own inputs). One storage in one layout is saved once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.models.graph import Graph, Tensor
from placealg.placement import Kind, Mode
from placealg.step.recompute import forward, members, needs, replayed_items
from placealg.step.split import Layout, Move, Place, Placed

PER_DEVICE = "batch"
"""The dim whose size is that of one device: an axis that splits it does not divide it."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One saved storage: the tensor, the layout in which it is held, and the ops for whose backward it is saved.

    `mode` is R (held as used) or S* (held as the shard of a gathered value). `again` is the move by which the backward
    brings it into the layout in which it is used; None if it is held in that layout.
    """

    tensor: Tensor
    layout: Layout
    readers: tuple[str, ...]
    again: Move | None = None

    @property
    def local(self) -> Monomial:
        """Elements held by one rank, for one instance of the unit."""
        return local(self.tensor, self.layout)

    @property
    def mode(self) -> Mode:
        """The mode in which it is held."""
        return Mode.R if self.again is None else Mode.GATHERED


def local(tensor: Tensor, layout: Layout) -> Monomial:
    """Elements of `tensor` on one rank: its size, divided by every axis that splits a dim other than the batch."""
    elements = tensor.elements
    for axis, at in layout.items():
        if at.kind is Kind.S and at.dim != PER_DEVICE:
            elements = elements / Monomial.of(axis)
    return elements


def saved_tensors(placed: Placed, unit: str, sharded: Collection[str] = (), statistics: bool = False,
                  recomputed: Collection[str] = (), replay: str = "whole") -> tuple[SavedTensor, ...]:
    """The storages that the backward of `unit` reads, and that forward therefore keeps.

    On the axes of `sharded` gathered values are held as shards. The regions in `recomputed` keep only what their replay
    reads. `statistics` counts the row statistics of norms.
    """
    found: dict[tuple[str, Layout], SavedTensor] = {}
    for tensor, use, reader, before in _reads(placed, unit, statistics, recomputed, replay):
        source = _source(before, use, sharded)
        root, held = _storage(placed.graph, tensor, _stored(source or use))
        old = found.get((root.name, held))
        readers = tuple(dict.fromkeys((*(old.readers if old else ()), reader)))
        again = Move(tensor.name, source, use) if source else old.again if old else None
        found[root.name, held] = SavedTensor(root, held, readers, again)
    return tuple(found.values())


Read = tuple[Tensor, Layout, str, Layout | None]
"""A tensor, the layout in which it is read, the op that reads it, and the layout that it had before any moves."""


def _reads(placed: Placed, unit: str, statistics: bool, recomputed: Collection[str], replay: str) -> Iterator[Read]:
    """Everything but parameters that the unit's backward, with its replays, reads and does not make itself."""
    items = forward(placed, unit)
    replays = {k: operands for region in recomputed
               for k, operands in replayed_items(placed, unit, region, replay).items()}
    inside = {op.output for region in recomputed for op in members(placed.graph, region)}

    def before(maker: int | None) -> Layout | None:
        """The layout in which a tensor was made before moves changed it; None if no move did."""
        if maker is None or not isinstance(what := items[maker].what, Move):
            return None
        return before(items[maker].reads[0][1]) or what.source

    for need in needs(placed, unit):
        reader = items[need.item].at
        made_again = reader in inside and need.maker in replays
        if not made_again and (statistics or need.beside is None or not need.beside.optional):
            yield need.tensor, need.layout, reader, before(need.maker)
    for k, operands in replays.items():
        for (name, layout), maker in items[k].reads:
            if operands and maker not in replays:
                yield placed.graph.tensors[name], layout, items[k].at, before(maker)


def _source(before: Layout | None, use: Layout, sharded: Collection[str]) -> Layout | None:
    """The shards from which a gathered use came, on the axes where shards are held; None if nothing was gathered."""
    if before is None:
        return None
    axes = [a for a in sharded if before[a].kind is Kind.S and use[a].kind in (Kind.R, Kind.I)]
    return use.plus({a: before[a] for a in axes}) if axes else None


def _storage(graph: Graph, tensor: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
    """The tensor whose storage a view shares, and the layout in that tensor's own dims."""
    op = graph.producer(tensor.name)
    if op is None or not op.row.view:
        return tensor, layout
    dims = {new: old for old, new in op.rename.items()}
    under: Layout = FrozenMap({a: Place(p.kind, dims.get(p.dim, p.dim)) for a, p in layout.items()})
    return _storage(graph, graph.tensors[op.inputs[0]], under)


def _stored(layout: Layout) -> Layout:
    """[I] and [R] hold the same bytes."""
    return FrozenMap({a: Place(Kind.I) if p.kind is Kind.R else p for a, p in layout.items()})
