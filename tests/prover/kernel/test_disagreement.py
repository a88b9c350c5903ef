"""Kernel against prover on changed programs: the kernel accepts nothing that the prover does not prove.

What it rejects of what the prover proves, and what is outside of its language, is named by cause.
"""

from __future__ import annotations

import pytest
from kernel_mutants import AGAIN, BEGIN, END, KINDS, PAGE, STRATEGIES, Count, changes, counted, program, table, title

import placealg as pa
from placealg.check.kernel import Kernel, kernel
from placealg.step.program import Step


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_and_prover_agree_on_a_sample(kind: str) -> None:
    count = counted("hsdp", [m for k, m in enumerate(KINDS[kind](program("hsdp"))) if k % 9 == 4])
    assert count.judged
    assert count.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_kernel_and_prover_agree(strategy: str, kind: str) -> None:
    assert counted(strategy, changes(strategy, KINDS[kind], program(strategy))).wrong == []


def accepts(_: Step) -> Kernel:
    """A kernel that accepts everything."""
    return kernel(pa.derive("dp", "abstract"))


def test_a_kernel_that_accepts_everything_is_found() -> None:
    reduced = [m for m in KINDS["deletions"](program("dp")) if m.events[0].verb == "reduce"]
    assert counted("dp", reduced, accepts).wrong == [
        "dp: drop reduce.layer.weight.grad_sum.reduce[dp]: accepted, but REFUTED"]


def rejects(step: Step) -> Kernel:
    """A kernel that rejects everything that it can read."""
    found = kernel(step)
    return Kernel(None if found.accepted is None else False, found.reason)


def test_what_is_rejected_without_a_known_cause_is_found() -> None:
    doubled = [m for m in KINDS["doublings"](program("dp")) if m.events[0].path == "init.layer.weight.broadcast[dp]"]
    assert counted("dp", doubled, rejects).wrong == [
        "dp: double init.layer.weight.broadcast[dp]: not accepted, but PROVED"]


def test_the_page_has_the_programs_of_the_family_and_names_no_fault() -> None:
    _, _, text = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    told = text.partition(END)[0].strip().splitlines()
    family = [s for s in STRATEGIES if "|" not in s]
    assert [s for s in family if not any(line.startswith(f"| {title(s)} |") for line in told)] == []
    assert told[-1].endswith("no known cause: none.")


def test_the_table_counts_by_program_and_by_cause() -> None:
    count = Count(accepted=2, rejected=3)
    count.narrow[AGAIN] += 1
    count.outside["root = 1"] += 4
    lines = list(table({"dp": count}))
    assert "| `dp` | 10 | 2 | 3 | 1 | 4 |" in lines
    assert f"| {AGAIN} | 1 |" in lines
    assert "| root = 1 | 4 |" in lines
    assert lines[-1].endswith("no known cause: none.")
