"""Hostile inputs: no traceback, no wrong exit code, one line for bad input, none over 20 s or 1 GB."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hostile import Hostile, inputs, mutated, wrong_with

QUICK = (3, 6)
"""Seeds whose first inputs are many commands and little work."""


@pytest.mark.parametrize("seed", [
    *QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 40) if n not in QUICK)])
def test_hostile_inputs_are_taken_well(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = [(hostile.words, found) for hostile in itertools.islice(inputs(seed), 12 if seed in QUICK else 120)
             if (found := wrong_with(hostile, tmp_path))]
    assert wrong == []


def test_what_is_wrong_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for does, says in ((lambda _: 1 / 0, "ZeroDivisionError"), (lambda _: 7, "exit code 7"),
                       (lambda _: 1, "exit code 1"),
                       (lambda _: print("Traceback (most recent call last)") or 0, "a traceback"),
                       (lambda _: 2, "not one line")):
        monkeypatch.setattr("placealg.cli.main", does)
        assert says in wrong_with(Hostile(("list",)), tmp_path)


def test_a_search_that_takes_long_is_interrupted_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends at an interrupt with its own exit code; one that goes on, or any other command, takes too long."""
    import hostile

    def forever(words: list[str]) -> int:
        while True:
            pass

    def ends(words: list[str]) -> int:
        try:
            return forever(words)
        except KeyboardInterrupt:
            return 130

    def goes_on(words: list[str]) -> int:
        return ends(words) and forever(words)

    monkeypatch.setattr(hostile, "SECONDS", 0.01)
    monkeypatch.setattr(hostile, "ENDING", 0.01)
    monkeypatch.chdir(tmp_path)
    for does, words, says in ((ends, "search", ""), (goes_on, "search", "to end"), (forever, "list", "more than"),
                              (lambda _: 130, "search", "code 130")):
        monkeypatch.setattr("placealg.cli.main", does)
        assert says in (found := wrong_with(Hostile((words,)), tmp_path)) and bool(says) == bool(found)


def test_the_same_seed_gives_the_same_inputs() -> None:
    import random

    assert list(itertools.islice(inputs(3), 20)) == list(itertools.islice(inputs(3), 20))
    assert mutated("dp=8", random.Random(1)) == mutated("dp=8", random.Random(1)) != "dp=8"


def test_a_run_is_gone_on_with_and_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs from FIRST on are those that follow in one run; a row says how many were taken well."""
    import hostile

    taken, rows = list[Hostile](), list[tuple[str, str]]()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hostile, "wrong_with", lambda one, folder: taken.append(one) or "wrong" * (len(taken) == 3))
    monkeypatch.setattr(hostile, "write_row", lambda command, said, at: rows.append((command, said)))
    monkeypatch.setattr("sys.argv", ["hostile", "--inputs", "5", "--first", "7", "--seed", "3", "--row"])
    assert hostile.main() == 1
    assert taken == list(itertools.islice(inputs(3), 7, 12))
    assert rows == [("fuzz", "inputs 8 to 12 of seed 3: 1 of 5 not taken well, in 0 min")]
