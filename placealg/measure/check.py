"""Running the matrix: cell after cell, world after world, each compared as soon as its ranks have answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from placealg.measure.cells import Cell
from placealg.measure.compare import Result, compared
from placealg.measure.faults import Fault, mean
from placealg.measure.predict import predicted
from placealg.measure.ranks import run
from placealg.measure.requirement import need_torch


def check(cells: Sequence[Cell], limit: float, told: Callable[[str], None]) -> Iterator[Result]:
    """The results of the cells in order; `told` hears which is about to run. A cell may take `limit` seconds."""
    need_torch()
    measure = import_module("placealg.measure.run").measure
    for world in dict.fromkeys(cell.world for cell in cells):
        jobs = [cell for cell in cells if cell.world == world]
        answers = run(world, measure, jobs, limit)
        for cell in jobs:
            told(str(cell))
            start = time.perf_counter()
            formulas = predicted(cell)
            yield compared(cell, formulas, next(answers), time.perf_counter() - start)
        answers.close()


def check_faults(faults: Sequence[Fault], limit: float, told: Callable[[str], None]) -> Iterator[tuple[float, float]]:
    """(ratio of the first step, difference after three) of a real run of each fault, in order."""
    need_torch()
    measure = import_module("placealg.measure.faulty").measure
    for fault in faults:
        told(fault.name)
        for found in run(fault.cell.world, measure, [fault], limit):
            yield mean([ratio for ratio, _ in found]), max(difference for _, difference in found)
