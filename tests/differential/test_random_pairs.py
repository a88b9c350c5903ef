"""Pairs of edits that undo each other, or seem to: what is proved equals the single device, whatever they hide."""

from __future__ import annotations

import os
from itertools import islice

import pytest
from random_dims import agreed
from random_pairs import COPY, MODELS, programs

from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED

EACH = 30
BRIEF, SLOW = 6, max(1, int(os.environ.get("PLACEALG_RANDOM_RUNS", "100")) // 2)
"""The slow tier draws SLOW runs of EACH programs, each run with its own seed; the default one BRIEF programs."""


def hidden(number: int, each: int = EACH) -> None:
    """A program with a pair of edits is proved only if no run differs from the single device."""
    counted = agreed(islice(programs(number), each))
    assert counted[PROVED] and counted[REFUTED] and counted[UNDECIDED] <= each // 3, counted


def test_what_two_edits_hide() -> None:
    hidden(0, BRIEF)


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
