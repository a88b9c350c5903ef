"""Events among those of a unit's ops: statistics that forward takes, and further terms that start a backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from placealg.arith import Monomial
from placealg.models.backward import terms
from placealg.models.model import Model
from placealg.step import rules
from placealg.step.event import Event, Rule
from placealg.step.groups import Plan
from placealg.step.rules import Averaging


def with_statistics(events: Iterable[Event], plans: Iterable[Plan], averaging: Averaging) -> Iterator[Event]:
    """The events of a unit's forward; behind the op that makes a statistic, it is taken and added to the step's."""
    for event in events:
        yield event
        for plan in plans:
            if event.verb == "compute" and event.tensor == plan.group.taken != "":
                yield from rules.take_statistic(plan, averaging)
                yield from rules.reduce_microbatch(plan, averaging, "forward")


def of_terms(events: Iterable[Event], model: Model, by: Monomial) -> Iterator[Event]:
    """The events of a unit's backward, those from which a further term of the loss starts with their divisor."""
    sums = {op.output for op in terms(model.graph)}
    for event in events:
        starts = event.verb == "compute" and event.on_gradient and event.tensor in sums
        yield replace(event, divisor=by, rule=_OF_A_TERM) if starts else event


_OF_A_TERM = Rule("term_of_loss", "a further term of the loss starts its own backward, from one over its divisors")
