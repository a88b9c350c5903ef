"""Every figure of a program as the largest of some sums of monomials: the figures of `Costs`, without SymPy.

Sums are in the model's own sizes, with known numbers substituted. They are read off the same walk as the formulas, by
code that shares with them the buffers, the pictures and the rows of events, and nothing that writes expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from placealg.cost.activations import in_bytes
from placealg.cost.amounts import Amounts, Tally
from placealg.cost.communication import LINKS, Carried, executions, instances, rows
from placealg.cost.figure import Figure
from placealg.cost.flop import work
from placealg.cost.peak import Held, beyond
from placealg.cost.stage import StageStep
from placealg.cost.storages import DEVICE
from placealg.cost.walk import Walk, walked
from placealg.frozen import FrozenMap
from placealg.placement import MEMORY_TIERS
from placealg.polynomial import SUMS, Polynomial
from placealg.step.program import Step


def sums(program: Step | Walk) -> FrozenMap[str, Figure]:
    """Path -> figure: memory, what is sent in all, over each set of axes and by each collective, flop and schedule.

    `sent.AXES.COLLECTIVE` is what one kind of collective sends over one set of axes, `runs.AXES` the number of runs.

    >>> import placealg as pa
    >>> sums(pa.derive(pa.zero3(), pa.abstract()))["memory.states"].pieces[0]
    Psi*g/dp + Psi*o/dp + Psi*w/dp
    """
    walk = walked(program)
    return FrozenMap({**_memory(walk), **_sent(walk), **_schedule(walk), **_flop(walk)})


def _memory(walk: Walk) -> dict[str, Figure]:
    amounts, rest = walk.amounts, walk.rest
    found = {f"memory.{state}": Figure((bytes_of(amounts, tally),)) for state, tally in walk.resting.items()}
    states = bytes_of(amounts, rest)
    transient = tuple(dict.fromkeys(bytes_of(amounts, states) for states, _ in walk.transient))
    found |= {"memory.states": Figure((states,)), "memory.transient": Figure(transient)}
    found |= {f"memory.{tier}": Figure(_held(walk, walk.on_tier(tier), tier, Tally())) for tier in MEMORY_TIERS[1:]}
    kept = walk.tensors.waited_sum()
    if not walk.unknown:
        found["memory.activations"] = Figure((kept,))
    found["memory.total"] = Figure(tuple(states + kept + piece for piece in transient))
    return {**found, "memory.peak": Figure(_held(walk, walk.peak, DEVICE, rest))}


def _held(walk: Walk, best: Iterable[Held], tier: str, rest: Tally) -> tuple[Polynomial, ...]:
    """The peak of a tier: what all microbatches in flight keep, plus the working set of the current one."""
    amounts, kept, tensors = walk.amounts, walk.tensors.waited_sum(tier), walk.tensors.between(tier)
    below = bytes_of(amounts, rest) + kept
    return tuple(dict.fromkeys(below + bytes_of(amounts, beyond(held, rest))
                               + amounts.known_sum(in_bytes(amounts, beyond(picture, tensors)))
                               for held, picture in best))


def bytes_of(amounts: Amounts, tally: Tally) -> Polynomial:
    """Buffers as a sum of monomials, in bytes."""
    return Polynomial.total(amounts.spelled(part) * each for part, each in amounts.linear(tally, SUMS).items())


def _sent(walk: Walk) -> dict[str, Figure]:
    every = [(row, ",".join(row.event.axes), row_sum(walk, row)) for row in rows(walk) if not row.left_out]
    inside = [each for each in every if each[0].event.verb not in LINKS]

    def by(prefix: str, key: Callable[[Carried, str], str]) -> dict[str, Figure]:
        found: dict[str, list[Polynomial]] = {}
        for row, axes, volume in inside:
            found.setdefault(key(row, axes), []).append(volume)
        return {f"{prefix}{name}": Figure((Polynomial.total(volumes),)) for name, volumes in found.items()}

    return {"communication.total": Figure((Polynomial.total(volume for *_, volume in inside),)),
            **by("communication.by_axes.", lambda row, axes: axes),
            **by("communication.by_phase.", lambda row, axes: row.event.phase),
            **{f"communication.{tier}_link": Figure((Polynomial.total(
                sent for row, _, sent in every if row.collective == f"{tier} link"),)) for tier in MEMORY_TIERS[1:]},
            **by("sent.", lambda row, axes: f"{axes}.{row.collective}"),
            **{f"runs.{name}": _runs(walk, [row for row, axes, _ in inside if axes == name])
               for name in dict.fromkeys(axes for _, axes, _ in inside)}}


def row_sum(walk: Walk, row: Carried, factor: Polynomial | None = None) -> Polynomial:
    """The volume of an event in all its executions; `factor` is as in `Carried.weight`."""
    weight = row.weight(walk.amounts, SUMS, factor)
    if row.event.on_tensor:
        return walk.amounts.known_sum(weight * instances(walk.step, row.event, SUMS))
    if row.group is None:
        return weight
    parts = [part for part in walk.amounts.parts if part[0] == row.event.group]
    whole = Polynomial.total(walk.amounts.spelled((*part[:2], row.cut)) for part in parts)
    return weight * whole


def _runs(walk: Walk, chosen: Iterable[Carried]) -> Figure:
    counts = Polynomial.total(executions(walk.step, row.event, SUMS) for row in chosen)
    return Figure((walk.amounts.known_sum(counts),))


def _flop(walk: Walk) -> dict[str, Figure]:
    if walk.unknown:
        return {}
    total = Polynomial.total(executions(walk.step, event, SUMS).times(each) for event, each in work(walk))
    return {"compute.flop": Figure((walk.amounts.known_sum(total),))}


def _schedule(walk: Walk) -> dict[str, Figure]:
    if not isinstance(walk.step, StageStep):
        return {}
    stage = walk.step.stage
    waits, works = stage.bubble
    return {"schedule.bubble": Figure((stage.value(waits, SUMS),), stage.value(works, SUMS)),
            "schedule.bubble_of_total": Figure((stage.value(waits, SUMS),), stage.value(f"{works} + {waits}", SUMS)),
            "schedule.in_flight": Figure((stage.value(stage.held, SUMS),)),
            **({} if stage.pipeline.actions else {"schedule.waiting": Figure((stage.value(stage.waiting, SUMS),))})}
