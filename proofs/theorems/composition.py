"""Composition: when the steps of two strategies on disjoint mesh axes commute, and the three ways in which they do not.

A step over axis a acts on the ranks' first coordinate, a step over axis b on the second; f(i, j) is what rank (i, j)
holds, and n_a, n_b are any sizes.

Theorem. Any two linear maps on disjoint coordinates commute, (A x I)(I x B) = (I x B)(A x I): with
(A f)(i, j) = sum over p of A(i, p) f(p, j) and (B f)(i, j) = sum over q of B(j, q) f(i, q), for all n_a and n_b, all A,
B, f and every i, j: (A B f)(i, j) = (B A f)(i, j) (base and step over n_a, with a sum over n_b inside). With
A = B = 1 it says that reducing over a, then b, is reducing over b, then a. All events that are linear (reductions,
gathers, slices, scales, shifts) are such maps, so tensor and data parallelism compose in either order; any number of
axes, and what is not defined on some ranks, are in proofs/coq/Axes.v (events_commute, moves_sound). Hypotheses: both
orders act on the same elements (equal masks), are linear, and divide by the same counts.

A step that only moves along a, a message to the next stage or a shift, commutes with every step along b that is alike
for all coordinates of a, linear or not: pipeline and data parallelism compose in either order. What a pipeline adds to
that, the order of microbatches, is in pipeline.py.

Each hypothesis is needed: unequal counts (a mean of means), owner functions that differ along the other axis
(a foreign element is added), a nonlinear transform in between (clipping).
"""

from __future__ import annotations

from collections.abc import Callable

import z3
from telling import Account, Bool, Int, Twin, run_equals, step_of, verdict

from placealg.arith import ONE, Monomial
from placealg.frozen import FrozenMap
from placealg.models.abstract import abstract
from placealg.models.config import resolve_model
from placealg.models.transformer import mlp
from placealg.prover.calculus.contribution import Term, Value

m, k, factor = z3.Ints("m k factor")
Number = z3.IntSort()
f, a, b, b_then, a_then, row, a_then_b, b_then_a = (z3.Function(name, *[Number] * (arity + 1)) for name, arity in (
    ("f", 2), ("A_i", 1), ("B_j", 1), ("b_then", 2), ("a_then", 2), ("row", 2), ("a_then_b", 2), ("b_then_a", 2)))
"""For any i and j: a(p) = A(i, p), b(q) = B(j, q). b_then(p, k), sum over q < k of b(q) f(p, q): what B makes of row p.
a_then(m, q), sum over p < m of a(p) f(p, q): what A makes of column q. b_then_a(m, k), sum over p < m of
a(p) b_then(p, k): B, then A. a_then_b(m, k), sum over q < k of b(q) a_then(m, q): A, then B."""


def partial_sums(weight: Callable[[Int, Int], Int]) -> list[Bool]:
    """What the sums are, from 0 and from k to k + 1 ranks of b, and for one row m of a more; weight(p, q) is B's."""
    return [m >= 0, k >= 0, b_then(m, 0) == 0, a_then(0, k) == 0, *(a_then_b(rows, 0) == 0 for rows in (0, m, m + 1)),
            b_then(m, k + 1) == b_then(m, k) + weight(m, k) * f(m, k),
            a_then(m + 1, k) == a_then(m, k) + a(m) * f(m, k),
            *(a_then_b(rows, k + 1) == a_then_b(rows, k) + b(k) * a_then(rows, k) for rows in (0, m, m + 1))]


def prove_order(account: Account) -> None:
    """Linear maps along a and along b, as double sums, for all sizes; reductions are the maps with all weights 1."""
    alike, stepwise = partial_sums(lambda p, q: b(q)), z3.Function("B_pj", Number, Number, Number)

    def one_row_more(columns: Int) -> Bool:
        return a_then_b(m + 1, columns) == a_then_b(m, columns) + a(m) * b_then(m, columns)

    none = z3.And(a_then_b(0, 0) == 0, z3.Implies(a_then_b(0, k) == 0, a_then_b(0, k + 1) == 0))
    claim = z3.And(none, one_row_more(z3.IntVal(0)), z3.Implies(one_row_more(k), one_row_more(k + 1)))
    account.theorem("for every n_b: A, then B gives 0 for no rows; one row of a more adds A(i, p) times B of that row",
                    claim, alike,
                    twin=Twin("  if B's weights are not those of all rows", claim, partial_sums(stepwise)))
    ones = [a(m) == 1, b(k) == 1]
    account.refuted("  reductions, where ranks of one column stand outside the mask", claim,
                    [*partial_sums(lambda p, q: z3.If(q == 0, 0, 1)), *ones])
    sums = [m >= 0, a_then_b(0, k) == 0, b_then_a(0, k) == 0, one_row_more(k)]
    equal = z3.And(a_then_b(0, k) == b_then_a(0, k), z3.Implies(
        a_then_b(m, k) == b_then_a(m, k), a_then_b(m + 1, k) == b_then_a(m + 1, k)))
    step = b_then_a(m + 1, k) == b_then_a(m, k) + a(m) * b_then(m, k)
    account.theorem("for every n_a, n_b and all linear maps A along a, B along b: A B = B A", equal, [*sums, step],
                    twin=Twin("  if B also doubles what it gets", equal, [
                        *sums, b_then_a(m + 1, k) == b_then_a(m, k) + a(m) * (2 * b_then(m, k))]))
    account.theorem("so for every n_a, n_b: reducing over a, then b, is reducing over b, then a", equal,
                    [*sums, step, *ones], twin=Twin("  if b's reduction runs once per row as well", equal, [
                        *sums, *ones, b_then_a(m + 1, k) == b_then_a(m, k) + 2 * b_then(m, k)]))


def prove_moves(account: Account) -> None:
    """Moving rows along a, and any step along b: it makes a row of a row, at coordinate i of a perhaps its own way."""
    rows = z3.DeclareSort("Row")
    held, step = z3.Function("held", Number, rows), z3.Function("step", Number, rows, rows)
    common, source = z3.Function("common", rows, rows), z3.Function("source", Number, Number)
    i = z3.Int("i")
    moved = held(source(i))
    account.theorem("moves: what i gets from source(i) and then works on is what source(i) worked on and then sent",
                    step(i, moved) == step(source(i), moved),
                    [step(rank, moved) == common(moved) for rank in (i, source(i))],
                    twin=Twin("  if it differs from stage to stage", step(i, moved) == step(source(i), moved), []))


def run_package(account: Account) -> None:
    """The contribution calculus; tensor with data parallelism, and sharded data with pipeline, in both orders."""
    axes = ("a",), ("b",)
    value = Value((Term(ONE, FrozenMap({"a": "unit"})), Term(Monomial.of("m"), FrozenMap({"b": "unit"})), Term(ONE)))
    one, two = (value.reduced(p, ONE).reduced(q, ONE) for p, q in (axes, axes[::-1]))
    account.run("the package's calculus: reductions over a and b in either order are one value", one == two)
    account.run("and the same as one reduction over both", one == value.reduced(("a", "b"), ONE))
    for first, second in (("tp", "dp"), ("dp", "tp")):
        dims = {"tp": 'tp = ["ffn"]', "dp": 'dp = ["batch"]'}
        text = (f'[mesh]\n{first} = "symbolic"\n{second} = "symbolic"\n[dims]\n{dims[first]}\n{dims[second]}\n'
                '[optimizer]\nclip = "none"\n')
        account.run(f"placealg proves {first} with {second} on an MLP, for all sizes",
                    verdict(step_of(text, mlp())) == ("PROVED", ()))
    for base in ("zero3*pp", "pp*zero3"):
        account.run(f"placealg proves {base} on a transformer, for all sizes",
                    verdict(step_of(f'base = "{base}"\n', resolve_model("gpt"))) == ("PROVED", ()))


def unequal_counts(account: Account) -> None:
    """Sums over the tokens of a rank, and how many they are, on 2 x 2 ranks; fractions are cleared."""
    sums, counts = ([[z3.Int(f"{name}{i}{c}") for c in range(2)] for i in range(2)] for name in ("S", "N"))
    some = [counts[i][c] >= 1 for i in range(2) for c in range(2)]
    equal = [*some, *(counts[i][c] == counts[0][0] for i in range(2) for c in range(2))]

    def mean_of_means(rows: tuple[list[Int], ...], numbers: tuple[list[Int], ...]) -> tuple[Int, Int]:
        """The mean over rows of (sum along a row) / (tokens along it): numerator and denominator."""
        (s, t), (m, n) = ((x[0][0] + x[0][1], x[1][0] + x[1][1]) for x in (rows, numbers))
        return s * n + t * m, 2 * m * n

    (p, q) = mean_of_means((sums[0], sums[1]), (counts[0], counts[1]))
    (r, s) = mean_of_means(*(tuple([row[c] for row in table] for c in range(2)) for table in (sums, counts)))
    account.theorem("equal counts: the mean over a of means over b is the mean over b of means over a", p * s == r * q,
                    equal, twin=Twin("  1. unequal counts", p * s == r * q, some))
    text = 'base = "hsdp"\n[loss]\nassume = []\n'
    account.run("  placealg: hybrid sharding that averages, counts not assumed equal, is refuted",
                "normalizer" in verdict(step_of(text, abstract()))[1]
                and not run_equals(step_of(text, abstract()), {"dp_replicate": 2, "dp_shard": 2}, unequal=True))


def owner_maps(account: Account) -> None:
    """After a reduce_scatter over a, a rank's buffer holds one element; the sum over b adds buffers, not elements."""
    element = z3.Function("element", Number, Number)
    gradient = z3.Function("gradient", Number, Number, Number)
    i = z3.Int("i")
    buffers = gradient(0, element(0)) + gradient(1, element(1))
    want = gradient(0, i) + gradient(1, i)
    same = [element(0) == i, element(1) == i]
    account.theorem("equal masks: reduce_scatter over a, then the sum over b, is each element's sum", buffers == want,
                    same, twin=Twin("  2. another owner function on one rank of b: a foreign element is added",
                                    buffers == want, same[:1]))
    text = 'base = "hsdp"\n[optimizer]\nclip = "none"\n'
    moved = step_of(f'{text}[[edit]]\nset = "*.grad*.reduce[dp_shard]"\nlayout = "alt"\n', abstract())
    account.run("  placealg: hybrid sharding with another layout for the reduce_scatter is refuted",
                "partition" in verdict(moved)[1] and not run_equals(moved, {"dp_replicate": 2, "dp_shard": 3}))


def clipping(account: Account) -> None:
    """Clipping is not linear: it does not pass a reduction."""
    x, y = z3.Ints("x y")

    def clip(value: Int) -> Int:
        return z3.If(value > 1, 1, z3.If(value < -1, -1, value))

    account.theorem("a scale passes a reduction: k x + k y = k (x + y)", factor * x + factor * y == factor * (x + y),
                    twin=Twin("  3. clipping does not: clip(x) + clip(y) = clip(x + y)",
                              clip(x) + clip(y) == clip(x + y)))
    account.refuted("     nor does a mean of what each rank clipped", clip(x) + clip(y) == 2 * clip((x + y) / 2))
    text = 'base = "hsdp"\n[[edit]]\nmove = "reduce.*.reduce[dp_replicate]"\nafter = "update.*.clip"\n'
    early = step_of(text, abstract())
    account.run("  placealg: hybrid sharding clipped before its reduction over replicas is refuted",
                verdict(early)[0] == "REFUTED" and not run_equals(early, {"dp_replicate": 2, "dp_shard": 2}))


def main() -> Account:
    """Prove that linear steps commute, and refute the three that do not."""
    account = Account("Steps over disjoint axes commute, but for counts, owners and clipping")
    prove_order(account)
    prove_moves(account)
    run_package(account)
    account.say("Three ways in which they do not.")
    for break_one in (unequal_counts, owner_maps, clipping):
        break_one(account)
    return account.close()


if __name__ == "__main__":
    main()
