"""Initial values and random streams that ranks share along chosen axes: along all that hold copies, or refuted."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import compare

from placealg.check.prove import prove
from placealg.models.config import resolve_model
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

START = "init.layer.weight.broadcast[dp_replicate,dp_shard]"
ONE, OTHER = ({"path": f"init.layer.weight.broadcast[{a}]"} for a in ("dp_replicate", "dp_shard"))
NORM = "init.layer.norm1.weight.broadcast[dp,tp]"
RNG = "resume.rng.load"


def edited(text: str, *changes: dict[str, Any], model: str = "abstract") -> Step:
    return edit(derive(parse_strategy(text), resolve_model(model)), *changes)


def streams(*differ: str) -> Step:
    return derive(overlay(parse_strategy("dp*tp"), {"random": {"dropout": list(differ)}}), resolve_model("gpt"))


def test_initial_values_are_shared_one_axis_after_the_other() -> None:
    both = edited("hsdp", {"insert": ONE, "after": START}, {"insert": OTHER, "after": START}, {"drop": START})
    assert not [e for e in both.events if e.path == START] and prove(both).verdict == PROVED


@pytest.mark.parametrize("axis", ["dp_replicate", "dp_shard"])
def test_initial_values_that_are_shared_along_one_axis_alone_are_refuted(axis: str) -> None:
    found = prove(edited("hsdp", {"set": START, "axes": [axis]}))
    assert (found.verdict, found.refuted()) == (REFUTED, ("init",))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [["dp"], ["tp"], ["dp", "tp"]])
def test_a_norm_that_every_rank_holds_starts_alike_on_all(axes: list[str]) -> None:
    found = compare(edited("dp*tp", {"set": NORM, "axes": axes}, model="gpt"))
    assert not found.complaint and (found.report.verdict == PROVED) == (len(axes) == 2)
    assert {v.group for v in found.report.obligations if v.verdict == REFUTED} <= {"layer.norm1.weight"}


@pytest.mark.parametrize(("axes", "verdict"), [
    (["dp_replicate", "dp_shard"], PROVED), (["dp_shard"], REFUTED), (["dp_replicate"], REFUTED)])
def test_a_stream_that_one_rank_loads_is_shared_along_all_axes(axes: list[str], verdict: str) -> None:
    alone = {"set": RNG, "where": "rank(dp_replicate)=0, rank(dp_shard)=0"}
    shared = {"insert": {"verb": "broadcast", "value": "rng", "axes": axes}, "after": RNG}
    assert prove(edited("hsdp", alone, shared)).verdict == verdict


@pytest.mark.parametrize("axis", ["dp", pytest.param("tp", marks=pytest.mark.slow)])
def test_a_stream_is_shared_along_the_axes_that_are_not_named(axis: str) -> None:
    """Only along that axis do draws part: a run with one rank there is the single device's, with two it is another."""
    step = streams(f"rank({axis})")
    sizes = {"dp": 2, "tp": 2}
    assert simulate(step, Setting.equal(step.reference, {**sizes, axis: 1}, 1, 1)).equal
    assert not simulate(step, Setting.equal(step.reference, sizes, 1, 1)).equal


@pytest.mark.slow
@pytest.mark.parametrize("differ", [(), ("rank(dp)",), ("rank(tp)",), ("rank(dp)", "rank(tp)")])
def test_a_stream_that_ranks_do_not_share_is_refuted(differ: tuple[str, ...]) -> None:
    found = compare(streams(*differ))
    assert (found.report.refuted(), found.complaint) == (("random",) if differ else (), "")
