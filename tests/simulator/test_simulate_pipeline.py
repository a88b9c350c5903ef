"""The oracle on pipelines: derived programs equal the single device in every order, wrong ones differ or deadlock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from simulate_steps import change, double, drop, found, move
from test_simulate_split import anything

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.build import graph
from placealg.models.model import Model
from placealg.models.transformer import gpt, mlp, moe
from placealg.simulator import Outcome, Setting, simulate, stages
from placealg.simulator.machine import Machine
from placealg.simulator.setting import fitting_microbatches
from placealg.step.derive import derive
from placealg.step.pipeline import Item, Pipeline
from placealg.step.program import Clause, Event, Step
from placealg.strategy.expression import parse_strategy

TOKEN_MEAN = {"preset": "token_mean"}


def two_kinds() -> Model:
    """A tied embedding, and two repeated units, one behind the other."""
    g = graph(batch="b", seq="s", embed="h", ffn="f", vocab="V")
    x = g.lookup("embedding.tokens", g.parameter("embedding.weight", "vocab embed"), g.ids("data.tokens", "batch seq"),
                 over="vocab")
    for unit, count in (("dense", "k"), ("layer", "n")):
        x = g.repeat(unit, count, x)
        y = g.einsum(f"{unit}.up", x, g.parameter(f"{unit}.up.weight", "embed ffn"), to="batch seq ffn")
        y = g.einsum(f"{unit}.down", g.unary(f"{unit}.act", y, "silu"), g.parameter(f"{unit}.down.weight", "ffn embed"),
                     to="batch seq embed")
        x = g.add(f"{unit}.out", x, g.dropout(f"{unit}.dropped", y))
    logits = g.einsum("head.logits", x, "embedding.weight", to="batch seq vocab")
    g.sum("loss.sum", g.cross_entropy("head.loss", logits, g.ids("data.targets", "batch seq"), over="vocab"))
    return Model.of_graph("two kinds of layers", g.build())


MODELS: Mapping[str, Callable[[], Model]] = {"gpt": gpt, "mlp": mlp, "moe": moe, "two": two_kinds}


def derived(text: str, model: str = "gpt", **tables: Mapping[str, Any]) -> Step:
    """The derived step of a strategy of the catalogue, with tables changed."""
    strategy = parse_strategy(text)
    said = {name: strategy.tables.get(name, FrozenMap[str, Any]()).plus(table) for name, table in tables.items()}
    return derive(replace(strategy, tables=strategy.tables.plus(said)), MODELS[model]())


def tried(step: Step, pp: int = 2, m: int = 2, steps: int = 1, **fields: Any) -> Outcome:
    """The outcome under equal counts, other axes of size 2."""
    sizes = {**dict.fromkeys(step.reference.mesh.names, 2), "pp": pp}
    return simulate(step, Setting.equal(step.reference, sizes, m, 1, **fields), steps)


def where(outcome: Outcome) -> str:
    """The event of the first difference; "" without one."""
    return outcome.difference.where if outcome.difference else ""


@pytest.mark.some(2)
@pytest.mark.parametrize("pp", [1, 2, 3])
@pytest.mark.parametrize("order", ["pp_gpipe", "pp_1f1b", "pp_interleaved", "pp_zb_h1", "pp_zb_h2", "pp_zb_v",
                                   "pp_interleaved_zb", "pp_dualpipe_v"])
def test_every_order_equals_the_single_device(order: str, pp: int) -> None:
    step = derived(order, "mlp" if order in ("pp_zb_v", "pp_dualpipe_v") else "gpt")
    for m in range(1, 5):
        if "interleaved" not in order or m % pp == 0:
            assert tried(step, pp, m, steps=2 if m == 2 else 1).difference is None, m


@pytest.mark.some(3)
@pytest.mark.parametrize(("text", "model", "pp", "m"), [
    ("dp*pp", "gpt", 2, 3), ("zero1*pp_gpipe", "gpt", 3, 2), ("zero3*pp", "gpt", 2, 4), ("hsdp*pp", "gpt", 2, 2),
    ("zero3*pp_interleaved", "gpt", 2, 2), ("tp_sp*pp", "gpt", 3, 2), ("cp*pp_gpipe", "gpt", 2, 2),
    ("cp_ulysses*pp_interleaved", "gpt", 2, 2), ("ep*pp", "moe", 2, 3), ("zero1*ep*pp_interleaved", "moe", 2, 2),
    ("zero3*tp_sp*pp*recompute_full", "gpt", 2, 2), ("tp_sp*pp_interleaved*recompute_selective", "gpt", 2, 2),
    ("zero2*tp_sp*pp_zb_h1*recompute_selective", "gpt", 2, 3), ("zero3*pp_zb_h2", "two", 3, 5),
    ("zero1*pp*offload_optimizer", "gpt", 2, 2), ("zero3*pp", "two", 3, 2), ("pp_interleaved", "two", 3, 3),
    ("zero2*tp_sp*pp_zb_v", "moe", 2, 4), ("zero3*ep*pp_dualpipe_v", "moe", 2, 5)])
def test_pipelines_beside_other_axes(text: str, model: str, pp: int, m: int) -> None:
    outcome = tried(derived(text, model), pp, m, steps=2)
    assert outcome.difference is None
    assert outcome.observed > 1500


@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("text", ["dp*pp_gpipe", "zero3*pp", "zero1*pp_interleaved"])
def test_token_mean_needs_no_equal_counts(text: str, seed: int) -> None:
    sizes = {"dp": 2, "pp": 2}
    for loss in (TOKEN_MEAN, {}):
        step = derived(text, loss=loss)
        assert simulate(step, Setting.unequal(step.reference, sizes, 2, seed=seed)).equal is bool(loss)


@pytest.mark.parametrize(("text", "model", "pp", "layers"), [
    ("pp", "gpt", 2, 2), ("pp", "gpt", 3, 5), ("pp_interleaved", "gpt", 2, 4), ("pp", "two", 3, 2),
    ("pp", "two", 4, 3)])
def test_stages_of_different_depth(text: str, model: str, pp: int, layers: int) -> None:
    assert tried(derived(text, model), pp, 2 * pp, layers=layers).difference is None


def test_a_neighbour_may_be_an_instance_of_another_unit() -> None:
    """Two dense instances on stage 0, two layers on stage 1: the one message goes from dense to layer."""
    step = derived("pp", "two")
    assert tried(step).difference is None
    for unneeded in ("forward.dense.in.recv*", "forward.layer.out.send*", "backward.layer.out.grad.recv*",
                     "backward.dense.in.grad.send*"):
        assert tried(drop(step, unneeded)).equal
    assert where(tried(drop(step, "forward.dense.out.send*"))) == "deadlock at forward.layer.in.recv[pp]"
    assert where(tried(drop(step, "backward.layer.in.grad.send*"))) == "deadlock at backward.dense.out.grad.recv[pp]"
    assert not tried(drop(step, "forward.layer.in.recv*")).equal
    assert not tried(drop(step, "backward.dense.out.grad.recv*")).equal


OF_THE_PIPELINE = {
    "init.embedding.weight.broadcast[pp]": "forward.head.logits.compute",
    "forward.layer.in.recv[pp]": "forward.loss.compute",
    "forward.layer.out.send[pp]": "deadlock at forward.layer.in.recv[pp]",
    "backward.layer.out.grad.recv[pp]": "deadlock at backward.layer.in.grad.send[pp]",
    "backward.layer.in.grad.send[pp]": "deadlock at backward.layer.out.grad.recv[pp]",
    "reduce.embedding.weight.grad_sum.reduce[pp]": "save.embedding.weight.store",
    "update.norm.all_reduce[pp]": "save.embedding.weight.store",
}
"""Each event along the axis -> where the program without it first differs."""


def without(step: Step, k: int) -> str:
    """Where the step differs without its k-th event."""
    steps = 2 if step.events[k].phase in ("save", "resume") else 1
    return where(tried(replace(step, events=(*step.events[:k], *step.events[k + 1:])), steps=steps))


def test_every_event_along_the_axis_counts() -> None:
    step = derived("pp")
    assert {e.path: without(step, k) for k, e in enumerate(step.events) if "pp" in e.axes} == OF_THE_PIPELINE


@pytest.mark.slow
def test_every_event_counts() -> None:
    step = derived("pp")
    assert [e.path for k, e in enumerate(step.events) if not without(step, k)] == []


@pytest.mark.parametrize("text", ["zero1*pp_gpipe", "zero3*pp", "tp_sp*pp", "tp*pp_interleaved*recompute_full"])
def test_any_program_has_an_outcome(text: str) -> None:
    right, draw, differ, tries = derived(text), Random(0), 0, 0
    while tries < 12 or (not differ and tries < 60):
        tries, step = tries + 1, right
        try:
            for _ in range(draw.choice((1, 1, 2))):
                step = anything(draw, step)
            differ += not tried(step).equal
        except InputError as error:
            assert "\n" not in str(error)
    assert differ > 0


@pytest.mark.parametrize(("at", "edited"), [
    ("deadlock at forward.layer.in.recv[pp]", lambda s: change(s, "forward.layer.out.send*", value="layer.residual1")),
    ("deadlock at forward.layer.in.recv[pp]", lambda s: change(s, "forward.layer.out.send*", at=("first",))),
    ("deadlock at forward.layer.in.recv[pp]", lambda s: change(s, "forward.layer.out.send*", where=(Clause("dp", 0),))),
    ("deadlock at forward.layer.in.recv[pp]#2", lambda s: double(s, "forward.layer.in.recv*")),
    ("deadlock at backward.layer.out.grad.recv[pp]", lambda s: change(s, "backward.layer.in.grad.send*", at=("last",))),
    ("deadlock at backward.layer.out.grad.recv[pp]", lambda s: change(s, "backward.*.send*", value="layer.out.grad")),
    ("forward.loss.compute", lambda s: move(s, "forward.layer.out.send*", "forward.layer.out.compute")),
    ("forward.loss.compute", lambda s: move(s, "forward.layer.in.recv*", "forward.layer.in.assign")),
    ("forward.loss.compute", lambda s: move(s, "forward.layer.in.recv*", "forward.layer.out.compute")),
    ("save.embedding.weight.store", lambda s: move(s, "backward.*.send*", "backward.layer.norm1.*.compute")),
    ("save.embedding.weight.store", lambda s: move(s, "backward.*.recv*", "backward.layer.mlp.up.grad.compute")),
    ("deadlock at forward.layer.out.send[pp]#2", lambda s: double(s, "forward.layer.out.send*")),
    ("deadlock at backward.layer.in.grad.send[pp]#2", lambda s: double(s, "backward.*.send*")),
    ("", lambda s: double(double(s, "*.send*"), "*.recv*"))])
def test_messages(at: str, edited: Callable[[Step], Step]) -> None:
    assert where(tried(edited(derived("dp*pp")), pp=3, m=3)) == at


@pytest.mark.parametrize("order", ["pp", "pp_gpipe"])
def test_a_copy_for_a_microbatch_ends_under_the_others_in_flight(order: str) -> None:
    """Gathered in forward and freed in backward: right as long as a stage has one microbatch in flight."""
    step = derived(f"zero3*{order}")
    kept = drop(drop(step, "forward.layer.weight.free*"), "backward.layer.weight.gather*")
    assert tried(kept, pp=1, m=3).equal is (order == "pp")
    assert tried(kept, pp=2, m=1).difference is None
    assert not tried(kept, pp=2, m=2).equal
    once = change(kept, "forward.layer.weight.gather*", at=("first",))
    assert not tried(once, pp=2, m=2).equal
    assert tried(drop(once, "backward.layer.weight.free*"), pp=2, m=3).difference is None


@pytest.mark.parametrize(("pattern", "clauses"), [
    ("update.embedding.weight.norm", ()), ("update.layer.weight.norm", (Clause("pp", 0),)),
    ("update.embedding.position.weight.norm", (Clause("pp", 1),)),
    ("update.embedding.weight.update", (Clause("pp", 0),)),
    ("resume.layer.weight.load", (Clause("pp", 0),)), ("backward.embedding.weight.*.accumulate", (Clause("pp", 0),))])
def test_where_along_the_pipeline(pattern: str, clauses: tuple[Clause, ...]) -> None:
    step = derived("pp")
    assert not tried(change(step, pattern, where=clauses), steps=2).equal
    assert tried(change(step, "update.layer.weight.*", where=(Clause("pp"),)), steps=2).difference is None


def test_collectives_between_stages_in_the_loop() -> None:
    """Each waits until all stages of the tied weight have come to it: one per item and phase can, two need an order."""
    def each(order: str) -> Step:
        step = derived(order)
        (at,) = found(step, "reduce.embedding.weight.*")
        (end,) = found(step, "backward.embedding.weight.*accumulate")
        inside = replace(step.events[at], phase="backward", value="grad")
        return replace(step, events=(*step.events[:end], inside, *step.events[end:at], *step.events[at + 1:]))

    def again(step: Step) -> Step:
        (first,) = found(step, "forward.embedding.tokens.compute")
        copied = Event("forward", "broadcast", "weight", "embedding.weight", axes=("pp",))
        return replace(step, events=(*step.events[:first], copied, *step.events[first:]))

    for pp, m in ((2, 1), (2, 4), (3, 3)):
        assert tried(each("pp"), pp, m).difference is None
        assert tried(again(each("pp_gpipe")), pp, m).difference is None
    assert tried(again(each("pp")), 2, 1).difference is None
    assert where(tried(again(each("pp")), 2, 2)) in ("deadlock at forward.embedding.weight.broadcast[pp]",
                                                     "deadlock at backward.embedding.weight.grad.reduce[pp]")


def test_an_order_that_cannot_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def crossed(at: Pipeline, stage: int, *given: int) -> tuple[Item, ...]:
        """Backward first on stage 0."""
        items = work(at, stage, *given)
        return items if stage else tuple(sorted(items))

    work = stages.stage_order
    step = derived("pp_gpipe")
    assert tried(step).equal
    monkeypatch.setattr(stages, "stage_order", crossed)
    assert where(tried(step)) == "deadlock at backward.layer.out.grad.recv[pp]"


def test_microbatches_in_flight_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that forgets a microbatch when it turns to another one is seen."""
    def forgetful(machine: Machine, microbatch: int | None) -> None:
        if microbatch != machine.microbatch:
            enter(machine, None)
        enter(machine, microbatch)

    step, enter = derived("pp"), Machine.enter
    monkeypatch.setattr(Machine, "enter", forgetful)
    assert tried(step, pp=1, m=2).difference is None
    assert not tried(step, pp=2, m=2).equal


def placed(text: str, pp: int, layers: int) -> stages.Stages:
    """The stages of a derived step on `two`."""
    step = derived(text, "two")
    at = stages.of(step.reference, Setting.equal(step.reference, {"pp": pp}, pp, layers=layers))
    assert at is not None
    return at


def test_what_lives_where() -> None:
    at = placed("pp_interleaved", 2, 4)
    assert [at.chunk("dense", i) for i in range(4)] == [0, 0, 1, 1]
    assert [at.chunk("layer", i) for i in range(4)] == [2, 2, 3, 3]
    assert (at.chunk("embedding", 0), at.chunk("head", 0), at.chunk("loss", 0)) == (0, 3, 3)
    assert at.tied("embedding.weight")
    assert at.holding("embedding.weight", 0) == {0, 3}
    assert at.holding("layer.weight", 1) == {2}
    count, last = Event("forward", "compute", "count", unit="loss"), Event("forward", "compute", "loss", unit="loss")
    assert (at.stages(count, 0), at.stages(last, 0)) == ({0, 1}, {1})
    assert [at.runs(count, 0, 0, chunk) for chunk in range(2)] == [False, True]
    assert [at.runs(Event("update", "update", "rng"), 0, 0, chunk) for chunk in range(2)] == [True, False]
    assert [at.runs(last, 0, 1, chunk) for chunk in range(2)] == [False, True]
    send = Event("forward", "send", "dense.out", unit="dense", axes=("pp",))
    assert [at.neighbour(send, i, 1) for i in range(4)] == [None, ("dense", 2), None, ("layer", 0)]
    assert placed("pp", 2, 4).neighbour(send, 1, 1) is None


def test_listed_stages_are_for_the_real_depth() -> None:
    step = derived("pp")
    listed = replace(step, reference=replace(step.reference, pipeline=Pipeline("pp", stages=(40, 41))))
    assert tried(listed).difference is None


def test_the_smallest_runs_that_fit() -> None:
    for text, model, pp, layers, microbatches in (
            ("dp", "gpt", 4, 2, 3), ("pp", "gpt", 3, 4, 3), ("pp", "two", 5, 3, 3), ("pp_interleaved", "gpt", 2, 5, 4),
            ("pp_interleaved", "two", 3, 4, 3)):
        reference = derived(text, model).reference
        sizes = dict.fromkeys(reference.mesh.names, pp)
        assert Setting.equal(reference, sizes, 1).layers == Setting.unequal(reference, sizes, 2).layers == layers
        assert fitting_microbatches(reference, sizes, 3) == microbatches


@pytest.mark.parametrize(("said", "run"), [
    ("pp = 3 makes 3 stages of 2 layers; at most 2 fit", lambda: tried(derived("pp"), 3, layers=2)),
    ("the interleaved order takes microbatches in groups of pp = 2, which does not divide m = 3",
     lambda: tried(derived("pp_interleaved"), m=3)),
    ("forward.layer.out.send[dp]: a message goes from stage to stage, along the pipeline axis alone",
     lambda: tried(change(derived("dp*pp"), "forward.layer.out.send*", axes=("dp",)))),
    ("forward.layer.residual1.recv[pp]: 'layer.residual1' is not received",
     lambda: tried(change(derived("pp"), "forward.layer.in.recv*", value="layer.residual1"))),
    ("forward.layer.in.recv[pp]: a message leaves an instance of a repeated unit",
     lambda: tried(change(derived("pp"), "forward.layer.in.recv*", unit="head")))])
def test_what_does_not_fit_is_one_line(said: str, run: Callable[[], Outcome]) -> None:
    with pytest.raises(InputError) as error:
        run()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_message_needs_a_pipeline() -> None:
    step = derived("tp")
    sent = Event("forward", "send", "layer.out", unit="layer", axes=("tp",))
    (k,) = found(step, "forward.head.norm.out.compute")
    with pytest.raises(InputError, match="a message goes from stage to stage"):
        simulate(replace(step, events=(*step.events[:k], sent, *step.events[k:])),
                 Setting.equal(step.reference, {"tp": 2}, 1))
