"""Ways to lay devices out over the axes of a mesh: those that fit in a device's memory, best first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as choices
from math import prod

from placealg.cost.communication import communication
from placealg.cost.curve import curve
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.plain import plain, put
from placealg.cost.sizing import (
    KINDS,
    NO_MARGIN,
    Margin,
    Sizes,
    dividing,
    divisors,
    held_against,
    number_of,
    stages,
)
from placealg.errors import InputError
from placealg.models.model import Model
from placealg.polynomial import Plain
from placealg.step.compatibility import quotients
from placealg.step.pipeline import TURNS
from placealg.step.program import Step
from placealg.strategy.spec import Strategy

MOST_LAYOUTS = 20_000
MOST_SEQUENCES = 10**9


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of all axes, what a device of the fullest stage holds, sends and computes, and the largest b.

    `microbatches` and `sequences` are those of a step, None if b is not known. `even` says that the stages of a
    pipeline are alike.
    """

    axes: Mapping[str, int]
    value: Fraction
    sent: Fraction
    flop: Fraction | None
    microbatch: int | None
    microbatches: int = 1
    sequences: int | None = None
    even: bool = True

    @property
    def per_byte(self) -> Fraction | None:
        """Flop computed per byte sent, if both are known and something is sent."""
        return self.flop / self.sent if self.flop is not None and self.sent else None


def layouts(step: Step, strategy: Strategy, model: Model, devices: int, sizes: Sizes, limit: Fraction | None,
            kind: str = KINDS[0], margin: Margin = NO_MARGIN, batch: int | None = None) -> tuple[Layout, ...]:
    """Every way to give `devices` to the axes without a size that divides the model and fits, best first.

    Best is most flop per byte sent, since a step has more tokens in some layouts than in others; if the flop are not
    known, or every step has `batch` sequences, least sent. Without a `limit`, all layouts that divide, with None as
    their largest microbatch. A pipeline axis takes any number of stages up to the layers; if that does not divide the
    layers, the fullest stage counts.
    """
    programs: dict[int, _Program | None] = {}
    through = strategy.pipeline_axis if strategy.pipeline_axis not in sizes else ""
    deep = dividing(through, strategy, model, sizes) if through else ()
    found = []
    for filled in ways(strategy, model, devices, sizes, batch):
        ranks = int(filled[through]) if through and filled[through] not in deep else 0
        if ranks not in programs:
            known = {**sizes, through: Fraction(ranks)} if ranks else sizes
            programs[ranks] = _program(step, known, bool(ranks), kind, margin)
        program = programs[ranks]
        if program is None:
            continue
        laid = program.at(filled, limit)
        if laid is not None:
            held, sent, work, microbatch = laid
            found.append(Layout({a: int(filled[a]) for a in strategy.mesh.names}, held, sent, work, microbatch,
                                int(filled.get("m", strategy.microbatches or 1)), sequences(strategy, filled),
                                not ranks))
    return tuple(sorted(found, key=lambda at: (at.sent / at.flop if at.flop and batch is None else at.sent, at.value)))


def ways(strategy: Strategy, model: Model, devices: int, sizes: Sizes, batch: int | None = None
         ) -> Iterator[dict[str, Fraction]]:
    """The sizes of every way to give `devices` to the axes without one that divides the model, with m, or b.

    >>> from placealg.models.config import resolve_model
    >>> from placealg.strategy.expression import parse_strategy
    >>> found = ways(parse_strategy("zero1*tp"), resolve_model("gpt2"), 8, {"b": Fraction(1), "s": Fraction(1024)})
    >>> [{name: int(at[name]) for name in ("dp", "tp", "m")} for at in found]
    [{'dp': 2, 'tp': 4, 'm': 1}, {'dp': 4, 'tp': 2, 'm': 1}, {'dp': 8, 'tp': 1, 'm': 1}]
    """
    free = [a for a in strategy.mesh.names if a not in sizes]
    bound = prod(int(sizes[a]) for a in strategy.mesh.names if a in sizes)
    if devices % bound:
        raise InputError(f"{devices} devices are not a multiple of {bound}, the product of the sizes given")
    through = strategy.pipeline_axis if strategy.pipeline_axis in free else ""
    deep = dividing(through, strategy, model, sizes) if through else ()
    numbers = {n: Fraction(v) for n, v in model.sizes.items()}
    whole = [q for q in quotients(strategy, model) if through not in q.names()]
    for axes in factorizations(devices // bound, free):
        at = {**sizes, **{a: Fraction(n) for a, n in axes.items()}}
        if through and not 2 <= axes[through] <= deep[-1]:
            continue
        if any(set(q.names()) <= {*model.sizes, *at} and q.evaluate({**numbers, **at}).denominator != 1
               for q in whole):
            continue
        filled = {"m": Fraction(1), **at} if batch is None else with_batch(strategy, at, batch)
        if filled is not None and not _ungrouped(strategy, filled):
            yield filled


def _ungrouped(strategy: Strategy, sizes: Sizes) -> bool:
    """Whether an interleaved order cannot take the microbatches in groups of its stages."""
    ranks, microbatches = sizes.get(strategy.pipeline_axis), strategy.microbatches or sizes.get("m")
    return bool(strategy.option("schedule", "pipeline") in TURNS and ranks and microbatches
                and microbatches % ranks)


@dataclass(frozen=True, slots=True)
class _Program:
    """The formulas of the stages of one program: what each stage holds, sends and computes, ready to be evaluated."""

    held: tuple[tuple[Plain, Formula], ...]
    sent: tuple[Plain, ...]
    work: tuple[Plain | None, ...]

    def at(self, sizes: Sizes, limit: Fraction | None) -> tuple[Fraction, Fraction, Fraction | None, int | None] | None:
        """What the fullest stage holds, sends and computes, and the largest b; None if it does not fit."""
        values = [data.evaluate(sizes) for data, _ in self.held]
        full = values.index(max(values))
        if limit is not None and values[full] > limit:
            return None
        largest = [curve(f, "b", sizes).largest(limit) for _, f in self.held
                   if limit is not None and "b" in f.inputs]
        work = self.work[min(full, len(self.work) - 1)]
        return (values[full], self.sent[min(full, len(self.sent) - 1)].evaluate(sizes),
                None if work is None else work.evaluate(sizes),
                min((b for b in largest if b is not None), default=None))


def _program(step: Step, sizes: Sizes, uneven: bool, kind: str, margin: Margin) -> _Program | None:
    """The program of a layout, with a stage for itself if stages are `uneven`; None if there is none."""
    try:
        every = stages(step, sizes)
    except InputError:
        return None
    told = [stage.step for stage in every] if uneven else [step]
    held = [held_against(stage, kind, margin) for stage in every]
    work = [flop(each) for each in told]
    return _Program(tuple((_put(f, sizes), f) for f in held), tuple(_put(communication(s).total, sizes) for s in told),
                    tuple(None if f.expr is None else _put(f, sizes) for f in work))


def _put(formula: Formula, sizes: Sizes) -> Plain:
    known = {n: v for n, v in {**formula.values, **sizes}.items() if n in formula.inputs and n not in ("b", "m")}
    return plain(put(formula, known))


def with_batch(strategy: Strategy, sizes: Sizes, batch: int) -> dict[str, Fraction] | None:
    """The sizes with m, or with b if m is known, such that a step has `batch` sequences; None if no integer does.

    >>> from placealg.strategy.catalogue import zero3
    >>> with_batch(zero3(), {"dp": Fraction(8), "b": Fraction(2)}, 64)["m"]
    Fraction(4, 1)
    """
    at = dict(sizes)
    said = strategy.microbatches or at.get("m")
    ranks = prod((at[a] for a in strategy.batch_axes), start=Fraction(1))
    if said is None:
        at["m"] = batch / (ranks * at.setdefault("b", Fraction(1)))
        return at if at["m"].denominator == 1 else None
    each = batch / (ranks * said)
    if at.setdefault("b", each) != each or each.denominator != 1:
        return None
    return at


def sequences(strategy: Strategy, sizes: Sizes) -> int | None:
    """The sequences of a step: b of every microbatch on every rank that splits the batch; None if b is not known."""
    if "b" not in sizes:
        return None
    ranks = prod((sizes[a] for a in strategy.batch_axes), start=Fraction(1))
    return int(sizes["b"] * ranks * (strategy.microbatches or sizes.get("m", Fraction(1))))


def factorizations(devices: int, axes: Iterable[str]) -> Iterator[dict[str, int]]:
    """Every way to write a number of devices as a product over axes.

    >>> list(factorizations(4, ("dp", "tp")))
    [{'dp': 1, 'tp': 4}, {'dp': 2, 'tp': 2}, {'dp': 4, 'tp': 1}]
    """
    names = tuple(axes)
    each = divisors(devices)
    if len(each) ** max(len(names) - 1, 0) > MOST_LAYOUTS:
        raise InputError(f"{devices} devices over {len(names)} axes are too many layouts: --set some axes")
    for head in choices(each, repeat=max(len(names) - 1, 0)):
        rest, left = divmod(devices, prod(head))
        if not left and (names or rest == 1):
            yield dict(zip(names, (*head, rest), strict=False))


__all__ = ["Layout", "factorizations", "layouts", "number_of", "sequences", "ways", "with_batch"]
