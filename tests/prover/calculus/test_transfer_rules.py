"""Every transfer rule of a state or a gradient against what its verb means, rank by rank, on small meshes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from test_calculus import POSITIONS, some_value
from test_flow import step_of as pipelined
from worlds import GARBAGE, WORLDS, Rank, World

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.prover.calculus import transfer
from placealg.prover.calculus.contribution import ABSENT, OPAQUE, STALE, Slot, Tag, Term, Value, count_name
from placealg.prover.calculus.machine import Machine, Site
from placealg.prover.calculus.microbatches import Iteration
from placealg.prover.calculus.places import NoRule, count_over, leave, tokens
from placealg.prover.calculus.positions import DEVICE, UNIT
from placealg.prover.calculus.versions import CURRENT, NEXT, UNHELD, Choice, Guarded, Leaf, Version, where
from placealg.prover.calculus.versions import GARBAGE as SPOILT
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.stages import on_ends
from placealg.step.derive import derive
from placealg.step.edit import edit
from placealg.step.event import Clause, Event
from placealg.strategy.spec import strategy_on

STEP = derive(strategy_on("two", {"dp": None, "tp": None}, dims={"dp": ["batch"], "tp": ["batch"]}), abstract())
GROUP = STEP.reference.groups[0]
ACTIVE, PASSIVE = Iteration("only", True), Iteration("first", False)
OWNER, MARKED = (Clause("dp"),), (Clause("dp"), Clause("tp", 0))
STATES = ("weight", "master", "moments")


def machine(seed: int) -> Machine:
    """A machine that holds something else of everything on different ranks."""
    rng = random.Random(seed)

    def version() -> Version:
        pairs = [(a, rng.choice(POSITIONS[:3])) for a in ("dp", "tp") if rng.random() < 0.7]
        return where(pairs, rng.choice((CURRENT, NEXT)), rng.choice((UNHELD, SPOILT, CURRENT)))
    made = Machine(STEP.reference, GROUP, Site(GROUP.sites[0]))
    for tier in ("device", "host"):
        made.versions |= {(s, tier): version() for s in STATES}
        made.values |= {(v, tier): some_value(rng) for v in ("grad", "grad_sum")}
    return made


MACHINES = [machine(seed) for seed in range(6)]


def event(verb: str, value: str, **fields: Any) -> Event:
    return Event(fields.pop("phase", "update"), verb, value, fields.pop("group", GROUP.name), **fields)


def leaf(version: Version, world: World, rank: Rank) -> Leaf:
    """What a rank holds of a state."""
    while isinstance(version, Choice):
        version = version.yes if world.holds(version.test, rank) else version.no
    return version


def run(before: Machine, *events: Event, iteration: Iteration = ACTIVE) -> Machine:
    after = before.copy()
    for one in events:
        transfer.check(one)
        transfer.execute(after, one, iteration)
    return after


def runs(one: Event, world: World, rank: Rank) -> bool:
    return all(rank[c.axis] == (world.position(c.axis, "own:own", rank) if c.rank is None else c.rank)
               for c in one.where)


def at(world: World, rank: Rank, axes: tuple[str, ...], place: str) -> dict[str, int]:
    return {**rank, **{a: world.position(a, place, rank) for a in axes}}


def owns(world: World, rank: Rank, axes: tuple[str, ...]) -> bool:
    return all(rank[a] == world.position(a, "own:own", rank) for a in axes)


def garbage_if_not_held(found: Leaf) -> Leaf:
    return SPOILT if found == UNHELD else found


Meaning = Callable[[World, Machine, Rank, Event], Leaf]


def _broadcast(world: World, before: Machine, rank: Rank, one: Event) -> Leaf:
    if any(one.root >= world.sizes[a] for a in one.axes):
        return SPOILT
    source = at(world, rank, one.axes, str(one.root))
    return garbage_if_not_held(leaf(before.version(one.value), world, source))


def _gather(world: World, before: Machine, rank: Rank, one: Event) -> Leaf:
    source = at(world, rank, one.axes, "own:own")
    return garbage_if_not_held(leaf(before.version(one.value, one.tier), world, source))


def _keep(world: World, before: Machine, rank: Rank, one: Event) -> Leaf:
    kept = one.axes and owns(world, rank, one.axes)
    return leaf(before.version(one.value, one.tier), world, rank) if kept else UNHELD


def _publish(world: World, before: Machine, rank: Rank, one: Event) -> Leaf:
    master = leaf(before.version("master", one.tier), world, at(world, rank, one.axes, "own:own"))
    return master if master != UNHELD else SPOILT if one.axes else leaf(before.version("weight"), world, rank)


def copied(value: str, tier: str) -> Meaning:
    return lambda world, before, rank, one: leaf(before.version(value, tier), world, rank)


def of_another_state(value: str, tier: str) -> Meaning:
    """Moments are no weights, and weights no moments, of whatever version."""
    return lambda world, before, rank, one: (
        UNHELD if leaf(before.version(value, tier), world, rank) == UNHELD else SPOILT)


def always(found: Leaf) -> Meaning:
    return lambda world, before, rank, one: found


STATE_RULES: tuple[tuple[Event, tuple[str, str], Meaning], ...] = (
    (event("broadcast", "weight", axes=("dp", "tp")), ("weight", "device"), _broadcast),
    (event("broadcast", "weight", axes=("dp",)), ("weight", "device"), _broadcast),
    (event("broadcast", "weight", axes=("tp",), root=1), ("weight", "device"), _broadcast),
    (event("broadcast", "weight", axes=("tp",), where=OWNER), ("weight", "device"), _broadcast),
    (event("gather", "weight", axes=("dp",)), ("weight", "device"), _gather),
    (event("gather", "weight", axes=("dp", "tp"), where=MARKED), ("weight", "device"), _gather),
    (event("all_gather", "master", axes=("dp",), tier="host"), ("master", "host"), _gather),
    (event("slice", "weight", axes=("dp",)), ("weight", "device"), _keep),
    (event("free", "weight", axes=("dp", "tp")), ("weight", "device"), _keep),
    (event("free", "weight"), ("weight", "device"), _keep),
    (event("free", "weight", where=OWNER), ("weight", "device"), _keep),
    (event("free", "moments", tier="host"), ("moments", "host"), _keep),
    (event("assign", "master"), ("master", "device"), copied("weight", "device")),
    (event("assign", "master", source="moments"), ("master", "device"), of_another_state("moments", "device")),
    (event("assign", "moments", source="master", where=MARKED), ("moments", "device"),
     of_another_state("master", "device")),
    (event("assign", "moments", source="moments", tier="device->host"), ("moments", "host"),
     copied("moments", "device")),
    (event("assign", "master", source="weight", tier="device->host", where=OWNER), ("master", "host"),
     copied("weight", "device")),
    (event("assign", "master", source="weight", tier="host->device"), ("master", "device"), copied("weight", "host")),
    (event("assign", "moments", phase="init"), ("moments", "device"), always(CURRENT)),
    (event("assign", "moments", phase="init", where=OWNER, tier="host"), ("moments", "host"), always(CURRENT)),
    (event("assign", "moments"), ("moments", "device"), always(SPOILT)),
    (event("offload", "master", tier="device->host"), ("master", "host"), copied("master", "device")),
    (event("offload", "master", tier="device->host", source="weight"), ("master", "host"), copied("weight", "device")),
    (event("offload", "moments", tier="device->host", source="weight"), ("moments", "host"),
     of_another_state("weight", "device")),
    (event("fetch", "master", tier="host->device", source="moments"), ("master", "device"),
     of_another_state("moments", "host")),
    (event("fetch", "weight", tier="host->device", where=MARKED), ("weight", "device"), copied("weight", "host")),
    (event("publish", "weight", axes=("dp",)), ("weight", "device"), _publish),
    (event("publish", "weight", axes=("dp", "tp"), where=(Clause("tp"),)), ("weight", "device"), _publish),
    (event("publish", "weight"), ("weight", "device"), _publish),
)


@pytest.mark.parametrize("before", MACHINES)
@pytest.mark.parametrize(("one", "key", "meaning"), STATE_RULES)
def test_a_rule_of_a_state(one: Event, key: tuple[str, str], meaning: Meaning, before: Machine) -> None:
    after = run(before, one)
    assert {k: v for k, v in after.versions.items() if k != key} == {
        k: v for k, v in before.versions.items() if k != key}
    assert after.values == before.values
    for world in WORLDS:
        for rank in world.ranks():
            want = meaning(world, before, rank, one) if runs(one, world, rank) else leaf(
                before.version(*key), world, rank)
            assert leaf(after.version(*key), world, rank) == want, (world.sizes, rank)


Number = Callable[[World, Machine, Rank, Event], Any]


def _sum(world: World, before: Machine, rank: Rank, one: Event) -> Any:
    held = before.value(one.value)
    if not world.stands([(a, p) for a, p in held.mask if a not in one.axes], rank):
        return None
    parts = [world.on(held, r) for r in world.ranks() if all(r[a] == rank[a] for a in rank if a not in one.axes)]
    if one.to == "S" and not owns(world, rank, one.axes):
        return None
    if None in parts or GARBAGE in parts:
        return GARBAGE
    by = world.number(one.divisor, rank) * (len(parts) if one.op == "mean" else 1)
    return sum(parts) / by


def _owners(world: World, before: Machine, rank: Rank, one: Event) -> Any:
    held = before.value(one.value)
    if not world.stands([(a, p) for a, p in held.mask if a not in one.axes], rank):
        return None
    found = world.on(held, at(world, rank, one.axes, "own:own"))
    return GARBAGE if found is None else found


def _kept(world: World, before: Machine, rank: Rank, one: Event) -> Any:
    return world.on(before.value(one.value), rank) if one.axes and owns(world, rank, one.axes) else None


def _scaled(world: World, before: Machine, rank: Rank, one: Event) -> Any:
    found = world.on(before.value(one.value, one.tier), rank)
    return found / world.number(one.divisor, rank) if isinstance(found, Fraction) else found


def _added(world: World, before: Machine, rank: Rank, one: Event) -> Any:
    total, new = (world.on(before.value(v, one.tier), rank) for v in ("grad_sum", "grad"))
    if total is None:
        return None
    return total + new if isinstance(total, Fraction) and isinstance(new, Fraction) else GARBAGE


def number_of(value: str, tier: str = "device") -> Number:
    return lambda world, before, rank, one: world.on(before.value(value, tier), rank)


GRADIENT_RULES: tuple[tuple[Event, tuple[str, str], Number], ...] = (
    (event("reduce", "grad_sum", axes=("dp",), op="sum", to="I"), ("grad_sum", "device"), _sum),
    (event("reduce", "grad_sum", axes=("dp", "tp"), op="mean", to="I"), ("grad_sum", "device"), _sum),
    (event("reduce", "grad", axes=("dp",), op="mean", to="S"), ("grad", "device"), _sum),
    (event("reduce", "grad", axes=("dp", "tp"), op="sum", to="S", divisor=Monomial.of("dp")), ("grad", "device"), _sum),
    (event("reduce", "grad", axes=("dp",), op="premultiplied", to="I", divisor=Monomial.of("tp")), ("grad", "device"),
     _sum),
    (event("gather", "grad_sum", axes=("dp",)), ("grad_sum", "device"), _owners),
    (event("all_gather", "grad_sum", axes=("dp", "tp")), ("grad_sum", "device"), _owners),
    (event("slice", "grad", axes=("tp",)), ("grad", "device"), _kept),
    (event("free", "grad_sum", axes=("dp",)), ("grad_sum", "device"), _kept),
    (event("free", "grad_sum"), ("grad_sum", "device"), _kept),
    (event("scale", "grad_sum", divisor=Monomial.of("dp")), ("grad_sum", "device"), _scaled),
    (event("scale", "grad_sum", divisor=Monomial.of("dp", "tp"), tier="host"), ("grad_sum", "host"), _scaled),
    (event("accumulate", "grad_sum"), ("grad_sum", "device"), _added),
    (event("accumulate", "grad_sum", tier="host"), ("grad_sum", "host"), _added),
    (event("assign", "grad_sum"), ("grad_sum", "device"), number_of("grad")),
    (event("assign", "grad_sum", source="grad_sum", tier="device->host"), ("grad_sum", "host"), number_of("grad_sum")),
    (event("assign", "grad_sum", source="grad_sum", tier="host->device"), ("grad_sum", "device"),
     number_of("grad_sum", "host")),
    (event("offload", "grad", tier="device->host"), ("grad", "host"), number_of("grad")),
    (event("offload", "grad_sum", tier="device->host", source="grad"), ("grad_sum", "host"), number_of("grad")),
    (event("offload", "grad", tier="device->host", source="grad_sum"), ("grad", "host"), number_of("grad_sum")),
    (event("fetch", "grad_sum", tier="host->device"), ("grad_sum", "device"), number_of("grad_sum", "host")),
    (event("zero", "grad_sum"), ("grad_sum", "device"), lambda *_: Fraction(0)),
    (event("zero", "grad_sum", tier="host"), ("grad_sum", "host"), lambda *_: Fraction(0)),
)


@pytest.mark.parametrize("places", [(), OWNER, (Clause("dp", 0),)])
@pytest.mark.parametrize("before", MACHINES[:4])
@pytest.mark.parametrize(("one", "key", "meaning"), GRADIENT_RULES)
def test_a_rule_of_a_gradient(one: Event, key: tuple[str, str], meaning: Number, before: Machine,
                              places: tuple[Clause, ...]) -> None:
    """Where an event runs on some ranks only, the others are said to hold nothing, or what they held."""
    one = replace(one, where=places)
    after = run(before, one)
    assert {k: v for k, v in after.values.items() if k != key} == {k: v for k, v in before.values.items() if k != key}
    assert after.versions == before.versions
    new = after.value(*key)
    if any("~" in p for v in before.values.values() for _, p in v.mask) or any(
            n.startswith(OPAQUE) for t in new.terms for n in t.coefficient.names()):
        return
    for world in WORLDS:
        for rank in world.ranks():
            got = world.on(new, rank)
            if runs(one, world, rank):
                want = meaning(world, before, rank, one)
                if places and want is None:
                    assert got in (None, GARBAGE)
                else:
                    assert got == want, (world.sizes, rank)
            elif got not in (None, GARBAGE):
                assert got == world.on(before.value(*key), rank)


def test_a_zero_is_a_zero_and_what_is_set_is_not() -> None:
    before = MACHINES[0]
    assert run(before, event("zero", "grad_sum")).value("grad_sum").zero
    assert run(before, event("zero", "grad_sum"), event("accumulate", "grad_sum")).value("grad_sum").zero is False
    split = replace(before, group=replace(GROUP, split=("tp",)))
    assert run(split, event("zero", "grad_sum")).value("grad_sum").mask == {("tp", "own:own")}


def test_zero_leaves_what_a_rank_holds_beside_its_own() -> None:
    """Known to be no zero where something was held, on all ranks or on some; nothing is there where nothing was."""
    owners, others = frozenset({("tp", "own:own")}), frozenset({("dp", "0")})
    split = replace(MACHINES[0], group=replace(GROUP, split=("tp",)))
    for held, mixed in ((Value((Term(ONE),)), frozenset()), (Value((Term(ONE),), others), others), (ABSENT, None),
                        (Value((Term(ONE),), owners), None), (Value((Term(ONE),), owners | others), None),
                        (Value((Term(ONE),), owners, mixed=others), others),
                        (Value((Term(ONE),), others, mixed=frozenset({("dp", "1")})), frozenset())):
        before = replace(split, values={("grad_sum", "device"): held})
        after = run(before, event("zero", "grad_sum")).value("grad_sum")
        assert (after.zero, after.mask, after.mixed) == (True, owners, mixed), held


def test_a_collective_sets_what_owners_hold_and_a_local_event_what_a_rank_does() -> None:
    """Along the axes that split the parameters nobody but the owner of an element meets in a collective."""
    split = replace(MACHINES[0], group=replace(GROUP, split=("tp",)),
                    values={("grad_sum", "device"): Value((Term(ONE),))})
    met = run(split, event("reduce", "grad_sum", axes=("dp",), op="sum", to="I")).value("grad_sum")
    assert met.mask == {("tp", "own:own")}
    assert run(split, event("scale", "grad_sum", divisor=Monomial.of("dp"))).value("grad_sum").mask == frozenset()


def test_a_sum_over_ranks_that_are_written_out_is_written_out() -> None:
    own = Value((Term(ONE, FrozenMap({"dp": "at:batch!mine~dp"})),))
    before = replace(MACHINES[0], values={("grad_sum", "device"): own},
                     reference=replace(STEP.reference, unrolled=FrozenMap({"dp": 2})))
    after = run(before, event("reduce", "grad_sum", axes=("dp",), op="sum", to="I")).value("grad_sum")
    assert after == own.reduced(("dp",), ONE, {"dp": 2}) != own.reduced(("dp",), ONE)


def test_a_divisor_that_reads_no_count_makes_garbage() -> None:
    for one in (event("scale", "grad_sum", divisor=Monomial.of("count")),
                event("reduce", "grad_sum", axes=("dp",), op="sum", divisor=Monomial.of("count"))):
        assert run(MACHINES[0], one).value("grad_sum").garbage
        owned = Value((Term(ONE),), frozenset({("dp", "own:own")}))
        left = run(replace(MACHINES[0], values={("grad_sum", "device"): owned}), one).value("grad_sum")
        assert left.garbage and left.mask == (frozenset() if one.verb == "reduce" else owned.mask)
        counted = replace(MACHINES[0], counts={"loss": Monomial.of("dp")})
        plain = replace(one, divisor=Monomial.of("dp"))
        assert run(counted, one).values == run(counted, plain).values


def test_a_count_is_summed_along_an_axis_once_and_of_an_owner_s_tokens_there_is_no_sum() -> None:
    cell = count_name({"dp": DEVICE, "tp": DEVICE})
    owner = count_name({"tp": "own:mine~dp"})
    assert count_over(Monomial.of(cell), "dp") == Monomial.of(count_name({"tp": DEVICE}))
    assert count_over(Monomial.of(count_name({"tp": DEVICE})), "dp") == Monomial.of(count_name({"tp": DEVICE}), "dp")
    for none in (Monomial.of(owner), Monomial.of(count_name({"dp": DEVICE, "tp": "own:mine~dp"})),
                 Monomial.of(cell, cell), ONE / Monomial.of(cell)):
        assert count_over(none, "dp") is None
    assert count_over(Monomial.of(owner), "tp") == Monomial.of(owner, "tp")
    apart = count_name({"dp": DEVICE}), count_name({"tp": DEVICE})
    assert count_over(Monomial.of(*apart), "dp") == Monomial.of(count_name({}), apart[1])


def test_what_slices_leave_mixed() -> None:
    """After a slice of what some ranks may hold otherwise, only owners may; after one of all that is held, nobody."""
    owned, other = frozenset({("tp", "own:own")}), frozenset({("tp", UNIT)})
    held = replace(MACHINES[0], values={("grad", "device"): Value((Term(ONE),), owned, mixed=other)})
    sliced = run(held, event("slice", "grad", axes=("dp",))).value("grad")
    assert sliced.mixed == {*other, ("dp", "own:own")}
    whole = replace(held, values={("grad", "device"): Value((Term(ONE),), mixed=frozenset())})
    assert run(whole, event("slice", "grad", axes=("dp",))).value("grad").mixed is None
    for one in (held, whole):
        assert run(one, event("slice", "grad", axes=("dp",), where=OWNER)).values == one.values, "owners keep all of it"
    assert run(held, event("free", "grad")).value("grad") == replace(ABSENT, mixed=None)
    assert run(replace(held, values={}), event("slice", "grad", axes=("dp",))).value("grad") == ABSENT


@pytest.mark.parametrize("places", [(), OWNER, (Clause("tp"),), (Clause("dp", 0),), (Clause("dp", 1),), MARKED])
@pytest.mark.parametrize("axes", [("dp",), ("tp",), ("dp", "tp")])
@pytest.mark.parametrize("old", [
    Value((Term(ONE),), frozenset(mask), mixed=None if mixed is None else frozenset(mixed))
    for mask in ((), (("dp", "own:own"),), (("tp", UNIT),))
    for mixed in (None, (), (("tp", "own:own"),), (("dp", UNIT),))])
def test_who_holds_what_a_slice_leaves(old: Value, axes: tuple[str, ...], places: tuple[Clause, ...]) -> None:
    """Ranks of `where` keep what they own, the others all: said to be held, or among those that may hold anything."""
    one = event("slice", "grad", axes=axes, where=places)
    new = run(replace(MACHINES[0], values={("grad", "device"): old}), one).value("grad")

    def stands(region: frozenset[tuple[str, str]] | None, world: World, rank: Rank) -> bool:
        return region is not None and world.on(Value((Term(ONE),), region), rank) is not None
    for world in WORLDS:
        for rank in world.ranks():
            kept = not runs(one, world, rank) or owns(world, rank, axes)
            held, unknown = stands(old.mask, world, rank), stands(old.mixed, world, rank)
            if stands(new.mask, world, rank):
                assert held and kept
            elif kept and (held or unknown):
                assert stands(new.mixed, world, rank)
            if held and owns(world, rank, axes):
                assert world.on(new, rank) == world.on(old, rank), "owners are not forgotten"


def test_a_gradient_gathered_where_its_owner_may_hold_nothing_is_mixed() -> None:
    for mask, mixed, after in ((frozenset({("tp", UNIT)}), None, frozenset()), (frozenset(), None, None),
                               (frozenset({("dp", "own:own")}), None, None),
                               (frozenset(), frozenset({("tp", UNIT)}), frozenset({("tp", UNIT)}))):
        before = replace(MACHINES[0], values={("grad", "device"): Value((Term(ONE),), mask, mixed=mixed)})
        assert run(before, event("gather", "grad", axes=("dp",))).value("grad").mixed == after
    split = replace(before, group=replace(GROUP, split=("tp",)), values={
        ("grad", "device"): Value((Term(ONE),), frozenset({("tp", "own:own")}))})
    assert run(split, event("gather", "grad", axes=("dp",))).value("grad").mixed is None


@pytest.mark.parametrize("before", MACHINES)
def test_an_event_of_a_split_group_is_about_the_owners(before: Machine) -> None:
    """A collective is, along the axes that split its parameters; unless it goes along them, or is of no group."""
    split = replace(before.copy(), group=replace(GROUP, split=("tp",)))
    across = event("gather", "weight", axes=("dp",))
    gather = event("gather", "weight", axes=("tp",))
    count = event("update", "step", group="")
    split.versions["step", "device"] = CURRENT
    for world in WORLDS:
        for rank in world.ranks():
            weight = (_gather(world, before, rank, across) if owns(world, rank, ("tp",))
                      else leaf(before.version("weight"), world, rank))
            assert leaf(run(split, across).version("weight"), world, rank) == weight
            assert leaf(run(split, gather).version("weight"), world, rank) == _gather(world, before, rank, gather)
            assert leaf(run(split, count).version("step"), world, rank) == NEXT


@pytest.mark.parametrize("before", MACHINES)
def test_a_local_event_acts_on_all_that_a_rank_holds(before: Machine) -> None:
    """Its own share of a parameter or one that it gathered, on its stage of a pipeline; what begins is its own."""
    split = replace(before.copy(), group=replace(GROUP, split=("tp",)))
    stages = pipelined("zero1*pp", "gpt").reference.pipeline
    assert stages is not None
    staged = replace(split, reference=replace(split.reference, pipeline=replace(stages, axis="tp")))
    for world in WORLDS:
        for rank in world.ranks():
            own, weight = owns(world, rank, ("tp",)), leaf(before.version("weight"), world, rank)
            master, host = (leaf(before.version("master", t), world, rank) for t in ("device", "host"))
            for verb, fields in (("assign", {"source": "weight"}), ("publish", {}),
                                 ("fetch", {"tier": "host->device"})):
                copied = event(verb, "weight" if verb == "publish" else "master", **fields)
                value, new = copied.value, {"assign": weight, "publish": master, "fetch": host}[verb]
                if verb == "publish" and new == UNHELD:
                    new = weight
                kept = leaf(before.version(value), world, rank)
                assert leaf(run(split, copied).version(value), world, rank) == new
                assert leaf(run(staged, copied).version(value), world, rank) == (new if own else kept)
            for phase, start in (("init", CURRENT), ("update", SPOILT)):
                begun = run(split, event("assign", "moments", phase=phase)).version("moments")
                assert leaf(begun, world, rank) == (start if own else UNHELD)


def test_tokens_are_those_of_the_rank_that_divides() -> None:
    """A sum of quotients is not the quotient of sums; inside the loop a rank counts this microbatch's tokens."""
    held = Value((Term(ONE),))
    before = replace(MACHINES[0], values={("grad", "device"): held, ("grad_sum", "device"): held})
    tokens = Monomial.of("tokens")
    for phase, cell in (("reduce", {}), ("backward", {"microbatch": UNIT})):
        name = Monomial.of(count_name({"dp": DEVICE, "tp": DEVICE, **cell}))
        late = run(before, event("reduce", "grad", phase=phase, axes=("dp",), op="sum", divisor=tokens)).value("grad")
        assert late == held.reduced(("dp",), ONE / name)
        early = run(before, event("reduce", "grad", phase=phase, axes=("dp",), op="premultiplied",
                                  divisor=tokens)).value("grad")
        assert early == held.scaled(ONE / name).reduced(("dp",), ONE) != late
        scaled = run(before, event("scale", "grad_sum", phase=phase, divisor=tokens)).value("grad_sum")
        assert scaled == held.scaled(ONE / name)
    passive = run(before, event("scale", "grad_sum", phase="backward", divisor=tokens), iteration=PASSIVE)
    assert passive.value("grad_sum") == held.scaled(
        ONE / Monomial.of(count_name({"dp": DEVICE, "tp": DEVICE, "microbatch": "first"})))


def test_the_loss_is_scaled() -> None:
    scale = event("scale", "loss", group="", unit="loss", phase="backward", divisor=Monomial.of("m"))
    seeded = replace(MACHINES[0], seed=ONE / Monomial.of("dp"))
    assert run(seeded, scale).seed == ONE / Monomial.of("dp", "m") and run(seeded, scale).values == seeded.values
    assert run(MACHINES[0], scale).seed is None and run(seeded, replace(scale, where=OWNER)).seed is None
    assert run(seeded, replace(scale, divisor=Monomial.of("count"))).seed is None


# counts, flags, norms

CELL = {"dp": DEVICE, "tp": DEVICE, "microbatch": UNIT}


def counted(phase: str, *events: Event) -> Monomial | None:
    return run(MACHINES[0], event("compute", "count", group="", unit="loss", phase=phase), *events).counts.get("loss")


def total(*axes: str, **fields: Any) -> Event:
    return event("all_reduce", fields.pop("value", "count"), group="", unit="loss", axes=axes,
                 op=fields.pop("op", "sum"), **fields)


def test_counts() -> None:
    assert counted("forward") == Monomial.of(count_name(CELL))
    outside = {"dp": DEVICE, "tp": DEVICE}
    assert counted("reduce") == Monomial.of(count_name(outside))
    assert counted("reduce", total("dp")) == Monomial.of(count_name({"tp": DEVICE}))
    assert counted("reduce", total("dp", "tp")) == Monomial.of(count_name({}))
    assert counted("reduce", total("dp", "tp", op="mean")) == Monomial.of(count_name({})) / Monomial.of("dp", "tp")
    assert counted("reduce", total("dp"), total("dp")) == Monomial.of(count_name({"tp": DEVICE}), "dp")
    assert counted("reduce", total("dp", where=OWNER)) is None
    assert counted("reduce", total("dp", where=OWNER), total("tp")) is None
    assert "loss" not in run(MACHINES[0], total("dp")).counts
    assert not run(MACHINES[0], event("compute", "count", group="", unit="loss", phase="reduce", where=OWNER)).counts
    cell, tp = Monomial.of(count_name(outside)), Monomial.of("tp")
    squared = replace(MACHINES[0], counts={"loss": cell ** 2 * tp})
    assert not run(squared, total("dp")).counts and not run(squared, total("dp", "tp")).counts
    assert run(squared, total("microbatch")).counts["loss"] == cell ** 2 * Monomial.of("tp", "microbatch")
    half = Monomial(Fraction(1, 2)) / tp
    assert run(replace(MACHINES[0], counts={"loss": cell * half}), total("dp")).counts["loss"] == Monomial.of(
        count_name({"tp": DEVICE})) * half


@pytest.mark.parametrize("value", ["norm", "skip"])
@pytest.mark.parametrize("places", [(), OWNER, MARKED])
def test_a_norm_or_a_flag_counts_what_a_rank_holds_and_marks(value: str, places: tuple[Clause, ...]) -> None:
    one = event("norm" if value == "norm" else "compute", value, where=places)
    for before in MACHINES:
        after, held = run(before, one), before.value("grad_sum")
        slot = after.slot if value == "norm" else after.skip
        assert slot is not None and slot.counted == held and slot.defined
        assert slot.where == held.mask | {(c.axis, "own:own" if c.rank is None else str(c.rank)) for c in places}
        for world in WORLDS:
            for rank in world.ranks():
                counts = world.stands(held.mask, rank) and runs(one, world, rank)
                assert world.total(slot.terms, rank) == int(counts)


def test_a_norm_of_what_only_some_ranks_hold_is_defined_where_they_are_marked() -> None:
    for mixed, places, defined in ((None, (), True), (frozenset(), (), False), (frozenset(), OWNER, True),
                                   (frozenset(), (Clause("tp"),), False)):
        value = Value((Term(ONE),), frozenset({("dp", "own:own")}), mixed=mixed)
        before = replace(MACHINES[0], values={("grad_sum", "device"): value})
        slot = run(before, event("norm", "norm", where=places)).slot
        assert slot is not None and slot.defined == defined


def test_a_norm_counts_on_its_tier_and_where_both_conditions_meet() -> None:
    held = Value((Term(ONE),), frozenset({("dp", UNIT), ("tp", "own:own")}))
    before = replace(MACHINES[0], values={("grad_sum", "host"): held})
    slot = run(before, event("norm", "norm", tier="host", where=(Clause("dp", 0), Clause("tp", 0)))).slot
    assert slot is not None and slot.counted == held
    for world in WORLDS:
        for rank in world.ranks():
            assert world.total(slot.terms, rank) == int(world.stands(held.mask, rank) and not any(rank.values()))


def test_the_flag_of_a_tied_group_is_known_at_its_end_only() -> None:
    tied, flat = (pipelined(name, "gpt") for name in ("zero1*pp", "zero1*tp"))
    at_ends, nowhere = {"pp_ends": "any:end"}, {}
    for step, parameter, known in ((tied, "embedding.weight", at_ends), (flat, "embedding.weight", nowhere),
                                   (tied, "layer.mlp.up.weight", nowhere)):
        group = next(g for g in step.reference.groups if parameter in g.parameters)
        before = Machine(step.reference, group, Site(parameter, parameter), Flows(step))
        before.values["grad_sum", "device"] = Value((Term(ONE),), frozenset({("dp", "own:own")}))
        skip = run(before, event("compute", "skip", group=group.name)).skip
        norm = run(before, event("norm", "norm", group=group.name)).slot
        assert skip is not None and norm is not None
        assert skip.terms == (Term(ONE, FrozenMap({"dp": "own:own", **known})),)
        assert norm.terms == (Term(ONE, FrozenMap({"dp": "own:own"})),)


def test_all_reduces_of_norms_and_flags() -> None:
    slot = Slot((Term(ONE, FrozenMap({"dp": "own:own"})),), Value((Term(ONE),)), frozenset())
    before = replace(MACHINES[0], slot=slot, skip=slot)
    norm = run(before, total("dp", value="norm"))
    assert norm.slot == slot.summed(("dp",), False) and norm.skip == slot
    assert run(before, total("tp", value="norm", op="mean")).slot == slot.summed(("tp",), True)
    assert run(before, total("dp", value="norm", where=OWNER)).slot is None
    flag = run(before, total("dp", value="skip", op="max"))
    assert flag.skip == slot.summed(("dp",), False) and flag.slot == slot
    partly = run(before, total("dp", value="skip", op="max", where=OWNER)).skip
    assert partly is not None and not partly.defined
    stale = run(replace(before, skip=STALE), total("dp", value="skip", op="max")).skip
    assert stale is not None and not stale.defined
    nothing = run(replace(MACHINES[0], slot=None, skip=None), total("dp", value="skip"), total("dp", value="norm"))
    assert (nothing.slot, nothing.skip) == (None, None)
    own = replace(slot, terms=(Term(ONE, FrozenMap({"dp": "at:batch!mine~dp"})),))
    unrolled = replace(before, slot=own, skip=own, reference=replace(STEP.reference, unrolled=FrozenMap({"dp": 2})))
    for value in ("norm", "skip"):
        after = run(unrolled, total("dp", value=value))
        written = after.slot if value == "norm" else after.skip
        assert written == own.summed(("dp",), False, {"dp": 2}) != own.summed(("dp",), False)


# clips and updates

def test_a_clip_is_remembered_with_its_norm() -> None:
    slot = Slot((Term(ONE),), Value((Term(ONE),)), frozenset())
    before = replace(MACHINES[0].copy(), slot=slot)
    before.values["grad_sum", "host"] = replace(before.value("grad_sum"), tags=(Tag("clip", None),))
    assert run(before, event("clip", "grad_sum")).value("grad_sum") == replace(
        before.value("grad_sum"), tags=(Tag("clip", slot),))
    assert run(before, event("clip", "grad_sum", tier="host")).value("grad_sum", "host").tags == (
        Tag("clip", None), Tag("clip", slot))
    absent = replace(before, values={})
    assert run(absent, event("clip", "grad_sum")).value("grad_sum") == ABSENT
    other = run(before, event("clip", "grad_sum", group="other.weight", where=MARKED))
    assert other.values == before.values
    (relied,) = other.relied
    assert (relied.event, relied.value, relied.slot) == ("update.other.weight.clip", "norm", slot)
    assert relied.where == {("dp", "own:own"), ("tp", "0")}


@pytest.mark.parametrize("tier", ["device", "host"])
@pytest.mark.parametrize("places", [(), OWNER])
@pytest.mark.parametrize("before", MACHINES)
def test_an_update_makes_the_next_version_of_current_ones(before: Machine, places: tuple[Clause, ...],
                                                          tier: str) -> None:
    one = event("update", "master", where=places, tier=tier)
    slot = Slot((Term(ONE),), Value((Term(ONE),)), frozenset())
    after = run(replace(before, slot=slot, skip=slot, steps=1), one)
    (update,) = after.updates
    assert (update.event, update.gradient, update.slot, update.skip) == (
        one.path, before.value("grad_sum", tier), slot, slot)
    assert dict(update.others) == {v: before.version(v, tier) for v in ("master", "moments")}
    for world in WORLDS:
        for rank in world.ranks():
            master, moments = (leaf(before.version(v, tier), world, rank) for v in ("master", "moments"))
            for value, old in (("master", master), ("moments", moments)):
                new = leaf(after.version(value, tier), world, rank)
                if not runs(one, world, rank) or master == UNHELD:
                    assert new == old
                elif master == moments == CURRENT:
                    assert isinstance(new, Guarded) and new.version == NEXT
                    assert {name for name, _ in new.updates} == {update.flag}
                else:
                    assert new == SPOILT


def test_an_update_remembers_what_it_divides_by() -> None:
    """Tokens are those of the whole batch on the rank, for an update stands outside the loop."""
    tokens = Monomial.of(count_name({"dp": DEVICE, "tp": DEVICE}))
    for divisor, by in ((ONE, ONE), (Monomial.of("dp"), Monomial.of("dp")), (Monomial.of("tokens"), tokens),
                        (Monomial.of("count"), None)):
        (update,) = run(MACHINES[0], event("update", "master", divisor=divisor)).updates
        assert update.divisor == by


def test_updates_have_flags_of_their_own_and_remember_those_before() -> None:
    before = replace(MACHINES[0], versions={(v, "device"): CURRENT for v in STATES})
    once = run(before, event("update", "master"))
    made = once.version("master")
    assert isinstance(made, Guarded)
    later = replace(once, versions={k: Guarded(made.updates, CURRENT) if isinstance(v, Guarded) else v
                                    for k, v in once.versions.items()})
    twice = run(replace(later, steps=1), event("update", "master")).version("moments")
    assert isinstance(twice, Guarded) and len(twice.updates) == 2 and made.updates < twice.updates
    for one in (made, twice):
        assert {rank for _, rank in one.updates} == {FrozenMap()}
    both = run(before, event("update", "master"))
    transfer.execute(both, event("update", "master"), ACTIVE)
    assert len({u.flag for u in both.updates}) == 2
    assert leaf(both.version("master"), WORLDS[0], {"dp": 0, "tp": 0}) == SPOILT


def test_an_update_reads_the_step_and_updates_it() -> None:
    before = replace(MACHINES[0], versions={("step", "device"): CURRENT, ("rng", "device"): CURRENT})
    (read,) = run(before, event("update", "master", where=OWNER)).reads
    assert (read.kind, read.version, read.want) == ("hyper", CURRENT, CURRENT)
    (read,) = run(replace(before, versions={}), event("update", "master", where=OWNER)).reads
    assert leaf(read.version, WORLDS[2], {"dp": 0, "tp": 0}) != leaf(read.version, WORLDS[2], {"dp": 1, "tp": 0})
    for value in ("step", "rng"):
        once = run(before, event("update", value, group=""))
        assert once.version(value) == NEXT and not once.updates
        assert run(once, event("update", value, group="")).version(value) == SPOILT
        assert {v for v in ("step", "rng") if once.version(v) == CURRENT} == {"step", "rng"} - {value}


def test_another_group_s_update_relies_on_this_group_s_flag() -> None:
    slot = Slot((Term(ONE),), Value((Term(ONE),)), frozenset())
    before = replace(MACHINES[0], skip=slot)
    other = run(before, event("update", "master", group="other.weight", where=OWNER))
    (relied,) = other.relied
    assert (relied.event, relied.value, relied.slot, relied.where) == (
        "update.other.weight.update", "skip", slot, {("dp", "own:own")})
    assert other.versions == before.versions and not other.updates
    assert not run(before, event("update", "master")).relied
    assert [r.value for r in run(before, event("update", "step", group="")).relied] == ["skip"]
    assert not run(before, event("update", "rng", group="")).relied, "random numbers go on after a skipped step"


# checkpoints

@pytest.mark.parametrize("places", [(), OWNER])
@pytest.mark.parametrize("before", MACHINES)
def test_what_is_stored_must_be_the_next_version_and_comes_back(before: Machine, places: tuple[Clause, ...]) -> None:
    store = event("store", "weight", phase="save", where=places)
    after = run(before, store)
    (read,) = after.reads
    back = run(after, event("load", "weight", phase="resume", tier="host"))
    again = run(after, replace(store, value="weight", where=MARKED, tier="host"))
    assert (read.event, read.kind, read.position, read.want) == (store.path, "store", "", NEXT)
    assert back.version("weight") == before.version("weight")
    for world in WORLDS:
        for rank in world.ranks():
            held, stores = leaf(before.version("weight"), world, rank), runs(store, world, rank)
            assert leaf(read.version, world, rank) == (held if stores and held != UNHELD else NEXT)
            stored = held if stores else UNHELD
            assert leaf(back.version("weight", "host"), world, rank) == stored
            other = leaf(before.version("weight", "host"), world, rank)
            marked = all(rank[a] == world.position(a, p, rank) for a, p in (("dp", "own:own"), ("tp", "0")))
            assert leaf(again.stored["weight"], world, rank) == (other if marked and other != UNHELD else stored)
    assert run(before, event("load", "master", phase="resume")).version("master") == UNHELD


def test_padding_that_differs_from_rank_to_rank_has_no_rule() -> None:
    drawn = event("scale", "grad_sum", axes=("dp",), divisor=Monomial.of("padding"), layout="mine(tp)")
    with pytest.raises(NoRule) as found:
        run(MACHINES[0], drawn)
    assert found.value.event == drawn.path
    assert str(found.value) == f"{drawn.path}: padding of shards that differ from rank to rank"


@pytest.mark.parametrize(("drop", "cell"), [((), {"dp": DEVICE}), (({"drop": "forward.data.*.slice[dp]"},), {})])
def test_a_loss_counts_the_tokens_that_it_sums_where_it_runs(drop: tuple[dict[str, str], ...],
                                                             cell: dict[str, str]) -> None:
    """Data that are not sliced are all there; at a position without a loss, those of the rank's share are counted."""
    step = edit(pipelined("dp", "mlp"), *drop, {"set": "forward.loss.compute", "at": ["first"]})
    group, loss = step.reference.groups[0], step.event("forward.loss.compute")
    machine = Machine(step.reference, group, Site(group.sites[0]), Flows(step))
    for position, summed in (("first", cell), ("middle", {"dp": DEVICE})):
        here = Iteration(position, False)
        assert tokens(machine, loss, here) == count_name({**summed, "microbatch": position})


def test_a_loss_that_is_split_unlike_its_data_counts_nobody_s_tokens() -> None:
    step = pipelined("dp", "gpt")
    group, loss = step.reference.groups[0], step.event("forward.loss.compute")
    for dims, place, fits in ((("batch",), "at:batch", True), (("batch",), "at:seq", False), (("seq",), "at:seq", True),
                              (("seq",), "at:batch", False), (("none",), "at:batch", True), ((), "at:batch", True),
                              (("vocab",), "at:batch", True), (("embed",), "at:batch", True),
                              (("vocab",), "at:vocab", False)):
        reference = replace(step.reference, dims=FrozenMap({"dp": dims} if dims else {}))
        flows = Flows(step)
        for position in ("first", "middle", "last", "only"):
            flows.at(position).loss[loss.path] = frozenset({("dp", place)})
        machine = Machine(reference, group, Site(group.sites[0]), flows)
        if fits:
            assert tokens(machine, loss, Iteration("first", False)) == count_name({"dp": DEVICE, "microbatch": "first"})
            continue
        with pytest.raises(NoRule) as found:
            tokens(machine, loss, Iteration("first", False))
        assert found.value.event == loss.path
        assert str(found.value) == f"{loss.path}: tokens of a loss that dp splits along {place[3:]}, unlike its data"


def test_a_batch_that_an_axis_splits_unknown_to_the_data_is_not_known_to_divide() -> None:
    step = pipelined("dp", "gpt")
    group, loss = step.reference.groups[0], step.event("forward.loss.compute")
    flows = Flows(step)
    flows.at("first").loss[loss.path] = frozenset({("dp", "at:batch")})
    machine = Machine(replace(step.reference, data_axes=()), group, Site(group.sites[0]), flows)
    with pytest.raises(NoRule) as found:
        tokens(machine, loss, Iteration("first", False))
    assert str(found.value) == f"{loss.path}: tokens of a loss that dp splits along batch, not known to divide"
    flows.at("first").loss[loss.path] = frozenset({("dp", "at:seq")})
    machine.reference = replace(machine.reference, dims=FrozenMap({"dp": ("seq",)}))
    assert tokens(machine, loss, Iteration("first", False)) == count_name({"dp": DEVICE, "microbatch": "first"})


def test_a_norm_of_a_tied_group_is_apart_along_the_ends() -> None:
    step = pipelined("zero1*pp", "gpt")
    for name, parameter, apart in (("embedding.weight", "embedding.weight", "pp_ends"),
                                   ("layer.weight", "layer.mlp.up.weight", "")):
        group = step.reference.group(name)
        seen = on_ends(step, group)
        machine = Machine(seen.reference, group, Site(group.sites[0], parameter), Flows(step))
        transfer.execute(machine, seen.event(f"update.{name}.norm"), ACTIVE)
        assert machine.slot is not None and machine.slot.apart == apart


def test_a_local_event_sets_what_all_ranks_hold() -> None:
    """Of a group that the pipeline splits, too: it stands on the stages that have its parameters alone."""
    step = pipelined("zero1*pp", "mlp")
    group = next(g for g in step.reference.groups if "pp" in g.split)
    machine = Machine(step.reference, group, Site(group.sites[0], group.parameters[0]))
    machine.values["grad_sum", "device"] = Value((Term(ONE),))
    transfer.execute(machine, step.event(f"update.{group.name}.clip"), ACTIVE)
    assert machine.value("grad_sum") == Value((Term(ONE),), tags=(Tag("clip", None),))


def test_an_update_divides_by_the_tokens_of_all_microbatches() -> None:
    step = pipelined("dp", "gpt")
    group = step.reference.groups[0]
    event = replace(step.event(f"update.{group.name}.update"), divisor=Monomial.of("tokens"))
    machine = Machine(step.reference, group, Site(group.sites[0], group.parameters[0]), Flows(step))
    transfer.execute(machine, event, Iteration("", False))
    assert machine.updates[-1].divisor == Monomial.of(count_name({"dp": DEVICE}))


def test_a_microbatch_in_the_middle_leaves_its_count_to_be_an_earlier_ones() -> None:
    """And nothing else: a value, what a norm or a flag counts, or a tag's norm that has it is not followed."""
    step = pipelined("dp", "abstract")
    group, event = step.reference.groups[0], step.event("backward.loss.scale")

    def count(position: str) -> Monomial:
        return Monomial.of(count_name({"dp": DEVICE, "microbatch": position})) ** -2

    def left(position: str, where: str) -> Machine:
        machine = Machine(step.reference, group, Site(group.sites[0]))
        value = Value((Term(ONE), Term(count(position))))
        slot = Slot((), value, frozenset())
        machine.counts = {"loss": count(position)} if where == "count" else {}
        machine.slot = slot if where == "slot" else None
        machine.skip = slot if where == "skip" else None
        machine.values["grad", "host"] = value if where == "value" else Value(tags=(
            Tag("clip", None), Tag("clip", slot if where == "tag" else None)))
        leave(machine, event)
        return machine

    for position, then in (("middle", "earlier"), ("earlier", "earlier"), ("first", "first"), ("unit", "unit")):
        assert left(position, "count").counts == {"loss": count(then)} and not left(position, "").counts
        for place in ("slot", "skip", "value", "tag"):
            if then != "earlier":
                left(position, place)
                continue
            with pytest.raises(NoRule) as found:
                left(position, place)
            assert str(found.value) == (f"backward.loss.scale: a gradient of {group.name} keeps what another "
                                        "microbatch counted")
            assert found.value.event == event.path
