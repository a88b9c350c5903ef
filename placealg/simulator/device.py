"""The single device's run of an op graph, written straight down: every op whole, every instance after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial

from placealg.models.graph import Op, unit_of
from placealg.simulator import functions, network
from placealg.simulator.box import Box, Extent, total
from placealg.simulator.field import Array
from placealg.simulator.functions import Kept
from placealg.simulator.matrices import factors
from placealg.simulator.network import FIRST_STREAM, ZERO
from placealg.simulator.reference import Numbers, Slot, State, slots, updated
from placealg.simulator.setting import Setting
from placealg.simulator.space import Space, seed_of, weights
from placealg.simulator.space import of as space_of
from placealg.simulator.tokens import BATCH
from placealg.step.program import Reference

Name = tuple[str, int]
"""(tensor, instance of its unit)."""


@lru_cache(maxsize=64)
def trajectory(reference: Reference, setting: Setting, steps: int) -> tuple[State, ...]:
    """The states before the first step and after each of `steps` steps."""
    space = space_of(reference, setting)
    every = slots(space.reference, space.setting.layers)
    start = {slot: _initial(space, slot) for slot in every}
    states = [State(start, {s: (ZERO,) * len(numbers) for s, numbers in start.items()}, ZERO, FIRST_STREAM,
                    average={s: n for s, n in start.items() if space.reference.group(s[0]).averaged})]
    for number in range(steps):
        found, losses = gradient(space, number, states[-1])
        states.append(updated(space.reference, space.setting, states[-1], found, partial(factors, space), losses))
    return tuple(states)


def whole(space: Space, slot: Slot, numbers: Numbers) -> dict[str, Array]:
    """The parameters of one instance of a group, each as one array, from its numbers part by part."""
    group = space.reference.group(slot[0])
    found = {name: space.zeros(len(at) for at in space.extent(space.graph.tensors[name].dims, ()).values())
             for name in group.parameters}
    for part, number in zip(space.parts(group), numbers, strict=True):
        found[part.parameter].reshape(-1)[part.numbers] = space.numbers(number)
    return found


def _initial(space: Space, slot: Slot) -> Numbers:
    values = {p: space.initial(p, slot[1]) for p in space.reference.group(slot[0]).parameters}
    return tuple(space.number(values[part.parameter][part.numbers])
                 for part in space.parts(space.reference.group(slot[0])))


@dataclass(slots=True)
class _ReferenceRun:
    """One forward and backward over all sequences of a step."""

    space: Space
    number: int
    stream: Fraction
    parameters: Mapping[Name, Box]
    values: dict[Name, Box] = field(default_factory=dict)
    kept: dict[Name, Kept] = field(default_factory=dict)
    gradients: dict[Name, list[Box]] = field(default_factory=dict)

    def at(self, name: str, unit: str, instance: int) -> Name:
        """The instance of a tensor that an op of `unit` reads in its instance `instance`."""
        graph = self.space.graph
        loop = graph.slot(name)
        if loop:
            return (loop.last, instance - 1) if instance else self.at(loop.first, "", 0)
        if unit_of(name) == unit:
            return name, instance
        return name, self.space.setting.instances(unit_of(name), graph) - 1

    def read(self, name: str, unit: str, instance: int) -> Box:
        """What an op of `unit` reads under this name."""
        kind = self.space.graph.tensors[name].kind
        if kind == "data":
            sequences = tuple(i for k in range(self.space.setting.microbatches) for i in self.space.sequences(k))
            return self.space.data(name, self.number, sequences)
        if kind == "parameter":
            return self.parameters[self.at(name, unit, instance)]
        found = self.at(name, unit, instance)
        return self.values[found] if found in self.values else self.read(found[0], "", 0)


@dataclass(frozen=True, slots=True)
class _EveryOperand:
    """Everything that one op read and made; nothing is ever missing."""

    run: _ReferenceRun
    op: Op
    instance: int

    def operand(self, position: int) -> Box:
        return self.run.read(self.op.inputs[position], self.op.unit, self.instance)

    def extent(self, position: int) -> Extent:
        return self.operand(position).extent

    def result(self) -> Box:
        return self.run.values[self.op.output, self.instance]

    def kept(self, name: str) -> Box:
        return self.run.kept[self.op.output, self.instance][name]

    def draw(self, extent: Extent) -> Array:
        return self.run.space.mask(self.op, self.instance, self.run.stream, extent)


def _order(space: Space) -> Iterator[tuple[Op, int]]:
    """Every op of every instance, in forward order."""
    for unit in space.graph.units:
        for instance in range(space.setting.instances(unit, space.graph)):
            for op in space.graph.of_unit(unit):
                yield op, instance


def gradient(space: Space, number: int, state: State) -> tuple[dict[Slot, Numbers], dict[Name, Box]]:
    """The gradient of step `number`, and what the loss and each term sum, from one forward and backward over all."""
    graph = space.graph
    parameters: dict[Name, Box] = {}
    for slot, numbers in state.weight.items():
        for name, array in whole(space, slot, numbers).items():
            parameters[name, slot[1]] = Box(space.extent(graph.tensors[name].dims, ()), array)
    run, summed = _ReferenceRun(space, number, state.rng, parameters), dict[Name, Box]()
    ops = list(_order(space))
    for op, instance in ops[:-1]:
        saved = _EveryOperand(run, op, instance)
        made, kept = functions.forward(graph, op, [saved.operand(k) for k in range(len(op.inputs))], saved.draw,
                                       space.sizes)
        run.values[op.output, instance], run.kept[op.output, instance] = made, kept
        if space.sums_a_term(op):
            summed[op.output, instance] = saved.operand(0)
    losses = summed[graph.ops[-1].output, 0] = run.read(graph.ops[-1].inputs[0], "", 0)
    weight = weights(space)
    run.gradients[run.at(graph.ops[-1].inputs[0], "", 0)] = [seed_of(space, number, losses, weight)]
    for op, instance in reversed(ops[:-1]):
        _differentiate(run, op, instance)
    return {slot: _taken(run, slot, weight) if space.reference.group(slot[0]).statistic else _summed(space, run, slot)
            for slot in state.weight}, summed


def _differentiate(run: _ReferenceRun, op: Op, instance: int) -> None:
    if run.space.sums_a_term(op):
        made = run.read(op.inputs[0], op.unit, instance)
        run.gradients.setdefault(run.at(op.inputs[0], op.unit, instance), []).append(
            seed_of(run.space, run.number, made, weights(run.space, run.space.reference.loss_of(op.unit))))
        return
    contributions = run.gradients.get((op.output, instance))
    if not contributions:
        return
    dy = total(contributions, run.space.zeros)
    for position, name in enumerate(op.inputs if op.row.differentiable else ()):
        if name in run.space.differentiable:
            found = functions.backward(run.space.graph, op, position, dy, _EveryOperand(run, op, instance))
            run.gradients.setdefault(run.at(name, op.unit, instance), []).append(found)


def _summed(space: Space, run: _ReferenceRun, slot: Slot) -> Numbers:
    """The gradient of one instance of a group, part by part."""
    group = space.reference.group(slot[0])
    flat: dict[str, Array] = {}
    for name in group.parameters:
        dims = tuple(space.graph.tensors[name].dims)
        found = [box.ordered(dims) for box in run.gradients.get((name, slot[1]), ())]
        shape = [space.sizes[d] for d in dims]
        flat[name] = (total(found, space.zeros).numbers if found else space.zeros(shape)).reshape(-1)
    return tuple(space.number(flat[part.parameter][part.numbers]) for part in space.parts(group))


def _taken(run: _ReferenceRun, slot: Slot, weight: Mapping[int, Fraction]) -> Numbers:
    """A statistic of one instance of its unit: of what entered, each token with its weight."""
    space, group = run.space, run.space.reference.group(slot[0])
    if group.taken:
        dims = tuple(space.graph.tensors[group.parameters[0]].dims)
        flat = run.values[group.taken, slot[1]].ordered(dims).numbers.reshape(-1)
        return tuple(space.number(flat[part.numbers]) for part in space.parts(group))
    (op,) = space.graph.of_unit(group.unit)
    entered = run.kept[op.output, slot[1]]["inputs"]
    if group.merge == "max":
        return network.largest((x, Fraction(1)) for x in entered.numbers)
    return network.second_moments((x, weight[i]) for i, x in zip(entered.extent[BATCH], entered.numbers, strict=True))
