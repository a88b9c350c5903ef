"""The ratio of a counterexample: a share of units in the axis sizes, held against units and owners that are counted."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.polynomial import Polynomial
from placealg.prover.calculus.contribution import Term
from placealg.prover.calculus.positions import DEVICE, LAST, UNIT, Position, all_but, at, owner, path_index, rank
from placealg.prover.evidence.counterexample_words import ModelPlaces, mass, told_ratio
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

REFERENCE = derive(parse_strategy("dp"), abstract()).reference
ANYWHERE = (UNIT, owner("own"), owner("even"), at("embed"), path_index("seq"))
"""Positions that are any rank, one independent of the other."""

STANDING = (DEVICE, LAST, rank(0), rank(1), rank(2))
PAIRS = st.tuples(st.sampled_from([*ANYWHERE, *STANDING]), st.sampled_from([*ANYWHERE, *STANDING])).filter(
    lambda pair: pair[0] != pair[1])
Drawn = tuple[int, list[tuple[Position, Position]], tuple[Position, Position] | None]
"""A coefficient, positions that are equal, two that are not."""

TERMS = st.tuples(st.integers(-2, 2), st.lists(PAIRS, max_size=3), st.none() | PAIRS)


def term(drawn: Drawn) -> Term:
    weight, equal, apart = drawn
    given_ = {("dp", *pair) for pair in equal} | ({("dp", apart[0], all_but(apart[1]))} if apart else set())
    return Term(Monomial.number(weight), FrozenMap(), frozenset(given_))


def counted(drawn: list[Drawn], size: int, device: int) -> Fraction:
    """The mean of the terms over all ranks at which units, owners and indices may be."""
    fixed = {DEVICE: device, LAST: size - 1, **{rank(k): k for k in range(3)}}
    total, worlds = Fraction(0), 0
    for places in product(range(size), repeat=len(ANYWHERE)):
        where, worlds = {**fixed, **dict(zip(ANYWHERE, places, strict=True))}, worlds + 1
        for weight, equal, apart in drawn:
            if all(where[p] == where[q] for p, q in equal) and (not apart or where[apart[0]] != where[apart[1]]):
                total += weight
    return total / worlds


@settings(max_examples=120, deadline=None)
@given(drawn=st.lists(TERMS, min_size=1, max_size=3), size=st.integers(1, 4), device=st.integers(0, 3))
@example(drawn=[(2, [], None), (-1, [(UNIT, rank(0))], None), (-1, [(UNIT, LAST)], None),
                (1, [(UNIT, rank(0)), (UNIT, LAST)], None)], size=3, device=0)
@example(drawn=[(1, [], None), (1, [(UNIT, rank(0)), (UNIT, LAST)], None)], size=1, device=0)
@example(drawn=[(1, [(UNIT, owner("own")), (owner("own"), DEVICE)], None)], size=3, device=1)
def test_a_ratio_is_the_share_of_units_that_is_counted(drawn: list[Drawn], size: int, device: int) -> None:
    assume(device < size)
    assume(not any(d[2] and {*d[2]} & {p for pair in d[1] for p in pair} for d in drawn))
    place = ModelPlaces({f"{DEVICE}@dp": device}, {"dp": size})
    told = mass(tuple(map(term, drawn)), ONE, REFERENCE, place)
    assert told is not None
    assert Polynomial.read(told_ratio(told)).evaluate({"dp": size}) == counted(drawn, size, device), told
