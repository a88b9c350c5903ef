"""Places of stages: their names are those that users write, and each is found again by its name."""

from __future__ import annotations

import pytest

import placealg as pa
from placealg.cost.expressions import EXPRESSIONS
from placealg.cost.stage import THE_ONE, locate, on_stage, stage_of
from placealg.errors import InputError
from placealg.polynomial import SUMS
from placealg.step.pipeline import ONE_STAGE
from placealg.step.place import FIRST_STAGE, LAST_STAGE, MIDDLE, PREDICTING, At, Place

PROGRAM = pa.derive(pa.parse_strategy("zero1*pp"), pa.gpt())


@pytest.mark.parametrize(("word", "ranks", "place"), [
    ("first", None, FIRST_STAGE), ("0", None, FIRST_STAGE), ("7", None, At(7)), ("i", None, MIDDLE), ("i", 8, MIDDLE),
    ("last", None, LAST_STAGE), ("last", 8, At(7)), ("last", 1, FIRST_STAGE)])
def test_a_stage_is_found_by_its_name(word: str, ranks: int | None, place: Place) -> None:
    sizes = {"pp": ranks, "L": 16} if ranks else {}
    found = locate(PROGRAM.reference, word, sizes)
    assert found.place == place and locate(PROGRAM.reference, found.name, sizes) == found


def test_numbers_of_places_are_arithmetic_over_the_number_of_stages() -> None:
    assert [p.from_start for p in (At(3), MIDDLE, PREDICTING, LAST_STAGE)] == ["3", "i", "p - 2", "p - 1"]
    with pytest.raises(InputError, match="the last stage along pp is not known in numbers"):
        _ = on_stage(PROGRAM, "last").stage.number


def test_a_step_without_a_pipeline_is_at_the_one_stage_of_one() -> None:
    step = pa.derive(pa.zero3(), pa.gpt())
    stage = stage_of(step)
    assert stage is THE_ONE and step.reference.pipeline is ONE_STAGE
    assert stage.first and stage.last and not stage.several and stage.number == 0 and ONE_STAGE.ranks({"dp": 8}) == 1
    for text in (stage.in_flight, stage.outputs_in_flight, stage.held):
        assert stage.value(text, EXPRESSIONS) == 1 and str(stage.value(text, SUMS)) == "1"
    assert stage.value(stage.waiting, EXPRESSIONS) == 0 and not stage.value(stage.waiting, SUMS).terms
