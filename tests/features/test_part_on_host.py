"""A part of the optimizer state on the host: that of the parameters which a group names."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import compare
from conftest import ROOT

from placealg.check.prove import prove
from placealg.cli.inputs import read_case
from placealg.cost.communication import communication
from placealg.cost.memory import memory
from placealg.models.transformer import mlp
from placealg.prover.verdict import PROVED, REFUTED
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

BIASES = {"match": "*.bias", "optimizer": {"dp": "S+O"}}
SIZES = {"dp": 2, "h": 16, "f": 64, "L": 4, "V": 32, "m": 1, "w": 2, "g": 2, "o": 12, "wire": 2}


def step_of(**groups: Any) -> Step:
    return derive(overlay(parse_strategy("zero1"), {"groups": groups}), mlp())


def value(formula: Any) -> Any:
    return formula.value(**{n: v for n, v in SIZES.items() if n in formula.inputs})


def test_each_part_counts_where_it_rests() -> None:
    none, part, every = (step_of(), step_of(away=BIASES), step_of(away={**BIASES, "match": "*"}))
    moved = [value(memory(none).optimizer) - value(memory(step).optimizer) for step in (none, part, every)]
    assert 0 == moved[0] < moved[1] < moved[2] == value(memory(none).optimizer)
    host = [value(memory(step).host) for step in (none, part, every)]
    assert host == [m * (2 + 12) / 12 for m in moved]       # the gradient lies beside the state until its update
    links = [value(communication(step).host_link) for step in (none, part, every)]
    assert links == [m * (2 + 2) / 12 for m in moved]       # a gradient goes there, a weight comes back


def test_it_is_proved_and_what_does_not_come_back_is_missed() -> None:
    step = step_of(away=BIASES)
    assert compare(step).holds and prove(step).verdict == PROVED
    fetched = next(e.path for e in step.events if e.verb == "fetch")
    found = compare(edit(step, {"drop": fetched}))
    assert (found.report.verdict, found.complaint) == (REFUTED, "")


@pytest.mark.parametrize("file", ["proved/optimizer_partly_on_the_host", "refuted/optimizer_part_not_fetched"])
def test_the_files_come_out_as_they_say(file: str) -> None:
    case = read_case(str(ROOT / "proofs" / f"{file}.toml"), None, [])
    assert case.expect and prove(case.step).verdict.lower() == case.expect.verdict
