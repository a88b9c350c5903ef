"""How long a stage of a pipeline waits, in the times of its forward and of both parts of its backward.

For all numbers of stages p and microbatches m, the solver shows that start times, proposed here in closed form, keep
the order of every stage and all that items wait for, and that from its first item to its last stage i then waits as
long as is claimed. No run of the order waits less: on one path of the wait-for graph the items take just as long. It
leads from the first forward of stage i through the next stages to the last one, through all that this runs up to its
last backward, and back.

Times are linear in T_F, T_B and T_W, and so is what they have to satisfy: it holds for all lengths in a cone if it
holds for those on its edges, where it is arithmetic over p, i, m and numbers of items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import z3

from placealg.arith import parse
from placealg.prover.evidence.logic import and_, or_
from placealg.step.pipeline import AHEAD, ENOUGH, FAST_WHERE, LATER, Pipeline, phases, place
from placealg.step.waits import WAITING

Lengths = tuple[int, int, int]
"""T_F, T_B, T_W. Where a backward is one event its length is the sum of the last two."""

FAST: Mapping[str, tuple[tuple[Lengths, ...], ...]] = {
    **dict.fromkeys(("gpipe", "1f1b"), (((1, 0, 0), (0, 1, 0), (0, 0, 1)),)),
    "zb_h1": (((1, 0, 0), (0, 1, 0), (1, 0, 1)),),
    "zb_h2": (((1, 1, 1), (1, 1, 0), (0, 1, 0)), ((2, 0, 0), (2, 2, 0), (2, 2, 2), (4, 0, 2)))}
"""Order -> the edges of the cones of lengths for which it waits no longer than is claimed."""

@dataclass(frozen=True, slots=True)
class Run:
    """The start times of the items of an order at given lengths, as terms over p, i, m and numbers of items.

    `late` says that a forward takes longer than a backward for the inputs, in which zb_h2 has other times.
    """

    order: str
    lengths: Lengths
    late: bool
    p: Any
    m: Any

    def lasts(self, phase: str) -> int:
        """The length of an item."""
        forward, back, weights = self.lengths
        return {"forward": forward, "backward": back if self.order in LATER else back + weights,
                "weights": weights}[phase]

    def start(self, phase: str, i: Any, k: Any) -> Any:
        """The time at which stage i starts the k-th item of a phase."""
        forward, back, weights = map(self.lasts, ("forward", "backward", "weights"))
        if self.order == "gpipe":
            return (i + k) * forward if phase == "forward" else (
                (self.m + self.p - 1) * forward + (self.p - 1 - i + k) * back)
        ahead, later = self.ahead(i), self.later(i)
        if phase == "forward":
            return z3.If(k <= ahead, (i + k) * forward, self.start("backward", i, k - ahead) - forward)
        if phase == "weights":
            last = self.start("backward", i, self.m - 1) + back
            return z3.If(k + later < self.m, self.start("backward", i, k + later) + back,
                         last + (k + later - self.m + 1) * weights)
        alternating = self.m - 1 - ahead
        steady = least(k, alternating)
        between = z3.If(steady > later, steady - later, 0) if self.order in LATER else z3.IntVal(0)
        if not self.late:
            return self.p * forward + (self.p - 1 - i) * back + k * (forward + back) + between * weights
        behind = z3.If(k > alternating, k - alternating, 0)
        return ((2 * self.p - 1 - i) * forward + (k - behind) * (forward + back)
                + behind * ((forward + 3 * back) // 2) + between * weights)

    def ahead(self, i: Any) -> Any:
        """The number of forwards that stage i runs ahead."""
        return term(AHEAD[self.order], p=self.p, i=i, m=self.m, v=1)

    def later(self, i: Any) -> Any:
        """By how many microbatches stage i runs its backward for the weights later."""
        return term(LATER.get(self.order, "0"), i=i)

    def where(self, phase: str, i: Any, k: Any) -> Any:
        """The place of the k-th item of a phase in the order of stage i."""
        return place(phase, k, least(self.ahead(i), self.m), self.m, z3.If,
                     self.later(i) if self.order in LATER else None)


def attained(order: str) -> tuple[list[Any], tuple[tuple[str, Any], ...]]:
    """What is known, and the ways in which start times may fail: one of a stage's order, one of what items wait for."""
    p, i, m, n, k = z3.Ints("p i m n k")
    known = [p >= 1, i >= 0, i < p, m >= term(ENOUGH.get(order, "1"), p=p), n >= 0, n < m, k >= 0, k < m]
    out, early, long = list[Any](), list[Any](), list[Any]()
    chosen = phases(Pipeline("p", order))
    for late, edges in enumerate(FAST[order]):
        for lengths in edges:
            run = Run(order, lengths, bool(late), p, m)

            def ends(phase: str, stage: Any, number: Any, run: Run = run) -> Any:
                return run.start(phase, stage, number) + run.lasts(phase)

            out += [and_(run.where(one, i, n) + 1 == run.where(other, i, k), run.start(other, i, k) < ends(one, i, n))
                    for one in chosen for other in chosen]
            early += [and_(i > 0, run.start("forward", i, k) < ends("forward", i - 1, k)),
                      and_(i < p - 1, run.start("backward", i, k) < ends("backward", i + 1, k)),
                      and_(i == p - 1, run.start("backward", i, k) < ends("forward", i, k))]
            if "weights" in chosen:
                early.append(run.start("weights", i, k) < ends("backward", i, k))
            worked = m * sum(lengths)
            taken = ends(chosen[-1], i, m - 1) - run.start("forward", i, z3.IntVal(0))
            long.append(taken != worked + _waited(order, lengths, p, i))
    return known, (("an item starts before the one that its stage runs first ends", or_(out)),
                   ("an item starts before one that it waits for ends", or_(early)),
                   ("a stage waits longer, or less long", or_(long)))


def needed(order: str) -> tuple[list[Any], tuple[tuple[str, Any], ...]]:
    """What is known, and the ways in which the path that takes as long as is claimed may be another."""
    p, i, m, n = z3.Ints("p i m n")
    known = [p >= 1, i >= 0, i < p, m >= term(ENOUGH.get(order, "1"), p=p), n >= 0, n < m]
    run = Run(order, (1, 1, 1), False, p, m)
    last = run.where("backward", p - 1, m - 1)
    other = [run.where("forward", p - 1, n) > last, and_(n < m - 1, run.where("backward", p - 1, n) > last)]
    before, behind = z3.IntVal(0), z3.IntVal(0)
    if order in LATER:
        before, behind = m - 1 - run.later(p - 1), run.later(i) + 1
        other += [(run.where("weights", p - 1, n) < last) != (n < before),
                  (run.where("weights", i, n) > run.where("backward", i, m - 1)) != (n >= m - behind)]
    wrong = []
    for lengths in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        forward, back, weights = map(replace(run, lengths=lengths).lasts, ("forward", "backward", "weights"))
        path = (p - 1 - i + m) * forward + (m + p - 1 - i) * back + (before + behind) * weights
        wrong.append(path != m * sum(lengths) + _waited(order, lengths, p, i))
    return known, (("other items stand on the path", or_(other)), ("the path takes another time", or_(wrong)))


def grows(order: str) -> tuple[list[Any], tuple[tuple[str, Any], ...]]:
    """What is known, and how times that exclude a cycle may fail, of an order that splits the backward: for all m."""
    p, i, m, n, k = z3.Ints("p i m n k")
    known = [p >= 1, i >= 0, i < p, m >= 1, n >= 0, n < m, k >= 0, k < m]
    run = Run(order, (1, 1, 1), False, p, m)

    def when(phase: str, stage: Any, number: Any) -> Any:
        if phase == "forward":
            return when("backward", stage, number - run.ahead(stage)) - 1
        if phase == "weights":
            beyond = z3.If(number + run.later(stage) < m, 0, number + run.later(stage) - (m - 1))
            return when("backward", stage, least(number + run.later(stage), m - 1)) + 1 + beyond
        return 4 * number + 2 * (p - 1 - stage)

    chosen = phases(Pipeline("p", order))
    out = [and_(run.where(one, i, n) < run.where(other, i, k), when(other, i, k) <= when(one, i, n))
           for one in chosen for other in chosen]
    early = [and_(i > 0, when("forward", i, k) <= when("forward", i - 1, k)),
             and_(i < p - 1, when("backward", i, k) <= when("backward", i + 1, k)),
             and_(i == p - 1, when("backward", i, k) <= when("forward", i, k)),
             when("weights", i, k) <= when("backward", i, k)]
    return known, (("an item stands before another in its stage's order, and does not start before it", or_(out)),
                   ("an item does not start after what it waits for", or_(early)))


def _waited(order: str, lengths: Lengths, p: Any, i: Any) -> Any:
    return term(WAITING[order], p=p, i=i, **dict(zip(("T_F", "T_B", "T_W"), map(z3.IntVal, lengths), strict=True)))


def term(text: str, **names: Any) -> Any:
    """Arithmetic over p, i, m and v as a term of the solver; v is a number, so that products stay linear."""
    return parse(text).fold(lambda number: int(number), names.__getitem__, {"Min": least})


def least(one: Any, other: Any) -> Any:
    """The smaller of two terms."""
    return z3.If(one <= other, one, other)


def described(order: str) -> Iterator[str]:
    """The statements of what is proved of an order's times."""
    where = f" where {FAST_WHERE[order]}" if order in FAST_WHERE else ""
    yield f"stage i waits {WAITING[order]} between its first and its last item{where}"
    yield f"no run of the order waits less{where.partition(' and ')[0]}"
