"""`[overlap]`: the streams and waits that an engine gives to a derived program, as rules over its events.

Each rule puts collectives on a stream of their own, and in the places where the engine does it lets streams wait for
each other. What real systems wait for was read in their source: PyTorch 2.13 `_fully_shard` (a gather stream, a ring of
flat buffers that are copied out on the compute stream, a reduce stream with one input buffer), DeepSpeed edaa7221 (an
all-gather stream that runs ahead, freed copies recorded on the compute stream, a reduction stream that the host waits
for), Megatron-LM d98e8a64 (the handle of each asynchronous collective is waited for where its result is used).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from placealg.frozen import FrozenMap
from placealg.step.event import LOOPED, STEP_PHASES, Event, Phase, Reference, Rule
from placealg.step.order import COMPUTE, COPY, HOST, JOIN, ORDERING, Wait
from placealg.step.program import Step
from placealg.strategy.buffers import SIZE, Buffer
from placealg.strategy.spec import Strategy

FLAT, INPUT, REDUCED = "flat", "reduce_input", "reduced"
"""Buffers: what a gather receives, what a reduction reads, and what it leaves."""

OUTSIDE = "streams and waits of a pipeline's stages, of which [overlap] speaks"
"""What no verdict covers of a pipeline that says [overlap]."""


@dataclass(frozen=True)
class Overlap:
    """What a strategy says in [overlap], and the program to which it applies."""

    reference: Reference
    events: tuple[Event, ...]
    gather: bool
    reduce: bool
    prefetch: int
    slots: int | str

    def repeated(self, event: Event) -> bool:
        """Whether the event runs in the loop of a repeated unit."""
        unit = self.reference.unit_of(event)
        return bool(unit) and self.reference.unit(unit).repeated

    def gathers(self) -> Iterator[tuple[Event, ...]]:
        """The gathers of a group's weight for one use, with what fetches it for them: one tuple for each use."""
        found: list[Event] = []
        for event in self.events:
            weight = event.value == "weight" and event.phase in LOOPED and event.verb in ("gather", "fetch")
            if found and (not weight or event.group != found[0].group or event.phase != found[0].phase):
                if found[-1].verb == "gather":
                    yield tuple(found)
                found = []
            if weight:
                found.append(event)

    def reductions(self, *phases: Phase) -> Iterator[tuple[Event, ...]]:
        """The reductions of a group's gradient that follow each other, and what then divides or adds up the result."""
        found: list[Event] = []
        for event in self.events:
            sums = event.phase in phases and event.value in ("grad", "grad_sum") and bool(event.group)
            more = bool(found) and event.verb in ("scale", "slice", "offload", "accumulate", "reduce")
            if found and not (sums and more and event.group == found[0].group):
                yield tuple(found)
                found = []
            if sums and (found or event.verb == "reduce"):
                found.append(event)
        if found:
            yield tuple(found)


class Listing:
    """A program in the making: the derived events, changed or not, with others beside them."""

    def __init__(self, said: Overlap) -> None:
        self.events = list(said.events)
        self.unit = said.reference.unit_of

    def named(self, event: Event) -> Event:
        """The event, numbered where its path is taken."""
        while any(e.path == event.path for e in self.events):
            event = replace(event, copy=event.copy + 1)
        return event

    def at(self, path: str) -> int:
        """Where an event stands."""
        return next(n for n, e in enumerate(self.events) if e.path == path)

    def change(self, path: str, **fields: Any) -> None:
        """Set fields of an event."""
        place = self.at(path)
        self.events[place] = replace(self.events[place], **fields)

    def beside(self, path: str, event: Event, before: bool = False) -> Event:
        """Put an event before or behind another."""
        event = self.named(event)
        self.events.insert(self.at(path) + (not before), event)
        return event


def _join(phase: Phase, stream: str, of: str = "", unit: str = "", why: str = "",
          waits: tuple[Wait, ...] = ()) -> Event:
    return Event(phase, JOIN, stream, unit=unit, of=of, waits=waits, rule=Rule("overlap", why))


def _copy(event: Event, why: str, **fields: Any) -> Event:
    return Event(event.phase, COPY, event.value, event.group, rule=Rule("overlap", why), **fields)


def _ends(events: Sequence[Event], *phases: str) -> tuple[Event, Event] | None:
    """The first and the last event of some phases."""
    found = [e for e in events if e.phase in phases]
    return (found[0], found[-1]) if found else None


def _on_host(listing: Listing) -> None:
    """What the optimizer does on the host the host does as it issues it, once the streams have ended what they have."""
    before = COMPUTE
    for event in tuple(listing.events):
        away = event.tiers == AWAY and event.phase in STEP_PHASES and event.verb not in ORDERING
        if away and before != HOST:
            listing.beside(event.path, _join(event.phase, HOST, before, listing.unit(event), "the host waits for the "
                                             "stream that made what it reads"), before=True)
        if away:
            listing.change(event.path, stream=HOST, waits=(), out_of="", into="")
        before = HOST if away else COMPUTE if event.verb == JOIN else event.stream or COMPUTE


AWAY = ("host", "host")
"""The tiers of an event that the host runs."""

Made = tuple[Listing, dict[str, Buffer]]


def _fsdp2(said: Overlap) -> Made:
    listing, buffers = Listing(said), dict[str, Buffer]()
    gathered = list(said.gathers()) if said.gather else []
    for run in gathered:
        last = run[-1]
        copy = listing.beside(last.path, _copy(last, "what was gathered is copied out of the flat buffer, where it is "
                                               "used", out_of=FLAT, waits=(Wait(last.path),)))
        free = (Wait(copy.path, f"-{SIZE}" if said.slots == SIZE else -int(said.slots)),)
        early = last.phase == "backward" and said.repeated(last) and said.prefetch
        for event in run:
            listing.change(event.path, stream="gather", into=FLAT if event is last else "",
                           waits=free if said.repeated(last) and event is last else (),
                           ahead=said.prefetch if early else 0, behind=copy.path if early else "")
    if gathered:
        buffers[FLAT] = Buffer(size=said.slots)
        start, end = _ends(said.events, "forward") or (said.events[0], said.events[-1])
        listing.beside(start.path, _join("forward", "gather", COMPUTE, why="the first gather waits for the update, and "
                                         "for the copies of the last microbatch"), before=True)
        listing.beside(end.path, _join("forward", "gather", COMPUTE, why="backward's first gather waits for the copies "
                                       "out of forward's last buffers"))
    ended: dict[str, None] = {}
    for run in said.reductions("backward") if said.reduce else ():
        first = run[0]
        reduces = [e for e in run if e.verb == "reduce"]
        why, earlier = "a gradient is copied into the input of its reduction", tuple[Wait, ...]()
        if said.repeated(first):
            why, earlier = f"{why}, once the reduction before has read that", (Wait(first.path, -1),)
        packed = listing.beside(first.path, _copy(first, why, into=INPUT, waits=earlier), before=True)
        stream = "reduce"
        for number, event in enumerate(run):
            waits: tuple[Wait, ...] = ()
            if number == 0:
                waits = (Wait(packed.path),)
                if len(reduces) > 1 and said.repeated(first):
                    waits += (Wait(run[-1].path, -1),)
            elif event.verb == "reduce":
                stream, waits = "all_reduce", (Wait(run[number - 1].path),)
            if event.tiers == AWAY:
                continue
            keeps = event.verb not in ("accumulate", "offload")
            listing.change(event.path, stream=stream, waits=waits, out_of=INPUT if number == 0 else REDUCED,
                           into=REDUCED if keeps else "")
            ended[stream] = None
        buffers[INPUT] = Buffer()
        buffers[REDUCED] = Buffer() if len(reduces) > 1 else Buffer("alloc", home="reduce")
    _joined_at_end(said, listing, ended, COMPUTE, "the update waits for the last reductions")
    if said.reduce:
        _reduced_behind(said, listing, "reduce")
    return listing, buffers


def _joined_at_end(said: Overlap, listing: Listing, streams: Mapping[str, None], waiter: str, why: str) -> None:
    """A join behind the backward of a microbatch."""
    ends = _ends(said.events, *LOOPED)
    for stream in streams if ends else ():
        listing.beside(listing.events[max(n for n, e in enumerate(listing.events) if e.phase in LOOPED)].path,
                       _join("backward", waiter, stream, why=why))


def _reduced_behind(said: Overlap, listing: Listing, stream: str) -> None:
    """Reductions behind the loop over microbatches: their stream waits for compute, which then waits for it."""
    found = [e for run in said.reductions("reduce") for e in run]
    if not found:
        return
    for event in found:
        listing.change(event.path, stream=stream)
    listing.beside(found[0].path, _join("reduce", stream, COMPUTE, why="the reductions wait for the backward"),
                   before=True)
    listing.beside(found[-1].path, _join("reduce", COMPUTE, stream, why="the update waits for the reductions"))


def _deepspeed(said: Overlap) -> Made:
    unit_of = said.reference.unit_of
    listing, buffers = Listing(said), dict[str, Buffer]()
    gathered = list(said.gathers()) if said.gather else []
    for run in gathered:
        last, early = run[-1], said.prefetch if said.repeated(run[-1]) else 0
        join = listing.beside(last.path, _join(last.phase, COMPUTE, "allgather", unit_of(last), "what is fetched is "
                                               "waited for where it is used; what comes next is then issued"))
        for event in run:
            listing.change(event.path, stream="allgather", ahead=early, behind=join.path if early else "")
    if gathered:
        buffers["gathered"] = Buffer("alloc", home="allgather", recorded=(COMPUTE,))
        ends = _ends(said.events, "publish", "update")
        if ends:
            listing.beside(ends[1].path, _join(ends[1].phase, "allgather", COMPUTE, why="the parameters that are never "
                                               "partitioned are gathered behind the update, on the same stream"))
    reduced = list(said.reductions("backward")) if said.reduce else []
    for run in reduced:
        listing.beside(run[0].path, _join("backward", "reduce", COMPUTE, unit_of(run[0]), "the reduction waits for "
                                          "what has been computed"), before=True)
        for event in run:
            listing.change(event.path, stream="reduce")
    if reduced:
        buffers["grad"] = Buffer("alloc", home=COMPUTE, recorded=("reduce",))
        _joined_at_end(said, listing, {"reduce": None}, HOST, "the host waits for the reductions")
    if said.reduce:
        _reduced_behind(said, listing, "reduce")
    return listing, buffers


def _megatron(said: Overlap) -> Made:
    unit_of = said.reference.unit_of
    listing = Listing(said)
    stream = "nccl"
    for run in said.gathers() if said.gather else ():
        last = run[-1]
        listing.beside(run[0].path, _join(last.phase, stream, COMPUTE, unit_of(last), "a collective waits for the "
                                          "stream that issues it"), before=True)
        for event in run:
            listing.change(event.path, stream=stream)
        listing.beside(last.path, _join(last.phase, COMPUTE, unit=unit_of(last), waits=(Wait(last.path),),
                                        why="the handle of the gather is waited for where its result is used"))
    if said.gather:
        _published_early(said, listing, stream)
    for run in said.reductions("backward") if said.reduce else ():
        listing.beside(run[0].path, _join("backward", stream, COMPUTE, unit_of(run[0]), "a collective waits for the "
                                          "stream that issues it"), before=True)
        for event in run:
            listing.change(event.path, stream=stream)
    if said.reduce and any(said.reductions("backward")):
        _joined_at_end(said, listing, {stream: None}, COMPUTE, "the update waits for the last reductions")
    found = [e for run in said.reductions("reduce") for e in run] if said.reduce else []
    for event in found:
        added = [e.path for e in said.events if e.group == event.group and e.verb == "accumulate"]
        listing.change(event.path, stream=stream, waits=tuple(map(Wait, added[-1:])))
    if found:
        listing.beside(found[-1].path, _join("reduce", COMPUTE, stream, why="the update waits for the reductions"))
    return listing, {}


def _published_early(said: Overlap, listing: Listing, stream: str) -> None:
    """Publishes beside the next step's forward, which waits for each where it uses the parameters."""
    unit_of = said.reference.unit_of
    published = [e for e in said.events if e.verb == "publish" and e.axes and e.phase == "publish"]
    if not published:
        return
    listing.beside(published[0].path, _join("publish", stream, COMPUTE, why="a collective waits for the stream that "
                                            "issues it"), before=True)
    for event in published:
        listing.change(event.path, stream=stream)
    for group in dict.fromkeys(e.group for e in published):
        last = [e for e in published if e.group == group][-1]
        sites = said.reference.group(group).sites
        for unit in sites:
            first = next((e for e in listing.events if e.phase == "forward" and unit_of(e) == unit), None)
            if first is not None:
                listing.beside(first.path, _join("forward", COMPUTE, unit=unit, waits=(Wait(last.path, step=-1),), why=(
                    "a unit waits for the gather of its parameters where it first uses them")), before=True)


_WAITS: Mapping[str, Callable[[Overlap], Made]] = {"fsdp2": _fsdp2, "deepspeed": _deepspeed, "megatron": _megatron}


def _slots(strategy: Strategy) -> int | str:
    """The flat buffers of a strategy. Gathers two turns ahead fill two at once: a ring of any size then has two."""
    slots, ahead = strategy.option("overlap", "buffers"), int(strategy.option("overlap", "prefetch"))
    return ahead if slots == SIZE and ahead > 1 else slots


def held_ahead(strategy: Strategy) -> int:
    """How many gathered units a device holds beside the one in use, as [overlap] says: flat buffers, or those ahead.

    >>> from placealg.strategy.spec import strategy_on
    >>> held_ahead(strategy_on("mine", {"dp": 8}, overlap={"waits": "fsdp2", "buffers": 2})), held_ahead(strategy_on(
    ...     "mine", {"dp": 8}, overlap={"waits": "deepspeed", "prefetch": 3}))
    (2, 3)
    """
    engine, gathers = strategy.option("overlap", "waits"), bool(strategy.option("overlap", "gather"))
    slots, ahead = _slots(strategy), int(strategy.option("overlap", "prefetch"))
    if not gathers or strategy.pipeline_axis:
        return 0
    return slots if engine == "fsdp2" and isinstance(slots, int) else ahead if engine == "deepspeed" else 0


def overlapped(step: Step, strategy: Strategy) -> Step:
    """The step with the streams and waits that its strategy says in [overlap]; the same step where it says none."""
    engine, said = str(strategy.option("overlap", "waits")), dict(strategy.tables.get("buffers", FrozenMap()))
    reference = replace(step.reference, buffers=FrozenMap(said)) if said else step.reference
    if engine not in _WAITS:
        return replace(step, reference=reference)
    if reference.pipeline.axis:
        return replace(step, reference=replace(reference, left_out=(*reference.left_out, OUTSIDE)))
    option = {key: strategy.option("overlap", key) for key in ("gather", "reduce", "prefetch")}
    listing, buffers = _WAITS[engine](Overlap(reference, step.events, **option, slots=_slots(strategy)))
    _on_host(listing)
    made = replace(step, reference=replace(reference, buffers=FrozenMap({**buffers, **said})))
    return made.listed(listing.events)
