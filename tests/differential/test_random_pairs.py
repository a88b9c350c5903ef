"""Pairs of edits that undo each other, or seem to: what is proved equals the single device, whatever they hide."""

from __future__ import annotations

import os
from itertools import islice

import pytest
from random_dims import agreed
from random_pairs import COPY, MODELS, programs

from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED

EACH = 30
FAST, SLOW = 1, max(1, int(os.environ.get("PLACEALG_RANDOM_RUNS", "100")) // 2)
"""Programs are drawn in runs of EACH, each run with its own seed: FAST runs by default, SLOW ones in the slow tier."""


def hidden(number: int) -> None:
    """A program with a pair of edits is proved only if no run differs from the single device."""
    counted = agreed(islice(programs(number), EACH))
    assert counted[PROVED] and counted[REFUTED] and counted[UNDECIDED] <= EACH // 3, counted


@pytest.mark.parametrize("number", range(FAST))
def test_what_two_edits_hide(number: int) -> None:
    hidden(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100, 100 + SLOW))
def test_what_many_pairs_of_edits_hide(number: int) -> None:
    hidden(number)


def test_the_pairs_are_of_many_kinds() -> None:
    drawn = [step for _, step in islice(programs(0), 250)]
    assert {step.reference.model for step in drawn} == {model.name for model in MODELS.values()}
    put_in = [e for step in drawn for e in step.events if e.copy >= COPY]
    assert {e.verb for e in put_in} >= {"gather", "all_gather", "slice", "free", "scale", "offload", "fetch", "assign",
                                        "broadcast", "pad", "all_reduce", "reduce_scatter", "all_to_all", "shift"}
    assert any(e.version for e in put_in) and any(e.on_gradient for e in put_in) and any(e.at for e in put_in)
    assert {e.phase for e in put_in} >= {"init", "forward", "backward", "update", "publish", "save"}
