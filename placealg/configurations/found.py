"""What a search finds: every layout that fits, the best of them by exact comparison, the front, and the counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from placealg.configurations.evaluate import BOUND, CARD, ESTIMATE, Evaluated, at, exact, exact_need
from placealg.configurations.layouts import PASSES
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
    values = [exact(programs, question, path, sizes)[0] for path in (BOUND, ESTIMATE, CARD)]
    return Configuration(programs, programs.expression, FrozenMap(sizes), exact_need(programs, question, sizes),
                         values[0], values[1], values[2] * question.machine.values["card_bw"],
                         stage_loads(programs.strategy, question.units, sizes)
                         if programs.strategy.pipeline_axis else ())


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
                      sum(len(e.needed) for e in self.every), sum(e.places for e in self.every),
                      sum(e.open for e in self.every))

    @cached_property
    def best(self) -> Configuration:
        """The best configuration: among all that may be within the bounds, by exact comparison.

        Those of equal objective are compared by bound, memory and card, and then by their text.
        """
        first = self.top(1)
        if not first:
            raise InputError("nothing fits")
        near: list[Configuration] = []
        most = min(e.near[1][1].min() for e in self.every if e.near)
        for one in self.every:
            if one.near:
                columns, (low, _) = one.near
                near += [configuration(one.programs, self.question, at(columns, int(k)))
                         for k in np.flatnonzero(low <= most)]
        return min(near, key=self.order)

    def order(self, one: Configuration) -> tuple[Any, ...]:
        """What is compared of two configurations."""
        return (one.value(self.question.objective), *map(one.value, ("estimate", "bound", "memory", "card")),
                one.expression, tuple(sorted(one.sizes.items())))

    @cached_property
    def table(self) -> Table:
        """Every layout that fits, in its best place, the best first: a numpy structured array.

        Sizes of axes that a strategy lacks are 1; times are in seconds, memory and card traffic in bytes.
        """
        names = tuple(dict.fromkeys(n for e in self.every for n in e.placed))
        sizes = sorted(names, key=lambda n: (n.endswith("_in_node"), n in (*PASSES, "v")))
        kinds = [("strategy", f"U{max([len(e.programs.expression) for e in self.every] or [1])}"),
                 *((n, np.int64) for n in sizes),
                 *((n, np.float64) for n in ("needs", "bound", "estimate", "card")), ("place", np.int64)]
        found = np.ones(self.counts.fit, dtype=kinds)
        start = 0
        for k, one in enumerate(self.every):
            rows = slice(start, start + len(one.needed))
            start = rows.stop
            if not len(one.needed):
                continue
            found["strategy"][rows] = one.programs.expression
            for n, column in one.placed.items():
                found[n][rows] = column
            found["needs"][rows] = one.needed
            for n, path in (("bound", BOUND), ("estimate", ESTIMATE), ("card", CARD)):
                low, high = one.times[path]
                found[n][rows] = (low + high) / 2
            found["place"][rows] = k
        found["card"] *= float(self.question.machine.values["card_bw"])
        return found[np.lexsort((found["needs"], found["bound"], self.compared(found, self.question.objective)))]

    def compared(self, table: Table, objective: str) -> Any:
        """What an objective compares, of every row of a table, in double precision."""
        values = table["needs" if objective == "memory" else objective]
        return values / table["batch"] if objective != "memory" and self.question.devices.more else values

    def configuration(self, row: Any) -> Configuration:
        """A row of the table with its exact figures."""
        one = self.every[int(row["place"])]
        return configuration(one.programs, self.question, {n: Fraction(int(row[n])) for n in one.placed})

    def top(self, count: int) -> list[Configuration]:
        """The first of the table, with exact figures."""
        return [self.configuration(row) for row in self.table[:count]]

    def preferred(self, patterns: Iterable[str]) -> Configuration | None:
        """Of the layouts whose strategies match one of the patterns, the first of the table; None if none fits."""
        wanted = tuple(patterns)
        places = [k for k, one in enumerate(self.every) if matches(one.programs.expression, wanted)]
        rows = np.flatnonzero(np.isin(self.table["place"], places))
        return self.configuration(self.table[int(rows[0])]) if len(rows) else None

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
        most = self.least[1]
        rows = [(one.programs, at(one.least[0], int(k))) for one in self.every if one.least
                for k in np.flatnonzero(one.least[1][0] <= most)]
        return min(self.question.by_sequence(exact(programs, self.question, BOUND, sizes)[0], sizes)
                   for programs, sizes in rows)

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
