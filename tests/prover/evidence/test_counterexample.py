"""What a counterexample says: what was got differs from what was wanted, in words that need no legend."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from conftest import ROOT

from placealg.arith import ONE, Monomial
from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.models.config import resolve_model
from placealg.models.transformer import gpt
from placealg.prover.calculus.contribution import Term
from placealg.prover.evidence.counterexample_words import got, right
from placealg.prover.verdict import REFUTED as WRONG
from placealg.prover.verdict import Counterexample
from placealg.render.proof import counterexample_rows, proof
from placealg.render.text_layout import plain
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.strategy.expression import parse_strategy

REFUTED = ROOT / "proofs" / "refuted"


@cache
def told(name: str) -> Counterexample:
    """The counterexample of a file of `proofs/refuted`, without a repair."""
    found = prove(read_case(str(REFUTED / f"{name}.toml"), None, []).step).counterexample
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "got", "ratio"), [
    ("diffusers_14265", "1/(cp*dp*m*tokens_per_cell) where two indices that were summed over, of seq and seq_kv, have "
                        "one owner along cp, 0 elsewhere", "1/cp"),
    ("megatron_1464", "1/(cp*dp*m*tokens_per_cell) where two indices that were summed over, of seq, have one owner "
                      "along cp, 0 elsewhere", "1/cp"),
    ("megatron_775", "1/(m*tokens_per_cell)", "dp"),
    ("zero1_flag_before_reduction", "1/(m*tokens_per_cell) on the device's own units, 0 on the others", "1"),
    ("longlive_71", "s/dp, where s is a sum over ranks, of weights that differ from rank to rank", None),
    ("megatron_7452a", "some contributions tp_outer times, others once", "tp_outer"),
    ("tp_partial_sum_into_gelu", "some contributions only on the rank that computed them, others once", "1/tp"),
])
def test_what_was_got_is_told_plainly(name: str, got: str, ratio: str | None) -> None:
    found = told(name)
    assert (found.got, found.mass) == (got, ratio)
    assert found.got != found.want
    rows = dict(counterexample_rows(found))
    assert rows["ratio"].partition(" ")[0] == (ratio or "")
    assert "mass" not in rows


def test_a_rank_that_lacks_the_gradient_is_the_device() -> None:
    """The gradient lies with other owners: where it is held it is right, so that the update's own rank is shown."""
    step = derive(parse_strategy("zero1"), abstract())
    found = prove(edit(step, {"set": "reduce.*.grad_sum.reduce[dp]", "layout": "nowhere"})).counterexample
    assert found and (found.got, found.mass) == ("nothing: the element is not held", None)


def test_conditions_of_a_weight_are_told() -> None:
    weight, own = Monomial.parse("1/m"), frozenset({("dp", "own:even", "own:own")})
    terms = (Term(weight, given=own), Term(weight, FrozenMap({"dp": "unit"}), own), Term(ONE))
    assert got(terms, lambda w: w) == (
        "1/m + 1/m + 1 where along dp the element's owner by 'even' is its owner and the unit is the device's own, "
        "1 elsewhere")
    assert got((Term(ONE, given=frozenset({("dp", "=", "1")})),), lambda w: w) == "1 where dp has one rank, 0 elsewhere"
    assert got((Term(ONE, given=frozenset({("dp", "<", "2")})),), lambda w: w) == (
        "1 where dp has a rank 2, 0 elsewhere")
    assert got((Term(ONE, given=frozenset({("dp", "c", "at:batch")})),), lambda w: w) == (
        "1 where along dp the owner of its index of batch is the device, 0 elsewhere")


def test_terms_are_right_only_everywhere() -> None:
    def same(weight: Monomial) -> Monomial:
        return weight

    half = Monomial.parse("1/2")
    assert right((Term(half), Term(half)), ONE, same)
    assert not right((Term(ONE, FrozenMap({"dp": "unit"})),), ONE, same)
    assert not right((Term(half),), ONE, same)


def refuted(base: str, *changes: dict[str, Any]) -> Counterexample:
    """The counterexample of an edited program."""
    strategy = parse_strategy(base)
    found = prove(edit(derive(strategy, gpt() if strategy.detailed else abstract()), *changes)).counterexample
    assert found is not None
    return found


@pytest.mark.parametrize(("base", "change", "event", "says"), [
    ("zero3*pp", {"drop": "forward.layer.out.send[pp]"}, "forward.layer.in.recv[pp]",
     "waits for a message that nobody sends"),
    ("dp", {"set": "reduce.*.grad_sum.reduce[dp]", "where": "rank(dp)=0"}, "reduce.layer.weight.grad_sum.reduce[dp]",
     "some ranks of the group do not take part: deadlock"),
])
def test_a_deadlock_is_told_first(base: str, change: dict[str, Any], event: str, says: str) -> None:
    """Other obligations fail, too, at events that no run reaches."""
    found = refuted(base, change)
    assert (found.obligation, found.event, found.got) == ("schedule", event, says)
    assert found.explanation == f"{event} {says}"
    assert found.single_device == "runs to its end"
    assert any(how in found.distributed for how in ("waits forever", "waiting for the others"))
    assert f"deadlock at {event}" in found.distributed
    assert f" on {', '.join(f'{a}={c}' for a, c in found.device)}" in found.distributed


def test_what_else_is_refuted_is_told_beside_the_one_that_leads() -> None:
    report = prove(edit(derive(parse_strategy("dp"), abstract()), set="reduce.*.reduce[dp]", where="rank(dp)=0"))
    told = " ".join(plain(text) for text in proof(report, 100, timing=False, says={}))
    assert "2 more obligations refuted: gradient, normalizer" in told


def test_a_message_that_nobody_receives_is_told_before_what_it_leaves_undefined() -> None:
    sends = "backward.layer.in.grad.send[pp]"
    found = refuted("zero3*pp", {"move": "backward.layer.out.grad.recv[pp]", "after": sends})
    assert (found.obligation, found.event) == ("schedule", sends)


def test_what_is_undefined_is_not_told_as_counted_too_often() -> None:
    found = refuted("zero1*pp", {"drop": "forward.layer.in.recv[pp]"})
    assert (found.event, found.explanation.partition(" ")[2]) == (
        "forward.layer.norm1.out.compute", "reads layer.in, which is undefined")
    assert (found.got, found.want) == ("undefined: garbage, or only some of its parts", "what the reference's op reads")


def test_garbage_is_no_number() -> None:
    found = refuted("dp", {"drop": "prepare.layer.weight.grad_sum.zero"})
    assert found.distributed.startswith("garbage: a number that no event defined (step 1: save.layer.weight.store")


def test_a_loss_that_differs_is_a_residue_in_both_runs() -> None:
    found = told("tp_partial_sum_into_gelu")
    assert [" (mod 134217689)" in text for text in (found.single_device, found.distributed)] == [True, True]


def test_unequal_counts_are_told() -> None:
    found = told("transformers_34373")
    assert dict(found.tokens) == {"dp = 0, microbatch 0": 1, "dp = 1, microbatch 0": 3}
    assert dict(counterexample_rows(found))["tokens"] == "1 on dp = 0, microbatch 0; 3 on dp = 1, microbatch 0"
    assert told("tp_partial_sum_into_gelu").tokens == ()


@pytest.mark.parametrize("model", ["abstract", "gpt"])
def test_a_clip_on_some_ranks_leaves_what_is_there_and_wrong(model: str) -> None:
    """The rank that did not clip holds a value: the run shows it, and so say the words."""
    step = derive(parse_strategy("dp"), resolve_model(model))
    found = prove(edit(step, {"set": "update.layer.weight.clip", "where": "rank(dp)=0"})).counterexample
    assert found and found.got == "a value that is there, and is not the reference's"
    assert "garbage" not in found.distributed


def test_a_reduction_on_some_ranks_waits_for_the_others() -> None:
    step = derive(parse_strategy("dp"), abstract())
    found = prove(edit(step, {"set": "reduce.layer.weight.grad_sum.reduce[dp]", "where": "rank(dp)=0"})).counterexample
    assert found and (found.obligation, found.want) == ("schedule", "every rank of the group takes part, or none")


@pytest.mark.parametrize("model", ["abstract", "gpt"])
def test_layouts_that_disagree_are_named_on_op_graphs_too(model: str) -> None:
    step = derive(parse_strategy("zero1"), resolve_model(model))
    report = prove(edit(step, {"set": "reduce.layer.weight.grad_sum.reduce[dp]", "layout": "even"}))
    (partition,) = report.of("partition")
    assert (report.refuted()[0], partition.reason) == ("partition", "layouts even and own disagree where they meet")


def test_a_clip_of_fresh_zeros_is_refuted() -> None:
    """Nothing has defined the norm by which it clips: zero times no number is no zero."""
    step = derive(parse_strategy("dp"), abstract())
    report = prove(edit(step, {"insert": {"path": "prepare.layer.weight.clip"},
                               "after": "prepare.layer.weight.grad_sum.zero"}))
    assert (report.verdict, report.refuted()) == (WRONG, ("update",))


def test_the_parameter_that_is_wrong_is_told_not_the_first_on_the_path() -> None:
    """The gradients of keys miss a sum; what they are handed on to, back to the embedding, is wrong after them."""
    found = told("bigcode_megatron_35")
    assert (found.group, found.mass) == ("layer.attn.k.weight", "1/tp")


@pytest.mark.parametrize(("strategy", "dropped", "says"), [
    ("zero2*offload_optimizer", "prepare.layer.weight.grad_sum.zero", "reads an undefined gradient"),
    ("offload_parameters", "resume.layer.weight.master.fetch", "reads a copy that resuming did not restore, in step 2 "
                                                               "after it: the parameters"),
])
def test_what_no_where_left_out_is_told_as_it_is(strategy: str, dropped: str, says: str) -> None:
    found = prove(edit(derive(parse_strategy(strategy), abstract()), {"drop": dropped})).counterexample
    assert found and found.got == "nothing: the element is not held" and found.explanation.endswith(says)
