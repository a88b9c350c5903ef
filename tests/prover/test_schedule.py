"""Facts about pipeline schedules: proved where they are true, refuted where an order or a time is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import networkx as nx
import pytest

from placealg.arith import parse
from placealg.prover import interleaved, schedule, waiting
from placealg.prover.schedule import (
    TIMES,
    acyclic,
    held,
    schedule_facts,
)
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.step.pipeline import (
    AHEAD,
    ENOUGH,
    IDLE,
    LATER,
    Item,
    Pipeline,
)
from placealg.step.waits import WAITING, schedule_graph


@pytest.mark.parametrize(("order", "many"), [("gpipe", 6), ("1f1b", 6), ("zb_h1", 5), ("zb_h2", 5),
                                             ("zb_v", 6), ("dualpipe_v", 6)])
def test_orders_of_one_chunk_are_proved_for_all_sizes(order: str, many: int) -> None:
    facts = schedule_facts(Pipeline("pp", order))
    assert [(f.verdict, f.cls) for f in facts] == [(PROVED, PARAMETRIC)] * many
    assert any("no cycle" in f.statement for f in facts) and any(WAITING[order] in f.statement for f in facts)
    assert acyclic(Pipeline("pp", order)) == facts[0]
    if order in TIMES:
        assert any(f"m + {IDLE} forwards" in f.statement for f in facts)


# how long a stage waits


def ends(pipeline: Pipeline, ranks: int, microbatches: int, took: Mapping[str, int]) -> dict[tuple[int, Item], int]:
    """When each item ends in the run that starts every item as soon as it can, by walking the generated graph."""
    drawn = schedule_graph(pipeline, ranks, microbatches)
    found: dict[tuple[int, Item], int] = {}
    for node in nx.topological_sort(drawn):
        found[node] = max((found[n] for n in drawn.predecessors(node)), default=0) + took[node[1].phase]
    return found


def waited(pipeline: Pipeline, ranks: int, microbatches: int, times: tuple[int, int, int],
           chunks: int = 1) -> list[int]:
    """The time between the start of each stage's first item and the end of its last in which it runs none."""
    forward, back, weights = times
    took = {"forward": forward, "backward": back if pipeline.splits else back + weights, "weights": weights}
    found = ends(pipeline, ranks, microbatches, took)
    spans = []
    for stage in range(ranks):
        own = {item: end for (at, item), end in found.items() if at == stage}
        spans.append(max(own.values()) - min(end - took[item.phase] for item, end in own.items())
                     - microbatches * chunks * sum(times))
    return spans


@pytest.mark.parametrize("order", ["gpipe", "1f1b", "zb_h1", "zb_h2"])
@pytest.mark.parametrize("times", [(1, 1, 1), (18, 18, 9), (5, 4, 2), (3, 8, 3), (7, 1, 4), (2, 2, 0)])
def test_generated_schedules_wait_as_long_as_is_proved(order: str, times: tuple[int, int, int]) -> None:
    """Qi et al., arXiv 2401.10241, table 2: what 1F1B, ZB-H1 and ZB-H2 wait; of every stage, at small sizes."""
    pipeline, names = Pipeline("pp", order), dict(zip(("T_F", "T_B", "T_W"), times, strict=True))
    for ranks in (1, 2, 3, 5):
        for microbatches in (2 * ranks - 1, 2 * ranks + 2):
            assert waited(pipeline, ranks, microbatches, times) == [
                parse(WAITING[order]).evaluate({"p": ranks, "i": i, **names}) for i in range(ranks)]


@pytest.mark.parametrize(("order", "times", "microbatches"), [
    ("zb_h1", (1, 1, 2), 6), ("zb_h2", (1, 3, 2), 7), ("zb_h2", (2, 0, 3), 7), ("zb_h2", (1, 1, 1), 4),
    ("zb_h1", (1, 1, 1), 2)])
def test_outside_of_its_condition_it_waits_longer(order: str, times: tuple[int, int, int], microbatches: int) -> None:
    names = dict(zip(("T_F", "T_B", "T_W"), times, strict=True))
    assert waited(Pipeline("pp", order), 4, microbatches, times)[0] > parse(WAITING[order]).evaluate(
        {"p": 4, "i": 0, **names})


@pytest.mark.parametrize(("table", "order", "wrong"), [
    (WAITING, "zb_h1", "(p - 1 - i)*(T_F + T_B - 2*T_W)"), (WAITING, "zb_h2", "(p - 1 - i)*(T_F + T_B - T_W)"),
    (WAITING, "1f1b", "(p - 1)*(T_F + T_B + T_W)"), (AHEAD, "zb_h1", "p - i"), (AHEAD, "zb_h2", "p - 1 - i"),
    (LATER, "zb_h1", "i + 1"), (LATER, "zb_h2", "i"), (ENOUGH, "zb_h2", "p"), (ENOUGH, "zb_h1", "1")])
def test_another_waiting_another_order_or_too_few_microbatches_are_refuted(
        table: dict[str, str], order: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table, order, wrong)
    facts = [schedule.asked(order, "", *asked(order)) for asked in (waiting.attained, waiting.needed)]
    assert any(fact.verdict == REFUTED for fact in facts)


@pytest.mark.parametrize(("order", "edges"), [("zb_h1", (1, 1, 2)), ("zb_h2", (1, 3, 2)), ("zb_h2", (1, 1, 2))])
def test_lengths_outside_of_the_cones_are_refuted(order: str, edges: tuple[int, int, int],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(waiting.FAST, order, ((edges,),))  # type: ignore[attr-defined]
    assert schedule.asked(order, "", *waiting.attained(order)).verdict == REFUTED


@pytest.mark.parametrize("order", ["zb_h1", "zb_h2"])
def test_times_that_exclude_a_cycle_are_times_of_the_order(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert schedule.asked(order, "", *waiting.grows(order)).verdict == PROVED
    monkeypatch.setitem(AHEAD, order, "3*(p - 1 - i)")
    assert held(order, "Min(m, p)").verdict == REFUTED
    assert held(order, "Min(m, p)", until="weights").verdict == REFUTED


@pytest.mark.parametrize(("order", "many"), [("interleaved", 4), ("interleaved_zb", 5)])
def test_orders_of_many_chunks_are_proved_for_all_sizes(order: str, many: int) -> None:
    for chunks in (None, 3):
        facts = schedule_facts(Pipeline("pp", order, chunks))
        assert [(f.verdict, f.cls) for f in facts] == [(PROVED, PARAMETRIC)] * many
        assert WAITING[order] in facts[1].statement and acyclic(Pipeline("pp", order, chunks)) == facts[0]


@pytest.mark.parametrize(("order", "times"), [
    ("interleaved", (1, 1, 0)), ("interleaved", (5, 1, 2)), ("interleaved", (1, 4, 3)), ("interleaved_zb", (1, 1, 1)),
    ("interleaved_zb", (3, 5, 2)), ("interleaved_zb", (4, 1, 4))])
def test_chunks_in_turns_wait_as_long_as_is_proved(order: str, times: tuple[int, int, int]) -> None:
    for p, v, groups in product((1, 2, 3, 4), (1, 2, 3), (1, 2, 3)):
        found = waited(Pipeline("pp", order, v), p, groups * p, times, v)
        names = dict(zip(("T_F", "T_B", "T_W"), (v * t for t in times), strict=True))
        assert found == [parse(WAITING[order]).evaluate({"p": p, "i": i, "v": v, **names}) for i in range(p)]


def test_where_weights_take_longer_than_forwards_chunks_in_turns_wait_longer() -> None:
    names = {"T_F": 2, "T_B": 2, "T_W": 6}
    assert waited(Pipeline("pp", "interleaved_zb", 2), 4, 8, (1, 1, 3), 2)[0] > parse(
        WAITING["interleaved_zb"]).evaluate({"p": 4, "i": 0, "v": 2, **names})


@pytest.mark.parametrize(("table", "order", "wrong"), [
    (WAITING, "interleaved", "(p - 1)*(T_F + T_B + T_W)/v"), (WAITING, "interleaved_zb", "(p - 1 - i)*(T_F + T_B)/v"),
    (AHEAD, "interleaved", "p - 1 - i + (v - 1)*p"), (AHEAD, "interleaved_zb", "(p - 1 - i)/2 + (v - 1)*p"),
    (LATER, "interleaved_zb", "0"), (LATER, "interleaved_zb", "2*i")])
def test_another_waiting_or_another_order_of_chunks_in_turns_is_refuted(
        table: dict[str, str], order: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table, order, wrong)
    facts = [schedule.asked(order, "", *asked(order)) for asked in (interleaved.attained, interleaved.needed)]
    assert any(fact.verdict == REFUTED for fact in facts)


def test_lengths_outside_of_the_cone_of_chunks_in_turns_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(interleaved.FAST, "interleaved_zb", ((1, 1, 2),))  # type: ignore[attr-defined]
    assert schedule.asked("", "", *interleaved.attained("interleaved_zb")).verdict == REFUTED
