"""What each device holds, event by event: an abstract interpretation of the program over shares instead of numbers.

A *share* is the set of mesh axes over which a device holds only 1/n of a value. `visits` walks the program once per
position of the microbatch loop, in the steady state (after one step), and records what is held before and after every
event, and which values are live: still to be read. One instance of a unit stands for all.

Two shares are kept apart. `content` is what a device's values mean: a reduction to [S] leaves it only the owner's part.
`space` is the storage: reductions work in place, so storage shrinks only by slice and free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from placealg.frozen import FrozenMap
from placealg.placement import MEMORY_TIERS
from placealg.step.effects import Holding
from placealg.step.event import MICROBATCH, takes_part
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.graph import creates, reads, writes
from placealg.step.program import GROUP_VALUES, LOOPED, STEP_PHASES, Event, EventLoop, Reference, Step

Share = frozenset[str]
Key = tuple[str, str, str]
"""(group, value, tier)."""

WHOLE: Share = frozenset()


@dataclass(frozen=True, slots=True)
class Held:
    """One value of one group on one tier: its content, its storage, and the copies gathered from it, one from another.

    A copy that does not fit into the storage is a buffer of its own. `units` is the number of units of which it is held
    at once: one, and those that are prefetched; a copy has its own number. What was `fetched` and is then gathered
    arrives in its place in the gathered copy, as in DeepSpeed, which lets the shard go before the all_gather.
    """

    content: Share
    space: Share
    copies: tuple[tuple[Share, int], ...] = ()
    units: int = 1
    fetched: bool = False

    @property
    def readable(self) -> Share:
        """The share that a reader finds: that of the last gathered copy, if there is one."""
        return self.copies[-1][0] if self.copies else self.content

    @property
    def stored(self) -> int:
        """The number of units whose own storage is held: what arrives in a gathered copy has none."""
        return max(self.units - self.copies[0][1], 0) if self.fetched and self.copies else self.units

    @property
    def copied(self) -> tuple[tuple[Share, int], ...]:
        """(share, units) of every copy that takes storage because it does not fit into the value's own."""
        return tuple((s, n) for s, n in self.copies if not self.space <= s)

    def gathered(self, axes: Share, units: int) -> Held:
        """The value with one more copy, gathered over `axes` from the last one."""
        share = self.readable - axes
        return self if share == self.readable else replace(self, copies=(*self.copies, (share, units)))

    def freed(self, axes: Share) -> Held:
        """The value whose copies keep, on each rank, only its part along `axes`."""
        kept: list[tuple[Share, int]] = []
        for share, units in self.copies:
            smaller = share | axes
            if smaller < (kept[-1][0] if kept else self.content):
                kept.append((smaller, units))
        return replace(self, copies=tuple(kept))


State = Mapping[Key, Held]


@dataclass(frozen=True, slots=True)
class Visit:
    """One event in the steady state: what is held before it, while it runs, and after it.

    Only live values are held, which are still to be read. `run` numbers the maximal runs of events inside one unit's
    loop; None outside. `position` is the position in the microbatch loop; "" outside. `place` is the event's in the
    program.
    """

    event: Event
    place: int
    run: int | None
    position: str
    before: State
    during: State
    after: State


def owners(event: Event) -> Share:
    """The axes along which `where` selects owners."""
    return frozenset(c.axis for c in event.where if c.rank is None and not c.but)


def positions(microbatches: int | None) -> tuple[str, ...]:
    """The positions of the microbatch loop that occur; a symbolic count has all three."""
    return {1: ("only",), 2: ("first", "last")}.get(microbatches or 3, ("first", "middle", "last"))


def active(event: Event, position: str) -> bool:
    """Whether the event runs at `position`; outside the loop, `at` has no meaning."""
    return event.phase not in LOOPED or takes_part(event.at, position)


def unset(step: Step) -> State:
    """The state before `init`: weights with any content, whole but for what a rank never holds."""
    return {(g.name, "weight", "device"): Held(frozenset(g.split), frozenset(g.split)) for g in step.reference.groups}


def initial(step: Step) -> State:
    """The state before the first step: what `init` makes of the weights."""
    state = unset(step)
    for event in step.phase("init"):
        state = apply(step, state, event)
    return state


def visits(step: Step) -> tuple[Visit, ...]:
    """Every event of one training step, in the steady state."""
    trace = list(_trace(step))
    state = initial(step)
    for event, _, _, _ in trace:
        state = apply(step, state, event)
    found = []
    around = _liveness(step, [event for event, _, _, _ in trace])
    lately: list[tuple[State, frozenset[Key], State]] = []

    def only(state: State, live: frozenset[Key]) -> State:
        """What is live of a state; most events change neither, and have what was found for the one before."""
        for before, then, kept in lately:
            if before is state and then is live:
                return kept
        kept = {key: held for key, held in state.items() if key in live}
        lately[:] = [(state, live, kept), *lately[:2]]
        return kept

    for k, ((event, run, position, place), (early, at, late)) in enumerate(zip(trace, around, strict=True)):
        before, state = state, apply(step, state, event, _prefetched(step, trace, k))
        found.append(Visit(event, place, run, position, only(before, early), only(state, at), only(state, late)))
    return tuple(found)


Visited = tuple[Event, int | None, str, int]
"""(event, run of its unit's loop, position of the microbatch loop, the event's place in the program)."""


def _trace(step: Step) -> Iterator[Visited]:
    runs, start, place = 0, 0, 0
    places = [k for k, e in enumerate(step.events) if e.phase in STEP_PHASES]
    for node in step.tree(*STEP_PHASES):
        inside = isinstance(node, EventLoop) and node.name == MICROBATCH
        for position in positions(step.reference.microbatches) if inside else ("only",):
            place = start
            for part in node.body if isinstance(node, EventLoop) and inside else (node,):
                events = part.body if isinstance(part, EventLoop) else (part,)
                runs += isinstance(part, EventLoop)
                for event in events:
                    if isinstance(event, Event) and active(event, position):
                        yield (event, runs if isinstance(part, EventLoop) else None, position if inside else "",
                               places[place])
                    place += 1
        start = place


def _prefetched(step: Step, trace: list[Visited], k: int) -> int:
    """The number of units fetched or gathered ahead at `k`: only a copy that lives for one use is prefetched."""
    first, run, _, _ = trace[k]
    if first.verb not in ("gather", "fetch") or first.value != "weight" or not step.reference.prefetch:
        return 0
    for event, later, _, _ in trace[k + 1:]:
        if event.phase != first.phase or later != run:
            return 0
        if event.group == first.group and event.verb == "free" and event.value == "weight" and (
                not event.axes or (first.verb == "gather" and {*first.axes} <= {*event.axes})):
            return step.reference.prefetch
    return 0


def apply(step: Step, state: State, event: Event, ahead: int = 0) -> State:
    """The state after `event`, given the state before it: the same object where it changes nothing."""
    gradients = differentiated(step.reference, event)
    if not event.group and not gradients:
        return state
    new = dict(state)
    for name in gradients:
        weight = state.get((name, "weight", "device"))
        share = weight.readable if weight else WHOLE
        new[name, "grad", "device"] = Held(share, share)
    if not event.group:
        return new
    key = (event.group, event.value, event.tiers[1])
    holds = event.effect.holds
    assert holds is not None, f"{event.path}: nothing says what becomes of its share"
    held = _CHANGES[holds](state, state.get(key), event, ahead)
    if held is None:
        new.pop(key, None)
        return new
    own = frozenset(step.reference.group(event.group).split)
    cut = own and holds is not Holding.GATHERED
    new[key] = replace(held, content=held.content | own, space=held.space | own) if cut else held
    return new


Change = Callable[[State, Held | None, Event, int], Held | None]
"""What is held of a value after an event, from the state, what is held of it, and how many units ahead it runs."""


def _same(_state: State, held: Held | None, _event: Event, _ahead: int) -> Held | None:
    return held


def _made(_state: State, held: Held | None, event: Event, _ahead: int) -> Held:
    share = owners(event) & held.space if held else owners(event)
    return Held(share, share)


def _copied(state: State, held: Held | None, event: Event, ahead: int) -> Held | None:
    origin = state.get(origin_of(event)) if event.origin else Held(WHOLE, WHOLE)
    if origin is None:
        return None
    share = origin.readable | owners(event)
    share = share & held.content if held and event.where else share
    return Held(share, share, units=1 + ahead, fetched=event.verb == "fetch")


def _published(state: State, held: Held | None, event: Event, _ahead: int) -> Held | None:
    origin = state.get(origin_of(event))
    if origin is None:
        return held
    gained = (origin.readable - frozenset(event.axes)) | owners(event)
    if held is None:
        return Held(gained, gained)
    return replace(held, content=held.content & gained, space=held.space & gained) if event.axes else held


def _gathered(_state: State, held: Held | None, event: Event, ahead: int) -> Held | None:
    return held and held.gathered(frozenset(event.axes), 1 + ahead)


def _sent_whole(_state: State, held: Held | None, event: Event, _ahead: int) -> Held | None:
    return held and Held(held.content - set(event.axes), held.space - set(event.axes))


def _cut(_state: State, held: Held | None, event: Event, _ahead: int) -> Held | None:
    return held and Held(held.content | set(event.axes), held.space | set(event.axes))


def _summed(_state: State, held: Held | None, event: Event, _ahead: int) -> Held | None:
    return replace(held, content=held.content | set(event.axes)) if held and event.to == "S" else held


def _freed(state: State, held: Held | None, event: Event, ahead: int) -> Held | None:
    if not event.axes:
        return None
    return held.freed(frozenset(event.axes)) if held and held.copies else _cut(state, held, event, ahead)


_CHANGES: Mapping[Holding, Change] = {
    Holding.SAME: _same, Holding.MADE: _made, Holding.COPIED: _copied, Holding.PUBLISHED: _published,
    Holding.GATHERED: _gathered, Holding.SENT_WHOLE: _sent_whole, Holding.CUT: _cut, Holding.SUMMED: _summed,
    Holding.FREED: _freed,
}


def origin_of(event: Event) -> Key:
    """The value that the event copies, sends or sums; no device holds a value named ""."""
    return event.group, event.origin, event.tiers[0]


def differentiated(reference: Reference, event: Event) -> set[str]:
    """The groups to whose gradients a backward event adds."""
    if event.verb != "compute" or event.phase not in ("backward", WEIGHTS):
        return set()
    return {group for group, value, _ in writes(event, reference) if value == "grad"}


def first_contributions(step: Step) -> dict[str, Event]:
    """Group -> the first op whose backward contributes to its gradient, and so sets it."""
    found: dict[str, Event] = {}
    for event in step.phase("backward", WEIGHTS):
        if event.on_gradient:
            for group in differentiated(step.reference, event):
                found.setdefault(group, event)
    return found


def accesses(step: Step, event: Event, first: Mapping[str, Event] = FrozenMap()) -> tuple[set[Key], set[Key]]:
    """(values that the event reads or works on in place, values that it makes anew); the end of a value is neither.

    `first` are the first contributions to gradients, if several ops contribute.
    """
    if event.verb == "free" and not event.axes:
        return set(), set()
    fresh = set(creates(event, step.reference))
    if event.on_tensor:
        fresh -= {(group, "grad", "device") for group, setter in first.items() if setter is not event}
    return {*reads(event, step.reference), *writes(event, step.reference)} - fresh, fresh


def _liveness(step: Step, events: list[Event]) -> list[tuple[frozenset[Key], frozenset[Key], frozenset[Key]]]:
    """For each event, the values live before it, while it runs, after it; the end of a step is followed by its start.

    A value that no event touches is live throughout: it rests. A value at rest keeps its place when a copy replaces it.
    """
    first = first_contributions(step)
    uses = [accesses(step, e, first) for e in events]
    touched = {key for used, fresh in uses for key in used | fresh}
    idle = {(g.name, v, t) for g in step.reference.groups for v in GROUP_VALUES for t in MEMORY_TIERS} - touched
    live = frozenset(idle)
    around: list[tuple[frozenset[Key], frozenset[Key], frozenset[Key]]] = []
    for _ in range(2):
        around, rest = [], live
        for event, (used, fresh) in zip(reversed(events), reversed(uses), strict=True):
            late, ends = live, fresh - rest if event.effect.copies else fresh
            if not used <= late or not ends.isdisjoint(late):
                live = (late - ends) | used
            around.append((live, late if used <= late and fresh <= late else late | used | fresh, late))
    return around[::-1]
