"""The contents of a checkpoint, and the part of it that each rank stores: owner functions made concrete.

A checkpoint holds what the `store` events of a program keep. For one state of one parameter (an *item*) the file of a
rank has a block of each of its dims, and the instances of its unit on the rank's stage. Blocks are contiguous: an axis
cuts a length into parts of ⌈length/n⌉ and a rest, as `torch.chunk` does. An axis that splits a dim of the parameter
cuts that dim; axes over which a state is sharded cut its remaining rows, or, if `[shards] pad` is "elements", the
elements of its whole group in one row: all states of a parameter in the same places, by the levels of `nested`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod

from placealg.arith import ONE, Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.graph import DEPTH
from placealg.models.model import Model, Parameter
from placealg.models.split_layers import DONE, apart
from placealg.models.stage_parts import original
from placealg.placement import Levels, nested
from placealg.step.pipeline import FIRST, LAST, Pipeline, part_of
from placealg.step.program import Event, Group, Step
from placealg.step.trainable import trained
from placealg.step.where import LAST_RANK
from placealg.strategy.spec import Strategy
from placealg.strategy.vocabulary import LAYER

CHUNKS = Monomial.of("v")
"""The number of chunks of a stage, where it is a symbol."""

Spans = tuple[tuple[int, int], ...]
"""Disjoint half-open intervals, in order."""

LAYERS, ELEMENTS = "layers", "elements"
"""The line of a unit's instances, and the line of all elements of a parameter in one row."""


@dataclass(frozen=True, slots=True)
class Item:
    """One state of one parameter in a checkpoint.

    `dims` are its dims and their sizes, with those of its rows (`rows` of them) first. `splits` maps an axis to the dim
    that it splits, in the order of the mesh; `cut` are the further axes over which the state is sharded, in `levels`,
    as `nested` says; of a level that is not in `cut` it has the blocks of all ranks. `at` restricts the ranks that
    stored it: axis -> coordinate. `units` are those that use it; `beside` are, if `flat`, the parameters that share its
    one row of elements, itself included. `bytes` is the size of an element.
    """

    parameter: str
    value: str
    group: str
    units: tuple[str, ...]
    dims: FrozenMap[str, Monomial]
    rows: int
    splits: FrozenMap[str, str]
    cut: tuple[str, ...]
    at: FrozenMap[str, int]
    count: Monomial
    bytes: str
    flat: bool = False
    beside: tuple[tuple[FrozenMap[str, Monomial], FrozenMap[str, str]], ...] = ()
    before: int = 0
    levels: Levels = ()

    @property
    def key(self) -> tuple[str, str]:
        """(parameter, value)."""
        return self.parameter, self.value

    @property
    def row_dims(self) -> tuple[str, ...]:
        """The dims that make up its first dimension in memory."""
        return tuple(self.dims)[:self.rows]

    @property
    def elements(self) -> Monomial:
        """The elements of one instance."""
        return Monomial.product(self.dims.values())


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The items that the `store` events of one program keep, and the program's step, with mesh and pipeline.

    `scalars` are the global values that are stored; `layers` are the repeated units, as the model has them, and how
    many there are of each: some of them that run otherwise are stored as all others are. `sizes` are the model's.
    """

    step: Step
    items: tuple[Item, ...]
    scalars: tuple[str, ...]
    layers: FrozenMap[str, Monomial] = FrozenMap()
    sizes: FrozenMap[str, Fraction] = FrozenMap()

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the mesh, major to minor."""
        return self.step.reference.mesh.names

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that splits the model along its depth."""
        return self.step.reference.pipeline

    def item(self, parameter: str, value: str) -> Item | None:
        """The item of a parameter's state; None if it is not stored."""
        return next((i for i in self.items if i.key == (parameter, value)), None)


def checkpoint(step: Step, strategy: Strategy, model: Model) -> Checkpoint:
    """The checkpoint that the `store` events of a step keep.

    >>> from placealg.models.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.expression import parse_strategy
    >>> zero3 = parse_strategy("zero3")
    >>> [(i.parameter, i.value, i.cut) for i in checkpoint(derive(zero3, abstract()), zero3, abstract()).items]
    [('layer.weight', 'weight', ('dp',)), ('layer.weight', 'moments', ('dp',))]
    """
    known = {p.name: p for p in trained(strategy, model).parameters}
    stores = [e for e in step.phase("save") if e.verb == "store"]
    graph = step.reference.graph
    layers = {loop.unit: loop.count for loop in graph.loops if not graph.single(loop.unit)}
    items = [item for e in stores if e.group for item in _items(step, e, known)]
    if unit := apart(graph):
        layers = {DEPTH: model.graph.count(DEPTH)}
        items = _together(items, unit, layers[DEPTH])
    twice = [i.key for k, i in enumerate(items) if i.key in [j.key for j in items[:k]]]
    if twice:
        raise InputError(f"the {twice[0][1]} of {twice[0][0]} is stored twice: it is not said which one a rank loads")
    return Checkpoint(step, tuple(items), tuple(dict.fromkeys(e.value for e in stores if not e.group)),
                      FrozenMap(layers), FrozenMap({n: Fraction(v) for n, v in model.sizes.items()}))


def _together(items: list[Item], unit: str, count: Monomial) -> list[Item]:
    """The items, with those of layers apart, which are in `unit`, and those of the others as one, of all layers."""
    mine = {i.key: i for i in items if i.units == (unit,)}
    found = []
    for item in items:
        if item.units == (DEPTH,):
            item, other = (replace(i, count=count, units=(DEPTH,)) for i in (item, mine.pop(item.key, item)))
            if replace(other, group=item.group) != item:
                raise InputError(f"the {item.value} of {item.parameter} rests otherwise in layers {DONE[unit]}: it is "
                                 "not told as one")
        if item.units != (unit,):
            found.append(item)
    return [*found, *mine.values()]


def _items(step: Step, event: Event, known: Mapping[str, Parameter]) -> Iterable[Item]:
    group, reference = step.reference.group(event.group), step.reference
    for clause in event.where:
        if clause.but or clause.rank == LAST_RANK:
            raise InputError(f"{event.path}: where = {clause}: who stores what of a checkpoint is said by number")
    at = FrozenMap({c.axis: c.rank for c in event.where if c.rank is not None})
    cut = tuple(a for a in reference.mesh.names if any(c.axis == a and c.rank is None for c in event.where))
    levels = nested((a for a in reference.mesh.names if a not in group.split), cut, [*group.shares, cut])
    flat = bool(cut) and reference.pad == "elements"
    told = [(_ordered(known[p], reference.abstract), _splits(step, group, p)) for p in group.parameters]
    for k, name in enumerate(group.parameters):
        dims, splits = told[k]
        yield Item(original(name), event.value, group.name, group.sites, dims, len(known[name].rows) or len(dims),
                   splits, tuple(a for a in cut if a not in group.split), at,
                   ONE if reference.abstract or reference.graph.single(group.unit) else group.count,
                   group.bytes_of(event.value), flat, tuple(told) if flat else (), k, levels)


def _ordered(parameter: Parameter, abstract: bool) -> FrozenMap[str, Monomial]:
    """The dims of a parameter, those of its rows first; a parameter of the abstract model is one row."""
    if abstract:
        return FrozenMap(dict.fromkeys(parameter.dims, Monomial.of("Psi")))
    rows = parameter.rows or tuple(parameter.dims)
    return FrozenMap({d: parameter.dims[d] for d in (*rows, *(d for d in parameter.dims if d not in rows))})


def _splits(step: Step, group: Group, parameter: str) -> FrozenMap[str, str]:
    said = step.reference.split_dims.get(parameter, FrozenMap())
    return FrozenMap({a: said[a] for a in step.reference.mesh.names if a in said and said[a] != LAYER})


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one mesh by axis, and those of the model's symbols that the dims need."""

    mesh: FrozenMap[str, int]
    model: FrozenMap[str, Fraction]

    def length(self, size: Monomial) -> int:
        """A size as a number."""
        return int(size.evaluate(self.model))

    @property
    def ranks(self) -> int:
        """The number of devices of the mesh."""
        return prod(self.mesh.values())


def coordinates(axes: Iterable[str], sizes: Sizes) -> Iterable[FrozenMap[str, int]]:
    """The coordinates of every rank, in the order of their numbers: the last axis is the fastest.

    >>> [dict(at) for at in coordinates(("dp", "tp"), Sizes(FrozenMap({"dp": 1, "tp": 2}), FrozenMap()))]
    [{'dp': 0, 'tp': 0}, {'dp': 0, 'tp': 1}]
    """
    names = tuple(axes)
    for at in product(*(range(sizes.mesh[a]) for a in names)):
        yield FrozenMap(dict(zip(names, at, strict=True)))


def block(start: int, end: int, place: int, ranks: int) -> tuple[int, int]:
    """The part of [start, end) of one of `ranks` ranks: ⌈length/ranks⌉; the last ones have the rest, or nothing.

    >>> [block(0, 10, k, 4) for k in range(4)], [block(0, 5, k, 4) for k in range(4)]
    ([(0, 3), (3, 6), (6, 9), (9, 10)], [(0, 2), (2, 4), (4, 5), (5, 5)])
    """
    each = -(-(end - start) // ranks)
    return min(start + place * each, end), min(start + (place + 1) * each, end)


def lines_of(*items: Item) -> dict[str, tuple[str, ...]]:
    """The lines along which items of one parameter are compared: name -> the dims laid out on the line, in order.

    The rows are one line, named after its first dim, and every other dim is a line; for items that are cut by elements,
    all dims are one line, as is the one place of a parameter without dims.
    """
    first = items[0]
    if any(i.flat for i in items) or not first.dims:
        return {ELEMENTS: tuple(first.dims)}
    rows = first.row_dims
    return {rows[0]: rows, **{d: (d,) for d in tuple(first.dims)[first.rows:]}}


def held(item: Item, at: Mapping[str, int], sizes: Sizes, lines: Mapping[str, tuple[str, ...]]) -> dict[str, Spans]:
    """Line -> the part of one instance of an item that the rank at these coordinates has."""
    lengths = {d: sizes.length(n) for d, n in item.dims.items()}
    blocks = _blocks(item.dims, item.splits, at, sizes)
    found = {}
    for line, dims in lines.items():
        spans = _flattened([(lengths[d], blocks[d]) for d in dims])
        if item.cut and (line == ELEMENTS or dims == item.row_dims):
            spans = _within(spans, _share(item, blocks, at, sizes, line == ELEMENTS))
        found[line] = spans
    return found


def _blocks(dims: Mapping[str, Monomial], splits: Mapping[str, str], at: Mapping[str, int],
            sizes: Sizes) -> dict[str, tuple[int, int]]:
    found = {d: (0, sizes.length(n)) for d, n in dims.items()}
    for axis, dim in splits.items():
        if dim in found:
            found[dim] = block(*found[dim], at[axis], sizes.mesh[axis])
    return found


def _share(item: Item, blocks: Mapping[str, tuple[int, int]], at: Mapping[str, int], sizes: Sizes,
           by_element: bool) -> Spans:
    """The places that a rank has of a sharded item, among the elements or rows that the splits leave."""
    lengths = {d: end - start for d, (start, end) in blocks.items()}
    if item.flat:
        sizes_beside = [prod(e - s for s, e in _blocks(dims, splits, at, sizes).values())
                        for dims, splits in item.beside]
        here, own = sum(sizes_beside[:item.before]), sizes_beside[item.before]
        return tuple((start - here, end - here)
                     for start, end in meet(_stretches(item, sum(sizes_beside), at, sizes), ((here, here + own),)))
    width = prod(n for d, n in lengths.items() if d not in item.row_dims) if by_element else 1
    return tuple((start * width, end * width)
                 for start, end in _stretches(item, prod(lengths[d] for d in item.row_dims), at, sizes))


def _stretches(item: Item, length: int, at: Mapping[str, int], sizes: Sizes) -> Spans:
    """The places of a line of so many that a rank has, level by level: its own block of each, or those of all ranks."""
    found = [(0, length)]
    for level in item.levels:
        place, ranks = 0, 1
        for axis in level:
            place, ranks = place * sizes.mesh[axis] + at[axis], ranks * sizes.mesh[axis]
        mine = (place,) if level[0] in item.cut else range(ranks)
        found = [block(*span, k, ranks) for span in found for k in mine]
    return _joined(found)


def _joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Spans in order, those that follow each other as one, without empty ones."""
    found: list[tuple[int, int]] = []
    for low, high in spans:
        if found and found[-1][1] == low:
            low = found.pop()[0]
        found += [(low, high)] if low < high else []
    return tuple(found)


def _flattened(dims: Iterable[tuple[int, tuple[int, int]]]) -> Spans:
    """A block of each dim, as spans of all dims in one row, the last dim fastest.

    >>> _flattened([(2, (0, 2)), (4, (1, 3))]), _flattened([(4, (1, 3)), (2, (0, 2))])
    (((1, 3), (5, 7)), ((2, 6),))
    """
    spans: list[tuple[int, int]] = [(0, 1)]
    for length, (start, end) in dims:
        made: list[tuple[int, int]] = []
        for low, high in spans:
            if end - start == length:
                made.append((low * length, high * length))
            else:
                made += [(k * length + start, k * length + end) for k in range(low, high)]
        spans = [s for s in made if s[0] < s[1]]
    return tuple(spans)


def _within(spans: Spans, shares: Spans) -> Spans:
    """The part of some spans that is at these of their places, counted from 0."""
    found, passed = [], 0
    for low, high in spans:
        found += [(first - passed + low, last - passed + low)
                  for first, last in meet(((passed, passed + high - low),), shares)]
        passed += high - low
    return tuple(found)


def meet(one: Spans, two: Spans) -> Spans:
    """The intersection of two sets of spans.

    >>> meet(((0, 4), (6, 9)), ((3, 7),))
    ((3, 4), (6, 7))
    """
    found, i, j = [], 0, 0
    while i < len(one) and j < len(two):
        low, high = max(one[i][0], two[j][0]), min(one[i][1], two[j][1])
        if low < high:
            found.append((low, high))
        i, j = (i + 1, j) if one[i][1] <= two[j][1] else (i, j + 1)
    return tuple(found)


def size(spans: Spans) -> int:
    """The number of places in some spans."""
    return sum(high - low for low, high in spans)


def instances(found: Checkpoint, item: Item, at: Mapping[str, int], sizes: Sizes) -> Spans:
    """The instances of an item's unit that the rank at these coordinates has: all, or its pipeline stage's."""
    count = sizes.length(item.count)
    pipeline, graph = found.pipeline, found.step.reference.graph
    if not pipeline.axis:
        return ((0, count),)
    stage, ranks = at[pipeline.axis], pipeline.ranks(sizes.mesh)
    if pipeline.chunks is None:
        pipeline = replace(pipeline, chunks=sizes.length(CHUNKS))
    loops = [u for u in graph.units if graph.single(u) or u in found.layers]
    counts = {u: sizes.length(found.layers[u]) if u in found.layers else 1 for u in loops}
    chunks = pipeline.layers(sum(counts.values()), ranks)
    if len(item.units) == 1 and item.units[0] in counts:
        first = sum(n for u, n in counts.items() if loops.index(u) < loops.index(item.units[0]))
        mine = [(sum(chunks[:k]), sum(chunks[:k + 1])) for k in pipeline.own(stage, ranks)]
        inside = ((max(a, first) - first, min(b, first + count) - first) for a, b in mine)
        return tuple(s for s in inside if s[0] < s[1])
    ends = {part_of(u, graph) for u in item.units}
    here = {0 for e in ends if e == FIRST} | {pipeline.rank(len(chunks) - 1, ranks) for e in ends if e == LAST}
    here |= {pipeline.predicting_rank(ranks) for e in ends if graph.single(e)}
    return ((0, count),) if stage in here else ()


def stored(item: Item, at: Mapping[str, int]) -> bool:
    """Whether the rank at these coordinates is one of those that stored an item."""
    return all(at[axis] == rank for axis, rank in item.at.items())
