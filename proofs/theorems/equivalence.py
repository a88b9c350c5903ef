"""The equivalence theorem: gradient integrity and state consistency hold iff the trajectories are equal.

Setting. theta_t is the parameters' version t; gamma(x, theta) is the gradient of unit x of the batch for one element,
any function; omega the optimizer's state; T the declared list of transforms (clipping), U the update, any functions.
One device:      g = sum over x of w_ref(x) gamma(x, theta_t),        theta_{t+1} = U(theta_t, omega_t, T(g)).
Rank c of many:  g_c = sum over x of w(c, x) gamma(x, view_c),        new_c = U(view_c, omega_c, T_c(g_c)),
and after the step each rank reads a copy of what some rank p(c) made.

Hypotheses: every unit's forward and backward compute what the single device computes (forward_backward.py); the loss is
additive over units; *observed* means every live read; and both sides quantify over all gamma, U, theta_0 and batches.

Theorem. GI (at every live update w(c, x) = w_ref(x) for all x, T_c = T) and SC (at every live read view_c = theta_t,
omega_c = omega_t, and p(c) made a live update) hold iff for all gamma, U, theta_0 and batches the runs are equal.
Sufficiency is an induction over steps, on uninterpreted gamma, T and U. Necessity is constructive: for the first
failing weight or view in program order (up to there all is right), SGD with a non-zero rate and the model
gamma(x, theta) = [x = x0] theta tell the runs apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import z3
from telling import Account, Twin

Params, Moments = z3.DeclareSort("Params"), z3.DeclareSort("Moments")
Number = z3.IntSort()
k, c, root = z3.Ints("k c root")
theta, omega, start = z3.Const("theta", Params), z3.Const("omega", Moments), z3.Const("start", Params)
view, new, later = (z3.Function(name, Number, Params) for name in ("view", "new", "later"))
moments, source = z3.Function("moments", Number, Moments), z3.Function("p", Number, Number)
gamma = z3.Function("gamma", Number, Params, Number)
weight, reference_weight = z3.Function("w", Number, Number, Number), z3.Function("w_ref", Number, Number)
transform = z3.Function("T", Number, Number)
update = z3.Function("U", Params, Moments, Number, Params)
local, single = z3.Function("G_c", Number, Number, Number), z3.Function("G", Number, Number)
"""local(c, k) and single(k): the sums over the first k units, on rank c and on the single device."""
count = z3.Int("units")


def prove_sufficiency(account: Account) -> None:
    """From GI and SC at step t to SC at step t+1, and the base."""
    sums = [k >= 0, local(c, k + 1) == local(c, k) + weight(c, k) * gamma(k, view(c)),
            single(k + 1) == single(k) + reference_weight(k) * gamma(k, theta)]
    weights, views = weight(c, k) == reference_weight(k), view(c) == theta
    sofar = local(c, k) == single(k)
    account.theorem("gradients: equal up to unit k, they are equal up to unit k+1 (GI at k, SC of the view)",
                    local(c, k + 1) == single(k + 1), [*sums, weights, views, sofar],
                    twin=Twin("  without GI: one weight differs", local(c, k + 1) == single(k + 1),
                              [*sums, views, sofar]))
    account.refuted("  without SC: another version was read", local(c, k + 1) == single(k + 1), [*sums, weights, sofar])

    made = new(source(c)) == update(view(source(c)), moments(source(c)), transform(local(source(c), count)))
    bare = new(source(c)) == update(view(source(c)), moments(source(c)), local(source(c), count))
    after = update(theta, omega, transform(single(count)))
    given = [made, view(source(c)) == theta, moments(source(c)) == omega, local(source(c), count) == single(count),
             later(c) == new(source(c))]
    account.theorem("step: what rank c reads at t+1 is theta_{t+1} (SC at t, the same gradient, T, a live source)",
                    later(c) == after, given,
                    twin=Twin("  with the clip left out", later(c) == after, [bare, *given[1:]]))
    for position, said in ((1, "the view"), (2, "the moments"), (3, "the gradient"), (4, "the source of the copy")):
        account.refuted(f"  without the premise on {said}", later(c) == after, given[:position] + given[position + 1:])
    first = [view(root) == start, view(c) == view(root)]
    account.theorem("base: initialisation copies theta_0 from one rank to all", view(c) == start, first,
                    twin=Twin("  a rank keeps what was in its memory", view(c) == start, first[:1]))


def prove_necessity(account: Account) -> None:
    """SGD and the indicator model separate a wrong weight, and a wrong view, from the reference."""
    eta, t, w, w_ref, stale = z3.Reals("eta t w w_ref stale")

    def sgd(value: z3.ArithRef, gradient: z3.ArithRef) -> z3.ArithRef:
        return value - eta * gradient

    given = [eta != 0, t != 0, w != w_ref]
    account.theorem("a wrong weight: theta - eta w theta differs from theta - eta w_ref theta",
                    sgd(t, w * t) != sgd(t, w_ref * t), given,
                    twin=Twin("  with a rate that may be 0", sgd(t, w * t) != sgd(t, w_ref * t), given[1:]))
    account.refuted("  with parameters that may be 0", sgd(t, w * t) != sgd(t, w_ref * t), [eta != 0, w != w_ref])
    given = [eta != 0, w != 0, stale != t]
    account.theorem("a wrong view: gamma(stale) enters where gamma(theta) should",
                    sgd(t, w * stale) != sgd(t, w * t), given,
                    twin=Twin("  where the unit may have no weight", sgd(t, w * stale) != sgd(t, w * t),
                              [eta != 0, stale != t]))
    account.theorem("a missing clip, or wrong moments (U(theta, omega, g) = theta - eta (g + omega)): another input",
                    sgd(t, w + stale) != sgd(t, w_ref + stale), [eta != 0, w != w_ref],
                    twin=Twin("  where the input may be the same", sgd(t, w + stale) != sgd(t, w_ref + stale),
                              [eta != 0]))
    account.theorem("a version back is a wrong view: this run moves in every step",
                    sgd(t, w * t) != t, [eta != 0, w != 0, t != 0],
                    twin=Twin("  with a rate that may be 0", sgd(t, w * t) != t, [w != 0, t != 0]))


@dataclass(frozen=True, slots=True)
class Program:
    """A distributed step: weights[c][x] of unit x on rank c, and the ranks that read the version before."""

    name: str
    weights: tuple[tuple[Fraction, ...], ...]
    stale: frozenset[int] = frozenset()


WANT = (Fraction(1, 4),) * 4
"""The reference weights: the mean over four units."""


def defect(program: Program) -> tuple[int, Fraction] | None:
    """The unit x0 of the separating model and the rate at which it moves, or None if GI and SC hold."""
    wrong = [x for row in program.weights for x in range(len(WANT)) if row[x] != WANT[x]]
    return (wrong[0] if wrong else 0, Fraction(1, 2)) if wrong or program.stale else None


def runs(program: Program, x0: int, rate: Fraction, steps: int = 3) -> tuple[list[Fraction], list[list[Fraction]]]:
    """The trajectories of the single device and of all ranks, for gamma(x, theta) = [x = x0] theta and theta_0 = 1."""
    single_device, ranks = [Fraction(1)], [[Fraction(1)] for _ in program.weights]
    for _ in range(steps):
        single_device.append(single_device[-1] * (1 - rate * WANT[x0]))
        for c, path in enumerate(ranks):
            read = path[-2] if c in program.stale and len(path) > 1 else path[-1]
            path.append(path[-1] - rate * program.weights[c][x0] * read)
    return single_device, ranks


def run_pairs(account: Account) -> None:
    """The separating pair of every faulty program, run; programs without a fault agree for the model of every unit."""
    row, two = WANT, (2 * WANT[0], Fraction(0), *WANT[2:])
    for program in (Program("sum for mean", (tuple(4 * w for w in row),) * 2),
                    Program("one rank without unit 3", (row, (*row[:3], Fraction(0)))),
                    Program("unit 0 twice and unit 1 never: the sum of weights is right", (two, two)),
                    Program("one rank reads a version back", (row, row), frozenset({1}))):
        found = defect(program)
        assert found is not None
        single_device, ranks = runs(program, *found)
        apart = [(c, t) for c, path in enumerate(ranks) for t, v in enumerate(path) if v != single_device[t]]
        c, t = apart[0] if apart else (0, 0)
        account.run(f"{program.name}: unit {found[0]} separates; step {t} on rank {c} has {ranks[c][t]}, "
                    f"the single device {single_device[t]}", bool(apart))
    right = Program("right", (row, row))
    account.run("GI and SC hold: no pair to construct, and no unit separates", defect(right) is None and all(
        path == runs(right, x, Fraction(1, 2))[0] for x in range(4) for path in runs(right, x, Fraction(1, 2))[1]))


def prove_every_read(account: Account) -> None:
    """With a weaker notion of *observed* the theorem is false: wrong reads can cancel, whatever the model."""
    rest, lost = z3.Int("rest"), z3.Const("lost", Params)
    got = rest + gamma(k, lost) - gamma(k, lost)
    account.theorem("two ranks read one copy that was never loaded, with weights +1 and -1: for every gamma and U\n"
                    "           the next parameters are right, though neither read was",
                    update(theta, omega, got) == update(theta, omega, rest), [lost != theta],
                    twin=Twin("  with weights +1 and +1", update(theta, omega, rest + 2 * gamma(k, lost))
                              == update(theta, omega, rest)))


def main() -> Account:
    """Prove both directions, and run the separating pairs."""
    account = Account("Gradient integrity and state consistency iff equal trajectories")
    account.say("Sufficiency: the inductive step, for all gamma, T and U.")
    prove_sufficiency(account)
    account.say("Necessity: SGD and gamma(x, theta) = [x = x0] theta.")
    prove_necessity(account)
    run_pairs(account)
    account.say("Observed means every live read, not only the copies at step boundaries.")
    prove_every_read(account)
    return account.close()


if __name__ == "__main__":
    main()
