"""The equivalence theorem: gradient integrity and state consistency hold iff the trajectories are equal.

Setting. theta_t and omega_t are version t of the parameters and of the optimizer's moments, functions of all elements.
gamma(x, i, theta) is unit x's gradient for element i; it reads the parameters in sees(x). U makes new parameters, V new
moments; for element i both read the elements in near(i): {i} (elementwise: SGD, Adam), i's matrix (Muon, LAMB), or all
(global). T is the declared transform, which also sees a norm N of all elements' gradients (clipping).
One device:      g(i) = sum over x of w_ref(x) gamma(x, i, theta_t),
                 theta_{t+1}(i), omega_{t+1}(i) = U, V (i, theta_t, omega_t, T(N(g), g)).
Rank c of many:  g_c(i) = sum over units x and ranks d of w(c, i, x, d) gamma(x, i, view_d),
                 and U, V of its own view_c, moments_c, g_c, and of what its norm counted.
At t+1 rank c reads parameters that some rank p(c, i) made, and moments that rank q(c, i) made: q is c itself, where c
updates i, unless moments are handed out or loaded. All of near, sees, gamma, U, V, T, N, p, q are any functions.

Hypotheses: every unit's forward and backward compute what the single device computes (forward_backward.py); the loss is
additive over units; *observed* means every live read; and both sides quantify over all gamma, U, V, theta_0 and
batches.

Theorem. GI (at every live update of i: the weights of each unit x add up to w_ref(x), on i and on all of near(i), T is
applied, and its norm counts each element once) and SC (at every live read the parameters and the moments are those of
version t, and were made by a live update) hold iff for all gamma, U, V, theta_0 and batches the runs are equal.
Sufficiency is an induction over steps, on uninterpreted gamma, T, U and V: its invariant is SC itself, of parameters
and of moments. Necessity is constructive (separating.py): a failing view differs from what the single device reads, in
a run of SGD that moves in every step, however many versions it is back; a failing weight, where all views are right,
tells the runs apart for SGD with a non-zero rate and the model gamma(x, theta) = [x = x0] theta.
"""

from __future__ import annotations

from typing import Any

import z3
from separating import prove_necessity, prove_versions, run_pairs
from telling import Account, Bool, Int, Twin

State = Any
Number, Element, Weight, Moment = z3.IntSort(), *(z3.DeclareSort(s) for s in ("Element", "Weight", "Moment"))
Params, Moments, Gradient, Some = (z3.ArraySort(Element, s) for s in (Weight, Moment, Number, z3.BoolSort()))
i, j, matrix_of = *z3.Consts("i j", Element), z3.Function("matrix", Element, Number)
t, k, c, d, root, ranks = z3.Ints("t k c d root ranks")
near, sees = z3.Function("near", Element, Some), z3.Function("sees", Number, Some)
gamma = z3.Function("gamma", Number, Element, Params, Number)
make_params = z3.Function("U", Element, Params, Moments, Gradient, Weight)
make_moments = z3.Function("V", Element, Params, Moments, Gradient, Moment)
transform, norm = z3.Function("T", Number, Number, Number), z3.Function("N", Gradient, Number)

theta, omega, single = (z3.Function(name, Number, of) for name, of in
                        (("theta", Params), ("omega", Moments), ("g", Gradient)))
view, moments, local, counted, new_params, new_moments = (z3.Function(name, Number, Number, of) for name, of in (
    ("view", Params), ("moments", Moments), ("g_c", Gradient), ("counted", Gradient), ("new_params", Params),
    ("new_moments", Moments)))
"""Of step t, and of a rank: what it reads, its gradient, what its norm counted for each element, what it makes."""
reads, keeps, live = (z3.Function(name, Number, Number, Element, z3.BoolSort()) for name in ("reads", "keeps", "live"))
"""In step t, rank c has a live read of parameter i; of the moments of i; makes a live update of i."""
p, q = (z3.Function(name, Number, Number, Element, Number) for name in "pq")

wanted, inputs = ([z3.Function(f"{name}{of}", *[Number] * arity, of) for of in (Params, Moments, Gradient)]
                  for name, arity in (("wanted", 1), ("inputs", 2)))
"""What the update of i reads in step t: the parameters, the moments, the gradient; the reference's, and rank c's. That
a live update's inputs are the wanted ones is what prove_inputs proves."""
weight, weights, part = (z3.Function(name, Number, Number, Number) for name in ("w", "W", "part"))
so_far, reference, w_ref = (z3.Function(name, Number, Number) for name in ("so_far", "reference", "w_ref"))
"""In one gradient g_c(i): w(k, d) weighs unit k as rank d computed it; W(k, d) and part(k, d) are the sums of weights
and of weighted gammas over the first d ranks; so_far(k) and reference(k) are the sums over the first k units."""


def seen(which: State, state: State) -> State:
    """What is read of `state`: the elements in `which`; of the rest nothing."""
    return z3.Lambda([j], z3.If(which[j], state[j], z3.Const(f"unread_{state.sort().range()}", state.sort().range())))


def agree(one: State, two: State, which: State) -> Bool:
    """Two states are alike on every element in `which`."""
    return z3.ForAll([j], z3.Implies(which[j], one[j] == two[j]))


def invariant(step: Int, rank: Int, element: State) -> Bool:
    """SC for one copy: what a rank reads of an element's parameter and moments in a step is the reference's."""
    return z3.And(z3.Implies(reads(step, rank, element), view(step, rank)[element] == theta(step)[element]),
                  z3.Implies(keeps(step, rank, element), moments(step, rank)[element] == omega(step)[element]))


def clipped(gradient: State, counts: State) -> State:
    """The gradient of each element, transformed under the norm of what was counted."""
    return z3.Lambda([j], transform(norm(counts), gradient[j]))


def consistent(rank: Int) -> Bool:
    """SC at step t for every copy that a rank reads."""
    return z3.ForAll([j], invariant(t, rank, j))


def prove_reading(account: Account) -> None:
    """U, V and gamma read many elements: states alike on those are one argument, whatever the locality."""
    one, two = z3.Consts("one two", Gradient)
    same = seen(near(i), one) == seen(near(i), two)
    only = z3.ForAll([j], near(i)[j] == (j == i))
    matrix = z3.ForAll([j], near(i)[j] == (matrix_of(j) == matrix_of(i)))
    whole = z3.ForAll([j], near(i)[j])
    mine = z3.ForAll([j], z3.Implies(matrix_of(j) == matrix_of(i), one[j] == two[j]))
    for name, reads_, alike, wider in (
            ("elementwise: alike at i", only, one[i] == two[i], ("its matrix", matrix)),
            ("per matrix: alike on i's matrix", matrix, mine, ("all elements", whole)),
            ("any locality: alike on near(i)", near(i) == near(i), agree(one, two, near(i)), None)):
        account.theorem(f"{name}, two states are one argument of the update of i", same, [reads_, alike],
                        twin=Twin(f"  where it reads {wider[0]}", same, [wider[1], alike]) if wider else
                        Twin("  alike at i alone", same, [one[i] == two[i]]))


def prove_gradient(account: Account) -> None:
    """From GI and SC at step t to the gradient of i on rank c: an induction over ranks, and one over units."""
    right = gamma(k, i, seen(sees(k), theta(t)))
    sums = [d >= 0, part(k, 0) == 0, weights(k, 0) == 0, weights(k, d + 1) == weights(k, d) + weight(k, d),
            part(k, d + 1) == part(k, d) + weight(k, d) * gamma(k, i, seen(sees(k), view(t, d)))]
    weighs = z3.Implies(weight(k, d) != 0, z3.ForAll([j], z3.Implies(sees(k)[j], reads(t, d, j))))
    claim = z3.And(part(k, 0) == weights(k, 0) * right, z3.Implies(
        part(k, d) == weights(k, d) * right, part(k, d + 1) == weights(k, d + 1) * right))
    account.theorem("over ranks: what all ranks add for unit k is the sum of its weights times the reference's gamma\n"
                    "           (SC at t; a weight that is not 0 makes what its gamma reads a live read)", claim,
                    [*sums, weighs, consistent(d)],
                    twin=Twin("  without SC: another version was read", claim, [*sums, weighs]))
    account.refuted("  if a weighted gamma's reads are not observed", claim, [*sums, consistent(d)])
    sums = [k >= 0, so_far(0) == 0, reference(0) == 0, so_far(k + 1) == so_far(k) + weights(k, ranks) * right,
            reference(k + 1) == reference(k) + w_ref(k) * right]
    claim = z3.And(so_far(0) == reference(0), z3.Implies(so_far(k) == reference(k), so_far(k + 1) == reference(k + 1)))
    account.theorem("over units: gradients equal up to unit k, they are equal up to unit k+1 (GI at k)", claim,
                    [*sums, weights(k, ranks) == w_ref(k)],
                    twin=Twin("  without GI: the weights of one unit differ", claim, sums))


def prove_inputs(account: Account) -> None:
    """From GI and SC at step t to what the update of i on rank c reads."""
    closed = z3.Implies(live(t, c, i), z3.ForAll([j], z3.Implies(near(i)[j], z3.And(reads(t, c, j), keeps(t, c, j)))))
    claim = z3.And([seen(near(i), one) == seen(near(i), two)
                    for one, two in ((view(t, c), theta(t)), (moments(t, c), omega(t)))])
    account.theorem("states: a live update of i reads theta_t and omega_t (SC at t; what it reads is a live read)",
                    claim, [live(t, c, i), closed, consistent(c)],
                    twin=Twin("  without SC", claim, [live(t, c, i), closed]))
    account.refuted("  where the update is dead", claim, [closed, consistent(c)])
    account.refuted("  if what it reads is not observed", claim, [live(t, c, i), consistent(c)])
    right, whole = agree(local(t, c), single(t), near(i)), z3.ForAll([j], counted(t, c)[j] == single(t)[j])
    enters = seen(near(i), clipped(single(t), single(t)))
    claim = seen(near(i), clipped(local(t, c), counted(t, c))) == enters
    account.theorem("gradient: a live update of i reads T(N(g), g) (GI on near(i); the norm counts each element once)",
                    claim, [right, whole],
                    twin=Twin("  with the clip left out", seen(near(i), local(t, c)) == enters, [right, whole]))
    account.refuted("  without GI on all of near(i)", claim, [whole, local(t, c)[i] == single(t)[i]])
    account.refuted("  where the norm counts something else", claim, [right])


def prove_step(account: Account) -> None:
    """From what live updates read at step t to SC at step t+1, for parameters and moments; and the base."""
    sources = p(t, c, i), q(t, c, i)
    want = [read(t) for read in wanted]
    fixed = [theta(t + 1)[i] == make_params(i, *want), omega(t + 1)[i] == make_moments(i, *want),
             view(t + 1, c)[i] == new_params(t, sources[0])[i], moments(t + 1, c)[i] == new_moments(t, sources[1])[i]]
    for s in sources:
        got = [read(t, s) for read in inputs]
        fixed += [new_params(t, s)[i] == make_params(i, *got), new_moments(t, s)[i] == make_moments(i, *got)]
    premises = {f"what a live update reads of {name}": z3.And([
        z3.Implies(live(t, s, i), inputs[which](t, s) == wanted[which](t)) for s in sources])
        for which, name in enumerate(("the parameters", "the moments", "the gradient"))}
    premises |= {f"the source of the {name} made a live update": z3.Implies(read(t + 1, c, i), live(t, s, i))
                 for name, read, s in zip(("parameter", "moments"), (reads, keeps), sources, strict=True)}
    claim = invariant(t + 1, c, i)
    first, *rest = premises
    account.theorem("step: SC at t+1, for any rank c and element i: the parameter that it reads is theta_{t+1}'s,\n"
                    "           from p(c, i), and the moments are omega_{t+1}'s, from q(c, i)", claim,
                    [*fixed, *premises.values()],
                    twin=Twin(f"  without: {first}", claim, [*fixed, *(premises[name] for name in rest)]))
    for without in rest:
        account.refuted(f"  without: {without}", claim,
                        [*fixed, *(held for name, held in premises.items() if name != without)])
    own = [*fixed, *(premises[name] for name in (first, *rest[:-1])), q(t, c, i) == c]
    account.theorem("a rank's own moments (q(c, i) = c) are right where it made a live update of i", claim,
                    [*own, live(t, c, i)], twin=Twin("  where its own update was dead", claim, own))
    copied = [view(0, root) == theta(0), moments(0, root) == omega(0), view(0, c) == view(0, root)]
    claim = invariant(z3.IntVal(0), c, i)
    account.theorem("base: initialisation copies theta_0 and omega_0 from one rank to all", claim,
                    [*copied, moments(0, c) == moments(0, root)],
                    twin=Twin("  a rank keeps moments that were in its memory", claim, copied))


def prove_every_read(account: Account) -> None:
    """With a weaker notion of *observed* the theorem is false: wrong reads can cancel, whatever the model."""
    rest, lost = z3.Int("rest"), z3.Const("lost", Params)
    use = z3.Function("made_from", Number, Weight)
    stale, extra = (gamma(k, i, state) for state in (lost, theta(t)))
    account.theorem("two ranks read one copy that was never loaded, with weights +1 and -1: for every gamma and U\n"
                    "           the next parameters are right, though neither read was",
                    use(rest + stale - stale) == use(rest), [lost != theta(t)],
                    twin=Twin("  with weights +1 and +1", use(rest + 2 * stale) == use(rest + 2 * extra)))


def main() -> Account:
    """Prove both directions, and run the separating pairs."""
    account = Account("Gradient integrity and state consistency iff equal trajectories")
    account.say("What U, V and gamma read: any number of elements.")
    prove_reading(account)
    account.say("Sufficiency: the inductive step, for all gamma, T, U and V.")
    prove_gradient(account)
    prove_inputs(account)
    prove_step(account)
    account.say("Necessity: SGD and gamma(x, theta) = [x = x0] theta.")
    prove_necessity(account)
    prove_versions(account)
    run_pairs(account)
    account.say("Observed means every live read, not only the copies at step boundaries.")
    prove_every_read(account)
    return account.close()


if __name__ == "__main__":
    main()
