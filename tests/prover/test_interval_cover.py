"""The lemmas on blocks hold for all sizes, and each fails for another way to cut."""

from __future__ import annotations

from typing import Any

import z3

from placealg.prover.interval_cover import blocks, lemmas, stages
from placealg.prover.verdict import PROVED, REFUTED


def test_every_lemma_is_proved() -> None:
    assert [lemma.verdict for lemma in lemmas()] == [PROVED] * 3


def rounded_down(length: Any, ranks: Any) -> tuple[Any, list[Any]]:
    each = z3.Int("each")
    return each, [each >= 1, each * ranks <= length, (each + 1) * ranks > length]


def test_blocks_that_are_rounded_down_leave_places_out() -> None:
    assert blocks(rounded_down).verdict == REFUTED


def alike(length: Any, ranks: Any, name: str, place: Any) -> tuple[Any, list[Any]]:
    end, each = z3.Ints(f"{name} each")
    return end, [end == each * place, each * ranks <= length, (each + 1) * ranks > length]


def test_stages_of_equally_many_layers_leave_the_last_out() -> None:
    assert stages(alike).verdict == REFUTED
