"""The loss as frameworks run it: bytes a logit by hand, what stays for backward, and peaks of real runs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from conftest import ROOT

from placealg.cost.formula import Formula
from placealg.cost.memory import memory
from placealg.cost.regions import kept_for_backward
from placealg.cost.sizing import stages
from placealg.errors import InputError
from placealg.models.abstract import abstract
from placealg.models.config import resolve_model
from placealg.models.losses import RUNS, chunk_parts, with_loss
from placealg.models.model import Model
from placealg.models.transformer import GPT, gpt, transformer
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

HUGE = {"h": 8, "a": 2, "L": 2, "s": 4, "V": 10**6, "dp": 1, "tp": 1}
"""Sizes at which nothing but logits counts."""


def per_logit(strategy: str, run: str, what: str = "peak") -> Fraction:
    """What one more sequence adds, for each of its logits."""
    model = with_loss(gpt(), run) if run else gpt()
    formula = getattr(memory(derive(parse_strategy(strategy), model)), what)
    values = [Fraction(formula.value(**{n: v for n, v in {**HUGE, "b": b}.items() if n in formula.inputs}))
              for b in (1, 2)]
    return (values[1] - values[0]) / (HUGE["s"] * HUGE["V"])


@pytest.mark.parametrize(("run", "peak", "kept"), [
    ("eager", 14, 6),           # log-softmax, its gradient, that of the copy: 3 x 4; the logits: 2
    ("fused", 2, 2),            # the gradient, which was the logits
    ("vocab_parallel", 6, 4),   # softmax that becomes the gradient: 4; the gradient in bf16: 2
    ("chunked", 0, 0),
])
def test_bytes_a_logit_by_hand(run: str, peak: int, kept: int) -> None:
    assert round(per_logit("dp", run), 2) == peak
    assert round(per_logit("dp", run, "activations"), 2) == kept


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 12))])
def test_the_loss_runs_alike_whatever_it_sums(seed: int) -> None:
    """With weights, or of sequences or documents, each way to run it holds as much of each logit, and the same chunks.

    What multiplies a token, its weight over a length, is no function of the logits: a run that takes their gradient in
    forward knows it then.
    """
    draw = Random(seed)
    tables = {"loss": {"preset": "token_mean", "per": draw.choice(("token", "sequence", "document"))},
              "tokens": {"weights": True, "documents": True}}
    run = draw.choice(tuple(RUNS))
    model = with_loss(gpt(), run)
    plain, told = (derive(overlay(parse_strategy("zero3*cp"), t), model) for t in ({}, tables))
    found = []
    for step in (plain, told):
        one, two = ({**HUGE, "b": b, "dp": 1, "cp": 1, "docs": 2} for b in (1, 2))
        held = [getattr(memory(step), what) for what in ("peak", "activations")]
        found.append([round((Fraction(h.value(**{n: v for n, v in two.items() if n in h.inputs}))
                             - Fraction(h.value(**{n: v for n, v in one.items() if n in h.inputs})))
                            / (HUGE["s"] * HUGE["V"]), 2) for h in held])
    assert found[0] == found[1]
    graph = told.reference.graph
    assert chunk_parts(graph) == chunk_parts(plain.reference.graph)
    below = {"head.loss"}
    for op in graph.of_unit("loss"):
        below |= {op.output} if below.intersection(op.inputs) else set()
    assert {n for op in graph.of_unit("loss") if op.kind == "mul" for n in op.inputs} - below == (
        {"data.weights"} | ({"loss.share"} if tables["loss"]["per"] != "token" else set()))


def test_a_chunk_is_as_large_as_the_hidden_states() -> None:
    model = with_loss(gpt(), "chunked")
    assert set(map(str, chunk_parts(model.graph).values())) == {"h/V"}
    chunked, fused = (memory(derive(parse_strategy("dp"), with_loss(gpt(), run))).activations
                      for run in ("chunked", "fused"))
    assert fused - chunked == Formula.parse("act*b*s*(V - h)", "bytes")


def test_what_is_not_said_goes_by_the_vocabulary() -> None:
    assert per_logit("dp", "") == per_logit("dp", "eager")
    assert per_logit("tp_sp", "") == per_logit("tp_sp", "vocab_parallel") != per_logit("tp_sp", "eager")
    for strategy, run in (("dp", "eager"), ("tp_sp", "vocab_parallel")):
        held = memory(derive(parse_strategy(strategy), gpt()))
        assert f"the loss is run {run} (--loss): it holds {RUNS[run].most} at most" in held.activations.note


def test_eager_keeps_the_logits_beside_the_log_softmax() -> None:
    kept = {k.tensor: k for k in kept_for_backward(derive(parse_strategy("dp"), gpt()))}
    assert kept["head.logits"].readers == ("head.loss",)
    assert kept["head.loss.softmax"].bytes.text() == "4·b·s·V"


@pytest.mark.parametrize("run", RUNS)
def test_the_step_is_the_same_however_the_loss_is_run(run: str) -> None:
    strategy = parse_strategy("zero3*tp_sp")
    assert derive(strategy, with_loss(gpt(), run)).events == derive(strategy, gpt()).events


def test_what_cannot_be_chosen() -> None:
    with pytest.raises(InputError, match="did you mean 'eager'"):
        with_loss(gpt(), "eagr")
    with pytest.raises(InputError, match="abstract has no cross entropy"):
        with_loss(abstract(), "eager")


# -------------------------------------------------------------------------------------------------- peaks of real runs

PEAKS: Mapping[str, Any] = tomllib.loads((ROOT / "tests" / "data" / "measured_peaks.toml").read_text(encoding="utf-8"))


def counted(row: Mapping[str, Any], strategy: str, inferred: Mapping[str, Any]) -> Fraction:
    """The peak of the fullest stage at the sizes of a row, in GiB."""
    name = row["model"]
    model = resolve_model(str(ROOT / "tests" / "data" / "n1b.json") if name == "n1b" else name)
    chosen = parse_strategy(strategy)
    if "stages" in inferred:
        chosen = overlay(chosen, {"schedule": {"stages": inferred["stages"]}})
    sizes = {n: Fraction(v) for n, v in {**row["sizes"], **inferred.get("types", {})}.items()}
    step = derive(chosen, with_loss(model, inferred.get("loss", "eager")))
    peaks = (stage.held.peak.value(**{n: v for n, v in sizes.items() if n in stage.held.peak.inputs})
             for stage in stages(step, sizes))
    return max(Fraction(p) for p in peaks if p is not None) / 2**30


def explained(row: Mapping[str, Any]) -> str:
    """What is inferred of the framework, in words."""
    words = {"kept inputs": "_keep" in row["placed"], "g = 4": row["inferred"]["types"]["g"] == 4,
             "stages by cost": "stages" in row["inferred"]}
    return ", ".join(word for word, holds in words.items() if holds) or "–"


def test_the_page_has_every_peak() -> None:
    page = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    for row in PEAKS["peaks"]:
        sizes = ", ".join(f"{n} = {v}" for n, v in row["sizes"].items())
        assert (f"| {row['source']} | `{row['strategy']}` | {sizes} | {row['GiB']:.1f} | {row['ratio']:.2f} | "
                f"{explained(row)} | {row['ratio_placed']:.2f} |") in page


@pytest.mark.some(4)
@pytest.mark.parametrize("row", PEAKS["peaks"], ids=lambda row: f"{row['strategy']}-{row['GiB']}")
def test_a_peak_of_a_real_run(row: Mapping[str, Any]) -> None:
    """As placed by its name, and as what is inferred of the framework places it: at most 2 % more than the run held."""
    named, placed = (counted(row, row[key], row["inferred"] if key == "placed" else {})
                     for key in ("strategy", "placed"))
    assert round(float(named / Fraction(str(row["GiB"]))), 2) == row["ratio"]
    assert round(float(placed / Fraction(str(row["GiB"]))), 2) == row["ratio_placed"] <= 1.02


# ----------------------------------------------------------------------------- whole steps under the tracker of PyTorch

def of_tracked(row: Mapping[str, Any]) -> tuple[Any, dict[str, Fraction]]:
    """The program of a small run, and what fixes its figures."""
    dims: dict[str, str | int] = {"vocab": "V", "embed": "h", "heads": "a", "kv": "a", "group": 1, "head_dim": "h/a",
                                  "ffn": "4*h", "position": "s_max"}
    graph = transformer(replace(GPT, tied=False, dropout=False), dims)
    inside = {n: row["sizes"][n] for n in ("h", "a", "L", "V", "s_max")}
    model = with_loss(Model.of_graph("gpt", graph, sizes=inside), "eager")
    types = {n: v for n, v in row["types"].items() if n in ("wire_w", "use")}
    strategy = overlay(parse_strategy(row["strategy"]), {"types": types}) if types else parse_strategy(row["strategy"])
    return derive(strategy, model), {n: Fraction(v) for n, v in {**row["sizes"], **row["types"]}.items()}


@pytest.mark.parametrize("row", PEAKS["tracked"], ids=lambda row: f"{row['strategy']}-m{row['sizes']['m']}")
def test_a_small_run_and_the_terms_that_explain_it(row: Mapping[str, Any]) -> None:
    """Parameters, gradients and optimizer to the byte; the peak, less what the run does not hold, to 2 in 1000."""
    step, sizes = of_tracked(row)
    held, total = memory(step), Fraction(row["bytes"]["total"])

    def at(formula: Formula) -> Fraction:
        found = formula.value(**{n: v for n, v in sizes.items() if n in formula.inputs})
        assert found is not None
        return Fraction(found)

    for name in ("parameters", "gradients", "optimizer"):
        assert at(getattr(held, name)) == row["bytes"].get(name, 0) or name in row["not_held"]
    assert sum(n for kind, n in row["bytes"].items() if kind != "total") == total
    assert abs(at(held.activations) / row["bytes"]["activations"] - 1) < Fraction(1, 200)
    less = sum(at(Formula.parse(text, "bytes").subs(Psi=psi(step)))
               for text in row["not_held"].values())
    assert round(float(at(held.peak) / total), 3) == row["ratio"]
    assert round(float((at(held.peak) - less) / total), 3) == row["ratio_held"]
    assert abs(row["ratio_held"] - 1) <= 0.002


def psi(step: Any) -> Fraction:
    """The parameters of a program's model."""
    return sum((g.count.evaluate(step.reference.sizes) * sum(e.evaluate(step.reference.sizes) for e in g.elements)
                for g in step.reference.groups), Fraction(0))


def test_the_page_has_every_small_run() -> None:
    page = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    assert len(PEAKS["tracked"]) == 6
    for row in PEAKS["tracked"]:
        less = ", ".join({"gradients": "dropped gradients", "head": "the head's copy"}[n] for n in row["not_held"])
        total = row["bytes"]["total"]
        said = ", ".join(f"{n} = {({**row['sizes'], **row['types']})[n]}" for n in ("m", "dp", "w", "act"))
        assert (f"| `{row['strategy']}` | {said} | {total:,} | {row['ratio']:.3f} | {less or '–'} | "
                f"{row['ratio_held']:.3f} |") in page


@pytest.mark.parametrize("row", [r for r in PEAKS["peaks"] if r["model"] != "n1b"], ids=lambda row: row["strategy"])
def test_fit_says_what_is_counted_and_what_is_not(row: Mapping[str, Any], placealg: Any) -> None:
    """Of a run that held more than is counted: *at least*, what is left for the framework, and what is left out."""
    sizes = [f"{n}={v}" for n, v in row["sizes"].items()]
    said = placealg("fit", row["strategy"], "--model", row["model"], "--device-memory", "96GB", "--set", *sizes).out
    assert "needs at least" in said and "what frameworks hold besides must fit in the other" in said
    assert "left out" in said and "--reserve" in said
