"""Measured weights held against programs, without torch: what they tell beside the proof; none can be changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from conftest import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.cases.case import read_case
from placealg.cli.glosses import SAYS
from placealg.render.conformance import document, page
from placealg.render.text_layout import plain
from placealg.strategy.spec import overlay
from placealg.watch.conform import Comparison, compare
from placealg.watch.conformance import judge
from placealg.watch.seen import Chain, Probe, Seen, Term, Weight
from placealg.watch.verdict import CONFORMS, DIFFERS, Conformance
from placealg.watch.weights import Measured, number, outline

FOLDER = Path(__file__).parent / "recordings"
GPT = "proofs/torch/gpt.json"
Run = Callable[..., Outcome]


@cache
def seen_in(file: str) -> Seen:
    return Seen.read((FOLDER / f"{file}.json").read_text())


@cache
def told_of(file: str, strategy: str) -> Conformance:
    case = read_case(strategy, GPT, ())
    return judge(case.strategy, case.model, seen_in(file))


def held(seen: Seen) -> Comparison:
    told = told_of("weighed_clipped", "zero3")
    return compare(told.comparison.step, read_case("zero3", GPT, ()).model, seen)


def on_probe(seen: Seen, rank: int, at: int, change: Callable[[Probe], Probe]) -> Seen:
    own = seen.ranks[rank]
    probes = tuple(change(p) if k == at else p for k, p in enumerate(own.probes))
    return replace(seen, ranks=tuple(replace(r, probes=probes) if k == rank else r for k, r in enumerate(seen.ranks)))


def on_weight(seen: Seen, rank: int, at: int, k: int, change: Callable[[Weight], Weight]) -> Seen:
    return on_probe(seen, rank, at, lambda p: replace(p, weights=tuple(
        change(w) if j == k else w for j, w in enumerate(p.weights))))


def test_bytes_per_element_of_a_run_in_float64_are_not_compared_and_that_is_told() -> None:
    """Weights are measured in float64, whatever the strategy says of the types in which it trains."""
    case, seen = read_case("zero3", GPT, ()), seen_in("weighed_clipped")
    strategy = overlay(case.strategy, {"types": {"w": 4, "wire": 4}})
    told = judge(strategy, case.model, seen)
    assert told.good and document(told)["not_compared"] == told.comparison.tally.not_compared
    assert "not compared: the bytes per element of [types]" in " ".join(plain(t).strip() for t in page(told, 200, SAYS))
    bare = replace(seen, ranks=tuple(replace(r, probes=()) for r in seen.ranks))
    assert judge(strategy, case.model, bare).verdict == DIFFERS
    assert not held(seen).tally.not_compared  # nothing was said of types


def test_weights_are_written_and_read() -> None:
    for file in ("weighed_clipped", "weighed_apart", "weighed_kernel"):
        seen = seen_in(file)
        assert Seen.read(seen.text()) == seen and all(len(r.probes) == 3 for r in seen.ranks)


def test_what_conforms_is_measured_as_well() -> None:
    told = told_of("weighed_clipped", "zero3")
    found = told.comparison.measured
    assert told.verdict == CONFORMS and told.good and found.good
    assert found.known == 70 and dict(found.skipped) == {"its gradient is zero": 4}  # keys' biases: softmax undoes them
    assert found.clip == 0.5 and found.off < 1e-6 and found.probes == 3


def test_a_mass_of_the_proof_stands_beside_the_measured_one() -> None:
    told = told_of("weighed_apart", "tp_sp_keep")
    text = " ".join(" ".join(plain(text) for text in page(told, 100, SAYS)).split())
    assert told.verdict == DIFFERS and "ratio 1/tp" in text
    assert ("measured at tp = 2: tokens count 0 to 1 times in head.norm.weight, 0.5 on average; the proof's ratio "
            "1/tp is 0.5 there") in text
    found = document(told, timing=False)
    assert found["weights"]["groups"]["head.norm.weight"] == {
        "mean": pytest.approx(0.5), "least": pytest.approx(0), "most": pytest.approx(1)}
    assert found["weights"]["groups"]["layer.norm1.weight"]["mean"] == pytest.approx(1)


def test_weights_see_what_structure_cannot() -> None:
    told = told_of("weighed_kernel", "dp")
    assert told.verdict == DIFFERS and not told.comparison.differences
    first = told.comparison.measured.differences[0]
    assert first.says == "embedding.tokens.weight: measured, every token counts 0.5 times"
    assert "inside an op, or the recorder is blind" in told.gap
    bare = replace(seen_in("weighed_kernel"), ranks=tuple(replace(r, probes=()) for r in seen_in(
        "weighed_kernel").ranks))
    case = read_case("dp", GPT, ())
    alone = judge(case.strategy, case.model, bare)
    assert alone.verdict == "UNSEEN" and "measure weights" in alone.comparison.unseen[0].what


def test_without_a_reference_nothing_is_measured(placealg: Run) -> None:
    assert list(outline(Measured())) == ["not measured"]
    found = json.loads(placealg("conform", str(FOLDER / "fsdp2.json"), "zero3", "--model", GPT, "--format", "json",
                                "--no-timing").out)
    assert found["weights"] is None


CHANGES: dict[str, Callable[[Weight], Weight]] = {
    "all twice": lambda w: replace(w, least=2 * w.least, most=2 * w.most, mean=2 * w.mean),
    "one less": lambda w: replace(w, least=0.999 * w.least),
    "one more": lambda w: replace(w, most=1.001 * w.most),
    "none": lambda w: replace(w, least=0.0, most=0.0, mean=0.0),
    "against": lambda w: replace(w, least=-w.least, most=-w.most, mean=-w.mean),
    "not explained": lambda w: replace(w, rest=1e-4),
}


@settings(max_examples=15)
@given(st.data())
def test_no_weight_can_be_changed(data: st.DataObject) -> None:
    seen = seen_in("weighed_clipped")
    rank, at = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2))
    known = [k for k, w in enumerate(seen.ranks[rank].probes[at].weights) if w.cells]
    k = data.draw(st.sampled_from(known))
    change = CHANGES[data.draw(st.sampled_from(sorted(CHANGES)))]
    found = held(on_weight(seen, rank, at, k, change))
    assert not found.matched and found.measured.differences and not found.measured.good


def test_replicas_that_drift_are_told() -> None:
    changed = on_probe(seen_in("weighed_clipped"), 1, 2, lambda p: replace(p, apart=("head.norm.bias",)))
    found = held(changed)
    assert not found.matched and found.measured.differences[0].kind == "replicas differ"


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_a_clip_that_all_gradients_share_is_read_where_it_is_not_said(clip: float) -> None:
    seen = seen_in("weighed_clipped")
    for rank in (0, 1):
        for at in range(3):
            seen = on_probe(seen, rank, at, lambda p: replace(p, clip=clip))
    assert held(seen).matched and held(seen).measured.clip == pytest.approx(0.5)


def test_another_clip_is_found_only_where_the_reference_says_one() -> None:
    seen = seen_in("weighed_clipped")
    for rank in (0, 1):
        for at in range(3):
            seen = on_probe(seen, rank, at, lambda p: replace(p, clip=0.7))
    assert not held(seen).matched


def test_a_program_that_clips_and_a_run_that_does_not() -> None:
    seen = seen_in("weighed_clipped")
    for rank in (0, 1):
        for at in range(3):
            seen = on_probe(seen, rank, at, lambda p: replace(p, weights=tuple(
                replace(w, least=1.0, most=1.0, mean=1.0) for w in p.weights)))
    assert "are not clipped" in held(seen).measured.differences[0].says


def by_number(seen: Seen, factors: tuple[float, float]) -> Seen:
    """The recording of a run that clips by a number of Python: its factor is in the terms, and no tensor carries it."""
    def terms(chain: Chain, factor: float) -> tuple[Term, ...]:
        return tuple(replace(t, factor=t.factor * factor, hops=tuple(h for h in t.hops if h.verb != "scale"))
                     for t in chain.terms)

    ranks = tuple(replace(r, chains=tuple(replace(c, terms=terms(c, f)) for c in r.chains), messages=tuple(
        replace(m, live=m.verb != "all_reduce") for m in r.messages)) for r, f in zip(seen.ranks, factors, strict=True))
    return replace(seen, ranks=ranks)


@pytest.mark.parametrize(("factors", "weighed", "verdict"), [
    ((0.43, 0.43), True, CONFORMS), ((0.43, 0.43), False, "UNSEEN"), ((0.43, 0.44), True, DIFFERS),
    ((2.0, 2.0), True, DIFFERS)])
def test_a_clip_by_a_number_conforms_where_it_is_measured(factors: tuple[float, float], weighed: bool,
                                                          verdict: str) -> None:
    seen = by_number(seen_in("weighed_clipped"), factors)
    if not weighed:
        seen = seen.with_probes({})
    case = read_case("zero3", GPT, ())
    told = judge(case.strategy, case.model, seen)
    assert told.verdict == verdict
    if verdict == CONFORMS:
        assert "it is the factor by which they are clipped" in told.comparison.tally.legal["number"]
    if verdict == "UNSEEN":
        assert [u.what for u in told.comparison.unseen] == ["the number 0.43, by which all gradients are multiplied"]


@pytest.mark.parametrize(("carries", "matched"), [
    (("buffer:rotary",), True), (("buffer:rotary", "head.norm.weight"), False), ((), False)])
def test_a_broadcast_of_buffers_is_no_event(carries: tuple[str, ...], matched: bool) -> None:
    seen = seen_in("weighed_clipped")
    own = seen.ranks[0]
    more = replace(own.messages[0], index=len(own.messages), verb="broadcast", carries=carries, live=True)
    changed = replace(seen, ranks=(replace(own, messages=(*own.messages, more)), seen.ranks[1]))
    assert held(changed).matched == matched


def test_numbers_are_short() -> None:
    assert [number(x) for x in (1.0, 2 / 3, -1e-15, 4.2e-7)] == ["1", "0.6667", "0", "4.2e-07"]
