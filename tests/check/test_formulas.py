"""Formulas compared for all sizes: proofs that hold at every size tried, refutations that are replayed, honest gaps."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import Outcome
from hypothesis import given, settings
from hypothesis import strategies as st

import placealg as pa
from placealg.arith import Monomial
from placealg.check import formulas
from placealg.check.formulas import IDENTICAL, compare
from placealg.cost.break_even import crossings
from placealg.cost.comparison import Over, read_claim
from placealg.cost.costs import Costs
from placealg.cost.expressions import Size
from placealg.cost.formula import Formula
from placealg.cost.plain import conditions, difference
from placealg.errors import InputError
from placealg.models.config import resolve_model
from placealg.polynomial import Polynomial
from placealg.prover.inequality import decide as inequality
from placealg.prover.inequality.decide import BY_COEFFICIENTS, Question, Settled, decide
from placealg.prover.inequality.sizes import Domain, freed
from placealg.prover.verdict import PROVED, REFUTED, UNDECIDED
from placealg.step.compatibility import orders, quotients
from placealg.strategy.expression import parse_strategy
from placealg.strategy.spec import overlay

Run = Callable[..., Outcome]
NAMES = ("b", "m", "dp", "tp")
GATHERED = ["dispatch.expert", "expert.expert", "combine.expert", "batch"]
"""Experts to which all tokens are gathered, and whose partial sums are reduced and scattered."""
PAIRS = "communication.events.forward.layer.dispatch.pairs.all_to_all[ep]"
TOKENS = "communication.events.forward.layer.norm2.out.all_gather[ep]"


def formula(text: str) -> Formula:
    return Formula.parse(text, "bytes")


def verdict(left: str, relation: str, right: str, **said: str) -> str:
    return str(compare(formula(left), relation, formula(right), **said).verdict)


# ------------------------------------------------------------------------------------------------------------- formulas

COMPARISONS = [
    ("Psi/dp", "<=", "Psi", "", PROVED),
    ("Psi/dp", "<", "Psi", "", REFUTED),
    ("Psi/dp", "<", "Psi", "dp >= 2", PROVED),
    ("Psi/dp", "<", "Psi", "dp > 1", PROVED),
    ("w*Psi", "<=", "o*Psi", "", REFUTED),
    ("w*Psi", "<=", "o*Psi", "w <= o", PROVED),
    ("w*Psi", "<=", "o*Psi", "o == 12 and w == 2", PROVED),
    ("2*tp*dp", "<=", "tp**2 + dp**2", "", PROVED),
    ("2*tp*dp + 1", "<=", "tp**2 + dp**2", "", REFUTED),
    ("Max(tp, dp)", "<=", "tp + dp", "", PROVED),
    ("tp + dp", "<=", "2*Max(tp, dp)", "", PROVED),
    ("tp + dp", "<=", "Max(tp, dp) + 1", "", REFUTED),
    ("Min(tp, dp)*Max(tp, dp)", "==", "tp*dp", "", PROVED),
    ("Max(tp, dp)", "==", "Max(dp, tp)", "", PROVED),
    ("Max(tp, dp) + Min(tp, dp)", "<=", "tp + dp - 1", "", REFUTED),
    ("Max(tp/2, dp/2)", "<=", "tp/2 + dp/2 - 1/2", "", PROVED),
    ("Max(tp/2, dp/2)", "<", "tp/2 + dp/2 - 1/2", "", REFUTED),
    ("Max(2*tp, 3)", "<=", "3*tp", "", PROVED),
    ("Max(2*tp, 3)", "<", "3*tp", "", REFUTED),
    ("w*dp", "<=", "w*dp*dp", "", PROVED),
    ("dp", "<=", "w*dp + 1/1000", "", REFUTED),
    ("2*w", "<=", "w*w + 1", "", PROVED),
    ("2*w", "<", "w*w + 1", "", REFUTED),
    ("3*w", "<=", "w*w + 2", "", REFUTED),
    ("2*ceiling(b/2)", "<=", "b + 1", "", PROVED),
    ("2*ceiling(b/2)", "<", "b + 1", "", REFUTED),
    ("b", "<=", "2*floor(b/2) + 1", "", PROVED),
    ("b", "<", "2*floor(b/2) + 1", "", REFUTED),
    ("ceiling(b/dp)", "<=", "b", "", PROVED),
    ("b", "<=", "dp*ceiling(b/dp)", "", PROVED),
    ("dp*ceiling(b/dp)", "<=", "b + dp - 1", "", PROVED),
    ("dp*ceiling(b/dp)", "<=", "b + dp - 2", "", REFUTED),
    ("dp*floor(b/dp)", "<=", "b", "", PROVED),
    ("b", "<", "dp*floor(b/dp) + dp", "", PROVED),
    ("2*b*(dp - 1)/dp**2", "<=", "b*(dp - 1)/dp", "", PROVED),
    ("3*b*(dp - 1)/dp**2", "<=", "b*(dp - 1)/dp", "", REFUTED),
    ("3*b*(dp - 1)/dp**2", "<=", "b*(dp - 1)/dp", "dp >= 3", PROVED),
    ("m/(m + dp - 1)", "<=", "1", "", PROVED),
    ("(dp - 1)/(m + dp - 1)", "<", "1", "", PROVED),
    ("(dp - 1)/m", "<=", "(dp - 1)/(m + dp - 1)", "", REFUTED),
    ("(dp - 1)/(m + dp - 1)", "<=", "(dp - 1)/m", "", PROVED),
    ("Max(2 - m, 0) + m", ">=", "2", "", PROVED),
    ("Max(m - 2, 0)", "==", "m - 2", "", REFUTED),
    ("Max(m - 2, 0)", "==", "m - 2", "m >= 2", PROVED),
    ("b/dp", "==", "b/dp + 0*tp", "", PROVED),
    ("b*(dp - 1)/dp", "==", "b - b/dp", "", PROVED),
    ("dp*ceiling(b/dp)", "<=", "b", "", REFUTED),
    ("b", "<=", "dp*floor(b/dp)", "", REFUTED),
    ("0*b", "<", "(b - 123457)**2", "", REFUTED),
    ("b", "<", "dp", "b <= dp", REFUTED),
    ("2", "<=", "w", "w > 1", REFUTED),
    ("1", "<", "w", "w > 1", PROVED),
    ("dp", "<=", "8", "dp <= 8", PROVED),
    ("dp", "<", "8", "dp <= 8", REFUTED),
]
"""Left, relation, right, where, verdict."""


@pytest.mark.parametrize(("left", "relation", "right", "where", "want"), COMPARISONS)
def test_comparisons(left: str, relation: str, right: str, where: str, want: str) -> None:
    answer = compare(formula(left), relation, formula(right), where)
    assert answer.verdict == want, answer.decisions[0].method


@pytest.mark.parametrize(("left", "relation", "right", "where", "want"), COMPARISONS)
def test_the_solver_alone_does_not_say_otherwise(left: str, relation: str, right: str, where: str, want: str,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the coefficients of the difference, and without a search: Z3 over reals, then over integers."""
    monkeypatch.setattr(inequality._Cases, "hold", lambda *_: False)
    monkeypatch.setattr(inequality, "LIMIT", 1_000_000)
    monkeypatch.setattr(formulas, "inhabitant", lambda _: Settled(REFUTED, "some"))
    monkeypatch.setattr(inequality, "_search", lambda *_: None)
    assert compare(formula(left), relation, formula(right), where).verdict in (want, UNDECIDED)


def test_identity_needs_no_inequality() -> None:
    assert compare(formula("b*(dp - 1)/dp"), "==", formula("b - b/dp")).decisions[0].method == IDENTICAL


def test_one_size_in_two_cases() -> None:
    """Where dp is between 1 and 2 it does not hold; no size is."""
    (decision,) = compare(formula("2*b*(dp - 1)/dp**2"), "<=", formula("b*(dp - 1)/dp")).decisions
    assert decision.method == f"{BY_COEFFICIENTS}, where dp = 1 and where dp >= 2"


def _at(formula: Formula, sizes: Mapping[str, Size]) -> Fraction:
    value = formula.value(**{n: v for n, v in sizes.items() if n in formula.inputs})
    assert value is not None
    return Fraction(value)


sums = st.lists(st.tuples(st.integers(-4, 4), st.lists(st.sampled_from(NAMES), max_size=3)), min_size=1, max_size=5)


def text_of(drawn: list[tuple[int, list[str]]]) -> str:
    return " + ".join(f"({c})*{'*'.join(['1', *names])}" for c, names in drawn)


@given(sums, sums, st.sampled_from(("<=", "<", "==")), st.sampled_from(("", "Max", "Min")))
@settings(max_examples=60, deadline=None)
def test_a_verdict_agrees_with_every_size_tried(one: list[tuple[int, list[str]]], other: list[tuple[int, list[str]]],
                                                relation: str, function: str) -> None:
    left, right = (formula(f"{function}(({text_of(s)})/2, {text_of(o)})" if function else text_of(s))
                   for s, o in ((one, [(1, ["b"])]), (other, [(2, ["tp"])])))
    answer = compare(left, relation, right)
    (decision,) = answer.decisions
    holds = {"<=": lambda a, b: a <= b, "<": lambda a, b: a < b, "==": lambda a, b: a == b}[relation]
    if answer.verdict == REFUTED:
        assert decision.values is not None
        assert not holds(*decision.values)
        assert all(v.denominator == 1 and v >= 1 for v in decision.sizes.values())
    grid = [dict(zip(NAMES, values, strict=True)) for values in itertools.product((1, 2, 5), repeat=len(NAMES))]
    if answer.verdict == PROVED:
        assert all(holds(_at(left, g), _at(right, g)) for g in grid)


@given(st.lists(st.tuples(st.integers(-3, 6), st.sampled_from(("b", "dp", "b/dp", "b*tp/dp", "w*b", "1"))),
                min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_the_coefficient_method_alone_is_sound(drawn: list[tuple[int, str]]) -> None:
    terms = [Monomial.parse(text) * Monomial.number(c) for c, text in drawn if c]
    whole = Domain((Monomial.parse("b/dp"),), (), frozenset({"w"}))
    answer = decide(Question(Polynomial.of(terms), Polynomial.number(1), whole))
    if answer.method == BY_COEFFICIENTS:
        for dp, q, tp, w in itertools.product((1, 2, 3), (1, 2, 3), (1, 4), (Fraction(1, 10), 3)):
            assert Polynomial.of(terms).evaluate({"b": dp * q, "dp": dp, "tp": tp, "w": w}) >= 0


@pytest.mark.parametrize(("text", "want"), [("dp - 2", False), ("(dp - 1)*(dp - 2)", True), ("2 - dp", False)])
def test_both_cases_of_a_size_are_needed(text: str, want: bool) -> None:
    sum_ = difference(formula(text), formula("0*b"), {}).numerator
    assert inequality._holds_apart(Question(sum_, Polynomial.number(1), Domain()), sum_, "dp") == want


def test_what_is_whole_and_ordered_is_used_and_needed() -> None:
    over = Over(whole=(Monomial.parse("a/kv"),), ordered=((Monomial.of("topk"), Monomial.of("experts")),))
    kv, a = formula("kv"), formula("a")
    assert compare(kv, "<=", a, over=over).verdict == PROVED
    assert compare(kv, "<=", a).verdict == REFUTED
    assert compare(formula("topk"), "<=", formula("experts"), over=over).verdict == PROVED
    assert compare(formula("topk"), "<=", formula("experts")).verdict == REFUTED
    refuted = compare(formula("3*kv"), ">=", formula("2*a"), over=over).decisions[0]
    assert refuted.sizes["a"] % refuted.sizes["kv"] == 0


def test_rational_bytes_are_not_shifted() -> None:
    assert verdict("1", "<=", "w") == REFUTED
    assert verdict("0*w", "<", "w") == PROVED


@pytest.mark.parametrize("exists", ["5*w == 2 and w*o == 1", "w*dp == 1/3"])
def test_a_premise_that_needs_rationals_is_met(exists: str) -> None:
    """Z3 finds rational bytes as integers over a common denominator."""
    (decision,) = compare(formula("w*dp"), "<", formula("w*o"), exists).decisions
    assert decision.verdict == REFUTED
    assert all(c.relation != "==" or c.terms.evaluate(decision.sizes) == 0 for c in decision.given)


def test_iff_is_both_ways() -> None:
    left, right = "b*topk*(ep - 1)/ep", "b*(ep - 1)"
    assert verdict(left, "<", right, iff="topk < ep") == PROVED
    assert verdict(left, "<", right, iff="topk <= ep") == REFUTED
    assert verdict(left, "<=", right, iff="topk <= ep") == REFUTED        # at ep = 1 nothing is sent
    assert verdict(left, "<=", right, iff="topk <= ep", where="ep >= 2") == PROVED
    assert verdict(left, "<", right, iff="topk < ep and ep >= 2") == PROVED
    assert verdict(left, "<", right, iff="topk < ep and ep >= 3") == REFUTED
    assert verdict("b", "<=", "2*b", iff="b >= 1") == PROVED              # where b < 1 there is nothing
    assert verdict("(b - 2)**2", ">", "0*b", iff="b == 2") == REFUTED
    assert verdict("(b - 2)**2", "<=", "0*b", iff="b == 2") == PROVED


def test_an_empty_premise_is_bad_input_not_a_proof() -> None:
    with pytest.raises(InputError, match="no sizes satisfy 'dp < 1'"):
        verdict("b", "<=", "dp", where="dp < 1")
    with pytest.raises(InputError, match="no sizes"):
        verdict("b", "<=", "dp", where="dp < b and b < dp")


@pytest.mark.parametrize(("where", "says"), [
    ("dq >= 1", "unknown symbol 'dq'; did you mean 'dp'"), ("dp", "is not A <= B"), ("1 < dp < 3", "is not A <= B"),
    ("dp >= 1/(b - 1)", "divides by a sum"), ("dp >= Max(b, 2)", "has a function"),
    ("dp >= 1/0", "divides by a sum"), ("(dp + b)**9 > 1", "powers above 8"),
    ("((dp + b)**4)**4 > 1", "powers above"), ("__import__('os') > 1", "not a function"), ("", ""),
])
def test_conditions_are_read_and_nothing_else(where: str, says: str) -> None:
    if not where:
        assert conditions("dp >= 2 and b < m", ("dp", "b", "m"), {})[1].terms == \
            Polynomial.name("m") - Polynomial.name("b")
        return
    with pytest.raises(InputError) as error:
        verdict("b", "<=", "dp", where=where)
    assert says in str(error.value)


def test_an_answer_that_the_solver_does_not_give_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cube is a sum of two cubes; no part of this proof knows that."""
    monkeypatch.setattr(inequality, "LIMIT", 20_000)
    (decision,) = compare(formula("0*b"), "<", formula("(b**3 + m**3 - dp**3)**2")).decisions
    assert decision.verdict == UNDECIDED
    assert "z3" in decision.method
    assert decision.values is None


@pytest.mark.parametrize("left", ["2*Max(b/2, 1/2)", "2*Min(b/2, b)", "2*Max(b/2, w/1000000)"])
def test_a_maximum_need_not_be_whole(left: str) -> None:
    """Z3 is asked over integers, at which b/2 has halves: only the odd number named violates the claim."""
    (decision,) = compare(formula("0*b"), "<", formula(f"({left} - 123457)**2")).decisions
    assert decision.verdict != PROVED
    assert decision.verdict == UNDECIDED or decision.sizes["b"] == 123457


def test_a_denominator_of_unknown_sign_is_undecided() -> None:
    (decision,) = compare(formula("1/(b - m)"), "<=", formula("5*b")).decisions
    assert decision.verdict == UNDECIDED
    assert "sign of the denominator" in decision.method


def test_sizes_that_do_not_violate_are_no_refutation(monkeypatch: pytest.MonkeyPatch) -> None:
    real = formulas.decide

    def wrong(question: Question) -> Settled:
        found = real(question)
        return Settled(REFUTED, "wrong", {n: Fraction(1) for n in question.names()}) if found.verdict == PROVED \
            else found
    monkeypatch.setattr(formulas, "decide", wrong)
    assert verdict("b", "<=", "b + dp") == UNDECIDED


def test_units_do_not_mix() -> None:
    with pytest.raises(InputError, match="bytes are not compared with elements"):
        compare(formula("b"), "<=", Formula.parse("b", "elements"))
    with pytest.raises(InputError, match="unknown relation '=<'"):
        compare(formula("b"), "=<", formula("b"))


def test_free_sizes_write_out_the_others() -> None:
    domain = Domain((Monomial.parse("a/kv"), Monomial.parse("kv/tp")), ((Polynomial.name("tp") - Polynomial.number(2),
                                                                        ">="),))
    written = freed(domain).written("a")
    assert written.evaluate({"a/kv": 3, "kv/tp": 5, "tp'": 1}) == 3 * 5 * 3


def test_plain_data_has_the_value_of_the_formula() -> None:
    found = difference(formula("Max(b, 2*dp)/tp + b"), formula("ceiling(b/dp)"), {"tp": Fraction(2)})
    sizes: dict[str, Fraction] = {"b": Fraction(7), "dp": Fraction(3)}
    for call in found.calls:
        values = [a.evaluate(sizes) for a in call.arguments]
        sizes[call.name] = max(values) if call.function == "Max" else Fraction(-(-values[0] // 1))
    value = found.numerator.evaluate(sizes) / found.denominator.evaluate(sizes)
    assert value == Fraction(7, 2) + 7 - 3


# ----------------------------------------------------------------------------------------------------------- strategies

def claim(one: str, two: str, model: str, text: str, where: str = "") -> str:
    return str(pa.decide(parse_strategy(one), parse_strategy(two), text, resolve_model(model),
                                  where).verdict)


@pytest.mark.parametrize(("one", "two", "model", "text", "where", "want"), [
    ("tp_sp", "tp", "gpt", "memory.total <=", "", PROVED),
    ("tp_sp", "tp", "gpt", "memory.peak <=", "", PROVED),
    ("tp_sp", "tp", "gpt", "memory.total <", "", REFUTED),
    ("tp_sp", "tp", "gpt", "memory.total <", "tp >= 2", PROVED),
    ("tp", "tp_sp", "gpt", "memory.activations <=", "", REFUTED),
    ("tp_sp", "tp", "gpt", "communication.total <=", "", REFUTED),
    ("tp_sp", "tp_sp_keep", "gpt", "memory.peak <=", "", PROVED),
    ("tp_sp_keep", "tp_sp", "gpt", "communication.total <=", "", PROVED),
    ("zero3", "dp", "abstract", "memory.states <=", "", PROVED),
    ("zero3", "dp", "abstract", "memory.total <=", "", REFUTED),
    ("dp", "zero1", "abstract", "communication.total ==", "", REFUTED),
    ("dp", "zero1", "abstract", "communication.total ==", "w == wire", PROVED),
    ("zero2", "zero1", "abstract", "communication.total ==", "m == 1", PROVED),
    ("zero2", "zero1", "abstract", "communication.total <=", "", REFUTED),
    ("zero1", "zero2", "abstract", "communication.total <=", "", PROVED),
    ("zero3*tp_sp", "zero3*tp", "llama-3-70b", "memory.peak <=", "", PROVED),
    ("dp", "tp", "gpt", "communication.by_axes.tp <=", "", PROVED),
    ("dp", "zero3", "gpt2", "compute.flop ==", "", PROVED),
])
def test_claims_about_strategies(one: str, two: str, model: str, text: str, where: str, want: str) -> None:
    assert claim(one, two, model, text, where) == want


def test_all_to_all_beats_all_gather_exactly_where_few_experts_are_chosen() -> None:
    """Of hidden states. In all, gathering sends gates besides, so that pairs are ahead for some topk >= ep too."""
    pairs = parse_strategy("ep")
    gathered = overlay(pairs, {"dims": {"ep": GATHERED}})
    model = resolve_model("moe")
    for text, want in ((f"{PAIRS} < {TOKENS} iff topk < ep", PROVED), (f"{PAIRS} < {TOKENS} iff topk <= ep", REFUTED),
                       ("communication.total <= iff topk <= ep", REFUTED)):
        assert pa.decide(pairs, gathered, text, model).verdict == want, text
    answer = pa.decide(pairs, gathered, "communication.total <", model, "topk <= ep and ep >= 2")
    assert answer.verdict == PROVED


def test_a_refutation_fits_the_strategies() -> None:
    """Sizes at which heads, sequence and experts divide, and at which the formulas have the values told."""
    strategy, model = parse_strategy("tp"), resolve_model("moe")
    answer = pa.decide(strategy, parse_strategy("tp_sp"), "memory.activations <=", model, "tp >= 2")
    (decision,) = answer.decisions
    assert decision.verdict == REFUTED
    assert all(q.evaluate({**decision.sizes, "experts": 4}).denominator == 1 for q in quotients(strategy, model))
    held = [pa.memory(s, model).activations for s in (strategy, parse_strategy("tp_sp"))]
    assert decision.values == tuple(_at(f, decision.sizes) for f in held)


def test_facts_come_from_model_and_strategy() -> None:
    model = resolve_model("moe")
    assert set(map(str, quotients(parse_strategy("tp_sp*ep"), model))) >= {"a/kv", "h/a", "kv/tp", "experts/ep"}
    assert [tuple(map(str, pair)) for pair in orders(model)] == [("topk", "experts")]
    assert orders(resolve_model("gpt")) == ()


def test_sizes_given_are_fixed_and_must_agree() -> None:
    zero3, dp, model = pa.zero3(), pa.dp(), pa.abstract()
    assert pa.decide(zero3, dp, "communication.total <=", model, w=1, wire=4, m=1).verdict == PROVED
    assert pa.decide(zero3, dp, "communication.total <=", model, w=1, wire=1, m=1).verdict == REFUTED
    with pytest.raises(InputError, match="dp is 8"):
        pa.decide(pa.zero3(dp=8), pa.dp(dp=4), "memory.total <=", model)
    fixed = pa.decide(pa.zero3(dp=8), pa.dp(), "memory.states <", model).decisions[0]
    assert (fixed.verdict, fixed.over.fixed["dp"]) == (PROVED, 8)


def test_what_follows_from_other_sizes_is_not_fixed_beside_them() -> None:
    model = resolve_model("gpt")
    with pytest.raises(InputError, match="Psi follows from L, V, h, s: give those a size instead"):
        pa.decide(pa.tp(), pa.tp_sp(), "memory.total <=", model, Psi=10)
    with pytest.raises(InputError, match="unknown symbol 'Psi'"):
        pa.decide(pa.tp(), pa.tp_sp(), "memory.total <=", model, "Psi >= 10")
    assert pa.decide(pa.zero3(), pa.dp(), "memory.states <=", pa.abstract(), "Psi >= 10", Psi_unit=4).verdict == PROVED


def test_every_leaf_stands_in_the_document() -> None:
    from placealg.cost.document import cost_json

    step = pa.derive(parse_strategy("zero3*tp_sp"), resolve_model("gpt"))
    written = cost_json(step)
    figures = Costs(step).figures
    for path, formula in figures.items():
        head, _, rest = path.partition(".")
        if head in ("memory", "compute"):
            assert written[head][rest]["expr"] == formula.to_json()["expr"]
    paths = {e["path"]: e["expr"] for e in written["communication"]["events"]}
    assert {p: str(figures[f"communication.events.{p}"].expr) for p in list(paths)[:3]} == {
        p: paths[p] for p in list(paths)[:3]}


def test_crossings() -> None:
    def texts(left: str, right: str, name: str) -> list[str]:
        return [f.text() for f in crossings(formula(left), formula(right), name, {})]
    assert texts("Psi/dp", "Psi/8", "dp") == ["8"]
    assert texts("b*topk*(ep - 1)/ep", "b*(ep - 1)", "ep") == ["1", "topk"]
    assert texts("dp**2", "4*b**2", "dp") == ["2·b"]
    for left, right, says in (("dp", "dp", "do not depend"), ("Max(dp, 2)", "b", "no polynomial"),
                              ("dp**5", "dp + b", "degree 5")):
        with pytest.raises(InputError, match=says):
            texts(left, right, "dp")


@pytest.mark.parametrize(("text", "want"), [
    ("memory.total <=", ("memory.total", "<=", "memory.total", "")),
    ("memory.total<memory.peak iff tp>1 and m==1", ("memory.total", "<", "memory.peak", "tp>1 and m==1")),
    (f"{PAIRS} == {TOKENS}", (PAIRS, "==", TOKENS, "")),
])
def test_claims_are_read(text: str, want: tuple[str, ...]) -> None:
    found = read_claim(text)
    assert (found.left, found.relation, found.right, found.iff) == want


@pytest.mark.parametrize("text", ["memory.total", "<=", "memory.total =< x", "memory.total <= a b", "a <= b iff "])
def test_what_is_no_claim(text: str) -> None:
    with pytest.raises(InputError, match="is not PATH RELATION"):
        read_claim(text)


# -------------------------------------------------------------------------------------------------------- command line

def test_the_exit_code_is_the_verdict(placealg: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert placealg("compare", "zero3", "dp", "--prove", "memory.states <=").code == 0
    refuted = placealg("compare", "zero3", "dp", "--prove", "memory.total <=", "--solve", "dp")
    assert refuted.code == 1
    assert "zero3: 5" in refuted.out
    assert "equal at dp = " in refuted.out
    monkeypatch.setattr(formulas, "decide", lambda _: Settled(UNDECIDED, "the solver gave up"))
    open_ = placealg("compare", "zero3", "dp", "--prove", "memory.states <=")
    assert open_.code == 3
    assert "UNDECIDED" in open_.out
    assert "the solver gave up" in open_.out


def test_json_has_a_fixed_shape(placealg: Run, tmp_path: Path) -> None:
    path = tmp_path / "gathered.toml"
    path.write_text(f'name = "gathered"\nbase = "ep"\n[dims]\nep = {json.dumps(GATHERED)}\n')
    got = placealg("compare", "ep", str(path), "--prove", f"{PAIRS} < {TOKENS} iff topk < ep", "--solve", "topk",
                   "--format", "json")
    assert got.code == 0
    found = json.loads(got.out)
    assert list(found) == ["version", "model", "strategies", "verdict", "claim", "left", "right", "decisions", "over",
                           "hypotheses", "crossing"]
    assert (found["version"], found["verdict"]) == (1, "PROVED")
    assert [d["where"] for d in found["decisions"]] == [["topk < ep"], ["not topk < ep"]]
    assert found["crossing"] == {"symbol": "topk", "values": ["ep"]}
    assert any("balanced_experts" in h for h in found["hypotheses"])


@pytest.mark.parametrize(("words", "says"), [
    (["zero3", "dp", "--prove", "memry.total <="], "--prove: no figure 'memry.total'; did you mean 'memory.total'?"),
    (["zero3", "dp", "--prove", "memory.total"], "--prove: 'memory.total' is not PATH RELATION"),
    (["zero3", "dp", "--prove", "memory.activations <="], "has no closed form: the abstract model has no activations"),
    (["zero3", "dp", "--prove", "memory.total <= compute.flop"], "no closed form"),
    (["zero3", "dp", "--prove", "memory.total <= parameters"], "bytes are not compared with elements"),
    (["zero3", "dp", "--prove", "memory.total <=", "--where", "dq > 1"], "--where: unknown symbol 'dq'"),
    (["zero3", "dp", "--prove", "memory.total <=", "--where", "dp < 1"], "no sizes satisfy 'dp < 1'"),
    (["zero3", "dp", "--prove", "memory.total <=", "--solve", "m"], "--solve m: the formulas do not depend on m"),
    (["zero3", "dp", "zero1", "--prove", "memory.total <="], "--prove compares two strategies, not 3"),
    (["zero3", "dp", "--where", "dp > 1"], "--where goes with --prove"),
    (["zero3", "dp", "--prove", "memory.total <=", "--format", "markdown"], "--prove prints text or json"),
    (["zero3[8]", "dp[4]", "--prove", "memory.total <="], "dp is 8 in zero3[8] and 4 in dp[4]"),
])
def test_bad_claims_are_one_line(words: list[str], says: str, placealg: Run) -> None:
    got = placealg("compare", *words)
    assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
    assert says in got.err
