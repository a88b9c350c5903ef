"""Mixtures of experts: derived by the split rule alone, proved, refuted when broken, costed, with unequal loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placealg.check.prove import prove
from placealg.cost.communication import communication
from placealg.cost.document import BALANCED, assumed
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.regions import kept_for_backward
from placealg.errors import InputError
from placealg.models.backward import backward, needs_gradient, sparse_gradients
from placealg.models.build import Builder, graph
from placealg.models.config import from_config, resolve_model
from placealg.models.graph import Graph
from placealg.models.model import Model
from placealg.models.transformer import moe
from placealg.prover.verdict import BOUNDED, PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, functions, simulate
from placealg.simulator.box import Box
from placealg.step.compatibility import check_sizes, fit_problems
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy, overlay, strategy_on

MODELS: Mapping[str, Model] = {"moe": moe(), **{n: from_config(n) for n in ("mixtral-8x7b", "qwen3-30b-a3b")}}
TP = ("heads", "ffn", "vocab")
LISTS: dict[str, dict[str, list[str]]] = {
    "experts over tp": {"dp": ["batch"], "tp": ["loss.none", "expert.expert", *TP, "seq"]},
    "experts over tp, whole tokens": {"dp": ["batch"], "tp": ["expert.expert", *TP]},
    "choice": {"dp": ["batch"], "x": ["choice"], "ep": ["expert.expert", "batch"]},
    "two axes of experts": {"e1": ["expert.expert", "batch"], "e2": ["expert.expert", "batch"]},
}
"""Strategies that nobody has named, as lists of dims."""
TOKEN_MEAN = {"loss": {"preset": "token_mean"}}


def strategy_of(text: str, **tables: Any) -> Strategy:
    """An expression, or one of LISTS, with tables changed."""
    if text in LISTS:
        return strategy_on(text, dict.fromkeys(LISTS[text]), dims=LISTS[text], **tables)
    return overlay(parse_strategy(text), tables)


def step_of(text: str, model: str = "moe", **tables: Any) -> Step:
    return derive(strategy_of(text, **tables), MODELS[model])


DERIVED = ("ep", "dp*ep", "zero1*ep", "zero3[fsdp]*tp_sp[inner]*ep[across]", *LISTS)


@pytest.mark.some(2)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("loss", ["mean_of_means", "token_mean"])
@pytest.mark.parametrize("strategy", DERIVED)
def test_experts_are_proved_for_all_sizes(strategy: str, loss: str, model: str) -> None:
    report = prove(step_of(strategy, model, loss={"preset": loss}))
    assert (report.verdict, report.cls) == (PROVED, PARAMETRIC), report.refuted()
    assert [h.name for h in report.hypotheses] == [
        *(["equal_counts"] if loss == "mean_of_means" else []), "dropless"]


@pytest.mark.parametrize("region", ["expert", "layer", "router"])
def test_recomputed_experts_are_proved_and_equal(region: str) -> None:
    step = step_of("dp*ep", states={"activations": {f"region:{region}": "M"}})
    assert prove(step).verdict == PROVED
    assert simulate(step, Setting.equal(step.reference, {"dp": 2, "ep": 2}, 1, 1)).difference is None


@pytest.mark.some(4)
@pytest.mark.parametrize("dims", [
    {"x": ["embed"]},
    {"x": ["router.expert", "embed", "batch"], "y": ["expert.expert", "choice"]},
])
@pytest.mark.parametrize("sharing", ["shared", "per_use"])
@pytest.mark.parametrize("replay", ["whole", "by_dependency"])
@pytest.mark.parametrize("model", ["moe", "mixtral-8x7b"])
def test_a_router_that_is_recomputed_leaves_what_others_read(model: str, replay: str, sharing: str,
                                                             dims: dict[str, list[str]]) -> None:
    """Versions from which those of other regions come, and what the gradient of a gate reads, do not end with it."""
    step = derive(strategy_on("mine", dict.fromkeys(dims), dims=dims, states={"activations": {"region:router": "M"}},
                              schedule={"replay": replay, "sharing": sharing}, **TOKEN_MEAN), MODELS[model])
    assert prove(step).verdict == PROVED
    assert simulate(step, Setting.equal(step.reference, dict.fromkeys(dims, 2), 1, 1)).difference is None


@pytest.mark.some(2)
@pytest.mark.parametrize("model", ["moe", "mixtral-8x7b"])
@pytest.mark.parametrize("strategy", DERIVED)
def test_a_run_is_the_single_device_s(strategy: str, model: str) -> None:
    step = step_of(strategy, model, **TOKEN_MEAN)
    names = step.reference.mesh.names
    small = dict.fromkeys(names, 2)
    assert simulate(step, Setting.equal(step.reference, small, 2, 1, seed=1)).difference is None
    for sizes in ((3, 1, 2), (1, 3, 2)):
        setting = Setting.unequal(step.reference, dict(zip(names, sizes, strict=False)), 1, seed=3)
        assert simulate(step, setting).difference is None


DOWN, UP = "layer.expert.down", "layer.dispatch.pairs"
EXPERTS = "layer.weight"
ROUTER = "reduce.layer.router.weight.grad_sum.reduce*"
NORM = "reduce.layer.norm1.weight.grad_sum.reduce*"
REFUTED_EDITS: list[tuple[str, list[dict[str, Any]], str, str | None]] = [
    ("dp*ep", [{"drop": f"reduce.{EXPERTS}.grad_sum.scale"}], "gradient", "ep"),
    ("ep", [{"drop": f"reduce.{EXPERTS}.grad_sum.scale"}], "gradient", "ep"),
    ("dp*ep", [{"set": f"reduce.{EXPERTS}.grad_sum.reduce*", "axes": ["dp", "ep"]}], "gradient", None),
    ("dp*ep", [{"set": ROUTER, "axes": ["dp"]}], "gradient", "1"),
    ("dp*ep", [{"set": NORM, "axes": ["dp"]}], "gradient", None),
    ("dp*ep", [{"set": NORM, "axes": ["ep"]}], "gradient", None),
    ("dp*ep", [{"drop": f"forward.{UP}.all_to_all[ep]"}], "forward", None),
    ("dp*ep", [{"drop": f"forward.{DOWN}.all_to_all[ep]"}], "forward", None),
    ("dp*ep", [{"drop": f"backward.{DOWN}.grad.all_to_all[ep]"}], "gradient", None),
    ("dp*ep", [{"drop": f"backward.{UP}.grad.all_to_all[ep]"}], "gradient", None),
    ("dp*ep", [{"drop": "forward.layer.router.route.compute"}], "forward", None),
]


@pytest.mark.some(2)
@pytest.mark.parametrize(("strategy", "changes", "obligation", "mass"), REFUTED_EDITS,
                         ids=[f"{s}: {c[0]}" for s, c, _, _ in REFUTED_EDITS])
def test_broken_experts_are_refuted_with_a_replay(strategy: str, changes: list[dict[str, Any]], obligation: str,
                                                  mass: str | None) -> None:
    report = prove(edit(step_of(strategy), *changes))
    assert (report.verdict, report.cls) == (REFUTED, BOUNDED)
    found = report.counterexample
    assert found is not None
    assert obligation in report.refuted()
    assert mass is None or (found.obligation, found.mass) == (obligation, mass)
    assert found.single_device != found.distributed.split(" (")[0]


def test_which_gradients_are_reduced_over_which_axes() -> None:
    step = step_of("dp*ep")
    over = {e.group: e.axes for e in step.phase("reduce") if e.verb == "reduce"}
    assert over.pop(EXPERTS) == ("dp",)
    assert set(over.values()) == {("dp", "ep")}
    assert "layer.router.weight" in over
    experts = step.reference.group(EXPERTS)
    assert experts.split == ("ep",)
    assert all(".expert." in name for name in experts.parameters)


# the one-hot route

def test_what_is_sparse() -> None:
    built = moe().graph
    sparse = {t.name for t in built.tensors.values() if t.sparse}
    inside = {f"layer.expert.{n}" for n in ("gate", "up", "silu", "product", "down")}
    assert sparse == {"layer.router.route", UP, *inside}
    assert {n for n, s in sparse_gradients(built).items() if s} == sparse - {"layer.router.route"}
    assert str(built.tensors[UP].elements) == "b*h*s*topk"
    assert "layer.router.route" not in needs_gradient(built)
    assert not any(b.forward == "layer.router.route" for b in backward(built))


def routed(mask: bool, bias: bool = False) -> tuple[Builder, Graph]:
    """Experts whose results are added with or without the route as a factor, and with or without a bias."""
    g = graph(batch="b", embed="h", expert="experts", choice="topk", out="f")
    x = g.data("data.x", "batch embed")
    scores = g.einsum("net.router.scores", x, g.parameter("net.router.weight", "embed expert"), to="batch expert")
    route = g.route("net.router.route", scores, over="expert", choice="choice")
    gates = g.einsum("net.router.gates", scores, route, to="batch choice")
    y = g.einsum("net.pairs", x, route, to="batch choice expert embed")
    y = g.einsum("net.expert.y", y, g.parameter("net.expert.weight", "expert embed out"), to="batch choice expert out")
    y = g.add("net.expert.biased", y, g.parameter("net.expert.bias", "expert out")) if bias else y
    g.einsum("net.sum", y, gates, *([route] if mask else []), to="batch out")
    g.sum("net.loss", g.unary("net.gelu", "net.sum", "gelu"), to="batch")
    g.sum("loss.sum", "net.loss")
    return g, g.build()


def test_sparsity_is_derived_and_ends_where_it_does() -> None:
    _, plain = routed(mask=True)
    assert plain.tensors["net.expert.y"].sparse == {"expert": "net.router.route"}
    assert sparse_gradients(plain)["net.expert.y"] == {"expert": "net.router.route"}
    _, unmasked = routed(mask=False)
    assert unmasked.tensors["net.expert.y"].sparse
    assert not sparse_gradients(unmasked)["net.expert.y"]
    _, biased = routed(mask=True, bias=True)
    assert not biased.tensors["net.expert.biased"].sparse
    assert sparse_gradients(biased)["net.expert.y"]
    g, _ = routed(mask=True)
    summed = g.sum("net.more", "net.pairs", to="batch expert embed")
    assert not summed.sparse, "a token's choices are different experts"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_any_graph_with_a_route_is_derived_and_equal(mask: bool, bias: bool) -> None:
    model = Model.of_graph("routed", routed(mask, bias)[1])
    dims = {"dp": ["batch"], "ep": ["expert.expert", "batch"]}
    step = derive(strategy_on("ep", dict.fromkeys(dims), dims=dims, **TOKEN_MEAN), model)
    report = prove(step)
    outcome = simulate(step, Setting.unequal(step.reference, {"dp": 2, "ep": 2}, 1, seed=1))
    assert (report.verdict, outcome.difference) == (PROVED, None)


def test_numbers_are_zero_where_the_graph_says_so() -> None:
    _, built = routed(mask=True)
    extent = {"batch": tuple(range(9)), "expert": tuple(range(4))}
    scores = Box(extent, np.random.default_rng(5).integers(1, 9, (9, 4)))
    op = built.producer("net.router.route")
    assert op is not None
    route, _ = functions.forward(built, op, [scores], lambda _: np.zeros(0), {"choice": 2, "expert": 4})
    assert route.dims == ("batch", "choice", "expert")
    assert (route.numbers.sum(axis=2) == 1).all()
    assert (route.numbers.sum(axis=1) <= 1).all()
    chosen = (route.numbers * scores.numbers[:, None, :]).sum(axis=2)
    assert (chosen == np.sort(scores.numbers, axis=1)[:, ::-1][:, :2]).all()
    assert functions.UNARY["silu"](np.zeros(1, np.int64)) == functions.UNARY["gelu"](np.zeros(1, np.int64)) == 0


def test_an_expert_may_have_no_tokens() -> None:
    """One sequence of two tokens on eight experts: most have none, and the run is the single device's."""
    step = step_of("ep", **TOKEN_MEAN)
    setting = Setting({"ep": 4}, 1, {((0,), 0): 1, ((1,), 0): 0, ((2,), 0): 0, ((3,), 0): 0})
    assert simulate(step, setting).difference is None


# costs

def test_four_all_to_alls_of_the_chosen_pairs() -> None:
    step = step_of("zero1*ep")
    sent = [e for e in communication(step, "exact", "elements").events if e.collective == "all_to_all"]
    assert [e.path.partition(".")[0] for e in sent] == ["forward", "forward", "backward", "backward"]
    want = Formula.parse("topk*b*s*h*(ep - 1)/ep*L*m", "elements")
    assert all(e.formula == want for e in sent)


def test_pairs_are_conserved_and_experts_hold_as_many_for_every_ep() -> None:
    kept = {text: {k.tensor.partition("@")[0]: k.bytes for k in kept_for_backward(step_of(text))}
            for text in ("dp", "dp*ep")}
    assert kept["dp"].keys() == kept["dp*ep"].keys()
    for name, held in kept["dp"].items():
        assert held == kept["dp*ep"][name], name
    assert flop(step_of("dp")) == flop(step_of("dp*ep"))


def test_flop_count_the_chosen_experts_only() -> None:
    few, many = (flop(step_of("dp")).value(b=1, m=1, s=8, h=16, a=4, kv=2, f=32, L=2, V=10, topk=2, experts=n)
                 for n in (4, 8))
    assert few is not None and many is not None
    assert many - few == 2 * 2 * 8 * 3 * 16 * 4, "the router's products alone grow"


def test_the_hypothesis_stands_where_experts_are_split() -> None:
    assert BALANCED in assumed(step_of("dp*ep"))
    assert BALANCED not in assumed(step_of("dp"))


# configurations and faults

MIXTRAL = {"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100, "num_local_experts": 4,
           "num_experts_per_tok": 2}
QWEN = {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "moe_intermediate_size": 48, "vocab_size": 100, "num_experts": 8,
        "num_experts_per_tok": 2}


def write(folder: Path, *tables: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({k: v for table in tables for k, v in table.items()}, indent=1))
    return path


def test_counts_by_hand(tmp_path: Path) -> None:
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64 + 64 * 4 + 4 * 3 * 64 * 96
    assert from_config(write(tmp_path, MIXTRAL)).total() == 2 * layer + 2 * 6400 + 64
    layer = 2 * 64 * 128 + 2 * 64 * 64 + 2 * 64 + 2 * 32 + 64 * 8 + 8 * 3 * 64 * 48
    assert from_config(write(tmp_path, QWEN)).total() == 2 * layer + 2 * 6400 + 64


def test_gates_among_all_or_among_the_chosen(tmp_path: Path) -> None:
    def over(table: dict[str, Any]) -> list[tuple[str, ...]]:
        built = from_config(write(tmp_path, QWEN, table)).graph
        return [op.over for op in built.ops if op.kind == "softmax" and "router" in op.region]

    assert (over({}), over({"norm_topk_prob": True})) == ([("expert",)], [("choice",)])


@pytest.mark.parametrize(("base", "table", "message"), [
    (MIXTRAL, {"num_experts_per_tok": 5}, "num_experts_per_tok = 5 is more than num_local_experts = 4"),
    (MIXTRAL, {"num_local_experts": 0}, "num_local_experts = 0: the routed experts is a whole number of at least 1"),
    (MIXTRAL, {"num_local_experts": None}, "num_local_experts is null"),
    (MIXTRAL, {"num_experts": 8}, "'num_local_experts' and 'num_experts' are one field, and disagree"),
    (QWEN, {"num_experts_per_tok": 9}, "num_experts_per_tok = 9 is more than num_experts = 8"),
    (QWEN, {"mlp_only_layers": 1}, "mlp_only_layers"),
    (QWEN, {"mlp_only_layers": [2]}, r"mlp_only_layers = \[2\]: a list of layers, of 0 to 1"),
    (QWEN, {"norm_topk_prob": 1}, "norm_topk_prob = 1 is not true or false"),
])
def test_bad_fields(tmp_path: Path, base: dict[str, Any], table: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        from_config(write(tmp_path, base, table))
    assert "\n" not in str(caught.value)


def test_experts_that_do_not_divide() -> None:
    found = [str(e) for _, e in fit_problems(parse_strategy("ep[3]"), MODELS["mixtral-8x7b"])]
    assert found == ["ep = 3 does not divide expert = 8 of mixtral-8x7b"]
    with pytest.raises(InputError, match=r"ep = 16 does not divide expert = 8 of mixtral-8x7b; 8 would divide it"):
        check_sizes(parse_strategy("ep[16]"), MODELS["mixtral-8x7b"], {})


def test_a_model_without_experts() -> None:
    with pytest.raises(InputError, match=r"ep on gpt: \[dims\] ep names region 'expert', which gpt lacks"):
        derive(parse_strategy("ep"), resolve_model("gpt"))


def test_bad_routes() -> None:
    g = graph(batch="b", expert=4, choice=6, one="h")
    x = g.data("data.x", "batch expert")
    with pytest.raises(InputError, match="unknown dim 'chosen'"):
        g.route("net.route", x, over="expert", choice="chosen")
    with pytest.raises(InputError, match=r"over is the dim to choose along and .* given \(one, choice\), from"):
        g.route("net.route", x, over="one", choice="choice")
    with pytest.raises(InputError, match="the result has 'batch' twice"):
        g.route("net.route", x, over="expert", choice="batch")
    g.sum("loss.sum", g.route("net.route", x, over="expert", choice="choice"))
    with pytest.raises(InputError, match=r"net.route' \(route\): choice = 6 is more than expert = 4"):
        g.build()


def test_a_wrong_claim_of_sparsity() -> None:
    _, built = routed(mask=True)
    wrong = replace(built.tensors["net.sum"], sparse=built.tensors["net.pairs"].sparse)
    with pytest.raises(InputError, match=r"op 'net.sum': 'net.sum' is sparse along"):
        replace(built, tensors=built.tensors.plus({"net.sum": wrong}))


SENT_ONCE = {"dims": {"tp": ["loss.none", "dispatch.none", "combine.none", *TP, "seq"]}}
"""Tensor and sequence parallelism in which a token is gathered before it is sent to its experts."""


@pytest.mark.parametrize(("strategy", "tables", "model"), [
    ("tp", {}, "moe"), ("tp_sp", SENT_ONCE, "moe"), ("zero1*tp_sp*ep", SENT_ONCE, "mixtral-8x7b")])
def test_along_tp_a_token_is_sent_once_whatever_its_experts(strategy: str, tables: dict[str, Any], model: str) -> None:
    step = step_of(strategy, model, **tables)
    sent = [e for e in step.phase("forward", "backward")
            if e.on_tensor and e.verb.startswith(("all_", "reduce_")) and "tp" in e.axes]
    assert not [e for e in sent if {"choice", "embed"} <= set(step.reference.graph.tensors[e.tensor].dims)]
    assert any(e.tensor.startswith("layer.router.") and e.on_gradient for e in sent)
    assert prove(step).verdict == PROVED
    sizes = dict.fromkeys(step.reference.mesh.names, 2)
    assert simulate(step, Setting.equal(step.reference, sizes, 1, 1)).difference is None


@pytest.mark.parametrize("event", [
    "forward.layer.combine.sum.all_reduce[tp]", "backward.layer.router.chosen.grad.all_reduce[tp]",
    "backward.layer.norm2.out.grad.all_reduce[tp]"])
@pytest.mark.parametrize("change", ["drop", "double"])
def test_each_of_the_three_sums_of_an_expert_layer_is_needed_once(change: str, event: str) -> None:
    step = edit(step_of("tp"), {change: event})
    assert prove(step).verdict == REFUTED
    assert not simulate(step, Setting.equal(step.reference, {"tp": 2}, 1, 1)).equal


def test_a_sum_is_not_carried_where_that_makes_it_larger() -> None:
    g = graph(batch="b", embed="h", ffn="f", low="r")
    low = g.linear("low", g.data("data.input", "batch ffn"), "batch low", "ffn low")
    g.sum("loss.sum", g.unary("y", g.linear("high", low, "batch embed", "low embed"), "tanh"))
    step = derive(strategy_on("low rank", {"tp": None}, dims={"tp": ["ffn"]}), Model.of_graph("low rank", g.build()))
    assert [e.path for e in step.phase("forward") if e.verb == "all_reduce"] == ["forward.low.all_reduce[tp]"]
