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
# # 1. Placements and modes
#
# A training strategy says where things are. This notebook takes one parameter and eight devices, and looks at what each
# device holds under each of the five *modes*. Everything else in placealg follows from such placements.
#
# | symbol | meaning |
# |---|---|
# | n | devices along one axis of the mesh; in formulas the axis's own name, such as `dp` |
# | Ψ | parameters of the model |
# | w, g, o | bytes per parameter of the weights, of the gradients, of the optimizer's state |
# | m | microbatches in a step |
# | R, S, S*, M, O | the modes: replicated, sharded, sharded with gather, materialized, offloaded |
# | [I], [R], [S], [P] | what a value means along an axis: one, used by each, a shard, a partial sum |
#
# Four *states* are placed: parameters, optimizer, gradients, activations. The first three are drawn here; activations
# are the subject of notebook 5.

# %%
import placealg as pa

model = pa.abstract()  # Ψ parameters, and nothing said about the network

# %% [markdown]
# ## R: everybody holds everything
#
# In data parallelism each device sees other tokens and has a copy of all else. A box is a device, a square one matrix of
# a state, and what is filled is held there between steps.

# %%
pa.draw(pa.dp(), dp=8)

# %% [markdown]
# Eight copies are seven too many. Memory says the same thing as the picture: dp does not occur in it, so no number of
# devices makes a model fit that does not fit on one.

# %%
states = pa.memory(pa.dp(), model).states
assert "dp" not in states.names
states

# %% [markdown]
# ## S: each holds its own part
#
# ZeRO-1 looks at who *needs* what. The optimizer's update of an element needs that element's state and no other, so each
# device may keep the state of 1/n of the elements, and update these alone. An *owner function* says which: a total
# function from elements to ranks. Because it is total, every element has an owner; because it is a function, only one.

# %%
pa.draw(pa.zero1(), dp=8)

# %%
optimizer = pa.memory(pa.zero1(), model).optimizer
assert pa.memory(pa.dp(), model).optimizer.ratio(optimizer).text() == "dp"
optimizer

# %% [markdown]
# The devices' parts together are the whole, once. It can be checked on a run: the simulator keeps a table of numbers per
# rank, trains a small network on them in exact arithmetic, and compares each number with the single device's.

# %%
step = pa.derive(pa.zero1(), model)
outcome = pa.simulate(step, setting=pa.Setting.equal(step.reference, {"dp": 8}, microbatches=2))
assert outcome.equal
print(outcome.observed, "numbers compared, all equal")

# %% [markdown]
# ## S*: a part at rest, the whole while in use
#
# Parameters are another matter: a device's forward pass needs *all* of a layer's weights. ZeRO-3 keeps 1/n of them and
# gathers a layer when it is due, uses it, and frees it. In the picture the hatched part exists only while in use.

# %%
pa.draw(pa.zero3(), dp=8)

# %% [markdown]
# S and S* rest alike, so the formula of what rests cannot tell them apart. The step can: S* puts gathers into it, two
# for each microbatch, one on the way forward and one on the way back.

# %%
parameters = pa.memory(pa.zero3(), model).parameters
gathers = [event.path for event in pa.derive(pa.zero3(), model).events if event.verb == "gather"]
assert parameters.text() == "Ψ·w/dp"
assert len(gathers) == 2
gathers

# %% [markdown]
# While one unit is gathered a device holds more than at rest. That extra is the *transient*: the largest unit's weights,
# and its gradient before it is reduced.

# %%
pa.memory(pa.zero3(), model).transient

# %% [markdown]
# ## M: nothing at rest
#
# With a single microbatch, a gradient need not rest anywhere: it is produced, reduced into what the optimizer reads, and
# gone. Nobody has given this strategy a name, so it is written down here, state by state. Recomputed activations are the
# other users of M.

# %%
fleeting = pa.strategy_on("gradients M", {"dp": 8}, dims={"dp": ["batch"]},
                          states={"optimizer": {"dp": "S"}, "gradients": {"dp": "M"}}, schedule={"microbatches": 1})
assert pa.memory(fleeting, model).gradients.value(Psi=10**9) == 0
pa.draw(fleeting)

# %% [markdown]
# ## O: on the host
#
# O is not a fifth way of cutting but another *place*, so it combines with the others: S+O is a shard, on the host.
# Dotted squares in dashed frames are in the host's memory. The device's share falls by the optimizer's state, and a new
# cost appears: what crosses the link between device and host.

# %%
offloaded = pa.zero2() * pa.offload_optimizer()
assert pa.memory(offloaded, model).optimizer.value(Psi=10**9, dp=8) == 0
pa.draw(offloaded, dp=8)

# %%
pa.communication(offloaded, model).host_link

# %% [markdown]
# ## Two axes multiply
#
# A mesh has more than one axis, and a state has a mode along each. Hybrid sharding shards within a group of four and
# replicates across two groups: the same shard stands in both rows.

# %%
assert pa.memory(pa.hsdp(), model).parameters.text() == "Ψ·w/dp_shard"
pa.draw(pa.hsdp(), dp_replicate=2, dp_shard=4)

# %% [markdown]
# Tensor parallelism is S too, with a difference: the *computation* is cut along a dim of the matrix (heads, or the inner
# width), so nothing has to be gathered. Combined with ZeRO-3 along the other axis, a device rests a part of a part, and
# gathers only within its column.

# %%
both = pa.zero3() * pa.tp_sp()
pa.draw(both, dp=4, tp=2)

# %% [markdown]
# ## From modes to events
#
# Where a value is used otherwise than it is kept, a *redistribution* stands between: [S] to [R] is an all-gather, [P] to
# [S] a reduce-scatter. There are thirteen, in one table, with what each sends and which one its gradient takes back.

# %%
from placealg.cli import main  # the command line, here without a terminal

code = main(["explain", "reduce_scatter"])
assert code == 0

# %% [markdown]
# From the modes, then, a program follows, and each event has a reason. This is ZeRO-3's: blue arrows cross between
# devices, time runs down through forward and up through backward. Point at a row in the picture to read why it is there.

# %%
program = pa.derive(pa.zero3(), model)
assert program.why("backward.layer.weight.grad.reduce[dp]") == (
    "reduce_gradient: gradients rest S over dp: reduced every microbatch")
pa.draw(program)

# %% [markdown]
# **What could be wrong with this?** The pictures show which part of a *square* is held, as if all matrices were alike.
# Layers may be uneven and shards padded; the formulas take sizes to divide, and say so. And a picture proves nothing:
# that the program above trains the model that one device would train is a theorem about all sizes, which notebook 3
# states and notebook 8 proves.

# %%
report = pa.prove(pa.zero3(), model)
assert report.verdict == "PROVED" and report.cls == "PARAMETRIC"
report

# %% [markdown]
# ## Exercise
#
# How many bytes does ZeRO-1 save on each of 4 devices, for 1,000 parameters with 12 bytes of optimizer state each?
# Find the formula first: what of the picture changed between data parallelism and ZeRO-1?

# %% [markdown]
# **Solution.** Only the optimizer is drawn smaller. What is saved is the difference of two formulas, o bytes of all parameters but the
# part that stays, and at dp = 1 nothing.

# %%
saved = pa.memory(pa.dp(), model).states - pa.memory(pa.zero1(), model).states
assert saved.value(Psi=1000, dp=4) == 9000 and saved.value(Psi=1000, dp=1) == 0
saved
