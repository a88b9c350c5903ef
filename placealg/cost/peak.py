"""The most that is held at once: among all moments of a step, those that are the largest for some sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import sympy

from placealg.cost.activations import Picture, in_bytes, written
from placealg.cost.amounts import Amounts, Tally
from placealg.cost.bounds import Scale, total_of
from placealg.cost.formula import Formula

Held = tuple[Tally, Picture]
"""The states and the tensors that are held."""

NOTHING: Held = (Tally(), Picture())


def peak(amounts: Amounts, best: Iterable[Held], rest: Held = NOTHING, waiting: Any = None) -> Formula:
    """The largest of some candidates as a Formula: `rest`, plus a Max of what the candidates add to it.

    If several microbatches are in flight, `waiting` is the size in bytes of the tensors of `rest` in all of them.
    """
    best = list(best)
    more = [amounts.write(amounts.linear(beyond(states, rest[0])), name_unit=True) for states, _ in best]
    distinct = dict.fromkeys(expr + written(amounts, beyond(tensors, rest[1]))
                             for (expr, _), (_, tensors) in zip(more, best, strict=True))
    largest_of = sympy.Max(*distinct, evaluate=False) if len(distinct) > 1 else next(iter(distinct))
    below = amounts.write(amounts.linear(rest[0]))[0] + (written(amounts, rest[1]) if waiting is None else waiting)
    notes = dict.fromkeys(note for _, note in more if note)
    return amounts.made(below + largest_of, "bytes", note="; ".join(notes))


def largest_held(amounts: Amounts, pictures: Iterable[Held]) -> list[Held]:
    """The candidates for the largest of several moments: first among those with equal states, then among all."""
    by_states: dict[Any, dict[Any, Held]] = {}
    for states, tensors in pictures:
        by_states.setdefault(frozenset(states.items()), {})[frozenset(tensors.items())] = states, tensors
    tensors_of = {key: held[1] for group in by_states.values() for key, held in group.items()}
    states_of = {key: next(iter(group.values()))[0] for key, group in by_states.items()}
    sums = {key: amounts.known_sum(in_bytes(amounts, tensors)) for key, tensors in tensors_of.items()}
    buffers = {buffer: amounts.buffer(buffer) for states in states_of.values() for buffer in states}
    scale = Scale((*sums.values(), *buffers.values()))
    rows = {key: scale.row(total) for key, total in sums.items()}
    parts = {buffer: scale.row(total) for buffer, total in buffers.items()}
    kept = []
    for states_key, group in by_states.items():
        below = total_of((parts[buffer], count) for buffer, count in states_of[states_key].items())
        kept += [(group[key], total_of(((below, 1), (rows[key], 1))))
                 for key in scale.largest((key, rows[key]) for key in group)]
    return scale.largest(kept) or [NOTHING]


def beyond(held: Counter[Any], rest: Counter[Any]) -> Any:
    """The difference of what is held and `rest`; negative where `rest` has more."""
    more = type(held)(held)
    more.subtract(rest)
    return type(held)({key: n for key, n in more.items() if n})
