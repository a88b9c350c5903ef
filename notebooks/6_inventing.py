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
# # 6. Inventing a strategy
#
# From an idea to a proof to a cost, for a strategy that the catalogue does not have. The idea is a complaint: hybrid
# sharding (HSDP) shards within a group of devices and replicates across groups. That keeps the gathers of parameters
# inside a group, where wires are fast. But it also keeps the *optimizer's* state once per group, and nobody ever gathers
# that.
#
# | symbol | meaning |
# |---|---|
# | dp_shard, dp_replicate | devices in a group; groups |
# | Ψ | parameters of the model |
# | w, g, o | bytes per parameter: weights, gradients, optimizer's state |
# | wire | bytes per parameter of a gradient while it is reduced |
# | m | microbatches in a step |

# %%
import contextlib
import io
import shutil
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import placealg as pa
from placealg.cli import main

model = pa.abstract()

# %% [markdown]
# ## The idea
#
# What needs what? Forward and backward need weights whole, so where weights rest decides what is gathered. An update of
# an element needs that element's state alone. So the optimizer's state may be sharded over *all* devices without a single
# gather more. Hybrid sharding as it is:

# %%
pa.draw(pa.hsdp(), dp_replicate=2, dp_shard=4)

# %% [markdown]
# And as it might be: weights and gradients as before, the optimizer's state over both axes. A strategy is data, so this
# is all there is to write.

# %%
tables = {
    "dims": {"dp_replicate": ["batch"], "dp_shard": ["batch"]},
    "states": {"parameters": {"dp_shard": "S*"}, "gradients": {"dp_shard": "S"},
               "optimizer": {"dp_replicate": "S", "dp_shard": "S"}},
}
spread = pa.strategy_on("spread", {"dp_replicate": None, "dp_shard": None}, **tables)
assert pa.memory(spread, model).optimizer.text() == "Ψ·o/(dp_replicate·dp_shard)"
pa.draw(spread, dp_replicate=2, dp_shard=4)

# %% [markdown]
# ## The program
#
# Nobody has said what is to be communicated. It follows: across groups a gradient's sum is now wanted as a shard, so the
# all-reduce becomes a reduce-scatter; and since weights rest replicated across groups, the updated ones are published.

# %%
def across(strategy: pa.Strategy) -> list[str]:
    """What crosses from group to group in a step."""
    step = pa.derive(strategy, model)
    return [f"{event.path}  {event.source}->{event.to}" for event in step.phase("reduce", "publish") if event.axes]


assert across(pa.hsdp()) == ["reduce.layer.weight.grad_sum.reduce[dp_replicate]  P->I"]
assert len(across(spread)) == 2
across(spread)

# %% [markdown]
# ## Is it the same training?

# %%
report = pa.prove(spread, model)
assert report.verdict == "PROVED" and report.cls == "PARAMETRIC"
report

# %% [markdown]
# For all numbers of groups, all sizes of a group, and all numbers of microbatches. To trust a proof one should see it
# fail. Suppose that the first implementation forgets to publish: each device updates its own shard, and goes on.

# %%
step = pa.derive(spread, model)
forgetful = pa.prove(pa.edit(step, drop="publish.*"), base=step)
assert forgetful.verdict == "REFUTED"
forgetful.counterexample

# %% [markdown]
# Or that it clips each shard by the norm over its own group, as hybrid sharding rightly does. Now the shards across
# groups are different ones, and that norm misses most of the gradient.

# %%
inner = pa.edit(step, set="update.norm.all_reduce[dp_replicate,dp_shard]", axes=["dp_shard"])
clipped = pa.prove(inner, base=step)
assert clipped.verdict == "REFUTED" and clipped.refuted()[0] == "update"
print(clipped.counterexample.explanation)
print("counted", clipped.counterexample.mass, "times")

# %% [markdown]
# ## What does it save, and what does it cost?
#
# Memory: the optimizer's part is divided by the number of groups as well.

# %%
before, after = pa.memory(pa.hsdp(), model), pa.memory(spread, model)
assert (before.states - after.states) == (before.optimizer - after.optimizer)
after.states

# %% [markdown]
# Never more, for all sizes, and less as soon as there are two groups:

# %%
never_more = pa.decide(spread, pa.hsdp(), "memory.states <=", model)
less = pa.decide(spread, pa.hsdp(), "memory.states <", model, where="dp_replicate >= 2")
assert never_more.verdict == less.verdict == "PROVED"
never_more.verdict, less.verdict

# %% [markdown]
# Communication: within a group nothing changes. Across groups, 2·wire becomes w + wire: half the all-reduce, and the
# publication of weights.

# %%
sent, spreads = pa.communication(pa.hsdp(), model), pa.communication(spread, model)
assert sent.by_axes["dp_shard"] == spreads.by_axes["dp_shard"]
price = spreads.by_axes["dp_replicate"].ratio(sent.by_axes["dp_replicate"])
price

# %% [markdown]
# With weights as wide as gradients on the wire, the price is 1: the memory is *free*. With 4-byte gradients it is less
# than 1. Only where gradients are compressed below the weights' width does one pay.

# %%
prices = {wire: price.value(w=2, wire=wire) for wire in (1, 2, 4)}
assert prices[2] == 1 and prices[4] < 1 < prices[1]
{f"{wire} bytes on the wire": str(value) for wire, value in prices.items()}

# %% [markdown]
# ## In numbers
#
# Llama-3-70B, groups of 8: hybrid sharding rests 141 GB of states on each device, however many groups there are. It does
# not fit. Spread out, it falls towards the 35 GB of weights and gradients.

# %%
llama = pa.Model.from_config("llama-3-70b")
groups = [1, 2, 4, 8, 16, 32, 64]
hybrid = float(pa.memory(pa.hsdp(), llama).states.value(dp_shard=8) / 10**9)
formula = pa.memory(spread, llama).states
spread_out = [float(formula.value(dp_shard=8, dp_replicate=n) / 10**9) for n in groups]
assert round(hybrid) == round(spread_out[0]) == 141 and min(spread_out) < 40

figure, axes = plt.subplots(figsize=(7.5, 4))
axes.plot(groups, [hybrid] * len(groups), color="#D55E00", marker="o")
axes.annotate("  hsdp", (64, hybrid), color="#D55E00", va="center")
axes.plot(groups, spread_out, color="#0072B2", marker="o")
axes.annotate("  spread", (64, spread_out[-1]), color="#0072B2", va="center")
axes.axhline(80, color="#999999", linestyle=":", linewidth=1)
axes.annotate("an 80 GB device", (24, 83), color="#777777")
axes.set(xscale="log", xlabel="groups of 8 devices", ylabel="states on a device, GB", ylim=(0, 160), xlim=(0.9, 130),
         title="Llama-3-70B, states at rest")
axes.set_xticks(groups, [str(n) for n in groups])
axes.minorticks_off()
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## For keeps: a file
#
# Eleven lines of TOML hold the strategy, with the verdict that it must get. `placealg prove FILE` exits with 0 as long as
# it does: a line for somebody's CI.

# %%
text = """\
name   = "spread: hybrid sharding, with the optimizer over all devices"
expect = "proved"
[mesh]
dp_replicate = "symbolic"
dp_shard     = "symbolic"
[dims]
dp_replicate = ["batch"]
dp_shard     = ["batch"]
[states]
parameters = { dp_shard = "S*" }
gradients  = { dp_shard = "S" }
optimizer  = { dp_replicate = "S", dp_shard = "S" }
"""
folder = Path(tempfile.mkdtemp())
(folder / "spread.toml").write_text(text)
with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
    code = main(["prove", "spread.toml"])
shutil.rmtree(folder)
assert code == 0
first, *_, last = printed.getvalue().strip().splitlines()
print(first)
print(last)

# %% [markdown]
# ## Was it new?
#
# Look at the two axes by themselves. Along dp_replicate: optimizer sharded, the rest replicated. Along dp_shard: all
# sharded. These have names. The invention is a product.

# %%
product = pa.zero1("dp_replicate") * pa.zero3("dp_shard")
assert pa.derive(product, model).events == step.events
print(product.name)

# %% [markdown]
# **What could be wrong with this?** "Free" is about bytes. Reduce-scatter and publication happen at different times of a
# step, and a publication cannot hide behind backward. What the formulas exclude is that it costs more *volume*; what the
# proof excludes is that it trains another model.

# %%
from_both = pa.decide(product, spread, "communication.total ==", model)
assert from_both.verdict == "PROVED"
from_both.verdict

# %% [markdown]
# ## Exercise
#
# For Llama-3-70B with eight devices to a group: what part of hybrid sharding's states does the invention hold on 2, 4 and 8
# groups, and what does it tend to?

# %% [markdown]
# **Solution.** The optimizer's 12 of 16 bytes are split over the groups as well, so that with many groups a quarter is left.

# %%
part = formula.ratio(pa.memory(pa.hsdp(), llama).states)
parts = [str(part.value(dp_shard=8, dp_replicate=n)) for n in (2, 4, 8)]
assert parts == ["5/8", "7/16", "11/32"] and str(part.limit("dp_replicate").value()) == "1/4"
parts
