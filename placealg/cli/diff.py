"""`placealg diff A B`: what differs between two strategies, in placements, program, costs and verdict."""

from __future__ import annotations

import multiprocessing
import os
from argparse import Namespace
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor

from placealg.cases.case import CommandCase
from placealg.check.prove import prove
from placealg.cli.output import print_json, print_lines, print_text, width
from placealg.cli.readers import of_device, read_cases
from placealg.cli.terminal import work_for_another
from placealg.cli.verdicts import DONE, FAILED, OPEN
from placealg.cost.costs import Costs
from placealg.cost.formula import Formula
from placealg.prover.verdict import Report
from placealg.render.compare import Compared
from placealg.render.diff import DiffSide, document, figures, held_against, markdown
from placealg.render.diff import diff as page


def diff(chosen: Namespace) -> int:
    """Print the differences; the exit code is 0 where there is none, else 1, as of Unix's diff, 3 without a verdict."""
    chosen.strategies = [chosen.a, chosen.b]
    one, two = read_cases(chosen, on_one=True)
    found = held_against(*_sides(one, two))
    if chosen.format == "json":
        print_json(document(found))
    elif chosen.format == "markdown":
        print_text(markdown(found))
    else:
        print_lines(page(found, width()))
    return OPEN if found.undecided else DONE if found.alike else FAILED


def _sides(one: CommandCase, two: CommandCase) -> tuple[DiffSide, DiffSide]:
    """Both sides; where there is a second core, a process of its own proves the second and has the first's figures.

    So each process works on both sides: one of them often takes twice as long as the other.
    """
    if (os.cpu_count() or 1) < 2 or multiprocessing.current_process().daemon:
        return _side(one, _proved(one), _figures(one)), _side(two, _proved(two), _figures(two))
    with ProcessPoolExecutor(1, initializer=work_for_another) as pool:
        report, formulas = pool.submit(_proved, two), pool.submit(_figures, one)
        own, others = _proved(one), _figures(two)
        return _side(one, own, formulas.result()), _side(two, report.result(), others)


def _side(case: CommandCase, report: Report, formulas: Mapping[str, Formula]) -> DiffSide:
    return DiffSide(case.strategy, case.step, formulas, case.sizes, report)


def _proved(case: CommandCase) -> Report:
    return prove(case.step, case.lead, case.edited)


def _figures(case: CommandCase) -> dict[str, Formula]:
    return figures(Compared(case.strategy.name, Costs(of_device(case, None)), case.sizes))
