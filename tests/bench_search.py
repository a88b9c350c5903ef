"""Rates of evaluation, in configurations a second of one core's processor time: `make bench`.

llm-analysis is timed beside if it is installed (`pip install --no-deps llm-analysis fire`). calculon, the other tool of
this kind, is on no registry: what is called calculon there is another program.
"""

from __future__ import annotations

import logging
import time
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from placealg.configurations.evaluate import evaluate
from placealg.configurations.layouts import Devices
from placealg.configurations.programs import Cache
from placealg.configurations.question import Question
from placealg.configurations.run import programs_for
from placealg.configurations.space import Space
from placealg.cost.arrays import Arrays
from placealg.cost.formula import Formula
from placealg.cost.machines import machine
from placealg.cost.memory import memory
from placealg.cost.stage import on_stage
from placealg.cost.sums import sums
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

MANY = 2**16
EXPRESSION = "zero1*tp_sp*pp"
ON_ONE_CORE = pytest.mark.benchmark(timer=time.process_time)
TYPES = {"w": 2, "g": 4, "o": 12, "act": 2, "wire": 4, "s": 8192}


def drawn(names: tuple[str, ...]) -> dict[str, npt.NDArray[np.float64]]:
    draw = np.random.default_rng(0)
    return {name: 2.0 ** draw.integers(0, 6, MANY) for name in names}


def rate(benchmark: Any, count: int) -> None:
    benchmark.extra_info["configurations a second"] = round(count / benchmark.stats.stats.min)


@ON_ONE_CORE
@pytest.mark.parametrize("what", ["values", "with the bounds of their errors"])
@pytest.mark.parametrize("expression", ["zero1", "zero3*tp_sp", EXPRESSION, "hsdp*tp_sp*cp_ring*pp_interleaved"])
def test_all_memory_terms_the_peak_and_all_traffic(benchmark: Any, expression: str, what: str) -> None:
    step = derive(parse_strategy(expression), resolve_model("llama-3-70b"))
    staged = on_stage(step, "first") if step.reference.pipeline.axis else step
    figures = {p: f for p, f in sums(staged).items() if p.startswith(("memory.", "communication."))}
    made = Arrays.of(figures, TYPES)
    columns = drawn(made.names)
    found = benchmark(lambda: made.values(columns) if what == "values" else made.bounded(columns))
    rate(benchmark, MANY)
    benchmark.extra_info["figures"] = len(figures)
    assert len(found) == len(figures)


@ON_ONE_CORE
def test_a_strategy_of_a_search_end_to_end(benchmark: Any) -> None:
    """Every layout and place of one strategy on 512 devices: the memory, bound and estimate, within proven bounds."""
    space = Space("one", FrozenMap({"all": (EXPRESSION,)}))
    question = Question(resolve_model("llama-3-70b"), Devices(512, 8, 1024), machine("h100"), Fraction(80 * 10**9),
                        space, FrozenMap({"s": Fraction(8192)}))
    programs = programs_for(EXPRESSION, question, Cache(None, question.model))
    found = benchmark(lambda: evaluate(programs, question))
    rate(benchmark, found.places)
    assert found.places


@ON_ONE_CORE
def test_a_formula_at_an_array(benchmark: Any) -> None:
    formula = memory(derive(parse_strategy("zero3"), resolve_model("llama-3-70b"))).peak
    columns = drawn(("dp", "b"))
    found = benchmark(lambda: formula.value(s=8192, m=1, **columns))
    rate(benchmark, MANY)
    assert np.asarray(found).shape == (MANY,)


@ON_ONE_CORE
def test_exported_python_at_an_array(benchmark: Any) -> None:
    formula = memory(derive(parse_strategy("zero3"), resolve_model("llama-3-70b"))).peak
    assert isinstance(formula, Formula)
    space: dict[str, Any] = {}
    exec(formula.python("peak"), space)
    columns = drawn(("dp", "b"))
    found = benchmark(lambda: space["peak"](**{n: 8192 if n == "s" else columns[n] for n in formula.names if
                                              n in ("s", "dp", "b")}))
    rate(benchmark, MANY)
    assert np.asarray(found).shape == (MANY,)


@ON_ONE_CORE
def test_llm_analysis(benchmark: Any) -> None:
    analysis = pytest.importorskip("llm_analysis.analysis")
    config = pytest.importorskip("llm_analysis.config")
    logging.disable(logging.CRITICAL)
    made = analysis.LLMAnalysis(
        config.get_model_config_by_name("upstage_Llama-2-70b-instruct-v2"),
        config.get_gpu_config_by_name("a100-sxm-80gb"), config.get_dtype_config_by_name("w16a16e16"),
        config.ParallelismConfig(tp_size=8, pp_size=4, dp_size=16, sp_size=8), flops_efficiency=0.5)
    found = benchmark(lambda: made.training(
        batch_size_per_gpu=1, gradient_accumulation_steps=64, global_batch_size=1024, seq_len=4096,
        ds_zero=analysis.DSZeRO(1), output_dir=None))
    rate(benchmark, 1)
    assert found["weight_memory_per_gpu"]
