"""Op-level programs: what is derived is proved for all sizes, and what is broken is refuted for the stated reason."""

from __future__ import annotations

from typing import Any

import pytest
from random_dims import MODELS, differs

from placealg.check.prove import prove
from placealg.models.config import resolve_model
from placealg.prover.verdict import BOUNDED, OBLIGATIONS, PARAMETRIC, PROVED, REFUTED, UNDECIDED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import strategy_on

TRANSFORMERS = ("gpt", "gpt, parallel", "llama", "llama, biased")
DERIVED = ("zero3*tp_sp", "hsdp*tp_sp", "zero1*tp", "zero3*tp_sp_keep", "zero1*tp*offload_optimizer",
           "zero1*tp*recompute_full", "zero3*tp_sp*recompute_full", "zero3*tp_sp_keep*recompute_selective")
LISTS: dict[str, dict[str, list[str]]] = {
    "cp": {"cp": ["seq"]},
    "dp*cp*tp": {"dp": ["batch"], "cp": ["seq"], "tp": ["heads", "ffn", "vocab"]},
    "tp over groups": {"dp": ["batch"], "tp": ["group", "ffn", "vocab"]},
    "two axes of tp": {"dp": ["batch"], "t1": ["heads", "ffn", "vocab"], "t2": ["ffn", "vocab"]},
    "mlp.embed": {"dp": ["batch"], "tp": ["mlp.embed"]},
    "tp": {"dp": ["batch"], "tp": ["heads", "ffn"]},
    "mlp": {"dp": ["batch"], "tp": ["ffn", "vocab"]},
}
"""Strategies that nobody has named, as lists of dims."""


def step_of(strategy: str, model: str = "gpt", **tables: Any) -> Step:
    """The derived step of an expression or of one of LISTS, with tables changed."""
    if strategy in LISTS:
        dims = LISTS[strategy]
        return derive(strategy_on(strategy, dict.fromkeys(dims), dims=dims, **tables), MODELS[model])
    assert not tables
    return derive(parse_strategy(strategy), MODELS[model])


@pytest.mark.some(4)
@pytest.mark.parametrize("model", TRANSFORMERS)
@pytest.mark.parametrize("strategy", DERIVED)
def test_every_strategy_is_proved_for_all_sizes(strategy: str, model: str) -> None:
    report = prove(step_of(strategy, model))
    assert (report.verdict, report.cls) == (PROVED, PARAMETRIC), report.refuted()
    assert {v.id for v in report.obligations} == set(OBLIGATIONS)
    assert [h.name for h in report.hypotheses] == ["equal_counts"], "the ops are proved, not assumed"


@pytest.mark.some(3)
@pytest.mark.parametrize("replay", ["whole", "by_dependency", "early_stop"])
@pytest.mark.parametrize("region", ["layer", "core", "mlp"])
def test_every_replay_of_every_region_is_proved(region: str, replay: str) -> None:
    for model in ("gpt", "llama"):
        step = step_of("dp*cp*tp", model, states={"activations": {f"region:{region}": "M", "cp": "S*"}},
                       schedule={"replay": replay})
        assert prove(step).verdict == PROVED, model


@pytest.mark.some(3)
@pytest.mark.parametrize(("lists", "model"), [
    ("cp", "llama"), ("dp*cp*tp", "gpt"), ("tp over groups", "llama"), ("two axes of tp", "llama, biased"),
    ("mlp.embed", "gpt"), ("tp", "qk-normed"), ("cp", "qk-normed")])
@pytest.mark.parametrize("loss", ["mean_of_means", "token_mean"])
def test_lists_of_dims_are_proved_as_they_are_derived(lists: str, model: str, loss: str) -> None:
    step = step_of(lists, model, loss={"preset": loss})
    assert prove(step).verdict == PROVED
    assert not differs(step)


NORM = "reduce.layer.norm1.weight.grad_sum.reduce[tp]"
REFUTED_EDITS: list[tuple[str, str, list[dict[str, Any]], str, str | None]] = [
    ("zero3*tp_sp", "llama", [{"drop": NORM}], "gradient", "1/tp"),
    ("zero3*tp_sp", "gpt", [{"drop": "reduce.*.reduce[tp]"}], "gradient", "1/tp"),
    ("zero3*tp_sp", "llama", [{"set": NORM, "op": "mean"}], "gradient", "1/tp"),
    ("zero1*tp", "llama", [{"insert": {"path": NORM, "op": "sum", "to": "I"},
                            "after": "reduce.layer.norm1.weight.grad_sum.reduce[dp]"}], "gradient", "tp"),
    ("zero3*tp_sp", "gpt", [
        {"drop": "forward.layer.attn.out.reduce_scatter[tp]"},
        {"insert": {"path": "forward.layer.attn.out.biased.reduce_scatter[tp]", "from": "P", "to": "S(seq)"},
         "after": "forward.layer.attn.out.biased.compute"}], "forward", "tp"),
    ("zero3*tp_sp", "llama", [{"drop": "backward.layer.norm2.out.all_gather[tp]"}], "gradient", "1/tp"),
    ("zero3*tp_sp", "gpt", [{"drop": "forward.layer.norm1.out.all_gather[tp]"}], "forward", None),
    ("mlp.embed", "llama", [{"drop": "forward.layer.mlp.gate.all_reduce[tp]"}], "forward", "1/tp"),
    ("zero3*tp_sp", "llama", [{"set": "forward.head.loss.compute[tp]", "axes": []}], "forward", None),
    ("zero1*tp", "gpt", [{"drop": "forward.embedding.tokens.all_reduce[tp]"}], "forward", "1/tp"),
    ("zero1*tp", "gpt", [{"double": "forward.layer.attn.out.all_reduce[tp]"}], "forward", "tp"),
    ("zero1*tp", "gpt", [{"drop": "forward.layer.attn.out.all_reduce[tp]"}], "forward", "1/tp"),
    ("zero1*tp", "gpt", [{"set": "forward.layer.attn.out.all_reduce[tp]", "op": "mean"}], "forward", "1/tp"),
    ("zero1*tp", "llama", [{"drop": "backward.layer.norm2.out.grad.all_reduce[tp]"}], "gradient", None),
    ("zero1*tp", "llama", [{"drop": "backward.layer.mlp.product.grad.compute"}], "gradient", None),
    ("zero1*tp", "llama", [{"double": "backward.layer.norm2.out.grad.compute"}], "gradient", None),
    ("zero1*tp", "gpt", [{"double": "backward.layer.in.grad.assign"}], "gradient", None),
    ("mlp", "mlp", [{"drop": "backward.layer.in.grad.assign"}], "gradient", None),
    ("mlp", "mlp", [{"double": "backward.layer.in.grad.assign"}], "gradient", None),
    ("zero1*tp*recompute_full", "llama", [{"drop": "backward.layer.mlp.silu.compute"}], "forward", None),
    ("zero1*tp*recompute_selective", "gpt", [{"drop": "backward.layer.attn.core.probs.compute"}], "forward", None),
    ("zero3*tp_sp*recompute_full", "gpt", [{"drop": "backward.layer.norm1.out.all_gather[tp]"}], "forward", None),
    ("tp over groups", "llama", [{"drop": "backward.layer.attn.core.values.grad.all_reduce[tp]"}], "gradient", None),
    ("cp", "gpt", [{"drop": "backward.layer.attn.core.values.grad.reduce_scatter[cp]"}], "gradient", None),
    ("cp", "llama", [{"drop": "forward.layer.attn.core.keys.all_gather[cp]"}], "forward", None),
    ("tp", "qk-normed", [{"set": "reduce.block.attn.q.norm.weight.grad_sum.reduce*", "axes": ["dp"]}], "gradient",
     "1/tp"),
    ("tp", "qk-normed", [{"set": "reduce.block.attn.k.norm.weight.grad_sum.reduce*", "op": "mean", "divisor": "1"}],
     "gradient", "1/tp"),
    ("zero1*tp", "gpt", [{"set": "update.norm.all_reduce*", "axes": ["dp"]}], "update", "1/tp"),
    ("zero1*tp", "gpt", [{"set": "update.layer.norm1.weight.norm", "where": "owner(dp)"}], "update", "tp"),
]


@pytest.mark.some(4)
@pytest.mark.parametrize(("strategy", "model", "changes", "obligation", "mass"), REFUTED_EDITS,
                         ids=[f"{s} on {m}: {c[0]}" for s, m, c, _, _ in REFUTED_EDITS])
def test_broken_programs_are_refuted_with_a_replay(strategy: str, model: str, changes: list[dict[str, Any]],
                                                   obligation: str, mass: str | None) -> None:
    report = prove(edit(step_of(strategy, model), *changes))
    assert (report.verdict, report.cls) == (REFUTED, BOUNDED)
    found = report.counterexample
    assert found is not None
    assert found.obligation == report.refuted()[0]
    assert obligation in report.refuted()
    assert mass is None or (found.obligation, found.mass) == (obligation, mass)
    assert found.single_device != found.distributed.split(" (")[0]


@pytest.mark.slow
def test_a_gradient_that_is_zero_is_neither_proved_nor_refuted_when_it_is_scaled() -> None:
    """A bias of all keys moves all scores of a query alike, which softmax does not see: 0 is its gradient.

    The prover follows no such law of softmax, so that it leaves the step open; the bias of what goes out is refuted.
    """
    step = step_of("tp", "qk-normed")
    of_keys, of_out = (edit(step, {"set": f"reduce.block.attn.{bias}.grad_sum.reduce*", "op": "mean", "divisor": "2"})
                       for bias in ("k.norm.bias", "out.bias"))
    assert not differs(of_keys)
    assert {v.id for v in prove(of_keys).obligations if v.verdict == UNDECIDED} == {"gradient", "normalizer"}
    assert differs(of_out)
    assert prove(of_out).verdict == REFUTED


@pytest.mark.parametrize(("strategy", "model", "key"), [
    ("dp*cp*tp", "gpt", "local(seq)"), ("dp*cp*tp", "gpt", "local(heads)"), ("dp*cp*tp", "gpt", "rank(tp)"),
    ("cp", "qk-normed", "local(seq)")])
def test_streams_that_follow_the_placement_are_refuted(strategy: str, model: str, key: str) -> None:
    report = prove(step_of(strategy, model, random={"dropout": [key]}))
    assert (report.verdict, report.refuted()) == (REFUTED, ("random",))


@pytest.mark.parametrize(("strategy", "key"), [("zero1*tp", "local(seq)"), ("zero1*tp", "local(embed)")])
def test_a_stream_keyed_along_a_dim_that_nobody_splits_is_the_reference_s(strategy: str, key: str) -> None:
    dims = {"dp": ["batch"], "tp": ["heads", "ffn", "vocab"]}
    step = derive(strategy_on("tp", dict.fromkeys(dims), dims=dims, random={"dropout": [key]}), MODELS["gpt"])
    assert prove(step).verdict == PROVED


def test_a_model_without_dropout_draws_nothing() -> None:
    dims = LISTS["cp"]
    step = derive(strategy_on("cp", dict.fromkeys(dims), dims=dims, random={"dropout": ["local(seq)"]}),
                  MODELS["llama"])
    report = prove(step)
    assert report.verdict == PROVED
    assert not sum(v.instances for v in report.of("random"))


@pytest.mark.parametrize(("preset", "verdict"), [("token_mean", REFUTED), ("mean_of_means", PROVED)])
def test_data_that_is_not_sliced_is_waste_or_a_bug(preset: str, verdict: str) -> None:
    dims = {"dp": ["batch"], "tp": ["heads", "ffn", "vocab"]}
    step = derive(strategy_on("tp", dict.fromkeys(dims), dims=dims, loss={"preset": preset}), MODELS["gpt"])
    report = prove(edit(step, drop="forward.data.*.slice[dp]"))
    assert report.verdict == verdict
    assert (report.counterexample.mass if report.counterexample else None) == ("dp" if verdict == REFUTED else None)


@pytest.mark.some(2)
@pytest.mark.parametrize(("strategy", "model", "changes"), [
    ("zero3*tp_sp", "gpt", [{"drop": "*.layer.norm1.out.free"}]),
    ("zero1*tp*recompute_full", "llama", [{"drop": "backward.layer.out.compute"}]),
    ("zero3*tp_sp", "llama", [{"double": "forward.layer.norm1.out.all_gather[tp]"}]),
    ("zero3*tp_sp", "gpt", [{"move": "backward.layer.norm1.out.all_gather[tp]",
                             "before": "backward.layer.attn.out.grad.compute"}]),
])
def test_harmless_changes_stay_proved(strategy: str, model: str, changes: list[dict[str, Any]]) -> None:
    step = edit(step_of(strategy, model), *changes)
    assert prove(step).verdict == PROVED
    assert not differs(step)


def test_a_repair_of_an_op_level_program_is_found_and_priced() -> None:
    base = step_of("zero1*tp")
    found = prove(edit(base, drop="forward.layer.attn.out.all_reduce[tp]"), base).counterexample
    assert found is not None and found.repair is not None
    assert found.repair.edit.startswith('[[edit]]\ninsert = { path = "forward.layer.attn.out.all_reduce[tp]"')
    assert "(tp − 1)/tp" in found.repair.cost


def test_a_proof_does_not_grow_with_the_layers() -> None:
    strategy = parse_strategy("zero3*tp_sp")
    small, large = (prove(derive(strategy, resolve_model(model))).obligations for model in ("gpt2", "gpt3-175b"))
    assert [(v.id, v.group, v.instances) for v in small] == [(v.id, v.group, v.instances) for v in large]
