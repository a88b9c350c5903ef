"""The pages of docs/ that are sessions: every command is run, in order, and prints what the page says.

A block ```` ```toml NAME ```` is a file of that name; in a block of console what follows `$ ` is a command, and `| head
-N` its first lines, `| tail -N` its last ones. PLACEALG_WRITE_PAGES=1 writes what the commands print into the pages.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT, run_placealg

SESSIONS = ("fits.md", "gradient.md", "fsdp2.md", "megatron.md", "order.md", "rounding.md", "tasks.md")
BLOCK = re.compile(r"^```(console|toml [\w.]+|json [\w.]+|sh [\w.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def printed(command: str) -> str:
    """What a command prints, and its exit code where that is not 0."""
    said, _, head = command.partition(" | head -")
    said, _, tail = said.partition(" | tail -")
    words = shlex.split(said)
    assert words[0] == "placealg", command
    got = run_placealg(*words[1:])
    lines = (got.out + got.err).splitlines()[-int(tail) if tail else None:int(head) if head else None]
    code = f"[exit {got.code}]\n" if got.code else ""
    return "".join(f"{line}\n" for line in lines) + code


def replayed(block: str) -> str:
    """A block of console with what its commands print now."""
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(f"$ {command}\n{printed(command)}" for command in commands)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "tasks.md" else n for n in SESSIONS])
def test_a_session_is_as_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / name
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(found: re.Match[str]) -> str:
        kind, block = found[1], found[2]
        if kind != "console":
            (tmp_path / kind.split()[1]).write_text(block, encoding="utf-8")
            return found[0]
        return f"```console\n{replayed(block)}```"

    now = BLOCK.sub(run, text)
    if os.environ.get("PLACEALG_WRITE_PAGES"):
        page.write_text(now, encoding="utf-8")
        text = now
    assert now == text


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_has_commands_and_no_line_wider_than_it_says(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert "100 columns" in text and sum(line.startswith("$ placealg ") for line in text.splitlines()) >= 3
    within = [line for kind, block in BLOCK.findall(text) for line in block.splitlines()
              if kind == "console" and not line.startswith("$ ")]
    assert within and max(map(len, within)) <= 100


@pytest.mark.parametrize(("page", "least"), [("python.md", 20), ("rounding.md", 2), ("tasks.md", 4)])
def test_the_python_of_a_page_runs(page: str, least: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    files = dict(re.findall(r"^```toml ([\w.]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    for name, file in files.items():
        (tmp_path / name).write_text(file, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    ran = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    ran.run(doctest.DocTestParser().get_doctest(code, {}, page, None, 0))
    assert (ran.failures, ran.tries > least) == (0, True)


def test_what_misled_once_is_held_by_tests_that_are_there() -> None:
    rows = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8").partition("## What misled once")[2]
    named = re.findall(r"`((?:\w+/)?test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)", rows)
    assert len(named) >= 12
    for file, tests in named:
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert [name for name in re.findall(r"`(\w+)`", tests) if f"def {name}(" not in text] == [], file
