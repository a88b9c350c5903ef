"""Attention block by block: partial results of a softmax merge, in any order and any grouping.

A row of attention over scores s_j and values v_j is out = (sum of e(s_j) v_j) / (sum of e(s_j)). A block of keys leaves
a partial result (m, l, o) with l = sum of e(s_j - m) and o = sum of e(s_j - m) v_j over its keys; m is the level, in
practice the running maximum, which is for rounding alone: below it is any number. Blocks merge at a level m by
l = l1 e(m1 - m) + l2 e(m2 - m), and o alike. A partial result *means* the pair (l e(m), o e(m)).

e is any function with two properties: *multiplicative*, e(a + b) = e(a) e(b), and *positive*, e > 0; from them
e(0) = 1; for gradients it is its own derivative. v_j is any number, one coordinate of the value.

Theorem. Merging adds meanings. So by induction over blocks o / l after any number of blocks is the whole row's out, at
whatever levels. Merging is commutative and associative, and a block without keys is its unit.

Saved sums. What is kept of a row for backward is one number, lse, with e(lse) the sum of e(s_j) over all keys. Then
e(s_j - lse) is the weight of key j and needs that key alone; outs normalized by their own lse merge as well; and the
gradients of keys, values and queries are sums of what each block adds, given lse and D = sum of dout v_j weight_j.

Sources: Milakov and Gimelshein, arXiv 1805.02867; Dao et al., FlashAttention, arXiv 2205.14135 and 2307.08691; Liu et
al., Ring Attention, arXiv 2310.01889.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from itertools import permutations
from operator import pos
from typing import Any

import z3
from telling import Account, Bool, Twin

Real = Any
e = z3.Function("e", z3.RealSort(), z3.RealSort())
ZERO = z3.RealVal(0)


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial result: its level m, and the sums l of weights and o of weighted values at that level."""

    level: Real
    weights: Real
    values: Real


x, y, z = (Partial(*z3.Reals(f"m{i} l{i} o{i}")) for i in (1, 2, 3))
m, low, lower, s, v = z3.Reals("m low lower s v")
A, B, a, b = z3.Reals("A B a b")
"""A, B: the sums of e(s_j) and of e(s_j) v_j over the keys of all blocks so far; a, b: over those of one more block."""


def merged(one: Partial, two: Partial, level: Real, e: Callable[[Real], Real] = e, *, both: bool = True) -> Partial:
    """Two partial results as one, both brought to `level`."""
    first, second = e(one.level - level) if both else 1, e(two.level - level)
    return Partial(level, one.weights * first + two.weights * second, one.values * first + two.values * second)


newcomer_alone = partial(merged, both=False)
"""Merging that brings only the second to the level, not what was there."""


def means(held: Partial, weights: Real, values: Real, e: Callable[[Real], Real] = e) -> Bool:
    """What a partial result stands for: these sums of e(s_j) and of e(s_j) v_j."""
    return z3.And(held.weights * e(held.level) == weights, held.values * e(held.level) == values)


def equal(one: Partial, two: Partial) -> Bool:
    """Equality of partial results of one level."""
    return z3.And(one.weights == two.weights, one.values == two.values)


def down(number: Real, level: Real) -> Bool:
    """*multiplicative*, of a number brought to a level."""
    return e(number) == e(number - level) * e(level)


def prove_merging(account: Account) -> None:
    """Merging adds meanings, whence the row's out; order, grouping and unit."""
    square = e(ZERO) == e(ZERO) * e(ZERO)
    account.theorem("e multiplicative and positive: e(0) = 1", e(ZERO) == 1, [square, e(ZERO) > 0],
                    twin=Twin("  multiplicative alone: it may be 0 everywhere", e(ZERO) == 1, [square]))
    alone = means(Partial(m, e(s - m), e(s - m) * v), e(s), e(s) * v)
    account.theorem("a key alone, at any level m: (m, e(s - m), e(s - m) v) means e(s) and e(s) v", alone, [down(s, m)],
                    twin=Twin("  if e is not multiplicative", alone, [e(s) > 0, e(m) > 0]))
    given = [means(x, A, B), means(y, a, b), down(x.level, m), down(y.level, m)]
    nothing = means(Partial(m, ZERO, ZERO), ZERO, ZERO)
    account.theorem("nothing means 0 and 0, and merging adds what both mean, at any level: so for any number of blocks",
                    z3.And(nothing, means(merged(x, y, m), A + a, B + b)), given,
                    twin=Twin("  without the factor e(m1 - m)", means(newcomer_alone(x, y, m), A + a, B + b)))
    account.refuted("  if e is not multiplicative", means(merged(x, y, m), A + a, B + b), given[:2])
    account.refuted("  if e is additive, e(x) = x", means(merged(x, y, m, pos), A + a, B + b, pos),
                    [m > 0, x.level > m, y.level > m, means(x, A, B, pos), means(y, a, b, pos)])
    mean = z3.And(x.weights != 0, x.values * A == B * x.weights)
    account.theorem("so o / l is the weighted mean over all keys, l not being 0", mean,
                    [means(x, A, B), e(x.level) > 0, A > 0],
                    twin=Twin("  if e may be 0", mean, [means(x, A, B), A >= 0]))
    account.theorem("merging is commutative", equal(merged(x, y, m), merged(y, x, m)), given,
                    twin=Twin("  if only the newcomer is brought to the new level",
                              equal(newcomer_alone(x, y, m), newcomer_alone(y, x, m))))

    def associative(merge: Callable[..., Partial]) -> Bool:
        return equal(merge(merge(x, y, low), z, m), merge(x, merge(y, z, lower), m))

    steps = [e(one.level - m) == e(one.level - over) * e(over - m)
             for one, over in ((x, low), (y, low), (y, lower), (z, lower))]
    account.theorem("merging is associative, at whatever levels in between", associative(merged), steps,
                    twin=Twin("  if only the newcomer is brought to the new level", associative(newcomer_alone)))
    unit = equal(merged(x, Partial(low, ZERO, ZERO), x.level), x)
    account.theorem("a block without keys is the unit, whatever its level", unit, [e(ZERO) == 1],
                    twin=Twin("  if e(0) is not 1", unit, []))


def prove_saved(account: Account) -> None:
    """The saved log-sum-exp: weights, merging of normalized outs, and the gradients of a block."""
    lse, lse1, lse2, out1, out2, dot, key, D, D1 = z3.Reals("lse lse1 lse2 out1 out2 dot key D D1")
    total = [e(lse1) == A, e(lse2) == a, A > 0, a > 0, e(lse) == A + a]
    account.theorem("saved lse: e(s - lse) is e(s) over the sum of all, and needs key j alone",
                    e(s - lse) * (A + a) == e(s), [*total, down(s, lse)],
                    twin=Twin("  with the lse of its own block", e(s - lse1) * (A + a) == e(s),
                              [*total, down(s, lse1), e(s) > 0]))
    merging = [*total, out1 * A == B, out2 * a == b, down(lse1, lse), down(lse2, lse)]
    account.theorem("no level at all: out = out1 e(lse1 - lse) + out2 e(lse2 - lse) is the mean over both blocks",
                    (out1 * e(lse1 - lse) + out2 * e(lse2 - lse)) * (A + a) == B + b, merging,
                    twin=Twin("  the mean of the blocks' outs", (out1 + out2) * (A + a) == 2 * (B + b)))
    quotient = (e(s) * dot * (A + a) - (B + b) * e(s)) * key
    """The quotient rule on B + b over A + a, times (A + a)**2 and the key; e is its own derivative, and B + b the sum
    of e(s_j) dot_j with dot_j = dout v_j."""
    saved = [*total, down(s, lse), D * (A + a) == B + b, D1 * A == B]

    def term(sum_saved: Real, mean: Real) -> Bool:
        """Whether the block's own term, e(s - lse) (dot - D) key, is that of the whole row."""
        return e(s - sum_saved) * (dot - mean) * key * (A + a) * (A + a) == quotient

    account.theorem("backward: what a block adds for a key, with the saved lse and D, is the whole row's term",
                    term(lse, D), saved, twin=Twin("  with the D of its own block", term(lse, D1)))
    account.refuted("  with the lse of its own block", term(lse1, D), [*saved, down(s, lse1)])
    account.say("So the gradients of queries, keys and values are plain sums of such terms (sum_of_sum in sums.py): a\n"
                "query's add up where it stays, a key's travel with it round the ring (rings.py).")


BLOCKS = (((3, 5), (1, -2)), ((7, 4),), (), ((2, 9), (6, -1), (4, 8)))
"""Scores and values of four blocks, one of them without keys."""


def outs(e: Callable[[int], Fraction], merge: Callable[..., Partial]) -> set[Fraction]:
    """o / l key by key and block by block at the running maximum, for every order of the blocks."""
    def join(one: Partial, two: Partial) -> Partial:
        return merge(one, two, max(one.level, two.level), e)

    nothing, one = Partial(0, Fraction(0), Fraction(0)), Fraction(1)
    blocks = [reduce(join, (Partial(score, one, value * one) for score, value in keys), nothing) for keys in BLOCKS]
    return {row.values / row.weights for row in (reduce(join, order, nothing) for order in permutations(blocks))}


def run_blocks(account: Account) -> None:
    """Four blocks in all orders, on fractions, for two functions e."""
    def whole(e: Callable[[int], Fraction]) -> Fraction:
        weights = [(e(score), value) for keys in BLOCKS for score, value in keys]
        return sum((w * value for w, value in weights), Fraction(0)) / sum(w for w, _ in weights)

    power, line = Fraction(2).__pow__, Fraction(10).__sub__
    account.run("e(x) = 2**x, four blocks, all orders: the whole row's out", outs(power, merged) == {whole(power)})
    account.run("not if only the newcomer is brought to the new level", whole(power) not in outs(power, newcomer_alone))
    account.run("nor for another e that is positive here, e(x) = 10 - x", whole(line) not in outs(line, merged))


def main() -> Account:
    """Prove how partial results merge, and what backward needs of a row."""
    account = Account("Softmax block by block: partial results merge in any order")
    for prove_part in (prove_merging, prove_saved, run_blocks):
        prove_part(account)
    return account.close()


if __name__ == "__main__":
    main()
