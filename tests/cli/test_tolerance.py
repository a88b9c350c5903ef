"""`placealg tolerance`: the page, the document, exit codes, bad input in one line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from conftest import Outcome

Run = Callable[..., Outcome]


def test_the_page_has_every_sum_and_both_figures(placealg: Run) -> None:
    got = placealg("tolerance", "zero3*tp_sp", "--half", "bf16", "--set", "dp=8", "tp=4", "m=2")
    assert (got.code, got.err) == (0, "")
    for text in ("backward.embedding.weight.grad.reduce", "dp - 1", "bound", "expected", "at dp = 8, m = 2, tp = 4"):
        assert text in got.out
    assert "expected   " not in placealg("tolerance", "zero3*tp_sp", "--half", "bf16").out


def test_the_document_lists_sums_with_types_and_who_asks(placealg: Run) -> None:
    found = json.loads(placealg("tolerance", "proofs/refuted/pytorch_190626.toml", "--set", "dp=8", "tp=2", "m=1",
                                "--measure", "--format", "json").out)
    row = next(g for g in found["groups"] if "layer.norm1.weight" in g["groups"])
    narrow, = (s for s in row["sums"] if s["event"] == "reduce.layer.norm1.weight.grad_sum.reduce[tp]")
    assert (narrow["type"], narrow["least"], narrow["over"]) == ("bf16", "fp32", ["tp"])
    assert row["at"]["expected"] < row["at"]["bound"] and row["measured"]["share"] <= row["at"]["bound"]


def test_a_difference_is_explained_or_not(placealg: Run) -> None:
    words = ["tolerance", "zero3", "--half", "bf16", "--set", "dp=8", "m=4", "--difference"]
    assert placealg(*words, "0.004").code == 0 and "rounding explains it" in placealg(*words, "0.004").out
    got = placealg(*words, "0.1")
    assert got.code == 1 and "rounding does not explain it" in got.out


def test_where_there_is_no_bound_none_is_told(placealg: Run) -> None:
    words = ["tolerance", "zero3", "--half", "bf16", "--set", "dp=512", "m=1"]
    assert "none: as many roundings may add up to the whole" in placealg(*words).out
    at, = (g["at"] for g in json.loads(placealg(*words, "--format", "json").out)["groups"])
    assert at["bound"] is None and 0 < at["expected"] < 0.1


@pytest.mark.parametrize(("words", "says"), [
    (["zero3"], "bytes name no type"),
    (["zero3", "--half", "fp17"], "did you mean 'fp16'"),
    (["zero3", "--half", "bf16", "--measure"], "takes all sizes: say --set dp=... m=..."),
    (["zero3", "--half", "bf16", "--difference", "0.1", "--set", "m=1"], "takes all sizes: say --set dp=..."),
    (["zero3", "--half", "bf16", "--difference", "-1", "--set", "dp=8", "m=1"], "is no relative difference"),
    (["zero3", "--half", "bf16", "--measure", "--set", "dp=512", "m=64"], "too large a run"),
])
def test_bad_input_is_one_line(words: list[str], says: str, placealg: Run) -> None:
    got = placealg("tolerance", *words)
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1) and says in got.err
