"""Over which axes states are sharded together: typed in any order, imported, spelled out, and as the table says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import placealg as pa
from placealg.models.config import resolve_model
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.sharing import GROUPS
from placealg.strategy.spec import Strategy, overlay

Run = Callable[..., Any]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "strategies.md"
DATA = ("zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp", "mics", "zeropp", "zero3*zero1[more]", "dp")
CONTEXT = ("cp", "cp_ring", "cp_ulysses", "ep", "cp*ep", "cp_ring*ep")
OTHERS = ("", "tp", "tp_sp", "pp_1f1b", "offload_optimizer", "recompute_full")


def sharded(strategy: Strategy, state: str) -> set[str]:
    return {a for a, mode in strategy.state(state).modes.items() if mode.value in ("S", "S*")}


@pytest.mark.parametrize("seed", range(20))
def test_what_joins_is_sharded_with_the_data_in_whatever_order_it_is_typed(seed: int) -> None:
    draw = Random(seed)
    data, context, other = draw.choice(DATA), draw.choice(CONTEXT), draw.choice(OTHERS)
    factors = [*data.split("*"), *context.split("*")]
    expected = parse_strategy(data)
    joins = {"ep" if c == "ep" else "cp" for c in context.split("*")}
    for order in itertools.islice(itertools.permutations(factors), 6):
        typed = parse_strategy("*".join([*order, *([other] if other else [])]))
        for state in ("parameters", "optimizer", "gradients"):
            own = sharded(expected, state)
            assert sharded(typed, state) == own | (joins if own else set()), (order, state)
        lives = expected.lifetime(expected.mesh.names[-1])
        assert all(typed.lifetime(axis) == lives for axis in joins if data != "zero3*zero1[more]")


def test_products_in_python_and_typed_are_one() -> None:
    assert pa.cp() * (pa.tp() * pa.zero3()) == (pa.cp() * pa.tp()) * pa.zero3() == parse_strategy("cp*tp*zero3")


@pytest.mark.parametrize("text", ['base = "zero1*cp"\n[states]\noptimizer = { dp = "S" }',
                                  'base = "dp*cp"\n[states]\noptimizer = { dp = "S" }',
                                  'base = "zero1*cp{seq}"'])
def test_a_layout_that_is_spelled_out_stays(text: str) -> None:
    strategy = parse_strategy_file(text).strategy
    assert sharded(strategy, "optimizer") == {"dp"}
    assert pa.prove(strategy, pa.gpt()).verdict == "PROVED"


def test_the_table_says_what_is_derived() -> None:
    """Who owns each kind of parameter, on every axis at once."""
    step = pa.derive(parse_strategy("zero1*ep*cp*tp_sp*pp"), resolve_model("mixtral-8x7b"))
    owned = {e.group: {c.axis for c in e.where} for e in step.events if e.group and e.verb == "update"}
    of = {"dense": "layer.attn.q.weight", "experts": "layer.weight",
          "norms, where tensor parallelism splits sequences": "layer.norm1.weight"}
    tied = pa.derive(parse_strategy("zero1*cp*pp"), resolve_model("gpt2"))
    ends = {e.group: {c.axis for c in e.where} for e in tied.events if e.group and e.verb == "update"}
    for group in GROUPS:
        found = owned[of[group.kind]] if group.kind in of else ends["embedding.weight"] | {"ep"}
        assert found == set(group.axes), group.kind


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for group in GROUPS:
        row = f"| {group.kind} | {' x '.join(group.axes)} | {'; '.join(group.names)} |"
        assert row in text, row


def test_one_line_says_so(placealg: Run) -> None:
    got = placealg("cost", "zero1*cp", "--model", "gpt")
    assert got.err == ('placealg: zero1*cp: states are sharded over dp and cp together, as frameworks do; [states] '
                       'optimizer = { dp = "S" } keeps cp apart\n')
    assert placealg("cost", "dp*cp", "--model", "gpt").err == ""
    wrong = placealg("cost", "zero1*cp", "--model", "gpt9")
    assert wrong.code == 2 and wrong.err.count("\n") == 1


def test_typed_and_imported_need_the_same(placealg: Run) -> None:
    """Megatron with TP 2, CP 4 and the distributed optimizer, on eight devices."""
    got = placealg("fit", "zero1*tp*cp_ring*recompute_full", "--model", "llama-3-8b", "--precision", "megatron",
                   "--set", "dp=1", "tp=2", "cp=4", "b=1", "s=131072", "--device-memory", "80GB")
    assert got.code == 0 and "FITS" in got.out and "needs at least 57.872 of 80.000 GB" in got.out


def test_the_other_layout_costs_what_it_costs() -> None:
    over = parse_strategy("zero1*cp")
    apart = overlay(over, {"states": {"optimizer": {"dp": "S"}}})
    rest = [pa.memory(s, pa.gpt()).optimizer.value(dp=2, cp=4, h=64, L=2, V=512, s=64, a=2) for s in (over, apart)]
    assert rest[1] == 4 * rest[0]
