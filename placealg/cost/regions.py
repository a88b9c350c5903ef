"""Costs by region of the model: what is kept for backward and what is sent, by the region that makes the tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from placealg.cost.activations import KeptStorage, collected
from placealg.cost.communication import Communication
from placealg.cost.formula import Formula
from placealg.cost.walk import Walk, walked
from placealg.step.program import Step


@dataclass(frozen=True, slots=True)
class RegionCost:
    """One region: what its ops keep for backward, and what the collectives on its tensors send.

    Collectives on parameters and their gradients are listed at their unit.
    """

    region: str
    activations: Formula
    sent: Formula


def kept_for_backward(step: Step | Walk, statistics: bool = False) -> tuple[KeptStorage, ...]:
    """Every tensor that forward keeps for backward; none if units run whole."""
    walk = walked(step, statistics)
    return walk.tensors.kept()


def rows_by_region(step: Step | Walk, kept: Iterable[KeptStorage], sent: Communication) -> tuple[RegionCost, ...]:
    """A row per region of what is kept and sent."""
    walk = walked(step)
    reference, amounts = walk.step.reference, walk.amounts
    held: dict[str, list[Any]] = {}
    moved: dict[str, list[Any]] = {}
    for k in (k for k in kept if k.mode != "O"):
        held.setdefault(k.region, []).append(k.bytes.expr)
    for e in sent.events:
        if not e.left_out and not e.collective.endswith(" link"):
            moved.setdefault(e.region, []).append(e.formula.expr)
    none = Formula.none("bytes", walk.unknown)
    regions = reference.graph.regions or tuple(u.name for u in reference.units)
    ordered = dict.fromkeys(r for r in (*regions, *held, *moved) if r in held or r in moved)
    return tuple(RegionCost(
        region,
        none if walk.unknown else amounts.made(collected(held.get(region, ())), "bytes"),
        amounts.made(collected(moved.get(region, ())), sent.total.unit, sent.total.convention),
    ) for region in ordered)
