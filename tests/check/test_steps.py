"""Published steps: no run is faster than the bound, and a bound that is too high is noticed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from placealg.check.steps import PublishedStep, find_step, kendall, published_steps


@pytest.mark.some(9)
@pytest.mark.parametrize("step", published_steps(), ids=lambda step: step.id)
def test_no_published_step_is_faster_than_the_bound(step: PublishedStep) -> None:
    found = find_step(step)
    assert found.holds and found.bound < found.estimate
    assert 2 < found.step.seconds / found.bound < 12
    assert not replace(found, step=replace(step, tokens=step.tokens * 12)).holds


def test_every_step_has_a_source_and_a_time() -> None:
    assert len({step.id for step in published_steps()}) == len(published_steps()) == 18
    assert all(step.source.startswith("pytorch/torchtitan") and step.seconds > 1 for step in published_steps())


def test_kendall_tells_orders() -> None:
    up, down = [Fraction(n) for n in (1, 2, 3)], [Fraction(n) for n in (3, 2, 1)]
    assert (kendall(up, up), kendall(up, down), kendall(up, [Fraction(1)] * 3)) == (1, -1, None)
