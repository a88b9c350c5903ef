"""Figures of a search are those that `cost` prints at the same sizes, integer for integer."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from conftest import Outcome

from placealg.configurations.evaluate import asked, at, value_of
from placealg.configurations.layouts import Devices
from placealg.configurations.programs import Cache, Programs
from placealg.configurations.question import Question
from placealg.configurations.run import programs_for
from placealg.configurations.space import Space
from placealg.configurations.stages import stage_loads
from placealg.cost.figure import Figure
from placealg.cost.machines import machine
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model, shipped
from placealg.polynomial import Polynomial
from placealg.strategy.catalogue import catalogue

CASES = [("zero3*tp_sp", "gpt2"), ("zero1*pp_interleaved*recompute_selective", "gpt2"),
         ("hsdp*offload_optimizer", "gpt2")]
MORE = [(text, model) for entry in catalogue().values() for model in shipped()
        for text in (entry.name, f"zero1*{entry.name}*recompute_full")
        if text == entry.name or not ({"dp", "dp_shard"} & set(entry.axes) or "recompute" in entry.name)]


def question_of(strategy: str, model: str, rng: random.Random) -> Question:
    return Question(resolve_model(model), Devices(rng.choice((8, 16, 64)), 8, rng.choice((64, 96, 128))),
                    machine("h100"), Fraction(10**15), Space("one", FrozenMap({"all": (strategy,)})),
                    FrozenMap({"s": Fraction(rng.choice((256, 1024, 4096))), "g": Fraction(rng.choice((2, 4)))}))


def printed(said: dict[str, Any], path: str) -> Any:
    """What a document of `cost` has at a path; None where it has no such figure."""
    room, _, rest = path.partition(".")
    inside = said.get(room) or {}
    for key in (rest, *([rest.partition(".")[0], rest.partition(".")[2]] if "." in rest else [])):
        found = inside.get(key) if isinstance(inside, dict) else None
        if key == rest and isinstance(found, dict) and "value" in found:
            return found["value"]
        inside = found if found is not None else inside
    return inside.get("value") if isinstance(inside, dict) else None


def differing(programs: Programs, question: Question, sizes: dict[str, Fraction], cost: Callable[..., Outcome]
              ) -> tuple[list[str], int]:
    """The figures that differ from what `cost` prints, on every stage, and how many were compared."""
    wrong, count = [], 0
    words = [f"{n}={v}" for n, v in {**question.sizes, **sizes}.items()]
    loads = stage_loads(programs.strategy, question.units, sizes)
    for load in {0: loads[0], len(loads) - 1: loads[-1], len(loads) // 2: loads[len(loads) // 2]}.values():
        rank = ("--rank", f"stage={load.number}") if programs.strategy.pipeline_axis else ()
        told = cost("cost", programs.expression, "--model", question.model.name, "--set", *words, *rank, "--format",
                    "json")
        assert told.code == 0, told.err
        said = json.loads(told.out)
        for path in programs.of(load.kind).figures:
            if path.startswith(("memory.", "communication.", "compute.")) and (own := printed(said, path)) is not None:
                value = value_of(programs.of(load.kind), question, path, {**sizes, **load.values})
                count += 1
                if own != (int(value) if value.denominator == 1 else pytest.approx(float(value), rel=1e-12)):
                    wrong.append(f"{path}: {value}, printed {own}")
    return wrong, count


def check(strategy: str, model: str, cost: Callable[..., Outcome]) -> None:
    rng = random.Random(f"{strategy} {model}")
    question = question_of(strategy, model, rng)
    programs = programs_for(strategy, question, Cache(None, question.model))
    columns = asked(programs, question) if not programs.refused else {"b": ()}
    if not len(columns["b"]):
        pytest.skip(programs.refused or "no layout divides")
    wrong, count = differing(programs, question, at(columns, rng.randrange(len(columns["b"]))), cost)
    assert not wrong and count >= 8, wrong


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_figures_are_what_cost_prints(strategy: str, model: str, placealg: Callable[..., Outcome]) -> None:
    check(strategy, model, placealg)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "model"), MORE)
def test_figures_are_what_cost_prints_over_catalogue_and_models(strategy: str, model: str,
                                                                placealg: Callable[..., Outcome]) -> None:
    check(strategy, model, placealg)


def test_one_byte_more_is_noticed(placealg: Callable[..., Outcome]) -> None:
    question = question_of("zero1", "gpt2", random.Random(0))
    programs = programs_for("zero1", question, Cache(None, question.model))

    stage = programs.stages[0]
    figures = dict(stage.figures)
    peak = figures["memory.peak"]
    figures["memory.peak"] = Figure(tuple(piece + Polynomial.number(1) for piece in peak.pieces))
    wrong, _ = differing(replace(programs, stages=(replace(stage, exact=pickle.dumps(figures)),)), question,
                         at(asked(programs, question), 0), placealg)
    assert len(wrong) == 1 and wrong[0].startswith("memory.peak")
