"""Where a system starts no process, or lacks a module: proofs are what they are elsewhere, or say what is missing."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import needs_commands

from placealg.prover.evidence.solver import (
    SAT,
    UNKNOWN,
    UNSAT,
    WITHOUT_PROCESSES,
    SolverProcess,
    z3_answer,
)

POSITIVE = "(declare-const x Int)(assert (> x 0))(check-sat)"
NOTHING = "(declare-const x Int)(assert (> x x))(check-sat)"


@pytest.mark.parametrize("error", [
    PermissionError(1, "Operation not permitted"), OSError(38, "Function not implemented"),
    ModuleNotFoundError("No module named '_multiprocessing'"), NotImplementedError("no processes here")])
def test_the_solver_runs_here_where_no_process_starts(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refused() -> int:
        raise error

    monkeypatch.setattr(os, "fork", refused)
    solver = SolverProcess()
    assert [solver.ask_text(t).status for t in (POSITIVE, NOTHING)] == [SAT, UNSAT]
    assert solver.ask_text(POSITIVE).model["x"] > 0
    assert solver.ask_text("(").reason.startswith("solver error")
    solver.stop()


@pytest.mark.parametrize("platform", WITHOUT_PROCESSES)
def test_a_browser_is_asked_for_no_process_and_no_pipe(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("asked for")

    monkeypatch.setattr(sys, "platform", platform)
    for name in ("get_context", "get_all_start_methods", "Pipe"):
        monkeypatch.setattr(multiprocessing, name, asked)
    solver = SolverProcess()
    assert [solver.ask_text(t).status for t in (POSITIVE, NOTHING)] == [SAT, UNSAT]


def test_a_solver_that_runs_here_is_limited_by_its_work() -> None:
    primes = "".join(f"(declare-const {x} Int)(assert (> {x} 1000))" for x in "xyz")
    text = f"{primes}(assert (= (* x y z) 1000000000039))(check-sat)"
    assert z3_answer(text, 1000).status == UNKNOWN


LACKING = """
import os, sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in LACKS:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Lacking())
def refused(*_):
    raise PermissionError(1, "Operation not permitted")
if "resource" in LACKS:
    os.fork = refused
import placealg.cli.commands, placealg.cli.worker_pool, placealg.prover.kernel.theory
from placealg.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(lacks: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    program = LACKING.replace("LACKS", repr(lacks))
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)


@needs_commands
def test_modules_of_some_systems_are_imported_where_they_are_used() -> None:
    assert run(("resource", "_multiprocessing"), "prove", "--help").returncode == 0


WRONG = """base = "zero2"
[[edit]]
drop = "*.layer.weight.grad.reduce[dp]"
"""


@needs_commands
@pytest.mark.parametrize(("lacks", "code"), [
    pytest.param(("resource", "_multiprocessing"), 1, marks=pytest.mark.slow), (("numpy",), 3)])
def test_a_refutation_without_modules_of_the_system(lacks: tuple[str, ...], code: int, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(WRONG)
    refuted = run(lacks, "prove", str(file))
    assert refuted.returncode == code, refuted.stderr
    assert "Traceback" not in refuted.stderr
    assert ("numpy is not installed: pip install numpy" in " ".join(refuted.stdout.split())) == (code == 3)


@pytest.mark.slow
@pytest.mark.parametrize("lacks", [("resource", "_multiprocessing"), ("numpy",)])
def test_a_proof_without_modules_of_the_system(lacks: tuple[str, ...]) -> None:
    assert run(lacks, "prove", "zero3*tp_sp*pp", "--model", "gpt2").returncode == 0


@pytest.mark.parametrize("words", [
    ("simulate", "zero3"), pytest.param(("museum",), marks=pytest.mark.slow),
    pytest.param(("search", "gpt2", "--devices", "8", "--machine", "h100", "--batch", "64"), marks=pytest.mark.slow)])
def test_a_command_that_needs_numpy_says_so(words: tuple[str, ...]) -> None:
    done = run(("numpy",), *words)
    assert (done.returncode, done.stderr) == (3, "placealg: UNDECIDED: the library of arrays, numpy, is not "
                                                 "installed: pip install numpy\n")
