"""Composition: when the steps of two strategies on disjoint mesh axes commute, and the three ways in which they do not.

A step over axis a acts on the ranks' first coordinate, a step over axis b on the second; f(i, j) is what rank (i, j)
holds, and n_a, n_b are any sizes.

Theorem. The sum over a and then over b is the sum over b and then over a (base and step over n_a, with a sum over n_b
inside). Hence any two linear maps on disjoint coordinates commute: with (A f)(i, j) = sum over p of A(i, p) f(p, j) and
(B f)(i, j) = sum over q of B(j, q) f(i, q), both A B f and B A f are sums of A(i, p) B(j, q) f(p, q). All events that
are linear (reductions, gathers, slices, scales, shifts) are such maps, so tensor and data parallelism compose in either
order. Hypotheses: both orders act on the same elements (equal masks), are linear, and divide by the same counts.

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
from placealg.model.abstract import abstract
from placealg.model.config import resolve_model
from placealg.model.transformer import mlp
from placealg.prove.contribution import Term, Value

k, j, factor = z3.Ints("k j factor")
Number = z3.IntSort()
f, before, after, row = (z3.Function(name, *[Number] * arity) for name, arity in
                         (("f", 3), ("before", 2), ("after", 2), ("row", 2)))
column, a_then_b, b_then_a, total = (z3.Function(name, *[Number] * arity) for name, arity in
                                     (("column", 3), ("a_then_b", 2), ("b_then_a", 2), ("total", 2)))
"""column(k, j): sum over i < k of f(i, j). before(j), after(j): sums of the first j columns of height k, and k + 1.
row(j): sum of the first j of row k. a_then_b(k), b_then_a(k): both double sums over k rows; total(k): all of row k."""


def partial_sums(counted: Callable[[Int], Int]) -> list[Bool]:
    """What the sums are, from 0 and from j to j + 1; a rank of column j adds `counted(j)` times row k."""
    return [k >= 0, j >= 0, before(0) == 0, after(0) == 0, row(0) == 0, before(j + 1) == before(j) + column(k, j),
            column(k + 1, j) == column(k, j) + counted(j) * f(k, j), row(j + 1) == row(j) + f(k, j),
            after(j + 1) == after(j) + column(k + 1, j)]


def prove_order(account: Account) -> None:
    """The double sum, for all sizes; then linear maps, by the lemmas on sums."""
    claim = z3.And(after(0) == before(0) + row(0),
                   z3.Implies(after(j) == before(j) + row(j), after(j + 1) == before(j + 1) + row(j + 1)))
    account.theorem("for every n_b: one row more adds that row's sum to the sum of column sums", claim,
                    partial_sums(lambda _: z3.IntVal(1)),
                    twin=Twin("  if ranks of one column stand outside the mask", claim,
                              partial_sums(lambda c: z3.If(c == 0, 0, 1))))
    sums = [k >= 0, a_then_b(0) == 0, b_then_a(0) == 0, a_then_b(k + 1) == a_then_b(k) + total(k)]
    claim = z3.And(a_then_b(0) == b_then_a(0),
                   z3.Implies(a_then_b(k) == b_then_a(k), a_then_b(k + 1) == b_then_a(k + 1)))
    account.theorem("for every n_a, n_b: reducing over a, then b, is reducing over b, then a", claim,
                    [*sums, b_then_a(k + 1) == b_then_a(k) + total(k)],
                    twin=Twin("  if b's reduction runs once per row as well", claim,
                              [*sums, b_then_a(k + 1) == b_then_a(k) + 2 * total(k)]))
    account.theorem("linear maps: A(i, p) leaves a sum over q, as sum_of_multiple says, base and step",
                    z3.And(factor * row(0) == 0, factor * row(j + 1) == factor * row(j) + factor * f(k, j)),
                    [row(0) == 0, row(j + 1) == row(j) + f(k, j)],
                    twin=Twin("  the square does not", row(j + 1) * row(j + 1)
                              == row(j) * row(j) + f(k, j) * f(k, j)))


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
