"""A certificate of a search evaluated again: every layout listed by trial, every figure in whole numbers and fractions.

Nothing here is shared with the evaluation that found the winner: layouts, stages and places are enumerated one by one,
sums are read from the certificate, and values are exact. What the strategies are follows from the space; what has to be
whole, from their rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import lcm, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from placealg.arith import parse
from placealg.cost.links import in_node
from placealg.errors import InputError
from placealg.models.model import Model
from placealg.step.compatibility import quotients
from placealg.step.pipeline import Pipeline, work
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy

Sizes = dict[str, int]
Kind = tuple[str, tuple[str, ...]]
Exact = npt.NDArray[Any]
"""A column of whole numbers or fractions of any size."""

Ratio = tuple[Exact, Exact]
"""Columns of a numerator and of a denominator that is positive."""

FIGURES = ("peak", "states", "bound", "estimate", "card")
TIMES = ("bound", "estimate", "card")


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of monomials: whole coefficients over one denominator, and powers that are positive after `below`."""

    terms: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]
    number: int
    below: tuple[tuple[str, int], ...]

    @staticmethod
    def read(said: Any) -> Sum:
        """The sum that a certificate says: pairs of a coefficient and the power of every size."""
        terms = [(Fraction(c), {str(n): int(p) for n, p in powers.items()}) for c, powers in said]
        number = lcm(*(c.denominator for c, _ in terms)) if terms else 1
        names = sorted({n for _, powers in terms for n in powers})
        below = {n: max(0, *(-powers.get(n, 0) for _, powers in terms)) for n in names}
        return Sum(tuple((int(c * number), tuple((n, e) for n in names if (e := powers.get(n, 0) + below[n])))
                         for c, powers in terms), number, tuple((n, p) for n, p in below.items() if p))

    def value(self, columns: Mapping[str, Exact], count: int) -> Ratio:
        """The exact value of every row; a name that is arithmetic has the value of that arithmetic."""
        ones = np.full(count, 1, dtype=object)
        top = sum((c * _power(powers, columns, ones) for c, powers in self.terms), 0 * ones)
        return top, self.number * _power(self.below, columns, ones)


def _power(powers: tuple[tuple[str, int], ...], columns: Mapping[str, Exact], ones: Exact) -> Exact:
    found = ones
    for name, power in powers:
        found = found * (columns[name] if power == 1 else columns[name] ** power)
    return found


class _Known(dict[str, Exact]):
    """Columns of sizes, and of the values of arithmetic over them, found when they are asked for."""

    def __missing__(self, name: str) -> Exact:
        if name.isidentifier():
            raise InputError(f"a sum depends on '{name}', which no layout has")
        expr = parse(name)
        names = expr.names()
        seen: dict[tuple[Any, ...], Any] = {}
        values = []
        for row in zip(*(self[n] for n in names), strict=True):
            if row not in seen:
                value = expr.evaluate({n: Fraction(v) for n, v in zip(names, row, strict=True)})
                seen[row] = int(value) if value.denominator == 1 else value
            values.append(seen[row])
        self[name] = np.array(values, dtype=object)
        return self[name]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a certificate says was asked, as numbers."""

    devices: int
    per_node: int
    batches: tuple[int, ...]
    memory: Fraction
    reserve: Fraction
    factor: Fraction
    objective: str
    card_bw: Fraction
    fixed: Mapping[str, int]
    uneven: bool
    sizes: Mapping[str, Fraction]

    @staticmethod
    def read(said: Mapping[str, Any]) -> Asked:
        """The numbers of a question as data."""
        batch = said["batch"]
        return Asked(said["devices"], said["per_node"], tuple(batch) if isinstance(batch, list) else (batch,),
                     Fraction(said["memory"]), Fraction(said["reserve"]), Fraction(said["activation_factor"]),
                     said["objective"], Fraction(said["rates"]["card_bw"]), said["space"]["fixed"],
                     said["space"]["uneven"], {n: Fraction(v) for n, v in said["sizes"].items()})


@dataclass(slots=True)
class Replayed:
    """What a strategy comes to: the numbers of its layouts, and the best of them, with the key that orders all."""

    layouts: int = 0
    fit: int = 0
    places: int = 0
    least: Fraction | None = None
    bound: Fraction | None = None
    best: tuple[Any, ...] | None = None
    sizes: Sizes = field(default_factory=dict)
    values: dict[str, Fraction] = field(default_factory=dict)


def replayed(expression: str, stages: Any, model: Model, asked: Asked, part: bool = False) -> Replayed:
    """A strategy evaluated again, from the sums of its kinds of stages; by a `part` of them, each figure at least."""
    strategy = parse_strategy(expression)
    sums = {(said["place"], tuple(said["units"])): {name: [Sum.read(one) for one in said[name]] for name in FIGURES}
            for said in stages}
    if len(sums) < len(stages):
        raise InputError(f"{expression} has sums of one stage twice")
    units = tuple(unit_list(model, asked))
    every = list(listed(strategy, model, asked, len(units)))
    found = Replayed(len(every))
    if not every:
        return found
    stood = [[one for one in staged(strategy, units, sizes) if not part or one[0] in sums] for sizes in every]
    if not any(stood):
        found.least = Fraction(0)
        return found
    for kind in {kind for one in stood for kind, _ in one}:
        if kind not in sums:
            raise InputError(f"{expression} has a stage ({kind[0]}, {' and '.join(kind[1])}) without sums")
    held = _largest(sums, every, stood, ("peak", "states"), lambda both: _need(both, asked))
    fitting = [k for k, (top, below) in enumerate(zip(*held["need"], strict=True))
               if top * asked.memory.denominator <= asked.memory.numerator * below]
    rows = [(k, place) for k in fitting for place in placed(strategy, every[k], asked)]
    found.fit, found.places = len({k for k, _ in rows}), len(rows)
    if not rows:
        return found
    timed = _largest(sums, [place for _, place in rows], [stood[k] for k, _ in rows], TIMES, lambda each: each)
    values = {name: [Fraction(t) / b for t, b in zip(*pair, strict=True)] for name, pair in timed.items()}
    values["card"] = [value * asked.card_bw for value in values["card"]]
    values["need"] = [Fraction(held["need"][0][k]) / held["need"][1][k] for k, _ in rows]
    each = {name: column if name == "need" else [value / place.get("batch", 1) for value, (_, place) in
                                                 zip(column, rows, strict=True)] for name, column in values.items()}
    mine = each["need" if asked.objective == "memory" else asked.objective]
    found.least, found.bound = min(mine), min(each["bound"])
    found.best, row = min(((mine[r], *(each[n][r] for n in ("estimate", "bound", "need", "card")), expression,
                            tuple(sorted(rows[r][1].items()))), r)
                          for r in range(len(rows)) if mine[r] == found.least)
    found.sizes, found.values = rows[row][1], {name: each[row] for name, each in values.items()}
    return found


def worked(expression: str, seconds: Fraction, efficiency: Fraction, model: Model, asked: Asked
           ) -> tuple[int, Fraction | None]:
    """The number of a strategy's layouts, and the least of the objective by the work of a sequence on one device.

    Of many devices the slowest works its part, and a stage of a pipeline waits besides, unless its order splits the
    backward. None where there is no layout, or no time is the objective.
    """
    strategy = parse_strategy(expression)
    axis, order = strategy.pipeline_axis, strategy.option("schedule", "pipeline")
    every = list(listed(strategy, model, asked, len(unit_list(model, asked))))
    part = seconds / asked.devices
    if not every or asked.objective not in ("estimate", "bound"):
        return len(every), None
    if asked.objective == "bound":
        return len(every), part * efficiency * min(_sequences(sizes, asked) for sizes in every)
    waits = axis and order in ("gpipe", "1f1b", "interleaved")
    return len(every), part * min(
        _sequences(sizes, asked) * (1 + Fraction(sizes[axis] - 1, sizes["m"] * sizes.get("v", 1)) if waits else 1)
        for sizes in every)


def _sequences(sizes: Sizes, asked: Asked) -> int:
    """By how many sequences work is compared: all of a step, or one where layouts have several numbers of them."""
    return 1 if "batch" in sizes else asked.batches[0]


def _need(both: dict[str, Ratio], asked: Asked) -> dict[str, Ratio]:
    (peak, over), (states, under) = both["peak"], both["states"]
    if asked.factor == 1:
        return {"need": (peak * asked.reserve.denominator + asked.reserve.numerator * over,
                         over * asked.reserve.denominator)}
    value = [Fraction(s) / d + asked.factor * (Fraction(p) / o - Fraction(s) / d) + asked.reserve
             for p, o, s, d in zip(peak, over, states, under, strict=True)]
    return {"need": (np.array([v.numerator for v in value], dtype=object),
                     np.array([v.denominator for v in value], dtype=object))}


def _largest(sums: Mapping[Kind, Mapping[str, list[Sum]]], rows: list[Sizes], stood: list[list[tuple[Kind, Sizes]]],
             names: tuple[str, ...], read: Callable[[dict[str, Ratio]], dict[str, Ratio]]) -> dict[str, Ratio]:
    """What is read off figures, of the stage of each row where it is largest."""
    found: dict[str, Ratio] = {}
    for place in range(max(map(len, stood))):
        for kind in {one[place][0] for one in stood if len(one) > place}:
            where = [k for k, one in enumerate(stood) if len(one) > place and one[place][0] == kind]
            known = [{**rows[k], **stood[k][place][1]} for k in where]
            columns = _Known({n: np.array([one[n] for one in known], dtype=object) for n in known[0]})
            for name, value in read({n: _most(sums[kind][n], columns, len(where)) for n in names}).items():
                into = found.setdefault(name, _zeros(len(rows)))
                for all_, own in zip(into, _larger((into[0][where], into[1][where]), value), strict=True):
                    all_[where] = own
    return found


def _most(pieces: list[Sum], columns: Mapping[str, Exact], count: int) -> Ratio:
    found = _zeros(count)
    for piece in pieces:
        found = _larger(found, piece.value(columns, count))
    return found


def _zeros(count: int) -> Ratio:
    return np.full(count, 0, dtype=object), np.full(count, 1, dtype=object)


def _larger(one: Ratio, other: Ratio) -> Ratio:
    more = (other[0] * one[1] > one[0] * other[1]).astype(bool)
    return np.where(more, other[0], one[0]), np.where(more, other[1], one[1])


def unit_list(model: Model, asked: Asked) -> list[str]:
    """The unit of every layer, in the order of the model."""
    known = {**{n: Fraction(v) for n, v in model.sizes.items()}, **asked.sizes}
    return [loop.unit for loop in model.graph.loops for _ in range(int(loop.count.evaluate(known)))]


def listed(strategy: Strategy, model: Model, asked: Asked, layers: int) -> Iterator[Sizes]:
    """Every layout, by trial: sizes of at least 2 of the axes, whole quotients, whole microbatches, chunks.

    On one device the axes that split the batch have a size of 1, and anywhere an axis beside one that `joins` it does.
    """
    names, fixed = strategy.mesh.names, {**asked.fixed}
    bound = {**{a: int(n) for a, n in strategy.mesh.sizes().items()}, **{n: v for n, v in fixed.items() if n in names}}
    known = {**{n: Fraction(v) for n, v in model.sizes.items()}, **asked.sizes}
    rules = [q for q in quotients(strategy, model) if set(q.names()) <= {*known, *names}]
    pipeline = strategy.pipeline_axis
    chunked = bool(pipeline) and strategy.option("schedule", "chunks") == "v"
    order = strategy.option("schedule", "pipeline")
    alone = asked.devices == 1 and not {*names} - {*strategy.batch_axes}
    few = {*names} if alone else {*_beside_joined(strategy)}
    for way in _ways(asked.devices, len(names)):
        axes = dict(zip(names, way, strict=True))
        if any(axes[a] != n for a, n in bound.items()) or any(n == 1 and a not in few for a, n in axes.items()):
            continue
        each = 1 if chunked or not pipeline else int(strategy.option("schedule", "chunks"))
        if pipeline and (axes[pipeline] * each > layers if asked.uneven else layers % (axes[pipeline] * each)):
            continue
        if any(rule.evaluate({**known, **axes}).denominator != 1 for rule in rules):
            continue
        ranks = prod(axes[a] for a in strategy.batch_axes)
        for batch in asked.batches:
            for b in (n for n in _divisors(batch // ranks) if batch % ranks == 0):
                m = batch // (ranks * b)
                if strategy.microbatches not in (None, m) or (pipeline and order in ("interleaved", "interleaved_zb")
                                                             and m % axes[pipeline]):
                    continue
                p = axes[pipeline] if pipeline else 0
                if m < {"zb_h1": p, "zb_h2": 2 * p - 1, "zb_v": 2 * p - 1, "dualpipe_v": 2 * p}.get(str(order), 1):
                    continue
                for v in _chunks(layers, axes[pipeline]) if chunked else (None,):
                    sizes = {**axes, "b": b, "m": m, **({} if v is None else {"v": v}),
                             **({"batch": batch} if len(asked.batches) > 1 else {})}
                    if all(sizes.get(n, size) == size for n, size in fixed.items()):
                        yield sizes


def _beside_joined(strategy: Strategy) -> Iterator[str]:
    """Axes of data over which a state is sharded with an axis that joins them: one rank is then no other strategy."""
    for axis, state in product(strategy.mesh.names, ("parameters", "optimizer", "gradients")):
        split = [a for a in strategy.mesh.names if str(strategy.state(state).mode(a)) in ("S", "S*")]
        if axis in split and axis not in strategy.joins and any(a in strategy.joins for a in split):
            yield axis


@lru_cache(maxsize=4096)
def _ways(number: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """Every way to write a number as a product of so many factors, in order."""
    if parts == 1:
        return ((number,),)
    return tuple((n, *rest) for n in _divisors(number) for rest in _ways(number // n, parts - 1))


@lru_cache(maxsize=65536)
def _divisors(number: int) -> tuple[int, ...]:
    below = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*below, *(number // n for n in below)}))


@lru_cache(maxsize=4096)
def _chunks(layers: int, ranks: int) -> tuple[int, ...]:
    """Chunks per stage: at least 2, at least a layer in each, dividing the layers of the smallest or largest stage."""
    return tuple(v for v in range(2, layers // ranks + 1)
                 if layers // ranks % v == 0 or -(-layers // ranks) % v == 0)


def placed(strategy: Strategy, sizes: Sizes, asked: Asked) -> Iterator[Sizes]:
    """The layout with every number of ranks of each axis in a node that fill it."""
    full = min(asked.devices, asked.per_node)
    names = strategy.mesh.names
    for way in product(*(_divisors(sizes[a]) for a in names)):
        if prod(way) == full:
            yield {**sizes, **{in_node(a): n for a, n in zip(names, way, strict=True)}}


def staged(strategy: Strategy, units: tuple[str, ...], sizes: Sizes
           ) -> Iterator[tuple[tuple[str, tuple[str, ...]], Sizes]]:
    """Every stage: its kind, and the values of its symbols, counted along its work."""
    if not strategy.pipeline_axis:
        yield ("", ()), {}
        return
    chunks = sizes["v"] if "v" in sizes else int(strategy.option("schedule", "chunks"))
    yield from _stages(str(strategy.option("schedule", "pipeline")), units, sizes[strategy.pipeline_axis], chunks,
                       sizes["m"] if chunks > 1 else 1)


@lru_cache(maxsize=4096)
def _stages(order: str, units: tuple[str, ...], ranks: int, chunks: int, microbatches: int
            ) -> tuple[tuple[tuple[str, tuple[str, ...]], Sizes], ...]:
    parts, layers = ranks * chunks, len(units)
    ends = [layers * k // parts for k in range(parts + 1)]
    kinds = tuple(dict.fromkeys(units))
    found = []
    for i in range(ranks):
        chunks_of = (i, parts - 1 - i) if order in ("zb_v", "dualpipe_v") else range(i, parts, ranks)
        own = [units[ends[k]:ends[k + 1]] for k in chunks_of]
        has = tuple(u for u in kinds if any(u in chunk for chunk in own))
        symbols: Sizes = {}
        for unit in has:
            held = [chunk.count(unit) for chunk in own]
            symbols[f"n_{unit}"] = sum(held)
            symbols[f"first_{unit}"] = 1 + units[:ends[i]].count(unit)
            if chunks > 1:
                symbols[f"in_flight_{unit}"] = _in_flight(order, i, ranks, chunks, microbatches, held)
        place = "first" if i == 0 else "last" if i == ranks - 1 else "i"
        found.append(((place, has), {**symbols, **({"i": i} if place == "i" else {})}))
    return tuple(found)


def _in_flight(order: str, stage: int, ranks: int, chunks: int, microbatches: int, held: list[int]) -> int:
    now = most = 0
    for item in work(Pipeline("pp", order, chunks), stage, ranks, min(microbatches, 8 * ranks)):
        now += {"forward": held[item.chunk], "backward": -held[item.chunk]}.get(item.phase, 0)
        most = max(most, now)
    return most

