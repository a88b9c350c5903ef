"""The single device's program, from the model: its op graph, the backward that follows from it, and the update.

No event of a strategy's program is read here. Of the strategy come whether gradients are clipped, how tokens are
weighted, and what an update reads: what it trains with, which is the single device's too; and in which order parts of a
gradient are added, of which the sum does not depend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from placealg.models.backward import differentiated, needs_gradient, terms
from placealg.models.graph import SAMPLES, Graph, Op
from placealg.models.tokens import DOCUMENT, DOCUMENTS, WEIGHTS, weights_of_loss
from placealg.prover.kernel.network import VALUE, Maker, V, backward, forward, statistic
from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.program import (
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
from placealg.prover.kernel.symbols import Symbols
from placealg.step.event import COUNTS_OF_SAMPLES, MICROBATCH, SAMPLES_IN_ALL, Group, Reference
from placealg.step.verbs import COUNTERS

UPDATED = ("master", "moments")
"""What an update makes: the parameter, and what the optimizer keeps."""

NORM, SKIP = "norm", "skip"
"""Sums over all elements of gradients: of their squares, and of how many overflow, of which one skips the step."""

Reader = tuple[str, int]
"""An op's result, and which of its operands reads a tensor."""

Together = Mapping[str, tuple[frozenset[Reader], ...]]
"""Tensor -> sets of its readers whose gradients are added first."""

WEIGHT, COUNTED, INVERSE = "weight of a token", "what weights count", "inverse"
SUMMED, OVERFLOWS, LARGEST, NOTHING = "what a loss sums", "overflows", "largest", "nothing"
"""Functions: whether a token counts, by its target, or what the weights of tokens count; one over a number; what a loss
makes of what it sums; whether an element of a gradient is no number; the largest value that some element has; what
stands for parts of no parameter."""

TOKENS = "all tokens"
"""The atom by which the single device divides: the tokens of a step."""


def in_order(value: Pair) -> int:
    """Where a value stands among those that are added up: a sum has one order, whoever adds."""
    return int(value.first)


def per_unit(reference: Reference) -> dict[str, list[str]]:
    """Unit of several instances -> its parameters that gradients reach; first, under "", those of which there is one.

    >>> import placealg as pa
    >>> list(per_unit(pa.derive("dp", "gpt").reference))
    ['', 'layer']
    """
    graph = reference.graph
    trained = {name for group in reference.trained for name in group.parameters}
    found: dict[str, list[str]] = {"": []}
    for parameter in graph.parameters:
        names = found.setdefault(parameter.unit if graph.loop(parameter.unit) else "", [])
        if parameter.name in trained:
            names.append(parameter.name)
    return found


def matrices(reference: Reference, group: Group, name: str) -> tuple[str, ...]:
    """The dims along which an update reads a parameter whole, () if it reads of it its element alone."""
    if not group.whole_reads:
        return ()
    numbered = group.numbered[group.parameters.index(name)] if group.numbered else ()
    return tuple(d for d in reference.graph.tensors[name].dims if d not in numbered)


@dataclass(frozen=True, slots=True)
class Alone:
    """The single device's program: its stretches, what it keeps, and where its values and lines are found.

    `kept` are the values that a parameter has between steps, by what of it is kept; `data` and `counters` are values by
    name; pairs of `begins` are kept, and start as one. `lines` and `handed` find the line, and the value
    that it makes: by scope, op and operands, and, for what a loop is handed, by scope and value. `entering` are the
    values that the loop of a unit hands on: forward, backward, and `adding` those of sums over all gradients.
    """

    stretches: tuple[Stretch, ...]
    states: tuple[Pair, ...]
    begins: tuple[Pair, ...]
    kept: Mapping[str, Mapping[str, Number]]
    data: Mapping[str, Number]
    lines: Mapping[tuple[str, Single, tuple[Pair, ...]], tuple[Number, Pair]]
    handed: Mapping[tuple[str, Pair], Number]
    entering: Mapping[str, tuple[Number, Number]]
    adding: Mapping[tuple[str, str], Number]
    counters: Mapping[str, Number]


class _Device:
    """The lines that were written, and the maker of those of `network.py`."""

    def __init__(self, reference: Reference, symbols: Symbols, together: Together) -> None:
        self.reference, self.graph, self.symbols = reference, reference.graph, symbols
        self.scope = ""
        self.stretches: list[tuple[str, bool, list[Pair]]] = []
        self.lines: dict[tuple[str, Single, tuple[Pair, ...]], tuple[Number, Pair]] = {}
        self.handed: dict[tuple[str, Pair], Number] = {}
        self.values = 0
        self.count = 0
        self.made: dict[tuple[str, str], Pair] = {}
        self.grads: dict[str, list[tuple[frozenset[Reader], Pair]]] = {}
        self.together = together
        self.counters = {name: self.new() for name in COUNTERS if name != "loss_scale" or reference.scaled}
        self.entering = {loop.unit: (self.new(), self.new()) for loop in self.graph.loops}
        self.adding = {(loop.unit, what): self.new() for loop in self.graph.loops for what in (NORM, SKIP)}
        self.flag: list[Pair] = []
        self.taken: dict[str, Pair] = {}
        self.counted: dict[str, Pair] = {}

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
        for group in self.together.get(name, ()):
            inside = [part for part in parts if part[0] and part[0] <= group]
            if len(inside) > 1:
                of = frozenset(reader for part in inside for reader in part[0])
                parts = [*(p for p in parts if p not in inside), (of, self.sum([value for _, value in inside]))]
        return self.sum([value for _, value in parts])

    def sum(self, values: list[Pair]) -> Pair:
        """A sum of gradients, in the order in which they were made."""
        return self.add(sorted(values, key=in_order))


def alone(reference: Reference, symbols: Symbols, together: Together = MappingProxyType({})) -> Alone:
    """The single device's program of a reference; raises Outside.

    `together` says which parts of a tensor's gradient are added first: a sum is the same in every order, and the one
    that ranks take is a line then.
    """
    graph = reference.graph
    _check(reference)
    device = _Device(reference, symbols, together)
    weights = {t.name: device.new() for t in graph.parameters}
    trained = {name for group in reference.groups if not group.frozen for name in group.parameters}
    averaged = {name for group in reference.groups if group.averaged for name in group.parameters}
    moments, averages = ({t.name: device.new() for t in graph.parameters if t.name in of} for of in (trained, averaged))
    data = {t.name: device.new() for t in graph.tensors.values() if t.kind == "data"}
    for name, number in weights.items():
        device.made[name, ""] = Pair(number, "This" if device.looped(name) else "First")
    for name, number in data.items():
        device.made[name, ""] = Pair(number, "First")
    _forward(device)
    _backward(device)
    updated = _update(device, moments, averages)
    device.stretch("")
    moved = {number: device.row(f"next {name}", (), [Pair(number, "First"), *(device.flag if name != "rng" else [])])
             for name, number in device.counters.items()}
    stretches = tuple(Repeat(symbols.unit(unit), down, tuple(lines)) if unit else Plain(tuple(lines))
                      for unit, down, lines in device.stretches if lines)
    states = tuple(Pair(number, updated.get(number, number)) for numbers in (weights, moments, averages)
                   for number in numbers.values())
    states += tuple(Pair(number, value.first) for number, value in moved.items())
    begins = tuple(Pair(number, weights[name]) for name, number in averages.items())
    kept = {"weight": weights, "master": weights, "moments": moments, "average": averages}
    return Alone(stretches, states, begins, kept, data, device.lines, device.handed, device.entering, device.adding,
                 device.counters)


def _check(reference: Reference) -> None:
    graph = reference.graph
    data = {name for name, tensor in graph.tensors.items() if tensor.kind == "data"}
    for wrong, told in (
        (bool(graph.beside), "a unit is handed several tensors"),
        (graph.ops[-1].kind != "sum", "a loss that is no sum"),
        (not counted_alike(reference) and reference.weighting != "sum" and not (targets(graph) or WEIGHTS in data),
         "a count of what is no token's loss"),
        (bool(reference.random_keys), "random streams keyed by rank"),
        (any(g.locality != ("matrix" if g.whole_reads else "elementwise") for g in reference.groups),
         "an update that reads neither its element nor whole matrices"),
        (any(g.unit != g.parameters[0].partition(".")[0] for g in reference.groups), "a group of several units"),
    ):
        if wrong:
            raise Outside("", f"{told}")


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
    asked = any(g.statistic and g.merge == "mean" for g in device.reference.groups) or terms(graph)
    if asked and device.reference.weighting != "sum":  # a count is no instance's of a unit
        device.stretch("")
        losses = (loss for loss in device.reference.losses if not counted_alike(device.reference, loss))
        for counter in (*losses, *by_samples(device)):
            _count(device, counter)
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
            if starts(graph, op):
                device.row(SUMMED, (), [device.read(op.inputs[0])])
            made = forward(device, graph, op, lambda k, op=op: device.read(op.inputs[k]))  # type: ignore[misc]
            device.made.update({(op.output, name): value for name, value in made.items()})
            for group in taken_of(device.reference, op):
                for name in group.parameters:
                    value = statistic(device, graph, op, name, device.read(op.inputs[0]), group.merge)
                    device.taken[name] = _over_tokens(device, value) if group.merge == "mean" else value
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
            device.grads[loop.last] = [(frozenset(), Pair(leaving, "Next"))]
        device.stretch(unit, down=True)
        for op in reversed(ops):
            if op.output not in needs:
                continue
            if starts(graph, op):
                device.grads.setdefault(op.inputs[0], []).append((frozenset({(op.output, 0)}), _seed(device, op)))
                continue
            arriving = device.gradient(op.output)
            for k in (k for k in differentiated(graph, op) if not by_statistic(device.reference, op.inputs[k])):
                got = backward(device, graph, op, k, arriving,
                               lambda j, op=op: device.read(op.inputs[j]),  # type: ignore[misc]
                               lambda name, op=op: device.made[op.output, name])  # type: ignore[misc]
                device.grads.setdefault(op.inputs[k], []).append((frozenset({(op.output, k)}), got))
        if loop is not None and loop.slot in needs:
            device.hand(leaving, "This", device.gradient(loop.slot))
            device.grads.setdefault(loop.first, []).append((frozenset(), Pair(leaving, "First")))


def by_statistic(reference: Reference, name: str) -> bool:
    """Whether a tensor is a parameter that a statistic moves, and no gradient."""
    return any(name in group.parameters for group in reference.groups if group.statistic)


def targets(graph: Graph) -> str:
    """What tells the tokens that count from the others: the targets of a loss that is a sum over tokens, else ""."""
    of = graph.producer(graph.ops[-1].inputs[0])
    while of is not None and of.kind == "add":  # the losses of later tokens are added to a token's own
        of = graph.producer(of.inputs[0])
    if of is not None and of.kind == "unit":
        return next(name for name, tensor in graph.tensors.items() if tensor.kind == "data")
    return of.inputs[1] if of is not None and of.row.family == "cross_entropy" else ""


def starts(graph: Graph, op: Op) -> bool:
    """Whether a backward starts at an op: it sums the loss, or a further term of it, over tokens."""
    return op == graph.ops[-1] or op in terms(graph)


def beyond(graph: Graph) -> list[str]:
    """The dims of tokens along which a loss is summed before it is counted: of means per sequence, that of tokens."""
    return [d for d in graph.tensors[WEIGHTS].dims if d not in graph.tensors[graph.ops[-1].inputs[0]].dims]


def weight_in(loss: str) -> str:
    """The function that tells, by a token's target, whether the token counts in a loss, or in a term of one."""
    return WEIGHT if loss == "loss" else f"{WEIGHT} in {loss}"


def _seed(device: _Device, op: Op) -> Pair:
    """The gradient of the loss, or of a term of it, at that of each token."""
    reference = device.reference
    if op != device.graph.ops[-1]:
        return _seed_of(device, op.output, reference.loss_of(op.unit))
    return device.add([_seed_of(device, loss, loss) for loss in reference.separate])


def _seed_of(device: _Device, loss: str, counter: str) -> Pair:
    """The gradient of a loss at that of each token: its weight, for a mean over all tokens that count, scaled."""
    seed = _weights(device, loss)
    if device.reference.weighting != "sum":
        seed = _over_tokens(device, seed, counter)
    return device.einsum([seed, _loss_scale(device)], ()) if device.reference.scaled else seed


def _weights(device: _Device, loss: str) -> Pair:
    name = targets(device.graph)
    return device.row(weight_in(loss), (), [device.read(name)] if name else [])


def _over_tokens(device: _Device, value: Pair, counter: str = "loss") -> Pair:
    """A sum over tokens as a mean: over all that count in a step, or over those of its microbatch, and microbatches."""
    shares = by_samples(device)
    if counted_alike(device.reference, counter):
        mean = device.scale({TOKENS: -1, **({"m": 1} if shares else {})}, value)
    else:
        mean = device.einsum([value, device.row(INVERSE, (), [_count(device, counter)])], ())
        if MICROBATCH in device.graph.dims and not shares:
            return device.scale({"m": -1}, mean)
    if not shares:
        return mean
    here, every = (_count(device, name) for name in shares)
    return device.einsum([mean, here, device.row(INVERSE, (), [every])], ())


class Referring(Protocol):
    """What prints for a reference."""

    reference: Reference


def by_samples(of: Referring) -> tuple[str, ...]:
    """The counts of samples by whose quotient a microbatch counts, if it does."""
    return COUNTS_OF_SAMPLES if of.reference.weighting == "sample_mean" else ()


def _count(device: _Device, counter: str) -> Pair:
    """How much a counter counts: of a step, or of each microbatch."""
    if counter not in device.counted:
        read = [device.read(name) for name in summed_by(device.graph, counter)]
        device.counted[counter] = device.einsum([each_counted(device, device.graph, counter, read)],
                                                counted_over(device.graph, counter))
    return device.counted[counter]


def summed_by(graph: Graph, counter: str) -> tuple[str, ...]:
    """The data that a counter reads: samples, the targets of a loss, or weights, and the documents that have means."""
    if counter in COUNTS_OF_SAMPLES:
        return (SAMPLES,)
    if name := targets(graph):
        return (name,)
    documents = (DOCUMENTS,) if DOCUMENT in graph.tensors[graph.ops[-1].inputs[0]].dims else ()
    return (weights_of_loss(counter), *documents)


def each_counted(make: Maker[V], graph: Graph, counter: str, read: list[V]) -> V:
    """What a counter sums, of the data that it reads: whether a token counts, what weights count, or samples."""
    if counter in COUNTS_OF_SAMPLES:
        return read[0]
    return make.row(weight_in(counter), (), read) if targets(graph) else make.row(COUNTED, beyond(graph), read)


def counted_over(graph: Graph, counter: str) -> list[str]:
    """The dims over which a count sums: those of tokens, or of rows, of all microbatches or of one.

    All samples are those of all microbatches, whatever tokens are counted of.
    """
    if counter in COUNTS_OF_SAMPLES:
        return [d for d in graph.tensors[SAMPLES].dims if d != MICROBATCH or counter == SAMPLES_IN_ALL]
    return [d for d in graph.tensors[graph.ops[-1].inputs[0]].dims if d != MICROBATCH]


def _loss_scale(device: _Device) -> Pair:
    return Pair(device.counters["loss_scale"], "First")


def counted_alike(reference: Reference, counter: str = "") -> bool:
    """Whether all ranks have equally many tokens that count in each microbatch, by what a verdict assumes.

    It assumes nothing of later tokens, of which they may have unequally many, nor of samples.
    """
    return "equal_counts" in reference.hypotheses and counter in ("", *reference.separate)


def _update(device: _Device, moments: Mapping[str, Number], averages: Mapping[str, Number]) -> dict[Number, Number]:
    """Norm, clip and update of every parameter: what is kept -> what it is in the next step."""
    reference = device.reference
    groups = {name: group for group in reference.trained for name in group.parameters}
    names = per_unit(reference)
    gradients = _gradients(device, names)
    if reference.skip:
        device.flag = [_total(device, gradients, SKIP)]
    coefficient = device.row("clip", (), [_total(device, gradients, NORM)]) if reference.clip else None
    updated: dict[Number, Number] = {}
    for unit, of_unit in names.items():
        device.stretch(unit)
        for name in of_unit:
            gradient = gradients[unit][name]
            if coefficient is not None:
                gradient = device.einsum([gradient, coefficient], ())
            _moved(device, name, groups[name], gradient, (moments, averages), updated)
    for group in (g for g in reference.groups if g.statistic):
        for name in group.parameters:
            device.stretch(device.looped(name))
            value = device.made[group.taken, ""] if group.taken else device.taken[name]
            value = device.row(LARGEST, (VALUE,), [value]) if group.merge == "max" else value
            _moved(device, name, group, value, (moments, averages), updated)
    return updated


def _moved(device: _Device, name: str, group: Group, by: Pair, kept: tuple[Mapping[str, Number], Mapping[str, Number]],
           updated: dict[Number, Number]) -> None:
    """What a parameter becomes by its gradient or statistic, with what the optimizer keeps, and its average."""
    (moments, averages), weight = kept, device.made[name, ""]
    read = {"master": weight, "moments": Pair(moments[name], weight.second), "grad_sum": by}
    args = [*read.values(), Pair(device.counters["step"], "First")]
    if over := matrices(device.reference, group, name):
        args.append(device.row(f"matrix of {name}", over, [read[v] for v in group.whole_reads]))
    made = {what: device.row(f"{what} of {name}", (), [*args, *device.flag]) for what in UPDATED}
    updated[weight.first], updated[moments[name]] = made["master"].first, made["moments"].first
    if name in averages:
        average = Pair(averages[name], weight.second)
        updated[averages[name]] = device.row(f"average of {name}", (), [average, made["master"], *device.flag]).first


def taken_of(reference: Reference, op: Op) -> tuple[Group, ...]:
    """The groups moved by a statistic of what a unit reads of which nothing is known."""
    return tuple(g for g in reference.groups if g.statistic and not g.taken and op.kind == "unit" and g.unit == op.unit)


def _gradients(device: _Device, names: Mapping[str, list[str]]) -> dict[str, dict[str, Pair]]:
    """Unit -> parameter -> its gradient, without the scale of the loss."""
    found: dict[str, dict[str, Pair]] = {}
    for unit, of_unit in names.items():
        device.stretch(unit)
        found[unit] = {name: device.gradient(name) for name in of_unit}
        if device.reference.scaled:
            inverse = device.row(INVERSE, (), [_loss_scale(device)])
            found[unit] = {name: device.einsum([g, inverse], ()) for name, g in found[unit].items()}
    return found


def _total(device: _Device, gradients: Mapping[str, Mapping[str, Pair]], what: str) -> Pair:
    """A sum over all elements of all gradients."""
    total = Pair(Number(0), "First")
    for unit, of_unit in gradients.items():
        device.stretch(unit)
        parts = [device.einsum([g, g] if what == NORM else [device.row(OVERFLOWS, (), [g])],
                               device.graph.tensors[name].dims) for name, g in of_unit.items()]
        if not unit:
            first = next((name for names in gradients.values() for name in names), "")
            if not first:
                raise Outside("", "no parameter is trained")
            total = device.add(parts) if parts else device.einsum(
                [device.row(NOTHING, (), [])], device.graph.tensors[first].dims)
            continue
        number = device.adding[unit, what]
        device.hand(number, "Next", device.add([Pair(number, "This"), *parts]), before=total)
        total = Pair(number, Last(device.symbols.unit(unit)))
    device.stretch("")
    return total
