"""What a matrix is: an expert's is one of a stack, a bias is none; Muon reads each whole, and no more."""

from __future__ import annotations

import pytest
from conftest import ROOT

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.config import resolve_model
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


HEADS = {"match": "attn.[qkv].weight", "matrix": ["embed", "head_dim"]}


def declared(base: str, model: str, name: str, **groups: dict[str, object]) -> Step:
    return derive(overlay(parse_strategy(base), {"optimizer": {"name": name}, "groups": groups}), resolve_model(model))


def test_no_expert_is_gathered_for_muon_on_a_published_model() -> None:
    step = muon("dp*ep", "qwen3-30b-a3b")
    assert not [e.path for e in step.phase("update") if e.verb == "all_gather"]
    assert prove(step).verdict == PROVED


@pytest.mark.parametrize(("name", "base", "model", "groups", "over"), [
    ("muon", "zero1*tp", "gpt", {"heads": HEADS}, {"attn.q": {"dp"}, "attn.k": {"dp"}, "mlp": set()}),
    ("muon", "dp*tp", "gpt", {"none": {"match": "mlp.*.weight", "matrix": []}}, {"mlp": set(), "attn.q": {"tp"}}),
    ("lamb", "zero1*ep", "moe", {"e": {"match": "expert.*", "matrix": ["embed", "ffn"]}}, {"expert": {"dp"}})])
def test_what_a_matrix_is_may_be_declared(name: str, base: str, model: str, groups: dict[str, dict[str, object]],
                                          over: dict[str, set[str]]) -> None:
    step = declared(base, model, name, **groups)
    for part, axes in over.items():
        members = {g.name for g in step.reference.groups if any(f".{part}." in p for p in g.parameters[:1])}
        found = {a for e in step.phase("update") if e.verb == "all_gather" and e.group in members for a in e.axes}
        assert found == axes and (members or not axes)
    assert prove(step).verdict == PROVED
    assert simulate(step, Setting.equal(step.reference, dict.fromkeys(step.reference.mesh.names, 2), 1)).equal


@pytest.mark.parametrize(("name", "model", "group", "said"), [
    ("muon", "moe", {"matrix": ["embed", "fnn"]}, "'fnn', which 'layer.expert.gate.weight' lacks; did you mean 'ffn'"),
    ("muon", "moe", {"matrix": ["embed"]}, r"matrix names 'embed' alone: a matrix has two dims at least"),
    ("muon", "moe", {"matrix": ["embed", "embed"]}, r"matrix names 'embed' twice"),
    ("muon", "moe", {"matrix": [""]}, "a dim is a non-empty string"),
    ("muon", "moe", {"matrix": 3}, "matrix is 3: expected a list of strings"),
    ("muon", "moe", {"matrix": ["embed", "ffn"], "frozen": True}, "are frozen, and nothing updates them"),
    ("lamb", "moe", {"matrix": []}, "lamb updates every parameter alike, matrix or not"),
    ("adamw", "moe", {"matrix": ["embed", "ffn"]}, "adamw updates every element by itself; .* valid: muon, adafactor"),
    ("muon", "abstract", {"match": "*", "matrix": ["embed", "ffn"]}, "abstract says nothing about the ops inside")])
def test_a_matrix_that_means_nothing_is_refused(name: str, model: str, group: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        declared("dp", model, name, e={"match": "expert.*", **group})


@pytest.mark.parametrize("file", ["proved/muon_experts_apart", "refuted/muon_shards_orthogonalised",
                                  "proved/muon_each_head", "refuted/muon_half_heads"])
def test_the_files_come_out_as_they_say(file: str) -> None:
    case = read_case(str(ROOT / "proofs" / f"{file}.toml"), None, [])
    assert case.expect and prove(case.step).verdict.lower() == case.expect.verdict
