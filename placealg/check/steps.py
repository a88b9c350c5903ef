"""Published steps: what frameworks printed of real runs, each beside the bound and the estimate of the same step.

A run is told by tokens a second and device, by the seconds of a step, or by a rate of flop, of which then 6 are counted
for a parameter and token: the least that such rates count. The bound is a claim, that no run is faster; the estimate
is none.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from itertools import combinations
from math import prod

from placealg.cost.figure import Figure
from placealg.cost.links import places
from placealg.cost.machines import machine
from placealg.cost.stage import candidates, on_stage
from placealg.cost.times import PARAMETERS, times
from placealg.cost.walk import Walk
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """One run, printed by `source`; `chunks` is the most that a rank may have had.

    It is told by one of `tokens` a second and device, `time`, the seconds of a step, and `rate`, flop a second and
    device.
    """

    id: str
    title: str
    source: str
    model: str
    strategy: str
    machine: str
    sizes: FrozenMap[str, Fraction]
    tokens: Fraction | None = None
    time: Fraction | None = None
    rate: Fraction | None = None
    chunks: int = 1

    @property
    def table(self) -> str:
        """Where the run stands, without what its table holds fixed."""
        return self.source.partition(":")[0]

    @property
    def seconds(self) -> Fraction:
        """The time of a step: what a device has of the tokens, over its rate.

        >>> round(float(published_steps()[0].seconds), 3)
        2.843
        """
        if self.time is not None:
            return self.time
        strategy = parse_strategy(self.strategy)
        ranks = prod((self.sizes[a] for a in strategy.batch_axes), start=Fraction(1))
        devices = prod((self.sizes[a] for a in strategy.mesh.names), start=Fraction(1))
        own = self.sizes["b"] * self.sizes["m"] * ranks * self.sizes["s"] / devices
        if self.tokens is not None:
            return own / self.tokens
        assert self.rate is not None
        return 6 * resolve_model(self.model).total() * own / self.rate


@dataclass(frozen=True, slots=True)
class StepFinding:
    """A published step with the bound and the estimate of the same step, in seconds."""

    step: PublishedStep
    bound: Fraction
    estimate: Fraction

    @property
    def holds(self) -> bool:
        """Whether the run was no faster than the bound."""
        return self.step.seconds >= self.bound

    @property
    def ratio(self) -> Fraction:
        """The printed time over the bound."""
        return self.step.seconds / self.bound


@lru_cache(maxsize=1)
def published_steps() -> tuple[PublishedStep, ...]:
    """Every published step, in the order of the file."""
    text = files("placealg.check").joinpath("steps.toml").read_text(encoding="utf-8")
    found = []
    for group in tomllib.loads(text, parse_float=Fraction)["group"]:
        shared = {key: value for key, value in group.items() if key != "steps"}
        for own in group["steps"]:
            said = {**shared, **own}
            sizes = {**shared.get("sizes", {}), **own.get("sizes", {})}
            told = {key: Fraction(said[key]) for key in ("tokens", "time", "rate") if key in said}
            if len(told) != 1:
                raise InputError("a step is told by one of tokens, time and rate", where=str(said.get("id")))
            found.append(PublishedStep(**{
                **said, "sizes": FrozenMap({n: Fraction(v) for n, v in sizes.items()}), **told}))
    return tuple(found)


Timed = tuple[tuple[Mapping[str, Fraction], tuple[Figure, Figure]], ...]
"""Of every stage that may be the slowest its own numbers, and the bound and the estimate of its time."""


def find_step(step: PublishedStep) -> StepFinding:
    """The bound and the estimate of a published step, on the stage where each is largest."""
    return next(find_steps([step]))


def find_steps(steps: Iterable[PublishedStep]) -> Iterator[StepFinding]:
    """The same of several steps; those of one model and strategy are derived once."""
    known: dict[tuple[object, ...], Timed] = {}
    for step in steps:
        on, strategy = machine(step.machine), parse_strategy(step.strategy)
        names = strategy.mesh.names
        told = {n: v for n, v in step.sizes.items() if n in (*names, "m")} if strategy.pipeline_axis else {}
        key = (step.model, step.strategy, FrozenMap(told), step.chunks)
        if key not in known:
            known[key] = _timed(strategy, resolve_model(step.model), told, step.chunks)
        rates = {**on.values, **PARAMETERS, **step.sizes, **places(step.sizes, names, on.per_node)}
        found = [[figure.value({**values, **rates}) for figure in figures] for values, figures in known[key]]
        bound, estimate = map(max, zip(*found, strict=True))
        yield StepFinding(step, bound, estimate)


def _timed(strategy: Strategy, model: Model, sizes: Mapping[str, Fraction], chunks: int) -> Timed:
    whole = derive(strategy, model)
    stages = [on_stage(whole, number, sizes) for number in candidates(whole.reference, sizes)] if (
        whole.reference.pipeline.axis) else [whole]
    found = []
    for walk in map(Walk, stages):
        figures = times(walk, chunks)
        found.append((walk.amounts.values, (figures["time.bound"], figures["time.estimate"])))
    return tuple(found)


def kendall(one: Sequence[Fraction], other: Sequence[Fraction]) -> Fraction | None:
    """Kendall's tau-b of two rankings; None where one of them has no order.

    >>> kendall([Fraction(1), Fraction(2), Fraction(3)], [Fraction(1), Fraction(3), Fraction(2)])
    Fraction(1, 3)
    """
    signs = [((a > b) - (a < b), (x > y) - (x < y)) for (a, x), (b, y) in
             combinations(list(zip(one, other, strict=True)), 2)]
    ordered = [sum(s[k] != 0 for s in signs) for k in (0, 1)]
    if not all(ordered):
        return None
    agreed = sum(a * b for a, b in signs)
    if ordered[0] == ordered[1]:
        return Fraction(agreed, ordered[0])
    return Fraction(agreed / (ordered[0] * ordered[1]) ** 0.5).limit_denominator(10**6)
