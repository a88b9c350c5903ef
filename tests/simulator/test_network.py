"""What a run computes of numbers where a proof knows nothing of it: a function that tells numbers apart, everywhere."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from placealg.simulator.field import PRIME, Number, Residues, residues
from placealg.simulator.network import digest

WORDS = [2 ** bits - 1 for bits in (31, 61)]
"""The primes by which Python hashes numbers, by the size of a word."""

numbers = st.one_of(st.integers(-9, 9), st.sampled_from(WORDS), st.integers()).map(Fraction) | st.fractions()


@given(one=st.lists(numbers, min_size=1, max_size=3), two=st.lists(numbers, min_size=1, max_size=3))
@example(one=[Fraction(-1)], two=[Fraction(-2)])
@example(one=[Fraction(0)], two=[Fraction(WORDS[1])])
@example(one=[Fraction(3)], two=[Fraction(3 + WORDS[0])])
@example(one=[Fraction(1, 2), Fraction(3)], two=[Fraction(1), Fraction(2), Fraction(3)])
def test_other_numbers_have_another_digest(one: list[Fraction], two: list[Fraction]) -> None:
    assume(one != two)
    assert digest(*one) == digest(*one) != digest(*two)


def test_a_digest_is_the_same_on_every_machine() -> None:
    assert digest(Fraction(-1)) == Fraction(4623395, 2**24)


@given(st.fractions().filter(lambda x: x.denominator % PRIME != 0), st.integers(1, 3))
def test_equal_numbers_have_equal_digests(number: Fraction, times: int) -> None:
    as_residues: list[Number] = [Residues(residues(number).reshape([1] * times)), number]
    assert len({digest(*as_residues), digest(*reversed(as_residues)), digest(as_residues[0], as_residues[0])}) == 1


def test_every_residue_counts() -> None:
    assert len({digest(Residues(np.array([a, b]))) for a in range(20) for b in range(20)}) == 400
