"""The cutoff lemma: from finitely many sizes to all of them.

Lemma. A rational identity in a size n, of degree d once its denominators are cleared, holds for every n iff it holds at
d + 1 distinct sizes at which no denominator is 0. For its difference is a polynomial p of degree at most d, and

- if p(r) = 0 then p(x) = (x - r) q(x) with q of degree at most d - 1: Horner's rule at x and at r, by induction over
  the coefficients, for every d;
- so a p with d + 1 distinct roots loses one root and one degree at a time, until a constant with a root is left: 0.

Equivalently, the matrix of powers of d + 1 distinct sizes has a determinant that is not 0 (Vandermonde). The other
sizes may stay symbols: their polynomials have no zero divisors, and the lemma uses nothing else of the coefficients.

What is asked is no single identity: it also says which of its k positions coincide, and which are one of s ranks that
the program names. Each such pattern has an identity of its own. From the size max(k + s, the largest named rank + 1) on
there are the same patterns at every size; so the d + 1 sizes lie from there on, and those below are tried one by one.

d sizes are not enough: the product of (n - n_i) over them is an identity there, and holds nowhere else. Choose distinct
primes: equal sizes hide events on a wrong axis, and n = 2 hides that n - 1 and n/2 are no 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import z3
from telling import Account, Bool, Int, Twin

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.prover.calculus.contribution import Term, Value

LARGEST = 4
"""The largest degree for which the determinant is written out."""

PRIMES = (2, 3, 5, 7, 11)
FACTOR = {"sum": ONE, "mean": ONE / Monomial.of("dp"), "half": ONE / Monomial.number(2)}
"""Reduction -> what it multiplies the sum over dp by."""

x, r, horner_x, horner_r, quotient, coefficient = z3.Ints("x r horner_x horner_r quotient coefficient")


def prove_roots(account: Account) -> None:
    """A polynomial of degree d that is not 0 has at most d roots, for every d.

    Horner from the highest coefficient down: A becomes a + x A, B becomes a + r B, Q becomes B + x Q; at the end A is
    p(x), B is p(r), Q is q(x). The invariant is A - B = (x - r) Q.
    """
    def invariant(at_x: Int, at_r: Int, q: Int) -> Bool:
        return at_x - at_r == (x - r) * q

    given = [invariant(horner_x, horner_r, quotient)]
    next_x, next_r = coefficient + x * horner_x, coefficient + r * horner_r
    goal = z3.And(invariant(coefficient, coefficient, z3.IntVal(0)), invariant(next_x, next_r, horner_r + x * quotient))
    account.theorem("for every d: p(x) - p(r) = (x - r) q(x) (base: the highest coefficient; step: one more)",
                    goal, given, twin=Twin("  with Q = A + x Q", invariant(next_x, next_r, horner_x + x * quotient)))
    account.theorem("another root of (x - r) q(x) is a root of q, which has one degree less", quotient == 0,
                    [x != r, (x - r) * quotient == 0],
                    twin=Twin("  if sizes may coincide", quotient == 0, [(x - r) * quotient == 0]))


def powers(size: Int, degree: int) -> list[Int]:
    """1, size, ..., size**degree."""
    row = [z3.IntVal(1)]
    for _ in range(degree):
        row.append(row[-1] * size)
    return row


def determinant(matrix: Sequence[Sequence[Int]]) -> Int:
    """Expanded along the first row."""
    if not matrix:
        return z3.IntVal(1)
    minors = [[[v for q, v in enumerate(row) if q != c] for row in matrix[1:]] for c in range(len(matrix))]
    return z3.Sum([(-1) ** c * matrix[0][c] * determinant(minors[c]) for c in range(len(matrix))])


def product(factors: Sequence[Int]) -> Int:
    """Their product."""
    return z3.Product([z3.IntVal(1), *factors])


def prove_vandermonde(account: Account) -> None:
    """For d <= LARGEST: the determinant is the product of differences."""
    left, right = z3.Ints("left right")
    for d in range(1, LARGEST + 1):
        sizes = [z3.Int(f"n{c}") for c in range(d + 1)]
        matrix = [powers(size, d) for size in sizes]
        differences = [b - a for a, b in combinations(sizes, 2)]
        account.theorem(f"d = {d}: the determinant of the powers of {d + 1} sizes is the product of their differences",
                        determinant(matrix) == product(differences), [],
                        twin=Twin("  without the first difference", determinant(matrix) == product(differences[1:])))
    account.theorem("a product of factors that are not 0 is not 0 (so distinct sizes have a determinant other than 0)",
                    left * right != 0, [left != 0, right != 0],
                    twin=Twin("  if two sizes may be equal", left * right != 0, [left != 0]))


def parametric(program: Sequence[str]) -> bool:
    """Whether the reductions leave 1/dp of the one rank's contribution on every rank: the calculus, for every dp."""
    value = Value((Term(ONE, FrozenMap({"dp": "unit"})),))
    for reduction in program:
        value = value.reduced(("dp",), FACTOR[reduction])
    return value.terms == (Term(ONE / Monomial.of("dp")),)


def unrolled(program: Sequence[str], dp: int) -> bool:
    """The same at one size, rank by rank."""
    weights = [Fraction(1)] + [Fraction(0)] * (dp - 1)
    for reduction in program:
        weights = [sum(weights, Fraction(0)) * FACTOR[reduction].evaluate({"dp": dp})] * dp
    return all(weight == Fraction(1, dp) for weight in weights)


def run_obligation(account: Account) -> None:
    """Gradient integrity of data parallelism, by unrolling d + 1 prime sizes; and the same by the calculus.

    Each reduction adds dp weights and divides by dp at most once, and the reference weight is 1/dp: cleared, the degree
    is at most the number of reductions plus one.
    """
    for name, program in (("one mean", ("mean",)), ("two means", ("mean", "mean")), ("a sum", ("sum",)),
                          ("a mean, then a sum", ("mean", "sum")), ("a sum that is halved", ("half",))):
        sizes = PRIMES[: len(program) + 2]
        right = all(unrolled(program, dp) for dp in sizes)
        account.run(f"{name}: degree at most {len(program) + 1}; {'right' if right else 'wrong'} at dp in {sizes}, "
                    f"so {'for every dp' if right else 'refuted'}; the calculus agrees", right is parametric(program))
    account.run("the halved sum at dp = 2 alone looks right: fooled",
                unrolled(("half",), 2) and not parametric(("half",)))


def prove_too_few(account: Account) -> None:
    """For every d, and any d sizes, an identity of degree d that holds at them alone, by induction over the sizes."""
    value, size, n = z3.Ints("value size n")
    among = z3.Bool("among")
    given = [(value == 0) == among]
    account.theorem("for every d: the product of (n - n_i) over d sizes is 0 at each of them and nowhere else",
                    z3.And(z3.IntVal(1) != 0, (value * (n - size) == 0) == z3.Or(among, n == size)), given,
                    twin=Twin("  fooled: it is 0 at d sizes, hence for every n", value * (n - size) == 0))


def prove_patterns(account: Account) -> None:
    """Whatever coincides at one size does so at every size from the bound on.

    A named rank stays where it is. Another position goes to unnamed(first): `first` is the least index of a position
    that is equal to it, `unnamed` counts the numbers that are no named ranks.
    """
    named = z3.Function("named", z3.IntSort(), z3.BoolSort())
    position, first, unnamed = (z3.Function(f, z3.IntSort(), z3.IntSort()) for f in ("position", "first", "unnamed"))
    i, j, rank, k, s, below = z3.Ints("i j rank k s below")

    def moved(index: Int) -> Int:
        return z3.If(named(position(index)), position(index), unnamed(first(index)))

    least = [position(first(i)) == position(i), position(first(j)) == position(j),
             z3.Implies(position(i) == position(j), first(i) == first(j)),
             z3.Implies(unnamed(first(i)) == unnamed(first(j)), first(i) == first(j))]
    off = [z3.Not(named(unnamed(first(i)))), z3.Not(named(unnamed(first(j)))), named(rank)]
    same = z3.And((moved(i) == moved(j)) == (position(i) == position(j)), (moved(i) == rank) == (position(i) == rank))
    account.theorem("positions coincide, with each other and with a named rank, iff those to which they go do",
                    same, [*least, *off], twin=Twin("  if one may go to a named rank", same, least))
    account.theorem("with at most s named ranks below it, the j-th unnamed number for j < k is less than k + s",
                    j + below < k + s, [j >= 0, j < k, below >= 0, below <= s],
                    twin=Twin("  for j = k", j + below < k + s, [j >= 0, j <= k, below >= 0, below <= s]))


def run_patterns(account: Account) -> None:
    """A fault on one named rank, and one that needs three different positions: below the bound nothing shows."""
    def wrong(n: int) -> bool:
        return any(c == 5 for c in range(n))

    def three(n: int) -> bool:
        return any(a != b != c != a for a in range(n) for b in range(n) for c in range(n))
    account.run("rank(dp)=5 is wrong: right at 2, 3 and 5, all sizes of degree 2; wrong at each from 6 on",
                not any(map(wrong, (2, 3, 5))) and all(map(wrong, range(6, 30))))
    account.run("three positions that differ: none at 2, some at each size from 3 on",
                not three(2) and all(map(three, range(3, 12))))


def main() -> Account:
    """Prove the lemma, use it, and be fooled by one size less."""
    account = Account("The cutoff lemma: d + 1 sizes decide an identity of degree d",
                      {"n0": 3, "n1": 5, "n2": 2, "n3": 7, "n4": 11})
    prove_roots(account)
    prove_vandermonde(account)
    account.say("An obligation at d + 1 primes.")
    run_obligation(account)
    account.say("From which size on: what coincides.")
    prove_patterns(account)
    run_patterns(account)
    account.say("One size less.")
    prove_too_few(account)
    return account.close()


if __name__ == "__main__":
    main()
