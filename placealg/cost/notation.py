"""How formulas are written: readable unicode, Python, and the LaTeX names of the symbol table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import sympy
from sympy.printing.latex import LatexPrinter

from placealg.mesh import SYMBOLS, axis_symbol

ORDER = {name: k for k, name in enumerate(SYMBOLS)}
"""The place of each symbol of the table; axes come after all of them."""

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_GREEK = {"Psi": "Ψ", "Psi_unit": "Ψ_unit"}
_OVER = {"Sum": "Σ", "Largest": "max"}
_WHERE, _OF = "Where", "Of"
_SPELLED = {"ceiling": "⌈{}⌉", "floor": "⌊{}⌋", "Max": "max({})", "Min": "min({})"}


def latex_name(name: str) -> str:
    r"""The LaTeX of a symbol: the table's, or that of a mesh axis.

    >>> print(latex_name("Psi"), latex_name("dp"))
    \Psi N_{\mathrm{dp}}
    """
    return (SYMBOLS[name].latex or name) if name in SYMBOLS else axis_symbol(name).latex


@lru_cache(maxsize=4096)
def text_of(expr: Any) -> str:
    """The expression in unicode, its terms and factors in the order of the symbol table.

    >>> text_of(2 * sympy.Symbol("Psi") ** 2 / (sympy.Symbol("dp") + 1))
    '2·Ψ²/(dp + 1)'
    """
    if expr.is_Symbol:
        return str(_GREEK.get(expr.name, expr.name))
    if expr.is_Add:
        return _sum(expr)
    if expr.is_Mul or (expr.is_Pow and expr.exp.is_negative):
        return _quotient(expr)
    if expr.is_Pow:
        return _atom(expr.base) + str(expr.exp).translate(_SUPERSCRIPT)
    if type(expr).__name__ in _SPELLED:
        return _SPELLED[type(expr).__name__].format(", ".join(sorted(text_of(a) for a in expr.args)))
    if type(expr).__name__ == _OF:
        return f"{expr.args[0]}({text_of(expr.args[1])})"
    if type(expr).__name__ == _WHERE:
        named = []
        while type(expr).__name__ == _WHERE:
            named.append(f"{text_of(expr.named)} = {text_of(expr.last)}")
            expr = expr.body
        return f"({text_of(expr)}, where {', '.join(named)})"
    if type(expr).__name__ in _OVER:
        return f"{_OVER[type(expr).__name__]}[{expr.index} < {text_of(expr.last + 1)}] {_atom_of_sum(expr.body)}"
    return str(expr).replace("-", "−")


def _ordered(terms: Iterable[Any], first: Callable[[Any], tuple[bool, ...]]) -> list[Any]:
    """Terms by what comes first, then by the places of their symbols; by their text only where these are the same."""
    listed = list(terms)
    keys = [(*first(term), *_places(term)) for term in listed]
    alike = {key for key, times in Counter(keys).items() if times > 1}
    texts = [str(term) if key in alike else "" for key, term in zip(keys, listed, strict=True)]
    return [listed[k] for k in sorted(range(len(listed)), key=lambda k: (keys[k], texts[k]))]


@lru_cache(maxsize=4096)
def _places(term: Any) -> tuple[bool, tuple[tuple[int, str], ...]]:
    places = sorted((ORDER.get(s.name, len(ORDER)), s.name) for s in term.free_symbols)
    return not places, tuple(places)


def in_terms(expr: Any) -> list[tuple[bool, Any]]:
    """The terms of a sum in the order in which they are written: (whether it is subtracted, the term)."""
    ordered = _ordered(sympy.Add.make_args(expr), lambda t: (bool(t.could_extract_minus_sign()),))
    return [(True, -term) if term.could_extract_minus_sign() else (False, term) for term in ordered]


def in_factors(expr: Any) -> list[Any]:
    """The factors of a product in the order in which they are written."""
    return _ordered(sympy.Mul.make_args(expr), lambda f: (not f.is_number, bool(f.is_Add)))


def _sum(expr: Any) -> str:
    text = ""
    for minus, term in in_terms(expr):
        sign = (" − " if minus else " + ") if text else ("−" if minus else "")
        text += sign + text_of(term)
    return text


def _quotient(expr: Any) -> str:
    if expr.could_extract_minus_sign():
        return f"−{text_of(-expr)}"
    top, bottom = sympy.fraction(expr, exact=True)
    text = _product(top)
    if bottom == 1:
        return text
    below = _product(bottom)
    return f"{text}/({below})" if bottom.is_Mul else f"{text}/{below}"


def _product(expr: Any) -> str:
    return "·".join(_atom(f) if type(f).__name__ in _OVER else _atom_of_sum(f) for f in in_factors(expr))


def _atom_of_sum(expr: Any) -> str:
    return _atom(expr) if expr.is_Add else text_of(expr)


def _atom(expr: Any) -> str:
    return text_of(expr) if expr.is_Symbol or expr.is_Integer else f"({text_of(expr)})"


EXTREMES = {"Max": ("largest", ">=", "<"), "Min": ("smallest", "<=", ">")}
"""Extreme -> its function in Python, which takes arrays as it takes numbers; what one of two is to the other if it is
that, and what if the other is."""


def python_extremes(expr: Any) -> str:
    """The local functions that `python_of(expr)` calls: of numbers, fractions and arrays, exact as these are."""
    kinds = {type(part).__name__ for part in sympy.preorder_traversal(expr)}
    return "".join(f"    def {name}(first: float, *others: float) -> float:\n        for other in others:\n"
                   f"            first = (first {one} other)*first + (first {two} other)*other\n"
                   "        return first\n"
                   for kind, (name, one, two) in EXTREMES.items() if kind in kinds)


def python_of(expr: Any) -> str:
    """The expression in Python, exact for fractions of sizes: no literal is divided by another.

    >>> h, tp = sympy.symbols("h tp")
    >>> python_of(3 * h / 2 + sympy.ceiling(h / tp) - 1)
    '3*h/2 + (-(-h // tp)) - 1'
    """
    kind = type(expr).__name__
    if expr.is_Symbol or (expr.is_Integer and expr >= 0):
        return str(expr)
    if expr.is_Add and any(term.is_Rational and not term.is_Integer for term in expr.args):
        return python_of(sympy.together(expr))
    if expr.is_Add or expr.could_extract_minus_sign():
        text = ""
        for minus, term in in_terms(expr):
            sign = (" - " if minus else " + ") if text else ("-" if minus else "")
            text += sign + (f"({python_of(term)})" if minus and term.is_Add else python_of(term))
        return text
    if kind in EXTREMES:
        return f"{EXTREMES[kind][0]}({', '.join(sorted(map(python_of, expr.args)))})"
    if kind == _OF:
        return f"{expr.args[0]}({python_of(expr.args[1])})"
    if kind == _WHERE:
        value = python_of(expr.last)
        return (f"(lambda {expr.index}: {python_of(expr.body)})"
                f"({value if expr.place is None else f'lambda {expr.place}: {value}'})")
    if kind in _OVER:
        return (f"{'sum' if kind == 'Sum' else 'max'}({python_of(expr.body)} "
                f"for {expr.index} in range({python_of(expr.last + 1)}))")
    if kind in ("ceiling", "floor"):
        whole, part = sympy.fraction(sympy.together(expr.args[0]))
        top, bottom = _python_product(whole), f"({_python_product(part)})" if part.is_Mul else _python_atom(part)
        return f"({top} // {bottom})" if kind == "floor" else f"(-(-{top} // {bottom}))"
    top, bottom = sympy.fraction(expr, exact=True)
    if bottom != 1:
        below = _python_product(bottom)
        return f"{_python_product(top)}/{f'({below})' if bottom.is_Mul else below}"
    if expr.is_Pow:
        return f"{_python_atom(expr.base)}**{expr.exp}"
    return _python_product(expr)


def _python_product(expr: Any) -> str:
    return "*".join(map(_python_atom, in_factors(expr)))


def _python_atom(expr: Any) -> str:
    """A factor, in brackets if it is a sum."""
    return f"({python_of(expr)})" if expr.is_Add or expr.could_extract_minus_sign() else python_of(expr)


class _Latex(LatexPrinter):  # type: ignore[misc]
    """SymPy's LaTeX, with terms in the order of the text."""

    def _as_ordered_terms(self, expr: Any, order: Any = None) -> list[Any]:
        return [-term if minus else term for minus, term in in_terms(expr)]


def latex_of(expr: Any, names: Mapping[Any, str]) -> str:
    """The expression in LaTeX, its terms in the order in which `text_of` has them.

    >>> w, g, o = sympy.symbols("w g o")
    >>> latex_of(2 - w + o * g + g, {}), text_of(2 - w + o * g + g)
    ('g + g o + 2 - w', 'g + g·o + 2 − w')
    """
    return str(_Latex({"symbol_names": dict(names)}).doprint(expr))


LATEX_LINE = 96
"""A formula is broken where a line of it would be longer than so many signs of its plain text."""


def latex_lines(expr: Any, names: Mapping[Any, str]) -> list[str]:
    r"""The expression in LaTeX, broken between the terms of its sums and the operands of an extreme.

    >>> latex_lines(sympy.Symbol("g") + sympy.Symbol("w"), {})
    ['w + g']
    """
    lines, room = [""], 0
    for piece, length in _latex_pieces(expr, names):
        if lines[-1] and room + length > LATEX_LINE:
            lines.append("")
            room = 0
        lines[-1] += piece
        room += length
    return [text.strip() for text in lines]


def _latex_pieces(expr: Any, names: Mapping[Any, str]) -> Iterator[tuple[str, int]]:
    """Pieces of LaTeX between which a line may end, each with the length of its plain text."""
    text = text_of(expr)
    kind = type(expr).__name__
    if len(text) > LATEX_LINE and expr.is_Add:
        for k, (minus, term) in enumerate(in_terms(expr)):
            sign = ("-" if minus else "") if k == 0 else " - " if minus else " + "
            for n, (piece, length) in enumerate(_latex_pieces(term, names)):
                yield (sign + piece, length + 3) if n == 0 else (piece, length)
        return
    if len(text) > LATEX_LINE and kind in EXTREMES:
        for k, one in enumerate(sorted(expr.args, key=text_of)):
            pieces = list(_latex_pieces(one, names))
            head = rf"\{kind.lower()}\bigl(" if k == 0 else ""
            tail = r"\bigr)" if k == len(expr.args) - 1 else ", "
            for n, (piece, length) in enumerate(pieces):
                yield head * (n == 0) + piece + tail * (n == len(pieces) - 1), length + 4
        return
    long = [f for f in in_factors(expr) if f.is_Add and len(text_of(f)) > LATEX_LINE] if expr.is_Mul else []
    if len(long) == 1:
        rest = expr / long[0]
        yield latex_of(rest, names) + r" \bigl(", len(text_of(rest)) + 1
        pieces = list(_latex_pieces(long[0], names))
        for n, (piece, length) in enumerate(pieces):
            yield piece + r"\bigr)" * (n == len(pieces) - 1), length
        return
    yield latex_of(expr, names), len(text)
