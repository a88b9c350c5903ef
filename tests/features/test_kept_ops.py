"""Ops of a recomputed region that are held all the same: what backward runs again, holds, proves and counts."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import compare
from conftest import ROOT
from random_dims import judged

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.cost.regions import kept_for_backward
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.step.recompute import POLICIES
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

PRODUCTS = ["attn.q", "attn.k", "attn.v", "mixed", "attn.out", "mlp.up"]


def step_of(text: str, model: str = "gpt", region: str = "layer", **schedule: Any) -> Step:
    tables = {"states": {"activations": {f"region:{region}": "M"}}, "schedule": schedule}
    return derive(overlay(parse_strategy(text), tables), resolve_model(model))


def again(step: Step) -> list[str]:
    return [e.value for e in step.phase("backward") if e.rule and e.rule.name == "recompute" and e.verb == "compute"]


def test_what_is_kept_is_not_run_again_and_the_rest_is() -> None:
    whole, kept = again(step_of("dp")), again(step_of("dp", keep=PRODUCTS))
    assert set(whole) - set(kept) == {f"layer.{n.replace('mixed', 'attn.core.mixed')}" for n in PRODUCTS}
    assert again(step_of("dp", recompute=["*norm*", "gelu"])) == [
        "layer.norm1.out", "layer.norm2.out", "layer.mlp.gelu"]
    assert "layer.norm1.out" in again(step_of("dp", keep=["attn.q"], replay="by_dependency"))


@pytest.mark.some(5)
@pytest.mark.parametrize("replay", POLICIES)
@pytest.mark.parametrize(("text", "model", "region", "schedule"), [
    ("dp", "gpt", "layer", {"keep": PRODUCTS}), ("zero3*tp_sp", "gpt", "layer", {"keep": ["attn.q", "mlp.up"]}),
    ("dp*tp_sp", "gpt", "layer", {"recompute": ["*norm*", "gelu", "*dropped"]}),
    ("dp*tp", "gpt", "attn", {"keep": ["core.*"]}), ("dp*ep", "moe", "moe", {"keep": ["expert.up", "router.*"]}),
    ("zero1*cp_ring", "gpt", "layer", {"keep": ["mixed"]}), ("dp*pp_zb_h1", "gpt", "mlp", {"keep": ["mlp.up"]}),
    ("zero3*ep", "moe", "layer", {"recompute": ["*norm*", "silu", "*product"]})])
def test_a_derived_program_is_proved_and_right(text: str, model: str, region: str, schedule: dict[str, Any],
                                               replay: str) -> None:
    assert judged(step_of(text, model, region, replay=replay, **schedule)) == (PROVED, "")


def test_what_is_held_is_the_region_s_input_and_what_is_kept() -> None:
    def held(**schedule: Any) -> set[str]:
        return {k.tensor for k in kept_for_backward(step_of("dp", "llama-3-8b", **schedule)) if "layer" in k.tensor}

    assert held(keep=["attn.q", "mlp.up"]) - held() == {"layer.attn.q", "layer.mlp.up"}
    assert held() <= held(keep=["attn.q", "mlp.up"])


@pytest.mark.parametrize("change", [
    {"set": "forward.layer.free", "reads": []}, {"set": "forward.layer.free", "reads": ["layer.attn.q"]},
    {"drop": "backward.layer.norm2.out.compute"}, {"drop": "backward.layer.norm1.out.compute"}])
def test_what_is_neither_held_nor_run_again_is_missed(change: dict[str, Any]) -> None:
    found = compare(edit(step_of("dp", keep=["attn.q", "mlp.up"], replay="by_dependency"), change))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")


def test_bad_input() -> None:
    for schedule, said in (({"keep": ["attn.qq"]}, "keep = 'attn.qq. matches no op of a region that is M; did"),
                           ({"keep": ["attn.q"], "recompute": ["attn.k"]}, "keep and recompute both choose"),
                           ({"recompute": [3]}, "recompute is .3.: expected a list of strings"),
                           ({"keep": ["embedding.tokens"]}, "matches no op of a region that is M")):
        with pytest.raises(InputError, match=said):
            step_of("dp", **schedule)
    with pytest.raises(InputError, match="region 'loss' is the sum of the loss alone"):
        step_of("dp", "mlp", "loss")
    with pytest.raises(InputError, match="keep: no region is recomputed, so that everything is kept"):
        derive(overlay(parse_strategy("dp*tp"), {"schedule": {"keep": "attn.q"}}), resolve_model("gpt"))
    with pytest.raises(InputError, match=r"reads names head\.logits: what a region keeps is made by an op of it"):
        edit(step_of("dp"), {"set": "forward.layer.free", "reads": ["head.logits"]})


@pytest.mark.parametrize("file", ["proved/kept_products", "refuted/kept_product_lost"])
def test_the_files_come_out_as_they_say(file: str) -> None:
    case = read_case(str(ROOT / "proofs" / f"{file}.toml"), None, [])
    assert case.expect and prove(case.step).verdict.lower() == case.expect.verdict
