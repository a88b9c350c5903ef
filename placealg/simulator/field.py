"""The prime field in which op graphs are executed: exact numbers of one size, in arrays.

Fractions of a transformer grow without bound. Every number of a run is made from integers by +, -, * and /, and
reduction modulo a prime respects all four: an identity that holds over the rationals holds here, and two rationals
that differ are told apart unless the prime divides the numerator of their difference. The inverse of 0 is 0, in
every run alike.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRIME = 134_217_689
"""The largest prime below 2**27."""

MOST_SUMMANDS = 512
"""As many products of two residues as a signed 64-bit number holds."""

Array = NDArray[Any]
"""Residues; where units run whole fractions, or the vectors of tokens; floats within `in_floats`."""

_FLOATS: ContextVar[bool] = ContextVar("floats", default=False)


@contextmanager
def in_floats(floats: bool = True) -> Iterator[None]:
    """Within it op graphs run in floats in place of residues: to show a run, never to judge it.

    The numbers that come from outside are those of the residues, scaled into (0, 1).
    """
    before = _FLOATS.set(floats)
    try:
        yield
    finally:
        _FLOATS.reset(before)


def element_type() -> type[np.number[Any]]:
    """The type of the numbers that a run of an op graph makes."""
    return np.float64 if _FLOATS.get() else np.int64


def reduced(numbers: Array) -> Array:
    """Integers modulo the prime; floats, and what is no number of the field, as they are.

    >>> reduced(np.array([-1, PRIME])).tolist(), reduced(np.array([-0.5])).tolist()
    ([134217688, 0], [-0.5])
    """
    return numbers % PRIME if numbers.dtype.kind == "i" else numbers


def unequal(one: Array, other: Array) -> Array:
    """Where two arrays differ; floats do where rounding does not explain it."""
    if "f" in (one.dtype.kind, other.dtype.kind):
        return ~np.isclose(one, other, rtol=1e-6, atol=1e-12)
    apart: Array = one != other
    return apart

Operand = tuple[tuple[str, ...], Array]
"""An array with the names of its dims."""


class Residues:
    """Numbers of the field, added and multiplied elementwise; a fraction stands for its residue.

    >>> half = Residues(np.array([1, 3])) / 2
    >>> half + half == Residues(np.array([1, 3])), half * Fraction(2, 3) == Fraction(1, 3)
    (True, False)
    """

    __slots__ = ("numbers",)

    def __init__(self, numbers: Array) -> None:
        self.numbers = numbers

    def __add__(self, other: Number | int) -> Residues:
        return Residues(reduced(self.numbers + residues(other)))

    def __sub__(self, other: Number | int) -> Residues:
        return Residues(reduced(self.numbers - residues(other)))

    def __mul__(self, other: Number | int) -> Residues:
        return Residues(reduced(self.numbers * residues(other)))

    def __truediv__(self, other: Number | int) -> Residues:
        return Residues(reduced(self.numbers * inverse(residues(other))))

    def __rtruediv__(self, other: Fraction | int) -> Residues:
        return Residues(reduced(residues(other) * inverse(self.numbers)))

    def __rsub__(self, other: Fraction | int) -> Residues:
        return Residues(reduced(residues(other) - self.numbers))

    __radd__, __rmul__ = __add__, __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Residues | Fraction | int) and not np.any(unequal(self.numbers, residues(other)))

    __hash__ = None  # type: ignore[assignment]  # equal ones may have other dims, or be fractions

    def __repr__(self) -> str:
        return told(self.numbers)


Number = Fraction | Residues
"""A number of a run: an exact fraction, or residues where an op graph runs."""


def told(numbers: Array) -> str:
    """Numbers as text: residues say of which prime.

    >>> told(np.array([4])), told(np.array([0.123456789]))
    ('[4] (mod 134217689)', '[0.123456789]')
    """
    if numbers.dtype.kind == "f":
        shown = ", ".join(f"{x:.9g}" for x in numbers.ravel().tolist())
        return f"[{shown}]" if numbers.ndim else shown
    return f"{numbers.tolist()} (mod {PRIME})"


def residues(number: Number | int) -> Array:
    """The residues of a number, as an array; its float within `in_floats`.

    >>> residues(Fraction(1, 2)) * 2 % PRIME
    array([1])
    """
    if isinstance(number, Residues):
        return number.numbers
    if _FLOATS.get():
        return np.array([float(number)])
    numerator, denominator = number.as_integer_ratio()
    return np.array([numerator % PRIME * pow(denominator % PRIME, PRIME - 2, PRIME) % PRIME], dtype=np.int64)


def objects(values: Sequence[object]) -> Array:
    """Values that numpy knows nothing about, as an array of one dim.

    >>> objects([(Fraction(1), Fraction(2))])[0]
    (Fraction(1, 1), Fraction(2, 1))
    """
    made = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        made[place] = value
    return made


def squares(number: Number) -> Number:
    """The sum of the squares of all that a number holds."""
    if isinstance(number, Residues):
        return Residues(reduced(reduced(number.numbers * number.numbers).sum(keepdims=True).reshape(1)))
    return number * number


def overflows(number: Number, among: int) -> bool:
    """Whether one of the numbers overflows: its residue is so large that, of `among` random ones, half the time one is.

    >>> overflows(Fraction(PRIME - 1), 100), overflows(Residues(np.array([1, 0, PRIME // 2])), 100)
    (True, False)
    """
    found, least = residues(number), PRIME - 7 * PRIME // (10 * among)
    return bool(np.any((found % 1 * PRIME if found.dtype.kind == "f" else found) >= least))


def inverse(numbers: Array) -> Array:
    """1/x elementwise; 0 for 0.

    >>> (inverse(np.array([[2], [0]])) * 2 % PRIME).tolist()
    [[1], [0]]
    """
    if _FLOATS.get():
        return np.divide(1.0, numbers, out=np.zeros(numbers.shape), where=numbers != 0)
    flat = [pow(x, PRIME - 2, PRIME) for x in numbers.ravel().tolist()]
    return np.array(flat, dtype=np.int64).reshape(numbers.shape)


def contract(operands: Sequence[Operand], dims: Sequence[str]) -> Array:
    """The product of arrays with named dims, summed over every dim that `dims` lacks.

    >>> contract([(("a", "b"), np.array([[1, 2]])), (("b",), np.array([3, -1]))], ("a",))
    array([1])
    """
    (left_dims, left), *others = operands
    for k, (right_dims, right) in enumerate(others):
        later = {d for names, _ in others[k + 1:] for d in names} | set(dims)
        kept = tuple(d for d in dict.fromkeys((*left_dims, *right_dims)) if d in later)
        left, left_dims = _pair(left_dims, left, right_dims, right, kept), kept
    if left_dims == tuple(dims):
        return left
    lost = tuple(i for i, d in enumerate(left_dims) if d not in dims)
    remaining = [d for d in left_dims if d in dims]
    summed = reduced(left.sum(axis=lost)) if lost else left
    return summed.transpose([remaining.index(d) for d in dims])


def _pair(left_dims: tuple[str, ...], left: Array, right_dims: tuple[str, ...], right: Array,
          kept: tuple[str, ...]) -> Array:
    """One product of two arrays; a sum of too many products is cut along its longest dim."""
    lengths = {**dict(zip(left_dims, left.shape, strict=True)), **dict(zip(right_dims, right.shape, strict=True))}
    summed = {d: n for d, n in lengths.items() if d not in kept}
    if int(np.prod(list(summed.values()), dtype=np.int64)) > MOST_SUMMANDS:
        longest = max(summed, key=lambda d: summed[d])
        half = summed[longest] // 2
        parts = []
        for inside in (slice(half), slice(half, None)):
            a, b = (array[tuple(inside if d == longest else slice(None) for d in names)]
                    for names, array in ((left_dims, left), (right_dims, right)))
            parts.append(_pair(left_dims, a, right_dims, b, kept))
        return reduced(parts[0] + parts[1])
    number = {d: i for i, d in enumerate(lengths)}
    made: Array = np.einsum(left, [number[d] for d in left_dims], right, [number[d] for d in right_dims],
                            [number[d] for d in kept])
    return reduced(made)


_GOLDEN, _FIRST, _SECOND = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def keyed(key: str, indices: Mapping[str, Sequence[int]]) -> Array:
    """A number other than 0 for every point of `indices`: that of `drawn`, scaled into (0, 1) within `in_floats`."""
    found = drawn(key, indices)
    return found / PRIME if _FLOATS.get() else found


def drawn(key: str, indices: Mapping[str, Sequence[int]]) -> Array:
    """A residue other than 0 for every point of `indices`: a function of the key and of the point's coordinates.

    The order of the dims does not matter to the numbers.

    >>> wide, part = drawn("mask", {"a": (0, 1), "b": (0, 1, 2)}), drawn("mask", {"b": (2,), "a": (1,)})
    >>> wide.shape, bool(part[0, 0] == wide[1, 2])
    ((2, 3), True)
    """
    start = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
    state = np.full([len(at) for at in indices.values()] or [1], start, dtype=np.uint64)
    names = list(indices)
    for dim in sorted(names):
        shape = [len(indices[dim]) if d == dim else 1 for d in names]
        at = np.array(indices[dim], dtype=np.uint64).reshape(shape) + np.uint64(1 + zlib.crc32(dim.encode()))
        state = state ^ (at * _GOLDEN)
        state = (state ^ (state >> np.uint64(30))) * _FIRST
        state = (state ^ (state >> np.uint64(27))) * _SECOND
        state = state ^ (state >> np.uint64(31))
    return (state % np.uint64(PRIME - 1)).astype(np.int64).reshape([len(at) for at in indices.values()]) + 1
