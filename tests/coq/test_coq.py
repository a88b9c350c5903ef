"""The theory in Coq: its table is that of the Python code, its README names every theorem, and wrong statements fail.

What needs coqc is skipped without it, and is slow; `make coq` compiles everything.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import coq_mutants
import coq_table
import pytest
from conftest import ROOT

from placealg import placement
from placealg.frozen import FrozenMap
from placealg.placement import Kind, Redistribution
from placealg.prover.calculus.contribution import Term, Value

COQ = ROOT / "proofs" / "coq"
FILES = [path for path in sorted(COQ.rglob("*.v")) if path.stem != "Audit"]
needs_coq = pytest.mark.skipif(shutil.which("coqc") is None, reason="there is no coqc on PATH")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled files."""
    directory = tmp_path_factory.mktemp("coq")
    coq_mutants.compiled(directory)
    return directory


def theorems(path: Path) -> list[str]:
    return re.findall(r"^Theorem (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)


ITEM = re.compile(r"^(?:Definition|Example) .*?\.$", re.MULTILINE | re.DOTALL)


def refusals(table: str, number: int) -> str:
    """The equations of a table that are not those of the kept one, as a module in which Coq has to refuse each.

    Each is stated too, so that what is refused is its proof: Coq computes another value.
    """
    kept, items = coq_table.TABLE.read_text(encoding="utf-8"), ITEM.findall(table)
    given = [item for item in items if item.startswith("Definition")]
    new = [item for item in items if item.startswith("Example") and item not in kept]
    if any(item not in kept for item in given):
        new += [item for item in items if item.startswith("Example no_pair_is_missing")]
    assert new, "nothing in the table has changed"
    stated = [re.sub(r"^Example (\w+) :(.*):= eq_refl\.$", r"Definition \1 : Prop :=\2.", item, flags=re.DOTALL)
              for item in new]
    refused = [f"Fail {item}" for item in new]
    return "\n".join([f"Module change_{number}.", *given, *refused, *stated, f"End change_{number}."])


def assert_refused(tables: list[str], build: Path) -> None:
    """Coq refuses every equation of the tables that is not one of the kept table."""
    text = "\n".join([coq_table.HEAD, *(refusals(table, k) for k, table in enumerate(tables))])
    (build / "Refused.v").write_text(text, encoding="utf-8")
    done = subprocess.run(["coqc", "-q", "-R", ".", "Placealg", "Refused.v"], cwd=build, text=True, capture_output=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_is_that_of_the_code() -> None:
    assert coq_table.TABLE.read_text(encoding="utf-8") == coq_table.table(), (
        "run: python tests/coq/coq_table.py proofs/coq/Table.v")


def other(event: str) -> str:
    return "slice" if event == "all_gather" else "all_gather"


def changes() -> dict[str, tuple[Redistribution, ...]]:
    """Tables with one row changed or left out."""
    rows, found = placement.REDISTRIBUTIONS, {}
    for k, row in enumerate(rows):
        name = f"{row.source}->{row.target}"
        for field in ("event", "backward"):
            wrong = replace(row, **{field: other(getattr(row, field))})
            found[f"{name} {field}"] = (*rows[:k], wrong, *rows[k + 1:])
        found[f"{name} left out"] = (*rows[:k], *rows[k + 1:])
    return found


CHANGES = changes()


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_row_changes_the_table(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "REDISTRIBUTIONS", CHANGES[change])
    assert coq_table.table() != coq_table.TABLE.read_text(encoding="utf-8")


def unscaled(term: Term, axis: str) -> Term:
    """A sum over ranks that forgets how many there are."""
    return Term(term.coefficient, FrozenMap(), term.given)


def unconditional(value: Value, axes: dict[str, str]) -> Value:
    """A gather that asks for nothing."""
    return Value(tuple(t.read_at(a, p) for t in value.terms for a, p in axes.items()))


RULES = {"summed": (Term, unscaled), "gathered": (Value, unconditional)}


def changed_tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The table for every changed row, every changed dual, and every changed rule."""
    found = []
    for rows in CHANGES.values():
        with monkeypatch.context() as patch:
            patch.setattr(placement, "REDISTRIBUTIONS", rows)
            found.append(coq_table.table())
    for kind, dual in placement.DUAL.items():
        with monkeypatch.context() as patch:
            wrong = Kind.S if dual is not Kind.S else Kind.I
            patch.setattr(placement, "DUAL", {**placement.DUAL, kind: wrong})
            found.append(coq_table.table())
    for rule, (of, other_rule) in RULES.items():
        with monkeypatch.context() as patch:
            patch.setattr(of, rule, other_rule)
            found.append(coq_table.table())
    return found


@pytest.mark.slow
@needs_coq
def test_coq_refuses_every_changed_row_dual_and_rule(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = changed_tables(monkeypatch)
    assert len(tables) == 3 * len(placement.REDISTRIBUTIONS) + len(Kind) + len(RULES)
    assert_refused(tables, build)
    with pytest.raises(AssertionError, match="nothing in the table has changed"):
        assert_refused([coq_table.table()], build)


@pytest.mark.parametrize("mutant", coq_mutants.MUTANTS, ids=lambda m: m.said)
@pytest.mark.slow
@needs_coq
def test_a_proof_rejects_a_wrong_statement(mutant: coq_mutants.Mutant, build: Path) -> None:
    assert coq_mutants.rejection(mutant, build) == mutant.rejected_by


@pytest.mark.parametrize("mutant", coq_mutants.MUTANTS, ids=lambda m: m.said)
def test_a_mutant_changes_its_file(mutant: coq_mutants.Mutant) -> None:
    assert coq_mutants.changed(mutant) != (COQ / f"{mutant.file}.v").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_short_and_says_what_it_backs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    head = text.partition("*)")[0]
    assert head.startswith("(** ")
    assert "What it backs: " in head
    assert "Main statement" in head or path.stem == "Table"
    lines = text.splitlines()
    assert len(lines) < (450 if path.parent.name == "kernel" else 300) or path.stem == "Table"
    assert max(map(len, lines)) <= 120


BACKED = re.compile(r"What it backs: (.*?)\n *\n", re.DOTALL)
OF_FILE = re.compile(r"((?:\[?[\w.]+\]?(?:, | and ))*\[?[\w.]+\]?) of ((?:placealg|proofs|tests)/[\w/.]+\w)")


def named_in(path: Path) -> set[str]:
    """What a file of Python names: its definitions, with those of its classes, and its texts; of another, its words."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"\w+", text))
    nodes = list(ast.walk(ast.parse(text)))
    return ({n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
            | {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            | {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            | {f"{of.name}.{n.name}" for of in nodes if isinstance(of, ast.ClassDef) for n in of.body
               if isinstance(n, ast.FunctionDef)})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_file_backs_is_there(path: Path) -> None:
    said = BACKED.search(path.read_text(encoding="utf-8"))
    backs = " ".join(said[1].split()) if said else ""
    assert re.search(r"(?:placealg|tests)/[\w/.]+\.(?:py|toml)", backs), "it names no file of Python"
    for word in re.findall(r"[\w/.]+\.(?:py|toml|v)\b", backs):
        found = [COQ, COQ / "kernel", ROOT / "proofs" / "refuted"] if "/" not in word else [ROOT]
        assert any((folder / word).exists() for folder in found), word
    for names, file in OF_FILE.findall(backs):
        for name in re.findall(r"\[([\w.]+)\]", names):
            assert name in named_in(ROOT / file), f"{file} has no {name}"


def test_the_readme_sets_every_theorem_beside_its_counterpart() -> None:
    text = (COQ / "README.md").read_text(encoding="utf-8")
    rows = {name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert rows == {name for path in FILES for name in theorems(path)}
    for counterpart in re.findall(r"`((?:placealg|proofs|tests)/[\w/.]+)`", text):
        assert (ROOT / counterpart).exists(), counterpart


def checked(directory: Path, source: str, audit: str = "Print Assumptions Tiny.small.\n", **environment: str,
            ) -> subprocess.CompletedProcess[str]:
    """check.sh on a theory of one file."""
    shutil.copy(COQ / "check.sh", directory)
    (directory / "_CoqProject").write_text("-R . Placealg\nTiny.v\nAudit.v\n")
    (directory / "Tiny.v").write_text(source)
    (directory / "Audit.v").write_text(f"From Placealg Require Tiny.\n{audit}")
    return subprocess.run([str(shutil.which("bash")), str(directory / "check.sh")], capture_output=True, text=True,
                          check=False, env=environment or None)


def test_without_coqc_it_is_a_skip_and_no_pass(tmp_path: Path) -> None:
    done = checked(tmp_path, "", PATH=str(tmp_path))
    assert done.returncode == 77
    assert "SKIPPED, nothing was checked" in done.stdout
    assert "apt-get install" in done.stdout


RIGHT = "Theorem small : True.\nProof. exact I. Qed.\n"
WRONG = {
    "admitted": ("Theorem small : False.\nProof. Admitted.\n", "taken on trust"),
    "an axiom": (f"Axiom all : False.\n{RIGHT}", "taken on trust"),
    "a variable outside of a section": ("Variable all : False.\nTheorem small : False.\nProof. exact all. Qed.\n",
                                        "all"),
    "not proved": ("Theorem small : False.\nProof. exact I. Qed.\n", "expected to have type"),
    "not asked about": (f"{RIGHT}Theorem two : True.\nProof. exact I. Qed.\n", "Tiny.two"),
}


@pytest.mark.parametrize("case", WRONG)
@needs_coq
def test_the_check_refuses(case: str, tmp_path: Path) -> None:
    source, said = WRONG[case]
    done = checked(tmp_path, source)
    assert (done.returncode, "coq: FAILED" in done.stderr, said in done.stderr) == (1, True, True), done.stderr


@needs_coq
def test_the_check_accepts_what_is_proved(tmp_path: Path) -> None:
    done = checked(tmp_path, RIGHT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 theorems, each closed" in done.stdout


def test_the_page_counts_what_is_to_be_trusted() -> None:
    import kernel_table

    text = kernel_table.PAGE.read_text(encoding="utf-8")
    assert [line for line in kernel_table.trusted() if line not in text] == [], (
        "run: python tests/coq/kernel_table.py --write")


@pytest.mark.slow
def test_the_page_has_the_kernel_s_table() -> None:
    import kernel_table

    text = kernel_table.PAGE.read_text(encoding="utf-8")
    assert kernel_table.page(text) == text, "run: python tests/coq/kernel_table.py --write"
