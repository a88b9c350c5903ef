"""Copies of tensors on other tiers, and of what ops keep beside their results: what is carried there, and back."""

from __future__ import annotations

from collections.abc import Callable

from placealg.simulator.box import Box
from placealg.simulator.machine import Machine
from placealg.simulator.store import Name, nearest
from placealg.step.program import Event

CARRIES = ("offload", "fetch")
"""The verbs that copy from tier to tier."""


def keeper(m: Machine, e: Event) -> str:
    """The result of the op that keeps the event's tensor beside it; "" for a tensor that is one of the graph's."""
    ops = (op.output for op in m.space.graph.ops if e.tensor in (f"{op.output}.{k.name}" for k in op.row.kept))
    return "" if e.tensor in m.space.graph.tensors else next(ops, "")


def carry(m: Machine, e: Event, name: Name, read: Callable[[int], Box | None]) -> None:
    """The copy on one tier becomes what a read of the version finds on another; not held where that finds nothing.

    `name` is the tensor, or the op that keeps it; `read` says what a rank finds on the device.
    """
    source, target = e.tiers
    by = keeper(m, e)
    for rank in (rank for rank in m.acting(e) if m.chosen(e, rank)):
        at = m.stores[rank]
        if source != "device":
            copies = {label: box for (tier, of, label), box in at.away.items() if (tier, of) == (source, name)}
            box = copies.get(e.tensor if by else nearest(e.version, copies))
        else:
            box = at.kept.get(name, {}).get(e.tensor.removeprefix(f"{by}.")) if by else read(rank)
        _put(m, e, rank, target, name, by, box)


def end(m: Machine, e: Event, name: Name) -> None:
    """A version ends on the tier of the event."""
    by = keeper(m, e)
    for rank in (rank for rank in m.acting(e) if m.chosen(e, rank)):
        _put(m, e, rank, e.tier, name, by, None)


def _put(m: Machine, e: Event, rank: int, tier: str, name: Name, by: str, box: Box | None) -> None:
    """What an event's version is on a tier, or what the op of `by` keeps: a box; None ends it."""
    at = m.stores[rank]
    if tier != "device":
        key = tier, name, e.tensor if by else e.version
        at.away.pop(key, None)
        at.away |= {} if box is None else {key: box}
    elif by:
        kept = {key: one for key, one in at.kept.get(name, {}).items() if f"{by}.{key}" != e.tensor}
        at.kept[name] = kept if box is None else {**kept, e.tensor.removeprefix(f"{by}."): box}
    else:
        at.write(name, e.version, box)
