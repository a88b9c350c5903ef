"""Timings: `make bench`. The package is imported before the clock starts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placealg.check.prove import prove
from placealg.cost.arrays import Arrays
from placealg.cost.communication import communication
from placealg.cost.memory import memory
from placealg.cost.stage import on_stage
from placealg.cost.sums import sums
from placealg.frozen import FrozenMap
from placealg.models.config import SHIPPED, resolve_model
from placealg.models.model import Model
from placealg.prover.evidence.lemmas import proved_lemmas
from placealg.prover.evidence.solver import PROCESS, Reply
from placealg.prover.examine import examine
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

CASES = [("zero3", "abstract"), ("zero3", "llama-3-70b"), ("hsdp", "llama-3-70b")]


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_derive(benchmark: Any, strategy: str, model: str) -> None:
    chosen = parse_strategy(strategy), resolve_model(model)
    assert benchmark(lambda: derive(*chosen)).events


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_cost(benchmark: Any, strategy: str, model: str) -> None:
    step = derive(parse_strategy(strategy), resolve_model(model))
    assert benchmark(lambda: (memory(step), communication(step)))


LARGEST = ("moonshotai/Kimi-K2-Instruct", "meta-llama/Llama-4-Maverick-17B-128E#text_config", "zai-org/GLM-4.5",
           "openai/gpt-oss-120b")


@pytest.mark.parametrize("model_id", LARGEST)
def test_derive_and_cost_of_the_largest(benchmark: Any, model_id: str, tmp_path: Path) -> None:
    models = json.loads((Path(__file__).parent / "data" / "published_models.json").read_text())["models"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(models[model_id]))
    strategy = parse_strategy("zero1*tp_sp*ep")

    def run() -> Any:
        step = derive(strategy, resolve_model(str(path)))
        return memory(step), communication(step)

    assert benchmark(run)


@pytest.mark.parametrize(("strategy", "model"), CASES)
def test_prove(benchmark: Any, strategy: str, model: str) -> None:
    step = derive(parse_strategy(strategy), resolve_model(model))
    assert benchmark(lambda: prove(step)).verdict == "PROVED"


@pytest.fixture(params=[126, 12], ids=["126 layers", "12 layers"])
def largest(request: Any, tmp_path: Path) -> Model:
    """The largest shipped model, and the same with fewer layers: its steps are to take as long."""
    config = json.loads((SHIPPED / "llama-3.1-405b.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "num_hidden_layers": request.param}))
    return resolve_model(str(path))


def test_derive_op_by_op(benchmark: Any, largest: Model) -> None:
    strategy = parse_strategy("zero3*tp_sp")
    assert benchmark(lambda: derive(strategy, largest)).events


def test_cost_op_by_op(benchmark: Any, largest: Model) -> None:
    step = derive(parse_strategy("zero3*tp_sp"), largest)
    assert benchmark(lambda: (memory(step), communication(step)))


def test_prove_op_by_op(benchmark: Any, largest: Model) -> None:
    step = derive(parse_strategy("zero3*tp_sp"), largest)
    assert benchmark(lambda: prove(step)).verdict == "PROVED"


EVERY = "zero3*tp_sp*pp*cp_ring*ep"
"""Every parallelism at once."""

STAGED = {"deepseek-v3": {"pp": 12}, "mixtral-8x7b": {}}


@pytest.mark.parametrize("which", ["numbers", "symbols"])
def test_derive_and_cost_stages(benchmark: Any, which: str) -> None:
    """The first stage of DeepSeek-V3, with its three dense layers and others: in numbers, and for any map."""
    chosen = parse_strategy(EVERY), resolve_model("deepseek-v3")
    sizes = STAGED["deepseek-v3"] if which == "numbers" else {}
    assert benchmark(lambda: memory(on_stage(derive(*chosen), "first", sizes)))


@pytest.mark.parametrize("which", ["numbers", "symbols"])
@pytest.mark.parametrize("order", ["pp", "pp_zb_v"])
def test_derive_and_prove_stages(benchmark: Any, order: str, which: str) -> None:
    """DeepSeek-V3 on five axes: as many stages and ranks as in numbers, and any."""
    pipe = f"{order}[12]" if which == "numbers" else order
    text = f"zero3[8]*tp_sp[4]*{pipe}*cp_ring[2]*ep[8]" if which == "numbers" else f"zero3*tp_sp*{pipe}*cp_ring*ep"
    chosen = parse_strategy(text), resolve_model("deepseek-v3")
    assert benchmark.pedantic(lambda: prove(derive(*chosen)).verdict, rounds=3) == "PROVED"


@pytest.mark.parametrize("model", STAGED)
def test_derive_and_cost_every_parallelism(benchmark: Any, model: str) -> None:
    chosen = parse_strategy(EVERY), resolve_model(model)
    assert benchmark(lambda: memory(on_stage(derive(*chosen), "first", STAGED[model])))


@pytest.mark.parametrize("model", STAGED)
def test_prove_every_parallelism(benchmark: Any, model: str) -> None:
    step = derive(parse_strategy(EVERY), resolve_model(model))
    assert benchmark(lambda: prove(step)).verdict == "PROVED"


FIVE = "hsdp*cp*tp_sp*dp[outer]"
"""Five axes of the mesh, with microbatches."""


WRITTEN: Mapping[str, Mapping[str, int]] = {
    "every size at once": {}, "dp_shard = 8": {}, "dp_shard = 8192": {},
    **{f"dp_shard written out at {n}": {"dp_shard": n} for n in (2, 4, 8, 16)},
    **{f"every axis written out at {n}": dict.fromkeys(("dp_replicate", "dp_shard", "cp", "tp", "outer"), n)
       for n in (2, 3, 4)},
}
"""What is said of the five axes -> the sizes at which sums over ranks are written out."""


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[list[tuple[str, ...]]]:
    """Rows of a table that is printed when the module ends: what the time of a benchmark does not say."""
    kept: list[tuple[str, ...]] = []
    yield kept
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for row in (("", "", "", ""), (f"{FIVE} on llama-3-70b", "solver", "its work (rlimit)", "queries"), *kept):
            print("{:45}{:>12}{:>20}{:>10}".format(*row))


@pytest.mark.parametrize("said", WRITTEN)
def test_prove_five_axes(benchmark: Any, said: str, rows: list[tuple[str, ...]],
                         monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed form does not grow with sizes, bound or not; what is written out does, with every rank."""
    bound, written = said.partition(" = ")[2], WRITTEN[said]
    text = FIVE.replace("hsdp", f"hsdp[dp_replicate=2,dp_shard={bound}]") if bound else FIVE
    step = derive(parse_strategy(text), resolve_model("llama-3-70b"))
    step = replace(step, reference=replace(step.reference, unrolled=FrozenMap(written)))
    ask, answers = PROCESS.ask, list[tuple[float, int]]()

    def timed(assertions: Any, **limits: Any) -> Reply:
        start = time.perf_counter()
        answer = ask(assertions, **limits)
        answers.append((time.perf_counter() - start, answer.rlimit))
        return answer

    proved_lemmas()
    with monkeypatch.context() as patch:
        patch.setattr(PROCESS, "ask", timed)
        examine(step)
    taken, work = 1e3 * sum(t for t, _ in answers), sum(n for _, n in answers)
    rows.append((said, f"{taken:.0f} ms", str(work), str(len(answers))))
    rounds = 1 if len(written) > 1 else 5
    assert benchmark.pedantic(lambda: examine(step), rounds=rounds, warmup_rounds=rounds > 1).candidates == ()


FIVE_NAMES = "hsdp*tp_sp*cp_ring*pp*ep"
"""Every parallelism with its symbolic sizes, as it is typed."""


def test_command_prove_five_axes(benchmark: Any) -> None:
    """`placealg prove` of five axes with start-up: to take less than a second on an idle core."""
    command = [sys.executable, "-m", "placealg", "prove", FIVE_NAMES]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5, warmup_rounds=1)


def test_command_prove_five_axes_start_up(benchmark: Any) -> None:
    """Its part that is Python's start and the imports."""
    command = [sys.executable, "-c", "import placealg.cli.readers, placealg.check.prove, placealg.render.proof, z3"]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5, warmup_rounds=1)


def test_command_prove_five_axes_derivation(benchmark: Any) -> None:
    """Its part that is the derivation of the step program."""
    assert benchmark.pedantic(lambda: derive(parse_strategy(FIVE_NAMES), resolve_model("moe")).events, rounds=5)


@pytest.mark.parametrize("part", ["obligations", "solver"])
def test_command_prove_five_axes_engine(benchmark: Any, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part that makes the obligations and decides them (obligations), and what of it waits for the solver."""
    step, ask, waited = derive(parse_strategy(FIVE_NAMES), resolve_model("moe")), PROCESS.ask, list[float]()

    def timed(assertions: Any, **limits: Any) -> Reply:
        start = time.perf_counter()
        answer = ask(assertions, **limits)
        waited.append(time.perf_counter() - start)
        return answer

    proved_lemmas()
    monkeypatch.setattr(PROCESS, "ask", timed)

    def clock() -> float:
        return sum(waited) if part == "solver" else time.perf_counter() - sum(waited)

    benchmark._timer = clock
    assert benchmark.pedantic(lambda: examine(step), rounds=5).candidates == ()


def test_the_whole_museum(benchmark: Any) -> None:
    """Every bug refuted, replayed, and run where it hides: to take less than 30 seconds on two processors."""
    command = [sys.executable, "-m", "placealg", "museum", "--no-timing"]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=1)


def test_simulate_op_by_op(benchmark: Any) -> None:
    step = derive(parse_strategy("zero3*tp_sp"), resolve_model("gpt"))
    assert benchmark(lambda: simulate(step, Setting.equal(step.reference, {"dp": 2, "tp": 2}, 2))).equal


def test_simulate(benchmark: Any) -> None:
    step = derive(parse_strategy("zero3"), resolve_model("abstract"))
    assert benchmark(lambda: simulate(step, Setting.equal(step.reference, {"dp": 2}, 2))).equal


def test_help(benchmark: Any) -> None:
    command = [sys.executable, "-m", "placealg", "--help"]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5)


def test_figures_at_many_sizes(benchmark: Any) -> None:
    """All memory terms, the peak and all traffic of a pipeline's stage, at 2**18 configurations a round."""
    step = on_stage(derive(parse_strategy("zero3*tp_sp*pp"), resolve_model("llama-3-70b")), "first")
    figures = {p: f for p, f in sums(step).items() if p.startswith(("memory.", "communication.", "sent.", "compute."))}
    made = Arrays.of(figures, {"w": 2, "g": 4, "o": 12, "act": 2, "wire": 4, "s": 8192})
    draw = np.random.default_rng(0)
    columns = {name: 2.0 ** draw.integers(0, 6, 2**18) for name in made.names}
    found = benchmark(lambda: made.values(columns))
    benchmark.extra_info["configurations a second"] = round(2**18 / benchmark.stats.stats.min)
    assert len(found) == len(figures)
