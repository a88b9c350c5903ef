"""Costs of programs that run op by op: published identities, read off derived events, and laws of the figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from placealg.arith import Monomial
from placealg.cost.activations import Activations
from placealg.cost.amounts import Amounts
from placealg.cost.bounds import factored
from placealg.cost.communication import communication
from placealg.cost.costs import Costs
from placealg.cost.document import cost_json
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.memory import memory
from placealg.cost.regions import kept_for_backward
from placealg.frozen import FrozenMap
from placealg.models.build import graph
from placealg.models.config import resolve_model
from placealg.models.losses import with_loss
from placealg.models.model import Model
from placealg.models.transformer import GPT, LLAMA, Style, gpt
from placealg.polynomial import Polynomial
from placealg.render.cost import by_region, saved
from placealg.render.text_layout import plain
from placealg.step.derive import derive
from placealg.step.program import Step
from placealg.step.recompute import replayed
from placealg.step.saved_tensors import saved_tensors
from placealg.step.split import PlacedOp, place
from placealg.strategy.expression import parse_strategy

DRY = Style(dropout=False)
FLASH = Style(flash=True)
PARALLEL = Style(parallel=True)
SIZES: Mapping[str, int] = {"b": 3, "s": 64, "h": 48, "a": 12, "L": 5, "V": 96, "m": 2}
AXES: Mapping[str, int] = {"dp": 5, "tp": 3, "cp": 2}


def step_of(strategy: str, style: Style = GPT, **schedule: str) -> Step:
    chosen = parse_strategy(strategy)
    said = FrozenMap({**dict(chosen.tables.get("schedule", {})), **schedule})
    return derive(replace(chosen, tables=chosen.tables.plus({"schedule": said})), gpt(style))


def formula(text: str, unit: str = "bytes") -> Formula:
    return Formula.parse(text, unit)


def value(made: Formula, **sizes: int) -> Fraction:
    """At SIZES, AXES and `sizes`, where the formula depends on them."""
    all_sizes = {**SIZES, **AXES, **sizes}
    found = made.value(**{n: v for n, v in all_sizes.items() if n in made.inputs})
    assert found is not None, made
    return Fraction(found)


def of_layers(step: Step) -> Formula:
    """What the tensors of the layers send, in elements."""
    return sum((e.formula for e in communication(step, unit="elements").events
                if not e.left_out and step.event(e.path).tensor.startswith("layer.")), formula("0", "elements"))


# --- communication


@pytest.mark.parametrize(("strategy", "style", "schedule", "factor"), [
    ("tp", GPT, {}, 8), ("tp_sp", GPT, {}, 10), ("tp_sp_keep", GPT, {}, 8), ("tp", PARALLEL, {}, 4),
    ("tp", GPT, {"sharing": "per_use"}, 12), ("tp", LLAMA, {}, 8), ("tp_sp", LLAMA, {}, 10),
    ("tp*recompute_selective", GPT, {}, 8), ("tp_sp*recompute_selective", GPT, {}, 10),
    ("tp*recompute_full", GPT, {}, 12), ("tp*recompute_full", GPT, {"replay": "by_dependency"}, 10),
    ("tp*recompute_full", GPT, {"replay": "early_stop"}, 12),
    ("tp*recompute_full", DRY, {"replay": "early_stop"}, 10),
    ("tp_sp*recompute_full", GPT, {}, 12), ("zero3*tp_sp", GPT, {}, 10), ("dp*tp", LLAMA, {}, 8),
])
def test_what_layers_send(strategy: str, style: Style, schedule: dict[str, str], factor: int) -> None:
    """Per layer and microbatch, in elements, in units of b*s*h*(tp - 1)/tp."""
    assert of_layers(step_of(strategy, style, **schedule)) == formula(f"{factor}*m*L*b*s*h*(tp - 1)/tp", "elements")


def test_what_the_ends_of_the_model_send() -> None:
    sent = communication(step_of("tp"))
    by_path = {e.path: e for e in sent.events}
    assert by_path["forward.head.loss.compute[tp]"].formula == formula("3*4*2*b*s*m*(tp - 1)/tp")
    assert by_path["forward.embedding.tokens.all_reduce[tp]"].formula == formula("2*act*b*s*h*m*(tp - 1)/tp")
    assert by_path["backward.head.norm.out.grad.all_reduce[tp]"].count == formula("m", "1")
    assert by_path["forward.layer.attn.out.all_reduce[tp]"].count == formula("m*L", "1")
    assert sum(sent.by_phase.values(), formula("0")) == sent.total == sent.by_axes["tp"]


def test_a_tensor_is_sent_local_to_the_other_axes() -> None:
    for strategy in ("zero3*tp_sp", "dp*tp"):
        alone, beside = step_of(strategy.partition("*")[2]), step_of(strategy)
        assert of_layers(alone) == of_layers(beside), "b is one device's"
        sent = communication(beside, unit="elements")
        assert set(sent.by_axes) == {"dp", "tp"}
        assert sum(sent.by_axes.values(), formula("0", "elements")) == sent.total


def test_conventions_reach_tensors() -> None:
    rough = communication(step_of("tp_sp"), "asymptotic", "elements")
    assert {e.convention for e in rough.events} == {"asymptotic"}
    assert sum((e.formula for e in rough.events if ".layer." in e.path and e.path.split(".")[0] != "reduce"
                and not e.left_out), formula("0", "elements")) == formula("10*m*L*b*s*h", "elements")


# --- activations


def per_layer(step: Step) -> Formula:
    """What one layer keeps, in units of s*b*h, with 16-bit activations."""
    kept = [k.bytes for k in kept_for_backward(step) if "L" in k.count.names]
    return (sum(kept, formula("0")).subs(act=2)).ratio(formula("s*b*h*L"))


@pytest.mark.parametrize(("strategy", "style", "want"), [
    ("tp", GPT, "10 + 24/tp + 5*a*s/(h*tp)"), ("tp", FLASH, "10 + 24/tp + 4*a/(h*tp)"),
    ("tp_sp", GPT, "34/tp + 5*a*s/(h*tp)"), ("tp_sp_keep", GPT, "30/tp + 4 + 5*a*s/(h*tp)"),
    ("zero3*tp_sp", GPT, "34/tp + 5*a*s/(h*tp)"), ("dp*tp", GPT, "10 + 24/tp + 5*a*s/(h*tp)"),
    ("tp*recompute_selective", GPT, "10 + 24/tp"), ("tp_sp*recompute_selective", GPT, "34/tp"),
    ("tp*recompute_full", GPT, "2"), ("tp_sp*recompute_full", GPT, "2/tp"),
])
def test_what_a_layer_keeps(strategy: str, style: Style, want: str) -> None:
    assert per_layer(step_of(strategy, style)) == formula(want, "1")


@pytest.mark.parametrize("strategy", ["dp", "zero3", "tp", "tp_sp", "tp_sp_keep", "dp*tp"])
def test_what_a_layer_keeps_alone(strategy: str) -> None:
    """34 + 5as/h, and with flash attention 34 + 4a/h; Korthikanti et al., arXiv 2205.05198, equation 1."""
    for style, want in ((GPT, "34 + 5*a*s/h"), (FLASH, "34 + 4*a/h")):
        found = per_layer(step_of(strategy, style))
        assert (found.subs(tp=1) if "tp" in found.names else found) == formula(want, "1")


def test_all_layers_and_the_ends_are_kept() -> None:
    """The last layer's output is kept once, beside each layer's input; the softmax of the loss takes 4 bytes."""
    ends = "b*s*h + 2*act*b*s*h + 4*b*s*V"
    assert memory(step_of("tp_sp")).activations == formula(
        f"(L*b*s*(16*act*h + 2*h + (2*act + 1)*s*a) + {ends})/tp")
    held = memory(step_of("tp_sp"))
    assert held.total == held.states + held.activations + held.transient
    assert "microbatch" in held.total.note


def test_the_statistics_of_norms_are_an_option() -> None:
    more = memory(step_of("tp_sp"), statistics=True).activations - memory(step_of("tp_sp")).activations
    assert more == formula("4*2*b*s*(2*L + 1)/tp")


STRATEGIES = ("dp", "tp", "tp_sp", "tp_sp_keep", "zero3*tp_sp", "tp*recompute_full", "tp_sp*recompute_full",
              "tp*recompute_selective", "tp_sp*recompute_selective", "dp*tp*recompute_selective")
BYTES = {"act": 2, "mask": 1, "stat": 4, "ids": 0}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("style", [GPT, LLAMA, DRY], ids=["gpt", "llama", "dry"])
def test_the_program_keeps_what_the_layouts_say(name: str, style: Style) -> None:
    """Two accounts of the saved tensors: events followed from forward to backward, and the placed graph."""
    strategy = parse_strategy(name)
    graph = gpt(style).graph
    placed = place(graph, {a: strategy.dims.get(a, ()) for a in strategy.mesh.names})
    kept = kept_for_backward(derive(strategy, with_loss(gpt(style), "vocab_parallel")))
    for unit in ("embedding", "layer", "head"):
        ours = sum(value(k.bytes) / value(k.count) for k in kept
                   if k.tensor.split(".")[0] == unit and ("L" in k.count.names) == (unit == "layer"))
        saved = saved_tensors(placed, unit, strategy.sharded_activations,
                              recomputed=[r for r in strategy.recomputed if unit == "layer"])
        theirs = sum(t.local.evaluate({**SIZES, **AXES}) * BYTES[t.tensor.element] for t in saved
                     if t.tensor.unit == unit)
        assert ours == theirs, unit


def test_why_a_tensor_is_kept() -> None:
    kept = {k.tensor: k for k in kept_for_backward(step_of("tp_sp*recompute_selective"))}
    assert kept["layer.norm1.out"].mode == "S*" and kept["layer.norm1.out"].layout == "seq over tp"
    assert kept["layer.norm1.out"].why == "gathered again for the backward of layer.attn.v, layer.attn.k, layer.attn.q"
    assert kept["layer.attn.core.mixed"].why == "read by the backward of layer.attn.out"
    assert "read to recompute layer.attn.core.scores" in kept["layer.attn.q.biased"].why
    assert "layer.attn.core.probs" not in kept and kept["layer.out"].count == formula("1", "1")


def test_keeping_rows_sum_to_the_activations() -> None:
    for name in STRATEGIES:
        step = step_of(name)
        rows = sum((k.bytes for k in kept_for_backward(step)), formula("0"))
        assert rows == memory(step).activations


@pytest.mark.parametrize("convention", ["exact", "asymptotic"])
@pytest.mark.parametrize("name", ["tp_sp", "zero3*tp*recompute_full"])
def test_regions_sum_to_the_totals(name: str, convention: str) -> None:
    step = step_of(name)
    rows = Costs(step, convention).regions
    assert sum((r.activations for r in rows), formula("0")) == memory(step).activations
    assert sum(value(r.sent) for r in rows) == value(communication(step, convention).total)
    assert len({r.region for r in rows}) == len(rows) and rows[0].region == "embedding"


# --- the events decide


def without(step: Step, *patterns: str) -> Step:
    """The program without the events whose paths contain one of the patterns."""
    kept = tuple(e for e in step.events if not any(p in e.path for p in patterns))
    assert len(kept) < len(step.events)
    return Step(step.reference, kept)


def test_an_edit_moves_the_figure_that_it_should() -> None:
    step = step_of("tp_sp")
    kept = without(step, "forward.layer.norm1.out.free", "backward.layer.norm1.out.all_gather")
    assert memory(kept).activations - memory(step).activations == formula("act*b*s*h*L - act*b*s*h*L/tp")
    assert of_layers(kept) == formula("9*m*L*b*s*h*(tp - 1)/tp", "elements")
    unfreed = without(step, "forward.layer.norm1.out.free")
    assert memory(unfreed).activations == memory(kept).activations, "what is there is not gathered from the shard"
    full = step_of("tp*recompute_full")
    unreplayed = tuple(e for e in full.events if e.path != "forward.layer.free"
                       and not (e.phase == "backward" and e.on_tensor and not e.on_gradient))
    assert memory(Step(full.reference, unreplayed)).activations == memory(step_of("tp")).activations
    assert of_layers(without(full, "backward.layer.attn.out.all_reduce")) == formula(
        "10*m*L*b*s*h*(tp - 1)/tp", "elements")


def test_a_device_without_its_slice_of_the_batch_holds_more() -> None:
    step = step_of("dp*tp")
    whole = without(step, "data.tokens.slice", "data.positions.slice", "data.targets.slice")
    assert memory(whole).activations == memory(step).activations, "nothing says that dp splits the batch"
    partly = without(step, "data.tokens.slice", "data.positions.slice")
    assert value(memory(partly).activations) > value(memory(step).activations)


# --- peak


def pictures_in_numbers(step: Step, sizes: Mapping[str, int]) -> list[Fraction]:
    """What tensors take at every event, in bytes, without formulas."""
    tensors = Activations(step, Amounts(step.reference))
    known = {**SIZES, **AXES, **sizes}
    counts = {u.name: u.count.evaluate(known) for u in step.reference.units}
    return [sum((n * elements.evaluate(known) * BYTES[element] * (counts[unit] - 1 if unit else 1)
                 for (elements, element, unit), n in picture.items()), Fraction(0))
            for picture in tensors.pictures(tensors.looped)]


@pytest.mark.parametrize("name", ["tp", "tp_sp", "tp*recompute_full", "tp_sp*recompute_selective"])
@pytest.mark.parametrize("sizes", [{}, {"V": 9600}, {"s": 2048}, {"tp": 1, "L": 1}, {"h": 480, "b": 1}])
def test_the_peak_is_the_largest_moment(name: str, sizes: dict[str, int]) -> None:
    """Under tensor parallelism states rest whole, so that the peak is they and the largest moment of the tensors."""
    step = step_of(name)
    held = memory(step)
    assert held.transient == formula("0")
    assert value(held.peak, **sizes) == value(held.states, **sizes) + max(pictures_in_numbers(step, sizes))
    assert value(held.peak, **sizes) >= value(held.total, **sizes)


def test_a_peak_with_gathered_units_is_between_the_parts() -> None:
    for style in (GPT, LLAMA):
        step = step_of("zero3*tp_sp", style)
        held = memory(step)
        sizes = {"f": 128, "kv": 6}
        most = max(pictures_in_numbers(step, sizes))
        low = value(held.states, **sizes) + most
        assert low <= value(held.peak, **sizes) <= low + value(held.transient, **sizes)


def at_event(step: Step, path: str) -> set[str]:
    """The tensors that are held while one event runs, of one instance of each unit."""
    walked = Activations(step, Amounts(step.reference)).walk()
    (touch,) = (t for t in walked if t.event.path == path)
    return {"@".join(p for p in s.version if p) for s in touch.during}


def test_what_is_held_at_an_event() -> None:
    """By hand, for the MLP of a GPT layer: what is kept so far, operands and result; then the way back."""
    step = step_of("tp")
    kept = {"embedding.dropped.mask", "embedding.dropped", "layer.norm1.out", "layer.attn.q.biased",
            "layer.attn.k.biased", "layer.attn.v.biased", "layer.attn.core.probs", "layer.attn.core.dropped",
            "layer.attn.core.dropped.mask", "layer.attn.core.mixed", "layer.attn.dropped.mask", "layer.residual1",
            "layer.norm2.out", "layer.mlp.up.biased"}
    assert at_event(step, "forward.layer.mlp.gelu.compute") == kept | {"layer.mlp.gelu"}
    kept |= {"layer.mlp.gelu"}
    assert at_event(step, "forward.layer.mlp.down.all_reduce[tp]") == kept | {"layer.mlp.down@tp"}, "in place"
    scattered = at_event(step_of("tp_sp"), "forward.layer.mlp.down.reduce_scatter[tp]")
    assert {"layer.mlp.down", "layer.mlp.down@tp"} <= scattered
    way_back = {"layer.mlp.gelu.grad", "layer.mlp.up.biased.grad", "layer.residual1.grad"}
    assert at_event(step, "backward.layer.mlp.gelu.grad.compute") == kept - {"layer.mlp.gelu"} | way_back


def ending_in_tanh() -> Model:
    """Layers whose last op reads its own result in backward."""
    g = graph(batch="b", embed="h", ffn="f", vocab="V")
    x = g.repeat("layer", "L", g.data("data.input", "batch embed"))
    y = g.linear("layer.up", x, "batch ffn", "embed ffn")
    y = g.unary("layer.tanh", g.linear("layer.down", y, "batch embed", "ffn embed"), "tanh")
    logits = g.linear("head.logits", y, "batch vocab", "embed vocab")
    g.sum("loss.sum", g.cross_entropy("head.loss", logits, g.ids("data.targets", "batch"), over="vocab"))
    return Model.of_graph("tanh", g.build())


def test_what_leaves_a_layer_enters_the_next() -> None:
    """Of L layers that keep what enters and what leaves them, L + 1 tensors are kept."""
    kept = {k.tensor: k.bytes for k in kept_for_backward(derive(parse_strategy("dp"), ending_in_tanh()))}
    assert kept["layer.in"] == formula("act*b*h*L") and kept["layer.tanh"] == formula("act*b*h")
    placed = place(ending_in_tanh().graph, {"tp": ("ffn", "vocab")})
    early = replayed(placed, "layer", "layer", "early_stop")
    assert [i.op.output for i in early if isinstance(i, PlacedOp)] == ["layer.up"], "what leaves the layer is there"


def test_recomputation_needs_room_for_one_layer() -> None:
    full, plain = (memory(step_of(n)) for n in ("tp*recompute_full", "tp"))
    assert value(full.peak) > value(full.states + full.activations)
    assert value(full.peak, L=96) < value(plain.peak, L=96) and value(full.peak, L=1) >= value(plain.peak, L=1)


# --- states of split parameters


def test_split_parameters_rest_on_their_owners() -> None:
    for name in ("tp", "tp_sp", "zero1*tp", "zero3*tp_sp"):
        step = step_of(name)
        data = AXES["dp"] if "zero" in name else 1
        split = {p for g in step.reference.groups if g.split for p in g.parameters}
        model = gpt(GPT)
        count = sum(p.elements.evaluate(SIZES) * model.unit(p.unit).count.evaluate(SIZES)
                    / (AXES["tp"] if p.name in split else 1) for p in model.parameters)
        held = memory(step)
        assert value(held.optimizer) == 12 * count / data
        assert value(held.parameters) == 2 * count / (data if name.startswith("zero3") else 1)
        assert split >= {"embedding.weight", "layer.mlp.up.weight"} and "layer.norm1.weight" not in split


def test_a_group_is_gathered_into_its_shard() -> None:
    step = step_of("zero3*tp_sp")
    gathered = {e.path: e.formula for e in communication(step, unit="elements").events}
    assert gathered["forward.layer.weight.gather[dp]"] == formula("m*L*(12*h**2 + 7*h)*(dp - 1)/(dp*tp)", "elements")
    assert gathered["reduce.layer.norm1.weight.grad_sum.reduce[tp]"] == formula("2*h*L*(tp - 1)/(dp*tp)", "elements")


# --- arithmetic


@pytest.mark.parametrize(("strategy", "passes"), [("tp", 3), ("tp*recompute_full", 4)])
def test_flop_of_a_gpt(strategy: str, passes: int) -> None:
    """Narayanan et al., PTD-P, arXiv 2104.04473, section 5.1: 96*B*s*L*h**2*(1 + s/(6*h) + V/(16*L*h))."""
    logits = "6*V*h"
    assert flop(step_of(strategy)) == formula(
        f"m*b*s*(24*{passes}*L*h**2*(1 + s/(6*h)) + {logits})/tp", "flop")


def test_flop_is_six_per_parameter_and_token_beside_attention() -> None:
    model = resolve_model("llama-3-8b")
    step = derive(parse_strategy("dp"), model)
    products = sum(p.elements.evaluate(model.sizes) * model.unit(p.unit).count.evaluate(model.sizes)
                   for p in model.parameters if "norm" not in p.name and not p.name.startswith("embedding"))
    tokens, sizes = 2 * 1024, {"b": 2, "s": 1024, "dp": 4}
    attention = 2 * 7 * tokens * 1024 * 4096 * 32
    assert flop(step).value(**sizes) == 6 * products * tokens + attention
    assert flop(step_of("tp*recompute_selective")).expr is not None
    more = flop(step_of("tp*recompute_selective")) - flop(step_of("tp"))
    assert more == formula("m*L*b*4*s**2*h/tp", "flop")


# --- formulas and documents


def test_given_sizes_reach_every_formula() -> None:
    step = step_of("tp_sp")
    held = memory(step)
    assert held.states.if_known(h=8, tp=2) is None
    assert value(held.states) > 0 and "Psi" in held.states.names
    assert value(Costs(step).parameters) == gpt(GPT).total(SIZES)
    assert held.states.value(Psi=10**6, tp=2, h=1, L=1, s=1) == 16 * 500_000 + 16 * Fraction(9, 2)
    found = cost_json(step, {**SIZES, "tp": 3})
    assert found["sizes"]["Psi"] == gpt(GPT).total(SIZES)
    leaves: list[Any] = [*found["memory"].values(), found["communication"]["total"], found["compute"]["flop"],
                         *(k["bytes"] for k in found["saved"]), *(r["sent"] for r in found["regions"])]
    assert all(isinstance(leaf["value"], int | float) for leaf in leaves)
    assert {k["mode"] for k in found["saved"]} == {"R", "S*"}
    assert any("b is the sequences" in line for line in found["hypotheses"])


def test_tables_show_every_row() -> None:
    sizes = {n: Fraction(v) for n, v in (*SIZES.items(), ("tp", 3))}
    step = step_of("tp_sp")
    kept, rows = kept_for_backward(step), Costs(step).regions
    for lines in (saved(kept, sizes, 120), by_region(rows, sizes, 120), saved(kept, {}, 80), by_region(rows, {}, 80)):
        assert all(len(plain(text)) <= 120 for text in lines)
    text = "\n".join(plain(t) for t in saved(kept, sizes, 120))
    assert all(k.tensor in text for k in kept) and "S*" in text and "gathered again for" in text
    text = "\n".join(plain(t) for t in by_region(rows, sizes, 120))
    assert all(r.region in text for r in rows) and "b·s·h·L" in text
    assert plain(saved((), sizes, 120)[0]).startswith("no tensor")


def test_a_sum_is_written_by_what_its_terms_share() -> None:
    def parts(*terms: str) -> str:
        common, rest = factored(Polynomial.of(map(Monomial.parse, terms)))
        return f"{common}: {' + '.join(map(str, rest.monomials()))}"

    assert parts("4*b*s*h", "2*b*s*a/tp") == "2*b*s: 2*h + a/tp"
    assert parts("b*h/tp", "3*b/(tp*dp)") == "b/tp: h + 3/dp"
    assert parts("h**2/3", "h/2") == "h/6: 2*h + 3"
    assert factored(Polynomial()) == (Monomial(), Polynomial())


def test_costs_are_flat_in_layers() -> None:
    small, large = (derive(parse_strategy("zero3*tp_sp"), resolve_model(n)) for n in ("llama-3-8b", "llama-3.1-405b"))
    assert len(small.events) == len(large.events)
    assert [k.tensor for k in kept_for_backward(small)] == [k.tensor for k in kept_for_backward(large)]
