"""Every reading of a miniature is PROVED, on its own model or on one that is given."""

from __future__ import annotations

from pathlib import Path

import pytest

import placealg as pa
from placealg.cases.case import default_model
from placealg.errors import InputError
from placealg.importers.model import model_of
from placealg.importers.read import read
from placealg.models.config import resolve_model

MINIATURES = Path(__file__).parent / "miniatures"
QUICK = ("deepspeed/auto.json", "nanotron/all_axes.yaml")
"""The two that are proved in every run; the others take longer."""

GIVEN = {"tp_plan/configuration_twice.py.txt": "deepseek-v3", "nanotron/forks.yaml": "gpt"}
"""Models of those whose own is not read, where that is no Llama."""

ALL = sorted(str(p.relative_to(MINIATURES)) for p in MINIATURES.rglob("*") if p.is_file() and p.suffix != ".golden"
             and "configs" not in p.parts)


def verdict(name: str) -> str:
    path = MINIATURES / name
    files = (str(path.parent / "zero2.json"),) if name.endswith("with_file.yaml") else ()
    try:
        reading = read(path, files=files)
    except InputError:
        return "refused"
    if reading.unread:
        reading = read(path, files=files, model=GIVEN.get(name, "llama-3-8b"))
    model = model_of(reading) or resolve_model(reading.stand_in or default_model(reading.strategy))
    return str(pa.prove(reading.strategy, model).verdict)


@pytest.mark.parametrize("name", QUICK)
def test_a_reading_is_proved(name: str) -> None:
    assert verdict(name) == "PROVED"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if name not in QUICK])
def test_every_reading_is_proved(name: str) -> None:
    assert verdict(name) in ("PROVED", "refused")
