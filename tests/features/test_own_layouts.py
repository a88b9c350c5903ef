"""States whose shards differ from rank to rank along another axis: right where they never meet, else refuted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agreement import compare

from placealg.check.prove import prove
from placealg.models.abstract import abstract
from placealg.prover.calculus.contribution import put, size_one
from placealg.prover.calculus.positions import PEER
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

REDUCE = "reduce.layer.weight.grad_sum.reduce"


def summed_first(step: Step) -> Step:
    """Gradients are summed over the replicas before any of them takes its shard."""
    return edit(step, move=f"{REDUCE}[q]", before=f"{REDUCE}[dp]")


def whole_first() -> Step:
    """ZeRO-1 with replicas along q, whose gradients are summed over these first."""
    return summed_first(derive(parse_strategy("zero1*dp[q]"), abstract()))


def each_its_own(step: Step, but: str = "") -> Step:
    """Every replica has shards of its own, in all events but one."""
    for event in step.events:
        if event.group and event.path != but:
            step = edit(step, set=event.path, layout="mine(q)")
    return step


def test_shards_that_never_meet_may_differ() -> None:
    found = compare(each_its_own(whole_first()))
    assert (found.report.verdict, found.report.cls, found.complaint) == (PROVED, "PARAMETRIC", "")


def test_shards_that_are_summed_must_agree() -> None:
    report = prove(each_its_own(derive(parse_strategy("zero1*dp[q]"), abstract())))
    assert report.refuted() == ("partition", "gradient", "normalizer")
    partition = next(v for v in report.obligations if v.id == "partition")
    assert "mine(q) is one layout here and another there" in partition.reason


def variants() -> Iterator[Step]:
    step = each_its_own(whole_first())
    for event in step.events:
        if event.group:
            yield edit(step, drop=event.path)
            yield edit(step, double=event.path)
            yield each_its_own(whole_first(), but=event.path)


@pytest.mark.slow
@pytest.mark.parametrize("step", list(variants()), ids=lambda s: str(len(s.events)))
def test_both_engines_agree(step: Step) -> None:
    assert compare(step).complaint == ""


@pytest.mark.parametrize("path", ["publish.layer.weight.publish[dp]", "update.layer.weight.update",
                                  f"{REDUCE}[dp]", "update.layer.weight.norm"])
def test_one_event_in_another_layout_is_refuted(path: str) -> None:
    assert prove(each_its_own(whole_first(), but=path)).verdict == REFUTED


def test_a_deadlock_where_only_some_owners_enter() -> None:
    step = edit(each_its_own(whole_first()), set=f"{REDUCE}[q]", where="owner(dp)")
    assert "schedule" in prove(step).refuted()


def test_any_two_ranks_stay_any_two() -> None:
    """That one rank's position is any other's, for any rank, is no matter of course: it needs a lone rank."""
    said = ("dp", "own:mine^q=peer", "own:mine~q")
    assert put(said, "q", PEER) == size_one("q")
    assert put(("dp", "c", "own:mine~q"), "q", PEER) == ("dp", "c", "own:mine^q=peer")
    assert put(("q", "c", "peer"), "dp", "0") == ("q", "c", "peer")
