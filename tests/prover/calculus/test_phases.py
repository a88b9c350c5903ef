"""Every forward of a stage before its backwards: what lives over microbatches is proved where a run is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agreement import compare
from conftest import ROOT
from mutants import at_other_microbatches

import placealg as pa
from placealg.errors import InputError
from placealg.models.transformer import Style, gpt
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED
from placealg.step.derive import derive
from placealg.step.edit import apply_edits, read_edits
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import read_strategy_file

SMALL = gpt(Style(dropout=False))


def as_pytorch_runs_it() -> Step:
    """GPipe over FSDP2: gathered by the first backward, freed by the last, gradients reduced once."""
    file = read_strategy_file(str(ROOT / "proofs" / "torch" / "pp_fsdp2.toml"))
    base = derive(file.strategy, SMALL)
    return apply_edits(base, read_edits(file.edits, base.reference, file.positions))


def verdict(step: Step) -> str:
    return str(pa.prove(step).verdict)


def test_it_is_proved_as_pytorch_runs_it() -> None:
    assert verdict(as_pytorch_runs_it()) == PROVED


def mutants() -> Iterator[tuple[str, Step]]:
    """What lives over microbatches, gathered, freed, added up and reduced at other ones of them, or not at all."""
    for name, base in (("pp_fsdp2", as_pytorch_runs_it()), ("zero3", derive(parse_strategy("pp_gpipe*zero3"), SMALL))):
        yield from at_other_microbatches(name, base, "layer.weight")


@pytest.mark.parametrize(("path", "at"), [("backward.layer.weight.free[dp]", "first"),
                                          ("forward.layer.weight.gather[dp]", "last")])
def test_no_verdict_is_against_a_run(path: str, at: str) -> None:
    assert compare(pa.edit(as_pytorch_runs_it(), set=path, at=at)).holds


@pytest.mark.slow
def test_no_verdict_on_any_mutant_is_against_a_run() -> None:
    assert [name for name, step in mutants() if not compare(step).holds] == []


def test_forwards_that_leave_their_copy_to_the_next_are_proved() -> None:
    """Gathered by the first forward, freed by the last backward: one gather a step."""
    base = derive(parse_strategy("pp_gpipe*zero3"), SMALL)
    for path in ("forward.layer.weight.free[dp]", "backward.layer.weight.gather[dp]"):
        base = pa.edit(base, drop=path)
    once = pa.edit(pa.edit(base, set="forward.layer.weight.gather[dp]", at="first"),
                   set="backward.layer.weight.free[dp]", at="last")
    assert verdict(once) == PROVED


def test_a_copy_that_is_freed_too_early_is_refuted() -> None:
    early = pa.edit(as_pytorch_runs_it(), set="backward.layer.weight.free[dp]", at="first")
    assert "layer.weight" in {v.group for v in examine(early).verdicts if v.verdict != PROVED}
    with pytest.raises(InputError):
        pa.edit(early, drop="backward.layer.weight.free[pp]")
