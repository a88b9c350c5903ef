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
# # 7. The museum: three real bugs
#
# Bugs of distributed training rarely crash. Training runs, the loss falls, and the model is another. Each of these three
# was found in a project that many people use, is written down here as a right strategy and one edit, and is refuted for
# all sizes. Each also *hides*: there are sizes at which a test would pass.
#
# | symbol | meaning |
# |---|---|
# | dp, tp, ep | devices along the data, the tensor, the expert axis |
# | m | microbatches in a step |
# | got, want | the weight with which a unit is counted, and the reference's |
# | ratio (`mass`) | the sum of got over the sum of want: how many times too large a gradient is |

# %%
from placealg.cli import main  # the command line, here without a terminal

import placealg as pa

# %% [markdown]
# ## 1. The norms that drifted apart
#
# *EleutherAI/gpt-neox, pull request 1257.* Sequence parallelism splits the tokens of a norm along tp. The norm's weight,
# though, is replicated. So each rank of tp sees a part of the sequence and has a *part* of the gradient's sum, and
# somebody has to add the parts up. In gpt-neox a hook was meant to. It never fired.
#
# The strategy, and the events that the bug takes away:

# %%
model = pa.gpt()
right = pa.derive(pa.zero1() * pa.tp_sp(), model)
missing = [event for event in right.events if event.phase == "reduce" and ".norm" in event.path and event.axes == ("tp",)]
assert len(missing) == 4
for event in missing:
    print(event.path, "--", event.rule.why)

# %%
wrong = pa.edit(right, drop="reduce.layer.norm*.grad_sum.reduce[tp]")
drifted = pa.prove(wrong, base=right)
assert drifted.verdict == "REFUTED" and drifted.counterexample.mass == "1/tp"
drifted.counterexample

# %% [markdown]
# The gradient is 1/tp of what it should be on average, but that is not the worst of it: *got* is right on the device's
# own tokens and 0 on all others. Each rank follows its own tokens, so replicas of one weight drift apart, slowly. A
# checkpoint keeps rank 0's, and nobody sees the rest.
#
# Where does it hide? On one rank of tp nothing is missing. A run there equals the single device's in every number:

# %%
def equal(step: pa.Step, microbatches: int = 1, **sizes: int) -> bool:
    """Whether a run at these sizes equals the single device's."""
    return pa.simulate(step, setting=pa.Setting.equal(step.reference, sizes, microbatches)).equal


assert equal(right, dp=2, tp=2)
assert equal(wrong, dp=2, tp=1)
assert not equal(wrong, dp=2, tp=2)

# %% [markdown]
# The same bug came back in Megatron-LM (issue 1446), for one norm of many: the last. And the opposite mistake is as easy:
# *without* sequence parallelism every rank has the whole gradient already, and adding them up counts it tp times.

# %%
whole = pa.derive(pa.zero1() * pa.tp(), model)
twice = pa.edit(whole, insert={"path": "reduce.layer.norm1.weight.grad_sum.reduce[tp]", "op": "sum", "to": "I"},
                after="reduce.layer.norm1.weight.grad_sum.reduce[dp]")
found = pa.prove(twice, base=whole).counterexample
assert found.mass == "tp"
print(found.group, "is", found.mass, "times too large; repair:")
print(found.repair.edit)

# %% [markdown]
# ## 2. The experts that learned too fast
#
# *pytorch/pytorch, issue 160285.* Experts are split over ep, and their gradients averaged over dp. But every token of
# the batch, on all dp times ep devices, may have reached an expert, and the loss is a mean over all of them. Averaging
# over dp divides by dp. The rest of the divisor, ep, is nobody's: no collective runs over ep for an expert.

# %%
mixture = pa.moe()
right = pa.derive(pa.zero3() * pa.ep(), mixture)
scale = right.event("reduce.layer.weight.grad_sum.scale")
print(scale.path, "/", scale.divisor, "--", scale.rule.why)
wrong = pa.edit(right, drop="reduce.layer.weight.grad_sum.scale")
fast = pa.prove(wrong, base=right)
assert fast.verdict == "REFUTED" and fast.counterexample.mass == "ep"
fast.counterexample

# %% [markdown]
# Exactly twice too large at ep = 2, the report said. Adam divides a constant factor out of its step, so the curves looked
# fine. But the factor is in the *global norm*, next to the dense parameters', which have none: clipping sets in too soon,
# and for everybody.
#
# The repair costs nothing. It is a division on the device.

# %%
print(fast.counterexample.repair.edit)
print(fast.counterexample.repair.cost)
assert fast.counterexample.repair.edit.startswith("[[edit]]\ninsert")

# %% [markdown]
# ## 3. The mean of means
#
# *huggingface/transformers, pull request 34191.* Gradient accumulation: run m microbatches, average each one's loss over
# its own tokens, average the averages. It is wrong as soon as microbatches differ in length: a token in a short one
# weighs more. No event is missing here. The strategy itself *says* the wrong thing, in its loss:

# %%
mean_of_means = pa.strategy_on("mean of the microbatches' means", {"dp": None}, dims={"dp": ["batch"]},
                               loss={"preset": "token_mean", "count_axes": ["dp"]})
lengths = pa.prove(mean_of_means, pa.abstract())
assert lengths.verdict == "REFUTED" and lengths.refuted() == ("normalizer",)
lengths.counterexample

# %% [markdown]
# The ratio, `mass`, is 1: on average the gradient has the right size, which is why this one lived for years in many projects. It
# hides with one microbatch, and it hides whenever all microbatches have equally many tokens, as they do in every test
# that pads.

# %%
step = pa.derive(mean_of_means, pa.abstract())
assert equal(step, microbatches=3, dp=2)
assert not pa.simulate(step, setting=pa.Setting.unequal(step.reference, {"dp": 2}, 3)).equal

# %% [markdown]
# Under the hypothesis of equal counts the very same strategy is right, and the verdict says under which hypothesis.

# %%
assumed = pa.strategy_on("the same, with equal counts", {"dp": None}, dims={"dp": ["batch"]},
                         loss={"preset": "token_mean", "count_axes": ["dp"], "assume": ["equal_counts"]})
report = pa.prove(assumed, pa.abstract())
assert report.verdict == "PROVED"
print(report.hypotheses[0])

# %% [markdown]
# ## What they have in common
#
# | bug | size at which it hides | what a test would need |
# |---|---|---|
# | norms never summed | tp = 1 | two ranks of tp, and a look at the norms alone |
# | experts' divisor | ep = 1 | two ranks of ep, and a comparison of gradients, not of losses |
# | mean of means | m = 1, or equal lengths | two microbatches of different lengths |
#
# A verdict for all sizes does not depend on which sizes somebody thought of. `placealg museum` has the others, and
# `placealg explain NAME` tells each story.
#
# **What could be wrong with this?** Each bug here is our reading of a report, as an edit of a derived program. The code
# in question did more than that. What is proved is that the *plan*, so edited, trains another model.

# %%
code = main(["museum", "veomni_184", "open_instruct_1498", "skyrl_2149", "--no-timing"])
assert code == 0

# %% [markdown]
# ## Exercise
#
# A framework reduces each gradient twice, once in a hook and once before the update. Is that a bug? Guess first, for a mean;
# then for a sum.

# %% [markdown]
# **Solution.** The mean of a mean that all ranks have is that mean: nothing is wrong but the bytes. The sum of a sum is too large by the
# number of ranks, and the counterexample names that ratio.

# %%
plain = pa.derive(pa.dp(), pa.abstract())
path = "reduce.layer.weight.grad_sum.reduce[dp]"
mean = pa.prove(pa.edit(plain, double=path), base=plain)
total = pa.prove(pa.edit(plain, set=path, op="sum"), base=plain)
assert (mean.verdict, total.verdict) == ("PROVED", "REFUTED")
print(total.counterexample)

# %% [markdown]
# ## Three repairs, graded by the prover
#
# A bug is a text. Mend it below its last line, by `[[edit]]` tables of your own: `insert = { path = "..." }` with `after`
# or `before` adds an event, `set` changes fields of one. `graded` proves what you wrote for all sizes, holds that every
# given line stands, and that the step takes no more memory and sends no more than the strategy that was meant. Until then
# it shows the counterexample. The page that `make playground` builds takes the same texts.

# %%
from placealg.testing import graded

# %% [markdown]
# **First.** Each rank updates its shard of the weights; nobody tells the others. Which event is missing, and where?
#
# <details><summary>A hint</summary>The names of events of a right step stand in `pa.derive(pa.zero1(), pa.abstract())`,
# phase `publish`.</details>

# %%
STALE = """base = "zero1"
[[edit]]
drop = "publish.*.publish[dp]"
"""
graded(STALE, keeps=STALE, at_most="zero1")

# %% [markdown]
# The solution is in the next cell, which is folded.

# %% jupyter={"source_hidden": true}
stale = graded(STALE + """
[[edit]]
insert = { path = "publish.layer.weight.publish[dp]" }
after = "update.rng.update"
""", keeps=STALE, at_most="zero1")
assert stale.solved
stale

# %% [markdown]
# **Second.** The norm behind the clip factor is each rank's own, so that shards are scaled by different factors.
#
# <details><summary>A hint</summary>A partial sum (P) becomes one value that is the same on every rank (I): an
# `all_reduce` with `op = "sum"`. It is a number of 4 bytes, whatever elements have.</details>

# %%
CLIPPED = """base = "zero3"
[[edit]]
drop = "update.norm.all_reduce[dp]"
"""
graded(CLIPPED, keeps=CLIPPED, at_most="zero3")

# %% jupyter={"source_hidden": true}
clipped = graded(CLIPPED + """
[[edit]]
insert = { path = "update.norm.all_reduce[dp]", op = "sum", from = "P", to = "I", bytes = "4" }
after = "update.layer.weight.norm"
""", keeps=CLIPPED, at_most="zero3")
assert clipped.solved
clipped

# %% [markdown]
# **Third.** One norm of many, the last one, is not summed over tp (Megatron-LM, issue 1446). It is *replicated* along tp and
# its tokens are *split* along tp; so what must happen to its gradient, and along which axis?
#
# <details><summary>A hint</summary>`device` and `ratio` of the counterexample name the axis. Another norm of the same model
# still has the event: look for `layer.norm1.weight` among the events of `pa.derive("zero1*tp_sp", "gpt")`.</details>

# %%
NORM = """base = "zero1*tp_sp"
[[edit]]
drop = "reduce.head.weight.grad_sum.reduce[tp]"
"""
graded(NORM, keeps=NORM, at_most="zero1*tp_sp")

# %% jupyter={"source_hidden": true}
norm = graded(NORM + """
[[edit]]
insert = { path = "reduce.head.weight.grad_sum.reduce[tp]", op = "sum", from = "P", to = "I" }
after = "reduce.head.weight.grad_sum.reduce[dp]"
""", keeps=NORM, at_most="zero1*tp_sp")
assert norm.solved
norm
