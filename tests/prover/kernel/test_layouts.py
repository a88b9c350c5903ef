"""Layouts with a name, or of each rank's own, and padded shards: the kernel says of them what the prover says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_own_layouts import each_its_own, whole_first

import placealg as pa
from placealg.arith import ONE
from placealg.check.kernel import kernel
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, REFUTED, overall
from placealg.step.edit import edit
from placealg.step.program import Step

STRATEGIES = ("zero1", "zero2", "zero3", "hsdp", "mics", "zeropp", "zero1*dp[more]", "zero3*offload_optimizer")


def named(step: Step, *but: int) -> Step:
    """The step whose owners are those of another layout, in all events that ask for owners but some."""
    return replace(step, events=tuple(
        replace(e, layout="even") if e.group and e.owning and k not in but else e for k, e in enumerate(step.events)))


def owning(step: Step) -> list[int]:
    return [k for k, e in enumerate(step.events) if e.group and e.owning]


def judged(strategy: str, step: Step) -> tuple[bool | None, str]:
    return (bool(kernel(step).accepted), overall(examine(step).verdicts)[0])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_name_for_all_owners_is_accepted(strategy: str) -> None:
    chosen = pa.parse_strategy(strategy)
    assert kernel(named(pa.derive(chosen, pa.abstract()))).accepted is True


@pytest.mark.parametrize("strategy", ["zero1", *(pytest.param(s, marks=pytest.mark.slow) for s in STRATEGIES[1:])])
def test_owners_of_two_layouts_do_not_meet(strategy: str) -> None:
    step = pa.derive(pa.parse_strategy(strategy), pa.abstract())
    found = owning(step)
    assert judged(strategy, named(step)) == (True, PROVED)
    for k in found:
        assert judged(strategy, named(step, k)) == (False, REFUTED), step.events[k].path
        assert judged(strategy, named(step, *(n for n in found if n != k))) == (False, REFUTED), step.events[k].path


DIVISORS = {"padding": False, "1/padding": False, "m": False, "1": True}
"""Divisor of the update's step -> whether the kernel accepts it."""


@pytest.mark.parametrize("divisor", DIVISORS)
def test_an_update_whose_step_is_divided(divisor: str) -> None:
    step = edit(pa.derive(pa.parse_strategy("zero1"), pa.abstract()), set="update.layer.weight.update", divisor=divisor)
    wanted = DIVISORS[divisor]
    assert judged("zero1", step) == (wanted, PROVED if wanted else REFUTED)


def test_padding_cancels_where_the_shards_are_the_same() -> None:
    reduce, norm = "reduce.layer.weight.grad_sum.reduce[dp]", "update.layer.weight.norm"
    step = edit(pa.derive(pa.parse_strategy("zero1"), pa.abstract()), set=reduce, divisor="padding")
    assert judged("zero1", step) == (False, REFUTED)
    for layout, wanted in (("own", (True, PROVED)), ("even", (False, REFUTED))):
        event = replace(step.event(reduce), phase="update", verb="scale", axes=(), op="", source="", to="",
                        divisor=ONE / step.event(reduce).divisor, where=step.event(norm).where, layout=layout)
        at = step.events.index(step.event(norm))
        events = (*step.events[:at], event, *step.events[at:])
        assert judged("zero1", replace(step, events=events)) == wanted, layout


def test_shards_of_each_replica_s_own_are_outside() -> None:
    step = each_its_own(whole_first())
    found = kernel(step)
    assert found.accepted is None and "owners that differ from rank to rank" in found.reason
    assert overall(examine(step).verdicts)[0] == PROVED
