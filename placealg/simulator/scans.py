"""Scans and causal convolutions, place by place, with their derivatives, over the prime field.

These ops are sums and products, so that here they are the real ones. What is not held of the places before counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from placealg.models.graph import Op
from placealg.simulator.box import Box, Extent, aligned, common, elementwise, product
from placealg.simulator.field import Array, reduced

Read = Callable[[int], Box]
"""Position of an operand -> what is held of it."""

_AFTER = ("left", "delta_left", "delta_passed")
"""The kinds whose result is the last state."""


def scan(op: Op, operands: Sequence[Box], dims: tuple[str, ...]) -> Box:
    """What the queries read of the states, or the last state."""
    run = _Run(op, dict(zip(op.row.operands, operands, strict=True)))
    if op.kind not in _AFTER:
        return product([run.after(), run.box("q")], dims)
    last = run.after()
    return Box({d: last.extent[d] for d in last.dims[1:]}, last.numbers[-1]).ordered(dims)


def scan_back(op: Op, position: int, dy: Box, read: Read, dims: tuple[str, ...]) -> Box:
    """What the gradient of the result contributes to that of an operand."""
    role, of = op.row.operands[position], {r: k for k, r in enumerate(op.row.operands)}
    delta = "delta" in op.kind
    run = _Run(op, {r: read(of[r]) for r in _reads(delta, role) if r in of})
    if role == "q":
        return product([run.after(), dy], dims)
    adjoint = run.adjoint(dy)
    if role == "state":
        entered = run.before_first(adjoint)
        return entered.ordered(dims)
    if not delta:
        others = {"k": ("v", "beta"), "v": ("k", "beta"), "beta": ("k", "v")}.get(role, ())
        return product([adjoint, *(run.box(r) for r in others), *([run.before()] if role == "decay" else [])], dims)
    along = product([adjoint, run.box("k")], run.values)
    if role == "v":
        return product([along, run.box("beta")], dims)
    if role == "beta":
        return product([along, run.error()], dims)
    of_seen = elementwise(lambda a, b: -a * b, [along, run.box("beta")], run.values)
    if role == "k":
        written = product([adjoint, run.error(), run.box("beta")], dims)
        return elementwise(lambda a, b: a + b, [written, product([run.held(), of_seen], dims)], dims)
    of_held = elementwise(lambda a, k, e: a + reduced(k * e), [adjoint, run.box("k"), of_seen], adjoint.dims)
    return product([of_held, run.before()], dims)


def _reads(delta: bool, role: str) -> tuple[str, ...]:
    """What the gradient of an operand reads besides that of the result."""
    if role == "q":
        return ("k", "v", "decay", "beta", "state")
    if role == "state" or (delta and role == "v"):
        return ("q", "decay", *(("k", "beta") if delta else ()))
    if role == "decay" or delta:
        return ("k", "v", "q", "decay", "beta", "state")
    return ("q", "decay", *(r for r in ("k", "v", "beta") if r != role))


class _Run:
    """A scan with what is held of its operands, cut to the places at which all of them are held."""

    def __init__(self, op: Op, operands: Mapping[str, Box]):
        self.op, self.delta = op, "delta" in op.kind
        boxes, self.extent = common(list(operands.values()))
        self.operands = dict(zip(operands, boxes, strict=True))
        self.along, self.key = op.over[:2]
        if op.kind == "delta_passed":
            self.extent[op.over[2]] = self.extent[self.key]

    def box(self, role: str) -> Box:
        """An operand."""
        return self.operands[role]

    @property
    def outer(self) -> tuple[str, ...]:
        """The dims of states, the one that they go along first."""
        return (self.along, *(d for d in self.extent if d != self.along))

    @property
    def values(self) -> tuple[str, ...]:
        """The dims of values."""
        return tuple(d for d in self.outer if d != self.key)

    def part(self, role: str) -> Array:
        """An operand with an axis for each dim of states; values that are not there are 0."""
        if role not in self.operands:
            return np.zeros([1] * len(self.outer), np.int64)
        return aligned(self.operands[role], self.outer)

    def summed(self, states: Array) -> Array:
        """Over the keys."""
        made: Array = reduced(states.sum(axis=self.outer.index(self.key) - 1, keepdims=True))
        return made

    def error(self) -> Box:
        """What is written is beta times this: the value, less what its key reads."""
        seen = product([self.held(), self.box("k")], self.values)
        values = [self.box("v")] if "v" in self.operands else []
        return elementwise(lambda s, *v: sum(v, 0) - s, [seen, *values], self.values)

    def first(self) -> Array:
        """The state before the first place: what entered, or 0; of what passes, each key's own."""
        if "state" in self.operands:
            entered: Array = self.part("state")[0]
            return entered
        if self.op.kind != "delta_passed":
            return np.zeros([1] * (len(self.outer) - 1), np.int64)
        one, other = (np.array(self.extent[d]).reshape([-1 if e == d else 1 for e in self.outer[1:]])
                      for d in (self.key, self.op.over[2]))
        own: Array = (one == other).astype(np.int64)
        return own

    def states(self) -> tuple[Array, Array, Array]:
        """Of each place the state before it, that under its decay, and that after it."""
        shape = [len(self.extent[d]) for d in self.outer]
        k, v, decay, beta = (np.broadcast_to(part, [shape[0], *part.shape[1:]])
                             for part in map(self.part, ("k", "v", "decay", "beta")))
        found = [np.zeros(shape, (k[:1] * 1).dtype) for _ in range(3)]
        state = self.first()
        for t in range(shape[0]):
            held = reduced(decay[t] * state)
            value = v[t] - self.summed(reduced(held * k[t])) if self.delta else v[t]
            after = reduced(held + reduced(reduced(value * beta[t]) * k[t]))
            for into, number in zip(found, (state, held, after), strict=True):
                into[t] = number
            state = found[2][t]
        return found[0], found[1], found[2]

    def before(self) -> Box:
        """The states before the places."""
        return self.made(self.states()[0])

    def held(self) -> Box:
        """The states before the places, under their decays."""
        return self.made(self.states()[1])

    def after(self) -> Box:
        """The states after the places."""
        return self.made(self.states()[2])

    def adjoint(self, dy: Box) -> Box:
        """The gradient of the states after the places, from the last to the first."""
        last = self.op.kind in _AFTER
        read = dy if last else product([dy, self.box("q")], tuple(dict.fromkeys((*dy.dims, *self.box("q").dims))))
        boxes, self.extent = common([read, *self.operands.values()])
        self.operands = dict(zip(self.operands, boxes[1:], strict=True))
        shape = [len(self.extent[d]) for d in self.outer]
        arriving = np.broadcast_to(aligned(boxes[0], self.outer), shape)
        made = np.zeros(shape, arriving.dtype)
        later = arriving[-1] if last else made[0] * 0
        for t in reversed(range(shape[0])):
            made[t] = reduced(later if last else later + arriving[t])
            later = self.back(made[t], t)
        return self.made(made)

    def back(self, later: Array, t: int) -> Array:
        """The gradient of the state before a place, from that of the state after it."""
        if self.delta:
            k, beta = self.part("k")[t], self.part("beta")[t]
            later = reduced(later - reduced(reduced(self.summed(reduced(later * k)) * beta) * k))
        return reduced(later * self.part("decay")[t])

    def before_first(self, adjoint: Box) -> Box:
        """The gradient of the state that entered."""
        return Box({d: adjoint.extent[d] for d in adjoint.dims[1:]}, self.back(adjoint.numbers[0], 0))

    def made(self, numbers: Array) -> Box:
        """A box of states."""
        return Box({d: self.extent[d] for d in self.outer}, numbers)


def passed(op: Op, decay: Box, dims: tuple[str, ...]) -> Box:
    """The product of the decays."""
    return _multiplied(decay, op.over[0], decay.extent[op.over[0]]).ordered(dims)


def passed_back(op: Op, dy: Box, decay: Box, dims: tuple[str, ...]) -> Box:
    """At each place the gradient times the product of the decays at the others."""
    places = decay.extent[op.over[0]]
    parts = [_multiplied(decay, op.over[0], [p for p in places if p != place]) for place in places]
    others = Box({op.over[0]: places, **parts[0].extent}, np.stack([part.numbers for part in parts]))
    return product([dy, others], dims)


def _multiplied(x: Box, along: str, places: Sequence[int]) -> Box:
    axis = x.dims.index(along)
    made = np.ones([len(at) for d, at in x.extent.items() if d != along], x.numbers.dtype)
    for place in places:
        made = reduced(made * x.numbers.take(x.extent[along].index(place), axis=axis))
    return Box({d: at for d, at in x.extent.items() if d != along}, made)


def entering(op: Op, operands: Sequence[Box], dims: tuple[str, ...]) -> Box:
    """Of each block the state that the blocks before it leave, one after the other."""
    left, through, numbers = operands
    return _at(_shifted(_after(op, left, through), op.over[0], -1), op.over[0], numbers).ordered(dims)


def entering_back(op: Op, position: int, dy: Box, read: Read, extent: Callable[[int], Extent],
                  dims: tuple[str, ...]) -> Box:
    """The gradient of what each block left, or of what it let pass."""
    along, through = op.over[0], read(1)
    blocks = extent(0)[along]
    arriving = _shifted(_from(dy, read(2), along, blocks), along, 1)
    found: list[Box] = []
    for block in reversed(blocks):
        here = arriving.cut({along: (block,)})
        if found:
            last = found[-1]
            carried = _passed_on(op, last, through.cut({along: last.extent[along]}), back=True)
            here = elementwise(_total, [here, _in_block(carried, along, block)], here.dims)
        found.append(here)
    adjoint = _joined(found[::-1], along)
    if position == 0:
        return adjoint.ordered(dims)
    before = _shifted(_after(op, read(0), through), along, -1)
    names = {op.over[1]: op.over[2]} if op.kind == "delta_entering" else {}
    return product([adjoint, before.renamed(names)], dims)


def _after(op: Op, left: Box, through: Box) -> Box:
    """Of each block the state after it."""
    along = op.over[0]
    found: list[Box] = []
    (left, through), shared = common([left, through])
    for block in shared[along]:
        own = left.cut({along: (block,)})
        if found:
            carried = _passed_on(op, _in_block(found[-1], along, block), through.cut({along: (block,)}), back=False)
            own = elementwise(_total, [own, carried], own.dims)
        found.append(own)
    return _joined(found, along)


def _passed_on(op: Op, state: Box, through: Box, back: bool) -> Box:
    """A state that goes through a block, or the gradient of one that comes back."""
    if op.kind == "entering":
        return product([state, through], state.dims)
    key, entered = op.over[1:]
    if back:
        return product([state, through], [entered if d == key else d for d in state.dims]).renamed({entered: key})
    return product([state.renamed({key: entered}), through], state.dims)


def _in_block(x: Box, along: str, block: int) -> Box:
    """The numbers of one block as those of another."""
    return Box({**x.extent, along: (block,)}, x.numbers)


def _joined(parts: Sequence[Box], along: str) -> Box:
    axis = parts[0].dims.index(along)
    return Box({**parts[0].extent, along: tuple(p.extent[along][0] for p in parts)},
               np.concatenate([p.ordered(parts[0].dims).numbers for p in parts], axis=axis))


def _shifted(x: Box, along: str, by: int) -> Box:
    return _moved(x, along, x.extent[along], by)


def _at(x: Box, along: str, numbers: Box) -> Box:
    """Of each block what stands along `along` under its number; 0 where none is held."""
    (block,) = numbers.dims
    found = _moved(x, along, [int(n) for n in numbers.numbers], 0)
    return Box({d if d != along else block: at if d != along else numbers.extent[block]
                for d, at in found.extent.items()}, found.numbers)


def _from(dy: Box, numbers: Box, along: str, blocks: Sequence[int]) -> Box:
    """What arrives at blocks, under their numbers."""
    (block,) = numbers.dims
    (dy, numbers), _ = common([dy, numbers])
    named = Box({along if d == block else d: tuple(int(n) for n in numbers.numbers) if d == block else at
                 for d, at in dy.extent.items()}, dy.numbers)
    return _moved(named, along, blocks, 0)


def preceding(op: Op, operands: Sequence[Box], dims: tuple[str, ...]) -> Box:
    """Of each block what the one before it has."""
    x, numbers = operands
    return _at(_shifted(x, op.over[0], -1), op.over[0], numbers).ordered(dims)


def preceding_back(op: Op, dy: Box, read: Read, extent: Callable[[int], Extent], dims: tuple[str, ...]) -> Box:
    """What arrives at the block behind each."""
    along = op.over[0]
    return _shifted(_from(dy, read(1), along, extent(0)[along]), along, 1).ordered(dims)


def tail(op: Op, x: Box, size: int, dims: tuple[str, ...]) -> Box:
    """The last places."""
    place, last = op.over
    made = _moved(x, place, range(size), len(x.extent[place]) - size)
    return Box({last if d == place else d: at for d, at in made.extent.items()}, made.numbers).ordered(dims)


def tail_back(op: Op, dy: Box, extent: Callable[[int], Extent], dims: tuple[str, ...]) -> Box:
    """The gradient of the last places, and 0 at the others."""
    place, last = op.over
    places = extent(0)[place]
    named = dy.renamed({last: place})
    return _moved(named, place, places, len(dy.extent[last]) - len(places)).ordered(dims)


def conv(op: Op, operands: Sequence[Box], dims: tuple[str, ...]) -> Box:
    """The products of taps and places, the last tap being a place itself, summed."""
    x, weight, *before = operands
    return product([_windows(op, x, weight.extent, before), weight], dims)


def conv_back(op: Op, position: int, dy: Box, read: Read, extent: Callable[[int], Extent],
              dims: tuple[str, ...]) -> Box:
    """What the gradient of the result contributes to that of the operand, of the weight, or of what is before."""
    along, tap = op.over
    if position == 1:
        before = [read(2)] if len(op.inputs) > 2 else []
        return product([_windows(op, read(0), extent(1), before), dy], dims)
    weight, places = read(1), extent(0)[along]
    spread = product([dy, weight], (*dy.dims, tap))
    if position == 2:
        (halo,) = set(extent(2)) - set(dy.dims)
        size = len(extent(2)[halo])
        spread, places = spread.renamed({along: halo}), tuple(range(-size, 0))
        parts = [_moved(part, halo, places, -j) for j, part in _taps(spread, tap)]
        return elementwise(_total, [product([Box({**p.extent, halo: extent(2)[halo]}, p.numbers)], dims)
                                    for p in parts], dims)
    return elementwise(_total, [product([_moved(part, along, places, -j)], dims) for j, part in _taps(spread, tap)],
                       dims)


def _total(*numbers: Array) -> Array:
    return sum(numbers[1:], numbers[0])


def _taps(x: Box, tap: str) -> list[tuple[int, Box]]:
    """What each tap has, with how far before a place it reads, as a negative number."""
    most = max(x.extent[tap])
    return [(j - most, x.cut({tap: (j,)})) for j in x.extent[tap]]


def _windows(op: Op, x: Box, weight: Extent, before: Sequence[Box]) -> Box:
    """At each place and tap what the tap reads there."""
    along, tap = op.over
    taps, places = weight[tap], x.extent[along]
    for halo in before:
        (name,) = set(halo.dims) - set(x.dims)
        rest = common([Box({d: at for d, at in box.extent.items() if d not in (name, along)}, np.zeros(
            [len(at) for d, at in box.extent.items() if d not in (name, along)])) for box in (halo, x)])[1]
        earlier, x = (box.cut(rest).renamed({name: along}).ordered(x.dims) for box in (halo, x))
        before_first = tuple(range(-len(halo.extent[name]), 0))
        x = Box({**x.extent, along: (*before_first, *places)},
                np.concatenate([earlier.numbers, x.numbers], axis=x.dims.index(along)))
    parts = [_moved(x, along, places, j - max(taps)).numbers for j in taps]
    return Box({**x.extent, along: places, tap: taps}, np.stack(parts, axis=-1))


def folded(x: Box, along: str, into: tuple[str, str], size: int) -> Box:
    """The blocks of `size` places of which all are held."""
    block, place = into
    held = set(x.extent[along])
    blocks = tuple(sorted(b for b in {i // size for i in held} if all(b * size + p in held for p in range(size))))
    inside = x.cut({along: tuple(b * size + p for b in blocks for p in range(size))})
    extent: Extent = {}
    for d, at in inside.extent.items():
        extent |= {block: blocks, place: tuple(range(size))} if d == along else {d: at}
    return Box(extent, inside.numbers.reshape([len(at) for at in extent.values()]))


def unfolded(x: Box, along: str, of: tuple[str, str]) -> Box:
    """The places of blocks, one after the other."""
    block, place = of
    size = len(x.extent[place])
    order = [e for d in x.dims if d != place for e in ((block, place) if d == block else (d,))]
    x = x.ordered(order)
    extent = {along if d == block else d: tuple(b * size + p for b in at for p in range(size)) if d == block else at
              for d, at in x.extent.items() if d != place}
    return Box(extent, x.numbers.reshape([len(at) for at in extent.values()]))


def _moved(x: Box, along: str, places: Sequence[int], by: int) -> Box:
    """At each of some places what stands `by` places later, or, if that is negative, before; 0 where none is held."""
    axis, held = x.dims.index(along), {place: k for k, place in enumerate(x.extent[along])}
    shape = [len(places) if d == along else len(at) for d, at in x.extent.items()]
    made = np.zeros(shape, x.numbers.dtype)
    there = [(k, held[place + by]) for k, place in enumerate(places) if place + by in held]
    if there:
        to, source = zip(*there, strict=True)
        index: list[object] = [slice(None)] * len(shape)
        index[axis] = list(to)
        made[tuple(index)] = x.numbers.take(list(source), axis=axis)  # type: ignore[index]
    return Box({**x.extent, along: tuple(places)}, made)
