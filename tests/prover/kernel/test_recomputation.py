"""What is computed again in backward is folded into its unit, and what is not there is not read."""

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
from placealg.check.kernel import Kernel, kernel
from placealg.models.config import resolve_model
from placealg.prover.examine import examine
from placealg.prover.verdict import REFUTED, overall
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy, overlay


def said(text: str, **schedule: Any) -> Strategy:
    return overlay(parse_strategy(text), {"schedule": schedule} if schedule else {})


def asked(strategy: Strategy, model: str, step: Step | None = None) -> Kernel:
    on = resolve_model(model)
    return kernel(step or pa.derive(strategy, on), strategy, on)


@pytest.mark.parametrize("schedule", [{}, {"replay": "early_stop"}, {"keep": ["*mixed"]},
                                      {"recompute_layers": {"first": 1}}])
@pytest.mark.parametrize(("text", "model"), [("dp*recompute_full", "gpt"), ("zero3*recompute_full", "moe"),
                                             ("hsdp*recompute_selective", "llama-3-8b")])
def test_a_program_that_computes_again_is_the_one_that_keeps(text: str, model: str, schedule: dict[str, Any]) -> None:
    """The theorem speaks of the same program."""
    again = asked(said(text, **schedule), model)
    assert again.accepted, again.reason
    if "recompute_layers" not in schedule:  # its layers are of two units
        assert again.sha256 == asked(parse_strategy(text.partition("*")[0]), model).sha256


@pytest.mark.parametrize(("changed", "says"), [
    ({"drop": "backward.layer.mlp.gelu.compute"}, "it needs layer.mlp.gelu, which was freed"),
    ({"drop": "backward.layer.norm1.out.compute"}, "it needs layer.norm1.out"),
    ({"double": "backward.layer.attn.q.compute"}, "does not run as the model has it"),
    ({"move": "backward.layer.mlp.up.compute", "after": "backward.layer.mlp.up.biased.compute"},
     "it needs layer.mlp.up, which"),
    ({"move": "forward.layer.free", "before": "forward.layer.mlp.up.compute"}, "no region whose ops have run"),
    ({"double": "forward.layer.norm2.out.compute"}, "does not run as the model has it"),
    ({"set": "forward.layer.free", "where": "rank(dp)=0"}, "where = rank(dp)=0"),
    ({"move": "backward.layer.norm1.out.compute", "before": "backward.head.loss.grad.compute"}, "more than one place"),
    ({"drop": "backward.layer.attn.core.dropped.compute"}, "it needs layer.attn.core.dropped"),
])
def test_what_does_not_compute_the_same_again_is_outside(changed: dict[str, Any], says: str) -> None:
    strategy = parse_strategy("zero3*recompute_full")
    found = asked(strategy, "gpt", edit(pa.derive(strategy, resolve_model("gpt")), **changed))
    assert found.accepted is None
    assert says in found.reason


def test_a_mask_that_an_op_keeps_is_freed_with_its_region() -> None:
    """What an attention keeps beside its result, which is not freed, is gone: it runs again, or its backward cannot."""
    strategy = parse_strategy("dp*recompute_selective")
    step = pa.derive(strategy, resolve_model("llama-3-8b"))
    again = [e.path for e in step.phase("backward") if e.verb == "compute" and not e.on_gradient]
    assert asked(strategy, "llama-3-8b", step).accepted
    lost = edit(step, drop=again[-1])
    assert asked(strategy, "llama-3-8b", lost).accepted is None
    assert overall(examine(lost).verdicts)[0] == REFUTED


def test_a_statistic_that_is_taken_behind_the_free_is_outside() -> None:
    strategy = overlay(parse_strategy("dp*recompute_full"), {"optimizer": {"router_bias": True}})
    step = pa.derive(strategy, resolve_model("moe"))
    assert asked(strategy, "moe", step).accepted
    taken = next(e.path for e in step.phase("forward") if e.group and step.reference.group(e.group).statistic
                 and e.verb == "compute")
    found = asked(strategy, "moe", edit(step, move=taken, after="forward.layer.free"))
    assert found.accepted is None
    assert "it is taken behind" in found.reason


def test_a_slice_of_the_data_that_a_region_alone_has_read_is_not_read_behind_it() -> None:
    """The backward slices them again, or is outside."""
    strategy = parse_strategy("dp")
    step = pa.derive(strategy, resolve_model("llama-3-8b"))
    last = next(e for e in reversed(step.phase("forward")) if e.unit == "embedding")
    freed = edit(step, insert={"path": "forward.embedding.free"}, after=last.path)
    assert "it needs data.tokens@" in asked(strategy, "llama-3-8b", freed).reason


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
def test_a_stream_that_moves_before_what_draws_again_is_outside(text: str) -> None:
    """A mask that is kept is not drawn again: then both prove it."""
    count = counted(text, [streams(text)[behind_forward(text)]])
    again = "*" in text or "--flash" in text
    assert (count.wrong, count.accepted, count.outside.total()) == ([], int(not again), int(again))


def test_a_folding_that_forgets_the_stream_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placealg.prover.kernel.whole_units._moves_stream", lambda _: False)
    text = "dp@gpt --flash"
    assert len(counted(text, [streams(text)[behind_forward(text)]]).wrong) == 1
