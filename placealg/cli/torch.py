"""`placealg check-torch`: real PyTorch runs held against the formulas."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.cli.bug_files import path_of
from placealg.cli.output import flush, print_json, print_lines, print_text, width
from placealg.cli.verdicts import DONE, FAILED, OPEN
from placealg.cost.formula import Formula
from placealg.errors import InputError
from placealg.measure.cells import FAKE_WORLDS, WORLDS, matrix
from placealg.measure.check import check, check_faults
from placealg.measure.compare import Result
from placealg.measure.failure import RankError
from placealg.measure.faults import Fault, FaultRun, sizes_of
from placealg.measure.faults import chosen as faults_of
from placealg.prover.verdict import Report
from placealg.render.measured import (
    closing,
    fault_json,
    faults_markdown,
    faults_page,
    markdown,
    page,
    to_json,
)

EVERY = (*WORLDS, *FAKE_WORLDS)


def check_torch(chosen: Namespace) -> int:
    """`placealg check-torch [NAME...]`."""
    if chosen.faults:
        return _faults(chosen)
    cells = matrix(chosen.strategies, _worlds(chosen.world))
    results: list[Result] = []
    try:
        for result in check(cells, _limit(chosen.limit), _progress):
            results.append(result)
            if chosen.format == "text":
                print_lines(page(result, width()))
                flush()
    except RankError as error:
        print(f"placealg: {error}", file=sys.stderr)
        return OPEN
    if chosen.format == "json":
        print_json({"version": 1, "results": [to_json(r) for r in results]})
    elif chosen.format == "markdown":
        print_text("\n".join(markdown(results)) + "\n")
    else:
        print_lines(closing(results, width()))
    return DONE if all(r.agrees for r in results) else FAILED


def _faults(chosen: Namespace) -> int:
    """`placealg check-torch --faults [NAME...]`: each fault in a real run, beside the refutation of its file."""
    try:
        shown = list(shown_faults(faults_of(chosen.strategies), _limit(chosen.limit), _progress))
    except RankError as error:
        print(f"placealg: {error}", file=sys.stderr)
        return OPEN
    if chosen.format == "json":
        print_json({"version": 1, "faults": [fault_json(s) for s in shown]})
    elif chosen.format == "markdown":
        print_text("\n".join(faults_markdown(shown)) + "\n")
    else:
        print_lines(faults_page(shown, width()))
    return DONE if all(s.agrees for s in shown) else FAILED


def shown_faults(faults: Sequence[Fault], limit: float, told: Callable[[str], None]) -> Iterator[FaultRun]:
    """What each fault did in a real run, and what the prover says of its file."""
    for fault, (ratio, difference) in zip(faults, check_faults(faults, limit, told), strict=True):
        report = prove(read_case(str(path_of(fault.file)), None, []).step)
        named = named_ratio(fault, report)
        expected = Formula.parse(named, "1").if_known(**_known(named, sizes_of(fault))) if named else None
        yield FaultRun(fault, str(report.verdict), named, float("nan") if expected is None else float(expected), ratio,
                    difference)


def named_ratio(fault: Fault, report: Report) -> str:
    """The ratio that a report's counterexample names of a fault: what its words say, or its mass; empty if neither."""
    found = report.counterexample
    if found is None:
        return ""
    if fault.words:
        return fault.says if fault.words in f"{found.explanation} {found.got}" else ""
    return found.mass or ""


def _known(named: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that a ratio mentions."""
    used = Formula.parse(named, "1").names
    return {name: size for name, size in sizes.items() if name in used}


def _progress(text: str) -> None:
    print(f"running {text}", file=sys.stderr, flush=True)


def _worlds(said: list[int]) -> tuple[int, ...]:
    for world in said:
        if world not in EVERY:
            raise InputError(f"{world} is no world", where="--world", valid=map(str, EVERY))
    return tuple(w for w in EVERY if w in said) or EVERY


def _limit(seconds: float) -> float:
    if not seconds > 0:
        raise InputError(f"{seconds:g} is no time", where="--limit")
    return seconds
