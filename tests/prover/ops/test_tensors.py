"""What is held of the tensors of one microbatch, version by version, and what one microbatch's record keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from test_flow import step_of

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.build import graph
from placealg.models.model import Model
from placealg.prover.calculus.contribution import Term, Value
from placealg.prover.calculus.positions import OWNER, at, dim_of
from placealg.prover.ops import paths
from placealg.prover.ops.findings import Demand, Flow, GradientPart
from placealg.prover.ops.paths import Sum, exact
from placealg.prover.ops.redistributions import MOVES
from placealg.prover.ops.tensors import NEXT_INSTANCE, Tensors
from placealg.step.derive import derive
from placealg.step.event import Event
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy

GPT, DEEPSEEK, MLP = step_of("zero1*tp", "gpt"), step_of("tp", "deepseek"), step_of("mlp", "mlp")
HELD = exact({("dp", at("batch"))})
"""Whole, on the owner of the token."""

HALF = paths.scaled(HELD, ONE / Monomial.of("tp"))
TWO_CLASSES = (*HELD, *HALF)
ELSEWHERE = exact({("dp", at("seq"))})
NOTHING: Sum = ()


def made(held: Mapping[tuple[str, str], Sum], step: Step = GPT) -> Tensors:
    tensors = Tensors(step)
    tensors.made |= held
    return tensors


# versions

def test_a_version_that_was_not_made_is_read_as_what_it_would_come_from() -> None:
    name = "layer.norm1.out"
    tensors = made({(name, ""): HELD, (name, "tp"): HALF, (name, "tp/cp/x"): ELSEWHERE})
    assert tensors.read(name) == HELD
    assert tensors.read(name, "tp") == tensors.read(name, "tp/cp") == HALF
    assert tensors.read(name, "tp/cp/x") == tensors.read(name, "tp/cp/x/y") == ELSEWHERE
    assert tensors.read(name, "dp") == HELD, "a sibling is no version that it comes from"
    assert tensors.read("layer.mlp.up", "tp") == NOTHING


def test_data_are_everywhere_and_parameters_at_the_owners_of_their_split_dims() -> None:
    tensors = made({("data.tokens", "dp"): HELD})
    assert tensors.read("data.tokens") == tensors.read("data.tokens", "tp") == exact()
    assert tensors.read("data.tokens", "dp") == HELD
    assert tensors.read("embedding.weight") == exact({("tp", at("vocab"))})
    assert tensors.read("embedding.weight", "any") == exact({("tp", at("vocab"))})
    assert tensors.read("layer.norm1.weight") == exact()
    layered = Tensors(step_of("zero1*pp", "llama"))
    assert layered.reference.split_dims["layer.mlp.up.weight"]["pp"] == "layer"
    assert layered.read("layer.mlp.up.weight") == exact(), "a rank holds as many instances as it runs"


def test_a_region_uses_a_labelled_version_and_those_it_comes_from() -> None:
    reads = ("layer.in@tp/cp", "layer.mlp.up.weight")
    events = (Event("forward", "compute", "layer.mlp.up", unit="layer", reads=reads),
              Event("forward", "assign", "layer.in", unit="layer", reads=("data.input@dp",)),
              Event("forward", "free", "layer.in", unit="layer", reads=("layer.in@other",)),
              Event("backward", "compute", "layer.mlp.up.grad", unit="layer", reads=("layer.in@late",)))
    assert Tensors(Step(MLP.reference, events)).users == {
        ("layer.in", "tp/cp"): {"layer.mlp.up"}, ("layer.in", "tp"): {"layer.mlp.up"},
        ("data.input", "dp"): {"layer.in"}}


# gradients

def test_the_uses_of_a_tensor() -> None:
    tensors = Tensors(GPT)
    assert tensors.uses("layer.residual1") == ("layer.norm2.out/0", "layer.out/0")
    assert tensors.uses("layer.in") == ("layer.norm1.out/0", "layer.residual1/0")
    assert tensors.uses("embedding.dropped") == ("layer.in",), "it enters the layers"
    assert tensors.uses("layer.out") == ("head.norm.out/0",)
    assert tensors.uses("layer.mlp.down.bias") == ("layer.mlp.down.biased/1",)
    tensors.expected["layer.out"] = (NEXT_INSTANCE,)
    assert tensors.uses("layer.out") == (NEXT_INSTANCE,)
    routed = Tensors(DEEPSEEK)
    assert "layer.router.route" in {op.output for op in routed.graph.consumers("layer.router.scores")}
    assert all(not use.startswith("layer.router.route/") for use in routed.uses("layer.router.scores"))
    assert "layer.in" in routed.uses("dense.layer.out") and len(routed.uses("layer.router.scores")) >= 1


def test_a_gradient_is_the_sum_over_its_uses_and_says_when_one_is_missing() -> None:
    tensors, name = Tensors(GPT), "layer.residual1"
    assert tensors.gradient(name) == NOTHING
    assert tensors.add(name, "", "layer.out/0", HELD)
    assert tensors.gradient(name) == paths.lost(HELD) and tensors.gradient(name) != HELD
    assert tensors.add(name, "", "layer.norm2.out/0", HELD)
    assert tensors.gradient(name) == HELD
    assert tensors.gradient("layer.out") == NOTHING, "another tensor's"
    tensors = Tensors(GPT)
    tensors.add(name, "", "layer.out/0", HELD)
    tensors.add(name, "", "layer.norm2.out/0", HALF)
    assert set(tensors.gradient(name)) == {*HELD, *HALF}
    tensors.gradients[name, ""]["layer.norm2.out/0"] = NOTHING
    assert tensors.gradient(name) == paths.undefined(paths.mask_of(HELD)), "what could not be computed is no gradient"


def test_a_label_gathers_what_is_below_it_and_a_use_under_two_labels_counts_twice() -> None:
    tensors, name = Tensors(GPT), "layer.residual1"
    tensors.gradients = {(name, "tp"): {"layer.out/0": HELD}, (name, "tp/cp"): {"layer.norm2.out/0": HALF},
                         (name, "tpx"): {"layer.out/0": ELSEWHERE}, ("layer.out", "tp"): {"head.norm.out/0": ELSEWHERE}}
    assert set(tensors.gradient(name, "tp")) == {*HELD, *HALF}
    assert tensors.gradient(name, "tp/cp") == HALF
    assert tensors.gradient(name, "cp") == NOTHING
    assert tensors.gradient(name, "tpx") == ELSEWHERE
    assert tensors.gradient(name) == paths.accumulated((HELD, HALF, ELSEWHERE))


def test_adding_twice_at_one_use() -> None:
    tensors, name, use = Tensors(GPT), "layer.residual1", "layer.out/0"

    def after(first: Sum, second: Sum) -> tuple[bool, Sum]:
        tensors.gradients.clear()
        assert tensors.add(name, "tp", use, first)
        return tensors.add(name, "tp", use, second), tensors.gradients[name, "tp"][use]
    assert after(HELD, HELD) == (True, paths.scaled(HELD, Monomial(Fraction(2))))
    assert after(HELD, HALF) == (True, (HELD[0].plus(HALF[0]),))
    assert after(HELD, ELSEWHERE) == (False, HELD), "on other ranks"
    assert after(TWO_CLASSES, HELD) == (False, TWO_CLASSES) and after(HELD, TWO_CLASSES) == (False, HELD)
    assert after(TWO_CLASSES, TWO_CLASSES) == (False, TWO_CLASSES)
    assert after(HELD, NOTHING) == (False, HELD) and after(NOTHING, HELD) == (False, NOTHING)
    tensors.add(name, "tp", "layer.norm2.out/0", HALF)
    assert tensors.gradients[name, "tp"] == {use: NOTHING, "layer.norm2.out/0": HALF}
    assert not tensors.add(name, "", use, HELD), "one use adds to one version"
    assert tensors.add(name, "", "head.x/0", HELD) and tensors.gradients[name, ""] == {"head.x/0": HELD}, "another use"


def test_a_redistribution_takes_the_place_of_its_version_and_of_what_a_gradient_has_below_it() -> None:
    name = "layer.residual1"
    forward = Event("forward", "all_reduce", name, unit="layer", version="tp")
    tensors = made({(name, ""): HELD, (name, "dp"): HALF})
    assert tensors.here(forward) == HELD
    tensors.put(forward, ELSEWHERE)
    assert tensors.made == {(name, ""): HELD, (name, "dp"): HALF, (name, "tp"): ELSEWHERE}
    assert tensors.here(forward) == ELSEWHERE and tensors.gradients == {}
    other = {("layer.out", "tp"): {"head.norm.out/0": ELSEWHERE}}
    below = {(name, "tp"): {"layer.out/0": HELD}, (name, "tp/cp"): {"layer.norm2.out/0": HELD}}
    beside = {(name, "tpx"): {"layer.out/0": HALF}}
    backward = Event("backward", "all_reduce", f"{name}.grad", unit="layer", version="tp")
    tensors.gradients = {**other, **below, **beside}
    assert tensors.here(backward) == HELD
    tensors.put(backward, HALF)
    assert tensors.gradients == {**other, **beside,
                                 (name, "tp"): {"layer.out/0": HALF, "layer.norm2.out/0": HALF}}
    assert tensors.made[name, "tp"] == ELSEWHERE
    tensors.gradients = {**other, **below, **beside}
    tensors.put(Event("backward", "all_reduce", f"{name}.grad", unit="layer"), HALF)
    assert tensors.gradients == {**other, (name, ""): {"layer.out/0": HALF, "layer.norm2.out/0": HALF}}


@pytest.mark.parametrize(("held", "whole"), [
    ([("tp", "at:ffn")], True), ([("tp", "at:ffn"), ("dp", "at:seq")], True), ([], True), ([("dp", "at:ffn")], True),
    ([("tp", "at:ffn"), ("dp", "at:ffn")], True), ([("tp", "at:ffn"), ("dp", "at:ffn!mine~dp")], False),
    ([("tp", "at:ffn!mine~tp")], False), ([("tp", "at:ffn!mine~tp"), ("dp", "at:seq")], False)])
def test_padding_makes_a_dim_whole(held: list[tuple[str, str]], whole: bool) -> None:
    """Along other axes it stays split; where ranks have parts of their own, what is held is no sum of contributions."""
    pad = Event("forward", "pad", "layer.mlp.up", unit="layer", axes=("tp",), source="S(ffn)")
    tensors = made({("layer.mlp.up", ""): paths.exact(held)})
    MOVES["pad"](tensors, pad)
    (value,) = tensors.made["layer.mlp.up", ""]
    assert value.garbage != whole
    assert value.mask == {p for p in held if dim_of(p[1]) != "ffn" or (whole and p[0] == "dp")}
    if whole:
        assert value.terms[0].at == {"tp": "at:ffn"}


@pytest.mark.parametrize(("fields", "factor"), [
    ({}, ONE), ({"op": "sum"}, ONE), ({"op": "mean"}, ONE / Monomial.of("tp")),
    ({"op": "premultiplied", "divisor": Monomial.of("tp", "tp")}, ONE / Monomial.of("tp", "tp"))])
def test_a_sum_of_a_tensor_is_a_sum_or_a_mean_or_divided_before(fields: dict[str, Any], factor: Monomial) -> None:
    reduce = Event("forward", "all_reduce", "layer.mlp.up", unit="layer", axes=("tp",), source="P", **fields)
    tensors = made({("layer.mlp.up", ""): paths.exact()})
    MOVES["all_reduce"](tensors, reduce)
    (value,) = tensors.made["layer.mlp.up", ""]
    assert value.terms == (Term(Monomial.of("tp") * factor),)


# instances of a repeated unit

OUTSIDE = {("embedding.dropped", ""): HELD, ("layers.x", ""): HELD}
INSIDE = {("layer.in", ""): HELD, ("layer.out", ""): HALF, ("layer.out", "tp"): HELD, ("layer.mlp.up", ""): HELD}


def test_another_instance_reads_the_last_tensor_of_the_one_before_and_nothing_else_of_it() -> None:
    tensors = made({**OUTSIDE, **INSIDE})
    tensors.beside = {"layer.norm1.out.rstd": HALF, "head.norm.out.rstd": HELD}
    tensors.extents = {("layer.norm1.out", 0): HELD[0].mask, ("head.norm.out", 0): frozenset()}
    layer = (INSIDE, {"layer.norm1.out.rstd": HALF}, {("layer.norm1.out", 0): HELD[0].mask})
    assert tensors.instance("layer") == layer
    assert tensors.again("layer", "layer.out") == layer
    assert tensors.extents == {("head.norm.out", 0): frozenset()}
    assert tensors.made == {**OUTSIDE, ("layer.out", ""): HALF}
    assert tensors.beside == {"head.norm.out.rstd": HELD}
    tensors.put_back("layer", layer)
    assert tensors.extents == {**layer[2], ("head.norm.out", 0): frozenset()}
    assert tensors.made == {**OUTSIDE, **INSIDE}
    assert tensors.beside == {"head.norm.out.rstd": HELD, "layer.norm1.out.rstd": HALF}
    tensors.put_back("layer", ({("layer.in", ""): HALF}, {}, {}))
    assert tensors.extents == {("head.norm.out", 0): frozenset()}
    assert tensors.made == {**OUTSIDE, ("layer.in", ""): HALF}
    assert tensors.beside == {"head.norm.out.rstd": HELD}
    assert tensors.again("layer", "layer.out")[0] == {("layer.in", ""): HALF}
    assert tensors.made == OUTSIDE, "where nothing was made, nothing is handed on"


def test_the_backward_of_another_instance_starts_with_the_gradient_of_its_last_tensor() -> None:
    tensors = Tensors(GPT)
    kept = {("head.norm.out", ""): {"head.logits/0": HELD}, ("layers.x", ""): {"y": HELD}}
    tensors.gradients = {**kept, ("layer.in", ""): {"layer.residual1/0": HELD}, ("layer.mlp.up", "tp"): {"z": HALF}}
    tensors.back_again("layer", "layer.out", HALF)
    assert tensors.gradients == {**kept, ("layer.out", ""): {NEXT_INSTANCE: HALF}}
    assert tensors.gradient("layer.out") == HALF, "the only use of it is the instance after it"


# what is freed

def test_a_version_is_freed_by_its_name() -> None:
    event = Event("forward", "free", "head.norm.out", unit="head", version="tp")
    tensors = made({("head.norm.out", ""): HELD, ("head.norm.out", "tp"): HELD, ("head.logits", "tp"): HELD})
    tensors.free(event)
    assert set(tensors.made) == {("head.norm.out", ""), ("head.logits", "tp")}
    tensors.free(event)
    assert set(tensors.made) == {("head.norm.out", ""), ("head.logits", "tp")}


def everything(step: Step) -> Tensors:
    """Every tensor made, every version that is read, and all that ops keep."""
    tensors = Tensors(step)
    ops = tensors.graph.ops
    names = [op.output for op in ops] + [loop.slot for loop in tensors.graph.loops]
    tensors.made = {(n, ""): HELD for n in names} | dict.fromkeys(tensors.users, HELD)
    tensors.beside = {f"{op.output}.kept": HELD for op in ops}
    return tensors


def freed(step: Step, region: str, unit: str = "") -> tuple[set[str], set[str]]:
    """What is no longer held when a region is freed: versions, and what ops kept."""
    tensors = everything(step)
    before, beside = set(tensors.made), set(tensors.beside)
    tensors.free(Event("forward", "free", region, unit=unit or region.partition(".")[0]))
    assert set(tensors.made) <= before and set(tensors.beside) <= beside
    return ({f"{n}@{label}" if label else n for n, label in before - set(tensors.made)}, beside - set(tensors.beside))


def test_a_region_frees_what_nobody_outside_reads() -> None:
    core = {f"layer.attn.core.{n}" for n in ("keys", "values", "scores", "scaled", "probs", "dropped")}
    versions, kept = freed(step_of("zero1*tp*recompute_selective", "gpt"), "layer.attn.core")
    assert versions == core, "the projection behind the core reads what it mixed"
    assert kept == {f"{n}.kept" for n in core | {"layer.attn.core.mixed"}}


def test_the_region_of_a_whole_layer_keeps_what_enters_and_leaves_it() -> None:
    step = step_of("zero3*tp_sp*recompute_full", "llama")
    ops = {op.output for op in Tensors(step).graph.ops if op.unit == "layer"}
    versions, kept = freed(step, "layer")
    labelled = {f"layer.{n}@tp" for n in ("norm1.out", "attn.out", "norm2.out", "mlp.down")}
    assert versions == (ops - {"layer.out"}) | labelled
    assert kept == {f"{n}.kept" for n in ops}


def test_a_part_of_a_layer_frees_the_versions_that_only_it_reads() -> None:
    """The version that the projections read, and the copy outside the region that the residual reads, differ."""
    step = step_of("zero3*tp_sp", "llama")
    versions, _ = freed(step, "layer.attn")
    ops = {op.output for op in Tensors(step).graph.ops if f"{op.region}.".startswith("layer.attn.")}
    assert versions == (ops - {"layer.attn.out"}) | {"layer.norm1.out@tp"}
    assert freed(step, "layer.norm1") == (set(), {"layer.norm1.out.kept"}), "who reads it stands outside"
    assert freed(step, "layer.att") == (set(), set()), "the beginning of a name is no region"


def test_a_version_is_freed_by_who_reads_it_and_a_tensor_by_who_reads_that() -> None:
    """Another version of the residual stream is read behind the region, or this one is."""
    name, inside, outside = "layer.residual1", "layer.norm2.out", "layer.out"

    def left(*readers: str) -> set[tuple[str, str]]:
        tensors = made({(name, ""): HELD, (name, "tp"): HELD})
        tensors.users[name, "tp"] = set(readers)
        tensors.free(Event("forward", "free", "layer.norm2", unit="layer"))
        return set(tensors.made)
    assert left(inside) == {(name, "")}
    assert left(inside, outside) == left(outside) == left() == {(name, ""), (name, "tp")}


def two_ways(regions: Mapping[str, str]) -> Step:
    """Layers and an op beside them read what the stem makes, and the head reads both; units in other regions."""
    g = graph(batch="b", embed="h")
    stem = g.linear("stem.x", g.data("data.input", "batch embed"), "batch embed", "embed embed")
    beside = g.unary("stem.beside", stem, "gelu")
    layer = g.repeat("layer", "L", stem)
    up = g.unary("layer.first", layer, "gelu", region=regions.get("layer"))
    out = g.unary("layer.out", up, "gelu")
    g.sum("loss.sum", g.add("head.x", out, beside, region=regions.get("head")))
    step = derive(parse_strategy("dp"), Model.of_graph("two ways", g.build()))
    made = step.reference.graph
    assert made is not None
    ops = tuple(replace(op, region=regions.get(op.unit, op.region)) if op.unit == "stem" else op for op in made.ops)
    return Step(replace(step.reference, graph=replace(made, ops=ops)), step.events)


def test_what_a_unit_hands_on_stays_although_only_its_region_reads_it() -> None:
    """What leaves it, and what enters it."""
    assert freed(two_ways({}), "stem")[0] == {"data.input@dp"}, "what is beside the layers is read by the head"
    assert freed(two_ways({}), "layer")[0] == {"layer.first"}
    assert freed(two_ways({"head": "layer.head"}), "layer")[0] == {"layer.first"}
    inside = two_ways({"stem": "layer.part", "layer": "layer.part"})
    assert freed(inside, "layer.part")[0] == set(), "an op outside of the region reads it"
    assert freed(inside, "layer.part", "stem")[0] == {"data.input@dp"}, "ops of one unit, in whose loop it stands"


def test_what_enters_the_first_of_two_repeated_units_and_what_the_second_takes_over() -> None:
    """The last tensor of one repeated unit enters the next: it stays where either needs it."""
    step = DEEPSEEK
    ops = {op.output for op in Tensors(step).graph.ops if op.unit == "dense"}
    versions, _ = freed(step, "dense")
    assert "dense.layer.out" not in versions and "embedding.tokens" not in versions
    assert ops - versions <= {"dense.layer.out"}
    assert "embedding.tokens" not in freed(step, "embedding")[0], "the layers are entered by it"
    assert "layer.out" not in freed(step, "layer")[0]


# the record of one microbatch

PART = GradientPart("backward.x.grad.compute", "layer.weight", "x/1", HELD)


def test_what_an_event_adds_is_kept_by_parameter_and_use() -> None:
    flow = Flow()
    flow.add(PART)
    again = GradientPart(PART.event, PART.parameter, PART.use, HALF)
    others = [GradientPart(PART.event, PART.parameter, "x/2", HALF),
              GradientPart(PART.event, "layer.bias", "x/1", HALF),
              GradientPart("backward.y.grad.compute", PART.parameter, "x/1", HALF)]
    for part in others:
        flow.add(part)
    assert flow.of(PART.event, "layer.weight") == (PART, others[0])
    assert flow.of(PART.event, "layer.bias") == (others[1],) and flow.of("elsewhere", "layer.weight") == ()
    assert flow.of("backward.y.grad.compute", PART.parameter) == (others[2],)
    flow.add(again)
    flow.add(PART)
    both = GradientPart(PART.event, PART.parameter, PART.use, TWO_CLASSES)
    assert flow.of(PART.event, "layer.weight") == (both, others[0])


def test_a_contribution_that_could_not_be_computed_is_garbage_in_every_instance() -> None:
    flow, garbage = Flow(), (Value(garbage=True),)
    flow.add(GradientPart(PART.event, PART.parameter, PART.use, NOTHING))
    assert flow.of(PART.event, PART.parameter)[0].held == garbage
    flow.add(PART)
    flow.add(GradientPart(PART.event, PART.parameter, PART.use, NOTHING))
    assert flow.of(PART.event, PART.parameter)[0].held == (*garbage, *HELD)


SPLIT = (Value((Term(ONE, FrozenMap({"tp": OWNER})),)),)


@pytest.mark.parametrize(("held", "right"), [
    (HELD, True), (exact(), True), (HALF, False), (TWO_CLASSES, False), (NOTHING, False), (SPLIT, False),
    (paths.undefined(paths.mask_of(HELD)), False)])
def test_a_demand_is_fulfilled_where_every_contribution_counts_once(held: Sum, right: bool) -> None:
    demand = Demand("forward.x.compute", "reads x", held, paths.mask_of(held))
    other = Demand("forward.y.compute", "waits", NOTHING, frozenset(), "schedule")
    assert demand.exact is right and demand.obligation == "forward"
    flow = Flow(demands=[demand, other])
    assert flow.faults == ([other] if right else [demand, other])
