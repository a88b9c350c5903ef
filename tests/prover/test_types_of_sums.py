"""The obligation `precision`: every sum with its type, and the one that is taken in too few bits."""

from __future__ import annotations

from pathlib import Path

import pytest

import placealg as pa
from placealg.cases.given import program_of
from placealg.check.kernel import kernel
from placealg.check.precision import ROUNDED, with_precision
from placealg.cost.communication import communication
from placealg.cost.memory import memory
from placealg.errors import InputError
from placealg.number_formats import FORMATS, Element, told
from placealg.prover.sums import precision
from placealg.prover.verdict import PRECISION_LEFT_OUT, PROVED, REFUTED, UNDECIDED
from placealg.step.program import Step
from placealg.step.sums import OF_GRADIENTS, OF_TENSORS, sums
from placealg.strategy.file import parse_strategy_file
from placealg.strategy.spec import overlay
from placealg.strategy.write import write_strategy

FSDP2 = """base = "zero3*tp_sp"
[types]
w = "fp32"
wire_w = "bf16"
use = "bf16"
g = "fp32"
wire = "fp32"
act = "bf16"
"""


def step_of(text: str) -> Step:
    return pa.derive(parse_strategy_file(text).strategy, pa.Model.from_config("gpt2"))


def test_types_are_read_and_written_by_name() -> None:
    strategy = parse_strategy_file(FSDP2 + "[schedule]\nwire = { tp = \"fp16\" }\nsums = \"fp16\"\n").strategy
    text = write_strategy(strategy)
    assert 'wire_w = "bf16"' in text and 'wire = { tp = "fp16" }' in text and 'sums = "fp16"' in text
    assert parse_strategy_file(text).strategy == strategy
    assert parse_strategy_file(FSDP2.replace("bf16", "fp16")).strategy != parse_strategy_file(FSDP2).strategy


def test_costs_are_those_of_the_bytes() -> None:
    numbers = FSDP2.replace('"fp32"', "4").replace('"bf16"', "2")
    one, two = map(step_of, (FSDP2, numbers))
    assert communication(one).total == communication(two).total
    assert memory(one).total == memory(two).total


def test_a_reduction_in_fewer_bits_is_told_and_activations_are_not_asked() -> None:
    right, wrong = step_of(FSDP2), step_of(FSDP2 + "[schedule]\nwire = { tp = \"bf16\" }\n")
    assert pa.prove(right).verdict == PROVED
    report = pa.prove(wrong)
    assert (report.verdict, report.refuted()) == (REFUTED, ("precision",))
    assert report.counterexample is not None
    narrow = [s for s in sums(wrong) if s.narrow]
    assert narrow and all(s.terms == ("tp",) and s.of == OF_GRADIENTS for s in narrow)
    assert any(".norm1." in s.event for s in narrow)
    assert report.counterexample.event == narrow[0].event and "[types] wire = fp32" in report.counterexample.explanation
    assert {told(s.type) for s in sums(right) if s.of == OF_TENSORS} == {"bf16"}
    assert not any(s.narrow or s.least for s in sums(right, "fp32") if s.of == OF_TENSORS)


def test_a_strategy_may_say_that_fewer_bits_are_meant() -> None:
    assert pa.prove(step_of(FSDP2 + "[schedule]\nwire = { tp = \"bf16\" }\nsums = \"bf16\"\n")).verdict == PROVED


def test_what_a_user_asks_goes_before_what_a_strategy_says() -> None:
    low = step_of(FSDP2.replace('wire = "fp32"', 'wire = "bf16"'))
    report = pa.prove(low)
    assert report.verdict == PROVED
    assert with_precision(low, report, "fp32").refuted() == ("precision",)
    assert with_precision(low, report, "bf16").refuted() == ()
    with pytest.raises(InputError, match="did you mean 'fp32'"):
        with_precision(low, report, "fp23")


def test_bytes_name_no_type() -> None:
    step = pa.derive(pa.zero1(), pa.abstract())
    assert precision(step) is None and not pa.prove(step).of("precision")
    found = precision(step, "fp32")
    assert found is not None and found[0].verdict == UNDECIDED and "bytes name no type" in found[0].reason
    half = step_of("base = \"zero1\"\n[types]\ng = \"fp32\"\n")
    report = pa.prove(half)
    assert report.verdict == UNDECIDED and report.of("precision")[0].verdict == UNDECIDED


def test_accumulation_in_what_is_not_reduced_yet() -> None:
    report = pa.prove(step_of("base = \"dp\"\n[types]\ng = \"fp32\"\nacc = \"bf16\"\nwire = \"fp32\"\n"))
    assert report.refuted() == ("precision",) and report.counterexample is not None
    assert report.counterexample.event.endswith(".accumulate")
    assert "over microbatches" in report.counterexample.explanation
    fixed = pa.prove(step_of("base = \"zero2\"\n[types]\ng = \"fp32\"\nacc = \"bf16\"\nwire = \"fp32\"\n"))
    assert fixed.verdict == PROVED, "with gradients sharded every microbatch is reduced first, and none is added in acc"


def test_an_edit_says_the_type_of_one_event(tmp_path: Path) -> None:
    text = FSDP2.replace("zero3*tp_sp", "zero1") + "\n[[edit]]\nset = \"{}\"\nbytes = \"{}\"\n"
    path = next(s.event for s in sums(step_of(FSDP2.replace("zero3*tp_sp", "zero1"))) if s.of == OF_GRADIENTS)
    for name, verdict in (("bf16", REFUTED), ("fp32", PROVED)):
        file = tmp_path / f"{name}.toml"
        file.write_text(text.format(path, name), encoding="utf-8")
        assert pa.prove(program_of(str(file), "gpt2")).verdict == verdict


def test_every_sum_over_ranks_or_microbatches_is_listed() -> None:
    step = step_of(FSDP2)
    listed = {s.event for s in sums(step)}
    adding = {e.path for e in step.events if e.verb in ("reduce", "accumulate", "reduce_scatter", "all_reduce")
              and e.op != "max" and e.phase not in ("init", "save", "resume")}
    assert adding == listed


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_is_to_the_nearest(name: str) -> None:
    found = FORMATS[name]
    u = found.roundoff
    assert found.rounded(1 + u) == 1 and found.rounded(1 + 3 * u) == 1 + 4 * u, "ties go to even"
    assert found.rounded(found.largest) == found.largest and found.rounded(-found.smallest) == -found.smallest
    with pytest.raises(OverflowError):
        found.rounded(2 * found.largest)
    assert Element(name) != str(found.bytes) and str(Element(name)) == str(found.bytes)


def test_the_checker_of_values_does_not_contradict_a_refuted_type() -> None:
    step = pa.derive(overlay(pa.parse_strategy("zero2"), {"types": {"w": "bf16", "g": "fp32", "wire": "bf16"}}),
                     pa.abstract())
    told = with_precision(step, pa.prove(step), "fp32")
    assert told.refuted() == ("precision",) and not kernel(step).contradicts(told)
    assert told.not_covered[0] == ROUNDED and pa.prove("zero2").not_covered[0] == PRECISION_LEFT_OUT


def test_a_range_is_judged_as_digits_are() -> None:
    """fp16 has more digits than bf16 and reaches less far: neither stands for the other, and fp32 for both."""
    text = "base = \"zero2\"\n[types]\ng = \"{}\"\nwire = \"{}\"\n"
    for own, asked, verdict in (("fp16", "bf16", REFUTED), ("bf16", "fp16", REFUTED), ("fp32", "fp16", PROVED),
                                ("fp32", "tf32", PROVED), ("tf32", "bf16", PROVED), ("fp16", "fp16", PROVED)):
        report = pa.prove(step_of(text.format("fp32", own)), sums=asked)
        assert report.verdict == verdict, (own, asked)
        if verdict == REFUTED:
            assert report.counterexample is not None and f"is taken in {own}" in report.counterexample.explanation
    report = pa.prove(step_of(text.format("fp32", "fp16")), sums="bf16")
    assert report.counterexample is not None
    assert "65504 + 65504 is beyond fp16, and 131072 in bf16" in report.counterexample.explanation


def test_a_format_of_a_smaller_range_reaches_less_far_up() -> None:
    """So that the sum of its largest number with itself shows it."""
    for own in FORMATS.values():
        for asked in FORMATS.values():
            if own.digits >= asked.digits and not own.holds(asked):
                assert asked.rounded(2 * own.largest) > own.largest


def test_a_collective_may_add_in_another_type_than_it_sends() -> None:
    text = "base = \"zero2\"\n[types]\nw = \"bf16\"\ng = \"fp32\"\nwire = \"bf16\"\n[schedule]\nsums = \"fp32\"\n"
    plain, adding = step_of(text), step_of(text + "adds = \"fp32\"\n")
    assert (pa.prove(plain).verdict, pa.prove(adding).verdict) == (REFUTED, PROVED)
    assert pa.prove(step_of(text + "adds = \"bf16\"\n")).refuted() == ("precision",)
    assert communication(plain).total == communication(adding).total
    one, *_ = (s for s in sums(adding) if s.terms == ("dp",) and s.of == OF_GRADIENTS)
    assert (told(one.type), told(one.wire)) == ("fp32", "bf16")
    low = pa.tolerance(adding).of("layer.weight"), pa.tolerance(plain).of("layer.weight")
    assert low[0].expected(dp=64, m=1) < low[1].expected(dp=64, m=1) / 3
    assert pa.tolerance(plain, adds="fp32").rows[0].roundings == pa.tolerance(adding).rows[0].roundings


def test_an_algorithm_changes_the_tolerance_and_no_verdict() -> None:
    text = "base = \"zero2\"\n[types]\nw = \"bf16\"\ng = \"fp32\"\nwire = \"bf16\"\n[schedule]\nalgorithm = \"{}\"\n"
    ring, tree = (step_of(text.format(name)) for name in ("ring", "tree"))
    assert ring.events == tree.events and pa.prove(ring).obligations[0].verdict == pa.prove(tree).verdict == PROVED
    assert pa.tolerance(tree).bound(dp=64, m=1) < pa.tolerance(ring).bound(dp=64, m=1)
