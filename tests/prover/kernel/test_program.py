"""A step as a program of the kernel: units are folded, and what the language lacks is refused by name."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

import placealg as pa
from placealg.arith import Monomial
from placealg.check.kernel import kernel
from placealg.errors import InputError
from placealg.models.abstract import amax, two_losses
from placealg.models.config import resolve_model
from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.program import FIELDS, Rests, program_of
from placealg.prover.kernel.terms import coq_text
from placealg.prover.kernel.whole_units import whole_units
from placealg.step.edit import edit
from placealg.step.program import Clause, Event, Step
from placealg.strategy.file import parse_strategy_file, proofs_folder

WHOLE: Rests = {"layer.weight": ((), "device")}


def step() -> Step:
    return pa.derive(pa.dp("dp"), pa.abstract())


def with_event(path: str, **fields: object) -> Step:
    found = step()
    return replace(found, events=tuple(replace(e, **fields) if e.path == path else e for e in found.events))


REFUSED = {
    "at outside of the loop": ("update.layer.weight.clip", {"at": ("last",)}, "at = last"),
    "a layout of no owners": ("update.layer.weight.update", {"layout": "other"}, "layout = other"),
    "a layout of every rank": (
        "update.layer.weight.norm", {"layout": "mine(dp)", "where": (Clause("dp"),)}, r"layout = mine(dp)"),
    "divisor": ("update.layer.weight.clip", {"divisor": Monomial.of("dp")}, "divisor = dp"),
    "a divisor of the counter": ("update.step.update", {"divisor": Monomial.of("dp")}, "divisor = dp"),
    "another accumulation": ("backward.layer.weight.grad_sum.accumulate", {"op": "mean"}, "op = mean"),
    "padding of no shards": ("backward.loss.scale", {"divisor": Monomial.of("padding")}, "divisor = padding"),
    "owners of a counter": ("update.step.update", {"where": (Clause("dp"),)}, "where = owner"),
    "a number": ("backward.loss.scale", {"divisor": Monomial.number(2)}, "divisor = 2"),
    "tokens outside": ("reduce.layer.weight.grad_sum.reduce[dp]", {"divisor": Monomial.of("tokens")}, "counts tokens"),
    "op": ("reduce.layer.weight.grad_sum.reduce[dp]", {"op": "min"}, "op = min"),
    "root": ("init.layer.weight.broadcast[dp]", {"root": 1}, "root = 1"),
    "a rank": ("update.layer.weight.norm", {"where": (Clause("dp", 1),)}, "where = rank"),
    "where": ("forward.loss.compute", {"where": (Clause("dp"),)}, "where = owner"),
    "a rank of a counter": ("update.step.update", {"where": (Clause("dp", 1),)}, "where = rank"),
    "all ranks but one": ("update.layer.weight.clip", {"where": (Clause("dp", 0, but=True),)}, "where = not rank"),
    "all ranks but one of a counter": ("resume.step.load", {"where": (Clause("dp", 0, but=True),)}, "where = not rank"),
    "tier": ("update.layer.weight.clip", {"tier": "device->host"}, "from one place to another"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_language_lacks_is_refused_by_event_and_field(case: str) -> None:
    path, fields, said = REFUSED[case]
    with pytest.raises(Outside) as found:
        program_of(with_event(path, **fields), WHOLE)
    assert said in str(found.value)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_unit_computes_once_in_a_microbatch(phase: str) -> None:
    """What a second computation reads is what the first has read (`verbs.py`); the kernel's machine keeps it not."""
    path, found = f"{phase}.layer.compute", step()
    twice = edit(found, double=path)
    with pytest.raises(Outside, match="unit layer computes in more than one place, or again"):
        program_of(twice, WHOLE)
    apart = {path: ("first", "last"), f"{path}#2": ("middle",)}
    assert program_of(replace(twice, events=tuple(replace(e, at=apart.get(e.path, ())) for e in twice.events)), WHOLE)


def test_positions_of_the_loop_have_blocks_of_their_own() -> None:
    path = "backward.layer.weight.grad_sum.accumulate"
    term = program_of(with_event(path, at=("first", "middle")), WHOLE)
    inside, ends = (term[1 + FIELDS.index(name)] for name in ("inside", "at_ends"))
    plain = program_of(step(), WHOLE)
    assert plain[1 + FIELDS.index("at_ends")] == "Alike"
    assert inside == plain[1 + FIELDS.index("inside")]
    assert isinstance(ends, tuple)
    assert [("Accumulate" in str(body)) for body in ends[1:]] == [True, True, False]


def test_an_axis_that_splits_ops_is_named() -> None:
    with pytest.raises(Outside, match=r"axis tp splits ops"):
        program_of(pa.derive(pa.dp("dp") * pa.tp("tp"), pa.gpt()), WHOLE)


def test_ops_become_units() -> None:
    folded = whole_units(pa.derive(pa.zero3("dp"), pa.gpt()))
    assert not any(e.on_tensor for e in folded.events)
    assert [e.path for e in folded.events if e.value == "activation" and e.phase == "backward"] == [
        "backward.head.compute", "backward.layer.compute", "backward.embedding.compute"]


def ops() -> list[Event]:
    return [e for e in pa.derive(pa.dp("dp"), pa.gpt()).events if e.on_tensor]


@pytest.mark.parametrize("path", [e.path for e in ops()])
def test_a_unit_that_lacks_an_op_is_none(path: str) -> None:
    found = pa.derive(pa.dp("dp"), pa.gpt())
    with pytest.raises(Outside):
        whole_units(replace(found, events=tuple(e for e in found.events if e.path != path)))


@pytest.mark.parametrize("strategy", ["dp", "zero3"])
def test_a_first_unit_takes_its_slice_of_the_data(strategy: str) -> None:
    on, chosen = resolve_model("mlp"), pa.parse_strategy(strategy)
    found = pa.derive(chosen, on)
    assert kernel(found, chosen, on).accepted is True
    data = next(e for e in found.events if e.verb == "slice" and e.phase == "forward")
    for changed, said in ((replace(data, axes=(), to=""), "the data are not split as the batch is"),
                          (replace(data, layout="shuffled(dp)"), "layout = shuffled(dp)")):
        events = tuple(changed if e == data else e for e in found.events)
        assert kernel(replace(found, events=events), chosen, on).reason == f"{changed.path}: {said}"


def test_a_statistic_is_reduced_between_the_ops_of_a_unit() -> None:
    found = pa.read(proofs_folder("proved") / "fp8_scales_each_microbatch.toml")
    assert kernel(found.step, found.strategy, found.model).accepted is True


def on_moe(tables: str) -> Step:
    return pa.derive(parse_strategy_file(f'base = "dp"\n{tables}').strategy, pa.moe())


def test_the_terms_of_a_unit_share_a_divisor() -> None:
    found = on_moe('[loss]\nterms = ["balance", "z"]')
    assert next(e for e in whole_units(found).events if e.path == "backward.layer.compute").divisor == Monomial.parse(
        "m*tokens", ("m", "tokens"))
    other = edit(found, set="backward.layer.router.z_loss.grad.compute", divisor="m")
    with pytest.raises(Outside, match=r"divisor = m\*tokens, and that of .*\.z_loss\.grad\.compute = m"):
        whole_units(other)
    path, by = "backward.layer.router.z_scaled.grad.compute", Monomial.of("m")
    scaled = replace(found, events=tuple(replace(e, divisor=by) if e.path == path else e for e in found.events))
    with pytest.raises(Outside, match=rf"{path}: divisor = m"):
        whole_units(scaled)


def test_a_statistic_is_taken_behind_the_ops_of_its_unit() -> None:
    found, taken = on_moe("[optimizer]\nrouter_bias = true"), "forward.layer.router.choice_bias.grad.compute"
    paths = [e.path for e in whole_units(found).events if e.phase == "forward"]
    assert paths[paths.index("forward.layer.compute"):][:3] == [
        "forward.layer.compute", taken, "forward.layer.router.choice_bias.grad_sum.accumulate"]
    early = edit(found, move=taken, before="forward.layer.router.expert_load.compute")
    with pytest.raises(Outside, match=rf"{taken}: it is taken before layer\.router\.expert_load"):
        whole_units(early)


def test_losses_are_numbers_and_a_maximum_is_taken() -> None:
    found = pa.derive(pa.dp("dp"), two_losses())
    text = coq_text(program_of(found, {g.name: ((), "device") for g in found.reference.groups}))
    assert "Loss 1 (Ratio [] [Tokens 1])" in text and "ScaleLoss 1 (Ratio [] [Micro])" in text
    found = pa.derive(pa.dp("dp"), amax())
    text = coq_text(program_of(found, {g.name: ((), "device") for g in found.reference.groups}))
    assert "MostTaken" in text and "Accumulate (At Grad Device) (At GradSum Device) true" in text


def test_the_text_of_a_term() -> None:
    text = coq_text(program_of(step(), WHOLE))
    assert text.count("(") == text.count(")")
    assert "Reduce (At GradSum Device) [0] Mean None (Ratio [] [])" in text


ODD: dict[str, object] = {
    "axes": ("dp", "dp"), "op": "max", "divisor": Monomial.of("dp"), "at": ("last",), "where": (Clause("dp", 0),),
    "source": "other", "to": "other", "root": 1, "tier": "nvme->host", "layout": "other", "version": "x",
    "reads": ("x",), "verb": "pad", "value": "skip", "group": "other", "phase": "weights"}
"""Field -> what no event of the step says."""


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Event) if f.name not in
                                   {"bytes", "copy", "rule", "line", "said", "unit"}])
def test_a_changed_field_is_refused_or_shown(field: str) -> None:
    found = pa.derive(pa.parse_strategy("zero3*offload_optimizer"), pa.abstract())
    term = program_of(found, WHOLE)
    for k, event in enumerate(found.events):
        changed = replace(event, **{field: ODD[field]})  # type: ignore[arg-type]
        try:
            made = program_of(replace(found, events=(*found.events[:k], changed, *found.events[k + 1:])), WHOLE)
        except (Outside, InputError, KeyError):
            continue
        assert made != term, f"{event.path}: {field} is neither refused nor shown"
