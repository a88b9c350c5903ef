"""Repairs: one edit, in as few lines as it takes, what it is in its file, and what it costs."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from conftest import ROOT

from placealg.cases.case import CommandCase, read_case
from placealg.check.candidates import candidates
from placealg.check.edit_folding import pattern_of
from placealg.check.prove import prove
from placealg.check.repair import applied, find_repair, written
from placealg.cost.formula import Formula
from placealg.models.abstract import abstract
from placealg.prover.verdict import PROVED, Repair
from placealg.step.derive import derive
from placealg.step.edit import apply_edits, edit, read_edits
from placealg.strategy.expression import parse_strategy


def case_of(name: str) -> CommandCase:
    """A file of `proofs/refuted`."""
    return read_case(str(ROOT / "proofs" / "refuted" / f"{name}.toml"), None, [])


def repair_of(case: CommandCase) -> Repair:
    """The repair of a file that has one."""
    found = find_repair(case.step, case.base, case.edited)
    assert found is not None
    return found


def tables(repair: Repair) -> list[dict[str, Any]]:
    """The [[edit]] tables of a repair, read from what is printed."""
    return list(tomllib.loads(repair.edit)["edit"])


@pytest.mark.some(4)
@pytest.mark.parametrize(("name", "edit"), [
    # another axis, another verb, another value: in place
    ("hsdp_flag_within_replicas", 'set = "update.skip.all_reduce[dp_replicate]", axes = ["dp_shard"]'),
    ("olmo_core_307", 'set = "init.layer.weight.broadcast[dp_shard]", axes = ["dp_replicate", "dp_shard"]'),
    ("open_instruct_1498", 'set = "backward.layer.weight.grad_sum.assign", verb = "accumulate"'),
    ("miles_2723", 'set = "reduce.layer.weight.grad.reduce[dp]", value = "grad_sum"'),
    # across phases
    ("megatron_950", 'move = "forward.layer.weight.publish[dp]", after = "update.rng.update"'),
    ("torchao_1649", 'move = "forward.layer.weight.*", after = "update.rng.update"'),
    ("zero1_flag_before_reduction", 'move = "reduce.layer.weight.skip.compute", '
     'after = "reduce.layer.weight.grad_sum.reduce[dp]", where = "owner(dp)"'),
    # a divisor beside it
    ("tutel_87", 'set = "reduce.layer.weight.grad_sum.reduce[dp,ep]", axes = ["dp"], divisor = "ep"'),
    # all groups in one line
    ("megatron_6500", 'set = "*.embedding.weight.*", layout = "own"'),
    ("megatron_844", 'set = "*.embedding.weight.*", layout = "own"'),
    ("gpt_neox_1257", 'insert = { verb = "reduce", value = "grad_sum", axes = ["tp"], op = "sum", from = "P", '
     'to = "I" }, after = "reduce.layer.norm*.grad_sum.reduce[dp]"'),
    # a piece of the data, which says its unit
    ("tp_data_not_sliced", 'insert = { path = "forward.data.tokens.slice[dp]", unit = "embedding", from = "I", '
     'to = "S(batch)", version = "dp_tp" }, after = "prepare.loss.count.all_reduce[dp]"'),
])
def test_a_repair_is_one_edit(name: str, edit: str) -> None:
    case = case_of(name)
    found = repair_of(case)
    assert ", ".join(found.edit.splitlines()[1:]) == edit
    again = applied(case.step, tables(found))
    assert again is not None and prove(again).verdict == PROVED


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["pytorch_160285", "dp_sum_for_mean", "zero1_publish_dropped", "longlive_71"])
def test_what_is_one_more_edit_can_be_pasted(name: str) -> None:
    case = case_of(name)
    found = repair_of(case)
    assert found.file == "as it stands, at the end" and case.edited is not None
    more = read_edits(tables(found), case.step.reference)
    assert prove(apply_edits(case.edited.program, [*case.edited.edits, *more])).verdict == PROVED


@pytest.mark.parametrize(("name", "line"), [
    ("hsdp_flag_within_replicas", 8), ("zero1_flag_before_reduction", 8), ("tp_backward_op_doubled", 6)])
def test_what_addresses_the_edited_program_says_so(name: str, line: int) -> None:
    """Pasted, it fails: the file's patterns address the program before its edits."""
    case = case_of(name)
    assert repair_of(case).file == (
        f"leave out the edit of line {line} instead: the repair addresses the program as edited")
    assert case.edited is not None and [e.line for e in case.edited.edits] == [line]


def test_what_is_neither_says_so() -> None:
    assert repair_of(case_of("torchtitan_1733")).file == "not as it stands: the repair addresses the program as edited"
    step = derive(parse_strategy("dp"), abstract())
    found = find_repair(edit(step, drop="reduce.*.reduce[dp]"), step)
    assert found is not None and found.file == ""


@pytest.mark.some(2)
@pytest.mark.parametrize(("name", "cost"), [
    ("tp_shards_averaged", "communication: 2·wire·h·L·(12·h + 7)·(tp − 1)/(dp·tp) bytes per step less"),
    ("megatron_4967", "communication: 6·wire·h·f·L·experts·(egtp − 1)/(dp·egtp·ep) bytes per step more"),
    ("megatron_6839b", "communication: 2·act·b·m·s·h·kv·L·(tp − 1)/(a·tp) bytes per step less"),
])
def test_a_cost_is_short_and_says_which_way(name: str, cost: str) -> None:
    assert repair_of(case_of(name)).cost == cost


def test_a_difference_falls_only_where_it_is_negative_everywhere() -> None:
    fall = Formula.parse("w*(1 - dp)", "bytes")
    assert fall.falls() and not (-1 * fall).falls()
    assert not Formula.parse("w*(3 - dp)", "bytes").falls()
    assert not Formula.none("bytes", "no form").falls()
    assert Formula.none("bytes", "no form").shortest().expr is None


@pytest.mark.parametrize(("targets", "others", "pattern"), [
    (["update.norm"], ["update.clip"], "update.norm"),
    (["a.x1.w.r", "a.x2.b.r"], ["a.y.w.r"], "a.x*.r"),
    (["a.x.w.r", "a.x.b.r"], ["a.x.c.r"], ""),
    (["i.e.w.load", "s.e.w.store", "s.e.w.m.store"], ["s.e.p.store"], "*.e.w.*"),
    (["a.x", "b.y"], ["c.z"], ""),
])
def test_a_pattern_matches_its_paths_and_no_others(targets: list[str], others: list[str], pattern: str) -> None:
    assert pattern_of(targets, [*targets, *others]) == pattern


@pytest.mark.parametrize("name", ["longlive_71", "tp_data_not_sliced", "tutel_87", "torchao_1649", "paddle_35186"])
def test_no_candidate_says_what_no_file_may(name: str) -> None:
    case = case_of(name)
    found = list(candidates(case.step, case.base))
    assert found and all(applied(case.step, one) is not None for one in found)


def test_a_refused_candidate_is_none() -> None:
    """An event of one phase cannot stand in the middle of another."""
    step = derive(parse_strategy("zero1"), abstract())
    table = {"insert": {"path": "init.step.assign"}, "before": "publish.*"}
    assert applied(step, [table]) is None
    assert written(table) == '[[edit]]\ninsert = { path = "init.step.assign" }\nbefore = "publish.*"'
