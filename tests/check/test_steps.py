"""Published steps: no run is faster than the bound, and a bound that is too high is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from conftest import Outcome

from placealg.check.steps import PublishedStep, find_step, find_steps, kendall, published_steps
from placealg.cli.published import step_document
from placealg.cost.communication import Carried, rows
from placealg.cost.walk import Walk
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.render.steps import table_of


@pytest.mark.some(9)
@pytest.mark.parametrize("step", published_steps(), ids=lambda step: step.id)
def test_no_published_step_is_faster_than_the_bound(step: PublishedStep) -> None:
    found = find_step(step)
    assert found.holds and found.bound < found.estimate
    assert Fraction(7, 5) < found.ratio < 12
    assert not replace(found, bound=found.bound * 12).holds


@pytest.mark.slow
def test_steps_that_are_found_together_are_those_found_alone() -> None:
    assert list(find_steps(published_steps())) == [find_step(step) for step in published_steps()]


def test_steps_of_one_strategy_at_several_sizes_are_those_found_alone() -> None:
    several = [step for step in published_steps() if step.id.startswith("titan-8b-") and step.strategy == "zero3"]
    assert len(several) > 1 and list(find_steps(several)) == [find_step(step) for step in several]


def test_every_step_has_a_source_and_a_time() -> None:
    assert len({step.id for step in published_steps()}) == len(published_steps()) == 51
    assert all(step.source and step.seconds > Fraction(1, 2) for step in published_steps())
    assert len({step.table for step in published_steps()}) == 13


def test_a_time_is_told_in_one_of_three_ways() -> None:
    sizes = FrozenMap({"dp": Fraction(8), "b": Fraction(2), "m": Fraction(3), "s": Fraction(100)})
    step = PublishedStep("x", "", "", "gpt2", "zero1", "h100", sizes, tokens=Fraction(60))
    assert step.seconds == 10
    assert replace(step, tokens=None, time=Fraction(7)).seconds == 7
    assert replace(step, tokens=None, rate=Fraction(6 * resolve_model("gpt2").total() * 60)).seconds == 10


@pytest.mark.parametrize("fault", ["dropped", "doubled"])
def test_a_traffic_that_is_wrong_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that waits for its card: without its collectives its bound falls, with each of them twice it rises."""
    step = next(s for s in published_steps() if s.id == "titan-8b-128")
    step = replace(step, sizes=step.sizes.plus({"b": Fraction(1), "s": Fraction(128)}))
    right = find_step(step).bound
    times = 0 if fault == "dropped" else 2

    def wrong(walk: Walk) -> list[Carried]:
        return [row for row in rows(walk) for _ in range(times if row.collective == "reduce_scatter" else 1)]

    monkeypatch.setattr("placealg.cost.times.rows", wrong)
    found = find_step(step).bound
    assert (found < right) if fault == "dropped" else (found > right)


def test_kendall_tells_orders() -> None:
    up, down = [Fraction(n) for n in (1, 2, 3)], [Fraction(n) for n in (3, 2, 1)]
    assert (kendall(up, up), kendall(up, down), kendall(up, [Fraction(1)] * 3)) == (1, -1, None)


def test_the_pages(placealg: Callable[..., Outcome]) -> None:
    told = placealg("explain", "titan-8b-8")
    assert told.code == 0 and "zero3 on llama-3-8b" in told.out and "no faster than the bound" in told.out
    findings = [find_step(step) for step in published_steps() if step.id.startswith("korthikanti-22b")]
    said = step_document(findings[1])
    assert said["holds"] and Fraction(said["printed"]["exact"]) == Fraction("1.1")
    assert "tau of the bound 1.00" in "".join(str(part) for line in table_of(findings, 100) for part in line)
