"""Names in formulas: they read back as they are printed, mean the same in Python, and are refused if they are wrong."""

from __future__ import annotations

import pytest
import sympy

from placealg.cost.bindings import Bindings
from placealg.cost.expressions import symbol
from placealg.cost.formula import Formula
from placealg.cost.indices import Of, index_of, summed
from placealg.errors import InputError


@pytest.mark.parametrize(("text", "value"), [
    ("Where(k*h + k, (k, ceiling(h/dp)))", 24), ("Where(f(h) + f(2*h), (f(place), Min(place, dp)))", 6),
    ("Sum(Where(f(rank) + rank, (f(place), place*h)), (rank, 0, dp - 1))*Where(k, (k, h))", 168),
    ("Where(Where(g(f(dp)), (g(k), f(k) + 1)), (f(k), k*h))", 148)])
def test_names_mean_what_is_said_around_them(text: str, value: int) -> None:
    told = Formula.parse(text, "bytes", over=True)
    made: dict[str, object] = {}
    exec(told.python("told"), made)
    assert told.value(h=7, dp=3) == made["told"](h=7, dp=3) == value  # type: ignore[operator]
    assert Formula.from_json(told.to_json()).expr == told.expr


@pytest.mark.parametrize(("text", "told"), [
    ("Where(k, (k, 0, 3))", "Where is an expression and a name with its value"),
    ("Where(k)", "Where is an expression and a name with its value"),
    ("Where(f(2), (f(h, dp), h))", "Where is an expression and a name with its value"),
    ("Where(f(2), (Max(h), h))", "Where is an expression and a name with its value"),
    ("f(2)", "'f' is not a function here"),
    ("Where(f(2), (f(h), f(h)))", "'f' is not a function here"),
    ("Sum(k, (k, 3))", "Sum is taken of an expression over an index from 0")])
def test_other_words_are_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told.replace("(", r"\(")):
        Formula.parse(text, "bytes", over=True)


def test_a_name_may_depend_on_the_index_of_a_sum() -> None:
    known, rank = Bindings(("dp",)), symbol("rank")
    name = known.named("k_dp", sympy.floor(rank / 2))
    function = known.function("to", index_of("length"), name * index_of("length"))
    told = summed(known.around(Of(function, symbol("h")) + symbol("h")), rank, symbol("dp"))
    assert Formula(told, "bytes").value(h=5, dp=4) == 4 * 5 + 2 * 5
    assert known.speaks_of(Of(function, symbol("h")), rank) and not known.speaks_of(symbol("h"), rank)


def test_a_quotient_by_a_product_is_rounded_in_python_as_it_is_here() -> None:
    told = Formula.parse("ceiling(h/(dp*tp)) + floor(h/(dp + tp))", "bytes")
    made: dict[str, object] = {}
    exec(told.python("told"), made)
    assert made["told"](h=25, dp=2, tp=3) == told.value(h=25, dp=2, tp=3) == 10  # type: ignore[operator]
