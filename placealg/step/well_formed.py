"""Events that have no meaning: bad input, in one line. Whether a meaningful event is right is not checked here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from placealg.arith import ONE
from placealg.errors import InputError
from placealg.models.backward import GRAD, needs_gradient, terms
from placealg.models.graph import SAMPLES, Graph, unit_of
from placealg.models.tokens import WEIGHTS as OF_TOKENS
from placealg.models.tokens import weights_of_loss
from placealg.placement import REDISTRIBUTIONS
from placealg.step.event import ACROSS, COUNTS_OF_SAMPLES, GROUP_VALUES, dim_of
from placealg.step.event_fields import default_event, holders, regions, values_of
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.order import ORDERING, check_ordering
from placealg.step.pipeline import LATER
from placealg.step.program import LOOPED, PADDING, Event, Reference
from placealg.step.verbs import LOSS_SCALE, MESSAGES, VERBS
from placealg.step.versions import LEFT_OUT, ONCE

Broken = Callable[[Event, Reference], bool]
Told = Callable[[Event, Reference], str]
Names = Callable[[Event, Reference], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Law:
    """One law of events: whether an event breaks it, what is said then, and the names that would be valid.

    `name` is the field whose value is looked for among the valid names.
    """

    broken: Broken
    says: Told
    name: str = ""
    valid: Names | None = None

    def error(self, event: Event, reference: Reference) -> InputError | None:
        """What an event does wrong; None where it keeps the law."""
        if not self.broken(event, reference):
            return None
        return InputError(f"{event.path}: {self.says(event, reference)}", valid=self.valid(event, reference)
                          if self.valid else (), name=str(getattr(event, self.name)) if self.name else "")


def check_event(event: Event, reference: Reference) -> None:
    """Raise InputError if an event has no meaning; whether it is right is for the readers."""
    if event.verb in ORDERING:
        if (wrong := check_ordering(event)) is not None:
            raise wrong
        return
    for law in LAWS:
        error = law.error(event, reference) if isinstance(law, Law) else law(event, reference)
        if error is not None:
            raise error


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


def _is_data(event: Event, reference: Reference) -> bool:
    tensor = reference.graph.tensors.get(event.tensor)
    return tensor is not None and tensor.kind == "data" and not event.on_gradient


def _operands(event: Event, graph: Graph) -> tuple[str, ...]:
    """The tensors that an event may read by name, in order."""
    if event.value == "loss":
        return graph.ops[-1].inputs if event.verb == "compute" else ()
    if event.value == "count":
        of = SAMPLES if event.unit in COUNTS_OF_SAMPLES else weights_of_loss(event.unit)
        return (of,) if event.verb == "compute" and of in graph.tensors else ()
    op = graph.producer(event.tensor)
    if event.verb == "assign":
        return tuple(loop.first for loop in graph.handed if loop.slot == event.tensor)
    return op.inputs if op and event.verb == "compute" else ()


def _unreadable(event: Event, reference: Reference) -> InputError | None:
    """`reads` names what the op reads, in order; what a region that ends keeps is made by an op of it."""
    graph = reference.graph
    if not event.reads or reference.whole:
        return None
    if event.verb == "free":
        own = tuple(op.output for op in graph.ops if f"{op.region}.".startswith(f"{event.value}."))
        return next((InputError(f"{event.path}: reads names {v.text}: what a region keeps is made by an op of it",
                                name=v.tensor, valid=own) for v in event.operands if v.label or v.tensor not in own),
                    None)
    operands, read = _operands(event, graph), tuple(v.tensor for v in event.operands)
    others = event.value == "count" and all(n.startswith(OF_TOKENS) for n in (*read, *operands))
    if read != operands and not (others and len(read) == len(operands)):
        return InputError(f"{event.path}: reads names {', '.join(read)}; it reads "
                          f"{', '.join(operands) or 'nothing by name'}, each as NAME or NAME@LABEL")
    for k, v in enumerate(event.operands):
        if v.label in (LEFT_OUT, ONCE) and not _may_be(v.label, k, event, graph):
            return InputError(f"{event.path}: reads names {v}: only {_MAY_BE[v.label]}", name=v.text, valid=[v.tensor])
        if v.label and graph.tensors[v.tensor].kind == "parameter":
            return InputError(f"{event.path}: reads names {v}: a parameter has no versions", name=v.text,
                              valid=[v.tensor])
    return None


_MAY_BE = {LEFT_OUT: "terms of a sum, factors of a product and attributes of tokens can be left out, and not all",
           ONCE: "a count of tokens takes weights once"}


def _may_be(label: str, position: int, event: Event, graph: Graph) -> bool:
    """Whether an operand can be left out, or a weight taken once."""
    if event.value == "count":
        summed = graph.tensors[graph.ops[-1].inputs[0]].dims
        return label == LEFT_OUT or set(summed) == set(graph.tensors[event.operands[0].tensor].dims)
    op = graph.producer(event.tensor) if event.on_tensor and event.verb == "compute" else None
    if op is None or label == ONCE:
        return False
    left = [v for v in event.operands if v.label == LEFT_OUT]
    if op.kind in ("add", "mul"):
        return len(left) < len(op.inputs) and graph.tensors[op.inputs[position]].kind == "data"
    return op.role(position) in op.row.attributes


def _without_dim(event: Event, reference: Reference) -> InputError | None:
    """An event that moves a tensor's indices names the dim of that tensor."""
    tensor = reference.graph.tensors.get(event.tensor)
    if tensor is None:
        return None
    for name in event.effect.dims:
        dim = dim_of(event.to if name == "to" else event.source)
        if dim not in tensor.dims:
            return InputError(f"{event.path}: {event.verb} needs {name} = \"S(dim)\" with a dim of {event.tensor}"
                              + (f"; '{dim}' is none" if dim else ""), name=dim, valid=tuple(tensor.dims))
    return None


def _of_no_holder(event: Event, reference: Reference) -> InputError | None:
    """The group and the unit are such as have the value."""
    pairs = tuple(holders(event.value, event.verb, reference))
    if (event.group, event.unit) in pairs:
        return None
    named = event.group or event.unit
    return InputError(f"{event.path}: {event.verb} of {event.value} names " + (f"'{named}'" if named else "nothing"),
                      name=named, valid=[g or u or "no group or unit" for g, u in pairs])


def _no_redistribution(event: Event, _: Reference) -> InputError | None:
    """The kinds in `from` and `to` are a row of the redistribution table, or its start or end alone."""
    source, target = "" if event.source in GROUP_VALUES else event.source, event.to
    rows = [(r.source.value, r.target.value) for r in REDISTRIBUTIONS if r.event in event.effect.rows]
    kinds = tuple("S" if dim_of(place) else place for place in (source, target))
    if not any(kinds) or any(kinds[0] in ("", s) and kinds[1] in ("", t) for s, t in rows):
        return None
    if not rows:
        said = f"from = {source}" if source else f"to = {target}"
        return InputError(f"{event.path}: {said}: {event.verb} changes no kind")
    ways = [f"from {s} to {t}" for s, t in rows]
    goes = f"{', '.join(ways[:-1])}, or {ways[-1]}" if len(ways) > 1 else ways[0]
    said = " ".join(f"{key} {place}" for key, place in (("from", source), ("to", target)) if place)
    return InputError(f"{event.path}: {event.verb} goes {goes}; not {said}")


def _no_rank(event: Event, reference: Reference) -> InputError | None:
    """A rank that is named by its number exists, where the size of its axis is known."""
    sizes = reference.mesh.sizes()
    for clause in event.where:
        if clause.rank is not None and clause.rank >= sizes.get(clause.axis, clause.rank + 1):
            return InputError(f"{event.path}: where = {clause} names a rank that does not exist: {clause.axis} has "
                              f"{sizes[clause.axis]}")
    for axis in event.axes if event.verb == "broadcast" else ():
        if event.root >= sizes.get(axis, event.root + 1):
            return InputError(f"{event.path}: root = {event.root} is a rank that does not exist: {axis} has "
                              f"{sizes[axis]}")
    return None


def _of_several_losses(event: Event, reference: Reference) -> str:
    """The number of tokens, or the count, by which an event divides that is of no one loss; "" if there is none."""
    several = len(reference.separate) > 1 and event.unit not in reference.losses
    return next((n for n in ("tokens", "count") if several and n in event.divisor.names()), "")


def _largest(event: Event, reference: Reference) -> bool:
    """Whether a reduction of the value takes the largest."""
    merges = bool(event.group) and reference.group(event.group).merge == "max"
    return event.value == "skip" or (merges and event.value in ("grad", "grad_sum"))


def _divides(event: Event, reference: Reference) -> bool:
    """Whether the event divides by its divisor; an op's backward does where it starts from a term of the loss."""
    if event.verb == "compute" and event.on_tensor:
        return event.on_gradient and event.tensor in {op.output for op in terms(reference.graph)}
    return event.effect.divides


def _runs_apart(event: Event) -> bool:
    """Whether an event may be part of the backward for the weights."""
    of_group = bool(event.group) and event.value in ("grad", "grad_sum")
    return of_group or (event.on_tensor and event.verb not in (*MESSAGES, "assign")
                        and (event.verb == "compute") == event.on_gradient)


def _tiered(event: Event, reference: Reference) -> bool:
    """Whether a value lies on a tier: that of a group, or a tensor that is offloaded, fetched or freed."""
    freed = event.verb == "free" and event.value not in regions(reference.graph)
    return bool(event.group) or (event.on_tensor and not event.on_gradient and (event.verb in ACROSS or freed))


def _own_layout(event: Event, reference: Reference) -> bool:
    """Whether each rank along an axis may have a layout of its own."""
    return bool(event.group) or (event.verb == "slice" and event.axes == (event.drawn,) and _is_data(event, reference))


LAWS: Sequence[Law | Callable[[Event, Reference], InputError | None]] = (
    lambda e, r: None if e.value in values_of(e.verb, r) else inapplicable(e, r),
    Law(lambda e, r: e.on_tensor and e.effect.at_home and e.unit != unit_of(e.value),
        lambda e, r: f"runs in unit {e.unit}; its op is one of {unit_of(e.value)}"),
    Law(lambda e, r: e.verb in MESSAGES and e.axes != (r.pipeline.axis,),
        lambda e, r: "a message goes from stage to stage, along " + (
            f"[{r.pipeline.axis}] alone" if r.pipeline.axis else
            "a pipeline axis, and no axis is one: it names [\"layer\"] in [dims]")),
    Law(lambda e, r: e.phase == WEIGHTS and not r.pipeline.splits,
        lambda e, r: f"phase {WEIGHTS} is of a pipeline whose order runs the backward for the weights apart: "
                     f"{', '.join(LATER)}"),
    Law(lambda e, r: e.phase == WEIGHTS and not _runs_apart(e),
        lambda e, r: f"phase {WEIGHTS} has the backward of ops for their parameters, copies of what it reads, and what "
                     "is done with gradients of groups"),
    _unreadable,
    Law(lambda e, r: not e.on_tensor and bool(e.version or (e.reads and e.value not in ("loss", "count"))),
        lambda e, r: "version and reads are for tensors of the op graph"),
    Law(lambda e, r: bool(e.version) and (not e.effect.labelled or e.tensor not in r.graph.tensors),
        lambda e, r: f"version = {e.version} labels a copy that is moved, and {e.verb} makes and moves none"),
    Law(lambda e, r: e.verb == "free" and not e.version and _is_data(e, r),
        lambda e, r: "data are held whole on every rank: a copy ends, which version names"),
    _without_dim,
    _of_no_holder,
    Law(lambda e, r: bool(e.drawn) and e.drawn not in r.mesh.names,
        lambda e, r: f"layout = {e.layout} names an axis that the mesh lacks", "drawn", lambda e, r: r.mesh.names),
    Law(lambda e, r: bool(e.drawn and e.group) and e.drawn in e.owning,
        lambda e, r: f"layout = {e.layout} differs along {e.drawn}; the owners along that axis itself are the same for "
                     "all"),
    Law(lambda e, r: bool(e.drawn) and not _own_layout(e, r),
        lambda e, r: f"layout = {e.layout}, each rank's own, is for slices of data along {e.drawn}, and for states of "
                     "parameters"),
    Law(lambda e, r: bool(e.renumbered) and not (e.verb == "slice" and e.axes == (e.renumbered,) and _is_data(e, r)),
        lambda e, r: f"layout = {e.layout}, what each rank counts from its own start, is for slices of data along "
                     f"{e.renumbered}"),
    Law(lambda e, r: e.tier != "device" and not _tiered(e, r),
        lambda e, r: f"tier = {e.tier}: only what a parameter group has lies on a tier, or a tensor that is offloaded, "
                     "fetched or freed"),
    Law(lambda e, r: e.verb in ACROSS and "->" not in e.tier and e.tier not in ACROSS[e.verb],
        lambda e, r: f"tier = {e.tier}: {e.verb} copies from {' to '.join(ACROSS[e.verb])}, or between the two tiers "
                     "that it names", "tier", lambda e, r: (*ACROSS[e.verb], f"{ACROSS[e.verb][0]}->{e.tier}")),
    Law(lambda e, r: "->" in e.tier and not e.effect.copies,
        lambda e, r: f"tier = {e.tier}: {e.verb} copies nothing from tier to tier", "verb",
        lambda e, r: (*ACROSS, "assign")),
    Law(lambda e, r: VERBS[e.verb].needs_axes and not e.axes, lambda e, r: f"{e.verb} needs axes", "",
        lambda e, r: r.mesh.names),
    Law(lambda e, r: bool(e.axes) and not (VERBS[e.verb].collective or e.effect.axes or _merges(e, r)),
        lambda e, r: (f"{e.verb} of {e.value}" if e.on_tensor else e.verb) + " is local and takes no axes"),
    Law(lambda e, r: e.verb == "store" and e.phase != "save",
        lambda e, r: "a checkpoint is of one step: it is stored in phase save, all of it or none", "phase",
        lambda e, r: ("save",)),
    Law(lambda e, r: bool(e.at) and e.phase not in LOOPED,
        lambda e, r: f"at = '{', '.join(e.at)}' means a position of the microbatch loop, and {e.phase} stands outside "
                     "it"),
    Law(lambda e, r: e.op == "max" and not _largest(e, r),
        lambda e, r: "op = 'max' is for flags and for statistics that are one, of which a reduction takes the largest",
        "op", lambda e, r: ("sum", "mean")),
    Law(lambda e, r: e.verb == "accumulate" and e.op not in ("", "sum", "max"),
        lambda e, r: f"op = '{e.op}': what accumulates is a sum, or the largest", "op", lambda e, r: ("sum", "max")),
    Law(lambda e, r: e.op == "premultiplied" and e.verb != "reduce" and not e.on_tensor,
        lambda e, r: "op = 'premultiplied' is for gradients and tensors", "op", lambda e, r: ("sum", "mean")),
    Law(lambda e, r: bool(e.op) and not e.effect.sums and e.verb != "accumulate" and not _merges(e, r),
        lambda e, r: f"op = '{e.op}' is for what sums over ranks, and {e.verb} of {e.value} does not", "",
        lambda e, r: ("none",)),
    Law(lambda e, r: e.verb == "shift" and e.op not in ("", "sum"),
        lambda e, r: f"op = '{e.op}': a ring adds, and divides nothing", "op", lambda e, r: ("sum",)),
    Law(lambda e, r: bool(e.root) and e.verb != "broadcast",
        lambda e, r: f"root = {e.root} is for broadcasts, and {e.verb} has none"),
    Law(lambda e, r: e.layout != "own" and not (e.drawn or e.renumbered) and not (e.group and e.owning),
        lambda e, r: f"layout = {e.layout} says who owns what, and {e.verb} of {e.value} asks for no owner"),
    Law(lambda e, r: e.divisor != ONE and not _divides(e, r),
        lambda e, r: f"{e.verb} of {e.value} divides nothing, and takes no divisor"),
    Law(lambda e, r: bool(_of_several_losses(e, r)),
        lambda e, r: f"each of the losses {', '.join(r.losses)} has a number of {_of_several_losses(e, r)} of its own: "
                     "only what is of one loss is divided by it"),
    Law(lambda e, r: LOSS_SCALE in e.divisor.names() and not r.scaled,
        lambda e, r: f"divisor = {e.divisor}: nothing scales the loss; [loss] scale = \"dynamic\" does"),
    Law(lambda e, r: PADDING in e.divisor.names() and not e.group,
        lambda e, r: f"only shards of parameters have {PADDING}"),
    Law(lambda e, r: e.verb == "reduce" and e.to not in ("", "I", "S"),
        lambda e, r: f"a gradient is reduced to I or S, not to {e.to}"),
    Law(lambda e, r: e.source in GROUP_VALUES and e.on_tensor,
        lambda e, r: f"from = {e.source}: what is moved of a tensor is the tensor itself"),
    Law(lambda e, r: e.source in GROUP_VALUES and not (e.group and e.effect.sourced),
        lambda e, r: f"from = {e.source}: {e.verb} reads no other value"),
    *(Law(lambda e, r, get=get: bool(dim_of(get(e))) and not e.on_tensor,  # type: ignore[misc]
          lambda e, r, key=key, get=get: f"{key} = {get(e)}: a dim is one of a tensor")  # type: ignore[misc]
      for key, get in (("from", attrgetter("source")), ("to", attrgetter("to")))),
    _no_redistribution,
    _no_rank,
)
"""What every event keeps, in the order in which it is asked: the first law that is broken is told."""
