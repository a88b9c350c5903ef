"""Every single-event mutant of every strategy, through both engines: REFUTED iff the simulator differs."""

from __future__ import annotations

import itertools

import pytest
from agreement import compare
from mutants import axis_changes, deletions, doublings, swaps, tensor_deletions, tensor_doublings
from random_dims import MODELS, judged

from placealg.model.abstract import abstract
from placealg.prove.verdict import REFUTED
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import strategy_on

STRATEGIES = {name: f'base = "{name}"\n' for name in (
    "dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "zero2*offload_optimizer", "zero1*offload_optimizer",
    "mics", "zeropp", "zero3*offload_parameters")}
STRATEGIES["zero3, token mean"] = 'base = "zero3"\n[loss]\npreset = "token_mean"\n'
STRATEGIES["zero3, muon"] = 'base = "zero3"\n[optimizer]\nname = "muon"\n'

HARMLESS_DELETIONS = ("free", "slice")
"""The only verbs of a derived program that may go without changing a number: they give memory back."""

OP_LEVEL = ("tp", "tp_sp", "zero3*tp_sp", "tp*recompute_full")
WASTE = ("free", "slice")
"""The verbs of events on tensors that may go: they give memory back, or keep a rank from working for others too."""


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_deletion_is_refuted_iff_the_simulator_differs(name: str) -> None:
    step = derive(parse_strategy_file(STRATEGIES[name]).strategy, abstract())
    for (story, mutant), event in zip(deletions(step), step.events, strict=True):
        found = compare(mutant)
        assert not found.complaint, f"{story}: {found.complaint}"
        assert (found.report.verdict == REFUTED) == (event.verb not in HARMLESS_DELETIONS), story


@pytest.mark.slow
@pytest.mark.parametrize("kind", [doublings, axis_changes, swaps])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_other_mutant_is_refuted_iff_the_simulator_differs(name: str, kind: object) -> None:
    step = derive(parse_strategy_file(STRATEGIES[name]).strategy, abstract())
    complaints = [f"{story}: {c}" for story, mutant in kind(step) if (c := compare(mutant).complaint)]  # type: ignore[operator]
    assert not complaints, "\n".join(complaints)


def test_a_few_of_every_kind_of_mutant() -> None:
    step = derive(parse_strategy("hsdp"), abstract())
    for kind in (doublings, axis_changes, swaps):
        for story, mutant in itertools.islice(kind(step), 3, None, 9):
            assert not (complaint := compare(mutant).complaint), f"{story}: {complaint}"


@pytest.mark.parametrize("kind", [tensor_deletions, tensor_doublings])
def test_every_mutant_of_a_tensor_s_event_on_a_small_model(kind: object) -> None:
    step = derive(strategy_on("mlp", {"tp": None}, dims={"tp": ["ffn", "vocab"]}), MODELS["mlp"])
    complaints = [f"{story}: {c}" for story, mutant in kind(step) if (c := judged(mutant)[1])]  # type: ignore[operator]
    assert not complaints, "\n".join(complaints)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "llama"])
@pytest.mark.parametrize("name", OP_LEVEL)
def test_every_deletion_of_a_tensor_s_event_is_refuted_iff_a_run_differs(name: str, model: str) -> None:
    step = derive(parse_strategy(name), MODELS[model])
    events = [e for e in step.events if e.on_tensor or e.value == "loss"]
    for (story, mutant), event in zip(tensor_deletions(step), events, strict=True):
        verdict, complaint = judged(mutant)
        assert not complaint, f"{story}: {complaint}"
        assert verdict == REFUTED or event.verb in WASTE or event.rule.name == "recompute", story


@pytest.mark.slow
@pytest.mark.parametrize("name", OP_LEVEL)
def test_every_doubling_of_a_tensor_s_event_is_refuted_iff_a_run_differs(name: str) -> None:
    step = derive(parse_strategy(name), MODELS["gpt"])
    complaints = [f"{story}: {c}" for story, mutant in tensor_doublings(step) if (c := judged(mutant)[1])]
    assert not complaints, "\n".join(complaints)
