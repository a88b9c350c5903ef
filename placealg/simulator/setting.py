"""What a symbolic step needs to become one concrete run: sizes, microbatches, owners and token counts."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from placealg.errors import InputError, need
from placealg.frozen import FrozenMap
from placealg.models.graph import DEPTH, Graph, unit_of
from placealg.models.split_layers import apart
from placealg.models.stage_parts import original
from placealg.step.pipeline import Pipeline
from placealg.step.program import Reference

ELEMENTS = range(4)
"""The elements of one instance of a parameter group: a 2x2 matrix, row by row."""

Cell = tuple[tuple[int, ...], int]
"""(coordinates on the data axes, microbatch): the tokens of one rank in one microbatch."""

_SHARES = (0, 1, 2, 2)
_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """One concrete run of a step.

    `sizes` maps each axis to its size, `counts` each cell to its number of tokens (zero allowed). `layers` is the
    number of instances of every repeated unit but those of which there is one. `owners` maps (layout, axis, element of
    an instance) to a rank, for all groups and instances; what it leaves out has an uneven default that depends on
    layout, axis, group and instance. Of a layout NAME(AXIS) the one that ranks at coordinate K along AXIS have is
    NAME(AXIS)=K. `at_risk` are the groups of which gradients can overflow; all, where it names none.
    Raises InputError where a size, a count or an owner is out of range.

    Of several losses each has tokens of its own in every cell: as many as the first has, some cells further on.

    With `floats` an op graph runs in floats: such a run shows, and judges nothing. Where weights of tokens are data,
    `padding` adds to each cell a sequence of padding.

    Of a step that runs op by op a count is one of sequences, all of one length (`tokens.py`): along a data axis that
    cuts sequences and never the batch, of as many parts of sequences as the tokens weigh that a rank has; its other
    tokens have no weight.
    Of a pipeline the depth is small: the layers per stage that a strategy lists are for the real one.
    """

    sizes: Mapping[str, int]
    microbatches: int
    counts: Mapping[Cell, int]
    layers: int = 2
    owners: Mapping[tuple[str, str, int], int] = FrozenMap()
    at_risk: tuple[str, ...] = ()
    seed: int = 0
    multiples: Mapping[str, int] = FrozenMap()
    floats: bool = False
    padding: bool = True

    def __post_init__(self) -> None:
        for name in ("sizes", "counts", "owners", "multiples"):
            object.__setattr__(self, name, FrozenMap(getattr(self, name)))
        for name, size in {**self.sizes, "m": self.microbatches, "layers": self.layers}.items():
            if type(size) is not int or size < 1:
                raise InputError(f"{name} = {size!r} is not a size: a size is a whole number of at least 1")
        for cell, count in self.counts.items():
            if type(count) is not int or count < 0:
                raise InputError(f"cell {cell} has {count!r} tokens: a count is a whole number of at least 0")
        for (layout, axis, element), rank in self.owners.items():
            if axis in self.sizes and not 0 <= rank < self.sizes[axis]:
                raise InputError(f"element {element} of layout {layout} is owned by rank {rank} of axis {axis}, "
                                 f"which has {self.sizes[axis]}")

    def instances(self, unit: str, graph: Graph) -> int:
        """The number of instances of a unit."""
        return self.layers if graph.loop(unit) and not graph.single(unit) else 1

    def named(self, graph: Graph, name: str, instance: int) -> tuple[str, int]:
        """A parameter or op, and its instance, as they are called in a model that has no layers apart."""
        among = instance + self.layers if unit_of(name) == DEPTH and apart(graph) else instance
        return original(name), among

    def owner(self, layout: str, axis: str, element: int, spread: int = 0) -> int:
        """The coordinate on `axis` that owns `element`; `spread` moves the default from instance to instance.

        >>> setting = Setting({"dp": 3}, 1, {}, owners={("own", "dp", 0): 2})
        >>> [setting.owner("own", "dp", e) for e in ELEMENTS], [setting.owner("alt", "dp", e) for e in ELEMENTS]
        ([2, 1, 2, 2], [0, 1, 1, 2])
        """
        size = self.sizes[axis]
        if size == 1:
            return 0
        if (layout, axis, element) in self.owners:
            return self.owners[layout, axis, element]
        turn, shift = zlib.crc32(axis.encode()), spread
        if layout != "own":
            code = zlib.crc32(layout.encode())
            turn, shift = turn + code // size, shift + 1 + code % (size - 1)
        return (_SHARES[(element + turn) % len(ELEMENTS)] + shift) % size

    @staticmethod
    def equal(reference: Reference, sizes: Mapping[str, int], microbatches: int, tokens: int = 2, *,
              layers: int | None = None, seed: int = 0) -> Setting:
        """The setting in which every rank has `tokens` tokens in every microbatch."""
        _check(reference, sizes, microbatches, tokens)
        counts = dict.fromkeys(cells(reference, sizes, microbatches), tokens)
        return Setting(sizes, microbatches, counts, layers or fewest_layers(reference, sizes), seed=seed)

    @staticmethod
    def unequal(reference: Reference, sizes: Mapping[str, int], microbatches: int, *,
                layers: int | None = None, seed: int = 0) -> Setting:
        """A setting whose counts (1 to 3) differ between ranks and between microbatches."""
        _check(reference, sizes, microbatches)
        draw = random.Random(seed)
        counts = {cell: draw.choice((1, 2)) for cell in cells(reference, sizes, microbatches)}
        first, last = next(iter(counts)), next(reversed(counts))
        return Setting(sizes, microbatches, {**counts, first: 1, last: 3}, layers or fewest_layers(reference, sizes),
                       seed=seed)


def _check(reference: Reference, sizes: Mapping[str, int], *numbers: int) -> None:
    need(reference, Reference, "reference: that of a program is its .reference")
    need(sizes, Mapping, "mapping of axes to sizes")
    for number in (*sizes.values(), *numbers):
        if not isinstance(number, int):
            raise InputError(f"{number!r} is not a whole number")


def fitting(pipeline: Pipeline, ranks: int) -> Pipeline:
    """The pipeline of a small run: layers spread evenly, over 2 chunks per rank where their number is a symbol.

    Where there are too few stages for parts that stand alone, these run with layers.
    """
    chunks = pipeline.chunks or _CHUNKS
    found = replace(pipeline, chunks=chunks, stages=())
    return found if ranks >= found.least else replace(found, alone=())


def fewest_layers(reference: Reference, sizes: Mapping[str, int]) -> int:
    """The instances of each repeated unit in a small run: 2; in a pipeline one more than there are chunks.

    Then some neighbours share a stage, and others do not.
    """
    pipeline = reference.pipeline
    if pipeline.axis not in sizes:
        return 2
    ranks = pipeline.ranks(sizes)
    found = fitting(pipeline, ranks)
    chunks, alone, graph = ranks * (found.chunks or 1), len(found.alone), reference.graph
    repeated = sum(not graph.single(loop.unit) for loop in graph.loops)
    return max(2, -(-(chunks - alone + 1) // max(1, repeated)))


FEW = 4
"""Of more microbatches that a strategy says, a small run has so many, times the stages of a pipeline."""


def few_microbatches(reference: Reference, sizes: Mapping[str, int]) -> int:
    """The number of microbatches beyond which a small run at these sizes has no more of them."""
    return FEW * reference.pipeline.ranks(sizes)


def fitting_microbatches(reference: Reference, sizes: Mapping[str, int], microbatches: int) -> int:
    """The smallest number of microbatches from `microbatches` on that the order of the pipeline takes."""
    pipeline = reference.pipeline
    group = pipeline.ranks(sizes) if pipeline.grouped else 1
    return -(-microbatches // group) * group


def cells(reference: Reference, sizes: Mapping[str, int], microbatches: int) -> Iterator[Cell]:
    """Every cell, in the order in which tokens are numbered: microbatch by microbatch, last data axis fastest."""
    for axis in reference.mesh.names:
        if axis not in sizes:
            raise InputError(f"axis '{axis}' has no size", name=axis, valid=sizes)
    for k in range(microbatches):
        for coordinates in itertools.product(*(range(sizes[a]) for a in reference.data_axes)):
            yield coordinates, k


@lru_cache(maxsize=512)
def token_ids(reference: Reference, setting: Setting, loss: str) -> Mapping[Cell, range]:
    """The logical numbers of a loss's tokens of each cell; InputError where a cell has no count or all are empty."""
    every, further = list(cells(reference, setting.sizes, setting.microbatches)), reference.separate.index(loss)
    for cell in every:
        if cell not in setting.counts:
            raise InputError(f"the setting has no count for rank {cell[0]} in microbatch {cell[1]}")
    ids: dict[Cell, range] = {}
    total = first = further * sum(setting.counts[cell] for cell in every)
    for k, cell in enumerate(every):
        count = setting.counts[every[(k + further) % len(every)]]
        ids[cell] = range(total, total + count)
        total += count
    if total == first:
        raise InputError("the batch is empty: at least one cell needs a token")
    return ids
