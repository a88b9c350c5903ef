"""Races of programs with streams: what is proved for all sizes, beside a machine that runs any order at small ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

import placealg as pa
from placealg.check.order import with_order
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.prover.races import conflicts
from placealg.prover.verdict import ASKED_FOR, PROVED, REFUTED, not_covered
from placealg.simulator.streams import Unrolled
from placealg.step.instances import ordered
from placealg.step.order import Wait
from placealg.step.overlap import OUTSIDE
from placealg.step.program import Step
from placealg.step.text import read_program, write_program
from placealg.strategy.buffers import Buffer
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import overlay

FW, BW = "forward.layer.weight.", "backward.layer.weight."
G, BG, R = f"{FW}gather[dp]", f"{BW}gather[dp]", f"{BW}grad.reduce[dp]"

RIGHT = (("zero3", "fsdp2"), ("hsdp", "fsdp2"), ("zero1", "fsdp2"), ("zero3", "deepspeed"), ("zero2", "deepspeed"),
         ("zero1", "megatron"), ("zero2", "megatron"), ("zero3", "megatron"))


def step(strategy: str, waits: str, **more: Any) -> Step:
    return pa.derive(overlay(pa.parse_strategy(strategy), {"overlap": {"waits": waits, **more}}), pa.abstract())


def slotted(found: Step, **buffers: Buffer) -> Step:
    said = {**found.reference.buffers, **buffers}
    return replace(found, reference=replace(found.reference, buffers=FrozenMap(said)))


def order_of(found: Step) -> Mapping[str, str]:
    return {v.id: str(v.verdict) for v in pa.prove(found).obligations if v.id in ("race", "alias")}


def wrong_somewhere(found: Step, runs: int = 4, largest: int = 3) -> bool:
    """Whether the machine finds a race, or a read that is wrong, at small sizes: it asks no solver."""
    program = ordered(found)
    for size, m, slots in itertools.product((1, largest), (1, 2), (1, 2, 3)):
        counts = (str(loop.count) for node in program.nodes for loop in node.loops)
        sizes = {**dict.fromkeys(counts, size), "m": m}
        for chance in (None, random.Random(size)):
            unrolled = Unrolled(program, sizes, slots, chance=chance)
            if any(unrolled.races()) or unrolled.run() or any(unrolled.run(random.Random(k)) for k in range(runs)):
                return True
    return False


def without(found: Step) -> Iterator[tuple[str, Step]]:
    """The program with each of its waits left out alone."""
    for n, event in enumerate(found.order):
        rest = [*found.order[:n], *found.order[n + 1:]]
        if event.verb == "join" and not any(e.behind == event.path for e in rest):
            yield event.path, found.listed(rest)
        for k in range(len(event.waits) if event.verb != "join" else 0):
            kept = replace(event, waits=event.waits[:k] + event.waits[k + 1:])
            yield f"{event.path} {event.waits[k]}", found.listed([*found.order[:n], kept, *found.order[n + 1:]])



@pytest.mark.parametrize(("more", "verdict"), [({"prefetch": 2}, PROVED), ({"prefetch": 2, "buffers": 1}, REFUTED),
                                               ({"prefetch": 2, "buffers": 3}, PROVED)])
def test_gathers_ahead_fill_as_many_buffers(more: dict[str, Any], verdict: str) -> None:
    found = step("zero3", "fsdp2", **more)
    assert order_of(found)["race"] == verdict and wrong_somewhere(found) == (verdict == REFUTED)


@pytest.mark.parametrize(("strategy", "waits"), RIGHT)
def test_what_engines_wait_for_is_enough(strategy: str, waits: str) -> None:
    found = step(strategy, waits)
    assert order_of(found) == {"race": PROVED, "alias": PROVED}
    assert not wrong_somewhere(found)
    assert found.events == pa.derive(pa.parse_strategy(strategy), pa.abstract()).events  # the values are as they were


IMPLIED = {("hsdp", "fsdp2"): ["reduce.reduce.join"]}
"""A wait that others imply: the sums that HSDP reduces at the end were made on the stream that reduces them."""


@pytest.mark.parametrize(("strategy", "waits"), RIGHT[:4] + RIGHT[5:6])
def test_each_wait_is_needed(strategy: str, waits: str) -> None:
    left = []
    for name, found in without(step(strategy, waits)):
        refuted = pa.prove(found).verdict == REFUTED
        assert refuted == wrong_somewhere(found), name
        left += [] if refuted else [name]
    assert left == IMPLIED.get((strategy, waits), [])


def test_no_table_changes_nothing() -> None:
    plain = pa.derive(pa.parse_strategy("zero3"), pa.abstract())
    assert not plain.order and plain == step("zero3", "none")
    assert {v.id for v in pa.prove(plain).obligations}.isdisjoint({"race", "alias"} & {*ASKED_FOR})


BROKEN: Mapping[str, tuple[str, str, tuple[Mapping[str, Any], ...], Mapping[str, Buffer], str]] = {
    "the gather waits for the buffer of one turn too early": (
        "zero3", "fsdp2", ({"set": G, "wait": [{"on": f"{FW}copy", "turn": -2}]},), {"flat": Buffer(size=1)}, "race"),
    "accumulate on the wrong stream": (
        "zero3", "fsdp2", ({"set": f"{BW}grad_sum.accumulate", "stream": "compute"},), {}, "race"),
    "the copy out of the buffer on the gather stream": (
        "zero3", "fsdp2", ({"set": f"{FW}copy", "stream": "gather"},), {}, "race"),
    "two gathers ahead with one buffer": ("zero3", "fsdp2", ({"set": BG, "ahead": 2},), {"flat": Buffer()}, "race"),
    "a freed copy is used again without record_stream": (
        "zero3", "deepspeed", (), {"gathered": Buffer("alloc", home="allgather")}, "race"),
    "a freed gradient is used again without record_stream": (
        "zero3", "deepspeed", (), {"grad": Buffer("alloc")}, "race"),
    "the first gather does not wait for the update (no persistent parameter)": (
        "zero3", "deepspeed", ({"drop": "publish.allgather.join"},), {}, "race"),
    "the gather is received in the gradient's buffer (Megatron-LM PR 4609)": (
        "zero1", "megatron", ({"set": "publish.layer.weight.publish[dp]", "into": "received"}, {
            "insert": {"path": "publish.layer.weight.copy", "out_of": "received", "stream": "nccl"},
            "after": "publish.layer.weight.publish[dp]"},
            {"move": "prepare.layer.weight.grad_sum.zero", "after": "reduce.compute.join"}),
        {"received": Buffer("with", alias="grad_sum")}, "alias"),
    "what was gathered is never copied out of the buffer": (
        "zero3", "fsdp2", ({"drop": f"{FW}copy"}, {"set": G, "wait": []}), {}, "alias"),
    "a gradient is never copied into the buffer that is reduced": (
        "zero3", "fsdp2", ({"drop": f"{BW}grad.copy"}, {"set": R, "wait": []}), {}, "alias"),
    "what is accumulated is the gradient before the reduction": (
        "zero3", "fsdp2", ({"replace": f"{BW}grad_sum.accumulate", "stream": "reduce"},), {}, "alias"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_programs_are_refuted_and_replay(name: str) -> None:
    strategy, waits, edits, buffers, wrong = BROKEN[name]
    found = slotted(step(strategy, waits), **buffers)
    found = pa.edit(found, *edits) if edits else found
    report = pa.prove(found)
    assert wrong in report.refuted(), report.of(wrong)
    assert wrong_somewhere(found)
    example = report.counterexample
    assert example is not None and example.got != example.want and dict(example.sizes)["m"] <= 2


def test_a_counterexample_names_two_events_their_turns_and_the_slot() -> None:
    report = pa.prove(pa.edit(step("zero3", "fsdp2"), {"set": f"{BW}grad.copy", "wait": []}))
    example = report.counterexample
    assert example is not None
    assert f"{R} (step 0, microbatch 0, layer 1) on stream reduce reads reduce_input of layer.weight; " \
        f"{BW}grad.copy (step 0, microbatch 0, layer 0) on stream compute writes the same slot" in example.explanation
    assert "finds what backward.layer.compute" in example.explanation


def test_a_program_with_streams_is_written_and_reads_back() -> None:
    for strategy, waits in RIGHT:
        found = step(strategy, waits)
        file = parse_strategy_file(write_program(found, overlay(pa.parse_strategy(strategy), {
            "overlap": {"waits": waits}})), "p.toml")
        assert read_program(file.events, found.reference, file.positions, file.loops) == tuple(
            replace(e, line=0) for e in found.order)


@pytest.mark.parametrize(("edit", "says"), [
    ({"set": G, "wait": ["forward.layer.weight.gether[dp]"]}, "which is no event of a step"),
    ({"set": G, "wait": [{"on": BG, "turn": -1, "step": 0, "stepp": 1}]}, "unknown key 'stepp'"),
    ({"set": G, "wait": [{"on": "publish.layer.weight.publish", "turn": -1}]}, "no loop has both"),
    ({"set": G, "wait": [G]}, "waits for itself"),
    ({"set": G, "behind": "update.step.update"}, "is in another loop"),
    ({"set": G, "ahead": -1}, "expected a whole number of turns"),
    ({"set": "update.step.update", "ahead": 1}, "is in no loop"),
    ({"insert": {"path": "forward.gather.join"}, "before": G}, "`of` or `wait`"),
    ({"insert": {"path": "forward.gather.join", "of": "gather"}, "before": G}, "waits for itself"),
    ({"insert": {"path": f"{FW}copy#2"}, "after": G}, "one of `into` and `out_of`"),
])
def test_what_has_no_meaning_is_told(edit: Mapping[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says.replace("(", r"\(")):
        ordered(pa.edit(step("zero3", "fsdp2"), edit))


@pytest.mark.parametrize(("buffers", "says"), [
    ({"flatt": Buffer()}, "no event reads or writes"),
    ({"flat": Buffer("with", alias="reduced")}, "has an entry of its own"),
    ({"flat": Buffer("with", alias="weigth")}, "is no value or buffer"),
    ({"reduced": Buffer("alloc", home="reduec")}, "no event runs on stream 'reduec'"),
])
def test_a_buffer_that_nothing_uses_is_told(buffers: Mapping[str, Buffer], says: str) -> None:
    with pytest.raises(InputError, match=says):
        ordered(slotted(step("zero3", "fsdp2"), **buffers))


@pytest.mark.parametrize(("edit", "says"), [
    ({"insert": {"path": "forward.gathr.join", "of": "compute"}, "before": G}, "no event runs on stream 'gathr'"),
    ({"set": "update.norm.all_reduce[dp]", "wait": ["update.norm.all_reduce[dp]"]}, "waits for itself"),
])
def test_a_stream_or_a_buffer_that_has_no_use_is_told(edit: Mapping[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        ordered(pa.edit(step("zero3", "fsdp2"), edit))


def test_buffers_without_streams_are_told() -> None:
    plain = overlay(pa.parse_strategy("zero3"), {"buffers": {"grad": {"kind": "ring", "size": 2}}})
    with pytest.raises(InputError, match="all run on one"):
        pa.prove(pa.derive(plain, pa.abstract()))


def drawn(found: Step, draw: random.Random) -> Step:
    """The program with its waits, streams, buffers and order of issue changed by chance."""
    for _ in range(draw.randint(1, 3)):
        n = draw.randrange(len(found.order))
        event, rest = found.order[n], [*found.order[:n], *found.order[n + 1:]]
        what = draw.choice(("wait", "turn", "stream", "ahead", "drop", "size", "alloc"))
        paths = [e.path for e in found.order if e.phase in (event.phase, "backward", "publish")]
        if what == "wait":
            event = replace(event, waits=() if event.waits else (
                Wait(draw.choice(paths), draw.choice((0, 0, -1, "-K"))),)) if event.verb != "join" else event
        elif what == "turn" and event.waits:
            event = replace(event, waits=tuple(replace(w, turn=draw.choice((0, -1, -2, "-K"))) for w in event.waits))
        elif what == "stream" and event.verb != "join":
            event = replace(event, stream=draw.choice(("", "gather", "reduce", "nccl", "allgather", "host")))
        elif what == "ahead" and event.ahead:
            event = replace(event, ahead=draw.choice((0, 1, 2)), behind=draw.choice((event.behind, "")))
        elif what == "drop" and event.verb == "join" and not any(e.behind == event.path for e in rest):
            found = found.listed(rest)
            continue
        elif what in ("size", "alloc") and found.reference.buffers:
            name = draw.choice(list(found.reference.buffers))
            streams = ("compute", "reduce", "gather", "allgather", "nccl")
            new = Buffer(size=draw.choice((1, 2, "K"))) if what == "size" else Buffer(
                "alloc", recorded=tuple(draw.sample(streams, draw.randint(0, 2))))
            found = slotted(found, **{name: new})
            continue
        found = found.listed([*found.order[:n], event, *found.order[n + 1:]])
    return found


def agree(seed: int) -> str:
    """How a changed program ended, after both sides were asked; "" where it has no meaning."""
    draw = random.Random(seed)
    found = drawn(step(*draw.choice(RIGHT)), draw)
    try:
        program = ordered(found)
    except InputError:
        return ""
    verdicts = {str(v.verdict) for v in with_order(found, VALUES).obligations if v.id in ("race", "alias")}
    wrong = wrong_somewhere(found, runs=2)
    said = "REFUTED" if "REFUTED" in verdicts else "UNDECIDED" if "UNDECIDED" in verdicts else "PROVED"
    assert said != "PROVED" or not wrong, (seed, [e.path for e in program.reference.groups])
    assert said != "REFUTED" or wrong, seed
    return said


VALUES = pa.prove(pa.derive(pa.parse_strategy("zero3"), pa.abstract()))
"""A report on values alone, to which that on order is added."""


@pytest.mark.parametrize("seed", range(12))
def test_changed_programs_end_as_the_machine_says(seed: int) -> None:
    agree(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 512))
def test_many_changed_programs_end_as_the_machine_says(seed: int) -> None:
    agree(seed)


COMPOSITES = (("zero3", "gpt", "fsdp2"), ("zero3", "gpt", "deepspeed"), ("zero3", "gpt", "megatron"),
              ("zero3*tp_sp", "gpt", "fsdp2"), ("zero3*tp_sp", "llama-3-8b", "deepspeed"), ("zero1*tp_sp", "llama-3-8b",
              "megatron"),
              ("zero3*offload_optimizer", "abstract", "fsdp2"), ("zero3*offload_parameters", "abstract", "deepspeed"),
              ("hsdp*tp_sp", "gpt", "fsdp2"), ("zero3*ep", "mixtral-8x7b", "fsdp2"), ("zero3*cp_ring", "gpt", "fsdp2"))


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "model", "waits"), COMPOSITES)
def test_composites_of_op_graphs_are_free_of_races(strategy: str, model: str, waits: str) -> None:
    table = overlay(pa.parse_strategy(strategy), {"overlap": {"waits": waits}})
    found = pa.derive(table, pa.abstract() if model == "abstract" else pa.model(model))
    verdicts = {v.id: str(v.verdict) for v in with_order(found, VALUES).obligations}
    assert (verdicts["race"], verdicts["alias"]) == (PROVED, PROVED)


def test_a_pipeline_says_that_its_streams_are_outside() -> None:
    found = pa.derive(overlay(pa.parse_strategy("zero1*pp"), {"overlap": {"waits": "megatron"}}), pa.model("gpt"))
    assert not found.order and OUTSIDE in found.reference.left_out
    assert OUTSIDE in not_covered(found.reference)
    with pytest.raises(InputError, match="of which no race is judged"):
        pa.prove(pa.edit(found, {"set": "reduce.layer.weight.grad_sum.reduce[dp]", "stream": "nccl"}))


def test_a_drawing_has_a_lane_for_each_stream() -> None:
    drawn = str(pa.draw(step("zero3", "fsdp2")))
    assert all(f">{stream}</text>" in drawn for stream in ("compute", "gather", "reduce"))
    assert "turn -K" in drawn and ">compute</text>" not in str(pa.draw(step("zero3", "none")))


def test_what_runs_in_other_microbatches_stands_for_itself() -> None:
    """A run of accesses is told by its ends: an event of the first microbatch alone is no end of those of all."""
    total = "backward.layer.weight.grad_sum"
    found = pa.edit(pa.derive(pa.parse_strategy("dp"), pa.abstract()), {"set": "update.layer.weight.norm",
                    "stream": "side"}, {"insert": {"path": f"{total}.scale", "divisor": "2", "at": "first"},
                                        "after": f"{total}.accumulate"})
    program = ordered(found)
    asked = {(c.first.name, c.second.name) for c in conflicts(program, program.reference.buffers)}
    assert {(f"{total}.{verb}", "update.layer.weight.norm") for verb in ("accumulate", "scale")} <= asked
