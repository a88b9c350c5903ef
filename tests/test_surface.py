"""The Python surface: lazy, complete, and the same functions as the rooms'."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import ROOT

import placealg as pa


def test_importing_costs_nothing() -> None:
    code = "import sys, placealg\nprint([m for m in sys.modules if m.split('.')[0] in ('placealg', 'sympy', 'z3')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['placealg']"


@pytest.mark.parametrize("name", pa.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pa, name) is not None
    assert name in dir(pa)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="zero4"):
        pa.zero4  # noqa: B018


def test_rooms_that_are_functions_stay_rooms() -> None:
    import placealg.prover.verdict as verdict
    import placealg.simulator.run as run

    model = pa.Model.from_config("gpt2")
    strategy = pa.zero1(dp=2)
    assert isinstance(pa.prove(strategy, model), verdict.Report)
    step = pa.derive(strategy, model)
    assert isinstance(pa.simulate(strategy, model, pa.Setting.equal(step.reference, {"dp": 2}, 1)), run.Outcome)


def test_costs_are_those_of_the_derived_step() -> None:
    strategy, model = pa.hsdp() * pa.offload_optimizer(), pa.abstract()
    assert pa.memory(strategy, model).states.names
    assert pa.communication(strategy, model).total.unit == "bytes"
    with pytest.raises(pa.InputError):
        pa.dp() * pa.dp()


def test_a_strategy_shows_itself_in_a_notebook() -> None:
    shown = (pa.zero3() * pa.offload_optimizer())._repr_html_()
    assert ">S+O</td>" in shown
    assert ">S(batch)</td>" in shown
    assert "<svg" in shown
