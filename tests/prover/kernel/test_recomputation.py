"""What is computed again in backward is the same once more, and what is not there is not read."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from counter_changes import counter_changes
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_mutants import counted, program
from mutants import Mutant

import placealg as pa
from placealg.check.kernel import kernel
from placealg.models.config import resolve_model
from placealg.prover.examine import examine
from placealg.prover.verdict import PROVED, REFUTED, overall
from placealg.step.edit import edit
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy, overlay


def said(text: str, **schedule: Any) -> Strategy:
    return overlay(parse_strategy(text), {"schedule": schedule} if schedule else {})


@pytest.mark.parametrize("schedule", [{}, {"replay": "early_stop"}, {"keep": ["*mixed"]},
                                      {"recompute_layers": {"first": 1}}])
@pytest.mark.parametrize(("text", "model"), [("dp*recompute_full", "gpt"), ("zero3*recompute_full", "moe"),
                                             ("hsdp*recompute_selective", "llama-3-8b")])
def test_a_program_that_computes_again_is_accepted(text: str, model: str, schedule: dict[str, Any]) -> None:
    found = kernel(pa.derive(said(text, **schedule), resolve_model(model)))
    assert found.accepted, found.reason


@pytest.mark.parametrize("changed", [
    {"drop": "backward.layer.mlp.gelu.compute"}, {"drop": "backward.layer.norm1.out.compute"},
    {"move": "backward.layer.mlp.up.compute", "after": "backward.layer.mlp.up.biased.compute"},
    {"move": "forward.layer.free", "before": "forward.layer.mlp.up.compute"},
    {"set": "forward.layer.free", "where": "rank(dp)=0"},
    {"move": "backward.layer.norm1.out.compute", "before": "backward.head.loss.grad.compute"},
    {"drop": "backward.layer.attn.core.dropped.compute"}])
def test_what_does_not_compute_the_same_again_is_not_accepted_unless_it_is_proved(changed: dict[str, Any]) -> None:
    step = edit(pa.derive("zero3*recompute_full", "gpt"), **changed)
    assert not kernel(step).accepted or overall(examine(step).verdicts)[0] == PROVED


def test_a_mask_that_an_op_keeps_is_freed_with_its_region() -> None:
    """What an attention keeps beside its result, which is not freed, is gone: it runs again, or its backward cannot."""
    step = pa.derive(parse_strategy("dp*recompute_selective"), resolve_model("llama-3-8b"))
    again = [e.path for e in step.phase("backward") if e.verb == "compute" and not e.on_gradient]
    assert kernel(step).accepted
    lost = edit(step, drop=again[-1])
    assert not kernel(lost).accepted and overall(examine(lost).verdicts)[0] == REFUTED


def test_a_slice_of_the_data_that_a_region_alone_has_read_is_not_read_behind_it() -> None:
    """The backward slices them again, or the checker reads what is gone."""
    step = pa.derive("dp", "llama-3-8b")
    last = next(e for e in reversed(step.phase("forward")) if e.unit == "embedding")
    freed = edit(step, insert={"path": "forward.embedding.free"}, after=last.path)
    assert not kernel(freed).accepted


DRAWING = tuple(f"{base}{again}@gpt{flash}" for base in ("dp", "zero1", "zero3", "hsdp")
                for again in ("*recompute_full", "*recompute_selective", "") for flash in ("", " --flash"))
"""Programs that draw again in backward; but for those that keep the mask, as attention in several ops does."""


@cache
def streams(text: str) -> tuple[Mutant, ...]:
    """What a program is with its random stream moved elsewhere."""
    return tuple(m for m in counter_changes(program(text)) if m.events[0].value == "rng")


def behind_forward(text: str) -> int:
    """The change by which the stream moves in the last microbatch, between forward and backward."""
    return next(k for k, m in enumerate(streams(text)) if m.story.startswith("move")
                and m.story.endswith("to last, before backward.loss.scale"))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.sampled_from(DRAWING), st.integers(0))
def test_no_stream_that_moves_is_accepted_unless_it_is_proved(text: str, k: int) -> None:
    assert counted(text, [streams(text)[k % len(streams(text))]]).wrong == []


@pytest.mark.parametrize("text", [pytest.param(t, marks=pytest.mark.some(8)) for t in DRAWING])
def test_a_stream_that_moves_before_what_draws_again_is_not_accepted(text: str) -> None:
    """A mask that is kept is not drawn again: then both prove it."""
    count = counted(text, [streams(text)[behind_forward(text)]])
    again = "*" in text or "--flash" in text
    assert (count.wrong, count.accepted) == ([], int(not again))


def test_a_printer_that_forgets_what_draws_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placealg.prover.kernel.loop_ends._touches", lambda *_: False)
    text = "dp@gpt --flash"
    assert len(counted(text, [streams(text)[behind_forward(text)]]).wrong) == 1
