"""Parts of a model that stand alone on a stage: what is before its layers, what is behind them, what predicts further.

A pipeline cuts between the instances of repeated units. Where its first stage has the embedding alone, a repeated unit
of one instance stands between embedding and layers, whose one op shows its operand under another name: it holds
nothing, computes nothing, and hands on what came. Likewise behind the layers for a stage with the head alone.

A layer that predicts a later token is such a unit of one instance, too, where it stands before the stage of the head:
it begins with the norm that is common to both, and hands on several tensors, what the head reads and what each layer
that predicts made. Logits and losses of all of them are left to the last stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import ALONE, PREDICTION, STAGE_ENDS
from placealg.models.graph import DEPTH, ONCE, Graph, Loop, Op, unit_of
from placealg.models.model import Model
from placealg.models.split_layers import DONE, renamed

ENTRY, EXIT = "entry", "exit"
"""The units that hand on what the embedding made, and what the last layer did."""

HANDS_ON = FrozenMap(dict(zip(STAGE_ENDS, (ENTRY, EXIT), strict=True)))
"""End of a pipeline -> the unit that hands on there."""

HEAD = "head"
"""The unit that makes logits of what the layers made."""


def predicting(graph: Graph) -> tuple[str, ...]:
    """The units that each predict one token further than the one before, in order.

    >>> from placealg.models.config import from_config
    >>> predicting(from_config("deepseek-v3", mtp=True).graph)
    ('mtp1',)
    """
    return tuple(u for u in graph.units if re.fullmatch(r"mtp\d+", u))


def original(parameter: str) -> str:
    """The name that a parameter, or an op, has where nothing stands alone, and no layers apart.

    >>> original("mtp1.head.norm.weight"), original("mtp1.norm.weight"), original("again.layer.norm1.weight")
    ('head.norm.weight', 'mtp1.norm.weight', 'layer.norm1.weight')
    """
    return re.sub(rf"^(mtp\d+\.(?={HEAD}\.)|({'|'.join(DONE)})\.(?={DEPTH}\.))", "", parameter)


def on_last_stage(unit: str) -> str:
    """How logits and loss of a unit that predicts are called where the unit itself stands before the last stage."""
    return f"{unit}_{HEAD}"


def with_own_data(model: Model) -> Model:
    """The model each of whose units has a copy of the data that others read, too: another stage may run it.

    The first unit that reads data has them under their own name.

    >>> from placealg.models.transformer import gpt
    >>> from placealg.models.tokens import Attributes, with_attributes
    >>> packed = with_attributes(gpt(), Attributes(documents=True, per="document"))
    >>> sorted({*with_own_data(packed).graph.tensors} - {*packed.graph.tensors})
    ['data.documents.loss']
    """
    graph = model.graph
    homes, tensors, ops = dict[str, str](), dict(graph.tensors), list[Op]()
    for op in graph.ops:
        own = {name: f"{name}.{op.unit}" for name in op.inputs
               if graph.tensors[name].kind == "data" and homes.setdefault(name, op.unit) != op.unit}
        tensors |= {copy: replace(graph.tensors[name], name=copy) for name, copy in own.items()}
        ops.append(replace(op, inputs=tuple(own.get(name, name) for name in op.inputs)) if own else op)
    return replace(model, graph=replace(graph, tensors=FrozenMap(tensors), ops=tuple(ops)))


def shown_data(name: str) -> str:
    """The data of which data of this name are a unit's copy, or that they are.

    >>> shown_data("data.documents.loss"), shown_data("data.documents")
    ('data.documents', 'data.documents')
    """
    return ".".join(name.split(".")[:2])


def alone_problem(model: Model, ends: Iterable[str]) -> str:
    """Why parts of a model cannot stand alone so; "" if they can.

    >>> from placealg.models.transformer import gpt, mlp
    >>> alone_problem(gpt(), ["first"]), alone_problem(mlp(), ["first"])
    ('', 'nothing of mlp stands before its layers')
    >>> alone_problem(gpt(), ["prediction", "last"])
    'gpt has no layer that predicts a later token: say --mtp with a model that has'
    """
    graph, said = model.graph, tuple(ends)
    if not graph.loops:
        return f"{model.name} has no repeated unit"
    for loop in graph.loops:
        if loop.unit in (ENTRY, EXIT):
            return f"{model.name} has a unit '{loop.unit}' of its own"
    if STAGE_ENDS[0] in said and graph.tensors[graph.loops[0].first].kind == "data":
        return f"nothing of {model.name} stands before its layers"
    if PREDICTION in said and not predicting(graph):
        return f"{model.name} has no layer that predicts a later token: say --mtp with a model that has"
    return ""


def standing_alone(model: Model, ends: Iterable[str]) -> Model:
    """The model with a unit that hands on, between its layers and each of `ends` ("first", "prediction", "last").

    With "prediction" the head has a stage of its own, too: it stands behind what predicts.

    >>> from placealg.models.transformer import gpt
    >>> made = standing_alone(gpt(), ["first", "last"])
    >>> [(loop.unit, loop.first, loop.last) for loop in made.graph.loops][::2]
    [('entry', 'embedding.dropped', 'entry.out'), ('exit', 'layer.out', 'exit.out')]
    """
    wanted = {*ends}
    said = tuple(end for end in ALONE if end in wanted or (end == STAGE_ENDS[1] and PREDICTION in wanted))
    if problem := alone_problem(model, said):
        raise InputError(problem)
    graph, names = model.graph, dict[str, str]()
    if PREDICTION in said:
        graph, names = _predicting_apart(graph)
    for end in (e for e in STAGE_ENDS if e in said):
        graph = _handing_on(graph, HANDS_ON[end])
    counts = {name: 1 for loop in graph.loops for name in loop.count.names() if name in ONCE}
    made = model.over(graph, {**model.sizes, **counts})
    return replace(made, names=FrozenMap({names.get(p, p): said for p, said in model.names.items()}))


def _count(unit: str) -> Monomial:
    return Monomial.of(dict(zip((ENTRY, EXIT), ONCE[:2], strict=True)).get(unit, ONCE[2]))


def _handing_on(graph: Graph, unit: str) -> Graph:
    """The graph with one more repeated unit, before all others or behind them.

    Behind them it hands on all that what follows reads of the unit before it.
    """
    before = unit == ENTRY
    first, last = graph.loops[0], graph.loops[-1]
    at = next(k for k, o in enumerate(graph.ops) if o.unit == first.unit) if before else 1 + max(
        k for k, o in enumerate(graph.ops) if o.unit in {u.unit for u in graph.loops})
    behind = graph.ops[at:]
    main = first.first if before else last.last
    others = () if before else tuple(dict.fromkeys(
        n for o in behind for n in o.inputs if unit_of(n) == last.unit and n != main
        and graph.tensors[n].kind == "activation"))
    shown = {n: f"{unit}.{n}" for n in others} | {main: f"{unit}.out"}
    slots = {n: f"{unit}.in" if n == main else f"{shown[n]}.in" for n in shown}
    shape = graph.tensors[first.slot if before else last.slot]
    tensors = dict(graph.tensors)
    for name in shown:
        like = shape if name == main else graph.tensors[name]
        tensors |= {n: replace(like, name=n) for n in (slots[name], shown[name])}
    new = tuple(Op(shown[n], "rename", (slots[n],), unit) for n in shown)
    rows = {n: Loop(unit, _count(unit), slots[n], n, shown[n]) for n in shown}
    behind = behind if before else tuple(
        replace(o, inputs=tuple(shown.get(n, n) for n in o.inputs)) for o in behind)
    loops = (rows[main], replace(first, first=shown[main]), *graph.loops[1:]) if before else (*graph.loops, rows[main])
    beside = (*graph.beside, *(row for n, row in rows.items() if n != main))
    return _ordered(Graph(FrozenMap(tensors), (*graph.ops[:at], *new, *behind), loops, beside))


def _ordered(graph: Graph) -> Graph:
    """The graph with its tensors in the order in which they are met."""
    met = dict.fromkeys(n for o in graph.ops for n in (*o.inputs, o.output))
    return replace(graph, tensors=FrozenMap({**{n: graph.tensors[n] for n in met}, **graph.tensors}))


def _predicting_apart(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph with its layers that predict as units of one instance, and the parameters that have another name there.

    What the head begins with, up to its logits, runs with the first of them, which reads its result.
    """
    units, last = predicting(graph), graph.loops[-1]
    inner, outer = dict[str, tuple[Op, ...]](), dict[str, tuple[Op, ...]]()
    for unit in (HEAD, *units):
        own = graph.of_unit(unit)
        at = next(k for k, o in enumerate(own) if o.output == f"{unit}.logits")
        inner[unit], outer[unit] = own[:at], own[at:]
    moved = {n: f"{units[0]}.{n}" for o in inner[HEAD] for n in (o.output, *o.inputs) if unit_of(n) == HEAD}
    moved |= {o.output: o.output.replace(u, on_last_stage(u), 1) for u in units for o in outer[u]}
    tensors = {moved.get(n, n): replace(t, name=moved.get(n, n), sparse=renamed(t.sparse, moved))
               for n, t in graph.tensors.items()}
    ops = [o for o in graph.ops if o.unit not in (HEAD, *units, "loss")]
    loops, beside = [*graph.loops], list[Loop]()
    main, left = last.last, {last.last: last.last}
    for unit in units:
        slots = {n: f"{unit}.in" if n == main else f"{unit}.{n}.in" for n in left}
        common = inner[HEAD] if unit == units[0] else ()
        ops += _renamed((*common, *inner[unit]), {**moved, **slots})
        rows = {n: Loop(unit, _count(unit), slots[n], left[n], f"{unit}.passed" if n == main else f"{unit}.{n}")
                for n in left}
        loops.append(rows.pop(main))
        beside += rows.values()
        made = slots[main]
        if common:
            main, made = _hidden(outer[HEAD][0], graph), moved[common[-1].output]
        ops += [Op(row.last, "rename", (row.slot,), unit) for row in rows.values()]
        ops.append(Op(loops[-1].last, "rename", (made,), unit))
        tensors |= {n: replace(graph.tensors[last.slot], name=n) for row in (loops[-1], *rows.values())
                    for n in (row.slot, row.last)}
        own_out = _hidden(outer[unit][0], graph)
        left = {main: loops[-1].last, **{n: row.last for n, row in rows.items()}, own_out: own_out}
    behind = (*outer[HEAD], *(o for u in units for o in outer[u]), *graph.of_unit("loss"))
    ops += _renamed(behind, {**moved, **left})
    parameters = {n: m for n, m in moved.items() if graph.tensors[n].kind == "parameter"}
    return _ordered(Graph(FrozenMap(tensors), tuple(ops), tuple(loops), tuple(beside))), parameters


def _hidden(logits: Op, graph: Graph) -> str:
    """What logits are made of."""
    return next(n for n in logits.inputs if graph.tensors[n].kind == "activation")


def _renamed(ops: Iterable[Op], names: Mapping[str, str]) -> tuple[Op, ...]:
    """The ops under other names: a region begins with the unit that its ops belong to."""
    return tuple(replace(o, output=names.get(o.output, o.output), inputs=tuple(names.get(n, n) for n in o.inputs),
                         region=_region(o, names.get(o.output, o.output))) for o in ops)


def _region(op: Op, output: str) -> str:
    """The region of an op whose result is called `output`."""
    before = output.removesuffix(op.output)
    return before + op.region if before != output else op.region.replace(op.unit, unit_of(output), 1)
