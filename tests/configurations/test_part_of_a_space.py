"""A bounded number of strategies, what is preferred, and the front alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import Outcome

from placealg.configurations.certificate import certified
from placealg.configurations.layouts import Devices
from placealg.configurations.question import Question
from placealg.configurations.run import search
from placealg.configurations.space import Space
from placealg.cost.machines import machine
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.render.search_front import front_as_csv

SPACE = Space("some", FrozenMap({"data": ("zero1", "zero3"), "tp": ("", "tp_sp")}))


def asked(memory: int = 8 * 10**9) -> Question:
    return Question(resolve_model("gpt2"), Devices(8, 4, 64), machine("h100"), Fraction(memory), SPACE,
                    FrozenMap({"s": Fraction(1024)}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("part")


@pytest.mark.parametrize("best_alone", [False, True])
def test_at_most_so_many_are_evaluated(best_alone: bool, folder: Path) -> None:
    seen = [search(asked(), folder, best_alone=best_alone, most=most) for most in (1, 2, 4, 9)]
    assert [one.counts.strategies + len(one.pruned) for one in seen[:2]] == [1, 2]
    assert [one.complete for one in seen] == [False, False, True, True]
    assert seen[2].best.text == search(asked(), folder).best.text == seen[3].best.text
    assert all(one.best.estimate >= seen[2].best.estimate for one in seen)
    with pytest.raises(InputError, match=r"interrupted|left out by a bound"):
        certified(seen[0], {}, None)


def test_of_a_part_that_does_not_fit_no_more_is_searched(folder: Path) -> None:
    found = search(asked(10**8), folder, best_alone=True, most=1)
    assert not found.complete and not found.counts.fit


def test_the_preferred_is_the_first_that_matches(folder: Path) -> None:
    found = search(asked(), folder)
    for pattern in ("zero3", "zero3*", "zero1[*]*", "*"):
        one = found.preferred([pattern])
        assert one is not None
        rows = [found.configuration(row) for row in found.table]
        assert one.text == next(r.text for r in rows if pattern in ("*", r.expression) or (
            r.expression.startswith(pattern[:5]) and (pattern == "zero3*" or "tp" in r.expression)))
    assert found.preferred(["dp*"]) is None


WORDS = ("search", "gpt2", "--batch", "64", "--set", "s=1024", "--devices", "8", "--machine", "h100", "--only",
         "zero1,zero1[*]tp_sp", "--device-memory", "8GB")


@pytest.mark.slow
def test_the_page_tells_what_is_preferred_and_what_was_not_searched(placealg: Callable[..., Outcome], folder: Path
                                                                    ) -> None:
    cache = ("--cache", str(folder))
    told = placealg(*WORDS, *cache, "--prefer", "zero1[*]tp_sp", "--within", "10")
    assert told.code == 0 and "prefer  zero1*tp_sp  +" in told.out and "beyond 10 %" in told.out, told.out
    told = placealg(*WORDS, *cache, "--prefer", "hsdp")
    assert told.code == 0 and "nothing that matches hsdp fits" in told.out
    told = placealg(*WORDS, *cache, "--at-most", "1")
    assert told.code == 3 and "stopped after 1 of 2 strategies" in told.out and "nothing of these takes" in told.out


def test_words_that_make_no_sense_are_refused_in_one_line(placealg: Callable[..., Outcome]) -> None:
    for words, says in ((("--within", "x"), "--within x"), (("--at-most", "0"), "--at-most"),
                        (("--best-alone", "--prefer", "a"), "leave out --best-alone"),
                        (("--best-alone", "--front-alone"), "leave out --best-alone")):
        told = placealg(*WORDS, *words)
        assert (told.code, told.out, told.err.count("\n")) == (2, "", 1) and says in told.err, told.err


@pytest.mark.slow
def test_the_front_alone(placealg: Callable[..., Outcome], folder: Path) -> None:
    words = (*WORDS, "--cache", str(folder), "--front-alone")
    page, rows, said = (placealg(*words, "--format", form) for form in ("text", "csv", "json"))
    assert page.code == rows.code == said.code == 0
    listed = list(csv.DictReader(io.StringIO(rows.out)))
    front = json.loads(said.out)["front"]
    assert page.out.startswith(f"front  {len(front)} of which") and len(listed) == len(front) > 1
    for row, one in zip(listed, front, strict=True):
        assert row["strategy"] == one["strategy"] and row["verdict"] == one["verdict"] == "PROVED"
        assert int(row["dp"]) == one["axes"]["dp"] and int(row["tp"]) == one["axes"].get("tp", 1)
        assert float(row["needs_bytes"]) == one["needs_bytes"]["value"]
        assert int(row["dp_in_node"]) == one["in_node"].get("dp", 1)


def test_a_row_for_each_of_the_front(folder: Path) -> None:
    front = search(asked(), folder).front()
    rows = list(csv.DictReader(io.StringIO(front_as_csv(front, {}))))
    assert [row["strategy"] for row in rows] == [one.expression for one in front] and len(rows) > 1
    for row, one in zip(rows, front, strict=True):
        assert {n: int(row[n]) for n in one.axes} == one.axes and row["verdict"] == ""
        assert float(row["about_seconds"]) == float(one.estimate)
