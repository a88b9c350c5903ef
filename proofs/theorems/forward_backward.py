"""The first theorem: ops that are right under their placements give every device the reference's gamma.

A layer y = sum over f of b_f phi(a_f x) runs on n ranks of an axis that splits f: own(f) is the one rank that holds
a_f and b_f, any total function (uneven shards and empty ones included). phi is any function, dphi its declared
derivative. Hypotheses on the placement, one for each kind of op:

- linear: each term of a contraction is counted once over all ranks, at scale 1, wherever the result is needed;
- nonlinear: phi is applied to exact operands, never to a part of a sum;
- backward: every gradient returns by the redistribution that is conjugate to the forward one.

Theorem. Then for every n, every owner function, phi, a, b and x: y is the reference's on every rank; the gradient that
enters the layer below is; and the gradients gamma of a_f and b_f are the reference's on the rank that holds them. By
induction over the layers, from the data and back from the loss, it holds for a network (as blocks_sound in coq/kernel).

Converse, read by read. If at some read a claim is wrong (a sum of which some contribution is not counted once, a
nonlinear op on what is not exact, a gradient that is not exact), then there are weights, inputs and a phi with which
what is read there is not the reference's: of a sum, 1 for that contribution and 0 for all others. It is a statement on
that read. It does not hold that gamma must then differ: in one graph two wrong scales can cancel, for all weights, as
a theorem and a pair below show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import z3
from telling import Account, Bool, Int, Twin, inductive, run_equals, step_of, verdict

from placealg.models.transformer import mlp

n, k, c, f, x, dy, bias = z3.Ints("n k c f x dy bias")
Number = z3.IntSort()
a, b, own, phi, dphi, u = (z3.Function(name, Number, Number) for name in ("a", "b", "own", "phi", "dphi", "u"))
part, summed, whole = (z3.Function(name, *[Number] * of) for name, of in (("part", 3), ("summed", 3), ("whole", 2)))
"""u(f) is the contribution of f; part(c, k) the sum of those with f < k that rank c owns; summed(m, k) the sum of
part(c, k) over ranks c < m; whole(k) the single device's sum over f < k."""

TOTAL = [n >= 1, own(k) >= 0, own(k) < n, c >= 0, c < n]


def owned_once(rank: Int) -> Int:
    """What `rank` adds when the contraction reaches f = k."""
    return z3.If(rank == own(k), u(k), 0)


def summed_up(adds: Callable[[Int], Int], upto: Int) -> list[Bool]:
    """What the sums over f on a rank, and over ranks, are: at 0, and with one more."""
    return [part(upto, 0) == 0, part(upto, k + 1) == part(upto, k) + adds(upto),
            *(formula for j in (z3.IntVal(0), k, k + 1) for formula in (
                summed(0, j) == 0, summed(upto + 1, j) == summed(upto, j) + part(upto, j)))]


def gains(upto: Int) -> Bool:
    """From f = k to k + 1 the sum over the ranks below `upto` gains u(k), if its owner is one of them."""
    return summed(upto, k + 1) == summed(upto, k) + z3.If(upto > own(k), u(k), 0)


def prove_linear(account: Account) -> None:
    """Contraction: the all_reduce of partial sums is the sum, by induction over ranks and then over f."""
    claim = z3.And(gains(z3.IntVal(0)), z3.Implies(gains(c), gains(c + 1)),
                   summed(0, 0) == 0, z3.Implies(summed(c, 0) == 0, summed(c + 1, 0) == 0))
    account.theorem("over ranks: from k to k + 1 the sum of all n ranks' sums gains u(k) once; at k = 0 it is 0",
                    claim, [*TOTAL, k >= 0, *summed_up(owned_once, c)], twin=Twin(
                        "  if every rank computes every term", claim, [k >= 0, *summed_up(lambda rank: u(k), c)]))
    joined = [n >= 1, k >= 0, summed(n, 0) == 0, gains(n), whole(0) == 0, whole(k + 1) == whole(k) + u(k)]
    goal = z3.And(summed(n, 0) == whole(0), z3.Implies(summed(n, k) == whole(k), summed(n, k + 1) == whole(k + 1)))
    account.theorem("for every n and number of indices: all_reduce of the partial sums is the single device's sum",
                    goal, [*joined, own(k) >= 0, own(k) < n],
                    twin=Twin("  if an index may have no owner", goal, [*joined, own(k) >= 0]))
    account.refuted("  without the all_reduce", part(0, 2) == whole(2), [
        n == 2, own(0) == 0, own(1) == 1, whole(2) == u(0) + u(1), part(0, 2) == u(0)])
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


def prove_layers(account: Account) -> None:
    """From layer to layer: forward from the data, backward from the loss."""
    values, parameters = z3.DeclareSort("Values"), z3.DeclareSort("Parameters")
    layer = z3.Function("layer", Number, values, values)
    below = z3.Function("below", Number, values, values, values)
    gamma = z3.Function("gamma", Number, values, values, parameters)
    h, dh, made, back = (z3.Function(name, Number, Number, values) for name in ("h", "dh", "made", "back"))
    got = z3.Function("gamma_c", Number, Number, parameters)
    want, dwant = z3.Function("want", Number, values), z3.Function("dwant", Number, values)
    source = z3.Function("source", Number, Number)
    s = source(c)
    exact = z3.And([h(rank, k) == want(k) for rank in (c, s)])
    placed = z3.Implies(h(s, k) == want(k), made(s, k) == layer(k, want(k)))
    handed = h(c, k + 1) == made(s, k)
    given = [k >= 0, h(c, 0) == want(0), want(k + 1) == layer(k, want(k)), placed]
    claim = z3.And(h(c, 0) == want(0), z3.Implies(exact, h(c, k + 1) == want(k + 1)))
    account.theorem("layers: from right inputs of layer k to right inputs of layer k+1 (base: the data)",
                    claim, [*given, handed],
                    twin=Twin("  with a boundary that hands on something else", claim, given))
    account.refuted("  with a layer that is not right under its placement", claim, [*given[:3], handed])
    right = z3.Implies(z3.And(h(s, k) == want(k), dh(s, k + 1) == dwant(k + 1)), z3.And(
        back(s, k) == below(k, want(k), dwant(k + 1)), got(s, k) == gamma(k, want(k), dwant(k + 1))))
    given = [k >= 0, exact, dwant(k) == below(k, want(k), dwant(k + 1)), dh(c, k) == back(s, k), right]
    claim = z3.Implies(dh(s, k + 1) == dwant(k + 1), z3.And(
        dh(c, k) == dwant(k), got(s, k) == gamma(k, want(k), dwant(k + 1))))
    account.theorem("layers, backward: from a right gradient into k+1 to right gamma and a right gradient into k",
                    claim, given, twin=Twin("  with activations that are not right", claim, [given[0], *given[2:]]))


def prove_converse(account: Account) -> None:
    """A wrong claim at a read has weights, inputs and a phi that tell."""
    times, got = z3.Function("times", Number, Number), z3.Function("got", Number, Number)
    f0, seen, right, dy_here = z3.Ints("f0 seen right dy_here")
    lone = z3.And(inductive(lambda i: times(i) * z3.If(i == f0, 1, 0), lambda i: z3.If(i > f0, times(f0), 0), k),
                  z3.If(n > f0, times(f0), 0) != 1)
    account.theorem("converse, sums: f0 is not counted once: with 1 there and 0 elsewhere the sum is not 1",
                    lone, [k >= 0, f0 >= 0, f0 < n, times(f0) != 1],
                    twin=Twin("  with 1 everywhere the sum may be right: one term twice and one never", got(2) != 2,
                              [got(0) == 0, got(1) == times(0), got(2) == got(1) + times(1), times(0) != 1]))
    account.theorem("converse, nonlinear: phi on what is not exact differs for a phi that is one to one",
                    phi(seen) != phi(right), [seen != right, z3.Implies(phi(seen) == phi(right), seen == right)],
                    twin=Twin("  for any phi, a constant one too", phi(seen) != phi(right), [seen != right]))
    ones = [x == 1, b(f) == 1, dphi(a(f) * x) == 1, dy_here != dy]
    (da, _, _), (want, _, _) = gradients(dy_here, x), gradients(dy, x)
    account.theorem("converse, backward: a wrong dy shows in the gradient of a_f where x, b_f and phi' are 1",
                    da != want, ones, twin=Twin("  where b_f may be 0", da != want, [ones[0], *ones[2:]]))
    first, second, out = z3.Ints("first second out")
    account.theorem("no converse for what comes out: a scale of 2, then of 1/2, is right for all weights, though\n"
                    "           the first read is not", z3.And(out == second * first, 2 * first != first),
                    [first != 0, 2 * out == second * (2 * first)],
                    twin=Twin("  3, then 1/2", out == second * first, [first != 0, 2 * out == second * (3 * first)]))


@dataclass(frozen=True, slots=True)
class Placed:
    """Linear layers in a row: times[k][c][f] is how often rank c finds term f of layer k in what it reads.

    Up to the first wrong read ranks hold the same, so that it does not matter which rank computed a term.
    """

    name: str
    times: Sequence[Sequence[Sequence[Fraction]]]


def defect(placed: Placed) -> tuple[int, int, int] | None:
    """The first read that is wrong, in the order of the graph: layer, rank and term; None if all are right."""
    return next(((k, c, f) for k, layer in enumerate(placed.times) for c, row in enumerate(layer)
                 for f, times in enumerate(row) if times != 1), None)


def reads(placed: Placed, weights: Sequence[Sequence[int]]) -> list[list[Fraction]]:
    """What each rank reads of the output of each layer, for the weights a_f b_f of every layer, and an input of 1."""
    out, held = [], [Fraction(1)] * len(placed.times[0])
    for layer, weight in zip(placed.times, weights, strict=True):
        held = [sum((t * w * h for t, w in zip(row, weight, strict=True)), Fraction(0))
                for row, h in zip(layer, held, strict=True)]
        out.append(held)
    return out


def run_pairs(account: Account) -> None:
    """The separating weights of every wrong placement, run on two ranks with two terms."""
    one, none, two, half = Fraction(1), Fraction(0), Fraction(2), Fraction(1, 2)
    right = [[one, one], [one, one]]
    for placed in (Placed("[P] read as if it were [I]: no all_reduce", [[[one, none], [none, one]]]),
                   Placed("[I] summed as if it were [P]: an all_reduce too many", [[[two, two], [two, two]]]),
                   Placed("[S] read as if it were [I], on one rank", [[[one, one], [one, none]]]),
                   Placed("a term twice and another never", [[[two, none], [two, none]]]),
                   Placed("the second of two layers", [right, [[one, half], [one, one]]])):
        found = defect(placed)
        assert found is not None
        layer, rank, term = found
        weights = [[1, 0]] * layer + [[int(f == term) for f in range(2)]] + [[1, 0]] * (len(placed.times) - layer - 1)
        got = reads(placed, weights)[layer][rank]
        account.run(f"{placed.name}: 1 for term {term} of layer {layer}, 0 for the other; rank {rank} reads {got}, "
                    "the single device 1", got != 1)
    both, cancel = Placed("right", [right, right]), Placed("2, then 1/2", [[[two, two]] * 2, [[half, half]] * 2])
    account.run("two right layers: no wrong read, and no pair to construct", defect(both) is None)
    weights = [[3, 2], [5, -1]]
    (wrong, last), (want, end) = reads(cancel, weights), reads(both, weights)
    account.run(f"a scale of 2, then of 1/2: the first read is {wrong[0]}, the single device's {want[0]}; the last is "
                f"{last[0]} on both", defect(cancel) == (0, 0, 0) and wrong != want and last == end)


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
    """Prove the three kinds of op on one layer, the step to the next, the converse; compare with the package."""
    account = Account("Forward and backward: ops right under their placements give the reference's gamma", {"n": 2})
    for prove_kind in (prove_linear, prove_nonlinear, prove_backward, prove_layers, prove_converse, run_pairs,
                       run_package):
        prove_kind(account)
    return account.close()


if __name__ == "__main__":
    main()
