"""The assertion for other projects' tests: what passes, what fails, and what a failure shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.testing import assert_proved, graded

WRONG = ROOT / "proofs" / "refuted" / "zero1_publish_dropped.toml"


@pytest.mark.parametrize(("strategy", "model"), [
    ("zero3", None), ("tp_sp*dp", None), ("tp", "gpt2"), (pa.zero1(), "abstract"), (pa.zero2(), pa.abstract()),
    (pa.derive(pa.dp(), pa.abstract()), None)])
def test_what_is_proved_passes_and_is_returned(strategy: object, model: object) -> None:
    report = assert_proved(strategy, model)
    assert (report.verdict, report.cls) == ("PROVED", "PARAMETRIC")


@pytest.mark.parametrize("path", [WRONG, str(WRONG)], ids=["path", "text"])
def test_a_refutation_fails_with_its_counterexample_though_the_file_expects_it(path: object) -> None:
    with pytest.raises(AssertionError) as failed:
        assert_proved(path)
    told = str(failed.value)
    for part in ("REFUTED", "reads a stale or undefined copy in step 2", "sizes          dp = 2, m = 1", "repair"):
        assert part in told


def test_undecided_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from placealg.prover.evidence.solver import PROCESS, Reply

    monkeypatch.setattr(PROCESS, "ask_text", lambda *_a, **_k: Reply("unknown", {}, "gave up"))
    with pytest.raises(AssertionError, match="UNDECIDED"):
        assert_proved("zero1")
    assert graded("zero1").says.startswith("zero1 on abstract is UNDECIDED\n") and "gave up" in graded("zero1").says


def test_hypotheses_are_those_that_are_allowed() -> None:
    assert_proved("zero3*tp_sp", "gpt", assuming={"equal_counts"})
    with pytest.raises(AssertionError, match="beyond none: equal_counts over"):
        assert_proved("zero3*tp_sp", "gpt", assuming=())
    with pytest.raises(pa.InputError, match="did you mean 'equal_counts'"):
        assert_proved("zero3", assuming=["equal_count"])


@pytest.mark.parametrize(("strategy", "model", "says"), [
    (pa.zero1(), None, "stands on a model"), (pa.derive(pa.dp(), pa.abstract()), "gpt", "of its own model"),
    ("zero1", pa.abstract(), "is a name"), ("zero9", None, "did you mean"), ("nowhere.toml", None, "nowhere.toml")])
def test_bad_input_is_no_failed_proof(strategy: object, model: object, says: str) -> None:
    with pytest.raises(pa.InputError, match=says):
        assert_proved(strategy, model)


def test_another_project_s_pytest_shows_the_counterexample(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text(WRONG.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_strategy.py").write_text(
        "from placealg.testing import assert_proved\n\n\n"
        "def test_good():\n    assert_proved('zero1')\n\n\ndef test_bad():\n    assert_proved('ours.toml')\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "E   " in done.stdout and "reads a stale or undefined copy in step 2" in done.stdout
    assert "placealg/testing.py" not in done.stdout


GIVEN = (ROOT / "proofs/refuted/zero1_publish_dropped.toml").read_text(encoding="utf-8")
MENDED = GIVEN + '[[edit]]\ninsert = { path = "publish.layer.weight.publish[dp]" }\nafter = "update.rng.update"\n'


def test_an_exercise_is_solved_by_what_keeps_the_given_lines_and_costs_no_more() -> None:
    assert graded(MENDED, keeps=GIVEN, at_most="zero1").solved
    first = graded(GIVEN, keeps=GIVEN, at_most="zero1")
    assert not first.solved and "REFUTED" in first.says and "dp = 2" in first.says
    assert "publish.layer.weight.publish" not in first.says, "the repair is the exercise"
    dearer = graded("zero3", at_most="zero1")
    assert not dearer.solved
    assert dearer.says.startswith("memory.total is Ψ·(w + g + o)/dp + Ψ_unit·(w + g), not at most Ψ·(w + g + o/dp)")
    assert "communication.total" in graded("zero3", at_most=pa.edit(pa.derive(pa.zero3(), pa.abstract()),
                                                                    drop="*.layer.weight.grad.reduce[dp]")).says
    assert not graded(GIVEN.replace("zero1", "zero9"), keeps="").solved
    assert "strategy.toml:" in graded("base = 1\n[[edit]]\n").says and "/" not in graded("base = 1\n[[edit]]\n").says


@settings(max_examples=30)
@given(st.integers(0, len(MENDED.splitlines()) - 1), st.sampled_from(("drop", "change", "twice")))
def test_whatever_given_line_is_touched_is_no_solution(number: int, how: str) -> None:
    """All but comments at the end of a line count: a bug that is taken out is not repaired."""
    lines = MENDED.splitlines()
    lines[number:number + 1] = {"drop": [], "change": [f"{lines[number]} #"], "twice": [lines[number]] * 2}[how]
    touched = "\n".join(lines)
    kept = touched.splitlines()[:len(GIVEN.splitlines())] == GIVEN.splitlines()
    told = graded(touched, keeps=GIVEN)
    assert ("does not stand as it was" in told.says) == (not kept)
