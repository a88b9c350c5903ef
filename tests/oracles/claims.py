"""What the abstract machine claims at the end of a program, rank by rank, and whether a table of the ranks has it.

Of a rank the machine says what its element's weight is, or that it holds none, or which copy of a state it holds; or
it says nothing: that what is held is garbage, or that it may be anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

from random_steps import AXES, Program
from tables import CURRENT, NEXT, Number, Place, Table, clip_factor
from test_transfer_rules import GROUP, STEP, leaf
from worlds import GARBAGE, Rank, World

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus import one_step, versions
from placealg.prover.calculus.contribution import OPAQUE, Slot, Tag, Term, Value, count_cell, count_name
from placealg.prover.calculus.machine import STATES, Machine, Site
from placealg.prover.calculus.microbatches import Case
from placealg.prover.calculus.parameter_uses import concerns
from placealg.prover.calculus.places import EARLIER, MIDDLE
from placealg.prover.calculus.positions import DEVICE, UNIT
from placealg.prover.ops.flow import Flows
from placealg.step.event import Event, phase_order
from placealg.step.lower import lowered, of_ops
from placealg.step.program import Step

ANYTHING = "anything"
"""What the machine says of a rank of which it claims nothing, not even whether it holds the element."""

LEAVES = {CURRENT: versions.CURRENT, NEXT: versions.NEXT, GARBAGE: versions.GARBAGE, None: versions.UNHELD}


@lru_cache(maxsize=1024)
def followed(step: tuple[Event, ...]) -> tuple[Flows, tuple[Event, ...]]:
    """What whole units leave in a step of a program, and the events that the group sees, lowered; each has its path."""
    events = tuple(replace(event, copy=k) for k, event in enumerate(step, 1))
    ordered = lowered(Step(STEP.reference, tuple(sorted(events, key=lambda e: phase_order(e.phase)))))
    alone = (e for event in events for e in lowered(Step(STEP.reference, (event,))).events)
    return Flows(ordered), tuple(e for e in alone if not e.on_tensor or concerns(e, GROUP.name, ordered.reference))


def machine_after(program: Program, case: Case) -> Machine | None:
    """The abstract machine at the end of a program; None where it does not stand for every number of microbatches."""
    owned = frozenset((axis, "own:own") for axis in program.split)
    group = replace(of_ops(STEP.reference).group(GROUP.name), split=program.split)
    machine = Machine(of_ops(STEP.reference), group, Site("layer.out/1", GROUP.name))
    tokens = Monomial.of(count_name(dict.fromkeys(AXES, DEVICE)))
    contribution = Term(ONE, FrozenMap(dict.fromkeys(AXES, UNIT)))
    begun = {"zero": (), "sum": (contribution,), "mean": (contribution.times(ONE / tokens),)}
    for begin in program.begins:
        there = owned | {(c.axis, "own:own" if c.rank is None else str(c.rank)) for c in begin.where}
        if begin.what == CURRENT:
            machine.versions[begin.value, begin.tier] = versions.where(there, versions.CURRENT, versions.UNHELD)
        else:
            machine.values[begin.value, begin.tier] = Value(begun[begin.what], there, zero=begin.what == "zero")
    for number, step in enumerate(program.steps):
        machine = machine.next_step() if number else machine
        machine.flows, seen = followed(step)
        run = one_step.run_step(machine, one_step.Program((), seen, (), ()), case)
        if not run.whole:
            return None
        machine = run.unsaved
    return machine


def table_after(program: Program, world: World) -> Table:
    """The table at the end of a program."""
    table = Table(world, program.split)
    for begin in program.begins:
        table.begin(begin.value, begin.tier, begin.what, begin.where)
    for number, step in enumerate(program.steps):
        if number:
            table.next_step()
        table.run_step(step)
    return table


def known(amount: Monomial) -> bool:
    """Whether a world has the number: of an unknown sum and of a microbatch of any number it has none."""
    cells = [count_cell(name) or {} for name in amount.names()]
    return not any(n.startswith(OPAQUE) for n in amount.names()) and not any(
        cell.get("microbatch") in (MIDDLE, EARLIER) for cell in cells)


def claimed(world: World, value: Value, rank: Rank) -> Any:
    """What the machine says that a rank holds: a weight, None, or garbage, of which it says nothing but that."""
    if not all(known(term.coefficient) for term in value.terms):
        value = replace(value, garbage=True)
    found = world.on(value, rank)
    if found is None and value.held and value.mixed is not None and world.stands(value.mixed, rank):
        return ANYTHING
    if not isinstance(found, Fraction):
        return found
    norms = [norm_of(world, tag, rank) for tag in value.tags]
    return GARBAGE if None in norms else found * prod(clip_factor(norm) for norm in norms if norm is not None)


def norm_of(world: World, tag: Tag, rank: Rank) -> Fraction | None:
    """The norm with which a rank clipped; None where the machine does not say it."""
    if tag.mixed or not tag.slot or not defined(world, tag.slot):
        return None
    found = set()
    for peers in world.for_each_peer():
        there = {a: peers.position(a, tag.rank.get(a, DEVICE), rank) for a in world.sizes}
        if there not in world.ranks():
            return None
        found.add(world.total(tag.slot.terms, there))
    return found.pop() if len(found) == 1 else None


def defined(world: World, slot: Slot) -> bool:
    """Whether the machine claims a norm or a flag, and of what it counts a number wherever it counts."""
    return slot.defined and all(known(t.coefficient) for t in slot.terms) and all(
        isinstance(claimed(world, slot.counted, rank), Fraction)
        for rank in world.ranks() if world.stands(slot.where, rank))


@dataclass
class Found:
    """What a comparison came to: how often each verb was followed, each kind of claim made; what did not hold."""

    verbs: Counter[str] = field(default_factory=Counter)
    claims: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, kind: str, where: str, claim: Any, holds: bool, got: Any) -> None:
        self.claims[kind] += 1
        if not holds:
            self.wrong.append(f"{where}: claimed {claim}, the table has {got}")


def compare(machine: Machine, table: Table, found: Found) -> None:
    """Every claim of the machine about every rank of the table's mesh."""
    for key in sorted({*machine.versions, *machine.values, *table.held}):
        for rank in table.ranks:
            _held(machine, table, key, rank, found)
    for name, slot in (("norm", machine.slot), ("skip", machine.skip)):
        if slot and slot.defined and slot.counted.held:
            _looks(table, name, slot, found)
    counted = machine.counts.get("loss")
    if counted is not None and known(counted):
        for rank in table.ranks:
            count, got = table.world.number(counted, rank), table.partial.get("count", {}).get(rank)
            found.add("count", f"count on {rank}", count, count == got, got)


def _held(machine: Machine, table: Table, key: tuple[str, str], rank: Place, found: Found) -> None:
    got, where = table.row(*key).get(rank), f"{'@'.join(key)} on {rank}"
    if key[0] in STATES:
        copy = versions.trusted(leaf(machine.version(*key), table.world, rank))
        found.add(f"state {copy}", where, copy, LEAVES[got] == copy, got)
        return
    value = machine.value(*key)
    claim = claimed(table.world, value, rank)
    if claim is None:
        found.add("not held", where, claim, got is None, got)
    elif claim not in (GARBAGE, ANYTHING):
        kind = "weight" if claim not in (0, 1) else f"weight {claim}"
        zero = value.zero and not value.tags
        found.add(kind, where, claim, isinstance(got, Number) and got.weight == claim and got.zero >= zero, got)
    else:
        found.claims[claim] += 1


def _looks(table: Table, name: str, slot: Slot, found: Found) -> None:
    """Where an element was looked at, what was found there, and how often that makes on each rank."""
    world = table.world
    for rank in table.ranks:
        got = table.seen[name].get(rank)
        claim = claimed(world, slot.counted, rank) if world.stands(slot.where, rank) else None
        if claim is None or isinstance(claim, Fraction):
            right = got is None if claim is None else isinstance(got, Number) and got.weight == claim
            found.add(f"{name} of", f"{name} of {rank}", claim, right, got)
    for rank in table.ranks if defined(world, slot) else ():
        count, counted = world.total(slot.terms, rank), table.partial[name].get(rank)
        right = count == counted if name == "norm" else bool(count) == bool(counted)
        found.add(name, f"{name} on {rank}", count, right, counted)
