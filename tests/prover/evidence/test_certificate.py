"""Certificates: the whole obligation written out, the same bytes each time, replayed by two solvers, edits reported."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Outcome, needs_commands, run_placealg

from placealg.cases.case import read_case
from placealg.check import certificate_audit
from placealg.check.prove import judge
from placealg.check.recheck import _sealed, cross_check, files_of, recheck
from placealg.errors import InputError
from placealg.prover import correct, examine, schedule
from placealg.prover.evidence import replay
from placealg.prover.evidence.certificate import Query, certificate
from placealg.prover.evidence.replay import AGREE, DISAGREE, NO_ANSWER, Rechecked, Replay, replays
from placealg.prover.evidence.solver import SAT, UNKNOWN, UNSAT, Proof, Reply, Solve, SolverProcess, z3_answer
from placealg.prover.examine import OF_OPS, PER_GROUP
from placealg.prover.ops.flow import Flows
from placealg.prover.verdict import OBLIGATIONS, PROVED, REFUTED, UNDECIDED
from placealg.step.edit import edit
from placealg.step.lower import lowered
from placealg.step.pipeline import Pipeline

Run = Callable[..., Outcome]
REFUTED_FILE = "proofs/refuted/zero1_publish_dropped.toml"


def queries_of(word: str, **change: Any) -> tuple[Any, tuple[Query, ...]]:
    step = read_case(word, None, []).step
    step = edit(step, **change) if change else step
    report, candidates = judge(step)
    return report, certificate(step, report, candidates)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of zero3, which tests copy."""
    folder = tmp_path_factory.mktemp("once") / "certificate"
    assert run_placealg("prove", "zero3", "--certificate", str(folder)).code == 0
    return folder


@pytest.fixture
def written(once: Path, tmp_path: Path) -> Path:
    """A certificate of zero3."""
    return Path(shutil.copytree(once, tmp_path / "certificate"))


@pytest.mark.parametrize("word", ["zero3", "hsdp*offload_optimizer", "zero3*tp_sp"])
def test_two_solvers_agree_on_every_query(word: str) -> None:
    report, queries = queries_of(word)
    found = cross_check(queries, report)
    assert (report.verdict, found.code) == (PROVED, 0)
    assert {r.outcome for r in found.replays} == {AGREE}
    assert {q.obligation for q in queries} >= set(OBLIGATIONS)
    proofs = [r.proof for r in found.replays if r.expected == UNSAT]
    assert all(p is not None and p.steps > p.holes == 0 for p in proofs)


@pytest.mark.parametrize("word", ["zero3", "dp*tp*recompute_full"])
def test_every_instance_is_in_a_formula_or_a_counted_fact(word: str) -> None:
    report, queries = queries_of(word)
    instances = {(v.id, v.group): v.instances for v in report.obligations}
    for query in queries:
        if (query.obligation, query.group) in instances and query.obligation != "vacuity":
            assert query.instances == instances[query.obligation, query.group]
            behind = sum(int(n) for n in re.findall(r"^; (\d+) instances?: ", query.text, re.MULTILINE))
            assert behind + sum(query.facts.values()) == query.instances
    settled = {q.obligation for q in queries if not q.asks}
    assert settled <= {"partition", "forward", "schedule", "random", "view"}


@pytest.mark.parametrize("word", ["zero3", "proofs/proved/token_mean.toml"])
def test_no_query_is_unsat_by_its_premises_alone(word: str) -> None:
    _, queries = queries_of(word)
    for query in queries:
        if query.asks:
            premises, question, rest = query.text.rpartition("(assert ")
            assert "failure 1" in question + rest
            assert z3_answer(premises, 10**7).status == SAT


def test_what_the_prover_settles_without_a_solver_is_asked_all_the_same() -> None:
    step = lowered(read_case("zero3", None, []).step)
    group, flows = step.reference.groups[0], Flows(step)
    asked = examine.obligations(step, group, examine.paths_of(step, group, flows), flows)
    _, queries = queries_of("zero3")
    for identifier in ("view", "invariant", "init", "random"):
        assert not any(f.obligation == identifier for f in asked.failures.values())
        assert next(q for q in queries if (q.obligation, q.group) == (identifier, group.name)).formulas > 0


PIPELINES = ("pp", "pp_gpipe", "pp_interleaved", "pp_zb_h2", "zero1*tp*pp_interleaved")


@pytest.fixture
def anew() -> Iterator[None]:
    """What is known of schedules is proved anew, here and in the tests that follow."""
    schedule._acyclic.forget()
    yield
    schedule._acyclic.forget()


@pytest.mark.parametrize("word", PIPELINES)
def test_freedom_from_deadlock_is_asked_of_both_solvers(word: str) -> None:
    report, queries = queries_of(word)
    mine = [q for q in queries if q.obligation == "schedule" and not q.group]
    (verdict,) = [v for v in report.of("schedule") if not v.group]
    assert sum(q.instances for q in mine) == verdict.instances == 1
    (query,) = mine
    assert (query.name, query.formulas, query.expected) == ("schedule.smt2", 2, UNSAT)
    assert re.search(r"^; statement +no sizes, stage and items let", query.text, re.M)
    (found,) = cross_check(mine, report).replays
    assert found.outcome == AGREE and found.proof and found.proof.holes == 0


@pytest.mark.parametrize(("word", "order", "ahead"), [("pp", "1f1b", "p - 2 - i"), ("pp_gpipe", "gpipe", "m - 2"),
                                                      ("pp", "1f1b", "p - i")])
def test_an_order_whose_stages_wait_for_each_other_is_sat(word: str, order: str, ahead: str, anew: None,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schedule.AHEAD, order, ahead)  # type: ignore[arg-type]
    report, queries = queries_of(word)
    assert report.verdict == UNDECIDED
    (query,) = (q for q in queries if q.name == "schedule.smt2")
    assert (query.expected, query.verdict) == (SAT, UNDECIDED)
    assert [a.status for a in cross_check([query], report).replays[0].answers.values()] == [SAT, SAT]


def test_a_deadlock_on_which_the_prover_lies_is_caught(anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schedule.AHEAD, "1f1b", "p - 2 - i")  # type: ignore[arg-type]
    monkeypatch.setattr(schedule.PROCESS, "ask", lambda *_, **__: Reply(UNSAT))
    schedule.acyclic(Pipeline("pp"))
    monkeypatch.undo()
    report, queries = queries_of("pp")
    assert report.of("schedule")[0].verdict == PROVED
    found = cross_check([q for q in queries if q.name == "schedule.smt2"], report)
    assert (found.count(DISAGREE), found.code) == (1, 1)


def test_a_prover_that_lies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "ask", lambda *_: Reply(UNSAT))
    report, queries = queries_of("dp", set="*.grad_sum.reduce[dp]", op="sum")
    assert report.of("gradient")[0].verdict == PROVED
    found = cross_check(queries, report)
    assert {r.name for r in found.replays if r.outcome == DISAGREE} >= {"gradient.layer.weight.smt2"}
    assert found.code == 1


def test_reads_that_are_wrongly_called_right_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correct, "always_right", lambda _: True)
    report, queries = queries_of("zero1", drop="publish.*.publish[dp]")
    assert report.of("invariant")[0].verdict == PROVED
    found = cross_check(queries, report)
    assert "invariant.layer.weight.smt2" in {r.name for r in found.replays if r.outcome == DISAGREE}


@pytest.mark.parametrize("word", [REFUTED_FILE, "proofs/refuted/dp_sum_for_mean.toml"])
def test_a_refutation_is_confirmed_at_the_pinned_sizes(word: str) -> None:
    report, queries = queries_of(word)
    assert report.verdict == REFUTED
    refuted = [q for q in queries if q.verdict == REFUTED]
    assert {q.expected for q in refuted} == {SAT}
    for query in refuted:
        assert query.pinned["dp"] == 2
        assert re.search(r"^; pinned +dp = 2, m = \d+$", query.text, re.MULTILINE)
        assert "(assert (= dp 2))" in query.text
    found = cross_check(queries, report)
    assert (found.code, found.count(AGREE)) == (0, len(found.replays))


def test_an_event_without_a_rule_leaves_nothing_to_ask() -> None:
    report, queries = queries_of("dp", set="update.norm.all_reduce*", to="R")
    assert report.verdict == UNDECIDED
    found = cross_check(queries, report)
    assert found.undecided > 0
    assert found.code == 3


def test_what_a_run_alone_refutes_has_a_file_that_asks_nothing(placealg: Run, tmp_path: Path) -> None:
    file, folder = tmp_path / "by_run.toml", tmp_path / "proof"
    file.write_text('base = "dp"\n[[edit]]\nset = "publish.*"\nfrom = "weight"\n', encoding="utf-8")
    assert placealg("prove", str(file), "--certificate", str(folder)).code == 1
    text = (folder / "invariant.smt2").read_text(encoding="utf-8")
    assert "; verdict      REFUTED, BOUNDED, cannot be followed, only run: " in text and "(check-sat)" not in text
    found = placealg("recheck", str(folder))
    assert "0 disagree" in found.out and "claims" not in found.out and (found.code, found.err) == (3, "")


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        done = subprocess.run([sys.executable, "-m", "placealg", "prove", "zero3*tp_sp", "--model", "llama-3-70b",
                               "--certificate", str(tmp_path / seed)], cwd=ROOT, check=False, capture_output=True,
                              env={**os.environ, "PYTHONHASHSEED": seed})
        assert done.returncode == 0
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / seed).iterdir()} for seed in ("1", "2"))
    assert len(one) > 20
    assert one == two


def test_a_header_says_what_the_query_is(written: Path) -> None:
    text = (written / "gradient.layer.weight.smt2").read_text()
    for title in ("obligation", "group", "strategy", "assuming", "statement", "expected", "verdict", "instances",
                  "answered by", "symbols"):
        assert re.search(rf"^; {title} +\S", text, re.MULTILINE)
    assert "; expected     unsat\n" in text
    assert "|c@dp|" in text
    assert not re.search(r"\(/ |\bdiv\b|\bmod\b|\(and\)|\(assert and\)", text)
    facts = (written / "schedule.layer.weight.smt2").read_text()
    assert "; fact         5 times: a collective without" in facts
    assert "(check-sat)" not in facts


def test_a_name_cannot_speak_to_the_solver() -> None:
    step = read_case("dp", None, []).step
    report, _ = judge(step)
    named = type(report)(**{f: getattr(report, f) for f in report.__slots__ if f != "strategy"},
                         strategy="x\n(assert false)\r\u2028(exit)")
    text = next(q for q in certificate(step, named) if q.obligation == "gradient").text
    assert "\n(assert false)" not in text
    assert len(text.splitlines()) == text.count("\n")


def test_the_report_names_its_certificate(placealg: Run, tmp_path: Path) -> None:
    folder = tmp_path / "certificate"
    words = ["prove", "zero3", "--certificate", str(folder), "--format", "json", "--no-timing"]
    said = json.loads(placealg(*words).out)["certificate"]
    assert said["path"] == str(folder)
    assert said["files"] == len(list(folder.iterdir()))
    assert len(said["sha256"]) == 64
    assert json.loads(placealg(*words).out)["certificate"] == said
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}
    assert (manifest["strategy"], manifest["model"], manifest["verdict"]) == ("zero3", "abstract", "PROVED")
    assert 'name = "zero3"' in manifest["strategy_text"]
    assert placealg("prove", str(folder / "program.toml")).code == 0


def test_recheck_reports_every_file_and_the_total(placealg: Run, written: Path) -> None:
    got = placealg("recheck", str(written))
    assert got.code == 0
    assert "14 of 17 files ask something: 14 agree, 0 disagree, 0 without an answer" in got.out
    assert "3 of 17 files ask nothing: what they say holds by how the program is built" in got.out
    assert got.out.count("✓ ") == 15
    found = json.loads(placealg("recheck", str(written), "--format", "json").out)
    assert found["totals"] == {"asked": 14, "agree": 14, "disagree": 0, "no_answer": 0, "settled": 3, "undecided": 0}
    assert {f["z3"] for f in found["files"]} == {"sat", "unsat"} == {f["cvc5"] for f in found["files"]}


EDITS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gradient.layer.weight.smt2", lambda content: content.replace(b"dp", b"dq", 1)),
    ("program.toml", lambda content: content + b"\n"),
    ("lemma.sum_of_owner.step.smt2", lambda content: content[:-1]),
    ("manifest.json", lambda content: content.replace(b"PROVED", b"PROVEN", 1)),
    ("manifest.json", lambda content: content + b" "),
    ("manifest.json", lambda content: content[:100]),
]


@pytest.mark.parametrize(("name", "change"), EDITS, ids=[f"{k}-{n}" for k, (n, _) in enumerate(EDITS)])
def test_an_edited_file_is_reported_by_name(name: str, change: Callable[[bytes], bytes], placealg: Run,
                                            written: Path) -> None:
    path = written / name
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    got = placealg("recheck", str(written))
    assert (got.code, got.err) == (1, "")
    assert re.search(rf"✗ {re.escape(name)} +was edited", got.out)
    assert json.loads(placealg("recheck", str(written), "--format", "json").out)["edited"]


def test_files_that_are_missing_or_added_are_reported(placealg: Run, written: Path) -> None:
    (written / "view.layer.weight.smt2").unlink()
    (written / "more.smt2").write_text("(check-sat)")
    got = placealg("recheck", str(written))
    assert got.code == 1
    assert re.search(r"view.layer.weight.smt2 +is missing", got.out)
    assert re.search(r"more.smt2 +was added", got.out)


def test_a_manifest_cannot_claim_more_than_its_queries(tmp_path: Path) -> None:
    report, queries = queries_of(REFUTED_FILE)
    boast = type(report)(**{f: getattr(report, f) for f in report.__slots__ if f != "verdict"}, verdict=PROVED)
    for name, text in files_of(queries, boast, {}, "").items():
        (tmp_path / name).write_text(text)
    assert recheck(str(tmp_path)).edited == {"manifest.json": "claims PROVED, which its queries do not show"}


def sealed_anew(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A folder whose manifest was changed, and sealed again with the hashes of its files."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["digest"]
    change(manifest)
    manifest["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest["files"]}
    (folder / "manifest.json").write_text(_sealed(manifest))


def test_a_manifest_that_is_sealed_anew_has_another_hash(placealg: Run, written: Path) -> None:
    """No folder can show by itself who sealed it: `prove` prints what `recheck --sha256` holds against it."""
    told = re.findall(r"SHA-256 (\w{64})", placealg("recheck", str(written)).out)
    assert told == [hashlib.sha256((written / "manifest.json").read_bytes()).hexdigest()]
    assert json.loads(placealg("recheck", str(written), "--format", "json").out)["manifest_sha256"] == told[0]
    assert placealg("recheck", str(written), "--sha256", told[0].upper()).code == 0
    sealed_anew(written, lambda manifest: manifest.update(strategy_text=""))
    again = placealg("recheck", str(written))
    assert again.code == 0 and told[0] not in again.out
    held = placealg("recheck", str(written), "--sha256", told[0])
    assert held.code == 1 and re.search(r"✗ manifest.json +was edited: its SHA-256 is \w{64}", held.out)


@pytest.mark.parametrize("digest", ["", "ab12", "0" * 63, "0" * 65, "g" * 64, "0" * 64 + "\n"])
def test_a_malformed_hash_is_bad_input(digest: str, placealg: Run, written: Path) -> None:
    got = placealg("recheck", str(written), "--sha256", digest)
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
    assert "--sha256" in got.err and "64 hexadecimal digits" in got.err


SCHEDULE = "schedule.layer.weight.smt2"
GRADIENT, SUM = "gradient.layer.weight.smt2", "lemma.sum_of_owner.base.smt2"
QUESTION = "(assert (or |failure 1|"


def entry(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    """What a manifest says of a file."""
    found: dict[str, Any] = next(q for q in manifest["queries"] if q["file"] == name)
    return found


def replaced(folder: Path, name: str, old: str, new: str) -> None:
    """Change a file of a certificate."""
    before = (folder / name).read_text()
    assert old in before
    (folder / name).write_text(before.replace(old, new, 1))


def asks_nothing(folder: Path, name: str) -> None:
    """The question of a file is removed, and its header expects no answer."""
    head = (folder / name).read_text().partition("(set-logic")[0]
    (folder / name).write_text(re.sub(r"expected     unsat", "expected     no answer is expected", head))


def settled_by_fact(folder: Path, name: str, facts: int = 7) -> None:
    """The question of a file is removed, and its header says that facts hold in its place."""
    asks_nothing(folder, name)
    text = re.sub(r"(?m)^; instances .*$", f"; instances    {facts}: 0 behind the 0 formulas below, {facts} by how the "
                  "program is built" + f"\n; fact         {facts} times: it is right" * bool(facts),
                  (folder / name).read_text())
    (folder / name).write_text(text)


def everywhere(folder: Path, old: str, new: str) -> None:
    """Change the headers of all files of a certificate."""
    for path in folder.glob("*.smt2"):
        path.write_text(path.read_text().replace(old, new))


def without(folder: Path, chosen: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], None]:
    """A change of a manifest: files of queries are gone, and nothing speaks of them."""
    def change(manifest: dict[str, Any]) -> None:
        for query in filter(chosen, manifest["queries"]):
            (folder / query["file"]).unlink()
            del manifest["files"][query["file"]]
        manifest["queries"] = [q for q in manifest["queries"] if not chosen(q)]
    return change


def of_lemmas(query: dict[str, Any]) -> bool:
    return query["id"] == "lemma"


SEALED_ANEW: dict[str, tuple[Callable[[Path], None], Callable[[dict[str, Any]], None], str]] = {
    "false assumed": (lambda at: replaced(at, GRADIENT, QUESTION, f"(assert false)\n{QUESTION}"), lambda m: None,
                      f"{GRADIENT} +was edited: its premises contradict each other"),
    "false assumed in a lemma": (lambda at: replaced(at, SUM, "(assert |fail", "(assert false)\n(assert |fail"),
                                 lambda m: None, f"{SUM} +was edited: its premises contradict each other"),
    "false asserted last": (lambda at: replaced(at, GRADIENT, "(check-sat)", "(assert false)\n(check-sat)"),
                            lambda m: None, f"{GRADIENT} +was edited: it does not end by asking whether one of"),
    "a failure left out": (lambda at: replaced(at, GRADIENT, "(or |failure 1| ", "(or "), lambda m: None,
                           f"{GRADIENT} +was edited: it does not end by asking whether one of"),
    "two questions": (lambda at: replaced(at, GRADIENT, QUESTION, f"(check-sat)\n(assert true)\n{QUESTION}"),
                      lambda m: None, f"{GRADIENT} +was edited: it does not end by asking whether one of"),
    "a command of another kind": (lambda at: replaced(at, GRADIENT, QUESTION, f"(reset-assertions)\n{QUESTION}"),
                                  lambda m: None, f"{GRADIENT} +was edited: it holds the command reset-assertions"),
    "hypotheses emptied": (lambda at: None, lambda m: m.update(hypotheses=[]),
                           "its header has assuming 'equal_counts over"),
    "hypotheses and headers": (lambda at: replaced(at, GRADIENT, "equal_counts over {dp, microbatch}", "nothing"),
                               lambda m: None, "its header has assuming 'nothing"),
    "another strategy": (lambda at: None, lambda m: m.update(strategy="zero1"), "header has strategy 'zero3 on abs"),
    "another model": (lambda at: None, lambda m: m.update(model="gpt"), "header has strategy 'zero3 on abstract"),
    "another solver": (lambda at: None, lambda m: m.update(solver="z3 1.0"), "its header has answered by"),
    "another group": (lambda at: None, lambda m: entry(m, GRADIENT).update(group="head"), "its header has group"),
    "more instances": (lambda at: None, lambda m: entry(m, GRADIENT).update(instances=1),
                       "header has instances '1[^']"),
    "more facts": (lambda at: None, lambda m: entry(m, "schedule.layer.weight.smt2").update(facts={}),
                   "header has fact '5"),
    "a header that counts formulas": (lambda at: replaced(at, GRADIENT, "behind the ", "behind the 1"), lambda m: None,
                                      f"{GRADIENT} +was edited: its header counts 1[0-9]+ formulas where"),
    "a question removed": (lambda at: asks_nothing(at, GRADIENT), lambda m: entry(m, GRADIENT).update(
        asks=False, formulas=0, expected=""), f"{GRADIENT} +was edited: its header counts [0-9]+ formulas where 0 are"),
    "facts in its place": (lambda at: settled_by_fact(at, GRADIENT), lambda m: entry(m, GRADIENT).update(
        asks=False, formulas=0, expected="", instances=7, facts={"it is right": 7}),
        "'it is right' is no fact by which a program is built"),
    "a known fact in its place": (lambda at: settled_by_fact(at, GRADIENT, 0), lambda m: entry(m, GRADIENT).update(
        asks=False, formulas=0, expected="", instances=0), "it asks nothing, and gradient of a group"),
    "facts that do not add up": (lambda at: replaced(at, SCHEDULE, "instances    5: 0", "instances    6: 0"),
                                 lambda m: entry(m, SCHEDULE).update(instances=6),
                                 "its 6 instances are not the 0 behind formulas and the 5 facts"),
    "nothing left uncovered": (lambda at: None, lambda m: m.update(not_covered=[]), "has not_covered none"),
    "another model everywhere": (lambda at: everywhere(at, "zero3 on abstract", "zero3 on gpt2"),
                                 lambda m: m.update(model="gpt2"), "has model 'gpt2', its program 'abstract'"),
    "other hypotheses everywhere": (lambda at: everywhere(at, "equal_counts over {dp, microbatch}", "nothing"),
                                    lambda m: m.update(hypotheses=[h for h in m["hypotheses"] if "equal" not in h]),
                                    "its header has assuming|has hypotheses"),
    "fewer failures": (lambda at: None, lambda m: entry(m, GRADIENT).update(formulas=1), "does not end by asking"),
    "a pinned size": (lambda at: None, lambda m: entry(m, GRADIENT).update(pinned={"dp": 2}),
                      "its header has pinned ''"),
    "another answer": (lambda at: None, lambda m: entry(m, "vacuity.sizes-2.smt2").update(expected=""),
                       "which its queries do not show|header has expected 'sat'"),
    "another lemma": (lambda at: None, lambda m: entry(m, SUM).update(group="sum_of_constant"),
                      "its header has lemma 'sum_of_owner"),
    "a lemma of no name": (lambda at: None, lambda m: m.update(lemmas=m["lemmas"][1:]), "does not name the lemma"),
    "no file spoken of": (lambda at: None, lambda m: m.update(queries=[q for q in m["queries"] if q["file"] != SUM]),
                          "which its queries do not show"),
    "a file spoken of twice": (lambda at: None, lambda m: m["queries"].append(entry(m, SUM)), "queries do not show"),
    "no words": (lambda at: None, lambda m: m.pop("hypotheses"), "does not say what a manifest says"),
    "words of another kind": (lambda at: None, lambda m: entry(m, GRADIENT).update(facts=3), "does not say what"),
}


@pytest.mark.parametrize("what", SEALED_ANEW)
def test_edits_that_are_sealed_anew_are_reported(what: str, placealg: Run, written: Path) -> None:
    edits, change, says = SEALED_ANEW[what]
    edits(written)
    sealed_anew(written, change)
    got = placealg("recheck", str(written))
    assert (got.code, got.err) == (1, "") and "nothing was replayed" in got.out
    assert re.search(says, re.sub(r"\s+", " ", got.out).replace(" +", " "))


def test_lemmas_that_are_removed_are_reported(placealg: Run, written: Path) -> None:
    sealed_anew(written, without(written, lambda q: q["file"] == SUM))
    assert "has no base and step of the lemma sum_of_owner" in " ".join(placealg("recheck", str(written)).out.split())
    sealed_anew(written, without(written, of_lemmas))
    sealed_anew(written, lambda manifest: manifest.update(lemmas=[]))
    assert not list(written.glob("lemma.*"))
    got = placealg("recheck", str(written))
    assert got.code == 1 and "does not name the lemma sum_of_owner" in " ".join(got.out.split())


def test_premises_of_which_the_solver_does_not_know_are_open(placealg: Run, written: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_audit.SolverProcess, "ask_text", lambda *_: Reply(UNKNOWN, {}, "tired"))
    found, unknown = certificate_audit.contradictions([("a", UNSAT, "(assert x)"), ("b", SAT, "(assert x)")])
    assert (found, [(r.name, r.outcome) for r in unknown]) == ({}, [("a: its premises", NO_ANSWER)])
    monkeypatch.undo()
    monkeypatch.setattr("placealg.check.recheck.contradictions", lambda _: ({}, unknown))
    assert placealg("recheck", str(written)).code == 3


UNSEEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a premise narrowed": (lambda at: replaced(at, GRADIENT, "(assert (>= dp 1))", "(assert (>= dp 2))"), GRADIENT),
    "a failure that cannot be": (lambda at: (at / GRADIENT).write_text(re.sub(
        r"(\(define-fun \|failure 1\| \(\) Bool ).*", r"\1false)", (at / GRADIENT).read_text())), GRADIENT),
    "another program": (lambda at: replaced(at, "program.toml", 'op = "mean"', 'op = "sum"'), GRADIENT),
    "another strategy's text": (lambda at: None, "manifest.json"),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_proving_the_program_again_shows_edits(what: str, placealg: Run, written: Path) -> None:
    """What a folder that is sealed anew cannot show, its program does."""
    edits, name = UNSEEN[what]
    edits(written)
    sealed_anew(written, lambda m: m.update(strategy_text=m["strategy_text"] + " " * (name == "manifest.json")))
    assert placealg("recheck", str(written)).code == 0
    got = placealg("recheck", str(written), "--regenerate")
    assert got.code == 1 and re.search(rf"✗ {re.escape(name)} +is not what proving the program again", got.out)


def test_a_group_that_is_left_out_is_missing(placealg: Run, tmp_path: Path) -> None:
    folder = tmp_path / "certificate"
    assert placealg("prove", "dp", "--model", "gpt2", "--certificate", str(folder)).code == 0
    sealed_anew(folder, without(folder, lambda q: q["group"] == "head.weight"))
    got = placealg("recheck", str(folder))
    assert got.code == 1
    assert "was edited: it has no file on gradient of head.weight" in " ".join(got.out.split())
    sealed_anew(folder, lambda manifest: manifest.update(verdict=UNDECIDED, **{"class": None}))
    got = placealg("recheck", str(folder), "--regenerate")
    assert got.code == 1
    assert re.search(r"✗ gradient.head.weight.smt2 +is missing: proving the program again gives it", got.out)


def test_a_certificate_has_every_obligation_of_what_its_program_updates() -> None:
    """A group that is left out, an obligation of one, a size that was written out, and a program that is none."""
    program = "".join(f'[[event]]\npath = "update.{name}.update{more}"\n' for name, more in (
        ("step", ""), ("rng", "#2"), ("step.weight", ""), ("b.weight", "#2"), ("b.weight", "[tp]")))
    lemma = "dp: of degree 1 at most, written out at 3, 5, and at all below 3, where positions must coincide"

    def entries(sizes: Sequence[str] = ("",)) -> list[dict[str, str]]:
        return [{"file": f"{size}{name}.{group}.smt2", "id": name, "group": group} for size in sizes
                for name in PER_GROUP for group in ("step.weight", "b.weight")] + [
            {"file": f"{size}{name}.smt2", "id": name, "group": ""} for size in sizes for name in OF_OPS]

    def amiss(queries: list[dict[str, str]], *lemmas: str, verdict: str = PROVED, text: str = program) -> str:
        return certificate_audit.groups_amiss({"verdict": verdict, "lemmas": lemmas, "queries": queries}, text)

    listed = entries()
    assert amiss(listed) == ""
    for left_out in listed:
        said = amiss([q for q in listed if q != left_out])
        assert said == f"has no file on {left_out['id']} of {left_out['group'] or 'the whole step'}"
    written = entries(("dp-1.", "dp-2.", "dp-3.", "dp-5."))
    assert amiss(written, lemma) == ""
    for size in (1, 2, 3, 5):
        assert amiss([q for q in written if not q["file"].startswith(f"dp-{size}.")], lemma) == (
            f"has no file on forward of the whole step at dp-{size}")
    for none in ("x", "", "event = 1", 'event = ["path"]', "[[event]]\nverb = 1"):
        assert amiss(entries(), text=none) == "comes with a program that is none"
    assert amiss([], verdict=REFUTED) == amiss([], verdict=UNDECIDED) == ""


REGENERATED = [
    ["zero3"], ["hsdp*tp", "--model", "llama-3-70b", "--flash"], ["dp", "--engine", "cutoff"],
    [REFUTED_FILE], ["pp_interleaved"], ["proofs/torch/tp.toml", "--model", "gpt", "--parallel"],
    ["zero3[8]", "--set", "m=2"],
]


@pytest.mark.some(3)
@pytest.mark.parametrize("words", REGENERATED, ids=lambda words: words[0])
def test_a_certificate_holds_all_that_it_takes_to_prove_it_again(words: list[str], placealg: Run,
                                                                 tmp_path: Path) -> None:
    folder = tmp_path / "certificate"
    assert placealg("prove", *words, "--certificate", str(folder)).code == 0
    assert placealg("recheck", str(folder), "--regenerate").code == 0


def test_a_certificate_holds_its_model(placealg: Run, tmp_path: Path) -> None:
    config, folder = tmp_path / "mine.json", tmp_path / "certificate"
    text = (ROOT / "placealg/models/configs/gpt2.json").read_text()
    config.write_text(text)
    assert placealg("prove", "dp", "--model", str(config), "--certificate", str(folder)).code == 0
    config.unlink()
    assert (folder / "mine.json").read_text() == text
    assert placealg("prove", str(folder / "program.toml")).code == 0
    assert placealg("recheck", str(folder), "--regenerate").code == 0
    replaced(folder, "mine.json", '"n_layer": 12', '"n_layer": 24')
    assert re.search("mine.json +was edited", placealg("recheck", str(folder)).out)


@pytest.mark.parametrize(("change", "says"), [
    (lambda m: m.update(placealg="0.0.1"), "was made by placealg 0.0.1, and this is placealg"),
    (lambda m: m.update(made={}), "does not say with which engine and options it was made"),
    (lambda m: m.update(made={"engine": "belief", "options": {}}), "does not say with which engine and options"),
    (lambda m: m["made"].update(options={"colour": True}), "does not say with which engine and options"),
    (lambda m: m["made"].update(options={"flash": [1]}), "does not say with which engine and options"),
    (lambda m: m["made"].update(options={"flash": True}), "only a transformer has that choice"),
])
def test_what_cannot_be_proved_again_is_one_line(change: Any, says: str, placealg: Run, written: Path) -> None:
    sealed_anew(written, change)
    got = placealg("recheck", str(written), "--regenerate")
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1) and says in got.err


def test_a_model_whose_name_is_taken_stays_outside(placealg: Run, tmp_path: Path) -> None:
    config, folder = tmp_path / "manifest.json", tmp_path / "certificate"
    config.write_text((ROOT / "placealg/models/configs/gpt2.json").read_text())
    assert placealg("prove", "dp", "--model", str(config), "--certificate", str(folder)).code == 0
    assert placealg("recheck", str(folder)).code == 0
    got = placealg("recheck", str(folder), "--regenerate")
    assert (got.code, got.err.count("\n")) == (2, 1) and "manifest" in got.err


@pytest.mark.parametrize("name", [GRADIENT, "program.toml", "manifest.json"])
def test_a_link_is_no_file_of_a_certificate(name: str, placealg: Run, written: Path) -> None:
    kept = written.parent / "elsewhere"
    (written / name).rename(kept)
    (written / name).symlink_to(kept)
    got = placealg("recheck", str(written))
    assert got.code == 1 and re.search(rf"✗ {re.escape(name)} +was replaced by a link", got.out)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_no_file_of_a_certificate(placealg: Run, written: Path) -> None:
    (written / GRADIENT).unlink()
    os.mkfifo(written / GRADIENT)
    assert placealg("recheck", str(written)).code == 1


def test_a_lemma_says_that_it_is_of_no_strategy(written: Path) -> None:
    text = (written / SUM).read_text()
    assert re.search(r"^; strategy +none: the lemma is about sums", text, re.M)
    assert re.search(r"^; assuming +nothing but what is asserted", text, re.M)


def test_a_part_that_occurs_twice_is_written_once() -> None:
    _, queries = queries_of("zero1")
    assert not any(re.search(r"\((and|or)( \([^()]*\))*( \([^()]*\))\3[ )]", q.text) for q in queries)


def silence(manifest: dict[str, Any]) -> None:
    """Claim that there is nothing to ask."""
    for query in manifest["queries"]:
        query["asks"] = False


@pytest.mark.parametrize("change", [
    silence,
    lambda manifest: manifest.update(queries=[]),
    lambda manifest: manifest.update(queries=[], files={}, verdict="REFUTED"),
    lambda manifest: manifest.update(verdict="REFUTED"),
    lambda manifest: manifest.update(verdict="CERTAIN"),
    lambda manifest: manifest["queries"][0].update(file="elsewhere"),
])
def test_a_manifest_that_is_sealed_anew_asks_what_its_files_ask(change: Any, placealg: Run, written: Path) -> None:
    sealed_anew(written, change)
    got = placealg("recheck", str(written))
    assert got.code == 1 and re.search("which its queries do not show|was added", got.out)


@pytest.mark.parametrize(("change", "says"), [
    ({"class": 5}, "claims the class 5"), ({"class": "BOUNDED"}, "claims the class BOUNDED"),
    ({"class": None}, "claims the class None"), ({"placealg_certificate": 1}, "is of format 1; this version reads"),
])
def test_a_class_and_a_format_are_those_of_the_files(change: Any, says: str, placealg: Run, written: Path) -> None:
    sealed_anew(written, lambda manifest: manifest.update(change))
    got = placealg("recheck", str(written))
    assert got.code == 1 and re.search(rf"manifest\.json +.*{says}", got.out)


def test_a_text_that_is_sealed_anew_commands_no_solver(placealg: Run, written: Path, tmp_path: Path) -> None:
    """To a solver a text is a program, with a command that overwrites files."""
    precious = tmp_path / "precious"
    precious.write_text("data")
    text = (written / GRADIENT).read_text()
    for command in (f'(set-option :regular-output-channel "{precious}")', "(exit)", "(push 1)"):
        (written / GRADIENT).write_text(text.replace("(set-logic", f"{command}\n(set-logic", 1))
        sealed_anew(written, lambda manifest: None)
        got = placealg("recheck", str(written))
        assert got.code == 1 and f"it holds the command {command[1:].partition(' ')[0].rstrip(')')}" in got.out
    assert precious.read_text() == "data"


@pytest.mark.parametrize("word", [REFUTED_FILE, pytest.param("dp", marks=pytest.mark.slow)])
def test_a_certificate_of_the_second_engine_asks_at_every_size(word: str, placealg: Run, tmp_path: Path) -> None:
    folder = tmp_path / Path(word).stem
    got = placealg("prove", word, "--engine", "cutoff", "--certificate", str(folder), "--cross-check")
    assert got.code == 0
    assert re.search(r"queries +(\d+) of \d+ files ask something: \1 agree, 0 disagree, 0 without", got.out)
    sizes = {p.name.split(".")[0] for p in folder.glob("dp-*.gradient.layer.weight.smt2")}
    assert {"dp-2", "dp-3", "dp-5"} <= sizes
    text = (folder / "dp-5.gradient.layer.weight.smt2").read_text()
    assert "(assert (= dp 5))" in text
    assert word != "dp" or "; statement    at dp = 5 no other sizes, device" in text
    assert (folder / "lemma.cutoff.dp.smt2").is_file()
    assert placealg("recheck", str(folder)).code == 0


def test_an_older_certificate_is_replaced_whole(placealg: Run, written: Path) -> None:
    assert placealg("prove", "hsdp", "--certificate", str(written)).code == 0
    assert json.loads((written / "manifest.json").read_text())["strategy"] == "hsdp"
    assert [p.name for p in written.parent.iterdir()] == [written.name]
    assert placealg("recheck", str(written)).code == 0


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("step", ["write_bytes", "rename"])
def test_an_interruption_leaves_no_half_written_certificate(failure: Any, step: str, placealg: Run, written: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p.name: p.read_bytes() for p in written.iterdir()}
    real, calls = getattr(Path, step), [0]

    def fails(self: Path, *given: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise failure
        return real(self, *given)

    for folder in (written, written.parent / "fresh"):
        calls[0] = 0 if folder == written or step == "write_bytes" else 1
        monkeypatch.setattr(Path, step, fails)
        got = placealg("prove", "dp", "--certificate", str(folder))
        monkeypatch.undo()
        assert got.code == (130 if failure is KeyboardInterrupt else 2)
        assert got.err.count("\n") == 1
    assert [p.name for p in written.parent.iterdir()] == [written.name]
    assert {p.name: p.read_bytes() for p in written.iterdir()} == before


def test_bad_folders_are_one_line(placealg: Run, written: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("mine")
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "manifest.json").write_text('{"name": "an app"}')
    file = tmp_path / "file"
    file.write_text("")
    (written / "notes.txt").write_text("mine")
    for words in (["prove", "zero3", "--certificate", str(other)], ["prove", "zero3", "--certificate", str(strange)],
                  ["prove", "zero3", "--certificate", str(file)], ["prove", "zero3", "--certificate", str(written)],
                  ["prove", "zero3", "--certificate", str(tmp_path / "no" / "where")],
                  ["prove", "zero3", "dp", "--certificate", str(tmp_path / "two")],
                  ["recheck", str(other)], ["recheck", str(tmp_path / "nowhere")], ["recheck", str(file)], ["recheck"]):
        got = placealg(*words)
        assert (got.code, got.out, got.err.count("\n")) == (2, "", 1), words
        assert "Traceback" not in got.err
    assert (other / "precious.txt").read_text() == "mine"
    assert placealg("recheck", str(strange)).code == 1


NO_CVC5 = {
    "sys.modules['cvc5'] = None": "is not installed: pip install placealg[check]",
    "sys.modules['cvc5'] = types.ModuleType('cvc5')": "is not whole: its folder holds no module",
    "broken(ImportError('libcvc5.so:\\n no such file'))": "cannot be loaded: libcvc5.so: no such file",
    "broken(ModuleNotFoundError('No module named cvc5.base', name='cvc5.base'))": "is not whole: No module named",
    "broken(OSError('wrong ELF class'))": "cannot be loaded: wrong ELF class",
    "broken(AttributeError(''))": "cannot be loaded: AttributeError",
}
BROKEN = """
import sys, types
from importlib.abc import MetaPathFinder
def broken(error):
    class Finder(MetaPathFinder):
        def find_spec(self, name, *_):
            if name.split(".")[0] == "cvc5":
                raise error
    sys.meta_path.insert(0, Finder())
"""


@pytest.mark.some(3)
@pytest.mark.parametrize("how", NO_CVC5)
def test_a_second_solver_that_cannot_be_loaded_is_undecided(how: str, placealg: Run, written: Path) -> None:
    """One line, exit 3, nothing written and nothing printed."""
    target = written.parent / "other"
    for words in (["recheck", str(written)], ["prove", "zero3", "--cross-check", "--certificate", str(target)]):
        code = f"{BROKEN}\n{how}\nfrom placealg.cli import main\nprint(main({words}))"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.stdout == "3\n"
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"placealg: UNDECIDED: the second solver, cvc5, {NO_CVC5[how]}")
        assert not target.exists()


NO_Z3 = {
    "sys.modules['z3'] = None": "is not installed",
    "sys.modules['z3.z3core'] = None": "is not whole: import of z3.z3core halted; None in sys.modules",
    "import ctypes; ctypes.CDLL = broken": "cannot be loaded: libz3.so",
}


@needs_commands
@pytest.mark.some(2)
@pytest.mark.parametrize("words", [["prove", "zero3"], ["explain", "zero1"], ["museum"]], ids=lambda words: words[0])
@pytest.mark.parametrize("how", NO_Z3)
def test_a_missing_z3_is_undecided(words: list[str], how: str) -> None:
    code = ("import sys\ndef broken(*_, **__): raise OSError('no such file')\n"
            f"{how}\nfrom placealg.cli import main\nprint(main({words}))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip().splitlines()[-1] == "3"
    assert done.stderr.strip().splitlines()[-1].startswith(f"placealg: UNDECIDED: the solver, z3, {NO_Z3[how]}")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "says"), [
    (["diff", "zero1", "zero1"], "no difference in placements, program or costs\n"),
    (["diff", "zero1", REFUTED_FILE], "is UNDECIDED: lemma"),
    (["diff", "zero1", "zero1", "--format", "json"], '"undecided": [\n'),
    (["diff", "zero1", "zero1", "--format", "markdown"], "No difference in placements, program or costs."),
    (["museum", "megatron_1446"], "it is left open: lemma"), (["explain", "megatron_1446"], "left open"),
    (["prove", "zero1"], "is too old"),
])
def test_what_a_solver_leaves_open_is_no_answer(words: list[str], says: str) -> None:
    code = (f"import sys\nimport placealg.prover.evidence.solver as solver\nsolver.OLDEST_Z3 = (99, 0)\n"
            f"from placealg.cli import main\nsys.exit(main({words}))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert says in done.stdout and "is too old" in " ".join(done.stdout.split())


@needs_commands
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
@pytest.mark.parametrize("kilobytes", [90_000, 130_000, 180_000, 230_000])
def test_too_little_memory_is_undecided(kilobytes: int) -> None:
    """Below it the libraries would end the process, with exit codes that mean something else."""
    command = f"ulimit -v {kilobytes}; exec {sys.executable} -m placealg prove zero1"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"placealg: UNDECIDED: out of memory: the address space is limited to \d+ MiB, and 256 MiB are "
                        r"needed\n", done.stderr)


def test_no_memory_left_is_undecided(placealg: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("placealg.check.prove.judge", full)
    got = placealg("prove", "zero1")
    assert (got.code, got.err) == (3, "placealg: UNDECIDED: out of memory\n")


def test_an_empty_folder_takes_a_certificate(placealg: Run, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert placealg("prove", "dp", "--certificate", str(folder)).code == 0
    assert (folder / "manifest.json").is_file()


def test_cvc5_is_loaded_only_when_asked(tmp_path: Path) -> None:
    code = ("import sys\nfrom placealg.cli import main\nmain(['prove', 'dp', '--certificate', sys.argv[1]])\n"
            "print('cvc5' in sys.modules, file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "dp")], cwd=ROOT, capture_output=True, text=True,
                          check=True)
    assert done.stderr.splitlines() == ["False"]


def crashes(text: str, limit: int) -> Reply:
    os._exit(1)


def is_killed(text: str, limit: int) -> Reply:
    os.kill(os.getpid(), signal.SIGKILL)
    return Reply(UNSAT)


def segfaults(text: str, limit: int) -> Reply:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)
    return Reply(UNSAT)


def sleeps(text: str, limit: int) -> Reply:
    time.sleep(60)
    return Reply(UNSAT)


def is_full(text: str, limit: int) -> Reply:
    raise MemoryError


def lies(text: str, limit: int) -> Reply:
    return Reply(SAT)


@pytest.mark.parametrize(("second", "outcome", "reason", "code"), [
    (crashes, NO_ANSWER, "process ended with exit code 1", 3), (sleeps, NO_ANSWER, "stopped after", 3),
    (is_killed, NO_ANSWER, "process was killed by SIGKILL (out of memory?)", 3),
    (segfaults, NO_ANSWER, "process was killed by SIGSEGV", 3),
    (is_full, NO_ANSWER, "out of memory", 3), (lies, DISAGREE, "", 1), (z3_answer, AGREE, "", 0),
])
def test_a_solver_that_fails_is_no_answer(second: Solve, outcome: str, reason: str, code: int) -> None:
    text = "(declare-const x Int)(assert (> x x))(check-sat)"
    solvers = {"z3": z3_answer, "cvc5": second}
    found = Rechecked(tuple(replays([("a", UNSAT, text), ("b", UNSAT, text)], solvers, 0.5)), 0, 0, {}, {}, {})
    assert [r.outcome for r in found.replays] == [outcome] * 2
    assert all(reason in r.reason for r in found.replays)
    assert found.code == code


def test_a_solver_that_cannot_be_started_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(SolverProcess, "_start", full)
    answer = SolverProcess().ask_text("(check-sat)")
    assert (answer.status, answer.reason) == (UNKNOWN, "the solver's process cannot be started: Cannot allocate memory")


def test_an_old_solver_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "OLDEST_CVC5", (99, 0))
    monkeypatch.setattr("placealg.prover.evidence.solver.OLDEST_Z3", (99, 0))
    for solve in (replay.cvc5_answer, z3_answer):
        answer = solve("(check-sat)", 0)
        assert (answer.status, "too old" in answer.reason) == (UNKNOWN, True)


def test_cvc5_is_limited_by_its_work() -> None:
    cubes = "(declare-const x Int)(declare-const y Int)(assert (= (+ (* x x x) (* 2 y y y)) 4))(assert (> x (+ y 9)))"
    assert replay.cvc5_answer(f"(set-logic QF_NIA){cubes}(check-sat)", 2000) == Reply(UNKNOWN, {}, "it gave up")


def test_holes_of_a_proof_are_counted() -> None:
    class Step:
        def __init__(self, rule: str, *children: Step):
            self.rule, self.children = rule, children

        def getRule(self) -> str:  # noqa: N802
            return self.rule

        def getChildren(self) -> tuple[Step, ...]:  # noqa: N802
            return self.children

    class Rules:
        class ProofRule:
            TRUST, TRUST_THEORY_REWRITE = "trust", "rewrite"

    shared = Step("trust")
    assert replay._size(Rules, [Step("scope", shared, Step("cong", shared), Step("rewrite"))]) == Proof(4, 2)


def test_what_cvc5_cannot_read_is_no_answer() -> None:
    (found,) = replays([("a", UNSAT, "(assert and)(check-sat)")], {"cvc5": replay.cvc5_answer})
    assert found.outcome == NO_ANSWER
    assert "error" in found.reason


def test_outcomes() -> None:
    def outcome(expected: str, *said: str) -> str:
        return Replay("a", expected, {str(k): Reply(s) for k, s in enumerate(said)}).outcome

    assert outcome(UNSAT, UNSAT, UNSAT) == AGREE
    assert outcome(UNSAT, UNSAT, SAT) == outcome(UNSAT, UNKNOWN, SAT) == outcome("", SAT, UNSAT) == DISAGREE
    assert outcome(UNSAT, UNSAT, UNKNOWN) == outcome("", UNSAT, UNSAT) == NO_ANSWER


def test_a_folder_needs_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.json"):
        recheck(str(tmp_path))


@pytest.mark.parametrize("words", [
    ("zero3", "--world-size", "64"), ("zero3", "--precision", "fsdp2"),
    ("tests/importers/miniatures/deepspeed/auto.json", "--world-size", "8")])
def test_what_a_command_line_says_beside_the_model_stands_in_the_program(words: tuple[str, ...], tmp_path: Path,
                                                                         placealg: Run) -> None:
    folder = tmp_path / "certificate"
    assert placealg("prove", *words, "--certificate", str(folder)).code == 0
    assert placealg("recheck", str(folder), "--regenerate").code == 0
