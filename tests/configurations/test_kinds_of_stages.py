"""The stages of a pipeline by kind, held against the program of each numbered stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.configurations.evaluate import PEAK, at, exact, exact_need, needs, timed, value_of
from placealg.configurations.layouts import Devices, chunkings, layouts, placed
from placealg.configurations.programs import HELD, TIMED, compiled
from placealg.configurations.question import Question
from placealg.configurations.run import search
from placealg.configurations.space import Space
from placealg.configurations.stages import Units, heaviest, kinds, loads, stage_loads
from placealg.cost.machines import machine
from placealg.cost.stage import on_stage
from placealg.cost.sums import sums
from placealg.cost.times import PART, TERM, times
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.step.derive import derive
from placealg.step.pipeline import Pipeline, work
from placealg.strategy.expression import parse_strategy

CASES = (("gpt2", "zero1*pp", 8), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
    ("gpt2", "zero1*tp_sp*pp_interleaved", 16), ("deepseek-v3", "zero1*ep*pp", 64))))


def asked(model: str, devices: int) -> Question:
    return Question(resolve_model(model), Devices(devices, 4, 240), machine("h100"), Fraction(10**14),
                    Space("none", FrozenMap({"data": ("zero1",)})), FrozenMap({"s": Fraction(256)}))


@given(st.integers(1, 40), st.integers(0, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=60)
def test_loads_are_what_the_work_of_each_stage_has(layers: int, dense: int, ranks: int, chunks: int, groups: int
                                                   ) -> None:
    units: Units = (("dense", dense), ("layer", layers)) if dense else (("layer", layers),)
    listed = ["dense"] * dense + ["layer"] * layers
    parts, m = ranks * chunks, groups * ranks
    if parts > len(listed):
        return
    order = "interleaved" if chunks > 1 else "1f1b"
    ends = [len(listed) * k // parts for k in range(parts + 1)]
    every = loads(units, order, ranks, chunks, min(m, 4 * ranks))
    assert sum(sum(load.instances.values()) for load in every) == len(listed) and len(every) == ranks
    for i, load in enumerate(every):
        own = [listed[ends[k]:ends[k + 1]] for k in range(i, parts, ranks)]
        assert load.instances == {u: sum(c.count(u) for c in own) for u in dict(units) if any(u in c for c in own)}
        for unit in load.instances:
            assert load.values[f"first_{unit}"] == 1 + listed[:ends[i]].count(unit)
            if chunks > 1:
                now = most = 0
                for item in work(Pipeline("pp", order, chunks), i, ranks, m):
                    now += own[item.chunk].count(unit) * (1 if item.phase == "forward" else -1)
                    most = max(most, now)
                assert load.values[f"in_flight_{unit}"] == most


@pytest.mark.parametrize(("name", "expression", "devices"), CASES)
def test_a_program_of_a_kind_has_the_figures_of_each_numbered_stage(name: str, expression: str, devices: int) -> None:
    question = asked(name, devices)
    step = derive(parse_strategy(expression), question.model)
    every = layouts(parse_strategy(expression), question.model, question.devices, question.sizes, {"b": 1})
    row = {n: c[[len(c) // 2]] for n, c in every.items()}
    row, _ = placed(row, parse_strategy(expression).mesh.names, question.devices)
    sizes = at(row, 0)
    programs = compiled(expression, question.model, kinds(parse_strategy(expression), question.units, row))
    for load in stage_loads(programs.strategy, question.units, sizes):
        numbered = on_stage(step, load.number, {**sizes, **question.sizes})
        figures = {**sums(numbered), **times(numbered)}
        known = {**question.constants(programs.of(load.kind)), **sizes}
        for path in (*HELD[:2], "communication.total", "compute.flop", *TIMED,
                     *(p for p in figures if p.startswith((PART, TERM)))):
            assert value_of(programs.of(load.kind), question, path, {**sizes, **load.values}) == (
                figures[path].value(known) if path in figures else 0), (path, load)


@pytest.mark.parametrize(("name", "expression", "devices"), CASES)
def test_the_heaviest_stages_decide(name: str, expression: str, devices: int) -> None:
    question = asked(name, devices)
    strategy = parse_strategy(expression)
    columns = layouts(strategy, question.model, question.devices, question.sizes, {"b": 1})
    programs = compiled(expression, question.model, kinds(strategy, question.units, columns))
    everywhere, _ = placed(columns, strategy.mesh.names, question.devices)
    low, high = needs(programs, question, everywhere)
    seconds = timed(programs, question, everywhere)
    for k in range(0, len(low), max(1, len(low) // 12)):
        sizes = at(everywhere, k)
        every = stage_loads(strategy, question.units, sizes)

        def largest(path: str, sizes: Mapping[str, Fraction] = sizes, every: tuple = every) -> Fraction:  # type: ignore
            return max(value_of(programs.of(load.kind), question, path, {**sizes, **load.values}) for load in every)

        assert low[k] <= exact_need(programs, question, sizes) == largest(PEAK) <= high[k]
        for path in TIMED:
            assert seconds[path][0][k] <= exact(programs, question, path, sizes)[0] == largest(path) <= \
                seconds[path][1][k]
    assert all(len(heaviest(stage_loads(strategy, question.units, at(columns, k)), True)) <= 7
               for k in range(len(columns["b"])))


def test_uneven_stages_are_in_the_space_unless_left_out() -> None:
    space = Space("pipelines", FrozenMap({"pp": ("pp", "pp_interleaved")}))
    question = replace(asked("gpt2", 8), space=space)
    pipelines = {(str(r["strategy"]), int(r["pp"]), int(r["v"])) for r in search(question).table}
    assert pipelines == {("pp", 8, 1)}
    assert not len(search(replace(question, space=space.without(["uneven"]))).table)
    assert chunkings(12, 8) == () and chunkings(61, 4) == (2, 3, 4, 5, 8, 15)


def test_a_kind_is_derived_only_where_a_layout_has_it() -> None:
    question = asked("deepseek-v3", 64)
    strategy = parse_strategy("zero1*pp")
    columns = layouts(strategy, question.model, question.devices, question.sizes, {"pp": 4})
    found = kinds(strategy, question.units, columns)
    assert [str(k) for k in found] == ["first stage, dense and layer", "i stage, layer", "last stage, layer"]
