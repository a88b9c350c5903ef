"""Running statistics, states of their own: a mean over the batch that forward takes. What is proved, runs confirm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agreement import changes, compare, settings
from mutants import Kind, Mutant, axis_changes, deletions, doublings, swaps

from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.abstract import statistics
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

TAKE = "forward.layer.running.grad.compute"


def step_of(name: str, more: str = "") -> Step:
    return derive(parse_strategy_file(f'base = "{name}"\n{more}').strategy, statistics())


@pytest.mark.parametrize("more", ["", 'loss = { preset = "token_mean" }', 'optimizer = { skip = "overflow" }'])
@pytest.mark.parametrize("name", ["dp", "zero1", "zero2", "zero3", "hsdp", "zero2*offload_optimizer"])
def test_a_derived_program_is_right(name: str, more: str) -> None:
    found = compare(step_of(name, more))
    assert (found.report.verdict, found.report.cls, found.complaint) == (PROVED, PARAMETRIC, "")


def about(mutant: Mutant) -> bool:
    """Whether a change is of an event that is about the statistics."""
    return any(e.group == "layer.running" for e in mutant.events)


@pytest.mark.parametrize(("name", "more", "kinds"), [
    ("zero1", "", (deletions, doublings)),
    pytest.param("dp", 'loss = { preset = "token_mean" }', (deletions, doublings, axis_changes, swaps),
                 marks=pytest.mark.slow),
    pytest.param("hsdp", "", (deletions, doublings, axis_changes, swaps), marks=pytest.mark.slow),
    pytest.param("zero3", 'optimizer = { skip = "overflow" }', (deletions, doublings, axis_changes, swaps),
                 marks=pytest.mark.slow),
])
def test_both_engines_agree_on_every_single_change(name: str, more: str, kinds: tuple[Kind, ...]) -> None:
    found = changes(step_of(name, more), about, *kinds)
    assert len(found) > 20
    assert {story: f.complaint for story, f in found.items() if f.complaint} == {}
    dropped = {story for story, f in found.items() if "drop" in story and f.report.verdict != REFUTED}
    assert all(".free[" in story or ".slice[" in story for story in dropped)


@pytest.mark.parametrize(("divisor", "refuted"), [
    ("m*tokens", PROVED), ("tokens", "gradient"), ("dp*m*tokens", "gradient"), ("m*count", "gradient"),
])
def test_a_statistic_is_weighted_as_the_loss_is(divisor: str, refuted: str) -> None:
    report = prove(edit(step_of("dp"), set=TAKE, divisor=divisor))
    assert report.verdict == PROVED if refuted == PROVED else report.refuted()[0] == refuted


def test_no_gradient_reaches_a_statistic() -> None:
    """It is taken in forward, is no part of the norm, and does not depend on the loss."""
    step = step_of("dp")
    assert [g.name for g in step.reference.trained] == ["layer.weight"]
    events = {e.verb for e in step.events if e.group == "layer.running"}
    assert events.isdisjoint({"norm", "clip"}) and "publish" in events
    wrong = edit(step, set="forward.loss.compute", divisor="2*tokens")
    assert {v.group for v in prove(wrong).obligations if v.verdict == REFUTED} == {"layer.weight"}


def test_a_wrong_statistic_is_not_the_gradients_fault() -> None:
    wrong = edit(step_of("dp"), drop="reduce.layer.running.grad_sum.reduce[dp]")
    report = prove(wrong)
    assert report.refuted() == ("gradient", "normalizer")
    assert {v.group for v in report.obligations if v.verdict == REFUTED} == {"layer.running"}
    assert report.counterexample and report.counterexample.mass == "1"


def test_a_statistic_that_is_taken_before_its_unit_ran_is_refuted() -> None:
    """Nothing is held of it then: with no class of contributions nothing would be judged, and all proved."""
    report = prove(edit(step_of("dp"), move=TAKE, before="forward.layer.compute"))
    assert "gradient" in report.refuted()
    assert {v.group for v in report.obligations if v.verdict == REFUTED} == {"layer.running"}


def test_equal_counts_hide_means_of_local_means() -> None:
    step = step_of("dp", 'loss = { preset = "token_mean" }')
    wrong = edit(step, set=TAKE, divisor="dp*m*tokens")
    assert prove(wrong).refuted() == ("normalizer",)
    for setting in settings(step.reference):
        assert simulate(wrong, setting).equal == (len(set(setting.counts.values())) == 1)


@pytest.mark.parametrize(("verb", "value", "group"), [
    ("compute", "grad", "layer.weight"), ("norm", "norm", "layer.running"), ("clip", "grad_sum", "layer.running"),
    ("compute", "skip", "layer.running"),
])
def test_what_means_nothing_is_refused(verb: str, value: str, group: str) -> None:
    step = step_of("dp")
    with pytest.raises(InputError, match=group):
        edit(step, insert={"path": f"update.{group}.{verb}", "verb": verb, "value": value, "group": group},
             after="update.layer.weight.update")


def test_whose_tokens_is_not_guessed() -> None:
    both = replace(statistics(), losses=("loss", "ahead"))
    with pytest.raises(InputError, match="it is not said of whose tokens"):
        derive(parse_strategy_file('base = "dp"').strategy, both)
