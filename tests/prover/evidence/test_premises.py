"""What the solver is asked, and under which premises: its terms against plain numbers, lemmas, models at two sizes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import z3
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_calculus import TWO, some_equalities, some_values
from test_mutation import step_of
from test_stages import TIED
from worlds import WORLDS, World, holds

import placealg as pa
from placealg.arith import ONE, Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.prover.calculus import microbatches
from placealg.prover.calculus.contribution import Term, count_name, equality, exists, size_one
from placealg.prover.calculus.microbatches import CASES, Case, Iteration
from placealg.prover.calculus.positions import DEVICE, UNIT
from placealg.prover.evidence import lemmas, premises, symbols, vacuity
from placealg.prover.evidence.lemmas import LEMMAS, Lemma
from placealg.prover.evidence.solver import SAT, UNKNOWN, UNSAT, Reply
from placealg.prover.evidence.symbols import names
from placealg.prover.verdict import OBLIGATIONS, PARAMETRIC, PROVED, REFUTED, UNDECIDED
from placealg.step.event import Clause
from placealg.step.program import Step
from placealg.step.where import LAST_RANK, parse_where

STEP, SHARDED = step_of("dp", "abstract"), step_of("zero3", "abstract")
RING = step_of("ffn, ring", "mlp")
ALL = Monomial.of(count_name({}))
HERE = count_name({"dp": DEVICE, "microbatch": UNIT})
MINE, SLICE, WHOLE = count_name({"dp": UNIT, "microbatch": UNIT}), count_name({"microbatch": UNIT}), count_name({})


def possible(*assertions: Any) -> bool:
    solver = z3.Solver()
    solver.add(*assertions)
    answer = solver.check()
    assert answer != z3.unknown
    return bool(answer == z3.sat)


def implied(known: Iterable[Any], *formulas: Any) -> bool:
    return possible(*known) and not possible(*known, z3.Not(z3.And(formulas)))


def test_sizes_and_coordinates() -> None:
    assert [str(symbols.size(a)) for a in ("dp", "microbatch")] == ["dp", "m"]
    assert z3.eq(symbols.coordinate("dp", "3"), z3.IntVal(3))
    assert str(symbols.coordinate("dp", "own:own")) == "own:own@dp" and str(symbols.device("tp")) == "c@tp"
    shared, each = symbols.coordinate("dp", "own:own"), symbols.coordinate("tp", "own:here~dp")
    assert symbols.varying(shared == 0) == () and symbols.varying(shared == each) == (("tp", "own:here~dp"),)
    assert z3.eq(symbols.symbol("x"), z3.Int("x"))


def test_conditions_as_formulas() -> None:
    rows = [size_one("dp"), *exists("dp", "1"), *exists("tp", "2"), ("dp", DEVICE, "own:own"), ("tp", "0", UNIT),
            ("tp", "at:batch!mine~dp", DEVICE)]
    for world in WORLDS:
        for rank in world.ranks():
            for row in rows:
                assert world.true(symbols.equal(row), rank) == world.holds(row, rank)
            for some in (rows, rows[:2], rows[3:], []):
                assert world.true(symbols.conjunction(some), rank) == all(world.holds(e, rank) for e in some)
            for pairs in ((), (("dp", "own:own"),), (("tp", "1"), ("dp", UNIT)), (("dp", "own:own"), ("dp", "0"))):
                assert world.true(symbols.at_pairs(pairs), rank) == world.stands(pairs, rank)


def test_terms_as_formulas() -> None:
    for value in some_values(8, 3):
        for world in WORLDS:
            for rank in world.ranks():
                for term in value.terms:
                    there = world.stands(term.at.items(), rank) and all(world.holds(e, rank) for e in term.given)
                    assert world.true(symbols.indicator(term), rank) == there


@pytest.mark.parametrize("monomial", [
    ONE, TWO, Monomial.of("dp"), Monomial.of("dp") ** 2 * TWO, Monomial.of("dp", "tp", HERE), Monomial(Fraction(-3)),
    Monomial(Fraction(-1)) * Monomial.of("tp"), Monomial(Fraction(0))])
def test_a_monomial_as_a_term(monomial: Monomial) -> None:
    for world in WORLDS:
        for rank in world.ranks():
            assert world.true(symbols.product(monomial) == int(world.number(monomial, rank)), rank)


def test_nothing_is_multiplied_that_need_not_be() -> None:
    dp = Monomial.of("dp")
    assert z3.eq(symbols.product(dp), z3.Product([z3.Int("dp")])) and z3.eq(symbols.product(ONE), z3.IntVal(1))
    assert symbols._denominator([]) == symbols._denominator([ONE, dp, TWO]) == ONE
    third = ONE / Monomial(Fraction(3))
    assert symbols._denominator([third / dp ** 2, dp / TWO, ONE / dp, ONE]) == (
        Monomial(Fraction(6)) * dp ** 2)


SUMS: tuple[tuple[tuple[Term, ...], Monomial], ...] = (
    ((), Monomial(Fraction(0))), ((), ONE), ((Term(ONE),), ONE), ((Term(TWO),), ONE), ((Term(ONE),), TWO),
    ((Term(ONE / TWO), Term(ONE / TWO)), ONE), ((Term(ONE / Monomial.of("dp")),), ONE),
    ((Term(ONE / Monomial.of("dp") / TWO), Term(ONE / Monomial.of("tp") / TWO)), ONE / Monomial.of("dp")),
    ((Term(ONE / Monomial.of("dp") ** 2), Term(ONE / Monomial.of("tp") ** 2)), TWO / Monomial.of("dp", "tp")),
    ((Term(Monomial.of("dp") / Monomial.of("tp")),), Monomial.of("dp") / Monomial.of("tp")),
    ((Term(ONE, FrozenMap({"dp": "own:own"})), Term(ONE, FrozenMap({"dp": "0"}))), ONE),
    ((Term(ONE, FrozenMap(), equality("dp", "own:own", "0")),), ONE),
    ((Term(ONE / Monomial.of(HERE)),), ONE / ALL), ((Term(Monomial.of(HERE) / ALL),), Monomial.of(HERE) / ALL),
    ((Term(ONE / Monomial(Fraction(3))), Term(TWO / Monomial(Fraction(3)))), ONE),
    ((Term(ONE / Monomial(Fraction(3))),), ONE / TWO / Monomial(Fraction(3))),
    ((Term(ONE / TWO / Monomial.of("dp")),), ONE / TWO / Monomial.of("dp")),
    ((Term(ONE / TWO), Term(ONE / Monomial(Fraction(3)))), Monomial(Fraction(5, 6))),
)


@pytest.mark.parametrize(("terms", "want"), SUMS)
def test_a_sum_of_terms_is_what_is_wanted(terms: tuple[Term, ...], want: Monomial) -> None:
    formula = symbols.equals(iter(terms), want)
    for world in WORLDS:
        for rank in world.ranks():
            assert world.true(formula, rank) == (world.total(terms, rank) == world.number(want, rank))


def test_nothing_is_divided_by_no_tokens() -> None:
    """Only where the term counts, and only what it is divided by."""
    here, whole = z3.Int(HERE), z3.Int(WHOLE)
    by = Term(Monomial.of(WHOLE) / Monomial.of(HERE), FrozenMap({"dp": "0"}))
    formula = symbols.equals([by], Monomial(Fraction(0)))
    assert not possible(formula, here == 0, z3.Int("c@dp") == 0)
    assert possible(formula, here == 0, z3.Int("c@dp") == 1)
    assert possible(formula, here == 1, whole == 0, z3.Int("c@dp") == 0)
    assert not possible(symbols.equals([Term(ONE / Monomial.of(HERE))], ONE / Monomial.of(HERE)), here == 0)
    assert possible(symbols.equals([Term(ONE / Monomial.of("n"))], ONE / Monomial.of("n")), z3.Int("n") == 0)


def test_with_equal_counts_every_count_is_its_number_of_cells() -> None:
    axes = ("dp", "microbatch")
    cell = Monomial.of(symbols.CELL)

    def cleared(name: str, among: tuple[str, ...] = axes) -> Monomial:
        return symbols.clear_counts(Monomial.of(name), among)
    assert cleared(WHOLE) == cell * Monomial.of("dp", "m")
    assert cleared(SLICE) == cell * Monomial.of("dp") and cleared(MINE) == cleared(HERE) == cell
    assert cleared(count_name({"dp": "0"})) == cell * Monomial.of("m")
    assert cleared(count_name({"dp": "0", "tp": DEVICE})) == cell * Monomial.of("m") / Monomial.of("tp")
    assert cleared(WHOLE, ("dp", "tp")) == cell * Monomial.of("dp", "tp")
    assert cleared("dp") == Monomial.of("dp")
    both = symbols.clear_counts(TWO * ALL ** -2 * Monomial.of(HERE, "tp"), axes)
    assert both == TWO * Monomial.of("tp") / cell / Monomial.of("dp", "m") ** 2


def test_positions_lie_inside_their_axis() -> None:
    known = symbols.ranges(iter(("dp", "microbatch")), iter((("dp", "own:own"), ("tp", UNIT), ("dp", "own:own"))))
    own, unit = z3.Int("own:own@dp"), z3.Int("unit@tp")
    assert implied(known, z3.Int("dp") >= 1, z3.Int("m") >= 1, own >= 0, own < z3.Int("dp"), unit >= 0,
                   unit < z3.Int("tp"))
    for values in ((1, 0), (5, 0), (5, 4)):
        assert possible(*known, z3.Int("dp") == values[0], own == values[1], z3.Int("m") == 1, z3.Int("tp") == 1)
    assert len(known) == 2 + 2 * 2


def test_counts_that_can_be_realised() -> None:
    """Each premise holds of any distribution of tokens, and of two cells the one inside the other holds no more."""
    names = [HERE, MINE, SLICE, WHOLE, count_name({"dp": "own:own", "microbatch": "first"}), count_name({"dp": UNIT})]
    known = symbols.count_premises(iter([*names, HERE]))
    assert all(holds(premise) for premise in known)
    here, mine, slice_, whole = (z3.Int(n) for n in (HERE, MINE, SLICE, WHOLE))
    sizes = [z3.Int("dp") >= 1, z3.Int("m") >= 1]
    same = z3.Int("c@dp") == z3.Int("unit@dp")
    assert implied([*known, *sizes], mine >= 1, slice_ >= 1, whole >= 1, here >= 0, mine <= slice_, slice_ <= whole,
                   here <= slice_, mine <= whole)
    assert implied([*known, *sizes, same], here == mine)
    assert implied([*known, z3.Int("dp") == 1, z3.Int("m") == 2], mine == slice_)
    assert implied([*known, z3.Int("dp") == 1, z3.Int("m") == 1], mine == whole, slice_ == whole)
    assert possible(*known, here == 0, z3.Int("dp") == 2) and possible(*known, mine == 1, here == 2, whole == 9)
    assert possible(*known, z3.Int("dp") == 2, mine < slice_, z3.Int("m") == 1, slice_ == whole)
    assert possible(*known, z3.Int("dp") == 1, z3.Int("m") == 2, slice_ < whole)
    assert not possible(*known, *sizes, same, here == 0)


def test_premises_speak_of_what_is_asked() -> None:
    formula = z3.And(z3.Int(HERE) > z3.Int("own:own@tp"), z3.Int("x") > 0)
    known = premises.premises(STEP, [formula, z3.Int(SLICE) > 0])
    found = {name for k in known for name in names(k)}
    assert found == {"dp", "m", "tp", "x", "own:own@tp", "c@dp", "unit@dp", HERE, SLICE} - {"unit@dp"}
    assert implied(known, z3.Int("x") >= 1, z3.Int("dp") >= 1, z3.Int("m") >= 1, z3.Int("own:own@tp") >= 0,
                   z3.Int("own:own@tp") < z3.Int("tp"), z3.Int("c@dp") >= 0, z3.Int("c@dp") < z3.Int("dp"),
                   z3.Int(HERE) >= 0, z3.Int(HERE) <= z3.Int(SLICE), z3.Int(SLICE) >= 1)
    assert possible(*known, z3.Int(HERE) == 0, z3.Int("x") == 1, z3.Int("c@dp") == 0, z3.Int("dp") == 1 + 1)
    unrolled = replace(STEP, reference=replace(STEP.reference, unrolled=FrozenMap({"dp": 3})))
    assert implied(premises.premises(unrolled, []), z3.Int("dp") == 3)
    assert not implied(premises.premises(STEP, []), z3.Int("dp") == 3)
    mark = z3.Int("own:a@dp")
    assert not possible(*premises.premises(STEP, [mark == z3.Int("dp")]), mark == z3.Int("dp"))


def test_the_microbatch_of_a_count_is_no_position() -> None:
    known = premises.premises(STEP, [z3.Int(SLICE) > 0])
    assert not any("@microbatch" in name for k in known for name in names(k) if not name.startswith("N["))


def test_an_answer_is_one_under_the_premises() -> None:
    def asked(*formulas: Any) -> str:
        return premises.ask(STEP, iter(formulas)).status
    own = z3.Int("own:own@dp")
    assert asked(own == 0) == SAT and asked(own == z3.Int("dp")) == asked(own == 0, own == 1) == UNSAT


def test_along_a_pipeline_a_parameter_is_on_one_stage() -> None:
    first, last = z3.Int("stage:first@pp_ends"), z3.Int("stage:last@pp_ends")
    own, other = z3.Int("own:own@pp"), z3.Int("other:own@pp")
    assert implied(premises.premises(TIED, [other == 0]), other == own)
    elsewhere = premises.premises(TIED, [z3.Int("other:own@dp") == 0])
    assert not any("own:own@dp" in names(k) for k in elsewhere)
    assert possible(*premises.premises(STEP, [other == 0]), other == 0, own == 1)
    for asked in (z3.Int("c@pp_ends") == 0, z3.Int("pp_ends") == 2):
        known = premises.premises(TIED, [asked])
        for ranks, ends in ((1, 1), (2, 2), (5, 2)):
            assert implied([*known, z3.Int("pp") == ranks], z3.Int("pp_ends") == ends, first == 0, last == ends - 1)
        assert implied(known, z3.Int("pp") >= 1)
    assert not any("pp_ends" in names(k) for k in premises.premises(TIED, [own == 0]))


def wheres(*clauses: tuple[Clause, ...]) -> Step:
    """A program whose first stores, of values without elements or with, run where it is said."""
    step = step_of("dp", "abstract")
    chosen = iter(clauses)
    return replace(step, events=tuple(replace(e, where=next(chosen, ())) if e.verb == "store" else replace(e, where=())
                                      for e in step.events))


STORES = [e.path for e in STEP.events if e.verb == "store"]


def test_what_must_occur() -> None:
    step = wheres((Clause("dp", 1),), (Clause("dp"),), (Clause("dp", 1),))
    told = vacuity.questions(step)[0].occurrences
    assert list(told) == ["the premises have no model", f"no rank satisfies the `where` of {STORES[2]}",
                          f"no rank satisfies the `where` of {STORES[1]}"]
    counts, one, owner = told.values()
    assert set(names(counts)) == {count_name(c) for c in (
        {}, {"dp": "unit", "microbatch": "unit"}, {"dp": "c", "microbatch": "unit"})}
    assert not possible(counts, *(z3.Int(name) < 0 for name in names(counts)))
    assert possible(counts, *(z3.Int(name) == 0 for name in names(counts)))
    for world in WORLDS:
        for rank in world.ranks():
            assert world.true(one, rank) == (rank["dp"] == 1)
            assert set(names(owner)) == {"c@dp", "own:1.own@dp"}, "the owner of an element of its own"


def test_what_occurs_does_so_at_given_sizes_on_ranks_of_its_own() -> None:
    step = wheres((Clause("dp", 1),), (Clause("dp", 0),))
    for question, number in zip(vacuity.questions(step), (2, 3), strict=True):
        pinned, together = question.pinned, question.together
        assert implied(pinned, z3.Int("dp") == number, z3.Int("m") == number) and len(pinned) == 2
        assert {name for name in names(together) if "some" in name and not name.startswith("N[")} == {
            "some1@dp", "some2@dp"}
        assert possible(together) and not possible(together, z3.Int("some1@dp") == z3.Int("some2@dp"))
    unrolled = replace(step, reference=replace(step.reference, unrolled=FrozenMap({"dp": 4})))
    pinned = vacuity.questions(unrolled)[0].pinned
    assert implied(pinned, z3.Int("dp") == 4, z3.Int("m") == 2)


def test_the_sizes_have_every_named_rank_and_a_written_out_axis_those_that_it_has() -> None:
    step = wheres((Clause("dp", 5),), (Clause("dp"),))
    assert vacuity.vacuity_sizes(wheres((Clause("dp", 1),))) == (2, 3) and vacuity.vacuity_sizes(step) == (6, 7)
    for size, many in ((1, 2), (5, 2), (6, 3)):
        unrolled = replace(step, reference=replace(step.reference, unrolled=FrozenMap({"dp": size})))
        assert len(vacuity.questions(unrolled)[0].occurrences) == many and vacuity.vacuity(unrolled).verdict == PROVED


@pytest.mark.parametrize(("clauses", "reason", "questions"), [
    ((), "", 2), (((Clause("dp", 1),),), "", 4), (((Clause("dp", 1),), (Clause("dp"),)), "", 6),
    (((Clause("dp", 0),), (Clause("dp", 2),)), "", 6), (((Clause("dp", 30),),), "", 4),
    (((Clause("dp", 0),), (Clause("dp", 1), Clause("dp", 2))),
     f"no rank satisfies the `where` of {STORES[1]} at sizes 4", 5),
    (((Clause("dp", 3), Clause("dp", 1)),), f"no rank satisfies the `where` of {STORES[0]} at sizes 5", 3),
    (((Clause("dp"), Clause("dp", 0)), (Clause("dp"), Clause("dp", 1))), "", 6),
])
def test_nothing_is_proved_of_a_program_that_cannot_run(clauses: tuple[tuple[Clause, ...], ...], reason: str,
                                                        questions: int) -> None:
    found = vacuity.vacuity(wheres(*clauses))
    assert (found.id, found.group, found.statement) == ("vacuity", "", OBLIGATIONS["vacuity"])
    assert (found.verdict, found.cls) == ((UNDECIDED, None) if reason else (PROVED, PARAMETRIC))
    assert (found.reason, found.instances) == (reason, questions)
    assert 0 < found.seconds < 60


AXES = ("dp_replicate", "dp_shard")
CLAUSES = st.builds(Clause, st.sampled_from(["dp_shard", "dp_shard", "dp_replicate"]),
                    st.sampled_from([None, 0, 1, 2, 4, LAST_RANK]), st.booleans())


def meets_somewhere(clauses: list[Clause]) -> bool:
    """Whether a rank of some mesh meets all clauses, for some owner of the element: tried one by one."""
    def true(clause: Clause, at: dict[str, int], own: dict[str, int], sizes: dict[str, int]) -> bool:
        wanted = {None: own[clause.axis], LAST_RANK: sizes[clause.axis] - 1}.get(clause.rank, clause.rank)
        return (at[clause.axis] == wanted) != clause.but

    return all(any(all(true(c, {axis: rank}, {axis: own}, {axis: n}) for c in clauses if c.axis == axis)
                   for n in range(1, 9) for rank in range(n) for own in range(n)) for axis in AXES)


@settings(max_examples=25, deadline=None)
@given(st.lists(CLAUSES, min_size=1, max_size=3))
@example([Clause("dp_shard", 0, True), Clause("dp_shard", LAST_RANK, True)])
@example([Clause("dp_shard", 0), Clause("dp_shard", LAST_RANK)])
@example([Clause("dp_shard", 4), Clause("dp_shard", LAST_RANK), Clause("dp_shard", 1, True)])
@example([Clause("dp_shard", 0), Clause("dp_shard", 0, True)])
@example([Clause("dp_shard"), Clause("dp_shard", None, True)])
def test_a_where_is_vacuous_where_no_rank_of_any_mesh_meets_it(clauses: list[Clause]) -> None:
    step = step_of("hsdp", "abstract")
    name = next(e.path for e in step.events if e.verb == "store" and e.group)
    step = replace(step, events=tuple(replace(e, where=tuple(clauses) if e.path == name else ()) for e in step.events))
    text, met = ", ".join(map(str, clauses)), meets_somewhere(clauses)
    found = vacuity.vacuity(step)
    assert (found.verdict == PROVED) == met, found.reason
    if met:
        assert parse_where(text, AXES) == tuple(clauses)
    else:
        with pytest.raises(InputError, match="holds on no rank, whatever the size of"):
            parse_where(text, AXES)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(CLAUSES, min_size=1, max_size=2), min_size=2, max_size=2))
@example([[Clause("dp_shard"), Clause("dp_shard", 0)], [Clause("dp_shard"), Clause("dp_shard", 0, True)]])
@example([[Clause("dp_shard"), Clause("dp_shard", 1)], [Clause("dp_shard"), Clause("dp_shard", LAST_RANK)]])
def test_wheres_that_no_element_meets_together_are_not_vacuous(pair: list[list[Clause]]) -> None:
    """Two events of one group, each of which runs on some rank for some element."""
    step = step_of("hsdp", "abstract")
    chosen = iter(pair)
    step = replace(step, events=tuple(replace(e, where=tuple(next(chosen, ())) if e.verb == "store" and e.group else ())
                                      for e in step.events))
    found = vacuity.vacuity(step)
    assert (found.verdict == PROVED) == all(map(meets_somewhere, pair)), found.reason
    assert found.verdict == PROVED or "no rank satisfies the `where` of" in found.reason


MIDDLE = """base = "zero2"
[[edit]]
insert = { path = "backward.layer.weight.grad.scale", divisor = "DIVISOR", where = "WHERE" }
before = "*.layer.weight.grad.reduce[dp]"
"""


@pytest.mark.parametrize("where", ["not rank(dp)=0, not rank(dp)=last", "rank(dp)=0, rank(dp)=last"])
def test_a_where_that_holds_at_few_sizes_is_decided(where: str, tmp_path: Path) -> None:
    def verdict(divisor: str) -> str:
        file = tmp_path / "middle.toml"
        file.write_text(MIDDLE.replace("DIVISOR", divisor).replace("WHERE", where))
        return str(pa.prove(str(file)).verdict)

    assert (verdict("1"), verdict("1/2")) == (PROVED, REFUTED)


def test_premises_whose_model_is_not_found_are_open() -> None:
    def answer(status: str, reason: str) -> Any:
        return patch.object(vacuity, "ask", lambda *_, **__: Reply(status, {}, reason))
    with answer(UNKNOWN, "too hard"):
        found = vacuity.vacuity(STEP)
    assert (found.verdict, found.reason) == (UNDECIDED, "no model of the premises was found at sizes 3: too hard")
    with answer(UNSAT, ""):
        assert vacuity.vacuity(STEP).reason == "the premises have no model at sizes 3"


def test_the_lemmas_of_a_program() -> None:
    plain, ring = lemmas.used(SHARDED), lemmas.used(RING)
    assert [x.name for x in plain] == ["sum_of_owner", "sum_of_constant"] and ring == LEMMAS
    assert lemmas.proved_lemmas(plain) == tuple(f"{x.name}: {x.statement}" for x in plain)
    assert lemmas.proved_lemmas() == tuple(f"{x.name}: {x.statement}" for x in LEMMAS)


def lemma(summand: Any, partial: Any) -> Lemma:
    return Lemma("mine", "so it is", summand, partial)


K, TAU, C, N = z3.Ints("k tau c n")


@pytest.mark.parametrize("part", [0, 1])
def test_an_induction_is_over_every_rank_and_place(part: int) -> None:
    """Of a false lemma base and step fail, wherever it is false: for k from 0 on, any tau and c inside the axis."""
    *known, failing = lemmas.obligations(lemma(lambda k: z3.Int("f"), lambda k: z3.Int("s") + z3.If(k > 0, 1, 0)))[part]
    for k, tau, c, n in ((0, 0, 0, 1), (0, 2, 0, 3), (7, 0, 2, 3)):
        assert possible(*known, k == K, tau == TAU, c == C, n == N)
    for k, tau, c, n in ((-1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, -1, 0, 1), (0, 0, -1, 1)):
        assert not possible(*known, k == K, tau == TAU, c == C, n == N)
    if part:
        for k, right in ((0, 1), (1, 0)):
            assert not possible(*known, failing, k == K, z3.Int("f") == right)
            assert possible(*known, failing, k == K, z3.Int("f") == right + 1)
            assert possible(*known, failing, k == K, z3.Int("f") == right - 1)
    else:
        assert not possible(*known, failing, z3.Int("s") == 0)
        assert possible(*known, failing, z3.Int("s") == 1) and possible(*known, failing, z3.Int("s") == -1)


@pytest.mark.parametrize(("summand", "partial"), [
    (lambda k: 1, lambda k: k + 1), (lambda k: 1, lambda k: 2 * k), (lambda k: k, lambda k: z3.If(k > 1, 1, 0))])
def test_a_false_lemma_is_not_proved(summand: Any, partial: Any) -> None:
    with pytest.raises(lemmas.Unproved, match=r"^lemma mine is not proved: sat$"):
        lemmas.proved_lemmas([lemma(summand, partial)])


def test_a_lemma_that_the_solver_gives_up_is_not_proved() -> None:
    with (patch.object(lemmas, "PROCESS", SimpleNamespace(ask=lambda _: Reply(UNKNOWN, {}, "too hard"))),
          pytest.raises(lemmas.Unproved, match=r"^lemma mine is not proved: too hard$")):
        lemmas.proved_lemmas([lemma(lambda k: 0, lambda k: 0 * k)])


@pytest.mark.parametrize(("case", "least", "exact", "steps"), [
    (CASES[0], 1, True, "O"), (CASES[1], 2, True, "F l"), (CASES[4], 3, False, "f c* L"), (CASES[5], 3, True, "f C l"),
    (CASES[8], 5, False, "f c* C c* l")])
def test_the_cases_of_a_unit_s_microbatch(case: Case, least: int, exact: bool, steps: str) -> None:
    assert microbatches._case(least, exact, *steps.split()) == case
    assert (case.least, case.exact) == (least, exact)
    (active,) = [i for i in case.iterations if i.active]
    assert case.name == active.position and not active.many
    assert case.shape == ("3+" if least > 2 else str(least))
    names = {"o": "only", "f": "first", "c": "middle", "l": "last"}
    assert case.iterations == tuple(Iteration(names[s[0].lower()], s[0] in "OFCL", s[1:] == "*") for s in steps.split())


def test_every_m_and_every_place_is_in_exactly_one_case() -> None:
    """A run of passive middle microbatches stands for one or more of them."""
    for m in range(1, 9):
        for place in range(m):
            fitting = []
            for case in CASES:
                before = [i.active for i in case.iterations].index(True)
                left, right = case.iterations[:before], case.iterations[before + 1:]
                fits = all(len(part) == number or (len(part) < number and any(i.many for i in part))
                           for part, number in ((left, place), (right, m - 1 - place)))
                assert not fits or (m == case.least if case.exact else m >= case.least)
                fitting += [case] if fits else []
            assert len(fitting) == 1
            where = "only" if m == 1 else "first" if not place else "last" if place == m - 1 else "middle"
            assert fitting[0].name == where
    assert [c.shape for c in CASES] == ["1", "2", "2"] + 6 * ["3+"]


def test_conditions_of_random_values_are_those_of_their_formulas() -> None:
    rng = random.Random(2)
    for _ in range(20):
        some = some_equalities(rng)
        formula = symbols.conjunction(some)
        for world in (World(FrozenMap({"dp": 2, "tp": 2}), 4), World(FrozenMap({"dp": 1, "tp": 3}), 5)):
            for rank in world.ranks():
                assert world.true(formula, rank) == all(world.holds(e, rank) for e in some)
