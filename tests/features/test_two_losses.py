"""A loss of two terms, each with tokens and a normaliser of its own: what the prover says of it, runs say too."""

from __future__ import annotations

from fractions import Fraction

import pytest
from agreement import changes, compare, settings
from mutants import Mutant, axis_changes, deletions, doublings, swaps

from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.abstract import abstract, two_losses
from placealg.prover.obligations import of_loss
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import simulate
from placealg.simulator.setting import Setting, token_ids
from placealg.simulator.space import of as space_of
from placealg.simulator.space import weights
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.lower import of_ops
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

STRATEGIES = ("dp", "zero1", "zero3", "hsdp", "zero2*offload_optimizer")
AHEAD = "forward.ahead.compute"


def step_of(name: str, preset: str) -> Step:
    file = parse_strategy_file(f'base = "{name}"\nloss = {{ preset = "{preset}" }}\n')
    return derive(file.strategy, two_losses())


@pytest.mark.parametrize("preset", ["token_mean", "mean_of_means"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_derived_program_is_right(name: str, preset: str) -> None:
    found = compare(step_of(name, preset))
    assert (found.report.verdict, found.report.cls, found.complaint) == (PROVED, PARAMETRIC, "")


def about(mutant: Mutant) -> bool:
    """Whether a change is of an event that is about one of the two losses."""
    return any(e.value in ("loss", "count") for e in mutant.events)


@pytest.mark.parametrize(("name", "preset"), [("dp", "token_mean"), ("hsdp", "mean_of_means")])
def test_both_engines_agree_on_every_single_change(name: str, preset: str) -> None:
    found = changes(step_of(name, preset), about, deletions, doublings, axis_changes, swaps)
    assert len(found) > 5
    assert {story: f.complaint for story, f in found.items() if f.complaint} == {}
    assert {f.report.verdict for f in found.values()} >= {REFUTED}


@pytest.mark.parametrize("loss", ["loss", "ahead"])
def test_each_loss_is_checked(loss: str) -> None:
    step = step_of("dp", "token_mean")
    wrong = edit(step, set=f"forward.{loss}.compute", divisor="2*count")
    report = prove(wrong)
    assert report.refuted() == ("gradient", "normalizer")
    assert report.counterexample and report.counterexample.mass is None, "half of one loss is no factor of the sum"
    assert report.counterexample.got.startswith(f"through layer from the loss {loss}: 1/(2*")
    assert f"a token of the loss {loss} on dp" in report.counterexample.unit
    assert prove(of_loss(wrong, "ahead" if loss == "loss" else "loss")).verdict == PROVED


def test_one_loss_is_divided_by_the_other_ones_tokens() -> None:
    """Counts of the two differ: a count that both share is right for equal counts only."""
    step = edit(step_of("dp", "token_mean"), drop="prepare.ahead.count.all_reduce[dp]")
    shared = edit(step, set=AHEAD, divisor="dp*count")
    report = prove(shared)
    assert report.refuted() == ("normalizer",)
    unequal = [s for s in settings(step.reference) if len(set(s.counts.values())) > 1]
    assert unequal and not any(simulate(shared, s).equal for s in unequal)
    assert all(simulate(shared, s).equal for s in settings(step.reference) if s not in unequal)


def test_tokens_of_each_loss_are_its_own() -> None:
    reference = step_of("dp", "token_mean").reference
    setting = Setting({"dp": 2}, 1, {((0,), 0): 1, ((1,), 0): 3})
    assert token_ids(reference, setting, "loss") == {((0,), 0): range(1), ((1,), 0): range(1, 4)}
    assert token_ids(reference, setting, "ahead") == {((0,), 0): range(4, 7), ((1,), 0): range(7, 8)}
    assert weights(space_of(of_ops(reference), setting)) == dict.fromkeys(range(8), Fraction(1, 4))


def test_a_divisor_says_whose_tokens() -> None:
    step = step_of("zero3", "mean_of_means")
    with pytest.raises(InputError, match="each of the losses loss, ahead has a number of tokens of its own"):
        edit(step, set="backward.layer.weight.grad.reduce[dp]", divisor="tokens")
    one = derive(parse_strategy_file('base = "zero3"').strategy, abstract())
    assert edit(one, set="backward.layer.weight.grad.reduce[dp]", divisor="tokens") != one
