"""When what is too long for every change last ran, on which commit, with what result: docs/assurance.md, written by it.

`make test-slow` and `make mutate` write their own row as they end; a row of a work tree that was changed says so.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write down how many passed and failed, and how long it took."""
        counted = {k: len(terminalreporter.stats.get(k, ())) for k in ("passed", "failed", "error", "skipped")}
        said = ", ".join(f"{n} {k}" for k, n in counted.items() if n) or "nothing ran"
        write_row(self.command, f"{said} in {(time.monotonic() - self.start) / 60:.0f} min", self.at)
