"""The wide spaces: zero-bubble orders with enough microbatches, choices that a proof leaves out, experts with tp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from placealg.check.prove import prove
from placealg.configurations.certificate import certified, text_of
from placealg.configurations.layouts import Devices, layouts
from placealg.configurations.left_out import decided
from placealg.configurations.question import Question
from placealg.configurations.recheck import by_formula, recheck_search
from placealg.configurations.replay import Asked, listed
from placealg.configurations.run import search
from placealg.configurations.space import Space, spaces
from placealg.cost.machines import machine
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.models.transformer import gpt
from placealg.prover.verdict import PROVED
from placealg.step.derive import derive
from placealg.step.pipeline import FILLED, ORDERS, Pipeline
from placealg.strategy.expression import parse_strategy

SIZES = {"s": Fraction(1024)}


@pytest.mark.parametrize(("order", "least"), [("zb_h1", lambda p: p), ("zb_h2", lambda p: 2 * p - 1),
                                              ("zb_v", lambda p: 2 * p - 1), ("dualpipe_v", lambda p: 2 * p)])
def test_orders_that_split_the_backward_have_enough_microbatches(order: str, least: Callable[[int], int]) -> None:
    model, devices = resolve_model("llama-3-8b"), Devices(8, 8, 24)
    plain = layouts(parse_strategy("dp*pp"), model, devices, SIZES, {})
    found = layouts(parse_strategy(f"dp*pp_{order}"), model, devices, SIZES, {})
    rows = [list(zip(*(c.tolist() for c in columns.values()), strict=True)) for columns in (plain, found)]
    names = list(plain)
    assert rows[1] == [row for row in rows[0] if row[names.index("m")] >= least(row[names.index("pp")])]
    assert 0 < len(rows[1]) < len(rows[0])
    one = Fraction(1)
    asked = Asked(8, 8, (24,), one, Fraction(0), one, "estimate", one, {}, True, SIZES)
    again = list(listed(parse_strategy(f"dp*pp_{order}"), model, asked, 32))
    assert sorted(tuple(one[n] for n in names) for one in again) == sorted(rows[1])


def test_every_order_that_splits_the_backward_is_in_the_wide_spaces() -> None:
    assert set(FILLED) <= {order for order in ORDERS if Pipeline("pp", order).splits}
    for name in ("wide", "moe_wide"):
        assert {f"pp_{order}" for order in FILLED} < set(spaces()[name].parts["pp"])


def test_two_chunks_take_two_layers_of_a_stage() -> None:
    found = layouts(parse_strategy("pp_zb_v"), resolve_model("llama-3-8b"), Devices(32, 8, 128), SIZES, {})
    assert not len(found["pp"]), "32 stages of 32 layers have one chunk each"


@pytest.mark.slow
@pytest.mark.parametrize("order", ["zb_h1", "dualpipe_v"])
def test_figures_of_uneven_stages_are_those_of_the_formulas_and_are_replayed(order: str, tmp_path: Path) -> None:
    space = Space("one", FrozenMap({"data": ("zero1",), "pp": (f"pp_{order}",)}))
    question = Question(resolve_model("llama-3-8b"), Devices(12, 4, 96), machine("h100"), Fraction(10**12), space,
                        FrozenMap(SIZES))
    found = search(question)
    assert {3, 6} <= set(found.table["pp"].tolist()), "32 layers divide by neither"
    for row in list(found.table)[::7]:
        one = found.configuration(row)
        assert by_formula(one.expression, {n: int(v) for n, v in one.sizes.items()}, question) == {
            "need": one.need, "bound": one.bound, "estimate": one.estimate, "card": one.card}
    report = prove(derive(found.best.programs.strategy, question.model))
    (tmp_path / "best.json").write_text(text_of(certified(found, {"name": "llama-3-8b", "options": {}}, report)))
    assert not recheck_search(str(tmp_path / "best.json")).wrong


@pytest.mark.slow
def test_copies_kept_for_a_step_are_left_out_since_others_need_no_more() -> None:
    wide = spaces()["wide"]
    kept = [pair for pair in wide.left_out if "lifetime=step" in pair.worse]
    space, found = decided(replace(wide, left_out=tuple(kept)), gpt())
    assert [one.verdicts for one in found] == [(PROVED, PROVED)] * 2
    assert space.parts == wide.parts


@pytest.mark.parametrize("choice", [c for c in spaces()["moe_wide"].parts["tp"] if "{" in c])
def test_experts_need_not_be_split_as_the_rest_is(choice: str) -> None:
    program = derive(parse_strategy(f"ep*{choice}"), resolve_model("deepseek-v3"))
    split = {event.path for event in program.events if "expert" in event.path and "all_to_all" in event.verb
             and "tp" in event.axes}
    assert bool(split) == ("expert.expert" in choice)
