"""A step program as a program: what each event does, in the slots that it names, beside the single device's.

What is printed of an event is what it does to each rank, whatever was intended: a slot is read that another event has
to have filled, and a line is claimed if it makes the same of the values that the slots are meant to have. Where a state
rests, and how data arrive, is the strategy's word.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import methodcaller
from typing import Any, Self, TypeVar

from placealg.arith import Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus.places import loss_dim
from placealg.prover.kernel.fields import check_fields
from placealg.prover.kernel.instructions import MICRO, Cell, number_of
from placealg.prover.kernel.loop_ends import apart
from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.parameters import Parameters, State
from placealg.prover.kernel.program import (
    Block,
    Free,
    Held,
    Last,
    Layers,
    Mesh,
    Microbatches,
    Moves,
    Number,
    Once,
    Pair,
    Program,
    Read,
    Run,
    Slot,
    Some,
    Zero,
)
from placealg.prover.kernel.single import (
    NORM,
    SKIP,
    TOKENS,
    counted_alike,
    counted_over,
    each_counted,
    summed_by,
    targets,
)
from placealg.prover.kernel.stages import one_after_the_other
from placealg.prover.kernel.symbols import ROOT
from placealg.step.event import COUNTS_OF_SAMPLES, MICROBATCH, Event
from placealg.step.lower import lowered
from placealg.step.program import EventLoop, Node, Step
from placealg.step.verbs import COUNTERS
from placealg.step.versions import origins

T = TypeVar("T")


def printed(step: Step) -> Program:
    """A step as a program beside its single device; raises Outside."""
    return _Printer(numbered(apart(one_after_the_other(lowered(step))))).program()


def numbered(step: Step) -> Step:
    """The step with its microbatches as a dim of their own, where each has tokens of its own to divide by."""
    reference, graph = step.reference, step.reference.graph
    if reference.weighting != "sample_mean" and (reference.weighting != "microbatch_mean" or counted_alike(reference)):
        return step
    dims = FrozenMap({MICROBATCH: Monomial.of("m")})
    split = {name: replace(t, dims=dims.plus(t.dims)) for name, t in graph.tensors.items() if "batch" in t.dims}
    return replace(step, reference=replace(reference, graph=replace(graph, tensors=graph.tensors.plus(split))))


def without_frees(printed: Any) -> Any:
    """Something printed without what it frees."""
    if isinstance(printed, (Once, Microbatches)):
        return printed.but(blocks=without_frees(printed.blocks))
    if isinstance(printed, (Run, Layers)):
        return printed.but(instructions=tuple(i for i in printed.instructions if not isinstance(i, Free)))
    return tuple(map(without_frees, printed))


def phase_of(node: Node) -> str:
    """The phase of an event, or of those of a loop."""
    return node.phase if isinstance(node, Event) else phase_of(node.body[0])


def touches(event: Event, made: Event) -> bool:
    """Whether an event reads, makes or frees the copy of a tensor that another one makes, or one that derives from it.

    An event that frees without a version, a region or what an op made, may free any copy.
    """
    if event.verb == "free" and event.tensor != made.tensor:
        return not event.version
    read = [(v.tensor, v.label) for v in event.operands] or [(event.tensor, event.version)]
    return any(name == made.tensor and made.version in origins(label) for name, label in read)


class _Printer(Parameters):
    """The loops and phases of a program."""

    settled = True
    """Whether a step is printed from where states rest; else to find out where they do."""

    def instances(self, node: EventLoop) -> None:
        """A loop over the instances of a unit, with what it hands on."""
        events = [n for n in node.body if isinstance(n, Event)]
        loop = next((x for x in self.graph.loops if x.unit == node.name), None)
        if loop is None or len(events) != len(node.body):
            raise Outside(node.name, "a loop in a loop")
        self.prepare(events)
        first: Cell
        assigns = [e for e in events if e.verb == "assign" and e.tensor == loop.slot]
        if len(assigns) > 1 or any(e.on_gradient != node.reverse for e in assigns):
            raise Outside(assigns[0].path, "it is handed on twice, or the other way")
        handing = assigns[0] if assigns else None
        entered = events.index(handing) if handing else 0
        sliced = [e for k, e in enumerate(events) if e.verb == "slice" and e.tensor in self.alone.data and (
            k < entered or not any(touches(other, e) for other in events[:k]))]
        for self.event in sliced:  # the same in each instance: it is there before the loop, and behind it
            self.on_event(self.event)
        entering = self.alone.entering[node.name][node.reverse]
        last = Last(self.symbols.unit(node.name))
        carried, slot = [], self.slot("handed on", node.name, str(node.reverse))
        entry, here, behind, end = self.stages.moves(node.name)
        if handing is not None:
            self.begin("handed on", node.name)
            if node.reverse:
                first = self.handed(self.at_stage(end, self.gradient(loop.last)), Pair(entering, last), slot)
            else:
                label = handing.operands[0].label if handing.operands else ""
                first = self.handed(self.at_stage(entry, self.read(loop.first, label)), Pair(entering, "First"), slot)
            carried = [Pair(number_of(slot), entering)]
        self.flush()
        self.scope = node.name
        staged = bool(self.stages.axis)
        inside = outside = dict(first.split) if handing is not None else {}
        if staged:  # how what is handed on arrives at an instance, and what leaves the loop
            inside = {**inside, self.stages.axis: behind if node.reverse else here}
            outside = {**outside, self.stages.axis: entry if node.reverse else end}
        self.handed_over = self.leaving = None
        self.passed = set()
        if handing is not None and node.reverse:
            self.grads[node.name, loop.last, ""] = [Cell(slot, Pair(entering, "Next"), inside)]
        for e in (e for e in events if e not in sliced):
            self.event = e
            if e is not handing:
                self.on_event(e)
                continue
            check_fields(e)
            self.begin(e.value)
            if staged and node.reverse:
                self.handed_over = self.gradient(loop.slot)
            elif staged:  # what is not received is not there
                self.handed_over = Cell(slot, Pair(entering, "This"), inside)
                self.keep(loop.slot, "", self.nothing("nothing", loop.slot))
            elif node.reverse:
                self.handed(self.gradient(loop.slot), Pair(entering, "This"), slot)
            else:
                self.keep(loop.slot, "", self.copied(Cell(slot, Pair(entering, "This"), inside),
                                                     self.slot("copy", loop.slot, "")))
        if handing is not None and (staged or not node.reverse):
            self.begin("handed", node.name)
            left = self.read(loop.last) if not staged else self.leaving or self.nothing("nothing sent")
            self.handed(left, Pair(entering, "This" if node.reverse else "Next"), slot)
        self.loop(node.name, node.reverse, carried)
        if handing is not None and node.reverse:
            label = handing.operands[0].label if handing.operands else ""
            self.grads.setdefault(("", loop.first, label), []).append(Cell(slot, Pair(entering, "First"), outside))
        elif handing is not None:
            self.keep(loop.last, "", Cell(slot, Pair(entering, last), outside))

    def prepare(self, events: Iterable[Event]) -> None:
        """Whatever stands before a loop that its events need."""
        if any(e.verb == "clip" for e in events) and self.coefficient is None:
            total = self.total_of(NORM)
            self.begin("clip")
            self.coefficient = self.row("clip", (), [total])
        if any(e.verb == "update" and e.value != "rng" for e in events):
            self.flag()

    def node(self, node: Node) -> None:
        """An event, or a loop over instances."""
        if isinstance(node, EventLoop):
            self.instances(node)
            return
        self.event = node
        self.prepare([node])
        self.on_event(node)

    def on_event(self, e: Event) -> None:
        """Whatever an event does."""
        check_fields(e)
        if e.group:
            self.on_group(e)
        elif e.value in (NORM, SKIP) and e.verb == "all_reduce":
            total = self.total_of(e.value)
            self.begin(e.value, "whole")
            self.totals[e.value] = self.sent("all_reduce", e.axes, "", "", total)
        elif e.value == "loss":
            if e.verb == "compute":
                if [v.tensor for v in e.operands] != list(self.graph.ops[-1].inputs):
                    raise Outside(e.path, f"reads = {e.reads}")
                self.begin("loss", e.unit)
                for v in e.operands:
                    self.summed_by_a_loss(self.sent_from(v.tensor, v.label))
                self.divided[e.unit] = {}
                self.divided_by.pop(e.unit, None)
                for name in COUNTS_OF_SAMPLES:
                    self.divided_by.pop(name, None)
            if e.unit not in self.divided:
                raise Outside(e.path, "a loss that was not computed is divided")
            divided, by = self.divided[e.unit], dict(e.divisor.powers)
            for counter in self.reference.counters_of(e):
                count = self.count.get(counter)
                if counter not in self.counted and (count is None or
                                                    self.divided_by.setdefault(counter, count) != count):
                    raise Outside(e.path, "it is not divided by one count that was made")
            if e.unit in self.counted:
                counts = by.pop("count", 0)
                by |= {n: by.get(n, 0) + counts * power for n, power in self.counted[e.unit].items()}
            divided.update({name: divided.get(name, 0) + power for name, power in by.items()})
        elif e.value == "count":
            self.on_count(e)
        elif e.value in COUNTERS:
            self.on_counter(e)
        elif not e.on_tensor:
            raise Outside(e.path, f"{e.verb} of {e.value}")
        elif e.verb == "compute":
            self.compute(e)
        elif e.verb == "free":
            self.freed(e)
        else:
            self.move(e)

    def phase(self, *names: str) -> tuple[Block, ...]:
        """The blocks of phases outside of the loop over microbatches."""
        for node in self.step.tree(*names):
            self.node(node)
        self.flush()
        blocks, self.blocks = tuple(self.blocks), []
        return blocks

    def microbatches(self) -> tuple[Once | Microbatches, ...]:
        """The parts of a step: what stands before the loop over microbatches, the loop, what stands behind it."""
        parts: list[Once | Microbatches] = []
        for node in self.step.tree():
            if isinstance(node, EventLoop) and node.name == MICROBATCH:
                self.flush()
                parts.append(Once(tuple(self.blocks)))
                self.blocks = []
                before = self.fork()
                body = self.microbatch(node)
                parts.append(self.alike(before, methodcaller("microbatch", node), body, "a microbatch"))
            elif isinstance(node, Event) and (node.value, node.verb) == ("count", "compute") and \
                    not self.of_numbers(node):
                check_fields(node)
                parts.extend(self.counted_before(node))
            else:
                self.node(node)
        self.flush()
        parts.append(Once(tuple(self.blocks)))
        self.blocks = []
        return tuple(parts)

    def microbatch(self, loop: EventLoop) -> Microbatches:
        """The loop over microbatches, as the first of them runs."""
        self.looping, self.counted_here = True, set()
        self.read_data()
        found, phase = self.there(), ""
        for inner in loop.body:
            began, phase = phase, phase_of(inner)
            self.left_alone(found, began != phase)
            self.node(inner)
        self.left_alone(found, True)
        self.flush()
        self.looping = False
        blocks, self.blocks = tuple(self.blocks), []
        return Microbatches(tuple(self.sums), blocks)

    def left_alone(self, found: Mapping[State, tuple[Slot, ...]], item: bool) -> None:
        """Raise Outside where an item of a stage has ended and leaves other copies of parameters than it found."""
        if self.stages.axis and item and self.there() != found:
            raise Outside("", "a stage's item leaves other copies than it found")

    def alike(self, before: Self, printed_by: Callable[[Self], T], printed: T, what: str) -> T:
        """What runs again, as it is printed where it finds the copies that it left; else raise Outside.

        It may free these, too; else it has to be printed as it was.
        """
        if before.there() == self.there() or not self.settled:
            return printed
        before.copies = {**before.copies, **{
            state: tuple(replace(cell, value=self.kept_as(state)) for cell in cells)
            for state, cells in self.copies.items() if state[0] in self.alone.kept}}
        again = printed_by(before)
        if before.there() != self.there() or without_frees(again) != without_frees(printed):
            raise Outside("", f"what {what} leaves of the states is not what it found")
        return again

    def of_numbers(self, e: Event) -> bool:
        """Whether a count is a product of numbers: of tokens, where all ranks have equally many in each microbatch."""
        return counted_alike(self.reference, e.unit)

    def on_count(self, e: Event) -> None:
        """What a rank has is counted in a microbatch, or in all; or counts of ranks are added up."""
        self.begin("count", e.unit, *e.axes)
        if self.of_numbers(e):
            if e.verb == "compute":
                self.counted[e.unit] = {"tokens": 1, "m": 0 if self.looping else 1}
            counted = self.counted.get(e.unit, {})
            self.counted[e.unit] = {**counted, **{a: counted.get(a, 0) + 1 for a in e.axes}}
        elif e.verb == "compute" and self.looping and MICROBATCH in self.graph.dims:
            self.count[e.unit] = self.einsum([self.each_of(e)], counted_over(self.graph, e.unit))
            self.counted_here.add(e.unit)
        elif e.verb == "all_reduce" and e.unit in self.count and self.looping == (e.unit in self.counted_here):
            self.count[e.unit] = self.sent("all_reduce", e.axes, "", "", self.count[e.unit])
        else:
            raise Outside(e.path, "a count of other tokens than the single device's")

    def each_of(self, e: Event) -> Cell:
        """What a count sums, of what is a rank's own: along each axis that splits the loss by a dim of the data."""
        names, graph = summed_by(self.graph, e.unit), self.graph
        if not {*names} <= self.alone.data.keys() or e.reads != (() if targets(graph) == names[0] else names[:1]):
            raise Outside(e.path, "a count of what is no token's loss")
        read = []
        for name in names:
            cell = self.read(name)
            for axis in self.reference.data_axes:
                if (dim := loss_dim(self.reference, axis)) in graph.tensors[name].dims:
                    cell = self.sent("slice", (axis,), "", dim, cell)
            read.append(cell)
        return each_counted(self, graph, e.unit, read)

    def counted_before(self, e: Event) -> tuple[Once | Microbatches, ...]:
        """A rank counts its own tokens, or samples, in all microbatches."""
        self.begin("count", e.unit)
        whole = self.slot("count", e.unit)
        self.pending.append(Zero(whole))
        self.flush()
        before = Once(tuple(self.blocks))
        self.blocks, self.event = [], e
        there = set(self.live), dict(self.cells)
        self.read_data()
        self.begin("count", e.unit)
        part = self.einsum([self.each_of(e)], counted_over(self.graph, e.unit))
        self.flush()
        self.count[e.unit] = Cell(whole, part.value, {a: w for a, w in part.split.items() if a != MICRO})
        loop = Microbatches((Pair(part.slot, whole),), tuple(self.blocks))
        self.blocks, (self.live, self.cells) = [], there
        return before, loop

    def read_data(self) -> None:
        """What each microbatch begins with."""
        for name, number in self.alone.data.items():
            slot = self.slot("copy", name, "")
            self.pending.append(Read(number, slot))
            self.keep(name, "", Cell(slot, Pair(number, "First"), self.arrives(name)))

    def begins(self, name: str) -> dict[str, str]:
        """Where a weight is in the beginning: on rank 0 of the axes that do not split it."""
        split = self.split_of(name)
        return {**split, **{a: ROOT for a in self.axes if a != MICRO and a not in split}}

    def read_weights(self) -> None:
        """What a run begins with is in the slots of weights."""
        units: dict[str, list[str]] = {}
        for name in self.alone.kept["weight"]:
            units.setdefault(self.looped(name), []).append(name)
        for unit, names in units.items():
            self.scope = unit
            for name in names:
                number, split = self.alone.kept["weight"][name], self.begins(name)
                state = ("weight", "device", name)
                self.copies[state] = (Cell(self.place(state, split), self.named(number), split),)
                self.pending.append(Read(number, self.copies[state][0].slot))
            if unit:
                self.loop(unit, False, [])
            else:
                self.flush()

    def there(self) -> dict[State, tuple[Slot, ...]]:
        """Where states of parameters are: the slots of their copies."""
        return {state: tuple(c.slot for c in cells) for state, cells in self.copies.items()
                if state[0] in self.alone.kept}

    def come_to_rest(self, at: Mapping[State, tuple[Cell, ...]]) -> tuple[Block, ...]:
        """Keep of each state what a rank has of it at rest, and forget whatever it has besides."""
        for state, cells in at.items():
            found = self.copies.get(state, ())
            if not found or found[0].slot == cells[0].slot:
                self.copies[state] = found[:1]
                continue
            self.scope = self.looped(state[2])
            self.begin("rest", *state)
            left = found[0]
            for axis, way in cells[0].split.items():
                left = left if left.split.get(axis) == way else self.sent("slice", (axis,), "", way, left)
            self.copied(left, cells[0].slot)
            self.copies[state] = (replace(cells[0], value=left.value),)
            if self.scope:
                self.loop(self.scope, False, [])
        self.flush()
        blocks, self.blocks = tuple(self.blocks), []
        return blocks

    def same_as(self, kept: Mapping[State, tuple[Cell, ...]], what: str) -> None:
        """Raise Outside unless states are where they rest."""
        for state in kept.keys() | self.there().keys():
            if [c.slot for c in kept.get(state, ())] != [c.slot for c in self.copies.get(state, ())]:
                raise Outside("", f"the {state[0]} of {state[2]} is not behind {what} where it rests")

    def arrives(self, name: str) -> dict[str, str]:
        """How data lie: each microbatch has its own of the batch."""
        dims = self.graph.tensors[name].dims
        return {MICRO: MICROBATCH if MICROBATCH in dims else "batch"} if "batch" in dims else {}

    def at_rest(self, state: State, cells: tuple[Cell, ...]) -> tuple[Cell]:
        """A state as a step finds it."""
        value, _, name = state
        if len(cells) > 1 or value not in self.alone.kept:
            raise Outside("", f"the {value} of {name} rests in several copies")
        return (replace(cells[0], value=self.kept_as(state)),)

    def kept_as(self, state: State) -> Pair:
        """The value that a state has as a step begins."""
        return Pair(self.alone.kept[state[0]][state[2]], "This" if self.looped(state[2]) else "First")

    def held(self, name: str, number: Number, split: Mapping[str, str]) -> Held:
        """What is kept of a parameter, and how it lies."""
        unit = self.looped(name)
        return Held(number, Some(self.symbols.unit(unit)) if unit else None, self.kinds(split))

    def fork(self) -> Self:
        """A printer that has come as far, and goes on by itself; names of slots are those of both."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if name not in ("slots", "units") and isinstance(value, (dict, list, set)):
                setattr(other, name, value.copy())
        return other

    def besides(self, found: Mapping[State, tuple[Cell, ...]], kept: Mapping[State, tuple[Cell, ...]]) -> set[State]:
        """The states of which ranks have more than what rests of them."""
        return {s for s, cells in kept.items() if [(c.slot, c.bare) for c in found.get(s, cells)] != [
            (c.slot, True) for c in cells]}

    def saved(self, kept: Mapping[State, tuple[Cell, ...]], more: set[State], resumed: bool,
              ) -> tuple[tuple[Block, ...], tuple[Block, ...], set[State]]:
        """A save and a resume, where of some states ranks have more than what rests; and of which these leave more."""
        self.copies = {s: tuple(replace(c, bare=s not in more) for c in cells) for s, cells in kept.items()}
        save = self.phase("save")
        left = self.besides(self.copies, kept)
        save += self.come_to_rest(kept)
        self.same_as(kept, "a save")
        if not resumed:
            return save, (), left
        self.copies = {}
        resume = self.phase("resume")
        left |= self.besides(self.copies, kept)
        resume += self.come_to_rest(kept)
        self.same_as(kept, "a resume")
        return save, resume, left

    def program(self) -> Program:
        """The whole program."""
        self.read_weights()
        init = self.phase("init")
        begun = dict(self.copies)
        self.copies = {state: self.at_rest(state, cells) for state, cells in self.copies.items()}
        behind = self.fork()
        behind.settled = False
        step = behind.microbatches()
        if behind.there() != self.there():
            init += self.come_to_rest({s: behind.copies[s][:1] for s in self.there() if s in behind.copies})
            self.copies = {state: self.at_rest(state, cells) for state, cells in self.copies.items()}
            behind = self.fork()
            step = behind.microbatches()
            step = behind.alike(self.fork(), methodcaller("microbatches"), step, "a step")
        kept, resumed = dict(self.copies), any(self.step.tree("resume"))
        stale = {s for s in kept if any(c.value is None or not c.bare for c in behind.copies.get(s, ()))}
        again = {s: tuple(c for c in cells if c.slot not in {k.slot for k in behind.copies.get(s, ())[1:]})
                 or kept.get(s, ()) for s, cells in begun.items()}  # what a step gathers last is as good as its own
        start, more = self.fork(), self.besides(again, kept) | stale
        save, resume, left = self.saved(kept, more, resumed)
        while left - more:  # what a save or a resume leaves, the next save finds
            more |= left
            vars(self).update(vars(start.fork()))
            save, resume, left = self.saved(kept, more, resumed)
        rest, given, disk = [], [], [cell.slot for cell in self.disk.values()]
        for (value, _, name), cells in kept.items():
            rest.append(Pair(cells[0].slot, self.held(name, self.alone.kept[value][name], cells[0].split)))
        for name, number in self.alone.kept["weight"].items():
            given.append(self.held(name, number, self.begins(name)))
        for name, number in self.alone.kept["moments"].items():
            given.append(self.held(name, number, self.split_of(name)))
        for name, number in self.alone.counters.items():
            held = Held(number, None, self.kinds({}))
            given.append(held)
            rest.append(Pair(self.counter(name).slot, held))
        if not resumed:  # a stop then loses nothing: the run is one that never stops
            disk = [pair.first for pair in rest]
        data = tuple(Held(number, None, self.kinds(self.arrives(name))) for name, number in self.alone.data.items())
        ways = self.symbols.ways
        mesh = Mesh(len(self.axes), tuple(ways[self.symbols.like[d]] for d in ways),
                    tuple(self.symbols.dims(self.symbols.touch.get(d, (d,))) for d in ways),
                    tuple(Pair(k, self.symbols.atom("m" if a == MICRO else a)) for a, k in self.axes.items()),
                    self.moving())
        return Program(mesh, self.ones(), self.alone.stretches, self.alone.states, self.alone.begins, tuple(given),
                       data, init, step, save, resume, tuple(disk), tuple(rest))

    def moving(self) -> tuple[Moves, ...]:
        """The stages of instances, where there are stages."""
        if not self.stages.axis:
            return ()
        return tuple(Moves(self.symbols.unit(unit), *(self.symbols.ways[w] for w in self.stages.moves(unit)))
                     for unit in self.stages.repeated)

    def ones(self) -> tuple[tuple[Pair, ...], ...]:
        """All tokens over those of all ranks in all microbatches: 1 where counts are equal."""
        if "equal_counts" not in self.reference.hypotheses:
            return ()
        per_rank = {"tokens": -1, "m": -1, **{a: -1 for a in self.reference.data_axes}}
        return (self.symbols.powers({TOKENS: 1, **per_rank}),)
