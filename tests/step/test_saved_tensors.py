"""What the forward keeps and what the backward makes again: published identities, from the split rule alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
import sympy

from placealg.arith import Monomial, parse
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.build import graph
from placealg.models.graph import Graph
from placealg.models.transformer import GPT, LLAMA, Style, gpt
from placealg.placement import SENT, Kind, Mode
from placealg.step.recompute import POLICIES, ends, forward, members, needs, replayed
from placealg.step.saved_tensors import SavedTensor, saved_tensors
from placealg.step.split import Layout, Move, Place, Placed, PlacedOp, place

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


def layout(text: str) -> Layout:
    """From `cp S(seq), tp R`."""
    def at(word: str) -> Place:
        kind, _, dim = word.partition("(")
        return Place(Kind(kind), dim.rstrip(")"))
    return FrozenMap({a: at(p) for a, p in (part.split() for part in text.split(", "))})


def held(name: str, at: str, readers: str, again: Move | None = None) -> tuple[object, ...]:
    return name, layout(at), tuple(f"layer.{r}" for r in readers.split()), again


def moved(name: str, source: str, target: str) -> Move:
    return Move(name, layout(source), layout(target))


def kept(found: Iterable[SavedTensor]) -> list[tuple[object, ...]]:
    return [(s.tensor.name, s.layout, s.readers, s.again) for s in found]


def wide_and_narrow(*, looking: bool = False) -> Graph:
    """Layers of a norm, a wide part and a narrow one; `looking`: before them an op that keeps its own result."""
    g = graph(batch="b", seq="s", embed="h", ffn="f")
    x = g.mul("first.out", g.data("data.x", "batch seq embed"), g.parameter("first.weight", "embed"))
    x = g.norm("layer.norm", g.repeat("layer", "L", x), "embed")
    summands = [g.unary("layer.look.y", x, "tanh")] if looking else []
    act = g.unary("layer.wide.act", g.linear("layer.wide.up", x, "batch seq ffn", "embed ffn"), "relu")
    g.add("layer.out", "layer.in", *summands, g.linear("layer.narrow.down", act, "batch seq embed", "ffn embed"))
    g.sum("loss.sum", "layer.out")
    return g.build()


NORM = held("layer.in", "tp S(seq)", "norm.out")
GATHERED = moved("layer.norm.out", "tp S(seq)", "tp R")
SHARDS = place(wide_and_narrow(), {"tp": ("loss.none", "ffn", "seq")})


def test_what_is_held_as_it_is_used() -> None:
    """[I] and [R] are one layout in memory; one storage is held once for all its readers."""
    act, up = held("layer.wide.act", "tp S(ffn)", "narrow.down wide.act"), held("layer.norm.out", "tp I", "wide.up")
    found = saved_tensors(SHARDS, "layer")
    assert kept(found) == [act, up, NORM]
    assert [(str(s.local), s.mode) for s in found] == [("b*f*s/tp", Mode.R), ("b*h*s", Mode.R), ("b*h*s/tp", Mode.R)]
    rows = [held(f"layer.norm.out.{n}", "tp S(seq)", "norm.out") for n in ("mean", "rstd")]
    assert kept(saved_tensors(SHARDS, "layer", statistics=True)) == [act, up, NORM, *rows]


def test_what_is_held_as_the_shard_that_was_gathered() -> None:
    act, up, norm = saved_tensors(SHARDS, "layer", ["tp"])
    assert kept([act, up, norm]) == [held("layer.wide.act", "tp S(ffn)", "narrow.down wide.act"),
                                     held("layer.norm.out", "tp S(seq)", "wide.up", GATHERED), NORM]
    assert [s.mode for s in (act, up, norm)] == [Mode.R, Mode.GATHERED, Mode.R] and str(up.local) == "b*h*s/tp"


@pytest.mark.parametrize("sharded", [(), ("tp",)])
def test_what_is_split_along_another_dim_was_not_gathered(sharded: tuple[str, ...]) -> None:
    """What an all-to-all brings is no larger than what it took, and what a reduction brings is no partial sum."""
    across = place(wide_and_narrow(), {"tp": ("loss.none", "wide.ffn", "seq")})
    down, act, *_ = saved_tensors(across, "layer", sharded)
    assert kept([down, act]) == [held("layer.wide.act", "tp S(seq)", "narrow.down"),
                                 held("layer.wide.act", "tp S(ffn)", "wide.act")]
    g = graph(batch="b", embed="h", ffn="f")
    x = g.linear("one.down", g.data("data.x", "batch ffn"), "batch embed", "ffn embed")
    g.sum("loss.sum", g.unary("layer.act", x, "gelu"))
    assert kept(saved_tensors(place(g.build(), {"tp": ("ffn",)}), "layer", sharded)) == [
        held("one.down", "tp I", "act")]


def test_only_along_the_axes_of_shards_is_a_shard_held() -> None:
    both = place(wide_and_narrow(), {"tp": ("loss.none", "wide.ffn", "seq"), "cp": ("wide.none", "seq")})
    whole = "tp R, cp I"
    for sharded, at, source in (((), "tp I, cp I", ""),
                                (("cp",), "tp I, cp S(seq)", "tp R, cp S(seq)"),
                                (("tp",), "tp S(seq), cp I", "tp S(seq), cp I"),
                                (("cp", "tp"), "tp S(seq), cp S(seq)", "tp S(seq), cp S(seq)")):
        found, = (s for s in saved_tensors(both, "layer", sharded) if "layer.wide.up" in s.readers)
        again = moved("layer.norm.out", source, whole) if source else None
        assert kept([found]) == [held("layer.norm.out", at, "wide.up", again)]


def test_the_shard_is_that_from_which_the_first_of_several_moves_came() -> None:
    """A part that is kept whole gathers the norm; what the wide part reads is made of that copy."""
    placed = place(wide_and_narrow(looking=True), {"tp": ("loss.none", "look.none", "ffn", "seq")})
    assert [m for at, m in placed.moves if m.tensor == "layer.norm.out"] == [
        moved("layer.norm.out", "tp S(seq)", "tp I"), moved("layer.norm.out", "tp I", "tp R")]
    wide = [held("layer.wide.act", "tp S(ffn)", "narrow.down wide.act"),
            held("layer.norm.out", "tp S(seq)", "wide.up", GATHERED)]
    assert kept(saved_tensors(placed, "layer", ["tp"])) == [*wide, held("layer.look.y", "tp I", "look.y"), NORM]


def test_of_a_region_that_is_recomputed_only_what_its_replay_reads_is_kept() -> None:
    """Its result, which is read outside, stays; a replay that leaves it alone reads what its own backward does."""
    gathered_in_it = held("layer.norm.out", "tp S(seq)", "wide.up")
    whole = [held("layer.wide.act", "tp S(ffn)", "narrow.down"), NORM, gathered_in_it]
    assert kept(saved_tensors(SHARDS, "layer", recomputed=["wide"])) == whole
    assert kept(saved_tensors(SHARDS, "layer", recomputed=["wide"], replay="whole")) == whole
    assert kept(saved_tensors(SHARDS, "layer", ["tp"], recomputed=["wide"])) == whole, "the replay gathers it anyway"
    assert kept(saved_tensors(SHARDS, "layer", recomputed=["wide"], replay="by_dependency")) == [
        held("layer.wide.act", "tp S(ffn)", "narrow.down wide.act"), NORM, gathered_in_it]
    assert kept(saved_tensors(SHARDS, "layer", recomputed=["layer"])) == [held("layer.in", "tp S(seq)", "norm.out out")]


def test_a_copy_that_was_gathered_outside_is_kept_for_a_replay() -> None:
    placed = place(wide_and_narrow(looking=True), {"tp": ("loss.none", "look.none", "ffn", "seq")})
    stays = [held("layer.wide.act", "tp S(ffn)", "narrow.down"), held("layer.look.y", "tp I", "look.y"), NORM]
    assert kept(saved_tensors(placed, "layer", recomputed=["wide"])) == [
        *stays, held("layer.norm.out", "tp I", "wide.up")]
    again = moved("layer.norm.out", "tp S(seq)", "tp I")
    assert kept(saved_tensors(placed, "layer", ["tp"], recomputed=["wide"])) == [
        *stays, held("layer.norm.out", "tp S(seq)", "wide.up", again)]


def test_a_mask_is_drawn_again_without_the_operand_that_it_masks() -> None:
    g = graph(batch="b", embed="h")
    x = g.mul("first.out", g.data("data.x", "batch embed"), g.parameter("first.weight", "embed"))
    g.sum("loss.sum", g.dropout("layer.drop.out", g.scale("layer.scaled", x, "2")))
    placed = place(g.build(), {"tp": ("embed",)})
    operand, mask = (held(n, "tp S(embed)", "drop.out") for n in ("layer.scaled", "layer.drop.out.mask"))
    assert kept(saved_tensors(placed, "layer")) == [mask]
    assert kept(saved_tensors(placed, "layer", recomputed=["drop"])) == [operand]
    assert kept(saved_tensors(placed, "layer", recomputed=["drop"], replay="by_dependency")) == []


def renamed(lists: Lists) -> Placed:
    """What enters a layer is read under its own name, and weighed under others, taken one after the other."""
    g = graph(batch="b", seq="s", seq_kv="s", embed="h", wide="h")
    x = g.mul("first.out", g.data("data.x", "batch seq embed"), g.parameter("first.weight", "embed"))
    own = g.sum("layer.own", g.unary("layer.act", x, "gelu"), "batch")
    y = g.rename("layer.wide", g.rename("layer.keys", x, {"seq": "seq_kv"}), {"embed": "wide"})
    y = g.mul("layer.score.weighed", y, g.parameter("layer.weight", "wide"))
    g.sum("loss.sum", g.add("layer.out", own, g.sum("layer.score.rows", y, "batch")))
    return place(g.build(), lists)


def test_the_storage_of_a_view_is_held_under_its_own_dims() -> None:
    placed = renamed({"cp": ("seq", "seq_kv"), "tp": ("embed", "wide"), "ep": ()})
    assert placed.op("layer.score.weighed").uses[0] == layout("cp S(seq_kv), tp S(wide), ep I")
    found = saved_tensors(placed, "layer")
    assert kept(found) == [held("first.out", "cp S(seq), tp S(embed), ep I", "score.weighed act")]
    assert tuple(found[0].tensor.dims) == ("batch", "seq", "embed") and str(found[0].local) == "b*h*s/(cp*tp)"


def test_a_view_is_gathered_again_under_its_own_names() -> None:
    """Who reads the shard itself shares its storage."""
    placed = renamed({"cp": ("score.none", "seq"), "tp": ("embed", "wide")})
    own = "cp S(seq), tp S(embed)"
    assert kept(saved_tensors(placed, "layer")) == [held("first.out", "cp I, tp S(embed)", "score.weighed"),
                                                    held("first.out", own, "act")]
    again = moved("layer.wide", "cp S(seq_kv), tp S(wide)", "cp I, tp S(wide)")
    assert kept(saved_tensors(placed, "layer", ["cp"])) == [held("first.out", own, "score.weighed act", again)]
