"""The core alone: its tests, on a copy of the repository in which the annexes' folders are deleted.

`make test-core` runs them. A test that runs the command line is skipped there, and a file that imports an annex is left
out; both are told.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from test_house import ANNEXES, imports, room

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("strategy", "models", "step", "cost", "prover", "simulator", "check", "features", "differential")
"""The folders of tests that are about the core."""
SPEAK_OF_ANNEXES = ("placealg/__init__.py", "placealg/annexes.py")
"""Modules whose examples show annexes."""
KEPT = ("placealg", "tests", "proofs", "docs", "pyproject.toml", "README.md", "strategy.schema.json")
"""What of the repository the core's tests read."""


def annexed() -> frozenset[str]:
    """The rooms of the annexes."""
    return frozenset(name for rooms in ANNEXES.values() for name in rooms)


def of_annexes(folder: Path, rooms: frozenset[str]) -> list[Path]:
    """The files of tests that import a room, themselves or by a module of tests beside them."""
    sources = {path: imports(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")}
    modules = {path.stem: path for path in sources}
    found = {path for path, names in sources.items() if any(
        name.startswith("placealg.") and room(name) in rooms for name in names) and path.name != "conftest.py"}
    while more := {path for path, names in sources.items() if path not in found and any(
            modules.get(name.partition(".")[0]) in found for name in names)}:
        found |= more
    return sorted(found)


def copied(into: Path) -> None:
    """Copy the repository without the annexes."""
    for name in KEPT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, into / name)
    for name in annexed():
        path = into / "placealg" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.with_suffix(".py").unlink()


def main(words: list[str]) -> int:
    """Run the tests; the exit code is pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder)
        copied(into)
        left = [path for path in of_annexes(into / "tests", annexed()) if path.relative_to(into).parts[1] in FOLDERS]
        told = ", ".join(path.name for path in left if path.name.startswith("test_"))
        print(f"left out, for they are of an annex too: {told}", flush=True)
        tests = ["placealg", *(f"tests/{name}" for name in FOLDERS)]
        ignored = [f"--ignore={path}" for path in (*(path.relative_to(into) for path in left), *SPEAK_OF_ANNEXES)]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", *ignored, *tests, *words]
        return subprocess.run(command, cwd=into, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
