"""The obligations `race` and `alias`: what events on several streams do to memory is what the printed order does.

`race`: of every two accesses to one slot, one of which writes, that which is printed first has ended before the other
begins. Then each order that the streams allow gives what the printed order gives. `alias`: in printed order no read
finds what was written for another value that has the same slot.

Each pair of events is one question of linear arithmetic about the sizes, the slots of a ring and the turns of both; no
bound stands in it. A model is replayed on the unrolled program (`simulator/streams.py`, by `check`); one that does not
replay leaves the obligation open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any

import z3

from placealg.prover.evidence.logic import and_, not_, or_
from placealg.prover.evidence.solver import PROCESS, SAT, UNSAT
from placealg.prover.frontier import FIRST, NO, SECOND, YES, Frontier, Point, Term, less
from placealg.step.instances import Cell, Lifetime, Node, Ordered, lifetimes
from placealg.step.order import HOST
from placealg.strategy.buffers import Buffer

RACE, ALIAS = "race", "alias"

SMALL: Mapping[str, int] = {"size": 4, "slots": 3, "step": 1}
"""The largest loop, ring and step of the counterexample that is looked for first."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses to one cell of which one writes: `first` is printed before `second`."""

    obligation: str
    cell: Cell
    first: Node
    second: Node


@dataclass(frozen=True, slots=True)
class Found:
    """A conflict that is not ordered: the sizes, the slots of rings, and both points; `reason` where it is open."""

    conflict: Conflict
    sizes: Mapping[str, int]
    slots: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked about a program: the number of pairs, and those that are not ordered, or open."""

    pairs: int
    found: tuple[Found, ...]
    open: tuple[Found, ...]
    seconds: float


def buffer_of(cell: Cell, buffers: Mapping[str, Buffer]) -> Buffer | None:
    """The buffer in which a cell lies; None if each instance has a slot of its own."""
    return buffers.get(cell.name)


def place_of(cell: Cell, buffers: Mapping[str, Buffer]) -> tuple[str, str]:
    """The slots in which a cell lies: its own, or those of the value whose slots it shares."""
    buffer = buffer_of(cell, buffers)
    return (cell.holder, buffer.alias) if buffer and buffer.kind == "with" else cell.place


@dataclass(frozen=True)
class Slots:
    """Whether two accesses touch one slot, as terms of a frontier."""

    frontier: Frontier
    buffers: Mapping[str, Buffer]
    found: dict[tuple[str, str], dict[str, Lifetime]] = field(default_factory=dict)

    def instance(self, node: Node, cell: Cell, point: Point) -> Term | None:
        """The instance of its unit that an access touches, counted in forward; None if any."""
        for depth, loop in enumerate(node.loops):
            if loop.name == cell.unit:
                turn, size = point[depth + 1], self.frontier.size(node, depth)
                own = size - 1 - turn if loop.reverse else turn
                return own - 1 if cell.back else own
        return None

    def same(self, one: tuple[Node, Cell, Point], other: tuple[Node, Cell, Point]) -> Term:
        """That two accesses to one place, the first printed before the second, touch one slot."""
        (x, cell, a), (y, second, b) = one, other
        buffer = buffer_of(cell, self.buffers)
        if buffer is None or buffer.kind == "with" or buffer_of(second, self.buffers) != buffer:
            here, there = self.instance(x, cell, a), self.instance(y, second, b)
            return YES if here is None or there is None else here == there
        together = x.path[:-1] == y.path[:-1] and bool(x.units) and bool(cell.unit)
        visit = and_([s == t for s, t in zip(a[:-1], b[:-1], strict=True)]) if together else NO
        if buffer.kind == "ring":
            size = self.frontier.slots if isinstance(buffer.size, str) else z3.IntVal(buffer.size)
            if not together:
                return YES
            apart = a[-1] - b[-1]
            return or_(apart == 0, not_(visit), apart >= size, -apart >= size)
        mine, others = self.lives(cell)[x.name], self.lives(second)[y.name]
        own = and_([s == t for s, t in zip(a, b, strict=True)]) if mine is others or mine == others else NO
        if x.stream in buffer.recorded:
            return own
        gone = less(self.frontier.issued(mine.freed, a), self.frontier.issued(others.made, b))
        return or_(own, gone)

    def lives(self, cell: Cell) -> dict[str, Lifetime]:
        """The lives of the blocks of a cell, by event."""
        if cell.place not in self.found:
            self.found[cell.place] = lifetimes(self.frontier.program, cell.place)
        return self.found[cell.place]


def conflicts(program: Ordered, buffers: Mapping[str, Buffer]) -> Iterator[Conflict]:
    """The pairs of accesses that some order of the streams might exchange.

    Of two events on one stream that are issued as they are printed there is nothing to ask; nor of what the host does
    as it issues, unless it is issued elsewhere than printed.
    """
    touching: dict[tuple[str, str], list[tuple[Node, Cell, bool]]] = {}
    for node in program.nodes:
        for cell in dict.fromkeys((*node.writes, *node.reads)):
            touching.setdefault(place_of(cell, buffers), []).append((node, cell, cell in node.writes))
    for every in touching.values():
        for (x, cell, writes), (y, other, also) in combinations_with_replacement(every, 2):
            if not (writes or also) or x is y:
                continue
            moved = _moved(x) or _moved(y)
            if x.stream == y.stream and not moved:
                continue
            if x.stream != HOST or moved:
                yield Conflict(RACE, cell, x, y)
            if y.stream != HOST or moved:
                yield Conflict(RACE, other, y, x)


def _moved(node: Node) -> bool:
    return bool(node.ahead) or node.issue != node.path


def aliased(program: Ordered, buffers: Mapping[str, Buffer]) -> Iterator[Conflict]:
    """(a write for another value or instance, a read) of one slot: the read may find what that wrote."""
    for y in program.nodes:
        for cell in y.reads:
            for x in program.nodes:
                for other in x.writes:
                    if place_of(other, buffers) != place_of(cell, buffers):
                        continue
                    ring = (buffer_of(cell, buffers) or Buffer("with")).kind == "ring"
                    if other.place != cell.place or ring:
                        yield Conflict(ALIAS, cell, x, y)


class Questions:
    """The questions about one program, each with its answer."""

    def __init__(self, program: Ordered) -> None:
        self.program = program
        self.buffers = program.reference.buffers
        self.frontier = Frontier(program)
        self.slots = Slots(self.frontier, self.buffers)

    def known(self) -> list[Term]:
        """What is known of sizes: each loop runs, a ring has a slot."""
        return [*(size >= 1 for size in self.frontier.sizes.values()), self.frontier.slots >= 1]

    def race(self, asked: Conflict) -> list[Term]:
        """That two accesses touch one slot, and nothing lets the one that is printed later wait for the other."""
        x, y = asked.first, asked.second
        front = self.frontier
        a, b = front.point(x, FIRST), front.point(y, SECOND)
        place = place_of(asked.cell, self.buffers)
        other = next(c for c in (*y.writes, *y.reads) if place_of(c, self.buffers) == place)
        ended = [front.has_ended(x, a, up_to) for up_to in front.before(y, x.stream)]
        return [*self.known(), front.inside(x, a), front.inside(y, b), less(front.printed(x, a), front.printed(y, b)),
                self.slots.same((x, asked.cell, a), (y, other, b)), *map(not_, ended)]

    def alias(self, asked: Conflict) -> list[Term]:
        """That a read finds, in printed order, what was written for another value, and nothing wrote its own since."""
        x, y = asked.first, asked.second
        front = self.frontier
        a, b = front.point(x, FIRST), front.point(y, SECOND)
        cell = asked.cell
        other = next(c for c in x.writes if place_of(c, self.buffers) == place_of(cell, self.buffers))
        fresh = []
        for node in self.program.nodes:
            if any(c.place == cell.place for c in node.writes) and not any(c.place == cell.place for c in node.reads):
                fresh += [and_(guard, less(front.printed(x, a), front.printed(node, at)),
                               less(front.printed(node, at), front.printed(y, b)))
                          for guard, at in self._own(node, y, cell, b)]
        different = [YES] if other.place != cell.place else [self._other_turn(x, y, a, b)]
        return [*self.known(), front.inside(x, a), front.inside(y, b), less(front.printed(x, a), front.printed(y, b)),
                self.slots.same((x, other, a), (y, cell, b)), *different, *map(not_, fresh)]

    def _other_turn(self, x: Node, y: Node, a: Point, b: Point) -> Term:
        if x.path[:-1] != y.path[:-1]:
            return YES
        return or_([s != t for s, t in zip(a, b, strict=True)])

    def _own(self, node: Node, reader: Node, cell: Cell, point: Point) -> Iterator[tuple[Term, Point]]:
        """Instances of a fresh write of what a read reads: of its own instance of the unit, in each loop before it."""
        front = self.frontier
        mine = self.slots.instance(reader, cell, point)
        for guard, at in front.latest(_as_printed(node), front.printed(reader, point), False):
            depth = next((k for k, loop in enumerate(node.loops) if loop.name == cell.unit), None)
            if depth is None or mine is None:
                yield guard, at
                continue
            turn = front.size(node, depth) - 1 - mine if node.loops[depth].reverse else mine
            there = (*at[:depth + 1], turn, *at[depth + 2:])
            yield front.inside(node, there), there

    def answer(self, asked: Conflict) -> Found | None:
        """None where no model exists; else sizes and points, or why the question is open."""
        terms = self.race(asked) if asked.obligation == RACE else self.alias(asked)
        simple = [z3.simplify(t) for t in terms]
        if any(z3.is_false(t) for t in simple):
            return None
        front = self.frontier
        a, b = front.point(asked.first, FIRST), front.point(asked.second, SECOND)
        reply = PROCESS.ask(simple, model=False)
        if reply.status == UNSAT:
            return None
        small = [*(size <= SMALL["size"] for size in front.sizes.values()), front.slots <= SMALL["slots"],
                 a[0] <= SMALL["step"], b[0] <= SMALL["step"]]
        if reply.status == SAT:
            near = PROCESS.ask([*simple, *small])
            reply = near if near.status == SAT else PROCESS.ask(simple)
        if reply.status != SAT:
            return Found(asked, {}, 0, (), (), reply.reason or "the solver gave no answer")
        model: Mapping[str, Any] = reply.model
        value = {name: model.get(f"size.{name}", 1) for name in front.sizes}
        return Found(asked, value, model.get("size.K", 1), tuple(model.get(str(t), 0) for t in a),
                     tuple(model.get(str(t), 0) for t in b))


def _as_printed(node: Node) -> Node:
    return replace(node, event=replace(node.event, ahead=0, behind=""), issue=node.path)


def ask(program: Ordered, obligation: str) -> Asked:
    """Every question of one obligation about a program."""
    start = time.perf_counter()
    questions = Questions(program)
    asked = list((conflicts if obligation == RACE else aliased)(program, questions.buffers))
    found, left = list[Found](), list[Found]()
    for conflict in asked:
        got = questions.answer(conflict)
        if got is not None:
            (left if got.reason else found).append(got)
    return Asked(len(asked), tuple(found), tuple(left), time.perf_counter() - start)

