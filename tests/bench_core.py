"""Timings: `make bench`. The package is imported before the clock starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from placealg.check.prove import prove
from placealg.cost.communication import communication
from placealg.cost.memory import memory
from placealg.model.config import resolve_model
from placealg.simulate import Setting, simulate
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

CASES = [("zero3", "abstract"), ("zero3", "llama-3-70b"), ("hsdp", "llama-3-70b")]


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_derive(benchmark: Any, strategy: str, model: str) -> None:
    chosen = parse_strategy(strategy), resolve_model(model)
    assert benchmark(lambda: derive(*chosen)).events


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_cost(benchmark: Any, strategy: str, model: str) -> None:
    step = derive(parse_strategy(strategy), resolve_model(model))
    assert benchmark(lambda: (memory(step), communication(step)))


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_prove(benchmark: Any, strategy: str, model: str) -> None:
    step = derive(parse_strategy(strategy), resolve_model(model))
    assert benchmark(lambda: prove(step)).verdict == "PROVED"


def test_simulate(benchmark: Any) -> None:
    step = derive(parse_strategy("zero3"), resolve_model("abstract"))
    assert benchmark(lambda: simulate(step, Setting.equal(step.reference, {"dp": 2}, 2))).equal


def test_help(benchmark: Any) -> None:
    command = [sys.executable, "-m", "placealg", "--help"]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5)
