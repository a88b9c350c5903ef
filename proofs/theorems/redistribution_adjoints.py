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
and the value of g; and <A x, g> = <x, B g>. The sums over ranks enter through one lemma, proved by induction. Two rows
are not of one axis with types: a message between stages, for any number of stages and whatever else they hold, and a
copy between a device and its host. Both are adjoint to the same on the way back.

With the reinterpretations these rows are the 16 of the forward/backward table of local SPMD types (spmd_types, on PyPI,
where [S] is called V, and a row that sends nothing a convert). It is printed with what it lacks, the scale: from the
rows that were proved, each with its theorem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import z3
from local_types import LocalRow, local, tell_local_types
from telling import PROVED, Account, Bool, Int, Twin, inductive
from vectors import EVENTS, ONE, SIZES, ZERO, Vector, dot, here, k, n, new, prove_sum, same, tau, there, total

from placealg import placement
from placealg.placement import DUAL, Kind, Redistribution
from placealg.prover.evidence.solver import SAT

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


def prove_rows(account: Account) -> list[LocalRow]:
    """All rows of the package's table: the backward is adjoint, and no other event is but those that act alike."""
    proved = []
    for row in placement.REDISTRIBUTIONS:
        flipped = placement.backward(row)
        account.run(f"{row.source}->{row.target}: its backward is the event of {flipped.source}->{flipped.target}",
                    row.backward == flipped.event)
        others = {event: adjoint(row, event) for event in EVENTS if event != row.backward}
        wrong = {e: goal for e, goal in others.items() if account.counterexample(goal, SIZES).status == SAT}
        alike = [e for e in others if e not in wrong]
        claim = f"{row.source}->{row.target} {row.event}, back {flipped.source}->{flipped.target} {row.backward}"
        account.theorem(
            f"{claim}; local sums x {scale(row.source, row.target)}"
            + (f"; or back by {', '.join(alike)}" if alike else ""),
            z3.And(adjoint(row, row.backward), *(others[e] for e in alike)), SIZES,
            twin=Twin(f"  back by any of {', '.join(wrong)}", z3.Or([*wrong.values()])))
        proved.append(LocalRow(local(row.source, row.target, row.event), local(flipped.source, flipped.target,
                               row.backward), scale(row.source, row.target), "1", claim))
    for row in placement.REDISTRIBUTIONS:
        if row.event == "scale 1/n":
            zeroed = replace(row, event="zero-pad")
            account.theorem(f"{row.source}->{row.target} by zeroing all ranks but one, as some do: back as above",
                            adjoint(zeroed, row.backward), SIZES,
                            twin=Twin("  by zeroing none", adjoint(replace(row, event="none"), row.backward)))
    return proved


def prove_messages(account: Account) -> None:
    """stage -> stage, for any number n of stages that hold and want anything; and all messages of a turn at once."""
    x, g, L, R = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in ("x", "g", "L", "R"))
    p, q = tau, new

    def sums(back_from: Int, back_to: Int) -> Bool:
        """<A x, g> = <x, B g>: both sums over c < k in closed form, by induction, and equal for k = n."""
        def there_and(j: Int) -> Int:
            return z3.If(j > q, x(p) * g(q), 0)

        def back(j: Int) -> Int:
            return z3.If(j > back_to, x(back_to) * g(back_from), 0)

        return z3.And(inductive(lambda c: z3.If(c == q, x(p), 0) * g(c), there_and, k),
                      inductive(lambda c: x(c) * z3.If(c == back_to, g(back_from), 0), back, k),
                      there_and(n) == back(n))

    given = [*SIZES, k >= 0, p != q]
    account.theorem("stage -> stage send/recv from p to q, back send/recv from q to p: for every n, p and q",
                    sums(q, p), given, twin=Twin("  back from p to q, the wrong direction", sums(p, q)))
    turn = [k >= 1, L(1) == 0, R(0) == 0, L(k + 1) == L(k) + x(k - 1) * g(k)]
    claim = z3.And(L(1) == R(0), z3.Implies(L(k) == R(k - 1), L(k + 1) == R(k)))
    account.theorem("for every number n of stages: all sending to the next at once, back all to the one before;\n"
                    "           the sum for <A x, g> up to stage k is that for <x, B g> up to k-1; stage n-1 gets none",
                    claim, [*turn, R(k) == R(k - 1) + x(k - 1) * g(k)],
                    twin=Twin("  to gradients sent on to the next", claim, [
                        *turn, R(k) == R(k - 1) + x(k - 1) * z3.If(k >= 2, g(k - 2), 0)]))


def prove_host(account: Account) -> None:
    """device -> host: every rank copies what it holds, whatever it is, and copies it back."""
    x, g, host, fetched, wanted, older, sums = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in (
        "x", "g", "host", "fetched", "wanted", "older", "sums"))
    copied = [k >= 0, sums(0) == 0, sums(k + 1) == sums(k) + x(k) * wanted(k), host(k) == x(k)]
    claim = inductive(lambda c: host(c) * g(c), sums, k)
    account.theorem("device -> host copy, back host -> device copy: on every rank, so in the sum over any number",
                    claim, [*copied, wanted(k) == g(k)],
                    twin=Twin("  back by a copy that is scaled", claim, [*copied, wanted(k) == 2 * g(k)]))
    account.theorem("device -> host -> device is the identity", fetched(here) == x(here),
                    [host(here) == x(here), fetched(here) == host(here)],
                    twin=Twin("  with a copy from before", fetched(here) == x(here),
                              [host(here) == older(here), fetched(here) == host(here)]))


def all_told(account: Account) -> None:
    """Every row of the redistribution table has its theorem."""
    along = [f"{row.source}->{row.target}" for row in placement.REDISTRIBUTIONS]
    names = [*along, "stage -> stage", "device -> host"]
    claims = [told.claim for told in account.told if told.kind == PROVED]
    account.run(f"all {len(names)} rows of the redistribution table are told: {len(along)} along an axis, messages and "
                "host copies", all(any(c.startswith(f"{name} ") for c in claims) for name in names))


def prove_reinterpretations(account: Account) -> list[LocalRow]:
    """Bytes as they are under another type; a value on each of n ranks, read as a sum, is n times the value."""
    proved = []
    whole, any_vector = Vector(v), Vector(free=ONE)
    for types, back, x, g, times in (("RV", "VP", whole, any_vector, None), ("VP", "RV", any_vector, whole, None),
                                     ("RP", "RP", whole, Vector(gamma), n)):
        claim = "[{}]->[{}], back [{}]->[{}]".format(*types, *back)
        account.theorem(f"{claim}: bytes as they are, both ways", same(dot(x, g), dot(x, EVENTS["none"](g, tau, tau))),
                        SIZES, twin=Twin("  back by scale 1/n",
                                         same(dot(x, g), dot(x, EVENTS["scale 1/n"](g, tau, tau)))))
        if times is not None:
            account.theorem(f"[{types[0]}] read as [{types[1]}] means {times} times the value",
                            meaning(x, Kind.P, tau)[0] == times * v, SIZES,
                            twin=Twin("  the same value", meaning(x, Kind.P, tau)[0] == v))
        proved.append(LocalRow(local(*types, "reinterpret"), local(*back, "reinterpret"), "1",
                               "-" if times is None else str(times), claim))
    return proved


def main() -> Account:
    """Prove the sum lemma, the scale of each pairing, every row, and the reinterpretations; print them as one table."""
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
    table = prove_rows(account)

    account.say("The two rows that are not of one axis with types.")
    prove_messages(account)
    prove_host(account)
    all_told(account)

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
    table += prove_reinterpretations(account)

    account.say("The forward/backward table of local types, with the scale: V is [S]; a convert sends nothing.\n"
                "`sums x`: the local sums of (A x)_c g_c by those of x_c (B g)_c; `value x`: the value after by that\n"
                "before, but for bytes read as V, which are n values.")
    tell_local_types(account, table)
    return account.close()


if __name__ == "__main__":
    main()
