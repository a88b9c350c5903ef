"""The transfer rules of whole units: the effect of each in one microbatch of a lowered program.

An op of kind `unit` is an uninterpreted function of all that it reads, the same on every rank. So its forward runs
where its inputs were computed before, on the ranks of its `where`; its backward where the forward ran and the gradient
of its result has arrived. A parameter's gradient then counts each of the rank's own tokens once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.graph import Graph, unit_of
from placealg.prover.calculus.contribution import Term, Value, stands_at
from placealg.prover.calculus.event_ranks import among
from placealg.prover.calculus.positions import UNIT, Pairs, at
from placealg.prover.ops.findings import SEED, Demand, Flow, GradientPart
from placealg.step.event import LOOPED, Event, takes_part
from placealg.step.program import Reference, Step


def follow_units(step: Step, position: str) -> Flow:
    """The flow of one microbatch of a lowered step at a position; one instance of a repeated unit represents all."""
    found = _Units(step.reference, step.reference.graph, counted(step, position))
    for event in (e for e in step.phase(*LOOPED) if takes_part(e.at, position)):
        found.execute(event)
    found.flow.demands += found.demands(position)
    return found.flow


def counted(step: Step, position: str) -> frozenset[str]:
    """The losses whose number of tokens is known when a microbatch at a position begins, whatever ran before."""
    known = [_counted(frozenset(), step.phase("prepare"))]
    for before in ("first", "middle") if position in ("middle", "last") else ():
        known.append(_counted(known[-1], (e for e in step.phase(*LOOPED) if takes_part(e.at, before))))
    return frozenset.intersection(*known[1:] or known)


def _counted(known: frozenset[str], events: Iterable[Event]) -> frozenset[str]:
    """The losses whose count is known after some events: a count or a sum on some ranks only is not known."""
    for event in (e for e in events if e.value == "count"):
        if event.where:
            known -= {event.unit}
        elif event.verb == "compute":
            known |= {event.unit}
    return known


class _Units:
    """The results of units: tensor, or gradient, -> the positions at which it is defined; no entry if it is undefined.

    `started` are the losses from which a backward can start: what they read is there, and so are their divisors.
    """

    def __init__(self, reference: Reference, graph: Graph, known: frozenset[str]):
        self.reference, self.graph, self.known, self.flow = reference, graph, known, Flow()
        self.made: dict[str, Pairs] = {t.name: frozenset() for t in graph.tensors.values() if t.kind == "data"}
        self.gradients: dict[str, Pairs] = {}
        self.started: dict[str, Pairs] = {}
        self.ran: dict[tuple[str, str], list[tuple[str, Pairs | None]]] = {}

    def execute(self, event: Event) -> None:
        """Execute one event."""
        self.known = _counted(self.known, (event,))
        if event.value == "loss":
            self.loss(event)
        elif event.value == "grad" and event.verb == "compute":
            (op,) = self.graph.of_unit(self.reference.group(event.group).unit)
            ready = self.made.get(op.output)
            terms = (Term(ONE, FrozenMap({a: UNIT for a in self.reference.data_axes})),)
            self.flow.taken[event.path] = () if ready is None else (Value(terms, sides=stands_at(ready)),)
        elif event.on_tensor and event.verb == "assign":
            self.assign(event)
        elif event.on_tensor and event.verb == "compute":
            (self.backward if event.on_gradient else self.forward)(event)

    def loss(self, event: Event) -> None:
        """A loss reads the last unit's result; a `scale` divides the value from which its backward starts."""
        known = "count" not in event.divisor.names() or event.unit in self.known
        if event.verb != "compute":
            if not known or event.where:
                self.started.pop(event.unit, None)
            return
        ready = self.made.get(self.graph.ops[-1].inputs[0])
        self.run(event, ready)
        _keep(self.started, event.unit, ready if known else None, event)
        if ready is not None:
            self.flow.loss[event.path] = self.cell

    @property
    def cell(self) -> Pairs:
        """The position of a token: its rank along the axes that split the data."""
        return frozenset((axis, at("batch")) for axis in self.reference.data_axes)

    def assign(self, event: Event) -> None:
        """Assign what enters a repeated unit to its slot, or hand the slot's gradient back to where that came from."""
        source, held = event.reads[0].partition("@")[0], self.gradients if event.on_gradient else self.made
        one, other = (event.tensor, source) if event.on_gradient else (source, event.tensor)
        if one in held:
            held[other] = held[one]
        else:
            held.pop(other, None)

    def forward(self, event: Event) -> None:
        """Run a unit's forward where its input was computed."""
        op = self.graph.producer(event.tensor)
        assert op is not None
        ready = self.made.get(op.inputs[0])
        self.run(event, ready)
        _keep(self.made, op.output, ready, event)
        self.flow.masks[event.path] = frozenset((axis, UNIT) for axis in self.reference.data_axes)

    def backward(self, event: Event) -> None:
        """Run a unit's backward: the gradients of its input, and of its parameters on the rank's own tokens."""
        op = self.graph.producer(event.tensor)
        assert op is not None
        kept, arriving = self.made.get(op.output), self.gradients.get(op.output)
        if op.output in self.graph.ops[-1].inputs:
            arriving = frozenset().union(*self.started.values()) if self.started else None
        ready = None if kept is None or arriving is None else kept | arriving
        self.run(event, ready)
        _keep(self.gradients, op.inputs[0], ready, event)
        where = among(event) | (ready or frozenset())
        terms = (Term(Monomial.of(SEED), FrozenMap({a: UNIT for a in self.reference.data_axes})),)
        held = Value(() if ready is None else terms, sides=stands_at(where), garbage=ready is None)
        for k, name in enumerate(op.inputs[1:], 1):
            if not any((g.statistic or g.frozen) and name in g.parameters for g in self.reference.groups):
                self.flow.add(GradientPart(event.path, name, f"{op.output}/{k}", (held,)))

    def run(self, event: Event, ready: Pairs | None) -> None:
        """Record that a unit or a loss ran, and where its inputs were computed."""
        unit = event.unit if event.value == "loss" else unit_of(event.tensor)
        self.ran.setdefault((event.phase, unit), []).append((event.path, None if ready is None else among(event)))

    def demands(self, position: str) -> Iterator[Demand]:
        """The demands that every unit and every loss runs, forward and backward, after its inputs, on every rank."""
        units = [u.name for u in self.reference.units]
        wanted = [("forward", name) for name in (*units, *self.reference.losses)]
        for phase, unit in (*wanted, *(("backward", name) for name in reversed(units))):
            ran = self.ran.get((phase, unit), [])
            event = ran[0][0] if ran else f"{phase}.{unit}.compute"
            says = f"{'runs before its input is there' if ran else 'does not run'} ({position} microbatch)"
            yield Demand(event, says, (), frozenset(), ran=tuple(where for _, where in ran if where is not None))


def _keep(held: dict[str, Pairs], name: str, ready: Pairs | None, event: Event) -> None:
    """Record a result on the ranks of a `where` if its inputs were ready, and its absence if not."""
    if ready is None:
        held.pop(name, None)
    else:
        held[name] = ready | among(event)
