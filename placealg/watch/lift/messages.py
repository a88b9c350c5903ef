"""Collectives and messages, run again between the ranks of a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placealg.watch.lift.field import UNKNOWN, Array, Field
from placealg.watch.lift.trace import Group, Op, Place, Word, places

SPACES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")
"""Namespaces of ops that communicate."""

SILENT = ("wait_tensor", "wait_tensors", "barrier", "monitored_barrier_", "check_for_nan", "_wrap_tensor_autograd",
          "mesh_get_process_group")
"""Ops of these that move nothing."""


@dataclass(frozen=True)
class Message:
    """What a rank hands to a collective: which ranks meet, what it gives, where what comes out of it goes.

    `meet(given by each rank in the order of the group, this rank's place) -> what comes out`.
    """

    ranks: tuple[int, ...]
    verb: str
    given: tuple[Array, ...]
    outs: tuple[Place, ...]
    meet: Callable[[Sequence[tuple[Array, ...]], int], Sequence[Array]]
    peer: int = -1
    tag: int = 0


def communicates(op: Op) -> bool:
    """Whether an op is a collective or a message."""
    return op.name.startswith(SPACES) and op.name.partition("::")[2] not in SILENT


def message_of(op: Op, rank: int, field: Field, get: Callable[[Place], Array]) -> Message | None:
    """The message that an op is; None if it is not known."""
    name, given = op.name.partition("::")[2], op.given
    group = next((v for v in given.values() if isinstance(v, Group)), None)
    if group is None:
        return None
    ranks, verb = group.ranks, _VERBS.get(name)
    if verb is None:
        return None
    reads = list(places(next((given[n] for n in _INPUTS if given.get(n) is not None), None)))
    if verb in ("send", "recv"):
        peer = given.get("dst", given.get("src", -1))
        if not 0 <= peer < len(ranks):
            return None
        return Message(ranks, verb, tuple(get(p) for p in reads) if verb == "send" else (),
                       tuple(places(given["tensors"])) if verb == "recv" else (), _nothing, ranks[peer],
                       int(given.get("tag") or 0))
    in_place = name in _IN_PLACE
    outs = reads if in_place else list(places(next((given[n] for n in _OUTPUTS if given.get(n) is not None), op.made)))
    values = tuple(get(p) for p in reads)
    if verb == "all_to_all" and given.get("input_split_sizes"):
        values = (*values, np.array(given["input_split_sizes"], np.int64))
    meet = _MEETINGS[verb](op, ranks, field, outs)
    return None if meet is None else Message(ranks, verb, values, tuple(outs), meet)


Meet = Callable[[Sequence[tuple[Array, ...]], int], Sequence[Array]]


def _nothing(given: Sequence[tuple[Array, ...]], me: int) -> Sequence[Array]:
    return ()


def _operator(op: Op, field: Field) -> Callable[[Sequence[Array]], Array]:
    """How parts are combined."""
    said = op.given.get("reduce_op", "sum")
    word = (said.text if isinstance(said, Word) else str(said)).lower()

    def combine(parts: Sequence[Array]) -> Array:
        made = parts[0]
        for part in parts[1:]:
            if word in ("sum", "avg", "mean"):
                made = field.plus(made, part)
            elif word == "product":
                made = field.mul(made, part)
            elif word == "max":
                made = field.larger(made, part)
            elif word == "min":
                made = field.neg(field.larger(field.neg(made), field.neg(part)))
            else:
                return np.full(made.shape, UNKNOWN, np.int64)
        if word in ("avg", "mean"):
            made = field.mul(made, field.over(len(parts)))
        return made

    return combine


def _reduced(op: Op, ranks: tuple[int, ...], field: Field, outs: list[Place]) -> Meet:
    combine = _operator(op, field)
    return lambda given, me: [combine([g[k] for g in given]) for k in range(len(given[0]))]


def _root(op: Op, ranks: tuple[int, ...]) -> int:
    root = op.given.get("root_rank", op.given.get("src", 0))
    return int(root) if op.name.startswith("c10d") else ranks.index(root) if root in ranks else int(root)


def _broadcast(op: Op, ranks: tuple[int, ...], field: Field, outs: list[Place]) -> Meet:
    root = _root(op, ranks)
    return lambda given, me: given[root]


def _reduced_to(op: Op, ranks: tuple[int, ...], field: Field, outs: list[Place]) -> Meet:
    """The others' tensors hold parts that a backend may overwrite: nothing is known of them."""
    root, combine = _root(op, ranks), _operator(op, field)
    return lambda given, me: [combine([g[k] for g in given]) if me == root else np.full(
        given[me][k].shape, UNKNOWN, np.int64) for k in range(len(given[0]))]


def _gathered(op: Op, ranks: tuple[int, ...], field: Field, outs: list[Place]) -> Meet:
    lists = op.given.get("output_tensors")
    if isinstance(lists, list | tuple) and lists and isinstance(lists[0], list | tuple) and not isinstance(
            lists[0], Place):
        return lambda given, me: [given[q][k] for k in range(len(given[me])) for q in range(len(ranks))]
    return lambda given, me: [np.concatenate([g[k].ravel() for g in given]) for k in range(len(given[me]))]


def _gathered_to(op: Op, ranks: tuple[int, ...], field: Field, outs: list[Place]) -> Meet:
    root = _root(op, ranks)
    return lambda given, me: [given[q][0] for q in range(len(ranks))] if me == root else []


def _scattered_from(op: Op, ranks: tuple[int, ...], field: Field, outs: list[Place]) -> Meet:
    root = _root(op, ranks)
    return lambda given, me: [given[root][me]]


def _scattered(op: Op, ranks: tuple[int, ...], field: Field, outs: list[Place]) -> Meet:
    combine, n = _operator(op, field), len(ranks)
    lists = op.given.get("input_tensors")
    if isinstance(lists, list | tuple) and lists and isinstance(lists[0], list | tuple) and not isinstance(
            lists[0], Place):
        return lambda given, me: [combine([g[k * n + me] for g in given]) for k in range(len(given[me]) // n)]
    return lambda given, me: [combine([g[k].reshape(n, -1)[me] for g in given]) for k in range(len(given[me]))]


def _exchanged(op: Op, ranks: tuple[int, ...], field: Field, outs: list[Place]) -> Meet | None:
    """Part j of what rank i gives is part i of what rank j gets."""
    n, name = len(ranks), op.name.partition("::")[2]
    if name == "alltoall_":
        return lambda given, me: [given[q][me] for q in range(n)]
    def parts(x: Array, sizes: Sequence[int] | None) -> list[Array]:
        return np.split(x, np.cumsum(sizes)[:-1], axis=0) if sizes else np.split(x, n, axis=0)

    if name in ("alltoall_base_", "all_to_all_single"):
        def meet(given: Sequence[tuple[Array, ...]], me: int) -> Sequence[Array]:
            return [np.concatenate([parts(g[0], g[1].tolist() if len(g) > 1 else None)[me] for g in given], axis=0)]
        return meet
    if name == "shard_dim_alltoall":
        shard, gather = int(op.given["shard_dim"]), int(op.given["gather_dim"])
        return lambda given, me: [np.concatenate([np.array_split(g[0], n, axis=shard)[me] for g in given], axis=gather)]
    return None


_MEETINGS: Mapping[str, Any] = {
    "all_reduce": _reduced, "broadcast": _broadcast, "reduce": _reduced_to, "all_gather": _gathered,
    "gather_to": _gathered_to, "scatter": _scattered_from, "reduce_scatter": _scattered, "all_to_all": _exchanged,
}

_VERBS = {
    "allreduce_": "all_reduce", "all_reduce": "all_reduce", "all_reduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce", "all_reduce_coalesced": "all_reduce", "all_reduce_coalesced_": "all_reduce",
    "allgather_": "all_gather", "_allgather_base_": "all_gather", "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather", "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "allgather_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter", "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter", "reduce_scatter_tensor_out": "reduce_scatter",
    "alltoall_": "all_to_all", "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all", "broadcast_": "broadcast", "broadcast": "broadcast", "reduce_": "reduce",
    "gather_": "gather_to", "scatter_": "scatter", "send": "send", "isend": "send", "recv_": "recv", "irecv": "recv",
}
"""Op -> the collective that it is."""

_IN_PLACE = ("allreduce_", "all_reduce_", "allreduce_coalesced_", "all_reduce_coalesced_", "broadcast_", "reduce_")

_OUTPUTS = ("output_tensors", "output_tensor", "output_lists", "outputs", "output", "out")
_INPUTS = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor", "self")
