"""A long run of the tests that goes on where the last one ended: what passed on this very state of the code counts."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
READ = ("placealg", "proofs", "tests", "notebooks")
"""The folders on whose files an outcome may depend."""


def state(root: Path) -> str:
    """What a case that passed depends on: every file, the environment's locks, Python, and what variables ask for."""
    found = hashlib.sha256(sys.version.encode())
    files = [p for top in READ for p in (root / top).rglob("*") if "__pycache__" not in p.parts]
    for path in sorted(p for p in (*files, *root.glob("*.*")) if p.is_file()):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    asked = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("PLACEALG_"))
    found.update("\0".join(asked).encode())
    return found.hexdigest()


def chosen(tests: Sequence[tuple[str, str]], share: int, turn: int) -> list[bool]:
    """Which cases run, one in `share` of each test and at least one, given the test of each case; `turn` shifts them.

    >>> chosen([("a", "one")] * 4 + [("a", "two")], 2, 0), chosen([("a", "one")] * 4 + [("a", "two")], 2, 5)
    ([True, False, True, False, True], [False, True, False, True, True])
    """
    counts, seen, found = Counter(tests), Counter[tuple[str, str]](), list[bool]()
    for test in tests:
        every = min(share, counts[test])
        found.append(seen[test] % every == turn % every)
        seen[test] += 1
    return found


def sampled(items: Iterable[T], one_in: int = 8) -> list[T]:
    """All of them, or one in `one_in` where the slow tier runs few, which the code's state shifts.

    For cases that try everything of one program in a loop, which takes many minutes.
    """
    every = list(items)
    if os.environ.get("PLACEALG_MUTANTS") != "few":
        return every
    return every[int(state(Path(__file__).parent.parent)[:8], 16) % min(one_in, len(every))::one_in]


class Resumed:
    """A pytest plugin: cases that are kept as passed are left out, and those that pass are kept, as they do.

    The file under build/ starts with the state of the code. A case counts once its teardown has passed, too.
    """

    def __init__(self, root: Path) -> None:
        self.file, self.state = root / "build" / "passed", state(root)
        self.called: set[str] = set()
        self.alone = "PYTEST_XDIST_WORKER" not in os.environ
        if self.alone and self._kept()[:1] != [self.state]:
            self.file.parent.mkdir(exist_ok=True)
            self.file.write_text(f"{self.state}\n", encoding="utf-8")
        self.before = len(self._kept()) - 1

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Where to name what fails."""
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(terminal, pytest.TerminalReporter)
        self.terminal = terminal

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what has passed."""
        passed = set(self._kept()[1:])
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid in passed])
        items[:] = [i for i in items if i.nodeid not in passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what passes and name what fails, as it does; of several processes one does, which the others tell."""
        if report.when == "call" and report.passed:
            self.called.add(report.nodeid)
        if self.alone and report.failed:
            self.terminal.write_line(f"\nfailed: {report.nodeid}")
        if self.alone and report.when == "teardown" and report.passed and report.nodeid in self.called:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(f"{report.nodeid}\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many were left out."""
        if self.before:
            terminalreporter.write_line(f"resumed: {self.before} cases passed before on this very state of the code")

    def _kept(self) -> list[str]:
        return self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
