"""The single device's states, and its update: what every distributed run is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from placealg.frozen import FrozenMap
from placealg.simulator import network
from placealg.simulator.box import Box
from placealg.simulator.field import Number, overflows, residues, squares
from placealg.simulator.network import ZERO
from placealg.simulator.setting import Setting
from placealg.step.program import Group, Reference

Slot = tuple[str, int]
"""(parameter group, instance of its unit)."""


Numbers = tuple[Number, ...]
"""One instance of a parameter group: a number for each of its entries."""


@dataclass(frozen=True, slots=True)
class State:
    """The single device's state between two steps, and what the loss, and each term, summed in the step before.

    `average` is that of the weights, of a group that is averaged.
    """

    weight: Mapping[Slot, Numbers]
    moments: Mapping[Slot, Numbers]
    step: Fraction
    rng: Fraction
    losses: Mapping[tuple[str, int], Box] = FrozenMap()
    average: Mapping[Slot, Numbers] = FrozenMap()
    scale: Fraction = network.FIRST_SCALE


def slots(reference: Reference, layers: int) -> tuple[Slot, ...]:
    """Every instance of every group."""
    return tuple((g.name, i) for g in reference.groups for i in range(
        layers if reference.unit(g.unit).repeated and not reference.graph.single(g.unit) else 1))


def at_risk(reference: Reference, setting: Setting) -> tuple[str, ...]:
    """The groups of which gradients can overflow in a run."""
    return setting.at_risk or tuple(g.name for g in reference.trained)


Factors = Callable[[Group, Sequence[Mapping[int, Number]]], Mapping[int, Number]]
"""What an optimizer that reads matrices whole multiplies the steps of entries by: `matrices.factors`."""


def updated(reference: Reference, setting: Setting, state: State, gradient: Mapping[Slot, Numbers],
            factors: Factors, losses: Mapping[tuple[str, int], Box] = FrozenMap()) -> State:
    """The state after a step with this gradient: where one that overflows skips the step, only the stream moves on."""
    if reference.skip:
        looked = [g for slot, numbers in gradient.items() if slot[0] in at_risk(reference, setting) for g in numbers]
        among = sum(residues(g).size for g in looked)
        if any(overflows(g, among) for g in looked):
            return replace(state, average=_averaged(state, state.weight), rng=state.rng + 1, losses=losses,
                           scale=network.rescaled(state.scale, skipped=True))
    factor, trained = Fraction(1), {g.name for g in reference.trained}
    if reference.clip:
        factor = network.clip_factor(sum((squares(g) for (name, _), numbers in gradient.items() if name in trained
                                          for g in numbers), ZERO))
    weight, moments = {}, {}
    for slot, found in gradient.items():
        if reference.group(slot[0]).frozen:
            weight[slot], moments[slot] = state.weight[slot], state.moments[slot]
            continue
        clipped = [g * factor for g in found] if slot[0] in trained else list(found)
        values = {"master": state.weight[slot], "moments": state.moments[slot], "grad_sum": clipped}
        group = reference.group(slot[0])
        reads = group.whole_reads if group.locality == "matrix" else ()
        whole = factors(group, [dict(enumerate(values[v])) for v in reads])
        results = [network.optimize(w, m, g, state.step, whole[k]) for k, (w, m, g) in enumerate(
            zip(state.weight[slot], state.moments[slot], clipped, strict=True))]
        weight[slot], moments[slot] = tuple(w for w, _ in results), tuple(m for _, m in results)
    return State(weight, moments, state.step + 1, state.rng + 1, losses, _averaged(state, weight),
                 network.rescaled(state.scale, skipped=False))


def _averaged(before: State, weight: Mapping[Slot, Numbers]) -> Mapping[Slot, Numbers]:
    """The averages that have taken in these weights."""
    return {slot: tuple(map(network.average, old, weight[slot])) for slot, old in before.average.items()}
