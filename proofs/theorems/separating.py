"""Runs that tell a faulty step from the single device: the constructive half of the equivalence theorem.

Each fault has a model that tells, made of the same few parts. Weights: gamma(x, theta) = [x = x0] theta for one unit
x0, and SGD with a rate that is not 0; a U that reads the gradient of another element j0 near i, for a weight that is
wrong at j0 alone. The transform: T(N, g) = g + 1, which no two numbers of applications make alike. The norm:
T(N, g) = N with N the count of one element e0. Views: an earlier version, and in a run that moves in every step no
earlier version, one back or many, is the version of this step; likewise moments that count steps, and a U that reads
them. What is undefined may be anything, so that of two values at least one tells.

For all programs at once, of any number of ranks: `necessary_version` (views, moments, what was never loaded),
`necessary_update` (weights on i and on all of near(i), the list of transforms, the norm) and `necessary_counted` (the
weights of what a norm counts) in proofs/coq/Equivalence.v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import z3
from telling import Account, Bool, Int, Twin, inductive

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
    other, junk = z3.Reals("junk_1 junk_2")
    tells = z3.Or([sgd(v, w * value) != sgd(v, w * v) for value in (other, junk)])
    account.theorem("an undefined copy: of any two values that it may have, one at least tells", tells,
                    [eta != 0, w != 0, other != junk],
                    twin=Twin("  one value alone, that may be right by chance", tells, [eta != 0, w != 0]))
    foreign = z3.Or([sgd(v, w * v + w * value) != sgd(v, w * v) for value in (other, junk)])
    account.theorem("an undefined term in a sum, such as a shard's padding or another element: one at least tells",
                    foreign, [eta != 0, w != 0, other != junk],
                    twin=Twin("  if what is not held were 0", foreign, [eta != 0, w != 0, other == 0, junk == 0]))


def prove_transform(account: Account) -> None:
    """T(N, g) = g + 1 tells how often it was applied; T(N, g) = N tells what the norm counted."""
    eta, v, g, clipped = z3.Reals("eta theta g clipped")
    after = z3.Function("after", Number, z3.RealSort())
    closed = z3.And(after(0) == g, z3.Implies(after(k) == g + k, after(k + 1) == g + k + 1))
    account.theorem("T(N, g) = g + 1, applied k times, is g + k (base and step)", closed,
                    [k >= 0, after(0) == g, after(k + 1) == after(k) + 1],
                    twin=Twin("  a T that may be idempotent", closed, [k >= 0, after(0) == g]))
    apart = v - eta * after(k) != v - eta * after(1)
    times = [eta != 0, k >= 0, after(k) == g + k, after(1) == g + 1]
    account.theorem("a transform that is missing (k = 0) or applied twice (k = 2), or more: theta_{t+1} differs", apart,
                    [*times, k != 1], twin=Twin("  applied once", apart, times))
    clip = z3.If(g > 1, 1, g)
    twice = clipped == z3.If(clip > 1, 1, clip)
    account.refuted("  clipping itself, applied twice: that it is idempotent is why T is any function",
                    v - eta * clipped != v - eta * clip, [eta != 0, twice])
    account.theorem("two transforms in another order: g + 1, then 2 g, differs from 2 g, then g + 1",
                    v - eta * (2 * (g + 1)) != v - eta * (2 * g + 1), [eta != 0],
                    twin=Twin("  two that commute, g + 1 and g + 2", v - eta * (g + 1 + 2) != v - eta * (g + 2 + 1)))

    counts, e0, elements = z3.Function("counts", Number, z3.RealSort()), *z3.Ints("e0 elements")
    lone = z3.And(inductive(lambda e: counts(e) * z3.If(e == e0, 1, 0), lambda n: z3.If(n > e0, counts(e0), 0), k),
                  v - eta * z3.If(elements > e0, counts(e0), 0) != v - eta)
    inside = [k >= 0, e0 >= 0, e0 < elements, eta != 0]
    account.theorem("a norm that counts e0 twice, never, or otherwise than once: with T(N, g) = N, and N the sum of\n"
                    "           counts(e) [e = e0], it is counts(e0), and theta_{t+1} differs", lone,
                    [*inside, counts(e0) != 1], twin=Twin("  counted once", lone, inside))
    total = v - eta * (counts(0) + counts(1)) != v - eta * 2
    account.refuted("  with an N of all elements alike: one element twice and another never", total,
                    [eta != 0, counts(0) != 1])


def prove_near(account: Account) -> None:
    """U for i that reads the gradient of j0: legal where j0 is near i, and then a wrong weight at j0 alone tells."""
    element = z3.DeclareSort("Element")
    i, j, j0 = z3.Consts("i j j0", element)
    near, g, h, w, right = (z3.Function(name, element, of) for name, of in (
        ("near", z3.BoolSort()), *((name, z3.RealSort()) for name in ("g", "h", "w", "w_ref"))))
    eta, v = z3.Reals("eta theta")
    alike, legal = z3.ForAll([j], z3.Implies(near(j), g(j) == h(j))), v - eta * g(j0) == v - eta * h(j0)
    account.theorem("U(i, theta, g) = theta(i) - eta g(j0) is an update that reads near(i), for j0 near i", legal,
                    [near(j0), alike], twin=Twin("  for a j0 that is not near i", legal, [alike]))
    fault = [eta != 0, v != 0, w(i) == right(i), j0 != i]
    apart = v - eta * (w(j0) * v) != v - eta * (right(j0) * v)
    account.theorem("so a weight that is right at i and wrong at j0 near i: theta_{t+1}(i) differs", apart,
                    [*fault, w(j0) != right(j0)],
                    twin=Twin("  with an elementwise update", v - eta * (w(i) * v) != v - eta * (right(i) * v)))


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
    v, g = z3.Reals("theta g")
    apart = v - eta * (g + steps(t - k)) != v - eta * (g + steps(t))
    late = [eta != 0, k >= 1, t >= k, steps(t) == t]
    account.theorem("so for U(theta, omega, g) = theta - eta (g + omega) moments k versions back make another theta",
                    apart, [*late, steps(t - k) == t - k],
                    twin=Twin("  moments that do not count", apart, late))


WANT = (Fraction(1, 4),) * 4
"""The reference weights: the mean over four units."""


@dataclass(frozen=True, slots=True)
class Rank:
    """What a rank does to make element 0, of a matrix of two: the single device, where nothing is said.

    weights[j][x] weighs unit x in the gradient of element j; `back` and `moments_back` are how many versions back it
    reads, as soon as there are so many; `applied` is how often it applies T, and counts[e] how often its norm counts
    element e; `lost` is what lies in the memory that it reads instead of the parameter.
    """

    weights: tuple[tuple[Fraction, ...], ...] = (WANT, WANT)
    back: int = 0
    moments_back: int = 0
    applied: int = 1
    counts: tuple[int, int] = (1, 1)
    lost: Fraction | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A distributed step, rank by rank."""

    name: str
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A separating model: U = theta - (T(N, g(j0)) + a omega) / 2, V = omega + 1 and T(N, g) = g + b + N.

    gamma(x, j, theta) = [x = x0] theta, and N counts the element e0, or nothing.
    """

    x0: int = 0
    j0: int = 0
    a: int = 0
    b: int = 0
    e0: int | None = None

    def __str__(self) -> str:
        return ", ".join((f"unit {self.x0}", *(("U reads the other element",) if self.j0 else ()),
                          *(("U reads moments that count steps",) if self.a else ()),
                          *(("T(N, g) = g + 1",) if self.b else ()),
                          *((f"T(N, g) = g + N of element {self.e0}",) if self.e0 is not None else ())))


def defect(program: Program) -> Model | None:
    """The separating model of the first fault that is found, or None if GI and SC hold."""
    for rank in program.ranks:
        wrong = [(j, x) for j, row in enumerate(rank.weights) for x, weight in enumerate(row) if weight != WANT[x]]
        miscounted = [e for e, count in enumerate(rank.counts) if count != 1]
        if wrong:
            return Model(j0=wrong[0][0], x0=wrong[0][1])
        if rank.back or rank.lost is not None:
            return Model()
        if rank.moments_back:
            return Model(a=1)
        if rank.applied != 1:
            return Model(b=1)
        if miscounted:
            return Model(e0=miscounted[0])
    return None


def trained(rank: Rank, model: Model, steps: int) -> list[Fraction]:
    """Element 0 on a rank, after every step, from theta_0 = 1."""
    path = [Fraction(1)]
    for step in range(steps):
        version, counted = (step - back if step >= back else step for back in (rank.back, rank.moments_back))
        read = path[version] if rank.lost is None else rank.lost
        gradient = rank.weights[model.j0][model.x0] * read
        for _ in range(rank.applied):
            gradient += model.b + (rank.counts[model.e0] if model.e0 is not None else 0)
        path.append(path[-1] - (gradient + model.a * counted) / 2)
    return path


def runs(program: Program, model: Model, steps: int = 4) -> tuple[list[Fraction], list[list[Fraction]]]:
    """The trajectories of the single device and of all ranks."""
    return trained(Rank(), model, steps), [trained(rank, model, steps) for rank in program.ranks]


def faulty() -> Sequence[Program]:
    """A program for each kind of fault, on one of two ranks or on both."""
    right, two = Rank(), (2 * WANT[0], Fraction(0), *WANT[2:])
    return (Program("sum for mean", (Rank((tuple(4 * w for w in WANT),) * 2),) * 2),
            Program("one rank without unit 3", (right, Rank(((*WANT[:3], Fraction(0)),) * 2))),
            Program("unit 0 twice and unit 1 never: the sum of weights is right", (Rank((two, two)),) * 2),
            Program("unit 0 twice, at the other element of the matrix alone", (right, Rank((WANT, two)))),
            Program("one rank reads a version back", (right, Rank(back=1))),
            Program("one rank reads two versions back", (right, Rank(back=2))),
            Program("one rank's moments are a version back", (right, Rank(moments_back=1))),
            Program("one rank does not apply T", (right, Rank(applied=0))),
            Program("one rank applies T twice", (right, Rank(applied=2))),
            Program("a norm counts element 1 twice", (right, Rank(counts=(1, 2)))),
            Program("a norm counts element 0 never, and element 1 twice", (right, Rank(counts=(0, 2)))),
            Program("one rank reads memory that was never loaded", (right, Rank(lost=Fraction(5)))))


def run_pairs(account: Account) -> None:
    """The separating pair of every faulty program, run; programs without a fault agree for the model of every unit."""
    for program in faulty():
        model = defect(program)
        assert model is not None
        single_device, ranks = runs(program, model)
        apart = [(step, rank) for step, want in enumerate(single_device) for rank, path in enumerate(ranks)
                 if path[step] != want]
        step, rank = apart[0] if apart else (0, 0)
        account.run(f"{program.name}: {model} separates; step {step} on rank {rank} has {ranks[rank][step]}, "
                    f"the single device {single_device[step]}", bool(apart))
    right = Program("right", (Rank(), Rank()))
    every = [Model(x0, j0, a, b, e0) for x0 in range(4) for j0 in (0, 1) for a in (0, 1) for b in (0, 1)
             for e0 in (None, 0, 1)]
    account.run("GI and SC hold: no pair to construct, and no model of these separates", defect(right) is None and all(
        path == runs(right, model)[0] for model in every for path in runs(right, model)[1]))
    plain = runs(faulty()[3], Model())
    account.run("a wrong weight at the other element alone: with an elementwise update nothing shows",
                plain[1] == [plain[0]] * 2)
