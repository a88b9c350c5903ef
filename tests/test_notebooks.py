"""The notebooks as they are committed: pairs that agree, a legend first, prose beside code, public names alone.

That they run, and print what they show, is `make notebooks`.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import placealg as pa

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*_*.py"), key=lambda p: int(p.name.partition("_")[0]))
PUBLIC = ("placealg.cli", "placealg.testing")
"""The modules beside the package's face that a notebook may import from: the command line, what grades exercises."""


def cells(path: Path) -> list[tuple[str, str]]:
    """(kind, text) of every cell of a py:percent file."""
    _, _, body = path.read_text(encoding="utf-8").partition("\n# ---\n")
    found = []
    for part in re.split(r"^# %%", body, flags=re.MULTILINE)[1:]:
        head, _, text = part.partition("\n")
        if "[markdown]" in head:
            found.append(("markdown", re.sub(r"^# ?", "", text, flags=re.MULTILINE).strip("\n")))
        else:
            found.append(("code", text.strip("\n")))
    return found


def committed(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"])


def test_they_are_numbered() -> None:
    assert [p.name.partition("_")[0] for p in NOTEBOOKS] == [str(k + 1) for k in range(len(NOTEBOOKS))]
    assert len(NOTEBOOKS) == 11


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_pair_agrees_and_ran_to_its_end(path: Path) -> None:
    pairs = committed(path)
    assert [(c["cell_type"], "".join(c["source"])) for c in pairs] == cells(path)
    code = [c for c in pairs if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    assert not [o for c in code for o in c["outputs"] if o["output_type"] == "error" or o.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_legend_stands_first_and_assertions_and_prose_throughout(path: Path) -> None:
    (kind, first), *rest = cells(path)
    assert kind == "markdown"
    assert first.startswith(f"# {path.name.partition('_')[0]}. ")
    assert "| symbol | meaning |" in first
    code = [ast.parse(text) for kind, text in rest if kind == "code"]
    assert sum(isinstance(node, ast.Assert) for cell in code for node in ast.walk(cell)) >= 10
    prose = sum(len(text) for kind, text in cells(path) if kind == "markdown")
    assert prose >= 0.4 * sum(len(text) for _, text in cells(path))
    assert "**What could be wrong with this?**" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_an_exercise_has_a_solution_that_asserts(path: Path) -> None:
    every = cells(path)
    asked = [k for k, (kind, text) in enumerate(every) if kind == "markdown" and text.startswith("## Exercise")]
    assert asked
    for k in asked:
        (_, solution), (kind, code) = every[k + 1:k + 3]
        assert solution.startswith("**Solution.**") and kind == "code" and "assert " in code


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_function_is_asserted_at_once(path: Path) -> None:
    """The cell that defines a function asserts something, or the next cell with code does."""
    code = [text for kind, text in cells(path) if kind == "code"]
    for here, after in zip(code, [*code[1:], ""], strict=True):
        if re.search(r"^def ", here, re.MULTILINE):
            assert "assert " in here or "assert " in after, here


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_only_public_names_are_used(path: Path) -> None:
    for _, text in (cell for cell in cells(path) if cell[0] == "code"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("placealg") or node.module in PUBLIC
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pa":
                assert node.attr in pa.__all__
