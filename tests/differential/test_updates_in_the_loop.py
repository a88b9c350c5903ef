"""Updates, reductions and what publishes weights inside the loop over microbatches: prover against simulator."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

import placealg as pa
from placealg.models.config import resolve_model
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, REFUTED, overall
from placealg.simulator.run import simulate
from placealg.simulator.setting import Setting
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

BRIEF, SLOW = 8, int(os.environ.get("PLACEALG_RANDOM_RUNS", "100"))
TABLES = ('clip = "none"', 'clip = "none"', "", 'skip = "overflow"', 'clip = "none"\naverage = "optimizer"',
          'clip = "none"\nname = "muon"')
POSITIONS = ((), ("first",), ("last",), ("last",), ("last",), ("middle",), ("first", "last"), ("only",))
VERBS = ("reduce", "norm", "clip", "update", "publish")


def moved(draw: Random) -> Step:
    """A program in which some of what comes behind the loop, the update among it, stands inside, behind backward."""
    base, table = draw.choice(("dp", "zero1", "zero2", "zero3", "hsdp", "mics")), draw.choice(TABLES)
    strategy = parse_strategy_file(f'base = "{base}"\n[optimizer]\n{table}\n').strategy
    step = pa.derive(strategy, resolve_model(draw.choice(("abstract", "abstract", "two_losses"))))
    group = draw.choice(step.reference.trained).name
    tail = [e for e in step.phase("reduce", "update", "publish") if e.group == group and e.verb in VERBS]
    some = [e for e in tail if e.verb == "update" or draw.random() < 0.9]
    anchor = [e for e in step.phase("backward") if e.group == group][-1]
    events, at = [e for e in step.events if e not in some], draw.choice(POSITIONS)
    behind = events.index(anchor) + 1
    events[behind:behind] = [replace(e, phase="backward", at=at) for e in some]
    return replace(step, events=tuple(events))


def disagreement(seed: int) -> str:
    """How prover and simulator disagree on a program; "" where they do not."""
    step = moved(Random(seed))
    verdict, _ = overall(examine(step).verdicts)
    sizes = dict.fromkeys(step.reference.mesh.names, 2)
    runs = [simulate(step, Setting.equal(step.reference, sizes, m)).equal for m in (1, 3)]
    return "" if verdict == (PROVED if all(runs) else REFUTED) else f"{seed}: {verdict}, and runs {runs}"


@pytest.mark.parametrize("seed", [*range(BRIEF), *(pytest.param(s, marks=pytest.mark.slow)
                                                   for s in range(BRIEF, BRIEF + SLOW))])
def test_prover_and_simulator_agree(seed: int) -> None:
    assert disagreement(seed) == ""


def test_both_verdicts_are_drawn() -> None:
    found = {str(overall(examine(moved(Random(seed))).verdicts)[0]) for seed in range(BRIEF)}
    assert found == {"PROVED", "REFUTED"}


def test_an_update_among_microbatches_that_overlap_is_not_followed() -> None:
    step = pa.derive(pa.parse_strategy("pp_1f1b"), pa.gpt())
    update = next(e for e in step.phase("update") if e.group and e.verb == "update")
    inside = edit(step, move=update.path, at=["last"], after=next(
        e.path for e in reversed(step.phase("backward")) if e.verb == "accumulate" and e.group == update.group))
    assert any("overlap in a pipeline" in v.reason for v in examine(inside).verdicts)
