"""What every kind of event reads, writes and makes afresh, and the graph of who writes what a later event reads.

A storage is told as `group|value`, with its tier where that is not the device; `|value` belongs to no group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import pytest
from test_derived import step_of

from placealg.models.build import graph
from placealg.models.model import Model
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.graph import Storage, creates, reads, writes
from placealg.step.program import Step
from placealg.strategy.spec import strategy_on


def told(storages: Iterable[Storage]) -> list[str]:
    return ["|".join((owner, value) if tier == "device" else (owner, value, tier)) for owner, value, tier in storages]


E, LAYER = "embedding.weight", "layer.weight"
NORMS = f"|norm {E}|norm {LAYER}|norm"
FLAGS = f"|skip {E}|skip {LAYER}|skip"
UNITS: Mapping[str, tuple[str, str, str]] = {
    f"init.{LAYER}.broadcast[dp,cp]": (f"{LAYER}|weight", f"{LAYER}|weight", ""),
    f"init.{LAYER}.master.assign": (f"{LAYER}|weight", f"{LAYER}|master", "*"),
    f"init.{LAYER}.moments.assign": ("", f"{LAYER}|moments", "*"),
    f"init.{LAYER}.slice[dp,cp]": (f"{LAYER}|weight", f"{LAYER}|weight", ""),
    f"init.{LAYER}.offload": (f"{LAYER}|weight", f"{LAYER}|weight|host", "*"),
    f"init.{LAYER}.free": ("", f"{LAYER}|weight", ""),
    "init.step.assign": ("", "|step", "*"),
    "init.rng.assign": ("", "|rng", "*"),
    f"prepare.{E}.grad_sum.zero": ("", f"{E}|grad_sum", ""),
    f"prepare.{E}.fetch": (f"{E}|weight|host", f"{E}|weight", "*"),
    f"prepare.{E}.gather[cp]": (f"{E}|weight", f"{E}|weight", ""),
    "forward.embedding.compute": (f"{E}|weight |rng", "embedding|activation", "*"),
    "forward.layer.compute": (f"{LAYER}|weight |rng embedding|activation", "layer|activation", "*"),
    f"forward.{LAYER}.free[dp]": (f"{LAYER}|weight", f"{LAYER}|weight", ""),
    "forward.head.compute": (f"{E}|weight |rng layer|activation", "head|activation", "*"),
    "forward.loss.compute": ("head|activation", "loss|loss", "*"),
    "backward.loss.scale": ("loss|loss", "loss|loss", ""),
    "backward.head.compute": (f"{E}|weight |rng head|activation loss|loss", f"head|gradient {E}|grad", "*"),
    "backward.layer.compute": (f"{LAYER}|weight |rng layer|activation head|gradient",
                               f"layer|gradient {LAYER}|grad", "*"),
    "backward.embedding.compute": (f"{E}|weight |rng {E}|grad embedding|activation layer|gradient",
                                   f"embedding|gradient {E}|grad", "embedding|gradient"),
    f"backward.{E}.grad_sum.accumulate": (f"{E}|grad {E}|grad_sum", f"{E}|grad_sum", ""),
    f"reduce.{E}.free": ("", f"{E}|weight", ""),
    f"reduce.{E}.grad_sum.reduce[dp,cp]": (f"{E}|grad_sum", f"{E}|grad_sum", ""),
    f"update.{E}.norm": (f"{E}|grad_sum", f"{E}|norm", "*"),
    "update.norm.all_reduce[dp,cp]": (NORMS, "|norm", ""),
    f"update.{LAYER}.clip": (f"{LAYER}|grad_sum {NORMS}", f"{LAYER}|grad_sum", ""),
    f"update.{LAYER}.update": (f"{FLAGS} {LAYER}|master {LAYER}|moments {LAYER}|grad_sum |step",
                               f"{LAYER}|master {LAYER}|moments", ""),
    "update.step.update": (f"{FLAGS} |step", "|step", ""),
    "update.rng.update": ("|rng", "|rng", ""),
    f"publish.{LAYER}.offload": (f"{LAYER}|master", f"{LAYER}|weight|host", "*"),
    f"save.{LAYER}.store": (f"{LAYER}|weight|host", "", ""),
    f"save.{LAYER}.moments.store": (f"{LAYER}|moments", "", ""),
    "save.rng.store": ("|rng", "", ""),
    f"resume.{LAYER}.load": ("", f"{LAYER}|weight|host", "*"),
    f"resume.{LAYER}.master.fetch": (f"{LAYER}|weight|host", f"{LAYER}|master", "*"),
    "resume.step.load": ("", "|step", "*"),
}
"""Of opaque units, the first of which shares its parameter with the last: reads, writes, what is made ("*": all)."""

HOST: Mapping[str, tuple[str, str, str]] = {
    f"init.{LAYER}.master.offload": (f"{LAYER}|weight", f"{LAYER}|master|host", "*"),
    f"prepare.{LAYER}.grad_sum.zero": ("", f"{LAYER}|grad_sum|host", ""),
    f"backward.{LAYER}.grad.reduce[dp]": (f"{LAYER}|grad", f"{LAYER}|grad", ""),
    f"backward.{LAYER}.grad.offload": (f"{LAYER}|grad", f"{LAYER}|grad|host", "*"),
    f"backward.{LAYER}.grad_sum.accumulate": (f"{LAYER}|grad|host {LAYER}|grad_sum|host", f"{LAYER}|grad_sum|host", ""),
    f"update.{LAYER}.skip.compute": (f"{LAYER}|grad_sum|host", f"{LAYER}|skip", "*"),
    "update.skip.all_reduce[dp]": (f"|skip {LAYER}|skip", "|skip", ""),
    f"update.{LAYER}.norm": (f"{LAYER}|grad_sum|host", f"{LAYER}|norm", "*"),
    f"update.{LAYER}.clip": (f"{LAYER}|grad_sum|host |norm {LAYER}|norm", f"{LAYER}|grad_sum|host", ""),
    f"update.{LAYER}.master.all_gather[dp]": (f"{LAYER}|master|host", f"{LAYER}|master|host", ""),
    f"update.{LAYER}.update": (
        f"|skip {LAYER}|skip {LAYER}|master|host {LAYER}|moments|host {LAYER}|grad_sum|host |step",
        f"{LAYER}|master|host {LAYER}|moments|host", ""),
    f"update.{LAYER}.moments.free[dp]": (f"{LAYER}|moments|host", f"{LAYER}|moments|host", ""),
    f"publish.{LAYER}.master.fetch": (f"{LAYER}|master|host", f"{LAYER}|master", "*"),
    f"publish.{LAYER}.publish[dp]": (f"{LAYER}|master", f"{LAYER}|weight", ""),
    f"publish.{LAYER}.master.free": ("", f"{LAYER}|master", ""),
    f"save.{LAYER}.moments.store": (f"{LAYER}|moments|host", "", ""),
    f"resume.{LAYER}.moments.load": ("", f"{LAYER}|moments|host", "*"),
}
"""Where the optimizer runs on the host, and reads whole matrices."""

LOSSES: Mapping[str, tuple[str, str, str]] = {
    "forward.loss.count.compute": ("", "loss|count", "*"),
    "forward.ahead.count.all_reduce[cp]": ("ahead|count", "ahead|count", ""),
    "forward.loss.compute": ("layer|activation loss|count", "loss|loss", "*"),
    "forward.ahead.compute": ("layer|activation ahead|count", "ahead|loss", "*"),
    "backward.ahead.scale": ("ahead|loss", "ahead|loss", ""),
    "backward.layer.compute": (f"{LAYER}|weight |rng layer|activation loss|loss ahead|loss",
                               f"layer|gradient {LAYER}|grad", "*"),
}
"""Of a model with two losses, each divided by its own count."""

RUNNING = "layer.running"
STATISTICS: Mapping[str, tuple[str, str, str]] = {
    f"init.{RUNNING}.broadcast[dp]": (f"{RUNNING}|weight", f"{RUNNING}|weight", ""),
    "forward.layer.compute": (f"{LAYER}|weight {RUNNING}|weight |rng", "layer|activation", "*"),
    f"forward.{RUNNING}.grad.compute": ("layer|activation", f"{RUNNING}|grad", "*"),
    "backward.layer.compute": (f"{LAYER}|weight {RUNNING}|weight |rng layer|activation loss|loss",
                               f"layer|gradient {LAYER}|grad", "*"),
    f"backward.{RUNNING}.grad_sum.accumulate": (f"{RUNNING}|grad {RUNNING}|grad_sum", f"{RUNNING}|grad_sum", ""),
}
"""Backward reads running statistics and gives them no gradient."""

OPS: Mapping[str, tuple[str, str, str]] = {
    "forward.data.positions.slice[tp]": ("|data.positions@tp |data.positions", "|data.positions@tp", ""),
    "forward.embedding.tokens.compute": (f"|data.tokens {E}|weight", "|embedding.tokens", "*"),
    "forward.embedding.tokens.reduce_scatter[tp]": ("|embedding.tokens@tp |embedding.tokens", "|embedding.tokens@tp",
                                                    ""),
    "forward.embedding.sum.compute": ("|embedding.tokens@tp |embedding.positions", "|embedding.sum", "*"),
    "forward.embedding.dropped.compute": ("|embedding.sum |rng", "|embedding.dropped", "*"),
    "forward.layer.in.assign": ("|embedding.dropped", "|layer.in", "*"),
    "forward.layer.norm1.out.free": ("", "", ""),
    "forward.layer.attn.core.free": ("", "", ""),
    "forward.layer.residual1.compute": ("|layer.in |layer.attn.dropped", "|layer.residual1", "*"),
    "forward.head.logits.compute": (f"|head.norm.out@tp {E}|weight", "|head.logits", "*"),
    "forward.head.loss.compute[tp]": ("|head.logits |data.targets", "|head.loss", "*"),
    "forward.loss.compute": ("|head.loss", "loss|loss", "*"),
    "backward.loss.scale": ("loss|loss", "loss|loss", ""),
    "backward.loss.sum.grad.compute": ("|head.loss |loss.sum.grad loss|loss", "|head.loss.grad", "*"),
    "backward.head.loss.grad.compute": ("|head.logits |data.targets |head.loss.grad", "|head.logits.grad", "*"),
    "backward.head.norm.out.all_gather[tp]": ("|head.norm.out@tp |head.norm.out", "|head.norm.out@tp", ""),
    "backward.head.logits.grad.compute": (f"|head.norm.out@tp {E}|weight |head.logits.grad",
                                          f"{E}|grad |head.norm.out.grad@tp |head.norm.out.grad", "*"),
    "backward.head.norm.out.free": ("", "", ""),
    "backward.head.norm.out.grad.reduce_scatter[tp]": (
        "|head.norm.out.grad@tp |head.norm.out.grad", "|head.norm.out.grad@tp |head.norm.out.grad", ""),
    "backward.layer.mlp.down.biased.grad.compute": (
        "|layer.mlp.down@tp layer.mlp.down.bias|weight |layer.mlp.down.biased.grad",
        "layer.mlp.down.bias|grad |layer.mlp.down.grad@tp |layer.mlp.down.grad", "*"),
    "backward.layer.norm1.out.grad.compute": (
        "|layer.in layer.norm1.weight|weight layer.norm1.bias|weight |layer.norm1.out.grad",
        "layer.norm1.weight|grad layer.norm1.bias|grad |layer.in.grad", "*"),
    "backward.layer.attn.core.dropped.compute": ("|layer.attn.core.probs |rng", "|layer.attn.core.dropped", "*"),
    "backward.layer.in.grad.assign": ("|embedding.dropped |layer.in.grad", "|embedding.dropped.grad", "*"),
    "backward.embedding.dropped.grad.compute": ("|embedding.sum |embedding.dropped.grad", "|embedding.sum.grad", "*"),
    "backward.embedding.positions.grad.compute": (
        "|data.positions@tp embedding.position.weight|weight |embedding.positions.grad",
        "embedding.position.weight|grad", "*"),
}
"""Of ops: data have no gradient, a draw reads the stream, a redistribution keeps what it is made from."""

STAGES: Mapping[str, tuple[str, str, str]] = {
    "forward.layer.in.recv[pp]": ("", "|layer.in", "*"),
    "forward.layer.mlp.down.biased.send[pp]": ("|layer.mlp.down.biased", "", ""),
    "backward.layer.mlp.down.biased.grad.recv[pp]": ("", "|layer.mlp.down.biased.grad", "*"),
    "backward.layer.in.grad.send[pp]": ("|layer.in.grad", "", ""),
    "backward.layer.in.grad.assign": ("|data.input@dp_replicate_dp_shard |layer.in.grad", "", ""),
    "backward.head.weight.grad.reduce[dp_shard]": ("head.weight|grad", "head.weight|grad", ""),
}
"""A message is read by its sender and written by its receiver."""

PROGRAMS = {"lives_on_host_units": UNITS, "skip_on_host": HOST, "partly_counted_losses": LOSSES,
            "dp_statistics": STATISTICS, "sequence_gpt": OPS, "pipeline_mlp": STAGES}
derived = cache(step_of)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_events_read_write_and_make(name: str) -> None:
    step = derived(name)
    for path, (read, written, made) in PROGRAMS[name].items():
        event = step.event(path)
        assert sorted(told(reads(event, step.reference))) == sorted(read.split()), path
        assert told(writes(event, step.reference)) == written.split(), path
        assert told(creates(event, step.reference)) == (written if made == "*" else made).split(), path


def test_the_loss_of_ops_is_divided_by_a_count_that_it_reads() -> None:
    step = derive(strategy_on("mine", {"dp": None}, dims={"dp": ["batch"]}, loss={"preset": "token_mean"}),
                  derived_model("pipeline_mlp"))
    assert told(reads(step.event("forward.loss.compute"), step.reference)) == ["|head.loss", "loss|count"]
    counted = step.event("prepare.loss.count.compute")
    assert (told(reads(counted, step.reference)), told(writes(counted, step.reference))) == ([], ["loss|count"])
    scaled = edit(step, insert={"path": "backward.loss.scale", "divisor": "count"}, after="forward.loss.compute")
    assert told(reads(scaled.event("backward.loss.scale"), step.reference)) == ["loss|loss", "loss|count"]


def test_a_gradient_that_is_divided_by_a_count_reads_the_first_loss_s() -> None:
    step = edit(derived("dp"), set="reduce.layer.weight.grad_sum.reduce[dp]", divisor="count")
    event = step.event("reduce.layer.weight.grad_sum.reduce[dp]")
    assert told(reads(event, step.reference)) == [f"{LAYER}|grad_sum", "loss|count"]


def test_a_copy_of_a_copy_reads_all_that_it_may_come_from() -> None:
    """Where T@x is not held, T@x/y is read from T."""
    g = graph(batch="b", embed="h", ffn="f")
    x = g.mul("net.in", g.data("data.x", "batch embed"), g.parameter("net.scale", "embed"))
    up = g.linear("net.up", x, "batch ffn", "embed ffn")
    down = g.linear("net.down", g.unary("net.act", up, "relu"), "batch embed", "ffn embed")
    g.sum("loss.sum", g.sum("net.rows", g.mul("net.square", down, down), to="batch"))
    step = derive(strategy_on("mine", {"x": None}, dims={"x": ["ffn"]}), Model.of_graph("net", g.build()))
    event = replace(step.event("forward.net.down.all_reduce[x]"), version="x/y/z")
    assert told(reads(event, step.reference)) == ["|net.down@x/y/z", "|net.down@x/y", "|net.down@x", "|net.down"]
    assert told(writes(event, step.reference)) == ["|net.down@x/y/z"]


def derived_model(name: str) -> Model:
    from test_derived import MODELS

    return MODELS[name.rpartition("_")[2]]


FLOW = {
    ("init.layer.weight.broadcast[dp]", "init.layer.weight.master.assign"): ("layer.weight.weight",),
    ("init.layer.weight.broadcast[dp]", "forward.layer.compute"): ("layer.weight.weight",),
    ("init.layer.weight.broadcast[dp]", "backward.layer.compute"): ("layer.weight.weight",),
    ("init.layer.weight.master.assign", "update.layer.weight.update"): ("layer.weight.master",),
    ("init.layer.weight.moments.assign", "update.layer.weight.update"): ("layer.weight.moments",),
    ("init.step.assign", "update.layer.weight.update"): ("step",),
    ("init.step.assign", "update.step.update"): ("step",),
    ("init.rng.assign", "forward.layer.compute"): ("rng",),
    ("init.rng.assign", "backward.layer.compute"): ("rng",),
    ("init.rng.assign", "update.rng.update"): ("rng",),
    ("prepare.layer.weight.grad_sum.zero", "backward.layer.weight.grad_sum.accumulate"): ("layer.weight.grad_sum",),
    ("forward.layer.compute", "forward.loss.compute"): ("layer.activation",),
    ("forward.layer.compute", "backward.layer.compute"): ("layer.activation",),
    ("forward.loss.compute", "backward.loss.scale"): ("loss.loss",),
    ("backward.loss.scale", "backward.layer.compute"): ("loss.loss",),
    ("backward.layer.compute", "backward.layer.weight.grad_sum.accumulate"): ("layer.weight.grad",),
    ("backward.layer.weight.grad_sum.accumulate", "reduce.layer.weight.grad_sum.reduce[dp]"): (
        "layer.weight.grad_sum",),
    ("reduce.layer.weight.grad_sum.reduce[dp]", "update.layer.weight.norm"): ("layer.weight.grad_sum",),
    ("reduce.layer.weight.grad_sum.reduce[dp]", "update.layer.weight.clip"): ("layer.weight.grad_sum",),
    ("update.layer.weight.norm", "update.norm.all_reduce[dp]"): ("layer.weight.norm",),
    ("update.layer.weight.norm", "update.layer.weight.clip"): ("layer.weight.norm",),
    ("update.norm.all_reduce[dp]", "update.layer.weight.clip"): ("norm",),
    ("update.layer.weight.clip", "update.layer.weight.update"): ("layer.weight.grad_sum",),
    ("update.layer.weight.update", "publish.layer.weight.publish"): ("layer.weight.master",),
    ("update.layer.weight.update", "save.layer.weight.moments.store"): ("layer.weight.moments",),
    ("update.step.update", "save.step.store"): ("step",),
    ("update.rng.update", "save.rng.store"): ("rng",),
    ("publish.layer.weight.publish", "save.layer.weight.store"): ("layer.weight.weight",),
    ("resume.layer.weight.load", "resume.layer.weight.master.assign"): ("layer.weight.weight",),
}
"""Data parallelism: writer and reader -> what flows between them."""


def test_the_graph_has_an_edge_from_the_last_writer_to_every_reader() -> None:
    step: Step = derived("dp")
    made = step.graph
    assert {(source, target): values for source, target, values in made.edges(data="values")} == FLOW
    assert list(made) == [e.path for e in step.events]
    assert all(made.nodes[e.path]["event"] is e for e in step.events)


def test_an_edge_carries_all_that_flows_along_it() -> None:
    made = derived("tp_mlp").graph
    there = made.edges["backward.layer.mlp.up.grad.compute", "backward.layer.in.grad.all_reduce[tp]"]
    assert there["values"] == ("layer.in.grad@tp", "layer.in.grad")
