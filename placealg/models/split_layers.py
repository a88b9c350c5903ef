"""Layers of one kind in two units: those that are computed again, or of which something rests elsewhere, and the rest.

Equal layers are one repeated unit. Where a strategy treats some of them otherwise, these are a unit of their own, with
names that begin with `again.layer` or `away.layer`, which stands before the others, as layers of several kinds stand
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.graph import DEPTH, Graph, Loop, Op, Tensor, unit_of
from placealg.models.model import Model

AGAIN, AWAY = "again", "away"
"""The unit of the layers that are computed again, and of those of which activations, or the optimizer state, alone rest
on another tier."""

L_REST = "L_rest"
"""How many layers are not apart; those that are have the symbol of their unit, such as L_again."""

DONE: Mapping[str, str] = {AGAIN: "that are computed again", AWAY: "of which something rests on another tier"}
"""What is said of the layers of each unit."""


def apart(graph: Graph) -> str:
    """The unit of layers that stand before the others of their kind; "" if none do."""
    return next((loop.unit for loop in graph.loops if loop.unit in DONE), "")


def chosen(depth: int, first: int = 0, every: int = 0, share: Fraction = Fraction(0)) -> tuple[int, ...]:
    """The numbers of the layers that stand apart: the first ones, every so many from 0, or a share, rounded down.

    >>> chosen(8, first=3), chosen(8, every=3), chosen(9, share=Fraction(1, 4))
    ((0, 1, 2), (2, 5), (0, 1))
    """
    first = first or int(share * depth)
    return tuple(range(every - 1, depth, every)) if every else tuple(range(first))


def layers_problem(model: Model, first: int = 0, every: int = 0, share: Fraction = Fraction(0)) -> str:
    """Why the layers of a model cannot be two units so; "" if they can."""
    units = [loop.unit for loop in model.graph.loops]
    if units != [DEPTH]:
        return f"{model.name} has no repeated unit" if not units else (
            f"layers of {model.name} are of several kinds, {', '.join(units)}: say a region of one, such as "
            f"'region:{units[0]}'")
    depth = _depth(model)
    if depth and not 0 < len(chosen(depth, first, every, share)) < depth + (depth == first):
        number = len(chosen(depth, first, every, share))
        return f"{model.name} has {depth} layers, of which these are {number or 'none'}"
    return ""


def _depth(model: Model) -> int:
    count = model.graph.count(DEPTH)
    return int(count.evaluate(model.sizes)) if set(count.names()) <= set(model.sizes) else 0


def layers_apart(model: Model, unit: str, first: int = 0, every: int = 0, share: Fraction = Fraction(0)) -> Model:
    """The model whose first layers, or every so many of them, are a unit, L_again of them beside L_rest if it is again.

    A `share` of them, rounded down, are first ones, too.

    >>> from placealg.models.config import from_config
    >>> made = layers_apart(from_config("llama-3-8b"), AGAIN, first=12)
    >>> [(u.name, u.count) for u in made.units], made.sizes["L_rest"], made.total() == from_config("llama-3-8b").total()
    ([('embedding', 1), ('again', L_again), ('layer', L_rest), ('head', 1)], 20, True)
    """
    if problem := layers_problem(model, first, every, share):
        raise InputError(problem)
    depth = _depth(model)
    if depth and depth == first:
        return model
    graph = model.graph
    (loop,) = graph.loops
    named = {name: _named(name, unit) for name in graph.tensors if unit_of(name) == DEPTH}
    mark = f"L_{unit}"
    mine = [op for op in graph.ops if op.unit == DEPTH]
    at = graph.ops.index(mine[0])
    tensors = dict(graph.tensors) | {new: replace(t, name=new, sparse=renamed(t.sparse, named))
                                     for old, new in named.items() for t in (graph.tensors[old],)}
    ops = (*graph.ops[:at], *(_copied(op, named, unit) for op in mine), *graph.ops[at:])
    loops = (Loop(unit, Monomial.of(mark), named[loop.slot], loop.first, named[loop.last]),
             replace(loop, count=Monomial.of(L_REST), first=named[loop.last]))
    numbers = chosen(depth, first, every, share) if depth else ()
    sizes = {s: n for s, n in model.sizes.items() if s not in loop.count.names()}
    sizes |= {mark: len(numbers), L_REST: depth - len(numbers)} if depth else {mark: first} if first else {}
    order = (f"the order of layers {DONE[unit]}, one of {every}: they stand together here",) * bool(every)
    rest = tuple(i for i in range(depth) if i not in numbers)
    where = {**model.where, unit: numbers, DEPTH: rest} if DEPTH in model.where else dict(model.where)
    untrained = tuple(replace(p, unit=unit, sites=(unit,)) for p in model.untrained if p.unit == DEPTH)
    statistics = {new: replace(found, of=named.get(found.of, found.of)) for old, found in model.statistics.items()
                  if (new := named.get(old))}
    return replace(model.over(Graph(_ordered(tensors, ops), ops, loops), sizes), left_out=(*model.left_out, *order),
                   statistics=model.statistics.plus(statistics), untrained=(*untrained, *model.untrained),
                   where=FrozenMap(where),
                   names=model.names.plus({new: model.names[old] for old, new in named.items() if old in model.names}))


def _named(name: str, unit: str) -> str:
    """The name in a unit apart; that of a slot is the unit's own."""
    return f"{unit}.in" if name == f"{DEPTH}.in" else f"{unit}.{name}"


def renamed(sparse: Mapping[str, str], named: Mapping[str, str]) -> FrozenMap[str, str]:
    """The dims along which a tensor is sparse, where what chooses along them has another name.

    >>> renamed({"expert": "layer.router.route"}, {"layer.router.route": "again.layer.router.route"})
    {expert: again.layer.router.route}
    """
    return FrozenMap({dim: named.get(route, route) for dim, route in sparse.items()})


def _copied(op: Op, named: Mapping[str, str], unit: str) -> Op:
    return replace(op, output=named[op.output], inputs=tuple(named.get(n, n) for n in op.inputs),
                   region=f"{unit}.{op.region}")


def _ordered(tensors: Mapping[str, Tensor], ops: tuple[Op, ...]) -> FrozenMap[str, Tensor]:
    """The tensors in the order in which ops meet them."""
    met = dict.fromkeys(n for op in ops for n in (*op.inputs, op.output))
    return FrozenMap({**{n: tensors[n] for n in met}, **tensors})
