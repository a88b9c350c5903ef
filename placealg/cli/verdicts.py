"""Exit codes: how a report ends a command, and whether it came as its file expects."""

from __future__ import annotations

from collections.abc import Iterable

from placealg.errors import InputError
from placealg.prover.verdict import PROVED, UNDECIDED, Report
from placealg.strategy.file import Expect

DONE, FAILED, BAD_INPUT, OPEN = 0, 1, 2, 3
_FIRST = (BAD_INPUT, FAILED, OPEN, DONE)


def exit_code(report: Report, expect: Expect | None) -> int:
    """0 proved or as expected, 1 refuted or not as expected, 3 undecided where that is not expected."""
    if expect is None:
        return {PROVED: DONE, UNDECIDED: OPEN}.get(report.verdict, FAILED)
    if report.verdict == UNDECIDED and expect.verdict != "undecided":
        return OPEN
    return FAILED if disagreements(report, expect) else DONE


def of_several(codes: Iterable[int]) -> int:
    """The exit code of several strategies: the first of 2, 1, 3, 0 that occurs."""
    seen = set(codes)
    return next((code for code in _FIRST if code in seen), DONE)


def disagreements(report: Report, expect: Expect) -> list[str]:
    """What the file expects and the report does not say, as `expected A, got B`.

    Obligation, group and ratio are those of the counterexample, which tells what is refuted first.
    """
    found = report.counterexample
    mass, first, group = (found.mass, found.obligation, found.group) if found else (None, "", "")
    pairs: list[tuple[str, str, str, bool]] = [
        ("verdict", expect.verdict, report.verdict.lower(), expect.verdict == report.verdict.lower()),
        ("obligation", expect.obligation, first, expect.obligation == first),
        ("group", expect.group, group, expect.group == group),
        ("class", expect.cls, report.cls or "none", expect.cls == report.cls),
        ("ratio", expect.ratio, mass or "none", same_ratio(expect.ratio, mass)),
    ]
    return [f"expected {name} {want}, got {got or 'none'}" for name, want, got, same in pairs if want and not same]


def same_ratio(want: str, got: str | None) -> bool:
    """Whether two ratios are one function of the sizes.

    >>> same_ratio("1/tp", "2/(2*tp)"), same_ratio("dp", None)
    (True, False)
    """
    if not want or got is None or want == got:
        return bool(want) and want == got
    from placealg.cost.formula import Formula

    try:
        return bool(Formula.parse(want, "1") == Formula.parse(got, "1"))
    except InputError:
        return want == got
