"""Communication per device and step: the volume of every event, by the table of placement.SENT and nothing else.

Volume is what one device sends. An event on n devices sends SENT(n) times the tensor that is local to all other axes at
that moment, in the element size that the event names, else `wire` for gradients of parameters, `act` for tensors of the
op graph and their gradients, and Group.bytes_of for other values. A cross entropy that merges its statistics over axes
sends an all_reduce of one number per row for each. From stage to stage of a pipeline a device sends what it holds of
the tensor, once per neighbour, chunk and microbatch; receiving does not count. The asymptotic convention replaces (n -
1) by n in that factor, and nothing else. Totals are one training step; scalars (norm, skip, count) and events of init,
save and resume are listed, not added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy

from placealg.arith import ONE, Monomial
from placealg.cost.activations import STATISTICS, Activations, collected, region
from placealg.cost.algebra import tidy
from placealg.cost.amounts import EXACT, Amounts, Part
from placealg.cost.expressions import EXPRESSIONS
from placealg.cost.formula import Formula
from placealg.cost.held import Share, State, active, apply, origin_of, owners, unset
from placealg.cost.shards import filled
from placealg.cost.stage import holders, stage_of
from placealg.cost.storages import Touch
from placealg.cost.walk import Walk, walked
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.notebook_display import Shown
from placealg.placement import MEMORY_TIERS, SENT, Kind, redistribution
from placealg.polynomial import R, Ring
from placealg.step.event import dim_of
from placealg.step.program import LOOPED, POSITIONS, STEP_PHASES, Event, Group, Step
from placealg.step.verbs import VERBS

LINKS = ("offload", "fetch")
"""The verbs that move data over a link between two tiers."""

SENT_ON = "send"
"""The verb of messages from one stage of a pipeline to the next."""

SCALARS = "scalars, listed and left out of totals"
OUTSIDE = "not part of a training step, left out of totals"
"""The reason for which an event's volume is not in the totals."""


@dataclass(frozen=True, slots=True)
class EventVolume:
    """The volume of one event in all its executions, `formula`; it runs `count` times per step.

    `left_out` says why the totals leave it out; "" if they contain it. `region` is that of the op which makes the
    tensor, or the unit of the parameters.
    """

    path: str
    axes: tuple[str, ...]
    collective: str
    formula: Formula
    count: Formula
    left_out: str = ""
    region: str = ""

    @property
    def convention(self) -> str:
        """The formula's convention."""
        return self.formula.convention


@dataclass(frozen=True, slots=True)
class Communication(Shown):
    """Volumes per device and step: in total, per set of axes, per phase, per event; and over the links between tiers.

    `host_link` is the link between device and host, `nvme_link` the one between host and nvme.
    """

    total: Formula
    by_axes: FrozenMap[str, Formula]
    by_phase: FrozenMap[str, Formula]
    host_link: Formula
    nvme_link: Formula
    events: tuple[EventVolume, ...]


def communication(step: Step | Walk, convention: str = "exact", unit: str = "bytes") -> Communication:
    """What one device sends in a step, in `bytes` or `elements`, `exact` or `asymptotic`."""
    if unit not in ("bytes", "elements"):
        raise InputError(f"communication has no unit '{unit}'", name=unit, valid=("bytes", "elements"))
    walk = walked(step)
    step, amounts = walk.step, walk.amounts
    every, staged = list(rows(walk, convention, unit)), stage_of(step).several
    repeated = {u.name for u in step.reference.units if u.repeated}

    def add(chosen: Iterable[Carried]) -> Formula:
        form: dict[Part, Any] = {}
        tensors: dict[tuple[bool, bool], list[Any]] = {}
        for row in chosen:
            if row.event.on_tensor:
                kind = row.event.verb == SENT_ON, staged and row.event.unit in repeated
                tensors.setdefault(kind, []).append(_sent(step, amounts, row))
            for part in amounts.parts:
                if part[0] == row.event.group:
                    key = (*part[:2], row.cut)
                    form[key] = form.get(key, sympy.S.Zero) + row.weight(amounts, EXPRESSIONS)
        expr, note = amounts.write(form)
        return amounts.made(expr + sum(map(collected, tensors.values())), unit, convention, note)

    counted = [r for r in every if not r.left_out and r.event.verb not in LINKS]
    links = {tier: [r for r in every if not r.left_out and r.collective == f"{tier} link"] for tier in MEMORY_TIERS}
    axes = dict.fromkeys(",".join(r.event.axes) for r in counted)
    phases = dict.fromkeys(r.event.phase for r in counted)
    return Communication(
        total=add(counted),
        by_axes=FrozenMap({a: add(r for r in counted if ",".join(r.event.axes) == a) for a in axes}),
        by_phase=FrozenMap({p: add(r for r in counted if r.event.phase == p) for p in phases}),
        host_link=add(links["host"]),
        nvme_link=add(links["nvme"]),
        events=tuple(EventVolume(r.event.path, r.event.axes, r.collective,
                          amounts.made(_volume(step, amounts, r), unit, convention),
                          amounts.made(tidy(executions(step, r.event, EXPRESSIONS)), "1"), r.left_out,
                          region_of(step, r.event)) for r in every),
    )


@dataclass(frozen=True, slots=True)
class Carried:
    """One event: `moved` is the amount it moves, per element of its group, per scalar, or per instance of its unit.

    An element takes `size` bytes; the collective runs over its event's axes, or joins `ranks`. What it sends of a group
    is cut, and padded to whole shares, along `cut`.
    """

    event: Event
    collective: str
    convention: str
    size: str
    moved: Monomial
    left_out: str
    group: Group | None = None
    ranks: Monomial | None = None
    cut: Share = EXACT

    def weight(self, amounts: Amounts, ring: Ring[R], factor: R | None = None) -> R:
        """The volume in all microbatches, per element, scalar or instance.

        `factor` is another multiple of the tensor than that which is sent.
        """
        if factor is None:
            factor = sent_factor(self.collective, self.event.axes, self.convention, self.ranks, ring)
        size = amounts.size(self.group, self.size, ring) if self.group else ring.read(self.size, {})
        return factor * times(self.event, ring) * size * ring.of(self.moved)


def _sent(step: Step, amounts: Amounts, row: Carried) -> Any:
    return row.weight(amounts, EXPRESSIONS) * instances(step, row.event, EXPRESSIONS)


def _volume(step: Step, amounts: Amounts, row: Carried) -> Any:
    if row.event.on_tensor:
        return tidy(_sent(step, amounts, row))
    if not row.event.group:
        return tidy(row.weight(amounts, EXPRESSIONS))
    return amounts.of_group(amounts.reference.group(row.event.group), row.weight(amounts, EXPRESSIONS), row.cut)


def rows(walk: Walk, convention: str = "exact", unit: str = "bytes") -> Iterator[Carried]:
    """The row of every event of the program that sends something, in order."""
    step, tensors = walk.step, walk.tensors
    touched = dict(zip(tensors.looped, tensors.walk(), strict=False))
    for place, event, state in _held_at(walk):
        left_out = "" if event.phase in STEP_PHASES else OUTSIDE
        if event.on_tensor:
            if place in touched:
                yield from _of_tensor(touched[place], tensors, convention, unit)
            continue
        collective = collective_of(event)
        if not collective:
            continue
        ranks = _ranks(step, event)
        if not event.group:
            yield Carried(event, collective, convention, "1" if unit == "elements" else event.bytes or "4", Monomial(),
                      left_out or SCALARS, None, ranks)
            continue
        group = step.reference.group(event.group)
        held = state.get(origin_of(event))
        share = held.readable if held else frozenset()
        moved = share | owners(event) if event.verb in LINKS else share - frozenset(event.axes)
        size = "1" if unit == "elements" else event.bytes or _size_of(event, group)
        ends = share | frozenset(event.axes) if collective == "reduce_scatter" else share | owners(event)
        cut = filled(step.reference, group, ends)
        along = cut & frozenset(event.axes) if event.verb not in LINKS else EXACT
        yield Carried(event, collective, convention, size, Monomial.of(*along) / Monomial.of(*(moved - cut)), left_out,
                  group, ranks, cut)


def _ranks(step: Step, event: Event) -> Monomial | None:
    """The number of ranks that a collective joins, if not all along its axes: on a pipeline's, its group's holders."""
    stage = stage_of(step)
    if not event.group or not stage.pipeline.among(event.axes):
        return None
    others = Monomial.of(*(a for a in event.axes if a != stage.pipeline.axis))
    return others * holders(step.reference.group(event.group), step.reference, stage)


def region_of(step: Step, event: Event) -> str:
    """The region of the op that makes an event's tensor; for parameters, the unit; "" for global values."""
    if event.on_tensor:
        return region(step.reference.graph, event.tensor)
    return step.unit_of(event)


def _of_tensor(touch: Touch, tensors: Activations, convention: str, unit: str) -> Iterator[Carried]:
    """The row of a collective on a tensor: what one instance sends, in all microbatches."""
    event, times = touch.event, 1
    if event.verb == "compute":
        op = tensors.graph.producer(event.value)
        times = len(op.row.merges) if op and event.axes else 0
        collective, moved = "all_reduce", touch.writes[0] if touch.writes else None
    else:
        collective, moved = collective_of(event), touch.source
        if moved and (event.verb in ("all_gather", "all_to_all") or (event.verb == "shift" and dim_of(event.source))):
            dim = dim_of(event.source)
            moved = replace(moved, box=frozenset(
                (a, d) for a, d in moved.box if a not in event.axes or dim not in ("", d)))
    if collective and times:
        elements = tensors.elements(moved) if moved else Monomial.number(0)
        usual = tensors.carried(touch) if event.verb in LINKS else "act"
        left_out = "" if tensors.counts(event.tensor) else STATISTICS
        yield Carried(event, collective, convention, "1" if unit == "elements" else event.bytes or usual,
                  elements * Monomial.number(times), left_out)


def _held_at(walk: Walk) -> Iterator[tuple[int, Event, State]]:
    """(place, event, what is held before it) for every event of the program, in order."""
    step, seen = walk.step, walk.account.visits
    before = {v.place: v.before for v in reversed(seen)}
    state: State = unset(step)
    settled = seen[-1].after if seen else None
    for place, event in enumerate(step.events):
        if event.phase != "init" and settled is not None:
            state, settled = settled, None
        yield place, event, before.get(place, state)
        if event.phase not in STEP_PHASES:
            state = apply(step, state, event)


def collective_of(event: Event) -> str:
    """The collective that an event performs: the redistribution of its verb's kinds; "" if the event sends nothing.

    >>> collective_of(Event("reduce", "reduce", "grad_sum", "layer.weight", axes=("dp",), to="I"))
    'all_reduce'
    """
    if event.verb in LINKS:
        return f"{max(event.tiers, key=MEMORY_TIERS.index)} link"
    if event.verb == SENT_ON:
        return SENT_ON
    verb = VERBS[event.verb]
    if not verb.collective or not event.axes:
        return ""
    if verb.kinds is None:
        return event.verb
    source, target = verb.kinds
    return redistribution(source, Kind(event.to) if event.verb == "reduce" and event.to else target).event


@lru_cache(maxsize=256)
def sent_factor(collective: str, axes: tuple[str, ...], convention: str, ranks: Monomial | None = None,
                ring: Ring[Any] = EXPRESSIONS) -> Any:
    """The volume of one device, as a multiple of the tensor, on the product of `axes`, or on a number of `ranks`.

    >>> sent_factor("all_reduce", ("dp",), "exact"), sent_factor("all_reduce", ("dp",), "asymptotic")
    (2*(dp - 1)/dp, 2)
    """
    text = SENT.get(collective, "1")
    n = ring.of(Monomial.of(*sorted(axes)) if ranks is None else ranks)
    return ring.read(text.replace("n - 1", "n") if convention == "asymptotic" else text, {"n": n})


def _size_of(event: Event, group: Group) -> str:
    if event.value in ("grad", "grad_sum") and event.verb not in LINKS:
        return "wire"
    return group.bytes_of(event.value)


def times(event: Event, ring: Ring[R]) -> R:
    """How often an event of one instance runs per step, by its positions in the microbatch loop.

    A loop of m microbatches has `middle` ones m - 2 times, `first` and `last` once, or `only` once if m = 1.
    """
    return ring.read(" + ".join(_runs(event)), {})


def _runs(event: Event) -> list[str]:
    if event.phase not in LOOPED:
        return ["1"]
    if all(active(event, position) for position in POSITIONS):
        return ["m"]
    alone = "Max(2 - m, 0)"
    counts = {"only": alone, "first": f"(1 - {alone})", "middle": "Max(m - 2, 0)", "last": f"(1 - {alone})"}
    return [n for position, n in counts.items() if active(event, position)] or ["0"]


def executions(step: Step, event: Event, ring: Ring[R]) -> R:
    """How often the event runs per step, over all microbatches and instances of its unit."""
    return times(event, ring) * instances(step, event, ring)


def instances(step: Step, event: Event, ring: Ring[R]) -> R:
    """The number of instances of the event's unit; for a message, the number of them that send one."""
    stage = stage_of(step)
    if event.verb == SENT_ON:
        return stage.value(stage.messages(event.unit, event.phase), ring)
    unit = step.unit_of(event)
    return ring.of(next((u.count for u in step.reference.units if u.name == unit), ONE))
