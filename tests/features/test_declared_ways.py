"""Where frameworks differ and both are right: how gradients are reduced, divided, counted and sent, and how long units
live, declared and derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from random_programs import placements

from placealg.check.prove import prove
from placealg.cost.communication import communication
from placealg.cost.formula import Formula
from placealg.cost.memory import memory
from placealg.errors import InputError
from placealg.models.abstract import abstract
from placealg.models.config import resolve_model
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import overlay
from placealg.strategy.write import write_strategy

WAYS: Mapping[str, Mapping[str, Any]] = {
    "reduction": {"schedule": {"reduction": {"dp": "all_reduce"}}},
    "microbatch_mean": {"schedule": {"microbatch_mean": "gradients"}},
    "norm": {"optimizer": {"norm": "split_axes"}},
    "wire": {"schedule": {"wire": {"dp": 4}}},
    "lifetime": {"groups": {"all": {"match": "*", "lifetime": {"dp": "step"}}}},
    "sum": {"loss": {"preset": "sum"}},
}
BASES = ("dp", "zero1", "zero2", "zero3", "zero1*tp", "zero3*tp_sp", "zero2*cp_ring", "zero3*pp", "zero2*tp*pp",
         "zero1*offload_optimizer", "zero2*recompute_full*tp")
MEANT = {"reduction": ("zero",), "lifetime": ("zero3",)}


def step_of(text: str, model: str = "abstract", **tables: Any) -> Step:
    return derive(overlay(parse_strategy(text), tables), resolve_model(model))


def of(text: str) -> Formula:
    return Formula.parse(text, "bytes")


def verbs(step: Step, phase: str) -> list[str]:
    return [e.path.partition(".")[2] for e in step.phase(phase)]


@pytest.mark.some(24)
@pytest.mark.parametrize(("base", "model", "way"), [
    (base, model, way) for base in BASES for way in WAYS
    for model in (("gpt", "llama-3-8b") if any(x in base for x in ("tp", "cp", "pp")) else ("abstract", "gpt"))
    if base.startswith(MEANT.get(way, ("",)))])
def test_every_way_is_proved_and_runs_as_on_one_device(base: str, model: str, way: str) -> None:
    step = step_of(base, model, **WAYS[way])
    report = prove(step)
    assert (report.verdict, report.cls) == (PROVED, PARAMETRIC)
    sizes = dict.fromkeys(step.reference.mesh.names, 2)
    assert simulate(step, Setting.equal(step.reference, sizes, 2, 1)).equal


@settings(max_examples=4)
@given(placements())
def test_no_derived_program_is_undecided(strategy: Any) -> None:
    verdict = prove(derive(strategy, abstract())).verdict
    assert verdict == PROVED or (verdict == REFUTED and not strategy.loss()["assume"])
    assert parse_strategy_file(write_strategy(strategy)).strategy == strategy


def test_a_sum_that_all_have_is_sliced_for_its_owners() -> None:
    plain, whole = step_of("zero1"), step_of("zero1", **WAYS["reduction"])
    assert verbs(plain, "reduce") == ["layer.weight.grad_sum.reduce[dp]"]
    assert verbs(whole, "reduce") == ["layer.weight.grad_sum.reduce[dp]", "layer.weight.grad_sum.slice[dp]"]
    assert communication(whole).by_phase["reduce"] == of("2*wire*Psi*(dp - 1)/dp")
    assert communication(plain).by_phase["reduce"] == of("wire*Psi*(dp - 1)/dp")
    each = step_of("zero2", **WAYS["reduction"])
    assert communication(each).by_phase["backward"] == of("2*m*wire*Psi*(dp - 1)/dp")
    assert memory(each).gradients == memory(step_of("zero2")).gradients


def test_axes_of_other_bytes_are_reduced_apart() -> None:
    both = step_of("zero1*cp", "gpt", states={"optimizer": {"dp": "S", "cp": "S"}})
    apart = step_of("zero1*cp", "gpt", states={"optimizer": {"dp": "S", "cp": "S"}}, schedule={"wire": {"cp": 4}})
    of_head = [(e.axes, e.bytes) for e in apart.phase("reduce") if e.group == "head.weight"]
    assert of_head == [(("dp",), ""), (("cp",), "4")]
    assert [e.axes for e in both.phase("reduce") if e.group == "head.weight"] == [("dp", "cp")]
    norms = step_of("zero1*tp_sp", "gpt", groups={"norms": {"match": "norm*", "wire": {"tp": 2}}}, types={"wire": 4})
    over = {e.group: e.bytes for e in norms.phase("reduce") if e.axes == ("tp",)}
    assert over["layer.norm1.weight"] == "2" and over["layer.attn.out.bias"] == ""
    sent = communication(norms).events
    (one,) = (e.formula for e in sent if e.path == "reduce.layer.norm1.weight.grad_sum.reduce[tp]")
    assert one == of("2*2*h*L*(tp - 1)/(dp*tp)")


def test_what_the_bytes_of_an_axis_round_is_not_covered() -> None:
    said = prove(step_of("zero1", schedule={"wire": {"dp": 4}})).not_covered
    assert said[-1] == ("rounding of gradients while they are reduced over dp (bytes per element: 4 on the wire, 2 at "
                        "rest)")
    assert not any("rounding of gradients" in text for text in prove(step_of("zero1")).not_covered)


def test_a_norm_is_summed_where_gradients_are_split() -> None:
    plain, split = step_of("hsdp"), step_of("hsdp", **WAYS["norm"])
    assert [e.axes for e in plain.events if e.value == "norm" and e.axes] == [("dp_replicate", "dp_shard")]
    assert [e.axes for e in split.events if e.value == "norm" and e.axes] == [("dp_shard",)]
    (mine,) = (e for e in split.events if e.verb == "norm")
    assert [str(c) for c in mine.where] == ["owner(dp_shard)"]
    assert not [e for e in step_of("dp", **WAYS["norm"]).events if e.value == "norm" and e.axes]


def test_a_unit_lives_as_its_group_says() -> None:
    step = step_of("zero3", "gpt2", groups={"head": {"match": "head.*", "lifetime": {"dp": "step"}}})
    of_head = [e.path for e in step.events if e.group == "head.weight" and e.verb in ("gather", "free")]
    assert of_head == ["prepare.head.weight.gather[dp]", "reduce.head.weight.free[dp]"]
    assert [e.phase for e in step.events if e.group == "layer.weight" and e.verb == "gather"] == ["forward", "backward"]


def test_logits_are_gathered_where_the_cross_entropy_stays_whole() -> None:
    dims = {"tp": ["head.loss.none", "loss.none", "heads", "ffn", "vocab"]}
    step = step_of("tp", "llama-3-8b", dims=dims)
    assert "forward.head.logits.all_gather[tp]" in [e.path for e in step.events]
    assert not [e for e in step.events if e.value == "head.loss" and e.axes]
    assert prove(step).verdict == PROVED


@pytest.mark.parametrize(("tables", "told"), [
    ({"schedule": {"reduction": {"dp": "allreduce"}}}, "reduction of dp is 'allreduce'; did you mean 'all_reduce'?"),
    ({"schedule": {"reduction": {"tp": "all_reduce"}}}, "names axis 'tp', which the mesh lacks"),
    ({"schedule": {"wire": {"dp": 0}}}, "wire of dp is 0: bytes per element are a positive number"),
    ({"schedule": {"microbatch_mean": "gradient"}}, "did you mean 'gradients'?"),
    ({"optimizer": {"norm": "all"}}, "[optimizer] norm is 'all'"),
    ({"loss": {"preset": "sums"}}, "did you mean 'sum'?"),
    ({"groups": {"x": {"match": "*", "lifetime": {"dp": "steps"}}}}, "did you mean 'step'?"),
])
def test_what_is_written_wrong_is_one_line(tables: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as error:
        step_of("zero1", **tables)
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("base", "tables", "told"), [
    ("dp", {"schedule": {"reduction": {"dp": "all_reduce"}}}, "neither gradients nor the optimizer state are S on dp"),
    ("zero1", {"groups": {"x": {"match": "*", "lifetime": {"dp": "step"}}}}, "its parameters are not S* on dp"),
    ("zero1", {"loss": {"preset": "sum"}, "schedule": {"microbatch_mean": "gradients"}}, "no mean over microbatches"),
    ("zero1", {"optimizer": {"clip": "none", "norm": "split_axes"}}, "clip is 'none', and no norm is taken"),
    ("tp", {"schedule": {"wire": {"tp": 4}}}, "no gradient is reduced over tp"),
])
def test_what_has_no_meaning_is_one_line(base: str, tables: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as error:
        step_of(base, "gpt" if base == "tp" else "abstract", **tables)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_statistics_are_means_and_a_summed_loss_divides_by_nothing() -> None:
    with pytest.raises(InputError, match="running statistics, which are means"):
        step_of("dp", "statistics", loss={"preset": "sum"})


def test_a_reduction_without_its_slice_is_held_to_what_it_leaves() -> None:
    whole = step_of("zero1", **WAYS["reduction"])
    assert prove(edit(whole, drop="reduce.*.slice[dp]")).verdict == PROVED, "an owner reads its part of the whole sum"
    assert prove(edit(whole, set="reduce.*.slice[dp]", layout="other")).verdict != PROVED
