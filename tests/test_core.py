"""The core runs alone, and its page lists every module of it in an order in which it can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from core import annexed, copied, of_annexes
from core_page import PAGE, core_modules, dotted, page
from test_house import imports

DAY = """
import placealg as pa
step = pa.derive(pa.parse_strategy("zero3*tp_sp"), pa.gpt())
print(pa.prove("zero3").verdict, pa.memory("zero1", "gpt").states, pa.read("proofs/proved/token_mean.toml").expect)
print(pa.simulate(step, setting=pa.Setting.equal(step.reference, {"dp": 2, "tp": 2}, microbatches=1)).equal)
"""


def test_it_runs_where_the_annexes_are_not(tmp_path: Path) -> None:
    copied(tmp_path)
    assert not [name for name in annexed() if (tmp_path / "placealg" / name).exists()]
    found = subprocess.run([sys.executable, "-c", DAY], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout.startswith("PROVED "), found.stderr
    assert found.stdout.rstrip().endswith("True")


def test_an_expression_loads_no_reader_of_files() -> None:
    code = "import sys; from placealg.cli import main; main(['list']); main(['cost', 'zero3']); print([*sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = found.stdout.rpartition("\n[")[2]
    assert "'placealg.cases.case'" in loaded and "placealg.importers" not in loaded


def test_a_file_of_tests_that_speaks_of_an_annex_is_seen(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def f():\n    from placealg.cli import main\n")
    (tmp_path / "two.py").write_text("from one import f\n")
    (tmp_path / "three.py").write_text("from placealg.cost.walk import Walk\n")
    assert [path.name for path in of_annexes(tmp_path, annexed())] == ["one.py", "two.py"]


def test_every_module_stands_behind_those_of_its_room_that_it_imports() -> None:
    names = [dotted(path) for path in core_modules()]
    assert len(set(names)) == len(names) > 200
    circles = []
    for k, path in enumerate(core_modules()):
        for other in imports(path.read_text(encoding="utf-8")) & set(names[k + 1:]):
            circles.append((names[k], other))
    assert all(one.split(".")[1] == other.split(".")[1] or one.count(".") == other.count(".") == 1
               for one, other in circles), circles
    told = PAGE.read_text(encoding="utf-8")
    assert [path.name for path in core_modules() if path.name != "__init__.py" and f"{path.name}` |" not in told] == []


@pytest.mark.slow
def test_the_page_is_what_runs() -> None:
    assert page() == PAGE.read_text(encoding="utf-8")
