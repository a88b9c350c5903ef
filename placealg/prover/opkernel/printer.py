"""A step program as a program of ops: what each event does, in the slots that it names, beside the single device's.

What is printed of an event is what it does to each rank, whatever was intended: a slot is read that another event has
to have filled, and a line is claimed if it makes the same of the values that the slots are meant to have. Where a state
rests, and how data arrive, is the strategy's word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from placealg.models.backward import kept
from placealg.models.graph import Op
from placealg.prover.kernel.fields import DROPPED, NAMED, Outside
from placealg.prover.opkernel.network import backward, forward
from placealg.prover.opkernel.program import (
    Add,
    AllGather,
    AllReduce,
    AllToAll,
    Block,
    Do,
    Each,
    Einsum,
    Free,
    Full,
    Held,
    Instruction,
    Kind,
    Last,
    Layers,
    Layout,
    Mesh,
    Microbatches,
    Number,
    Once,
    Pair,
    Program,
    Read,
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
    Zero,
)
from placealg.prover.opkernel.program import Op as Operation
from placealg.prover.opkernel.single import COUNTERS, TOKENS, UPDATED, Alone, alone
from placealg.prover.opkernel.symbols import ROOT, Symbols
from placealg.step.event import MICROBATCH, Clause, Event, Group, dim_of
from placealg.step.program import EventLoop, Node, Step
from placealg.step.receivers import receivers
from placealg.step.versions import origins

MICRO = "microbatches"
"""The axis that counts microbatches; its size stands in divisors as m."""

_SENT = {"reduce_scatter": ReduceScatter, "all_gather": AllGather, "slice": Slice}

_READ: Mapping[str, frozenset[str]] = {name: frozenset(fields.split()) for name, fields in {
    "tensor compute": "axes op reads", "tensor free": "version reads", "tensor assign": "reads",
    "tensor": "axes op source to version", "norm all_reduce": "axes op source to",
    "loss compute": "divisor reads", "loss scale": "divisor",
    "gather": "axes source to", "free": "axes", "zero": "where", "reduce": "axes op divisor source to", "accumulate": "",
    "norm": "where", "clip": "", "update": "where", "publish": "axes source to", "broadcast": "axes", "slice": "axes",
    "assign": "where source", "store": "where", "load": ""}.items()}
"""Of an event on tensors, on the norm or the loss, or on a group, by its verb: the fields that are printed."""

_SAYS = {"source": ("", "S", "P"), "to": ("", "I", "S", "R"), "op": ("", "sum", "mean")}
"""What those fields of an event on a group may say."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A slot, the value that it is meant to have, and along which axes it is split, by which ways."""

    slot: Slot
    value: Pair | None
    split: Mapping[str, str]


def printed(step: Step) -> Program:
    """A step as a program of ops beside its single device; raises Outside."""
    return _Printer(step).program()


def own(parameter: str) -> str:
    """The way in which owners of a parameter's elements split it."""
    return f"owner of {parameter}"


def check_fields(e: Event) -> None:
    """Raise Outside if an event says what is not printed of it."""
    kind = f"{e.value} " if e.value in ("norm", "loss") and not e.group else "tensor " if e.on_tensor else ""
    verb = kind + e.verb if kind + e.verb in _READ else kind.strip()
    read = _READ.get(verb, frozenset())
    for field in dataclasses.fields(Event):
        said = getattr(e, field.name)
        default = () if field.default is dataclasses.MISSING else field.default
        if field.name in (*NAMED, *DROPPED) or said == default:
            continue
        if field.name not in read or (e.group and field.name in _SAYS and said not in _SAYS[field.name]
                                      and not (e.verb == "assign" and said == "weight")):
            raise Outside(e.path, f"{field.name} = {said}: not in the kernel of ops")


class _Printer:
    """The instructions that were printed; the maker of those of `network.py`."""

    def __init__(self, step: Step) -> None:
        self.step, self.reference, self.graph = step, step.reference, step.reference.graph
        self.symbols = Symbols(self.graph, {own(t.name): tuple(t.dims) for t in self.graph.parameters})
        self.alone: Alone = alone(self.reference, self.symbols)
        self.axes = {a: k for k, a in enumerate((MICRO, *self.reference.mesh.names))}
        self.scope = ""
        self.blocks: list[Block] = []
        self.pending: list[Instruction] = []
        self.sums: list[Pair] = []
        self.slots: dict[tuple[str, ...], Number] = {}
        self.about: tuple[str, ...] = ()
        self.temporaries = 0
        self.event = Event("", "", "")
        self.cells: dict[tuple[str, str, str], Cell] = {}
        self.live: set[tuple[str, str, str]] = set()
        self.grads: dict[tuple[str, str, str], list[Cell]] = {}
        self.totals: dict[str, Cell] = {}
        self.zeroed: dict[str, tuple[Clause, ...]] = {}
        self.weights: dict[str, Cell] = {}
        self.squares: dict[str, Cell] = {}
        self.coefficient: Cell | None = None
        self.norm: Cell | None = None
        self.factor: dict[str, int] = {}

    # Slots and instructions

    def slot(self, *key: str) -> Slot:
        """The slot of a name: one for each instance of the unit whose loop runs, or one for all."""
        number = self.slots.setdefault((self.scope, *key), Number(len(self.slots) + 1))
        return Each(number) if self.scope else Shared(number)

    def temporary(self) -> Slot:
        self.temporaries += 1
        return self.slot(*self.about, str(self.temporaries))

    def begin(self, *about: str) -> None:
        """What follows is of an event: its slots are named by it, and are the same whenever it runs."""
        self.about, self.temporaries = about, 0

    def emit(self, op: Operation, args: list[Cell], split: Mapping[str, str], single: Single | None,
             out: Slot | None = None) -> Cell:
        """An instruction, with the line that makes the same of the same values."""
        out = out or self.temporary()
        value, claim = args[0].value if args else None, None
        if single is not None:
            reads = tuple(a.value for a in args)
            line, value = self.alone.lines.get((self.scope, single, reads), (None, None))  # type: ignore[arg-type]
            claim = None if line is None else Some(line)
        self.pending.append(Do(op, tuple(a.slot for a in args), out, claim))
        return Cell(out, value, split)

    def layout(self, split: Mapping[str, str]) -> Layout:
        return tuple(Pair(self.axes[a], self.symbols.ways[w]) for a, w in split.items())

    def together(self, args: list[Cell]) -> dict[str, str]:
        """Along each axis the way by which an operand is split: by it the op is."""
        return {a: w for arg in reversed(args) for a, w in arg.split.items()}

    def kinds(self, split: Mapping[str, str]) -> tuple[Kind, ...]:
        return tuple(Shard(self.symbols.ways[split[a]]) if a in split else Full() for a in self.axes)

    # The maker of network.py

    def einsum(self, args: list[Cell], over: Iterable[str]) -> Cell:
        split, summed = self.together(args), tuple(over)
        kept_ = {a: w for a, w in split.items() if not set(self.symbols.touch.get(w, (w,))) & set(summed)}
        dims = self.symbols.dims(summed)
        return self.emit(Einsum(self.layout(split), dims), args, kept_, SEinsum(dims))

    def row(self, function: str, over: Iterable[str], args: list[Cell]) -> Cell:
        split, number, dims = self.together(args), self.symbols.function(function), self.symbols.dims(over)
        return self.emit(Row(number, dims, self.layout(split)), args, split, SRow(number, dims))

    def add(self, args: list[Cell]) -> Cell:
        if len(args) == 1:
            return args[0]
        split = self.together(args)
        return self.emit(Add(self.layout(split)), args, split, SAdd())

    def scale(self, by: Mapping[str, int], arg: Cell) -> Cell:
        powers = self.symbols.powers(by)
        return self.emit(Scale(powers), [arg], arg.split, SScale(powers))

    def rename(self, names: Mapping[str, str], arg: Cell) -> Cell:
        pairs = self.symbols.names(names)
        split = {a: names.get(w, w) for a, w in arg.split.items()}
        return self.emit(Rename(pairs), [arg], split, SRename(pairs))

    def whole(self, dim: str, arg: Cell) -> Cell:
        return self.sent("all_gather", self.event.axes, dim, "", arg)

    def total(self, arg: Cell) -> Cell:
        return self.sent("all_reduce", self.event.axes, "", "", arg)

    # What changes no value

    def sent(self, verb: str, axes: Iterable[str], source: str, to: str, arg: Cell, out: Slot | None = None) -> Cell:
        """What is sent along axes, one after the other; the last into a slot."""
        axes = tuple(axes)
        for k, a in enumerate(axes):
            split = {b: w for b, w in arg.split.items() if b != a}
            if verb == "all_reduce":
                sent: object = AllReduce()
            elif verb == "all_to_all":
                sent = AllToAll(self.symbols.ways[source], self.symbols.ways[to])
            elif verb in _SENT:
                sent = _SENT[verb](self.symbols.ways[to or source])
            else:
                raise Outside(self.event.path, f"{verb}: not in the kernel of ops")
            if to:
                split[a] = to
            last = out if k == len(axes) - 1 else None
            arg = self.emit(Send(self.axes[a], sent), [arg], split, None, last)  # type: ignore[arg-type]
        return arg if axes or out is None else self.copied(arg, out)

    def copied(self, arg: Cell, out: Slot) -> Cell:
        return self.emit(Scale(()), [arg], arg.split, None, out)

    def scaled(self, by: Mapping[str, int], arg: Cell, out: Slot | None = None) -> Cell:
        """A factor that is of the machine alone."""
        return self.emit(Scale(self.symbols.powers(by)), [arg], arg.split, None, out) if by else arg

    def handed(self, arg: Cell, target: Pair, out: Slot) -> Cell:
        """What a loop is handed."""
        claim = self.alone.handed.get((self.scope, target))
        self.pending.append(Do(Rename(()), (arg.slot,), out, None if claim is None else Some(claim)))
        return Cell(out, target, arg.split)

    def owned(self, clauses: Iterable[Clause], parameter: str, arg: Cell, out: Slot | None = None) -> Cell:
        """The part of a rank at a place: its own along an axis, or everything on rank 0 alone."""
        for clause in clauses:
            if clause.rank is None and clause.axis not in arg.split:
                arg = self.sent("slice", (clause.axis,), "", own(parameter), arg)
            elif clause.rank == 0:
                arg = self.sent("slice", (clause.axis,), "", ROOT, arg)
            elif clause.rank is not None:
                raise Outside(self.event.path, "a rank other than the first: not in the kernel of ops")
        return arg if out is None else self.copied(arg, out)

    def stream(self) -> Cell:
        return self.counter("rng")

    def counter(self, name: str) -> Cell:
        """A counter as it is in the step so far."""
        number = self.alone.counters[name]
        slot = Shared(self.slots.setdefault(("", "counter", name), Number(len(self.slots) + 1)))
        return Cell(slot, self.cells.get(("counter", name, self.event.phase), Cell(slot, Pair(number, "First"), {})).value, {})

    def count(self, e: Event) -> None:
        """A counter is read, moved, stored or loaded."""
        counter = self.counter(e.value)
        disk = Cell(self.slot("disk", e.value), counter.value, {})
        self.begin("counter", e.value)
        if e.verb == "assign" and e.phase == "init":
            self.pending.append(Read(self.alone.counters[e.value], counter.slot))
        elif e.verb == "update":
            moved = self.row(f"next {e.value}", (), [counter])
            self.cells["counter", e.value, e.phase] = self.copied(moved, counter.slot)
        elif e.verb == "store":
            self.copied(counter, disk.slot)
        elif e.verb == "load":
            self.copied(disk, counter.slot)
        else:
            raise Outside(e.path, f"{e.verb} of {e.value}: not in the kernel of ops")

    # Tensors

    def looped(self, name: str) -> str:
        unit = name.partition(".")[0]
        return unit if self.graph.loop(unit) else ""

    def key(self, name: str, label: str) -> tuple[str, str, str]:
        """Where a tensor's copy is kept: by the loop that runs, if it is of that unit."""
        return (self.scope if self.looped(name) else "", name, label)

    def read(self, name: str, label: str = "") -> Cell:
        """A copy of a tensor, the one from which it derives where there is none; a slot that is empty if there is none."""
        if name in self.weights:
            return self.weights[name]
        for one in origins(label):
            if self.key(name, one) in self.live:
                return self.cells[self.key(name, one)]
        return self.cells.get(self.key(name, label)) or Cell(self.slot("nothing", name, label), None, {})

    def keep(self, name: str, label: str, cell: Cell) -> None:
        self.cells[self.key(name, label)] = cell
        self.live.add(self.key(name, label))

    def free(self, name: str, label: str) -> None:
        key = self.key(name, label)
        if key in self.live:
            self.live.discard(key)
            self.pending.append(Free(self.cells[key].slot))

    def parts(self, name: str, label: str = "") -> list[Cell]:
        """What has been added to the gradient of a tensor, or of a copy."""
        return [c for (s, n, one), cells in self.grads.items() for c in cells if (s, n) == self.key(name, "")[:2] and (
            not label or one == label or one.startswith(f"{label}/"))]

    def gradient(self, name: str, label: str = "") -> Cell:
        parts = self.parts(name, label)
        return self.add(parts) if parts else Cell(self.slot("no gradient", name, label), None, {})

    def set_gradient(self, name: str, label: str, cell: Cell) -> None:
        scope = self.key(name, "")[0]
        for key in [k for k in self.grads if k[:2] == (scope, name) and (
                not label or k[2] == label or k[2].startswith(f"{label}/"))]:
            del self.grads[key]
        self.grads[scope, name, label] = [cell]

    def compute(self, e: Event) -> None:
        op = self.graph.producer(e.tensor)
        if op is None:
            raise Outside(e.path, "no op makes it")
        labels = [v.label for v in e.operands] or [""] * len(op.inputs)
        self.begin(e.value)
        if e.on_gradient:
            self.transposed(e, op, labels)
            return
        made = forward(self, self.graph, op, lambda k: self.read(op.inputs[k], labels[k]))
        for name, cell in made.items():
            self.keep(f"{op.output}.{name}" if name else op.output, "", cell)

    def transposed(self, e: Event, op: Op, labels: list[str]) -> None:
        if op == self.graph.ops[-1]:
            one = self.row("one", (), [])
            line, value = self.alone.lines.get((self.scope, SScale(self.symbols.powers({TOKENS: -1})), (one.value,)),
                                               (None, None))  # type: ignore[arg-type]
            out = self.temporary()
            self.pending.append(Do(Scale(self.symbols.powers(self.factor)), (one.slot,), out,
                                   None if line is None else Some(line)))
            arriving = Cell(out, value, one.split)
        else:
            arriving = self.gradient(op.output)
        for j in receivers(e, self.reference):
            got = backward(self, self.graph, op, j, arriving, lambda k: self.read(op.inputs[k], labels[k]),
                           lambda name: self.read(f"{op.output}.{name}" if name else op.output))
            name = op.inputs[j]
            self.grads.setdefault((self.key(name, "")[0], name, labels[j]), []).append(got)

    def move(self, e: Event) -> None:
        source, to = dim_of(e.source), dim_of(e.to)
        self.begin(e.value, e.version, e.verb, *e.axes)
        mean = {a: -1 for a in e.axes} if e.op == "mean" else {}
        if e.on_gradient:
            arg = self.gradient(e.tensor, e.version)
            self.set_gradient(e.tensor, e.version, self.scaled(mean, self.sent(e.verb, e.axes, source, to, arg)))
            return
        arg = self.read(e.tensor, e.version)
        out = self.slot("copy", e.tensor, e.version)
        cell = self.scaled(mean, self.sent(e.verb, e.axes, source, to, arg, None if mean else out), out)
        self.keep(e.tensor, e.version, cell)

    def freed(self, e: Event) -> None:
        if e.value in self.graph.tensors:
            self.free(e.tensor, e.version)
            return
        inside = {op.output: op for op in self.graph.of_unit(e.unit) if f"{op.region}.".startswith(f"{e.value}.")}
        held = {v.tensor for v in e.operands}
        for name in (n for n in inside if n not in held):
            if not any(c.output not in inside for c in self.graph.consumers(name)) and not any(
                    name in (x.first, x.last) for x in self.graph.handed):
                for key in [k for k in self.live if k[1] == name]:
                    self.free(name, key[2])
            for tensor, _ in kept(self.graph, inside[name]):
                self.free(tensor.name, "")

    # Parameters

    def parameters(self, e: Event) -> Iterator[str]:
        for name in self.reference.group(e.group).parameters:
            if self.looped(name) != self.scope:
                raise Outside(e.path, "it stands outside of the instances of its unit: not in the kernel of ops")
            yield name

    def rest(self, name: str, share: int) -> dict[str, str]:
        """Where a parameter, 0, or its optimizer state, 1, rests."""
        group = self.group(name)
        return {**self.reference.split_dims.get(name, {}), **{a: own(name) for a in group.shares[share]}}

    def group(self, name: str) -> Group:
        return next(g for g in self.reference.groups if name in g.parameters)

    def named(self, number: Number) -> Pair:
        return Pair(number, "This" if self.scope else "First")

    def state(self, what: str, name: str) -> Cell:
        """A state where it rests."""
        if what == "weight":
            return Cell(self.slot("weight", name), self.named(self.alone.weights[name]), self.rest(name, 0))
        if what in ("master", "moments"):
            number = self.alone.weights[name] if what == "master" else self.alone.moments[name]
            return Cell(self.slot(what, name), self.named(number), self.rest(name, 1))
        raise Outside(self.event.path, f"{what}: not in the kernel of ops")

    def used(self, name: str) -> Cell:
        """A parameter as ops read it: the copy that was gathered, where it rests in shares."""
        rest = self.state("weight", name)
        gathered = self.group(name).shares[0]
        if not gathered:
            return rest
        split = {a: w for a, w in rest.split.items() if a not in gathered}
        return Cell(self.slot("gathered", name), rest.value, split)

    def on_group(self, e: Event) -> None:
        for name in self.parameters(e):
            self.begin(e.phase, name, e.value, e.verb)
            self.of_parameter(e, name)

    def of_parameter(self, e: Event, name: str) -> None:
        verb, value = e.verb, e.value
        if verb == "gather" and value == "weight":
            self.sent("all_gather", e.axes, own(name), "", self.state("weight", name), self.used(name).slot)
        elif verb == "free" and value == "weight":
            if set(e.axes) != set(self.group(name).shares[0]):
                raise Outside(e.path, "a part of a copy is freed: not in the kernel of ops")
            self.pending.append(Free(self.slot("gathered", name)))
        elif verb == "free" and value in ("grad", "grad_sum"):
            for cell in self.parts(name) if value == "grad" else [self.total_of(name)]:
                self.pending.append(Free(cell.slot))
        elif verb == "zero" and value == "grad_sum":
            self.zeroed[name] = e.where
            self.pending.append(Zero(self.slot("grad_sum", name)))
        elif verb == "reduce" and value in ("grad", "grad_sum"):
            scatters = e.to == "S"
            part = self.gradient(name) if value == "grad" else self.total_of(name)
            part = self.sent("reduce_scatter" if scatters else "all_reduce", e.axes, "", own(name) if scatters else "", part)
            by = {a: -1 for a in e.axes} if e.op == "mean" else {n: -q for n, q in e.divisor.powers}
            part = self.scaled(by, part)
            if value == "grad":
                self.set_gradient(name, "", part)
            else:
                self.totals[name] = part
        elif verb == "accumulate" and value == "grad_sum":
            self.accumulate(e, name)
        elif verb == "norm":
            part = self.owned(e.where, name, self.total_of(name))
            self.squares[name] = self.einsum([part, part], self.graph.tensors[name].dims)
        elif verb == "clip" and value == "grad_sum":
            self.totals[name] = self.einsum([self.total_of(name), self.clipped()], ())
        elif verb == "update" and value == "master":
            self.updated(e, name)
        elif verb == "publish" and value == "weight" and e.origin == "master":
            master = self.made_state("master", name)
            self.sent("all_gather", e.axes, own(name), "", master, self.slot("weight", name))
        elif verb == "broadcast" and value == "weight":
            weight = self.weights[name]
            self.weights[name] = self.sent("all_gather", e.axes, ROOT, "", weight, weight.slot)
        elif verb == "slice" and value == "weight":
            self.weights[name] = self.sent("slice", e.axes, "", own(name), self.weights[name], self.slot("weight", name))
        elif verb == "assign" and value == "master" and e.origin == "weight":
            weight = self.weights[name] if e.phase == "init" else self.state("weight", name)
            self.owned(e.where, name, weight, self.slot("master", name))
        elif verb == "assign" and value == "moments" and not e.origin:
            first = Cell(self.slot("moments", name), self.named(self.alone.moments[name]),
                         dict(self.reference.split_dims.get(name, {})))
            self.pending.append(Read(self.alone.moments[name], first.slot))
            self.owned(e.where, name, first, first.slot)
        elif verb == "store" and value in ("weight", "moments"):
            share = self.group(name).shares[value == "moments"]
            if any(c.rank is not None for c in e.where) or {c.axis for c in e.where} - set(
                    self.reference.split_dims.get(name, {})) != set(share):
                raise Outside(e.path, "what others own is stored, or less than all: not in the kernel of ops")
            self.cells["disk", value, name] = self.owned(e.where, name, self.state(value, name), self.slot("disk", value, name))
        elif verb == "load" and value in ("weight", "moments"):
            stored, to = self.cells.get(("disk", value, name)), self.state(value, name)
            if stored is None:
                raise Outside(e.path, "nothing is stored")
            spread = [a for a in stored.split if a not in to.split]
            self.sent("all_gather", spread, own(name), "", stored, to.slot)
        else:
            raise Outside(e.path, f"{verb} of {value}: not in the kernel of ops")

    def made_state(self, what: str, name: str) -> Cell:
        """A state behind its update, in this step."""
        cell = self.state(what, name)
        return replace(cell, value=self.cells.get(("updated", what, name), cell).value)

    def total_of(self, name: str) -> Cell:
        """The sum of the gradients of a step."""
        return self.totals.get(name) or Cell(self.slot("grad_sum", name), None, {})

    def accumulate(self, e: Event, name: str) -> None:
        """What a microbatch adds to the sum of gradients: it is added when the microbatch has run."""
        part = self.gradient(name)
        if any(c.rank is not None or c.axis not in part.split for c in self.zeroed.get(name, ())):
            raise Outside(e.path, "a sum begins on some ranks only: not in the kernel of ops")
        part, total = self.copied(part, self.slot("added", name)), self.slot("grad_sum", name)
        self.sums.append(Pair(part.slot, total))
        self.totals[name] = Cell(total, part.value, {a: w for a, w in part.split.items() if a != MICRO})

    def updated(self, e: Event, name: str) -> None:
        group = self.group(name)
        args = [self.owned(e.where, name, cell) for cell in (
            self.state("master", name), self.state("moments", name), self.total_of(name))] + [self.counter("step")]
        over = tuple(self.graph.tensors[name].dims) if group.whole_reads else ()
        made = [self.row(f"{what} of {name}", over, args) for what in UPDATED]
        for what, cell in zip(("master", "moments"), made, strict=True):
            self.cells["updated", what, name] = self.copied(cell, self.slot(what, name))

    # The norm of all gradients

    def per_unit(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {"": []}
        for group in self.reference.groups:
            for name in group.parameters:
                found.setdefault(self.looped(name), []).append(name)
        return found

    def summed(self) -> Cell:
        """The squares of all parameters added up, those of instances one after the other."""
        self.flush()
        before, self.scope = self.scope, ""
        total: Cell | None = None
        for unit, names in self.per_unit().items():
            self.begin("norm", unit)
            squares = [self.squares.get(n) or Cell(self.slot("no square", n), None, {}) for n in names]
            if not unit:
                total = self.add(squares)
                continue
            assert total is not None
            number = self.alone.entering[unit][2]
            carried = self.slot("norm handed on", unit)
            self.handed(total, Pair(number, "First"), carried)
            self.flush()
            self.scope = unit
            here = Cell(carried, Pair(number, "This"), total.split)
            self.handed(self.add([here, *squares]), Pair(number, "Next"), carried)
            self.loop(unit, False, [Pair(_number(carried), number)])
            total = Cell(carried, Pair(number, Last(self.symbols.unit(unit))), total.split)
        assert total is not None
        self.scope = before
        return total

    def clipped(self) -> Cell:
        if self.coefficient is None:
            raise Outside(self.event.path, "nothing made the coefficient of the clip")
        return self.coefficient

    # Loops

    def flush(self) -> None:
        if self.pending:
            self.blocks.append(Run(tuple(self.pending)))
            self.pending = []

    def loop(self, unit: str, down: bool, carried: list[Pair]) -> None:
        self.blocks.append(Layers(self.symbols.unit(unit), down, tuple(carried), tuple(self.pending)))
        self.pending, self.scope = [], ""

    def instances(self, node: EventLoop) -> None:
        """A loop over the instances of a unit, with what it hands on."""
        events = [n for n in node.body if isinstance(n, Event)]
        loop = next((x for x in self.graph.loops if x.unit == node.name), None)
        if loop is None or len(events) != len(node.body):
            raise Outside(node.name, "a loop in a loop: not in the kernel of ops")
        self.prepare(events)
        assigns = [e for e in events if e.verb == "assign" and e.tensor == loop.slot]
        if len(assigns) > 1 or any(e.on_gradient != node.reverse for e in assigns):
            raise Outside(assigns[0].path, "it is handed on twice, or the other way: not in the kernel of ops")
        handing = assigns[0] if assigns else None
        entering = self.alone.entering[node.name][node.reverse]
        last = Last(self.symbols.unit(node.name))
        carried, slot = [], self.slot("handed on", node.name, str(node.reverse))
        if handing is not None:
            self.begin("handed on", node.name)
            if node.reverse:
                first = self.handed(self.gradient(loop.last), Pair(entering, last), slot)
            else:
                label = handing.operands[0].label if handing.operands else ""
                first = self.handed(self.read(loop.first, label), Pair(entering, "First"), slot)
            carried = [Pair(_number(slot), entering)]
        self.flush()
        self.scope = node.name
        if handing is not None and node.reverse:
            self.grads[node.name, loop.last, ""] = [Cell(slot, Pair(entering, "Next"), first.split)]
        for e in events:
            self.event = e
            if e is not handing:
                self.on_event(e)
                continue
            check_fields(e)
            self.begin(e.value)
            if node.reverse:
                self.handed(self.gradient(loop.slot), Pair(entering, "This"), slot)
            else:
                self.keep(loop.slot, "", self.copied(Cell(slot, Pair(entering, "This"), first.split),
                                                     self.slot("copy", loop.slot, "")))
        if handing is not None and not node.reverse:
            self.begin("handed", node.name)
            self.handed(self.read(loop.last), Pair(entering, "Next"), slot)
        self.loop(node.name, node.reverse, carried)
        if handing is not None and node.reverse:
            label = handing.operands[0].label if handing.operands else ""
            self.grads.setdefault(("", loop.first, label), []).append(Cell(slot, Pair(entering, "First"), first.split))
        elif handing is not None:
            self.keep(loop.last, "", Cell(slot, Pair(entering, last), first.split))

    def prepare(self, events: Iterable[Event]) -> None:
        """Whatever stands before a loop that its events need."""
        if any(e.verb == "clip" for e in events) and self.coefficient is None:
            self.clip()

    def clip(self) -> None:
        total = self.norm or self.summed()
        self.begin("clip")
        self.coefficient = self.row("clip", (), [total])

    def node(self, node: Node) -> None:
        if isinstance(node, EventLoop):
            self.instances(node)
            return
        self.event = node
        self.prepare([node])
        self.on_event(node)

    def on_event(self, e: Event) -> None:
        check_fields(e)
        if e.group:
            self.on_group(e)
        elif e.value == "norm" and e.verb == "all_reduce":
            total = self.norm or self.summed()
            self.begin("norm", "whole")
            self.norm = self.sent("all_reduce", e.axes, "", "", total)
        elif e.value == "loss":
            if e.verb == "compute":
                if [v.tensor for v in e.operands] != list(self.graph.ops[-1].inputs):
                    raise Outside(e.path, f"reads = {e.reads}: not in the kernel of ops")
                self.factor = {}
            for name, power in e.divisor.powers:
                self.factor[name] = self.factor.get(name, 0) - power
        elif e.value in COUNTERS:
            self.count(e)
        elif not e.on_tensor:
            raise Outside(e.path, f"{e.verb} of {e.value}: not in the kernel of ops")
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
        parts: list[Once | Microbatches] = []
        for node in self.step.tree():
            if isinstance(node, EventLoop) and node.name == MICROBATCH:
                self.flush()
                parts.append(Once(tuple(self.blocks)))
                self.blocks = []
                self.read_data()
                for inner in node.body:
                    self.node(inner)
                self.flush()
                parts.append(Microbatches(tuple(self.sums), tuple(self.blocks)))
                self.blocks = []
            else:
                self.node(node)
        self.flush()
        parts.append(Once(tuple(self.blocks)))
        self.blocks = []
        return tuple(parts)

    def read_data(self) -> None:
        for name, number in self.alone.data.items():
            slot = self.slot("copy", name, "")
            self.pending.append(Read(number, slot))
            self.keep(name, "", Cell(slot, Pair(number, "First"), self.arrives(name)))

    def begins(self, name: str) -> dict[str, str]:
        """Where a weight is in the beginning: on rank 0 of the axes that do not split it."""
        split = self.reference.split_dims.get(name, {})
        return {**split, **{a: ROOT for a in self.axes if a != MICRO and a not in split}}

    def read_weights(self) -> None:
        for unit, names in self.per_unit().items():
            self.scope = unit
            for name in names:
                number = self.alone.weights[name]
                self.weights[name] = Cell(self.slot("weight", name), self.named(number), self.begins(name))
                self.pending.append(Read(number, self.weights[name].slot))
            if unit:
                self.loop(unit, False, [])
            else:
                self.flush()

    def arrives(self, name: str) -> dict[str, str]:
        return {MICRO: "batch"} if "batch" in self.graph.tensors[name].dims else {}

    # The whole

    def held(self, what: str, name: str, number: Number, split: Mapping[str, str]) -> tuple[Pair, Held]:
        unit = self.looped(name)
        self.scope = unit
        held = Held(number, Some(self.symbols.unit(unit)) if unit else None, self.kinds(split))
        pair = Pair(self.slot(what, name), held)
        self.scope = ""
        return pair, held

    def program(self) -> Program:
        names = list(self.alone.weights)
        self.read_weights()
        init = self.phase("init")
        for name in names:
            self.scope = self.looped(name)
            self.weights[name] = self.used(name)
        self.scope = ""
        step = self.microbatches()
        self.cells = {k: c for k, c in self.cells.items() if k[0] not in ("updated", "counter")}
        save, resume = self.phase("save"), self.phase("resume")
        rest, given, disk = [], [], []
        for name in names:
            for what, number, share, first in (
                    ("weight", self.alone.weights[name], 0, self.begins(name)), ("master", self.alone.weights[name], 1, None),
                    ("moments", self.alone.moments[name], 1, self.reference.split_dims.get(name, {}))):
                rest.append(self.held(what, name, number, self.rest(name, share))[0])
                if first is not None:
                    given.append(self.held(what, name, number, first)[1])
                if ("disk", what, name) in self.cells:
                    disk.append(self.cells["disk", what, name].slot)
        for name, number in self.alone.counters.items():
            held = Held(number, None, self.kinds({}))
            given.append(held)
            rest.append(Pair(self.counter(name).slot, held))
            disk.append(self.slot("disk", name))
        data = tuple(Held(number, None, self.kinds(self.arrives(name))) for name, number in self.alone.data.items())
        ways = self.symbols.ways
        mesh = Mesh(len(self.axes), tuple(ways[self.symbols.like[d]] for d in ways),
                    tuple(self.symbols.dims(self.symbols.touch.get(d, (d,))) for d in ways))
        return Program(mesh, self.ones(), self.alone.stretches, self.alone.states, tuple(given), data, init, step, save,
                       resume, tuple(disk), tuple(rest))

    def ones(self) -> tuple[tuple[Pair, ...], ...]:
        """All tokens over those of all ranks in all microbatches: 1 where counts are equal."""
        if "equal_counts" not in self.reference.hypotheses:
            return ()
        per_rank = {"tokens": -1, "m": -1, **{a: -1 for a in self.reference.data_axes}}
        return (self.symbols.powers({TOKENS: 1, **per_rank}),)


def _number(slot: Slot) -> Number:
    return slot.number
