"""The module that runs Z3, where certificates do not test it: what is tried first, and what a fresh context answers."""

from __future__ import annotations

import multiprocessing
from contextlib import redirect_stdout
from io import StringIO

import pytest
import z3

import placealg as pa
from placealg.cli import main
from placealg.prover.evidence.solver import SAT, UNKNOWN, UNSAT, allowed_children, text_of, z3_answer


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


def verdict_of(strategy: str) -> str:
    return str(pa.prove(strategy).verdict)


def exit_code_of(strategy: str) -> int:
    with redirect_stdout(StringIO()):
        return main(["diff", strategy, strategy])


def test_workers_of_a_pool_prove_though_they_are_daemonic() -> None:
    """multiprocessing forbids them children, which would outlive them: the solver ends when its connection does."""
    with multiprocessing.Pool(1) as pool:
        assert pool.map(verdict_of, ["zero1", "zero3"]) == ["PROVED", "PROVED"]
        assert pool.map(exit_code_of, ["zero1"]) == [0]
    assert multiprocessing.current_process().daemon is False


def test_a_solver_leaves_a_worker_as_daemonic_as_it_was() -> None:
    with allowed_children(), pytest.raises(KeyError):
        multiprocessing.current_process()._config["daemon"]  # type: ignore[attr-defined]
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config["daemon"] = True
    try:
        with allowed_children():
            assert not multiprocessing.current_process().daemon
        assert multiprocessing.current_process().daemon
    finally:
        del config["daemon"]
