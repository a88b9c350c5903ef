"""What explanations say in words of their own: hypotheses, the theorem, and where notions come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Explained(NamedTuple):
    """A name, the kind of thing that it is, its sentences, and its formula or statement, an example, the source."""

    name: str
    kind: str
    sentences: tuple[str, ...]
    statement: str = ""
    example: str = ""
    source: str = ""

    def rows(self) -> list[tuple[str, str]]:
        """(title, text) of what stands below the sentences."""
        every = (("statement", self.statement), ("example", self.example), ("source", self.source))
        return [(title, text) for title, text in every if text]


HYPOTHESES: Mapping[str, tuple[str, str, str]] = {
    "equal_counts": (
        "Every rank of the data axes holds equally many valid tokens in every microbatch.",
        "Under it the mean of local means is the token mean. Of an axis that cuts sequences, as cp does, it speaks of "
        "their parts, which padding and masked prompts make unequal; of a mean over sequences or documents, of these.",
        "The loss preset mean_of_means assumes it; assume = [] in [loss] withdraws it, and token_mean does without.",
    ),
    "units_independent": (
        "The model outside its parameters is computed alike on every device.",
        "What a rank computes from its tokens then equals the single device's, given the same parameters.",
        "A verdict assumes it, because its program runs a unit as one computation.",
    ),
    "dropless": (
        "Every token reaches the experts that its router chose.",
        "Where a full expert drops tokens, which ones depends on the placement, and the step is another.",
        "A verdict on a model with a router assumes it.",
    ),
    "predictions": (
        "What a layer reads that predicts later tokens is data; where ranks send it each other the run is another.",
        "Its loss is added to a token's own, times a weight, and one count divides both; or, as predictions in [loss] "
        "says, it is divided by that count apart, or by a count of its own.",
        "A verdict on a model with such layers (--mtp, or a stage that has them alone) assumes it.",
    ),
    "microbatch_mean": (
        "The loss of the single device is the mean of its microbatches' means.",
        "A microbatch of few tokens then weighs as much as one of many: with unequal counts that is no token mean.",
        "A strategy declares it with reference = \"microbatch_mean\" in [loss]; nothing is proved of a token mean.",
    ),
    "sample_mean": (
        "The loss of the single device is the mean of its microbatches' means, of which each counts by its samples.",
        "A microbatch of few samples then weighs less than one of many, and of its tokens each by how few they are.",
        "A strategy declares it with reference = \"sample_mean\" in [loss]; nothing is proved of a token mean.",
    ),
    "nonzero_divisors": (
        "A token count by which something is divided is not zero there.",
        "Without it an empty cell of the batch divides by zero on its device.",
        "A verdict assumes it where a count of part of the batch divides and equal counts are not assumed.",
    ),
    "same_batches": (
        "Both runs take the same sequences of every step, however they deal them out to ranks and microbatches.",
        "A strategy does not say the order of the data: a loader that goes on elsewhere trains on other sequences.",
        "The verdict on a checkpoint that is resumed on another mesh assumes it.",
    ),
    "never_resumed": (
        "The program has no resume phase, so a resumed run is not covered.",
        "Nothing is then said about what a checkpoint restores.",
        "A verdict assumes it of a program without events in resume.",
    ),
}
"""Named hypothesis -> what it says, what follows from it, who assumes it."""

SAYS = {name: sentences[0][0].lower() + sentences[0][1:].rstrip(".") for name, sentences in HYPOTHESES.items()}
"""Named hypothesis -> what it says, as part of a sentence."""

ASSUMED: Mapping[str, tuple[str, str]] = {
    "equal_counts": ("N(c, k) = N(c', k') for all ranks c, c' of the data axes and all microbatches k, k'",
                     "dp: its loss divides by the rank's own tokens"),
    "units_independent": ("forward and backward of a unit on a rank are the single device's, given its parameters",
                          "zero3 on abstract; on gpt the obligation `forward` takes its place"),
    "dropless": ("no expert has a capacity: all pairs of a token and a chosen expert are computed",
                 "dp*ep on moe"),
    "predictions": ("loss = L_head + sum over k of weight_k L_k, all sums over N, or, counted, each over N_k",
                    "zero3 on deepseek-v3 --mtp"),
    "microbatch_mean": ("w_ref = 1/(m N(k)) for a token of microbatch k, where a token mean has 1/N",
                        'dp with [loss] preset = "token_mean", count_axes = ["dp"], reference = "microbatch_mean"'),
    "sample_mean": ("w_ref = S(k)/(S N(k)) for a token of microbatch k, of which S(k) of all S samples are",
                    'dp on gpt with [schedule] microbatch_mean = "samples", and a count per microbatch'),
    "nonzero_divisors": ("N > 0 wherever N divides", "dp with [loss] preset = \"token_mean\", a count per microbatch"),
    "same_batches": ("the sequences of step t are one set B_t, of the old run as of the new one",
                     "placealg reshard zero3 zero1"),
    "never_resumed": ("the program has no event in the phase `resume`",
                      "a file of [[event]] tables without resume.*"),
    "balanced_experts": ("every device of an expert axis receives b·s·topk/n pairs per microbatch and data rank",
                         "placealg cost dp*ep --model moe"),
    "even_shares": ("a share of x elements over n ranks has x/n", "zero3 without [shards] pad"),
    "copies_apart": ("while a unit is used, shard and copy are both held: w/n + w bytes a parameter", "zero3"),
    "units_whole": ("the copy of the head is there while the loss runs backward", "zero3 on gpt"),
    "gradients_rest": ("g bytes a parameter at every moment of the step", "dp"),
    "fresh_results": ("what an op reads and what it makes are held at once", "gpt, at every op but a renaming"),
    "saved_as_listed": ("an operand is kept iff the gradient of another operand needs it", "placealg model gpt"),
    "loss_as_run": ("the bytes a logit of the way that is named", "placealg fit tp --loss fused"),
}
"""Hypothesis -> as a formula or statement, and where it is assumed."""

HELD_LESS: Mapping[str, tuple[str, str]] = {
    "even_shares": ("Where rows do not divide, some device holds a larger share than is printed.",
                    "[shards] pad says how shares are filled up, and then they are counted as they are."),
    "copies_apart": ("What is fetched from another tier is none: it arrives in its place in the copy.",
                     "A runtime that gathers into a buffer of which the shard is a part holds w/n bytes less."),
    "units_whole": ("That of a strategy whose `lifetime` is `leaf` is held for one op.",
                    "FSDP2 gathers the head again only when the loss's own backward is done, and holds less there."),
    "gradients_rest": ("Megatron-LM and DeepSpeed hold them so, and so does PyTorch from the second microbatch on.",
                       "zero_grad of PyTorch drops them: where the most is held as the backward of the first "
                       "microbatch begins, a step of one microbatch holds g bytes a parameter less."),
    "fresh_results": ("What an op reads is held until the op is done, unless nothing reads it later.",
                      "A kernel that overwrites what it reads, or an op that is fused with the next, holds less."),
    "saved_as_listed": ("`placealg model NAME` lists what is saved.",
                        "A fused kernel that computes a part again, or keeps it in fewer bytes, holds less; a region "
                        "that is M, and act_linear, act_norm and act_function in [types], say so."),
    "loss_as_run": ("The logits are the largest tensor of many steps, and the ways to run a loss differ by them.",
                    "Where another way is taken, --loss names it, and its bytes are counted."),
    "balanced_experts": (
        "Costs assume it of a program that splits experts; runs and proofs do not.",
        "Where a router sends more to some experts than to others, their devices hold and send more than is printed."),
}
"""Hypothesis of what is counted -> what it means where it does not hold."""

THEOREM: Mapping[str, tuple[tuple[str, str, str], str, str, str]] = {
    "forward and backward": (
        ("It says when the ops of a step may be distributed: if every op reads what is exact, and its backward does, "
         "then a device computes what the single device computes, on the elements that it holds.",
         "Exact means: every contribution of every sum counted once, no partial sum into a nonlinear op, statistics "
         "over whole rows, random draws keyed by logical indices.",
         "The obligation `forward` is this, op by op, for every model with an op graph."),
        "what is added to a parameter's gradient on a device = the sum over the paths that it holds",
        "placealg prove tp_sp --model gpt: the instances of `forward` are its ops",
        "proofs/theorems/forward_backward.py, which runs"),
    "gradient and state": (
        ("It says that two conditions on a program are exactly what equal training runs need.",
         "GI, gradient integrity: at every live update the weight of every unit is the reference's, on defined values, "
         "with exactly the reference's transforms; SC, state consistency: every observed read of a state sees the "
         "reference's version.",
         "Sufficiency is an induction over steps; necessity gives, for a failing weight or view, a model and an update "
         "that tell the runs apart."),
        "GI and SC  iff  for all models, updates, initial states and batches the observed runs are equal",
        "zero1_publish_dropped breaks SC alone: its gradients are right, its parameters are stale",
        "proofs/theorems/equivalence.py, which runs; GI_SC_iff_equal in proofs/coq/Equivalence.v"),
}
"""Part of the theorem -> sentences, statement, example, source."""

REPORT: Mapping[str, tuple[tuple[str, ...], str]] = {
    "PROVED": ((
        "PROVED says that the distributed step is the single device's, for all sizes where the class beside it is "
        "PARAMETRIC or CUTOFF.",
        "It rests on the hypotheses under `assuming`, and leaves out what stands under `not covered`.",
        "The exit code is 0."), "placealg prove zero3"),
    "REFUTED": ((
        "REFUTED says that an obligation does not hold at the sizes of the counterexample: mostly that some rank ends "
        "with another number than the single device, else that ranks wait forever, that memory is used too early, or "
        "that a sum is taken in fewer bits than was said.",
        "The counterexample was followed on the program before it is printed: it shows what was got, and what is "
        "wanted.",
        "The exit code is 1, or 0 where the file expects it."), "placealg museum"),
    "UNDECIDED": ((
        "UNDECIDED says that neither was shown: a solver gave up, or a counterexample did not replay.",
        "It is no pass: the exit code is 3.",
        "A program that a strategy derives is never undecided; one that was edited may be."),
        "placealg prove FILE, with an edit that no rule follows"),
    "PARAMETRIC": ((
        "PARAMETRIC is the class of a proof for every number of ranks, microbatches, layers and steps at once.",
        "It is decided over symbols, by data or a solver, and no size is tried.",
        "The other classes are CUTOFF and BOUNDED."), "placealg prove zero3"),
    "BOUNDED": ((
        "BOUNDED is the class of a verdict at given sizes: a counterexample, or the sizes that a file fixes.",
        "A proof of that class says nothing of other sizes; a refutation needs no more than one.",
        "The other classes are PARAMETRIC and CUTOFF."), "placealg museum"),
    "kernel": ((
        "The line `kernel` says whether a checker that Coq proved sound, and that shares no rule with the prover, "
        "accepts the program as it is printed for it.",
        "accepted: the theorem `check_sound` says of this program what the obligations behind it say; not accepted "
        "refutes nothing, since the checker is sound and not complete; not checked names what its language lacks.",
        "`prove STRATEGY --coq` has coqc check the program itself; docs/sceptic.md asks what the theorem could fail to "
        "say."), "placealg prove zero3 --coq"),
    "assuming": ((
        "Under `assuming` stand the hypotheses of a verdict, each by its name.",
        "`placealg explain equal_counts` tells one of them.",
        "Where a hypothesis does not hold of a run, the verdict says nothing of it."), "placealg prove dp"),
    "lemmas": ((
        "Under `lemmas` stand the laws of sums over ranks on which a proof rests, where none is written out.",
        "Each is proved by itself, by induction over the ranks or as an essay of proofs/theorems says.",
        "`placealg explain sum_of_owner` tells one of them."), "placealg prove zero3"),
    "not covered": ((
        "Under `not covered` stand the things that no obligation of this verdict speaks of.",
        "Some are never covered, as the order of floating point; some since the strategy does not say them.",
        "A run can be wrong in each of them, beside PROVED."), "placealg prove dp"),
    "checked by": ((
        "The line `checked by` names what decided the formulas of a verdict: data, or a solver with its version.",
        "A certificate has them as files, which a second solver decides anew.",
        "`placealg prove STRATEGY --certificate DIR` writes one, and `placealg recheck DIR` verifies it."),
        "placealg recheck DIR"),
}
"""A word of a verdict's report -> its sentences, and an example."""

CUTOFF_SAYS = (
    "An identity that is polynomial in the size n of an axis, of degree d at most, holds for every n if it holds at "
    "d + 1 sizes, because a polynomial of degree d has at most d roots.",
    "The second engine bounds d by counting the reductions, divisors and data axes that raise it, and writes the axis "
    "out rank by rank at d + 1 distinct primes, at which all positions that a question speaks of can differ; smaller "
    "sizes are tried one by one.",
    "A proof that rests on it is of class CUTOFF.",
)

DTENSOR = "https://docs.pytorch.org/docs/stable/distributed.tensor.html"
NCCL = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"

MODE_SOURCES: Mapping[str, str] = {
    "R": "Li et al., PyTorch Distributed, arXiv 2006.15704",
    "S": "Rajbhandari et al., ZeRO, arXiv 1910.02054; Shoeybi et al., Megatron-LM, arXiv 1909.08053",
    "S*": "Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5.3; Zhao et al., FSDP, arXiv 2304.11277",
    "M": "Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174, of activations",
    "O": "Ren et al., ZeRO-Offload, arXiv 2101.06840; Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857",
}
"""Mode -> where it was published."""

MODE_FORMULAS: Mapping[str, str] = {
    "R": "at rest 1, in use 1", "S": "at rest 1/n, in use 1/n", "S*": "at rest 1/n, in use 1 for one unit at a time",
    "M": "at rest 0, in use 1 for one unit at a time", "O": "at rest 0 on the device; the host holds 1 or 1/n",
}
"""Mode -> the parts of a state that a device holds."""

KIND_FORMULAS: Mapping[str, str] = {
    "I": "x(c) = v on every rank c, and a gradient counts once", "P": "v = Σ over the ranks c of x(c)",
    "R": "x(c) = v on every rank c; the gradient is the sum of those of all uses",
    "S": "v[i] = x(own(i))[i]: element i is its owner's",
}
"""Value type -> what the value v is, of the numbers x(c) on the ranks c of an axis."""
