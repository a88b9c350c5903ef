"""Stages: where an op runs along a pipeline axis, and what instances hand on from stage to stage.

Along the axis a tensor is held at a position: "stage:UNIT" is the stage of the instance of a repeated unit that is
being followed, "stage:UNIT'" that of the neighbour that handed it something; "stage:first" and "stage:last" are the
stages of what comes before and after the repeated units. No number is assumed of a stage: only that what comes before
runs with the first instance, and what comes after with the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from placealg.frozen import FrozenMap
from placealg.mesh import ALONE, ENDS, PREDICTION, Axis, Mesh
from placealg.models.graph import Graph, Loop, unit_of
from placealg.models.stage_parts import HANDS_ON
from placealg.prover.calculus.contribution import equality, merged
from placealg.prover.calculus.positions import Pairs, Position, neighbour, stage
from placealg.prover.ops import paths
from placealg.prover.ops.findings import FailureKind
from placealg.prover.ops.paths import Sum
from placealg.prover.ops.tensors import NEXT_INSTANCE, Tensors
from placealg.step.event import PARTIALS, READERS, Event
from placealg.step.pipeline import FIRST, LAST, part_of, spread
from placealg.step.program import LOOPED, Clause, Group, Reference, Step
from placealg.step.verbs import COUNTERS

AMISS: Mapping[FailureKind, str] = {
    FailureKind.UNSENT: "waits for a message that nobody sends",
    FailureKind.UNRECEIVED: "sends a message that nobody receives",
    FailureKind.OUT_OF_TURN: "receives a message before another that was sent first",
    FailureKind.MISMATCHED: "receives one thing on its own stage, another from the next",
}
"""Kind of failure of a message -> what the event does then."""

HOLDERS = tuple(held for n in (2, 3) for held in combinations(ALONE, n))
"""The parts of a model that may hold a tied parameter together, in order."""


class StageMessage(NamedTuple):
    """A message in transit: the instance that sent it, the path of the event, what it carries, of which tensor."""

    instance: tuple[str, int]
    path: str
    held: Sum
    tensor: str


class Stages:
    """The stages of one microbatch, and the messages in transit each way; without a pipeline nothing changes.

    `passes` counts the instances of a repeated unit that were followed; `unlike` says that a message was received
    which is not what is handed on locally.
    """

    def __init__(self, reference: Reference, tensors: Tensors):
        self.axis = reference.pipeline.axis
        self.graph: Graph = tensors.graph
        self.tensors = tensors
        self.passes = 1
        self.sent: dict[bool, list[StageMessage]] = {False: [], True: []}
        self.unlike = False

    @property
    def least(self) -> int:
        """The least number of instances of a repeated unit to follow: two if they send messages to each other."""
        return 2 if self.axis else 1

    def at(self, unit: str) -> Position:
        """The position of a unit's stage."""
        return stage(part_of(unit, self.graph))

    def here(self, unit: str, held: Sum) -> Sum:
        """A value as an op of `unit` finds it on its stage: what is held elsewhere is not there."""
        if not self.axis:
            return held
        return _standing(self._met(unit, held), self.axis, self.at(unit))

    def _met(self, unit: str, held: Sum) -> Sum:
        """The value with stages renamed: `first` is the stage of the first instance, `last` that of the last."""
        mine = self.at(unit)
        pairs = ((stage(FIRST), self.at(self.graph.loops[0].unit)), (stage(LAST), self.at(self.graph.loops[-1].unit)))
        return _renamed(held, {one: other for pair in pairs for one, other in (pair, pair[::-1]) if other == mine})

    def neighbour(self, held: Sum, unit: str) -> Sum:
        """What an instance of `unit` holds, with its stage named as its neighbour of the same unit sees it."""
        return _renamed(held, {self.at(unit): neighbour(self.at(unit))}) if self.axis else held

    def anywhere(self, held: Sum) -> Sum:
        """A value without its position along the pipeline."""
        if not self.axis:
            return held
        return paths.each(held, lambda v: replace(v, mask=_others(v.mask, self.axis),
                                                  sides=frozenset(e for e in v.sides if e[0] != self.axis)))

    def send(self, event: Event) -> str:
        """Record the message of an instance in one direction; returns the path of a `send` that nobody receives, or "".

        The message of the instance before has been received by now, because an instance hands on last.
        """
        instance, waiting = (event.unit, self.passes), self.sent[event.on_gradient]
        left = next((s.path for s in waiting if s.instance != instance), "")
        waiting[:] = [s for s in waiting if s.instance == instance]
        held = self.tensors.here(event)
        if event.on_gradient and event.version:
            held = paths.lost(held)  # the message lacks what other versions of the gradient received
        waiting.append(StageMessage(instance, event.path, held, event.tensor))
        return left

    def left(self) -> Iterator[str]:
        """The paths of messages that nobody received in the whole microbatch.

        What the last unit hands on, and in backward the first one, nobody waits for: there is no stage behind it.
        """
        ends = {False: self.graph.loops[-1:], True: self.graph.loops[:1]}
        for backward, waiting in self.sent.items():
            yield from (s.path for s in waiting if s.instance[0] not in {loop.unit for loop in ends[backward]})

    def receive(self, event: Event, loop: Loop) -> FailureKind | None:
        """Receive what an instance is handed: locally, or by message if its neighbour runs on another stage.

        Messages are received in the order in which they were sent. Returns what is wrong: there is no message, it is of
        another tensor, or it is not what is handed on locally.
        """
        own, tensors = self.at(loop.unit), self.tensors
        if self.passes == 1 and self._alone(loop, event.on_gradient):
            return None
        use = next((x.slot for x in self.graph.handed if x.first == event.tensor and self.passes == 1), NEXT_INSTANCE)
        local = (tensors.gradients.get((event.tensor, ""), {}).get(use, ()) if event.on_gradient
                 else tensors.made.get((loop.slot, ""), ()))
        waiting = self.sent[event.on_gradient]
        sent = loop.first if self.passes == 1 else loop.last
        if event.on_gradient:
            sent = loop.slot if use == NEXT_INSTANCE else use
        if waiting and waiting[0].tensor != sent:
            return FailureKind.OUT_OF_TURN
        message = waiting.pop(0).held if waiting else ()
        if not message:
            return FailureKind.UNSENT
        if self.passes > 1:
            message = self.neighbour(message, loop.unit)
        sender = next((p for v in message for a, p in v.mask if a == self.axis), own)
        moved = paths.each(message, lambda v: v.gathered({self.axis: sender}).masked([(self.axis, own)]))
        kept = paths.each(local, lambda v: replace(v, mask=_others(v.mask, self.axis) | {(self.axis, own)}))
        if kept and paths.mask_of(kept) != paths.mask_of(moved):
            return FailureKind.MISMATCHED
        held = paths.distinct((*kept, *moved)) if kept else ()
        self.unlike = self.unlike or {*held} != {*kept}
        if event.on_gradient:
            tensors.gradients.setdefault((event.tensor, ""), {})[use] = held
        else:
            tensors.made[loop.slot, ""] = held
        return None

    def _alone(self, loop: Loop, reverse: bool) -> bool:
        """Whether the neighbour of a unit's first (last) instance is no instance of a repeated unit."""
        if reverse:
            return loop.unit == self.graph.loops[-1].unit
        return self.graph.loop(unit_of(loop.first)) is None


def _others(mask: Iterable[tuple[str, Position]], axis: str) -> Pairs:
    return frozenset((a, p) for a, p in mask if a != axis)


def _standing(held: Sum, axis: str, position: Position) -> Sum:
    """Read a value at one stage: it is defined only if it was stored at that stage, or is replicated along the axis."""
    return paths.each(held, lambda v: replace(
        v, mask=_others(v.mask, axis) | {(axis, position)},
        sides=v.sides.union(*(equality(axis, p, position) for a, p in v.mask if a == axis))))


def _renamed(held: Sum, names: dict[Position, Position]) -> Sum:
    return paths.each(held, lambda v: replace(v, mask=frozenset((a, names.get(p, p)) for a, p in v.mask)))


def out_of_turn(event: Event, reference: Reference) -> str:
    """What no rule covers in an event of the loop over microbatches if a stage runs several chunks; "" if nothing.

    A stage runs what belongs to no single chunk with one of its chunks, and other microbatches in between, so that it
    may come earlier or later than the program says. A count runs with the loss.
    """
    pipeline, several = reference.pipeline, "inside the loop over microbatches of several chunks"
    if pipeline.chunks == 1 or event.phase not in LOOPED:
        return ""
    if event.value in (*COUNTERS, *PARTIALS):
        return f"{event.verb} of {event.value} {several}"
    if "count" in event.divisor.names() and event.value != "loss" and not event.on_tensor:
        return f"{event.verb} of {event.value} by a count {several}"
    held = event.group and event.value not in ("grad", "grad_sum")
    if held and tied(reference, reference.group(event.group).parameters[0]):
        return f"{event.verb} of what several stages hold {several}"
    return ""


def before_its_uses(step: Step) -> Iterator[Event]:
    """Events on a tied group's gradient between its uses: a stage that has not added its own holds an older one.

    If a stage runs several chunks, all events before a use: they run with the first chunk, after the backwards of
    others.
    """
    pipeline, graph = step.reference.pipeline, step.reference.graph
    looped = step.phase(*LOOPED)
    for group in step.reference.groups:
        if group.parameters and tied(step.reference, group.parameters[0]):
            uses = {op.output for name in group.parameters for op in graph.consumers(name)}
            adds = [k for k, e in enumerate(looped) if e.on_gradient and e.tensor in uses] or [0]
            first = adds[0] if pipeline.chunks == 1 else 0
            yield from (e for e in looped[first:adds[-1]] if e.group == group.name and e.value in ("grad", "grad_sum"))


def in_several_chunks(step: Step) -> Iterator[Event]:
    """Backwards that add to the gradient of a parameter which one stage uses in several of its chunks.

    Between two that belong to one microbatch the stage runs those of others, which add to the same gradient. A folded
    pipeline has both ends of the model on one stage.
    """
    reference, graph = step.reference, step.reference.graph
    if reference.pipeline.folded:
        shared = {p.name for p in graph.parameters if tied(reference, p.name)
                  and {FIRST, LAST} <= {*held_on(reference, p.name)}}
        uses = {op.output for name in shared for op in graph.consumers(name)}
        yield from (e for e in step.phase(*LOOPED) if e.on_gradient and e.tensor in uses)


def tied(reference: Reference, parameter: str) -> bool:
    """Whether a parameter is held on several stages of the pipeline: at the ends of the model, or where it predicts."""
    graph = reference.graph
    return bool(reference.pipeline.axis and spread(graph.sites(parameter), graph))


def predicting_alone(graph: Graph) -> tuple[str, ...]:
    """The units that predict later tokens on a stage of their own."""
    return tuple(loop.unit for loop in graph.loops if graph.single(loop.unit) and loop.unit not in HANDS_ON.values())


def held_on(reference: Reference, parameter: str) -> tuple[str, ...]:
    """The parts of the model that use a parameter: FIRST, PREDICTION where that stands alone, LAST."""
    graph = reference.graph
    parts = {part_of(site, graph) for site in graph.sites(parameter)}
    return tuple(part for part in ALONE if part in parts or (part == PREDICTION and parts & {*predicting_alone(graph)}))


def ends(reference: Reference, held: tuple[str, ...]) -> str:
    """The name of the axis that consists of the stages of some parts of the model.

    That of a pipeline's first and last stage is one stage if they are the same.
    """
    return reference.pipeline.axis + ENDS + ("" if held == (FIRST, LAST) else "_" + "_".join(held))


def held_by(reference: Reference, axis: str) -> tuple[str, ...]:
    """The parts of the model whose stages an axis consists of; () if it is an axis of the mesh."""
    return next((held for held in HOLDERS if reference.pipeline.axis and ends(reference, held) == axis), ())


def no_end(step: Step, group: Group) -> Iterator[Event]:
    """Events that a tied group sees, on or from a stage that is an end only in pipelines of one length.

    A mean over all stages is one, because it divides by the number of ends only if there are no other stages.
    """
    reference = step.reference
    if group.parameters and tied(reference, group.parameters[0]):
        axis = reference.pipeline.axis
        for event in (e for e in step.events if _seen(e, group)):
            apart = bool(event.root) or (event.op == "mean" and not event.group)
            numbered = (apart and axis in event.axes) or any(c.axis == axis and c.rank for c in event.where)
            if numbered:
                yield event


def _seen(event: Event, group: Group) -> bool:
    """Whether the machine of a group executes the event, or reads with it, and finds its ranks by their positions."""
    return (event.group in ("", group.name) or event.verb in READERS) and event.value != "count"


def on_ends(step: Step, group: Group) -> Step:
    """The step as a tied group sees it: along the pipeline the group is held on the first and on the last stage.

    Those two (or one), and that of the layers that predict, are an axis of their own in place of the pipeline's.
    """
    reference = step.reference
    if not group.parameters or not tied(reference, group.parameters[0]):
        return step
    held = held_on(reference, group.parameters[0])
    old, new = reference.pipeline.axis, ends(reference, held)

    def moved(event: Event) -> Event:
        if not _seen(event, group):
            return event
        layout = event.layout.replace(f"({old})", f"({new})")
        return replace(event, layout=layout, axes=tuple(new if a == old else a for a in event.axes),
                       where=tuple(Clause(new, c.rank, c.but) if c.axis == old else c for c in event.where))

    mesh = Mesh(tuple(Axis(new) if a.name == old else a for a in reference.mesh))
    unrolled = FrozenMap({new if a == old else a: min(n, len(held)) if a == old else n
                          for a, n in reference.unrolled.items()})
    return Step(replace(reference, mesh=mesh, unrolled=unrolled), tuple(moved(e) for e in step.events))


def at_the_ends(held: Sum, reference: Reference, parameter: str) -> Sum:
    """The contribution of a use to the gradient of a tied parameter: on its own stage, and 0 on the others."""
    axis, new = reference.pipeline.axis, ends(reference, held_on(reference, parameter))
    return paths.each(held, lambda v: replace(v, mask=_others(v.mask, axis), terms=merged(
        replace(t, at=t.at.plus({new: p})) for t in v.terms for a, p in v.mask if a == axis)))

