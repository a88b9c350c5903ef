"""Every strategy of the catalogue and ten compositions are proved for all sizes; a second solver says the same."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from placealg.cases.case import default_model
from placealg.check.prove import judge
from placealg.check.recheck import cross_check
from placealg.models.config import resolve_model
from placealg.prover.evidence.certificate import certificate
from placealg.prover.evidence.replay import AGREE, DISAGREE
from placealg.prover.verdict import OBLIGATIONS, PARAMETRIC, PROVED, Report
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy import catalogue as cat
from placealg.strategy.expression import parse_strategy

COMPOSED: Mapping[str, str] = {
    "hsdp*tp": "gpt",
    "zero3*tp_sp*recompute_selective": "llama-3-70b",
    "zero1*cp_ulysses": "gpt",
    "zero2*ep": "moe",
    "zero1*tp*pp_interleaved": "gpt",
    "zero3*cp_ring*pp": "gpt",
    "zero2*tp_sp*pp_zb_h2*ep": "moe",
    "zero1*tp*pp_gpipe*recompute_full": "gpt",
    "zero3*tp_sp*pp_zb_v*cp_ring": "llama-3-70b",
    "zero1*tp*pp_interleaved_zb": "gpt",
    "zero2*tp_sp*pp_dualpipe_v*ep": "deepseek-v3",
    "zero3*tp_sp*pp*cp": "llama-3.1-405b",
    "zero1*tp_sp*ep*pp": "deepseek-v3",
    "zero3*tp_sp*pp*cp_ring*ep": "mixtral-8x7b",
}
"""Composition -> the model on which it is proved."""

CASES = {**{name: default_model(parse_strategy(name)) for name in cat.catalogue()}, **COMPOSED}
LEAST_AGREED = 0.98


def step_of(name: str) -> Step:
    return derive(parse_strategy(name), resolve_model(CASES[name]))


def lacking(report: Report) -> list[str]:
    """What of a report is not proved for all sizes; an obligation that is absent is not."""
    absent = [i for i in OBLIGATIONS if not report.of(i)]
    return absent + [f"{v.id} of {v.group}: {v.verdict} {v.cls}, {v.reason}" for v in report.obligations
                     if (v.verdict, v.cls) != (PROVED, PARAMETRIC)]


@pytest.mark.some(2)
@pytest.mark.parametrize("name", CASES)
def test_it_is_proved_for_all_sizes(name: str) -> None:
    report, candidates = judge(step_of(name))
    assert lacking(report) == []
    assert (report.verdict, report.cls, report.counterexample, candidates) == (PROVED, PARAMETRIC, None, ())
    assert all(v.verdict == PROVED and v.instances for v in report.of("vacuity")), "the premises can be met"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_second_solver_agrees(name: str) -> None:
    step = step_of(name)
    report, candidates = judge(step)
    queries = certificate(step, report, candidates)
    found = cross_check(queries, report)
    assert {q.obligation for q in queries} >= set(OBLIGATIONS)
    assert (found.count(DISAGREE), found.undecided) == (0, 0)
    assert found.count(AGREE) >= LEAST_AGREED * len(found.replays) > 0, [
        f"{r.name}: {r.reason}" for r in found.replays if r.outcome != AGREE]


def test_compositions_are_over_two_to_five_axes() -> None:
    axes = [len(parse_strategy(name).mesh.names) for name in COMPOSED]
    assert len(axes) >= 10 and set(axes) == {2, 3, 4, 5}


@pytest.mark.parametrize("path", ["forward.layer.attn.out.all_reduce[tp]", "reduce.layer.weight.grad_sum.reduce*"])
def test_what_is_not_proved_is_seen(path: str) -> None:
    wrong = edit(step_of("hsdp*tp"), drop=path)
    assert lacking(judge(wrong)[0])
