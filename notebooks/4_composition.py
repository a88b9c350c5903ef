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
# # 4. Composing strategies
#
# Real training runs along several axes at once. `*` composes strategies over disjoint axes. When does the order matter,
# when not, and what breaks? Most of the answer is one fact about sums, and the rest are its three hypotheses.
#
# | symbol | meaning |
# |---|---|
# | a, b | two axes of a mesh; (i, j) is a rank, i along a and j along b |
# | f(i, j) | what rank (i, j) holds of one element |
# | `*` | composition: each side places the states along its own axes |
# | own | an owner function: which rank holds an index |
# | w, wire, o | bytes per parameter of weights, of gradients on the wire, of the optimizer's state |

# %%
import random
from fractions import Fraction

import placealg as pa

model = pa.abstract()

# %% [markdown]
# ## Why composition works: sums commute
#
# Sum over a and then over b, or over b and then over a: the same number. Reductions, gathers, slices and scalings along
# an axis are all linear maps of that axis's coordinate, and linear maps on different coordinates commute. That holds for
# all sizes; `proofs/theorems/composition.py` has the induction. Here is one size.

# %%
draw = random.Random(0)
f = [[Fraction(draw.randint(-9, 9)) for _ in range(4)] for _ in range(3)]


def over_a(table: list[list[Fraction]]) -> list[list[Fraction]]:
    """An all-reduce along a: every row becomes the sum of the rows."""
    sums = [sum(column) for column in zip(*table)]
    return [sums for _ in table]


def over_b(table: list[list[Fraction]]) -> list[list[Fraction]]:
    """An all-reduce along b: every entry becomes the sum of its row."""
    return [[sum(row)] * len(row) for row in table]


assert over_a(over_b(f)) == over_b(over_a(f))

# %% [markdown]
# So two strategies on disjoint axes may be composed in either order. The mesh is another, first axis major, but each
# device's memory and traffic are the same formulas.

# %%
one, other = pa.zero3() * pa.tp_sp(), pa.tp_sp() * pa.zero3()
transformer = pa.gpt()
assert pa.memory(one, transformer).total == pa.memory(other, transformer).total
assert pa.communication(one, transformer).total == pa.communication(other, transformer).total
pa.draw(one, dp=4, tp=2)

# %%
pa.draw(other, dp=4, tp=2)

# %% [markdown]
# ## Known names are compositions
#
# Hybrid sharding (HSDP) is in the catalogue under its own name. It need not be: it is data parallelism along one axis and
# ZeRO-3 along another, event for event.

# %%
hybrid = pa.dp("dp_replicate") * pa.zero3("dp_shard")
assert pa.derive(hybrid, model).events == pa.derive(pa.hsdp(), model).events
[event.path for event in pa.derive(hybrid, model).events if event.axes and event.phase in ("backward", "reduce")]

# %% [markdown]
# And ZeRO-1 along two axes is ZeRO-1 along one axis of their product. Rows of the same kind along several axes are *one*
# event over all of them: volumes per axis do not add up.

# %%
twofold = pa.communication(pa.zero1("inner") * pa.zero1("outer"), model).total
single = pa.communication(pa.zero1(), model).total
for inner, outer in [(2, 3), (4, 4), (8, 64)]:
    assert twofold.value(Psi=10**6, inner=inner, outer=outer) == single.value(Psi=10**6, dp=inner * outer)
twofold

# %% [markdown]
# ## What composition refuses
#
# The axes must be disjoint, and what both sides say about the whole step must agree. Otherwise there is no strategy to
# speak of, and the error says which rule it was.

# %%
for attempt in (lambda: pa.dp() * pa.dp(),
                lambda: pa.pp() * pa.parse_strategy("pp_gpipe[other]"),
                lambda: pa.zero1() * pa.offload_optimizer() * pa.offload_optimizer()):
    try:
        raise AssertionError(f"{attempt()} should have been refused")
    except pa.InputError as error:
        print(error)

# %% [markdown]
# ## What does not commute, first: two axes on one dim
#
# Context parallelism and sequence parallelism both split the sequence. Eight positions on two times two ranks: the first
# axis cuts first. Which positions a rank owns depends on the order.

# %%
def owner(position: int, positions: int, sizes: tuple[int, int]) -> tuple[int, int]:
    """The rank (major, minor) that owns a position when two axes split the sequence in this order."""
    major, minor = sizes
    block = positions // major
    return position // block, position % block // (block // minor)


assert owner(5, 8, (2, 2)) == (1, 0)
cp_first = {rank: [p for p in range(8) if owner(p, 8, (2, 2)) == rank] for rank in [(0, 0), (0, 1), (1, 0), (1, 1)]}
tp_first = {(cp, tp): cp_first[tp, cp] for cp, tp in cp_first}  # the same cut, with the axes' roles exchanged
assert cp_first != tp_first
print("(cp, tp)  cp first", "  tp first")
for rank in cp_first:
    print(f"{rank}    {cp_first[rank]}      {tp_first[rank]}")

# %% [markdown]
# Both layouts are right, each by itself, and cost the same. What would be wrong is to mix them: a rank that gathers along
# cp under one and computes under the other holds foreign positions. placealg keeps the order in the mesh, and proves each.

# %%
ordered, exchanged = pa.cp() * pa.tp_sp(), pa.tp_sp() * pa.cp()
assert pa.communication(ordered, transformer).total == pa.communication(exchanged, transformer).total
reports = [pa.prove(strategy, transformer) for strategy in (ordered, exchanged)]
assert all(report.verdict == "PROVED" for report in reports)
reports

# %% [markdown]
# ## Second: something nonlinear in between
#
# Clipping by the global norm multiplies a gradient by a factor that depends on all of it. It is no linear map, so it does
# not pass through a sum: clipped parts do not add up to the clipped whole.

# %%
def clip(gradient: list[float]) -> list[float]:
    """The gradient, scaled down to norm 1 where it is longer."""
    norm = sum(x * x for x in gradient) ** 0.5
    return [x / max(norm, 1) for x in gradient]


parts = [[3.0, 0.0], [0.0, 0.4]]
before = clip([sum(column) for column in zip(*parts)])
after = [sum(column) for column in zip(*(clip(part) for part in parts))]
assert before != after
print("reduced, then clipped", [round(x, 3) for x in before])
print("clipped, then reduced", [round(x, 3) for x in after])

# %% [markdown]
# Likewise, the norm of a shard is not the norm of the gradient. Leave out the one all-reduce that adds up the shards'
# norms, and ZeRO-1 clips each shard by itself. It was a bug in AReaL (issue 312).

# %%
whole = pa.derive(pa.zero1(), model)
local = pa.edit(whole, drop="update.norm.all_reduce[dp]")
refuted = pa.prove(local, base=whole)
assert refuted.verdict == "REFUTED" and refuted.refuted() == ("update",)
refuted.counterexample

# %% [markdown]
# ## Third: unequal counts
#
# A mean of local means is linear too, but its divisors are counts of tokens, and counts need not be equal. Under the
# hypothesis `equal_counts` it composes over any axes; without it, notebook 3 refutes it over one already. A token mean
# divides by one count for the whole batch, and composes over two axes without the hypothesis.

# %%
axes = {"outer": None, "inner": None}
tokens = pa.strategy_on("token mean over two axes", axes, dims=dict.fromkeys(axes, ["batch"]),
                        loss={"preset": "token_mean"})
report = pa.prove(tokens, model)
assert report.verdict == "PROVED" and not any(h.name == "equal_counts" for h in report.hypotheses)
report.assuming

# %% [markdown]
# **What could be wrong with this?** That both sides are proved does not prove the product: the two may meet in a dim, a
# norm or a count. So each composition is derived and proved anew. Here are three axes, and a modifier, which brings no
# axis of its own and applies to what stands to its left.

# %%
composite = pa.zero2() * pa.tp_sp() * pa.cp() * pa.recompute_selective()
verdict = pa.prove(composite, transformer)
assert verdict.verdict == "PROVED" and verdict.cls == "PARAMETRIC"
composite

# %% [markdown]
# ## Exercise
#
# Does it matter whether ZeRO-3 or tensor parallelism is named first? Ask for what a device holds at most, and for what it
# sends.

# %% [markdown]
# **Solution.** Neither: the two act on different dims, and their product commutes. Where two axes cut the same dim, as in the picture of
# context and tensor parallelism above, the order says who owns what.

# %%
one, other = pa.zero3() * pa.tp(), pa.tp() * pa.zero3()
same = [pa.decide(one, other, f"{what} ==", transformer).verdict for what in ("memory.peak", "communication.total")]
assert same == ["PROVED", "PROVED"]
same
