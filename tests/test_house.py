"""The house keeps its shape: floors, module lengths, words, paths, and a README that runs."""

from __future__ import annotations

import ast
import doctest
import re
import shlex
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, run_placealg
from test_pages import SESSIONS

from placealg.annexes import PLACES

FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "frozen", "arith", "polynomial", "annexes", "notebook_display", "progress", "atomic_files",
     "solver_presence", "loss_terms", "number_formats", "version"),
    ("mesh",),
    ("placement",),
    ("strategy", "models"),
    ("step",),
    ("cost", "prover", "simulator"),
    ("check",),
    ("cases",),
    ("importers",),
    ("measure",),
    ("watch",),
    ("configurations",),
    ("render",),
    ("cli",),
    ("testing", "trainer", "playground"),
    ("placealg",),
)
"""From the ground up. A room imports only from floors below its own; `placealg` is the package's face.

The ground floor is one room of small modules, which may import each other."""

ONLY_IN: Mapping[str, tuple[str, ...]] = {
    "z3": ("prover",), "cvc5": ("prover",), "sympy": ("cost",), "torch": ("measure", "watch.recorder"),
    "yaml": ("importers",),
}
"""Library -> the rooms that may import it, or a package in one: what was recorded is judged without torch."""

ANNEXES: Mapping[str, tuple[str, ...]] = {
    "importers": ("importers",), "watch": ("measure", "watch"), "search": ("configurations",),
    "pages": ("render", "cli", "testing", "trainer", "playground"),
}
"""What stands around the core: annex -> its rooms. Every other room but the package's face is of the core."""

MAY_IMPORT: Mapping[str, tuple[str, ...]] = {"pages": ("importers", "watch", "search")}
"""Annex -> the other annexes that it may import."""

MAX_LINES = 600
"""A file holds one concept; one of more lines holds two."""
WORDS = ("helper", "utils", "utility", "manager", "no longer", "previously", "for now", "todo", "fixme", "legacy",
         "will be", "used to be", "in the future", "not yet")
MODULES = sorted((ROOT / "placealg").rglob("*.py"))


def room(module: str) -> str:
    """The room of a dotted module name."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "placealg"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] in ("__init__", "__main__") and len(parts) > 2 else parts).removesuffix(
        ".__init__")


def imports(source: str) -> set[str]:
    """The modules that a source imports, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found |= {f"placealg.{a.name}" for a in node.names} if base == "placealg" else {base}
            assert node.level == 0, "imports are absolute"
    return found


def breaches(module: str, source: str) -> list[str]:
    """Every import of `source` that goes up, sideways, or to a library kept elsewhere."""
    floor = {name: level for level, names in enumerate(FLOORS) for name in names}
    here = room(module)
    if here == "__main__":
        here = "placealg"
    found = [] if here in floor else [f"{module} is in no room of FLOORS"]
    for target in sorted(imports(source)):
        top = target.split(".")[0]
        if top in ONLY_IN and not any(f"{module}.".startswith(f"placealg.{place}.") for place in ONLY_IN[top]):
            found.append(f"{module} imports {top}, which only {' and '.join(ONLY_IN[top])} may")
        if top != "placealg" or room(target) == here or here not in floor:
            continue
        there = floor.get(room(target), len(FLOORS) - 1)
        if there > floor[here] or (there == floor[here] != 0):
            found.append(f"{module} imports {target}")
    return found


def trespasses(module: str, source: str) -> list[str]:
    """Every import of an annex in the core, and of another annex in one that may not."""
    annex_of = {name: annex for annex, rooms in ANNEXES.items() for name in rooms}
    here = annex_of.get(room(module), "core")
    if room(module) in ("placealg", "__main__"):
        return []
    there = ((target, annex_of.get(room(target))) for target in sorted(imports(source)) if target[:9] == "placealg.")
    return [f"{module} of {here} imports {target} of {annex}" for target, annex in there
            if annex not in (None, here, *MAY_IMPORT.get(here, ()))]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    assert breaches(module_name(path), path.read_text()) == []
    assert trespasses(module_name(path), path.read_text()) == []


@pytest.mark.parametrize(("module", "source"), [
    ("placealg.cases.case", "def f():\n    from placealg.importers.read import read"),
    ("placealg.check.prove", "from placealg.watch import conform"),
    ("placealg.notebook_display", "import placealg.render.notebook"),
    ("placealg.watch.conform", "from placealg.importers.read import read"),
    ("placealg.configurations.run", "from placealg.measure.cells import Cell"),
    ("placealg.importers.read", "from placealg.cli.inputs import style"),
])
def test_a_trespass_is_seen(module: str, source: str) -> None:
    assert trespasses(module, source)


def test_annexes_are_named_by_the_core_where_they_are() -> None:
    rooms = {name for names in ANNEXES.values() for name in names}
    assert {room(module) for module in PLACES.values()} <= rooms
    for module in PLACES.values():
        assert import_module(module)


@pytest.mark.parametrize(("module", "source"), [
    ("placealg.mesh", "from placealg.cost import memory"),
    ("placealg.cost.memory", "import placealg.prover.verdict"),
    ("placealg.step.derive", "def f():\n    from placealg.step2 import x"),
    ("placealg.simulator.run", "from placealg import prover"),
    ("placealg.render.text", "import sympy"),
    ("placealg.check.prove", "def f():\n    import z3"),
    ("placealg.cli.torch", "def f():\n    import torch.nn"),
    ("placealg.watch.conform", "from torch import Tensor"),
    ("placealg.cost.memory", "from placealg.measure.cells import Cell"),
    ("placealg.strategy.file", "from placealg.models.model import Model"),
    ("placealg.misc", "import json"),
])
def test_a_breach_is_seen(module: str, source: str) -> None:
    assert breaches(module, source)


@pytest.mark.parametrize(("module", "source"), [
    ("placealg.arith", "from placealg.errors import InputError"),
    ("placealg.cost.memory", "import sympy\nfrom placealg.cost.formula import Formula\nfrom placealg.step import x"),
    ("placealg", "from placealg.cli import main"),
])
def test_a_downward_import_is_free(module: str, source: str) -> None:
    assert breaches(module, source) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MAX_LINES


def docstrings(source: str) -> str:
    nodes = [n for n in ast.walk(ast.parse(source))
             if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    return "\n".join(ast.get_docstring(n) or "" for n in nodes)


def forbidden(text: str) -> list[str]:
    return [w for w in WORDS if re.search(rf"\b{w}s?\b", text, re.IGNORECASE)]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_docstrings_say_what_a_thing_is(path: Path) -> None:
    assert forbidden(docstrings(path.read_text())) == []
    assert not re.search("helper|util|manager|process", path.stem)


def test_a_forbidden_word_is_seen() -> None:
    assert forbidden(docstrings('"""Helpers for meshes."""')) == ["helper"]


def tracked() -> list[Path]:
    """The text files of the repository: what git tracks or would track."""
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                             capture_output=True, text=True, check=False)
    names = listing.stdout.splitlines() if listing.returncode == 0 else []
    return [ROOT / n for n in names if (ROOT / n).is_file() and Path(n).suffix not in (".png", ".svg")]


README_WIDTH = 100
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
"""What people read first: every session and every line of Python in it runs."""

OUTSIDE = re.compile(r"(?<![\w.$])/(?:work|home|Users|root|tmp|mnt)/\w|\.\./shared|file://")


def outside(text: str) -> list[str]:
    """The lines that name a place outside the repository."""
    return [line for line in text.splitlines() if OUTSIDE.search(line)]


def test_no_file_names_a_place_outside() -> None:
    this = Path(__file__).resolve()
    found = {str(p.relative_to(ROOT)): outside(p.read_text(encoding="utf-8")) for p in tracked() if p != this}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_an_outside_path_is_seen() -> None:
    text = "see /work/x\nread ../shared/a.md\nhttps://github.com/a/home/b"
    assert outside(text) == ["see /work/x", "read ../shared/a.md"]


def blocks(language: str) -> list[str]:
    """The blocks of a language in the README and the pages beside it, but those that test_pages runs as sessions."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name not in (*SESSIONS, "python.md"))
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def sessions(block: str) -> list[tuple[str, str]]:
    """(command, printed) for each `$ placealg ...` of a console block."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(p.partition("\n")[0], p.partition("\n")[2].strip("\n")) for p in parts]


def agrees(want: str, got: str) -> bool:
    """Whether `got` is `want`, where a line `...` stands for any lines and `...` in a line for any text."""
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else ".*".join(
        re.escape(part.rstrip()) for part in line.split("...")) + r"[ ]*\n" for line in want.strip("\n").splitlines())
    return re.fullmatch(pattern, got.strip("\n") + "\n") is not None


def names_twice(paths: Iterable[Path]) -> list[str]:
    """Names of modules that stand in two folders: pytest imports tests by name alone, so that one hides the other."""
    return sorted(name for name, n in Counter(path.name for path in paths).items() if n > 1)


def test_every_module_of_the_tests_has_a_name_of_its_own() -> None:
    assert names_twice(path for path in (ROOT / "tests").rglob("*.py") if path.name != "__init__.py") == []
    assert names_twice([Path("a/test_x.py"), Path("b/test_x.py"), Path("b/test_y.py")]) == ["test_x.py"]


def test_what_is_mutated_is_there() -> None:
    """`make mutate` ends where a module was renamed; and all that steps a program through the calculus is in it."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]["only_mutate"]
    assert [path for path in named if not (ROOT / path).exists()] == []
    calculus = (ROOT / "placealg/prover/calculus").glob("[a-z]*.py")
    assert [path.name for path in calculus if str(path.relative_to(ROOT)) not in named] == []


def test_elision_is_strict_elsewhere() -> None:
    assert agrees("a\n...\nd", "a\nb\nc\nd")
    assert agrees("a ... c", "a b c")
    assert not agrees("a\nd", "a\nb\nd")
    assert not agrees("a\n...\nx", "a\nb\nd")


@pytest.mark.parametrize("block", blocks("console"))
def test_readme_sessions_print_what_they_show(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", str(README_WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    for command, printed in sessions(block):
        words = shlex.split(command)
        if words[0] == "placealg":
            got = run_placealg(*words[1:])
            assert agrees(printed, got.out + got.err), f"$ {command}\n{got.out}{got.err}"


@pytest.mark.parametrize("block", blocks("python"))
def test_readme_python_runs(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    test = doctest.DocTestParser().get_doctest(block, {}, "README", "README.md", 0)
    assert test.examples, "a python block shows a session"
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_metadata_say_one_licence_and_the_authors_of_the_citation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["license"] == cited["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / project["license-files"][0]).read_text(encoding="utf-8")[:200]
    assert [one["name"] for one in project["authors"]] == [one["name"] for one in cited["authors"]]
    assert not any("email" in one for one in project["authors"]) and "urls" not in project
