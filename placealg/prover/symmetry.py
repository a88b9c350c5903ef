"""Groups that share a proof: those with equal signatures have equal obligations, and are checked once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from placealg.arith import ONE
from placealg.frozen import FrozenMap
from placealg.prover.calculus.machine import Site
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import site_signature
from placealg.step.event import PARTIALS, READERS
from placealg.step.program import Event, Group, Step


def signature(step: Step, group: Group, sites: tuple[Site, ...], flows: Flows | None) -> object:
    """Groups with equal signatures have equal obligations.

    In a step that runs op by op each use of a parameter has its own. Else, where every unit runs exactly once in
    every microbatch, in order, the other units say nothing about a group but when the backward starts; else their
    computations are part of the signature.
    """
    if flows:
        return (frozenset(site_signature(step, group, site, flows) for site in sites), _readers(step, group),
                unnamed(group))
    units = [u.name for u in step.reference.units]
    order = {name: k for k, name in enumerate(units)}
    plain = _units_in_order(step, units)

    def alike(event: Event) -> Iterator[object]:
        if event.verb != "compute" or event.unit not in order:
            yield event.plain
            return
        place = tuple((order[event.unit] > order[s]) - (order[event.unit] < order[s]) for s in group.sites)
        if plain and event.phase == "backward" and event.unit == units[-1]:
            yield "backward starts"
        if not plain:
            yield event.phase, event.at, event.where, place
        elif event.unit in group.sites:
            yield event.phase, group.sites.index(event.unit)
    own = (e for e in step.events if e.group in ("", group.name))
    return (tuple(mark for e in own for mark in alike(e)), _readers(step, group), len(group.sites),
            unnamed(group))


def unnamed(group: Group) -> Group:
    """A group without its names, its sizes and the name of its optimizer: the rest is all that a verdict depends on."""
    return replace(group, name="", unit="", sites=(), parameters=(), elements=(), count=ONE, optimizer="",
                   types=FrozenMap(), rows=())


def _units_in_order(step: Step, units: list[str]) -> bool:
    """Whether all units run once in every microbatch on every rank: forward in order, the loss, backward reversed."""
    beside = ("count", "skip", "grad")
    ran = [(e.phase, e.unit) for e in step.events
           if e.verb == "compute" and e.value not in beside and not e.at and not e.where]
    losses = [("forward", loss) for loss in step.reference.losses]
    wanted = [("forward", u) for u in units] + losses + [("backward", u) for u in reversed(units)]
    return ran == wanted and len(ran) == sum(e.verb == "compute" and e.value not in beside for e in step.events)


def _readers(step: Step, group: Group) -> frozenset[object]:
    """Clips and updates of other groups, each with the number of earlier events that make this group's norm or flag."""
    made, found = Counter[str](), set()
    for event in step.events:
        if event.value in PARTIALS and event.group in ("", group.name):
            made[event.value] += 1
        elif event.verb in READERS and event.group not in ("", group.name):
            found.add((event.verb, made[READERS[event.verb]], event.phase, event.at, event.where, event.layout))
    return frozenset(found)
