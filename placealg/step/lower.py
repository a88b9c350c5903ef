"""Lowering: a program whose units run whole, as a program of ops.

The user's program has one computation per unit, `forward.layer.compute`. Every unit is one op of kind `unit`, from what
enters it and its parameters to what leaves it, and all units form a chain. A lowered program runs these ops on tensors,
as any program does that runs op by op; each of its events keeps the path of the event for which it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.backward import GRAD
from placealg.models.graph import Graph, Loop, Op, Tensor, unit_of
from placealg.step.event import Event, Group, Reference
from placealg.step.program import Step

DATA, BATCH = "data.input", "batch"
_TOKENS = FrozenMap({BATCH: Monomial.of("b")})
_MATRIX = FrozenMap({"row": Monomial.of("r"), "column": Monomial.of("c")})


def lowered(step: Step) -> Step:
    """The step as ops on tensors; the step itself if it runs op by op.

    >>> import placealg as pa
    >>> step = lowered(pa.derive(pa.dp(), pa.abstract()))
    >>> [(e.value, e.verb, e.path) for e in step.events if e.said][:3]
    [('data.input', 'slice', 'forward.layer.compute'), ('layer.in', 'assign', 'forward.layer.compute'), \
('layer.out', 'compute', 'forward.layer.compute')]
    """
    if not step.reference.whole or any(event.said for event in step.events):
        return step
    reference = of_ops(step.reference)
    return Step(reference, tuple(e for event in step.events for e in _events(event, reference, reference.graph)))


@lru_cache(maxsize=256)
def of_ops(reference: Reference) -> Reference:
    """The reference with the op graph of its units: a chain, each unit one op on its groups' parameters.

    A group has one parameter, a matrix; the tokens are split along the data axes.
    """
    names = {group.name: _parameter(group) for group in reference.groups}
    tensors = {DATA: Tensor(DATA, _TOKENS, "data")}
    tensors |= {name: Tensor(name, _MATRIX, "parameter", "w") for name in names.values()}
    ops, loops, entering = list[Op](), list[Loop](), DATA
    for unit in reference.units:
        made = _free(f"{unit.name}.out", tensors)
        tensors[made] = Tensor(made, _TOKENS)
        if unit.repeated:
            slot = _free(f"{unit.name}.in", tensors)
            tensors[slot] = Tensor(slot, _TOKENS)
            loops.append(Loop(unit.name, unit.count, slot, entering, made))
            entering = slot
        parameters = (names[g.name] for g in reference.groups if unit.name in g.sites)
        ops.append(Op(made, "unit", (entering, *parameters), unit.name))
        entering = made
    total = _free("loss.sum", tensors)
    tensors[total] = Tensor(total, FrozenMap())
    ops.append(Op(total, "sum", (entering,), "loss"))
    groups = tuple(replace(g, parameters=(names[g.name],)) for g in reference.groups)
    return replace(reference, graph=Graph(FrozenMap(tensors), tuple(ops), tuple(loops)), groups=groups,
                   dims=FrozenMap({a: (BATCH,) for a in reference.data_axes}))


def _parameter(group: Group) -> str:
    """The name of a group's matrix: the group's own, under its unit."""
    return group.name if unit_of(group.name) == group.unit else f"{group.unit}.{group.name.replace('.', '_')}"


def _free(name: str, taken: dict[str, Tensor]) -> str:
    while name in taken:
        name += "_"
    return name


def _events(event: Event, reference: Reference, graph: Graph) -> Iterator[Event]:
    """The events that one event of the program stands for, in order."""
    if event.on_tensor:
        raise InputError(f"{event.path}: the step runs unit by unit; it has no tensor '{event.tensor}'")
    if event.value == "loss" and event.verb == "compute":
        yield replace(event, reads=graph.ops[-1].inputs)
    elif event.value == "activation" and event.verb == "compute":
        op = next((op for op in graph.ops[:-1] if op.unit == event.unit), None)
        if op is None:
            raise InputError(f"{event.path}: no unit '{event.unit}' computes", name=event.unit,
                             valid=[u.name for u in reference.units])
        yield from (_backward if event.phase == "backward" else _forward)(event, reference, graph, op)
    else:
        yield event


def _forward(event: Event, reference: Reference, graph: Graph, op: Op) -> Iterator[Event]:
    """The rank's tokens enter the first unit; what enters an instance of a repeated unit is assigned to its slot."""
    loop, axes = graph.loop(op.unit), reference.data_axes
    entering = loop.first if loop else op.inputs[0]
    if entering == DATA and axes:
        yield _standing(event, "slice", DATA, axes=axes, version="_".join(axes), source="I", to=f"S({BATCH})")
    if loop:
        yield _standing(event, "assign", loop.slot, reads=(_version(entering, reference),))
    yield _standing(event, "compute", op.output, reads=(_version(op.inputs[0], reference), *op.inputs[1:]))


def _backward(event: Event, reference: Reference, graph: Graph, op: Op) -> Iterator[Event]:
    """The op's backward; the gradient of what entered goes back to where that came from."""
    loop = graph.loop(op.unit)
    yield _standing(event, "compute", op.output + GRAD, reads=(_version(op.inputs[0], reference), *op.inputs[1:]))
    if loop:
        yield _standing(event, "assign", loop.slot + GRAD, reads=(_version(loop.first, reference),))


def _version(name: str, reference: Reference) -> str:
    """The version of a tensor that is read: for data, the rank's own tokens."""
    return f"{name}@{'_'.join(reference.data_axes)}" if name == DATA and reference.data_axes else name


def _standing(event: Event, verb: str, value: str, **fields: object) -> Event:
    """An event on a tensor that stands for one of the program, and runs where, when and in whose loop that does."""
    return replace(event, verb=verb, value=value, said=event.path, **fields)  # type: ignore[arg-type]
