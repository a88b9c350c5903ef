"""What of a model trains: frozen parameters, and low-rank adapters beside linear ops.

An adapter (Hu et al., LoRA, arXiv 2106.09685) is a second way from a linear op's input to its output, through a dim of
a low rank: two products whose weights train while the op's own stays. The first adapter starts at 0 or not, which no
placement depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.graph import Graph, Op, Tensor, sparse_of
from placealg.models.model import Model

ADAPTER = "adapter"
"""The dim of the adapters' rank."""

LOW, HIGH, ADAPTED = "low", "high", "adapted"
"""What ends the names of an adapter's two products, and of the sum with the linear op's result."""


def linear_ops(graph: Graph) -> tuple[str, ...]:
    """The ops beside which an adapter may stand: products of an activation and a weight of their own.

    >>> from placealg.models.transformer import gpt
    >>> linear_ops(gpt().graph)[:2]
    ('layer.attn.q', 'layer.attn.k')
    """
    return tuple(op.output for op in graph.ops if _weight(op, graph) is not None)


def _weight(op: Op, graph: Graph) -> Tensor | None:
    """The weight of a linear op; None of any other op, and of one that an adapter consists of."""
    if op.kind != "einsum" or len(op.inputs) != 2 or op.output.rpartition(".")[2] in (LOW, HIGH):
        return None
    first, second = (graph.tensors[name] for name in op.inputs)
    return second if second.kind == "parameter" and first.kind == "activation" else None


def is_adapter(parameter: str) -> bool:
    """Whether a parameter is a weight of an adapter.

    >>> is_adapter("layer.attn.q.low.weight"), is_adapter("layer.attn.q.weight")
    (True, False)
    """
    return parameter.split(".")[-2:] in ([LOW, "weight"], [HIGH, "weight"])


def frozen(model: Model, chosen: Callable[[str], bool]) -> Model:
    """The model in which the parameters whose names are `chosen` take no gradient."""
    graph = model.graph
    tensors = {name: replace(t, frozen=True) if t.kind == "parameter" and chosen(name) else t
               for name, t in graph.tensors.items()}
    if tensors == dict(graph.tensors):
        return model
    if all(t.frozen for t in tensors.values() if t.kind == "parameter"):
        raise InputError(f"every parameter of {model.name} is frozen: nothing trains")
    return replace(model, graph=replace(graph, tensors=FrozenMap(tensors)))


def adapted(model: Model, chosen: Callable[[str], bool], rank: Monomial) -> Model:
    """The model with an adapter of this rank beside every linear op whose name is `chosen`."""
    graph = model.graph
    tensors, ops, renamed = dict(graph.tensors), list[Op](), dict[str, str]()
    for op in graph.ops:
        op = replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs))
        ops.append(op)
        weight = _weight(op, graph)
        if weight is None or not chosen(op.output) or f"{op.output}.{ADAPTED}" in tensors:
            continue
        for made in _beside(op, weight, rank, tensors):
            ops.append(made)
        renamed[op.output] = f"{op.output}.{ADAPTED}"
    loops = tuple(replace(loop, first=renamed.get(loop.first, loop.first), last=renamed.get(loop.last, loop.last))
                  for loop in graph.loops)
    if not renamed:
        return model
    return model.over(Graph(FrozenMap(tensors), tuple(ops), loops))


def _beside(op: Op, weight: Tensor, rank: Monomial, tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    """The ops of an adapter beside a linear op; their tensors, with the adapter's weights, join `tensors`."""
    x, y = tensors[op.inputs[0]], tensors[op.output]
    inward = {d: n for d, n in weight.dims.items() if d in x.dims}
    outward = {d: n for d, n in weight.dims.items() if d in y.dims}
    through = {ADAPTER: rank}
    names = {part: f"{op.output}.{part}" for part in (LOW, HIGH, ADAPTED)}
    middle = {**{d: n for d, n in y.dims.items() if d in x.dims}, **through}
    for part, dims in ((LOW, {**inward, **through}), (HIGH, {**through, **outward})):
        shared = {d: n for d, n in dims.items() if d in inward and d in outward}
        tensors[f"{names[part]}.weight"] = Tensor(
            f"{names[part]}.weight", FrozenMap({**shared, **dims}), "parameter", "w")
    made = (Op(names[LOW], "einsum", (x.name, f"{names[LOW]}.weight"), op.region),
            Op(names[HIGH], "einsum", (names[LOW], f"{names[HIGH]}.weight"), op.region),
            Op(names[ADAPTED], "add", (y.name, names[HIGH]), op.region))
    for one, dims in zip(made, (middle, dict(y.dims), dict(y.dims)), strict=True):
        tensors[one.output] = Tensor(one.output, FrozenMap(dims), "activation", "act",
                                     sparse_of(one, tensors, dims))
    return made
