"""Costs: read off programs written by hand, off derived ones; laws of Formula."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from cost_steps import DP, GROUP, OWNER, PROGRAMS, ZERO1, ZERO3, backward, by_hand, forward, on, reference, update
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placealg import placement
from placealg.arith import Monomial
from placealg.cost.amounts import Amounts, known
from placealg.cost.bounds import at_most, largest
from placealg.cost.communication import collective_of, communication, sent_factor
from placealg.cost.costs import Costs
from placealg.cost.document import cost_json
from placealg.cost.expressions import EXPRESSIONS, symbol
from placealg.cost.formula import Formula, json_number
from placealg.cost.held import accesses, first_contributions, visits
from placealg.cost.memory import Memory, memory
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
from placealg.placement import SENT
from placealg.polynomial import Polynomial
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.graph import creates, reads
from placealg.step.program import Event, Group, LoopUnit, Step
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import Strategy

FAMILY = ("dp", "zero1", "zero2", "zero3", "fsdp_no_reshard", "hsdp")


def bytes_of(text: str) -> Formula:
    return Formula.parse(text, "bytes")


def elements(text: str) -> Formula:
    return Formula.parse(text, "elements")


def step_of(strategy: str | Strategy, model: str = "abstract", **tables: Any) -> Step:
    chosen = parse_strategy(strategy) if isinstance(strategy, str) else strategy
    said = {table: FrozenMap({**dict(chosen.tables.get(table, {})), **keys}) for table, keys in tables.items()}
    return derive(replace(chosen, tables=chosen.tables.plus(said)), resolve_model(model))


# --- programs written by hand


@pytest.mark.parametrize(("name", "states", "transient"), [
    ("dp", "(w + g + o)*Psi", "0*Psi"),
    ("zero1", "(w + g)*Psi + o*Psi/dp", "0*Psi"),
    ("zero3", "(w + g + o)*Psi/dp", "(w + g)*Psi_unit"),
])
def test_memory_by_hand(name: str, states: str, transient: str) -> None:
    held = memory(by_hand(name))
    assert held.states == bytes_of(states)
    assert held.transient == bytes_of(transient)
    assert held.total == held.peak == bytes_of(states) + bytes_of(transient)
    assert held.parameters + held.optimizer + held.gradients == held.states
    assert held.host == bytes_of("0") and held.activations.expr is None and held.activations.reason


@pytest.mark.parametrize(("name", "volume"), [
    ("dp", "2*wire*Psi*(dp - 1)/dp"),
    ("zero1", "(wire + w)*Psi*(dp - 1)/dp"),
    ("zero3", "(2*w + wire)*m*Psi*(dp - 1)/dp"),
])
def test_volume_by_hand(name: str, volume: str) -> None:
    sent = communication(by_hand(name))
    assert sent.total == sent.by_axes["dp"] == bytes_of(volume)
    assert sum(sent.by_phase.values(), bytes_of("0")) == sent.total
    assert sum((e.formula for e in sent.events if not e.left_out), bytes_of("0")) == sent.total
    assert sent.host_link == bytes_of("0")


def edited(events: tuple[Event, ...], verb: str, phase: str = "", **fields: Any) -> Step:
    """The program with every event of `verb` changed, or dropped when no fields are given."""
    new = [replace(e, **fields) if e.verb == verb and phase in ("", e.phase) else e for e in events]
    return Step(reference(), tuple(e for e in new if fields or e.verb != verb or phase not in ("", e.phase)))


def test_the_events_decide_and_nothing_else() -> None:
    """Each edit of a program moves the figure that it should, and none stays by habit."""
    full = edited(ZERO1, "assign", "init", where=())
    assert memory(full).optimizer == bytes_of("o*Psi")
    kept = edited(ZERO3, "free")
    assert memory(kept).parameters == bytes_of("w*Psi/dp + w*Psi")
    assert memory(edited(ZERO3, "free", "backward")).parameters == bytes_of("w*Psi/dp + w*Psi")
    everywhere = edited(ZERO3, "zero", where=())
    assert memory(everywhere).gradients == bytes_of("g*Psi")
    assert communication(edited(ZERO1, "publish", axes=())).total == bytes_of("wire*Psi*(dp - 1)/dp")
    assert communication(edited(DP, "reduce", to="S")).total == bytes_of("wire*Psi*(dp - 1)/dp")
    assert communication(edited(ZERO3, "gather", "backward")).total == bytes_of("(w + wire)*m*Psi*(dp - 1)/dp")
    assert communication(edited(DP, "reduce", bytes="g")).total == bytes_of("2*g*Psi*(dp - 1)/dp")
    unsliced = memory(edited(ZERO3, "slice"))
    assert unsliced.optimizer == bytes_of("4*Psi + (o - 4)*Psi/dp"), "master is copied from whole weights"
    assert unsliced.parameters == bytes_of("w*Psi/dp"), "the first free drops what is not owned"
    assert communication(edited(ZERO3, "gather", at=("first",))).by_phase["forward"] == bytes_of("w*Psi*(dp - 1)/dp")


def test_positions_of_the_microbatch_loop() -> None:
    def volume(*at: str) -> Formula:
        return communication(edited(ZERO3, "gather", "forward", at=at), unit="elements").by_phase["forward"]

    one = elements("Psi*(dp - 1)/dp")
    for m in range(1, 6):
        for at, times in {
            (): m, ("first",): 1, ("last",): 1, ("first", "last"): min(m, 2), ("middle",): max(m - 2, 0),
            ("first", "middle"): max(m - 1, 1), ("middle", "last"): max(m - 1, 1), ("only",): int(m == 1),
            ("first", "middle", "last"): m, ("only", "first", "middle", "last"): m, ("only", "last"): 1,
        }.items():
            assert volume(*at).subs(m=m) == one * times, (at, m)


def test_a_gradient_between_backward_and_its_reduction_is_a_buffer() -> None:
    assert memory(edited(DP, "reduce")).transient == bytes_of("0")
    reduced = (*DP[:6], on("backward", "reduce", "grad", ("dp",), to="I"), DP[6], *DP[8:])
    assert memory(Step(reference(), reduced)).transient == bytes_of("g*Psi_unit")


def test_what_one_instance_frees_does_not_pile_up() -> None:
    """In the forward loop copies pile up to the last instance; in the backward loop they go one by one."""
    late = edited(ZERO3, "free", "forward")
    assert memory(late).transient == bytes_of("w*Psi + g*Psi_unit")
    swapped = Step(reference(), (*ZERO3[:7], *ZERO3[9:10], ZERO3[10], *ZERO3[11:]))
    assert memory(swapped).transient == bytes_of("w*Psi + g*Psi_unit")


def test_the_last_instance_bounds_what_piles_up() -> None:
    """One group's copies pile up in the forward loop, another's come and go: the last instance holds most."""
    piles = replace(GROUP, elements=(Monomial.of("h") ** 2,))
    passes = replace(GROUP, name="layer.norm.weight", parameters=("layer.norm.weight",), elements=(Monomial.of("f"),))
    events = (*(replace(e, group=g) for e in (ZERO3[0], ZERO3[1]) for g in (piles.name, passes.name)),
              ZERO3[5], replace(ZERO3[5], group=passes.name), forward(), replace(ZERO3[7], group=passes.name),
              ZERO3[10])
    step = Step(reference(piles, passes, sizes={"h": 4, "f": 3, "L": 5}), events)
    assert memory(step).transient == bytes_of("w*(L*h**2 + f)")


def test_storage_shrinks_only_by_slice_and_free() -> None:
    twice = Step(reference(), (*DP[:4], on("prepare", "zero", "grad_sum", where=OWNER), *DP[4:]))
    assert memory(twice).gradients == bytes_of("g*Psi")


def test_prefetch_holds_more_units() -> None:
    assert memory(by_hand("zero3", prefetch=2)).transient == bytes_of("(3*w + g)*Psi_unit")
    kept = Step(reference(prefetch=2), edited(ZERO3, "free", "forward").events)
    assert memory(kept).transient == bytes_of("w*Psi + g*Psi_unit")


def test_two_groups_of_one_unit_count_together() -> None:
    norm = replace(GROUP, name="layer.norm.weight", parameters=("layer.norm.weight",), elements=(Monomial.of("h"),))
    weight = replace(GROUP, elements=(Monomial.of("h") ** 2,))
    events = [replace(e, group=g) for e in ZERO3 for g in ([weight.name, norm.name] if e.group else [""])]
    step = Step(reference(weight, norm, sizes={"h": 16, "L": 3}), tuple(events))
    held = memory(step)
    assert held.states == bytes_of("(w + g + o)*Psi/dp") and held.states.value(dp=4) == 16 * 3 * (256 + 16) / 4
    assert held.transient == bytes_of("(w + g)*Psi_unit") and held.transient.value() == 4 * (256 + 16)
    alone = Step(step.reference, tuple(e for e in events if (e.verb, e.group) != ("gather", norm.name)))
    assert memory(alone).transient == bytes_of("w*h**2 + g*(h**2 + h/dp)"), "an ungathered shard has its own gradient"
    heavier = replace(norm, types=FrozenMap({"w": "4", "wire": "4"}))
    mixed = Step(reference(weight, heavier, sizes={"h": 16, "L": 3}), tuple(events))
    assert memory(mixed).parameters == bytes_of("w*Psi/dp + (4 - w)*h*L/dp")
    assert communication(mixed).total.value(dp=4, m=5) == (6 * 16**2 + 12 * 16) * 3 * 5 * 3 / 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=7, max_size=7), st.booleans(),
       st.sampled_from(["gpt2", "llama-3-8b", "two groups in a layer"]))
def test_a_linear_form_is_written_exactly(weights: list[int], name_unit: bool, model: str) -> None:
    norm = replace(GROUP, name="layer.norm.weight", elements=(Monomial.of("f"),))
    two = reference(replace(GROUP, elements=(Monomial.of("h") ** 2,)), norm, sizes={"h": 4, "f": 3, "L": 5})
    amounts = Amounts(two if " " in model else step_of("zero3", model).reference)
    form = {part: symbol("w") * k for part, k in zip(amounts.parts, weights, strict=False)}
    want = sum(2 * k * count(amounts.reference.group(part[0]), part[1], amounts.reference.sizes)
               for part, k in zip(amounts.parts, weights, strict=False))
    assert amounts.formula(form, "bytes", name_unit=name_unit).value() == want


def count(group: Group, part: str, sizes: Any) -> Fraction:
    """The elements of a part, counted without SymPy."""
    one = sum((e.evaluate(sizes) for e in group.elements), Fraction(0))
    return one if part == "one" else one * (group.count.evaluate(sizes) - 1)


def test_the_largest_unit_is_the_largest_for_all_axis_sizes() -> None:
    units = (LoopUnit("embedding"), LoopUnit("layer", Monomial.of("L")))
    table = Group("embedding.weight", "embedding", ("embedding",), ("embedding.weight",), (Monomial.of("V", "h"),))
    weight = replace(GROUP, elements=(Monomial.of("h") ** 2,))
    early = [replace(e, group=table.name if e.group else "", unit="embedding" if e.unit else "") for e in ZERO3]
    phases = ("init", "prepare", "forward", "backward", "update", "publish")
    order = [e for phase in phases for part in ((early, ZERO3) if phase != "backward" else (ZERO3, early))
             for e in part if e.phase == phase]
    for vocabulary, want in ((100, "embedding"), (10, "layer")):
        step = Step(reference(table, weight, units=units, sizes={"h": 16, "L": 3, "V": vocabulary}), tuple(order))
        held = memory(step)
        assert held.transient == bytes_of("(w + g)*Psi_unit") and want in held.transient.note
        assert held.transient.value() == 4 * 16 * max(16, vocabulary)
    unsized = memory(Step(reference(table, weight, units=units, sizes={}), tuple(order)))
    assert unsized.transient == bytes_of("Max((w + g)*V*h, (w + g)*h**2)")


# --- derived programs


@pytest.mark.parametrize(("name", "states", "transient"), [
    ("dp", "(w + g + o)*Psi", "0*Psi"),
    ("zero1", "(w + g)*Psi + o*Psi/dp", "0*Psi"),
    ("zero2", "w*Psi + (g + o)*Psi/dp", "g*Psi_unit"),
    ("zero3", "(w + g + o)*Psi/dp", "(w + g)*Psi_unit"),
    ("fsdp", "(w + g + o)*Psi/dp", "(w + g)*Psi_unit"),
    ("fsdp_no_reshard", "(w + g + o)*Psi/dp", "w*Psi + g*Psi_unit"),
    ("hsdp", "(w + g + o)*Psi/dp_shard", "(w + g)*Psi_unit"),
])
@pytest.mark.parametrize("model", ["abstract", "llama-3-8b"])
def test_memory(name: str, states: str, transient: str, model: str) -> None:
    held = memory(step_of(name, model))
    assert held.states == bytes_of(states)
    assert held.transient == bytes_of(transient)
    assert of_states(held) == bytes_of(states) + bytes_of(transient)
    if held.activations.expr is None:
        assert held.peak == held.total
    else:
        sizes = {"b": 2, "s": 4096, **{a: 4 for a in held.states.axes}}
        low = Fraction((held.states + held.activations).value(**sizes) or 0)
        assert low <= Fraction(held.peak.value(**sizes) or 0) <= low * 2


def of_states(held: Memory) -> Formula:
    """The total without activations."""
    return held.total if held.activations.expr is None else held.total - held.activations


@pytest.mark.parametrize(("name", "volume"), [
    ("dp", "2*Psi*(dp - 1)/dp"),
    ("zero1", "2*Psi*(dp - 1)/dp"),
    ("zero2", "(m + 1)*Psi*(dp - 1)/dp"),
    ("zero3", "3*m*Psi*(dp - 1)/dp"),
    ("fsdp_no_reshard", "2*m*Psi*(dp - 1)/dp"),
])
@pytest.mark.parametrize("model", ["abstract", "llama-3-70b"])
def test_volume(name: str, volume: str, model: str) -> None:
    assert communication(step_of(name, model), unit="elements").total == elements(volume)


def test_events_sum_to_the_total_in_numbers() -> None:
    for name in FAMILY:
        sent = communication(step_of(name, "llama-3-70b"))
        sizes = {a: 8 for a in step_of(name).reference.mesh.names}
        assert sum(Fraction(e.formula.value(**sizes, m=5) or 0) for e in sent.events if not e.left_out) \
            == sent.total.value(**sizes, m=5)


@pytest.mark.parametrize("model", ["abstract", "llama-3-70b"])
def test_hsdp_volume_per_axis(model: str) -> None:
    sent = communication(step_of("hsdp", model), unit="elements")
    assert sent.by_axes["dp_shard"].subs(m=1) == elements("3*Psi*(dp_shard - 1)/dp_shard")
    assert sent.by_axes["dp_replicate"] == elements("2*(Psi/dp_shard)*(dp_replicate - 1)/dp_replicate")
    assert set(sent.by_axes) == {"dp_shard", "dp_replicate"}


def test_ratios() -> None:
    held = {n: memory(step_of(n)).states for n in ("dp", "zero3")}
    ratio = held["dp"].ratio(held["zero3"])
    assert ratio == Formula.parse("dp", "1") and ratio.value(dp=8) == 8
    sent = {n: communication(step_of(n), unit="elements").total.subs(m=1) for n in ("dp", "zero3")}
    assert sent["zero3"].ratio(sent["dp"]) == Formula.parse("3/2", "1")
    in_bytes = {n: communication(step_of(n)).total.subs(m=1) for n in ("dp", "zero3")}
    assert in_bytes["zero3"].ratio(in_bytes["dp"]) == Formula.parse("(2*w + wire)/(2*wire)", "1")


@pytest.mark.parametrize(("name", "states", "host", "link"), [
    ("dp", "(w + g)*Psi", "(g + o)*Psi", "(w + g)*Psi"),
    ("zero1", "(w + g)*Psi", "(g + o)*Psi/dp", "(w + g)*Psi/dp"),
    ("zero2", "w*Psi", "(g + o)*Psi/dp", "(w + m*g)*Psi/dp"),
    ("zero3", "w*Psi/dp", "(g + o)*Psi/dp", "(w + m*g)*Psi/dp"),
    ("hsdp", "(w + g)*Psi/dp_shard", "(g + o)*Psi/dp_shard", "(w + g)*Psi/dp_shard"),
])
def test_offload(name: str, states: str, host: str, link: str) -> None:
    plain, step = step_of(name), step_of(f"{name}*offload_optimizer")
    held, sent = memory(step), communication(step)
    assert (held.states, held.host) == (bytes_of(states), bytes_of(host))
    assert held.transient == memory(plain).transient and held.optimizer == bytes_of("0")
    assert sent.host_link == bytes_of(link) and sent.total == communication(plain).total


def test_tied_embeddings_stay_gathered() -> None:
    """GPT-2's embedding is gathered once per microbatch, and stays while every layer is gathered in turn."""
    step = step_of("zero3", "gpt2")
    sent, held = communication(step, unit="elements"), memory(step)
    assert sent.total == elements("m*(3*Psi - V*h)*(dp - 1)/dp")
    assert held.transient.value() == 4 * (50257 * 768 + 12 * 768**2 + 13 * 768)
    assert held.transient == bytes_of("(w + g)*(V*h + 12*h**2 + 13*h)")


def test_llama_70b_in_numbers() -> None:
    held, sent = memory(step_of("zero3", "llama-3-70b")), communication(step_of("zero3", "llama-3-70b"))
    psi, head = 70_553_706_496, 128256 * 8192 + 8192
    assert held.states.value(dp=512) == 16 * psi / 512
    assert held.transient.value() == 4 * head and held.transient.note == "Psi_unit is the head"
    assert of_states(held).value(dp=512) == 16 * psi // 512 + 4 * head
    assert sent.total.value(dp=512) == 6 * psi * 511 // 512
    assert held.states.if_known() is None and held.states.value(dp=3) == Fraction(16 * psi, 3)
    assert Costs(step_of("zero3", "llama-3-70b")).parameters.value() == psi
    assert Costs(step_of("zero3")).parameters == elements("Psi")


def test_lifetimes_and_prefetch() -> None:
    for life, gathers, transient in (("use", "2*m", "w*Psi_unit"), ("microbatch", "m", "w*Psi"),
                                     ("step", "1", "w*Psi")):
        step = step_of("zero3", schedule={"lifetime": FrozenMap({"dp": life})})
        assert communication(step, unit="elements").total == elements(f"({gathers} + m)*Psi*(dp - 1)/dp")
        assert memory(step).transient == bytes_of(f"{transient} + g*Psi_unit")
    assert memory(step_of("zero3", schedule={"prefetch": 1})).transient == bytes_of("(2*w + g)*Psi_unit")


def test_materialized_gradients_rest_nowhere() -> None:
    from placealg.placement import StatePlacement

    plain = parse_strategy("zero1")
    states = plain.states.plus({"gradients": StatePlacement.parse({"dp": "M"})})
    step = step_of(replace(plain, states=states), schedule={"microbatches": 1})
    assert memory(step).gradients == bytes_of("0") and memory(step).states == bytes_of("w*Psi + o*Psi/dp")
    assert memory(step).transient == bytes_of("g*Psi")


def test_what_replaces_a_shard_counts_once() -> None:
    """Whole gradients stand where a shard of them rests: g Psi/dp was in `states` and in `transient`."""
    muon = step_of("zero1", optimizer={"name": "muon"})
    held = memory(edit(muon, drop="update.*.grad_sum.all_gather[dp]"))
    assert held.gradients == bytes_of("g*Psi/dp")
    assert held.transient == bytes_of("g*Psi*(dp - 1)/dp + Max(o - 8, o/2 - 4)*Psi_unit") and held.total == held.peak


@pytest.mark.parametrize(("name", "gradients"), [("dp", "acc*Psi"), ("zero1", "acc*Psi"), ("zero2", "g*Psi/dp")])
def test_gradients_that_accumulate_in_bytes_of_their_own_are_gradients(name: str, gradients: str) -> None:
    held = memory(step_of(name, types={"acc": "4"}))
    assert held.gradients == bytes_of(gradients)
    assert held.parameters + held.optimizer + held.gradients == held.states


def test_a_matrix_optimizer_gathers_what_it_reads() -> None:
    plain, muon = step_of("zero1"), step_of("zero1", optimizer={"name": "muon"})
    more = communication(muon, unit="elements").total - communication(plain, unit="elements").total
    assert more.value(dp=2, Psi=100)
    assert communication(muon).by_phase["update"] == bytes_of("(wire + Max(o - 8, o/2 - 4))*Psi*(dp - 1)/dp")
    assert memory(muon).states == bytes_of("Psi*(w + g + (Max(o - 8, o/2 - 4) + 4)/dp)")
    assert memory(muon).transient == bytes_of("Max(o - 8, o/2 - 4)*Psi_unit"), "the moment is gathered, no master copy"
    lamb = step_of("zero1", optimizer={"name": "lamb"})
    assert communication(lamb).by_phase["update"] == bytes_of("(wire + o)*Psi*(dp - 1)/dp")
    assert memory(lamb).transient == bytes_of("o*Psi_unit")
    adafactor = step_of("zero1", optimizer={"name": "adafactor"})
    assert communication(adafactor).by_phase == communication(lamb).by_phase, "it reads the master copy whole, too"
    assert memory(adafactor).transient == memory(lamb).transient
    assert [e.bytes for e in lamb.events if e.verb == "all_gather"] == ["", "4", "o - 4"]
    heavier = Amounts(reference(replace(GROUP, types=FrozenMap({"o": "8"}))))
    assert heavier.size(heavier.reference.groups[0], "o - 4", EXPRESSIONS) == 4


def test_conventions() -> None:
    exact, rough = (communication(step_of("hsdp"), c, "elements") for c in ("exact", "asymptotic"))
    assert rough.total == elements("3*m*Psi + 2*Psi/dp_shard")
    assert exact.total.limit("dp_replicate").limit("dp_shard") == elements("3*m*Psi")
    assert {e.convention for e in rough.events} == {"asymptotic"}
    with pytest.raises(InputError, match=r"unknown convention 'exactly'; did you mean 'exact'\?"):
        communication(step_of("dp"), "exactly")
    with pytest.raises(InputError, match="communication has no unit 'flop'"):
        communication(step_of("dp"), unit="flop")


def test_what_the_totals_leave_out() -> None:
    sent = communication(step_of("zero3", loss={"preset": "token_mean"}))
    by_path = {e.path: e for e in sent.events}
    assert by_path["update.norm.all_reduce[dp]"].left_out.startswith("scalars")
    assert by_path["update.norm.all_reduce[dp]"].formula == bytes_of("8*(dp - 1)/dp")
    assert by_path["init.layer.weight.broadcast[dp]"].left_out and by_path["init.layer.weight.broadcast[dp]"].count \
        == Formula.parse("L", "1")
    assert by_path["forward.layer.weight.gather[dp]"].count == Formula.parse("m*L", "1")
    assert any("count" in path for path in by_path)


def test_every_collective_has_a_volume() -> None:
    from placealg.step.verbs import VERBS

    for verb in VERBS.values():
        event = Event("reduce", verb.name, verb.values[0], "layer.weight", axes=("dp",), to="S")
        if verb.collective:
            assert collective_of(event) in SENT
    assert collective_of(Event("publish", "publish", "weight", "layer.weight")) == ""


@pytest.mark.parametrize(("verb", "value", "to", "collective"), [
    ("gather", "weight", "", "all_gather"), ("all_gather", "moments", "", "all_gather"),
    ("publish", "weight", "", "all_gather"), ("reduce", "grad", "S", "reduce_scatter"),
    ("reduce", "grad", "I", "all_reduce"), ("reduce", "grad", "", "all_reduce"),
    ("all_reduce", "norm", "", "all_reduce"), ("broadcast", "weight", "", "broadcast"),
])
def test_a_collective_is_a_row_of_the_redistributions(verb: str, value: str, to: str, collective: str,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    event = Event("reduce", verb, value, "layer.weight", axes=("dp",), to=to)
    assert collective_of(event) == collective
    rows = tuple(replace(r, event=f"{r.event}, elsewhere") for r in placement.REDISTRIBUTIONS)
    monkeypatch.setattr(placement, "REDISTRIBUTIONS", rows)
    assert collective_of(event) == collective + ", elsewhere" * (verb != "broadcast")


def test_what_an_event_reads_and_makes() -> None:
    """The one account of accesses: what it says of reading and making decides liveness."""
    step = step_of("zero3*offload_optimizer", "gpt2")
    tied = "embedding.weight"

    def kept(path: str) -> set[tuple[str, str, str]]:
        return set(reads(step.event(path), step.reference))

    def made(path: str) -> set[tuple[str, str, str]]:
        return set(creates(step.event(path), step.reference))

    first = first_contributions(step)
    used, fresh = accesses(step, step.event("backward.head.logits.grad.compute"), first)
    assert (tied, "grad", "device") in fresh - used, "the first use in backward sets grad"
    used, fresh = accesses(step, step.event("backward.embedding.tokens.grad.compute"), first)
    assert (tied, "grad", "device") in used - fresh, "later uses add to it"
    assert made("backward.layer.weight.grad.offload") == {("layer.weight", "grad", "host")}
    assert kept("publish.layer.weight.publish") == {("layer.weight", "master", "device")}
    assert not made("publish.layer.weight.publish") and not made("prepare.layer.weight.grad_sum.zero")
    assert not kept("prepare.layer.weight.grad_sum.zero") and not kept("publish.layer.weight.master.free")
    assert kept("backward.layer.weight.grad_sum.accumulate") == {
        ("layer.weight", "grad", "host"), ("layer.weight", "grad_sum", "host")}
    assert not kept("init.layer.weight.moments.assign")


def test_the_origin_of_an_event() -> None:
    for verb, value, source, origin in (
        ("assign", "weight", "", "master"), ("assign", "weight", "moments", "moments"), ("assign", "moments", "", ""),
        ("offload", "grad", "", "grad"), ("offload", "master", "weight", "weight"), ("publish", "weight", "", "master"),
        ("accumulate", "grad_sum", "", "grad"), ("accumulate", "grad_sum", "grad_sum", "grad_sum"),
        ("publish", "weight", "S", "master"), ("gather", "weight", "S", "weight"), ("reduce", "grad", "P", "grad"),
    ):
        assert Event("init", verb, value, "layer.weight", source=source).origin == origin


@pytest.mark.parametrize(("collective", "exact", "rough"), [
    ("all_gather", "(n - 1)/n", "1"), ("reduce_scatter", "(n - 1)/n", "1"), ("all_reduce", "2*(n - 1)/n", "2"),
    ("all_to_all", "(n - 1)/n**2", "1/n"), ("broadcast", "1", "1"),
])
def test_sent_factors(collective: str, exact: str, rough: str) -> None:
    for axes in (("n",), ("x", "y")):
        product = "*".join(axes)
        for convention, text in (("exact", exact), ("asymptotic", rough)):
            want = Formula.parse(text.replace("n", f"({product})"), "1")
            assert Formula(sent_factor(collective, axes, convention), "1") == want


def test_costs_are_flat_in_layers_and_devices() -> None:
    def size(model: str, strategy: str) -> int:
        return len(visits(step_of(strategy, model)))

    assert size("llama-2-7b", "zero3") == size("llama-3.1-405b", "zero3[dp=16384]")
    assert memory(step_of("zero3[dp=16384]")).states == memory(step_of("zero3")).states
    assert memory(step_of("zero3[dp=8]")).states.value(Psi=8) == 16


# --- the document


@pytest.mark.parametrize("strategy", [*FAMILY, "zero2*offload_optimizer"])
@pytest.mark.parametrize("model", ["abstract", "gpt2"])
def test_document(strategy: str, model: str) -> None:
    step = step_of(strategy, model)
    sizes: dict[str, Any] = dict.fromkeys(step.reference.mesh.names, 4)
    sizes |= {"b": 2, "s": 8} if not step.reference.whole else {}
    found = json.loads(json.dumps(cost_json(step, {**sizes, "m": 3})))
    assert set(found) == {"version", "strategy", "model", "sizes", "convention", "unit", "hypotheses", "symbols",
                          "parameters", "memory", "communication", "saved", "regions", "compute", "schedule"}
    assert list(found["memory"]) == ["parameters", "optimizer", "gradients", "states", "activations", "transient",
                                     "host", "nvme", "total", "peak"]
    leaves = [found["parameters"], *found["memory"].values(), found["communication"]["total"],
              *found["communication"]["by_axes"].values(), *found["communication"]["events"],
              found["compute"]["flop"], *found["schedule"].values()]
    for leaf in leaves:
        assert leaf["expr"] is not None or (leaf["reason"] and leaf["value"] is None)
        read = Formula.from_json(leaf, found["symbols"])
        if read.expr is not None and model != "abstract":
            assert float(read.value(**{n: found["sizes"][n] for n in read.names}) or 0) == pytest.approx(leaf["value"])
    assert Formula.from_json(found["memory"]["states"]) == memory(step).states
    assert found["sizes"]["m"] == 3 or "m" not in found["symbols"]
    with pytest.raises(InputError, match="unknown symbol"):
        Formula.from_json(found["memory"]["states"], ["Psi"])


def test_numbers_of_the_document() -> None:
    for value, text in ((Fraction(16, 2), "8"), (10**30, str(10**30)), (Fraction(5, 2), "2.5"),
                        (Fraction(1, 8), "0.125")):
        assert json.dumps(json_number(value)) == text
    found = cost_json(step_of("zero3"), {"Psi": 7 * 10**9, "dp": 8, "wire": "1/2"})
    assert json.dumps(found["memory"]["states"]["value"]) == "14000000000"
    assert json.dumps(found["sizes"]["wire"]) == "0.5"


def test_the_document_says_what_it_assumes() -> None:
    step = step_of("zero1")
    apart = edit(edit(step, set="*.moments.assign", tier="host"), set="*.moments.load", tier="host")
    for program, split in ((step, False), (step_of("zero1*offload_optimizer"), False), (apart, True)):
        said = cost_json(program)["hypotheses"]
        assert any("4 of the o bytes" in line for line in said) == split
        assert any("wire exceeds g" in line for line in said)


# --- Formula

SMALL = st.integers(1, 9)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["Psi", "dp", "m", "w", "g", "h", "2", "3", "1/2"]))
    left, right = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    return draw(st.sampled_from(["({})+({})", "({})-({})", "({})*({})", "({})/(({})**2 + 1)", "Max({}, {})"])).format(
        left, right)


@settings(max_examples=60, deadline=None)
@given(expressions(), SMALL, SMALL, SMALL, SMALL)
@example("Max(22/5, Psi)", 1, 1, 1, 1).via("exported, a constant that is no whole number is a float")
def test_every_form_has_the_same_value(text: str, psi: int, dp: int, m: int, h: int) -> None:
    formula = Formula.parse(text, "bytes")
    sizes: dict[str, Any] = {"Psi": psi, "dp": dp, "m": m, "h": h, "w": 2, "g": Fraction(1, 2)}
    used = {n: v for n, v in sizes.items() if n in formula.names}
    value = formula.value(**used)
    assert value is not None
    assert Formula.from_json(formula.to_json()).value(**used) == value
    scope: dict[str, Any] = {}
    exec(formula.python(), scope)
    exported = scope["formula"](**{n: Fraction(v) for n, v in used.items()})
    assert exported == value if isinstance(exported, Fraction) else exported == pytest.approx(float(value))
    assert formula.subs(**used).value() == value
    assert readable(formula.text(), sizes) == value
    assert formula == Formula.parse(f"({text}) + dp - dp", "bytes")


def readable(text: str, sizes: dict[str, Any]) -> Fraction:
    """The value of a formula's unicode text."""
    from placealg.arith import parse

    powers = {sign: f"**{k}" for k, sign in enumerate("²³⁴⁵⁶⁷⁸", start=2)}
    for sign, plain in {"·": "*", "−": "-", "Ψ": "Psi", "max(": "Max(", **powers}.items():
        text = text.replace(sign, plain)
    return parse(text).evaluate(sizes)


def test_formula_refuses() -> None:
    states = memory(step_of("zero3")).states
    for call, message in (
        (lambda: states + communication(step_of("dp"), unit="elements").total, "cannot add elements to bytes"),
        (lambda: states - Costs(step_of("dp")).parameters, "cannot subtract elements from bytes"),
        (lambda: states.ratio(Costs(step_of("dp")).parameters), "the ratio of bytes to elements"),
        (lambda: states.subs(dpp=3), r"unknown symbol 'dpp'; did you mean 'dp'\?"),
        (lambda: states.value(dp=0), "dp = 0: a size is a whole number of at least 1"),
        (lambda: states.value(dp=-4), "dp = -4"),
        (lambda: states.value(dp=1.5), "dp = 1.5: a size is a whole number"),
        (lambda: states.value(dp="x"), "dp = 'x' is not a number"),
        (lambda: states.value(w=0), "w = 0: bytes per element are a positive number"),
        (lambda: states.limit("tp"), "unknown symbol 'tp'"),
        (lambda: Formula.parse("Psi/0", "bytes"), "divides by zero"),
        (lambda: Formula.parse("Psi", "byte"), r"unknown unit 'byte'; did you mean 'bytes'\?"),
        (lambda: Formula.parse("__import__('os')", "bytes"), "is not a function here"),
        (lambda: Formula.parse("Psi.x", "bytes"), "is not arithmetic"),
        (lambda: Formula.parse("S*Psi", "bytes"), "SymPy keeps for itself"),
        (lambda: Formula.from_json({"expr": 3, "unit": "bytes"}), "a formula is an object"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_formula_without_an_expression() -> None:
    none = Formula.none("bytes", "no graph")
    assert (none + bytes_of("w")).reason == "no graph" and (none + bytes_of("w")).expr is None
    assert none.value() is None and none.subs(w=3) is none and none.text() == "" and "no graph" in none.python()
    assert none.to_json() == {"expr": None, "unit": "bytes", "value": None, "reason": "no graph"}
    assert Formula.from_json(none.to_json()) == none != bytes_of("w")
    assert bytes_of("w").ratio(bytes_of("0")).reason == "the divisor is zero"


def test_equality_is_that_of_functions() -> None:
    one, other = bytes_of("(w + g)*Psi/dp - g*Psi/dp"), bytes_of("w*Psi/dp")
    assert one == other and hash(one) == hash(other) and len({one, other}) == 1
    assert bytes_of("w") != elements("w") and bytes_of("w") != bytes_of("g") and one != 3


@pytest.mark.parametrize(("text", "limit"), [
    ("Psi*(dp - 1)/dp", "Psi"), ("w*Psi/dp", "0"), ("w*Psi + g*Psi/dp", "w*Psi"), ("Max(Psi/dp, w)", "w"),
    ("(2*dp + 1)/(3*dp - 1)", "2/3"), ("0*dp + m", "m"),
])
def test_limits(text: str, limit: str) -> None:
    assert Formula.parse(f"({text})*dp/dp + 0*dp", "1") == Formula.parse(text, "1")
    formula = replace(Formula.parse(text, "1"), axes=("dp",))
    assert formula.limit("dp") == Formula.parse(limit, "1")


def test_a_limit_that_is_none() -> None:
    assert bytes_of("dp*Psi").limit("dp").reason == "grows without bound in dp"


def test_writing() -> None:
    formula = bytes_of("(w + g)*Psi + o*Psi/dp_shard")
    assert formula.text() == "Ψ·(w + g) + Ψ·o/dp_shard"
    assert formula.latex() == r"\Psi \left(w + g\right) + \frac{\Psi o}{N_{\mathrm{dp\_shard}}}"
    assert formula._repr_latex_() == f"${formula.latex()}\\ \\text{{bytes}}$"
    assert formula.markdown() == f"${formula.latex()}$ bytes"
    assert repr(Formula.parse("dp", "1")) == "dp" and repr(formula).endswith(" bytes")
    assert "(-(-V // dp))" in bytes_of("ceiling(V/dp)*h").python()
    assert Formula.parse("Psi_unit*2**10/3", "1").text() == "1024·Ψ_unit/3"
    assert str(memory(step_of("zero1")).states) == "Ψ·(w + g + o/dp) bytes"
    assert str(communication(step_of("zero3"), unit="elements").total) == "3·Ψ·m·(dp − 1)/dp elements"


def sum_of(text: str) -> Polynomial:
    return Polynomial.of(map(Monomial.parse, text.split(" + ")))


def test_what_never_exceeds() -> None:
    """Sizes are at least 1; bytes per element are positive, so that they cannot be compared with each other."""
    for small, large in (("w*h/dp", "w*h"), ("h + w", "h*L + w"), ("2*h + 3*s", "5*s*h"), ("act*h/tp", "act*h"),
                         ("h", "h"), ("w/2", "w")):
        assert at_most(sum_of(small), sum_of(large)), (small, large)
    for small, large in (("w", "g"), ("w*h", "w*h/dp"), ("w", "w*g"), ("3*h", "2*h*L"), ("h + s", "s*h"),
                         ("act*s", "4*s"), ("Psi", "Psi_unit")):
        assert not at_most(sum_of(small), sum_of(large)), (small, large)
    zero, loss = Polynomial(), sum_of("b") - sum_of("h")
    assert not at_most(zero, loss) and at_most(loss, sum_of("b")) and not at_most(sum_of("b"), loss)
    assert largest((t, sum_of(t)) for t in ("h/dp", "h", "s*a", "h + 1", "a")) == ["h + 1", "s*a"]
    assert str(known(Monomial.parse("h*L/tp"), {"h": 8, "tp": 4})) == "2*L"


def test_costs_never_start_with_the_package() -> None:
    import subprocess
    import sys

    code = "import sys, placealg; sys.exit(any(m in sys.modules for m in ('sympy', 'z3', 'placealg.cost.formula')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_hand_written_and_derived_programs_cost_the_same() -> None:
    for name in PROGRAMS:
        ours, theirs = by_hand(name), step_of(name)
        assert memory(ours) == memory(theirs)
        assert communication(ours).total == communication(theirs).total
        assert math.isclose(float(memory(ours).states.value(Psi=10**9, dp=8) or 0),
                            float(memory(theirs).states.value(Psi=10**9, dp=8) or 0))
    assert (forward().phase, backward().phase, OWNER[0].axis, len(update())) == ("forward", "backward", "dp", 4)


def test_a_copy_that_names_one_tier_goes_its_usual_way() -> None:
    step = step_of("zero2*offload_optimizer")
    said = edit(step, {"set": "*.fetch", "tier": "device"}, {"set": "*.offload", "tier": "device"})
    assert memory(said).host == memory(step).host
    assert communication(said).host_link == communication(step).host_link
