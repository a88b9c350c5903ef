"""Whole proofs that every mutant of the prover and the derivation runs against (`make mutate`): small, quick, exact.

A program is proved or refuted; where it is refuted, the obligation, the event, the weight and the words are given, so
that a prover which is right for the wrong reason fails. Derived programs are run besides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from conftest import ROOT
from random_programs import two_units

from placealg.check.prove import prove
from placealg.models.abstract import abstract, statistics
from placealg.models.model import Model
from placealg.models.transformer import mlp, moe
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.simulator.setting import fitting_microbatches
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import strategy_on

MODELS: Mapping[str, Callable[[], Model]] = {
    "abstract": abstract, "mlp": mlp, "moe": moe, "statistics": statistics,
    "units": lambda: two_units(tied=True)}
OWN: Mapping[str, Mapping[str, Any]] = {
    "ffn": {"dims": {"tp": ["ffn", "vocab"]}},
    "ffn, again": {"dims": {"tp": ["ffn", "vocab"]}, "states": {"activations": {"region:layer": "M"}}},
    "ffn, sharded": {"dims": {"tp": ["loss.none", "ffn", "embed"]}, "states": {"activations": {"tp": "S*"}}},
    "ffn, ring": {"dims": {"tp": ["loss.none", "ffn", "embed"]}, "states": {"activations": {"tp": "S*"}},
                  "schedule": {"gather": {"tp": "ring"}}},
    "idle": {"dims": {"tp": []}},
    "idle, on host": {"dims": {"tp": []}, "states": {"optimizer": {"tp": "S"}}, "optimizer": {"tier": "host"}},
}
"""Lists of dims of one axis, for models without attention."""

BROKEN_UNITS: tuple[tuple[dict[str, Any], str, str, str | None], ...] = (
    ({"drop": "forward.embedding.weight.gather[dp]"}, "view", "forward.embedding.compute", None),
    ({"drop": "forward.embedding.compute"}, "forward", "forward.layer.compute", None),
    ({"drop": "forward.layer.compute"}, "forward", "forward.head.compute", None),
    ({"drop": "forward.head.compute"}, "forward", "forward.loss.compute", None),
    ({"drop": "forward.loss.compute"}, "forward", "backward.head.compute", None),
    ({"drop": "backward.loss.scale"}, "gradient", "update.embedding.weight.update", "m"),
    ({"drop": "backward.head.compute"}, "forward", "backward.layer.compute", None),
    ({"drop": "backward.layer.compute"}, "forward", "backward.embedding.compute", None),
    ({"drop": "backward.embedding.compute"}, "forward", "backward.embedding.compute", None),
    ({"drop": "backward.embedding.weight.grad.reduce[dp]"}, "gradient", "update.embedding.weight.update", "1"),
    ({"drop": "backward.layer.weight.grad_sum.accumulate"}, "gradient", "update.layer.weight.update", "0"),
    ({"set": "forward.loss.compute", "where": "rank(dp)=0"}, "forward", "forward.loss.compute", None),
    ({"set": "backward.head.compute", "where": "rank(dp)=0"}, "forward", "backward.head.compute", None),
)
"""Edits of zero3 on opaque units, of which the first and the last use one parameter: what fails, and where."""

LAMB = 'base = "zero1"\n[optimizer]\nname = "lamb"\n'
TOKENS = '[loss]\npreset = "token_mean"\n'
PROVED_PROGRAMS = (
    ("dp", "abstract"), ("hsdp", "abstract"), ("fsdp_no_reshard", "abstract"), ("zero2*offload_optimizer", "abstract"),
    ('base = "zero3"\n' + TOKENS, "abstract"), ('base = "zero3"\n[optimizer]\nname = "muon"\n', "abstract"),
    ('base = "dp"\n[optimizer]\nclip = "none"\n[schedule]\nmicrobatches = 1\n', "abstract"),
    ("zero1*pp", "mlp"), ("ffn", "mlp"), ("ffn, again", "mlp"), ("ffn, sharded", "mlp"), ("idle", "abstract"),
    ("idle, on host", "abstract"), ("ffn, ring", "mlp"), ("ep", "moe"), ("zero1", "units"), ("dp", "statistics"),
    ('base = "zero3"\n' + TOKENS, "statistics"),
)
EDITED: tuple[tuple[str, str, dict[str, Any], str, str | None], ...] = (
    ("dp", "abstract", {"drop": "reduce.*.grad_sum.reduce[dp]"}, "gradient", "1"),
    ("dp", "abstract", {"set": "*.grad_sum.reduce[dp]", "op": "sum"}, "gradient", "dp"),
    ('base = "dp"\n' + TOKENS, "abstract", {"double": "*.grad_sum.reduce[dp]"}, "gradient", "dp"),
    ("dp", "abstract", {"set": "grad_sum.accumulate", "verb": "assign"}, "gradient", "1/m"),
    ("zero1", "abstract", {"drop": "publish.*"}, "invariant", None),
    ("zero3", "abstract", {"drop": "forward.*.gather*"}, "view", None),
    ("zero3", "abstract", {"drop": "update.norm.all_reduce*"}, "update", "1/dp"),
    ("zero3", "abstract", {"double": "update.*.clip"}, "update", None),
    (LAMB, "abstract", {"drop": "update.*.grad_sum.all_gather*"}, "update", None),
    (LAMB, "abstract", {"drop": "update.*.master.all_gather*"}, "update", None),
    (LAMB, "abstract", {"drop": "update.*.moments.all_gather*"}, "update", None),
    ("zero3", "abstract", {"set": "*.grad.reduce[dp]", "where": "rank(dp)=0"}, "gradient", None),
    ("hsdp", "abstract", {"set": "init.*.broadcast*", "axes": ["dp_shard"]}, "init", None),
    ("hsdp", "abstract", {"set": "update.*.norm", "where": "owner(dp_shard)"}, "update", "dp_replicate"),
    ("zero1", "abstract", {"set": "publish.*", "layout": "other"}, "partition", None),
    ("idle, on host", "abstract", {"set": "update.*.norm", "where": "rank(tp)=0"}, "update", "1/tp"),
    ("zero2*offload_optimizer", "abstract", {"drop": "resume.*.master.*"}, "init", None),
    ("ffn", "mlp", {"drop": "forward.layer.mlp.down.all_reduce[tp]"}, "forward", "1/tp"),
    ("ffn", "mlp", {"drop": "backward.layer.mlp.up.grad.compute"}, "gradient", None),
    ("ffn", "mlp", {"set": "forward.layer.mlp.down.all_reduce[tp]", "op": "mean"}, "forward", "1/tp"),
    ("ffn, again", "mlp", {"drop": "backward.layer.mlp.gelu.compute"}, "forward", None),
    ("zero1*pp", "mlp", {"drop": "forward.layer.in.recv[pp]"}, "forward", None),
    ("zero1*pp", "mlp", {"drop": "backward.layer.in.grad.send[pp]"}, "gradient", None),
    ("dp", "statistics", {"drop": "reduce.layer.running.grad_sum.reduce[dp]"}, "gradient", "1"),
    ("dp", "statistics", {"set": "forward.layer.running.grad.compute", "divisor": "tokens"}, "gradient", "m"),
    ("dp", "statistics", {"set": "forward.layer.running.grad.compute", "where": "rank(dp)=0"}, "gradient", None),
    ("dp", "statistics", {"move": "forward.layer.running.grad.compute", "before": "forward.layer.compute"},
     "gradient", None),
    ('base = "zero3"\n' + TOKENS, "statistics", {"set": "forward.layer.running.grad.compute", "divisor": "tokens"},
     "gradient", "dp*m"),
    ('base = "zero3"\n' + TOKENS, "statistics", {"set": "backward.layer.running.grad.reduce[dp]", "op": "mean"},
     "gradient", "1/dp"),
)


@cache
def step_of(text: str, model: str) -> Step:
    strategy = (strategy_on("mine", {"tp": None}, **OWN[text]) if text in OWN else
                parse_strategy_file(text).strategy if "\n" in text else parse_strategy(text))
    return derive(strategy, MODELS[model]())


@pytest.mark.parametrize(("text", "model"), PROVED_PROGRAMS)
def test_proved(text: str, model: str) -> None:
    report = prove(step_of(text, model))
    assert (report.verdict, report.cls) == (PROVED, PARAMETRIC)


@pytest.mark.parametrize(("text", "model"), PROVED_PROGRAMS)
def test_runs_as_the_single_device(text: str, model: str) -> None:
    step = step_of(text, model)
    sizes = dict.fromkeys(step.reference.mesh.names, 2)
    microbatches = step.reference.microbatches or fitting_microbatches(step.reference, sizes, 2)
    assert simulate(step, Setting.equal(step.reference, sizes, microbatches, 1)).equal


@pytest.mark.parametrize(("change", "obligation", "event", "mass"), BROKEN_UNITS)
def test_opaque_units_are_refuted(change: dict[str, Any], obligation: str, event: str, mass: str | None) -> None:
    report = prove(edit(step_of("zero3", "units"), change))
    assert (report.verdict, report.refuted()[0]) == (REFUTED, obligation)
    assert report.counterexample and (report.counterexample.event, report.counterexample.mass) == (event, mass)


@pytest.mark.parametrize(("text", "model", "change", "obligation", "mass"), EDITED)
def test_refuted(text: str, model: str, change: dict[str, Any], obligation: str, mass: str | None) -> None:
    report = prove(edit(step_of(text, model), change))
    assert (report.verdict, report.refuted()[0]) == (REFUTED, obligation)
    assert report.counterexample and report.counterexample.mass == mass


def test_an_axis_without_data_needs_no_reduction() -> None:
    assert not [e.path for e in step_of("idle", "abstract").events if e.verb == "reduce"]


def test_every_equivalent_mutant_has_its_reason() -> None:
    named = tomllib.loads((ROOT / "tests" / "mutation" / "equivalent_mutants.toml").read_text(encoding="utf-8"))
    reasons = [why for mutants in named.values() for why in mutants.values()]
    assert reasons and all(isinstance(why, str) and len(why) > 20 for why in reasons)
