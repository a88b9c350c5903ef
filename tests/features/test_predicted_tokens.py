"""Tokens that layers predict further on count by weights of their own; units on other stages read data of their own."""

from __future__ import annotations

from random import Random

import pytest
from conftest import ROOT

import placealg as pa
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.models.tokens import Attributes, with_attributes
from placealg.prover.examine import examine
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.simulator.space import of
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

BASES = ("cp", "cp_ring", "zero3*cp_ulysses", "dp*tp_sp", "dp*pp", "cp*pp", "zero1*cp*pp")


def predicting() -> Model:
    """A small model with a layer that predicts the token after the next."""
    return resolve_model(str(ROOT / "proofs" / "proved" / "predicting.json"), mtp=True)


MODELS = {"predicting": predicting, "deepseek": lambda: resolve_model("deepseek-v3", mtp=True)}


WEIGHED = '[tokens]\nweights = true\n[loss]\npreset = "token_mean"\nterms = ["z"]\nterm_tokens = "weighted"\n'
PACKED = '[tokens]\ndocuments = true\npositions = "data"\n[loss]\nper = "document"\n'


def drawn(seed: int) -> tuple[str, str]:
    """A model and a strategy file: a base, attributes, a mean, and how the losses of later tokens stand."""
    draw = Random(seed)
    documents = draw.random() < 0.6
    per = draw.choice(("token", "sequence", "document") if documents else ("token", "sequence"))
    tokens = f"weights = {str(draw.random() < 0.7).lower()}\ndocuments = {str(documents).lower()}\n"
    tokens += 'positions = "data"\n' if draw.random() < 0.5 else ""
    base = draw.choice(BASES)
    text = f'base = "{base}"\n[tokens]\n{tokens}[loss]\npreset = "token_mean"\nper = "{per}"\n'
    text += f'predictions = "{draw.choice(("added", "apart"))}"\n'
    text += '[schedule]\nalone = ["prediction"]\n' if "pp" in base and draw.random() < 0.3 else ""
    return draw.choice(("predicting", "predicting", "deepseek")), text


def derived(text: str, model: str = "predicting") -> Step:
    return pa.derive(parse_strategy_file(text).strategy, MODELS[model]())


@pytest.mark.parametrize("seed", [9, *(pytest.param(s, marks=pytest.mark.slow) for s in range(40) if s != 9)])
def test_drawn_losses_of_later_tokens_are_proved_and_run(seed: int) -> None:
    model, text = drawn(seed)
    step = derived(text, model)
    assert {(v.verdict, v.cls) for v in examine(step).verdicts} == {(PROVED, PARAMETRIC)}, text
    sizes = {a: 4 if a == "pp" and "alone" in text else 2 for a in step.reference.mesh.names}
    assert simulate(step, Setting.unequal(step.reference, sizes, 2, seed=seed), steps=1).difference is None, text


@pytest.mark.parametrize("packed", [False, True])
def test_a_later_token_has_the_weight_of_its_target(packed: bool) -> None:
    """At each place that of the next place, 0 at the end of the sequence or of its document."""
    documents = "documents = true\n" if packed else ""
    step = derived(f'base = "cp"\n[tokens]\nweights = true\n{documents}[loss]\npreset = "token_mean"\n')
    at = of(step.reference, Setting.unequal(step.reference, {"cp": 2}, 1, seed=1))
    rows = at.sequences(0)
    weights, later = (at.data(f"data.{name}", 0, rows).numbers.tolist() for name in ("weights", "weights_mtp1"))
    ids = at.data("data.documents", 0, rows).numbers.tolist() if packed else [[0] * len(weights[0])] * len(rows)
    assert later == [[row[i + 1] if i + 1 < len(row) and of_row[i + 1] == of_row[i] else 0 for i in range(len(row))]
                     for row, of_row in zip(weights, ids, strict=True)]
    assert any(map(any, later))


@pytest.mark.parametrize("mode", ["added", pytest.param("apart", marks=pytest.mark.slow)])
def test_a_later_token_without_its_weight_is_refuted(mode: str) -> None:
    step = derived(f'base = "cp"\n[tokens]\nweights = true\n[loss]\npreset = "token_mean"\npredictions = "{mode}"\n')
    product = "loss.weighted_mtp1" if mode == "added" else "mtp1.term.weighted"
    wrong = pa.edit(step, {"set": f"forward.{product}.compute", "reads": ["mtp1.weighted", "data.weights_mtp1@none"]})
    assert {v.id for v in examine(wrong).verdicts if v.verdict == REFUTED} == {"forward"}
    assert not simulate(wrong, Setting.unequal(wrong.reference, {"cp": 2}, 1), steps=1).equal


@pytest.mark.parametrize(("terms", "path", "reads"), [
    ("z", "layer.router.z_weighted", "layer.router.z_scaled"),
    pytest.param("balance", "layer.router.balance_weighted", "layer.router.balance_scaled", marks=pytest.mark.slow)])
def test_what_a_term_sums_is_observed(terms: str, path: str, reads: str) -> None:
    """No gradient tells of what a forward alone gets wrong in a term: a run looks at what the term sums."""
    text = WEIGHED.replace('"z"', f'"{terms}"')
    step = pa.derive(parse_strategy_file(f'base = "dp"\n{text}').strategy, pa.moe())
    wrong = pa.edit(step, {"set": f"forward.{path}.compute", "reads": [reads, "data.weights@none"]})
    assert not simulate(wrong, Setting.unequal(wrong.reference, {"dp": 2}, 1), steps=1).equal
    assert {v.id for v in examine(wrong).verdicts if v.verdict == REFUTED} == {"forward"}


def test_each_unit_reads_weights_of_its_own_tokens() -> None:
    """Means of sequences: added to a token's own, over the length of what the head predicts; apart over its own."""
    graph = with_attributes(predicting(), Attributes(weights=True, per="sequence")).graph
    (added,) = [op for op in graph.ops if op.output == "loss.together"]
    assert added.inputs == ("loss.weighted", "loss.weighted_mtp1")
    assert graph.producer("loss.length").inputs == ("data.weights",)  # type: ignore[union-attr]
    apart = with_attributes(predicting(), Attributes(weights=True, per="sequence", apart=True)).graph
    assert apart.producer("mtp1.term.length").inputs == ("data.weights_mtp1",)  # type: ignore[union-attr]


@pytest.mark.parametrize(("model", "text", "alone"), [
    pytest.param("mixtral-8x7b", WEIGHED, "", marks=pytest.mark.slow),
    pytest.param("llama-3-8b", PACKED, '[schedule]\nalone = ["first", "last"]\n', marks=pytest.mark.slow)])
def test_units_on_other_stages_read_data_of_their_own(model: str, text: str, alone: str) -> None:
    step, whole = (pa.derive(parse_strategy_file(f'base = "{base}"\n{text}').strategy, resolve_model(model))
                   for base, text in (("cp*pp", text + alone), ("cp", text)))
    assert {(v.verdict, v.cls) for v in examine(step).verdicts} == {(PROVED, PARAMETRIC)}
    copies, none = ([n for n in s.reference.graph.tensors if n.startswith("data.") and n.count(".") == 2]
                    for s in (step, whole))
    assert copies
    assert not none
