"""What the ranks of a run have read from their loaders, and the same read together by a single device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from placealg.watch.ranks import READ_ON

IGNORED = -100
"""The target that a loss leaves out, with which rows of targets are made as long as others."""


@contextmanager
def kept(batches: list[Any]) -> Iterator[None]:
    """Keep what every loader gives, in order."""
    own = DataLoader.__iter__

    def heard(self: Any) -> Iterator[Any]:
        for batch in own(self):
            batches.append(batch)
            yield batch

    DataLoader.__iter__ = heard
    try:
        yield
    finally:
        DataLoader.__iter__ = own


@contextmanager
def replayed(batches: Sequence[Any]) -> Iterator[None]:
    """Give what the ranks have read in place of what a loader would give; a loader that is read on fails."""
    own, left = DataLoader.__iter__, list(batches)

    def handed(self: Any) -> Iterator[Any]:
        while left:
            yield left.pop(0)
        raise RuntimeError(READ_ON)

    DataLoader.__iter__ = handed
    try:
        yield
    finally:
        DataLoader.__iter__ = own


def in_turn(ranks: Sequence[Sequence[Any]]) -> list[Any]:
    """The k-th batches of all ranks one after the other, for each k: for a script that sums up as many as there are."""
    return [p for parts in zip(*ranks, strict=False)
            for k, p in enumerate(parts) if not any(same(p, q) for q in parts[:k])]


def together(ranks: Sequence[Sequence[Any]]) -> list[Any]:
    """The k-th batches of all ranks as one, for each k; those that several ranks read alike once."""
    return [joined(list(parts)) for parts in zip(*ranks, strict=False)]


def joined(parts: list[Any]) -> Any:
    """Some batches as one, their rows behind each other."""
    parts = [p for k, p in enumerate(parts) if not any(same(p, q) for q in parts[:k])]
    return _joined(parts, "")


def _joined(parts: list[Any], key: str) -> Any:
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(_as_long(parts, IGNORED if "label" in key else 0)) if first.dim() else first
    if isinstance(first, Mapping):
        made = {k: _joined([p[k] for p in parts], str(k)) for k in first}
        kind: Any = type(first)
        return kind(made)
    if isinstance(first, list | tuple):
        if any(isinstance(v, Tensor | Mapping) for v in first):
            every = [_joined(list(each), key) for each in zip(*parts, strict=True)]
            return type(first)(every) if not hasattr(first, "_fields") else type(first)(*every)
        return [v for part in parts for v in part]
    return first


def _as_long(parts: list[Tensor], filling: int) -> list[Tensor]:
    """Tensors with rows of one length."""
    if parts[0].dim() < 2 or len({p.shape[1] for p in parts}) == 1:
        return parts
    longest = max(p.shape[1] for p in parts)
    return [torch.nn.functional.pad(p, (0, longest - p.shape[1]), value=filling) if p.dim() == 2 else p for p in parts]


def same(one: Any, two: Any) -> bool:
    """Whether two batches are equal."""
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and one.shape == two.shape and bool((one == two).all())
    if isinstance(one, Mapping):
        return one.keys() == two.keys() and all(same(one[k], two[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two)
