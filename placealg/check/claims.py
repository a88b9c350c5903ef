"""One figure of two programs compared for all sizes: what is claimed, over which sizes, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from placealg.arith import Monomial
from placealg.check.formulas import compare
from placealg.cost.comparison import Answer, Claim, Over, read_claim
from placealg.cost.costs import Costs, figure
from placealg.cost.expressions import Size, exact_size
from placealg.cost.formula import Formula
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.model import Model
from placealg.step.compatibility import bound_sizes, check_sizes, orders, quotients
from placealg.step.program import Step
from placealg.strategy.spec import Strategy


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two programs: the step, its strategy and model where they are known, the sizes that have numbers."""

    strategy: Strategy | None
    step: Step
    sizes: Mapping[str, Fraction]
    model: Model | None = None

    @property
    def bound(self) -> dict[str, Fraction]:
        """The sizes that strategy or model bind."""
        if self.strategy is None or self.model is None:
            reference = self.step.reference
            return {n: Fraction(v) for n, v in {**reference.mesh.sizes(), **reference.sizes}.items()}
        return {n: v for n, (_, v) in bound_sizes(self.strategy, self.model).items()}

    @property
    def whole(self) -> tuple[Monomial, ...]:
        """The quotients that are whole by the strategy's rules."""
        return () if self.strategy is None or self.model is None else quotients(self.strategy, self.model)

    @property
    def ordered(self) -> tuple[tuple[Monomial, Monomial], ...]:
        """The pairs of sizes of which the first never exceeds the second."""
        return () if self.model is None else orders(self.model)


def figures(one: Side, two: Side, claim: Claim, convention: str = "exact",
            unit: str = "bytes") -> tuple[Formula, Formula]:
    """The two formulas that a claim names."""
    timed = any(path.startswith("time.") for path in (claim.left, claim.right))
    every = [Costs(side.step, convention, unit) for side in (one, two)]
    own, other = (costs.timed if timed else costs.figures for costs in every)
    return figure(claim.left, own, other), figure(claim.right, other, own)


def shared_sizes(*sides: Side) -> Over:
    """The sizes that have numbers on any side, and what every side takes for granted of the others.

    Where a size has a number on one side it has it on all; two numbers for one size are an InputError.
    """
    fixed: dict[str, Fraction] = {}
    for side in sides:
        for name, value in {**side.bound, **side.sizes}.items():
            if fixed.setdefault(name, value) != value:
                raise InputError(f"{name} is {fixed[name]} in {sides[0].step.reference.strategy} and {value} in "
                                 f"{side.step.reference.strategy}: one size is compared, or two axes of two names")
    whole = dict.fromkeys(q for side in sides for q in side.whole)
    ordered = dict.fromkeys(pair for side in sides for pair in side.ordered)
    return Over(FrozenMap(fixed), tuple(whole), tuple(ordered))


def decide_claim(one: Side, two: Side, claim: str, where: str = "", **sizes: Size) -> Answer:
    """Decide a claim about two programs of one model, for all sizes but those that have numbers.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.catalogue import dp, zero3
    >>> one, two = (Side(s, derive(s, abstract()), {}, abstract()) for s in (zero3(), dp()))
    >>> answer = decide_claim(one, two, "communication.total <=", where="w == wire")
    >>> answer.verdict, answer.decisions[0].values
    ('REFUTED', (Fraction(3, 2), Fraction(1, 1)))
    """
    bound = {n: exact_size(n, v) for n, v in sizes.items()}
    if one.step.reference.model != two.step.reference.model:
        raise InputError(f"{one.step.reference.strategy} stands on {one.step.reference.model}, "
                         f"{two.step.reference.strategy} on {two.step.reference.model}: programs of one model are "
                         "compared")
    for side in (one, two):
        if side.strategy is not None and side.model is not None:
            check_sizes(side.strategy, side.model, bound)
    first, second = (replace(side, sizes={**side.sizes, **bound}) for side in (one, two))
    read = read_claim(claim)
    left, right = figures(first, second, read)
    return compare(left, read.relation, right, where, read.iff, shared_sizes(first, second))
