"""What the n ranks of one axis hold of one element of a tensor, and what redistributions do to it.

A Vector is a number for each rank, of a shape that every redistribution keeps: the same on all ranks, plus something at
the element's owner, plus a multiple of an arbitrary vector f, over a power of n. Sums over ranks have closed forms,
which `prove_sum` proves by induction. What a rank does not hold counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import z3
from telling import Account, Bool, Int, Twin, inductive

n, k, tau, new, here, there = z3.Ints("n k tau new here there")
f, F = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in ("f", "F"))
"""f is an arbitrary vector, F its partial sums: F(0) = 0, F(k + 1) = F(k) + f(k)."""

SIZES = [n >= 1, *(rank >= 0 for rank in (tau, new, here, there)), *(rank < n for rank in (tau, new, here, there)),
         *(z3.Implies(n == size, F(n) == z3.Sum([f(c) for c in range(size)])) for size in (2, 3))]
"""The premises: ranks lie inside the axis; at sizes 2 and 3 F is written out, so that every counterexample is a run."""
ZERO, ONE = z3.IntVal(0), z3.IntVal(1)


@dataclass(frozen=True, slots=True)
class Vector:
    """What the ranks hold: rank c holds (whole + [c = owner] owned + free f(c)) / n**over."""

    whole: Int = ZERO
    owned: Int = ZERO
    owner: Int = tau
    free: Int = ZERO
    over: int = 0

    def on(self, c: Int) -> Int:
        """What rank c holds, times n**over."""
        return self.whole + z3.If(c == self.owner, self.owned, 0) + self.free * f(c)


def partial_dot(x: Vector, y: Vector, k: Int) -> Int:
    """The sum of x_c y_c over ranks 0..k-1, for y without a free part: the closed form that the lemma proves."""
    return (k * x.whole * y.whole + z3.If(k > x.owner, x.owned * y.whole, 0) + z3.If(k > y.owner, x.whole * y.owned, 0)
            + z3.If(z3.And(k > x.owner, x.owner == y.owner), x.owned * y.owned, 0)
            + x.free * (y.whole * F(k) + z3.If(k > y.owner, y.owned * f(y.owner), 0)))


def dot(x: Vector, y: Vector) -> tuple[Int, int]:
    """The sum of x_c y_c over all n ranks, as a numerator and a power of n below it."""
    if not z3.eq(y.free, ZERO):
        x, y = y, x
    return partial_dot(x, y, n), x.over + y.over


def total(x: Vector) -> Vector:
    """The sum over the ranks, on every rank."""
    number, over = dot(x, Vector(ONE))
    return Vector(number, over=over)


Event = Callable[[Vector, Int, Int], Vector]
EVENTS: Mapping[str, Event] = {
    "none": lambda x, source, target: x,
    "scale 1/n": lambda x, source, target: replace(x, over=x.over + 1),
    "slice": lambda x, source, target: Vector(owned=x.on(target), owner=target, over=x.over),
    "zero-pad": lambda x, source, target: Vector(owned=x.on(source), owner=source, over=x.over),
    "all_gather": lambda x, source, target: Vector(x.on(source), over=x.over),
    "all_reduce": lambda x, source, target: total(x),
    "reduce_scatter": lambda x, source, target: Vector(owned=total(x).whole, owner=target, over=x.over),
    "all_to_all": lambda x, source, target: Vector(owned=x.on(source), owner=target, over=x.over),
}
"""Event -> what it does to a vector, given the element's owner before and after. What is not held counts as 0."""


def same(one: tuple[Int, int], two: tuple[Int, int]) -> Bool:
    """Two fractions are equal: denominators cleared."""
    def powered(power: int) -> Int:
        return z3.Product([ONE, *[n] * power])

    return one[0] * powered(two[1]) == two[0] * powered(one[1])


def prove_sum(account: Account) -> None:
    """The closed form of a sum of products; both sides are bilinear, so that vectors of a basis suffice."""
    def lemma(moved: Int) -> Bool:
        left = [Vector(ONE), Vector(owned=ONE), Vector(free=ONE)]
        right = [Vector(ONE), Vector(owned=ONE, owner=new)]
        return z3.And([closed(x, y, replace(y, owner=moved)) for x in left for y in right])

    def closed(x: Vector, y: Vector, moved: Vector) -> Bool:
        return inductive(lambda c: x.on(c) * y.on(c), lambda j: partial_dot(x, moved, j), k)

    account.theorem("for every k: the closed form of the sum of x_c y_c over c < k", lemma(new),
                    [*SIZES, k >= 0, F(0) == 0, F(k + 1) == F(k) + f(k)],
                    twin=Twin("  the same as if x and y had one owner", lemma(tau)))
