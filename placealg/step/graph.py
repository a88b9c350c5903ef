"""The step as a directed graph: who writes what a later event reads, in program order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from placealg.models.backward import GRAD
from placealg.step.effects import Access
from placealg.step.event import Event, Group, Reference
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.verbs import LOSS_SCALE
from placealg.step.versions import Version

Storage = tuple[str, str, str]
"""(group or unit, value, tier)."""


def reads(event: Event, reference: Reference) -> Iterator[Storage]:
    """The storages whose content the event reads, or changes in place."""
    for access in event.effect.reads:
        yield from _READS[access](event, reference)
    for counter in reference.counters_of(event):
        yield counter, "count", "device"
    if LOSS_SCALE in event.divisor.names():
        yield "", LOSS_SCALE, "device"


def writes(event: Event, reference: Reference) -> Iterator[Storage]:
    """The storages that an event writes."""
    for access in event.effect.writes:
        yield from _WRITES[access](event, reference)


def _origin(event: Event, _reference: Reference) -> Iterator[Storage]:
    ends = event.verb == "free" and not event.axes
    if event.origin and not ends:
        yield event.group or event.unit, event.origin, event.tiers[0]


def _own(event: Event, _reference: Reference) -> Iterator[Storage]:
    yield event.group or event.unit, event.value, event.tiers[1]


def _part(event: Event, _reference: Reference) -> Iterator[Storage]:
    yield event.group, event.value, "device"


def _parts(value: str, whole: bool) -> Accessed:
    def parts(event: Event, reference: Reference) -> Iterator[Storage]:
        of = value or event.value
        yield from ((g, of, "device") for g in (*(("",) if whole else ()), *(g.name for g in reference.groups)))
    return parts


def _read_of_group(*values: str) -> Accessed:
    return lambda event, _: ((event.group, v, event.tiers[0]) for v in values)


def _states(event: Event, _reference: Reference) -> Iterator[Storage]:
    yield from ((event.group, v, event.tiers[1]) for v in ("master", "moments"))


def _step(_event: Event, _reference: Reference) -> Iterator[Storage]:
    yield "", "step", "device"


def _entered(event: Event, reference: Reference) -> Iterator[Storage]:
    group = reference.group(event.group)
    yield ("", group.taken, "device") if group.taken else (group.unit, "activation", "device")


def _final(event: Event, reference: Reference) -> Iterator[Storage]:
    if reference.whole:
        yield reference.units[-1].name, "activation", "device"
    else:
        yield from (("", v, "device") for v in event.reads)


def _operands(event: Event, reference: Reference) -> Iterator[Storage]:
    """Operands and parameters; the random stream from which it draws; in backward the gradient that arrives."""
    graph = reference.graph
    op = graph.producer(event.tensor)
    yield from (("", v.text, "device") for v in event.operands if graph.tensors[v.tensor].kind != "parameter")
    if event.phase != WEIGHTS:
        yield from ((g.name, "weight", "device") for g in reference.groups if op and {*g.parameters} & {*op.inputs})
    if event.on_gradient:
        yield "", event.value, "device"
        if op == graph.ops[-1]:
            yield "loss", "loss", "device"
    if op and op.draws_in(event.on_gradient):
        yield "", "rng", "device"


def _versions(event: Event, _reference: Reference) -> Iterator[Storage]:
    """The version on which an event acts, and those from which it derives."""
    yield from (("", version.text, event.tiers[0]) for version in event.acted_on.origins())


def _version(event: Event, _reference: Reference) -> Iterator[Storage]:
    yield from _labelled(event, event.acted_on)


def _labelled(event: Event, version: Version) -> Iterator[Storage]:
    """A version; the part of a gradient under a label also belongs to the whole gradient."""
    yield "", version.text, event.tiers[1]
    if event.on_gradient and version.label:
        yield "", version.tensor, "device"


def _results(event: Event, reference: Reference) -> Iterator[Storage]:
    """The result of an op; in backward the gradients of its operands."""
    if not event.on_gradient:
        yield from _version(event, reference)
        return
    graph = reference.graph
    apart = reference.pipeline.splits
    for name, _ in event.operands if event.phase == WEIGHTS or not apart else ():
        yield from ((g.name, "grad", "device") for g in reference.groups if name in g.parameters)
    for name, label in event.operands if event.phase != WEIGHTS else ():
        if graph.tensors[name].kind == "activation":
            yield from _labelled(event, Version(name + GRAD, label))


def _used(event: Event, reference: Reference) -> Iterator[Group]:
    return (g for g in reference.groups if event.unit in g.sites)


def _run(event: Event, reference: Reference) -> Iterator[Storage]:
    """The storages that a whole unit reads."""
    units = [u.name for u in reference.units]
    here = units.index(event.unit)
    yield from ((g.name, "weight", "device") for g in _used(event, reference))
    yield "", "rng", "device"
    if event.phase == "backward":
        yield from ((g.name, "grad", "device") for g in _used(event, reference) if event.unit != g.sites[-1])
        yield event.unit, "activation", "device"
        last = here + 1 == len(units)
        yield from ((u, "loss" if last else "gradient", "device") for u in (
            reference.losses if last else (units[here + 1],)))
    elif here:
        yield units[here - 1], "activation", "device"


def _ran(event: Event, reference: Reference) -> Iterator[Storage]:
    """The storages that a whole unit writes."""
    if event.phase == "forward":
        yield event.unit, "activation", "device"
    else:
        yield event.unit, "gradient", "device"
        yield from ((g.name, "grad", "device") for g in _used(event, reference) if not g.statistic)


Accessed = Callable[[Event, Reference], Iterable[Storage]]
"""The storages that an event reads or writes."""

_READS: Mapping[Access, Accessed] = {
    Access.ORIGIN: _origin, Access.OWN: _own, Access.PARTS: _parts("", whole=False), Access.NORMS: _parts("norm", True),
    Access.FLAGS: _parts("skip", True), Access.OPTIMIZED: _read_of_group("master", "moments", "grad_sum"),
    Access.SUMMED: _read_of_group("grad_sum"), Access.STEP: _step, Access.ENTERED: _entered, Access.RUN: _run,
    Access.FINAL: _final, Access.OPERANDS: _operands, Access.VERSIONS: _versions,
}
_WRITES: Mapping[Access, Accessed] = {
    Access.OWN: _own, Access.PART: _part, Access.STATES: _states, Access.RAN: _ran, Access.RESULTS: _results,
    Access.VERSION: _version,
}


def creates(event: Event, reference: Reference) -> Iterator[Storage]:
    """The written storages that the event makes anew, whatever they held and wherever."""
    if event.effect.fresh:
        kept = set(reads(event, reference))
        yield from (storage for storage in writes(event, reference) if storage not in kept)


def graph(reference: Reference, events: tuple[Event, ...]) -> Any:
    """A networkx.DiGraph: a node per event path, an edge from each storage's last writer to its later readers.

    An edge carries `values`, the names of the values that flow. Edges run along program order inside one step, so the
    graph has no cycle unless paths repeat.
    """
    import networkx as nx

    result = nx.DiGraph()
    writer: dict[Storage, str] = {}
    for event in events:
        result.add_node(event.path, event=event)
        for storage in reads(event, reference):
            if storage in writer:
                values = result.edges.get((writer[storage], event.path), {}).get("values", ())
                result.add_edge(writer[storage], event.path, values=(*values, ".".join(p for p in storage[:2] if p)))
        for storage in writes(event, reference):
            writer[storage] = event.path
    return result
