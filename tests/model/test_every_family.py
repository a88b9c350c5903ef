"""Every family under data, sharded, tensor and expert parallelism: proved for all sizes, simulated at small ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from models_page import TABLE
from random_dims import settings

from placealg.check.prove import prove
from placealg.model.config import from_config
from placealg.model.family import families
from placealg.model.model import Model
from placealg.prover.verdict import PROVED
from placealg.simulator import simulate
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

GIVEN: Mapping[str, Mapping[str, Any]] = {
    name: entry.get("given", {}) for name, entry in json.loads(TABLE.read_text(encoding="utf-8"))["types"].items()}
BY_DEFAULT = (("olmoe", "zero1*ep"), ("phi", "tp_sp"), ("falcon", "dp"))


@cache
def model(name: str) -> Model:
    """The family's default configuration."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": name, **GIVEN.get(name, {})}), encoding="utf-8")
        return from_config(path)


def strategies(of: Model) -> tuple[str, ...]:
    """The strategies that its parts call for."""
    return ("dp", "zero3", "tp_sp") + (("zero1*ep",) if any(op.kind == "route" for op in of.graph.ops) else ())


def cases() -> Iterator[Any]:
    """Families, one of each kind of graph, with their strategies."""
    seen: set[Any] = set()
    for name in families():
        graph = model(name).graph
        key = (graph.ops, tuple(graph.tensors.items()), graph.loops)
        if key in seen and not any(name == n for n, _ in BY_DEFAULT):
            continue
        seen.add(key)
        for text in strategies(model(name)):
            yield pytest.param(name, text, marks=() if (name, text) in BY_DEFAULT else pytest.mark.slow)


@pytest.mark.parametrize(("name", "text"), list(cases()))
def test_a_family_is_proved_and_simulated(name: str, text: str) -> None:
    step = derive(parse_strategy(text), model(name))
    assert prove(step).verdict == PROVED
    assert simulate(step, next(iter(settings(step)))).difference is None


@pytest.mark.slow
@pytest.mark.parametrize("text", ["dp", "zero3", "tp_sp", "zero1*ep", "zero1*pp"])
def test_layers_that_predict_later_tokens_are_proved(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "deepseek_v3"}', encoding="utf-8")
    step = derive(parse_strategy(text), from_config(path, mtp=True))
    assert prove(step).verdict == PROVED
    assert simulate(step, next(iter(settings(step)))).difference is None
