"""The obligations of the ops themselves: `forward`, each op under its placement, and `random`, its draws."""

from __future__ import annotations

from itertools import product
from typing import Any

import z3

from placealg.arith import ONE
from placealg.models.backward import differentiated
from placealg.prover.calculus.explore import shapes
from placealg.prover.calculus.machine import Site
from placealg.prover.calculus.one_step import Program
from placealg.prover.calculus.parameter_uses import begins, loss_of, seeds_in, starts, starts_a_term
from placealg.prover.calculus.places import NoRule
from placealg.prover.calculus.positions import dim_of
from placealg.prover.evidence import symbols
from placealg.prover.evidence.logic import and_, not_, or_
from placealg.prover.obligations import Failure, Obligations
from placealg.prover.ops.findings import Demand, GradientPart
from placealg.prover.ops.flow import Flows
from placealg.prover.ops.redistributions import uncovered
from placealg.prover.ops.stages import before_its_uses, in_several_chunks, out_of_turn, tied
from placealg.step.event import LOOPED, POSITIONS, Event
from placealg.step.gradient_targets import WEIGHTS
from placealg.step.pipeline import part_of
from placealg.step.program import Group, Step

WHOLE = Group("", "", (), (), ())
"""The group of obligations on ops, which concern the whole step and no parameter group."""


def network_obligations(step: Step, flows: Flows, full: bool = False) -> Obligations:
    """The obligations on the ops of a step, whatever the parameter groups do; `full` as in `Obligations`."""
    graph = step.reference.graph
    for event in step.events:
        gap = (uncovered(event, graph, step.reference.pipeline) or out_of_turn(event, step.reference)
               or _counted_inside(event, step))
        if gap:
            raise NoRule(event.path, f"no transfer rule for {gap}")
    for event in in_several_chunks(step):
        raise NoRule(event.path, "no transfer rule for a parameter that one stage uses in several chunks, between "
                     "which other microbatches run")
    for event in before_its_uses(step):
        raise NoRule(event.path, f"no transfer rule for {event.verb} of {event.value} before a backward that adds to "
                     "it, with another stage or chunk")
    found = Obligations(full)
    for cases in shapes(step.reference):
        for case in cases:
            for position in dict.fromkeys(i.position for i in case.iterations):
                flow = flows.at(position)
                for demand in flow.demands:
                    found.add(demand.obligation, (demand.obligation, demand), case,
                              lambda demand=demand: _forward(demand), demand.exact)  # type: ignore[misc]
    _random(found, step, flows)
    found.open = [f"{d.event} {d.says}" for d in unfollowed(step, flows)]
    return found


def _counted_inside(event: Event, step: Step) -> str:
    """What no rule covers in a term of the loss that a count of one microbatch divides, in a pipeline; "" if nothing.

    Stages run their microbatches in other orders, so that the count may be another one's.
    """
    counters = step.reference.counters_of(event) if event.on_tensor else ()
    if not (step.reference.pipeline.axis and counters):
        return ""
    inside = any(e.value == "count" and e.unit in counters for e in step.phase(*LOOPED))
    return f"{event.verb} of {event.value} by a count of one microbatch, among stages" if inside else ""


def unfollowed(step: Step, flows: Flows) -> tuple[Demand, ...]:
    """The demands of events that could not be followed, in program order."""
    order = {e.path: k for k, e in enumerate(step.events)}
    found = dict.fromkeys(d for position in POSITIONS for d in flows.at(position).open)
    return tuple(sorted(found, key=lambda d: order[d.event]))


def supposed(demand: Demand, step: Step) -> Failure:
    """The failure that an event which could not be followed is wrong, at any sizes: only a run can show it."""
    backward = step.event(demand.event).phase in ("backward", WEIGHTS)
    return Failure("gradient" if backward else "forward", demand.event, z3.BoolVal(True), demand.says)


def _forward(demand: Demand) -> Failure:
    if demand.ran is not None:
        wrong = not_(or_([symbols.at_pairs(where) for where in demand.ran]))
    else:
        wrong = and_(symbols.at_pairs(demand.mask), not_(_exact(demand))) if demand.held else z3.BoolVal(True)
    return Failure(demand.obligation, demand.event, wrong, demand.says, held=demand.held, kind=demand.kind)


def _exact(demand: Demand) -> Any:
    """Every contribution counts once, on a defined value."""
    return and_([z3.BoolVal(False) if value.garbage else
                 and_(symbols.conjunction(value.sides), symbols.equals(value.terms, ONE)) for value in demand.held])


def _random(found: Obligations, step: Step, flows: Flows) -> None:
    """Add the failures of draws keyed by rank or by a local index: the reference's are keyed by logical indices.

    By which of their dims an axis splits the tokens of a whole unit is not known: it may be any.
    """
    graph = step.reference.graph
    for event in step.phase("forward", "backward"):
        op = graph.producer(event.tensor) if event.verb == "compute" and not event.on_gradient else None
        if op is None or not op.draws:
            continue
        known = len(found.failures)
        for key in step.reference.random_keys:
            held = {pair for position in POSITIONS for pair in flows.at(position).masks.get(event.path, ())}
            places = [(key.axis, "c")] if key.axis else [
                (a, p) for a, p in sorted(held) if dim_of(p) == key.dim or step.reference.whole]
            elsewhere = [symbols.coordinate(a, p) != 0 for a, p in places]
            if key.over_microbatches:
                elsewhere.append(symbols.size(symbols.MICROBATCH) > 1)
            if elsewhere:
                failure = Failure("random", event.path, or_(elsewhere),
                                  f"draws from a stream keyed by {key}: equal to the reference in distribution only")
                found.add("random", ("random", key, event), None, lambda failure=failure: failure)  # type: ignore[misc]
        if len(found.failures) == known:
            found.hold("random")


def sites_of(step: Step, group: Group, flows: Flows) -> tuple[Site, ...]:
    """The uses of a group's parameters: one for each signature, class of contributions, and loss.

    A statistic, which no loss reaches, has a use for the first loss only.
    """
    return tuple(dict.fromkeys(paths_of(step, group, flows).values()))


def paths_of(step: Step, group: Group, flows: Flows) -> dict[Site, Site]:
    """Every use of a group's parameters, class of contributions, and loss -> the first one that counts alike."""
    graph = step.reference.graph
    alike: dict[object, Site] = {}
    found: dict[Site, Site] = {}
    losses = step.reference.losses[:1] if group.statistic else step.reference.losses
    for loss, parameter in product(losses, group.parameters):
        for op in graph.consumers(parameter):
            uses = range(len(op.inputs)) if group.frozen or group.taken else differentiated(graph, op)
            for use in (f"{op.output}/{k}" for k in uses if op.inputs[k] == parameter):
                for part in range(_classes(step, flows, parameter, use)):
                    site = Site(use, parameter, part, loss)
                    if loss not in _losses_of(step, flows, site):
                        continue
                    found[site] = alike.setdefault((loss, site_signature(step, group, site, flows)), site)
    return found


def _classes(step: Step, flows: Flows, parameter: str, use: str) -> int:
    parts = flows.parts_of(parameter, use)
    taken = [len(held) for position in POSITIONS for path, held in flows.at(position).taken.items()
             if parameter in step.reference.group(step.event(path).group).parameters]
    return max((1, *(len(p.held) for p in parts), *taken))  # nothing held is a class: without one nothing is judged


def _losses_of(step: Step, flows: Flows, site: Site) -> set[str]:
    """The losses whose tokens a class of contributions counts; where no backward started, the first of an op graph."""
    if step.reference.whole or len(step.reference.losses) == 1:
        return {site.loss}
    seeds = {s for p in flows.parts_of(site.parameter, site.use)
             for s in seeds_in(p.held[min(site.part, len(p.held) - 1)])}
    return {loss_of(s, flows) for s in seeds} or {step.reference.losses[0]}


def site_signature(step: Step, group: Group, site: Site, flows: Flows) -> object:
    """The events that one group's machine executes for a site, as data: equal signatures have equal obligations.

    The clips and updates of other groups, which read this group's norm and flag, are not part of it.
    """
    known, key = flows.signatures if step is flows.step else {}, (group, site)
    if key not in known:
        known[key] = tuple(_marks(step, group, site, flows))
    return known[key]


def _marks(step: Step, group: Group, site: Site, flows: Flows) -> list[object]:
    marks: list[object] = []
    for event in Program.of(step, group, site.parameter).everything:
        if event.group not in ("", group.name):
            continue
        mark: object = _mark(event, site, flows, step, group) if event.on_tensor else event.plain
        if event.value == "grad" and event.verb == "compute":
            mark = event.plain, tuple(flows.at(position).taken.get(event.path) for position in POSITIONS)
        if not marks or marks[-1] != mark or not event.on_tensor or event.on_gradient:
            marks.append(mark)
    return marks


def _mark(event: Event, site: Site, flows: Flows, step: Step, group: Group) -> object:
    """The effect of an op event on one use of a parameter: it reads it, on which ranks, draws, adds to its gradient."""
    graph = step.reference.graph
    op = graph.producer(event.tensor)
    assert op is not None
    end = part_of(op.unit, graph) if tied(step.reference, site.parameter) else ""
    added = tuple(tuple((_share(p, site), begins(p.use, group, step.reference) if step.reference.whole else "")
                        for p in flows.at(position).of(event.path, site.parameter))
                  for position in POSITIONS) if event.on_gradient else ()
    reads = site.parameter in op.inputs and (not event.on_gradient or flows.reads_parameter(event, op, site.parameter))
    return (event.phase, event.at, event.where, end, event.on_gradient, reads, op.draws_in(event.on_gradient),
            starts(event, step.reference), event.plain if starts_a_term(event, step.reference) else None, added)


def _share(part: GradientPart, site: Site) -> object:
    """What a part adds to the site; if it has several classes also at which use, because one use must not add twice."""
    value = part.held[min(site.part, len(part.held) - 1)]
    return part.use == site.use, value, part.use if len(part.held) > 1 else ""
