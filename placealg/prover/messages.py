"""That no stage of a pipeline waits forever, where a send waits for its receiver: for all sizes, by times of posts.

A stage posts its messages as `step.messages` says; P, Q and R are posts. It stands at P once it has ended all of its
posts before P, and ends P once the other stage of each message of P stands at that message's post there, or is past
it. So P waits for the posts before it on its stage, and for those before Q, for each post Q of another stage that
shares a message with P; for nothing else.

**Rule.** Give every post a number, its time. If the time of P is larger than that of the post before P, and than that
of the post before Q for each Q that shares a message with P, then every post ends. *Proof.* Suppose that some post
never ends, and let P be one of least time. The post before P has less time, so it ends, and the stage comes to P. The
posts before each Q have less time, so they end, and each partner comes to Q. Then all messages of P move, and P ends.
Collectives of ranks of one stage, over other axes, stand between the same two posts on each of them and get a time
between these. The rule is also necessary: where all posts end, when each of them does is such a time.

A pair of posts for items without a message, and messages where there are none (from the last chunk to another), are
allowed for: they only add to what the times have to satisfy. If all messages of a post have one time, the same on both
sides, and the times of a stage's posts grow, the rule holds: the post before Q has less time than Q, which has P's.

The times proposed here are closed forms over the stage i of p, an item's number n, and m; an item's time is that of the
post in which it receives. The solver is asked whether they break the rule at any p, m, i, n. Where there is no closed
form the smallest sizes are looked for at which stages wait for each other in a circle: the order is refuted there. An
order that is run at one size alone, the strategy's own, is decided at that size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import z3

from placealg.prover.evidence.kept import is_open, kept
from placealg.prover.evidence.logic import and_, or_
from placealg.prover.schedule import Fact, asked
from placealg.prover.verdict import BOUNDED, REFUTED, UNDECIDED
from placealg.prover.waiting import least, term
from placealg.step.messages import ALONE, Message, Post, chain, posts
from placealg.step.pipeline import AHEAD, LATER, TURNS, Pipeline, phases, place
from placealg.step.program import Step
from placealg.strategy.vocabulary import BUFFERED, FOUR

NO_STAGE_WAITS = "every post has a time larger than those of the posts that it waits for: no stage waits forever"
NOT_GROWING = "a post has no larger time than the one before it on its stage"
NOT_RECEIVED = "a post that receives has no larger time than what its sender does first"
NOT_SENT = "a post that sends has no larger time than what its receiver does first"
CIRCLE = "posts of stages wait for each other in a circle"

RANKS, MICROBATCHES = range(2, 5), range(1, 13)
"""The numbers of stages and of microbatches at which stages are looked for that wait for each other."""

Time = Callable[[Any, Any, Any, Any, Any, Any], Any]
"""A term over p, the stage i, its number of forwards ahead, the items of a phase, and an item's number n; `more` is
what chunks add to the forwards ahead."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of the posts of a stage: of the post in which an item receives, by phase, and of the last post.

    `sent` is by how much later the post is in which an item sends, where it is one of its own; 0 where there is none.
    """

    of: Mapping[str, Time]
    end: Time
    sent: int = 0


def _steady(each: int, hop: int, weights: int, ahead: int) -> Times:
    """Times of an order in turns: backwards `each` apart, a stage's `hop` before those of the stage before it.

    What comes `weights` behind a backward is the one for the weights, and a forward comes `ahead` before a backward.
    """
    def backward(p: Any, i: Any, before: Any, more: Any, total: Any, n: Any) -> Any:
        return each * n + hop * (p - 1 - i)

    def forward(p: Any, i: Any, before: Any, more: Any, total: Any, n: Any) -> Any:
        return backward(p, i, before, more, total, n - before) - ahead

    def later(p: Any, i: Any, before: Any, more: Any, total: Any, n: Any) -> Any:
        last = n + i - (total - 1)
        return backward(p, i, before, more, total, least(n + i, total - 1)) + weights + z3.If(last > 0, last, 0)

    def end(p: Any, i: Any, before: Any, more: Any, total: Any, n: Any) -> Any:
        return backward(p, i, before, more, total, total) + weights + i

    return Times({"forward": forward, "backward": backward, "weights": later}, end)


def _gpipe(apart: int) -> Times:
    def forward(p: Any, i: Any, before: Any, more: Any, total: Any, n: Any) -> Any:
        return i + apart * n

    def backward(p: Any, i: Any, before: Any, more: Any, total: Any, n: Any) -> Any:
        return apart * (total + p - 1) + p - 1 - i + apart * n

    return Times({"forward": forward, "backward": backward},
                 lambda p, i, before, more, total, n: backward(p, i, before, more, total, total), apart - 1)


def _1f1b() -> Times:
    def forward(p: Any, i: Any, before: Any, more: Any, total: Any, n: Any) -> Any:
        return z3.If(n < p - i, i + n, i + 2 * n)

    def backward(p: Any, i: Any, before: Any, more: Any, total: Any, n: Any) -> Any:
        return 2 * p - 1 - i + 2 * n

    return Times({"forward": forward, "backward": backward},
                 lambda p, i, before, more, total, n: backward(p, i, before, more, total, total))


TIMES: Mapping[tuple[str, str], Times] = {
    ("gpipe", ALONE): _gpipe(2),
    ("gpipe", "grouped"): _gpipe(1),
    ("gpipe", FOUR): _gpipe(1),
    ("1f1b", "grouped"): _1f1b(),
    ("1f1b", FOUR): _steady(2, 1, 0, 0),
    ("zb_h1", "grouped"): _steady(5, 3, 2, 2),
    ("zb_h1", FOUR): _steady(3, 1, 1, 0),
    ("interleaved", FOUR): _steady(1, 1, 0, 0),
}
"""(order, how messages are posted) -> the times of the posts, proposed here and proved by `timed`."""


def timed(order: str, messages: str, times: Times | None = None) -> Fact:
    """The fact that times of posts keep the rule, for all p and m (and v); `times` defaults to those of TIMES.

    >>> timed("1f1b", "grouped").verdict, timed("1f1b", "alone", TIMES["1f1b", "grouped"]).verdict
    ('PROVED', 'REFUTED')
    """
    at = times or TIMES[order, messages]
    p, i, total, n, k, j, more = z3.Ints("p i total n k j more")
    known = [p >= 2, i >= 0, i < p, total >= 1, *(and_(x >= 0, x < total) for x in (n, k, j)), more >= 0]
    chosen, alone = phases(Pipeline("p", order)), messages == ALONE

    def ahead(stage: Any) -> Any:
        """The forwards that a stage runs ahead, `more` being (v - 1)*p: m*v is total."""
        if order in TURNS:
            return term(AHEAD[order].replace("(v - 1)*p", "0"), p=p, i=stage) + more
        return term(AHEAD[order], p=p, i=stage, m=total, v=1)

    def where(stage: Any, phase: str, number: Any) -> Any:
        if phase == "end":
            return len(chosen) * total
        later = term(LATER[order], i=stage) if order in LATER else None
        return place(phase, number, least(ahead(stage), total), total, z3.If, later)

    def received(stage: Any, phase: str, number: Any) -> Any:
        return (at.end if phase == "end" else at.of[phase])(p, stage, ahead(stage), more, total, number)

    def sent(stage: Any, phase: str, number: Any) -> Any:
        return received(stage, phase, number) + at.sent

    def joined(stage: Any, phase: str, number: Any, forward: bool) -> Any:
        """1 if the item is the forward, or the backward, of a block of two; else 0."""
        if messages != FOUR or phase != ("forward" if forward else "backward"):
            return z3.IntVal(0)
        return z3.If(number >= ahead(stage) if forward else number < total - ahead(stage), z3.IntVal(1), z3.IntVal(0))

    growing, early, late = list[Any](), list[Any](), list[Any]()
    for one in chosen:
        if alone:
            growing.append(sent(i, one, n) <= received(i, one, n))
        for behind in (*chosen, "end"):
            next_ = where(i, one, n) + 1 == where(i, behind, k)
            within = joined(i, one, n, True) if behind == "backward" else z3.IntVal(0)
            begins, ends = received(i, behind, k), sent(i, one, n) if alone else received(i, one, n)
            growing += [and_(next_, within == 0, begins <= ends), and_(next_, within == 1, begins != ends)]
    for phase, condition, source, number, target in _messages(p, i, n, total, order in TURNS):
        there = [condition, number >= 0, number < total]
        early.append(and_(*there, received(target, phase, number) <= received(source, phase, n)))
        for first in chosen:
            before = where(target, first, j) + 1 + joined(target, phase, number, False) == where(target, phase, number)
            if alone:
                late.append(and_(*there, before, sent(source, phase, n) <= sent(target, first, j)))
            for behind in () if alone else (*chosen, "end"):
                next_ = where(source, phase, n) + 1 + joined(source, phase, n, True) == where(source, behind, k)
                late.append(and_(*there, before, next_, received(source, behind, k) <= received(target, first, j)))
    return asked(order, f"{NO_STAGE_WAITS}, messages posted {messages}", known, (
        (NOT_GROWING, or_(growing)), (NOT_RECEIVED, or_(early)), (NOT_SENT, or_(late))))


def _messages(p: Any, i: Any, n: Any, total: Any, turns: bool) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """(phase, condition, the stage that sends, the number there of the item that receives, its stage) of messages.

    The sender is stage i, and its item the n-th of the phase. In turns an item's next chunk is p items on.
    """
    yield "forward", i < p - 1, i, n, i + 1
    yield "backward", i > 0, i, n, i - 1
    if turns:
        yield "forward", i == p - 1, i, n + p, z3.IntVal(0)
        yield "backward", i == 0, i, n + p, p - 1


@dataclass(frozen=True, slots=True)
class Stuck:
    """Stages of a pipeline that wait for each other in a circle, each with the message for which it waits."""

    ranks: int
    microbatches: int
    chunks: int
    waits: tuple[tuple[int, Message], ...]

    def __str__(self) -> str:
        told = []
        for stage, message in self.waits:
            does = f"send {message} to" if message.source == stage else f"receive {message} from"
            told.append(f"stage {stage} waits to {does} stage "
                        f"{message.target if message.source == stage else message.source}")
        return "; ".join(told)


def stuck_at(pipeline: Pipeline, ranks: int, microbatches: int) -> Stuck | None:
    """The circle of stages that wait for each other at these sizes, if there is one.

    >>> print(stuck_at(Pipeline("pp", "1f1b", messages="alone"), 2, 2))
    stage 0 waits to send F1 of chunk 0 to stage 1; stage 1 waits to send B0 of chunk 1 to stage 0
    """
    lists = [posts(pipeline, stage, ranks, microbatches) for stage in range(ranks)]
    found = chain(lists)
    return Stuck(ranks, microbatches, pipeline.chunks or 1, found) if found else None


def dealt(pipeline: Pipeline) -> Pipeline:
    """The pipeline with two chunks where their number is a symbol."""
    return replace(pipeline, chunks=pipeline.chunks or 2)


def smallest(pipeline: Pipeline, ranks: int | None = None, microbatches: int | None = None) -> Stuck | None:
    """The smallest sizes, of those tried, at which stages wait for each other; at the sizes given where there are."""
    if pipeline.actions:
        ranks, microbatches = pipeline.table.ranks, pipeline.table.microbatches
    sizes, chosen = tried(pipeline, ranks, microbatches), dealt(pipeline)
    return next((found for p, m in sizes if (found := stuck_at(chosen, p, m))), None)


def tried(pipeline: Pipeline, ranks: int | None = None, microbatches: int | None = None) -> list[tuple[int, int]]:
    """The numbers of stages and microbatches at which such stages are looked for, the smallest first."""
    found = [(p, m) for p in ([ranks] if ranks else RANKS) for n in MICROBATCHES
             for m in [microbatches or n * (p if pipeline.grouped else 1)] if not (pipeline.grouped and m % p)]
    return sorted(dict.fromkeys(found), key=lambda size: (sum(size), size))


def ends(pipeline: Pipeline, ranks: int | None = None, microbatches: int | None = None) -> Fact:
    """The fact that every post of a pipeline ends, where sends wait: for all sizes, or for those given.

    >>> ends(Pipeline("pp", "gpipe", messages="alone")).verdict, ends(Pipeline("pp", messages="alone")).reason
    ('PROVED', 'at p = 2, m = 2 stage 0 waits to send F1 of chunk 0 to stage 1; stage 1 waits to send B0 of chunk 1 to \
stage 0')
    """
    if pipeline.actions:
        ranks, microbatches = pipeline.table.ranks, pipeline.table.microbatches
    named = replace(Pipeline("pp", pipeline.order, pipeline.chunks, actions=pipeline.actions),
                    messages=pipeline.messages)
    return _ends(named, ranks, microbatches)


def posts_end(step: Step) -> Fact:
    """The fact that every post of a step's pipeline ends, at the step's sizes where both are numbers, else at all.

    >>> import placealg as pa
    >>> from placealg.strategy.spec import overlay
    >>> posts_end(pa.derive(overlay(pa.parse_strategy("pp"), {"overlap": {"messages": "grouped"}}), "gpt")).verdict
    'PROVED'
    """
    reference = step.reference
    return ends(reference.pipeline, reference.mesh.sizes().get(reference.pipeline.axis), reference.microbatches)


@kept(is_open, 32)
def _ends(pipeline: Pipeline, ranks: int | None, microbatches: int | None) -> Fact:
    assert pipeline.messages != BUFFERED, "a send that is buffered waits for nobody"
    order = "written down" if pipeline.actions else pipeline.order
    fact = Fact(order, f"{NO_STAGE_WAITS}, messages posted {pipeline.messages}", UNDECIDED, BOUNDED)
    if not pipeline.actions and (pipeline.order, pipeline.messages) in TIMES:
        return timed(pipeline.order, pipeline.messages)
    found = smallest(pipeline, ranks, microbatches)
    if found:
        sizes = f"p = {found.ranks}, m = {found.microbatches}" + (f", v = {found.chunks}" if found.chunks > 1 else "")
        return replace(fact, verdict=REFUTED, reason=f"at {sizes} {found}",
                       failures=((CIRCLE, circle(dealt(pipeline), found)),))
    if ranks and microbatches and pipeline.chunks:
        return asked_at(pipeline, ranks, microbatches, fact)
    sizes = "; ".join(f"p = {p}, m = {m}" for p, m in tried(pipeline, ranks, microbatches)[-1:])
    return replace(fact, reason="open: no closed form of the times of its posts is known"
                                + f", and at sizes up to {sizes} none waits forever" * bool(sizes))


def asked_at(pipeline: Pipeline, ranks: int, microbatches: int, fact: Fact) -> Fact:
    """The fact at one size, from times that are numbers: how many posts, one behind the other, each waits for."""
    lists = [posts(pipeline, stage, ranks, microbatches) for stage in range(ranks)]
    waits = _waits(lists)
    times = _levels(waits)
    pairs = sorted({(times[before], times[post]) for post, found in waits.items() for before in found})
    early = tuple((NOT_GROWING, z3.IntVal(one) >= z3.IntVal(two)) for one, two in pairs) or (
        (NOT_GROWING, z3.IntVal(0) >= z3.IntVal(1)),)  # nothing waits where there is one stage
    at = f"{fact.statement}, at p = {ranks}, m = {microbatches}"
    return replace(asked(fact.order, at, [], early), cls=BOUNDED)


def _waits(lists: list[tuple[Post, ...]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Each post, as (stage, number), with the posts that it waits for."""
    sides = dict[Message, list[tuple[int, int]]]()
    for stage, found in enumerate(lists):
        for n, post in enumerate(found):
            for message in post:
                sides.setdefault(message, []).append((stage, n))
    return {(stage, n): sorted({(at, k - 1) for at, k in ((stage, n), *(s for x in post for s in sides[x])) if k})
            for stage, found in enumerate(lists) for n, post in enumerate(found)}


def _levels(waits: Mapping[tuple[int, int], list[tuple[int, int]]]) -> dict[tuple[int, int], int]:
    """The least times that grow along every wait; there is no circle."""
    levels = dict[tuple[int, int], int]()
    left = [*waits]
    while left:
        post = left[-1]
        missing = [before for before in waits[post] if before not in levels]
        if post in levels or not missing:
            levels[post] = 1 + max((levels[before] for before in waits[post]), default=-1)
            left.pop()
        else:
            left += missing
    return levels


def circle(pipeline: Pipeline, found: Stuck) -> Any:
    """The formula that posts, each given by its stage and number, wait for each other in a circle."""
    lists = [posts(pipeline, stage, found.ranks, found.microbatches) for stage in range(found.ranks)]
    waits = _waits(lists)
    place_of = [{message: n for n, post in enumerate(own) for message in post} for own in lists]
    walked = [(stage, place_of[stage][message]) for stage, message in found.waits]
    steps = list[tuple[int, int]]()
    for one, two in pairwise([*walked, walked[0]]):
        steps.append(one)
        first = next(n for stage, n in waits[one] if stage == two[0] and n >= two[1])
        steps += [(two[0], n) for n in range(first, two[1], -1)]
    stages, numbers = ([z3.Int(f"{name}.{k}") for k in range(len(steps))] for name in ("stage", "post"))
    near = sorted({edge for post in steps for before in waits[post] for edge in [(post, before)] if before in steps})
    rounds = [(k, (k + 1) % len(steps)) for k in range(len(steps))]
    return and_(*(or_(*(and_(stages[k] == a[0], numbers[k] == a[1], stages[j] == b[0], numbers[j] == b[1])
                        for a, b in near)) for k, j in rounds))
