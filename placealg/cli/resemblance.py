"""Which known bug a refuted program resembles: its likeness held against those of the museum."""

from __future__ import annotations

from placealg.cases.case import CommandCase, read_case
from placealg.check.resemblance import Likeness, likeness
from placealg.cli.bug_files import names, path_of
from placealg.prover.verdict import REFUTED, Report
from placealg.strategy.file import read_strategy_file


def resembled(case: CommandCase, report: Report) -> tuple[str, str] | None:
    """(name, what went wrong) of the known bug that a refuted program resembles; None where there is none.

    Of several that fail the same obligation by the same changes, that whose placement and groups are closest; the
    first by name of those equally close, and the first obligation for which there is any. A file that says which
    report it comes from is not held against others.
    """
    if report.verdict != REFUTED or case.source:
        return None
    for obligation in report.refuted():
        mine = likeness(obligation, case.strategy, case.step, case.base)
        alike = [(mine.closeness(theirs), name, what) for theirs, name, what in bugs(obligation)
                 if mine.resembles(theirs)] if mine.marks else []
        if alike:
            _, name, what = max(alike, key=lambda bug: bug[0])
            return name, what
    return None


def bugs(obligation: str) -> list[tuple[Likeness, str, str]]:
    """The bugs of the museum of which the file expects this obligation to fail, by name."""
    found = []
    for name in names():
        path = path_of(name)
        expect = read_strategy_file(path).expect
        if expect and expect.obligation == obligation:
            case = read_case(str(path), None, [])
            found.append((likeness(obligation, case.strategy, case.step, case.base), name, case.strategy.name))
    return found
