"""The rules of checkpoints: who stores what behind a step, and how a resumed run comes by it.

Weights, moments and averages of weights are stored where they rest; the master copy follows from the weights.
`owners`: every rank stores what rests with it. `replica`: of several ranks with which the same rests the first one.
`one`: one rank, or one for each part of what is split by its dims, stores what all of them have, gathered. Where not
every rank has stored its own, a resumed run broadcasts what was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placealg.placement import MEMORY_TIERS
from placealg.step.event import Phase
from placealg.step.groups import Plan, owners
from placealg.step.program import Clause, Event, Rule
from placealg.step.rules import carry, global_states
from placealg.step.verbs import VerbName

OWNERS, REPLICA, ONE = "owners", "replica", "one"
"""Who stores."""

PARAMETERS = "parameters"
"""A checkpoint of weights alone: nothing is resumed from it."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What a strategy says of its checkpoints: `by` whom they are stored, and what one `holds`."""

    by: str
    holds: str

    def alone(self, axes: tuple[str, ...]) -> tuple[Clause, ...]:
        """The condition of being the one that stores, among the ranks along some axes."""
        return tuple(Clause(a, 0) for a in axes) if self.by != OWNERS else ()

    def save(self, plan: Plan) -> Iterator[Event]:
        """What a step leaves of a group goes to the checkpoint."""
        yield from self._store(plan, "weight", plan.gathered, plan.weight_tier)
        if not plan.group.frozen and self.holds != PARAMETERS:
            yield from self._store(plan, "moments", plan.owned, plan.state_tier)
            if plan.averaged != "none":
                yield from self._store(plan, "average", *plan.average_rests)

    def _store(self, plan: Plan, value: str, cut: tuple[str, ...], tier: str) -> Iterator[Event]:
        group, held = plan.group.name, "weights alone" if self.holds == PARAMETERS else \
            "weights, moments, step and random state"
        rule = Rule("save_state", f"a checkpoint holds {held}")
        together = self.by == ONE and cut
        if together:
            gather: VerbName = "gather" if value == "weight" else "all_gather"
            yield Event("save", gather, value, group, axes=cut, source="S", to="R" if value == "weight" else "I",
                        tier=tier, rule=Rule("save_state", f"one rank stores what rests along {' and '.join(cut)}"))
        where = self.alone(plan.axes) if self.by == ONE else (
            *owners(cut), *self.alone(tuple(a for a in plan.axes if a not in cut)))
        yield Event("save", "store", value, group, where=where, tier=tier, rule=rule)
        if together:
            yield Event("save", "free", value, group, axes=cut, tier=tier, rule=Rule(
                "save_state", "the gathered copy ends with the save"))

    def resume(self, plan: Plan) -> Iterator[Event]:
        """A resumed run loads what was stored, and refreshes the master copy from the weights."""
        group = plan.group.name
        yield from self._load(plan, "weight", plan.gathered, plan.weight_tier)
        if plan.group.frozen:
            return
        yield from self._load(plan, "moments", plan.owned, plan.state_tier)
        if plan.averaged != "none":
            yield from self._load(plan, "average", *plan.average_rests)
        wide = tuple(a for a in plan.gathered if a not in plan.owned)
        refresh = Rule("resume_state", "the master copy is not in the checkpoint: it is refreshed from the weights")
        fetched = bool(wide) and plan.weight_tier != MEMORY_TIERS[0]
        if fetched:
            yield from carry(Event("resume", "fetch", "weight", group, rule=refresh), plan.weight_tier, "device")
        if wide:
            yield Event("resume", "gather", "weight", group, axes=wide, source="S", to="R", rule=refresh)
        master = Event("resume", "assign", "master", group, source="weight", where=owners(plan.owned), rule=refresh)
        yield from carry(master, "device" if wide else plan.weight_tier, plan.state_tier)
        if wide:
            yield Event("resume", "free", "weight", group, axes=() if fetched else wide, rule=refresh)

    def _load(self, plan: Plan, value: str, cut: tuple[str, ...], tier: str) -> Iterator[Event]:
        group = plan.group.name
        yield Event("resume", "load", value, group, tier=tier, rule=Rule(
            "resume_state", "a resumed run starts from the checkpoint"))
        shared = () if self.by == OWNERS else plan.axes if self.by == ONE else tuple(
            a for a in plan.axes if a not in cut)
        if shared:
            yield Event("resume", "broadcast", value, group, axes=shared, tier=tier, rule=Rule(
                "resume_state", "one rank has stored it for all"))
        if shared and cut:
            yield Event("resume", "slice", value, group, axes=cut, tier=tier, rule=Rule(
                "resume_state", f"it rests sharded over {' and '.join(cut)}"))

    def global_states(self, phase: Phase, mesh: tuple[str, ...], scaled: bool = False) -> Iterator[Event]:
        """The step counter, the random stream and a loss scale, which rest on every rank."""
        if self.holds == PARAMETERS:
            return
        if phase == "save":
            for event in global_states("save", "store", scaled):
                yield Event("save", "store", event.value, where=self.alone(mesh), rule=event.rule)
            return
        for event in global_states("resume", "load", scaled):
            yield event
            if self.alone(mesh):
                yield Event("resume", "broadcast", event.value, axes=mesh, rule=Rule(
                    "resume_state", "one rank has stored it for all"))
