"""Versions, the state of the abstract machine, and what rules read of it, against plain arithmetic rank by rank."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest
from test_calculus import POSITIONS, some_equalities, some_value
from test_mutation import step_of
from test_transfer_rules import GROUP, PASSIVE, STEP, event, machine
from worlds import WORLDS, Rank, World

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover import correct
from placealg.prover.calculus import event_ranks, versions
from placealg.prover.calculus import places as reading
from placealg.prover.calculus.contribution import ABSENT, STALE, Equality, Slot, Term, Value, count_name, equality
from placealg.prover.calculus.machine import Machine, Read, Relied, Site, Updated
from placealg.prover.calculus.microbatches import Iteration
from placealg.prover.calculus.places import ELEMENTS, PADDED, NoRule
from placealg.prover.calculus.positions import DEVICE, UNIT
from placealg.prover.calculus.versions import CURRENT, GARBAGE, NEXT, UNHELD, Choice, Guarded, Leaf, Version, choose
from placealg.prover.ops.flow import Flows
from placealg.step.event import Clause, Event

LEAVES: tuple[Leaf, ...] = (
    CURRENT, NEXT, GARBAGE, UNHELD, Guarded(frozenset({("a", FrozenMap())}), NEXT),
    Guarded(frozenset({("a", FrozenMap({"dp": "own:own"})), ("b", FrozenMap({"tp": "at:batch!mine~dp"}))}), CURRENT))
ONLY, MIDDLE = Iteration("only", True), Iteration("middle", False, True)


def some_version(rng: random.Random, depth: int = 3) -> Version:
    if not depth or rng.random() < 0.2:
        return rng.choice(LEAVES)
    axis = rng.choice(("dp", "tp"))
    p, q = sorted(rng.sample((*POSITIONS, DEVICE), 2))
    return choose((axis, p, q), some_version(rng, depth - 1), some_version(rng, depth - 1))


VERSIONS = [some_version(random.Random(seed)) for seed in range(40)]
TESTS = [(axis, *sorted(pair)) for axis in ("dp", "tp") for pair in ((DEVICE, "own:own"), (DEVICE, "0"), ("0", UNIT),
         ("own:own", "own:other"), ("1", "at:batch!mine~dp"), ("0", "1"), (DEVICE, "at:batch"), ("0", "0"))]


def everywhere() -> Iterator[tuple[World, Rank]]:
    return ((world, rank) for world in WORLDS for rank in world.ranks())


def held(version: Version, world: World, rank: Rank) -> Any:
    """What a rank holds; of a guarded copy, on which ranks which updates had to be right."""
    while isinstance(version, Choice):
        version = version.yes if world.holds(version.test, rank) else version.no
    if not isinstance(version, Guarded):
        return version
    ranks = {(u, tuple(sorted({**rank, **{a: world.position(a, p, rank) for a, p in at.items()}}.items())))
             for u, at in version.updates}
    return frozenset(ranks), version.version


def paths(version: Version, before: tuple[Equality, ...] = ()) -> Iterator[tuple[Equality, ...]]:
    if isinstance(version, Choice):
        assert version.yes != version.no
        yield from paths(version.yes, (*before, version.test))
        yield from paths(version.no, (*before, version.test))
    else:
        yield before


@pytest.mark.parametrize("test", TESTS)
def test_a_choice_between_two_versions(test: Equality) -> None:
    for yes, no in zip(VERSIONS[:12], VERSIONS[12:24], strict=True):
        chosen = choose(test, yes, no)
        for world, rank in everywhere():
            assert held(chosen, world, rank) == held(yes if world.holds(test, rank) else no, world, rank)


def test_a_version_is_ordered_and_asks_nothing_twice() -> None:
    read = [versions.read_at(v, axis, at) for v in VERSIONS for axis, at in (("dp", "own:own"), ("tp", UNIT))]
    for version in [*VERSIONS, *read, *(choose(t, a, b) for t in TESTS for a, b in zip(VERSIONS[:8], VERSIONS[8:16],
                                                                               strict=True))]:
        for tests in paths(version):
            assert list(tests) == sorted(set(tests))
            assert not any((p.isdigit() and q.isdigit()) or p == q for _, p, q in tests)


def test_equal_functions_are_equal_versions() -> None:
    """It does not matter which of two tests is asked first, nor whether one is asked again."""
    leaves = LEAVES[:4]
    for one, two in permutations([t for t in TESTS if t[1:] not in (("0", "0"), ("0", "1"))], 2):
        for a, b, c, d in ((0, 1, 2, 3), (0, 0, 1, 2), (0, 1, 0, 1), (0, 1, 1, 0), (2, 2, 2, 3), (1, 1, 0, 0)):
            w, x, y, z = (leaves[k] for k in (a, b, c, d))
            made = choose(one, choose(two, w, x), choose(two, y, z))
            assert made == choose(two, choose(one, w, y), choose(one, x, z))
            assert made == choose(one, made, made) == choose(one, made, choose(two, y, z))
            assert made == choose(two, choose(one, w, y), made)
    assert choose(TESTS[0], CURRENT, CURRENT) == CURRENT


def test_where_is_at_every_pair() -> None:
    for pairs in ((), (("dp", "own:own"),), (("tp", "0"), ("dp", "at:batch")), (("dp", "own:own"), ("dp", UNIT))):
        version = versions.where(pairs, CURRENT, UNHELD)
        assert version == versions.where(reversed(pairs), CURRENT, UNHELD)
        for world, rank in everywhere():
            assert held(version, world, rank) == (CURRENT if world.stands(pairs, rank) else UNHELD)


def test_each_leaf_and_both_versions() -> None:
    for one, two in zip(VERSIONS[:20], VERSIONS[20:], strict=True):
        swapped = versions.each(one, lambda leaf: LEAVES[LEAVES.index(leaf) - 1])
        joined = versions.both(one, two, lambda a, b: 10 * LEAVES.index(a) + LEAVES.index(b))
        for world, rank in everywhere():
            a, b = (next(k for k, leaf in enumerate(LEAVES) if held(leaf, world, rank) == held(v, world, rank))
                    for v in (one, two))
            assert held(swapped, world, rank) == held(LEAVES[a - 1], world, rank)
            assert held(joined, world, rank) == 10 * a + b
    assert versions.each(VERSIONS[3], lambda _: NEXT) == NEXT
    assert versions.both(VERSIONS[3], VERSIONS[3], lambda a, b: 0 if a == b else 1) == 0


@pytest.mark.parametrize("axis", ["dp", "tp"])
@pytest.mark.parametrize("position", ["own:own", "0", UNIT])
def test_what_is_held_on_another_rank(axis: str, position: str) -> None:
    for version in VERSIONS:
        read = versions.read_at(version, axis, position)
        for world, rank in everywhere():
            there = {**rank, axis: world.position(axis, position, rank)}
            assert held(read, world, rank) == held(version, world, there)


def test_an_update_is_one_on_the_rank_that_is_read() -> None:
    read = versions.read_at(LEAVES[5], "dp", "1")
    assert read == Guarded(frozenset({("a", FrozenMap({"dp": "own:own"})),
                                      ("b", FrozenMap({"tp": "at:batch!mine^dp=1", "dp": "1"}))}), CURRENT)


def test_what_the_next_step_sees() -> None:
    updates = frozenset({("a", FrozenMap())})
    assert [versions.aged(v) for v in (CURRENT, NEXT, GARBAGE, UNHELD)] == [GARBAGE, CURRENT, GARBAGE, UNHELD]
    assert versions.aged(Guarded(updates, NEXT)) == Guarded(updates, CURRENT)
    assert versions.aged(Guarded(updates, CURRENT)) == GARBAGE
    assert [versions.trusted(v) for v in (NEXT, UNHELD, Guarded(updates, NEXT))] == [NEXT, UNHELD, NEXT]


def full_machine() -> Machine:
    """A machine of which every part holds something."""
    made = machine(3)
    made.stored = {"weight": CURRENT}
    made.slot, made.skip = Slot((Term(ONE),), Value(), frozenset()), Slot((), Value(), frozenset())
    made.counts, made.seed = {"loss": Monomial.of("m")}, Monomial.of("dp")
    made.started, made.begun = ONE, {"layer.weight"}
    made.reads = [Read("e", "view", "", CURRENT, CURRENT)]
    made.updates = [Updated("e", "f", Value(), None, None, ())]
    made.relied, made.steps = [Relied("e", "norm", None, frozenset())], 4
    return made


LOGS = ("reads", "updates", "relied")


def test_a_copy_is_the_same_state_with_an_empty_log() -> None:
    made = full_machine()
    copy = made.copy()
    for field in fields(Machine):
        ours, theirs = getattr(made, field.name), getattr(copy, field.name)
        assert theirs == ([] if field.name in LOGS else ours)
        if isinstance(ours, dict | list):
            assert theirs is not ours
    assert copy.snapshot() == made.snapshot()


def test_a_snapshot_tells_states_apart() -> None:
    made = full_machine()
    for name, other in (("versions", {}), ("stored", {}), ("values", {}), ("slot", None), ("skip", None),
                        ("counts", {}), ("seed", None)):
        assert replace(made, **{name: other}).snapshot() != made.snapshot()
    before = made.snapshot()
    made.versions["weight", "nvme"] = NEXT
    made.stored["master"] = NEXT
    made.values["grad", "nvme"] = ABSENT
    assert before == full_machine().snapshot() != made.snapshot()
    assert replace(full_machine(), steps=9, reads=[]).snapshot() == before


def test_what_was_never_written_is_not_held() -> None:
    made = Machine(STEP.reference, GROUP, Site(GROUP.sites[0]))
    assert made.version("weight") == UNHELD and made.value("grad") == ABSENT
    made.versions["weight", "device"], made.versions["weight", "host"] = CURRENT, NEXT
    made.values["grad", "device"], made.values["grad", "host"] = Value(), Value(zero=True)
    assert (made.version("weight"), made.version("weight", "host")) == (CURRENT, NEXT)
    assert (made.value("grad"), made.value("grad", "host")) == (Value(), Value(zero=True))
    assert made.owners == frozenset()
    assert replace(made, group=replace(GROUP, split=("tp", "dp"))).owners == {("tp", "own:own"), ("dp", "own:own")}
    site = Site("layer")
    assert (site.parameter, site.part, site.loss) == ("", 0, "loss")


def test_a_microbatch_begins_with_nothing_of_the_last() -> None:
    made = full_machine()
    made.begin()
    assert (made.begun, made.started, made.seed) == (set(), None, None)
    assert made.counts == {"loss": Monomial.of("m")} and made.versions and made.values


def test_the_state_of_the_next_step() -> None:
    made = full_machine()
    made.versions["weight", "device"] = versions.where([("dp", "0")], NEXT, CURRENT)
    later = made.next_step()
    assert later.version("weight") == versions.where([("dp", "0")], CURRENT, GARBAGE)
    assert set(later.versions) == set(made.versions) and set(later.values) == set(made.values)
    assert all(v == made.values[k].stale() for k, v in later.values.items())
    assert (later.stored, later.slot, later.counts, later.seed) == ({}, None, {}, None)
    assert (later.skip, later.steps, later.begun, later.started) == (STALE, 5, set(), None)
    assert replace(made, skip=None).next_step().skip is None
    assert (made.steps, made.stored, made.counts) == (4, {"weight": CURRENT}, {"loss": Monomial.of("m")})


def test_the_places_of_an_event() -> None:
    where = (Clause("dp"), Clause("tp", 2))
    assert event_ranks.pairs(event("free", "weight", where=where)) == {("dp", "own:own"), ("tp", "2")}
    assert event_ranks.pairs(event("free", "weight", where=where, layout="rows")) == {("dp", "own:rows"), ("tp", "2")}
    assert event_ranks.pairs(event("compute", "loss", group="", where=where)) == {("dp", "0"), ("tp", "2")}
    assert event_ranks.pairs(event("free", "weight")) == frozenset()
    one = event("gather", "weight", axes=("dp", "tp"), layout="stage(pp)")
    assert event_ranks.owner_of(one) == "own:stage~pp"
    assert event_ranks.owner_pairs(one) == {("dp", "own:stage~pp"), ("tp", "own:stage~pp")}


def test_a_version_at_places_is_garbage_where_there_is_no_such_rank() -> None:
    for version in VERSIONS[:15]:
        for places in ({"dp": "own:own"}, {"dp": "0", "tp": "1"}, {"tp": "2"}, {}, {"dp": "1", "tp": "own:own"}):
            read = reading.at_places(version, places)
            for world, rank in everywhere():
                outside = any(p.isdigit() and int(p) >= world.sizes[a] for a, p in places.items())
                there = {**rank, **{a: world.position(a, p, rank) for a, p in places.items()}}
                assert held(read, world, rank) == (GARBAGE if outside else held(version, world, there))


def test_that_a_rank_exists_is_said_alike_of_other_ranks_and_elements() -> None:
    """The root of a broadcast along two axes is there wherever both axes are that long, whoever asks."""
    version = reading.at_places(NEXT, {"dp": "1", "tp": "2"})
    seen = [version, versions.read_at(version, "dp", "own:own"), versions.read_at(version, DEVICE, "0"),
            correct.other_version(version)]
    worlds = [World(FrozenMap({"dp": dp, "tp": tp})) for dp in (1, 2, 3) for tp in (1, 2, 3)]
    for world in worlds:
        for rank in world.ranks():
            right = NEXT if world.sizes["dp"] > 1 and world.sizes["tp"] > 2 else GARBAGE
            assert [held(v, world, rank) for v in seen] == [right] * 4


def made_with(count: Monomial | None) -> Machine:
    return replace(machine(1), counts={} if count is None else {"loss": count})


def test_what_an_event_divides_by() -> None:
    two = Monomial(Fraction(1, 2))

    def by(divisor: Monomial, count: Monomial | None = None, **given: Any) -> Monomial | None:
        one = event("reduce", "grad", divisor=divisor, **given)
        return reading.divisor(made_with(count), one, ONLY)
    assert by(ONE) == ONE and by(two) == two and by(Monomial.of("dp") * two) == Monomial.of("dp") * two
    here = {"dp": DEVICE, "tp": DEVICE}
    assert by(Monomial.of("tokens")) == Monomial.of(count_name(here))
    assert by(Monomial.of("tokens") ** -2 * Monomial.of("m"), phase="backward") == (
        Monomial.of(count_name({**here, "microbatch": UNIT})) ** -2 * Monomial.of("m"))
    assert by(Monomial.of("count")) is None and by(Monomial.of("count", "dp")) is None
    assert by(Monomial.of("count", "dp") ** 2, Monomial.of("tp")) == Monomial.of("tp", "dp") ** 2
    padded = by(Monomial.of("padding") * Monomial.of("m"), layout="rows", axes=("dp", "tp"))
    assert padded == Monomial.of(f"{PADDED}rows:dp,tp", "m") / Monomial.of(f"{ELEMENTS}rows:dp,tp")
    assert by(Monomial.of("padding"), axes=()) == ONE
    with pytest.raises(reading.NoRule, match="padding of shards that differ from rank to rank"):
        by(Monomial.of("padding"), layout="rows(tp)", axes=("dp",))


def test_the_tokens_of_a_rank() -> None:
    def tokens(phase: str, iteration: Iteration) -> str:
        return reading.tokens(machine(1), event("compute", "loss", group="", phase=phase, unit="loss"), iteration)
    here = {"dp": DEVICE, "tp": DEVICE}
    assert tokens("prepare", ONLY) == tokens("reduce", MIDDLE) == count_name(here)
    assert tokens("forward", ONLY) == tokens("backward", ONLY) == count_name({**here, "microbatch": UNIT})
    assert tokens("forward", PASSIVE) == count_name({**here, "microbatch": "first"})


def test_the_tokens_of_a_loss_that_is_split_are_those_of_its_ranks() -> None:
    """Along an axis that splits what is summed, but not the tokens, every rank has the same ones."""
    step = step_of("zero1*pp", "mlp")
    flows = Flows(step)
    made = Machine(step.reference, step.reference.groups[0], Site("layer"), flows)
    (loss,) = [e for e in step.events if e.value == "loss" and e.verb == "compute"]
    scale = replace(loss, verb="scale")
    mask = flows.at("only").loss[loss.path]
    assert any(p.startswith("stage:") for _, p in mask)
    assert reading.tokens(made, loss, ONLY) == count_name(
        {**{a: DEVICE for a, p in mask if not p.startswith("stage:")}, "microbatch": UNIT})
    unknown = reading.tokens(made, replace(scale, unit="other"), ONLY)
    assert unknown == count_name({**dict.fromkeys(step.reference.data_axes, DEVICE), "microbatch": UNIT})
    outside = replace(loss, at=("first", "last"))
    placed = replace(step, events=tuple(outside if e == loss else e for e in step.events))
    assert reading.tokens(replace(made, flows=Flows(placed)), outside, ONLY) == reading.tokens(made, loss, ONLY)
    count = Event("prepare", "compute", "count", unit="loss")
    assert reading.tokens(made, count, ONLY) == count_name(dict.fromkeys(step.reference.data_axes, DEVICE))


def test_a_read_is_observed_where_its_event_runs() -> None:
    made = machine(2)
    one = event("compute", "activation", group="", phase="forward", unit="layer", where=(Clause("dp", 1),))
    reading.observe(made, one, "weight", GARBAGE, PASSIVE)
    reading.observe(made, one, "rng", GARBAGE, PASSIVE, frozenset({("tp", "own:own")}))
    anywhere, somewhere = made.reads
    assert anywhere == Read(one.path, "weight", "first", versions.where([("dp", "1")], GARBAGE, CURRENT), CURRENT)
    assert somewhere.kind == "rng"
    assert somewhere.version == versions.where([("dp", "1"), ("tp", "own:own")], GARBAGE, CURRENT)


def test_an_event_without_a_rule_is_named() -> None:
    gap = NoRule("update.step.update", "none")
    assert gap.event == "update.step.update" and str(gap) == "update.step.update: none"


def test_conditions_of_random_values_can_be_choices() -> None:
    rng = random.Random(5)
    for _ in range(10):
        version: Version = CURRENT
        conditions = [e for e in some_equalities(rng) if e[1] != "="]
        for one in conditions:
            version = choose(one, version, UNHELD)
        for world, rank in everywhere():
            assert held(version, world, rank) == (
                CURRENT if all(world.holds(e, rank) for e in conditions) else UNHELD)
    assert some_value(rng).held and equality("dp", "0", "0") == frozenset()
