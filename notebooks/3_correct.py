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
# # 3. What correct means
#
# Two runs, one on a single device, one on many, from the same weights and the same data. Correct means: in exact
# arithmetic they are the same training. This notebook makes that precise, breaks it twice, and finds both breaks three
# ways: by hand, by a simulator, and by a solver.
#
# | symbol | meaning |
# |---|---|
# | x | a *unit*: one contribution to a gradient, here a token |
# | γ(x) | the gradient that unit x contributes; nothing is known about it |
# | w(x) | the weight with which a program counts unit x |
# | want, got | the reference's weight of a unit, and the program's |
# | ratio (`mass`) | the sum of got over the sum of want: how many times too large a gradient is |
# | dp, m | devices along the data axis, microbatches |

# %%
from fractions import Fraction

import placealg as pa

model = pa.abstract()

# %% [markdown]
# ## A gradient is a weighted sum of contributions
#
# For a mean over a batch B the single device computes g = Σ γ(x) / |B|. The model is hidden in γ. Whatever γ is, the
# distributed gradient is right if and only if every unit is counted *once*, at weight 1/|B|. If one weight were off,
# some model would tell the difference: one whose γ is 1 at that unit and 0 at all others.
#
# So a gradient may be represented by its weights alone, a number per unit.

# %%
Weights = dict[str, Fraction]  # unit -> how often it is counted


def reference(batch: list[str]) -> Weights:
    """The single device's mean over the batch."""
    return {x: Fraction(1, len(batch)) for x in batch}


assert sum(reference(["a", "b", "c", "d"]).values()) == 1


# %% [markdown]
# A device averages over its own tokens, and a collective combines devices: all that it can do to weights is add and
# divide.

# %%
def all_reduce(parts: list[Weights], divisor: int) -> Weights:
    """The sum over devices, divided."""
    units = sorted({x for part in parts for x in part})
    return {x: sum(part.get(x, Fraction(0)) for part in parts) / divisor for x in units}


shares = [["a", "b"], ["c", "d"]]
local = [reference(share) for share in shares]
assert all_reduce(local, divisor=len(shares)) == reference(["a", "b", "c", "d"])

# %% [markdown]
# That is data parallelism, and it is right: mean within, mean across.
#
# ## A wrong strategy, by hand
#
# Forget the division. Each unit is counted once, but at twice its weight. Loss curves look fine, because Adam divides
# the factor out again; clipping by the global norm does not.

# %%
got = all_reduce(local, divisor=1)
want = reference(["a", "b", "c", "d"])
mass = sum(got.values()) / sum(want.values())
assert mass == 2
for x in got:
    print(f"{x}: got {got[x]}, want {want[x]}")

# %% [markdown]
# By hand we know it for two devices. What is the factor for n? One can guess, and the next two sections do not.
#
# ## The same, by simulator
#
# A wrong strategy is a right one and an edit. The simulator gives every rank tables of exact numbers, executes events in
# order, and differentiates a small network. It knows nothing of weights or units: it just runs.

# %%
right = pa.derive(pa.dp(), model)
wrong = pa.edit(right, set="reduce.*.reduce[dp]", op="sum")
setting = pa.Setting.equal(right.reference, {"dp": 2}, microbatches=1)
assert pa.simulate(right, setting=setting).equal
assert not pa.simulate(wrong, setting=setting).equal
pa.simulate(wrong, setting=setting).difference

# %% [markdown]
# A run shows *that* two numbers differ, at one size. On one device, the bug is not there at all, and every test that runs
# on one device passes.

# %%
alone = pa.Setting.equal(right.reference, {"dp": 1}, microbatches=1)
assert pa.simulate(wrong, setting=alone).equal

# %% [markdown]
# ## The same, by solver
#
# The prover follows the weights through the events, as we did by hand, but with dp and m left open. It asks a solver, Z3:
# are there sizes, a device and a unit where got differs from want? If there are, they are a counterexample, and the
# simulator must confirm it before it is believed.

# %%
report = pa.prove(wrong, base=right)
assert report.verdict == "REFUTED"
report.counterexample

# %% [markdown]
# The ratio, `mass`, answers the question from above, as a formula: the gradient is dp times too large. And the report names the edit
# that repairs it. The prover's numbers and ours agree.

# %%
found = report.counterexample
assert found.mass == "dp"
assert found.repair.edit == '[[edit]]\nset = "reduce.layer.weight.grad_sum.reduce[dp]"\nop = "mean"'
assert dict(found.sizes)["dp"] == mass

# %% [markdown]
# ## A second wrong strategy, which is not always wrong
#
# Let one device have three tokens and the other one. Mean within, mean across: now the lonely token counts as much as the
# other three together.

# %%
shares = [["a", "b", "c"], ["d"]]
got = all_reduce([reference(share) for share in shares], divisor=2)
want = reference(["a", "b", "c", "d"])
assert got != want and got["d"] == Fraction(1, 2)
assert sum(got.values()) == sum(want.values()), "the total is right, and so is the gradient's size on average"
for x in got:
    print(f"{x}: got {got[x]}, want {want[x]}")

# %% [markdown]
# Data parallelism as everybody runs it is the mean over tokens only if all devices hold equally many. That is a
# *hypothesis*. placealg gives it a name and prints it beside the verdict, instead of assuming it in silence.

# %%
verdict = pa.prove(pa.dp(), model)
assert verdict.verdict == "PROVED"
assert any(hypothesis.name == "equal_counts" for hypothesis in verdict.hypotheses)
verdict.hypotheses

# %% [markdown]
# Withdraw it, and the same strategy is refuted, by the counts that we made up by hand.

# %%
honest = pa.strategy_on("dp, any counts", {"dp": None}, dims={"dp": ["batch"]}, loss={"assume": []})
refuted = pa.prove(honest, model)
assert refuted.verdict == "REFUTED" and refuted.refuted() == ("normalizer",)
refuted.counterexample

# %% [markdown]
# The repair is in the loss, not in the collective: sum the tokens of all devices first, and divide by that.

# %%
token_mean = pa.strategy_on("token mean", {"dp": None}, dims={"dp": ["batch"]}, loss={"preset": "token_mean"})
repaired = pa.prove(token_mean, model)
assert repaired.verdict == "PROVED"
assert not any(hypothesis.name == "equal_counts" for hypothesis in repaired.hypotheses)
counting = [event.path for event in pa.derive(token_mean, model).events if ".count." in event.path]
counting

# %% [markdown]
# The simulator agrees, with counts that differ from rank to rank and from microbatch to microbatch.

# %%
step = pa.derive(token_mean, model)
uneven = pa.Setting.unequal(step.reference, {"dp": 3}, microbatches=2, seed=4)
assert pa.simulate(step, setting=uneven).equal
assert not pa.simulate(honest, model, uneven).equal
sorted(uneven.counts.items())

# %% [markdown]
# ## Two conditions
#
# Weights are half of it. The other half is *which copy* a device reads: weights that were never published after the
# update are right gradients at the wrong parameters. The theorem that stands behind a verdict has both:
#
# - **gradient integrity**: at every update each unit is counted once, at the reference's weight, on a defined value;
# - **state consistency**: at every read a device sees the reference's version of the state.
#
# For all models, updates, initial states and batches these hold if and only if the two runs are equal. Each obligation
# in a report is a part of one of them.

# %%
stale = pa.prove(pa.edit(pa.derive(pa.zero1(), model), drop="publish.*"))
assert stale.refuted()[0] == "invariant"
print(stale.counterexample.explanation)

# %% [markdown]
# **What could be wrong with this?** Exact arithmetic has no rounding, and the strategy is not the code: a verdict says
# that the *plan* is right, not that a program follows it. Each report ends with what it does not cover.

# %%
assert report.not_covered == verdict.not_covered
verdict.not_covered

# %% [markdown]
# ## Exercise
#
# Four ranks have one token each, and the sum of their gradients is divided by 2. By what factor is the step too large, and
# at how many ranks would nobody have seen it?

# %% [markdown]
# **Solution.** Each rank's mean is the gradient of its token. Divided by 2 in place of 4 they weigh 2 together in place of 1: the factor
# is ranks over 2, and on two ranks it is 1.

# %%
def factor(tokens: str) -> Fraction:
    """The mass of what is got over the mass of what is wanted, a token to a rank."""
    halved = all_reduce([reference([token]) for token in tokens], divisor=2)
    return sum(halved.values()) / sum(reference(list(tokens)).values())


assert factor("abcd") == 2 and factor("ab") == 1
factor("abcd")
