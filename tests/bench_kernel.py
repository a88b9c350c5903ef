"""Timings of the kernel's checker: a check of one program, and what the first of a process loads besides."""

from __future__ import annotations

import marshal
from typing import Any

import pytest
from extracted import CHECKER

import placealg as pa
from placealg.check.kernel import kernel
from placealg.models.config import resolve_model
from placealg.prover.kernel.checker import shipped
from placealg.prover.kernel.terms import Term

CASES = [("zero1", "abstract"), ("zero3", "gpt"), ("zeropp", "gpt"), ("zero3", "llama-3-70b"),
         ("hsdp", "deepseek-v3"), ("zeropp", "deepseek-v3")]


def program(strategy: str, model: str) -> Term:
    chosen, on = pa.parse_strategy(strategy), resolve_model(model)
    return kernel(pa.derive(chosen, on)).program


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_check(benchmark: Any, strategy: str, model: str) -> None:
    asked = program(strategy, model)
    assert benchmark(lambda: shipped().check(asked))


def test_load(benchmark: Any) -> None:
    """With the module compiled to bytecode, as an installed package has it."""
    compiled = marshal.dumps(compile(CHECKER.target.read_text(encoding="utf-8"), CHECKER.target.name, "exec"))

    def load() -> Any:
        shipped.cache_clear()
        exec(marshal.loads(compiled), {})
        return shipped()

    assert benchmark(load).sources
