"""Memory per device, in bytes: what rests, what is held beyond that while the step runs, and the host's part.

Conventions. A gathered unit is a buffer of its own beside the shard. Backward accumulates in place unless
something else touches `grad` between the computation and its accumulation; then a full-size `grad` of one unit
exists, in the element size `g` of gradients. Collectives and casts work in place: `publish` writes into the
weights. What crosses the host link only to be published or accumulated is so as it arrives, without a buffer.
Sizes of elements are those of verbs.BYTES. A share is 1/n of a group: sizes are taken to divide, unless the strategy
fills shares up (shards.py). Tensors of an op graph are those of activations.py; an op makes a new buffer, an all_reduce
works in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

from placealg.arith import ONE
from placealg.cost.activations import Activations, Picture
from placealg.cost.amounts import Amounts, Buffer, Tally
from placealg.cost.formula import Formula
from placealg.cost.held import Key, Share, State, accesses, initial, origin_of, visits
from placealg.cost.peak import peak
from placealg.cost.stage import NO_SIZES, Sizes, StageStep, candidates, local, on_stage
from placealg.notebook_display import Shown
from placealg.placement import MEMORY_TIERS
from placealg.step.program import GROUP_VALUES, STEP_PHASES, Step
from placealg.step.verbs import BYTES
from placealg.strategy.options import ACC, USE

STATES = {"parameters": ("weight",), "optimizer": ("master", "moments"), "gradients": ("grad", "grad_sum")}
"""State -> its values."""

NO_ACTIVATIONS = "the abstract model has no activations"
NO_GRAPH = "the step runs units whole; `placealg model` lists what their ops save"


@dataclass(frozen=True, slots=True)
class Memory(Shown):
    """Bytes per device. `total` = states + transient (+ activations where they have a formula), without host.

    `parameters`, `optimizer`, `gradients` and their sum `states` rest on the device at a step boundary.
    `activations` is what forward keeps for backward. `transient` is the most that is held of states beyond rest at
    once; `peak` the most that is held at once, with all tensors that are there; `host` and `nvme` the most that those
    tiers hold at once for this device.
    """

    parameters: Formula
    optimizer: Formula
    gradients: Formula
    states: Formula
    activations: Formula
    transient: Formula
    host: Formula
    nvme: Formula
    total: Formula
    peak: Formula

    def items(self) -> tuple[tuple[str, Formula], ...]:
        """(name, formula) of every part, in order."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))


def memory(step: Step, statistics: bool = False) -> Memory:
    """The memory of a step program on its most loaded device (memory has one convention: exact).

    `statistics` counts the row statistics that norms keep for backward. Of a step with a pipeline: a device of the
    first stage, or of the one whose program the step is.
    """
    step = local(step)
    amounts, account = Amounts(step.reference), _Account(step)
    tensors = Activations(step, amounts, statistics) if step.reference.graph else None
    rest = account.rest()
    parts = {state: Tally({k: n for k, n in rest.items() if k[2] in {BYTES[v] for v in values}})
             for state, values in STATES.items()}
    states = amounts.formula(amounts.linear(rest), "bytes")
    views = list(account.views())
    pictures = [account.picture(view, "device") for view in views]
    distinct = list({id(p): p for p in pictures}.values())
    transient = peak(amounts, [(Tally(p - rest), Picture()) for p in distinct])
    activations = tensors.total() if tensors else Formula.none(
        "bytes", NO_ACTIVATIONS if step.reference.abstract else NO_GRAPH)
    total = states.expr + transient.expr + (activations.expr if tensors else 0)
    notes = (activations.note or "states and transient only", transient.note)
    held = account.tensors(tensors) if tensors else {}
    return Memory(
        **{state: amounts.formula(amounts.linear(tally), "bytes") for state, tally in parts.items()},
        states=states,
        activations=activations,
        transient=transient,
        **{tier: peak(amounts, [(account.picture(view, tier), Picture()) for view in views])
           for tier in MEMORY_TIERS[1:]},
        total=amounts.made(total, "bytes", note="; ".join(n for n in notes if n)),
        peak=peak(amounts, [(picture, held.get(view.visit, Picture()))
                            for view, picture in zip(views, pictures, strict=True)],
                  *((rest, tensors.between()), tensors.waited()) if tensors else ((rest, Picture()),)),
    )


def chosen(step: Step, stage: int | str | None = None, sizes: Sizes = NO_SIZES) -> Step:
    """The program of the device whose costs are told: of a step with a pipeline that of a stage, else the step.

    `stage` is a number from 0, `first` or `last`. Without one it is the stage whose `memory(...).total` is the largest
    at `sizes` and what is bound; the first where that is no number.
    """
    if stage is not None or step.reference.pipeline is None or isinstance(step, StageStep):
        return step if stage is None else on_stage(step, stage, sizes)
    every = [on_stage(step, number, sizes) for number in candidates(step.reference, sizes)]
    if len(every) == 1:
        return every[0]
    loads = []
    for one in every:
        total = _total(one)
        value = total.value(**{n: size for n, size in sizes.items() if n in total.inputs})
        if value is None:
            return every[0]
        loads.append(value)
    return replace(every[loads.index(max(loads))], most_loaded=True)


def _total(step: StageStep) -> Formula:
    """The `total` of `memory`, alone."""
    amounts, account = Amounts(step.reference), _Account(step)
    rest = account.rest()
    every = [account.picture(view, "device") for view in account.views()]
    pictures = {id(p): p for p in every}
    transient = peak(amounts, [(Tally(p - rest), Picture()) for p in pictures.values()])
    states = amounts.formula(amounts.linear(rest), "bytes")
    return amounts.made(states.expr + transient.expr + Activations(step, amounts).waited(), "bytes")


@dataclass(frozen=True, slots=True)
class View:
    """What is held at one visit: one instance of `unit` holds `work`, its other instances `others`."""

    visit: int
    unit: str
    work: State
    others: State


class _Account:
    """The buffers of one program: which are held at every event, by the first and by the last instance of a unit.

    Inside a unit's loop an instance is at work while the others wait, before their turn or after it; what is
    held is linear in the instance's number, so the first and the last one bound all.
    """

    def __init__(self, step: Step):
        self.step = step
        self.visits = visits(step)
        self.in_place = frozenset(g.name for g in step.reference.groups if self._accumulates_in_place(g.name))
        self.streamed = self._streamed()
        self.reduced_once = frozenset(e.group for e in step.events if e.verb == "reduce" and e.value == "grad_sum")
        self.counted: tuple[str, str, State, Tally] = ("", "", {}, Tally())
        self.made: dict[int, Tally] = {}
        self.known: dict[tuple[str, str, int], tuple[State, Tally]] = {}

    def _accumulates_in_place(self, group: str) -> bool:
        """Whether nothing stands between a gradient's computation and its accumulation, in one layout."""
        grad, total = (group, "grad", "device"), (group, "grad_sum", "device")
        alike = all(v.before[grad].space == v.before[total].space for v in self.visits
                    if v.event.group == group and v.event.verb == "accumulate" and {grad, total} <= set(v.before))
        return alike and not any(e.group == group and "grad" in (e.value, e.source) for e in self.step.events)

    def _streamed(self) -> frozenset[Key]:
        """The values that cross the host link only to be published or accumulated: that happens as they arrive."""
        arriving: set[Key] = set()
        kept: set[Key] = set()
        for event in self.step.phase(*STEP_PHASES):
            if event.verb in ("offload", "fetch"):
                arriving.add((event.group, event.value, event.tiers[1]))
            used = accesses(self.step, event)[0]
            kept |= used - {origin_of(event)} if event.verb in ("publish", "accumulate") else used
        return frozenset(arriving - kept)

    def rest(self) -> Tally:
        """What the device holds at a step boundary."""
        state = self.visits[0].before if self.visits else initial(self.step)
        return self.picture(View(0, "", state, state), "device")

    def tensors(self, activations: Activations) -> dict[int, Picture]:
        """Number of a visit in the microbatch loop -> the tensors held then."""
        found: dict[int, Picture] = {}
        known: dict[tuple[int, ...], tuple[Picture, ...]] = {}
        for position in dict.fromkeys(v.position for v in self.visits if v.position):
            inside = [k for k, v in enumerate(self.visits) if v.position == position]
            events = [self.visits[k].event for k in inside]
            key = tuple(map(id, events))
            if key not in known:
                known[key] = activations.pictures(events)
            found.update(zip(inside, known[key], strict=True))
        return found

    def views(self) -> Iterator[View]:
        """What is held at every event; inside a unit's loop, with the other instances before it and after it."""
        ends = {v.run: v.after for v in self.visits if v.run is not None}
        starts: dict[int | None, State] = {}
        for k, visit in enumerate(self.visits):
            if visit.run is None:
                yield View(k, "", visit.during, visit.during)
                continue
            unit = self.step.unit_of(visit.event)
            starts.setdefault(visit.run, visit.before)
            yield View(k, unit, visit.during, starts[visit.run])
            yield View(k, unit, visit.during, ends[visit.run])

    def picture(self, view: View, tier: str) -> Tally:
        """The buffers of states on `tier`; the same object where they are those of the view before."""
        self._count(view, tier)
        waiting = self._waiting(view, tier)
        if id(waiting) not in self.made:
            tally = self.made[id(waiting)] = Tally(self.counted[-1])
            for buffer, count in waiting.items():
                tally[buffer] += count
        return self.made[id(waiting)]

    def _count(self, view: View, tier: str) -> None:
        """Count the buffers of what is at work, and of the other instances of all units but the view's.

        Kept up from view to view: only groups of which something else is held than before are counted anew.
        """
        if (tier, view.unit) != self.counted[:2]:
            self.counted = (tier, view.unit, {}, Tally())
            self.made = {}
        _, _, before, tally = self.counted
        now = view.work
        changed = {key[0] for key, held in now.items() if before.get(key) is not held}
        changed.update(key[0] for key in before if key not in now)
        for group in (g for g in self.step.reference.groups if g.name in changed):
            parts = ("one", "others") if group.count != ONE and group.unit != view.unit else ("one",)
            for state, sign in ((before, -1), (now, 1)):
                for buffer, count in self._of_group(state, group.name, tier, parts):
                    tally[buffer] += sign * count
                    if not tally[buffer]:
                        del tally[buffer]
        self.counted = (tier, view.unit, now, tally)
        if changed:
            self.made = {}

    def _waiting(self, view: View, tier: str) -> Tally:
        """The buffers of the view's unit's other instances."""
        key = (tier, view.unit, id(view.others))
        if key not in self.known:
            tally = Tally()
            for group in self.step.reference.groups:
                if group.unit == view.unit and group.count != ONE:
                    for buffer, count in self._of_group(view.others, group.name, tier, ("others",)):
                        tally[buffer] += count
            self.known[key] = view.others, tally
        return self.known[key][1]

    def _of_group(self, state: State, group: str, tier: str, parts: Iterable[str]) -> Iterator[tuple[Buffer, int]]:
        for size, share, copies in self._buffers(state, group, tier):
            for part in parts:
                yield (group, part, size, share), copies if part == "one" else 1

    def _buffers(self, state: State, group: str, tier: str) -> Iterator[tuple[str, Share, int]]:
        held = {v: state[group, v, tier] for v in GROUP_VALUES
                if (group, v, tier) in state and (group, v, tier) not in self.streamed}
        if tier == "device" and group in self.in_place:
            held.pop("grad", None)
        types = self.step.reference.types.plus(self.step.reference.group(group).types)
        for value, mine in held.items():
            rests, copied = BYTES[value], BYTES[value]
            if value == "weight" and USE in types:
                copied = USE
            if ACC in types and (value == "grad" or (value == "grad_sum" and group in self.reduced_once)):
                rests = copied = ACC
            storage, *copies = mine.buffers
            yield (rests, *storage)
            yield from ((copied, share, units) for share, units in copies)
