"""Inserted events whose results nothing reads: most likely a typing error, since the program runs as without them.

The names of a run are followed, not its numbers: which inserted events had a part in what stands under each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from placealg.models.backward import GRAD, keepers, transposed
from placealg.models.graph import Graph, unit_of
from placealg.step.effects import Access
from placealg.step.event import GLOBAL_VALUES, MICROBATCH, PARTIALS, STEP_PHASES, Event, Reference, takes_part
from placealg.step.gradient_targets import receivers
from placealg.step.graph import Storage, reads, writes
from placealg.step.program import Node, Step
from placealg.step.verbs import COUNTERS, STATES
from placealg.step.versions import Version, origins

LASTING = (*STATES, *COUNTERS)
"""The values that a step leaves to the next one."""

OF_A_MICROBATCH = ("activation", "gradient", "loss", "grad")
"""The values, besides tensors, that every microbatch makes anew."""

_RUN = ((("init",), ()), (STEP_PHASES, ("only",)), (("save",), ()), (STEP_PHASES, ("first", "middle", "last")),
        (("resume",), ()), (STEP_PHASES, ("only",)))
"""The phases of a run with a step of one microbatch, and one of three."""

_INSTANCES = 2
"""Instances of a repeated unit in a run: one that follows another."""


def unread(step: Step, inserted: Iterable[Event]) -> tuple[Event, ...]:
    """The inserted events that have no part in a loss, in a value that lasts from step to step, or in a message.

    A result has no part in what is made anew behind it, nor one of a microbatch, or of an instance of a repeated unit,
    in another. A reader of a version of a tensor finds the nearest that is held. An event that makes such a value
    itself is none of them.
    """
    asked = [e for e in inserted if e.verb not in ("free", "store", "send") and e.value not in LASTING]
    if not asked:
        return ()
    data = {t.name for t in step.reference.graph.tensors.values() if t.kind == "data"}
    run = _Run(step, frozenset(e.path for e in asked), {u.name for u in step.reference.units if u.repeated}, data)
    for phases, positions in _RUN:
        run.through(step.tree(*phases), positions)
    return tuple(e for e in asked if e.path not in run.read)


class _Place(NamedTuple):
    """A value, or a tensor with all its versions, in one microbatch and one instance of its unit."""

    owner: str
    value: str
    tier: str
    microbatch: int
    instance: int


class _Found(NamedTuple):
    """The inserted events that had a part in what stands under a name, and whether something surely does."""

    parts: frozenset[str]
    sure: bool


NOBODY = frozenset[str]()


@dataclass(slots=True)
class _Run:
    """A run as far as it has come: what stands at each place under each label, and who had a part in what counts.

    `repeated` are the units with instances, `data` the tensors that are there from the start. `begun` are the
    gradients to which something was added: the first use of a parameter sets its gradient.
    """

    step: Step
    inserted: frozenset[str]
    repeated: set[str]
    data: set[str]
    read: set[str] = field(default_factory=set)
    made: dict[_Place, dict[str, _Found]] = field(default_factory=dict)
    begun: set[_Place] = field(default_factory=set)
    microbatch: int = 0

    def through(self, nodes: Iterable[Node], positions: tuple[str, ...], at: str = "", instance: int = 0) -> None:
        """Follow the events of `nodes`, whose loop over microbatches runs at `positions`."""
        for node in nodes:
            if isinstance(node, Event):
                if not at or takes_part(node.at, at):
                    self.follow(node, instance)
            elif node.name == MICROBATCH:
                for position in positions:
                    self.microbatch += 1
                    self.through(node.body, positions, position)
            else:
                order = range(_INSTANCES)
                for k in reversed(order) if node.reverse else order:
                    self.through(node.body, positions, at, k)

    def follow(self, event: Event, instance: int) -> None:
        """Follow one event: what had a part in what it finds has one in what it leaves."""
        reference = self.step.reference
        event = _named(event, reference.graph)
        found = [p for s, k in _finds(event, reference, instance) for p in self.found(s, event, k)]
        parts = NOBODY.union(*found)
        if event.path in self.inserted:
            parts |= {event.path}
        elif event.verb in ("store", "send") or event.value in (*LASTING, "loss"):
            self.read |= parts
        adds = event.value == "activation" or (event.on_gradient and event.effect.of_op)
        nothing = Access.VERSIONS in event.effect.reads and not found and not (
            event.tiers[0] == "device" and event.value in self.data)
        for storage, k in _leaves(event, reference, instance):
            place, label = self.place(storage, event, k)
            if nothing and label not in self.made.get(place, {}):
                continue
            sets = not adds or (place.value == "grad" and place not in self.begun)
            self.begun |= {place} if adds else set()
            limited = event.where and PARTIALS.get(event.value) != event.verb
            whole = sets and not (limited or event.at or event.verb == "recv")
            before = self.made.setdefault(place, {}).get(label, _Found(NOBODY, sure=False))
            self.made[place][label] = _Found(parts, True) if whole else _Found(before.parts | parts, before.sure)
        if event.verb == "free" and event.on_tensor:
            self.end(event, instance)

    def place(self, storage: Storage, event: Event, instance: int) -> tuple[_Place, str]:
        """Where an event finds a storage, and under which label: outside of its unit's loop, of the last instance."""
        owner, value, tier = storage
        of_tensor = not owner and value not in GLOBAL_VALUES
        version = Version.parse(value)
        unit = unit_of(value) if of_tensor else next(
            (g.unit for g in self.step.reference.groups if g.name == owner), owner)
        if unit not in self.repeated:
            instance = 0
        elif unit != self.step.unit_of(event):
            instance = _INSTANCES - 1
        passing = of_tensor or value in OF_A_MICROBATCH
        return _Place(owner, version.tensor, tier, self.microbatch if passing else 0, instance), version.label

    def found(self, storage: Storage, event: Event, instance: int) -> Iterator[frozenset[str]]:
        """Who had a part in what a read finds: the nearest version; of a gradient, all that derive from it."""
        place, label = self.place(storage, event, instance)
        held = self.made.get(place, {})
        if place.value.endswith(GRAD):
            yield from (there.parts for below, there in held.items() if label in origins(below))
            return
        for above in origins(label):
            if above in held:
                yield held[above].parts
                if held[above].sure:
                    return

    def end(self, event: Event, instance: int) -> None:
        """A version ends; of a region, any that its ops made or read may end."""
        graph, region = self.step.reference.graph, f"{event.value}."
        if event.value in graph.tensors or event.value in keepers(graph):
            place, label = self.place(("", event.acted_on.text, event.tier), event, instance)
            ended = {label: _Found(NOBODY, sure=False)} if not event.where and not event.at else {}
            self.made[place] = {**self.made.get(place, {}), **ended}
            return
        inside = [op for op in graph.ops if f"{op.region}.".startswith(region)]
        for name in {name for op in inside for name in (op.output, *op.inputs)}:
            place, _ = self.place(("", name, event.tier), event, instance)
            self.made[place] = {label: _Found(f.parts, sure=False) for label, f in self.made.get(place, {}).items()}


def _named(event: Event, graph: Graph) -> Event:
    """The event with its operands by name: it reads them as their ops made them if it says nothing."""
    if event.reads or not event.effect.of_op:
        return event
    op, loop = graph.producer(event.tensor), graph.slot(event.tensor)
    return replace(event, reads=op.inputs if op else (loop.first,) if loop else ())


def _finds(event: Event, reference: Reference, instance: int) -> Iterator[tuple[Storage, int]]:
    """The storages, each of one instance, whose content an event reads; a version of a tensor as it names it."""
    graph, loop = reference.graph, reference.graph.slot(event.tensor)
    if Access.VERSIONS in event.effect.reads:
        yield ("", event.acted_on.text, event.tiers[0]), instance
        return
    for owner, value, tier in reads(event, reference):
        if owner or value in GLOBAL_VALUES or not event.effect.of_op:
            yield from (((whole, value, tier), instance) for whole in _parts(owner, value, reference))
    if not event.effect.of_op:
        return
    named = {v.text for v in event.operands}
    if event.on_gradient:
        op = graph.producer(event.tensor)
        needed = {n for k in receivers(event, reference) for n in transposed(graph, op, k).reads} if op else set()
        beside = needed - {v.tensor for v in event.operands}
        named = {event.value, *beside, *(v.text for v in event.operands if v.tensor in needed)}
    elif loop and instance:
        named, instance = {loop.last}, instance - 1
    yield from ((("", name, "device"), instance) for name in named)


def _leaves(event: Event, reference: Reference, instance: int) -> Iterator[tuple[Storage, int]]:
    """The storages, each of one instance, to which an event writes; a version of a tensor as it names it."""
    graph, loop = reference.graph, reference.graph.slot(event.tensor)
    if Access.VERSION in event.effect.writes:
        yield ("", event.acted_on.text, event.tiers[1]), instance
    elif loop and instance and event.on_gradient and event.effect.of_op:
        yield ("", loop.last + GRAD, "device"), instance - 1
    else:
        for owner, value, tier in writes(event, reference):
            yield from (((whole, value, tier), instance) for whole in _parts(owner, value, reference))
    if event.effect.of_op and not event.on_gradient:
        kept = (name for name, by in keepers(graph).items() if by == event.tensor)
        yield from ((("", name, "device"), instance) for name in kept)


def _parts(owner: str, value: str, reference: Reference) -> tuple[str, ...]:
    """The owners of a value: every group, of a whole norm or flag, which is reduced part by part."""
    whole = not owner and value in PARTIALS
    return tuple(g.name for g in reference.groups) if whole else (owner,)
