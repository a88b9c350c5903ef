"""The premises on the constants that occur in a query, and a query asked under them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import z3

from placealg.mesh import PREDICTION
from placealg.prover.calculus.contribution import OPAQUE, count_cell
from placealg.prover.calculus.positions import of_the_first, stage
from placealg.prover.evidence import symbols
from placealg.prover.evidence.logic import and_
from placealg.prover.evidence.solver import PROCESS, Reply
from placealg.prover.ops.stages import HOLDERS, ends, predicting_alone
from placealg.step.pipeline import FIRST, LAST
from placealg.step.program import Reference, Step


def premises(step: Step, assertions: list[Any]) -> list[Any]:
    """The premises: sizes and counts are positive and realisable, positions lie inside their axis."""
    names = symbols.names(and_(assertions))
    counts = [n for n in names if count_cell(n) is not None]
    places = [place for place in map(symbols.place_of, names) if place]
    for name in counts:
        places += [(a, p) for a, p in (count_cell(name) or {}).items() if a != symbols.MICROBATCH]
    others = [symbols.symbol(n) >= 1 for n in names if "@" not in n and n not in counts and not n.startswith(OPAQUE)]
    sizes = [symbols.size(a) == n for a, n in step.reference.unrolled.items()]
    return [*sizes, *symbols.ranges((*step.reference.mesh.names, symbols.MICROBATCH), places),
            *symbols.count_premises(counts), *others, *_stage_premises(step.reference, names)]


def ask(step: Step, assertions: Iterable[Any], model: bool = True) -> Reply:
    """The solver's answer, under the premises of every constant that the assertions mention."""
    listed = list(assertions)
    return PROCESS.ask([*premises(step, listed), *listed], model=model)


def _stage_premises(reference: Reference, names: list[str]) -> Iterator[Any]:
    """A parameter's elements lie on one stage; the ends of a pipeline are its first and its last stage.

    There are stages enough for ends that stand alone.
    """
    axis = reference.pipeline.axis
    if not axis:
        return
    if reference.pipeline.alone and axis not in reference.unrolled:
        yield symbols.size(axis) >= reference.pipeline.least
    for name in names:
        place = symbols.place_of(name)
        if place and place[0] == axis and (first := of_the_first(place[1])):
            yield symbols.coordinate(*place) == symbols.coordinate(axis, first)
    for held in HOLDERS:
        end = ends(reference, held)
        if any(name == end or name.endswith(f"@{end}") for name in names):
            yield from _end_premises(reference, end, held)


def _end_premises(reference: Reference, end: str, held: tuple[str, ...]) -> Iterator[Any]:
    """The size of an axis of stages that hold a tied parameter, and where on it each part of the model stands.

    The first stage may be the last one, too; where layers that predict stand alone, all of them differ.
    """
    ranks, size = symbols.size(reference.pipeline.axis), symbols.size(end)
    yield ranks >= 1
    if held == (FIRST, LAST):
        yield from (size == z3.If(ranks >= 2, z3.IntVal(2), z3.IntVal(1)),
                    symbols.coordinate(end, stage(FIRST)) == 0, symbols.coordinate(end, stage(LAST)) == size - 1)
        return
    yield size == len(held)
    for place, part in enumerate(held):
        units = predicting_alone(reference.graph) if part == PREDICTION else (part,)
        yield from (symbols.coordinate(end, stage(unit)) == place for unit in units)
