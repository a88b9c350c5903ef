"""The extracted semantics as it runs: right programs run as the single device, wrong ones do not; and the simulator."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import extracted
import in_python
import pytest
from in_python import Native, Translation
from kernel_mutants import KINDS, STRATEGIES, program
from kernel_run import Run, Semantics, World
from kernel_simulated import Agreement, compared

from placealg.errors import InputError
from placealg.prover.kernel import checker
from placealg.prover.kernel.printer import printed
from placealg.step.edit import edit


def wrong(strategy: str, without: str = "", steps: int = 1, microbatches: int = 1) -> str:
    """What is wrong with the program of a strategy without an event, at two ranks an axis."""
    step = program(strategy)
    left = replace(step, events=tuple(e for e in step.events if e.path != without))
    assert not without or left != step
    return Run(printed(left), World((2,) * len(step.reference.mesh.names), microbatches), steps).wrong()


def test_the_semantics_is_that_of_its_sources() -> None:
    found = Semantics(extracted.SEMANTICS.target.read_text(encoding="utf-8"))
    assert found.sources == extracted.SEMANTICS.digest(), "run: make coq"


def test_python_s_own_numbers_are_coq_s() -> None:
    """The checker's translation, whose numbers are Python's, beside the one whose numbers are built as Coq's are."""
    every = dict(json.loads(extracted.SEMANTICS.target.read_text(encoding="utf-8"))["terms"])
    terms = {name: every[name] for name in ("eqb", "eqb0", "nth", "seq")}
    plain, own = dict[str, Any](), dict[str, Any]()
    exec(Translation(terms).text(), plain)
    exec(Native(terms).text(), own)
    assert Native(terms).text().count("v==w") == 2 and "while 1" in Native(terms).text()
    binary: list[Any] = ["xH"]
    for k in range(2, 9):
        binary.append(("xI" if k % 2 else "xO", binary[k // 2 - 1]))
    for a, b in itertools.product(range(5), repeat=2):
        assert plain["eqb_"](in_python.value(a), in_python.value(b)) == in_python.value(own["eqb_"](a, b))
        assert plain["seq_"](in_python.value(a), in_python.value(b)) == in_python.value([*range(a, a + b)])
        assert own["seq_"](a, b) == checker.value([*range(a, a + b)])
        listed: Any = [True] * b
        assert plain["nth_"](in_python.value(a), in_python.value(listed), ("False",)) == in_python.value(
            own["nth_"](a, checker.value(listed), False)) == in_python.value(a < b)
    for one, other in itertools.product(binary, repeat=2):
        assert in_python.value(own["eqb0_"](checker.value(one), checker.value(other))) == plain["eqb0_"](
            in_python.value(one), in_python.value(other)) == in_python.value(one == other)


@pytest.mark.parametrize("strategy", [pytest.param(s, marks=[] if s == "dp" else pytest.mark.slow) for s in STRATEGIES])
def test_a_right_program_runs_as_the_single_device(strategy: str) -> None:
    assert wrong(strategy) == ""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
def test_two_steps_of_two_microbatches(strategy: str) -> None:
    assert wrong(strategy, steps=2, microbatches=2) == ""


WITHOUT = {
    "reduce.layer.weight.grad_sum.reduce[dp]": "step 1: value 7 at rest",
    "update.step.update": "step 1: value 1 at rest",
    "init.layer.weight.broadcast[dp]": "step 0: value 7 at rest",
}


@pytest.mark.parametrize("path", WITHOUT)
def test_a_run_tells_what_lacks_an_event(path: str) -> None:
    assert wrong("dp", path) == WITHOUT[path]


def test_semantics_and_simulator_agree_on_a_sample() -> None:
    found = compared("dp", [m for m in KINDS["deletions"](program("dp")) if m.events[0].verb == "accumulate"])
    assert (found.right, found.wrong, found.differ) == (0, 1, [])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_semantics_and_simulator_agree(strategy: str, kind: str) -> None:
    mutants = list(KINDS[kind](program(strategy)))
    found = compared(strategy, mutants[::5])
    assert found.differ == []


def test_a_semantics_in_which_nothing_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "wrong", lambda _: "")
    reduced = [m for m in KINDS["deletions"](program("dp")) if m.events[0].verb == "reduce"]
    found = compared("dp", reduced)
    assert len(found.differ) == 1
    assert found.differ[0].endswith("the semantics none")


def test_what_was_compared_in_words() -> None:
    assert str(Agreement(right=2, wrong=1)) == "2 run as the single device in both, 1 in neither"


def test_what_is_no_semantics_is_said_in_one_line() -> None:
    with pytest.raises(InputError, match="run make coq"):
        Semantics("")


@pytest.mark.slow
@pytest.mark.parametrize(("at", "right"), [("last", True), ("first", False), ("middle", False)])
def test_a_reduction_at_one_position_of_the_loop(at: str, right: bool) -> None:
    late = edit(program("dp"), move="reduce.layer.weight.grad_sum.reduce[dp]",
                after="backward.layer.weight.grad_sum.accumulate", at=[at])
    assert [Run(printed(late), World((2,), m)).wrong() == "" for m in (1, 2, 3)] == [
        right or (at == "first" and m == 1) for m in (1, 2, 3)]
