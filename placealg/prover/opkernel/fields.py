"""What of an event is printed as ops: the fields, by its verb; whatever else it says is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from placealg.prover.kernel.fields import DROPPED, NAMED, Outside
from placealg.step.event import Event
from placealg.step.versions import LEFT_OUT, ONCE

_READ: Mapping[str, frozenset[str]] = {name: frozenset(fields.split()) for name, fields in {
    "tensor compute": "axes op reads", "tensor free": "version reads", "tensor assign": "reads",
    "tensor": "axes op source to version", "norm all_reduce": "axes op source to",
    "loss compute": "divisor reads", "loss scale": "divisor",
    "gather": "axes source to", "free": "axes", "zero": "where", "reduce": "axes op divisor source to",
    "accumulate": "", "scale": "divisor",
    "norm": "where", "clip": "", "update": "where", "publish": "axes source to", "broadcast": "axes", "slice": "axes",
    "assign": "where source", "store": "where", "load": ""}.items()}
"""Of an event on tensors, on the norm or the loss, or on a group, by its verb: the fields that are printed."""

_SAYS = {"source": ("", "S", "P"), "to": ("", "I", "S", "R"), "op": ("", "sum", "mean")}
"""What those fields of an event on a group may say."""


def check_fields(e: Event) -> None:
    """Raise Outside if an event says what is not printed of it."""
    kind = f"{e.value} " if e.value in ("norm", "loss") and not e.group else "tensor " if e.on_tensor else ""
    verb = kind + e.verb if kind + e.verb in _READ else kind.strip()
    read = _READ.get(verb, frozenset())
    for field in dataclasses.fields(Event):
        said = getattr(e, field.name)
        default = () if field.default is dataclasses.MISSING else field.default
        if field.name in (*NAMED, *DROPPED) or said == default:
            continue
        if field.name not in read or (e.group and field.name in _SAYS and said not in _SAYS[field.name]
                                      and not (e.verb == "assign" and said == "weight")):
            raise Outside(e.path, f"{field.name} = {said}: not in the kernel of ops")
    if any(version.label in (LEFT_OUT, ONCE) for version in e.operands):
        raise Outside(e.path, f"reads = {', '.join(e.reads)}: not in the kernel of ops")
    if any(clause.but for clause in e.where) or (e.where and not e.group):
        raise Outside(e.path, f"where = {', '.join(map(str, e.where))}: not in the kernel of ops")
    if e.divisor.coefficient != 1:
        raise Outside(e.path, f"divisor = {e.divisor}: a number in a divisor is not in the kernel of ops")
    if (e.verb == "compute" or not (e.group or e.on_tensor)) and e.op not in ("", "sum"):
        raise Outside(e.path, f"op = {e.op}: not in the kernel of ops")
