"""Quotients of sums without a common factor: as SymPy factors them, and nothing where a factor may be shared."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from placealg.cost import irreducible
from placealg.cost.algebra import quotient
from placealg.cost.communication import communication
from placealg.cost.irreducible import expanded, factored, irreducible_quotient
from placealg.models.config import resolve_model
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy

A, B, C, X = sympy.symbols("a b c x", positive=True)
SUMS = st.lists(st.tuples(st.integers(-4, 4).filter(bool), *(st.integers(-1, 2) for _ in range(4))), min_size=1,
                max_size=4, unique_by=lambda term: term[1:])


def written(terms: list[tuple[int, ...]]) -> Any:
    """The sum of n·a^i·b^j·c^k·x^l."""
    return sympy.Add(*(n * A**i * B**j * C**k * X**m for n, i, j, k, m in terms))


@given(SUMS, SUMS, SUMS)
def test_a_quotient_is_the_one_that_sympy_factors(one: Any, other: Any, shared: Any) -> None:
    top, bottom = sympy.expand(written(one) * written(shared)), sympy.expand(written(other) * written(shared))
    for a, b in ((written(one), written(other)), (top, bottom)):
        found = irreducible_quotient(a, b)
        if found is not None:
            ours, theirs = sympy.fraction(found), sympy.fraction(sympy.factor(a / b))
            assert any(all(sympy.expand(x - sign * y) == 0 for x, y in zip(ours, theirs, strict=True))
                       for sign in (1, -1))  # the same lowest terms, but for a sign above and below


@given(SUMS, SUMS)
def test_a_sum_expands_and_factors_as_sympy_does_it(one: Any, other: Any) -> None:
    product = written(one) * written(other)
    assert all(expanded(expr) == sympy.expand(expr) for expr in (product, product + 1 / (A + B)))
    assert sympy.expand(factored(product)) == sympy.expand(product)


@given(SUMS)
def test_a_function_of_sizes_is_factored_as_a_symbol(terms: Any) -> None:
    put = {X: sympy.Min(A, B, evaluate=False)}
    one = written(terms).xreplace(put)
    assert sympy.expand(factored(one)) == sympy.expand(one)
    whole, alone = ([part for part in sympy.Mul.make_args(factored(e)) if part.as_base_exp()[0].is_Add]
                    for e in (one, written(terms)))
    assert len(whole) == len(alone)


@pytest.mark.parametrize(("one", "other", "text"), [
    (A * X - A * B, -C, "a*(b - x)/c"), (-A * X - A * B, C, "-a*(b + x)/c"), (B - A, sympy.S.One, "-a + b"),
    (A * C * sympy.Min(B, X) - A * B, -C, "a*(b - c*Min(b, x))/c")])
def test_a_sign_stands_before_a_quotient_where_no_sum_can_take_it(one: Any, other: Any, text: str) -> None:
    assert str(irreducible_quotient(one, other)) == text


@pytest.mark.parametrize(("one", "other"), [
    (A * X + A * B + C * X + C * B, X),                     # a product of two sums
    ((A + B) * (C + X), (A + B) * (C + 2)),                 # a factor above and below
    ((A + B) * (2 * X + C) * (A * X + 1), X * (B + C) / A),     # three sums
    (A**2 * X + A * X, A + 1),                              # the sum below divides the one above, which is linear in x
])
def test_a_product_of_linear_sums_is_seen(one: Any, other: Any) -> None:
    for top in (one, sympy.expand(one)):
        assert irreducible_quotient(top, other) == sympy.factor(one / other)


@pytest.mark.parametrize(("one", "other"), [
    (A**2 - B**2, A),                                       # not linear
    ((A + B) ** 2 * (C + X), (A + B) * (C + 2)),            # a factor twice
    ((A**2 + A * B + X * B) * (A + X), X),                  # the part with b in it and the rest share a factor
])
def test_a_sum_whose_factors_are_not_seen_is_left_to_sympy(one: Any, other: Any) -> None:
    found = irreducible_quotient(sympy.expand(one), other)
    assert found is None or found == sympy.factor(one / other)


def test_what_is_no_quotient_of_sums_is_not_read() -> None:
    assert irreducible_quotient(A * X + B, B + A * X) == 1
    assert irreducible_quotient(A**2 - B**2, A**2 - B**2) == 1
    assert irreducible_quotient(1 / (A + B), A) is irreducible_quotient(sympy.sqrt(A), B) is None
    assert irreducible_quotient(sympy.log(A) + B, A) is None
    assert irreducible_quotient(A - A, B) is None


def test_a_wrong_test_of_factors_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(irreducible, "_images_coprime", lambda *_: True)
    top, bottom = (A + B) * (C + X), (A + B) * X + A + B
    assert irreducible_quotient(top, bottom) != sympy.factor(top / bottom)


def test_a_division_that_leaves_something_over_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = {(1, 0): 1, (0, 1): 1}, {(2, 0): 1, (0, 2): -1}  # x + y, x² - y²
    assert irreducible._divided(other, one) == {(1, 0): 1, (0, 1): -1}
    assert irreducible._divided({**other, (0, 0): 1}, one) is irreducible._divided(one, other) is None
    assert irreducible._divided({(1, 0): 3, (0, 1): 3}, {(1, 0): 2, (0, 1): 2}) is None


def test_the_quotients_of_costs_are_seen() -> None:
    one, other = (derive(parse_strategy(text), resolve_model("llama-3-8b")) for text in ("zero3*tp_sp", "hsdp*tp_sp"))
    top, bottom = communication(other).total.expr, communication(one).total.expr
    assert irreducible_quotient(top, bottom) is not None
    assert sympy.count_ops(quotient(top, bottom)) > 100
