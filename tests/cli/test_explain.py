"""`placealg explain`: everything that has a name is explained, by sentences, a statement, an example, a source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from conftest import ROOT, run_placealg

from placealg.cli.bug_files import names as bugs
from placealg.cli.examples import names, program
from placealg.cli.explanations import NO_PROGRAM, UNREFUTED, _lemmas, cheap, explain, explanations
from placealg.cli.glosses import HYPOTHESES, Explained
from placealg.cli.key_explanations import FIELD_SAYS, GRAMMAR
from placealg.cost.machines import machines
from placealg.cost.memory_hypotheses import LEAST
from placealg.cost.times import HYPOTHESES as TIMES
from placealg.cost.times import PARAMETERS
from placealg.placement import KINDS, MODES, REDISTRIBUTIONS
from placealg.prover.evidence.cutoff import LEMMA
from placealg.prover.evidence.lemmas import LEMMAS
from placealg.prover.verdict import ASKED_FOR, OBLIGATIONS
from placealg.step.edit import ACTIONS
from placealg.step.event_fields import FIELDS, VALUES
from placealg.step.order import ORDERING
from placealg.step.program import Step
from placealg.step.verbs import VERBS
from placealg.strategy.catalogue import catalogue
from placealg.strategy.file import read_strategy_file
from placealg.strategy.options import SCHEMA


@cache
def every() -> tuple[Explained, ...]:
    """All that is explained: said once, where a test asks."""
    return tuple(explanations())


FULL = ("mode", "redistribution", "rule", "obligation", "strategy", "hypothesis", "theorem", "lemma", "verb",
        "value type")


def programs() -> dict[str, Step]:
    return {name: program(name) for name in names()}


def rules() -> Iterator[str]:
    """The names of the rules that the rooms write: every `Rule("NAME", ...)` in their source."""
    for path in (ROOT / "placealg" / "step").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Rule" and node.args \
                    and isinstance(node.args[0], ast.Constant) and node.args[0].value:
                yield str(node.args[0].value)


def coq_theorems() -> Iterator[str]:
    for path in (ROOT / "proofs" / "coq").rglob("*.v"):
        yield from re.findall(r"^Theorem (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)


TABLES = {
    "mode": lambda: [row.mode for row in MODES],
    "redistribution": lambda: [f"{row.source}→{row.target}" for row in REDISTRIBUTIONS],
    "rule": lambda: set(rules()) | {e.rule.name for step in programs().values() for e in step.events},
    "obligation": lambda: {*OBLIGATIONS, *ASKED_FOR},
    "strategy": lambda: [n for e in catalogue().values() for n in (e.name, *e.aliases)],
    "hypothesis": lambda: {*HYPOTHESES, *LEAST},
    "hypothesis of time": lambda: {*TIMES} - {*LEAST},
    "machine": machines,
    "parameter of the estimate": lambda: PARAMETERS,
    "theorem": lambda: {*coq_theorems(), "forward and backward", "gradient and state"},
    "lemma": lambda: {*(lemma.name for lemma in LEMMAS), LEMMA.partition(":")[0]},
    "verb": lambda: {*VERBS, *ORDERING},
    "value of a program": lambda: VALUES,
    "value type": lambda: [str(kind) for kind in KINDS],
}


@pytest.mark.parametrize("kind", TABLES)
def test_no_name_of_a_table_is_missing(kind: str) -> None:
    explained = [e.name for e in every() if e.kind == kind]
    assert len(explained) == len(set(explained))
    assert set(TABLES[kind]()) == set(explained)


@pytest.mark.parametrize("kind", FULL)
def test_an_explanation_is_whole(kind: str) -> None:
    of_kind = [e for e in every() if e.kind == kind]
    assert of_kind
    for found in of_kind:
        assert len(found.sentences) == 3, found.name
        assert all(text.endswith(".") and text == " ".join(text.split()) for text in found.sentences), found.name
        assert found.example and found.source and (found.statement or found.kind == "verb"), found.name
        assert found.kind in ("redistribution", "verb") or found.example != NO_PROGRAM, found.name


def test_every_other_explanation_has_its_sentences() -> None:
    assert all(1 <= len(e.sentences) <= 4 for e in every())


def test_every_example_that_is_an_event_is_one() -> None:
    derived = programs()
    told = [e.example.rpartition(" of ") for e in every() if e.kind in ("verb", "redistribution", "rule", "value type")]
    events = [(path, name) for path, _, name in told if name in derived]
    assert len(events) > 40
    for path, name in events:
        assert path in {event.path for event in derived[name].events}


def test_every_bug_that_stands_as_an_example_is_refuted_by_its_obligation() -> None:
    for found in (e for e in every() if e.kind == "obligation"):
        if found.example == UNREFUTED.get(found.name):
            assert not [b for b in bugs() if read_strategy_file(ROOT / "proofs" / "refuted" / f"{b}.toml").expect
                        .obligation == found.name]
            continue
        name = found.example.partition(":")[0]
        expect = read_strategy_file(ROOT / "proofs" / "refuted" / f"{name}.toml").expect
        assert expect is not None and expect.obligation == found.name


def test_files_that_are_named_are_there() -> None:
    for found in every():
        for path in re.findall(r"\b(?:placealg|proofs)/[\w/]+\.\w+", f"{found.source} {found.example}"):
            assert (ROOT / path).is_file(), f"{found.name}: {path}"


@pytest.mark.parametrize(("said", "name"), [
    ("P->S", "[P]→[S]"), ("[S]->[R]", "[S]→[R]"), ("P→I", "[P]→[I]"), ("Gradient and State", "gradient and state"),
    ("CUTOFF", "cutoff"), ("gi_sc_iff_equal", "GI_SC_iff_equal")])
def test_names_are_found_as_people_write_them(said: str, name: str) -> None:
    got = run_placealg("explain", said)
    assert (got.code, got.out.split("\n")[0].rpartition("  ")[0]) == (0, name)


def test_every_word_of_a_report_is_explained() -> None:
    said = run_placealg("prove", "zero3").out
    headings = re.findall(r"^  ([a-z][a-z ]*[a-z])  +\S", said.partition("assuming")[2], re.MULTILINE)
    told = {e.name for e in every() if e.kind == "word of a report"}
    assert {*headings, "assuming"} <= told and len(headings) >= 4
    assert {"PROVED", "REFUTED", "UNDECIDED", "PARAMETRIC", "BOUNDED"} <= told


def test_a_word_derives_no_more_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a symbol no program is derived, of a strategy its own, of a verb or a rule those up to one that has it."""
    derived: list[str] = []
    monkeypatch.setattr("placealg.cli.explanations.program", lambda name: derived.append(name) or program(name))
    monkeypatch.setattr("placealg.cli.examples.program", lambda name: derived.append(name) or program(name))
    for word, most in (("act", 0), ("h100", 0), ("zero3", 1), ("reduce", 1), ("offload", 40), ("pipeline", 5)):
        derived.clear()
        assert explain(word)
        assert len(set(derived)) <= most, (word, derived)
    cheap_, lemmas = ({e.name.lower() for e in room} for room in (cheap(lambda _: False), _lemmas()))
    assert not cheap_ & lemmas


def test_a_close_name_is_offered() -> None:
    got = run_placealg("explain", "move_sond")
    assert (got.code, got.out) == (2, "") and "did you mean 'move_sound'" in got.err


def test_every_key_and_field_of_a_file_is_explained() -> None:
    named = {e.name for e in every()}
    assert named >= {*FIELDS, *ACTIONS, "expect", "masked", "ratio", "obligation"}
    assert named >= {key for keys in SCHEMA.values() for key in keys if key != "*"}
    assert set(FIELD_SAYS) == set(FIELDS) and set(GRAMMAR) <= set(FIELDS)
    assert any("not covered" in s for e in every() if e.name == "prefetch" for s in e.sentences)
