"""What has no meaning in an event, whoever reads it: bad input, in one line. Whether it is right is for others."""

from __future__ import annotations

from collections.abc import Mapping

from placealg.arith import ONE
from placealg.errors import InputError
from placealg.model.graph import Graph, unit_of
from placealg.step.event import ACROSS, dim_of
from placealg.step.fields import holders, values_of
from placealg.step.program import LOOPED, PADDING, Event, Reference
from placealg.step.verbs import MESSAGES, VERBS

DIVIDING = ("scale", "reduce", "all_reduce", "reduce_scatter", "shift")
"""The verbs that may divide by something, as the computation of the loss and the update of a group may.

Of others a divisor means nothing.
"""

DIMS: Mapping[str, tuple[str, ...]] = {
    "all_gather": ("from",), "pad": ("from",), "shift": ("from",), "slice": ("to",), "reduce_scatter": ("to",),
    "all_to_all": ("from", "to")}
"""Verb -> its fields that name a dim of the tensor, as S(dim)."""

LOCAL_WITH_AXES = ("slice", "free")
"""The verbs without communication that name axes; on tensors, others may, too."""


def check_event(event: Event, reference: Reference) -> None:
    """Raise InputError where an event says what can have no meaning; whether it is right is for the readers."""
    verb = VERBS[event.verb]
    valid = values_of(event.verb, reference)
    if event.value not in valid:
        raise InputError(f"{event.path}: {event.verb} does not apply to {event.value}", name=event.value, valid=valid)
    if event.on_tensor and event.verb in ("compute", "assign", *MESSAGES) and event.unit != unit_of(event.value):
        raise InputError(f"{event.path}: runs in unit {event.unit}; its op is one of {unit_of(event.value)}")
    if event.verb in MESSAGES and (reference.pipeline is None or event.axes != (reference.pipeline.axis,)):
        raise InputError(f"{event.path}: a message goes from stage to stage, along "
                         + (f"[{reference.pipeline.axis}] alone" if reference.pipeline else "a pipeline axis, and no "
                            "axis is one: it names [\"layer\"] in [dims]"))
    if event.reads and reference.graph:
        operands = _operands(event, reference.graph)
        read = tuple(v.partition("@")[0] for v in event.reads)
        if read != operands:
            raise InputError(f"{event.path}: reads names {', '.join(read)}; it reads "
                             f"{', '.join(operands) or 'nothing by name'}, each as NAME or NAME@LABEL")
        for name in (v for v in event.reads if "@" in v):
            parameter = name.partition("@")[0]
            if reference.graph.tensors[parameter].kind == "parameter":
                raise InputError(f"{event.path}: reads names {name}: a parameter has no versions", name=name,
                                 valid=[parameter])
    if (event.version or event.reads) and not event.on_tensor and event.value != "loss":
        raise InputError(f"{event.path}: version and reads are for tensors of the op graph")
    _check_dims(event, reference)
    pairs = tuple(holders(event.value, event.verb, reference))
    if (event.group, event.unit) not in pairs:
        named = event.group or event.unit
        raise InputError(f"{event.path}: {event.verb} of {event.value} names " + (f"'{named}'" if named else "nothing"),
                         name=named, valid=[g or u or "no group or unit" for g, u in pairs])
    if event.drawn:
        _check_layout(event, reference)
    _check_tier(event)
    if verb.needs_axes and not event.axes:
        raise InputError(f"{event.path}: {event.verb} needs axes", valid=reference.mesh.names)
    if event.axes and not verb.collective and event.verb not in LOCAL_WITH_AXES and not event.on_tensor:
        raise InputError(f"{event.path}: {event.verb} is local and takes no axes")
    if event.at and event.phase not in LOOPED:
        raise InputError(f"{event.path}: at = '{', '.join(event.at)}' means a position of the microbatch loop, and "
                         f"{event.phase} stands outside it")
    if event.op == "max" and event.value != "skip":
        raise InputError(f"{event.path}: op = 'max' is for flags, of which a reduction takes the largest", name="max",
                         valid=("sum", "mean"))
    if event.op == "premultiplied" and event.verb != "reduce" and not event.on_tensor:
        raise InputError(f"{event.path}: op = 'premultiplied' is for gradients and tensors", name="premultiplied",
                         valid=("sum", "mean"))
    divides = event.verb in DIVIDING or (event.verb == "compute" and event.value in ("loss", "grad"))
    if event.divisor != ONE and not divides and not (event.verb == "update" and event.group):
        raise InputError(f"{event.path}: {event.verb} of {event.value} divides nothing, and takes no divisor")
    if event.unit not in reference.losses and len(reference.losses) > 1:
        for name in (n for n in ("tokens", "count") if n in event.divisor.names()):
            raise InputError(f"{event.path}: each of the losses {', '.join(reference.losses)} has a number of {name} "
                             "of its own: only what is of one loss is divided by it")
    if PADDING in event.divisor.names() and not event.group:
        raise InputError(f"{event.path}: only shards of parameters have {PADDING}")
    if event.verb == "reduce" and event.to not in ("", "I", "S"):
        raise InputError(f"{event.path}: a gradient is reduced to I or S, not to {event.to}")
    sizes = reference.mesh.sizes()
    for clause in event.where:
        if clause.rank is not None and clause.rank >= sizes.get(clause.axis, clause.rank + 1):
            raise InputError(f"{event.path}: where = {clause} names a rank that does not exist: {clause.axis} has "
                             f"{sizes[clause.axis]}")
    for axis in event.axes if event.verb == "broadcast" else ():
        if event.root >= sizes.get(axis, event.root + 1):
            raise InputError(f"{event.path}: root = {event.root} is a rank that does not exist: {axis} has "
                             f"{sizes[axis]}")


def _check_tier(event: Event) -> None:
    """Tiers are those of a group's values; only copies name two."""
    if not event.group and event.tier != "device":
        raise InputError(f"{event.path}: tier = {event.tier}: only what a parameter group has lies on a tier")
    if "->" in event.tier and event.verb not in (*ACROSS, "assign"):
        raise InputError(f"{event.path}: tier = {event.tier}: {event.verb} copies nothing from tier to tier",
                         name=event.verb, valid=(*ACROSS, "assign"))


def _check_dims(event: Event, reference: Reference) -> None:
    """What moves a tensor's indices says from or to which dim of that tensor."""
    tensor = reference.graph.tensors.get(event.tensor) if reference.graph and event.on_tensor else None
    if tensor is None:
        return
    for name in ("to",) if (event.verb, event.source) == ("shift", "P") else DIMS.get(event.verb, ()):
        place = event.to if name == "to" else event.source
        dim = dim_of(place)
        if dim not in tensor.dims:
            raise InputError(f"{event.path}: {event.verb} needs {name} = \"S(dim)\" with a dim of {event.tensor}"
                             + (f"; '{dim}' is none" if dim else ""), name=dim, valid=tuple(tensor.dims))


def _check_layout(event: Event, reference: Reference) -> None:
    """A layout NAME(AXIS): of parameters along other axes, of data along that one."""
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
    graph = reference.graph
    return graph is not None and event.on_tensor and not event.on_gradient and (
        graph.tensors[event.tensor].kind == "data")


def _operands(event: Event, graph: Graph) -> tuple[str, ...]:
    """The tensors that an event may read by name, in order."""
    if event.value == "loss":
        return graph.ops[-1].inputs if event.verb == "compute" else ()
    op = graph.producer(event.tensor)
    if event.verb == "assign":
        return tuple(loop.first for loop in graph.loops if loop.slot == event.tensor)
    return op.inputs if op and event.verb == "compute" else ()
