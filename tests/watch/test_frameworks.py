"""Training scripts of frameworks, unchanged, held against the strategies that they are asked to run: `make watch`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
FOLDER = Path(__file__).parent / "frameworks"
MODEL = str(FOLDER / "llama.json")
Run = Callable[..., Outcome]


def watched(placealg: Run, strategy: str, mesh: str, script: str, *words: str) -> tuple[int, dict[str, object]]:
    """(exit code, the verdict as JSON) of a script of frameworks/."""
    got = placealg("watch", strategy, "--mesh", mesh, "--model", MODEL, "--format", "json", "--no-timing", "--limit",
                   "500", "--", str(FOLDER / script), *words)
    assert not got.err, got.err
    return got.code, json.loads(got.out)


def test_the_trainer_of_transformers_is_data_parallel(placealg: Run) -> None:
    code, told = watched(placealg, "dp", "dp=2", "hf_trainer.py")
    assert code == 0 and told["verdict"] == "CONFORMS", told["differences"]
    assert "the loss divides by the tokens of all ranks" in told["read_off"]  # type: ignore[operator]


def test_fsdp_that_is_asked_for_on_a_cpu_is_data_parallel(placealg: Run) -> None:
    """accelerate runs DDP where FSDP2 was asked for and there is no accelerator; it says nothing of it."""
    code, told = watched(placealg, "zero3", "dp=2", "hf_trainer.py", "--fsdp")
    assert code == 1 and told["verdict"] == "DIFFERS"
    kinds = {d["kind"] for d in told["differences"]}  # type: ignore[attr-defined]
    assert {"whole or scattered", "gathers"} <= kinds
    code, told = watched(placealg, "dp", "dp=2", "hf_trainer.py", "--fsdp")
    assert code == 0 and told["verdict"] == "CONFORMS"
