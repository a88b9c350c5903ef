"""A long run goes on where it ended, and only on the same state of everything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from resumed import chosen, sampled, state

CASES = """
import pytest

@pytest.fixture
def left_behind(request):
    yield
    assert request.param

@pytest.mark.parametrize("k", range(4))
def test_one(k):
    assert k != {wrong}

@pytest.mark.parametrize("left_behind", [False], indirect=True)
def test_two(left_behind):
    pass
"""
CONFTEST = """
from pathlib import Path
from resumed import Resumed

def pytest_configure(config):
    config.pluginmanager.register(Resumed(Path(__file__).parent.parent))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with five cases, two of which fail: one, and the end of another."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(CASES.format(wrong=2))
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    return tmp_path


def output(project: Path, *words: str) -> str:
    """What pytest prints."""
    plain = {k: v for k, v in os.environ.items() if k != "PYTEST_XDIST_WORKER"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=project, text=True, capture_output=True, timeout=120, check=False,
                          env={**plain, "PYTHONPATH": str(ROOT / "tests"), "PYTHONDONTWRITEBYTECODE": "1"})
    return done.stdout


def run(project: Path, *words: str) -> tuple[set[str], str]:
    """(what pytest counts, the line that says how many were left out)."""
    out = output(project, *words)
    said = re.findall(r"^resumed: .*$", out, re.MULTILINE)
    counted = out.strip().splitlines()[-1].rpartition(" in ")[0]
    return {c for c in counted.split(", ") if "deselected" not in c}, "".join(said)


def left_out(count: int) -> str:
    """The line."""
    return f"resumed: {count} cases passed before on this very state of the code"


@pytest.mark.some(2)
@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_what_passed_is_not_run_again(project: Path, words: tuple[str, ...]) -> None:
    """A case that fails is, and one whose teardown does, and one that was not chosen before."""
    assert run(project, *words, "-k", "0 or False") == ({"2 passed", "1 error"}, "")
    assert run(project, *words) == ({"1 failed", "3 passed", "1 error"}, left_out(1))
    assert run(project, *words) == ({"1 failed", "1 passed", "1 error"}, left_out(3))


def test_what_fails_is_named_as_it_fails(project: Path) -> None:
    """Before the last case has run, and once, by one of several processes."""
    out = output(project, "-n", "2")
    named = re.findall("^failed: (.*)$", out, re.MULTILINE)
    assert sorted(named) == ["tests/test_it.py::test_one[2]", "tests/test_it.py::test_two[False]"]
    assert out.index("failed: ") < out.index("= FAILURES")


def test_what_passed_before_a_change_is_run_again(project: Path) -> None:
    run(project)
    (project / "tests" / "test_it.py").write_text(CASES.format(wrong=9))
    assert run(project) == ({"5 passed", "1 error"}, "")


def test_the_state_is_that_of_all_that_is_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {state(project)}
    (project / "requirements.lock").write_text("z3-solver==5\n")
    seen.add(state(project))
    (project / "placealg").mkdir()
    (project / "placealg" / "a.py").write_text("")
    seen.add(state(project))
    (project / "placealg" / "a.py").rename(project / "placealg" / "b.py")
    seen.add(state(project))
    monkeypatch.setenv("PLACEALG_RANDOM_RUNS", "3")
    seen.add(state(project))
    assert len(seen) == 5
    (project / "placealg" / "__pycache__").mkdir()
    (project / "placealg" / "__pycache__" / "b.pyc").write_text("")
    assert state(project) in seen


def test_every_test_has_a_case_in_each_share_and_every_case_a_turn() -> None:
    """Of a test with fewer cases than the share one runs; over as many turns as the share all of them have run."""
    tests = [("here", "many")] * 13 + [("here", "few")] * 2 + [("there", "many")]
    ran = [chosen(tests, 6, turn) for turn in range(6)]
    assert all(len({t for t, runs in zip(tests, one, strict=True) if runs}) == 3 for one in ran)
    assert [any(one[k] for one in ran) for k in range(len(tests))] == [True] * len(tests)
    assert chosen(tests, 1, 5) == [True] * len(tests)


def test_of_a_loop_over_everything_few_are_tried_where_few_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLACEALG_MUTANTS", raising=False)
    assert sampled(range(100)) == list(range(100))
    monkeypatch.setenv("PLACEALG_MUTANTS", "few")
    assert sampled(range(100)) in [list(range(k, 100, 8)) for k in range(8)]
    assert len(sampled(range(3))) == 1
