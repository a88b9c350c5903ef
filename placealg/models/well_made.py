"""Whether an op graph is well made: tensors are made before they are read, units stand together, loops close."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.mesh import ALONE
from placealg.models.graph import (
    DEPTH,
    ELEMENTS,
    KINDS,
    SAMPLES,
    TAKEN,
    Graph,
    Loop,
    Op,
    Tensor,
    check_name,
    check_op,
    known,
    sparse_of,
    unit_of,
)
from placealg.models.ops import TAKEN_OF


def check_graph(graph: Graph) -> None:
    """Raise InputError, naming what is at fault, unless a graph is well made."""
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
        for loop in graph.entering(op.unit):
            if loop.slot not in ready:
                known((loop.first,), ready, loop.slot)
                ready[loop.slot] = known((loop.slot,), graph.tensors, loop.slot)[0]
        check_op(op, ready, tuple(known((op.output,), graph.tensors, op.output)[0].dims))
        for before, dim in ((b, d) for b, d in op.rename.items() if d in sizes):
            if op.kind in ("fold", "unfold"):
                _check_fold(op, graph, before, dim)
            elif sizes[before][0] != sizes[dim][0]:
                raise InputError(f"op '{op.output}' (rename): {before} is {sizes[before][0]}, {dim} is {sizes[dim][0]}")
        made = graph.tensors[op.output]
        _check_sparse(op, made, ready)
        ready[op.output] = made
    if (repeated := [u for u in graph.units if graph.loop(u)]) != [loop.unit for loop in graph.loops]:
        raise InputError(f"repeated units stand in the order of their ops: {', '.join(repeated)}")
    for loop in graph.handed:
        _check_loop(loop, graph, ready)
    for loop in graph.beside:
        if not graph.single(loop.unit):
            raise InputError(f"'{loop.slot}' is handed to '{loop.unit}' beside another tensor, which takes a unit of "
                             "one instance")
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
        if loop.unit in ALONE:
            raise InputError(f"unit '{loop.unit}' is repeated: that is what a stage of a pipeline is called")
        inside = [t.name for t in graph.tensors.values() if t.kind == "data" and unit_of(t.name) == loop.unit]
        if inside:
            raise InputError(f"data '{inside[0]}': '{loop.unit}' is repeated, and data are one for all its instances; "
                             f"a name like 'data.{inside[0].partition('.')[2] or inside[0]}' says so")


def _check_fold(op: Op, graph: Graph, before: str, dim: str) -> None:
    """A sequence has as many places as its blocks have together."""
    of, to = (dict(graph.tensors[name].dims) for name in (op.inputs[0], op.output))
    (inner,) = (set(of) ^ set(to)) - {before, dim}
    one, other = of[before] * of.get(inner, Monomial()), to[dim] * to.get(inner, Monomial())
    if one != other:
        raise InputError(f"op '{op.output}' ({op.kind}): {before} and {dim} are {one} and {other}")


def _check_sparse(op: Op, made: Tensor, ready: Mapping[str, Tensor]) -> None:
    found = sparse_of(op, ready, made.dims)
    if made.sparse != found:
        raise InputError(f"op '{op.output}': '{made.name}' is sparse along {tuple(found)}, not {tuple(made.sparse)}")
    if op.kind == "route":
        of, by = (made.dims[d] for d in op.over)
        if not of.names() and not by.names() and by.coefficient > of.coefficient:
            raise InputError(f"op '{op.output}' (route): {op.over[1]} = {by} is more than {op.over[0]} = {of}")


def _check_loop(loop: Loop, graph: Graph, ready: Mapping[str, Tensor]) -> None:
    ops, leaving = graph.of_unit(loop.unit), graph.leaving(loop.unit)
    if not ops or (loop in graph.loops and loop.last != ops[-1].output):
        raise InputError(f"unit '{loop.unit}' does not end in '{loop.last}'", valid=[op.output for op in ops[-1:]])
    other = graph.loop(unit_of(loop.first))
    if other and loop.first not in graph.leaving(other.unit):
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
            if inside and own and op.unit != loop.unit and name not in leaving:
                raise InputError(f"op '{op.output}' reads '{name}' inside '{loop.unit}', which is repeated; from "
                                 f"outside only '{loop.last}' is read")


def _check_used(graph: Graph) -> None:
    used = {n for op in graph.ops for n in op.inputs} | {n for loop in graph.handed for n in (loop.first, loop.last)}
    used |= {o.output for o in graph.ops if o.kind == "sum" and not (o.unit == "loss" or graph.tensors[o.output].dims)}
    used |= {o.output for o in graph.ops if o.attrs.get(TAKEN_OF)} | {SAMPLES}
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
