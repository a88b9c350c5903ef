"""Every file in proofs/ says what it expects, and it comes true; those of the museum are in test_museum.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.cli.verdicts import disagreements
from placealg.strategy.file import read_strategy_file

NO_EDIT_REPAIRS = {
    "dp_mean_of_means_unequal_counts",  # the loss is declared so
    "router_loss_of_own_tokens",  # so is the divisor of its term
    "pp_waits_in_a_circle",  # so is the order of its pipeline
    "tp_bias_on_every_rank",  # several events are changed
}

FILES = [path for path in sorted((ROOT / "proofs").glob("*/*.toml")) if not read_strategy_file(path).source]


def runs() -> list[tuple[Path, str | None]]:
    """Each file on its own model, and on two models of units where it names none and needs no ops."""
    found: list[tuple[Path, str | None]] = []
    for path in FILES:
        file = read_strategy_file(path)
        found += [(path, None)] if file.strategy.detailed or file.model else [(path, "abstract"), (path, "gpt2")]
    return found


@pytest.mark.some(3)
@pytest.mark.parametrize(("path", "model"), runs(), ids=lambda x: getattr(x, "stem", x))
def test_a_file_holds_what_it_promises(path: Path, model: str | None) -> None:
    case = read_case(str(path), model, [])
    assert case.expect is not None
    report = prove(case.step, case.base)
    assert not disagreements(report, case.expect)
    found = report.counterexample
    assert (found is None) == (path.parent.name == "proved")
    if found is not None and case.expect.verdict == "refuted":
        assert (path.stem in NO_EDIT_REPAIRS) == (found.repair is None)
        assert found.got != found.want


def test_there_are_proofs_of_both_kinds() -> None:
    assert {p.parent.name for p in FILES} >= {"proved", "refuted"}
