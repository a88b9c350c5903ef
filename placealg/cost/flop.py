"""Arithmetic: the multiply-adds of the products that a program runs, 2 flop each.

Counted are einsums that contract a dim, and flash attention as the two products it consists of; backward by its
transposed products (flash: those of its vector-Jacobian product, which forms the scores again), recomputation as
often as it runs. Attention is counted full. Norms, softmax and elementwise work are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from placealg.cost.activations import Activations, collected
from placealg.cost.amounts import Amounts, monomial
from placealg.cost.communication import executions
from placealg.cost.formula import Formula
from placealg.cost.stage import local as of_device
from placealg.cost.tensors import local
from placealg.frozen import FrozenMap
from placealg.model.backward import BackwardOp, backward, sparse_gradients
from placealg.model.graph import Graph, Op, Sparse, Tensor
from placealg.model.ops import Step as Line
from placealg.step.event import LOOPED
from placealg.step.program import Step

NO_FLOP = "the program runs a unit as one computation, whose operations are not counted"


def flop(step: Step) -> Formula:
    """What one device computes in a step, over all microbatches and layers."""
    step = of_device(step)
    graph = step.reference.graph
    if graph is None:
        return Formula.none("flop", NO_FLOP)
    amounts = Amounts(step.reference)
    tensors = Activations(step, amounts)
    terms = []
    for touch in tensors.walk(step.phase(*LOOPED)):
        op = graph.producer(touch.event.tensor) if touch.event.verb == "compute" else None
        times = 0 if op is None else backward_products(graph, op) if touch.event.on_gradient else products(graph, op)
        if op and times:
            dims = FrozenMap({d: graph.dims[d] for d in graph.iteration_dims(op)})
            sparse = sparse_backward(graph, op) if touch.event.on_gradient else sparse_forward(graph, op)
            space = Tensor(op.output, dims, sparse=sparse)
            each = monomial(local(space, touch.box, tensors.split_batch))
            terms.append(2 * times * each * executions(step, touch.event))
    return amounts.made(collected(terms) if terms else sympy.S.Zero, "flop")


def sparse_forward(graph: Graph, op: Op) -> Sparse:
    """Along which dims the op computes only what is chosen: those of any operand."""
    return FrozenMap({d: by for name in op.inputs for d, by in graph.tensors[name].sparse.items()})


def sparse_backward(graph: Graph, op: Op) -> Sparse:
    """Along which dims all products of the op's backward compute only what is chosen: each reads the gradient."""
    steps = [b for b in backward(graph) if b.forward == op.output]
    arriving = sparse_gradients(graph).get(op.output, FrozenMap())
    found = [{**arriving, **{d: by for k, name in enumerate(op.inputs) if k != step.operand
                             for d, by in graph.tensors[name].sparse.items()}} for step in steps]
    return FrozenMap({d: by for d, by in found[0].items() if all(other.get(d) == by for other in found)})


def products(graph: Graph, op: Op) -> int:
    """How many products the op consists of, each over the op's whole iteration space."""
    if op.kind == "flash":
        return len(op.inputs) - 1
    return int(op.kind == "einsum" and bool(graph.contracted(op)))


def backward_products(graph: Graph, op: Op) -> int:
    """How many products the op's backward consists of."""
    steps = [b for b in backward(graph) if b.forward == op.output]
    if op.kind == "einsum":
        return len(steps) if graph.contracted(op) else 0
    lines = dict.fromkeys(line for b in steps for line in b.steps)
    return sum(_contracts(line, _dims(graph, op, steps)) for line in lines) if op.kind == "flash" else 0


def _contracts(line: Line, dims: Mapping[str, frozenset[str]]) -> bool:
    """Whether a line of a vector-Jacobian product multiplies two values, each with a dim that the other lacks."""
    if line.kind != "einsum" or len(line.inputs) != 2:
        return False
    one, other = (dims[name] for name in line.inputs)
    return bool(one - other) and bool(other - one)


def _dims(graph: Graph, op: Op, steps: list[BackwardOp]) -> dict[str, frozenset[str]]:
    """Value of a vector-Jacobian product -> its dims: those of its role."""
    result = frozenset(graph.tensors[op.output].dims)
    found = {role: frozenset(graph.tensors[n].dims) for role, n in zip(op.row.operands, op.inputs, strict=True)}
    found |= {"y": result, "dy": result, "row": result - set(op.over),
              "grid": frozenset(graph.iteration_dims(op)) - (result & set(op.over))}
    found |= {k.name: found[k.dims] for k in op.row.kept}
    return found | {line.output: found[line.dims] for b in steps for line in b.steps}
