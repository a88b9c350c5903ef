"""What the forward keeps and what the backward makes again: published identities, from the split rule alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
import sympy

from placealg.arith import Monomial, parse
from placealg.errors import InputError
from placealg.model.graph import Graph
from placealg.model.transformer import GPT, LLAMA, Style, gpt
from placealg.placement import SENT
from placealg.step.recompute import POLICIES, ends, forward, members, needs, replayed
from placealg.step.split import Move, Placed, PlacedOp, place

Lists = Mapping[str, tuple[str, ...]]
TP: Lists = {"tp": ("heads", "ffn", "vocab")}
TP_SP: Lists = {"tp": ("loss.none", "heads", "ffn", "vocab", "seq")}
CP: Lists = {"cp": ("seq",)}
ULYSSES: Lists = {"cp": ("core.heads", "seq")}
DRY = Style(dropout=False)
"""Without dropout."""


def number(text: str | Monomial) -> sympy.Expr:
    return parse(str(text)).fold(lambda q: sympy.Rational(q.numerator, q.denominator),
                                 lambda n: sympy.Symbol(n, positive=True))


def of(lists: Lists, style: Style = GPT, *, shared: bool = True) -> Placed:
    return place(graph_of(style), lists, shared)


def graph_of(style: Style) -> Graph:
    made = gpt(style).graph
    assert made is not None
    return made


def names(items: Iterable[Move | PlacedOp]) -> list[str]:
    """Ops by their results, moves as `NAME -> layout`."""
    return [f"{i.tensor} -> {i.target}" if isinstance(i, Move) else i.op.output for i in items]


def sent(graph: Graph, moves: Iterable[Move]) -> sympy.Expr:
    """What moves send over tp, in units of b*s*h*(tp - 1)/tp."""
    total = sympy.Integer(0)
    for move in moves:
        for row in move.rows():
            if row.row.event in SENT:
                total += number(graph.tensors[move.tensor].elements) * number(
                    SENT[row.row.event].replace("n", "tp"))
    return sympy.cancel(total / number("b*s*h*(tp - 1)/tp"))


@pytest.mark.parametrize(("lists", "style", "policy", "factor", "reduced"), [
    (TP, GPT, "whole", 12, 6), (TP, GPT, "by_dependency", 10, 5), (TP, GPT, "early_stop", 12, 6),
    (TP, DRY, "whole", 12, 6), (TP, DRY, "by_dependency", 10, 5), (TP, DRY, "early_stop", 10, 5),
    (TP, LLAMA, "whole", 12, 6), (TP, LLAMA, "by_dependency", 10, 5), (TP, LLAMA, "early_stop", 10, 5),
    (TP_SP, GPT, "whole", 12, 0), (TP_SP, GPT, "by_dependency", 11, 0), (TP_SP, DRY, "early_stop", 11, 0),
])
def test_what_a_recomputed_layer_sends(lists: Lists, style: Style, policy: str, factor: int,
                                       reduced: int) -> None:
    """Full recomputation under tensor parallelism: 12bsh(t - 1)/t, or 10 where the last reduction is not replayed."""
    placed = of(lists, style)
    there = [i.what for i in forward(placed, "layer") if isinstance(i.what, Move)]
    again = [i for i in replayed(placed, "layer", "layer", policy) if isinstance(i, Move)]
    moves = [*there, *(m.backward() for m in there), *again]
    assert sent(placed.graph, moves) == factor
    assert sum(r.row.event == "all_reduce" for m in moves for r in m.rows()) == reduced


@pytest.mark.parametrize("policy", POLICIES)
def test_a_recomputed_core_sends_nothing(policy: str) -> None:
    made = replayed(of(TP), "layer", "core", policy)
    assert not [i for i in made if isinstance(i, Move)]
    assert ("layer.attn.core.mixed" in names(made)) == (policy == "whole"), "its result stays: the projection reads it"


def test_moves_into_a_region_are_replayed_and_those_before_it_are_not() -> None:
    placed = of(CP)
    assert [n for n in names(replayed(placed, "layer", "core")) if "->" in n] == [
        "layer.attn.core.keys -> {cp: [R]}", "layer.attn.core.values -> {cp: [R]}"]
    ulysses = of(ULYSSES)
    assert len([n for n in names(replayed(ulysses, "layer", "core")) if "->" in n]) == 3, "queries, keys and values"
    assert ("layer.attn.core.mixed", ulysses.native["layer.attn.core.mixed"]) not in ends(ulysses, "layer", "core")


def test_a_copy_that_is_read_outside_stays() -> None:
    """In a parallel block the MLP reads the normed input that was gathered for attention."""
    block = of(TP_SP, Style(parallel=True))
    normed = ("layer.norm1.out", block.op("layer.attn.q").uses[0])
    assert normed not in ends(block, "layer", "layer.attn") and normed not in ends(block, "layer", "mlp")
    assert normed in ends(block, "layer", "layer")
    plain = of(TP_SP)
    assert ("layer.norm1.out", plain.op("layer.attn.q").uses[0]) in ends(plain, "layer", "layer.attn")


def test_what_ends_is_what_a_replay_makes() -> None:
    for lists in (TP, TP_SP, CP, ULYSSES):
        for style in (GPT, LLAMA, DRY):
            placed = of(lists, style)
            for region in ("layer", "core", "mlp"):
                _check_replays(placed, region)


def _check_replays(placed: Placed, region: str) -> None:
    """Every policy makes again what has ended and backward reads; what an item reads is there when it runs."""
    gone = set(ends(placed, "layer", region))
    wanted = {v for n in needs(placed, "layer") if (v := (n.tensor.name, n.layout)) in gone}
    items = {(i.at, id(i.what)): i for i in forward(placed, "layer")}
    assert wanted
    for policy in POLICIES:
        made = replayed(placed, "layer", region, policy)
        there: set[object] = set()
        for key in (k for k, i in items.items() if i.what in made):
            item = items[key]
            masked = policy == "by_dependency" and isinstance(item.what, PlacedOp) and item.what.op.row.random
            assert masked or all(v not in gone or v in there for v, _ in item.reads), (policy, item.makes)
            there.add(item.makes)
            if isinstance(item.what, PlacedOp):
                there |= {v for v in gone if v[0].rpartition(".")[0] == item.at and v[0] not in placed.native}
        assert wanted <= there, (policy, wanted - there)


def test_early_stop_is_a_prefix_and_dependency_a_subset_of_it() -> None:
    for lists, style in ((TP, GPT), (TP_SP, LLAMA), (TP, DRY)):
        placed = of(lists, style)
        whole, part, early = (names(replayed(placed, "layer", "layer", p))
                              for p in ("whole", "by_dependency", "early_stop"))
        assert early == whole[:len(early)] and set(part) <= set(early) and len(part) <= len(early) < len(whole)


def test_a_replay_needs_a_region_and_a_policy() -> None:
    placed = of(TP)
    assert [op.output for op in members(placed.graph, "core")] == [
        op.output for op in placed.graph.ops if ".core." in op.output]
    with pytest.raises(InputError, match=r"unknown region 'cor'; did you mean 'core'\?"):
        members(placed.graph, "cor")
    with pytest.raises(InputError, match=r"unknown replay 'wholly'; did you mean 'whole'\?"):
        replayed(placed, "layer", "core", "wholly")
