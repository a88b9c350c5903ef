"""The module that runs Z3, where certificates do not test it: what is tried first, and what a fresh context answers."""

from __future__ import annotations

import z3

from placealg.prover.evidence.solver import SAT, UNKNOWN, UNSAT, text_of, z3_answer


def test_what_is_answered_first_is_what_a_context_of_its_own_answers() -> None:
    """unsat and, where no model is asked for, sat come from a context that stays; models come from a fresh one."""
    x = z3.Int("x")
    for _ in range(2):
        assert z3_answer(text_of([x > 2, x < 2]), 10**6).status == UNSAT
        assert z3_answer(text_of([x > 2, x < 4]), 10**6).model == {"x": 3}
        without = z3_answer(text_of([x > 2, x < 4]), 10**6, model=False)
        assert (without.status, dict(without.model)) == (SAT, {})
        assert z3_answer(text_of([x > 2, x < 2]), 10**6, model=False).status == UNSAT
    for asked in (True, False):
        hard = [x**3 + 5 * x**2 == 7919 * z3.Int("y") ** 3, x > 9]
        assert z3_answer(text_of(hard), 50, model=asked).status == UNKNOWN
