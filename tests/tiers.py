"""Which cases run by default, chosen by measurement: `make tiers` measures them, and adds to slow_cases.txt.

`make tiers CASES=all` measures the slow ones, too, and writes the list anew.

A case costs the processor time of its process and of those it starts, so that a busy machine changes nothing. Of every
test function the cheapest cases stay in the default suite until they cost EACH seconds together, and every case below
LITTLE; a first case that costs more than ALONE is slow, too. What is slow still runs in the slow tier: nothing is left
out of both.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

LISTED = Path(__file__).with_name("slow_cases.txt")
MEASURED = Path(__file__).resolve().parent.parent / "build" / "case_seconds.tsv"
LITTLE, EACH, ALONE = 0.05, 0.3, 1.0
KEPT = ("tests/differential/test_random_", "tests/differential/test_differential.py",
        "tests/configurations/test_pruning.py::test_the_command_certifies_a_search_that_left_strategies_out",
        "tests/configurations/test_pruning.py::test_no_order_of_a_pipeline_waits_less_than_its_bound[pp_zb_v]",
        "tests/watch/test_conform.py::test_types_that_differ_are_entries_of_the_strategy",
        "tests/prover/kernel/",
        "tests/check/test_prove.py::test_holes_that_were_found_stay_closed",
        "tests/prover/evidence/test_certificate.py::test_a_prover_that_lies_is_caught",
        "tests/cli/test_cli.py::test_exit_codes", "tests/test_house.py", "tests/test_pages.py::test_a_session_is_as_it")
"""Beginnings of cases that stay whatever they cost: few random programs each, on which the engines must agree, what
readers see first, the verified checker, and cases that alone hold what they test, such as a fault that was on main."""
PLANTED = Path(__file__).with_name("mutation") / "planted_faults.txt"
"""Its cases stay, too: each is the one that catches a planted fault."""



def listed() -> frozenset[str]:
    """The node ids of the cases that measurement made slow."""
    lines = LISTED.read_text(encoding="utf-8").splitlines() if LISTED.exists() else []
    return frozenset(line.split(None, 1)[1] for line in lines if line and not line.startswith("#"))


def slow(measured: Iterable[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """(seconds, node id) of the cases that do not fit the default suite.

    >>> list(slow([(0.3, "a::t[1]"), (0.4, "a::t[2]"), (0.1, "a::t[3]"), (0.04, "a::t[4]"), (2.0, "a::u")]))
    [(0.3, 'a::t[1]'), (0.4, 'a::t[2]'), (2.0, 'a::u')]
    """
    planted = {line.split(None, 1)[1] for line in PLANTED.read_text(encoding="utf-8").splitlines() if line[:1] != "#"}
    functions: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for seconds, case in measured:
        if case not in planted and not case.startswith(KEPT):
            functions[case.partition("[")[0] if "::" in case else case].append((seconds, case))
    for cases in functions.values():
        spent = 0.0
        for number, (seconds, case) in enumerate(sorted(cases)):
            if seconds < LITTLE or spent + seconds <= EACH or (number == 0 and seconds <= ALONE):
                spent += seconds
            else:
                yield seconds, case


class Clock:
    """A pytest plugin that writes down what every case costs."""

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure one case with its fixtures."""
        before = processor_time()
        yield
        with MEASURED.open("a", encoding="utf-8") as out:
            out.write(f"{processor_time() - before:.3f}\t{item.nodeid}\n")


def processor_time() -> float:
    """Seconds of processor time of this process, of its ended children, and of those that still run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(_running())


def _running() -> Iterator[float]:
    tick = os.sysconf("SC_CLK_TCK")
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield (int(fields[11]) + int(fields[12])) / tick


def main() -> None:
    """Write slow_cases.txt from what was measured."""
    rows = [line.split("\t", 1) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
    measured = {case for _, case in rows}
    kept = [(float(line.split(None, 1)[0]), case) for line in LISTED.read_text(encoding="utf-8").splitlines()
            if line[:1] != "#" and (case := line.split(None, 1)[1]) not in measured]
    found = sorted([*slow((float(seconds), case) for seconds, case in rows), *kept], key=lambda row: row[1])
    LISTED.write_text("# Cases of the slow tier by measurement: processor seconds, node id. Written by `make tiers`.\n"
                      + "".join(f"{seconds:.1f} {case}\n" for seconds, case in found), encoding="utf-8")
    new = {case for _, case in found} & measured
    print(f"{len(new)} of {len(rows)} cases became slow; the others cost "
          f"{sum(float(s) for s, case in rows if case not in new):.0f} s of processor time")


if __name__ == "__main__":
    sys.exit(main())
