"""What has ended before an event begins, for all sizes: a frontier over the streams of a program, as terms of Z3.

An instance of an event is a point: the step, and the turn of each loop around it. The host issues instances in the
order of their keys, which interleave turns with numbers of events. What a stream has ended when an event begins is all
that it was given up to some key: the frontier is a list of such keys, each under a guard. One goes back along waits: of
the events of a stream that waited for another one, the latest instance that was issued before counts. Every wait leads
back in the order of issue, so that a path that comes back to a stream gains nothing: paths over streams are simple.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import z3

from placealg.prover.evidence.logic import and_, or_
from placealg.step.event import MICROBATCH
from placealg.step.instances import Node, Ordered, shared
from placealg.step.order import HOST, JOIN, Wait

Term = Any
Point = tuple[Term, ...]
"""The step, then the turn of each loop around the event, outermost first."""

Key = tuple[Term, ...]
"""The step, then by turns a number in the body of a loop and the turn of the loop that stands there."""

FIRST, SECOND = "first", "second"
"""The tags of the points of a question: of the instance that is printed first, and of the other."""

YES, NO = z3.BoolVal(True), z3.BoolVal(False)


@dataclass(frozen=True, slots=True)
class Ended:
    """Where `guard` holds, all that a stream was given before `key` has ended; with `itself` also what stands there."""

    guard: Term
    key: Key
    itself: bool


@dataclass(frozen=True)
class Frontier:
    """The terms of one program: `sizes` are those of its loops, by their count; `slots` that of its rings, K."""

    program: Ordered

    @cached_property
    def sizes(self) -> dict[str, Term]:
        """Count of a loop -> its symbol."""
        counts = dict.fromkeys(str(loop.count) for node in self.program.nodes for loop in node.loops)
        return {count: z3.Int(f"size.{count}") for count in counts}

    @cached_property
    def slots(self) -> Term:
        """The number of slots of a ring of K."""
        return z3.Int("size.K")

    @cached_property
    def waiting(self) -> list[tuple[Node, Node, Wait]]:
        """(who waits, for whom, how), of all waits for an event."""
        return [(n, self.program.node(w.on), w) for n in self.program.nodes for w in n.event.waits]

    @cached_property
    def joins(self) -> list[Node]:
        """The joins of whole streams."""
        return [n for n in self.program.nodes if n.event.verb == JOIN and n.event.of]

    def size(self, node: Node, depth: int) -> Term:
        """How often the loop at a depth runs."""
        return self.sizes[str(node.loops[depth].count)]

    def point(self, node: Node, tag: str) -> Point:
        """A point of symbols."""
        return (z3.Int(f"{tag}.step"), *(z3.Int(f"{tag}.{depth}") for depth in range(len(node.loops))))

    def inside(self, node: Node, point: Point) -> Term:
        """That an instance exists: a step that was run, turns that the loops have, a microbatch in which it runs."""
        found = [point[0] >= 0]
        for depth, turn in enumerate(point[1:]):
            found += [turn >= 0, turn < self.size(node, depth)]
            if node.loops[depth].name == MICROBATCH and node.event.at:
                found.append(self.at(node, turn, self.size(node, depth)))
        return and_(found)

    @staticmethod
    def at(node: Node, turn: Term, size: Term) -> Term:
        """That an event runs in this microbatch."""
        first, last = turn == 0, turn == size - 1
        where = {"first": first, "last": last, "only": size == 1, "middle": and_(turn > 0, turn < size - 1)}
        return or_([where[name] for name in node.event.at])

    def issued(self, node: Node, point: Point) -> Key:
        """The place of an instance in the order in which the host issues."""
        return _key(node.issue, self.early(node, point))

    @staticmethod
    def printed(node: Node, point: Point) -> Key:
        """Its place in printed order."""
        return _key(node.path, point)

    @staticmethod
    def early(node: Node, point: Point) -> Point:
        """The point at which it is issued."""
        return (*point[:-1], point[-1] - node.ahead) if node.ahead else point

    def latest(self, node: Node, key: Key, itself: bool) -> Iterator[tuple[Term, Point]]:
        """Instances of `node` that are issued before `key` (or at it), each under a guard; the latest is among them."""
        def fill(point: Point) -> Point:
            return (*point, *(self.size(node, depth) - 1 for depth in range(len(point) - 1, len(node.loops))))

        def go(depth: int, so_far: Point, guards: list[Term]) -> Iterator[tuple[list[Term], Point]]:
            if 2 * depth >= len(key):
                return
            last = depth == len(node.loops)
            turn = key[2 * depth] + (node.ahead if last and node.ahead else 0)
            number, own = key[2 * depth + 1], node.issue[depth]
            if own < number:
                yield guards, fill((*so_far, turn))
            elif own == number and not last:
                yield from go(depth + 1, (*so_far, turn), guards)
            elif own == number and itself and 2 * depth + 2 == len(key):
                yield guards, (*so_far, turn)
            yield guards, fill((*so_far, turn - 1))
            if depth:
                end = self.size(node, depth - 1) - 1
                yield [*guards, turn - 1 >= end], fill((*so_far, end))

        for guards, point in go(0, (), []):
            yield and_([*guards, self.inside(node, point)]), point

    def waited(self, node: Node, other: Node, wait: Wait, point: Point) -> Point:
        """The instance of `other` for which that of `node` at `point` waits."""
        turn = -self.slots if isinstance(wait.turn, str) else wait.turn
        depth = shared(node, other)
        same = list(point[1:depth + 1])
        if wait.turn:
            same[-1] = same[-1] + turn
        for level in range(depth, len(other.loops)):
            loop, size = other.loops[level], self.size(other, level)
            mine = next((k for k, own in enumerate(node.loops) if own.name == loop.name), None)
            if mine is None or loop.name == MICROBATCH:
                same.append(size - 1)
            else:
                flipped = node.loops[mine].reverse != loop.reverse
                same.append(size - 1 - point[mine + 1] if flipped else point[mine + 1])
        if wait.step and depth and other.loops[0].name == MICROBATCH and not wait.turn:
            same[0] = self.size(other, 0) - 1
        return (point[0] + wait.step, *same)

    def before(self, node: Node, stream: str, waits: int = 0) -> list[Ended]:
        """Up to where `stream` has ended what it was given when the instance of `node` at SECOND begins.

        With `waits`, by paths of so many waits alone: what these say holds, and is not all.
        """
        known = self._known.get((node.name, stream, waits))
        if known is None:
            known = self._before(node, self.point(node, SECOND), stream, waits or len(self.program.streams) + 1)
            self._known[node.name, stream, waits] = known
        return known

    @cached_property
    def _known(self) -> dict[tuple[str, str, int], list[Ended]]:
        return {}

    def _before(self, node: Node, point: Point, stream: str, waits: int) -> list[Ended]:
        here = self.issued(node, point)
        if stream == HOST:
            return [Ended(YES, here, False)]
        found = [Ended(YES, here, False)] if node.stream == stream else []
        useful = self._towards(stream)

        def go(at: str, known: list[Ended], seen: frozenset[str], first: bool) -> None:
            last = len(seen) >= waits + (HOST in seen and node.stream != HOST)
            for source, reached in self._back(at, known, node, point, first, {stream} if last else useful - seen):
                if source == stream:
                    found.extend(reached)
                else:
                    go(source, reached, seen | {source}, False)

        start = [Ended(YES, here, False)]
        go(node.stream, start, frozenset({node.stream}), True)
        if node.stream != HOST:
            go(HOST, start, frozenset({HOST, node.stream}), False)
        return found

    def _towards(self, stream: str) -> set[str]:
        """The streams from which waits lead back to `stream`."""
        edges = {(n.stream, other.stream) for n, other, _ in self.waiting}
        edges |= {(n.stream, n.event.of) for n in self.joins}
        found = {stream}
        while more := {one for one, other in edges if other in found} - found:
            found |= more
        return found

    @cached_property
    def _chains(self) -> dict[tuple[str, str], list[list[tuple[Node, Node | None, Wait | None]]]]:
        """(a stream, one that it waits for) -> its waits and joins, those in lists of which a later one says more.

        In one body, a wait for a later event of the stream that is waited for says all that an earlier one says.
        """
        chains: dict[Any, list[tuple[Node, Node | None, Wait | None]]] = {}
        for waiter, other, wait in self.waiting:
            key: Any = (waiter.stream, other.stream, waiter.issue[:-1], other.issue[:-1], wait.turn, wait.step,
                        waiter.ahead, other.ahead)
            while key in chains and (before := chains[key][-1][1]) and before.issue > other.issue:
                key = (*key, "")
            chains.setdefault(key, []).append((waiter, other, wait))
        for join in self.joins:
            chains.setdefault((join.stream, join.event.of, join.issue[:-1], "join"), []).append((join, None, None))
        found: dict[tuple[str, str], list[list[tuple[Node, Node | None, Wait | None]]]] = {}
        for (stream, of, *_), chain in chains.items():
            found.setdefault((stream, of), []).append(sorted(chain, key=lambda each: each[0].issue))
        return found

    @staticmethod
    def _telling(chain: list[tuple[Node, Node | None, Wait | None]], ended: Ended
                 ) -> list[tuple[Node, Node | None, Wait | None]]:
        """Those of a chain that say all: the last one, and the last before the key where that is in the same body."""
        body = chain[-1][0].issue[:-1]
        found = chain[-1:]
        if len(chain) > 1 and ended.key[1:2 * len(body):2] == body and len(ended.key) > 2 * len(body) + 1:
            at = ended.key[2 * len(body) + 1]
            before = [w for w in chain[:-1] if w[0].issue[-1] < at or (w[0].issue[-1] == at and ended.itself)]
            found = [*before[-1:], *found]
        return found

    def _back(self, stream: str, known: list[Ended], node: Node, point: Point, first: bool, to: set[str]
              ) -> Iterator[tuple[str, list[Ended]]]:
        """(another stream, what of it has ended) that follows from what a stream has ended, by one wait."""
        for (waiting, of), chains in self._chains.items():
            if of not in to or waiting != stream:
                continue
            reached: list[Ended] = []
            for chain in chains:
                for each in chain if first else ():
                    if each[0] is node:
                        reached += self._waits(each, YES, point)
                for ended in known:
                    for each in self._telling(chain, ended):
                        for guard, at in self.latest(each[0], ended.key, ended.itself):
                            reached += self._waits(each, and_(ended.guard, guard), at)
            if reached:
                yield of, reached

    def _waits(self, each: tuple[Node, Node | None, Wait | None], guard: Term, at: Point) -> Iterator[Ended]:
        """What one instance that waits says of the stream for which it waits."""
        waiter, other, wait = each
        if other is None or wait is None:
            held = z3.simplify(guard)
            key, itself = self.issued(waiter, at), False
        else:
            there = self.waited(waiter, other, wait, at)
            key, itself = self.issued(other, there), True
            held = z3.simplify(and_(guard, self.inside(other, there), less(key, self.issued(waiter, at))))
        if not z3.is_false(held):
            yield Ended(held, key, itself)

    def has_ended(self, one: Node, at: Point, ended: Ended) -> Term:
        """That an instance has ended, by what its stream has."""
        return and_(ended.guard, less(self.issued(one, at), ended.key, ended.itself))


def _key(numbers: tuple[int, ...], point: Point) -> Key:
    found: list[Term] = []
    for turn, number in zip(point, numbers, strict=True):
        found += [turn, number]
    return tuple(found)


def less(one: Key, other: Key, equal: bool = False) -> Term:
    """That a key stands before another; with `equal` also where they are the same.

    >>> z3.simplify(less((z3.Int("s"), 0), (z3.Int("s"), 2))), z3.simplify(less((z3.Int("s"), 2), (z3.Int("s"), 2)))
    (True, False)
    """
    if not one or not other:
        return YES if equal else NO
    (a, *rest), (b, *more) = one, other
    if isinstance(a, int) and isinstance(b, int):
        return (YES if a < b else NO) if a != b else less(tuple(rest), tuple(more), equal)
    then = less(tuple(rest), tuple(more), equal)
    if z3.is_expr(a) and z3.is_expr(b) and a.eq(b):
        return then
    return or_(a < b, and_(a == b, then))
