"""Composition: two strategies over disjoint axes become one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from placealg.errors import InputError, shown
from placealg.frozen import FrozenMap
from placealg.mesh import Mesh
from placealg.placement import STATES, Mode, StatePlacement
from placealg.strategy.sharing import joined, lifetimes
from placealg.strategy.spec import Strategy


def compose(left: Strategy, right: Strategy) -> Strategy:
    """The strategy that places states as `left` does on its axes and as `right` does on its own.

    Raises InputError, naming the rule, when an axis is used twice or when two tables disagree.
    """
    rule = f"cannot compose {left.name} with {right.name}"
    for axis in left.mesh.names:
        if axis in right.mesh.names:
            raise InputError(f"{rule}: both use axis '{axis}'; strategies compose over disjoint "
                             f"axes: rename one, as in {right.name.partition('[')[0]}[{axis}2]")
    for modifier in left.modifiers:
        if modifier in right.modifiers:
            raise InputError(f"{rule}: {modifier} is applied twice")
    for one_rule in left.groups:
        if one_rule.name in {r.name for r in right.groups}:
            raise InputError(f"{rule}: both have a [groups.{one_rule.name}]")
    states = {}
    for state in STATES:
        one, two = left.states.get(state), right.states.get(state)
        if one or two:
            first, second = one or StatePlacement(), two or StatePlacement()
            states[state] = StatePlacement(_merge_modes(_own(first), _own(second), f"{rule}: [states] {state}",
                                                        first.away + second.away),
                                           first.offloaded or second.offloaded,
                                           tuple(dict.fromkeys(first.away + second.away)))
    return _joined(Strategy(
        name=f"{left.name}*{right.name}",
        mesh=Mesh(left.mesh.axes + right.mesh.axes),
        dims=left.dims.plus(right.dims),
        states=FrozenMap(states),
        tables=_merge_tables(left.tables, right.tables, rule),
        groups=left.groups + right.groups,
        modifiers=left.modifiers + right.modifiers,
        joins=left.joins + right.joins,
    ))


def _joined(made: Strategy) -> Strategy:
    """A product, with its states sharded over the axes that join those of data parallelism."""
    data, joins = made.batch_axes, made.joins
    if not joins:
        return made
    states = joined(made.states, data, joins)
    schedule = lifetimes(made.tables.get("schedule", FrozenMap()), states.get("parameters", StatePlacement()), data,
                         joins)
    tables = made.tables.plus({"schedule": FrozenMap(schedule)}) if schedule else made.tables
    return replace(made, states=states, tables=tables)


def _own(placement: StatePlacement) -> FrozenMap[str, Mode]:
    """The modes of a placement, without those of regions of which it says the tier alone."""
    return FrozenMap({key: mode for key, mode in placement.modes.items()
                      if key not in placement.away or mode is not Mode.R})


def _merge_modes(left: FrozenMap[str, Mode], right: FrozenMap[str, Mode], label: str,
                 away: tuple[str, ...] = ()) -> FrozenMap[str, Mode]:
    """The modes of both; axes are disjoint, a region may stand on both sides with one mode; those `away` have one."""
    for key, mode in left.items():
        if right.get(key, mode) is not mode:
            raise InputError(f"{label} on {key} is {mode} on one side and {right[key]} on the other")
    said = left.plus(right)
    return said.plus({key: Mode.R for key in away if key not in said})


def _merge_tables(left: FrozenMap[str, FrozenMap[str, Any]], right: FrozenMap[str, FrozenMap[str, Any]],
                  rule: str) -> FrozenMap[str, FrozenMap[str, Any]]:
    merged = dict(left)
    for table, said in right.items():
        mine = dict(merged.get(table, FrozenMap()))
        for key, value in said.items():
            if key in mine and isinstance(value, FrozenMap):
                value = mine[key].plus(value)
            elif key in mine and mine[key] != value:
                raise InputError(f"{rule}: [{table}] {key} is {shown(mine[key])} on one side and {shown(value)} on "
                                 "the other")
            mine[key] = value
        merged[table] = FrozenMap(mine)
    return FrozenMap(merged)
