"""Activations that rest on another tier between forward and backward: what leaves the device, when, and its way back.

What the backward of an offloaded region's ops reads, and forward made, is copied to the host behind its last use in
forward, and ends on the device. Backward fetches it before the first event that reads it. A storage goes as a whole:
what is read under several names, as views are, goes once, under the name of what they show, and backward makes the
views again. What anything else reads, another unit or an op of another region, stays on the device.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from placealg.models.backward import differentiated, keepers, kept, transposed
from placealg.models.graph import Graph, Op, unit_of
from placealg.placement import MEMORY_TIERS
from placealg.step.event import Event, Rule
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.versions import Version

_AWAY = "O: what backward reads rests on the {tier} between forward and backward"
_VIEW = Rule("offload", "a view of what was fetched: the same storage under other names")


@dataclass(slots=True)
class _Need:
    """A version that forward makes: the last event of forward that touches it, and those of backward that read it."""

    last: int
    first: int = -1
    readers: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Away:
    """The events around those of one unit: behind events of forward, and before events of backward, by their places."""

    behind: dict[int, list[Event]]
    before: dict[int, list[Event]]
    back: Sequence[Event]

    def forward(self, events: Sequence[Event]) -> Iterator[Event]:
        """The events of forward, each followed by those that take away what it used last."""
        for k, event in enumerate(events):
            yield event
            yield from self.behind.get(k, ())

    def backward(self, weights: bool = False) -> Iterator[Event]:
        """The events of backward, or of its part for the weights, each after those that bring what it reads."""
        for k, event in enumerate(self.back):
            if (event.phase == WEIGHTS) == weights:
                yield from self.before.get(k, ())
                yield event


def away(graph: Graph, forward: Sequence[Event], backward: Sequence[Event], regions: Sequence[str], tier: str,
         apart: bool = False) -> Away:
    """What leaves the device in the forward of one unit, and comes back in its backward, `weights` included.

    `apart` says that the backward for the weights is a phase of its own.
    """
    needed = _needed(graph, forward, backward, apart)
    storages: dict[str, list[Version]] = {}
    for version in needed:
        storages.setdefault(_root(graph, version), []).append(version)
    found = Away({}, {}, backward)
    for root, versions in storages.items():
        if all(_within(graph, name, regions) for v in versions for name in needed[v].readers) and not any(
                _elsewhere(graph, v.tensor) for v in versions):
            _take(graph, found, {v: needed[v] for v in versions}, Version.parse(root), tier)
    return found


def _take(graph: Graph, found: Away, needs: dict[Version, _Need], root: Version, tier: str) -> None:
    """Insert the offload and fetch events of one storage."""
    goes = next(iter(needs)) if len(needs) == 1 else root
    last, first = max(n.last for n in needs.values()), min(n.first for n in needs.values())
    unit, phase = unit_of(goes.tensor), found.back[first].phase
    rule = Rule("offload", _AWAY.format(tier=tier))
    at = MEMORY_TIERS[:MEMORY_TIERS.index(tier) + 1]
    out = found.behind.setdefault(last, [])
    back = found.before.setdefault(first, [])
    for here, there in pairwise(at):
        out.append(Event("forward", "offload", goes.tensor, unit=unit, version=goes.label, tier=f"{here}->{there}",
                         rule=rule))
        if here != "device":
            out.append(Event("forward", "free", goes.tensor, unit=unit, version=goes.label, tier=here, rule=rule))
    out += [Event("forward", "free", v.tensor, unit=unit, version=v.label, rule=rule)
            for v in dict.fromkeys((goes, *needs))]
    for here, there in pairwise(reversed(at)):
        back.append(Event(phase, "fetch", goes.tensor, unit=unit, version=goes.label, tier=f"{here}->{there}",
                          rule=rule))
        if there != "device":
            back.append(Event(phase, "free", goes.tensor, unit=unit, version=goes.label, tier=here, rule=rule))
    made = {goes.tensor}
    for version in needs:
        for op in reversed(list(_views(graph, version.tensor))):
            if op.output not in made and op.inputs[0] in made:
                made.add(op.output)
                back.append(Event(phase, "compute", op.output, unit=unit, reads=op.inputs, rule=_VIEW))


def _needed(graph: Graph, forward: Sequence[Event], backward: Sequence[Event],
            apart: bool) -> dict[Version, _Need]:
    """The versions that forward makes and backward reads, but for those that backward makes again before."""
    made: dict[Version, _Need] = {}
    for k, event in enumerate(forward):
        for version in _read(graph, event, apart):
            if there := _nearest(version, made):
                made[there].last = k
        for version in _made(graph, event):
            made[version] = _Need(k)
        if event.verb == "free" and event.value in graph.tensors:
            made.pop(event.acted_on, None)
    again: set[Version] = set()
    for k, event in enumerate(backward):
        for version in _read(graph, event, apart):
            there = _nearest(version, made, again)
            if there and there not in again:
                need = made[there]
                need.first = k if need.first < 0 else need.first
                need.readers.add(event.tensor)
        again.update(_made(graph, event))
    return {version: need for version, need in made.items() if need.first >= 0}


def _nearest(version: Version, *held: Container[Version]) -> Version | None:
    """The version that a reader finds: the one named, or the nearest from which it derives."""
    return next((v for v in version.origins() if any(v in some for some in held)), None)


def _made(graph: Graph, event: Event) -> Iterator[Version]:
    """The versions that an event makes, and what its op keeps beside its result."""
    if event.on_tensor and not event.on_gradient and event.verb not in ("free", "send"):
        yield event.acted_on
        op = graph.producer(event.tensor)
        if op is not None and event.verb == "compute":
            yield from (Version(tensor.name) for tensor, _ in kept(graph, op))


def _read(graph: Graph, event: Event, apart: bool) -> Iterator[Version]:
    """The versions of activations, and of what ops keep, that an event reads."""
    op = graph.producer(event.tensor)
    if not event.on_tensor or event.verb == "free" or (event.on_gradient and event.verb != "compute"):
        return
    if event.verb != "compute" or op is None:
        if not event.on_gradient and event.verb != "recv":
            yield event.acted_on if event.verb == "send" else event.acted_on.source
        return
    operands = event.operands or tuple(map(Version, op.inputs))
    if not event.on_gradient:
        yield from (v for v in operands if graph.tensors[v.tensor].kind != "parameter")
        return
    names = {n for k in _receiving(graph, op, event, apart) for n in transposed(graph, op, k).reads}
    yield from (v for v in operands if v.tensor in names and graph.tensors[v.tensor].kind != "parameter")
    yield from (Version(n) for n in sorted(names) if n not in op.inputs)


def _receiving(graph: Graph, op: Op, event: Event, apart: bool) -> Iterator[int]:
    """The positions of the operands whose gradients an op's backward adds to, in this phase."""
    for k in differentiated(graph, op):
        of_parameter = graph.tensors[op.inputs[k]].kind == "parameter"
        if not apart or of_parameter == (event.phase == WEIGHTS):
            yield k


def _views(graph: Graph, tensor: str) -> Iterator[Op]:
    """The views by which a tensor shows another, the outermost first."""
    op = graph.producer(tensor)
    if op is not None and op.row.view:
        yield op
        yield from _views(graph, op.inputs[0])


def _root(graph: Graph, version: Version) -> str:
    """The version whose storage a view shares, or itself."""
    shown = list(_views(graph, version.tensor))
    return shown[-1].inputs[0] if shown and not version.label else version.text


def _within(graph: Graph, name: str, regions: Sequence[str]) -> bool:
    op = graph.producer(name) or graph.producer(keepers(graph).get(name, ""))
    if op is None:
        return any(u.unit == unit_of(name) for u in graph.loops) and unit_of(name) in regions
    return any(op.within(region) for region in regions)


def _elsewhere(graph: Graph, name: str) -> bool:
    """Whether another unit reads a tensor, or it is no activation of its unit's own."""
    tensor, unit = graph.tensors.get(name), unit_of(name)
    if tensor is None:
        return name not in keepers(graph)
    handed = any(name in (loop.first, loop.last) for loop in graph.handed)
    return tensor.kind != "activation" or handed or any(op.unit != unit for op in graph.consumers(name))
