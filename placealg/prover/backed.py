"""What stands behind each rule of the prover: theorems of proofs/coq by file and name, or an essay of proofs/theorems.

A theorem says that a rule of that form is right, for all sizes; that the Python rule has that form is held against the
simulator, and some of it against the theorem's own table. A rule behind which none stands says what holds it.
"""

from __future__ import annotations

from collections.abc import Mapping

Names = Mapping[str, tuple[str, ...]]
"""A rule -> `File.v: theorem`, an essay's file, or what holds it instead."""

_COPIES, _GATHERED, _SUMMED, _MASKED = ("Versions.v: versions_sound", "Rules.v: gathered_sound",
                                        "Rules.v: reduced_sound", "Rules.v: masked_sound")

STATES: Names = {
    "broadcast": (_COPIES,), "slice": (_MASKED, _COPIES), "free": (_MASKED, _COPIES), "gather": (_GATHERED, _COPIES),
    "all_gather": (_GATHERED, _COPIES), "assign": (_COPIES,), "zero": ("Microbatches.v: accumulated",),
    "offload": (_COPIES,), "fetch": (_COPIES,), "compute": (
        "no theorem: ops are followed one by one, beside the simulator",), "scale": ("Sums.v: sum_times",),
    "accumulate": ("Microbatches.v: accumulated", "Microbatches.v: not_cleared"), "reduce": (
        _SUMMED, "Microbatches.v: reduced_once_or_each_time"), "all_reduce": (_SUMMED,),
    "norm": ("Sums.v: partition_sum", "Equivalence.v: necessary_counted"), "clip": ("Equivalence.v: same_norm",),
    "update": (_COPIES, "Equivalence.v: sufficient"), "publish": (_GATHERED, _COPIES), "store": (_COPIES,),
    "load": (_COPIES,)}
"""The transfer rules of states of parameters, by verb."""

TENSORS: Names = {
    "free": (_COPIES,), "all_gather": (_GATHERED, "Moves.v: move_sound"),
    "all_reduce": (_SUMMED, "Moves.v: move_sound"),
    "reduce_scatter": (_SUMMED, _MASKED, "Moves.v: rs_ag"), "all_to_all": (_GATHERED, _MASKED), "slice": (_MASKED,),
    "pad": ("Moves.v: move_adjoint",), "scale": ("Sums.v: sum_times",), "shift": ("Rings.v: ring_once",
                                                                                  "Rings.v: ring_sum"),
    "offload": (_COPIES,), "fetch": (_COPIES,)}
"""The transfer rules of tensors and of their gradients, by verb."""

OBLIGATIONS: Names = {
    "partition": ("Sums.v: partition_sum",), "forward": ("forward_backward.py", "local_types.py"),
    "gradient": ("Equivalence.v: GI_SC_iff_equal", "forward_backward.py"),
    "normalizer": ("Equivalence.v: GI_SC_iff_equal",), "view": ("Equivalence.v: GI_SC_iff_equal",
                                                               "Versions.v: versions_sound"),
    "update": ("Equivalence.v: necessary_update", "Equivalence.v: necessary_counted"),
    "invariant": ("Versions.v: steps_sound",), "init": ("Versions.v: steps_sound",),
    "random": ("no theorem: a draw is a function of its key, which is compared",),
    "schedule": ("Pipeline.v: any_order", "schedules.py"),
    "vacuity": ("no theorem: the solver shows a model of the premises",)}
"""What is proved of a program, by obligation."""
