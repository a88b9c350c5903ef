"""All layouts of one strategy: which of them fit, and how long each takes in its best place, within proven bounds.

What the bounds of double precision leave open about the memory is decided by fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from placealg.arith import Monomial
from placealg.configurations.exactly import Exact, Fractions
from placealg.configurations.layouts import Columns, Whole, layouts, placed
from placealg.configurations.programs import HELD, TIMED, Program, Programs
from placealg.configurations.question import Question
from placealg.configurations.stages import Groups, Load, grouped, heaviest, spread, stage_loads
from placealg.cost.arrays import Arrays, Column
from placealg.cost.links import in_node
from placealg.frozen import FrozenMap
from placealg.strategy.spec import Strategy

PEAK, STATES = HELD[:2]
BOUND, ESTIMATE, CARD = TIMED
Interval = tuple[Column, Column]
Sizes = Mapping[str, Fraction]
Real = Mapping[str, Column]
"""Sizes of layouts, of their places and stages, as the doubles that are them."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The layouts of a strategy: of those that fit what each needs and how long it takes, where that may be the least.

    `placed` has the sizes and places of the layouts that fit, in every place in which the objective may be the least of
    the layout; `layout` says of which layout each row is, one after the other, `needed` and `times` are intervals that
    hold the exact values of the need, and of bound, estimate and card traffic. `missed` is the layout that misses the
    memory by the least, with an interval of its need. `open` were decided by fractions; `places` is the number of
    layouts with a place that were evaluated; `least` are the sizes and places of all that may have the smallest bound
    of time of the strategy, with its intervals.
    """

    programs: Programs
    question: Question
    count: int
    missed: tuple[FrozenMap[str, Fraction], tuple[float, float]] | None = None
    open: int = 0
    placed: Columns = field(default_factory=dict)
    layout: Whole = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    needed: Interval = (np.zeros(0), np.zeros(0))
    times: Mapping[str, Interval] = FrozenMap()
    places: int = 0
    least: tuple[Columns, Interval] | None = None

    @property
    def fit(self) -> int:
        """The number of layouts that fit."""
        return int(self.layout[-1]) + 1 if len(self.layout) else 0

    @property
    def layouts(self) -> Columns:
        """The sizes of the layouts that fit, without places."""
        first = np.flatnonzero(np.diff(self.layout, prepend=-1))
        places = {in_node(a) for a in self.programs.strategy.mesh.names}
        return {n: c[first] for n, c in self.placed.items() if n not in places}

    def interval(self, name: str) -> Interval:
        """Of every row an interval that holds `Configuration.value` of the objective `name`."""
        if name == "memory":
            return self.needed
        low, high = by_sequence(self.times, self.placed)[_TIMES[name]]
        unit = float(self._unit(name))
        return (low, high) if unit == 1 else (low * unit - np.abs(low) * (unit * 2.0**-50),
                                              high * unit + np.abs(high) * (unit * 2.0**-50))

    def exactly(self, name: str, figures: Exact, rows: Whole) -> Fractions:
        """The same of some rows, exactly; `figures` are those of the strategy."""
        columns = {n: c[rows] for n, c in self.placed.items()}
        if name == "memory":
            return figures.need((PEAK, STATES), columns)
        found = figures.largest(_TIMES[name], columns) * self._unit(name)
        return np.asarray(found / columns["batch"].astype(object) if "batch" in columns else found)

    def _unit(self, name: str) -> Fraction:
        return self.question.machine.values["card_bw"] if name == "card" else Fraction(1)

    @property
    def near(self) -> tuple[Whole, Interval] | None:
        """The rows that may be the best of the strategy, with the intervals of the objective."""
        if not self.fit:
            return None
        low, high = self.interval(self.question.objective)
        near = np.flatnonzero(low <= high.min())
        return near, (low[near], high[near])


_TIMES = {"estimate": ESTIMATE, "bound": BOUND, "card": CARD}
"""Objective -> its figure, for all but the memory."""


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
    count = len(columns["b"])
    if not count:
        return Evaluated(programs, question, 0, placed=columns)
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
    nothing = Evaluated(programs, question, count, missed, len(undecided), {n: c[:0] for n, c in columns.items()})
    if not fits.any():
        return nothing
    kept = {n: c[fits] for n, c in columns.items()}
    everywhere, rows = placed(kept, axes, question.devices)
    if not len(rows):
        return nothing
    found = timed(programs, question, everywhere, groups.at(fits).at(rows) if groups.keys else groups)
    bound = by_sequence(found, everywhere)[BOUND]
    least = bound[0] <= bound[1].min()
    whole = replace(nothing, placed=everywhere, layout=np.unique(rows, return_inverse=True)[1],
                    needed=(low[fits][rows], high[fits][rows]), times=found, places=len(rows),
                    least=({n: c[least] for n, c in everywhere.items()}, (bound[0][least], bound[1][least])))
    # No place changes what a layout needs, so that the next of what is compared tells its places apart.
    may = _best_of_each(*whole.interval(question.compared[question.objective == "memory"]), whole.layout)
    return replace(whole, placed={n: c[may] for n, c in everywhere.items()}, layout=whole.layout[may],
                   needed=(whole.needed[0][may], whole.needed[1][may]),
                   times=FrozenMap({path: (less[may], more[may]) for path, (less, more) in found.items()}))


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


def _best_of_each(low: Column, high: Column, layout: Whole) -> npt.NDArray[np.bool_]:
    """The rows in which what lies in an interval may be the least of its layout."""
    starts = np.flatnonzero(np.diff(layout, prepend=-1))
    return np.asarray(low <= np.minimum.reduceat(high, starts)[layout])


def _fixed(arrays: Arrays, program: Program, question: Question, columns: Columns) -> Arrays:
    """The arrays with a number for all that is the same in every layout, and on every stage of it."""
    return arrays.fixed({n: float(v) for n, v in question.fixed(program, columns).items()})


def _bounded(fixed: Arrays, columns: Real) -> dict[str, Interval]:
    return fixed.bounded({n: columns[n] for n in fixed.names})
