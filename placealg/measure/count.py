"""What a rank really sends and holds: collectives as PyTorch dispatches them, storages, saved tensors."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
"""The namespaces of ops that communicate."""

SILENT = ("wait_tensor", "wait_tensors", "barrier", "monitored_barrier_", "recv_", "recv_any_source_",
          "shard_dim_alltoall_meta", "_wrap_tensor_autograd")
"""Ops of these namespaces that send nothing."""

COLLECTIVES = {
    "allreduce_": "all_reduce", "all_reduce": "all_reduce", "all_reduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce", "all_reduce_coalesced": "all_reduce",
    "allgather_": "all_gather", "_allgather_base_": "all_gather", "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather", "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_": "reduce_scatter", "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all", "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all", "broadcast_": "broadcast", "broadcast": "broadcast", "send": "send",
}
"""Op -> the collective that it is."""

OUTPUT = ("all_gather",)
"""The collectives whose message is what they make; of all others it is what they take."""


@dataclass
class TrafficCounter(TorchDispatchMode):
    """Counts messages while it is active: bytes by (phase, collective, ranks of the group).

    `tagged` says of messages that are sent from stage to stage, by address, to which phase they belong.
    A message of one element is a scalar and is counted apart. An op that is not known raises.
    """

    phase: str = "other"
    bytes: Counter[tuple[str, str, tuple[int, ...]]] = field(default_factory=Counter)
    scalars: Counter[tuple[str, str]] = field(default_factory=Counter)
    tagged: dict[int, str] = field(default_factory=dict)
    counting: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def __enter__(self) -> Any:
        """Count from here on."""
        self.counting = True
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, and count it if it sends; ops on DTensors come back as ops on what the rank holds."""
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES:
            self._count(func, args, kwargs or {}, made)
        return made

    def _count(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        name = func._schema.name.partition("::")[2]
        if name in SILENT:
            return
        if name not in COLLECTIVES:
            raise RuntimeError(f"the counter does not know {func.namespace}::{name}")
        collective, given = COLLECTIVES[name], {}
        for value, argument in zip(args, func._schema.arguments, strict=False):
            given[argument.name] = value
        given.update(kwargs)
        ranks = group_ranks(given)
        read, written = _operands(collective, func, args, given, made)
        message = list(tensors(written if collective in OUTPUT else read))
        size = sum(t.numel() * t.element_size() for t in message)
        phase = self.tagged.get(message[0].data_ptr(), self.phase) if collective == "send" else self.phase
        if sum(t.numel() for t in message) == 1:
            self.scalars[phase, collective] += 1
        else:
            self.bytes[phase, collective, ranks] += size

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """What is sent inside belongs to `phase`."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before


def _operands(collective: str, func: Any, args: Any, given: dict[str, Any], made: Any) -> tuple[Any, Any]:
    """(what the op reads, what it writes): out-of-place ops return it, in-place ones have it as an argument."""
    names = [a.name for a in func._schema.arguments]
    written = next((given[n] for n in ("output_tensors", "output_tensor", "outputs", "output", "out")
                    if n in given), made)
    read = next((given[n] for n in ("input_tensors", "input_tensor", "inputs", "input", "tensors", "tensor")
                 if n in given), given[names[0]])
    return read, written


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def group_ranks(given: Mapping[str, Any]) -> tuple[int, ...]:
    """The global ranks of the group that an op of a collective names, in its order; `given` are its arguments."""
    group = given.get("process_group", given.get("group_name"))
    if isinstance(group, str):
        group = torch.distributed.distributed_c10d._resolve_process_group(group)
    elif isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    return tuple(dist.get_process_group_ranks(group))


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def held(tensors: Iterable[Tensor | None]) -> int:
    """The bytes of the distinct storages of what this rank holds."""
    found = {local(t).untyped_storage()._cdata: local(t).untyped_storage().nbytes() for t in tensors if t is not None}
    return sum(found.values())


def optimizer_state(optimizer: Any) -> tuple[int, int]:
    """(bytes of the state per element, bytes of step counters) that a rank holds."""
    states = [s for s in optimizer.state.values() if isinstance(s, dict)]
    counters = [t for s in states for k, t in s.items() if k == "step" and isinstance(t, Tensor)]
    moments = [t for s in states for k, t in s.items() if k != "step" and isinstance(t, Tensor)]
    return held(moments), held(counters)


class SavedBytes:
    """The bytes that autograd keeps for backward: distinct storages, parameters and the batch left out."""

    def __init__(self, model: nn.Module, data: Iterable[Tensor]):
        self.model = model
        self.left_out = {local(t).untyped_storage()._cdata for t in data}
        self.live: Counter[int] = Counter()
        self.sizes: dict[int, int] = {}
        self.now = self.most = 0

    def _pack(self, tensor: Tensor) -> Any:
        mine = local(tensor)
        storage = mine.untyped_storage()
        key = storage._cdata
        own = {local(p).untyped_storage()._cdata for p in self.model.parameters()}
        if key not in own and key not in self.left_out:
            box = _Box(tensor)
            self.live[key] += 1
            if self.live[key] == 1:
                self.sizes[key] = storage.nbytes()
                self.now += self.sizes[key]
                self.most = max(self.most, self.now)
            weakref.finalize(box, self._drop, key)
            return box
        return _Box(tensor)

    def _drop(self, key: int) -> None:
        self.live[key] -= 1
        if not self.live[key]:
            self.now -= self.sizes[key]

    def hooks(self) -> Any:
        """The context in which what is saved is counted."""
        unpack: Callable[[_Box], Tensor] = lambda box: box.tensor  # noqa: E731  one expression
        return torch.autograd.graph.saved_tensors_hooks(self._pack, unpack)


class _Box:
    """A saved tensor that can be watched."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
