"""Op graphs: laws of transposition, what is saved, gradients against finite differences, graphs that are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import hypothesis
import named_arrays
import pytest
from hypothesis import strategies as st

import placealg as pa
from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models import backward as autodiff
from placealg.models.abstract import abstract
from placealg.models.backward import backward, needs_gradient, saved, transposed
from placealg.models.blocks import ALONG, with_blocks
from placealg.models.build import Builder, graph
from placealg.models.config import from_config, shipped
from placealg.models.graph import DEPTH, TAKEN, Graph, Loop, Op, Tensor
from placealg.models.model import Model
from placealg.models.ops import OPS
from placealg.models.tokens import Attributes, with_attributes
from placealg.models.transformer import GPT, LATENT, LLAMA, MLA, Style, gpt, mlp, transformer
from placealg.step.event import GLOBAL_VALUES, GROUP_VALUES
from placealg.strategy.vocabulary import LAYER

BYTES = {"act": 2, "mask": 1, "stat": 4, "ids": 0}
"""16-bit activations, 1-byte masks, 4-byte statistics; ids are left out of the published formulas."""

SIZES = {"vocab": "V", "embed": "h", "heads": "a", "kv": "kv", "group": "a/kv", "head_dim": "h/a", "ffn": "4*h",
         "position": "s"}
GRAPHS = {
    "gpt": gpt().graph,
    "gpt flash": gpt(replace(GPT, flash=True)).graph,
    "gpt parallel": gpt(replace(GPT, parallel=True)).graph,
    "llama": transformer(LLAMA, SIZES),
    "llama unfused": transformer(replace(LLAMA, flash=False), SIZES),
    "llama with biases": transformer(replace(LLAMA, attention_bias=True, mlp_bias=True, tied=True), SIZES),
    "two kinds of layers": transformer(replace(LLAMA, first_dense=True), {**SIZES, "dense_ffn": "f_dense"}),
    "mla": transformer(MLA, {**SIZES, **LATENT}),
    "mla unfused": transformer(replace(MLA, flash=False, dropout=True), {**SIZES, **LATENT}),
    "mlp": mlp().graph,
}
def scanned(delta: bool) -> Graph:
    """Projections through a convolution into a scan of heads that share keys, its decay and strength from the data."""
    g = graph(batch="b", seq="s", embed="h", state_kv="a", state_group="2", state_key="d", state_value="d_v", tap="4",
              vocab="V")
    x = g.lookup("net.x", g.parameter("net.weight", "vocab embed"), g.ids("data.ids", "batch seq"), over="vocab")
    made = {}
    for name, heads in (("k", "state_kv state_key"), ("q", "state_kv state_key"),
                        ("v", "state_kv state_group state_value")):
        y = g.linear(f"net.{name}", x, f"batch seq {heads}", f"embed {heads}")
        weight = g.parameter(f"net.{name}.conv.weight", f"{heads} tap")
        made[name] = g.conv(f"net.{name}.conv", y, weight, over="seq tap")
    for name, heads in (("beta", "state_kv state_group"), ("decay", "state_kv state_group state_key")):
        y = g.linear(f"net.{name}", x, f"batch seq {heads}", f"embed {heads}")
        made[name] = g.unary(f"net.{name}.open", y, "sigmoid")
    read = g.scan("net.read", made["k"], made["v"], made["q"], made["decay"], made["beta"], over="seq state_key",
                  delta=delta)
    g.sum("loss.sum", g.mul("net.square", read, read))
    return g.build()


def in_blocks(delta: bool) -> Graph:
    """The same with the sequence in blocks."""
    model = Model.of_graph("scanned", scanned(delta))
    return with_blocks(model, {op.output: ("cp",) for op in model.graph.ops if op.kind in ALONG}).graph


GRAPHS |= {"scan": scanned(False), "delta": scanned(True), "scan in blocks": in_blocks(False),
           "delta in blocks": in_blocks(True)}
every_graph = pytest.mark.parametrize("built", GRAPHS.values(), ids=GRAPHS)


def polynomial(*terms: tuple[int, str]) -> dict[Monomial, Fraction]:
    """coefficient * monomial, like terms collected."""
    found: dict[Monomial, Fraction] = {}
    for coefficient, text in terms:
        m = Monomial.parse(text)
        key = Monomial(Fraction(1), m.powers)
        found[key] = found.get(key, Fraction(0)) + coefficient * m.coefficient
    return {m: c for m, c in found.items() if c}


def layer_bytes(built: Graph, **options: bool) -> dict[Monomial, Fraction]:
    """The bytes that one layer saves, as a polynomial."""
    return polynomial(*((BYTES[s.tensor.element], str(s.tensor.elements)) for s in saved(built, **options)
                        if s.unit == "layer"))


def test_a_gpt_layer_saves_34_plus_5as_over_h() -> None:
    """Korthikanti et al. 2022 (arXiv:2205.05198), equation 1."""
    assert layer_bytes(GRAPHS["gpt"]) == polynomial((34, "b*s*h"), (5, "a*b*s**2"))


def test_flash_attention_saves_its_log_sum_exp() -> None:
    assert layer_bytes(GRAPHS["gpt flash"]) == polynomial((34, "b*s*h"), (4, "a*b*s"))


def test_norm_statistics_are_an_option() -> None:
    more = polynomial((34, "b*s*h"), (5, "a*b*s**2"), (2 * 2 * 4, "b*s"))
    assert layer_bytes(GRAPHS["gpt"], statistics=True) == more
    assert layer_bytes(GRAPHS["llama"], statistics=True) == {
        **layer_bytes(GRAPHS["llama"]), Monomial.parse("b*s"): Fraction(2 * 4)}


def test_without_dropout_masks_and_dropped_values_go() -> None:
    assert layer_bytes(gpt(replace(GPT, dropout=False)).graph) == polynomial((32, "b*s*h"), (2, "a*b*s**2"))


def test_a_parallel_block_saves_one_norm_and_one_residual_less() -> None:
    assert layer_bytes(GRAPHS["gpt parallel"]) == polynomial((29, "b*s*h"), (5, "a*b*s**2"))


def test_a_llama_layer() -> None:
    """in, norm1, q, attention, residual, norm2 of h; k and v of kv heads; gate, silu, up, product of the MLP."""
    f, kv = 4 * 4 * 2, "b*s*h*kv/a"
    assert layer_bytes(GRAPHS["llama"]) == polynomial((6 * 2 + f, "b*s*h"), (2 * 2, kv), (4, "a*b*s"))
    assert layer_bytes(GRAPHS["llama unfused"]) == polynomial((12 + f, "b*s*h"), (4, kv), (2 * 2, "a*b*s**2"),
                                                              (-2, "a*b*s**2"))


def test_outside_the_layers() -> None:
    found = {(s.unit, s.tensor.name): (s.tensor.element, str(s.count)) for s in saved(GRAPHS["gpt"])
             if s.unit != "layer"}
    assert found == {
        ("embedding", "data.tokens"): ("ids", "1"), ("embedding", "data.positions"): ("ids", "1"),
        ("embedding", "embedding.dropped.mask"): ("mask", "1"), ("head", "layer.out"): ("act", "1"),
        ("head", "head.norm.out"): ("act", "1"), ("head", "head.loss.softmax"): ("stat", "1"),
        ("head", "data.targets"): ("ids", "1"),
    }


@every_graph
def test_no_parameter_and_no_storage_twice(built: Graph) -> None:
    names = [s.tensor.name for s in saved(built, statistics=True)]
    assert len(set(names)) == len(names)
    assert not {t.name for t in built.parameters} & set(names)
    assert [n for n in names if n in built.tensors and built.storage(n) != n] == []


def test_links_of_a_chain_are_kept_once() -> None:
    """A layer that reads its input and its own output keeps L + 1 values, not 2 L."""
    g = graph(batch="b", embed="h")
    first = g.mul("first.x", g.data("data.x", "batch embed"), g.parameter("first.w", "embed"))
    x = g.unary("first.out", first, "tanh")
    x = g.repeat("layer", "L", x)
    g.unary("layer.out", g.mul("layer.x", x, g.parameter("layer.w", "embed")), "tanh")
    g.sum("loss.sum", "layer.out")
    found = {s.tensor.name: str(s.count) for s in saved(g.build())}
    assert found == {"data.x": "1", "layer.in": "L", "layer.out": "1"}


@every_graph
def test_every_use_of_a_parameter_has_one_gradient_op(built: Graph) -> None:
    ops = backward(built)
    for parameter in built.parameters:
        uses = sorted((op.output, k) for op in built.ops for k, n in enumerate(op.inputs) if n == parameter.name)
        assert sorted((b.forward, b.operand) for b in ops if b.of == parameter.name) == uses != []


@every_graph
def test_every_gradient_is_there_before_it_is_read(built: Graph) -> None:
    there = {built.ops[-1].output + autodiff.GRAD}
    for b in backward(built):
        there |= {loop.last + autodiff.GRAD for loop in built.loops if loop.slot == b.of}
        there |= {loop.first + autodiff.GRAD for loop in built.loops if loop.slot + autodiff.GRAD in there}
        assert b.inputs[0] in there
        there.add(b.output)
    assert there >= {n + autodiff.GRAD for n in needs_gradient(built)}


def test_data_take_no_gradient() -> None:
    assert not [b for built in GRAPHS.values() for b in backward(built) if built.tensors[b.of].kind == "data"]
    assert "layer.in" in needs_gradient(GRAPHS["mlp"])


def einsums() -> list[tuple[Graph, Op, int]]:
    return [(g, op, k) for g in GRAPHS.values() for op in g.ops if op.kind in ("einsum", "mul")
            for k in range(len(op.inputs))]


def test_the_transpose_of_the_transpose_is_the_op() -> None:
    """Transposed in the operand, then in the gradient of the result: the same contraction again."""
    for built, op, k in einsums():
        once = transposed(built, op, k)
        grads = {n + autodiff.GRAD: built.tensors[n] for n in (once.of, op.output)}
        tensors = {**built.tensors, **{n: replace(t, kind="activation") for n, t in grads.items()}}
        as_op = Op(once.output, "einsum", once.inputs, op.region)
        double = transposed(_loose(tensors), as_op, 0)
        assert double.of == op.output + autodiff.GRAD
        assert double.inputs[0] == once.output + autodiff.GRAD
        assert sorted(double.reads) == sorted(op.inputs[:k] + op.inputs[k + 1:])
        assert set(_dims(tensors, as_op)) == set(built.iteration_dims(op))


def _loose(tensors: dict[str, Tensor]) -> Graph:
    found = object.__new__(Graph)
    object.__setattr__(found, "tensors", FrozenMap(tensors))
    return found


def _dims(tensors: dict[str, Tensor], op: Op) -> set[str]:
    return {d for n in (op.output, *op.inputs) for d in tensors[n].dims}


@every_graph
def test_a_vjp_reads_what_the_table_says_is_saved(built: Graph) -> None:
    for op in built.ops:
        reads = {n for b in backward(built) if b.forward == op.output for n in b.reads}
        row = op.row
        if row.vjp:
            parameters = {n for n in reads if n in built.tensors and built.tensors[n].kind == "parameter"}
            assert reads - parameters == {autodiff.named(op, role) for role in row.saved}
        elif row.linear == "all" or row.name == "unit":
            assert reads == set()


TINY = {"batch": 2, "seq": 3, "seq_kv": 3, "vocab": 4, "embed": 4, "heads": 2, "kv": 2, "group": 2, "head_dim": 2,
        "ffn": 3, "position": 3, "q_rank": 3, "kv_rank": 2, "nope_dim": 2, "rope_dim": 2, "value_dim": 3,
        "dense_ffn": 2, "state_kv": 2, "state_group": 2, "state_key": 2, "state_value": 3, "tap": 2,
        "block": 3, "block_kv": 3, "place": 2, "halo": 1, "state_key_in": 2}


@lru_cache(maxsize=16)
def differences(built: Graph) -> tuple[named_arrays.Run, dict[tuple[str, tuple[int, ...]], float]]:
    """A run, and the finite differences of its loss at every seventh element of each parameter."""
    sizes = {**TINY, "batch": 1, "state_kv": 1, "seq": TINY["block"] * TINY["place"]} if "block" in built.dims else TINY
    run, found, h = named_arrays.Run(built, sizes), {}, 1e-5
    for parameter in built.parameters:
        cells = run.values[parameter.name].cells
        for at in list(cells)[::7]:
            held, losses = cells[at], []
            for shift in (h, -h):
                cells[at] = held + shift
                losses.append(run.loss())
            cells[at] = held
            found[parameter.name, at] = (losses[0] - losses[1]) / (2 * h)
    run.loss()
    return run, found


def worst(built: Graph) -> float:
    """The largest difference between the declared gradient and a finite difference, over all parameters."""
    run, found = differences(built)
    gradients = run.gradients()
    return max(abs(value - gradients[name].cells[at]) for (name, at), value in found.items())


@every_graph
def test_gradients_are_those_of_finite_differences(built: Graph) -> None:
    assert worst(built) < 1e-6


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize(("blocks", "places"), [(1, 4), (2, 3), (3, 2)])
def test_a_scan_in_blocks_is_the_scan(delta: bool, blocks: int, places: int) -> None:
    """The loss and its gradients are those of the sequence in one, whatever the blocks."""
    sizes = {**TINY, "seq": blocks * places, "block": blocks, "block_kv": blocks, "place": places, "tap": 3, "halo": 2}
    one, cut = (named_arrays.Run(built, sizes) for built in (scanned(delta), in_blocks(delta)))
    assert abs(one.loss() - cut.loss()) < 1e-12
    whole, parts = one.gradients(), cut.gradients()
    for parameter in one.graph.parameters:
        for at, value in whole[parameter.name].cells.items():
            assert abs(value - parts[parameter.name].cells[at]) < 1e-10, parameter.name


@pytest.mark.parametrize("style", [Style(rotary=True, positions="none"), Style(rotary=True, flash=True)])
def test_gradients_within_documents_are_those_of_finite_differences(style: Style) -> None:
    said = Attributes(weights=True, documents=True, positions=True)
    built = with_attributes(pa.gpt(replace(style, dropout=False)), said).graph
    assert {op.kind for op in built.ops} & {"softmax_within", "flash_within"}
    assert worst(built) < 1e-6


@pytest.mark.parametrize("function", [k.name for k in OPS.values() if k.family == "unary"])
def test_gradients_of_unary_functions(function: str) -> None:
    g = graph(batch="b", embed="h")
    x = g.mul("one.x", g.data("data.x", "batch embed"), g.parameter("one.w", "embed"))
    x = g.unary("one.positive", x, "sigmoid") if function in ("reciprocal", "rsqrt") else x
    g.sum("loss.sum", g.scale("one.scaled", g.copy("one.copy", g.cast("one.cast", g.unary("one.y", x, function))), "2"))
    built = g.build()
    assert worst(built) < 1e-6
    assert [s.tensor.name for s in saved(built) if s.tensor.name != "one.positive"] == [
        "data.x", "one.x" if function in ("gelu", "silu", "clamp", "cube", "softplus") else "one.y"]


def test_the_logarithm_of_a_sum_of_exponentials_has_its_derivative() -> None:
    g = graph(batch="b", embed="h", ffn="f")
    y = g.linear("one.y", g.data("data.x", "batch embed"), "batch ffn", "embed ffn")
    size = g.logsumexp("one.size", y, over="ffn")
    g.sum("loss.sum", g.mul("one.square", size, size))
    assert worst(g.build()) < 1e-6
    assert {s.tensor.name for s in saved(g.build())} == {"data.x", "one.y", "one.size"}


IN_BLOCKS = ("scan_from", "delta_from", "conv_from", "left", "delta_left", "delta_passed", "entering", "delta_entering")


@pytest.mark.parametrize("kind", [
    "layer_norm", "rms_norm", "softmax", "flash", "flash_rope", "cross_entropy", "gelu", "dropout", "scan", "delta",
    "conv", *(pytest.param(name, marks=pytest.mark.slow) for name in IN_BLOCKS)])
def test_a_wrong_vjp_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of each product matters: without its last factor or summand the gradients differ."""
    row = OPS[kind]
    built = next(GRAPHS[name] for name in ("gpt", "llama", "mla", "delta", "scan", "scan in blocks", "delta in blocks")
                 if kind in {op.kind for op in GRAPHS[name].ops})
    right = worst(built)
    for role, steps in row.vjp.items():
        for k, step in enumerate(steps):
            if len(step.inputs) < 2 or step.kind not in ("einsum", "add"):
                continue
            lines = (*steps[:k], replace(step, inputs=step.inputs[:-1]), *steps[k + 1:])
            broken = replace(row, vjp=row.vjp.plus({role: lines}))
            monkeypatch.setattr("placealg.models.graph.OPS", {**OPS, kind: broken})
            backward.cache_clear()
            assert worst(built) > 30 * right, (role, step)
    monkeypatch.undo()
    backward.cache_clear()


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("flash", [True, False])
def test_the_graph_and_the_configuration_count_alike(name: str, flash: bool) -> None:
    model = from_config(name, flash=flash, dropout=not flash)
    assert model.total() == from_config(name).total()
    elements = sum((t.elements * model.graph.count(t.unit)).evaluate(model.sizes) for t in model.graph.parameters)
    assert elements == model.total()
    families = {op.row.family for op in model.graph.ops}
    assert ("flash" in families) == flash and ("dropout" in families) == (not flash)


def test_defaults_of_the_families() -> None:
    gpt2, llama = ({op.kind for op in from_config(n).graph.ops} for n in ("gpt2", "llama-3-8b"))
    assert {"dropout", "softmax", "layer_norm", "gelu"} <= gpt2 and not {"flash", "rope"} & gpt2
    assert {"flash", "rope", "rms_norm", "silu", "mul"} <= llama and not {"dropout", "softmax"} & llama


def test_symbolic_gpt_counts() -> None:
    """12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) of Narayanan et al. 2021 (arXiv:2104.04473), and the final norm."""
    found = polynomial(*((1, str(p.elements * gpt().unit(p.unit).count)) for p in gpt().parameters))
    assert found == polynomial((12, "L*h**2"), (13, "L*h"), (1, "V*h"), (1, "s*h"), (2, "h"))


def test_a_tied_embedding_is_one_parameter_of_two_units() -> None:
    assert GRAPHS["gpt"].sites("embedding.weight") == ("embedding", "head")
    assert "embedding.weight" in next(op.inputs for op in GRAPHS["gpt"].ops if op.output == "head.logits")


def test_regions_and_units() -> None:
    assert GRAPHS["gpt"].units == ("embedding", "layer", "head", "loss")
    core = [op.output.rpartition(".")[2] for op in GRAPHS["gpt"].ops if op.region == "layer.attn.core"]
    assert core == ["keys", "values", "scores", "scaled", "probs", "dropped", "mixed"]
    assert GRAPHS["llama"].producer("layer.attn.q.rotated").region == "layer.attn"  # type: ignore[union-attr]
    assert [u.name for u in abstract().units] == ["layer"] and saved(abstract().graph) == ()


def test_iteration_dims_and_contractions() -> None:
    built = GRAPHS["gpt"]
    dims = {op.output: (built.iteration_dims(op), built.contracted(op)) for op in built.ops}
    assert dims["layer.attn.out"] == (("batch", "seq", "embed", "heads", "head_dim"), ("heads", "head_dim"))
    assert dims["layer.attn.core.scores"][1] == ("head_dim",)
    assert dims["layer.attn.core.keys"] == (("batch", "seq_kv", "heads", "head_dim"), ())
    assert dims["embedding.tokens"][1] == ("vocab",) and dims["loss.sum"] == (("batch", "seq"), ("batch", "seq"))


def test_the_graph_is_acyclic_and_ends_in_the_loss() -> None:
    import networkx

    for built in GRAPHS.values():
        drawn = built.networkx()
        assert networkx.is_directed_acyclic_graph(drawn)
        assert [n for n in drawn if drawn.out_degree(n) == 0] == ["loss.sum"]


@hypothesis.given(st.builds(Style, **{name: st.booleans() for name in (
    "grouped", "attention_bias", "mlp_bias", "gated", "rotary", "layer_norm", "dropout", "flash", "tied", "parallel")}))
@hypothesis.settings(max_examples=60, deadline=None)
def test_every_style_is_a_model(style: Style) -> None:
    built = transformer(style, SIZES)
    model = Model.of_graph("any", built)
    assert [u.name for u in model.units] == ["embedding", "layer", "head"]
    assert ("head.weight" in [p.name for p in model.parameters]) == (not style.tied)
    assert layer_bytes(built)


def start() -> Builder:
    g = graph(batch="b", seq="s", seq_kv="s", embed="h", ffn="4*h", vocab="V", heads="a", head_dim="h/a")
    g.data("data.x", "batch embed")
    g.ids("data.ids", "batch")
    g.parameter("net.w", "embed ffn")
    g.parameter("net.b", "ffn")
    g.einsum("net.up", "data.x", "net.w", to="batch ffn")
    return g


BAD: list[tuple[Callable[[Builder], Any], str]] = [
    (lambda g: g.einsum("net.y", "data.x", "net.w", to="batch fnn"), "op 'net.y': unknown dim 'fnn'; did you mean"),
    (lambda g: g.einsum("net.y", "data.x", "net.w", to="batch seq"),
     r"op 'net.y' \(einsum\): the result has 'seq', which no operand has; valid: batch, embed, ffn"),
    (lambda g: g.einsum("net.y", "data.x", to="batch batch"), "the result has 'batch' twice"),
    (lambda g: g.einsum("net.y", "data.xx", "net.w", to="batch"), "op 'net.y': no tensor 'data.xx' before it; did you"),
    (lambda g: g.einsum("net.y", to="batch"), "it takes one or more operands; given 0"),
    (lambda g: g.einsum("net.up", "data.x", "net.w", to="batch ffn"), "op 'net.up': there is a tensor of this name"),
    (lambda g: g.einsum("net..up", "data.x", to="batch"), "'net..up' is not a tensor's name"),
    (lambda g: g.einsum("net.up.grad", "data.x", to="batch"), "'grad' kept for gradients"),
    (lambda g: g.add("net.y", "data.x", "net.up"),
     r"op 'net.y' \(add\): 'net.up' has dims \(batch, ffn\), not among \(batch, embed\) of 'data.x'"),
    (lambda g: g.norm("net.n", "data.x", "ffn"), r"op 'net.n.out' \(layer_norm\): its first operand has no dim 'ffn'"),
    (lambda g: g.softmax("net.y", "data.x", over=""), "it needs the dims it works over; valid: batch, embed"),
    (lambda g: g.unary("net.y", "data.x", "glu"), "unknown unary function 'glu'; did you mean 'gelu'"),
    (lambda g: g.lookup("net.y", "net.w", "data.x", over="embed"), "'data.x' does not hold ids"),
    (lambda g: g.lookup("net.y", "net.w", "data.ids", over="embed ffn"), "it works over one dim"),
    (lambda g: g.lookup("net.y", "net.up", "data.ids", over="ffn"),
     r"'data.ids' and 'net.up' share the dims \(batch\)"),
    (lambda g: g.cross_entropy("net.y", "net.up", "data.ids", over="batch"), r"it takes one target per \(ffn\)"),
    (lambda g: g.rename("net.y", "data.x", {"sq": "seq"}), "'data.x' has no dim 'sq'"),
    (lambda g: g.rename("net.y", "data.x", {"embed": "sq"}), "unknown dim 'sq'; did you mean 'seq'"),
    (lambda g: g.rename("net.y", "data.x", {"embed": "batch"}), "'batch' twice"),
    (lambda g: g.flash("net.y", "data.x", "net.up", "net.up", over="ffn"), "over is the head dim of q and the key dim"),
    (lambda g: g.parameter("net.w", "embed"), "op 'net.w': there is a tensor of this name"),
    (lambda g: g.repeat("layer", "L", "net.dwn"), "op 'layer.in': no tensor 'net.dwn' before it"),
    (lambda g: g.repeat("layer", "L-1", "net.up"), "dim 'layer'"),
    (lambda g: graph(batch="b+1"), "dim 'batch': 'b\\+1' is not a quotient"),
    (lambda g: graph(batch=0), "a size is positive"),
    (lambda g: g.data("norm", "batch"), "'norm' is not a tensor's name: a step program calls something else so"),
    (lambda g: g.build(), "data 'data.ids' is read by no op"),
]


@pytest.mark.parametrize(("wrong", "says"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_refused(wrong: Callable[[Builder], Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        wrong(start())
    assert "\n" not in str(caught.value)


def test_a_refused_line_leaves_nothing_behind() -> None:
    g = start()
    for wrong, _ in BAD[:5]:
        with pytest.raises(InputError):
            wrong(g)
    g.sum("loss.sum", g.add("net.y", "net.up", "net.b"))
    g.lookup("net.z", "net.w", "data.ids", over="embed")
    with pytest.raises(InputError, match=r"activation 'loss.sum' is read by no op"):
        g.build()


def looped(*, inside: str = "layer.in", after: str = "layer.out", last: str = "batch embed") -> Graph:
    g = graph(batch="b", embed="h", ffn="h")
    x = g.repeat("layer", "L", g.data("data.x", "batch embed"))
    g.unary("other.y", g.mul("other.x", "data.x", g.parameter("other.w", "embed")), "gelu")
    g.einsum("layer.up", x, g.parameter("layer.up.w", "embed ffn"), to="batch ffn")
    g.einsum("layer.out", "layer.up", inside, g.parameter("layer.w", "ffn embed"), to=last)
    g.einsum("loss.sum", after, "other.y", to="")
    return g.build()


@pytest.mark.parametrize(("change", "says"), [
    ({"inside": "other.y"}, "op 'layer.out' reads 'other.y' of another unit; 'layer' is repeated and reads 'layer.in'"),
    ({"after": "layer.up"}, "op 'loss.sum' reads 'layer.up' inside 'layer', which is repeated; from outside only"),
    ({"last": "batch ffn"}, "what enters and what leaves 'layer' have equal dims"),
])
def test_a_bad_loop_is_refused(change: dict[str, str], says: str) -> None:
    looped()
    with pytest.raises(InputError, match=says):
        looped(**change)


def test_no_dim_is_called_what_pipelines_split() -> None:
    g = graph(batch="b", layer="h")
    with pytest.raises(InputError, match="no dim is called 'layer', along which pipelines split a model"):
        g.sum("loss.sum", g.data("data.x", "batch layer"))
        g.build()
    assert DEPTH == LAYER


@pytest.mark.parametrize("unit", ["mid", "layer"])
def test_what_is_chosen_by_has_no_gradient(unit: str) -> None:
    """A parameter on which the loss depends by a choice alone is refused; a tensor is passed over."""
    def choosing(again: bool) -> Graph:
        g = graph(batch="b", embed="h", code="n", choice="k")
        x = g.unary("first.x", g.data("data.x", "batch embed"), "gelu")
        x = g.repeat(unit, "L", x) if unit == "layer" else x
        gate = g.parameter(f"{unit}.gate", "embed code")
        logits = g.einsum(f"{unit}.logits", x, gate, to="batch code")
        ids = g.route(f"{unit}.ids", g.unary(f"{unit}.act", logits, "gelu"), "code", "choice")
        y = g.einsum(f"{unit}.y", ids, g.parameter(f"{unit}.table", "code embed"), x, to="batch embed")
        y = g.mul(f"{unit}.out", y, g.einsum(f"{unit}.own", y, gate, gate, to="batch embed")) if again else y
        g.sum("loss.sum", y)
        return g.build()

    with pytest.raises(InputError, match=f"parameter '{unit}.gate' has no gradient: the loss depends on it by"):
        needs_gradient(choosing(again=False))
    built = choosing(again=True)
    needs = needs_gradient(built)
    assert needs == {f"{unit}.{name}" for name in ("gate", "table", "y", "own", "out")} | {"loss.sum"} | (
        {"layer.in"} if unit == "layer" else set())
    assert {op.of for op in backward(built)} == needs - {"loss.sum"}


def named(unit: str = "layer", gate: str = "data.gate", before: str = "embedding") -> Graph:
    g = graph(batch="b", embed="h")
    x = g.unary(f"{before}.x", g.data("data.x", "batch embed"), "gelu")
    x = g.repeat(unit, "L", x)
    y = g.mul(f"{unit}.out", x, g.data(gate, "batch embed"), g.parameter(f"{unit}.weight", "embed"))
    g.sum("loss.sum", y)
    return g.build()


@pytest.mark.parametrize(("names", "says"), [
    *(({"unit": name}, f"unit '{name}' is repeated: that is what a stage of a pipeline is called")
      for name in ("first", "prediction", "last")),
    *(({at: name}, f"unit '{name}': a step program calls something else so") for at in ("unit", "before")
      for name in ("rng", "step", "norm", "activation")),
    ({"gate": "layer.gate"}, "data 'layer.gate': 'layer' is repeated, and data are one for all its instances; a name "
                             "like 'data.gate' says so"),
    ({"unit": "data"}, "data 'data.x': 'data' is repeated"),
])
def test_units_have_names_that_say_nothing_else(names: dict[str, str], says: str) -> None:
    named()
    named(before="first")
    with pytest.raises(InputError, match=says):
        named(**names)


def test_a_tensor_is_called_nothing_that_a_program_works_on() -> None:
    assert set(TAKEN) == {*GROUP_VALUES, *GLOBAL_VALUES}


def test_a_loop_begins_outside_others_and_all_stand_in_order() -> None:
    def branches(second: str) -> Graph:
        g = graph(batch="b", embed="h")
        x = g.repeat("one", "L", g.data("data.x", "batch embed"))
        g.unary("one.out", g.mul("one.scaled", x, g.parameter("one.w", "embed")), "gelu")
        y = g.unary("two.out", g.repeat("two", "L", second), "gelu")
        g.einsum("loss.sum", "one.out", y, to="")
        return g.build()

    behind = branches("one.out")
    assert branches("data.x").loops[1].first == "data.x"
    with pytest.raises(InputError, match=r"^'two' begins with 'one.in' inside 'one', which is repeated; from outside "
                                         r"only 'one.out' is read$"):
        branches("one.in")
    with pytest.raises(InputError, match=r"^repeated units stand in the order of their ops: one, two$"):
        replace(behind, loops=behind.loops[::-1])


def test_a_graph_made_by_hand_is_checked() -> None:
    built = GRAPHS["mlp"]
    for change, says in (
        ({"ops": (*built.ops, replace(built.ops[-1], kind="smu"))}, "already there"),
        ({"ops": (replace(built.ops[0], kind="einsm"), *built.ops[1:])}, "unknown kind 'einsm'; did you mean 'einsum'"),
        ({"ops": built.ops[1:]}, "op 'layer.mlp.up.biased': no tensor 'layer.mlp.up' before it"),
        ({"loops": (Loop("layer", Monomial.of("L"), "layer.in", "data.input", "layer.mlp.down"),)}, "does not end in"),
        ({"tensors": built.tensors.plus({"head.weight": Tensor("head.weight", FrozenMap(
            {"embed": Monomial.of("h"), "vocab": Monomial.of("W")}), "parameter", "w")})}, "dim 'vocab' is V in"),
        ({"tensors": built.tensors.plus({"data.input": Tensor("data.input", FrozenMap(), "dat")})}, "kind 'dat'"),
    ):
        with pytest.raises(InputError, match=says):
            replace(built, **change)


def test_a_model_ends_in_a_number() -> None:
    g = graph(batch="b", embed="h")
    g.mul("net.y", g.data("data.x", "batch embed"), g.parameter("net.w", "embed"))
    with pytest.raises(InputError, match=r"model 'mine' ends in 'net.y', which is not a number"):
        pa.Model.of_graph("mine", g.build())


def test_a_parameter_is_named_after_its_first_unit() -> None:
    g = graph(batch="b", embed="h")
    g.sum("loss.sum", g.mul("net.y", g.data("data.x", "batch embed"), g.parameter("other.w", "embed")))
    with pytest.raises(InputError, match=r"parameter 'other.w' is first used by unit 'net'"):
        g.build()


def test_op_table_is_whole() -> None:
    assert {k.family for k in OPS.values()} == {
        "einsum", "add", "scale", "rope", "cast", "copy", "mul", "unary", "dropout", "norm", "softmax", "flash",
        "lookup", "cross_entropy", "logsumexp", "rename", "sum", "unit", "route", "largest", "one_hot", "scan",
        "conv"}
    for row in OPS.values():
        assert set(row.vjp) <= set(row.operands)
        for steps in row.vjp.values():
            made = {"dy", *row.operands, "y", *(k.name for k in row.kept)}
            for step in steps:
                assert set(step.inputs) <= made
                made.add(step.output)


def test_the_ops_of_a_unit_stand_together() -> None:
    g = graph(batch="b", embed="h")
    x = g.unary("net.x", g.data("data.x", "batch embed"), "gelu")
    x = g.unary("other.x", g.mul("other.y", x, g.parameter("other.w", "embed")), "gelu")
    g.sum("net.sum", x)
    with pytest.raises(InputError, match=r"op 'net.sum' stands behind unit 'other'; the ops of 'net' stand together"):
        g.build()
