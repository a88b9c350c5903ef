"""Recordings held against programs, without torch: right ones conform, and none in which something is changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from placealg.cases.case import read_case
from placealg.check.kernel import Kernel
from placealg.cli.glosses import SAYS
from placealg.errors import InputError
from placealg.render.conformance import page
from placealg.render.text_layout import plain
from placealg.strategy.spec import overlay
from placealg.watch import conformance
from placealg.watch.conform import Comparison, compare
from placealg.watch.conformance import judge, nearest
from placealg.watch.names import names_of, unit_of, units_of
from placealg.watch.seen import FOREIGN, Chain, Hop, Lifted, Message, RankSeen, Seen, Term, joined
from placealg.watch.verdict import CONFORMS, DIFFERS, UNSEEN

FOLDER = Path(__file__).parent / "recordings"
GPT = "proofs/torch/gpt.json"
AS = {"by_hand": "dp", "fsdp2": "zero3", "tp_sp": "tp_sp_keep", "zero1": "proofs/torch/zero1.toml",
      "flat": "zero1", "fsdp2_mixed": "proofs/torch/fsdp2_mixed.toml"}
TYPES = {"fsdp2_mixed": {"w": "4", "wire_w": "2", "g": "4", "wire": "4", "act": "2"}}
Run = Callable[..., Outcome]


@cache
def seen_in(file: str) -> Seen:
    return Seen.read((FOLDER / f"{file}.json").read_text())


@cache
def base(file: str) -> tuple[Any, Any]:
    """The program that a recording conforms to, and its model."""
    case = read_case(AS[file], GPT, ())
    told = judge(case.strategy, case.model, seen_in(file), case.edited.edits if case.edited else ())
    assert told.verdict == CONFORMS and told.good
    return told.comparison.step, case.model


def held(file: str, seen: Seen) -> Comparison:
    step, model = base(file)
    return compare(step, model, seen, types=TYPES.get(file))


@pytest.mark.parametrize("file", AS)
def test_a_recording_is_read_as_it_was_written(file: str) -> None:
    seen = seen_in(file)
    assert Seen.read(seen.text()) == seen and held(file, seen).matched


TIED = "tests/watch/gpt_tied.json"


def test_a_tied_weight_that_is_gathered_again_is_a_legal_variation() -> None:
    """The root module of FSDP2 frees a tied weight behind the forward, as its other weights."""
    case = read_case("zero3", TIED, ())
    told = judge(case.strategy, case.model, seen_in("tied_layers"), ())
    one, = told.comparison.differences
    assert (told.verdict, one.says) == (DIFFERS, "embedding.tokens.weight is gathered once more than the program says "
                                        "over dp in the backward of microbatch 0")
    assert told.edited is not None and told.edited.verdict == "PROVED"
    known = read_case("tests/watch/fsdp2_tied.toml", TIED, ())
    assert known.edited is not None
    assert judge(known.strategy, known.model, seen_in("tied_layers"), known.edited.edits).good


def test_a_weight_that_some_microbatches_gather_again_has_no_edit() -> None:
    case = read_case("zero3", TIED, ())
    less = on_first(lambda rank: replace(rank, messages=tuple(
        replace(m, carries=()) if m.verb == "all_gather" and "embedding.tokens.weight" in m.carries
        and (m.phase, m.microbatch) == ("backward", 1) else m for m in rank.messages)))
    told = judge(case.strategy, case.model, less(seen_in("tied_layers")), ())
    assert () in [d.edits for d in told.comparison.differences if "gathered once more" in d.says]
    assert told.edited is None


def on_first(change: Callable[[RankSeen], RankSeen]) -> Callable[[Seen], Seen]:
    return lambda seen: replace(seen, ranks=(change(seen.ranks[0]), *seen.ranks[1:]))


def on_chain(change: Callable[[Chain], Chain], at: int = 5) -> Callable[[Seen], Seen]:
    return on_first(lambda rank: replace(rank, chains=tuple(
        change(c) if k == at % len(rank.chains) else c for k, c in enumerate(rank.chains))))


def on_terms(change: Callable[[Term], Term]) -> Callable[[Seen], Seen]:
    return on_chain(lambda chain: replace(chain, terms=tuple(map(change, chain.terms))))


def on_hop(change: Callable[[Hop], tuple[Hop, ...]], verb: str = "") -> Callable[[Seen], Seen]:
    def changed(term: Term) -> Term:
        return replace(term, hops=tuple(new for h in term.hops for new in (
            change(h) if (h.verb == "scale") == (verb == "scale") else (h,))))
    return on_terms(changed)


def on_messages(change: Callable[[tuple[Message, ...]], tuple[Message, ...]]) -> Callable[[Seen], Seen]:
    return on_first(lambda rank: replace(rank, messages=change(rank.messages)))


OTHER = Lifted(DIFFERS, "a single device", ("something",))
"""What running a step again may show."""

CHANGES: dict[str, tuple[str, Callable[[Seen], Seen], str]] = {
    "not reduced": ("fsdp2", on_hop(lambda h: ()), "axes"),
    "reduced twice": ("fsdp2", on_hop(lambda h: (h, h)), "axes"),
    "over another axis": ("fsdp2", on_hop(lambda h: (replace(h, axes=("ranks 0,3",)),)), "axes"),
    "sum for mean": ("fsdp2", on_hop(lambda h: (replace(h, op="sum"),)), "scale"),
    "max for mean": ("fsdp2", on_hop(lambda h: (replace(h, op="max"),)), "unseen"),
    "whole for scattered": ("fsdp2", on_hop(lambda h: (replace(h, verb="all_reduce"),)), "whole or scattered"),
    "doubled": ("fsdp2", on_terms(lambda t: replace(t, factor=2 * t.factor)), "scale"),
    "of an earlier step": ("fsdp2", on_terms(lambda t: replace(t, begin="earlier")), "stale"),
    "unknown op": ("fsdp2", on_terms(lambda t: replace(t, begin="unseen", what="aten::sort")), "unseen"),
    "microbatch lost": ("fsdp2", on_chain(lambda c: replace(c, terms=c.terms[1:])), "accumulation"),
    "microbatch twice": ("fsdp2", on_chain(lambda c: replace(c, terms=(*c.terms, c.terms[0]))), "accumulation"),
    "no gradient": ("fsdp2", on_chain(lambda c: replace(c, terms=())), "no gradient"),
    "not clipped": ("fsdp2", on_hop(lambda h: (), "scale"), "clip"),
    "other factor": ("fsdp2", on_hop(lambda h: (replace(h, message=1, factor=0.9 * h.factor),), "scale"), "clip"),
    "own norm": ("fsdp2", on_hop(lambda h: (replace(h, norm=((h.norm[0][0], ()),)),), "scale"), "norm"),
    "half in the norm": ("fsdp2", on_hop(lambda h: (replace(h, share=0.5),), "scale"), "norm"),
    "left out of the norm": ("fsdp2", on_hop(lambda h: (replace(h, norm=()),), "scale"), "norm"),
    "clipped before": ("by_hand", on_terms(lambda t: replace(t, hops=t.hops[::-1])), "order"),
    "other start": ("by_hand", on_chain(lambda c: replace(c, start="0")), "replicas differ"),
    "not updated": ("fsdp2", on_chain(lambda c: replace(c, updated=False)), "update"),
    "published": ("fsdp2", on_chain(lambda c: replace(c, new=(Hop("broadcast", ("dp",)),))), "publish"),
    "not published": ("zero1", on_chain(lambda c: replace(c, new=())), "publish"),
    "none of it": ("fsdp2", on_chain(lambda c: replace(c, elements=0)), "unseen"),
    "half of it": ("fsdp2", on_chain(lambda c: replace(c, unseen="4 of 8 elements come from aten::mm")), "unseen"),
    "loss not divided": ("fsdp2", on_first(lambda r: replace(r, seeds=tuple(
        replace(s, factor=2 * (s.factor or 0)) for s in r.seeds))), "scale"),
    "not there": ("fsdp2", on_first(lambda r: replace(r, chains=r.chains[1:])), "untrained"),
    "gather lost": ("fsdp2", on_messages(lambda every: tuple(
        replace(m, carries=()) if m.verb == "all_gather" and m.index == 0 else m for m in every)), "gathers"),
    "activation not reduced": ("tp_sp", on_messages(lambda every: tuple(
        m for m in every if m.index != 3)), "message"),
    "activation reduced twice": ("tp_sp", on_messages(lambda every: (
        *every, replace(every[3], index=len(every)))), "message"),
    "activation over another verb": ("tp_sp", on_messages(lambda every: tuple(
        replace(m, verb="all_to_all") if m.index == 3 else m for m in every)), "message"),
    "activation averaged": ("tp_sp", on_messages(lambda every: tuple(
        replace(m, op="mean") if m.index == 2 else m for m in every)), "combined"),
    "largest part of an activation": ("tp_sp", on_messages(lambda every: tuple(
        replace(m, op="max") if m.index == 2 else m for m in every)), "combined"),
    "clipped twice": ("fsdp2", on_hop(lambda h: (h, h), "scale"), "clip"),
    "one microbatch clipped": ("fsdp2", on_chain(lambda c: replace(c, terms=(
        replace(c.terms[0], hops=tuple(h for h in c.terms[0].hops if h.verb != "scale")), *c.terms[1:]))), "clip"),
    "one microbatch not reduced": ("by_hand", on_chain(lambda c: replace(c, terms=(
        *c.terms[:-1], replace(c.terms[-1], hops=c.terms[-1].hops[1:])))), "axes"),
    "the optimizer's own copies": ("zero1", on_first(lambda r: replace(r, unseen=(FOREIGN,))), "unseen"),
    "gathered in 4 bytes": ("fsdp2_mixed", on_messages(lambda every: tuple(
        replace(m, dtype="float32") if m.index == 0 else m for m in every)), "types"),
    "reduced in 2 bytes": ("fsdp2_mixed", on_messages(lambda every: tuple(
        replace(m, dtype="bfloat16") if m.verb == "reduce_scatter" else m for m in every)), "types"),
    "rests in 2 bytes": ("fsdp2_mixed", lambda seen: replace(seen, dtype="bfloat16"), "types"),
    "whole where it is split": ("fsdp2", on_chain(lambda c: replace(c, shard=(), placed=True)), "placement"),
    "split where it is whole": ("by_hand", on_chain(lambda c: replace(c, shard=("dp",), placed=True)), "placement"),
    "whole along tp": ("tp_sp", on_chain(lambda c: replace(c, shard=(), placed=True), 4), "placement"),
    "against the gradient": ("fsdp2", on_terms(lambda t: replace(t, factor=-t.factor)), "scale"),
    "one loss negated": ("fsdp2", on_first(lambda r: replace(r, seeds=(
        r.seeds[0], replace(r.seeds[1], factor=-(r.seeds[1].factor or 0))))), "scale"),
    "doubled, of a loss that is not known": ("tp_sp", on_terms(lambda t: replace(t, factor=2 * t.factor)), "scale"),
    "counts nothing": ("fsdp2", on_terms(lambda t: replace(t, factor=0.0)), "scale"),
    "a microbatch less": ("fsdp2", on_first(lambda r: replace(r, seeds=r.seeds[:1])), "accumulation"),
    "mean over fewer tokens": ("by_hand", lambda seen: replace(seen, ranks=tuple(replace(r, seeds=tuple(
        replace(s, signed=True, factor=abs(s.factor or 0) * (1 + r.rank), tokens=s.tokens / (1 + r.rank))
        for s in r.seeds)) for r in seen.ranks)), "counts"),
    "unknown collective": ("fsdp2", on_first(lambda r: replace(r, unseen=("c10d::new_ (a.py:1)",))), "unseen"),
}
"""Change -> (recording, the change, the kind of the first difference)."""


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_does_not_conform(name: str) -> None:
    file, change, kind = CHANGES[name]
    found = held(file, replace(change(seen_in(file)), lifted=OTHER))
    assert not found.matched
    kinds = {d.kind for d in found.differences} | ({"unseen"} if found.unseen else set())
    assert kind in kinds, kinds


@pytest.mark.parametrize(("share", "matched"), [(0.5, True), (1.0, False), (0.25, False)])
def test_replicas_may_count_their_part_in_a_norm(share: float, matched: bool) -> None:
    """DTensor divides the norm of what is whole on n ranks by √n before it sums squares over them."""
    def summed(hop: Hop) -> tuple[Hop, ...]:
        return (replace(hop, norm=((hop.norm[0][0], ("dp",)),), share=share),)

    seen = seen_in("by_hand")
    for at in range(len(seen.ranks[0].chains)):
        change = on_chain(lambda c: replace(c, terms=tuple(replace(t, hops=tuple(
            new for h in t.hops for new in (summed(h) if h.verb == "scale" else (h,)))) for t in c.terms)), at)
        seen = replace(seen, ranks=tuple(change(replace(seen, ranks=(r,))).ranks[0] for r in seen.ranks))
    assert held("by_hand", seen).matched == matched


def test_a_collective_of_one_rank_is_none() -> None:
    """Groups of size 1, in which Megatron-LM communicates as in others, send nothing."""
    alone = on_messages(lambda every: (*every, replace(every[3], index=len(every), axes=())))
    seen = seen_in("tp_sp")
    assert held("tp_sp", alone(seen)).matched
    one = replace(seen, mesh={**seen.mesh, "dp": 1})
    assert held("tp_sp", on_messages(lambda every: (*every, replace(every[3], index=len(every), axes=("dp",))))(
        one)).matched


def test_a_loss_in_the_forward_of_the_whole_model_is_the_head_s() -> None:
    """Megatron-LM reduces parts of a split cross entropy there; anywhere else such a message has no place."""
    for at, matched in (({10, 11}, True), ({2}, False)):
        found = held("tp_sp", on_messages(lambda every, at=at: tuple(  # type: ignore[misc]
            replace(m, phase="forward", module="") if m.index in at else m for m in every))(seen_in("tp_sp")))
        assert found.matched == matched


@settings(max_examples=25)
@given(st.data())
def test_no_chain_can_be_changed(data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(["by_hand", "fsdp2", "tp_sp"]))
    seen = seen_in(file)
    rank = data.draw(st.integers(0, len(seen.ranks) - 1))
    at = data.draw(st.integers(0, len(seen.ranks[rank].chains) - 1))
    chain = seen.ranks[rank].chains[at]
    k = data.draw(st.integers(0, len(chain.terms) - 1))
    term = chain.terms[k]
    doubled = replace(term, hops=(*term.hops, term.hops[-1])) if term.hops else None
    changes: list[Term | None] = [doubled, None, replace(term, factor=term.factor * 1.5),
                                  replace(term, begin="earlier"),
                                  replace(term, hops=(*term.hops, Hop("all_reduce", tuple(seen.mesh), "sum", 0)))]
    if term.hops:
        changes.append(replace(term, hops=term.hops[1:]))
    new = data.draw(st.sampled_from(changes))
    terms = tuple(t if j != k else new for j, t in enumerate(chain.terms))
    changed = replace(chain, terms=tuple(t for t in terms if t is not None))
    own = replace(seen.ranks[rank], chains=tuple(changed if j == at else c
                                                 for j, c in enumerate(seen.ranks[rank].chains)))
    others = tuple(own if j == rank else r for j, r in enumerate(seen.ranks))
    assert not held(file, replace(seen, ranks=others)).matched


def test_a_difference_is_an_edit_and_the_edit_is_refuted() -> None:
    case = read_case("tp_sp_keep", GPT, ())
    told = judge(case.strategy, case.model, seen_in("norm_apart"))
    assert told.verdict == DIFFERS and told.edited is not None and told.edited.counterexample is not None
    assert told.comparison.differences[0].says == (
        "head.norm.weight: its gradient is not reduced; the program reduces it over [tp]")
    assert told.edited.counterexample.mass == "1/tp"
    assert told.edits == ({"drop": "reduce.head.norm.*.grad_sum.reduce[tp]"},)


def test_types_that_differ_are_entries_of_the_strategy_and_the_program_is_proved_with_them() -> None:
    """What is sent in other bytes is another strategy; that it equals the single device does not depend on them."""
    case = read_case("proofs/torch/fsdp2_mixed.toml", GPT, ())
    told = judge(case.strategy, case.model, CHANGES["gathered in 4 bytes"][1](seen_in("fsdp2_mixed")))
    assert told.verdict == DIFFERS and told.gap.startswith("with these edits the run is still not")  # one gather alone
    every = replace(seen_in("fsdp2_mixed"), ranks=tuple(replace(r, messages=tuple(
        replace(m, dtype="float32") for m in r.messages)) for r in seen_in("fsdp2_mixed").ranks))
    told = judge(case.strategy, case.model, every)
    assert told.verdict == DIFFERS and told.tables == {"types": {"wire_w": 4}} and not told.edits
    assert told.comparison.differences[0].says == (
        "weights are gathered in 4 bytes an element (float32); the strategy says wire_w = 2")
    assert told.edited is not None and str(told.edited.verdict) == "PROVED"
    assert "[types]\nwire_w = 4" in "\n".join(plain(t).strip() for t in page(told, 100, SAYS))
    assert judge(overlay(case.strategy, told.tables), case.model, every).good


def test_what_a_strategy_says_of_no_type_is_not_compared() -> None:
    case = read_case("zero3", GPT, ())
    told = judge(case.strategy, case.model, seen_in("fsdp2_mixed"))
    assert told.verdict == CONFORMS


def test_another_divisor_of_the_loss_is_not_read_off_a_loss_that_was_not_seen() -> None:
    """Gradients summed where a mean is meant fit a loss over all tokens, if the loss was seen to be one."""
    case, seen = read_case("dp", GPT, ()), replace(seen_in("by_hand"), lifted=None)
    whole = seen.mesh["dp"]  # the mean over microbatches was taken of the loss

    def summed(rank: RankSeen, **seeds: Any) -> RankSeen:
        chains = tuple(replace(c, terms=tuple(replace(t, factor=t.factor * whole) for t in c.terms))
                       for c in rank.chains)
        return replace(rank, chains=chains, seeds=tuple(replace(s, **seeds) for s in rank.seeds))

    def found(seen: Seen, loss: str = "") -> Comparison:
        strategy = overlay(case.strategy, {"loss": {"preset": loss}}) if loss else case.strategy
        return nearest(strategy, case.model, seen, (), None)[0]

    unseen = replace(seen, ranks=tuple(summed(r, factor=None, tokens=0) for r in seen.ranks))
    assert not found(unseen).matched
    claimed = found(unseen, "token_mean")
    assert not claimed.matched and not claimed.differences
    assert "what the loss multiplies tokens" in claimed.unseen[0].what
    assert all(s.factor is not None for r in seen.ranks for s in r.seeds)
    divided = replace(seen, ranks=tuple(summed(
        replace(r, seeds=tuple(replace(s, factor=s.factor / whole) for s in r.seeds if s.factor is not None)))
        for r in seen.ranks))
    assert found(divided).matched


def test_a_verdict_is_no_truth_value() -> None:
    case = read_case("dp", GPT, ())
    told = judge(case.strategy, case.model, seen_in("by_hand"))
    with pytest.raises(TypeError, match="no truth value"):
        bool(told)
    assert told.hypotheses == ("same_code", "same_path", "meant", "dispatched", "kept_state")


def test_what_ops_compute_is_told_by_a_single_device_alone() -> None:
    """Events that are all the program's are no step that conforms."""
    case, seen = read_case("dp", GPT, ()), seen_in("by_hand")
    told = judge(case.strategy, case.model, replace(seen, lifted=None, alone=""))
    assert told.verdict == UNSEEN and not told.comparison.differences
    assert [u.what for u in told.comparison.unseen] == [f"what ops compute: {conformance.NO_SINGLE_DEVICE}"]
    assert judge(case.strategy, case.model, replace(seen, lifted=OTHER)).verdict == DIFFERS
    unseen = Lifted(UNSEEN, "a single device", (), ("aten::sort",))
    assert judge(case.strategy, case.model, replace(seen, lifted=unseen)).verdict == UNSEEN
    first = seen.ranks[0]
    moved = replace(seen, lifted=unseen, ranks=(replace(first, chains=first.chains[1:]), *seen.ranks[1:]))
    assert judge(case.strategy, case.model, moved).verdict == DIFFERS


def by_number(seen: Seen, factors: tuple[float, float]) -> Seen:
    """The recording of a run that clips by a number of Python: its factor is in the terms, and no tensor carries it."""
    def terms(chain: Chain, factor: float) -> tuple[Term, ...]:
        return tuple(replace(t, factor=t.factor * factor, hops=tuple(h for h in t.hops if h.verb != "scale"))
                     for t in chain.terms)

    ranks = tuple(replace(r, chains=tuple(replace(c, terms=terms(c, f)) for c in r.chains), messages=tuple(
        replace(m, live=m.verb != "all_reduce") for m in r.messages)) for r, f in zip(seen.ranks, factors, strict=True))
    return replace(seen, ranks=ranks)


@pytest.mark.parametrize(("factors", "alone", "verdict"), [
    ((0.43, 0.43), True, CONFORMS), ((0.43, 0.43), False, UNSEEN), ((0.43, 0.44), True, DIFFERS),
    ((2.0, 2.0), True, DIFFERS)])
def test_a_clip_by_a_number_conforms_beside_a_single_device(factors: tuple[float, float], alone: bool,
                                                            verdict: str) -> None:
    case, seen = read_case("zero3", GPT, ()), by_number(seen_in("fsdp2"), factors)
    told = judge(case.strategy, case.model, seen if alone else replace(seen, lifted=None))
    assert told.verdict == verdict
    if verdict == CONFORMS:
        assert "which is the single device's clip factor" in told.comparison.tally.legal["number"]
    if verdict == UNSEEN:
        assert told.comparison.unseen[0].what == "the number 0.43, by which all gradients are multiplied"


@pytest.mark.parametrize(("carries", "matched"), [
    (("buffer:rotary",), True), (("buffer:rotary", "head.norm.weight"), False), ((), False)])
def test_a_broadcast_of_buffers_is_no_event(carries: tuple[str, ...], matched: bool) -> None:
    seen = seen_in("fsdp2")
    own = seen.ranks[0]
    more = replace(own.messages[0], index=len(own.messages), verb="broadcast", carries=carries, live=True)
    changed = replace(seen, ranks=(replace(own, messages=(*own.messages, more)), seen.ranks[1]))
    assert held("fsdp2", changed).matched == matched


def test_what_only_a_single_device_sees_is_told(placealg: Run) -> None:
    """A kernel that divides by two as well: every event is the program's."""
    case = read_case("dp", GPT, ())
    told = judge(case.strategy, case.model, seen_in("kernel"))
    assert told.verdict == DIFFERS and not told.comparison.differences and "what ops compute" in told.gap
    got = placealg("conform", str(FOLDER / "kernel.json"), "dp", "--model", GPT)
    assert got.code == 1 and "run again in exact numbers beside a single device" in got.out


def test_what_is_sent_again_may_stand_before_or_behind_gradients() -> None:
    """Each in its own order; a message of no forward that runs again is none of these."""
    case, seen = read_case("tests/watch/tp_sp_again.toml", GPT, ()), seen_in("tp_sp_again")

    def verdict(messages: Iterable[Message]) -> str:
        ranks = tuple(replace(r, messages=tuple(messages) if r is seen.ranks[0] else r.messages) for r in seen.ranks)
        return judge(case.strategy, case.model, replace(seen, ranks=ranks)).verdict

    rows = list(seen.ranks[0].messages)
    assert any(m.again for m in rows) and verdict(rows) == CONFORMS
    assert verdict(replace(m, again=False) for m in rows) == DIFFERS
    for k in [k for k, m in enumerate(rows) if m.again][:4]:
        assert verdict(rows[:k] + rows[k + 1:]) == DIFFERS
    gradients = [k for k, m in enumerate(rows) if m.phase == "backward" and not m.again]
    one, two = next((a, b) for a, b in pairwise(gradients) if rows[a].verb != rows[b].verb
                    and rows[a].module[:8] == rows[b].module[:8] == "layers.1")
    rows[one], rows[two] = rows[two], rows[one]
    assert verdict(rows) == DIFFERS


def test_a_step_that_leaves_gradients_and_found_none_says_so() -> None:
    case, seen = read_case("dp", GPT, ()), seen_in("by_hand")
    first = replace(seen, ranks=(replace(seen.ranks[0], uncleared=True), *seen.ranks[1:]))
    assert "cleared" in judge(case.strategy, case.model, Seen.read(first.text())).hypotheses


def test_a_refuted_program_is_not_good_though_the_run_conforms(placealg: Run) -> None:
    got = placealg("conform", str(FOLDER / "norm_apart.json"), "proofs/refuted/none.toml")
    assert got.code == 2


def test_the_command_says_what_was_seen_and_what_is_proved(placealg: Run) -> None:
    got = placealg("conform", str(FOLDER / "fsdp2.json"), "zero3", "--model", GPT)
    assert got.code == 0 and "RUNS AS zero3 on gpt  CONFORMS" in got.out
    assert "proof     PROVED, PARAMETRIC" in got.out and "code is proved" not in got.out
    assert "this recording is the instance of P at dp = 2" in got.out
    assert "kernel    accepted: this program (sha256" in got.out
    for name in ("same_code", "same_path", "meant", "dispatched", "kept_state", "equal_counts"):
        assert name in got.out
    found = json.loads(placealg("conform", str(FOLDER / "norm_apart.json"), "tp_sp_keep", "--model", GPT, "--format",
                                "json", "--no-timing").out)
    assert found["verdict"] == "DIFFERS" and found["edited"]["counterexample"]["mass"] == "1/tp"
    unseen = on_terms(lambda t: replace(t, begin="unseen", what="aten::sort"))(seen_in("fsdp2"))
    case = read_case("zero3", GPT, ())
    assert judge(case.strategy, case.model, unseen).verdict == UNSEEN


def test_the_program_is_written_and_has_the_hash_that_is_printed(placealg: Run, tmp_path: Path) -> None:
    """What a run is held against can be read, and proved again."""
    file = tmp_path / "P.toml"
    words = ("conform", str(FOLDER / "fsdp2.json"), "zero3", "--model", GPT, "--program", str(file))
    printed = placealg(*words).out
    said = json.loads(placealg(*words, "--format", "json", "--no-timing").out)["program"]
    assert said["text"] == file.read_text() and said["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"sha256 {said['sha256'][:16]}" in printed
    again = placealg("prove", str(file), "--model", GPT)
    assert again.code == 0 and "PROVED" in again.out


def test_a_kernel_that_is_too_narrow_is_no_fault_of_the_run(monkeypatch: pytest.MonkeyPatch, placealg: Run) -> None:
    monkeypatch.setattr(conformance, "kernel", lambda *_: Kernel(False, sha256="0" * 64))
    got = placealg("conform", str(FOLDER / "fsdp2.json"), "zero3", "--model", GPT)
    assert got.code == 0 and "the checker is too narrow here" in " ".join(got.out.split())


@pytest.mark.parametrize(("text", "says"), [
    ("", "no JSON"), ("[1]", "no recording"), ('{"version": 9, "seen": {}}', "version 9"),
    ('{"version": 4, "seen": {"mesh": 3}}', "damaged"), ('{"version": 4, "seen": []}', "damaged"),
    ('{"version": 1, "seen": {"mesh": {"dp": 2}, "ranks": []}}', "version 1 of a recording; this placealg reads 4"),
])
def test_what_is_no_recording(text: str, says: str, placealg: Run, tmp_path: Path) -> None:
    file = tmp_path / "seen.json"
    file.write_text(text)
    got = placealg("conform", str(file), "zero3")
    assert got.code == 2 and got.err.count("\n") == 1 and says in got.err


@pytest.mark.parametrize(("words", "says"), [
    (("conform", "missing.json", "zero3"), "cannot read it"),
    (("conform", str(FOLDER / "fsdp2.json"), "zero33"), "zero3"),
    (("conform", str(FOLDER / "fsdp2.json"), "tp_sp", "--model", GPT), "the run's mesh has the axes dp"),
    (("conform", str(FOLDER / "fsdp2.json"), "pp*zero3", "--model", GPT), "the strategy's pp, dp"),
    (("conform", str(FOLDER / "fsdp2.json"), "zero3", "--model", "llama-3-8b"), "no table knows"),
    (("conform", str(FOLDER / "fsdp2.json"), "zero3", "--name", "a"), "--name"),
    (("conform", str(FOLDER / "fsdp2.json"), str(FOLDER / "fsdp2.json"), "zero3", "--model", GPT), "same rank"),
    (("conform", str(FOLDER / "by_hand.json"), "dp", "--model", "gpt2"), "has other sizes than gpt2"),
    (("watch", "zero3", "--mesh", "dp", "--", "a.py"), "no axis and its size"),
    (("watch", "zero3", "--mesh", "dp=2,dp=2", "--", "a.py"), "stands twice"),
    (("watch", "zero33", "--mesh", "dp=2", "--", "a.py"), "zero3"),
    (("watch", "zero3", "--mesh", "dp=2", "--limit", "0", "--", "a.py"), "--limit"),
])
def test_bad_words(words: tuple[str, ...], says: str, placealg: Run) -> None:
    got = placealg(*words)
    assert got.code == 2 and got.err.count("\n") == 1 and says in got.err


def test_recordings_of_ranks_are_joined() -> None:
    seen = seen_in("fsdp2")
    apart = [replace(seen, ranks=(rank,)) for rank in seen.ranks]
    assert joined(apart[::-1]) == seen
    with pytest.raises(InputError, match="different meshes"):
        joined([apart[0], replace(apart[1], mesh={"dp": 3})])


def test_names_of_frameworks() -> None:
    model = read_case("dp", "llama-3-8b", ()).model
    every = ["tok_embeddings.weight", "layers.3.attention.wq.weight", "layers.3.feed_forward.w1.weight",
             "layers.3.attention_norm.weight", "norm.weight", "output.weight"]
    named = names_of(every, model)
    assert [n.parameter for n in named.values()] == [
        "embedding.weight", "layer.attn.q.weight", "layer.mlp.gate.weight", "layer.norm1.weight", "head.norm.weight",
        "head.weight"]
    assert {n.instance for n in named.values() if n.unit == "layer"} == {3}
    units = units_of(named)
    assert unit_of("layers.3.attention.core", units) == ("layer", 3) and unit_of("", units) == ("", 0)
    assert names_of(["a.7.b"], model, {"a.{}.b": "layer.attn.k.weight"})["a.7.b"].instance == 7
    with pytest.raises(InputError, match="is said to be"):
        names_of(["a"], model, {"a": "layer.q"})


def test_a_name_that_no_table_knows_is_told_with_what_it_is_like() -> None:
    with pytest.raises(InputError, match=re.escape("--name 'h.{}.up.weight=layer.mlp.up.weight'")):
        names_of(["h.0.up.weight"], read_case("dp", GPT, ()).model)


def test_the_page_lists_every_fault_once_and_more_than_twenty_kinds() -> None:
    """The names are those of the set-ups that are wrong, read without torch."""
    from test_watch_torch import names as set_ups

    text = Path("docs/watch.md").read_text().partition("## Faults")[2].partition("\n## ")[0]
    rows = [[c.strip() for c in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("| ")][1:]
    listed = [name.strip() for _, steps, _ in rows for name in steps.split(";")]
    wrong = [n for n in (*set_ups("WRONG"), *set_ups("INSIDE")) if n not in (
        "by hand: loss in a kernel", "by hand: clipped by a number")]
    assert len(rows) == 67 and len(set(listed)) == len(listed)
    assert not set(wrong) - set(listed)
    own = [n for n in listed if n in wrong]
    assert len(own) == len(wrong) and len({n.partition(":")[0] for n in own}) >= 8


def test_a_program_that_divides_by_samples_is_told_from_no_run(tmp_path: Path) -> None:
    """A recording has tokens, not how many samples a row is packed of: one line, and no verdict."""
    path = tmp_path / "by_samples.toml"
    path.write_text('base = "zero1"\n[schedule]\nmicrobatch_mean = "samples"\n[loss]\npreset = "token_mean"\n'
                    'count_axes = ["dp"]\nreference = "sample_mean"\n', encoding="utf-8")
    case = read_case(str(path), str(FOLDER.parent / "gpt_tied.json"), ())
    seen = Seen.read((FOLDER / "zero1.json").read_text())
    with pytest.raises(InputError) as found:
        nearest(case.strategy, case.model, seen, (), None)
    assert str(found.value) == ("backward.loss.scale divides by samples, and a run does not tell how many its rows "
                                "have")
