"""Memory per device, in bytes: what rests, what is held beyond that while the step runs, and the host's part.

Conventions. A gathered unit is a buffer of its own beside the shard. Backward accumulates in place unless
something else touches `grad` between the computation and its accumulation; then a full-size `grad` of one unit
exists, in the element size `g` of gradients. Collectives and casts work in place: `publish` writes into the
weights. What crosses the host link only to be published or accumulated is so as it arrives, without a buffer.
Sizes of elements are those of verbs.BYTES. A share is 1/n of a group: sizes are taken to divide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from placealg.arith import ONE
from placealg.cost.amounts import Amounts, Tally
from placealg.cost.formula import Formula
from placealg.cost.held import Key, Share, State, accesses, initial, origin_of, visits
from placealg.step.program import GROUP_VALUES, STEP_PHASES, Step
from placealg.step.verbs import BYTES

STATES = {"parameters": ("weight",), "optimizer": ("master", "moments"), "gradients": ("grad", "grad_sum")}
"""State -> its values."""

NO_ACTIVATIONS = "the abstract model has no activations"
NO_GRAPH = "the step runs units whole; `placealg model` lists what their ops save"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes per device. `total` = states + transient (+ activations where they have a formula), without host.

    `parameters`, `optimizer`, `gradients` and their sum `states` rest on the device at a step boundary.
    `transient` is the most that is held beyond rest at once; `peak` the most that is held at once; `host` the
    most that the host holds at once for this device.
    """

    parameters: Formula
    optimizer: Formula
    gradients: Formula
    states: Formula
    activations: Formula
    transient: Formula
    host: Formula
    total: Formula
    peak: Formula

    def items(self) -> tuple[tuple[str, Formula], ...]:
        """(name, formula) of every part, in order."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))


def memory(step: Step) -> Memory:
    """The memory of a step program on its most loaded device (memory has one convention: exact)."""
    amounts, account = Amounts(step.reference), _Account(step)
    rest = account.rest()
    parts = {state: Tally({k: n for k, n in rest.items() if k[2] in {BYTES[v] for v in values}})
             for state, values in STATES.items()}
    states = amounts.formula(amounts.linear(rest), "bytes")
    pictures = [account.picture(*view, "device") for view in account.views()]
    transient = amounts.peak(Tally(p - rest) for p in pictures)
    note = "; ".join(n for n in ("states and transient only", transient.note) if n)
    return Memory(
        **{state: amounts.formula(amounts.linear(tally), "bytes") for state, tally in parts.items()},
        states=states,
        activations=Formula.none("bytes", NO_ACTIVATIONS if step.reference.abstract else NO_GRAPH),
        transient=transient,
        host=amounts.peak(account.picture(*view, "host") for view in account.views()),
        total=amounts.made(states.expr + transient.expr, "bytes", note=note),
        peak=amounts.peak(pictures),
    )


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
        return self.picture("", state, state, "device")

    def views(self) -> Iterator[tuple[str, State, State]]:
        """(unit at work, what its instance at work holds, what the others hold) at every event."""
        ends = {v.run: v.after for v in self.visits if v.run is not None}
        starts: dict[int | None, State] = {}
        for visit in self.visits:
            if visit.run is None:
                yield "", visit.during, visit.during
                continue
            unit = self.step.unit_of(visit.event)
            starts.setdefault(visit.run, visit.before)
            yield unit, visit.during, starts[visit.run]
            yield unit, visit.during, ends[visit.run]

    def picture(self, unit: str, work: State, wait: State, tier: str) -> Tally:
        """The buffers on `tier`, when one instance of `unit` holds `work` and its others hold `wait`."""
        tally = Tally()
        for group in self.step.reference.groups:
            for part in ("one", "others") if group.count != ONE else ("one",):
                state = wait if part == "others" and group.unit == unit else work
                for size, share, copies in self._buffers(state, group.name, tier):
                    tally[group.name, part, size, share] += copies if part == "one" else 1
        return tally

    def _buffers(self, state: State, group: str, tier: str) -> Iterator[tuple[str, Share, int]]:
        held = {v: state[group, v, tier] for v in GROUP_VALUES
                if (group, v, tier) in state and (group, v, tier) not in self.streamed}
        if tier == "device" and group in self.in_place:
            held.pop("grad", None)
        for value, mine in held.items():
            yield BYTES[value], mine.space, 1
            if mine.buffer is not None:
                yield BYTES[value], mine.buffer, mine.copies
