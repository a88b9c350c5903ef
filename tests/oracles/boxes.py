"""What every rank holds of the tensors of one microbatch: ops, their backwards and redistributions, by their meaning.

A table follows every contribution to every element that a rank holds. Nothing in it is a rule of the prover.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from itertools import product as tuples

from box_moves import MOVES, Layout, Rank, rows_met, teams_of
from counted import (
    RIGHT,
    Box,
    Extent,
    Number,
    added,
    all_of,
    below,
    common,
    contracted,
    labelled,
    of,
    plus,
    union,
)
from worlds import GARBAGE

from placealg.frozen import FrozenMap
from placealg.models.backward import differentiated, kept, transposed
from placealg.models.graph import Graph, Loop, Op, unit_of
from placealg.models.ops import Backprop as Line
from placealg.step.event import Event
from placealg.step.pipeline import FIRST, part_of
from placealg.step.verbs import MESSAGES
from placealg.step.versions import origins

Tensor = tuple[str, str]
"""A tensor and the label of a version of it."""


@dataclass
class Boxes:
    """What every rank holds of every version of every tensor.

    `users` has the ops that forward runs on a version. `reference` has what one device alone holds of every tensor.
    Of gradients a version has the parts that were added to it; None is one that could not be computed. `deposited` is
    what reached parameters in an event, instance by instance of a repeated unit, of which `layers` run. Along the axis
    `pipeline` each of them runs on its own of `stages`; `messages` are on their way, `stuck` is who waits for another.
    """

    graph: Graph
    layout: Layout
    split_dims: Mapping[str, Mapping[str, str]] = FrozenMap()
    users: Mapping[Tensor, frozenset[str]] = FrozenMap()
    layers: int = 1
    pipeline: str = ""
    stages: tuple[int, ...] = ()
    reference: Boxes | None = None
    unit: str = ""
    instance: int = 0
    made: dict[Rank, dict[Tensor, Box]] = field(default_factory=dict)
    kept: dict[Rank, dict[str, Box]] = field(default_factory=dict)
    extents: dict[Rank, dict[tuple[str, int], Extent]] = field(default_factory=dict)
    gradients: dict[Rank, dict[Tensor, list[Box | None]]] = field(default_factory=dict)
    shapes: dict[Rank, dict[str, Extent]] = field(default_factory=dict)
    final: dict[Rank, Box] = field(default_factory=dict)
    deposited: dict[tuple[str, int], dict[str, dict[Rank, Box | None]]] = field(default_factory=dict)
    messages: dict[tuple[bool, int, Rank], list[Box | None]] = field(default_factory=dict)
    stuck: str = ""
    ranks: list[Rank] = field(init=False)

    def __post_init__(self) -> None:
        sizes = self.layout.sizes
        self.ranks = [FrozenMap(dict(zip(sizes, at, strict=True))) for at in tuples(*map(range, sizes.values()))]
        for rank in self.ranks:
            self.made[rank], self.kept[rank], self.extents[rank], self.gradients[rank] = {}, {}, {}, {}
            self.shapes[rank] = {}

    @property
    def alone(self) -> Boxes:
        """The table of one device."""
        assert self.reference is not None
        return self.reference

    # reading

    def at(self, name: str) -> str:
        """The instance of a tensor that is meant: in its own unit the one that runs, else the last one."""
        if self.graph.loop(unit_of(name)) is None:
            return name
        return f"{name}#{self.instance if unit_of(name) == self.unit else self.layers - 1}"

    def stage(self, unit: str) -> int:
        """Where a unit runs: before the repeated unit with its first instance, behind it with its last."""
        if self.graph.loop(unit) is not None:
            return self.stages[self.instance]
        return self.stages[0 if part_of(unit, self.graph) == FIRST else -1]

    def acting(self, unit: str) -> list[Rank]:
        """The ranks on which a unit runs."""
        return [r for r in self.ranks if not self.pipeline or r[self.pipeline] == self.stage(unit)]

    def dims(self, name: str) -> tuple[str, ...]:
        return tuple(self.graph.tensors[name].dims)

    def extent(self, dims: Iterable[str]) -> Extent:
        return {d: self.layout.whole[d] for d in dims}

    def read(self, rank: Rank, name: str, label: str = "") -> Box | None:
        """A version of a tensor, else that from which it would come."""
        kind, here = self.graph.tensors[name].kind, self.at(name)
        if kind == "parameter":
            extent = self.extent(self.dims(name))
            for axis, dim in self.split_dims.get(name, {}).items():
                if dim in extent:
                    extent[dim] = tuple(i for i in extent[dim] if i in self.layout.owned([axis], rank, dim))
            return Box.made(extent, lambda _: RIGHT)
        found = next((self.made[rank][here, known] for known in origins(label) if (here, known) in self.made[rank]),
                     None)
        return Box.made(self.extent(self.dims(name)), lambda _: RIGHT) if found is None and kind == "data" else found

    def right(self, name: str, box: Box | None) -> Box | None:
        """What is read of a tensor as the number that it is: garbage where a contribution is missing, or too many."""
        if box is None or self.reference is None:
            return box and box.each(lambda n: n if n == GARBAGE else RIGHT)
        (alone,) = self.reference.made.values()
        wanted = alone.get((self.at(name), ""))
        return box if wanted is None else Box.made(
            box.extent, lambda p: RIGHT if box.at(p) == wanted.at(p) else GARBAGE)

    def gradient(self, rank: Rank, name: str, label: str = "") -> Box | None:
        """The sum under a label and all that derive from it; 0 of a tensor that was there, if there are no parts."""
        parts = [p for (n, k), some in self.gradients[rank].items() for p in some if _under(n, k, self.at(name), label)]
        held = [p for p in parts if p is not None]
        if not parts and not label and (shape := self.shapes[rank].get(self.at(name))) is not None:
            return Box.made(shape, lambda _: plus([]))
        if not held:
            return None

        def number(point: Mapping[str, int]) -> Number:
            here = [p.at(point) for p in held if p.holds(point)]
            return plus(here) if len(here) == len(parts) else GARBAGE

        return Box.made(union(held), number)

    # events

    def run(self, event: Event) -> None:
        """An event outside repeated units."""
        self.deposited = {}
        self._execute(event)

    def run_layers(self, unit: str, events: Sequence[Event], reverse: bool) -> None:
        """The events of a repeated unit, one instance after the other."""
        self.deposited, self.unit = {}, unit
        for instance in reversed(range(self.layers)) if reverse else range(self.layers):
            self.instance = instance
            for event in events:
                self._execute(event)
        self.unit, self.instance = "", 0

    def _execute(self, event: Event) -> None:
        if event.value == "loss" and event.verb == "compute":
            name, label = _version(event.reads[0] if event.reads else self.graph.ops[-1].inputs[0])
            self.final = {r: box for r in self.acting(event.unit) if (box := self.read(r, name, label)) is not None}
        elif event.on_tensor and event.verb == "compute":
            op = self.graph.producer(event.tensor)
            assert op is not None
            labels = [_version(r)[1] for r in event.reads] or [""] * len(op.inputs)
            if event.on_gradient:
                self.backward(op, labels)
            else:
                self.forward(op, labels, event.axes)
        elif event.on_tensor and event.verb == "assign":
            loop = next(x for x in self.graph.loops if x.slot == event.tensor)
            self.enter(loop, event.on_gradient, _version(event.reads[0])[1] if event.reads else "")
        elif event.on_tensor and event.verb == "free":
            self._free(event)
        elif event.verb in MESSAGES:
            self._message(event)
        elif event.on_tensor:
            self._move(event)

    def enter(self, loop: Loop, back: bool, label: str = "") -> None:
        """What enters an instance of a repeated unit, or the way back."""
        elsewhere = bool(self.pipeline and self.instance) and self.stages[self.instance - 1] != self.stage(loop.unit)
        for rank in self.acting(loop.unit):
            here = self.at(loop.slot)
            if not back:
                last = self.made[rank].get((f"{loop.last}#{self.instance - 1}", ""))
                box = last if self.instance else self.read(rank, loop.first, label)
                self._put(rank, here, box)
                continue
            if elsewhere:
                continue
            goal = (f"{loop.last}#{self.instance - 1}", "") if self.instance else (self.at(loop.first), label)
            self.gradients[rank].setdefault(goal, []).append(self.gradient(rank, loop.slot))

    def _message(self, event: Event) -> None:
        """What an instance hands on to the stage of the next one, or, of a gradient, of the one before."""
        back, send = event.on_gradient, event.verb == "send"
        there = self.instance + (1 if send != back else -1)
        if not 0 <= there < self.layers or self.stages[there] == self.stages[self.instance]:
            return
        for rank in self.acting(event.unit):
            if send:
                box = (self.gradient if back else self.read)(rank, event.tensor, event.version)
                receiver = rank.plus({self.pipeline: self.stages[there]})
                self.messages.setdefault((back, there, receiver), []).append(box)
                continue
            waiting, here = self.messages.get((back, self.instance, rank)), self.at(event.tensor)
            if not waiting:
                self.stuck = str(event)
            elif back:
                for key in [k for k in self.gradients[rank] if k[0] == here]:
                    del self.gradients[rank][key]
                self.gradients[rank][here, ""] = [box for box in (waiting.pop(0),) if box is not None]
            else:
                self._put(rank, here, waiting.pop(0))

    def _put(self, rank: Rank, here: str, box: Box | None) -> None:
        """A tensor as it is made: that it was there is known, whatever ends it."""
        _put(self.made[rank], (here, ""), box)
        if box is not None:
            self.shapes[rank][here] = box.extent

    def _free(self, event: Event) -> None:
        """A version ends, or all that a region made for itself, and the versions made for its ops."""
        if event.value in self.graph.tensors:
            for rank in self.acting(event.unit):
                self.made[rank].pop((self.at(event.tensor), event.version), None)
            return
        inside = {op.output for op in self.graph.of_unit(event.unit) if f"{op.region}.".startswith(f"{event.value}.")}
        known = {name for loop in self.graph.loops for name in (loop.first, loop.last)}
        known |= {n for n in inside if any(op.output not in inside for op in self.graph.consumers(n))}
        copies = {(self.at(n), label) for (n, label), users in self.users.items() if label and users <= inside}
        own = {self.at(n) for n in inside - known}
        for rank in self.acting(event.unit):
            for key in [k for k in self.made[rank] if k in copies or k[0] in own]:
                del self.made[rank][key]
            for name in [n for n in self.kept[rank] if any(n.startswith(f"{self.at(m)}.") for m in inside)]:
                del self.kept[rank][name]

    # ops

    def forward(self, op: Op, labels: Sequence[str], axes: Sequence[str]) -> None:
        held = {r: [self.read(r, n, label) for n, label in zip(op.inputs, labels, strict=True)]
                for r in self.acting(op.unit)}
        merged = rows_met(self.layout, {r: given[0] for r, given in held.items()}, op.over, axes) if (
            op.kind == "cross_entropy" and axes) else None
        here = self.at(op.output)
        for rank, given in held.items():
            self.made[rank].pop((here, ""), None)
            for _, row in kept(self.graph, op):
                self.kept[rank].pop(f"{here}.{row.name}", None)
            boxes = [b for b in given if b is not None]
            if len(boxes) < len(given):
                if op.row.random and (here, 0) in self.extents[rank]:
                    self.kept[rank][f"{here}.mask"] = Box.made(self.extents[rank][here, 0], lambda _: RIGHT)
                continue
            self.extents[rank].update({(here, k): b.extent for k, b in enumerate(boxes)})
            self._put(rank, here, self._result(rank, op, boxes, merged))

    def _result(self, rank: Rank, op: Op, boxes: list[Box], merged: set[Rank] | None) -> Box:
        dims, tag = self.dims(op.output), self.at(op.output)
        if op.kind == "rename":
            return boxes[0].renamed(op.rename)
        if op.kind == "lookup":
            boxes[1] = self._sure(op.inputs[1], boxes[1])
        if op.kind in ("einsum", "sum", "lookup", "scale", "cast", "copy"):
            apart = [b.each(lambda n, k=k: below(n, k)) for k, b in enumerate(boxes)]  # type: ignore[misc]
            return contracted(apart, dims, tag, {})
        if op.kind in ("add", "dropout"):
            if op.kind == "dropout":
                self.kept[rank][f"{tag}.mask"] = Box.made(boxes[0].extent, lambda _: RIGHT)
            shared = common(boxes)
            return added(boxes, {d: shared[d] for d in dims}, tag)
        if op.kind == "rope":
            return self._rotated(boxes[0], op, tag)
        sure = [self._sure(n, b) for n, b in zip(op.inputs, boxes, strict=True)]
        shared = common(sure)
        whole = rank in merged if merged is not None else all(
            at == self.layout.whole[d] for b in sure for d, at in b.extent.items() if d in op.over)
        for tensor, row in kept(self.graph, op):
            self.kept[rank][f"{tag}.{row.name}"] = all_of(sure, {d: shared[d] for d in tensor.dims}, whole, op.over)
        extent = {d: shared[d] if d in shared else self.layout.whole[d] for d in dims}
        return all_of(sure, extent, whole, op.over)

    def _sure(self, name: str, box: Box) -> Box:
        found = self.right(name, box)
        assert found is not None
        return found

    def _rotated(self, box: Box, op: Op, tag: str) -> Box:
        """Each element of a row becomes a sum over all of the row."""
        (dim,) = op.over
        if box.extent[dim] != self.layout.whole[dim]:
            return box.garbage
        return Box.made(box.extent, lambda p: plus(
            labelled(box.at({**p, dim: i}), tag, {dim: i}) for i in self.layout.whole[dim]))

    def backward(self, op: Op, labels: Sequence[str]) -> None:
        for rank in self.acting(op.unit):
            last = op == self.graph.ops[-1]
            seed = self.final[rank].each(lambda _: RIGHT) if rank in self.final else None
            arriving = seed if last else self.gradient(rank, op.output)
            for k in differentiated(self.graph, op):
                name, found = op.inputs[k], None
                if arriving is not None:
                    found = self._contribution(rank, op, k, labels, arriving)
                mark = f"+{self.at(op.output)}"
                found = found and found.each(lambda n, k=k, mark=mark: of(n, mark, k))  # type: ignore[misc]
                if self.graph.tensors[name].kind == "parameter":
                    mine = self.deposited.setdefault((f"{op.output}/{k}", self.instance), {})
                    mine.setdefault(name, {})[rank] = found
                else:
                    self.gradients[rank].setdefault((self.at(name), labels[k]), []).append(found)

    def _contribution(self, rank: Rank, op: Op, k: int, labels: Sequence[str], arriving: Box) -> Box | None:
        back = transposed(self.graph, op, k)
        dims, tag = self.dims(op.inputs[k]), f"{self.at(op.output)}.grad.{k}"
        if back.kind == "vjp":
            return self._lines(rank, op, back.steps, labels, arriving)
        if back.kind == "rename":
            return arriving.renamed(back.rename)
        if back.kind == "rope":
            return self._rotated(arriving, op, tag)
        partners = [j for j in range(len(op.inputs)) if j != k] if back.reads else []
        read = [self._factor(rank, op, j, labels[j]) for j in partners]
        extent = self.extents[rank].get((self.at(op.output), k), {})
        boxes = [arriving, *(b for b in read if b is not None)]
        if len(boxes) <= len(partners) or {*dims} - {d for b in boxes for d in b.extent} - {*extent}:
            return None
        return contracted(boxes, dims, tag, extent)

    def _factor(self, rank: Rank, op: Op, k: int, label: str) -> Box | None:
        """Another operand, in which the backward of a product is linear: its contributions where it is incomplete."""
        held = self.read(rank, op.inputs[k], label)
        sure = self.right(op.inputs[k], held)
        if held is None or sure is None or op.row.linear != "each":
            return sure
        return Box.made(held.extent, lambda p: sure.at(p) if sure.at(p) != GARBAGE else below(held.at(p), k))

    def _lines(self, rank: Rank, op: Op, lines: Sequence[Line], labels: Sequence[str], arriving: Box) -> Box | None:
        """A vector-Jacobian product, line by line; what is read beside the gradient are numbers, right or garbage."""
        found: dict[str, Box] = {"dy": arriving}
        linear = {"dy"}
        for line in lines:
            for role in line.inputs:
                if role not in found:
                    box = self._played(rank, op, role, labels)
                    if box is None:
                        return None
                    found[role] = box
            boxes, dims = [found[role] for role in line.inputs], _dims_of(self, op, line.dims)
            tag, shared = f"{self.at(op.output)}.grad.{line.output}", common(boxes)
            if linear.isdisjoint(line.inputs):
                gone = [d for d in shared if d not in dims]
                whole = all(at == self.layout.whole[d] for b in boxes for d, at in b.extent.items() if d in gone)
                made = all_of(boxes, {d: shared.get(d, self.layout.whole[d]) for d in dims}, whole, gone)
            elif line.kind == "add":
                made = added(boxes, {d: shared[d] for d in dims}, tag)
            else:
                made = contracted(boxes, dims, tag, self.layout.whole)
            linear |= {line.output} if linear & {*line.inputs} else set()
            found[line.output] = made
        return found[lines[-1].output]

    def _played(self, rank: Rank, op: Op, role: str, labels: Sequence[str]) -> Box | None:
        if role in op.row.operands:
            k = op.row.operands.index(role)
            return self.right(op.inputs[k], self.read(rank, op.inputs[k], labels[k]))
        if role == "y":
            return self.right(op.output, self.made[rank].get((self.at(op.output), "")))
        return self.kept[rank].get(f"{self.at(op.output)}.{role}")

    # redistributions

    def _move(self, event: Event) -> None:
        for team in teams_of(self.acting(event.unit), event.axes):
            read = self.gradient if event.on_gradient else self.read
            boxes = [read(rank, event.tensor, event.version) for rank in team]
            for rank, box in zip(team, MOVES[event.verb](self.layout, event, team, boxes), strict=True):
                here, mine = (self.at(event.tensor), event.version), self.gradients[rank]
                if event.on_gradient:
                    for key in [k for k in mine if _under(*k, *here)]:
                        del mine[key]
                    if box is not None:
                        mine[here] = [box]
                else:
                    _put(self.made[rank], here, box)


def _under(name: str, label: str, wanted: str, above: str) -> bool:
    """Whether a version is one of those that a label and all that derive from it stand for."""
    return name == wanted and (not above or label == above or label.startswith(f"{above}/"))


def _put(made: dict[Tensor, Box], key: Tensor, box: Box | None) -> None:
    if box is None:
        made.pop(key, None)
    else:
        made[key] = box


def _version(read: str) -> Tensor:
    name, _, label = read.partition("@")
    return name, label


def _dims_of(table: Boxes, op: Op, role: str) -> tuple[str, ...]:
    result, operands = table.dims(op.output), [table.dims(n) for n in op.inputs]
    if role == "y":
        return result
    if role == "row":
        return tuple(d for d in result if d not in op.over)
    if role == "grid":
        both = dict.fromkeys((*operands[0], *operands[1]))
        return tuple(d for d in both if d not in op.over or d not in operands[0])
    return operands[op.row.operands.index(role)]


def alone(graph: Graph, whole: Extent, layers: int) -> Boxes:
    """A table of one device that has run the graph forward and backward."""
    table = Boxes(graph, Layout(whole, FrozenMap(), lambda *_: 0), layers=layers)
    (rank,) = table.ranks
    units = [(unit, list(ops)) for unit, ops in groupby(graph.ops, key=lambda op: op.unit)]
    for unit, ops in units:
        for _ in _instances(table, unit, back=False):
            for op in ops:
                table.forward(op, [""] * len(op.inputs), ())
    found = table.read(rank, graph.ops[-1].inputs[0])
    assert found is not None
    table.final = {rank: found}
    for unit, ops in reversed(units):
        for _ in _instances(table, unit, back=True):
            for op in reversed(ops):
                table.backward(op, [""] * len(op.inputs))
    return table


def _instances(table: Boxes, unit: str, back: bool) -> Iterator[int]:
    """The instances of a unit, in each of which something enters, forward at its begin and backward at its end."""
    loop = table.graph.loop(unit)
    if loop is None:
        yield 0
        return
    table.unit = unit
    for instance in reversed(range(table.layers)) if back else range(table.layers):
        table.instance = instance
        if not back:
            table.enter(loop, back)
        yield instance
        if back:
            table.enter(loop, back)
    table.unit, table.instance = "", 0
