"""The split rule: from lists of dims to the layout of every tensor, and every redistribution between them.

Each mesh axis has an ordered list of entries `dim`, `region.dim`, `region.none`, `region.each`. Along one axis an op is
split along the first entry that applies and along which it can be split; else, if it is linear and one of its operands
is a partial sum, it carries that; else it is computed whole. An op that is not split, spreads what it reads over more
elements and is read by split ops alone makes a copy for each rank, so that its backward carries a partial sum; so does
an op that an entry `region.each` keeps whole. That determines how
each operand is used and the layout of the result. If the layout of a tensor is not the one in which it is used, it is
redistributed, once per target layout, and the redistribution table also gives the redistribution of its gradient.
Nothing here knows a strategy or a model by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.backward import needs_gradient
from placealg.models.graph import Graph, Loop, Op
from placealg.placement import DUAL, Kind, Redistribution, redistribution
from placealg.step.pipeline import spread
from placealg.strategy.vocabulary import EACH, LAYER, NONE

ALIASES: Mapping[str, tuple[str, ...]] = {
    "heads": ("heads", "kv", "group", "state_kv", "state_group", "channel"), "ffn": ("ffn", "dense_ffn"),
    "seq": ("seq", "block")}
"""An entry's dim -> the dims it stands for, in the order in which an axis takes them.

Of grouped heads kv is major. The channels of a convolution that stands alone are its heads; a sequence may be in
blocks. The MLP of a first dense layer has another size than the experts of later ones.
"""

ORDER = ("slice", "scale 1/n", "zero-pad", "none", "reduce_scatter", "all_to_all", "all_reduce", "all_gather")
"""The order of events within one redistribution; backward it is reversed."""

_EFFORT = {"all_to_all": 1, "reduce_scatter": 2, "all_gather": 2, "all_reduce": 4}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor along one axis: its kind, and the dim that is split if the kind is S."""

    kind: Kind
    dim: str = ""

    @property
    def text(self) -> str:
        """As users write it: I, R, P or S(dim)."""
        return f"S({self.dim})" if self.kind is Kind.S else self.kind.value

    def __repr__(self) -> str:
        return f"[{self.text}]"


WHOLE, USED, PARTIAL = Place(Kind.I), Place(Kind.R), Place(Kind.P)
Layout = FrozenMap[str, Place]
"""Axis -> place."""


def dual(layout: Layout) -> Layout:
    """The layout of the gradient of a tensor with this layout."""
    return FrozenMap({a: Place(DUAL[p.kind], p.dim) for a, p in layout.items()})


@dataclass(frozen=True, slots=True)
class RedistributionRow:
    """Equal rows of the redistribution table on some axes at once: one event, with its backward."""

    axes: tuple[str, ...]
    source: Place
    target: Place
    row: Redistribution


@dataclass(frozen=True, slots=True)
class Move:
    """The redistribution of a tensor from one layout to another."""

    tensor: str
    source: Layout
    target: Layout

    def rows(self) -> tuple[RedistributionRow, ...]:
        """The events forward, in order; axes with equal rows share one."""
        found: dict[tuple[Place, Place], list[str]] = {}
        for axis, place in self.source.items():
            if place != self.target[axis]:
                found.setdefault((place, self.target[axis]), []).append(axis)
        rows = [RedistributionRow(tuple(axes), a, b, redistribution(a.kind, b.kind)) for (a, b), axes in found.items()]
        return tuple(sorted(rows, key=lambda r: ORDER.index(r.row.event)))

    def backward(self) -> Move:
        """The redistribution of the gradient: dual(target) -> dual(source)."""
        return Move(self.tensor, dual(self.target), dual(self.source))

    @property
    def effort(self) -> int:
        """A rough cost, which is enough to prefer a free redistribution."""
        return sum(_EFFORT.get(r.row.event, 0) for r in self.rows())


@dataclass(frozen=True, slots=True)
class PlacedOp:
    """An op, how it is split along each axis, and the layouts in which it uses its operands and makes its result."""

    op: Op
    split: FrozenMap[str, str]
    uses: tuple[Layout, ...]
    result: Layout


@dataclass(frozen=True, slots=True)
class Placed:
    """A graph with a layout for every use and every result, and the moves in between.

    `native` maps each tensor to the layout in which it is made (a parameter: in which it rests). A move comes before
    the op that first needs it. Along the axis `pipeline` every op runs whole, on one stage. What the ops `kept` make
    and keep is held although their region is recomputed.
    """

    graph: Graph
    axes: tuple[str, ...]
    ops: tuple[PlacedOp, ...]
    native: FrozenMap[str, Layout]
    moves: tuple[tuple[str, Move], ...]
    pipeline: str = ""
    kept: frozenset[str] = frozenset()

    def op(self, output: str) -> PlacedOp:
        """The op that makes `output`, as placed."""
        return next(p for p in self.ops if p.op.output == output)

    def moves_before(self, op: str) -> tuple[Move, ...]:
        """The redistributions that come before an op."""
        return tuple(m for at, m in self.moves if at == op)


def entry_dims(entry: str, op: Op, dims: tuple[str, ...]) -> tuple[str, ...]:
    """The dim of `op` that an entry names; (NONE,) or (EACH,) if the entry keeps it whole; () if it does not apply.

    `dim` applies to any op that has the dim, `region.dim`, `region.none` and `region.each` to the ops of that region,
    or to the op that has this whole name.
    """
    region, _, dim = entry.rpartition(".")
    if region and region != op.output and not op.within(region):
        return ()
    if dim in (NONE, EACH):
        return (dim,)
    return tuple(d for d in ALIASES.get(dim, (dim,)) if d in dims)[:1]


def splittable(op: Op, dim: str) -> bool:
    """Whether an op can be split along a dim; along a normalised or rotated one it cannot."""
    return dim not in op.over or op.row.over in ("partial", "statistics")


def split_of(entries: tuple[str, ...], op: Op, graph: Graph) -> str:
    """The dim along which an axis with these entries splits an op; NONE if one keeps it whole, "" if none applies."""
    word = _said(entries, op, graph)
    return NONE if word == EACH else word


def _said(entries: tuple[str, ...], op: Op, graph: Graph) -> str:
    """What the first entry that applies says of an op: a dim, NONE or EACH; "" if none applies."""
    dims = graph.iteration_dims(op)
    for entry in entries:
        for dim in entry_dims(entry, op, dims):
            if dim in (NONE, EACH) or splittable(op, dim):
                return dim
    return ""


def place(graph: Graph, lists: Mapping[str, tuple[str, ...]], shared: bool = True) -> Placed:
    """Apply the split rule along every axis of `lists` (axis -> ordered entries) to the whole graph.

    `shared`: one redistribution serves all uses in one layout; else every use has its own. What enters a repeated unit
    has the layout of what leaves it, so that one instance represents all; what enters a unit of one instance has that
    of what left the unit before.
    """
    rest = dict(_resting(graph, lists))
    rest |= {t.name: _whole(lists) for t in graph.tensors.values() if t.kind == "data"}
    slots = {loop.slot: _whole(lists) for loop in graph.handed}
    for _ in range(_TRIES + len(graph.handed)):
        rule = _Rule(graph, lists, shared, {name: [layout] for name, layout in (*rest.items(), *slots.items())})
        for op in graph.ops:
            rule.run(op)
        left = {loop.slot: rule.versions[loop.last][0] for loop in graph.handed}
        left |= {loop.slot: _handed_on(loop, graph, left, rule.versions) for loop in graph.handed
                 if graph.single(loop.unit)}
        if left == slots:
            return Placed(graph, tuple(lists), tuple(rule.ops),
                          FrozenMap({n: v[0] for n, v in rule.versions.items()}), tuple(rule.moves),
                          next((axis for axis, entries in lists.items() if LAYER in entries), ""))
        slots = left
    raise InputError("what leaves a repeated unit is never laid out as what entered it")


_TRIES = 4


def _handed_on(loop: Loop, graph: Graph, slots: Mapping[str, Layout], versions: Mapping[str, list[Layout]]) -> Layout:
    """The layout of what enters a unit of one instance: that of what was made before it, however often handed on since.

    What stands before all layers hands it on in the layout in which these pass it to each other.
    """
    if loop == graph.loops[0]:
        return next((slots[after.slot] for after in graph.handed if after.first == loop.last), versions[loop.first][0])
    name = loop.first
    while (before := graph.slot(graph.storage(name))) is not None and graph.single(before.unit):
        name = before.first
    return versions[name][0]


def _whole(lists: Mapping[str, tuple[str, ...]]) -> Layout:
    return FrozenMap(dict.fromkeys(lists, WHOLE))


def _resting(graph: Graph, lists: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Layout]]:
    """Parameter and layout: split along its own dim if the op that uses it is split along that dim, else whole."""
    found: dict[str, Layout] = {}
    for op in graph.ops:
        for name in dict.fromkeys(op.inputs):
            tensor = graph.tensors[name]
            if tensor.kind == "parameter":
                dims = {axis: split_of(entries, op, graph) for axis, entries in lists.items()}
                layout: Layout = FrozenMap({a: Place(Kind.S, d) if d in tensor.dims else WHOLE
                                            for a, d in dims.items()})
                if found.setdefault(name, layout) != layout:
                    raise InputError(f"op '{op.output}' would split parameter '{name}' as {layout}, an earlier one as "
                                     f"{found[name]}")
    yield from found.items()


@dataclass(slots=True)
class _Rule:
    """The state of the split rule: the layouts in which each tensor is known so far, and the moves made."""

    graph: Graph
    lists: Mapping[str, tuple[str, ...]]
    shared: bool
    versions: dict[str, list[Layout]]
    ops: list[PlacedOp] = field(default_factory=list)
    moves: list[tuple[str, Move]] = field(default_factory=list)

    def run(self, op: Op) -> None:
        """Place one op."""
        self.enter(op)
        natives = [self.versions[n][0] for n in op.inputs]
        if op.row.view:
            made = FrozenMap({a: Place(p.kind, op.rename.get(p.dim, p.dim)) for a, p in natives[0].items()})
            self.ops.append(PlacedOp(op, FrozenMap(dict.fromkeys(self.lists, "")), (natives[0],), made))
            self.versions[op.output] = [made]
            return
        splits = {axis: split_of(entries, op, self.graph) for axis, entries in self.lists.items()}
        each = {a: _said(entries, op, self.graph) == EACH for a, entries in self.lists.items()}
        last = op == self.graph.ops[-1]
        carried = {a: d in ("", NONE) and not last and not each[a] and self.carries(op, [n[a].kind for n in natives])
                   for a, d in splits.items()}
        spread = {a: each[a] or (not carried[a] and self.spreads(op, a)) for a in splits}
        uses = []
        for name, native in zip(op.inputs, natives, strict=True):
            dims = self.graph.tensors[name].dims
            for_each = USED if name in needs_gradient(self.graph) else WHOLE
            uses.append(self.use(op, name, FrozenMap({
                a: native[a] if carried[a] and native[a] == PARTIAL else for_each if carried[a] or spread[a]
                else WHOLE if d in ("", NONE) else Place(Kind.S, d) if d in dims else USED
                for a, d in splits.items()})))
        result: Layout = FrozenMap({a: PARTIAL if carried[a] else USED if spread[a] else WHOLE if d in ("", NONE)
                                    else self.made(op, d) for a, d in splits.items()})
        self.ops.append(PlacedOp(op, FrozenMap(splits), tuple(uses), result))
        self.versions[op.output] = [result]

    def carries(self, op: Op, kinds: list[Kind]) -> bool:
        """Whether a linear op passes partial sums on: all its operands are such sums, or one factor of a product is.

        Other factors that need a gradient get a partial sum of it, from the one that is a sum: they must be
        activations, and the result smaller than the sum, so that less is reduced than without.
        """
        if op.row.linear != "each":
            return op.row.linear == "all" and all(k is Kind.P for k in kinds)
        if kinds.count(Kind.P) != 1:
            return False
        others = [n for n, k in zip(op.inputs, kinds, strict=True) if k is not Kind.P]
        if not needs_gradient(self.graph).intersection(others):
            return all(k in (Kind.P, Kind.I) for k in kinds)
        tensors = self.graph.tensors
        smaller = set(tensors[op.output].dims) < set(tensors[op.inputs[kinds.index(Kind.P)]].dims)
        return smaller and all(tensors[n].kind != "parameter" for n in others)

    def spreads(self, op: Op, axis: str) -> bool:
        """Whether an op that an axis does not split makes a copy for each rank: R, of which the gradient is partial.

        It is linear, larger than all that it passes a gradient to, and each of its readers is split and takes it whole.
        """
        made, readers = self.graph.tensors[op.output], self.graph.consumers(op.output)
        ends = {name for loop in self.graph.handed for name in (loop.first, loop.last)}
        passed = needs_gradient(self.graph).intersection(op.inputs)
        if (op.row.linear != "each" or not readers or made.name in ends or made.name not in needs_gradient(self.graph)
                or any(self.graph.tensors[n].kind == "parameter" for n in op.inputs)
                or split_of(self.lists[axis], op, self.graph) not in ("", NONE)):
            return False
        wide = all(set(self.graph.tensors[n].dims) < set(made.dims) for n in passed)
        along = [split_of(self.lists[axis], reader, self.graph) for reader in readers]
        return wide and all(d not in ("", NONE) and d not in made.dims for d in along)

    def enter(self, op: Op) -> None:
        """At the first op of a repeated unit, bring what comes before it into the layout of the slot."""
        if op == self.graph.of_unit(op.unit)[0]:
            for loop in self.graph.entering(op.unit):
                self.use(op, loop.first, self.versions[loop.slot][0])

    def made(self, op: Op, dim: str) -> Place:
        """The place of the result of an op split along `dim`: a shard, a partial sum, or whole with merged rows."""
        if dim in self.graph.tensors[op.output].dims:
            return Place(Kind.S, dim)
        return WHOLE if dim in op.over and op.row.over == "statistics" else PARTIAL

    def use(self, op: Op, name: str, wanted: Layout) -> Layout:
        """Bring a tensor into the wanted layout: it is known already, or a move makes it from the cheapest one."""
        if self.graph.tensors[name].kind == "data" and all(p in (WHOLE, USED) for p in wanted.values()):
            return wanted
        known = self.versions[name] if self.shared else self.versions[name][:1]
        if wanted not in known:
            source = min(known, key=lambda version: Move(name, version, wanted).effort)
            self.moves.append((op.output, Move(name, source, wanted)))
            self.versions[name].append(wanted)
        return wanted


def summed(placed: Placed) -> Mapping[str, tuple[str, ...]]:
    """Parameter -> the axes along which its gradient is a partial sum: those on which its uses are R.

    A tied parameter that a pipeline spreads over stages has a part of its gradient on each. If one use is R and another
    is not, the gradient is neither partial nor whole: an InputError.
    """
    found: dict[str, set[str]] = {}
    first: dict[str, tuple[str, set[str]]] = {}
    for made in placed.ops:
        for name, use in zip(made.op.inputs, made.uses, strict=True):
            if placed.graph.tensors[name].kind == "parameter":
                axes = {a for a, at in use.items() if at.kind is Kind.R}
                op, before = first.setdefault(name, (made.op.output, axes))
                for axis in before ^ axes:
                    split, whole = (op, made.op.output) if axis in before else (made.op.output, op)
                    raise InputError(f"'{name}' is used by '{split}', which {axis} splits, and by '{whole}', which it "
                                     "keeps whole: its gradient would be partly a sum; split both, or neither")
                found.setdefault(name, set()).update(axes)
    for name in found:
        if placed.pipeline and spread(placed.graph.sites(name), placed.graph):
            found[name].add(placed.pipeline)
    return {name: tuple(a for a in placed.axes if a in axes) for name, axes in found.items()}


def split_dims(placed: Placed) -> FrozenMap[str, FrozenMap[str, str]]:
    """Parameter -> axis -> the dim by which it is split there; parameters that rest whole are left out.

    A pipeline axis splits them by LAYER: all but a tied parameter, which is held on the stages of all its uses.
    """
    found = {p.name: {a: at.dim for a, at in placed.native[p.name].items() if at.kind is Kind.S}
             for p in placed.graph.parameters}
    for name in found:
        if placed.pipeline and not spread(placed.graph.sites(name), placed.graph):
            found[name][placed.pipeline] = LAYER
    return FrozenMap({name: FrozenMap(dims) for name, dims in found.items() if dims})


def data_axes(placed: Placed) -> tuple[str, ...]:
    """The axes that split the tokens: along them the loss, the last op's result, is a partial sum."""
    last = placed.ops[-1].result
    return tuple(a for a in placed.axes if last[a].kind is Kind.P)
