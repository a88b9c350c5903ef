"""Derivation: a strategy and a model become a Step, by the rules of `rules.py` and `operations.py` and nothing else.

A model with an op graph is derived op by op; in a model without one, every unit is one computation on the rank's
tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from placealg.arith import ONE, Monomial
from placealg.errors import InputError, need
from placealg.frozen import FrozenMap
from placealg.models.backward import terms
from placealg.models.graph import SAMPLES, Graph
from placealg.models.model import Model
from placealg.models.names import parameters_of
from placealg.models.tokens import weights_of_loss
from placealg.step import rules
from placealg.step.compatibility import check_fit, kept_ops, pipeline_of
from placealg.step.event import COUNTS_OF_SAMPLES, MICROBATCH, SAMPLES_HERE, SAMPLES_IN_ALL, Phase
from placealg.step.extra_losses import of_terms, with_statistics
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.groups import LEAF, Plan, group_parameters, leaf_of
from placealg.step.operations import Operations
from placealg.step.overlap import held_ahead, overlapped
from placealg.step.program import Event, LoopUnit, Reference, Rule, Step
from placealg.step.rules import Averaging, Living
from placealg.step.saving import PARAMETERS, Saving
from placealg.step.split import data_axes, place, split_dims, summed
from placealg.step.trainable import layers_chosen, trained
from placealg.step.unsplit_groups import with_whole
from placealg.step.verbs import LOSS_SCALE
from placealg.strategy.options import DEFAULTS, TYPES
from placealg.strategy.spec import Strategy
from placealg.strategy.streams import Stream
from placealg.strategy.validation import check
from placealg.strategy.vocabulary import AS_SENT, AS_TYPED, LIFETIMES


def derive(strategy: Strategy, model: Model) -> Step:
    """The step program of `strategy` on `model`, with the reference against which it is checked.

    The number of events does not depend on layers, microbatches or devices.
    """
    need(strategy, Strategy, "strategy: pa.parse_strategy reads an expression")
    need(model, Model, "model: pa.read_model reads a name")
    check(strategy)
    check_fit(strategy, model)
    model = trained(strategy, model)
    strategy = with_whole(strategy, model)
    operations = operations_of(strategy, model)
    plans = _plans(strategy, model, operations)
    reference = reference_of(strategy, model, plans, operations)
    step = Step(reference, _numbered(_events(strategy, model, plans, operations, reference.data_axes)))
    return overlapped(step, strategy) if {"overlap", "buffers"} & {*strategy.tables} else step


def operations_of(strategy: Strategy, model: Model) -> Operations | None:
    """The model's graph placed by the strategy's lists of dims; None if units run whole."""
    if model.opaque:
        return None
    lists = {axis: strategy.dims.get(axis, ()) for axis in strategy.mesh.names}
    placed = place(model.graph, lists, strategy.option("schedule", "sharing") == "shared")
    placed = replace(placed, kept=kept_ops(strategy, model))
    _, unit = layers_chosen(strategy)
    return Operations.of(placed, strategy.sharded_activations, strategy.recomputed,
                         strategy.option("schedule", "replay"), strategy.rings,
                         pipeline_of(strategy, model).splits,
                         unit if model.graph.loop(unit) else "", bool(strategy.option("schedule", "recompute_layers")),
                         strategy.offloaded, str(strategy.option("activations", "tier")),
                         bool(strategy.option("schedule", "offload_layers")))


def resting(strategy: Strategy, model: Model, value: str = "weight") -> dict[str, tuple[tuple[str, ...], str]]:
    """Group -> (the axes over which its parameters rest sharded, the tier), as the strategy says, not the program.

    With value = "average" the same of the average of its weights, of the groups that have one.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.strategy.expression import parse_strategy
    >>> resting(parse_strategy("zero3"), abstract())
    {'layer.weight': (('dp',), 'device')}
    """
    model = trained(strategy, model)
    strategy = with_whole(strategy, model)
    plans = _plans(strategy, model, operations_of(strategy, model))
    if value == "average":
        return {plan.group.name: plan.average_rests for plan in plans if plan.averaged != "none"}
    return {plan.group.name: (plan.gathered, plan.weight_tier) for plan in plans}


def groups_by_name(strategy: Strategy, model: Model) -> FrozenMap[str, str]:
    """Name in a checkpoint, or in the module that it is loaded into -> the strategy's group of its parameter.

    >>> from placealg.models.config import from_config
    >>> from placealg.strategy.expression import parse_strategy
    >>> groups_by_name(parse_strategy("zero3"), from_config("llama-3-8b"))["model.layers.7.mlp.up_proj.weight"]
    'layer.weight'
    """
    model_here = trained(strategy, model)
    plans = _plans(strategy, model_here, operations_of(strategy, model_here))
    group_of = {p: plan.group.name for plan in plans for p in plan.group.parameters}
    return FrozenMap({name: group_of[found.parameters[0]] for name, found in parameters_of(model).items()
                      if found.parameters})


def _plans(strategy: Strategy, model: Model, operations: Operations | None) -> tuple[Plan, ...]:
    if operations is None:
        plans = group_parameters(strategy, model)
    else:
        plans = group_parameters(strategy, model, summed(operations.placed), split_dims(operations.placed))
    reduced = {a: None for plan in plans if not plan.group.frozen for a in plan.summed}
    for axis in {a: None for plan in plans for a in plan.wires}:
        if axis not in reduced:
            raise InputError(f"{strategy.name} on {model.name}: wire of {axis}: no gradient is reduced over {axis}",
                             valid=tuple(reduced))
    return plans


def reference_of(strategy: Strategy, model: Model, plans: tuple[Plan, ...],
                 operations: Operations | None = None) -> Reference:
    """What the single device does: read off strategy and model, never off the program."""
    if model.statistics and len(model.losses) > 1:
        raise InputError(f"model '{model.name}' has several losses and running statistics: it is not said of whose "
                         "tokens")
    means = any(s.merge == "mean" for s in model.statistics.values())
    if means and strategy.loss()["divisor"] == "one":
        raise InputError(f"model '{model.name}' has running statistics, which are means: a loss that is a sum divides "
                         "by nothing")
    for p in model.parameters:
        if p.name in model.statistics and len(p.sites) > 1:
            raise InputError(f"statistic '{p.name}' of model '{model.name}' is used by {', '.join(p.sites)}: it is not "
                             "said of what enters which")
    untold = any(not s.of for s in model.statistics.values())
    further = not {*model.losses[1:]} <= {*model.graph.units}
    for told, said in (("several losses", further), ("running statistics", untold)):
        if operations and said:
            raise InputError(f"model '{model.name}' has {told} and runs op by op: of these its op graph says nothing")
    placed = operations.placed if operations else None
    data = data_axes(placed) if placed else strategy.data_axes
    divisor, counted = strategy.loss_of_terms(data)
    if terms(model.graph) and strategy.pipeline_axis and MICROBATCH not in counted and divisor == "count":
        raise InputError(f"{strategy.name} on {model.name}: [loss] count_axes counts each microbatch by itself, and in "
                         f"a pipeline '{terms(model.graph)[0].output}' starts its backward when another one is "
                         "counted: count over microbatch, too")
    loss = strategy.loss(data)
    microbatches = strategy.option("schedule", "microbatches")
    return Reference(
        strategy=strategy.name,
        model=model.name,
        mesh=strategy.mesh,
        data_axes=data,
        units=tuple(LoopUnit(u.name, u.count) for u in model.units),
        groups=tuple(p.group for p in plans),
        weighting=str(loss["reference"]),
        clip=strategy.option("optimizer", "clip") == "global_norm",
        skip=strategy.option("optimizer", "skip") == "overflow",
        scaled=strategy.option("loss", "scale") == "dynamic",
        microbatches=microbatches if isinstance(microbatches, int) else None,
        hypotheses=tuple(loss["assume"]),
        random_keys=tuple(map(Stream.parse, strategy.option("random", "dropout"))),
        types=strategy_types(strategy),
        sizes=model.sizes,
        prefetch=max(int(strategy.option("schedule", "prefetch")), held_ahead(strategy)),
        abstract=model.abstract,
        graph=model.graph if placed else Graph(),
        split_dims=split_dims(placed) if placed else FrozenMap(),
        dims=strategy.dims,
        pipeline=pipeline_of(strategy, model),
        left_out=model.left_out,
        pad=str(strategy.option("shards", "pad")),
        losses=model.losses,
        sums="" if (least := strategy.option("schedule", "sums")) == AS_TYPED else str(least),
        adds="" if (adding := strategy.option("schedule", "adds")) == AS_SENT else str(adding),
        algorithm=str(strategy.option("schedule", "algorithm")),
    )


def strategy_types(strategy: Strategy) -> FrozenMap[str, str]:
    """Bytes per element by symbol: the strategy's, else the default; a symbol with neither is left out."""
    said = strategy.tables.get("types", FrozenMap())
    return FrozenMap({s: strategy.option("types", s) for s in TYPES if s in DEFAULTS["types"] or s in said})


def averaging_of(strategy: Strategy, data: tuple[str, ...]) -> Averaging:
    """The loss's divisor, and the axes that it covers; `data` are the axes that split the tokens."""
    loss = strategy.loss(data)
    counted = tuple(loss["count_axes"] or ())
    for axis in counted:
        if axis != MICROBATCH and axis not in strategy.mesh.names:
            raise InputError(f"[loss] count_axes names axis '{axis}', which the mesh lacks", name=axis,
                             valid=(*strategy.mesh.names, MICROBATCH))
    return Averaging(str(loss["divisor"]), counted, data, by_samples=_by_samples(strategy))


def _by_samples(strategy: Strategy) -> bool:
    return bool(strategy.option("schedule", "microbatch_mean") == SAMPLES_HERE)


def averaging_of_terms(strategy: Strategy, model: Model, data: tuple[str, ...]) -> Averaging | None:
    """The divisor of further terms of the loss, and the axes that it covers; None where there are no such terms."""
    if not terms(model.graph):
        return None
    divisor, counted = strategy.loss_of_terms(data)
    return Averaging(divisor, counted, data, by_samples=_by_samples(strategy))


def _seed_of_terms(strategy: Strategy, averaging: Averaging, own: Averaging) -> Monomial:
    """What a further term's backward starts from one over: its divisor, and what its mean differs in from the loss's.

    Gradients are reduced for the loss: summed along the axes that its divisor covers, and averaged along the others.
    """
    by = own.by * own.mean_of_microbatches
    for axis in own.data:
        by = by * Monomial.of(axis) ** ((axis in averaging.counted) - (axis in own.counted))
    if strategy.option("loss", "scale") == "dynamic":
        by = by / Monomial.of(LOSS_SCALE)
    later = strategy.option("schedule", "microbatch_mean") == "gradients" and MICROBATCH not in averaging.counted
    return by / Monomial.of("m") if later else by


def _numbered(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events, with those of equal paths numbered as copies."""
    seen: Counter[str] = Counter()
    numbered = []
    for event in events:
        seen[event.path] += 1
        copy = seen[event.path]
        numbered.append(event if event.copy == copy else replace(event, copy=copy))
    return tuple(numbered)


def _events(strategy: Strategy, model: Model, plans: tuple[Plan, ...], operations: Operations | None,
            data: tuple[str, ...]) -> Iterator[Event]:
    averaging, scaled = averaging_of(strategy, data), strategy.option("loss", "scale") == "dynamic"
    for plan in plans:
        yield from rules.initialise(plan)
    yield from rules.global_states("init", "assign", scaled)

    for plan in plans:
        yield from rules.clear_gradients(plan) if not plan.group.frozen else ()
        yield from rules.gather(plan, "prepare", _living(strategy, plan, "step"))
    own = averaging_of_terms(strategy, model, data)
    counts = dict(_counts(model, averaging, own, operations, strategy.batch_axes))
    for counter, axes in counts.items():
        yield from _count(axes, "prepare", counter, model.graph) if MICROBATCH in axes else ()

    yield from _forward(strategy, model, plans, operations, averaging)
    for counter, axes in counts.items():
        yield from _count(axes, "forward", counter, model.graph) if MICROBATCH not in axes else ()
    for plan in plans:
        yield from rules.take_statistic(plan, averaging) if plan.group.statistic and not plan.group.taken else ()
    yield from operations.passes["loss"].forward if operations else ()
    separate = model.losses[:1] if operations else model.losses
    for loss in separate:
        by = averaging.by
        yield Event("forward", "compute", "loss", unit=loss, divisor=by,
                    reads=operations.reads(model.graph.ops[-1]) if operations else (), rule=Rule(
                        "loss", "the loss is the sum over the rank's own tokens" + (
                            "" if by == ONE else f", divided by {averaging.divisor}")))
    of_loss = MICROBATCH not in averaging.counted and strategy.option("schedule", "microbatch_mean") != "gradients"
    for loss in separate if of_loss else ():
        yield Event("backward", "scale", "loss", unit=loss, divisor=averaging.mean_of_microbatches, rule=Rule(
            "loss", "the step's loss is the mean over microbatches" + (
                ", each by its share of the samples" if averaging.by_samples else "")))
    yield from (rules.scale_loss(loss) for loss in separate) if scaled else ()
    yield from operations.passes["loss"].backward if operations else ()
    seed = _seed_of_terms(strategy, averaging, own) if own else ONE
    yield from _backward(strategy, model, plans, averaging, operations, seed)

    for plan in plans:
        yield from rules.free(plan, "reduce", _living(strategy, plan, "step"))
        if not plan.group.frozen:
            if not of_loss and MICROBATCH not in averaging.counted and not plan.group.statistic:
                yield from rules.mean_of_microbatches(plan)
            yield from rules.average_shares(plan, averaging)
            yield from rules.reduce_once(plan, averaging)

    updated = tuple(p for p in plans if not p.group.frozen)
    counted = tuple(p for p in updated if not p.group.statistic)
    yield from map(rules.unscale, counted) if scaled else ()
    if strategy.option("optimizer", "skip") == "overflow":
        for plan in counted:
            yield from rules.flag_overflow(plan)
        yield from rules.agree_to_skip(counted, strategy.mesh.names, strategy.pipeline_axis)
    if strategy.option("optimizer", "clip") == "global_norm":
        over = rules.norm_axes(counted, strategy.mesh.names, strategy.option("optimizer", "norm"))
        for plan in counted:
            yield from rules.partial_norm(plan, over)
        yield from rules.total_norm(over)
        for plan in counted:
            yield from rules.clip(plan)
    passing = [p for p in updated if p.state_tier != p.update_tier]
    for plan in updated:
        yield from rules.update(plan)
        yield from rules.publish(plan) if plan in passing else ()
    yield from rules.global_states("update", "update", scaled)
    for plan in updated:
        yield from rules.publish(plan) if plan not in passing else ()

    saving = Saving(str(strategy.option("checkpoint", "by")), str(strategy.option("checkpoint", "holds")))
    for plan in plans:
        yield from saving.save(plan)
    yield from saving.global_states("save", strategy.mesh.names, scaled)
    for plan in plans if saving.holds != PARAMETERS else ():
        yield from saving.resume(plan)
    yield from saving.global_states("resume", strategy.mesh.names, scaled)


def _counts(model: Model, averaging: Averaging, own: Averaging | None, operations: Operations | None,
            rows: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The counters of a program, each with the axes over which it counts, and perhaps microbatches.

    Terms of the loss share its count, but for those that are losses of their own. Samples are split along `rows`, the
    axes that split the batch.
    """
    first, *later = model.losses
    shared = own if own and (not operations or len(terms(model.graph)) > len(later)) else None
    for loss in model.losses:
        asked = (averaging, shared) if loss == first else (own,) if operations else (averaging,)
        yield from ((loss, a.counted) for a in [a for a in asked if a and a.divisor == "count"][:1])
    if averaging.by_samples and operations:
        yield from ((SAMPLES_IN_ALL, (*rows, MICROBATCH)), (SAMPLES_HERE, rows))


def _count(counted: tuple[str, ...], phase: Phase, counter: str, graph: Graph) -> Iterator[Event]:
    axes, samples = tuple(a for a in counted if a != MICROBATCH), counter in COUNTS_OF_SAMPLES
    of = SAMPLES if samples else weights_of_loss(counter)
    yield Event(phase, "compute", "count", unit=counter, reads=(of,) if of in graph.tensors else (), rule=Rule(
        "loss", "a microbatch counts by its share of the samples, which are counted" if samples else
        "the loss is divided by a token count" + (", which the ranks must agree on" if axes else
                                                  "; no axis is counted over, so that it is the rank's own")))
    if axes:
        what = "samples are those of all ranks" if samples else "the divisor counts the tokens of all ranks"
        yield Event(phase, "all_reduce", "count", unit=counter, axes=axes, op="sum", source="P", to="I", bytes="4",
                    rule=Rule("loss", f"{what} along its axes"))


def _living(strategy: Strategy, plan: Plan, lifetime: str) -> Living:
    """The part of `plan` that is on a device for one `lifetime`: the axes gathered for it, and whether it is fetched.

    A tied group lives for a microbatch. In a pipeline the microbatches of a stage overlap: a copy that outlives its
    forward lives for the step. What is fetched lives as long as any copy that is gathered from it.
    """
    lives = {a: plan.lifetimes[a] for a in plan.gathered}
    shortest = LEAF if LEAF in lives.values() else "use"
    if len(plan.group.sites) > 1:
        shortest = "step" if strategy.pipeline_axis else "microbatch"
    elif strategy.pipeline_axis:
        lives = {a: "step" if life == "microbatch" else life for a, life in lives.items()}
    lives = {a: max(life, shortest, key=LIFETIMES.index) for a, life in lives.items()}
    longest = max((*lives.values(), shortest), key=LIFETIMES.index)
    return Living(lifetime, tuple(a for a in plan.gathered if lives[a] == lifetime),
                  plan.weight_tier != "device" and longest == lifetime)


def _forward(strategy: Strategy, model: Model, plans: tuple[Plan, ...],
             operations: Operations | None, averaging: Averaging) -> Iterator[Event]:
    short = ("use",) if operations else ("use", LEAF)       # a unit that runs whole is one leaf
    for unit in model.units:
        if operations:
            yield from operations.entering(unit.name)
        starting = [p for p in plans if p.group.sites[0] == unit.name]
        for plan in starting:
            for lifetime in ("microbatch", *short):
                yield from rules.gather(plan, "forward", _living(strategy, plan, lifetime))
        if operations:
            events = with_statistics(operations.passes[unit.name].forward, starting, averaging)
            yield from _leaf_by_leaf(strategy, starting, model, "forward", events)
        else:
            yield Event("forward", "compute", "activation", unit=unit.name, rule=Rule(
                "compute", "the unit runs on the rank's tokens of the microbatch"))
        for plan in starting:
            for lifetime in short:
                yield from rules.free(plan, "forward", _living(strategy, plan, lifetime))


def _leaf_by_leaf(strategy: Strategy, plans: Iterable[Plan], model: Model, phase: Phase,
                  events: Iterable[Event]) -> Iterator[Event]:
    """The events of a unit, what lives for a leaf module gathered before its first op and freed behind its last.

    A leaf's parameters are gathered together. Where no op of the phase is one of the leaf's, it is not gathered.
    """
    stream = list(events)
    before: dict[int, list[Event]] = {}
    behind: dict[int, list[Event]] = {}
    for plan in plans:
        living = _living(strategy, plan, LEAF)
        leaf = leaf_of(plan.group.parameters[0])
        at = [k for k, e in enumerate(stream) if e.verb == "compute" and (op := model.graph.producer(e.tensor))
              and any(model.graph.tensors[name].kind == "parameter" and leaf_of(name) == leaf for name in op.inputs)]
        if at:
            before.setdefault(at[0], []).extend(rules.gather(plan, phase, living))
            behind.setdefault(at[-1], []).extend(rules.free(plan, phase, living))
    for k, event in enumerate(stream):
        yield from before.get(k, ())
        yield event
        yield from behind.get(k, ())


def _backward(strategy: Strategy, model: Model, plans: tuple[Plan, ...], averaging: Averaging,
              operations: Operations | None, seed: Monomial) -> Iterator[Event]:
    short = ("use",) if operations else ("use", LEAF)
    apart = operations is not None and operations.apart
    for unit in reversed(model.units):
        ending = [p for p in plans if p.group.sites[0] == unit.name]
        used = operations is None or operations.differentiates(unit.name)
        for plan in ending if used else ():
            for lifetime in short:
                yield from rules.gather(plan, "backward", _living(strategy, plan, lifetime))
        if operations:
            events = of_terms(operations.passes[unit.name].backward, model, seed)
            yield from _leaf_by_leaf(strategy, ending, model, "backward", events)
        else:
            yield Event("backward", "compute", "activation", unit=unit.name, rule=Rule(
                "compute", "the unit's gradients, from what its forward kept"))
        for plan in ending:
            for lifetime in (*short, "microbatch") if used else ("microbatch",):
                yield from rules.free(plan, "backward", _living(strategy, plan, lifetime))
        for plan in ending:
            if not plan.group.frozen and not plan.group.taken and not apart:
                yield from rules.reduce_microbatch(plan, averaging)
        if operations:
            yield from operations.leaving(unit.name)
    for unit in reversed(model.units) if apart else ():
        yield from operations.passes[unit.name].weights if operations else ()
        for plan in (p for p in plans if p.group.sites[0] == unit.name and not p.group.frozen and not p.group.taken):
            yield from rules.reduce_microbatch(plan, averaging, WEIGHTS)
