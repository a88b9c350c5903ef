"""`prove --format junit`: counts that agree with the exit code, failures that tell counterexamples, escaped names."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Outcome

import placealg as pa
from placealg.prover.verdict import NOT_CHECKED, OBLIGATIONS, UNDECIDED
from placealg.render.junit import AS_EXPECTED, junit

REFUTED = 'base = "zero1"\n{}[[edit]]\ndrop = "publish.*"\n'


def counts(document: str) -> tuple[int, int, int]:
    suites = list(ET.fromstring(document.encode()).iter("testsuite"))
    for suite in suites:
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
        for kind in ("failure", "error"):
            assert int(suite.attrib[f"{kind}s"]) == len(suite.findall(f"testcase/{kind}"))
    return tuple(sum(int(s.attrib[k]) for s in suites) for k in ("tests", "failures", "errors"))  # type: ignore[return-value]


@pytest.mark.parametrize(("expect", "code", "failures", "told"), [
    ("", 1, 1, True), ('expect = "refuted"\n', 0, 0, False), ('expect = "proved"\n', 1, 2, True),
    ('expect = { verdict = "refuted", obligation = "gradient" }\n', 1, 1, False),
])
def test_failures_are_what_the_exit_code_says(expect: str, code: int, failures: int, told: bool,
                                              placealg: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(REFUTED.format(expect))
    got = placealg("prove", "zero1", str(path), "--format", "junit", "--no-timing")
    assert got.code == code
    assert counts(got.out) == (2 * len(OBLIGATIONS) + bool(expect), failures, 0)
    assert ("reads a stale or undefined copy" in got.out) == told
    assert (AS_EXPECTED in got.out) == bool(expect)


def test_what_is_undecided_or_was_not_checked_is_an_error() -> None:
    report = pa.prove(pa.dp(), pa.abstract())
    first, second, *rest = report.obligations
    left_open = replace(report, strategy="<a> & b", verdict=UNDECIDED, obligations=(
        replace(first, verdict=UNDECIDED, reason="gave up"), replace(second, verdict=NOT_CHECKED), *rest))
    document = junit([(left_open, "", [])])
    assert counts(document) == (len(OBLIGATIONS), 0, 2)
    assert next(ET.fromstring(document.encode()).iter("testcase")).attrib["classname"] == "<a> & b"
    assert float(ET.fromstring(document.encode()).findall(".//testcase[@name='gradient']")[0].attrib["time"]) >= 0
    assert counts(junit([(left_open, "undecided", [])])) == (len(OBLIGATIONS) + 1, 0, 0)
