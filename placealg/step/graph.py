"""The step as a directed graph: who writes what a later event reads, in program order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from placealg.model.backward import GRAD
from placealg.model.graph import Graph
from placealg.step.event import PARTIALS, Event, Group, Reference, origins

Storage = tuple[str, str, str]
"""(group or unit, value, tier)."""

_BLIND = ("zero", "load", "compute", "update")
"""The verbs that read no value on which they act; compute and update have reads of their own."""

_WITHIN = ("zero", "publish", "free")
"""The verbs that write, unread, into storage that is there."""


def reads(event: Event, reference: Reference) -> Iterator[Storage]:
    """The storages whose content the event reads, or changes in place."""
    source, target = event.tiers
    if event.on_tensor or (event.value == "loss" and reference.graph):
        yield from _read_by_op(event, reference)
        return
    if event.verb not in _BLIND and event.origin and not _ends(event):
        yield event.group or event.unit, event.origin, source
    if event.verb == "accumulate":
        yield event.group, event.value, target
    if event.verb == "clip":
        yield "", "norm", "device"
    if event.verb == "all_reduce" and event.value in PARTIALS:
        yield from ((g.name, event.value, "device") for g in reference.groups)
    if event.verb == "clip":
        yield from ((g.name, "norm", "device") for g in reference.groups)
    if event.verb == "compute" and event.value == "grad":
        yield reference.group(event.group).unit, "activation", "device"
    if event.verb == "compute" and event.value == "skip":
        yield event.group, "grad_sum", source
    if event.verb == "update" and event.value != "rng":
        yield from ((g, "skip", "device") for g in ("", *(g.name for g in reference.groups)))
    if event.verb == "update" and event.group:
        yield from ((event.group, v, source) for v in ("master", "moments", "grad_sum"))
        yield "", "step", "device"
    if event.verb == "update" and not event.group:
        yield "", event.value, "device"
    if event.verb == "compute" and event.value == "activation":
        yield from _computed(event, reference)
    if event.verb == "compute" and event.value == "loss":
        yield reference.units[-1].name, "activation", "device"
    if "count" in event.divisor.names():
        yield event.unit or reference.losses[0], "count", "device"


def _read_by_op(event: Event, reference: Reference) -> Iterator[Storage]:
    """What an event on a tensor reads: operands and parameters, the gradient that arrives, the version it acts on."""
    graph = reference.graph
    assert graph is not None
    if event.value == "loss":
        yield from (("", v, "device") for v in event.reads if event.verb == "compute")
        yield from (("loss", n, "device") for n in ("loss",) if event.verb == "scale")
        yield from (("loss", n, "device") for n in ("count",) if "count" in event.divisor.names())
    elif event.verb in ("compute", "assign"):
        op = graph.producer(event.tensor)
        yield from (("", v, "device") for v in event.reads if _kind(v, graph) != "parameter")
        yield from ((g.name, "weight", "device") for g in reference.groups if op and {*g.parameters} & {*op.inputs})
        if event.on_gradient:
            yield "", event.value, "device"
            if op == graph.ops[-1]:
                yield "loss", "loss", "device"
        elif op and op.row.random:
            yield "", "rng", "device"
    elif event.verb not in ("free", "recv"):
        yield from (("", v, "device") for v in _versions(event))


def _kind(version: str, graph: Graph) -> str:
    return graph.tensors[version.partition("@")[0]].kind


def _versions(event: Event) -> Iterator[str]:
    """The version on which an event acts, and those from which it would come."""
    yield from (f"{event.value}@{label}" if label else event.value for label in origins(event.version))


def _ends(event: Event) -> bool:
    return event.verb == "free" and not event.axes


def _used(event: Event, reference: Reference) -> Iterator[Group]:
    return (g for g in reference.groups if event.unit in g.sites)


def _computed(event: Event, reference: Reference) -> Iterator[Storage]:
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


def writes(event: Event, reference: Reference) -> Iterator[Storage]:
    """The storages that an event writes."""
    target = event.tiers[1]
    if event.on_tensor:
        yield from _written_by_op(event, reference)
    elif event.verb == "compute" and event.value == "activation":
        if event.phase == "forward":
            yield event.unit, "activation", "device"
        else:
            yield event.unit, "gradient", "device"
            yield from ((g.name, "grad", "device") for g in _used(event, reference) if not g.statistic)
    elif event.verb == "update" and event.group:
        yield from ((event.group, v, target) for v in ("master", "moments"))
    elif event.verb == PARTIALS.get(event.value):
        yield event.group, event.value, "device"
    elif event.verb != "store":
        yield event.group or event.unit, event.value, target


def _written_by_op(event: Event, reference: Reference) -> Iterator[Storage]:
    """What an event on a tensor writes: the result, the version that it makes, or gradients of operands.

    What is added under a gradient's label is part of the gradient.
    """
    graph = reference.graph
    assert graph is not None
    made = event.verb not in ("free", "send")
    versions = [event.value + (f"@{event.version}" if event.version else "")] if made else []
    if event.verb in ("compute", "assign") and event.on_gradient:
        read = [v.partition("@") for v in event.reads]
        for name, _, _ in read:
            yield from ((g.name, "grad", "device") for g in reference.groups if name in g.parameters)
        versions = [f"{name}{GRAD}{at}{label}" for name, at, label in read if _kind(name, graph) == "activation"]
    for version in versions:
        yield from (("", v, "device") for v in dict.fromkeys((version, version.partition("@")[0]))
                    if v == version or event.on_gradient)


def creates(event: Event, reference: Reference) -> Iterator[Storage]:
    """Those of the written storages that the event makes afresh, whatever they held and wherever."""
    if event.verb not in _WITHIN:
        kept = set(reads(event, reference))
        yield from (storage for storage in writes(event, reference) if storage not in kept)


def graph(reference: Reference, events: tuple[Event, ...]) -> Any:
    """A networkx.DiGraph: a node per event path, an edge from each storage's last writer to its later readers.

    An edge carries `values`, the names of what flows. Edges run along program order inside one step, so the graph
    has no cycle unless paths repeat.
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
