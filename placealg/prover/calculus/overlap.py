"""Microbatches that overlap on a stage: what copies of states a forward or a backward may find, in every order.

Where a stage runs other forwards and backwards between those of a microbatch, and these gather or free copies of
parameters, the copies that it finds depend on the order. Every order is followed at once: from what the first forward
leaves, whatever forwards up to the last one's and whatever backwards come next, until no state is new; then the last
backward. That is more than any order of a pipeline does, so that what all of them read right is right in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placealg.prover.calculus.machine import Machine
from placealg.prover.calculus.microbatches import Iteration
from placealg.prover.calculus.places import NoRule
from placealg.step.program import Event

Parts = tuple[tuple[Event, ...], tuple[Event, ...]]
"""The events of a microbatch's forward, and those of its backward."""

_MOST = 32
"""The most states of copies that are followed."""

FIRST, LAST = ("first", "only"), ("last", "only")
"""The positions of the microbatch whose forward a stage runs before all else, and whose backward behind all else."""


def in_every_order(start: Machine, end: Machine, parts: Parts, iterations: Sequence[Iteration],
                   run: Callable[[Machine, tuple[Event, ...], Iteration], None]) -> None:
    """Add to `end` what forwards and backwards read in every order from `start`; `run` runs one.

    Raises NoRule if what they leave behind depends on the order, or if there are too many states to follow.
    """
    ahead, behind = parts

    def after(state: Machine, events: tuple[Event, ...], iteration: Iteration) -> Machine:
        found = state.copy()
        found.begin()
        run(found, events, iteration)
        end.reads += [read for read in found.reads if read not in end.reads]
        end.relied += [one for one in found.relied if one not in end.relied]
        return found

    states = [(after(start, ahead, next(i for i in iterations if i.position in FIRST)), False)]
    for state, done in states:
        for iteration in iterations:
            coming = [] if done or iteration.position in FIRST else [(ahead, iteration.position in LAST)]
            coming += [] if iteration.position in LAST else [(behind, done)]
            for events, so_far in coming:
                found = after(state, events, iteration)
                if all((found.versions, so_far) != (known.versions, other) for known, other in states):
                    states.append((found, so_far))
        if len(states) > _MOST:
            raise NoRule(behind[-1].path, f"microbatches overlap in a pipeline, and leave {end.group.name} in more "
                         f"than {_MOST} states")
    last = next(i for i in iterations if i.position in LAST)
    if any(done and after(state, behind, last).versions != end.versions for state, done in states):
        raise NoRule(behind[-1].path, "microbatches overlap in a pipeline, and what they leave of copies of "
                     f"{end.group.name} depends on their order")
