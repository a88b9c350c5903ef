"""The fields of an event in files: TOML keys and Event fields, how they are read and written, and their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import placealg.step.order as order
from placealg.arith import ONE, Monomial, parse
from placealg.errors import InputError, shown
from placealg.models.backward import GRAD, keepers, needs_gradient
from placealg.models.graph import Graph, unit_of
from placealg.number_formats import FORMATS, Element, told
from placealg.placement import Kind
from placealg.step.event import Phase
from placealg.step.program import (
    GLOBAL_VALUES,
    GROUP_VALUES,
    PADDING,
    PARTIALS,
    POSITIONS,
    TIERS,
    Clause,
    Event,
    Reference,
    Rule,
)
from placealg.step.verbs import (
    BESIDE,
    CARRIED,
    GRADIENT,
    HANDED,
    HANDED_ON,
    LOSS_SCALE,
    REGION,
    SLOT,
    TENSOR,
    VERBS,
    VerbName,
)
from placealg.step.versions import LEFT_OUT, ONCE
from placealg.step.where import parse_where
from placealg.strategy.kinds import placed
from placealg.strategy.options import DEFAULTS, TYPES
from placealg.strategy.toml_lines import Positions

VALUES = tuple(dict.fromkeys((*GROUP_VALUES, *GLOBAL_VALUES)))
KINDS = tuple(k.value for k in Kind)
OPERATORS = ("sum", "mean", "premultiplied", "max", "none")
_LABEL = re.compile(r"[A-Za-z_]\w{0,39}(/[A-Za-z_]\w{0,39}){0,9}\Z")
_OWNERS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}(\([A-Za-z_]\w{0,39}\))?\Z", re.ASCII)
_MAX_TEXT = 500
_LARGEST_NUMBER = 2**26
"""The largest number in a divisor: below the prime modulo which op graphs are simulated, so that only 1 is 1 there."""


@dataclass(frozen=True, slots=True)
class Gloss:
    """A TOML key, its Event field, and how it is read and written."""

    key: str
    field: str
    read: Callable[[str, Any, Reference], Any]
    write: Callable[[Any], Any]


def _choice(valid: Iterable[str]) -> Callable[[str, Any, Reference], str]:
    names = tuple(valid)

    def read(key: str, value: Any, _reference: Reference) -> str:
        if value not in names:
            raise InputError(f"{key} is {shown(value)}", name=str(value), valid=names)
        return str(value)
    return read


def _value(key: str, value: Any, reference: Reference) -> str:
    return _choice((*VALUES, *tensor_values(reference)))(key, value, reference)


def _place(named: tuple[str, ...] = ()) -> Callable[[str, Any, Reference], str]:
    def read(key: str, value: Any, reference: Reference) -> str:
        return _choice((*named, *KINDS, *(f"S({d})" for d in reference.graph.dims)))(key, value, reference)
    return read


def _version(key: str, value: Any, reference: Reference) -> str:
    """A label such as "tp/cp_ep2": for each copy the axes on which it differs from its source, numbered if needed."""
    if not isinstance(value, str) or not _LABEL.match(value):
        raise InputError(f"{key} is {shown(value)}: expected the label of a version, such as \"tp\" or \"tp/cp\"")
    names = reference.mesh.names
    axes = "|".join(map(re.escape, names))
    for part in value.split("/"):
        if not re.fullmatch(rf"({axes})(_({axes}))*\d*", part):
            raise InputError(f"{key} is {shown(value)}: '{part}' names no axes of the mesh", name=part, valid=names)
    return value


def _reads(key: str, value: Any, reference: Reference) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise InputError(f"{key} is {shown(value)}: expected a list of tensors, such as \"layer.norm1.out@tp\"")
    tensors = reference.graph.tensors
    for name in value:
        tensor, at, label = name.partition("@")
        if tensor not in tensors:
            raise InputError(f"{key} names '{tensor}', which is no tensor of an op", name=tensor, valid=tensors)
        if at and label not in (LEFT_OUT, ONCE):
            _version(key, label, reference)
    return tuple(value)


def _text(key: str, value: Any, _reference: Reference) -> str:
    if not isinstance(value, str):
        raise InputError(f"{key} is {shown(value)}: expected a string")
    return value


def _op(key: str, value: Any, reference: Reference) -> str:
    return "" if _choice(OPERATORS)(key, value, reference) == "none" else str(value)


def _axes(key: str, value: Any, reference: Reference) -> tuple[str, ...]:
    names = value if isinstance(value, list | tuple) else None
    if names is None or not all(isinstance(n, str) for n in names):
        raise InputError(f"{key} is {shown(value)}: expected a list of axes")
    for at, axis in enumerate(names):
        if axis not in reference.mesh.names:
            raise InputError(f"{key} names axis '{axis}', which the mesh lacks", name=axis, valid=reference.mesh.names)
        if axis in names[:at]:
            raise InputError(f"{key} names axis '{axis}' twice")
    return tuple(names)


def _divisor(key: str, value: Any, reference: Reference) -> Monomial:
    if type(value) is not int and not isinstance(value, str):
        raise InputError(f"{key} is {shown(value)}: expected a whole number, or a quotient of sizes such as \"dp*m\"")
    counts = (c for c in reference.counters if c not in reference.losses)
    names = (*reference.mesh.names, "m", "tokens", "count", *counts, LOSS_SCALE, PADDING)
    divisor = Monomial.parse(str(value)[:_MAX_TEXT], names)
    if divisor.coefficient <= 0:
        raise InputError(f"{key} is {shown(value)}: a divisor is positive")
    if max(divisor.coefficient.numerator, divisor.coefficient.denominator) > _LARGEST_NUMBER:
        raise InputError(f"{key} is {shown(value)}: a number in a divisor is at most 2**26")
    return divisor


def _at(key: str, value: Any, _reference: Reference) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if names == ["all"]:
        return ()
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        raise InputError(f"{key} is {shown(value)}: expected a position of the microbatch loop, or a list of them")
    for at, name in enumerate(names):
        if name not in POSITIONS:
            raise InputError(f"{key} names position '{name}'", name=name, valid=(*POSITIONS, "all"))
        if name in names[:at]:
            raise InputError(f"{key} names position '{name}' twice")
    return tuple(names)


def _where(key: str, value: Any, reference: Reference) -> tuple[Clause, ...]:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise InputError(f"{key} is {shown(value)}: expected a string such as \"owner(dp)\"")
    try:
        return parse_where(value, reference.mesh.names)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{key} is {shown(value)}: no such rank") from None


def _root(key: str, value: Any, _reference: Reference) -> int:
    if type(value) is not int or value < 0:
        raise InputError(f"{key} is {shown(value)}: expected a rank, a whole number of at least 0")
    return value


def _layout(key: str, value: Any, _reference: Reference) -> str:
    if not isinstance(value, str) or not _OWNERS.match(value):
        raise InputError(f"{key} is {shown(value)}: expected the name of an owner function, such as \"own\", or "
                         "NAME(AXIS) for one of each rank's own")
    return value


def _bytes(key: str, value: Any, _reference: Reference) -> str:
    if isinstance(value, str) and value in FORMATS:
        return Element(value)
    text = str(value)[:_MAX_TEXT] if isinstance(value, str) or type(value) is int else ""
    if not text or parse(text, TYPES).evaluate({**dict.fromkeys(TYPES, 2), **DEFAULTS["types"]}) <= 0:
        raise InputError(f"{key} is {shown(value)}: expected an element size, such as \"w\", 4 or \"o - 4\", "
                         "or a type", valid=(*TYPES, *FORMATS))
    return text


def _group(key: str, value: Any, reference: Reference) -> str:
    return reference.group(_text(key, value, reference)).name


def _unit(key: str, value: Any, reference: Reference) -> str:
    known = (*(u.name for u in reference.units), *reference.counters)
    return _choice(known)(key, value, reference) if value != "" else ""


def _one_or_list(value: tuple[str, ...]) -> str | list[str]:
    return value[0] if len(value) == 1 else list(value)


FIELDS: Mapping[str, Gloss] = {gloss.key: gloss for gloss in (
    Gloss("verb", "verb", _choice((*VERBS, *order.ORDERING)), str),
    Gloss("value", "value", _value, str),
    Gloss("group", "group", _group, str),
    Gloss("unit", "unit", _unit, str),
    Gloss("axes", "axes", _axes, list),
    Gloss("op", "op", _op, lambda op: op or "none"),
    Gloss("divisor", "divisor", _divisor, str),
    Gloss("at", "at", _at, _one_or_list),
    Gloss("where", "where", _where, lambda clauses: ", ".join(map(repr, clauses))),
    Gloss("from", "source", _place(GROUP_VALUES), str),
    Gloss("to", "to", _place(), str),
    Gloss("version", "version", _version, str),
    Gloss("reads", "reads", _reads, list),
    Gloss("root", "root", _root, int),
    Gloss("tier", "tier", _choice(TIERS), str),
    Gloss("layout", "layout", _layout, str),
    Gloss("bytes", "bytes", _bytes, told),
    Gloss("stream", "stream", order.read_stream, str),
    Gloss("ahead", "ahead", order.read_ahead, int),
    Gloss("behind", "behind", order.read_behind, str),
    Gloss("wait", "waits", order.read_waits, lambda waits: [wait.said() for wait in waits]),
    Gloss("into", "into", order.read_buffer, str),
    Gloss("out_of", "out_of", order.read_buffer, str),
    Gloss("of", "of", lambda key, value, ref: order.read_stream(key, value, ref) or order.COMPUTE, str),
    Gloss("rule", "rule", _text, lambda rule: rule.name),
    Gloss("why", "why", _text, str),
)}
"""TOML key -> Event field. `rule` and `why` together are the field `rule`."""

OF_ORDER = ("stream", "ahead", "behind", "wait", "into", "out_of", "of")
"""The keys that say nothing of values, only in which order and where they are made."""


def read_fields(table: Mapping[str, Any], keys: Iterable[str], reference: Reference, positions: Positions,
                *path: str | int) -> dict[str, Any]:
    """The Event fields that `table` sets under `keys`; any other key is an InputError at its line."""
    allowed = tuple(keys)
    fields = {}
    for key, value in table.items():
        with placed(positions.place, *path, key):
            if key not in allowed:
                raise InputError(f"unknown key '{key}' in {'.'.join(p for p in path if isinstance(p, str))}", name=key,
                                 valid=allowed)
            if key in FIELDS:
                fields[FIELDS[key].field] = FIELDS[key].read(key, value, reference)
    return fields


def with_fields(event: Event, fields: Mapping[str, Any]) -> Event:
    """`event` with `fields` replaced, where `rule` and `why` are the two halves of its rule."""
    said = dict(fields)
    rule = Rule(said.pop("rule", event.rule.name), said.pop("why", event.rule.why))
    return replace(event, **said, rule=rule)


def holders(value: str, verb: str, reference: Reference) -> Iterator[tuple[str, str]]:
    """The (group, unit) pairs with which `verb` applies to `value`; ("", "") for a global value.

    A tensor may be redistributed in any unit, or between units (unit ""); its own unit comes first.
    """
    if value not in VALUES:
        last = [op.unit for op in reference.graph.ops[-1:]]
        yield from (("", u) for u in dict.fromkeys((unit_of(value), *(u.name for u in reference.units), *last, "")))
    elif value in ("activation", "loss", "count"):
        units = {"activation": tuple(u.name for u in reference.units), "loss": reference.separate,
                 "count": reference.counters}[value]
        yield from (("", unit) for unit in units)
    elif value in GROUP_VALUES and verb == PARTIALS.get(value, verb):
        of_gradients = value in PARTIALS or verb == "clip"
        yield from ((group.name, "") for group in (reference.trained if of_gradients else reference.groups)
                    if (group.statistic or (verb, value) != ("compute", "grad"))
                    and (value == "weight" or not group.frozen) and (value not in CARRIED or group.averaged))
    elif value != LOSS_SCALE or reference.scaled:
        yield "", ""


def values_of(verb: str, reference: Reference) -> tuple[str, ...]:
    """Everything that a verb applies to: named values, and tensors, gradients, regions and slots of the op graph.

    `compute` applies to the results of ops, a redistribution to any tensor but a parameter, which is moved and reduced
    with its group, and but the sum of the loss, which nothing reads. A unit whose ops are known does not run whole.
    """
    if verb in order.ORDERING:
        return order.COPIED if verb == order.COPY else ()
    named, graph = VERBS[verb].values, reference.graph
    found = [v for v in named if v in VALUES and (reference.whole or v != "activation")]
    if graph.ops:
        moved = [n for n, t in graph.tensors.items() if t.kind != "parameter" and n != graph.ops[-1].output]
        tensors = [op.output for op in graph.ops] if verb == "compute" else moved
        backed = needs_gradient(graph)
        gradients = [n + GRAD for n in tensors if n in backed]
        slots = [loop.slot for loop in graph.handed]
        lasts = list(dict.fromkeys(name for loop in graph.loops for name in graph.leaving(loop.unit)))
        for kind, names in ((TENSOR, tensors), (GRADIENT, gradients), (BESIDE, keepers(graph)),
                            (REGION, regions(graph)),
                            (SLOT, [n for s in slots for n in (s, s + GRAD)]),
                            (HANDED_ON, [*lasts, *(s + GRAD for s in slots)]),
                            (HANDED, [*slots, *(n + GRAD for n in lasts)])):
            found += names if kind in named else []
    return tuple(dict.fromkeys(found))


def regions(graph: Graph) -> tuple[str, ...]:
    """The dotted names of all regions, including those that only contain others."""
    parts = (region.split(".") for region in graph.regions)
    return tuple(dict.fromkeys(".".join(names[:k + 1]) for names in parts for k in range(len(names))))


def tensor_values(reference: Reference) -> tuple[str, ...]:
    """The names of all tensors, gradients and regions of the op graph, whichever verbs apply to them."""
    tensors = reference.graph.tensors
    found = (*tensors, *(n + GRAD for n in tensors), *keepers(reference.graph), *regions(reference.graph))
    return tuple(v for v in dict.fromkeys(found) if v not in VALUES)


def default_event(phase: str, verb: str, value: str, group: str = "", unit: str = "") -> Event:
    """An event with the default of every field that its path does not name; who reads a path checks its words."""
    return Event(cast(Phase, phase), cast(VerbName, verb), value, group, unit, divisor=ONE)
