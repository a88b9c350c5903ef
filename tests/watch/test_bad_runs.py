"""Runs that cannot be recorded, without torch: one line, the right exit code, and no process left behind."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from conftest import Outcome

import placealg as pa
from placealg.errors import InputError
from placealg.watch import ranks

Run = Callable[..., Outcome]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Every rank runs these words of a shell in place of Python; its number and folder are $RANK and $4."""
    def made(words: str) -> Path:
        shell = tmp_path / "python"
        shell.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\n{words}\n")
        shell.chmod(shell.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(ranks.sys, "executable", str(shell))
        monkeypatch.setattr("placealg.watch.requirement.VERSIONS", ("2.13.0",))
        monkeypatch.setattr(metadata, "version", lambda _name: "2.13.0+cpu")
        script = tmp_path / "train.py"
        script.write_text("")
        return script
    return made


def gone(pids: Path) -> bool:
    """Whether all processes have ended; those that nobody has waited for yet have."""
    def ended(pid: str) -> bool:
        try:
            os.kill(int(pid), 0)
            status = Path(f"/proc/{pid}/stat")
            return status.is_file() and status.read_text().rpartition(")")[2].split()[0] == "Z"
        except ProcessLookupError:
            return True

    deadline = time.monotonic() + 1  # what a rank has left behind ends a moment later
    while not all(map(ended, pids.read_text().split())):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize(("words", "says"), [
    ("echo 'ValueError: of a rank' >&2; exit 1", "rank 0: ValueError: of a rank"),
    ("test $RANK = 0 || { echo 'RuntimeError: second' >&2; exit 1; }; sleep 30", "rank 1: RuntimeError: second"),
    ("echo 'placealg: no optimizer stepped' >&2; exit 3", "no optimizer stepped"),
    ("sleep 30", "no step was recorded within 0.3 s by rank 0, 1"),
    ("kill -9 $$", "ended by signal 9"),
    ("sleep 30 & echo $! >> $(dirname $0)/pids; echo 'ValueError: with a child' >&2; exit 1", "ValueError: with a chi"),
])
def test_a_run_that_goes_wrong_is_one_line(words: str, says: str, stub: Callable[[str], Path], placealg: Run,
                                           tmp_path: Path) -> None:
    script = stub(words)
    began = time.monotonic()
    got = placealg("watch", "zero3", "--mesh", "dp=2", "--limit", "0.3", "--", str(script))
    assert got.code == 3 and got.err.count("\n") == 1 and says in got.err, got.err
    assert gone(tmp_path / "pids") and time.monotonic() - began < 10


def test_a_signal_that_ends_the_watch_ends_the_ranks(stub: Callable[[str], Path], placealg: Run,
                                                     tmp_path: Path) -> None:
    script, began, pids = stub("sleep 30"), time.monotonic(), tmp_path / "pids"

    def end_once_both_run() -> None:
        while time.monotonic() - began < 20 and not (pids.exists() and len(pids.read_text().split()) == 2):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=end_once_both_run).start()
    try:
        code = placealg("watch", "zero3", "--mesh", "dp=2", "--limit", "30", "--", str(script)).code
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 128 + signal.SIGTERM and signal.getsignal(signal.SIGTERM) is before
    assert gone(pids) and time.monotonic() - began < 25


@pytest.mark.parametrize(("found", "says"), [("", "torch is not installed"), ("2.12.1+cu130", "found torch 2.12.1"),
                                             ("2.14.1", "found torch 2.14.1")])
def test_torch_that_is_missing_or_of_another_version(found: str, says: str, monkeypatch: pytest.MonkeyPatch,
                                                     placealg: Run) -> None:
    def version(_name: str) -> str:
        if not found:
            raise metadata.PackageNotFoundError("torch")
        return found

    monkeypatch.setattr(metadata, "version", version)
    got = placealg("watch", "zero3", "--mesh", "dp=2", "--", "train.py")
    assert got.code == 2 and got.err.count("\n") == 1
    assert f"recording needs torch 2.13.0 or 2.15.0; {says}: pip install torch==2.13.0" in got.err
    for recorded in (lambda: pa.observe(None), lambda: pa.record(None, None)):
        with pytest.raises(InputError, match="recording needs torch"):
            recorded()
