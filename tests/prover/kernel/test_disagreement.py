"""Kernel against prover on changed programs: the kernel accepts nothing that the prover does not prove.

What it rejects of what the prover proves, and what is outside of its language, is named by cause.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mutants import Mutant, axis_changes, deletions, doublings, swaps
from operator_changes import operator_changes

import placealg as pa
from placealg.check.kernel import kernel
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, REFUTED, overall
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import Strategy

KINDS = {"deletions": deletions, "doublings": doublings, "axis_changes": axis_changes, "swaps": swaps,
         "operator_changes": operator_changes}
STRATEGIES = ("dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "mics", "zeropp", "zero3*offload_optimizer",
              'hsdp|[loss]\npreset = "token_mean"', 'zero1|[loss]\npreset = "sum"',
              'hsdp|[optimizer]\nskip = "overflow"', 'zero1|[optimizer]\nname = "muon"',
              'hsdp|[optimizer]\nname = "lamb"', 'hsdp|[checkpoint]\nby = "one"')
"""Names, some with tables of their own."""


def strategy_of(text: str) -> Strategy:
    """A strategy of the catalogue, with its tables behind a bar."""
    base, _, tables = text.partition("|")
    return parse_strategy_file(f'base = "{base}"\n{tables}').strategy


def cause(mutant: Mutant) -> str:
    """Why the kernel may reject what the prover proves; "" where nothing is known that would excuse it."""
    events = {e.path for e in (*mutant.events, *mutant.instead)}
    if len(mutant.instead) > len(mutant.events) and any(e.verb == "compute" for e in mutant.events):
        return "a unit, or the loss, is computed twice"
    if any(e.phase in ("save", "resume") for e in mutant.events):
        return "a checkpoint is stored or loaded in another way"
    if any(e.verb == "norm" and e.group for e in mutant.events):
        return "a norm counts by what is held, and where a gradient is held between steps is not followed"
    if any(a.verb == "zero" and {*b.where} < {*a.where} for a, b in zip(mutant.events, mutant.instead, strict=False)):
        return "a rank begins a sum of gradients that it owns no part of"
    return "" if events else "nothing is changed"


def disagreements(strategy: str, mutants: Iterator[Mutant]) -> tuple[int, list[str]]:
    """(how many programs both have judged, what is wrong between them)."""
    chosen, on = strategy_of(strategy), pa.abstract()
    judged, wrong = 0, []
    for mutant in mutants:
        found = kernel(mutant.step, chosen, on)
        if found.accepted is None:
            continue
        judged += 1
        verdict, _ = overall(examine(mutant.step).verdicts)
        if found.accepted and verdict != PROVED:
            wrong.append(f"{mutant.story}: accepted, but {verdict}")
        elif not found.accepted and verdict != REFUTED and not cause(mutant):
            wrong.append(f"{mutant.story}: not accepted, but {verdict}")
    return judged, wrong


def step(strategy: str) -> Step:
    return pa.derive(strategy_of(strategy), pa.abstract())


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_and_prover_agree_on_a_sample(kind: str) -> None:
    sample = [m for k, m in enumerate(KINDS[kind](step("hsdp"))) if k % 9 == 4]
    judged, wrong = disagreements("hsdp", iter(sample))
    assert judged
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_kernel_and_prover_agree(strategy: str, kind: str) -> None:
    _, wrong = disagreements(strategy, KINDS[kind](step(strategy)))
    assert wrong == []
