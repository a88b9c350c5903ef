"""The memory of one rank: its storages, each an array of elements of the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from placealg.watch.lift.field import UNKNOWN, Array, Field, Told, told
from placealg.watch.lift.trace import Held, Place, Trace


class Memory:
    """What every storage of a rank holds, as the ops that ran have left it."""

    def __init__(self, field: Field, trace: Trace, tables: Any, apart: int = 0):
        self.apart = apart
        """By how many of their last dims equal elements are told apart that a draw meets."""
        self.met: dict[int, int] = {}
        """Storage -> how many draws have met what was last written to it."""
        self.field, self.leaves, self.begun, self.tables = field, trace.leaf, trace.begun, tables
        self.unseen: dict[str, str] = {}
        """What could not be followed -> its line."""
        self.stores: dict[int, tuple[int, Array]] = {}
        self.named = {h.place.store for h in trace.named.values()}
        self.told: set[int] = set()
        """Storages of whose elements something is known by value."""
        self.random: dict[int, Array] = {}
        """Storage -> the numbers drawn into it, until they meet what they multiply."""
        self.drawn: list[tuple[Array, Array]] = []
        """(what was drawn, the mask that it became), in order."""
        self.masks: list[tuple[Array, Array, str]] = []
        """(element, what was drawn for it, the line), for every element that a draw met."""
        self.by_chance: set[int] = set()
        """Storages of numbers that depend on what modules drew: on another rank, or in another run, they are others."""
        self.chancy: set[int] = set()
        """Storages of integers and truth values that were computed from random numbers."""

    def name(self, named: Mapping[str, Held], values: Mapping[str, Array]) -> None:
        """Put the unknowns of named tensors where they stand."""
        for label, held in named.items():
            self.view(held.place)[...] = values[label]

    def _store(self, place: Place) -> Array:
        need = place.offset + 1 + sum((n - 1) * s for n, s in zip(place.shape, place.stride, strict=True)
                                      ) if place.size else place.offset
        item, held = self.stores.get(place.store) or self._leaf(place)
        if item != place.item:
            held, item = _regrained(held, item, place.item), place.item
        if held.size < need:
            held = np.concatenate([held, np.full(need - held.size, UNKNOWN, self.field.kind)])
        self.stores[place.store] = item, held
        return held

    def _leaf(self, place: Place) -> tuple[int, Array]:
        """A storage that no op has written: the numbers that it held, if it was there before the step.

        What is met first inside the step may have been made there by what no op tells: of its numbers those are known
        that the single device has met as well, and such as somebody has written.
        """
        found = self.leaves.get(place.store)
        if found is None or place.store in self.named:
            return place.item, self.field.zeros((0,))
        item, numbers = found
        kind = "float64" if numbers.dtype == np.float64 else "float32"
        made = self.field.numbers_of(numbers, kind)
        if place.store >= self.begun:
            each, places = np.unique(numbers, return_inverse=True)
            with np.errstate(invalid="ignore"):  # memory that nobody wrote may hold anything
                odd = ~np.isin(each, self.tables)
            odd[odd] = [not self.field.written(float(v), kind) for v in each[odd]]
            if odd.any():
                self.unseen.setdefault("numbers that no op has made, and that the single device has not met", "")
                made = np.where(odd[places].reshape(made.shape), UNKNOWN, made)
        return item, made

    def view(self, place: Place) -> Array:
        """The elements of a place, as a view of its storage."""
        held = self._store(place)
        return as_strided(held[place.offset:], place.shape, [8 * s for s in place.stride])

    def get(self, place: Place) -> Array:
        """A copy of the elements of a place; integers as they were recorded."""
        if place.store in self.chancy and not place.floating:
            return np.full(place.shape, UNKNOWN, np.int64)
        if place.held is not None and not (place.dtype == "uint8" and place.store in self.stores):
            return self.field.numbers_of(place.held, "float64")
        found = np.array(self.view(place))
        if place.store in self.told:
            found = told(found)
        if place.conjugate:
            found[..., 1] = self.field.neg(found[..., 1])
        return found

    def hangs_on_draws(self, place: Place) -> bool:
        """Whether what stands in a place is, or depends on, what was drawn: it is that of this run alone."""
        return place.store in self.by_chance or place.store in self.chancy or place.store in self.random

    def put(self, place: Place, value: Any) -> None:
        """Write the elements of a place."""
        if not place.floating and place.dtype != "uint8":  # which may be the bytes of others
            return
        if place.conjugate:
            value = np.stack([value[..., 0], self.field.neg(value[..., 1])], -1)
        self.view(place)[...] = value
        if isinstance(value, Told):
            self.told.add(place.store)
        self.random.pop(place.store, None)
        self.met.pop(place.store, None)


def _regrained(held: Array, item: int, new: int) -> Array:
    """A storage by elements of another size: an element stands at the first of its parts, whatever they are."""
    if new < item:
        parts = item // new
        made = np.zeros(held.size * parts, held.dtype)
        made[::parts] = held
        return made
    parts = new // item
    return held[:held.size // parts * parts:parts].copy()
