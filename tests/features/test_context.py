"""Context parallelism follows from lists of dims: what is sent, what is proved, what runs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from placealg.cost.activations import Activations
from placealg.cost.amounts import Amounts
from placealg.cost.communication import communication
from placealg.cost.document import SUMMED_IN_RINGS, assumed
from placealg.cost.expressions import monomial
from placealg.cost.formula import Formula
from placealg.cost.memory import memory
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.models.transformer import GPT, Style, gpt
from placealg.prover.examine import examine
from placealg.prover.verdict import PARAMETRIC, PROVED
from placealg.simulator import Setting, simulate
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.program import Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import overlay

GROUPED = Style(grouped=True)


def sent(step: Step, phase: str) -> Formula:
    """What the tensors of one layer send in a phase, in elements, for one microbatch."""
    rows = [e.formula for e in communication(step, unit="elements").events
            if e.path.startswith(f"{phase}.layer.") and step.event(e.path).tensor.startswith("layer.")]
    return sum(rows, Formula.parse("0", "elements")) * 1


def of(text: str) -> Formula:
    return Formula.parse(f"m*L*({text})", "elements")


def test_ulysses_exchanges_four_tensors_in_a_layer() -> None:
    step = derive(parse_strategy("cp_ulysses"), gpt(GPT))
    assert sent(step, "forward") == sent(step, "backward") == of("4*b*s*h*(cp - 1)/cp**2")
    assert {e.verb for e in step.events if e.tensor.startswith("layer.") and e.axes} == {"all_to_all"}


def test_grouped_keys_and_values_are_exchanged_once_for_each_kv_head() -> None:
    grouped = derive(parse_strategy("cp_ulysses"), resolve_model("llama-3-70b"))
    assert sent(grouped, "forward") == of("(2*b*s*h + 2*b*s*h*kv/a)*(cp - 1)/cp**2")


def test_gathering_sends_keys_and_values_of_whole_sequences() -> None:
    step = derive(parse_strategy("cp"), resolve_model("llama-3-70b"))
    assert sent(step, "forward") == sent(step, "backward") == of("2*b*s*h*kv/a*(cp - 1)/cp")
    assert {e.verb for e in step.phase("backward") if e.tensor.startswith("layer.") and e.axes} == {"reduce_scatter"}


@pytest.mark.some(3)
@pytest.mark.parametrize("strategy", ["dp*cp", "zero3*cp_ulysses", "cp*tp_sp", "hsdp*cp*tp", "zero1*cp_ulysses*tp_sp",
                                      "cp*recompute_full"])
@pytest.mark.parametrize("model", ["gpt", "llama-3-70b"])
def test_it_is_proved_and_runs_as_on_one_device(strategy: str, model: str) -> None:
    step = derive(parse_strategy(strategy), resolve_model(model))
    found = examine(step)
    assert {(v.verdict, v.cls) for v in found.verdicts} == {(PROVED, PARAMETRIC)}
    assert simulate(step, Setting.equal(step.reference, dict.fromkeys(step.reference.mesh.names, 2), 2)).equal


# --- rings

def test_a_ring_runs_as_on_one_device_and_differs_without_its_shifts() -> None:
    step = derive(parse_strategy("cp_ring"), resolve_model("gpt"))
    run = Setting.equal(step.reference, {"cp": 2}, 1)
    assert simulate(step, run).equal
    assert not simulate(edit(step, drop="forward.*.keys.shift[cp]"), run).equal


@pytest.mark.parametrize("model", ["llama-3-70b", "llama-3.1-405b"])
def test_a_ring_sends_each_block_of_keys_and_values_to_all_others(model: str) -> None:
    """2 (s/P) h_kv (P - 1) elements of a sequence forward, h_kv being h kv/a; backward they go round with gradients."""
    step = derive(parse_strategy("cp_ring"), resolve_model(model))
    assert sent(step, "forward") == of("2*b*(s/cp)*(h*kv/a)*(cp - 1)")
    assert sent(step, "backward") == of("4*b*(s/cp)*(h*kv/a)*(cp - 1)")
    assert {e.verb for e in step.events if e.tensor.startswith("layer.") and e.axes} == {"shift"}


@pytest.mark.parametrize(("text", "said"), [("cp_ring", True), ("cp", False)])
def test_a_ring_says_in_how_many_hops_it_sums_gradients(text: str, said: bool) -> None:
    assert (SUMMED_IN_RINGS in assumed(derive(parse_strategy(text), resolve_model("gpt")))) is said


def blocks(text: str, moment: str, model: str = "llama-3-8b") -> dict[str, Formula]:
    """What is held of keys and values, and of their gradients, along cp at an event, in elements."""
    step = derive(parse_strategy(text), resolve_model(model))
    amounts = Amounts(step.reference)
    tensors = Activations(step, amounts)
    (touch,) = (t for t in tensors.walk() if t.event.path == moment)
    return {s.version[0]: amounts.made(monomial(tensors.elements(s)), "elements") for s in touch.during
            if s.version[1] == "cp"}


KEYS, VALUES = "layer.attn.core.keys", "layer.attn.core.values"


@pytest.mark.parametrize(("text", "held"), [("cp_ring", "2*b*(s/cp)*h*kv/a"), ("cp*recompute_full", "b*s*h*kv/a"),
                                            ("cp_ring*recompute_full", "2*b*(s/cp)*h*kv/a")])
def test_two_blocks_of_a_ring_are_held_and_all_of_what_is_gathered(text: str, held: str) -> None:
    forward = blocks(text, "forward.layer.attn.core.mixed.compute")
    assert forward == dict.fromkeys((KEYS, VALUES), Formula.parse(held, "elements"))
    back = blocks(text, "backward.layer.attn.core.mixed.grad.compute")
    gradients = (f"{KEYS}.grad", f"{VALUES}.grad")
    assert back == dict.fromkeys((KEYS, VALUES, *gradients), Formula.parse(held, "elements"))


def test_what_is_kept_for_backward_is_held_whole_though_a_ring_brought_it() -> None:
    kept = overlay(parse_strategy("cp"), {"schedule": {"gather": {"cp": "ring"}}})
    step = derive(kept, resolve_model("llama-3-8b"))
    tensors = Activations(step, Amounts(step.reference))
    walked = tensors.walk()
    assert any(t.event.verb == "shift" and t.event.value == KEYS for t in walked)
    (held,) = (t.during for t in walked if t.event.path == "forward.layer.attn.core.mixed.compute")
    assert {str(tensors.elements(s)) for s in held if s.version == (KEYS, "cp")} == {"b*h*kv*s/a"}


def test_a_ring_never_needs_more_memory_than_a_gather() -> None:
    ring, gather = (memory(derive(parse_strategy(text), resolve_model("llama-3-8b"))).peak
                    for text in ("cp_ring*recompute_full", "cp*recompute_full"))
    for cp in (2, 4, 16, 256):
        at = {"b": 1, "s": 2**20, "cp": cp}
        assert Fraction(ring.value(**at) or 0) <= Fraction(gather.value(**at) or 0)
    at = {"b": 1, "s": 2**20, "cp": 256}
    assert 0 < Fraction(ring.value(**at) or 0) < Fraction(gather.value(**at) or 0)


def test_keys_from_latents_go_round_with_the_rotary_ones() -> None:
    step = derive(parse_strategy("cp_ring"), resolve_model("deepseek-v3"))
    assert {e.verb for e in step.events if e.tensor.startswith("layer.") and e.axes} == {"shift"}
    assert sent(step, "forward") == Formula.parse("m*L_moe*b*(s/cp)*(a*d_nope + a*d_v + d_rope)*(cp - 1)", "elements")
    assert {(v.verdict, v.cls) for v in examine(step).verdicts} == {(PROVED, PARAMETRIC)}


# --- fewer kv heads than ranks

REFINED = {
    "tp": """
[mesh]
tp1 = 8
tp2 = 2
[dims]
tp1 = ["loss.none", "heads", "ffn", "vocab", "seq"]
tp2 = ["loss.none", "group", "ffn", "vocab", "seq"]
[states]
activations = { tp1 = "S*", tp2 = "S*" }
""",
    "cp": """
[mesh]
cp1 = 8
cp2 = 2
[dims]
cp1 = ["core.heads", "seq"]
cp2 = ["core.group", "seq"]
""",
}
"""Sixteen ranks for eight kv heads: an axis as two, of which one splits the heads that share a kv head."""


@pytest.mark.parametrize("axis", REFINED)
def test_an_axis_refined_for_few_kv_heads_is_proved_and_runs(axis: str) -> None:
    model = resolve_model("llama-3-8b")
    plain = {"tp": "tp_sp[16]", "cp": "cp_ulysses[16]"}[axis]
    with pytest.raises(InputError, match=f'{axis} is refined into two axes: {axis}1 = 8 splits "heads", {axis}2'):
        derive(parse_strategy(plain), model)
    step = derive(parse_strategy_file(REFINED[axis]).strategy, model)
    assert {(v.verdict, v.cls) for v in examine(step).verdicts} == {(PROVED, PARAMETRIC)}
    assert simulate(step, Setting.equal(step.reference, dict.fromkeys(step.reference.mesh.names, 2), 2)).equal


def test_a_gathered_value_ends_after_what_is_made_of_it() -> None:
    """Of the gathered input of attention keys take a slice, which stands behind the queries, its only other reader."""
    step = derive(parse_strategy_file(REFINED["tp"]).strategy, resolve_model("llama-3-8b"))
    paths = [e.path for e in step.phase("forward")]
    ends = paths.index("forward.layer.norm1.out.free")
    assert paths.index("forward.layer.norm1.out.slice[tp2]") < ends
