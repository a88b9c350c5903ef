"""Shadow storages: of every element of every storage its origin, and the number by which it was multiplied since.

An origin is a node's number and a place in what the node made. A shadow also keeps a sum of the bytes as the last op
left them: memory that something else has written since is told.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

PLACES = 28
"""Bits of an origin that say the place; the node's number stands above."""

ZERO = 0
"""The node of zeros, and of the padding of shards."""

Region = tuple[Tensor, Tensor]
"""Origins (int64) and factors (float64), both in the shape of a tensor."""


class Shadow:
    """The origins and factors of a storage, an entry per element of `item` bytes."""

    __slots__ = ("origin", "factor", "item", "ref", "sum", "pending")

    def __init__(self, origin: Tensor, factor: Tensor, item: int, ref: StorageWeakRef):
        self.origin, self.factor, self.item, self.ref = origin, factor, item, ref
        self.sum: int | None = None
        self.pending = False


class Shadows:
    """The shadows of all storages that were met."""

    def __init__(self, stranger: Callable[[Tensor], int]):
        self.table: dict[int, Shadow] = {}
        self.stranger = stranger

    def known(self, tensor: Tensor) -> bool:
        """Whether the storage of a tensor was met before."""
        return tensor.untyped_storage()._cdata in self.table

    def shadow(self, tensor: Tensor, node: int | None = None) -> Shadow:
        """The shadow of a tensor's storage, by elements of the tensor's size."""
        storage = tensor.untyped_storage()
        key, item = storage._cdata, tensor.element_size()
        need = storage.nbytes() // item
        found = self.table.get(key)
        if found is None:
            number = self.stranger(tensor) if node is None else node
            found = self.table[key] = Shadow(whole(number, need), torch.ones(need, dtype=torch.float64), item,
                                             StorageWeakRef(storage))
            return found
        if found.item != item:
            _regrain(found, item)
        if found.origin.numel() < need:  # the storage has grown, as that of a unit which is gathered again
            more = need - found.origin.numel()
            found.origin = torch.cat([found.origin, torch.zeros(more, dtype=torch.int64)])
            found.factor = torch.cat([found.factor, torch.zeros(more, dtype=torch.float64)])
        return found

    def region(self, tensor: Tensor) -> Region:
        """The origins and factors of a tensor: views of its storage's shadow."""
        shadow = self.shadow(tensor)
        where = tensor.size(), tensor.stride(), tensor.storage_offset()
        return torch.as_strided(shadow.origin, *where), torch.as_strided(shadow.factor, *where)

    def made_by(self, node: int, tensor: Tensor) -> None:
        """Every element of a tensor comes from a node, at its own place."""
        origin, factor = self.region(tensor)
        origin.copy_(whole(node, origin.numel()).view(origin.shape))
        factor.fill_(0.0 if node == ZERO else 1.0)

    def write(self, tensor: Tensor, region: Region) -> None:
        """A tensor's elements are those of a region."""
        origin, factor = self.region(tensor)
        origin.copy_(region[0])
        factor.copy_(region[1])

    def same_storage(self, one: Tensor, two: Tensor) -> bool:
        """Whether two tensors share their memory."""
        return bool(one.untyped_storage()._cdata == two.untyped_storage()._cdata)

    def keep_sum(self, tensor: Tensor) -> None:
        """Note the bytes of a storage as an op left them."""
        shadow = self.table.get(tensor.untyped_storage()._cdata)
        if shadow is not None:
            shadow.pending, shadow.sum = False, storage_sum(tensor)

    def written_by_peers(self, tensor: Tensor, pending: bool) -> None:
        """A collective may still write a storage: `pending` until somebody waits for it, unless that is not heard."""
        shadow = self.table.get(tensor.untyped_storage()._cdata)
        if shadow is not None:
            shadow.pending, shadow.sum = pending, None

    def unwaited(self, tensor: Tensor) -> bool:
        """Whether a collective may still write a storage."""
        shadow = self.table.get(tensor.untyped_storage()._cdata)
        return shadow is not None and shadow.pending

    def check_sum(self, tensor: Tensor) -> bool:
        """Whether a storage's bytes are as the last op left them, as far as that is known."""
        shadow = self.table.get(tensor.untyped_storage()._cdata)
        if shadow is None or shadow.sum is None or tensor.untyped_storage().nbytes() == 0:
            return True
        return shadow.sum == storage_sum(tensor)

    def forget_sum(self, tensor: Tensor) -> None:
        """A storage's bytes are not known."""
        shadow = self.table.get(tensor.untyped_storage()._cdata)
        if shadow is not None:
            shadow.sum, shadow.pending = None, False


def whole(node: int, count: int) -> Tensor:
    """The origins of `count` elements that a node made."""
    if node == ZERO:
        return torch.zeros(count, dtype=torch.int64)
    return torch.arange(node << PLACES, (node << PLACES) + count)


def nodes_of(origin: Tensor) -> list[int]:
    """The nodes from which a region comes."""
    if not origin.numel():
        return []
    low, high = (int(k) >> PLACES for k in torch.aminmax(origin))
    return [low] if low == high else [int(k) for k in torch.unique(origin >> PLACES)]


def _regrain(shadow: Shadow, item: int) -> None:
    """Say the same by elements of another size; what does not fit is told as zeros of node -1."""
    if item < shadow.item:
        times = shadow.item // item
        shadow.origin, shadow.factor = (t.repeat_interleave(times) for t in (shadow.origin, shadow.factor))
    else:
        times = item // shadow.item
        count = shadow.origin.numel() // times
        origin, factor = (t[:count * times].view(count, times) for t in (shadow.origin, shadow.factor))
        alike = (origin == origin[:, :1]).all(1)
        shadow.origin = torch.where(alike, origin[:, 0], torch.full_like(origin[:, 0], TORN << PLACES))
        shadow.factor = factor[:, 0].clone()
    shadow.item = item


TORN = 1
"""The node of elements whose bytes come from several places."""


def storage_sum(tensor: Tensor) -> int:
    """A sum of a storage's bytes that a changed value changes; in another process it is another."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return 0
    if storage.device.type == "cpu":
        return hash(ctypes.string_at(storage.data_ptr(), storage.nbytes()))
    flat: Any = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    rest = flat.numel() % 8
    words = flat[:flat.numel() - rest].view(torch.int64)
    weights = torch.arange(1, words.numel() + 1, device=storage.device) * 0x9E3779B97F4A7C1 | 1
    return int((words * weights).sum()) + int(flat[flat.numel() - rest:].sum())


def digest(values: Tensor) -> str:
    """A digest of some values, the same in every process."""
    flat = values.detach().cpu().contiguous().flatten().view(torch.uint8)
    return blake2b(flat.numpy().tobytes(), digest_size=8).hexdigest()
