"""A part of the optimizer state on the host: that of parameters which a group names, or of a share of the layers."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import compare
from conftest import ROOT

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.cost.communication import communication
from placealg.cost.memory import memory
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.transformer import mlp
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

BIASES = {"match": "*.bias", "optimizer": {"dp": "S+O"}}
SIZES = {"dp": 2, "h": 16, "f": 64, "L": 4, "V": 32, "m": 1, "w": 2, "g": 2, "o": 12, "wire": 2}


def step_of(**groups: Any) -> Step:
    return derive(overlay(parse_strategy("zero1"), {"groups": groups}), mlp())


def value(formula: Any) -> Any:
    return formula.value(**{n: v for n, v in SIZES.items() if n in formula.inputs})


def test_each_part_counts_where_it_rests() -> None:
    none, part, every = (step_of(), step_of(away=BIASES), step_of(away={**BIASES, "match": "*"}))
    moved = [value(memory(none).optimizer) - value(memory(step).optimizer) for step in (none, part, every)]
    assert 0 == moved[0] < moved[1] < moved[2] == value(memory(none).optimizer)
    host = [value(memory(step).host) for step in (none, part, every)]
    assert host == [m * (2 + 12) / 12 for m in moved]       # the gradient lies beside the state until its update
    links = [value(communication(step).host_link) for step in (none, part, every)]
    assert links == [m * (2 + 2) / 12 for m in moved]       # a gradient goes there, a weight comes back


def test_it_is_proved_and_what_does_not_come_back_is_missed() -> None:
    step = step_of(away=BIASES)
    assert compare(step).holds and prove(step).verdict == PROVED
    fetched = next(e.path for e in step.events if e.verb == "fetch")
    found = compare(edit(step, {"drop": fetched}))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")


def shared(text: str, share: Any, model: str = "mlp", **tables: Any) -> Step:
    tables["optimizer"] = {"offload_share": share, **tables.get("optimizer", {})}
    return derive(overlay(parse_strategy(text), tables), resolve_model(model))


def test_a_share_of_the_layers_counts_where_it_rests() -> None:
    """Of 32 layers of Llama-3-8B 8 are on the host, with embedding and head on the device."""
    none, quarter, every = (derive(parse_strategy("zero3"), resolve_model("llama-3-8b")),
                            shared("zero3", 0.25, "llama-3-8b"),
                            derive(parse_strategy("zero3*offload_optimizer"), resolve_model("llama-3-8b")))
    layer = 218_112_000
    held = [memory(step).optimizer.value(dp=8) for step in (none, quarter, every)]
    assert held[0] - held[1] == 12 * 8 * layer / 8 and held[2] == 0
    assert memory(quarter).host.value(dp=8) == (2 + 12) * 8 * layer / 8
    assert dict(shared("zero3", "1/3", "llama-3-8b").reference.sizes).items() >= {"L_away": 10, "L_rest": 22}.items()


def test_a_share_is_updated_where_it_rests() -> None:
    step = shared("zero1", "1/2", optimizer={"tier": "nvme"})
    assert {e.group: e.tier for e in step.phase("update") if e.verb == "update" and e.group} == {
        "away.weight": "host", "layer.weight": "device", "head.weight": "device"}
    assert any("nvme" in e.tier for e in step.events if e.group == "away.weight") and prove(step).verdict == PROVED
    near = shared("zero1", "1/2")
    assert prove(edit(near, drop="publish.away.weight.master.fetch")).refuted()[0] == "invariant"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["dp", "zero1", "zero2", "zero3*tp_sp", "hsdp", "zero1*pp", "zero3*offload_optimizer"])
def test_a_share_is_proved_and_runs_as_one_device(text: str) -> None:
    found = compare(shared(text, "1/4", "gpt"))
    assert (found.report.verdict, found.complaint) == (PROVED, "")


@pytest.mark.parametrize(("share", "model", "more", "told"), [
    (1, "gpt", {}, "offload_share is 1: expected a number between 0 and 1"),
    ("a half", "gpt", {}, "offload_share is 'a half': expected a number between 0 and 1"),
    (True, "gpt", {}, "offload_share is true: expected"), (0.5, "abstract", {}, "offload_share: abstract says nothing"),
    ("1/99", "llama-3-8b", {}, "llama-3-8b has 32 layers, of which these are none"),
    (0.5, "deepseek-v3", {}, "layers of deepseek-v3 are of several kinds"),
    (0.5, "gpt", {"states": {"activations": {"region:layer": "M"}}, "schedule": {"recompute_layers": {"first": 2}}},
     "offload_share and .schedule. recompute_layers choose layers"),
    (0.5, "gpt", {"checkpoint": {"by": "one"}},
     "by is 'one', and the optimizer states of a share of the layers do not rest on the device: every rank stores its"),
    (0.5, "gpt", {"checkpoint": {"by": "replica"}}, "by is 'replica', and the optimizer states of a share"),
])
def test_a_share_that_means_nothing_is_refused(share: Any, model: str, more: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        shared("zero1", share, model, **more)


@pytest.mark.parametrize("file", ["proved/optimizer_partly_on_the_host", "proved/optimizer_share_on_the_host",
                                  "refuted/optimizer_share_not_fetched", "refuted/optimizer_part_not_fetched"])
def test_the_files_come_out_as_they_say(file: str) -> None:
    case = read_case(str(ROOT / "proofs" / f"{file}.toml"), None, [])
    assert case.expect and prove(case.step).verdict.lower() == case.expect.verdict
