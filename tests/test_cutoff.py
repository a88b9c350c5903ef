"""The second engine agrees with the first: one axis written out at enough sizes, against sums in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import z3

from placealg.arith import ONE
from placealg.check.prove import judge
from placealg.frozen import FrozenMap
from placealg.mesh import Mesh
from placealg.model.config import resolve_model
from placealg.prove import cutoff, prover
from placealg.prove.contribution import UNIT, Term, merged, sum_over
from placealg.prove.correct import constants
from placealg.prove.cutoff import LEMMA, degree, examine_by_cutoff, least_size, roots, unroll
from placealg.prove.obligations import Obligations
from placealg.prove.prover import examine
from placealg.prove.verdict import CUTOFF, PROVED, REFUTED, UNDECIDED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Group, Step
from placealg.strategy.expression import parse_strategy

SLOW = pytest.mark.slow
PROVED_BOTH_WAYS = [("dp", "abstract"), ("zero1", "abstract"), ("zero3", "abstract"), ("tp_sp", "llama-3-70b"),
                    pytest.param("hsdp", "abstract", marks=SLOW), pytest.param("zero1*tp", "llama-3-70b", marks=SLOW)]


def step_of(strategy: str, model: str) -> Step:
    return derive(parse_strategy(strategy), resolve_model(model))


@pytest.mark.parametrize("strategy, model", PROVED_BOTH_WAYS)
def test_both_engines_prove_it(strategy: str, model: str) -> None:
    step = step_of(strategy, model)
    report, _ = judge(step, engine="cutoff")
    assert report.verdict == PROVED == judge(step)[0].verdict
    assert report.cls == CUTOFF and report.lemmas[0] == LEMMA
    axes = step.reference.mesh.names
    assert [line.split(":")[0] for line in report.lemmas[1:]] == [*axes, "sum_of_owner", "sum_of_constant"]


@pytest.mark.parametrize("strategy, model, change", [
    ("dp", "abstract", {"drop": "reduce.*.reduce[dp]"}),
    ("dp", "abstract", {"set": "reduce.*.reduce[dp]", "op": "sum"}),
    pytest.param("hsdp", "abstract", {"drop": "reduce.*.reduce[dp_replicate]"}, marks=SLOW),
    ("hsdp", "abstract", {"set": "update.*.norm", "where": "owner(dp_shard)"}),
    pytest.param("zero1*tp", "llama-3-70b", {"drop": "forward.layer.attn.out.all_reduce[tp]"}, marks=SLOW),
    pytest.param("zero1*tp", "llama-3-70b", {"double": "forward.layer.mlp.down.all_reduce[tp]"}, marks=SLOW),
    pytest.param("tp_sp", "llama-3-70b", {"drop": "reduce.layer.norm1.weight.grad_sum.reduce[tp]"}, marks=SLOW),
])
def test_both_engines_refute_it(strategy: str, model: str, change: dict[str, Any]) -> None:
    step = edit(step_of(strategy, model), **change)
    mine = {v.id for v in examine_by_cutoff(step)[0].verdicts if v.verdict != PROVED}
    assert mine == {v.id for v in examine(step).verdicts if v.verdict != PROVED} != set()


def test_sizes_are_one_more_than_the_degree_and_distinct_primes() -> None:
    """Below the first of them, where positions must coincide, every size is tried."""
    step = step_of("zero3", "abstract")
    run = unroll(step, "dp")
    assert len(set(run.roots)) == len(run.roots) == run.degree + 1 == degree(step, "dp") + 1
    assert run.roots == (7, 11, 13, 17, 19) and run.sizes == (2, 3, 4, 5, 6, *run.roots, 1)
    assert run.least == least_size(step, "dp") == 7


@pytest.mark.some(3)
@pytest.mark.parametrize("strategy, model", [*PROVED_BOTH_WAYS, ("zero3*tp_sp*pp*cp_ring*ep", "mixtral-8x7b"),
                                             ("hsdp*pp", "gpt2"), ("zero1*pp_interleaved", "gpt2")])
def test_no_question_has_more_positions_than_the_least_size(strategy: str, model: str) -> None:
    """At the least size, all positions that a question speaks of along an axis can differ."""
    step, asked, decide = step_of(strategy, model), set[str](), prover._decide

    def deciding(step: Step, group: Group, identifier: str, generated: Obligations) -> Any:
        asked.update(str(c) for f in generated.failures.values() for c in constants(f.formula))
        return decide(step, group, identifier, generated)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prover, "_decide", deciding)
        examine(step)
    for axis in step.reference.mesh.names:
        named = {n for n in asked if n.endswith(f"@{axis}") and not n.startswith("N[")}
        assert 1 <= len(named) < least_size(step, axis), named


def test_positions_of_stages_and_of_drawn_layouts_are_counted() -> None:
    assert least_size(step_of("hsdp*pp", "gpt2"), "pp") == 12
    drawn = edit(step_of("hsdp", "abstract"), {"insert": {
        "path": "update.layer.weight.skip.compute", "where": "owner(dp_shard)", "layout": "x(dp_replicate)"},
        "before": "update.layer.weight.norm"})
    assert least_size(drawn, "dp_shard") == least_size(step_of("hsdp", "abstract"), "dp_shard") + 12 == 19


@pytest.mark.slow
@pytest.mark.parametrize("rank, least", [(4, 6), pytest.param(12, 13, marks=SLOW)])
def test_a_fault_on_one_named_rank_is_found(rank: int, least: int) -> None:
    """Moments set to 0 on one rank alone: sizes that have no such rank say nothing about it."""
    step = edit(step_of("dp", "abstract"), {"insert": {
        "path": "publish.layer.weight.moments.assign", "where": f"rank(dp)={rank}"},
        "after": "publish.layer.weight.publish"})
    report, _ = judge(step, engine="cutoff")
    assert least_size(step, "dp") == least
    ended = {v.id: v.verdict for v in report.obligations}
    assert {i for i, verdict in ended.items() if verdict != PROVED} == {"invariant"}
    assert ended["invariant"] == REFUTED == judge(step)[0].verdict


UNEQUAL = {"loss": FrozenMap({"assume": ()})}
EVERY_MICROBATCH_ITS_MEAN = {"loss": FrozenMap({"reference": "microbatch_mean", "assume": ()})}


def stated(strategy: str, model: str, **tables: FrozenMap[str, Any]) -> Step:
    return derive(replace(parse_strategy(strategy), tables=FrozenMap(tables)), resolve_model(model))


@pytest.mark.slow
def test_weights_that_follow_the_tokens_of_ranks_have_no_degree(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refuted where a size shows it; that no size does would prove nothing."""
    step, right = stated("dp", "abstract", **UNEQUAL), examine(step_of("dp", "abstract"))
    assert {v.id for v in examine_by_cutoff(step)[0].verdicts if v.verdict == REFUTED} == {"normalizer"}
    monkeypatch.setattr(cutoff, "examine", lambda _: right)
    ended = {v.id: (v.verdict, "no degree" in v.reason) for v in examine_by_cutoff(step)[0].verdicts}
    assert {i for i, end in ended.items() if end == (UNDECIDED, True)} == {"gradient", "normalizer"}
    assert {end for i, end in ended.items() if i not in ("gradient", "normalizer")} == {(PROVED, False)}


@pytest.mark.slow
def test_weights_that_follow_the_tokens_of_microbatches_have_one() -> None:
    assert judge(stated("tp", "gpt", **EVERY_MICROBATCH_ITS_MEAN), engine="cutoff")[0].verdict == PROVED
    token_mean = stated("dp", "abstract", loss=FrozenMap({"preset": "token_mean"}))
    assert judge(token_mean, engine="cutoff")[0].verdict == PROVED


def right_at(size: int) -> Step:
    """Two faults: a dropped publish, and a sum of gradients divided by a number instead of the size of the axis."""
    return edit(step_of("zero1", "abstract"), {"drop": "publish.layer.weight.publish[dp]"},
                {"set": "*.grad*.reduce[dp]", "op": "sum", "divisor": str(size)})


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, *(pytest.param(n, marks=SLOW) for n in (3, 5))])
def test_what_is_right_at_one_size_is_refuted_at_another(size: int) -> None:
    """No obligation is proved at a size where another one fails: each is seen at every size of every axis."""
    report, candidates = judge(right_at(size), engine="cutoff")
    ended = {v.id: (v.verdict, v.cls) for v in report.obligations}
    assert ended == {v.id: (v.verdict, CUTOFF if v.verdict == PROVED else v.cls)
                     for v in judge(right_at(size))[0].obligations}
    assert report.refuted() == ("gradient", "normalizer", "invariant")
    assert report.counterexample and report.counterexample.obligation == "gradient"
    wrong_at = {c.verdict.id: c.model["dp"] for c in candidates}
    assert wrong_at == {"gradient": 3 if size == 2 else 2, "normalizer": 3 if size == 2 else 2, "invariant": 2}
    assert ("dp: of degree 3 at most, written out at 7, 11, 13, 17, and at all below 7, where positions must coincide"
            in report.lemmas)


@pytest.mark.parametrize("size, wrong", [(4, "sat"), (5, "unsat")])
def test_the_lemma_holds_of_no_smaller_number_of_sizes(size: int, wrong: str) -> None:
    """A polynomial of degree four with four roots need not be 0; with five it is."""
    run = unroll(step_of("zero1", "abstract"), "dp")
    fewer = replace(run, sizes=run.roots[:size])
    solver = z3.Solver()
    solver.add(roots(fewer))
    assert (run.degree, str(solver.check())) == (4, wrong)


def test_a_step_without_axes_has_no_sums() -> None:
    plain = Step(replace(step_of("dp", "abstract").reference, mesh=Mesh(()), data_axes=()), ())
    found, runs = examine_by_cutoff(plain)
    assert [(v.id, v.verdict, v.cls) for v in found.verdicts] == [
        (v.id, v.verdict, v.cls) for v in examine(plain).verdicts] and runs == ()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_written_out_sum_is_the_closed_form_at_that_size(ranks: int) -> None:
    once = Term(ONE, FrozenMap({"dp": UNIT}))
    assert sum_over([once], "dp", ranks) == merged([once.summed("dp")])
    assert sum_over([once, once], "dp", ranks)[0].coefficient.coefficient == 2


def test_a_rank_that_is_left_out_shows() -> None:
    some = [Term(ONE, FrozenMap({"dp": "0"}), frozenset({("dp", "0", "unit")}))]
    assert sum_over(some, "dp", 3) != (Term(ONE),)
