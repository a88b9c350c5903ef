"""The one order of a search, for every objective, held against brute force; and exact figures of many rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from conftest import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from test_search import GB, asked, form, one_by_one, stages, value

from placealg.configurations.evaluate import evaluate
from placealg.configurations.exactly import values
from placealg.configurations.found import Found
from placealg.configurations.question import OBJECTIVES, Question
from placealg.configurations.run import search
from placealg.configurations.space import Space
from placealg.cost.figure import Figure
from placealg.cost.machines import machine
from placealg.cost.memory import memory
from placealg.cost.stage import on_stage
from placealg.cost.times import Written
from placealg.frozen import FrozenMap
from placealg.polynomial import Polynomial
from placealg.render.search import as_csv
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

SHARDED = Space("sharded", FrozenMap({"data": ("zero1", "hsdp"), "tp": ("", "tp")}))
CONTEXT = Space("context", FrozenMap({"data": ("dp", "zero3"), "cp": ("", "cp_ring"), "recompute": (
    "", "recompute_full")}))
STAGED = Space("staged", FrozenMap({"data": ("zero2", "hsdp"), "tp": ("", "tp_sp"), "pp": ("", "pp",
                                                                                          "pp_interleaved")}))
FIGURES = ("estimate", "bound", "memory", "card")

Row = tuple[dict[str, Fraction], str, tuple[tuple[str, int], ...]]


def every_place(question: Question) -> dict[tuple[str, tuple[tuple[str, int], ...]], list[Row]]:
    """Every layout that fits, in every place, by formulas one at a time."""
    found: dict[tuple[str, tuple[tuple[str, int], ...]], list[Row]] = {}
    for expression in question.space.expressions():
        strategy = parse_strategy(expression)
        step = derive(strategy, question.model)
        staged = {n: on_stage(step, n, {"n_layer": 1}) if n else step
                  for n in (("first", "i", "last") if step.reference.pipeline.axis else ("",))}
        held = {n: form(memory(one).peak, question) for n, one in staged.items()}
        timed = {n: {path: form(Written(one)[path], question) for path in
                     ("time.estimate", "time.bound", "time.bound.card") if path in Written(one)}
                 for n, one in staged.items()}
        for sizes in one_by_one(question, expression):
            every = list(stages(strategy.option("schedule", "pipeline"), sizes))
            need = max(value(held[n], {**sizes, **own}) for n, own in every)
            if need > question.memory:
                continue
            for way in product(*([n for n in range(1, sizes[a] + 1) if sizes[a] % n == 0]
                                 for a in strategy.mesh.names)):
                if prod(way) != min(question.devices.per_node, question.devices.count):
                    continue
                place = {**sizes, **{f"{a}_in_node": n for a, n in zip(strategy.mesh.names, way, strict=True)}}
                times = {path: max(value(timed[n][path], {**place, **own}) if path in timed[n] else Fraction(0)
                                   for n, own in every) for path in ("time.estimate", "time.bound", "time.bound.card")}
                figures = {"estimate": times["time.estimate"], "bound": times["time.bound"], "memory": need,
                           "card": times["time.bound.card"] * machine("h100").values["card_bw"]}
                found.setdefault((expression, tuple(sorted(sizes.items()))), []).append(
                    (figures, expression, tuple(sorted(place.items()))))
    return found


def in_order(question: Question, brute: dict[Any, list[Row]]) -> list[Row]:
    def key(row: Row) -> Any:
        return (row[0][question.objective], *(row[0][n] for n in FIGURES), *row[1:])

    return sorted((min(rows, key=key) for rows in brute.values()), key=key)


def agrees(question: Question) -> None:
    """Best, first, table, CSV and ranks of every objective are those of brute force, exactly."""
    whole, brute = search(question), every_place(question)
    for objective in OBJECTIVES:
        mine = replace(question, objective=objective)
        found = Found(mine, [evaluate(e.programs, mine) for e in whole.every], {}, whole.total)
        wanted = in_order(mine, brute)
        assert found.counts.fit == len(wanted) > 4
        told = [({n: one.value(n) for n in FIGURES}, one.expression, tuple(sorted((n, int(v)) for n, v in
                                                                                  one.sizes.items())))
                for one in (found.best, *found.top(len(wanted)), *map(found.configuration, found.table))]
        assert told == [wanted[0], *wanted, *wanted], objective
        for row, (figures, expression, _) in zip(csv.DictReader(io.StringIO(as_csv(found))), wanted, strict=True):
            assert row["strategy"] == expression
            for name, column in (("memory", "needs_bytes"), ("card", "card_bytes")):
                exact = figures[name]
                assert row[column] == (str(exact.numerator) if exact.denominator == 1 else str(float(exact)))
            assert (float(row["about_seconds"]), float(row["at_least_seconds"])) == (
                float(figures["estimate"]), float(figures["bound"]))
        for one in found.top(len(wanted))[::3]:
            limit = one.value(objective)
            assert found.count(limit) == sum(row[0][objective] <= limit for row in wanted)
            assert found.count(limit, less=True) == sum(row[0][objective] < limit for row in wanted)


@pytest.mark.parametrize(("space", "only", "devices", "batch"), [
    (SHARDED, "zero1[*]tp", 8, 8), (CONTEXT, "zero3[*]cp_ring*", 4, 4)])
def test_every_list_is_in_the_order_of_brute_force(space: Space, only: str, devices: int, batch: int) -> None:
    agrees(asked(devices, replace(space, only=(only,)), 6 * GB, 2, batch))


@pytest.mark.slow
@pytest.mark.parametrize("space", [SHARDED, CONTEXT, STAGED], ids=lambda space: space.name)
@pytest.mark.parametrize(("devices", "per_node"), [(8, 2), (16, 4)])
def test_every_list_is_in_the_order_of_brute_force_on_more_devices(space: Space, devices: int, per_node: int) -> None:
    agrees(asked(devices, space, 5 * GB, per_node, 16 if space is not STAGED else 8))


def test_the_first_of_every_format_is_the_best(placealg: Callable[..., Outcome]) -> None:
    words = ("search", "llama-3-8b", "--devices", "16", "--per-node", "4", "--batch", "64", "--set", "s=8192",
             "--machine", "h100", "--device-memory", "80GB", "--only", "hsdp,hsdp*tp_sp,zero1*tp_sp,zero1",
             "--no-cache", "--objective", "bound")
    said = json.loads(placealg(*words, "--format", "json").out)
    assert said["top"][0].items() <= said["best"].items()
    first = next(csv.DictReader(io.StringIO(placealg(*words, "--format", "csv").out)))
    assert (first["strategy"], first["needs_bytes"], first["card_bytes"]) == (
        said["best"]["strategy"], said["best"]["needs_bytes"]["exact"], said["best"]["card_bytes"]["exact"])


NUMBERS = st.fractions(-3, 3, max_denominator=7)
FACTORS = st.dictionaries(st.sampled_from(["x", "y", "z", "Min(x, 2*y)", "ceiling((x)/(y))"]), st.sampled_from(
    [-2, -1, 1, 2]), max_size=3)
SUMS = st.lists(st.tuples(NUMBERS, FACTORS), max_size=4)


def total(terms: list[tuple[Fraction, dict[str, int]]]) -> Polynomial:
    found = Polynomial()
    for number, powers in terms:
        term = Polynomial.number(number)
        for name, power in powers.items():
            each = Polynomial.name(name)
            term = term * each**power if power > 0 else term / each**-power
        found = found + term
    return found


@given(st.lists(SUMS, min_size=1, max_size=3), st.booleans(), st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1,
                                                                      max_size=5))
@settings(max_examples=60, deadline=None)
def test_figures_of_many_rows_are_those_of_each(pieces: list[Any], divided: bool, rows: list[tuple[int, ...]]) -> None:
    over = Polynomial.read("x*y/3 + 1") if divided else Polynomial.number(1)
    figure = Figure(tuple(map(total, pieces)), over)
    columns = {n: np.array([row[k] for row in rows]) for k, n in enumerate("xyz")}
    assert values(figure, columns, len(rows)).tolist() == [
        figure.value(dict(zip("xyz", row, strict=True))) for row in rows]
