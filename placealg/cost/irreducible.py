"""Quotients of sums whose factors are found without a search: sums that are linear in a symbol, and products of such.

A polynomial A·x + B, without a common monomial, is irreducible where A and B have no common factor; and A and B have
none that holds y where the images of both in y alone, the other symbols at numbers modulo a prime, are coprime, and the
degree of A in y is kept. Where A divides B, it is a factor. (Gauss's lemma; Geddes, Czapor, Labahn, Algorithms for
Computer Algebra, chapter 7.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from math import gcd, lcm
from operator import add, sub
from typing import Any

import sympy

PRIME = 2**61 - 1
"""The numbers of images are taken modulo this prime."""

Sum = dict[tuple[int, ...], int]
"""A polynomial with whole coefficients: the exponents of the symbols -> the coefficient, none of them 0."""


_FUNCTIONS = sympy.Max, sympy.Min, sympy.ceiling, sympy.floor


def irreducible_quotient(one: Any, other: Any) -> Any:
    """One expression over another, in lowest terms and factored; None where that is not seen without a search.

    Largest and smallest values and roundings are taken for symbols.

    >>> a, b, c, x = sympy.symbols("a b c x", positive=True)
    >>> irreducible_quotient(2 * a * x + 2 * a * b, x * b / c + 1)
    2*a*c*(b + x)/(b*x + c)
    >>> irreducible_quotient(a * x + a * b + c * x + c * b, x + b)
    a + c
    >>> irreducible_quotient(a * x - a * b, -c)
    a*(b - x)/c
    """
    symbols = sorted(set().union(*(e.free_symbols | e.atoms(*_FUNCTIONS) for e in (one, other))),
                     key=sympy.default_sort_key)
    top, bottom = _read(one, symbols), _read(other, symbols)
    if not top or not bottom:
        return None
    (up, over, powers), (down, under, others) = _primitive(top), _primitive(bottom)
    above, below = ([], []) if over == under else (_factors(over), _factors(under))
    if above is None or below is None:
        return None
    for factor in below[:]:
        if factor in above:
            above.remove(factor)
            below.remove(factor)
    mixed = [k for k, f in enumerate(above) if min(f.values()) < 0]
    if (up < 0) != (down < 0) and mixed:  # rather (p - k) than -(k - p)
        up, above[mixed[0]] = -up, {key: -n for key, n in above[mixed[0]].items()}
    number = sympy.Rational(up.numerator, up.denominator) / sympy.Rational(down.numerator, down.denominator)
    parts = [s ** (p - q) for s, p, q in zip(symbols, powers, others, strict=True)]
    return sympy.Mul(number, *parts, *(_written(f, symbols) for f in above),
                     *(1 / _written(f, symbols) for f in below))


def factored(expr: Any) -> Any:
    """A sum as a product of its factors, as `sympy.factor` writes it but for signs, mostly without its search.

    >>> x, y = sympy.symbols("x y", positive=True)
    >>> factored(x * y + x), factored(x**2 - 1)
    (x*(y + 1), (x - 1)*(x + 1))
    """
    found = irreducible_quotient(expr, sympy.S.One)
    return sympy.factor(expr) if found is None else found


def expanded(expr: Any) -> Any:
    """The expression as a sum of monomials, as `sympy.expand` writes it, in a third of the time.

    >>> x, y = sympy.symbols("x y", positive=True)
    >>> expanded(x * (x + 1 / y) - x**2), expanded((x + 1) / (y + 1))
    (x/y, x/(y + 1) + 1/(y + 1))
    """
    symbols = sorted(expr.free_symbols, key=sympy.default_sort_key)
    terms = _read(expr, symbols)
    return sympy.expand(expr) if terms is None else _written(terms, symbols)


def _read(expr: Any, symbols: Sequence[Any]) -> dict[tuple[int, ...], Fraction] | None:
    """A sum of monomials with whole exponents, of either sign, and rational coefficients; None where it is none."""
    none = (0,) * len(symbols)
    known = {s: {none[:k] + (1,) + none[k + 1:]: Fraction(1)} for k, s in enumerate(symbols)}

    def read(part: Any) -> dict[tuple[int, ...], Fraction] | None:
        if part in known:
            return known[part]
        if part.is_Rational:
            return {none: Fraction(int(part.p), int(part.q))} if part else {}
        if not (part.is_Add or part.is_Mul or (part.is_Pow and part.exp.is_Integer)):
            return None
        of = [read(a) for a in (part.args[:1] if part.is_Pow else part.args)]
        if any(o is None for o in of):
            return None
        operands = [o for o in of if o is not None]
        if part.is_Add:
            return _summed(operands)
        if part.is_Mul:
            return reduce(_times, operands)
        base, power = operands[0], int(part.exp)
        if power < 0:
            if len(base) != 1:
                return None
            ((key, n),) = base.items()
            base = {tuple(-p for p in key): 1 / n}
        return reduce(_times, [base] * abs(power))

    return read(expr)


def _summed(sums: Iterable[Mapping[tuple[int, ...], Fraction]]) -> dict[tuple[int, ...], Fraction]:
    found: dict[tuple[int, ...], Fraction] = {}
    for one in sums:
        for key, n in one.items():
            found[key] = found.get(key, Fraction(0)) + n
    return {key: n for key, n in found.items() if n}


def _times(one: Mapping[tuple[int, ...], Fraction],
           other: Mapping[tuple[int, ...], Fraction]) -> dict[tuple[int, ...], Fraction]:
    return _summed({tuple(map(add, key, more)): n * k} for key, n in one.items() for more, k in other.items())


def _primitive(terms: Mapping[tuple[int, ...], Fraction]) -> tuple[Fraction, Sum, tuple[int, ...]]:
    """(a number, a polynomial without common factor of its terms and with a positive first one, a monomial)."""
    least = tuple(map(min, zip(*terms, strict=True)))
    shared = lcm(*(n.denominator for n in terms.values()))
    whole = {key: int(n * shared) for key, n in terms.items()}
    content = gcd(*whole.values()) * (1 if terms[max(terms)] > 0 else -1)
    return Fraction(content, shared), {tuple(map(sub, key, least)): n // content for key, n in whole.items()}, least


def _factors(terms: Sum) -> list[Sum] | None:
    """The factors that have none themselves, of a polynomial as `_primitive` makes it; None where they are not seen.

    A·x + B has the factor A where that divides B.
    """
    if len(terms) == 1:
        return []
    if _irreducible(terms):
        return [terms]
    for k in range(len(next(iter(terms)))):
        if max(key[k] for key in terms) != 1:
            continue
        _, above, _ = _primitive({key: Fraction(n) for key, n in terms.items() if key[k]})
        rest = _divided(terms, above) if len(above) > 1 else None
        if rest and (first := _factors(above)) is not None and (second := _factors(rest)) is not None:
            return first + second
    return None


def _divided(terms: Sum, by: Sum) -> Sum | None:
    """The quotient of two polynomials; None where one is left over."""
    first, left, found = max(by), dict(terms), Sum()
    while left:
        top = max(left)
        key, (times, over) = tuple(map(sub, top, first)), divmod(left[top], by[first])
        if over or min(key) < 0:
            return None
        found[key] = times
        for other, n in by.items():
            at = tuple(map(add, key, other))
            left[at] = left.get(at, 0) - times * n
            if not left[at]:
                del left[at]
    return found


def _irreducible(terms: Sum) -> bool:
    """Whether a polynomial without a common factor of its terms is seen to have no factors: False says nothing."""
    if len(terms) <= 2 and sum(map(sum, terms)) <= 1:
        return True  # a number, or a symbol and a number
    for k in range(len(next(iter(terms)))):
        if max(key[k] for key in terms) != 1:
            continue
        parts: tuple[Sum, Sum] = ({}, {})
        for key, n in terms.items():
            parts[1 - key[k]][(*key[:k], 0, *key[k + 1:])] = n
        if _coprime(*parts):
            return True
    return False


def _coprime(one: Sum, other: Sum) -> bool:
    """Whether two polynomials are seen to have no common factor but numbers."""
    shared = [k for k in range(len(next(iter(one)))) if any(key[k] for key in one) and any(key[k] for key in other)]
    return all(_images_coprime(one, other, k) for k in shared)


def _images_coprime(one: Sum, other: Sum, k: int) -> bool:
    """Whether the images in one symbol are coprime, and that of `one` has its degree."""
    a, b = _image(one, k), _image(other, k)
    if len(a) != 1 + max(key[k] for key in one):
        return False
    while b:
        a, b = b, _rest(a, b)
    return len(a) == 1


def _image(terms: Sum, k: int) -> list[int]:
    """The coefficients of a polynomial in one symbol, from the lowest, with numbers for the others."""
    found = [0] * (1 + max(key[k] for key in terms))
    for key, n in terms.items():
        value = n
        for j, power in enumerate(key):
            if power and j != k:
                value = value * pow(7919 * (j + 2) ** 3 + 104729, power, PRIME) % PRIME
        found[key[k]] = (found[key[k]] + value) % PRIME
    return _stripped(found)


def _rest(a: list[int], b: list[int]) -> list[int]:
    """The rest of a division of polynomials modulo the prime."""
    a, inverse = list(a), pow(b[-1], -1, PRIME)
    while len(a) >= len(b):
        times, shift = a[-1] * inverse % PRIME, len(a) - len(b)
        for j, n in enumerate(b):
            a[shift + j] = (a[shift + j] - times * n) % PRIME
        a = _stripped(a)
    return a


def _stripped(found: list[int]) -> list[int]:
    while found and not found[-1]:
        found = found[:-1]
    return found


def _written(terms: Mapping[tuple[int, ...], int | Fraction], symbols: Iterable[Any]) -> Any:
    every = tuple(symbols)
    return sympy.Add(*(sympy.Mul(n, *(s**p for s, p in zip(every, key, strict=True) if p)) for key, n in terms.items()))
