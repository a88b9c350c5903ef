"""The step program in lanes: a row per event, or per run of groups alike, and backward beside its forward."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from placealg.render.show import claim, size
from placealg.render.values import readable
from placealg.step.program import Event, EventLoop, Node, Step
from placealg.step.verbs import MESSAGES, VERBS


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One line of a lane: events of groups alike, or where a loop opens or closes; `y` counts lines from the top."""

    events: tuple[Event, ...] = ()
    loop: str = ""
    opens: bool = False
    head: str = ""
    detail: str = ""
    y: int = 0

    @property
    def event(self) -> Event | None:
        """The first of its events."""
        return self.events[0] if self.events else None

    @property
    def crosses(self) -> bool:
        """Whether data goes from device to device."""
        return any(e.axes and (VERBS[e.verb].collective or e.verb in MESSAGES) for e in self.events)

    @property
    def computes(self) -> bool:
        """Whether an op runs."""
        return any(e.verb == "compute" for e in self.events)


def lane(step: Step, phase: str) -> list[LaneRow]:
    """The rows of one phase, in program order."""
    return list(_rows(step, step.tree(phase)))


def _rows(step: Step, nodes: Sequence[Node]) -> Iterable[LaneRow]:
    for is_event, run in itertools.groupby(nodes, lambda n: isinstance(n, Event)):
        if is_event:
            yield from _alike(step, [n for n in run if isinstance(n, Event)])
            continue
        for loop in run:
            assert isinstance(loop, EventLoop)
            if loop.name == "microbatch":
                yield from _rows(step, loop.body)
            else:
                order = ", last to first" if loop.reverse else ""
                ends = LaneRow(loop=loop.name, opens=True, head=f"{loop.name} × {readable(str(loop.count))}{order}")
                yield ends
                yield from _rows(step, loop.body)
                yield replace(ends, opens=False)


def _alike(step: Step, events: list[Event]) -> Iterable[LaneRow]:
    """Runs of events on one group each are told once where the next groups have the same."""
    blocks = [tuple(run) for group, some in itertools.groupby(events, lambda e: e.group)
              for run in ([list(some)] if group else ([e] for e in some))]
    for _, same in itertools.groupby(enumerate(blocks), lambda pair: _signature(*pair)):
        yield from (_row(step, together) for together in zip(*(block for _, block in same), strict=True))


def _signature(place: int, block: tuple[Event, ...]) -> Any:
    told = [(e.phase, e.verb, e.value, e.axes, e.version, claim(e)) for e in block]
    return told if block[0].group else (place, told)


def _row(step: Step, events: tuple[Event, ...]) -> LaneRow:
    event = events[0]
    repeated = {unit.name for unit in step.reference.units if unit.repeated}
    unit = step.unit_of(event)
    subject = event.subject.removeprefix(f"{unit}.") if unit in repeated else event.subject
    names = subject if len(events) == 1 else f"{subject} … {len(events)} groups"
    axes = f"[{','.join(event.axes)}]" if event.axes else ""
    head = names if event.verb == "compute" else f"{event.verb}{axes} {names}"
    amount = size(step, event) if len(events) == 1 else ""
    return LaneRow(events, head=head, detail="  ".join(part for part in (claim(event), amount) if part))


def beside(forward: list[LaneRow], backward: list[LaneRow]) -> tuple[list[LaneRow], list[LaneRow]]:
    """Both lanes with their lines counted: forward runs down, backward up, an op's gradient stands beside the op."""
    up = [replace(row, opens=not row.opens) if row.loop else row for row in reversed(backward)]
    at = {key: k for k, row in reversed(list(enumerate(up))) if (key := _key(row, True))}
    pairs = [(k, at[key]) for k, row in enumerate(forward) if (key := _key(row, False)) in at]
    left: list[LaneRow] = []
    right: list[LaneRow] = []
    y = seen = met = 0
    for here, there in [*_rising(pairs), (len(forward), len(up))]:
        longest = max(here - seen, there - met)
        left += [replace(row, y=y + k) for k, row in enumerate(forward[seen:here])]
        right += [replace(row, y=y + longest - (there - met) + k) for k, row in enumerate(up[met:there])]
        y += longest
        left += [replace(row, y=y) for row in forward[here:here + 1]]
        right += [replace(row, y=y) for row in up[there:there + 1]]
        y, seen, met = y + 1, here + 1, there + 1
    return left, right


def _key(row: LaneRow, gradients: bool) -> Any:
    """What a row of one lane and its partner in the other have in common."""
    event = row.event
    if event is None:
        return row.loop, row.opens
    if event.on_tensor and event.on_gradient == gradients and (row.computes or row.crosses):
        return event.tensor, row.computes, event.axes
    return (event.unit, event.value) if event.value == "activation" else None


def _rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The most of the pairs in which both numbers rise.

    >>> _rising([(0, 5), (1, 2), (2, 3), (3, 1), (4, 6)])
    [(1, 2), (2, 3), (4, 6)]
    """
    ends: list[int] = []
    chains: list[list[tuple[int, int]]] = []
    for pair in pairs:
        k = bisect_left(ends, pair[1])
        chains[k:k + 1] = [[*(chains[k - 1] if k else ()), pair]]
        ends[k:k + 1] = [pair[1]]
    return chains[-1] if chains else []


def counted(rows: Iterable[LaneRow], start: int = 0) -> list[LaneRow]:
    """The rows one below the other."""
    return [replace(row, y=start + k) for k, row in enumerate(rows)]
