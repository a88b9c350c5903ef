"""What the page's worker calls, without a browser: answers as JSON, bad input placed, every bug's file readable."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from conftest import ROOT, run_placealg
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.playground.build import build
from placealg.playground.downloads import Download, downloads, fetched
from placealg.playground.page import FILE, answer, settle
from placealg.playground.words import words

BUGS = words()["bugs"]
OTHERS = random.Random(51).sample(BUGS, 1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settle(tmp_path / "mine")


@pytest.mark.parametrize("bug", [b for b in BUGS if "../" in b["text"]][:1] + OTHERS + [
    pytest.param(b, marks=pytest.mark.slow) for b in BUGS], ids=lambda bug: bug["name"])
def test_every_bug_that_is_loaded_is_priced(bug: dict[str, str]) -> None:
    said = json.loads(answer("costs", bug["text"], ""))
    assert said.get("error") is None
    assert said["name"] == bug["title"] and said["page"].startswith("<!DOCTYPE html>") and said["events"]


@pytest.mark.parametrize("name", ["zero1_publish_dropped", pytest.param("megatron_1446", marks=pytest.mark.slow)])
def test_a_proof_is_that_of_the_command_to_the_byte(name: str) -> None:
    text = (ROOT / f"proofs/refuted/{name}.toml").read_text(encoding="utf-8")
    said = json.loads(answer("proof", text, ""))
    assert said["document"] == run_placealg("prove", FILE, "--format", "json", "--no-timing").out
    assert said["verdict"] == "REFUTED" and said["repair"]["edit"] not in said["counterexample"]
    mended = json.loads(answer("proof", f"{text}\n{said['repair']['edit']}\n", ""))
    assert (mended["verdict"], mended["repair"], mended["counterexample"]) == ("PROVED", None, "")


@settings(max_examples=25)
@given(st.text("zero3*tp_sp=[]\"'\n.# {}ü<", max_size=30) | st.text(max_size=20))
def test_whatever_is_written_is_answered(text: str) -> None:
    """An answer, or one line: never an exception, which would end the page's Python."""
    said = json.loads(answer("costs", text, ""))
    assert "page" in said or (said["error"] and "\n" not in said["error"] and said["line"] >= 0)


@pytest.mark.parametrize(("text", "model", "line", "says"), [
    ('base = "zero3"\nfoo = 1', "", 2, "unknown key 'foo'"), ("zero3", "gpt9", 0, "did you mean"),
    ("", "", 0, "nothing"),
    ('base = "zero3"\n[[edit]]\ndrop = "x.y"', "", 3, "no event 'x.y'")])
def test_bad_input_says_its_line(text: str, model: str, line: int, says: str) -> None:
    said = json.loads(answer("proof", text, model))
    assert (said["line"], FILE in said["error"]) == (line, False) and says in said["error"]


def test_warnings_and_progress_are_heard() -> None:
    heard: list[str] = []
    said = json.loads(answer("costs", "zero3*cp_ring", "", heard.append))
    assert any("deriving" in one for one in heard)
    told = run_placealg("show", "zero3*cp_ring").err
    assert told and [f"placealg: {one['error']}" for one in said["remarks"]] == told.splitlines()


def test_a_file_that_is_not_what_it_should_be_is_refused_and_one_that_is_there_is_taken(tmp_path: Path,
                                                                                       monkeypatch: pytest.MonkeyPatch
                                                                                       ) -> None:
    from placealg.errors import InputError

    one = Download("a.tgz", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", npm="a@1")
    (tmp_path / "a.tgz").write_text("hello")
    assert fetched([one], tmp_path) == {"a.tgz": tmp_path / "a.tgz"}
    (tmp_path / "a.tgz").write_text("hellO")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"^a\.tgz: the playground needs a@1, which is not in .* npm: No such file"):
        fetched([one], tmp_path)
    wheel = tmp_path / "numpy.whl"
    monkeypatch.setattr("placealg.playground.build.fetched", lambda wanted, cache: {d.name: cache for d in wanted})
    for said in ("there is no such file", "has another SHA-256"):
        with pytest.raises(InputError, match=said):
            build(tmp_path / "out", tmp_path, (wheel, "0" * 64))
        wheel.write_text("no wheel")


def test_downloads_are_pinned_and_libraries_are_those_of_the_lock() -> None:
    """The solver alone is older: wheels of the browser's Python come later."""
    lock = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE))
    for one in downloads():
        assert re.fullmatch("[0-9a-f]{64}", one.sha256) and bool(one.npm) != bool(one.pypi)
        name, _, version = one.pypi.partition("==")
        assert not name or name == "z3-solver" or lock[name] == version
