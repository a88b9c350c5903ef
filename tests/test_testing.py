"""The assertion for other projects' tests: what passes, what fails, and what a failure shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import placealg as pa
from placealg.testing import assert_proved

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
