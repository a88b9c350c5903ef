"""What the loss is divided by, counted over any of the axes: what is divided by, is made; prover against simulator."""

from __future__ import annotations

import json
import os
from random import Random

import pytest

import placealg as pa
from placealg.models.config import resolve_model
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, REFUTED, overall
from placealg.simulator.run import simulate
from placealg.simulator.setting import Setting
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

AXES = {"dp": ("dp",), "zero2": ("dp",), "hsdp": ("dp_replicate", "dp_shard"), "dp*ep": ("dp", "ep"), "cp": ("cp",),
        "cp_ring": ("cp",), "cp_ulysses": ("cp",), "dp*cp": ("dp", "cp"), "zero3*cp": ("dp", "cp")}
BRIEF, SLOW = 8, int(os.environ.get("PLACEALG_RANDOM_RUNS", "100"))


def drawn(seed: int) -> Step:
    """A program that counts tokens over some of the axes; every fourth seed over none."""
    draw = Random(seed)
    base = draw.choice(tuple(AXES))
    axes = [a for a in (*AXES[base], "microbatch") if seed % 4 and draw.random() < 0.7]
    mean = draw.choice(("loss", "gradients")) if "microbatch" not in axes else "loss"
    assume, reference = draw.choice(([], ["equal_counts"])), draw.choice(("token_mean", "microbatch_mean"))
    text = (f'base = "{base}"\n[loss]\npreset = "token_mean"\ncount_axes = {json.dumps(axes)}\n'
            f'assume = {json.dumps(assume)}\nreference = "{reference}"\n'
            f'[schedule]\nmicrobatch_mean = "{mean}"\n')
    model = "moe" if base == "dp*ep" else "gpt" if "cp" in base else draw.choice(("abstract", "two_losses"))
    return pa.derive(parse_strategy_file(text).strategy, resolve_model(model))


@pytest.mark.parametrize("seed", [*range(BRIEF), *(pytest.param(s, marks=pytest.mark.slow)
                                                   for s in range(BRIEF, BRIEF + SLOW))])
def test_what_divides_the_loss_is_made_and_the_engines_agree(seed: int) -> None:
    step = drawn(seed)
    made = {e.value for e in step.events if e.verb == "compute"}
    assert ("count" in made) == any("count" in dict(e.divisor.powers) for e in step.events), step
    verdict, _ = overall(examine(step).verdicts)
    sizes = dict.fromkeys(step.reference.mesh.names, 2)
    setting = Setting.equal if "equal_counts" in step.reference.hypotheses else Setting.unequal
    runs = [simulate(step, setting(step.reference, sizes, m)).equal for m in (1, 2)]
    assert verdict == (PROVED if all(runs) else REFUTED), (seed, verdict, runs)


def test_both_verdicts_are_drawn() -> None:
    found = {str(overall(examine(drawn(seed)).verdicts)[0]) for seed in range(BRIEF)}
    assert found == {"PROVED", "REFUTED"}
