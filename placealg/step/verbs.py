"""What each verb means: one table, which the simulator executes, the prover abstracts and users read.

The machine. On every rank, every value of every parameter group is a table element -> number. An element that
has no entry is *not held*. A number that no event defined is *garbage*. Storage is kept apart by tier.
`where` selects (rank, element) pairs; outside them nothing changes. own(i) is the owner of element i
along an axis, under the event's layout. step, rng, count and a group's partial norm have no elements and no tier:
coordinate 0 of every axis owns them. `at` says nothing outside the loop over microbatches.

Before init, weight is the initial value on the mesh's first rank and garbage elsewhere; before resume it is garbage
everywhere. Nothing else is held. Activations, the loss among them, live for one microbatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from placealg.placement import Kind


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: local or collective, the values it applies to, whether it needs axes, its meaning.

    `kinds` are the kind that a collective takes along its axes and the one that it makes of it (a reduction may say
    another): a row of placement.REDISTRIBUTIONS. `origin` is the value that it reads in place of its own.
    """

    name: str
    collective: bool
    values: tuple[str, ...]
    needs_axes: bool
    meaning: str
    kinds: tuple[Kind, Kind] | None = None
    origin: str = ""


_STATES = ("weight", "master", "moments")
_GRADIENTS = ("grad", "grad_sum")

VERBS: Mapping[str, Verb] = {v.name: v for v in (
    Verb("broadcast", True, (*_STATES, "step", "rng"), True,
         "every rank's copy becomes a copy of what the rank with coordinate `root` on each of the axes holds; garbage "
         "if there is none"),
    Verb("slice", False, (*_STATES, *_GRADIENTS), True,
         "a rank keeps the elements that it owns along the axes and drops the others"),
    Verb("free", False, (*_STATES, *_GRADIENTS), False,
         "a rank drops what it does not own along the axes (everything, without axes): the gathered copy ends"),
    Verb("gather", True, ("weight",), True,
         "element i becomes, on every rank, what the owner of i along the axes holds; garbage if the owner lacks it",
         kinds=(Kind.S, Kind.R)),
    Verb("all_gather", True, ("master", "moments", *_GRADIENTS), True,
         "element i becomes, on every rank, what the owner of i along the axes holds; garbage if the owner lacks it",
         kinds=(Kind.S, Kind.I)),
    Verb("assign", False, (*_STATES, "grad_sum", "step", "rng"), False,
         "the value becomes a copy of its source: master of weight, weight of master, grad_sum of grad; moments, step "
         "and rng of their initial value; not held where the source is not"),
    Verb("zero", False, ("grad_sum",), False, "every element becomes 0, and is held"),
    Verb("compute", False, ("activation", "loss", "count"), False,
         "a unit runs on the rank's tokens of the microbatch. Forward reads its weights, the stream rng and its "
         "input, and keeps them for backward. Backward reads the weights, what forward kept and the gradient of its "
         "output; the first use of a parameter in backward order sets grad, later uses add to it. Where what they read "
         "is missing, gradients are garbage. The loss reads the last unit's output; it is the sum over the local "
         "tokens, divided by the divisor, and backward starts from it. A count is the rank's tokens: of the microbatch "
         "inside the loop, of all microbatches in prepare"),
    Verb("scale", False, ("loss", *_GRADIENTS), False,
         "what is held is divided by the divisor (garbage where that is 0 or not held); for a loss that has been "
         "computed: the value from which backward starts"),
    Verb("accumulate", False, ("grad_sum",), False,
         "grad is added to every held element of grad_sum; garbage where grad is not held", origin="grad"),
    Verb("reduce", True, _GRADIENTS, True,
         "the sum (or mean) over the axes, divided by the divisor: garbage where only some peers hold the element, not "
         "held where none does. to = 'I': on every rank; to = 'S': only on the owner along the axes",
         kinds=(Kind.P, Kind.I)),
    Verb("all_reduce", True, ("norm", "count"), True,
         "the sum (or mean) over the axes, on every rank, in place, of the count or of every group's partial norm: "
         "garbage where only some peers hold it, not held where none does", kinds=(Kind.P, Kind.I)),
    Verb("norm", False, ("norm",), False,
         "on every rank, the group's partial becomes the sum of squares of those elements of grad_sum that the rank "
         "holds and `where` selects: 0 where there are none", origin="grad_sum"),
    Verb("clip", False, ("grad_sum",), False,
         "what is held is multiplied by the clip factor, a function of the sum of all groups' partial norms on the "
         "rank: garbage where one is missing"),
    Verb("update", False, ("master", "step", "rng"), False,
         "master and moments, where master is held, become the optimizer's function of master, moments, grad_sum and "
         "step; garbage where an input is not held. A per-matrix optimizer also reads its whole_reads over the whole "
         "matrix. step counts the finished steps: its update moves it one up, as that of rng moves to the next stream"),
    Verb("publish", True, ("weight",), False,
         "weight becomes what master is on the owner along the axes (garbage if the owner lacks it); "
         "without axes: what master is on the rank, where held", kinds=(Kind.S, Kind.I), origin="master"),
    Verb("offload", False, (*_STATES, *_GRADIENTS), False, "the host copy becomes a copy of the device's source"),
    Verb("fetch", False, (*_STATES, *_GRADIENTS), False, "the device copy becomes a copy of the host's"),
    Verb("store", False, ("weight", "moments", "step", "rng"), False, "what is held goes to the checkpoint"),
    Verb("load", False, ("weight", "moments", "step", "rng"), False,
         "the value becomes what the checkpoint holds for the rank, and nothing else is held"),
)}
"""Verb -> its meaning. A collective needs every rank of its group: `where` may not split one."""

SOURCES: Mapping[str, str] = {"master": "weight", "weight": "master", "grad_sum": "grad"}
"""Value -> what `assign` copies when the event names no source; other values start from their initial one."""

BYTES: Mapping[str, str] = {"weight": "w", "master": "4", "moments": "o - 4", "grad": "g", "grad_sum": "g"}
"""Value -> bytes per element where it is held: 4 of the o bytes of the optimizer state are the fp32 master copy.

A gradient that crosses the mesh takes `wire` bytes per element.
"""
