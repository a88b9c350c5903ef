"""Facts about pipeline schedules: proved where they are true, refuted where an order or a time is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from placealg.arith import parse
from placealg.prove import schedule
from placealg.prove.schedule import (
    GROWING,
    TIMES,
    Times,
    acyclic,
    held,
    numbered,
    schedule_facts,
    start_times,
    walked,
)
from placealg.prove.verdict import BOUNDED, PARAMETRIC, PROVED, REFUTED
from placealg.step import pipeline as orders
from placealg.step.pipeline import IDLE, Item, Pipeline, needs, schedule_graph, work


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_orders_of_one_chunk_are_proved_for_all_sizes(order: str) -> None:
    facts = schedule_facts(Pipeline("pp", order))
    assert [(f.verdict, f.cls) for f in facts] == [(PROVED, PARAMETRIC)] * 4
    assert any("no cycle" in f.statement for f in facts) and any(IDLE in f.statement for f in facts)


def test_the_length_of_the_interleaved_order_is_bounded_by_its_grid() -> None:
    cycle, length, flight = schedule_facts(Pipeline("pp", "interleaved", None))
    assert (length.verdict, length.cls, length.reason) == (PROVED, BOUNDED, "p <= 5, v <= 3, m <= 4*p")
    assert {(fact.verdict, fact.cls) for fact in (cycle, flight)} == {(PROVED, PARAMETRIC)}
    assert schedule_facts(Pipeline("pp", "interleaved", 2))[1].reason == "p <= 5, v = 2, m <= 4*p"
    assert acyclic(Pipeline("pp", "interleaved", None)) == cycle


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_the_times_of_the_interleaved_order_grow_along_every_edge(chunks: int) -> None:
    """What is proved of numbered items holds of those that are generated, number by number."""
    for ranks in (1, 2, 3, 4):
        for microbatches in range(ranks, 3 * ranks + 1, ranks):
            pipeline, when = Pipeline("pp", "interleaved", chunks), {}
            for stage in range(ranks):
                seen = {"forward": 0, "backward": 0}
                for item in work(pipeline, stage, ranks, microbatches):
                    time = GROWING.forward if item.phase == "forward" else GROWING.backward
                    when[stage, item] = time(ranks, stage, (chunks - 1) * ranks, seen[item.phase])
                    seen[item.phase] += 1
            edges = schedule_graph(pipeline, ranks, microbatches).edges
            assert edges and all(when[one] < when[other] for one, other in edges)


@pytest.mark.parametrize("wrong", [
    Times(GROWING.forward, lambda p, i, ahead, n: GROWING.backward(p, i, ahead, n) - 2),
    Times(lambda p, i, ahead, n: 2 * n, GROWING.backward),
    Times(GROWING.forward, lambda p, i, ahead, n: GROWING.backward(p, i, ahead, n) + 4 * i),
])
def test_times_that_do_not_grow_are_refuted(wrong: Times) -> None:
    assert numbered("interleaved", wrong).verdict == REFUTED


@pytest.mark.parametrize(("order", "ahead"), [("1f1b", "p - 2 - i"), ("1f1b", "p - i"), ("gpipe", "p - 1 - i"),
                                              ("1f1b", "p - 1"), ("gpipe", "m - 2")])
def test_a_wrong_warm_up_is_refuted(order: str, ahead: str) -> None:
    assert any(f.verdict == REFUTED and f.cls == BOUNDED and f.reason for f in start_times(order, ahead))


@pytest.mark.parametrize(("order", "wrong", "which"), [
    ("1f1b", Times(TIMES["1f1b"].forward, lambda p, i, m, k: 2 * p - 2 - i + 2 * k), 0),
    ("1f1b", Times(lambda p, i, m, k: i + 2 * k, TIMES["1f1b"].backward), 1),
    ("1f1b", Times(TIMES["1f1b"].forward, lambda p, i, m, k: 2 * p - i + 2 * k), 2),
    ("gpipe", Times(lambda p, i, m, k: k, TIMES["gpipe"].backward), 0),
    ("gpipe", Times(lambda p, i, m, k: i + k + 1, lambda p, i, m, k: m + 2 * p - 1 - i + k), 2),
])
def test_wrong_times_are_refuted(order: str, wrong: Times, which: int) -> None:
    """Too early: something is not there. Too late: not the longest path, or a longer step."""
    assert start_times(order, times=wrong)[which].verdict == REFUTED


@pytest.mark.parametrize("claim", ["Min(m, p - 1 - i)", "Min(m, p - i + 1)", "Min(m, p)", "m"])
def test_a_wrong_number_in_flight_is_refuted(claim: str) -> None:
    assert held("1f1b", claim).verdict == REFUTED


def test_a_deadlock_and_a_longer_schedule_are_seen() -> None:
    """Fewer forwards ahead in the interleaved order wait for each other; other idle time is not what is walked."""
    interleaved = Pipeline("pp", "interleaved", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "AHEAD", {**orders.AHEAD, "interleaved": "0"})
        fact = walked(interleaved)
        assert fact.verdict == REFUTED and "a cycle at p = 1, v = 2, m = 1" in fact.reason
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "AHEAD", {**orders.AHEAD, "interleaved": "m*v"})
        assert walked(interleaved).verdict == PROVED, "all forwards, then all backwards: as short, but more in flight"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "IDLE", "p")
        assert walked(interleaved).verdict == REFUTED


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_the_times_are_the_longest_paths_of_the_generated_schedules(order: str) -> None:
    """What the solver is told of an order agrees with the schedules that `work` and `needs` generate."""
    as_number: Callable[..., int] = TIMES[order].forward if order == "gpipe" else (
        lambda p, i, m, k: i + k if k < p - i else i + 2 * k)
    for p in range(1, 5):
        for m in range(1, 7):
            starts: dict[tuple[int, Item], int] = {}
            for stage in range(p):
                for item in work(Pipeline("pp", order), stage, p, m):
                    time = as_number if item.phase == "forward" else TIMES[order].backward
                    starts[stage, item] = time(p, stage, m, item.microbatch)
            drawn = schedule_graph(Pipeline("pp", order), p, m)
            for node in drawn:
                assert starts[node] == max((starts[n] + 1 for n in drawn.predecessors(node)), default=0)
            waits = {(p_, n.phase): list(needs(n, p_, p, 1)) for p_, n in drawn}
            for (stage, phase), found in waits.items():
                told = [(by, at) for waiting, guard, by, at in schedule._needed(p, stage) if waiting == phase and guard]
                assert [(n.phase, at) for at, n in found] == told
            assert max(starts.values()) + 1 == 2 * (m + parse(IDLE).evaluate({"p": p}))
