"""Sends that wait for their receiver: what is proved for all sizes, beside a machine that runs messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import z3
from conftest import ROOT

import placealg as pa
from placealg.arith import parse
from placealg.check import messages as judged
from placealg.check.certificate_audit import groups_amiss
from placealg.check.messages import replayed
from placealg.errors import InputError
from placealg.prover import messages
from placealg.prover.evidence.certificate import certificate
from placealg.prover.evidence.solver import PROCESS, SAT, UNSAT
from placealg.prover.messages import TIMES, Times, ends, smallest, stuck_at, timed, tried
from placealg.prover.verdict import BLOCKING, BOUNDED, PARAMETRIC, PROVED, REFUTED, UNDECIDED, Verdict
from placealg.simulator.posts import stopped
from placealg.step.messages import Post, blocks, hops, posts, unlike
from placealg.step.pipeline import AHEAD, ORDERS, Pipeline
from placealg.step.program import Step
from placealg.step.text import write_program
from placealg.strategy.spec import overlay
from placealg.strategy.vocabulary import BUFFERED, POSTED

WAITING = POSTED[1:]
EVERY = [(order, posted) for order in ORDERS for posted in WAITING]
PROVED_OF = {("gpipe", "alone"), ("gpipe", "grouped"), ("gpipe", "four"), ("1f1b", "grouped"), ("1f1b", "four"),
             ("zb_h1", "grouped"), ("zb_h1", "four"), ("interleaved", "four")}


def pipeline(order: str, posted: str, chunks: int = 2) -> Pipeline:
    return Pipeline("pp", order, chunks if order not in ("gpipe", "1f1b", "zb_h1", "zb_h2") else 1, messages=posted)


def sizes(chosen: Pipeline, ranks: int = 5, microbatches: int = 9) -> Iterator[tuple[int, int]]:
    for p in range(1, ranks + 1):
        yield from ((p, m) for m in range(1, microbatches + 1) if not (chosen.grouped and m % p))


def step(posted: str, strategy: str = "pp", **schedule: Any) -> Step:
    return pa.derive(overlay(pa.parse_strategy(strategy), {"overlap": {"messages": posted}, "schedule": schedule}),
                     "gpt")


def schedule_of(found: Step) -> Verdict:
    return next(v for v in pa.prove(found).of("schedule") if not v.group)


# verdicts beside a machine


@pytest.mark.parametrize(("order", "posted"), EVERY)
@pytest.mark.parametrize("chunks", [2, 3])
def test_a_machine_at_small_sizes_agrees_with_the_verdict(order: str, posted: str, chunks: int) -> None:
    chosen = pipeline(order, posted, 2 if order in ("zb_v", "dualpipe_v") else chunks)
    fact, stops = ends(chosen), {size for size in sizes(chosen) if stopped(chosen, *size)}
    assert (fact.verdict, fact.cls) == ((PROVED, PARAMETRIC) if (order, posted) in PROVED_OF else (REFUTED, BOUNDED))
    assert bool(stops) == (fact.verdict == REFUTED)
    assert stops == {size for size in sizes(chosen) if stuck_at(chosen, *size)}
    found = smallest(chosen)
    assert (found is not None) == bool(stops)
    if found is not None:
        assert (found.ranks, found.microbatches) == min(stops, key=lambda size: (sum(size), size))
        assert replayed(chosen, found) and str(found) in fact.reason


@pytest.mark.parametrize(("order", "posted"), EVERY)
def test_stages_that_wait_for_each_other_replay_at_every_size(order: str, posted: str) -> None:
    chosen = pipeline(order, posted)
    for size in sizes(chosen):
        if found := stuck_at(chosen, *size):
            assert replayed(chosen, found) and len(found.waits) >= 2
            assert {stage for stage, _ in found.waits} <= {waits.stage for waits in stopped(chosen, *size)}
            assert PROCESS.ask([messages.circle(chosen, found)]).status == SAT


def test_one_stage_sends_nothing() -> None:
    for order, posted in EVERY:
        assert posts(pipeline(order, posted), 0, 1, 4) == () and not stopped(pipeline(order, posted), 1, 4)


# times


def number(term: Any) -> int:
    """The value of a term without symbols."""
    return int(str(z3.simplify(z3.IntVal(0) + term)))


def dated(order: str, posted: str, ranks: int, microbatches: int, chunks: int) -> list[list[tuple[Post, int]]]:
    """The posts of each stage at one size, each with the time that is proposed of it."""
    chosen, times, found = pipeline(order, posted, chunks), TIMES[order, posted], []
    v = chosen.chunks or 1
    total, more = microbatches * v, (v - 1) * ranks
    for stage in range(ranks):
        ahead = int(parse(AHEAD[order]).evaluate({"p": ranks, "i": stage, "m": microbatches, "v": v}))
        counted = {"forward": 0, "backward": 0, "weights": 0}
        own, behind = list[tuple[Post, int]](), Post()
        every = list(hops(chosen, stage, ranks, microbatches))
        for block in blocks(chosen, stage, ranks, microbatches):
            into, out, at = Post(), Post(), list[int]()
            for item, received, sent in (every[n] for n in block):
                n = counted[item.phase]
                counted[item.phase] += 1
                at.append(number(times.of[item.phase](ranks, stage, ahead, more, total, z3.IntVal(n))))
                into, out = (*into, *received), (*out, *sent)
            assert len(set(at)) == 1, "one post has one time"
            if posted == "alone":
                own += [(into, at[0]), (out, at[0] + times.sent)]
            else:
                own.append(((*behind, *into), at[0]))
                behind = out
        last = number(times.end(ranks, stage, ahead, more, z3.IntVal(total), z3.IntVal(0)))
        found.append([(post, time) for post, time in (*own, (behind, last)) if post])
        assert tuple(post for post, _ in found[-1]) == posts(chosen, stage, ranks, microbatches)
    return found


@pytest.mark.parametrize(("order", "posted"), [*TIMES])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_the_times_keep_the_rule_on_generated_posts(order: str, posted: str, chunks: int) -> None:
    """The posts that are generated, and not the solver's words for them, have times larger than what they wait for."""
    for ranks, microbatches in sizes(pipeline(order, posted, chunks)):
        found = dated(order, posted, ranks, microbatches, chunks)
        before = {(stage, message): own[n - 1][1] if n else -10**6
                  for stage, own in enumerate(found) for n, (post, _) in enumerate(own) for message in post}
        for own in found:
            assert all(time < behind for (_, time), (_, behind) in pairwise(own))
            for post, time in own:
                assert all(time > before[stage, x] for x in post for stage in (x.source, x.target))


@pytest.mark.parametrize(("order", "posted", "wrong"), [
    ("gpipe", "alone", messages._gpipe(1)), ("gpipe", "grouped", replace(messages._gpipe(1), of={
        "forward": lambda p, i, before, more, total, n: n, "backward": messages._gpipe(1).of["backward"]})),
    ("gpipe", "four", replace(messages._gpipe(1), of={
        "forward": messages._gpipe(1).of["forward"],
        "backward": lambda p, i, before, more, total, n: total + p - 2 + p - 1 - i + n - z3.If(n == 0, 1, 0)})),
    ("1f1b", "grouped", replace(messages._1f1b(), of={
        "forward": messages._1f1b().of["forward"],
        "backward": lambda p, i, before, more, total, n: 2 * p - 2 - i + 2 * n})),
    ("1f1b", "grouped", replace(messages._1f1b(), of={
        "forward": lambda p, i, before, more, total, n: z3.If(n < p - i, i + n, i + 2 * n - 1),
        "backward": messages._1f1b().of["backward"]})),
    ("1f1b", "four", messages._steady(1, 1, 0, 0)), ("1f1b", "four", messages._steady(2, 0, 0, 0)),
    ("1f1b", "four", messages._steady(2, 1, 0, 1)), ("1f1b", "alone", messages._1f1b()),
    ("zb_h1", "grouped", messages._steady(4, 3, 2, 2)), ("zb_h1", "grouped", messages._steady(5, 2, 2, 2)),
    ("zb_h1", "grouped", messages._steady(5, 3, 3, 2)), ("zb_h1", "grouped", messages._steady(5, 3, 1, 2)),
    ("zb_h1", "four", messages._steady(3, 1, 0, 0)), ("zb_h1", "four", messages._steady(1, 1, 1, 0)),
    ("zb_h2", "grouped", messages._steady(5, 3, 2, 2)),
    ("interleaved", "four", messages._steady(1, 0, 0, 0)), ("interleaved", "four", messages._steady(1, 2, 0, 0)),
    ("interleaved", "four", messages._steady(2, 3, 0, 0)),
    ("interleaved", "grouped", messages._steady(1, 1, 0, 0)), ("interleaved_zb", "four", messages._steady(3, 1, 1, 0)),
])
def test_times_that_are_off_by_one_are_refuted(order: str, posted: str, wrong: Times) -> None:
    fact = timed(order, posted, wrong)
    assert (fact.verdict, fact.cls) == (REFUTED, BOUNDED) and "p = " in fact.reason


def test_each_part_of_the_rule_is_seen_to_fail() -> None:
    """Times that keep two parts of the rule and break the third."""
    apart = TIMES["gpipe", "alone"]
    for wrong, part in ((replace(apart, sent=0), messages.NOT_GROWING),
                        (replace(apart, of={**apart.of, "forward": lambda p, i, before, more, total, n: 2 * n - 2 * i}),
                         messages.NOT_RECEIVED),
                        (replace(apart, of={**apart.of, "forward": lambda p, i, before, more, total, n:
                                            3 * i + 2 * n - 2 * p}), messages.NOT_SENT)):
        fact = timed("gpipe", "alone", wrong)
        broken = {name for name, formula in fact.failures if PROCESS.ask([*fact.known, formula]).status == SAT}
        assert part in broken and fact.verdict == REFUTED


@pytest.mark.parametrize("order", ["1f1b", "zb_h1", "interleaved"])
@pytest.mark.parametrize("chunks", [2, 3])
def test_the_solver_hears_of_every_message(order: str, chunks: int) -> None:
    """What is sent between the n-th item of a stage and the k-th of another, by its phase, is among the formulas'."""
    chosen = pipeline(order, "grouped", chunks)
    for p, m in ((2, 4), (3, 6)):
        sent, received = dict[Any, tuple[int, int]](), dict[Any, tuple[int, int]]()
        for stage in range(p):
            counted = {"forward": 0, "backward": 0, "weights": 0}
            for item, into, out in hops(chosen, stage, p, m):
                received.update({x: (stage, counted[item.phase]) for x in into})
                sent.update({x: (stage, counted[item.phase]) for x in out})
                counted[item.phase] += 1
        assert sent.keys() == received.keys() and sent
        for message, (stage, n) in sent.items():
            heard = {(phase, number(source), number(target), number(k)) for phase, holds, source, k, target in
                     messages._messages(z3.IntVal(p), z3.IntVal(stage), z3.IntVal(n), None, chunks > 1
                                        and order == "interleaved") if z3.is_true(z3.simplify(holds))}
            assert (message.phase, stage, *received[message]) in heard


# one size, and what is open


def test_an_order_at_the_sizes_of_a_strategy_is_decided_there() -> None:
    chosen = pipeline("zb_h2", "grouped")
    at = ends(chosen, 2, 3)
    assert (at.verdict, at.cls) == (PROVED, BOUNDED) and "at p = 2, m = 3" in at.statement
    assert ends(chosen, 2, 4).verdict == REFUTED and "at p = 2, m = 4" in ends(chosen, 2, 4).reason
    assert ends(pipeline("interleaved", "grouped"), 2, 2).verdict == PROVED


def test_what_ends_at_every_size_tried_is_open() -> None:
    fact = ends(pipeline("zb_h2", "grouped"), None, 1)
    assert fact.verdict == UNDECIDED and fact.reason == (
        "open: no closed form of the times of its posts is known, and at sizes up to p = 4, m = 1 none waits forever")
    assert tried(pipeline("interleaved", "grouped"), 16)[:2] == [(16, 16), (16, 32)]
    assert not tried(pipeline("interleaved", "grouped"), 3, 4)


WRITTEN = ("0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1")


def test_an_order_that_is_written_down_is_decided_at_its_size() -> None:
    for posted, verdict in (("alone", REFUTED), ("grouped", PROVED)):
        fact = ends(Pipeline("pp", actions=WRITTEN, messages=posted))
        assert (fact.verdict, fact.cls) == (verdict, BOUNDED)


# what prove says


def test_schedule_speaks_of_sends_that_wait_where_a_strategy_says_how_messages_are_posted() -> None:
    for posted, verdict in ((BUFFERED, PROVED), ("alone", REFUTED), ("grouped", PROVED), ("four", PROVED)):
        report = pa.prove(step(posted))
        assert report.verdict == verdict and (BLOCKING in report.not_covered) == (posted == BUFFERED)
        assert all(v.verdict == PROVED for v in report.obligations if v.id != "schedule" or v.group)
        assert (report.counterexample is None) == (verdict == PROVED)


def test_a_refutation_names_sizes_stages_and_messages() -> None:
    found = pa.prove(step("grouped", pipeline="interleaved", chunks=2)).counterexample
    assert found is not None and dict(found.sizes) == {"pp": 2, "m": 4, "v": 2} and found.obligation == "schedule"
    assert found.explanation == (
        "at pp = 2, m = 4, v = 2 stage 0 waits to send B0 of chunk 2 to stage 1; stage 1 waits to send B1 of chunk 3 "
        "to stage 0. A run of the messages alone stops there, with stages 0, 1 left")
    assert found.event == "backward.layer.in.grad.send[pp]"


def test_sizes_that_a_strategy_fixes_bound_the_verdict() -> None:
    fixed = overlay(pa.parse_strategy("pp"), {"mesh": {"pp": 2}, "overlap": {"messages": "grouped"},
                                              "schedule": {"pipeline": "zb_h2", "microbatches": 3}})
    assert (schedule_of(pa.derive(fixed, "gpt")).verdict, schedule_of(pa.derive(fixed, "gpt")).cls) == (PROVED, BOUNDED)
    assert schedule_of(step("grouped", pipeline="zb_h2", microbatches=1)).verdict == UNDECIDED
    assert schedule_of(step("grouped", pipeline="zb_h2")).verdict == REFUTED


def test_a_circle_that_does_not_replay_is_no_refutation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged, "stopped", lambda *_: ())
    found = schedule_of(step("alone"))
    assert found.verdict == UNDECIDED and "does not stop" in found.reason


def test_messages_that_are_not_those_of_the_order_are_not_judged_by_it() -> None:
    found = step("grouped")
    events = list(found.listing)
    send = next(n for n, e in enumerate(events) if e.path == "forward.layer.out.send[pp]")
    recv = next(n for n, e in enumerate(events) if e.path == "forward.layer.in.recv[pp]")
    events.insert(recv, events.pop(send))
    assert unlike(found) == "" and "stands behind" in unlike(found.listed(events))
    among = [replace(e, axes=("pp",)) if e.path == "forward.layer.attn.q.compute" else e for e in found.listing]
    assert "is among stages of pp" in unlike(found.listed(among))
    turned = [replace(e, phase="backward") if e.path == "forward.layer.out.send[pp]" else e for e in found.listing]
    assert "in the backward" in unlike(found.listed(turned))  # type: ignore[arg-type]


def test_a_step_without_a_pipeline_posts_nothing() -> None:
    with pytest.raises(InputError, match=r"\[overlap\] messages: no axis is a pipeline"):
        pa.derive(overlay(pa.zero3(), {"overlap": {"messages": "grouped"}}), "gpt")
    with pytest.raises(InputError, match="grouped"):
        overlay(pa.parse_strategy("pp"), {"overlap": {"messages": "groupd"}})


# certificates


@pytest.mark.parametrize(("posted", "expected"), [("alone", SAT), ("grouped", UNSAT), ("four", UNSAT)])
def test_a_certificate_has_the_question_on_posts(posted: str, expected: str) -> None:
    found = step(posted)
    queries = {q.name: q for q in certificate(found, pa.prove(found))}
    query = queries["schedule.posts.smt2"]
    assert query.expected == expected and query.asks
    solver = z3.Solver()
    solver.from_string(query.text)
    assert str(solver.check()) == expected
    assert "schedule.posts.smt2" not in {q.name for q in certificate(step(BUFFERED), pa.prove(step(BUFFERED)))}


def test_a_certificate_without_that_question_is_amiss() -> None:
    found = step("grouped")
    report = pa.prove(found)
    rows = [{"file": q.name, "id": q.obligation, "group": q.group} for q in certificate(found, report)]
    manifest = {"verdict": "PROVED", "queries": rows, "lemmas": list(report.lemmas)}
    program = write_program(found, overlay(pa.parse_strategy("pp"), {"overlap": {"messages": "grouped"}}))
    assert groups_amiss(manifest, program) == ""
    left = {**manifest, "queries": [r for r in rows if r["file"] != "schedule.posts.smt2"]}
    assert groups_amiss(left, program) == "has no file on sends that wait for their receiver"


# the page


def table() -> str:
    """Each order with each way to post messages: proved for which sizes, or refuted where."""
    lines = ["| order | " + " | ".join(WAITING) + " |", "|---" * 4 + "|"]
    for order in ORDERS:
        cells = []
        for posted in WAITING:
            chosen = pipeline(order, posted)
            fact, found = ends(chosen), smallest(chosen)
            every = list(sizes(chosen))
            stops = sum(bool(stopped(chosen, *size)) for size in every)
            cells.append(f"refuted at p = {found.ranks}, m = {found.microbatches}; stops at {stops} of {len(every)}"
                         if found else f"{fact.verdict} for all p, m{', v' * (order == 'interleaved')}".lower())
        lines.append(f"| {order} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table() -> None:
    page = ROOT / "docs" / "messages.md"
    text = page.read_text(encoding="utf-8")
    now = re.sub(r"^\| order \|.*?\n(?!\|)", lambda _: table(), text, count=1, flags=re.MULTILINE | re.DOTALL)
    if os.environ.get("PLACEALG_WRITE_PAGES"):
        page.write_text(now, encoding="utf-8")
        text = now
    assert now == text
