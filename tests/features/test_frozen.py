"""Frozen parameters and adapters: no gradient, no optimizer state, and right under every sharding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome
from resumed import sampled

from placealg.arith import Monomial
from placealg.check.prove import prove
from placealg.cost.memory import memory
from placealg.models.adapters import adapted, is_adapter, linear_ops
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.catalogue import catalogue
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

Run = Callable[..., Outcome]
LORA: dict[str, Any] = {"adapters": {"match": ["attn.q", "attn.out"], "rank": 2}}


def lora(base: str, model: str = "gpt", **tables: Any) -> Step:
    return derive(overlay(parse_strategy(base), {**LORA, **tables}), resolve_model(model))


def small(step: Step) -> Setting:
    """Two ranks on the last two axes, one elsewhere."""
    axes = step.reference.mesh.names
    return Setting.equal(step.reference, {a: 2 if a in axes[-2:] else 1 for a in axes}, 2)


def test_a_base_that_is_frozen_has_neither_gradient_nor_optimizer_state() -> None:
    step = lora("zero3*tp_sp")
    trained = {g.name for g in step.reference.trained}
    assert trained and all(is_adapter(name) for name in trained)
    for event in step.events:
        if event.group and event.value in ("grad", "grad_sum", "master", "moments", "norm"):
            assert event.group in trained
    backed = {e.tensor for e in step.events if e.on_gradient}
    assert backed and not any(name.startswith("embedding.") for name in backed)
    assert not [e for e in step.events if e.phase == "backward" and e.group.startswith("embedding.") and e.axes
                and e.verb == "gather"]


def test_an_adapter_stands_beside_any_linear_op() -> None:
    model = resolve_model("gpt")
    every = adapted(model, lambda name: True, Monomial.of("adapter_rank"))
    assert all(f"{name}.adapted" in every.graph.tensors for name in linear_ops(model.graph))
    sizes = {"h": 8, "a": 2, "L": 3, "V": 11, "s": 5, "adapter_rank": 2}
    assert every.total(sizes) - model.total(sizes) == 2 * (3 * (4 * (8 + 8) + 2 * (8 + 32)) + (8 + 11))
    assert adapted(every, lambda name: True, Monomial.of("adapter_rank")) == every


def test_a_frozen_base_costs_what_it_holds() -> None:
    sizes = {"h": 1024, "a": 16, "L": 4, "V": 5000, "s": 128, "b": 1, "dp": 8}
    total = resolve_model("gpt").total({k: v for k, v in sizes.items() if k not in ("b", "dp")})
    held = memory(lora("zero1"))
    small_ones = 2 * 4 * 2 * (1024 + 1024)
    assert held.optimizer.value(**sizes) == 12 * small_ones / 8
    assert held.gradients.value(**sizes) == 2 * small_ones
    assert held.parameters.value(**sizes) == 2 * (total + small_ones)


@pytest.mark.parametrize("base", ["zero3*tp_sp", "zero1*pp"])
def test_adapters_are_right(base: str) -> None:
    step = lora(base)
    report = prove(step)
    assert (report.verdict, report.why_undecided) == (PROVED, "")
    assert simulate(step, small(step)).equal


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "moe"])
@pytest.mark.parametrize("base", [e.name for e in catalogue().values()])
def test_adapters_are_right_under_the_whole_catalogue(base: str, model: str) -> None:
    word = base if catalogue()[base].axes else f"zero3*{base}"
    step = lora("ep" if base == "ep" and model == "moe" else word,
                "moe" if base in ("ep", "pp_zb_v", "pp_dualpipe_v") else model)
    report = prove(step)
    assert (report.verdict, report.why_undecided) == (PROVED, "")
    assert simulate(step, small(step)).equal


@pytest.mark.parametrize(("change", "refuted"), [
    ({"drop": "reduce.layer.attn.out.high.weight.grad_sum.reduce[tp]"}, "gradient"),
    ({"drop": "resume.embedding.weight.load"}, "init"),
    ({"drop": "init.embedding.weight.broadcast[dp]"}, "init"),
    ({"drop": "forward.layer.weight.gather[dp]"}, "view"),
])
def test_what_breaks_adapters_or_their_base_is_refuted(change: dict[str, str], refuted: str) -> None:
    report = prove(edit(lora("zero3*tp_sp"), change))
    assert (report.verdict, report.refuted()[0]) == (REFUTED, refuted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["drop", "double"])
def test_a_changed_program_of_adapters_is_judged_as_it_runs(kind: str) -> None:
    """Every event removed, or run twice: what is proved runs equal, what is refuted was seen to differ."""
    base, left_open = lora("zero2*tp"), []
    for event in sampled(base.events):
        step = edit(base, {kind: event.path})
        report = prove(step)
        if report.verdict == PROVED:
            assert simulate(step, small(step)).equal, event.path
        if report.verdict == UNDECIDED:
            left_open.append((event.path, report.why_undecided))
    assert len(left_open) <= 3, left_open


BAD = [
    ("[groups.base]\nmatch = \"*\"\nfrozen = \"yes\"", "[groups.base] frozen is 'yes': expected true or false"),
    ("[groups.base]\nmatch = \"embedding.*\"\nfrozen = true\noptimizer = { dp = \"S\" }",
     "[groups.base] optimizer: its parameters are frozen, and have no optimizer state"),
    ("[groups.base]\nmatch = \"embedding.*\"\nfrozen = true\ngradients = { dp = \"S\" }",
     "[groups.base] gradients: its parameters are frozen, and have no gradient"),
    ("[groups.base]\nmatch = \"*\"\nfrozen = true", "every parameter of gpt is, and nothing trains"),
    ("[adapters]\nmatch = \"attn.qq\"", "matches no linear op of gpt"),
    ("[adapters]\nmatch = \"attn.q\"\nrank = 0", "[adapters] rank is 0: expected \"adapter_rank\""),
    ("[adapters]\nmatch = \"attn.q\"\ntrain = \"heed\"", "[adapters] train = 'heed' matches no parameter of gpt"),
    ("[adapters]\nrank = 4", "[adapters] rank: match names no linear op"),
    ("[adapters]\nmatch = 3", "[adapters] match is 3: expected a list of strings"),
    ("[adapters]\nmatsch = \"attn.q\"", "unknown key 'matsch' in [adapters]; did you mean 'match'?"),
]


@pytest.mark.parametrize(("text", "says"), BAD)
def test_what_cannot_be_frozen_or_adapted_is_one_line(text: str, says: str, placealg: Run, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(f'base = "dp"\nmodel = "gpt"\n{text}\n', encoding="utf-8")
    got = placealg("show", str(file))
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1) and says in got.err


def test_a_model_that_runs_whole_has_no_ops_to_adapt(placealg: Run, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('base = "dp"\nmodel = "abstract"\n[adapters]\nmatch = "attn.q"\n', encoding="utf-8")
    got = placealg("prove", str(file))
    assert got.code == 2 and "abstract says nothing about the ops inside its units: say --model gpt" in got.err


def test_the_model_lora_trains_its_adapters_alone() -> None:
    model: Model = resolve_model("lora")
    trained = [p.name for p in model.parameters if not model.graph.tensors[p.name].frozen]
    assert trained == ["layer.expert.low.weight", "layer.expert.high.weight"]


def test_gathered_copies_gradients_and_kept_inputs_have_bytes_of_their_own() -> None:
    said = {"types": {"w": 4, "use": 2, "wire_w": 2, "g": 4, "acc": 2, "o": 8}}
    step = derive(overlay(parse_strategy("zero3"), said), resolve_model("abstract"))
    assert str(memory(step).transient.expr) == "Psi_unit*(acc + use)"
    held = memory(derive(overlay(parse_strategy("tp_sp"), {"types": {"act_linear": 1}}), resolve_model("gpt")))
    plain = memory(derive(parse_strategy("tp_sp"), resolve_model("gpt")))
    sizes = {"b": 1, "s": 128, "h": 64, "a": 4, "L": 2, "V": 512, "tp": 2}
    before, after = plain.activations.value(**sizes), held.activations.value(**sizes)
    assert before is not None and after is not None and before - after == (7 * 2 + 1) * 128 * 64 / 2


@pytest.mark.parametrize(("said", "less"), [
    ({"act_function": 1}, 3 * 32 * 14336), ({"act_norm": 1}, (2 * 32 + 1) * 4096), ({"act_linear": "1/2"}, None)])
def test_what_ops_of_one_class_keep_has_bytes_of_its_own(said: dict[str, Any], less: int | None) -> None:
    plain, held = (memory(derive(overlay(parse_strategy("dp"), {"types": types}), resolve_model("llama-3-8b")))
                   .activations.value(b=1, s=8) for types in ({}, said))
    assert plain is not None and held is not None and held < plain
    assert less is None or plain - held == 8 * less
