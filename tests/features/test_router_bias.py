"""Biases of routers that the load of their experts moves: a statistic of op graphs, summed over all that see tokens."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import changes, compare
from mutants import Mutant, axis_changes, deletions, doublings, swaps

from placealg.check.prove import prove
from placealg.cost.communication import communication
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

BIAS = "layer.router.choice_bias"
TAKE, ADD = f"forward.{BIAS}.grad.compute", f"forward.{BIAS}.grad_sum.accumulate"


def step_of(name: str, model: str = "moe", **tables: Any) -> Step:
    tables["optimizer"] = {"router_bias": True, **tables.get("optimizer", {})}
    return derive(overlay(parse_strategy(name), tables), resolve_model(model))


def of_bias(step: Step) -> list[str]:
    """The obligations that fail for the bias alone."""
    report = prove(step)
    assert {v.group for v in report.obligations if v.verdict == REFUTED} <= {BIAS}
    return list(report.refuted())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp", "zero1", "zero3*tp_sp", "zero2*ep", "zero1*pp", "zero1*cp_ring*ep", "hsdp",
                                  "zero3*tp_sp*recompute_full"])
def test_a_derived_program_is_right(name: str) -> None:
    found = compare(step_of(name))
    assert (found.report.verdict, found.report.cls, found.complaint) == (PROVED, PARAMETRIC, "")


def test_a_derived_program_runs_as_one_device() -> None:
    step = step_of("zero1*ep")
    assert simulate(step, Setting.equal(step.reference, {"dp": 2, "ep": 1}, 2, 1)).equal


def test_the_load_is_summed_where_other_tokens_are_seen() -> None:
    """tp_sp splits the sequence of what enters the router, a plain tp does not."""
    for name, axes in (("dp", ("dp",)), ("zero1*ep", ("dp", "ep")), ("zero1*tp", ("dp",)), ("dp*tp_sp", ("dp", "tp")),
                       ("dp*cp", ("dp", "cp"))):
        reduced = [e for e in step_of(name).phase("reduce") if e.group == BIAS]
        assert [(e.axes, e.op) for e in reduced] == [(axes, "sum")], name


def test_it_rests_whole_and_is_no_gradient() -> None:
    step = step_of("zero3", optimizer={"skip": "overflow"})
    assert BIAS not in {g.name for g in step.reference.trained}
    events = {e.verb for e in step.events if e.group == BIAS}
    assert events.isdisjoint({"norm", "clip", "gather", "slice"}) and not [
        e for e in step.events if e.group == BIAS and e.value == "skip"]


@pytest.mark.parametrize(("change", "refuted"), [
    ({"drop": f"reduce.{BIAS}.grad_sum.reduce[dp]"}, "gradient"),
    pytest.param({"set": f"reduce.{BIAS}.grad_sum.reduce[dp]", "op": "mean"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"set": ADD, "verb": "assign"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"double": ADD}, "gradient", marks=pytest.mark.slow),
    pytest.param({"set": TAKE, "divisor": "tokens"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"drop": f"prepare.{BIAS}.grad_sum.zero"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"move": f"reduce.{BIAS}.grad_sum.reduce[dp]", "after": f"update.{BIAS}.update"}, "gradient",
                 marks=pytest.mark.slow),
    pytest.param({"drop": f"publish.{BIAS}.publish"}, "invariant", marks=pytest.mark.slow),
    pytest.param({"drop": f"resume.{BIAS}.load"}, "init", marks=pytest.mark.slow),
    pytest.param({"set": f"update.{BIAS}.update", "where": "rank(dp)=0"}, "invariant", marks=pytest.mark.slow),
])
def test_what_desynchronises_it_is_refuted(change: dict[str, str], refuted: str) -> None:
    found = of_bias(edit(step_of("dp"), change))
    assert refuted in found


@pytest.mark.slow
def test_a_sum_over_replicas_alone_is_refuted() -> None:
    step = step_of("hsdp")
    path = next(e.path for e in step.phase("reduce") if e.group == BIAS)
    assert "gradient" in of_bias(edit(step, set=path, axes=["dp_shard"]))


def about(mutant: Mutant) -> bool:
    """Whether a change is about the bias."""
    return BIAS in mutant.story or "expert_load" in mutant.story


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp", "zero1*ep", "dp*tp_sp"])
def test_both_engines_agree_on_every_single_change(name: str) -> None:
    found = changes(step_of(name), about, deletions, doublings, axis_changes, swaps)
    assert len(found) > 15
    assert {story: f.complaint for story, f in found.items() if f.complaint} == {}


def test_its_traffic_is_counted() -> None:
    """4 bytes for each expert of each layer, in an all_reduce over dp once per step; Psi counts them with 1 here."""
    with_it, without = (communication(derive(overlay(parse_strategy("dp"), {"optimizer": {"router_bias": on}}),
                                             resolve_model("moe"))).total for on in (True, False))
    found = (with_it - without).value(**{**dict.fromkeys(with_it.inputs, 1), "dp": 4, "L": 3, "experts": 8})
    assert found == 3 * 8 * (4 - 1) * 2 * 3 // 4


@pytest.mark.parametrize(("tables", "model", "told"), [
    ({}, "gpt", "router_bias: gpt has no router"), ({}, "abstract", "router_bias: abstract has no router"),
    ({"optimizer": {"router_bias": "yes"}}, "moe", "router_bias is 'yes': expected true or false"),
])
def test_what_means_nothing_is_refused(tables: dict[str, Any], model: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        step_of("dp", model, **tables)
