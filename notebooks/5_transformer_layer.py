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
# # 5. A transformer layer, and where 34 comes from
#
# Korthikanti et al. (arXiv 2205.05198) count what one layer of a GPT keeps for its backward pass: sbh(34 + 5as/h) bytes.
# Tensor parallelism makes it sbh(10 + 24/t + 5as/ht), and sequence parallelism divides all of it by t. This notebook
# takes the layer apart, tensor by tensor, until each part of these numbers has an op to which it belongs.
#
# | symbol | meaning |
# |---|---|
# | b, s, h | sequences in a microbatch, their length, the hidden size |
# | a, f, V, L | attention heads, inner width of the MLP (here 4h), vocabulary, layers |
# | act | bytes per element of the activations, 2 by default; a dropout's mask takes 1 |
# | tp | devices along the tensor axis, t in the paper |
# | [S(dim)], [R], [P] | a tensor split along a dim; whole on every rank; a partial sum on every rank |

# %%
import contextlib
import io
import json
from functools import cache

import matplotlib.pyplot as plt

import placealg as pa
from placealg.cli import main

model = pa.gpt()  # every size a symbol


def ask(*words: str) -> dict:
    """What a command of placealg prints as JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*words, "--format", "json"]) == 0
    return json.loads(printed.getvalue())


@cache
def per_layer(strategy: pa.Strategy) -> pa.Formula:
    """What one more layer keeps for backward, with activations of two bytes."""
    kept = pa.memory(strategy, model).activations
    return (kept.subs(L=2) - kept.subs(L=1)).subs(act=2)


# %% [markdown]
# ## On one device
#
# A model is an op graph: each op says once what its backward needs. A product needs both operands; a gelu its input; a
# softmax its output; dropout its mask; an addition nothing. What forward keeps follows.

# %%
alone = per_layer(pa.dp())
assert alone == pa.Formula.parse("b*s*h*(34 + 5*a*s/h)", "bytes")
alone

# %% [markdown]
# So 34 is not typed in anywhere. The tensors behind it, with their share of the 34:

# %%
def share(tensor: dict) -> float:
    """Bytes of a saved tensor of one layer, in units of s·b·h."""
    formula = pa.Formula.from_json(tensor["bytes"])
    return float(formula.value(act=2, L=1, b=1, s=1, h=1, a=1))


saved = [t for t in ask("cost", "dp", "--model", "gpt", "--by", "tensor")["saved"]
         if t["tensor"].startswith("layer.") and t["tensor"] != "layer.out"]
linear = {t["tensor"].removeprefix("layer."): share(t) for t in saved if "s**2" not in t["bytes"]["expr"]}
quadratic = {t["tensor"].removeprefix("layer."): share(t) for t in saved if "s**2" in t["bytes"]["expr"]}
assert sum(linear.values()) == 34 and sum(quadratic.values()) == 5
quadratic

# %% [markdown]
# The last three are as large as attention's scores, a·s² rather than s·h: softmax's output, its dropout's output, and the
# mask, 2 + 2 + 1 = 5.

# %%
figure, axes = plt.subplots(figsize=(8, 4.6))
names = list(linear)[::-1]
halves = {name: "#0072B2" if name.startswith("mlp") else "#D55E00" if name.startswith("attn") else "#7a7a7a"
          for name in names}
bars = axes.barh(names, [linear[name] for name in names], color=[halves[name] for name in names])
axes.bar_label(bars, fmt="%g", padding=3)
axes.set(xlabel="bytes kept, in units of s·b·h", title="One layer on one device: these add up to 34", xlim=(0, 9))
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# Orange is attention, blue the MLP, grey what both halves share: norms and the stream between them. The MLP's two inner
# tensors are four times as wide as the rest and make 16 of the 34. A mask takes one byte an element, where others take
# two; an addition keeps nothing, which is why the two residual sums appear only as inputs of the norms that read them.

# %% [markdown]
# ## Tensor parallelism: 10 + 24/t
#
# Tensor parallelism is a list of dims: along `tp`, ops are split along heads, or the inner width, or the vocabulary,
# where they have it. An op that has none of these is computed whole, by each rank for itself.

# %%
split = per_layer(pa.tp())
assert split == pa.Formula.parse("b*s*h*(10 + 24/tp + 5*a*s/(h*tp))", "bytes")
split

# %% [markdown]
# Which is whole? Exactly the tensors between the products: the two inputs of the norms, the norms' outputs, and the two
# masks of dropout, 2 + 2 + 2 + 2 + 1 + 1 = 10.

# %%
layout = {t["tensor"].removeprefix("layer."): t["layout"] for t in ask("cost", "tp", "--by", "tensor")["saved"]}
whole = {name: size for name, size in linear.items() if layout[name] == "whole"}
assert sum(whole.values()) == 10
whole

# %% [markdown]
# ## Sequence parallelism: 34/t
#
# The norms and dropouts have no heads to split, but they do have a sequence. One more entry in the list, `seq`, splits
# them along it. It comes last: an op is split along the *first* entry that it has.

# %%
print("tp   ", pa.tp().dims["tp"])
print("tp_sp", pa.tp_sp().dims["tp"])
everywhere = per_layer(pa.tp_sp())
assert everywhere == pa.Formula.parse("b*s*h*(34 + 5*a*s/h)/tp", "bytes")
everywhere

# %% [markdown]
# ## What is sent for it
#
# Tensors that are made under one layout and used under another are redistributed. Under tp a product leaves a partial
# sum [P] that all ranks need: an all-reduce. Under tp_sp the next op wants its shard [S(seq)]: a reduce-scatter, and an
# all-gather before the next product. Half and half, the same bytes.

# %%
def crossing(strategy: pa.Strategy) -> list[str]:
    """What crosses in one layer's forward pass."""
    step = pa.derive(strategy, model)
    return [event.path for event in step.phase("forward")
            if event.unit == "layer" and event.axes and event.verb not in ("free", "slice")]


assert [path.split(".")[-1] for path in crossing(pa.tp())] == ["all_reduce[tp]"] * 2
assert [path.split(".")[-1] for path in crossing(pa.tp_sp())] == ["all_gather[tp]", "reduce_scatter[tp]"] * 2
crossing(pa.tp_sp())

# %%
forward = {s.name: pa.communication(s, model).by_phase["forward"] for s in (pa.tp(), pa.tp_sp())}
layer = {name: sent.subs(L=2) - sent.subs(L=1) for name, sent in forward.items()}
assert layer["tp"] == layer["tp_sp"] == pa.Formula.parse("4*act*b*h*m*s*(tp - 1)/tp", "bytes")
layer["tp_sp"]

# %% [markdown]
# In backward, sequence parallelism gathers the two norms' outputs once more, rather than keeping them whole. That is the
# price of 34/t: ten parts instead of eight. `tp_sp_keep` does not pay it, and keeps 4 more.

# %%
both = {}
for strategy in (pa.tp(), pa.tp_sp(), pa.parse_strategy("tp_sp_keep")):
    phases = pa.communication(strategy, model).by_phase
    sent = phases["forward"] + phases["backward"]
    both[strategy.name] = sent.subs(L=2) - sent.subs(L=1)
assert both["tp"] == both["tp_sp_keep"] and both["tp_sp"].ratio(both["tp"]).value() == 10 / 8
assert per_layer(pa.parse_strategy("tp_sp_keep")) == pa.Formula.parse("b*s*h*(4 + 30/tp + 5*a*s/(h*tp))", "bytes")
both

# %% [markdown]
# The program, with ZeRO-3 along a second axis. Forward runs down, backward up, and each op stands beside its gradient. So
# the duality can be seen row by row: an all-gather in forward is a reduce-scatter in backward, and the other way round.

# %%
pa.draw(pa.derive(pa.zero3() * pa.tp_sp(), model))

# %% [markdown]
# ## Recomputing the attention core
#
# Flash attention and selective recomputation remove the 5as/h: the core's tensors have mode M, and backward makes them
# again. For GPT-3 the paper calls that most of the memory for little of the work.

# %%
selective = per_layer(pa.tp_sp() * pa.recompute_selective())
assert selective == pa.Formula.parse("34*b*s*h/tp", "bytes")
gpt3 = {"b": 1, "s": 2048, "h": 12288, "a": 96}
assert float(alone.value(**gpt3) / selective.value(**gpt3, tp=1)) - 1 == 5 * 96 * 2048 / 12288 / 34

# %%
strategies = {"tp": pa.tp(), "tp, sp": pa.tp_sp(), "tp, sp, selective": pa.tp_sp() * pa.recompute_selective(),
              "full recompute": pa.tp() * pa.recompute_full()}
sizes = [1, 2, 4, 8]
figure, axes = plt.subplots(figsize=(8, 4))
for (name, strategy), colour in zip(strategies.items(), ["#0072B2", "#009E73", "#D55E00", "#7a7a7a"]):
    formula = per_layer(strategy)
    values = [float(formula.value(**gpt3, **({"tp": t} if "tp" in formula.names else {})) / 10**6) for t in sizes]
    axes.plot(sizes, values, color=colour, marker="o")
    axes.annotate(f"  {name}", (sizes[-1], values[-1]), color=colour, va="center")
axes.set(xlabel="tp", ylabel="kept per layer, MB", title="GPT-3, one sequence of 2048", xscale="log", yscale="log",
         xlim=(0.9, 18))
axes.set_xticks(sizes, [str(t) for t in sizes])
axes.set_yticks([50, 100, 500, 1000, 3000], ["50", "100", "500", "1000", "3000"])
axes.minorticks_off()
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# Tensor parallelism alone flattens out: its 10 stay whole on every rank. With sequence parallelism the line is straight.
# Recomputing the attention core moves it down by the factor 1 + 5as/34h, and recomputing the whole layer keeps the
# layer's input only, whole on every rank: the least, until tp reaches 17.

# %%
full = per_layer(pa.tp() * pa.recompute_full())
assert full.ratio(selective).text() == "tp/17"

# %% [markdown]
# **What could be wrong with this?** The 34 depends on where ops are cut: a fused gelu and bias keeps less. The norms'
# row statistics, two numbers per token, are left out, as in the paper. And memory is worth nothing if the training is
# another: under sequence parallelism the norms' gradients are partial sums over tp, and forgetting that has been a bug in
# several projects. Notebook 7 tells one.

# %%
report = pa.prove(pa.tp_sp(), model)
assert report.verdict == "PROVED"
report

# %% [markdown]
# ## Exercise
#
# A model has h = 4096 and 32 heads. From which sequence length on do the scores of attention take more than half of what a
# layer keeps?

# %% [markdown]
# **Solution.** The linear part is 34·b·s·h bytes, so half is passed where all is more than 68·b·s·h: at 5·a·s/h > 34, at a sequence of
# 871. That is why the core of attention is what selective recomputation computes again.

# %%
length = next(s for s in range(1, 10_000) if alone.value(b=1, s=s, h=4096, a=32) > 68 * s * 4096)
assert length == 871
length
