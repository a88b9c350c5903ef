"""Where along one parameter of the estimate, one rate or the memory the best configuration changes, exactly.

The estimate of a configuration is the largest of some sums, linear in u: the parameter itself, or its inverse for rates
and efficiencies. So it is convex and piecewise linear in u. With the values at both ends and the middle of an interval,
chords bound what the best takes from above, and the chord of one half, continued, bounds what another takes in the
other half from below: what can nowhere be the best is left out, in double precision with a margin far above its error,
and each half is asked again about the rest. Of the few that are left the lines, their kinks and their crossings are
found in fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from placealg.configurations.evaluate import BOUND, ESTIMATE, at, evaluate, exact, needs, timed
from placealg.configurations.found import Configuration, Found, configuration, order
from placealg.configurations.layouts import Columns, placed
from placealg.configurations.question import Question
from placealg.cost.machines import RATES
from placealg.cost.times import PARAMETERS
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.progress import say

SHARES = ("exposed_states", "exposed_tensors", "efficiency", "link_efficiency")
"""Parameters that are at most 1."""

INVERSE = ("efficiency", "link_efficiency", *RATES)
"""What divides."""

MEMORY = "memory"
"""The memory of a device, in bytes: it decides what fits, not how long it takes."""

_FEW = 24
"""So many configurations at most are compared by fractions over one interval."""

_MARGIN = 1e-9
"""The relative margin of what is left out in double precision: a million times the error."""

Point = tuple[int, int]
"""A strategy, and a row of its columns."""


@dataclass(frozen=True, slots=True)
class Region:
    """From `low` to `high` of what `name` says, this is the best: exact ends, those of the range among them."""

    name: str
    low: Fraction
    high: Fraction
    best: Configuration


def varied(question: Question, name: str, value: Fraction) -> Question:
    """The question at another value of a parameter or a rate."""
    if name in PARAMETERS:
        return replace(question, parameters=question.parameters.plus({name: value}))
    return replace(question, machine=question.machine.with_rates(**{name: value}))


def current(question: Question, name: str) -> Fraction:
    """The value at which the search was made."""
    return question.memory if name == MEMORY else {**PARAMETERS, **question.parameters, **question.machine.rates}[name]


def names(question: Question) -> tuple[str, ...]:
    """What may be varied: the parameters of the estimate, the rates of the machine that it knows, and the memory."""
    return (*PARAMETERS, *(n for n in question.machine.rates if n != "nvme_bw"), MEMORY)


def ends(question: Question, name: str, low: Fraction | None = None,
         high: Fraction | None = None) -> tuple[Fraction, Fraction]:
    """The ends of the range of a parameter: as said, or half of what it is and twice that, shares up to 1."""
    if question.objective != "estimate":
        raise InputError(f"where the best changes is told of the estimate, not of {question.objective}")
    if question.devices.more:
        raise InputError("where the best changes is told of one batch")
    if name not in names(question):
        raise InputError(f"'{name}' is no parameter of the estimate, rate or memory", name=name, valid=names(question))
    now = current(question, name)
    least = now / 2 if low is None else low
    most = (max(min(now * 2, Fraction(1)), now) if name in SHARES else now * 2) if high is None else high
    if not 0 <= least <= most or (name in INVERSE and not least):
        raise InputError(f"{name} from {float(least):g} to {float(most):g} is no range")
    return least, most


def regions(found: Found, name: str, low: Fraction | None = None, high: Fraction | None = None) -> tuple[Region, ...]:
    """The best over a range of one parameter, by default from half its value to twice, shares up to 1; low to high.

    >>> import placealg as pa
    >>> found = pa.search("gpt2", devices=4, batch=8, machine="h100", only=("zero1", "dp"), memory="8GB", s=64)
    >>> [(float(r.low), float(r.high), r.best.expression) for r in regions(found, "latency")]
    [(1e-05, 4e-05, 'zero1')]
    """
    least, most = ends(found.question, name, low, high)
    if name == MEMORY:
        return _by_memory(found, least, most)
    return _Envelope(found, name).regions(least, most)


def around(found: Found, name: str) -> tuple[Region | None, Region, Region | None]:
    """The region in which the search stands, and what is the best before and after it, within the range."""
    every = regions(found, name)
    now = current(found.question, name)
    here = [k for k, region in enumerate(every) if region.low <= now <= region.high]
    k = next((k for k in here if every[k].best == found.best), here[0])
    return every[k - 1] if k else None, every[k], every[k + 1] if k + 1 < len(every) else None


def _by_memory(found: Found, least: Fraction, most: Fraction) -> tuple[Region, ...]:
    """The best over a range of memories: it changes where a better one begins to fit, at what that one needs."""
    if most > found.question.memory:
        question = replace(found.question, memory=most)
        found = Found(question, [evaluate(one.programs, question) for one in found.every], found.refused, found.total)
    stairs = [one for one in found.front((MEMORY, "estimate")) if one.need <= most] if found.counts.fit else []
    made: list[Region] = []
    for one, following in zip(stairs, [*stairs[1:], None], strict=True):
        end = most if following is None else following.need
        if end > least:
            made.append(Region(MEMORY, max(one.need, least), end, one))
    return tuple(made)


class _Envelope:
    """The lower envelope of all estimates along one parameter."""

    def __init__(self, found: Found, name: str):
        self.found, self.name, self.question = found, name, found.question
        self.inverse = name in INVERSE
        self.columns: dict[int, Columns] = {}

    def regions(self, low: Fraction, high: Fraction) -> tuple[Region, ...]:
        """The regions from one value to another, in ascending order."""
        ends = sorted((self._u(low), self._u(high)))
        every = self._rows()
        parts = self._split(every, ends[0], ends[1], 0) if ends[0] < ends[1] else [
            (ends[0], ends[0], self._best(every, ends[0]))]
        joined: list[tuple[Fraction, Fraction, Point]] = []
        for first, last, point in parts:
            if joined and joined[-1][2] == point:
                joined[-1] = joined[-1][0], last, point
            else:
                joined.append((first, last, point))
        made = [Region(self.name, min(values), max(values), self._configuration(point)) for first, last, point in joined
                if (values := (self._u(first), self._u(last)))]
        return tuple(sorted(made, key=lambda region: region.low))

    def _u(self, value: Fraction) -> Fraction:
        return 1 / value if self.inverse else value

    def _rows(self) -> Mapping[int, npt.NDArray[np.int64]]:
        """Strategy -> its rows: every layout that fits in every place."""
        for k, one in enumerate(self.found.every):
            if one.fit:
                self.columns[k], _ = placed(one.layouts, one.programs.strategy.mesh.names, self.question.devices)
        return {k: np.arange(len(next(iter(columns.values())))) for k, columns in self.columns.items()}

    def _values(self, rows: Mapping[int, npt.NDArray[np.int64]], u: Fraction) -> npt.NDArray[np.float64]:
        """The estimates of rows, strategy after strategy, at one value."""
        question = varied(self.question, self.name, self._u(u))
        found = []
        for k, chosen in rows.items():
            columns = {n: c[chosen] for n, c in self.columns[k].items()}
            low, high = timed(self.found.every[k].programs, question, columns)[ESTIMATE]
            found.append((low + high) / 2)
        return np.concatenate(found)

    def _split(self, rows: Mapping[int, npt.NDArray[np.int64]], low: Fraction, high: Fraction,
               depth: int) -> list[tuple[Fraction, Fraction, Point]]:
        if sum(map(len, rows.values())) <= _FEW or depth > _DEEPEST:
            return self._by_fractions([(k, int(r)) for k, chosen in rows.items() for r in chosen], low, high)
        say(f"{self.name} from {float(self._u(low)):.4g} to {float(self._u(high)):.4g}")
        middle = (low + high) / 2
        first, half, last = (self._values(rows, u) for u in (low, middle, high))
        alike = self._one_of_each(rows, np.stack([first, half, last]))
        rows, first, half, last = _chosen(rows, alike), first[alike], half[alike], last[alike]
        found = []
        for ends, mine, beyond, own in (((low, middle), first, last, (first, half)),
                                        ((middle, high), last, first, (half, last))):
            # The chord of the other half, continued over this one, is nowhere above what is taken here.
            kept = np.ones(len(half), dtype=bool)
            bounds = [at_end.min() * (1 + _MARGIN) for at_end in own]
            for best in {int(np.argmin(v)) for v in (first, half, last)}:
                chord = 2 * half - beyond - _ERROR * (half + beyond)
                kept &= ~((chord > mine[best] * (1 + _MARGIN)) & (half > half[best] * (1 + _MARGIN)))
            kept &= np.minimum(*own) <= max(bounds)
            found += self._split(_chosen(rows, kept), *ends, depth + 1)
        return found

    def _one_of_each(self, rows: Mapping[int, npt.NDArray[np.int64]],
                     values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Of rows that agree to the last bit at all points the one of least bound, and then of least need."""
        _, group = np.unique(values, axis=1, return_inverse=True)
        kept = np.ones(values.shape[1], dtype=bool)
        if group.max(initial=0) + 1 == values.shape[1] or values.shape[1] > _MANY:
            return kept
        keys = []
        for k, chosen in rows.items():
            programs, columns = self.found.every[k].programs, {n: c[chosen] for n, c in self.columns[k].items()}
            keys.append(np.stack([timed(programs, self.question, columns)[BOUND][0],
                                  needs(programs, self.question, columns)[0]]))
        bound, need = np.concatenate(keys, axis=1)
        order = np.lexsort((need, bound, group.ravel()))
        ranked = group.ravel()[order]
        kept[order] = np.r_[True, ranked[1:] != ranked[:-1]]
        return kept

    def _exact(self, point: Point, u: Fraction) -> Fraction:
        k, row = point
        question = varied(self.question, self.name, self._u(u))
        return exact(self.found.every[k].programs, question, ESTIMATE, at(self.columns[k], row))[0]

    def _by_fractions(self, points: Sequence[Point], low: Fraction,
                      high: Fraction) -> list[tuple[Fraction, Fraction, Point]]:
        lines = {point: broken_line(lambda u, p=point: self._exact(p, u), low, high)  # type: ignore[misc]
                 for point in points}
        ends = sorted({low, high, *(u for line in lines.values() for u, _ in line), *crossings(list(lines.values()))})
        found = []
        for start, end in pairwise(ends):
            middle = (start + end) / 2
            values = {point: _on(line, middle) for point, line in lines.items()}
            least = min(values.values())
            found.append((start, end, self._first([p for p, v in values.items() if v == least])))
        return found

    def _best(self, rows: Mapping[int, npt.NDArray[np.int64]], u: Fraction) -> Point:
        values = self._values(rows, u)
        few = _chosen(rows, values <= values.min() * (1 + _MARGIN))
        points = [(k, int(r)) for k, chosen in few.items() for r in chosen]
        exactly = {point: self._exact(point, u) for point in points}
        least = min(exactly.values())
        return self._first([p for p, v in exactly.items() if v == least])

    def _first(self, points: Sequence[Point]) -> Point:
        """Of configurations that take equally long the one that the search would call the best."""
        return points[0] if len(points) == 1 else min(
            points, key=lambda p: order(self.question, self._configuration(p)))

    def _configuration(self, point: Point) -> Configuration:
        k, row = point
        return configuration(self.found.every[k].programs, self.question, FrozenMap(at(self.columns[k], row)))


_DEEPEST = 40
"""The most halvings of a range."""

_MANY = 50_000
"""Above so many rows none are compared with each other for being alike."""

_ERROR = 1e-12
"""Far above the relative error of a value in double precision."""


def _chosen(rows: Mapping[int, npt.NDArray[np.int64]],
            kept: npt.NDArray[np.bool_]) -> dict[int, npt.NDArray[np.int64]]:
    found, start = {}, 0
    for k, chosen in rows.items():
        part = chosen[kept[start:start + len(chosen)]]
        start += len(chosen)
        if len(part):
            found[k] = part
    return found


Line = tuple[tuple[Fraction, Fraction], ...]
"""The corners of a broken line, from left to right."""


def broken_line(value: Callable[[Fraction], Fraction], low: Fraction, high: Fraction) -> Line:
    """The corners of a convex function that consists of straight pieces, from its values alone, exactly.

    A convex function whose value in the middle is the mean of the ends is straight between them. Between two straight
    pieces the kink is where they cross, if the function is there what they say.

    >>> broken_line(lambda u: max(u, 3 - u), Fraction(0), Fraction(4))
    ((Fraction(0, 1), Fraction(3, 1)), (Fraction(3, 2), Fraction(3, 2)), (Fraction(4, 1), Fraction(4, 1)))
    """
    known: dict[Fraction, Fraction] = {}

    def of(u: Fraction) -> Fraction:
        if u not in known:
            known[u] = value(u)
        return known[u]

    def corners(left: Fraction, right: Fraction) -> list[Fraction]:
        middle = (left + right) / 2
        if 2 * of(middle) == of(left) + of(right):
            return []
        near = (right - left) / 2**20
        slopes = [(of(left + near) - of(left)) / near, (of(right) - of(right - near)) / near]
        kink = (of(right) - of(left) + slopes[0] * left - slopes[1] * right) / (slopes[0] - slopes[1])
        if left < kink < right and of(kink) == of(left) + slopes[0] * (kink - left):
            return [kink]
        return [*corners(left, middle), *([middle] if _bent(middle, near) else []), *corners(middle, right)]

    def _bent(u: Fraction, near: Fraction) -> bool:
        return 2 * of(u) != of(u - near) + of(u + near)

    every = sorted({low, high, *(corners(low, high) if low < high else ())})
    return tuple((u, of(u)) for u in every)


def _on(line: Line, u: Fraction) -> Fraction:
    for (left, below), (right, above) in pairwise(line):
        if left <= u <= right:
            return below + (above - below) * (u - left) / (right - left)
    return line[0][1]


def crossings(lines: Iterable[Line]) -> set[Fraction]:
    """Where two broken lines cross within a piece of each.

    >>> one, other = (broken_line(f, Fraction(0), Fraction(4)) for f in (lambda u: u, lambda u: 3 - u))
    >>> crossings([one, other])
    {Fraction(3, 2)}
    """
    listed = list(lines)
    found = set()
    for k, one in enumerate(listed):
        for other in listed[k + 1:]:
            ends = sorted({u for u, _ in (*one, *other)})
            for left, right in pairwise(ends):
                before, after = (_on(one, u) - _on(other, u) for u in (left, right))
                if before * after < 0:
                    found.add(left + (right - left) * before / (before - after))
    return found
