"""Units as wholes: a step that runs op by op and splits nothing but the batch, as one that runs unit by unit.

If every axis splits the batch alone, a rank runs each op on its own sequences exactly as the single device does: the
ops of a unit, all of them, each once, in the graph's order and with nothing between them, are the unit's computation.
Where a unit has further terms of the loss, its backward has their divisor, which all of them share. A statistic may be
taken, and added up, between a unit's ops, once the op that holds it has run: that is done behind them all. What a
region of a unit made may be freed behind it and computed again in the unit's backward: the same ops on the same inputs
and weights, with the same random numbers, make the same values again. The numbers are the same where nothing moves the
random stream between the unit's forward and what draws again; that the weights are the same is what the checker asks of
each read. Anything else is refused, naming the event that differs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from placealg.arith import ONE, Monomial
from placealg.models.backward import GRAD, backward, keepers, needs_gradient, terms
from placealg.models.graph import Graph, Op
from placealg.prover.kernel.fields import Outside, check_folded
from placealg.step.effects import Access
from placealg.step.event import Event
from placealg.step.program import Step

PASSES = ("forward", "backward")
"""The phases of a unit's computations."""


def whole_units(step: Step) -> Step:
    """The step with one computation in place of the ops of a unit; the step itself if it runs unit by unit.

    Raises Outside if an axis splits more than the batch, or a unit's events are not all its ops, in order.

    >>> import placealg as pa
    >>> [e.path for e in whole_units(pa.derive(pa.dp("dp"), pa.gpt())).phase("forward")][:3]
    ['forward.embedding.compute', 'forward.layer.compute', 'forward.head.compute']
    """
    reference = step.reference
    if reference.whole:
        return step
    for axis, entries in reference.dims.items():
        split = [entry for entry in entries if entry != "batch"]
        if split:
            raise Outside("", f"axis {axis} splits ops ({', '.join(split)}): not in the kernel")
    return replace(step, reference=replace(reference, graph=Graph()),
                   events=tuple(itertools.chain.from_iterable(_folded(step))))


def _folded(step: Step) -> Iterator[tuple[Event, ...]]:
    done: set[tuple[str, str]] = set()
    needs = needs_gradient(step.reference.graph)
    slices = _unsliced(step)
    units: dict[str, _Unit] = {}
    moved = ""
    for (phase, unit), found in itertools.groupby(_taken_behind(step), _place):
        run = tuple(found)
        if not phase:
            moved = next((e.path for e in reversed(run) if _moves_stream(e)), moved)
            yield tuple(_whole_loss(step, e) for e in run)
            continue
        if phase == "forward" and all(_of_data(step.reference.graph, e) for e in run):
            for e in run:
                _slice(step, e, slices)
            continue
        if phase not in PASSES or (phase, unit) in done:
            raise Outside(run[0].path, f"unit {unit} computes in more than one place, or again")
        done.add((phase, unit))
        ops, divisor = _ops(step, unit), ONE
        one = units.setdefault(unit, _Unit(step.reference.graph, moved))
        run, first = tuple(one.forward(run) if phase == "forward" else one.backward(run, slices, moved)), run[0]
        if not run:
            raise Outside(first.path, f"unit {unit} computes in more than one place, or again")
        if phase == "forward":
            _match(step, run, [_forward(op) for op in ops], slices)
        else:
            _match(step, run, [_backward(op) for op in reversed(ops) if op.output in needs], slices)
            divisor = _shared(step, run)
        if unit != "loss":
            yield (Event(run[0].phase, "compute", "activation", unit=unit, divisor=divisor, rule=run[0].rule),)
        elif any(e.value == "loss" and e.verb == "scale" for e in step.events[step.events.index(run[0]):]):
            raise Outside(run[0].path, "the loss is scaled after backward has begun")
    wanted = [*(("forward", u.name) for u in step.reference.units), ("backward", "loss"),
              *(("backward", u.name) for u in step.reference.units
                if any(op.output in needs for op in _ops(step, u.name)))]
    missing = [(phase, name) for phase, name in wanted if (phase, name) not in done]
    if missing:
        raise Outside("", f"unit {missing[0][1]} has no {missing[0][0]}")


class _Unit:
    """What a unit lacks from where a region of it is freed, until it is computed again in the unit's backward.

    That are results which no op outside of the region reads, slices of the data which it alone has read, and what its
    ops keep beside their results, under the names of these. `moved` is the event that has moved the random stream last.
    """

    def __init__(self, graph: Graph, moved: str):
        self.graph = graph
        self.moved = moved
        self.lost: set[str] = set()
        self.again: set[str] = set()
        self.made: set[str] = set()
        self.users: dict[str, set[str]] = {}

    def forward(self, run: tuple[Event, ...]) -> Iterator[Event]:
        """The run without the events that free a region."""
        for event in run:
            if event.verb == "free":
                self._free(event)
                continue
            if event.verb == "compute":
                self.made.add(event.value)
                for name in event.reads:
                    self.users.setdefault(name, set()).add(event.value)
            yield event

    def _free(self, event: Event) -> None:
        inside = _inside(self.graph, event)
        if not inside or not inside <= self.made:
            raise Outside(event.path, f"{event.value} is no region whose ops have run")
        kept = {version.tensor for version in event.operands}
        self.lost |= {*_ended(self.graph, event),
                      *(value for value, op in keepers(self.graph).items() if op in inside - kept),
                      *(name for name, users in self.users.items() if "@" in name and users <= inside)}

    def backward(self, run: tuple[Event, ...], slices: Mapping[str, str], moved: str) -> Iterator[Event]:
        """The run without the ops of the forward that it runs again, once each, on what is there.

        `moved` is the event that has moved the random stream last.
        """
        beside = keepers(self.graph)
        for event in run:
            if _of_data(self.graph, event):
                self.lost.discard(f"{event.value}@{event.version}")
            if event.verb != "compute":
                yield event
                continue
            if lost := self.lost and self.lost & self._needed(event):
                raise Outside(event.path, f"it needs {min(lost)}, which was freed and is not computed again before")
            op = self.graph.producer(event.tensor)
            if moved != self.moved and op is not None and op.draws_in(event.on_gradient):
                raise Outside(event.path, f"it draws again, and {moved} moves the random stream behind the forward")
            if event.on_gradient:
                yield event
                continue
            check_folded(event)
            once = op is not None and event.divisor == ONE and event.tensor not in self.again
            if not once or op is None or _reads(event, slices) != _forward(op):
                raise Outside(event.path, f"unit {event.unit} does not run as the model has it")
            self.again.add(event.tensor)
            self.lost -= {event.tensor, *(value for value, of in beside.items() if of == event.tensor)}

    def _needed(self, event: Event) -> set[str]:
        """What an op reads; the backward of one its operands, where it needs them, and what the op kept."""
        op = self.graph.producer(event.tensor)
        if not event.on_gradient or op is None:
            return set(event.reads)
        called = dict(zip(op.inputs, event.reads, strict=False))  # one that reads something else is refused later
        return {called.get(name, name) for b in backward(self.graph) if b.forward == event.tensor for name in b.reads}


def _inside(graph: Graph, event: Event) -> set[str]:
    """The results of the ops of the region that an event frees; raises Outside if it does so in part."""
    check_folded(event)
    return {op.output for op in graph.of_unit(event.unit) if f"{op.region}.".startswith(f"{event.value}.")}


def _ended(graph: Graph, event: Event) -> set[str]:
    """The results that end where a region is freed: those that no op outside reads, and no other instance."""
    inside = _inside(graph, event)
    handed = {name for loop in graph.handed for name in (loop.first, loop.last)}
    return {name for name in inside - {version.tensor for version in event.operands} - handed
            if all(op.output in inside for op in graph.consumers(name))}


def _taken_behind(step: Step) -> Iterator[Event]:
    """The events, with the statistics moved behind the unit's ops."""
    waiting: list[Event] = []
    unit, made, gone = "", set[str](), set[str]()
    for event in step.events:
        if event.on_tensor and event.phase == "forward" and event.unit:
            if event.unit != unit:
                yield from waiting
                waiting, unit, made, gone = [], event.unit, set(), set()
            if event.verb == "free":
                gone |= _ended(step.reference.graph, event)
            made.add(event.value)
            yield event
        elif unit and _of_statistic(step, event, unit):
            taken = step.reference.group(event.group).taken
            if event.verb == "compute" and taken not in made:
                raise Outside(event.path, f"it is taken before {taken}")
            if event.verb == "compute" and taken in gone:
                raise Outside(event.path, f"it is taken behind {taken}")
            waiting.append(event)
        else:
            yield from waiting
            waiting, unit = [], ""
            yield event
    yield from waiting


def _of_statistic(step: Step, event: Event, unit: str) -> bool:
    """Whether an event takes, adds up or reduces a statistic of a unit in its forward."""
    return bool(event.phase == "forward" and event.group and step.unit_of(event) == unit
                and step.reference.group(event.group).statistic and event.value in ("grad", "grad_sum"))


def _shared(step: Step, run: tuple[Event, ...]) -> Monomial:
    """The divisor of which a unit's further terms of the loss start; 1 where it has none."""
    sums = {op.output for op in terms(step.reference.graph)}
    found = [e for e in run if e.verb == "compute" and e.on_gradient and e.tensor in sums]
    other = next((e for e in found if e.divisor != found[0].divisor), None)
    if other is not None:
        raise Outside(other.path, f"divisor = {other.divisor}, and that of {found[0].path} = {found[0].divisor}")
    return found[0].divisor if found else ONE


def _moves_stream(event: Event) -> bool:
    """Whether an event may change the random stream; a broadcast leaves one alone that all ranks have alike."""
    return event.value == "rng" and event.verb != "broadcast" and Access.OWN in event.effect.writes


def _place(event: Event) -> tuple[str, str]:
    return (event.phase, event.unit) if event.on_tensor else ("", "")


def _whole_loss(step: Step, event: Event) -> Event:
    """The loss event without operands, if these are what the graph's last op sums."""
    graph, loss = step.reference.graph, event.value == "loss" and event.verb == "compute"
    return replace(event, reads=()) if loss and event.reads == graph.ops[-1].inputs else event


def _ops(step: Step, unit: str) -> tuple[Op, ...]:
    return tuple(step.reference.graph.of_unit(unit))


def _forward(op: Op) -> tuple[str, tuple[str, ...]]:
    return op.output, op.inputs


def _backward(op: Op) -> tuple[str, tuple[str, ...]]:
    return op.output + GRAD, op.inputs


def _match(step: Step, run: tuple[Event, ...], wanted: list[tuple[str, tuple[str, ...]]],
           slices: dict[str, str]) -> None:
    """Raise Outside unless a run of events is exactly the wanted ops; slices of the data may occur anywhere in it."""
    graph = step.reference.graph
    sums = {op.output for op in terms(graph)}
    loop = graph.loop(run[0].unit)
    computed = [e for e in run if not _of_data(graph, e)]
    handed = computed[0 if run[0].phase == "forward" else -1]
    entered = loop and loop.slot + (GRAD if handed.phase == "backward" else "")
    left = list(wanted)
    for event in run:
        check_folded(event)
        if event.divisor != ONE and not (event.on_gradient and event.tensor in sums):
            raise Outside(event.path, f"divisor = {event.divisor}")
        if _of_data(graph, event):
            _slice(step, event, slices)
        elif loop and event == handed:
            if (event.verb, *_reads(event, slices)) != ("assign", entered, (loop.first,)):
                raise Outside(event.path, f"unit {event.unit} is not handed what the instance beside it has")
        elif event.verb == "compute" and left and _reads(event, slices) == left[0]:
            left.pop(0)
        else:
            raise Outside(event.path, f"unit {event.unit} does not run as the model has it")
    if left:
        raise Outside(run[-1].path, f"unit {run[0].unit} lacks its op {left[0][0]}")


def _slice(step: Step, event: Event, slices: dict[str, str]) -> None:
    """Note what a slice of the data is called; raise Outside unless it is split as the batch is."""
    check_folded(event)
    if set(event.axes) != set(step.reference.data_axes) or event.to != "S(batch)":
        raise Outside(event.path, "the data are not split as the batch is")
    slices[event.value] = f"{event.value}@{event.version}"


def _unsliced(step: Step) -> dict[str, str]:
    """The data that axes split, none of them under a label yet.

    An op that reads one whole does not run on its rank's own sequences.
    """
    return {name: "" for name, tensor in step.reference.graph.tensors.items()
            if tensor.kind == "data" and "batch" in tensor.dims and step.reference.data_axes}


def _of_data(graph: Graph, event: Event) -> bool:
    """Whether an event slices the data."""
    return event.verb == "slice" and graph.tensors[event.tensor].kind == "data" and not event.on_gradient


def _reads(event: Event, slices: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    named = {label: name for name, label in slices.items()}
    return event.value, tuple(named.get(text, text if "@" not in text and text not in slices else f"{text}!")
                              for text in event.reads)
