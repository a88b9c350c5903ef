"""Every file in proofs/ says what it expects, and it comes true."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from placealg.check.prove import prove
from placealg.cli.inputs import read_case
from placealg.cli.verdicts import disagreements
from placealg.strategy.file import read_strategy_file

NO_EDIT_REPAIRS = {
    "dp_mean_of_means_unequal_counts",  # the loss is declared so
    "tp_sp_dropout_keyed_by_the_shard",  # the keys are declared so
    "tp_data_not_sliced",  # several events are missing
}

FILES = sorted((ROOT / "proofs").glob("*/*.toml"))


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
@pytest.mark.parametrize("model", ["abstract", "gpt2"])
def test_a_file_holds_what_it_promises(path: Path, model: str) -> None:
    file = read_strategy_file(path)
    case = read_case(str(path), None if file.strategy.detailed or file.model else model, [])
    assert case.expect is not None
    report = prove(case.step, case.base)
    assert not disagreements(report, case.expect)
    found = report.counterexample
    assert (found is None) == (path.parent.name == "proved")
    if found is not None and case.expect.verdict == "refuted":
        assert case.base is not None
        assert path.stem in NO_EDIT_REPAIRS or found.repair is not None


def test_there_are_proofs_of_both_kinds() -> None:
    assert {p.parent.name for p in FILES} >= {"proved", "refuted"}
