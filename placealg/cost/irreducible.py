"""Quotients of sums whose factors are found without a search: a sum that is linear in a symbol has no factor to share.

A polynomial A·x + B, without a common monomial, is irreducible where A and B have no common factor; and A and B have
none that holds y where the images of both in y alone, the other symbols at numbers modulo a prime, are coprime, and the
degree of A in y is kept. (Gauss's lemma; Geddes, Czapor, Labahn, Algorithms for Computer Algebra, chapter 7.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd, lcm
from typing import Any

import sympy

PRIME = 2**61 - 1
"""The numbers of images are taken modulo this prime."""

Sum = dict[tuple[int, ...], int]
"""A polynomial with whole coefficients: the exponents of the symbols -> the coefficient, none of them 0."""


def irreducible_quotient(one: Any, other: Any) -> Any:
    """One expression over another, in lowest terms and factored; None where that is not seen without a search.

    >>> a, b, c, x = sympy.symbols("a b c x", positive=True)
    >>> irreducible_quotient(2 * a * x + 2 * a * b, x * b / c + 1)
    2*a*c*(b + x)/(b*x + c)
    >>> irreducible_quotient(a * x + a * b + c * x + c * b, x)  # (a + c)·(b + x)
    """
    symbols = sorted((one.free_symbols | other.free_symbols), key=sympy.default_sort_key)
    top, bottom = _read(one, symbols), _read(other, symbols)
    if top is None or bottom is None or not top[1] or not bottom[1]:
        return None
    (up, over, powers), (down, under, others) = _primitive(*top), _primitive(*bottom)
    if not (_irreducible(over) and _irreducible(under)):
        return None
    number = sympy.Rational(up) / sympy.Rational(down)
    if over == under:
        over = under = {(0,) * len(symbols): 1}
    parts = [s ** (p - q) for s, p, q in zip(symbols, powers, others, strict=True)]
    return sympy.Mul(number, *parts, _written(over, symbols), 1 / _written(under, symbols))


def _read(expr: Any, symbols: Sequence[Any]) -> tuple[Any, dict[tuple[int, ...], Any]] | None:
    """A sum of monomials with whole exponents, of either sign, and rational coefficients; 1 over what divides them."""
    found: dict[tuple[int, ...], Any] = {}
    at = {s: k for k, s in enumerate(symbols)}
    for term in sympy.Add.make_args(sympy.expand(expr)):
        number, parts = term.as_coeff_mul()
        if not number.is_Rational:
            return None
        powers = [0] * len(symbols)
        for part in parts:
            base, power = part.as_base_exp()
            if base not in at or not power.is_Integer:
                return None
            powers[at[base]] += int(power)
        key = tuple(powers)
        found[key] = found.get(key, 0) + number
    found = {key: number for key, number in found.items() if number}
    shared = lcm(*(int(n.q) for n in found.values()))
    return sympy.Rational(1, shared), {key: int(n.p) * (shared // int(n.q)) for key, n in found.items()}


def _primitive(times: Any, terms: Mapping[tuple[int, ...], int]) -> tuple[Any, Sum, tuple[int, ...]]:
    """(a number, a polynomial without common factor of its terms and with a positive first one, a monomial)."""
    least = tuple(map(min, zip(*terms, strict=True)))
    content = gcd(*terms.values()) * (1 if terms[max(terms)] > 0 else -1)
    found = {tuple(p - q for p, q in zip(key, least, strict=True)): n // content for key, n in terms.items()}
    return times * content, found, least


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


def _written(terms: Sum, symbols: Iterable[Any]) -> Any:
    every = tuple(symbols)
    return sympy.Add(*(sympy.Mul(n, *(s**p for s, p in zip(every, key, strict=True) if p)) for key, n in terms.items()))
