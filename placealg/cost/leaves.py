"""Every figure of a program's cost by its path in the document of `cost`, such as `communication.by_axes.tp`."""

from __future__ import annotations

from collections.abc import Mapping

from placealg.cost.communication import communication
from placealg.cost.document import parameters
from placealg.cost.flop import flop
from placealg.cost.formula import Formula
from placealg.cost.memory import memory
from placealg.cost.regions import kept_for_backward, rows_by_region
from placealg.errors import InputError
from placealg.step.program import Step

SPARSE = ("communication.by_axes.", "communication.by_phase.", "communication.events.", "regions.")
"""What the paths begin with that a program may lack because there is nothing: its figure is 0."""


def leaves(step: Step, convention: str = "exact", unit: str = "bytes") -> dict[str, Formula]:
    """Path -> formula; an event stands under its own path, a region under its name.

    >>> from placealg.model.abstract import abstract
    >>> from placealg.step.derive import derive
    >>> from placealg.strategy.expression import parse_strategy
    >>> leaves(derive(parse_strategy("zero3"), abstract()))["memory.states"]
    Ψ·(w + g + o)/dp bytes
    """
    held, sent = memory(step), communication(step, convention, unit)
    found = {"parameters": parameters(step), "compute.flop": flop(step)}
    found |= {f"memory.{name}": f for name, f in held.items()}
    found |= {"communication.total": sent.total, "communication.host_link": sent.host_link}
    found |= {f"communication.by_axes.{axes}": f for axes, f in sent.by_axes.items()}
    found |= {f"communication.by_phase.{phase}": f for phase, f in sent.by_phase.items()}
    found |= {f"communication.events.{e.path}": e.formula for e in sent.events}
    for row in rows_by_region(step, kept_for_backward(step), sent):
        found |= {f"regions.{row.region}.activations": row.activations, f"regions.{row.region}.sent": row.sent}
    return found


def leaf(path: str, own: Mapping[str, Formula], other: Mapping[str, Formula]) -> Formula:
    """The figure at `path` of a program; 0 where only the other of two programs has it, since there is nothing here.

    An unknown path is an InputError with the nearest one, a figure without a closed form one with the reason.
    """
    found = own.get(path)
    if found is None and path in other and path.startswith(SPARSE):
        found = other[path] * 0
    if found is None:
        raise InputError(f"no figure '{path}'", name=path, valid={**own, **other})
    if found.expr is None:
        raise InputError(f"'{path}' has no closed form: {found.reason}")
    return found
