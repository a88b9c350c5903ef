"""Defaults of torchtitan that moved: the loss of a step, and which code takes context parallelism."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from random import Random

import pytest

from placealg.errors import InputError
from placealg.importers.read import read, reading_of
from placealg.importers.reading import Options, Reading

HERE = Path(__file__).parent / "miniatures"
JOB = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
[parallelism]
data_parallel_shard_degree = 4
{}
"""


def job(more: str = "", when: str = "") -> Reading:
    return reading_of(JOB.format(more), "job.toml", Options(versions={"torchtitan": when} if when else {}))


def test_the_loss_is_that_of_the_date() -> None:
    """A token mean from 2026-01-25 on, each rank's mean before; the last TOML is of after."""
    assert job().strategy.loss()["preset"] == "token_mean"
    moved, random = date(2026, 1, 25), Random("dates")
    for days in (-1, 0, *(random.randint(-700, 200) for _ in range(20))):
        day = moved + timedelta(days=days)
        want = "token_mean" if day >= moved else "mean_of_means"
        assert job(when=day.isoformat()).strategy.loss()["preset"] == want, day


def test_keys_of_a_year_say_when_a_file_is_from() -> None:
    """Degrees in [training] or [experimental] are of 2024, unless --framework says another date."""
    old = HERE / "torchtitan" / "of_2024.toml"
    assert read(old).strategy.loss()["preset"] == "mean_of_means"
    assert read(old, versions={"torchtitan": "2026-02"}).strategy.loss()["preset"] == "token_mean"


@pytest.mark.parametrize(("word", "cp", "when", "says"), [
    ("spmd_types", 2, "", ""), ("partial_dtensor", 1, "", ""), ("full_dtensor", 1, "", ""), ("default", 2, "", ""),
    ("partial_dtensor", 2, "2026-08-18", ""), ("partial_dtensor", 2, "2026-08-19", "spmd_types takes both"),
    ("partial_dtensor", 2, "", "partial_dtensor with context parallelism, which torchtitan refuses"),
    ("partial_dtensors", 1, "", "did you mean 'partial_dtensor'")])
def test_what_each_backend_allows(word: str, cp: int, when: str, says: str) -> None:
    text = f'spmd_backend = "{word}"\ncontext_parallel_degree = {cp}'
    if says:
        with pytest.raises(InputError, match=says):
            job(text, when)
    else:
        assert job(text, when).strategy.mesh.sizes().get("cp", 1) == cp


def test_full_dtensor_with_context_parallelism_is_told() -> None:
    reading = job('spmd_backend = "full_dtensor"\ncontext_parallel_degree = 2')
    assert any("FlexAttention alone" in item.text for item in reading.unsaid)
