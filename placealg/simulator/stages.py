"""Where a pipeline puts things, at the small sizes of a run: the stages that hold a group, the chunk of an event.

Chunks are numbered through the model; chunk c is number c // ranks of those that its stage runs (`rules.home`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from placealg.errors import InputError
from placealg.models.graph import Graph
from placealg.simulator.rules import home, stage_order
from placealg.simulator.setting import Setting, fitting
from placealg.step.pipeline import Item, Pipeline
from placealg.step.program import PARTIALS, Event, Reference
from placealg.step.verbs import COUNTERS

Instance = tuple[str, int]
"""(unit, instance)."""

SCALARS = (*COUNTERS, *PARTIALS, "count")
"""The values without elements, which every rank has."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a run: `ranks` of them, in the setting `run`.

    Raises InputError where there are fewer instances than chunks, or where the order does not take the microbatches.
    """

    pipeline: Pipeline
    reference: Reference
    graph: Graph
    ranks: int
    run: Setting
    _chunks: dict[tuple[str, str, int], frozenset[int]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.pipeline.layers(len(self.order()), self.ranks)
        self.items(0)

    @property
    def _repeated(self) -> tuple[str, ...]:
        return tuple(u for u in self.graph.units if self.graph.loop(u))

    def items(self, stage: int) -> tuple[Item, ...]:
        """What a stage does in the loop over microbatches, in order."""
        return stage_order(self.pipeline, stage, self.ranks, self.run.microbatches)

    def order(self) -> tuple[Instance, ...]:
        """Every instance of every repeated unit, in the order of the model."""
        return tuple((u, k) for u in self._repeated for k in range(self.run.instances(u, self.graph)))

    def chunk(self, unit: str, instance: int) -> int:
        """The chunk that runs an instance of a unit; what stands before the repeated units runs with the first one.

        What stands between or behind them runs with the last.
        """
        order, units = self.order(), self.graph.units
        if unit in self._repeated:
            place = order.index((unit, instance))
        else:
            before = unit in units and units.index(unit) < min(map(units.index, self._repeated))
            place = 0 if before else len(order) - 1
        return self.pipeline.chunk(place, len(order), self.ranks)

    def chunks(self, event: Event, instance: int) -> frozenset[int]:
        """The chunks in which an event acts: those that hold its group's instance, else the one of its unit.

        What is on every rank (step, random stream, counts, partial norms, flags) acts on every stage.
        """
        if event.value in SCALARS:
            return frozenset(range(self.ranks))
        if event.group:
            return self.holding(event.group, instance)
        key = ("", event.unit, instance)
        if key not in self._chunks:
            self._chunks[key] = frozenset({self.chunk(event.unit, instance)})
        return self._chunks[key]

    def holding(self, group: str, instance: int) -> frozenset[int]:
        """The chunks that hold an instance of a group: one; of a tied group those of all its uses."""
        key = (group, "", instance)
        if key not in self._chunks:
            sites = self.reference.group(group).sites
            self._chunks[key] = frozenset(self._uses(sites) if self.tied(group) else {self.chunk(sites[0], instance)})
        return self._chunks[key]

    def tied(self, group: str) -> bool:
        """Whether a group lives on the stages of all its uses: no dim splits its parameters along the axis."""
        splits, axis = self.reference.split_dims, self.pipeline.axis
        return not any(axis in splits.get(p, ()) for p in self.reference.group(group).parameters)

    def _uses(self, sites: tuple[str, ...]) -> Iterator[int]:
        for unit in sites:
            for instance in range(self.run.instances(unit, self.graph)):
                yield self.chunk(unit, instance)

    def stages(self, event: Event, instance: int) -> frozenset[int]:
        """The stages on which an event acts."""
        return frozenset(map(self.home, self.chunks(event, instance)))

    def home(self, chunk: int) -> int:
        """The stage that runs a chunk."""
        return home(self.pipeline, chunk, self.ranks)

    def runs(self, event: Event, instance: int, stage: int, chunk: int) -> bool:
        """Whether an event acts in the chunk-th chunk of a stage.

        One that acts in several runs in the first of them: in forward before, in backward after all others. A count
        runs in the stage's last, on the last stage with the loss that it is for.
        """
        if event.value == "count":
            return chunk == (self.pipeline.chunks or 1) - 1
        return chunk == min((c // self.ranks for c in self.chunks(event, instance) if self.home(c) == stage),
                            default=None)

    def neighbour(self, event: Event, instance: int, step: int) -> Instance | None:
        """The instance after (step 1) or before (-1) that of a message's unit, if it runs on another stage."""
        here, order = (event.unit, instance), self.order()
        if here not in order:
            raise InputError(f"{event.path}: a message leaves an instance of a repeated unit", name=event.unit,
                             valid=self._repeated)
        at = order.index(here) + step
        if not 0 <= at < len(order) or self.home(self.chunk(*order[at])) == self.home(self.chunk(*here)):
            return None
        return order[at]


def of(reference: Reference, setting: Setting) -> Stages | None:
    """The stages of a run; None without a pipeline."""
    pipeline = reference.pipeline
    if not pipeline.axis or reference.whole:
        return None
    ranks = setting.sizes[pipeline.axis]
    return Stages(fitting(pipeline, ranks), reference, reference.graph, ranks, setting)
