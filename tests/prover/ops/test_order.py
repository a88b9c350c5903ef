"""In which order a flow can be followed: programs that are in it, and each way to leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from nets import gated, gelu_last, tanh_last
from test_flow import step_of

from placealg.models.model import Model
from placealg.prover.ops.order import _adds, _named, untimely
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.event import Event
from placealg.step.program import LOOPED, Step
from placealg.strategy.spec import strategy_on

MLP, STAGED, GPT = step_of("mlp", "mlp"), step_of("zero1*pp", "mlp"), step_of("zero1*tp", "gpt")
OUT = "layer.mlp.down.biased"
NORM = "backward.layer.norm1.out.grad"


def whole(model: Model) -> Step:
    """A step in which every rank along a1 does everything."""
    return derive(strategy_on("whole", {"a1": None}, dims={"a1": []}, optimizer={"clip": "none"}), model)


def found(step: Step, *edits: Mapping[str, Any]) -> list[tuple[str, str]]:
    changed = edit(step, *edits)
    return [(event.path, why) for event, why in untimely(changed.phase(*LOOPED), changed.reference.graph)]


def insert(path: str, unit: str, *, before: str = "", after: str = "", **fields: Any) -> Mapping[str, Any]:
    there = {"before": before} if before else {"after": after}
    return {"insert": {"path": path, "unit": unit, **fields}, **there}


@pytest.mark.parametrize(("strategy", "model"), [
    ("zero1*tp", "gpt"), ("tp_sp*recompute_selective", "gpt"), ("tp*recompute_full", "gpt"),
    ("zero3*tp_sp*pp", "llama"), ("pp_interleaved", "mlp"), ("tp_sp*pp_zb_h1", "llama"),
    ("zero3*tp_sp*pp*cp_ring*ep", "moe")])
def test_what_is_derived_is_in_order(strategy: str, model: str) -> None:
    assert found(step_of(strategy, model)) == []


def test_an_instance_makes_copies_of_data_before_it_reads_them() -> None:
    step, op, name = whole(gated()), "forward.layer.gated.compute", "forward.data.gate.slice[a1]"
    cut = {"unit": "layer", "to": "S(seq)", "version": "a1"}
    reads = {"set": op, "reads": ["layer.in", "data.gate@a1"]}
    late = [(name, "makes data.gate anew after it was read")]
    assert found(step, insert(name, before=op, **cut), reads) == []
    assert found(step, insert(name, after=op, **cut), reads) == late
    assert found(step, insert(name, after=op, **cut)) == [], "another version"
    assert found(step, insert(name, after=op, **{**cut, "version": "a1/a1"}), reads) == [], "nobody reads this copy"
    assert found(step, insert(name, after=op, **cut), {"set": op, "reads": ["layer.in", "data.gate@a1/a1"]}) == late, (
        "a copy of the copy is read, and would be made from it")
    behind = insert(name, before="forward.head.logits.compute", **{**cut, "unit": "head"})
    assert found(step, behind, reads) == [], "not in the loop"
    again = insert("backward.data.gate.slice[a1]", after="backward.layer.gated.grad.compute", **cut)
    assert found(step, again, {"set": "backward.layer.gated.grad.compute", "reads": ["layer.in", "data.gate@a1"]}) == [
        ("backward.data.gate.slice[a1]", "makes data.gate anew after it was read")]


def test_what_an_instance_frees_it_does_not_make() -> None:
    step, op = whole(gated()), "forward.layer.gated.compute"
    cut = insert("forward.data.gate.slice[a1]", "layer", to="S(seq)", version="a1", before=op)
    freed = insert("forward.data.gate.free", "layer", version="a1", after=op)
    assert found(step, cut, {"set": op, "reads": ["layer.in", "data.gate@a1"]}, freed) == []


def test_what_enters_an_instance_is_assigned_and_not_moved() -> None:
    again = insert("forward.layer.in.assign#2", "layer", after="forward.layer.in.assign")
    assert found(MLP, again) == [], "nobody has read the first one, and it is no redistribution"


def test_the_forward_comes_before_the_backward() -> None:
    both = [insert("forward.layer.in.assign#2", "layer", after=f"forward.{OUT}.compute"),
            insert(f"backward.{OUT}.grad.scale[dp]", "layer", divisor="dp", after=f"backward.{OUT}.grad.compute")]
    assert [path for path, _ in found(MLP, *both)] == ["forward.layer.in.assign#2", f"backward.{OUT}.grad.scale[dp]"]


def test_a_unit_without_a_backward_has_nothing_behind_it() -> None:
    events = tuple(e for e in MLP.events if e.phase != "backward" or e.unit != "layer")
    assert found(replace(MLP, events=events)) == []


def test_what_an_instance_makes_again_in_its_backward_is_its_own() -> None:
    again = insert("backward.layer.mlp.gelu.compute", "layer", after="backward.layer.mlp.down.grad.compute")
    assert found(MLP, again) == []
    assert found(MLP, insert("backward.layer.in.slice[dp]", "layer", to="S(embed)",
                             after="backward.layer.mlp.up.grad.compute")) == []


def test_what_enters_the_first_instance_alone_may_be_copied_behind_that() -> None:
    name = "forward.data.input.slice[dp]"
    assert MLP.event("forward.layer.in.assign").reads == ("data.input@dp",)
    assert found(MLP, {"move": name, "after": "forward.layer.in.assign"}) == []


def test_what_its_ops_make_may_change_between_their_readers() -> None:
    cut = insert("forward.layer.mlp.up.biased.slice[dp]", "layer", to="S(ffn)", after="forward.layer.mlp.gelu.compute")
    assert found(MLP, cut) == []


def test_an_instance_is_entered_once() -> None:
    twice = insert("forward.layer.in.assign#2", "layer", after=f"forward.{OUT}.compute")
    assert found(MLP, twice) == [("forward.layer.in.assign#2", "makes layer.in anew after it was read")]


def test_a_tensor_is_not_moved_before_it_is_made() -> None:
    cut = f"forward.{OUT}.slice[dp]"
    early = [(f"forward.{OUT}.compute", f"makes {OUT} after it was redistributed")]
    assert found(MLP, insert(cut, "layer", to="S(embed)", before="forward.layer.in.assign")) == early
    assert found(MLP, insert(cut, "layer", to="S(embed)", version="dp", before="forward.layer.in.assign")) == early
    assert found(MLP, insert(f"forward.{OUT}.free", "layer", before="forward.layer.in.assign")) == early
    assert found(MLP, insert(cut, "layer", to="S(embed)", after=f"forward.{OUT}.compute")) == []
    slot = insert("forward.layer.in.slice[dp]", "layer", to="S(embed)", before="forward.layer.in.assign")
    assert found(MLP, slot) == [("forward.layer.in.assign", "makes layer.in after it was redistributed")]
    outside = insert("forward.head.logits.slice[dp]", "head", to="S(vocab)", before="forward.head.logits.compute")
    assert found(MLP, outside) == [], "there is one head"


def test_each_direction_has_its_own() -> None:
    gelu = "forward.layer.mlp.gelu.compute"
    gradient = insert("forward.layer.in.grad.slice[dp]", "layer", to="S(embed)", before=gelu)
    assert found(MLP, gradient) == [("forward.layer.in.grad.slice[dp]", "acts on layer.in.grad in the forward")]
    message = insert("backward.layer.in.recv[pp]", "layer", before="backward.layer.mlp.gelu.grad.compute")
    assert found(STAGED, message) == [("backward.layer.in.recv[pp]", "passes layer.in on in the backward")]
    assert found(STAGED) == []
    late = insert("forward.head.logits.slice[dp]", "head", to="S(vocab)", after="backward.head.logits.grad.compute")
    assert found(MLP, late) == [("forward.head.logits.slice[dp]", "stands behind events of the backward")]


def test_what_the_last_instance_leaves_is_what_its_backward_finds() -> None:
    """An op whose backward reads its result reads, in the last instance alone, what was done to it behind the loop."""
    cut = insert("forward.layer.act.slice[a1]", "head", to="S(seq)", before="forward.head.logits.compute")
    alone = "changes layer.act for the last instance of layer alone, and all read it again"
    assert found(whole(tanh_last()), cut) == [("forward.layer.act.slice[a1]", alone)]
    assert found(whole(gelu_last()), cut) == [], "it reads what it worked on"
    copy = {"insert": {**cut["insert"], "version": "a1"}, "before": cut["before"]}
    assert found(whole(tanh_last()), copy) == [], "it reads no copy"
    own = insert("forward.layer.act.slice[a1]", "layer", to="S(seq)", after="forward.layer.act.compute")
    assert found(whole(tanh_last()), own) == [], "in every instance"
    back = insert("backward.layer.act.slice[a1]", "head", to="S(seq)", before="backward.head.logits.grad.compute")
    assert found(whole(tanh_last()), back) == [("backward.layer.act.slice[a1]", alone)]


def test_nobody_reads_the_last_instance_when_others_have_run_again() -> None:
    late = [{"move": "backward.head.logits.grad.compute", "after": "backward.layer.weight.grad_sum.accumulate"}]
    assert (("backward.head.logits.grad.compute", f"reads {OUT} behind the backward of layer")
            in found(MLP, *late))
    assert not any("behind the backward of" in why for _, why in found(MLP))


def test_a_gradient_is_moved_when_all_uses_have_added_and_before_it_is_read() -> None:
    total = f"{NORM}.all_reduce[tp]"
    assert GPT.event(total)
    early = found(GPT, {"move": total, "before": "backward.layer.attn.q.grad.compute"})
    assert early == [("backward.layer.attn.q.grad.compute",
                      "adds to layer.norm1.out.grad after it was redistributed or read")]
    late = found(GPT, {"move": total, "after": f"{NORM}.compute"})
    assert late == [(total, "redistributes layer.norm1.out.grad after it was read")]
    part = insert(f"{NORM}.scale[tp]", "layer", version="tp/dp", divisor="tp", after=total)
    assert found(GPT, part) == [(f"{NORM}.scale[tp]", "redistributes a part of layer.norm1.out.grad after the whole")]
    first = insert(f"{NORM}.scale[tp]", "layer", version="tp/dp", divisor="tp", before=total)
    assert found(GPT, first) == []
    use = found(GPT, {"move": "backward.layer.attn.q.grad.compute", "after": f"{NORM}.compute"})
    assert use == [("backward.layer.attn.q.grad.compute",
                    "adds to layer.norm1.out.grad after it was redistributed or read")]


def test_what_enters_hands_its_gradient_on_before_that_is_read() -> None:
    early = {"move": "backward.embedding.dropped.grad.compute", "before": "backward.layer.out.grad.compute"}
    assert ("backward.layer.in.grad.assign", "adds to embedding.dropped.grad after it was redistributed or read") in (
        found(GPT, early))


def test_a_message_brings_a_gradient_before_it_is_moved() -> None:
    received, name = f"backward.{OUT}.grad.recv[pp]", f"backward.{OUT}.grad.scale[dp]"
    inside = insert(name, "layer", divisor="dp", before=received)
    assert found(STAGED, inside) == [(received, f"adds to {OUT}.grad after it was redistributed")]
    assert found(STAGED, insert(name, "layer", divisor="dp", after=received)) == []
    other = insert("backward.layer.mlp.gelu.grad.scale[dp]", "layer", divisor="dp", before=received)
    assert found(STAGED, other) == [] or all(path != received for path, _ in found(STAGED, other)), "another gradient"
    behind = insert(name, "head", divisor="dp", after="backward.head.logits.grad.compute")
    assert found(STAGED, behind) == [], "what the head left to the last stage"


# what an event names

GRAPH = GPT.reference.graph
assert GRAPH is not None


def named(path: str, **fields: Any) -> set[tuple[str, str]]:
    return set(_named(replace(GPT.event(path), **fields), GRAPH))


def test_what_a_forward_reads_is_what_it_says_or_its_operands() -> None:
    up = "forward.layer.mlp.up.compute"
    assert named(up, reads=()) == {("layer.norm2.out", ""), ("layer.mlp.up.weight", "")}
    assert named(up, reads=("layer.norm2.out@tp", "layer.mlp.up.weight")) == {
        ("layer.norm2.out", "tp"), ("layer.mlp.up.weight", "")}
    assert named("forward.loss.compute", reads=()) == {(GRAPH.ops[-1].inputs[0], "")}
    assert named("forward.loss.compute", reads=("head.logits@tp",)) == {("head.logits", "tp")}
    assert named("backward.loss.scale") == named("forward.layer.in.assign") == set()


def test_what_a_backward_reads_is_what_its_products_need() -> None:
    assert named("backward.layer.mlp.up.grad.compute", reads=()) == {
        ("layer.norm2.out", ""), ("layer.mlp.up.weight", "")}
    assert named("backward.layer.mlp.gelu.grad.compute", reads=("layer.mlp.up.biased@tp",)) == {
        ("layer.mlp.up.biased", "tp")}
    assert named("backward.layer.mlp.up.biased.grad.compute") == set(), "a sum reads nothing"
    assert ("layer.attn.core.probs", "") in named("backward.layer.attn.core.probs.grad.compute"), "its own result"
    assert ("layer.norm1.out", "") in named(f"{NORM}.compute"), "what it kept beside its result"


def test_a_copy_is_made_from_what_it_is_a_copy_of() -> None:
    cut = Event("forward", "slice", "layer.mlp.up", unit="layer", axes=("tp",), version="a/b/c")
    assert set(_named(cut, GRAPH)) == {("layer.mlp.up", "a/b")}
    assert set(_named(replace(cut, version="a"), GRAPH)) == {("layer.mlp.up", "")}
    for silent in (replace(cut, version=""), replace(cut, verb="free"), replace(cut, value="layer.mlp.up.grad")):
        assert set(_named(silent, GRAPH)) == set()


def test_a_backward_adds_to_its_operands_and_what_enters_to_where_it_came_from() -> None:
    def adds(path: str, **fields: Any) -> set[tuple[str, str]]:
        return set(_adds(replace(GPT.event(path), **fields), GRAPH))
    handed, up = "backward.layer.in.grad.assign", "backward.layer.mlp.up.grad.compute"
    assert adds(handed, reads=()) == {("embedding.dropped", "")}
    assert adds(handed, reads=("embedding.dropped@tp",)) == {("embedding.dropped", "tp")}
    assert adds(up, reads=()) == {("layer.norm2.out", "")}
    assert adds(up, reads=("layer.norm2.out@tp", "layer.mlp.up.weight")) == {("layer.norm2.out", "tp")}
    assert adds(f"{NORM}.all_reduce[tp]") == set()
    assert set(_adds(replace(GPT.event(up), value="elsewhere.grad"), GRAPH)) == set()


def test_a_loss_is_in_the_order_and_other_values_are_not() -> None:
    """A loss that is taken anew behind the backward of the layers finds those of the last layer run again."""
    loss = replace(GPT.event("forward.loss.compute"), phase="backward", reads=(GRAPH.loops[0].last,))
    listed = list(GPT.phase(*LOOPED))
    late = (loss, f"reads {GRAPH.loops[0].last} behind the backward of layer")
    assert list(untimely([*listed, loss], GRAPH)) == [late]
    assert list(untimely([*listed, replace(loss, value="count")], GRAPH)) == []


def test_an_op_is_made_again_wherever_nobody_moved_it() -> None:
    """Made twice, or freed or sent before it is made again, a tensor was not redistributed."""
    made = next(e for e in STAGED.events if e.verb == "compute" and e.value == OUT)
    graph = STAGED.reference.graph
    for before in (made, replace(made, verb="send", axes=("pp",)), replace(made, verb="recv", axes=("pp",))):
        assert list(untimely([before, made], graph)) == []
    assert [why for _, why in untimely([replace(made, verb="free"), made], graph)] == [
        f"makes {OUT} after it was redistributed"]
