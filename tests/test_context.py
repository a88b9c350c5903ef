"""Context parallelism follows from lists of dims: what is sent, what is proved, what runs."""

from __future__ import annotations

import pytest

from placealg.cost.communication import communication
from placealg.cost.formula import Formula
from placealg.model.config import resolve_model
from placealg.model.transformer import GPT, Style, gpt
from placealg.prove.prover import examine
from placealg.prove.verdict import PARAMETRIC, PROVED
from placealg.simulate import Setting, simulate
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

GROUPED = Style(grouped=True)


def sent(step: Step, phase: str) -> Formula:
    """What the tensors of one layer send in a phase, in elements, for one microbatch."""
    rows = [e.formula for e in communication(step, unit="elements").events
            if e.path.startswith(f"{phase}.layer.") and step.event(e.path).tensor.startswith("layer.")]
    return sum(rows, Formula.parse("0", "elements")) * 1


def of(text: str) -> Formula:
    return Formula.parse(f"m*L*({text})", "elements")


def test_ulysses_exchanges_four_tensors_in_a_layer() -> None:
    step = derive(parse_strategy("cp_ulysses"), gpt(GPT))
    assert sent(step, "forward") == sent(step, "backward") == of("4*b*s*h*(cp - 1)/cp**2")
    assert {e.verb for e in step.events if e.tensor.startswith("layer.") and e.axes} == {"all_to_all"}


def test_grouped_keys_and_values_are_exchanged_once_for_each_kv_head() -> None:
    grouped = derive(parse_strategy("cp_ulysses"), resolve_model("llama-3-70b"))
    assert sent(grouped, "forward") == of("(2*b*s*h + 2*b*s*h*kv/a)*(cp - 1)/cp**2")


def test_gathering_sends_keys_and_values_of_whole_sequences() -> None:
    step = derive(parse_strategy("cp"), resolve_model("llama-3-70b"))
    assert sent(step, "forward") == sent(step, "backward") == of("2*b*s*h*kv/a*(cp - 1)/cp")
    assert {e.verb for e in step.phase("backward") if e.tensor.startswith("layer.") and e.axes} == {"reduce_scatter"}


@pytest.mark.parametrize("strategy", ["dp*cp", "zero3*cp_ulysses", "cp*tp_sp", "hsdp*cp*tp", "zero1*cp_ulysses*tp_sp",
                                      "cp*recompute_full"])
@pytest.mark.parametrize("model", ["gpt", "llama-3-70b"])
def test_it_is_proved_and_runs_as_on_one_device(strategy: str, model: str) -> None:
    step = derive(parse_strategy(strategy), resolve_model(model))
    found = examine(step)
    assert {(v.verdict, v.cls) for v in found.verdicts} == {(PROVED, PARAMETRIC)}
    assert simulate(step, Setting.equal(step.reference, dict.fromkeys(step.reference.mesh.names, 2), 2)).equal
