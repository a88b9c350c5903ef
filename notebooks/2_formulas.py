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
# # 2. From placement to formula
#
# The ZeRO paper prints a table: what each stage saves, and what it sends. Here nothing of that table is typed in. Each
# formula is read off the program that follows from a placement, and then held against the paper's.
#
# | symbol | meaning | default |
# |---|---|---|
# | Ψ | parameters of the model | |
# | dp | devices along the data axis | |
# | w, g | bytes per parameter of weights and gradients at rest | 2, 2 |
# | wire | bytes per parameter of a gradient while it is reduced | 2 |
# | o | bytes per parameter of the optimizer's state, with the fp32 master copy | 12 |
# | m | microbatches in a step | 1 |

# %%
import matplotlib.pyplot as plt

import placealg as pa

model = pa.abstract()
stages = {"data parallel": pa.dp(), "ZeRO-1": pa.zero1(), "ZeRO-2": pa.zero2(), "ZeRO-3": pa.zero3()}
colours = dict(zip(stages, ["#222222", "#0072B2", "#009E73", "#D55E00"]))  # told apart by colour-blind readers too

# %% [markdown]
# ## Memory
#
# What rests on a device is a sum over states: bytes per element, times the part that its mode leaves there. R leaves
# all of it, S and S* leave 1/dp.

# %%
memory = {name: pa.memory(strategy, model) for name, strategy in stages.items()}
for name, found in memory.items():
    print(f"{name:14} {found.states}")

# %% [markdown]
# Rajbhandari et al. (arXiv 1910.02054, figure 1) write 2 + 2 + K bytes with K = 12. Filling in our defaults must give
# their formulas. Two formulas are equal when their difference is zero as an expression: no numbers are tried.

# %%
paper = {"data parallel": "16*Psi", "ZeRO-1": "4*Psi + 12*Psi/dp", "ZeRO-2": "2*Psi + 14*Psi/dp",
         "ZeRO-3": "16*Psi/dp"}
for name, text in paper.items():
    assert memory[name].states.subs(w=2, g=2, o=12) == pa.Formula.parse(text, "bytes"), name

# %% [markdown]
# The paper's example is a model of 7.5 billion parameters on 64 devices: 120, 31.4, 16.6 and 1.9 GB.

# %%
sizes = {"Psi": 7_500_000_000, "dp": 64}
gigabytes = {name: float(found.states.value(**sizes) / 10**9) for name, found in memory.items()}
assert [round(value, 1) for value in gigabytes.values()] == [120.0, 31.4, 16.6, 1.9]
gigabytes

# %% [markdown]
# As curves: each stage has a floor, the states that it leaves replicated. Only ZeRO-3 has none.

# %%
degrees = [2**k for k in range(11)]
figure, axes = plt.subplots(figsize=(7, 4))
for name, found in memory.items():
    values = [float(found.states.value(Psi=sizes["Psi"], dp=n) / 10**9) for n in degrees]
    axes.plot(degrees, values, color=colours[name], marker="o", markersize=3)
    axes.annotate(f" {name}", (degrees[-1], values[-1]), color=colours[name], va="center")
axes.set(xscale="log", yscale="log", xlabel="dp, devices", ylabel="states on a device, GB", xlim=(1, 9000),
         title="7.5 billion parameters, states at rest")
axes.axhline(80, color="#999999", linestyle=":", linewidth=1)
axes.annotate("an 80 GB device", (1200, 60), color="#777777")
axes.set_xticks([1, 8, 64, 512], ["1", "8", "64", "512"])
axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
axes.minorticks_off()
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## Communication
#
# What is sent is not a property of the placement alone. It is a property of the *program*: of which events there are.
# placealg derives the cheapest one from the placement. A redistribution of S elements over n devices sends S(n-1)/n for
# an all-gather or a reduce-scatter, and twice that for an all-reduce.

# %%
sent = {name: pa.communication(strategy, model) for name, strategy in stages.items()}
for name, found in sent.items():
    print(f"{name:14} {found.total}")

# %% [markdown]
# ZeRO-1 sends what data parallelism sends: the all-reduce comes apart into the reduce-scatter of gradients and the
# all-gather of updated weights. With weights and gradients of the same width, that is the same number of bytes.

# %%
assert sent["ZeRO-1"].total.subs(w=2, wire=2) == sent["data parallel"].total.subs(wire=2)
[(event.path, event.formula) for event in sent["ZeRO-1"].events if not event.left_out]

# %% [markdown]
# ## "8x less memory at 1.5x the communication"
#
# This is how ZeRO-3 is often quoted. Both numbers are formulas, and they are true of different things.

# %%
saving = memory["data parallel"].states.ratio(memory["ZeRO-3"].states)
assert saving.text() == "dp"
saving

# %% [markdown]
# The saving is dp, whatever the element sizes: 8 at eight devices, and at no other number.

# %%
assert [n for n in range(1, 2000) if saving.value(dp=n) == 8] == [8]

# %%
price = sent["ZeRO-3"].total.ratio(sent["data parallel"].total)
price

# %% [markdown]
# The price has no dp in it: it holds for every number of devices above one. It has m in it, and the widths. With one
# microbatch and equal widths it is 3/2, as claimed.

# %%
assert price.value(m=1, w=2, wire=2) == pa.Formula.parse("3/2", "1").value()

# %% [markdown]
# With fp32 gradients on the wire, ZeRO-3's gathers of 2-byte weights weigh less, and the price is 1. With eight
# microbatches it gathers and reduces eight times, while data parallelism reduces once.

# %%
table = [(m, wire, price.value(m=m, w=2, wire=wire)) for m in (1, 4, 8) for wire in (2, 4)]
for m, wire, value in table:
    print(f"m = {m}   wire = {wire}   {value} times what data parallelism sends")
assert dict(((m, wire), value) for m, wire, value in table)[8, 2] == 12
assert dict(((m, wire), value) for m, wire, value in table)[1, 4] == 1

# %%
counts = list(range(1, 17))
figure, axes = plt.subplots(figsize=(7, 4))
for name, found in sent.items():
    values = [float(found.total.subs(m=m).ratio(sent["data parallel"].total).value(w=2, wire=2, dp=64)) for m in counts]
    style = "--" if name == "ZeRO-1" else "-"
    axes.plot(counts, values, color=colours[name], linestyle=style, marker="o", markersize=3)
labels = {"ZeRO-3": "ZeRO-3", "ZeRO-2": "ZeRO-2", "ZeRO-1": "data parallel and ZeRO-1"}
for name, text in labels.items():
    last = float(sent[name].total.subs(m=16).ratio(sent["data parallel"].total).value(w=2, wire=2, dp=64))
    axes.annotate(f" {text}", (16, last), color=colours[name], va="center")
axes.set(xlabel="m, microbatches in a step", ylabel="sent, data parallel = 1", xlim=(0.5, 24), ylim=(0, 26), xticks=[1, 4, 8, 12, 16],
         title="The price of resting sharded, in microbatches")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## For all sizes
#
# Curves show some sizes. A comparison can also be decided for all of them: `pa.decide` answers PROVED, or REFUTED with
# sizes at which it fails, or that it does not know.

# %%
less = pa.decide(pa.zero3(), pa.dp(), "memory.states <", model, where="dp >= 2")
assert less.verdict == "PROVED"
less.verdict

# %% [markdown]
# Is ZeRO-2's total memory never above data parallelism's? One would think so, and the answer is no: it reduces in every
# microbatch, so a full-size gradient of one unit stands beside the shard. On one device that is more, not less.

# %%
total = pa.decide(pa.zero2(), pa.dp(), "memory.total <=", model)
decision = total.decisions[0]
print(total.verdict, dict(decision.sizes), [float(value) for value in decision.values or ()])
assert total.verdict == "REFUTED"

# %% [markdown]
# **What could be wrong with this?** The abstract model has parameters and no activations, so `total` says "states and
# transient only". And these are bytes per device and step, no times: whether 3/2 of the bytes costs anything depends on
# what hides behind computation. `placealg fit` says what bandwidth would.

# %%
pa.memory(pa.zero3(), model)

# %% [markdown]
# ## Exercise
#
# Gradients are sent in 2 bytes. From how many microbatches on does ZeRO-3 send more than twice what data parallelism
# sends? And if gradients are sent in 4?

# %% [markdown]
# **Solution.** The ratio is a formula in m and wire; try m = 1, 2, 3. Data parallelism reduces once a step, ZeRO-3 gathers and reduces
# in every microbatch, so two are enough; with wider gradients, where data parallelism sends more, three.

# %%
first = {wire: next(m for m in range(1, 9) if price.value(m=m, w=2, wire=wire) > 2) for wire in (2, 4)}
assert first == {2: 2, 4: 3}
first
