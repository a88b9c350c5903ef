"""Collectives as PyTorch dispatches them: the verb, the group, the operator, and which tensor goes where."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from placealg.measure.count import COLLECTIVES, group_ranks
from placealg.watch.recorder.shadows import Region

SILENT = ("wait_tensor", "wait_tensors", "barrier", "monitored_barrier_", "check_for_nan", "_wrap_tensor_autograd",
          "mesh_get_process_group")
"""Ops of these namespaces that move nothing."""

VERBS: Mapping[str, str] = {
    **COLLECTIVES,
    "all_reduce_coalesced_": "all_reduce", "allgather_coalesced_": "all_gather",
    "reduce_scatter_tensor_out": "reduce_scatter", "reduce_": "reduce", "gather_": "gather_to",
    "gather_into_tensor_": "gather_to", "scatter_": "scatter",
    "isend": "send", "recv_": "recv", "irecv": "recv", "recv_any_source_": "recv", "batch_p2p_ops": "batch_p2p",
}
"""Op -> the collective that it is."""

IN_PLACE = ("allreduce_", "all_reduce_", "allreduce_coalesced_", "all_reduce_coalesced_", "broadcast_", "reduce_",
            "recv_", "recv_any_source_", "irecv")

FOLLOWED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""Verbs through which an element is followed; what comes out of another is told as that collective's, by name."""

OPERATORS = {0: "sum", 1: "mean", 2: "product", 3: "min", 4: "max", 8: "premultiplied sum"}
"""torch.distributed's number of a reduction -> its name; of a premultiplied sum the factor is not told."""

_OUTPUTS = ("output_tensors", "output_tensor", "output_lists", "outputs", "output", "out")
_INPUTS = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor")


@dataclass(frozen=True)
class Call:
    """One call of a collective: its verb and operator, the ranks of its group, a rank of its own (root or peer).

    `pairs` are what goes in and comes out together: (inputs, outputs). `divisor` is what a premultiplied sum divides
    its parts by.
    """

    verb: str
    op: str
    ranks: tuple[int, ...]
    root: int
    pairs: tuple[tuple[tuple[Tensor, ...], tuple[Tensor, ...]], ...]
    factor: float = 1.0


def call_of(name: str, func: Any, args: Any, kwargs: Any, made: Any) -> Call | None:
    """The call that an op was; None if it moves nothing or is not known."""
    if name not in VERBS:
        return None
    given = {a.name: v for v, a in zip(args, func._schema.arguments, strict=False)} | dict(kwargs)
    verb = VERBS[name]
    read = next((given[n] for n in _INPUTS if n in given), None)
    written = read if name in IN_PLACE else next((given[n] for n in _OUTPUTS if n in given), made)
    if verb == "send":
        written = []
    if verb == "recv":
        read = []
    op, factor = _operator(given.get("reduce_op"), verb)
    root = given.get("root_rank", given.get("dst", given.get("src", -1)))
    ranks = group_ranks(given)
    root = ranks[root] if verb in ("broadcast", "reduce", "send", "recv") and 0 <= root < len(ranks) else int(root)
    return Call(verb, op, ranks, root, tuple(_pairs(verb, read, written)), factor)


def _pairs(verb: str, read: Any, written: Any) -> list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """What goes together: tensor by tensor, or lists of them where one side has one per rank."""
    reads = list(read) if isinstance(read, list | tuple) else [read]
    writes = list(written) if isinstance(written, list | tuple) else [written]
    writes = [w for w in writes if isinstance(w, Tensor | list | tuple)]
    if verb == "send":
        return [((r,), ()) for r in reads]
    if verb == "recv" or (verb == "scatter" and not any(map(_flat, reads))):  # which the root alone gives
        return [((), _flat(w)) for w in writes]
    if verb == "all_to_all" and len(reads) > 1:
        return [(tuple(reads), tuple(writes))]
    return [(_flat(r), _flat(w)) for r, w in zip(reads, writes, strict=False)]


def source_of(call: Call, rank: int, k: int, given: list[Region], reads: Any,
              writes: Any) -> tuple[int, int, tuple[Region, ...]]:
    """(place of the first element, elements per rank of a gather, the region that output `k` comes from)."""
    if call.verb not in FOLLOWED or not given:
        return -1, 0, ()
    me = call.ranks.index(rank) if rank in call.ranks else -1
    region = given[0][0].contiguous().flatten(), given[0][1].contiguous().flatten()
    if call.verb == "all_gather":
        if len(writes) > 1:
            return (0 if k == me else -1), 0, (region,)
        return me * region[0].numel(), max(region[0].numel(), 1), (region,)
    if call.verb == "reduce_scatter":
        if len(reads) > 1:
            return 0, 0, ((given[me][0].contiguous().flatten(), given[me][1].contiguous().flatten()),)
        return me * writes[k].numel(), 0, (region,)
    if call.verb == "broadcast":
        return (0 if call.root == rank else -1), 0, (region,)
    return 0, 0, (region,)


def work_of(func: Any, made: Any) -> Any:
    """What a caller in Python waits for, of a collective that it has started; None if nothing of it is heard.

    DistributedDataParallel starts its collectives in C++, and waits for them there.
    """
    last = made[-1] if isinstance(made, list | tuple) and made else made
    if func.namespace != "c10d" or not isinstance(last, torch.ScriptObject):
        return None
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_filename.endswith("distributed_c10d.py"):
            return Work.unbox(last)
        frame = frame.f_back
    return None


_FRAMES = 12
"""How far above an op the function of torch.distributed stands that has called it, at most."""


def _flat(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _operator(given: Any, verb: str) -> tuple[str, float]:
    """(sum, mean, max, ..., the number by which parts are multiplied first)."""
    if given is None:
        return ("sum" if verb in ("all_reduce", "reduce_scatter", "reduce") else ""), 1.0
    if isinstance(given, str):
        word = given.lower()
        return {"avg": "mean"}.get(word, word), 1.0
    return (OPERATORS.get(int(given.op()), "unknown") if isinstance(given, torch.ScriptObject) else str(given)), 1.0
