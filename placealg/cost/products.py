"""Monomials at many sizes at once: products that several of them share are computed once, in memory that is reused.

A name that is arithmetic, such as `Min(m, pp - i)`, has the value of that arithmetic: exact where all of it is whole
and below 2**53, else row by row in fractions, each rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from placealg.arith import Expr, parse

Column = npt.NDArray[np.float64]
Powers = tuple[tuple[str, int], ...]

_EXACT = 2**53

_ONE, _COPY, _INVERSE, _PRODUCT = range(4)


class Products:
    """How monomials, said by their powers, are computed: a row each, in order, then what they share.

    >>> made = Products([(("h", 1),), (("dp", -1), ("h", -1))])
    >>> rows = np.empty((made.rows, 2))
    >>> made.run({"h": np.array([2.0, 4.0]), "dp": np.array([1.0, 2.0])}, list(rows))
    >>> rows[:2].tolist()
    [[2.0, 4.0], [0.5, 0.125]]
    """

    def __init__(self, monomials: Sequence[Powers]):
        self.names: dict[str, None] = {}
        self.steps: list[tuple[int, int, int | str, int | str]] = []
        self.rows = len(monomials)
        self._own = {powers: row for row, powers in enumerate(monomials)}
        self._known: dict[Powers, int | str] = {}
        for row, powers in enumerate(monomials):
            if not powers:
                self.steps.append((_ONE, row, row, row))
            elif isinstance(place := self._product(powers), str):
                self.steps.append((_COPY, row, place, place))

    def _product(self, powers: Powers) -> int | str:
        """Where the value of a product is: a row, or the name of which it is the value."""
        found = self._known.get(powers)
        if found is None:
            found = self._known[powers] = self._made(powers)
        return found

    def _made(self, powers: Powers) -> int | str:
        if len(powers) > 1:
            return self._step(_PRODUCT, powers, self._product(powers[:-1]), self._product(powers[-1:]))
        ((name, power),) = powers
        if power < 0:
            value = self._product(((name, -power),))
            return self._step(_INVERSE, powers, value, value)
        self.names[name] = None
        if power == 1:
            return name
        return self._step(_PRODUCT, powers, self._product(((name, power - 1),)), name)

    def _step(self, kind: int, powers: Powers, one: int | str, other: int | str) -> int:
        row = self._own.get(powers)
        if row is None:
            row, self.rows = self.rows, self.rows + 1
        self.steps.append((kind, row, one, other))
        return row

    def run(self, columns: Mapping[str, Column], rows: Sequence[Column]) -> None:
        """Fill the rows, `self.rows` of them; `columns` have the sizes in the names."""
        values: dict[int | str, Column] = {
            name: columns[name] if name in columns else opaque(name, columns) for name in self.names}
        values.update(enumerate(rows))
        for kind, row, one, other in self.steps:
            if kind == _PRODUCT:
                np.multiply(values[one], values[other], out=rows[row])
            elif kind == _INVERSE:
                np.reciprocal(values[one], out=rows[row])
            elif kind == _COPY:
                np.copyto(rows[row], values[one])
            else:
                rows[row].fill(1.0)


@lru_cache(maxsize=4096)
def _parsed(name: str) -> Expr:
    return parse(name)


def opaque(name: str, columns: Mapping[str, Column]) -> Column:
    """The value of a name that is arithmetic: exact in whole numbers, else row by row in fractions, rounded once."""
    expr = _parsed(name)
    names = expr.names()
    if all(bool((columns[n] == np.rint(columns[n])).all()) for n in names):
        most = {n: float(np.abs(columns[n]).max(initial=0.0)) for n in names}
        try:
            return np.broadcast_to(np.asarray(_whole(expr, columns, most)), columns[names[0]].shape)
        except ArithmeticError:
            pass
    rows = np.stack([columns[n] for n in names])
    distinct, where = np.unique(rows, axis=1, return_inverse=True)
    values = [float(expr.evaluate({n: Fraction(v) for n, v in zip(names, column, strict=True)}))
              for column in distinct.T]
    return np.asarray(values)[where.ravel()]


def _whole(expr: Any, columns: Mapping[str, Column], most: Mapping[str, float]) -> Any:
    """Arithmetic on whole numbers whose every value is whole and below 2**53: exact; else an ArithmeticError."""
    def refuse(*_: Any) -> Any:
        raise ArithmeticError("not whole")

    def divide(one: Any, other: Any) -> Any:
        found = np.rint(one / other)
        return found if np.all(found * other == one) else refuse()

    functions: dict[str, Callable[..., Any]] = {
        "Max": lambda *a: _reduce(np.maximum, a), "Min": lambda *a: _reduce(np.minimum, a), "ceiling": refuse,
        "floor": refuse}
    operations: dict[str, Callable[..., Any]] = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": divide}

    def value(e: Any) -> tuple[Any, float]:
        """The value, and a bound of its magnitude."""
        if e.op == "num":
            found, top = e.value.numerator, abs(float(e.value))
            if e.value.denominator != 1:
                refuse()
        elif e.op == "name":
            found, top = columns[e.value], most[e.value]
        else:
            found, top = applied(e, *zip(*map(value, e.args), strict=True))
        if top >= _EXACT:
            raise ArithmeticError("too large to be exact")
        return found, top

    def applied(e: Any, args: tuple[Any, ...], tops: tuple[float, ...]) -> tuple[Any, float]:
        if e.op == "neg":
            return -args[0], tops[0]
        if e.op == "**":
            return (_reduce(np.multiply, [args[0]] * e.value), tops[0] ** e.value) if e.value > 0 else refuse()
        if e.op in operations:
            top = tops[0] * tops[1] if e.op == "*" else tops[0] if e.op == "/" else tops[0] + tops[1]
            return operations[e.op](*args), top
        return functions[e.op](*args), max(tops)

    return value(expr)[0]


def _reduce(operation: Callable[[Any, Any], Any], arguments: Iterable[Any]) -> Any:
    listed = list(arguments)
    found = listed[0]
    for other in listed[1:]:
        found = operation(found, other)
    return found
