"""The numbers in which a step is run again: a finite field, in which every function that is not rational is an oracle.

Sums, products and quotients are exact. A function such as exp or clamp gives a random element that depends on its name
and its argument alone. So two computations agree, up to chance, if and only if they are the same rational function of
the same functions of the same unknowns, in whatever order their sums are taken: of two that are not, an element agrees
with a chance of at most degree / PRIME (Schwartz and Zippel), and every step is run at two primes.

Roots, exponentials and maxima have laws that real programs use: the square of a root, exp(x - max) and its logarithm.
They are kept by value: `Field` remembers of what a value is the root, the logarithm or the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

PRIMES = (2**31 - 1, 2**31 - 19)
"""Two primes below 2**31: a product of two elements fits into 63 bits."""

UNKNOWN = -1
"""What is not known: memory that nobody wrote, or what an op made that has no rule. It spreads."""

SMALL = 4096
"""Of how many elements at once roots, logarithms and maxima are remembered."""


class Field:
    """Arithmetic modulo one prime on arrays of int64, in which -1 is UNKNOWN."""

    def __init__(self, prime: int):
        self.prime = prime
        self.numbers: dict[tuple[float, str], int] = {}
        self.square_of: dict[int, int] = {}
        """The square of what is a root."""
        self.exp_of: dict[int, tuple[int, int]] = {}
        """value -> (a, m) with exp(value) = a exp(m), where m is 0 or a sum of maxima."""
        self.shift_of: dict[int, tuple[int, int]] = {}
        """value -> (a, m) with value = a exp(m), m not 0."""
        self.largest_of: dict[int, frozenset[int]] = {}
        """A maximum -> the values of which it is the largest."""
        self.minus_infinity = self.word("minus infinity")
        self.infinity = self.neg(np.array(self.minus_infinity)).item()
        self.odd: set[float] = set()
        """Numbers that are no short fraction, met so far: a number that was read from a tensor would be one."""

    # ------------------------------------------------------------------ elements

    def word(self, name: str) -> int:
        """A constant of its own."""
        return int(self.mix(np.array([crc32(name.encode())], np.int64), 77)[0])

    def mix(self, x: Array, seed: int) -> Array:
        """A random element for each element of an array, that depends on it and a seed."""
        z = x.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + self.prime) % 2**64)
        for shift, by in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(by)
        return ((z ^ (z >> np.uint64(31))) % np.uint64(self.prime - 2) + np.uint64(1)).astype(np.int64)

    def leaf(self, name: str, elements: Array) -> Array:
        """The unknowns of a named tensor: each element by its place in the whole."""
        return self.mix(np.asarray(elements, np.int64), crc32(name.encode()))

    def number(self, value: Any, kind: str = "float64") -> int:
        """A number: its fraction, where it is a short one or the root of one; else a constant of its own."""
        if isinstance(value, bool | int | np.integer | np.bool_):
            return int(value) % self.prime
        value = float(value)
        if value != value:
            return UNKNOWN
        if abs(value) >= ENDLESS:
            return self.infinity if value > 0 else self.minus_infinity
        key = value, kind
        if key not in self.numbers:
            self.numbers[key] = self._number(value, kind)
        return self.numbers[key]

    def _number(self, value: float, kind: str) -> int:
        near = fraction_of(value, kind)
        if near is not None:
            return self.fraction(near)
        if kind == "float64" and abs(value) < 1e4:
            square = Fraction(Decimal(repr(round(value * value, 15))))
            if square and len(repr(float(square))) < 12 and abs(float(square) - value * value) <= 1e-15 * value * value:
                root = int(self.root(np.array([self.fraction(square)], np.int64))[0])
                return root if value > 0 else self.prime - root
        text = repr(value) if kind == "float64" else str(np.float32(value))
        if len(text) > 10:
            self.odd.add(value)
        return self.fraction(Fraction(Decimal(text)))

    def fraction(self, q: Fraction) -> int:
        """A fraction as an element."""
        return q.numerator * pow(q.denominator, -1, self.prime) % self.prime

    def numbers_of(self, values: Any, kind: str) -> Array:
        """An array of numbers as elements."""
        values = np.asarray(values)
        if values.dtype.kind in "iub":
            return np.asarray(values.astype(np.int64) % self.prime)
        each, places = np.unique(values, return_inverse=True)
        made = np.array([self.number(v, kind) for v in each], np.int64)
        return made[places].reshape(values.shape) if values.size else np.zeros(values.shape, np.int64)

    def spread(self, out: Array, *operands: Array) -> Array:
        """`out`, UNKNOWN wherever an operand is."""
        for x in operands:
            if x.size and x.min() < 0:
                out = np.where(np.broadcast_to(x < 0, out.shape), UNKNOWN, out)
        return out

    def known(self, x: Array) -> Array:
        """The same with 0 for UNKNOWN."""
        return np.where(x < 0, 0, x) if x.size and x.min() < 0 else x

    # ------------------------------------------------------------------ rational functions

    def add(self, x: Array, y: Array) -> Array:
        """x + y."""
        return self.spread((x + y) % self.prime, x, y)

    def neg(self, x: Array) -> Array:
        """-x."""
        return self.spread((self.prime - x) % self.prime, x)

    def sub(self, x: Array, y: Array) -> Array:
        """x - y; where one is a logarithm or a maximum, exp of the difference is remembered."""
        made = self.spread((x - y) % self.prime, x, y)
        if (x == self.minus_infinity).any():
            made = np.where((x == self.minus_infinity) & (y >= 0), self.minus_infinity, made)
        self._remember_difference(x, y, made, -1)
        return made

    def plus(self, x: Array, y: Array) -> Array:
        """x + y, as an op of its own: what is known of exponents in it is remembered."""
        made = self.add(x, y)
        for one, other in ((x, y), (y, x)):
            if (one == self.minus_infinity).any():
                made = np.where((one == self.minus_infinity) & (other >= 0), self.minus_infinity, made)
        self._remember_difference(x, y, made, 1)
        self.join(x, y, made)
        return made

    def minus(self, x: Array) -> Array:
        """-x as an op of its own."""
        return self.sub(np.zeros_like(x), x)

    def mul(self, x: Array, y: Array) -> Array:
        """x * y, and what is known of roots and exponents in it."""
        made = self.spread(self.known(x) * self.known(y) % self.prime, x, y)
        return self._remember_product(x, y, made, 1)

    def div(self, x: Array, y: Array) -> Array:
        """x / y."""
        by = self.inverse(y)
        made = self.spread(self.known(x) * self.known(by) % self.prime, x, by)
        return self._remember_product(x, y, made, -1)

    def inverse(self, x: Array) -> Array:
        """1 / x; of 0 it is UNKNOWN."""
        made = self.power(x, self.prime - 2)
        return np.where(made == 0, UNKNOWN, made) if made.size and not made.all() else made

    def reciprocal(self, x: Array) -> Array:
        """1 / x as an op of its own."""
        return self.div(np.ones_like(x), x)

    def power(self, x: Array, n: int) -> Array:
        """x to a whole power."""
        made, base = np.ones_like(x), self.known(x)
        while n:
            if n & 1:
                made = made * base % self.prime
            base = base * base % self.prime
            n >>= 1
        return self.spread(made, x)

    def sum(self, x: Array, axes: tuple[int, ...], keep: bool = False) -> Array:
        """The sum over some axes."""
        if x.size and x.min() < 0:
            made = np.where((x < 0).any(axis=axes, keepdims=keep), UNKNOWN,
                            np.asarray(self.known(x)).sum(axis=axes, keepdims=keep) % self.prime)
        else:
            made = np.asarray(x.sum(axis=axes, keepdims=keep)) % self.prime
        self._remember_sum(x, axes, keep, made)
        return np.asarray(made)

    def product(self, a: Array, b: Array) -> Array:
        """The product of matrices, over leading dims."""
        left, right = self.known(a), self.known(b)
        high, low = right >> 16, right & 0xFFFF
        made = np.zeros(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1]), np.int64)
        for first in range(0, a.shape[-1], CHUNK):
            part = left[..., first:first + CHUNK]
            top = np.matmul(part, high[..., first:first + CHUNK, :]) % self.prime
            made = (made + (top << 16) % self.prime + np.matmul(part, low[..., first:first + CHUNK, :])) % self.prime
        bad_a, bad_b = (a < 0).any(-1), (b < 0).any(-2)
        if bad_a.any() or bad_b.any():
            made = np.where(bad_a[..., :, None] | bad_b[..., None, :], UNKNOWN, made)
        return made

    # ------------------------------------------------------------------ functions

    def oracle(self, name: str, *xs: Array) -> Array:
        """A function of which nothing is known but its arguments."""
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        made = np.zeros(shape, np.int64)
        for k, x in enumerate(xs):
            made = self.mix((made + self.known(x)) % self.prime, crc32(f"{name} {k}".encode()))
        return self.spread(made, *xs)

    def root(self, x: Array) -> Array:
        """The square root, whose square is remembered."""
        made = self.oracle("root", x)
        if x.size <= SMALL:
            self.square_of.update(zip(made.ravel().tolist(), x.ravel().tolist(), strict=True))
        return made

    def square(self, x: Array) -> Array:
        """The square: that of a root is what it is the root of."""
        made = self.spread(self.known(x) * self.known(x) % self.prime, x)
        if self.square_of and x.size <= SMALL:
            flat = [self.square_of.get(v, w) for v, w in zip(x.ravel().tolist(), made.ravel().tolist(), strict=True)]
            made = np.array(flat, np.int64).reshape(x.shape)
        return made

    def exp(self, x: Array) -> Array:
        """exp(x), with exp(x - m) = exp(x) / exp(m) where m is a maximum, exp(log s) = s, and exp(-infinity) = 0."""
        made = self.oracle("exp", x)
        made = np.array(np.where(x == self.minus_infinity, 0, np.where(x == 0, 1, made)))
        if self.exp_of:
            self._each_known(x, made, self.exp_of, self._exp_again)
        return made

    def _exp_again(self, a: int, m: int) -> int:
        return self.shifted(a, m) if m else a

    def shifted(self, a: int, m: int) -> int:
        """a exp(m), where m is a sum of maxima; it is remembered as that."""
        value = a * int(self.oracle("exp of a shift", np.array([m], np.int64))[0]) % self.prime
        self.shift_of[value] = a, m
        return value

    def log(self, x: Array) -> Array:
        """The logarithm: exp of it is x again, and that of a exp(m) is log(a) + m."""
        made = np.array(np.where(x == 1, 0, self.oracle("log", x)))
        if self.shift_of:
            self._each_known(x, made, self.shift_of, lambda a, m: (int(self.log(np.array([a], np.int64))[0]) + m)
                             % self.prime)
        if x.size <= SMALL:
            for value, told in zip(made.ravel().tolist(), x.ravel().tolist(), strict=True):
                if value > 0:
                    self.exp_of[value] = self.shift_of.get(told, (told, 0))
        return made

    def largest(self, x: Array, axis: int, keep: bool = False) -> Array:
        """The largest along an axis: an unknown of the set of its arguments, of whatever largest ones they are."""
        moved = np.moveaxis(x, axis, -1)
        rows = moved.reshape(-1, moved.shape[-1])
        made = np.array([self._largest(frozenset(row)) for row in rows.tolist()], np.int64).reshape(moved.shape[:-1])
        return np.expand_dims(made, axis) if keep else made

    def larger(self, x: Array, y: Array) -> Array:
        """The larger of two."""
        shape = np.broadcast_shapes(x.shape, y.shape)
        pair = np.stack([np.broadcast_to(x, shape), np.broadcast_to(y, shape)], -1)
        return self.largest(pair, -1)

    def _largest(self, values: frozenset[int]) -> int:
        if UNKNOWN in values:
            return UNKNOWN
        leaves: frozenset[int] = frozenset().union(*(self.largest_of.get(v, frozenset((v,))) for v in values))
        leaves -= {self.minus_infinity}
        if len(leaves) < 2:
            value = next(iter(leaves), self.minus_infinity)
        else:
            value = int(self.mix(np.array(sorted(leaves), np.int64), 5).sum() % self.prime)
            value = int(self.mix(np.array([value], np.int64), 6)[0])
        if value != self.minus_infinity and len(leaves) > 1:
            self.largest_of[value] = leaves
            self.exp_of[value] = 1, value
        return value

    # ------------------------------------------------------------------ what is remembered

    def _each_known(self, x: Array, made: Array, table: dict[int, tuple[int, int]],
                    of: Callable[[int, int], int]) -> None:
        """Where a table knows an element of `x`, put what it says into `made`."""
        keys = np.fromiter(table.keys(), np.int64, len(table))
        hit = np.isin(x, keys)
        if hit.any():
            made[hit] = [of(*table[v]) for v in x[hit].tolist()]

    def _remember_difference(self, x: Array, y: Array, made: Array, sign: int) -> None:
        """exp(x +- y) where either is a logarithm or a maximum."""
        if not self.exp_of or made.size > 16 * SMALL:
            return
        keys = np.fromiter(self.exp_of.keys(), np.int64, len(self.exp_of))
        x, y = np.broadcast_to(x, made.shape), np.broadcast_to(y, made.shape)
        hit = np.isin(x, keys) | np.isin(y, keys)
        for a, b, value in zip(x[hit].tolist(), y[hit].tolist(), made[hit].tolist(), strict=True):
            if min(a, b, value) < 0 or self.minus_infinity in (a, b):
                continue
            (s, m), (t, n) = (self.exp_of.get(v) or self._plain_exp(v) for v in (a, b))
            if sign < 0 and not t:
                continue
            self.exp_of[value] = s * (t if sign > 0 else pow(t, -1, self.prime)) % self.prime, (m + sign * n) % self.prime

    def _plain_exp(self, v: int) -> tuple[int, int]:
        return (1 if not v else int(self.oracle("exp", np.array([v], np.int64))[0])), 0

    def _remember_product(self, x: Array, y: Array, made: Array, sign: int) -> Array:
        """Squares of products of roots, and a exp(m) times b exp(n), which is ab exp(m + n)."""
        made = np.asarray(made)
        if self.square_of and made.size <= SMALL:
            self._remember_roots(x, y, made, sign)
        if not self.shift_of or made.size > 16 * SMALL:
            return made
        keys = np.fromiter(self.shift_of.keys(), np.int64, len(self.shift_of))
        x, y = np.broadcast_to(x, made.shape), np.broadcast_to(y, made.shape)
        hit = np.isin(x, keys) | np.isin(y, keys)
        if not hit.any():
            return made
        made = np.array(made)
        values = made[hit].tolist()
        for k, (a, b) in enumerate(zip(x[hit].tolist(), y[hit].tolist(), strict=True)):
            if values[k] <= 0:
                continue
            (s, m), (t, n) = self.shift_of.get(a, (a, 0)), self.shift_of.get(b, (b, 0))
            s, m = s * (t if sign > 0 else pow(t, -1, self.prime)) % self.prime, (m + sign * n) % self.prime
            values[k] = s if not m else self.shifted(s, m)
        made[hit] = values
        return made

    def _remember_roots(self, x: Array, y: Array, made: Array, sign: int) -> None:
        known = self.square_of
        for a, b, value in zip(np.broadcast_to(x, made.shape).ravel().tolist(),
                               np.broadcast_to(y, made.shape).ravel().tolist(), made.ravel().tolist(), strict=True):
            if value > 0 and (a in known or b in known):
                s, t = known.get(a, a * a % self.prime), known.get(b, b * b % self.prime)
                if t > 0 and s > 0:
                    known[value] = s * (t if sign > 0 else pow(t, -1, self.prime)) % self.prime

    def _remember_sum(self, x: Array, axes: tuple[int, ...], keep: bool, made: Array) -> None:
        """A sum of a_j exp(m) with one m is (sum of a_j) exp(m)."""
        if not self.shift_of or x.size > 16 * SMALL or not axes:
            return
        keys = np.fromiter(self.shift_of.keys(), np.int64, len(self.shift_of))
        if not np.isin(x, keys).any():
            return
        moved = np.moveaxis(x, axes, range(-len(axes), 0)).reshape(made.size, -1)
        for row, value in zip(moved.tolist(), made.ravel().tolist(), strict=True):
            told = [self.shift_of.get(v, (v, 0)) for v in row if v]
            if value > 0 and told and len({m for _, m in told}) == 1 and told[0][1]:
                self.shift_of[value] = sum(a for a, _ in told) % self.prime, told[0][1]

    def join(self, x: Array, y: Array, made: Array) -> None:
        """What is known of exponents in a sum of two."""
        if not self.shift_of or made.size > 16 * SMALL:
            return
        x, y = np.broadcast_to(x, made.shape), np.broadcast_to(y, made.shape)
        for a, b, value in zip(x.ravel().tolist(), y.ravel().tolist(), made.ravel().tolist(), strict=True):
            if value > 0 and (a in self.shift_of or b in self.shift_of):
                (s, m), (t, n) = self.shift_of.get(a, (a, 0)), self.shift_of.get(b, (b, 0))
                if m == n or not a or not b:
                    self.shift_of[value] = (s + t) % self.prime, m if a else n


ENDLESS = 1e30
"""A number from which on it stands for infinity, as the least one of a type does in masks."""

CHUNK = 2**15
"""Of how many terms a sum of products of 31 and 16 bits is taken before it is reduced."""


def fraction_of(value: float, kind: str = "float64") -> Fraction | None:
    """The short fraction that a number stands for, as far as its type tells; None if it is none."""
    near = Fraction(value).limit_denominator(8192) if abs(value) < 1e9 else Fraction(value)
    if kind == "float64":
        return near if abs(float(near) - value) <= max(1e-15 * abs(value), 2.3e-16) and bool(near) == bool(value) else None
    exact = np.float32 if kind != "float16" else np.float16
    return near if exact(float(near)) == exact(value) and bool(near) == bool(value) else None


def first_unequal(x: Array, y: Array) -> Sequence[int]:
    """The places where two arrays differ, both known."""
    return np.flatnonzero((x != y) & (x >= 0) & (y >= 0)).tolist()
