"""What a unit's forward is made of, what its backward needs of it, and what a region drops and makes again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from placealg.errors import InputError
from placealg.models.build import graph
from placealg.models.graph import Graph
from placealg.step.recompute import (
    POLICIES,
    Value,
    ends,
    forward,
    members,
    needs,
    replayed,
    replayed_items,
)
from placealg.step.split import Move, PlacedOp, place


def layers() -> Graph:
    """Layers of a norm and an MLP with dropout inside and behind, beside a residual."""
    g = graph(batch="b", embed="h", ffn="f")
    x = g.mul("first.out", g.data("data.x", "batch embed"), g.parameter("first.weight", "embed"))
    x = g.repeat("layer", "L", x)
    up = g.linear("layer.mlp.up", g.norm("layer.pre.norm", x, "embed"), "batch ffn", "embed ffn")
    inner = g.dropout("layer.mlp.inner", g.unary("layer.mlp.act", up, "relu"))
    outer = g.dropout("layer.mlp.outer", g.linear("layer.mlp.down", inner, "batch embed", "ffn embed", "embed"))
    g.add("layer.out", x, outer)
    g.sum("head.rows", g.mul("head.square", "layer.out", "layer.out"), to="batch")
    g.sum("loss.sum", "head.rows")
    return g.build()


GRAPH = layers()
TP = place(GRAPH, {"tp": ("ffn",)}, True)
SP = place(GRAPH, {"tp": ("loss.none", "ffn", "batch")}, True)


def said(value: Value) -> str:
    return f"{value[0]} {value[1]['tp'].text}"


def made(whats: Iterable[Move | PlacedOp]) -> list[str]:
    """Ops by their results, moves as `NAME PLACE -> PLACE`."""
    return [f"{w.tensor} {w.source['tp'].text} -> {w.target['tp'].text}" if isinstance(w, Move) else w.op.output
            for w in whats]


def test_the_forward_of_a_unit_is_its_ops_and_the_redistributions_between_them() -> None:
    """An item knows which item of the unit made what it reads; parameters are left out."""
    items = forward(TP, "layer")
    assert made(i.what for i in items) == [
        "layer.pre.norm.out", "layer.pre.norm.out I -> R", "layer.mlp.up", "layer.mlp.act", "layer.mlp.inner",
        "layer.mlp.down", "layer.mlp.down P -> I", "layer.mlp.down.biased", "layer.mlp.outer", "layer.out"]
    assert [i.at for i in items] == [
        "layer.pre.norm.out", "layer.mlp.up", "layer.mlp.up", "layer.mlp.act", "layer.mlp.inner", "layer.mlp.down",
        "layer.mlp.down.biased", "layer.mlp.down.biased", "layer.mlp.outer", "layer.out"]
    assert [[(said(v), maker) for v, maker in i.reads] for i in items] == [
        [("layer.in I", None)], [("layer.pre.norm.out I", 0)], [("layer.pre.norm.out R", 1)],
        [("layer.mlp.up S(ffn)", 2)], [("layer.mlp.act S(ffn)", 3)], [("layer.mlp.inner S(ffn)", 4)],
        [("layer.mlp.down P", 5)], [("layer.mlp.down I", 6)], [("layer.mlp.down.biased I", 7)],
        [("layer.in I", None), ("layer.mlp.outer I", 8)]]
    assert [said(i.makes) for i in items] == [
        "layer.pre.norm.out I", "layer.pre.norm.out R", "layer.mlp.up S(ffn)", "layer.mlp.act S(ffn)",
        "layer.mlp.inner S(ffn)", "layer.mlp.down P", "layer.mlp.down I", "layer.mlp.down.biased I",
        "layer.mlp.outer I", "layer.out I"]


def test_redistributed_data_are_part_of_the_unit_that_reads_them() -> None:
    assert made(i.what for i in forward(SP, "first")) == ["data.x I -> S(batch)", "first.out"]
    assert made(i.what for i in forward(SP, "loss")) == ["head.rows S(batch) -> I", "loss.sum"]
    assert [maker for i in forward(SP, "loss") for _, maker in i.reads] == [None, 0]


def test_what_enters_a_repeated_unit_is_laid_out_before_it() -> None:
    entered = place(GRAPH, {"tp": ("layer.ffn", "layer.batch")}, True)
    assert all(not isinstance(i.what, Move) or i.what.tensor != "first.out" for i in forward(entered, "layer"))
    assert any(move.tensor == "first.out" for _, move in entered.moves)


def test_what_backward_needs_reader_by_reader() -> None:
    """Operands, results, and what ops keep beside them; the item that made each, or None for what enters."""
    found = [(n.item, n.tensor.name, n.layout["tp"].text, n.maker) for n in needs(TP, "layer")]
    norm = [(0, "layer.in", "I", None), (0, "layer.pre.norm.out.mean", "I", 0), (0, "layer.pre.norm.out.rstd", "I", 0)]
    assert found == [
        (8, "layer.mlp.outer.mask", "I", 8), (5, "layer.mlp.inner", "S(ffn)", 4),
        (4, "layer.mlp.inner.mask", "S(ffn)", 4), (3, "layer.mlp.act", "S(ffn)", 3),
        (2, "layer.pre.norm.out", "R", 1), *norm, *norm]
    assert {n.tensor.name: n.drawn for n in needs(TP, "layer") if n.beside} == {
        "layer.mlp.outer.mask": True, "layer.mlp.inner.mask": True, "layer.pre.norm.out.mean": False,
        "layer.pre.norm.out.rstd": False}
    assert not any(n.drawn for n in needs(TP, "layer") if not n.beside)
    assert {n.layout["tp"].text for n in needs(SP, "layer") if n.beside and n.item == 0} == {"S(batch)"}
    assert needs(TP, "loss") == ()


def test_a_region_is_a_run_of_words() -> None:
    op = next(o for o in GRAPH.ops if o.output == "layer.mlp.up")
    assert [op.within(r) for r in ("layer", "mlp", "layer.mlp", "lay", "ml", "mlp.layer", "up")] == [
        True, True, True, False, False, False, False]
    assert [o.output for o in members(GRAPH, "pre")] == ["layer.pre.norm.out"]
    assert [o.output for o in members(GRAPH, "mlp")] == [
        "layer.mlp.up", "layer.mlp.act", "layer.mlp.inner", "layer.mlp.down", "layer.mlp.down.biased",
        "layer.mlp.outer"]
    with pytest.raises(InputError) as error:
        members(GRAPH, "layer.ml")
    assert str(error.value) == "unknown region 'layer.ml'; did you mean 'layer.mlp'?"
    with pytest.raises(InputError, match=r"unknown region 'mpl'; did you mean 'mlp'\?"):
        members(GRAPH, "mpl")


@pytest.mark.parametrize(("region", "policy", "wanted"), [
    ("layer", "whole", {k: True for k in range(10)}),
    ("layer", "early_stop", {k: True for k in range(9)}),
    ("layer", "by_dependency", {0: True, 1: True, 2: True, 3: True, 4: True, 8: False}),
    ("mlp", "whole", {k: True for k in range(1, 9)}),
    ("mlp", "early_stop", {k: True for k in range(1, 9)}),
    ("mlp", "by_dependency", {1: True, 2: True, 3: True, 4: True, 8: False}),
    ("pre", "whole", {0: True}), ("pre", "early_stop", {0: True}), ("pre", "by_dependency", {0: True}),
])
def test_what_backward_makes_again(region: str, policy: str, wanted: dict[int, bool]) -> None:
    """By dependency, the outer dropout is drawn without the product that it masks, and nothing sums that product."""
    assert replayed_items(TP, "layer", region, policy) == wanted
    items = forward(TP, "layer")
    assert replayed(TP, "layer", region, policy) == tuple(items[k].what for k in sorted(wanted))
    if policy == "whole":
        assert replayed(TP, "layer", region) == tuple(items[k].what for k in wanted)


@pytest.mark.parametrize("policy", ["by_dependency", "early_stop"])
def test_where_backward_reads_nothing_that_has_ended_nothing_is_made_again(policy: str) -> None:
    """The square of the head is read by no backward op: its own reads what enters."""
    assert replayed_items(TP, "head", "head", policy) == {}
    assert replayed_items(TP, "head", "head", "whole") == {0: True, 1: True}


def test_an_unknown_policy_is_refused() -> None:
    assert POLICIES == ("whole", "by_dependency", "early_stop")
    with pytest.raises(InputError) as error:
        replayed_items(TP, "layer", "mlp", "early_stopp")
    assert str(error.value) == "unknown replay 'early_stopp'; did you mean 'early_stop'?"


def test_what_ends_with_a_region() -> None:
    """All that nothing outside reads, and what its ops keep; the last op's result and what leaves the loop stay."""
    kept = ["layer.mlp.inner.mask S(ffn)", "layer.mlp.outer.mask I"]
    inside = ["layer.pre.norm.out R", "layer.mlp.up S(ffn)", "layer.mlp.act S(ffn)", "layer.mlp.inner S(ffn)",
              "layer.mlp.down P", "layer.mlp.down I", "layer.mlp.down.biased I"]
    norm = ["layer.pre.norm.out.mean I", "layer.pre.norm.out.rstd I"]
    assert [said(v) for v in ends(TP, "layer", "mlp")] == [*inside, *kept]
    assert [said(v) for v in ends(TP, "layer", "layer")] == ["layer.pre.norm.out I", *inside, "layer.mlp.outer I",
                                                             *norm, *kept]
    assert [said(v) for v in ends(TP, "layer", "pre")] == norm
    assert [said(v) for v in ends(TP, "head", "head")] == ["head.square I"], "the loss reads the rows"
    assert ends(TP, "first", "first") == (), "its result enters the layers"
    assert ends(TP, "loss", "loss") == (), "the loss itself"
    assert [said(v) for v in ends(SP, "loss", "loss")] == ["head.rows I"]


def test_a_redistributed_copy_ends_with_its_region_though_its_source_goes_on() -> None:
    """What another unit reads, it redistributes for itself."""
    assert [said(v) for v in ends(SP, "first", "first")] == ["data.x S(batch)"]
    g = graph(batch="b", embed="h", ffn="f")
    x = g.mul("one.x", g.data("data.x", "batch embed"), g.parameter("one.weight", "embed"))
    y = g.unary("one.y", g.linear("one.up", x, "batch ffn", "embed ffn"), "relu")
    z = g.linear("two.down", y, "batch embed", "ffn embed")
    g.sum("loss.sum", g.sum("two.rows", g.mul("two.square", g.add("two.sum", x, z), z), to="batch"))
    placed = place(g.build(), {"tp": ("ffn",)}, True)
    assert [said(v) for v in ends(placed, "one", "one")] == ["one.x R", "one.up S(ffn)"]


def test_what_an_instance_hands_on_stays_though_nothing_behind_the_layers_reads_it() -> None:
    g = graph(batch="b", embed="h")
    first = g.mul("first.out", g.data("data.x", "batch embed"), g.parameter("first.weight", "embed"))
    x = g.repeat("layer", "L", first)
    scaled = g.mul("layer.scaled", x, g.parameter("layer.weight", "embed"))
    g.unary("layer.out", scaled, "tanh")
    g.sum("loss.sum", g.sum("head.rows", g.mul("head.square", first, first), to="batch"))
    placed = place(g.build(), {"tp": ("batch",)}, True)
    assert [said(v) for v in ends(placed, "layer", "layer")] == ["layer.scaled S(batch)"]
