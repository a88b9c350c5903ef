"""Backward by transposition, and the saved tensors that follow: what the backward ops read is what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.graph import Graph, Op, Sparse, Tensor
from placealg.models.ops import TAKEN_OF, Backprop, KeptValue

GRAD = ".grad"
"""The gradient of a tensor is called after it, with this ending."""


@dataclass(frozen=True, slots=True)
class BackwardOp:
    """The op that computes what one use of a tensor contributes to the tensor's gradient.

    `forward` names the op, `operand` the position of the use, `of` the tensor. `inputs` begin with the gradient of
    the op's result; the others are parameters, operands, the result, and values the op keeps (`NAME.mask`).
    `kind` is einsum, sum (over the dims that `of` lacks), broadcast (along the dims that the result lacks), rename,
    scale, rope, cast, copy, scatter (add rows at ids) or vjp, whose `steps` are those of the op table. It iterates
    over the same dims as its forward op.
    """

    forward: str
    operand: int
    of: str
    kind: str
    inputs: tuple[str, ...]
    over: tuple[str, ...] = ()
    rename: FrozenMap[str, str] = FrozenMap()
    attrs: FrozenMap[str, str] = FrozenMap()
    steps: tuple[Backprop, ...] = ()

    @property
    def output(self) -> str:
        """The gradient it contributes to; all contributions to one gradient are added."""
        return self.of + GRAD

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs besides the gradient."""
        return self.inputs[1:]


@dataclass(frozen=True, slots=True)
class Saved:
    """A storage kept from forward to backward.

    `unit` is the unit that reads it, `count` how many instances of it there are, `readers` the forward ops whose
    backward reads it, `optional` whether it is a norm's statistic.
    """

    tensor: Tensor
    unit: str
    count: Monomial
    readers: tuple[str, ...]
    optional: bool = False


@lru_cache(maxsize=64)
def needs_gradient(graph: Graph) -> frozenset[str]:
    """The tensors that need a gradient: parameters that are not frozen, and what depends on one, where a loss hears it.

    A loop's slot depends on a parameter if its last tensor does. Ops that choose pass no gradient: a parameter from
    which only they are reached is an InputError.
    """
    needs = {t.name for t in graph.tensors.values() if t.kind == "parameter" and not t.frozen}
    for _ in range(len(graph.handed) + 1):
        for loop in graph.handed:
            if {loop.first, loop.last} & needs:
                needs.add(loop.slot)
        for op in graph.ops:
            if op.row.differentiable and needs.intersection(op.inputs):
                needs.add(op.output)
    heard = _heard(graph)
    silent = [t.name for t in graph.tensors.values() if t.kind == "parameter" and not t.frozen and t.name not in heard]
    if silent:
        raise InputError(f"parameter '{silent[0]}' has no gradient: the loss depends on it by a choice alone")
    return frozenset(needs & heard)


def terms(graph: Graph) -> tuple[Op, ...]:
    """The ops that sum a further term of the loss, one number for each token; each starts a backward of its own.

    >>> from placealg.models.router_losses import balanced
    >>> [op.output for op in terms(balanced().graph)]
    ['layer.router.balance_loss', 'layer.router.z_loss']
    """
    return tuple(op for op in graph.ops[:-1] if op.kind == "sum" and op.unit != "loss" and not (
        graph.tensors[op.output].dims or graph.consumers(op.output)))


def _heard(graph: Graph) -> set[str]:
    """The tensors on which a loss depends by ops that pass a gradient."""
    read = {name for op in graph.ops for name in op.inputs} | {loop.first for loop in graph.handed}
    heard = {op.output for op in graph.ops if op.output not in read and not op.attrs.get(TAKEN_OF)}
    for _ in range(len(graph.handed) + 1):
        for op in reversed(graph.ops):
            if op.row.differentiable and op.output in heard:
                heard |= set(op.inputs)
        for loop in graph.handed:
            heard |= {loop.first, loop.last} if loop.slot in heard else set()
    return heard


@lru_cache(maxsize=64)
def backward(graph: Graph) -> tuple[BackwardOp, ...]:
    """For every op, last first, and every operand that needs a gradient: the op that computes it."""
    return tuple(transposed(graph, op, k) for op in reversed(graph.ops) for k in differentiated(graph, op))


def differentiated(graph: Graph, op: Op) -> tuple[int, ...]:
    """The positions of the operands that receive a gradient from `op`."""
    needs = needs_gradient(graph)
    if not op.row.differentiable or op.output not in needs:
        return ()
    return tuple(k for k, name in enumerate(op.inputs) if name in needs)


def transposed(graph: Graph, op: Op, operand: int) -> BackwardOp:
    """The op that takes the gradient of `op`'s result to the contribution of the operand at this position."""
    of, row, grad = op.inputs[operand], op.row, op.output + GRAD
    partners = op.inputs[:operand] + op.inputs[operand + 1:]
    if row.saved == ("partners",):
        return BackwardOp(op.output, operand, of, "einsum", (grad, *partners))
    if row.vjp:
        steps = row.vjp[op.role(operand)]
        made = {s.output for s in steps} | {"dy"}
        roles = dict.fromkeys(r for s in steps for r in s.inputs if r not in made)
        reads = tuple(named(op, role) for role in roles)
        return BackwardOp(op.output, operand, of, "vjp", (grad, *reads), op.over, attrs=op.attrs, steps=steps)
    if row.linear == "table":
        return BackwardOp(op.output, operand, of, "scatter", (grad, *partners), op.over)
    if op.kind == "unit":
        return BackwardOp(op.output, operand, of, "vjp", (grad,))
    if op.kind == "add":
        lost = set(graph.tensors[op.output].dims) - set(graph.tensors[of].dims)
        return BackwardOp(op.output, operand, of, "sum" if lost else "rename", (grad,))
    if op.row.family == "rename":
        return BackwardOp(op.output, operand, of, "rename", (grad,),
                          rename=FrozenMap({new: old for old, new in op.rename.items()}))
    kind = "broadcast" if op.kind == "sum" else op.kind
    attrs = op.attrs.plus({"inverse": "yes"}) if kind == "rope" else op.attrs
    turned = tuple(named(op, role) for role in row.attributes[:len(op.inputs) - 1])
    return BackwardOp(op.output, operand, of, kind, (grad, *turned), op.over, attrs=attrs)


def named(op: Op, role: str) -> str:
    """The tensor that plays `role` in `op`: an operand, the result `y`, or a kept value such as `NAME.mask`."""
    if role == "y":
        return op.output
    return op.inputs[op.row.operands.index(role)] if role in op.row.operands else f"{op.output}.{role}"


def kept(graph: Graph, op: Op) -> tuple[tuple[Tensor, KeptValue], ...]:
    """The values that `op` makes beside its result and keeps, as tensors, each with its row of the op table."""
    result = graph.tensors[op.output].dims
    dims = {"y": result, "x": graph.tensors[op.inputs[0]].dims,
            "row": FrozenMap({d: n for d, n in result.items() if d not in op.over})}
    sparse = graph.tensors[op.output].sparse
    return tuple((Tensor(f"{op.output}.{k.name}", dims[k.dims], element=k.element,
                         sparse=sparse if k.dims == "y" else FrozenMap()), k) for k in op.row.kept)


@lru_cache(maxsize=64)
def keepers(graph: Graph) -> FrozenMap[str, str]:
    """Value that an op makes beside its result and keeps -> the op's result.

    >>> from placealg.models.transformer import gpt
    >>> keepers(gpt().graph)["layer.norm1.out.mean"]
    'layer.norm1.out'
    """
    return FrozenMap({tensor.name: op.output for op in graph.ops for tensor, _ in kept(graph, op)})


@lru_cache(maxsize=64)
def sparse_gradients(graph: Graph) -> FrozenMap[str, Sparse]:
    """Tensor that needs a gradient -> along which dims its gradient is sparse, as in `Tensor.sparse`.

    A contribution is zero where a factor of it is, and the gradient where all contributions are.
    """
    found: dict[str, Sparse] = {}
    for op in reversed(graph.ops):
        for k in differentiated(graph, op):
            name = op.inputs[k]
            made = sparse_contribution(graph, op, k, found.get(op.output, FrozenMap()))
            before = found.get(name, made)
            found[name] = FrozenMap({d: by for d, by in made.items() if before.get(d) == by})
    return FrozenMap(found)


def sparse_contribution(graph: Graph, op: Op, operand: int, arriving: Sparse) -> Sparse:
    """Along which dims the contribution of `op` to an operand's gradient is sparse, given those of what arrives."""
    factors = [arriving]
    if op.row.saved == ("partners",):
        factors += [graph.tensors[n].sparse for k, n in enumerate(op.inputs) if k != operand]
    elif not op.row.zero_at_zero:
        return FrozenMap()
    dims = set(graph.tensors[op.inputs[operand]].dims)
    return FrozenMap({d: by for sparse in factors for d, by in sparse.items() if dims >= set(graph.tensors[by].dims)})


def saved(graph: Graph, *, statistics: bool = False) -> tuple[Saved, ...]:
    """The storages that some backward op reads, in forward order; parameters are never among them.

    `statistics` counts those of norms. One storage under several names is kept once. The input of a repeated unit's
    instance is the output of the one before: each of these is kept once too, whoever reads it.
    """
    made = {t.name: (t, k) for op in graph.ops for t, k in kept(graph, op)}
    found: dict[tuple[str, str], Saved] = {}
    position = {op.output: k for k, op in enumerate(graph.ops)}
    for op in sorted(backward(graph), key=lambda b: position[b.forward]):
        unit = graph.tensors[op.forward].unit
        for name in op.reads:
            tensor, row = made.get(name) or (graph.tensors[graph.storage(name)], None)
            optional = row is not None and row.optional
            if tensor.kind == "parameter" or (optional and not statistics):
                continue
            old = found.get((unit, tensor.name))
            readers = dict.fromkeys([*(old.readers if old else ()), op.forward])
            found[unit, tensor.name] = Saved(tensor, unit, graph.count(unit), tuple(readers), optional)
    return tuple(_once(graph, found))


def _once(graph: Graph, found: dict[tuple[str, str], Saved]) -> Iterator[Saved]:
    """Each storage at its first reader; of a chain of instances, each link once."""
    slots = {loop.unit: loop for loop in graph.loops}
    seen: set[str] = set()
    for (unit, name), value in found.items():
        if name in seen:
            continue
        chains = [loop for loop in graph.handed if graph.storage(loop.first) == name]
        if any((loop.unit, loop.slot) in found for loop in chains):
            continue
        loop = slots.get(value.tensor.unit)
        if loop and name == graph.storage(loop.last) and unit == loop.unit and (unit, loop.slot) in found:
            value = Saved(value.tensor, unit, Monomial(), value.readers, value.optional)
        seen.add(name)
        yield value
