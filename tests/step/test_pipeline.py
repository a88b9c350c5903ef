"""Pipelines: schedules as generated orders, the derived program, its proof, and every event deleted once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import networkx as nx
import pytest
from agreement import compare
from nets import two_branches
from random_programs import two_units

from placealg.arith import parse
from placealg.errors import InputError
from placealg.models.config import from_config, resolve_model
from placealg.models.transformer import Style, gpt, moe
from placealg.prover.examine import examine
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.folded import FOLDED
from placealg.step.pipeline import (
    FIRST,
    LAST,
    Item,
    Pipeline,
    both_in_flight,
    in_flight,
    instances_in_flight,
    phases,
    work,
)
from placealg.step.program import Step
from placealg.step.waits import needs, schedule_graph
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file

ORDERS = (Pipeline("pp", "gpipe"), Pipeline("pp"), Pipeline("pp", "interleaved", 2), Pipeline("pp", "interleaved", 3))


def grid(pipeline: Pipeline) -> list[tuple[int, int]]:
    """(ranks, microbatches) that the order accepts."""
    return [(p, m) for p in range(1, 6) for m in range(1, 11) if pipeline.order != "interleaved" or m % p == 0]


@pytest.mark.parametrize("pipeline", ORDERS, ids=lambda p: f"{p.order}{p.chunks}")
def test_a_schedule_does_everything_once_and_can_be_run(pipeline: Pipeline) -> None:
    for ranks, microbatches in grid(pipeline):
        drawn = schedule_graph(pipeline, ranks, microbatches)
        wanted = {(s, Item(phase, k, c)) for s in range(ranks) for phase in ("forward", "backward")
                  for k in range(microbatches) for c in range(pipeline.chunks or 1)}
        assert set(drawn.nodes) == wanted
        assert nx.is_directed_acyclic_graph(drawn)


@pytest.mark.parametrize("pipeline", ORDERS, ids=lambda p: f"{p.order}{p.chunks}")
def test_the_longest_path_is_the_bubble(pipeline: Pipeline) -> None:
    """With equal times for every item the schedule idles 2 (p - 1) items: (p - 1)/(v m) of the ideal time."""
    for ranks, microbatches in grid(pipeline):
        length = len(nx.dag_longest_path(schedule_graph(pipeline, ranks, microbatches)))
        assert length - 2 * microbatches * (pipeline.chunks or 1) == 2 * (ranks - 1)


def test_a_wrong_order_deadlocks() -> None:
    """Stages that run their backwards before the forwards that these wait for."""
    drawn = schedule_graph(Pipeline("pp"), 3, 4)
    first, second = (0, Item("backward", 0)), (0, Item("forward", 0))
    drawn.add_edge(first, second)
    assert not nx.is_directed_acyclic_graph(drawn)


def test_in_flight() -> None:
    """1F1B holds min(m, p - i) microbatches on stage i, GPipe all of them."""
    for ranks, microbatches in grid(Pipeline("pp")):
        for stage in range(ranks):
            for order, most in (("1f1b", min(microbatches, ranks - stage)), ("gpipe", microbatches)):
                held, seen = 0, 0
                for item in work(Pipeline("pp", order), stage, ranks, microbatches):
                    held += 1 if item.phase == "forward" else -1
                    seen = max(seen, held)
                assert seen == most


def test_what_an_item_waits_for() -> None:
    two = Pipeline("pp", "interleaved", 2)
    assert list(needs(Item("forward", 1), 0, 2, Pipeline("pp"))) == []
    assert list(needs(Item("forward", 1, 1), 0, 2, two)) == [(1, Item("forward", 1, 0))]
    assert list(needs(Item("backward", 1, 0), 1, 2, two)) == [(0, Item("backward", 1, 1))]
    assert list(needs(Item("backward", 1, 1), 1, 2, two)) == [(1, Item("forward", 1, 1))]


def test_what_an_item_of_a_v_waits_for() -> None:
    """Down through the first chunks, at the last rank on to its own second one, and back up to the first rank."""
    for order in FOLDED:
        v = Pipeline("pp", order, 2)
        assert list(needs(Item("forward", 3), 0, 3, v)) == []
        assert list(needs(Item("forward", 3), 1, 3, v)) == [(0, Item("forward", 3))]
        assert list(needs(Item("forward", 3, 1), 2, 3, v)) == [(2, Item("forward", 3))]
        assert list(needs(Item("forward", 3, 1), 0, 3, v)) == [(1, Item("forward", 3, 1))]
        assert list(needs(Item("backward", 3, 1), 0, 3, v)) == [(0, Item("forward", 3, 1))]
        assert list(needs(Item("backward", 3, 1), 1, 3, v)) == [(0, Item("backward", 3, 1))]
        assert list(needs(Item("backward", 3), 2, 3, v)) == [(2, Item("backward", 3, 1))]
        assert list(needs(Item("backward", 3), 1, 3, v)) == [(2, Item("backward", 3))]
        assert list(needs(Item("weights", 3, 1), 1, 3, v)) == [(1, Item("backward", 3, 1))]


@pytest.mark.parametrize("order", FOLDED)
def test_an_order_of_a_v_does_everything_once_and_can_run(order: str) -> None:
    pipeline = Pipeline("pp", order, 2)
    for ranks, m in product(range(1, 6), range(1, 13)):
        for stage in range(ranks):
            assert sorted(work(pipeline, stage, ranks, m)) == sorted(
                Item(phase, k, chunk) for phase in phases(pipeline) for k in range(m) for chunk in (0, 1))
        assert nx.is_directed_acyclic_graph(schedule_graph(pipeline, ranks, m))


@pytest.mark.parametrize("order", FOLDED)
def test_what_a_stage_of_a_v_holds(order: str) -> None:
    """Where the order is filled that is 2p chunks, of DualPipe 2p + 1: those of 1F1B, and one half more."""
    pipeline = Pipeline("pp", order, 2)
    for ranks, m in product(range(1, 6), range(1, 13)):
        for i in range(ranks):
            most = Counter[str]()
            now = Counter[tuple[str, int]]()
            for item in work(pipeline, i, ranks, m):
                now[item.phase, item.chunk] += 1
                mine = [now["forward", c] - now["backward", c] for c in (0, 1)]
                late = sum(now["forward", c] - now["weights", c] for c in (0, 1))
                for name, held in (("inputs", sum(mine)), ("weights", late), ("first", mine[0]), ("last", mine[1])):
                    most[name] = max(most[name], held)
            at = {"p": ranks, "i": i, "m": m, "v": 2}
            assert most["inputs"] == parse(in_flight(pipeline)).evaluate(at), (ranks, m, i)
            assert most["weights"] == parse(both_in_flight(pipeline)).evaluate(at), (ranks, m, i)
            if not i:
                assert (most["first"], most["last"]) == tuple(
                    parse(in_flight(pipeline, part)).evaluate(at) for part in (FIRST, LAST))
            if m >= 2 * ranks:
                assert most["inputs"] == 2 * ranks + (order == "dualpipe_v")


def test_stages_share_the_layers() -> None:
    for ranks in range(1, 9):
        for layers in range(ranks, 40):
            found = Pipeline("pp").layers(layers, ranks)
            assert sum(found) == layers and max(found) - min(found) <= 1
            assert [Pipeline("pp").stage(k, layers, ranks) for k in range(layers)] == [
                s for s, n in enumerate(found) for _ in range(n)]
    assert Pipeline("pp", stages=(1, 3)).stage(1, 4, 2) == 1
    with pytest.raises(InputError, match=r"stages lists 3 layers; the model has 4$"):
        Pipeline("pp", stages=(1, 2)).layers(4, 2)
    with pytest.raises(InputError, match=r"stages has 2 entries; pp = 3 needs 3$"):
        Pipeline("pp", stages=(1, 3)).layers(4, 3)
    with pytest.raises(InputError, match="5 stages of 4 layers; at most 4 fit"):
        Pipeline("pp").layers(4, 5)


STAGES = 'name = "mine"\n[mesh]\npp = {}\n[dims]\npp = ["layer"]\n[schedule]\nstages = {}\n{}'
CHUNKS = 'pipeline = "interleaved"\nchunks = {}'


@pytest.mark.parametrize(("ranks", "stages", "said", "why"), [
    ("4", [16, 16], "", "stages has 2 entries; pp = 4 needs 4$"),
    ("2", [8, 8, 16], CHUNKS.format(2), "stages has 3 entries; pp = 2 needs 4, chunks being 2$"),
    ('"symbolic"', [8, 8, 16], CHUNKS.format(2), "stages has 3 entries; each stage has 2, chunks being 2$"),
    ("2", [8, 8, 16], CHUNKS.format('"v"'), "stages has 3 entries; pp = 2 needs a multiple of 2$"),
    ('"symbolic"', [3, 3, 3], "", "stages lists 9 layers; the model has 32$"),
    ('"symbolic"', [3, 3, 3], CHUNKS.format('"v"'), "stages lists 9 layers; the model has 32$")])
def test_stages_that_do_not_add_up_are_refused_before_anything_is_proved(
        ranks: str, stages: list[int], said: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        derive(parse_strategy_file(STAGES.format(ranks, stages, said)).strategy, resolve_model("llama-3-8b"))


def test_a_list_of_chunks_says_how_many_each_rank_has() -> None:
    said = parse_strategy_file(STAGES.format(2, [8, 8, 8, 8], CHUNKS.format('"v"'))).strategy
    pipeline = derive(said, resolve_model("llama-3-8b")).reference.pipeline
    assert pipeline.chunks == 2


def test_of_a_symbolic_number_of_chunks_there_is_one_at_least() -> None:
    """As many ranks as layers are accepted, for one chunk each fits; what runs in which order, too, is that of one."""
    symbolic = Pipeline("pp", "interleaved", None)
    assert symbolic.layers(4, 4) == (1, 1, 1, 1)
    with pytest.raises(InputError, match=r"^pp = 5 makes 5 stages of 4 layers; at most 4 fit$"):
        symbolic.layers(4, 5)
    one, drawn = schedule_graph(Pipeline("pp", "interleaved", 1), 2, 4), schedule_graph(symbolic, 2, 4)
    assert set(drawn.nodes) == set(one.nodes) and set(drawn.edges) == set(one.edges)


def test_more_stages_than_layers_are_refused_with_their_chunks() -> None:
    with pytest.raises(InputError, match=r"^pp = 2 with 2 chunks makes 4 stages of 3 layers; at most 3 fit$"):
        Pipeline("pp", "interleaved", 2).layers(3, 2)


def test_the_interleaved_order_takes_microbatches_in_groups() -> None:
    with pytest.raises(InputError, match=r"^the interleaved order takes microbatches in groups of pp = 2, which does "
                                         "not divide m = 3$"):
        work(Pipeline("pp", "interleaved", 2), 0, 2, 3)
    assert len(work(Pipeline("pp", "interleaved", 2), 0, 1, 3)) == 12 and len(work(Pipeline("pp"), 0, 2, 3)) == 6


def test_an_item_says_what_it_is_and_what_it_waits_for() -> None:
    assert [repr(Item("forward", 3)), repr(Item("backward", 2, 1))] == ["F3", "B2.1"]
    three = Pipeline("pp", "interleaved", 3)
    waits = {(str(item), stage): [(at, str(n)) for at, n in needs(item, stage, 2, three)] for item in (
        Item("forward", 4), Item("forward", 4, 2), Item("backward", 4), Item("backward", 4, 2)) for stage in (0, 1)}
    assert waits == {
        ("F4", 0): [], ("F4", 1): [(0, "F4")], ("F4.2", 0): [(1, "F4.1")], ("F4.2", 1): [(0, "F4.2")],
        ("B4", 0): [(1, "B4")], ("B4", 1): [(0, "B4.1")], ("B4.2", 0): [(1, "B4.2")], ("B4.2", 1): [(1, "F4.2")]}


def test_what_the_ends_hold_of_several_chunks() -> None:
    """Of one chunk they hold what their stage holds."""
    for chunks in (2, None):
        several = Pipeline("pp", "interleaved", chunks)
        assert [in_flight(several, part) for part in (FIRST, LAST)] == ["Min(m, 2*p)", "1"]
        assert in_flight(several, "layer") == in_flight(several) == "Min(m*v, 2*(p - 1 - i) + (v - 1)*p + 1)"
    assert in_flight(Pipeline("pp"), FIRST) == in_flight(Pipeline("pp"), LAST) == in_flight(Pipeline("pp"))


@pytest.mark.parametrize("pipeline", ORDERS, ids=lambda p: f"{p.order}{p.chunks}")
def test_instances_in_flight_are_forwards_without_their_backward(pipeline: Pipeline) -> None:
    held = tuple(range(2, 2 + (pipeline.chunks or 1)))
    for ranks, microbatches in grid(pipeline):
        for stage in range(ranks):
            ran = work(pipeline, stage, ranks, microbatches)
            open_at = [sum(held[i.chunk] for i in ran[:n] if i.phase == "forward"
                           and Item("backward", i.microbatch, i.chunk) not in ran[:n]) for n in range(len(ran) + 1)]
            assert instances_in_flight(pipeline, stage, ranks, microbatches, held) == max(open_at)


def test_a_stage_is_handed_what_leaves_the_layer_before_it() -> None:
    with pytest.raises(InputError, match=r"^pp on two branches: \[dims\] pp names dim 'layer', but unit 'layer' of two "
                                         r"branches begins with 'embedding.tokens'; a stage is handed only what leaves "
                                         r"the layer before it$"):
        derive(parse_strategy("pp"), two_branches())


def test_a_v_has_no_parameter_of_its_first_and_its_last_chunk() -> None:
    with pytest.raises(InputError, match=r"on gpt: \[schedule\] pipeline = .zb_v. begins and ends the model on one "
                                         r"stage, in two chunks: parameter 'embedding.weight' of gpt is used in both"):
        derive(parse_strategy("pp_zb_v"), gpt())
    assert derive(parse_strategy("pp_zb_v"), gpt(Style(tied=False))).events


PROVED_ON_GPT = ("pp_gpipe", "pp_1f1b", "pp_interleaved", "dp*pp", "zero1*pp", "zero2*pp", "zero3*pp",
                 "fsdp_no_reshard*pp", "hsdp*pp", "tp*pp", "zero3*tp_sp*pp", "cp*pp", "cp_ulysses*pp_gpipe",
                 "cp_ring*pp_interleaved",
                 "zero1*offload_optimizer*pp", "pp*recompute_full", "tp_sp*pp*recompute_selective",
                 "zero3*tp_sp*pp*cp_ring")


@pytest.mark.slow
@pytest.mark.parametrize("text", PROVED_ON_GPT)
def test_proved(text: str) -> None:
    found = examine(derive(parse_strategy(text), gpt()))
    assert {(v.verdict, v.cls) for v in found.verdicts} == {(PROVED, PARAMETRIC)}


def test_the_program_does_not_grow() -> None:
    texts = ("zero3*tp_sp*pp", "zero3[8]*tp_sp[8]*pp[16]", "zero3*tp_sp*pp_gpipe")
    assert len({len(derive(parse_strategy(text), from_config("llama-3.1-405b")).events) for text in texts}) == 1
    assert len({len(derive(parse_strategy("pp"), from_config(m)).events) for m in ("llama-3-70b", "llama-3-8b")}) == 1


def test_messages_are_the_only_events_of_their_own() -> None:
    plain = {e.path for e in derive(parse_strategy("tp_sp"), gpt()).events}
    piped = derive(parse_strategy("tp_sp*pp"), gpt())
    more = [e.path for e in piped.events if e.on_tensor and e.path not in plain]
    assert more == ["forward.layer.in.recv[pp]", "forward.layer.out.send[pp]", "backward.layer.out.grad.recv[pp]",
                    "backward.layer.in.grad.send[pp]"]


def without(step: Step, path: str) -> Step:
    """The step less one event."""
    return Step(step.reference, tuple(e for e in step.events if e.path != path))


TIED = derive(parse_strategy("pp"), gpt(Style(flash=True)))


@pytest.mark.some(3)
@pytest.mark.parametrize("path", [e.path for e in TIED.events if e.verb in ("send", "recv") or (
    "embedding.weight" in e.path and "pp" in e.axes)])
def test_the_messages_and_what_both_ends_share(path: str) -> None:
    assert compare(without(TIED, path)).report.verdict == REFUTED


@pytest.mark.parametrize("path", ["forward.layer.out.send[pp]", "backward.layer.in.grad.send[pp]"])
def test_a_message_that_nobody_receives(path: str) -> None:
    """Sent twice and received once, a real channel would hang, or take the second message for the next one."""
    def twice(*paths: str) -> Step:
        return Step(TIED.reference, tuple(replace(e, copy=copy) for e in TIED.events
                                          for copy in range(1, 2 + (e.path in paths))))

    report = compare(twice(path)).report
    (failed,) = [o for o in report.obligations if o.verdict == REFUTED]
    assert (failed.id, failed.event) == ("schedule", f"{path}#2")
    assert compare(twice(path, MATE[path])).report.verdict == PROVED


MATE = {"forward.layer.out.send[pp]": "forward.layer.in.recv[pp]",
        "backward.layer.in.grad.send[pp]": "backward.layer.out.grad.recv[pp]"}


@pytest.mark.slow
@pytest.mark.parametrize("path", [e.path for e in TIED.events if "embedding.weight" in e.path or e.value == "norm"])
def test_the_tied_embedding(path: str) -> None:
    assert compare(without(TIED, path)).complaint == ""


EDITS = {
    "the tied gradient is averaged": ("reduce.embedding.weight.grad_sum.reduce[pp]", {"op": "mean"}),
    "the tied norm counts at both ends": ("update.embedding.weight.norm", {"where": ()}),
    "the tied embedding starts unequal": ("init.embedding.weight.broadcast[pp]", None),
    "the norm is of the own stage only": ("update.norm.all_reduce[pp]", None),
    "the first microbatch only is sent": ("forward.layer.out.send[pp]", {"at": ("first",)}),
    "the message comes before what it is": ("forward.layer.in.recv[pp]", {"at": ("last",)}),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_wrong_pipeline_is_refuted(what: str) -> None:
    path, change = EDITS[what]
    step = without(TIED, path) if change is None else Step(TIED.reference, tuple(
        replace(e, **change) if e.path == path else e for e in TIED.events))
    assert compare(step).report.verdict == REFUTED


@pytest.mark.slow
def test_moe_in_five_axes_on_symbols() -> None:
    found = examine(derive(parse_strategy("zero3*tp_sp*ep*cp*pp"), moe()))
    assert {v.verdict for v in found.verdicts} == {PROVED}


@pytest.mark.parametrize("strategy", ["pp", "pp_gpipe", "pp_interleaved", "dp*pp"])
def test_units_without_ops_have_no_stages(strategy: str) -> None:
    model = two_units(tied=False)
    with pytest.raises(InputError, match=r"\[dims\] pp names 'layer', but two units says nothing about the network"):
        derive(parse_strategy(strategy), model)
