"""A loss scale that overflow moves: a state of the whole step, which multiplies losses and divides gradients."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import changes, compare
from mutants import Mutant, deletions, doublings, swaps

from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

SCALED = {"loss": {"scale": "dynamic"}, "optimizer": {"skip": "overflow"}}
UNSCALE = "update.layer.weight.grad_sum.scale"
SCALE = "backward.loss.scale#2"


def step_of(name: str, model: str = "abstract", **tables: Any) -> Step:
    return derive(overlay(parse_strategy(name), {**SCALED, **tables}), resolve_model(model))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), [
    ("dp", "abstract"), ("zero1", "abstract"), ("zero2", "abstract"), ("zero3", "abstract"), ("hsdp", "abstract"),
    ("zero2*offload_optimizer", "abstract"), ("zero3*tp_sp", "gpt"), ("zero1*pp", "gpt"), ("zero1*ep", "balanced")])
def test_a_derived_program_is_right(name: str, model: str) -> None:
    found = compare(step_of(name, model))
    assert (found.report.verdict, found.report.cls, found.complaint) == (PROVED, PARAMETRIC, "")


def test_a_derived_program_runs_as_one_device() -> None:
    step = step_of("zero3")
    assert simulate(step, Setting.equal(step.reference, {"dp": 2}, 2, 1)).equal
    assert prove(step).verdict == PROVED


def test_it_is_divided_out_before_anything_looks_at_a_gradient() -> None:
    step = step_of("zero1")
    order = [e.path for e in step.events]
    assert order.index(UNSCALE) < order.index("update.layer.weight.skip.compute")
    assert [str(e.divisor) for e in step.events if "loss_scale" in e.divisor.names()] == ["1/loss_scale", "loss_scale"]


@pytest.mark.parametrize(("change", "refuted"), [
    ({"drop": UNSCALE}, "gradient"),
    ({"drop": SCALE}, "gradient"),
    ({"drop": "update.skip.all_reduce[dp]"}, "update"),
    ({"drop": "update.loss_scale.update"}, "invariant"),
    pytest.param({"double": "update.loss_scale.update"}, "invariant", marks=pytest.mark.slow),
    pytest.param({"set": "update.loss_scale.update", "where": "rank(dp)=0"}, "invariant", marks=pytest.mark.slow),
    pytest.param({"drop": "init.loss_scale.assign"}, "init", marks=pytest.mark.slow),
    pytest.param({"drop": "resume.loss_scale.load"}, "init", marks=pytest.mark.slow),
    pytest.param({"move": "update.loss_scale.update", "before": UNSCALE}, "update", marks=pytest.mark.slow),
    pytest.param({"move": UNSCALE, "after": "update.layer.weight.skip.compute"}, "gradient", marks=pytest.mark.slow),
])
def test_what_is_not_the_same_on_all_ranks_is_refuted(change: dict[str, str], refuted: str) -> None:
    report = prove(edit(step_of("zero1"), change))
    assert report.verdict == REFUTED and refuted in report.refuted()


def test_a_gradient_that_is_still_scaled_says_by_what() -> None:
    report = prove(edit(step_of("dp"), drop=UNSCALE))
    assert report.counterexample and report.counterexample.mass == "loss_scale"


def about(mutant: Mutant) -> bool:
    """Whether a change is about the scale, or the flag that moves it."""
    return any(word in mutant.story for word in ("loss_scale", "skip", ".scale"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp", "zero1", "zero2*offload_optimizer"])
def test_both_engines_agree_on_every_single_change(name: str) -> None:
    found = changes(step_of(name), about, deletions, doublings, swaps)
    assert len(found) > 10
    assert {story: f.complaint for story, f in found.items() if f.complaint} == {}


def test_a_scale_that_nothing_moves_is_refused() -> None:
    with pytest.raises(InputError, match="at which nobody looks"):
        derive(overlay(parse_strategy("dp"), {"loss": {"scale": "dynamic"}}), resolve_model("abstract"))
    with pytest.raises(InputError, match="nothing scales the loss"):
        edit(derive(parse_strategy("dp"), resolve_model("abstract")), set="backward.loss.scale", divisor="loss_scale")
    with pytest.raises(InputError, match="dynamic"):
        overlay(parse_strategy("dp"), {"loss": {"scale": "dynamical"}})
