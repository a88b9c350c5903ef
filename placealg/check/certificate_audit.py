"""What a certificate shows by itself of edits after which its manifest was written anew, with hashes that fit.

The header of every file says what the manifest says of it, its last assertion is that one of its failures happens, its
premises do not contradict each other, and the lemmas are there, as is every obligation of every group that the program
updates. A weaker premise or failure is none of these, nor is another program: only the manifest's own hash, or proving
the program again, shows it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from placealg.progress import each
from placealg.prover.evidence.certificate import LEMMA, POSTS, WHOLE_STEP, question
from placealg.prover.evidence.cutoff import WrittenOut
from placealg.prover.evidence.lemmas import LEMMAS
from placealg.prover.evidence.replay import Replay
from placealg.prover.evidence.smtlib import foreign, read_header
from placealg.prover.evidence.solver import SAT, UNSAT, SolverProcess
from placealg.prover.examine import OF_OPS, PER_GROUP
from placealg.prover.obligations import FACTS
from placealg.prover.verdict import ASKED_FOR, BOUNDED, CUTOFF, OBLIGATIONS, PARAMETRIC, PROVED, REFUTED, UNDECIDED
from placealg.strategy.vocabulary import BUFFERED

Entry = Mapping[str, Any]
"""What a manifest says of one file."""

CONTRADICTORY = "was edited: its premises contradict each other, so that anything follows from them"


def misfits(manifest: Entry, texts: Mapping[str, str]) -> dict[str, str]:
    """File -> what its text says otherwise than the manifest, for every file of which a manifest speaks."""
    found = dict[str, str]()
    for query in manifest["queries"]:
        text = texts[query["file"]]
        more = foreign(text)
        wrong = f"it holds {more}" if more else (
            next(_otherwise(manifest, query, read_header(text)), "") or _no_question(query, text)
            or _counts_amiss(query, text))
        if wrong:
            found[query["file"]] = f"was edited: {wrong}"
    return found


def _otherwise(manifest: Entry, query: Entry, header: Mapping[str, list[str]]) -> Iterator[str]:
    """Every row of a header that says something else than the manifest."""
    for title, wanted in _rows(manifest, query).items():
        said = header.get(title, [])
        if said != [" ".join(text.split()) for text in wanted]:
            yield f"its header has {title} '{'; '.join(said)}', the manifest '{'; '.join(wanted)}'"
    for title, first in _beginnings(manifest, query).items():
        text = " ".join(header.get(title, []))
        if not re.match(rf"{re.escape(first)}(?!\w)", text):
            yield f"its header has {title} '{text}', the manifest '{first}'"


def _rows(manifest: Entry, query: Entry) -> dict[str, list[str]]:
    """The rows of a file's header that follow from the manifest."""
    expected = {"expected": [query["expected"] or "no answer is expected"]}
    if query["id"] == LEMMA:
        return expected
    return {
        "obligation": [f"{query['id']}: {({**OBLIGATIONS, **ASKED_FOR}).get(query['id'], '')}"],
        "group": [query["group"] or WHOLE_STEP],
        "strategy": [f"{manifest['strategy']} on {manifest['model']}"],
        "assuming": list(manifest["hypotheses"]) or ["nothing"], **expected,
        "fact": [f"{count} times: {fact}" for fact, count in query["facts"].items()],
        "pinned": [", ".join(f"{name} = {size}" for name, size in query["pinned"].items())] if query["pinned"] else [],
    }


def _beginnings(manifest: Entry, query: Entry) -> dict[str, str]:
    """Header rows that need only start with the manifest's text."""
    found = {"answered by": manifest["solver"]}
    if query["id"] == LEMMA:
        return {**found, LEMMA: f"{query['group']}"}
    return {**found, "verdict": query["verdict"], "instances": str(query["instances"])}


def _no_question(query: Entry, text: str) -> str:
    """What is wrong with the question at the end of a file; "" where it asks whether one of its failures happens."""
    if not query["asks"]:
        return ""
    *lines, last, asks = text.rstrip("\n").split("\n")
    if (last, asks) != question(query["formulas"]) or asks in lines:
        return f"it does not end by asking whether one of {query['formulas']} failures happens"
    return ""


_BEHIND = re.compile(r"(\d+): (\d+) behind the (\d+) formulas below, (\d+) by how the program is built")
_ORDER = re.compile(r"1 behind the (\d+) formulas below")
_TOLD = re.compile(r"^; (\d+) instances?: ", re.MULTILINE)
_DEFINED = re.compile(r"^\(define-fun \|failure \d+\| ", re.MULTILINE)

ALWAYS_ASKED = ("gradient", "normalizer", "update", "invariant", "init")
"""What is always asked of a group that is updated: there is an update, a state behind it, and one before it."""


def _counts_amiss(query: Entry, text: str) -> str:
    """What is wrong with the numbers of instances, formulas and facts of a file; "" where they add up.

    A proof of what is always asked that asks nothing is wrong, too, as is a fact that no program is built by.
    """
    if query["id"] == LEMMA:
        return "" if query["asks"] else "it asks nothing"
    told = next(iter(read_header(text).get("instances", [])), "")
    there, facts = len(_DEFINED.findall(text)), sum(query["facts"].values())
    if there != query["formulas"]:
        return f"it has {there} formulas, the manifest says {query['formulas']}"
    if query["id"] == "vacuity" or (order := _ORDER.fullmatch(told)):
        counted = query["formulas"] if query["id"] == "vacuity" else int(order[1]) if order else 0
        return "" if there == counted > 0 else f"its header counts {counted} formulas where {there} are"
    found = _BEHIND.fullmatch(told)
    if not found:
        return "its header does not count its instances"
    instances, behind, formulas, built = map(int, found.groups())
    if formulas != there:
        return f"its header counts {formulas} formulas where {there} are"
    if built != facts or instances != behind + facts or behind != sum(map(int, _TOLD.findall(text))):
        return f"its {instances} instances are not the {behind} behind formulas and the {facts} facts"
    unknown = next((fact for fact in query["facts"] if fact not in FACTS.get(query["id"], ())), "")
    if unknown:
        return f"'{unknown}' is no fact by which a program is built"
    if query["verdict"] == PROVED and query["id"] in ALWAYS_ASKED and query["group"] and not there:
        return f"it asks nothing, and {query['id']} of a group that is updated is a question"
    return ""


def claims_amiss(manifest: Entry, program: Entry) -> str:
    """What a manifest says otherwise than the program beside it: names, hypotheses, what is not covered."""
    for key, told in program.items():
        if manifest.get(key) != told:
            return f"has {key} {_short(manifest.get(key))}, its program {_short(told)}"
    return ""


def _short(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else "; ".join(map(str, value or ())) or "none"


def class_amiss(manifest: Entry, texts: Mapping[str, str]) -> str:
    """What is wrong with the class that a manifest claims: it is the weakest of those in the headers of its files."""
    said = {text.split(", ")[1] for q in manifest["queries"] if q["id"] != LEMMA
            for text in read_header(texts[q["file"]]).get("verdict", []) if text.startswith(f"{PROVED}, ")}
    weakest = {REFUTED: BOUNDED, UNDECIDED: None}.get(manifest["verdict"], BOUNDED if BOUNDED in said else PARAMETRIC)
    wanted = (CUTOFF, BOUNDED) if manifest["verdict"] == PROVED and _unrolled(manifest) else (weakest,)
    return "" if manifest["class"] in wanted else f"claims the class {manifest['class']}, which its files do not show"


def _unrolled(manifest: Entry) -> set[str]:
    """The axes that the second engine wrote out."""
    return {written.axis for written in map(WrittenOut.read, manifest["lemmas"]) if written}


_UPDATE = re.compile(r"update\.(?!(?:step|rng)\.update)(.+)\.update(?:\[[^]]*\])?(?:#\d+)?")
"""The path of a group's update."""


def groups_amiss(manifest: Entry, program: str) -> str:
    """What a certificate of a proof lacks of the obligations of every group that its program updates, at every size."""
    if manifest["verdict"] != PROVED:
        return ""
    try:
        read = tomllib.loads(program)
        paths = [str(event["path"]) for event in read["event"]]
        waits = read.get("overlap", {}).get("messages", BUFFERED) != BUFFERED
    except (ValueError, KeyError, TypeError, AttributeError):
        return "comes with a program that is none"
    groups = dict.fromkeys(found[1] for path in paths if (found := _UPDATE.fullmatch(path)))
    files = {q["file"] for q in manifest["queries"]}
    for size in _sizes(manifest):
        there = {(q["id"], q["group"]) for q in manifest["queries"] if q["file"].startswith(size)}
        for group, wanted in (*product(("",), OF_OPS), *product(groups, PER_GROUP)):
            if (wanted, group) not in there:
                told = f"has no file on {wanted} of {group or WHOLE_STEP}"
                return told + (f" at {size.rstrip('.')}" if size else "")
        if waits and f"{size}schedule.{POSTS}.smt2" not in files:
            return "has no file on sends that wait for their receiver"
    return ""


def _sizes(manifest: Entry) -> list[str]:
    """What the names of files begin with: of each axis that was written out the sizes, else nothing."""
    told = filter(None, map(WrittenOut.read, manifest["lemmas"]))
    return [f"{written.axis}-{n}." for written in told for n in written.sizes] or [""]


def lemmas_amiss(manifest: Entry) -> str:
    """What is wrong with the lemmas of a certificate of a proof: one has no file, or is not named."""
    if manifest["verdict"] != PROVED:
        return ""
    parts = [q["group"] for q in manifest["queries"] if q["id"] == LEMMA]
    named = {text.partition(": ")[0] for text in manifest["lemmas"]}
    for lemma in LEMMAS:
        if lemma.name not in named and (lemma.name in parts or not lemma.verbs):
            return f"does not name the lemma {lemma.name}"
        if lemma.name in named and parts.count(lemma.name) != len(("base", "step")):
            return f"has no base and step of the lemma {lemma.name}"
    unrolled = _unrolled(manifest)
    if manifest.get("class") == CUTOFF and not unrolled:
        return "names no axis that was written out"
    if {f"cutoff.{axis}" for axis in unrolled} != {part for part in parts if part.startswith("cutoff.")}:
        return "has no lemma for each axis that was written out"
    return ""


def contradictions(queries: Iterable[tuple[str, str, str]]) -> tuple[dict[str, str], tuple[Replay, ...]]:
    """(files whose premises contradict each other, those of which the solver does not know), where unsat is expected.

    A query is its name, what is expected, and its text.
    """
    found, open_ = dict[str, str](), list[Replay]()
    process = SolverProcess()
    try:
        for name, expected, text in each(list(queries), lambda query: f"the premises of {query[0]}"):
            if expected != UNSAT:
                continue
            premises = text.rpartition("(assert ")[0]
            answer = process.ask_text(f"{premises}(check-sat)\n")
            if answer.status == UNSAT:
                found[name] = CONTRADICTORY
            elif answer.status != SAT:
                open_.append(Replay(f"{name}: its premises", SAT, {"z3": answer}))
    finally:
        process.stop()
    return found, tuple(open_)
