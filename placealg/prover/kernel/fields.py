"""The fields of events that the kernel's language has, by verb: whatever else an event says is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from placealg.prover.kernel.whole_units import Outside
from placealg.step.event import Event
from placealg.step.receivers import WEIGHTS

TOLD = frozenset(("phase", "verb", "value", "group", "unit", "bytes", "copy", "rule", "line", "said"))
"""The fields that place an event in the program, or that only people and costs read."""

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
    placealg.prover.kernel.whole_units.Outside: reduce.layer.weight.clip[dp]: axes = dp
    """
    if e.verb not in USED:
        raise Outside(e.path, f"{e.verb} of {e.value}")
    if e.phase == WEIGHTS:
        raise Outside(e.path, f"phase = {e.phase}")
    if e.layout != "own" and not (e.group and (e.owning or e.drawn)):
        raise Outside(e.path, f"layout = {e.layout}")
    used = (*USED[e.verb], *FURTHER.get((e.verb, e.value), ()))
    told = TOLD | {"layout"} if e.drawn and not e.owning else TOLD
    for f in dataclasses.fields(e):
        said = getattr(e, f.name)
        if f.name in told or said == f.default:
            continue
        allowed = KINDS.get((e.verb, f.name), _VALUES if f.name == "source" else None)
        if f.name not in used or (allowed is not None and said not in allowed):
            shown = ", ".join(map(str, said)) if isinstance(said, tuple) else str(said)
            raise Outside(e.path, f"{f.name} = {shown}")
