"""The connectives of a formula, as Z3's Python interface has them, at a tenth of their cost.

`z3.And`, `z3.Or` and `z3.Not` look for the sort of each operand several times, for operands that may be numbers or
Python's own booleans. Here operands are formulas already, and a proof makes thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import z3

Bool = Any


def and_(*formulas: Bool | Iterable[Bool]) -> Bool:
    """All of the formulas, given one by one or as one iterable, as `z3.And` takes them.

    >>> and_(z3.Bool("a"), z3.Bool("b")), and_([])
    (And(a, b), And)
    """
    return _joined(z3.Z3_mk_and, formulas)


def or_(*formulas: Bool | Iterable[Bool]) -> Bool:
    """At least one of the formulas, given one by one or as one iterable, as `z3.Or` takes them.

    >>> or_([z3.Bool("a"), not_(z3.Bool("b"))])
    Or(a, Not(b))
    """
    return _joined(z3.Z3_mk_or, formulas)


def not_(formula: Bool) -> Bool:
    """The formula does not hold."""
    return z3.BoolRef(z3.Z3_mk_not(formula.ctx_ref(), formula.as_ast()), formula.ctx)


def substituted(formula: Bool, places: Sequence[tuple[Any, Any]]) -> Bool:
    """The formula with the second of each pair of integer terms in place of the first, all at once.

    >>> a, b = z3.Ints("a b")
    >>> substituted(a < b, [(a, b), (b, a)])
    b < a
    """
    olds, news = ((z3.Ast * len(places))(*(pair[k].as_ast() for pair in places)) for k in (0, 1))
    made = z3.Z3_substitute(formula.ctx_ref(), formula.as_ast(), len(places), olds, news)
    return z3.BoolRef(made, formula.ctx)


def _joined(make: Callable[..., Any], formulas: tuple[Any, ...]) -> Bool:
    parts = list(formulas[0]) if len(formulas) == 1 and not z3.is_expr(formulas[0]) else list(formulas)
    context = parts[0].ctx if parts else z3.main_ctx()
    return z3.BoolRef(make(context.ref(), len(parts), (z3.Ast * len(parts))(*(p.as_ast() for p in parts))), context)
