"""The contribution calculus and sums along paths against plain arithmetic: every rank by itself, on small meshes.

A value of the calculus says what every rank of every mesh holds. Here it is read off rank by rank on one mesh, for one
choice of what is unknown (where an owner stands, how many tokens a cell holds), and each operation on values must do
what the operation on the ranks' numbers does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from worlds import GARBAGE, WORLDS, Rank, World

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus.contribution import (
    ABSENT,
    EXISTS,
    OPAQUE,
    Equality,
    Slot,
    Tag,
    Term,
    Value,
    chosen,
    count_cell,
    count_name,
    depends,
    equality,
    merged,
    move,
    per_element,
    put,
    size_one,
    sum_over,
)
from placealg.prover.calculus.positions import DEVICE, PEER, UNIT, drawn, of_factor, varies
from placealg.prover.ops import paths

TWO, THREE = Monomial(Fraction(2)), Monomial(Fraction(3))


def opaque(value: Value | Slot) -> bool:
    return any(n.startswith(OPAQUE) for t in value.terms for n in t.coefficient.names())


POSITIONS = (UNIT, "own:own", "own:other", "at:batch", "at:batch!mine~dp", "0", "1")
CELLS = ({"dp": DEVICE, "microbatch": UNIT}, {"microbatch": UNIT}, {"dp": UNIT}, {})


def some_terms(rng: random.Random) -> tuple[Term, ...]:
    def term() -> Term:
        coefficient = Monomial(Fraction(rng.choice((1, 1, 2, -1)), rng.choice((1, 1, 3))))
        if rng.random() < 0.4:
            coefficient = coefficient / Monomial.of(rng.choice(("dp", "tp")))
        if rng.random() < 0.4:
            coefficient = coefficient / Monomial.of(count_name(rng.choice(CELLS)))
        at = {a: rng.choice(POSITIONS) for a in ("dp", "tp") if rng.random() < 0.6}
        return Term(coefficient, FrozenMap(at), some_equalities(rng))
    return merged(term() for _ in range(rng.randint(1, 3)))


def some_equalities(rng: random.Random) -> frozenset[Equality]:
    found: frozenset[Equality] = frozenset()
    for axis in ("dp", "tp"):
        if rng.random() < 0.25:
            found |= equality(axis, *rng.sample((*POSITIONS, DEVICE), 2))
        if rng.random() < 0.1:
            found |= {size_one(axis)}
    return found


def some_value(rng: random.Random, **given: Any) -> Value:
    mask = frozenset((a, rng.choice(POSITIONS[:5])) for a in ("dp", "tp") if rng.random() < 0.4)
    return replace(Value(some_terms(rng), mask, some_equalities(rng)), **given)


def some_values(count: int, seed: int = 0) -> list[Value]:
    rng = random.Random(seed)
    return [some_value(rng) for _ in range(count)]


VALUES = some_values(30)


def others(rank: Rank, axes: Iterable[str], world: World) -> list[dict[str, int]]:
    """The ranks that differ from one in coordinates along `axes` only."""
    return [r for r in world.ranks() if all(r[a] == rank[a] for a in rank if a not in axes)]


def held_across(value: Value, axes: Iterable[str], world: World, rank: Rank) -> bool:
    """Whether a rank is among those whose collective along `axes` is about the element."""
    return value.held and world.stands([(a, p) for a, p in value.mask if a not in axes], rank)


def same(one: Value, other: Callable[[World, Rank], Any], worlds: Iterable[World] = WORLDS) -> None:
    for world in worlds:
        for rank in world.ranks():
            assert world.on(one, rank) == other(world, rank), (one, world.sizes, rank)


def test_adding_and_scaling() -> None:
    for one, two in zip(VALUES, some_values(30, 1), strict=True):
        def added(world: World, rank: Rank, one: Value = one, two: Value = two) -> Any:
            mine, theirs = world.on(one, rank), world.on(two, rank)
            return None if mine is None else GARBAGE if GARBAGE in (mine, theirs) or theirs is None else mine + theirs
        same(one.plus(two), added)
        same(one.scaled(ONE / Monomial.of("dp")), lambda w, r, v=one: (  # type: ignore[misc]
            w.on(v, r) / w.sizes["dp"] if isinstance(w.on(v, r), Fraction) else w.on(v, r)))


def test_scaling_on_some_ranks() -> None:
    half, pairs = Monomial.number(Fraction(1, 2)), frozenset({("dp", "own:own")})
    for one in VALUES:
        same(one.scaled_on(half, pairs), lambda w, r, v=one: (  # type: ignore[misc]
            w.on(v, r) / 2 if isinstance(w.on(v, r), Fraction) and w.stands(pairs, r) else w.on(v, r)))
        for there in (pairs, {*pairs, ("tp", "0")}):
            assert one.masked(there).scaled_on(half, pairs) == one.masked(there).scaled(half), "held nowhere else"


def test_adding_what_is_not_held_or_is_garbage_or_was_changed() -> None:
    value = Value((Term(ONE),), frozenset({("dp", "own:own")}))
    clip, other = Tag("clip", None), Tag("clip", None, mixed=True)
    assert ABSENT.plus(value) == ABSENT and value.plus(ABSENT) == replace(value, garbage=True)
    for one, two in ((value, replace(value, garbage=True)), (replace(value, garbage=True), value)):
        assert one.plus(two).garbage
    assert not value.plus(value).garbage and value.plus(value).terms == (Term(TWO),)
    assert replace(value, tags=(clip,)).plus(replace(value, tags=(clip,))).tags == (clip,)
    unequal, = replace(value, tags=(clip,)).plus(replace(value, tags=(other,))).tags
    assert unequal.mixed and unequal.slot is None and unequal.name not in ("clip", "")
    zero = Value(zero=True)
    assert zero.plus(zero).zero and not zero.plus(value).zero and not value.plus(zero).zero


@pytest.mark.parametrize("axes", [("dp",), ("dp", "tp"), ("tp",)])
def test_a_sum_over_ranks(axes: tuple[str, ...]) -> None:
    for value in (v for v in VALUES if not any(varies(p) for _, p in v.mask)):
        def summed(world: World, rank: Rank, value: Value = value) -> Any:
            if not held_across(value, axes, world, rank):
                return None
            parts = [world.on(value, r) for r in others(rank, axes, world)]
            return GARBAGE if None in parts or GARBAGE in parts else sum(parts) / 2
        closed = value.reduced(axes, ONE / TWO)
        if not opaque(closed):
            same(closed, summed)
        for world in WORLDS:
            written = value.reduced(axes, ONE / TWO, {a: world.sizes[a] for a in axes})
            assert not opaque(written)
            same(written, summed, [world])
    assert ABSENT.reduced(axes, ONE) == ABSENT


def test_a_written_sum_in_which_each_rank_counts_is_certain() -> None:
    """A term for each rank on which one position stands is the term itself; where a rank lacks, each stays."""
    placed, named = equality("tp", UNIT, "0"), {size_one("dp"), ("dp", EXISTS, "1")}
    for term in (Term(ONE, FrozenMap({"dp": UNIT})), Term(THREE, FrozenMap({"dp": "own:own"}), placed | named)):
        assert sum_over([term], "dp", 3) == (Term(term.coefficient, given=term.given),)
    two = Term(ONE, FrozenMap({"dp": UNIT}), equality("dp", DEVICE, "own:own"))
    assert len(sum_over([two], "dp", 3)) == 3
    some = [Term(ONE, given=equality("dp", UNIT, k)) for k in ("0", "2")]
    assert sum_over(some, "dp", 1) == merged(some) and sum_over([Term(ONE)], "dp", 3) == (Term(THREE),)


def test_an_equality_that_became_true_is_gone() -> None:
    given = equality("dp", DEVICE, "0") | equality("tp", DEVICE, "0") | equality("dp", UNIT, "0")
    assert Term(ONE, given=given).read_at("dp", "0").given == given - equality("dp", DEVICE, "0")
    assert Term(ONE, FrozenMap({"dp": "0"}), given).summed("dp").given == given - equality("dp", DEVICE, "0")
    assert Term(ONE, FrozenMap({"dp": "2"}), given).summed("dp").given == (
        given - equality("dp", DEVICE, "0") | equality("dp", "0", "2") | {("dp", EXISTS, "2")})


def test_a_sum_without_closed_form_is_unknown_and_equal_ones_are_equal() -> None:
    draws = Term(ONE, FrozenMap({"dp": "at:batch!mine~dp", "tp": UNIT}), equality("tp", DEVICE, "own:own"))
    depending = Term(ONE / Monomial.of(count_name(CELLS[0])))
    sided = Term(ONE, given=equality("dp", DEVICE, UNIT))
    unknown = [sum_over([t], "dp") for t in (
        draws, depending, sided, replace(draws, coefficient=ONE / Monomial.of("tp")))]
    for (term,) in unknown:
        (name,) = term.coefficient.names()
        assert name.startswith(OPAQUE) and term.coefficient == Monomial.of(name) and "dp" not in term.at
        assert not [e for e in term.given if e[0] == "dp"]
    assert unknown[0][0].at == {"tp": UNIT} and unknown[0][0].given == draws.given
    assert len({t.coefficient for t, in unknown}) == 4 and sum_over([draws], "dp") == unknown[0]
    assert sum_over([replace(sided, given=equality("tp", DEVICE, UNIT))], "dp")[0].coefficient == Monomial.of("dp")


@pytest.mark.parametrize("places", [{"dp": "own:own"}, {"tp": "1"}, {"dp": "0", "tp": UNIT},
                                    {"dp": "at:batch!mine~dp"}])
def test_what_the_rank_at_a_place_holds(places: dict[str, str]) -> None:
    for value in VALUES:
        def there(world: World, rank: Rank, value: Value = value) -> Any:
            source = {**rank, **{a: world.position(a, p, rank) for a, p in places.items()}}
            if not held_across(value, places, world, source):
                return None
            if any(source[a] >= world.sizes[a] for a in source):
                return GARBAGE
            held = world.on(value, source)
            return GARBAGE if held is None else held
        if "at:batch!mine~dp" not in places.values():
            same(value.gathered(places), there)
    assert ABSENT.gathered(places) == Value(held=True, garbage=True)


def test_masked_and_stale() -> None:
    for value in VALUES:
        same(value.masked([("dp", UNIT), ("tp", "own:own")]), lambda w, r, v=value: (  # type: ignore[misc]
            w.on(v, r) if w.stands([("dp", UNIT), ("tp", "own:own")], r) else None))
        same(value.stale(), lambda w, r, v=value: None if w.on(v, r) is None else GARBAGE)  # type: ignore[misc]
    zero = Value(zero=True, mask=frozenset({("dp", UNIT)}), mixed=frozenset())
    assert ABSENT.stale() == ABSENT and zero.stale() == zero
    for spoilt in (replace(zero, garbage=True), replace(zero, tags=(Tag("clip", None),)), replace(zero, zero=False)):
        assert spoilt.stale() == Value(mask=zero.mask, garbage=True, mixed=frozenset())


def test_what_ran_on_some_ranks_only_is_claimed_there_only() -> None:
    """On the ranks of `where` the new value; of any other rank only where it may hold something at all."""
    rng = random.Random(3)
    for _ in range(60):
        new, old = (some_value(rng) if rng.random() < 0.8 else ABSENT for _ in range(2))
        where = frozenset((a, rng.choice(POSITIONS[:5])) for a in ("dp", "tp") if rng.random() < 0.6)
        both = chosen(new, old, where)
        for world, rank in ((w, r) for w in WORLDS for r in w.ranks()):
            ran, got = world.stands(where, rank), world.on(both, rank)
            right = world.on(new if ran else old, rank)
            if got is not None and got != GARBAGE:
                assert got == right
            if right is not None and got is None:
                assert both.mixed is not None and world.stands(both.mixed, rank)
            if ran and new.held and right is not None:
                assert got == right
    value = VALUES[0]
    assert chosen(value, ABSENT, frozenset({("dp", "0")})).mixed is None
    assert chosen(value, value, frozenset({("dp", "0")})) == value == chosen(value, ABSENT, frozenset())
    assert chosen(ABSENT, ABSENT, frozenset({("dp", "0")})) == ABSENT
    mixed = frozenset({("tp", UNIT)})
    assert chosen(value, replace(value, mask=frozenset({("dp", "0")})), frozenset({("dp", "0")})).mixed is None
    assert chosen(replace(value, mixed=mixed), ABSENT, frozenset({("dp", "0")})).mixed == mixed | {("dp", "0")}
    assert chosen(value, replace(ABSENT, mixed=mixed), frozenset({("dp", "0")})).mixed == mixed
    assert not chosen(ABSENT, replace(ABSENT, mixed=mixed), frozenset({("dp", "0")})).garbage
    lost = chosen(ABSENT, value, frozenset({("dp", "0")}))
    assert lost.garbage and lost.mixed == frozenset() and lost.mask == value.mask


def test_mixed_along_an_axis_ends_with_a_collective_along_it() -> None:
    mixed = frozenset({("dp", UNIT), ("tp", "own:own")})
    value = Value((Term(ONE),), mixed=mixed)
    for changed in (value.reduced(("dp",), ONE), value.gathered({"dp": "0"})):
        assert changed.mixed == {("tp", "own:own")}
    assert Value((Term(ONE),)).reduced(("dp",), ONE).mixed is Value((Term(ONE),)).gathered({"dp": "0"}).mixed is None


def test_a_transform_is_remembered_with_the_rank_that_did_it() -> None:
    value = Value((Term(ONE),), tags=(Tag("clip", None, FrozenMap({"tp": "0"})), Tag("clip", None)))
    assert [t.rank for t in value.reduced(("dp", "tp"), ONE).tags] == [{"tp": "0", "dp": PEER},
                                                                       {"dp": PEER, "tp": PEER}]
    assert [t.rank for t in value.gathered({"dp": UNIT, "tp": "1"}).tags] == [{"tp": "0", "dp": UNIT},
                                                                              {"dp": UNIT, "tp": "1"}]
    assert all(t.name == "clip" and not t.mixed for t in value.reduced(("dp",), ONE).tags)


OWN = "own:mine~dp"
"""Every rank along dp has an owner along tp of its own."""

HERE, THERE = Term(ONE, FrozenMap({"tp": OWN})), Term(ONE, FrozenMap({"dp": UNIT, "tp": OWN}))
AGREE, APART = ([World(FrozenMap({"dp": 3, "tp": 3}), seed, FrozenMap({f"tp:own:mine^dp={k}": k * apart
                                                                        for k in range(3)})) for seed in range(4)]
                for apart in (0, 1))
"""Worlds where all ranks have one owner, and where each has another."""

DIFFERING = (
    Value((HERE,)), Value((THERE,)), Value((Term(THREE, given=equality("tp", OWN, UNIT)),)),
    Value((Term(ONE),), frozenset({("tp", OWN)})), Value((THERE,), frozenset({("dp", UNIT), ("tp", OWN)})),
    Value((Term(ONE),), sides=equality("tp", OWN, "0")), Value((HERE,), frozenset({("dp", "at:batch!mine~dp")})),
)


@pytest.mark.parametrize("value", DIFFERING)
def test_owners_of_each_rank_s_own_are_looked_up_on_that_rank(value: Value) -> None:
    """A mask stays that of the rank that holds the result; that what it got is another's makes it garbage."""
    for place in (UNIT, "0", "own:own"):
        got = value.gathered({"dp": place})
        for world in (*WORLDS, *AGREE, *APART):
            for rank in world.ranks():
                source = {**rank, "dp": world.position("dp", place, rank)}
                across = [(a, p) for a, p in value.mask if a != "dp"]
                there = world.on(value, source)
                want = None if not world.stands(across, source) else GARBAGE if there is None else there
                assert world.on(got, rank) == want
    for axes in (("dp",), ("tp",)):
        total = value.reduced(axes, ONE)
        if not opaque(total) and not any(a == "dp" and varies(p) for a, p in value.mask):
            def summed(world: World, rank: Rank, axes: tuple[str, ...] = axes) -> Any:
                if not held_across(value, axes, world, rank):
                    return None
                parts = [world.on(value, r) for r in others(rank, axes, world)]
                return GARBAGE if None in parts or GARBAGE in parts else sum(parts)
            same(total, summed, (*WORLDS, *AGREE, *APART))


def test_a_sum_among_ranks_that_hold_other_elements_leaves_anything_anywhere() -> None:
    apart = Value((Term(ONE),), frozenset({("tp", OWN)}))
    assert apart.reduced(("dp",), ONE).mixed == frozenset()
    assert apart.reduced(("tp",), ONE).mixed is None is Value((HERE,)).reduced(("dp",), ONE).mixed


def test_a_sum_of_what_rank_one_alone_holds_is_defined_nowhere() -> None:
    """Of two ranks one holds nothing; of one rank, nobody is rank 1."""
    for ranks in (0, 1, 2):
        total = Value((Term(ONE),), frozenset({("dp", "1")})).reduced(("dp",), ONE, {"dp": ranks} if ranks else {})
        assert total.sides == {("dp", EXISTS, "1"), *([size_one("dp")] if ranks != 1 else [])}
    assert Value((Term(ONE),), frozenset({("dp", "0")})).reduced(("dp",), ONE).sides == {size_one("dp")}
    assert Value((Term(ONE),), frozenset({("tp", "1")})).reduced(("dp",), ONE).sides == frozenset()


def test_a_transform_remembers_its_rank_as_a_rank_of_its_own_sees_it() -> None:
    tag = Tag("clip", None, FrozenMap({"tp": OWN}))
    assert tag.read_at("dp", "0").rank == {"tp": "own:mine^dp=0", "dp": "0"}
    assert tag.read_at("tp", "0").rank == {"tp": OWN}


def test_what_is_left_of_an_unknown_sum_says_the_same_on_all_its_ranks() -> None:
    given = {*equality("tp", DEVICE, OWN), *equality("dp", DEVICE, UNIT), *equality("tp", DEVICE, UNIT), size_one("dp")}
    (term,) = sum_over([Term(ONE, FrozenMap({"tp": OWN}), frozenset(given))], "dp")
    assert term.coefficient.names()[0].startswith(OPAQUE) and not term.at
    assert term.given == equality("tp", DEVICE, UNIT) | {size_one("dp")}


def test_what_is_said_of_any_two_ranks_needs_a_lone_rank() -> None:
    """That my owner is any other rank's, for any rank, is no matter of course."""
    assert put(("tp", "own:mine^dp=peer", OWN), "dp", PEER) == size_one("dp")
    assert put(("tp", DEVICE, OWN), "dp", PEER) == ("tp", DEVICE, "own:mine^dp=peer")
    assert put(("dp", DEVICE, PEER), "dp", PEER) == size_one("dp")
    assert put(("dp", DEVICE, PEER), "tp", PEER) == ("dp", DEVICE, PEER)
    assert put(("dp", "0", DEVICE), "dp", "0") is None


def test_a_slot_is_summed_as_a_value_is() -> None:
    for value in VALUES:
        for mean in (False, True):
            slot = Slot(value.terms, value, value.mask).summed(("dp", "tp"), mean)
            factor = ONE / Monomial.of("dp", "tp") if mean else ONE
            assert slot.terms == replace(value, tags=()).reduced(("dp", "tp"), factor).terms
            assert (slot.counted, slot.where, slot.defined, slot.apart) == (value, value.mask, True, "")
        for world in WORLDS:
            slot = Slot(value.terms, value, value.mask).summed(("dp",), False, {"dp": world.sizes["dp"]})
            for rank in world.ranks():
                assert world.total(slot.terms, rank) == sum(
                    world.total(value.terms, r) for r in others(rank, ("dp",), world))


def test_what_the_ends_know_all_know_once_it_was_summed_over_them() -> None:
    slot = Slot((Term(ONE),), Value(), frozenset(), apart="pp_ends")
    assert slot.summed(("dp",), False).apart == slot.apart and slot.summed(("dp", "pp_ends"), False).apart == ""


def test_like_terms_are_one_and_zero_is_none() -> None:
    here = Term(ONE, FrozenMap({"dp": UNIT}))
    assert merged([here, here]) == (here.times(TWO),)
    assert merged([here, here.times(Monomial(Fraction(-1)))]) == ()
    rng = random.Random(5)
    for value in VALUES:
        shuffled = list(value.terms)
        rng.shuffle(shuffled)
        assert merged(shuffled) == value.terms
        assert all(merged([t, t, t]) == (t.times(THREE),) for t in value.terms)


def test_counts_depend_on_the_device_along_the_axes_of_their_cell() -> None:
    cell = Monomial.of(count_name({"dp": DEVICE, "tp": "0"})) ** -2 * Monomial.of("dp")
    assert depends(cell, "dp") and not depends(cell, "tp") and not depends(Monomial.of("dp"), "dp")
    moved = Monomial.of(count_name({"dp": UNIT, "tp": "0"})) ** -2 * Monomial.of("dp")
    assert move(cell, "dp", UNIT) == moved and move(cell, "tp", UNIT) == cell
    assert move(cell * THREE, "dp", UNIT) == moved * THREE
    drawn = Monomial.of(count_name({"dp": DEVICE, "tp": OWN}))
    assert depends(drawn, "dp") and not depends(drawn, "tp") and depends(Monomial.of(count_name({"tp": OWN})), "dp")
    assert move(drawn, "dp", "0") == Monomial.of(count_name({"dp": "0", "tp": "own:mine^dp=0"}))
    assert count_cell("N[]") == {} and count_cell("dp") is None and count_name({}) == "N[]"


def test_another_element_has_other_owners() -> None:
    def other(position: str) -> str:
        return "other:" + position[4:] if position.startswith("own:") else position
    for value in VALUES:
        renamed = per_element(value, other)
        for world in WORLDS:
            there = replace(world, named=FrozenMap({
                f"{a}:own:{layout}": world.position(a, f"other:{layout}", {}) for a in world.sizes
                for layout in ("own", "other")}))
            for rank in world.ranks():
                assert world.on(renamed, rank) == there.on(value, rank)
    owned = Term(ONE / Monomial.of(count_name({"dp": "own:own"})) ** 2 * THREE, FrozenMap({"tp": "own:own"}))
    assert per_element(Value((owned,)), other).terms == (
        Term(ONE / Monomial.of(count_name({"dp": "other:own"})) ** 2 * THREE, FrozenMap({"tp": "other:own"})),)


# sums along paths

def test_what_is_exact_is_held_where_its_mask_says() -> None:
    exact = paths.exact([("tp", "at:seq")])
    assert exact[0].mask == {("tp", "at:seq")} == paths.mask_of(exact)
    assert paths.mask_of(()) == frozenset()


def test_exact_and_plain() -> None:
    exact = paths.exact([("tp", "at:seq")])
    half = paths.scaled(exact, ONE / Monomial.of("tp"))
    placed = (Value((Term(ONE, FrozenMap({"tp": "op/k"})),)),)
    sided = (replace(exact[0], sides=equality("tp", DEVICE, "at:seq")),)
    two = (*exact, *half)
    assert [paths.is_exact(s) for s in (exact, half, placed, sided, two, ())] == [True] + [False] * 5
    assert [paths.is_plain(s) for s in (exact, half, placed, sided, two, ())] == [True, True, False, False, True, False]
    assert paths.is_plain((Value(),)) and not paths.is_plain((Value(garbage=True),)), "never, on all ranks"
    assert not any(paths.is_plain((*exact, *other)) for other in (placed, sided)), "each class must be plain"


def test_what_stands_where_it_is_held_counts_once_there() -> None:
    """A term at the owner of an index is exact on the owners, along every axis on which it stands."""
    once = (Term(ONE, FrozenMap({"tp": "at:ffn"})),)
    assert paths.is_exact((Value(once, frozenset({("tp", "at:ffn")})),))
    assert not paths.is_exact((Value(once, frozenset({("tp", "at:seq")})),))
    both = (Term(ONE, FrozenMap({"tp": "at:ffn", "dp": "at:seq"})),)
    assert not paths.is_exact((Value(both, frozenset({("tp", "at:ffn")})),))
    assert paths.is_exact((Value(both, frozenset({("tp", "at:ffn"), ("dp", "at:seq")})),))
    (spoilt,) = paths.undefined(frozenset({("tp", "at:seq")}))
    assert spoilt.garbage and spoilt.held and spoilt.mask == {("tp", "at:seq")}


def sums(seed: int, count: int = 25, most: int = 2) -> list[paths.Sum]:
    """Sums of one or two classes of contributions, each with one mask and common side conditions."""
    rng = random.Random(seed)

    def term() -> Term:
        at = {a: rng.choice(("at:seq", "at:ffn", "op0/k", "0")) for a in ("dp", "tp") if rng.random() < 0.5}
        return Term(Monomial(Fraction(1, rng.choice((1, 2)))), FrozenMap(at))
    found = []
    for _ in range(count):
        mask = frozenset((a, rng.choice(("at:seq", "at:ffn"))) for a in ("dp", "tp") if rng.random() < 0.5)
        sides = equality("dp", DEVICE, "at:seq") if rng.random() < 0.2 else frozenset()
        found.append(paths.distinct(Value(merged([term()]), mask, sides) for _ in range(rng.randint(1, most))))
    return found


def classes(world: World, held: paths.Sum, rank: Rank) -> Any:
    """What a rank holds, class by class; garbage where one is, None where nothing is held."""
    found = [world.on(v, rank) for v in held]
    if not found or None in found:
        assert set(found) <= {None}
        return None
    return GARBAGE if GARBAGE in found else {*found}


def everywhere(check: Callable[[World, Rank], None]) -> None:
    for world in WORLDS:
        for rank in world.ranks():
            check(world, rank)


def test_a_sum_of_operands_is_held_where_all_are() -> None:
    for one, two in zip(sums(1), sums(2), strict=True):
        added, accumulated = paths.added([one, two]), paths.accumulated([one, two])

        def check(world: World, rank: Rank, one: paths.Sum = one, two: paths.Sum = two,
                  added: paths.Sum = added, accumulated: paths.Sum = accumulated) -> None:
            parts = [classes(world, s, rank) for s in (one, two)]
            if None in parts:
                assert classes(world, added, rank) is None
            else:
                assert classes(world, added, rank) == (GARBAGE if GARBAGE in parts else parts[0] | parts[1])
            got = classes(world, accumulated, rank)
            if None in parts:
                assert got in (None, GARBAGE)
            else:
                assert got == (GARBAGE if GARBAGE in parts else parts[0] | parts[1])
        everywhere(check)
    exact, spoilt = paths.exact([("tp", "at:seq")]), paths.undefined(frozenset({("dp", "at:ffn")}))
    assert paths.added([exact, ()]) == () == paths.accumulated([(), ()])
    assert paths.added([exact, spoilt]) == paths.undefined(exact[0].mask | spoilt[0].mask)
    assert paths.accumulated([exact, ()]) == paths.undefined(exact[0].mask)
    assert paths.accumulated([exact, spoilt]) == paths.undefined(frozenset())
    assert paths.accumulated([exact]) == exact == paths.added([exact])
    sided = (replace(exact[0], sides=equality("dp", DEVICE, "at:ffn")),)
    assert paths.added([exact, sided]) == sided == paths.accumulated([exact, sided]), "what counts alike is one"


def test_a_product_of_two_sums_is_the_sum_of_products_with_an_index_for_each() -> None:
    """Where a rank holds both, it counts what it counts of the one times what it counts of the other."""
    apart = of_factor("op", 1)
    for one, two in product(sums(3), sums(5)):
        if paths.is_exact(one) or paths.is_exact(two) or any(v.sides or v.garbage for v in (*one, *two)):
            continue
        made = paths.contracted([one, two], ("ffn", "seq"), "op")
        other = paths.each(two, lambda v: per_element(v, apart))
        for world in WORLDS:
            for rank in world.ranks():
                parts = [classes(world, held, rank) for held in (one, other)]
                assert classes(world, made, rank) == (
                    None if None in parts else {x * y for x in parts[0] for y in parts[1]})
    place = Term(ONE, FrozenMap({"tp": "x/ffn"}))
    (square,) = paths.contracted([(Value((place,)),), (Value((place,)),)], (), "op")
    assert square.terms == (replace(place, given=equality("tp", "x/ffn", "op*1*x/ffn")),)
    (value,) = paths.contracted([(Value((place,), mixed=frozenset({("dp", "0"), ("tp", "0")})),),
                                 (Value((place,), mixed=frozenset({("dp", "0")}), zero=True),)], (), "op")
    assert (value.mixed, value.zero) == (frozenset({("dp", "0")}), True)


def test_a_product_is_summed_over_what_a_rank_holds() -> None:
    """Of the contracted dim a rank sums the indices that all operands hold there."""
    exact = [paths.exact([("dp", "at:ffn")]), paths.exact([("tp", "at:seq")]), paths.exact()]
    for one, two in product(sums(4), exact):
        made = paths.contracted([one, two], ("ffn",), "op")
        for world in WORLDS:
            inner = replace(world, named=FrozenMap({
                f"{a}:at:seq": world.position(a, "op/seq", {}) for a in world.sizes}))
            for rank in world.ranks():
                if paths.is_exact(one) or not any(v.sides for v in one):
                    parts = [classes(inner, s, rank) for s in (one, two)]
                    got = classes(world, made, rank)
                    kept = [p for s in (one, two) for p in paths.mask_of(s) if p[1] == "at:ffn"]
                    if not world.stands(kept, rank):
                        assert got is None
                    else:
                        assert got == ({Fraction(0)} if None in parts else parts[0])
    half = paths.scaled(paths.exact(), ONE / Monomial.of("tp"))
    held = paths.exact([("tp", "at:ffn"), ("pp", "stage:layer"), ("dp", "at:seq")])
    assert paths.contracted([half, half], ("ffn",), "op") == paths.scaled(half, ONE / Monomial.of("tp"))
    assert paths.contracted([held, paths.undefined(frozenset())], ("ffn",), "op") == paths.undefined(
        frozenset({("tp", "at:ffn"), ("pp", "stage:layer")}))
    assert paths.contracted([held, ()], ("ffn",), "op") == ()
    (value,) = paths.contracted([held, held], ("ffn",), "op")
    assert value.mask == {("tp", "at:ffn"), ("pp", "stage:layer")} and value.terms == (
        Term(ONE, FrozenMap({"dp": "op/seq"})),)
    placed = (Value((Term(ONE, FrozenMap({"dp": "x/k"})),)),)
    (value,) = paths.contracted([paths.exact([("dp", "at:seq")]), placed], (), "op")
    assert value.terms == (Term(ONE, FrozenMap({"dp": "x/k"}), equality("dp", "x/k", "op/seq")),)


def test_names_of_dims() -> None:
    (value,) = paths.renamed((Value((Term(ONE, FrozenMap({"dp": "at:seq!mine~dp", "tp": "op/seq"})),),
                                    frozenset({("tp", "at:ffn")})),), {"seq": "batch"})
    assert value.terms[0].at == {"dp": "at:batch!mine~dp", "tp": "op/seq"} and value.mask == {("tp", "at:ffn")}


def test_an_owner_s_own_order_is_that_owner_s_under_any_name() -> None:
    """What a rank takes for its own was gathered: whose order it is in is told by an owner of the same index."""
    taken = paths.gathered(paths.exact([("dp", drawn("seq", "mine", "dp"))]), ["dp"], "seq")
    for made, at in ((paths.renamed(taken, {"seq": "keys"}), "at:keys"), (paths.mixed(taken, ["seq"], "op"), "op/seq"),
                     (paths.contracted([taken], (), "op"), "op/seq")):
        (value,) = made
        assert value.sides == equality("dp", at, f"{at}!mine^dp={at}")


def test_redistributions_of_sums() -> None:
    for held in sums(6):
        narrowed = paths.narrowed(held, [("dp", "at:ffn")])
        gathered = paths.gathered(held, ("tp",), "seq")
        for unrolled in ({}, {"dp": 2}):
            assert paths.reduced(held, ("dp",), TWO, unrolled) == paths.distinct(
                v.reduced(("dp",), TWO, unrolled) for v in held)
        padded = paths.padded(held, ("tp",), "seq")

        def check(world: World, rank: Rank, held: paths.Sum = held, narrowed: paths.Sum = narrowed,
                  gathered: paths.Sum = gathered, padded: paths.Sum = padded) -> None:
            here = classes(world, held, rank)
            assert classes(world, narrowed, rank) == (here if world.stands([("dp", "at:ffn")], rank) else None)
            there = classes(world, held, {**rank, "tp": world.position("tp", "at:seq", rank)})
            across = all(held_across(v, ("tp",), world, rank) for v in held)
            assert classes(world, gathered, rank) == (None if not across else GARBAGE if there is None else there)
            if world.stands([("tp", "at:seq")], rank):
                assert classes(world, padded, rank) == here
            elif not any(v.sides for v in held) and not any(("tp", "at:ffn") in v.mask for v in held):
                free = [p for p in paths.mask_of(held) if p != ("tp", "at:seq")]
                assert classes(world, padded, rank) == ({Fraction(0)} if world.stands(free, rank) else None)
        everywhere(check)
        assert paths.lost(held) == paths.distinct((*held, replace(held[0], terms=())))
    assert paths.lost(()) == ()


def test_the_owner_along_a_split_is_the_owner_of_the_element() -> None:
    alone = {("tp", EXISTS, "1"), size_one("dp")}
    value = Value((Term(ONE, FrozenMap({"tp": "at:ffn", "dp": "at:seq", "pp": "stage:layer"}),
                        equality("tp", "at:ffn", "0") | equality("tp", "at:ffn", DEVICE) | alone),),
                  frozenset({("tp", "at:ffn"), ("pp", "stage:layer")}),
                  equality("dp", "at:seq", DEVICE) | equality("tp", "at:ffn", DEVICE) | {size_one("tp")})
    owned = paths.owned(value, {"tp": "ffn", "pp": "layer"}, "stage:layer")
    assert owned.terms == (Term(ONE, FrozenMap({"tp": "own:own", "dp": "at:seq", "pp": "own:own"}),
                                equality("tp", "own:own", "0") | equality("tp", "own:own", DEVICE) | alone),)
    assert owned.mask == {("tp", "own:own"), ("pp", "own:own")}
    assert owned.sides == equality("dp", "at:seq", DEVICE) | equality("tp", "own:own", DEVICE) | {size_one("tp")}
    assert paths.owned(Value((Term(ONE),)), {"dp": "seq"}, "stage:layer").mask == {("dp", "own:own")}


@pytest.mark.parametrize("mixed", [None, frozenset({("cp", "0")})])
def test_beside_owners_is_what_was_there_before(mixed: frozenset[tuple[str, str]] | None) -> None:
    """As before where owners alone held it; where others did, too, they hold what they like."""
    held = Value((Term(ONE),), frozenset({("dp", "at:seq")}), mixed=mixed)
    assert paths.owned(held, {"dp": "seq"}, "stage:layer").mixed == mixed
    assert paths.owned(held, {"dp": "seq", "pp": "layer"}, "stage:layer").mixed == mixed
    assert paths.owned(held, {"tp": "ffn"}, "stage:layer").mixed == frozenset()
    assert paths.owned(held, {"dp": "seq", "tp": "ffn"}, "stage:layer").mixed == frozenset()


def test_a_symbol_is_replaced_in_its_powers() -> None:
    n = Monomial.of("n")
    value = Value((Term(n ** -2 * Monomial.of("dp") * THREE), Term(n, FrozenMap({"dp": UNIT}), size_one_of("tp"))))
    new = paths.substituted(value, "n", Monomial.of("tp") * TWO)
    assert new.terms == merged((Term((Monomial.of("tp") * TWO) ** -2 * Monomial.of("dp") * THREE),
                                Term(Monomial.of("tp") * TWO, FrozenMap({"dp": UNIT}), size_one_of("tp"))))


def size_one_of(axis: str) -> frozenset[Equality]:
    return frozenset({size_one(axis)})


def test_contracted_indices_have_short_names_and_stay_distinct() -> None:
    value = Value((Term(ONE, FrozenMap({"dp": "a.b/seq", "tp": "a.c/seq"})),
                   Term(ONE / Monomial.of("dp"), FrozenMap({"dp": "a.b/seq", "tp": "z/ffn"})),
                   Term(ONE / Monomial.of("tp"), FrozenMap({"dp": "q/seq", "tp": "own:own"}))))
    names = [p for t in paths.plainly(value).terms for _, p in sorted(t.at.items())]
    assert sorted(set(names)) == ["own:own", "path/ffn", "path/seq", "path2/seq", "path3/seq"]
    before = [p for t in value.terms for _, p in sorted(t.at.items())]
    assert len(set(before)) == len(set(names))
