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
# # 11. Your training step, held against its proof
#
# The other notebooks prove *descriptions*. Whether the code that trains is what was described is another question, and
# this one takes ten minutes. A step is run once, at small sizes and without a GPU, and recorded: every collective,
# factor, sum and update that reaches each parameter. The recording is plain data, and is judged here without PyTorch.
#
# | symbol | meaning |
# |---|---|
# | dp, tp | ranks along an axis: data, tensor parallelism |
# | m | microbatches of a step |
# | CONFORMS, DIFFERS, UNSEEN | the run is the program; it is not; part of it could not be followed |
#
# With PyTorch at hand, the two lines that make a recording of your own step are
#
# ```py
# with pa.observe(model, mesh) as observation:     # mesh: a DeviceMesh with named dims, or {"dp": 2}
#     step()                                       # zero_grad, forward, backward, optimizer.step
# Path("seen.json").write_text(observation.seen.text())
# ```
#
# and a test of your own is `placealg.testing.assert_trains_as("zero3", step, model=model, mesh=mesh, config=...)`. The
# recordings below were made so by `tests/watch/write_recordings.py`, on two processes, of a GPT with two layers.

# %%
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp

from placealg.cli import main

RECORDINGS, MODEL = Path("../tests/watch/recordings"), "../proofs/torch/gpt.json"


def conform(file, *strategy):
    """The verdict on a recording, as `placealg conform FILE STRATEGY --format json` prints it."""
    said = StringIO()
    with redirect_stdout(said):
        code = main(["conform", str(file), *strategy, "--model", MODEL, "--format", "json", "--no-timing"])
    return {**json.loads(said.getvalue()), "exit": code}


seen = json.loads((RECORDINGS / "fsdp2.json").read_text())["seen"]
assert seen["mesh"] == {"dp": 2} and seen["backend"] == "gloo" and len(seen["ranks"]) == 2

# %% [markdown]
# ## What a recording holds
#
# Of each rank the messages in order, and of each parameter a *chain*: what the optimizer read as its gradient, summand
# by summand, back to the op of backward that made it. This is FSDP2 with two microbatches and clipping. A summand is
# reduced by a reduce_scatter over dp, and multiplied by one number less than 1: the factor of the clip.

# %%
rank = seen["ranks"][0]
chain = next(c for c in rank["chains"] if c["parameter"] == "layers.0.mlp.up.weight")
for term in chain["terms"]:
    ways = [(hop["verb"], hop.get("axes", []), round(hop.get("factor", 1.0), 3)) for hop in term["hops"]]
    print(term["what"], "of microbatch", term["microbatch"], "->", ways)
assert {term["microbatch"] for term in chain["terms"]} == {0, 1} and chain["shard"] == ["dp"]
assert all(hop["verb"] in ("reduce_scatter", "scale") for term in chain["terms"] for hop in term["hops"])

# %% [markdown]
# ## Held against the program
#
# The derived program of `zero3` says what each chain must be at these sizes. Everything matches, one for one; and the
# program is proved for *all* sizes. Neither half is enough alone: the run is a fact at dp = 2, the proof is about a
# text. What joins them has a name, and stands in the verdict.

# %%
told = conform(RECORDINGS / "fsdp2.json", "zero3")
print(told["verdict"], told["gradient_paths"], told["collectives"])
print("proof:", told["proof"]["verdict"], told["proof"]["class"])
for hypothesis in told["hypotheses"]:
    print(f"  {hypothesis['name']}: {hypothesis['says']}")
assert told["verdict"] == "CONFORMS" and told["exit"] == 0
assert told["gradient_paths"]["matched"] == told["gradient_paths"]["of"] == 74
assert {h["name"] for h in told["hypotheses"]} == {"same_code", "same_path", "meant", "dispatched", "kept_state"}

# %% [markdown]
# Is that worth anything? Hold the same run against data parallelism. The loss goes down in both, and a comparison of
# loss curves would not tell them apart; the recording does.

# %%
told = conform(RECORDINGS / "fsdp2.json", "dp")
for difference in told["differences"][:3]:
    print(difference["kind"], "|", difference["says"])
assert told["verdict"] == "DIFFERS" and told["exit"] == 1
assert "gathers" in {d["kind"] for d in told["differences"]}

# %% [markdown]
# ## When you do not know what it is
#
# Without a strategy the run is asked: which parameters rest split and by which dims, whose weights are gathered, what
# the gradients pass through. The answer says what it rests on, and is held against the run like any other.

# %%
for file in ("by_hand", "fsdp2", "tp_sp"):
    told = conform(RECORDINGS / f"{file}.json")
    print(f"{file}: {told['strategy']}, {told['verdict']}\n  {told['proposed']['rests_on'][0]}")
    assert told["verdict"] == "CONFORMS"

# %% [markdown]
# ## A fault, its proof, and what became of it
#
# With sequence parallelism each rank sees its share of the tokens, so a norm's gradient must be summed over tp. This
# run leaves that out for the last norm. The difference is named, becomes edits of the program, and the edited program
# is refuted with a ratio: how much of the gradient is there. Beside it stands a second witness, which knows nothing of
# programs: all ops that ran, run again in exact numbers beside a single device, do not end as that does.

# %%
told = conform(RECORDINGS / "norm_apart.json", "tp_sp_keep")
print(told["differences"][0]["says"])
print(told["edits"])
print(told["edited"]["verdict"], "| ratio", told["edited"]["counterexample"]["mass"])
print("\n".join(told["single_device"]["differs"][:3]))
assert told["verdict"] == "DIFFERS" and told["edited"]["verdict"] == "REFUTED"
assert told["edited"]["counterexample"]["mass"] == "1/tp"
assert told["single_device"]["verdict"] == "DIFFERS"

# %% [markdown]
# ## What no collective tells
#
# A loss that divides inside a kernel of its own leaves no factor to see: every event is the program's. The single
# device tells, and which op made the first value that it does not have.

# %%
told = conform(RECORDINGS / "kernel.json", "dp")
print(told["verdict"], "|", told["gap"])
print("\n".join(told["single_device"]["differs"][:3]))
assert told["verdict"] == "DIFFERS" and not told["differences"]
assert told["single_device"]["verdict"] == "DIFFERS"

# %% [markdown]
# ## Exercise
#
# A verdict that nothing can turn is no evidence. Take `tp_sp.json`, which conforms, change one thing in it that a wrong
# training step would do, and see that it is found. What happens if you multiply the factor of one summand by 2? If you
# forget what happened to one norm's gradient?

# %% [markdown]
# **Solution.** A recording is JSON; each change is one line. The factor is told as how often a token counts; the
# missing reduction as the axis that the program has and the run has not.

# %%
def changed(change):
    """The verdict on tp_sp.json with a change to the first summand of the last norm's weight, on every rank."""
    text = json.loads((RECORDINGS / "tp_sp.json").read_text())
    for one in text["seen"]["ranks"]:
        change(next(c for c in one["chains"] if c["parameter"] == "head.norm.weight")["terms"][0])
    file = Path(mkdtemp()) / "changed.json"
    file.write_text(json.dumps(text))
    return conform(file, "tp_sp_keep")


doubled = changed(lambda term: term.update(factor=2 * term["factor"]))
forgotten = changed(lambda term: term.update(hops=[]))
for told in (doubled, forgotten):
    print(told["verdict"], "|", told["differences"][0]["says"])
assert doubled["differences"][0]["kind"] == "scale" and doubled["differences"][0]["factor"] == 2.0
assert forgotten["differences"][0]["kind"] == "axes" and forgotten["verdict"] == "DIFFERS"
assert changed(lambda term: None)["verdict"] == "CONFORMS"

# %% [markdown]
# **What could be wrong with this?** CONFORMS says that the recorded runs, at their sizes, communicate, scale, sum and
# update as the program says, and that the program equals the single device at all sizes. It does not say that your code
# is proved. Other sizes need `same_code` (record them: one process stands for any rank of any mesh on PyTorch's fake
# group), other batches `same_path`, the single device is taken for what is `meant`, and the recorder's own sight is
# `dispatched`. [docs/watch.md](../docs/watch.md) lists what is not compared.
