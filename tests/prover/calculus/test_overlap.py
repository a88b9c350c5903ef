"""Microbatches that overlap on a stage: what lives over microbatches is proved where every order reads it right."""

from __future__ import annotations

import pytest
from agreement import compare
from mutants import at_other_microbatches

import placealg as pa
from placealg.models.transformer import mlp
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy


def base(order: str = "pp") -> Step:
    return derive(parse_strategy(f"{order}*zero3"), mlp())


def kept_from_backward(order: str = "pp") -> Step:
    """FSDP2 in 1F1B that frees after each forward, and after the last backward only."""
    return pa.edit(base(order), set="backward.*.weight.free[dp]", at="last")


def kept_throughout(order: str = "pp") -> Step:
    """FSDP2 in 1F1B that does not free after a forward: gathered by the first, freed by the last backward."""
    step = pa.edit(base(order), set="forward.*.weight.gather[dp]", at="first")
    step = pa.edit(pa.edit(step, drop="forward.*.weight.free[dp]"), drop="backward.*.weight.gather[dp]")
    return pa.edit(step, set="backward.*.weight.free[dp]", at="last")


RIGHT = {"derived": base, "kept from backward": kept_from_backward, "kept throughout": kept_throughout}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("order", ["pp", pytest.param("pp_interleaved", marks=pytest.mark.slow)])
def test_copies_that_live_over_microbatches_are_proved(name: str, order: str) -> None:
    assert pa.prove(RIGHT[name](order)).verdict == PROVED


def test_a_copy_that_another_microbatch_has_freed_is_not_there() -> None:
    """Gathered by the first backward alone, as GPipe may: the next forward frees it, and the second backward reads."""
    step = pa.edit(kept_from_backward(), set="backward.*.weight.gather[dp]", at="first")
    found = compare(step)
    assert found.report.verdict == REFUTED and found.differs and not found.complaint
    assert pa.prove(pa.edit(kept_from_backward("pp_gpipe"), set="backward.*.weight.gather[dp]", at="first")
                    ).verdict == PROVED


@pytest.mark.slow
def test_no_verdict_of_any_mutant_is_against_a_run() -> None:
    mutants = (m for name, made in RIGHT.items() for m in at_other_microbatches(name, made(), "layer.weight"))
    assert [story for story, step in mutants if not compare(step).holds] == []
