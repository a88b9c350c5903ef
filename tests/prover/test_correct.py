"""The definition of correctness against plain numbers: which updates, norms, flags and reads are right on a rank."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import z3
from test_calculus import some_values
from test_mutation import step_of
from worlds import GARBAGE, WORLDS, World, holds

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover import correct
from placealg.prover.calculus.contribution import ABSENT, OPAQUE, STALE, Slot, Tag, Term, Value, count_name, equality
from placealg.prover.calculus.machine import Read, Relied, Updated
from placealg.prover.calculus.positions import DEVICE, UNIT
from placealg.prover.calculus.versions import CURRENT, NEXT, Choice, Guarded, Version, where
from placealg.prover.calculus.versions import GARBAGE as SPOILT
from placealg.prover.evidence import symbols
from placealg.step.program import Group, Reference

REFERENCE: Reference = step_of("dp", "abstract").reference
MEANS = replace(REFERENCE, weighting="microbatch_mean", clip=True, skip=False)
TOKENS = replace(MEANS, weighting="token_mean")
SKIPPING = replace(MEANS, skip=True)
UNCLIPPED = replace(MEANS, clip=False)
GROUP: Group = replace(REFERENCE.groups[0], locality="elementwise", whole_reads=())
MATRIX = replace(GROUP, locality="matrix", whole_reads=("grad_sum", "master"))
MASTER = replace(MATRIX, whole_reads=("master",))

WEIGHT = correct.reference_weight(MEANS)
OWNED = frozenset({("dp", "own:own")})
AT_OWNER = Term(ONE, FrozenMap({"dp": "own:own"}))
ON_OWNER = equality("dp", DEVICE, "own:own")
RIGHT = Value((Term(WEIGHT),))
DOUBLE = Value((Term(WEIGHT * Monomial(Fraction(2))),))
OWN_ONLY = Value((Term(WEIGHT, FrozenMap({"dp": "own:own"})),))
WHOLE = Slot((Term(ONE),), RIGHT, frozenset())
NORMED = replace(RIGHT, tags=(Tag("clip", WHOLE),))
UNHELD_THERE = replace(RIGHT, mask=OWNED)


def no_weighting(weight: Monomial) -> Monomial:
    return weight


def updated(gradient: Value = NORMED, skip: Slot | None = None, master: Version = CURRENT) -> Updated:
    others = (("master", master), ("moments", master))
    return Updated("update.layer.weight.update", "right0:0", gradient, WHOLE, skip, others)


def tagged(slot: Slot | None, **given: Any) -> Value:
    return replace(RIGHT, tags=(Tag("clip", slot, **given),))


def test_the_weight_of_a_unit() -> None:
    tokens = ONE / Monomial.of(count_name({}))
    assert correct.reference_weight(TOKENS) == tokens
    assert ONE / (Monomial.of("m") * Monomial.of(count_name({"microbatch": UNIT}))) == WEIGHT


def test_with_equal_counts_a_cell_is_its_share_of_all_tokens() -> None:
    equal = correct.equal_counts(MEANS)
    cell = Monomial.of(count_name({"dp": DEVICE, "microbatch": UNIT}))
    for all_tokens in (cell * Monomial.of("m", "dp"), Monomial.of(count_name({"dp": UNIT})) * Monomial.of("dp")):
        assert equal(all_tokens) == equal(Monomial.of(count_name({})))
    for hypotheses, alike in ((("equal_counts",), True), ((), False)):
        own = correct.own_counts(replace(MEANS, hypotheses=hypotheses))
        assert (own(cell) == equal(cell)) == alike and (own(cell) == cell) != alike


def test_defined_and_weighted_as_the_numbers_say() -> None:
    want = ONE / Monomial.of("dp")
    for value in [*some_values(6, 9), ABSENT, replace(RIGHT, garbage=True), Value((Term(want),)), Value()]:
        defined, right = correct.defined(value), correct.weighted(value, want, no_weighting)
        halved = correct.weighted(value, want, lambda w: w / Monomial.of("tp"))
        for world in WORLDS[::2]:
            for rank in world.ranks():
                assert world.true(defined, rank) == (world.on(value, rank) not in (None, GARBAGE))
                assert world.true(right, rank) == (world.total(value.terms, rank) == Fraction(1, world.sizes["dp"]))
                assert world.true(halved, rank) == world.true(right, rank)
    assert holds(correct.weighted(Value((Term(Monomial.of("dp")),)), Monomial.of("tp"), lambda _: ONE))


@pytest.mark.parametrize(("update", "reference", "group", "right"), [
    (updated(), MEANS, GROUP, True),
    (updated(replace(NORMED, garbage=True)), MEANS, GROUP, False),
    (updated(ABSENT), MEANS, GROUP, False),
    (updated(UNHELD_THERE), MEANS, GROUP, False),
    (updated(DOUBLE), MEANS, GROUP, False),
    (updated(), TOKENS, GROUP, False),
    (updated(Value((Term(correct.reference_weight(TOKENS)),))), TOKENS, GROUP, True),
    # what the norm counted
    (updated(tagged(replace(WHOLE, counted=DOUBLE))), MEANS, GROUP, False),
    (updated(tagged(replace(WHOLE, counted=DOUBLE))), UNCLIPPED, GROUP, True),
    (updated(tagged(replace(WHOLE, counted=ABSENT))), MEANS, GROUP, False),
    (updated(tagged(replace(WHOLE, counted=replace(RIGHT, garbage=True)))), MEANS, GROUP, False),
    (updated(tagged(replace(WHOLE, counted=replace(RIGHT, sides=ON_OWNER)))), MEANS, GROUP, False),
    (updated(tagged(replace(WHOLE, counted=replace(OWN_ONLY, sides=ON_OWNER), where=OWNED))), MEANS, GROUP, True),
    (updated(tagged(replace(WHOLE, counted=OWN_ONLY, where=OWNED))), MEANS, GROUP, True),
    (updated(tagged(replace(WHOLE, counted=OWN_ONLY))), MEANS, GROUP, False),
    (updated(tagged(None)), MEANS, GROUP, True),
    # what the flag looked at
    (updated(skip=replace(WHOLE, counted=DOUBLE)), SKIPPING, GROUP, False),
    (updated(skip=WHOLE), SKIPPING, GROUP, True),
    (updated(skip=STALE), SKIPPING, GROUP, True),
    # the other elements of a matrix
    (updated(OWN_ONLY), MEANS, GROUP, False),
    (updated(replace(RIGHT, terms=(Term(WEIGHT, given=equality("dp", "own:own", "0")),
                                   Term(WEIGHT, given=equality("dp", "own:own", "1"))))), MEANS, GROUP, False),
    (updated(), MEANS, MATRIX, True),
])
def test_a_right_gradient(update: Updated, reference: Reference, group: Group, right: bool) -> None:
    assert holds(correct.gradient_integrity(update, reference, group, no_weighting)) == right


def test_a_matrix_needs_the_right_gradient_of_its_other_elements() -> None:
    """Here the element at hand is right on its owner, another is not."""
    value = Value((Term(WEIGHT, FrozenMap({"dp": "own:own"})),))
    for group, whole in ((GROUP, True), (MATRIX, False), (MASTER, True),
                         (replace(MATRIX, locality="elementwise"), True)):
        formula = correct.gradient_integrity(updated(value), UNCLIPPED, group, no_weighting)
        assert all(world.true(formula, rank) for world in WORLDS for rank in world.ranks()
                   if rank["dp"] == world.position("dp", "own:own", rank)) == whole


@pytest.mark.parametrize(("update", "reference", "group", "right"), [
    (updated(), MEANS, GROUP, True),
    (updated(RIGHT), MEANS, GROUP, False),
    (updated(RIGHT), UNCLIPPED, GROUP, True),
    (updated(), UNCLIPPED, GROUP, False),
    (updated(replace(RIGHT, tags=(*NORMED.tags, *NORMED.tags))), MEANS, GROUP, False),
    (updated(replace(RIGHT, tags=(Tag("other", WHOLE),))), MEANS, GROUP, False),
    (updated(tagged(None)), MEANS, GROUP, False),
    (updated(tagged(WHOLE, mixed=True)), MEANS, GROUP, False),
    (updated(tagged(replace(WHOLE, defined=False))), MEANS, GROUP, False),
    (updated(tagged(replace(WHOLE, counted=NORMED))), MEANS, GROUP, False),
    (updated(tagged(replace(WHOLE, terms=(AT_OWNER,)))), MEANS, GROUP, False),
    (updated(tagged(replace(WHOLE, terms=(Term(Monomial.of("dp")),)))), MEANS, GROUP, False),
    (updated(tagged(replace(WHOLE, terms=(Term(ONE, FrozenMap({"dp": "0"})),)), rank=FrozenMap({"dp": "0"}))),
     MEANS, GROUP, True),
    (updated(tagged(replace(WHOLE, terms=(Term(ONE, FrozenMap({"dp": "0"})),)))), MEANS, GROUP, False),
    # the flag
    (updated(skip=WHOLE), MEANS, GROUP, False),
    (updated(), SKIPPING, GROUP, False),
    (updated(skip=WHOLE), SKIPPING, GROUP, True),
    # the step that is taken
    (replace(updated(), divisor=ONE), MEANS, GROUP, True),
    (replace(updated(), divisor=None), MEANS, GROUP, False),
    (replace(updated(), divisor=Monomial.of("dp")), MEANS, GROUP, False),
    # a matrix
    (updated(), MEANS, MATRIX, True),
    (updated(RIGHT), MEANS, MATRIX, False),
    (updated(replace(NORMED, garbage=True)), MEANS, MATRIX, False),
    (updated(replace(NORMED, garbage=True)), MEANS, MASTER, True),
    (updated(replace(NORMED, garbage=True)), MEANS, GROUP, True),
    (updated(replace(NORMED, garbage=True)), MEANS, replace(MATRIX, locality="elementwise"), True),
    (updated(master=SPOILT), MEANS, GROUP, True),
    (updated(master=SPOILT), MEANS, MATRIX, False),
    (updated(master=SPOILT), MEANS, replace(MATRIX, whole_reads=("grad_sum",)), True),
    (updated(master=where(OWNED, CURRENT, SPOILT)), MEANS, MASTER, False),
])
def test_a_right_update(update: Updated, reference: Reference, group: Group, right: bool) -> None:
    assert holds(correct.update_integrity(update, reference, group)) == right


def test_a_matrix_needs_its_other_elements_where_it_is_updated() -> None:
    """The element at hand is there, on its owner; another, of another owner, is not."""
    for update in (updated(replace(NORMED, mask=OWNED)), updated(master=where(OWNED, CURRENT, SPOILT))):
        formula = correct.update_integrity(update, MEANS, MATRIX)
        for world in WORLDS:
            for rank in world.ranks():
                assert world.true(formula, rank) == (rank["dp"] == world.position("dp", "other:own", rank))


@pytest.mark.parametrize(("flag", "skips", "right"), [
    (None, False, True), (None, True, False), (WHOLE, True, True), (WHOLE, False, False), (STALE, True, False),
    (STALE, False, False), (replace(WHOLE, defined=False), True, False), (replace(WHOLE, counted=NORMED), True, False),
    (replace(WHOLE, terms=()), True, False), (replace(WHOLE, terms=()), False, True),
    (replace(WHOLE, terms=(AT_OWNER,)), True, False),
    (replace(WHOLE, terms=(Term(Monomial.of("dp")),)), True, True),
    (replace(WHOLE, terms=(Term(Monomial.of(f"{OPAQUE}1234")),)), True, False),
    (replace(WHOLE, terms=(Term(Monomial.of(f"{OPAQUE}1234")),)), False, False),
    (replace(WHOLE, terms=(Term(Monomial.of(f"{OPAQUE}1234")), Term(ONE))), True, True),
    (replace(WHOLE, terms=(Term(ONE, FrozenMap({"dp": "0"})), AT_OWNER)), True, False),
])
def test_a_right_flag(flag: Slot | None, skips: bool, right: bool) -> None:
    reference = SKIPPING if skips else MEANS
    assert holds(correct.skip_integrity(flag, reference)) == right
    assert holds(correct.part_integrity(Relied("e", "skip", flag, frozenset()), reference)) == right


def test_a_flag_is_about_every_element_not_one() -> None:
    """A rank that looked at what it owns did not look at all elements, though it owns the one at hand."""
    formula = correct.skip_integrity(replace(WHOLE, terms=(AT_OWNER,)), SKIPPING)
    for world in WORLDS:
        for rank in world.ranks():
            assert world.true(formula, rank) == (rank["dp"] == world.position("dp", "any:own", rank))


@pytest.mark.parametrize(("slot", "right"), [
    (WHOLE, True), (None, False), (replace(WHOLE, terms=(AT_OWNER,)), False), (replace(WHOLE, defined=False), False),
    (replace(WHOLE, apart="dp"), False),
])
def test_a_part_of_the_norm_is_relied_on_where_the_event_runs(slot: Slot | None, right: bool) -> None:
    assert holds(correct.part_integrity(Relied("e", "norm", slot, frozenset()), MEANS)) == right
    some = correct.part_integrity(Relied("e", "norm", slot, frozenset({("dp", "0")})), MEANS)
    none_there = World(FrozenMap({"dp": 2, "tp": 1}))
    assert none_there.true(some, {"dp": 1, "tp": 0}) and holds(some) == right


@pytest.mark.parametrize(("slot", "right"), [
    (None, True), (STALE, True), (WHOLE, True), (replace(WHOLE, counted=DOUBLE), False),
    (replace(WHOLE, counted=OWN_ONLY), False), (replace(WHOLE, counted=OWN_ONLY, where=OWNED), True),
])
def test_what_is_counted_is_the_gradient(slot: Slot | None, right: bool) -> None:
    assert holds(correct.counted_integrity(slot, MEANS, no_weighting)) == right
    assert not holds(correct.counted_integrity(replace(WHOLE, counted=RIGHT), TOKENS, no_weighting))


def test_what_is_counted_is_about_every_element_on_every_rank() -> None:
    """On the device itself, the owner of the element at hand, all would be well."""
    formula = correct.counted_integrity(replace(WHOLE, counted=OWN_ONLY), MEANS, no_weighting)
    names = set(symbols.names(formula))
    assert {"counter@dp", "any:own@dp"} <= names and not {"c@dp", "own:own@dp"} & names


def right_where(answers: dict[str, bool]) -> correct.Right:
    return correct.on_ranks(lambda name: z3.BoolVal(answers[name]))


def test_wrong_versions() -> None:
    both = Guarded(frozenset({("a", FrozenMap()), ("b", FrozenMap())}), NEXT)
    assert not holds(correct.wrong_version(CURRENT, CURRENT)) and holds(correct.wrong_version(SPOILT, CURRENT))
    assert not holds(correct.wrong_version(both, NEXT)) and holds(correct.wrong_version(both, CURRENT))
    for a, b in ((True, True), (True, False), (False, True)):
        assert holds(correct.wrong_version(both, NEXT, right_where({"a": a, "b": b}))) == (not (a and b))
    placed = where(OWNED, both, SPOILT)
    assert isinstance(placed, Choice)
    for good in (True, False):
        formula = correct.wrong_version(placed, NEXT, right_where({"a": good, "b": good}))
        read = correct.wrong_read(Read("e", "view", "", placed, NEXT), right_where({"a": good, "b": good}))
        for world in WORLDS:
            for rank in world.ranks():
                owner = rank["dp"] == world.position("dp", "own:own", rank)
                assert world.true(formula, rank) == world.true(read, rank) == (not (owner and good))
    assert not holds(correct.wrong_version(where(OWNED, SPOILT, CURRENT), CURRENT))


def test_an_update_is_judged_on_the_rank_that_did_it() -> None:
    there = Guarded(frozenset({("a", FrozenMap({"dp": "0"}))}), NEXT)
    here = z3.Int("c@dp") == 0
    assert not holds(correct.wrong_version(there, NEXT, correct.on_ranks(lambda _: here)))
    assert holds(correct.wrong_version(there, NEXT, correct.on_ranks(lambda _: z3.Not(here))))


def test_one_update_may_be_asked_about_on_several_ranks() -> None:
    twice = Guarded(frozenset({("a", FrozenMap({"dp": "0"})), ("a", FrozenMap())}), NEXT)
    first = z3.Int("c@dp") == 0
    formula = correct.wrong_version(twice, NEXT, correct.on_ranks(lambda _: first))
    world = World(FrozenMap({"dp": 2}))
    assert [world.true(formula, {"dp": k}) for k in (0, 1)] == [False, True]


def test_a_read_that_is_right_if_every_update_was() -> None:
    guarded = Guarded(frozenset({("a", FrozenMap())}), CURRENT)
    for version, right in ((CURRENT, True), (guarded, True), (SPOILT, False), (where(OWNED, guarded, CURRENT), True),
                           (where(OWNED, guarded, SPOILT), False)):
        assert correct.always_right(Read("e", "view", "", version, CURRENT)) == right


def test_another_element_and_any_element() -> None:
    other = where(frozenset({("dp", "other:own"), ("tp", "0")}), CURRENT, SPOILT)
    assert correct.other_version(where(frozenset({("dp", "own:own"), ("tp", "0")}), CURRENT, SPOILT)) == other
    assert correct.another_element(OWN_ONLY) == Value((Term(WEIGHT, FrozenMap({"dp": "other:own"})),))


def test_a_formula_on_another_rank_speaks_of_that_rank_and_of_owners_as_it_knows_them() -> None:
    """The owner along tp is another for each rank along dp, and another still for each rank along both."""
    formula = symbols.at_pairs([("tp", "own:mine~dp"), ("dp", "own:theirs~tp")])
    for there in ({"dp": "0"}, {"dp": UNIT}, {"tp": "own:own"}, {"dp": "own:own", "tp": "0"}, {}):
        moved = correct.on_rank(formula, there)
        for world in WORLDS:
            for rank in world.ranks():
                seen = {**rank, **{a: world.position(a, p, rank) for a, p in there.items()}}
                assert world.true(moved, rank) == world.true(formula, seen), (there, world.sizes, rank)


def test_the_constants_of_a_formula() -> None:
    a, b = z3.Ints("a b")
    f = z3.Function("f", z3.IntSort(), z3.IntSort())
    assert symbols.names(z3.And(b == 1, f(a) == b)) == ["a", "b"]
