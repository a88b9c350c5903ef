"""What transfer rules read from a machine: ranks of an event, versions at a position, divisors; the log of reads."""

from __future__ import annotations

from collections.abc import Mapping

from placealg.arith import ONE, Monomial
from placealg.models.tokens import weights_of_loss
from placealg.prover.calculus import versions
from placealg.prover.calculus.contribution import count_cell, count_name, counts_of, depends, each_cell, exists
from placealg.prover.calculus.event_ranks import pairs
from placealg.prover.calculus.machine import Machine, Read
from placealg.prover.calculus.microbatches import Iteration
from placealg.prover.calculus.positions import (
    DEVICE,
    UNIT,
    Pairs,
    Position,
    dim_of,
    varies,
)
from placealg.prover.calculus.versions import CURRENT, GARBAGE, Version
from placealg.step.event import COUNT, COUNTS_OF_SAMPLES, MICROBATCH, PADDING, SAMPLES_HERE
from placealg.step.program import LOOPED, Event, Reference
from placealg.step.split import split_of
from placealg.strategy.vocabulary import NONE

MIDDLE, EARLIER = Position("middle"), Position("earlier")
"""The name of a microbatch without the unit, one of any number of them; and the name of such a one after it has ended.
"""

PADDED, ELEMENTS = "padded:", "elements:"
"""The prefixes of two symbols of a layout along axes: the size of its shards padded to the largest, and its elements.
"""


class NoRule(Exception):
    """An event without a transfer rule in the calculus: never proved, and refuted only if a simulated run differs."""

    def __init__(self, event: str, why: str):
        super().__init__(f"{event}: {why}")
        self.event, self.why = event, why


def at_places(version: Version, places: Mapping[str, Position]) -> Version:
    """The version held by the rank at `places` (axis -> position); GARBAGE if an axis has no such rank."""
    for axis, position in places.items():
        version = versions.read_at(version, axis, position)
        for condition in exists(axis, position):
            version = versions.choose(condition, version, GARBAGE)
    return version


def divisor(machine: Machine, event: Event, iteration: Iteration) -> Monomial | None:
    """An event's divisor in sizes and counts; None if it reads an undefined count."""
    monomial = event.divisor
    result = Monomial(monomial.coefficient)
    for name, power in monomial.powers:
        factor = Monomial.of(name)
        if name == "tokens":
            factor = Monomial.of(tokens(machine, event, iteration))
        elif name in (COUNT, *COUNTS_OF_SAMPLES):
            counted = machine.counts.get(machine.reference.counter(event, name))
            if counted is None:
                return None
            factor = counted
        elif name == PADDING:
            factor = _padding(event)
        result = result * factor**power
    return result


def _padding(event: Event) -> Monomial:
    """The padded size of an event's shards over their elements: a quotient of two symbols per layout and axes."""
    if event.drawn:
        raise NoRule(event.path, "padding of shards that differ from rank to rank")
    if not event.owning:
        return ONE
    shards = f"{event.layout}:{','.join(sorted(set(event.owning)))}"
    return Monomial.of(f"{PADDED}{shards}") / Monomial.of(f"{ELEMENTS}{shards}")


def counted(machine: Machine, event: Event, iteration: Iteration) -> str:
    """The symbol of what a count is of, on a rank: samples, tokens that are followed, or those of another loss.

    Samples are of rows: along an axis that splits no row each rank has all.
    """
    if event.unit in COUNTS_OF_SAMPLES:
        rows = (a for a in machine.reference.data_axes if loss_dim(machine.reference, a) == "batch")
        return count_name(_inside(event, iteration, dict.fromkeys(rows, DEVICE)), SAMPLES_HERE)
    read = next((name for name, _ in event.operands), weights_of_loss(event.unit))
    losses = (machine.flows.step if machine.flows else machine).reference.losses
    loss = next(name for name in losses if weights_of_loss(name) == read)
    return tokens(machine, event, iteration, "" if loss == machine.site.loss else loss)


def tokens(machine: Machine, event: Event, iteration: Iteration, of: str = "") -> str:
    """The symbol of the rank's number of tokens: in this microbatch inside the loop, in all microbatches outside.

    A loss counts tokens along the axes that split its operand; any other event counts them along the data axes.
    """
    cell = dict.fromkeys(machine.reference.data_axes, DEVICE)
    summed = machine.flows.at(iteration.position).loss if machine.flows else {}
    if event.path in summed:
        apart = {(axis, position) for axis, position in summed[event.path] if dim_of(position)}
        for axis, dim in ((a, dim_of(p)) for a, p in sorted(apart)):
            if dim != loss_dim(machine.reference, axis):
                raise NoRule(event.path, f"tokens of a loss that {axis} splits along {dim}, unlike its data")
            if dim == "batch" and axis not in machine.reference.data_axes:
                raise NoRule(event.path, f"tokens of a loss that {axis} splits along {dim}, not known to divide")
        cell = {axis: DEVICE for axis, _ in apart}
    return count_name(_inside(event, iteration, cell), of)


def _inside(event: Event, iteration: Iteration, cell: dict[str, Position]) -> dict[str, Position]:
    """A cell of this microbatch, inside the loop over them."""
    here = {MICROBATCH: UNIT if iteration.active else Position(iteration.position)}
    return {**cell, **here} if event.phase in LOOPED else cell


def leave(machine: Machine, event: Event) -> None:
    """End a middle microbatch, which stands for any number of them: its count becomes one of earlier microbatches.

    All earlier microbatches share one name although their counts differ; raises NoRule if a gradient is scaled by one.
    """
    def earlier(cell: dict[str, Position]) -> dict[str, Position]:
        return {**cell, MICROBATCH: EARLIER} if cell.get(MICROBATCH) == MIDDLE else cell

    slots = [machine.slot, machine.skip, *(tag.slot for value in machine.values.values() for tag in value.tags)]
    held = [*machine.values.values(), *(slot.counted for slot in slots if slot)]
    names = {n for value in held for term in value.terms for n in term.coefficient.names()}
    if any((count_cell(n) or {}).get(MICROBATCH) in (MIDDLE, EARLIER) for n in names):
        raise NoRule(event.path, f"a gradient of {machine.group.name} keeps what another microbatch counted")
    machine.counts = {name: each_cell(count, earlier) for name, count in machine.counts.items()}


def loss_dim(reference: Reference, axis: str) -> str:
    """The dim by which an axis splits the operand of the loss."""
    dim = split_of(reference.dims.get(axis, ()), reference.graph.ops[-1], reference.graph)
    return "batch" if dim in ("", NONE) else dim


def observe(machine: Machine, event: Event, kind: str, version: Version, iteration: Iteration,
            where: Pairs = frozenset()) -> None:
    """Log a read, observed on the ranks on which the event runs and that also satisfy `where`."""
    read = versions.where(pairs(event) | where, version, CURRENT)
    machine.reads.append(Read(event.path, kind, iteration.position, read, CURRENT))


def count_over(count: Monomial, axis: str) -> Monomial | None:
    """The sum of a count over the ranks of an axis; None if the sum has no closed form as a count."""
    if not depends(count, axis):
        return count * Monomial.of(axis)
    total = Monomial(count.coefficient)
    for name, power in count.powers:
        cell = count_cell(name)
        if cell and depends(Monomial.of(name), axis):
            if power != 1 or cell.get(axis) != DEVICE or any(varies(p) == axis for p in cell.values()):
                return None
            name = count_name({a: p for a, p in cell.items() if a != axis}, counts_of(name))
        total = total * Monomial.of(name) ** power
    return total
