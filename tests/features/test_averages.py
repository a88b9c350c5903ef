"""Averages of the weights, a state that no gradient reaches: what keeps them equal to the single device's is proved."""

from __future__ import annotations

import pytest
from agreement import changes, compare
from mutants import Kind, Mutant, axis_changes, deletions, doublings, swaps

from placealg.check.prove import prove
from placealg.cost.memory import memory
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import simulate
from placealg.simulator.setting import Setting
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

NAME = "layer.weight.average"
PUBLISHED = f"publish.{NAME}.update"


def step_of(name: str, average: str, more: str = "", model: str = "abstract") -> Step:
    text = f'base = "{name}"\n{more}\n[optimizer]\naverage = "{average}"\n'
    return derive(parse_strategy_file(text).strategy, resolve_model(model))


@pytest.mark.parametrize("average", ["optimizer", "parameters"])
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp", "zero1", "zero2", "zero3", "hsdp", "zero3*offload_optimizer",
                                  "zero3*offload_parameters"])
def test_a_derived_program_is_right(name: str, average: str) -> None:
    found = compare(step_of(name, average))
    assert (found.report.verdict, found.report.cls, found.complaint) == (PROVED, PARAMETRIC, "")


@pytest.mark.parametrize("average", ["optimizer", "parameters"])
def test_a_derived_program_runs_as_one_device(average: str) -> None:
    step = step_of("zero1", average, '[checkpoint]\nby = "replica"')
    assert simulate(step, Setting.equal(step.reference, {"dp": 2}, 2, 1)).equal


@pytest.mark.slow
@pytest.mark.parametrize("average", ["optimizer", "parameters"])
@pytest.mark.parametrize("name", ["zero3*tp_sp", "zero1*pp", "hsdp"])
def test_a_program_of_ops_is_right(name: str, average: str) -> None:
    found = compare(step_of(name, average, model="moe"))
    assert (found.report.verdict, found.complaint) == (PROVED, "")


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["host", "nvme"])
def test_an_average_rests_on_the_tier_of_its_state(tier: str) -> None:
    more = f'[states]\nparameters = {{ dp = "S*+O" }}\n[parameters]\ntier = "{tier}"'
    step = step_of("zero3", "parameters", more)
    stored = next(e for e in step.phase("save") if e.value == "average")
    assert stored.tier == tier and compare(step).report.verdict == PROVED
    fetched = [e for e in step.phase("publish") if e.value == "average" and e.verb == "fetch"]
    assert len(fetched) == (tier == "nvme")


@pytest.mark.slow
@pytest.mark.parametrize("by", ["owners", "replica", "one"])
def test_an_average_is_saved_and_resumed(by: str) -> None:
    step = step_of("zero1", "optimizer", f'[checkpoint]\nby = "{by}"')
    assert compare(step).report.verdict == PROVED
    assert prove(edit(step, drop=f"resume.{NAME}.load")).refuted()[0] == "init"
    assert prove(edit(step, drop=f"save.{NAME}.store")).refuted()[0] == "init"


@pytest.mark.parametrize(("change", "refuted"), [
    ({"move": f"update.{NAME}.update", "before": "update.layer.weight.update"}, "invariant"),
    ({"drop": f"update.{NAME}.update"}, "invariant"),
    ({"double": f"update.{NAME}.update"}, "invariant"),
    ({"set": f"update.{NAME}.update", "where": "rank(dp)=0"}, "invariant"),
    ({"set": f"update.{NAME}.update", "from": "weight"}, "invariant"),
    ({"set": f"update.{NAME}.update", "from": "moments"}, "invariant"),
    ({"drop": f"save.{NAME}.store"}, "init"),
    ({"drop": f"resume.{NAME}.load"}, "init"),
    ({"drop": f"init.{NAME}.assign"}, "init"),
    ({"move": f"init.{NAME}.assign", "before": "init.layer.weight.broadcast[dp]"}, "init"),
])
def test_what_leaves_an_average_behind_is_refuted(change: dict[str, str], refuted: str) -> None:
    report = prove(edit(step_of("dp", "optimizer"), change))
    assert (report.verdict, report.refuted()[:1]) == (REFUTED, (refuted,))


def test_every_rank_takes_in_new_weights() -> None:
    """On zero1 a rank has the new master copy of its own elements only, and the others' weights when they arrive."""
    step = step_of("zero1", "parameters")
    assert prove(edit(step, {"set": PUBLISHED, "from": "master"})).refuted() == ("invariant",)
    early = prove(edit(step, move=PUBLISHED, before="publish.layer.weight.publish[dp]"))
    assert early.refuted() == ("invariant",) and early.counterexample and early.counterexample.distributed


def test_a_wrong_gradient_is_not_the_averages_fault() -> None:
    wrong = edit(step_of("dp", "optimizer"), drop="reduce.layer.weight.grad_sum.reduce[dp]")
    assert "invariant" not in prove(wrong).refuted()


@pytest.mark.slow
def test_a_skipped_step_moves_the_average() -> None:
    text = 'base = "zero1"\n[optimizer]\naverage = "optimizer"\nskip = "overflow"\n'
    step = derive(parse_strategy_file(text).strategy, resolve_model("abstract"))
    assert compare(step).complaint == "" and prove(step).verdict == PROVED


def about(mutant: Mutant) -> bool:
    """Whether a change is of an event that is about the average."""
    return any(e.value == "average" for e in mutant.events)


@pytest.mark.parametrize(("name", "average", "more", "kinds"), [
    pytest.param("zero1", "parameters", "", (deletions, doublings), marks=pytest.mark.slow),
    pytest.param("zero3", "parameters", "", (deletions, doublings, axis_changes, swaps), marks=pytest.mark.slow),
    pytest.param("hsdp", "optimizer", "", (deletions, doublings, axis_changes, swaps), marks=pytest.mark.slow),
    pytest.param("zero2*offload_optimizer", "optimizer", "", (deletions, doublings, swaps), marks=pytest.mark.slow),
    pytest.param("zero1", "optimizer", '[checkpoint]\nby = "one"', (deletions, doublings, swaps),
                 marks=pytest.mark.slow),
])
def test_both_engines_agree_on_every_single_change(name: str, average: str, more: str,
                                                   kinds: tuple[Kind, ...]) -> None:
    found = changes(step_of(name, average, more), about, *kinds)
    assert len(found) >= 6
    assert {story: f.complaint for story, f in found.items() if f.complaint} == {}
    dropped = {story for story, f in found.items() if "drop" in story and f.report.verdict != REFUTED}
    assert all(".free" in story or ".slice" in story for story in dropped), dropped


def test_its_bytes_are_counted_where_it_rests() -> None:
    """4 bytes an element: as the optimizer state 1/dp of them under zero1, as the weights all of them."""
    sizes = {"Psi": 1000, "dp": 4, "m": 1}
    states = {average: memory(step_of("zero1", average)).optimizer.value(**sizes)
              for average in ("none", "optimizer", "parameters")}
    assert states == {"none": 3000, "optimizer": 4000, "parameters": 7000}
    half = memory(step_of("zero1", "parameters", "[types]\navg = 2")).optimizer
    assert half.value(**sizes, avg=2) == 5000


def test_only_what_trains_has_one() -> None:
    step = step_of("dp", "optimizer", '[groups.norms]\nmatch = "*norm*"\nfrozen = true', model="gpt")
    of = {e.group for e in step.events if e.value == "average"}
    assert of == {g.name for g in step.reference.trained} < {g.name for g in step.reference.groups}
    assert {e.group for e in step_of("dp", "optimizer", model="statistics").events if e.value == "average"} == {
        "layer.weight"}


def test_nothing_is_sent_for_it() -> None:
    with_it, without = (step_of("zero3", average) for average in ("parameters", "none"))
    assert [e.path for e in with_it.events if e.axes] == [e.path for e in without.events if e.axes]
    setting = Setting.equal(with_it.reference, {"dp": 2}, 2, 1)
    assert simulate(with_it, setting).observed > simulate(without, setting).observed


@pytest.mark.parametrize(("said", "told"), [
    ('average = "optimiser"', "'optimizer'"), ("average = true", "optimizer"),
])
def test_a_place_that_is_none_is_refused(said: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_strategy_file(f'base = "dp"\n[optimizer]\n{said}\n')


def test_an_average_that_is_not_there_is_refused() -> None:
    step = step_of("dp", "none")
    with pytest.raises(InputError, match="update of average"):
        edit(step, insert={"verb": "update", "value": "average", "group": "layer.weight"},
             after="update.layer.weight.update")
