"""Recomputation: what a region drops when its forward ends, and what the backward replays of it.

A region whose activations are `M` keeps what it reads from outside, in the layout that this has outside; the backward
recomputes the rest, redistributions into the region included. The policy says how much: `whole` (all of it),
`by_dependency` (what some backward op of the region reads, and what that needs), `early_stop` (in program order, until
the last value that some backward op of the region reads is there). Ops of a region that are kept are not replayed: what
they made is there, and what their backward reads is replayed for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.backward import backward, kept
from placealg.models.graph import Graph, Op, Tensor
from placealg.models.ops import KeptValue
from placealg.placement import Kind
from placealg.step.split import WHOLE, Layout, Move, Place, Placed, PlacedOp

POLICIES = ("whole", "by_dependency", "early_stop")
"""How much of a region the backward replays."""

Value = tuple[str, Layout]
"""A tensor in one layout."""


@dataclass(frozen=True, slots=True)
class ForwardItem:
    """One op or one redistribution of a unit's forward; `at` names the op, or the op before which the move stands.

    `reads` are the activations and data that it reads, each with the place of the item of the same unit that made
    it so (None: it comes from outside the unit).
    """

    at: str
    what: Move | PlacedOp
    reads: tuple[tuple[Value, int | None], ...]

    @property
    def makes(self) -> Value:
        """The result of the op, or the tensor in the layout to which it is moved."""
        if isinstance(self.what, Move):
            return self.what.tensor, self.what.target
        return self.what.op.output, self.what.result


@dataclass(frozen=True, slots=True)
class Need:
    """A tensor that the backward of the op at `item` reads, its layout, and the place of the item that makes it.

    `beside` is the row of the op table if the op keeps the tensor beside its result. `drawn` says that making it takes
    no operand: the mask of a dropout, which is drawn again.
    """

    item: int
    tensor: Tensor
    layout: Layout
    maker: int | None
    beside: KeptValue | None = None
    drawn: bool = False


def members(graph: Graph, region: str) -> tuple[Op, ...]:
    """The ops of `region`, in forward order; a region without ops is an InputError."""
    found = tuple(op for op in graph.ops if op.within(region))
    if not found:
        words = dict.fromkeys(w for r in graph.regions for w in (r, *r.split(".")))
        raise InputError(f"unknown region '{region}'", name=region, valid=words)
    return found


@lru_cache(maxsize=64)
def forward(placed: Placed, unit: str) -> tuple[ForwardItem, ...]:
    """The ops of `unit` and the redistributions of activations between them, in program order.

    What enters a repeated unit is redistributed before its first instance, so that is not included.
    """
    graph, loop = placed.graph, placed.graph.loop(unit)
    items: list[ForwardItem] = []
    made: dict[Value, int] = {}

    def add(at: str, what: Move | PlacedOp, *reads: Value) -> None:
        found = tuple((v, made.get(v)) for v in reads if graph.tensors[v[0]].kind != "parameter")
        items.append(ForwardItem(at, what, found))
        made[items[-1].makes] = len(items) - 1

    for op in placed.ops:
        if op.op.unit == unit:
            for move in placed.moves_before(op.op.output):
                if graph.tensors[move.tensor].kind != "parameter" and (loop is None or move.tensor != loop.first):
                    add(op.op.output, move, (move.tensor, move.source))
            add(op.op.output, op, *zip(op.op.inputs, op.uses, strict=True))
    return tuple(items)


@lru_cache(maxsize=64)
def needs(placed: Placed, unit: str) -> tuple[Need, ...]:
    """Every activation and datum that the backward of `unit` reads, reader by reader; parameters left out."""
    items = forward(placed, unit)
    place = {item.at: k for k, item in enumerate(items) if isinstance(item.what, PlacedOp)}
    found: list[Need] = []
    for step in backward(placed.graph):
        if step.forward in place:
            k = place[step.forward]
            at = items[k].what
            assert isinstance(at, PlacedOp)
            beside = {n.tensor.name: n for n in _beside(placed, k, at)}
            operands = {name: (layout, maker) for (name, layout), maker in items[k].reads}
            for name in step.reads:
                if name in beside:
                    found.append(beside[name])
                elif name == at.op.output:
                    found.append(Need(k, placed.graph.tensors[name], at.result, k))
                elif name in operands:
                    found.append(Need(k, placed.graph.tensors[name], *operands[name]))
    return tuple(found)


def _beside(placed: Placed, item: int, at: PlacedOp) -> Iterator[Need]:
    """What an op keeps beside its result: split as the op is, along the dims that the value has."""
    for tensor, row in kept(placed.graph, at.op):
        layout: Layout = FrozenMap({a: Place(Kind.S, d) if d in tensor.dims else WHOLE for a, d in at.split.items()})
        yield Need(item, tensor, layout, item, row, at.op.row.random)


def replayed(placed: Placed, unit: str, region: str, policy: str = "whole") -> tuple[Move | PlacedOp, ...]:
    """What the backward replays of `region` in one instance of `unit`, in program order.

    A dropout of which only the mask is read is replayed without its operand under `by_dependency`: the operand may
    not be there.
    """
    items = forward(placed, unit)
    return tuple(items[k].what for k in replayed_items(placed, unit, region, policy))


@lru_cache(maxsize=64)
def replayed_items(placed: Placed, unit: str, region: str, policy: str) -> FrozenMap[int, bool]:
    """The places in `forward(placed, unit)` of what backward replays of `region` -> whether it takes its operands."""
    if policy not in POLICIES:
        raise InputError(f"unknown replay '{policy}'", name=policy, valid=POLICIES)
    items, inside = forward(placed, unit), _inside(placed, unit, region)
    again = _not_kept(placed, unit, inside)
    if policy == "whole":
        return FrozenMap(dict.fromkeys(again, True))
    gone = set(_ended(placed, unit, inside))
    roots = [(n.maker, n.drawn) for n in needs(placed, unit) if n.item in inside and n.maker in again
             and n.maker is not None and (n.beside or n.maker in gone)]
    if policy == "early_stop":
        last = max((k for k, _ in roots), default=-1)
        return FrozenMap({k: True for k in again if k <= last})
    found = {k: False for k, drawn in roots if drawn}
    pending = [k for k, drawn in roots if not drawn]
    while pending:
        k = pending.pop()
        if not found.get(k):
            found[k] = True
            pending += [maker for _, maker in items[k].reads if maker in gone]
    return FrozenMap({k: found[k] for k in sorted(found)})


def ends(placed: Placed, unit: str, region: str) -> tuple[Value, ...]:
    """What ends with the forward of `region`, for one instance of `unit`.

    These are the region's results and redistributed tensors that nothing outside reads, and all that its ops keep
    beside their results.
    """
    items, inside = forward(placed, unit), _inside(placed, unit, region)
    found = [items[k].makes for k in _ended(placed, unit, inside)]
    for k in _not_kept(placed, unit, inside):
        what = items[k].what
        if isinstance(what, PlacedOp):
            found += [(n.tensor.name, n.layout) for n in _beside(placed, k, what)]
    return tuple(found)


def _inside(placed: Placed, unit: str, region: str) -> tuple[int, ...]:
    """The places of the region's items."""
    names = {op.output for op in members(placed.graph, region)}
    return tuple(k for k, item in enumerate(forward(placed, unit)) if item.at in names)


def _not_kept(placed: Placed, unit: str, inside: Iterable[int]) -> tuple[int, ...]:
    """The items of `inside` but for the ops that are kept."""
    items = forward(placed, unit)
    return tuple(k for k in inside if isinstance(items[k].what, Move) or items[k].at not in placed.kept)


def _ended(placed: Placed, unit: str, inside: Collection[int]) -> Iterator[int]:
    """The items of `inside` whose value nothing outside reads, but for the ops that are kept."""
    items = forward(placed, unit)
    outside = {maker for k, item in enumerate(items) if k not in inside for _, maker in item.reads}
    graph = placed.graph
    for k in _not_kept(placed, unit, inside):
        name = items[k].makes[0]
        leaves = any(loop.unit == unit and loop.last == name for loop in graph.handed)
        away = any(op.unit != unit for op in graph.consumers(name)) or any(
            loop.first == name and loop.unit != unit for loop in graph.handed)
        last = name == graph.ops[-1].output
        if k not in outside and not ((leaves or away or last) and isinstance(items[k].what, PlacedOp)):
            yield k
