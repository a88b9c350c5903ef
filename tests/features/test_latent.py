"""DeepSeek-V3: latent attention, shared experts and first dense layers are derived, proved, run, costed and counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placealg.check.prove import prove
from placealg.cost.communication import communication
from placealg.cost.document import assumed
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.memory import memory
from placealg.cost.regions import kept_for_backward
from placealg.errors import InputError
from placealg.models.backward import sparse_gradients
from placealg.models.build import graph
from placealg.models.config import from_config, resolve_model
from placealg.models.model import Model
from placealg.models.transformer import MLA, mla, moe
from placealg.prover.verdict import BOUNDED, PARAMETRIC, PROVED, REFUTED
from placealg.render.listing import model_page
from placealg.render.text_layout import plain
from placealg.simulator import Setting, simulate
from placealg.step.compatibility import check_sizes
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.step.text import read_program, write_program
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import overlay, strategy_on

DEEPSEEK = from_config("deepseek-v3")
MODELS: Mapping[str, Model] = {
    "mla": mla(), "unfused": mla(replace(MLA, flash=False, dropout=True)), "moe": moe(shared=True, first_dense=True),
    "deepseek-v3": DEEPSEEK}
TOKEN_MEAN = {"loss": {"preset": "token_mean"}}


def step_of(text: str, model: str = "deepseek-v3", **tables: Any) -> Step:
    return derive(overlay(parse_strategy(text), tables), MODELS[model])


CASES = [
    *(("mla", s) for s in ("tp", "zero3*tp_sp*cp", "dp*cp_ulysses", "zero1*tp_sp_keep*recompute_full")),
    *(("unfused", s) for s in ("tp", "zero3*cp_ulysses*tp", "tp_sp*recompute_selective")),
    *(("moe", s) for s in ("dp*ep", "tp_sp*ep*recompute_full")),
    *(("deepseek-v3", s) for s in ("tp", "zero3*tp_sp*ep*cp", "zero1*ep*cp_ulysses", "hsdp*ep*recompute_selective")),
]


@pytest.mark.some(4)
@pytest.mark.parametrize(("model", "strategy"), CASES)
def test_it_is_proved_for_all_sizes_and_runs_as_on_one_device(model: str, strategy: str) -> None:
    step = step_of(strategy, model, **TOKEN_MEAN)
    report = prove(step)
    assert (report.verdict, report.cls) == (PROVED, PARAMETRIC), report.refuted()
    names = step.reference.mesh.names
    assert simulate(step, Setting.equal(step.reference, dict.fromkeys(names, 2), 1, 1)).difference is None
    uneven, microbatches = dict(zip(names, (3, 1, 2, 1), strict=False)), 2 if len(names) == 1 else 1
    assert simulate(step, Setting.unequal(step.reference, uneven, microbatches, seed=4)).difference is None


def test_equal_counts_and_dropless_routing_are_the_hypotheses() -> None:
    report = prove(step_of("zero3*tp_sp*ep*cp"))
    assert (report.verdict, report.cls) == (PROVED, PARAMETRIC)
    assert [h.name for h in report.hypotheses] == ["equal_counts", "dropless"]


DOWN = "reduce.layer.attn.kv_down.weight.grad_sum.reduce*"
REFUTED_EDITS: list[tuple[str, str, dict[str, Any], str]] = [
    ("mla", "tp", {"drop": "backward.layer.attn.kv_norm.out.grad.all_reduce[tp]"}, "gradient"),
    ("mla", "tp", {"drop": "backward.layer.attn.q_norm.out.grad.all_reduce[tp]"}, "gradient"),
    ("mla", "tp", {"drop": "backward.layer.attn.core.rotary_keys.grad.all_reduce[tp]"}, "gradient"),
    ("mla", "tp_sp", {"drop": "backward.layer.attn.kv_norm.out.grad.reduce_scatter[tp]"}, "gradient"),
    ("mla", "tp_sp", {"drop": DOWN}, "gradient"),
    ("mla", "dp*tp_sp", {"set": DOWN, "axes": ["dp"]}, "gradient"),
    ("unfused", "cp", {"drop": "forward.layer.attn.core.rotary_keys.all_gather[cp]"}, "forward"),
    ("deepseek-v3", "tp", {"drop": "backward.dense.layer.attn.kv_norm.out.grad.all_reduce[tp]"}, "gradient"),
    ("deepseek-v3", "tp", {"drop": "forward.dense.layer.mlp.down.all_reduce[tp]"}, "forward"),
    ("deepseek-v3", "tp", {"drop": "forward.layer.shared_expert.down.all_reduce[tp]"}, "forward"),
    ("moe", "tp_sp", {"drop": "reduce.dense.layer.norm2.weight.grad_sum.reduce*"}, "gradient"),
    ("moe", "tp", {"drop": "forward.layer.in.assign"}, "forward"),
]


@pytest.mark.some(2)
@pytest.mark.parametrize(("model", "strategy", "change", "obligation"), REFUTED_EDITS,
                         ids=[f"{m}, {s}: {c}" for m, s, c, _ in REFUTED_EDITS])
def test_broken_ones_are_refuted_with_a_replay(model: str, strategy: str, change: dict[str, Any],
                                               obligation: str) -> None:
    report = prove(edit(step_of(strategy, model), change))
    assert (report.verdict, report.cls) == (REFUTED, BOUNDED)
    assert obligation in report.refuted()
    found = report.counterexample
    assert found is not None and found.single_device != found.distributed.split(" (")[0]


# what is split, and what it costs

WHOLE = ("norm1", "norm2", "q_norm", "kv_norm", "q_down", "kv_down", "k_rope", "router", "head.norm")
"""What a rank of tp and ep has all of; the rest is split over tp, routed experts over ep too."""


def test_parameters_rest_where_their_dims_are_split() -> None:
    step = step_of("zero3*tp_sp*ep*cp")
    count = dict.fromkeys(((), ("tp",), ("tp", "ep")), 0)
    for p in DEEPSEEK.parameters:
        words = p.name.split(".")
        axes = ("tp", "ep") if "expert" in words else () if any(w in p.name for w in WHOLE) else ("tp",)
        assert set(step.reference.split_dims.get(p.name, {})) == set(axes), p.name
        count[axes] += int((p.elements * DEEPSEEK.unit(p.unit).count).evaluate(DEEPSEEK.sizes))
    assert sum(count.values()) == DEEPSEEK.total()
    dp, tp, ep = 4, 8, 16
    held = 2 * (count[()] / dp + count["tp",] / (dp * tp) + count["tp", "ep"] / (dp * tp * ep))
    assert memory(step).parameters.value(dp=dp, tp=tp, ep=ep, cp=2) == held


def test_what_a_layer_of_latent_attention_sends() -> None:
    """The gradients of both latents and of the shared rotary key, in place of that of the hidden state."""
    rows = communication(step_of("tp", "mla"), unit="elements").events
    sent = [e for e in rows if ".layer." in e.path and not e.left_out]
    total = sum((e.formula for e in sent), Formula.parse("0", "elements"))
    assert total == Formula.parse("2*m*b*s*L*(3*h + q_rank + kv_rank + d_rope)*(tp - 1)/tp", "elements")


def test_what_a_layer_of_latent_attention_keeps() -> None:
    """The two latents before and after their norms, the parts of queries and keys, values, and the result."""
    kept = {k.tensor: k.bytes for k in kept_for_backward(step_of("tp", "mla")) if k.region.startswith("layer.attn")}
    total = sum(kept.values(), Formula.parse("0", "bytes"))
    heads = "2*d_nope + d_rope + 2*d_v"
    assert total == Formula.parse(f"b*s*L*(act*(2*q_rank + 2*kv_rank + d_rope + a*({heads})/tp) + 4*a/tp)", "bytes")


@pytest.mark.parametrize(("model", "backward"), [("mla", "3*(d_nope + d_rope) + 2*d_v"),
                                                 ("unfused", "2*(d_nope + d_rope) + 2*d_v")])
def test_flop_of_latent_attention(model: str, backward: str) -> None:
    """Scores contract both parts of a head, values another size; a fused backward forms the scores again."""
    step = step_of("dp", model)
    found = flop(step)
    square = [Formula.parse(f"2*m*b*s**2*a*L*({d_sizes})", "flop")
              for d_sizes in ("d_nope + d_rope + d_v", backward)]
    rest = found - square[0] - square[1]
    one, two = (rest.value(b=1, m=1, s=s, h=8, a=2, f=4, L=1, V=10, q_rank=4, kv_rank=2, d_nope=4, d_rope=2, d_v=4)
                for s in (1, 2))
    assert one is not None and two == 2 * one, "what is left grows with the tokens alone"
    products = sum(p.elements.evaluate({"h": 8, "a": 2, "f": 4, "V": 10, "q_rank": 4, "kv_rank": 2, "d_nope": 4,
                                        "d_rope": 2, "d_v": 4})
                   for p in MODELS[model].parameters if "norm" not in p.name and p.unit != "embedding")
    assert one == 6 * products


# two repeated units

def test_a_region_of_both_kinds_of_layers() -> None:
    step = step_of("tp*recompute_full")
    freed = [e.value for e in step.events if e.verb == "free" and e.rule.name == "recompute"]
    assert freed == ["dense.layer", "layer"]
    kept = {k.tensor: k.count.text() for k in kept_for_backward(step) if "head" not in k.region}
    assert kept == {"dense.in": "L_dense", "layer.in": "L_moe", "layer.out": "1"}
    alone = step_of("tp", states={"activations": {"region:dense": "M"}})
    assert [e.value for e in alone.events if e.verb == "free" and e.rule.name == "recompute"] == ["dense"]


BETWEEN = [["dense.none", "loss.none", "heads", "ffn", "vocab", "seq"], ["dense.seq", "heads", "ffn", "vocab"]]


@pytest.mark.parametrize("entries", BETWEEN, ids=str)
def test_what_is_redistributed_between_two_units_moves_once(entries: list[str]) -> None:
    strategy = strategy_on("mine", {"tp": None}, dims={"tp": entries}, **TOKEN_MEAN)
    step = derive(strategy, MODELS["moe"])
    moves = [e for e in step.events if e.tensor == "dense.layer.out" and e.axes]
    assert [(e.phase, e.unit) for e in moves] == [("forward", ""), ("backward", "")]
    assert prove(step).verdict == PROVED
    assert simulate(step, Setting.equal(step.reference, {"tp": 2}, 1, 2)).difference is None
    sent = [e.formula for e in communication(step, unit="elements").events if "dense.layer.out" in e.path]
    assert sent == [Formula.parse("m*b*s*h*(tp - 1)/tp", "elements")]
    gathers = next(e for e in moves if e.verb == "all_gather")
    assert prove(edit(step, {"drop": gathers.path})).verdict == REFUTED
    file = parse_strategy_file(write_program(step, strategy), "p.toml")
    assert read_program(file.events, step.reference, file.positions, file.loops) == step.events


def test_the_ffn_of_dense_layers_has_a_size_of_its_own() -> None:
    step = step_of("tp", "moe")
    dims = step.reference.split_dims
    assert dims["dense.layer.mlp.up.weight"] == {"tp": "dense_ffn"} and dims["layer.expert.up.weight"] == {"tp": "ffn"}
    with pytest.raises(InputError, match=r"tp = 7 does not divide dense_ffn = 18432 of deepseek-v3"):
        check_sizes(parse_strategy("tp[7]"), replace(DEEPSEEK, sizes=DEEPSEEK.sizes.plus({"a": 7, "f": 7})), {})


# counts and configurations

def test_counts_of_deepseek_v3() -> None:
    """DeepSeek-V3, arXiv 2412.19437: 671B parameters; its checkpoint's notes: 36.6B activated, with the head's 0.9B."""
    h, heads, experts = 7168, 128, 256
    latent = h * 1536 + 1536 + 1536 * heads * (128 + 64) + h * (512 + 64) + 512 + 512 * heads * (128 + 128)
    attention = latent + heads * 128 * h + 2 * h
    expert, dense = 3 * h * 2048, 3 * h * 18432
    around = 2 * 129280 * h + h
    layers = 61 * attention + 3 * dense + 58 * (h * experts + expert)
    assert DEEPSEEK.total() == layers + 58 * experts * expert + around == 671_026_404_352
    assert DEEPSEEK.activated() == layers + 58 * 8 * expert + around - 129279 * h == 36_625_610_752


def test_counts_of_what_a_token_meets() -> None:
    """Of a table that is looked up one row; the tied embedding, whose rows are the logits' weights, is met whole."""
    assert from_config("gpt2").activated() == from_config("gpt2").total() - 1023 * 768
    assert from_config("llama-3-8b").activated() == from_config("llama-3-8b").total() - 128255 * 4096


def test_what_is_left_out_is_said() -> None:
    step = step_of("dp")
    said = [*prove(step).not_covered, *assumed(step), *map(plain, model_page(DEEPSEEK, 400))]
    for part in ("num_nextn_predict_layers = 1", "which the load moves and no gradient", "balances the load"):
        assert sum(part in text for text in said) == 3, part


SMALL = {"model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
         "intermediate_size": 96, "moe_intermediate_size": 24, "vocab_size": 100, "n_routed_experts": 8,
         "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 16,
         "q_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12}
QWEN = {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "moe_intermediate_size": 48, "intermediate_size": 80, "vocab_size": 100,
        "num_experts": 8, "num_experts_per_tok": 2}


def small(folder: Path, base: Mapping[str, Any], **fields: Any) -> Model:
    path = folder / "config.json"
    path.write_text(json.dumps({**base, **fields}, indent=1))
    return from_config(path)


def test_counts_by_hand(tmp_path: Path) -> None:
    kv = 64 * (16 + 4) + 16 + 16 * 4 * (8 + 12) + 4 * 12 * 64 + 2 * 64
    latent, direct = 64 * 32 + 32 + 32 * 4 * (8 + 4), 64 * 4 * (8 + 4)
    routed, expert, dense, around = 64 * 8, 3 * 64 * 24, 3 * 64 * 96, 2 * 6400 + 64
    for fields, queries, first, shared in (({}, latent, 1, 2), ({"q_lora_rank": None}, direct, 1, 2),
                                           ({"first_k_dense_replace": 0}, latent, 0, 2),
                                           ({"n_shared_experts": 0}, latent, 1, 0),
                                           ({"first_k_dense_replace": 4}, latent, 4, 2)):
        want = 4 * (queries + kv) + first * dense + (4 - first) * (routed + (8 + shared) * expert) + around
        model = small(tmp_path, SMALL, **fields)
        assert model.total() == want, fields
        assert derive(parse_strategy("tp_sp"), model).events


def test_first_dense_layers_of_another_family(tmp_path: Path) -> None:
    plain_one = small(tmp_path, QWEN)
    first = small(tmp_path, QWEN, mlp_only_layers=[1, 0])
    assert [u.name for u in first.units] == ["embedding", "dense", "layer", "head"]
    assert (first.sizes["L_dense"], first.sizes["L_moe"]) == (2, 2)
    assert plain_one.total() - first.total() == 2 * (64 * 8 + 8 * 3 * 64 * 48 - 3 * 64 * 80)
    assert first.left_out and prove(derive(parse_strategy("dp*ep"), first)).verdict == PROVED
    every = small(tmp_path, QWEN, mlp_only_layers=[0, 1, 2, 3])
    assert not every.left_out
    assert [u.name for u in every.units] == ["embedding", "layer", "head"] and every.sizes["f"] == 80


@pytest.mark.parametrize(("fields", "message"), [
    ({"num_experts_per_tok": 9}, "num_experts_per_tok = 9 is more than n_routed_experts = 8"),
    ({"n_group": 3, "topk_group": 1}, "n_routed_experts = 8 is not divisible by n_group = 3"),
    ({"n_group": 4, "topk_group": 5}, "topk_group = 5 is more than n_group = 4"),
    ({"n_group": 8, "topk_group": 1}, "num_experts_per_tok = 2 is more than the 1 experts of topk_group = 1 of"),
    ({"num_key_value_heads": 2}, "num_key_value_heads = 2 is not num_attention_heads = 4: latent attention has keys"),
    ({"qk_rope_head_dim": 3}, "qk_rope_head_dim = 3 is odd: positions rotate pairs; 4 would fit"),
    ({"kv_lora_rank": 0}, "kv_lora_rank = 0: the rank of the latent from which keys and values come"),
    ({"scoring_func": "softmax"}, 'scoring_func = "softmax"'),
    ({"first_k_dense_replace": 5}, "first_k_dense_replace = 5 is more than num_hidden_layers = 4"),
    ({"first_k_dense_replace": -1}, "first_k_dense_replace = -1: a whole number of at least 0"),
    ({"first_k_dense_replace": None}, "first_k_dense_replace"),
    ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers = -1: the layers that predict tokens after the next"),
])
def test_fields_that_contradict_each_other(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        small(tmp_path, SMALL, **fields)
    assert "\n" not in str(caught.value)


# ops

def test_scores_of_experts_one_by_one() -> None:
    router = {op.output.rpartition(".")[2]: op.kind for op in DEEPSEEK.graph.ops if op.region == "layer.moe.router"}
    assert router == {"logits": "einsum", "scores": "sigmoid", "route": "route", "chosen": "einsum", "total": "sum",
                      "share": "reciprocal", "gates": "mul", "scaled": "scale"}
    assert [op.output for op in DEEPSEEK.graph.ops if op.region == "layer.moe.shared_expert"][-1] == (
        "layer.shared_expert.down")


def test_an_op_that_is_not_zero_at_zero_is_not_sparse() -> None:
    g = graph(batch="b", embed="h", expert="experts", choice="topk")
    x = g.data("data.x", "batch embed")
    scores = g.einsum("net.scores", x, g.parameter("net.weight", "embed expert"), to="batch expert")
    route = g.route("net.route", scores, over="expert", choice="choice")
    pairs = g.einsum("net.pairs", scores, route, to="batch choice expert")
    assert g.unary("net.silu", pairs, "silu").name == "net.silu"
    g.unary("net.sigmoid", pairs, "sigmoid")
    g.sum("loss.sum", g.add("net.both", "net.silu", "net.sigmoid"))
    built = g.build()
    assert {t.name for t in built.tensors.values() if t.sparse} == {"net.route", "net.pairs", "net.silu"}
    assert not sparse_gradients(built)["net.sigmoid"]


@pytest.mark.parametrize(("over", "rotary", "message"), [
    ("nope value rope", "q_rope k_rope", "over is the head dim of q and the key dim of k"),
    ("seq_kv nope value rope embed", "q_rope k_rope", "over is the head dim of q and the key dim of k"),
    ("seq_kv nope value rope", "k_rope q_rope", r"q_rope has dims \(batch, seq_kv, rope\), k_rope has"),
    ("seq_kv nope value rope", "q_rope", "given 4"),
    ("seq_kv nope value", "q_rope k_rope", "q_rope has dims"),
])
def test_faults_of_attention_with_a_rotary_part(over: str, rotary: str, message: str) -> None:
    g = graph(batch="b", seq="s", seq_kv="s", embed="h", heads="a", nope="n", rope="r", value="v")
    dims = {"q": "batch seq heads nope", "k": "batch seq_kv heads nope", "v": "batch seq_kv heads value",
            "q_rope": "batch seq heads rope", "k_rope": "batch seq_kv rope"}
    q, k, v, *_ = (g.data(f"data.{name}", d) for name, d in dims.items())
    with pytest.raises(InputError, match=message):
        g.flash("net.y", q, k, v, over=over, rotary=[f"data.{name}" for name in rotary.split()])


def test_models_by_name() -> None:
    assert resolve_model("mla") == mla() and resolve_model("deepseek-v3") == DEEPSEEK
    assert resolve_model("mla", flash=False, dropout=True) == MODELS["unfused"]
    assert {op.kind for op in from_config("deepseek-v3", flash=False).graph.ops} >= {"softmax", "add"}


# --- a parameter that is declared whole

QUERY_WHOLE = {"groups": {"query_rope": {"match": "attn.q_rope.weight", "parameters": {"tp": "R"}}}}


@pytest.mark.parametrize(("text", "split"), [("tp", ""), ("tp_sp", "seq"), ("zero3*tp_sp", "seq")])
def test_what_a_group_declares_whole_is_held_whole_and_its_op_split_otherwise(text: str, split: str) -> None:
    step, plain = step_of(text, "mla", **QUERY_WHOLE), step_of(text, "mla")
    group = step.reference.group("layer.attn.q_rope.weight")
    assert "tp" not in group.split and step.reference.dims["tp"][0] == f"layer.attn.q_rope.{split or 'none'}"
    more = (memory(step).parameters - memory(plain).parameters) * (8 if "zero3" in text else 1)
    sizes = {"a": 4, "L": 3, "q_rank": 5, "d_rope": 6, "tp": 2, "dp": 8, "w": 2}
    assert more.value(**{n: v for n, v in sizes.items() if n in more.inputs}) == 2 * 3 * 4 * 5 * 6 / 2
    assert [e.axes for e in step.phase("reduce") if e.group == group.name and "tp" in e.axes] == [("tp",)] * bool(split)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["tp", "zero3*tp_sp", "tp*pp", "tp_sp*ep"])
def test_what_is_declared_whole_is_proved_and_runs_as_on_one_device(text: str) -> None:
    step = step_of(text, "moe" if "ep" in text else "mla", **QUERY_WHOLE) if "ep" not in text else step_of(
        text, "deepseek-v3", **QUERY_WHOLE)
    assert (prove(step).verdict, prove(step).cls) == (PROVED, PARAMETRIC)
    assert simulate(step, Setting.equal(step.reference, dict.fromkeys(step.reference.mesh.names, 2), 2, 1)).equal


@pytest.mark.parametrize(("entry", "told"), [
    ("layer.attn.q_ropes.none", "region 'layer.attn.q_ropes', which mla lacks; did you mean 'layer.attn.q_rope'?"),
    ("layer.attn.q_rope.vocab", "no op of layer.attn.q_rope can be split along vocab; valid: layer.attn.q_rope.batch"),
])
def test_an_entry_names_an_op_that_there_is(entry: str, told: str) -> None:
    with pytest.raises(InputError, match=r"\[dims\] tp names") as error:
        step_of("tp", "mla", dims={"tp": [entry, "heads"]})
    assert told in str(error.value)
