"""Shares that are no whole numbers, filled up: against every rank's share counted by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placealg.arith import ONE, Monomial
from placealg.cost.communication import Communication, communication
from placealg.cost.formula import Formula
from placealg.cost.memory import Memory, memory
from placealg.cost.shards import largest_share
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.models.model import Model
from placealg.models.transformer import mlp, moe
from placealg.placement import nested
from placealg.step.checkpoint import Item, Sizes, coordinates, held
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import strategy_on

GPT2 = Model.from_config("gpt2")
H, LAYERS, V, S = 768, 12, 50257, 1024
LLAMA = Model.from_config("llama-3-70b")
LAYER = [(H, 1)] * 6 + [(H, 1)] * 3 + [(H, H)] * 4 + [(4 * H, H), (4 * H, 1), (H, 4 * H)]
"""(rows, elements of a row) of each parameter of GPT-2's layer: six norms and row biases, the rest by heads and ffn."""
OUTSIDE = [(V, H), (S, H), (H, 1), (H, 1)]


def padded(base: str, pad: str, model: Model = GPT2) -> Step:
    return derive(parse_strategy_file(f'base = "{base}"\n[shards]\npad = "{pad}"').strategy, model)


def by_hand(pad: str, n: int) -> int:
    """Elements that rank 0 holds of GPT-2."""
    if pad == "elements":
        units = [(LAYERS, sum(r * w for r, w in LAYER)), (1, V * H), (1, S * H), (1, 2 * H)]
        return sum(count * math.ceil(size / n) for count, size in units)
    every = [*LAYER * LAYERS, *OUTSIDE]
    return sum(math.ceil(rows / n) * width for rows, width in every)


def value(formula: Formula, sizes: Mapping[str, int]) -> Fraction | None:
    return formula.value(**{name: size for name, size in sizes.items() if name in formula.inputs})


@lru_cache
def costs(pad: str) -> tuple[Memory, Communication]:
    step = padded("zero3", pad)
    return memory(step), communication(step)


@pytest.mark.parametrize("pad", ["rows", "elements"])
@settings(deadline=None)
@given(n=st.integers(1, 2000))
def test_every_rank_holds_and_sends_as_much_as_the_first(pad: str, n: int) -> None:
    held, sent = costs(pad)
    assert held.parameters.value(dp=n) == 2 * by_hand(pad, n)
    assert held.optimizer.value(dp=n) == 12 * by_hand(pad, n)
    assert held.gradients.value(dp=n) == 2 * by_hand(pad, n)
    once = 2 * by_hand(pad, n) * (n - 1)
    table = 2 * math.ceil(V / n) * H * (n - 1) if pad == "rows" else 2 * math.ceil(V * H / n) * (n - 1)
    assert sent.total.value(dp=n) == 3 * once - table, "the last unit's table is kept from forward to backward"


@pytest.mark.parametrize("pad", ["rows", "elements"])
@pytest.mark.parametrize("base", ["zero1", "hsdp", "zero3*tp_sp"])
def test_where_sizes_divide_nothing_is_filled_up(base: str, pad: str) -> None:
    sizes = dict.fromkeys(("dp", "dp_shard", "dp_replicate", "tp", "pp"), 2) | {"b": 4, "s": 8}
    plain, mine = derive(parse_strategy_file(f'base = "{base}"').strategy, LLAMA), padded(base, pad, LLAMA)
    for one, other in [*zip(memory(mine).items(), memory(plain).items(), strict=True),
                       (("total", communication(mine).total), ("total", communication(plain).total))]:
        assert value(one[1], sizes) == value(other[1], sizes) is not None, one[0]


def test_a_table_of_experts_is_cut_between_experts() -> None:
    model = moe()
    held = memory(padded("zero3", "rows", model)).parameters
    plain = memory(derive(parse_strategy_file('base = "zero3"').strategy, model)).parameters
    free = {"dp": 8, "experts": 6, "V": 16, "h": 16, "f": 32, "L": 1, "a": 8, "kv": 8}
    more = value(held, free) - value(plain, free)
    per_expert, router = 3 * 16 * 32, 16
    assert more == 2 * Fraction(2, 8) * (per_expert + router), "each of 8 ranks keeps room for one of 6 experts"


def test_what_is_filled_up_needs_shapes() -> None:
    with pytest.raises(InputError, match=r'pad = "rows" needs the shapes of parameters, which abstract lacks'):
        memory(padded("zero3", "rows", abstract()))


def test_a_misspelt_pad_is_told_the_nearest() -> None:
    with pytest.raises(InputError, match="rows"):
        padded("zero3", "row")


AXES = ("a1", "a2", "a3")
STATES = ("parameters", "optimizer", "gradients")


def over(several: Sequence[Sequence[str]]) -> Step:
    """A program whose parameters, optimizer state and gradients are sharded over these axes, and padded."""
    states = {state: {a: ("S*" if state == "parameters" else "S") if a in axes else "R" for a in AXES}
              for state, axes in zip(STATES, several, strict=True)}
    return derive(strategy_on("several", dict.fromkeys(AXES), dims={a: ["batch"] for a in AXES}, states=states,
                              shards={"pad": "rows"}), mlp())


@settings(max_examples=40, deadline=None)
@given(several=st.lists(st.lists(st.sampled_from(AXES), unique=True), min_size=3, max_size=3),
       sizes=st.tuples(*[st.integers(2, 4)] * 3), rows=st.integers(64, 90))
@example(several=[["a1"], ["a1", "a2"], ["a2"]], sizes=(3, 2, 2), rows=67)
@example(several=[["a1"], ["a2"], []], sizes=(3, 2, 2), rows=67)
def test_a_padded_share_is_as_many_blocks_as_a_rank_has(
        several: list[list[str]], sizes: tuple[int, ...], rows: int) -> None:
    """Element by element: the rows that checkpoints give to ranks, in runs that are all as long as the longest."""
    step = over(several)
    group, mesh = step.reference.group("head.weight"), dict(zip(AXES, sizes, strict=True))
    for cut in {frozenset(axes) for axes in several if axes}:
        levels = nested(AXES, cut, [*several, cut])
        item = Item("head.weight", "weight", group.name, group.sites, FrozenMap({"vocab": Monomial.of("V")}), 1,
                    FrozenMap(), tuple(sorted(cut)), FrozenMap(), ONE, "w", levels=levels)
        given_ = Sizes(FrozenMap(mesh), FrozenMap({"V": Fraction(rows)}))
        runs = [held(item, at, given_, {"vocab": ("vocab",)})["vocab"] for at in coordinates(AXES, given_)]
        (piece,) = largest_share(step.reference, group, cut)
        total = math.ceil(piece.lengths[0].evaluate({"V": rows}) / piece.ranks.evaluate(mesh)) * (
            piece.width / Monomial.of("h")).evaluate(mesh)
        longest, most = max(b - a for run in runs for a, b in run), max(map(len, runs))
        assert total == longest * most, (several, cut, levels)
        assert {i for run in runs for a, b in run for i in range(a, b)} == {*range(rows)}
