"""What a reading from outside found wrong, each by the smallest input that showed it, as it comes out now."""

from __future__ import annotations

from typing import Any

import pytest

from placealg.check.prove import prove
from placealg.models.config import resolve_model
from placealg.prover.verdict import PROVED, REFUTED, Counterexample, Report
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay


def verdict(text: str, model: str, *changes: dict[str, Any], **tables: Any) -> Report:
    base = derive(overlay(parse_strategy(text), tables), resolve_model(model))
    return prove(edit(base, *changes) if changes else base, base)


def shown(report: Report) -> Counterexample:
    assert report.verdict == REFUTED and report.counterexample
    return report.counterexample


def test_a_clip_on_some_ranks_leaves_a_value_that_is_held_and_wrong() -> None:
    found = shown(verdict("dp", "abstract", {"set": "update.layer.weight.clip", "where": "rank(dp)=0"}))
    assert (found.obligation, found.got) == ("gradient", "a value that is there, and is not the reference's")


def test_a_reduction_on_some_ranks_is_a_deadlock() -> None:
    found = shown(verdict("dp", "abstract", {"set": "reduce.layer.weight.grad_sum.reduce[dp]",
                                             "where": "rank(dp)=0"}))
    assert (found.obligation, found.got) == ("schedule", "some ranks of the group do not take part: deadlock")


@pytest.mark.parametrize("model", ["abstract", "gpt"])
def test_layouts_that_disagree_are_named_on_op_graphs_as_on_units(model: str) -> None:
    report = verdict("zero1", model, {"set": "publish.layer.weight.publish[dp]", "layout": "other"})
    assert report.refuted()[0] == "partition" and shown(report).group == "layer.weight"


def test_a_clip_of_fresh_zeros_is_refuted() -> None:
    found = shown(verdict("dp", "abstract", {"move": "update.layer.weight.clip",
                                             "after": "prepare.layer.weight.grad_sum.zero"}))
    assert (found.obligation, found.want) == ("update", "clip")


def test_a_stream_keyed_by_a_local_index_differs_with_microbatches_alone() -> None:
    report = verdict("dp", "gpt", random={"dropout": ["local(batch)"]})
    assert (report.verdict, report.refuted()) == (REFUTED, ("random",))
    assert shown(report).obligation == "random"


def test_what_is_wrong_is_told_of_the_parameter_that_is_wrong_with_the_mass_of_that() -> None:
    found = shown(verdict("tp_sp", "gpt", {"drop": "reduce.layer.norm1.weight.grad_sum.reduce[tp]"}))
    assert found.group == "layer.norm1.weight" and found.event == "update.layer.norm1.weight.update"
    assert found.mass == "1/tp"


def test_residues_are_told_as_such_beside_floats_of_the_same_run() -> None:
    found = shown(verdict("dp", "gpt", {"drop": "reduce.layer.weight.grad_sum.reduce[dp]"}))
    assert all(" (mod 134217689), " in text and " in floats" in text for text in (
        found.single_device, found.distributed))


def test_the_same_programs_without_their_change_are_proved() -> None:
    assert verdict("tp_sp", "gpt").verdict == verdict("zero1", "gpt").verdict == PROVED
