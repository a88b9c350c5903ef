"""The stages of a pipeline by kind: what is derived once for all numbers of stages and layers, and what each one runs.

A kind is an end or the middle, and the repeated units that a stage runs instances of. Its program has the numbers of
these instances as symbols (`on_stage`), so that layers may be of several kinds and need not divide: each chunk of
layers has the floor or the ceiling of the quotient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from placealg.arith import parse
from placealg.cost.stage import Stage
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.model import Model
from placealg.step.pipeline import Pipeline, counted, flying, starting
from placealg.step.place import ANY, At
from placealg.strategy.spec import Strategy

Whole = npt.NDArray[np.int64]
Columns = dict[str, Whole]
Units = tuple[tuple[str, int], ...]

_GROUPS = 4
"""Of the interleaved order so many groups of microbatches, one of each per stage, hold what more of them hold."""


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """A kind of stage: `first`, `i` or `last`, nothing without a pipeline; and the units that it runs instances of."""

    place: str = ""
    units: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.place} stage, {' and '.join(self.units)}" if self.place else "every device"


ALONE = Kind()
"""The one kind of a strategy without a pipeline: all devices are alike."""


@dataclass(frozen=True, slots=True)
class Load:
    """A stage by its number, with the values of the symbols that the program of its kind has."""

    number: int
    kind: Kind
    values: FrozenMap[str, int]

    @property
    def instances(self) -> dict[str, int]:
        """Unit -> the number of its instances."""
        return {unit: self.values[counted(unit)] for unit in self.kind.units}


def unit_counts(model: Model, sizes: Mapping[str, Fraction | int]) -> Units:
    """The repeated units of a model in their order, each with the number of its instances.

    >>> from placealg.models.config import resolve_model
    >>> unit_counts(resolve_model("deepseek-v3"), {})
    (('dense', 3), ('layer', 58))
    """
    known = {**{n: Fraction(v) for n, v in model.sizes.items()}, **sizes}
    for loop in model.graph.loops:
        for name in loop.count.names():
            if name not in known:
                raise InputError(f"the number of layers takes {name}: say --set {name}=")
    return tuple((loop.unit, int(loop.count.evaluate(known))) for loop in model.graph.loops)


def order_of(strategy: Strategy) -> str:
    """The order in which a stage runs its microbatches."""
    return str(strategy.option("schedule", "pipeline"))


@lru_cache(maxsize=4096)
def loads(units: Units, order: str, ranks: int, chunks: int, microbatches: int) -> tuple[Load, ...]:
    """Every stage of so many, with what it runs and has in flight; `microbatches` matter to interleaved chunks alone.

    >>> [load.values["n_layer"] for load in loads((("layer", 126),), "1f1b", 16, 1, 1)][:4]
    [7, 8, 8, 8]
    >>> [str(load.kind) for load in loads((("dense", 3), ("layer", 3)), "1f1b", 3, 1, 1)]
    ['first stage, dense', 'i stage, dense and layer', 'last stage, layer']
    """
    listed = [unit for unit, count in units for _ in range(count)]
    pipeline = Pipeline("pp", order, chunks)
    sizes = pipeline.layers(len(listed), ranks)
    every = tuple(tuple(listed[end - size:end]) for size, end in zip(sizes, accumulate(sizes), strict=True))
    found = []
    for number in range(ranks):
        stage = Stage(pipeline, At(number), ranks, FrozenMap(), every, microbatches)
        own = tuple(dict.fromkeys(unit for chunk in stage.own for unit in chunk))
        place = "first" if number == 0 else "last" if number == ranks - 1 else ANY
        known = _symbols(stage, own, chunks)
        found.append(Load(number, Kind(place, tuple(u for u, _ in units if u in own)),
                          FrozenMap({**known, **({ANY: number} if place == ANY else {})})))
    return tuple(found)


def told(every: Iterable[Load]) -> str:
    """What the stages run, in words.

    >>> told(loads((("layer", 126),), "1f1b", 16, 1, 1))
    '16 stages: 2 of 7 layer; 14 of 8 layer'
    """
    runs = Counter(" and ".join(f"{n} {unit}" for unit, n in load.instances.items()) for load in every)
    return f"{runs.total()} stages: " + "; ".join(f"{count} of {text}" for text, count in runs.items())


def _symbols(stage: Stage, own: tuple[str, ...], chunks: int) -> dict[str, int]:
    found = {}
    for unit in own:
        found[counted(unit)] = sum(chunk.count(unit) for chunk in stage.own)
        found[starting(unit)] = 1 + sum(chunk.count(unit) for chunk in stage.chunks[:stage.number])
        if chunks > 1:
            each = {chunk.count(unit) for chunk in stage.own}
            found[flying(unit)] = stage.most_in_flight(unit) if len(each) > 1 else each.pop() * _alike(stage)
    return found


def _alike(stage: Stage) -> int:
    """The most chunks in flight."""
    return int(parse(stage.outputs_in_flight).evaluate({
        "m": Fraction(stage.microbatches or 1), "v": Fraction(stage.pipeline.chunks or 1),
        "p": Fraction(stage.ranks or 1), "i": Fraction(stage.number)}))


def stage_loads(strategy: Strategy, units: Units, sizes: Mapping[str, Fraction | int]) -> tuple[Load, ...]:
    """The stages at the sizes of one layout; one without a number of layers where there is no pipeline."""
    axis = strategy.pipeline_axis
    if not axis:
        return (Load(0, ALONE, FrozenMap()),)
    chunks = int(sizes["v"] if "v" in sizes else strategy.option("schedule", "chunks"))
    return loads(units, order_of(strategy), int(sizes[axis]), chunks,
                 _enough(int(sizes["m"]), int(sizes[axis]), chunks))


def _enough(microbatches: int, ranks: int, chunks: int) -> int:
    return min(microbatches, _GROUPS * ranks) if chunks > 1 else 1


@lru_cache(maxsize=8192)
def heaviest(every: tuple[Load, ...], held: bool) -> tuple[Load, ...]:
    """The stages of which one has the largest figures, where these grow with the instances that a stage runs.

    Of figures that are `held` they grow with what is in flight, which is less the later the stage; of times with the
    places of the first instances. Of stages that have the same, the first.
    """
    kept: list[tuple[Load, tuple[int, ...]]] = []
    for load in every:
        # first_* names say where a stage begins, i how few microbatches it has in flight
        mine = tuple(-v if n == ANY else v for n, v in sorted(load.values.items())
                     if (n.startswith("n_") or n.startswith("first_") != held))
        if any(other.kind == load.kind and all(map(int.__ge__, has, mine)) for other, has in kept):
            continue
        kept = [(other, has) for other, has in kept
                if other.kind != load.kind or not all(map(int.__ge__, mine, has))] + [(load, mine)]
    return tuple(load for load, _ in kept)


@dataclass(frozen=True, slots=True)
class Groups:
    """What stages depend on: the (stages, chunks, microbatches in flight at most) that occur, and which a row has."""

    keys: tuple[tuple[int, int, int], ...]
    which: Whole

    def at(self, rows: Any) -> Groups:
        """Those of some rows."""
        return Groups(self.keys, self.which[rows])


def grouped(strategy: Strategy, columns: Columns) -> Groups:
    """The groups of the rows of columns; none of a strategy without a pipeline.

    >>> from placealg.strategy.expression import parse_strategy
    >>> columns = {"pp": np.array([4, 2, 4]), "m": np.array([8, 16, 32])}
    >>> found = grouped(parse_strategy("pp"), columns)
    >>> found.keys, found.which.tolist()
    (((2, 1, 1), (4, 1, 1)), [1, 0, 1])
    """
    axis = strategy.pipeline_axis
    if not axis:
        return Groups((), np.zeros(0, dtype=np.int64))
    ranks, m = columns[axis], columns["m"]
    chunks = columns["v"] if "v" in columns else np.full_like(ranks, strategy.option("schedule", "chunks"))
    many = np.where(chunks > 1, np.minimum(m, _GROUPS * ranks), 1)
    over, each = int(many.max(initial=0)) + 1, int(chunks.max(initial=0)) + 1
    distinct, which = np.unique((ranks * each + chunks) * over + many, return_inverse=True)
    return Groups(tuple((int(k) // over // each, int(k) // over % each, int(k) % over) for k in distinct),
                  np.asarray(which, dtype=np.int64).ravel())


def kinds(strategy: Strategy, units: Units, columns: Columns) -> tuple[Kind, ...]:
    """The kinds of stages that occur in some layout."""
    if not strategy.pipeline_axis:
        return (ALONE,)
    return tuple(sorted(_layouts_by_kind(strategy, units, columns)))


def most_first(strategy: Strategy, units: Units, columns: Columns) -> tuple[Kind, ...]:
    """The kinds of stages that occur, the one first that most layouts have; of equal ones the one with fewer units.

    >>> from placealg.strategy.expression import parse_strategy
    >>> columns = {"pp": np.array([2, 3, 3]), "m": np.array([8, 8, 8])}
    >>> [str(kind) for kind in most_first(parse_strategy("pp"), (("dense", 1), ("layer", 4)), columns)]
    ['last stage, layer', 'first stage, dense', 'i stage, layer', 'first stage, dense and layer']
    """
    if not strategy.pipeline_axis:
        return (ALONE,)
    counts = _layouts_by_kind(strategy, units, columns)
    return tuple(sorted(counts, key=lambda kind: (-counts[kind], len(kind.units), kind)))


def _layouts_by_kind(strategy: Strategy, units: Units, columns: Columns) -> Counter[Kind]:
    order, groups = order_of(strategy), grouped(strategy, columns)
    found: Counter[Kind] = Counter()
    for (ranks, chunks, _), count in zip(groups.keys, np.bincount(groups.which).tolist(), strict=True):
        found.update(dict.fromkeys(_kinds(units, order, ranks, chunks, _enough(ranks, ranks, chunks)), count))
    return found


@lru_cache(maxsize=8192)
def _kinds(units: Units, order: str, ranks: int, chunks: int, microbatches: int) -> frozenset[Kind]:
    return frozenset(load.kind for load in loads(units, order, ranks, chunks, microbatches))


@lru_cache(maxsize=65536)
def _of_kind(units: Units, order: str, key: tuple[int, int, int], kind: Kind, held: bool, every: bool
             ) -> tuple[Load, ...]:
    """The stages of a kind of which one has the largest figures; `every` takes all of them."""
    found = loads(units, order, *key)
    return tuple(load for load in (found if every else heaviest(found, held)) if load.kind == kind)


def spread(strategy: Strategy, units: Units, groups: Groups, kind: Kind, held: bool, every: bool
           ) -> Iterator[tuple[Whole | None, dict[str, npt.NDArray[np.float64]]]]:
    """The rows that have a stage of a kind, with the values of its symbols, until no row has one more.

    None stands for all rows. `every` takes all stages rather than the `heaviest`.
    """
    if not strategy.pipeline_axis:
        yield None, {}
        return
    order, which = order_of(strategy), groups.which
    listed = [_of_kind(units, order, key, kind, held, every) for key in groups.keys]
    for place in range(max(map(len, listed), default=0)):
        has = [len(one) > place for one in listed]
        names = next(one[place].values for one in listed if len(one) > place)
        tables = {n: np.array([one[place].values[n] if len(one) > place else 1 for one in listed], dtype=np.float64)
                  for n in names}
        rows = None if all(has) else np.flatnonzero(np.array(has)[which])
        where = which if rows is None else which[rows]
        if len(where):
            yield rows, {n: t[where] for n, t in tables.items()}


__all__ = ["ALONE", "Groups", "Kind", "Load", "Units", "grouped", "heaviest", "kinds", "loads", "most_first",
           "order_of", "spread", "stage_loads", "told", "unit_counts"]
