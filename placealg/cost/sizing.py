"""Whether a program fits in a device's memory: what it holds, what is left, and which sizes would fit.

The `peak` is compared with the memory: the most that a device holds at any moment of the step, with the tensors that
its ops work on. The `total` adds maxima that need not occur together, and leaves out those tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from placealg.arith import Monomial
from placealg.cost.compute import value_of
from placealg.cost.curve import check_known, curve
from placealg.cost.formula import Formula
from placealg.cost.memory import Memory, memory
from placealg.cost.peak_parts import moment
from placealg.cost.stage import candidates, locate, on_stage, stage_of
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import PREDICTION
from placealg.models.model import Model
from placealg.step.compatibility import quotients
from placealg.step.program import Step
from placealg.strategy.spec import Strategy

KINDS = ("peak", "total")
"""The figures that may be compared with the memory of a device."""

RESERVE = "reserve"
"""The part that is set aside for what no formula counts."""

REST = ("parameters", "optimizer", "gradients")
"""The parts that rest on a device, to which the activation factor does not apply."""

MOST_DEVICES = 2**20
"""The largest size of an axis that is tried if it must divide the model."""

Sizes = Mapping[str, Fraction]

NO_SIZES: Sizes = FrozenMap()


@dataclass(frozen=True, slots=True)
class AlikeDevices:
    """Devices that are all alike: their name, the program that they run, and what each of them holds.

    `of_any` says that the formulas hold for any number of stages from two on that divides the layers.
    """

    name: str
    step: Step
    held: Memory
    of_any: bool = False


def stages(step: Step, sizes: Sizes = NO_SIZES) -> tuple[AlikeDevices, ...]:
    """The devices of which one holds the most: without a pipeline all, alike; else one per stage, first to last.

    If the number of stages is known at `sizes` or bound, these are the ends and each stage that runs more of something
    than all before it; a later one that runs no more has no more microbatches in flight. Otherwise they are the first
    one, the first with layers, that of layers which predict alone, and the last.

    >>> from placealg.models.transformer import gpt
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import pp
    >>> [stage.name for stage in stages(derive(pp(), gpt()), {"pp": Fraction(4)})]
    ['stage 0 of pp = 4', 'stage 3 of pp = 4']
    """
    return tuple(AlikeDevices(name, program, memory(program), of_any) for name, program, of_any in alike(step, sizes))


def alike(step: Step, sizes: Sizes = NO_SIZES) -> Iterator[tuple[str, Step, bool]]:
    """The name and the program of every row of `stages`, and whether it is that of any number of stages."""
    pipeline = step.reference.pipeline
    if not pipeline.axis:
        yield str(stage_of(step)), step, False
        return
    numbers = candidates(step.reference, sizes)
    ranks = locate(step.reference, "first", sizes).ranks
    between = [PREDICTION] if PREDICTION in pipeline.alone else []
    for number in numbers if ranks is not None else dict.fromkeys((0, *numbers, *between, "last")):
        here = on_stage(step, number, sizes)
        even = all(pipeline.axis in count.names() for count in here.stage.instances.values())
        yield str(here.stage), here, even and (here.stage.first or here.stage.last)


@dataclass(frozen=True, slots=True)
class Margin:
    """What is set aside for what no formula counts.

    It is `factor` times all that is held beyond the states at rest, and `reserve` bytes.

    >>> held = Formula.parse("Psi*w", "bytes")
    >>> Margin(Fraction(10), Fraction(3, 2)).on(held + Formula.parse("b*s*act", "bytes"), held)
    Ψ·w + 3·act·b·s/2 + 10 bytes
    """

    reserve: Fraction = Fraction(0)
    factor: Fraction = Fraction(1)

    def on(self, held: Formula, states: Formula) -> Formula:
        """The formula of what is held and what is set aside in addition."""
        found = held if self.factor == 1 else states + (held - states) * self.factor
        return found if not self.reserve else found + Formula.parse(str(self.reserve), "bytes")

    def to_hold(self, measured: Fraction, held: Fraction, states: Fraction) -> tuple[Fraction, Fraction | None]:
        """The reserve, and the factor (None if nothing but states is held), with which `held` becomes `measured`."""
        return measured - held, (measured - states) / (held - states) if held > states else None


NO_MARGIN = Margin()


@dataclass(frozen=True, slots=True)
class HeldTerm:
    """One part of what is held, with its bytes."""

    name: str
    formula: Formula
    value: Fraction


@dataclass(frozen=True, slots=True)
class Degree:
    """The smallest size of an axis with which it fits, the other sizes as they are; None if none does.

    `power` is the smallest power of two. `left` is what remains however large the axis is, if that is known. `tried`
    are the sizes that divide the model, empty if every size does.
    """

    axis: str
    now: int
    smallest: int | None
    power: int | None
    left: Fraction | None
    tried: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """What one stage holds at its sizes against the `memory` of a device, in bytes.

    `terms` sum to `value`, of which `counted` bytes follow from formulas, `states` of these at rest; the rest is the
    `margin`. `rising` is what does not depend on b, and what each b adds, if that is linear. `microbatch` is the
    largest b with which it fits, 0 if none does, None if b does not matter.
    """

    stage: str
    step: Step
    kind: str
    memory: Fraction
    held: Memory
    formula: Formula
    value: Fraction
    terms: tuple[HeldTerm, ...]
    rising: tuple[Fraction, Fraction] | None
    microbatch: int | None
    degrees: tuple[Degree, ...]
    counted: Fraction
    states: Fraction
    margin: Margin = NO_MARGIN

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.value <= self.memory

    @property
    def left(self) -> Fraction:
        """What remains of the memory; negative if it does not fit."""
        return self.memory - self.value

    @property
    def largest(self) -> HeldTerm:
        """The largest term."""
        return max(self.terms, key=lambda t: t.value)


def fit(step: Step, strategy: Strategy, model: Model, limit: Fraction, sizes: Sizes,
        kind: str = KINDS[0], margin: Margin = NO_MARGIN) -> tuple[Fit, ...]:
    """Each stage compared with the memory of a device, the tightest first.

    `sizes` are those of all axes, and those that the model leaves open.

    >>> from placealg.models.config import resolve_model
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import zero3
    >>> strategy, model = zero3(), resolve_model("gpt2")
    >>> sizes = {"dp": Fraction(8), "b": Fraction(1), "s": Fraction(1024)}
    >>> (found,) = fit(derive(strategy, model), strategy, model, Fraction(3 * 10**9), sizes)
    >>> found.fits, found.microbatch, found.degrees[0].smallest
    (True, 1, 2)
    """
    every = (_fit(stage, strategy, model, limit, sizes, kind, margin) for stage in stages(step, sizes))
    return tuple(sorted(every, key=lambda found: -found.value))


def _fit(stage: AlikeDevices, strategy: Strategy, model: Model, limit: Fraction, sizes: Sizes, kind: str,
         margin: Margin) -> Fit:
    formula = held_against(stage, kind, margin)
    value = number_of(formula, sizes)
    parts = [(name, f if name in REST else f * margin.factor) for name, f in moment(stage.held, kind, sizes)]
    if margin.reserve:
        parts.append((RESERVE, Formula.parse(str(margin.reserve), "bytes")))
    terms = tuple(HeldTerm(name, f, number_of(f, sizes)) for name, f in parts)
    by_b = curve(formula, "b", sizes)
    microbatch = by_b.largest(limit) if "b" in formula.inputs else None
    if microbatch is not None:
        at, beyond = (number_of(formula, {**sizes, "b": Fraction(b)}) for b in (max(microbatch, 1), microbatch + 1))
        assert (at <= limit or not microbatch) and limit < beyond, "the largest b fits, and the next does not"
    rising = by_b.line(int(sizes.get("b", 1)))
    degrees = tuple(degree(formula, axis, strategy, model, limit, sizes) for axis in strategy.mesh.names
                    if axis != strategy.pipeline_axis or stage.of_any)
    return Fit(stage.name, stage.step, kind, limit, stage.held, formula, value, terms, rising, microbatch, degrees,
               number_of(held_against(stage, kind), sizes), number_of(stage.held.states, sizes), margin)


def held_against(stage: AlikeDevices, kind: str, margin: Margin = NO_MARGIN) -> Formula:
    """The formula that is compared with the memory."""
    if kind not in KINDS:
        raise InputError(f"unknown convention '{kind}'", name=kind, valid=KINDS)
    return margin.on(stage.held.peak if kind == "peak" else stage.held.total, stage.held.states)


def number_of(formula: Formula, sizes: Sizes) -> Fraction:
    """The value at `sizes`; an InputError that names the sizes that are missing."""
    check_known(formula, sizes)
    return Fraction(value_of(formula, sizes) or 0)


def degree(formula: Formula, axis: str, strategy: Strategy, model: Model, limit: Fraction, sizes: Sizes) -> Degree:
    """The smallest size of an axis with which a formula is at most `limit`."""
    along, allowed = curve(formula, axis, sizes), dividing(axis, strategy, model, sizes)
    powers = [n for n in allowed if n & (n - 1) == 0] if allowed else [2**k for k in range(41)]
    return Degree(axis, int(sizes.get(axis, 1)), along.smallest(limit, allowed), along.smallest(limit, powers),
                  along.floor, allowed)


def dividing(axis: str, strategy: Strategy, model: Model, sizes: Sizes) -> tuple[int, ...]:
    """The sizes of an axis that divide what it splits, the other sizes as they are; empty if all do.

    For a pipeline axis, the sizes from 2 on that divide the layers, for which stages are alike.
    """
    common, known = 0, {**{n: Fraction(v) for n, v in model.sizes.items()}, **sizes}
    if axis == strategy.pipeline_axis:
        (layers,) = (loop.count for loop in model.graph.loops)
        check_known(Formula.parse(str(layers), "1"), known)
        return divisors(int(layers.evaluate(known)))[1:]
    for quotient in quotients(strategy, model):
        if axis in quotient.names():
            rest = quotient * Monomial.of(axis)
            common = gcd(common, int(rest.evaluate(known)) if set(rest.names()) <= set(known) else 0)
    return divisors(common)


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number up to MOST_DEVICES; none for 0."""
    return tuple(n for n in range(1, min(number, MOST_DEVICES) + 1) if number % n == 0)


__all__ = ["KINDS", "NO_MARGIN", "AlikeDevices", "Degree", "Fit", "HeldTerm", "Margin", "alike", "degree", "dividing",
           "divisors", "fit", "held_against", "number_of", "stages"]
