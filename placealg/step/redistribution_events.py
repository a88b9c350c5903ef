"""The event of one row of a redistribution of a tensor, or of its gradient, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placealg.arith import ONE, Monomial
from placealg.models.backward import GRAD
from placealg.placement import SENT, Kind
from placealg.step.event import Event, Phase, Rule
from placealg.step.split import Place, RedistributionRow
from placealg.step.verbs import VERBS, VerbName

VERB_OF: Mapping[str, VerbName] = {"scale 1/n": "scale", "zero-pad": "pad"}
"""Event of the redistribution table -> verb, where they differ."""


RING = "shift"
"""The verb of a gather, or of its backward, by exchange between neighbours."""

BLOCKWISE = ("einsum", "flash")
"""The families of ops that can take an operand block by block, because they add or merge the blocks' results."""


def row_events(row: RedistributionRow, value: str, label: str, phase: Phase, unit: str,
               rule: Rule | None) -> Iterator[Event]:
    """The event of one row of the redistribution table; a row without one yields nothing."""
    if row.row.event == "none":
        return
    verb = VERB_OF.get(row.row.event) or VERBS[row.row.event].name
    divisor = Monomial.of(*row.axes) if verb == "scale" else ONE
    yield Event(phase, verb, value, unit=unit, axes=row.axes, divisor=divisor, version=label, source=row.source.text,
                to=row.target.text, op="sum" if row.source.kind is Kind.P else "",
                bytes="act" if verb in (*SENT, RING) else "", rule=rule or Rule("redistribute", _why(row, value)))


def is_ring(row: RedistributionRow) -> bool:
    """Whether a row is a gather for use, or the backward of one."""
    return (row.source.kind, row.target.kind) in ((Kind.S, Kind.R), (Kind.P, Kind.S))


def _why(row: RedistributionRow, value: str) -> str:
    made, used = _said(row.source), _said(row.target)
    if value.endswith(GRAD):
        return f"the gradient of a redistribution: it is {made}, and its tensor's maker needs it {used}"
    return f"it is made {made} and used {used}"


def _said(place: Place) -> str:
    return {Kind.I: "whole", Kind.R: "whole, by every rank for itself", Kind.P: "as a partial sum",
            Kind.S: f"split along {place.dim}"}[place.kind]
