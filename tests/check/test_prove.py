"""The prover: what must be proved is proved, what must be refuted is refuted, for the stated reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agreement import compare

from placealg.check import refutation
from placealg.check.prove import prove
from placealg.models.abstract import abstract
from placealg.models.config import resolve_model
from placealg.models.transformer import moe
from placealg.prover.evidence import lemmas
from placealg.prover.evidence.solver import UNKNOWN, Reply, SolverProcess
from placealg.prover.examine import examine
from placealg.prover.verdict import BOUNDED, OBLIGATIONS, PARAMETRIC, PROVED, REFUTED, UNDECIDED, Report
from placealg.simulator.run import Difference, Outcome
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Event, Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

CATALOGUE = ("dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "offload_optimizer",
             "zero1*offload_optimizer", "zero2*offload_optimizer", "zero3*offload_optimizer",
             "hsdp*offload_optimizer", "zero3[inner]*zero1[outer]", "dp[dp_replicate]*zero3[dp_shard]")
LOSSES = {"mean_of_means": "", "token_mean": '[loss]\npreset = "token_mean"\n'}


def step_of(text: str, model: str = "abstract") -> Step:
    """The derived step of an expression or of a strategy file's text."""
    strategy = parse_strategy_file(text).strategy if "\n" in text or "=" in text else parse_strategy(text)
    return derive(strategy, abstract() if model == "abstract" else resolve_model(model))


@pytest.mark.parametrize(("text", "model", "verbs"), [("pp", "mlp", {"send", "recv"}), ("cp_ring", "gpt", {"shift"})])
def test_messages_between_stages_and_round_a_ring_are_followed(text: str, model: str, verbs: set[str]) -> None:
    step = step_of(text, model)
    assert {e.verb for e in step.events} >= verbs and prove(step).verdict == PROVED


def test_blocks_filled_up_with_zeros_are_followed() -> None:
    """A split tensor, filled up with zeros to the whole and reduce-scattered, is what it was."""
    step = step_of('[mesh]\ntp = "symbolic"\n[dims]\ntp = ["ffn"]\n[states]\n', "mlp")
    made = next(k for k, e in enumerate(step.events, 1) if e.verb == "compute" and e.tensor == "layer.mlp.up")
    block: dict[str, Any] = {"value": "layer.mlp.up", "axes": ("tp",), "unit": "layer", "copy": 7}
    put_in = (Event("forward", "pad", source="S(ffn)", **block),
              Event("forward", "reduce_scatter", to="S(ffn)", op="sum", **block))
    assert prove(replace(step, events=(*step.events[:made], *put_in, *step.events[made:]))).verdict == PROVED


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("strategy", CATALOGUE)
def test_every_strategy_is_proved_for_all_sizes(strategy: str, loss: str) -> None:
    report = prove(step_of(f'base = "{strategy}"\n{LOSSES[loss]}'))
    assert (report.verdict, report.cls) == (PROVED, PARAMETRIC)
    assert {v.id for v in report.obligations} == set(OBLIGATIONS)
    assert any(h.name == "equal_counts" for h in report.hypotheses) == (loss == "mean_of_means")
    assert report.not_covered and report.lemmas


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adafactor", "lamb"])
@pytest.mark.parametrize("model", ["gpt2", "llama-3-70b"])
def test_real_models_are_proved_group_by_group(model: str, optimizer: str) -> None:
    step = step_of(f'base = "zero3"\n[optimizer]\nname = "{optimizer}"\n', model)
    report = prove(step)
    assert report.verdict == PROVED
    assert {v.group for v in report.of("gradient")} == {g.name for g in step.reference.groups}


ADAMW_TOKENS = 'base = "{}"\n[loss]\npreset = "token_mean"\n'
REFUTED_EDITS: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("dp", {"drop": "reduce.*.grad_sum.reduce[dp]"}, "gradient", "1"),
    ("dp", {"set": "*.grad_sum.reduce[dp]", "op": "sum"}, "gradient", "dp"),
    ("zero1", {"drop": "publish.*"}, "invariant", None),
    (ADAMW_TOKENS.format("dp"), {"double": "*.grad_sum.reduce[dp]"}, "gradient", "dp"),
    ("dp", {"move": "reduce.*.grad_sum.reduce[dp]", "before": "backward.*.grad_sum.accumulate", "at": "last"},
     "gradient", "1"),
    ("dp", {"set": "grad_sum.accumulate", "verb": "assign"}, "gradient", "1/m"),
    ("dp", {"drop": "prepare.*.grad_sum.zero"}, "gradient", None),
    ("hsdp", {"set": "init.*.broadcast*", "axes": ["dp_shard"]}, "init", None),
    ("zero3", {"drop": "update.norm.all_reduce*"}, "update", "1/dp"),
    ("hsdp", {"set": "update.*.norm", "where": "owner(dp_shard)"}, "update", "dp_replicate"),
    ('base = "zero1"\n[optimizer]\nname = "muon"\n', {"drop": "update.*.grad_sum.all_gather*"}, "update", None),
    ("zero3", {"drop": "resume.*.master.*"}, "init", None),
    ("zero2*offload_optimizer", {"drop": "resume.*.master.*"}, "init", None),
    ("zero3", {"drop": "forward.*.gather*"}, "view", None),
    ("zero3", {"drop": "forward.layer.compute"}, "forward", None),
    ("zero3", {"drop": "update.*.clip"}, "update", None),
    ("zero3", {"double": "update.*.clip"}, "update", None),
    ("zero3", {"drop": "update.rng.update"}, "invariant", None),
    ("zero3", {"set": "*.grad.reduce[dp]", "where": "rank(dp)=0"}, "schedule", None),
    ("zero1*offload_optimizer", {"drop": "publish.*.fetch"}, "invariant", None),
]


@pytest.mark.parametrize(("base", "change", "obligation", "mass"), REFUTED_EDITS,
                         ids=[f"{b.split(chr(10))[0]} {c}" for b, c, _, _ in REFUTED_EDITS])
def test_broken_programs_are_refuted_with_a_replay(base: str, change: dict[str, Any], obligation: str,
                                                   mass: str) -> None:
    derived = step_of(base)
    assert prove(derived).verdict == PROVED
    report = prove(edit(derived, **change), derived)
    assert (report.verdict, report.cls) == (REFUTED, BOUNDED)
    found = report.counterexample
    assert found is not None
    assert found.obligation in (report.refuted()[0], "schedule")
    assert obligation in report.refuted()
    assert found.mass == mass
    assert found.single_device != found.distributed.split(" (")[0]
    assert all(2 <= n <= 3 for axis, n in found.sizes if axis != "m")


@pytest.mark.parametrize(("base", "change"), [
    ("dp", {"double": "*.grad_sum.reduce[dp]"}),
    ("zero3", {"drop": "*.free*"}),
    ("zero3", {"double": "*.gather*"}),
    ("zero3", {"double": "init.*"}),
    ("dp", {"double": "publish.*"}),
])
def test_harmless_changes_stay_proved(base: str, change: dict[str, Any]) -> None:
    assert prove(edit(step_of(base), **change)).verdict == PROVED


def test_replicated_gradients_need_no_reduction_of_the_norm() -> None:
    step = edit(step_of("dp"), {"set": "update.*.norm", "where": "all"}, {"drop": "update.norm.all_reduce*"})
    assert compare(step).complaint == ""
    assert prove(step).verdict == PROVED


def test_layouts_that_disagree_are_refuted_as_such() -> None:
    base = step_of("zero1")
    report = prove(edit(base, set="publish.*", layout="other"), base)
    assert report.refuted()[0] == "partition"
    everywhere = replace(base, events=tuple(replace(e, layout="other") for e in base.events))
    assert prove(everywhere).verdict == PROVED


@pytest.mark.parametrize("change", [
    {"set": "publish.*", "from": "weight"},
    {"set": "update.norm.all_reduce*", "divisor": "2"},
    {"set": "publish.*", "tier": "host"},
])
def test_what_no_rule_covers_is_refuted_by_a_run_alone(change: dict[str, Any]) -> None:
    report = prove(edit(step_of("dp"), change))
    assert (report.verdict, report.refuted()) == (REFUTED, ("invariant",))
    found = report.counterexample
    assert found and "cannot be followed, only run: no transfer rule" in found.explanation
    assert {v.verdict for v in report.of("gradient")} == {UNDECIDED}


@pytest.mark.slow
def test_what_a_resumed_run_alone_shows_is_refuted_too() -> None:
    """Experts' weights on every rank: foreign ones are loaded as master weights, and no update changes them."""
    step = edit(derive(parse_strategy("zero1*ep"), moe()), set="publish.layer.weight.publish[dp]", axes=["dp", "ep"])
    report = prove(step, derive(parse_strategy("zero1*ep"), moe()))
    assert (report.verdict, report.refuted()) == (REFUTED, ("init",))
    found = report.counterexample
    assert found and found.explanation.startswith(
        "save.layer.weight.moments.store reads a copy that resuming did not restore, in step 1 after it")
    assert "of the resumed run: save.layer.weight.moments.store" in found.distributed and found.repair
    assert {v.verdict for v in report.of("invariant")} == {PROVED, UNDECIDED}
    findings = examine(step)
    blind = replace(findings, candidates=tuple(c for c in findings.candidates if c.verdict.id != "init"))
    seen, replays = refutation._resuming(step, blind, tuple(refutation._replays(step, blind)))
    assert len(seen.candidates) == len(blind.candidates) + 1 == len(replays), "though the prover blamed nothing for it"
    assert seen.candidates[-1].verdict.reason == "cannot be followed, only run: a resumed run differs"


def test_what_no_rule_covers_is_undecided_where_no_run_differs() -> None:
    report = prove(edit(step_of("dp"), set="update.norm.all_reduce*", to="R"))
    assert (report.verdict, report.refuted()) == (UNDECIDED, ())


@pytest.mark.parametrize("changes", [
    [{"set": "update.*.norm", "where": "rank(dp)=1"}],
    [{"drop": "backward.loss.scale"}, {"set": "reduce.*.grad_sum.reduce*", "divisor": "m*m"}],
])
def test_holes_that_were_found_stay_closed(changes: list[dict[str, Any]]) -> None:
    assert prove(edit(step_of("dp"), *changes)).verdict == REFUTED


def test_a_mean_of_means_needs_equal_counts() -> None:
    report = prove(step_of('base = "dp"\n[loss]\nassume = []\n'))
    assert report.verdict == REFUTED
    assert report.refuted() == ("normalizer",)
    assert report.of("gradient")[0].verdict == PROVED


def test_a_random_stream_keyed_by_rank_is_refuted() -> None:
    report = prove(step_of('base = "dp"\n[random]\ndropout = ["rank(dp)"]\n'))
    assert report.refuted() == ("random",)


def test_a_clip_needs_the_norm_of_every_group() -> None:
    base = derive(parse_strategy("dp"), resolve_model("gpt2"))
    found = {(e.verb, e.group): e for e in base.events if e.phase == "update"}
    total = base.event("update.norm.all_reduce[dp]")
    groups = [g.name for g in base.reference.groups]
    first, others = groups[0], groups[1:]
    order = [found["norm", first], total, found["clip", first], *(found["norm", g] for g in others),
             replace(total, copy=2), *(found["clip", g] for g in others)]
    rest = [e for e in base.events if e.phase == "update" and e not in order]
    position = next(k for k, e in enumerate(base.events) if e.phase == "update")
    kept = [e for e in base.events if e.phase != "update"]
    report = prove(replace(base, events=(*kept[:position], *order, *rest, *kept[position:])))
    assert "update" in report.refuted()


def test_one_repair_is_found_and_priced() -> None:
    base = step_of("dp")
    found = prove(edit(base, drop="reduce.*.grad_sum.reduce[dp]"), base).counterexample
    assert found is not None and found.repair is not None
    assert found.repair.edit.startswith('[[edit]]\ninsert = { path = "reduce.layer.weight.grad_sum.reduce[dp]"')
    assert "2·Ψ·wire·(dp − 1)/dp" in found.repair.cost


@pytest.mark.parametrize(("base", "change", "cost"), [
    ("zero3*offload_parameters", {"drop": "forward.*.fetch*"}, "host link Ψ·w·(m + 1)/dp -> Ψ·w·(2·m + 1)/dp bytes"),
    ("zero3*offload_optimizer", {"drop": "publish.*.fetch*"}, "host link "),
    ("zero1", {"double": "publish.*"}, ""),
])
def test_a_repair_is_priced_on_every_link(base: str, change: dict[str, Any], cost: str) -> None:
    whole = step_of(base)
    found = prove(edit(whole, change), whole)
    if not cost:
        assert found.verdict == PROVED
        return
    assert found.counterexample and found.counterexample.repair
    assert found.counterexample.repair.cost.startswith(cost)


@pytest.mark.parametrize(("at", "mass"), [
    (["only", "first", "last"], "2/m"), (["only", "first"], "1/m"), (["only", "first", "middle"], "(m - 1)/m"),
    (["first", "last"], "2/m"), (["middle", "only"], "(m - 2)/m")])
def test_the_mass_of_some_microbatches_is_told_in_one_piece(at: list[str], mass: str) -> None:
    found = prove(edit(step_of("dp"), {"set": "backward.*.accumulate", "at": at}))
    assert found.counterexample and found.counterexample.mass == mass


def test_a_report_has_no_truth_value() -> None:
    report = prove(step_of("dp"))
    with pytest.raises(TypeError):
        bool(report)
    with pytest.raises(TypeError):
        bool(report.obligations[0])


def test_unknown_is_never_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lemmas.PROCESS, "ask", lambda *_, **__: Reply(UNKNOWN, {}, "gave up"))
    assert _verdict_of_dp() == UNDECIDED
    lemmas._proved.cache_clear()
    report = prove(step_of("dp"))
    assert report.verdict == UNDECIDED
    assert {o.reason for o in report.obligations} == {
        "lemma sum_of_owner is not proved: gave up", "no model of the premises was found at sizes 3: gave up"}


def test_nothing_is_proved_on_an_unproved_lemma(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refuted replays on the simulator, and stays refuted; all else is open."""
    def ask(assertions: Any, **_: Any) -> Reply:
        return Reply(UNKNOWN, {}, "killed") if "tau" in str(assertions) else plain(assertions)

    plain = lemmas.PROCESS.ask
    lemmas._proved.cache_clear()
    monkeypatch.setattr(lemmas.PROCESS, "ask", ask)
    assert {o.verdict for o in prove(step_of("zero3")).obligations} == {UNDECIDED}
    dropped = edit(step_of("dp"), {"drop": "reduce.*.grad_sum.reduce[dp]"})
    assert {o.verdict for o in prove(dropped).obligations} == {UNDECIDED, REFUTED}


@pytest.mark.parametrize(("resumed", "verdict", "says"), [
    (False, REFUTED, ""), (True, UNDECIDED, "does not replay: "), (None, UNDECIDED, "does not replay"),
])
def test_what_only_a_resumed_run_shows_is_no_other_failure(
        monkeypatch: pytest.MonkeyPatch, resumed: bool | None, verdict: str, says: str) -> None:
    """It was replayed, and what it showed was something else: not too large, and not refuted."""
    difference = None if resumed is None else Difference(2, "update", (), "layer.weight", 0, None, "1", "2", 0, resumed)
    monkeypatch.setattr(refutation, "simulate", lambda *_: Outcome(difference is None, difference, 1))
    monkeypatch.setattr(refutation, "find_repair", lambda *_: None)
    report = prove(edit(step_of("dp"), {"drop": "reduce.*.grad_sum.reduce[dp]"}))
    found = {(o.id, o.group): o for o in report.obligations}
    assert (found["gradient", "layer.weight"].verdict, found["init", "layer.weight"].verdict) == (verdict, PROVED)
    assert says in found["gradient", "layer.weight"].reason
    assert (report.verdict, ("init", "") in found) == (UNDECIDED if resumed is None else REFUTED, resumed is True)


def test_a_killed_solver_is_an_answer() -> None:
    process = SolverProcess()
    hard = "(declare-const x Int)(declare-const y Int)(declare-const z Int)" \
           "(assert (and (> x 2) (> y 2) (> z 2) (= (+ (* x x x) (* y y y)) (* z z z))))(check-sat)"
    answer = process.ask_text(hard, limit=0, seconds=0.5)
    process.stop()
    assert answer.status == UNKNOWN and "stopped" in answer.reason


def _verdict_of_dp() -> str:
    report: Report = prove(step_of("dp"))
    return report.verdict


def test_the_definition_of_correctness_stays_short() -> None:
    from placealg.prover import correct
    assert len(Path(correct.__file__).read_text().splitlines()) < 300
