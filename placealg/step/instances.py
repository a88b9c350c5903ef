"""The program with its loops, as who follows its order reads it: where an event is issued, what memory it touches.

Read `order.py` first. A Node is an event in its loops; a Cell is what it reads or writes: a value, or a buffer, of one
holder. Of a value of a unit that repeats every instance has a cell of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.models.backward import GRAD
from placealg.models.graph import unit_of
from placealg.step.event import MICROBATCH, STEP_PHASES, Event, Reference
from placealg.step.graph import Storage, reads, writes
from placealg.step.order import COMPUTE, COPY, HOST, JOIN
from placealg.step.order import ordered as says_order
from placealg.step.program import EventLoop, Step
from placealg.step.program import Node as TreeNode

SHARD, GATHERED = "weight", "gathered"
"""Two storages of a weight that is gathered: as it rests, and the copy that is used."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the program: what it counts (`microbatch`, or a unit), how often it runs, and in which direction."""

    name: str
    count: Monomial
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A place in memory: a value or a buffer of one holder (a group, a unit, or a tensor, which holds itself).

    `unit` is the repeated unit of which each instance has one, "" if there is one alone. `back` says that an event
    touches that of the instance before its own. In a buffer lies what else would be at its own place, `of`.
    """

    holder: str
    name: str
    unit: str = ""
    back: bool = False
    of: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """What it is, whichever instance touches it."""
        return self.holder, self.name

    def __repr__(self) -> str:
        return " of ".join(p for p in (self.name, self.holder) if p)


@dataclass(frozen=True, slots=True)
class Node:
    """An event in its loops: `path` are its numbers in the bodies of the loops around it, outermost first.

    Numbers are `spread` apart. `issue` is the same where it is issued, which may be behind another event of its loop.
    """

    event: Event
    loops: tuple[Loop, ...]
    path: tuple[int, ...]
    issue: tuple[int, ...]
    stream: str
    reads: tuple[Cell, ...]
    writes: tuple[Cell, ...]
    spread: int = 1

    @property
    def name(self) -> str:
        """The path of the event."""
        return self.event.path

    @property
    def ahead(self) -> int:
        """The turns of the innermost loop by which it is issued earlier."""
        return self.event.ahead

    @property
    def units(self) -> tuple[Loop, ...]:
        """The loops of units around it: one, or none."""
        return tuple(loop for loop in self.loops if loop.name != MICROBATCH)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Ordered:
    """A program as what is ordered: its nodes in printed order, and by name."""

    reference: Reference
    nodes: tuple[Node, ...]
    by_name: dict[str, Node] = field(compare=False)

    def node(self, name: str) -> Node:
        """The node of the event with this path."""
        return self.by_name[name]

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams, in the order in which they are first used."""
        return tuple(dict.fromkeys(n.stream for n in self.nodes))


def ordered(step: Step) -> Ordered:
    """The program of one step with its loops; an InputError where what it says of order has no meaning.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.expression import parse_strategy
    >>> found = ordered(derive(parse_strategy("zero3"), abstract()))
    >>> [(n, n.loops[-1].name) for n in found.nodes if n.stream != "compute"], found.node("update.step.update").loops
    ([], ())
    """
    if step.order and step.reference.pipeline.axis:
        said = next(e for e in step.order if says_order(e))
        raise InputError(f"{said.path} speaks of streams, and in a pipeline the microbatches of a stage run in the "
                         "order of its schedule, of which no race is judged")
    listing = Step(step.reference, step.listing)
    copied = {e.group for e in step.events if e.verb == "gather"}
    made = list(_nodes(listing.tree(*STEP_PHASES), step, copied, (), ()))
    by_name = {node.name: node for node in made}
    nodes = tuple(_issued(node, by_name) for node in made)
    found = Ordered(step.reference, nodes, {node.name: node for node in nodes})
    for node in nodes:
        for wait in node.event.waits:
            if wait.on not in found.by_name:
                raise InputError(f"{node.name} waits for '{wait.on}', which is no event of a step", name=wait.on,
                                 valid=tuple(found.by_name))
            if wait.on == node.name and not wait.turn and not wait.step:
                raise InputError(f"{node.name} waits for itself")
            if wait.turn and not shared(node, found.node(wait.on)):
                raise InputError(f"{node.name} waits for an earlier turn of {wait.on}, and no loop has both")
    _check_names(found)
    return found


def _check_names(program: Ordered) -> None:
    """Raise InputError where a stream or a buffer is named that nothing uses: most often a typo."""
    streams = tuple(dict.fromkeys((COMPUTE, HOST, *(n.stream for n in program.nodes if n.event.verb != JOIN))))
    names = dict.fromkeys(c.name for n in program.nodes for c in (*n.writes, *n.reads))
    for node in program.nodes:
        event = node.event
        for stream in (event.value, event.of) if event.verb == JOIN else ():
            if stream and stream not in streams:
                raise InputError(f"{node.name}: no event runs on stream '{stream}'", name=stream, valid=streams)
        if event.into and all(c.name != event.into for c in node.writes):
            raise InputError(f"{node.name}: it makes nothing that a buffer could take; `into` is for what changes, "
                             "sends or copies one value of a parameter group")
        if event.out_of and all(c.name != event.out_of for c in node.reads):
            raise InputError(f"{node.name}: it reads nothing that could lie in a buffer; `out_of` is for what changes, "
                             "sends or copies one value of a parameter group")
    buffers = program.reference.buffers
    for name, buffer in buffers.items():
        if name not in names:
            raise InputError(f"[buffers] {name}: no event reads or writes a value or a buffer of that name", name=name,
                             valid=tuple(names))
        for stream in (buffer.home, *buffer.recorded) if buffer.kind == "alloc" else ():
            if stream not in streams:
                raise InputError(f"[buffers] {name}: no event runs on stream '{stream}'", name=stream, valid=streams)
        if buffer.kind == "with" and (buffer.alias not in names or buffer.alias in buffers):
            why = "has an entry of its own" if buffer.alias in buffers else "is no value or buffer of the program"
            raise InputError(f"[buffers] {name}: '{buffer.alias}' {why}", name=buffer.alias,
                             valid=tuple(n for n in names if n not in buffers))


def shared(one: Node, other: Node) -> int:
    """The number of loops, outermost first, that both nodes are in.

    Loops are the same if they stand at the same place: those of one unit in forward and in backward are two.
    """
    depth = 0
    while depth < min(len(one.loops), len(other.loops)) and one.path[depth] == other.path[depth]:
        depth += 1
    return depth


def _issued(node: Node, by_name: dict[str, Node]) -> Node:
    behind = node.event.behind
    if node.event.ahead and not node.loops:
        raise InputError(f"{node.name} is issued ahead, and is in no loop")
    if not behind:
        return node
    if behind not in by_name:
        raise InputError(f"{node.name} is issued behind '{behind}', which is no event of a step", name=behind,
                         valid=tuple(by_name))
    other = by_name[behind]
    if other.path[:-1] != node.path[:-1]:
        raise InputError(f"{node.name} is issued behind {behind}, which is in another loop")
    return replace(node, issue=(*node.path[:-1], other.path[-1] + 1 + node.path[-1] // node.spread))


def _nodes(tree: Sequence[TreeNode], step: Step, copied: set[str], path: tuple[int, ...],
           loops: tuple[Loop, ...]) -> Iterator[Node]:
    spread = len(tree) + 1
    for number, node in enumerate(tree):
        here = (*path, number * spread)  # between two numbers there is room for all that are issued behind the first
        if isinstance(node, EventLoop):
            yield from _nodes(node.body, step, copied, here, (*loops, Loop(node.name, node.count, node.reverse)))
        else:
            unit = next((loop.name for loop in loops if loop.name != MICROBATCH), "")
            read, written = touched(node, step.reference, copied, unit)
            stream = node.value if node.verb == JOIN else node.stream or COMPUTE
            yield Node(node, loops, here, here, stream, read, written, spread)


def touched(event: Event, reference: Reference, copied: set[str], unit: str) -> tuple[tuple[Cell, ...],
                                                                                     tuple[Cell, ...]]:
    """The cells that an event reads, and those that it writes; `copied` are the groups whose weight is gathered."""
    if event.verb == JOIN or event.verb == "free":  # the host gives memory back: no stream touches it
        return (), ()
    if event.verb == COPY:
        own = GATHERED if event.value == SHARD and event.group in copied else event.value
        cell = _cell(event, (event.group, own, ""), reference, unit)
        buffer = replace(cell, name=event.out_of or event.into, of=own)
        return ((buffer,), (cell,)) if event.out_of else ((cell,), (buffer,))

    def cells(storages: Iterator[Storage], write: bool) -> Iterator[Cell]:
        for holder, value, tier in storages:
            used = event.verb == "compute" or (event.verb == "gather" and write)
            name = GATHERED if value == SHARD and holder in copied and used else value
            name = f"{name} on the {tier}" if tier not in ("", "device") else name
            cell = _cell(event, (holder, name, value), reference, unit)
            mine = event.into if write else event.out_of
            if mine and value == (event.value if write else event.origin or event.value) and holder in (
                    event.group, event.unit, ""):
                cell = replace(cell, name=mine, of=name)
            yield cell

    read = tuple(dict.fromkeys(cells(reads(event, reference), write=False)))
    return read, tuple(dict.fromkeys(cells(writes(event, reference), write=True)))


def _cell(event: Event, storage: tuple[str, str, str], reference: Reference, unit: str) -> Cell:
    holder, name, _ = storage
    groups = {g.name: g.unit for g in reference.groups}
    repeated = {u.name for u in reference.units if u.repeated}
    home = groups.get(holder, holder) if holder else unit_of(name.partition("@")[0].removesuffix(GRAD)) if (
        "." in name) else ""
    of = home if home in repeated else ""
    slot = event.verb == "assign" and event.on_tensor and bool(of) and of == unit
    back = slot and name.partition("@")[0].removesuffix(GRAD) != event.tensor
    return Cell(holder, name, of, back)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One life of an allocator's block in the body of a loop: the node that takes it, and that which gives it back."""

    number: int
    made: Node
    freed: Node


def lifetimes(program: Ordered, place: tuple[str, str]) -> dict[str, Lifetime]:
    """Event -> the life of the block that it touches at a place: from its first use in a body to `free`, or its last.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.expression import parse_strategy
    >>> found = lifetimes(ordered(derive(parse_strategy("zero3"), abstract())), ("layer.weight", GATHERED))
    >>> [life.freed for life in found.values() if life.made.event.phase == "forward"]
    [forward.layer.weight.free[dp], forward.layer.weight.free[dp]]
    """
    open_: dict[tuple[int, ...], list[Node]] = {}
    closed: list[list[Node]] = []
    for node in program.nodes:
        body = node.path[:-1]
        if node.event.verb == "free":
            mine = (node.event.group, GATHERED if node.event.value == SHARD else node.event.value) == place
            if mine and body in open_:
                closed.append([*open_.pop(body), node])
        elif any(cell.place == place for cell in (*node.reads, *node.writes)):
            open_.setdefault(body, []).append(node)
    closed += open_.values()
    return {node.name: Lifetime(number, nodes[0], nodes[-1])
            for number, nodes in enumerate(closed) for node in nodes if node.event.verb != "free"}
