"""Instructions of a program as they are written, one after the other, each with the line that it claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.program import (
    Add,
    AllGather,
    AllReduce,
    AllToAll,
    Block,
    Do,
    Each,
    Einsum,
    Full,
    Instruction,
    Kind,
    Layers,
    Layout,
    Number,
    Only,
    Pair,
    Powers,
    ReduceScatter,
    Rename,
    Row,
    Run,
    SAdd,
    Scale,
    SEinsum,
    Send,
    Shard,
    Shared,
    Single,
    Slice,
    Slot,
    Some,
    SRename,
    SRow,
    SScale,
)
from placealg.prover.kernel.program import Op as Operation
from placealg.prover.kernel.single import SKIP, Alone, Reader, alone, counted_alike
from placealg.prover.kernel.stages import Stages
from placealg.prover.kernel.symbols import ROOT, Symbols
from placealg.step.event import PADDING, Event
from placealg.step.program import Step

MICRO = "microbatches"
"""The axis that counts microbatches; its size stands in divisors as m."""

_SENT = {"reduce_scatter": ReduceScatter, "all_gather": AllGather, "slice": Slice}


@dataclass(frozen=True, slots=True)
class Cell:
    """A slot, the value that it is meant to have, and along which axes it is split, by which ways.

    It is `bare` where a rank has nothing besides its own: of a gather of shares it may have got what nobody has.
    """

    slot: Slot
    value: Pair | None
    split: Mapping[str, str]
    bare: bool = True


def own(parameter: str, layout: str = "own") -> str:
    """The way in which owners of a parameter's elements split it, by the owner function that a layout names."""
    return f"owner of {parameter}{f' in {layout}' * (layout != 'own')}"


def together(step: Step) -> dict[str, tuple[frozenset[Reader], ...]]:
    """Tensor -> for each of its copies whose gradient is sent, the readers of that copy, in the order of events."""
    read: dict[str, list[tuple[str, Reader]]] = {}
    for e in step.events:
        if e.on_tensor and e.verb == "compute" and not e.on_gradient:
            for k, version in enumerate(e.operands):
                read.setdefault(version.tensor, []).append((version.label, (e.value, k)))
    found: dict[str, tuple[frozenset[Reader], ...]] = {}
    for e in step.events:
        if e.on_gradient and e.verb != "compute" and e.version:
            readers = (reader for label, reader in read.get(e.tensor, ()) if f"{label}/".startswith(f"{e.version}/"))
            found[e.tensor] = (*found.get(e.tensor, ()), frozenset(readers))
    return found


class Instructions:
    """The instructions that were written so far, and the maker of those of `network.py`."""

    def __init__(self, step: Step) -> None:
        self.step, self.reference, self.graph = step, step.reference, step.reference.graph
        layouts = dict.fromkeys(["own", *(e.layout for e in step.events if e.group)])
        self.stages = Stages(self.reference.pipeline.axis, tuple(dict.fromkeys(op.unit for op in self.graph.ops)),
                             tuple(loop.unit for loop in self.graph.loops))
        self.symbols = Symbols(self.graph, {
            **{own(t.name, layout): tuple(t.dims) for t in self.graph.parameters for layout in layouts},
            **dict.fromkeys(self.stages.ways, ())})
        self.alone: Alone = alone(self.reference, self.symbols, together(step))
        self.axes = {a: k for k, a in enumerate((MICRO, *self.reference.mesh.names))}
        self.scope = ""
        self.blocks: list[Block] = []
        self.pending: list[Instruction] = []
        self.sums: list[Pair] = []
        self.units: dict[str, str] = {}
        self.slots: dict[tuple[str, ...], Number] = {}
        self.about: tuple[str, ...] = ()
        self.temporaries = 0
        self.event = Event("init", "compute", "")
        self.cells: dict[tuple[str, str, str], Cell] = {}
        self.live: set[tuple[str, str, str]] = set()
        self.hosted: dict[tuple[str, str, str], Cell] = {}
        self.grads: dict[tuple[str, str, str], list[Cell]] = {}
        self.zeroed: dict[str, Event] = {}
        self.copies: dict[tuple[str, str, str], tuple[Cell, ...]] = {}
        self.disk: dict[tuple[str, str], Cell] = {}
        self.parts_of: dict[tuple[str, str], Cell] = {}
        self.counted_at: dict[tuple[str, str], Mapping[str, str]] = {}
        self.totals: dict[str, Cell] = {}
        self.entered: dict[str, Cell] = {}
        self.handed_over: Cell | None = None
        self.leaving: Cell | None = None
        self.passed: set[str] = set()
        self.flagged_over = tuple(dict.fromkeys(a for e in step.events if (e.value, e.verb) == (SKIP, "all_reduce")
                                                for a in e.axes))
        self.coefficient: Cell | None = None
        self.divided: dict[str, dict[str, int]] = {}
        self.divided_by: dict[str, Cell] = {}
        self.looping = False
        self.count: dict[str, Cell] = {}
        self.counted: dict[str, dict[str, int]] = {}
        self.counted_here: set[str] = set()

    def looped(self, name: str) -> str:
        """The unit in whose instances a tensor is made; "" if there is one."""
        if name not in self.units:
            unit = name.partition(".")[0]
            self.units[name] = unit if self.graph.loop(unit) else ""
        return self.units[name]

    def slot(self, *key: str) -> Slot:
        """The slot of a name: one for each instance of the unit whose loop runs, or one for all."""
        number = self.slots.setdefault((self.scope, *key), Number(len(self.slots) + 1))
        return Each(number) if self.scope else Shared(number)

    def temporary(self) -> Slot:
        """The next slot of the event that is printed."""
        self.temporaries += 1
        return self.slot(*self.about, str(self.temporaries))

    def nothing(self, *key: str) -> Cell:
        """What is read where nothing is: a slot that nothing fills."""
        return Cell(self.slot(*key), None, {})

    def begin(self, *about: str) -> None:
        """What follows is of an event: its slots are named by it, and are the same whenever it runs."""
        self.about, self.temporaries = about, 0

    def emit(self, op: Operation, args: list[Cell], split: Mapping[str, str], single: Single | None,
             out: Slot | None = None) -> Cell:
        """An instruction, with the line that makes the same of the same values."""
        out = out or self.temporary()
        value, claim = args[0].value if args else None, None
        if single is not None:
            line, value = self.claimed(single, args)
            claim = None if line is None else Some(line)
        self.pending.append(Do(op, tuple(a.slot for a in args), out, claim))
        return Cell(out, value, split, all(a.bare for a in args))

    def claimed(self, single: Single, args: list[Cell]) -> tuple[Number | None, Pair | None]:
        """The line that makes a thing of the values that slots are meant to have, and its value, if there is one."""
        reads = [a.value for a in args if a.value is not None]
        found = self.alone.lines.get((self.scope, single, tuple(reads))) if len(reads) == len(args) else None
        return found or (None, None)

    def layout(self, split: Mapping[str, str]) -> Layout:
        """Axes and ways of splitting by their numbers."""
        return tuple(Pair(self.axes[a], self.symbols.ways[w]) for a, w in split.items())

    def together(self, args: list[Cell]) -> dict[str, str]:
        """Along each axis the way by which an operand is split: by it the op is."""
        return {a: w for arg in reversed(args) for a, w in arg.split.items()}

    def kinds(self, split: Mapping[str, str]) -> tuple[Kind, ...]:
        """How a tensor lies along each axis."""
        return tuple(Shard(self.symbols.ways[split[a]]) if a in split else Full() for a in self.axes)

    def einsum(self, args: list[Cell], over: Iterable[str]) -> Cell:
        """An einsum, split along each axis as an operand is."""
        split, summed = self.together(args), tuple(over)
        kept_ = {a: w for a, w in split.items() if not set(self.symbols.touch.get(w, (w,))) & set(summed)}
        dims = self.symbols.dims(summed)
        return self.emit(Einsum(self.layout(split), dims), args, kept_, SEinsum(dims))

    def row(self, function: str, over: Iterable[str], args: list[Cell]) -> Cell:
        """A function of rows, split along each axis as an operand is."""
        split, number, dims = self.together(args), self.symbols.function(function), self.symbols.dims(over)
        return self.emit(Row(number, dims, self.layout(split)), args, split, SRow(number, dims))

    def add(self, args: list[Cell]) -> Cell:
        """A sum; of one operand, that."""
        if len(args) == 1:
            return args[0]
        if len({arg.split[self.stages.axis] for arg in args if self.stages.axis in arg.split}) > 1:
            args = [self.of_stage(arg) for arg in args]
        split = self.together(args)
        return self.emit(Add(self.layout(split)), args, split, SAdd())

    def scale(self, by: Mapping[str, int], arg: Cell) -> Cell:
        """A multiple that the single device takes, too."""
        powers = self.symbols.powers(by)
        return self.emit(Scale(powers), [arg], arg.split, SScale(powers))

    def of_stage(self, arg: Cell) -> Cell:
        """What one stage has as a part of the sum over all of them: the others add nothing."""
        axis = self.stages.axis
        if axis not in arg.split:
            return arg
        split = {a: w for a, w in arg.split.items() if a != axis}
        return self.emit(Send(self.axes[axis], Only(self.symbols.ways[arg.split[axis]])), [arg], split, None)

    def at_stage(self, stage: str, arg: Cell) -> Cell:
        """What is had at one stage, if there are stages: of what all of them have, that one's."""
        if not self.stages.axis or self.stages.axis in arg.split:
            return arg
        return self.sent("slice", (self.stages.axis,), "", stage, arg)

    def rename(self, names: Mapping[str, str], arg: Cell) -> Cell:
        """Other names of dims."""
        pairs = self.symbols.names(names)
        split = {a: names.get(w, w) for a, w in arg.split.items()}
        return self.emit(Rename(pairs), [arg], split, SRename(pairs))

    def whole(self, dim: str, arg: Cell) -> Cell:
        """What all ranks that compute the op together have of a dim."""
        return self.sent("all_gather", self.event.axes, dim, "", arg)

    def total(self, arg: Cell) -> Cell:
        """The sum over the ranks that compute the op together."""
        return self.sent("all_reduce", self.event.axes, "", "", arg)

    def sent(self, verb: str, axes: Iterable[str], source: str, to: str, arg: Cell, out: Slot | None = None) -> Cell:
        """What is sent along axes, one after the other; the last into a slot."""
        axes = tuple(axes)
        said = {"all_gather": (source,), "all_to_all": (source, to), "slice": (to,), "reduce_scatter": (to,)}
        if not {*said.get(verb, ())} <= {*self.symbols.ways} or not {*axes} <= {*self.axes}:
            raise Outside(self.event.path, "it does not say what is sent")
        for k, a in enumerate(axes):
            split = {b: w for b, w in arg.split.items() if b != a}
            if verb == "all_reduce":
                sent: object = AllReduce()
            elif verb == "all_to_all":
                sent = AllToAll(self.symbols.ways[source], self.symbols.ways[to])
            elif verb in _SENT:
                sent = _SENT[verb](self.symbols.ways[to or source])
            else:
                raise Outside(self.event.path, f"{verb}")
            if to:
                split[a] = to
            last = out if k == len(axes) - 1 else None
            arg = self.emit(Send(self.axes[a], sent), [arg], split, None, last)  # type: ignore[arg-type]
        return arg if axes or out is None else self.copied(arg, out)

    def copied(self, arg: Cell, out: Slot) -> Cell:
        """The same in another slot."""
        return self.emit(Scale(()), [arg], arg.split, None, out)

    def scaled(self, by: Mapping[str, int], arg: Cell, out: Slot | None = None) -> Cell:
        """A factor that is of the machine alone."""
        return self.emit(Scale(self.machine(by)), [arg], arg.split, None, out) if by else arg

    def machine(self, by: Mapping[str, int]) -> Powers:
        """A factor of numbers that all ranks have alike: sizes of axes, microbatches, and tokens where counts are."""
        alike = {*self.reference.mesh.names, "m", *(("tokens",) if counted_alike(self.reference) else ())}
        if PADDING in by and self.event.group:  # shards of one group under one layout are padded alike
            padding = f"{PADDING} of {self.event.group} in {self.event.layout}"
            by = {padding if name == PADDING else name: power for name, power in by.items()}
            alike.add(padding)
        if not by.keys() <= alike:
            raise Outside(self.event.path, f"it divides by {', '.join(sorted(by.keys() - alike))}, of which each rank "
                                           "may have its own")
        return self.symbols.powers(by)

    def handed(self, arg: Cell, target: Pair, out: Slot) -> Cell:
        """What a loop is handed."""
        claim = self.alone.handed.get((self.scope, target))
        self.pending.append(Do(Rename(()), (arg.slot,), out, None if claim is None else Some(claim)))
        return Cell(out, target, arg.split)

    def owned(self, by: Event, parameter: str, arg: Cell, out: Slot | None = None) -> Cell:
        """The part of a rank where an event acts: its own along an axis, or everything on rank 0 alone."""
        for clause in by.where:
            mine = own(parameter, by.layout)
            split = self.dims_of(parameter) if by.layout == "own" else ()  # another layout has other owners
            if clause.rank is None and arg.split.get(clause.axis) not in (mine, *split):
                arg = self.sent("slice", (clause.axis,), "", mine, arg)
            elif clause.rank == 0:
                arg = self.sent("slice", (clause.axis,), "", ROOT, arg)
            elif clause.rank is not None:
                raise Outside(self.event.path, "a rank other than the first")
        return arg if out is None else self.copied(arg, out)

    def mine(self, parameter: str) -> str:
        """The way by which the event that is printed splits a parameter among owners."""
        return own(parameter, self.event.layout)

    def dims_of(self, parameter: str) -> tuple[str, ...]:
        """The ways by which a parameter is split itself: its dims, and the stage of its unit; none of a counter."""
        return (*self.graph.tensors[parameter].dims, *self.stages.ways) if parameter else ()

    def split_of(self, parameter: str) -> dict[str, str]:
        """The ways by which a parameter is split itself, in the scope that is printed."""
        split = dict(self.reference.split_dims.get(parameter, {}))
        if self.stages.axis in split:
            split[self.stages.axis] = self.stages.of(parameter.partition(".")[0])
        return split

    def stream(self) -> Cell:
        """The random stream."""
        return self.counter("rng")

    def counter(self, name: str) -> Cell:
        """A counter as it is in the step so far."""
        number = self.alone.counters[name]
        slot = Shared(self.slots.setdefault(("", "counter", name), Number(len(self.slots) + 1)))
        moved = self.cells.get(("counter", name, self.event.phase))
        return moved or Cell(slot, Pair(number, "First"), {})

    def flush(self) -> None:
        """End a run of instructions that run once."""
        if self.pending:
            self.blocks.append(Run(tuple(self.pending)))
            self.pending = []

    def loop(self, unit: str, down: bool, carried: list[Pair]) -> None:
        """End the instructions that run in each instance of a unit."""
        self.blocks.append(Layers(self.symbols.unit(unit), down, tuple(carried), tuple(self.pending)))
        self.pending, self.scope = [], ""


def number_of(slot: Slot) -> Number:
    """The number of a slot."""
    return slot.number
