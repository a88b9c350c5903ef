"""The single device's run, written straight down: the states that every distributed run is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import cast

from placealg.errors import InputError
from placealg.simulate import network
from placealg.simulate.box import Box
from placealg.simulate.field import Number, overflows, residues, squares
from placealg.simulate.network import FIRST_STREAM, ZERO, Matrix
from placealg.simulate.setting import Setting, token_ids
from placealg.step.program import Group, Reference

Slot = tuple[str, int]
"""(parameter group, instance of its unit)."""


Numbers = tuple[Number, ...]
"""One instance of a parameter group: a number for each of its entries."""


@dataclass(frozen=True, slots=True)
class State:
    """The single device's state between two steps; of an op graph, also the tokens' losses in the step before."""

    weight: Mapping[Slot, Numbers]
    moments: Mapping[Slot, Numbers]
    step: Fraction
    rng: Fraction
    losses: Box | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One instance of a unit in the chain, with the groups that it uses."""

    unit: str
    instance: int
    slots: tuple[Slot, ...]


def chain(reference: Reference, layers: int) -> tuple[Place, ...]:
    """The instances of all units in forward order, each with the slots that it applies in turn."""
    repeated = {u.name: u.repeated for u in reference.units}

    def slot(group: Group, unit: str, instance: int) -> Slot:
        return group.name, instance if repeated[group.unit] and repeated[unit] else 0

    return tuple(Place(u.name, i, tuple(slot(g, u.name, i) for g in reference.groups if u.name in g.sites))
                 for u in reference.units for i in range(layers if u.repeated else 1))


def slots(reference: Reference, layers: int) -> tuple[Slot, ...]:
    """Every instance of every group."""
    return tuple((g.name, i) for g in reference.groups for i in range(layers if reference.unit(g.unit).repeated else 1))


def token_weight(reference: Reference, setting: Setting, microbatch: int, loss: str = "") -> Fraction:
    """The reference weight of a loss's token of `microbatch`, of the first where none is named; 0 where it has none."""
    ids = token_ids(reference, setting, loss or reference.losses[0])
    counts = {cell: len(numbers) for cell, numbers in ids.items()}
    if reference.weighting == "token_mean":
        return Fraction(1, sum(counts.values()))
    if reference.weighting != "microbatch_mean":
        raise InputError(f"unknown reference weighting '{reference.weighting}'",
                         name=reference.weighting, valid=("token_mean", "microbatch_mean"))
    inside = sum(n for (_, k), n in counts.items() if k == microbatch)
    return Fraction(1, setting.microbatches * inside) if inside else ZERO


@lru_cache(maxsize=128)
def trajectory(reference: Reference, setting: Setting, steps: int) -> tuple[State, ...]:
    """The states before the first step and after each of `steps` steps."""
    every = slots(reference, setting.layers)
    start = State({s: network.initial_weight(setting.seed, *s) for s in every},
                  dict.fromkeys(every, (ZERO,) * 4), ZERO, FIRST_STREAM)
    states = [start]
    for number in range(steps):
        gradient = _gradient(reference, setting, number, states[-1])
        states.append(updated(reference, setting, states[-1], gradient))
    return tuple(states)


def at_risk(reference: Reference, setting: Setting) -> tuple[str, ...]:
    """The groups of which gradients can overflow in a run."""
    return setting.at_risk or tuple(g.name for g in reference.trained)


def updated(reference: Reference, setting: Setting, state: State, gradient: Mapping[Slot, Numbers],
            losses: Box | None = None) -> State:
    """The state after a step with this gradient: where one that overflows skips the step, only the stream moves on."""
    if reference.skip:
        looked = [g for slot, numbers in gradient.items() if slot[0] in at_risk(reference, setting) for g in numbers]
        among = sum(residues(g).size for g in looked)
        if any(overflows(g, among) for g in looked):
            return replace(state, rng=state.rng + 1, losses=losses)
    factor, trained = Fraction(1), {g.name for g in reference.trained}
    if reference.clip:
        factor = network.clip_factor(sum((squares(g) for (name, _), numbers in gradient.items() if name in trained
                                          for g in numbers), ZERO))
    weight, moments = {}, {}
    for slot, found in gradient.items():
        clipped = [g * factor for g in found] if slot[0] in trained else list(found)
        values = {"master": state.weight[slot], "moments": state.moments[slot], "grad_sum": clipped}
        group = reference.group(slot[0])
        reads = group.whole_reads if group.locality == "matrix" else ()
        whole = network.whole_matrix(values[v] for v in reads)
        results = [network.optimize(w, m, g, state.step, whole)
                   for w, m, g in zip(state.weight[slot], state.moments[slot], clipped, strict=True)]
        weight[slot], moments[slot] = tuple(w for w, _ in results), tuple(m for _, m in results)
    return State(weight, moments, state.step + 1, state.rng + 1, losses)


def _gradient(reference: Reference, setting: Setting, number: int, state: State) -> dict[Slot, Matrix]:
    places, weight = chain(reference, setting.layers), cast("Mapping[Slot, Matrix]", state.weight)
    total: dict[Slot, Matrix] = dict.fromkeys(state.weight, (ZERO,) * 4)
    parts = [(loss, k, ids) for loss in reference.losses for (_, k), ids in token_ids(reference, setting, loss).items()]
    for loss, microbatch, ids in parts:
        tokens = [network.token(setting.seed, number, i) for i in ids]
        values = tuple(t.x for t in tokens)
        kept = []
        for place in places:
            factors = [network.random_factor(setting.seed, state.rng, t.id, place.unit, place.instance) for t in tokens]
            values, saved = network.forward([weight[s] for s in place.slots], values, factors)
            kept.append(saved)
            for slot in (s for s in place.slots if reference.group(s[0]).statistic):
                moments = network.second_moments(saved, token_weight(reference, setting, microbatch, loss))
                total[slot] = _plus(total[slot], moments)
        flowing = network.loss_gradient(values, (t.target for t in tokens),
                                        token_weight(reference, setting, microbatch, loss))
        for place, saved in zip(reversed(places), reversed(kept), strict=True):
            flowing, found = network.backward([weight[s] for s in place.slots], saved, flowing)
            for slot, matrix in zip(place.slots, found, strict=True):
                if not reference.group(slot[0]).statistic:
                    total[slot] = _plus(total[slot], matrix)
    return total


def _plus(one: Matrix, other: Matrix) -> Matrix:
    (a, b, c, d), (w, x, y, z) = one, other
    return a + w, b + x, c + y, d + z
