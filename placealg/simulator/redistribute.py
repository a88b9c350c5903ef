"""The redistributions of a tensor or of its gradient, on the boxes of the ranks that take part together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placealg.errors import InputError
from placealg.simulator.box import Box, Indices, place, total, union
from placealg.simulator.field import Array, Number, element_type, inverse, reduced, residues
from placealg.simulator.space import Space
from placealg.step.event import dim_of
from placealg.step.program import Event

Boxes = list[Box | None]
"""What each rank of a team holds; None: nothing."""


@dataclass(frozen=True, slots=True)
class Team:
    """The ranks that meet in one event: their coordinates, and what they need to know of the run.

    `sequences` are those of the microbatch, `divided` divides by the event's divisor (None where it is 0 or unknown).
    """

    space: Space
    event: Event
    at: Sequence[Mapping[str, int]]
    sequences: Indices
    garbage: Callable[[Sequence[int]], Array]
    divided: Callable[[int], Number | None]

    def dim(self, text: str) -> str:
        """The dim that a place of the event names."""
        dim = dim_of(text)
        if not dim:
            raise InputError(f"{self.event.path}: {self.event.verb} needs a dim, as in S(seq); '{text}' names none")
        return dim

    def owned(self, member: int, dim: str, indices: Indices) -> Indices:
        """The indices of a dim that a member owns along the event's axes, or takes for its own."""
        if self.event.drawn:
            return self.space.drawn(self.event.drawn, self.at[member], dim, indices)
        return self.space.owned(self.event.axes, self.at[member], dim, indices)


def _all_gather(team: Team, boxes: Boxes) -> Boxes:
    gathered = _gathered(team, boxes, team.dim(team.event.source))
    return [gathered] * len(boxes)


def _gathered(team: Team, boxes: Boxes, dim: str) -> Box | None:
    """Every index of `dim` from its owner; garbage where the owner lacks it."""
    held = [box for box in boxes if box is not None]
    if not held:
        return None
    dims = held[0].dims
    _has(team, dims, dim)
    extent = union(box.ordered(dims) for box in held)
    numbers = team.garbage([len(at) for at in extent.values()])
    for member, box in enumerate(boxes):
        if box is not None:
            place(numbers, extent, box.ordered(dims).cut({dim: team.owned(member, dim, extent[dim])}))
    return Box(extent, numbers)


def _all_reduce(team: Team, boxes: Boxes) -> Boxes:
    if team.event.op not in ("", "sum", "mean", "premultiplied"):
        raise InputError(f"{team.event.path}: op = '{team.event.op}' does not reduce numbers", name=team.event.op,
                         valid=("sum", "mean", "premultiplied"))
    early = team.event.op == "premultiplied"
    held = [_over(team, member, box) if early else box for member, box in enumerate(boxes) if box is not None]
    if not held:
        return boxes
    summed = total(held, team.garbage)
    if len(held) < len(boxes):
        summed = Box(summed.extent, team.garbage(summed.numbers.shape))
    if team.event.op == "mean":
        summed = Box(summed.extent, reduced(summed.numbers * inverse(np.array([len(boxes)]))))
    return [summed if early else _over(team, member, summed) for member in range(len(boxes))]


def _over(team: Team, member: int, box: Box) -> Box:
    """The box over the event's divisor; garbage where that is 0 or not known."""
    quotient = team.divided(member)
    if quotient is None:
        return Box(box.extent, team.garbage(box.numbers.shape))
    if quotient == 1:
        return box
    return Box(box.extent, reduced(box.numbers * residues(quotient)[0]))


def _reduce_scatter(team: Team, boxes: Boxes) -> Boxes:
    return _kept(team, _all_reduce(team, boxes), team.dim(team.event.to))


def _all_to_all(team: Team, boxes: Boxes) -> Boxes:
    gathered = _gathered(team, boxes, team.dim(team.event.source))
    return _kept(team, [gathered] * len(boxes), team.dim(team.event.to))


def _shift(team: Team, boxes: Boxes) -> Boxes:
    """A ring, turn by turn: every member passes a block to the next one, and the last one to the first."""
    held = [box for box in boxes if box is not None]
    if not held:
        return boxes
    dims, ranks = held[0].dims, len(boxes)
    if team.event.source == "P":
        return _sums_passed(team, boxes, team.dim(team.event.to))
    dim = team.dim(team.event.source)
    _has(team, dims, dim)
    extent = union(box.ordered(dims) for box in held)
    blocks = [None if box is None else box.ordered(dims).cut({dim: team.owned(k, dim, extent[dim])})
              for k, box in enumerate(boxes)]
    found = [team.garbage([len(at) for at in extent.values()]) for _ in boxes]
    for _ in range(ranks):
        for member, block in enumerate(blocks):
            if block is not None:
                place(found[member], extent, block)
        blocks = [blocks[k - 1] for k in range(ranks)]
    return [Box(extent, numbers) for numbers in found]


def _sums_passed(team: Team, boxes: Boxes, dim: str) -> Boxes:
    """For every member a block of sums goes round, from the one behind it, and each adds its own part."""
    found: Boxes = []
    for member in range(len(boxes)):
        way = [boxes[(member + k) % len(boxes)] for k in range(1, len(boxes) + 1)]
        held = [box for box in way if box is not None]
        indices = team.owned(member, dim, held[0].extent[dim])
        parts = [box.cut({dim: indices}) for box in held]
        summed = total(parts, team.garbage)
        if len(held) < len(way):
            summed = Box(summed.extent, team.garbage(summed.numbers.shape))
        found.append(summed)
    return found


def _slice(team: Team, boxes: Boxes) -> Boxes:
    dim = team.dim(team.event.to)
    return _from_the_start(team, boxes, dim) if team.event.renumbered else _kept(team, boxes, dim)


def _from_the_start(team: Team, boxes: Boxes, dim: str) -> Boxes:
    """Every member takes for its own indices of `dim` the numbers with which the whole begins."""
    found: Boxes = []
    for member, box in enumerate(boxes):
        if box is not None:
            _has(team, box.dims, dim)
            own = team.owned(member, dim, box.extent[dim])
            first = box.cut({dim: box.extent[dim][:len(own)]})
            box = Box({**first.extent, dim: own}, first.numbers)
        found.append(box)
    return found


def _kept(team: Team, boxes: Boxes, dim: str) -> Boxes:
    """Every member keeps its own indices of `dim`."""
    found: Boxes = []
    for member, box in enumerate(boxes):
        if box is not None:
            _has(team, box.dims, dim)
            box = box.cut({dim: team.owned(member, dim, box.extent[dim])})
        found.append(box)
    return found


def _pad(team: Team, boxes: Boxes) -> Boxes:
    """Every member holds what all of them have of the dim, 0 where another one owns it."""
    dim, found = team.dim(team.event.source), list[Box | None]()
    everyone = union(box for box in boxes if box is not None)
    for member, box in enumerate(boxes):
        if box is not None:
            _has(team, box.dims, dim)
            own = box.cut({dim: team.owned(member, dim, box.extent[dim])})
            extent = {**box.extent, dim: everyone[dim]}
            numbers = np.zeros([len(at) for at in extent.values()], element_type())
            place(numbers, extent, own)
            box = Box(extent, numbers)
        found.append(box)
    return found


def _scale(team: Team, boxes: Boxes) -> Boxes:
    return [None if box is None else _over(team, member, box) for member, box in enumerate(boxes)]


def _has(team: Team, dims: Sequence[str], dim: str) -> None:
    if dim not in dims:
        raise InputError(f"{team.event.path}: '{team.event.tensor}' has no dim '{dim}'", name=dim, valid=dims)


REDISTRIBUTE: Mapping[str, Callable[[Team, Boxes], Boxes]] = {
    "all_gather": _all_gather, "all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all, "slice": _slice, "pad": _pad, "scale": _scale, "shift": _shift,
}
"""Verb -> what each member of a team holds after it."""
