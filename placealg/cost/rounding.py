"""How far rounding alone can move a gradient: read off the events that add, for every parameter group, in closed form.

A gradient is a sum of contributions, one of each rank and microbatch, as they leave the backward of a rank in the type
of computation. Each event that adds or casts rounds. To first order the error is at most the sum of |contributions|
times `worst`, the unit roundoffs on the way of a contribution that is rounded most. Its expected square, where
roundings are independent and unbiased (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019),
is the sum over all roundings of SPREAD u^2 times the expected square of what is rounded: a sum of k contributions with
mean mu and deviation sigma has (k mu)^2 + k sigma^2. What products add up inside, and activations, are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import log, prod, sqrt

from placealg.arith import Monomial
from placealg.cost.formula import Formula
from placealg.errors import InputError
from placealg.number_formats import FORMATS, Element, NumberFormat
from placealg.polynomial import Polynomial
from placealg.step.program import LOOPED, STEP_PHASES, Event, Group, Step
from placealg.step.sums import OF_GRADIENTS, Sum, sums
from placealg.strategy.vocabulary import ALGORITHMS, TREE

SPREAD = 1 / (8 * log(2))
"""The expected square of a relative error of rounding, over u^2: of a uniform error and a log-uniform significand."""

ONE = Polynomial.number(1)
HALVES = ("bf16", "fp16")
"""The types that 2 bytes may be."""

LEVELS = "levels_"
"""Begins the name of the depth of a tree over axes: the logarithm of their product to the base 2, rounded up."""

CAST, SUM, MEAN = "cast", "sum", "mean"
"""What rounds: a change of type, additions one after the other, a division by the number of ranks."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """One event's roundings of one kind, in the type `format`.

    `times`: how many are on the way of a contribution, at most. `agree`, `cancel`: the sums over all of them of k^2 and
    of k, where k is the number of contributions in what is rounded. `over` are the axes, or m.
    """

    event: str
    what: str
    over: tuple[str, ...]
    format: NumberFormat
    times: Polynomial
    agree: Polynomial
    cancel: Polynomial

    def counted(self, sizes: Mapping[str, Fraction | int]) -> Mapping[str, Fraction | int]:
        """The sizes with the depth of its tree."""
        return {**sizes, levels(self.over): (prod(int(sizes[a]) for a in self.over) - 1).bit_length()}

    def happens(self, sizes: Mapping[str, Fraction | int]) -> bool:
        """Whether it rounds at these sizes: a division by a power of 2 does not."""
        n = prod(int(sizes[a]) for a in self.over)
        return self.what != MEAN or bool(n & (n - 1))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The rounding of the gradients of `groups`, whose events round alike.

    `contributions`: how many are summed. `sums` are the events that add.
    """

    groups: tuple[str, ...]
    contributions: Polynomial
    roundings: tuple[Rounding, ...]
    sums: tuple[Sum, ...]

    @property
    def worst(self) -> Formula:
        """The bound, over the sum of |contributions|, to first order in the unit roundoffs.

        >>> from placealg.models.abstract import abstract
        >>> from placealg.step.derive import derive
        >>> from placealg.strategy.expression import parse_strategy
        >>> from placealg.strategy.spec import overlay
        >>> types = {"types": {"w": "bf16", "g": "fp32", "wire": "fp32"}}
        >>> found, = tolerance(derive(overlay(parse_strategy("zero2"), types), abstract())).rows
        >>> found.worst, found.bound(dp=8, m=4) < 6.6e-7
        (u_fp32·(m + dp − 1), True)
        """
        return _formula(r.times.times(Monomial.of(r.format.symbol)) for r in self.roundings).tidied()

    @property
    def agree(self) -> Formula:
        """The square of the expected relative error over SPREAD, where contributions are equal."""
        return _squared(self.roundings, lambda r: r.agree, self.contributions * self.contributions)

    @property
    def cancel(self) -> Formula:
        """The same where their mean is 0."""
        return _squared(self.roundings, lambda r: r.cancel, self.contributions)

    def bound(self, **sizes: Fraction | int) -> float:
        """The bound at sizes, over the sum of |contributions|, all orders counted; infinite where u adds up to 1.

        That is S/(1 - S) of the first order S: Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.3.
        """
        first = sum((r.times.evaluate(r.counted(sizes)) * r.format.roundoff
                     for r in self.roundings if r.happens(sizes)), Fraction(0))
        return float(first / (1 - first)) if first < 1 else float("inf")

    def expected(self, contribution: float = 0.0, whole: float = 0.0, **sizes: Fraction | int) -> float:
        """The relative error that roundings are expected to make, of the norm of the whole gradient.

        `contribution` and `whole` are norms of one contribution, and of their sum: they say the mean and the deviation
        of an element. Without them contributions are taken to cancel, which is the larger error.
        """
        count = self.contributions.evaluate(sizes)
        if count == 1 or not (contribution and whole):
            mean, spread, square = 0.0, 1.0, float(count)
        else:
            square = whole**2
            mean = max(0.0, (square - float(count) * contribution**2) / float(count * (count - 1)))
            spread = max(0.0, contribution**2 - mean)
        total = sum(float(r.format.roundoff)**2 * (float(r.agree.evaluate(r.counted(sizes))) * mean
                                                   + float(r.cancel.evaluate(r.counted(sizes))) * spread)
                    for r in self.roundings if r.happens(sizes))
        return sqrt(SPREAD * total / square)

    def explains(self, difference: float, contribution: float = 0.0, whole: float = 0.0, runs: int = 2,
                 **sizes: Fraction | int) -> bool:
        """Whether rounding is expected to make a relative difference of two runs that large, of the gradient's norm.

        That is within LIKELY times the expected error of `runs` that round apart (1: beside one that does not round).
        An estimate: it says nothing of heavy tails, of equal values, and of what products and activations round.
        """
        return difference <= LIKELY * sqrt(runs) * self.expected(contribution, whole, **sizes)


LIKELY = 3
"""Times the expected error within which a difference is explained: three deviations of an error that is one."""


def levels(axes: tuple[str, ...]) -> str:
    """The name of the depth of a tree over axes.

    >>> levels(("dp", "pp"))
    'levels_dp_pp'
    """
    return LEVELS + "_".join(axes)


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The rounding of all gradients of a program, a row for the groups that round alike."""

    rows: tuple[Tolerance, ...]

    def of(self, group: str) -> Tolerance:
        """The row of a group; an InputError where no trained group is called so."""
        found = next((row for row in self.rows if group in row.groups), None)
        if found is None:
            raise InputError(f"no trained group '{group}'", name=group, valid=[g for r in self.rows for g in r.groups])
        return found

    @property
    def contributions(self) -> tuple[str, ...]:
        """The sizes on which the rows depend."""
        return tuple(dict.fromkeys(n for row in self.rows for n in row.contributions.names()))

    def bound(self, **sizes: Fraction | int) -> float:
        """The largest bound of a row."""
        return max((row.bound(**sizes) for row in self.rows), default=0.0)

    def expected(self, **sizes: Fraction | int) -> float:
        """The largest expected error of a row, where contributions cancel."""
        return max((row.expected(0.0, 0.0, **sizes) for row in self.rows), default=0.0)

    def explains(self, difference: float, group: str = "", contribution: float = 0.0, whole: float = 0.0,
                 runs: int = 2, **sizes: Fraction | int) -> bool:
        """Whether rounding explains a relative difference of two runs' gradients: of one group's, or of all.

        `contribution`, `whole` and `runs` as in `Tolerance.explains`.
        """
        rows = [self.of(group)] if group else self.rows
        return any(row.explains(difference, contribution, whole, runs, **sizes) for row in rows)


def tolerance(step: Step, half: str = "", order: str = "", adds: str = "") -> Tolerances:
    """The rounding of the gradients of every trained group of a program; groups that round alike are one row.

    `half` names what 2 bytes are, bf16 or fp16, where a strategy says bytes: then 4 are fp32. `order` is how a
    collective adds, ring or tree; with `adds` a rank adds all that it receives in that type, and casts the sum to the
    wire's: so a network that adds does it, and a reduction by an all_to_all. Where they are "", the strategy says them.
    Raises InputError where bytes name no type.
    """
    for name, said, valid in (("half", half, HALVES), ("order", order, ALGORITHMS), ("adds", adds, tuple(FORMATS))):
        if said and said not in valid:
            raise InputError(f"{name} is '{said}'", name=said, valid=valid)
    every = [s for s in sums(step) if s.of == OF_GRADIENTS]
    found: dict[tuple[object, ...], Tolerance] = {}
    for group in step.reference.trained:
        own = [s for s in every if s.group == group.name]
        way = _Way(step, group, {s.event: s for s in own}, half, order or step.reference.algorithm,
                   adds or step.reference.adds)
        one = Tolerance((group.name,), way.count, tuple(way.all()), tuple(own))
        key = one.contributions, *((r.what, r.over, r.format, r.times, r.agree, r.cancel) for r in one.roundings)
        known = found.get(key)
        found[key] = one if known is None else Tolerance((*known.groups, group.name), known.contributions,
                                                         known.roundings, (*known.sums, *one.sums))
    return Tolerances(tuple(found.values()))


@dataclass(frozen=True, slots=True)
class _Made:
    """Roundings of `number` values, each of `held` contributions: the sums over them of k^2/held^2 and of k/held."""

    event: str
    what: str
    over: tuple[str, ...]
    format: NumberFormat
    times: Polynomial
    held: Polynomial
    squares: Polynomial
    plain: Polynomial
    number: Polynomial


class _Way:
    """The way of one group's contributions: the type in which their sum stands, and how many it holds."""

    def __init__(self, step: Step, group: Group, own: Mapping[str, Sum], half: str, order: str, adds: str):
        self.step, self.group, self.own, self.half, self.order, self.adds = step, group, own, half, order, adds
        self.types = {**step.reference.types, **group.types}
        self.format = self._format(self.types.get("use", self.types["w"]), "w")
        self.count = ONE
        self.made: list[_Made] = []
        self._walk()

    def all(self) -> Iterator[Rounding]:
        """The roundings, over all values that the whole sum is made of."""
        for one in self.made:
            yield Rounding(one.event, one.what, one.over, one.format, one.times,
                           self.count * one.held * one.squares / one.number, self.count * one.plain / one.number)

    def _format(self, size: str, what: str) -> NumberFormat:
        if isinstance(size, Element):
            return FORMATS[size.name]
        named = {"2": self.half, "4": "fp32"}.get(str(size), "") if self.half else ""
        if not named:
            raise InputError(f"{what} of {self.group.name} has {size} bytes, and bytes name no type: say [types] "
                             f"{what} = \"bf16\", or what 2 bytes are, --half bf16")
        return FORMATS[named]

    def _walk(self) -> None:
        chosen = [e for e in self.step.phase(*STEP_PHASES)
                  if e.group == self.group.name and (e.path in self.own or e.verb == "scale")]
        looped = [e for e in chosen if e.phase in LOOPED and not {"last", "only"} & set(e.at)]
        for axes in dict.fromkeys(e.axes for e in looped if e.verb == "reduce"):
            self._reduce(next(e for e in looped if e.axes == axes and e.verb == "reduce"))
        adding = [e for e in looped if e.verb == "accumulate"]
        if adding:
            self._accumulate(adding[0], len(adding))
        for event in (e for e in chosen if e not in looped):
            if event.verb == "reduce":
                self._reduce(event)
                rest = self._format(self.types["g"], "g")
                if rest.digits < self.format.digits:
                    self._round(event, CAST, event.axes, rest)
                self.format = rest
            elif event.verb == "scale":
                self._round(event, MEAN, (), self.format)

    def _reduce(self, event: Event) -> None:
        wire = self._format(self.own[event.path].wire, "wire")
        number = Polynomial.read("*".join(event.axes))
        if wire.digits < self.format.digits:
            self._round(event, CAST, event.axes, wire)
        adding = FORMATS[self.adds] if self.adds else wire
        self._chain(event, event.axes, adding, number, first=2, tree=self.order == TREE)
        if wire.digits < adding.digits:
            self._round(event, CAST, event.axes, wire)
        if event.op == "mean" or event.divisor.powers:
            self._round(event, MEAN, event.axes, wire)
        self.format = wire

    def _accumulate(self, event: Event, times: int) -> None:
        into = self._format(self.own[event.path].type, "g")
        number = Polynomial.name("m").times(Monomial.number(times))
        self._chain(event, ("m",), into, number, first=1 if into.digits < self.format.digits else 2)
        self.format = into

    def _chain(self, event: Event, over: tuple[str, ...], form: NumberFormat, n: Polynomial, first: int,
               tree: bool = False) -> None:
        """`n` values added up one after the other, the first rounding that of the sum of `first` of them; or in pairs.

        A tree of n values has n/2^l additions on level l, each of 2^l values.
        """
        if tree:
            deep = Polynomial.name(levels(over))
            self.made.append(_Made(event.path, SUM, over, form, deep, self.count, n * (n + n - ONE - ONE), n * deep, n))
            self.count = self.count * n
            return
        less = Polynomial.number(first - 1)
        squares = (n * (n + ONE) * (n + n + ONE)).times(Monomial.number(Fraction(1, 6))) - less
        plain = (n * (n + ONE)).times(Monomial.number(Fraction(1, 2))) - less
        self.made.append(_Made(event.path, SUM, over, form, n - less, self.count, squares, plain, n))
        self.count = self.count * n

    def _round(self, event: Event, what: str, over: tuple[str, ...], form: NumberFormat) -> None:
        """A rounding of every value, each of which holds as many contributions as the sum does now."""
        self.made.append(_Made(event.path, what, over, form, ONE, self.count, ONE, ONE, ONE))


def _formula(terms: Iterable[Polynomial]) -> Formula:
    """A sum as a formula, in which the unit roundoffs have their values."""
    total = Polynomial.total(terms)
    values = {f.symbol: f.roundoff for f in FORMATS.values() if f.symbol in total.names()}
    return Formula.parse(str(total), "1", values=values)


def _squared(roundings: Iterable[Rounding], of: Callable[[Rounding], Polynomial], below: Polynomial) -> Formula:
    return _formula(of(r).times(Monomial.parse(f"{r.format.symbol}**2")) / below for r in roundings)
