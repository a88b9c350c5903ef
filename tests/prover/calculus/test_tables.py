"""Random programs: all that the abstract machine claims of one element holds in a table of what every rank holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import Any, cast

import pytest
from claims import Found, compare, machine_after, table_after
from random_steps import (
    AXES,
    GRADIENT_VERBS,
    STATE_VERBS,
    Program,
    some_gradients,
    some_loop,
    some_states,
    some_world,
)
from tables import CURRENT, NEXT, Number, Stuck, Table, clip_factor
from test_transfer_rules import GROUP, STEP
from worlds import World

from placealg.frozen import FrozenMap
from placealg.prover.calculus import one_step, parameter_uses, places, transfer, versions
from placealg.prover.calculus.contribution import EXISTS, Value, count_name
from placealg.prover.calculus.machine import STATES, Machine
from placealg.prover.calculus.microbatches import CASES, Case, Iteration
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import DEVICE
from placealg.step.event import STEP_PHASES, Clause, Event

Draw = Callable[[Random], Program]
FAMILIES: dict[str, Draw] = {"gradients": some_gradients, "states": some_states, "loop": some_loop}
VERBS_OF = {"gradients": GRADIENT_VERBS, "states": STATE_VERBS,
            "loop": ("compute", "all_reduce", "scale", "accumulate", "reduce", "all_gather", "zero")}
"""The verbs of each family that must be followed."""

LEAST: Mapping[str, Mapping[str, float]] = {
    "gradients": {"weight": 0.02, "weight 0": 0.2, "weight 1": 0.02, "not held": 0.3, "norm": 0.02, "skip": 0.002,
                  "count": 0.005},
    "states": {f"state {versions.CURRENT}": 0.2, f"state {versions.NEXT}": 0.02, f"state {versions.UNHELD}": 0.2},
    "loop": {"weight": 0.02, "weight 0": 0.2, "weight 1": 0.02, "not held": 0.1, "count": 0.05, "skip": 0.01}}
"""Kind of claim -> its least share; a weight is one that is neither 0 nor 1."""

WORLDS_OF_A_CASE = {"gradients": 8, "states": 8, "loop": 2}


def compared(program: Program, worlds: Sequence[tuple[Case, World]]) -> Found:
    """What holds of a program in some worlds; nothing is claimed of one that no rules cover."""
    found = Found()
    machines: dict[Case, Machine | None] = {}
    for case, world in worlds:
        try:
            if case not in machines:
                machines[case] = machine_after(program, case)
            machine = machines[case]
            if machine is None:
                found.claims["not every m"] += 1
                continue
            compare(machine, table_after(program, world), found)
            found.verbs.update({event.verb for event in program.events})
        except NoRule:
            return Found(claims=Counter({"no rule": 1}))
        except Stuck:
            found.claims["stuck"] += 1
    return found


def smallest(program: Program, worlds: Sequence[tuple[Case, World]]) -> Program:
    """The program without the events that what is wrong does not need."""
    for step, events in enumerate(program.steps):
        for event in range(len(events)):
            less = program.without(step, event)
            if compared(less, worlds).wrong:
                return smallest(less, worlds)
    return program


FIELDS = ("at", "where", "tier", "layout", "source", "op", "to", "divisor", "root")


def told(event: Event) -> str:
    plain = Event("", "", "")
    fields = [f"{name} = {getattr(event, name)}" for name in FIELDS if getattr(event, name) != getattr(plain, name)]
    return f"  {event} {', '.join(fields)}"


def described(program: Program, worlds: Sequence[tuple[Case, World]]) -> str:
    """A disagreement in as few events as show it."""
    least = smallest(program, worlds)
    case, world = next(w for w in worlds if compared(least, [w]).wrong)
    lines = [compared(least, [(case, world)]).wrong[0],
             f"sizes {world.sizes}, m = {world.microbatches}, the token's microbatch {case.name}, seed {world.seed}",
             f"split {least.split}", *(f"begins with {begin}" for begin in least.begins)]
    for step in least.steps:
        lines += ["a step:", *(told(event) for event in step)]
    return "\n".join(lines)


def search(family: str, seed: int, programs: int) -> Iterator[Found]:
    """The comparisons of random programs; what is wrong with one is told in its fewest events."""
    rng = Random(f"{family} {seed}")
    for _ in range(programs):
        program = FAMILIES[family](rng)
        worlds = [(case, some_world(rng, case)) for case in program.cases for _ in range(WORLDS_OF_A_CASE[family])]
        found = compared(program, worlds)
        yield replace(found, wrong=[described(program, worlds)]) if found.wrong else found


PROGRAMS = {"gradients": 100, "states": 60, "loop": 15}
SEEDS, MANY = range(5), range(5, 250)
SOME = [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)]


@lru_cache(maxsize=8)
def found_with(family: str, seed: int) -> Found:
    """What all programs of a seed came to."""
    total = Found()
    for found in search(family, seed, PROGRAMS[family]):
        total.verbs.update(found.verbs)
        total.claims.update(found.claims)
        total.wrong += found.wrong
    return total


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", SOME)
def test_what_the_machine_claims_a_table_has(family: str, seed: int) -> None:
    assert "\n\n".join(found_with(family, seed).wrong) == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_enough_is_claimed(family: str) -> None:
    """Every verb that is drawn is followed, and weights are not all 0 and 1."""
    found = found_with(family, 0)
    every = sum(found.claims.values())
    assert set(found.verbs) >= {*VERBS_OF[family]}
    assert [kind for kind, share in LEAST[family].items() if found.claims[kind] < share * every] == []
    assert sum(found.claims[kind] for kind in ("no rule", "not every m", "stuck")) < 0.05 * every


def test_a_derived_step_does_what_it_is_for() -> None:
    """Every rank ends with new weights, from the mean over all tokens' shares, clipped by a norm that counts once."""
    events = [e for e in STEP.events if e.phase in STEP_PHASES and e.value not in ("step", "rng")]
    for world in (some_world(Random(seed), case) for seed, case in enumerate(CASES)):
        table = Table(world)
        for state in STATES:
            table.begin(state, "device", CURRENT, ())
        table.run_step(events)
        unit = {axis: world.position(axis, "unit", {}) for axis in (*AXES, "microbatch")}
        share = Fraction(1, world.tokens(unit) * world.microbatches * len(table.ranks))
        assert table.held["weight", "device"] == dict.fromkeys(table.ranks, NEXT)
        assert table.held["grad_sum", "device"] == dict.fromkeys(table.ranks, Number(share * clip_factor(Fraction(1))))


def test_a_collective_that_not_all_enter_gets_stuck() -> None:
    table = Table(World(FrozenMap({"dp": 2, "tp": 1})))
    table.begin("grad", "device", "sum", ())
    total = Event("reduce", "reduce", "grad", GROUP.name, axes=("dp",), op="sum", to="I")
    with pytest.raises(Stuck):
        table.run(replace(total, where=(Clause("dp", 0),)))
    table.run(replace(total, where=(Clause("tp", 0),)))
    assert [number.weight for number in table.held["grad", "device"].values()] == [1, 1]


def test_an_owner_where_an_owner_of_a_rank_s_own_stands() -> None:
    world = World(FrozenMap({"dp": 3, "tp": 3}))
    for rank in world.ranks():
        there = world.position("tp", f"own:mine^dp={rank['dp']}", rank)
        owner = world.position("dp", f"own:mine^tp={there}", rank)
        assert world.position("dp", "own:mine^tp=own:mine~dp", rank) == owner


# wrong rules

RIGHT = dict(transfer.RULES)
Wrong = Callable[[pytest.MonkeyPatch], None]


def rule(verb: str, wrong: Callable[[Machine, Event, Iteration], None]) -> Wrong:
    """A verb has another rule."""
    return lambda patch: patch.setitem(cast(dict[str, Any], transfer.RULES), verb, wrong)


def read_as(verb: str, change: Callable[[Event], Event]) -> Wrong:
    """The rule of a verb takes its events for others."""
    return rule(verb, lambda machine, event, iteration: RIGHT[verb](machine, change(event), iteration))


def without_effect(verb: str) -> Wrong:
    return rule(verb, lambda machine, event, iteration: None)


def blind_to(verb: str, **fields: Any) -> Wrong:
    """The rule of a verb does not read some fields."""
    return read_as(verb, lambda event: replace(event, **fields))


def operator(verb: str, name: str, read: str) -> Wrong:
    """The rule of a sum takes one operator for another."""
    return read_as(verb, lambda event: replace(event, op=read if event.op == name else event.op))


def named(owner: Any, name: str, wrong: Callable[..., Any]) -> Wrong:
    """A function, or a method, is another one."""
    return lambda patch: patch.setattr(owner, name, wrong)


def sum_by_no_count(machine: Machine, event: Event, iteration: Iteration) -> None:
    """A sum that is divided by a count that nobody took is garbage only where its parts were."""
    key = (event.value, event.tier)
    if places.divisor(machine, event, iteration) is None:
        machine.values[key] = replace(machine.value(*key), garbage=True)
    else:
        RIGHT["reduce"](machine, event, iteration)


def sum_over_ranks_there_are_not(value: Value, *rest: Any, summed: Callable[..., Value] = Value.reduced) -> Value:
    """The sum of what a numbered rank holds does not ask whether the axis has that rank."""
    found = summed(value, *rest)
    return replace(found, sides=frozenset(e for e in found.sides if e[1] != EXISTS))


def alone(new: Value, old: Value, where: frozenset[tuple[str, str]]) -> Value:
    """What ranks outside `where` hold is forgotten."""
    return new.masked(where) if new.held else new


def all_tokens(machine: Machine, event: Event, iteration: Iteration) -> str:
    """A microbatch has the tokens of all microbatches."""
    return count_name(dict.fromkeys(machine.reference.data_axes, DEVICE))


def active(machine: Machine, part: Any, iteration: Iteration,
           receive: Callable[..., None] = parameter_uses._receive) -> None:
    """Every microbatch has the token that is followed."""
    receive(machine, part, replace(iteration, active=True))


def added(value: Value, other: Value, plus: Callable[..., Value] = Value.plus) -> Value:
    """A zero to which something is added stays a zero."""
    return replace(plus(value, other), zero=value.zero)


def flag_everywhere(event: Event) -> Event:
    return replace(event, where=()) if event.value == "skip" else event


WRONG: Sequence[tuple[str, str, str, Wrong]] = (
    ("gradients", "divisor = count", "a sum by no count keeps its mask", rule("reduce", sum_by_no_count)),
    ("gradients", ".reduce[", "a sum over a rank that there is not",
     named(Value, "reduced", sum_over_ranks_there_are_not)),
    ("gradients", "op = mean", "a mean does not divide", operator("reduce", "mean", "sum")),
    ("gradients", "op = premultiplied", "each part is divided after the sum",
     operator("reduce", "premultiplied", "sum")),
    ("gradients", "to = S", "a shard is on every rank", blind_to("reduce", to="I")),
    ("gradients", ".slice[", "a slice keeps everything", without_effect("slice")),
    ("gradients", ".free", "a free copy is still there", without_effect("free")),
    ("gradients", ".fetch ", "a fetch reads the device", blind_to("fetch", tier="device->device")),
    ("gradients", ".clip ", "a clip changes nothing", without_effect("clip")),
    ("gradients", ".norm where", "a norm counts everywhere", blind_to("norm", where=())),
    ("gradients", "skip.compute where", "a flag looks everywhere", read_as("compute", flag_everywhere)),
    ("gradients", "tier = host", "only the device accumulates", blind_to("accumulate", tier="device")),
    ("gradients", ".scale ", "a scale that is not", without_effect("scale")),
    ("loop", "count.all_reduce[", "a mean of counts does not divide", operator("all_reduce", "mean", "sum")),
    ("gradients", "a step:\na step:", "the next step finds the gradient of this one",
     named(Value, "stale", lambda value: value)),
    ("gradients", "where = ", "what other ranks hold is forgotten", named(transfer, "chosen", alone)),
    ("states", "mine(", "all ranks have one owner", named(versions, "elsewhere", lambda p, axis, rank: p)),
    ("states", "split ('dp',)", "a split has no owners", named(transfer, "_own", lambda machine, event: frozenset())),
    ("states", "a step:\na step:", "a step ends with what it began with", named(versions, "aged", lambda leaf: leaf)),
    ("states", ".update where", "an update is everywhere", blind_to("update", where=())),
    ("states", ".publish[", "a rank publishes its own", blind_to("publish", axes=())),
    ("states", "root = 1", "the first rank is the root", blind_to("broadcast", root=0)),
    ("states", "moments", "moments are weights",
     named(transfer, "_copy", lambda machine, event, source: machine.version(source, event.tiers[0]))),
    ("loop", "at = ", "an event takes part in every microbatch", named(one_step, "takes_part", lambda *_: True)),
    ("loop", "divisor = ", "a microbatch has all tokens", named(places, "tokens", all_tokens)),
    ("loop", "backward.layer.compute", "every microbatch is the token's", named(parameter_uses, "_receive", active)),
    ("loop", ".accumulate", "an accumulation is lost", without_effect("accumulate")),
    ("loop", ".accumulate", "a zero stays zero", named(Value, "plus", added)),
)
"""Family, what a smallest program names, what is wrong, and how."""


@pytest.mark.parametrize(("family", "says", "wrong"), [(f, says, w) for f, says, _, w in WRONG],
                         ids=[f"{family}: {name}" for family, _, name, _ in WRONG])
def test_a_wrong_rule_is_seen(family: str, says: str, wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    """By programs of the first seeds, in a smallest program that has what the rule is about."""
    wrong(monkeypatch)
    searches = (search(family, seed, PROGRAMS[family]) for seed in range(2 * len(SEEDS)))
    found = (message for each in searches for found in each for message in found.wrong)
    assert says in next(found, "nothing is seen")
