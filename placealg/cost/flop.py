"""Arithmetic: the multiply-adds of the products that a program runs, 2 flop each.

Einsums that contract a dim are counted, and attention in one op, scans and convolutions as the products of which they
consist; backward by the transposed products (of such an op those of its vector-Jacobian product, which forms scores or
states again), recomputation as often as it runs. Of a scan these are the products with its states, one write and one
read at each place: kernels that go chunk by chunk compute products inside chunks besides. Attention is counted in full,
whatever its mask; within documents, as one op, it runs over the share `packed` of the pairs of a query and a key.
Norms, softmax and elementwise work are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations

import sympy

from placealg.arith import ONE, Monomial
from placealg.cost.activations import collected
from placealg.cost.communication import executions
from placealg.cost.expressions import EXPRESSIONS, monomial
from placealg.cost.formula import Formula
from placealg.cost.storages import local
from placealg.cost.walk import Walk, walked
from placealg.frozen import FrozenMap
from placealg.mesh import PACKED
from placealg.models.backward import BackwardOp, sparse_gradients, transposed
from placealg.models.graph import Graph, Op, Sparse, Tensor
from placealg.models.ops import Backprop as Line
from placealg.step.gradient_targets import receivers
from placealg.step.program import Event, Step

NO_FLOP = "the program runs a unit as one computation, whose operations are not counted"


def flop(step: Step | Walk) -> Formula:
    """The flop of one device in a step, over all microbatches and layers."""
    walk = walked(step)
    if walk.unknown:
        return Formula.none("flop", NO_FLOP)
    terms = [monomial(each) * executions(walk.step, event, EXPRESSIONS) for event, each in work(walk)]
    return walk.amounts.made(collected(terms) if terms else sympy.S.Zero, "flop")


def work(walk: Walk) -> Iterator[tuple[Event, Monomial]]:
    """The products that a program of ops runs: (event, flop of one execution by one instance)."""
    return ((event, each) for event, _, _, each in products_run(walk))


def products_run(walk: Walk) -> Iterator[tuple[Event, Op, frozenset[str], Monomial]]:
    """The products that a program of ops runs: (event, op, dims, flop of one execution by one instance)."""
    graph, tensors = walk.step.reference.graph, walk.tensors
    for touch in tensors.walk():
        op = graph.producer(touch.event.tensor) if touch.event.verb == "compute" else None
        if op is None:
            continue
        back = touch.event.on_gradient
        parts = [transposed(graph, op, k) for k in receivers(touch.event, walk.step.reference)] if back else []
        if back and not parts:
            continue
        sparse = sparse_backward(graph, op, parts) if back else sparse_forward(graph, op)
        for dims, times in Counter(backward_products(graph, op, parts) if back else products(graph, op)).items():
            space = Tensor(op.output, FrozenMap({d: graph.dims[d] for d in dims}), sparse=sparse)
            share = Monomial.of(PACKED) if op.row.family == "flash" and op.row.attributes else ONE
            each = Monomial.number(2 * times) * local(space, touch.box, tensors.split_batch) * share
            yield touch.event, op, dims, each


def sparse_forward(graph: Graph, op: Op) -> Sparse:
    """The dims along which the op computes only what is chosen: those of any operand."""
    return FrozenMap({d: by for name in op.inputs for d, by in graph.tensors[name].sparse.items()})


def sparse_backward(graph: Graph, op: Op, steps: list[BackwardOp]) -> Sparse:
    """The dims along which all `steps` of the op's backward compute only what is chosen: each reads the gradient."""
    arriving = sparse_gradients(graph).get(op.output, FrozenMap())
    found = [{**arriving, **{d: by for k, name in enumerate(op.inputs) if k != step.operand
                             for d, by in graph.tensors[name].sparse.items()}} for step in steps]
    return FrozenMap({d: by for d, by in found[0].items() if all(other.get(d) == by for other in found)})


def products(graph: Graph, op: Op) -> tuple[frozenset[str], ...]:
    """The products of which the op consists, each as the dims over which it runs.

    Those of an op of several are as many as in its backward for one operand, over the same dims.
    """
    if op.row.alike:
        return _of_lines(graph, op, [transposed(graph, op, op.row.operands.index(op.row.alike))])
    return (frozenset(graph.iteration_dims(op)),) if op.kind == "einsum" and graph.contracted(op) else ()


def backward_products(graph: Graph, op: Op, steps: list[BackwardOp]) -> tuple[frozenset[str], ...]:
    """The products of which `steps` of the op's backward consist, each as the dims over which it runs."""
    return _of_lines(graph, op, steps) if op.row.alike else products(graph, op) * len(steps)


def _of_lines(graph: Graph, op: Op, steps: list[BackwardOp]) -> tuple[frozenset[str], ...]:
    """The products among the lines of vector-Jacobian products; a line that several of them share runs once."""
    dims = _dims(graph, op, steps)
    lines = dict.fromkeys(line for b in steps for line in b.steps)
    return tuple(frozenset().union(*(dims[n] for n in line.inputs)) for line in lines if _contracts(line, dims))


def _contracts(line: Line, dims: Mapping[str, frozenset[str]]) -> bool:
    """Whether a line of a vector-Jacobian product is one of matrices or vectors, not of numbers place by place.

    Two of its values have a dim each that the other lacks; or one lacks a dim of another, and a dim is summed over.
    """
    values = [dims[name] for name in line.inputs] if line.kind == "einsum" else []
    outer = any(one - other and other - one for one, other in combinations(values, 2))
    return outer or (bool(frozenset().union(*values) - dims[line.output]) and len(set(values)) > 1)


def _dims(graph: Graph, op: Op, steps: list[BackwardOp]) -> dict[str, frozenset[str]]:
    """Value of a vector-Jacobian product -> its dims, those of its role."""
    result = frozenset(graph.tensors[op.output].dims)
    found = {role: frozenset(graph.tensors[n].dims) for role, n in zip(op.row.operands, op.inputs, strict=True)}
    first, second = (frozenset(graph.tensors[n].dims) for n in (*op.inputs[:2], op.output)[:2])
    found |= {"y": result, "dy": result, "row": result - set(op.over), "outer": first | second | result,
              "inner": (first | second | result) - set(op.over[1:2]),
              "grid": (first | second) - (first & set(op.over))}
    found |= {k.name: found[k.dims] for k in op.row.kept}
    return found | {line.output: found[line.dims] for b in steps for line in b.steps}
