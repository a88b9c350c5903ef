"""Where the best changes, held against searches at other values, one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import pytest
from conftest import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st

import placealg.configurations.regions as module
from placealg.cli.search_regions import Varied
from placealg.configurations.evaluate import evaluate
from placealg.configurations.found import Found, configuration
from placealg.configurations.layouts import Devices
from placealg.configurations.question import Question
from placealg.configurations.regions import MEMORY, SHARES, around, broken_line, crossings, current, names, regions
from placealg.configurations.regions import varied as varied_to
from placealg.configurations.run import search
from placealg.configurations.space import spaces
from placealg.cost.machines import machine
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model

GB = 10**9
SOME = ("zero1", "zero1[*]tp_sp", "zero1[*]recompute_full")
WORDS = ("search", "gpt2", "--devices", "16", "--batch", "64", "--set", "s=1024", "--machine", "h100", "--no-cache",
         "--device-memory", "1900MB", "--only", ",".join(SOME))


@lru_cache(maxsize=1)
def found() -> Found:
    space = replace(spaces()["dense"], only=SOME, left_out=())
    return search(Question(resolve_model("gpt2"), Devices(16, 8, 64), machine("h100"), Fraction(19 * GB, 10), space,
                           FrozenMap({"s": Fraction(1024)})))


def again(question: Question) -> Found:
    return Found(question, [evaluate(one.programs, question) for one in found().every], {}, len(found().every))


@pytest.mark.parametrize("name", ["efficiency", "node_bw", "latency", "exposed_states"])
@given(data=st.data())
@settings(max_examples=4)
def test_at_any_value_the_best_is_that_of_its_region(name: str, data: st.DataObject) -> None:
    question = found().question
    now = current(question, name)
    low, high = now / 60, min(now * 60, Fraction(1)) if name in SHARES else now * 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", data.draw(st.sampled_from((2, 24))))
        every = regions(found(), name, low, high)
    assert (every[0].low, every[-1].high) == (low, high)
    assert all(one.high == other.low and one.best != other.best for one, other in pairwise(every))
    value = low + (high - low) * data.draw(st.fractions(0, 1, max_denominator=50))
    asked = varied_to(question, name, value)
    mine = next(r for r in every if r.low <= value <= r.high).best
    assert configuration(mine.programs, asked, mine.sizes).estimate == again(asked).best.estimate


def test_the_best_changes_exactly_where_two_take_equally_long() -> None:
    every = regions(found(), "efficiency", Fraction(1, 100), Fraction(1))
    assert len(every) == 2
    at_end = varied_to(found().question, "efficiency", every[0].high)
    one, other = (configuration(r.best.programs, at_end, r.best.sizes).estimate for r in every)
    assert one == other
    past = varied_to(found().question, "efficiency", every[0].high * Fraction(1001, 1000))
    one, other = (configuration(r.best.programs, past, r.best.sizes).estimate for r in every)
    assert one > other


def test_with_more_and_less_memory_the_best_is_what_a_search_finds() -> None:
    every = regions(found(), MEMORY, Fraction(GB, 2), Fraction(6 * GB))
    for region in every:
        for memory in (region.low, (region.low + region.high) / 2):
            assert again(replace(found().question, memory=memory)).best.text == region.best.text


def test_around_has_the_best_in_the_middle() -> None:
    before, here, after = around(found(), MEMORY)
    assert here.best == found().best and before and after and before.high == here.low and here.high == after.low
    assert here.low == found().best.need


@given(st.lists(st.tuples(st.fractions(-3, 3, max_denominator=9), st.fractions(-3, 3, max_denominator=9)), min_size=1,
                max_size=4), st.fractions(0, 4, max_denominator=12))
@settings(max_examples=40)
def test_a_broken_line_is_the_function(lines: list[tuple[Fraction, Fraction]], at: Fraction) -> None:
    def value(u: Fraction) -> Fraction:
        return max(a + b * u for a, b in lines)

    corners = broken_line(value, Fraction(0), Fraction(4))
    left, right = next((one, other) for one, other in pairwise(corners)
                       if one[0] <= at <= other[0])
    assert value(at) == left[1] + (right[1] - left[1]) * (at - left[0]) / (right[0] - left[0])
    flat = broken_line(lambda u: Fraction(1), Fraction(0), Fraction(4))
    assert all(value(u) == 1 for u in crossings([corners, flat]))


def test_what_cannot_be_varied_is_refused() -> None:
    for name, low, says in (("eficiency", None, "did you mean 'efficiency'"), ("efficiency", Fraction(0), "no range"),
                            ("latency", Fraction(1), "no range")):
        with pytest.raises(InputError, match=says):
            found().regions(name, low)
    assert set(names(found().question)) > {"card_bw", "latency", MEMORY}


def test_the_data_and_the_page(placealg: Callable[..., Outcome]) -> None:
    said = Varied(found(), True, {MEMORY: (Fraction(GB), Fraction(8 * GB))}).to_json()
    assert Fraction(said["robust"][MEMORY]["here"]["low"]["exact"]) == found().best.need
    ends_ = [(r["low"]["exact"], r["high"]["exact"]) for r in said["regions"][MEMORY]]
    assert ends_[0][0] == str(GB) and all(one[1] == other[0] for one, other in pairwise(ends_))
    told = placealg(*WORDS[:-1], "zero1[*]recompute_full", "--robust", "--regions", "node_bw=5GB/s..450GB/s", "--top",
                    "1")
    assert "robust  one parameter varied at a time" in told.out and "5 to 450 GB/s" in told.out
    assert max(map(len, told.out.splitlines())) <= 120


@pytest.mark.parametrize(("words", "says"), [
    (("--regions", "efficency"), "did you mean 'efficiency'"), (("--regions", "memory=1..2"), "has no unit"),
    (("--regions", "efficiency=2"), "is not NAME or NAME=LOW..HIGH"), (("--regions", "latency=2..1"), "is no range"),
    (("--robust", "--objective", "bound"), "of the estimate, not of bound")])
def test_bad_input_is_one_line(placealg: Callable[..., Outcome], words: tuple[str, ...], says: str) -> None:
    told = placealg(*WORDS, *words)
    assert (told.code, told.out, told.err.count("\n")) == (2, "", 1) and says in told.err, told.err
