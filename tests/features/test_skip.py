"""Steps that overflow are skipped on all ranks or on none: derivation, runs with and without a skip, proofs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from agreement import compare

from placealg.check.prove import judge, prove
from placealg.errors import InputError
from placealg.models.abstract import abstract
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.prover.evidence.certificate import certificate
from placealg.prover.verdict import CUTOFF, PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.simulator.device import trajectory
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.event import Clause
from placealg.step.lower import of_ops
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

GPT = resolve_model("gpt")
MLP = resolve_model("mlp")
FLAG, REDUCED = "update.layer.weight.skip.compute", "update.skip.all_reduce*"


def step_of(base: str, model: Model | None = None, tables: str = '[optimizer]\nskip = "overflow"\n') -> Step:
    tables += '[dims]\ntp = ["ffn", "vocab"]\n' if model is MLP else ""
    return derive(parse_strategy_file(f'base = "{base}"\n{tables}').strategy, model or abstract())


def flags(step: Step) -> list[str]:
    return [e.path for e in step.events if e.value == "skip"]


@pytest.mark.parametrize(("base", "axes"), [
    ("dp", ""), ("zero1", "[dp]"), ("zero3", "[dp]"), ("hsdp", "[dp_shard]"), ("zero2*offload_optimizer", "[dp]"),
])
def test_flags_are_reduced_over_the_axes_that_split_gradients(base: str, axes: str) -> None:
    assert flags(step_of(base)) == [FLAG, *([f"update.skip.all_reduce{axes}"] if axes else [])]


def test_nothing_is_skipped_unless_a_strategy_says_so() -> None:
    assert flags(step_of("zero3", tables="")) == []
    assert not step_of("zero3", tables="").reference.skip


@pytest.mark.parametrize(("base", "axes"), [("tp", "tp"), ("zero3*tp_sp", "dp,tp"), ("zero1*pp", "dp,pp")])
def test_a_flag_for_every_group_of_a_model(base: str, axes: str) -> None:
    step = step_of(base, GPT)
    assert flags(step)[-1] == f"update.skip.all_reduce[{axes}]"
    assert len(flags(step)) == len(step.reference.groups) + 1
    report = prove(step)
    assert (report.verdict, report.cls) == (PROVED, PARAMETRIC)


@pytest.mark.parametrize("loss", ["", '[loss]\npreset = "token_mean"\n'])
@pytest.mark.parametrize("base", ["dp", "zero1", "zero2", "zero3", "hsdp", "zero1*offload_optimizer"])
def test_strategies_that_skip_are_proved_and_run_alike(base: str, loss: str) -> None:
    found = compare(step_of(base, tables=f'[optimizer]\nskip = "overflow"\n{loss}'))
    assert (found.report.verdict, found.complaint) == (PROVED, "")


def test_a_flag_looks_at_nothing_but_what_its_rank_owns() -> None:
    """Beside what it owns, a rank may hold what an all_gather for the update has left."""
    tables = '[optimizer]\nskip = "overflow"\nclip = "none"\n'
    tables += '[states]\noptimizer = { dp_replicate = "S", dp_shard = "R" }\n'
    assert compare(edit(step_of("hsdp", tables=tables), set=FLAG, where="all")).complaint == ""
    tables += 'gradients = { dp_replicate = "S", dp_shard = "S" }\n'
    step = step_of("hsdp", tables=tables)
    assert compare(step).complaint == ""
    assert prove(step).verdict == PROVED
    everywhere = edit(step, set=FLAG, where="all")
    assert compare(everywhere).complaint == ""
    assert prove(everywhere).verdict == REFUTED


@pytest.mark.parametrize("base", ["dp", "zero3"])
def test_steps_are_skipped_in_some_runs_and_not_in_others(base: str) -> None:
    step, outcomes = step_of(base), set()
    for seed in range(6):
        setting = Setting.equal(step.reference, {"dp": 2}, 2, 1, seed=seed)
        assert simulate(step, setting).equal
        for before, after in itertools.pairwise(trajectory(of_ops(step.reference), setting, 2)):
            skipped = after.step == before.step
            outcomes.add(skipped)
            assert after.rng == before.rng + 1
            assert skipped == (after.weight == before.weight)
            assert skipped == (after.moments == before.moments)
    assert outcomes == {True, False}


def test_steps_of_op_graphs_are_skipped_in_some_runs_and_not_in_others() -> None:
    step, counted = step_of("zero1*tp", MLP), set()
    for seed in range(6):
        setting = Setting.equal(step.reference, {"dp": 2, "tp": 2}, 1, 1, seed=seed)
        assert simulate(step, setting).equal
        counted.add(int(trajectory(step.reference, setting, 2)[-1].step))
    assert len(counted) > 1


@pytest.mark.parametrize(("base", "changes", "obligation", "says"), [
    ("zero1", [{"drop": REDUCED}], "update", "leaves elements of the group out"),
    ("zero1", [{"move": REDUCED, "before": FLAG}], "update", "leaves elements of the group out"),
    ("zero1", [{"move": REDUCED, "after": "update.step.update"}], "update", "leaves elements of the group out"),
    ("hsdp", [{"set": REDUCED, "axes": ["dp_replicate"]}], "update", "leaves elements of the group out"),
    ("zero3", [{"drop": FLAG}], "update", "no flag"),
    ("dp", [{"set": FLAG, "where": "rank(dp)=0"}], "update", "leaves elements of the group out"),
    ("dp", [{"set": FLAG, "where": "owner(dp)"}], "update", "leaves elements of the group out"),
    ("dp", [{"move": FLAG, "before": "reduce.*.grad_sum.reduce*"}], "gradient", ""),
    ("dp", [{"move": FLAG, "after": "update.*.clip"}], "update", "clipped"),
    ("dp", [{"move": FLAG, "after": "update.*.update"}], "update", "no flag"),
    ("zero1", [{"move": "update.step.update", "before": FLAG}], "update", ""),
])
def test_other_decisions_than_the_reference_s_are_refuted(base: str, changes: list[dict[str, Any]], obligation: str,
                                                          says: str) -> None:
    derived = step_of(base)
    found = compare(edit(derived, *changes))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")
    assert obligation in found.report.refuted()
    assert found.report.counterexample is not None
    assert says in found.report.counterexample.got


@pytest.mark.parametrize(("base", "changes"), [
    ("zero1", [{"double": FLAG}]),
    ("zero1", [{"double": REDUCED}]),
    ("zero1", [{"set": REDUCED, "op": "sum"}]),
    ("zero1", [{"set": REDUCED, "op": "mean"}]),
    ("hsdp", [{"set": REDUCED, "axes": ["dp_replicate", "dp_shard"]}]),
    ("dp", [{"set": FLAG, "where": "owner(dp)"}, {"insert": {"path": "update.skip.all_reduce[dp]", "op": "max"},
                                                  "after": FLAG}]),
])
def test_looking_twice_is_harmless(base: str, changes: list[dict[str, Any]]) -> None:
    found = compare(edit(step_of(base), *changes))
    assert (found.report.verdict, found.complaint) == (PROVED, "")


@pytest.mark.parametrize("where", [{"before": "update.layer.weight.norm"}, {"after": "update.layer.weight.update"},
                                   {"after": "update.rng.update"}])
def test_a_reference_that_skips_nothing_holds_no_flag(where: dict[str, str]) -> None:
    found = compare(edit(step_of("zero1", tables=""), insert={"path": FLAG}, **where))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")


def test_a_forgotten_group_is_refuted_and_put_back() -> None:
    derived = step_of("zero3*tp_sp", GPT)
    found = prove(edit(derived, drop="update.layer.norm1.weight.skip.compute"), derived).counterexample
    assert found is not None and found.repair is not None
    assert (found.group, found.got) == ("layer.norm1.weight", "no flag")
    assert found.repair.edit.startswith('[[edit]]\ninsert = { path = "update.layer.norm1.weight.skip.compute"')


@pytest.mark.slow
def test_stages_between_the_ends_need_the_flag_of_a_tied_group() -> None:
    derived = step_of("pp", GPT)
    late = edit(derived, move="update.embedding.weight.skip.compute", after=REDUCED)
    assert prove(late).verdict == REFUTED
    at_rank_0 = edit(step_of("zero1*pp", GPT), set="update.embedding.weight.skip.compute",
                     where="owner(dp), rank(pp)=0")
    assert prove(at_rank_0).verdict == PROVED
    assert all(simulate(at_rank_0, Setting.equal(at_rank_0.reference, {"dp": 2, "pp": 3}, 1, 1, seed=k)).equal
               for k in range(3))


def test_groups_at_risk_overflow_and_no_others() -> None:
    step = step_of("tp", MLP)
    dropped = edit(step, drop="update.*.skip.compute")
    names = [g.name for g in step.reference.groups]
    runs = [Setting.equal(step.reference, {"tp": 2}, 1, 1, seed=k) for k in range(6)]
    for name in names:
        assert all(simulate(step, replace(run, at_risk=(name,))).equal for run in runs)
        assert not all(simulate(dropped, replace(run, at_risk=(name,))).equal for run in runs)


def test_a_flag_inside_the_loop_is_left_open() -> None:
    step = edit(step_of("zero3"), move=FLAG, after="backward.layer.weight.grad_sum.accumulate")
    assert any("a flag inside the loop" in v.reason for v in prove(step).obligations)


@pytest.mark.slow
def test_the_second_engine_proves_and_refutes_flags() -> None:
    step = step_of("zero1")
    assert (judge(step, engine="cutoff")[0].verdict, judge(step, engine="cutoff")[0].cls) == (PROVED, CUTOFF)
    assert judge(edit(step, drop=REDUCED), engine="cutoff")[0].verdict == REFUTED


@pytest.mark.parametrize("change", [{}, {"drop": REDUCED}])
def test_certificates_hold_what_is_said_of_flags(change: dict[str, Any]) -> None:
    pytest.importorskip("cvc5")
    from placealg.prover.evidence.replay import AGREE, asked, replays
    step = step_of("zero1")
    step = edit(step, change) if change else step
    report, candidates = judge(step)
    queries = certificate(step, report, candidates)
    wanted = [q for q in queries if q.obligation == "update"]
    assert {q.expected for q in wanted} == {"sat" if change else "unsat"}
    assert any("update.step.update skips the step or not" in q.text for q in wanted)
    assert {r.outcome for r in replays(asked(wanted))} == {AGREE}


def test_largest_and_premultiplied_have_their_values() -> None:
    with pytest.raises(InputError, match="op = 'max' is for flags"):
        edit(step_of("zero1"), set="update.norm.all_reduce*", op="max")
    with pytest.raises(InputError, match="op = 'premultiplied' is for gradients and tensors"):
        edit(step_of("zero1"), set=REDUCED, op="premultiplied")


@pytest.mark.parametrize(("base", "divisor", "mass"), [
    ("dp", "dp", ""), ("zero3", "dp", ""), ("dp", "dp*dp", "1/dp"), ("zero3", "m", "dp/m"),
])
def test_premultiplied_is_a_mean_with_the_number_of_ranks(base: str, divisor: str, mass: str) -> None:
    pattern = "*.grad.reduce[dp]" if base == "zero3" else "*.grad_sum.reduce[dp]"
    found = compare(edit(step_of(base, tables=""), set=pattern, op="premultiplied", divisor=divisor))
    assert (found.report.verdict, found.complaint) == (REFUTED if mass else PROVED, "")
    counterexample = found.report.counterexample
    assert (counterexample.mass if counterexample else "") == mass


def test_premultiplied_by_each_rank_s_own_tokens() -> None:
    """The sum of local sums over the rank's own tokens, and the mean over ranks: a mean of means."""
    changes = [{"set": "forward.loss.compute", "divisor": 1}, {"drop": "backward.loss.scale"},
               {"set": "*.grad_sum.reduce[dp]", "op": "premultiplied", "divisor": "dp*tokens"}]
    found = compare(edit(step_of("dp", tables=""), *changes))
    assert (found.report.verdict, found.complaint) == (PROVED, "")
    late = [*changes[:2], {"set": "*.grad_sum.reduce[dp]", "op": "sum", "divisor": "dp*tokens"}]
    assert compare(edit(step_of("dp", tables='[loss]\nassume = []\n'), *late)).report.refuted() == ("normalizer",)


@pytest.mark.parametrize(("fields", "verdict"), [
    ({"op": "premultiplied"}, PROVED), ({"op": "premultiplied", "divisor": "tp"}, REFUTED),
])
def test_premultiplied_sums_of_tensors(fields: dict[str, Any], verdict: str) -> None:
    step = step_of("tp", MLP, tables="")
    path = next(e.path for e in step.phase("forward") if e.verb == "all_reduce")
    report = prove(edit(step, {"set": path, **fields}))
    assert report.verdict == verdict
    assert report.counterexample is None or report.counterexample.mass == "1/tp"


def test_a_mean_of_a_tensor_is_premultiplied_by_the_number_of_ranks() -> None:
    step = step_of("tp", MLP, tables="")
    path = next(e.path for e in step.phase("forward") if e.verb == "all_reduce")
    setting = Setting.equal(step.reference, {"tp": 3}, 1, 1)
    runs = [simulate(edit(step, set=path, **how), setting, 1).difference
            for how in ({"op": "mean"}, {"op": "premultiplied", "divisor": "tp"})]
    assert runs[0] is not None and runs[0] == runs[1]


def test_a_stage_by_its_number_is_no_end_of_every_pipeline() -> None:
    step = step_of("pp", GPT, tables="")
    path = "publish.embedding.weight.publish"
    halves = [[replace(e, where=(Clause("pp", k),), copy=k + 1) for k in (0, 1)] if e.path == path else [e]
              for e in step.events]
    found = replace(step, events=tuple(e for half in halves for e in half))
    assert simulate(found, Setting.equal(step.reference, {"pp": 2}, 1, 1)).equal
    assert not simulate(found, Setting.equal(step.reference, {"pp": 3}, 1, 1)).equal
    assert prove(found).verdict == REFUTED


def test_a_counterexample_of_a_tied_group_speaks_of_stages() -> None:
    step = step_of("zero1*pp", GPT, tables="")
    found = prove(edit(step, set="reduce.embedding.weight.grad_sum.reduce[dp]", where="rank(pp)=0")).counterexample
    assert found is not None
    assert set(dict(found.sizes)) == {"dp", "pp", "m"} and set(dict(found.device)) == {"dp", "pp"}
    twice = prove(edit(step, double="reduce.embedding.weight.grad_sum.reduce[pp]")).counterexample
    assert twice is not None and twice.mass == "2"


def test_a_divisor_is_for_what_divides() -> None:
    step = step_of("zero1", abstract(), tables="")
    for path in ("update.step.update", "update.layer.weight.norm"):
        with pytest.raises(InputError, match=r"divides nothing, and takes no divisor"):
            edit(step, set=path, divisor="dp")


def test_a_parameter_has_no_versions() -> None:
    step = step_of("tp", GPT, tables="")
    event = next(e for e in step.phase("forward") if "layer.attn.out.bias" in e.reads)
    reads = [f"{r}@tp" if r == "layer.attn.out.bias" else r for r in event.reads]
    with pytest.raises(InputError, match=r"a parameter has no versions"):
        edit(step, set=event.path, reads=reads)


@pytest.mark.parametrize(("label", "part"), [("cp", "cp"), ("tp/cp", "cp"), ("tp_cp", "tp_cp"),
                                             ("nonsense", "nonsense"), ("tpp", "tpp"), ("tp_", "tp_"),
                                             ("tp/nonsense/tp", "nonsense")])
def test_a_version_is_labelled_by_axes_of_the_mesh(label: str, part: str) -> None:
    """Each part of a label says on which axes a copy differs from its source."""
    step = step_of("tp", GPT, tables="")
    path = "forward.layer.attn.out.all_reduce[tp]"
    said = f"'{part}' names no axes of the mesh"
    with pytest.raises(InputError, match=rf"version is '?\"?{label}.*{said}.*tp"):
        edit(step, set=path, version=label)
    with pytest.raises(InputError, match=rf"{said}.*tp"):
        edit(step, set="forward.layer.mlp.up.compute", reads=[f"layer.norm2.out@{label}", "layer.mlp.up.weight"])
    for known in ("tp", "tp2", "tp/tp", "tp/tp2"):
        assert edit(step, set=path, version=known).event(f"{path}").version == known


def test_the_ends_of_a_pipeline_have_a_name_that_no_axis_beside_it_has() -> None:
    with pytest.raises(InputError, match="axis name 'pp_ends' is taken: it means the first and the last of pp"):
        parse_strategy("dp[pp_ends]*pp")
    assert parse_strategy("dp[pp_ends]").mesh.names == ("pp_ends",)
