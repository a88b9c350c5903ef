"""Further terms of the loss on op graphs: each starts a backward of its own, proved and run like that of the tokens."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import compare
from conftest import ROOT
from random_dims import judged

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models import router_losses
from placealg.models.backward import terms
from placealg.models.build import graph
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.models.router_losses import with_router_losses
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED
from placealg.simulator import Setting, device, field
from placealg.simulator.space import of as space_of
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy import options
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

TOKEN_MEAN = {"loss": {"preset": "token_mean"}}
BALANCE, BOUND = (f"backward.layer.router.{name}_loss.grad.compute" for name in ("balance", "z"))


def step_of(text: str, **tables: Any) -> Step:
    return derive(overlay(parse_strategy(text), tables), resolve_model("balanced"))


def bounded(apart: bool) -> Model:
    """A product, whose result has a loss of each token and a term that bounds it, or both added."""
    g = graph(batch="b", seq="s", embed="h", vocab="V")
    logits = g.linear("net.logits", g.data("data.input", "batch seq embed"), "batch seq vocab", "embed vocab")
    loss = g.cross_entropy("net.loss", logits, g.ids("data.targets", "batch seq"), over="vocab")
    size = g.logsumexp("net.size", logits, over="vocab")
    term = g.scale("net.scaled", g.mul("net.square", size, size), "z_coefficient")
    if apart:
        g.sum("net.z_loss", term)
    g.sum("loss.sum", loss if apart else g.add("net.both", loss, term))
    return Model.of_graph("bounded", g.build())


def test_a_term_is_what_is_added_to_the_loss_of_each_token() -> None:
    found = []
    for apart in (True, False):
        step = derive(parse_strategy("dp"), bounded(apart))
        setting = Setting.equal(step.reference, {"dp": 2}, 2, 1)
        at = space_of(step.reference, setting)
        gradient, _ = device.gradient(at, 0, device.trajectory(step.reference, setting, 0)[0])
        found.append({slot: [field.residues(n).tolist() for n in numbers] for slot, numbers in gradient.items()})
        assert compare(step).report.verdict == PROVED
    assert found[0] == found[1] and len(found[0]) == 1


@pytest.mark.some(4)
@pytest.mark.parametrize("tables", [{}, TOKEN_MEAN, {"schedule": {"microbatch_mean": "gradients"}},
                                    {"loss": {"preset": "sum"}}])
@pytest.mark.parametrize("strategy", ["dp", "tp", "zero3*tp_sp*cp*ep", "zero1*pp_interleaved", "dp*tp*pp_zb_h1",
                                      "zero1*ep*recompute_full", "dp*cp_ring"])
def test_a_derived_program_is_proved_and_right(strategy: str, tables: dict[str, Any]) -> None:
    assert judged(step_of(strategy, **tables)) == (PROVED, "")


@pytest.mark.parametrize(("text", "loss", "divisor"), [
    ("dp", {}, "m*tokens"), ("dp", {"preset": "sum"}, "1"), ("dp", {"preset": "token_mean"}, "count"),
    ("dp*ep", {"preset": "token_mean", "term_divisor": "tokens", "assume": ["equal_counts"]}, "dp*ep*m*tokens"),
    ("dp*cp", {"term_divisor": "count", "term_axes": ["cp"]}, "count*m/cp"),
    ("dp*tp", {"term_divisor": "count"}, "count/dp")])
def test_terms_are_switched_on_and_divided_by_what_the_strategy_says(text: str, loss: dict[str, Any],
                                                                     divisor: str) -> None:
    step = derive(overlay(parse_strategy(text), {"loss": {"terms": ["z"], **loss}}), resolve_model("moe"))
    started = [e for e in step.events if e.path == BOUND]
    assert [str(e.divisor) for e in started] == [divisor] and len(terms(step.reference.graph)) == 1
    assert judged(step) == (PROVED, "")


def test_strategies_and_models_name_the_same_terms() -> None:
    assert router_losses.TERMS == options.TERMS


@pytest.mark.parametrize(("model", "shares"), [
    ("mixtral-8x7b", "softmax"), ("qwen3-30b-a3b", "softmax"), ("deepseek-v3", "mul")])
def test_shares_of_the_scores_are_balanced_where_scores_are_none(model: str, shares: str) -> None:
    made = with_router_losses(resolve_model(model))
    units = [u.name for u in made.units if made.graph.loop(u.name)]
    found = [op.kind for op in made.graph.ops if op.output.endswith("balance_shares")]
    assert found == [shares]
    assert len(terms(made.graph)) == 2 and any(terms(made.graph)[0].output.startswith(f"{u}.") for u in units)
    assert not any("balances the load" in said for said in made.left_out)
    bound = next(op for op in made.graph.ops if op.kind == "logsumexp")
    assert bound.inputs == (f"{bound.unit}.router.logits",)


@pytest.mark.parametrize("changes", [
    [{"set": BALANCE, "divisor": "tokens"}], [{"set": BOUND, "divisor": "m"}], [{"drop": BALANCE}], [{"double": BOUND}],
    [{"drop": "forward.layer.router.load.all_reduce[cp]"}], [{"double": "forward.layer.router.load.all_reduce[cp]"}],
    [{"drop": "forward.layer.router.z_loss.compute"}]])
def test_a_term_that_is_not_started_as_the_loss_is_refuted(changes: list[dict[str, Any]]) -> None:
    found = compare(edit(step_of("dp*cp"), *changes))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")


def test_loads_of_a_sequence_are_summed_where_it_is_split_and_nowhere_else() -> None:
    def sent(text: str) -> set[str]:
        step = step_of(text)
        return {e.path for e in step.events if "load" in e.path and e.verb.startswith("all_") and e.phase == "forward"}
    assert sent("dp*ep") == sent("tp") == set()
    assert sent("dp*cp") == {"forward.layer.router.load.all_reduce[cp]"}


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"compute of layer\.router\.z\.grad divides nothing, and takes no divisor"):
        edit(step_of("dp"), {"set": "backward.layer.router.z.grad.compute", "divisor": "m"})
    with pytest.raises(InputError, match="starts its backward when another one is counted: count over microbatch"):
        step_of("dp*pp", loss={"preset": "token_mean", "count_axes": ["dp"]})
    with pytest.raises(InputError, match=r"terms: balanced has terms of its own, 'layer\.router\.balance_loss'"):
        step_of("dp", loss={"terms": ["z"]})
    for model, loss, said in (
            ("gpt", {"terms": ["z"]}, "gpt has no router, which alone has such terms"),
            ("abstract", {"terms": ["z"]}, "abstract has no router, which alone has such terms"),
            ("moe", {"terms": ["y"]}, r"\[loss\] terms names 'y'; valid: balance, z"),
            ("moe", {"terms": "z"}, r"\[loss\] terms is 'z': expected a list of strings"),
            ("moe", {"term_divisor": "tokens"}, "term_divisor: nothing says which terms; say terms"),
            ("moe", {"terms": ["z"], "term_divisor": "token"}, "term_divisor is 'token'; did you mean 'tokens'"),
            ("moe", {"terms": ["z"], "term_axes": ["dp"]}, "divided by 'tokens', the rank's own"),
            ("moe", {"terms": ["z"], "term_divisor": "count", "term_axes": ["tp"]}, "axis 'tp', which the mesh lacks"),
            ("moe", {"preset": "sum", "terms": ["z"], "term_divisor": "count"},
             "term_divisor is 'count', and the loss is held against the sum over all tokens, its terms with it"),
            ("moe", {"preset": "token_mean", "terms": ["z"], "term_axes": ["dp"]}, "and a program has one count")):
        with pytest.raises(InputError, match=said):
            derive(overlay(parse_strategy("dp"), {"loss": loss}), resolve_model(model))
    with pytest.raises(InputError, match="only a transformer has that choice, and balanced is none"):
        resolve_model("balanced", flash=False)


def test_a_program_that_divides_a_term_by_a_count_of_one_microbatch_among_stages_is_left_open() -> None:
    step = edit(step_of("dp*pp", **TOKEN_MEAN), {"insert": {"path": "forward.loss.count.compute"},
                                                 "before": "forward.loss.compute"})
    report = prove(step)
    assert report.verdict == REFUTED or (report.verdict == UNDECIDED and any(
        "by a count of one microbatch, among stages" in v.reason for v in report.obligations))


@pytest.mark.parametrize("file", ["proved/router_losses", "refuted/router_loss_once_a_microbatch",
                                  "refuted/router_load_of_a_part", "refuted/router_loss_of_own_tokens",
                                  "proved/router_losses_published"])
def test_the_files_come_out_as_they_say(file: str) -> None:
    case = read_case(str(ROOT / "proofs" / f"{file}.toml"), None, [])
    assert case.expect and prove(case.step).verdict.lower() == case.expect.verdict
    assert len(terms(case.step.reference.graph)) == (1 if "own_tokens" in file else 2)
