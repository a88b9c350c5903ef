"""What of an event is printed as ops: the fields, by its verb; whatever else it says is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from placealg.prover.kernel.outside import Outside
from placealg.step.event import Event
from placealg.step.verbs import COUNTERS
from placealg.step.versions import LEFT_OUT, ONCE

_NAMED = ("phase", "verb", "value", "group", "unit")
"""The fields that say what an event is printed as, and where."""

DROPPED: Mapping[str, str] = {
    "bytes": "how wide an element is on the wire: numbers are exact",
    "copy": "tells events of one path apart",
    "rule": "why the event is there, in words",
    "line": "where a file says it",
    "said": "its path in the program as it was written",
}
"""Field -> why it cannot matter, whatever it says."""

_DEFAULTS = {field.name: () if field.default is dataclasses.MISSING else field.default
             for field in dataclasses.fields(Event) if field.name not in (*_NAMED, *DROPPED)}

_READ: Mapping[str, frozenset[str]] = {name: frozenset(fields.split()) for name, fields in {
    "tensor compute": "axes divisor op reads", "tensor free": "version reads", "tensor assign": "reads",
    "tensor offload": "tier version", "tensor fetch": "tier version",
    "tensor": "axes op source to version", "norm all_reduce": "axes op source to",
    "skip all_reduce": "axes op source to", "compute": "where tier divisor layout",
    "loss compute": "divisor reads", "loss scale": "divisor",
    "counter store": "where", "counter broadcast": "axes", "counter": "",
    "count all_reduce": "axes op source to", "count compute": "reads", "count": "",
    "gather": "axes source to layout", "all_gather": "axes source to tier layout", "free": "axes tier layout",
    "zero": "where tier layout", "reduce": "axes op divisor source to layout", "accumulate": "op tier where layout",
    "scale": "divisor where layout", "norm": "where tier layout", "clip": "tier where layout",
    "update": "where tier source layout", "publish": "axes source to where layout", "broadcast": "axes layout",
    "slice": "axes layout", "assign": "where source tier layout", "offload": "where source tier layout",
    "fetch": "where source tier layout", "store": "where tier layout", "load": "tier where layout"}.items()}
"""Of an event on tensors, on the norm or the loss, or on a group, by its verb: the fields that are printed."""

_SAYS = {"source": ("", "S", "P"), "to": ("", "I", "S", "R"), "op": ("", "sum", "mean", "max", "premultiplied")}
"""What those fields of an event on a group may say."""

_FROM = ("assign", "offload", "fetch", "publish", "update")
"""The verbs whose source may be another value of the group."""


def check_fields(e: Event) -> None:
    """Raise Outside if an event says what is not printed of it."""
    kind = "tensor " if e.on_tensor else "" if e.group else "counter " if e.value in COUNTERS else f"{e.value} "
    verb = kind + e.verb if kind + e.verb in _READ else kind.strip()
    read = _READ.get(verb, frozenset())
    for name, default in _DEFAULTS.items():
        said = getattr(e, name)
        if said != default and (name not in read or (e.group and name in _SAYS and said not in _SAYS[name] and not (
                name == "source" and e.verb in _FROM and said == e.origin))):
            raise Outside(e.path, f"{name} = {said}")
    if e.value in ("norm", "count", "skip") and not e.group and (e.source not in ("", "P") or e.to not in ("", "I")):
        raise Outside(e.path, f"{e.source} becomes {e.to}")
    if any(version.label in (LEFT_OUT, ONCE) for version in e.operands):
        raise Outside(e.path, f"reads = {', '.join(e.reads)}")
    if any(clause.but or (clause.rank is None and not e.group) for clause in e.where):
        raise Outside(e.path, f"where = {', '.join(map(str, e.where))}")
    if e.drawn:
        raise Outside(e.path, f"layout = {e.layout}: owners that differ from rank to rank are not in the kernel")
    if e.verb == "publish" and {*e.axes} & {c.axis for c in e.where}:
        raise Outside(e.path, "a collective of some ranks is not in the kernel")
    if e.divisor.coefficient != 1:
        raise Outside(e.path, f"divisor = {e.divisor}: a number in a divisor is not in the kernel")
    merged = ("", "sum", *(["max"] if (e.value, e.verb) == ("skip", "all_reduce") else []))
    if (e.verb == "compute" or not (e.group or e.on_tensor)) and e.op not in merged:
        raise Outside(e.path, f"op = {e.op}")
