"""When what is too long for every change last ran, on which commit, with what result: docs/assurance.md, written by it.

`make test-slow`, `make test-slow DRAW=all`, `make torch-slow`, `make mutate` and `make fuzz` write their own row as
they end; a row of a work tree that was changed says so.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESUMED = "cases that passed before"
"""The name under which the plugin that leaves them out is registered."""

ASSURED = "the row of this run"
"""The name under which the plugin that writes it is registered."""

PAGE = ROOT / "docs" / "assurance.md"
HEAD = """# What ran beyond the default suite

`make test` and `.ci/run` run for every change. These take longer, run in the background, and write their own row here.

| command | last run | commit | result |
| --- | --- | --- | --- |
"""


def commit() -> str:
    """The commit that is checked out, with `changed` where the work tree differs from it; "unknown" outside of git."""
    head, status = (subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
                    for words in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "-uno")))
    return "unknown" if head.returncode else head.stdout.strip() + (" (changed)" if status.stdout.strip() else "")


def write_row(command: str, result: str, at: str) -> None:
    """Replace the row of a command, or add it; `at` is the commit that it ran on."""
    rows = dict(re.findall(r"^\| `make ([^`]+)` (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
                ) if PAGE.exists() else {}
    rows[command] = f"| {time.strftime('%Y-%m-%d')} | {at} | {result.replace('|', '/')} |"
    PAGE.write_text(HEAD + "".join(f"| `make {name}` {row}\n" for name, row in sorted(rows.items())), encoding="utf-8")


class Assured:
    """A pytest plugin that writes the row of the command whose run it is."""

    def __init__(self, command: str) -> None:
        self.command, self.at, self.start = command, commit(), time.monotonic()
        self.counted: Counter[str] = Counter()
        self.whole: Counter[str] = Counter()

    def count(self, what: str, times: int, whole: bool = False) -> None:
        """Add to what a test counts within its cases, of which a command may run a share, or always the `whole`."""
        (self.whole if whole else self.counted)[what] += times

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int,
                                config: pytest.Config) -> None:
        """Write down how many passed and failed, and how long it took; of an interrupted run also that it was."""
        counted = {k: len(terminalreporter.stats.get(k, ())) for k in ("passed", "failed", "error", "skipped")}
        resumed = config.pluginmanager.get_plugin(RESUMED)
        before = resumed.before if resumed else 0
        share = int(os.environ.get("PLACEALG_SHARE", "1"))
        minutes = (time.monotonic() - self.start) / 60
        write_row(self.command, result(counted, before, minutes, exitstatus, share, self.counted, self.whole),
                  self.at)


def result(counted: Mapping[str, int], before: int, minutes: float, status: int, share: int = 1,
           inside: Mapping[str, int] | None = None, whole: Mapping[str, int] | None = None) -> str:
    """The row's words for a run that ended; `before` cases passed in earlier runs on the same state of the code.

    Of the cases of each test one in `share` was to run; or, where tests count what is `inside` their cases, of that; of
    what they count as `whole` all.

    >>> result({"passed": 3, "failed": 1}, 2, 4.2, 1)
    '3 passed, 1 failed in 4 min; 2 passed before, on the same state of the code'
    >>> result({"passed": 3}, 0, 4.2, pytest.ExitCode.INTERRUPTED)
    'interrupted, some cases did not run: 3 passed in 4 min'
    >>> result({"passed": 3}, 0, 4.2, pytest.ExitCode.OK, 6)
    'one case in 6 of each test: 3 passed in 4 min'
    >>> result({"passed": 3}, 0, 4.2, pytest.ExitCode.OK, 6, {"pairs": 1200})
    '3 passed in 4 min; one in 6 of the pairs: 1,200'
    >>> result({"passed": 3}, 0, 4.2, pytest.ExitCode.OK, 6, {"pairs": 1200}, {"moves": 40})
    '3 passed in 4 min; all moves: 40; one in 6 of the pairs: 1,200'
    """
    said = ", ".join(f"{n} {k}" for k, n in counted.items() if n) or "nothing ran"
    ended = status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    early = "" if ended else "interrupted, some cases did not run: "
    earlier = f"; {before} passed before, on the same state of the code" if before else ""
    part = f"one case in {share} of each test: " if share > 1 and not inside else ""
    which = f"one in {share} of the" if share > 1 else "all"
    within = "".join(f"; {of} {what}: {n:,}" for of, counts in (("all", whole), (which, inside))
                     for what, n in (counts or {}).items())
    return f"{early}{part}{said} in {minutes:.0f} min{earlier}{within}"
