"""What runs in the first or the last microbatch alone, as what runs before or behind the loop over microbatches.

The two are the same where nothing else in the loop touches what the event does: before it in the first microbatch,
behind it in the last one.
"""

from __future__ import annotations

from dataclasses import replace

from placealg.prover.kernel.outside import Outside
from placealg.step.event import LOOPED, Event
from placealg.step.program import Step
from placealg.step.verbs import COUNTERS

_MOVED = ("reduce", "scale", "clip", "gather", "all_gather", "publish", "free", "zero", "broadcast", "slice", "assign",
          "offload", "fetch")
"""The verbs on a group that can stand outside of the loop; another adds what a microbatch has made."""


def apart(step: Step) -> Step:
    """The step without events of one microbatch alone; raises Outside where such an event cannot leave the loop."""
    every = {"first", "middle", "last"}
    step = replace(step, events=tuple(replace(e, at=()) if every <= {*e.at} else e for e in step.events))
    looped = [e for e in step.events if e.phase in LOOPED]
    if not any(e.at for e in looped):
        return step
    ahead: list[Event] = []
    behind: list[Event] = []
    for k, e in enumerate(looped):
        if not e.at:
            continue
        first = e.at == ("first",)
        beside = looped[:k] if first else looped[k + 1:]
        if e.at not in (("first",), ("last",)) or not _leaves(e) or any(
                other.at != e.at and _touches(other, e, step) for other in beside):
            raise Outside(e.path, f"at = {', '.join(e.at)}, and the loop goes on with it")
        (ahead if first else behind).append(replace(e, at=(), phase="prepare" if first else "reduce"))
    at = next(k for k, e in enumerate(step.events) if e.phase in LOOPED)
    end = len(step.events) - next(k for k, e in enumerate(reversed(step.events)) if e.phase in LOOPED)
    kept = [e for e in step.events[at:end] if not e.at]
    return replace(step, events=(*step.events[:at], *ahead, *kept, *behind, *step.events[end:]))


def _leaves(e: Event) -> bool:
    return (e.verb in _MOVED and e.value != "grad") if e.group else e.value in COUNTERS


def _touches(other: Event, e: Event, step: Step) -> bool:
    """Whether an event may read or change what another one reads or changes."""
    if e.group:
        of_group = step.reference.group(e.group).parameters
        return other.group == e.group or any(v.tensor in of_group for v in other.operands)
    op = step.reference.graph.producer(other.tensor) if other.on_tensor else None
    draws = op is not None and other.verb == "compute" and (
        not other.on_gradient if op.kind == "unit" else op.draws_in(other.on_gradient))
    return other.value == e.value or (draws if e.value == "rng" else other.value == "loss")
