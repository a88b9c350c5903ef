"""The time of a step: each part of the bound held against the events it is of, hierarchies, and faults put in."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.check.claims import Side, decide_claim
from placealg.cost.communication import communication
from placealg.cost.communication import rows as rows_of
from placealg.cost.costs import Costs
from placealg.cost.figure import Figure
from placealg.cost.flop import flop
from placealg.cost.links import crossing
from placealg.cost.machines import found_in, machine, machines
from placealg.cost.memory import memory
from placealg.cost.stage import on_stage
from placealg.cost.times import HYPOTHESES, PARAMETERS, PARTS, TERMS, Sent, Written, _bound, _work, times, unmasked
from placealg.cost.walk import Walk
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.transformer import gpt, moe
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

SIZES: dict[str, int | Fraction] = {
    "b": 2, "m": 8, "s": 64, "h": 32, "a": 8, "L": 8, "V": 96, "s_max": 64, "w": 2, "g": 2, "o": 12, "act": 2,
    "wire": 4, "kv": 4, "f": 96, "experts": 8, "topk": 2, "v": 2, "d": 4,
    "dp": 8, "dp_replicate": 2, "dp_shard": 4, "tp": 4, "cp": 2, "ep": 4, "pp": 4}
RATES: dict[str, int | Fraction] = {"peak_flops": 10**9, "node_bw": 1000, "card_bw": 100, "out_bw": 1100,
                                    "hbm_bw": 5000, "host_bw": 300, **PARAMETERS}
PLACED: dict[str, int | Fraction] = {"dp_in_node": 2, "dp_replicate_in_node": 1, "dp_shard_in_node": 2, "tp_in_node": 2,
                                     "cp_in_node": 1, "ep_in_node": 2, "pp_in_node": 1}
EVERY = {**SIZES, **RATES, **PLACED}


def step_of(expression: str) -> Step:
    step = derive(parse_strategy(expression), moe() if "ep" in expression else gpt())
    return on_stage(step, "last") if step.reference.pipeline.axis else step


def value(figure: object, **more: int | Fraction) -> Fraction:
    return figure.value({**EVERY, **more})  # type: ignore[attr-defined,no-any-return]


STRATEGIES = ("zero3", "hsdp*tp_sp", "zero1*cp_ring", "zero1*cp_ulysses*tp", "zero1*ep", "dp*pp",
              "zero2*tp*pp_interleaved*recompute_full")


def across_by_counting(collective: str, n: int, r: int) -> Fraction:
    """What crosses the boundary of the busiest node by its r cards, counted rank by rank, as a part of the tensor."""
    nodes = n // r
    if nodes == 1:
        return Fraction(0)
    share = Fraction(1, n)
    outside = n - r
    if collective in ("all_gather", "reduce_scatter"):
        return share * outside / r
    if collective == "all_reduce":  # the partial sums of nodes add up in N - 1 messages, and return in as many
        return Fraction(2 * (nodes - 1), nodes) / r
    if collective == "all_to_all":  # each rank has a share, an n-th of which goes to each other rank
        return sum((share * share for _ in range(r) for _ in range(outside)), Fraction(0)) / r
    if collective == "shift":  # one rank of the node hands n - 1 blocks to the next node
        return share * (n - 1) / r
    return Fraction(1, r)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "shift", "send"])
@given(st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=20)
def test_what_crosses_is_what_is_counted_rank_by_rank(collective: str, nodes: int, ranks: int) -> None:
    sizes = {"x": Fraction(nodes * ranks), "x_in_node": Fraction(ranks)}
    assert Figure((crossing(collective, ("x",)),)).value(sizes) == across_by_counting(collective, nodes * ranks, ranks)


@pytest.mark.parametrize("expression", STRATEGIES)
def test_parts_are_those_of_the_events(expression: str) -> None:
    step = step_of(expression)
    found, sent = times(step), communication(step)
    links = value(found["time.bound.links"])
    total = sent.total.value(**{n: v for n, v in EVERY.items() if n in sent.total.inputs})
    assert links * RATES["out_bw"] == total
    held = memory(step).optimizer
    assert value(found["time.bound.memory"]) * 5000 == 2 * held.value(
        **{n: v for n, v in EVERY.items() if n in held.inputs})
    if not step.reference.pipeline.axis:
        card = Fraction(0)
        for event in sent.events:
            n = Fraction(1)
            r = Fraction(1)
            for axis in event.axes:
                n, r = n * EVERY[axis], r * EVERY[f"{axis}_in_node"]
            if event.left_out or not event.axes or event.collective not in (
                    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "shift"):
                continue
            moved = event.formula.value(**{k: v for k, v in EVERY.items() if k in event.formula.inputs})
            factor = {"all_reduce": 2 * (n - 1) / n, "all_to_all": (n - 1) / n**2}.get(event.collective, (n - 1) / n)
            card += Fraction(moved) / factor * across_by_counting(event.collective, int(n), int(r))
        assert value(found["time.bound.card"]) * 100 == card


@pytest.mark.parametrize("expression", STRATEGIES)
def test_arithmetic_leaves_out_the_masked_half_and_adds_the_fill(expression: str) -> None:
    step = step_of(expression)
    work = flop(step)
    at = {n: v for n, v in EVERY.items() if n in work.inputs}

    def total(length: int, **more: int) -> Fraction:
        return Fraction(work.value(**{**at, "s": length, **{n: v for n, v in more.items() if n in at}}))

    square = (total(128) - 2 * total(64)) / 2  # of linear + square at 64, the square part
    expected = total(64) - square + square * Fraction(65, 128)
    if step.reference.pipeline.axis:
        own = total(64, V=1) - total(64, V=96)
        head = -own * Fraction(96, 95)
        layers = expected - head
        expected += layers / 8 * 3 / (2 if "interleaved" in expression else 1)
    assert value(times(step)["time.bound.compute"]) * 10**9 == expected


@pytest.mark.parametrize("expression", ["zero1", pytest.param("zero1*tp_sp*pp", marks=pytest.mark.slow)])
def test_formulas_are_the_figures(expression: str) -> None:
    step = step_of(expression)
    found = times(step)
    written = Written(step)
    for path in written:
        if path not in ("time.estimate", "time.estimate.unhidden"):
            formula = written[path]
            assert Fraction(formula.value(**{n: v for n, v in EVERY.items() if n in formula.inputs})) == value(
                found[path]), path


@pytest.mark.parametrize("expression", STRATEGIES)
def test_the_estimate_is_the_sum_of_its_terms(expression: str) -> None:
    found = times(step_of(expression))
    terms = [figure for path, figure in found.items() if path.startswith("time.estimate.")]
    assert value(found["time.estimate"]) == sum(map(value, terms))
    assert {path.rpartition(".")[2] for path in found if path.startswith("time.estimate.")} <= set(TERMS)
    assert {path.rpartition(".")[2] for path in found if path.startswith("time.bound.")} <= set(PARTS)


@pytest.mark.parametrize("expression", ["zero3", "hsdp*tp_sp", "zero1*ep"])
def test_a_dropped_and_a_doubled_collective_are_noticed(expression: str) -> None:
    step = step_of(expression)
    whole = value(times(step)["time.bound.links"])
    counted = {e.path for e in communication(step).events if not e.left_out and e.axes}
    some = [k for k, e in enumerate(step.events) if e.path in counted][:3]
    for k in some:
        own = communication(step)
        gone = next(e.formula for e in own.events if e.path == step.events[k].path)
        volume = Fraction(gone.value(**{n: v for n, v in EVERY.items() if n in gone.inputs}))
        if volume:
            walk = Walk(step)
            sent = [Sent.of(walk, r) for r in rows_of(walk) if not r.left_out]
            less = [one for one in sent if one.row.event.path != step.events[k].path]
            more = [*sent, *(one for one in sent if one.row.event.path == step.events[k].path)]
            assert value(Figure((_bound(walk, less, _work(walk), 1)["links"],))) < whole
            assert value(Figure((_bound(walk, more, _work(walk), 1)["links"],))) > whole


def test_a_group_within_a_node_crosses_nothing() -> None:
    found = times(step_of("zero3"))
    assert value(found["time.bound.card"], dp_in_node=8) == 0


@pytest.mark.parametrize(("length", "window"), [(9, 4), (4, 9), (7, 7)])
def test_a_window_leaves_what_counting_does(tmp_path: Path, length: int, window: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "mistral", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 32, "sliding_window": window,
        "max_position_embeddings": 64}))
    graph = resolve_model(str(path)).graph
    op = next(op for op in graph.ops if "mask" in op.attrs)
    share = Figure((unmasked(graph, op),)).value({"s": length})
    assert op.attrs["window"] == str(window)
    assert share == Fraction(sum(min(query, window) for query in range(1, length + 1)), length**2)


def test_a_bound_is_compared_and_proved() -> None:
    model = gpt()
    one, two = (Side(s, derive(s, model), {}, model) for s in map(parse_strategy, ("zero1", "dp")))
    answer = decide_claim(one, two, "time.bound.memory <=")
    assert answer.verdict == "PROVED"
    assert decide_claim(two, one, "time.bound.memory <=").verdict == "REFUTED"
    with pytest.raises(InputError, match=r"no figure 'time\.bond'"):
        decide_claim(one, two, "time.bond <=")


def test_figures_of_costs_know_times() -> None:
    costs = Costs(step_of("zero3"))
    assert costs.timed["time.bound.memory"].unit == "s"


def test_machines_have_sources_and_rates() -> None:
    assert all(m.source and m.checked and m.rates["peak_flops"] > 0 and m.per_node for m in machines().values())
    with pytest.raises(InputError, match="no machine is called 'h1000'; did you mean 'h100'"):
        machine("h1000")
    with pytest.raises(InputError, match="no rate"):
        machine("h100").with_rates(speed=Fraction(1))
    assert set(HYPOTHESES) >= {"peak_rates", "no_in_network_reduction", "whole_backward"}


def test_the_last_stage_waits_and_has_the_head() -> None:
    step = derive(parse_strategy("pp"), gpt())
    first, last = (times(on_stage(step, name))["time.bound.compute"] for name in ("first", "last"))
    assert value(last) > value(first)


@pytest.mark.parametrize("name", machines())
def test_programs_find_at_most_what_chips_have_and_hardly_less_than_what_is_sold(name: str) -> None:
    one = machine(name)
    assert one.sold_as is not None and one.memory is not None
    sold = int(one.sold_as / 10**9)
    assert one.sold_as <= one.memory <= sold * 2**30
    assert found_in(one.sold_as, one.memory) is not None and found_in(one.sold_as, Fraction(sold * 2**30)) is None


