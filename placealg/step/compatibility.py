"""Whether a strategy fits a model: its dims and regions exist, its sizes divide, its modes agree with what is split.

A strategy is data before any model is known; what depends on the model is checked here, before a step is derived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from math import gcd, prod
from typing import Any

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.mesh import PACKED
from placealg.models.graph import Op, unit_of
from placealg.models.model import Model
from placealg.models.stage_parts import predicting
from placealg.placement import REGION, Mode
from placealg.step.pipeline import FIRST, LAST, ONE_STAGE, ORDERS, Pipeline, part_of
from placealg.step.split import ALIASES, entry_dims, split_of, splittable
from placealg.step.trainable import trained, trained_problems
from placealg.step.unsplit_groups import with_whole
from placealg.strategy.kinds import Path
from placealg.strategy.spec import GroupRule, Strategy, matches
from placealg.strategy.streams import Stream
from placealg.strategy.validation import Problem
from placealg.strategy.vocabulary import EACH, LAYER, NONE

UNEVEN = ("vocab",)
"""The dims that may be split unevenly; the size of every other dim must be divisible."""

_PER_DEVICE = Monomial.of("b")
"""A size that is one device's already, so that every axis divides it."""

Along = Mapping[str, str]
"""Axis -> the dim that is split along it; "" if none is."""


def check_fit(strategy: Strategy, model: Model) -> None:
    """Raise InputError, in one line and with the key at fault, unless `strategy` can be derived on `model`.

    >>> from placealg.models.transformer import gpt
    >>> from placealg.strategy.spec import strategy_on
    >>> check_fit(strategy_on("mine", {"tp": 8}, dims={"tp": ["head"]}), gpt())
    Traceback (most recent call last):
    placealg.errors.InputError: mine on gpt: [dims] tp names dim 'head', which gpt lacks; did you mean 'heads'?
    """
    for key, error in fit_problems(strategy, model):
        error.key = key
        raise error.at(f"{strategy.name} on {model.name}")


def check_sizes(strategy: Strategy, model: Model, sizes: Mapping[str, Fraction]) -> None:
    """Raise InputError unless every dim divides by the axes that split it, at `sizes` of axes and symbols."""
    check_length(model, sizes)
    check_packed(sizes)
    model = trained(strategy, model)
    strategy = with_whole(strategy, model)
    for _path, error in _size_problems(strategy, model, {**strategy.mesh.sizes(), **sizes}, {**model.sizes, **sizes}):
        raise error


def check_length(model: Model, sizes: Mapping[str, Fraction]) -> None:
    """Raise InputError where sequences are longer than a model's learned positions; others take any length.

    >>> from placealg.models.config import resolve_model
    >>> check_length(resolve_model("gpt2"), {"s": Fraction(4096)})
    Traceback (most recent call last):
    placealg.errors.InputError: s = 4096 exceeds s_max = 1024, the learned positions of gpt2
    """
    known: dict[str, Fraction | int] = {**model.sizes, **sizes}
    if "position" in model.graph.dims and "s" in known and "s_max" in known and known["s"] > known["s_max"]:
        raise InputError(f"s = {known['s']} exceeds s_max = {known['s_max']}, the learned positions of {model.name}")


def check_packed(sizes: Mapping[str, Fraction]) -> None:
    """Raise InputError where fewer pairs of tokens are said to be of one document than so many documents have.

    >>> check_packed({"docs": Fraction(4), "packed": Fraction(1, 8)})
    Traceback (most recent call last):
    placealg.errors.InputError: packed = 1/8: of 4 documents as long as each other the share is 1/4, and of others more
    """
    share = sizes.get(PACKED)
    for name, what in (("docs", "documents"), ("s", "tokens, each a document,")):
        if share is not None and name in sizes and share * sizes[name] < 1:
            raise InputError(f"{PACKED} = {share}: of {sizes[name]} {what} as long as each other the share is "
                             f"{1 / sizes[name]}, and of others more")


def fit_problems(strategy: Strategy, model: Model) -> Iterator[Problem]:
    """Every way in which a strategy does not fit a model, each with the path of the key at fault."""
    found = trained_problems(strategy, model)
    yield from found
    model = trained(strategy, model)
    if found:
        return
    if model.opaque and (strategy.detailed or _local_dims(strategy, ("batch",))):
        yield from _opaque_problems(strategy, model)
        return
    if not model.graph.ops:
        return
    yield from _entry_problems(strategy, model)
    strategy = with_whole(strategy, model)
    yield from _parameter_problems(strategy, model)
    yield from _size_problems(strategy, model, strategy.mesh.sizes(), model.sizes)
    yield from _mode_problems(strategy, model)
    yield from _region_problems(strategy, model)
    yield from _kept_problems(strategy, model)
    yield from _pipeline_problems(strategy, model, strategy.mesh.sizes(), model.sizes)
    dims = _dims(model)
    for dim in _local_dims(strategy, dims):
        yield ("random", "dropout"), InputError(f"[random] dropout names dim '{dim}', which {model.name} lacks",
                                                name=dim, valid=dims)


def _opaque_problems(strategy: Strategy, model: Model) -> Iterator[Problem]:
    why = f"{model.name} says nothing about the network inside, and has batch alone: say --model gpt"
    for axis, entries in strategy.dims.items():
        for at, entry in enumerate(entries):
            if entry != "batch":
                yield ("dims", axis, at), InputError(f"[dims] {axis} names '{entry}', but {why}")
    for key in (*strategy.sharded_activations, *(f"{REGION}{region}" for region in strategy.regions)):
        yield ("states", "activations", key), InputError(f"[states] activations on {key}: {why}")
    for dim in _local_dims(strategy, ("batch",)):
        yield ("random", "dropout"), InputError(f"[random] dropout names dim '{dim}', but {why}")


def _entry_problems(strategy: Strategy, model: Model) -> Iterator[Problem]:
    graph, dims, regions = model.graph, _dims(model), _regions(model)
    named = tuple(op.output for op in graph.ops)
    for axis, entries in strategy.dims.items():
        if axis == strategy.pipeline_axis:
            continue
        label = f"[dims] {axis} names"
        for at, entry in enumerate(entries):
            region, _, dim = entry.rpartition(".")
            ops = [op for op in graph.ops if not op.row.view
                   and (region in ("", op.output) or op.within(region))]
            here = ("dims", axis, at)
            if region and region not in (*regions, *named):
                last = region.rpartition(".")[2]
                meant = (last, regions) if "." not in region or last in regions else (region, named)
                yield here, InputError(f"{label} region '{region}', which {model.name} lacks", name=meant[0],
                                       valid=meant[1])
            elif dim not in (NONE, EACH) and dim not in dims:
                yield here, InputError(f"{label} dim '{dim}', which {model.name} lacks", name=dim, valid=dims)
            elif dim == EACH:
                ends = {graph.ops[-1].output: "the loss of the step", **{
                    loop.last: f"what leaves unit '{loop.unit}'" for loop in graph.handed}}
                if end := next((ends[op.output] for op in ops if op.output in ends), ""):
                    yield here, InputError(f"{label} '{entry}', but {end} is one: say {region}.{NONE}, or name a "
                                           "smaller region")
            elif not any(splittable(op, d) for op in ops for d in entry_dims(entry, op, graph.iteration_dims(op))):
                place = region or model.name
                fits = {d: None for op in ops for d in graph.iteration_dims(op) if splittable(op, d)}
                yield here, InputError(f"{label} '{entry}', but no op of {place} can be split along {dim}",
                                       valid=[f"{region}.{d}".strip(".") for d in fits])
        if entries and not any(split_of(entries, op, graph) not in ("", NONE) for op in graph.ops if not op.row.view):
            yield ("dims", axis), InputError(f"[dims] {axis} splits no op of {model.name}: name a dim, or say []",
                                             valid=dims)


def _parameter_problems(strategy: Strategy, model: Model) -> Iterator[Problem]:
    """The parameters that ops split differently, although a parameter rests in one layout."""
    for name, uses in _uses(strategy, model).items():
        (first, before), *others = uses
        for op, along in others:
            for axis, dim in along.items():
                if dim != before[axis]:
                    places = [o.region.rpartition(".")[2] for o in (first, op)]
                    said = [f"splits it along {d}" if d else "uses it whole" for d in (dim, before[axis])]
                    yield ("dims", axis), InputError(
                        f"[dims] {axis}: op '{op.output}' {said[0]}, op '{first.output}' {said[1]}, and parameter "
                        f"'{name}' rests in one layout; what fits: '{dim or before[axis]}' for both, or "
                        + " and ".join(f"'{place}.none'" for place in places))


def bound_sizes(strategy: Strategy, model: Model) -> dict[str, tuple[str, Fraction]]:
    """Symbol or axis -> (who gives it a number, the number)."""
    model = trained(strategy, model)
    sizes: dict[str, int] = dict(model.sizes)
    if not model.abstract and {n for p in model.parameters for n in p.elements.names()} <= set(sizes):
        units = [sum((p.elements.evaluate(model.sizes) for p in model.of_unit(u.name)), Fraction(0))
                 for u in model.units]
        sizes |= {"Psi": model.total(), "Psi_unit": int(max(units))}
    said = {n: Fraction(v) for n, v in strategy.tables.get("types", {}).items()}
    microbatches = strategy.option("schedule", "microbatches")
    if microbatches != "m":
        said["m"] = Fraction(microbatches)
    said |= {n: Fraction(v) for n, v in strategy.mesh.sizes().items()}
    return {n: (model.name, Fraction(v)) for n, v in sizes.items()} | {n: ("the strategy", v) for n, v in said.items()}


def quotients(strategy: Strategy, model: Model) -> tuple[Monomial, ...]:
    """The quotients that are positive integers if strategy and model fit: of every dim, and of its part on each axis.

    >>> from placealg.models.transformer import moe
    >>> from placealg.strategy.spec import strategy_on
    >>> quotients(strategy_on("mine", {"tp": None}, dims={"tp": ["heads"]}), moe())
    (a/kv, h/a, kv/tp)
    """
    model = trained(strategy, model)
    strategy = with_whole(strategy, model)
    found = {size: None for size in model.graph.dims.values()}
    found |= {model.graph.dims[dim] / Monomial.of(*axes): None for dim, axes in _divided(strategy, model)}
    return tuple(size for size in found if any(power < 0 for _, power in size.powers))


def orders(model: Model) -> tuple[tuple[Monomial, Monomial], ...]:
    """Pairs of sizes of which the first never exceeds the second: choices and experts, one unit and the model.

    >>> from placealg.models.transformer import moe
    >>> orders(moe())
    ((topk, experts),)
    """
    routes = [op.over for op in model.graph.ops if op.kind == "route"]
    units = [(Monomial.of("Psi_unit"), Monomial.of("Psi"))] if model.abstract else []
    return (*((model.graph.dims[choice], model.graph.dims[over]) for over, choice in dict.fromkeys(routes)), *units)


def _divided(strategy: Strategy, model: Model) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every dim whose size must be divisible, with the axes that split it together in some op."""
    found: dict[tuple[str, tuple[str, ...]], None] = {}
    for op in model.graph.ops:
        along = _along(strategy, model, op)
        found |= {(dim, tuple(a for a in along if along[a] == dim)): None for dim in along.values() if dim}
    return ((dim, axes) for dim, axes in found if dim not in UNEVEN and model.graph.dims[dim] != _PER_DEVICE)


def _size_problems(strategy: Strategy, model: Model, axes: Mapping[str, int | Fraction],
                   sizes: Mapping[str, int | Fraction]) -> Iterator[Problem]:
    for dim, splitting in _divided(strategy, model):
        size, bound = model.graph.dims[dim], {a: int(axes[a]) for a in splitting if a in axes}
        if not bound or not set(size.names()) <= set(sizes):
            continue
        whole, parts = size.evaluate(sizes), prod(bound.values())
        if (whole / parts).denominator == 1:
            continue
        told = " x ".join(f"{a} = {n}" for a, n in bound.items())
        yield ("mesh", next(reversed(bound))), InputError(
            f"{told} does not divide {dim} = {whole} of {model.name}" + _what_divides(model, dim, whole, bound,
                                                                                            sizes))


def _what_divides(model: Model, dim: str, whole: Fraction, bound: Mapping[str, int],
                  sizes: Mapping[str, int | Fraction]) -> str:
    """What would fit: a common divisor, and, for fewer kv heads than ranks, the axis refined into two."""
    common = gcd(int(whole), prod(bound.values())) if whole.denominator == 1 else 1
    group = model.graph.dims.get("group", Monomial())
    if dim == "kv" and common > 1 and len(bound) == 1 and set(group.names()) <= set(sizes):
        (axis, size), = bound.items()
        if (group.evaluate(sizes) / (size // common)).denominator == 1:
            return (f"; heads are split along kv first, so {axis} is refined into two axes: {axis}1 = {common} splits "
                    f"\"heads\", {axis}2 = {size // common} \"group\" in its place")
    return f"; {common} would divide it" if common > 1 else ""


def _mode_problems(strategy: Strategy, model: Model) -> Iterator[Problem]:
    resting = {name: uses[0][1] for name, uses in _uses(strategy, model).items()}
    said: list[tuple[Path, GroupRule | None]] = [(("states",), None)]
    said += [(("groups", rule.name), rule) for rule in strategy.groups]
    for path, rule in said:
        own = [along for name, along in resting.items() if rule is None or rule.matches(name)]
        of_group = f" that {rule.match} matches" if rule else ""
        for state, placement in (rule.states if rule else strategy.states).items():
            for axis, mode in placement.modes.items() if state != "activations" else ():
                split = sorted({along[axis] for along in own} - {""})
                label = f"[{'.'.join(map(str, path))}] {state} on {axis}"
                if state == "parameters" and mode is Mode.S:
                    if own and not split:
                        yield (*path, state, axis), InputError(
                            f"{label}: S says that the computation is sharded the same way, but no dim of {axis} "
                            f"splits a parameter{of_group}; say S* to gather them for use")
                elif own and all(along[axis] for along in own):
                    yield (*path, state, axis), InputError(
                        f"{label} is {mode}, but {', '.join(split)} of every parameter{of_group} is split over {axis}, "
                        "so S holds there; leave it out")


def _region_problems(strategy: Strategy, model: Model) -> Iterator[Problem]:
    regions = _regions(model)
    for region in strategy.regions:
        path = ("states", "activations", f"{REGION}{region}")
        if region not in regions:
            yield path, InputError(f"[states] activations names region '{region}', which {model.name} lacks",
                                   name=region, valid=regions)
    for region in (r for r in strategy.recomputed if r == "loss" and "loss" in regions):
        yield ("states", "activations", f"{REGION}{region}"), InputError(
            "[states] activations: region 'loss' is the sum of the loss alone, of which backward reads nothing: leave "
            "it out")
    for at, inner in enumerate(strategy.recomputed):
        for outer in strategy.recomputed[:at]:
            if any(op.within(inner) and op.within(outer) for op in model.graph.ops):
                yield ("states", "activations", f"{REGION}{inner}"), InputError(
                    f"[states] activations: regions '{outer}' and '{inner}' have ops in common, and both are M; "
                    "recompute one of them")


def kept_ops(strategy: Strategy, model: Model) -> frozenset[str]:
    """The ops of recomputed regions whose results are held all the same, by [schedule] keep, or recompute."""
    keep, again = (strategy.option("schedule", key) for key in ("keep", "recompute"))
    if not keep and not again:
        return frozenset()
    return frozenset(op.output for op in _recomputed(strategy, model) if any(matches(p, op.output) for p in keep)
                     or (again and not any(matches(p, op.output) for p in again)))


def _recomputed(strategy: Strategy, model: Model) -> tuple[Op, ...]:
    return tuple(op for op in model.graph.ops if any(op.within(region) for region in strategy.recomputed))


def _kept_problems(strategy: Strategy, model: Model) -> Iterator[Problem]:
    """The patterns of ops to be kept, or recomputed, that name no op of a recomputed region."""
    ops = [op.output for op in _recomputed(strategy, model)]
    for key in ("keep", "recompute"):
        for pattern in strategy.option("schedule", key):
            if not any(matches(pattern, name) for name in ops):
                yield ("schedule", key), InputError(
                    f"[schedule] {key} = '{pattern}' matches no op of a region that is M", name=pattern, valid=ops)


def _pipeline_problems(strategy: Strategy, model: Model, axes: Mapping[str, int | Fraction],
                       sizes: Mapping[str, int | Fraction]) -> Iterator[Problem]:
    """A pipeline needs repeated units that follow one another, no fewer layers than stages, and a size for stages."""
    axis, graph, pipeline = strategy.pipeline_axis, model.graph, pipeline_of(strategy, model)
    if not axis:
        return
    units = [u for u in graph.units if part_of(u, graph) not in (FIRST, LAST)]
    between = graph.units[graph.units.index(units[0]):graph.units.index(units[-1]) + 1] if units else ()
    if not units:
        yield ("dims", axis), InputError(f"[dims] {axis} names dim '{LAYER}', but {model.name} has no repeated unit")
    for unit in (u for u in between if u not in units):
        yield ("dims", axis), InputError(f"[dims] {axis} names dim '{LAYER}', but unit '{unit}' of {model.name} stands "
                                         "between repeated units; a pipeline runs what stands before and behind them")
    for before, loop in pairwise(graph.loops):
        if loop.first != before.last:
            yield ("dims", axis), InputError(
                f"[dims] {axis} names dim '{LAYER}', but unit '{loop.unit}' of {model.name} begins with "
                f"'{loop.first}'; a stage is handed only what leaves the layer before it")
    for parameter in graph.parameters:
        parts = [part_of(site, graph) for site in graph.sites(parameter.name)]
        shared = [p for p in parts if p not in (FIRST, LAST) and not graph.single(p)]
        if pipeline.folded and not shared and {FIRST, LAST} <= set(parts):
            yield ("schedule", "pipeline"), InputError(
                f"[schedule] pipeline = \"{pipeline.order}\" begins and ends the model on one stage, in two chunks: "
                f"parameter '{parameter.name}' of {model.name} is used in both, and other microbatches would add to "
                "its gradient in between; take a model whose head has a weight of its own")
        if shared and len(set(parts)) > 1:
            yield ("dims", axis), InputError(
                f"[dims] {axis} names dim '{LAYER}', but parameter '{parameter.name}' of {model.name} is used in "
                f"every instance of unit '{shared[0]}', which run on all stages, and elsewhere")
    for op in graph.ops:
        for name in op.inputs:
            apart = {part_of(op.unit, graph), part_of(unit_of(name), graph)}
            if graph.tensors[name].kind == "activation" and apart == {FIRST, LAST}:
                yield ("dims", axis), InputError(
                    f"[dims] {axis} names dim '{LAYER}', but op '{op.output}' of {model.name} reads '{name}' of the "
                    "first stage; a stage is handed only what leaves the layer before it")
    if pipeline.actions:
        try:
            _check_actions(pipeline, axes.get(axis), strategy.option("schedule", "microbatches"))
        except InputError as error:
            yield ("schedule", "actions"), error
            return
    counts = [loop.count for loop in graph.loops]
    ranks = int(axes[axis]) if axis in axes else len(pipeline.stages) // (pipeline.chunks or len(pipeline.stages) or 1)
    if ranks:
        try:
            pipeline.check_ends(ranks)
            if all(set(count.names()) <= set(sizes) for count in counts):
                pipeline.dealt(ranks).layers(int(sum(count.evaluate(sizes) for count in counts)), ranks)
        except InputError as error:
            yield ("schedule", "stages") if pipeline.stages else ("mesh", axis), error
    microbatches = strategy.option("schedule", "microbatches")
    grouped = pipeline.grouped and axis in axes and isinstance(microbatches, int)
    if grouped and microbatches % int(axes[axis]):
        yield ("schedule", "microbatches"), InputError(
            f"[schedule] microbatches = {microbatches}: the {pipeline.order} order takes them in groups of {axis} = "
            f"{axes[axis]}")


def _check_actions(pipeline: Pipeline, ranks: int | Fraction | None, microbatches: Any) -> None:
    """Raise an InputError if an order that is written down is for other sizes, or chunks are dealt otherwise."""
    table = pipeline.table
    said = {"ranks": (table.ranks, ranks), "microbatches": (table.microbatches, microbatches),
            "chunks": (table.chunks, pipeline.chunks)}
    for what, (has, told) in said.items():
        if has != told:
            raise InputError(f"[schedule] actions are of {has} {what}, and the strategy has {told}")
    fits = [order for order in ORDERS if (Pipeline(pipeline.axis, order).folded is table.folded) and
            (not table.splits or Pipeline(pipeline.axis, order).splits)]
    if pipeline.order not in fits:
        raise InputError(f"[schedule] actions are no order of the kind of {pipeline.order}; pipeline says how chunks "
                         f"are dealt and whether backwards have two parts: {', '.join(fits)}")


def pipeline_of(strategy: Strategy, model: Model) -> Pipeline:
    """The schedule of the strategy's pipeline axis on a model as it trains it; one stage if it has none."""
    if not strategy.pipeline_axis:
        return ONE_STAGE
    chunks = strategy.option("schedule", "chunks")
    found = Pipeline(strategy.pipeline_axis, strategy.option("schedule", "pipeline"), None if chunks == "v" else chunks,
                     strategy.option("schedule", "stages"), strategy.stages_alone,
                     max(1, len([u for u in predicting(model.graph) if model.graph.single(u)])),
                     strategy.option("schedule", "actions"), str(strategy.option("overlap", "messages")))
    return found.dealt(strategy.mesh.sizes().get(found.axis))


def _along(strategy: Strategy, model: Model, op: Op) -> dict[str, str]:
    """The dim along which each axis splits an op; a renaming itself splits nothing."""
    if op.row.view:
        return dict.fromkeys(strategy.mesh.names, "")
    split = {a: split_of(strategy.dims.get(a, ()), op, model.graph) for a in strategy.mesh.names}
    return {a: "" if dim == NONE else dim for a, dim in split.items()}


def _uses(strategy: Strategy, model: Model) -> Mapping[str, list[tuple[Op, Along]]]:
    """Parameter -> the ops that use it, each with the parameter's dim that it splits along each axis."""
    found: dict[str, list[tuple[Op, Along]]] = {}
    for parameter in model.graph.parameters:
        for op in model.graph.consumers(parameter.name):
            along = {a: d if d in parameter.dims else "" for a, d in _along(strategy, model, op).items()}
            found.setdefault(parameter.name, []).append((op, along))
    return found


def _dims(model: Model) -> tuple[str, ...]:
    """The dims that an entry may name on a model."""
    found = {d: None for op in model.graph.ops for d in model.graph.iteration_dims(op)}
    return tuple({**found, **{alias: None for alias, dims in ALIASES.items() if set(dims) & set(found)}})


def _regions(model: Model) -> tuple[str, ...]:
    """The regions that an entry may name on a model: the components of its regions' names."""
    return tuple({part: None for region in model.graph.regions for part in region.split(".")})


def _local_dims(strategy: Strategy, known: tuple[str, ...]) -> tuple[str, ...]:
    """The dims of [random] dropout = ["local(DIM)"] that are not in `known`."""
    streams = map(Stream.parse, strategy.option("random", "dropout"))
    return tuple(stream.dim for stream in streams if stream.dim and stream.dim not in known)
