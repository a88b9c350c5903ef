"""The first theorem: ops that are right under their placements give every device the reference's gamma.

A layer y = sum over f of b_f phi(a_f x) runs on n ranks of an axis that splits f: own(f) is the one rank that holds
a_f and b_f, any total function (uneven shards and empty ones included). phi is any function, dphi its declared
derivative. Hypotheses on the placement, one for each kind of op:

- linear: each term of a contraction is counted once over all ranks, at scale 1, wherever the result is needed;
- nonlinear: phi is applied to exact operands, never to a part of a sum;
- backward: every gradient returns by the redistribution that is conjugate to the forward one.

Theorem. Then for every n, every owner function, phi, a, b and x: y is the reference's on every rank; the gradient that
enters the layer below is; and the gradients gamma of a_f and b_f are the reference's on the rank that holds them. By
induction over the layers, forward from the data and backward from the loss, the same holds for a network.
"""

from __future__ import annotations

import z3
from telling import Account, Bool, Int, Twin, inductive, run_equals, step_of, verdict

from placealg.model.transformer import mlp

n, k, j, c, f, x, dy, bias = z3.Ints("n k j c f x dy bias")
Number = z3.IntSort()
a, b, own, phi, dphi, u = (z3.Function(name, Number, Number) for name in ("a", "b", "own", "phi", "dphi", "u"))
part = z3.Function("part", Number, Number, Number)
summed, whole = z3.Function("summed", Number, Number), z3.Function("whole", Number, Number)
"""u(f) is the contribution of f; part(c, k) the sum of those with f < k that rank c owns; summed(k) the sum of
part(c, k) over all ranks; whole(k) the single device's sum over f < k."""

TOTAL = [n >= 1, own(k) >= 0, own(k) < n, c >= 0, c < n]


def owned_once(rank: Int) -> Int:
    """What `rank` adds when the contraction reaches f = k."""
    return z3.If(rank == own(k), u(k), 0)


def prove_linear(account: Account) -> None:
    """Contraction: the all_reduce of partial sums is the sum, by induction over f.

    summed(k + 1) is the sum over ranks of part(c, k) + owned_once(c): by sum_of_sum (sums.py) it is summed(k) plus
    what the ranks add together, and that is u(k), or n u(k) where every rank adds it (sum_of_constant).
    """
    account.theorem("for every n: the ranks together add u(k) once (lemma sum_of_owner)",
                    z3.And(inductive(owned_once, lambda i: z3.If(i > own(k), u(k), 0), j),
                           z3.If(n > own(k), u(k), 0) == u(k)), [*TOTAL, j >= 0],
                    twin=Twin("  if an index may have no owner",
                              z3.If(n > own(k), u(k), 0) == u(k), [n >= 1, own(k) >= 0]))
    joined = [*TOTAL, k >= 0, summed(0) == 0, whole(0) == 0, whole(k + 1) == whole(k) + u(k)]
    once, often = (summed(k + 1) == summed(k) + times * u(k) for times in (1, n))
    goal = z3.And(summed(0) == whole(0), z3.Implies(summed(k) == whole(k), summed(k + 1) == whole(k + 1)))
    account.theorem("for every n and number of indices: all_reduce of the partial sums is the single device's sum",
                    goal, [*joined, once],
                    twin=Twin("  if every rank computes every term", goal, [*joined, often]))
    parts = [n >= 1, part(0, k) + part(1, k) == whole(k)]
    account.refuted("  without the all_reduce", part(0, k) == whole(k), parts)
    account.theorem("a bias that one rank adds before the all_reduce (or all ranks after it) is counted once",
                    whole(k) + z3.If(n > c, bias, 0) == whole(k) + bias, TOTAL,
                    twin=Twin("  added before it by each of n ranks", whole(k) + n * bias == whole(k) + bias))


def prove_nonlinear(account: Account) -> None:
    """phi sees exact operands: its inputs are [I] or split by f, never [P]."""
    seen, first, second = z3.Ints("seen first second")
    account.theorem("nonlinear: phi of what the rank holds is phi of a_f x, if it holds a_f x",
                    phi(seen) == phi(a(f) * x), [seen == a(f) * x],
                    twin=Twin("  phi of the parts of a sum, added up",
                              phi(first) + phi(second) == phi(first + second)))


def gradients(dy_here: Int, x_here: Int) -> tuple[Int, Int, Int]:
    """The gradients of a_f and b_f, and the contribution of f to the gradient of x, from what a rank holds."""
    inner = b(f) * dphi(a(f) * x_here) * dy_here
    return inner * x_here, phi(a(f) * x_here) * dy_here, inner * a(f)


def prove_backward(account: Account) -> None:
    """gamma of a_f, b_f on the owner of f, and the gradient of x as a contraction over f."""
    dy_here, x_here = z3.Ints("dy_here x_here")

    def all_equal(reference: tuple[Int, Int, Int]) -> Bool:
        return z3.And([got == want for got, want in zip(gradients(dy_here, x_here), reference, strict=True)])

    exact = [n >= 1, dy_here == dy, x_here == x]
    account.theorem("gamma: the gradients of a_f, b_f, and the term of f in that of x, are the reference's on own(f)",
                    all_equal(gradients(dy, x)), exact,
                    twin=Twin("  with an all_reduce where the conjugate of [P]->[I] is none: dy is n times too large",
                              all_equal(gradients(dy, x)), [n >= 1, dy_here == n * dy, x_here == x]))
    account.refuted("  with the x of another rank's data", all_equal(gradients(dy, x)), exact[:2])
    account.say("The gradient of x is a contraction over f again, u(f) = a_f b_f dphi(a_f x) dy: [P] over the axis.\n"
                "The conjugate of [I]->[R] reduces it, by the linear case above, and the layer below gets an exact dy.")


def run_package(account: Account) -> None:
    """placealg says the same of this network: split along f, with and without its two all_reduces."""
    text = '[mesh]\ntp = "symbolic"\n[dims]\ntp = ["ffn"]\n[optimizer]\nclip = "none"\n'
    step = step_of(text, mlp())
    reductions = [event.path for event in step.events if event.phase in ("forward", "backward") and event.axes]
    account.run("placealg proves the MLP split along ffn, for every n; a run on 3 ranks agrees",
                verdict(step) == ("PROVED", ()) and run_equals(step, {"tp": 3}))
    account.run("its forward and backward have two collectives", len(reductions) == 2)
    for path in reductions:
        without = step_of(f'{text}[[edit]]\ndrop = "{path}"\n', mlp())
        account.run(f"without {path} it is not proved, and a run on 3 ranks differs",
                    verdict(without)[0] != "PROVED" and not run_equals(without, {"tp": 3}))


def main() -> Account:
    """Prove the three kinds of op on one layer, and compare with the package."""
    account = Account("Forward and backward: ops right under their placements give the reference's gamma", {"n": 2})
    for prove_kind in (prove_linear, prove_nonlinear, prove_backward, run_package):
        prove_kind(account)
    return account.close()


if __name__ == "__main__":
    main()
