"""Comparisons as data: a claim about two figures, the sizes over which it is made, and how it was decided."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from placealg.arith import Monomial
from placealg.cost.formula import Formula
from placealg.cost.plain import Condition
from placealg.errors import InputError
from placealg.frozen import FrozenMap

RELATIONS = ("==", "<=", "<", ">=", ">")
_CLAIM = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=|==|<|>)\s*(?!iff\b)([^\s<>=]*)\s*(?:iff\s+(.+))?\Z")


@dataclass(frozen=True, slots=True)
class Claim:
    """What is to be proved: a relation of a figure of one program to a figure of the other, perhaps `iff` a condition.

    >>> read_claim("memory.total <= iff topk < ep")
    Claim(left='memory.total', relation='<=', right='memory.total', iff='topk < ep')
    """

    left: str
    relation: str
    right: str
    iff: str = ""


def read_claim(text: str) -> Claim:
    """The claim `PATH RELATION [PATH] [iff CONDITION]`; without a second path, both sides have the first one."""
    found = _CLAIM.match(text)
    if not found:
        raise InputError(f"'{text}' is not PATH RELATION [PATH] [iff CONDITION], with a relation of",
                         valid=RELATIONS)
    left, relation, right, iff = found.groups()
    return Claim(left, relation, right or left, iff or "")


@dataclass(frozen=True, slots=True)
class Over:
    """The sizes over which formulas are compared, in addition to their being positive.

    `fixed` have numbers; `whole` are positive integers; of each pair of `ordered` the first never exceeds the second.
    """

    fixed: FrozenMap[str, Fraction] = FrozenMap()
    whole: tuple[Monomial, ...] = ()
    ordered: tuple[tuple[Monomial, Monomial], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether `left` is in `relation` to `right` for all sizes of `over` that satisfy all of `given`.

    `method` says how a verdict was found, or why there is none. A refutation has `sizes`, and both `values` there.
    """

    verdict: str
    method: str
    left: Formula
    relation: str
    right: Formula
    over: Over
    given: tuple[Condition, ...] = ()
    sizes: FrozenMap[str, Fraction] = FrozenMap()
    values: tuple[Fraction, Fraction] | None = None

    @property
    def free(self) -> tuple[str, ...]:
        """The sizes that have no number."""
        names = dict.fromkeys((*self.left.inputs, *self.right.inputs))
        gone = {n for f in (self.left, self.right) for n in f.defined}
        return tuple(n for n in names if n not in self.over.fixed and n not in gone)


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict on a claim: that of its only decision, or for an `iff`, of one decision each way."""

    verdict: str
    decisions: tuple[Decision, ...]
    iff: tuple[Condition, ...] = ()
