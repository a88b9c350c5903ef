"""What a proof costs does not depend on sizes: bound sizes change no query, and many axes are one proof."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from placealg.models.config import resolve_model
from placealg.prover import examine
from placealg.prover.evidence.lemmas import proved_lemmas
from placealg.prover.evidence.solver import PROCESS, Reply
from placealg.prover.verdict import PARAMETRIC, PROVED
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy


@contextmanager
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, ...]]]:
    """The queries that the solver is asked; equal queries in a fresh process are equal work."""
    seen: list[tuple[str, ...]] = []
    ask = PROCESS.ask

    def recorded(assertions: Any, **options: Any) -> Reply:
        listed = list(assertions)
        seen.append(tuple(assertion.sexpr() for assertion in listed))
        return ask(listed, **options)

    with monkeypatch.context() as patch:
        patch.setattr(PROCESS, "ask", recorded)
        yield seen


@pytest.mark.parametrize("strategy", ["zero3[{}]", "hsdp[dp_replicate=2,dp_shard={}]", "zero3[{}]*tp_sp[tp=8]"])
def test_the_solver_is_asked_the_same_at_every_size(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    model, found = resolve_model("llama-3-70b"), []
    proved_lemmas()
    for size in ("8", "8192"):
        with asked(monkeypatch) as seen:
            examine.examine(derive(parse_strategy(strategy.format(size)), model))
        found.append(seen)
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize("model", ["gpt", "llama-3-70b"])
@pytest.mark.parametrize("strategy", ["hsdp*cp*tp_sp*dp[outer]", "hsdp*cp_ulysses*tp*zero1[outer]"])
def test_five_axes_are_one_proof(strategy: str, model: str) -> None:
    step = derive(parse_strategy(strategy), resolve_model(model))
    assert len(step.reference.mesh.names) == 5
    assert {(v.verdict, v.cls) for v in examine.examine(step).verdicts} == {(PROVED, PARAMETRIC)}
