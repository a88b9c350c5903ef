"""What of real runs needs no torch: the matrix, the predictions, how they are compared, what bad input gets."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, Outcome

import placealg as pa
from placealg.cases.case import read_case
from placealg.check.prove import prove
from placealg.cli.bug_files import path_of
from placealg.cli.torch import named_ratio
from placealg.cli.verdicts import disagreements
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.measure import ranks, requirement
from placealg.measure.cells import FAKE_WORLDS, ROWS, WORLDS, Cell, matrix
from placealg.measure.compare import compared
from placealg.measure.failure import RankError
from placealg.measure.faults import FAULTS
from placealg.measure.predict import PredictedBytes, predicted, residue, volume
from placealg.render.measured import markdown, ratio
from placealg.strategy.file import read_strategy_file, system_path

FILES = sorted((ROOT / "proofs" / "torch").glob("*.toml"))


@pytest.mark.some(3)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_pytorch_does_has_the_verdict_of_its_file(path: Path) -> None:
    case = read_case(str(path), None, [])
    assert case.expect is not None and case.source.startswith("torch 2.13.0")
    assert case.strategy.name.startswith(f"torch.{path.stem}") or path.stem in ("tp_recompute", "pp_fsdp2_step")
    assert not disagreements(prove(case.step), case.expect)


def test_modules_that_import_torch_and_the_recorder_are_left_out_of_collection_and_none_has_a_doctest() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    ignored = {path for word in options["addopts"] if word.startswith("--ignore")
               for path in ROOT.glob(word.partition("=")[2])}
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "placealg").rglob("*.py")}
    torch = {path for path, text in texts.items() if re.search(r"^(import|from) torch", text, re.MULTILINE)}
    assert torch == {path for path in ignored if path in torch or path.parent.name != "recorder"}
    assert not any(">>>" in texts[path] for path in ignored)


def test_every_file_runs_for_real() -> None:
    named = {row.strategy.removeprefix("torch.") for row in ROWS if row.strategy.startswith("torch.")}
    assert named == {path.stem for path in FILES}


def test_every_fault_has_a_file_that_is_refuted() -> None:
    for fault in FAULTS:
        expect = read_strategy_file(ROOT / "proofs" / "refuted" / f"{fault.file}.toml").expect
        assert expect is not None and expect.verdict == "refuted"


def test_every_fault_has_the_ratio_that_its_counterexample_names_or_the_words_that_say_it() -> None:
    for fault in FAULTS:
        report = prove(read_case(str(path_of(fault.file)), None, []).step)
        assert named_ratio(fault, report), fault
        assert bool(fault.words) == bool(fault.says), fault


def test_the_matrix_has_every_strategy_on_every_world_that_is_large_enough() -> None:
    cells = matrix()
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        worlds = {cell.world for cell in cells if cell.name == row.name and not cell.fake}
        assert worlds == {world for world in WORLDS if world >= 2 ** len(row.axes)}
    assert {cell.world for cell in cells if cell.fake} == set(FAKE_WORLDS)


def cell(name: str, world: int = 2) -> Cell:
    found, = matrix([name], [world])
    return found


def test_predictions_are_the_formulas_at_the_sizes_of_a_run() -> None:
    found = predicted(cell("zero3"))[0]
    psi = 7744
    assert found.held["parameters"] == 4 * psi // 2
    assert found.held["optimizer"] == 8 * psi // 2
    assert found.sent["forward", "all_gather", "dp"] == Fraction(2 * 4 * psi, 2)


def test_stages_of_a_pipeline_hold_and_send_different_bytes() -> None:
    first, last = predicted(cell("pp_1f1b"))
    assert first.held["activations"] > last.held["activations"]
    assert {phase for phase, _, _ in first.sent} == {"forward"} and {p for p, _, _ in last.sent} == {"backward"}


def found(held: dict[str, int], sent: dict[tuple[str, str, str], int], off: float = 0.0) -> Any:
    return SimpleNamespace(held=held, sent=sent, counters=0, scalars=0, differences={"sgd": off})


GOOD = {"parameters": 8, "gradients": 8, "optimizer": 16, "activations": 4}
GATHER = ("forward", "all_gather", "dp")
SAYS = PredictedBytes(FrozenMap({name: Fraction(n) for name, n in GOOD.items()}), FrozenMap({GATHER: Fraction(6)}))


def test_equal_bytes_agree() -> None:
    result = compared(cell("zero3"), (SAYS, SAYS), [found(GOOD, {GATHER: 6}), found(GOOD, {GATHER: 6})], 0.0)
    assert result.agrees and {row.ranks for row in result.rows} == {"all"}
    assert [ratio(row) for row in result.rows] == ["1"] * 5
    assert next(iter(markdown([result]))).startswith("| strategy |")


@pytest.mark.parametrize("other", [
    found({**GOOD, "gradients": 9}, {GATHER: 6}), found(GOOD, {}), found(GOOD, {GATHER: 7}),
    found(GOOD, {GATHER: 6, ("step", "broadcast", "dp"): 1}), found(GOOD, {GATHER: 6}, 1e-3),
    found(GOOD, {GATHER: 6}, float("nan")),
])
def test_one_byte_on_one_rank_does_not_agree(other: Any) -> None:
    assert not compared(cell("zero3"), (SAYS, SAYS), [found(GOOD, {GATHER: 6}), other], 0.0).agrees


def test_a_residue_is_exact_too() -> None:
    tp = cell("torch.tp")
    assert residue(tp, "gradients") == 4 * 32 * 16 // 2 and residue(tp, "parameters") == 0
    more = {**GOOD, "gradients": 8 + 1024, "activations": 8}
    assert compared(tp, (SAYS,), [found(more, {GATHER: 6})], 0.0).agrees
    assert not compared(tp, (SAYS,), [found({**more, "gradients": 8 + 1025}, {GATHER: 6})], 0.0).agrees


def test_unequal_parts_are_compared_by_their_mean() -> None:
    shared = replace(cell("zero3"), balanced=frozenset({"optimizer"}))
    pair = [found({**GOOD, "optimizer": n}, {GATHER: 6}) for n in (12, 20)]
    assert compared(shared, (SAYS, SAYS), pair, 0.0).agrees
    assert not compared(cell("zero3"), (SAYS, SAYS), pair, 0.0).agrees


def test_volumes_are_those_of_the_table() -> None:
    assert [volume(name, 120, 4) for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")] == [
        180, 90, 90, 90, 120]


def lacking(monkeypatch: pytest.MonkeyPatch, version: str = "") -> None:
    def ask(_name: str) -> str:
        if not version:
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(requirement.metadata, "version", ask)


@pytest.mark.parametrize(("version", "says"), [("", "torch is not installed"), ("2.9.1+cpu", "found torch 2.9.1")])
def test_another_torch_is_one_line(placealg: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, version: str,
                                   says: str) -> None:
    lacking(monkeypatch, version)
    for words in (("check-torch", "zero3"), ("check-torch", "--faults")):
        got = placealg(*words)
        assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
        assert says in got.err and "pip install torch==2.13.0" in got.err


def test_reading_a_layout_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch)
    with pytest.raises(InputError, match="torch is not installed"):
        pa.from_torch({}, None)


@pytest.mark.parametrize(("words", "says"), [
    (("zero33",), "did you mean 'zero3'"), (("--world", "3"), "valid: 2, 4, 8"), (("--limit", "0"), "no time"),
    (("--limit", "nan"), "no time"), (("--faults", "sum of mean"), "did you mean 'sum for mean'"),
])
def test_bad_words_are_one_line(placealg: Callable[..., Outcome], words: tuple[str, ...], says: str) -> None:
    got = placealg("check-torch", *words)
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1) and says in got.err


def test_more_ranks_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "NEEDED", 2**60)
    if not Path("/proc/meminfo").is_file():
        pytest.skip("the system does not tell how much memory is free")
    with pytest.raises(RankError, match="2 ranks need about"):
        next(ranks.run(2, lambda job, rank: None, [0], 1.0))


def test_a_real_system_is_a_strategy_by_name(placealg: Callable[..., Outcome]) -> None:
    ours = pa.communication(pa.zero1(), pa.abstract()).total
    case = read_case("torch.zero1", "abstract", [])
    from placealg.cost.communication import communication

    assert str(communication(case.step).total.ratio(ours).value(w=1, wire=1)) == "3/2"
    assert system_path("torch.fsdp2").is_file()
    assert "did you mean 'torch.fsdp2'" in placealg("cost", "torch.fsdp3").err


def test_the_command_line_imports_torch_for_real_runs_alone() -> None:
    code = ("import sys; from placealg.cli import main; main(['check-torch', 'nothing']); main(['list']); "
            "sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=False).returncode == 0
