"""Orders of a pipeline in a V: what is proved of them is what generated schedules do, and another order is refuted."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
import z3

from placealg.arith import parse
from placealg.prover import schedule, v_schedule
from placealg.prover.schedule import acyclic, schedule_facts
from placealg.prover.v_schedule import B0, B1, EQUAL, F0, F1, FAST, PAUSES, W0, W1, Asked, Folded, Pause
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.step import folded as orders
from placealg.step.folded import FOLDED, LEAST, Entry, Run
from placealg.step.pipeline import Item, Pipeline, work
from placealg.step.waits import WAITING

SIZES = [(p, m) for p in range(1, 6) for m in (2 * p - 1, 2 * p, 3 * p + 1)]


def waits(order: str, ranks: int, microbatches: int, lengths: tuple[int, int, int]) -> list[int]:
    """How long each rank waits if every item starts as soon as it can; a rank's times are those of two chunks."""
    took = dict(zip(("forward", "backward", "weights"), lengths, strict=True))
    drawn = orders_graph(order, ranks, microbatches)
    spans = []
    for rank in range(ranks):
        mine = [(end - took[item.phase], end) for (at, item), end in longest(drawn, took).items() if at == rank]
        spans.append(max(e for _, e in mine) - min(s for s, _ in mine) - 2 * microbatches * sum(lengths))
    return spans


def orders_graph(order: str, ranks: int, microbatches: int) -> Any:
    from placealg.step.waits import schedule_graph

    return schedule_graph(Pipeline("pp", order, 2), ranks, microbatches)


def longest(drawn: Any, took: Mapping[str, int]) -> dict[tuple[int, Item], int]:
    import networkx as nx

    found: dict[tuple[int, Item], int] = {}
    for node in nx.topological_sort(drawn):
        found[node] = max((found[n] for n in drawn.predecessors(node)), default=0) + took[node[1].phase]
    return found


def claimed(order: str, p: int, i: int, lengths: tuple[int, int, int]) -> int:
    names = dict(zip(("T_F", "T_B", "T_W"), (2 * n for n in lengths), strict=True))
    return int(parse(WAITING[order]).evaluate({"p": p, "i": i, **names}))


@pytest.mark.parametrize(("order", "lengths"), [
    ("zb_v", (1, 1, 1)), ("zb_v", (3, 3, 2)), ("zb_v", (4, 7, 2)), ("zb_v", (0, 1, 0)), ("zb_v", (5, 5, 0)),
    ("dualpipe_v", (1, 1, 1)), ("dualpipe_v", (3, 3, 2)), ("dualpipe_v", (3, 2, 1)), ("dualpipe_v", (4, 3, 3))])
def test_generated_schedules_wait_as_long_as_is_proved(order: str, lengths: tuple[int, int, int]) -> None:
    for p, m in SIZES:
        if m >= parse(LEAST[order]).evaluate({"p": p}):
            assert waits(order, p, m, lengths) == [claimed(order, p, i, lengths) for i in range(p)], (p, m)


@pytest.mark.parametrize(("order", "lengths", "m"), [
    ("zb_v", (2, 1, 1), 8), ("zb_v", (1, 1, 2), 8), ("zb_v", (1, 1, 1), 4), ("dualpipe_v", (1, 2, 1), 9),
    ("dualpipe_v", (1, 1, 2), 9), ("dualpipe_v", (3, 1, 1), 9), ("dualpipe_v", (1, 1, 1), 5)])
def test_outside_of_its_condition_it_waits_otherwise(order: str, lengths: tuple[int, int, int], m: int) -> None:
    assert waits(order, 4, m, lengths) != [claimed(order, 4, i, lengths) for i in range(4)]


@pytest.mark.parametrize("order", FOLDED)
def test_places_and_start_times_are_those_of_the_generated_order(order: str) -> None:
    """What the solver is asked about, at numbers: places are those of `work`, and an item starts behind others."""
    kinds = {(e.phase, e.chunk): e for e in (F0, F1, B0, B1, W0, W1)}
    for p, m in ((3, 6),):
        placed = Folded(order, p, m, paused=False)
        for i in range(p):
            for at, item in enumerate(work(Pipeline("pp", order, 2), i, p, m)):
                entry = kinds[item.phase, item.chunk]
                assert number(placed.start(entry, i, item.microbatch)) == at, (p, m, i, item)
        for lengths in FAST[order][-2:]:
            timed = Folded(order, p, m, lengths)
            took = dict(zip(("forward", "backward", "weights"), lengths, strict=True))
            starts = {(i, item): number(timed.start(kinds[item.phase, item.chunk], i, item.microbatch))
                      for i in range(p) for item in work(Pipeline("pp", order, 2), i, p, m)}
            drawn = orders_graph(order, p, m)
            assert all(starts[node] >= starts[n] + took[n[1].phase] for node in drawn for n in drawn.predecessors(node))


def number(term: Any) -> int:
    return int(str(z3.simplify(z3.IntVal(0) + term)))


def refuted(asked: Asked) -> bool:
    return schedule.asked("", "", *asked).verdict == REFUTED


@pytest.mark.parametrize("order", FOLDED)
def test_it_is_proved_for_all_sizes(order: str) -> None:
    facts = schedule_facts(Pipeline("pp", order, 2))
    assert {(f.verdict, f.cls) for f in facts} == {(PROVED, PARAMETRIC)} and len(facts) == 6
    assert acyclic(Pipeline("pp", order, 2)) == facts[0] and WAITING[order] in facts[2].statement
    assert schedule.IN_TURN in [f.statement for f in facts]


def changed(order: str, at: int, times: str | None = None, items: str | None = None) -> tuple[Run, ...]:
    """The runs of an order with another number of repetitions, or other items, of one of them."""
    run = FOLDED[order][at]
    other = orders._runs((times or run.times, items or "F0"))[0]
    return (*FOLDED[order][:at], Run(other.times, other.items if items else run.items), *FOLDED[order][at + 1:])


@pytest.mark.some(4)
@pytest.mark.parametrize(("order", "at", "times", "items"), [
    ("zb_v", 0, "2*(p - i)", None), ("zb_v", 1, "i + 1", None), ("zb_v", 2, "p - 1 - i", None),
    ("zb_v", 3, "m - 2*p + i", None), ("zb_v", 3, None, "F0 B0 W0 B1 F1 W1"), ("zb_v", 5, None, "B1 B0"),
    ("zb_v", 7, None, "W0"), ("zb_v", 2, None, "B1 F1 W1"), ("dualpipe_v", 0, "2*(p - i)", None),
    ("dualpipe_v", 1, "i", None), ("dualpipe_v", 2, None, "F1 W1 B1"), ("dualpipe_v", 5, "odd", None),
    ("dualpipe_v", 7, None, "B0 B1"), ("dualpipe_v", 8, None, "B0 W"), ("dualpipe_v", 9, "i", None)])
def test_another_order_is_refuted(order: str, at: int, times: str | None, items: str | None,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of forwards ahead, items in another order, one left out: some fact fails."""
    runs = {**FOLDED, order: changed(order, at, times, items)}
    monkeypatch.setattr(v_schedule, "FOLDED", runs)
    assert any(refuted(asked(order)) for asked in (
        v_schedule.grows, v_schedule.attained, v_schedule.needed, v_schedule.holds))


@pytest.mark.some(4)
@pytest.mark.parametrize(("order", "at", "pause"), [
    ("zb_v", 2, Pause()), ("zb_v", 3, Pause(once="i*(B - F)")), ("zb_v", 4, Pause("B - W")),
    ("zb_v", 6, Pause("B - W")),
    ("dualpipe_v", 4, Pause("F")), ("dualpipe_v", 4, Pause("B", 2)), ("dualpipe_v", 8, Pause())])
def test_other_pauses_are_refuted(order: str, at: int, pause: Pause, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v_schedule, "PAUSES", {**PAUSES, order: {**PAUSES[order], at: pause}})
    if (order, at, pause) == ("dualpipe_v", 4, Pause("F")):
        assert not refuted(v_schedule.attained(order)), "it may as well wait before the forward as behind the backward"
    else:
        assert refuted(v_schedule.attained(order))


@pytest.mark.parametrize(("order", "wrong"), [
    ("zb_v", "(p - 1 - i)*(T_F + T_B - 2*T_W)/2"), ("zb_v", "(p - 1)*(T_B - T_W)"),
    ("dualpipe_v", "(p - 1 - i)*(T_F + T_B - T_W)"), ("dualpipe_v", "(p - 1 - i)*(T_F + T_B - 2*T_W)/2")])
def test_another_waiting_is_refuted(order: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAITING, order, wrong)
    assert refuted(v_schedule.attained(order)) and refuted(v_schedule.needed(order))


@pytest.mark.some(4)
@pytest.mark.parametrize(("order", "edge"), [("zb_v", (2, 1, 1)), ("zb_v", (1, 1, 2)), ("dualpipe_v", (0, 1, 0)),
                                             ("dualpipe_v", (1, 1, 2)), ("dualpipe_v", (2, 1, 0))])
def test_lengths_outside_of_the_cone_are_refuted(order: str, edge: tuple[int, int, int],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v_schedule, "FAST", {**FAST, order: (edge,)})
    assert refuted(v_schedule.attained(order))


@pytest.mark.parametrize(("order", "claim"), [
    ("zb_v", "Min(m, 2*p - 2 - i) + Min(m, i + 1)"), ("zb_v", "Min(m, 2*p - i) + Min(m, i + 1)"),
    ("zb_v", "2*p"), ("dualpipe_v", "Min(m, 2*p - i) + Min(m, i)"), ("dualpipe_v", "2*p + 1")])
def test_another_number_in_flight_is_refuted(order: str, claim: str) -> None:
    assert refuted(v_schedule.holds(order, claim))


@pytest.mark.parametrize("order", FOLDED)
def test_fewer_microbatches_than_fill_it_are_needed_for_the_times(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v_schedule, "LEAST", {**LEAST, order: "2*p - 3"})
    assert refuted(v_schedule.grows(order)) or refuted(v_schedule.attained(order))


def test_the_edges_span_the_condition() -> None:
    """The condition in words is that of the cone: an edge satisfies it, and what does not is no sum of edges."""
    inside = {"zb_v": lambda f, b, w: w <= f <= b, "dualpipe_v": lambda f, b, w: w <= b <= f <= b + w}
    for order, holds in inside.items():
        made = {tuple(sum(k * edge[x] for k, edge in zip(ks, FAST[order], strict=True)) for x in range(3))
                for ks in product(range(6), repeat=3)}
        assert all(holds(*lengths) for lengths in made)
        assert all(lengths in made for lengths in product(range(5), repeat=3) if holds(*lengths))
    assert EQUAL in FAST["zb_v"] and Entry("weights", None) in FOLDED["dualpipe_v"][-1].items
