"""The small network that a run trains where the model's own is unknown: tokens, units, derivatives, optimizer.

Every instance of a parameter group is a 2x2 matrix. A unit computes x -> f phi(W x): W is the sum of its groups'
matrices, columns scaled by constants that differ from group to group; phi is the leaky rectifier with slope 1/2; f is
a random factor, as in dropout. The loss of a token is half the squared distance to its target. phi is injective, not
linear, and of degree one, so that exact numbers stay short over several steps.
"""

from __future__ import annotations

import hashlib
import math
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from placealg.simulator.field import Number, Residues, residues

Vector = tuple[Fraction, Fraction]
Matrix = tuple[Fraction, Fraction, Fraction, Fraction]

HALF = Fraction(1, 2)
EIGHTH = HALF ** 3
ZERO = Fraction(0)
FIRST_STREAM = Fraction(100)
"""The value of `rng` in the first step."""

FIRST_SCALE = Fraction(8)
"""The loss scale of the first step."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of one step: its logical number, input and target."""

    id: int
    x: Vector
    target: Vector


@dataclass(frozen=True, slots=True)
class KeptByUnit:
    """What a unit's forward keeps for its backward, token by token: x, W x, and the random factor."""

    inputs: tuple[Vector, ...]
    hidden: tuple[Vector, ...]
    factors: tuple[Fraction, ...]


def _draw(text: str, count: int) -> tuple[Fraction, ...]:
    stream = random.Random(text)
    return tuple(Fraction(stream.choice((-1, 1)) * stream.randrange(1, 32, 2), 8) for _ in range(count))


@lru_cache(maxsize=4096)
def token(seed: int, step: int, number: int) -> Token:
    """Token `number` of the batch of `step`: small odd multiples of 1/8."""
    a, b, c, d = _draw(f"token {seed} {step} {number}", 4)
    return Token(number, (a, b), (c, d))


@lru_cache(maxsize=4096)
def initial_weight(seed: int, group: str, instance: int) -> Matrix:
    """The reference's initial matrix: small odd multiples of 1/8."""
    a, b, c, d = _draw(f"weight {seed} {group} {instance}", 4)
    return a, b, c, d


def random_factor(seed: int, stream: Fraction, token_id: int, unit: str, instance: int, *deviation: str) -> Fraction:
    """The factor of one token in one unit, a multiple of 1/32 from 1/2 to 5/2, as a function of its key."""
    key = f"{seed} {stream} {token_id} {unit} {instance} {deviation}"
    return Fraction(17 + zlib.crc32(key.encode()) % 64, 32)


def forward(matrices: Sequence[Matrix], inputs: Sequence[Vector],
            factors: Sequence[Fraction]) -> tuple[tuple[Vector, ...], KeptByUnit]:
    """The outputs of a unit with `matrices` on `inputs`, and what its backward needs."""
    mixed = _mixed(matrices)
    hidden = tuple(_times(mixed, x) for x in inputs)
    outputs = tuple((_phi(p) * f, _phi(q) * f) for (p, q), f in zip(hidden, factors, strict=True))
    return outputs, KeptByUnit(tuple(inputs), hidden, tuple(factors))


def backward(matrices: Sequence[Matrix], kept: KeptByUnit,
             gradients: Sequence[Vector]) -> tuple[tuple[Vector, ...], list[Matrix]]:
    """The gradients of a unit's inputs, and of each of its matrices summed over the tokens."""
    a, b, c, d = _mixed(matrices)
    slopes = [(_slope(p * f, h), _slope(q * f, k))
              for (p, q), f, (h, k) in zip(gradients, kept.factors, kept.hidden, strict=True)]
    outer = [(p * x, p * y, q * x, q * y) for (p, q), (x, y) in zip(slopes, kept.inputs, strict=True)]
    s, t, u, v = (sum((term[e] for term in outer), ZERO) for e in range(4))
    found = [(s * left, t * right, u * left, v * right) for left, right in map(_scales, range(len(matrices)))]
    return tuple(_times((a, c, b, d), slope) for slope in slopes), found


def second_moments(inputs: Iterable[tuple[Vector, Fraction]]) -> Matrix:
    """The statistic of a unit's inputs: the sum over tokens of x x^T, each times its weight."""
    found = [(x * x * w, x * y * w, y * x * w, y * y * w) for (x, y), w in inputs]
    a, b, c, d = (sum((term[e] for term in found), ZERO) for e in range(4))
    return a, b, c, d


def largest(inputs: Iterable[tuple[Vector, Fraction]]) -> Matrix:
    """The largest magnitudes in x x^T over a unit's inputs x, each times its weight; 0 where there are none."""
    found = [(abs(x * x * w), abs(x * y * w), abs(y * x * w), abs(y * y * w)) for (x, y), w in inputs]
    a, b, c, d = (max((term[e] for term in found), default=ZERO) for e in range(4))
    return a, b, c, d


def _scales(place: int) -> tuple[int, int]:
    """The column scales of a unit's group at this place: different for every group of a unit."""
    return 1 + place, 1 + 2 * place


def _mixed(matrices: Sequence[Matrix]) -> Matrix:
    """The matrix that a unit applies: the sum of its groups' matrices, each with its columns scaled."""
    if not matrices:
        return Fraction(1), ZERO, ZERO, Fraction(1)
    scaled = [(a * s, b * t, c * s, d * t) for (a, b, c, d), (s, t) in zip(matrices, map(_scales, range(len(matrices))),
                                                                         strict=True)]
    a, b, c, d = (sum((matrix[e] for matrix in scaled), ZERO) for e in range(4))
    return a, b, c, d


def _times(matrix: Matrix, vector: Vector) -> Vector:
    (a, b, c, d), (x, y) = matrix, vector
    return _dot(a, x, b, y), _dot(c, x, d, y)


def loss_gradient(output: Vector, target: Vector, weight: Fraction) -> Vector:
    """The gradient of weight times half the squared distance, with respect to a token's output."""
    return (output[0] - target[0]) * weight, (output[1] - target[1]) * weight


def digest(*numbers: Number) -> Fraction:
    """A multiple of 2**-24 in (0, 1] that depends on every digit of `numbers`; equal ones have equal digests.

    What clipping and per-matrix optimizers do with a norm is, for every claim about placement, an uninterpreted
    function of it. This one has short values, so that exact numbers do not double in length with every use. Of floats
    it is 1 / (1 + the norm of all numbers), which rounding hardly changes; 0 of what is too large for a float.
    """
    if any(isinstance(n, Residues) and n.numbers.dtype.kind == "f" for n in numbers):
        norm = math.hypot(*(float(x) for n in numbers for x in residues(n).ravel()))
        return Fraction(1 / (1 + norm)) if math.isfinite(norm) else ZERO
    fractions = [n.as_integer_ratio() for n in numbers if isinstance(n, Fraction)]
    whole = fractions if len(fractions) == len(numbers) else [residues(n).ravel().tolist() for n in numbers]
    key = " ".join(",".join(f"{x:x}" for x in number) for number in whole)
    return Fraction(1 + int.from_bytes(hashlib.blake2b(key.encode(), digest_size=3).digest(), "big"), 2**24)


def clip_factor(squared_norm: Number) -> Fraction:
    """The factor by which clipping multiplies a gradient of this squared global norm."""
    return digest(squared_norm)


def whole_matrix(tables: Iterable[Iterable[Number]]) -> Fraction:
    """What a per-matrix optimizer multiplies its step by, given all that it reads whole; 1 when it reads nothing."""
    numbers = [number for table in tables for number in table]
    return digest(*numbers) if numbers else Fraction(1)


def optimize(master: Number, moments: Number, gradient: Number, step: Number, whole: Number) -> tuple[Number, Number]:
    """(master, moments) of one element after `step` finished steps: momentum 1/2, rate whole / (4 + step).

    Weights decay by 1/8 through the moments, so that each state enters each: a proof is about every such update.
    """
    heavy = moments * HALF + gradient + master * EIGHTH
    return master - heavy * (whole / (4 + step)), heavy


def rescaled(scale: Fraction, skipped: bool) -> Fraction:
    """The loss scale after a step: half of it if the step was skipped, else twice."""
    return scale * (HALF if skipped else 2)


def average(before: Number, weight: Number) -> Number:
    """The moving average of one element after a step, of which `weight` is the new weight: a half of each."""
    return before * HALF + weight * HALF


def _dot(a: Fraction, x: Fraction, b: Fraction, y: Fraction) -> Fraction:
    left, right = a.denominator * x.denominator, b.denominator * y.denominator
    if left == right:
        return Fraction(a.numerator * x.numerator + b.numerator * y.numerator, left)
    return Fraction(a.numerator * x.numerator * right + b.numerator * y.numerator * left, left * right)


def _phi(h: Fraction) -> Fraction:
    return h if h.numerator > 0 else h * HALF


def _slope(gradient: Fraction, h: Fraction) -> Fraction:
    return gradient if h.numerator > 0 else gradient * HALF
