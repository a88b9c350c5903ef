"""The text of a whole program: `[loops]` and an ordered list of `[[event]]` tables, which read back equal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from placealg.arith import Monomial
from placealg.errors import InputError, shown
from placealg.models.backward import GRAD
from placealg.models.graph import unit_of
from placealg.step.event import MICROBATCH, phase_order
from placealg.step.event_fields import (
    FIELDS,
    default_event,
    holders,
    read_fields,
    tensor_values,
    values_of,
    with_fields,
)
from placealg.step.order import COPY, JOIN, ORDERING
from placealg.step.program import PHASES, Event, Reference, Step
from placealg.step.verbs import VERBS
from placealg.step.well_formed import check_event, inapplicable
from placealg.strategy.expression import parse_strategy
from placealg.strategy.kinds import placed
from placealg.strategy.spec import Strategy
from placealg.strategy.toml_lines import NOWHERE, Positions
from placealg.strategy.write import toml_table, toml_value, write_strategy

_PATH = re.compile(r"(?P<phase>\w+)\.(?P<subject>.+)\.(?P<verb>\w+)(?:\[(?P<axes>[^\[\]]*)\])?"
                   r"(?:#(?P<copy>\d{1,6}))?\Z")
_MAX_PATH = 1000

Subjects = Mapping[str, Mapping[str, Event]]
"""Verb -> the subject of a path -> the event of which it is the subject, without phase."""


def subjects(reference: Reference) -> Subjects:
    """Every subject that a path may name, for each verb: the inverse of Event.subject."""
    table: dict[str, dict[str, Event]] = {}
    for name in (*VERBS, COPY):
        table[name] = {}
        for value in values_of(name, reference):
            for group, unit in holders(value, name, reference):
                event = default_event("", name, value, group, unit)
                table[name].setdefault(event.subject, event)
    return table


def read_path(text: Any, reference: Reference, known: Subjects) -> Event:
    """The event that a path `<phase>.<subject>.<verb>[axes]#copy` names, with no other field set."""
    found = _PATH.match(text) if isinstance(text, str) and len(text) <= _MAX_PATH else None
    if not found:
        raise InputError(f"path is {shown(text)}: expected PHASE.SUBJECT.VERB[AXES]")
    if found["phase"] not in PHASES:
        raise InputError(f"unknown phase '{found['phase']}' in {text}", name=found["phase"], valid=PHASES)
    if found["verb"] not in (*VERBS, *ORDERING):
        raise InputError(f"unknown verb '{found['verb']}' in {text}", name=found["verb"], valid=(*VERBS, *ORDERING))
    subject, verb = found["subject"], found["verb"]
    event = default_event("", JOIN, subject) if verb == JOIN else (
        known[verb].get(subject) or _named(subject, verb, reference))
    if event is None:
        raise InputError(f"{verb} does not apply to '{subject}' in {text}", name=subject, valid=known[verb])
    event = replace(event, phase=found["phase"], copy=int(found["copy"] or 1))
    if found["axes"] is not None:
        axes = [a.strip() for a in found["axes"].split(",")]
        event = replace(event, axes=FIELDS["axes"].read(f"path {text}", axes, reference))
    if verb != JOIN and subject not in known[verb]:
        raise inapplicable(event, reference)
    if event.path != text:
        raise InputError(f"path '{text}' is written '{event.path}'")
    return event


def _named(subject: str, verb: str, reference: Reference) -> Event | None:
    """The event that a subject names on a tensor, a gradient or a whole unit to which the verb does not apply."""
    if verb == "compute" and subject in [u.name for u in reference.units]:
        return default_event("", verb, "activation", "", subject)
    if subject in tensor_values(reference):
        return default_event("", verb, subject, "", unit_of(subject.removesuffix(GRAD)))
    return None


def write_program(step: Step, strategy: Strategy | None = None, model: str = "") -> str:
    """A strategy file that holds the whole program; reading it back gives an equal one.

    `strategy` defaults to the catalogue expression that the reference names, `model` (a name or a path, as the
    file's reader resolves it) to the reference's unless that is the abstract one.
    """
    chosen = strategy or parse_strategy(step.reference.strategy)
    named = model or ("" if step.reference.model == "abstract" else step.reference.model)
    known = subjects(step.reference)
    tables = [write_strategy(chosen), toml_table("[loops]", loops_of(step.reference)),
              *(toml_table("[[event]]", dict(event_keys(event, known))) for event in step.listing)]
    return (f"model = {toml_value(named)}\n" if named else "") + "\n".join(tables)


def event_keys(event: Event, known: Subjects) -> Iterator[tuple[str, Any]]:
    """(key, value) pairs that write an event: its path, and what does not follow from the path."""
    usual = default_event("", JOIN, event.value) if event.verb == JOIN else default_event("", event.verb, "")
    plain = replace(known.get(event.verb, {}).get(event.subject, usual), phase=event.phase, axes=event.axes,
                    copy=event.copy)
    yield "path", event.path
    for gloss in FIELDS.values():
        if gloss.key == "why":
            yield "why", event.rule.why
        elif gloss.key == "rule" or getattr(event, gloss.field) != getattr(plain, gloss.field):
            yield gloss.key, gloss.write(getattr(event, gloss.field))


def loops_of(reference: Reference) -> dict[str, str | int]:
    """The loops of a program and how often each runs: the microbatches, and every repeated unit."""
    units = {u.name: str(u.count) for u in reference.units if u.repeated}
    return {MICROBATCH: reference.microbatches or "m", **units}


def read_program(tables: Sequence[Mapping[str, Any]], reference: Reference, positions: Positions = NOWHERE,
                 loops: Mapping[str, Any] | None = None) -> tuple[Event, ...]:
    """The events of a whole program's [[event]] tables, checked against the names that `reference` knows.

    `loops` is the file's [loops], which must agree with strategy and model.
    """
    _check_loops(loops or {}, reference, positions)
    known = subjects(reference)
    events: list[Event] = []
    lines: dict[str, int] = {}
    for index, table in enumerate(tables):
        line = positions.line("event", index)
        if "path" not in table:
            raise InputError("an event needs a path", where=positions.where("event", index))
        with placed(positions.place, "event", index, "path"):
            event = read_path(table["path"], reference, known)
        said = read_fields(table, ("path", *(k for k in FIELDS if k not in ("verb", "axes"))), reference, positions,
                           "event", index)
        event = replace(with_fields(event, said), line=line)
        with placed(positions.place, "event", index, *(["at"] if "at" in table else ["path"])):
            check_event(event, reference)
            if event.path != table["path"]:
                raise InputError(f"path '{table['path']}' and the fields beside it disagree: they say '{event.path}'")
            if event.path in lines:
                raise InputError(f"path '{event.path}' stands on line {lines[event.path]} already; a copy is #2")
            if events and phase_order(event.phase) < phase_order(events[-1].phase):
                raise InputError(f"{event.path} stands after {events[-1].path}: phases stand in the order "
                                 f"{', '.join(PHASES)}")
        lines[event.path] = line
        events.append(event)
    return tuple(events)


def _check_loops(loops: Mapping[str, Any], reference: Reference, positions: Positions) -> None:
    valid = loops_of(reference)
    for name, count in loops.items():
        with placed(positions.place, "loops", name):
            if name not in valid:
                raise InputError(f"unknown loop '{name}'", name=name, valid=valid)
            if type(count) is not int and not isinstance(count, str):
                raise InputError(f"loop {name} runs {shown(count)} times: expected a size")
            if Monomial.parse(str(count)) != Monomial.parse(str(valid[name])):
                raise InputError(f"loop {name} runs {count} times; strategy and model say {valid[name]}")
