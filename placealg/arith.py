"""Arithmetic that users write: a whitelist parser, and monomials in named sizes.

Text from files reaches neither `eval` nor `sympify`. A parsed expression is folded over any ring
that the caller brings (Fraction, SymPy, a solver's terms), so each floor reads the same text.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from placealg.errors import InputError, need

FUNCTIONS = ("Max", "Min", "ceiling", "floor")
WHERE = "Where"
OVER = ("Sum", "Largest", WHERE)
"""What may be taken over an index from 0, where a reader allows it: `Sum(body, (k, 0, last))`, and an expression in
which a name stands for a value, or for a function: `Where(body, (x, value))`, `Where(f(2), (f(x), value))`."""
OF = "of"
"""The value of a function that is said in the text itself: its name, and its argument."""

_MAX_TEXT = 20_000
_MAX_DIGITS = 100
_MAX_EXPONENT = 64
_MAX_DEGREE = 4096


@dataclass(frozen=True, slots=True)
class Expr:
    """A parsed expression: a number, a name, or an operator with arguments.

    `op` is one of num, name, +, -, *, /, **, neg, of, and the names in FUNCTIONS and in OVER, which have the name of
    their index for a value, and for arguments what they are taken of and the last index, or what the name stands for;
    the index of a function is (its name, that of its argument).

    >>> parse("2*(dp - 1)/dp").names()
    ('dp',)
    >>> parse("2*(dp - 1)/dp").evaluate({"dp": Fraction(8)})
    Fraction(7, 4)
    """

    op: str
    value: Any = None
    args: tuple[Expr, ...] = ()

    def names(self) -> tuple[str, ...]:
        """The names that occur, sorted, each once."""
        if self.op == "name":
            return (str(self.value),)
        found = [set(a.names()) for a in self.args]
        if self.op in OVER and isinstance(self.value, tuple):
            found[1].discard(self.value[1])
        elif self.op in OVER:
            found[0].discard(str(self.value))
        return tuple(sorted(set().union(*found)))

    def fold(self, number: Callable[[Fraction], Any], name: Callable[[str], Any],
             functions: Mapping[str, Callable[..., Any]] | None = None) -> Any:
        """The value in the ring given by `number`, `name` and the values' own operators.

        `functions` has, beside functions by name, what makes an expression of OVER of (body, last, index, name), where
        body and last take what makes names, and the value of a function of its name and its argument.
        """
        if self.op == "num":
            return number(self.value)
        if self.op == "name":
            return name(self.value)
        if self.op in OVER:
            return (functions or {})[self.op](*(
                lambda inside, a=a: a.fold(number, inside, functions) for a in self.args), self.value, name)
        if self.op == OF:
            return (functions or {})[OF](self.value, self.args[0].fold(number, name, functions))
        args = [a.fold(number, name, functions) for a in self.args]
        if self.op == "neg":
            return -args[0]
        if self.op == "**":
            return args[0] ** self.value
        if self.op in _BINARY:
            return _BINARY[self.op](*args)
        return (functions or _EXACT)[self.op](*args)

    def evaluate(self, sizes: Mapping[str, Fraction | int]) -> Fraction:
        """The exact value at `sizes`; a name without a size and a zero divisor are InputErrors."""
        def look_up(name: str) -> Fraction:
            if name not in sizes:
                raise InputError(f"no value for symbol '{name}'", name=name, valid=sizes)
            return Fraction(sizes[name])
        try:
            return Fraction(self.fold(Fraction, look_up))
        except ZeroDivisionError:
            raise InputError("division by zero") from None


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}
_EXACT: dict[str, Callable[..., Any]] = {
    "Max": max,
    "Min": min,
    "ceiling": lambda x: Fraction(-((-x) // 1)),
    "floor": lambda x: Fraction(x // 1),
}
_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def parse(text: str, known: Iterable[str] | None = None, over: bool = False) -> Expr:
    """Read arithmetic over `known` names (any name when None); everything else is an InputError.

    With `over`, sums and largest values over an index are read, too, and what names in it stand for.

    >>> parse("__import__('os')")
    Traceback (most recent call last):
    placealg.errors.InputError: '__import__' is not a function here; valid: Max, Min, ceiling, floor
    """
    need(text, str, "expression: it is text")
    if len(text) > _MAX_TEXT:
        raise InputError(f"an expression of {len(text)} characters is too long (at most {_MAX_TEXT})")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)
            warnings.simplefilter("error", DeprecationWarning)
            tree = ast.parse(text.strip(), mode="eval")
        return _convert(tree.body, text.strip(), None if known is None else tuple(known), frozenset() if over else None)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"'{_short(text)}' is not arithmetic") from None


def _convert(node: ast.expr, text: str, known: tuple[str, ...] | None, over: frozenset[str] | None) -> Expr:
    """An expression of a tree; `over` are the functions that are said around it, None where none may be."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        digits = repr(node.value)
        if (node.end_col_offset or 0) - node.col_offset != len(digits) or isinstance(node.value, float):
            digits = ast.get_source_segment(text, node) or digits
        power = digits.lower().partition("e")[2] if isinstance(node.value, float) else ""
        if len(digits) > _MAX_DIGITS or abs(int(power or 0)) > _MAX_DIGITS:
            raise InputError(f"the number {_short(digits)} is too long")
        return Expr("num", Fraction(digits))
    if isinstance(node, ast.Name):
        if known is not None and node.id not in known:
            raise InputError(f"unknown symbol '{node.id}'", name=node.id, valid=known)
        return Expr("name", node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return Expr("neg", None, (_convert(node.operand, text, known, over),))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        exponent = _convert(node.right, text, known, over)
        value = exponent.evaluate({}) if not exponent.names() else None
        if value is None or value.denominator != 1 or abs(value) > _MAX_EXPONENT:
            raise InputError(f"the exponent in '{_short(text)}' is not a small whole number")
        base = _convert(node.left, text, known, over)
        if _degree(base) * abs(value) > _MAX_DEGREE:
            raise InputError(f"the powers in '{_short(text)}' are too high")
        return Expr("**", int(value), (base,))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return Expr(_OPERATORS[type(node.op)], None,
                    (_convert(node.left, text, known, over), _convert(node.right, text, known, over)))
    if over is not None and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OVER:
        return _over(node, node.func.id, text, known, over)
    if over and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in over and (
            len(node.args) == 1 and not node.keywords):
        return Expr(OF, node.func.id, (_convert(node.args[0], text, known, over),))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id not in FUNCTIONS:
            raise InputError(f"'{node.func.id}' is not a function here",
                             name=node.func.id, valid=FUNCTIONS)
        if not node.args:
            raise InputError(f"'{node.func.id}' needs an argument")
        return Expr(node.func.id, None, tuple(_convert(a, text, known, over) for a in node.args))
    raise InputError(f"'{_short(text)}' is not arithmetic")


def _over(node: ast.Call, name: str, text: str, known: tuple[str, ...] | None, over: frozenset[str]) -> Expr:
    """A sum or a largest value: of what, and the index with its first, which is 0, and its last; or a name's value."""
    def scope(index: str) -> tuple[str, ...] | None:
        return known if known is None else (*known, index)

    match node.args:
        case [body, ast.Tuple(elts=[ast.Name(id=index), *first, last])] if not node.keywords and (
                not first if name == WHERE else [getattr(f, "value", None) for f in first] == [0]):
            return Expr(name, index, (_convert(body, text, scope(index), over), _convert(last, text, known, over)))
        case [body, ast.Tuple(elts=[ast.Call(func=ast.Name(id=made), args=[ast.Name(id=index)], keywords=[]), value])
              ] if not node.keywords and name == WHERE and made not in (*FUNCTIONS, *OVER):
            return Expr(name, (made, index), (_convert(body, text, known, over | {made}),
                                              _convert(value, text, scope(index), over)))
    if name == WHERE:
        raise InputError(f"{name} is an expression and a name with its value: {name}(k*h, (k, h - 1))")
    raise InputError(f"{name} is taken of an expression over an index from 0: {name}(k*h, (k, 0, last))")


def _degree(expr: Expr) -> int:
    if expr.op == "**":
        return abs(int(expr.value)) * _degree(expr.args[0])
    degrees = [_degree(a) for a in expr.args] or [1]
    return sum(degrees) if expr.op in "*/" else max(degrees)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


_UNIT = Fraction(1)
"""The coefficient of most monomials: `is` tells it, which is faster than an arithmetic of fractions."""


@dataclass(frozen=True, slots=True)
class Monomial:
    """A rational coefficient times named powers, canonical on construction.

    >>> Monomial.of("dp") * Monomial.of("m") / Monomial.of("dp")
    m
    >>> Monomial.parse("dp_replicate*dp_shard/2")
    dp_replicate*dp_shard/2
    """

    coefficient: Fraction = _UNIT
    powers: tuple[tuple[str, int], ...] = ()

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(*names: str) -> Monomial:
        """The product of `names`, each to the first power."""
        product = Monomial()
        for name in names:
            product = product * Monomial(_UNIT, ((name, 1),))
        return product

    @staticmethod
    def product(factors: Iterable[Monomial]) -> Monomial:
        """The product of monomials."""
        result = Monomial()
        for factor in factors:
            result = result * factor
        return result

    @staticmethod
    def number(value: int | Fraction) -> Monomial:
        """A constant."""
        return Monomial(Fraction(value))

    @staticmethod
    def parse(text: str, known: Iterable[str] | None = None) -> Monomial:
        """Read a quotient of monomials; sums and functions are InputErrors."""
        try:
            value = parse(text, known).fold(Monomial.number, Monomial.of, {})
        except (TypeError, KeyError):
            raise InputError(f"'{_short(text)}' is not a quotient of products of symbols") from None
        except ZeroDivisionError:
            raise InputError(f"'{_short(text)}' divides by zero") from None
        assert isinstance(value, Monomial)
        return value

    def __mul__(self, other: Monomial) -> Monomial:
        one, two = self.coefficient, other.coefficient
        coefficient = two if one is _UNIT else one if two is _UNIT else one * two
        if not self.powers or not other.powers:
            return Monomial(coefficient, self.powers or other.powers)
        powers = dict(self.powers)
        for name, power in other.powers:
            powers[name] = powers.get(name, 0) + power
        return Monomial(coefficient, tuple(sorted((n, p) for n, p in powers.items() if p)))

    def __truediv__(self, other: Monomial) -> Monomial:
        return self * other**-1

    def __pow__(self, exponent: int) -> Monomial:
        coefficient = _UNIT if self.coefficient is _UNIT else self.coefficient**exponent
        return Monomial(coefficient, tuple((n, p * exponent) for n, p in self.powers) if exponent else ())

    def __hash__(self) -> int:
        return hash(self.powers)

    def names(self) -> tuple[str, ...]:
        """The names that occur, sorted."""
        return tuple(n for n, _ in self.powers)

    def evaluate(self, sizes: Mapping[str, Fraction | int]) -> Fraction:
        """The exact value at `sizes`."""
        value = self.coefficient
        for name, power in self.powers:
            if name not in sizes:
                raise InputError(f"no value for symbol '{name}'", name=name, valid=sizes)
            value *= Fraction(sizes[name]) ** power
        return value

    def __str__(self) -> str:
        top = [f"{n}**{p}" if p > 1 else n for n, p in self.powers if p > 0]
        bottom = [f"{n}**{-p}" if p < -1 else n for n, p in self.powers if p < 0]
        if self.coefficient.numerator != 1 or not top:
            top.insert(0, str(self.coefficient.numerator))
        if self.coefficient.denominator != 1:
            bottom.insert(0, str(self.coefficient.denominator))
        text = "*".join(top)
        if not bottom:
            return text
        return f"{text}/{bottom[0]}" if len(bottom) == 1 else f"{text}/({'*'.join(bottom)})"

    __repr__ = __str__


ONE = Monomial()
