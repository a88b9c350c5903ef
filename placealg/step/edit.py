"""Edits: how a program differs from a derived one, each a pattern over the paths of the unedited program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from placealg.errors import InputError, nearest, need, shown
from placealg.frozen import FrozenMap
from placealg.placement import Kind
from placealg.step.effects import effect_of
from placealg.step.event import Phase, phase_order
from placealg.step.event_fields import FIELDS, default_event, holders, read_fields, with_fields
from placealg.step.order import JOIN, ORDERING
from placealg.step.program import LOOPED, PHASES, Event, Reference, Rule, Step
from placealg.step.text import read_path, subjects
from placealg.step.well_formed import check_event
from placealg.strategy.kinds import placed
from placealg.strategy.toml_lines import NOWHERE, Positions

CHANGES = tuple(key for key in FIELDS if key not in ("group", "unit"))
ACTIONS: Mapping[str, tuple[str, ...]] = {
    "drop": (),
    "double": (),
    "set": CHANGES,
    "replace": CHANGES,
    "move": (*CHANGES, "before", "after"),
    "insert": ("before", "after"),
}
"""Action -> the keys that may accompany it. `insert` has its fields in a table: `path`, or FIELDS."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit: an action on the events whose paths match `pattern`, or before or after those that match `anchor`.

    `fields` maps Event fields (and `why`, the second half of the rule) to new values.
    """

    action: str
    pattern: str = ""
    fields: FrozenMap[str, Any] = FrozenMap()
    anchor: str = ""
    before: bool = True
    line: int = 0
    file: str = ""

    @property
    def place(self) -> str:
        """`FILE:LINE`; "" for an edit that is in no file."""
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True)
class Edited:
    """A program as it was before the edits of a file, and those edits."""

    program: Step
    edits: tuple[Edit, ...]


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a whole path; `*` crosses dots, a leading `*.` may be left out.

    >>> matches("grad_sum.reduce[dp]", "reduce.layer.weight.grad_sum.reduce[dp]"), matches("norm", "update.norm")
    (True, True)
    >>> matches("publish.*", "publish.layer.weight.publish[dp]"), matches("date.*", "update.norm")
    (True, False)
    """
    return _whole(pattern, path) or _whole(f"*.{pattern}", path)


def _whole(pattern: str, path: str) -> bool:
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == path
    at = len(first)
    if not path.startswith(first) or not path.endswith(rest[-1]) or len(path) - len(rest[-1]) < at:
        return False
    end = len(path) - len(rest[-1])
    for part in rest[:-1]:
        found = path.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def read_edits(tables: Sequence[Mapping[str, Any]], reference: Reference,
               positions: Positions = NOWHERE) -> tuple[Edit, ...]:
    """The edits of a file's [[edit]] tables, in order."""
    return tuple(_read_edit(table, index, reference, positions) for index, table in enumerate(tables))


def _read_edit(table: Mapping[str, Any], index: int, reference: Reference, positions: Positions) -> Edit:
    path = ("edit", index)
    actions = [key for key in table if key in ACTIONS]
    with placed(positions.place, *path):
        if not actions:
            unknown = next(iter(table), "")
            raise InputError("an edit needs one action" + (f", and '{unknown}' is none" if unknown else ""),
                             name=unknown, valid=ACTIONS)
        if len(actions) > 1:
            raise InputError(f"an edit is one action; this one says {' and '.join(actions)}")
    action, = actions
    line = positions.line(*path, action)
    fields = read_fields(table, (action, *ACTIONS[action]), reference, positions, *path)
    pattern = table[action]
    if action == "insert":
        fields, pattern = _read_insert(pattern, reference, positions, index), ""
    else:
        _need_pattern(pattern, action, positions.where(*path, action))
    anchors = [key for key in ("before", "after") if key in table]
    if "before" in ACTIONS[action] and len(anchors) != 1:
        raise InputError(f"{action} needs before or after, one of them", where=positions.where(*path, action))
    for key in anchors:
        _need_pattern(table[key], key, positions.where(*path, key))
    if action in ("set", "replace") and not fields:
        raise InputError(f"{action} changes nothing: name a field beside it", where=positions.where(*path),
                         valid=CHANGES)
    return Edit(action, pattern, FrozenMap(fields), table[anchors[0]] if anchors else "", "before" in table, line,
                positions.file)


def _need_pattern(value: Any, key: str, where: str) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(f"{key} is {shown(value)}: expected the path of an event, or a pattern", where=where)


def _read_insert(table: Any, reference: Reference, positions: Positions, index: int) -> dict[str, Any]:
    path = ("edit", index, "insert")
    with placed(positions.place, *path):
        if not isinstance(table, Mapping):
            raise InputError(f"insert is {shown(table)}: expected a table of fields, such as {{ verb = ... }}")
        if "path" in table:
            event = read_path(table["path"], reference, subjects(reference))
            named = {name: getattr(event, name) for name in ("phase", "verb", "value", "group", "unit", "axes")
                     if name not in ("group", "unit") or event.verb != JOIN}
            keys: tuple[str, ...] = ("path", *(k for k in FIELDS if k not in ("verb", "value", "group", "axes")))
            fields = read_fields(table, keys, reference, positions, *path)
            said = with_fields(event, fields).path
            if said != table["path"]:
                raise InputError(f"path '{table['path']}' and the fields beside it disagree: they say '{said}'")
            return {**named, **fields}
        for key in ("verb", "value"):
            if key not in table:
                raise InputError(f"insert needs {key}, or a path", valid=("path", "verb", "value"))
        return read_fields(table, FIELDS, reference, positions, *path)


def apply_edits(step: Step, edits: Sequence[Edit]) -> Step:
    """The step with its program edited; every pattern addresses the unedited program.

    Equal paths that result are numbered #2, #3. A changed event keeps its place, a moved or inserted one takes
    the phase, and so the loop, of its anchor. An event that is dropped stays an anchor.
    """
    draft = _Draft(step)
    for edit in edits:
        try:
            draft.apply(edit)
        except InputError as error:
            raise error.at(edit.place) from None
    return step.listed(draft.events())


class _Draft:
    """The unedited events, and the edits of each of them."""

    def __init__(self, step: Step):
        self.reference = step.reference
        self.base = step.listing
        self.paths = [e.path for e in step.listing]
        self.changed: dict[int, Event] = {}
        self.dropped: set[int] = set()
        self.doubled: dict[int, int] = {}
        self.moved: dict[int, tuple[Phase, Edit]] = {}
        self.beside: dict[tuple[int, bool], list[int | Event]] = {}

    def find(self, pattern: str) -> list[int]:
        found = [i for i, path in enumerate(self.paths) if matches(pattern, path)]
        if not found:
            parts = pattern.removeprefix("*.").replace("*", "").count(".") + 1
            tails = {".".join(path.split(".")[-parts:]): path for path in reversed(self.paths)}
            best = tails.get(nearest(pattern.removeprefix("*."), tails), pattern)
            raise InputError(f"no event '{pattern}' in the unedited program", name=best, valid=self.paths)
        return found

    def apply(self, edit: Edit) -> None:
        targets = self.find(edit.pattern) if edit.action != "insert" else []
        anchors = self.find(edit.anchor) if edit.anchor else []
        if edit.action == "drop":
            self.dropped.update(targets)
        elif edit.action == "insert":
            self.insert(edit, anchors)
        for target in targets:
            event = self.changed.get(target, self.base[target])
            if edit.action == "double":
                self.doubled[target] = self.doubled.get(target, 0) + 1
            elif edit.action == "set":
                made = replace(with_fields(event, edit.fields), line=edit.line)
                try:
                    self.changed[target] = self.checked(_without_op(made, event, edit.fields))
                except InputError as error:
                    if made.verb != event.verb and ": it is for " not in error.what:
                        error.what += f"; set keeps the other fields of the {event.verb}: say them too, or drop it " \
                                      f"and insert a {made.verb}"
                    raise
            elif edit.action == "replace":
                plain = default_event(event.phase, event.verb, event.value, event.group, event.unit)
                plain = replace(plain, axes=event.axes, rule=_RULE, line=edit.line)
                self.changed[target] = self.checked(with_fields(plain, edit.fields))
            elif edit.action == "move":
                self.move(edit, target, anchors)

    def checked(self, event: Event) -> Event:
        check_event(event, self.reference)
        return event

    def move(self, edit: Edit, target: int, anchors: list[int]) -> None:
        if target in self.moved:
            raise InputError(f"{self.paths[target]} is moved twice")
        anchor = self.anchor_of(self.base[target].group, edit, anchors, self.paths[target])
        if anchor == target:
            raise InputError(f"{self.paths[target]} cannot be moved {'before' if edit.before else 'after'} itself")
        self.moved[target] = (self.base[anchor].phase, edit)
        self.beside.setdefault((anchor, edit.before), []).append(target)
        self.checked(self.final(target))

    def insert(self, edit: Edit, anchors: list[int]) -> None:
        said = dict(edit.fields)
        phase = said.pop("phase", "")
        verb, value = said.pop("verb"), said.pop("value")
        own = "group" in said or "unit" in said
        if said.get("group") and len(anchors) > 1:
            anchors = [self.anchor_of(said["group"], edit, anchors, f"{said['group']}.{value}.{verb}")]
        for index in anchors:
            anchor = self.base[index]
            self.check_phase(phase or anchor.phase, index, edit.before)
            group, unit = said.get("group", ""), said.get("unit", "")
            if not own:
                group, unit = self.of_anchor(anchor, value, verb)
            fields = {k: v for k, v in said.items() if k not in ("group", "unit")}
            event = replace(default_event(phase or anchor.phase, verb, value, group, unit), rule=_RULE, line=edit.line)
            self.beside.setdefault((index, edit.before), []).append(self.checked(with_fields(event, fields)))

    def check_phase(self, phase: str, index: int, before: bool) -> None:
        """Raise InputError if an event of `phase` cannot be next to the event at `index`."""
        first, last = (index - 1, index) if before else (index, index + 1)
        around = [phase_order(e.phase) for e in self.base[max(first, 0):last + 1]]
        low, high = (around[0] if first >= 0 else 0), (around[-1] if last < len(self.base) else len(PHASES))
        if not low <= phase_order(phase) <= high:
            raise InputError(f"the inserted event says phase {phase}, its anchor {self.paths[index]} is in "
                             f"{self.base[index].phase}")

    def of_anchor(self, anchor: Event, value: str, verb: str) -> tuple[str, str]:
        if verb == JOIN:
            return "", self.reference.unit_of(anchor)
        pairs = tuple(holders(value, verb, self.reference))
        return next((pair for pair in ((anchor.group, ""), ("", anchor.unit)) if pair in pairs),
                    pairs[0] if len(pairs) == 1 else ("", ""))

    def anchor_of(self, group: str, edit: Edit, anchors: list[int], moved: str) -> int:
        if len(anchors) == 1:
            return anchors[0]
        own = [i for i in anchors if group and self.base[i].group == group]
        if len(own) != 1:
            raise InputError(f"'{edit.anchor}' matches {len(anchors)} events, and {len(own) or 'none'} of them of the "
                             f"group of {moved}", valid=[self.paths[i] for i in own or anchors])
        return own[0]

    def final(self, index: int) -> Event:
        event = self.changed.get(index, self.base[index])
        if index not in self.moved:
            return event
        phase, edit = self.moved[index]
        at = event.at if phase in LOOPED else ()
        return with_fields(replace(event, phase=phase, at=at, line=edit.line), edit.fields)

    def emitted(self, item: int | Event) -> Iterator[tuple[Event, bool]]:
        if isinstance(item, Event):
            yield item, False
        elif item not in self.dropped:
            event = self.final(item)
            yield event, event.path == self.paths[item]
            for _ in range(self.doubled.get(item, 0)):
                yield event, False

    def events(self) -> Iterator[Event]:
        order: list[int | Event] = []
        for index in range(len(self.base)):
            order.extend(self.beside.get((index, True), ()))
            if index not in self.moved:
                order.append(index)
            order.extend(self.beside.get((index, False), ()))
        program = [pair for item in order for pair in self.emitted(item)]
        used = {event.path for event, kept in program if kept}
        for event, kept in program:
            if not kept:
                event = replace(event, copy=1)
                while event.path in used:
                    event = replace(event, copy=event.copy + 1)
                used.add(event.path)
            yield event


def _without_op(event: Event, before: Event, said: Mapping[str, Any]) -> Event:
    """An event of another verb than before, without the operator that it had where the new verb sums nothing."""
    if event.verb in ORDERING:
        return event
    effect = effect_of(event.verb, event.value, event.kind, event.source == Kind.P.value)
    if "op" in said or event.verb == before.verb or effect is None:  # a verb that does not apply is told as that
        return event
    return event if effect.sums or event.verb == "accumulate" else replace(event, op="")


_RULE = Rule("edit", "written by an edit")


def edit(step: Step, *tables: Mapping[str, Any], **table: Any) -> Step:
    """The step under edits written as in a file: tables, or one table's keys as arguments.

    `edit(step, drop="*.grad_sum.reduce[dp]")`, `edit(step, {"set": "*.assign", "from": "weight"})`.
    """
    need(step, Step, "program: pa.derive makes one of a strategy and a model")
    written = (*tables, table) if table else tables
    return apply_edits(step, read_edits(written, step.reference))
