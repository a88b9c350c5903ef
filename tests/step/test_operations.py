"""Op-level derivation: which events stand where, what they redistribute, and what each redistribution's way back is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from random_dims import MODELS

from placealg.check.prove import prove
from placealg.models.backward import needs_gradient
from placealg.models.build import graph
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.models.transformer import moe
from placealg.placement import DUAL, Kind, redistribution
from placealg.prover.verdict import PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Event, Step
from placealg.step.redistribution_events import VERB_OF
from placealg.step.text import read_program, write_program
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import strategy_on

CATALOGUE = ("tp", "tp_sp", "tp_sp_keep", "tp*recompute_full", "tp_sp*recompute_selective", "zero3*tp_sp", "hsdp*tp_sp")
TRANSFORMERS = ("gpt", "gpt, parallel", "llama", "llama, unfused")
SENT = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")


def step_of(strategy: str, model: str = "gpt") -> Step:
    return derive(parse_strategy(strategy), MODELS[model])


def on(model: Model | str, dims: dict[str, list[str]], **tables: Any) -> Step:
    """The derived step of lists of dims."""
    return derive(strategy_on("mine", dict.fromkeys(dims), dims=dims, **tables),
                  model if isinstance(model, Model) else MODELS[model])


def paths(step: Step) -> list[str]:
    return [e.path for e in step.events]


def redistributions(step: Step, phase: str, unit: str = "layer") -> list[str]:
    """What the tensors of a unit go through in a phase, in order, data left out."""
    return [e.path.removeprefix(f"{phase}.{unit}.") for e in step.phase(phase)
            if e.on_tensor and e.unit == unit and e.verb in (*SENT, "slice", "pad", "scale", "free")
            and not e.tensor.startswith("data.")]


# what stands where

def test_the_excerpt_of_tensor_and_sequence_parallelism() -> None:
    step = step_of("zero3*tp_sp")
    said = {
        "forward.layer.norm1.out.all_gather[tp]": ("S(seq)", "R", "tp", ""),
        "forward.layer.attn.out.reduce_scatter[tp]": ("P", "S(seq)", "tp", "sum"),
        "forward.layer.mlp.down.reduce_scatter[tp]": ("P", "S(seq)", "tp", "sum"),
        "backward.layer.norm1.out.all_gather[tp]": ("S(seq)", "R", "tp", ""),
        "backward.layer.norm1.out.grad.reduce_scatter[tp]": ("P", "S(seq)", "tp", "sum"),
        "backward.layer.attn.out.grad.all_gather[tp]": ("S(seq)", "R", "tp", ""),
        "reduce.layer.norm1.weight.grad_sum.reduce[tp]": ("P", "I", "", "sum"),
        "backward.layer.norm1.weight.grad.reduce[dp]": ("P", "S", "", "mean"),
    }
    for path, (source, to, version, op) in said.items():
        event = step.event(path)
        assert (event.source, event.to, event.version, event.op) == (source, to, version, op), path
    assert step.event("init.layer.norm1.weight.broadcast[dp,tp]")
    assert {"forward.layer.weight.gather[dp]", "forward.layer.weight.free[dp]", "backward.layer.weight.gather[dp]",
            "backward.layer.weight.grad.reduce[dp]", "backward.layer.weight.grad_sum.accumulate",
            "update.norm.all_reduce[dp,tp]", "forward.head.loss.compute[tp]"} <= set(paths(step))
    assert {g.split for g in step.reference.groups if g.name == "layer.weight"} == {("tp",)}
    assert step.reference.data_axes == ("dp",)


LAYER_SENDS = {
    "tp": ({"all_reduce": 2}, {"all_reduce": 2}),
    "tp_sp": ({"all_gather": 2, "reduce_scatter": 2}, {"all_gather": 4, "reduce_scatter": 2}),
    "tp_sp_keep": ({"all_gather": 2, "reduce_scatter": 2}, {"all_gather": 2, "reduce_scatter": 2}),
    "tp*recompute_full": ({"all_reduce": 2}, {"all_reduce": 4}),
    "tp*recompute_selective": ({"all_reduce": 2}, {"all_reduce": 2}),
}
"""Strategy -> the collectives of one layer, forward and backward."""


def sends(step: Step) -> tuple[dict[str, int], ...]:
    """The collectives of one layer, forward and backward."""
    return tuple(dict(Counter(e.verb for e in step.phase(phase) if e.on_tensor and e.unit == "layer"
                              and e.verb in SENT)) for phase in ("forward", "backward"))


@pytest.mark.parametrize("model", ["gpt", "llama", "llama, unfused"])
@pytest.mark.parametrize("strategy", LAYER_SENDS)
def test_what_a_layer_sends_under_each_strategy(strategy: str, model: str) -> None:
    assert sends(step_of(strategy, model)) == LAYER_SENDS[strategy]


def test_a_parallel_block_adds_its_partial_sums_before_it_sends_them() -> None:
    assert sends(step_of("tp", "gpt, parallel")) == ({"all_reduce": 1}, {"all_reduce": 1})


def test_a_gathered_copy_is_freed_and_gathered_again_only_under_gather_for_use() -> None:
    freed = redistributions(step_of("tp_sp"), "forward")
    kept = redistributions(step_of("tp_sp_keep"), "forward")
    assert freed == ["norm1.out.all_gather[tp]", "norm1.out.free", "attn.out.reduce_scatter[tp]",
                     "norm2.out.all_gather[tp]", "norm2.out.free", "mlp.down.reduce_scatter[tp]"]
    assert kept == [path for path in freed if not path.endswith(".free")]
    order = paths(step_of("tp_sp"))
    use = [order.index(f"forward.layer.attn.{n}.compute") for n in "qkv"]
    assert order.index("forward.layer.norm1.out.all_gather[tp]") < min(use)
    assert max(use) < order.index("forward.layer.norm1.out.free")
    back = [order.index(f"backward.layer.attn.{n}.grad.compute") for n in "qkv"]
    assert order.index("backward.layer.norm1.out.all_gather[tp]") < min(back)
    assert max(back) < order.index("backward.layer.norm1.out.free")
    assert max(back) < order.index("backward.layer.norm1.out.grad.reduce_scatter[tp]")


SPLITS = (["heads", "ffn", "seq"], ["heads", "seq"], ["ffn", "seq"], ["heads"], ["ffn"])


@pytest.mark.parametrize("sharded", [("x",), ("x", "y")])
@pytest.mark.parametrize("y", SPLITS)
@pytest.mark.parametrize("x", SPLITS)
def test_whatever_is_gathered_for_use_ends_with_its_last_use(x: list[str], y: list[str],
                                                             sharded: tuple[str, ...]) -> None:
    """Attention and the MLP read one value in two layouts, which may be two copies, or a copy and a copy of that."""
    step = on("gpt, parallel", {"x": x, "y": y}, states={"activations": dict.fromkeys(sharded, "S*")})
    order = paths(step)
    layer = [e for e in step.phase("forward") if e.on_tensor and e.unit == "layer"]
    gathered = {(e.value, e.version) for e in layer if e.verb == "all_gather" and set(e.axes) & set(sharded)}
    freed = {(e.value, e.version): order.index(e.path) for e in layer if e.verb == "free"}
    assert set(freed) == gathered
    for (value, version), end in freed.items():
        uses = [order.index(e.path) for e in layer for r in e.reads if f"{r}/".startswith(f"{value}@{version}/")]
        assert end == max(uses) + 1 or order[end - 1].endswith(".free")
    if any("/" in e.version for e in layer):
        assert verdict(step) == (PROVED, None)


def test_every_use_has_its_own_redistribution_where_nothing_is_shared() -> None:
    dims = {"dp": ["batch"], "tp": ["heads", "ffn", "vocab"]}
    shared, own = (on("gpt", dims, schedule={"sharing": s}) for s in ("shared", "per_use"))
    ways = [sum(e.path.startswith("backward.layer.norm1.out.grad.all_reduce[tp]") for e in s.events)
            for s in (shared, own)]
    assert ways == [1, 3]
    versions = {e.version for e in own.events if e.path.startswith("backward.layer.norm1.out.grad.all_reduce[tp]")}
    assert len(versions) == 3
    assert {r.partition("@")[2] for n in "qkv" for r in own.event(f"forward.layer.attn.{n}.compute").reads[:1]} \
        == versions


def test_the_loss_merges_its_statistics_over_the_axis_that_splits_the_vocabulary() -> None:
    step = step_of("zero1*tp")
    assert step.event("forward.head.loss.compute[tp]").op == "sum"
    assert "forward.head.loss.compute" in paths(on("gpt", {"tp": ["heads", "ffn"]}))


@pytest.mark.parametrize("policy", ["whole", "by_dependency", "early_stop"])
def test_a_replay_stands_before_the_first_backward_op_of_its_region(policy: str) -> None:
    step = on("gpt", {"tp": ["heads", "ffn", "vocab"]}, states={"activations": {"region:layer": "M"}},
              schedule={"replay": policy})
    layer = [e for e in step.phase("backward") if e.on_tensor and e.unit == "layer" and e.verb == "compute"]
    replayed = [e for e in layer if not e.on_gradient]
    assert layer[:len(replayed)] == replayed, "the replay comes first"
    assert all(e.rule.name == "recompute" for e in replayed)
    forward = [e.value for e in step.phase("forward") if e.on_tensor and e.unit == "layer" and e.verb == "compute"]
    again = [e.value for e in replayed]
    assert again == [name for name in forward if name in again], "in the order of the forward"
    assert (again == forward) == (policy == "whole")
    assert step.event("forward.layer.free").rule.name == "recompute"


def test_policies_replay_less_and_less() -> None:
    def replayed(policy: str) -> set[str]:
        step = on("gpt", {"tp": ["heads", "ffn"]}, states={"activations": {"region:layer": "M"}},
                  schedule={"replay": policy})
        return {e.value for e in step.phase("backward") if e.verb == "compute" and e.on_tensor and not e.on_gradient}
    assert replayed("by_dependency") < replayed("early_stop") < replayed("whole")


def stack(enters: str) -> Model:
    """Layers without a residual: what leaves each is the partial sum of its last product."""
    g = graph(batch="b", embed="h", ffn="f")
    x = g.data("data.x", "batch embed")
    if enters == "embedding.in":
        x = g.mul(enters, x, g.parameter("embedding.weight", "embed"))
    x = g.unary("layer.act", g.linear("layer.up", g.repeat("layer", "L", x), "batch ffn", "embed ffn"), "relu")
    x = g.linear("layer.down", x, "batch embed", "ffn embed")
    g.sum("loss.sum", g.sum("head.rows", g.mul("head.square", x, x), to="batch"))
    return Model.of_graph("stack", g.build())


@pytest.mark.parametrize(("enters", "unit"), [("embedding.in", "embedding"), ("data.x", "layer")])
def test_what_enters_layers_that_hand_on_a_partial_sum_is_shared_out_first(enters: str, unit: str) -> None:
    """Each rank enters with its share, so that every layer begins with the same sum."""
    step = on(stack(enters), {"tp": ["ffn"]})
    shared = step.event(f"forward.{enters}.scale[tp]")
    assert (shared.unit, shared.source, shared.to, shared.op, str(shared.divisor)) == (unit, "I", "P", "", "tp")
    assert redistributions(step, "forward")[-1] == "in.all_reduce[tp]"
    assert step.event("forward.layer.in.assign").reads == (f"{enters}@tp",)
    assert runs_alike(step)
    assert not runs_alike(edit(step, drop=shared.path)) and not runs_alike(edit(step, set=shared.path, divisor="1"))


def runs_alike(step: Step) -> bool:
    """Whether a run on two ranks along every axis gives what the single device gives."""
    return simulate(step, Setting.equal(step.reference, dict.fromkeys(step.reference.mesh.names, 2), 1, 1)).equal


def two_loops() -> Model:
    """Layers with a residual, then layers of a single op each."""
    g = graph(batch="b", embed="h", ffn="f")
    x = g.mul("embedding.in", g.data("data.x", "batch embed"), g.parameter("embedding.weight", "embed"))
    x = g.repeat("one", "L", x)
    y = g.unary("one.act", g.linear("one.up", x, "batch ffn", "embed ffn"), "relu")
    x = g.repeat("two", "K", g.add("one.out", x, g.linear("one.down", y, "batch embed", "ffn embed")))
    x = g.mul("two.scaled", x, g.parameter("two.weight", "embed"))
    g.sum("loss.sum", g.sum("head.rows", g.mul("head.square", x, x), to="batch"))
    return Model.of_graph("two loops", g.build())


def test_what_stands_between_two_repeated_units_runs_once_and_in_neither() -> None:
    step = on(two_loops(), {"tp": ["ffn", "two.embed"]})
    there, back = step.event("forward.one.out.slice[tp]"), step.event("backward.one.out.grad.all_gather[tp]")
    assert (there.unit, back.unit) == ("", "")
    order = paths(step)
    assert order.index("forward.one.out.compute") < order.index(there.path) < order.index("forward.two.in.assign")
    assert order.index("backward.two.in.grad.assign") < order.index(back.path) < order.index(
        "backward.one.out.grad.compute")
    assert step.event("forward.two.in.assign").reads == ("one.out@tp",)
    assert verdict(step) == (PROVED, None)
    assert verdict(edit(step, drop=back.path))[0] == REFUTED


def test_a_ring_brings_a_value_to_products_only_and_along_its_own_axes_only() -> None:
    """A gate that multiplies element by element is gathered at once; so is what another axis splits."""
    step = on(routed(), {"tp": ["ffn", "seq"]}, schedule={"gather": {"tp": "ring"}})
    assert redistributions(step, "forward", "net") == ["gate.all_gather[tp]", "down.reduce_scatter[tp]"]
    assert step.event("forward.net.norm.out.shift[tp]").to == "R" and verdict(step) == (PROVED, None)
    both = on("gpt", {"x": ["seq"], "y": ["seq"]}, schedule={"gather": {"x": "ring"}})
    keys = [(e.phase, e.verb, e.axes, e.source, e.to) for e in both.events
            if e.tensor == "layer.attn.core.keys" and e.source]
    assert keys == [("forward", "all_gather", ("y",), "S(seq_kv)", "R"), ("forward", "shift", ("x",), "S(seq_kv)", "R"),
                    ("backward", "reduce_scatter", ("y",), "P", "S(seq_kv)"),
                    ("backward", "shift", ("x",), "P", "S(seq_kv)")]


@pytest.mark.parametrize("name", ["net.MIX.y", "net.one.one.y"])
def test_a_region_is_named_whole_and_ends_once(name: str) -> None:
    """What lies in a part of the region of the same name ends with it."""
    region = name.split(".")[1]
    g = graph(batch="b", embed="h")
    x = g.mul(f"net.{region}.x", g.data("data.x", "batch embed"), g.parameter("net.weight", "embed"))
    x = g.unary(name, x, "tanh")
    g.sum("loss.sum", g.sum("net.rows", g.mul("net.square", x, x), to="batch"))
    step = on(Model.of_graph("named", g.build()), {"dp": ["batch"]},
              states={"activations": {f"region:{region}": "M"}})
    assert [e.path for e in step.events if e.verb == "free" and e.on_tensor] == [f"forward.net.{region}.free"]
    assert verdict(step) == (PROVED, None)


def test_a_copy_of_a_copy_is_labelled_under_it() -> None:
    """One axis gathers what another then uses for itself: the label of the second begins with that of the first."""
    step = on("gpt, parallel", {"x": ["heads", "ffn", "seq"], "y": ["ffn"]})
    assert step.event("forward.layer.attn.q.compute").reads[0] == "layer.norm1.out@x"
    assert step.event("forward.layer.mlp.up.compute").reads[0] == "layer.norm1.out@x/y"
    assert step.event("backward.layer.norm1.out.grad.all_reduce[y]").version == "x/y"
    assert verdict(step) == (PROVED, None)


# what follows from the redistribution table

def kind(place: str) -> Kind:
    return Kind(place[0])


def way_back(event: Event) -> str:
    """The verb of the event that the gradient needs; "" where the table says none."""
    found = redistribution(DUAL[kind(event.to)], DUAL[kind(event.source)]).event
    return "" if found == "none" else VERB_OF.get(found, found)


LISTS = {
    "tp": ["heads", "ffn", "vocab"],
    "tp and sp": ["loss.none", "heads", "ffn", "vocab", "seq"],
    "cp": ["seq"],
    "heads, then seq": ["heads", "seq"],
    "embed": ["embed"],
}


@pytest.mark.parametrize("model", [*TRANSFORMERS, "qk-normed"])
@pytest.mark.parametrize("sharing", ["shared", "per_use"])
@pytest.mark.parametrize("entries", LISTS)
def test_every_redistribution_has_its_conjugate(entries: str, sharing: str, model: str) -> None:
    made = MODELS[model].graph
    fits = [e for e in LISTS[entries] if e != "vocab" or e in made.dims]
    step = on(model, {"x": fits}, schedule={"sharing": sharing})
    needs = needs_gradient(made)
    there = [e for e in step.phase("forward") if e.on_tensor and e.source and e.tensor in needs]
    back = Counter((e.tensor, e.version, e.axes, e.verb, e.source, e.to) for e in step.phase("backward")
                   if e.on_gradient and e.source)
    assert there
    for event in there:
        if verb := way_back(event):
            source, to = (dual_place(p) for p in (event.to, event.source))
            assert back[event.tensor, event.version, event.axes, verb, source, to] == 1, event.path


def dual_place(place: str) -> str:
    return place if kind(place) is Kind.S else DUAL[kind(place)].value


@pytest.mark.parametrize("model", TRANSFORMERS)
@pytest.mark.parametrize("strategy", CATALOGUE)
def test_one_compute_per_op_and_one_backward_per_op_that_needs_one(strategy: str, model: str) -> None:
    step, made = step_of(strategy, model), MODELS[model].graph
    forward = [e.value for e in step.phase("forward") if e.verb == "compute" and e.on_tensor]
    assert forward == [op.output for op in made.ops[:-1]]
    needs = needs_gradient(made)
    back = [e.tensor for e in step.phase("backward") if e.verb == "compute" and e.on_gradient]
    wanted = [op.output for op in made.ops if any(name in needs for name in op.inputs)]
    assert sorted(back) == sorted(wanted)
    for event in step.events:
        if event.reads and event.verb == "compute" and event.on_tensor:
            op = made.producer(event.tensor)
            assert op is not None and tuple(r.partition("@")[0] for r in event.reads) == op.inputs


@pytest.mark.parametrize("model", TRANSFORMERS)
@pytest.mark.parametrize("strategy", CATALOGUE)
def test_every_event_gives_its_reason_and_a_path_of_its_own(strategy: str, model: str) -> None:
    step = step_of(strategy, model)
    assert len(set(paths(step))) == len(step.events)
    assert all(e.rule.name != "written" and e.rule.why for e in step.events)


# what the text says

@pytest.mark.parametrize(("strategy", "model"), [
    ("zero3*tp_sp", "gpt2"), ("zero1*tp*recompute_full", "llama-3-8b"), ("tp_sp_keep*recompute_selective", "gpt2")])
def test_a_written_program_reads_back_equal(strategy: str, model: str) -> None:
    step = derive(parse_strategy(strategy), resolve_model(model))
    file = parse_strategy_file(write_program(step, parse_strategy(strategy)), "p.toml")
    assert read_program(file.events, step.reference, file.positions, file.loops) == step.events
    assert file.strategy == parse_strategy(strategy)


@pytest.mark.parametrize("strategy", ["zero3*tp_sp", "tp_sp*recompute_full"])
def test_the_number_of_events_does_not_grow(strategy: str) -> None:
    counts = {len(derive(parse_strategy(strategy), resolve_model(model)).events) for model in ("gpt2", "gpt3-175b")}
    assert len(counts) == 1
    more = derive(parse_strategy(strategy.replace("tp_sp", "tp_sp[tp=8]")), MODELS["gpt"])
    assert [e.path for e in more.events] == paths(step_of(strategy))


# graphs that users write

def two_layer_mlp() -> Model:
    g = graph(batch="b", embed="h", ffn="f")
    x = g.einsum("net.up", g.data("data.x", "batch embed"), g.parameter("net.up.weight", "embed ffn"), to="batch ffn")
    y = g.einsum("net.down", g.unary("net.gelu", x, "gelu"), g.parameter("net.down.weight", "ffn embed"),
                 to="batch embed")
    g.sum("net.rows", g.unary("net.tanh", y, "tanh"), to="batch")
    g.sum("loss.sum", "net.rows")
    return Model.of_graph("two-layer mlp", g.build())


def routed() -> Model:
    """A gate per token, made by a small replicated weight, multiplies a hidden value that is split along ffn."""
    g = graph(batch="b", seq="s", embed="h", ffn="f")
    x = g.mul("net.in", g.data("data.x", "batch seq embed"), g.parameter("net.in.weight", "embed"))
    x = g.norm("net.norm", x, "embed", bias=False)
    logit = g.einsum("net.router", x, g.parameter("net.router.weight", "embed"), to="batch seq")
    gate = g.unary("net.gate", logit, "silu")
    up = g.unary("net.act", g.linear("net.up", x, "batch seq ffn", "embed ffn"), "relu")
    y = g.linear("net.down", g.mul("net.gated", up, gate), "batch seq embed", "ffn embed")
    g.sum("net.rows", g.mul("net.square", y, y), to="batch seq")
    g.sum("loss.sum", "net.rows")
    return Model.of_graph("routed", g.build())


def verdict(step: Step) -> tuple[str, str | None]:
    from placealg.check.prove import prove

    report = prove(step)
    return str(report.verdict), report.counterexample.mass if report.counterexample else None


def test_a_user_s_mlp_is_split_as_megatron_splits_it() -> None:
    step = on(two_layer_mlp(), {"dp": ["batch"], "tp": ["ffn"]})
    sent = [e.path for e in step.events if e.on_tensor and e.verb in SENT]
    assert sent == ["forward.net.down.all_reduce[tp]"], "the input is data: its gradient goes nowhere"
    assert verdict(step) == (PROVED, None)
    assert verdict(edit(step, drop="forward.net.down.all_reduce[tp]"))[0] == REFUTED


def test_a_norm_over_a_dim_inside_a_head_is_summed_over_the_axis_that_splits_heads() -> None:
    """The norm's weight has no heads: each rank has the gradient of its own heads, a part of the whole."""
    step = on("qk-normed", {"dp": ["batch"], "tp": ["heads", "ffn"]})
    group = step.reference.group("block.attn.q.norm.weight")
    assert group.split == ()
    assert step.event("reduce.block.attn.q.norm.weight.grad_sum.reduce[dp,tp]").to == "I"
    assert not any(e.path.startswith("reduce.block.weight") and "tp" in e.axes for e in step.events)
    assert verdict(step) == (PROVED, None)
    assert verdict(edit(step, set="reduce.block.attn.q.norm.weight.grad_sum.reduce*", axes=["dp"])) == (REFUTED, "1/tp")


def test_a_router_s_gradient_is_whole_once_the_gate_s_is_summed() -> None:
    """The gate is whole and used by every rank's shard, so its gradient is partial; what made it need not be summed."""
    step = on(routed(), {"dp": ["batch"], "tp": ["ffn"]})
    event = step.event("backward.net.gate.grad.all_reduce[tp]")
    assert (event.source, event.to) == ("P", "I")
    group = next(g for g in step.reference.groups if "net.router.weight" in g.parameters)
    assert all("tp" not in e.axes for e in step.events if e.group == group.name and e.verb == "reduce")
    assert verdict(step) == (PROVED, None)
    assert verdict(edit(step, drop=event.path)) == (REFUTED, "1/tp")
    twice = {"insert": {"path": f"reduce.{group.name}.grad_sum.reduce[tp]", "op": "sum", "to": "I"},
             "after": f"reduce.{group.name}.grad_sum.reduce[dp]"}
    assert verdict(edit(step, twice)) == (REFUTED, "tp")


@pytest.mark.parametrize(("region", "replay"), [("mlp", "whole"), ("attn", "whole"), ("mlp", "early_stop")])
def test_what_runs_again_reads_what_was_gathered_again(region: str, replay: str) -> None:
    """In a parallel block attention and MLP read one gathered norm: it is there before either runs again."""
    step = on("gpt, parallel", {"x": ["heads", "ffn", "seq"]}, schedule={"replay": replay},
              states={"activations": {"x": "S*", f"region:{region}": "M"}})
    assert prove(step).verdict == PROVED
    events = [e for e in step.events if e.phase == "backward" and e.unit == "layer"]
    gathered = [e.path for e in events].index("backward.layer.norm1.out.all_gather[x]")
    assert gathered < min(k for k, e in enumerate(events) if e.verb == "compute" and not e.on_gradient)
    assert sum(e.value == "layer.norm1.out" and e.verb == "all_gather" for e in events) == 1


@pytest.mark.parametrize(("replay", "first"), [("whole", "dispatch.pairs"), ("by_dependency", "router.logits.grad")])
def test_a_value_is_gathered_again_for_the_first_that_reads_it_again(replay: str, first: str) -> None:
    """Dispatch hands tokens on, so that its backward reads none of them; its replay does, where it runs again."""
    step = derive(strategy_on("mine", {"x": None}, dims={"x": ["expert", "seq"]}, schedule={"replay": replay},
                              states={"activations": {"x": "S*", "region:dispatch": "M"}}), moe())
    assert prove(step).verdict == PROVED
    events = [e for e in step.events if e.phase == "backward" and e.unit == "layer"]
    gathered = [e.path for e in events].index("backward.layer.norm2.out.all_gather[x]")
    readers = [k for k, e in enumerate(events) if any(r.startswith("layer.norm2.out@") for r in e.reads)
               and e.value != "layer.dispatch.pairs.grad"]
    assert events[readers[0]].value == f"layer.{first}" and gathered == readers[0] - 1
    (freed,) = [e for e in events if e.verb == "free" and e.value == "layer.norm2.out"]
    assert (freed.version, freed.rule) == (events[gathered].version, events[gathered].rule)
    assert freed.version and freed.rule.name == "hold_shard"


def test_a_further_term_of_the_loss_starts_by_a_rule_of_its_own() -> None:
    step = derive(parse_strategy("dp"), resolve_model("balanced"))
    assert [str(e.divisor) for e in step.events if e.rule and e.rule.name == "term_of_loss"] == ["m*tokens"] * 2
