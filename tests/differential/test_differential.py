"""Random programs, prover against simulator: no proof that a run contradicts, no refutation without a replay."""

from __future__ import annotations

import os

import pytest
from agreement import compare
from hypothesis import HealthCheck, Phase, given, seed, settings
from random_programs import Sample, programs

from placealg.prover.verdict import UNDECIDED

BRIEF, SLOW = 12, int(os.environ.get("PLACEALG_RANDOM_RUNS", "100"))
EACH = 100
"""The slow tier draws SLOW runs of EACH programs, each run with its own seed; the default one BRIEF programs."""

TOGETHER = 10
"""Runs of the slow tier of which at most LEFT_OPEN of the programs may be left open."""

LEFT_OPEN = 0.02


def left_open(number: int, each: int = EACH) -> list[str]:
    """Draw and compare the programs of one run; those that are left open."""
    stories = []

    @seed(number)
    @settings(max_examples=each, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(programs())
    def run(sample: Sample) -> None:
        found = compare(sample.step)
        assert not found.complaint, f"{sample.story}\n{found.complaint}"
        stories.extend([sample.story] if found.report.verdict == UNDECIDED else [])

    run()
    return stories


def test_prover_and_simulator_agree() -> None:
    assert len(left_open(0, BRIEF)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SLOW, TOGETHER))
def test_prover_and_simulator_agree_on_many(first: int) -> None:
    numbers = range(100 + first, 100 + min(first + TOGETHER, SLOW))
    stories = [story for number in numbers for story in left_open(number)]
    assert len(stories) < LEFT_OPEN * EACH * len(numbers), stories
