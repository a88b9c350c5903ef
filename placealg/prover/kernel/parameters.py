"""What events on parameters do: from their first value to a checkpoint, with the norm of all gradients.

Of each state of a parameter a rank has copies, on each tier: where it rests in shares, and each that was gathered from
another, which `free` ends. A slot is named by the state, the tier and the axes over which a copy is sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from placealg.arith import ONE, Monomial
from placealg.prover.kernel.instructions import MICRO, Cell, number_of
from placealg.prover.kernel.network import VALUE, statistic
from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.program import (
    Free,
    Last,
    Number,
    Pair,
    Read,
    Slot,
    Zero,
)
from placealg.prover.kernel.single import (
    INVERSE,
    LARGEST,
    NORM,
    NOTHING,
    OVERFLOWS,
    SKIP,
    UPDATED,
    matrices,
    per_unit,
)
from placealg.prover.kernel.symbols import ROOT
from placealg.prover.kernel.tensors import Tensors
from placealg.step.event import Event, Group
from placealg.step.verbs import STATES

State = tuple[str, str, str]
"""A value of a parameter, a tier, and the parameter's name."""


def alike(made: Cell, reads: Iterable[Cell]) -> Cell:
    """What is made of some cells: bare only where a rank has of all of them the same."""
    return replace(made, bare=made.bare and all(cell.split == made.split for cell in reads))


class Parameters(Tensors):
    """The states of parameters, where they rest, and sums of gradients."""

    def parameters(self, e: Event) -> Iterator[str]:
        """The parameters of an event's group."""
        for name in self.reference.group(e.group).parameters:
            if self.looped(name) != self.scope:
                raise Outside(e.path, "it stands outside of the instances of its unit")
            yield name

    def group(self, name: str) -> Group:
        """The group of a parameter."""
        return next(g for g in self.reference.groups if name in g.parameters)

    def named(self, number: Number) -> Pair:
        """A value in the scope that is printed."""
        return Pair(number, "This" if self.scope else "First")

    # ------------------------------------------------------------------ copies

    def place(self, state: State, split: Mapping[str, str]) -> Slot:
        """The slot of a copy."""
        value, tier, name = state
        return self.slot(value, tier, name, *sorted(f"{a}:{w}" for a, w in split.items()))

    def state(self, value: str, tier: str, name: str) -> Cell:
        """A state as it is read: the last copy; a slot that is empty where there is none."""
        if (value, tier) == ("grad", "device"):
            return self.gradient(name)
        copies = self.copies.get((value, tier, name))
        return copies[-1] if copies else self.nothing(f"no {value}", tier, name)

    def own_part(self, e: Event, state: State) -> Cell:
        """What an event reads of a state where it acts: of a copy that has just that, if there is one."""
        mine = {c.axis: self.mine(state[2]) for c in e.where if c.rank is None}
        there = [c for c in self.copies.get(state, ()) if mine.items() <= c.split.items()] if mine else []
        return self.owned(e, state[2], there[-1] if there else self.state(*state))

    def become(self, state: State, cell: Cell) -> None:
        """A state is this alone; copies of what it was are no more."""
        self.pending.extend(Free(old.slot) for old in self.copies.get(state, ()) if old.slot != cell.slot)
        self.copies[state] = (cell,)

    def written(self, state: State, cell: Cell) -> None:
        """A state is this, in its slot; of what was gathered from what it was nothing is known."""
        new = self.copied(cell, self.place(state, cell.split))
        copies = self.copies.get(state, ())
        at = next((k for k, old in enumerate(copies) if old.slot == new.slot), None)
        if at is None:
            self.become(state, new)
            return
        self.pending.extend(Free(old.slot) for old in copies[at + 1:])
        self.copies[state] = (*copies[:at], new, *(replace(old, value=None) for old in copies[at + 1:]))

    def gathered(self, e: Event, state: State) -> None:
        """A copy is gathered, of what each owner has; what is chosen is chosen along other axes."""
        (value, tier, name), axes, source = state, e.axes, e.origin
        shares = [c for c in self.copies.get((source, tier, name), ()) if any(a in c.split for a in axes)]
        read = shares[-1] if shares else self.state(source, tier, name)
        split = {a: w for a, w in read.split.items() if a not in axes}
        if e.where:
            copy = self.owned(e, name, self.sent("all_gather", axes, self.mine(name), "", read))
            copy = self.copied(copy, self.place(state, copy.split))
        else:
            copy = self.sent("all_gather", axes, self.mine(name), "", read, self.place(state, split))
        if axes and any(way not in self.dims_of(name) for way in copy.split.values()):
            copy = replace(copy, bare=False)
        if source == value:
            others = (cell for cell in self.copies.get(state, ()) if cell.slot != copy.slot)
            self.copies[state] = (*others, copy)
        else:
            self.become(state, copy)

    def ended(self, state: State, axes: tuple[str, ...]) -> None:
        """Copies end; or a rank keeps, of all that it has, its own along axes."""
        copies = self.copies.get(state, ())
        if not copies and state[0] not in self.alone.kept:
            raise Outside(self.event.path, "what is not there is freed")
        mine = {a: self.mine(state[2]) for a in axes}
        kept = tuple(c for c in copies if axes and mine.items() <= c.split.items())
        if axes and copies and kept[-1:] != copies[-1:]:
            last = copies[-1]
            left = {**last.split, **mine}
            if not any(c.split == left for c in kept):
                missing = [a for a in axes if last.split.get(a) != mine[a]]
                kept = (*kept, self.sent("slice", missing, "", self.mine(state[2]), last, self.place(state, left)))
        self.pending.extend(Free(c.slot) for c in copies if c not in kept)
        self.copies[state] = kept
        if not kept:
            self.copies.pop(state)

    # ------------------------------------------------------------------ events

    def on_group(self, e: Event) -> None:
        """What an event does to each parameter of its group."""
        for name in self.parameters(e):
            self.begin(e.phase, name, e.value, e.verb, *e.axes)
            self.of_parameter(e, name)

    def of_parameter(self, e: Event, name: str) -> None:
        """What an event does to a parameter."""
        if len({*e.tiers}) > 1 and e.verb not in ("offload", "fetch"):
            raise Outside(e.path, f"tier = {e.tier}")
        if e.verb in ("accumulate", "reduce"):
            self.check_merging(e, name)
        done = _DOES.get((e.verb, e.value)) or _DOES.get((e.verb, ""))
        if done is None or (e.verb == "update" and e.value == "master" and e.source) or (
                e.verb == "assign" and not e.origin and e.value != "moments"):
            raise Outside(e.path, f"{e.verb} of {e.value}")
        done(self, e, name)

    def taken(self, e: Event, name: str) -> None:
        """A state becomes what another one is, where the event acts; moments begin as nothing else is."""
        state = (e.value, e.tiers[1], name)
        if e.origin:
            self.written(state, self.own_part(e, (e.origin, e.tiers[0], name)))
            return
        number = self.alone.kept["moments"][name]
        first = Cell(self.place(state, {}), self.named(number), self.split_of(name))
        self.pending.append(Read(number, first.slot))
        self.written(state, self.owned(e, name, first))

    def published(self, e: Event, name: str) -> None:
        """A state becomes a copy of what its owners have, or of what the ranks have on which the event runs."""
        if e.where and not e.axes:
            self.taken(e, name)
        else:
            self.gathered(e, (e.value, e.tiers[1], name))

    def no_more(self, e: Event, name: str) -> None:
        """Copies of a state, or the parts of a gradient, are no more."""
        if (e.value, e.tiers[1]) == ("grad", "device"):
            self.pending.extend(Free(cell.slot) for cell in self.parts(name))
        else:
            self.ended((e.value, e.tiers[1], name), e.axes)

    def sent_whole(self, e: Event, name: str) -> None:
        """A state is the root's on all ranks, or a rank keeps its own of it."""
        state = (e.value, e.tiers[1], name)
        read = self.state(*state)
        split = {a: w for a, w in read.split.items() if a not in e.axes}
        if e.verb == "broadcast":
            self.become(state, self.sent("all_gather", e.axes, ROOT, "", read, self.place(state, split)))
        else:
            split = {**read.split, **{a: self.mine(name) for a in e.axes}}
            self.become(state, self.sent("slice", e.axes, "", self.mine(name), read, self.place(state, split)))

    def cleared(self, e: Event, name: str) -> None:
        """A sum of gradients begins."""
        self.zeroed[name] = e
        self.pending.append(Zero(self.slot("grad_sum", e.tiers[1], name)))

    def reduced(self, e: Event, name: str) -> None:
        """A gradient, or a sum of them, is summed over ranks."""
        state = (e.value, e.tiers[1], name)
        part = self.state(*state)
        sent, to = ("reduce_scatter", self.mine(name)) if e.to == "S" else ("all_reduce", "")
        by = {n: -q for n, q in (e.divisor * Monomial.of(*(e.axes if e.op == "mean" else ()))).powers}
        if e.op == "premultiplied":
            part, by = self.scaled(by, part), {}
        part = self.scaled(by, self.sent(sent, e.axes, "", to, part))
        if e.value == "grad":
            self.set_gradient(name, "", part)
        else:
            self.copies[state] = (part,)

    def multiplied(self, e: Event, name: str) -> None:
        """A sum of gradients is divided, or clipped."""
        state = (e.value, e.tiers[1], name)
        part = self.state(*state)
        made = self.rescaled(e, part) if e.verb == "scale" else self.einsum([part, self.clipped()], ())
        self.copies[state] = (self.owned(e, name, made),)

    def averaged(self, e: Event, name: str) -> None:
        """An average takes in what its parameter is."""
        state = (e.value, e.tiers[1], name)
        reads = [self.own_part(e, one) for one in (state, (e.origin, e.tiers[0], name))]
        self.written(state, alike(self.row(f"average of {name}", (), [*reads, *self.flag()]), reads))

    def stored(self, e: Event, name: str) -> None:
        """What a checkpoint gets of a state."""
        disk = self.slot("disk", e.value, name)
        cell = self.state(e.value, e.tiers[0], name)
        shared = {a for a, way in cell.split.items() if way not in self.dims_of(name)}
        if not (cell.bare or shared <= {c.axis for c in e.where}):
            raise Outside(e.path, "a rank stores more than its own")
        self.disk[e.value, name] = self.owned(e, name, cell, disk)

    def loaded(self, e: Event, name: str) -> None:
        """A rank reads of a state what it has stored."""
        if (e.value, name) not in self.disk:
            raise Outside(e.path, "nothing is stored")
        self.written((e.value, e.tiers[1], name), self.owned(e, name, self.disk[e.value, name]))

    def accumulate(self, e: Event, name: str) -> None:
        """What a microbatch adds to the sum of gradients: it is added when the microbatch has run."""
        part = self.own_part(e, ("grad", e.tiers[0], name))
        if name in self.zeroed:  # what begins nowhere else is added up nowhere else
            part = self.owned(self.zeroed[name], name, part)
        added, total = self.slot("added", name), self.slot("grad_sum", e.tiers[1], name)
        if Pair(added, total) in self.sums:  # it is added to what this microbatch has added
            part = self.add([replace(part, slot=added), part])
        part = self.copied(part, added)
        self.sums = [*(pair for pair in self.sums if pair.second != total), Pair(added, total)]
        whole = {a: w for a, w in part.split.items() if a != MICRO}
        self.copies["grad_sum", e.tiers[1], name] = (Cell(total, part.value, whole),)

    def updated(self, e: Event, name: str) -> None:
        """Master copy and moments behind an update: of each element, and of what was made of whole matrices."""
        tier = e.tiers[0]
        read = {value: self.state(value, tier, name) for value in ("master", "moments", "grad_sum")}
        if self.largest(name):
            read["grad_sum"] = self.row(LARGEST, (VALUE,), [read["grad_sum"]])
        own = [self.owned(e, name, cell) for cell in read.values()]
        args = [*own, self.counter("step")]
        if over := matrices(self.reference, self.group(name), name):
            whole = [read[value] for value in self.group(name).whole_reads]
            args.append(self.owned(e, name, self.row(f"matrix of {name}", over, whole)))
        args += self.flag()
        made = [self.row(f"{value} of {name}", (), args) for value in UPDATED]
        for value, cell in zip(UPDATED, made, strict=True):
            self.written((value, tier, name), alike(cell, own))

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """The parameters whose gradients sums over all of them have."""
        return tuple(name for names in per_unit(self.reference).values() for name in names)

    def largest(self, name: str) -> bool:
        """Whether a parameter is moved by the largest of some elements: printed is how many have each value."""
        group = self.group(name)
        return group.statistic and group.merge == "max"

    def check_merging(self, e: Event, name: str) -> None:
        """Raise Outside if a largest value is merged as if it were a sum, or a sum as a largest value."""
        divides = ["mean", "premultiplied"] if e.verb == "reduce" else []
        told = ("max",) if self.largest(name) else ("", "sum", *divides)
        if e.op not in told or (self.largest(name) and e.divisor != ONE):
            raise Outside(e.path, f"op = {e.op}, divisor = {e.divisor}")

    def taken_of_tokens(self, e: Event, name: str) -> None:
        """The gradient of a statistic is what the tokens of a rank add to it in a microbatch."""
        self.set_gradient(name, "", self.statistic(e, name))

    def statistic(self, e: Event, name: str) -> Cell:
        """What the tokens of a rank add to a statistic in a microbatch."""
        group = self.group(name)
        if not group.statistic or e.where or e.tier != "device" or (self.largest(name) and e.divisor != ONE):
            raise Outside(e.path, "it is divided, or taken by some ranks or on another tier")
        divided = dict(e.divisor.powers)
        counts = self.by_count(divided, "loss", self.count)
        by = {n: -q for n, q in divided.items()}
        if counts and (group.taken or group.merge != "mean"):
            raise Outside(e.path, "it is divided by a count of tokens")
        if group.taken:
            return self.scaled(by, self.read(group.taken))
        (op,) = (op for op in self.graph.ops if op.kind == "unit" and op.unit == group.unit)
        if op.output not in self.entered:
            raise Outside(e.path, "a statistic of what has not been read")
        value = statistic(self, self.graph, op, name, self.entered[op.output], group.merge)
        if group.merge != "mean":
            return self.scaled(by, value)
        return self.over_tokens(by, value, self.count["loss"] if counts else None)

    def rescaled(self, e: Event, gradient: Cell) -> Cell:
        """A gradient over a divisor, which may be the scale of the loss."""
        powers = dict(e.divisor.powers)
        scales = powers.pop("loss_scale", 0)
        if scales not in (0, 1) or (scales and "loss_scale" not in self.alone.counters):
            raise Outside(e.path, f"divisor = {e.divisor}")
        if scales:
            gradient = self.einsum([gradient, self.row(INVERSE, (), [self.counter("loss_scale")])], ())
        return self.scaled({n: -q for n, q in powers.items()}, gradient)

    def counts_in(self, e: Event, name: str) -> None:
        """The part that a parameter's gradient has in a sum over all of them.

        A flag is set if any element overflows: if their number is not 0. The largest of flags is the sum of these
        numbers, where of copies that are alike one counts.
        """
        what = e.value
        if what in self.totals or e.divisor != ONE:
            raise Outside(e.path, f"the {what} has been read before, or is divided")
        if name not in self.trained or (what == SKIP and not self.reference.skip):
            raise Outside(e.path, f"the single device's {what} has no part of it")
        part = self.own_part(e, ("grad_sum", e.tiers[0], name))
        if what == SKIP:
            for axis in (a for a in self.flagged_over if a not in part.split):
                part = self.sent("slice", (axis,), "", ROOT, part)
        found = [part, part] if what == NORM else [self.row(OVERFLOWS, (), [part])]
        self.parts_of[what, name] = self.of_stage(self.einsum(found, self.graph.tensors[name].dims))
        self.counted_at.setdefault((what, name), part.split)

    def total_of(self, what: str) -> Cell:
        """A sum over all gradients as it stands; it is taken when it is first read."""
        if what not in self.totals:
            self.totals[what] = self.summed(what)
        return self.totals[what]

    def flag(self) -> list[Cell]:
        """What skips a step."""
        return [self.total_of(SKIP)] if self.reference.skip else []

    def summed(self, what: str) -> Cell:
        """The parts of all parameters added up, those of instances one after the other."""
        self.flush()
        before, self.scope = self.scope, ""
        total = self.nothing("none", what)
        for unit, names in per_unit(self.reference).items():
            self.begin(what, unit)
            parts = [self.parts_of.get((what, n)) or self.nothing("no part", what, n) for n in names]
            if not unit:
                total = self.add(parts) if parts else self.of_nothing(what)
                continue
            number = self.alone.adding[unit, what]
            carried = self.slot(f"{what} handed on", unit)
            self.handed(total, Pair(number, "First"), carried)
            self.flush()
            self.scope = unit
            here = Cell(carried, Pair(number, "This"), total.split)
            self.handed(self.add([here, *parts]), Pair(number, "Next"), carried)
            self.loop(unit, False, [Pair(number_of(carried), number)])
            total = Cell(carried, Pair(number, Last(self.symbols.unit(unit))), total.split)
        self.scope = before
        return total

    def of_nothing(self, what: str) -> Cell:
        """What a sum begins with where every parameter is of a repeated unit: a part, as theirs are."""
        first = self.trained[0]
        part = self.row(NOTHING, (), [])
        for axis, way in self.counted_at.get((what, first), {}).items():
            part = self.sent("slice", (axis,), "", ROOT if axis == self.stages.axis else way, part)
        return self.einsum([part], self.graph.tensors[first].dims)

    def on_counter(self, e: Event) -> None:
        """A counter is read, moved, stored or loaded."""
        if e.value not in self.alone.counters:
            raise Outside(e.path, f"the single device has no {e.value}")
        counter, slot = self.counter(e.value), self.slot("disk", e.value)
        self.begin("counter", e.value, e.verb)
        if e.verb == "assign" and e.phase == "init":
            self.pending.append(Read(self.alone.counters[e.value], counter.slot))
        elif e.verb == "update":
            flag = self.flag() if e.value != "rng" else []
            self.moved(e, self.copied(self.row(f"next {e.value}", (), [counter, *flag]), counter.slot))
        elif e.verb == "store":
            self.disk[e.value, ""] = self.owned(e, "", counter, slot)
        elif e.verb == "load" and (e.value, "") in self.disk:
            self.moved(e, self.copied(self.disk[e.value, ""], counter.slot))
        elif e.verb == "broadcast":
            there = self.slot("copy", e.value, *e.axes) if self.looping else counter.slot
            self.moved(e, self.sent("all_gather", e.axes, ROOT, "", counter, there))
        else:
            raise Outside(e.path, f"{e.verb} of {e.value}")

    def moved(self, e: Event, cell: Cell) -> None:
        """A counter is this for what follows in its phase."""
        self.cells["counter", e.value, e.phase] = cell

    def clipped(self) -> Cell:
        """What gradients are clipped by."""
        if self.coefficient is None:
            raise Outside(self.event.path, "nothing made the coefficient of the clip")
        return self.coefficient


_DOES: Mapping[tuple[str, str], Callable[[Parameters, Event, str], None]] = {
    **{(verb, value): Parameters.published for verb in ("publish", "gather", "all_gather")
       for value in (*STATES, "grad_sum")},
    **{(verb, value): Parameters.sent_whole for verb in ("broadcast", "slice") for value in STATES},
    **{(verb, ""): Parameters.taken for verb in ("assign", "offload", "fetch")},
    ("free", ""): Parameters.no_more, ("store", ""): Parameters.stored, ("load", ""): Parameters.loaded,
    ("zero", "grad_sum"): Parameters.cleared, ("accumulate", "grad_sum"): Parameters.accumulate,
    ("reduce", "grad"): Parameters.reduced, ("reduce", "grad_sum"): Parameters.reduced,
    ("scale", "grad_sum"): Parameters.multiplied, ("clip", "grad_sum"): Parameters.multiplied,
    ("norm", ""): Parameters.counts_in, ("compute", SKIP): Parameters.counts_in,
    ("compute", "grad"): Parameters.taken_of_tokens,
    ("update", "master"): Parameters.updated, ("update", "average"): Parameters.averaged,
}
"""(verb, value), "" for any other value -> what an event does to a parameter."""
