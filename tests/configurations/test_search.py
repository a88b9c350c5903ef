"""The search held against brute force: every configuration one by one, by formulas and fractions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from glob import escape
from itertools import product
from math import ceil, floor, prod
from pathlib import Path

import pytest
from conftest import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from resumed import sampled

from placealg.configurations import programs as programs_module
from placealg.configurations.calibrate import calibrate
from placealg.configurations.evaluate import ESTIMATE, at, exact, value_of
from placealg.configurations.explain import compared, meant, neighbours, terms
from placealg.configurations.found import Found
from placealg.configurations.layouts import Devices, factorizations
from placealg.configurations.programs import Cache, compiled
from placealg.configurations.question import Question
from placealg.configurations.run import search
from placealg.configurations.space import Space, read_spaces, spaces
from placealg.configurations.stages import stage_loads
from placealg.cost.communication import communication
from placealg.cost.machines import machine
from placealg.cost.memory import memory
from placealg.cost.plain import plain, put
from placealg.cost.sizing import Margin
from placealg.cost.stage import on_stage
from placealg.cost.times import PARAMETERS, Written
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.models.model import Model
from placealg.polynomial import Plain
from placealg.step.compatibility import check_sizes
from placealg.step.derive import derive
from placealg.step.pipeline import Pipeline, work
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy

GB = 10**9
SMALL = Space("small", FrozenMap({"data": ("", "zero1", "hsdp"), "tp": ("", "tp_sp"), "pp": ("", "pp")}))
TINY = replace(SMALL, only=("zero1", "hsdp"))
WIDER = Space("wider", FrozenMap({
    "data": ("", "dp", "zero1", "zero2", "zero3", "hsdp"), "tp": ("", "tp", "tp_sp"),
    "pp": ("", "pp", "pp_interleaved"),
    "cp": ("", "cp_ring", "cp_ulysses"), "recompute": ("", "recompute_full"), "offload": ("", "offload_optimizer")}))


def asked(devices: int, space: Space, memory_: int = 5 * GB, per_node: int = 4, batch: int = 16,
          **more: object) -> Question:
    return Question(resolve_model("gpt2"), Devices(devices, per_node, batch), machine("h100"), Fraction(memory_), space,
                    FrozenMap({"s": Fraction(1024)}), **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Each:
    """One configuration, found one by one: the need, and (bound, estimate, card) in its best place."""

    expression: str
    sizes: tuple[tuple[str, int], ...]
    need: Fraction
    times: tuple[Fraction, Fraction, Fraction]


def brute(question: Question) -> tuple[list[Each], int]:
    """(every configuration that fits in its best place, the number of all), by formulas one at a time."""
    fit, count = [], 0
    for expression in question.space.expressions():
        strategy = parse_strategy(expression)
        step = derive(strategy, question.model)
        staged = {n: on_stage(step, n, {"n_layer": 1}) if n else step
                  for n in (("first", "i", "last") if step.reference.pipeline.axis else ("",))}
        held = {n: form(memory(one).peak, question) for n, one in staged.items()}
        timed = {n: [form(Written(one)[path], question) if path in Written(one) else None
                     for path in ("time.bound", "time.estimate", "time.bound.card")] for n, one in staged.items()}
        for sizes in one_by_one(question, expression):
            count += 1
            every = list(stages(strategy.option("schedule", "pipeline"), sizes))
            need = max(value(held[n], {**sizes, **own}) for n, own in every)
            if need > question.memory:
                continue
            places = [{**sizes, **dict(zip((f"{a}_in_node" for a in strategy.mesh.names), way, strict=True))}
                      for way in product(*([n for n in range(1, sizes[a] + 1) if sizes[a] % n == 0]
                                           for a in strategy.mesh.names))
                      if prod(way) == min(question.devices.per_node, question.devices.count)]
            figures = [tuple(max(Fraction(0) if f is None else value(f, {**place, **own}) for f, own in column)
                             for column in zip(*([(f, own) for f in timed[n]] for n, own in every), strict=True))
                       for place in places]
            if figures:
                best = min(figures, key=lambda t: t[1])
                fit.append(Each(expression, tuple(sorted(sizes.items())), need, best))  # type: ignore[arg-type]
    return fit, count


def stages(order: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Every stage of gpt2's 12 layers, item by item of its work: what it runs, where it begins, what is in flight."""
    if "pp" not in sizes:
        yield "", {}
        return
    p, v = sizes["pp"], sizes.get("v", 1)
    ends = [12 * k // (p * v) for k in range(p * v + 1)]
    for i in range(p):
        own = [ends[k + 1] - ends[k] for k in range(i, p * v, p)]
        most = now = 0
        for item in work(Pipeline("pp", order, v), i, p, sizes["m"]):
            now += own[item.chunk] if item.phase == "forward" else -own[item.chunk]
            most = max(most, now)
        yield ("first" if i == 0 else "last" if i == p - 1 else "i",
               {"n_layer": sum(own), "in_flight_layer": most, "first_layer": 1 + ends[i], "i": i})


def form(formula: object, question: Question) -> Plain:
    """A formula in plain form, with all numbers that are the same everywhere."""
    known = {**formula.values, **question.sizes, **machine("h100").values, **PARAMETERS}  # type: ignore[attr-defined]
    known.pop("m", None)
    return plain(put(formula, {n: v for n, v in known.items() if n in formula.inputs}))  # type: ignore


def value(formula: Plain, sizes: Mapping[str, int]) -> Fraction:
    return formula.evaluate(dict(sizes))


def together(strategy: Strategy, axis: str) -> bool:
    """Whether states are sharded over an axis of the batch and over one of context or experts with it."""
    sharded = [{a for a, mode in p.modes.items() if str(mode.value).startswith("S")} for p in strategy.states.values()]
    return axis.startswith("dp") and any(axis in over and over & {"cp", "ep"} for over in sharded)


def one_by_one(question: Question, expression: str) -> Iterator[dict[str, int]]:
    """Every layout, tried: all sizes of all axes, b, m and chunks."""
    strategy, model, batch = parse_strategy(expression), question.model, question.devices.batch
    names = strategy.mesh.names
    for way in product(range(1, question.devices.count + 1), repeat=len(names)):
        axes = dict(zip(names, way, strict=True))
        if any(n == 1 and not together(strategy, a) for a, n in axes.items()):
            continue
        if prod(way) != question.devices.count or axes.get("pp", 1) > 12:
            continue
        try:
            check_sizes(strategy, model, {**{a: Fraction(n) for a, n in axes.items()}, "s": Fraction(1024)})
        except InputError:
            continue
        ranks = prod(axes[a] for a in strategy.batch_axes)
        for b, m in product(range(1, batch + 1), repeat=2):
            if b * m * ranks != batch:
                continue
            if "interleaved" not in expression:
                yield {**axes, "b": b, "m": m}
                continue
            for v in range(2, 13):
                each = 12 / axes["pp"]
                if 0 in (floor(each) % v, ceil(each) % v) and v * axes["pp"] <= 12 and m % axes["pp"] == 0:
                    yield {**axes, "b": b, "m": m, "v": v}


def agrees(question: Question) -> None:
    found, (fit, count) = search(question), brute(question)
    assert (found.counts.layouts, found.counts.fit) == (count, len(fit))
    best = min(fit, key=lambda e: e.times[1])
    assert found.best.estimate == best.times[1]
    assert (found.best.bound, found.best.need) in {(e.times[0], e.need) for e in fit if e.times[1] == best.times[1]}
    assert found.least[0] <= min(e.times[0] for e in fit)
    table = {(str(row["strategy"]), *(int(row[n]) for n in ("b", "m"))): row for row in found.table}
    assert len(found.table) == len(fit) and table
    mine = {(float(e.need), round(float(e.times[1]), 9)) for e in fit}
    assert {(float(row["needs"]), round(float(row["estimate"]), 9)) for row in found.table} == mine
    names = ("memory", "estimate")
    front = [(c.need, c.estimate) for c in found.front(names)]
    every = {(e.need, e.times[1]) for e in fit}
    assert front == sorted(p for p in every if not any(
        q != p and q[0] <= p[0] and q[1] <= p[1] for q in every))


def test_brute_force_on_8_devices_finds_the_same() -> None:
    agrees(asked(8, TINY))


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "per_node"), [(8, 4), (16, 8)])
def test_brute_force_of_pipelines_finds_the_same(devices: int, per_node: int) -> None:
    agrees(asked(devices, SMALL, per_node=per_node))


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "per_node"), [(8, 8), pytest.param(16, 4, marks=pytest.mark.skipif(
    os.environ.get("PLACEALG_MUTANTS") == "few", reason="an hour: DRAW=all"))])
def test_brute_force_of_the_whole_grammar_finds_the_same(devices: int, per_node: int) -> None:
    some = replace(WIDER, only=tuple(map(escape, sampled(WIDER.expressions(), 40))))
    agrees(asked(devices, some, 4 * GB, per_node, 32))


def test_a_space_of_one_strategy() -> None:
    found = search(asked(8, replace(SMALL, only=("zero1",))))
    assert {str(row["strategy"]) for row in found.table} == {"zero1"}


@given(st.integers(1, 24), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=8)
def test_factorizations_are_all_and_each_once(number: int, parts: int, least: int) -> None:
    found = list(zip(*(c.tolist() for c in factorizations(number, parts, least)), strict=True))
    assert sorted(found) == [w for w in product(range(least, number + 1), repeat=parts) if prod(w) == number]


@pytest.fixture(scope="module")
def found() -> Found:
    return search(asked(8, replace(SMALL, only=("zero1", "zero1[*]tp_sp", "zero1[*]pp"))))


def test_figures_are_those_of_cost_and_of_the_formulas(found: Found) -> None:
    for one in [found.best, *found.top(1)]:
        step = derive(one.programs.strategy, found.question.model)
        known = {**found.question.sizes, **one.sizes}
        pp = int(one.sizes.get("pp", 1))
        staged = [on_stage(step, k, known) for k in range(pp)] if step.reference.pipeline.axis else [step]
        assert one.need == max(Fraction(memory(s).peak.value(**{n: v for n, v in known.items()
                                                                 if n in memory(s).peak.inputs}) or 0) for s in staged)
        loads = stage_loads(one.programs.strategy, found.question.units, one.sizes)
        for formula, load in zip([communication(s).total for s in staged], loads, strict=True):
            assert value_of(one.programs.of(load.kind), found.question, "communication.total",
                            {**one.sizes, **load.values}) == formula.value(
                **{n: v for n, v in known.items() if n in formula.inputs})


def test_a_changed_coefficient_moves_the_estimate(found: Found) -> None:
    program = found.best.programs.stages[0]
    changed = replace(program.timed, coefficients=program.timed.coefficients * (1 + 1e-6))
    other = replace(found.best.programs, stages=(replace(program, timed=changed),))
    from placealg.configurations.evaluate import evaluate

    low, high = evaluate(other, found.question).times[ESTIMATE]
    row = next(k for k in range(len(low)) if all(
        evaluate(other, found.question).placed[n][k] == v for n, v in found.best.sizes.items()))
    assert not low[row] <= found.best.estimate <= high[row]


def test_neighbours_differ_in_one_thing_and_lose_by_their_term(found: Found) -> None:
    near = neighbours(found, found.best)
    assert near and all(n.ratio >= 0 for n in near)
    for one in near:
        if one.other is not None:
            grown = terms(one.other, found.question).get(one.term, Fraction(0)) - terms(
                found.best, found.question).get(one.term, Fraction(0))
            assert grown == one.by
        else:
            assert one.over >= 0


def test_one_that_a_user_had_in_mind(found: Found) -> None:
    programs, sizes = meant("zero1*tp_sp dp=4 b=2", found.question)
    assert {n: int(v) for n, v in sizes.items()} == {"dp": 4, "tp": 2, "b": 2, "m": 2}
    other = compared(found, found.best, programs, sizes).other
    assert other is not None and other.estimate >= found.best.estimate
    for text, says in (("zero1*tp_sp dp=3 tp=2", "are 6 devices, not 8"), ("zero1*tp_sp", "have no sizes"),
                       ("zero1*tp_sp dp=8 tp=1", "no axis"), ("zero1 dp=8 q=2", "has no 'q'"), ("zero1 dp", "NAME="),
                       ("", "no strategy"), ("zero1 dp=8 b=3", "no layout"), ("zero1*tp_sp dp=3", "multiple")):
        with pytest.raises(InputError, match=says):
            meant(text, found.question)


def test_a_measured_step_fits_the_efficiency(found: Found) -> None:
    text, question = "zero1*tp_sp dp=4 b=2", found.question
    seconds = Fraction(1, 10)
    fitted = calibrate(text, question, seconds, Fraction(10 * GB))
    again = replace(question, parameters=question.parameters.plus({"efficiency": fitted.efficiency}))
    assert exact(fitted.of.programs, again, ESTIMATE, fitted.of.sizes)[0] == seconds
    held, states = (max(p.figures[f].value({**question.constants(p), **fitted.of.sizes}) for p in
                        fitted.of.programs.stages) for f in ("memory.peak", "memory.states"))
    assert fitted.factor is not None and states + fitted.factor * (held - states) == 10 * GB
    with pytest.raises(InputError, match="less than the bound"):
        calibrate(text, question, Fraction(1, 10**6))
    with pytest.raises(InputError, match="needed at least"):
        calibrate(text, question, seconds, Fraction(1000))


@pytest.mark.parametrize("margin", [Margin(Fraction(GB)), Margin(factor=Fraction(3, 2))])
def test_a_margin_counts_as_it_does_for_fit(margin: Margin) -> None:
    question = asked(8, replace(SMALL, only=("zero1",)), margin=margin)
    for one in search(question).top(9):
        (program,) = one.programs.stages
        known = {**question.constants(program), **one.sizes}
        peak, states = (program.figures[f].value(known) for f in ("memory.peak", "memory.states"))
        assert one.need == states + margin.factor * (peak - states) + margin.reserve <= question.memory


def test_of_several_batches_the_best_by_the_sequence_wins() -> None:
    space = replace(SMALL, only=("zero1", "zero1[*]tp_sp"))
    devices = Devices(8, 4, 24, (64, 32))
    found = search(replace(asked(8, space), devices=devices))
    alone = {n: search(replace(asked(8, space), devices=Devices(8, 4, n))) for n in devices.batches}
    assert found.counts.layouts == sum(one.counts.layouts for one in alone.values())
    best = min(alone, key=lambda n: alone[n].best.estimate / n)
    assert found.best.counts["batch"] == best and found.best.estimate == alone[best].best.estimate
    assert found.least_bound == min(one.least_bound / n for n, one in alone.items())
    rates = [float(r["estimate"]) / int(r["batch"]) for r in found.table]
    assert rates == sorted(rates) and len(rates) == found.counts.fit
    fast = {(c.need, c.value("estimate")) for c in found.front(("memory", "estimate"))}
    every = {(c.need, c.value("estimate")) for c in found.top(found.counts.fit)}
    assert fast == {p for p in every if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in every)}
    _, sizes = meant("zero1 batch=32 b=2", found.question)
    assert (sizes["batch"], sizes["m"]) == (32, 2)


def test_the_cache_gives_what_was_derived_and_no_other(tmp_path: Path) -> None:
    model = resolve_model("gpt2")
    cache, made = Cache(tmp_path, model), compiled("zero1", model)
    cache.write(made)
    kept = Cache(tmp_path, model).read("zero1")
    assert kept is not None and kept.stages[0].figures == made.stages[0].figures
    assert Cache(tmp_path, replace(model, name="other")).read("zero1") is None
    path = cache.path("zero1")
    assert path is not None
    path.write_bytes(path.read_bytes()[:-1])
    assert Cache(tmp_path, model).read("zero1") is None


def test_programs_of_old_versions_of_the_package_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = resolve_model("gpt2")
    made = compiled("zero1", model)
    (tmp_path / "notes").mkdir()
    for k in range(5):
        monkeypatch.setattr(programs_module, "sources", lambda k=k: f"{k:064x}"[::-1])
        Cache(tmp_path, model).write(made)
        if not k:
            (tmp_path / f"{k:016x}" / "mine.txt").write_text("kept")
        os.utime(tmp_path / f"{k:016x}"[::-1], (k + 1, k + 1))
        assert Cache(tmp_path, model).read("zero1") is not None
    kept = {d.name: [f.name for f in d.iterdir()] for d in tmp_path.iterdir()}
    assert sorted(kept) == sorted(["notes", "0" * 16, *(f"{k:016x}"[::-1] for k in (3, 4))])
    assert kept["0" * 16] == ["mine.txt"]


def test_an_interrupted_search_tells_what_it_found() -> None:
    seen = []

    def after_two() -> bool:
        seen.append(1)
        return len(seen) > 2

    part = search(asked(8, replace(SMALL, only=("zero1*",))), interrupted=after_two)
    assert not part.complete and part.counts.strategies == 2 and part.counts.fit


def test_spaces_are_read_and_refused() -> None:
    assert len(spaces()["dense"].expressions()) == 966
    for text, says in (("[x]\n", "is no space"), ("[x.parts]\na = 1\n", "not a list"), ("x = [", "no TOML"),
                       ("[x]\nname = 1\n[x.parts]\na = ['dp']\n", "no key 'name'"),
                       ("[x.parts]\na = ['zero9']\n", "zero9")):
        with pytest.raises(InputError, match=says):
            read_spaces(text)
    with pytest.raises(InputError, match="no part or choice 'offlod'; did you mean 'offload'"):
        spaces()["dense"].without(["offlod"])


WORDS = ("search", "gpt2", "--batch", "16", "--set", "s=1024", "--no-cache", "--only", "zero1,zero1[*]tp_sp")


def test_the_page(placealg: Callable[..., Outcome]) -> None:
    told = placealg(*WORDS, "--devices", "8", "--machine", "h100", "--why", "zero1*tp_sp dp=4 b=1")
    assert told.code == 0, told.err
    for line in ("best  zero1", "takes at least", "takes about", "proof  PROVED", "close", "why not  zero1*tp_sp",
                 "nothing in this space takes less"):
        assert line in told.out, told.out
    assert max(map(len, told.out.splitlines())) <= 120


def test_json_and_csv(placealg: Callable[..., Outcome]) -> None:
    told = placealg(*WORDS, "--devices", "8", "--machine", "h100", "--format", "csv")
    head, first, *_ = told.out.splitlines()
    assert head.startswith("strategy,dp,") and first.startswith("zero1,8,") and told.code == 0
    said = json.loads(placealg(*WORDS[:-1], "zero1", "--devices", "8", "--machine", "h100", "--front", "--format",
                               "json").out)
    assert said["best"]["verdict"] == "PROVED" and said["complete"]
    assert Fraction(said["best"]["takes_about_seconds"]["exact"]) == sum(
        (Fraction(t["exact"]) for t in said["best"]["estimate"]), Fraction(0))
    assert all(one["verdict"] == "PROVED" for one in said["front"])


@pytest.mark.parametrize(("words", "says"), [
    (("--devices", "12", "--machine", "h100"), "12 devices do not fill nodes of 8"),
    (("--devices", "8"), "says no machine"),
    (("--devices", "8", "--machine", "h10"), "--machine: no machine is called 'h10'; did you mean 'h100'"),
    (("--devices", "8", "--machine", "h100", "--fix", "tp=x"), "--fix tp=x"),
    (("--devices", "8", "--machine", "h100", "--fix", "tp=3"), "8 devices are no multiple of what is fixed: tp = 3"),
    (("--devices", "8", "--machine", "h100", "--fix", "m=5", "b=2"), "are no multiple of what is fixed: m = 5, b = 2"),
    (("--devices", "8", "--machine", "h100", "--fix", "tq=2"), "is not AXIS=NUMBER; did you mean 'tp'"),
    (("--devices", "8", "--machine", "h100", "--assume", "eficiency=1"), "did you mean 'efficiency'"),
    (("--devices", "8", "--machine", "h100", "--space", "dens"), "did you mean 'dense'"),
    (("--devices", "8", "--machine", "h100", "--without", "offlod"), "--without: "),
    (("--devices", "8", "--machine", "h100", "--why", "zero1 dp=4"), "--why: "),
    (("--devices", "8", "--machine", "h100", "--measured", "zero1 dp=8"), "--measured: "),
    (("--devices", "8", "--machine", "h100", "--measured", "zero1 dp=8: 0.0001 s"), "less than the bound"),
    (("--devices", "8", "--flops", "1TFLOPS"), "missing --node-bandwidth"),
    (("--devices", "8", "--machine", "h100", "--set", "q=1"), "is no size of the model"),
])
def test_bad_input_is_one_line(placealg: Callable[..., Outcome], words: tuple[str, ...], says: str) -> None:
    told = placealg(*WORDS, *words)
    assert (told.code, told.out, told.err.count("\n")) == (2, "", 1) and says in told.err, told.err


@pytest.mark.parametrize(("size", "says"), [
    ("h=5", "h = 5 contradicts gpt2's h = 768"), ("q=1", "'q' is no size of the model: a search finds degrees"),
    ("s=3/2", "s = 3/2 is not a whole number"), ("w=2", "gpt2 leaves s open: give s a number"),
])
def test_sizes_are_held_against_the_model_in_one_place(placealg: Callable[..., Outcome], size: str, says: str) -> None:
    told = placealg("search", "gpt2", "--batch", "64", "--devices", "8", "--machine", "h100", "--set", size)
    assert (told.code, told.out) == (2, "") and told.err.startswith(f"placealg: --set: {says}"), told.err
    name, _, value = size.partition("=")
    with pytest.raises(InputError) as error:
        Question(resolve_model("gpt2"), Devices(8, 8, 64), machine("h100"), Fraction(8 * GB), SMALL,
                 FrozenMap({name: Fraction(value)}))
    assert str(error.value).startswith(says)


def test_where_nothing_fits_the_least_excess_is_told(placealg: Callable[..., Outcome]) -> None:
    told = placealg(*WORDS, "--devices", "8", "--machine", "h100", "--device-memory", "500MB")
    assert told.code == 1 and "the nearest misses by" in told.out, told.out
    told = placealg("search", "gpt2", "--batch", "5", "--set", "s=1024", "--no-cache", "--only", "zero1", "--devices",
                    "8", "--machine", "h100")
    assert told.code == 1 and "none  zero1: 5 sequences are no multiple of dp = 8: 8 would be" in told.out, told.out


def test_at_reads_a_row() -> None:
    import numpy as np

    assert at({"dp": np.array([2, 4])}, 1) == {"dp": Fraction(4)}
    assert isinstance(resolve_model("gpt2"), Model)
