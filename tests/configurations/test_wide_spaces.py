"""The wide spaces: zero-bubble orders with enough microbatches, choices that a proof leaves out, experts with tp."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from placealg.configurations.layouts import Devices, layouts
from placealg.configurations.left_out import decided
from placealg.configurations.replay import Asked, listed
from placealg.configurations.space import spaces
from placealg.model.config import resolve_model
from placealg.model.transformer import gpt
from placealg.prover.verdict import PROVED
from placealg.step.derive import derive
from placealg.step.pipeline import ENOUGH
from placealg.strategy.expression import parse_strategy

SIZES = {"s": Fraction(1024)}


@pytest.mark.parametrize(("order", "least"), [("zb_h1", lambda p: p), ("zb_h2", lambda p: 2 * p - 1)])
def test_zero_bubble_orders_have_enough_microbatches(order: str, least) -> None:  # type: ignore[no-untyped-def]
    model, devices = resolve_model("gpt2"), Devices(8, 8, 24)
    plain = layouts(parse_strategy("dp*pp"), model, devices, SIZES, {})
    found = layouts(parse_strategy(f"dp*pp_{order}"), model, devices, SIZES, {})
    rows = [list(zip(*(c.tolist() for c in columns.values()), strict=True)) for columns in (plain, found)]
    names = list(plain)
    assert rows[1] == [row for row in rows[0] if row[names.index("m")] >= least(row[names.index("pp")])]
    assert 0 < len(rows[1]) < len(rows[0])
    asked = Asked(8, 8, (24,), *map(Fraction, (1, 0, 1)), "estimate", Fraction(1), {}, True, SIZES)
    again = list(listed(parse_strategy(f"dp*pp_{order}"), model, asked, 12))
    assert sorted(tuple(one[n] for n in names) for one in again) == sorted(rows[1])


def test_every_order_that_splits_the_backward_is_in_the_wide_spaces() -> None:
    for name in ("wide", "moe_wide"):
        assert {f"pp_{order}" for order in ENOUGH} < set(spaces()[name].parts["pp"])


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
