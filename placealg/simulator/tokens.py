"""The tokens of a run: which sequences there are, whose they are, and the weight of each token in its loss.

A weight is 0, 1 or 2. What a cell of the setting counts is the weight of its tokens, in parts of sequences of equal
length: of a rank that has a part of every sequence, some have no weight, so that ranks that share sequences differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from placealg.errors import InputError
from placealg.simulator.box import Extent, Indices
from placealg.simulator.field import Array, drawn
from placealg.simulator.setting import Setting, token_ids
from placealg.step.program import Reference

BATCH = "batch"
"""The dim of the sequences."""

_PAIRS = np.array([(1, 1), (0, 2), (2, 0)], np.int64)
"""The weights of two tokens that stand side by side: one of these, so that both together weigh 2."""

PAIR = 2


@dataclass(frozen=True, slots=True)
class Cutting:
    """How data axes cut tokens: `batch` are those that split the batch, `apart` those that cut sequences, with the dim.

    Besides, `each` ranks of one cell share the batch.
    """

    batch: tuple[str, ...]
    apart: Mapping[str, str]
    each: int


@dataclass(slots=True)
class Tokens:
    """The sequences of a run, numbered through the step, loss by loss and microbatch by microbatch.

    `cells` maps each to its place along the axes that split the batch. `sizes` are those of the dims of the loss but
    the batch, in order; `owner(axis, dim, index)` says who owns an index. `paired` says that each rank has whole pairs
    of tokens of every sequence.
    """

    reference: Reference
    setting: Setting
    cutting: Cutting
    sizes: Mapping[str, int]
    owner: Callable[[str, str, int], int]
    paired: bool
    cells: dict[int, Mapping[str, int]] = field(default_factory=dict)
    _sequences: dict[str, tuple[Indices, ...]] = field(default_factory=dict)
    _weighing: dict[int, Array] = field(default_factory=dict)
    _rows: dict[int, Array] = field(default_factory=dict)
    _places: tuple[Array, ...] | None = None

    def __post_init__(self) -> None:
        for loss in self.reference.losses:
            self._sequences[loss] = tuple(self._numbered(k, loss) for k in range(self.setting.microbatches))
        if not self.cells:
            raise InputError("the batch is empty: at least one cell needs a token")

    def sequences(self, microbatch: int, loss: str = "") -> Indices:
        """The sequences of a microbatch, those of all ranks; of one loss or of all."""
        chosen = (found for name, found in self._sequences.items() if loss in ("", name))
        return tuple(i for found in chosen for i in found[microbatch])

    def _numbered(self, microbatch: int, loss: str) -> Indices:
        """A loss's sequences of a microbatch: as many in each cell of the batch as its fullest part needs."""
        data, apart, each = self.reference.data_axes, tuple(self.cutting.apart), self.cutting.each
        parts: dict[tuple[int, ...], dict[tuple[int, ...], range]] = {}
        for (coordinates, k), ids in token_ids(self.reference, self.setting, loss).items():
            at = dict(zip(data, coordinates, strict=True))
            if k == microbatch and not any(c for a, c in at.items() if a not in (*self.cutting.batch, *apart)):
                parts.setdefault(tuple(at[a] for a in self.cutting.batch), {})[tuple(at[a] for a in apart)] = ids
        found: list[int] = []
        for cell, held in parts.items():
            most = max(map(len, held.values()))
            numbers = [n * each + turn for ids in held.values() for n in ids for turn in range(each)][:most * each]
            place = dict(zip(self.cutting.batch, cell, strict=True))
            self.cells |= {number: place for number in numbers}
            shape = [self.setting.sizes[a] for a in apart]
            for turn, number in enumerate(numbers):
                weighs = [turn < len(ids) * each for _, ids in sorted(held.items())]
                self._weighing[number] = np.array(weighs, np.int64).reshape(shape)
            found += numbers
        return tuple(found)

    def weights(self, extent: Extent) -> Array:
        """The weight of every token of an extent, over its dims; of length 1 along those that the loss lacks.

        What lacks a dim of the loss itself is of no token: it weighs 1.
        """
        dims = (BATCH, *self.sizes)
        if not set(dims) <= set(extent):
            return np.ones([1] * len(extent), np.int64)
        inside = np.ix_(*(extent[d] for d in self.sizes)) if self.sizes else ()
        found = np.zeros([len(extent[d]) for d in dims], np.int64)
        for k, number in enumerate(extent[BATCH]):
            found[k] = self._row(number)[inside]
        ordered = found.transpose([dims.index(d) for d in extent if d in dims])
        return ordered.reshape([len(at) if d in dims else 1 for d, at in extent.items()])

    def total(self, extent: Extent) -> int:
        """The weight of all tokens of an extent together."""
        return int(self.weights(extent).sum()) * math.prod(
            len(at) for d, at in extent.items() if d not in (BATCH, *self.sizes))

    def _row(self, number: int) -> Array:
        """The weights of a sequence's tokens."""
        if number not in self._rows:
            if self._places is None:
                self._places = tuple(self._place(axis, dim) for axis, dim in self.cutting.apart.items())
            weighing = self._weighing[number]
            self._rows[number] = self._drawn(number) * (weighing[self._places] if self._places else weighing)
        return self._rows[number]

    def _place(self, axis: str, dim: str) -> Array:
        """Who owns each index of a dim along an axis, spread for the dims of the loss."""
        owners = [self.owner(axis, dim, i) for i in range(self.sizes[dim])]
        return np.array(owners, np.int64).reshape([-1 if d == dim else 1 for d in self.sizes])

    def _drawn(self, number: int) -> Array:
        """Weights for the tokens of a sequence, of which every two that stand side by side weigh 2."""
        shape = tuple(self.sizes.values())
        if not shape or not self.paired:
            return np.ones(shape, np.int64)
        first, *others = self.sizes
        places: dict[str, Sequence[int]] = {first: range(shape[0] // PAIR), **{d: range(self.sizes[d]) for d in others}}
        pairs: Array = _PAIRS[drawn(f"weights {self.setting.seed} {number}", places) % len(_PAIRS)]
        return np.moveaxis(pairs, -1, 1).reshape(shape)
