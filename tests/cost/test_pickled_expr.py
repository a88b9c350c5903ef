"""Formulas that are pickled, and read again as they were."""

from __future__ import annotations

import pickle

import pytest
import sympy

from placealg.cost.costs import Costs
from placealg.cost.formula import Formula
from placealg.cost.pickled_expr import made_of, parts_of
from placealg.models.config import resolve_model
from placealg.step.derive import derive
from placealg.strategy.expression import parse_strategy


@pytest.mark.parametrize(("text", "model"), [("zero3*tp_sp", "gpt"), ("zero1*pp_interleaved", "gpt")])
def test_formulas_are_unpickled_as_they_were(text: str, model: str) -> None:
    costs = Costs(derive(parse_strategy(text), resolve_model(model)))
    formulas = {**dict(costs.memory.items()), **costs.named("communication"), **costs.named("schedule")}
    again = pickle.loads(pickle.dumps(formulas))
    assert [f.to_json() for f in again.values()] == [f.to_json() for f in formulas.values()]
    assert all(again[name].expr == f.expr and again[name] == f for name, f in formulas.items())
    assert any(f.expr is not None and f.expr.has(sympy.Max) for f in formulas.values())


def test_what_has_no_closed_form_and_sums_over_ranks_are_unpickled_too() -> None:
    for formula in (Formula.none("bytes", "why"), Formula.parse("Sum(rank, (rank, 0, dp - 1))", "bytes", over=True)):
        again = pickle.loads(pickle.dumps(formula))
        assert (again.expr, again.reason, again.to_json()) == (formula.expr, formula.reason, formula.to_json())


def test_nothing_is_evaluated_again() -> None:
    """SymPy writes 2·(x + y) as a sum where it evaluates, and a Max in a Max as one."""
    x, y = sympy.symbols("x y", positive=True)
    held = sympy.Mul(2, x + y, evaluate=False)
    for expr in (held, sympy.Max(held, sympy.Max(x, 3, evaluate=False), evaluate=False)):
        assert made_of(parts_of(expr)) == expr
        assert len(parts_of(expr).each) == len(set(sympy.preorder_traversal(expr)))
