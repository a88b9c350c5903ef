"""The second engine agrees with the first: one axis written out at enough sizes, against sums in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from placealg.arith import ONE
from placealg.check.prove import judge
from placealg.frozen import FrozenMap
from placealg.model.config import resolve_model
from placealg.prove.contribution import UNIT, Term, merged, sum_over
from placealg.prove.cutoff import LEMMA, degree, examine_by_cutoff, unroll
from placealg.prove.prover import examine
from placealg.prove.verdict import CUTOFF, PROVED, UNDECIDED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

PROVED_BOTH_WAYS = [("dp", "abstract"), ("zero1", "abstract"), ("zero3", "abstract"), ("hsdp", "abstract"),
                    ("zero1*tp", "llama-3-70b"), ("tp_sp", "llama-3-70b")]


def step_of(strategy: str, model: str) -> Step:
    return derive(parse_strategy(strategy), resolve_model(model))


@pytest.mark.parametrize("strategy, model", PROVED_BOTH_WAYS)
def test_both_engines_prove_it(strategy: str, model: str) -> None:
    step = step_of(strategy, model)
    report, _ = judge(step, engine="cutoff")
    assert report.verdict == PROVED == judge(step)[0].verdict
    assert report.cls == CUTOFF and report.lemmas[0] == LEMMA
    assert [line.split(":")[0] for line in report.lemmas[1:]] == list(step.reference.mesh.names)


@pytest.mark.parametrize("strategy, model, change", [
    ("dp", "abstract", {"drop": "reduce.*.reduce[dp]"}),
    ("dp", "abstract", {"set": "reduce.*.reduce[dp]", "op": "sum"}),
    ("hsdp", "abstract", {"drop": "reduce.*.reduce[dp_replicate]"}),
    ("hsdp", "abstract", {"set": "update.*.norm", "where": "owner(dp_shard)"}),
    ("zero1*tp", "llama-3-70b", {"drop": "forward.layer.attn.out.all_reduce[tp]"}),
    ("zero1*tp", "llama-3-70b", {"double": "forward.layer.mlp.down.all_reduce[tp]"}),
    ("tp_sp", "llama-3-70b", {"drop": "reduce.layer.norm1.weight.grad_sum.reduce[tp]"}),
])
def test_both_engines_refute_it(strategy: str, model: str, change: dict[str, Any]) -> None:
    step = edit(step_of(strategy, model), **change)
    mine = {v.id for v in examine_by_cutoff(step)[0].verdicts if v.verdict != PROVED}
    assert mine == {v.id for v in examine(step).verdicts if v.verdict != PROVED} != set()


def test_sizes_are_one_more_than_the_degree_and_distinct_primes() -> None:
    step = step_of("zero3", "abstract")
    run = unroll(step, "dp")
    assert len(set(run.sizes)) == len(run.sizes) == run.degree + 1 == degree(step, "dp") + 1
    assert run.sizes[:4] == (2, 3, 5, 7)


def test_weights_that_follow_the_tokens_have_no_degree() -> None:
    step = step_of("dp", "abstract")
    alone = replace(step, reference=replace(step.reference, hypotheses=(), weighting="microbatch_mean",
                                            data_axes=()), events=tuple(e for e in step.events))
    kept = [e for e in alone.events if "dp" not in e.axes or e.phase != "reduce"]
    found, _ = examine_by_cutoff(replace(alone, events=tuple(kept)))
    told = [v for v in found.verdicts if v.id in ("gradient", "normalizer")]
    assert told and all(v.verdict == UNDECIDED and "no degree" in v.reason for v in told)
    token_mean = replace(parse_strategy("dp"), tables=FrozenMap({"loss": FrozenMap({"preset": "token_mean"})}))
    assert judge(derive(token_mean, resolve_model("abstract")), engine="cutoff")[0].verdict == PROVED


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_written_out_sum_is_the_closed_form_at_that_size(ranks: int) -> None:
    once = Term(ONE, FrozenMap({"dp": UNIT}))
    assert sum_over([once], "dp", ranks) == merged([once.summed("dp")])
    assert sum_over([once, once], "dp", ranks)[0].coefficient.coefficient == 2


def test_a_rank_that_is_left_out_shows() -> None:
    some = [Term(ONE, FrozenMap({"dp": "0"}), frozenset({("dp", "0", "unit")}))]
    assert sum_over(some, "dp", 3) != (Term(ONE),)
