"""From a placed op graph to events: one compute per op, one event per row of every redistribution, forward and back.

Everything here follows from the layouts that `split.py` found and from what `saved_tensors.py` and `recompute.py` say
is kept. `derive` asks for the events of one unit at a time and puts the parameters' events around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.backward import GRAD, backward, differentiated, needs_gradient
from placealg.models.graph import Loop, Op
from placealg.placement import Kind
from placealg.step.event import Event, Phase, Rule
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.offload import away
from placealg.step.recompute import forward, replayed_items
from placealg.step.redistribution_events import BLOCKWISE, RING, is_ring, row_events
from placealg.step.saved_tensors import saved_tensors
from placealg.step.split import Layout, Move, Placed, PlacedOp, RedistributionRow
from placealg.step.verbs import VerbName
from placealg.strategy.vocabulary import NONE


@dataclass(frozen=True, slots=True)
class Passes:
    """The events of one instance of a unit: of its forward, its backward, and the part of it for weights, if apart."""

    forward: tuple[Event, ...] = ()
    backward: tuple[Event, ...] = ()
    weights: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Operations:
    """A placed graph with the schedule of its activations, and the labels of all versions of its tensors.

    `sharded` are the axes along which gathered values are held as shards (S*), `recomputed` the regions that are not
    held (M), `replay` how much of them backward runs again, `ring` the axes along which values go round, `apart` says
    that the backward for the weights is a phase of its own, `chosen` is the one repeated unit whose layers were chosen,
    if not all are: to be recomputed (`again`) or offloaded (`aside`). `offloaded` are the regions whose activations
    rest on `tier` between the passes. `made` maps (op, tensor) to the label under which the op uses the tensor, `moved`
    each move to the label that it makes.
    """

    placed: Placed
    sharded: tuple[str, ...]
    recomputed: tuple[str, ...]
    replay: str
    ring: tuple[str, ...]
    apart: bool
    chosen: str
    again: bool
    offloaded: tuple[str, ...]
    tier: str
    aside: bool
    made: FrozenMap[tuple[str, str], str]
    moved: FrozenMap[int, str]

    @staticmethod
    def of(placed: Placed, sharded: tuple[str, ...], recomputed: tuple[str, ...], replay: str,
           ring: tuple[str, ...], apart: bool = False, chosen: str = "", again: bool = False,
           offloaded: tuple[str, ...] = (), tier: str = "host", aside: bool = False) -> Operations:
        """The operations of a placed graph, its versions labelled by the axes on which they differ from their source.

        A copy of a copy has its source's label as a prefix, so that every reader can tell where it came from.
        """
        known: dict[tuple[str, Layout], str] = {(name, layout): "" for name, layout in placed.native.items()}
        made: dict[tuple[str, str], str] = {}
        moved: dict[int, str] = {}
        used: set[tuple[str, str]] = set()
        moves = list(enumerate(placed.moves))
        for at in placed.ops:
            while moves and moves[0][1][0] == at.op.output:
                number, (_, move) = moves.pop(0)
                label = _label(move, known[move.tensor, move.source], used)
                moved[number] = known[move.tensor, move.target] = label
            for name, use in zip(at.op.inputs, at.uses, strict=True):
                activation = placed.graph.tensors[name].kind != "parameter"
                made[at.op.output, name] = known.get((name, use), "") if activation else ""
            for loop in placed.graph.handed:
                if at.op == placed.graph.of_unit(loop.unit)[0]:
                    made[loop.slot, loop.first] = known[loop.first, placed.native[loop.slot]]
        return Operations(placed, sharded, recomputed, replay, ring, apart, chosen, again, offloaded, tier, aside,
                          FrozenMap(made), FrozenMap(moved))

    def reads(self, op: Op) -> tuple[str, ...]:
        """The operands of an op as versions, NAME@LABEL."""
        return tuple(version_of(name, self.made[op.output, name]) for name in op.inputs)

    @cached_property
    def passes(self) -> FrozenMap[str, Passes]:
        """Unit -> its events, each unit's built once."""
        return FrozenMap({unit: self._passes(unit) for unit in dict.fromkeys(at.op.unit for at in self.placed.ops)})

    def _passes(self, unit: str) -> Passes:
        """The events of one instance of a unit; what enters a repeated unit is moved before its loop.

        Backward runs the ops in reverse, each after what it needs again. What rests on another tier in between leaves
        behind its last use in forward, and is back before the first event that reads it.
        """
        forward, backward = tuple(self._forward(unit)), tuple(self._backward(unit))
        weights = tuple(self._weights(unit)) if self.apart else ()
        if regions := self._offloaded(unit):
            around = away(self.placed.graph, forward, (*backward, *weights), regions, self.tier, self.apart)
            forward = tuple(around.forward(forward))
            backward, weights = (tuple(around.backward(late)) for late in (False, True))
        return Passes(forward, backward, weights)

    def _forward(self, unit: str) -> Iterator[Event]:
        graph = self.placed.graph
        ops = [p for p in self.placed.ops if p.op.unit == unit]
        ending = self._last_uses(unit)
        for entered in graph.entering(unit):
            yield Event("forward", "assign", entered.slot, unit=unit, rule=_ENTER,
                        reads=(version_of(entered.first, self.made[entered.slot, entered.first]),))
            yield from self._pass_on("forward", "recv", entered.slot, unit)
        for at in ops:
            for label, move in self._moves_at(at, entering=False):
                yield from self._move(move, label, "forward", unit)
            if at.op != graph.ops[-1]:
                yield self.compute(at, "forward")
            for name, label in ending.get(at.op.output, ()):
                yield Event("forward", "free", name, unit=unit, version=label, rule=_SHARDED)
            for region in self._recomputed(unit):
                if at.op.within(region) and not any(p.op.within(region) for p in ops[ops.index(at) + 1:]):
                    for name in dict.fromkeys(_dotted(region, p.op) for p in ops if p.op.within(region)):
                        if name in graph.tensors:
                            raise InputError(f"region '{name}' is not recomputed: a tensor has its name", name=region,
                                             valid=graph.regions)
                        held = tuple(p.op.output for p in ops if p.op.output in self.placed.kept
                                     and f"{p.op.region}.".startswith(f"{name}."))
                        yield Event("forward", "free", name, unit=unit, reads=held, rule=_RECOMPUTED)
        for name in graph.leaving(unit):
            yield from self._pass_on("forward", "send", name, unit)

    def differentiates(self, unit: str) -> bool:
        """Whether a unit has a backward: a unit before everything that trains has none."""
        return any(op.output in self._differentiated for op in self.placed.graph.of_unit(unit))

    def entering(self, unit: str) -> Iterator[Event]:
        """The redistributions of what enters a repeated unit, which run once, in the unit that made it."""
        loop = self.placed.graph.loop(unit)
        if loop:
            first = next(p for p in self.placed.ops if p.op.unit == unit)
            for label, move in self._moves_at(first, entering=True):
                yield from self._move(move, label, "forward", self._home(loop))

    def _backward(self, unit: str) -> Iterator[Event]:
        graph = self.placed.graph
        ops = [p for p in self.placed.ops if p.op.unit == unit]
        differentiated = self._differentiated
        again, done = self._gathered_again(unit)
        replays = self._replays(unit)
        for name in graph.leaving(unit):
            yield from self._pass_on("backward", "recv", name + GRAD, unit)
        for at in reversed(ops):
            if at.op.output in differentiated:
                for label, move in again.get(at.op.output, ()):
                    yield from self._move(move, label, "backward", unit, _SHARDED)
                for region in sorted(r for r, start in replays.items() if start == at.op.output):
                    yield from self._replay(unit, region)
                if not self.apart or self._receives(at.op, parameters=False):
                    yield Event("backward", "compute", at.op.output + GRAD, unit=unit, reads=self.reads(at.op),
                                rule=_FOR_INPUTS if self.apart else _BACKWARD)
                for name, label in done.get(at.op.output, ()) if not self.apart else ():
                    yield Event("backward", "free", name, unit=unit, version=label, rule=_SHARDED)
            for label, move in reversed(list(self._moves_at(at, entering=False))):
                if self._differentiable(move):
                    yield from self._move_back(move, label, unit)
        for entered in graph.entering(unit):
            yield Event("backward", "assign", entered.slot + GRAD, unit=unit, rule=_ENTER,
                        reads=(version_of(entered.first, self.made[entered.slot, entered.first]),))
            yield from self._pass_on("backward", "send", entered.slot + GRAD, unit)

    def _weights(self, unit: str) -> Iterator[Event]:
        _, done = self._gathered_again(unit)
        for at in reversed([p for p in self.placed.ops if p.op.unit == unit]):
            if self._receives(at.op, parameters=True):
                yield Event(WEIGHTS, "compute", at.op.output + GRAD, unit=unit, reads=self.reads(at.op),
                            rule=_FOR_WEIGHTS)
            for name, label in done.get(at.op.output, ()):
                yield Event(WEIGHTS, "free", name, unit=unit, version=label, rule=_SHARDED)

    def _receives(self, op: Op, parameters: bool) -> bool:
        """Whether the backward of an op adds to the gradients of parameters, or of other operands."""
        graph = self.placed.graph
        return any((graph.tensors[op.inputs[k]].kind == "parameter") == parameters for k in differentiated(graph, op))

    def _pass_on(self, phase: Phase, verb: VerbName, value: str, unit: str) -> Iterator[Event]:
        """In a pipeline, the message between instances of repeated units that run on different stages.

        What is one instance at an end of the model has no neighbour on the other side.
        """
        graph = self.placed.graph
        outer = graph.loops[0 if (verb == "recv") == (phase == "forward") else -1].unit
        if self.placed.pipeline and not (unit == outer and graph.single(unit)):
            yield Event(phase, verb, value, unit=unit, axes=(self.placed.pipeline,), bytes="act",
                        rule=Rule("pipeline", _STAGES[phase, verb]))

    def leaving(self, unit: str) -> Iterator[Event]:
        """The backward of `entering`: the redistributions of the gradient of what enters a repeated unit."""
        loop = self.placed.graph.loop(unit)
        if loop:
            first = next(p for p in self.placed.ops if p.op.unit == unit)
            for label, move in reversed(list(self._moves_at(first, entering=True))):
                if self._differentiable(move):
                    yield from self._move_back(move, label, self._home(loop))

    def compute(self, at: PlacedOp, phase: Phase) -> Event:
        """The compute event of one op; if the op merges its statistics, the event names the axes."""
        split = [a for a, d in at.split.items() if d in at.op.over]
        axes = tuple(split) if at.op.row.over == "statistics" else ()
        how = ", ".join(f"{dim} over {axis}" for axis, dim in at.split.items() if dim not in ("", NONE))
        why = "the same storage under other names" if at.op.row.view else (
            f"split along {how}" if how else "computed whole on every rank")
        return Event(phase, "compute", at.op.output, unit=at.op.unit, axes=axes, reads=self.reads(at.op),
                     op="sum" if axes else "", bytes="4" if axes else "", rule=Rule("split", why))

    def _move(self, move: Move, label: str, phase: Phase, unit: str, rule: Rule | None = None) -> Iterator[Event]:
        for row in self._streamed(move, move.rows()):
            yield from row_events(row, move.tensor, label, phase, unit, rule)

    def _move_back(self, move: Move, label: str, unit: str) -> Iterator[Event]:
        for row in self._streamed(move, move.backward().rows()):
            yield from row_events(row, move.tensor + GRAD, label, "backward", unit, None)

    def _streamed(self, move: Move, rows: tuple[RedistributionRow, ...]) -> Iterator[RedistributionRow]:
        """The rows, with a ring in place of a gather for use, and of a gather's backward, along the axes of `ring`.

        A ring brings a value block by block, so that all its readers must be ops that can take blocks: products and the
        attention core.
        """
        blockwise = all(op.row.family in BLOCKWISE for op in self.placed.graph.consumers(move.tensor))
        for row in rows:
            ring = tuple(a for a in row.axes if a in self.ring) if blockwise and is_ring(row) else ()
            others = tuple(a for a in row.axes if a not in ring)
            if others:
                yield replace(row, axes=others)
            if ring:
                yield replace(row, axes=ring, row=replace(row.row, event=RING))

    def _home(self, loop: Loop) -> str:
        """The unit that runs the redistributions of what enters a repeated unit; "" between two repeated units."""
        graph, home = self.placed.graph, self.placed.graph.tensors[loop.first].unit
        return "" if graph.loop(home) else home if home in graph.units else loop.unit

    def _moves_at(self, at: PlacedOp, entering: bool) -> Iterator[tuple[str, Move]]:
        """(label, move) of the redistributions before an op; `entering`: only those into the loop."""
        firsts = {loop.first for loop in self.placed.graph.entering(at.op.unit)}
        for number, (output, move) in enumerate(self.placed.moves):
            if output == at.op.output and (move.tensor in firsts) == entering:
                yield self.moved[number], move

    def _differentiable(self, move: Move) -> bool:
        graph = self.placed.graph
        return graph.tensors[move.tensor].kind == "activation" and move.tensor in needs_gradient(graph)

    def _held_as_shards(self, unit: str) -> Iterator[tuple[str, str, Move, tuple[str, ...]]]:
        """(tensor, label, move, readers) of every gathered version that backward gathers again.

        The readers of a copy of it count as its readers.
        """
        readers: dict[str, list[str]] = {}
        for kept in saved_tensors(self.placed, unit, self.sharded, recomputed=self._recomputed(unit),
                                  replay=self.replay):
            if kept.again is not None:
                readers.setdefault(kept.again.tensor, []).extend(kept.readers)
        for (at, move), label in zip(self.placed.moves, self.moved.values(), strict=True):
            reading = tuple(r for r in readers.get(move.tensor, ())
                            if _under(self.made.get((r, move.tensor), ""), label))
            gathered = any(move.source[a].kind is Kind.S and move.target[a].kind in (Kind.R, Kind.I)
                           for a in self.sharded)
            if reading and gathered and not any(self.placed.op(at).op.within(r) for r in self._recomputed(unit)):
                yield move.tensor, label, move, reading

    def _gathered_again(self, unit: str) -> tuple[dict[str, list[tuple[str, Move]]],
                                                  dict[str, list[tuple[str, str]]]]:
        """(op -> what is gathered again before its backward, op -> what ends after its backward).

        A version is gathered for its last reader in forward order and ends after the first. A replayed op reads where
        its replay starts.
        """
        again: dict[str, list[tuple[str, Move]]] = {}
        done: dict[str, list[tuple[str, str]]] = {}
        items = forward(self.placed, unit)
        replayed = {items[k].at: start for region, start in self._replays(unit).items()
                    for k, operands in replayed_items(self.placed, unit, region, self.replay).items() if operands}
        for name, label, move, readers in self._held_as_shards(unit):
            reading = {*readers, *(replayed[r] for r in readers if r in replayed)}
            ordered = [p.op.output for p in self.placed.ops if p.op.output in reading]
            again.setdefault(ordered[-1], []).append((label, move))
            done.setdefault(ordered[0], []).append((name, label))
        return again, done

    def _last_uses(self, unit: str) -> dict[str, list[tuple[str, str]]]:
        """Op -> the gathered versions that end after it in forward: no later op reads them or a copy of them."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, label, _, _ in self._held_as_shards(unit):
            users = [p.op.output for p in self.placed.ops if p.op.unit == unit
                     and _under(self.made.get((p.op.output, name), ""), label)]
            found.setdefault(users[-1], []).append((name, label))
        return found

    def _recomputed(self, unit: str) -> tuple[str, ...]:
        """The regions that are recomputed in a unit."""
        return self.recomputed if not self.again or self._among(unit) else ()

    def _offloaded(self, unit: str) -> tuple[str, ...]:
        """The regions of a unit whose activations rest on another tier."""
        return self.offloaded if not self.aside or self._among(unit) else ()

    def _among(self, unit: str) -> bool:
        """Whether a unit is that of the chosen layers, or no layer."""
        return self.chosen in ("", unit) or self.placed.graph.loop(unit) is None

    def _replays(self, unit: str) -> dict[str, str]:
        """Recomputed region -> the op of the unit before whose backward it is replayed: the last that has one."""
        differentiated = self._differentiated
        return {region: p.op.output for region in self._recomputed(unit) for p in self.placed.ops
                if p.op.unit == unit and p.op.within(region) and p.op.output in differentiated}

    @property
    def _differentiated(self) -> set[str]:
        """The ops that have a backward."""
        return {step.forward for step in backward(self.placed.graph)}

    def _replay(self, unit: str, region: str) -> Iterator[Event]:
        labels = {(at, move): label for (at, move), label in
                  zip(self.placed.moves, self.moved.values(), strict=True)}
        items = forward(self.placed, unit)
        for item in (items[k] for k in replayed_items(self.placed, unit, region, self.replay)):
            if isinstance(item.what, PlacedOp):
                yield replace(self.compute(item.what, "backward"), rule=_RECOMPUTED)
            else:
                yield from self._move(item.what, labels[item.at, item.what], "backward", unit, _RECOMPUTED)


def _dotted(region: str, op: Op) -> str:
    """The dotted name of a region, from the outermost on, as an op belongs to it."""
    before, _, _ = f".{op.region}.".partition(f".{region}.")
    return f"{before}.{region}".strip(".")


def version_of(name: str, label: str) -> str:
    """A version as users write it.

    >>> version_of("layer.norm1.out", "tp"), version_of("layer.out", "")
    ('layer.norm1.out@tp', 'layer.out')
    """
    return f"{name}@{label}" if label else name


def _label(move: Move, parent: str, used: set[tuple[str, str]]) -> str:
    """A new label of the tensor: the axes on which the move changes it, under its source's label."""
    changed = "_".join(a for a, place in move.source.items() if place != move.target[a])
    stem = f"{parent}/{changed}" if parent else changed
    label, number = stem, 2
    while (move.tensor, label) in used:
        label, number = f"{stem}{number}", number + 1
    used.add((move.tensor, label))
    return label


def _under(label: str, root: str) -> bool:
    """Whether a version is the one labelled `root`, or a copy of it."""
    return f"{label}/".startswith(f"{root}/")


_STAGES = {
    ("forward", "recv"): "where the instance before runs on another stage, its output comes from there",
    ("forward", "send"): "where the next instance runs on another stage, what it reads is sent there",
    ("backward", "recv"): "where the next instance runs on another stage, the gradient of what it read comes back",
    ("backward", "send"): "where the instance before runs on another stage, the gradient of what it made goes there",
}
_ENTER = Rule("repeat", "a repeated unit reads what comes before it, then the instance before")
_BACKWARD = Rule("transpose", "the op's backward, split as its forward")
_FOR_INPUTS = Rule("transpose", "the op's backward for its inputs, split as its forward: a stage waits for it")
_FOR_WEIGHTS = Rule("transpose", "the op's backward for its weights, for which no other stage waits")
_SHARDED = Rule("hold_shard", "S*: a gathered activation is held as its shard and gathered again for backward")
_RECOMPUTED = Rule("recompute", "M: the region's values are not held; backward runs it again")
