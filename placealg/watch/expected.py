"""What the derived program says of one rank at the sizes of a run: the way of every gradient, all other messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from placealg.step.event import LOOPED, Event, Group, takes_part
from placealg.step.program import Step
from placealg.step.verbs import VERBS


@dataclass(frozen=True)
class Route:
    """What the program does with a group's gradient, in order, and with its weights.

    `early` are its reductions before it is accumulated, once per microbatch; `late` those after it, and `clipped` those
    of them that stand after the clip. `scales` are its divisions by sizes. `assigned` says that a microbatch's gradient
    takes the place of those before.
    """

    group: Group
    early: tuple[Event, ...]
    late: tuple[Event, ...]
    scales: tuple[Event, ...]
    accumulate: Event | None
    zero: Event | None
    norm: Event | None
    clip: Event | None
    update: Event | None
    publish: Event | None
    gathers: tuple[Event, ...]
    broadcast: Event | None
    clipped: tuple[Event, ...] = ()
    assigned: bool = False

    @property
    def reductions(self) -> tuple[Event, ...]:
        """All reductions, in order."""
        return (*self.early, *self.late)


def routes_of(step: Step) -> dict[str, Route]:
    """Group -> its route."""
    return {g.name: _route(step, g) for g in step.reference.groups}


def _route(step: Step, group: Group) -> Route:
    own = [e for e in step.events if e.group == group.name]

    def one(verb: str, *phases: str) -> Event | None:
        return next((e for e in own if e.verb == verb and (not phases or e.phase in phases)), None)

    early: list[Event] = []
    late: list[Event] = []
    clipped: list[Event] = []
    accumulated = assigned = False
    for event in own:
        assigned = assigned or (event.verb == "assign" and event.value == "grad_sum")
        if event.verb == "accumulate" or (event.verb == "assign" and event.value == "grad_sum"):
            accumulated = True
        elif event.verb in ("reduce", "all_gather") and event.value in ("grad", "grad_sum"):
            (late if event.value == "grad_sum" or accumulated else early).append(event)
            if any(e.verb == "clip" for e in own[:own.index(event)]):
                clipped.append(event)
    return Route(group, tuple(early), tuple(late), tuple(e for e in own if e.verb == "scale"), one("accumulate"),
                 one("zero", "prepare"), one("norm"), one("clip"), one("update"), one("publish"),
                 tuple(e for e in own if e.verb == "gather"), one("broadcast", "init"), tuple(clipped), assigned)


def norm_axes(step: Step) -> tuple[str, ...]:
    """The axes over which the program sums the norm."""
    return next((e.axes for e in step.events if e.value == "norm" and e.verb == "all_reduce"), ())


@dataclass(frozen=True)
class Expected:
    """One message that the program says: the unit and instance that it serves, its verb and axes, its event.

    An `optional` one may be there: what a split cross entropy exchanges belongs to the op.
    """

    unit: str
    instance: int
    verb: str
    axes: tuple[str, ...]
    event: Event
    optional: bool = False


def activations(step: Step, phase: str, position: str, layers: Mapping[str, int],
                mesh: Mapping[str, int]) -> list[Expected]:
    """The messages on tensors of one phase of a microbatch, in order; those along axes of size 1 are none."""
    found: list[Expected] = []
    for unit, count, events in _loops(step, phase, layers):
        order = range(count) if phase == "forward" else range(count - 1, -1, -1)
        for k in order:
            for event in events:
                axes = tuple(a for a in event.axes if mesh.get(a, 1) > 1)
                if not axes or not takes_part(event.at, position):
                    continue
                if event.verb == "compute":
                    found += [Expected(unit, k, "all_reduce", axes, event, optional=True)] * 3
                elif VERBS[event.verb].collective or event.verb in ("send", "recv"):
                    found.append(Expected(unit, k, event.verb, axes, event))
    return found


def _loops(step: Step, phase: str, layers: Mapping[str, int]) -> Iterator[tuple[str, int, list[Event]]]:
    """(unit, its instances, its events) of a phase, run by run."""
    assert phase in LOOPED
    run: list[Event] = []
    for event in step.events:
        if event.phase != phase or not event.on_tensor:
            continue
        if run and run[-1].unit != event.unit:
            yield run[0].unit, layers.get(run[0].unit, 1), run
            run = []
        run.append(event)
    if run:
        yield run[0].unit, layers.get(run[0].unit, 1), run


def positions(microbatches: int) -> list[str]:
    """The position of every microbatch in the loop.

    >>> positions(1), positions(3)
    (['only'], ['first', 'middle', 'last'])
    """
    if microbatches == 1:
        return ["only"]
    return ["first", *["middle"] * (microbatches - 2), "last"]
