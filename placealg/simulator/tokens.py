"""The tokens of a run: which sequences there are, whose they are, and the attributes of each token.

A weight is 0, 1 or 2. What a cell of the setting counts is the weight of its tokens, in parts of sequences of equal
length: of a rank that has a part of every sequence, some have no weight, so that ranks that share sequences differ.
Where weights are data of the program each cell has one sequence more, of padding, whose tokens all weigh nothing.
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

PAIR = 2
"""Two tokens that stand side by side weigh so much together."""

_PAIRS = np.array([(1, 1), (0, 2), (2, 0)], np.int64)


@dataclass(frozen=True, slots=True)
class Cutting:
    """How data axes cut tokens: `batch` are those that split the batch, `apart` those that cut sequences, with the dim.

    Besides, `each` ranks of one cell share the batch. `sizes` are those of the dims of tokens but the batch, in order;
    `owner(axis, dim, index)` says who owns an index. `paired` says that each rank has whole pairs of tokens of every
    sequence.
    """

    batch: tuple[str, ...]
    apart: Mapping[str, str]
    each: int
    sizes: Mapping[str, int]
    owner: Callable[[str, str, int], int]
    paired: bool


@dataclass(slots=True)
class Tokens:
    """The sequences of a run, numbered through the step, loss by loss and microbatch by microbatch.

    `cells` maps each to its place along the axes that split the batch. With `padding` each cell has a sequence of it.
    `summed` are the dims of what the loss sums, but the batch: those of tokens, or, of a mean over sequences or
    documents, those of its means, each of which counts once where it has a token with a weight.
    """

    reference: Reference
    setting: Setting
    cutting: Cutting
    summed: Mapping[str, int]
    padding: bool
    cells: dict[int, Mapping[str, int]] = field(default_factory=dict)
    _sequences: dict[str, tuple[Indices, ...]] = field(default_factory=dict)
    _weighing: dict[int, Array] = field(default_factory=dict)
    _first: set[int] = field(default_factory=set)
    _rows: dict[int, Array] = field(default_factory=dict)
    _places: tuple[Array, ...] | None = None

    def __post_init__(self) -> None:
        for loss in self.reference.separate:
            self._sequences[loss] = tuple(self._numbered(k, loss) for k in range(self.setting.microbatches))
        if not self.cells:
            raise InputError("the batch is empty: at least one cell needs a token")

    @property
    def means(self) -> bool:
        """Whether the loss sums means over sequences or documents."""
        return self.summed != self.cutting.sizes

    def sequences(self, microbatch: int, loss: str = "") -> Indices:
        """The sequences of a microbatch, those of all ranks; of one loss or of all."""
        chosen = (found for name, found in self._sequences.items() if loss in ("", name))
        return tuple(i for found in chosen for i in found[microbatch])

    def _numbered(self, microbatch: int, loss: str) -> Indices:
        """A loss's sequences of a microbatch: as many in each cell of the batch as its fullest part needs."""
        data, apart, each = self.reference.data_axes, tuple(self.cutting.apart), self.cutting.each
        shape = [self.setting.sizes[a] for a in apart]
        parts: dict[tuple[int, ...], dict[tuple[int, ...], range]] = {}
        for (coordinates, k), ids in token_ids(self.reference, self.setting, loss).items():
            at = dict(zip(data, coordinates, strict=True))
            if k == microbatch and not any(c for a, c in at.items() if a not in (*self.cutting.batch, *apart)):
                parts.setdefault(tuple(at[a] for a in self.cutting.batch), {})[tuple(at[a] for a in apart)] = ids
        found, filled = list[int](), list[int]()
        for cell, held in parts.items():
            most = max(map(len, held.values()))
            numbers = [n * each + turn for ids in held.values() for n in ids for turn in range(each)][:most * each]
            self._first.update(numbers[:each])
            for turn, number in enumerate(numbers):
                weighs = [turn < len(ids) * each for _, ids in sorted(held.items())]
                self._weighing[number] = np.array(weighs, np.int64).reshape(shape)
            beyond = self._beyond(microbatch, loss, len(filled)) if self.padding else range(0)
            self._weighing |= {number: np.zeros(shape, np.int64) for number in beyond}
            place = dict(zip(self.cutting.batch, cell, strict=True))
            self.cells |= {number: place for number in (*numbers, *beyond)}
            found += numbers
            filled += beyond
        return (*found, *filled)

    def _beyond(self, microbatch: int, loss: str, before: int) -> range:
        """The numbers of sequences of padding for a cell: `each`, beyond those of all others, and of those `before`."""
        every = sum(self.setting.counts.values()) * len(self.reference.separate) * self.cutting.each
        cells = math.prod(self.setting.sizes[a] for a in self.cutting.batch) * self.cutting.each
        turn = self.reference.separate.index(loss) * self.setting.microbatches + microbatch
        first = every + turn * cells + before
        return range(first, first + self.cutting.each)

    def counted(self, extent: Extent, further: int = 0, packed: bool = False) -> Array:
        """How much each number of an extent counts of what the loss sums, over its dims; length 1 where it has others.

        What lacks a dim of the loss itself is of no token: it counts 1. `further` and `packed` are those of `weights`.
        """
        if not self.means:
            return self.weights(extent, further, packed)
        if not {BATCH, *self.summed} <= set(extent):
            return np.ones([1] * len(extent), np.int64)
        dims = [d for d in extent if d in (BATCH, *self.summed)]
        found = np.array([[int(self._has(number, document, further, packed)) for document in self._means(extent)]
                          for number in extent[BATCH]], np.int64).reshape(len(extent[BATCH]), len(self._means(extent)))
        found = found if dims[0] == BATCH else found.transpose()
        return found.reshape([len(at) if d in dims else 1 for d, at in extent.items()])

    def _means(self, extent: Extent) -> Indices:
        """The documents of an extent of means; of means over sequences, each, -1."""
        return next((extent[d] for d in self.summed), (-1,))

    def _has(self, number: int, document: int, further: int, packed: bool) -> bool:
        """Whether a sequence, or a document of it, has a token with a weight."""
        row = self._row_ahead(number, further, packed)
        if document < 0:
            return bool(row.any())
        start = self._start(number)
        return document < 2 and bool((row[start:] if document else row[:start]).any())

    def samples(self, sequences: Indices) -> Array:
        """How many samples each row has: one or two, none of padding."""
        found = 1 + drawn(f"samples {self.setting.seed}", {BATCH: sequences}) % 2
        return found * np.array([int(self._weighing[n].any()) for n in sequences], np.int64)

    def weights(self, extent: Extent, further: int = 0, packed: bool = False) -> Array:
        """The weight of every token of an extent, over its dims; of length 1 along those that tokens lack.

        With `further` it is that of the token so many places further on, 0 beyond the sequence, or, of those that are
        `packed`, beyond the document.
        """
        sizes = self.cutting.sizes
        dims = (BATCH, *sizes)
        if not set(dims) <= set(extent):
            return np.ones([1] * len(extent), np.int64)
        inside = np.ix_(*(extent[d] for d in sizes)) if sizes else ()
        found = np.zeros([len(extent[d]) for d in dims], np.int64)
        for k, number in enumerate(extent[BATCH]):
            found[k] = self._row_ahead(number, further, packed)[inside]
        ordered = found.transpose([dims.index(d) for d in extent if d in dims])
        return ordered.reshape([len(at) if d in dims else 1 for d, at in extent.items()])

    def documents(self, extent: Extent) -> Array:
        """Of which document of its sequence every token of an extent is, over its dims: the batch, and one more."""
        (dim,) = (d for d in extent if d != BATCH)
        found = np.array([[int(i >= self._start(n)) for i in extent[dim]] for n in extent[BATCH]], np.int64)
        found = found.reshape(len(extent[BATCH]), len(extent[dim]))
        return found if next(iter(extent)) == BATCH else found.transpose()

    def positions(self, extent: Extent) -> Array:
        """The position of every token of an extent in its document."""
        (dim,) = (d for d in extent if d != BATCH)
        found = np.array([[i - self._start(n) * (i >= self._start(n)) for i in extent[dim]] for n in extent[BATCH]],
                         np.int64).reshape(len(extent[BATCH]), len(extent[dim]))
        return found if next(iter(extent)) == BATCH else found.transpose()

    def _start(self, number: int) -> int:
        """Where the second document of a sequence starts."""
        length = next(iter(self.cutting.sizes.values()))
        return 1 + int(drawn(f"documents {self.setting.seed}", {BATCH: (number,)})[0]) % (length - 1)

    def _row(self, number: int) -> Array:
        """The weights of a sequence's tokens."""
        if number not in self._rows:
            if self._places is None:
                self._places = tuple(self._place(axis, dim) for axis, dim in self.cutting.apart.items())
            weighing = self._weighing[number]
            self._rows[number] = self._drawn(number) * (weighing[self._places] if self._places else weighing)
        return self._rows[number]

    def _row_ahead(self, number: int, further: int, packed: bool) -> Array:
        """The weights of the tokens `further` places on, of a sequence."""
        row = self._row(number)
        if not further:
            return row
        moved = np.concatenate([row[further:], np.zeros_like(row[:further])])
        if packed:
            start = self._start(number)
            moved[max(0, start - further):start] = 0
        return moved

    def _place(self, axis: str, dim: str) -> Array:
        """Who owns each index of a dim along an axis, spread for the dims of tokens."""
        sizes = self.cutting.sizes
        owners = [self.cutting.owner(axis, dim, i) for i in range(sizes[dim])]
        return np.array(owners, np.int64).reshape([-1 if d == dim else 1 for d in sizes])

    def _drawn(self, number: int) -> Array:
        """Weights for the tokens of a sequence.

        Every two that stand side by side weigh 2, so that parts of equal length weigh alike; where means are counted
        the first token of each document weighs 1 at least. Where later tokens have a loss of their own some sequences,
        and each of their documents, have no other with a weight, and so no later one; the first of a cell has one.
        """
        shape, key = tuple(self.cutting.sizes.values()), f"weights {self.setting.seed} {number}"
        first, *others = self.cutting.sizes or ("",)
        if self.means:
            found = drawn(key, {d: range(n) for d, n in self.cutting.sizes.items()}) % 3
            starts = [0, self._start(number)]
            found[starts] = np.maximum(found[starts], 1)
            if self.reference.losses == self.reference.separate:
                return found.astype(np.int64)
            if number in self._first:
                behind = starts[1] + 1 if starts[1] + 1 < len(found) else 1
                found[behind] = max(found[behind], 1)
            elif drawn(key, {BATCH: (number,)})[0] % 2:
                found[1:] *= np.array([i in starts and bool(self.summed) for i in range(1, len(found))], np.int64)
            return found.astype(np.int64)
        if not shape or not self.cutting.paired:
            return np.ones(shape, np.int64)
        places: dict[str, Sequence[int]] = {first: range(shape[0] // PAIR),
                                            **{d: range(self.cutting.sizes[d]) for d in others}}
        pairs: Array = _PAIRS[drawn(key, places) % len(_PAIRS)]
        return np.moveaxis(pairs, -1, 1).reshape(shape)
