"""Costs of pipelines: stage by stage against the whole model, the generated schedules, and published closed forms."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise, product

import networkx as nx
import pytest
from conftest import run_placealg

import placealg as pa
from placealg.arith import parse
from placealg.cost.communication import communication
from placealg.cost.costs import Costs
from placealg.cost.document import cost_json
from placealg.cost.expressions import EXPRESSIONS
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.memory import chosen, memory
from placealg.cost.regions import kept_for_backward
from placealg.cost.schedule import schedule
from placealg.cost.stage import StageStep, on_stage
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.build import graph
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.models.transformer import LLAMA, gpt
from placealg.step.derive import derive
from placealg.step.pipeline import FIRST, IDLE, LAST, TIMES, Pipeline, in_flight, work
from placealg.step.program import Step
from placealg.step.waits import schedule_graph
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy
from placealg.strategy.vocabulary import IN_A_V

SIZES: Mapping[str, int] = {"b": 3, "s": 64, "h": 48, "a": 12, "kv": 4, "f": 96, "L": 12, "V": 96, "m": 8}
AXES: Mapping[str, int] = {"dp": 5, "tp": 2, "pp": 4}
TYPES: Mapping[str, int] = {"w": 2, "g": 2, "wire": 2, "o": 12, "act": 2, "T_F": 3, "T_B": 4, "T_W": 2}
ORDERS = ("pp_gpipe", "pp", "pp_interleaved")


def formula(text: str, unit: str = "bytes") -> Formula:
    return Formula.parse(text, unit)


def said(strategy: Strategy, **schedule_said: object) -> Strategy:
    table = FrozenMap({**dict(strategy.tables.get("schedule", {})), **schedule_said})
    return replace(strategy, tables=strategy.tables.plus({"schedule": table}))


def step_of(text: str, model: Model | None = None, **schedule_said: object) -> Step:
    return derive(said(parse_strategy(text), **schedule_said), model or gpt())


def value(made: Formula, **sizes: int) -> Fraction:
    every = {**SIZES, **AXES, **TYPES, "v": 3, **sizes}
    found = made.value(**{n: v for n, v in every.items() if n in made.inputs})
    assert found is not None, made
    return Fraction(found)


def of_stages(step: Step, count: int, figure: Callable[[Step], Formula], **sizes: int) -> list[Fraction]:
    """A figure of every stage at SIZES, AXES and `sizes`."""
    known = {**SIZES, **AXES, **sizes, "pp": count}
    return [value(figure(on_stage(step, i, known)), **sizes, pp=count) for i in range(count)]


# --- what goes from stage to stage


@pytest.mark.parametrize(("strategy", "stage", "sent"), [
    ("pp", 0, "b*m*s*h"), ("pp", 1, "2*b*m*s*h"), ("pp", "last", "b*m*s*h"), ("pp_gpipe", 2, "2*b*m*s*h"),
    ("dp*tp_sp*pp", 1, "2*b*m*s*h/tp"), ("tp*pp", 1, "2*b*m*s*h"), ("cp*pp", "last", "b*m*s*h/cp"),
    ("pp_interleaved", 0, "(2*v - 1)*b*m*s*h"), ("pp_interleaved", 1, "2*v*b*m*s*h"),
    ("tp_sp*pp_interleaved", "last", "(2*v - 1)*b*m*s*h/tp"),
])
def test_bsh_per_boundary_direction_and_microbatch(strategy: str, stage: int | str, sent: str) -> None:
    """Narayanan et al., arXiv 2104.04473: b*s*h per message, /t where the boundary tensor is split, x v interleaved."""
    found = communication(on_stage(step_of(strategy, gpt(LLAMA)), stage), unit="elements")
    assert found.by_axes["pp"] == formula(sent, "elements")
    assert all(e.collective == "send" for e in found.events if e.axes == ("pp",) and not e.left_out)


@pytest.mark.parametrize(("order", "ranks", "chunks"), [
    *product(("gpipe", "1f1b"), (2, 3, 4), (1,)), *product(("interleaved",), (2, 3, 4), (2, 3)),
    *product(IN_A_V, (1, 2, 3, 4), (2,))])
def test_messages_are_those_of_the_generated_schedule(order: str, ranks: int, chunks: int) -> None:
    pipeline = Pipeline("pp", order, chunks)
    crossing: Counter[tuple[int, str]] = Counter()
    drawn = schedule_graph(pipeline, ranks, 2 * ranks)
    for (sender, _), (receiver, item) in drawn.edges:
        crossing[sender, item.phase] += sender != receiver
    step = step_of("pp", gpt(LLAMA), pipeline=order, chunks=pipeline.chunks)
    for i in range(ranks):
        stage = on_stage(step, i, {"pp": ranks}).stage
        for phase in ("forward", "backward"):
            sent = stage.value(stage.messages("layer", phase), EXPRESSIONS)
            assert sent * 2 * ranks == crossing[i, phase], (i, phase)


def test_a_tied_parameter_is_summed_over_the_two_stages_that_hold_it() -> None:
    (event,) = [e for e in communication(step_of("pp")).events if e.path.startswith("reduce.embedding")]
    assert event.formula == formula("wire*h*V"), "2*S*(n - 1)/n on two ranks, not on pp"
    inner = communication(on_stage(step_of("pp"), 1))
    assert not any("embedding" in e.path for e in inner.events)


# --- memory of a stage


@pytest.mark.parametrize(("strategy", "layers", "ranks", "chunks", "stages"), [
    ("zero3*tp_sp*pp", 12, 4, 1, ()), ("zero3*tp_sp*pp", 7, 3, 1, ()), ("dp*pp_gpipe", 9, 3, 1, (2, 4, 3)),
    ("zero1*tp*pp_interleaved", 12, 2, 3, ()), ("dp*pp_interleaved", 11, 2, 2, ()),
    ("dp*pp_interleaved", 8, 2, 2, (1, 3, 2, 2)), ("zero2*pp_zb_v", 12, 3, 2, ()), ("dp*pp_dualpipe_v", 9, 2, 2, ()),
    ("zero1*tp*pp_zb_v", 8, 2, 2, (1, 3, 2, 2)),
])
def test_the_stages_add_up_to_the_model(strategy: str, layers: int, ranks: int, chunks: int,
                                        stages: tuple[int, ...]) -> None:
    """States and flop of all stages are those of the same strategy without a pipeline, unevenly split or not."""
    model = replace(gpt(LLAMA), sizes=FrozenMap({"L": layers}))
    step, alone = step_of(strategy, model, stages=stages, chunks=chunks), step_of(strategy.rpartition("*")[0], model)
    for figure in (lambda s: memory(s).states, flop):
        assert sum(of_stages(step, ranks, figure, L=layers, m=ranks)) == value(figure(alone), L=layers, m=ranks)


def test_the_stages_add_up_in_symbols() -> None:
    """First, pp - 2 inner ones and last; a tied embedding stands twice."""
    step, psi = step_of("zero1*pp"), formula("(s*h + 2*h + h*V + L*(12*h**2 + 13*h))", "bytes")
    states = [memory(on_stage(step, which)).parameters.expr for which in (0, 1, "last")]
    pp = next(s for s in states[1].free_symbols if s.name == "pp")
    total = Formula(states[0] + (pp - 2) * states[1] + states[2], "bytes")
    tied = formula("w*h*V")
    assert total == Formula(psi.expr * next(s for s in states[1].free_symbols if s.name == "w"), "bytes") + tied


def test_one_stage_is_no_pipeline() -> None:
    model = gpt(LLAMA)
    one, alone = chosen(step_of("zero3*tp_sp*pp", model), 0, {"pp": 1}), step_of("zero3*tp_sp", model)
    for (name, mine), (_, other) in zip(memory(one).items(), memory(alone).items(), strict=True):
        assert value(mine, pp=1) == value(other), name
    assert value(communication(one).total, pp=1) == value(communication(alone).total)
    assert value(flop(one), pp=1) == value(flop(alone))
    order = schedule(one)
    assert order is not None
    assert {n: value(f, pp=1) for n, f in order.items()} == {"bubble": 0, "bubble_of_total": 0, "in_flight": 1,
                                                                "waiting": 0}


# --- in flight


def counted(pipeline: Pipeline, stage: int, ranks: int, microbatches: int) -> tuple[int, list[int]]:
    """By walking a stage's work: the most chunk-forwards without backwards, in all and of each chunk."""
    now = [0] * (pipeline.chunks or 1)
    most, each = 0, list(now)
    for item in work(pipeline, stage, ranks, microbatches):
        now[item.chunk] += 1 if item.phase == "forward" else -1
        most, each = max(most, sum(now)), list(map(max, each, now))
    assert not any(now)
    return most, each


def pipelines(largest: int) -> list[tuple[Pipeline, int, int]]:
    found = [(Pipeline("pp", order), p, m) for order in ("gpipe", "1f1b") for p in range(1, largest + 1)
             for m in (1, 2, 3, 7)]
    return found + [(Pipeline("pp", "interleaved", v), p, k * p) for v in (1, 2, 3) for p in range(1, largest + 1)
                    for k in (1, 2, 3)]


def test_in_flight_is_counted_on_the_generated_schedules() -> None:
    for pipeline, p, m in pipelines(5):
        for i in range(p):
            at = {"p": p, "i": i, "m": m, "v": pipeline.chunks or 1}
            most, each = counted(pipeline, i, p, m)
            assert parse(in_flight(pipeline)).evaluate(at) == most, (pipeline, at)
            if i == 0:
                assert parse(in_flight(pipeline, FIRST)).evaluate(at) == each[0], (pipeline, at)
            if i == p - 1:
                assert parse(in_flight(pipeline, LAST)).evaluate(at) == each[-1], (pipeline, at)


@pytest.mark.parametrize(("strategy", "stage", "expected"), [
    ("pp_gpipe", 0, "m"), ("pp_gpipe", "last", "m"), ("pp", 0, "Min(m, pp)"), ("pp", 3, "Min(m, pp - 3)"),
    ("pp", "last", "1"), ("pp_interleaved", 1, "Min(m*v, v*pp + pp - 3)/v"),
    ("pp_interleaved", "last", "Min(m*v, v*pp - pp + 1)/v"),
])
def test_in_flight(strategy: str, stage: int | str, expected: str) -> None:
    order = schedule(on_stage(step_of(strategy), stage))
    assert order is not None and order.in_flight == formula(expected, "1")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("axes", "stage"), [("dp", 0), ("dp", 3), ("tp_sp", 1)])
def test_activations_are_one_microbatch_s_times_those_in_flight(order: str, axes: str, stage: int) -> None:
    """One layer's part, and what stands at the ends, are read off the strategy without a pipeline."""
    pp, m, v = 4, 8, 3
    alone = memory(step_of(axes)).activations
    layer = value(alone, L=2) - value(alone, L=1)
    chunks = v if order == "pp_interleaved" else 1
    pipeline = Pipeline("pp", {"pp_gpipe": "gpipe", "pp": "1f1b"}.get(order, "interleaved"), chunks)
    mask = value(formula("b*s*h"))
    ends = {0: mask, 3: value(alone, L=1) - layer - mask}
    most, each = counted(pipeline, stage, pp, m)
    want = most * layer * SIZES["L"] // (pp * chunks) + ends.get(stage, 0) * (each[0] if stage == 0 else each[-1])
    step = on_stage(step_of(f"{axes}*{order}", chunks=chunks), stage, {"pp": pp, "L": 12})
    got = memory(step).activations
    assert value(got, m=m, pp=pp) == want
    assert value(sum((k.bytes for k in kept_for_backward(step)), formula("0")), m=m) == want
    assert value(sum((r.activations for r in Costs(step).regions), formula("0")), m=m) == want


def test_what_leaves_a_layer_is_kept_once_per_chunk() -> None:
    """Layers that read their own result in backward keep L + 1 tensors per chunk, not per stage."""
    g = graph(batch="b", embed="h", ffn="f", vocab="V")
    x = g.repeat("layer", "L", g.data("data.input", "batch embed"))
    y = g.linear("layer.up", x, "batch ffn", "embed ffn")
    y = g.unary("layer.tanh", g.linear("layer.down", y, "batch embed", "ffn embed"), "tanh")
    g.sum("loss.sum", g.cross_entropy("head.loss", g.linear("head.logits", y, "batch vocab", "embed vocab"),
                                      g.ids("data.targets", "batch"), over="vocab"))
    step = step_of("pp_interleaved", Model.of_graph("tanh", g.build()))
    kept = {k.tensor: k.bytes for k in kept_for_backward(on_stage(step, 1))}
    each = "Min(m*v, v*pp + pp - 3)"
    assert kept["layer.tanh"] == formula(f"act*b*h*{each}")
    assert kept["layer.in"] == formula(f"act*b*h*L*{each}/(pp*v)")


@pytest.mark.parametrize("stages", [(3, 1, 1, 4), (1, 4, 2, 2)])
def test_chunks_of_unequal_size(stages: tuple[int, ...]) -> None:
    model = replace(gpt(LLAMA), sizes=FrozenMap({"L": sum(stages)}))
    step = step_of("pp_interleaved", model, chunks=2, stages=stages)
    alone = memory(step_of("dp", model)).activations
    layer = value(alone, L=2) - value(alone, L=1)
    for i in range(2):
        own, now, most = stages[i::2], [0, 0], 0
        for item in work(Pipeline("pp", "interleaved", 2), i, 2, 6):
            now[item.chunk] += own[item.chunk] * (1 if item.phase == "forward" else -1)
            most = max(most, sum(now))
        (kept,) = {k.count for k in kept_for_backward(on_stage(step, i, {"pp": 2, "m": 6})) if k.tensor == "layer.in"}
        assert value(kept) == most
        if i == 0:
            assert value(memory(on_stage(step, i, {"pp": 2, "m": 6})).activations, m=6, pp=2) == most * layer


def test_peak_is_that_of_one_microbatch_and_what_the_others_hold() -> None:
    step = step_of("zero3*tp_sp*pp", gpt(LLAMA))
    for i in range(4):
        mine = on_stage(step, i, {"pp": 4})
        held = memory(mine)
        each = value(held.activations, m=1)
        assert value(held.peak, m=8) - value(held.peak, m=1) == (min(8, 4 - i) - 1) * each
        assert value(held.peak, m=8) >= value(held.states) + value(held.activations, m=8)


# --- a backward in two parts


def two_products() -> Model:
    """Layers of two products and a gelu: what waits for either backward is counted by hand."""
    g = graph(batch="b", embed="h", ffn="f", vocab="V")
    x = g.repeat("layer", "L", g.data("data.input", "batch embed"))
    x = g.linear("layer.down", g.unary("layer.act", g.linear("layer.up", x, "batch ffn", "embed ffn"), "gelu"),
                 "batch embed", "ffn embed")
    logits = g.linear("head.logits", x, "batch vocab", "embed vocab")
    g.sum("loss.sum", g.cross_entropy("head.loss", logits, g.ids("data.targets", "batch"), over="vocab"))
    return Model.of_graph("two products", g.build())


@pytest.mark.parametrize("order", ["zb_h1", "zb_h2"])
def test_what_waits_is_the_most_on_the_way_through_the_generated_order(order: str) -> None:
    """Until its backward a layer keeps its input and both sides of the gelu; then inputs and gradients of products."""
    step = step_of("pp", two_products(), pipeline=order)
    b, h, f = (SIZES[n] for n in ("b", "h", "f"))
    whole, weights = 2 * b * (h + 2 * f), 2 * b * (2 * h + 2 * f)
    for pp, m in ((2, 1), (2, 5), (4, 3), (4, 9), (4, 12)):
        for stage in range(pp - 1):
            now, most = Counter[str](), 0
            for item in work(Pipeline("pp", order), stage, pp, m):
                now[item.phase] += 1
                inside = now["forward"] - now["backward"], now["backward"] - now["weights"]
                most = max(most, inside[0] * whole + inside[1] * weights if item.phase == "forward" else 0)
            held = memory(on_stage(step, stage, {"pp": pp, "L": 12})).activations
            assert value(held, pp=pp, m=m) == most * (12 // pp), (pp, m, stage)


def test_the_weights_backward_reads_what_it_was_given() -> None:
    kept = kept_for_backward(on_stage(step_of("pp_zb_h1", two_products()), 1))
    most, both = "Min(m, pp - 1)", "Min(m, pp)"
    assert [(k.tensor, k.count) for k in kept] == [
        *((name, formula(f"L/pp*{most}", "1")) for name in ("layer.in", "layer.up", "layer.act")),
        *((name, formula(f"L/pp*({both} - {most})", "1"))
          for name in ("layer.in", "layer.act", "layer.down.grad", "layer.up.grad"))]


@pytest.mark.parametrize("strategy", ["zero1*tp_sp", "zero3", "zero2*tp*recompute_full"])
def test_a_backward_in_two_parts_computes_and_sends_the_same(strategy: str) -> None:
    for model in (gpt(LLAMA), gpt()):
        one, two = (step_of(f"{strategy}*{order}", model) for order in ("pp", "pp_zb_h2"))
        for stage in ("first", 1, "last"):
            mine, other = on_stage(two, stage), on_stage(one, stage)
            assert value(flop(mine)) == value(flop(other))
            assert value(communication(mine).total) == value(communication(other).total)
            assert memory(mine).states == memory(other).states
            assert value(memory(mine).peak) >= value(memory(mine).states) + value(memory(mine).activations)


@pytest.mark.parametrize("order", IN_A_V)
def test_what_a_v_holds_is_the_most_on_the_way_through_the_generated_order(order: str) -> None:
    """Of forwards whose backwards are to come; the first stage has both ends of the model, no other one has any."""
    step = step_of("pp", two_products(), pipeline=order, chunks=2)
    b, h, f = (SIZES[n] for n in ("b", "h", "f"))
    whole = 2 * b * (h + 2 * f)
    for pp, m in ((2, 1), (2, 5), (3, 3), (3, 9), (3, 12)):
        for stage in range(pp):
            now, most = Counter[str](), 0
            for item in work(Pipeline("pp", order, 2), stage, pp, m):
                now[item.phase] += 1
                most = max(most, now["forward"] - now["backward"])
            here = on_stage(step, stage, {"pp": pp, "L": 12})
            assert (here.stage.first, here.stage.last) == (stage == 0,) * 2
            held = [k for k in kept_for_backward(here) if k.tensor.startswith("layer") and k.tensor != "layer.down"]
            assert value(sum((k.bytes for k in held), formula("0")), pp=pp, m=m) == most * whole * (12 // pp) // 2
            assert memory(here).activations == sum((k.bytes for k in kept_for_backward(here)), formula("0"))


def test_a_v_over_uneven_stages_and_layers_of_two_kinds() -> None:
    """Seven layers on two ranks: chunks of 1, 2, 2 and 2, of which the first rank has the first and the last."""
    step = step_of("zero1*pp_zb_v", replace(gpt(LLAMA), sizes=FrozenMap({"L": 7})))
    told = [on_stage(step, i, {"pp": 2, "L": 7, "m": 4}).stage for i in (0, 1)]
    assert [stage.symbols["n_layer"] for stage in told] == [3, 4]
    assert [len(chunk) for stage in told for chunk in stage.own] == [1, 2, 2, 2]
    deep = step_of("zero1*pp_zb_v", resolve_model("deepseek-v3"))
    stages = [on_stage(deep, i, {"pp": 4, "m": 8}).stage for i in range(4)]
    assert set(stages[0].instances) == {"dense", "layer"}
    assert sum(int(s.instances["layer"].evaluate({})) for s in stages) == 58
    assert [[s.messages(u, phase) for u in ("dense", "layer")] for s in stages[:2] for phase in (
        "forward", "backward")] == [["0", "1"], ["0", "1"], ["0", "2"], ["0", "2"]]


def test_published_zero_bubbles() -> None:
    """Qi et al., arXiv 2401.10241, table 2: what 1F1B, ZB-H1 and ZB-H2 wait, and the microbatches that they hold.

    Of orders in a V what is proved of them.
    """
    for strategy, waiting, held in (
            ("pp", "(pp - 1)*(T_F + T_B + T_W)", "Min(m, pp)"),
            ("pp_zb_h1", "(pp - 1)*(T_F + T_B - T_W)", "Min(m, pp)"),
            ("pp_zb_h2", "(pp - 1)*(T_F + T_B - 2*T_W)", "Min(m, 2*pp - 1)"),
            ("pp_zb_v", "(pp - 1)*(T_B - T_W)", "Min(m, 2*pp - 1)/2 + 1/2"),
            ("pp_dualpipe_v", "(pp - 1)*(T_F + T_B - T_W)/2", "Min(m, 2*pp)/2 + 1/2")):
        found = schedule(step_of(strategy, gpt(LLAMA)))
        assert found is not None
        assert found.waiting == formula(waiting, "time") and found.in_flight == formula(held, "1")
        assert found.bubble == formula(f"{waiting}/(m*(T_F + T_B + T_W))", "1")


def waited(pipeline: Pipeline, p: int, m: int, times: tuple[int, int, int]) -> Fraction:
    """How long stage 0 waits when every item starts as soon as it can; `times` are those of a stage's two parts."""
    took = dict(zip(("forward", "backward", "weights"), times, strict=True))
    drawn, ends = schedule_graph(pipeline, p, m), dict[object, int]()
    for node in nx.topological_sort(drawn):
        ends[node] = max((ends[n] for n in drawn.predecessors(node)), default=0) + took[node[1].phase]
    chunks = pipeline.chunks or 1
    return Fraction(max(end for (stage, _), end in ends.items() if stage == 0) - m * chunks * sum(times), chunks)


@pytest.mark.parametrize(("order", "chunks"), [("zb_h1", 1), ("zb_h2", 1), ("zb_v", 2), ("dualpipe_v", 2)])
@pytest.mark.parametrize("lengths", [(1, 3), pytest.param((1, 2, 3, 5), marks=pytest.mark.slow)])
def test_no_waiting_time_is_claimed_outside_of_its_condition(order: str, chunks: int, lengths: tuple[int, ...]) -> None:
    """Inside it is that of the earliest run; outside the figure has no value, and at some times it would be wrong."""
    found = schedule(step_of("pp", gpt(LLAMA), pipeline=order, chunks=chunks))
    assert found is not None
    inside = wrong = 0
    for times in product(lengths, repeat=3):
        for p, m in ((2, 1), (2, 5), (3, 7))[:len(lengths)]:
            at = {**{n: chunks * t for n, t in zip(TIMES, times, strict=True)}, "pp": p, "m": m}
            said, real = found.waiting.value(**at), chunks * waited(Pipeline("pp", order, chunks), p, m, times)
            if said is None:
                assert found.bubble.value(**at) is None and found.in_flight.value(**{
                    n: at[n] for n in found.in_flight.inputs}) is not None
                wrong += replace(found.waiting, where=()).value(**at) != real
            else:
                assert said == real, (times, p, m)
                inside += 1
    assert inside and wrong


# --- the bubble


@pytest.mark.parametrize(("forward", "backward"), [(1, 1), (1, 2), (2, 3)])
def test_the_bubble_is_the_longest_path_of_the_generated_schedules(forward: int, backward: int) -> None:
    """In the time of a chunk's forward and backward, the step takes m*v + p - 1; a stage works m*v of it."""
    names = {"1f1b": "pp", "gpipe": "pp_gpipe", "interleaved": "pp_interleaved"}
    told = {name: schedule(step_of(name)) for name in names.values()}
    for pipeline, p, m in pipelines(4):
        drawn = schedule_graph(pipeline, p, m)
        took = {"forward": forward, "backward": backward}
        ends: dict[object, int] = {}
        for node in nx.topological_sort(drawn):
            ends[node] = max((ends[n] for n in drawn.predecessors(node)), default=0) + took[node[1].phase]
        ideal = (forward + backward) * m * (pipeline.chunks or 1)
        idle = Fraction(max(ends.values()) - ideal)
        assert idle == (forward + backward) * parse(IDLE).evaluate({"p": p}), (pipeline, p, m)
        found = told[names[pipeline.order]]
        assert found is not None
        assert value(found.bubble, pp=p, m=m, v=pipeline.chunks or 1) == idle / ideal
        assert value(found.bubble_of_total, pp=p, m=m, v=pipeline.chunks or 1) == idle / (ideal + idle)


def test_published_bubbles() -> None:
    """GPipe, arXiv 1811.06965: (p - 1)/(m + p - 1) of the total; Megatron-LM: (p - 1)/m, interleaved over v."""
    for strategy, bubble, total in (("pp_gpipe", "(pp - 1)/m", "(pp - 1)/(m + pp - 1)"),
                                    ("pp", "(pp - 1)/m", "(pp - 1)/(m + pp - 1)"),
                                    ("pp_interleaved", "(pp - 1)/(v*m)", "(pp - 1)/(v*m + pp - 1)")):
        found = schedule(step_of(strategy))
        assert found is not None
        assert (found.bubble, found.bubble_of_total) == (formula(bubble, "1"), formula(total, "1"))
    assert schedule(step_of("tp")) is None


def test_published_numbers_in_flight() -> None:
    """Korthikanti et al., arXiv 2205.05198, section 4.2.3, of the first stage when microbatches are many.

    It holds what L layers hold, and interleaved 1 + (p - 1)/(p*v) times that.
    """
    for strategy, over_stages in (("tp_sp*pp", "1"), ("tp_sp*pp_interleaved", "1 + (pp - 1)/(pp*v)")):
        step = step_of(strategy)
        order, held = schedule(step), memory(step).activations.limit("m")
        assert order is not None
        assert order.in_flight.limit("m") == formula(f"pp*({over_stages})", "1")
        layers = held.subs(L=2) - held.subs(L=1)
        assert layers.subs(act=2) == formula(f"s*b*h/tp*(34 + 5*a*s/h)*({over_stages})")


# --- which stage


@pytest.mark.parametrize(("strategy", "stages", "layers", "vocab", "most"), [
    ("zero1*pp", (), 12, 96, 0), ("dp*pp_gpipe", (), 14, 96, 3), ("zero1*pp", (2, 3, 4, 3), 12, 96, 1),
    ("zero1*pp", (), 12, 20000, 3), ("dp*pp_interleaved", (), 14, 96, None), ("zero1*pp", (), 14, 96, 1),
])
def test_the_default_is_the_most_loaded_stage(strategy: str, stages: tuple[int, ...], layers: int, vocab: int,
                                              most: int | None) -> None:
    step = step_of(strategy, gpt(LLAMA), stages=stages, chunks=2 if "interleaved" in strategy else 1)
    sizes = {**SIZES, "pp": 4, "dp": 5, "L": layers, "V": vocab, "d": 4}
    totals = [value(memory(on_stage(step, i, sizes)).total, **sizes) for i in range(4)]
    found = chosen(step, None, sizes)
    assert isinstance(found, StageStep)
    assert found.most_loaded and totals[found.stage.number] == max(totals)
    assert most is None or found.stage.number == most


def test_without_sizes_it_is_the_first() -> None:
    strategy = pa.parse_strategy("pp")
    assert pa.memory(strategy, gpt()).states == memory(on_stage(step_of("pp"), "first")).states
    assert pa.memory(strategy, gpt(), stage="last").states == memory(on_stage(step_of("pp"), "last")).states
    assert pa.communication(strategy, gpt(), stage=1).total == formula("2*act*b*m*s*h")


@pytest.mark.parametrize(("stage", "words"), [
    ("4", "pp = 4 has no stage 4: its stages are 0 to 3"), ("middle", "stage 'middle' is not a stage"),
    (-1, "stage '-1' is not a stage"),
])
def test_a_stage_that_is_none(stage: int | str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        on_stage(step_of("pp[4]"), stage)


def test_bad_words_are_one_line() -> None:
    for words, told in (
        (("zero3", "--rank", "stage=0"), "--rank: zero3 has no pipeline axis"),
        (("pp[4]", "--rank", "0"), "--rank: '0' is not stage=WHICH"),
        (("pp_interleaved", "--model", "llama-3-70b", "--set", "pp=4", "v=2", "m=6"), "which does not divide m = 6"),
        (("pp", "--model", "llama-3-70b", "--set", "pp=81"), "pp = 81 makes 81 stages of 80 layers"),
        (("pp", "--set", "v=2"), "'v'"),
    ):
        outcome = run_placealg("cost", *words)
        assert outcome.code == 2 and told in outcome.err and outcome.err.count("\n") == 1, outcome.err


def test_llama_3_1_405b_on_16_stages() -> None:
    """126 layers: 7 or 8 per stage, and the page says which stage it tells of."""
    words = ("cost", "zero3*tp_sp*pp", "--model", "llama-3.1-405b", "--set", "tp=8", "pp=16", "dp=128", "b=1", "s=8192",
             "m=16")
    told = " ".join(run_placealg(*words).out.split())
    assert "stage 1 of pp = 16" in told and "the most loaded" in told and "8 instances of layer" in told
    first = " ".join(run_placealg(*words, "--rank", "stage=0").out.split())
    assert "stage 0 of pp = 16" in first and "7 instances of layer" in first and "most loaded" not in first
    document = json.loads(run_placealg(*words, "--format", "json").out)
    assert document["schedule"]["stage"] == "1" and document["schedule"]["in_flight"]["value"] == 15
    assert any("the most loaded" in line for line in document["hypotheses"])
    model = resolve_model("llama-3.1-405b")
    step = derive(parse_strategy("dp*pp[16]"), model)
    held = [memory(on_stage(step, i)).parameters.value() or 0 for i in range(16)]
    assert sum(held) == 2 * model.total()


def test_every_format_tells_the_schedule() -> None:
    for name in ("markdown", "latex", "python", "text"):
        assert "bubble" in run_placealg("cost", "zero1*pp_interleaved", "--format", name).out
    compared = run_placealg("compare", "zero1", "zero1*pp", "--model", "gpt", "--rank", "stage=last").out
    assert "zero1*pp: the last stage along pp" in compared and "bubble" in compared
    assert "bubble" not in run_placealg("compare", "zero1", "zero3").out


def test_the_document_lists_its_symbols() -> None:
    document = cost_json(step_of("zero1*pp_interleaved"), {"pp": 4, "v": 2, "m": 8})
    assert document["symbols"]["m"]["assumptions"] == "positive integer"
    free = cost_json(step_of("zero1*pp_interleaved"))
    assert free["symbols"]["v"] == {"meaning": "pipeline chunks per rank", "assumptions": "positive integer"}
    assert free["schedule"]["bubble"] == {"expr": "(pp - 1)/(m*v)", "unit": "1", "value": None}, "m has no default here"
    assert "m is a multiple of pp" in free["hypotheses"] and "pp is at least 2" in free["hypotheses"]


# --- several repeated units


def two_kinds(few: int, many: int) -> Model:
    """`few` layers of one kind, then `many` of another."""
    g = graph(batch="b", embed="h", ffn="f", wide="4*f", vocab="V")
    x = g.repeat("dense", few, g.data("data.input", "batch embed"))
    x = g.linear("dense.down", g.unary("dense.act", g.linear("dense.up", x, "batch wide", "embed wide"), "gelu"),
                 "batch embed", "wide embed")
    x = g.repeat("layer", many, x)
    x = g.linear("layer.down", g.unary("layer.act", g.linear("layer.up", x, "batch ffn", "embed ffn"), "gelu"),
                 "batch embed", "ffn embed")
    logits = g.linear("head.logits", x, "batch vocab", "embed vocab")
    g.sum("loss.sum", g.cross_entropy("head.loss", logits, g.ids("data.targets", "batch"), over="vocab"))
    return Model.of_graph("two kinds", g.build())


@pytest.mark.parametrize(("few", "many", "pp"), [(1, 5, 3), (3, 5, 2), (2, 4, 3), (2, 2, 4)])
def test_layers_of_two_kinds_are_numbered_through(few: int, many: int, pp: int) -> None:
    step, alone = step_of("zero1*pp", two_kinds(few, many)), step_of("zero1", two_kinds(few, many))
    kinds = ["dense"] * few + ["layer"] * many
    places = [Pipeline("pp").stage(k, few + many, pp) for k in range(few + many)]
    for i in range(pp):
        mine = on_stage(step, i, {"pp": pp})
        assert {u: int(n.evaluate({})) for u, n in mine.stage.instances.items()} == Counter(
            kind for kind, at in zip(kinds, places, strict=True) if at == i)
        sends = [kinds[k] for k, (at, then) in enumerate(pairwise(places)) if at == i and then != i]
        assert [e.path for e in communication(mine).events if e.path.startswith("forward")] == [
            f"forward.{kind}.down.send[pp]" for kind in sends]
    for figure in (lambda s: memory(s).states, flop):
        assert sum(of_stages(step, pp, figure)) == value(figure(alone))


MAPS = [("zero3*pp", 1, (1, 4, 2)), ("zero1*pp_gpipe", 1, (3, 1, 2, 1)), ("dp*pp_interleaved", 2, (1, 3, 2, 1, 2, 2))]


@pytest.mark.parametrize(("strategy", "chunks", "stages"), MAPS)
@pytest.mark.parametrize("few", [0, 3])
def test_one_symbolic_stage_stands_for_every_stage_of_every_map(strategy: str, chunks: int, stages: tuple[int, ...],
                                                                few: int) -> None:
    """The formulas of a stage whose instances and number are symbols have each numbered stage's values."""
    ranks = len(stages) // chunks
    model = two_kinds(few, sum(stages) - few) if few else replace(gpt(LLAMA), sizes=FrozenMap({"L": sum(stages)}))
    free, step = step_of(strategy, model, chunks=chunks), step_of(strategy, model, chunks=chunks, stages=stages)
    for number in range(ranks):
        mine = on_stage(step, number, {"pp": ranks, "m": 2 * ranks})
        at = mine.stage.symbols
        where = "first" if number == 0 else "last" if number == ranks - 1 else "i"
        alike = on_stage(free, where, {name: n for name, n in at.items() if name.startswith("n_")})
        assert set(alike.stage.instances) == set(mine.stage.instances)
        for figure in (*(partial(_memory, name) for name, _ in memory(mine).items()),
                       lambda s: communication(s).total, flop):
            sizes = {**at, "pp": ranks, "m": 2 * ranks, "v": chunks}
            assert value(figure(alike), **sizes) == value(figure(mine), **sizes), (number, at)


def _memory(name: str, step: Step) -> Formula:
    return dict(memory(step).items())[name]


def test_deepseek_v3_with_symbolic_stages_and_405b_on_16() -> None:
    """One program with symbols has the figures of each stage; more instances than the model has are refused."""
    step = derive(parse_strategy("zero1*pp"), resolve_model("deepseek-v3"))
    first = on_stage(step, "first")
    assert list(map(str, first.stage.instances.values())) == ["n_dense", "n_layer"] and first.stage.any_map
    numbered = on_stage(step, 0, {"pp": 16})
    at = numbered.stage.symbols
    for figure in (lambda s: memory(s).states, lambda s: memory(s).activations, flop):
        assert value(figure(on_stage(step, 0, {"n_layer": 0})), **at, pp=16) == value(figure(numbered), pp=16)
    told = run_placealg("cost", "zero1*pp", "--model", "deepseek-v3", "--rank", "stage=i", "--set", "n_layer=59")
    assert told.code == 2 and "n_layer = 59 is more than the 58 instances of layer" in told.err
    large = derive(parse_strategy("zero1*pp"), resolve_model("llama-3.1-405b"))
    between = on_stage(large, "i")
    for number in (1, 7, 14):
        mine = on_stage(large, number, {"pp": 16})
        assert value(memory(between).peak, **mine.stage.symbols, pp=16) == value(memory(mine).peak, pp=16)


def test_llama_3_1_405b_on_16384_devices_by_hand() -> None:
    """126 layers over 16 stages: 7 on the ends, 8 between; of the fullest stage each figure is counted by hand."""
    words = ("cost", "zero1*tp_sp*pp*cp_ring", "--model", "llama-3.1-405b", "--set", "tp=8", "pp=16", "cp=16", "dp=8",
             "devices=16384", "b=1", "s=131072", "m=16", "--format", "json")
    document = json.loads(run_placealg(*words).out)
    assert document["schedule"]["stage"] == "1"
    layers, flying, h, f, s, tp, cp, dp, m, share = 8, 15, 16384, 53248, 131072, 8, 16, 8, 16, Fraction(8, 128)
    matrices, norms = layers * (2 * h * h + 2 * h * h * share + 3 * h * f) / tp, layers * 2 * h
    held = document["memory"]
    assert held["parameters"]["value"] == 2 * (matrices + norms)
    assert held["optimizer"]["value"] == 12 * (matrices + norms) / (dp * cp)
    tokens = Fraction(s, cp * tp)
    kept = held["activations"]["value"] / (layers * flying * tokens)
    assert kept == 2 * (6 * h + 2 * h * share + 4 * f) + 4 * 128, "six hidden states, keys and values, four of the MLP"
    block = Fraction(2 * s * h, cp * tp)
    sent = document["communication"]["by_axes"]
    assert sent["pp"]["value"] == 2 * m * block
    summed = 2 * 2 * norms * Fraction(tp - 1, tp * dp * cp)  # norms, of which each rank of tp has a part of the sum
    assert sent["tp"]["value"] == 10 * layers * m * block * (tp - 1) + summed
    keys = 2 * block * share * (cp - 1)
    assert sent["cp"]["value"] == 3 * layers * m * keys
    assert sent["dp,cp"]["value"] == (2 + 2) * (matrices + norms) * Fraction(dp * cp - 1, dp * cp)
    assert all(leaf["expr"] and leaf["value"] is not None for leaf in (*held.values(), *sent.values()))


def test_figures_too_long_to_read_are_written_by_the_names_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    words = ("cost", "zero3*tp_sp*pp*cp_ring*ep", "--model", "mixtral-8x7b")
    sizes = ("--set", "dp=2", "tp=2", "pp=4", "cp=2", "ep=2", "b=1", "s=4096", "m=8")
    free, known = (" ".join(run_placealg(*words, *more).out.split()) for more in ((), sizes))
    for text in (free, known):
        assert "signs: --format json" not in text
        assert "total states + activations + transient" in text
        assert "total over dp + over tp + over cp" in text
    assert "peak states + activations + the largest moment: --format json has it" in free
    assert " here, at the largest moment" in known
