"""Layouts with a name, or of each rank's own, and padded shards: the kernel says of them what the prover says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_own_layouts import each_its_own, variants, whole_first

import placealg as pa
from placealg.arith import ONE, Monomial
from placealg.check.kernel import kernel
from placealg.prover.examine import examine
from placealg.prover.kernel.program import FIELDS, program_of
from placealg.prover.verdict import PROVED, REFUTED, overall
from placealg.step.edit import edit
from placealg.step.event import Clause
from placealg.step.program import Step

STRATEGIES = ("zero1", "zero2", "zero3", "hsdp", "mics", "zeropp", "zero1*dp[more]", "zero3*offload_optimizer")


def named(step: Step, *but: int) -> Step:
    """The step whose owners are those of another layout, in all events that ask for owners but some."""
    return replace(step, events=tuple(
        replace(e, layout="even") if e.group and e.owning and k not in but else e for k, e in enumerate(step.events)))


def owning(step: Step) -> list[int]:
    return [k for k, e in enumerate(step.events) if e.group and e.owning]


def judged(strategy: str, step: Step) -> tuple[bool | None, str]:
    return (kernel(step, pa.parse_strategy(strategy), pa.abstract()).accepted, overall(examine(step).verdicts)[0])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_name_for_all_owners_is_accepted(strategy: str) -> None:
    chosen = pa.parse_strategy(strategy)
    assert kernel(named(pa.derive(chosen, pa.abstract())), chosen, pa.abstract()).accepted is True


@pytest.mark.parametrize("strategy", ["zero1", *(pytest.param(s, marks=pytest.mark.slow) for s in STRATEGIES[1:])])
def test_owners_of_two_layouts_do_not_meet(strategy: str) -> None:
    step = pa.derive(pa.parse_strategy(strategy), pa.abstract())
    found = owning(step)
    assert judged(strategy, named(step)) == (True, PROVED)
    for k in found:
        assert judged(strategy, named(step, k)) == (False, REFUTED), step.events[k].path
        assert judged(strategy, named(step, *(n for n in found if n != k))) == (False, REFUTED), step.events[k].path


def test_what_rests_rests_under_its_layout() -> None:
    step = named(pa.derive(pa.zero3("dp"), pa.abstract()))
    term = program_of(step, {"layer.weight": (("dp",), "device")})
    groups = term[1 + FIELDS.index("groups")]
    assert groups == [("Group", [0], [("Owner", ("Shared", 1), 0)], "Device", [], "Gradient", "NoAverage")]


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


OWN = "zero1*dp[q]"
"""The strategy of a program whose replicas, along q, have shards of their own."""


def test_replicas_with_shards_of_their_own_are_accepted() -> None:
    step = each_its_own(whole_first())
    assert judged(OWN, step) == (True, PROVED)
    places = program_of(step, {"layer.weight": ((), "device")})[1 + FIELDS.index("save")]
    assert ("Owner", ("Drawn", 1, 1), 0) in places[0][3][1][2][3]  # type: ignore[index]


@pytest.mark.parametrize("path", ["publish.layer.weight.publish[dp]", "reduce.layer.weight.grad_sum.reduce[dp]",
                                  "update.layer.weight.norm"])
def test_an_event_under_another_layout_than_the_replica_s_own_is_not_accepted(path: str) -> None:
    assert judged(OWN, each_its_own(whole_first(), but=path)) == (False, REFUTED)


def test_shards_of_their_own_are_not_summed() -> None:
    step = each_its_own(pa.derive(pa.parse_strategy(OWN), pa.abstract()))
    assert judged(OWN, step) == (False, REFUTED)


@pytest.mark.slow
def test_kernel_and_prover_agree_on_shards_of_their_own() -> None:
    found = [judged(OWN, step) for step in variants()]
    assert set(found) == {(True, PROVED), (False, REFUTED)}


def test_what_differs_along_its_own_axis_and_padding_of_such_shards_are_refused() -> None:
    step = each_its_own(whole_first())
    norm = step.event("update.layer.weight.norm")
    for changed, said in ((replace(norm, where=(Clause("q"),)), "layout = mine(q), along q itself"),
                          (replace(norm, verb="scale", value="grad_sum", divisor=Monomial.of("padding")),
                           "divisor = padding of shards that differ from rank to rank")):
        events = tuple(changed if e == norm else e for e in step.events)
        found = kernel(replace(step, events=events), pa.parse_strategy(OWN), pa.abstract())
        assert found.reason == f"{changed.path}: {said}"
