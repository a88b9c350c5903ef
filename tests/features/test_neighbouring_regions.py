"""Regions that are recomputed beside each other, with redistributions between them: proved, under every policy."""

from __future__ import annotations

from itertools import combinations

import pytest

from placealg.check.prove import prove
from placealg.models.config import resolve_model
from placealg.prover.verdict import PROVED
from placealg.step.derive import derive
from placealg.step.recompute import POLICIES
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

PARTS = ("router", "dispatch", "expert", "combine")


def verdict(base: str, model: str, regions: tuple[str, ...], replay: str) -> object:
    said = {"states": {"activations": {f"region:{r}": "M" for r in regions}}, "schedule": {"replay": replay}}
    report = prove(derive(overlay(parse_strategy(base), said), resolve_model(model)))
    return report.verdict, report.why_undecided


def test_the_dispatch_and_the_experts_of_an_expert_axis_are_recomputed_together() -> None:
    """What crosses between them is made again where backward needs it, and made again once more for its own region."""
    assert verdict("zero1*ep", "moe", ("dispatch", "expert"), "whole") == (PROVED, "")


def test_one_region_holds_a_whole_mixture_of_experts() -> None:
    assert verdict("zero1*ep", "moe", ("moe",), "early_stop") == (PROVED, "")
    graph = resolve_model("moe").graph
    inside = {op.region.split(".")[-1] for op in graph.ops if ".moe." in f".{op.region}."}
    assert inside == set(PARTS)
    assert "moe" not in " ".join(op.output for op in graph.ops)


@pytest.mark.slow
@pytest.mark.parametrize("replay", POLICIES)
@pytest.mark.parametrize("pair", list(combinations(PARTS, 2)), ids="+".join)
@pytest.mark.parametrize("base", ["zero1*ep", "zero3*ep*tp_sp"])
def test_any_two_regions_of_a_mixture_of_experts(base: str, pair: tuple[str, str], replay: str) -> None:
    assert verdict(base, "moe", pair, replay) == (PROVED, "")


@pytest.mark.slow
@pytest.mark.parametrize("replay", POLICIES)
@pytest.mark.parametrize("pair", list(combinations(("norm1", "core", "norm2", "mlp"), 2)), ids="+".join)
def test_any_two_regions_of_a_dense_layer(pair: tuple[str, str], replay: str) -> None:
    assert verdict("zero1*tp_sp", "gpt", pair, replay) == (PROVED, "")
