"""Programs on which the two engines once disagreed, in disagreements.toml: what each of them must say now."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from nets import NETS, OPAQUE
from random_dims import judged
from random_programs import two_units

from placealg.models.abstract import abstract
from placealg.models.model import Model
from placealg.models.transformer import Style, gpt, mla, mlp, moe
from placealg.prover.verdict import UNDECIDED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay, strategy_on

MODELS: Mapping[str, Callable[[], Model]] = {
    "abstract": abstract, "two units": lambda: two_units(False), "mlp": mlp, "gpt": gpt,
    "flash": lambda: gpt(Style(flash=True)), "moe": moe, "mla": mla, **NETS, **OPAQUE}
DISAGREEMENTS = tomllib.loads(Path(__file__).with_name("disagreements.toml").read_text(encoding="utf-8"))["case"]


@pytest.mark.parametrize("case", DISAGREEMENTS, ids=lambda case: case["found"])
def test_what_they_disagreed_on(case: Mapping[str, Any]) -> None:
    tables = {k: case[k] for k in ("dims", "states", "parameters", "optimizer", "loss", "schedule") if k in case}
    strategy = (overlay(parse_strategy(case["strategy"]), tables) if "strategy" in case
                else strategy_on("kept", dict.fromkeys(case["mesh"]), **tables))
    edits = case.get("edit", [])
    step = edit(derive(strategy, MODELS[case["model"]]()), *(edits if isinstance(edits, list) else [edits]))
    verdict, complaint = judged(step)
    assert verdict == case["verdict"]
    assert verdict == UNDECIDED or not complaint
