"""The numbers in which a step is run again: a finite field, in which every function that is not rational is an oracle.

Sums, products and quotients are exact. A function such as exp or clamp gives a random element that depends on its name
and its argument alone. So two computations agree, up to chance, if and only if they are the same rational function of
the same functions of the same unknowns, in whatever order their sums are taken: of two that are not, an element agrees
with a chance of at most degree / PRIME (Schwartz and Zippel), and every step is run at two primes.

Roots, exponentials and maxima have laws that real programs use: the square of a root, exp(x - max) and its logarithm.
They are kept by value: `Field` remembers of what a value is the root, the logarithm or the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

PRIMES = (2**31 - 2337, 2**31 - 15777, 2**31 - 59097)
"""Primes below 2**31: a product of two elements fits into 63 bits.

They are 3 modulo 4, and 2 to 23 are squares: roots of the numbers that programs write are exact.
"""

UNKNOWN = -1
"""What is not known: memory that nobody wrote, or what an op made that has no rule. It spreads."""

SMALL = 4096
"""Of how many elements at once logarithms and maxima are remembered."""

FEW = 256
"""Of how many roots are: norms have squares again, the roots of an optimizer's moments have none."""


class Told(np.ndarray[Any, np.dtype[np.int64]]):
    """An array of which something is known by value: roots, logarithms, maxima. Only of such is anything looked up.

    An element of any array may by chance equal one of which something is known.
    """


def told(x: Array) -> Array:
    """The same array, of whose elements something is known."""
    return x.view(Told)


def plain(x: Array) -> Array:
    """The same array without what is known of it."""
    return np.asarray(x) if type(x) is not np.ndarray else x


class Field:
    """Arithmetic modulo one prime on arrays of int64, in which -1 is UNKNOWN."""

    kind: Any = np.int64
    """The type of its arrays."""

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

    # ------------------------------------------------------------------ elements

    def word(self, name: str) -> int:
        """A constant of its own."""
        return int(self.mix(np.array([crc32(name.encode())], np.int64), 77)[0])

    def mix(self, x: Array, seed: int) -> Array:
        """A random element for each element of an array, that depends on it and a seed."""
        z = np.atleast_1d(x).astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + self.prime) % 2**64)
        for shift, by in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(by)
        z = (z ^ (z >> np.uint64(31))) % np.uint64(self.prime - 2) + np.uint64(1)
        return z.astype(np.int64).reshape(np.shape(x))

    def leaf(self, name: str, elements: Array) -> Array:
        """The unknowns of a named tensor: each element by its place in the whole."""
        return self.mix(np.asarray(elements, np.int64), crc32(name.encode()))

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Zeros in a shape."""
        return np.zeros(shape, self.kind)

    def over(self, count: int) -> Array:
        """1 / count."""
        return np.array(pow(count, -1, self.prime))

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
        text = repr(value) if kind == "float64" else str(np.float32(value))
        if len(text) > SHORT and kind == "float64" and abs(value) < 1e4:
            short = Fraction(Decimal(repr(round(value * value, 15))))
            squares = [Fraction(value * value).limit_denominator(8192),
                       *([short] if len(repr(float(short))) < 12 else [])]
            of = [q for q in squares if q and abs(float(q) - value * value) <= max(1e-15 * value * value, 1.2e-16)]
            if of:
                root = int(self.root(np.array([self.fraction(of[0])], np.int64))[0])
                return root if value > 0 else self.prime - root
        return self.fraction(Fraction(Decimal(text)))

    def written(self, value: float, kind: str) -> bool:
        """Whether somebody has written a number: it is short in digits, or a fraction with a small denominator."""
        if value != value:  # what memory held before anybody wrote it
            return False
        if abs(value) >= ENDLESS:
            return True
        text, most = (repr(value), SHORT) if kind == "float64" else (str(np.float32(value)), SHORT - 3)
        near = fraction_of(value, kind)
        return len(text) <= most or (near is not None and near.denominator <= SMALLEST)

    def fraction(self, q: Fraction) -> int:
        """A fraction as an element."""
        return q.numerator * pow(q.denominator, -1, self.prime) % self.prime

    def numbers_of(self, values: Any, kind: str) -> Array:
        """An array of numbers as elements: each short fraction, or root of one, as that; others are constants."""
        values = np.asarray(values)
        if values.dtype.kind in "iub":
            return np.asarray(values.astype(np.int64) % self.prime)
        each, places = np.unique(values, return_inverse=True)
        made = np.array(self.mix(each.astype(np.float32).view(np.uint32).astype(np.int64), 78))
        brief = _brief(each, kind)
        made[brief] = [self.number(v, kind) for v in each[brief]]
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
        """x + y, and nothing else."""
        x, y = plain(x), plain(y)
        return self.spread((x + y) % self.prime, x, y)

    def neg(self, x: Array) -> Array:
        """-x, and nothing else."""
        x = plain(x)
        return self.spread((self.prime - x) % self.prime, x)

    def sub(self, x: Array, y: Array) -> Array:
        """x - y; where one is a logarithm or a maximum, exp of the difference is remembered."""
        a, b = plain(x), plain(y)
        made = np.asarray(self.spread((a - b) % self.prime, a, b))
        if (a == self.minus_infinity).any():
            made = np.where((a == self.minus_infinity) & (b >= 0), self.minus_infinity, made)
        return self._remember_difference(x, y, made, -1)

    def plus(self, x: Array, y: Array) -> Array:
        """x + y, as an op of its own: what is known of exponents in it is remembered."""
        a, b = plain(x), plain(y)
        made = np.asarray(self.add(a, b))
        for one, other in ((a, b), (b, a)):
            if (one == self.minus_infinity).any():
                made = np.where((one == self.minus_infinity) & (other >= 0), self.minus_infinity, made)
        return self.join(x, y, self._remember_difference(x, y, made, 1))

    def minus(self, x: Array) -> Array:
        """-x as an op of its own."""
        return self.sub(np.zeros_like(x), x)

    def mul(self, x: Array, y: Array) -> Array:
        """x * y, and what is known of roots and exponents in it."""
        a, b = plain(x), plain(y)
        made = self.spread(self.known(a) * self.known(b) % self.prime, a, b)
        return self._remember_product(x, y, made, 1)

    def div(self, x: Array, y: Array) -> Array:
        """x / y."""
        a, by = plain(x), self.inverse(plain(y))
        made = self.spread(self.known(a) * self.known(by) % self.prime, a, by)
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
        x = plain(x)
        made, base = np.ones_like(x), self.known(x)
        while n:
            if n & 1:
                made = made * base % self.prime
            base = base * base % self.prime
            n >>= 1
        return self.spread(made, x)

    def sum(self, x: Array, axes: tuple[int, ...], keep: bool = False) -> Array:
        """The sum over some axes."""
        a = plain(x)
        made = np.asarray(self.known(a).sum(axis=axes, keepdims=keep) % self.prime)
        if a.size and a.min() < 0:
            made = np.where((a < 0).any(axis=axes, keepdims=keep), UNKNOWN, made)
        return self._remember_sum(x, axes, keep, made)

    def added(self, x: Array, places: Array, values: Array) -> Array:
        """`values` added to the elements of `x` at flat places, of which some may be the same."""
        flat, values = plain(x).ravel(), plain(values)
        made = np.array(self.known(flat))
        np.add.at(made, places, self.known(values))
        made %= self.prime
        made[flat < 0] = UNKNOWN
        made[places[values < 0]] = UNKNOWN
        return made.reshape(x.shape)

    def product(self, a: Array, b: Array) -> Array:
        """The product of matrices, over leading dims."""
        a, b = plain(a), plain(b)
        left, right = self.known(a), self.known(b)
        high, low = right >> 16, right & 0xFFFF
        made = np.zeros(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1]), np.int64)
        for first in range(0, a.shape[-1], CHUNK):
            part = left[..., first:first + CHUNK]
            top = np.matmul(part, high[..., first:first + CHUNK, :]) % self.prime
            made = (made + (top << 16) % self.prime + np.matmul(part, low[..., first:first + CHUNK, :])) % self.prime
        bad_a, bad_b = np.asarray((a < 0).any(-1)), np.asarray((b < 0).any(-2))
        if bad_a.any() or bad_b.any():
            made = np.where(bad_a[..., :, None] | bad_b[..., None, :], UNKNOWN, made)
        return made

    # ------------------------------------------------------------------ functions

    def oracle(self, name: str, *xs: Array) -> Array:
        """A function of which nothing is known but its arguments."""
        xs = tuple(plain(x) for x in xs)
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        made = np.zeros(shape, np.int64)
        for k, x in enumerate(xs):
            made = self.mix((made + self.known(x)) % self.prime, crc32(f"{name} {k}".encode()))
        return self.spread(made, *xs)

    def root(self, x: Array) -> Array:
        """The square root: a number's, where it is a square, so that a product of roots is one; its square is kept."""
        a = plain(x)
        exact = self.power(a, (self.prime + 1) // 4)
        made = np.where((a >= 0) & (exact * exact % self.prime == a), exact, self.oracle("root", x))
        if x.size <= FEW:
            self.square_of.update(zip(made.ravel().tolist(), x.ravel().tolist(), strict=True))
            return told(np.asarray(made))
        return made

    def square(self, x: Array) -> Array:
        """The square: that of a root is what it is the root of."""
        a = plain(x)
        made = self.spread(self.known(a) * self.known(a) % self.prime, a)
        if isinstance(x, Told):
            flat = [self.square_of.get(v, w) for v, w in zip(a.ravel().tolist(), np.ravel(made).tolist(), strict=True)]
            made = np.array(flat, np.int64).reshape(a.shape)
        return made

    def exp(self, x: Array) -> Array:
        """The exponential: of x - m, where m is a maximum, it is that of x over that of m."""
        made = self.oracle("exp", x)
        made = np.array(np.where(plain(x) == self.minus_infinity, 0, np.where(plain(x) == 0, 1, made)))
        if isinstance(x, Told) and self._each_known(plain(x), made, self.exp_of, self.shifted):
            return told(made)
        return made

    def shifted(self, a: int, m: int) -> int:
        """The product a exp(m), where m is 0 or a sum of maxima; it is remembered as that."""
        if not m:
            return a
        value = a * int(self.oracle("exp of a shift", np.array([m], np.int64))[0]) % self.prime
        self.shift_of[value] = a, m
        return value

    def log(self, x: Array) -> Array:
        """The logarithm, whose exponential is remembered; of a product with an exponential it is a sum."""
        known, x = isinstance(x, Told), plain(x)
        made = np.array(np.where(x == 1, 0, self.oracle("log", x)))
        if known:
            self._each_known(x, made, self.shift_of, lambda a, m: (int(self.log(np.array([a], np.int64))[0]) + m)
                             % self.prime)
        if x.size > SMALL:
            return made
        for value, of in zip(made.ravel().tolist(), x.ravel().tolist(), strict=True):
            if value > 0:
                self.exp_of[value] = self.shift_of.get(of, (of, 0)) if known else (of, 0)
        return told(made)

    def largest(self, x: Array, axis: int, keep: bool = False) -> Array:
        """The largest along an axis: an unknown of the set of its arguments, of whatever largest ones they are."""
        known = self.largest_of if isinstance(x, Told) else {}
        moved = np.moveaxis(plain(x), axis, -1)
        rows = moved.reshape(-1, moved.shape[-1])
        made = np.array([self._largest(frozenset(row), known) for row in rows.tolist()], np.int64)
        made = told(made.reshape(moved.shape[:-1]))
        return np.expand_dims(made, axis) if keep else made

    def larger(self, x: Array, y: Array) -> Array:
        """The larger of two."""
        shape = np.broadcast_shapes(x.shape, y.shape)
        pair = np.stack([np.broadcast_to(x, shape), np.broadcast_to(y, shape)], -1)
        return self.largest(told(pair) if isinstance(x, Told) or isinstance(y, Told) else pair, -1)

    def _largest(self, values: frozenset[int], known: dict[int, frozenset[int]]) -> int:
        if UNKNOWN in values:
            return UNKNOWN
        leaves: frozenset[int] = frozenset().union(*(known.get(v, frozenset((v,))) for v in values))
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
                    of: Callable[[int, int], int]) -> bool:
        """Where a table knows an element of `x`, put what it says into `made`; whether it knows any."""
        hit = self._known_in(table, x)
        if hit.any():
            made[hit] = [of(*table[v]) for v in x[hit].tolist()]
        return bool(hit.any())

    @staticmethod
    def _known_in(table: dict[int, Any], x: Array) -> Any:
        """Which elements of an array a table knows."""
        return np.isin(x, np.fromiter(table.keys(), np.int64, len(table)))

    @staticmethod
    def _pairs(x: Array, y: Array, shape: tuple[int, ...]) -> tuple[Array, Array, bool, bool]:
        """Two arrays in one shape, and of which something may be known."""
        return (np.broadcast_to(plain(x), shape), np.broadcast_to(plain(y), shape), isinstance(x, Told),
                isinstance(y, Told))

    def _remember_difference(self, x: Array, y: Array, made: Array, sign: int) -> Array:
        """exp(x +- y) where either is a logarithm or a maximum."""
        a, b, of_a, of_b = self._pairs(x, y, made.shape)
        if not (of_a or of_b) or made.size > 16 * SMALL:
            return made
        in_a = self._known_in(self.exp_of, a) if of_a else np.zeros(a.shape, bool)
        in_b = self._known_in(self.exp_of, b) if of_b else np.zeros(b.shape, bool)
        hit = in_a | in_b
        if not hit.any():
            return made
        for v, w, knows, knows_too, value in zip(*(z[hit].tolist() for z in (a, b, in_a, in_b, made)), strict=True):
            if min(v, w, value) < 0 or self.minus_infinity in (v, w):
                continue
            s, m = self.exp_of[v] if knows else self._plain_exp(v)
            t, n = self.exp_of[w] if knows_too else self._plain_exp(w)
            if sign > 0 or t:
                self.exp_of[value] = s * self._to(t, sign) % self.prime, (m + sign * n) % self.prime
        return told(made)

    def _to(self, t: int, sign: int) -> int:
        """t or 1 / t."""
        return t if sign > 0 else pow(t, -1, self.prime)

    def _plain_exp(self, v: int) -> tuple[int, int]:
        return (1 if not v else int(self.oracle("exp", np.array([v], np.int64))[0])), 0

    def _remember_product(self, x: Array, y: Array, made: Array, sign: int) -> Array:
        """Squares of products of roots, and a exp(m) times b exp(n), which is ab exp(m + n)."""
        made = np.asarray(made)
        a, b, of_a, of_b = self._pairs(x, y, made.shape)
        if not (of_a or of_b) or made.size > 16 * SMALL:
            return made
        roots = self._remember_roots(a, b, of_a, of_b, made, sign) if made.size <= FEW else False
        in_a = self._known_in(self.shift_of, a) if of_a else np.zeros(a.shape, bool)
        in_b = self._known_in(self.shift_of, b) if of_b else np.zeros(b.shape, bool)
        hit = in_a | in_b
        if not hit.any():
            return told(made) if roots else made
        made = np.array(made)
        values = made[hit].tolist()
        for k, (v, w, knows, knows_too) in enumerate(zip(*(z[hit].tolist() for z in (a, b, in_a, in_b)), strict=True)):
            if values[k] > 0:
                (s, m), (t, n) = self.shift_of[v] if knows else (v, 0), self.shift_of[w] if knows_too else (w, 0)
                s, m = s * self._to(t, sign) % self.prime, (m + sign * n) % self.prime
                values[k] = self.shifted(s, m)
        made[hit] = values
        return told(made)

    def _remember_roots(self, a: Array, b: Array, of_a: bool, of_b: bool, made: Array, sign: int) -> bool:
        known, found = self.square_of, False
        for v, w, value in zip(a.ravel().tolist(), b.ravel().tolist(), made.ravel().tolist(), strict=True):
            knows, knows_too = of_a and v in known, of_b and w in known
            if value > 0 and (knows or knows_too):
                s, t = known[v] if knows else v * v % self.prime, known[w] if knows_too else w * w % self.prime
                if t > 0 and s > 0:
                    known[value], found = s * self._to(t, sign) % self.prime, True
        return found

    def _remember_sum(self, x: Array, axes: tuple[int, ...], keep: bool, made: Array) -> Array:
        """A sum of a_j exp(m) with one m is (sum of a_j) exp(m)."""
        if not isinstance(x, Told) or x.size > 16 * SMALL or not axes or not made.size:
            return made
        moved = np.moveaxis(plain(x), axes, range(-len(axes), 0)).reshape(made.size, -1)
        found = False
        for row, value in zip(moved.tolist(), made.ravel().tolist(), strict=True):
            parts = [self.shift_of.get(v, (v, 0)) for v in row if v]
            if value > 0 and parts and parts[0][1] and len({m for _, m in parts}) == 1:
                self.shift_of[value], found = (sum(a for a, _ in parts) % self.prime, parts[0][1]), True
        return told(made) if found else made

    def join(self, x: Array, y: Array, made: Array) -> Array:
        """What is known of exponents in a sum of two."""
        a, b, of_a, of_b = self._pairs(x, y, made.shape)
        if not (of_a or of_b) or made.size > 16 * SMALL or not self.shift_of:
            return made
        found = False
        for v, w, value in zip(a.ravel().tolist(), b.ravel().tolist(), np.ravel(plain(made)).tolist(), strict=True):
            s, m = self.shift_of.get(v, (v, 0)) if of_a else (v, 0)
            t, n = self.shift_of.get(w, (w, 0)) if of_b else (w, 0)
            if value > 0 and (m or n) and (m == n or not v or not w):
                self.shift_of[value], found = ((s + t) % self.prime, m or n), True
        return told(made) if found else made


SMALLEST = 256
"""The largest denominator that is small: most numbers in four bytes are near a fraction with one below 8,193."""

SHORT = 10
"""How many characters a number has at most that somebody has written."""

ENDLESS = 1e30
"""A number from which on it stands for infinity, as the least one of a type does in masks."""

CHUNK = 2**15
"""Of how many terms a sum of products of 31 and 16 bits is taken before it is reduced."""


def _brief(each: NDArray[Any], kind: str) -> NDArray[np.bool_]:
    """Which numbers may be short fractions, their roots, or short in digits: whatever else the array holds."""
    wide = np.where(np.abs(each) < ENDLESS, each, 0.0).astype(np.float64)
    found = ~(np.abs(each) < ENDLESS)
    for x in (wide, wide * wide)[:2 if kind == "float64" else 1]:
        found |= np.abs(x * 40320 - np.rint(x * 40320)) <= 1e-6 * np.maximum(np.abs(x * 40320), 1e-3)
    texts = (wide if kind == "float64" else wide.astype(np.float32)).astype(str)
    return np.asarray(found | (np.char.str_len(texts) <= (SHORT if kind == "float64" else SHORT - 3)))


def fraction_of(value: float, kind: str = "float64") -> Fraction | None:
    """The short fraction that a number stands for, as far as its type tells; None if it is none."""
    near = Fraction(value).limit_denominator(8192) if abs(value) < 1e9 else Fraction(value)
    if kind == "float64":
        close = abs(float(near) - value) <= max(1e-15 * abs(value), 2.3e-16)
        return near if close and bool(near) == bool(value) else None
    exact = np.float32 if kind != "float16" else np.float16
    return near if exact(float(near)) == exact(value) and bool(near) == bool(value) else None
