# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 8. Proofs for all N
#
# A test runs at some sizes. A verdict of placealg says *for all sizes*. This notebook shows why the difference matters,
# and how one gets there: sums in closed form, proved by induction; a second engine that needs no induction, because a
# polynomial has only so many zeros; and a second solver that believes neither.
#
# | symbol | meaning |
# |---|---|
# | n | the size of an axis, any integer of at least 1 |
# | c, τ | where a device stands along the axis, from 0 to n − 1; the rank of an owner |
# | [c = τ] | 1 where it holds, else 0 |
# | S(k) | a sum over the first k ranks |
# | d | the degree of a polynomial in n |
# | sat, unsat | a solver found values that satisfy a formula; it showed that there are none |

# %%
import contextlib
import io
import json
import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

import z3

import placealg as pa
from placealg.cli import main

model = pa.abstract()

# %% [markdown]
# ## Why bounded checks lie
#
# Somebody replaces a mean by a sum and a division by two, since the test machine has two devices.

# %%
right = pa.derive(pa.dp(), model)
wrong = pa.edit(right, set="reduce.*.reduce[dp]", op="sum", divisor="2")


def equal(step: pa.Step, n: int) -> bool:
    """Whether a run on n devices equals the single device's."""
    return pa.simulate(step, setting=pa.Setting.equal(step.reference, {"dp": n}, microbatches=2)).equal


assert equal(wrong, 2)
assert [n for n in range(1, 6) if equal(wrong, n)] == [2]

# %% [markdown]
# A test on two devices passes. A test on two devices *and on one* would have caught it. Which sizes are enough, then? For
# any finite list there is a mistake that hides at all of them: a weight that is off by a polynomial with these as zeros.

# %%
def mistake(n: int, tested: list[int]) -> int:
    """A number of times too many that a unit is counted; nothing at the sizes that are tested."""
    product = 1
    for size in tested:
        product *= n - size
    return product


tested = [1, 2, 3, 4, 8, 16]
assert all(mistake(n, tested) == 0 for n in tested)
assert mistake(5, tested) != 0
[(n, mistake(n, tested)) for n in range(1, 10)]

# %% [markdown]
# placealg leaves n open. The prover carries weights as formulas in n, and asks for a size at which got and want differ.

# %%
report = pa.prove(wrong, base=right)
assert report.verdict == "REFUTED" and report.counterexample.mass == "dp/2"
report.counterexample

# %% [markdown]
# ## Sums over n ranks, by induction
#
# An all-reduce is a sum of n terms. A solver cannot add n terms when n is a letter, so the sum must get a closed form
# first. Take the shard that one rank τ owns and all others do not: Σ [c = τ] · x over all ranks c is x.
#
# With S(k) the sum over the first k ranks, the closed form is S(k) = x if k > τ, else 0. Two statements make it true for
# all k: it holds at 0, and if it holds at k it holds at k + 1. Z3 is asked for a counterexample to each.

# %%
k, tau, x = z3.Ints("k tau x")


def closed(k: z3.ArithRef) -> z3.ArithRef:
    """The closed form of the sum over the first k ranks."""
    return z3.If(k > tau, x, 0)


def refuted(claim: z3.BoolRef) -> z3.CheckSatResult:
    """What Z3 says to the opposite of a claim; `unsat` means that the claim holds for all values."""
    solver = z3.Solver()
    solver.add(k >= 0, tau >= 0, z3.Not(claim))
    return solver.check()


base = closed(z3.IntVal(0)) == 0
step = closed(k + 1) == closed(k) + z3.If(k == tau, x, 0)
assert refuted(base) == z3.unsat and refuted(step) == z3.unsat

# %% [markdown]
# At k = n, past every τ, the sum is x: that is the lemma `sum_of_owner` in each report. A wrong closed form does not
# survive: with ≥ in place of > the step still holds at most places, and Z3 names one where it does not.

# %%
almost = z3.If(k + 1 >= tau, x, 0) == z3.If(k >= tau, x, 0) + z3.If(k == tau, x, 0)
assert refuted(almost) == z3.sat
solver = z3.Solver()
solver.add(k >= 0, tau >= 0, tau <= 2, x == 1, z3.Not(almost))
assert solver.check() == z3.sat
print("the wrong step fails at", {str(name): str(solver.model()[name]) for name in (k, tau, x)})

# %% [markdown]
# With lemmas for its sums, a whole step becomes formulas without sums, quantifiers or loops. The report lists which
# lemmas it used.

# %%
proved = pa.prove(pa.zero3(), model)
assert proved.verdict == "PROVED" and proved.cls == "PARAMETRIC"
list(proved.lemmas)

# %% [markdown]
# ## A second engine: d + 1 sizes are enough
#
# The polynomial above had six zeros, and degree six. That is no accident: one of degree d has at most d zeros, unless it
# is zero everywhere. So if the *degree* of what could go wrong is bounded, finitely many sizes do prove all. Here is the
# whole argument for a line, d = 1: two points fix it.

# %%
def line_through(first: tuple[int, Fraction], second: tuple[int, Fraction], n: int) -> Fraction:
    """The value at n of the only line through two points."""
    (n1, y1), (n2, y2) = first, second
    return y1 + (y2 - y1) * Fraction(n - n1, n2 - n1)


assert all(line_through((2, Fraction(0)), (3, Fraction(0)), n) == 0 for n in range(1, 1000))

# %% [markdown]
# The cutoff engine bounds the degree of every weight in the size of an axis, and writes the axis out, rank by rank, at
# d + 1 primes: no closed forms, no induction. Primes, and all different, because equal sizes hide sums over the wrong
# group. The verdict's class is CUTOFF, and it says at which sizes.

# %%
def placealg(*words: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(list(words))
    return code, printed.getvalue()


code, text = placealg("prove", "zero3", "--engine", "cutoff", "--no-timing")
assert code == 0 and "PROVED, CUTOFF" in text
print(text.splitlines()[0])
print(text[text.index("  lemmas"):])

# %% [markdown]
# ## A second solver
#
# All of this rests on Z3's word. So the proof is written out, one file for each obligation, in a language that every
# solver reads; what is asked is whether the *failure* is possible, and `unsat` is the answer that is hoped for.

# %%
folder = Path(tempfile.mkdtemp())
with contextlib.chdir(folder):
    code, text = placealg("prove", "zero1", "--certificate", "certificate", "--no-timing")
assert code == 0
query = (folder / "certificate" / "gradient.layer.weight.smt2").read_text()
assert "(check-sat)" in query
print(query[:query.index("; answered by")])

# %% [markdown]
# `recheck` asks a fresh Z3 and cvc5, a solver by other people, each query again.

# %%
with contextlib.chdir(folder):
    code, text = placealg("recheck", "certificate", "--format", "json")
assert code == 0
answers = {asked["file"]: (asked["expected"], asked["z3"], asked["cvc5"]) for asked in json.loads(text)["files"]
           if asked["outcome"] != "settled"}
assert all(expected == by_z3 == by_cvc5 for expected, by_z3, by_cvc5 in answers.values())
answers

# %% [markdown]
# A certificate that somebody has touched is not one. Here one assertion is taken out of a file, and the file's hash no
# longer fits.

# %%
target = folder / "certificate" / "gradient.layer.weight.smt2"
target.write_text(target.read_text().replace("(assert (>= m 1))\n", ""))
with contextlib.chdir(folder):
    code, text = placealg("recheck", "certificate")
assert code == 1
print(next(line.strip() for line in text.splitlines() if "gradient" in line))
shutil.rmtree(folder)

# %% [markdown]
# ## And if the premises contradict each other?
#
# Then everything follows from them, and every strategy is proved. So the first thing to ask of a proof is whether its
# premises can be met at all: the obligation `vacuity`, at sizes 2 and 3. It is the one query whose answer must be *sat*.

# %%
n = z3.Int("n")
impossible = z3.Solver()
impossible.add(n >= 2, n <= 1, z3.Not(n == n))
assert impossible.check() == z3.unsat, "anything can be proved of an n that is at least 2 and at most 1"
vacuity, = proved.of("vacuity")
assert vacuity.verdict == "PROVED"
vacuity.statement

# %% [markdown]
# **What could be wrong with this?** Two solvers check formulas; they do not check how a program *becomes* formulas. That
# part is code, and it is tested against the simulator, which shares none of it: every event of every strategy deleted,
# random programs, and each refutation replayed. If they disagree, placealg has a bug.

# %%
for strategy in (pa.dp(), pa.zero1(), pa.zero2(), pa.zero3(), pa.hsdp()):
    step = pa.derive(strategy, model)
    sizes = {axis: 3 for axis in strategy.mesh.names}
    assert pa.prove(step).verdict == "PROVED"
    assert pa.simulate(step, setting=pa.Setting.equal(step.reference, sizes, microbatches=2)).equal
    print(f"{strategy.name:6} proved for all sizes, and equal at", sizes)

# %% [markdown]
# ## Exercise
#
# Prove with z3 that the sum over n ranks of one and the same x is n·x, by induction: which two questions does a solver have
# to answer with no?

# %% [markdown]
# **Solution.** Whether the claim can fail for no rank, and whether it can fail for k + 1 ranks although it holds for k. The mean over
# ranks rests on it: a sum of equal gradients, divided by n, is the gradient.

# %%
count, value = z3.Int("count"), z3.Real("value")
summed = z3.Function("summed", z3.IntSort(), z3.RealSort())  # over the first ranks
asked = [
    [summed(0) == 0, summed(0) != 0 * value],
    [count >= 0, summed(count) == z3.ToReal(count) * value, summed(count + 1) == summed(count) + value,
     summed(count + 1) != z3.ToReal(count + 1) * value],
]
answers = []
for question in asked:
    inductive = z3.Solver()
    inductive.add(*question)
    answers.append(inductive.check())
assert answers == [z3.unsat, z3.unsat]
answers
