"""All layouts of one strategy: which of them fit, and how long each takes in its best place, within proven bounds.

What the bounds of double precision leave open about the memory is decided by fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from placealg.arith import Monomial
from placealg.configurations.layouts import Columns, Whole, layouts, placed
from placealg.configurations.programs import HELD, TIMED, Program, Programs
from placealg.configurations.question import Question
from placealg.configurations.stages import Groups, Load, grouped, heaviest, spread, stage_loads
from placealg.cost.arrays import Arrays, Column
from placealg.frozen import FrozenMap
from placealg.step.pipeline import ANY, counted, flying, starting
from placealg.strategy.spec import Strategy

PEAK, STATES = HELD[:2]
BOUND, ESTIMATE, CARD = TIMED
Interval = tuple[Column, Column]
Sizes = Mapping[str, Fraction]
Real = Mapping[str, Column]
"""Sizes of layouts, of their places and stages, as the doubles that are them."""



@dataclass(frozen=True, slots=True)
class Evaluated:
    """The layouts of a strategy: their columns, what each needs, and of those that fit the times in the best place.

    `rows` are the layouts that fit, in the order of `placed`, which has their sizes and places; `times` are intervals
    that hold the exact values of bound, estimate and card traffic. `near` are the sizes and places of all that may be
    the best of the strategy, `missed` the layout that misses the memory by the least, with an interval of its need.
    `open` were decided by fractions; `places` is the number of layouts with a place that were evaluated; `least` are
    the sizes and places of all that may have the smallest bound of time of the strategy, with its intervals.
    """

    programs: Programs
    count: int
    placed: Columns
    needed: Column
    times: FrozenMap[str, Interval]
    near: tuple[Columns, Interval] | None
    missed: tuple[FrozenMap[str, Fraction], tuple[float, float]] | None
    open: int
    places: int
    least: tuple[Columns, Interval] | None = None


def asked(programs: Programs, question: Question) -> Columns:
    """Every layout of a strategy, as the question has them; what the next one asks, too, is not written to."""
    return _asked(programs.strategy, programs.whole, question)


@lru_cache(maxsize=1)
def _asked(strategy: Strategy, whole: tuple[Monomial, ...], question: Question) -> Columns:
    return layouts(strategy, question.model, question.devices, question.sizes, question.space.fixed, whole,
                   question.space.uneven)


def evaluate(programs: Programs, question: Question, part: bool = False) -> Evaluated:
    """Evaluate every layout of a strategy; by a `part` of its kinds of stages, each figure is at least so much."""
    columns = asked(programs, question)
    axes = programs.strategy.mesh.names
    count = len(columns[axes[0]])
    empty = {n: c[:0] for n, c in columns.items()}
    nothing = np.zeros(0)
    if not count:
        return Evaluated(programs, 0, empty, nothing, FrozenMap(), None, None, 0, 0)
    groups = grouped(programs.strategy, columns)
    low, high = needs(programs, question, columns, groups)
    limit = float(question.memory)
    fits = high <= np.nextafter(limit, -np.inf)
    undecided = np.flatnonzero(~fits & (low <= np.nextafter(limit, np.inf)))
    for k in undecided:
        fits[k] = part or exact_need(programs, question, at(columns, int(k))) <= question.memory
    missed = None
    if not fits.all():
        least = int(np.argmin(np.where(fits, np.inf, low)))
        missed = FrozenMap(at(columns, least)), (float(low[least]), float(high[least]))
    if not fits.any():
        return Evaluated(programs, count, empty, nothing, FrozenMap(), None, missed, len(undecided), 0)
    kept = {n: c[fits] for n, c in columns.items()}
    everywhere, rows = placed(kept, axes, question.devices)
    if not len(rows):
        return Evaluated(programs, count, empty, nothing, FrozenMap(), None, missed, len(undecided), 0)
    found = timed(programs, question, everywhere, groups.at(fits).at(rows) if groups.keys else groups)
    held = low[fits], high[fits]
    objective = _objective(question.objective, by_sequence(found, everywhere), (held[0][rows], held[1][rows]))
    best = _best_of_each(objective, rows)
    bound = by_sequence(found, everywhere)[BOUND]
    near, least = objective[0] <= objective[1].min(), bound[0] <= bound[1].min()
    return Evaluated(
        programs, count, {n: c[best] for n, c in everywhere.items()}, ((held[0] + held[1]) / 2)[rows[best]],
        FrozenMap({path: (less[best], more[best]) for path, (less, more) in found.items()}),
        ({n: c[near] for n, c in everywhere.items()}, (objective[0][near], objective[1][near])),
        missed, len(undecided), len(rows),
        ({n: c[least] for n, c in everywhere.items()}, (bound[0][least], bound[1][least])))


def needs(programs: Programs, question: Question, columns: Columns, groups: Groups | None = None) -> Interval:
    """What the fullest stage's device needs with the margin, in every layout, as an interval."""
    factor, reserve = float(question.margin.factor), float(question.margin.reserve)
    fixed = {p.kind: _fixed(p.held, p, question, columns) for p in programs.stages}

    def ends(program: Program, part: Real) -> dict[str, Interval]:
        found = _bounded(fixed[program.kind], part)
        (peak, most), (rest, resting) = found[PEAK], found[STATES]
        if question.margin.factor == 1:
            return {PEAK: (peak + reserve, most + reserve)}
        return {PEAK: (factor * peak - (factor - 1) * resting + reserve,
                       factor * most - (factor - 1) * rest + reserve)}

    slack = 0.0 if question.margin.factor == 1 and not reserve else 2.0**-48
    low, high = _largest(programs, question, columns, True, ends, groups)[PEAK]
    return low * (1 - slack), high * (1 + slack)


def timed(programs: Programs, question: Question, columns: Columns, groups: Groups | None = None
          ) -> dict[str, Interval]:
    """Bound, estimate and card traffic of the slowest stage at every row, as intervals, in seconds."""
    fixed = {p.kind: _fixed(p.timed, p, question, columns) for p in programs.stages}
    return _largest(programs, question, columns, False, lambda program, part: _bounded(fixed[program.kind], part),
                    groups)


def by_sequence(found: Mapping[str, Interval], columns: Columns) -> Mapping[str, Interval]:
    """Intervals of what a step takes or carries; by the sequence where layouts have several batches."""
    if "batch" not in columns:
        return found
    return {path: (np.nextafter(low / columns["batch"], -np.inf), np.nextafter(high / columns["batch"], np.inf))
            for path, (low, high) in found.items()}


def _largest(programs: Programs, question: Question, columns: Columns, held: bool,
             ends: Callable[[Program, Real], dict[str, Interval]], groups: Groups | None) -> dict[str, Interval]:
    """The largest of intervals over the stages at every row."""
    strategy, units = programs.strategy, question.units
    count = len(columns["b"])
    groups = grouped(strategy, columns) if groups is None else groups
    real = {n: c.astype(np.float64) for n, c in columns.items()}
    found: dict[str, Interval] = {}
    for program in programs.stages:
        for rows, symbols in spread(strategy, units, groups, program.kind, held, held and not program.grows):
            part = real if rows is None else {n: c[rows] for n, c in real.items()}
            for path, both in ends(program, {**part, **symbols}).items():
                if path not in found and rows is None and both[0].shape == (count,):
                    found[path] = both
                    continue
                into = found.setdefault(path, (np.zeros(count), np.zeros(count)))
                for own, end in zip(into, both, strict=True):
                    if rows is None:
                        np.maximum(own, end, out=own)
                    else:
                        own[rows] = np.maximum(own[rows], end)
    return found


def at(columns: Columns, row: int) -> dict[str, Fraction]:
    """The sizes of one row."""
    return {name: Fraction(int(column[row])) for name, column in columns.items()}


def exact(programs: Programs, question: Question, path: str, sizes: Sizes) -> tuple[Fraction, Program, Load]:
    """The exact value of a figure on the stage where it is largest, that stage's program, and the stage."""
    found = [(value_of(programs.of(load.kind), question, path, {**sizes, **load.values}), load)
             for load in _stages(programs, question, sizes, path in HELD)]
    most, load = max(found, key=lambda pair: (pair[0], -pair[1].number))
    return most, programs.of(load.kind), load


def exact_need(programs: Programs, question: Question, sizes: Sizes) -> Fraction:
    """The exact need of the fullest stage's device, with the margin."""
    return max(question.needed(*(value_of(programs.of(load.kind), question, path, {**sizes, **load.values})
                                 for path in (PEAK, STATES)))
               for load in _stages(programs, question, sizes, True))


def _stages(programs: Programs, question: Question, sizes: Sizes, held: bool) -> tuple[Load, ...]:
    every = stage_loads(programs.strategy, question.units, sizes)
    return every if held and not all(p.grows for p in programs.stages) else heaviest(every, held)


def value_of(program: Program, question: Question, path: str, sizes: Mapping[str, Fraction | int]) -> Fraction:
    """The exact value of a figure of a stage; `sizes` have the symbols of the stage."""
    figure = program.figures.get(path)
    return Fraction(0) if figure is None else figure.value({**question.constants(program), **sizes})


def _objective(name: str, found: Mapping[str, Interval], held: Interval) -> Interval:
    return {"estimate": found[ESTIMATE], "bound": found[BOUND], "card": found[CARD], "memory": held}[name]


def _best_of_each(objective: Interval, rows: Whole) -> npt.NDArray[np.int64]:
    """The row of each layout's best place: the first of those that may be the best within the bounds."""
    starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
    group = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(rows)]))
    may = objective[0] <= np.minimum.reduceat(objective[1], starts)[group]
    first = np.where(may, np.arange(len(rows)), len(rows))
    return np.asarray(np.minimum.reduceat(first, starts), dtype=np.int64)


def _fixed(arrays: Arrays, program: Program, question: Question, columns: Columns) -> Arrays:
    """The arrays with a number for all that is the same in every layout, and on every stage of it."""
    stage = {ANY, *(name(unit) for unit, _ in question.units for name in (counted, flying, starting))}
    return arrays.fixed({n: float(v) for n, v in question.constants(program).items()
                         if n not in columns and n not in stage})


def _bounded(fixed: Arrays, columns: Real) -> dict[str, Interval]:
    return fixed.bounded({n: columns[n] for n in fixed.names})
