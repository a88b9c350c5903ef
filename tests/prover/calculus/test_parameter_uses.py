"""Ops as one parameter sees them: which concern it, what they read of it, and what they add to its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from test_flow import step_of

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.graph import Graph
from placealg.prover.calculus import versions
from placealg.prover.calculus.contribution import Term, Value, count_name
from placealg.prover.calculus.machine import Machine, Read, Site
from placealg.prover.calculus.microbatches import Iteration
from placealg.prover.calculus.parameter_uses import concerns, operate, used_at
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import DEVICE, OWNER, UNIT, stage
from placealg.prover.calculus.versions import CURRENT, GARBAGE, NEXT, UNHELD, where
from placealg.prover.ops import paths
from placealg.prover.ops.findings import SEED, Flow, GradientPart
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.paths import Sum
from placealg.step.event import Clause, Event
from placealg.step.program import Step

GPT, MLP, TIED = step_of("zero1*tp", "gpt"), step_of("mlp", "mlp"), step_of("zero1*pp", "gpt")
ACTIVE, PASSIVE = Iteration("middle", True), Iteration("middle", False)
WEIGHT = "layer.mlp.up.weight"
USE = "layer.mlp.up/1"


class Known(Flows):
    """The flow of a middle microbatch as it is given; at other positions nothing happens."""

    def __init__(self, step: Step, *parts: GradientPart, loss: Mapping[str, paths.Pairs] | None = None):
        super().__init__(step)
        self.middle = Flow(loss=dict(loss or {}))
        for part in parts:
            self.middle.add(part)

    def at(self, position: str) -> Flow:
        return self.middle if position == "middle" else Flow()


def machine_of(step: Step, use: str = USE, parameter: str = WEIGHT, part: int = 0) -> Machine:
    group = next(g for g in step.reference.groups if parameter in g.parameters)
    machine = Machine(step.reference, group, Site(use, parameter, part))
    machine.versions |= {("weight", "device"): where([("dp", "0")], CURRENT, UNHELD),
                         ("rng", "device"): where([("dp", "0")], CURRENT, NEXT)}
    return machine


def event_of(step: Step, path: str) -> Event:
    return step.event(path)


# which ops concern a parameter

def test_which_ops_concern_a_parameter() -> None:
    def found(step: Step, parameter: str) -> set[str]:
        return {e.path for e in step.phase("forward", "backward")
                if e.on_tensor and concerns(e, parameter, step.reference)}
    start, draws = "backward.loss.sum.grad.compute", {
        f"forward.{n}.compute" for n in ("embedding.dropped", "layer.attn.core.dropped", "layer.attn.dropped",
                                         "layer.mlp.dropped")}
    assert found(MLP, WEIGHT) == {start, "forward.layer.mlp.up.compute", "backward.layer.mlp.up.grad.compute"}
    assert found(GPT, "") == {start, *draws}
    assert found(GPT, "embedding.weight") == {start, *draws} | {
        f"{p}.{n}{g}.compute" for p, g in (("forward", ""), ("backward", ".grad"))
        for n in ("embedding.tokens", "head.logits")}
    forward = Event("forward", "compute", "loss.sum", unit="loss")
    assert not concerns(forward, WEIGHT, MLP.reference), "the loss starts nothing when it is summed"
    compute = event_of(MLP, "forward.layer.mlp.up.compute")
    assert concerns(compute, WEIGHT, MLP.reference)
    assert not concerns(replace(compute, verb="free"), WEIGHT, MLP.reference)
    assert not concerns(compute, WEIGHT, replace(MLP.reference, graph=Graph()))


def test_the_backward_of_an_op_reads_the_parameters_that_other_gradients_need() -> None:
    flows, graph = Flows(GPT), GPT.reference.graph
    backward = Event("backward", "compute", "")
    reading = {(op.output, name): flows.reads_parameter(replace(backward, value=f"{op.output}.grad"), op, name)
               for op in graph.ops for name in op.inputs
               if graph.tensors[name].kind == "parameter"}
    assert {key for key, reads in reading.items() if reads} == {
        *((n, f"{n}.weight") for n in ("layer.attn.q", "layer.attn.k", "layer.attn.v", "layer.attn.out",
                                       "layer.mlp.up", "layer.mlp.down")),
        *((f"{n}.out", f"{n}.weight") for n in ("layer.norm1", "layer.norm2", "head.norm")),
        ("head.logits", "embedding.weight")}
    assert all(isinstance(reads, bool) for reads in reading.values())


# where it is used

def test_a_parameter_is_used_by_its_owners_and_a_tied_one_at_the_end_where_the_op_is() -> None:
    graph = TIED.reference.graph
    first, last = (next(op for op in graph.ops if op.output == n) for n in ("embedding.tokens", "head.logits"))
    table = machine_of(TIED, "head.logits/1", "embedding.weight")
    assert used_at(table, first, "embedding.weight") == {("pp_ends", stage("first"))}
    assert used_at(table, last, "embedding.weight") == {("pp_ends", stage("last"))}
    layer = machine_of(TIED)
    up = next(op for op in graph.ops if op.output == "layer.mlp.up")
    assert used_at(layer, up, WEIGHT) == {("pp", OWNER)}
    table.group = replace(table.group, split=("tp",))
    assert used_at(table, last, "embedding.weight") == {("tp", OWNER), ("pp_ends", stage("last"))}
    table.reference = replace(table.reference, graph=Graph())
    assert used_at(table, last, "embedding.weight") == {("tp", OWNER)}


# what an op reads

HELD = where([("dp", "0")], CURRENT, UNHELD)


def read_by(machine: Machine, step: Step, path: str, iteration: Iteration = ACTIVE) -> list[Read]:
    machine.reads.clear()
    operate(machine, event_of(step, path), iteration, Known(step))
    return machine.reads


def test_an_op_reads_its_own_share_of_a_parameter_forward_and_where_its_backward_needs_it() -> None:
    """Who holds elements of another's share too has no share that an op could read."""
    foreign = where([("dp", "0")], GARBAGE, CURRENT)
    assert versions.each(HELD, lambda leaf: CURRENT if leaf == UNHELD else GARBAGE) == foreign
    share = where([("tp", OWNER)], HELD, foreign)
    for path in ("forward.layer.mlp.up.compute", "backward.layer.mlp.up.grad.compute"):
        assert read_by(machine_of(MLP), MLP, path) == [Read(path, "weight", "middle", share, CURRENT)]
    bias = machine_of(MLP, "layer.mlp.up.biased/1", "layer.mlp.up.bias")
    path = "forward.layer.mlp.up.biased.compute"
    assert read_by(bias, MLP, path) == [Read(path, "weight", "middle", share, CURRENT)]
    assert read_by(bias, MLP, "backward.layer.mlp.up.biased.grad.compute") == []
    assert read_by(machine_of(MLP), MLP, "forward.layer.mlp.down.compute") == [], "another parameter"


def test_an_op_reads_a_whole_parameter_as_it_is_and_a_layer_where_it_runs() -> None:
    bias = "layer.mlp.down.bias"
    path = "forward.layer.mlp.down.biased.compute"
    assert read_by(machine_of(MLP, "layer.mlp.down.biased/1", bias), MLP, path) == [
        Read(path, "weight", "middle", HELD, CURRENT)]
    path = "forward.layer.mlp.up.compute"
    assert read_by(machine_of(TIED), TIED, path) == [
        Read(path, "weight", "middle", where([("pp", OWNER)], HELD, CURRENT), CURRENT)]
    path = "forward.head.logits.compute"
    assert read_by(machine_of(TIED, "head.logits/1", "embedding.weight"), TIED, path) == [
        Read(path, "weight", "middle", where([("pp_ends", stage("last"))], HELD, CURRENT), CURRENT)]


def test_an_op_that_draws_reads_the_random_stream_forward() -> None:
    machine = machine_of(GPT)
    path = "forward.layer.attn.dropped.compute"
    rng = where([("dp", "0")], CURRENT, NEXT)
    assert read_by(machine, GPT, path) == [Read(path, "rng", "middle", rng, CURRENT)]
    assert read_by(machine, GPT, "backward.layer.attn.dropped.grad.compute") == []
    assert read_by(machine, GPT, "forward.layer.mlp.gelu.compute") == []


# the seed

TOKENS = Monomial.of(count_name({"dp": DEVICE, "microbatch": UNIT}))


def seed_of(event: Event, loss: Mapping[str, paths.Pairs], iteration: Iteration = ACTIVE) -> Monomial | None:
    machine = machine_of(MLP)
    machine.flows = Known(MLP, loss=loss)
    machine.seed = ONE
    operate(machine, event, iteration, machine.flows)
    assert machine.started is None and machine.reads == []
    return machine.seed


def test_the_seed_is_one_over_the_divisor_of_a_loss_that_was_summed() -> None:
    loss = event_of(MLP, "forward.loss.compute")
    summed = {loss.path: frozenset({("dp", "at:batch")})}
    assert seed_of(loss, summed) == ONE / TOKENS
    assert seed_of(loss, {}) is None, "what the loss sums is not there"
    assert seed_of(loss, summed, replace(ACTIVE, position="first")) is None, "not at this position"
    assert seed_of(replace(loss, where=(Clause("dp", 0),)), summed) is None, "on some ranks only"
    assert seed_of(replace(loss, divisor=Monomial.of("count")), summed) is None, "nobody counted"


def test_the_backward_starts_with_the_seed() -> None:
    machine = machine_of(MLP)
    machine.seed = ONE / TOKENS
    operate(machine, event_of(MLP, "forward.layer.mlp.up.compute"), ACTIVE, Known(MLP))
    operate(machine, event_of(MLP, "backward.layer.mlp.up.grad.compute"), ACTIVE, Known(MLP))
    assert machine.started is None
    operate(machine, event_of(MLP, "backward.loss.sum.grad.compute"), ACTIVE, Known(MLP))
    assert machine.started == ONE / TOKENS and machine.seed == ONE / TOKENS


# what it adds

BACKWARD = "backward.layer.mlp.up.grad.compute"
CELL = count_name({"dp": DEVICE, "microbatch": UNIT})


def contribution(share: int = 1) -> Value:
    """A share of what arrives, on the owner of the token, in a group split along tp."""
    terms = (Term(Monomial.of(SEED) / Monomial.of(*["dp"] * share), FrozenMap({"dp": "path/batch"})),)
    return Value(terms, frozenset({("tp", OWNER)}))


def counted(share: int = 1) -> tuple[Term, ...]:
    """The same with one over the tokens of the unit's cell for what arrives."""
    coefficient = ONE / Monomial.of(count_name({"dp": UNIT, "microbatch": UNIT})) / Monomial.of(*["dp"] * share)
    return (Term(coefficient, FrozenMap({"dp": "path/batch"})),)


def received(held: Sum, iteration: Iteration = ACTIVE, started: bool = True, use: str = USE, part: int = 0) -> Value:
    machine = machine_of(MLP, part=part)
    if started:
        machine.started = ONE / TOKENS
    machine.values["grad", "device"] = Value((Term(ONE),), garbage=True)
    operate(machine, event_of(MLP, BACKWARD), iteration, Known(MLP, GradientPart(BACKWARD, WEIGHT, use, held)))
    assert machine.begun == {WEIGHT, use}
    assert machine.values["grad", "device"].mask == paths.mask_of(held or (Value(garbage=True),))
    return machine.value("grad")


def test_the_first_contribution_of_a_microbatch_is_the_gradient() -> None:
    assert received((contribution(),)) == replace(contribution(), terms=counted())


def test_the_site_says_which_class_of_contributions_is_followed() -> None:
    held = (contribution(), contribution(2))
    assert received(held, part=0).terms == counted()
    assert received(held, part=1).terms == counted(2)
    assert received((contribution(),), part=1).terms == counted(), "an event that counts all alike"


def test_what_is_not_the_units_counts_nothing() -> None:
    for value in (received((contribution(),), PASSIVE), received((contribution(),), use="layer.mlp.up/0")):
        assert value == replace(contribution(), terms=())


def test_a_contribution_to_a_backward_that_never_started_is_garbage() -> None:
    never = received((contribution(),), started=False)
    assert never == replace(contribution(), terms=(), garbage=True)
    assert received((contribution(),), PASSIVE, started=False) == replace(contribution(), terms=())
    spoilt = replace(contribution(), garbage=True)
    assert received((spoilt,), PASSIVE, started=False) == replace(spoilt, terms=())
    assert received((spoilt,)).garbage and received(()).garbage


def test_later_contributions_are_added() -> None:
    other = "layer.mlp.up/0"
    machine = machine_of(MLP)
    machine.started = ONE / TOKENS
    flows = Known(MLP, GradientPart(BACKWARD, WEIGHT, USE, (contribution(),)),
                  GradientPart(BACKWARD, WEIGHT, other, (contribution(2),)))
    machine.values["grad", "device"] = Value((Term(ONE),), garbage=True)
    operate(machine, event_of(MLP, BACKWARD), ACTIVE, flows)
    assert machine.value("grad") == replace(contribution(), terms=counted())
    assert machine.begun == {WEIGHT, USE, other}
    operate(machine, event_of(MLP, BACKWARD), ACTIVE, flows)
    twice = tuple(t.times(Monomial(2 * ONE.coefficient)) for t in counted())
    assert machine.value("grad") == replace(contribution(), terms=twice)


def test_only_the_backward_adds_and_only_to_its_own_parameter() -> None:
    machine = machine_of(MLP)
    machine.started = ONE / TOKENS
    forward = "forward.layer.mlp.up.compute"
    flows = Known(MLP, GradientPart(forward, WEIGHT, USE, (contribution(),)),
                  GradientPart(BACKWARD, "layer.mlp.up.bias", USE, ()))
    operate(machine, event_of(MLP, forward), ACTIVE, flows)
    operate(machine, event_of(MLP, BACKWARD), ACTIVE, flows)
    operate(machine, event_of(MLP, BACKWARD), Iteration("first", True), Known(MLP, GradientPart(
        BACKWARD, WEIGHT, USE, (contribution(),))))
    assert machine.values == {} and machine.begun == set()


def test_one_use_that_adds_several_classes_twice_is_not_covered() -> None:
    machine = machine_of(MLP)
    machine.started = ONE / TOKENS
    flows = Known(MLP, GradientPart(BACKWARD, WEIGHT, USE, (contribution(), contribution(2))))
    operate(machine, event_of(MLP, BACKWARD), ACTIVE, flows)
    says = f"{BACKWARD}: no transfer rule for one use that contributes twice, counted differently"
    with pytest.raises(NoRule) as found:
        operate(machine, event_of(MLP, BACKWARD), ACTIVE, flows)
    assert str(found.value) == says and found.value.event == BACKWARD
