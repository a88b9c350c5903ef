"""Stages of a pipeline: each instance of a unit belongs to one rank of an axis, whichever.

What is printed runs one microbatch after the other. Stages run their items, of several microbatches, in another order:
that any order in which each backward follows its forward gives the same is `any_order` of proofs/coq/Pipeline.v, and
that an order is one of these is the obligation `schedule`. Held here is what that theorem assumes of a program.
"""

from __future__ import annotations

from dataclasses import dataclass

from placealg.prover.kernel.outside import Outside
from placealg.step.event import LOOPED
from placealg.step.program import Step
from placealg.step.verbs import COUNTERS


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages to which a step's units belong along the axis of its pipeline, as ways of splitting.

    An instance of a repeated unit has its own: any assignment of instances to stages is one. What comes before the
    first repeated unit, or behind one, has that of the instance beside it.
    """

    axis: str
    units: tuple[str, ...]
    repeated: tuple[str, ...]

    def of(self, unit: str) -> str:
        """The stage of a unit; of a repeated one, of the instance that runs."""
        if unit in self.repeated:
            return f"stage of {unit}"
        return self.between(sum(self.units.index(one) < self.units.index(unit) for one in self.repeated))

    def between(self, loops: int) -> str:
        """The stage behind so many repeated units."""
        return f"stage behind {loops} loops"

    def moves(self, unit: str) -> tuple[str, str, str, str]:
        """The stages of what enters a repeated unit, of an instance, of the one behind it, of what follows the last."""
        at = self.repeated.index(unit)
        return self.between(at), self.of(unit), f"stage behind an instance of {unit}", self.between(at + 1)

    @property
    def ways(self) -> tuple[str, ...]:
        """All of them."""
        found = [w for unit in self.repeated for w in self.moves(unit)] or [self.between(0)]
        return tuple(dict.fromkeys(found)) if self.axis else ()


def one_after_the_other(step: Step) -> Step:
    """The step; raises Outside where its items cannot be taken in another order: one leaves what others find."""
    axis = step.reference.pipeline.axis
    for e in step.events if axis else ():
        if e.phase not in LOOPED:
            continue
        if axis in e.axes and e.verb not in ("send", "recv"):
            raise Outside(e.path, "stages do it together, and each has items of its own in between")
        if e.value in COUNTERS and e.verb == "update":
            raise Outside(e.path, "a stage counts in the order of its items")
        if e.at and not {"first", "middle", "last"} <= {*e.at}:
            raise Outside(e.path, f"at = {', '.join(e.at)}: of a stage's items it is not said which one that is")
        if e.phase == "forward" and e.verb == "accumulate":
            raise Outside(e.path, "a forward adds to a gradient")
    return step
