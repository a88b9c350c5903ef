"""Along a pipeline: on which stage something is held, and a tied parameter as it is seen on both ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_flow import step_of

from placealg import prove
from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.backward import GRAD
from placealg.prover.calculus.contribution import Term, Value, equality
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import DEVICE
from placealg.prover.ops import paths
from placealg.prover.ops.findings import FailureKind
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import network_obligations
from placealg.prover.ops.stages import (
    StageMessage,
    Stages,
    at_the_ends,
    before_its_uses,
    ends,
    held_on,
    in_several_chunks,
    no_end,
    on_ends,
    out_of_turn,
    tied,
)
from placealg.prover.ops.tensors import NEXT_INSTANCE, Tensors
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.event import Clause, Event
from placealg.step.pipeline import Pipeline
from placealg.step.program import Group, Step

TIED, UNTIED, FLAT = step_of("zero1*pp", "gpt"), step_of("zero1*pp", "llama"), step_of("zero1*tp", "gpt")


def group_of(step: Step, parameter: str) -> Group:
    return next(g for g in step.reference.groups if parameter in g.parameters)


TABLE, LAYER = group_of(TIED, "embedding.weight"), group_of(TIED, "layer.mlp.up.weight")


@pytest.mark.parametrize("order", ["zb_v", "dualpipe_v"])
def test_a_parameter_of_several_chunks_of_one_stage_is_left_open(order: str) -> None:
    """Written by hand: microbatches meet between the two uses of a tied embedding, and runs differ from p = 2 on."""
    flat, untied = step_of("zero1*pp_zb_h1", "gpt"), step_of("zero1*pp_zb_h1", "llama")
    for step in (flat, untied):
        folded = Step(replace(step.reference, pipeline=Pipeline("pp", order, 2)), step.events)
        report = prove(folded)
        alone = simulate(folded, Setting.equal(step.reference, {"dp": 1, "pp": 1}, 3, 1, layers=2), 1)
        met = simulate(folded, Setting.equal(step.reference, {"dp": 1, "pp": 2}, 3, 1, layers=4), 1)
        if step is untied:
            assert (report.verdict, list(in_several_chunks(folded))) == (PROVED, [])
            assert alone.equal and met.equal
        else:
            assert report.verdict == REFUTED
            with pytest.raises(NoRule, match="a parameter that one stage uses in several chunks, between which other"):
                network_obligations(folded, Flows(folded))
            assert {e.tensor for e in in_several_chunks(folded)} == {"head.logits", "embedding.tokens"}
            assert not met.equal


def test_what_is_tied() -> None:
    assert tied(TIED.reference, "embedding.weight") and not tied(TIED.reference, "layer.mlp.up.weight")
    assert not tied(FLAT.reference, "embedding.weight") and not tied(UNTIED.reference, "embedding.weight")
    held = held_on(TIED.reference, "embedding.weight")
    assert held == ("first", "last") and ends(TIED.reference, held) == "pp_ends"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_tied_group_sees_the_ends_in_place_of_the_pipeline(ranks: int) -> None:
    reference = replace(TIED.reference, unrolled=FrozenMap({"pp": ranks, "dp": 3}))
    placed = tuple(replace(e, where=(*e.where, Clause("pp", 0)), layout="mine(pp)") if e.verb == "norm" else e
                   for e in TIED.events)
    step = Step(reference, (*placed, Event("resume", "all_reduce", "count", axes=("pp",))))
    seen = on_ends(step, TABLE)
    assert seen.reference == replace(reference, mesh=seen.reference.mesh, unrolled=FrozenMap({
        "pp_ends": min(ranks, 2), "dp": 3}))
    assert seen.reference.mesh.names == tuple("pp_ends" if a == "pp" else a for a in TIED.reference.mesh.names)
    assert len(seen.events) == len(step.events)
    for old, new in zip(step.events, seen.events, strict=True):
        concerned = (old.group in ("", TABLE.name) or old.verb in ("clip", "update")) and old.value != "count"
        if concerned:
            assert new.axes == tuple("pp_ends" if a == "pp" else a for a in old.axes)
            assert new.where == tuple(Clause("pp_ends", c.rank) if c.axis == "pp" else c for c in old.where)
            assert new.layout == old.layout.replace("(pp)", "(pp_ends)")
            assert replace(new, axes=old.axes, where=old.where, layout=old.layout) == old
        else:
            assert new == old
    assert any(a == "pp_ends" for e in seen.events if e.group == TABLE.name for a in e.axes)
    assert any(c.axis == "dp" for e in seen.events if e.group == TABLE.name for c in e.where)


def test_other_groups_see_the_pipeline_itself() -> None:
    assert on_ends(TIED, LAYER) is TIED and on_ends(UNTIED, UNTIED.reference.groups[0]) is UNTIED
    assert on_ends(FLAT, group_of(FLAT, "embedding.weight")) is FLAT
    assert on_ends(TIED, Group("", "", (), (), ())) is TIED


def test_an_inner_stage_is_no_end() -> None:
    update = next(e for e in TIED.events if e.verb == "update" and e.group == TABLE.name)
    other = next(e for e in TIED.events if e.verb == "update" and e.group == LAYER.name)

    def told(*events: Event, step: Step = TIED, group: Group = TABLE) -> list[Event]:
        return list(no_end(replace(step, events=events), group))
    inner = replace(update, where=(Clause("pp", 1),))
    assert told(update, inner) == [inner]
    assert told(replace(update, where=(Clause("pp", 0),)), replace(update, where=(Clause("pp"),))) == []
    read = replace(other, where=(Clause("pp", 1),))
    assert told(replace(update, where=(Clause("dp", 1),)), replace(read, verb="norm")) == []
    assert told(read) == [read], "updates of all groups read the norm"
    assert told(replace(other, where=(Clause("pp", 1),)), group=LAYER) == []
    assert told(inner, group=Group("", "", (), (), ())) == []
    sent = Event("init", "broadcast", "weight", TABLE.name, axes=("pp",), root=1)
    assert told(sent, replace(sent, root=0), replace(sent, axes=("dp",)), replace(sent, group=LAYER.name)) == [sent]
    counter = Event("init", "broadcast", "step", axes=("pp",), root=1)
    assert told(counter, replace(counter, root=0)) == [counter], "of no group: every machine sees it"
    mean = Event("update", "all_reduce", "norm", axes=("pp",), op="mean")
    assert told(mean, replace(mean, op="sum"), replace(mean, axes=("dp",))) == [mean]
    assert told(replace(mean, value="grad_sum", group=TABLE.name)) == [], "a mean of the two ends, in a run, too"
    flat = group_of(FLAT, "embedding.weight")
    assert told(replace(inner, group=flat.name), step=FLAT, group=flat) == []


def test_what_a_use_of_a_tied_parameter_adds_counts_at_its_own_end() -> None:
    held = (Value((Term(ONE, FrozenMap({"dp": "at:batch"})),), frozenset({("pp", "stage:first"), ("dp", "at:seq")})),)
    (value,) = at_the_ends(held, TIED.reference, "embedding.weight")
    assert value.mask == {("dp", "at:seq")}
    assert value.terms == (Term(ONE, FrozenMap({"dp": "at:batch", "pp_ends": "stage:first"})),)


def stages() -> Stages:
    return Stages(TIED.reference, Tensors(TIED))


def held_at(*places: str) -> tuple[Value, ...]:
    return (Value((Term(ONE),), frozenset({("dp", "at:batch"), *(("pp", p) for p in places)})),)


def test_an_op_finds_what_is_held_on_its_stage() -> None:
    here = stages().here
    assert here("layer", held_at("stage:layer")) == held_at("stage:layer")
    assert here("layer", held_at("stage:first")) == held_at("stage:layer"), "the first instance runs where that stands"
    assert here("layer", held_at("stage:last")) == held_at("stage:layer")
    assert here("head", held_at("stage:layer")) == held_at("stage:last")
    assert here("embedding", held_at("stage:layer")) == held_at("stage:first")
    assert here("layer", held_at()) == held_at("stage:layer"), "what is held all along the pipeline is there"
    (value,) = here("layer", held_at("stage:layer'"))
    assert value.mask == held_at("stage:layer")[0].mask
    assert value.sides == equality("pp", "stage:layer'", "stage:layer")
    (value,) = here("embedding", held_at("stage:last"))
    assert value.sides == equality("pp", "stage:first", "stage:last")


def test_neighbours_and_anywhere() -> None:
    there = stages()
    assert there.at("layer") == "stage:layer" and there.at("head") == "stage:last" and there.least == 2
    assert there.neighbour(held_at("stage:layer"), "layer") == held_at("stage:layer'")
    assert there.neighbour(held_at("stage:first"), "layer") == held_at("stage:first")
    sided = tuple(replace(v, sides=equality("pp", "stage:layer", "stage:last") | equality("dp", DEVICE, "0"))
                  for v in held_at("stage:layer"))
    assert there.anywhere(sided) == tuple(replace(v, sides=equality("dp", DEVICE, "0")) for v in held_at())


def test_without_a_pipeline_nothing_happens() -> None:
    flat = Stages(FLAT.reference, Tensors(FLAT))
    held = (Value((Term(ONE),), frozenset({("", "stage:layer"), ("dp", "at:batch")})),)
    assert flat.here("layer", held) == flat.neighbour(held, "layer") == flat.anywhere(held) == held
    assert (flat.least, flat.axis) == (1, "")


# messages

Passed = tuple[FailureKind | None, paths.Sum | None]


def passing(reverse: bool, local: paths.Sum, sent: paths.Sum | None, passes: int = 2) -> Passed:
    """What `receive` says, and what the instance is handed then."""
    there = stages()
    there.passes = passes
    (loop,) = there.graph.loops
    value = loop.last + GRAD if reverse else loop.slot
    if local and reverse:
        there.tensors.gradients[loop.last, ""] = {NEXT_INSTANCE: local}
    elif local:
        there.tensors.made[loop.slot, ""] = local
    other = StageMessage(("layer", 1), "elsewhere", held_at("stage:elsewhere"), "")
    named = (loop.slot if reverse else loop.last) if passes > 1 else loop.first
    mine = [] if sent is None else [StageMessage(("layer", passes - 1), "here", sent, named)]
    there.sent = {reverse: mine, not reverse: [other]}
    event = next(e for e in TIED.events if e.verb == "recv" and e.value == value)
    said = there.receive(event, loop)
    assert there.sent == {reverse: [], not reverse: [other]}
    uses = there.tensors.gradients.get((loop.last, ""))
    return said, (uses and uses.get(NEXT_INSTANCE)) if reverse else there.tensors.made.get((loop.slot, ""))


@pytest.mark.parametrize("reverse", [False, True])
def test_an_instance_is_handed_the_same_locally_and_by_message(reverse: bool) -> None:
    near, here = held_at("stage:layer'"), held_at("stage:layer")
    half = tuple(replace(v, terms=(Term(ONE / Monomial.of("dp")),)) for v in here)
    for passes in (2, 3):
        assert passing(reverse, near, here, passes) == (None, here)
        assert passing(reverse, here, here, passes) == (None, here)
    assert passing(reverse, near, held_at()) == (None, here), "what is held all along the pipeline is sent as well"
    said, both = passing(reverse, near, half)
    assert said is None and both is not None and {v.terms for v in both} == {here[0].terms, half[0].terms}
    assert passing(reverse, (), here) == (None, ())
    assert passing(reverse, near, None) == passing(reverse, near, ()) == (FailureKind.UNSENT, near)
    other = (Value((Term(ONE),), frozenset({("pp", "stage:layer")})),)
    assert passing(reverse, near, other) == (FailureKind.MISMATCHED, near)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_part_that_the_sender_does_not_hold_is_received_only_where_it_stands(reverse: bool) -> None:
    """The sender is a neighbour, at a position of its own: what is not at hand there is not sent."""
    there, elsewhere = held_at("stage:layer"), held_at("stage:first")
    elsewhere = tuple(replace(v, terms=(Term(ONE / Monomial.of("dp")),)) for v in elsewhere)
    for passes in (2, 3):
        said, got = passing(reverse, held_at("stage:layer'"), (*there, *elsewhere), passes)
        assert said is None and got is not None
        assert {v.terms: v.sides for v in got} == {
            there[0].terms: frozenset(), elsewhere[0].terms: equality("pp", "stage:first", "stage:layer'")}


def test_the_ends_of_the_repeated_units_wait_for_no_message() -> None:
    """The first instance forward, the last backward; between two repeated units there is a message."""
    assert passing(False, held_at("stage:layer"), None, passes=1) == (None, held_at("stage:layer"))
    assert passing(True, held_at("stage:layer"), None, passes=1) == (None, held_at("stage:layer"))
    step = step_of("zero1*pp", "deepseek")
    there = Stages(step.reference, Tensors(step))
    first, *_, last = there.graph.loops
    assert first != last
    for loop, reverse, alone in ((first, False, True), (first, True, False), (last, False, False), (last, True, True)):
        value = loop.last + GRAD if reverse else loop.slot
        event = next(e for e in step.events if e.verb == "recv" and e.value == value)
        assert there.receive(event, loop) == (None if alone else FailureKind.UNSENT)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_gradient_comes_from_the_unit_behind_or_from_the_next_instance(passes: int) -> None:
    """The last instance of a unit is handed what enters the unit behind it, the others what enters their next."""
    step = step_of("zero1*pp", "deepseek")
    there = Stages(step.reference, Tensors(step))
    dense, layer = there.graph.loops

    def scaled(size: str, stage: str) -> paths.Sum:
        return tuple(replace(v, terms=(Term(ONE / Monomial.of(size)),)) for v in held_at(stage))

    behind, later = scaled("m", "stage:dense"), scaled("dp", "stage:dense")
    there.tensors.gradients[dense.last, ""] = {layer.slot: behind, NEXT_INSTANCE: later}
    there.passes = passes
    mine, sender, tensor = {1: (layer.slot, layer.unit, layer.slot), 2: (NEXT_INSTANCE, dense.unit, dense.slot)}[passes]
    sent = scaled({1: "m", 2: "dp"}[passes], f"stage:{sender}")
    there.sent = {True: [StageMessage((sender, 1), "here", sent, tensor)], False: []}
    event = next(e for e in step.events if e.verb == "recv" and e.value == dense.last + GRAD)
    assert there.receive(event, dense) is None
    uses = there.tensors.gradients[dense.last, ""]
    assert uses[mine] == {1: behind, 2: later}[passes]
    assert uses == {layer.slot: behind, NEXT_INSTANCE: later}


@pytest.mark.parametrize("reverse", [False, True])
def test_messages_are_received_in_order_and_each_of_them(reverse: bool) -> None:
    """Those of one instance wait for its neighbour; one that still waits when that sends its own waits without end."""
    there = stages()
    (loop,) = there.graph.loops
    value = loop.slot + GRAD if reverse else loop.last
    first = next(e for e in TIED.events if e.verb == "send" and e.value == value)
    second = replace(first, copy=2)
    received = next(e for e in TIED.events if e.verb == "recv" and e.on_gradient == reverse)
    assert (there.send(first), there.send(second)) == ("", "")
    assert [s.path for s in there.sent[reverse]] == [first.path, second.path]
    assert there.sent[not reverse] == []
    there.passes = 2
    there.receive(received, loop)
    assert [s.path for s in there.sent[reverse]] == [second.path]
    assert (there.send(first), there.send(second)) == (second.path, "")
    assert [(s.path, s.instance) for s in there.sent[reverse]] == [(e.path, (loop.unit, 2)) for e in (first, second)]


def test_a_part_of_a_gradient_is_sent_as_a_part() -> None:
    """What arrived under other labels is not in it; a version of an activation is all of it."""
    for reverse in (False, True):
        there = stages()
        (loop,) = there.graph.loops
        held = (Value((Term(ONE),), frozenset({("pp", "stage:layer")})),)
        value = loop.slot + GRAD if reverse else loop.last
        sent = next(e for e in TIED.events if e.verb == "send" and e.value == value)
        if reverse:
            there.tensors.gradients[sent.tensor, "dp"] = {NEXT_INSTANCE: held}
        else:
            there.tensors.made[sent.tensor, "dp"] = held
        there.send(replace(sent, version="dp"))
        (message,) = there.sent[reverse]
        assert paths.each(message.held, lambda v: replace(v, mask=frozenset())) == paths.each(
            paths.lost(held) if reverse else held, lambda v: replace(v, mask=frozenset()))


SEVERAL = step_of("zero3*pp_interleaved", "gpt")
INSIDE = "inside the loop over microbatches of several chunks"


@pytest.mark.parametrize(("event", "says"), [
    (Event("forward", "update", "rng"), "update of rng"), (Event("backward", "update", "step"), "update of step"),
    (Event("backward", "all_reduce", "norm", axes=("dp",)), "all_reduce of norm"),
    (Event("backward", "all_reduce", "skip", axes=("dp",)), "all_reduce of skip"),
    (Event("backward", "reduce", "grad", LAYER.name, axes=("dp",), divisor=Monomial.of("count")),
     "reduce of grad by a count"),
    (Event("forward", "gather", "weight", TABLE.name, axes=("dp",)), "gather of what several stages hold"),
    (Event("backward", "free", "master", TABLE.name), "free of what several stages hold"),
    (Event("forward", "compute", "count", unit="loss"), ""),
    (Event("forward", "compute", "loss", unit="loss", divisor=Monomial.of("count")), ""),
    (Event("forward", "gather", "weight", LAYER.name, axes=("dp",)), ""),
    (Event("backward", "reduce", "grad", TABLE.name, axes=("dp",)), ""),
    (Event("backward", "accumulate", "grad_sum", TABLE.name), ""),
])
def test_what_belongs_to_no_single_chunk_has_no_rule_inside_the_loop_of_several(event: Event, says: str) -> None:
    """A stage runs it with one of its chunks, and other microbatches in between; a count runs with its loss."""
    assert SEVERAL.reference.pipeline.axis and SEVERAL.reference.pipeline.chunks != 1
    assert out_of_turn(event, SEVERAL.reference) == (f"{says} {INSIDE}" if says else "")
    assert out_of_turn(event, TIED.reference) == out_of_turn(event, FLAT.reference) == "", "one chunk, or no pipeline"
    assert out_of_turn(replace(event, phase="update"), SEVERAL.reference) == ""


def test_a_tied_gradient_has_no_rule_before_a_use_adds_to_it_with_another_stage_or_chunk() -> None:
    """The stage runs the event with its first chunk, when the head's has run; behind all uses that is no matter."""
    early = Event("backward", "accumulate", "grad_sum", TABLE.name, copy=2)
    for step, found in ((SEVERAL, [early]), (TIED, []), (FLAT, [])):
        assert list(before_its_uses(step)) == []
        start = next(k for k, e in enumerate(step.events) if e.phase == "backward")
        for event in (early, replace(early, value="grad", verb="free"), replace(early, value="weight", verb="gather"),
                      replace(early, group=LAYER.name)):
            changed = replace(step, events=(*step.events[:start], event, *step.events[start:]))
            tied_too = event.group == TABLE.name and event.value != "weight"
            assert list(before_its_uses(changed)) == ([event] if found and tied_too else [])
    first = replace(early, phase="forward")
    listed = [e for e in SEVERAL.events if e.phase in ("forward", "backward")]
    assert list(before_its_uses(replace(SEVERAL, events=(first, *listed)))) == [first], "the very first event"
    ops = ("head.logits", "embedding.tokens")
    between = [(k, e) for k, e in enumerate(TIED.events) if e.phase == "backward" and e.on_gradient and e.tensor in ops]
    (k, _), *_, (end, _) = between
    for at, found_there in ((k, []), (k + 1, [early]), (end, [early]), (end + 1, [])):
        changed = replace(TIED, events=(*TIED.events[:at], early, *TIED.events[at:]))
        assert list(before_its_uses(changed)) == found_there, "one chunk: between its uses"
    uses = {e.path for e in SEVERAL.phase("backward") if e.on_gradient and e.tensor in ops}
    assert len(uses) > 1
    after = replace(SEVERAL, events=tuple(
        new for e in SEVERAL.events for new in ((e, early) if e.path == max(uses) else (e,))))
    without = replace(after, events=tuple(e for e in after.events if e.path not in uses))
    alone = replace(without, events=(early, *(e for e in without.events if e.phase == "backward")))
    assert list(before_its_uses(without)) == list(before_its_uses(alone)) == [], "without a use nothing is before it"
    step = replace(SEVERAL, events=(*SEVERAL.phase("forward"), early, *SEVERAL.phase("backward")))
    with pytest.raises(NoRule, match="before a backward that adds to it, with another stage or chunk") as said:
        network_obligations(step, Flows(step))
    assert said.value.event == early.path


def test_ops_are_judged_where_every_event_of_a_loop_of_several_chunks_has_a_rule() -> None:
    assert network_obligations(SEVERAL, Flows(SEVERAL)).instances["forward"]
    last = [k for k, e in enumerate(SEVERAL.events) if e.phase == "backward"][-1]
    drawn = Event("backward", "update", "rng")
    step = replace(SEVERAL, events=(*SEVERAL.events[:last + 1], drawn, *SEVERAL.events[last + 1:]))
    with pytest.raises(NoRule) as found:
        network_obligations(step, Flows(step))
    assert (str(found.value), found.value.event) == (
        f"{drawn.path}: no transfer rule for update of rng {INSIDE}", drawn.path)
