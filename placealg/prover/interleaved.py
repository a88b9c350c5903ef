"""Orders in which a stage takes its chunks in turns: how long it waits, for all p, v and m.

Items are numbered as a stage runs them, `total` = m*v forwards and as many backwards. The next chunk's forward of a
microbatch has a number that is p higher, and a backward through the last chunk one that is `more` = (v - 1)*p lower
than its forward's; nothing else of v matters. Start times are proposed here, for the edges of cones of a chunk's
lengths; the solver shows that they keep the order of every stage and all that items wait for, and how long a stage then
waits. On the path down to the last stage, through all that it runs, and back, items take just as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import z3

from placealg.arith import parse
from placealg.prover.evidence.logic import and_, or_
from placealg.prover.v_schedule import Asked, Lengths
from placealg.prover.waiting import least, term
from placealg.step.pipeline import AHEAD, LATER, Pipeline, phases, place
from placealg.step.waits import WAITING

FAST: Mapping[str, tuple[Lengths, ...]] = {"interleaved": ((1, 0, 0), (0, 1, 0)),
                                           "interleaved_zb": ((1, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1))}
"""Order -> the edges of the cone of lengths for which a stage waits as is claimed, and equal lengths."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The start times of the items of an order at given lengths, as terms."""

    order: str
    lengths: Lengths
    p: Any
    total: Any
    more: Any

    def lasts(self, phase: str) -> int:
        """The length of an item; where a backward is one event, the last length is 0."""
        return self.lengths[("forward", "backward", "weights").index(phase)]

    def ahead(self, i: Any) -> Any:
        """The forwards that stage i runs ahead, if there are so many: what AHEAD says for one chunk, and `more`."""
        return term(AHEAD[self.order], p=self.p, i=i, v=1) + self.more

    def later(self, i: Any) -> Any:
        """By how many items stage i runs its backward for the weights later; None where that is no event."""
        return term(LATER[self.order], i=i) if self.order in LATER else None

    def where(self, phase: str, i: Any, n: Any) -> Any:
        """The place of the n-th item of a phase in the order of stage i."""
        return place(phase, n, least(self.ahead(i), self.total), self.total, z3.If, self.later(i))

    def start(self, phase: str, i: Any, n: Any) -> Any:
        """The time at which stage i starts the n-th item of a phase."""
        forward, back, weights = self.lengths
        if self.order not in LATER:
            turned = n + i - (self.p - 1) - self.more
            full = n + 2 * (self.p - 1) + self.more + 1 - i
            return {"forward": (n + i) * forward + z3.If(turned > 0, turned, 0) * back,
                    "backward": (n + self.p - 1 - i) * back + least(self.total + self.p - 1, full) * forward}[phase]
        if phase == "forward":
            ahead = self.ahead(i)
            return z3.If(n <= ahead, (i + n) * forward, self.start("backward", i, n - ahead) - forward)
        if phase == "weights":
            later = self.later(i)
            behind = self.start("backward", i, self.total - 1) + back
            return z3.If(n + later < self.total, self.start("backward", i, n + later) + back,
                         behind + (n + later - self.total + 1) * weights)
        return ((self.p + self.more + least(n, self.total - 1 - self.more)) * forward + (self.p - 1 - i + n) * back
                + self.between(i, n) * weights)

    def between(self, i: Any, n: Any) -> Any:
        """The backwards for the weights before the n-th backward that take time of their own, beside no forward."""
        steady = least(n, self.total - 1 - self.ahead(i))
        beyond = n - (self.total - 1 - self.more)
        return z3.If(steady > self.later(i), steady - self.later(i), 0) + z3.If(beyond > 0, beyond, 0)


def _known(order: str) -> tuple[list[Any], tuple[Any, ...]]:
    p, i, total, more, n, k = z3.Ints("p i total ahead n k")
    return [p >= 1, i >= 0, i < p, more >= 0, total >= p + more, n >= 0, n < total, k >= 0, k < total], (
        p, i, total, more, n, k)


def attained(order: str) -> Asked:
    """What is known, and the ways in which start times may fail."""
    known, (p, i, total, more, n, k) = _known(order)
    out, early, long = list[Any](), list[Any](), list[Any]()
    chosen = phases(Pipeline("p", order))
    for lengths in FAST[order]:
        run = Turns(order, lengths, p, total, more)

        def ends(phase: str, stage: Any, number: Any, run: Turns = run) -> Any:
            return run.start(phase, stage, number) + run.lasts(phase)

        out += [and_(run.where(one, i, n) + 1 == run.where(other, i, k), run.start(other, i, k) < ends(one, i, n))
                for one in chosen for other in chosen]
        early += [and_(i > 0, run.start("forward", i, n) < ends("forward", i - 1, n)),
                  and_(i == 0, n >= p, run.start("forward", 0, n) < ends("forward", p - 1, n - p)),
                  and_(i < p - 1, run.start("backward", i, n) < ends("backward", i + 1, n)),
                  and_(i == p - 1, n >= p, run.start("backward", i, n) < ends("backward", 0, n - p)),
                  and_(i == p - 1, n + more < total, run.start("backward", i, n) < ends("forward", i, n + more))]
        if "weights" in chosen:
            early.append(run.start("weights", i, n) < ends("backward", i, n))
        taken = ends(chosen[-1], i, total - 1) - run.start("forward", i, z3.IntVal(0))
        long.append(taken != total * sum(lengths) + _waited(order, lengths, p, i))
    return known, (("an item starts before the one that its stage runs first ends", or_(out)),
                   ("an item starts before one that it waits for ends", or_(early)),
                   ("a stage waits longer, or less long", or_(long)))


def needed(order: str) -> Asked:
    """What is known, and the ways in which the path that takes as long as is claimed may be another."""
    known, (p, i, total, more, n, _) = _known(order)
    run, end = Turns(order, (1, 1, 1), p, total, more), p - 1
    last, mine = run.where("backward", end, total - 1), run.where("backward", i, total - 1)
    wrong = [run.where("forward", end, n) > last, and_(n < total - 1, run.where("backward", end, n) > last)]
    weights = z3.IntVal(0)
    if order in LATER:
        wrong += [run.where("forward", i, n) > mine, and_(n < total - 1, run.where("backward", i, n) > mine)]
        weights = last + 1 - 2 * total + 3 * total - 1 - mine
    longer = []
    for lengths in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        forward, back, late = lengths
        path = (p - 1 - i + total) * forward + (total + p - 1 - i) * back + weights * late
        longer.append(path != total * sum(lengths) + _waited(order, lengths, p, i))
    if order not in LATER:
        longer.pop()
    return known, (("other items stand on the path", or_(wrong)), ("the path takes another time", or_(longer)))


def grows(order: str) -> Asked:
    """What is known, and how times of items of equal length may fail to exclude a cycle."""
    known, ways = attained(order)
    return known, ways[:2]


def _waited(order: str, lengths: Lengths, p: Any, i: Any) -> Any:
    """The claimed time, in which a stage's times over v are a chunk's."""
    names = {"p": p, "i": i, **dict(zip(("T_F", "T_B", "T_W"), map(z3.IntVal, lengths), strict=True))}
    return parse(WAITING[order].removesuffix("/v")).fold(int, names.__getitem__)
