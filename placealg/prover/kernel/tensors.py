"""What events on tensors do, and on their gradients: ops, what is sent, what is freed; and the counters."""

from __future__ import annotations

from collections.abc import Mapping

from placealg.arith import ONE
from placealg.models.backward import keepers, terms
from placealg.models.graph import Op
from placealg.prover.kernel.instructions import Cell, Instructions
from placealg.prover.kernel.network import backward, forward
from placealg.prover.kernel.outside import Outside
from placealg.prover.kernel.program import (
    Free,
    Scale,
    SScale,
)
from placealg.prover.kernel.single import (
    INVERSE,
    SUMMED,
    TOKENS,
    by_samples,
    by_statistic,
    counted_alike,
    in_order,
    starts,
    targets,
    weight_in,
)
from placealg.step.event import COUNTS_OF_SAMPLES, MICROBATCH, Event, dim_of
from placealg.step.gradient_targets import receivers
from placealg.step.versions import origins

_PLACES = {"slice": ("IR", "S"), "all_gather": ("S", "IR"), "all_reduce": ("P", "IR"), "reduce_scatter": ("P", "S"),
           "all_to_all": ("S", "S")}
"""What is sent -> how a tensor lies before and behind: I, R, P, or S of a dim."""


def _place(place: str) -> str:
    return "S" if dim_of(place) else place or "none"


class Tensors(Instructions):
    """The copies of tensors, and what was added to their gradients."""

    def key(self, name: str, label: str) -> tuple[str, str, str]:
        """Where a tensor's copy is kept: by the loop that runs, if it is of that unit."""
        return (self.scope if self.looped(name) else "", name, label)

    def read(self, name: str, label: str = "") -> Cell:
        """A copy of a tensor, or, if it was never made, the one from which it derives; else a slot that is empty."""
        if name in self.alone.kept["weight"]:
            copies = self.copies.get(("weight", "device", name), ())
            return copies[-1] if copies else self.nothing("nothing", name)
        made = [self.key(name, one) for one in origins(label) if self.key(name, one) in self.cells]
        return self.cells[made[0]] if made else self.nothing("nothing", name, label)

    def sent_from(self, name: str, label: str) -> Cell:
        """The copy of which another is made: itself, if it is there, else the one from which it derives."""
        there = [self.key(name, one) for one in origins(label) if self.key(name, one) in self.live]
        return self.cells[there[0]] if there else self.read(name, label)

    def keep(self, name: str, label: str, cell: Cell) -> None:
        """A copy of a tensor is there."""
        self.cells[self.key(name, label)] = cell
        self.live.add(self.key(name, label))

    def free(self, name: str, label: str) -> None:
        """A copy of a tensor is there no more."""
        key = self.key(name, label)
        if key not in self.live:
            raise Outside(self.event.path, "what is not there is freed")
        self.live.discard(key)
        self.pending.append(Free(self.cells[key].slot))

    def parts(self, name: str, label: str = "") -> list[Cell]:
        """What has been added to the gradient of a tensor, or of a copy."""
        here = self.key(name, "")[:2]
        return [c for (s, n, one), cells in self.grads.items() if (s, n) == here for c in cells if (
            not label or one == label or one.startswith(f"{label}/"))]

    def gradient(self, name: str, label: str = "") -> Cell:
        """The sum of what has been added to a gradient; a slot that is empty if nothing was.

        Where units run whole the backward of the last one begins with the seed, which has no event of its own.
        """
        parts = sorted(self.parts(name, label), key=lambda c: in_order(c.value) if c.value else 0)
        if self.reference.whole and name == self.graph.ops[-1].inputs[0] and not parts:
            return self.seed(self.graph.ops[-1])
        return self.add(parts) if parts else self.nothing("no gradient", name, label)

    def set_gradient(self, name: str, label: str, cell: Cell) -> None:
        """What a gradient, or a copy of it, is instead."""
        scope = self.key(name, "")[0]
        for key in [k for k in self.grads if k[:2] == (scope, name) and (
                not label or k[2] == label or k[2].startswith(f"{label}/"))]:
            del self.grads[key]
        self.grads[scope, name, label] = [cell]

    def compute(self, e: Event) -> None:
        """An op, forward or backward."""
        op = self.graph.producer(e.tensor)
        if op is None:
            raise Outside(e.path, "no op makes it")
        if e.divisor != ONE and not (e.on_gradient and op in terms(self.graph)):
            raise Outside(e.path, f"divisor = {e.divisor}")
        labels = [v.label for v in e.operands] or [""] * len(op.inputs)
        self.begin(e.value, e.phase)
        if e.on_gradient:
            self.transposed(e, op, labels)
            return
        self.entered[op.output] = self.read(op.inputs[0], labels[0])
        if op in terms(self.graph):
            self.summed_by_a_loss(self.entered[op.output])
        made = forward(self, self.graph, op, lambda k: self.read(op.inputs[k], labels[k]))
        for name, cell in made.items():
            self.keep(f"{op.output}.{name}" if name else op.output, "", self.at_stage(self.stages.of(op.unit), cell))

    def summed_by_a_loss(self, cell: Cell) -> None:
        """What a loss, or a term of it, sums must be complete, and the single device's."""
        if self.row(SUMMED, (), [cell]).value is None:
            raise Outside(self.event.path, "the loss reads what is not the single device's")

    def transposed(self, e: Event, op: Op, labels: list[str]) -> None:
        """The backward of an op: what each operand gets."""
        if starts(self.graph, op):
            if op != self.graph.ops[-1]:
                self.divided[op.output] = dict(e.divisor.powers)
            self.grads.setdefault((self.key(op.inputs[0], "")[0], op.inputs[0], labels[0]), []).append(self.seed(op))
            return
        arriving = self.gradient(op.output)
        for j in (j for j in receivers(e, self.reference) if not by_statistic(self.reference, op.inputs[j])):
            got = backward(self, self.graph, op, j, arriving, lambda k: self.read(op.inputs[k], labels[k]),
                           lambda name: self.read(f"{op.output}.{name}" if name else op.output))
            name, got = op.inputs[j], self.at_stage(self.stages.of(op.unit), got)
            self.grads.setdefault((self.key(name, "")[0], name, labels[j]), []).append(got)

    def weights(self, function: str) -> Cell:
        """Which tokens of a rank count in a loss, by the targets that it reads."""
        name = targets(self.graph)
        label = next((v.label for e in self.step.events if e.on_tensor and e.verb in ("compute", "assign")
                      and not e.on_gradient for v in e.operands if v.tensor == name), "")
        return self.row(function, (), [self.read(name, label)] if name else [])

    def seed(self, op: Op) -> Cell:
        """The gradient of the loss, or of a term of it, at that of each token."""
        if op != self.graph.ops[-1]:
            return self.seed_of(op.output, self.reference.counter(self.event), self.count)
        return self.add([self.seed_of(loss, loss, self.divided_by) for loss in self.reference.separate])

    def seed_of(self, loss: str, counter: str, made: Mapping[str, Cell]) -> Cell:
        """The gradient of a loss at that of each token: its weight over whatever divides the loss, times its scale.

        `made` are the counts by which it is divided, by counter.
        """
        if loss not in self.divided:
            raise Outside(self.event.path, "the backward of a loss that was not computed")
        weights, divided = self.weights(weight_in(loss)), dict(self.divided[loss])
        counts, shares = self.by_count(divided, counter, made), by_samples(self)
        if [divided.pop(name, 0) for name in COUNTS_OF_SAMPLES] != ([-1, 1] if shares else [0, 0]) or not (
                {*shares} <= made.keys()):
            raise Outside(self.event.path, "a microbatch does not count by its share of samples")
        scales = -divided.pop("loss_scale", 0)
        by = {name: -power for name, power in divided.items()}
        if scales not in (0, 1) or (scales and "loss_scale" not in self.alone.counters):
            raise Outside(self.event.path, "the loss is not scaled by its scale, once")
        if self.reference.weighting == "sum":
            seed = self.scaled(by, weights)
        else:
            seed = self.over_tokens(by, weights, made.get(counter) if counts else None)
        if shares:
            seed = self.einsum([seed, made[shares[0]], self.row(INVERSE, (), [made[shares[1]]])], ())
        return self.einsum([seed, self.counter("loss_scale")], ()) if scales else seed

    def by_count(self, divided: dict[str, int], loss: str, made: Mapping[str, Cell]) -> int:
        """How often something is divided by a count that is a tensor; a count that is a product of numbers is that."""
        counts = divided.pop("count", 0)
        if loss in self.counted and counts:
            for name, power in self.counted[loss].items():
                divided[name] = divided.get(name, 0) + counts * power
            return 0
        if counts not in (0, 1) or (counts and loss not in made):
            raise Outside(self.event.path, "it is not divided by a count that was made")
        return counts

    def over_tokens(self, by: Mapping[str, int], value: Cell, count: Cell | None) -> Cell:
        """A sum over tokens as the mean that the single device takes of it, by a count of them or by numbers."""
        if count is not None:
            value = self.einsum([value, self.row(INVERSE, (), [count])], ())
            if MICROBATCH not in self.graph.dims or by_samples(self):
                return self.scaled(by, value)
        alike = {TOKENS: -1, **({"m": 1} if by_samples(self) else {})}
        single = SScale(self.symbols.powers({"m": -1} if count else alike))
        if count or all(counted_alike(self.reference, loss) for loss in self.reference.losses):
            return self.emit(Scale(self.machine(by)), [value], value.split, single)
        # It is added to what a count divides: in two steps, so that what it falls short by is written as there.
        ranks = {a: 1 for a in self.reference.data_axes}
        first = {name: by.get(name, 0) - ranks.get(name, 0) for name in {**by, **ranks}}
        return self.scaled(ranks, self.emit(Scale(self.machine(first)), [value], value.split, single))

    def move(self, e: Event) -> None:
        """What is sent of a tensor, or of its gradient."""
        if e.verb in ("send", "recv"):
            self.between_stages(e)
            return
        if e.verb in ("offload", "fetch"):
            self.of_tier(e)
            return
        source, to = dim_of(e.source), dim_of(e.to)
        verb = e.verb if e.verb != "shift" else "all_gather" if source else "reduce_scatter"  # Rings.v: a whole ring
        from_, into = _PLACES.get(verb, ("", ""))
        if not e.axes or _place(e.source) not in from_ or _place(e.to) not in into:
            raise Outside(e.path, f"{e.source} becomes {e.to}")
        self.begin(e.value, e.version, verb, *e.axes)
        mean = {a: -1 for a in e.axes} if e.op == "mean" else {}
        if e.on_gradient:
            arg = self.gradient(e.tensor, e.version)
            self.set_gradient(e.tensor, e.version, self.scaled(mean, self.sent(verb, e.axes, source, to, arg)))
            return
        arg = self.sent_from(e.tensor, e.version)
        out = self.slot("copy", e.tensor, e.version)
        cell = self.scaled(mean, self.sent(verb, e.axes, source, to, arg, None if mean else out), out)
        self.keep(e.tensor, e.version, cell)

    def of_tier(self, e: Event) -> None:
        """A copy of a tensor goes to another tier, in a slot of its own; or what is there comes back."""
        (source, target), key = e.tiers, self.key(e.tensor, e.version)
        if e.on_gradient or e.axes or {source, target} != {"device", "host"} or (e.verb == "offload") != (
                target == "host"):
            raise Outside(e.path, f"tier = {e.tier}")
        self.begin(e.value, e.version, e.verb)
        if e.verb == "offload":
            self.hosted[key] = self.copied(self.sent_from(e.tensor, e.version), self.slot("host", e.tensor, e.version))
            return
        kept = self.hosted.get(key) or self.nothing("nothing", e.tensor, e.version)
        self.keep(e.tensor, e.version, self.copied(kept, self.slot("copy", e.tensor, e.version)))

    def between_stages(self, e: Event) -> None:
        """What an instance hands to the one behind it, or a gradient back, goes to that one's stage.

        Forward what is sent is at the next stage, and what is received is what was sent; backward what arrives is still
        at the stage behind, and is sent on when the instance before receives it.
        """
        loop = self.graph.loop(self.scope)
        if loop is None or e.axes != (self.stages.axis,) or e.source or e.to or e.where:
            raise Outside(e.path, "it is sent to no other stage")
        if e.verb in self.passed:
            raise Outside(e.path, "there is one message, and it is the second")
        self.passed.add(e.verb)
        _, here, behind, _ = self.stages.moves(self.scope)
        self.begin(e.value, e.verb, *e.axes)
        if (e.verb, e.on_gradient, e.tensor) == ("recv", False, loop.slot) and self.handed_over:
            self.keep(loop.slot, "", self.copied(self.handed_over, self.slot("copy", loop.slot, "")))
        elif (e.verb, e.on_gradient, e.tensor) == ("send", False, loop.last):
            self.leaving = self.sent("all_to_all", e.axes, here, behind, self.read(loop.last))
        elif (e.verb, e.on_gradient, e.tensor) == ("recv", True, loop.last):
            arrived = self.sent("all_to_all", e.axes, behind, here, self.gradient(loop.last))
            self.set_gradient(loop.last, "", arrived)
        elif (e.verb, e.on_gradient, e.tensor) == ("send", True, loop.slot) and self.handed_over:
            self.leaving = self.handed_over
        else:
            raise Outside(e.path, "it is not what an instance hands on")

    def freed(self, e: Event) -> None:
        """A copy is freed; or what a region has made and no op outside reads, with the copies made for its ops."""
        if e.on_gradient:
            raise Outside(e.path, "a gradient is freed")
        if e.value in self.graph.tensors or e.value in keepers(self.graph):
            self.free(e.tensor, e.version)
            return
        inside = {op.output for op in self.graph.of_unit(e.unit) if f"{op.region}.".startswith(f"{e.value}.")}
        named = {v.tensor for v in e.operands}
        handed = {name for loop in self.graph.handed for name in (loop.first, loop.last)}
        own = {n for n in inside - named - handed
               if all(op.output in inside for op in self.graph.consumers(n))}
        own |= {name for name, of in keepers(self.graph).items() if of in inside - named}
        reading = self.readers()
        for _, name, label in sorted(self.live):
            readers = reading.get((name, label), set())
            if name in own or (label and readers and readers <= inside):
                self.free(name, label)

    def readers(self) -> dict[tuple[str, str], set[str]]:
        """Copy of a tensor -> the ops that read it, or a copy that derives from it."""
        found: dict[tuple[str, str], set[str]] = {}
        for e in self.step.events:
            if e.on_tensor and e.verb == "compute" and e.phase == "forward":
                for version in e.operands:
                    for label in origins(version.label):
                        found.setdefault((version.tensor, label), set()).add(e.value)
        return found
