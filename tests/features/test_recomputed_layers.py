"""Some layers are recomputed, and others are not: the first ones, or one of so many."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import compare
from conftest import ROOT
from random_dims import judged

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.cost.memory import memory
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

LAYER = {"region:layer": "M"}


def step_of(text: str, model: str = "gpt", modes: dict[str, str] | None = None, **layers: Any) -> Step:
    tables: dict[str, Any] = {"states": {"activations": LAYER if modes is None else modes}}
    if layers:
        tables["schedule"] = {"recompute_layers": layers}
    return derive(overlay(parse_strategy(text), tables), resolve_model(model))


def kept(step: Step, **sizes: int) -> Any:
    return memory(step).activations.value(b=1, s=8, **sizes)


def test_those_layers_alone_are_run_again() -> None:
    step = step_of("dp", first=2)
    again = [e.value for e in step.phase("backward") if e.rule and e.rule.name == "recompute"]
    assert again and all(name.startswith("again.layer.") for name in again)
    assert [e.path for e in step.events if e.verb == "free" and e.phase == "forward"] == ["forward.again.layer.free"]
    assert dict(step_of("dp", "llama-3-8b", every=3).reference.sizes).items() >= {"L_again": 10, "L_rest": 22}.items()


def test_what_is_kept_lies_between_all_and_none() -> None:
    sizes = {"dp": 1}
    none, half, every = (kept(step_of("dp", "llama-3-8b", modes, **said), **sizes) for modes, said in (
        ({"region:layer": "R"}, {}), (LAYER, {"every": 2}), (LAYER, {})))
    assert every < half < none and abs(2 * half - none - every) <= (none - every) / 16
    assert kept(step_of("dp", "llama-3-8b", first=32), **sizes) == every


@pytest.mark.some(3)
@pytest.mark.parametrize(("text", "model", "modes", "layers"), [
    ("dp", "gpt", LAYER, {"first": 2}), ("zero3*tp_sp", "gpt", {"region:mlp": "M"}, {"every": 2}),
    ("zero1*pp", "gpt", LAYER, {"every": 2}), ("dp*ep", "moe", {"region:moe": "M"}, {"first": 1}),
    ("dp*pp_zb_h1", "gpt", {"region:core": "M"}, {"every": 2})])
def test_a_derived_program_is_proved_and_right(text: str, model: str, modes: dict[str, str],
                                               layers: dict[str, int]) -> None:
    assert judged(step_of(text, model, modes, **layers)) == (PROVED, "")


@pytest.mark.parametrize("change", [
    {"drop": "backward.again.layer.mlp.gelu.compute"}, {"drop": "backward.again.layer.norm1.out.compute"},
    {"insert": {"path": "forward.layer.mlp.free"}, "before": "backward.loss.scale"}])
def test_what_is_dropped_and_not_run_again_is_missed(change: dict[str, Any]) -> None:
    found = compare(edit(step_of("dp", every=2), change))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")


@pytest.mark.parametrize(("model", "layers", "said"), [
    ("llama-3-8b", {"first": 33}, "llama-3-8b has 32 layers, of which these are 33"),
    ("llama-3-8b", {"every": 40}, "llama-3-8b has 32 layers, of which these are none"),
    ("llama-3-8b", {"every": 0}, "every is 0: expected a whole number of at least 1"),
    ("llama-3-8b", {"firts": 2}, "names 'firts'; did you mean 'first'"),
    ("llama-3-8b", {"first": 2, "every": 2}, "layers are chosen in one way"),
    ("deepseek-v3", {"first": 2}, "layers of deepseek-v3 are of several kinds, dense, layer")])
def test_bad_input(model: str, layers: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        step_of("dp", model, **layers)
    with pytest.raises(InputError, match=r"is .all.: expected a table, such as \{ first = 12 \} or \{"):
        overlay(parse_strategy("dp"), {"schedule": {"recompute_layers": "all"}})
    with pytest.raises(InputError, match="recompute_layers: no region is recomputed"):
        step_of("dp", "gpt", {}, first=2)


@pytest.mark.parametrize("file", ["proved/recomputed_layers", "refuted/recomputed_layers_as_others"])
def test_the_files_come_out_as_they_say(file: str) -> None:
    case = read_case(str(ROOT / "proofs" / f"{file}.toml"), None, [])
    assert case.expect and prove(case.step).verdict.lower() == case.expect.verdict
