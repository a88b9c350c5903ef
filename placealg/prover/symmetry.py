"""Groups that share a proof: those with equal signatures have equal obligations, and are checked once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from placealg.arith import ONE
from placealg.frozen import FrozenMap
from placealg.prover.calculus.machine import Site
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.op_obligations import site_signature
from placealg.step.event import PARTIALS, READERS
from placealg.step.program import Group, Step


def signature(step: Step, group: Group, sites: tuple[Site, ...], flows: Flows) -> object:
    """The signature of a group, made of a signature per use of a parameter: equal signatures have equal obligations."""
    return (frozenset((site.loss, site_signature(step, group, site, flows)) for site in sites), _readers(step, group),
            unnamed(group))


def unnamed(group: Group) -> Group:
    """A group without its names, its sizes and the name of its optimizer: the rest is all that a verdict depends on."""
    return replace(group, name="", unit="", sites=(), parameters=(), elements=(), count=ONE, optimizer="",
                   types=FrozenMap(), rows=())


def _readers(step: Step, group: Group) -> frozenset[object]:
    """Clips and updates of other groups, each with the number of earlier events that make this group's norm or flag."""
    made, found = Counter[str](), set()
    for event in step.events:
        if event.value in PARTIALS and event.group in ("", group.name):
            made[event.value] += 1
        elif event.verb in READERS and event.group not in ("", group.name):
            found.add((event.verb, made[READERS[event.verb]], event.phase, event.at, event.where, event.layout))
    return frozenset(found)
