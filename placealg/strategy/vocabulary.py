"""The names that strategies use: dims that mean something, orders, lifetimes, optimizers, losses, element sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NONE = "none"
"""What stands for a dim in an entry that keeps the ops of a region whole."""

EACH = "each"
"""What stands for a dim where every rank runs the ops of a region whole, each on its own part of the gradient."""

AS_TYPED = "as_typed"
"""What sums are asked to be of which nothing is said: of the types that [types] names for them."""

AS_SENT = "as_sent"
"""The type in which a collective adds where nothing is said: that of its wire."""

RING, TREE = ALGORITHMS = ("ring", "tree")
"""How a collective adds n values: n - 1 additions one after the other, or in pairs."""

LAYER = "layer"
"""The dim of the model's depth: an axis that names it, and nothing else, is a pipeline."""

IN_A_V = ("zb_v", "dualpipe_v")
"""The orders of a pipeline in which a rank has one chunk of the first half of the model, and one of the second."""

DATA_DIMS = ("batch", "seq", "seq_kv")
"""The dims of tokens; no parameter has one of them."""

LIFETIMES = ("leaf", "use", "microbatch", "step")
"""How long a gathered copy lives, from the shortest: one leaf module's ops, a unit's, a microbatch, a step."""
GATHERS = ("at_once", "ring")
REDUCTIONS = ("reduce_scatter", "all_reduce")
PADS = ("none", "rows", "elements")
AVERAGES = ("none", "optimizer", "parameters")
"""As which state an average of the weights rests; none: there is no average."""

OPTIMIZERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "adamw": ("elementwise", ()),
    "adam": ("elementwise", ()),
    "sgd": ("elementwise", ()),
    "muon": ("matrix", ("grad_sum", "moments")),
    "adafactor": ("matrix", ("grad_sum", "master", "moments")),
    "lamb": ("matrix", ("grad_sum", "master", "moments")),
}
"""Optimizer -> (locality, the values of which one element's update reads the whole matrix).

Adafactor scales its step by the root mean square of the parameter and clips it by that of the update (Shazeer and
Stern 2018); LAMB's trust ratio is a quotient of their norms (You et al. 2020).
"""

WITH_VECTORS = ("muon",)
"""The per-matrix optimizers beside which AdamW updates what is no matrix, such as biases, and tables of tokens."""

ONE_MOMENT = ("muon",)
"""The optimizers that keep one moment of each element, a momentum: Adam keeps two, which `o` counts."""

DOUBTED: Mapping[str, str] = {
    "adafactor": "Adafactor keeps less than Adam's two moments, which o counts: a row and a column of the second one "
                 "(Shazeer and Stern 2018); [types] o says what yours holds",
    "sgd": "SGD keeps one momentum or none, and o counts Adam's two moments; [types] o says what yours holds",
}
"""Optimizer -> why the bytes of its state are in doubt; LAMB keeps Adam's two moments (You et al. 2020)."""

LOSSES: Mapping[str, Mapping[str, Any]] = {
    "mean_of_means": {"divisor": "tokens", "count_axes": None, "assume": ("equal_counts",)},
    "token_mean": {"divisor": "count", "count_axes": "data", "assume": ()},
    "sum": {"divisor": "one", "count_axes": "data", "assume": (), "reference": "sum"},
}
"""Loss preset -> divisor of the local sum, axes over which the count is summed, hypotheses."""

NORMALISING = ("preset", "divisor", "count_axes", "assume", "term_divisor", "term_axes")
"""The keys of [loss] that say by what sums are divided, and what that assumes; others say what is summed."""

RANK = "adapter_rank"
"""The symbol of the rank of adapters."""

WIRE_W = "wire_w"
"""The element size of gathered weights: w where a strategy is silent."""

USE, ACC = "use", "acc"
"""The element sizes of gathered copies, and of gradients that are not reduced yet: w and g where a strategy is silent.
"""

ACT_LINEAR, ACT_NORM, ACT_FUNCTION = "act_linear", "act_norm", "act_function"

KEPT_FOR = (ACT_LINEAR, ACT_NORM, ACT_FUNCTION)
"""The element sizes of what ops of one class alone keep: products with parameters, norms, elementwise functions and
products; act where a strategy is silent."""

AVG = "avg"
"""The element size of an average of the weights: 4 where a strategy is silent."""

OVERLAPS = ("fsdp2", "deepspeed", "megatron")
"""Whose streams and waits `[overlap] waits` may name."""

BUFFERED, FOUR = "buffered", "four"

POSTED = (BUFFERED, "alone", "grouped", FOUR)
"""How the stages of a pipeline may post their messages; a send that is not buffered waits for its receiver."""
