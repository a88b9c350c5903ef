"""Checkpoints by who stores them: proved, simulated, and every event of a save and a resume left out or done twice."""

from __future__ import annotations

import pytest
from agreement import compare

import placealg as pa
from placealg.errors import InputError
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.checkpoint import checkpoint
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file

MODEL = pa.abstract()


def strategy(base: str, by: str, holds: str = "all") -> pa.Strategy:
    return parse_strategy_file(f'base = "{base}"\n[checkpoint]\nby = "{by}"\nholds = "{holds}"').strategy


def step(base: str, by: str, holds: str = "all") -> Step:
    return derive(strategy(base, by, holds), MODEL)


@pytest.mark.parametrize("by", ["replica", "one"])
@pytest.mark.parametrize("base", ["dp", "zero3", pytest.param("hsdp", marks=pytest.mark.slow)])
def test_whoever_stores_it_is_proved(base: str, by: str) -> None:
    found = compare(step(base, by))
    assert (found.report.verdict, found.differs) == (PROVED, "")


def test_of_parameters_alone_nothing_is_resumed() -> None:
    report = pa.prove(step("zero3", "one", "parameters"))
    assert report.verdict == PROVED and "never_resumed" in [h.name for h in report.hypotheses]
    stored = {e.value for e in step("zero3", "one", "parameters").phase("save") if e.verb == "store"}
    assert stored == {"weight"}


def test_who_stores_what() -> None:
    """Of hsdp on 2 x 3 ranks: each its own, the first replica its own, rank 0 everything."""
    for by, files in (("owners", 6), ("replica", 3), ("one", 1)):
        said = strategy("hsdp", by)
        (weight, _) = checkpoint(derive(said, MODEL), said, MODEL).items
        ranks = [(r, s) for r in range(2) for s in range(3)]
        assert sum(all({"dp_replicate": r, "dp_shard": s}[a] == k for a, k in weight.at.items())
                   for r, s in ranks) == files


EVENTS = [(base, by, e.path) for base, by in (("zero3", "one"), ("dp", "replica"), ("hsdp", "replica"))
          for e in step(base, by).phase("save", "resume")]


@pytest.mark.parametrize(("base", "by", "path"), [
    *EVENTS[3:5], *(pytest.param(*e, marks=pytest.mark.slow) for e in (*EVENTS[:3], *EVENTS[5:]))])
def test_events_left_out_and_done_twice(base: str, by: str, path: str) -> None:
    for action in ("drop", "double"):
        try:
            mutant = pa.edit(step(base, by), **{action: path})
        except InputError:
            continue
        found = compare(mutant)
        assert not found.complaint
        assert found.report.verdict in (PROVED, REFUTED)


def test_what_rests_on_the_host_is_stored_there() -> None:
    with pytest.raises(InputError, match="optimizer do not rest on the device"):
        step("zero2*offload_optimizer", "one")
