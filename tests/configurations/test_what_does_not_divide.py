"""One device is found, and a strategy without a layout says what does not divide and what would."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from conftest import Outcome
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_search import GB, SMALL, asked, one_by_one

from placealg.configurations.layouts import Devices, layouts, undivided
from placealg.configurations.run import search
from placealg.models.config import resolve_model
from placealg.strategy.expression import parse_strategy

STRATEGIES = ("zero1", "zero3", "hsdp", "tp", "zero1*tp_sp", "zero1*pp", "zero2*cp_ulysses", "zero1*pp_interleaved",
              "pp_zb_h1", "dp*tp*pp")


@given(st.sampled_from(STRATEGIES), st.integers(1, 26), st.integers(1, 12), st.sampled_from(["gpt2", "llama-3-8b"]))
@example("zero3", 8, 7, "llama-3-8b")
@example("zero1", 1, 1, "gpt2")
@settings(max_examples=60, deadline=None)
def test_what_is_told_would_divide(text: str, devices: int, batch: int, name: str) -> None:
    strategy, model, sizes = parse_strategy(text), resolve_model(name), {"s": Fraction(1024)}

    def why(devices: int, batch: int) -> str:
        return undivided(strategy, model, Devices(devices, devices, batch), sizes, {})

    told, found = why(devices, batch), layouts(strategy, model, Devices(devices, devices, batch), sizes, {})
    assert (told == "") == bool(len(found["b"])), told
    would = re.search(r"(\d+) would be\Z", told)
    if told.endswith("would be"):
        assert would is not None
        again = why(devices, int(would[1])) if "sequences" in told else why(int(would[1]), batch)
        assert "sequences are no" not in again if "sequences" in told else "are no product" not in again, again
    divides = re.search(r"(\S+) = (.*) does not divide \S+ = (\d+): (.*) would\Z", told)
    if divides:
        tried, value, good = divides[2].split(" or "), int(divides[3]), re.findall(r"\d+", divides[4])
        assert good and all(value % int(n) == 0 for n in good) and all(value % int(n) for n in tried if n.isdigit())


def test_one_device_is_the_baseline(placealg: Callable[..., Outcome]) -> None:
    told = placealg("search", "gpt2", "--devices", "1", "--batch", "1", "--set", "s=1024", "--machine", "h100",
                    "--only", "dp,zero1,zero1[*]tp", "--no-cache")
    assert told.code == 0 and "best  dp\n  dp 1  b 1  m 1" in told.out, told.out
    found = search(asked(1, replace(SMALL, only=("dp", "zero1", "hsdp")), 80 * GB, 8, 6))
    assert {str(r["strategy"]) for r in found.table} == {"zero1", "hsdp"} and len(found.table) == 8
    assert all(not c.card for c in found.top(9))


@pytest.mark.slow
def test_one_device_is_searched_whole_and_rechecked(placealg: Callable[..., Outcome], tmp_path: object) -> None:
    path = f"{tmp_path}/best.json"
    told = placealg("search", "gpt2", "--devices", "1", "--batch", "2", "--set", "s=1024", "--machine", "h100",
                    "--only", "zero1,tp", "--no-cache", "--certificate", path)
    assert told.code == 0, told.err
    assert placealg("recheck", path).code == 0
    alone = placealg("search", "gpt2", "--devices", "1", "--batch", "2", "--set", "s=1024", "--machine", "h100",
                     "--only", "zero1,tp", "--no-cache", "--best-alone", "--why", "zero1 dp=1 b=2")
    assert alone.code == 0 and "best  zero1" in alone.out, alone.out + alone.err


@pytest.mark.parametrize(("words", "says"), [
    (("llama-3-8b", "--devices", "8", "--batch", "7", "--only", "zero3,zero1"),
     "zero1, zero3: 7 sequences are no multiple of dp = 8: 8 would be"),
    (("gpt2", "--devices", "5", "--batch", "5", "--only", "tp"), "tp = 5 does not divide a = 12: 2 or 3 or 4"),
    (("gpt2", "--devices", "7", "--batch", "7", "--only", "hsdp"), "7 devices are no product of dp_replicate and"),
    (("gpt2", "--devices", "1", "--batch", "1", "--only", "tp"), "one device has nothing to split along tp"),
    (("gpt2", "--devices", "16", "--batch", "16", "--only", "pp"), "12 layers do not fill pp = 16 stages: at most 12"),
])
def test_a_search_without_layouts_says_why(placealg: Callable[..., Outcome], words: tuple[str, ...], says: str) -> None:
    told = placealg("search", *words, "--set", "s=1024", "--machine", "h100", "--no-cache")
    assert told.code == 1 and says in " ".join(told.out.split()), told.out


def test_layouts_are_those_of_a_trial_of_all_sizes() -> None:
    question = asked(8, SMALL)
    for text in ("zero1", "zero1*pp", "zero1*tp_sp"):
        found = layouts(parse_strategy(text), question.model, question.devices, question.sizes, {})
        mine = {tuple(sorted(one.items())) for one in one_by_one(question, text)}
        assert {tuple(sorted((n, int(c[k])) for n, c in found.items())) for k in range(len(found["b"]))} == mine
