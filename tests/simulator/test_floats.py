"""Runs in floats beside the exact ones: of the same program, at the same sizes, from the same numbers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from placealg.cases.case import read_case
from placealg.models.config import from_config
from placealg.models.transformer import gpt, mlp, moe
from placealg.simulator import Setting, simulate
from placealg.simulator.field import Residues
from placealg.simulator.network import digest
from placealg.simulator.run import PRIME_TOLD, floats_beside
from placealg.simulator.run import _number as number_told
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

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


def unclipped(base: str, optimizer: str) -> Step:
    text = f'base = "{base}"\n[optimizer]\nclip = "none"\nname = "{optimizer}"'
    text += "\n[schedule]\nchunks = 2" if "interleaved" in base else ""
    return derive(parse_strategy_file(text).strategy, mlp())


GROWING = [("zero1*pp_interleaved", "muon"), ("zero2", "muon"), ("hsdp", "lamb"), ("zero3", "adamw")]


@pytest.mark.parametrize(("base", "optimizer"), [
    GROWING[0], *(pytest.param(*pair, marks=pytest.mark.slow) for pair in GROWING[1:])])
def test_floats_that_grow_without_bound_end_the_run_all_the_same(base: str, optimizer: str) -> None:
    """Nothing clips them, and each step has numbers of the step before to a power: some are soon too large."""
    step = unclipped(base, optimizer)
    with np.errstate(all="ignore"):
        outcome = simulate(step, replace(setting(step), floats=True), steps=12)
    assert outcome.observed


def test_a_difference_of_which_floats_are_no_numbers_has_none_beside() -> None:
    step = unclipped("zero1*pp_interleaved", "muon")
    wrong = edit(step, {"set": "publish.layer.mlp.down.bias.publish[dp]", "from": "weight"})
    exact = simulate(wrong, Setting.equal(wrong.reference, {"dp": 2, "pp": 2}, 2, 1))
    assert exact.difference
    beside = floats_beside(wrong, exact)
    assert beside is None or np.isfinite([float(x.strip("[]")) for x in (beside.got, beside.want)]).all()


@given(st.lists(st.floats(), min_size=1, max_size=4))
@example([float("nan")])
@example([1e308, 1e308])
def test_a_digest_of_floats_is_a_number(numbers: list[float]) -> None:
    assert 0 <= digest(Residues(np.array(numbers))) <= 1


@given(st.integers(1, 6000), st.integers(1, 6000), st.sampled_from([1, -1]))
@example(5000, 1, 1)
def test_a_fraction_of_any_length_is_told_shortly(over: int, under: int, sign: int) -> None:
    told = number_told(Fraction(sign * (10 ** over + 1), 10 ** under + 3))
    assert len(told) <= 24 and (told.startswith("about") or Fraction(told))
