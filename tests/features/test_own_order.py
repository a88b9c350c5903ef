"""Data that each rank takes in an order of its own: refuted wherever the axis has several ranks, and so it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from agreement import compare

from placealg.arith import ONE
from placealg.cases.case import read_case
from placealg.check.prove import judge, prove
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.models.config import resolve_model
from placealg.prover.calculus.contribution import OPAQUE, Term, sum_over
from placealg.prover.calculus.positions import drawn
from placealg.prover.evidence.certificate import certificate
from placealg.prover.evidence.solver import SAT, z3_answer
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.step.text import write_program
from placealg.strategy.expression import parse_strategy


def shuffled(strategy: str, pattern: str = "forward.data.*.slice[dp]", axis: str = "dp", model: str = "gpt") -> Step:
    return edit(derive(parse_strategy(strategy), resolve_model(model)), set=pattern, layout=f"shuffled({axis})")


@pytest.mark.some(2)
@pytest.mark.parametrize("step", [
    shuffled("dp"), shuffled("dp*cp", "forward.data.*.slice[cp]", "cp"), shuffled("dp", model="moe"),
    shuffled("dp", "forward.data.tokens.slice[dp]"), edit(shuffled("dp"), drop="reduce.*.grad_sum.reduce[dp]"),
    edit(shuffled("dp"), set="reduce.*.grad_sum.reduce[dp]", op="sum"),
], ids=lambda s: f"{s.reference.strategy}-{len(s.events)}")
def test_it_is_refuted(step: Step) -> None:
    assert prove(step).verdict == REFUTED


@pytest.mark.slow
def test_it_is_refuted_where_sums_are_written_out() -> None:
    assert judge(shuffled("dp"), None, "cutoff")[0].verdict == REFUTED


def test_both_engines_agree() -> None:
    found = compare(shuffled("dp*cp"))
    assert found.complaint == "" and found.report.refuted()[0] == "partition"


def test_a_rank_alone_takes_what_it_owns() -> None:
    step = shuffled("dp*cp")
    for sizes, equal in (({"dp": 1, "cp": 2}, True), ({"dp": 2, "cp": 1}, False), ({"dp": 3, "cp": 1}, False)):
        assert simulate(step, Setting.equal(step.reference, sizes, 2)).equal == equal


def test_one_owner_function_for_all_is_right() -> None:
    assert prove(edit(shuffled("dp"), set="forward.data.*.slice[dp]", layout="own")).verdict == PROVED


def test_own_opinions_have_no_sum_in_closed_form() -> None:
    mine, one = (Term(ONE, FrozenMap({"dp": p})) for p in (drawn("batch", "shuffled", "dp"), "at:batch"))
    assert sum_over([one], "dp") == sum_over([one], "dp", 3) == (Term(ONE),)
    closed, = sum_over([mine], "dp")
    assert [name.startswith(OPAQUE) for name in closed.coefficient.names()] == [True]
    assert len(sum_over([mine], "dp", 3)) == 3


def test_its_program_reads_back(tmp_path: Path) -> None:
    step = shuffled("dp")
    (tmp_path / "program.toml").write_text(write_program(step, parse_strategy("dp")), encoding="utf-8")
    assert read_case(str(tmp_path / "program.toml"), "gpt", []).step.events == step.events


@pytest.mark.parametrize(("strategy", "pattern", "axis", "says"), [
    ("zero3", "forward.embedding.weight.gather[dp]", "dp", r"the owners along that axis itself are the same"),
    ("zero1", "update.embedding.weight.update", "dp", r"the owners along that axis itself are the same"),
    ("zero1", "update.embedding.weight.update", "tp", r"names an axis that the mesh lacks"),
    ("dp*cp", "forward.data.*.slice[dp]", "cp", r"is for slices of data along"),
    ("dp", "forward.embedding.tokens.compute", "dp", r"is for slices of data along"),
    ("zero1", "update.norm.all_reduce[dp]", "dp", r"is for slices of data along"),
])
def test_what_has_such_a_layout(strategy: str, pattern: str, axis: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        shuffled(strategy, pattern, axis)


@pytest.mark.parametrize("step", [
    shuffled("dp"), edit(derive(parse_strategy("zero1"), abstract()), set="publish.*.publish[dp]", layout="other"),
], ids=["own orders", "two layouts"])
def test_a_refuted_partition_has_its_query(step: Step) -> None:
    report, candidates = judge(step)
    assert report.refuted()[0] == "partition"
    query, = (q for q in certificate(step, report, candidates) if q.obligation == "partition")
    assert (query.expected, z3_answer(query.text, 20_000_000).status) == (SAT, SAT)
