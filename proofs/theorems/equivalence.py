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
Sufficiency is an induction over steps, on uninterpreted gamma, T, N, U and V (sufficiency.py): its invariant is SC
itself, of parameters and of moments, and its step is one query. Necessity is constructive (separating.py): a failing
view differs from what the single device reads, in a run of SGD that moves in every step, however many versions it is
back; where all views are right, a failing weight, of i or near i, a T that is missing, doubled or out of order, a norm
that counts an element otherwise than once, and moments of another version each have a model that tells.
"""

from __future__ import annotations

import z3
from separating import prove_near, prove_necessity, prove_transform, prove_versions, run_pairs
from sufficiency import (
    Element,
    Gradient,
    Number,
    Params,
    State,
    Weight,
    gamma,
    i,
    j,
    k,
    near,
    prove_step,
    prove_sums,
    t,
    theta,
)
from telling import Account, Bool, Twin

one, two = z3.Consts("one two", Gradient)
matrix_of, lost = z3.Function("matrix", Element, Number), z3.Const("lost", Params)


def seen(which: State, state: State) -> State:
    """What is read of `state`: the elements in `which`; of the rest nothing."""
    return z3.Lambda([j], z3.If(which[j], state[j], z3.Const(f"unread_{state.sort().range()}", state.sort().range())))


def agree(one: State, two: State, which: State) -> Bool:
    """Two states are alike on every element in `which`."""
    return z3.ForAll([j], z3.Implies(which[j], one[j] == two[j]))


def prove_reading(account: Account) -> None:
    """U, V and gamma read many elements: states alike on those are one argument, whatever the locality."""
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


def prove_every_read(account: Account) -> None:
    """With a weaker notion of *observed* the theorem is false: wrong reads can cancel, whatever the model."""
    rest = z3.Int("rest")
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
    account.say("Sufficiency: the inductive step, for all gamma, T, N, U and V.")
    prove_sums(account)
    prove_step(account)
    account.say("Necessity: each fault has a model that tells. For all programs at once: necessary_version,\n"
                "necessary_update and necessary_counted in proofs/coq/Equivalence.v.")
    for prove_part in (prove_necessity, prove_transform, prove_near, prove_versions, run_pairs):
        prove_part(account)
    account.say("Observed means every live read, not only the copies at step boundaries.")
    prove_every_read(account)
    return account.close()


if __name__ == "__main__":
    main()
