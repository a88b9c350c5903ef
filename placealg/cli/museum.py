"""`placealg museum`, and `placealg explain` of a bug: real bugs as strategy files, each proved wrong and told."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from placealg.cases.case import read_case
from placealg.check.masked_sizes import hidden
from placealg.check.prove import prove
from placealg.cli.bug_files import comment, names, path_of
from placealg.cli.output import print_json, print_lines, print_text, width
from placealg.cli.verdicts import FAILED, OPEN, disagreements, exit_code, of_several
from placealg.cli.worker_pool import together
from placealg.progress import each
from placealg.prover.verdict import UNDECIDED
from placealg.render.museum import Exhibit, markdown, story
from placealg.render.museum import museum as page
from placealg.strategy.file import Expect


def exhibit(path: Path, repair: bool = False) -> Exhibit:
    """A bug examined: proved wrong, and run where it hides; `repair` looks for an edit that mends it, too."""
    start = time.perf_counter()
    case = read_case(str(path), None, [])
    report = prove(case.step, case.lead if repair else None, case.edited)
    runs = tuple((masked, hidden(case.step, masked)) for masked in case.masked)
    expect = case.expect or Expect("refuted")
    open_ = [f"it is left open: {report.why_undecided}"] if report.verdict == UNDECIDED else []
    wrong = [*disagreements(report, expect), *open_,
             *(f"shows at {masked}: {outcome.difference}" for masked, outcome in runs if not outcome.equal)]
    return Exhibit(path.stem, comment(path), case.source, case.strategy, case.step, case.base, expect, report, runs,
                   tuple(wrong), time.perf_counter() - start)


FEW = 4
"""So many bugs are examined one after the other, more on all processors at once."""


def examined(paths: list[Path]) -> list[Exhibit]:
    """The bugs of these files, in order."""
    if len(paths) <= FEW:
        return [exhibit(path) for path in each(paths, lambda path: path.stem)]
    return together(exhibit, paths, "bugs")


def code_of(exhibits: Iterable[Exhibit]) -> int:
    """The exit code: 0 if everything came as the files expect."""
    return of_several(OPEN if (code := exit_code(e.report, e.expect)) == OPEN else FAILED if e.wrong else code
                      for e in exhibits)


def museum(chosen: Namespace) -> int:
    """`placealg museum [NAME...]`."""
    exhibits = examined([path_of(name) for name in chosen.names or names()])
    if chosen.format == "json":
        print_json({"version": 1, "bugs": [e.to_json(not chosen.no_timing) for e in exhibits]})
    elif chosen.format == "markdown":
        print_text("\n".join(markdown(exhibits)) + "\n")
    else:
        print_lines(page(exhibits, width(), not chosen.no_timing))
    return code_of(exhibits)


def explain(chosen: Namespace) -> int:
    """`placealg explain NAME` of a bug."""
    found = exhibit(path_of(chosen.name), repair=True)
    if chosen.format == "json":
        print_json({"version": 1, **found.to_json(timing=False)})
    else:
        print_lines(story(found, width()))
    return code_of([found])
