"""A model as an op graph: tensors with named dims, ops in forward order, and one op list for equal layers.

Names carry the structure: an op is named by the tensor it makes, `layer.attn.q` belongs to the unit `layer`,
and an op's region is the dotted name by which a strategy addresses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import STAGE_ENDS
from placealg.models.ops import OPS, TAKEN_OF, OpKind
from placealg.models.shapes import check_dims

if TYPE_CHECKING:
    import networkx

KINDS = ("activation", "parameter", "data")
ELEMENTS = ("act", "w", "ids", "mask", "stat")
"""What one element takes: activation, weight, integer id, mask (1 byte), statistic (4 bytes)."""

Sparse = FrozenMap[str, str]
"""Dim -> the one-hot tensor that chooses along it."""

TAKEN = ("weight", "master", "moments", "average", "grad", "grad_sum", "norm", "skip", "step", "rng", "loss_scale",
         "count", "loss", "activation")
"""What a step program works on beside tensors and gradients."""

DEPTH = "layer"
"""How strategies call the way through a model's repeated units: no dim of a tensor is called so."""

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: its dims in storage order with their sizes, what it is, and what one element takes.

    `data` takes no gradient, nor does a parameter that is `frozen`. A gradient has its tensor's dims. What is `sparse`
    along a dim is 0 where the one-hot tensor named there is: only the chosen index is stored, moved and computed.
    """

    name: str
    dims: FrozenMap[str, Monomial]
    kind: str = "activation"
    element: str = "act"
    sparse: Sparse = FrozenMap()
    frozen: bool = False

    @property
    def elements(self) -> Monomial:
        """Elements of one instance; along a sparse dim only the chosen one counts."""
        return Monomial.product(n for d, n in self.dims.items() if d not in self.sparse)

    @property
    def unit(self) -> str:
        """The first component of the name."""
        return unit_of(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Op:
    """An op, named by its result.

    `over` are the normalised, looked-up or rotated dims; of a route, the dim that it chooses along and that of the
    choices. Contracted dims follow from operands and result. `rename` maps the operand's dims to the result's. `attrs`
    say what placement does not depend on.
    """

    output: str
    kind: str
    inputs: tuple[str, ...]
    region: str
    over: tuple[str, ...] = ()
    rename: FrozenMap[str, str] = FrozenMap()
    attrs: FrozenMap[str, str] = FrozenMap()

    @property
    def row(self) -> OpKind:
        """The op's row in the op table."""
        return OPS[self.kind]

    @property
    def unit(self) -> str:
        """The first component of the name."""
        return unit_of(self.output)

    def within(self, region: str) -> bool:
        """Whether it belongs to `region`, a run of words of its own region's name: `attn`, `layer.attn`."""
        return f".{region}." in f".{self.region}."

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers: a dropout, or an attention that contains one."""
        return self.row.random or "dropout" in self.attrs

    @property
    def redraws(self) -> bool:
        """Whether its backward draws them again: a dropout keeps its mask, an attention that contains one does not."""
        return self.draws and not self.row.random

    def draws_in(self, backward: bool) -> bool:
        """Whether its forward, or its backward, draws."""
        return self.redraws if backward else self.draws

    def role(self, position: int) -> str:
        """The role of the operand at `position`; operands of a kind that takes any number have none."""
        return "" if self.row.operands == ("*",) else self.row.operands[position]


@dataclass(frozen=True, slots=True)
class Loop:
    """A unit of `count` equal instances: instance 1 reads `first` at `slot`, instance l + 1 reads l's `last`."""

    unit: str
    count: Monomial
    slot: str
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Graph:
    """Tensors and ops in forward order, each tensor made once; a repeated unit stands once, with its Loop.

    `whole`: it has no ops, or units as ops, whose inside is unknown. `dims` is every dim with its size, in order of
    appearance. Construction checks it; a fault is an InputError.
    """

    tensors: FrozenMap[str, Tensor] = FrozenMap()
    ops: tuple[Op, ...] = ()
    loops: tuple[Loop, ...] = ()
    whole: bool = field(init=False, repr=False, compare=False)
    dims: FrozenMap[str, Monomial] = field(init=False, repr=False, compare=False)
    _made: Mapping[str, Op] = field(init=False, repr=False, compare=False)
    _read: Mapping[str, tuple[Op, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        made: dict[str, Op] = {}
        read: dict[str, list[Op]] = {}
        for op in self.ops:
            made.setdefault(op.output, op)
            for name in dict.fromkeys(op.inputs):
                read.setdefault(name, []).append(op)
        object.__setattr__(self, "whole", not self.ops or any(op.kind == "unit" for op in self.ops))
        object.__setattr__(self, "dims", FrozenMap({d: n for t in self.tensors.values() for d, n in t.dims.items()}))
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_read", {name: tuple(ops) for name, ops in read.items()})
        _check(self)

    @property
    def units(self) -> tuple[str, ...]:
        """The units in forward order."""
        return tuple(dict.fromkeys(op.unit for op in self.ops))

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions in forward order."""
        return tuple(dict.fromkeys(op.region for op in self.ops))

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters, in order of first use."""
        names = dict.fromkeys(n for op in self.ops for n in op.inputs)
        return tuple(t for n in names if (t := self.tensors[n]).kind == "parameter")

    def of_unit(self, unit: str) -> tuple[Op, ...]:
        """The ops of one unit, in order."""
        return tuple(op for op in self.ops if op.unit == unit)

    def producer(self, tensor: str) -> Op | None:
        """The op that makes `tensor`; None for parameters, data and the slots of loops."""
        return self._made.get(tensor)

    def consumers(self, tensor: str) -> tuple[Op, ...]:
        """The ops that read `tensor` by name, in order; a loop's slot is read inside its unit."""
        return self._read.get(tensor, ())

    def sites(self, tensor: str) -> tuple[str, ...]:
        """The units whose ops read `tensor`, in forward order."""
        return tuple(dict.fromkeys(op.unit for op in self.consumers(tensor)))

    def loop(self, unit: str) -> Loop | None:
        """The loop of a repeated unit."""
        return next((loop for loop in self.loops if loop.unit == unit), None)

    def count(self, unit: str) -> Monomial:
        """How many instances of `unit` there are."""
        loop = self.loop(unit)
        return loop.count if loop else Monomial()

    def slot(self, tensor: str) -> Loop | None:
        """The loop whose slot `tensor` is."""
        return next((loop for loop in self.loops if loop.slot == tensor), None)

    def storage(self, tensor: str) -> str:
        """The tensor whose storage `tensor` shares: itself, or the root of a chain of renames."""
        op = self.producer(tensor)
        return self.storage(op.inputs[0]) if op and op.row.view else tensor

    def operand_dims(self, op: Op) -> tuple[tuple[str, ...], ...]:
        """The dims of each operand; a rename's operand under the result's names."""
        return tuple(tuple(op.rename.get(d, d) for d in self.tensors[n].dims) for n in op.inputs)

    def iteration_dims(self, op: Op) -> tuple[str, ...]:
        """All dims of the operands and the result, each once: what the op can be split along."""
        result = self.tensors[op.output].dims
        return tuple(dict.fromkeys([*result, *(d for dims in self.operand_dims(op) for d in dims)]))

    def contracted(self, op: Op) -> tuple[str, ...]:
        """The dims of the operands that the result lacks."""
        return tuple(d for d in self.iteration_dims(op) if d not in self.tensors[op.output].dims)

    def networkx(self) -> networkx.DiGraph:
        """The tensors as nodes, an edge from each operand to each result; loops enter at their slots."""
        import networkx

        drawn = networkx.DiGraph()
        for tensor in self.tensors.values():
            drawn.add_node(tensor.name, tensor=tensor)
        for op in self.ops:
            drawn.add_edges_from(((name, op.output) for name in op.inputs), op=op)
        drawn.add_edges_from((loop.first, loop.slot) for loop in self.loops)
        return drawn


def unit_of(name: str) -> str:
    """The unit of a tensor or op: the first component of its name.

    >>> unit_of("layer.attn.q")
    'layer'
    """
    return name.partition(".")[0]


def known(names: Iterable[str], tensors: Mapping[str, Tensor], op: str) -> tuple[Tensor, ...]:
    """The tensors called `names`; an unknown one is an InputError that names `op`."""
    found = []
    for name in names:
        if name not in tensors:
            raise InputError(f"op '{op}': no tensor '{name}' before it", name=name, valid=tensors)
        found.append(tensors[name])
    return tuple(found)


def check_op(op: Op, tensors: Mapping[str, Tensor], result: tuple[str, ...]) -> None:
    """An InputError unless `op` fits its operands and makes a tensor with the dims `result`."""
    check_name(op.output)
    if op.kind not in OPS:
        raise InputError(f"op '{op.output}': unknown kind '{op.kind}'", name=op.kind, valid=OPS)
    operands = known(op.inputs, tensors, op.output)
    check_dims(f"op '{op.output}' ({op.kind})", op.row, [(t.name, tuple(t.dims), t.element) for t in operands],
               op.over, op.rename, result)


def sparse_of(op: Op, tensors: Mapping[str, Tensor], result: Iterable[str]) -> Sparse:
    """Along which dims the result of `op` is sparse: a product is 0 where a factor is, a sum where all terms are.

    What is summed over a dim along which the choice varies is not sparse any more.
    """
    if op.kind == "route":
        return FrozenMap({op.over[0]: op.output})
    operands = [tensors[n].sparse for n in op.inputs]
    if op.row.saved == ("partners",):
        found = {d: by for sparse in operands for d, by in sparse.items()}
    elif op.row.zero_at_zero:
        found = {d: by for d, by in operands[0].items() if all(sparse.get(d) == by for sparse in operands)}
    else:
        found = {}
    return FrozenMap({d: by for d, by in found.items() if set(tensors[by].dims) <= set(result)})


def check_name(name: str) -> None:
    """An InputError unless `name` is words joined by dots, none of them kept for gradients or what is no tensor."""
    if name in TAKEN:
        raise InputError(f"'{name}' is not a tensor's name: a step program calls something else so")
    if not _NAME.fullmatch(name) or name.split(".")[-1] in ("grad", "grad_sum"):
        raise InputError(f"'{name[:60]}' is not a tensor's name: words joined by dots, 'grad' kept for gradients")


def _check(graph: Graph) -> None:
    sizes: dict[str, tuple[Monomial, str]] = {}
    for name, tensor in graph.tensors.items():
        check_name(name)
        for value, valid, what in ((tensor.kind, KINDS, "kind"), (tensor.element, ELEMENTS, "element")):
            if value not in valid:
                raise InputError(f"tensor '{name}': unknown {what} '{value}'", name=value, valid=valid)
        for dim, size in tensor.dims.items():
            if dim == DEPTH:
                raise InputError(f"tensor '{name}': no dim is called '{DEPTH}', along which pipelines split a model")
            if sizes.setdefault(dim, (size, name))[0] != size:
                raise InputError(f"dim '{dim}' is {size} in '{name}' and {sizes[dim][0]} in '{sizes[dim][1]}'; "
                                 "a dim has one size: rename one of the two")
    ready = {n: t for n, t in graph.tensors.items() if t.kind != "activation"}
    for op in graph.ops:
        if op.output in ready:
            raise InputError(f"op '{op.output}': the tensor is already there; an op makes a new one")
        loop = graph.loop(op.unit)
        if loop and loop.slot not in ready:
            known((loop.first,), ready, loop.slot)
            ready[loop.slot] = known((loop.slot,), graph.tensors, loop.slot)[0]
        check_op(op, ready, tuple(known((op.output,), graph.tensors, op.output)[0].dims))
        for before, dim in ((b, d) for b, d in op.rename.items() if d in sizes):
            if sizes[before][0] != sizes[dim][0]:
                raise InputError(f"op '{op.output}' (rename): {before} is {sizes[before][0]}, {dim} is {sizes[dim][0]}")
        made = graph.tensors[op.output]
        _check_sparse(op, made, ready)
        ready[op.output] = made
    if (repeated := [u for u in graph.units if graph.loop(u)]) != [loop.unit for loop in graph.loops]:
        raise InputError(f"repeated units stand in the order of their ops: {', '.join(repeated)}")
    for loop in graph.loops:
        _check_loop(loop, graph, ready)
    _check_used(graph)
    _check_units(graph)
    for last, op in pairwise(graph.ops):
        if last.unit != op.unit and graph.of_unit(op.unit)[0] != op:
            raise InputError(f"op '{op.output}' stands behind unit '{last.unit}'; the ops of '{op.unit}' stand "
                             "together")


def _check_units(graph: Graph) -> None:
    for unit in graph.units:
        if unit in TAKEN and unit != "loss":
            raise InputError(f"unit '{unit}': a step program calls something else so")
    for loop in graph.loops:
        if loop.unit in STAGE_ENDS:
            raise InputError(f"unit '{loop.unit}' is repeated: that is what the ends of a pipeline are called")
        inside = [t.name for t in graph.tensors.values() if t.kind == "data" and unit_of(t.name) == loop.unit]
        if inside:
            raise InputError(f"data '{inside[0]}': '{loop.unit}' is repeated, and data are one for all its instances; "
                             f"a name like 'data.{inside[0].partition('.')[2] or inside[0]}' says so")


def _check_sparse(op: Op, made: Tensor, ready: Mapping[str, Tensor]) -> None:
    found = sparse_of(op, ready, made.dims)
    if made.sparse != found:
        raise InputError(f"op '{op.output}': '{made.name}' is sparse along {tuple(found)}, not {tuple(made.sparse)}")
    if op.kind == "route":
        of, by = (made.dims[d] for d in op.over)
        if not of.names() and not by.names() and by.coefficient > of.coefficient:
            raise InputError(f"op '{op.output}' (route): {op.over[1]} = {by} is more than {op.over[0]} = {of}")


def _check_loop(loop: Loop, graph: Graph, ready: Mapping[str, Tensor]) -> None:
    ops = graph.of_unit(loop.unit)
    if not ops or loop.last != ops[-1].output:
        raise InputError(f"unit '{loop.unit}' does not end in '{loop.last}'", valid=[op.output for op in ops[-1:]])
    other = graph.loop(unit_of(loop.first))
    if other and loop.first != other.last:
        raise InputError(f"'{loop.unit}' begins with '{loop.first}' inside '{other.unit}', which is repeated; from "
                         f"outside only '{other.last}' is read")
    names = (loop.first, loop.slot, loop.last)
    dims = [tuple(ready[n].dims) for n in names]
    for name, found in zip(names, dims, strict=True):
        if set(found) != set(dims[1]):
            raise InputError(f"'{name}' has dims ({', '.join(found)}), '{loop.slot}' ({', '.join(dims[1])}); "
                             f"what enters and what leaves '{loop.unit}' have equal dims")
    for op in graph.ops:
        for name in op.inputs:
            inside, own = graph.tensors[name].kind == "activation", unit_of(name) == loop.unit
            if inside and op.unit == loop.unit and not own:
                raise InputError(f"op '{op.output}' reads '{name}' of another unit; '{loop.unit}' is repeated and "
                                 f"reads '{loop.slot}', parameters and data")
            if inside and own and op.unit != loop.unit and name != loop.last:
                raise InputError(f"op '{op.output}' reads '{name}' inside '{loop.unit}', which is repeated; from "
                                 f"outside only '{loop.last}' is read")


def _check_used(graph: Graph) -> None:
    used = {n for op in graph.ops for n in op.inputs} | {n for loop in graph.loops for n in (loop.first, loop.last)}
    used |= {o.output for o in graph.ops if o.kind == "sum" and not (o.unit == "loss" or graph.tensors[o.output].dims)}
    used |= {o.output for o in graph.ops if o.attrs.get(TAKEN_OF)}
    for name, tensor in graph.tensors.items():
        if name not in used and [name] != [op.output for op in graph.ops[-1:]]:
            raise InputError(f"{tensor.kind} '{name}' is read by no op")
        if tensor.kind == "activation" and not graph.producer(name) and not graph.slot(name):
            raise InputError(f"activation '{name}' is made by no op")
        loop = graph.loop(unit_of(name))
        if tensor.kind == "parameter" and loop and set(graph.sites(name)) != {loop.unit}:
            raise InputError(f"parameter '{name}' of '{loop.unit}', which is repeated, is used by unit "
                             f"'{next(u for u in graph.sites(name) if u != loop.unit)}': each instance has its own")
        if tensor.kind == "parameter" and "batch" in tensor.dims:
            raise InputError(f"parameter '{name}' has the dim 'batch'; parameters are the same for every sequence")
        if tensor.kind == "parameter" and unit_of(name) != graph.sites(name)[0]:
            raise InputError(f"parameter '{name}' is first used by unit '{graph.sites(name)[0]}'; its name begins with "
                             f"that unit's")
