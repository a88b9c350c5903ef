"""`where` of the last rank, and of all ranks but one: both engines mean the same ranks at every size."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import compare
from conftest import ROOT

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.errors import InputError
from placealg.models.build import graph
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.step.where import LAST_RANK, Clause, parse_where
from placealg.strategy.expression import parse_strategy

LOAD, RECEIVE = "resume.layer.weight.load", {"insert": {"path": "resume.layer.weight.broadcast[dp]"}, "after":
                                             "resume.layer.weight.load"}


def edited(text: str, *changes: dict[str, Any], model: str = "abstract") -> Step:
    return edit(derive(parse_strategy(text), resolve_model(model)), *changes)


def test_clauses_are_read_as_they_are_written() -> None:
    read = parse_where("rank(dp) = last, not rank(tp)=2, not owner(dp)", ("dp", "tp"))
    assert read == (Clause("dp", LAST_RANK), Clause("tp", 2, True), Clause("dp", None, True))
    assert parse_where(", ".join(map(str, read)), ("dp", "tp")) == read
    for wrong in ("rank(dp)=first", "not all", "but rank(dp)=0", "rank(dp)=-1"):
        with pytest.raises(InputError, match=r"valid: all, owner\(AXIS\), rank\(AXIS\)=K, rank\(AXIS\)=last, and not"):
            parse_where(wrong, ("dp",))


@pytest.mark.parametrize(("where", "more", "verdict"), [
    ("not rank(dp)=1", [RECEIVE], PROVED), ("not rank(dp)=last", [RECEIVE], REFUTED), ("rank(dp)=0", [RECEIVE], PROVED),
    ("rank(dp)=last", [RECEIVE], REFUTED), ("not rank(dp)=0", [], REFUTED), ("not rank(dp)=last", [], REFUTED),
    ("not rank(dp)=1, not rank(dp)=2", [RECEIVE], PROVED), ("not rank(dp)=1, not rank(dp)=0", [RECEIVE], REFUTED)])
def test_a_rank_that_loads_nothing_must_receive(where: str, more: list[dict[str, Any]], verdict: str) -> None:
    found = compare(edited("dp", {"set": LOAD, "where": where}, *more))
    assert (found.report.verdict, found.complaint) == (verdict, "")


@pytest.mark.parametrize(("text", "change"), [
    ("zero1", {"set": "init.layer.weight.master.assign", "where": "not owner(dp)"}),
    ("zero1", {"set": "publish.layer.weight.publish[dp]", "where": "not rank(dp)=last"}),
    ("zero3", {"set": "forward.layer.weight.gather[dp]", "where": "not rank(dp)=0"}),
    ("dp", {"set": "update.layer.weight.update", "where": "not rank(dp)=1"}),
    ("dp", {"set": "backward.layer.weight.grad_sum.accumulate", "where": "rank(dp)=last"}),
    ("dp", {"set": "update.layer.weight.norm", "where": "rank(dp)=last"}),
    ("dp", {"set": "forward.layer.compute", "where": "not rank(dp)=1"}),
    ("dp", {"set": "save.layer.weight.store", "where": "rank(dp)=last"})])
def test_both_engines_say_the_same_of_any_event(text: str, change: dict[str, Any]) -> None:
    found = compare(edited(text, change))
    assert not found.complaint and (found.report.verdict == REFUTED) == ("norm" not in change["set"])


@pytest.mark.parametrize(("text", "change", "verdict"), [
    ("dp", {"set": "reduce.layer.weight.grad_sum.reduce[dp]", "where": "not rank(dp)=1"}, REFUTED),
    ("hsdp", {"set": "reduce.layer.weight.grad_sum.reduce[dp_replicate]", "where": "not rank(dp_shard)=1"}, REFUTED),
    ("hsdp", {"insert": {"path": "reduce.layer.weight.grad_sum.reduce[dp_replicate]", "op": "mean", "to": "I",
                         "where": "not rank(dp_shard)=0"}, "before": "update.layer.weight.norm"}, PROVED),
    ("hsdp", {"insert": {"path": "reduce.layer.weight.grad_sum.reduce[dp_replicate]", "op": "sum", "to": "I",
                         "where": "not rank(dp_shard)=0"}, "before": "update.layer.weight.norm"}, REFUTED),
    ("dp", {"set": "update.norm.all_reduce[dp]", "where": "not rank(dp)=0"}, REFUTED)])
def test_a_collective_of_all_groups_but_one(text: str, change: dict[str, Any], verdict: str) -> None:
    """A `where` that splits a group of a collective is a deadlock; one that leaves out whole groups is followed."""
    found = compare(edited(text, change))
    assert (found.report.verdict, found.complaint) == (verdict, "")


@pytest.mark.parametrize(("text", "change"), [
    ("dp", {"set": "prepare.layer.weight.grad_sum.zero", "where": "not rank(dp)=1"}),
    ("dp", {"set": "backward.layer.weight.grad_sum.accumulate", "where": "not rank(dp)=last"}),
    ("dp", {"set": "update.layer.weight.norm", "where": "not rank(dp)=1"}),
    ("dp", {"set": "update.layer.weight.clip", "where": "not rank(dp)=1"}),
    ("zero2", {"set": "backward.layer.weight.grad.reduce[dp]", "where": "not owner(dp)"}),
    ("zero1*offload_optimizer", {"set": "reduce.layer.weight.grad_sum.offload", "where": "not rank(dp)=1"}),
    ("dp", {"set": "save.layer.weight.store", "where": "not rank(dp)=last"})])
def test_an_event_of_gradients_on_all_ranks_but_one_has_a_rule(text: str, change: dict[str, Any]) -> None:
    found = compare(edited(text, change))
    assert not found.complaint and found.report.verdict == REFUTED
    assert not [o for o in found.report.obligations if "no transfer rule" in o.reason]


def test_a_scale_that_every_rank_takes_in_one_of_two_events_is_right() -> None:
    scale = {"path": "reduce.layer.weight.grad_sum.scale", "divisor": "2"}
    after = "reduce.layer.weight.grad_sum.reduce[dp]"
    once = [{"insert": {**scale, "where": w}, "after": after} for w in ("rank(dp)=1", "not rank(dp)=1")]
    back = {"insert": {**scale, "divisor": "1/2"}, "before": "update.layer.weight.norm"}
    assert prove(edited("dp", *once, back)).verdict == PROVED
    assert prove(edited("dp", once[1], back)).verdict == REFUTED


UP = "forward.layer.mlp.up.compute"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["rank(dp)=1", "not rank(dp)=last", "not rank(dp)=1"])
@pytest.mark.parametrize("path", [UP, "backward.layer.mlp.gelu.grad.compute", "forward.layer.in.assign",
                                  "backward.layer.in.grad.assign", "forward.head.loss.compute"])
def test_an_event_on_a_tensor_on_some_ranks_has_a_rule(path: str, where: str) -> None:
    found = compare(edited("dp", {"set": path, "where": where}, model="mlp"))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")


def test_an_op_on_all_ranks_but_one_is_refuted() -> None:
    assert prove(edited("dp", {"set": UP, "where": "not rank(dp)=1"}, model="mlp")).refuted()[0] == "forward"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["forward.layer.norm1.out.all_gather[tp]",
                                  "forward.embedding.tokens.reduce_scatter[tp]"])
def test_a_collective_on_a_tensor_that_leaves_out_ranks_of_its_group_waits_for_them(path: str) -> None:
    found = compare(edited("tp_sp", {"set": path, "where": "not rank(tp)=1"}, model="gpt"))
    assert "schedule" in found.report.refuted() and not found.complaint


def of_a_term() -> Step:
    """A net whose loss has a further term, of what one op made and another scaled."""
    g = graph(batch="b", embed="h")
    y = g.mul("net.y", g.data("data.x", "batch embed"), g.parameter("net.w", "embed"))
    g.sum("net.term", g.scale("net.scaled", g.mul("net.z", y, y), "1/2"))
    g.sum("loss.sum", g.sum("net.out", y, to="batch"))
    return derive(parse_strategy("dp"), Model.of_graph("net", g.build()))


@pytest.mark.parametrize("op", ["term", "scaled", pytest.param("z", marks=pytest.mark.slow)])
def test_a_further_term_of_the_loss_starts_its_backward_where_it_was_summed(op: str) -> None:
    path = f"forward.net.{op}.compute"
    some = {"set": path, "where": "not rank(dp)=1"}
    again = {"path": path, "reads": list(of_a_term().event(path).reads), "where": "rank(dp)=1"}
    rest = {"insert": again, "after": path}
    found = compare(edit(of_a_term(), some))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")
    assert prove(edit(of_a_term(), some, rest)).verdict == PROVED


@pytest.mark.slow
@pytest.mark.parametrize("where", ["not rank(dp)=1", "rank(dp)=0"])
@pytest.mark.parametrize("op", ["z_loss", "balance_loss", "balance", "load", "size"])
def test_a_router_s_term_on_some_ranks_is_refuted(op: str, where: str) -> None:
    found = compare(edited("dp", {"set": f"forward.layer.router.{op}.compute", "where": where}, model="balanced"))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")


@pytest.mark.slow
def test_an_op_that_every_rank_runs_in_one_of_two_events_is_right() -> None:
    once = {"set": UP, "where": "rank(dp)=0"}
    inserted = {"path": UP, "reads": ["layer.in", "layer.mlp.up.weight"], "where": "not rank(dp)=0"}
    rest = {"insert": inserted, "after": UP}
    twice = edited("dp", once, rest, model="mlp")
    assert prove(twice).verdict == PROVED and compare(twice).holds
    inserted["where"] = "not rank(dp)=1"
    missed = compare(edited("dp", once, rest, model="mlp"))
    assert (missed.report.verdict, missed.complaint) == (REFUTED, "")


@pytest.mark.parametrize(("path", "where"), [
    ("forward.layer.compute", "not rank(dp)=1"),
    *(pytest.param(f"{unit}.compute", where, marks=pytest.mark.slow) for where in ("not rank(dp)=last", "rank(dp)=last")
      for unit in ("forward.layer", "backward.layer", "forward.loss"))])
def test_a_whole_unit_that_runs_on_some_ranks_is_refuted(path: str, where: str) -> None:
    found = compare(edited("zero1", {"set": path, "where": where}))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")


def test_the_last_rank_may_be_that_whose_norm_counts() -> None:
    assert prove(edited("dp", {"set": "update.layer.weight.norm", "where": "rank(dp)=last"})).verdict == PROVED


@pytest.mark.parametrize("file", ["proved/all_but_one_load", "refuted/broadcast_from_unloaded"])
def test_the_files_come_out_as_they_say(file: str) -> None:
    case = read_case(str(ROOT / "proofs" / f"{file}.toml"), None, [])
    assert case.expect and prove(case.step).verdict.lower() == case.expect.verdict
