"""A program with streams at one size, as a device runs it: real slots, and any order that the streams allow.

Every instance of every event is written down as the host issues it. It has to wait for the one before it on its stream,
for what it waits for by name, for what a join before it on its stream covers, and for what the host did before; nothing
else orders. A run takes any instance that waits for nothing more, by chance. What an instance writes is told apart by
its name and its turn; what it reads must be what it reads in the program without streams, in which each value has a
place of its own and events run as they are printed. A race shows as a read that depends on the chance, two values in
one slot as a read that is wrong in printed order, too.

It shares with the prover what events read and write, which loops two events are both in, and over which events a block
lives; of how the prover decides it shares nothing.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from placealg.step.event import MICROBATCH, takes_part
from placealg.step.instances import Cell, Node, Ordered, lifetimes, shared, touched
from placealg.step.order import COPY, HOST, JOIN, ORDERING
from placealg.strategy.buffers import Buffer

Name = tuple[str, tuple[int, ...]]
"""The path of an event, and its step and turns."""

Slot = tuple[str, str, int]
"""(holder, value or buffer, number)."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A read that found what another instance wrote, or nothing (None), in place of `want`."""

    reader: Name
    cell: Cell
    got: Name | None
    want: Name | None


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to one slot of which one writes: `second` is printed later, and may begin before `first` ended."""

    first: Name
    second: Name
    cell: Cell


@dataclass
class Instance:
    """One event of one turn: the slots that it reads and writes, and the instances that have to have ended before."""

    node: Node
    turns: tuple[int, ...]
    after: set[int] = field(default_factory=set)
    reads: list[tuple[Cell, Slot]] = field(default_factory=list)
    writes: list[tuple[Cell, Slot]] = field(default_factory=list)

    @property
    def name(self) -> Name:
        """Its event and its turns."""
        return self.node.name, self.turns


class Unrolled:
    """A program at one size: `sizes` by count of a loop, `slots` of a ring of K, so many steps.

    Each run of a loop begins a ring with its first slot, and an allocator gives out again the block that was freed
    last; with `chance` a ring begins anywhere, and an allocator gives any block that is free, or a new one.
    """

    def __init__(self, program: Ordered, sizes: Mapping[str, int], slots: int = 1, steps: int = 2,
                 chance: random.Random | None = None) -> None:
        self.program, self.sizes, self.slots = program, sizes, slots
        self.buffers = program.reference.buffers
        self.copied = {n.event.group for n in program.nodes if n.event.verb == "gather"}
        listed = [Instance(node, turns) for node in program.nodes for turns in self._turns(node, steps)]
        self.printed = sorted(listed, key=lambda i: _key(i.node.path, i.turns))
        early = {id(i): (*i.turns[:-1], i.turns[-1] - i.node.ahead) for i in listed}
        self.issued = sorted(self.printed, key=lambda i: _key(i.node.issue, early[id(i)]))
        self._place(chance)
        self._order()
        self.want = dict(self._expected())

    def _turns(self, node: Node, steps: int) -> Iterator[tuple[int, ...]]:
        ranges = [range(self.sizes[str(loop.count)]) for loop in node.loops]
        for turns in itertools.product(range(steps), *ranges):
            if node.event.at and node.loops and node.loops[0].name == MICROBATCH:
                last = ranges[0].stop - 1
                where = "only" if not last else {0: "first", last: "last"}.get(turns[1], "middle")
                if not takes_part(node.event.at, where):
                    continue
            yield turns

    def _layer(self, instance: Instance, cell: Cell) -> int:
        for depth, loop in enumerate(instance.node.loops):
            if loop.name == cell.unit:
                turn = instance.turns[depth + 1]
                own = self.sizes[str(loop.count)] - 1 - turn if loop.reverse else turn
                return own - 1 if cell.back else own
        return 0

    def _buffer(self, cell: Cell) -> Buffer | None:
        return self.buffers.get(cell.name)

    def _place(self, chance: random.Random | None) -> None:
        """The slot of each access; the allocator waits for what the streams do with a block on which it is recorded."""
        free: dict[tuple[str, str], list[tuple[Slot, list[int]]]] = defaultdict(list)
        held: dict[tuple[str, str], dict[tuple[int, ...], Slot]] = defaultdict(dict)
        users: dict[Slot, list[int]] = defaultdict(list)
        counts: dict[tuple[str, str], int] = defaultdict(int)
        begins: dict[tuple[Any, ...], int] = {}
        lives = {cell.place: lifetimes(self.program, cell.place) for node in self.program.nodes
                 for cell in (*node.reads, *node.writes) if (b := self._buffer(cell)) and b.kind == "alloc"}
        ends = {(life.freed.name, place): life for place, found in lives.items() for life in found.values()}
        for number, instance in enumerate(self.issued):
            node = instance.node
            for cells, out, writing in ((node.reads, instance.reads, False), (node.writes, instance.writes, True)):
                for cell in cells:
                    buffer = self._buffer(cell)
                    if buffer and buffer.kind == "alloc":
                        mine = (lives[cell.place][node.name].number, *instance.turns)
                        if mine not in held[cell.place]:
                            there = free[cell.place]
                            if writing and there and (chance is None or chance.random() < 0.7):
                                slot, ended = there.pop(-1 if chance is None else chance.randrange(len(there)))
                                instance.after.update(ended)
                            else:
                                counts[cell.place] += 1
                                slot = (*cell.place, counts[cell.place])
                            held[cell.place][mine] = slot
                            users[slot] = []
                        slot = held[cell.place][mine]
                        users[slot].append(number)
                    elif buffer and buffer.kind == "ring":
                        size = self.slots if isinstance(buffer.size, str) else buffer.size
                        visit = (cell.place, node.path[:-1], instance.turns[:-1])
                        if chance is not None and visit not in begins:
                            begins[visit] = chance.randrange(size)
                        turn = instance.turns[-1] + begins.get(visit, 0)
                        slot = (*cell.place, turn % size if node.units and cell.unit else 0)
                    elif buffer:
                        slot = (cell.holder, buffer.alias, self._layer(instance, cell))
                    else:
                        slot = (*cell.place, self._layer(instance, cell))
                    out.append((cell, slot))
            for place in lives:
                life = ends.get((node.name, place))
                if life is None or (life.number, *instance.turns) not in held[place]:
                    continue
                slot = held[place].pop((life.number, *instance.turns))
                recorded = self.buffers[place[1]].recorded
                using = [n for n in users[slot] if self.issued[n].node.stream in recorded]
                if chance is not None or not using:  # the host gives a block away once it saw that these have ended
                    free[place].append((slot, using))

    def _order(self) -> None:
        """What each instance waits for."""
        numbers = {i.name: n for n, i in enumerate(self.issued)}
        last: dict[str, int] = {}
        host: int | None = None
        for number, instance in enumerate(self.issued):
            node = instance.node
            if host is not None:
                instance.after.add(host)
            if node.stream in last:
                instance.after.add(last[node.stream])
            for wait in node.event.waits:
                there = self._waited(node, wait.on, wait.turn, wait.step, instance.turns)
                found = numbers.get((wait.on, there))
                if found is not None and found < number:
                    instance.after.add(found)
            if node.event.verb == JOIN and (of := node.event.of) in last:
                instance.after.add(last[of])
            last[node.stream] = number
            if node.stream == HOST:
                host = number

    def _waited(self, node: Node, on: str, turn: int | str, step: int, turns: tuple[int, ...]) -> tuple[int, ...]:
        other = self.program.node(on)
        back = -self.slots if isinstance(turn, str) else turn
        both = shared(node, other)
        found = list(turns[:both + 1])
        if back:
            found[-1] += back
        elif step and both and other.loops[0].name == MICROBATCH:
            found[1] = self.sizes[str(other.loops[0].count)] - 1
        for loop in other.loops[both:]:
            size = self.sizes[str(loop.count)]
            at = next((k for k, own in enumerate(node.loops) if own.name == loop.name != MICROBATCH), None)
            if at is None:
                found.append(size - 1)
            else:
                mine = turns[at + 1]
                found.append(mine if node.loops[at].reverse == loop.reverse else size - 1 - mine)
        return (found[0] + step, *found[1:])

    def _expected(self) -> Iterator[tuple[Name, list[Name | None]]]:
        """What each instance reads in the program without streams."""
        memory: dict[Slot, Name] = {}
        plain: dict[str, tuple[tuple[Cell, ...], tuple[Cell, ...]]] = {}
        for instance in self.printed:
            node = instance.node
            if node.event.verb in ORDERING:
                continue
            if node.name not in plain:
                unit = node.units[0].name if node.units else ""
                plain[node.name] = touched(replace(node.event, into="", out_of=""), self.program.reference, self.copied,
                                           unit)
            read, written = plain[node.name]
            yield instance.name, [memory.get((*c.place, self._layer(instance, c))) for c in read]
            for cell in written:
                memory[*cell.place, self._layer(instance, cell)] = instance.name

    def run(self, chance: random.Random | None = None) -> Wrong | None:
        """The first read that is wrong in an order that the streams allow; in printed order without `chance`."""
        memory: dict[Slot, Name | None] = {}
        for instance in self.printed if chance is None else self._any(chance):
            read = [memory.get(slot) for _, slot in instance.reads]
            if instance.node.event.verb not in ORDERING:
                for (cell, _), got, want in zip(instance.reads, read, self.want[instance.name], strict=True):
                    if got != want:
                        return Wrong(instance.name, cell, got, want)
            wrote = read[0] if instance.node.event.verb == COPY else instance.name
            for _, slot in instance.writes:
                memory[slot] = wrote
        return None

    def _any(self, chance: random.Random) -> Iterator[Instance]:
        """The instances in an order that the streams allow: at each turn a stream is chosen whose next one is ready."""
        left = [len(i.after) for i in self.issued]
        follow: dict[int, list[int]] = defaultdict(list)
        for number, instance in enumerate(self.issued):
            for before in instance.after:
                follow[before].append(number)
        ready = [n for n, count in enumerate(left) if not count]
        favourite = chance.choice(self.program.streams)
        while ready:
            if chance.random() < 0.02:
                favourite = chance.choice(self.program.streams)
            liked = [k for k, n in enumerate(ready) if self.issued[n].node.stream == favourite]
            likes = liked and chance.random() < 0.9
            number = ready.pop(chance.choice(liked) if likes else chance.randrange(len(ready)))
            yield self.issued[number]
            for later in follow[number]:
                left[later] -= 1
                if not left[later]:
                    ready.append(later)

    def races(self) -> Iterator[Race]:
        """Every pair of accesses to one slot that is not ordered as it is printed, by who has ended before whom."""
        before: list[int] = []
        for instance in self.issued:
            seen = 0
            for early in instance.after:
                seen |= before[early] | 1 << early
            before.append(seen)
        at = {i.name: n for n, i in enumerate(self.issued)}
        touching: dict[Slot, list[tuple[Instance, Cell, bool]]] = defaultdict(list)
        for instance in self.printed:
            for cell, slot in (*instance.writes, *instance.reads):
                touching[slot].append((instance, cell, (cell, slot) in instance.writes))
        for every in touching.values():
            for (one, cell, writes), (other, _, also) in itertools.combinations(every, 2):
                if (writes or also) and one is not other and not before[at[other.name]] >> at[one.name] & 1:
                    yield Race(one.name, other.name, cell)


def _key(path: tuple[int, ...], turns: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(itertools.chain(*zip(turns, path, strict=True)))

