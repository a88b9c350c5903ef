"""What divides besides the count of the loss: counts of later tokens, and of samples; in engines and kernel."""

from __future__ import annotations

from random import Random

import pytest
from conftest import ROOT

import placealg as pa
from placealg.cost.walk import walked
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.models.transformer import Style, gpt
from placealg.prover.examine import examine
from placealg.prover.kernel.checker import accepts
from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.printer import printed
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator import Setting, simulate
from placealg.simulator.space import of
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

COUNTED = '[loss]\npreset = "token_mean"\npredictions = "counted"\n'
BY_SAMPLES = ('[schedule]\nmicrobatch_mean = "samples"\n'
              '[loss]\npreset = "token_mean"\ncount_axes = ["dp"]\nreference = "sample_mean"\n')


def model_of(text: str) -> Model:
    predicting = str(ROOT / "proofs" / "proved" / "predicting.json")
    return resolve_model(predicting, mtp=True) if "predictions" in text else gpt()


def derived(text: str, base: str = "dp") -> Step:
    return pa.derive(parse_strategy_file(f'base = "{base}"\n{text}').strategy, model_of(text))


def accepted(step: Step) -> bool:
    """Whether the kernel accepts a program; what its language lacks it does not."""
    try:
        return accepts(printed(step))
    except Outside:
        return False


def runs_alike(step: Step, seed: int = 1) -> bool:
    sizes = dict.fromkeys(step.reference.mesh.names, 2)
    drawn = Setting.equal if "equal_counts" in step.reference.hypotheses else Setting.unequal
    return simulate(step, drawn(step.reference, sizes, 2, seed=seed), steps=1).equal


def drawn(seed: int) -> tuple[str, str]:
    """A base and a strategy file: a mean, attributes, and what divides the losses."""
    draw = Random(seed)
    base = draw.choice(("dp", "cp", "cp_ring", "zero3*cp_ulysses", "dp*tp_sp", "dp*pp", "zero1*cp*pp", "hsdp"))
    documents = draw.random() < 0.5
    per = draw.choice(("token", "sequence", "document") if documents else ("token", "sequence"))
    plain = f'[tokens]\nweights = {str(draw.random() < 0.5).lower()}\ndocuments = {str(documents).lower()}\n'
    axes = derived(f'{plain}[loss]\nper = "{per}"\n', base).reference.data_axes
    how = draw.choice(("all", "shared", "microbatch_mean", "sample_mean"))
    loss = f'[loss]\nper = "{per}"\npredictions = "{draw.choice(("apart", "counted", "counted"))}"\n'
    loss += 'term_divisor = "count"\n' if how == "shared" else 'preset = "token_mean"\n'
    schedule = 'alone = ["prediction"]\n' if "pp" in base and draw.random() < 0.3 else ""
    if how.endswith("mean") and "pp" not in base:
        loss += f"count_axes = {list(axes)}\nreference = \"{how}\"\n".replace("'", '"')
        schedule += 'microbatch_mean = "samples"\n' if how == "sample_mean" else ""
    return base, plain + loss + (f"[schedule]\n{schedule}" if schedule else "")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_drawn_counts_are_proved_run_and_accepted(seed: int) -> None:
    base, text = drawn(seed)
    step = derived(text, base)
    assert {(v.verdict, v.cls) for v in examine(step).verdicts} == {(PROVED, PARAMETRIC)}, text
    sizes = {a: 4 if a == "pp" and "alone" in text else 2 for a in step.reference.mesh.names}
    of_run = Setting.equal if "equal_counts" in step.reference.hypotheses else Setting.unequal
    assert simulate(step, of_run(step.reference, sizes, 2, seed=seed), steps=1).difference is None, text
    assert accepted(step) or "pp" in base, text


WRONG = {
    "samples of each rank": (BY_SAMPLES, {"drop": "forward.samples.count.all_reduce[dp]"}),
    "all samples of each rank": (BY_SAMPLES, {"drop": "prepare.all_samples.count.all_reduce[dp]"}),
    "microbatches alike": (BY_SAMPLES, {"set": "backward.loss.scale", "divisor": "m"}),
    "samples not counted": (BY_SAMPLES, {"drop": "forward.samples.count.compute"}),
    "by all samples alone": (BY_SAMPLES, {"set": "backward.loss.scale", "divisor": "all_samples"}),
    "later tokens of each rank": (COUNTED, {"drop": "prepare.mtp1.count.all_reduce[dp]"}),
    "the first loss's tokens": (COUNTED, {"set": "prepare.mtp1.count.compute", "reads": ["data.weights"]}),
    "later tokens under the first": (COUNTED, {"set": "prepare.loss.count.compute", "reads": ["data.weights_mtp1"]}),
    "all later tokens alike": (COUNTED, {"set": "prepare.mtp1.count.compute", "reads": ["data.weights_mtp1@none"]}),
    "no count of later tokens": (COUNTED, {"drop": "prepare.mtp1.count.compute"}),
    "half of the second loss": (COUNTED, {"set": "backward.mtp1.sum.grad.compute", "divisor": "2*count"}),
}


@pytest.mark.some(11)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_count_is_refuted_by_all(name: str) -> None:
    text, edit = WRONG[name]
    wrong = pa.edit(derived(text), edit)
    assert "gradient" in {v.id for v in examine(wrong).verdicts if v.verdict == REFUTED}
    assert not runs_alike(wrong)
    assert not accepted(wrong)


@pytest.mark.parametrize("text", [BY_SAMPLES, pytest.param(COUNTED, marks=pytest.mark.slow)])
def test_right_counts_are_proved_run_and_accepted(text: str) -> None:
    step = derived(text)
    assert {(v.verdict, v.cls) for v in examine(step).verdicts} == {(PROVED, PARAMETRIC)}
    assert runs_alike(step)
    assert accepted(step)


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["token_mean", "microbatch_mean"])
def test_a_mean_by_samples_is_no_other_mean(reference: str) -> None:
    step = derived(BY_SAMPLES.replace("sample_mean", reference))
    assert {v.id for v in examine(step).verdicts if v.verdict == REFUTED} >= {"gradient"}
    assert not runs_alike(step)


@pytest.mark.slow
def test_equal_counts_of_the_first_loss_say_nothing_of_later_tokens() -> None:
    """Of ranks with equally many tokens that of the last part of a sequence has one later token less."""
    text = '[loss]\npredictions = "counted"\nterm_divisor = "count"\nterm_axes = ["microbatch"]\n'
    step = derived(text, "cp")
    assert {v.id for v in examine(step).verdicts if v.verdict == REFUTED} == {"normalizer"}
    assert not runs_alike(step)


@pytest.mark.parametrize(("axes", "holds"), [("", True), ('term_axes = ["microbatch"]\n', False),
                                             ("term_axes = []\n", False)])
def test_the_kernel_assumes_no_equal_counts_of_later_tokens(axes: str, holds: bool) -> None:
    """A mean over later tokens of its own for each rank is none over all, though first tokens are counted alike."""
    assert accepted(derived(f'[loss]\npredictions = "counted"\nterm_divisor = "count"\n{axes}')) is holds


def test_a_run_has_rows_of_one_or_two_samples_and_none_of_padding() -> None:
    step = derived(f"[tokens]\nweights = true\n{BY_SAMPLES}")
    at = of(step.reference, Setting.unequal(step.reference, {"dp": 2}, 2, seed=3))
    rows = at.sequences(0)
    samples, weights = (at.data(f"data.{name}", 0, rows).numbers for name in ("samples", "weights"))
    assert set(samples.tolist()) == {0, 1, 2}
    assert [n > 0 for n in samples.tolist()] == weights.any(axis=1).tolist()
    assert sum(at.samples({"dp": rank}, 0) for rank in range(2)) == samples.sum()


@pytest.mark.parametrize(("text", "says"), [
    ('[loss]\npredictions = "counted"\n', "[loss] predictions is 'counted', and terms are divided by 'tokens'"),
    ('[schedule]\nmicrobatch_mean = "samples"\n[loss]\npreset = "token_mean"\n',
     "[schedule] microbatch_mean is 'samples', but the loss is divided by the tokens of all microbatches"),
    ('[schedule]\nmicrobatch_mean = "sample"\n', "did you mean 'samples'?"),
    ('[loss]\nreference = "samples_mean"\n', "did you mean 'sample_mean'?"),
])
def test_counts_that_cannot_be_are_told(text: str, says: str) -> None:
    with pytest.raises(InputError) as found:
        derived(text)
    assert says in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("edit", "says"), [
    ({"set": "prepare.mtp1.count.compute", "reads": ["data.targets"]}, "it reads data.weights_mtp1"),
    ({"set": "backward.loss.sum.grad.compute", "divisor": "samples"}, "samples"),
])
def test_what_a_count_cannot_read_is_refused(edit: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        pa.edit(derived(COUNTED), edit)


@pytest.mark.parametrize(("base", "kept"), [
    ("dp", {"documents@dp": "4·b·s", "weights@dp": "act·b·s"}),
    ("cp", {"documents": "4·b·s", "documents@cp": "4·b·s/cp", "weights@cp": "act·b·s/cp"}),
    pytest.param("tp_sp", {"documents": "4·b·s", "weights": "act·b·s"}, marks=pytest.mark.slow),
    pytest.param("dp*cp", {"documents@dp_cp": "4·b·s", "documents@dp_cp, cut": "4·b·s/cp",
                           "weights@dp_cp": "act·b·s/cp"}, marks=pytest.mark.slow)])
@pytest.mark.parametrize("flash", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_attributes_are_kept_once_for_all_layers(base: str, kept: dict[str, str], flash: bool) -> None:
    """4 bytes an id and act a weight, of a rank's part; where cp cuts sequences keys' documents come whole besides.

    A softmax that is written out needs no documents backward, but what it made.
    """
    def held(text: str) -> list[str]:
        strategy = parse_strategy_file(f'base = "{base}"\n{text}').strategy
        rows = walked(pa.derive(strategy, gpt(Style(flash=flash)))).tensors.kept()
        return sorted(str(row.bytes) for row in rows if row.tensor.startswith("data.") or ".documents" in row.tensor)

    said = held("[tokens]\nweights = true\ndocuments = true\n")
    assert said == sorted(f"{n} bytes" for name, n in kept.items() if flash or "weights" in name)
    assert held("") == []
