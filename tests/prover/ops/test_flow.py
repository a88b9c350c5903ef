"""What every rank holds of every tensor, without a solver: derived programs are whole, and broken ones say where.

In a derived program no op reads what is not complete, and what the ranks add to a parameter's gradient counts every
contribution once, in plain numbers. In a broken one the first fault is the event that reads what went wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from nets import weighed_by_data
from test_derived import MODELS
from test_prove_network import LISTS
from worlds import World

from placealg.arith import ONE
from placealg.frozen import FrozenMap
from placealg.models.backward import differentiated
from placealg.placement import Kind
from placealg.prover.calculus.contribution import Value
from placealg.prover.calculus.positions import OWNER, at
from placealg.prover.ops.findings import SEED
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.paths import mask_of, substituted
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.step.split import place
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import strategy_on

WHOLE_PROGRAMS = (
    ("zero3*tp_sp", "llama"), ("zero3*tp_sp", "gpt"), ("hsdp*tp_sp", "gpt, parallel"), ("zero1*tp", "llama, biased"),
    ("tp_sp_keep*recompute_selective", "gpt"), ("zero1*tp*recompute_full", "llama"), ("cp_ring", "llama"),
    ("cp_ulysses", "llama"), ("zero1*pp", "gpt"), ("tp_sp*pp_zb_h2", "llama"),
    ("tp*pp_interleaved", "llama"), ("dp*ep", "moe"), ("tp", "deepseek"),
    *((lists, "llama") for lists in ("cp", "dp*cp*tp", "tp over groups", "mlp.embed")),
    ("two axes of tp", "llama, biased"), ("tp", "qk-normed"), ("mlp", "mlp"),
)


def step_of(strategy: str, model: str) -> Step:
    if strategy in LISTS and (strategy != "tp" or model == "qk-normed"):
        dims = LISTS[strategy]
        return derive(strategy_on(strategy, dict.fromkeys(dims), dims=dims), MODELS[model])
    return derive(parse_strategy(strategy), MODELS[model])


def summed_axes(step: Step, parameter: str) -> set[str]:
    """The axes along which a program sums a parameter's gradient."""
    group = next(g for g in step.reference.groups if parameter in g.parameters)
    return {a for e in step.events if e.verb == "reduce" and e.group == group.name for a in e.axes}


def counts_once(step: Step, parameter: str, value: Value) -> bool:
    """Whether the ranks that sum a gradient count a contribution once altogether, wherever it is held."""
    pipeline = step.reference.pipeline
    names = [*step.reference.mesh.names, *([f"{pipeline.axis}_ends"] if pipeline else [])]
    axes = summed_axes(step, parameter)
    axes = {f"{a}_ends" if pipeline and a == pipeline.axis else a for a in axes}
    plain = substituted(value, SEED, ONE)
    for seed in (1, 2, 3):
        world = World(FrozenMap({a: 2 + k % 2 for k, a in enumerate(names)}), seed)
        for rank in world.ranks():
            if world.stands(plain.mask, rank):
                together = [r for r in world.ranks() if all(r[a] == rank[a] for a in rank if a not in axes)]
                parts = [world.on(plain, r) for r in together]
                if "garbage" in parts or None in parts or sum(parts) != 1:
                    return False
    return True


@pytest.mark.parametrize(("strategy", "model"), WHOLE_PROGRAMS)
def test_a_derived_program_is_whole(strategy: str, model: str) -> None:
    step = step_of(strategy, model)
    flow, graph = Flows(step).at("only"), step.reference.graph
    assert (flow.faults, flow.open) == ([], []) and flow.demands
    used = {(name, f"{op.output}/{k}") for op in graph.ops for k in differentiated(graph, op)
            for name in [op.inputs[k]] if graph.tensors[name].kind == "parameter"}
    assert {key for parts in flow.parts.values() for key in parts} == used
    for parts in flow.parts.values():
        for (parameter, _), part in parts.items():
            assert part.held and all(counts_once(step, parameter, v) for v in part.held), part


@pytest.mark.parametrize(("lists", "model"), [("dp*cp*tp", "llama"), ("tp over groups", "llama"), ("mlp", "mlp")])
def test_results_are_held_where_the_split_rule_puts_them(lists: str, model: str) -> None:
    step = step_of(lists, model)
    placed = place(MODELS[model].graph, {axis: tuple(dims) for axis, dims in LISTS[lists].items()})
    masks = Flows(step).at("only").masks
    events = {e.tensor: e.path for e in step.phase("forward") if e.verb == "compute"}
    for made in placed.ops[:-1]:
        assert masks[events[made.op.output]] == {(a, at(p.dim)) for a, p in made.result.items() if p.kind is Kind.S}


SUM = "where a sum in it is not complete, or counts too much"
BROKEN: tuple[tuple[str, str, list[dict[str, Any]], str, str], ...] = (
    # forward: the first op that reads what is not whole
    ("zero3*tp_sp", "gpt", [
        {"drop": "forward.layer.attn.out.reduce_scatter[tp]"},
        {"insert": {"path": "forward.layer.attn.out.biased.reduce_scatter[tp]", "from": "P", "to": "S(seq)"},
         "after": "forward.layer.attn.out.biased.compute"}],
     "forward.layer.norm2.out.compute", f"reads layer.residual1 {SUM}"),
    ("zero3*tp_sp", "gpt", [{"drop": "forward.layer.norm1.out.all_gather[tp]"}],
     "forward.layer.attn.core.probs.compute", "works on a part of the rows of layer.attn.core.scaled"),
    ("mlp.embed", "llama", [{"drop": "forward.layer.mlp.gate.all_reduce[tp]"}],
     "forward.layer.mlp.silu.compute", f"reads layer.mlp.gate {SUM}"),
    ("zero3*tp_sp", "llama", [{"set": "forward.head.loss.compute[tp]", "axes": []}],
     "forward.head.loss.compute", "takes or merges statistics of head.logits over other axes than split its rows"),
    ("zero1*tp", "gpt", [{"set": "forward.head.loss.compute[tp]", "axes": ["dp"]}],
     "forward.head.loss.compute[dp]", "merges over dp statistics of rows that dp splits"),
    ("zero1*tp", "gpt", [{"set": "forward.head.loss.compute[tp]", "axes": ["tp", "dp"]}],
     "forward.head.loss.compute[tp,dp]", "merges over dp statistics of rows that dp splits"),
    ("zero1*tp", "gpt", [{"drop": "forward.embedding.tokens.all_reduce[tp]"}],
     "forward.layer.norm1.out.compute", f"reads layer.in {SUM}"),
    ("zero1*tp", "gpt", [{"double": "forward.layer.attn.out.all_reduce[tp]"}],
     "forward.layer.norm2.out.compute", f"reads layer.residual1 {SUM}"),
    ("zero1*tp", "gpt", [{"drop": "forward.layer.norm1.out.compute"}],
     "forward.layer.attn.q.compute", "reads layer.norm1.out, which is not there"),
    ("pp", "gpt", [{"drop": "forward.head.norm.out.compute"}],
     "forward.head.logits.compute", "reads head.norm.out, which is not there"),
    ("zero1*tp*recompute_full", "llama", [{"drop": "backward.layer.mlp.silu.compute"}],
     "backward.layer.mlp.product.compute", "reads layer.mlp.silu, which is not there"),
    ("zero1*tp*recompute_selective", "gpt", [{"drop": "backward.layer.attn.core.probs.compute"}],
     "backward.layer.attn.core.dropped.compute", "reads layer.attn.core.probs, which is not there"),
    ("zero3*tp_sp*recompute_full", "gpt", [{"drop": "backward.layer.norm1.out.all_gather[tp]"}],
     "backward.layer.attn.core.probs.compute", "works on a part of the rows of layer.attn.core.scaled"),
    ("cp", "llama", [{"drop": "forward.layer.attn.core.keys.all_gather[cp]"}],
     "forward.layer.attn.core.mixed.compute", "works on a part of the rows of layer.attn.core.keys"),
    # messages between stages
    ("zero1*pp", "mlp", [{"drop": "forward.layer.in.recv[pp]"}],
     "forward.layer.mlp.gelu.compute", "reads layer.mlp.up.biased, which is undefined"),
    ("zero1*pp", "gpt", [{"drop": "forward.layer.in.recv[pp]"}],
     "forward.layer.norm1.out.compute", "reads layer.in, which is undefined"),
    ("zero1*pp", "mlp", [{"double": "forward.layer.in.recv[pp]"}],
     "forward.layer.in.recv[pp]#2", "waits for a message that nobody sends"),
    ("tp_sp*pp", "llama", [{"drop": "forward.layer.out.send[pp]"}],
     "forward.layer.in.recv[pp]", "waits for a message that nobody sends"),
    ("tp_sp*pp", "llama", [{"drop": "backward.layer.in.grad.send[pp]"}],
     "backward.layer.out.grad.recv[pp]", "waits for a message that nobody sends"),
    ("zero1*pp", "gpt", [{"double": "backward.layer.out.grad.recv[pp]"}],
     "backward.layer.out.grad.recv[pp]#2", "waits for a message that nobody sends"),
    # backward: what begins twice, does not repeat, is handed on twice, or not
    ("zero1*tp", "llama", [{"drop": "backward.layer.norm2.out.grad.all_reduce[tp]"}],
     "backward.layer.out.grad.compute", "hands on what enters instances of layer, and that does not repeat"),
    ("zero1*tp", "gpt", [{"double": "backward.loss.sum.grad.compute"}],
     "backward.loss.sum.grad.compute#2", "starts the backward once more"),
    ("zero1*tp", "llama", [{"drop": "backward.layer.norm2.out.grad.all_reduce[tp]"},
                           {"double": "backward.layer.attn.out.grad.compute"}],
     "backward.layer.attn.out.grad.compute#2", "adds to the gradient of layer.attn.core.mixed once more"),
    ("zero1*tp", "gpt", [{"double": "backward.layer.in.grad.assign"}],
     "backward.layer.in.grad.assign#2", "passes the input of one instance of layer to the next a second time"),
    ("mlp", "mlp", [{"drop": "backward.layer.in.grad.assign"}],
     "backward.layer.in.grad.all_reduce[tp]", "passes nothing from one instance of layer to the next"),
)


@pytest.mark.parametrize(("strategy", "model", "changes", "event", "says"), BROKEN)
def test_a_broken_program_says_where(strategy: str, model: str, changes: list[dict[str, Any]], event: str,
                                     says: str) -> None:
    flow = Flows(edit(step_of(strategy, model), *changes)).at("only")
    first = next(iter((*flow.faults, *flow.open)))
    assert (first.event, first.says) == (event, says)
    assert all(demand.mask == mask_of(demand.held) and isinstance(demand.held, tuple) for demand in flow.demands)
    assert all((demand.held, demand.mask) == ((), frozenset()) for demand in flow.open)


MISCOUNTED: tuple[tuple[str, str, list[dict[str, Any]], str], ...] = (
    ("zero3*tp_sp", "llama", [{"drop": "backward.layer.norm2.out.all_gather[tp]"}], "layer.mlp.up.weight"),
    ("zero3*tp_sp", "llama", [{"drop": "backward.layer.mlp.up.grad.compute"}], "layer.norm2.weight"),
    ("zero1*tp", "gpt", [{"drop": "backward.layer.norm1.out.grad.all_reduce[tp]"}], "layer.norm1.weight"),
    ("zero1*tp", "gpt", [{"double": "backward.layer.norm1.out.grad.all_reduce[tp]"}], "layer.norm1.weight"),
    ("zero1*tp", "gpt", [{"set": "backward.layer.norm1.out.grad.all_reduce[tp]", "op": "mean"}], "layer.norm1.weight"),
    ("zero1*tp", "gpt", [{"drop": "forward.loss.compute"}], "layer.mlp.up.weight"),
    ("zero1*pp", "gpt", [{"drop": "backward.layer.out.grad.recv[pp]"}], "layer.mlp.up.weight"),
    ("tp_sp*pp", "llama", [{"drop": "backward.layer.out.grad.recv[pp]"}], "layer.attn.q.weight"),
    ("mlp", "mlp", [{"double": "backward.layer.mlp.up.grad.compute"}], "layer.mlp.up.weight"),
    ("cp", "llama", [{"drop": "backward.layer.attn.core.keys.grad.reduce_scatter[cp]"}], "layer.attn.k.weight"),
)


@pytest.mark.parametrize(("strategy", "model", "changes", "parameter"), MISCOUNTED)
def test_a_broken_backward_miscounts(strategy: str, model: str, changes: list[dict[str, Any]], parameter: str) -> None:
    base = step_of(strategy, model)
    flow = Flows(edit(base, *changes)).at("only")
    held = [v for parts in flow.parts.values() for (name, _), part in parts.items() if name == parameter
            for v in part.held]
    assert not held or not all(counts_once(base, parameter, v) for v in held)




def test_layers_that_leave_others_another_copy_of_data_are_not_followed() -> None:
    """A region's end takes what was made of data before the loop: the next layer finds no such copy."""
    lists = strategy_on("copies", {"a1": None}, dims={"a1": []}, states={"activations": {"region:layer": "M"}})
    derived = derive(lists, weighed_by_data())
    step = edit(derived, {
        "insert": {"path": "forward.data.gate.scale[a1]", "unit": "embedding", "version": "a1", "divisor": "a1"},
        "before": "forward.embedding.tokens.compute"},
        {"set": "forward.layer.gated.compute", "reads": ["layer.in", "data.gate@a1"]},
        {"insert": {"path": "forward.layer.gated.all_reduce[a1]", "unit": "layer"},
         "after": "forward.layer.gated.compute"})
    assert not Flows(derived).at("only").open
    assert [(d.event, d.says) for d in Flows(step).at("only").open] == [
        ("forward.layer.in.assign", "is not followed into other instances of layer: they find another data.gate")]


def test_what_is_read_unless_it_is_said() -> None:
    """A loss reads what the last op takes, and what enters a repeated unit is what its loop begins with."""
    step = step_of("zero1*pp", "gpt")
    graph = step.reference.graph
    for path, read in (("forward.loss.compute", graph.ops[-1].inputs[0]),
                       *((path, graph.loops[0].first) for path in (
                           "forward.layer.in.assign", "backward.layer.in.grad.assign"))):
        event = step.event(path)
        silent, said = (replace(step, events=tuple(replace(e, reads=reads) if e == event else e for e in step.events))
                        for reads in ((), (read,)))
        assert Flows(silent).at("only") == Flows(said).at("only") == Flows(step).at("only")


def test_what_does_not_run_in_a_microbatch_is_in_no_order_there() -> None:
    """A gradient that the first microbatch alone scales, in the forward."""
    late = {"insert": {"path": "forward.layer.in.grad.scale", "unit": "layer", "at": "first"},
            "after": "forward.layer.in.assign"}
    step = edit(step_of("zero3*tp_sp", "llama"), late)
    flows = Flows(step)
    assert [d.says for d in flows.at("first").open] == ["acts on layer.in.grad in the forward"]
    assert not flows.at("last").open and not flows.at("middle").open


def test_a_parameter_of_a_layer_is_its_stage_s_own() -> None:
    step = step_of("zero1*pp", "gpt")
    for path, name in (("backward.layer.mlp.up.grad.compute", "layer.mlp.up.weight"),
                       ("backward.head.norm.out.grad.compute", "head.norm.weight")):
        (part,) = [p for p in Flows(step).at("only").of(path, name) if p.parameter == name]
        assert {pair for value in part.held for pair in value.mask if pair[0] == "pp"} == {("pp", OWNER)}
        assert not any(p.startswith("stage:") for v in part.held for t in v.terms for p in t.at.values())
