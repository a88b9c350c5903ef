"""Which strategies a search for the best alone leaves out, each by a bound of all of its layouts, and what that saves.

`work`: the slowest device does at least its part of the products of one device, under the recomputation that the
strategy asks for, and a stage waits for the pipeline besides; nothing of the strategy is derived. `states`: of the
layouts whose states at rest fit, which they do where the peak does, the best has at least so much of the objective; the
peak is not derived. A strategy is left out where such a bound is above the best that was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from placealg.configurations.evaluate import Evaluated, asked
from placealg.configurations.programs import Programs, outlined
from placealg.configurations.question import Question
from placealg.configurations.stages import order_of
from placealg.cost.times import PARAMETERS, TERM, times
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.step.derive import derive
from placealg.step.pipeline import Pipeline
from placealg.strategy.expression import parse_strategy, words

WORK, STATES = "work", "states"
"""By which bound a strategy is left out."""

MEANING = FrozenMap({
    WORK: "by the products that some device runs at least, before anything is derived",
    STATES: "by the time of the layouts whose states fit, before any peak is derived",
})
"""Bound -> what it rests on."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A strategy that was left out: by which bound, and at least what its layouts have of the objective.

    `seconds` is at least what any of its layouts takes, by the bound of time; `layouts` is their number. `programs` has
    the stages that show it, with their states in the place of their peak; None where nothing was derived.
    """

    by: str
    least: float
    seconds: float
    layouts: int
    programs: Programs | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What one device works on a sequence, in seconds at the estimate's efficiency: of many, the slowest its part."""

    question: Question
    per_sequence: FrozenMap[str, Fraction]

    @staticmethod
    def of(question: Question) -> Work:
        """The work of one device, by what is recomputed."""
        every = {"", *(w for e in question.space.choices() for w in words(e) if w.startswith("recompute"))}
        return Work(question, FrozenMap({again: found for again in sorted(every)
                                         if (found := _alone(again, question)) is not None}))

    def least(self, expression: str) -> tuple[Programs, Pruned | None]:
        """The strategy without programs, and the bound of its work; None where no such bound is known."""
        outline, question, again = outlined(expression, self.question.model), self.question, recomputed(expression)
        if outline.refused or question.objective not in ("estimate", "bound") or again not in self.per_sequence:
            return outline, None
        columns = asked(outline, question)
        count = len(columns["b"])
        if not count:
            return outline, None
        batch = columns["batch"] if "batch" in columns else np.full(count, question.devices.batch)
        seconds = batch * float(self.per_sequence[again]) / question.devices.count * (1 - 2.0**-40)
        axis = outline.strategy.pipeline_axis
        waits = np.zeros(count)
        if axis and not Pipeline(axis, order_of(outline.strategy)).splits:
            waits = (columns[axis] - 1) / (columns["m"] * columns.get("v", 1))
        efficiency = float({**PARAMETERS, **question.parameters}["efficiency"])
        by = batch if "batch" in columns else 1
        bound = float((seconds * efficiency / by).min())
        about = float((seconds * (1 + waits) / by).min())
        return outline, Pruned(WORK, about if question.objective == "estimate" else bound, bound, count)


def recomputed(expression: str) -> str:
    """The recomputation that an expression asks for; "" for none."""
    return next((word for word in words(expression) if word.startswith("recompute")), "")


def _alone(again: str, question: Question) -> Fraction | None:
    """The seconds of work on one sequence of one device; None where that is not the same of every sequence."""
    expression = "*".join(filter(None, ("dp", again)))
    try:
        step = derive(parse_strategy(expression), question.model)
    except InputError:
        return None
    figures: Any = times(step)
    if TERM + "work" not in figures:
        return None
    figure = figures[TERM + "work"]
    known = {**PARAMETERS, **question.parameters, **question.machine.values,
             **{n: Fraction(v) for n, v in question.model.sizes.items()}, **question.sizes, "dp": Fraction(1)}
    if any(not n.isidentifier() for n in figure.names()) or set(figure.names()) - {*known, "b", "m"}:
        return None
    one, other = (figure.value({**known, "b": Fraction(b), "m": Fraction(m)}) / (b * m) for b, m in ((1, 1), (2, 3)))
    return one if one == other else None


def relaxed(evaluated: Evaluated) -> Pruned:
    """The bound of a strategy by its states, evaluated as if they were its peak; infinite where none fit."""
    return Pruned(STATES, float(evaluated.near[1][0].min()) if evaluated.near else float("inf"),
                  float(evaluated.least[1][0].min()) if evaluated.least else float("inf"), evaluated.count,
                  evaluated.programs)
