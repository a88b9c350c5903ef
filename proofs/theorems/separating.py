"""Runs that tell a faulty step from the single device: the constructive half of the equivalence theorem.

The separating model is gamma(x, theta) = [x = x0] theta for one unit x0, the update SGD with a rate that is not 0. A
wrong weight of x0 changes what the update makes. A wrong view is an earlier version, and in a run that moves in every
step no earlier version, one back or many, is the version of this step.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import z3
from telling import Account, Bool, Int, Twin

Number = z3.IntSort()
t, k = z3.Ints("t k")


def prove_necessity(account: Account) -> None:
    """SGD and the indicator model separate a wrong weight, and a wrong view, from the reference."""
    eta, v, w, right, stale = z3.Reals("eta theta w w_ref stale")

    def sgd(value: z3.ArithRef, gradient: z3.ArithRef) -> z3.ArithRef:
        return value - eta * gradient

    given = [eta != 0, v != 0, w != right]
    account.theorem("a wrong weight: theta - eta w theta differs from theta - eta w_ref theta",
                    sgd(v, w * v) != sgd(v, right * v), given,
                    twin=Twin("  with a rate that may be 0", sgd(v, w * v) != sgd(v, right * v), given[1:]))
    account.refuted("  with parameters that may be 0", sgd(v, w * v) != sgd(v, right * v), [eta != 0, w != right])
    given = [eta != 0, w != 0, stale != v]
    account.theorem("a wrong view: gamma(stale) enters where gamma(theta) should",
                    sgd(v, w * stale) != sgd(v, w * v), given,
                    twin=Twin("  where the unit may have no weight", sgd(v, w * stale) != sgd(v, w * v),
                              [eta != 0, stale != v]))
    account.theorem("a missing clip, or wrong moments (U(theta, omega, g) = theta - eta (g + omega)): another input",
                    sgd(v, w + stale) != sgd(v, right + stale), [eta != 0, w != right],
                    twin=Twin("  where the input may be the same", sgd(v, w + stale) != sgd(v, right + stale),
                              [eta != 0]))


def prove_versions(account: Account) -> None:
    """Any number of versions back is a wrong view, for the reference run of SGD and the indicator model."""
    eta, w = z3.Reals("eta w")
    run, power = (z3.Function(name, Number, z3.RealSort()) for name in ("run", "power"))

    def moved(step: Int) -> list[Bool]:
        """From a step to the next: by SGD, and by a factor."""
        return [run(step + 1) == run(step) - eta * (w * run(step)), power(step + 1) == power(step) * (1 - eta * w)]

    closed = z3.And(run(0) == power(0) * run(0), z3.Implies(
        run(k) == power(k) * run(0), run(k + 1) == power(k + 1) * run(0)))
    account.theorem("after k steps theta_k = (1 - eta w)**k theta_0 (base and step)", closed,
                    [k >= 0, power(0) == 1, *moved(k)],
                    twin=Twin("  with the gradient of two units", closed, [
                        k >= 0, power(0) == 1, run(k + 1) == run(k) - 2 * eta * (w * run(k)), *moved(k)[1:]]))
    slow = [eta * w > 0, eta * w < 1]
    positive = z3.And(run(0) > 0, z3.Implies(run(k) > 0, run(k + 1) > 0))
    account.theorem("with 0 < eta w < 1 and theta_0 > 0 every theta_k is positive (base and step)", positive,
                    [k >= 0, run(0) > 0, *slow, *moved(k)],
                    twin=Twin("  with a larger rate", positive, [k >= 0, run(0) > 0, slow[0], *moved(k)]))
    back = [k >= 1, t >= k + 1, run(t - 1) > 0, run(t - k - 1) > 0, *moved(t - 1), *moved(t - k - 1)]
    smaller = z3.And(run(t) < run(t - 1), z3.Implies(run(t) < run(t - k), run(t) < run(t - (k + 1))))
    account.theorem("so theta_t < theta_{t-k} for every k >= 1: every number of versions back is a wrong view\n"
                    "           (base: 1, step: k to k+1)", smaller, [*back, *slow],
                    twin=Twin("  with a rate that may be 0", smaller, [*back, slow[1]]))
    turning = [eta * w == 2, run(0) > 0, run(1) == run(0) * (1 - eta * w), run(2) == run(1) * (1 - eta * w)]
    account.refuted("  with the rate 2/w: two versions back is the same number", run(2) != run(0), turning)
    steps = z3.Function("steps", Number, Number)
    first = [k >= 0, steps(0) == 0]
    counts = z3.And(steps(0) == 0, z3.Implies(steps(k) == k, steps(k + 1) == k + 1))
    account.theorem("moments that count steps (V = omega + 1) are k after k steps: no earlier version is the same",
                    counts, [*first, steps(k + 1) == steps(k) + 1],
                    twin=Twin("  a V that keeps the moments", counts, [*first, steps(k + 1) == steps(k)]))


@dataclass(frozen=True, slots=True)
class Program:
    """A distributed step: weights[c][x] of unit x on rank c, and how many versions back each rank reads."""

    name: str
    weights: tuple[tuple[Fraction, ...], ...]
    back: tuple[int, ...] = (0, 0)


WANT = (Fraction(1, 4),) * 4
"""The reference weights: the mean over four units."""


def defect(program: Program) -> tuple[int, Fraction] | None:
    """The unit x0 of the separating model and the rate at which it moves, or None if GI and SC hold."""
    wrong = [x for row in program.weights for x in range(len(WANT)) if row[x] != WANT[x]]
    return (wrong[0] if wrong else 0, Fraction(1, 2)) if wrong or any(program.back) else None


def runs(program: Program, x0: int, rate: Fraction, steps: int = 4) -> tuple[list[Fraction], list[list[Fraction]]]:
    """The trajectories of the single device and of all ranks, for gamma(x, theta) = [x = x0] theta and theta_0 = 1."""
    single_device, ranks = [Fraction(1)], [[Fraction(1)] for _ in program.weights]
    for _ in range(steps):
        single_device.append(single_device[-1] * (1 - rate * WANT[x0]))
        for path, row, back in zip(ranks, program.weights, program.back, strict=True):
            read = path[-1 - back] if len(path) > back else path[-1]
            path.append(path[-1] - rate * row[x0] * read)
    return single_device, ranks


def run_pairs(account: Account) -> None:
    """The separating pair of every faulty program, run; programs without a fault agree for the model of every unit."""
    row, two = WANT, (2 * WANT[0], Fraction(0), *WANT[2:])
    for program in (Program("sum for mean", (tuple(4 * w for w in row),) * 2),
                    Program("one rank without unit 3", (row, (*row[:3], Fraction(0)))),
                    Program("unit 0 twice and unit 1 never: the sum of weights is right", (two, two)),
                    Program("one rank reads a version back", (row, row), (0, 1)),
                    Program("one rank reads two versions back", (row, row), (0, 2))):
        found = defect(program)
        assert found is not None
        single_device, ranks = runs(program, *found)
        apart = [(step, rank) for step, want in enumerate(single_device) for rank, path in enumerate(ranks)
                 if path[step] != want]
        step, rank = apart[0] if apart else (0, 0)
        account.run(f"{program.name}: unit {found[0]} separates; step {step} on rank {rank} has {ranks[rank][step]}, "
                    f"the single device {single_device[step]}", bool(apart))
    right = Program("right", (row, row))
    account.run("GI and SC hold: no pair to construct, and no unit separates", defect(right) is None and all(
        path == runs(right, x, Fraction(1, 2))[0] for x in range(4) for path in runs(right, x, Fraction(1, 2))[1]))
