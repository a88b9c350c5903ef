"""Largest magnitudes of fp8 scales: a statistic that ranks merge by its maximum. What is proved, runs confirm."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import changes, compare
from mutants import Mutant, axis_changes, deletions, doublings, swaps

from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.abstract import amax
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

REDUCE = "reduce.layer.amax.grad_sum.reduce[dp]"
ADD = "backward.layer.amax.grad_sum.accumulate"


def step_of(name: str, **tables: Any) -> Step:
    return derive(overlay(parse_strategy(name), tables), amax())


@pytest.mark.slow
@pytest.mark.parametrize("tables", [{}, {"loss": {"preset": "token_mean"}}, {"loss": {"preset": "sum"}}])
@pytest.mark.parametrize("name", ["dp", "zero1", "zero2", "zero3", "hsdp", "zero2*offload_optimizer"])
def test_a_derived_program_is_right(name: str, tables: dict[str, Any]) -> None:
    found = compare(step_of(name, **tables))
    assert (found.report.verdict, found.report.cls, found.complaint) == (PROVED, PARAMETRIC, "")


def test_a_derived_program_runs_as_one_device() -> None:
    step = step_of("zero3")
    assert prove(step).verdict == PROVED
    assert simulate(step, Setting.equal(step.reference, {"dp": 2}, 2, 1)).equal
    assert {e.op for e in step.events if e.group == "layer.amax" and e.verb in ("reduce", "accumulate")} == {"max"}


@pytest.mark.parametrize(("change", "refuted"), [
    ({"drop": REDUCE}, "gradient"),
    ({"set": REDUCE, "op": "sum"}, "gradient"),
    ({"set": REDUCE, "op": "mean"}, "gradient"),
    ({"set": ADD, "op": "sum"}, "gradient"),
    pytest.param({"set": ADD, "verb": "assign", "op": "none"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"set": "forward.layer.amax.grad.compute", "divisor": "m"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"move": REDUCE, "after": "update.layer.amax.update"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"drop": "publish.layer.amax.publish"}, "invariant", marks=pytest.mark.slow),
])
def test_what_is_no_largest_is_refuted(change: dict[str, str], refuted: str) -> None:
    report = prove(edit(step_of("dp"), change))
    assert (report.verdict, report.refuted()[0]) == (REFUTED, refuted)
    assert {v.group for v in report.obligations if v.verdict == REFUTED} == {"layer.amax"}


@pytest.mark.parametrize("change", [
    {"double": REDUCE}, {"double": ADD},
    {"insert": {"verb": "reduce", "value": "grad_sum", "group": "layer.amax", "axes": ["dp"], "op": "mean"},
     "after": REDUCE},
])
def test_the_largest_of_the_largest_is_the_largest(change: dict[str, Any]) -> None:
    assert prove(edit(step_of("dp"), change)).verdict == PROVED


def about(mutant: Mutant) -> bool:
    """Whether a change is about the statistic."""
    return "layer.amax" in mutant.story


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp", "zero2", "hsdp"])
def test_both_engines_agree_on_every_single_change(name: str) -> None:
    found = changes(step_of(name), about, deletions, doublings, axis_changes, swaps)
    assert len(found) > 15
    assert {story: f.complaint for story, f in found.items() if f.complaint} == {}


def test_a_maximum_is_for_what_is_one() -> None:
    step = step_of("dp")
    with pytest.raises(InputError, match="op = 'max' is for flags and for statistics that are one"):
        edit(step, set="reduce.layer.weight.grad_sum.reduce[dp]", op="max")
    with pytest.raises(InputError, match="op = 'mean'"):
        edit(step, set=ADD, op="mean")
