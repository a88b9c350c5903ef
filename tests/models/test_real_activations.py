"""What the model here keeps of a step, held against the real steps that `make models-write` ran."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from models_page import TABLE
from random_dims import settings
from real_activations import CASES, RESIDUES, WIDE, predicted

from placealg.check.prove import prove
from placealg.prover.verdict import PROVED
from placealg.simulator import simulate
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

COUNTED: dict[str, dict[str, dict[str, Any]]] = json.loads(TABLE.read_text(encoding="utf-8"))
STEPS, IN_16_BITS = COUNTED["steps"], COUNTED["wide"]
BY_DEFAULT = ("llama", "gpt2", "mixtral")


def test_twenty_families_were_run() -> None:
    assert set(STEPS) == set(CASES) and len(STEPS) >= 20 and set(IN_16_BITS) == set(WIDE) and len(WIDE) >= 8
    assert {residue for case in CASES.values() for residue in case.residues} == set(RESIDUES)


def cases() -> Iterator[Any]:
    for name in CASES:
        yield pytest.param(name, False, marks=() if name in BY_DEFAULT else pytest.mark.slow)
    for name in WIDE:
        yield pytest.param(name, True, marks=() if name == "qwen3" else pytest.mark.slow)


@pytest.mark.parametrize(("name", "wide"), list(cases()))
def test_a_real_step_is_the_one_predicted(name: str, wide: bool) -> None:
    here, residues = predicted(name, CASES[name], wide)
    row = (IN_16_BITS if wide else STEPS)[name]
    assert [here.parameters] * 2 == row["parameters"] and [here.gradients] * 2 == row["gradients"]
    assert [here.moments] * 2 == row["moments"] and [here.flop] * 2 == row["flop"]
    assert row["residues"] == residues
    assert here.activations + sum(residues.values()) == row["activations"][1]


def test_a_fused_norm_keeps_less() -> None:
    from real_models import read

    from placealg.models.backward import saved

    kept = {fused: sum(s.tensor.elements.evaluate({"b": 2, "s": 6, **model.sizes}) for s in saved(model.graph))
            for fused in (True, False) for model in [read("llama", CASES["llama"].config, fused=fused)]}
    norms, tokens, hidden = 3, 2 * 6, 32        # of one layer, and before the head
    assert kept[False] - kept[True] == norms * tokens * (hidden + 1)


def test_a_norm_in_32_bits_keeps_its_copy() -> None:
    from real_models import read

    from placealg.models.backward import saved

    model = read("llama", CASES["llama"].config, flash=False, upcast=True)
    wide = {s.tensor.name for s in saved(model.graph) if s.tensor.element == "stat"}
    assert {"layer.norm1.wide", "layer.norm2.wide", "head.norm.wide", "layer.attn.core.probs.softmax"} <= wide


@pytest.mark.parametrize("text", ["zero3", pytest.param("tp_sp", marks=pytest.mark.slow)])
def test_copies_of_32_bits_are_proved_and_simulated(text: str) -> None:
    from real_models import read

    step = derive(parse_strategy(text), read("qwen3", CASES["qwen3"].config, flash=False, upcast=True))
    assert prove(step).verdict == PROVED
    assert simulate(step, next(iter(settings(step)))).difference is None
