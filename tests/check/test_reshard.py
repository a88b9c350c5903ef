"""The verdict on a resumption on another mesh: proved, refuted, and never against what a run shows."""

from __future__ import annotations

import pytest

import placealg as pa
from placealg.check.reshard import judge_reshard, with_phase
from placealg.errors import InputError
from placealg.prover.resharding import Resharding
from placealg.prover.verdict import PARAMETRIC, PROVED, REFUTED
from placealg.simulator.resharded import meshes, resharded
from placealg.step.checkpoint import checkpoint
from placealg.step.program import Step
from placealg.step.reshard import Reshard
from placealg.strategy.expression import parse_strategy

MODEL = pa.abstract()
OLD, NEW = "zero3", "zero1"


def step(text: str) -> Step:
    return pa.derive(parse_strategy(text), MODEL)


def judged(old: Step, new: Step, names: tuple[str, str] = (OLD, NEW)) -> Resharding:
    said = [parse_strategy(n) for n in names]
    bases = step(names[0]), step(names[1])
    kept = (checkpoint(old, said[0], MODEL), checkpoint(with_phase(new, bases[1], "save"), said[1], MODEL))
    return judge_reshard(Reshard(*kept), bases)


@pytest.mark.parametrize("names", [("zero3", "dp"), ("zero2*offload_optimizer", "hsdp")])
def test_a_resumption_is_proved(names: tuple[str, str]) -> None:
    found = judged(step(names[0]), step(names[1]), names)
    assert (found.verdict, found.cls, found.ran and found.ran.equal) == (PROVED, PARAMETRIC, True)
    assert "same_batches" in [h.name for h in found.hypotheses]
    assert not any("another mesh" in text for text in found.not_covered)


def test_what_is_saved_before_the_update_is_refuted() -> None:
    early = pa.edit(step(OLD), set="save.layer.weight.store", where="rank(dp)=0")
    found = judged(early, step(NEW))
    assert found.saved.verdict == REFUTED and found.verdict == REFUTED and found.loaded.verdict == PROVED


def mutants(text: str, phase: str) -> list[Step]:
    """Every event of a phase left out, and done twice."""
    base = step(text)
    found = []
    for event in base.phase(phase):
        for action in ("drop", "double") if phase == "save" else ("drop",):
            try:
                found.append(pa.edit(base, **{action: event.path}))
            except InputError:
                continue
    return found


@pytest.mark.parametrize("which", ["old", "new"])
def test_no_verdict_is_against_a_run(which: str) -> None:
    """Of every event of a save or a resume left out or done twice: proved where a small run goes on, else not."""
    decided = 0
    for mutant in mutants(OLD, "save") if which == "old" else mutants(NEW, "resume"):
        old, new = (mutant, step(NEW)) if which == "old" else (step(OLD), mutant)
        try:
            found = judged(old, new)
        except InputError:
            continue
        outcome = resharded(old, with_phase(new, step(NEW), "save"), meshes(old, new, ({"dp": 2}, {"dp": 3})))
        assert (found.verdict == PROVED) == outcome.equal, (mutant, outcome.difference)
        decided += 1
    assert decided >= 4
