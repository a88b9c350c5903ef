"""Families under data, sharded, tensor and expert parallelism: three here, all in `make models` and the slow tier."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from models_page import TABLE
from proved_families import MIXED, fault, model
from random_dims import settings

from placealg.check.prove import prove
from placealg.models.config import from_config
from placealg.models.family import families, family
from placealg.prover.verdict import PROVED
from placealg.simulator import simulate
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

PASSED: dict[str, dict[str, str]] = json.loads(TABLE.read_text(encoding="utf-8"))["passed"]
BY_DEFAULT = (("olmoe", "zero1*ep"), ("phi", "tp_sp"), ("falcon", "dp"))


def cases() -> Iterator[Any]:
    """The strategies of each graph."""
    for name, row in PASSED.items():
        for told in (text for text, what in row.items() if what == "passed"):
            yield pytest.param(name, told, marks=() if (name, told) in BY_DEFAULT else pytest.mark.slow)


@pytest.mark.parametrize(("name", "told"), list(cases()))
def test_a_family_is_proved_and_simulated(name: str, told: str) -> None:
    text, _, mixed = told.partition(" of ")
    assert not fault(name, bool(mixed), text)


def test_every_family_has_passed() -> None:
    assert set(PASSED) == set(families())
    for name in families():
        style = family(name).style
        wanted = {"dp", "zero3", "tp_sp"} | ({"zero1*ep"} if style.get("experts") else set())
        mixed = {f"{text} of {MIXED}" for text in ("dp", "zero3", "tp_sp") if "layer_types" in family(name).read}
        assert wanted | mixed <= set(PASSED[name]), name
        assert all(what == "passed" or PASSED[what.removeprefix("as ")] for what in PASSED[name].values()), name


def test_families_of_one_graph_are_told_so() -> None:
    assert model("codegen").graph.ops == model("gptj").graph.ops and set(PASSED["gptj"].values()) == {"as codegen"}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["dp", "zero3", "tp_sp", "zero1*ep", "zero1*pp"])
def test_layers_that_predict_later_tokens_are_proved(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "deepseek_v3"}', encoding="utf-8")
    step = derive(parse_strategy(text), from_config(path, mtp=True))
    assert prove(step).verdict == PROVED
    assert simulate(step, next(iter(settings(step)))).difference is None
