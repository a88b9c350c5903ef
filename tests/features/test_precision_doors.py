"""Types by name that `prove` refutes: nothing that proves calls them proved, and no certificate leaves them out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome, run_placealg

import placealg as pa
from placealg.check.prove import judge
from placealg.check.recheck import MANIFEST, _sealed
from placealg.errors import InputError
from placealg.playground.page import answer
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED
from placealg.strategy.file import parse_strategy_file
from placealg.testing import assert_proved

Run = Callable[..., Outcome]

TYPES = 'types = { w = "fp32", g = "fp32", wire = "fp32", wire_w = "bf16", use = "bf16", act = "bf16" }\n'
GOOD = f'model = "abstract"\nbase = "zero3"\n{TYPES}'
BAD = GOOD + '[schedule]\nwire = { dp = "bf16" }\n'


def step_of(text: str) -> pa.Step:
    return pa.derive(parse_strategy_file(text).strategy, pa.abstract())


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.toml"
    path.write_text(BAD, encoding="utf-8")
    return path


@pytest.mark.parametrize("engine", ["closed_form", "cutoff"])
def test_judge_asks_by_itself(engine: str) -> None:
    report = judge(step_of(BAD), engine=engine)[0]
    assert (report.verdict, report.refuted(), report.of_values) == (REFUTED, ("precision",), PROVED)
    good = judge(step_of(GOOD), engine=engine)[0]
    assert good.verdict == PROVED and len(good.of("precision")) == 1
    assert judge(step_of(GOOD), engine=engine, sums="fp32")[0].verdict == PROVED
    assert judge(step_of("base = \"zero1\""), engine=engine, sums="fp32")[0].verdict == UNDECIDED


def test_python_takes_what_is_asked(bad: Path) -> None:
    assert pa.prove(str(bad)).verdict == REFUTED and pa.prove(step_of(BAD), sums="bf16").verdict == PROVED
    assert pa.prove("zero1", sums="fp32").verdict == UNDECIDED
    with pytest.raises(InputError, match="did you mean 'fp32'"):
        pa.prove("zero1", sums="fp23")
    with pytest.raises(AssertionError, match="adds in bf16"):
        assert_proved(BAD)
    assert assert_proved(GOOD).of("precision")


@pytest.mark.parametrize("words", [
    ["prove"], ["prove", "--engine", "cutoff"], ["museum"], ["diff", "zero3"], ["report", "-o", "page.html"],
    ["prove", "--certificate", "folder"], ["prove", "--cross-check"], ["prove", "--format", "junit"]],
    ids=" ".join)
def test_no_command_calls_it_proved(words: list[str], bad: Path, placealg: Run, monkeypatch: pytest.MonkeyPatch
                                    ) -> None:
    monkeypatch.chdir(bad.parent)
    got = placealg(words[0], bad.name, *words[1:])
    page = bad.parent / "page.html"
    told = got.out + (page.read_text(encoding="utf-8") if page.exists() else "")
    assert "REFUTED" in told or "refuted" in told or "<failure" in told, got
    assert got.code in (0, 1) and ("precision" in told or words[0] == "diff")


def test_the_playground_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the page writes its file where it runs
    assert json.loads(answer("proof", BAD, ""))["verdict"] == "REFUTED"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("precision")
    (folder / "bad.toml").write_text(BAD, encoding="utf-8")
    assert run_placealg("prove", str(folder / "bad.toml"), "--certificate", str(folder / "made")).code == 1
    return folder / "made"


def test_a_certificate_has_the_question(certificate: Path, placealg: Run) -> None:
    manifest = json.loads((certificate / MANIFEST).read_text(encoding="utf-8"))
    query, = (q for q in manifest["queries"] if q["id"] == "precision")
    assert (manifest["verdict"], manifest["asked_for"]) == ("REFUTED", ["precision"])
    assert (query["verdict"], query["expected"], query["formulas"]) == ("REFUTED", "sat", 2)
    assert placealg("recheck", str(certificate), "--regenerate").code == 0


def test_the_question_cannot_be_left_out(certificate: Path, placealg: Run) -> None:
    """A manifest that is sealed anew, of a proof of everything else, is told from the program that stands beside it."""
    path = certificate / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    (certificate / "precision.smt2").unlink()
    del manifest["digest"], manifest["files"]["precision.smt2"]
    manifest["queries"] = [q for q in manifest["queries"] if q["id"] != "precision"]
    manifest |= {"verdict": "PROVED", "class": "PARAMETRIC"}
    path.write_text(_sealed(manifest), encoding="utf-8")
    got = placealg("recheck", str(certificate))
    assert got.code == 1 and "claims PROVED, which its queries do not show" in " ".join(got.out.split())
    path.write_text(_sealed({k: v for k, v in manifest.items() if k != "asked_for"}), encoding="utf-8")
    got = placealg("recheck", str(certificate))
    assert got.code == 1 and "has asked_for none, its program precision" in " ".join(got.out.split())


def test_a_certificate_says_what_a_user_asked(tmp_path: Path, placealg: Run) -> None:
    """The type that --sums names is not in the program: the manifest has it, and proving again takes it from there."""
    path, folder = tmp_path / "low.toml", tmp_path / "made"
    path.write_text(f'{GOOD}[schedule]\nwire = {{ dp = "bf16" }}\nsums = "bf16"\n', encoding="utf-8")
    assert placealg("prove", str(path), "--certificate", str(tmp_path / "plain")).code == 0
    assert placealg("prove", str(path), "--sums", "fp32", "--certificate", str(folder)).code == 1
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    assert (manifest["verdict"], manifest["made"]["sums"]) == ("REFUTED", "fp32")
    assert placealg("recheck", str(folder), "--regenerate").code == 0
    for wrong in ("bf16", "fp23"):
        manifest["made"]["sums"] = wrong
        del manifest["digest"]
        (folder / MANIFEST).write_text(_sealed(manifest), encoding="utf-8")
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        assert placealg("recheck", str(folder), "--regenerate").code != 0
