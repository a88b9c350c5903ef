"""Parameters gathered leaf module by leaf module, as DeepSpeed does: one leaf at a time, proved and simulated."""

from __future__ import annotations

import pytest
from random_dims import settings

from placealg.check.prove import prove
from placealg.cost.memory import memory
from placealg.models.config import resolve_model
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.groups import leaf_of
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

slow = pytest.mark.slow


def leafwise(text: str, model: str, axis: str = "dp", life: str = "leaf") -> Step:
    strategy = overlay(parse_strategy(text), {"schedule": {"lifetime": {axis: life}}})
    return derive(strategy, resolve_model(model))


@pytest.mark.parametrize(("text", "model", "axis"), [
    ("zero3", "mlp", "dp"), ("zero3", "abstract", "dp"), pytest.param("zero3", "gpt", "dp", marks=slow),
    pytest.param("zero3*recompute_full", "gpt", "dp", marks=slow),
    pytest.param("zero3*tp_sp", "gpt", "dp", marks=slow), pytest.param("zero3*pp_1f1b", "gpt", "dp", marks=slow),
    pytest.param("zero3*ep", "moe", "dp", marks=slow), pytest.param("hsdp", "gpt", "dp_shard", marks=slow),
    pytest.param("zero3*offload_parameters", "gpt", "dp", marks=slow), pytest.param("zero3", "lora", "dp", marks=slow),
    pytest.param("zero3*cp_ring", "gpt", "dp", marks=slow), pytest.param("zero3", "mla", "dp", marks=slow),
])
def test_a_program_of_leaves_is_proved_and_simulated(text: str, model: str, axis: str) -> None:
    step = leafwise(text, model, axis)
    assert prove(step).verdict == PROVED
    assert simulate(step, next(iter(settings(step)))).difference is None


def test_one_leaf_is_gathered_at_a_time() -> None:
    step = leafwise("zero3", "llama-3-8b")
    groups = {g.name: g for g in step.reference.groups}
    held: set[str] = set()
    most = 0
    for event in step.events:
        if event.verb == "gather" and event.value == "weight":
            held.add(event.group)
        most = max(most, len({leaf_of(groups[name].parameters[0]) for name in held}))
        if event.verb == "free" and event.value == "weight":
            held.discard(event.group)
    assert most == 1 and not held


def test_a_leaf_holds_less_than_a_layer_and_a_layer_less_than_the_model() -> None:
    """Of four layers as wide as Llama-3-8B's with a small vocabulary, the largest leaf is one matrix of the MLP."""
    sizes = {"dp": 64, "b": 1, "s": 1, "m": 1, "w": 2, "g": 2, "o": 12, "act": 2, "V": 10, "L": 4}
    sizes = {**resolve_model("llama-3-8b").sizes, **sizes}
    peaks = [memory(leafwise("zero3", "llama-3-8b", life=life)).peak.value(**sizes)
             for life in ("leaf", "use", "microbatch")]
    assert peaks[0] < peaks[1] < peaks[2]


def test_a_leaf_that_is_not_gathered_is_refuted() -> None:
    step = edit(leafwise("zero3", "mlp"), drop="forward.layer.mlp.down.weight.gather[dp]")
    assert prove(step).verdict == REFUTED
