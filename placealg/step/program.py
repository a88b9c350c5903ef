"""The step program: a reference, and an ordered list of events with its tree of loops.

Read this first. A Step is a *reference* (what the single device does, and how data and parameters
are grouped) and a *program* (an ordered list of events). The reference comes from strategy and
model, never from the events; nothing that an event says is believed by a reader.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import placealg.step.graph as step_graph
import placealg.step.order as step_order
from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.notebook_display import Shown
from placealg.step.event import (
    GLOBAL_VALUES,
    GROUP_VALUES,
    LOOPED,
    MICROBATCH,
    PADDING,
    PARTIALS,
    PHASES,
    POSITIONS,
    STEP_PHASES,
    TIERS,
    Clause,
    Event,
    Group,
    LoopUnit,
    Reference,
    Rule,
    phase_order,
)
from placealg.step.where import LAST_RANK, parse_where


@dataclass(frozen=True, slots=True)
class EventLoop:
    """A run of events that repeats: `microbatch` m times, a unit's name once per instance."""

    name: str
    count: Monomial
    body: tuple[Node, ...]
    reverse: bool = False


Node = Event | EventLoop


@dataclass(frozen=True, slots=True)
class Step(Shown):
    """A training step on a mesh: the reference, and the events of the program in order.

    Where the program says on which streams events run, `order` lists all its events with that, also those that only
    order others; `events` are then the same without it, which is all that who reads values knows.
    """

    reference: Reference
    events: tuple[Event, ...]
    order: tuple[Event, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for before, event in itertools.pairwise(self.events):
            if phase_order(event.phase) < phase_order(before.phase):
                raise InputError(f"{event.path} stands after {before.path}: phases stand in the order "
                                 f"{', '.join(PHASES)}")

    def __repr__(self) -> str:
        return f"{self.reference.strategy} on {self.reference.model}: {len(self.events)} events"

    @property
    def listing(self) -> tuple[Event, ...]:
        """Every event of the program, with what it says of order."""
        return self.order or self.events

    def listed(self, listing: Iterable[Event]) -> Step:
        """The step whose program is `listing`."""
        every = tuple(listing)
        if not any(map(step_order.ordered, every)):
            return replace(self, events=every, order=())
        return replace(self, events=step_order.values(every), order=every)

    def event(self, path: str) -> Event:
        """The event with this path."""
        for event in self.events:
            if event.path == path:
                return event
        raise InputError(f"no event '{path}'", name=path, valid=[e.path for e in self.events])

    def why(self, event: Event | str) -> str:
        """The rule that put the event there, with its reason."""
        found = self.event(event) if isinstance(event, str) else event
        return f"{found.rule.name}: {found.rule.why}"

    def ranks(self, axis: str = "") -> frozenset[int]:
        """The ranks that events name by number, along one axis or along any: in a `where`, or as a root."""
        named = (c for e in self.events for c in e.where if axis in ("", c.axis))
        where = {c.rank for c in named if c.rank is not None and c.rank != LAST_RANK}
        return frozenset(where | {e.root for e in self.events if e.root and (not axis or axis in e.axes)})

    def enough(self, axis: str = "") -> int:
        """The least size at which every rank exists that events name by number, along one axis or along any."""
        return max((rank + 1 for rank in self.ranks(axis)), default=1)

    @property
    def graph(self) -> Any:
        """The events as a networkx.DiGraph, an edge from each writer of a value to its later readers."""
        return step_graph.graph(self.reference, self.events)

    def phase(self, *names: str) -> tuple[Event, ...]:
        """The events of these phases, in order."""
        return tuple(e for e in self.events if e.phase in names)

    def tree(self, *phases: str) -> tuple[Node, ...]:
        """The events of `phases` (default: one training step) as nested loops.

        Maximal runs of forward and backward events are the microbatch loop; in it and elsewhere,
        maximal runs of events of one repeated unit are that unit's loop, reversed in backward; partial norms
        are a loop of their own, because a clip reads those of all instances, and so are flags.
        """
        chosen = self.phase(*(phases or STEP_PHASES))
        nodes: list[Node] = []
        for looped, run in _runs(chosen, lambda e: e.phase in LOOPED):
            inner = tuple(self._unit_loops(run))
            nodes.extend([EventLoop(MICROBATCH, Monomial.of("m"), inner)] if looped else inner)
        return tuple(nodes)

    def _unit_loops(self, events: tuple[Event, ...]) -> Iterator[Node]:
        repeated = {u.name: u for u in self.reference.units if u.repeated}
        def key(event: Event) -> tuple[str, str, str]:
            return self.unit_of(event), event.phase, event.value if event.value in PARTIALS else ""

        for (unit, phase, _), run in _runs(events, key):
            if unit in repeated:
                yield EventLoop(unit, repeated[unit].count, run, reverse=phase == "backward")
            else:
                yield from run

    def unit_of(self, event: Event) -> str:
        """The unit whose loop runs the event: its group's, else its own; "" for global values."""
        return self.reference.unit_of(event)


def _runs(events: tuple[Event, ...], key: Callable[[Event], Any]) -> Iterator[tuple[Any, tuple[Event, ...]]]:
    for value, run in itertools.groupby(events, key):
        yield value, tuple(run)


__all__ = [
    "Clause",
    "Event",
    "GLOBAL_VALUES",
    "GROUP_VALUES",
    "Group",
    "LOOPED",
    "EventLoop",
    "LoopUnit",
    "Node",
    "PADDING",
    "PARTIALS",
    "PHASES",
    "POSITIONS",
    "Reference",
    "Rule",
    "STEP_PHASES",
    "Step",
    "TIERS",
    "parse_where",
]
