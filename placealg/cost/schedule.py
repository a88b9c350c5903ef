"""The schedule of a pipeline in closed form: how long a stage waits, and how many forwards it has run ahead.

Both follow from the order's formulas in step/pipeline.py, which are compared with generated schedules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sympy

from placealg.arith import Monomial
from placealg.cost.expressions import EXPRESSIONS
from placealg.cost.formula import Formula
from placealg.cost.stage import Stage, StageStep
from placealg.cost.walk import Walk, walked
from placealg.mesh import PREDICTION, SAID
from placealg.step.pipeline import FAST, FAST_WHERE, flying
from placealg.step.place import MIDDLE
from placealg.step.program import Step

NO_STAGES = "no axis of the mesh splits the layers into pipeline stages"


WRITTEN_DOWN = "the order is written down action by action: how long it waits is counted at equal times alone"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The costs of a pipeline's order.

    `bubble` is the time that a stage waits over the time that it works, `bubble_of_total` over the time of both;
    `in_flight` the most microbatches that the stage has run forward and not all backward, a chunk being 1/v of one.
    `waiting` is the time that the first stage waits, in the times of a stage's forward and of both parts of its
    backward.
    """

    bubble: Formula
    bubble_of_total: Formula
    in_flight: Formula
    waiting: Formula

    def items(self) -> tuple[tuple[str, Formula], ...]:
        """(name, formula), in order."""
        return (("bubble", self.bubble), ("bubble_of_total", self.bubble_of_total), ("in_flight", self.in_flight),
                ("waiting", self.waiting))


def schedule(step: Step | Walk) -> Schedule | None:
    """The schedule of a step's pipeline, on the stage whose program it is, else the first; None without a pipeline.

    >>> import placealg as pa
    >>> schedule(pa.derive(pa.parse_strategy("pp"), pa.gpt())).bubble
    (pp − 1)/m
    """
    walk = walked(step)
    if not isinstance(walk.step, StageStep):
        return None
    amounts, stage = walk.amounts, walk.step.stage
    waits, works = (sympy.factor(stage.value(text, EXPRESSIONS)) for text in stage.bubble)
    made = (sympy.factor(waits / works), waits / (works + waits), stage.value(stage.held, EXPRESSIONS))
    bubble, of_total, held = (amounts.made(expr, "1") for expr in made)
    waiting = Formula.none("time", WRITTEN_DOWN) if stage.pipeline.actions else amounts.made(
        sympy.factor(stage.value(stage.waiting, EXPRESSIONS)), "time")
    if not stage.pipeline.actions:
        bubble, of_total, waiting = (replace(f, where=_where(stage)) for f in (bubble, of_total, waiting))
    return Schedule(bubble, of_total, held, waiting)


def _where(stage: Stage) -> tuple[tuple[Any, Any], ...]:
    """The pairs of which the first is at most the second wherever it is proved how long the stage waits."""
    told = FAST.get(stage.pipeline.order, ())
    pairs = ((one, two) if relation == "<=" else (two, one) for one, relation, two in told)
    return tuple((stage.value(less, EXPRESSIONS), stage.value(more, EXPRESSIONS)) for less, more in pairs)


def assumed(step: StageStep) -> tuple[str, ...]:
    """The assumptions behind the figures of a stage."""
    stage, pipeline = step.stage, step.stage.pipeline
    axis = pipeline.axis
    most = ", the most loaded" if step.most_loaded else ""
    found = [f"the figures are those of a device of {stage}{most}"]
    layers: dict[str, Monomial] = {}
    if any(axis in count.names() for count in stage.instances.values()):
        found.append(f"layers divide: every stage runs {' and '.join(map(str, stage.instances.values()))} of them")
    elif layers := {unit: n for unit, n in stage.instances.items() if unit not in stage.once}:
        found.append("it runs " + " and ".join(f"{n} instances of {unit}" for unit, n in layers.items()))
    else:
        found.append("it runs no instance of a repeated unit")
    if pipeline.alone:
        part = "stage" if pipeline.chunks == 1 else "chunk"
        ends = " and ".join(f"the {SAID.get(end, end)} {part}" for end in pipeline.alone)
        found.append(f"{ends} {'has' if len(pipeline.alone) == 1 else 'have'} no layer")
    if stage.any_map and layers:
        found.append("these are what a contiguous map of layers to stages gives it, at least 1 of each that it runs")
    if stage.place is MIDDLE:
        found.append(f"i is its number, from 1 to {axis} - {3 if PREDICTION in pipeline.alone else 2}")
    if stage.any_map and pipeline.chunks != 1:
        found.append("its chunks may be of any size: " + " and ".join(flying(unit) for unit in stage.instances)
                     + " follows from the order")
    if stage.ranks is None:
        found.append(f"{axis} is at least {2 if pipeline.chunks != 1 else max(2, pipeline.least)}")
    if pipeline.grouped:
        found.append(f"m is a multiple of {axis}")
    if pipeline.actions:
        found.append("what the order waits is counted where a forward and both parts of a backward take equally long, "
                     "and the forwards in flight are those of the rank that has most")
    elif pipeline.splits:
        where = FAST_WHERE[pipeline.order].replace("p", axis)
        found.append(f"it waits no longer than that, which holds where {where}; elsewhere no value is given")
        found.append("while a layer runs backward, all others of its stage wait for the same part of theirs")
    if pipeline.folded:
        found.append("a layer keeps no more for the backward for its weights alone than for both: later stages keep it "
                     "for many microbatches once forwards have ended")
    if pipeline.chunks is None:
        found.append("v is at least 2" + ("" if stage.any_map else ", and a stage's chunks are equal"))
    if not stage.even:
        found.append("what chunks of unequal size hold is counted unit by unit, each at its most")
    return (*found, "in the bubble all chunks take equally long, and messages no time")
