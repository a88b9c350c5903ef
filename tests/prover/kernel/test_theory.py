"""The compiled theory is kept for as long as it is the same, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from placealg.prover.kernel.coq import by_coqc
from placealg.prover.kernel.theory import MODULES, compiled, imported

COQC = """#!/bin/sh
[ "$1" = --version ] && echo "The Coq Proof Assistant, version 8.16.1" && exit
for last; do :; done
echo "$last" >> {log}
cat "$last" > "${{last%.v}}.vo"
echo "Closed under the global context"
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A theory of three files, and a coqc that accepts everything and writes down what it compiled."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "coqc").write_text(COQC.format(log=tmp_path / "log"), encoding="utf-8")
    (tmp_path / "bin" / "coqc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    theory = tmp_path / "coq"
    (theory / "kernel").mkdir(parents=True)
    (theory / "kernel" / "Facts.v").write_text("Definition a := 1.\n", encoding="utf-8")
    for name in MODULES:
        (theory / f"{name}.v").write_text("From Placealg.kernel Require Import Facts.\n", encoding="utf-8")
    return theory


def ran(sources: Path) -> list[str]:
    """What coqc compiled since the last call."""
    log = sources.parent / "log"
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    log.unlink(missing_ok=True)
    return text.split()


THEORY = ["kernel/Facts.v", "kernel/Sound.v", "kernel/World.v"]


def test_the_theory_is_compiled_once_for_each_of_its_states(sources: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    assert by_coqc("a", sources, keep) == "" and ran(sources) == [*THEORY, "strategy.v"]
    assert by_coqc("b", sources, keep) == "" and ran(sources) == ["strategy.v"]
    (sources / "kernel" / "Facts.v").write_text("Definition a := 2.\n", encoding="utf-8")
    assert by_coqc("a", sources, keep) == "" and ran(sources) == [*THEORY, "strategy.v"]
    assert by_coqc("a", sources) == "" and ran(sources) == [*THEORY, "strategy.v"]


def test_what_is_not_what_was_kept_is_compiled_again(sources: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    by_coqc("a", sources, keep)
    whole, = keep.iterdir()
    for spoil in (lambda: (whole / "kernel" / "Sound.vo").write_text("Axiom a : False."),
                  lambda: (whole / "kernel" / "Facts.vo").unlink(),
                  lambda: (whole / "kernel" / "More.vo").write_text(""),
                  lambda: (whole / "sums").unlink()):
        ran(sources)
        spoil()
        assert by_coqc("a", sources, keep) == "" and ran(sources) == [*THEORY, "strategy.v"]
        assert [folder.name for folder in keep.iterdir()] == [whole.name]


def test_the_last_two_theories_are_kept_and_no_other_folder_goes(sources: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    (keep / "mine").mkdir(parents=True)
    for k in range(4):
        (sources / "kernel" / "Facts.v").write_text(f"Definition a := {k}.\n", encoding="utf-8")
        by_coqc("a", sources, keep)
    assert len(list(keep.iterdir())) == 3 and (keep / "mine").is_dir()


def test_where_nothing_can_be_kept_it_is_compiled_anyway(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert by_coqc("a", sources, tmp_path / "file" / "keep") == "" and ran(sources) == [*THEORY, "strategy.v"]


def test_a_theory_that_coqc_refuses_is_not_kept(sources: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    (tmp_path / "bin" / "coqc").write_text(COQC.format(log=tmp_path / "log").replace("cat ", "exit 1; cat "),
                                           encoding="utf-8")
    assert "coqc refuses kernel/Facts.v" in by_coqc("a", sources, keep)
    assert list(keep.iterdir()) == []


def test_files_are_compiled_behind_what_they_import(sources: Path) -> None:
    found: dict[str, str] = {}
    imported(sources, "kernel/World", found)
    assert list(found) == ["kernel/Facts", "kernel/World"]


def test_what_proves_nothing_is_told(sources: Path) -> None:
    with compiled(sources) as folder:
        assert folder.proves("x") == ""
    (sources.parent / "bin" / "coqc").write_text(
        COQC.format(log=sources.parent / "log").replace('echo "Closed under the global context"', 'echo "Axioms: a"'),
        encoding="utf-8")
    assert by_coqc("x", sources) == "the proof assumes something: Axioms: a"
