"""Every row of the redistribution table, with its backward, is an adjointness statement, for every axis size n.

Take one element of a tensor, owned by rank tau of an axis of n ranks. What the ranks hold of it is a vector x, one
number per rank. A value type says which vectors are allowed and what value v(x) they mean: [I] and [R] hold v on
every rank, [S] holds v at the owner, [P] holds anything, and v is the sum. A value of type T meets its gradient, of
type dual(T), in the pairing

    <x, g>  =  s(T) * sum over c of x_c g_c,     s([I]) = 1/n,     s([R]) = s([S]) = s([P]) = 1,

for [I] is one computation, which n ranks repeat, and [R] is n uses. With this scale the pairing is v(x) v(g) on every
type: it is the change of the loss that the change x causes.

Theorem. Let a row of the table lead from T to T' by the event A, and let B be its backward event. For every n >= 1,
every owner, every x of type T and every g of type dual(T'): A x has type T' and the value of x; B g has type dual(T)
and the value of g; and <A x, g> = <x, B g>. The sums over ranks enter through one lemma, proved by induction.
"""

from __future__ import annotations

from collections.abc import Mapping

import z3
from telling import Account, Bool, Int, Twin
from vectors import EVENTS, ONE, SIZES, ZERO, Vector, dot, here, n, new, prove_sum, same, tau, there, total

from placealg import placement
from placealg.placement import DUAL, Kind, Redistribution
from placealg.prove.solver import SAT

v, gamma = z3.Ints("v gamma")

PAIRING: Mapping[Kind, int] = {Kind.I: 1, Kind.R: 0, Kind.S: 0, Kind.P: 0}
"""Type -> the power of n by which the local sum of products is divided: the scale s."""


def member(kind: Kind, value: Int, owner: Int) -> Vector:
    """The vectors of a type: `value` on every rank, at the owner, or (for [P]) anything."""
    return {Kind.I: Vector(value), Kind.R: Vector(value), Kind.S: Vector(owned=value, owner=owner),
            Kind.P: Vector(free=ONE)}[kind]


def typed(x: Vector, kind: Kind, owner: Int) -> Bool:
    """x has the type: seen on two arbitrary ranks."""
    return {Kind.I: x.on(here) == x.on(there), Kind.R: x.on(here) == x.on(there),
            Kind.S: z3.Implies(here != owner, x.on(here) == 0), Kind.P: z3.BoolVal(True)}[kind]


def meaning(x: Vector, kind: Kind, owner: Int) -> tuple[Int, int]:
    """The value that x means, as a numerator and a power of n below it."""
    if kind is Kind.P:
        return total(x).whole, x.over
    return x.on(owner if kind is Kind.S else here), x.over


def paired(x: Vector, g: Vector, kind: Kind) -> tuple[Int, int]:
    """<x, g> for x of type `kind`."""
    number, over = dot(x, g)
    return number, over + PAIRING[kind]


def adjoint(row: Redistribution, back: str) -> Bool:
    """The theorem for one row, with the event `back` as its backward.

    If x and B g are both arbitrary vectors, B g has not the type that x pairs with, and no pairing is written.
    """
    before, after = tau, new if row.source is row.target else tau
    x, g = member(row.source, v, before), member(DUAL[row.target], gamma, after)
    ax, bg = EVENTS[row.event](x, before, after), EVENTS[back](g, after, before)
    claims = [typed(ax, row.target, after), typed(bg, DUAL[row.source], before),
              same(meaning(ax, row.target, after), meaning(x, row.source, before)),
              same(meaning(bg, DUAL[row.source], before), meaning(g, DUAL[row.target], after))]
    if z3.eq(x.free, ZERO) or z3.eq(bg.free, ZERO):
        claims.append(same(paired(ax, g, row.target), paired(x, bg, row.source)))
    return z3.And(claims)


def scale(source: Kind, target: Kind) -> str:
    """sum of (A x)_c g_c divided by sum of x_c (B g)_c."""
    return {-1: "n", 0: "1", 1: "1/n"}[PAIRING[source] - PAIRING[target]]


def prove_rows(account: Account) -> None:
    """All rows of the package's table: the backward is adjoint, and no other event is but those that act alike."""
    for row in placement.REDISTRIBUTIONS:
        flipped = placement.backward(row)
        account.run(f"{row.source}->{row.target}: its backward is the event of {flipped.source}->{flipped.target}",
                    row.backward == flipped.event)
        others = {event: adjoint(row, event) for event in EVENTS if event != row.backward}
        wrong = {e: goal for e, goal in others.items() if account.counterexample(goal, SIZES).status == SAT}
        alike = [e for e in others if e not in wrong]
        account.theorem(
            f"{row.source}->{row.target} {row.event}, back {flipped.source}->{flipped.target} {row.backward}; "
            f"local sums x {scale(row.source, row.target)}" + (f"; or back by {', '.join(alike)}" if alike else ""),
            z3.And(adjoint(row, row.backward), *(others[e] for e in alike)), SIZES,
            twin=Twin(f"  back by any of {', '.join(wrong)}", z3.Or([*wrong.values()])))


def main() -> Account:
    """Prove the sum lemma, the scale of each pairing, every row, and the reinterpretations."""
    account = Account("Redistributions and their backward events are adjoint", {"n": 2, "v": 2, "gamma": 3})
    prove_sum(account)

    account.say("The pairing is value times gradient on every type, with s = 1/n on [I] and 1 elsewhere.")
    for kind in Kind:
        x, g = member(kind, v, tau), member(DUAL[kind], gamma, tau)
        (one, p), (two, q) = meaning(x, kind, tau), meaning(g, DUAL[kind], tau)
        number, over = paired(x, g, kind)
        account.theorem(f"for every n: <x, g> = v(x) v(g) for x of type {kind}, g of type {DUAL[kind]}",
                        same((number, over), (one * two, p + q)), SIZES,
                        twin=Twin(f"  the same, {'not ' if over else ''}divided by n",
                                  same((number, 1 - over), (one * two, p + q))))

    account.say("The table: for every n, owner, value and gradient. `local sums` is what the plain sums over ranks of\n"
                "(A x)_c g_c and x_c (B g)_c differ by. A backward is fixed up to what gradients of its type can tell.")
    prove_rows(account)

    account.say("The same types on both sides: [I]->[I], [R]->[R] and [P]->[P] move nothing, and their backward moves\n"
                "nothing either; they are no redistributions. [S]->[S] is one, for owners can change.")
    for kind in (Kind.I, Kind.R, Kind.P):
        row = Redistribution(kind, kind, "none", "0", "none")
        account.theorem(f"{kind}->{kind} none, back {DUAL[kind]}->{DUAL[kind]} none", adjoint(row, "none"), SIZES,
                        twin=Twin("  back by scale 1/n", adjoint(row, "scale 1/n")))
    rows = {(r.source, r.target) for r in placement.REDISTRIBUTIONS} | {(t, t) for t in Kind}
    account.run(f"all {len(rows)} pairs of types are told", len(rows) == len(Kind) ** 2)

    account.say("Reinterpretations keep the bytes and change the type, so they change the value: adjoint to each\n"
                "other, they are no redistributions. [V] holds any number on each rank, n values; s([V]) = 1.")
    whole, any_vector = Vector(v), Vector(free=ONE)
    for name, x, g, back in (("[R]->[V], back [V]->[P]", whole, any_vector, "none"),
                             ("[V]->[P], back [R]->[V]", any_vector, whole, "none"),
                             ("[R]->[P], back [R]->[P]", whole, Vector(gamma), "none")):
        account.theorem(f"{name}: bytes as they are, both ways", same(dot(x, g), dot(x, EVENTS[back](g, tau, tau))),
                        SIZES, twin=Twin("  back by scale 1/n",
                                         same(dot(x, g), dot(x, EVENTS["scale 1/n"](g, tau, tau)))))
    account.theorem("[R] read as [P] means n times the value", meaning(whole, Kind.P, tau)[0] == n * v, SIZES,
                    twin=Twin("  the same value", meaning(whole, Kind.P, tau)[0] == v))
    return account.close()


if __name__ == "__main__":
    main()
