"""Events that have no meaning: bad input, in one line. Whether a meaningful event is right is not checked here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from placealg.arith import ONE
from placealg.errors import InputError
from placealg.models.backward import GRAD, needs_gradient, terms
from placealg.models.graph import Graph, unit_of
from placealg.placement import REDISTRIBUTIONS
from placealg.step.event import ACROSS, GROUP_VALUES, dim_of
from placealg.step.event_fields import default_event, holders, regions, values_of
from placealg.step.pipeline import LATER
from placealg.step.program import LOOPED, PADDING, Event, Reference
from placealg.step.receivers import WEIGHTS
from placealg.step.verbs import LOSS_SCALE, MESSAGES, VERBS


def check_event(event: Event, reference: Reference) -> None:
    """Raise InputError if an event has no meaning; whether it is right is for the readers."""
    verb = VERBS[event.verb]
    if event.value not in values_of(event.verb, reference):
        raise inapplicable(event, reference)
    if event.on_tensor and event.effect.at_home and event.unit != unit_of(event.value):
        raise InputError(f"{event.path}: runs in unit {event.unit}; its op is one of {unit_of(event.value)}")
    axis = reference.pipeline.axis
    if event.verb in MESSAGES and event.axes != (axis,):
        raise InputError(f"{event.path}: a message goes from stage to stage, along "
                         + (f"[{axis}] alone" if axis else "a pipeline axis, and no "
                            "axis is one: it names [\"layer\"] in [dims]"))
    if event.phase == WEIGHTS:
        _check_apart(event, reference)
    if event.reads and not reference.whole and event.verb == "free":
        _check_kept(event, reference.graph)
    elif event.reads and not reference.whole:
        operands = _operands(event, reference.graph)
        read = tuple(v.tensor for v in event.operands)
        if read != operands:
            raise InputError(f"{event.path}: reads names {', '.join(read)}; it reads "
                             f"{', '.join(operands) or 'nothing by name'}, each as NAME or NAME@LABEL")
        for version in (v for v in event.operands if v.label):
            if reference.graph.tensors[version.tensor].kind == "parameter":
                raise InputError(f"{event.path}: reads names {version}: a parameter has no versions",
                                 name=version.text, valid=[version.tensor])
    if not event.on_tensor and (event.version or (event.reads and event.value != "loss")):
        raise InputError(f"{event.path}: version and reads are for tensors of the op graph")
    _check_version(event, reference)
    if event.verb == "free" and not event.version and _is_data(event, reference):
        raise InputError(f"{event.path}: data are held whole on every rank: a copy ends, which version names")
    _check_dims(event, reference)
    pairs = tuple(holders(event.value, event.verb, reference))
    if (event.group, event.unit) not in pairs:
        named = event.group or event.unit
        raise InputError(f"{event.path}: {event.verb} of {event.value} names " + (f"'{named}'" if named else "nothing"),
                         name=named, valid=[g or u or "no group or unit" for g, u in pairs])
    if event.drawn:
        _check_layout(event, reference)
    _check_tier(event, reference)
    if verb.needs_axes and not event.axes:
        raise InputError(f"{event.path}: {event.verb} needs axes", valid=reference.mesh.names)
    _check_axes(event, reference)
    if event.verb == "store" and event.phase != "save":
        raise InputError(f"{event.path}: a checkpoint is of one step: it is stored in phase save, all of it or none",
                         name=event.phase, valid=("save",))
    if event.at and event.phase not in LOOPED:
        raise InputError(f"{event.path}: at = '{', '.join(event.at)}' means a position of the microbatch loop, and "
                         f"{event.phase} stands outside it")
    largest = bool(event.group) and reference.group(event.group).merge == "max" and event.value in ("grad", "grad_sum")
    if event.op == "max" and event.value != "skip" and not largest:
        raise InputError(f"{event.path}: op = 'max' is for flags and for statistics that are one, of which a reduction "
                         "takes the largest", name="max", valid=("sum", "mean"))
    if event.verb == "accumulate" and event.op not in ("", "sum", "max"):
        raise InputError(f"{event.path}: op = '{event.op}': what accumulates is a sum, or the largest", name=event.op,
                         valid=("sum", "max"))
    if event.op == "premultiplied" and event.verb != "reduce" and not event.on_tensor:
        raise InputError(f"{event.path}: op = 'premultiplied' is for gradients and tensors", name="premultiplied",
                         valid=("sum", "mean"))
    _check_operator(event, reference)
    _check_owners(event)
    starts = event.on_gradient and event.tensor in {op.output for op in terms(reference.graph)}
    if event.divisor != ONE and not (starts if event.verb == "compute" and event.on_tensor else event.effect.divides):
        raise InputError(f"{event.path}: {event.verb} of {event.value} divides nothing, and takes no divisor")
    if event.unit not in reference.losses and len(reference.losses) > 1:
        for name in (n for n in ("tokens", "count") if n in event.divisor.names()):
            raise InputError(f"{event.path}: each of the losses {', '.join(reference.losses)} has a number of {name} "
                             "of its own: only what is of one loss is divided by it")
    if LOSS_SCALE in event.divisor.names() and not reference.scaled:
        raise InputError(f"{event.path}: divisor = {event.divisor}: nothing scales the loss; [loss] scale = "
                         "\"dynamic\" does")
    if PADDING in event.divisor.names() and not event.group:
        raise InputError(f"{event.path}: only shards of parameters have {PADDING}")
    if event.verb == "reduce" and event.to not in ("", "I", "S"):
        raise InputError(f"{event.path}: a gradient is reduced to I or S, not to {event.to}")
    _check_places(event)
    sizes = reference.mesh.sizes()
    for clause in event.where:
        if clause.rank is not None and clause.rank >= sizes.get(clause.axis, clause.rank + 1):
            raise InputError(f"{event.path}: where = {clause} names a rank that does not exist: {clause.axis} has "
                             f"{sizes[clause.axis]}")
    for axis in event.axes if event.verb == "broadcast" else ():
        if event.root >= sizes.get(axis, event.root + 1):
            raise InputError(f"{event.path}: root = {event.root} is a rank that does not exist: {axis} has "
                             f"{sizes[axis]}")


def inapplicable(event: Event, reference: Reference) -> InputError:
    """The error that an event's verb does not apply to its value, with what it applies to or what the user may mean."""
    graph, verb = reference.graph, event.verb
    what = f"{event.path}: {verb} does not apply to {event.unit if event.value == 'activation' else event.value}"
    tensor = graph.tensors.get(event.tensor)
    if event.value == "activation" and not reference.whole:
        return InputError(f"{what}: the unit runs op by op", valid=[op.output for op in graph.of_unit(event.unit)])
    if tensor is None:
        none = "" if values_of(verb, reference) else ": it is for tensors of ops, and no unit of this model has ops"
        return InputError(what + none, name=event.value, valid=values_of(verb, reference))
    if tensor.kind == "parameter" and (verb, event.on_gradient) == ("compute", True):
        users = [default_event(event.phase, verb, op.output + GRAD) for op in graph.consumers(tensor.name)]
        return InputError(f"{what}: the backward of the ops that read a parameter adds to its gradient",
                          valid=[e.path for e in users])
    if tensor.kind == "parameter":
        return InputError(f"{what}: a parameter is moved and reduced with its group",
                          valid=[e.path for e in _of_groups(event, reference)])
    if tensor.name == graph.ops[-1].output:
        loss = default_event(event.phase, "scale" if event.on_gradient else "compute", "loss", "", tensor.unit)
        return InputError(f"{what}: backward starts from one over the divisors of the loss" if event.on_gradient else
                          f"{what}: nothing reads the sum of the loss", valid=[loss.path])
    if event.on_gradient and tensor.name not in needs_gradient(graph):
        return InputError(f"{what}: no gradient reaches {tensor.name}")
    return InputError(what, name=event.value, valid=values_of(verb, reference))


def _of_groups(event: Event, reference: Reference) -> Iterator[Event]:
    """The events on a parameter's groups that correspond to an event on the parameter."""
    phase, value, verb = ("reduce", "grad_sum", "reduce") if event.on_gradient else (event.phase, "weight", "gather")
    verb = event.verb if value in VERBS[event.verb].values else verb
    for group in (g for g in reference.groups if event.tensor in g.parameters):
        yield replace(default_event(phase, verb, value, group.name), axes=event.axes if VERBS[verb].needs_axes else ())


def _merges(event: Event, reference: Reference) -> bool:
    """Whether it computes an op that merges the statistics of rows that are split over ranks."""
    op = reference.graph.producer(event.tensor) if event.on_tensor else None
    return op is not None and event.verb == "compute" and not event.on_gradient and op.row.over == "statistics"


def _check_apart(event: Event, reference: Reference) -> None:
    """An InputError where the backward for the weights is not apart, or an event is no part of it."""
    if not reference.pipeline.splits:
        raise InputError(f"{event.path}: phase {WEIGHTS} is of a pipeline whose order runs the backward for the "
                         f"weights apart: {', '.join(LATER)}")
    of_group = bool(event.group) and event.value in ("grad", "grad_sum")
    of_tensor = event.on_tensor and event.verb not in (*MESSAGES, "assign") and (
        (event.verb == "compute") == event.on_gradient)
    if not of_group and not of_tensor:
        raise InputError(f"{event.path}: phase {WEIGHTS} has the backward of ops for their parameters, copies of what "
                         "it reads, and what is done with gradients of groups")


def _check_version(event: Event, reference: Reference) -> None:
    """Only an event that makes or moves a copy of a tensor has a version."""
    if event.version and (not event.effect.labelled or event.tensor not in reference.graph.tensors):
        raise InputError(f"{event.path}: version = {event.version} labels a copy that is moved, and {event.verb} makes "
                         "and moves none")


def _check_axes(event: Event, reference: Reference) -> None:
    """Only collectives, and slice, free, scale, pad and messages, take axes."""
    if not event.axes or VERBS[event.verb].collective or event.effect.axes or _merges(event, reference):
        return
    what = f"{event.verb} of {event.value}" if event.on_tensor else event.verb
    raise InputError(f"{event.path}: {what} is local and takes no axes")


def _check_operator(event: Event, reference: Reference) -> None:
    """An operator belongs to a sum over ranks, a root to a broadcast."""
    if event.op and not event.effect.sums and event.verb != "accumulate" and not _merges(event, reference):
        raise InputError(f"{event.path}: op = '{event.op}' is for what sums over ranks, and {event.verb} of "
                         f"{event.value} does not", valid=("none",))
    if event.verb == "shift" and event.op not in ("", "sum"):
        raise InputError(f"{event.path}: op = '{event.op}': a ring adds, and divides nothing", name=event.op,
                         valid=("sum",))
    if event.root and event.verb != "broadcast":
        raise InputError(f"{event.path}: root = {event.root} is for broadcasts, and {event.verb} has none")


def _check_owners(event: Event) -> None:
    """A layout that all ranks share is for events on a group that use its owner function."""
    if event.layout != "own" and not event.drawn and not (event.group and event.owning):
        raise InputError(f"{event.path}: layout = {event.layout} says who owns what, and {event.verb} of {event.value} "
                         "asks for no owner")


def _check_places(event: Event) -> None:
    """The kinds in `from` and `to` are a row of the redistribution table; `from` may also name a value."""
    source, target = event.source, event.to
    if source in GROUP_VALUES:
        if event.on_tensor:
            raise InputError(f"{event.path}: from = {source}: what is moved of a tensor is the tensor itself")
        if not event.group or not event.effect.sourced:
            raise InputError(f"{event.path}: from = {source}: {event.verb} reads no other value")
        source = ""
    for key, place in (("from", source), ("to", target)):
        if dim_of(place) and not event.on_tensor:
            raise InputError(f"{event.path}: {key} = {place}: a dim is one of a tensor")
    rows = [(r.source.value, r.target.value) for r in REDISTRIBUTIONS if r.event in event.effect.rows]
    kinds = tuple("S" if dim_of(place) else place for place in (source, target))
    if any(kinds) and not rows:
        said = f"from = {source}" if source else f"to = {target}"
        raise InputError(f"{event.path}: {said}: {event.verb} changes no kind")
    if any(kinds) and not any(kinds[0] in ("", s) and kinds[1] in ("", t) for s, t in rows):
        ways = [f"from {s} to {t}" for s, t in rows]
        goes = f"{', '.join(ways[:-1])}, or {ways[-1]}" if len(ways) > 1 else ways[0]
        said = " ".join(f"{key} {place}" for key, place in (("from", source), ("to", target)) if place)
        raise InputError(f"{event.path}: {event.verb} goes {goes}; not {said}")


def _check_tier(event: Event, reference: Reference) -> None:
    """Only values of a group and tensors have a tier, and only copies name two."""
    carried = event.on_tensor and not event.on_gradient and (
        event.verb in ACROSS or (event.verb == "free" and event.value not in regions(reference.graph)))
    if not event.group and event.tier != "device" and not carried:
        raise InputError(f"{event.path}: tier = {event.tier}: only what a parameter group has lies on a tier, or a "
                         "tensor that is offloaded, fetched or freed")
    if event.verb in ACROSS and "->" not in event.tier and event.tier not in ACROSS[event.verb]:
        near, far = ACROSS[event.verb]
        raise InputError(f"{event.path}: tier = {event.tier}: {event.verb} copies from {near} to {far}, or between the "
                         "two tiers that it names", name=event.tier, valid=(near, far, f"{near}->{event.tier}"))
    if "->" in event.tier and not event.effect.copies:
        raise InputError(f"{event.path}: tier = {event.tier}: {event.verb} copies nothing from tier to tier",
                         name=event.verb, valid=(*ACROSS, "assign"))


def _check_dims(event: Event, reference: Reference) -> None:
    """An event that moves a tensor's indices names the dim of that tensor."""
    tensor = reference.graph.tensors.get(event.tensor)
    if tensor is None:
        return
    for name in event.effect.dims:
        place = event.to if name == "to" else event.source
        dim = dim_of(place)
        if dim not in tensor.dims:
            raise InputError(f"{event.path}: {event.verb} needs {name} = \"S(dim)\" with a dim of {event.tensor}"
                             + (f"; '{dim}' is none" if dim else ""), name=dim, valid=tuple(tensor.dims))


def _check_layout(event: Event, reference: Reference) -> None:
    """A layout NAME(AXIS) is for parameters along other axes, and for data along that axis."""
    if event.drawn not in reference.mesh.names:
        raise InputError(f"{event.path}: layout = {event.layout} names an axis that the mesh lacks", name=event.drawn,
                         valid=reference.mesh.names)
    if event.group and event.drawn in event.owning:
        raise InputError(f"{event.path}: layout = {event.layout} differs along {event.drawn}; the owners along that "
                         "axis itself are the same for all")
    if not event.group and not (event.verb == "slice" and event.axes == (event.drawn,) and _is_data(event, reference)):
        raise InputError(f"{event.path}: layout = {event.layout}, each rank's own, is for slices of data along "
                         f"{event.drawn}, and for states of parameters")


def _is_data(event: Event, reference: Reference) -> bool:
    tensor = reference.graph.tensors.get(event.tensor)
    return tensor is not None and tensor.kind == "data" and not event.on_gradient


def _check_kept(event: Event, graph: Graph) -> None:
    """What a region that ends keeps are results of its own ops, by name."""
    own = tuple(op.output for op in graph.ops if f"{op.region}.".startswith(f"{event.value}."))
    for version in event.operands:
        if version.label or version.tensor not in own:
            raise InputError(f"{event.path}: reads names {version.text}: what a region keeps is made by an op of it",
                             name=version.tensor, valid=own)


def _operands(event: Event, graph: Graph) -> tuple[str, ...]:
    """The tensors that an event may read by name, in order."""
    if event.value == "loss":
        return graph.ops[-1].inputs if event.verb == "compute" else ()
    op = graph.producer(event.tensor)
    if event.verb == "assign":
        return tuple(loop.first for loop in graph.handed if loop.slot == event.tensor)
    return op.inputs if op and event.verb == "compute" else ()
