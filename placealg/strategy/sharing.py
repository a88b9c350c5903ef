"""Over which axes a state is sharded together: the one place that knows a strategy's groups.

Frameworks do not shard states over data parallelism alone. Whoever splits the sequences of a batch, or the tokens of
experts, over an axis holds the same dense parameters on all its ranks, and so their optimizer state, gradients and
parameters are sharded over that axis too, in one group with the axes that split the batch. An axis that does so `joins`
the others; the catalogue says which (`joins`). A state that is sharded over an axis of data parallelism is sharded over
every axis that joins, unless a [states] entry spells that state out.

GROUPS is the same by kind of parameter, with what frameworks call it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placealg.frozen import FrozenMap
from placealg.placement import Mode, StatePlacement

SHARED = ("parameters", "optimizer", "gradients")
"""The states that are sharded over groups of ranks."""


@dataclass(frozen=True, slots=True)
class SharingGroup:
    """Over which axes the states of one kind of parameter are sharded, and their gradients reduced.

    `axes` in words of the catalogue, major to minor; `names` are the frameworks' own words for the group.
    """

    kind: str
    axes: tuple[str, ...]
    names: tuple[str, ...]


GROUPS = (
    SharingGroup("dense", ("dp", "ep", "cp"), ("Megatron-LM: DP-CP group", "torchtitan: dp_shard_cp",
                                               "DeepSpeed: seq_data_parallel_group")),
    SharingGroup("experts", ("dp", "cp"), ("Megatron-LM: expert data parallel group", "torchtitan: dp_shard_mod_ep",
                                           "DeepSpeed: expert_data_parallel_group")),
    SharingGroup("norms, where tensor parallelism splits sequences", ("dp", "ep", "cp"), (
        "Megatron-LM: DP-CP group, behind an all-reduce over the TP group",)),
    SharingGroup("embedding that is also the head, in a pipeline", ("dp", "ep", "cp"), (
        "Megatron-LM: DP-CP group, behind an all-reduce over the embedding group",)),
)
"""The groups of a strategy `zero*ep*cp*tp*pp`, by kind of parameter."""


def joined(states: Mapping[str, StatePlacement], data: tuple[str, ...], joins: tuple[str, ...]
           ) -> FrozenMap[str, StatePlacement]:
    """The placements, with every state that is sharded along an axis of `data` sharded along each of `joins`, too.

    What is said of a state along an axis that joins stays as it is.

    >>> sharded = {"optimizer": StatePlacement(FrozenMap({"dp": Mode.S}))}
    >>> joined(sharded, ("dp", "cp"), ("cp",))["optimizer"].modes
    {dp: S, cp: S}
    """
    made = dict(states)
    for state in SHARED:
        placement = states.get(state, StatePlacement())
        along = leader(placement, data, joins)
        if along:
            said = {axis: placement.modes[along] for axis in joins if axis not in placement.modes}
            made[state] = StatePlacement(placement.modes.plus(said), placement.offloaded, placement.away)
    return FrozenMap(made)


def leaders(states: Mapping[str, StatePlacement], joins: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of which one rank is enough: some state is sharded over them together with an axis that joins.

    >>> leaders({"optimizer": StatePlacement(FrozenMap({"dp": Mode.S, "cp": Mode.S}))}, ("cp",))
    ('dp',)
    """
    sharded = ([a for a, mode in placement.modes.items() if mode in (Mode.S, Mode.GATHERED)]
               for state, placement in states.items() if state in SHARED)
    return tuple(dict.fromkeys(a for over in sharded if set(over) & set(joins) for a in over if a not in joins))


def told(states: Mapping[str, StatePlacement], joins: tuple[str, ...]) -> str:
    """In words, over which axes states are sharded together where some of `joins` are among them; "" where none is.

    >>> told({"optimizer": StatePlacement(FrozenMap({"dp": Mode.S, "cp": Mode.S}))}, ("cp",))
    'states are sharded over dp and cp together, as frameworks do; [states] optimizer = { dp = "S" } keeps cp apart'
    """
    sharded = {state: {a: m for a, m in states[state].modes.items() if m in (Mode.S, Mode.GATHERED)}
               for state in SHARED if state in states}
    over = list(dict.fromkeys(a for modes in sharded.values() for a in modes))
    own, more = [a for a in over if a not in joins], [a for a in over if a in joins]
    if not own or not more:
        return ""
    kept = ", ".join(f"{state} = {_inline({a: m for a, m in modes.items() if a in own})}"
                     for state, modes in sharded.items())
    return (f"states are sharded over {', '.join([*own, *more[:-1]])} and {more[-1]} together, as frameworks do; "
            f"[states] {kept} keeps {' and '.join(more)} apart")


def _inline(modes: Mapping[str, Mode]) -> str:
    return f"{{ {', '.join(f'{axis} = {json.dumps(mode.value)}' for axis, mode in modes.items())} }}"


def leader(placement: StatePlacement, data: tuple[str, ...], joins: tuple[str, ...]) -> str:
    """The innermost axis of `data` along which a state is sharded by itself; "" where there is none."""
    return next((a for a in reversed(data) if a not in joins and placement.mode(a) in (Mode.S, Mode.GATHERED)), "")


def lifetimes(schedule: Mapping[str, Any], parameters: StatePlacement, data: tuple[str, ...], joins: tuple[str, ...]
              ) -> Mapping[str, Any]:
    """The [schedule] table, with gathered copies living along axes that join as long as along the axis that they join.

    It is the innermost of those along which something is said, so that strategies may be composed in any order.

    >>> schedule = {"lifetime": {"dp": "microbatch"}}
    >>> placed = StatePlacement(FrozenMap({"dp": Mode.GATHERED, "cp": Mode.GATHERED}))
    >>> lifetimes(schedule, placed, ("dp", "cp"), ("cp",))["lifetime"]
    {dp: microbatch, cp: microbatch}
    """
    lives = FrozenMap(schedule.get("lifetime", {}))
    along = leader(parameters, tuple(a for a in data if a in lives), joins)
    return {**schedule, "lifetime": lives.plus(dict.fromkeys(joins, lives[along]))} if along else schedule
