"""Strategies that a bound excludes: the best is the same without them, and none of them is better."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import Outcome

from placealg.check.prove import prove
from placealg.configurations.certificate import certified, digest, text_of
from placealg.configurations.evaluate import evaluate, exact
from placealg.configurations.layouts import Devices
from placealg.configurations.programs import Cache, compiled
from placealg.configurations.pruning import STATES, WORK, Work, relaxed
from placealg.configurations.question import Question
from placealg.configurations.recheck import recheck_search
from placealg.configurations.run import programs_for, search
from placealg.configurations.space import Space, spaces
from placealg.cost.machines import machine
from placealg.cost.times import TERM
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.step.derive import derive

SPACE = Space("some", FrozenMap({"data": ("zero1", "zero3"), "recompute": ("", "recompute_full")}))


EIGHT = Devices(8, 4, 64)


def asked(space: Space = SPACE, memory: int = 4 * 10**9, devices: Devices = EIGHT, **more: str) -> Question:
    return Question(resolve_model("gpt2"), devices, machine("h100"), Fraction(memory), space,
                    FrozenMap({"s": Fraction(1024)}), **more)


def agrees(question: Question, folder: Path | None = None) -> set[str]:
    """The best of both searches is one; what was left out is nowhere better; by which bounds it was."""
    whole, some = search(question, folder), search(question, None, best_alone=True)
    assert some.complete and (some.best.text, some.best.sizes) == (whole.best.text, whole.best.sizes)
    assert some.least[0] <= whole.least_bound
    best = whole.best.value(question.objective)
    for expression, bound in some.pruned.items():
        own = evaluate(programs_for(expression, question, Cache(folder, question.model)), question)
        if own.near is not None:
            assert best < bound.least <= own.near[1][1].min() * (1 + 1e-12) or question.objective == "card"
        if own.least is not None:
            assert bound.seconds <= own.least[1][1].min()
    return {bound.by for bound in some.pruned.values()}


def test_the_best_is_the_same_and_what_was_left_out_is_worse() -> None:
    assert WORK in agrees(asked())


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["estimate", "bound", "memory", "card"])
def test_the_best_of_many_is_the_same(objective: str, tmp_path: Path) -> None:
    space = spaces()["dense"].without(["cp"])
    found = agrees(asked(replace(space, only=("zero[13]*",)), 3 * 10**9, Devices(8, 4, 16, (24,)), objective=objective),
                   tmp_path)
    assert found if objective == "estimate" else found <= {WORK, STATES}


@pytest.mark.slow
def test_every_strategy_works_at_least_its_part() -> None:
    question = asked(spaces()["dense"])
    work = Work.of(question)
    for expression in question.space.expressions()[::17]:
        outline, bound = work.least(expression)
        programs = programs_for(expression, question, Cache(None, question.model))
        found = evaluate(programs, replace(question, memory=Fraction(10**15)))
        if bound is None or found.near is None:
            continue
        assert found.near[1][1].min() >= bound.least and outline.expression == expression
        for k in range(0, found.count, 5):
            sizes = {n: Fraction(int(c[k])) for n, c in found.placed.items()}
            assert exact(programs, question, TERM + "work", sizes)[0] >= 0


def test_without_a_peak_the_states_stand_in_its_place() -> None:
    question = asked()
    whole, states = (compiled("zero1*pp", question.model, peak=peak) for peak in (True, False))
    for one, other in zip(whole.stages, states.stages, strict=True):
        sizes = {n: Fraction(v) for n, v in (("dp", 2), ("pp", 4), ("b", 1), ("m", 8), ("n_layer", 3), ("i", 1))}
        held = [p.figures["memory.peak"].value({**question.constants(p), **sizes}) for p in (one, other)]
        assert held[1] == one.figures["memory.states"].value({**question.constants(one), **sizes}) <= held[0]
    assert relaxed(evaluate(states, replace(question, memory=Fraction(1)))).least == float("inf")


def test_where_nothing_fits_all_are_searched() -> None:
    question = asked(replace(SPACE, only=("zero1",)), 10**8)
    found, whole = (search(question, best_alone=best_alone).missed for best_alone in (True, False))
    assert found is not None and whole is not None and found[1:] == whole[1:]


@pytest.mark.parametrize(("space", "by"), [
    (SPACE, WORK), (Space("some", FrozenMap({"data": ("zero1",), "tp": ("", "tp_sp")})), STATES),
    (Space("some", FrozenMap({"data": ("zero1",), "pp": ("", "pp")}), only=("zero1", "zero1[*]pp")), WORK)])
def test_a_certificate_says_why_what_was_left_out_is_worse(space: Space, by: str, tmp_path: Path) -> None:
    found = search(asked(space), best_alone=True)
    assert by in {one.by for one in found.pruned.values()}
    report = prove(derive(found.best.programs.strategy, found.question.model))
    said = json.loads(text_of(certified(found, {"name": "gpt2", "options": {}}, report)))
    file = tmp_path / "best.json"

    def wrong(regenerate: bool = False) -> str:
        file.write_text(text_of({**said, "digest": digest(said)}))
        return "; ".join(f"{k} {v}" for k, v in recheck_search(str(file), regenerate=regenerate).wrong.items())

    assert said["least_bound"] is None and not wrong() and not wrong(regenerate=True)
    expression, one = next((e, one) for e, one in said["pruned"].items() if one["by"] == by)
    if by == STATES:
        term = one["stages"][0]["estimate"][0][0]
        term[0] = str(Fraction(term[0]) * (1 + Fraction(1, 10**9)))
        assert not wrong() and f"pruned {expression}" in wrong(regenerate=True)
        for piece in one["stages"][0]["estimate"]:
            for term in piece:
                term[0] = str(Fraction(term[0]) / 1000)
    else:
        said["work"] = {again: str(Fraction(seconds) * (1 + Fraction(1, 10**9))) for again, seconds in
                        said["work"].items()}
        assert not wrong() and "work says" in wrong(regenerate=True)
        said["work"] = dict.fromkeys(said["work"], "1/10000")
    assert f"pruned {expression} may be as good as the winner" in wrong()
    said["pruned"] = {}
    assert f"{expression} is missing: the space has it" in wrong()


@pytest.mark.parametrize("order", ["pp_interleaved", "pp_zb_v", *(
    pytest.param(order, marks=pytest.mark.slow) for order in ("pp", "pp_zb_h1", "pp_dualpipe_v"))])
def test_no_order_of_a_pipeline_waits_less_than_its_bound(order: str) -> None:
    question = replace(asked(Space("one", FrozenMap({"data": ("zero1",), "pp": (order,)})), 10**15),
                       model=resolve_model("llama-2-7b"))
    outline, bound = Work.of(question).least(f"zero1*{order}")
    found = evaluate(programs_for(outline.expression, question, Cache(None, question.model)), question)
    assert bound is not None and found.near is not None and bound.least <= found.near[1][1].min()


def test_the_command_certifies_a_search_that_left_strategies_out(placealg: Callable[..., Outcome], tmp_path: Path
                                                                  ) -> None:
    file = tmp_path / "best.json"
    told = placealg("search", "gpt2", "--batch", "64", "--set", "s=1024", "--no-cache", "--only",
                    "zero1,zero1[*]recompute_full", "--devices", "8", "--machine", "h100", "--best-alone",
                    "--certificate", str(file))
    assert told.code == 0, told.err
    told = placealg("recheck", str(file))
    said = " ".join(told.out.split())
    assert told.code == 0 and "2 strategies, the best by estimate is zero1" in said, told.out + told.err
    assert "left out 1 strategies, every layout of which is worse" in said and "nothing takes less" not in said


def test_the_page_says_what_was_saved(placealg: Callable[..., Outcome]) -> None:
    words = ("search", "gpt2", "--batch", "64", "--set", "s=1024", "--no-cache", "--only",
             "zero1,zero1[*]recompute_full", "--devices", "8", "--machine", "h100", "--best-alone")
    told = placealg(*words)
    assert told.code == 0 and "left out  1 strategies with" in told.out, told.out + told.err
    for option in ("--front", "--robust"):
        told = placealg(*words, option)
        assert (told.code, told.out, told.err.count("\n")) == (2, "", 1) and "leave out --best-alone" in told.err


class Counting:
    """An executor of this process, which notes how many strategies it was given at once."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def map(self, work: Callable[..., object], *columns: list[object], chunksize: int = 1) -> list[object]:
        self.given.append(len(columns[0]))
        return [work(*row) for row in zip(*columns, strict=True)]


def test_an_executor_derives_the_next_strategies_ahead_and_changes_nothing(tmp_path: Path) -> None:
    executor = Counting()
    ahead = search(asked(), tmp_path, executor, best_alone=True)
    alone = search(asked(), None, best_alone=True)
    assert sum(executor.given) > 1 < max(executor.given)
    assert (ahead.best.text, set(ahead.pruned), ahead.counts) == (alone.best.text, set(alone.pruned), alone.counts)
    without = Counting()
    assert search(asked(), None, without, best_alone=True).best.text == alone.best.text and not without.given
