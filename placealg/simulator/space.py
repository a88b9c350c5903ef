"""The sizes of a run of an op graph, and who owns what: indices of dims, sequences, elements of parameters.

Every dim is small. The batch is the sequences of one microbatch, numbered through the step; the setting's token counts
say how many of them each rank of the data axes has (`tokens.py`). Any other dim is cut into equal blocks by all axes
that split it somewhere, the first axis of the mesh in the largest blocks; under every other seed a rank has of a dim of
tokens two blocks, one from the front and one from the back (a zig-zag). All of this follows from the reference, that is
from the strategy's lists of dims, and nothing from the events.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from placealg.arith import Monomial
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.blocks import BLOCK, NUMBERS
from placealg.models.graph import SAMPLES, Graph, Op
from placealg.models.stage_parts import shown_data
from placealg.models.tokens import DOCUMENTS, POSITIONS, WEIGHTS, ahead, weights_of_loss
from placealg.simulator import network
from placealg.simulator.box import Box, Extent, Indices
from placealg.simulator.field import Array, Number, Residues, drawn, element_type, keyed, objects, reduced, residues
from placealg.simulator.network import Token
from placealg.simulator.rules import WHOLE, split_dim
from placealg.simulator.setting import ELEMENTS, Setting
from placealg.simulator.tokens import BATCH, PAIR, Cutting, Tokens
from placealg.step.program import Group, Reference
from placealg.step.versions import LEFT_OUT, ONCE
from placealg.strategy.vocabulary import LAYER

_MOST, _SMALLEST, _EVEN, _CHOICE = 12, 2, 2, 2


@dataclass(frozen=True, slots=True, eq=False)
class OwnedElements:
    """Elements of one parameter of a group that have the same owners: one entry in every table.

    `numbers` are their places in the parameter, `first` the number of the first of them among the group's elements,
    `split` the coordinate of their owner along each axis that splits the parameter by one of its dims.
    """

    parameter: str
    numbers: Array
    first: int
    split: Mapping[str, int]


class Space:
    """The sizes, owners, data and parameter elements of one run of an op graph.

    Of a graph of whole units a token is a vector and a parameter a matrix of fractions, those of `network.py`; of other
    graphs all numbers are residues. `whole` tells which.

    `loss_dims` are the dims of what the loss sums. `batch_axes` are the data axes that split the batch, of any op: a
    sequence belongs to the ranks of its cell along them. Along other data axes, which split every sequence, a cell has
    a part of each. `differentiable` are the tensors that take a gradient; `extents` remembers where parts of parameters
    lie.
    """

    def __init__(self, reference: Reference, graph: Graph, setting: Setting) -> None:
        self.reference, self.graph, self.setting = reference, graph, setting
        self.axes, self.loss_dims = reference.mesh.names, _loss_dims(graph)
        self.whole = reference.whole
        self.differentiable = _differentiable(graph, {p for g in reference.groups if g.statistic or g.frozen
                                                              for p in g.parameters})
        split = _split_by(reference, graph)
        self._loss_split = {a: _loss_split(reference, graph, a) for a in reference.data_axes}
        self.batch_axes = tuple(a for a in reference.data_axes if BATCH in split[a])
        self.weighted, self.packed = WEIGHTS in graph.tensors, DOCUMENTS in graph.tensors
        own = tuple(graph.tensors[WEIGHTS].dims) if self.weighted else self.loss_dims
        self._token_dims = {name for dim in own if dim != BATCH for name in _names(graph, dim)}
        self._blocks = _blocks(graph, self._token_dims, split)
        self._shared = tuple(a for a in self._blocks[BATCH] if a not in reference.data_axes)
        multiples = {d: math.lcm(n, setting.multiples.get(d, 1)) for d, n in self.multiples().items()}
        self.sizes = _sizes(graph, FrozenMap(multiples))
        self._owners: dict[tuple[str, str, int], int] = {}
        apart = {a: d for a, d in self._loss_split.items() if a not in self.batch_axes and d != BATCH}
        each = math.prod(setting.sizes[a] for a in self._shared)
        inner = {d: self.sizes[d] for d in own if d != BATCH}
        cutting = Cutting(self.batch_axes, apart, each, inner, self.owner,
                          all(n % multiples[d] == 0 for d, n in inner.items()))
        self._tokens = Tokens(reference, setting, cutting, {d: self.sizes[d] for d in self.loss_dims if d != BATCH},
                              self.weighted and setting.padding)
        self._counted: dict[tuple[tuple[tuple[str, int], ...], int, str, str, int], int] = {}
        self._data: dict[tuple[str, int, Indices], Box] = {}
        self._parts: dict[str, tuple[OwnedElements, ...]] = {}
        self.extents: dict[tuple[str, tuple[int, ...]], Extent] = {}

    def multiples(self) -> dict[str, int]:
        """Dim -> what divides its size: the product of the sizes of all axes that split it somewhere.

        Of tokens each block has two at least, whose weights differ; with documents, which have several, four.
        """
        ranks = {d: math.prod(self.setting.sizes[a] for a in axes) for d, axes in self._blocks.items()}
        least = PAIR * (2 if DOCUMENTS in self.graph.tensors else 1)
        return {d: n * (least if d in self._token_dims else 1) * self._turns(d) for d, n in ranks.items()}

    def _turns(self, dim: str) -> int:
        """How many blocks of a dim each rank has."""
        cut = any(self.setting.sizes[a] > 1 for a in self._blocks[dim])
        return 2 if cut and dim in self._token_dims and self.setting.seed % 2 else 1

    def sequences(self, microbatch: int, loss: str = "") -> Indices:
        """The sequences of a microbatch, those of all ranks; of one loss or of all."""
        return self._tokens.sequences(microbatch, loss)

    def extent(self, dims: Iterable[str], sequences: Indices) -> Extent:
        """All indices of these dims."""
        return {d: sequences if d == BATCH else tuple(range(self.sizes[d])) for d in dims}

    def owner(self, axis: str, dim: str, index: int) -> int:
        """The coordinate on `axis` that owns an index of a dim."""
        key = (axis, dim, index)
        if key not in self._owners:
            self._owners[key] = self._owner(*key)
        return self._owners[key]

    def _owner(self, axis: str, dim: str, index: int) -> int:
        if dim == BATCH and axis in self.batch_axes:
            return self._tokens.cells[index][axis]
        axes = self._shared if dim == BATCH else self._blocks[dim]
        axes = axes if axis in axes else (axis,)
        size = math.prod(self.setting.sizes[a] for a in axes)
        turns = 1 if dim == BATCH else self._turns(dim)
        block = index % size if dim == BATCH else index * size * turns // self.sizes[dim]
        block = block if block < size else turns * size - 1 - block
        inside = math.prod(self.setting.sizes[a] for a in axes[axes.index(axis) + 1:])
        return block // inside % self.setting.sizes[axis]

    def owned(self, axes: Iterable[str], at: Mapping[str, int], dim: str, indices: Indices) -> Indices:
        """The indices of a dim that the rank with coordinates `at` owns along every one of `axes`."""
        names = tuple(axes)
        return tuple(i for i in indices if all(self.owner(a, dim, i) == at[a] for a in names))

    def drawn(self, axis: str, at: Mapping[str, int], dim: str, indices: Indices) -> Indices:
        """As many indices as the rank with coordinates `at` owns along `axis`, in an order of its own.

        The order is turned by its coordinate: rank 0 takes what it owns.
        """
        turned = indices[at[axis] % max(1, len(indices)):] + indices[:at[axis] % max(1, len(indices))]
        known = {i: turned[k] for k, i in enumerate(indices)}
        return tuple(sorted(known[i] for i in self.owned((axis,), at, dim, indices)))

    def tokens(self, at: Mapping[str, int], microbatch: int, loss: str = "", how: str = "", further: int = 0) -> int:
        """The weight of what the rank with coordinates `at` has of a microbatch, of what one loss, or all, sum.

        With `how` the label of weights that are left out it is the number of tokens, of those taken once that of tokens
        with a weight. `further` says of tokens how many places on that one is whose weight is meant.
        """
        key = (tuple(at.items()), microbatch, loss, how, further)
        if key not in self._counted:
            held = {dim: self.owned([a for a, split in self._loss_split.items() if split == dim], at, dim, indices)
                    for dim, indices in self.extent(self.loss_dims, self.sequences(microbatch, loss)).items()}
            each = np.broadcast_to(self._tokens.counted(held, further, self.packed), [len(at) for at in held.values()])
            self._counted[key] = int(each.size if how == LEFT_OUT else (each > 0).sum() if how == ONCE else each.sum())
        return self._counted[key]

    def samples(self, at: Mapping[str, int], microbatch: int) -> int:
        """The number of samples that the rank with coordinates `at` has of a microbatch."""
        rows = [a for a, split in self._loss_split.items() if split == BATCH]
        return int(self._tokens.samples(self.owned(rows, at, BATCH, self.sequences(microbatch))).sum())

    def shares(self, inside: Mapping[int, Indices]) -> dict[int, Fraction]:
        """Microbatch -> its share of the samples of all, by the rows of each."""
        held = {k: int(self._tokens.samples(rows).sum()) for k, rows in inside.items()}
        return {k: Fraction(n, sum(held.values()) or 1) for k, n in held.items()}

    def weights(self, extent: Extent) -> Array:
        """What the gradient of a loss is at every number of an extent of what it sums: 1 where weights are data."""
        if self.weighted:
            return np.ones([1] * len(extent), element_type())
        return self._tokens.counted(extent).astype(element_type())

    def weight(self, extent: Extent, further: int = 0) -> int:
        """The weight of all that an extent has of what losses sum; `further` is that of `tokens`."""
        each = self._tokens.counted(extent, further, self.packed)
        return int(np.broadcast_to(each, [len(at) for at in extent.values()]).sum())

    def data(self, name: str, number: int, sequences: Indices) -> Box:
        """The numbers that come with the batch of step `number`; ids are rows of the table that they address."""
        name = shown_data(name)
        key = (name, number, sequences)
        if key not in self._data:
            extent = self.extent(self.graph.tensors[name].dims, sequences)
            if self.whole:
                return Box(extent, objects([self.token(number, i).x for i in sequences]))
            if (attribute := self._attribute(name, extent)) is not None:
                self._data[key] = Box(extent, attribute)
                return self._data[key]
            ids = self.graph.tensors[name].element == "ids"
            numbers = (drawn if ids else keyed)(f"data {self.setting.seed} {number} {name}", extent)
            rows = [op.over[0] for op in self.graph.consumers(name) if op.over] if ids else []
            numbers = numbers % self.sizes[rows[0]] if rows else numbers
            self._data[key] = Box(extent, numbers)
        return self._data[key]

    def _attribute(self, name: str, extent: Extent) -> Array | None:
        """The numbers of an attribute of tokens; positions begin again with each document where there are some.

        Those of blocks are their places.
        """
        if name == NUMBERS:
            return np.array(extent[BLOCK], np.int64)
        if name == SAMPLES:
            return self._tokens.samples(extent[BATCH])
        if name.startswith(WEIGHTS):
            return self._tokens.weights(extent, ahead(name), self.packed).astype(element_type())
        if name == DOCUMENTS:
            return self._tokens.documents(extent)
        return self._tokens.positions(extent) if name == POSITIONS and self.packed else None

    def token(self, number: int, sequence: int) -> Token:
        """A token of step `number`, of a graph of whole units."""
        return network.token(self.setting.seed, number, sequence)

    def mask(self, op: Op, instance: int, stream: Fraction, extent: Extent, *deviation: str) -> Array:
        """The factors of a dropout, or of a whole unit, at every point, as a function of the logical key."""
        if self.whole:
            return objects([network.random_factor(self.setting.seed, stream, i, op.unit, instance, *deviation)
                            for i in extent[BATCH]])
        named = self.setting.named(self.graph, op.output, instance)
        return keyed(f"mask {self.setting.seed} {stream} {named} {deviation}", extent)

    def initial(self, parameter: str, instance: int) -> Array:
        """The initial value of a parameter, whole and flat."""
        if self.whole:
            return objects(network.initial_weight(self.setting.seed, parameter, instance))
        return keyed(f"weight {self.setting.seed} {self.setting.named(self.graph, parameter, instance)}",
                     self.extent(self.graph.tensors[parameter].dims, ())).ravel()

    def number(self, numbers: Array) -> Number:
        """The number of an entry, from the numbers of its elements."""
        return Fraction(numbers[0]) if self.whole else Residues(numbers)

    def numbers(self, number: Number) -> Array:
        """The numbers of an entry's elements."""
        return objects([number]) if self.whole else residues(number)

    def zeros(self, shape: Iterable[int]) -> Array:
        """As many zeros."""
        made = tuple(shape)
        return np.full(made, network.ZERO, dtype=object) if self.whole else np.zeros(made, element_type())

    def parts(self, group: Group) -> tuple[OwnedElements, ...]:
        """The elements of one instance of a group, in parts of equal owners; its first elements stand alone."""
        if group.name not in self._parts:
            self._parts[group.name] = tuple(self._parts_of(group))
        return self._parts[group.name]

    def sums_a_term(self, op: Op) -> bool:
        """Whether an op sums a term of the loss besides the last: a sum to one number that nobody reads."""
        named = self.graph.tensors[op.output]
        return op.kind == "sum" and not named.dims and op != self.graph.ops[-1] and not any(
            op.output in other.inputs for other in self.graph.ops)

    def numbering(self, parameter: str, numbered: tuple[str, ...]) -> Array:
        """Of every element of a parameter, as they lie in memory, the number of its matrix in a stack."""
        extent = self.extent(self.graph.tensors[parameter].dims, ())
        sizes = {d: len(at) for d, at in extent.items()}
        index = dict(zip(sizes, np.indices(tuple(sizes.values())), strict=True))
        found = np.zeros(tuple(sizes.values()), np.int64)
        for d in numbered:
            found = found * sizes[d] + index[d]
        return found.reshape(-1)

    def _parts_of(self, group: Group) -> Iterator[OwnedElements]:
        start = 0
        for name in group.parameters:
            extent = self.extent(self.graph.tensors[name].dims, ())
            count = math.prod(map(len, extent.values()))
            splits = {axis: dim for axis, dim in self.reference.split_dims.get(name, {}).items() if dim != LAYER}
            found: dict[tuple[int, ...], list[int]] = {}
            for number, at in enumerate(itertools.product(*extent.values())):
                index = dict(zip(extent, at, strict=True))
                place = start + number
                turn = place if place in ELEMENTS else len(ELEMENTS) + place % len(ELEMENTS)
                owners = tuple(self.owner(axis, dim, index[dim]) for axis, dim in splits.items())
                found.setdefault((turn, *owners), []).append(number)
            for key, numbers in found.items():
                along = dict(zip(splits, key[1:], strict=True))
                yield OwnedElements(name, np.array(numbers), start + numbers[0], along)
            start += count


def _differentiable(graph: Graph, statistics: set[str]) -> frozenset[str]:
    """The parameters, but for statistics and what is frozen, and every tensor that depends on one."""
    found = {t.name for t in graph.parameters} - statistics
    for _ in range(1 + len(graph.handed)):
        for op in graph.ops:
            if op.row.differentiable and found.intersection(op.inputs):
                found.add(op.output)
        for loop in graph.handed:
            if found & {loop.first, loop.last}:
                found.add(loop.slot)
    return frozenset(found)


def _loss_dims(graph: Graph) -> tuple[str, ...]:
    last = graph.ops[-1]
    if last.kind != "sum":
        raise InputError(f"op '{last.output}' is not a sum: the loss is a sum over tokens")
    return tuple(graph.tensors[last.inputs[0]].dims)


def _split_by(reference: Reference, graph: Graph) -> dict[str, set[str]]:
    """Axis -> the dims by which some op or some parameter is split along it, under all names that they take."""
    found: dict[str, set[str]] = {}
    for axis in reference.mesh.names:
        entries = () if axis == reference.pipeline.axis else reference.dims.get(axis, ())
        dims = {split_dim(entries, op, graph) for op in graph.ops if not op.row.view} - {"", WHOLE}
        dims |= {split[axis] for split in reference.split_dims.values() if axis in split} - {LAYER}
        if axis in reference.data_axes and not dims:
            dims = {BATCH}
        found[axis] = {name for dim in dims for name in _names(graph, dim)}
    return found


def _names(graph: Graph, dim: str) -> set[str]:
    """A dim under all the names that renamings give it: they have the same owners."""
    found = {dim}
    for _ in graph.ops:
        more = {d for op in graph.ops for pair in op.rename.items() if found.intersection(pair) for d in pair}
        if more <= found:
            break
        found |= more
    return found


def _loss_split(reference: Reference, graph: Graph, axis: str) -> str:
    """The dim by which a data axis splits what the loss sums."""
    dim = split_dim(reference.dims.get(axis, ()), graph.ops[-1], graph)
    return BATCH if dim in ("", WHOLE) else dim


def _blocks(graph: Graph, tokens: Collection[str], split: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    """Dim -> the axes that cut it into equal blocks: those that split it.

    The dims of tokens are cut by every axis that splits more than the batch, so that any shard has as many of them.
    """
    return {d: tuple(a for a, dims in split.items() if d in dims or (d in tokens and dims - {BATCH}))
            for d in {BATCH: None, **graph.dims}}


@lru_cache(maxsize=64)
def _sizes(graph: Graph, blocks: FrozenMap[str, int]) -> Mapping[str, int]:
    """Small sizes of all dims but the batch: whole numbers, multiples of `blocks` wherever the dims leave a choice.

    What a route chooses from is larger than what it chooses.
    """
    dims = {d: n for d, n in graph.dims.items() if d != BATCH}
    paired = {d for op in graph.ops if op.kind == "rope" for d in op.over}
    multiple = {d: math.lcm(blocks[d], _EVEN if d in paired else 1) for d in dims}
    least = {op.over[0]: _CHOICE * max(_SMALLEST, multiple[op.over[1]]) for op in graph.ops if op.kind == "route"}
    found: dict[str, int] = {}
    for names in _together(dims.values()):
        own = {d: n for d, n in dims.items() if set(n.names()) & names}
        order = _ordered(names, own.values())
        tried = itertools.chain(*(_values(order, own, m, least, {}) for m in (multiple, dict.fromkeys(own, 1))))
        values = next(tried, None)
        if values is None:
            raise InputError(f"the dims {', '.join(own)} have no small sizes that are whole numbers")
        found |= values
    return {d: int(n.evaluate(found)) for d, n in dims.items()}


def _together(sizes: Iterable[Monomial]) -> list[set[str]]:
    """The symbols, those that stand in one size together."""
    found: list[set[str]] = []
    for size in sizes:
        names = set(size.names())
        met = [group for group in found if group & names]
        found = [group for group in found if group not in met] + ([names.union(*met)] if names else [])
    return found


def _ordered(names: Iterable[str], sizes: Iterable[Monomial]) -> list[str]:
    """The symbols in dependency order: divisors first."""
    waiting = sorted(names)
    powers = [dict(size.powers) for size in sizes]
    found: list[str] = []
    while waiting:
        divisors = {n: {d for p in powers if p.get(n, 0) > 0 for d in p if p[d] < 0} for n in waiting}
        found.append(next((n for n in waiting if divisors[n] <= set(found)), waiting[0]))
        waiting.remove(found[-1])
    return found


def _values(names: list[str], dims: Mapping[str, Monomial], multiple: Mapping[str, int], least: Mapping[str, int],
            known: dict[str, int]) -> Iterator[dict[str, int]]:
    """Values of the symbols, the smallest first, one symbol after the other as long as all dims fit."""
    if not names:
        yield known
        return
    name, settled = names[0], {*known, names[0]}
    here = {d: n for d, n in dims.items() if name in n.names() and set(n.names()) <= settled}
    steps = [(multiple[d] / n.evaluate({**known, name: 1})).numerator for d, n in here.items()
             if dict(n.powers)[name] == 1]
    step = math.lcm(*steps)
    for value in range(step, _MOST * max(step, *multiple.values()) + 1, step):
        sizes = {d: n.evaluate({**known, name: value}) for d, n in here.items()}
        if all(n.denominator == 1 and n >= least.get(d, _SMALLEST) and n % multiple[d] == 0 for d, n in sizes.items()):
            yield from _values(names[1:], dims, multiple, least, {**known, name: value})


def weights(space: Space, of: str = "") -> dict[int, Fraction]:
    """Sequence -> by what the weight of each of its tokens is multiplied in the loss whose sequence it is.

    Or in the loss `of` an op graph, all of which have the same sequences.
    """
    found, microbatches = dict[int, Fraction](), range(space.setting.microbatches)
    weighting, valid = space.reference.weighting, ("token_mean", "microbatch_mean", "sample_mean", "sum")
    if weighting not in valid:
        raise InputError(f"unknown reference weighting '{weighting}'", name=weighting, valid=valid)
    on = ahead(weights_of_loss(of))
    for loss in space.reference.separate:
        inside = {k: space.sequences(k, loss) for k in microbatches}
        counted = {k: space.weight(space.extent(space.loss_dims, ids), on) for k, ids in inside.items()}
        share = space.shares(inside) if weighting == "sample_mean" else {}
        for k, ids in inside.items():
            count = sum(counted.values()) if weighting == "token_mean" else counted[k]
            part = share.get(k, Fraction(1, len(microbatches) if weighting == "microbatch_mean" else 1))
            found |= dict.fromkeys(ids, Fraction(1) if weighting == "sum" else part / count if count else network.ZERO)
    return found


def seed_of(space: Space, number: int, box: Box, factor: Mapping[int, Fraction]) -> Box:
    """The gradient of the loss of step `number` with respect to what it reads: each token's weight, times a factor.

    The factors are those of sequences. Of whole units the loss of a token is half the squared distance to its target.
    """
    if space.whole:
        outputs = zip(box.extent[BATCH], box.numbers, strict=True)
        return Box(box.extent, objects([network.loss_gradient(y, space.token(number, i).target, factor[i])
                                        for i, y in outputs]))
    along = np.array([residues(factor[i])[0] for i in box.extent[BATCH]], element_type())
    shape = [len(at) if d == BATCH else 1 for d, at in box.extent.items()]
    return Box(box.extent, reduced(np.broadcast_to(along.reshape(shape) * space.weights(box.extent),
                                                   box.numbers.shape)))


def of(reference: Reference, setting: Setting) -> Space:
    """The space of a run of a step, lowered where its units run whole."""
    return Space(reference, reference.graph, setting)

