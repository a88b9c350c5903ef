"""What an optimizer reads of whole matrices: the entries of each, and their numbers as they lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from placealg.simulator.field import Number
from placealg.simulator.space import Space
from placealg.step.program import Group


def by_matrix(space: Space, group: Group) -> dict[tuple[int, ...], list[int]]:
    """The entries of one instance of a group by the matrix that they belong to."""
    found: dict[tuple[int, ...], list[int]] = {}
    for entry in range(len(space.parts(group))):
        found.setdefault(space.matrix_of(group, entry), []).append(entry)
    return found


def in_order(space: Space, group: Group, entries: Sequence[int], numbers: Iterable[Number]) -> tuple[Number, ...]:
    """The numbers of entries, one for each parameter, its elements as they lie in memory, whoever owns them."""
    own = [(space.parts(group)[entry], number) for entry, number in zip(entries, numbers, strict=True)]
    if space.whole:
        return tuple(number for _, number in own)
    found: list[Number] = []
    for name in dict.fromkeys(part.parameter for part, _ in own):
        some = [(part.numbers, np.broadcast_to(space.numbers(number), part.numbers.shape))
                for part, number in own if part.parameter == name]
        places, values = (np.concatenate(column) for column in zip(*some, strict=True))
        found.append(space.number(values[np.argsort(places)]))
    return tuple(found)
