"""The cost of a program as one JSON document: every figure a leaf with its expression, unit and value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from placealg.cost.amounts import Amounts
from placealg.cost.communication import Communication, communication
from placealg.cost.formula import Formula, Size, exact_size, json_number
from placealg.cost.memory import memory
from placealg.mesh import SYMBOLS, axis_symbol
from placealg.step.program import Step

ASSUMED = (
    "sizes divide: every shard is exactly 1/n of its tensor",
    "the figures are those of the most loaded device",
    "4 of the o bytes per element are the fp32 master copy, the other o - 4 the moments",
    "a gradient is reduced in place: where wire exceeds g, the wire - g more bytes of a unit are not counted",
)
"""What every figure takes for granted."""

NO_FLOP = "the program runs a unit as one computation, whose operations are not counted"
NO_STAGES = "no axis of the mesh splits the layers into pipeline stages"


def parameters(step: Step) -> Formula:
    """The number of parameters, all instances of all units included."""
    amounts = Amounts(step.reference)
    return amounts.made(amounts.total, "elements")


def cost_json(step: Step, sizes: Mapping[str, Size] | None = None, convention: str = "exact",
              unit: str = "bytes") -> dict[str, Any]:
    """The document `cost` (version 1): symbols stay in `expr`; each `value` is at `sizes` and the defaults.

    `unit` is that of communication; memory is in bytes. Volumes keep m, whose default is 1.
    """
    held, sent = memory(step), communication(step, convention, unit)
    count = parameters(step)
    leaves = [count, *(f for _, f in held.items()), *_volumes(sent)]
    bound = {n: exact_size(n, v) for n, v in (sizes or {}).items()}
    used = [n for n in (*SYMBOLS, *step.reference.mesh.names) if n in bound or any(n in f.names for f in leaves)]
    known = {**count.values, **bound}

    def leaf(formula: Formula) -> dict[str, Any]:
        return formula.to_json(**{n: v for n, v in bound.items() if n in formula.names})

    return {
        "version": 1,
        "strategy": step.reference.strategy,
        "model": step.reference.model,
        "sizes": {n: json_number(known[n]) for n in used if n in known},
        "convention": convention,
        "unit": unit,
        "hypotheses": list(ASSUMED),
        "symbols": {n: _symbol(n) for n in used},
        "parameters": leaf(count),
        "memory": {name: leaf(f) for name, f in held.items()},
        "communication": {
            "total": leaf(sent.total),
            "by_axes": {axes: leaf(f) for axes, f in sent.by_axes.items()},
            "by_phase": {phase: leaf(f) for phase, f in sent.by_phase.items()},
            "host_link": leaf(sent.host_link),
            "events": [{"path": e.path, "axes": list(e.axes), "collective": e.collective, **leaf(e.formula),
                        "count": leaf(e.count), "convention": e.convention, "left_out": e.left_out or None}
                       for e in sent.events],
        },
        "compute": {"flop": leaf(Formula.none("flop", NO_FLOP))},
        "schedule": {name: leaf(Formula.none("1", NO_STAGES)) for name in ("bubble", "in_flight")},
    }


def _volumes(sent: Communication) -> Iterator[Formula]:
    yield from (sent.total, sent.host_link, *sent.by_axes.values(), *sent.by_phase.values())
    for event in sent.events:
        yield from (event.formula, event.count)


def _symbol(name: str) -> dict[str, str]:
    known = SYMBOLS.get(name) or axis_symbol(name)
    return {"meaning": known.meaning, "assumptions": known.assumption}
