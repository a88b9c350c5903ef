"""What has a name is found by it anywhere: models, the files that come with placealg, words in common use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome, run_placealg

from placealg.models.config import SYMBOLIC, resolve_model, shipped
from placealg.models.family import families

Run = Callable[..., Outcome]


def test_models_lists_every_name_and_every_type(placealg: Run) -> None:
    page = {line.split()[0] for line in placealg("models").out.splitlines() if line.split()}
    assert page >= {*shipped(), *SYMBOLIC, *families()}
    document = json.loads(placealg("models", "--format", "json").out)
    assert {m["name"]: m["parameters"] for m in document["models"]} == {n: resolve_model(n).total() for n in shipped()}
    assert [f["model_type"] for f in document["families"]] == list(families())


@pytest.mark.parametrize("width", [80, 120])
def test_models_fits_its_width(width: int, placealg: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(map(len, placealg("models").out.splitlines())) <= width


def test_files_that_come_along_are_found_from_anywhere(placealg: Run, monkeypatch: pytest.MonkeyPatch,
                                                       tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for word in ("proofs/refuted/zero1_publish_dropped.toml", "areal_312"):
        assert "as the file expects: refuted" in run_placealg("prove", word, "--no-timing").out
    for word in ("proofs/refuted/zero1_publish.toml", "proofs/../proofs/refuted/areal_312.toml", "areal_313"):
        found = run_placealg("prove", word)
        assert (found.code, found.err.count("\n")) == (2, 1)
    (tmp_path / "areal_312").write_text('base = "zero1"\n', encoding="utf-8")
    assert "PROVED" in run_placealg("prove", "areal_312", "--no-timing").out


def test_what_trains_is_said(placealg: Run) -> None:
    page = placealg("cost", "zero3", "--model", "lora").out
    assert "trains" in page and "all other parameters are frozen" in page
    assert "trains layer.expert.low.weight, layer.expert.high.weight alone" in placealg("model", "lora").out
    assert "trains" not in placealg("cost", "zero3", "--model", "moe").out


def test_a_drawing_is_an_svg(placealg: Run, tmp_path: Path) -> None:
    found = placealg("show", "zero3", "--graph", str(tmp_path / "step.png"))
    assert (found.code, found.err.count("\n"), list(tmp_path.iterdir())) == (2, 1, [])
    assert "SVG" in found.err


def test_a_name_of_several_words_is_explained_in_full(placealg: Run) -> None:
    one, several = placealg("explain", "tensor parallel").out, placealg("explain", "tensor", "parallel").out
    assert one == several == placealg("explain", "tp").out
    assert "statement" in one
