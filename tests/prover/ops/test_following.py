"""One microbatch followed event by event: what repeats from instance to instance, and what cannot be followed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from test_flow import step_of

from placealg.arith import Monomial
from placealg.check.prove import prove
from placealg.models.build import graph
from placealg.models.model import Model
from placealg.models.transformer import mla, mlp
from placealg.prover.calculus.contribution import Value
from placealg.prover.calculus.positions import at
from placealg.prover.ops.findings import Demand, FailureKind, Flow
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.paths import exact
from placealg.prover.ops.stages import AMISS
from placealg.prover.verdict import UNDECIDED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.event import Event
from placealg.step.program import Step
from placealg.strategy.spec import strategy_on

MLP, STAGED, GPT = step_of("mlp", "mlp"), step_of("zero1*pp", "mlp"), step_of("zero1*tp", "gpt")
OUT = "layer.mlp.down.biased"
SEND, RECV = f"forward.{OUT}.send[pp]", "forward.layer.in.recv[pp]"
ENTERS = "passes the input of one instance of layer to the next"
HERE = ("dp", at("batch"))


def with_events(step: Step, change: Callable[[Event], Iterable[Event]]) -> Step:
    return Step(step.reference, tuple(new for e in step.events for new in change(e)))


def instead(step: Step, path: str, *events: Event) -> Step:
    """The step with other events in place of one."""
    assert any(e.path == path for e in step.events), path
    return with_events(step, lambda e: events if e.path == path else [e])


def changed(step: Step, path: str, **fields: Any) -> Step:
    return instead(step, path, replace(step.event(path), **fields))


def behind(step: Step, path: str, *events: Event) -> Step:
    return instead(step, path, step.event(path), *events)


def moved(step: Step, path: str, to: str, **fields: Any) -> Step:
    """The step with an event behind another one."""
    return behind(instead(step, path), to, replace(step.event(path), **fields))


def followed(step: Step, position: str = "only") -> Flow:
    return Flows(step).at(position)


def told(demands: Iterable[Demand]) -> list[tuple[str, str]]:
    return [(d.event, d.says) for d in demands]


def parts(flow: Flow) -> dict[str, tuple[Value, ...]]:
    """Parameter -> what is added to its gradient, of a model that uses each once."""
    return {name: part.held for uses in flow.parts.values() for (name, _), part in uses.items()}


# positions

GELU = "forward.layer.mlp.gelu.compute"
FIRST = "forward.data.input.slice[dp]"
"""The first event of an instance."""


def test_positions_are_followed_apart_where_events_of_the_ops_are_restricted() -> None:
    flows = Flows(changed(MLP, GELU, at=("first",)))
    assert flows.at("first").faults == flows.at("only").faults == []
    for position in ("middle", "last"):
        assert told(flows.at(position).faults)[0] == (
            "forward.layer.mlp.down.compute", "reads layer.mlp.gelu, which is not there")
    assert flows.at("first") is flows.at("only") and flows.at("middle") is flows.at("last") is not flows.at("first")
    lossless = Flows(changed(MLP, "forward.loss.compute", at=("last",)))
    assert lossless.at("middle").loss == {} and lossless.at("last").loss != {}
    assert lossless.at("last") is lossless.at("only")


def test_positions_are_followed_together_where_only_states_are_restricted() -> None:
    for step in (MLP, changed(MLP, "backward.layer.weight.grad_sum.accumulate", at=("first",))):
        flows = Flows(step)
        assert flows.at("first") is flows.at("middle") is flows.at("last") is flows.at("only")


def test_what_an_instance_hands_on_may_be_said_position_by_position() -> None:
    slot = MLP.event("backward.layer.in.grad.assign")
    step = instead(MLP, slot.path, replace(slot, at=("first",)), replace(slot, at=("middle", "last")))
    for position in ("first", "middle", "last"):
        flow = followed(step, position)
        assert (flow.faults, flow.open) == ([], [])
    missing = changed(MLP, slot.path, at=("first",))
    assert followed(missing, "first").open == []
    assert told(followed(missing, "last").open)[0][1] == "passes nothing from one instance of layer to the next"


# instances

def test_equal_instances_are_followed_once_and_along_a_pipeline_twice() -> None:
    """Along a pipeline the second instance is the first one that is handed something by another.

    So it is, backward, where what follows the last instance reads a copy of what leaves that.
    """
    copied = Counter(told(followed(MLP).demands))
    assert {n for (event, _), n in copied.items() if event.startswith("forward.")} == {1}
    assert {event for (event, _), n in copied.items() if n == 2} == {
        f"backward.layer.mlp.{op}.grad.compute" for op in ("up", "gelu", "down")}
    once, staged = (Counter(told(followed(s).demands)) for s in (step_of("zero1", "mlp"), STAGED))
    assert staged == {(event, says): n * (2 if ".layer." in event else 1) for (event, says), n in once.items()}


def test_a_step_without_redistributions_is_followed_whole() -> None:
    flow = followed(step_of("zero1", "gpt"))
    assert (flow.faults, flow.open) == ([], [])
    assert all(not v.garbage and v.terms for uses in flow.parts.values() for p in uses.values() for v in p.held)


def test_a_fault_in_an_instance_ends_the_following_and_leaves_the_others_open() -> None:
    """What is no fault after all, but exact by the solver's word, must not hide what is wrong in the next instance."""
    flow = followed(instead(MLP, "forward.layer.mlp.up.biased.compute"))
    assert told(flow.faults)[0] == (GELU, "reads layer.mlp.up.biased, which is not there")
    assert told(flow.open) == [(first, "is not followed into other instances of layer: something is not exact")
                               for first in (FIRST, "backward.layer.mlp.down.biased.grad.compute")]


UNEVEN, UNEVEN_STAGES = (derive(strategy_on("uneven", dict.fromkeys(dims), dims=dims), mlp()) for dims in (
    {"dp": ["batch"], "cp": ["batch"]}, {"dp": ["batch"], "cp": ["batch"], "pp": ["layer"]}))


def uneven(*backward: Event, of: Step = UNEVEN) -> Step:
    """The first instance runs on the same rows all along cp, what leaves it is split, and so is the rest."""
    cut = Event("forward", "slice", OUT, unit="layer", axes=("cp",), source="I", to="S(batch)")
    step = behind(of, f"forward.{OUT}.compute", cut)
    step = with_events(step, lambda e: [replace(e, axes=("dp",)) if e.value == "data.input" else e])
    return instead(step, f"backward.{OUT}.grad.compute", *backward, step.event(f"backward.{OUT}.grad.compute"))


def late(step: Step, axis: str) -> Step:
    """The backward of an instance reads a slice of what entered before it is made: there is none in any instance."""
    up = step.event("backward.layer.mlp.up.grad.compute")
    cut = Event("backward", "slice", "layer.in", unit="layer", axes=(axis,), source="I", to="S(embed)", version="x")
    return instead(step, up.path, replace(up, reads=("layer.in@x", up.reads[1])), cut)


def test_an_instance_finds_nothing_that_another_one_made_in_the_backward() -> None:
    for step, axis in ((STAGED, "dp"), (uneven(), "cp")):
        flow = followed(late(step, axis))
        assert (flow.faults, flow.open) == ([], []) and parts(flow) == parts(followed(step))


GATHER = Event("backward", "all_gather", f"{OUT}.grad", unit="layer", axes=("cp",), source="S(batch)", to="I")


def test_the_backward_runs_through_first_instances_that_hold_something_else() -> None:
    """Where each rank has the gradient of its own rows, the rest counts nowhere: the first instance is like others."""
    step = uneven()
    flow = followed(step)
    assert (flow.faults, flow.open) == ([], [])
    assert parts(flow) == parts(followed(UNEVEN))
    backward = [d for d in flow.demands if d.event == "backward.layer.mlp.gelu.grad.compute"]
    assert [d.mask for d in backward] == [{HERE, ("cp", at("batch"))}, {HERE}], "the last instance, then the first"
    forward = [d for d in flow.demands if d.event == "forward.layer.mlp.gelu.compute"]
    assert [d.mask for d in forward] == [{HERE}, {HERE, ("cp", at("batch"))}]


FEW = "is not followed where layer has few instances, the first unlike others"


def test_along_a_pipeline_first_instances_that_hold_something_else_are_run_through_as_well() -> None:
    """It stays open: two instances are followed at least, and a single one is handed something else."""
    flow = followed(uneven(of=UNEVEN_STAGES))
    assert flow.faults == [] and parts(flow) == parts(followed(UNEVEN_STAGES))
    assert told(flow.open) == [(f"backward.{OUT}.grad.recv[pp]", FEW)]
    backward = [d.mask for d in flow.demands if d.event == "backward.layer.mlp.gelu.grad.compute"]
    stage, split = ("pp", "stage:layer"), ("cp", at("batch"))
    assert backward == [{HERE, split, stage}, {HERE, split, stage}, {HERE, stage}]
    assert all(d.exact for d in flow.demands)


@pytest.mark.parametrize("of", [UNEVEN, UNEVEN_STAGES], ids=["flat", "staged"])
def test_a_gradient_of_all_rows_counts_too_often_in_the_first_instance_alone(of: Step) -> None:
    flow = followed(uneven(GATHER, of=of))
    assert flow.faults == [] and (not flow.open or of is UNEVEN_STAGES)
    once = parts(followed(of))
    for name in ("layer.mlp.up.weight", "layer.mlp.up.bias", "layer.mlp.down.weight"):
        (value,) = once[name]
        (term,) = value.terms
        often = replace(value, terms=(replace(term, at=type(term.at)({"dp": "path/batch"})),))
        assert parts(flow)[name] == (value, often)
    assert parts(flow)["head.weight"] == once["head.weight"]


def test_what_grows_from_instance_to_instance_cannot_be_followed() -> None:
    total = MLP.event("backward.layer.in.grad.all_reduce[tp]")
    flow = followed(behind(MLP, total.path, replace(total, copy=2)))
    assert told(flow.open) == [("backward.layer.mlp.down.biased.grad.compute",
                                f"{ENTERS} in a way that does not repeat")]
    assert flow.faults == []
    flow = followed(instead(MLP, "forward.layer.mlp.down.biased.compute"))
    assert told(flow.open)[0] == (FIRST, f"{ENTERS} in a way that does not repeat")
    assert all("acts on" not in d.says for d in flow.open)


@pytest.mark.parametrize("step", [MLP, STAGED], ids=["flat", "staged"])
def test_instances_that_hand_nothing_on(step: Step) -> None:
    dropped = {f"forward.layer.{n}" for n in ("in.assign", "mlp.gelu.compute", "mlp.down.compute",
                                              "mlp.down.all_reduce[tp]", "mlp.down.biased.compute")} | {SEND}
    step = with_events(step, lambda e: [] if e.path in dropped else [e])
    forward = [d for d in told(followed(step).open) if d[0].startswith("forward")]
    assert forward[0] == (
        "forward.layer.mlp.up.biased.compute", "passes nothing from one instance of layer to the next")
    repeats = [(FIRST, f"{ENTERS} in a way that does not repeat")] if step.reference.pipeline.axis else []
    assert forward[1:] == repeats, "along a pipeline one instance is no evidence"


# what is no whole instance

def test_an_instance_in_several_parts_cannot_be_followed() -> None:
    targets, assign = MLP.event("forward.data.targets.slice[dp]"), MLP.event("forward.layer.in.assign")
    flow = followed(moved(MLP, targets.path, GELU))
    forward = [d for d in told(flow.open) if d[0].startswith("forward")]
    assert forward == [(FIRST, f"{ENTERS} in a way that does not repeat"),
                       ("forward.layer.mlp.down.compute", "runs instances of layer in several parts")]
    assert "forward.layer.mlp.down.compute" in flow.masks and flow.loss, "the rest is run all the same"
    found = told(followed(moved(MLP, targets.path, assign.path)).open)
    assert [d for d in found if d[0].startswith("forward")] == [
        (FIRST, f"{ENTERS} in a way that does not repeat"),
        ("forward.layer.mlp.up.compute", "runs instances of layer in several parts")], "a part that only hands on"


def test_the_backward_in_several_parts_cannot_be_followed() -> None:
    step = moved(MLP, "backward.head.weight.grad_sum.accumulate", "backward.layer.mlp.down.grad.compute")
    found = told(followed(step).open)
    assert [d for d in found if "several parts" in d[1]] == [
        ("backward.layer.mlp.gelu.grad.compute", "runs instances of layer in several parts")]


def test_what_enters_gets_no_gradient_of_a_part_of_an_instance() -> None:
    flow = followed(moved(GPT, "backward.head.weight.grad_sum.accumulate", "backward.layer.mlp.gelu.grad.compute"))
    assert not any(v.terms for v in parts(flow)["embedding.position.weight"]) and flow.open
    assert not any(v.garbage for v in parts(flow)["head.norm.weight"])


def test_what_stands_alone_and_computes_nothing_is_no_part_of_an_instance() -> None:
    step = moved(MLP, "backward.head.weight.grad_sum.accumulate", "backward.layer.in.grad.assign")
    assert followed(step) == followed(MLP)
    free = Event("forward", "free", "layer.mlp.up", unit="layer")
    assert followed(behind(MLP, "forward.head.logits.compute", free)).open == []


@pytest.mark.parametrize("event", [
    Event("forward", "recv", "layer.in", unit="layer", axes=("pp",), copy=2),
    Event("forward", "send", OUT, unit="layer", axes=("pp",), copy=2),
    Event("backward", "scale", f"{OUT}.grad", unit="layer", axes=("dp",), divisor=Monomial.of("dp"))])
def test_what_runs_through_instances_apart_from_their_ops_hands_nothing_on(event: Event) -> None:
    head = {"forward": "forward.head.logits.compute", "backward": "backward.head.loss.grad.compute"}[event.phase]
    assert (event.path, APART) in told(followed(behind(STAGED, head, event)).open)
    assert (event.path, APART) not in told(followed(STAGED).open)


APART = "runs through layer apart from the ops of its instances"


def test_what_takes_no_part_at_a_position_runs_through_nothing() -> None:
    cut = Event("backward", "scale", f"{OUT}.grad", unit="layer", axes=("dp",), at=("first",),
                divisor=Monomial.of("dp"))
    step = behind(MLP, "backward.head.loss.grad.compute", cut)
    for position in ("first", "only"):
        assert (cut.path, APART) in told(followed(step, position).open)
    for position in ("middle", "last"):
        assert (cut.path, APART) not in told(followed(step, position).open)


def test_nor_does_it_run_through_first_instances_that_are_unlike() -> None:
    cut = Event("forward", "slice", "layer.mlp.up", unit="layer", axes=("cp",), source="I", to="S(ffn)", version="cp")
    head = "forward.head.logits.compute"
    assert told(followed(behind(uneven(), head, cut)).open) == [(cut.path, APART)]
    assert followed(behind(MLP, head, replace(cut, axes=("tp",)))).open == [], "all are alike"


def test_first_instances_leave_what_the_last_one_leaves() -> None:
    """In every version that the head may read; a single instance is the first and the last."""
    copy = Event("forward", "scale", OUT, unit="layer", axes=("cp",), version="cp", divisor=Monomial.of("cp"))
    made = uneven().event(f"forward.{OUT}.compute")
    assert any(says == FEW for _, says in told(followed(behind(uneven(), made.path, copy)).open))
    assert followed(uneven()).open == []
    wide = behind(whole_first(), "forward.layer.mlp.down.biased.compute", replace(copy, axes=("a1",), version="a1"))
    assert any(says == FEW for _, says in told(followed(wide).open))


def whole_first() -> Step:
    """The first layer has every row, the others those of their rank: a layer cuts what it hands on."""
    step = derive(strategy_on("cut", {"a1": None}, dims={"a1": ["batch"]}, optimizer={"clip": "none"}), mlp())
    step = with_events(step, lambda e: [] if e.value == "data.input" and e.verb == "slice" else [
        replace(e, reads=tuple(r.replace("data.input@a1", "data.input") for r in e.reads))])
    cut = Event("forward", "slice", OUT, unit="layer", axes=("a1",), source="I", to="S(batch)")
    return behind(step, f"forward.{OUT}.compute", cut)


def test_a_pass_in_the_wrong_order_cannot_be_followed() -> None:
    wrong = "runs instances of layer in the wrong order"
    assign = replace(MLP.event("forward.layer.in.assign"), phase="backward")
    step = behind(MLP, "backward.layer.mlp.up.grad.compute", assign)
    first = "backward.layer.mlp.down.biased.grad.compute"
    assert told(followed(step).open) == [(first, wrong)]
    early = replace(MLP.event("backward.layer.mlp.up.grad.compute"), phase="forward")
    step = behind(MLP, f"forward.{OUT}.compute", early)
    assert (FIRST, wrong) in told(followed(step).open)
    recomputed = followed(step_of("zero1*tp*recompute_full", "gpt"))
    assert recomputed.open == [], "forward ops in the backward are no wrong order"


def test_what_enters_is_handed_on_once() -> None:
    slot = MLP.event("backward.layer.in.grad.assign")
    flow = followed(behind(MLP, slot.path, replace(slot, copy=2)))
    assert told(flow.open)[0] == (f"{slot.path}#2", f"{ENTERS} a second time")
    slot = GPT.event("backward.layer.in.grad.assign")
    step = behind(instead(GPT, "backward.layer.norm2.out.grad.all_reduce[tp]"), slot.path, replace(slot, copy=2))
    found = told(followed(step).open)
    last = [e.path for e in step.events if e.phase == "backward" and step.unit_of(e) == "layer"][-1]
    assert (last, "adds to the gradient of embedding.dropped once more") in found
    assert len([d for d in found if "adds to the gradient of embedding.dropped" in d[1]]) == 1


# where an event stands

def elsewhere(value: str) -> str:
    return f"acts on {value}, of which there is one for each instance of a repeated unit"


def test_a_slot_outside_of_its_instances_cannot_be_followed() -> None:
    for path, to in (("backward.layer.in.grad.assign", "backward.layer.mlp.down.bias.grad_sum.accumulate"),
                     ("backward.layer.in.grad.assign", "backward.head.logits.grad.compute"),
                     ("forward.layer.in.assign", "forward.head.logits.compute")):
        step = moved(MLP, path, to, unit="")
        assert (path, elsewhere(step.event(path).value)) in told(followed(step).open)


def test_a_slot_alone_cannot_be_followed() -> None:
    slot = replace(MLP.event("backward.layer.in.grad.assign"), unit="")
    assert told(followed(Step(MLP.reference, (slot,))).open) == [(slot.path, elsewhere("layer.in.grad"))]


def test_redistributions_stand_where_their_tensors_are() -> None:
    """What leaves the last instance may be redistributed behind it, data anywhere; nothing else may."""
    def outside(verb: str, value: str, step: Step = MLP, path: str = "forward.head.logits.compute",
                **fields: Any) -> list[tuple[str, str]]:
        given = {"axes": ("tp",), "source": "S(embed)", "to": "S(embed)", "version": "x", **fields}
        event = Event("forward", verb, value, **given)
        found = [d for d in told(followed(behind(step, path, event)).open) if d[1].startswith("acts on")]
        assert all(says == elsewhere(value) and where == event.path for where, says in found)
        return found
    assert outside("slice", OUT) == [] and outside("slice", "data.input") == []
    assert outside("slice", "head.logits") == []
    assert len(outside("slice", "layer.mlp.up")) == 1 and len(outside("all_gather", "layer.mlp.up")) == 1
    assert outside("slice", "data.input", path=GELU, unit="layer") == []
    assert outside("slice", "layer.mlp.gelu", path=GELU, unit="layer") == []
    assert len(outside("slice", "head.logits", path=GELU, unit="layer")) == 1, "not in every instance"
    assert len(outside("all_gather", "data.input")) == 0 and len(outside(
        "all_gather", "data.input", path=GELU, unit="layer")) == 1
    last = MLP.event(f"forward.{OUT}.compute")
    found = told(followed(behind(MLP, "forward.head.logits.compute", replace(last, unit="", copy=2))).open)
    assert found == [(f"{last.path}#2", elsewhere(OUT))], "an op runs in its instance"


def test_the_last_tensor_of_one_repeated_unit_is_not_at_home_in_another() -> None:
    step = step_of("tp", "deepseek")
    event = Event("forward", "slice", "dense.layer.out", unit="layer", axes=("tp",), source="I", to="S(seq)",
                  version="x")
    found = told(followed(behind(step, "forward.layer.in.assign", event)).open)
    assert (event.path, elsewhere("dense.layer.out")) in found


# the loss

LOSS = "forward.loss.compute"


def test_the_loss_sums_what_it_reads_or_the_last_op_does() -> None:
    assert followed(MLP).loss == {LOSS: {HERE}}
    assert followed(changed(MLP, LOSS, reads=())).loss == {LOSS: {HERE}}
    cut = Event("forward", "slice", "head.loss", unit="head", axes=("tp",), source="I", to="S(embed)", version="x")
    step = behind(changed(MLP, LOSS, reads=("head.loss@x",)), "forward.head.loss.compute[tp]", cut)
    assert followed(step).loss == {LOSS: {HERE, ("tp", at("embed"))}}
    assert followed(STAGED).loss == {LOSS: {HERE, ("pp", "stage:last")}}


def test_a_loss_of_what_is_not_there_starts_no_backward() -> None:
    flow = followed(instead(MLP, "forward.head.loss.compute[tp]"))
    assert told(flow.faults)[0] == (LOSS, "reads head.loss, which is not there")
    assert flow.loss == {} and all(v.garbage for held in parts(flow).values() for v in held)
    free = Event("forward", "free", "head.loss", unit="head")
    flow = followed(behind(MLP, "forward.head.loss.compute[tp]", free))
    assert told(flow.faults) == [(LOSS, "reads head.loss, which is not there")]
    assert flow.loss == {} and all(v.garbage for held in parts(flow).values() for v in held)


def test_a_loss_is_split_once_along_an_axis() -> None:
    cut = Event("forward", "slice", "head.loss", unit="head", axes=("dp",), source="I", to="S(embed)", version="x")
    step = behind(changed(MLP, LOSS, reads=("head.loss@x",)), "forward.head.loss.compute[tp]", cut)
    twice = [d for d in followed(step).demands if "twice" in d.says]
    assert twice == [Demand(LOSS, "reads head.loss, which is split twice along one axis", (), frozenset())]


# what is handed on

def test_a_slot_that_names_no_operand_reads_what_enters_the_unit() -> None:
    """It is the tensor itself, here before each rank took its tokens; the gradient goes there as well."""
    flow = followed(changed(MLP, "forward.layer.in.assign", reads=()))
    up = next(d for d in flow.demands if d.event == GELU)
    assert HERE not in up.mask and up.held == exact({("tp", at("ffn"))})
    plain, named = (followed(s) for s in (changed(GPT, "backward.layer.in.grad.assign", reads=()), GPT))
    assert plain == named


# messages

def unreceived(event: str) -> Demand:
    return Demand(event, AMISS[FailureKind.UNRECEIVED], (), frozenset(), "schedule", FailureKind.UNRECEIVED)


def test_messages_that_nobody_sends_or_receives_are_faults_of_the_schedule() -> None:
    missing = [d for d in followed(instead(STAGED, SEND)).demands if d.obligation == "schedule"]
    assert missing[0] == Demand(RECV, AMISS[FailureKind.UNSENT], (), frozenset(), "schedule", FailureKind.UNSENT)
    left = [d for d in followed(instead(STAGED, RECV)).demands if d.kind is FailureKind.UNRECEIVED]
    assert left == [] or left[0] == unreceived(SEND)
    send = STAGED.event(SEND)
    twice = [d for d in followed(behind(STAGED, SEND, replace(send, copy=2))).demands if d.obligation == "schedule"]
    assert twice[0] == unreceived(f"{SEND}#2")
    assert all(d.obligation == "forward" for d in followed(STAGED).demands)


def test_a_message_is_what_is_handed_on_locally() -> None:
    gather = Event("forward", "all_gather", OUT, unit="layer", axes=("dp",), source="S(batch)", to="I")
    found = told(followed(behind(STAGED, SEND, gather)).open)
    assert (RECV, "receives one thing on its own stage, another from the next") in found


def test_what_enters_an_instance_is_what_it_was_handed_by_message_as_well() -> None:
    """Units without an op that needs a whole sum pass a wrong message on, as they found it."""
    g = graph(batch="b", embed="h")
    layer = g.repeat("layer", "L", g.data("data.input", "batch embed"))
    out = g.linear("layer.out", layer, "batch embed", "embed embed")
    g.sum("loss.sum", g.unary("head.x", out, "gelu"))
    dims = {"dp": ["batch"], "pp": ["layer"]}
    step = derive(strategy_on("linear", dict.fromkeys(dims), dims=dims), Model.of_graph("linear", g.build()))
    assert (followed(step).faults, followed(step).open) == ([], [])
    wrong = Event("forward", "scale", "layer.out", unit="layer", axes=("dp",), divisor=Monomial.of("dp"), version="x")
    send = step.event("forward.layer.out.send[pp]")
    flow = followed(instead(step, send.path, wrong, replace(send, version="x")))
    assert [says.partition(":")[0] for _, says in told(flow.open)] == ["is not followed into other instances of layer"]
    assert told(flow.faults)[0] == (
        "forward.head.x.compute", "reads layer.out where a sum in it is not complete, or counts too much")


def test_the_first_of_few_instances_is_not_followed_where_it_is_unlike_the_others() -> None:
    """Its backward gets what the last one gets: with one layer alone it is the first and the last."""
    dims = {"a1": ["layer.batch"]}
    step = derive(strategy_on("first whole", dict.fromkeys(dims), dims=dims, optimizer={"clip": "none"}), mla())
    reads = ("layer.residual1@a1", "layer.mlp.down")
    step = edit(step, {"drop": "forward.embedding.tokens.slice[a1]"},
                {"insert": {"path": "forward.layer.residual1.slice[a1]", "unit": "layer", "to": "S(batch)",
                            "version": "a1"}, "before": "forward.layer.out.compute"},
                {"set": "forward.layer.out.compute", "reads": reads},
                {"set": "backward.layer.out.grad.compute", "reads": reads},
                {"drop": "backward.layer.out.grad.slice[a1]"},
                {"insert": {"path": "backward.layer.residual1.grad.slice[a1]", "unit": "layer", "to": "S(batch)",
                            "version": "a1"}, "after": "backward.layer.out.grad.compute"})
    runs = [simulate(step, replace(Setting.equal(step.reference, {"a1": 2}, 1), layers=n)).equal for n in (1, 2)]
    assert runs == [False, True]
    assert any("few instances" in says for _, says in told(followed(step).open))
    assert prove(step).verdict == UNDECIDED
