"""Random programs, prover against simulator: no proof that a run contradicts, no refutation without a replay."""

from __future__ import annotations

import os

import pytest
from agreement import compare
from hypothesis import HealthCheck, Phase, given, seed, settings
from random_programs import Sample, programs

from placealg.prove.verdict import UNDECIDED

FAST, SLOW = 3, int(os.environ.get("PLACEALG_RANDOM_RUNS", "30"))
EACH = 100
"""Programs are drawn in runs of EACH, each run with its own seed: FAST runs by default, SLOW ones in the slow tier."""


def agree(number: int) -> None:
    """Draw and compare the programs of one run; few may be left open."""
    left_open = []

    @seed(number)
    @settings(max_examples=EACH, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(programs())
    def run(sample: Sample) -> None:
        found = compare(sample.step)
        assert not found.complaint, f"{sample.story}\n{found.complaint}"
        left_open.extend([sample.story] if found.report.verdict == UNDECIDED else [])

    run()
    assert len(left_open) <= EACH // 20, left_open


@pytest.mark.parametrize("number", range(FAST))
def test_prover_and_simulator_agree(number: int) -> None:
    agree(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100, 100 + SLOW))
def test_prover_and_simulator_agree_on_many(number: int) -> None:
    agree(number)
