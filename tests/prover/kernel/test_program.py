"""A step as a program of the kernel: units are folded, and what the language lacks is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

import placealg as pa
from placealg.arith import Monomial
from placealg.prover.kernel.program import Rests, coq_text, program_of
from placealg.prover.kernel.whole_units import Outside, whole_units
from placealg.step.program import Clause, Event, Step

WHOLE: Rests = {"layer.weight": ((), "device")}


def step() -> Step:
    return pa.derive(pa.dp("dp"), pa.abstract())


def with_event(path: str, **fields: object) -> Step:
    found = step()
    return replace(found, events=tuple(replace(e, **fields) if e.path == path else e for e in found.events))


REFUSED = {
    "at": ("backward.layer.weight.grad_sum.accumulate", {"at": ("last",)}, "at = last"),
    "layout": ("update.layer.weight.update", {"layout": "other"}, "layout = other"),
    "divisor": ("update.layer.weight.update", {"divisor": Monomial.of("dp")}, "divisor = dp"),
    "a number": ("backward.loss.scale", {"divisor": Monomial.number(2)}, "divisor = 2"),
    "tokens outside": ("reduce.layer.weight.grad_sum.reduce[dp]", {"divisor": Monomial.of("tokens")}, "counts tokens"),
    "op": ("reduce.layer.weight.grad_sum.reduce[dp]", {"op": "premultiplied"}, "op = premultiplied"),
    "root": ("init.layer.weight.broadcast[dp]", {"root": 1}, "root = 1"),
    "a rank": ("update.layer.weight.norm", {"where": (Clause("dp", 1),)}, "where = rank"),
    "where": ("update.step.update", {"where": (Clause("dp"),)}, "where = owner"),
    "tier": ("update.layer.weight.clip", {"tier": "device->host"}, "from one place to another"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_language_lacks_is_refused_by_event_and_field(case: str) -> None:
    path, fields, said = REFUSED[case]
    with pytest.raises(Outside) as found:
        program_of(with_event(path, **fields), WHOLE)
    assert said in str(found.value)


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


def test_the_text_of_a_term() -> None:
    text = coq_text(program_of(step(), WHOLE))
    assert text.count("(") == text.count(")")
    assert "Reduce (At GradSum Device) [0] true false (Ratio [] [])" in text
