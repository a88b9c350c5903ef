"""What of an event the verified checker reads: the fields that a program's term shows, and why no other can matter.

An event stands in a program where it stands in the step, and its term names verb, value, group and unit. Of the other
fields a term shows those of USED and FURTHER; what is folded into a unit is held against the unit's ops by those of
FOLDED. Those of DROPPED are left out, each for its reason. Whatever else an event says is refused by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from placealg.step.event import Event
from placealg.step.gradient_targets import WEIGHTS


class Outside(Exception):
    """The kernel's language cannot express a program: the event (or "" for a part of the reference), and the reason."""

    def __init__(self, event: str, reason: str) -> None:
        super().__init__(event, reason)
        self.event, self.reason = event, reason

    def __str__(self) -> str:
        return f"{self.event}: {self.reason}" if self.event else self.reason


NAMED = ("phase", "verb", "value", "group", "unit")
"""The fields that say which term an event has, and where."""

DROPPED: Mapping[str, str] = {
    "bytes": "how wide an element is on the wire: numbers are exact",
    "copy": "tells events of one path apart",
    "rule": "why the event is there, in words",
    "line": "where a file says it",
    "said": "its path in the program as it was written",
}
"""Field -> why it cannot matter, whatever it says."""

ALIKE: Mapping[str, str] = {
    "verb": "some verbs do the same where they name the same: assign, offload and fetch copy, gather, all_gather and a "
            "publish along axes gather, a slice and a free along axes keep",
    "phase": "a part of a step is a place in the order of its events",
    "op": "none named is a sum",
    "source": "the kind of what it reads: a claim, which the checker derives for itself; or the value that the verb "
              "reads where none is named",
    "to": "none named is I, and what weights are gathered to is held alike as I and as R",
    "tier": "an offload or a fetch that names one tier copies to, or from, the device",
    "axes": "a rank has a coordinate along each axis that splits the data, in whatever order they are named",
    "version": "a name of a copy of the data, which their readers repeat",
    "at": "a step of one microbatch is at first and at last",
    "divisor": "what a whole value has of padding is one",
    "layout": "what asks for no owner has none, whatever its layout is called",
}
"""Field -> why two values of it that a term does not tell apart mean the same."""

FOLDED: Mapping[str, tuple[str, ...]] = {
    "compute": ("reads", "divisor"), "assign": ("reads",), "free": ("reads",), "slice": ("axes", "to", "version"),
}
"""Verb of an event on a tensor -> the fields that say whether it is the unit's own; a slice is one of the data."""

_PLACED = ("where", "tier", "layout")
_MOVED = (*_PLACED, "source")
_GATHERED = ("axes", "source", "to", "tier", "layout")

USED: Mapping[str, tuple[str, ...]] = {
    "broadcast": ("axes", "root", "tier"), "gather": _GATHERED, "all_gather": _GATHERED, "assign": _MOVED,
    "offload": _MOVED, "fetch": _MOVED, "slice": ("axes", "tier", "layout"), "free": ("axes", *_PLACED),
    "zero": _PLACED, "accumulate": (*_MOVED, "op"), "scale": ("divisor", *_PLACED),
    "reduce": (*_GATHERED, "op", "divisor"), "clip": _PLACED, "update": _PLACED, "publish": (*_GATHERED, "where"),
    "store": _PLACED, "load": _PLACED, "norm": _PLACED, "all_reduce": ("axes", "op", "source", "to"),
    "compute": ("divisor",),
}
"""Verb -> the fields that its term shows."""

FURTHER: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("compute", "skip"): _PLACED, ("all_reduce", "skip"): ("where", "tier"),
    ("update", "average"): ("source",), ("update", "master"): ("divisor",),
}
"""(verb, value) -> the fields that the term shows besides."""

KINDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("gather", "source"): ("S",), ("gather", "to"): ("R", "I"), ("all_gather", "source"): ("S",),
    ("all_gather", "to"): ("R", "I"), ("publish", "source"): ("S", "master"), ("publish", "to"): ("R", "I"),
    ("reduce", "source"): ("P",), ("reduce", "to"): ("I", "S"), ("all_reduce", "source"): ("P",),
    ("all_reduce", "to"): ("I",), ("accumulate", "source"): ("grad",),
    ("update", "source"): ("weight", "master"),
}
"""(verb, field) -> what the field may say besides nothing; elsewhere a source names the value that is read."""

_VALUES = ("weight", "master", "moments", "grad", "grad_sum", "average")


def check_fields(e: Event) -> None:
    """Raise Outside if an event says something that its term does not show, naming event and field.

    >>> check_fields(Event("reduce", "clip", "grad_sum", "layer.weight", axes=("dp",)))
    Traceback (most recent call last):
    ...
    placealg.prover.kernel.fields.Outside: reduce.layer.weight.clip[dp]: axes = dp
    """
    if e.verb not in USED:
        raise Outside(e.path, f"{e.verb} of {e.value}")
    if e.phase == WEIGHTS:
        raise Outside(e.path, f"phase = {e.phase}")
    if e.layout != "own" and not (e.group and (e.owning or e.drawn)):
        raise Outside(e.path, f"layout = {e.layout}")
    kinds = {f: KINDS.get((e.verb, f), _VALUES if f == "source" else None) for f in ("source", "to")}
    check_plain(e, (*USED[e.verb], *FURTHER.get((e.verb, e.value), ()), *(("layout",) if e.drawn else ())), kinds)


def check_folded(e: Event) -> None:
    """Raise Outside if an event on a tensor says more than what is held against the ops of its unit.

    >>> check_folded(Event("forward", "compute", "head.loss", unit="head", axes=("dp",)))
    Traceback (most recent call last):
    ...
    placealg.prover.kernel.fields.Outside: forward.head.loss.compute[dp]: axes = dp
    """
    if e.verb not in FOLDED:
        raise Outside(e.path, f"{e.verb} of {e.value}")
    sliced = e.verb == "slice"
    check_plain(e, (*FOLDED[e.verb], *(("source",) if sliced else ())), {"source": ("I", "R")} if sliced else {})


def check_plain(e: Event, used: Collection[str], kinds: Mapping[str, Collection[str] | None]) -> None:
    """Raise Outside if an event has a field outside of NAMED, DROPPED and `used`, or another of the kinds that it may
    say.
    """
    for f in dataclasses.fields(e):
        said = getattr(e, f.name)
        if f.name in NAMED or f.name in DROPPED or said == f.default:
            continue
        allowed = kinds.get(f.name)
        if f.name not in used or (allowed is not None and said not in allowed):
            shown = ", ".join(map(str, said)) if isinstance(said, tuple) else str(said)
            raise Outside(e.path, f"{f.name} = {shown}")
