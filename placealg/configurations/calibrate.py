"""One measured step of the user's own stack: what efficiency, and what activation factor, the estimate then takes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from placealg.configurations.evaluate import PEAK, exact, value_of
from placealg.configurations.explain import best_place, meant
from placealg.configurations.found import Configuration
from placealg.configurations.question import Question
from placealg.configurations.stages import Load, stage_loads
from placealg.cost.times import TERM
from placealg.errors import InputError


@dataclass(frozen=True, slots=True)
class Calibration:
    """A measured step beside its bound, and the `efficiency` and activation `factor` that explain it, where one does.

    `factor` is None where no peak was measured.
    """

    of: Configuration
    seconds: Fraction
    efficiency: Fraction
    factor: Fraction | None = None


def calibrate(text: str, question: Question, seconds: Fraction, peak: Fraction | None = None) -> Calibration:
    """The calibration by a step, `text` as in `meant`, that took so many seconds and at most held so many bytes.

    A step that is faster than the bound, or that no efficiency explains, is an InputError; so is a lower peak than what
    is needed at least.
    """
    programs, sizes = meant(text, question)
    one = best_place(programs, question, sizes)
    if one is None:
        raise InputError("it has no even place in the nodes")
    if seconds < one.bound:
        raise InputError(f"{float(seconds):g} s are less than the bound of {float(one.bound):.4g} s: the measurement, "
                         "or a rate of the machine, is wrong")
    slowest = min(_inverse(one, question, load, seconds)
                  for load in stage_loads(programs.strategy, question.units, one.sizes))
    if slowest <= 0:
        raise InputError(f"no efficiency explains {float(seconds):g} s: the other terms of the estimate take longer")
    if peak is None:
        return Calibration(one, seconds, 1 / slowest)
    held, program, load = exact(programs, question, PEAK, one.sizes)
    states = value_of(program, question, "memory.states", {**one.sizes, **load.values})
    if peak < held:
        raise InputError(f"{float(peak / 10**9):.3f} GB are less than the {float(held / 10**9):.3f} GB that are needed "
                         "at least: another placement, or other sizes")
    return Calibration(one, seconds, 1 / slowest, (peak - states) / (held - states) if held > states else None)


def _inverse(one: Configuration, question: Question, load: Load, seconds: Fraction) -> Fraction:
    """1/efficiency at which a stage's estimate is what was measured; its sums are linear in it."""
    program = one.programs.of(load.kind)
    figure = program.figures[TERM.removesuffix(".")]
    known: dict[str, Fraction | int] = {**question.constants(program), **one.sizes, **load.values}
    found = []
    for piece in figure.pieces:
        at_one, at_half = (type(figure)((piece,)).value({**known, "efficiency": e})
                           for e in (Fraction(1), Fraction(1, 2)))
        slope = at_half - at_one
        if slope > 0:
            found.append((seconds - (at_one - slope)) / slope)
    return min(found)
