"""Attributes of tokens, means and divisors: the prover held against plain floats that share no code with it."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from conftest import ROOT
from token_means import Case, agrees

import placealg as pa
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.transformer import Style, gpt
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, REFUTED, overall
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

BASES = {"dp": "dp", "zero1": "dp", "zero3": "dp", "zero2*tp_sp": "dp", "tp_sp": "", "cp": "cp", "cp_ring": "cp",
         "cp_ulysses": "cp", "cp*tp_sp": "cp", "dp*cp": "dp cp", "zero3*cp_ulysses": "dp cp", "zero1*cp_ring": "dp cp",
         "dp*cp*tp_sp": "dp cp"}
OF_SAMPLES, OF_LATER = "local samples", "first count"
FAULTS = ("local documents", "no mask", "local positions", "keys by place", "no weights", "count all", "count once",
          "local length")
BRIEF, SLOW = (1, 7, 9, 16, 28, 31, 32, 47, 57, 58), 300


def drawn(draw: Random) -> tuple[str, Case]:
    """A strategy of the catalogue, and a step in words; half of them with a fault that may not apply."""
    base = draw.choice(tuple(BASES))
    axes = BASES[base].split()
    divisor = draw.choice(("tokens", "count", "count", "count", "one"))
    per = draw.choice(("token", "token", "sequence", "document"))
    cut = [a for a in axes if a == "dp" or per == "token"]
    over = tuple(a for a in (*cut, "microbatch") if draw.random() < 0.8)
    documents = per == "document" or draw.random() < 0.5
    case = Case("dp" in axes, "cp" in axes, documents, draw.choice(("", "data", "index")), per, divisor, over,
                draw.choice(("token_mean", "token_mean", "microbatch_mean")), draw.random() < 0.4,
                draw.choice((*FAULTS, *[""] * len(FAULTS))))
    case = replace(case, over=()) if divisor == "tokens" else case
    if draw.random() < 0.5 and "microbatch" not in case.over and divisor != "one":
        fault = draw.choice((OF_SAMPLES, *[case.fault] * 3))
        case = replace(case, samples=True, reference=draw.choice(("sample_mean", "sample_mean", case.reference)),
                       fault=fault)
    return base, case


def with_later(draw: Random) -> tuple[str, Case]:
    """A step in words that has a loss of later tokens, too, with a count of its own over some axes."""
    base, case = drawn(draw)
    cut = [a for a in BASES[base].split() if a == "dp" or case.per == "token"]
    axes = tuple(a for a in (*cut, "microbatch") if draw.random() < 0.8)
    rotary = draw.choice(("data", "index"))
    return base, replace(case, rotary=rotary, later=axes, fault=draw.choice((OF_LATER, case.fault, case.fault)))


def told(base: str, case: Case) -> str:
    """The strategy file of a case."""
    preset = {"tokens": "mean_of_means", "count": "token_mean", "one": "sum"}[case.divisor]
    loss = f'preset = "{preset}"\nper = "{case.per}"\n'
    if case.divisor == "count":
        loss += f"count_axes = {json.dumps(list(case.over))}\n"
    if case.divisor != "one":
        loss += f'assume = {json.dumps(["equal_counts"] if case.equal else [])}\nreference = "{case.reference}"\n'
    tokens = "weights = true\n" + ("documents = true\n" if case.documents else "")
    tokens += 'positions = "data"\n' if case.rotary == "data" else ""
    if case.later is not None:
        loss += f'predictions = "counted"\nterm_divisor = "count"\nterm_axes = {json.dumps(list(case.later))}\n'
    schedule = '[schedule]\nmicrobatch_mean = "samples"\n' if case.samples else ""
    return f'base = "{base}"\n[tokens]\n{tokens}{schedule}[loss]\n{loss}'


def faulty(step: Step, case: Case) -> Step | None:
    """The program with the case's fault; None where it has nothing to get wrong so."""
    graph, attention = step.reference.graph, "layer.attn.core.probs"

    def without(path: str, tensor: str) -> dict[str, object] | None:
        event = next((e for e in step.events if e.path == path), None)
        op = event and graph.producer(event.tensor)
        if not event or not op or tensor not in op.inputs:
            return None
        said = event.reads or op.inputs
        return {"set": path, "reads": [f"{n}@none" if n in (tensor, f"{attention.rpartition('.')[0]}.documents")
                                       else text for n, text in zip(op.inputs, said, strict=True)]}

    counts = [e.path for e in step.events if e.value == "count" and e.verb == "compute" and e.unit == "loss"]
    edit = {
        "local documents": {"set": "forward.data.documents.slice[cp]", "layout": "local(cp)"},
        "local positions": {"set": "forward.data.positions.slice[cp]", "layout": "local(cp)"},
        "no mask": without(f"forward.{attention}.compute", "data.documents"),
        "keys by place": without("forward.layer.attn.k.rotated.compute", "data.positions"),
        "no weights": without("forward.loss.weighted.compute", "data.weights"),
        "count all": counts and {"set": counts[0], "reads": ["data.weights@none"]},
        "count once": counts and {"set": counts[0], "reads": ["data.weights@once"]},
        OF_SAMPLES: {"drop": "forward.samples.count.all_reduce[dp]"},
        OF_LATER: {"set": next((e.path for e in step.events if e.path.endswith("mtp1.count.compute")), ""),
                   "reads": ["data.weights"]},
        "local length": {"drop": "forward.loss.length.all_reduce[cp]"} if case.per == "sequence" else None,
    }[case.fault]
    paths = {e.path for e in step.events}
    if not edit or next(iter(edit.values())) not in paths:
        return None
    try:
        return pa.edit(step, edit)
    except InputError:
        return None


def tried(seed: int, later: bool = False) -> tuple[str, bool, str]:
    """A case in words, whether it has the gradient of one device in every run, and the prover's verdict."""
    draw = Random(seed)
    while True:
        base, case = (with_later if later else drawn)(draw)
        style = Style(rotary=True, positions="none") if case.rotary else Style()
        model = resolve_model(str(ROOT / "proofs" / "proved" / "predicting.json"), mtp=True) if later else gpt(style)
        try:
            step = pa.derive(parse_strategy_file(told(base, case)).strategy, model)
        except InputError:
            continue
        if case.fault:
            wrong = faulty(step, case)
            if wrong is None:
                continue
            step = wrong
        break
    runs = [(sizes, k) for k in range(3) for sizes in ((2, 2, 2), (2, 3, 1), (3, 2, 3))]
    verdict, _ = overall(examine(step).verdicts)
    return f"{base}: {case}", all(agrees(case, sizes, seed + k) for sizes, k in runs), str(verdict)


@pytest.mark.parametrize("seed", [s if s in BRIEF else pytest.param(s, marks=pytest.mark.slow) for s in range(SLOW)])
def test_a_step_in_words_has_the_verdict_of_its_gradient(seed: int) -> None:
    story, equal, verdict = tried(seed)
    assert verdict == (PROVED if equal else REFUTED), story


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_second_loss_in_words_has_the_verdict_of_its_gradient(seed: int) -> None:
    story, equal, verdict = tried(seed, later=True)
    assert verdict == (PROVED if equal else REFUTED), story
