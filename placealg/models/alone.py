"""Ends of a model that stand alone on a stage: what is before its layers, or behind them, with no layer beside it.

A pipeline cuts between the instances of repeated units. Where its first stage has the embedding alone, a repeated unit
of one instance stands between embedding and layers, whose one op shows its operand under another name: it holds
nothing, computes nothing, and hands on what came. Likewise behind the layers for a stage with the head alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import STAGE_ENDS
from placealg.models.graph import Graph, Loop, Op
from placealg.models.model import Model

ENTRY, EXIT = "entry", "exit"
"""The units that hand on what the embedding made, and what the last layer did."""

HANDS_ON = FrozenMap(dict(zip(STAGE_ENDS, (ENTRY, EXIT), strict=True)))
"""End of a pipeline -> the unit that hands on there."""

COUNTS = FrozenMap({ENTRY: "L_entry", EXIT: "L_exit"})
"""Unit that hands on -> the symbol of its instances, of which there is one."""


def alone_problem(model: Model, ends: Iterable[str]) -> str:
    """Why the ends of a model cannot stand alone so; "" if they can.

    >>> from placealg.models.transformer import gpt, mlp
    >>> alone_problem(gpt(), ["first"]), alone_problem(mlp(), ["first"])
    ('', 'nothing of mlp stands before its layers')
    """
    graph = model.graph
    if not graph.loops:
        return f"{model.name} has no repeated unit"
    for loop in graph.loops:
        if loop.unit in (ENTRY, EXIT):
            return f"{model.name} has a unit '{loop.unit}' of its own"
    if STAGE_ENDS[0] in ends and graph.tensors[graph.loops[0].first].kind == "data":
        return f"nothing of {model.name} stands before its layers"
    return ""


def standing_alone(model: Model, ends: Iterable[str]) -> Model:
    """The model with a unit that hands on, between its layers and each of `ends` ("first", "last").

    >>> from placealg.models.transformer import gpt
    >>> made = standing_alone(gpt(), ["first", "last"])
    >>> [(loop.unit, loop.first, loop.last) for loop in made.graph.loops][::2]
    [('entry', 'embedding.dropped', 'entry.out'), ('exit', 'layer.out', 'exit.out')]
    """
    if problem := alone_problem(model, ends):
        raise InputError(problem)
    graph, sizes = model.graph, dict(model.sizes)
    for end in (e for e in STAGE_ENDS if e in ends):
        graph = _handing_on(graph, HANDS_ON[end])
        sizes[COUNTS[HANDS_ON[end]]] = 1
    return model.over(graph, sizes)


def _handing_on(graph: Graph, unit: str) -> Graph:
    """The graph with one more repeated unit, before all others or behind them."""
    before = unit == ENTRY
    first, last = graph.loops[0], graph.loops[-1]
    first_of = first.first if before else last.last
    slot, out = f"{unit}.in", f"{unit}.out"
    shape = graph.tensors[first.slot if before else last.slot]
    loop = Loop(unit, Monomial.of(COUNTS[unit]), slot, first_of, out)
    op = Op(out, "rename", (slot,), unit)
    inside = {u.unit for u in graph.loops}
    at = next(k for k, o in enumerate(graph.ops) if o.unit == first.unit) if before else 1 + max(
        k for k, o in enumerate(graph.ops) if o.unit in inside)
    behind = tuple(o if before else replace(o, inputs=tuple(out if n == last.last else n for n in o.inputs))
                   for o in graph.ops[at:])
    loops = (loop, replace(first, first=out), *graph.loops[1:]) if before else (*graph.loops, loop)
    ops = (*graph.ops[:at], op, *behind)
    tensors = dict(graph.tensors) | {n: replace(shape, name=n) for n in (slot, out)}
    met = dict.fromkeys(n for o in ops for n in (*o.inputs, o.output))
    ordered = {**{n: tensors[n] for n in met}, **tensors}
    return Graph(FrozenMap(ordered), ops, loops)
