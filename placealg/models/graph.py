"""A model as an op graph: tensors with named dims, ops in forward order, and one op list for equal layers.

Names carry the structure: an op is named by the tensor it makes, `layer.attn.q` belongs to the unit `layer`,
and an op's region is the dotted name by which a strategy addresses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.ops import OPS, OpKind, OpName
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

SAMPLES = "data.samples"
"""How many samples each row of the batch has: no op reads it, counts do."""

DEPTH = "layer"
"""How strategies call the way through a model's repeated units: no dim of a tensor is called so."""

ONCE = ("L_entry", "L_exit", "L_predicted")
"""The symbols of the number of instances of a unit that stands at a boundary of stages, of which there is one."""

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


TensorKind = Literal["activation", "parameter", "data"]
"""What a tensor of an op graph is."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: its dims in storage order with their sizes, what it is, and what one element takes.

    `data` takes no gradient, nor does a parameter that is `frozen`. A gradient has its tensor's dims. What is `sparse`
    along a dim is 0 where the one-hot tensor named there is: only the chosen index is stored, moved and computed.
    """

    name: str
    dims: FrozenMap[str, Monomial]
    kind: TensorKind = "activation"
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
    kind: OpName
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

    `beside` are what units of one instance are handed besides the tensor of their Loop, a Loop for each further tensor:
    all of them cross together where the unit begins a stage. `whole`: it has no ops, or units as ops, whose inside is
    unknown. `dims` is every dim with its size, in order of appearance. Construction checks it; a fault is an
    InputError.
    """

    tensors: FrozenMap[str, Tensor] = FrozenMap()
    ops: tuple[Op, ...] = ()
    loops: tuple[Loop, ...] = ()
    beside: tuple[Loop, ...] = ()
    whole: bool = field(init=False, repr=False, compare=False)
    dims: FrozenMap[str, Monomial] = field(init=False, repr=False, compare=False)
    _made: Mapping[str, Op] = field(init=False, repr=False, compare=False)
    _read: Mapping[str, tuple[Op, ...]] = field(init=False, repr=False, compare=False)
    _of_unit: Mapping[str, tuple[Op, ...]] = field(init=False, repr=False, compare=False)
    _along: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        made: dict[str, Op] = {}
        read: dict[str, list[Op]] = {}
        of_unit: dict[str, list[Op]] = {}
        for op in self.ops:
            made.setdefault(op.output, op)
            of_unit.setdefault(op.unit, []).append(op)
            for name in dict.fromkeys(op.inputs):
                read.setdefault(name, []).append(op)
        object.__setattr__(self, "whole", not self.ops or any(op.kind == "unit" for op in self.ops))
        object.__setattr__(self, "dims", FrozenMap({d: n for t in self.tensors.values() for d, n in t.dims.items()}))
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_read", {name: tuple(ops) for name, ops in read.items()})
        object.__setattr__(self, "_of_unit", {unit: tuple(ops) for unit, ops in of_unit.items()})
        object.__setattr__(self, "_along", {})
        object.__setattr__(self, "_hash", hash((self.tensors, self.ops, self.loops, self.beside)))
        from placealg.models.well_made import check_graph

        check_graph(self)

    def __hash__(self) -> int:
        return self._hash  # graphs are keys of caches, and have a hundred ops

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph) or self._hash != other._hash:
            return NotImplemented if not isinstance(other, Graph) else False
        names = ("tensors", "ops", "loops", "beside")
        equal = all(getattr(self, name) == getattr(other, name) for name in names)
        for name in names if equal else ():  # the next comparison of the two finds what is identical, at once
            object.__setattr__(self, name, getattr(other, name))
        return equal

    def __reduce__(self) -> tuple[Any, ...]:
        """It is made again where it is unpickled: another process hashes text in another way."""
        return type(self), (self.tensors, self.ops, self.loops, self.beside)

    @property
    def units(self) -> tuple[str, ...]:
        """The units in forward order."""
        return tuple(self._of_unit)

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
        return self._of_unit.get(unit, ())

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

    def single(self, unit: str) -> bool:
        """Whether a unit with a Loop is one instance, which stands at a boundary of stages."""
        loop = self.loop(unit)
        return loop is not None and loop.count in map(Monomial.of, ONCE)

    @property
    def handed(self) -> tuple[Loop, ...]:
        """Everything that units are handed, in forward order: the loops, each before what stands beside it."""
        return tuple(one for loop in self.loops for one in (loop, *(b for b in self.beside if b.unit == loop.unit)))

    def entering(self, unit: str) -> tuple[Loop, ...]:
        """What a unit is handed: one tensor, or, where it is one instance, any number; nothing without a Loop."""
        return tuple(loop for loop in self.handed if loop.unit == unit)

    def leaving(self, unit: str) -> tuple[str, ...]:
        """The tensors that a unit with a Loop hands to the next instance of a unit, in order.

        They are the last tensor of its Loop; of the one instance of a unit, all that others are handed of it, or read.
        """
        loop = self.loop(unit)
        if loop is None:
            return ()
        taken = (loop.last, *(one.first for one in self.handed if unit_of(one.first) == unit),
                 *(name for op in self.ops if op.unit != unit for name in op.inputs
                   if unit_of(name) == unit and self.tensors[name].kind == "activation"))
        return tuple(dict.fromkeys(taken)) if self.single(unit) else (loop.last,)

    def slot(self, tensor: str) -> Loop | None:
        """The loop whose slot `tensor` is."""
        return next((loop for loop in self.handed if loop.slot == tensor), None)

    def storage(self, tensor: str) -> str:
        """The tensor whose storage `tensor` shares: itself, or the root of a chain of renames."""
        op = self.producer(tensor)
        return self.storage(op.inputs[0]) if op and op.row.view else tensor

    def operand_dims(self, op: Op) -> tuple[tuple[str, ...], ...]:
        """The dims of each operand; a rename's operand under the result's names."""
        return tuple(tuple(op.rename.get(d, d) for d in self.tensors[n].dims) for n in op.inputs)

    def iteration_dims(self, op: Op) -> tuple[str, ...]:
        """All dims of the operands and the result, each once: what the op can be split along."""
        if op.output in self._along and self._made.get(op.output) is op:
            return self._along[op.output]
        result = self.tensors[op.output].dims
        found = tuple(dict.fromkeys([*result, *(d for dims in self.operand_dims(op) for d in dims)]))
        if self._made.get(op.output) is op:
            self._along[op.output] = found
        return found

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
        drawn.add_edges_from((loop.first, loop.slot) for loop in self.handed)
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
    if op.kind in ("route", "one_hot"):
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
