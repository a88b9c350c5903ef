"""Sufficiency: GI and SC at step t give SC at step t+1, for all gamma, T, N, U and V, asked in one query.

It is of any number of elements, ranks and units, and nothing in it is free but what the theorem quantifies over: what
enters an update is what its rank reads of its own copies, and a gradient that is the sum over units and ranks. What U,
V and gamma read of a state is `seen`, of which one property is used, the one that equivalence.py proves: two states
give one argument, or they differ at an element that is read. A sum of any length is given by its value at 0 and by its
steps. Induction over ranks, and over units, is in the query as the least counterexample: what holds at 0 and fails at n
holds at some k < n and fails at k + 1.

A gradient is read if a live update of i reads it, on i or on all of near(i), or if a norm counts it. The sufficiency
half of the theorem in proofs/coq/Equivalence.v, `sufficient`, is the same step and the induction over steps around it;
there a norm may also count an element in parts, on several ranks, with weights that add up to 1. Of a program that the
kernel accepts, `accepted_right` in proofs/coq/kernel is that induction, through stops and resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import z3
from telling import Account, Bool, Int, Twin

State = Any
Number, Element, Weight, Moment = z3.IntSort(), *(z3.DeclareSort(s) for s in ("Element", "Weight", "Moment"))
Params, Moments, Gradient, Some = (z3.ArraySort(Element, s) for s in (Weight, Moment, Number, z3.BoolSort()))
i, e, j = z3.Consts("i e j", Element)
t, k, c, d, root, ranks, units = z3.Ints("t k c d root ranks units")
near, sees = z3.Function("near", Element, Some), z3.Function("sees", Number, Some)
gamma = z3.Function("gamma", Number, Element, Params, Number)
make_params = z3.Function("U", Element, Params, Moments, Gradient, Weight)
make_moments = z3.Function("V", Element, Params, Moments, Gradient, Moment)
transform, norm = z3.Function("T", Number, Number, Number), z3.Function("N", Gradient, Number)

theta, omega = z3.Function("theta", Number, Params), z3.Function("omega", Number, Moments)
view, moments, new_params, new_moments = (z3.Function(name, Number, Number, of) for name, of in (
    ("view", Params), ("moments", Moments), ("new_params", Params), ("new_moments", Moments)))
"""Of step t, and of a rank: what it reads, and what it makes."""
reads, keeps, live = (z3.Function(name, Number, Number, Element, z3.BoolSort()) for name in ("reads", "keeps", "live"))
"""In step t, rank c has a live read of parameter i; of the moments of i; makes a live update of i."""
p, q = (z3.Function(name, Number, Number, Element, Number) for name in "pq")

wanted, single = z3.Consts("wanted g", Gradient)
entered, counted, local = (z3.Function(name, Number, Gradient) for name in ("entered", "counted", "g_c"))
"""In step t, of the single device and of rank c: what enters the update; g, and what c's norm counts; c's gradient."""
at = z3.Function("at", Number, Element, Number)
used = z3.Function("used", Number, Element, z3.BoolSort())
"""at(c, e): the rank whose gradient of e the norm on c counts. used(c, e): the gradient of e on c is read."""
weight, weights, part = (z3.Function(name, Number, Element, Number, Number, Number) for name in ("w", "W", "part"))
so_far, reference = z3.Function("so_far", Number, Element, Number, Number), z3.Function("sum", Element, Number, Number)
w_ref = z3.Function("w_ref", Number, Number)
"""In the gradient of e on rank c: w(c, e, k, d) weighs unit k as rank d computed it; W(c, e, k, d) and part(c, e, k, d)
are the sums of weights and of weighted gammas over the first d ranks; so_far(c, e, k), and sum(e, k) on the single
device, are the sums over the first k units."""
HERE = z3.IntVal(0), z3.IntVal(1)
"""The ranks of the small runs that refute what lacks a hypothesis."""
READ = {of: z3.Function(f"seen_{of.range()}", Some, of, of) for of in (Params, Moments, Gradient)}


def seen(which: State, state: State) -> State:
    """What is read of `state`, where the elements in `which` are read."""
    return READ[state.sort()](which, state)


def alike(which: State, one: State, two: State, differ: State) -> Bool:
    """Two states are one argument, or they differ at an element that is read."""
    return z3.Or(seen(which, one) == seen(which, two), z3.And(which[differ], one[differ] != two[differ]))


def least(claim: Callable[[Int], Bool], size: Int, last: Int) -> Bool:
    """`claim` holds at size >= 0, or fails at 0, or `last` is below size and the last number at which it holds."""
    return z3.Or(claim(size), z3.Not(claim(z3.IntVal(0))),
                 z3.And(last >= 0, last < size, claim(last), z3.Not(claim(last + 1))))


def invariant(step: Int, rank: Int, element: State) -> Bool:
    """SC for one copy: what a rank reads of an element's parameter and moments in a step is the reference's."""
    return z3.And(z3.Implies(reads(step, rank, element), view(step, rank)[element] == theta(step)[element]),
                  z3.Implies(keeps(step, rank, element), moments(step, rank)[element] == omega(step)[element]))


def consistent() -> Bool:
    """SC at step t, for every copy that is read."""
    return z3.ForAll([d, j], invariant(t, d, j))


def right(unit: Int, element: State) -> Int:
    """A unit's gradient on the single device."""
    return gamma(unit, element, seen(sees(unit), theta(t)))


def from_ranks(rank: Int, element: State, unit: Int, upto: Int) -> Bool:
    """What the first ranks add for a unit is the sum of its weights there times the reference's gamma."""
    return part(rank, element, unit, upto) == weights(rank, element, unit, upto) * right(unit, element)


def from_units(rank: Int, element: State, upto: Int) -> Bool:
    """The sums over the first units are the reference's."""
    return so_far(rank, element, upto) == reference(element, upto)


def add_ranks(rank: Int, element: State, unit: Int, upto: Int) -> list[Bool]:
    """What the sums over ranks are, for no rank and for one more."""
    w, copy = weight(rank, element, unit, upto), seen(sees(unit), view(t, upto))
    return [part(rank, element, unit, 0) == 0, weights(rank, element, unit, 0) == 0,
            weights(rank, element, unit, upto + 1) == weights(rank, element, unit, upto) + w,
            part(rank, element, unit, upto + 1) == part(rank, element, unit, upto) + w * gamma(unit, element, copy)]


def add_units(rank: Int, element: State, upto: Int) -> list[Bool]:
    """What the sums over units are, for no unit and for one more."""
    return [so_far(rank, element, 0) == 0, reference(element, 0) == 0,
            so_far(rank, element, upto + 1) == so_far(rank, element, upto) + part(rank, element, upto, ranks),
            reference(element, upto + 1) == reference(element, upto) + w_ref(upto) * right(upto, element)]


INTEGRITY = z3.ForAll([d, e, k], z3.Implies(z3.And(used(d, e), k >= 0, k < units),
                                            weights(d, e, k, ranks) == w_ref(k)))
"""GI: in every gradient that is read the weights of each unit add up to the reference's."""
OBSERVED = z3.ForAll([c, e, k, d, j], z3.Implies(z3.And(used(c, e), weight(c, e, k, d) != 0, sees(k)[j]),
                                                 reads(t, d, j)))
"""In a gradient that is read, a weight that is not 0 makes what its gamma reads a live read."""


def prove_sums(account: Account) -> None:
    """The two inductions, each by itself."""
    last = seen(sees(k), view(t, d)), seen(sees(k), theta(t))
    differ = z3.Const("differ", Element)
    same = alike(sees(k), view(t, d), theta(t), differ)
    claim = z3.And(from_ranks(c, e, k, z3.IntVal(0)),
                   z3.Implies(from_ranks(c, e, k, d), from_ranks(c, e, k, d + 1)))
    given = [d >= 0, used(c, e), same, *add_ranks(c, e, k, d), OBSERVED]
    pins = [z3.ForAll([j], j == differ), gamma(k, e, last[1]) == 1, weight(c, e, k, d) == 1]
    account.theorem("over ranks: what all ranks add for unit k is the sum of its weights times the reference's gamma\n"
                    "           (SC at t; a weight that is not 0 makes what its gamma reads a live read)", claim,
                    [*given, consistent()],
                    twin=Twin("  without SC: another version was read", claim, [*given, *pins]))
    account.refuted("  if a weighted gamma's reads are not observed", claim, [*given[:-1], *pins, consistent()])
    claim = z3.And(from_units(c, e, z3.IntVal(0)), z3.Implies(from_units(c, e, k), from_units(c, e, k + 1)))
    given = [k >= 0, k < units, used(c, e), from_ranks(c, e, k, ranks), *add_units(c, e, k)]
    account.theorem("over units: gradients equal up to unit k, they are equal up to unit k+1 (GI at k)", claim,
                    [*given, INTEGRITY], twin=Twin("  without GI: the weights of one unit differ", claim, given))


def gradient(rank: Int, element: State, name: str) -> list[Bool]:
    """What the gradient of an element on a rank is; and that if it is wrong there is a first unit, and a first rank."""
    unit, upto, differ = z3.Int(f"unit_{name}"), z3.Int(f"rank_{name}"), z3.Const(f"read_{name}", Element)
    steps = [formula for u in (HERE[0], unit) for formula in (
        *add_units(rank, element, u), *(formula for r in (*HERE, upto) for formula in add_ranks(rank, element, u, r)))]
    return [local(rank)[element] == so_far(rank, element, units), single[element] == reference(element, units),
            least(lambda u: from_units(rank, element, u), units, unit),
            least(lambda r: from_ranks(rank, element, unit, r), ranks, upto),
            alike(sees(unit), view(t, upto), theta(t), differ), *steps]


@dataclass(frozen=True, slots=True)
class Source:
    """A rank that made what is read at t+1; and, should it be wrong, the elements at which what it read differs."""

    rank: Int
    name: str

    def differ(self, what: str) -> State:
        """An element at which two states differ."""
        return z3.Const(f"{what}_{self.name}", Element)

    def made(self) -> list[Bool]:
        """What U and V make here, and of what."""
        s, g, n = self.rank, self.differ("gradient"), self.differ("norm")
        got = [seen(near(i), state) for state in (view(t, s), moments(t, s), entered(s))]
        return [new_params(t, s)[i] == make_params(i, *got), new_moments(t, s)[i] == make_moments(i, *got),
                alike(near(i), view(t, s), theta(t), self.differ("view")),
                alike(near(i), moments(t, s), omega(t), self.differ("moments")),
                alike(near(i), entered(s), wanted, g), z3.Or(counted(s) == single, counted(s)[n] != single[n]),
                *gradient(s, g, f"{self.name}_own"), *gradient(at(s, n), n, f"{self.name}_norm")]

    def reads_live(self) -> Bool:
        """What a live update here reads is read: copies near i, their gradients, and what its norm counts."""
        s = self.rank
        return z3.Implies(live(t, s, i), z3.And(
            z3.ForAll([j], z3.Implies(near(i)[j], z3.And(reads(t, s, j), keeps(t, s, j), used(s, j)))),
            z3.ForAll([j], used(at(s, j), j))))

    def clips(self) -> Bool:
        """GI: at a live update, T is applied to the gradient of every element near i."""
        s = self.rank
        return z3.Implies(live(t, s, i), z3.ForAll([j], z3.Implies(
            near(i)[j], entered(s)[j] == transform(norm(counted(s)), local(s)[j]))))

    def counts_once(self) -> Bool:
        """GI: at a live update, the norm counts each element once."""
        s = self.rank
        return z3.Implies(live(t, s, i), z3.ForAll([j], counted(s)[j] == local(at(s, j))[j]))


SOURCES = Source(p(t, c, i), "p"), Source(q(t, c, i), "q")


def definitions() -> list[Bool]:
    """The single device's step, rank c's copies at t+1 and where they come from."""
    want = [seen(near(i), state) for state in (theta(t), omega(t), wanted)]
    return [ranks >= 0, units >= 0, z3.ForAll([j], wanted[j] == transform(norm(single), single[j])),
            theta(t + 1)[i] == make_params(i, *want), omega(t + 1)[i] == make_moments(i, *want),
            view(t + 1, c)[i] == new_params(t, SOURCES[0].rank)[i],
            moments(t + 1, c)[i] == new_moments(t, SOURCES[1].rank)[i], *SOURCES[0].made(), *SOURCES[1].made()]


def hypotheses() -> Mapping[str, Bool]:
    """GI and SC at step t, and what *live* and *observed* mean, by name."""
    return {
        "SC at t": consistent(),
        "GI, weights": INTEGRITY,
        "GI, T is applied": z3.And([source.clips() for source in SOURCES]),
        "GI, the norm counts each element once": z3.And([source.counts_once() for source in SOURCES]),
        "what a live update reads is observed": z3.And([source.reads_live() for source in SOURCES]),
        "what a weighted gamma reads is observed": OBSERVED,
        "the source of the parameter made a live update": z3.Implies(reads(t + 1, c, i), live(t, SOURCES[0].rank, i)),
        "the source of the moments made a live update": z3.Implies(keeps(t + 1, c, i), live(t, SOURCES[1].rank, i)),
    }


def written_out(formula: Any, elements: Sequence[Any]) -> Any:
    """A formula of two ranks and these elements: its quantifiers as conjunctions. Elsewhere nothing is read."""
    if z3.is_quantifier(formula):
        ranges = [elements if formula.var_sort(n) == Element else HERE for n in range(formula.num_vars())]
        return z3.And([written_out(z3.substitute_vars(formula.body(), *reversed(values)), elements)
                       for values in product(*ranges)])
    parts = formula.children()
    return formula.decl()(*(written_out(part, elements) for part in parts)) if parts else formula


def constants(formulas: Sequence[Any]) -> list[Any]:
    """The free constants of formulas without quantifiers."""
    found, left = {}, list(formulas)
    while left:
        formula = left.pop()
        if formula.get_id() not in found:
            found[formula.get_id()] = formula
            left.extend(formula.children())
    return [formula for formula in found.values() if z3.is_const(formula)
            and formula.decl().kind() == z3.Z3_OP_UNINTERPRETED]


def on_two_ranks(given: Sequence[Bool], times: int = 1) -> list[Bool]:
    """Premises at two ranks, two elements and a unit of weight 1 that rank 0 computes, and counts so many times."""
    other = z3.Const("other", Element)
    elements = i, other
    formulas = [written_out(formula, elements) for formula in given]
    named = constants(formulas)
    inside = [z3.Or([v == element for element in elements]) for v in named if v.sort() == Element]
    inside += [v == 0 if str(v).startswith("unit_") else z3.Or(v == 0, v == 1) for v in named
               if str(v).startswith(("unit_", "rank_"))]
    return [*formulas, i != other, *inside, ranks == 2,
            units == 1, t == 0, c == 0, p(t, c, i) == 1, q(t, c, i) == 0, w_ref(0) == 1,
            *(z3.Or(at(rank, element) == 0, at(rank, element) == 1) for rank in HERE for element in elements),
            *(weight(rank, element, 0, d) == (times if d is HERE[0] else 0)
              for rank in HERE for element in elements for d in HERE)]


def prove_step(account: Account) -> None:
    """GI and SC at t give SC at t+1: the joint query, and without each hypothesis; a rank's own moments; the base."""
    defined, named, claim = definitions(), hypotheses(), invariant(t + 1, c, i)

    def without(name: str) -> tuple[str, Bool, list[Bool]]:
        rest = [held for other, held in named.items() if other != name]
        return f"  without: {name}", claim, on_two_ranks([*defined, *rest], 2 if name == "GI, weights" else 1)

    first, *others = named
    account.theorem("step, all of it in one query: GI and SC at t give SC at t+1, for any rank c and element i:\n"
                    "           theta_{t+1}, made by p(c, i), and omega_{t+1}, made by q(c, i)", claim,
                    [*defined, *named.values()],
                    model=on_two_ranks([*defined, *named.values(), reads(t + 1, c, i), keeps(t + 1, c, i)]),
                    twin=Twin(*without(first)))
    for name in others:
        account.refuted(*without(name))
    rest = [*defined, *(held for name, held in named.items() if "moments" not in name), q(t, c, i) == c]
    account.theorem("a rank's own moments (q(c, i) = c) are right where it made a live update of i", claim,
                    [*rest, live(t, c, i)], model=on_two_ranks([*rest, live(t, c, i), keeps(t + 1, c, i)]),
                    twin=Twin("  where its own update was dead", claim, on_two_ranks(rest)))
    copied = [view(0, root) == theta(0), moments(0, root) == omega(0), view(0, c) == view(0, root)]
    claim = invariant(z3.IntVal(0), c, i)
    account.theorem("base: initialisation copies theta_0 and omega_0 from one rank to all", claim,
                    [*copied, moments(0, c) == moments(0, root)],
                    twin=Twin("  a rank keeps moments that were in its memory", claim, copied))
