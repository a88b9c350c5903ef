"""Running the matrix: cell after cell, world after world, each compared as soon as its ranks have answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING

from placealg.measure.cells import Cell
from placealg.measure.compare import Result, compared
from placealg.measure.faults import Fault, mean
from placealg.measure.predict import predicted
from placealg.measure.ranks import run
from placealg.measure.requirement import need_torch

if TYPE_CHECKING:
    from placealg.measure.run import RankFindings


def check(cells: Sequence[Cell], limit: float, told: Callable[[str], None]) -> Iterator[Result]:
    """The results of the cells in order; `told` hears which is about to run. A cell may take `limit` seconds."""
    need_torch()
    real, fake = import_module("placealg.measure.run").measure, import_module("placealg.measure.fake").measure
    for world in dict.fromkeys(cell.world for cell in cells if not cell.fake):
        jobs = [cell for cell in cells if cell.world == world]
        yield from _results(jobs, run(world, real, jobs, limit), told)
    for cell in (cell for cell in cells if cell.fake):
        yield from _results([cell], run(1, fake, [cell], limit), told)


def _results(jobs: Sequence[Cell], answers: Generator[list[RankFindings]],
             told: Callable[[str], None]) -> Iterator[Result]:
    with closing(answers):
        for cell in jobs:
            told(str(cell))
            start = time.perf_counter()
            formulas = predicted(cell)
            found = next(answers)
            yield compared(cell, formulas[:len(found)], found, time.perf_counter() - start)


def check_faults(faults: Sequence[Fault], limit: float, told: Callable[[str], None]) -> Iterator[tuple[float, float]]:
    """(ratio of the first step, difference after three) of a real run of each fault, in order."""
    need_torch()
    measure = import_module("placealg.measure.faulty").measure
    for fault in faults:
        told(fault.name)
        for found in run(fault.cell.world, measure, [fault], limit):
            yield mean([ratio for ratio, _ in found]), max(difference for _, difference in found)
