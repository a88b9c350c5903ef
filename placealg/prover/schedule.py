"""The schedules of a pipeline: that they run without a deadlock, how long they take, and what is in flight.

Orders with one chunk per stage have start times in closed form, in items of equal length. The solver shows for all
numbers of stages p and microbatches m that the times grow along every edge of the wait-for graph (from what a stage
does to what it does next, from what an item waits for to the item), so that there is no cycle; that every item starts
when one of its predecessors ends, so that no schedule of the same order is shorter; and when it ends. For the
interleaved order, times that grow, though they are not the least ones, exclude a cycle for all sizes. How long stages
wait is in `waiting.py`, with chunks in turns in `interleaved.py`, of orders in a V in `v_schedule.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import z3

from placealg.prover import interleaved, v_schedule, waiting
from placealg.prover.evidence.kept import is_open, kept
from placealg.prover.evidence.logic import and_, not_, or_
from placealg.prover.evidence.solver import PROCESS, SAT, UNSAT
from placealg.prover.verdict import BOUNDED, PARAMETRIC, PROVED, REFUTED, UNDECIDED, Conclusion
from placealg.prover.waiting import least, term
from placealg.step.actions import edges, faults, read_table, starts
from placealg.step.folded import FOLDED, HELD, LEAST
from placealg.step.pipeline import AHEAD, IDLE, LATER, TURNS, Pipeline, both_in_flight, in_flight, place

NO_CYCLE = "a stage's items start one after the other in its order, and after what they wait for: no cycle"
IN_TURN = "what passes between two chunks is sent, and received, in the order of microbatches"
OUT_OF_ORDER = "an item stands before another in its stage's order, and does not start before it"
TOO_EARLY = "an item does not start after what it waits for"

@dataclass(frozen=True, slots=True)
class Fact:
    """A statement about all schedules of one order, and how it ended: PARAMETRIC (all sizes), or BOUNDED.

    If the solver was asked: its premises (`known`), and the ways to fail, each with its wording, none of which can
    happen.
    """

    order: str
    statement: str
    verdict: Conclusion
    cls: str
    reason: str = ""
    known: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    failures: tuple[tuple[str, Any], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Times:
    """The start times of the forward and the backward of microbatch k, of m, on stage i of p: terms over p, i, m, k."""

    forward: Callable[[Any, Any, Any, Any], Any]
    backward: Callable[[Any, Any, Any, Any], Any]

    @property
    def of(self) -> Mapping[str, Callable[[Any, Any, Any, Any], Any]]:
        """Phase -> its start times."""
        return {"forward": self.forward, "backward": self.backward}


TIMES: Mapping[str, Times] = {
    "gpipe": Times(lambda p, i, m, k: i + k,
                   lambda p, i, m, k: m + p - 1 + p - 1 - i + k),
    "1f1b": Times(lambda p, i, m, k: z3.If(k < p - i, i + k, i + 2 * k),
                  lambda p, i, m, k: 2 * p - 1 - i + 2 * k),
}
"""Order -> the start times, proposed here and proved by `start_times`."""


def schedule_facts(pipeline: Pipeline) -> tuple[Fact, ...]:
    """The facts about every schedule of a pipeline's order: it ends, how long it takes, what is in flight.

    >>> [fact.statement for fact in schedule_facts(Pipeline("pp", "zb_h1"))][1:3]
    ['stage i waits (p - 1 - i)*(T_F + T_B - T_W) between its first and its last item where m >= p and T_W <= T_F', \
'no run of the order waits less where m >= p']
    >>> {(fact.verdict, fact.cls) for fact in schedule_facts(Pipeline("pp", "zb_h1"))}
    {('PROVED', 'PARAMETRIC')}
    """
    return _facts(pipeline.order, pipeline.chunks)


@kept(lambda facts: any(map(is_open, facts)), 64)
def _facts(order: str, chunks: int | None) -> tuple[Fact, ...]:
    if order in FOLDED:
        return tuple(_of_a_v(order))
    if order in LATER and order not in TURNS:
        return (asked(order, NO_CYCLE, *waiting.grows(order)), *_waiting(order), held(order),
                held(order, until="weights"))
    if order in TIMES:
        return (*start_times(order), *_waiting(order), held(order))
    waits = (asked(order, statement, *found) for statement, found in zip(
        waiting.described(order), (interleaved.attained(order), interleaved.needed(order)), strict=True))
    if order == "interleaved":
        return numbered(order), *waits, held(order)
    return asked(order, NO_CYCLE, *interleaved.grows(order)), *waits, held(order), held(order, until="weights")


def _of_a_v(order: str) -> Iterator[Fact]:
    """The facts about an order of a folded pipeline."""
    yield asked(order, NO_CYCLE, *v_schedule.grows(order))
    yield asked(order, IN_TURN, *v_schedule.in_turn(order))
    waits = v_schedule.attained(order), v_schedule.needed(order)
    for statement, found in zip(v_schedule.described(order), waits, strict=True):
        yield asked(order, statement, *found)
    most = f"at most {HELD[order]} forwards of a chunk of stage i have no backward"
    yield asked(order, f"{most}, and once so many", *v_schedule.holds(order))
    yield asked(order, f"{most} for the weights, and once so many, where m >= {LEAST[order]}",
                 *v_schedule.holds(order, apart=True))


def _waiting(order: str) -> Iterator[Fact]:
    """The facts that a stage may wait as long as is claimed of the order, and never less long."""
    for statement, found in zip(waiting.described(order), (waiting.attained(order), waiting.needed(order)),
                                strict=True):
        yield asked(order, statement, *found)


def acyclic(pipeline: Pipeline) -> Fact:
    """The fact that schedules of a pipeline's order have no cycle: no stage waits for one that waits for it.

    Of an order that is written down it is, at its sizes, that it runs, and that each microbatch goes through once.
    """
    return written_down(pipeline.actions) if pipeline.actions else _acyclic(pipeline.order)


@kept(is_open, 8)
def _acyclic(order: str) -> Fact:
    if order in LATER:
        return asked(order, NO_CYCLE, *(interleaved if order in TURNS else waiting).grows(order))
    if order in FOLDED:
        return asked(order, NO_CYCLE, *v_schedule.grows(order))
    return next(start_times(order)) if order in TIMES else numbered(order)


ONCE = ("each microbatch goes forward and backward once through each stage, each action stands behind what it needs, "
        "messages match, and no rank waits for one that waits for it")


@kept(is_open, 8)
def written_down(rows: tuple[str, ...]) -> Fact:
    """The fact that an order that is written down can run; what is wrong with it where it cannot."""
    table = read_table(rows)
    told = [(fault.says, z3.IntVal(fault.left) >= z3.IntVal(fault.right)) for fault in faults(table)]
    times = starts(table)
    early = [] if told else [(TOO_EARLY, z3.IntVal(times[one]) >= z3.IntVal(times[two])) for one, two in edges(table)]
    found = asked("written down", f"{ONCE}, on {table.ranks} ranks with {table.chunks} chunks each and "
                                   f"{table.microbatches} microbatches", [], tuple(told or early))
    wrong = "; ".join(says for says, _ in told[:2]) + (f"; and {len(told) - 2} more" if len(told) > 2 else "")
    return replace(found, cls=BOUNDED, reason=wrong)


GROWING = Times(lambda p, i, ahead, n: 2 * n + 2 * i,
                lambda p, i, ahead, n: 2 * n + 2 * (2 * (p - 1) + ahead) + 1 - 2 * i)
"""Times of the n-th forward and the n-th backward of stage i in the interleaved order: they grow along every edge.

Stage i starts with 2*(p - 1 - i) + ahead forwards, ahead = (v - 1)*p; the times grow whatever v is.
"""


def numbered(order: str, times: Times = GROWING) -> Fact:
    """The fact that times grow along a stage's order, and from what an item waits for, in the interleaved order.

    Items are numbered as a stage runs them: the item of the next chunk has a number that is p higher, a backward
    through the last chunk one that is `ahead` lower than its forward's.
    """
    p, i, total, n, k, ahead = z3.Ints("p i total n k ahead")
    known = [p >= 1, i >= 0, i < p, total >= 1, ahead >= 0, n >= 0, n < total, k >= 0, k < total]
    started = least(2 * (p - 1 - i) + ahead, total)

    def when(phase: str, stage: Any, number: Any) -> Any:
        return times.of[phase](p, stage, ahead, number)

    def where(phase: str, number: Any) -> Any:
        return place(phase, number, started, total, z3.If)

    clash = _out_of_order(where, lambda phase, number: when(phase, i, number), n, k)
    early = or_(
        and_(i > 0, when("forward", i, n) <= when("forward", i - 1, n)),
        and_(i == 0, n >= p, when("forward", 0, n) <= when("forward", p - 1, n - p)),
        and_(i < p - 1, when("backward", i, n) <= when("backward", i + 1, n)),
        and_(i == p - 1, n >= p, when("backward", i, n) <= when("backward", 0, n - p)),
        and_(i == p - 1, n + ahead < total, when("backward", i, n) <= when("forward", i, n + ahead)))
    return asked(order, NO_CYCLE, known, ((OUT_OF_ORDER, clash), (TOO_EARLY, early)))


def start_times(order: str, ahead: str = "", times: Times | None = None) -> Iterator[Fact]:
    """The facts that the start times are those of the order, for all p and m; `ahead` and `times` default to it."""
    p, i, m, n, k = z3.Ints("p i m n k")
    at = times or TIMES[order]
    known = [p >= 1, i >= 0, i < p, m >= 1, n >= 0, n < m, k >= 0, k < m]
    started = least(term(ahead or AHEAD[order], p=p, i=i, m=m, v=1), m)

    def when(phase: str, stage: Any, number: Any) -> Any:
        return at.of[phase](p, stage, m, number)

    def where(phase: str, number: Any) -> Any:
        return place(phase, number, started, m, z3.If)

    clash = _out_of_order(where, lambda phase, number: when(phase, i, number), n, k)
    early = or_(*(and_(guard, when(phase, i, k) <= when(needed, stage, k))
                  for phase, guard, needed, stage in _needed(p, i)))
    yield asked(order, NO_CYCLE, known, ((OUT_OF_ORDER, clash), (TOO_EARLY, early)))
    before = {"forward": (("forward", k - 1), ("backward", k - started - 1)),
              "backward": (("forward", k + started), ("backward", k - 1), ("forward", m - 1))}
    idle = or_(*(and_(or_(i > 0, k > 0) if phase == "forward" else z3.BoolVal(True), *(
        not_(and_(guard, when(phase, i, k) == when(needed, stage, k) + 1))
        for waits, guard, needed, stage in _needed(p, i) if waits == phase), *(
        not_(and_(number >= 0, number < m, where(other, number) == where(phase, k) - 1,
                  when(phase, i, k) == when(other, i, number) + 1))
        for other, number in before[phase])) for phase in _PHASES))
    yield asked(order, "every item but the first starts when one that it follows or waits for ends", known,
                (("an item starts when none of them ends", idle),))
    ends = 2 * (m + term(IDLE, p=p))
    late = or_(*(when(phase, i, k) + 1 > ends for phase in _PHASES), when("backward", 0, m - 1) + 1 != ends)
    yield asked(order, f"the step takes m + {IDLE} forwards and as many backwards of a stage", known,
                (("an item ends later, or the last one earlier", late),))


def held(order: str, claim: str = "", until: str = "backward") -> Fact:
    """The fact that at most `claim` forwards of a stage have no backward, and at some time so many.

    `claim` defaults to the order's formula, `until` the backward for the weights or the other one. Only the sizes of
    ahead and m*v matter, so that it holds for all p, i, m and v.
    """
    pipeline = Pipeline("pp", order)
    apart = until == "weights"
    claim = claim or (both_in_flight(pipeline) if apart else in_flight(pipeline))
    total, n, k, p, i, ahead = z3.Ints("total n k p i ahead")
    known = [total >= 1, p >= 1, i >= 0, i < p, n >= 0, n < total, k >= 0, k < total]
    later = term(LATER[order], i=i) if order in LATER else None
    if order in TURNS:
        most = least(total, ahead + 1 + (later if apart else 0))
    else:
        ahead = term(AHEAD[order], p=p, i=i, m=total, v=1)
        most = term(claim, p=p, i=i, m=total, v=1)
    started = least(total, ahead)

    def where(phase: str, number: Any) -> Any:
        return place(phase, number, started, total, z3.If, later)

    after = [where(until, k) > where("forward", n), or_(k == 0, where(until, k - 1) < where("forward", n))]
    peak = [n == least(total - 1, started + (later if apart else 0)), n + 1 - k != most]
    named = f"at most {claim} forwards of stage i have no backward{' for the weights' if apart else ''}"
    return asked(order, f"{named}, and once so many", [*known, ahead >= 0, *after],
                  (("there are more, or never so many", or_(n + 1 - k > most, and_(*peak))),))


_PHASES = ("forward", "backward")


def _out_of_order(where: Callable[[str, Any], Any], when: Callable[[str, Any], Any], n: Any, k: Any) -> Any:
    """The formula that the n-th item of a phase comes before the k-th of another, and does not start before it."""
    return or_(*(and_(where(one, n) <= where(other, k), when(other, k) <= when(one, n),
                      z3.BoolVal(True) if one != other else n != k)
                 for one in _PHASES for other in _PHASES))


def _needed(p: Any, i: Any) -> tuple[tuple[str, Any, str, Any], ...]:
    """(phase, condition, phase and stage of the item of the same microbatch that it waits for), for one chunk."""
    return (("forward", i > 0, "forward", i - 1), ("backward", i == p - 1, "forward", i),
            ("backward", i < p - 1, "backward", i + 1))


def asked(order: str, statement: str, known: list[Any], failures: tuple[tuple[str, Any], ...]) -> Fact:
    """The fact that no sizes that satisfy `known` let one of the failures happen."""
    answer = PROCESS.ask([*known, or_([formula for _, formula in failures])])
    found = Fact(order, statement, PROVED, PARAMETRIC, "", tuple(known), failures)
    if answer.status == UNSAT:
        return found
    if answer.status == SAT:
        sizes = ", ".join(f"{n} = {answer.model[n]}" for n in sorted(answer.model))
        return replace(found, verdict=REFUTED, cls=BOUNDED, reason=f"not at {sizes}")
    return replace(found, verdict=UNDECIDED, reason=answer.reason)
