"""One figure of two programs compared for all sizes: what is claimed, over which sizes, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from placealg.check.formulas import compare
from placealg.cost.comparison import Answer, Claim, Over, read_claim
from placealg.cost.formula import Formula, Size, exact_size
from placealg.cost.leaves import leaf, leaves
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.model.model import Model
from placealg.step.compatibility import bound_sizes, check_sizes, orders, quotients
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.spec import Strategy


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two programs: its strategy, the step, and the sizes that have numbers besides."""

    strategy: Strategy
    step: Step
    sizes: Mapping[str, Fraction]


def figures(one: Side, two: Side, claim: Claim, convention: str = "exact",
            unit: str = "bytes") -> tuple[Formula, Formula]:
    """The two formulas that a claim names."""
    own, other = (leaves(side.step, convention, unit) for side in (one, two))
    return leaf(claim.left, own, other), leaf(claim.right, other, own)


def shared_sizes(model: Model, *sides: Side) -> Over:
    """The sizes that have numbers on any side, and what every side takes for granted of the others.

    Where a size has a number on one side it has it on all; two numbers for one size are an InputError.
    """
    fixed: dict[str, Fraction] = {}
    for side in sides:
        own = {n: v for n, (_, v) in bound_sizes(side.strategy, model).items()}
        for name, value in {**own, **side.sizes}.items():
            if fixed.setdefault(name, value) != value:
                raise InputError(f"{name} is {fixed[name]} in {sides[0].strategy.name} and {value} in "
                                 f"{side.strategy.name}: one size is compared, or two axes of two names")
    whole = dict.fromkeys(q for side in sides for q in quotients(side.strategy, model))
    return Over(FrozenMap(fixed), tuple(whole), orders(model))


def compare_strategies(one: Strategy, two: Strategy, model: Model, claim: str, where: str = "",
                       **sizes: Size) -> Answer:
    """Decide a claim about two strategies on one model, for all sizes but those that have numbers.

    >>> from placealg.model.abstract import abstract
    >>> from placealg.strategy.catalogue import dp, zero3
    >>> answer = compare_strategies(zero3(), dp(), abstract(), "communication.total <=", where="w == wire")
    >>> answer.verdict, answer.decisions[0].values
    ('REFUTED', (Fraction(3, 2), Fraction(1, 1)))
    """
    bound = {n: exact_size(n, v) for n, v in sizes.items()}
    for strategy in (one, two):
        check_sizes(strategy, model, bound)
    first, second = (Side(strategy, derive(strategy, model), bound) for strategy in (one, two))
    read = read_claim(claim)
    left, right = figures(first, second, read)
    return compare(left, read.relation, right, where, read.iff, shared_sizes(model, first, second))
