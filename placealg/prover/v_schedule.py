"""The orders of a folded pipeline, for all numbers of ranks p and microbatches m: they end, wait and hold as is said.

What a rank does is a few runs of items. Start times are the lengths of all items before, and the pauses that are
proposed here, in a chunk's times F, B and W, for the edges of a cone of lengths. The solver shows that each item then
starts after those that it waits for, and that from its first to its last item a rank waits as long as is claimed. A
path of the wait-for graph takes just as long: down to the last rank (in zb_v back and down again), through what that
runs, and back.

Fewer microbatches than fill the order leave items out, and what is left waits for nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import z3

from placealg.arith import parse
from placealg.prover.evidence.logic import and_, not_, or_
from placealg.prover.waiting import least
from placealg.step.folded import FOLDED, HELD, LEAST, Entry, Run
from placealg.step.pipeline import FAST_WHERE
from placealg.step.waits import WAITING

Asked = tuple[list[Any], tuple[tuple[str, Any], ...]]
"""What is known, and the ways to fail, each with its wording."""

Lengths = tuple[int, int, int]
"""A chunk's times of a forward, and of a backward for the inputs and for the weights."""

EQUAL: Lengths = (1, 1, 1)

FAST: Mapping[str, tuple[Lengths, ...]] = {"zb_v": ((1, 1, 0), (0, 1, 0), EQUAL),
                                           "dualpipe_v": ((1, 1, 0), (2, 1, 1), EQUAL)}
"""Order -> the edges of the cone of lengths for which it waits no longer than is claimed."""

F0, F1, B0, B1, W0, W1 = (Entry(phase, chunk) for phase in ("forward", "backward", "weights") for chunk in (0, 1))
BOTH = (F0, F1, B0, B1)


@dataclass(frozen=True, slots=True)
class Pause:
    """How long a rank pauses in a run: before the item at `place` of each repetition, and once before the first."""

    each: str = "0"
    place: int = 0
    once: str = "0"


PAUSES: Mapping[str, Mapping[int, Pause]] = {
    "zb_v": {2: Pause(once="i*(B - F)"), 3: Pause(once="(p - 1 - i)*(B - F)"), 4: Pause("F - W"),
             6: Pause("B - W", once="W - B")},
    "dualpipe_v": {4: Pause("F", 2), 8: Pause("B - W", 1)}}
"""Order -> the number of a run -> its pauses."""


@dataclass(frozen=True, slots=True)
class Folded:
    """An order at given lengths of items, over p and m: counts, places and start times of its items as terms."""

    order: str
    p: Any
    m: Any
    lengths: Lengths = EQUAL
    paused: bool = True

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of a rank."""
        return FOLDED[self.order]

    def term(self, text: str, i: Any) -> Any:
        """Arithmetic of a run as a term."""
        forward, back, weights = self.lengths
        names = {"p": self.p, "i": i, "m": self.m, "F": forward, "B": back, "W": weights,
                 "half": (i + 1) / 2 if z3.is_expr(i) else (i + 1) // 2, "odd": (i + 1) % 2}
        return parse(text).fold(lambda number: int(number), names.__getitem__, {"Min": least})

    def times(self, run: int, i: Any) -> Any:
        """How often rank i repeats a run."""
        return self.term(self.runs[run].times, i)

    def lasts(self, phase: str) -> int:
        """The length of an item."""
        return self.lengths[("forward", "backward", "weights").index(phase)]

    def pause(self, run: int) -> Pause:
        """The pauses of a run."""
        return PAUSES[self.order].get(run, Pause()) if self.paused else Pause()

    def before(self, run: int, i: Any, entry: Entry) -> Any:
        """How many items of a kind rank i does before a run."""
        return sum((self.times(k, i) for k in range(run) if entry in self.runs[k].items), z3.IntVal(0))

    def base(self, run: int, i: Any) -> Any:
        """When rank i begins a run; rank 0 begins at 0, and each next one by a forward later."""
        now = i * self.lengths[0] if self.paused else z3.IntVal(0)
        for k in range(run):
            now = now + self.times(k, i) * self.period(k, i) + self.term(self.pause(k).once, i)
        return now

    def period(self, run: int, i: Any) -> Any:
        """How long a repetition of a run takes."""
        return sum(self.lasts(item.phase) for item in self.runs[run].items) + self.term(self.pause(run).each, i)

    def at(self, run: int, i: Any, repetition: Any, place: int) -> Any:
        """When rank i starts the item at `place` of a repetition of a run."""
        pause = self.pause(run)
        inside = sum(self.lasts(item.phase) for item in self.runs[run].items[:place])
        waited = self.term(pause.each, i) if place >= pause.place else 0
        return self.base(run, i) + self.term(pause.once, i) + repetition * self.period(run, i) + inside + waited

    def start(self, entry: Entry, i: Any, n: Any) -> Any:
        """When rank i starts the n-th item of a kind."""
        found = self.taken(i, self.put_off(entry, i, n)) if entry.phase == "weights" else z3.IntVal(0)
        for k in reversed(range(len(self.runs))):
            if entry in self.runs[k].items:
                here = self.at(k, i, n - self.before(k, i, entry), self.runs[k].items.index(entry))
                found = z3.If(n < self.before(k + 1, i, entry), here, found)
        return found

    def put_off(self, entry: Entry, i: Any, n: Any) -> Any:
        """The number, among the backwards for the weights that are put off, of that of microbatch n."""
        back, found = Entry("backward", entry.chunk), z3.IntVal(0)
        for k in reversed(range(len(self.runs))):
            late = self.runs[k].put_off
            if back in [self.runs[k].items[place] for place in late]:
                so_far = sum((self.times(j, i) * len(self.runs[j].put_off) for j in range(k)), z3.IntVal(0))
                here = so_far + (n - self.before(k, i, back)) * len(late) + late.index(self.runs[k].items.index(back))
                found = z3.If(n < self.before(k + 1, i, back), here, found)
        return found

    def taken(self, i: Any, number: Any) -> Any:
        """When rank i starts the backward for the weights of this number among those that were put off."""
        oldest, found = Entry("weights", None), z3.IntVal(0)
        for k in reversed(range(len(self.runs))):
            if oldest in self.runs[k].items:
                here = self.at(k, i, number - self.before(k, i, oldest), self.runs[k].items.index(oldest))
                found = z3.If(number < self.before(k + 1, i, oldest), here, found)
        return found

    def end(self, entry: Entry, i: Any, n: Any) -> Any:
        """When it ends."""
        return self.start(entry, i, n) + self.lasts(entry.phase)

    def early(self, i: Any, k: Any) -> Iterator[Any]:
        """The formulas that an item of microbatch k starts before one that it waits for ends."""
        first, last = i == 0, i == self.p - 1
        for entry, where, by, there in (
                (F0, not_(first), F0, i - 1), (F1, last, F0, i), (F1, not_(last), F1, i + 1), (B1, first, F1, i),
                (B1, not_(first), B1, i - 1), (B0, last, B1, i), (B0, not_(last), B0, i + 1),
                (W0, z3.BoolVal(True), B0, i), (W1, z3.BoolVal(True), B1, i)):
            yield and_(where, self.start(entry, i, k) < self.end(by, there, k))

    def crossed(self, i: Any, t: Any) -> Iterator[Any]:
        """The formulas that an item starts before the one ends that its rank does before it."""
        for k, run in enumerate(self.runs):
            many, ends = self.times(k, i), self.lasts(run.items[-1].phase)
            for place, item in enumerate(run.items[:-1]):
                yield and_(t < many, self.at(k, i, t, place + 1) < self.at(k, i, t, place) + self.lasts(item.phase))
            behind = self.at(k, i, t, len(run.items) - 1) + ends
            yield and_(t + 1 < many, self.at(k, i, t + 1, 0) < behind)
            none = [t == many - 1]
            for then in range(k + 1, len(self.runs)):
                yield and_(*none, self.times(then, i) > 0, self.at(then, i, z3.IntVal(0), 0) < behind)
                none.append(self.times(then, i) == 0)
            yield and_(*none, self.base(len(self.runs), i) != behind)

    def uneven(self, i: Any) -> Iterator[Any]:
        """The formulas that a rank does not do every item once."""
        late = sum((self.times(k, i) * len(run.put_off) for k, run in enumerate(self.runs)), z3.IntVal(0))
        every, queued = len(self.runs), self.before(len(self.runs), i, Entry("weights", None))
        yield or_(*(self.times(k, i) < 0 for k in range(every)))
        yield or_(*(self.before(every, i, entry) != self.m for entry in BOTH))
        yield self.before(every, i, W0) + self.before(every, i, W1) + queued != 2 * self.m
        if any(Entry("weights", None) in run.items for run in self.runs):
            yield late != queued


def _known() -> tuple[Any, ...]:
    return z3.Ints("p i m n k")  # type: ignore[no-any-return]


def _sizes(order: str, p: Any, i: Any, m: Any) -> list[Any]:
    return [p >= 1, i >= 0, i < p, m >= parse(LEAST[order]).fold(int, {"p": p}.__getitem__)]


def grows(order: str) -> Asked:
    """How start times of items of equal length may fail to exclude a cycle."""
    p, i, m, n, k = _known()
    found = Folded(order, p, m)
    return [*_sizes(order, p, i, m), k >= 0, k < m, n >= 0], (
        ("a rank does not do everything once", or_(*found.uneven(i))),
        ("an item stands before another in its stage's order, and does not start before it",
         or_(*found.crossed(i, n))),
        ("an item does not start after what it waits for", or_(*found.early(i, k))))


def in_turn(order: str) -> Asked:
    """How what passes between two chunks may be sent, or received, in another order than that of microbatches."""
    p, i, m, n, k = _known()
    placed = Folded(order, p, m, paused=False)
    return [*_sizes(order, p, i, m), n >= 0, n < k, k < m], ((
        "a message overtakes another", or_(*(placed.start(e, i, n) >= placed.start(e, i, k) for e in BOTH))),)


def attained(order: str) -> Asked:
    """The ways in which start times may fail at the edges of the lengths, or a rank wait for another time."""
    p, i, m, n, k = _known()
    every = [Folded(order, p, m, lengths) for lengths in FAST[order]]
    long = []
    for found in every:
        taken = found.base(len(found.runs), i) - found.base(0, i)
        long.append(taken != 2 * m * sum(found.lengths) + _waited(found, i))
    return [*_sizes(order, p, i, m), k >= 0, k < m, n >= 0], (
        ("an item starts before the one that its stage runs first ends",
         or_(*(x for f in every for x in f.crossed(i, n)))),
        ("an item starts before one that it waits for ends", or_(*(x for f in every for x in f.early(i, k)))),
        ("a stage waits longer, or less long", or_(*long)))


def needed(order: str) -> Asked:
    """The ways in which the path that takes as long as is claimed may be another."""
    p, i, m, n, _ = _known()
    placed, end = Folded(order, p, m, paused=False), p - 1
    last, mine = placed.start(B0, end, m - 1), placed.start(B0, i, m - 1)
    back_and_down = order == "zb_v"  # it then goes up through F1, and down again through B1, both of microbatch 0
    behind = placed.start(B1, end, z3.IntVal(0)) if back_and_down else z3.IntVal(-1)
    first = {F0: p, F1: p, B1: 1} if back_and_down else {}
    wrong = [(placed.start(entry, end, n) > behind) != (n >= first.get(entry, 0)) for entry in BOTH]
    wrong += [placed.start(entry, rank, n) > there for entry in BOTH for rank, there in ((end, last), (i, mine))]
    forwards, backs = (sum((m - first.get(entry, 0) for entry in pair), z3.IntVal(0)) for pair in ((F0, F1), (B0, B1)))
    weights = last - behind - forwards - backs + 6 * m - 1 - mine
    lead = p + 1 if back_and_down else 0
    lengths = []
    for edge in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        forward, back, late = edge
        path = (p - 1 - i + lead + forwards) * forward + weights * late + (
            (p if back_and_down else 0) + backs + p - 1 - i) * back
        lengths.append(path != 2 * m * sum(edge) + _waited(Folded(order, p, m, edge), i))
    return [*_sizes(order, p, i, m), n >= 0, n < m], (("other items stand on the path", or_(*wrong)),
                                                      ("the path takes another time", or_(*lengths)))


def holds(order: str, claim: str = "", apart: bool = False) -> Asked:
    """How a rank may hold more, or never so many: forwards without their backwards, `apart` those for the weights.

    Of fewer microbatches than fill the order, what is left out counts for nothing.
    """
    p, i, m, t, _ = _known()
    fills = parse(LEAST[order]).fold(int, {"p": p}.__getitem__)
    found = Folded(order, p, z3.If(m < fills, fills, m))
    most = parse(claim or HELD[order]).fold(int, {"p": p, "i": i, "m": m}.__getitem__, {"Min": least})
    more, never = [], []
    for k, run in enumerate(found.runs):
        many = found.times(k, i)
        for place, item in enumerate(run.items):
            if item.phase != "forward":
                continue
            so_far = {entry: found.before(k, i, entry) + t * (entry in run.items) + (entry in run.items[:place + 1])
                      for entry in (*BOTH, W0, W1)}
            begun, ended = ([least(so_far[entry], m) for entry in pair]
                            for pair in ((F0, F1), (W0, W1) if apart else (B0, B1)))
            held = sum(begun) - sum(ended)
            more.append(and_(t < many, held > most))
            never += [or_(many <= 0, z3.substitute(held, (t, end)) != most) for end in (z3.IntVal(0), many - 1)]
    return [p >= 1, i >= 0, i < p, m >= (fills if apart else 1), t >= 0], (
        ("a rank holds more", or_(*more)), ("a rank never holds so many", and_(*never)))


def described(order: str) -> tuple[str, ...]:
    """The statements of what is proved of the order's times."""
    where = FAST_WHERE[order]
    return (f"stage i waits {WAITING[order]} between its first and its last item where {where}",
            f"no run of the order waits less where {where.partition(' and ')[0]}")


def _waited(found: Folded, i: Any) -> Any:
    """The claimed waiting time; a rank's times are those of its two chunks, so that halves are whole."""
    names = {"p": found.p, "i": i, **dict(zip(("T_F", "T_B", "T_W"), (2 * n for n in found.lengths), strict=True))}
    return parse(WAITING[found.order]).fold(int, names.__getitem__)
