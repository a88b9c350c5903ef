"""Largest magnitudes: values that ranks and microbatches merge by their maximum, and whose terms may overlap.

A term says that a rank has seen the unit. A maximum is over all units iff every unit is among what it was taken of,
once or more often; what a sum makes of several maxima is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus.contribution import Equality, Value, size_one


def merged_over(value: Value, axes: tuple[str, ...], op: str, unrolled: Mapping[str, int] = FrozenMap()) -> Value:
    """A largest magnitude, merged over `axes`: it counts a unit if one rank does, however often.

    A sum or a mean is the largest only where all ranks hold the same, the sum times their number.

    >>> from placealg.prover.calculus.contribution import Term
    >>> seen = merged_over(Value((Term(ONE, FrozenMap({"dp": "unit"})),)), ("dp",), "max")
    >>> merged_over(seen, ("dp",), "max") == merged_over(seen, ("dp",), "mean") == seen
    True
    >>> merged_over(seen, ("dp",), "sum").terms[0].coefficient
    dp
    """
    for axis in axes if value.held else ():
        apart = [t for t in value.terms if t.differs(axis)]
        alike = [t.times(Monomial.of(axis)) if op in ("", "sum") else t for t in value.terms if not t.differs(axis)]
        made = value.reduced((axis,), ONE, unrolled)
        alone = {size_one(axis)} if apart and op != "max" and unrolled.get(axis) != 1 else set[Equality]()
        value = replace(made, terms=tuple(dict.fromkeys((*alike, *(t.summed(axis) for t in apart)))),
                        sides=made.sides | alone)
    return value


def larger(one: Value, other: Value, op: str) -> Value:
    """The larger of two largest magnitudes; what is added to anything but 0 is none."""
    made = one.plus(other)
    if not one.held or not other.held:
        return made
    wrong = not one.zero and op != "max"
    return replace(made, terms=tuple(dict.fromkeys((*one.terms, *other.terms))), garbage=made.garbage or wrong)
