"""Which events no transfer rule covers, and in what words; what a redistribution makes of a tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_mutation import step_of

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.build import graph
from placealg.prover.calculus import transfer
from placealg.prover.calculus.contribution import Term, Value
from placealg.prover.calculus.places import NoRule
from placealg.prover.ops import paths, redistributions
from placealg.prover.ops.tensors import Tensors
from placealg.step.event import Clause, Event
from placealg.step.pipeline import Pipeline

DP, FFN, PP = step_of("zero2*offload_optimizer", "abstract"), step_of("ffn, sharded", "mlp"), step_of("zero1*pp", "mlp")
LAST = "layer.mlp.down.biased"
HALF, PER_RANK = Monomial.of("L"), Monomial.of("tp")
STATE: dict[str, Any] = {"group": "layer.weight", "value": "weight"}


@pytest.mark.parametrize("step", [DP, FFN, PP])
def test_every_event_of_a_derived_program_is_covered(step: Any) -> None:
    graph, pipeline = step.reference.graph, step.reference.pipeline
    for event in step.events:
        if not event.on_tensor:
            assert transfer.uncovered(event) == ""
            transfer.check(event)
        if not step.reference.whole:
            assert redistributions.uncovered(event, graph, pipeline) == ""


@pytest.mark.parametrize(("verb", "change", "says"), [
    ("assign", {"source": "R"}, ""),
    ("assign", {**STATE, "source": "master"}, ""),
    ("assign", {**STATE, "value": "grad_sum", "source": "grad"}, ""),
    ("offload", {**STATE, "value": "grad_sum", "source": "grad", "tier": "device->host"}, ""),
    ("offload", {**STATE, "value": "grad", "source": "grad_sum", "tier": "device->host"}, ""),
    ("fetch", {**STATE, "source": "moments"}, ""),
    ("publish", {**STATE, "source": "master"}, ""),
    ("assign", {**STATE, "source": "grad"}, "assign of weight from grad"),
    ("assign", {**STATE, "value": "grad", "source": "master"}, "assign of grad from master"),
    ("assign", {**STATE, "source": "elsewhere"}, "assign of weight from elsewhere"),
    ("publish", {**STATE, "source": "moments"}, "publish of weight from moments"),
    ("offload", {"tier": "device->host"}, ""),
    ("assign", {"tier": "device->host"}, ""),
    ("fetch", {"tier": "host->device"}, ""),
    ("reduce", {"tier": "device->host"}, "reduce across tiers"),
    ("reduce", {"tier": "host"}, ""),
    ("update", {"tier": "host", "group": ""}, "update of master on tier host"),
    ("publish", {"tier": "host"}, "publish of weight on tier host"),
    ("gather", {**STATE, "tier": "host"}, "gather of weight on tier host"),
    ("broadcast", {**STATE, "tier": "host"}, "broadcast of weight on tier host"),
    ("compute", {**STATE, "tier": "host", "phase": "forward"}, "compute of weight on tier host"),
    ("compute", {**STATE, "value": "skip", "tier": "host", "phase": "update"}, ""),
    ("norm", {"divisor": HALF}, "norm of norm with a divisor"),
    ("publish", {"divisor": HALF}, "publish of weight with a divisor"),
    ("reduce", {"divisor": HALF}, ""),
    ("scale", {"divisor": HALF}, ""),
    ("compute", {"divisor": HALF, "phase": "forward"}, "compute of activation with a divisor"),
    ("compute", {"divisor": HALF, "phase": "forward", "value": "loss"}, ""),
    ("all_reduce", {"divisor": HALF}, "an all_reduce with a divisor or to a shard"),
    ("all_reduce", {"to": "S"}, "an all_reduce with a divisor or to a shard"),
    ("all_reduce", {"to": "R"}, "an all_reduce with a divisor or to a shard"),
    ("all_reduce", {"to": "I"}, ""),
    ("all_reduce", {"to": ""}, ""),
    ("compute", {"phase": "update"}, "a computation in phase update"),
    ("compute", {"phase": "backward"}, ""),
    ("compute", {"phase": "reduce", "value": "count"}, ""),
    ("compute", {"phase": "update", "value": "skip"}, ""),
    ("compute", {"phase": "backward", "value": "skip"}, "a flag inside the loop over microbatches"),
    ("all_reduce", {"phase": "forward", "value": "skip"}, "a flag inside the loop over microbatches"),
    ("store", {"phase": "init"}, "a checkpoint stored in phase init"),
    ("store", {"phase": "resume"}, "a checkpoint stored in phase resume"),
    ("store", {"phase": "publish"}, "a checkpoint stored in phase publish"),
    ("store", {"phase": "save"}, ""),
    ("load", {"phase": "resume"}, ""),
    ("update", {"phase": "init"}, "an update in phase init"),
    ("update", {"phase": "resume"}, "an update in phase resume"),
    ("update", {"phase": "save"}, "an update in phase save"),
    ("update", {"phase": "resume", "group": ""}, ""),
    ("update", {"phase": "forward"}, ""),
    ("update", {"phase": "backward"}, ""),
    ("update", {"phase": "backward", "group": ""}, ""),
    ("update", {"phase": "update"}, ""),
    ("update", {"divisor": HALF}, ""),
])
def test_what_no_rule_of_a_state_or_gradient_covers(verb: str, change: dict[str, Any], says: str) -> None:
    first = next((e for e in DP.events if e.verb == verb and (e.group or verb in ("compute", "all_reduce"))),
                 next(e for e in DP.events if e.group))
    event = replace(first, **{"verb": verb, "source": "", "tier": "device", **change})
    assert transfer.uncovered(event) == says
    if says:
        with pytest.raises(NoRule) as found:
            transfer.check(event)
        assert str(found.value) == f"{event.path}: no transfer rule for {says}" and found.value.event == event.path
    else:
        transfer.check(event)


def test_a_verb_without_a_rule_is_not_covered() -> None:
    event = next(e for e in FFN.events if e.verb == "reduce_scatter")
    with pytest.raises(NoRule, match="no transfer rule for reduce_scatter"):
        transfer.check(event)


MADE = "layer.mlp.down"


@pytest.mark.parametrize(("verb", "change", "says"), [
    ("all_gather", {}, ""),
    ("all_gather", {"where": (Clause("tp", 0),)}, ""),
    ("send", {"value": FFN.reference.graph.loops[0].last, "where": (Clause("tp", 0),)},
     f"send of {FFN.reference.graph.loops[0].last} on some ranks only"),
    ("all_gather", {"tier": "host"}, "all_gather of a tensor on tier host in layout own"),
    ("all_gather", {"layout": "zigzag"}, "all_gather of a tensor on tier device in layout zigzag"),
    ("slice", {"source": "R", "to": "S(seq)", "layout": "shuffled(tp)"}, ""),
    ("slice", {"source": "R", "to": "S(seq)", "layout": "shuffled(tp)", "tier": "host"},
     "slice of a tensor on tier host in layout shuffled(tp)"),
    ("all_gather", {"divisor": PER_RANK}, "all_gather of a tensor with a divisor"),
    ("all_gather", {"divisor": PER_RANK, "op": "premultiplied"}, "all_gather of a tensor with a divisor"),
    ("all_reduce", {"divisor": PER_RANK}, "all_reduce of a tensor with a divisor"),
    ("all_reduce", {"divisor": PER_RANK, "op": "premultiplied"}, ""),
    ("reduce_scatter", {"divisor": PER_RANK, "op": "premultiplied", "to": "S(seq)"}, ""),
    ("reduce_scatter", {"divisor": HALF, "op": "premultiplied", "to": "S(seq)"},
     "a tensor divided by more than sizes of its axes"),
    ("scale", {"divisor": PER_RANK}, ""),
    ("scale", {"divisor": HALF}, "a tensor divided by more than sizes of its axes"),
    ("scale", {"divisor": HALF * PER_RANK}, "a tensor divided by more than sizes of its axes"),
    ("compute", {"op": "sum", "reads": ()}, ""),
    ("compute", {"op": "", "reads": ()}, ""),
    ("compute", {"op": "mean", "reads": ()}, "a computation with operator mean"),
    ("compute", {"reads": ("a",)}, f"a computation of {MADE} from 1 operands"),
    ("compute", {"reads": ("a", "b")}, ""),
    ("compute", {"reads": ("a", "b", "c")}, f"a computation of {MADE} from 3 operands"),
    ("compute", {"value": "layer.in", "reads": ()}, "a computation of layer.in from 0 operands"),
    ("all_gather", {"phase": "reduce"}, "all_gather of a tensor in phase reduce"),
    ("all_gather", {"phase": "backward"}, ""),
    ("all_gather", {"source": "P"}, "all_gather from P"),
    ("all_gather", {"source": ""}, "all_gather from an unnamed place"),
    ("pad", {"source": "R"}, "pad from R"),
    ("pad", {"source": "S(seq)"}, ""),
    ("all_to_all", {"source": "R", "to": "S(seq)"}, "all_to_all from R"),
    ("all_to_all", {"source": "S(seq)", "to": "R"}, "all_to_all to R"),
    ("all_to_all", {"source": "S(seq)", "to": "S(heads)"}, ""),
    ("shift", {"source": "R", "to": "S(seq)"}, "shift from R"),
    ("shift", {"source": "S(seq)", "to": "R"}, ""),
    ("shift", {"source": "P", "to": "S(seq)", "op": "sum"}, ""),
    ("shift", {"source": "P", "to": "R", "op": "sum"}, "shift to R"),
    ("shift", {"source": "P", "to": "S(seq)", "op": "max"}, "shift with operator max"),
    ("shift", {"source": "S(seq)", "to": "R", "op": "max"}, ""),
    ("slice", {"source": "R", "to": "R"}, "slice to R"),
    ("slice", {"source": "R", "to": ""}, "slice to an unnamed place"),
    ("reduce_scatter", {"to": "R"}, "reduce_scatter to R"),
    ("reduce_scatter", {"to": "S(seq)", "op": "max"}, "reduce_scatter with operator max"),
    ("reduce_scatter", {"to": "S(seq)", "op": ""}, ""),
    ("reduce_scatter", {"to": "S(seq)", "op": "mean"}, ""),
    ("all_reduce", {"op": "max"}, "all_reduce with operator max"),
    ("all_reduce", {"op": "sum"}, ""),
    ("all_reduce", {"op": "mean"}, ""),
    ("all_gather", {"op": "max"}, ""),
])
def test_what_no_rule_of_a_tensor_covers(verb: str, change: dict[str, Any], says: str) -> None:
    graph = FFN.reference.graph
    plain = next(e for e in FFN.events if e.verb == "all_gather" and e.on_tensor and e.phase == "forward")
    event = replace(plain, **{"verb": verb, "value": MADE, "unit": "layer", "axes": ("tp",), "source": "S(seq)",
                              "to": "R", "op": "", **change})
    assert event.on_tensor and redistributions.uncovered(event, graph) == says


@pytest.mark.parametrize(("verb", "value", "says"), [
    ("send", "layer.out", ""), ("recv", "layer.in", ""), ("send", "layer.out.grad", "which no instance passes on"),
    ("recv", "layer.in.grad", "which no instance passes on"), ("send", "layer.in.grad", ""),
    ("recv", "layer.out.grad", ""),
    ("send", "layer.in", "which no instance passes on"), ("recv", "layer.out", "which no instance passes on"),
    ("send", "layer.mlp.up", "which no instance passes on"),
])
def test_messages_carry_what_instances_hand_on(verb: str, value: str, says: str) -> None:
    graph = PP.reference.graph
    loop, = graph.loops
    value = value.replace("layer.out", loop.last).replace("layer.in", loop.slot)
    message = next(e for e in PP.events if e.verb == verb)
    found = redistributions.uncovered(replace(message, value=value), graph, PP.reference.pipeline)
    assert found == (f"{verb} of {value}, {says}" if says else "")


def test_stages_do_not_meet_inside_the_loop() -> None:
    graph, pipeline = PP.reference.graph, PP.reference.pipeline
    assert isinstance(pipeline, Pipeline)
    reduced = next(e for e in PP.events if e.verb == "reduce" and e.phase == "reduce")
    meeting = replace(reduced, axes=(pipeline.axis,), phase="backward")
    said = f"reduce of {reduced.value} among stages of {pipeline.axis} inside the loop over microbatches"
    assert redistributions.uncovered(meeting, graph, pipeline) == said
    for harmless in (replace(meeting, phase="reduce"), replace(meeting, axes=("dp",))):
        assert redistributions.uncovered(harmless, graph, pipeline) == ""
    assert redistributions.uncovered(meeting, graph) == ""


@pytest.mark.parametrize(("value", "unit", "said"), [
    ("layer.mlp.up", "layer", False), ("layer.mlp.up", "head", True), ("head.logits", "head", False),
    ("head.logits", "layer", True), (LAST, "layer", False), (LAST, "head", False), (LAST, "loss", False),
    ("layer.in", "head", True), ("head.logits", "loss", False), ("data.input", "layer", False),
    ("data.input", "head", True), ("data.targets", "head", False), ("data.targets", "layer", True), (LAST, "", False),
    ("layer.mlp", "head", False)])
def test_tensors_are_moved_on_the_stages_of_their_ops(value: str, unit: str, said: bool) -> None:
    """What the last layer leaves stands on the stage of what follows, too; data on those of all who read them."""
    graph, pipeline = PP.reference.graph, PP.reference.pipeline
    verb = "slice" if value in graph.tensors else "free"
    event = Event("forward", verb, value, unit=unit, axes=("dp",) if verb == "slice" else (), to="S(embed)")
    found = redistributions.uncovered(event, graph, pipeline)
    assert (found == f"{verb} of {value} on the stage of {unit}") == said
    assert redistributions.uncovered(event, graph) == ""


def test_data_that_enter_layers_are_read_there() -> None:
    """Also where an op of another unit reads them: nobody moves them alone."""
    g = graph(batch="b", embed="h")
    x = g.data("data.input", "batch embed")
    layer = g.repeat("layer", "L", x)
    out = g.unary("layer.out", layer, "gelu")
    g.sum("loss.sum", g.add("head.x", out, x))
    event = Event("forward", "slice", "data.input", axes=("dp",), to="S(embed)", version="dp")
    for unit in ("layer", "head"):
        why = redistributions.uncovered(replace(event, unit=unit), g.build(), PP.reference.pipeline)
        assert why.startswith("slice of data")


PART = (Value((Term(ONE, FrozenMap({"tp": "layer.mlp.down/ffn"})),)),)
HELD = paths.exact([("tp", "at:seq")])
SHARE = ONE / Monomial.of("tp")


@pytest.mark.parametrize(("verb", "change", "before", "after"), [
    ("all_reduce", {"op": "sum"}, PART, paths.exact()),
    ("all_reduce", {"op": "mean"}, PART, paths.scaled(paths.exact(), SHARE)),
    ("all_reduce", {"op": "premultiplied", "divisor": PER_RANK}, PART, paths.scaled(paths.exact(), SHARE)),
    ("reduce_scatter", {"op": "sum", "to": "S(seq)"}, PART, HELD),
    ("reduce_scatter", {"op": "mean", "to": "S(seq)"}, PART, paths.scaled(HELD, SHARE)),
    ("shift", {"source": "P", "op": "sum", "to": "S(seq)"}, PART, HELD),
    ("shift", {"source": "S(seq)", "to": "R"}, HELD, paths.exact()),
    ("all_gather", {"source": "S(seq)", "to": "R"}, HELD, paths.exact()),
    ("all_to_all", {"source": "S(seq)", "to": "S(embed)"}, HELD, paths.exact([("tp", "at:embed")])),
    ("slice", {"to": "S(seq)"}, paths.exact(), HELD),
    ("slice", {"to": "S(seq)", "layout": "shuffled(tp)"}, paths.exact(), paths.exact([("tp", "at:seq!shuffled~tp")])),
    ("pad", {"source": "S(seq)"}, HELD, (Value((Term(ONE, FrozenMap({"tp": "at:seq"})),)),)),
    ("scale", {"divisor": PER_RANK}, HELD, paths.scaled(HELD, SHARE)),
])
def test_what_a_redistribution_makes_of_a_tensor(verb: str, change: dict[str, Any], before: paths.Sum,
                                                 after: paths.Sum) -> None:
    tensors = Tensors(FFN)
    tensors.made[MADE, ""] = before
    plain = next(e for e in FFN.events if e.verb == "all_gather" and e.on_tensor and e.phase == "forward")
    event = replace(plain, **{"verb": verb, "value": MADE, "axes": ("tp",), "version": "", "source": "", "to": "",
                              "op": "", **change})
    redistributions.MOVES[verb](tensors, event)
    assert tensors.made[MADE, ""] == after


def test_a_sum_over_a_written_out_axis_is_written_out() -> None:
    tensors = Tensors(replace(FFN, reference=replace(FFN.reference, unrolled=FrozenMap({"tp": 2}))))
    tensors.made[MADE, ""] = (Value((Term(ONE, FrozenMap({"tp": "at:seq!mine~tp"})),)),)
    event = next(e for e in FFN.events if e.verb == "reduce_scatter" and e.phase == "forward")
    redistributions.MOVES["all_reduce"](tensors, replace(event, verb="all_reduce", value=MADE, version="", op="sum"))
    (value,) = tensors.made[MADE, ""]
    assert len(value.terms) == 2 and all(t.coefficient == ONE and t.given for t in value.terms)
