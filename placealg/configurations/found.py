"""What a search finds: every layout that fits, the best of them by exact comparison, the front, and the counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from placealg.configurations.evaluate import BOUND, CARD, ESTIMATE, PEAK, STATES, Evaluated, at, exact_need
from placealg.configurations.exactly import Exact, Fractions
from placealg.configurations.layouts import PASSES, Columns, undivided
from placealg.configurations.order import Rows
from placealg.configurations.programs import Programs
from placealg.configurations.pruning import Pruned
from placealg.configurations.question import OBJECTIVES, Question
from placealg.configurations.space import matches
from placealg.configurations.stages import Load, stage_loads
from placealg.cost.links import in_node
from placealg.errors import InputError
from placealg.frozen import FrozenMap

if TYPE_CHECKING:
    from placealg.configurations.regions import Region

Table = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Configuration:
    """A strategy with numbers: sizes of its axes, b, m, v and its places; what it needs and takes, exactly.

    `need` is in bytes with the margin; `bound` and `estimate` in seconds, `card` what a card carries in bytes; `stages`
    are those of a pipeline, each with what it runs.
    """

    programs: Programs = field(compare=False, repr=False)
    expression: str
    sizes: FrozenMap[str, Fraction]
    need: Fraction
    bound: Fraction
    estimate: Fraction
    card: Fraction
    stages: tuple[Load, ...] = ()

    @property
    def axes(self) -> dict[str, int]:
        """The devices along each axis."""
        return {a: int(self.sizes[a]) for a in self.programs.strategy.mesh.names}

    @property
    def places(self) -> dict[str, int]:
        """The ranks of each axis that lie in one node, where there are several."""
        return {a: int(self.sizes[in_node(a)]) for a in self.axes if self.sizes[in_node(a)] > 1}

    @property
    def counts(self) -> dict[str, int]:
        """b, m, v where there are chunks, and the sequences of a step where there are several numbers of them."""
        return {n: int(self.sizes[n]) for n in (*PASSES, "v") if n in self.sizes}

    def value(self, objective: str) -> Fraction:
        """What an objective compares: times and traffic by the sequence where there are several batches."""
        told = {"estimate": self.estimate, "bound": self.bound, "memory": self.need, "card": self.card}[objective]
        return told if objective == "memory" else told / int(self.sizes.get("batch", 1))

    @property
    def text(self) -> str:
        """The expression and its sizes, as `--why` reads them."""
        told = {**self.axes, **self.counts}
        return f"{self.expression} " + " ".join(f"{n}={v}" for n, v in told.items())

    def to_json(self) -> dict[str, Any]:
        """The configuration as data; exact numbers as text beside their decimals."""
        return {"strategy": self.expression, "axes": self.axes, **self.counts, "in_node": self.places,
                **({"stages": [stage.instances for stage in self.stages]} if self.stages else {}),
                **{name: {"exact": str(value), "value": float(value)} for name, value in (
                    ("needs_bytes", self.need), ("takes_at_least_seconds", self.bound),
                    ("takes_about_seconds", self.estimate), ("card_bytes", self.card))}}


def configuration(programs: Programs, question: Question, sizes: Mapping[str, Fraction]) -> Configuration:
    """A configuration with its exact figures."""
    return configurations(programs, question, {n: np.array([int(v)]) for n, v in sizes.items()})[0]


def configurations(programs: Programs, question: Question, columns: Columns) -> list[Configuration]:
    """The configurations that rows of sizes and places are, with their exact figures."""
    exact = Exact(programs, question)
    times = [exact.largest(path, columns) for path in (BOUND, ESTIMATE, CARD)]
    found = []
    for k, (need, bound, estimate, card) in enumerate(zip(exact.need((PEAK, STATES), columns), *times, strict=True)):
        sizes = FrozenMap(at(columns, k))
        stages = stage_loads(programs.strategy, question.units, sizes) if programs.strategy.pipeline_axis else ()
        found.append(Configuration(programs, programs.expression, sizes, need, bound, estimate,
                                   card * question.machine.values["card_bw"], stages))
    return found


FIGURES: Mapping[str, str] = FrozenMap({"needs": "memory", "bound": "bound", "estimate": "estimate", "card": "card"})
"""Column of the table -> the objective that compares it."""


def order(question: Question, one: Configuration) -> tuple[Any, ...]:
    """What is compared of two configurations, as `Rows.ordered` compares rows.

    Those of equal objective are compared by the other objectives, and then by their words and sizes.
    """
    return (*map(one.value, question.compared), one.expression, tuple(sorted(one.sizes.items())))


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of the space was seen: strategies, those refused on the model, layouts, those that fit, and places."""

    strategies: int = 0
    refused: int = 0
    layouts: int = 0
    fit: int = 0
    places: int = 0
    open: int = 0


class Found:
    """The outcome of a search; `complete` is False where it was interrupted after some of the strategies.

    `pruned` are the strategies of which a bound excludes that they have the best.
    """

    def __init__(self, question: Question, every: Sequence[Evaluated], refused: Mapping[str, str], total: int,
                 pruned: Mapping[str, Pruned] = FrozenMap()):
        self.question, self.every, self.refused, self.total = question, tuple(every), dict(refused), total
        self.pruned = dict(pruned)

    @property
    def complete(self) -> bool:
        """Whether every strategy of the space was seen."""
        return len(self.every) + len(self.refused) + len(self.pruned) == self.total

    @cached_property
    def counts(self) -> Counts:
        """How much was seen."""
        return Counts(len(self.every), len(self.refused), sum(e.count for e in self.every),
                      sum(e.fit for e in self.every), sum(e.places for e in self.every),
                      sum(e.open for e in self.every))

    @cached_property
    def best(self) -> Configuration:
        """The best configuration: the first of all in their order, by exact comparison."""
        first = self.top(1)
        if not first:
            raise InputError("nothing fits")
        return first[0]

    @cached_property
    def rows(self) -> Rows:
        """Every layout that fits, in every place in which it may be the best."""
        return Rows(self.every)

    @cached_property
    def in_order(self) -> Table:
        """The rows of all layouts that fit, the best first, each layout in its best place."""
        return self._ordered(self.counts.fit)

    def _ordered(self, count: int, strategies: Sequence[int] | None = None) -> Table:
        rows = np.arange(len(self.rows.row))
        if strategies is not None:
            rows = rows[np.isin(self.rows.strategy, strategies)]
        return self.rows.ordered(self.question.compared, rows, count)

    @cached_property
    def table(self) -> Table:
        """Every layout that fits, in its best place, the best first: a numpy structured array.

        Sizes of axes that a strategy lacks are 1; times are in seconds, memory and card traffic in bytes, each the
        double nearest to its exact value.
        """
        sizes = self.sizes
        kinds = [("strategy", f"U{max([len(e.programs.expression) for e in self.every] or [1])}"),
                 *((n, np.int64) for n in sizes), *((n, np.float64) for n in FIGURES), ("place", np.int64)]
        found = np.ones(self.counts.fit, dtype=kinds)
        for n, column in {**sizes, **self.figures}.items():
            found[n] = column
        found["place"] = self.rows.strategy[self.in_order]
        found["strategy"] = np.array([e.programs.expression for e in self.every] or [""])[found["place"]]
        return found

    @property
    def sizes(self) -> dict[str, Table]:
        """Size -> its value in every row of the table, 1 where a strategy lacks it."""
        names = dict.fromkeys(n for e in self.every for n in e.placed)
        rows = self.rows.strategy[self.in_order], self.rows.row[self.in_order]
        found = {}
        for n in sorted(names, key=lambda n: (n.endswith("_in_node"), n in (*PASSES, "v"))):
            found[n] = np.ones(len(self.in_order), dtype=np.int64)
            for k, one in enumerate(self.every):
                if n in one.placed:
                    where = np.flatnonzero(rows[0] == k)
                    found[n][where] = one.placed[n][rows[1][where]]
        return found

    @cached_property
    def figures(self) -> dict[str, Fractions]:
        """Figure -> its exact value in every row of the table, in bytes and seconds."""
        found = {n: self.rows.exactly(objective, self.in_order) for n, objective in FIGURES.items()}
        if self.question.devices.more:
            batch = self.sizes["batch"].astype(object)
            found |= {n: found[n] * batch for n, objective in FIGURES.items() if objective != "memory"}
        return found

    def compared(self, table: Table, objective: str) -> Any:
        """What an objective compares, of every row of a table, in double precision."""
        values = table["needs" if objective == "memory" else objective]
        return values / table["batch"] if objective != "memory" and self.question.devices.more else values

    def configuration(self, row: Any) -> Configuration:
        """A row of the table with its exact figures."""
        one = self.every[int(row["place"])]
        return configuration(one.programs, self.question, {n: Fraction(int(row[n])) for n in one.placed})

    def top(self, count: int) -> list[Configuration]:
        """The first so many, with exact figures."""
        return [self._of(k) for k in self._ordered(count)]

    def _of(self, row: int) -> Configuration:
        one = self.every[self.rows.strategy[row]]
        return configuration(one.programs, self.question, at(one.placed, int(self.rows.row[row])))

    def count(self, limit: Fraction, less: bool = False) -> int:
        """How many layouts fit whose objective is at most a limit, or `less` than it."""
        low, high = self.rows.interval(self.question.objective)
        end = float(limit)
        may = np.flatnonzero(low <= np.nextafter(end, np.inf))
        surely = high[may] < np.nextafter(end, -np.inf)
        open_ = may[~surely]
        exact = self.rows.exactly(self.question.objective, open_)
        those = np.concatenate([may[surely], open_[(exact < limit) if less else (exact <= limit)]])
        return len(np.unique(self.rows.layout[those]))

    def preferred(self, patterns: Iterable[str]) -> Configuration | None:
        """Of the layouts whose strategies match one of the patterns, the first of the table; None if none fits."""
        wanted = tuple(patterns)
        those = [k for k, one in enumerate(self.every) if matches(one.programs.expression, wanted)]
        return next(map(self._of, self._ordered(1, those)), None)

    def front(self, names: Iterable[str] = ("memory", "estimate", "card")) -> list[Configuration]:
        """The layouts of which no other is as good in every objective and better in one, in order of the first one.

        They are chosen in double precision, and then compared exactly; of equal ones the first counts.
        """
        if isinstance(names, str):
            raise InputError(f"'{names}' is one objective, and a front has several, such as ('memory', 'estimate')")
        named = tuple(names)
        for name in named:
            if name not in OBJECTIVES:
                raise InputError(f"unknown objective '{name}'", name=name, valid=OBJECTIVES)
        table = self.table
        values = np.stack([self.compared(table, n) for n in named], axis=1)
        chosen = _undominated(values)
        exactly = [self.configuration(table[k]) for k in chosen]
        told = [tuple(c.value(n) for n in named) for c in exactly]
        kept = [k for k, mine in enumerate(told)
                if not any(all(a <= b for a, b in zip(other, mine, strict=True)) and (other != mine or n < k)
                           for n, other in enumerate(told) if n != k)]
        return sorted((exactly[k] for k in kept), key=lambda c: tuple(c.value(n) for n in named))

    def regions(self, name: str, low: Fraction | None = None, high: Fraction | None = None) -> tuple[Region, ...]:
        """The best over a range of a parameter of the estimate, a rate or the memory, by default half to twice."""
        from placealg.configurations.regions import regions

        return regions(self, name, low, high)

    @cached_property
    def least(self) -> tuple[float, float]:
        """An interval that holds the smallest bound of the space: no configuration in it that fits takes less.

        Where strategies are left out, its low end is at most what they take.
        """
        ends = [one.least[1] for one in self.every if one.least]
        below = min((one.seconds for one in self.pruned.values()), default=float("inf"))
        return min(below, *(float(e[0].min()) for e in ends)), min(float(e[1].min()) for e in ends)

    @cached_property
    def least_bound(self) -> Fraction:
        """The smallest bound of the space, exactly, over all layouts that fit and all their places."""
        found = []
        for one in self.every:
            if one.least:
                columns, (low, _) = one.least
                near = {n: c[low <= self.least[1]] for n, c in columns.items()}
                if len(near["b"]):
                    each = Exact(one.programs, self.question).largest(BOUND, near)
                    found.append(min(self.question.by_sequence(v, {n: c[k] for n, c in near.items()})
                                     for k, v in enumerate(each)))
        return min(found)

    @cached_property
    def undivided(self) -> dict[str, str]:
        """Strategy without a layout -> what does not divide, and what would."""
        question, found = self.question, {}
        for one in self.every:
            programs = one.programs
            why = undivided(programs.strategy, question.model, question.devices, question.sizes, question.space.fixed,
                            programs.whole, question.space.uneven)
            if why or (not one.fit and not one.missed):
                found[programs.expression] = why or f"no sizes of its axes fill nodes of {question.devices.per_node}"
        return found

    @cached_property
    def missed(self) -> tuple[Programs, FrozenMap[str, Fraction], Fraction] | None:
        """Of the layouts that do not fit, the one that misses by the least: programs, sizes, and what it needs."""
        most = min((one.missed[1][1] for one in self.every if one.missed), default=None)
        if most is None:
            return None
        near = [(exact_need(one.programs, self.question, one.missed[0]), k)
                for k, one in enumerate(self.every) if one.missed and one.missed[1][0] <= most]
        need, k = min(near)
        found = self.every[k].missed
        assert found is not None
        return self.every[k].programs, found[0], need


_TOLERANCE = 1e-12
"""Relative difference above which values in double precision surely differ: far above the bounds of their errors."""


def _undominated(values: npt.NDArray[np.float64]) -> list[int]:
    """The rows that no other surely dominates: as good in all columns, and surely better in one."""
    order = np.lexsort(values.T[::-1])
    left, kept = order, []
    while len(left):
        first = left[0]
        kept.append(int(first))
        mine = values[first]
        others = values[left[1:]]
        worse = (mine <= others * (1 + _TOLERANCE)).all(axis=1) & (mine < others * (1 - _TOLERANCE)).any(axis=1)
        left = left[1:][~worse]
    return kept
