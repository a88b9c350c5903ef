"""The single device's program, from the model: its op graph, the backward that follows from it, and the update.

No event of a strategy's program is read here. Of the strategy come whether gradients are clipped, and what an update
reads: what it trains with, which is the single device's too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placealg.models.backward import differentiated, needs_gradient, terms
from placealg.models.graph import Graph, Op
from placealg.prover.kernel.fields import Outside
from placealg.prover.opkernel.network import backward, forward
from placealg.prover.opkernel.program import (
    Index,
    Last,
    Line,
    Number,
    Pair,
    Plain,
    Repeat,
    SAdd,
    SEinsum,
    Single,
    SRename,
    SRow,
    SScale,
    Stretch,
)
from placealg.prover.opkernel.symbols import Symbols
from placealg.step.event import Reference

UPDATED = ("update", "moments")
"""What an update makes: the weight, and what the optimizer keeps."""

COUNTERS = ("step", "rng")
"""What is moved once in a step: its counter, which updates read, and the random stream, of which masks are drawn."""

TOKENS = "all tokens"
"""The atom by which the single device divides: the tokens of a step."""


def in_order(value: Pair) -> int:
    """Where a value stands among those that are added up: a sum has one order, whoever adds."""
    return int(value.first)


def per_unit(graph: Graph) -> dict[str, list[str]]:
    """Unit of several instances -> its parameters; first, under "", those of which there is one.

    >>> from placealg.models.transformer import gpt
    >>> list(per_unit(gpt().graph))
    ['', 'layer']
    """
    found: dict[str, list[str]] = {"": []}
    for parameter in graph.parameters:
        found.setdefault(parameter.unit if graph.loop(parameter.unit) else "", []).append(parameter.name)
    return found


@dataclass(frozen=True, slots=True)
class Alone:
    """The single device's program: its stretches, what it keeps, and where its values and lines are found.

    `weights`, `moments`, `data` and `counters` are values by name. `lines` and `handed` find the line, and the value
    that it makes: by scope, op and operands, and, for what a loop is handed, by scope and value. `entering` are the
    values that the loop of a unit hands on: forward, backward, and of the norm.
    """

    stretches: tuple[Stretch, ...]
    states: tuple[Pair, ...]
    weights: Mapping[str, Number]
    moments: Mapping[str, Number]
    data: Mapping[str, Number]
    lines: Mapping[tuple[str, Single, tuple[Pair, ...]], tuple[Number, Pair]]
    handed: Mapping[tuple[str, Pair], Number]
    entering: Mapping[str, tuple[Number, Number, Number]]
    counters: Mapping[str, Number]


class _Device:
    """The lines that were written, and the maker of those of `network.py`."""

    def __init__(self, reference: Reference, symbols: Symbols) -> None:
        self.reference, self.graph, self.symbols = reference, reference.graph, symbols
        self.scope = ""
        self.stretches: list[tuple[str, bool, list[Pair]]] = []
        self.lines: dict[tuple[str, Single, tuple[Pair, ...]], tuple[Number, Pair]] = {}
        self.handed: dict[tuple[str, Pair], Number] = {}
        self.values = 0
        self.count = 0
        self.made: dict[tuple[str, str], Pair] = {}
        self.grads: dict[str, list[Pair]] = {}
        self.counters = {name: self.new() for name in COUNTERS}
        self.entering = {loop.unit: (self.new(), self.new(), self.new()) for loop in self.graph.loops}

    def new(self) -> Number:
        self.values += 1
        return Number(self.values)

    def stretch(self, unit: str, down: bool = False) -> None:
        """What follows runs once, or in each instance of a unit."""
        self.scope = unit
        self.stretches.append((unit, down, []))

    def write(self, made: Single, reads: tuple[Pair, ...], target: Pair) -> Number:
        self.count += 1
        number = Number(self.count)
        self.stretches[-1][2].append(Pair(number, Line(target, made, reads)))
        return number

    def line(self, made: Single, args: list[Pair]) -> Pair:
        """A value; what was made of the same before is that."""
        key = (self.scope, made, tuple(args))
        if key not in self.lines:
            target = Pair(self.new(), "This" if self.scope else "First")
            self.lines[key] = (self.write(made, tuple(args), target), target)
        return self.lines[key][1]

    def hand(self, value: Number, index: Index, arg: Pair, before: Pair | None = None) -> None:
        """What a loop is handed is a value made before; `before` is what its first instance is handed."""
        if before is not None:
            inner = self.stretches.pop()
            self.stretch("")
            self.hand(value, "First", before)
            self.stretches.append(inner)
            self.scope = inner[0]
        target = Pair(value, index)
        self.handed[self.scope, target] = self.write(SRename(()), (arg,), target)

    def einsum(self, args: list[Pair], over: object) -> Pair:
        return self.line(SEinsum(self.symbols.dims(over)), args)  # type: ignore[arg-type]

    def row(self, function: str, over: object, args: list[Pair]) -> Pair:
        return self.line(SRow(self.symbols.function(function), self.symbols.dims(over)), args)  # type: ignore[arg-type]

    def add(self, args: list[Pair]) -> Pair:
        return args[0] if len(args) == 1 else self.line(SAdd(), args)

    def scale(self, by: Mapping[str, int], arg: Pair) -> Pair:
        return self.line(SScale(self.symbols.powers(by)), [arg])

    def rename(self, names: Mapping[str, str], arg: Pair) -> Pair:
        return self.line(SRename(self.symbols.names(names)), [arg])

    def whole(self, dim: str, arg: Pair) -> Pair:
        return arg

    def total(self, arg: Pair) -> Pair:
        return arg

    def stream(self) -> Pair:
        return Pair(self.counters["rng"], "First")

    def looped(self, name: str) -> str:
        """The unit in whose instances a tensor is made; "" if there is one."""
        unit = name.partition(".")[0]
        return unit if self.graph.loop(unit) else ""

    def read(self, name: str) -> Pair:
        """A tensor where it is read: of a unit's instances, outside of them, what the last has made."""
        found = self.made[name, ""]
        unit = self.looped(name)
        if unit == self.scope or not unit:
            return found
        loop = self.graph.loop(unit)
        if loop is None or name != loop.last:
            raise Outside("", f"{name} is read outside of the instances of {unit}")
        return Pair(self.entering[unit][0], Last(self.symbols.unit(unit)))

    def gradient(self, name: str) -> Pair:
        parts = self.grads.get(name)
        if not parts:
            raise Outside("", f"{name} gets no gradient")
        return self.add(sorted(parts, key=in_order))


def alone(reference: Reference, symbols: Symbols) -> Alone:
    """The single device's program of a reference; raises Outside."""
    graph = reference.graph
    _check(reference)
    device = _Device(reference, symbols)
    weights = {t.name: device.new() for t in graph.parameters}
    moments = {t.name: device.new() for t in graph.parameters if not t.frozen}
    data = {t.name: device.new() for t in graph.tensors.values() if t.kind == "data"}
    for name, number in weights.items():
        device.made[name, ""] = Pair(number, "This" if device.looped(name) else "First")
    for name, number in data.items():
        device.made[name, ""] = Pair(number, "First")
    _forward(device)
    _backward(device)
    updated = _update(device, moments)
    device.stretch("")
    moved = {number: device.row(f"next {name}", (), [Pair(number, "First")])
             for name, number in device.counters.items()}
    stretches = tuple(Repeat(symbols.unit(unit), down, tuple(lines)) if unit else Plain(tuple(lines))
                      for unit, down, lines in device.stretches if lines)
    states = tuple(Pair(n, updated[name][k]) for name in updated for k, n in enumerate((weights[name], moments[name])))
    states += tuple(Pair(number, value.first) for number, value in moved.items())
    return Alone(stretches, states, weights, moments, data, device.lines, device.handed, device.entering,
                 device.counters)


def _check(reference: Reference) -> None:
    graph = reference.graph
    for wrong, told in (
        (graph.whole, "units run whole"),
        (bool(graph.beside), "a unit is handed several tensors"),
        (bool(terms(graph)) or reference.losses != ("loss",), "further terms of the loss"),
        (reference.weighting != "token_mean", f"weights of tokens: {reference.weighting}"),
        (bool(reference.pipeline.axis), "a pipeline"),
        (reference.skip or reference.scaled, "steps that overflow"),
        (bool(reference.random_keys), "random streams keyed by rank"),
        (any(g.statistic or g.frozen or g.averaged for g in reference.groups), "frozen groups, statistics or averages"),
        (any(g.locality != ("matrix" if g.whole_reads else "elementwise") for g in reference.groups),
         "an update that reads neither its element nor whole matrices"),
        (any(g.unit != g.parameters[0].partition(".")[0] for g in reference.groups), "a group of several units"),
    ):
        if wrong:
            raise Outside("", f"{told}: not in the kernel of ops")


def _runs(graph: Graph, ops: tuple[Op, ...]) -> list[tuple[str, list[Op]]]:
    """Runs of ops of one repeated unit, or of none."""
    runs: list[tuple[str, list[Op]]] = []
    for op in ops:
        unit = op.unit if graph.loop(op.unit) else ""
        if not runs or runs[-1][0] != unit:
            runs.append((unit, []))
        runs[-1][1].append(op)
    return runs


def _forward(device: _Device) -> None:
    graph = device.graph
    for unit, ops in _runs(graph, graph.ops):
        if unit:
            loop = graph.loop(unit)
            assert loop is not None
            device.stretch("")
            entering = device.entering[unit][0]
            device.hand(entering, "First", device.read(loop.first))
            device.made[loop.slot, ""] = Pair(entering, "This")
        device.stretch(unit)
        for op in ops:
            made = forward(device, graph, op, lambda k, op=op: device.read(op.inputs[k]))  # type: ignore[misc]
            device.made.update({(op.output, name): value for name, value in made.items()})
        if unit:
            assert loop is not None
            device.hand(entering, "Next", device.made[loop.last, ""])


def _backward(device: _Device) -> None:
    graph = device.graph
    needs = needs_gradient(graph)
    for unit, ops in reversed(_runs(graph, graph.ops)):
        loop = graph.loop(unit) if unit else None
        if loop is not None:
            device.stretch("")
            leaving = device.entering[unit][1]
            device.hand(leaving, Last(device.symbols.unit(unit)), device.gradient(loop.last))
            device.grads[loop.last] = [Pair(leaving, "Next")]
        device.stretch(unit, down=True)
        for op in reversed(ops):
            if op.output not in needs:
                continue
            arriving = _seed(device) if op == graph.ops[-1] else device.gradient(op.output)
            for k in differentiated(graph, op):
                got = backward(device, graph, op, k, arriving,
                               lambda j, op=op: device.read(op.inputs[j]),  # type: ignore[misc]
                               lambda name, op=op: device.made[op.output, name])  # type: ignore[misc]
                device.grads.setdefault(op.inputs[k], []).append(got)
        if loop is not None and loop.slot in needs:
            device.hand(leaving, "This", device.gradient(loop.slot))
            device.grads.setdefault(loop.first, []).append(Pair(leaving, "First"))


def _seed(device: _Device) -> Pair:
    """The gradient of the mean over all tokens at each token's loss."""
    return device.scale({TOKENS: -1}, device.row("one", (), []))


def _update(device: _Device, moments: Mapping[str, Number]) -> dict[str, tuple[Number, Number]]:
    """Norm, clip and update of every parameter: its weight and its moments in the next step."""
    reference = device.reference
    whole = {name for group in reference.groups if group.whole_reads for name in group.parameters}
    names = per_unit(device.graph)
    gradients = _gradients(device, names)
    coefficient = _coefficient(device, gradients) if reference.clip else None
    updated: dict[str, tuple[Number, Number]] = {}
    for unit, of_unit in names.items():
        device.stretch(unit)
        for name in of_unit:
            gradient = gradients[unit][name]
            if coefficient is not None:
                gradient = device.einsum([gradient, coefficient], ())
            over = device.graph.tensors[name].dims if name in whole else ()
            step = Pair(device.counters["step"], "First")
            reads = [device.made[name, ""], Pair(moments[name], "This" if unit else "First"), gradient, step]
            made = [device.row(f"{what} of {name}", over, reads) for what in UPDATED]
            updated[name] = (made[0].first, made[1].first)
    return updated


def _gradients(device: _Device, names: Mapping[str, list[str]]) -> dict[str, dict[str, Pair]]:
    """Unit -> parameter -> its gradient."""
    found: dict[str, dict[str, Pair]] = {}
    for unit, of_unit in names.items():
        device.stretch(unit)
        found[unit] = {name: device.gradient(name) for name in of_unit}
    return found


def _coefficient(device: _Device, gradients: Mapping[str, Mapping[str, Pair]]) -> Pair:
    """What gradients are clipped by: a function of the sum of the squares of all of them."""
    total: Pair | None = None
    for unit, of_unit in gradients.items():
        device.stretch(unit)
        squares = [device.einsum([g, g], device.graph.tensors[name].dims) for name, g in of_unit.items()]
        if not unit:
            total = device.add(squares) if squares else None
            continue
        if total is None:
            raise Outside("", "every parameter is of a repeated unit: not in the kernel of ops")
        number = device.entering[unit][2]
        device.hand(number, "Next", device.add([Pair(number, "This"), *squares]), before=total)
        total = Pair(number, Last(device.symbols.unit(unit)))
    device.stretch("")
    assert total is not None
    return device.row("clip", (), [total])
