"""The transfer rules of computations where units run whole: what one leaves of weights, streams and gradients."""

from __future__ import annotations

from dataclasses import replace

from placealg.arith import ONE
from placealg.frozen import FrozenMap
from placealg.prover.calculus.contribution import DEVICE, UNIT, Equality, Term, Value, equality
from placealg.prover.calculus.machine import Machine, Pairs, Ran
from placealg.prover.calculus.microbatches import Iteration
from placealg.prover.calculus.places import NoRule, divisor, observe, pairs
from placealg.step.program import Event


def run_whole(machine: Machine, event: Event, iteration: Iteration) -> None:
    """A forward or a backward of a unit, or a loss: it computes where what it reads was computed before."""
    units = [u.name for u in machine.reference.units]
    where = pairs(event)
    if event.value == "loss":
        ready = machine.fresh.get(("forward", units[-1]))
        by = divisor(machine, event, iteration)
        machine.seed = ONE / by if by is not None and ready is not None else None
    elif event.phase == "backward":
        behind = units.index(event.unit) + 1
        kept = machine.fresh.get(("forward", event.unit))
        loss = machine.site.loss
        after = machine.fresh.get(("backward", units[behind]) if behind < len(units) else ("forward", loss))
        ready = None if kept is None or after is None else kept | after
        seed = machine.seed if behind == len(units) else machine.flow.get(units[behind])
        if seed is None:
            ready = None
        _read_weights(machine, event, iteration)
        if event.unit in machine.flow and _begins_in_one_instance(machine, event):
            raise NoRule(event.path, f"no transfer rule for another backward of {event.unit} in a microbatch")
        machine.flow[event.unit] = seed if ready is not None else None
        _contribute(machine, event, iteration, where if ready is None else where | ready)
    else:
        before = units.index(event.unit) - 1
        ready = frozenset() if before < 0 else machine.fresh.get(("forward", units[before]))
        _read_weights(machine, event, iteration)
        observe(machine, event, "rng", machine.version("rng"), iteration)
    machine.ran.append(Ran(event.path, event.phase, event.unit, iteration.position, ready is not None, where))
    if ready is not None:
        machine.fresh[event.phase, event.unit] = ready | where
    else:
        machine.fresh.pop((event.phase, event.unit), None)


def _begins_in_one_instance(machine: Machine, event: Event) -> bool:
    """Whether a gradient begins with one of a repeated unit's instances, and the others add to it."""
    unit = next(u for u in machine.reference.units if u.name == event.unit)
    return unit.count != ONE and event.unit == machine.group.sites[-1] != machine.group.unit


def _read_weights(machine: Machine, event: Event, iteration: Iteration) -> None:
    if event.unit in machine.group.sites:
        observe(machine, event, "weight", machine.version("weight"), iteration)


def _contribute(machine: Machine, event: Event, iteration: Iteration, where: Pairs) -> None:
    """Set or add a unit's contribution to grad, weighted as the gradient that flowed back to the unit."""
    group, seed = machine.group, machine.flow[event.unit]
    if event.unit not in group.sites or group.statistic:
        return
    terms: tuple[Term, ...] = ()
    if iteration.active and event.unit == machine.site.use and seed is not None:
        at = FrozenMap({a: UNIT for a in machine.reference.data_axes})
        terms = (Term(seed, at),)
    sides: frozenset[Equality] = frozenset(e for a, p in where for e in equality(a, DEVICE, p))
    new = Value(terms, sides=sides, garbage=seed is None and iteration.active)
    if event.unit != group.sites[-1]:
        old = machine.value("grad")
        held = frozenset(e for a, p in old.mask for e in equality(a, DEVICE, p))
        before = replace(old, mask=frozenset(), sides=old.sides | held, garbage=old.garbage or not old.held, held=True)
        new = before.plus(new)
    machine.values["grad", "device"] = new
