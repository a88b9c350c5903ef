"""Every verb, executed: one small function each, and the loops that run a step's tree on a machine.

The meaning of a verb is its row of `placealg.step.verbs.VERBS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import reduce

import numpy as np

from placealg.errors import InputError
from placealg.simulator import network
from placealg.simulator.compute import compute, start_backward
from placealg.simulator.divisors import divided
from placealg.simulator.field import Number, Residues, residues, squares
from placealg.simulator.machine import Machine, Table, Team
from placealg.simulator.matrices import factors
from placealg.simulator.network import FIRST_STREAM, ZERO
from placealg.simulator.operate import operate
from placealg.simulator.parameters import unset
from placealg.simulator.pipeline import message, run_stages
from placealg.step.event import MICROBATCH
from placealg.step.program import GROUP_VALUES, PARTIALS, Event, Node
from placealg.step.verbs import MESSAGES

_INITIAL = {"moments": ZERO, "step": ZERO, "rng": FIRST_STREAM, "loss_scale": network.FIRST_SCALE}
_COPIED = {"master": "weight", "weight": "master", "average": "weight", "grad_sum": "grad"}
"""Value -> what `assign` copies where the event names no source."""


def run(m: Machine, nodes: Iterable[Node], microbatches: int | None = None) -> None:
    """Execute `nodes` in order; a microbatch loop stops after its first `microbatches`."""
    for node in nodes:
        if isinstance(node, Event):
            if m.runs_now(node):
                _act(m, node)
        elif node.name == MICROBATCH and m.stages:
            run_stages(m, m.stages, node.body, _act, microbatches)
        elif node.name == MICROBATCH:
            for k in range(m.setting.microbatches)[:microbatches]:
                m.enter(k)
                run(m, node.body)
            m.enter(None)
        else:
            instances = range(m.setting.instances(node.name, m.space.graph))
            for instance in reversed(instances) if node.reverse else instances:
                m.instance = instance
                run(m, node.body)
            m.instance = 0


def _act(m: Machine, e: Event) -> None:
    if e.group and e.verb != "compute" and "grad" in (e.value, e.origin) and m.microbatch is not None and (
            not m.space.whole and e.tiers[0] == "device"):
        unset(m, e)
    (operate if e.on_tensor and e.verb not in MESSAGES else EXECUTE[e.verb])(m, e)


def _put(table: Table, element: int, number: Number | None) -> None:
    if number is None:
        table.pop(element, None)
    else:
        table[element] = number


def _broadcast(m: Machine, e: Event) -> None:
    source, target = m.source(e), m.target(e)
    for element, team in m.teams(e):
        root = team.get((e.root,) * len(e.axes))
        number = m.garbage() if root is None else source[root].get(element)
        for rank in team.values():
            _put(target[rank], element, number)


def _owning(m: Machine, e: Event, element: int, team: Team) -> int:
    """The rank of a team that owns an element: all of it have one layout."""
    return team[m.owners(e, element, next(iter(team.values())))]


def _gather(m: Machine, e: Event) -> None:
    source, target = m.source(e), m.target(e)
    for element, team in m.teams(e):
        number = source[_owning(m, e, element, team)].get(element)
        for rank in team.values():
            target[rank][element] = m.garbage() if number is None else number


def _keep_owned(m: Machine, e: Event) -> None:
    source, target = m.source(e), m.target(e)
    for rank, element in m.pairs(e):
        owned = m.on_axes(e, rank) == m.owners(e, element, rank)
        _put(target[rank], element, source[rank].get(element) if owned else None)


def _free(m: Machine, e: Event) -> None:
    if e.axes:
        _keep_owned(m, e)
        return
    target = m.target(e)
    for rank, element in m.pairs(e):
        _put(target[rank], element, None)


def _copy(m: Machine, e: Event) -> None:
    source, target = m.source(e), m.target(e)
    for rank, element in m.pairs(e):
        _put(target[rank], element, source[rank].get(element))


def _assign(m: Machine, e: Event) -> None:
    named = e.source if e.source in GROUP_VALUES else _COPIED.get(e.value)
    source, target = m.table(e.tiers[0], named, *m.slot(e)) if named else None, m.target(e)
    for rank, element in m.pairs(e):
        start = _INITIAL.get(e.value) if m.owns(rank, m.split(e, element)) else None
        _put(target[rank], element, start if source is None else source[rank].get(element))


def _zero(m: Machine, e: Event) -> None:
    target = m.target(e)
    for rank, element in m.pairs(e):
        if m.owns(rank, m.split(e, element)):
            target[rank][element] = ZERO


def _scale(m: Machine, e: Event) -> None:
    if e.value == "loss":
        start_backward(m, e)
        return
    source, target = m.source(e), m.target(e)
    for rank, element in m.pairs(e):
        number = source[rank].get(element)
        _put(target[rank], element, None if number is None else _over(m, e, rank, number))


def _over(m: Machine, e: Event, rank: int, number: Number) -> Number:
    quotient = divided(m, e, rank, number)
    return m.garbage() if quotient is None else quotient


def _accumulate(m: Machine, e: Event) -> None:
    source, target = m.source(e), m.target(e)
    for rank, element in m.pairs(e):
        if element in target[rank]:
            number = source[rank].get(element)
            before = target[rank][element]
            if number is None:
                target[rank][element] = m.garbage()
            else:
                target[rank][element] = _largest([before, number]) if e.op == "max" else before + number


def _reduce(m: Machine, e: Event) -> None:
    _sum(m, e, m.source(e), m.target(e))


def _all_reduce(m: Machine, e: Event) -> None:
    if e.value not in PARTIALS or e.group:
        _reduce(m, e)
        return
    for slot in m.slots:
        partial = m.table("", e.value, *slot)
        _sum(m, e, partial, partial)


def _sum(m: Machine, e: Event, source: list[Table], target: list[Table]) -> None:
    if e.op not in ("", "sum", "mean", "premultiplied", "max") or (
            e.op == "max" and e.value != "skip" and not (e.group and m.reference.group(e.group).merge == "max")):
        raise InputError(f"{e.path}: op = '{e.op}' does not reduce {e.value}", name=e.op, valid=("sum", "mean"))
    early = e.op == "premultiplied"
    for element, team in m.teams(e):
        held = [_over(m, e, rank, source[rank][element]) if early else source[rank][element]
                for rank in team.values() if element in source[rank]]
        total = _largest(held) if e.op == "max" else sum(held, ZERO) / (len(team) if e.op == "mean" else 1)
        keepers = [_owning(m, e, element, team)] if e.to == "S" else list(team.values())
        for rank in team.values():
            if not held or rank not in keepers:
                _put(target[rank], element, None)
            else:
                whole = len(held) == len(team)
                target[rank][element] = m.garbage() if not whole else total if early else _over(m, e, rank, total)


def _largest(found: list[Number]) -> Number:
    """The largest of several numbers, element by element; of residues the largest representative, 0 where is none."""
    if not any(isinstance(number, Residues) for number in found):
        return max((number for number in found if isinstance(number, Fraction)), default=ZERO)
    return Residues(reduce(np.maximum, map(residues, found)))


def _norm(m: Machine, e: Event) -> None:
    source, target = m.source(e), m.target(e)
    for rank in m.acting(e):
        counted = (n for element, n in source[rank].items() if m.chosen(e, rank, element))
        target[rank][0] = sum((squares(n) for n in counted), ZERO)


def _clip(m: Machine, e: Event) -> None:
    source, target = m.source(e), m.target(e)
    factors = [_factor(m, rank) for rank in m.ranks]
    undefined = [factor in m.undefined for factor in factors]
    for rank, element in m.pairs(e):
        number = source[rank].get(element)
        clipped = None if number is None else m.garbage() if undefined[rank] else number * factors[rank]
        _put(target[rank], element, clipped)


def _factor(m: Machine, rank: int) -> Fraction:
    trained = {g.name for g in m.reference.trained}
    partial = [m.table("", "norm", *slot)[rank].get(0) for slot in m.slots if slot[0] in trained]
    squares = [n for n in partial if n is not None]
    if len(squares) < len(partial):
        return m.garbage()
    return network.clip_factor(sum(squares, ZERO))


def _update(m: Machine, e: Event) -> None:
    if e.value == "average":
        taken, averages = m.table(e.tiers[0], e.source or "weight", *m.slot(e)), m.target(e)
        for rank, element in m.pairs(e):
            if element in averages[rank]:
                new = taken[rank].get(element)
                averages[rank][element] = m.garbage() if new is None else network.average(averages[rank][element], new)
        return
    if e.group:
        _optimize(m, e)
        return
    source, target = m.source(e), m.target(e)
    if e.value == "loss_scale":
        for rank, _ in m.pairs(e):
            old = m.scalar("loss_scale", rank)
            target[rank][0] = m.garbage() if old is None else network.rescaled(old, m.skips(rank))
        return
    for rank, _ in m.pairs(e):
        if e.value != "step" or not m.skips(rank):
            target[rank][0] = source[rank][0] + 1 if source[rank] else m.garbage()


def _optimize(m: Machine, e: Event) -> None:
    group, (read, written) = m.reference.group(e.group), e.tiers
    reads = group.whole_reads if group.locality == "matrix" else ()
    values = {v: m.table(read, v, *m.slot(e)) for v in ("master", "moments", "grad_sum")}
    master, moments = (m.table(written, v, *m.slot(e)) for v in ("master", "moments"))
    for rank in (r for r in m.acting(e) if not m.skips(r)):
        here, step = {v: dict(table[rank]) for v, table in values.items()}, m.scalar("step", rank)
        known = factors(m.space, group, [here[v] for v in reads])
        for element, before in here["master"].items():
            if m.chosen(e, rank, element):
                whole = known.get(element)
                heavy, gradient = here["moments"].get(element), here["grad_sum"].get(element)
                if heavy is None or gradient is None or step is None or whole is None:
                    after: tuple[Number, Number] = m.garbage(), m.garbage()
                else:
                    after = _step_over(m, e, rank, before, network.optimize(before, heavy, gradient, step, whole))
                master[rank][element], moments[rank][element] = after


def _step_over(m: Machine, e: Event, rank: int, before: Number, after: tuple[Number, Number]) -> tuple[Number, Number]:
    """An update whose step is divided by the event's divisor."""
    return before + _over(m, e, rank, after[0] - before), after[1]


def _publish(m: Machine, e: Event) -> None:
    if e.axes:
        _gather(m, e)
        return
    source, target = m.source(e), m.target(e)
    for rank, element in m.pairs(e):
        if element in source[rank]:
            target[rank][element] = source[rank][element]


def _store(m: Machine, e: Event) -> None:
    source = m.source(e)
    kept = m.checkpoint.setdefault((e.value, *m.slot(e)), [{} for _ in m.ranks])
    for rank, element in m.pairs(e):
        if element in source[rank]:
            kept[rank][element] = source[rank][element]
            m.watch.stored(m, e, rank, element, source[rank][element])


def _load(m: Machine, e: Event) -> None:
    kept, target = m.checkpoint.get((e.value, *m.slot(e))), m.target(e)
    for rank, element in m.pairs(e):
        _put(target[rank], element, kept[rank].get(element) if kept else None)


EXECUTE: Mapping[str, Callable[[Machine, Event], None]] = {
    "broadcast": _broadcast, "slice": _keep_owned, "free": _free, "gather": _gather, "all_gather": _gather,
    "assign": _assign, "zero": _zero, "compute": compute, "scale": _scale, "accumulate": _accumulate,
    "reduce": _reduce, "all_reduce": _all_reduce, "norm": _norm, "clip": _clip, "update": _update,
    "publish": _publish, "offload": _copy, "fetch": _copy, "store": _store, "load": _load,
    "reduce_scatter": operate, "all_to_all": operate, "shift": operate, "pad": operate,
    "send": message, "recv": message,
}
"""Verb -> what it does on a machine. Every verb of the language has one."""
