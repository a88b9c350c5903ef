"""An immutable, hashable mapping that keeps its order: the container of everything that is data."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class FrozenMap(Mapping[K, V]):
    """An ordered mapping that never changes.

    >>> FrozenMap({"dp": 8}).plus({"tp": 2})
    {dp: 8, tp: 2}
    >>> FrozenMap({"a": 1, "b": 2}) == FrozenMap({"b": 2, "a": 1})
    True
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[K, V] | None = None):
        self._items: dict[K, V] = items._items if isinstance(items, FrozenMap) else dict(items or {})
        self._hash: int | None = None

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def items(self) -> ItemsView[K, V]:
        """The keys with their values, in order."""
        return self._items.items()

    def keys(self) -> KeysView[K]:
        """The keys, in order."""
        return self._items.keys()

    def values(self) -> ValuesView[V]:
        """The values, in the order of their keys."""
        return self._items.values()

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V) -> V: ...

    @overload
    def get(self, key: K, /, default: D) -> V | D: ...

    def get(self, key: K, /, default: Any = None) -> Any:
        """The value of a key, or what is said for one that is not there."""
        return self._items.get(key, default)

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, FrozenMap) else super().__eq__(other)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._items.items()))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Its items alone are pickled: another process hashes text in another way."""
        return type(self), (self._items,)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k}: {v}" for k, v in self._items.items()) + "}"

    def plus(self, other: Mapping[K, V]) -> FrozenMap[K, V]:
        """The union; entries of `other` win."""
        return FrozenMap({**self._items, **other})
