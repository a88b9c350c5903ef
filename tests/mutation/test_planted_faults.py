"""Every obligation, verb and derivation rule has a default case that fails when it is broken: planted_faults.txt."""

from __future__ import annotations

import pytest
from conftest import ROOT
from planted_faults import TABLE, caught, faults, table
from tiers import listed

NOTHING_THERE = "-"
"""What stands in the table for a fault that no case catches."""


def test_every_obligation_verb_and_rule_has_a_case() -> None:
    assert set(table()) == set(faults())
    assert [fault for fault, case in table().items() if case == NOTHING_THERE] == []


def test_the_cases_are_of_the_default_suite() -> None:
    assert not set(table().values()) & listed()
    for case in table().values():
        file, _, name = case.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), case


@pytest.mark.slow
@pytest.mark.parametrize("fault", table() if TABLE.exists() else ())
def test_a_planted_fault_is_caught(fault: str) -> None:
    assert caught(fault, [table()[fault]]) == table()[fault]
