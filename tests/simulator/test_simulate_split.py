"""The oracle on lists that split an axis by several dims, on regions that end, and on programs that say anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from random import Random
from typing import Any

import pytest
from random_dims import MODELS, edited, programs
from simulate_steps import change, drop

from placealg.errors import InputError
from placealg.models.build import graph
from placealg.models.model import Model
from placealg.models.transformer import Style, gpt
from placealg.simulator import Outcome, Setting, box, simulate, space
from placealg.simulator.setting import cells
from placealg.simulator.space import Space
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.event import Event, dim_of
from placealg.step.event_fields import values_of
from placealg.step.program import POSITIONS, Clause, Step
from placealg.step.verbs import VERBS
from placealg.step.well_formed import check_event
from placealg.strategy.spec import strategy_on

TOKEN_MEAN = {"preset": "token_mean"}


def derived(model: Model | str, dims: Mapping[str, Sequence[str]], **tables: Any) -> Step:
    """The derived step of a strategy over these lists."""
    tables.setdefault("loss", TOKEN_MEAN)
    found = MODELS[model] if isinstance(model, str) else model
    return derive(strategy_on("mine", dict.fromkeys(dims), dims=dims, **tables), found)


def tried(step: Step, sizes: Sequence[int] = (2, 2, 2), m: int = 1, tokens: int = 1, steps: int = 2) -> Outcome:
    """The outcome under equal counts."""
    bound = dict(zip(step.reference.mesh.names, sizes, strict=False))
    return simulate(step, Setting.equal(step.reference, bound, m, tokens), steps)


def space_of(step: Step, setting: Setting) -> Space:
    at = space.of(step.reference, setting)
    assert at is not None
    return at


def test_blocks_filled_up_with_zeros_sum_to_the_whole() -> None:
    step = derived("gpt", {"tp": ["heads", "ffn"]})
    made = next(k for k, e in enumerate(step.events, 1) if e.verb == "compute" and e.tensor == "layer.mlp.up")
    block = {"value": "layer.mlp.up", "axes": ("tp",), "unit": "layer", "copy": 7}
    pad = Event("forward", "pad", source="S(ffn)", **block)
    scatter = Event("forward", "reduce_scatter", to="S(ffn)", op="sum", **block)
    for put_in, equal in (((pad, scatter), True), ((scatter,), False)):
        assert tried(replace(step, events=(*step.events[:made], *put_in, *step.events[made:])), (2,)).equal == equal


MIXED: list[tuple[str, dict[str, list[str]], tuple[int, ...]]] = [
    ("mlp", {"x": ["vocab", "batch"]}, (3,)),
    ("mlp", {"x": ["ffn"], "y": ["ffn", "batch"]}, (2, 2)),
    ("mlp", {"dp": ["batch"], "x": ["ffn", "batch"]}, (2, 3)),
    ("llama", {"x": ["attn.batch", "seq"]}, (2,)),
    ("gpt", {"x": ["norm2.seq", "batch"]}, (3,)),
    ("gpt", {"dp": ["batch"], "x": ["heads", "batch"]}, (2, 3)),
    ("gpt", {"dp": ["batch"], "tp": ["loss.none", "head.none", "embedding.none", "batch"]}, (2, 2)),
    ("gpt", {"x": ["seq_kv"], "y": ["seq"]}, (2, 2)),
    ("llama", {"x": ["ffn", "batch", "embed", "seq"], "y": ["loss.none", "ffn", "vocab", "seq"]}, (2, 2)),
    ("llama", {"x": ["head_dim", "group"], "y": ["heads"]}, (2, 2)),
    ("llama", {"x": ["head_dim", "group"], "y": ["heads"], "z": ["heads", "ffn"]}, (2, 2, 2)),
]


@pytest.mark.parametrize(("model", "dims", "sizes"), MIXED)
def test_an_axis_may_split_several_dims(model: str, dims: dict[str, list[str]], sizes: tuple[int, ...]) -> None:
    assert tried(derived(model, dims), sizes, m=2).difference is None


@pytest.mark.parametrize(("model", "dims", "sizes"), MIXED)
def test_every_shard_is_even_and_none_is_empty(model: str, dims: dict[str, list[str]], sizes: tuple[int, ...]) -> None:
    step = derived(model, dims)
    at = space_of(step, Setting.equal(step.reference, dict(zip(dims, sizes, strict=True)), 1, 1))
    split = {(a, d) for event in step.events for place in (event.source, event.to)
             for d in [dim_of(place)] if d for a in event.axes}
    split |= {pair for of in step.reference.split_dims.values() for pair in of.items()}
    for dim in {d for _, d in split}:
        axes = [a for a, d in sorted(split) if d == dim]
        (indices,) = at.extent((dim,), at.sequences(0)).values()
        owners = [tuple(at.owner(a, dim, i) for a in axes) for i in indices]
        counts = {o: owners.count(o) for o in owners}
        assert len(counts) == prod(at.setting.sizes[a] for a in axes)
        assert len(set(counts.values())) == 1


@pytest.mark.parametrize("ffn", ["2", "4/h"])
def test_a_rank_may_own_nothing(ffn: str) -> None:
    """A dim that cannot be large, on more ranks than it has indices."""
    g = graph(batch="b", seq="s", embed="h", ffn=ffn)
    y = g.linear("net.up", g.data("data.x", "batch seq embed"), "batch seq ffn", "embed ffn", "ffn")
    g.linear("net.down", g.unary("net.gelu", y, "gelu"), "batch seq embed", "ffn embed")
    g.sum("loss.sum", g.unary("net.out", "net.down", "gelu"))
    step = derived(Model.of_graph("narrow", g.build()), {"x": ["ffn"]})
    assert tried(step, (3,)).difference is None
    assert not tried(drop(step, "forward.net.down.all_reduce[x]"), (3,)).equal


def test_owners_follow_the_strategy_and_not_the_events() -> None:
    step = derived("gpt", {"dp": ["batch"], "tp": ["loss.none", "heads", "ffn", "vocab", "seq"]})
    setting = Setting.equal(step.reference, {"dp": 2, "tp": 2}, 1)
    pattern = next(e.path for e in step.events if e.verb in ("slice", "reduce_scatter") and "tp" in e.axes)
    wrong = change(step, pattern, to="S(batch)")
    at, edited_at = space_of(step, setting), space_of(wrong, setting)
    assert (at.sizes, at.batch_axes) == (edited_at.sizes, edited_at.batch_axes)
    assert [at.owner("tp", "batch", i) for i in at.sequences(0)] == [
        edited_at.owner("tp", "batch", i) for i in at.sequences(0)]
    assert not simulate(wrong, setting).equal


def test_a_dead_event_changes_nothing() -> None:
    step = derived("gpt", {"cp": ["seq"]})
    dead = edit(step, {"insert": {"verb": "all_to_all", "value": "head.norm.out", "axes": ["cp"], "from": "S(seq)",
                                  "to": "S(batch)", "version": "cp9"}, "before": "forward.head.logits.compute"})
    assert len(dead.events) == len(step.events) + 1
    assert tried(dead).difference is None


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_a_region_keeps_what_enters_the_layers(model: str) -> None:
    step = derived(model, {"x": ["batch"]}, states={"activations": {"region:embedding": "M"}})
    assert any(e.verb == "free" and e.value == "embedding" for e in step.events)
    assert tried(step).difference is None


def test_a_loss_of_nothing_differs() -> None:
    step = drop(derived("mlp", {"x": ["batch"], "y": ["ffn", "vocab"]}), "forward.head.loss.compute*")
    got = tried(step).difference
    assert got is not None
    assert (got.event, got.got) == ("forward.loss.compute", "nothing (not held)")


def test_counts_along_an_axis_that_cuts_sequences() -> None:
    """A rank has as many parts of sequences with weights as the setting says; the others weigh nothing."""
    step = derived("gpt", {"dp": ["batch"], "cp": ["seq"]})
    assert step.reference.data_axes == ("dp", "cp")
    sizes = {"dp": 2, "cp": 2}
    counts = {((0, 0), 0): 1, ((0, 1), 0): 3, ((1, 0), 0): 2, ((1, 1), 0): 0}
    at = space_of(step, Setting(sizes, 1, counts))
    assert [at.tokens({"dp": r, "cp": c}, 0) for r in (0, 1) for c in (0, 1)] == [
        n * at.sizes["seq"] // 2 for n in (1, 3, 2, 0)]
    assert len(at.sequences(0)) == 3 + 2
    assert {int(n) for n in at.weights(at.extent(("batch", "seq"), at.sequences(0))).ravel()} == {0, 1, 2}
    assert simulate(step, Setting(sizes, 1, counts)).difference is None
    uncounted = derived("gpt", {"dp": ["batch"], "cp": ["seq"]}, loss={"preset": "token_mean", "count_axes": ["dp"]})
    assert not simulate(uncounted, Setting(sizes, 1, {**counts, ((1, 1), 0): 1})).equal


@pytest.mark.parametrize("seed", range(3))
def test_what_a_rank_holds_weighs_what_the_setting_says(seed: int) -> None:
    """Of any axes, sizes, counts and seeds: contiguous parts of sequences or zig-zags, cut by tensor axes, too."""
    draw = Random(seed)
    lists = [{"cp": ["seq"]}, {"cp": ["seq"], "dp": ["batch"], "tp": ["loss.none", "heads", "ffn", "vocab", "seq"]},
             {"y": ["seq"], "x": ["core.heads", "seq"]}]
    step = derived("gpt", draw.choice(lists), loss={"preset": "token_mean"})
    sizes = {a: draw.choice((1, 2, 3)) for a in step.reference.mesh.names}
    counts = {c: draw.choice((0, 1, 2, 3)) for c in cells(step.reference, sizes, 2)}
    counts[next(iter(counts))] = 1
    at = space_of(step, Setting(sizes, 2, counts, seed=draw.randrange(9)))
    names = step.reference.data_axes
    whole = at.sizes["seq"] // prod(sizes[a] for a in names if a != "dp")
    for (coordinates, k), count in counts.items():
        place = dict(zip(names, coordinates, strict=True))
        assert at.tokens(place, k) == count * whole
        mine = at.owned([a for a in names if a != "dp"], place, "seq", tuple(range(at.sizes["seq"])))
        assert len(mine) == whole
    every = sum(at.weight(at.extent(("batch", "seq"), at.sequences(k))) for k in (0, 1))
    assert every == sum(counts.values()) * whole


def test_ranks_have_a_part_of_the_front_and_of_the_back() -> None:
    """Under odd seeds the owners of a sequence are a zig-zag: with 2 ranks the first has both ends."""
    step = derived("gpt", {"cp": ["seq"]})
    for seed, mine in ((0, (0, 1)), (1, (0, 1, 6, 7))):
        at = space_of(step, Setting.equal(step.reference, {"cp": 2}, 1, seed=seed))
        assert at.owned(("cp",), {"cp": 0}, "seq", tuple(range(at.sizes["seq"]))) == mine
        assert simulate(step, at.setting).difference is None


def test_a_batch_split_somewhere_is_split_by_cells() -> None:
    step = derived("llama", {"x": ["attn.batch", "seq"]})
    at = space_of(step, Setting({"x": 2}, 1, {((0,), 0): 1, ((1,), 0): 2}))
    assert [len(at.owned(("x",), {"x": r}, "batch", at.sequences(0))) for r in (0, 1)] == [1, 2]
    assert at.tokens({"x": 0}, 0) == at.tokens({"x": 1}, 0) == 3 * at.sizes["seq"] // 2
    assert simulate(step, at.setting).difference is None


def test_a_product_over_nothing_is_nothing() -> None:
    empty = box.nothing({"i": (), "j": (0, 1)})
    found = box.product([empty, empty], ("i", "k"), {"k": (4,)})
    assert found.extent == {"i": (), "k": (4,)}


def attention(*keys: str) -> Step:
    """A step whose only random numbers are those of an attention."""
    g = graph(batch="b", seq="s", seq_kv="s", embed="h", heads="a", head_dim="h/a")
    x = g.data("data.x", "batch seq embed")
    q, k, v = (g.linear(f"net.{n}", x, "batch seq heads head_dim", "embed heads head_dim") for n in "qkv")
    k, v = (g.rename(f"net.{n}", t, {"seq": "seq_kv"}) for n, t in (("keys", k), ("values", v)))
    mixed = g.flash("net.mixed", q, k, v, over="seq_kv head_dim", dropout="keyed")
    g.sum("net.loss", mixed, to="batch seq")
    g.sum("loss.sum", "net.loss")
    return derived(Model.of_graph("attention", g.build()), {"tp": ["heads"]}, random={"dropout": keys})


@pytest.mark.parametrize(("key", "equal"), [
    ("local(heads)", False), ("rank(tp)", False), ("local(seq)", True), ("local(seq_kv)", True)])
def test_attention_with_a_dropout_draws_by_keys(key: str, equal: bool) -> None:
    outcome = tried(attention(key), m=2)
    assert outcome.equal == equal
    if outcome.difference:
        assert outcome.difference.event == "forward.net.mixed.compute"


def test_attention_with_a_dropout_reads_the_stream() -> None:
    got = tried(drop(drop(attention(), "update.rng.update"), "save.rng.store"), steps=1).difference
    assert got is not None
    assert (got.step, got.subject, got.resumed) == (2, "rng", False)


def test_flash_of_a_transformer_draws_by_keys() -> None:
    step = derived(gpt(Style(flash=True)), {"tp": ["heads", "ffn", "vocab"]}, random={"dropout": ["local(heads)"]})
    got = tried(step).difference
    assert got is not None
    assert got.subject.startswith("random factors of layer.attn.core.mixed")


@pytest.mark.parametrize("axes", [{"dp": ["batch"], "tp": ["heads", "ffn", "vocab"]},
                                  {"x": ["loss.none", "heads", "ffn", "vocab", "seq"]}])
def test_a_mask_is_drawn_again_without_the_operand(axes: dict[str, list[str]]) -> None:
    step = derived("gpt", axes, states={"activations": {"region:layer": "M"}}, schedule={"replay": "by_dependency"})
    again = "backward.layer.mlp.dropped.compute"
    made = {e.value for e in step.phase("backward") if e.verb == "compute" and not e.on_gradient}
    assert "layer.mlp.dropped" in made
    assert "layer.mlp.down" not in made
    assert tried(step).difference is None
    assert not tried(drop(step, again)).equal


def test_events_behind_the_backward_are_not_read_ahead() -> None:
    """The reads of the step after the last end where its backward begins."""
    step = derived("mlp", {"dp": ["batch"], "tp": ["ffn", "vocab"]}, states={"parameters": {"dp": "S*"}})
    compute = next(e for e in step.events if e.path == "forward.head.logits.compute")
    at = max(i for i, e in enumerate(step.events) if e.path.startswith("backward.head.weight.gather"))
    late = replace(compute, copy=2)
    assert tried(replace(step, events=(*step.events[:at + 1], late, *step.events[at + 1:]))).difference is None


EDITS = ("drop", "double", "move", "where", "at", "axes", "op", "tier", "layout", "verb", "value", "unit", "place",
         "version", "reads", "root")


def anything(draw: Random, step: Step) -> Step:
    """The step with one event changed in any way that an edit can say."""
    events, axes = list(step.events), step.reference.mesh.names
    k = draw.randrange(len(events))
    event, kind = events[k], draw.choice(EDITS)
    if kind == "drop":
        del events[k]
    elif kind == "double":
        events.insert(k, replace(event, copy=9))
    elif kind == "move":
        del events[k]
        goal = draw.randrange(len(events))
        events.insert(goal, replace(event, phase=events[goal].phase, copy=9))
    else:
        events[k] = replace(event, **changes(draw, step, event.verb, event.reads, kind, axes))
        check_event(events[k], step.reference)
    return replace(step, events=tuple(events))


def changes(draw: Random, step: Step, verb: str, reads: tuple[str, ...], kind: str,
            axes: tuple[str, ...]) -> dict[str, Any]:
    graph = step.reference.graph
    places = ["I", "R", "P", "S", *(f"S({d})" for d in graph.dims)]
    said: dict[str, Any] = {
        "where": (Clause(draw.choice(axes), draw.choice((None, 0))),), "at": (draw.choice(POSITIONS),),
        "axes": draw.choice([(a,) for a in axes] + [axes]), "op": draw.choice(("sum", "mean")),
        "tier": draw.choice(("host", "device->host")), "layout": "alt", "verb": draw.choice(list(VERBS)),
        "value": draw.choice(values_of(verb, step.reference)), "version": draw.choice(axes), "root": 5,
        "unit": draw.choice([u.name for u in step.reference.units]),
        "reads": tuple(f"{r.partition('@')[0]}@{axes[0]}" for r in reads)}
    return {draw.choice(("source", "to")): draw.choice(places)} if kind == "place" else {kind: said[kind]}


def outcomes(seed: int, count: int) -> int:
    """Run `count` random edits of random programs; how many differ from the single device."""
    draw, differ, ran = Random(seed), 0, 0
    for sample in programs(seed):
        for _ in range(4):
            try:
                step = edited(sample, draw.randrange(10**9)).step if draw.random() < 0.3 else sample.step
                for _ in range(draw.choice((1, 1, 2))):
                    step = anything(draw, step)
            except InputError:
                continue
            sizes = {a: draw.choice((1, 2, 2, 3)) if len(step.reference.mesh.names) < 3 else 2
                     for a in step.reference.mesh.names}
            counts = {c: draw.choice((0, 1, 1, 2)) for c in cells(step.reference, sizes, 1)}
            try:
                differ += not simulate(step, Setting(sizes, 1, counts), steps=1).equal
            except InputError as error:
                assert "\n" not in str(error)
            ran += 1
            if ran == count:
                return differ
    raise AssertionError


@pytest.mark.parametrize("seed", range(2))
def test_any_program_has_an_outcome(seed: int) -> None:
    assert outcomes(seed, 15) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 115))
def test_very_many_programs_have_an_outcome(seed: int) -> None:
    assert outcomes(seed, 60) > 0
