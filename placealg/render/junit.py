"""Reports in JUnit's XML, which continuous integration shows: a suite per strategy, a case per obligation."""

from __future__ import annotations

from collections.abc import Iterable

from placealg.prover.verdict import PROVED, REFUTED, Report
from placealg.render.proof import counterexample, joined
from placealg.render.svg import element, written
from placealg.render.text_layout import plain

AS_EXPECTED = "as the file expects"
"""The case of a suite that holds a report against its file's `expect`."""

_WIDTH = 100


def junit(reports: Iterable[tuple[Report, str, list[str]]], timing: bool = True) -> str:
    """A document of suites; of each report also the verdict that its file expects, or "", and how it came otherwise.

    An obligation fails where it is refuted, and is an error where it is undecided, unless the file expects that very
    verdict. A disagreement with the file fails a case of its own.
    """
    suites = [_suite(report, expected, wrong, timing) for report, expected, wrong in reports]
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + element("testsuites", "\n", *suites, name="placealg prove") + "\n"


def _suite(report: Report, expected: str, wrong: list[str], timing: bool) -> str:
    cases, failures, errors = [], 0, 0
    for identifier, statement in report.statements.items():
        found = report.of(identifier)
        verdict, _ = joined(found)
        says = "\n".join(dict.fromkeys(v.reason for v in found if v.verdict == verdict and v.reason))
        known = [v.seconds for v in found if v.seconds is not None]
        outcome = ""
        if verdict == REFUTED and expected != "refuted":
            failures += 1
            outcome = _outcome("failure", says.partition("\n")[0] or f"not so: {statement}",
                               f"{says}\n\n{_told(report, identifier)}")
        elif verdict not in (PROVED, REFUTED) and expected != "undecided":
            errors += 1
            outcome = _outcome("error", f"{verdict}: {statement}", says)
        cases.append(_case(report, identifier, f"{sum(known):.3f}" if timing and known else "", outcome))
    if expected:
        failures += bool(wrong)
        cases.append(_case(report, AS_EXPECTED, "", _outcome("failure", "; ".join(wrong), "\n".join(wrong))
                           if wrong else ""))
    return element("testsuite", "\n", *cases, name=f"{report.strategy} on {report.model}", tests=len(cases),
                   failures=failures, errors=errors, skipped=0) + "\n"


def _case(report: Report, name: str, time: str, outcome: str) -> str:
    parts = (outcome,) if outcome else ()
    return element("testcase", *parts, classname=report.strategy, name=name, time=time) + "\n"


def _outcome(kind: str, message: str, text: str) -> str:
    return element(kind, written(text.strip()), message=message)


def _told(report: Report, identifier: str) -> str:
    """The counterexample, at the obligation that it refutes."""
    found = report.counterexample
    if found is None or found.obligation != identifier:
        return ""
    return "\n".join(plain(text).rstrip() for text in counterexample(found, _WIDTH))
