"""What the model here keeps of a step, held against the real steps that `make models-write` ran."""

from __future__ import annotations

import json
from typing import Any

import pytest
from models_page import TABLE
from real_activations import CASES, RESIDUES, predicted

STEPS: dict[str, dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))["steps"]
BY_DEFAULT = ("llama", "gpt2", "mixtral")


def test_twenty_families_were_run() -> None:
    assert set(STEPS) == set(CASES) and len(STEPS) >= 20
    assert {residue for case in CASES.values() for residue in case.residues} == set(RESIDUES)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in BY_DEFAULT else pytest.mark.slow) for n in CASES])
def test_a_real_step_is_the_one_predicted(name: str) -> None:
    here, residues = predicted(name, CASES[name])
    row = STEPS[name]
    assert [here.parameters] * 2 == row["parameters"] and [here.gradients] * 2 == row["gradients"]
    assert [here.moments] * 2 == row["moments"] and [here.flop] * 2 == row["flop"]
    assert row["residues"] == residues
    assert here.activations + sum(residues.values()) == row["activations"][1]


def test_a_fused_norm_keeps_less() -> None:
    from real_models import read

    from placealg.model.backward import saved

    kept = {fused: sum(s.tensor.elements.evaluate({"b": 2, "s": 6, **model.sizes}) for s in saved(model.graph))
            for fused in (True, False) for model in [read("llama", CASES["llama"].config, fused=fused)]}
    norms, tokens, hidden = 3, 2 * 6, 32        # of one layer, and before the head
    assert kept[False] - kept[True] == norms * tokens * (hidden + 1)
