"""The meaning of every verb: one table, which the simulator executes, the prover abstracts and users read.

The machine. On every rank, every value of every parameter group is a table element -> number. An element that has no
entry is *not held*. A number that no event defined is *garbage*. Storage is kept apart by tier. `where` selects (rank,
element) pairs; outside them nothing changes. own(i) is the owner of element i along an axis, under the event's layout.
step, rng, loss_scale, count, a group's partial norm and its flag skip have no elements and no tier: coordinate 0 of
every axis owns them. `at` has no meaning outside the loop over microbatches.

If a parameter is split along an axis by one of its dims, a rank begins with the elements whose index it owns there, and
holds others while they are gathered along that axis: a collective along another axis then leaves those as they are, a
local event acts on all that the rank holds. Before init, weight is the initial value on the mesh's first rank (along
such axes: on each owner) and garbage elsewhere; before resume it is garbage everywhere. Nothing else is held.
Activations, the loss among them, live for one microbatch.

Whether a number overflows is a predicate of the number. A rank skips the step if it holds a flag skip, of any group,
that is not 0: then its updates of master and step change nothing. A flag stays until it is computed again. The random
stream belongs to the step that ran, skipped or not: its update is never left out.

Tensors of the op graph. A rank holds a *box* of a tensor: for each dim a set of indices; own(d, i) is the owner of
index i of dim d along an axis, the same for all tensors; a rename carries indices over. Data are held whole on every
rank. A copy made by redistribution has a label: T@tp, and T@tp/cp derived from it. Reading T@tp/cp reads T@tp/cp if it
is held, else T@tp, else T. What an op keeps beside its result, such as NAME.mask, is a tensor without copies. Every
(tensor, label) has a gradient, to which backward adds under the label that forward used; reading a gradient takes the
sum over its label and all that derive from it, held where one of them is and garbage where only some are. A gradient to
which nothing was added is 0: of a tensor where the tensor was held, and the grad of a parameter that no use has added
to in the microbatch (of whole units, which are functions of all that they read, both are garbage). Backward reads the
mask of a dropout as forward kept it; a fused attention draws its own again.

Where the order of a pipeline splits the backward, the backward of an op in the phase `backward` adds to the gradients
of its operands but parameters, and in the phase `weights`, which runs later, to those of its parameters.

A pipeline. Along a pipeline axis every instance of a unit has a stage, the one rank that holds its parameters; an event
on one of its tensors acts there alone, in every microbatch, in the order of the schedule. What comes before the
repeated units runs with the first of their instances, the rest with the last. A tied parameter is held on the stages of
all its uses: its events act on those, and a collective along the axis is among them. On any other parameter there is no
collective along the axis: its ranks would wait for those of other stages forever. Events on no tensor and no group run
on every rank; if a stage has several chunks, once in each microbatch, with the first of them, a count with the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from placealg.placement import Kind

VerbName = Literal[
    "broadcast", "slice", "free", "gather", "all_gather", "assign", "zero", "compute", "scale", "accumulate",
    "reduce", "all_reduce", "reduce_scatter", "all_to_all", "shift", "send", "recv", "pad", "norm", "clip",
    "update", "publish", "offload", "fetch", "store", "load", "join", "copy"]
"""The name of a verb."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: local or collective, the values it applies to, whether it needs axes, its meaning.

    `kinds` are the kinds before and after a collective along its axes (a reduction may name another): a row of
    placement.REDISTRIBUTIONS. `origin` is the value that it reads in place of its own.
    """

    name: VerbName
    collective: bool
    values: tuple[str, ...]
    needs_axes: bool
    meaning: str
    kinds: tuple[Kind, Kind] | None = None
    origin: str = ""


TENSOR, GRADIENT, REGION, SLOT = "a tensor", "a tensor's gradient", "a region", "what enters a repeated unit"
BESIDE = "what an op keeps beside its result"
HANDED_ON, HANDED = "what an instance of a repeated unit passes to the next", "what it receives from the one before"
"""What a verb applies to in addition to the named values."""

LOSS_SCALE = "loss_scale"
"""The state that multiplies the loss, and divides gradients again; divisors name it."""

STATES = ("weight", "master", "moments", "average")
"""The states of a parameter group."""

COUNTERS = ("step", "rng", LOSS_SCALE)
"""The states of no group: one number each, which every rank has from step to step."""

_GRADIENTS = ("grad", "grad_sum")
_TENSORS = (TENSOR, GRADIENT)

MESSAGES = ("send", "recv")
"""The verbs of a pipeline, from stage to stage."""

VERBS: Mapping[str, Verb] = {v.name: v for v in (
    Verb("broadcast", True, (*STATES, *COUNTERS), True,
         "every rank's copy becomes a copy of what the rank with coordinate `root` on each of the axes holds; garbage "
         "if there is none"),
    Verb("slice", False, (*STATES, *_GRADIENTS, *_TENSORS), True,
         "a rank keeps the elements that it owns along the axes (of a tensor: by the dim of `to`) and drops the rest. "
         "Under a layout NAME(AXIS) it keeps as many, but which ones, each rank along the axis says for itself"),
    Verb("free", False, (*STATES, *_GRADIENTS, TENSOR, BESIDE, REGION), False,
         "a rank drops what it does not own along the axes (everything, without axes): the gathered copy ends. Of a"
         " tensor the version on the tier ends, or what an op kept beside its result; of a region all that its ops "
         "made or kept and no op outside it reads, but for the ops that `reads` names, and the versions made for "
         "its ops"),
    Verb("gather", True, ("weight",), True,
         "element i becomes, on every rank, what the owner of i along the axes holds; garbage if the owner lacks it",
         kinds=(Kind.S, Kind.R)),
    Verb("all_gather", True, ("master", "moments", "average", *_GRADIENTS, *_TENSORS), True,
         "element i becomes, on every rank, what the owner of i along the axes (of a tensor: by the dim of `from`) "
         "holds; garbage if the owner lacks it",
         kinds=(Kind.S, Kind.I)),
    Verb("assign", False, (*STATES, "grad_sum", *COUNTERS, SLOT), False,
         "the value becomes a copy of its source: master of weight, weight of master, average of weight, grad_sum of "
         "grad; moments, step, rng and loss_scale of their initial value; not held where the source is not. What "
         "enters a repeated unit is the version read in its first instance and the unit's last tensor of the "
         "instance before in later ones; its gradient is added there"),
    Verb("zero", False, ("grad_sum",), False, "every element becomes 0, and is held"),
    Verb("compute", False, ("activation", "loss", "count", "skip", "grad", *_TENSORS), False,
         "a unit runs on the rank's tokens of the microbatch. Forward reads its weights, the stream rng and its "
         "input, and keeps them for backward. Backward reads the weights, what forward kept and the gradient of its "
         "output; the first use of a parameter in backward order sets grad, later uses add to it. Where what they "
         "read is missing, gradients are garbage. The loss reads the last unit's output; it is the sum over the "
         "local tokens, divided by the divisor, and backward starts from it. A count is the rank's tokens: of the "
         "microbatch inside the loop, of all microbatches in prepare; a step forgets the counts of another. A "
         "group's flag skip becomes, on every rank, 1 if an element of grad_sum that the rank holds and `where` "
         "selects overflows, else 0. The grad of a group of statistics becomes the sum, over the rank's tokens of "
         "the microbatch, of a function of what entered the unit in forward (or the largest of one), divided by the "
         "divisor; garbage where nothing did. In an op graph it becomes what the rank holds of the tensor that moves "
         "the group. Of a tensor: its op runs on what the rank holds of the versions `reads`: elementwise on indices "
         "that all operands hold, contracted dims and row statistics over the indices held (cross entropy with axes "
         "merges its statistics over them); in backward it runs again. Of a tensor's gradient: the backward of the "
         "tensor's op, which adds to the gradients of the operands"),
    Verb("scale", False, ("loss", *_GRADIENTS, *_TENSORS), False,
         "what is held is divided by the divisor (garbage where that is 0 or not held); for a loss that has been "
         "computed: the value from which backward starts"),
    Verb("accumulate", False, ("grad_sum",), False,
         "grad is added to every held element of grad_sum, or with op = max the larger of the two stays; garbage where "
         "grad is not held", origin="grad"),
    Verb("reduce", True, _GRADIENTS, True,
         "the sum (or mean, or of statistics that are one the max) over the axes, divided by the divisor "
         "(premultiplied: each part is divided before the sum, by the divisor of its rank): garbage where only some "
         "peers hold the element, not held where none does. to = 'I': on every rank; to = 'S': only on the owner "
         "along the axes",
         kinds=(Kind.P, Kind.I)),
    Verb("all_reduce", True, ("norm", "skip", "count", *_TENSORS), True,
         "the sum (or mean, or of tensors premultiplied, of flags the max) over the axes, on every rank, in place, of "
         "the count, of every group's partial norm or flag, or of a tensor: garbage where only some peers hold it, not "
         "held where none does", kinds=(Kind.P, Kind.I)),
    Verb("reduce_scatter", True, _TENSORS, True,
         "the sum (mean, premultiplied) over the axes, on the rank that owns the index of the dim of `to`; garbage "
         "where only some peers hold it", kinds=(Kind.P, Kind.S)),
    Verb("all_to_all", True, _TENSORS, True,
         "gathered by the dim of `from`, then sliced by the dim of `to`", kinds=(Kind.S, Kind.S)),
    Verb("shift", True, _TENSORS, True,
         "a ring: in as many turns as there are other ranks along the axis, each rank passes a block to the next. From "
         "S(dim), the blocks that ranks own: every rank then holds every element, as after an all_gather. From P, a "
         "block of sums to which each rank adds its part: every rank then holds the sum of those indices of the dim of "
         "`to` that it owns, as after a reduce_scatter. What is read of it is read block by block"),
    Verb("send", False, (HANDED_ON,), True,
         "a message to the stage of the neighbouring instance, forward the next one's and backward the last one's, if "
         "that is another stage: what leaves the instance, or the gradient of what entered it; the sender goes on, "
         "and a program in which nobody receives the message does not end"),
    Verb("recv", False, (HANDED,), True,
         "if the neighbouring instance, forward the last and backward the next, runs on another stage, what it sent "
         "becomes what enters this one, or the gradient of what leaves it; a rank waits until the message is there, "
         "which is received once"),
    Verb("pad", False, _TENSORS, True,
         "the rank holds the whole dim of `from`: 0 where it does not own the index along the axes"),
    Verb("norm", False, ("norm",), False,
         "on every rank, the group's partial becomes the sum of squares of those elements of grad_sum that the rank "
         "holds and `where` selects: 0 where there are none", origin="grad_sum"),
    Verb("clip", False, ("grad_sum",), False,
         "what is held is multiplied by the clip factor, a function of the sum of all groups' partial norms on the "
         "rank: garbage where one is missing"),
    Verb("update", False, ("master", "average", *COUNTERS), False,
         "master and moments, where master is held and the rank does not skip the step, become the optimizer's "
         "function of master, moments, grad_sum and step; garbage where an input is not held. A per-matrix optimizer "
         "also reads its whole_reads over the whole matrix. The step that master takes is divided by the divisor. step "
         "counts the updates of the parameters: its own moves it one up, unless the rank skips the step; that of rng "
         "moves to the next stream. An average, where it is held, becomes a function of itself and of the weight, or "
         "of the master that `from` names, also in a step that is skipped; garbage where that is not held. A "
         "loss_scale becomes a function of itself and of whether the rank skips the step"),
    Verb("publish", True, ("weight",), False,
         "weight becomes what master is on the owner along the axes (garbage if the owner lacks it); "
         "without axes: what master is on the rank, where held", kinds=(Kind.S, Kind.I), origin="master"),
    Verb("offload", False, (*STATES, *_GRADIENTS, TENSOR, BESIDE), False,
         "the host copy becomes a copy of the device's source, or that on the nvme one of the host's. Of a tensor: of "
         "the version that is read under the label, on that tier; not held where that is not"),
    Verb("fetch", False, (*STATES, *_GRADIENTS, TENSOR, BESIDE), False,
         "the device copy becomes a copy of the host's source, or the host's one of that on the nvme. Of a tensor: "
         "likewise; ops, and other redistributions, read what is on the device"),
    Verb("store", False, ("weight", "moments", "average", *COUNTERS), False,
         "what is held goes to the checkpoint"),
    Verb("load", False, ("weight", "moments", "average", *COUNTERS), False,
         "the value becomes what the checkpoint holds for the rank, and nothing else is held"),
)}
"""Verb -> its meaning. A collective needs every rank of its group: `where` may not split one."""

CARRIED: Mapping[str, str] = {"average": "weight"}
"""State of a group that no gradient reaches -> the value that its update takes in, after the step's own update."""

SOURCES: Mapping[str, str] = {"master": "weight", "weight": "master", "average": "weight", "grad_sum": "grad"}
"""Value -> what `assign` copies when the event names no source; other values start from their initial one."""

BYTES: Mapping[str, str] = {"weight": "w", "master": "4", "moments": "o - 4", "average": "4", "grad": "g",
                            "grad_sum": "g"}
"""Value -> bytes per element where it is held: 4 of the o bytes of the optimizer state are the fp32 master copy, and an
average of the weights is fp32, too.

A gradient that crosses the mesh takes `wire` bytes per element.
"""

MOMENT = "Max(o - 8, o/2 - 4)"
"""Bytes per element of the moments where there is one of them: `o` counts two, in 4 bytes each, or in less together."""
