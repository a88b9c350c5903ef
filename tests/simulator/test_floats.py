"""Runs in floats beside the exact ones: of the same program, at the same sizes, from the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placealg.cli.inputs import read_case
from placealg.models.config import from_config
from placealg.models.transformer import gpt, moe
from placealg.simulator import Setting, simulate
from placealg.simulator.run import PRIME_TOLD, floats_beside
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

MODELS = {"gpt": gpt, "moe": moe, "llama": lambda: from_config("llama-3-8b"), "mla": lambda: from_config("deepseek-v3")}


def derived(strategy: str, model: str) -> Step:
    return derive(parse_strategy(strategy), MODELS[model]())


def setting(step: Step) -> Setting:
    return Setting.equal(step.reference, dict.fromkeys(step.reference.mesh.names, 2), 2)


@pytest.mark.parametrize(("strategy", "model"), [
    ("zero3*tp_sp", "gpt"), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (
        ("zero1*cp_ring", "llama"), ("dp*ep", "moe"), ("dp*tp", "mla"), ("dp*pp", "gpt")))])
def test_a_right_program_is_right_in_floats(strategy: str, model: str) -> None:
    step = derived(strategy, model)
    outcome = simulate(step, replace(setting(step), floats=True))
    assert outcome.equal, outcome.difference
    assert floats_beside(step, simulate(step, setting(step))) is None


def test_a_wrong_program_differs_at_the_same_place_in_floats() -> None:
    step = read_case("proofs/refuted/megatron_1446.toml", None, []).step
    exact = simulate(step, setting(step))
    assert exact.difference is not None
    assert PRIME_TOLD in exact.difference.want
    floats = floats_beside(step, exact)
    assert floats is not None
    assert (floats.event, floats.subject, floats.element) == (exact.difference.event, exact.difference.subject,
                                                               exact.difference.element)
    got, want = float(floats.got.strip("[]")), float(floats.want.strip("[]"))
    assert got != want
    assert abs(got - want) < 1


def test_whole_units_are_fractions_and_have_no_floats_beside() -> None:
    step = read_case("proofs/refuted/areal_312.toml", "abstract", []).step
    exact = simulate(step, setting(step))
    assert exact.difference is not None
    assert floats_beside(step, exact) is None
