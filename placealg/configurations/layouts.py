"""The layouts of a strategy on a number of devices, as columns: sizes of its axes, b, m and v, and places in nodes.

Every axis has at least two devices, but where there is one device, and all axes split the batch, and but one whose
states are sharded over another axis too (`sharing.leaders`): `zero1*cp` on dp = 1 is not `cp`. The product is the
number of devices; every quotient of the strategy's own rules is whole, and every rank of the batch has whole
microbatches: of the orders whose backward has two parts so many as keep their wait short. Columns are arrays of whole
numbers, a row per layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import count
from math import prod

import numpy as np
import numpy.typing as npt

from placealg.arith import Monomial, parse
from placealg.configurations.stages import order_of, unit_counts
from placealg.cost.links import in_node
from placealg.errors import InputError
from placealg.models.model import Model
from placealg.step.compatibility import quotients
from placealg.step.pipeline import FILLED, TURNS
from placealg.strategy.sharing import leaders
from placealg.strategy.spec import Strategy

PASSES = ("batch", "b", "m")
"""What says how the sequences of a step pass through."""

Whole = npt.NDArray[np.int64]
Columns = dict[str, Whole]


@dataclass(frozen=True, slots=True)
class Devices:
    """So many devices, so many of them in a node, and the sequences of a step; `more` are other numbers of them.

    Where there are several, layouts have a column `batch`, and times are compared by the sequence.
    """

    count: int
    per_node: int
    batch: int
    more: tuple[int, ...] = ()

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of sequences of a step, each once."""
        return tuple(dict.fromkeys((self.batch, *self.more)))

    def __post_init__(self) -> None:
        if min(self.count, self.per_node, *self.batches) < 1:
            raise InputError("devices, devices per node and sequences are whole numbers of at least 1")
        if self.count > self.per_node and self.count % self.per_node:
            raise InputError(f"{self.count} devices do not fill nodes of {self.per_node}")

    @property
    def together(self) -> int:
        """The devices of a node that take part."""
        return min(self.count, self.per_node)


def layouts(strategy: Strategy, model: Model, devices: Devices, sizes: Mapping[str, Fraction],
            fixed: Mapping[str, int], whole: tuple[Monomial, ...] | None = None, uneven: bool = True) -> Columns:
    """Every layout; `sizes` are numbers beside the model's, such as s, `fixed` those of some axes, b, m or v.

    `whole` are the quotients of the strategy's rules, if they are known; `uneven` stages run different numbers of
    layers where their number does not divide the layers.

    >>> from placealg.models.config import resolve_model
    >>> from placealg.strategy.expression import parse_strategy
    >>> found = layouts(parse_strategy("zero1*tp"), resolve_model("gpt2"), Devices(8, 8, 8), {"s": Fraction(1024)}, {})
    >>> {name: column.tolist() for name, column in found.items()}
    {'dp': [2, 2, 2, 4, 4], 'tp': [4, 4, 4, 2, 2], 'b': [1, 2, 4, 1, 2], 'm': [4, 2, 1, 2, 1]}
    """
    *_, (found, _) = _narrowed(strategy, model, devices, sizes, fixed, whole, uneven)
    return found


def undivided(strategy: Strategy, model: Model, devices: Devices, sizes: Mapping[str, Fraction],
              fixed: Mapping[str, int], whole: tuple[Monomial, ...] | None = None, uneven: bool = True) -> str:
    """What does not divide, and what would, where a strategy has no layout; "" where it has one.

    >>> from placealg.models.config import resolve_model
    >>> from placealg.strategy.expression import parse_strategy
    >>> undivided(parse_strategy("zero1"), resolve_model("gpt2"), Devices(8, 8, 7), {"s": Fraction(1024)}, {})
    '7 sequences are no multiple of dp = 8: 8 would be'
    """
    for found, why in _narrowed(strategy, model, devices, sizes, fixed, whole, uneven):
        if not len(next(iter(found.values()))):
            return why()
    return ""


def _narrowed(strategy: Strategy, model: Model, devices: Devices, sizes: Mapping[str, Fraction],
              fixed: Mapping[str, int], whole: tuple[Monomial, ...] | None, uneven: bool
              ) -> Iterator[tuple[Columns, Callable[[], str]]]:
    """The layouts after each rule in turn, and what says why it left none, if the one before left some."""
    names = strategy.mesh.names
    alone = devices.count == 1 and set(names) == set(strategy.batch_axes)
    led = names if alone else leaders(strategy.states, strategy.joins)
    ways = factorizations(devices.count, len(names), 1 if led else 2)
    found = _where(dict(zip(names, ways, strict=True)), [ways[k] > 1 for k, a in enumerate(names) if a not in led])
    yield found, lambda: (
        f"one device has nothing to split along {', '.join(names)}" if devices.count == 1 else
        f"{devices.count} devices are no product of {' and '.join(names)}, each at least 2: "
        f"{_product_of(devices.count, len(names))} would be")
    bound = {**strategy.mesh.sizes(), **{a: n for a, n in fixed.items() if a in names}}
    found = _where(found, [found[a] == int(n) for a, n in bound.items()])
    yield found, lambda: f"{_told(bound)} is no way to place {devices.count} devices"
    known = {**{n: Fraction(v) for n, v in model.sizes.items()}, **sizes}
    pipeline = strategy.pipeline_axis
    if pipeline:
        layers = sum(count for _, count in unit_counts(model, sizes))
        chunks = strategy.option("schedule", "chunks")
        each = chunks if isinstance(chunks, int) else 1
        before, parts = found[pipeline], found[pipeline] * each
        found = _where(found, [parts <= layers if uneven else layers % parts == 0])
        yield found, lambda: (
            f"{layers} layers do not fill {_values(pipeline, before)} stages: at most {layers // each} would do"
            if uneven else f"{layers} layers are no multiple of {_values(pipeline, before)} stages: "
                           f"{_or(divisors(layers)[1:])} would divide")
    for quotient in quotients(strategy, model) if whole is None else whole:
        if set(quotient.names()) <= {*known, *names}:
            before_this = found
            found = _where(found, [_whole(quotient, found, known)])
            yield found, partial(_indivisible, quotient, before_this, known)
    ranks = _product([found[a] for a in strategy.batch_axes], len(found[names[0]]))
    found = _crossed({**found, "ranks": ranks}, "batch", np.zeros_like(ranks), lambda _: devices.batches)
    found = _where(found, [found["batch"] % found["ranks"] == 0])
    yield found, lambda: (
        f"{_or(devices.batches)} sequences are no multiple of {_values('*'.join(strategy.batch_axes), ranks)}: "
        f"{min(-(-batch // n) * n for batch in devices.batches for n in ranks.tolist())} would be")
    found = _crossed(found, "b", found["batch"] // found["ranks"], divisors)
    found["m"] = found["batch"] // (found.pop("ranks") * found["b"])
    if len(devices.batches) == 1:
        del found["batch"]
    if strategy.microbatches is not None:
        found = _where(found, [found["m"] == strategy.microbatches])
    yield found, lambda: f"no b makes the {strategy.microbatches} microbatches that the strategy says"
    if pipeline and strategy.option("schedule", "chunks") == "v":
        found = _crossed(found, "v", found[pipeline], partial(chunkings, layers))
        yield found, lambda: f"the layers of a stage, of {layers} in all, do not divide into chunks: fewer stages would"
    if pipeline and order_of(strategy) in TURNS:
        filled = found
        found = _where(found, [found["m"] % found[pipeline] == 0])
        yield found, lambda: (f"no number of microbatches is a multiple of {_values(pipeline, filled[pipeline])}, as "
                              f"the {order_of(strategy)} order takes them: more sequences are needed")
    if pipeline and order_of(strategy) in FILLED:
        least = parse(FILLED[order_of(strategy)]).fold(int, lambda _: found[pipeline])
        found = _where(found, [found["m"] >= least])
        yield found, lambda: (f"the {order_of(strategy)} order takes at least {least.min()} microbatches: more "
                              "sequences are needed")
    said = {n: v for n, v in fixed.items() if n in (*PASSES, "v") and n in found}
    yield _where(found, [found[n] == v for n, v in said.items()]), lambda: f"no layout has {_told(said)}"


def _indivisible(quotient: Monomial, columns: Columns, known: Mapping[str, Fraction]) -> str:
    """Why a quotient is whole in no row, and what would divide."""
    rest = Monomial(quotient.coefficient, tuple((n, p) for n, p in quotient.powers if n not in columns))
    value, over = rest.evaluate(known), [n for n, _ in quotient.powers if n in columns]
    if not over or value.denominator != 1:
        return f"{quotient} is no whole number"
    by = _product([columns[n] for n in over], len(columns[over[0]]))
    would = divisors(value.numerator)[1:]
    return (f"{_values('*'.join(over), by)} does not divide {rest} = {value}"
            + (f": {_or(would)} would" if would else ""))


def _product_of(number: int, parts: int) -> int:
    """The least number above another that is a product of so many factors of at least 2."""
    return next(n for n in count(number + 1) if len(factorizations(n, parts, 2)[0]))


def _values(name: str, values: Whole) -> str:
    return f"{name} = {_or(sorted(set(values.tolist())))}"


def _or(values: Sequence[int]) -> str:
    """Numbers in words, the first eight of many."""
    return " or ".join(map(str, values[:8])) + (" or more" if len(values) > 8 else "")


def _told(values: Mapping[str, object]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in values.items())


def placed(columns: Columns, axes: tuple[str, ...], devices: Devices) -> tuple[Columns, Whole]:
    """The layouts with their places: ranks of each axis in one node, as many as fill it; and the row that each is of.

    >>> found, rows = placed({"dp": np.array([2, 4]), "tp": np.array([4, 2])}, ("dp", "tp"), Devices(8, 4, 8))
    >>> found["tp_in_node"].tolist(), rows.tolist()
    ([4, 2, 2, 1], [0, 0, 1, 1])
    """
    ways = np.stack(factorizations(devices.together, len(axes), 1), axis=1)
    count = len(columns[axes[0]])
    sizes = np.stack([columns[a] for a in axes], axis=1)
    fits = ((sizes[:, None, :] % ways[None, :, :]) == 0).all(axis=2)
    rows, which = np.nonzero(fits[:count])
    found = {name: column[rows] for name, column in columns.items()}
    return {**found, **{in_node(a): ways[which, k] for k, a in enumerate(axes)}}, rows


@lru_cache(maxsize=256)
def factorizations(number: int, parts: int, least: int) -> tuple[Whole, ...]:
    """Every way to write a number as a product of so many factors of at least `least`, a column per factor.

    >>> [column.tolist() for column in factorizations(8, 2, 2)]
    [[2, 4], [4, 2]]
    """
    def ways(left: int, more: int) -> Iterable[tuple[int, ...]]:
        if more == 1:
            if left >= least:
                yield (left,)
            return
        for first in divisors(left):
            if first >= least:
                yield from ((first, *rest) for rest in ways(left // first, more - 1))

    listed = list(ways(number, parts)) if parts else []
    table = np.array(listed, dtype=np.int64).reshape(len(listed), max(parts, 1))
    return tuple(table.T[:parts])


@lru_cache(maxsize=65536)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(dict.fromkeys((*low, *(number // n for n in reversed(low)))))


@lru_cache(maxsize=4096)
def chunkings(layers: int, ranks: int) -> tuple[int, ...]:
    """The numbers of chunks per stage: divisors, from 2 on, of the layers of its smallest or its largest stage.

    >>> chunkings(80, 4), chunkings(126, 16)
    ((2, 4, 5, 10, 20), (2, 4, 7))
    """
    found = {*divisors(layers // ranks), *divisors(-(-layers // ranks))}
    return tuple(v for v in sorted(found) if v > 1 and v * ranks <= layers)


def _whole(quotient: Monomial, columns: Columns, known: Mapping[str, Fraction]) -> npt.NDArray[np.bool_]:
    """Where a quotient is whole."""
    over = [(columns[n], -p) for n, p in quotient.powers if n in columns]
    assert all(power > 0 for _, power in over), "sizes of axes divide"
    rest = Monomial(quotient.coefficient, tuple((n, p) for n, p in quotient.powers if n not in columns)).evaluate(known)
    count = len(next(iter(columns.values())))
    by = _product([column for column, power in over for _ in range(power)], count) * rest.denominator
    return np.asarray(rest.numerator % by == 0)


def _product(columns: list[Whole], count: int) -> Whole:
    return np.asarray(prod(columns, start=np.ones(count, dtype=np.int64)), dtype=np.int64)


def _where(columns: Columns, tests: list[npt.NDArray[np.bool_]]) -> Columns:
    for test in tests:
        assert test.shape == next(iter(columns.values())).shape
    if not tests:
        return columns
    keep = np.logical_and.reduce(tests)
    return {name: column[keep] for name, column in columns.items()}


def _crossed(columns: Columns, name: str, keys: Whole, values: Callable[[int], Sequence[int]]) -> Columns:
    """The rows, each once for every value of a further column, which depend on a key of the row."""
    distinct, which = np.unique(keys, return_inverse=True)
    each = [values(int(key)) for key in distinct]
    counts = np.array([len(one) for one in each], dtype=np.int64)[which]
    starts = np.cumsum([0, *map(len, each)], dtype=np.int64)[which]
    rows = np.repeat(np.arange(len(keys)), counts)
    own = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    more = np.array([v for one in each for v in one], dtype=np.int64)[np.repeat(starts, counts) + own]
    return {**{n: c[rows] for n, c in columns.items()}, name: more}
