"""The oracle on op graphs: exact derivatives; right op-level programs equal the single device, wrong ones differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from simulate_steps import change, double, drop, found

from placealg.check.prove import prove
from placealg.frozen import FrozenMap
from placealg.models.build import graph
from placealg.models.graph import Graph
from placealg.models.model import Model
from placealg.models.transformer import LLAMA, Style, gpt, mla, mlp, transformer
from placealg.prover.verdict import PROVED
from placealg.simulator import Outcome, Setting, box, device, field, functions, redistribute, simulate, space, unary
from placealg.simulator.box import Box
from placealg.simulator.field import PRIME, Array, Residues
from placealg.simulator.reference import State, slots
from placealg.step.derive import derive
from placealg.step.program import Clause, Step
from placealg.strategy.expression import parse_strategy

SMALL = 10_007
"""A prime whose square is a modulus: numbers a + SMALL * b are dual numbers, since SMALL**2 is 0."""


def llama() -> Model:
    """A grouped, gated, rotary model with flash attention."""
    return Model.of_graph("llama", llama_graph())


def llama_graph(**more: bool) -> Graph:
    sizes = {"vocab": "V", "embed": "h", "kv": "kv", "group": "a/kv", "head_dim": "h/a", "ffn": "f"}
    return transformer(replace(LLAMA, **more), sizes)


def every_op() -> Graph:
    """What dense transformers lack: more unary functions, cast, copy, a product of three, a sum that keeps dims."""
    g = graph(batch="b", seq="s", embed="h", other="h")
    x = g.einsum("net.in", g.data("data.x", "batch seq embed"), g.parameter("net.in.weight", "embed other"),
                 to="batch seq other")
    y = g.unary("net.tanh", g.cast("net.cast", x), "tanh")
    z = g.unary("net.relu", g.copy("net.copy", x), "relu")
    y = g.mul("net.gated", y, g.unary("net.sigmoid", x, "sigmoid"), g.unary("net.reciprocal", x, "reciprocal"))
    w = g.mul("net.mul", y, z, g.parameter("net.gain", "other"))
    v = g.einsum("net.three", w, y, g.parameter("net.three.weight", "other"), to="batch seq")
    g.sum("net.rows", g.add("net.add", v, g.sum("net.less", z, to="batch seq")), to="batch")
    g.sum("loss.sum", "net.rows")
    return g.build()


GRAPHS = {
    "gpt": lambda: gpt().graph,
    "llama": llama_graph,
    "llama with dropout": lambda: llama_graph(dropout=True),
    "parallel, untied, flash": lambda: gpt(Style(parallel=True, tied=False, flash=True)).graph,
    "mlp": lambda: mlp().graph,
    "mla": lambda: mla().graph,
    "every op": every_op,
}


@pytest.fixture
def dual(monkeypatch: pytest.MonkeyPatch) -> int:
    """The modulus SMALL**2 in place of the prime."""
    modulus = SMALL * SMALL

    def inverse(numbers: Array) -> Array:
        flat = [pow(x, -1, modulus) if math.gcd(x, modulus) == 1 else 0 for x in numbers.ravel().tolist()]
        return np.array(flat, dtype=np.int64).reshape(numbers.shape)

    def exponential(numbers: Array) -> Array:
        """Its own derivative: x**2 + 3 of the large part of x, times 1 + the small part."""
        large = numbers % SMALL
        return (large * large + 3) % modulus * (1 + numbers - large) % modulus

    monkeypatch.setattr(functions, "exponential", exponential)
    monkeypatch.setattr(field, "PRIME", modulus)
    for module in (field, functions, redistribute, unary):
        monkeypatch.setattr(module, "inverse", inverse)
    return modulus


def rise(model: Model, modulus: int) -> tuple[int, int]:
    """(how far the loss at x + SMALL * v is above that at x, SMALL times the gradient along v), modulo SMALL**2."""
    step = derive(parse_strategy("dp"), model)
    step = replace(step, reference=replace(step.reference, graph=model.graph), events=())
    setting = Setting({"dp": 1}, 1, {((0,), 0): 2})
    at = space.of(step.reference, setting)
    assert at is not None
    here = device.trajectory(step.reference, setting, 0)[0]
    rng = np.random.default_rng(0)
    ways = {slot: tuple(Residues(rng.integers(1, SMALL, size=field.residues(n).shape)) for n in here.weight[slot])
            for slot in slots(step.reference, setting.layers)}
    moved = {slot: tuple(Residues((field.residues(n) + SMALL * v.numbers) % modulus) for n, v in zip(
        here.weight[slot], way, strict=True)) for slot, way in ways.items()}
    gradient, before = device.gradient(at, 0, here)
    _, after = device.gradient(at, 0, State(moved, here.moments, here.step, here.rng))
    along = sum(int((field.residues(n) * v.numbers % modulus).sum()) for slot, way in ways.items()
                for n, v in zip(gradient[slot], way, strict=True))
    higher = sum(int((space.seed_of(at, 0, one, space.weights(at)).numbers * (after[of].numbers - one.numbers)
                      % modulus).sum()) for of, one in before.items())
    return higher % modulus, SMALL * along % modulus


@pytest.mark.parametrize("name", GRAPHS)
def test_backward_differentiates_forward(name: str, dual: int) -> None:
    got, want = rise(Model.of_graph(name, GRAPHS[name]()), dual)
    assert got == want
    assert got, "the loss moves"


@pytest.mark.parametrize(("kind", "name"), [
    ("gelu", "gpt"), ("silu", "llama"), ("tanh", "every op"), ("relu", "every op"), ("softmax", "gpt"),
    ("sigmoid", "every op"), ("reciprocal", "every op"), ("flash_rope", "mla"),
    ("layer_norm", "gpt"), ("rms_norm", "llama"), ("flash", "llama"), ("rope", "llama"), ("cross_entropy", "gpt"),
    ("lookup", "gpt")])
def test_a_wrong_derivative_is_seen(kind: str, name: str, dual: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function made another one, its derivative left as it is."""
    if kind in functions.UNARY:
        wrong: Any = lambda x: (functions_before[kind](x) + x) % dual  # noqa: E731
        table: Any = functions.UNARY
    else:
        def wrong(*given: Any) -> tuple[Box, functions.Kept]:
            made, kept = functions_before[kind](*given)
            return Box(made.extent, made.numbers * made.numbers % dual), kept
        table = functions.ROWS
    functions_before = dict(table)
    monkeypatch.setitem(table, kind, wrong)
    got, want = rise(Model.of_graph(name, GRAPHS[name]()), dual)
    assert got != want


MODELS: Mapping[str, Callable[[], Model]] = {"gpt": gpt, "llama": llama, "mlp": mlp}


def derived(text: str, model: str = "gpt", dims: Mapping[str, tuple[str, ...]] | None = None,
            **tables: Mapping[str, Any]) -> Step:
    """The derived step of a strategy of the catalogue, with tables changed."""
    strategy = parse_strategy(text)
    dims = dims or ({"tp": ("ffn", "vocab")} if model == "mlp" else {})
    strategy = replace(strategy, dims=strategy.dims.plus(dims),
                       tables=strategy.tables.plus({name: FrozenMap(table) for name, table in tables.items()}))
    return derive(strategy, MODELS[model]())


def tried(step: Step, size: int = 2, m: int = 1, tokens: int = 1, **fields: Any) -> Outcome:
    """The outcome under equal counts."""
    sizes = dict.fromkeys(step.reference.mesh.names, size)
    return simulate(step, Setting.equal(step.reference, sizes, m, tokens, **fields))


STRATEGIES = ("tp", "tp_sp", "tp_sp_keep", "dp*tp", "zero1*tp", "zero3*tp_sp", "hsdp*tp_sp", "zero3*tp*recompute_full",
              "zero1*tp_sp*recompute_selective", "tp_sp*recompute_full")


@pytest.mark.some(3)
@pytest.mark.parametrize("model", ["gpt", "llama"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_right_programs_equal_the_single_device(name: str, model: str) -> None:
    outcome = tried(derived(name, model), m=1 if name.startswith("hsdp") else 2)
    assert outcome.difference is None
    assert outcome.observed > 5000


@pytest.mark.parametrize(("name", "model", "size", "m"), [
    ("tp", "gpt", 1, 2), ("tp", "gpt", 3, 1), ("tp_sp", "llama", 3, 2), ("zero3*tp_sp", "llama", 3, 1),
    ("tp", "mlp", 4, 2), ("zero3*tp", "mlp", 2, 2)])
def test_other_sizes(name: str, model: str, size: int, m: int) -> None:
    assert tried(derived(name, model), size, m).difference is None


def test_axes_of_different_sizes() -> None:
    step = derived("zero3*tp_sp")
    for sizes in ({"dp": 3, "tp": 2}, {"dp": 1, "tp": 3}):
        assert simulate(step, Setting.equal(step.reference, sizes, 1, 2)).difference is None


def test_more_steps_and_layers() -> None:
    assert tried(derived("tp_sp", "llama"), layers=3).difference is None
    step = derived("zero3*tp", "mlp")
    assert simulate(step, Setting.equal(step.reference, {"dp": 2, "tp": 2}, 1), steps=4).difference is None


@pytest.mark.parametrize("policy", ["whole", "by_dependency", "early_stop"])
@pytest.mark.parametrize("name", ["tp*recompute_full", "tp_sp*recompute_selective"])
def test_every_replay_policy(name: str, policy: str) -> None:
    assert tried(derived(name, schedule={"replay": policy})).difference is None


def test_a_redistribution_per_use() -> None:
    assert tried(derived("zero1*tp", schedule={"sharing": "per_use"})).difference is None


@pytest.mark.parametrize("optimizer", ["muon", "lamb"])
def test_matrix_optimizers_gather_split_matrices(optimizer: str) -> None:
    step = derived("zero1*tp", optimizer={"name": optimizer})
    assert tried(step).difference is None
    assert not tried(drop(step, "update.layer.weight.grad_sum.all_gather*")).equal


@pytest.mark.parametrize("optimizer", ["muon", "lamb", "adafactor"])
def test_matrices_are_whole_on_their_stage(optimizer: str) -> None:
    step = derived("zero1*tp*pp", optimizer={"name": optimizer})
    gathers = [e for e in step.events if e.verb == "all_gather" and e.phase == "update"]
    assert gathers and all("pp" not in e.axes for e in gathers)
    assert tried(step).difference is None and prove(step).verdict == PROVED


@pytest.mark.parametrize(("text", "dims"), [
    ("dp", {"dp": ("seq",)}), ("zero3*tp", {"tp": ("seq",)}), ("tp", {"tp": ("embed",)}),
    ("dp*tp", {"dp": ("heads", "ffn"), "tp": ("heads", "ffn", "vocab")}), ("dp*tp", {"dp": ("seq",)})])
def test_any_list_of_dims(text: str, dims: Mapping[str, tuple[str, ...]]) -> None:
    assert tried(derived(text, dims=dims)).difference is None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["zero3*tp_sp", "dp*tp*recompute_full"])
def test_token_mean_needs_no_equal_counts(name: str, seed: int) -> None:
    step = derived(name, "llama", loss={"preset": "token_mean"})
    assert simulate(step, Setting.unequal(step.reference, {"dp": 2, "tp": 2}, 2, seed=seed)).difference is None
    means = derived(name, "llama")
    assert not simulate(means, Setting.unequal(means.reference, {"dp": 2, "tp": 2}, 2, seed=seed)).equal


def test_token_mean_with_empty_cells() -> None:
    step = derived("zero3*tp_sp", loss={"preset": "token_mean"})
    counts = {((0,), 0): 2, ((1,), 0): 0, ((0,), 1): 0, ((1,), 1): 1}
    assert simulate(step, Setting({"dp": 2, "tp": 2}, 2, counts)).difference is None


def bias_before_the_reduction() -> Step:
    """Row-parallel output whose bias is added on every rank, and summed with the partial products."""
    step = change(derived("tp"), "forward.layer.attn.out.biased.compute",
                  reads=("layer.attn.out", "layer.attn.out.bias"))
    step = change(step, "forward.layer.attn.dropped.compute", reads=("layer.attn.out.biased@tp",))
    (i,), (j,) = found(step, "forward.layer.attn.out.all_reduce[tp]"), found(step, "forward.layer.attn.dropped.compute")
    events = list(step.events)
    moved = replace(events.pop(i), value="layer.attn.out.biased")
    return replace(step, events=(*events[:j - 1], moved, *events[j - 1:]))


MUTANTS: dict[str, Callable[[], Step]] = {
    "partial sums used as sums": lambda: drop(derived("tp"), "forward.layer.attn.out.all_reduce[tp]"),
    "input gradient not summed": lambda: drop(derived("tp"), "backward.layer.norm1.out.grad.all_reduce[tp]"),
    "gradient of the residual summed as well": lambda: change(
        derived("tp"), "backward.layer.norm1.out.grad.all_reduce[tp]", value="layer.residual1.grad", version=""),
    "summed twice": lambda: double(derived("tp"), "forward.layer.mlp.down.all_reduce[tp]"),
    "a mean for a sum": lambda: change(derived("tp"), "forward.layer.mlp.down.all_reduce[tp]", op="mean"),
    "bias before the reduction": bias_before_the_reduction,
    "cross entropy of local logits": lambda: change(derived("tp"), "forward.head.loss.compute[tp]", axes=()),
    "norm gradient not summed over tp": lambda: drop(derived("tp_sp"), "reduce.layer.norm1.weight.grad_sum.reduce[tp]"),
    "bias gradient not summed over tp": lambda: drop(
        derived("tp_sp"), "reduce.layer.attn.out.bias.grad_sum.reduce[tp]"),
    "norm gradient summed without need": lambda: insert_reduction(derived("tp")),
    "sequence not gathered": lambda: drop(derived("tp_sp"), "forward.layer.norm2.out.all_gather[tp]"),
    "sequence not gathered again": lambda: drop(derived("tp_sp"), "backward.layer.norm2.out.all_gather[tp]"),
    "gathered along another dim": lambda: change(
        derived("tp_sp"), "forward.layer.norm1.out.all_gather[tp]", source="S(embed)"),
    "scattered along another dim": lambda: change(
        derived("tp_sp"), "forward.layer.mlp.down.reduce_scatter[tp]", to="S(embed)"),
    "sliced, not summed": lambda: change(
        derived("tp_sp"), "forward.layer.mlp.down.reduce_scatter[tp]", verb="slice"),
    "gradient gathered for a shard": lambda: change(
        derived("tp_sp"), "backward.layer.norm1.out.grad.reduce_scatter[tp]", verb="all_gather", source="S(seq)"),
    "a reader of the shard": lambda: change(
        derived("tp_sp"), "forward.head.logits.compute", reads=("head.norm.out", "embedding.weight")),
    "a gradient under another label": lambda: change(
        derived("tp_sp"), "backward.layer.attn.q.grad.compute", reads=("layer.norm1.out", "layer.attn.q.weight")),
    "freed too early": lambda: early(derived("tp_sp"), "forward.layer.norm1.out.free", "forward.layer.attn.q.compute"),
    "layers not chained": lambda: drop(derived("tp"), "forward.layer.in.assign"),
    "gradients of layers not chained": lambda: drop(derived("tp"), "backward.layer.in.grad.assign"),
    "one op not replayed": lambda: drop(
        derived("tp*recompute_selective"), "backward.layer.attn.core.probs.compute"),
    "one mask not drawn again": lambda: drop(derived("tp*recompute_full"), "backward.layer.mlp.dropped.compute"),
    "a redistribution not replayed": lambda: drop(
        derived("tp*recompute_full"), "backward.layer.attn.out.all_reduce[tp]"),
    "an op not run": lambda: drop(derived("tp"), "forward.layer.mlp.gelu.compute"),
    "a backward op not run": lambda: drop(derived("tp"), "backward.layer.mlp.gelu.grad.compute"),
    "a backward op run twice": lambda: double(derived("tp"), "backward.layer.attn.k.grad.compute"),
    "the norm of the shards of one rank": lambda: change(
        derived("tp"), "update.layer.weight.norm", where=(Clause("tp", 0),)),
    "the norm of replicas on every rank": lambda: change(derived("tp"), "update.layer.norm1.weight.norm", where=()),
    "the norm not summed over tp": lambda: drop(derived("tp"), "update.norm.all_reduce[tp]"),
    "no data parallelism, and tokens counted as if": lambda: drop(
        derived("zero3*tp_sp", loss={"preset": "token_mean"}), "forward.data.*.slice[dp]"),
    "parameters not gathered": lambda: drop(derived("zero3*tp"), "backward.layer.weight.gather[dp]"),
    "gradients of shards reduced over tp too": lambda: change(
        derived("zero3*tp"), "backward.layer.weight.grad.reduce[dp]", axes=("dp", "tp")),
    "replicated weights drift over tp": lambda: change(
        derived("tp"), "update.layer.norm1.weight.update", where=(Clause("tp", 0),)),
    "replicas start unequal over tp": lambda: drop(derived("tp"), "init.layer.norm1.weight.broadcast[tp]"),
}


def insert_reduction(step: Step) -> Step:
    """The gradient of a norm, equal on all ranks, summed over them."""
    (i,) = found(step, "update.layer.norm1.weight.norm")
    reduce = replace(step.events[i], phase="reduce", verb="reduce", value="grad_sum", axes=("tp",), op="sum", where=())
    (first,) = found(step, "update.embedding.weight.norm")
    return replace(step, events=(*step.events[:first], reduce, *step.events[first:]))


def early(step: Step, path: str, before: str) -> Step:
    """The step with one event moved before another."""
    (i,), (j,) = found(step, path), found(step, before)
    events = list(step.events)
    event = events.pop(i)
    return replace(step, events=(*events[:j], event, *events[j:]))


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_programs_differ(name: str) -> None:
    outcome = tried(MUTANTS[name]())
    assert outcome.difference is not None
    assert not outcome.difference.resumed


HARMLESS: dict[str, Callable[[], Step]] = {
    "shards kept whole": lambda: change(derived("tp_sp"), "forward.layer.mlp.down.reduce_scatter[tp]",
                                        verb="all_reduce", to="I"),
    "nothing freed": lambda: drop(derived("tp_sp*recompute_selective"), "*.free"),
    "gathered twice": lambda: double(derived("tp_sp"), "forward.layer.norm1.out.all_gather[tp]"),
    "an op run twice": lambda: double(derived("tp"), "forward.layer.mlp.gelu.compute"),
    "ids of all data ranks": lambda: drop(derived("dp*tp"), "forward.data.targets.slice[dp]"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_changes_do_not_differ(name: str) -> None:
    assert tried(HARMLESS[name]()).difference is None


def test_every_event_counts() -> None:
    """Of a program without a dropout, none can be dropped but what only narrows data, and the stream's checkpoint."""
    step = derived("dp*tp", "mlp")
    spare = {e.path for e in step.events if tried(drop(step, e.path), m=2).equal}
    assert spare == {"forward.data.input.slice[dp]", "forward.data.targets.slice[dp]", "save.rng.store"}


@pytest.mark.parametrize(("text", "key", "equal"), [
    ("tp", "local(heads)", False), ("tp", "local(seq)", True), ("tp_sp", "local(seq)", False),
    ("tp", "rank(tp)", False), ("tp_sp", "rank(tp)", False), ("dp*tp", "local(batch)", False),
    ("dp*tp", "rank(dp)", False), ("tp", "local(batch)", True)])
def test_random_streams_are_keyed_logically(text: str, key: str, equal: bool) -> None:
    step = derived(text, random={"dropout": [key]})
    assert tried(step).equal == equal
    assert tried(step, size=1).equal


def test_the_difference_says_where() -> None:
    got = tried(drop(derived("tp"), "forward.layer.attn.out.all_reduce[tp]")).difference
    assert got is not None
    assert (got.step, got.event, got.subject) == (1, "forward.loss.compute", "loss(batch=0, seq=0)")
    lost = tried(drop(derived("zero3*tp"), "forward.layer.weight.gather[dp]")).difference
    assert lost is not None
    assert (lost.event, lost.got) == ("forward.layer.attn.q.compute", "nothing (not held)")


def test_a_dim_of_two_axes_is_owned_in_blocks() -> None:
    step = derived("dp*tp", dims={"dp": ("heads", "ffn"), "tp": ("heads", "ffn", "vocab")})
    at = space.of(step.reference, Setting.equal(step.reference, {"dp": 2, "tp": 3}, 1))
    assert at is not None
    owners = [(at.owner("dp", "ffn", i), at.owner("tp", "ffn", i)) for i in range(at.sizes["ffn"])]
    assert owners == sorted(owners)
    assert {owners.count(o) for o in owners} == {at.sizes["ffn"] // 6}
    assert at.sizes["seq"] == at.sizes["seq_kv"]


def test_the_owners_of_the_first_elements_can_be_given() -> None:
    step = derived("zero3*tp")
    base = Setting.equal(step.reference, {"dp": 2, "tp": 2}, 1)
    for rank in range(2):
        given = replace(base, owners={("own", "dp", element): rank for element in range(4)})
        assert simulate(step, given).difference is None
    at = space.of(step.reference, base)
    assert at is not None
    parts = at.parts(step.reference.group("layer.weight"))
    assert [p.first for p in parts if p.first < 4] == [0, 1, 2, 3]
    assert all(p.numbers.size == 1 for p in parts if p.first < 4)


def test_sums_of_many_products_are_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, PRIME, size=(3, 1500)) for _ in range(2))
    got = field.contract([(("i", "k"), a), (("j", "k"), b)], ("i", "j"))
    want = [[sum(x * y for x, y in zip(p, q, strict=True)) % PRIME for q in b.tolist()] for p in a.tolist()]
    assert got.tolist() == want


def test_the_field_is_an_image_of_the_rationals() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        x, y = (Fraction(int(n), int(d)) for n, d in rng.integers(1, 10**6, size=(2, 2)))
        a, b = (Residues(field.residues(n)) for n in (x, y))
        assert a + b == x + y
        assert a - b == x - y
        assert a * b == x * y
        assert a / b == x / y
        assert x - b == x - y
        assert x / b == x / y
        assert a != x + 1


def test_a_sum_of_boxes_is_garbage_where_one_is_missing() -> None:
    a, b = Box({"i": (0, 1)}, np.array([1, 2])), Box({"i": (1, 2)}, np.array([10, 20]))
    summed = box.total([a, b], lambda shape: np.full(tuple(shape), 99))
    assert summed.extent == {"i": (0, 1, 2)}
    assert summed.numbers.tolist() == [99, 12, 99]


def test_runs_are_deterministic_and_seeds_differ() -> None:
    broken = drop(derived("tp"), "forward.layer.attn.out.all_reduce[tp]")
    assert str(tried(broken).difference) == str(tried(broken).difference)
    assert str(tried(broken).difference) != str(tried(broken, seed=1).difference)
