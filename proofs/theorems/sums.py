"""The sums that every proof rests on, each for any number n of ranks and none of them unbounded for the solver.

Theorem. Let S(k) be the sum of f(c) over the ranks c = 0..k-1, that is S(0) = 0 and S(k+1) = S(k) + f(k). Then each
closed form below holds for every k: it is right at 0 (base) and gains f(k) from k to k+1 (step). Z3 proves base and
step for every k, every position tau >= 0 and every f; induction is the only step taken outside of it.

Corollary. A reduce_scatter and then an all_gather, under one owner function, is an all_reduce; rings.py makes both of
them by messages between neighbours.
"""

from __future__ import annotations

from dataclasses import replace

import z3
from telling import Account, Bool, Int, Twin, inductive
from vectors import EVENTS, SIZES, Vector, prove_sum

from placealg.arith import ONE
from placealg.frozen import FrozenMap
from placealg.prover.calculus.contribution import Term, Value
from placealg.prover.evidence.lemmas import LEMMAS, Lemma, obligations

n, k, tau, factor = z3.Ints("n k tau factor")
f, g, F, G = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in ("f", "g", "F", "G"))

PARTIAL = [k >= 0, F(0) == 0, F(k + 1) == F(k) + f(k), G(0) == 0, G(k + 1) == G(k) + g(k)]
"""F and G are the partial sums of f and g."""


def holds(lemma: Lemma) -> Bool:
    """Base and step of a lemma, as the package states them."""
    return z3.Not(z3.Or([part[-1] for part in obligations(lemma)]))


def prove_lemmas(account: Account) -> None:
    """The lemmas of the package, each with a twin that is one rank early, and two that the essays add."""
    for lemma in LEMMAS:
        def early(j: Int, lemma: Lemma = lemma) -> Int:
            return lemma.partial(j + 1)

        account.theorem(f"{lemma.name}: {lemma.statement}", holds(lemma), obligations(lemma)[0][:-1],
                        twin=Twin("  the same, one rank early", holds(replace(lemma, partial=early))))
    account.theorem("sum_of_sum: the sum of f + g is the sum of f plus the sum of g",
                    inductive(lambda j: f(j) + g(j), lambda j: F(j) + G(j), k), PARTIAL,
                    twin=Twin("  the sum of f g is the product of the sums",
                              inductive(lambda j: f(j) * g(j), lambda j: F(j) * G(j), k)))
    account.theorem("sum_of_multiple: the sum of x f is x times the sum of f",
                    inductive(lambda j: factor * f(j), lambda j: factor * F(j), k), PARTIAL,
                    twin=Twin("  the sum of x f is the sum of f",
                              inductive(lambda j: factor * f(j), F, k)))


def prove_all_reduce(account: Account) -> None:
    """reduce_scatter and then all_gather: by sums over ranks, on the table's events, and in the package's calculus.

    scattered(c) is what rank c has after the sum F(n) of an arbitrary f went to rank `own`: F(n) there, and anything
    elsewhere, such as another element. gathered(k) is the sum over ranks below k of what the rank in `place` sends.
    """
    own, place = z3.Ints("own place")
    owners = [n >= 1, k >= 0, *(z3.And(rank >= 0, rank < n) for rank in (own, place))]
    gathered, scattered = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in ("gathered", "scattered"))
    events = [*owners, *PARTIAL[:3], scattered(own) == F(n), gathered(0) == 0,
              gathered(k + 1) == gathered(k) + z3.If(k == place, scattered(k), 0)]

    def read(turns: Int) -> Bool:
        return gathered(turns) == z3.If(turns > own, F(n), 0)

    claim = z3.And(read(z3.IntVal(0)), z3.Implies(read(k), read(k + 1)), z3.Implies(read(n), gathered(n) == F(n)))
    account.theorem("for every n and any f: reduce_scatter to the owner, then all_gather from it, is all_reduce,\n"
                    "           whatever other ranks hold (base and step over ranks)", claim, [*events, place == own],
                    twin=Twin("  under another owner function for the all_gather", claim, events))
    held, reader = Vector(free=z3.IntVal(1), owned=z3.Int("owned"), whole=z3.Int("whole")), z3.Int("reader")
    two = EVENTS["all_gather"](EVENTS["reduce_scatter"](held, tau, own), place, reader)
    once = EVENTS["all_reduce"](held, tau, reader)
    same_reads = two.on(reader) == once.on(reader)
    sizes = [*SIZES, *owners, reader >= 0, reader < n]
    account.theorem("on the events of the redistribution table, for every n and seen on any rank: the same", same_reads,
                    [*sizes, place == own], twin=Twin("  gathered from another rank than the one that has the sum",
                                                      same_reads, sizes))
    value = Value((Term(ONE, FrozenMap({"dp": "unit"})), Term(ONE)))
    reduced, mine = value.reduced(("dp",), ONE), {"dp": "own:own"}
    account.run("the package's contribution calculus says the same",
                reduced.masked(mine.items()).gathered(mine) == reduced)
    account.run("and keeps a condition when the owners differ: they must be one rank",
                bool(reduced.masked(mine.items()).gathered({"dp": "own:alt"}).sides))


def main() -> Account:
    """Prove the lemmas and the corollary."""
    account = Account("Sums over n ranks, by induction", {"n": 3})
    prove_lemmas(account)
    account.say("An all_reduce in two halves.")
    prove_sum(account)
    prove_all_reduce(account)
    return account.close()


if __name__ == "__main__":
    main()
