"""What stands behind each rule of the prover: theorems of proofs/coq by file and name, or an essay of proofs/theorems.

A theorem says that a rule of that form is right, for all sizes; that the Python rule has that form is held against the
simulator, and some of it against the theorem's own table. A rule behind which none stands says what holds it. Theorems
of `kernel/` are of the checker that is asked beside the prover: they prove the same rule of the programs that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping

Names = Mapping[str, tuple[str, ...]]
"""A rule -> `File.v: theorem`, an essay's file, or what holds it instead."""

_COPIES, _GATHERED, _SUMMED, _MASKED = ("Versions.v: versions_sound", "Rules.v: gathered_sound",
                                        "Rules.v: reduced_sound", "Rules.v: masked_sound")
_SENT, _SLOTS, _OPS = "kernel/Sends.v: send_sound", "kernel/Slots.v: instrs_sound", (
    "kernel/Kinds.v: einsum_sound", "kernel/Kinds.v: row_sound", "kernel/Infer.v: infer_sound")
_LOOPS, _WHOLE = "kernel/Parts.v: parts_sound", "kernel/Sound.v: check_sound"

STATES: Names = {
    "broadcast": (_COPIES, _SENT), "slice": (_MASKED, _COPIES, _SENT), "free": (_MASKED, _COPIES, _SLOTS),
    "gather": (_GATHERED, _COPIES, _SENT), "all_gather": (_GATHERED, _COPIES, _SENT), "assign": (_COPIES, _SLOTS),
    "zero": ("Microbatches.v: accumulated", _LOOPS), "offload": (_COPIES, _SLOTS), "fetch": (_COPIES, _SLOTS),
    "compute": _OPS, "scale": ("Sums.v: sum_times", "kernel/Infer.v: infer_sound"),
    "accumulate": ("Microbatches.v: accumulated", "Microbatches.v: not_cleared", _LOOPS), "reduce": (
        _SUMMED, "Microbatches.v: reduced_once_or_each_time", _SENT), "all_reduce": (_SUMMED, _SENT),
    "norm": ("Sums.v: partition_sum", "Equivalence.v: necessary_counted", "kernel/Kinds.v: einsum_sound"),
    "clip": ("Equivalence.v: same_norm",),
    "update": (_COPIES, "Equivalence.v: sufficient", "kernel/Kinds.v: row_sound"),
    "publish": (_GATHERED, _COPIES, _SENT), "store": (_COPIES, _SLOTS), "load": (_COPIES, _SLOTS)}
"""The transfer rules of states of parameters, by verb."""

TENSORS: Names = {
    "free": (_COPIES, _SLOTS), "all_gather": (_GATHERED, "Moves.v: move_sound", _SENT),
    "all_reduce": (_SUMMED, "Moves.v: move_sound", _SENT),
    "reduce_scatter": (_SUMMED, _MASKED, "Moves.v: rs_ag", _SENT), "all_to_all": (_GATHERED, _MASKED, _SENT),
    "slice": (_MASKED, _SENT), "pad": ("Moves.v: move_adjoint",),
    "scale": ("Sums.v: sum_times", "kernel/Infer.v: infer_sound"), "shift": ("Rings.v: ring_once", "Rings.v: ring_sum"),
    "offload": (_COPIES, _SLOTS), "fetch": (_COPIES, _SLOTS)}
"""The transfer rules of tensors and of their gradients, by verb."""

OBLIGATIONS: Names = {
    "partition": ("Sums.v: partition_sum",), "forward": ("forward_backward.py", "local_types.py", *_OPS[:2]),
    "gradient": ("Equivalence.v: GI_SC_iff_equal", "forward_backward.py", _WHOLE),
    "normalizer": ("Equivalence.v: GI_SC_iff_equal", _WHOLE), "view": ("Equivalence.v: GI_SC_iff_equal",
                                                                       "Versions.v: versions_sound", _WHOLE),
    "update": ("Equivalence.v: necessary_update", "Equivalence.v: necessary_counted", _WHOLE),
    "invariant": ("Versions.v: steps_sound", _WHOLE), "init": ("Versions.v: steps_sound", _WHOLE),
    "random": ("no theorem: a draw is a function of its key, which is compared",),
    "schedule": ("Pipeline.v: any_order", "schedules.py"),
    "vacuity": ("no theorem: the solver shows a model of the premises",),
    "race": ("kernel/Reorder.v: race_free_printed", "kernel/Reorder.v: race_free_overlapped",
             "kernel/Reorder.v: race_free_correct"),
    "alias": ("no theorem: what a read finds in printed order is asked of each slot",)}
"""What is proved of a program, by obligation."""
