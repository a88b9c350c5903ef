"""The one order of configurations: what the objective compares, then the other objectives, the words and the sizes.

Every list is in this order. Intervals in double precision tell most rows apart; fractions those which they leave open.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from placealg.configurations.evaluate import Evaluated, Interval
from placealg.configurations.exactly import Exact, Fractions
from placealg.configurations.layouts import Whole
from placealg.cost.arrays import Column


class Rows:
    """The rows of several strategies, one after the other: `strategy` says of which, `row` which of it each one is."""

    def __init__(self, every: Sequence[Evaluated]):
        self.every = every
        counts = [len(one.layout) for one in every]
        self.strategy = np.repeat(np.arange(len(every)), counts)
        self.row = np.concatenate([np.arange(0), *map(np.arange, counts)])
        before = np.cumsum([0, *(one.fit for one in every)])
        self.layout = np.concatenate([np.arange(0), *(k + one.layout for k, one in zip(before, every, strict=False))])
        self.intervals: dict[str, Interval] = {}
        self.exact: dict[str, Fractions] = {}
        self.known: dict[int, Exact] = {}

    def interval(self, name: str) -> Interval:
        """Of every row an interval of what the objective `name` compares."""
        if name not in self.intervals:
            ends = [one.interval(name) for one in self.every if len(one.layout)]
            low, high = (np.concatenate([np.zeros(0), *(pair[k] for pair in ends)]) for k in (0, 1))
            self.intervals[name] = low, high
        return self.intervals[name]

    def exactly(self, name: str, rows: Whole) -> Fractions:
        """The same of some rows, exactly: fractions."""
        found = self.exact.setdefault(name, np.full(len(self.row), None, dtype=object))
        left = rows[np.array([value is None for value in found[rows]], dtype=np.bool_)]
        of = self.strategy[left]
        for k in np.unique(of):
            where, one = left[of == k], self.every[k]
            known = self.known.setdefault(int(k), Exact(one.programs, one.question))
            found[where] = one.exactly(name, known, self.row[where])
        return found[rows]

    @cached_property
    def words(self) -> Whole:
        """The place of every row by its strategy's expression and its sizes, in the order of their names."""
        expressions = sorted((one.programs.expression, k) for k, one in enumerate(self.every))
        starts = np.cumsum([0, *(len(one.layout) for one in self.every)])
        found, place = np.zeros(len(self.row), dtype=np.int64), 0
        for _, k in expressions:
            columns = self.every[k].placed
            if len(self.every[k].layout):
                by = np.lexsort([columns[n] for n in sorted(columns, reverse=True)])
                found[starts[k] + by] = place + np.arange(len(by))
                place += len(by)
        return found

    def ordered(self, names: Sequence[str], rows: Whole, count: int) -> Whole:
        """The best rows of the first `count` layouts: in order of what each of `names` compares, then of their words.

        Of `rows`, what is sure to come later is left out after each comparison.
        """
        group = np.zeros(len(rows), dtype=np.int64)
        for name in names:
            low, high = (end[rows] for end in self.interval(name))
            by = np.lexsort((low, group))
            rows, group, low, high = rows[by], group[by], low[by], high[by]
            rows, group = self._first(rows, _apart(group, low, high), count)
            sizes = np.bincount(group)
            alike = np.flatnonzero(sizes[group] > 1)
            rank = np.zeros(len(rows), dtype=np.int64)
            exact = self.exactly(name, rows[alike])
            order = {value: k for k, value in enumerate(sorted(set(exact)))}
            rank[alike] = [order[value] for value in exact]
            by = np.lexsort((rank, group))
            rows, group, rank = rows[by], group[by], rank[by]
            rows, group = self._first(rows, np.cumsum(_changes(group) | _changes(rank)) - 1, count)
        rows = rows[np.lexsort((self.words[rows], group))]
        return self._first(rows, np.arange(len(rows)), count)[0]

    def _first(self, rows: Whole, group: Whole, count: int) -> tuple[Whole, Whole]:
        """Of rows in ascending groups those of the first `count` layouts; of each layout those of its first group."""
        if not len(rows) or not count:
            return rows[:0], group[:0]
        _, first, which = np.unique(self.layout[rows], return_index=True, return_inverse=True)
        last = group[np.sort(first)[:count][-1]]
        kept = (group == group[first][which]) & (group <= last)
        return rows[kept], np.cumsum(_changes(group[kept])) - 1


def _changes(values: Whole) -> npt.NDArray[np.bool_]:
    """Where a value differs from the one before it."""
    return np.concatenate([np.ones(min(len(values), 1), dtype=np.bool_), values[1:] != values[:-1]])


def _apart(group: Whole, low: Column, high: Column) -> Whole:
    """Ascending groups split, in each of which intervals ascend, where all before surely are less."""
    place = np.empty(len(group), dtype=np.int64)
    by = np.lexsort((high, group))
    place[by] = np.arange(len(by))
    before = high[by][np.maximum.accumulate(place)]
    apart = _changes(group)
    apart[1:] |= low[1:] > before[:-1]
    return np.asarray(np.cumsum(apart) - 1)
