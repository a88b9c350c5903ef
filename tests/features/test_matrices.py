"""What a matrix is: an expert's is one of a stack, a bias is none; Muon reads each whole, and no more."""

from __future__ import annotations

import pytest
from conftest import ROOT

from placealg.check.prove import prove
from placealg.cli.inputs import read_case
from placealg.model.config import resolve_model
from placealg.prover.verdict import PROVED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay


def muon(base: str, model: str) -> Step:
    return derive(overlay(parse_strategy(base), {"optimizer": {"name": "muon"}}), resolve_model(model))


def test_a_bias_is_no_matrix_and_an_expert_s_weight_is_one_of_a_stack() -> None:
    matrices = {p.name: p.matrix for model in ("gpt", "moe") for p in resolve_model(model).parameters}
    assert matrices["layer.attn.q.bias"] == matrices["layer.norm1.weight"] == ()
    assert set(matrices["layer.attn.q.weight"]) == {"embed", "kv", "group", "head_dim"}
    assert matrices["layer.expert.up.weight"] == ("embed", "ffn")
    assert {g.optimizer for g in muon("dp", "gpt").reference.groups if "bias" in g.name} == {"adamw"}


def test_nothing_is_gathered_along_an_axis_that_splits_a_stack() -> None:
    step = muon("zero1*ep", "moe")
    assert {a for e in step.phase("update") if e.verb == "all_gather" for a in e.axes} == {"dp"}
    assert prove(step).verdict == PROVED
    assert simulate(step, Setting.equal(step.reference, {"dp": 2, "ep": 2}, 1)).equal


def test_a_matrix_that_is_split_is_gathered_and_must_be() -> None:
    step = muon("dp*tp", "gpt")
    assert {a for e in step.phase("update") if e.verb == "all_gather" for a in e.axes} == {"tp"}
    broken = edit(step, {"drop": "update.layer.weight.*.all_gather[tp]"})
    assert not simulate(broken, Setting.equal(step.reference, {"dp": 1, "tp": 2}, 1)).equal


@pytest.mark.parametrize("file", ["proved/muon_experts_apart", "refuted/muon_shards_orthogonalised"])
def test_the_files_come_out_as_they_say(file: str) -> None:
    case = read_case(str(ROOT / "proofs" / f"{file}.toml"), None, [])
    assert case.expect and prove(case.step).verdict.lower() == case.expect.verdict
