"""One stage of a pipeline: the program that its devices run, and how much of it is in flight.

A rank on stage i holds and runs its own instances of the repeated units; what comes before them is on the first stage,
what comes after them on the last, a tied parameter on all stages that use it. So a stage's program is the step without
the rest, on a reference that counts its instances alone, and every figure is read off that program as off any other.
Costs of a step with a pipeline are those of one stage: the first, if none is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from placealg.arith import ONE, Monomial
from placealg.cost.layer_map import run_by
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import PREDICTION
from placealg.models.stage_parts import HANDS_ON
from placealg.polynomial import SUMS, Polynomial, R, Ring
from placealg.step.event import Event, Group, Reference
from placealg.step.pipeline import (
    FIRST,
    IDLE,
    LAST,
    ONE_STAGE,
    Pipeline,
    both_in_flight,
    counted,
    flying,
    in_flight,
    instances_in_flight,
    part_of,
    starting,
)
from placealg.step.place import ANY, FIRST_STAGE, LAST_STAGE, MIDDLE, PREDICTING, At, Place, Unnumbered
from placealg.step.program import Step
from placealg.step.waits import WAITING, longest_wait

Sizes = Mapping[str, int | Fraction]

NO_SIZES: Sizes = FrozenMap()

_PERIODS = 4
"""The number of groups of microbatches after which the interleaved order repeats itself."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: its place, and its instances of each repeated unit, chunk by chunk; a step without a pipeline has one.

    `once` are the units of one instance that stand where a part has a stage alone. `ranks` is the number of stages if
    it is known.
    `instances` is a repeated unit's number of instances on the stage: a number, the unit's count over the axis if sizes
    are symbols or divide, or with `any_map` a symbol such as n_layer, for any contiguous map of layers to stages.
    `chunks` lists, if numbers are known, the units of all layers of every chunk of the model; `microbatches` is m if it
    is known.
    """

    pipeline: Pipeline
    place: Place
    ranks: int | None
    instances: FrozenMap[str, Monomial]
    chunks: tuple[tuple[str, ...], ...] = ()
    microbatches: int | None = None
    any_map: bool = False
    once: tuple[str, ...] = ()

    @property
    def first(self) -> bool:
        """Whether it runs what comes before the repeated units."""
        return self.place == FIRST_STAGE

    @property
    def several(self) -> bool:
        """Whether it is one of several, or may be."""
        return bool(self.pipeline.axis)

    @property
    def last(self) -> bool:
        """Whether it runs what comes after the repeated units."""
        return self.first if self.pipeline.folded else self.at_end

    @property
    def at_end(self) -> bool:
        """Whether it is the one with the last number."""
        return self.place is LAST_STAGE or (self.ranks is not None and self.place == At(self.ranks - 1))

    @property
    def number(self) -> int:
        """Its number; InputError where only its place is known."""
        if isinstance(self.place, At):
            return self.place.number
        raise InputError(f"{self} is not known in numbers: say the number of stages, chunks and layers")

    @property
    def position(self) -> str:
        """Its number as arithmetic over p and i; where layers predict alone in a folded pipeline, that is 1."""
        if self.at_end:
            return LAST_STAGE.from_start
        return "1" if self.place is PREDICTING and self.pipeline.folded else self.place.from_start

    @property
    def name(self) -> str:
        """The stage as users write it: its number, or `last`."""
        return self.place.text

    def __str__(self) -> str:
        if not self.several:
            return "every device"
        many = f" of {self.pipeline.axis} = {self.ranks}" if self.ranks else f" along {self.pipeline.axis}"
        told = {MIDDLE: "a stage i between the first and the last", LAST_STAGE: "the last stage",
                PREDICTING: "the stage of the layers that predict"}
        return (told[self.place] if isinstance(self.place, Unnumbered) else f"stage {self.name}") + many

    def has(self, part: str) -> bool:
        """Whether a part is on this stage: FIRST, LAST or a repeated unit."""
        return {FIRST: self.first, LAST: self.last}.get(part, part in self.instances)

    def value(self, text: str, ring: Ring[R]) -> R:
        """Arithmetic over p, i, m and v: p is the axis's size, i the stage."""
        numbered = self.ranks is not None and (ring.known or not self.several)
        p = ring.of(Monomial.number(self.ranks or 1) if numbered else Monomial.of(self.pipeline.axis))
        v = ring.of(Monomial.of("v") if self.pipeline.chunks is None else Monomial.number(self.pipeline.chunks))
        return ring.spread(ring.read(text, {"p": p, "i": ring.read(self.position, {"p": p}), "v": v}))

    @property
    def in_flight(self) -> str:
        """The most microbatches that the stage has run forward and not backward, a chunk being 1/v of one.

        Like the properties below it is arithmetic over p, i, m and v, for `value`.
        """
        return f"({in_flight(self.pipeline)})/v" if self.several else "1"

    @property
    def outputs_in_flight(self) -> str:
        """The most forwards of a chunk that the stage has run without their backwards."""
        return in_flight(self.pipeline)

    @property
    def for_weights(self) -> str:
        """The microbatches that wait for the backward for the weights alone, where most are in flight.

        In a folded pipeline none: there a backward for the weights follows at once until forwards end.
        """
        return "0" if self.pipeline.folded else f"({both_in_flight(self.pipeline)} - {in_flight(self.pipeline)})/v"

    @property
    def held(self) -> str:
        """The most microbatches that the stage has run forward, and not backward for inputs and weights."""
        return f"({both_in_flight(self.pipeline)})/v"

    @property
    def waiting(self) -> str:
        """The time that the first stage waits between its first and its last item, the longest of all stages."""
        return WAITING[self.pipeline.order].replace("p - 1 - i", "p - 1")

    @property
    def bubble(self) -> tuple[str, str]:
        """The time that a stage waits and the time that it works, in a unit of their own.

        Where a backward is one event that is a chunk's forward and backward: messages reach every stage so often.
        """
        if self.pipeline.actions:
            waits, works = longest_wait(self.pipeline)
            return str(waits), str(works)
        if self.pipeline.splits:
            return self.waiting, "m*(T_F + T_B + T_W)"
        return IDLE, "m*v"

    def flights(self, part: str) -> str:
        """The most microbatches of which a part's kept tensors are held at once; FIRST, LAST or a repeated unit."""
        if part in (FIRST, LAST, *self.once):
            ends = {HANDS_ON[FIRST]: FIRST, HANDS_ON[LAST]: LAST, FIRST: FIRST, LAST: LAST}
            return in_flight(self.pipeline, ends.get(part, PREDICTION))
        if self.any_map and self.pipeline.chunks != 1:
            return f"{flying(part)}/({self.instances[part]})"
        if not isinstance(self.place, At) or self.ranks is None or self.even:
            return self.in_flight
        return str(Fraction(self.most_in_flight(part)) / self.instances[part].coefficient)

    def most_in_flight(self, unit: str) -> int:
        """The most instances of a repeated unit with a forward and no backward, on a stage whose chunks are known."""
        assert self.ranks is not None
        groups = _PERIODS * self.ranks
        return instances_in_flight(self.pipeline, self.number, self.ranks, min(self.microbatches or groups, groups),
                                   tuple(chunk.count(unit) for chunk in self.own))

    @property
    def symbols(self) -> dict[str, int]:
        """The values on this stage, of which numbers are known, of the symbols that a stage of any map has.

        >>> import placealg as pa
        >>> step = pa.derive(pa.parse_strategy("zero1*pp[4]"), pa.gpt())
        >>> on_stage(step, 1, {"L": 10, "m": 8}).stage.symbols
        {'n_layer': 3, 'in_flight_layer': 9, 'first_layer': 3, 'i': 1}
        """
        if not self.own or not isinstance(self.place, At):
            raise InputError(f"{self} is not known in numbers: say the number of stages, chunks and layers")
        found = {}
        for unit in (u for u in self.units if u not in self.once):
            found[counted(unit)] = sum(chunk.count(unit) for chunk in self.own)
            found[flying(unit)] = self.most_in_flight(unit)
            found[starting(unit)] = 1 + sum(chunk.count(unit) for chunk in self.chunks[:self.number])
        return {**found, ANY: self.number}

    @property
    def own(self) -> tuple[tuple[str, ...], ...]:
        """The units of the stage's own chunks."""
        if not self.ranks or not self.chunks:
            return ()
        return tuple(self.chunks[k] for k in replace(self.pipeline, chunks=len(self.chunks) // self.ranks).own(
            self.number, self.ranks))

    @property
    def units(self) -> tuple[str, ...]:
        """The repeated units of the model, if numbers are known."""
        return tuple(dict.fromkeys(unit for chunk in self.chunks for unit in chunk))

    @property
    def even(self) -> bool:
        """Whether the stage's chunks hold equally many instances of every unit."""
        return all(sorted(chunk) == sorted(self.own[0]) for chunk in self.own)

    def messages(self, unit: str, phase: str) -> str:
        """The number of messages per microbatch from its instances of a unit: one per chunk with a neighbour away."""
        if self.ranks == 1:
            return "0"
        if self.chunks and self.ranks and len(self.units) > 1:
            ends = [pair if phase == "forward" else pair[::-1] for pair in pairwise(range(len(self.chunks)))]
            mine = [self.chunks[chunk] for chunk, there in ends if self.pipeline.rank(
                chunk, self.ranks) == self.number != self.pipeline.rank(there, self.ranks)]
            return str(sum(chunk[-1 if phase == "forward" else 0] == unit for chunk in mine))
        outer, at = HANDS_ON[LAST if phase == "forward" else FIRST], -1 if phase == "forward" else 0
        layers = tuple(u for u in self.instances if u not in self.once)
        predict = tuple(u for u in self.instances if u in self.once and u not in HANDS_ON.values())
        single = [u for u in self.instances if u in HANDS_ON.values() and u != outer]
        single += [predict[at]] if predict else []
        if unit in single:
            return "1"
        if not layers or unit != layers[at]:
            return "0"
        ends_here = self.at_end if phase == "forward" else self.first
        if self.pipeline.folded:  # where it turns, a message stays; where the model begins and ends, there is none
            ends_here = self.at_end or self.first
        less = ends_here + len(single)
        return f"v - {less}" if less else "v"


@dataclass(frozen=True, slots=True)
class StageStep(Step):
    """The program of one stage; `every_stage` is the step that it is part of.

    `most_loaded` says that its devices were found to hold the most of all, at known sizes.
    """

    stage: Stage
    every_stage: Step
    most_loaded: bool = False


THE_ONE = Stage(ONE_STAGE, FIRST_STAGE, 1, FrozenMap())
"""The stage of a step without a pipeline."""


def stage_of(step: Step) -> Stage:
    """The stage whose program a step is; the one that there is where the step is a whole one."""
    return step.stage if isinstance(step, StageStep) else THE_ONE


def local(step: Step) -> Step:
    """The program that a device runs: the step, or with a pipeline that of its first stage with layers."""
    pipeline = step.reference.pipeline
    return on_stage(step, usual(pipeline)) if pipeline.axis and not isinstance(step, StageStep) else step


def usual(pipeline: Pipeline) -> int:
    """The number of the first stage that has layers: the second one where the first has none."""
    return int(FIRST in pipeline.alone and pipeline.chunks == 1)


def on_stage(step: Step, stage: int | str = 0, sizes: Sizes = NO_SIZES) -> StageStep:
    """The program of one stage: a number from 0, `first` or `last`; `sizes` are numbers in addition to bound ones.

    >>> import placealg as pa
    >>> on_stage(pa.derive(pa.parse_strategy("zero1*pp[4]"), pa.gpt()), "last").stage.instances
    {layer: L/pp}
    """
    found = locate(step.reference, stage, sizes)
    reference = _reference(step.reference, found)
    groups = {g.name for g in reference.groups}
    graph = step.reference.graph

    def here(event: Event) -> bool:
        if event.group:
            return event.group in groups
        if event.verb == "send" and found.value(found.messages(event.unit, event.phase), SUMS) == Polynomial():
            return False
        return not event.unit or found.has(part_of(event.unit, graph))

    return StageStep(reference, tuple(e for e in step.events if here(e)), found, step)


def locate(reference: Reference, stage: int | str, sizes: Sizes = NO_SIZES) -> Stage:
    """The stage that a user names, with its instances."""
    pipeline = reference.pipeline
    if not pipeline.axis:
        raise InputError(f"{reference.strategy} has no pipeline axis, and so no stages: no axis has [\"layer\"] in "
                         "[dims]")
    known = {**reference.mesh.sizes(), **reference.sizes, **sizes}
    ranks = int(known[pipeline.axis]) if pipeline.axis in known else None
    pipeline = pipeline.dealt(ranks, int(known["v"]) if "v" in known else None)
    if pipeline.stages and ranks is None and pipeline.chunks:
        ranks = len(pipeline.stages) // pipeline.chunks
    microbatches = int(known["m"]) if "m" in known else reference.microbatches
    if ranks:
        pipeline.check_ends(ranks)
    if ranks and microbatches:
        pipeline.check_groups(ranks, microbatches)
    place = _place(stage, pipeline, ranks)
    instances, chunks, any_map = run_by(reference, pipeline, place, ranks, known)
    once = tuple(loop.unit for loop in reference.graph.loops if reference.graph.single(loop.unit))
    return Stage(pipeline, place, ranks, instances, chunks, microbatches, any_map, once)


def candidates(reference: Reference, sizes: Sizes = NO_SIZES) -> tuple[int | str, ...]:
    """The stages of which one is the most loaded: the ends, and those that run more of something than all before.

    Earlier stages have no fewer microbatches in flight. If the number of stages is not known, only the first with
    layers.
    """
    ranks = locate(reference, "first", sizes).ranks
    if ranks is None:
        return (usual(reference.pipeline),)
    seen: list[tuple[int, ...]] = []
    found: list[int | str] = []
    for number in range(ranks):
        stage = locate(reference, number, sizes)
        load = tuple(chunk.count(unit) for chunk in stage.own for unit in stage.units)
        if number in (0, ranks - 1) or not any(all(map(int.__ge__, other, load)) for other in seen):
            found.append(number)
            seen.append(load)
        if not stage.chunks:
            return tuple(dict.fromkeys((0, ranks - 1)))
    return tuple(found)


def _place(stage: int | str, pipeline: Pipeline, ranks: int | None) -> Place:
    """The stage that a user names."""
    axis = pipeline.axis
    text = {"first": "0"}.get(str(stage).strip(), str(stage).strip())
    if text == "last":
        return LAST_STAGE if ranks is None else At(ranks - 1)
    if text == PREDICTION and PREDICTION in pipeline.alone:
        return PREDICTING if ranks is None else At(pipeline.predicting_rank(ranks))
    if text == ANY:
        if ranks is not None and ranks < 3:
            raise InputError(f"{axis} = {ranks} has no stage between the first and the last")
        return MIDDLE
    if not text.isdecimal():
        also = f"{PREDICTION}, " if PREDICTION in pipeline.alone else ""
        raise InputError(f"stage '{stage}' is not a stage: say first, {also}last, a number from 0, or {ANY} for any "
                         "between")
    if ranks is not None and int(text) >= ranks:
        raise InputError(f"{axis} = {ranks} has no stage {text}: its stages are 0 to {ranks - 1}")
    return At(int(text))


def _reference(whole: Reference, stage: Stage) -> Reference:
    """The reference restricted to what is on the stage, along all axes but the pipeline's."""
    graph, axis = whole.graph, stage.pipeline.axis
    parts = {u.name: part_of(u.name, graph) for u in whole.units}
    units = tuple(replace(u, count=stage.instances.get(u.name, ONE)) for u in whole.units if stage.has(parts[u.name]))
    counts = {u.name: u.count for u in units}

    def kept(group: Group) -> Group | None:
        site = next((s for s in group.sites if s in counts), None)
        unit = group.unit if group.unit in counts else site
        if unit is None or site is None:
            return None
        return replace(group, unit=unit, count=counts[unit], split=tuple(a for a in group.split if a != axis))

    split = {name: FrozenMap({a: d for a, d in along.items() if a != axis}) for name, along in whole.split_dims.items()}
    return replace(whole, units=units, groups=tuple(g for g in map(kept, whole.groups) if g),
                   split_dims=FrozenMap(split))


def holders(group: Group, reference: Reference, stage: Stage) -> Monomial:
    """The number of ranks along the pipeline axis that hold a tied group: those of its sites, all of them apart."""
    parts = {part_of(site, reference.graph) for site in group.sites}
    parts = {PREDICTION if reference.graph.single(part) else part for part in parts}
    if parts <= {FIRST, PREDICTION, LAST}:
        return Monomial.number(1 if stage.ranks == 1 else len(parts))
    return Monomial.of(stage.pipeline.axis)
