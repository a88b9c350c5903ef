"""Which known bug a refuted program resembles: its likeness held against those of the museum."""

from __future__ import annotations

from placealg.check.resemblance import Likeness, likeness
from placealg.cli.bugs import names, path_of
from placealg.cli.inputs import Case, read_case
from placealg.prove.verdict import REFUTED, Report
from placealg.strategy.file import read_strategy_file


def resembled(case: Case, report: Report) -> tuple[str, str] | None:
    """(name, what went wrong) of the known bug that a refuted program resembles; None where there is none.

    Of several that fail the same obligation by the same changes, that whose placement and groups are closest; the
    first by name of those equally close. A file that says which report it comes from is not held against others.
    """
    if report.verdict != REFUTED or case.source:
        return None
    mine = likeness(report.refuted()[0], case.strategy, case.step, case.base)
    if not mine.marks:
        return None
    alike = [(theirs, name, what) for theirs, name, what in bugs(mine.obligation) if mine.resembles(theirs)]
    if not alike:
        return None
    _, name, what = max(alike, key=lambda bug: mine.closeness(bug[0]))
    return name, what


def bugs(obligation: str) -> list[tuple[Likeness, str, str]]:
    """The bugs of the museum that fail an obligation first, by name."""
    found = []
    for name in names():
        path = path_of(name)
        expect = read_strategy_file(path).expect
        if expect and expect.obligation == obligation:
            case = read_case(str(path), None, [])
            found.append((likeness(obligation, case.strategy, case.step, case.base), name, case.strategy.name))
    return found
