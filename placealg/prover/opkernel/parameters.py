"""What events on parameters do: from their first value to a checkpoint, with the norm of all gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from placealg.arith import Monomial
from placealg.prover.kernel.fields import Outside
from placealg.prover.opkernel.instructions import MICRO, Cell, number_of, own
from placealg.prover.opkernel.program import (
    Free,
    Last,
    Number,
    Pair,
    Read,
    Zero,
)
from placealg.prover.opkernel.single import UPDATED, per_unit
from placealg.prover.opkernel.symbols import ROOT
from placealg.prover.opkernel.tensors import Tensors
from placealg.step.event import Event, Group


class Parameters(Tensors):
    """The states of parameters, where they rest, and sums of gradients."""

    def parameters(self, e: Event) -> Iterator[str]:
        """The parameters of an event's group."""
        for name in self.reference.group(e.group).parameters:
            if self.looped(name) != self.scope:
                raise Outside(e.path, "it stands outside of the instances of its unit: not in the kernel of ops")
            yield name

    def rest(self, name: str, share: int) -> dict[str, str]:
        """Where a parameter, 0, or its optimizer state, 1, rests."""
        group = self.group(name)
        return {**self.reference.split_dims.get(name, {}), **{a: own(name) for a in group.shares[share]}}

    def group(self, name: str) -> Group:
        """The group of a parameter."""
        return next(g for g in self.reference.groups if name in g.parameters)

    def named(self, number: Number) -> Pair:
        """A value in the scope that is printed."""
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
        """What an event does to each parameter of its group."""
        for name in self.parameters(e):
            self.begin(e.phase, name, e.value, e.verb)
            self.of_parameter(e, name)

    def of_parameter(self, e: Event, name: str) -> None:
        """What an event does to a parameter."""
        verb, value = e.verb, e.value
        if verb == "gather" and value == "weight":
            self.sent("all_gather", e.axes, own(name), "", self.state("weight", name), self.used(name).slot)
        elif verb == "free" and value == "weight":
            if set(e.axes) != set(self.group(name).shares[0]):
                raise Outside(e.path, "a part of a copy is freed: not in the kernel of ops")
            self.pending.append(Free(self.slot("gathered", name)))
        elif verb == "free" and value in ("grad", "grad_sum"):
            freed = self.parts(name) if value == "grad" else [self.total_of(name)]
            self.pending.extend(Free(cell.slot) for cell in freed)
        elif verb == "zero" and value == "grad_sum":
            self.zeroed[name] = e.where
            self.pending.append(Zero(self.slot("grad_sum", name)))
        elif verb == "reduce" and value in ("grad", "grad_sum"):
            scatters = e.to == "S"
            part = self.gradient(name) if value == "grad" else self.total_of(name)
            to = own(name) if scatters else ""
            part = self.sent("reduce_scatter" if scatters else "all_reduce", e.axes, "", to, part)
            divisor = e.divisor * Monomial.of(*(e.axes if e.op == "mean" else ()))
            part = self.scaled({n: -q for n, q in divisor.powers}, part)
            if value == "grad":
                self.set_gradient(name, "", part)
            else:
                self.totals[name] = part
        elif verb == "accumulate" and value == "grad_sum":
            self.accumulate(e, name)
        elif verb == "scale" and value == "grad_sum":
            self.totals[name] = self.scaled({n: -q for n, q in e.divisor.powers}, self.total_of(name))
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
            weight = self.weights[name]
            self.weights[name] = self.sent("slice", e.axes, "", own(name), weight, weight.slot)
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
            slot = self.slot("disk", value, name)
            self.cells["disk", value, name] = self.owned(e.where, name, self.state(value, name), slot)
        elif verb == "load" and value in ("weight", "moments"):
            stored, target = self.cells.get(("disk", value, name)), self.state(value, name)
            if stored is None:
                raise Outside(e.path, "nothing is stored")
            spread = [a for a in stored.split if a not in target.split]
            self.sent("all_gather", spread, own(name), "", stored, target.slot)
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
        """Master copy and moments behind an update."""
        group = self.group(name)
        args = [self.owned(e.where, name, cell) for cell in (
            self.state("master", name), self.state("moments", name), self.total_of(name))] + [self.counter("step")]
        over = tuple(self.graph.tensors[name].dims) if group.whole_reads else ()
        made = [self.row(f"{what} of {name}", over, args) for what in UPDATED]
        for what, cell in zip(("master", "moments"), made, strict=True):
            self.cells["updated", what, name] = self.copied(cell, self.slot(what, name))

    def summed(self) -> Cell:
        """The squares of all parameters added up, those of instances one after the other."""
        self.flush()
        before, self.scope = self.scope, ""
        total: Cell | None = None
        for unit, names in per_unit(self.graph).items():
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
            self.loop(unit, False, [Pair(number_of(carried), number)])
            total = Cell(carried, Pair(number, Last(self.symbols.unit(unit))), total.split)
        assert total is not None
        self.scope = before
        return total

    def clipped(self) -> Cell:
        """What gradients are clipped by."""
        if self.coefficient is None:
            raise Outside(self.event.path, "nothing made the coefficient of the clip")
        return self.coefficient
