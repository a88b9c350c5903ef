"""An immutable, hashable mapping that keeps its order: the container of everything that is data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(Mapping[K, V]):
    """An ordered mapping that never changes.

    >>> FrozenMap({"dp": 8}).plus({"tp": 2})
    {dp: 8, tp: 2}
    >>> FrozenMap({"a": 1, "b": 2}) == FrozenMap({"b": 2, "a": 1})
    True
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[K, V] | None = None):
        self._items: dict[K, V] = dict(items or {})
        self._hash: int | None = None

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, FrozenMap) else super().__eq__(other)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._items.items()))
        return self._hash

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k}: {v}" for k, v in self._items.items()) + "}"

    def plus(self, other: Mapping[K, V]) -> FrozenMap[K, V]:
        """The union; entries of `other` win."""
        return FrozenMap({**self._items, **other})
