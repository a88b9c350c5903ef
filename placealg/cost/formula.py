"""Formula: a closed form with a unit and a convention, exact in every size.

All symbols are positive; sizes are integers. Two formulas are equal if their difference cancels.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, overload

import sympy

from placealg.arith import parse
from placealg.cost.algebra import POINTS, agree, at_point, equal, limit, quotient, tidy
from placealg.cost.expressions import Size, exact_size, expression, rational, symbol
from placealg.cost.indices import valued
from placealg.cost.notation import latex_lines, latex_name, latex_of, python_extremes, python_of, text_of
from placealg.cost.pickled_expr import packed, unpickled
from placealg.errors import InputError, need
from placealg.frozen import FrozenMap
from placealg.mesh import SYMBOLS, Axis, meant_size

if TYPE_CHECKING:
    from placealg.cost.arrays import Column
    from placealg.cost.divisibility import Divides

UNITS = ("bytes", "elements", "flop", "s", "time", "1")
CONVENTIONS = ("exact", "asymptotic")

HIGHEST = 8
"""The least power of a size that is too high for a formula's leading term."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Formula:
    """A SymPy expression with its unit, its convention, and the default values of its symbols.

    If `expr` is None there is no closed form, and `reason` says why. `note` says what a reader must know, such as which
    unit is the largest. `axes` are the mesh axes, which may be bound though absent from `expr`. `defined` has the
    definitions of symbols such as Psi in other sizes, for symbols that have no value themselves. `rules` refuse sizes
    that do not divide what a strategy splits: those of which the formula was made. Where the first of a pair of `where`
    is larger than the second, no value is claimed.

    >>> volume = Formula.parse("3*Psi*(dp - 1)/dp", "elements")
    >>> volume.ratio(Formula.parse("2*Psi*(dp - 1)/dp", "elements"))
    3/2
    >>> volume.value(Psi=8, dp=4), volume.limit("dp")
    (18, 3·Ψ elements)
    >>> volume + Formula.parse("w*Psi", "bytes")
    Traceback (most recent call last):
    placealg.errors.InputError: cannot add bytes to elements
    """

    expr: Any
    unit: str
    convention: str = "exact"
    values: FrozenMap[str, Fraction] = FrozenMap()
    reason: str = ""
    note: str = field(default="", compare=False)
    axes: tuple[str, ...] = field(default=(), compare=False)
    defined: FrozenMap[str, Any] = field(default=FrozenMap(), compare=False)
    rules: tuple[Divides, ...] = field(default=(), compare=False)
    where: tuple[tuple[Any, Any], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InputError(f"unknown unit '{self.unit}'", name=self.unit, valid=UNITS)
        if self.convention not in CONVENTIONS:
            raise InputError(f"unknown convention '{self.convention}'", name=self.convention, valid=CONVENTIONS)

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, (Formula, {f.name: packed(getattr(self, f.name)) for f in fields(self)})

    @staticmethod
    def parse(text: str, unit: str, convention: str = "exact", symbols: Iterable[str] | None = None,
              values: Mapping[str, Fraction | int] | None = None, over: bool = False) -> Formula:
        """Read arithmetic over `symbols` (default: the table's symbols, and names of mesh axes); with `over`, sums."""
        axes = tuple(n for n in parse(text, symbols, over).names() if n not in SYMBOLS and not (over and n == "rank"))
        if symbols is None:
            for name in axes:
                Axis(name)
        expr = expression(text, symbols, over=over)
        if expr.has(sympy.zoo, sympy.nan, sympy.oo):
            raise InputError(f"'{text}' divides by zero")
        return Formula(expr, unit, convention, FrozenMap({k: Fraction(v) for k, v in (values or {}).items()}),
                       axes=axes)

    @staticmethod
    def none(unit: str, reason: str) -> Formula:
        """A formula without a closed form, with the reason."""
        return Formula(None, unit, reason=reason)

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols that occur, in the order of the symbol table, axes last."""
        return () if self.expr is None else _names(self.expr)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The symbols on which the value depends: those that occur, and those in their definitions and in `where`."""
        more = (n for name in self.names if name in self.defined for n in _names(self.defined[name]))
        return tuple(dict.fromkeys((*self.names, *more, *(n for a, b in self.where for n in _names(a - b)))))

    def subs(self, **sizes: Size) -> Formula:
        """The formula with `sizes` bound; an unknown symbol or an invalid size is an InputError."""
        bound = self._bind(sizes)
        self._check(bound)
        if self.expr is None:
            return self
        to = {symbol(n): rational(v) for n, v in bound.items()}
        return replace(self, expr=self.expr.subs(to), values=self.values.plus(bound))

    @overload
    def value(self, **sizes: Size) -> int | Fraction | None: ...

    @overload
    def value(self, **sizes: Size | Column) -> Any: ...

    def value(self, **sizes: Any) -> Any:
        """The exact value at `sizes` and the defaults; if some sizes are numpy arrays, an array of doubles.

        None if the formula divides by zero, if there is no closed form, and where `where` says so; an array has nan
        there. Sizes that do not divide what a strategy splits are an InputError, and so is a size that nobody says.
        """
        if self.expr is not None and any(hasattr(size, "__array__") for size in sizes.values()):
            from placealg.cost.arrays import at

            self._bind(dict.fromkeys(sizes, 1))
            for rule in self.rules:
                rule.check_arrays({**self.values, **sizes})
            return at(self, sizes)
        found = self.if_known(**sizes)
        bound = {**self.values, **self._bind(sizes)}
        if found is None and self.expr is not None and self._claimed(bound) and (open_ := self._open(bound)):
            listed = f"{', '.join(open_[:-1])} and {open_[-1]} are" if len(open_) > 1 else f"{open_[0]} is"
            raise InputError(f"{listed} open: say value({', '.join(f'{name}=...' for name in open_)}), or .text() for "
                             "the formula")
        return found

    def if_known(self, **sizes: Size) -> int | Fraction | None:
        """`value`, but None while a size is open."""
        bound = {**self.values, **self._bind(sizes)}
        self._check(bound)
        if self.expr is None or not self._claimed(bound) or self._open(bound):
            return None
        exact = valued(self._defined(bound), bound)
        return exact if exact is None or exact.denominator != 1 else exact.numerator

    def _open(self, bound: Mapping[str, Fraction]) -> list[str]:
        """The sizes that are neither said nor follow."""
        return [n for n in _names(self._defined(bound)) if n not in bound]

    def _defined(self, bound: Mapping[str, Fraction]) -> Any:
        assert self.expr is not None
        return self.expr.xreplace({symbol(n): to for n, to in self.defined.items() if n not in bound})

    def amounts(self, sizes: Mapping[str, Size]) -> dict[str, int | Fraction]:
        """The values of defined symbols that occur and are not bound, if `sizes` and the defaults determine them."""
        found = {}
        for name in (n for n in self.names if n in self.defined and n not in {**self.values, **sizes}):
            value = replace(self, expr=self.defined[name], defined=FrozenMap()).if_known(
                **{n: v for n, v in sizes.items() if n in _names(self.defined[name])})
            if value is not None:
                found[name] = value
        return found

    def _bind(self, sizes: Mapping[str, Size]) -> dict[str, Fraction]:
        known = (*self.names, *self.axes, *SYMBOLS)
        bound = {}
        for name, size in sizes.items():
            need(name, str, "name of a size")
            if name not in known:
                raise InputError(f"unknown symbol '{name}'", name=name, valid=dict.fromkeys(known),
                                 near=meant_size(name, known))
            bound[name] = exact_size(name, size)
        return bound

    def _check(self, bound: Mapping[str, Fraction]) -> None:
        for rule in self.rules:
            rule.check({**self.values, **bound})

    def _claimed(self, bound: Mapping[str, Fraction]) -> bool:
        """Whether no pair of `where`, of which the first is at most the second, is known to be the other way round."""
        known = {symbol(n): rational(v) for n, v in bound.items()}
        return not any((less - more).xreplace(known).is_positive for less, more in self.where)

    def __add__(self, other: Formula) -> Formula:
        return self._join(other, "add", lambda a, b: tidy(a + b))

    def __sub__(self, other: Formula) -> Formula:
        return self._join(other, "subtract", lambda a, b: tidy(a - b))

    def tidied(self) -> Formula:
        """The same formula in the shorter of its forms, since a difference may have a short one."""
        return self if self.expr is None else replace(self, expr=tidy(sympy.factor(self.expr)))

    def shortest(self) -> Formula:
        """The shorter of two tidied forms: as it is, and with symbols such as Psi replaced by their definitions."""
        if self.expr is None:
            return self
        whole = self.expr.xreplace({symbol(n): to for n, to in self.defined.items()})
        return min(self.tidied(), replace(self, expr=whole).tidied(), key=lambda form: len(form.text()))

    def falls(self) -> bool:
        """Whether the value is negative at all of a few sizes that are tried; False if there is no value.

        >>> Formula.parse("w*(1 - dp)", "bytes").falls(), Formula.parse("w*(3 - dp)", "bytes").falls()
        (True, False)
        """
        tried = [self.if_known(**{n: size for n in self.inputs
                               if n not in self.values and n not in self.defined}) for size in (2, 4, 12)]
        return all(value is not None and value < 0 for value in tried)

    def __mul__(self, factor: int | Fraction) -> Formula:
        need(factor, (int, Fraction, float), "factor of a formula")
        return self if self.expr is None else replace(self, expr=self.expr * rational(Fraction(factor)))

    __rmul__ = __mul__

    def _join(self, other: Formula, verb: str, operation: Any) -> Formula:
        need(other, Formula, "formula")
        if self.unit != other.unit:
            word = "to" if verb == "add" else "from"
            raise InputError(f"cannot {verb} {other.unit} {word} {self.unit}")
        convention = "asymptotic" if "asymptotic" in (self.convention, other.convention) else "exact"
        values, axes = self.values.plus(other.values), tuple(dict.fromkeys((*self.axes, *other.axes)))
        if self.expr is None or other.expr is None:
            return Formula(None, self.unit, convention, values, self.reason or other.reason, axes=axes)
        rules = tuple(dict.fromkeys((*self.rules, *other.rules)))
        note = "; ".join(dict.fromkeys(n for n in (self.note, other.note) if n))
        return Formula(operation(self.expr, other.expr), self.unit, convention, values, note=note, axes=axes,
                       defined=self.defined.plus(other.defined), rules=rules, where=(*self.where, *other.where))

    def ratio(self, other: Formula) -> Formula:
        """The quotient of the formula and `other`, of the same unit, as a number of unit 1."""
        need(other, Formula, "formula")
        if self.unit != other.unit:
            raise InputError(f"the ratio of {self.unit} to {other.unit} has no meaning here")
        if other.expr is not None and other.expr.is_zero:
            return replace(self, expr=None, unit="1", reason="the divisor is zero", note="")
        return replace(self._join(other, "divide", quotient), unit="1")

    def limit(self, name: str) -> Formula:
        """The limit as the size `name` grows without bound."""
        self._bind({name: 1})
        if self.expr is None:
            return self
        found = limit(self.expr, symbol(name))
        if found is None:
            return replace(self, expr=None, reason=f"grows without bound in {name}", note="")
        return replace(self, expr=tidy(found))

    def leading(self, name: str) -> Formula:
        """The term that grows fastest with a size; an InputError if it outgrows every power tried.

        >>> Formula.parse("b*s*h*(34 + 5*a*s/h)", "bytes").leading("s")
        5·b·s²·a bytes
        """
        formula = self.written_out()
        if formula.expr is None:
            return formula
        for power in range(HIGHEST):
            limit = replace(formula, expr=_over(formula.expr, symbol(name) ** power)).limit(name)
            if limit.expr is not None:
                return replace(formula, expr=tidy(limit.expr * symbol(name) ** power), note="")
        raise InputError(f"{formula} grows faster with {name} than any power up to {HIGHEST - 1}")

    def per(self, name: str) -> Formula:
        """The increase if a size grows by one.

        >>> Formula.parse("L*(w + g)*h**2 + V*h*w", "bytes").per("L")
        h²·(w + g) bytes
        """
        formula = self.written_out()
        if name not in formula.names:
            formula.limit(name)  # refuses a name that stands for nothing
        if formula.expr is None:
            return formula
        size = symbol(name)
        grown_by = formula.expr.xreplace({size: size + 1}).expand() - formula.expr.expand()
        return replace(formula, expr=tidy(grown_by), note="")

    def written_out(self) -> Formula:
        """The self with named amounts, such as all parameters, written in sizes of the model."""
        if self.expr is None or not self.defined:
            return self
        defined = {symbol(name): expr for name, expr in self.defined.items()}
        return replace(self, expr=self.expr.xreplace(defined), defined=FrozenMap())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Formula) or self.unit != other.unit:
            return False
        if self.expr is None or other.expr is None:
            return self.expr is other.expr
        return bool(self.expr == other.expr or (agree(self.expr, other.expr) and equal(self.expr, other.expr)))

    def __hash__(self) -> int:
        """The hash of the value at two points, since equal formulas may be written in many ways."""
        return hash((self.unit, None if self.expr is None else tuple(at_point(self.expr, point) for point in POINTS)))

    def text(self) -> str:
        """The formula in readable unicode, without its unit; "" if there is none.

        >>> Formula.parse("3*Psi*(dp - 1)/dp", "elements").text()
        '3·Ψ·(dp − 1)/dp'
        """
        return "" if self.expr is None else text_of(self.expr)

    def __repr__(self) -> str:
        if self.expr is None:
            return f"none ({self.reason})"
        return self.text() if self.unit == "1" else f"{self.text()} {self.unit}"

    __str__ = __repr__

    def latex(self) -> str:
        r"""The formula in LaTeX, without its unit.

        >>> print(Formula.parse("w*Psi/dp", "bytes").latex())
        \frac{\Psi w}{N_{\mathrm{dp}}}
        """
        if self.expr is None:
            return rf"\text{{none: {self.reason}}}"
        return latex_of(self.expr, {symbol(n): latex_name(n) for n in self.names})

    def latex_lines(self) -> list[str]:
        """The formula in LaTeX, in lines that fit on a page, for an `align*`."""
        if self.expr is None:
            return [self.latex()]
        return latex_lines(self.expr, {symbol(n): latex_name(n) for n in self.names})

    def _repr_latex_(self) -> str:
        unit = "" if self.unit == "1" or self.expr is None else rf"\ \text{{{self.unit}}}"
        return f"${self.latex()}{unit}$"

    def markdown(self) -> str:
        """The formula as Markdown with inline mathematics, followed by its unit."""
        if self.expr is None:
            return f"none ({self.reason})"
        return f"${self.latex()}$" + ("" if self.unit == "1" else f" {self.unit}")

    def python(self, name: str = "formula") -> str:
        """A standalone Python function of the formula's symbols, with their defaults; exact for fractions.

        It takes numpy arrays as it takes numbers, and gives an array then.

        >>> print(Formula.parse("w*Psi/dp", "bytes", values={"w": 2}).python("weights"))
        def weights(Psi: float, dp: float, w: float = 2) -> float:
            \"\"\"bytes, exact.\"\"\"
            return Psi*w/dp
        """
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise InputError(f"{name!r} is no name of a function")
        if self.expr is None:
            return f"def {name}() -> None:\n    \"\"\"none: {self.reason}.\"\"\"\n    return None"
        spelled = {n: n + "_" if keyword.iskeyword(n) else n for n in self.names}
        named = self.expr.xreplace({symbol(n): sympy.Symbol(s, positive=True) for n, s in spelled.items() if n != s})
        free = [f"{spelled[n]}: float" for n in self.names if n not in self.values]
        bound = [f"{spelled[n]}: float = {_literal(self.values[n])}" for n in self.names if n in self.values]
        claimed = " and ".join(f"{python_of(less)} <= {python_of(more)}" for less, more in self.where)
        said = f"{self.unit}, {self.convention}" + f"; claimed only where {claimed}" * bool(claimed)
        return (f"def {name}({', '.join(free + bound)}) -> float:\n"
                f'    """{said}."""\n{python_extremes(named)}    return {python_of(named)}')

    def to_json(self, **sizes: Size) -> dict[str, Any]:
        """The leaf `{expr, unit, value}`, with `reason` if there is no expression; the value is at `sizes`."""
        if self.expr is None:
            return {"expr": None, "unit": self.unit, "value": None, "reason": self.reason}
        value = self.if_known(**sizes)
        leaf = {"expr": str(self.expr), "unit": self.unit, "value": None if value is None else json_number(value)}
        return {**leaf, "note": self.note} if self.note else leaf

    @staticmethod
    def from_json(leaf: Mapping[str, Any], symbols: Iterable[str] | None = None,
                  convention: str = "exact") -> Formula:
        """The formula of a leaf, read over the listed `symbols` only."""
        text, unit = leaf.get("expr"), leaf.get("unit")
        if not isinstance(unit, str) or not isinstance(text, str | None):
            raise InputError("a formula is an object with 'expr' (text or null) and 'unit'")
        if text is None:
            return Formula.none(unit, str(leaf.get("reason", "")))
        return replace(Formula.parse(text, unit, convention, symbols, over=True), note=str(leaf.get("note", "")))


def json_number(value: int | Fraction) -> int | float:
    """The number as JSON writes it: an integer where it is one, else the decimals of the nearest double.

    >>> json_number(Fraction(8)), json_number(Fraction(5, 2)), json_number(Fraction(1, 3))
    (8, 2.5, 0.3333333333333333)
    """
    return int(value) if value.denominator == 1 else float(value)


def _names(expr: Any) -> tuple[str, ...]:
    """The names of an expression's symbols, in the order of the symbol table, axes last."""
    order = {n: k for k, n in enumerate(SYMBOLS)}
    return tuple(sorted((s.name for s in expr.free_symbols), key=lambda n: (order.get(n, len(order)), n)))


def _literal(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def _over(expr: Any, power: Any) -> Any:
    """An expression over a power of a positive size, divided term by term inside maxima and sums."""
    if isinstance(expr, sympy.Add | sympy.Max | sympy.Min):
        return expr.func(*(_over(part, power) for part in expr.args))
    if isinstance(expr, sympy.Mul):
        parts = [part for part in expr.args if isinstance(part, sympy.Max | sympy.Min)]
        if parts:
            return expr / parts[0] * _over(parts[0], power)
    return expr / power
