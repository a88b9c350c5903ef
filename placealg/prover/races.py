"""The obligations `race` and `alias`: what events on several streams do to memory is what the printed order does.

`race`: of every two accesses to one slot, one of which writes, that which is printed first has ended before the other
begins. Then each order that the streams allow, and each run in which unordered events overlap, gives what the printed
order gives: `race_free_printed` and `race_free_overlapped` of proofs/coq/kernel/Reorder.v, for any happens-before.
Which that is, of streams and waits, is `frontier.py`, and no theorem. `alias`: in printed order no read finds what was
written for another value that has the same slot.

Each pair of events is one question of linear arithmetic about the sizes, the slots of a ring and the turns of both; no
bound stands in it. A model is replayed on the unrolled program (`simulator/streams.py`, by `check`); one that does not
replay leaves the obligation open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, groupby
from typing import Any

import z3

from placealg.prover.evidence.logic import and_, not_, or_
from placealg.prover.evidence.solver import PROCESS, SAT, UNSAT, Reply
from placealg.prover.frontier import FIRST, NO, SECOND, YES, Frontier, Point, Term, less
from placealg.step.event import MICROBATCH
from placealg.step.instances import Cell, Lifetime, Node, Ordered, lifetimes
from placealg.step.order import COPY, HOST
from placealg.strategy.buffers import Buffer

RACE, ALIAS = ORDER = ("race", "alias")
"""The identifiers of the obligations."""

SMALL = (1, 2, 4)
"""The largest loops and rings of the counterexamples that are looked for first, of two steps."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses to one place of which one writes: `first` touches `cell`, `second`, printed later, `other`."""

    obligation: str
    cell: Cell
    first: Node
    second: Node
    other: Cell


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
        own = and_([s == t for s, t in zip(a, b, strict=True)]) if mine == others else NO
        if x.stream in buffer.recorded:
            return own
        gone = less(self.frontier.issued(mine.freed, a), self.frontier.issued(others.made, b))
        return or_(own, gone)

    def lives(self, cell: Cell) -> dict[str, Lifetime]:
        """The lives of the blocks of a cell, by event."""
        if cell.place not in self.found:
            self.found[cell.place] = lifetimes(self.frontier.program, cell.place)
        return self.found[cell.place]


@dataclass(frozen=True, slots=True)
class Access:
    """Accesses to one cell that follow each other on one stream, in one turn: the first and the last of them."""

    first: Node
    last: Node
    cell: Cell
    writes: bool

    def joins(self, node: Node, cell: Cell, writes: bool) -> bool:
        """Whether the next access to the place belongs to the same run: nothing else touches the place between.

        All of a run happen in the same turns, so that its ends stand for it.
        """
        last = self.last
        return ((cell, writes, node.stream, node.event.at) == (self.cell, self.writes, last.stream, last.event.at)
                and node.path[:-1] == last.path[:-1] and not (_moved(node) or _moved(last)))


def accesses(program: Ordered, buffers: Mapping[str, Buffer]) -> Iterator[list[Access]]:
    """The accesses to each place, in printed order: what is true of the ends of a run is true of all of it."""
    touching: dict[tuple[str, str], list[Access]] = {}
    for node in program.nodes:
        for cell in dict.fromkeys((*node.writes, *node.reads)):
            every = touching.setdefault(place_of(cell, buffers), [])
            writes = cell in node.writes
            if every and every[-1].joins(node, cell, writes) and every[-1].last is not node:
                every[-1] = replace(every[-1], last=node)
            else:
                every.append(Access(node, node, cell, writes))
    return iter(touching.values())


def conflicts(program: Ordered, buffers: Mapping[str, Buffer]) -> Iterator[Conflict]:
    """The pairs of accesses that some order of the streams might exchange.

    Of two events on one stream that are issued as they are printed there is nothing to ask; nor of what the host does
    as it issues, unless it is issued elsewhere than printed.
    """
    for every in accesses(program, buffers):
        for one, other in combinations(every, 2):
            moved = any(map(_moved, (one.first, other.first)))
            if not (one.writes or other.writes) or (one.first.stream == other.first.stream and not moved):
                continue
            for early, late in ((one, other), (other, one)):
                if (early.last.stream != HOST or moved) and early.last is not late.first:
                    yield Conflict(RACE, early.cell, early.last, late.first, late.cell)


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
                    if (other.place, other.of) != (cell.place, cell.of) or ring:
                        yield Conflict(ALIAS, other, x, y, cell)


def misplaced(program: Ordered) -> Iterator[Conflict]:
    """(the last write of a value, a read) where the read looks in another place than that in which the value lies.

    In printed order a value lies at its own place, in a buffer, or in both, as the last write of it and the copies
    behind that say. A buffer holds it until its loop's turn ends. It holds for all sizes: each turn of a loop is looked
    at from what all turns before leave.
    """
    where: dict[tuple[str, str], frozenset[str]] = {}
    last: dict[tuple[str, str], Node] = {}
    body: tuple[int, ...] = ()
    before = ""
    once = list(_turns(program.nodes, 0))
    for node, again in (*once, *once):
        if node.path[:-1] != body or again != before:
            body, before = node.path[:-1], again
            where = {value: found & {""} for value, found in where.items()}
        for cell in _of_turn(node.reads, again):
            value, place = (cell.holder, cell.of or cell.name), cell.name if cell.of else ""
            if place not in where.get(value, frozenset({""})):
                yield Conflict(ALIAS, cell, last.get(value, node), node, cell)
        for cell in _of_turn(node.writes, again):
            value, place = (cell.holder, cell.of or cell.name), cell.name if cell.of else ""
            copied = node.event.verb == COPY
            where[value] = where.get(value, frozenset({""})) | {place} if copied else frozenset({place})
            last[value] = node


def _turns(nodes: Sequence[Node], depth: int) -> Iterator[tuple[Node, str]]:
    """The nodes in printed order, each loop's twice; with the unit, if any, whose loop then turns a second time."""
    for _, run in groupby(nodes, lambda n: n.path[depth]):
        inner = list(run)
        if len(inner[0].path) == depth + 1:
            yield from ((node, "") for node in inner)
            continue
        turned = list(_turns(inner, depth + 1))
        yield from turned
        name = inner[0].loops[depth].name
        yield from ((node, again if name == MICROBATCH else name) for node, again in turned)


def _of_turn(cells: Sequence[Cell], again: str) -> Iterator[Cell]:
    """The cells that a second turn of a unit's loop touches anew: not those of which each instance has its own."""
    return (cell for cell in cells if not again or cell.unit != again)


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

    def race(self, asked: Conflict, waits: int = 0) -> list[Term]:
        """That two accesses touch one slot, and nothing lets the one that is printed later wait for the other.

        With `waits`, no path of so many waits: what has no model then has none.
        """
        x, y = asked.first, asked.second
        front = self.frontier
        a, b = front.point(x, FIRST), front.point(y, SECOND)
        ended = [front.has_ended(x, a, up_to) for up_to in front.before(y, x.stream, waits)]
        return [front.inside(x, a), front.inside(y, b), less(front.printed(x, a), front.printed(y, b)),
                self.slots.same((x, asked.cell, a), (y, asked.other, b)), *map(not_, ended)]

    def alias(self, asked: Conflict) -> list[Term]:
        """That a read finds, in printed order, what was written for another value, and nothing wrote its own since."""
        x, y = asked.first, asked.second
        front = self.frontier
        a, b = front.point(x, FIRST), front.point(y, SECOND)
        cell, other = asked.other, asked.cell
        fresh = []
        for node in self.program.nodes:
            mine = (cell.place, cell.of)
            written, read = ({(c.place, c.of) for c in cells} for cells in (node.writes, node.reads))
            if mine in written - read:
                fresh += [and_(guard, less(front.printed(x, a), front.printed(node, at)),
                               less(front.printed(node, at), front.printed(y, b)))
                          for guard, at in self._own(node, y, cell, b)]
        different = [YES] if (other.place, other.of) != (cell.place, cell.of) else [self._other_turn(x, y, a, b)]
        return [front.inside(x, a), front.inside(y, b), less(front.printed(x, a), front.printed(y, b)),
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

    def fails(self, asked: Conflict, waits: int = 0) -> list[Term]:
        """What has to hold, beside what is known of sizes, for an obligation to fail for one pair."""
        terms = self.race(asked, waits) if asked.obligation == RACE else self.alias(asked)
        return [z3.simplify(t) for t in terms]

    def shortest(self, asked: Conflict) -> tuple[list[Term], Reply]:
        """The question with the shortest paths of waits that answer it, and the answer: most pairs need one wait."""
        for waits in (1, 2, 0) if asked.obligation == RACE else (0,):
            terms = self.fails(asked, waits)
            if any(z3.is_false(t) for t in terms):
                return terms, Reply(UNSAT)
            reply = PROCESS.ask([*self.known(), *terms], model=False)
            if reply.status == UNSAT:
                break
        return terms, reply

    def answer(self, asked: Conflict) -> Found | None:
        """None where no model exists; else sizes and points, or why the question is open."""
        terms, reply = self.shortest(asked)
        if reply.status == UNSAT:
            return None
        simple = [*self.known(), *terms]
        front = self.frontier
        a, b = front.point(asked.first, FIRST), front.point(asked.second, SECOND)
        for largest in SMALL if reply.status == SAT else ():
            small = [*(size <= largest for size in (*front.sizes.values(), front.slots)), a[0] <= 1, b[0] <= 1]
            if (near := PROCESS.ask([*simple, *small])).status == SAT:
                reply = near
                break
        else:
            reply = PROCESS.ask(simple) if reply.status == SAT else reply
        if reply.status != SAT:
            return Found(asked, {}, 0, (), (), reply.reason or "the solver gave no answer")
        model: Mapping[str, Any] = reply.model
        value = {name: model.get(f"size.{name}", 1) for name in front.sizes}
        return Found(asked, value, model.get("size.K", 1), tuple(model.get(str(t), 0) for t in a),
                     tuple(model.get(str(t), 0) for t in b))


def _as_printed(node: Node) -> Node:
    return replace(node, event=replace(node.event, ahead=0, behind=""), issue=node.path)


def asked(questions: Questions, obligation: str) -> list[Conflict]:
    """The pairs of which an obligation speaks."""
    return list((conflicts if obligation == RACE else aliased)(questions.program, questions.buffers))


def ask(program: Ordered, obligation: str) -> Asked:
    """Every question of one obligation about a program."""
    start = time.perf_counter()
    questions = Questions(program)
    pairs = asked(questions, obligation)
    found, left = list[Found](), list[Found]()
    if obligation == ALIAS:
        astray = dict.fromkeys(misplaced(program))
        found += [Found(pair, dict.fromkeys(questions.frontier.sizes, 1), 1, (0,), (1,)) for pair in astray]
        pairs += [pair for pair in astray if pair not in pairs]
    for conflict in pairs:
        got = None if any(f.conflict == conflict for f in found) else questions.answer(conflict)
        if got is not None:
            (left if got.reason else found).append(got)
    return Asked(len(pairs), tuple(found), tuple(left), time.perf_counter() - start)


def formulas(program: Ordered, obligation: str) -> tuple[list[Term], list[tuple[str, Term]]]:
    """(what is known of the sizes, each way in which the obligation can fail, in words and as a formula)."""
    questions = Questions(program)
    found = [(pair, and_(questions.shortest(pair)[0])) for pair in asked(questions, obligation)]
    found += [(pair, YES) for pair in dict.fromkeys(misplaced(program))] if obligation == ALIAS else []
    return questions.known(), [(f"1 instance: {told(pair)}", formula) for pair, formula in found]


def told(pair: Conflict) -> str:
    """A pair in words."""
    if pair.obligation == ALIAS:
        return f"{pair.second} finds in {pair.other} what {pair.first} wrote for another value"
    return f"{pair.second} may begin before {pair.first} has ended, and both touch {pair.cell}"
