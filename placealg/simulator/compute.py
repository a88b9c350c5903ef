"""What `compute` does on a machine, but for ops: the loss, the token count, flags and statistics."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from placealg.simulator import network, operate, parameters
from placealg.simulator.divisors import divided
from placealg.simulator.machine import Machine, fraction
from placealg.step.event import COUNTS_OF_SAMPLES
from placealg.step.program import Event


def compute(m: Machine, e: Event) -> None:
    """Run a compute event on every rank that `where` selects; a flag is made on every rank."""
    if e.value in ("skip", "grad"):
        (_look if e.value == "skip" else _take)(m, e)
        return
    for rank in m.acting(e):
        if m.chosen(e, rank):
            if e.value == "count":
                read, how = e.operands[0] if e.operands else ("", "")
                m.target(e)[rank][0] = Fraction(m.sample_count(rank) if e.unit in COUNTS_OF_SAMPLES else
                                                m.token_count(rank, e.unit, how, read))
            else:
                operate.read_loss(m, e, rank)


def _look(m: Machine, e: Event) -> None:
    """The flag of a group's instance: whether an element that the rank holds and `where` selects overflows."""
    gradients, flags = m.table(e.tiers[0], "grad_sum", *m.slot(e)), m.target(e)
    for rank in m.acting(e):
        seen = (n for element, n in gradients[rank].items() if m.chosen(e, rank, element))
        flags[rank][0] = Fraction(any(m.overflows(e.group, n) for n in seen))


def _take(m: Machine, e: Event) -> None:
    """The statistic of the unit's instance, of what entered it on each rank."""
    if m.reference.group(e.group).taken:
        for rank in m.acting(e):
            parameters.take(m, e, rank, partial(divided, m, e, rank))
        return
    (op,) = m.space.graph.of_unit(m.reference.group(e.group).unit)
    for rank in m.acting(e):
        kept, weight = m.stores[rank].kept.get((op.output, m.instance)), fraction(divided(m, e, rank, Fraction(1)))
        found = None
        if kept is not None and weight is not None:
            taken = network.largest if m.reference.group(e.group).merge == "max" else network.second_moments
            found = taken((x, weight) for x in kept["inputs"].numbers.tolist())
        for element in m.elements(e):
            if m.chosen(e, rank, element):
                m.target(e)[rank][element] = m.garbage() if found is None else found[element]


def start_backward(m: Machine, e: Event) -> None:
    """Divide the value from which the backward of a loss starts, where the loss has been computed."""
    for rank in m.acting(e):
        seed = m.stores[rank].seeds.get(e.unit)
        if m.chosen(e, rank) and seed is not None:
            m.stores[rank].seeds[e.unit] = divided(m, e, rank, seed)
