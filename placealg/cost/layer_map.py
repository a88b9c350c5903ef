"""Which instances of repeated units a stage of a pipeline runs: numbers, a share, or symbols for any map of layers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate

from placealg.arith import ONE, Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import PREDICTION, SYMBOLS
from placealg.models.stage_parts import HANDS_ON
from placealg.step.event import Reference
from placealg.step.pipeline import FIRST, LAST, Pipeline, counted
from placealg.step.place import FIRST_STAGE, LAST_STAGE, MIDDLE, PREDICTING, At, Place


def run_by(reference: Reference, pipeline: Pipeline, place: Place, ranks: int | None,
           known: Mapping[str, int | Fraction]
           ) -> tuple[FrozenMap[str, Monomial], tuple[tuple[str, ...], ...], bool]:
    """Unit -> its instances on the stage; the units of all chunks, if numbers are known; whether it is of any map."""
    every = {loop.unit: loop.count for loop in reference.graph.loops}
    once = tuple(unit for unit in every if reference.graph.single(unit))
    counts = {unit: count for unit, count in every.items() if unit not in once}
    numbers = all(set(count.names()) <= set(known) for count in counts.values())
    listed = bool(pipeline.stages) and len(counts) == 1
    said = place is MIDDLE or any(counted(unit) in known for unit in counts)
    if ranks and (numbers or listed) and pipeline.chunks and isinstance(place, At) and not said:
        units = [unit for unit, count in every.items() for _ in range(
            1 if unit in once else int(count.evaluate(known)) if numbers else sum(pipeline.stages))]
        sizes = pipeline.layers(len(units), ranks)
        chunks = tuple(tuple(units[end - size:end]) for size, end in zip(sizes, accumulate(sizes), strict=True))
        if len(every) > 1 or len(set(sizes)) > 1:
            own = sum((chunks[k] for k in pipeline.own(place.number, ranks)), ())
            return FrozenMap({u: Monomial.number(own.count(u)) for u in dict.fromkeys(own)}), chunks, False
        return FrozenMap({u: c / Monomial.of(pipeline.axis) for u, c in counts.items()}), chunks, False
    if said or len(every) > 1 or pipeline.stages:
        return _of_any_map(counts, once, pipeline, place, ranks, known), (), True
    return FrozenMap({u: c / Monomial.of(pipeline.axis) for u, c in counts.items()}), (), False


def _of_any_map(counts: Mapping[str, Monomial], once: tuple[str, ...], pipeline: Pipeline, place: Place,
                ranks: int | None, known: Mapping[str, int | Fraction]) -> FrozenMap[str, Monomial]:
    """Unit -> the symbol of its instances; a unit of which `known` says that there are none is left out.

    A stage with a part that stands alone runs the units of one instance that stand there, which are in `once`, and,
    unless it has other chunks, no layer.
    """
    for unit, count in counts.items():
        if counted(unit) not in SYMBOLS:
            needed = [n for n in (pipeline.axis, "v" if pipeline.chunks is None else "",
                                  *(n for c in counts.values() for n in c.names())) if n and n not in known]
            raise InputError(f"which stage runs which of {', '.join(counts)} takes numbers: set {', '.join(needed)}")
        most = count.evaluate(known) if set(count.names()) <= set(known) else None
        if most is not None and known.get(counted(unit), 0) > most:
            raise InputError(f"{counted(unit)} = {known[counted(unit)]} is more than the {most} instances of {unit}")
    end = place is LAST_STAGE or (ranks is not None and place == At(ranks - 1))
    mine = {FIRST: place == FIRST_STAGE, LAST: place == FIRST_STAGE if pipeline.folded else end}
    mine[PREDICTION] = place == (At(pipeline.predicting_rank(ranks)) if ranks is not None else PREDICTING)
    units = {FIRST: (HANDS_ON[FIRST],), LAST: (HANDS_ON[LAST],),
             PREDICTION: tuple(u for u in once if u not in HANDS_ON.values())}
    here = [unit for end in pipeline.alone if mine[end] for unit in units[end]]
    layers = {} if here and pipeline.chunks == 1 else {
        u: Monomial.of(counted(u)) for u in counts if known.get(counted(u)) != 0}
    found = {**layers, **dict.fromkeys(here, ONE)}
    order = (HANDS_ON[FIRST], *counts, *units[PREDICTION], HANDS_ON[LAST])
    return FrozenMap({u: found[u] for u in order if u in found})
