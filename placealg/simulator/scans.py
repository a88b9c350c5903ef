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


def scan(op: Op, operands: Sequence[Box], dims: tuple[str, ...]) -> Box:
    """What the queries read of the states, which begin with 0."""
    run = _Run(op, dict(zip(op.row.operands, operands, strict=True)))
    return product([run.after(), run.box("q")], dims)


def scan_back(op: Op, position: int, dy: Box, read: Read, dims: tuple[str, ...]) -> Box:
    """What the gradient of what was read contributes to that of an operand."""
    role, of = op.row.operands[position], {r: k for k, r in enumerate(op.row.operands)}
    needed = [r for r in _READS[op.kind][role] if r in of]
    run = _Run(op, {r: read(of[r]) for r in needed})
    if role == "q":
        return product([run.after(), dy], dims)
    adjoint = run.adjoint(dy)
    if op.kind == "scan":
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


_READS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "scan": {"k": ("q", "decay", "v", "beta"), "v": ("q", "decay", "k", "beta"), "beta": ("q", "decay", "k", "v"),
             "q": ("k", "v", "decay", "beta"), "decay": ("k", "v", "q", "decay", "beta")},
    "delta": {"k": ("k", "v", "q", "decay", "beta"), "v": ("q", "decay", "k", "beta"), "q": ("k", "v", "decay", "beta"),
              "beta": ("k", "v", "q", "decay", "beta"), "decay": ("k", "v", "q", "decay", "beta")},
}
"""Kind -> operand -> what its gradient reads besides that of the result."""


class _Run:
    """A scan with what is held of its operands, cut to the places at which all of them are held."""

    def __init__(self, op: Op, operands: Mapping[str, Box]):
        self.op = op
        boxes, self.extent = common(list(operands.values()))
        self.operands = dict(zip(operands, boxes, strict=True))
        self.along, self.key = op.over

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
        """An operand with an axis for each dim of states."""
        return aligned(self.operands[role], self.outer)

    def summed(self, states: Array) -> Array:
        """Over the keys."""
        made: Array = reduced(states.sum(axis=self.outer.index(self.key) - 1, keepdims=True))
        return made

    def error(self) -> Box:
        """What is written is beta times this: the value, less what its key reads."""
        seen = product([self.held(), self.box("k")], self.values)
        return elementwise(lambda v, s: v - s, [self.box("v"), seen], self.values)

    def states(self) -> tuple[Array, Array, Array]:
        """Of each place the state before it, that under its decay, and that after it."""
        k, v, decay, beta = (self.part(r) for r in ("k", "v", "decay", "beta"))
        shape = [len(self.extent[d]) for d in self.outer]
        found = [np.zeros(shape, (k[:1] * 1).dtype) for _ in range(3)]
        state = found[0][0]
        for t in range(shape[0]):
            held = reduced(decay[t] * state)
            value = v[t] - self.summed(reduced(held * k[t])) if self.op.kind == "delta" else v[t]
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
        read = product([dy, self.box("q")], tuple(dict.fromkeys((*dy.dims, *self.box("q").dims))))
        boxes, self.extent = common([read, *self.operands.values()])
        self.operands = dict(zip(self.operands, boxes[1:], strict=True))
        arriving, decay = aligned(boxes[0], self.outer), self.part("decay")
        shape = [len(self.extent[d]) for d in self.outer]
        made = np.zeros(shape, arriving.dtype)
        later = made[0] * 0
        for t in reversed(range(shape[0])):
            made[t] = reduced(later + arriving[t])
            later = made[t]
            if self.op.kind == "delta":
                k, beta = self.part("k")[t], self.part("beta")[t]
                later = later - reduced(reduced(self.summed(reduced(later * k)) * beta) * k)
            later = reduced(reduced(later) * decay[t])
        return self.made(made)

    def made(self, numbers: Array) -> Box:
        """A box of states."""
        return Box({d: self.extent[d] for d in self.outer}, numbers)


def conv(op: Op, operands: Sequence[Box], dims: tuple[str, ...]) -> Box:
    """The products of taps and places, the last tap being a place itself, summed."""
    x, weight = operands
    return product([_windows(op, x, weight.extent), weight], dims)


def conv_back(op: Op, position: int, dy: Box, read: Read, extent: Callable[[int], Extent],
              dims: tuple[str, ...]) -> Box:
    """What the gradient of the result contributes to that of the operand, or of the weight."""
    along, tap = op.over
    if position:
        return product([_windows(op, read(0), extent(1)), dy], dims)
    weight, places = read(1), extent(0)[along]
    spread = product([dy, weight], (*dy.dims, tap))
    parts = []
    for j in weight.extent[tap]:
        back = max(weight.extent[tap]) - j
        moved = _moved(spread.cut({tap: (j,)}), along, places, back)
        parts.append(product([moved], dims))
    return elementwise(lambda *numbers: sum(numbers[1:], numbers[0]), parts, dims)


def _windows(op: Op, x: Box, weight: Extent) -> Box:
    """At each place and tap what the tap reads there."""
    along, tap = op.over
    taps, places = weight[tap], x.extent[along]
    parts = [_moved(x, along, places, j - max(taps)).numbers for j in taps]
    return Box({**x.extent, tap: taps}, np.stack(parts, axis=-1))


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
