"""Random programs, prover against simulator: no proof that a run contradicts, no refutation without a replay."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from agreement import compare
from conftest import ROOT
from hypothesis import HealthCheck, Phase, given, seed, settings
from random_dims import judged
from random_programs import Sample, programs, two_units

from placealg.model.abstract import abstract
from placealg.model.model import Model
from placealg.model.transformer import Style, gpt, mla, mlp, moe
from placealg.prove.verdict import UNDECIDED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay, strategy_on

FAST, SLOW = 3, int(os.environ.get("PLACEALG_RANDOM_RUNS", "100"))
EACH = 100
"""Programs are drawn in runs of EACH, each run with its own seed: FAST runs by default, SLOW ones in the slow tier."""

TOGETHER = 10
"""Runs of the slow tier of which at most LEFT_OPEN of the programs may be left open."""

LEFT_OPEN = 0.02
MODELS: Mapping[str, Callable[[], Model]] = {
    "abstract": abstract, "two units": lambda: two_units(False), "mlp": mlp, "gpt": gpt,
    "flash": lambda: gpt(Style(flash=True)), "moe": moe, "mla": mla}
DISAGREEMENTS = tomllib.loads((ROOT / "tests" / "disagreements.toml").read_text(encoding="utf-8"))["case"]


def left_open(number: int) -> list[str]:
    """Draw and compare the programs of one run; those that are left open."""
    stories = []

    @seed(number)
    @settings(max_examples=EACH, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(programs())
    def run(sample: Sample) -> None:
        found = compare(sample.step)
        assert not found.complaint, f"{sample.story}\n{found.complaint}"
        stories.extend([sample.story] if found.report.verdict == UNDECIDED else [])

    run()
    return stories


@pytest.mark.parametrize("number", range(FAST))
def test_prover_and_simulator_agree(number: int) -> None:
    stories = left_open(number)
    assert len(stories) < LEFT_OPEN * EACH, stories


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SLOW, TOGETHER))
def test_prover_and_simulator_agree_on_many(first: int) -> None:
    numbers = range(100 + first, 100 + min(first + TOGETHER, SLOW))
    stories = [story for number in numbers for story in left_open(number)]
    assert len(stories) < LEFT_OPEN * EACH * len(numbers), stories


@pytest.mark.parametrize("case", DISAGREEMENTS, ids=lambda case: case["found"])
def test_what_they_disagreed_on(case: Mapping[str, Any]) -> None:
    tables = {k: case[k] for k in ("dims", "states", "parameters", "optimizer", "loss", "schedule") if k in case}
    strategy = (overlay(parse_strategy(case["strategy"]), tables) if "strategy" in case
                else strategy_on("kept", dict.fromkeys(case["mesh"]), **tables))
    edits = case.get("edit", [])
    step = edit(derive(strategy, MODELS[case["model"]]()), *(edits if isinstance(edits, list) else [edits]))
    verdict, complaint = judged(step)
    assert (verdict, complaint) == (case["verdict"], "")
