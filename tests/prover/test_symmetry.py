"""Groups that share a proof: each, proved by itself, has the same verdicts; and programs in which that was not so."""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest.mock import patch

import pytest
from mutants import deletions
from resumed import sampled

import placealg.prover.examine as prover
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.adapters import frozen
from placealg.models.build import graph
from placealg.models.config import resolve_model
from placealg.models.model import Model, Parameter, Statistic, Unit
from placealg.prover.calculus.machine import Site
from placealg.prover.examine import examine
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import site_signature, sites_of
from placealg.prover.symmetry import signature, unnamed
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.lower import lowered
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay


def derived(strategy: str, model: str, **tables: object) -> Step:
    return derive(overlay(parse_strategy(strategy), tables), resolve_model(model))


def experts_and_a_shared_expert_that_is_cut() -> Step:
    """Muon: along tp the experts are whole matrices, the shared one is cut, and nothing puts it together."""
    step = derived("dp*tp", "deepseek-v3", optimizer={"name": "muon"},
                   dims={"tp": ["expert.expert", "shared_expert.ffn"]})
    cut = step.reference.group("layer.shared_expert.gate.weight")
    for event in step.phase("update"):
        if event.group == cut.name and "tp" in event.axes:
            step = edit(step, {"drop": event.path})
    return step


def adapters_that_nothing_trains() -> Step:
    """A program without any backward, in which adapters are treated as the frozen base is."""
    step = derived("dp", "gpt", adapters={"match": ["attn.q"], "rank": 2})
    trained = {g.name for g in step.reference.trained}
    return replace(step, events=tuple(
        e for e in step.events if e.phase != "backward"
        and not (e.group in trained and (e.value != "weight" or e.phase == "publish"))))


WRONG = (experts_and_a_shared_expert_that_is_cut, adapters_that_nothing_trains)


@pytest.mark.parametrize("make", WRONG)
def test_a_group_that_is_wrong_shares_no_proof_with_one_that_is_right(make: object) -> None:
    assert examine(make()).candidates  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("make", WRONG)
def test_what_is_wrong_in_one_group_alone_is_refuted(make: object) -> None:
    report = prove(make())  # type: ignore[operator]
    assert report.verdict == REFUTED and report.counterexample is not None, "what is refuted was seen in a run"


def each_alone(step: Step) -> list[tuple[object, ...]]:
    """The verdicts where no group shares the proof of another."""
    number = itertools.count()
    with patch.object(prover, "signature", lambda *_: next(number)):
        return verdicts(step)


def verdicts(step: Step) -> list[tuple[object, ...]]:
    return [(v.id, v.group, v.verdict, v.instances) for v in examine(step).verdicts]


@pytest.mark.parametrize(("strategy", "model"), [("zero3", "mlp"), ("zero2", "two_losses")])
def test_proofs_that_are_shared_are_those_of_each_group(strategy: str, model: str) -> None:
    step = derived(strategy, model)
    assert verdicts(step) == each_alone(step)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "model"), [
    ("zero3*tp_sp", "gpt"), ("zero1*ep", "moe"), ("hsdp", "abstract"), ("zero1", "statistics"), ("zero1*pp", "lora")])
def test_proofs_that_are_shared_are_those_of_each_group_in_every_program_without_one_event(strategy: str,
                                                                                          model: str) -> None:
    for mutant in sampled(deletions(derived(strategy, model))):
        assert verdicts(mutant.step) == each_alone(mutant.step), mutant.story


def test_all_of_a_group_but_names_and_sizes_counts() -> None:
    group = derived("zero3*tp", "gpt").reference.groups[0]
    named = {"name": "x", "unit": "x", "sites": ("x",), "parameters": ("x",), "elements": (), "optimizer": "lion"}
    assert unnamed(replace(group, **named)) == unnamed(group)  # type: ignore[arg-type]
    for field, value in (("split", ("dp",)), ("stacked", ("dp",)), ("frozen", True), ("statistic", True),
                         ("locality", "matrix"), ("whole_reads", ("moments",))):
        assert unnamed(replace(group, **{field: value})) != unnamed(group), field  # type: ignore[arg-type]


def test_at_which_end_of_a_pipeline_a_parameter_is_read_counts() -> None:
    """Two frozen parameters of one group: one is read twice before the layers, the other once."""
    g = graph(batch="b", embed="h")
    x, once, twice = g.data("data.input", "batch embed"), *(g.parameter(f"first.{n}", "embed") for n in "cd")
    g.add("first.z", g.add("first.y", g.add("first.x", x, once), twice), twice)
    g.mul("layer.out", g.repeat("layer", "L", "first.z"), g.parameter("layer.weight", "embed"))
    g.sum("loss.sum", g.add("last.y", g.add("last.x", "layer.out", once), twice))
    model = frozen(Model.of_graph("ends", g.build()), lambda name: name.startswith("first"))
    step = derive(parse_strategy("dp*pp"), model)
    (group,) = (q for q in step.reference.groups if q.frozen)
    flows = Flows(step)

    def ends(name: str) -> list[object]:
        marks = site_signature(step, group, Site("first.x/1", name), flows)
        return [m[3] for m in marks if isinstance(m, tuple) and m[0] == "forward"]  # type: ignore[attr-defined]
    assert ends("first.c") == ends("first.d") == ["first", "last"]
    assert verdicts(step) == each_alone(step) and prove(step).verdict == PROVED


def test_ops_on_some_ranks_alone_have_no_rule() -> None:
    """So that two uses that differ in that share no proof; the place counts in the signature even so."""
    step = derived("zero1", "mlp")
    path = "forward.layer.mlp.up.compute"
    clause = next(e for e in step.events if e.where).where[:1]
    some = replace(step, events=tuple(replace(e, where=clause) if e.path == path else e for e in step.events))
    assert prove(some).verdict != PROVED
    group, site = step.reference.group("layer.weight"), Site("layer.mlp.up/1", "layer.mlp.up.weight")
    assert site_signature(some, group, site, Flows(some)) != site_signature(step, group, site, Flows(step))


def told(step: Step, name: str) -> object:
    """The signature of a group."""
    step = lowered(step)
    group, flows = step.reference.group(name), Flows(step)
    return signature(step, group, sites_of(step, group, flows), flows)


def test_a_statistic_is_of_the_first_unit_that_reads_it_whose_forward_counts() -> None:
    """So the signature says what a statistic was taken of: it has a place among the computations of its own unit."""
    step = derived("dp", "statistics")
    late = edit(step, {"move": "forward.layer.running.grad.compute", "before": "forward.layer.compute"})
    assert late != step
    group = step.reference.group("layer.running")
    assert group.unit == group.sites[0] and told(late, group.name) != told(step, group.name)
    element = FrozenMap({"element": resolve_model("abstract").parameters[0].elements})
    parameters = Parameter("a.weight", "a", element, ("a",)), Parameter("a.running", "a", element, ("b",))
    with pytest.raises(InputError, match="belongs to unit 'a', and unit 'b' uses it first"):
        derive(parse_strategy("dp"), Model("two", (Unit("a"), Unit("b")), parameters,
                                              statistics=FrozenMap({"a.running": Statistic()})))


def test_whether_a_unit_sets_a_gradient_or_adds_to_it_counts() -> None:
    """Another use, in a unit before or behind: what runs again then sets the gradient anew, or adds to it."""
    element = FrozenMap({"element": resolve_model("abstract").parameters[0].elements})

    def of(*sites: str) -> object:
        own = tuple(Parameter(f"{n}.weight", n, element, sites if n == "a" else (n,)) for n in "abc")
        model = Model("three", (Unit("a"), Unit("b"), Unit("c")), own)
        return told(edit(derive(parse_strategy("dp"), model), {"double": "backward.b.compute"}), "a.weight")
    assert of("a", "b") != of("a", "b", "c")
    once = of("a", "c")
    assert once == of("a", "c") and once != of("a", "b")
