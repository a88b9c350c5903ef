"""Scales of 8 bits on op graphs: each moved by the largest magnitude of its tensor, over all ranks that hold a part."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import changes, compare
from mutants import Mutant, axis_changes, deletions, doublings, swaps

from placealg.check.prove import prove
from placealg.cost.communication import communication
from placealg.cost.memory import memory
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

SCALE = "layer.mlp.up.scale"
REDUCE, ADD = f"reduce.{SCALE}.grad_sum.reduce[dp]", f"forward.{SCALE}.grad_sum.accumulate"


def step_of(name: str, model: str = "mlp", match: Any = "mlp.up", **tables: Any) -> Step:
    tables["optimizer"] = {"fp8_scales": match, **tables.get("optimizer", {})}
    return derive(overlay(parse_strategy(name), tables), resolve_model(model))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp", "zero2", "zero3*tp_sp", "hsdp", "zero1*pp", "zero1*cp_ring*tp", "zero1*zb",
                                  "zero3*tp_sp*recompute_full", "dp*offload_optimizer"])
@pytest.mark.parametrize("model", ["gpt", "moe"])
def test_a_derived_program_is_right(name: str, model: str) -> None:
    found = compare(step_of(name.replace("zb", "pp_zb_h1"), model, ["attn.*", "mlp.*"] if model == "gpt" else "attn.*"))
    assert (found.report.verdict, found.report.cls, found.complaint) == (PROVED, PARAMETRIC, "")


def test_a_derived_program_runs_as_one_device() -> None:
    step = step_of("zero3")
    assert prove(step).verdict == PROVED
    assert simulate(step, Setting.equal(step.reference, {"dp": 2}, 2, 1)).equal


@pytest.mark.parametrize(("name", "axes"), [
    ("dp", {"q": ("dp",), "out": ("dp",)}), ("dp*tp", {"q": ("dp",), "out": ("dp", "tp")}),
    ("dp*tp_sp", {"q": ("dp", "tp"), "out": ("dp", "tp")}), ("dp*cp", {"q": ("dp", "cp"), "out": ("dp", "cp")})])
def test_it_is_the_largest_over_all_ranks_that_hold_a_part(name: str, axes: dict[str, tuple[str, ...]]) -> None:
    """A plain tp splits what the output projection reads, and not what enters the layer; a tp_sp splits both."""
    reduced = {e.group.split(".")[-2]: (e.axes, e.op) for e in step_of(name, "gpt", "attn.*").phase("reduce")
               if e.group.endswith(".scale")}
    assert reduced == {op: (over, "max") for op, over in axes.items()}


def test_it_rests_whole_and_is_no_gradient() -> None:
    step = step_of("zero3", optimizer={"skip": "overflow"})
    assert SCALE not in {g.name for g in step.reference.trained}
    assert {e.verb for e in step.events if e.group == SCALE}.isdisjoint({"norm", "clip", "gather", "slice"})


@pytest.mark.parametrize(("change", "refuted"), [
    ({"drop": REDUCE}, "gradient"),
    pytest.param({"set": REDUCE, "op": "sum"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"set": REDUCE, "op": "mean"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"set": ADD, "op": "sum"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"set": ADD, "verb": "assign", "op": "none"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"set": f"forward.{SCALE}.grad.compute", "divisor": "m"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"move": REDUCE, "after": f"update.{SCALE}.update"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"drop": f"prepare.{SCALE}.grad_sum.zero"}, "gradient", marks=pytest.mark.slow),
    pytest.param({"drop": f"publish.{SCALE}.publish"}, "invariant", marks=pytest.mark.slow),
    pytest.param({"set": f"update.{SCALE}.update", "where": "not rank(dp)=1"}, "invariant", marks=pytest.mark.slow),
    pytest.param({"drop": f"resume.{SCALE}.load"}, "init", marks=pytest.mark.slow),
])
def test_what_lets_the_scales_part_is_refuted(change: dict[str, str], refuted: str) -> None:
    report = prove(edit(step_of("dp"), change))
    assert refuted in report.refuted()
    assert {v.group for v in report.obligations if v.verdict == REFUTED} == {SCALE}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "axes"), [("hsdp", ["dp_shard"]), ("dp*tp_sp", ["dp"])])
def test_a_maximum_over_some_axes_alone_is_refuted(name: str, axes: list[str]) -> None:
    step = step_of(name, "gpt", "attn.q")
    path = next(e.path for e in step.phase("reduce") if e.group == "layer.attn.q.scale")
    found = compare(edit(step, {"set": path, "axes": axes}))
    assert (found.report.refuted()[0], found.complaint) == ("gradient", "")


def test_the_largest_of_the_largest_is_the_largest() -> None:
    assert prove(edit(step_of("dp"), {"double": REDUCE}, {"double": ADD})).verdict == PROVED


def about(mutant: Mutant) -> bool:
    """Whether a change is about the scale, or what it is taken of."""
    return SCALE in mutant.story or "mlp.up.amax" in mutant.story or "mlp.up.cast" in mutant.story


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp", "zero2", "hsdp"])
def test_both_engines_agree_on_every_single_change(name: str) -> None:
    found = changes(step_of(name), about, deletions, doublings, axis_changes, swaps)
    assert len(found) > 15
    assert {story: f.complaint for story, f in found.items() if f.complaint} == {}


def test_a_history_is_kept_and_one_number_of_each_tensor_crosses() -> None:
    sizes = {"dp": 4, "h": 16, "f": 64, "L": 3, "V": 32, "m": 1, "b": 2, "w": 2, "g": 2, "o": 12, "wire": 2, "act": 2}

    def value(formula: Any) -> Any:
        return formula.value(**{n: v for n, v in sizes.items() if n in formula.inputs})

    plain = derive(parse_strategy("dp"), resolve_model("mlp"))
    step = step_of("dp", optimizer={"fp8_history": 16})
    assert value(memory(step).optimizer) - value(memory(plain).optimizer) == 3 * 4 * 16
    assert value(memory(step).parameters) - value(memory(plain).parameters) == 3 * 4
    assert value(communication(step).total) - value(communication(plain).total) == 3 * 2 * 4 * (4 - 1) / 4


def test_what_is_cast_is_kept_once_in_its_own_bytes() -> None:
    """Queries, keys and values read one cast: 1 byte of each element in place of 2 is kept for their backward."""
    sizes = {"dp": 1, "m": 1, "b": 1, "s": 8, "h": 16, "a": 2, "f": 64, "L": 1, "V": 32, "act": 2}
    found = []
    for match in ("attn.q", ["attn.q", "attn.k", "attn.v"]):
        step = step_of("dp", "gpt", match, types={"act_linear": 1})
        held = memory(step).activations
        found.append(held.value(**{n: v for n, v in sizes.items() if n in held.inputs}))
    assert found[0] - found[1] == 8 * 16


@pytest.mark.parametrize(("optimizer", "model", "told"), [
    ({"fp8_scales": "attn.*"}, "abstract", "abstract says nothing about the ops inside its units: say --model gpt"),
    ({"fp8_scales": "attn.quer"}, "gpt", "fp8_scales = 'attn.quer' matches no linear op of gpt; did you mean"),
    ({"fp8_scales": 3}, "gpt", "fp8_scales is 3: expected"),
    ({"fp8_scales": "attn.q", "fp8_history": 0}, "gpt", "fp8_history is 0: expected a whole number of at least 1"),
    ({"fp8_history": 4}, "gpt", "fp8_history: fp8_scales names no linear op"),
    ({"fp8_scale": "attn.q"}, "gpt", r"unknown key 'fp8_scale' in \[optimizer\]; did you mean 'fp8_scales'"),
])
def test_what_means_nothing_is_refused(optimizer: dict[str, Any], model: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        derive(overlay(parse_strategy("dp"), {"optimizer": optimizer}), resolve_model(model))
