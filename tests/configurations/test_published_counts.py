"""The counts that docs/search.md prints of the space `dense`, counted anew."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from pathlib import Path

import pytest

from placealg.configurations.layouts import Devices, layouts
from placealg.configurations.question import Question
from placealg.configurations.run import search
from placealg.configurations.space import spaces
from placealg.cost.machines import machine
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.strategy.expression import parse_strategy

PAGE = Path(__file__).parents[2] / "docs" / "search.md"
ROWS = [tuple(int(number.replace(",", "")) for number in row) for row in re.findall(
    r"^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| [\d.]+ \|$",
    PAGE.read_text(encoding="utf-8"), re.MULTILINE)]
"""(devices, layouts, those that fit, those with their places)."""

SIZES = {"s": Fraction(8192)}


def asked(devices: int) -> Question:
    """What the page asks: as many sequences as devices, but 1,024 on 512."""
    return Question(resolve_model("llama-3-70b"), Devices(devices, 8, max(devices, 1024)), machine("h100"),
                    Fraction(80 * 10**9), spaces()["dense"], FrozenMap(SIZES))


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_layouts_of_dense_are_as_many_as_the_page_says(row: tuple[int, ...]) -> None:
    question = asked(row[0])
    expressions = question.space.expressions()
    assert f"`dense`, {len(expressions)} strategies" in PAGE.read_text(encoding="utf-8")
    columns = (layouts(parse_strategy(e), question.model, question.devices, SIZES, {}) for e in expressions)
    assert row[1] == sum(len(next(iter(found.values()))) for found in columns)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("PLACEALG_MUTANTS") == "few", reason="ten minutes: DRAW=all")
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_fits_of_dense_is_what_the_page_says(row: tuple[int, ...]) -> None:
    counts = search(asked(row[0])).counts
    assert (counts.layouts, counts.fit, counts.places) == row[1:]


def test_the_page_prints_these_counts() -> None:
    assert [row[0] for row in ROWS] == [512, 16_384]
