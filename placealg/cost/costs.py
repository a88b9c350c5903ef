"""Every figure of one program, each under one path: the list from which documents, pages and comparisons are made.

parameters                                                of the model, all instances of all units
memory.NAME                                               the parts of `Memory`, in bytes of a device
communication.total, .host_link, .nvme_link               what a device sends in a step
communication.by_axes.AXES, .by_phase.PHASE, .events.PATH
regions.REGION.activations, .sent                         what the ops of one region keep and send
compute.flop                                              what a device computes in a step
schedule.bubble, .bubble_of_total, .in_flight             the order of a pipeline's microbatches
time.bound, time.estimate, and each of their parts        in seconds, of rates that are named (times.py); `timed`
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from placealg.cost.activations import KeptStorage
from placealg.cost.amounts import Amounts
from placealg.cost.communication import Communication, communication
from placealg.cost.divisibility import Divides
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.memory import Memory, memory
from placealg.cost.regions import RegionCost, kept_for_backward, rows_by_region
from placealg.cost.schedule import NO_STAGES, Schedule, schedule
from placealg.cost.stage import StageStep, stage_of
from placealg.cost.walk import Walk
from placealg.errors import InputError
from placealg.step.program import Step

SPARSE = ("communication.by_axes.", "communication.by_phase.", "communication.events.", "regions.")
"""The prefixes of paths that a program may lack because it has no such part: the figure is then 0."""

CALLED = {"by_axes": "over", "by_phase": "in"}
"""A part of a path -> the word for it on pages."""


class Costs:
    """The costs of the program that a device runs, read off one walk; with a pipeline, of its first stage's program.

    `convention` and `unit` are those of what is sent; memory is in bytes. `rules` refuse sizes that do not divide.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import zero3
    >>> costs = Costs(derive(zero3(), abstract()))
    >>> costs.memory.states, costs.figures["communication.by_phase.forward"]
    (Ψ·(w + g + o)/dp bytes, Ψ·w·m·(dp − 1)/dp bytes)
    """

    def __init__(self, step: Step, convention: str = "exact", unit: str = "bytes", rules: tuple[Divides, ...] = ()):
        self.walk, self.convention, self.unit = Walk(step, rules=rules), convention, unit

    @property
    def step(self) -> Step:
        """The program of the device."""
        return self.walk.step

    @property
    def stage(self) -> str:
        """The pipeline stage to which the device belongs, in words; "" without a pipeline."""
        return str(stage_of(self.step)) if stage_of(self.step).several else ""

    @cached_property
    def _of_every_stage(self) -> Amounts:
        staged = isinstance(self.step, StageStep)
        return Amounts(self.walk.every_stage.reference, self.walk.rules) if staged else self.walk.amounts

    @cached_property
    def parameters(self) -> Formula:
        """The number of parameters, in all instances of all units of all stages."""
        amounts = self._of_every_stage
        return amounts.made(amounts.total, "elements")

    @cached_property
    def trained(self) -> Formula | None:
        """The number of parameters that a step updates; None where that is all of them."""
        amounts = self._of_every_stage
        frozen = any(g.frozen for g in amounts.reference.groups)
        return amounts.made(amounts.trained, "elements") if frozen else None

    @cached_property
    def memory(self) -> Memory:
        """The memory that the device takes."""
        return memory(self.walk)

    @cached_property
    def communication(self) -> Communication:
        """The volumes that the device sends."""
        return communication(self.walk, self.convention, self.unit)

    @cached_property
    def flop(self) -> Formula:
        """The arithmetic of the device."""
        return flop(self.walk)

    @cached_property
    def schedule(self) -> Schedule | None:
        """The schedule of the pipeline; None without one."""
        return schedule(self.walk)

    @cached_property
    def kept(self) -> tuple[KeptStorage, ...]:
        """Every tensor that forward keeps for backward."""
        return kept_for_backward(self.walk)

    @cached_property
    def regions(self) -> tuple[RegionCost, ...]:
        """The activations kept and the volumes sent, region by region."""
        return rows_by_region(self.walk, self.kept, self.communication)

    @property
    def bubble(self) -> Formula:
        """The idle share of a stage, over the time in which it works; none without a pipeline."""
        return self.schedule.bubble if self.schedule else Formula.none("1", NO_STAGES)

    @cached_property
    def figures(self) -> dict[str, Formula]:
        """Path -> formula; an event has its own path, a region its name."""
        sent = self.communication
        order = dict(self.schedule.items()) if self.schedule else dict.fromkeys(
            ("bubble", "bubble_of_total", "in_flight", "waiting"), Formula.none("1", NO_STAGES))
        return {
            "parameters": self.parameters,
            **{f"memory.{name}": f for name, f in self.memory.items()},
            **self.sent,
            **{f"communication.events.{e.path}": e.formula for e in sent.events},
            **{f"regions.{row.region}.{name}": f for row in self.regions
               for name, f in (("activations", row.activations), ("sent", row.sent))},
            "compute.flop": self.flop,
            **{f"schedule.{name}": f for name, f in order.items()},
        }

    @cached_property
    def timed(self) -> Mapping[str, Formula]:
        """Path -> formula of a time: the bound and its parts, the estimate and its terms, in seconds and in rates."""
        from placealg.cost.times import Written

        return Written(self.walk)

    @cached_property
    def sent(self) -> dict[str, Formula]:
        """Path -> formula of a volume: in total, over each set of axes, in each phase, over the links of tiers."""
        sent = self.communication
        return {
            "communication.total": sent.total,
            **{f"communication.by_axes.{axes}": f for axes, f in sent.by_axes.items()},
            **{f"communication.by_phase.{phase}": f for phase, f in sent.by_phase.items()},
            "communication.host_link": sent.host_link,
            "communication.nvme_link": sent.nvme_link,
        }

    def named(self, *parts: str) -> dict[str, Formula]:
        """Name on a page -> formula, for figures whose paths begin with one of `parts`, without events and regions.

        >>> from placealg.models.abstract import abstract
        >>> from placealg.step.derive import derive
        >>> from placealg.strategy.catalogue import zero1
        >>> list(Costs(derive(zero1(), abstract())).named("communication"))
        ['total', 'over dp', 'in reduce', 'in publish', 'host link', 'nvme link']
        """
        every = {**{f"memory.{name}": f for name, f in self.memory.items()}, **self.sent,
                 **({f"schedule.{name}": f for name, f in self.schedule.items()} if self.schedule else {})}
        return {label(path): f for path, f in every.items() if path.startswith(tuple(f"{part}." for part in parts))}


def label(path: str) -> str:
    """The name on pages of the figure at a path.

    >>> label("communication.by_axes.dp"), label("communication.nvme_link"), label("schedule.in_flight")
    ('over dp', 'nvme link', 'in flight')
    """
    _, name, *rest = path.split(".", 2)
    return f"{CALLED[name]} {rest[0]}" if rest else name.replace("_", " ")


def figure(path: str, own: Mapping[str, Formula], other: Mapping[str, Formula]) -> Formula:
    """The figure at `path` of a program; 0 if only the other of two programs has it, since there is nothing here.

    An unknown path is an InputError with the nearest one, a figure without a closed form an InputError with the reason.
    """
    found = own.get(path)
    if found is None and path in other and path.startswith(SPARSE):
        found = other[path] * 0
    if found is None:
        raise InputError(f"no figure '{path}'", name=path, valid={**own, **other})
    if found.expr is None:
        raise InputError(f"'{path}' has no closed form: {found.reason}")
    return found
