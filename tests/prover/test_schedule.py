"""Facts about pipeline schedules: proved where they are true, refuted where an order or a time is wrong."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import product
from typing import Any

import networkx as nx
import pytest
import z3

from placealg.arith import parse
from placealg.prover import schedule, waiting
from placealg.prover.evidence.solver import SAT, UNKNOWN, UNSAT, Reply
from placealg.prover.schedule import (
    GROWING,
    NO_CYCLE,
    OUT_OF_ORDER,
    TIMES,
    TOO_EARLY,
    Fact,
    Times,
    acyclic,
    held,
    numbered,
    schedule_facts,
    start_times,
    walked,
)
from placealg.prover.verdict import BOUNDED, PARAMETRIC, PROVED, REFUTED, UNDECIDED
from placealg.step import pipeline as orders
from placealg.step.pipeline import (
    AHEAD,
    ENOUGH,
    IDLE,
    LATER,
    WAITING,
    Item,
    Pipeline,
    in_flight,
    needs,
    schedule_graph,
    work,
)


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


def waited(pipeline: Pipeline, ranks: int, microbatches: int, times: tuple[int, int, int]) -> list[int]:
    """The time between the start of each stage's first item and the end of its last in which it runs none."""
    forward, back, weights = times
    took = {"forward": forward, "backward": back if pipeline.splits else back + weights, "weights": weights}
    found = ends(pipeline, ranks, microbatches, took)
    spans = []
    for stage in range(ranks):
        own = {item: end for (at, item), end in found.items() if at == stage}
        spans.append(max(own.values()) - min(end - took[item.phase] for item, end in own.items())
                     - microbatches * sum(times))
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
    facts = [schedule._asked(order, "", *asked(order)) for asked in (waiting.attained, waiting.needed)]
    assert any(fact.verdict == REFUTED for fact in facts)


@pytest.mark.parametrize(("order", "edges"), [("zb_h1", (1, 1, 2)), ("zb_h2", (1, 3, 2)), ("zb_h2", (1, 1, 2))])
def test_lengths_outside_of_the_cones_are_refuted(order: str, edges: tuple[int, int, int],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(waiting.FAST, order, ((edges,),))  # type: ignore[attr-defined]
    assert schedule._asked(order, "", *waiting.attained(order)).verdict == REFUTED


@pytest.mark.parametrize("order", ["zb_h1", "zb_h2"])
def test_times_that_exclude_a_cycle_are_times_of_the_order(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert schedule._asked(order, "", *waiting.grows(order)).verdict == PROVED
    monkeypatch.setitem(AHEAD, order, "3*(p - 1 - i)")
    assert held(order, "Min(m, p)").verdict == REFUTED
    assert held(order, "Min(m, p)", until="weights").verdict == REFUTED


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


# what is asked, at small sizes

PHASES = ("forward", "backward")

MEANINGS: dict[int, Callable[..., int]] = {
    z3.Z3_OP_TRUE: lambda: True, z3.Z3_OP_FALSE: lambda: False, z3.Z3_OP_NOT: operator.not_,
    z3.Z3_OP_AND: lambda *of: all(of), z3.Z3_OP_OR: lambda *of: any(of), z3.Z3_OP_EQ: operator.eq,
    z3.Z3_OP_DISTINCT: operator.ne, z3.Z3_OP_LE: operator.le, z3.Z3_OP_LT: operator.lt, z3.Z3_OP_GE: operator.ge,
    z3.Z3_OP_GT: operator.gt, z3.Z3_OP_ADD: lambda *of: sum(of), z3.Z3_OP_MUL: lambda *of: math.prod(of),
    z3.Z3_OP_SUB: lambda first, *of: first - sum(of), z3.Z3_OP_UMINUS: operator.neg,
    z3.Z3_OP_IDIV: operator.floordiv, z3.Z3_OP_MOD: operator.mod,
    z3.Z3_OP_ITE: lambda *of: of[1] if of[0] else of[2]}
"""What the solver's operations are of whole numbers (divisors are positive)."""


@lru_cache(maxsize=4096)
def compiled(formula: Any) -> Callable[[dict[str, int]], int]:
    """A formula as a function of its sizes by name: read once, evaluated at thousands of sizes."""
    if z3.is_int_value(formula):
        number = formula.as_long()
        return lambda at: number
    kind, operands = formula.decl().kind(), [compiled(operand) for operand in formula.children()]
    if kind == z3.Z3_OP_UNINTERPRETED:
        name = formula.decl().name()
        return lambda at: at[name]
    meaning = MEANINGS[kind]
    return lambda at: meaning(*(operand(at) for operand in operands))


def value(formula: Any, **at: int) -> bool:
    """What a formula is at some sizes, all of which it may name."""
    there = compiled(formula)(at)
    assert isinstance(there, bool), there
    return there


def test_formulas_mean_here_what_they_mean_to_the_solver() -> None:
    p, n = z3.Ints("p n")
    formulas = [z3.And(p > 1, n < p), z3.Or(p == n, p != 2 * n), z3.Not(p >= n), z3.If(p <= n, p - n - 1, -p) > -n,
                z3.Distinct(p, n), p / 2 == n % 2, z3.BoolVal(True), z3.Or(), z3.Sum(p, n, 3) * n >= p]
    for formula, one, other in product(formulas, (-2, 0, 1, 3), (1, 2, 5)):
        told = z3.simplify(z3.substitute(formula, (p, z3.IntVal(one)), (n, z3.IntVal(other))))
        assert value(formula, p=one, n=other) == z3.is_true(told) != z3.is_false(told)


def failing(fact: Fact, **at: int) -> list[str]:
    """Which failures of a fact happen at sizes that it speaks of; none elsewhere."""
    return [says for says, formula in fact.failures if value(formula, **at)] if all(
        value(known, **at) for known in fact.known) else []


def starts(times: Times, sizes: tuple[int, int], stage: int, item: Item) -> int:
    time = times.forward if item.phase == "forward" else times.backward
    return int(str(z3.simplify(z3.IntVal(0) + time(sizes[0], stage, sizes[1], item.microbatch))))


def follows(order: str, p: int, m: int, i: int, k: int, phase: str) -> list[tuple[str, int, int]]:
    """What an item of stage i follows in its order, and waits for: phase, stage and microbatch."""
    listed = work(Pipeline("pp", order), i, p, m)
    at = listed.index(Item(phase, k))
    before = [(one.phase, i, one.microbatch) for one in listed[at - 1:at] if at]
    return before + [(by.phase, stage, by.microbatch) for stage, by in needs(listed[at], i, p, Pipeline("pp", order))]


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize("moved", PHASES)
def test_what_is_asked_of_start_times_is_told_by_any_one_time(order: str, moved: str) -> None:
    """One item, that of microbatch x on stage s, starts at another time t: what that breaks is asked, and no more."""
    s, x, t = z3.Ints("s x t")

    def unlike(phase: str) -> Callable[..., Any]:
        time = TIMES[order].of[phase]
        return lambda p, i, m, k: z3.If(z3.And(s == i, x == k), t, time(p, i, m, k)) if phase == moved else time(
            p, i, m, k)

    ordered, tight, length = start_times(order, times=Times(*map(unlike, PHASES)))
    assert [fact.order for fact in (ordered, tight, length)] == [order] * 3
    assert [says for fact in (ordered, tight, length) for says, _ in fact.failures] == [
        OUT_OF_ORDER, TOO_EARLY, "an item starts when none of them ends", "an item ends later, or the last one earlier"]
    assert [fact.statement for fact in (ordered, tight, length)] == [
        NO_CYCLE, "every item but the first starts when one that it follows or waits for ends",
        f"the step takes m + {IDLE} forwards and as many backwards of a stage"]
    for p, m in ((1, 1), (1, 3), (2, 1), (2, 3), (3, 2)):
        usual = {(phase, stage, k): starts(TIMES[order], (p, m), stage, Item(phase, k))
                 for phase in PHASES for stage in range(p) for k in range(m)}
        ends = 2 * (m + p - 1)
        for i, k, stage, late in product(range(p), range(m), range(-1, p + 1), range(-1, m + 1)):
            place = {(item.phase, item.microbatch): at for at, item in enumerate(work(Pipeline("pp", order), i, p, m))}
            seen = {(phase, k): follows(order, p, m, i, k, phase) for phase in PHASES}
            near = {usual[by] for phase in PHASES for by in (*seen[phase, k], (phase, i, k))}
            for at in {at + more for at in near for more in (0, 1, 2)} | {ends - 1, ends}:
                when = {**usual, (moved, stage, late): at}
                sizes = {"p": p, "m": m, "i": i, "k": k, "s": stage, "x": late, "t": at}
                idle = any(all(when[by] + 1 != when[phase, i, k] for by in seen[phase, k])
                           for phase in PHASES if phase == "backward" or i or k)
                assert bool(failing(tight, **sizes, n=0)) == idle
                over = any(when[phase, i, k] + 1 > ends for phase in PHASES) or when["backward", 0, m - 1] + 1 != ends
                assert bool(failing(length, **sizes, n=0)) == over
                early = any(when[phase, i, k] <= when[needed, i + at, k] for phase, needed, at, there in (
                    ("forward", "forward", -1, i > 0), ("backward", "forward", 0, i == p - 1),
                    ("backward", "backward", 1, i < p - 1)) if there)
                for n in range(m) if stage == i else ():
                    clash = any(place[one, n] < place[two, k] and when[two, i, k] <= when[one, i, n]
                                for one, two in product(PHASES, repeat=2))
                    assert failing(ordered, **sizes, n=n) == [OUT_OF_ORDER] * clash + [TOO_EARLY] * early
    inside = {"p": 2, "i": 0, "m": 2, "n": 0, "k": 0}
    for fact in (ordered, tight, length):
        assert all(value(known, **inside) for known in fact.known)
        for outside in ({"p": 0, "i": -1}, {"i": -1}, {"i": 2}, {"m": 0}, {"n": -1}, {"n": 2}, {"k": -1}, {"k": 2}):
            assert not all(value(known, **{**inside, **outside}) for known in fact.known)


def waits_for(p: int, i: int, total: int, ahead: int, n: int) -> list[tuple[str, str, int, int]]:
    """The n-th items of stage i, and what each waits for: phase of the item, phase, stage and number of the other."""
    return [
        *([("forward", "forward", i - 1, n)] if i else [("forward", "forward", p - 1, n - p)] if n >= p else []),
        *([("backward", "backward", i + 1, n)] if i < p - 1 else
          [("backward", "backward", 0, n - p)] if n >= p else []),
        *([("backward", "forward", i, n + ahead)] if i == p - 1 and n + ahead < total else [])]


def numbered_place(phase: str, n: int, p: int, i: int, total: int, ahead: int) -> int:
    started = min(2 * (p - 1 - i) + ahead, total)
    return int(orders.place(phase, n, started, total))


def test_items_by_number_cover_generated_schedules() -> None:
    """Where an item stands in its stage's order, and what it waits for, told by its number."""
    for p, v, groups in product((1, 2, 3), (1, 2, 3), (1, 2)):
        pipeline, m, ahead = Pipeline("pp", "interleaved", v), groups * p, (v - 1) * p
        number = {(stage, item): n for stage in range(p) for phase in ("forward", "backward") for n, item in enumerate(
            i for i in work(pipeline, stage, p, m) if i.phase == phase)}
        for stage in range(p):
            for at, item in enumerate(work(pipeline, stage, p, m)):
                n = number[stage, item]
                assert numbered_place(item.phase, n, p, stage, m * v, ahead) == at
                told = [by for phase, *by in waits_for(p, stage, m * v, ahead, n) if phase == item.phase]
                assert all([by.phase, other, number[other, by]] in told
                           for other, by in needs(item, stage, p, pipeline))


@pytest.mark.parametrize("moved", ["forward", "backward"])
def test_what_is_asked_of_numbered_items_is_told_by_any_one_time(moved: str) -> None:
    """One item, the x-th of stage s, starts at another time t: what that breaks is asked, and nothing else."""
    s, x, t = z3.Ints("s x t")

    def unlike(phase: str) -> Callable[..., Any]:
        time = getattr(GROWING, phase)
        return lambda p, i, ahead, n: z3.If(z3.And(s == i, x == n), t, time(p, i, ahead, n)) if (
            phase == moved) else time(p, i, ahead, n)

    fact, total = numbered("interleaved", Times(*map(unlike, PHASES))), 3
    assert (fact.order, fact.statement) == ("interleaved", NO_CYCLE)
    for p, ahead in ((1, 0), (1, 1), (2, 0), (2, 1), (3, 1)):
        for i, n, k, other, late in product(range(p), range(total), range(total), range(-1, p + 1), range(-1, 4)):
            if n != k and other != i:
                continue
            usual = {(phase, stage, of): int(getattr(GROWING, phase)(p, stage, ahead, of))
                     for phase in PHASES for stage in range(p) for of in range(total)}
            place = {(phase, of): numbered_place(phase, of, p, i, total, ahead) for phase in PHASES for of in (n, k)}
            for at in {usual[phase, i, of] - less for phase in PHASES for of in (n, k) for less in (0, 1)}:
                when = {**usual, (moved, other, late): at}
                clash = any(place[one, n] <= place[two, k] and when[two, i, k] <= when[one, i, n]
                            for one, two in product(PHASES, repeat=2) if (one, n) != (two, k))
                early = any(when[phase, i, n] <= when[tuple(by)] for phase, *by in waits_for(p, i, total, ahead, n))
                assert failing(fact, p=p, i=i, total=total, ahead=ahead, n=n, k=k, s=other, x=late, t=at) == (
                    [OUT_OF_ORDER] * clash + [TOO_EARLY] * early)
    inside = {"p": 2, "i": 0, "total": 2, "ahead": 0, "n": 0, "k": 0}
    for least in (inside, {**inside, "p": 1, "total": 1}):
        assert all(value(known, **least) for known in fact.known)
    for outside in ({"p": 0, "i": -1}, {"i": -1}, {"i": 2}, {"total": 0}, {"ahead": -1}, {"n": -1}, {"n": 2}, {"k": -1},
                    {"k": 2}):
        assert not all(value(known, **{**inside, **outside}) for known in fact.known)


@pytest.mark.parametrize(("order", "claim"), [("gpipe", ""), ("1f1b", ""), ("interleaved", ""), ("1f1b", "p"),
                                              ("1f1b", "Min(m, p - 1 - i)"), ("gpipe", "m - 1"), ("gpipe", "m + 1"),
                                              ("1f1b", "m + p")])
def test_what_is_asked_of_what_is_in_flight_is_so_of_generated_schedules(order: str, claim: str) -> None:
    """k backwards stand before the n-th forward: that, and no other k, is asked about."""
    fact = held(order, claim)
    told = claim or in_flight(Pipeline("pp", order))
    assert (fact.order, fact.statement) == (
        order, f"at most {told} forwards of stage i have no backward, and once so many")
    assert [says for says, _ in fact.failures] == ["there are more, or never so many"]
    for p, v, groups in product((1, 2, 3), (1, 2) if order == "interleaved" else (1,), (1, 2)):
        m = groups * p
        for stage in range(p):
            items = work(Pipeline("pp", order, v), stage, p, m)
            sizes = {"p": p, "m": m, "v": v, "i": stage}
            most, warm = (int(parse(text).evaluate(sizes)) for text in (told, AHEAD[order]))
            forwards = [at for at, item in enumerate(items) if item.phase == "forward"]
            for n, at in enumerate(forwards):
                before = at - n
                asked = {"total": m * v, "p": p, "i": stage, "ahead": warm, "n": n}
                right = [k for k in range(-1, m * v + 2) if all(value(known, **asked, k=k) for known in fact.known)]
                assert right == [before]
                peak = n == min(m * v - 1, warm)
                assert bool(failing(fact, **asked, k=before)) == (
                    n + 1 - before > most or (peak and n + 1 - before != most))
            for k, n in product(range(m * v + 1), (-1, m * v)):
                asked = {"total": m * v, "p": p, "i": stage, "ahead": warm, "n": n, "k": k}
                assert not all(value(known, **asked) for known in fact.known)
    inside = {"p": 2, "i": 0, "total": 2, "ahead": 1, "n": 0, "k": 0}
    assert all(value(known, **inside) for known in fact.known)
    for outside in ({"p": 0, "i": -1}, {"i": -1}, {"i": 2}, {"total": 0}, {"n": -1}, {"n": 2}, {"k": -1}, {"k": 3}):
        assert not all(value(known, **{**inside, **outside}) for known in fact.known)


def test_a_fact_says_how_the_solver_ended() -> None:
    for answer, verdict, cls, reason in (
            (Reply(UNSAT), PROVED, PARAMETRIC, ""),
            (Reply("unknown", reason="no time"), UNDECIDED, PARAMETRIC, "no time"),
            (Reply(SAT, {"b": 2, "a": 1}), REFUTED, BOUNDED, "not at a = 1, b = 2")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schedule.PROCESS, "ask", lambda _, answer=answer: answer)
            fact = schedule._asked("gpipe", "it is so", [z3.Int("a") > 0], (("it is not", z3.Int("b") > 0),))
        assert fact == Fact("gpipe", "it is so", verdict, cls, reason)
        assert fact.known == (z3.Int("a") > 0,) and fact.failures == (("it is not", z3.Int("b") > 0),)


def test_a_solver_that_gave_up_once_is_asked_again() -> None:
    for ask in (schedule.acyclic, lambda p: schedule_facts(p)[0]):
        for cache in (schedule._acyclic, schedule._facts):
            cache.forget()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schedule.PROCESS, "ask", lambda *_, **__: Reply(UNKNOWN, {}, "killed"))
            assert ask(Pipeline("pp")).verdict == UNDECIDED
        assert ask(Pipeline("pp")).verdict == PROVED
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schedule.PROCESS, "ask", lambda *_, **__: pytest.fail("asked again what is known"))
            assert ask(Pipeline("pp")).verdict == PROVED


def test_schedules_are_walked_up_to_so_many_stages_chunks_and_groups() -> None:
    assert list(schedule._grid(None)) == [(p, v, g * p) for p in range(1, 6) for v in (1, 2, 3) for g in (1, 2, 3, 4)]
    assert list(schedule._grid(2)) == [(p, 2, g * p) for p in range(1, 6) for g in (1, 2, 3, 4)]
    said = "the step takes m*v + p - 1 forwards and as many backwards of a chunk"
    assert walked(Pipeline("pp", "interleaved", 2)) == Fact(
        "interleaved", said, PROVED, BOUNDED, "p <= 5, v = 2, m <= 4*p")


def test_a_deadlock_and_a_longer_schedule_are_seen() -> None:
    """Fewer forwards ahead in the interleaved order wait for each other; other idle time is not what is walked."""
    interleaved = Pipeline("pp", "interleaved", 2)
    said = "the step takes m*v + {} forwards and as many backwards of a chunk"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "AHEAD", {**orders.AHEAD, "interleaved": "0"})
        assert walked(interleaved) == Fact(
            "interleaved", said.format(IDLE), REFUTED, BOUNDED, "a cycle at p = 1, v = 2, m = 1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "AHEAD", {**orders.AHEAD, "interleaved": "m*v"})
        assert walked(interleaved).verdict == PROVED, "all forwards, then all backwards: as short, but more in flight"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "IDLE", "p")
        assert walked(interleaved) == Fact(
            "interleaved", said.format("p"), REFUTED, BOUNDED, "4 items at p = 1, v = 2, m = 1")


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
            waits = {(p_, n.phase): list(needs(n, p_, p, Pipeline("pp", order))) for p_, n in drawn}
            for (stage, phase), found in waits.items():
                told = [(by, at) for waiting, guard, by, at in schedule._needed(p, stage) if waiting == phase and guard]
                assert [(n.phase, at) for at, n in found] == told
            assert max(starts.values()) + 1 == 2 * (m + parse(IDLE).evaluate({"p": p}))
