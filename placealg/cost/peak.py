"""The most that is held at once: among all moments of a step, those that are the largest for some sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import sympy

from placealg.cost.activations import Picture, in_bytes, written
from placealg.cost.amounts import Amounts, Tally
from placealg.cost.bounds import largest
from placealg.cost.formula import Formula
from placealg.polynomial import Polynomial

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
    sums = dict[Any, Polynomial]()
    by_states: dict[Any, dict[Any, Held]] = {}
    for states, tensors in pictures:
        by_states.setdefault(frozenset(states.items()), {})[frozenset(tensors.items())] = states, tensors
    for key, (_, tensors) in (pair for group in by_states.values() for pair in group.items()):
        if key not in sums:
            sums[key] = amounts.known_sum(in_bytes(amounts, tensors))
    kept = []
    for group in by_states.values():
        below = amounts.bound(next(iter(group.values()))[0])
        kept += [(group[key], below + sums[key]) for key in largest((key, sums[key]) for key in group)]
    return largest(kept) or [NOTHING]


def beyond(held: Counter[Any], rest: Counter[Any]) -> Any:
    """The difference of what is held and `rest`; negative where `rest` has more."""
    more = type(held)(held)
    more.subtract(rest)
    return type(held)({key: n for key, n in more.items() if n})
