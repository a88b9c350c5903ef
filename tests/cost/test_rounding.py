"""How far rounding moves a gradient: formulas by hand, and sums that are run in the same types, rank by rank."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import placealg as pa
from placealg.cost.formula import Formula
from placealg.cost.rounding import SPREAD, Tolerance, levels, tolerance
from placealg.errors import InputError
from placealg.measure.rounding import measure, rounded
from placealg.number_formats import FORMATS
from placealg.step.edit import edit
from placealg.strategy.catalogue import names
from placealg.strategy.spec import overlay

LOW = {"w": "bf16", "g": "fp32", "wire": "bf16"}
SUMMED = {"w": "bf16", "g": "bf16", "wire": "fp32"}
HALF = {"w": "bf16", "g": "bf16", "wire": "bf16"}
WHOLE = {"w": "bf16", "g": "fp32", "wire": "fp32"}


def step_of(name: str, types: dict[str, str], model: str = "gpt") -> pa.Step:
    return pa.derive(overlay(pa.parse_strategy(name), {"types": types}), model)


def row_of(name: str, types: dict[str, str], group: str = "layer.weight", **more: Any) -> Tolerance:
    return tolerance(step_of(name, types), **more).of(group)


BY_HAND = {
    # strategy, types -> roundings of a contribution by hand: casts, additions in a ring, the mean, what rests
    ("zero3", "LOW"): "dp*u_bf16 + (m - 1)*u_fp32",
    ("zero1", "LOW"): "(dp + 1)*u_bf16 + (m - 1)*u_fp32",
    ("zero3", "SUMMED"): "dp*u_fp32 + m*u_bf16",
    ("dp", "SUMMED"): "dp*u_fp32 + m*u_bf16",
    ("hsdp", "LOW"): "(dp_shard + dp_replicate + 1)*u_bf16 + (m - 1)*u_fp32",
    ("hsdp", "SUMMED"): "(dp_shard + dp_replicate)*u_fp32 + (m + 1)*u_bf16",
}


@pytest.mark.parametrize(("name", "types"), BY_HAND)
def test_bounds_are_those_by_hand(name: str, types: str) -> None:
    values = {f.symbol: f.roundoff for f in FORMATS.values()}
    assert row_of(name, globals()[types]).worst == Formula.parse(BY_HAND[name, types], "1", values=values)


def test_norms_under_tensor_parallelism_have_a_reduction_more() -> None:
    types = {**WHOLE, "wire": "fp32"}
    step = pa.derive(overlay(pa.parse_strategy("zero3*tp_sp"), {"types": types, "schedule": {"wire": {"tp": "bf16"}}}),
                     "gpt")
    found = tolerance(step)
    plain, more = found.of("layer.weight"), found.of("layer.norm1.weight")
    assert plain.worst.text() == "u_fp32·(m + dp − 1)" and "tp" in more.contributions.names()
    sizes = {"dp": 64, "tp": 8, "m": 8}
    assert plain.expected(**sizes) < 1e-6 < 1e-3 < more.expected(**sizes)


RUNS = [(name, types, order, adds) for name, types, (order, adds) in product(
    ("dp", "zero3", "hsdp", "zero3*tp_sp"), (LOW, SUMMED, HALF), (("ring", ""), ("tree", ""), ("ring", "fp32")))]


@pytest.mark.parametrize(("name", "types", "order", "adds"), RUNS)
def test_what_is_measured_is_what_is_expected(name: str, types: dict[str, str], order: str, adds: str) -> None:
    step = step_of(name, types)
    for row in tolerance(step, order=order, adds=adds).rows:
        for (n, m), mean in product(((8, 4), (6, 5), (16, 16)), (0.0, 0.3, 2.0)):
            sizes = {a: n if k == 0 else 4 for k, a in enumerate(step.reference.mesh.names)} | {"m": m}
            kept = measure(step, row.groups[0], sizes, mean=mean, elements=400, order=order, adds=adds)
            expected = row.expected(kept.contribution, kept.whole, **sizes)
            assert kept.share <= row.bound(**sizes), "a bound is never exceeded"
            assert 0.8 < kept.relative / expected < 1.35, (sizes, mean)


@pytest.mark.parametrize("name", names())
def test_every_strategy_has_a_tolerance(name: str) -> None:
    strategy = pa.parse_strategy(name)
    model = "moe" if "ep" in strategy.mesh.names else "llama-3-8b" if name.endswith("_v") else "gpt"
    step = pa.derive(strategy, model)
    if name == "zeropp":
        with pytest.raises(InputError, match="1/2 bytes, and bytes name no type"):
            tolerance(step, half="bf16")
        return
    sizes = {**dict.fromkeys(step.reference.mesh.names, 4), "m": 4}
    for row in tolerance(step, half="bf16").rows:
        kept = measure(step, row.groups[0], sizes, half="bf16", elements=100)
        assert kept.share <= row.bound(**sizes)
        assert kept.relative < 1.5 * row.expected(kept.contribution, kept.whole, **sizes) or not kept.relative


def test_the_tolerance_of_other_types_is_not_that_of_the_run() -> None:
    """A check that fails: sums in bf16 beside the bound of sums in fp32, and the estimate of half of the ranks."""
    low, whole, sizes = step_of("zero3", LOW), row_of("zero3", WHOLE), {"dp": 8, "m": 4}
    kept = measure(low, "layer.weight", sizes)
    assert kept.share > whole.bound(**sizes) and kept.relative > 100 * whole.expected(**sizes)
    assert kept.relative > 1.3 * row_of("zero3", LOW).expected(dp=2, m=4)


def test_an_edit_that_casts_changes_the_formula() -> None:
    step = step_of("zero3", WHOLE)
    cast = edit(step, {"set": "backward.layer.weight.grad.reduce[dp]", "bytes": "bf16"})
    assert "bf16" not in tolerance(step).of("layer.weight").worst.text()
    assert tolerance(cast).of("layer.weight").worst.text() == "m·u_fp32 + u_bf16·dp − u_fp32"
    kept = measure(cast, "layer.weight", {"dp": 8, "m": 4})
    row = tolerance(cast).of("layer.weight")
    assert 0.8 < kept.relative / row.expected(kept.contribution, kept.whole, dp=8, m=4) < 1.3


@pytest.mark.parametrize(("dp", "types", "told"), [
    (8, LOW, True), (32, LOW, True), (512, LOW, False), (8, WHOLE, True), (32, WHOLE, True), (512, WHOLE, True)])
def test_a_lost_a_doubled_a_foreign_contribution(dp: int, types: dict[str, str], told: bool) -> None:
    """Of 512 in bf16 one that is lost is no larger than rounding: no threshold tells them apart."""
    row = row_of("zero3", types)
    values = np.random.default_rng(1).normal(size=(dp, 4000))
    whole = np.linalg.norm(values.sum(0))
    for wrong in (values[:-1].sum(0), values.sum(0) + values[0], values.sum(0) - values[0] + values[1]):
        difference = float(np.linalg.norm(wrong - values.sum(0)) / whole)
        assert row.explains(difference, dp=dp, m=1) != told


def test_the_estimate_fails_where_its_hypotheses_do() -> None:
    """Equal values are rounded alike, and few numbers in bf16 add up exactly in fp32: bounds hold, estimates do not."""
    step, sizes = step_of("zero3", HALF), {"dp": 8, "m": 8}
    alike = measure(step, "layer.weight", sizes, mean=1.0, deviation=0.0)
    row = tolerance(step).of("layer.weight")
    assert alike.relative == 0 < row.expected(alike.contribution, alike.whole, **sizes)
    exact = measure(step_of("zero3", WHOLE), "layer.weight", {"dp": 4, "m": 1})
    assert exact.relative < row_of("zero3", WHOLE).expected(dp=4, m=1) / 2


def test_bounds_count_all_orders_and_means_of_powers_of_two_are_exact() -> None:
    row = row_of("zero3", HALF)
    assert row.bound(dp=8, m=1) == pytest.approx((7 / 256) / (1 - 7 / 256))
    assert row.bound(dp=6, m=1) == pytest.approx((6 / 256) / (1 - 6 / 256)), "a division by 6 rounds"
    assert row.bound(dp=512, m=1) == float("inf") and row.expected(dp=1, m=1) == 0
    assert pytest.approx(0.18, abs=1e-3) == SPREAD and levels(("dp",)) == "levels_dp"


def test_the_spread_of_one_rounding() -> None:
    values = np.exp(np.random.default_rng(0).uniform(0, 20, 100_000))
    u = float(FORMATS["bf16"].roundoff)
    errors = (rounded(values, FORMATS["bf16"]) / values - 1) / u
    assert np.abs(errors).max() <= 1 and np.mean(errors**2) == pytest.approx(SPREAD, rel=0.02)


@pytest.mark.parametrize(("words", "says"), [
    ({}, "w of layer.weight has 2 bytes, and bytes name no type"), ({"half": "bf17"}, "did you mean 'bf16'"),
    ({"half": "bf16", "order": "rign"}, "did you mean 'ring'"),
    ({"half": "bf16", "adds": "fp23"}, "did you mean 'fp32'")])
def test_what_is_not_known_is_told(words: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        pa.tolerance("zero3", **words)


def test_python_has_it() -> None:
    found = pa.tolerance("zero3*tp_sp", "gpt", half="bf16")
    assert found.explains(1e-3, dp=8, tp=4, m=2) and not found.explains(0.3, dp=8, tp=4, m=2)
    assert found.bound(dp=8, tp=4, m=2) == max(r.bound(dp=8, tp=4, m=2) for r in found.rows)
    with pytest.raises(InputError, match=r"did you mean 'layer\.norm1\.weight'"):
        found.of("layer.norm1.wieght")
