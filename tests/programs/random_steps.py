"""Random steps of one parameter group: events that have a meaning and a transfer rule; the meshes that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

from tables import CURRENT
from test_transfer_rules import GROUP, STEP
from worlds import World

from placealg.arith import ONE, Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.prover.calculus import transfer
from placealg.prover.calculus.machine import STATES
from placealg.prover.calculus.microbatches import CASES, Case
from placealg.prover.calculus.places import NoRule
from placealg.step.event import ACROSS, LOOPED, Clause, Event
from placealg.step.verbs import VERBS
from placealg.step.well_formed import check_event

AXES = tuple(STEP.reference.mesh.names)


@dataclass(frozen=True)
class Begin:
    """What the ranks of `where` hold of a value before a program: a state, a zero, the sum or the mean of a batch."""

    value: str
    what: str
    tier: str = "device"
    where: tuple[Clause, ...] = ()


@dataclass(frozen=True)
class Program:
    """The events of some steps, one after the other, and what ranks hold when the first begins."""

    steps: tuple[tuple[Event, ...], ...]
    begins: tuple[Begin, ...]
    split: tuple[str, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for step in self.steps for event in step)

    @property
    def cases(self) -> Sequence[Case]:
        return CASES if any(event.phase in LOOPED for event in self.events) else CASES[:1]

    def without(self, step: int, event: int) -> Program:
        """The program with one event less."""
        events = self.steps[step]
        return replace(self, steps=(*self.steps[:step], events[:event] + events[event + 1:], *self.steps[step + 1:]))


GRADIENTS, MARKS, COUNT = ("grad", "grad_sum", "grad_sum"), ("norm", "skip"), ("count",)
"""Values of gradients, of what is read off them, and of the loss."""

STATE_VERBS = ("broadcast", "slice", "free", "gather", "all_gather", "assign", "offload", "fetch", "publish", "update",
               "update")
GRADIENT_VERBS = (*["reduce"] * 5, "slice", "free", "all_gather", "all_gather", "zero", "accumulate",
                  "offload", "fetch", "assign", "scale", "scale", "norm", "clip", "compute", "all_reduce", "all_reduce")
"""The verbs that are drawn, as often as they stand here."""

TIERS = ("device", "device", "device", "device", "host")
LAYOUTS = ("own", "own", "own", "other", *(f"mine({axis})" for axis in AXES))
RANKS = (None, None, 0, 1)
"""The ranks of a clause of `where`: the owner, or one that some meshes lack."""

POSITIONS = ((), (), (), ("first",), ("last",), ("middle",), ("first", "middle"), ("middle", "last"),
             ("only", "last"), ("only",))
DIVISORS = (*map(Monomial.of, (*AXES, "m", "tokens", "tokens", "count", "count")), Monomial.number(Fraction(2)))


def some_clauses(rng: Random, share: float) -> tuple[Clause, ...]:
    """A `where`: of a share of events one or two clauses, of the others none."""
    clauses = tuple(Clause(rng.choice(AXES), rng.choice(RANKS)) for _ in range(rng.choice((1, 1, 2))))
    return clauses if rng.random() < share else ()


def some_event(rng: Random, phase: str, verbs: Sequence[str], values: Sequence[str]) -> Event:
    """An event on one of `values` that has a meaning and a transfer rule."""
    while True:
        verb = rng.choice([v for v in verbs if {*VERBS[v].values} & {*values}])
        value = rng.choice([v for v in values if v in VERBS[verb].values])
        event = _valued(rng, _placed(rng, Event(phase, verb, value)))
        try:
            check_event(event, STEP.reference)
            transfer.check(event)
        except (InputError, NoRule):
            continue
        return event


def _placed(rng: Random, event: Event) -> Event:
    """The event on some ranks, along some axes, in some microbatches, on some tier."""
    verb = VERBS[event.verb]
    placed = replace(event, where=some_clauses(rng, 0.1 if verb.collective else 0.35))
    if event.phase in LOOPED:
        placed = replace(placed, at=rng.choice(POSITIONS))
    if verb.needs_axes or (event.verb in ("free", "publish") and rng.random() < 0.5):
        placed = replace(placed, axes=tuple(rng.sample(AXES, rng.choice((1, 1, 2)))))
    if event.value == "count" or event.verb == "all_reduce":
        return replace(placed, unit="loss" if event.value == "count" else "")
    tier = "device" if event.verb in ACROSS else rng.choice(TIERS)
    return replace(placed, group=GROUP.name, tier=tier, layout=rng.choice(LAYOUTS))


def _valued(rng: Random, event: Event) -> Event:
    """The event with a source, an operator, a divisor or a root, if its verb has one."""
    if event.verb in ("assign", *ACROSS):
        source = rng.choice(("", *(STATES if event.value in STATES else GRADIENTS)))
        begins = event.value == "moments" and not source
        return replace(event, source=source, phase=rng.choice((event.phase, "init")) if begins else event.phase)
    by = rng.choice(DIVISORS)
    if event.verb == "reduce":
        return replace(event, op=rng.choice(("sum", "mean", "premultiplied")), to=rng.choice("IS"),
                       divisor=rng.choice((ONE, by)))
    if event.verb == "all_reduce":
        return replace(event, op=rng.choice(("sum", "sum", "mean")))
    if event.verb == "scale":
        return replace(event, divisor=rng.choice((by, ONE / by)))
    return replace(event, root=rng.choice((0, 0, 1))) if event.verb == "broadcast" else event


def some_events(rng: Random, phase: str, count: int, *values: str) -> list[Event]:
    """Events on gradients, norms, flags and counts."""
    return [some_event(rng, phase, GRADIENT_VERBS, values) for _ in range(count)]


def some_gradients(rng: Random) -> Program:
    """Events on gradients, norms, flags and counts outside the loop, of one step or of two."""
    steps = tuple(tuple(some_events(rng, "reduce", count, *GRADIENTS, *MARKS, *COUNT))
                  for count in rng.choice(((1,), (2,), (3,), (4,), (5,), (2, 2))))
    begins = [Begin("grad_sum", rng.choice(("sum", "mean")), where=some_clauses(rng, 0.3))]
    begins += [Begin("grad", rng.choice(("sum", "mean")), where=some_clauses(rng, 0.3))] if rng.random() < 0.6 else []
    begins += [Begin("grad_sum", "zero", "host")] if rng.random() < 0.4 else []
    return Program(steps, tuple(begins), rng.choice(((), AXES[:1])))


def some_states(rng: Random) -> Program:
    """Events on weights, master weights and moments, of one step or of two."""
    steps = tuple(tuple(some_event(rng, "update", STATE_VERBS, STATES) for _ in range(count))
                  for count in rng.choice(((2,), (3,), (4,), (5,), (2, 2), (3, 2))))
    begins = (Begin(state, CURRENT, where=some_clauses(rng, 0.1)) for state in STATES if rng.random() < 0.8)
    return Program(steps, tuple(begins), rng.choice(((), AXES[:1])))


FORWARD, LOSS, SCALE, BACKWARD, ACCUMULATE, ZERO = (STEP.event(path) for path in (
    "forward.layer.compute", "forward.loss.compute", "backward.loss.scale", "backward.layer.compute",
    "backward.layer.weight.grad_sum.accumulate", "prepare.layer.weight.grad_sum.zero"))


def some_loop(rng: Random) -> Program:
    """Steps in which a unit runs forward and backward in every microbatch, among counts and events on gradients."""
    first, second = _looped(rng), (ZERO, *_looped(rng))
    return Program(rng.choice(((first,), (first,), (first, second))), (Begin("grad_sum", "zero"),))


def _looped(rng: Random) -> tuple[Event, ...]:
    before = some_events(rng, "prepare", rng.choice((0, 0, 1)), *GRADIENTS, *COUNT)
    counts = some_events(rng, "forward", rng.choice((0, 1, 2)), *COUNT)
    loss = replace(LOSS, divisor=rng.choice((ONE, *DIVISORS)))
    backward = [event if rng.random() < 0.6 else replace(event, at=rng.choice(POSITIONS))
                for event, share in ((SCALE, 0.5), (BACKWARD, 1), (ACCUMULATE, 0.9)) if rng.random() < share]
    if rng.random() < 0.2:
        rng.shuffle(backward)
    for event in some_events(rng, "backward", rng.choice((0, 1, 2, 3)), *GRADIENTS, *COUNT):
        backward.insert(rng.randrange(len(backward) + 1), event)
    behind = some_events(rng, "reduce", rng.choice((0, 1, 2)), *GRADIENTS, *COUNT, *MARKS)
    return (*before, *counts, FORWARD, loss, *backward, *behind)


def some_world(rng: Random, case: Case) -> World:
    """A small mesh on which the microbatches stand as a case has it."""
    lengths = [rng.choice((1, 2, 3)) if iteration.many else 1 for iteration in case.iterations]
    active = next(k for k, iteration in enumerate(case.iterations) if iteration.active)
    count = sum(lengths)
    stands = {"first": 0, "only": 0, "last": count - 1, "unit": sum(lengths[:active])}
    return World(FrozenMap({axis: rng.choice((1, 2, 3)) for axis in AXES}), rng.randrange(10**6),
                 FrozenMap({f"microbatch:{name}": k for name, k in stands.items()}), microbatches=count)
