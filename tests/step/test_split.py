"""The split rule: tensor, sequence and data parallelism, and what they send and save, follow from lists of dims."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import sympy

from placealg.arith import Monomial, parse
from placealg.errors import InputError
from placealg.models.build import graph
from placealg.models.graph import Graph
from placealg.models.model import Model
from placealg.models.transformer import GPT, Style, gpt, moe
from placealg.placement import DUAL, SENT, Kind
from placealg.step.derive import derive
from placealg.step.saved_tensors import saved_tensors
from placealg.step.split import (
    Move,
    Place,
    Placed,
    _Rule,
    data_axes,
    entry_dims,
    place,
    split_dims,
    split_of,
    summed,
)
from placealg.strategy.spec import strategy_on

TP = {"tp": ("heads", "ffn", "vocab")}
TP_SP = {"tp": ("loss.none", "heads", "ffn", "vocab", "seq")}
BYTES = {"act": 2, "mask": 1, "stat": 4, "ids": 8}
PARALLEL = Style(parallel=True)


def number(text: str | Monomial) -> sympy.Expr:
    return parse(str(text)).fold(lambda q: sympy.Rational(q.numerator, q.denominator),
                                 lambda n: sympy.Symbol(n, positive=True))


def per_sbh(placed: Placed, *, sharded: Iterable[str] = (), core: bool = True) -> sympy.Expr:
    """Saved bytes of one layer in units of s*b*h; without the attention core when `core` is False."""
    kept = saved_tensors(placed, "layer", tuple(sharded))
    total = sum(number(t.local) * BYTES[t.tensor.element] for t in kept
                if core or any(".core." not in r for r in t.readers))
    return sympy.expand(total / number("s*b*h"))


def sent(placed: Placed, *, sharded: Iterable[str] = ()) -> sympy.Expr:
    """What a layer sends over tp, forward and backward, in units of b*s*h*(tp - 1)/tp."""
    total = sympy.Integer(0)
    again = [t.again for t in saved_tensors(placed, "layer", tuple(sharded)) if t.again]
    moves = [m for at, m in placed.moves if at.startswith("layer.") and m.tensor != "embedding.dropped"]
    for move in (*moves, *(m.backward() for m in moves), *again):
        tensor = placed.graph.tensors[move.tensor]
        if tensor.kind == "parameter":
            continue
        for row in move.rows():
            if row.row.event in SENT:
                total += number(tensor.elements) * number(SENT[row.row.event].replace("n", "tp"))
    return sympy.cancel(total / number("b*s*h*(tp - 1)/tp"))


def of(lists: dict[str, tuple[str, ...]], style: Style = GPT, *, shared: bool = True) -> Placed:
    made = gpt(style).graph
    assert made is not None
    return place(made, lists, shared)


@pytest.mark.parametrize(("lists", "sharded", "formula"), [
    ({}, (), "34 + 5*a*s/h"),
    (TP, (), "10 + 24/tp + 5*a*s/(h*tp)"),
    (TP_SP, ("tp",), "34/tp + 5*a*s/(h*tp)"),
    (TP_SP, (), "30/tp + 4 + 5*a*s/(h*tp)"),
])
def test_saved_bytes_of_a_gpt_layer(lists: dict[str, tuple[str, ...]], sharded: tuple[str, ...], formula: str) -> None:
    assert sympy.expand(per_sbh(of(lists), sharded=sharded) - number(formula)) == 0


def test_flash_attention_saves_a_statistic_instead_of_the_square() -> None:
    style = Style(flash=True, dropout=True)
    assert sympy.expand(per_sbh(of({}, style)) - number("34 + 4*a/h")) == 0


@pytest.mark.parametrize(("lists", "style", "shared", "sharded", "factor"), [
    (TP, GPT, True, (), 8),
    (TP_SP, GPT, True, ("tp",), 10),
    (TP_SP, GPT, True, (), 8),
    (TP, GPT, False, (), 12),
    (TP, PARALLEL, True, (), 4),
])
def test_what_a_layer_sends_over_the_tensor_axis(lists: dict[str, tuple[str, ...]], style: Style, shared: bool,
                                                 sharded: tuple[str, ...], factor: int) -> None:
    assert sent(of(lists, style, shared=shared), sharded=sharded) == factor


def test_which_gradients_are_partial_over_which_axes() -> None:
    both = {"dp": ("batch",), **TP_SP}
    found = summed(of(both))
    assert found["layer.norm1.weight"] == ("dp", "tp")
    assert found["layer.attn.out.bias"] == ("dp", "tp")
    assert found["layer.attn.q.weight"] == found["layer.attn.q.bias"] == found["embedding.weight"] == ("dp",)
    plain = summed(of({"dp": ("batch",), **TP}))
    assert plain["layer.norm1.weight"] == plain["layer.attn.out.bias"] == ("dp",)


def test_parameters_rest_split_along_their_own_dims() -> None:
    native = of(TP_SP).native
    assert native["layer.attn.q.weight"]["tp"] == Place(Kind.S, "heads")
    assert native["layer.mlp.down.weight"]["tp"] == Place(Kind.S, "ffn")
    assert native["embedding.weight"]["tp"] == Place(Kind.S, "vocab")
    assert native["layer.norm1.weight"]["tp"] == Place(Kind.I)


def test_context_parallel_gathers_keys_and_values() -> None:
    placed = of({"cp": ("seq",)})
    gathered = {m.tensor for _, m in placed.moves for r in m.rows() if r.row.event == "all_gather"}
    assert gathered == {"layer.attn.core.keys", "layer.attn.core.values"}
    assert all(r.row.event == "reduce_scatter" for _, m in placed.moves if m.tensor in gathered
               for r in m.backward().rows())


def test_grouped_heads_are_split_along_kv() -> None:
    placed = of(TP, Style(grouped=True))
    assert placed.op("layer.attn.q").split["tp"] == placed.op("layer.attn.k").split["tp"] == "kv"


def test_no_partial_sum_enters_a_nonlinear_op() -> None:
    for lists in (TP, TP_SP, {"cp": ("seq",)}, {"dp": ("batch",), **TP_SP}):
        for made in of(lists).ops:
            if not made.op.row.linear:
                assert all(p.kind is not Kind.P for use in made.uses for p in use.values()), made.op.output


def test_the_way_back_is_the_dual() -> None:
    for _, move in of({"dp": ("batch",), **TP_SP}).moves:
        for axis, at in move.backward().target.items():
            assert at.kind is DUAL[move.source[axis].kind]
        assert move.backward().backward() == move


def test_a_layer_is_laid_out_as_it_was_entered() -> None:
    for lists in (TP, TP_SP):
        native = of(lists).native
        assert native["layer.in"] == native["layer.out"]


def test_a_new_op_changes_the_totals_by_itself() -> None:
    def of_mlp(gate: bool) -> Graph:
        g = graph(batch="b", seq="s", embed="h", ffn="f")
        x = g.repeat("layer", "L", g.data("data.input", "batch seq embed"))
        y = g.einsum("layer.up", x, g.parameter("layer.up.weight", "embed ffn"), to="batch seq ffn")
        y = g.mul("layer.gated", y, g.unary("layer.tanh", y, "tanh")) if gate else g.unary("layer.tanh", y, "tanh")
        g.einsum("layer.down", y, g.parameter("layer.down.weight", "ffn embed"), to="batch seq embed")
        g.sum("loss.sum", "layer.down")
        return g.build()
    plain, gated = (sum(number(t.local) for t in saved_tensors(place(of_mlp(g), {}), "layer")) for g in (False, True))
    assert sympy.expand(gated - plain - number("2*b*s*f")) == 0


def test_a_parameter_split_in_two_ways_is_refused() -> None:
    g = graph(batch="b", embed="h", ffn="h")
    x, w = g.data("data.input", "batch embed"), g.parameter("net.weight", "embed ffn")
    y = g.einsum("net.up", x, w, to="batch ffn")
    g.sum("loss.sum", g.einsum("net.back", y, w, to="batch embed", region="second"))
    with pytest.raises(InputError, match=r"op 'net.back' would split parameter 'net.weight'"):
        place(g.build(), {"tp": ("second.none", "ffn")})


def test_equal_rows_on_several_axes_are_one_event() -> None:
    whole, partial = Place(Kind.I), Place(Kind.P)
    from placealg.frozen import FrozenMap
    move = Move("x", FrozenMap({"a": partial, "b": partial}), FrozenMap({"a": whole, "b": whole}))
    assert [(r.axes, r.row.event) for r in move.rows()] == [(("a", "b"), "all_reduce")]


# what is carried on, and what is refused

def test_a_partial_sum_is_carried_through_where_nothing_else_needs_a_gradient() -> None:
    routed = moe().graph
    ops = {op.output: op for op in routed.ops}
    rule = _Rule(routed, {}, True, {})
    dispatch, combine, add = ops["layer.dispatch.pairs"], ops["layer.combine.sum"], ops["layer.residual1"]
    for op, letters, carried in (
            (dispatch, "PI", True), (dispatch, "IP", False), (dispatch, "PR", False), (dispatch, "PS", False),
            (dispatch, "PP", False), (dispatch, "II", False), (combine, "IPI", False), (combine, "PPI", False),
            (ops["layer.router.logits"], "PI", False), (add, "PP", True),
            (add, "PI", False), (ops["layer.norm1.out"], "PI", False)):
        assert rule.carries(op, [Kind(letter) for letter in letters]) == carried, (op.output, letters)


def test_a_sum_that_shrinks_is_carried_and_what_weighs_it_gets_a_part_of_its_gradient() -> None:
    """Of what is sent on in copies the gradient is carried: each copy's readers are split, no rank has all of it."""
    routed = moe().graph
    ops = {op.output: op for op in routed.ops}
    rule = _Rule(routed, {"tp": ("heads", "ffn"), "ep": ("expert.expert",)}, True, {})
    assert rule.carries(ops["layer.combine.sum"], [Kind.P, Kind.I, Kind.I])
    assert {o for o in ops for a in rule.lists if rule.spreads(ops[o], a)} == {"layer.dispatch.pairs"}
    assert rule.spreads(ops["layer.dispatch.pairs"], "tp") and not rule.spreads(ops["layer.dispatch.pairs"], "ep")
    made = place(routed, rule.lists)
    natives = [repr(made.native[name]["tp"]) for name in ("layer.dispatch.pairs", "layer.combine.sum")]
    assert natives == ["[R]", "[P]"]
    pairs, chosen = made.op("layer.dispatch.pairs"), made.op("layer.combine.sum")
    assert [repr(use["tp"]) for use in (*pairs.uses, *chosen.uses)] == ["[R]", "[I]", "[P]", "[R]", "[I]"]


def test_the_gradient_of_a_tied_parameter_is_summed_over_the_stages() -> None:
    found = summed(of({"pp": ("layer",), "tp": ("heads", "ffn", "vocab")}))
    assert found["embedding.weight"] == ("pp",) and found["layer.mlp.up.weight"] == ()


def used_twice(first: str, second: str) -> Graph:
    """Two products with one vector, in two regions."""
    g = graph(batch="b", seq="s", embed="h")
    weight = g.parameter("net.weight", "embed")
    x = g.mul(first, g.data("data.x", "batch seq embed"), weight)
    y = g.mul(second, g.unary("net.tanh", x, "tanh"), weight)
    g.sum("net.rows", y, to="batch seq")
    g.sum("loss.sum", "net.rows")
    return g.build()


@pytest.mark.parametrize("region", ["one", "two"])
def test_a_parameter_is_split_at_all_of_its_uses_or_at_none(region: str) -> None:
    made = place(used_twice("net.one.y", "net.two.y"), {"tp": (f"{region}.seq",)})
    split, whole = ("net.one.y", "net.two.y") if region == "one" else ("net.two.y", "net.one.y")
    with pytest.raises(InputError) as error:
        summed(made)
    assert str(error.value) == (f"'net.weight' is used by '{split}', which tp splits, and by '{whole}', which it keeps "
                                "whole: its gradient would be partly a sum; split both, or neither")


def test_a_region_with_the_name_of_a_tensor_is_not_recomputed() -> None:
    model = Model.of_graph("named", used_twice("net.one", "net.one.y"))
    strategy = strategy_on("mine", {"dp": None}, dims={"dp": ["batch"]},
                           states={"activations": {"region:one": "M"}})
    with pytest.raises(InputError) as error:
        derive(strategy, model)
    assert str(error.value) == "region 'net.one' is not recomputed: a tensor has its name; did you mean 'net'?"


def test_of_several_dims_that_an_entry_names_an_axis_takes_the_first() -> None:
    made = gpt(Style(grouped=True)).graph
    ops = {op.output: op for op in made.ops}
    query = ops["layer.attn.q"]
    assert {"kv", "group"} <= set(made.iteration_dims(query))
    assert entry_dims("heads", query, made.iteration_dims(query)) == ("kv",)


def test_no_axis_splits_an_op_along_what_it_normalises() -> None:
    """A lookup and a loss can be: what they give is a partial sum, or merged."""
    made = gpt().graph
    over = {op.output: split_of(op.over, op, made) for op in made.ops if op.over}
    assert {name: dim for name, dim in over.items() if dim} == {
        "embedding.tokens": "vocab", "embedding.positions": "position", "head.loss": "vocab"}
    assert set(over) > {"layer.norm1.out", "layer.attn.core.probs"}


def test_a_view_is_not_split_itself() -> None:
    """It is laid out as what it views, whatever the lists say."""
    placed = of({"dp": ("batch",), **TP})
    views = [p for p in placed.ops if p.op.row.view]
    assert views and all(p.split == {"dp": "", "tp": ""} for p in views)
    for view in views:
        (read,), made = view.uses, view.result
        assert made == placed.native[view.op.output]
        assert {a: (at.kind, view.op.rename.get(at.dim, at.dim)) for a, at in read.items()} == {
            a: (at.kind, at.dim) for a, at in made.items()}


def test_the_loss_is_made_of_whole_values() -> None:
    """A partial sum is not carried into the last op: along that axis every rank has the whole loss."""
    g = graph(batch="b", embed="h", ffn="f")
    x = g.einsum("net.up", g.data("data.x", "batch embed"), g.parameter("net.up.weight", "embed ffn"), to="batch ffn")
    g.sum("loss.sum", g.einsum("net.down", x, g.parameter("net.down.weight", "ffn embed"), to="batch embed"))
    placed = place(g.build(), {"tp": ("ffn",), "dp": ("batch",)})
    (summed_up,) = placed.moves_before("loss.sum")
    assert summed_up.tensor == "net.down" and [r.row.event for r in summed_up.rows()] == ["all_reduce"]
    assert data_axes(placed) == ("dp",)


def test_redistributions_are_shared_unless_it_is_said_otherwise() -> None:
    made = gpt().graph
    assert place(made, TP) == place(made, TP, True) != place(made, TP, False)


def test_a_pipeline_splits_all_but_tied_parameters_by_layers() -> None:
    placed = of({"pp": ("layer",), **TP})
    dims = split_dims(placed)
    assert (placed.pipeline, of(TP).pipeline) == ("pp", "")
    assert dims["embedding.weight"] == {"tp": "vocab"}
    assert {name for name, found in dims.items() if "pp" not in found} == {"embedding.weight"}
    assert dims["layer.mlp.up.weight"] == {"tp": "ffn", "pp": "layer"}


def test_a_repeated_unit_whose_layout_never_settles_is_refused() -> None:
    """A product with a partial sum, all of data: partial where a whole value enters, whole where a partial one does."""
    g = graph(batch="b", embed="h", inner="f")
    x = g.repeat("one", "L", g.data("data.x", "batch embed"))
    y = g.einsum("one.y", g.data("data.a", "batch inner"), g.data("data.b", "inner embed"), to="batch embed")
    g.einsum("one.out", x, y, to="batch embed")
    g.sum("loss.sum", g.mul("head.scaled", "one.out", g.parameter("head.weight", "embed")))
    with pytest.raises(InputError) as error:
        place(g.build(), {"tp": ("inner",)})
    assert str(error.value) == "what leaves a repeated unit is never laid out as what entered it"
