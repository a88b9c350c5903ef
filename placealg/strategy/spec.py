"""A strategy as data: where each state is placed on each mesh axis, and how the step is scheduled.

A Strategy holds exactly what was said; defaults are resolved when a field is read. That makes
composition a merge of tables, and associative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import Axis, Mesh
from placealg.placement import STATES, Mode, StatePlacement
from placealg.strategy.options import (
    DEFAULTS,
    DIMS,
    LIFETIMES,
    LOSSES,
    OPTIMIZERS,
    SCHEMA,
    Path,
    Where,
    known_axis,
    known_key,
    nowhere,
    option_key,
    placed,
    read_value,
    shown,
    unknown_axis,
)

__all__ = ["DEFAULTS", "DIMS", "LIFETIMES", "LOSSES", "OPTIMIZERS", "GroupRule", "Strategy", "check", "compose",
           "overlay", "problems", "strategy_on"]


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Different placements, types or optimizer for the parameters whose names match a pattern."""

    name: str
    match: str
    states: FrozenMap[str, StatePlacement] = FrozenMap()
    types: FrozenMap[str, str] = FrozenMap()
    optimizer: str = ""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A placement of the four training states on a mesh, with its schedule.

    `dims` gives each axis the ordered list of dims that it splits. `states` gives each state a mode
    per axis. `tables` holds what was said in [schedule], [optimizer], [loss], [types], [random].
    """

    name: str
    mesh: Mesh = Mesh()
    dims: FrozenMap[str, tuple[str, ...]] = FrozenMap()
    states: FrozenMap[str, StatePlacement] = FrozenMap()
    tables: FrozenMap[str, FrozenMap[str, Any]] = FrozenMap()
    groups: tuple[GroupRule, ...] = ()
    modifiers: tuple[str, ...] = field(default=(), compare=False)

    def state(self, name: str) -> StatePlacement:
        """The placement of `parameters`, `optimizer`, `gradients` or `activations`."""
        placement = self.states.get(name, StatePlacement())
        if name == "optimizer" and self.option("optimizer", "tier") == "host":
            return replace(placement, offloaded=True)
        return placement

    def mode_text(self, state: str, axis: str) -> str:
        """The mode of a state along an axis as users write it; activations on a split dim say which dim.

        >>> strategy_on("mine", {"dp": 8}, dims={"dp": ["batch"]}).mode_text("activations", "dp")
        'S(batch)'
        """
        placement = self.state(state)
        split = self.dims.get(axis, ())
        if state == "activations" and axis not in placement.modes and split:
            return f"S({split[0]})"
        return placement.text(axis)

    def option(self, table: str, key: str) -> Any:
        """What was said in `table` under `key`, else its default."""
        said = self.tables.get(table, FrozenMap())
        return said[key] if key in said else DEFAULTS[table][key]

    def lifetime(self, axis: str) -> str:
        """How long a gathered unit lives along `axis`: use, microbatch or step."""
        return str(dict(self.option("schedule", "lifetime")).get(axis, "use"))

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The axes over which the batch is split, in mesh order."""
        return tuple(a for a in self.mesh.names if "batch" in self.dims.get(a, ()))

    def loss(self) -> Mapping[str, Any]:
        """The loss normaliser with its preset filled in."""
        preset = self.option("loss", "preset")
        said = {k: v for k, v in self.tables.get("loss", FrozenMap()).items() if k != "preset"}
        full = {"preset": preset, "reference": DEFAULTS["loss"]["reference"], **LOSSES[preset], **said}
        if full["count_axes"] == "data":
            full["count_axes"] = (*self.data_axes, "microbatch")
        return full

    def optimizer(self, name: str = "") -> tuple[str, str, tuple[str, ...]]:
        """(name, locality, whole-matrix reads) of the optimizer `name`, or of the strategy's own."""
        chosen = name or str(self.option("optimizer", "name"))
        locality, reads = OPTIMIZERS[chosen]
        said = self.tables.get("optimizer", FrozenMap())
        if not name and "locality" in said and said["locality"] != locality:
            locality = str(said["locality"])
            reads = ("grad_sum", "master", "moments") if locality == "matrix" else ()
        return chosen, locality, reads

    def _repr_html_(self) -> str:
        """The placements as a table, a row per state and a column per axis, for notebooks."""
        rows = [("", *map(repr, self.mesh)),
                *((state, *(self.mode_text(state, a) for a in self.mesh.names)) for state in STATES)]
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        return f"<table><caption>{escape(self.name)}</caption><tr>{'</tr><tr>'.join(cells)}</tr></table>"

    def __mul__(self, other: Strategy) -> Strategy:
        return compose(self, other)


def compose(left: Strategy, right: Strategy) -> Strategy:
    """The strategy that places states as `left` does on its axes and as `right` does on its own.

    Raises InputError, naming the rule, when an axis is used twice or when two tables disagree.
    """
    rule = f"cannot compose {left.name} with {right.name}"
    for axis in left.mesh.names:
        if axis in right.mesh.names:
            raise InputError(f"{rule}: both use axis '{axis}'; strategies compose over disjoint "
                             f"axes: rename one, as in {right.name.partition('[')[0]}[{axis}2]")
    for modifier in left.modifiers:
        if modifier in right.modifiers:
            raise InputError(f"{rule}: {modifier} is applied twice")
    for one_rule in left.groups:
        if one_rule.name in {r.name for r in right.groups}:
            raise InputError(f"{rule}: both have a [groups.{one_rule.name}]")
    mesh = Mesh(left.mesh.axes + right.mesh.axes)
    states = {}
    for state in STATES:
        one, two = left.states.get(state), right.states.get(state)
        if one or two:
            first, second = one or StatePlacement(), two or StatePlacement()
            states[state] = StatePlacement(first.modes.plus(second.modes), first.offloaded or second.offloaded)
    return Strategy(
        name=f"{left.name}*{right.name}",
        mesh=mesh,
        dims=left.dims.plus(right.dims),
        states=FrozenMap(states),
        tables=_merge_tables(left.tables, right.tables, rule),
        groups=left.groups + right.groups,
        modifiers=left.modifiers + right.modifiers,
    )


def _merge_tables(left: FrozenMap[str, FrozenMap[str, Any]], right: FrozenMap[str, FrozenMap[str, Any]],
                  rule: str) -> FrozenMap[str, FrozenMap[str, Any]]:
    merged = dict(left)
    for table, said in right.items():
        mine = dict(merged.get(table, FrozenMap()))
        for key, value in said.items():
            if key in mine and isinstance(value, FrozenMap):
                value = mine[key].plus(value)
            elif key in mine and mine[key] != value:
                raise InputError(f"{rule}: [{table}] {key} is {shown(mine[key])} on one side and {shown(value)} on "
                                 "the other")
            mine[key] = value
        merged[table] = FrozenMap(mine)
    return FrozenMap(merged)


Problem = tuple[Path, InputError]


def check(strategy: Strategy, dims: Iterable[str] = DIMS) -> None:
    """Raise InputError unless every axis, mode and option of `strategy` makes sense together."""
    for _path, error in problems(strategy, dims):
        raise error


def problems(strategy: Strategy, dims: Iterable[str] = DIMS) -> Iterator[Problem]:
    """Everything that a declaration gets wrong, each with the path of the key that says it.

    What is merely incorrect (a stale copy, a wrong scale) is no problem here: the program says it, and is refuted.
    """
    axes = strategy.mesh.names
    if not axes:
        yield ("mesh",), InputError(f"strategy {strategy.name} has no axis: [mesh] names at least one")
    yield from _dims_problems(strategy, tuple(dims))
    for state, placement in strategy.states.items():
        yield from _placement_problems(strategy, ("states", state), state, placement)
    for number, rule in enumerate(strategy.groups):
        yield from _group_problems(strategy, rule, strategy.groups[:number])
    for table, said in strategy.tables.items():
        for key, value in said.items():
            try:
                read_value(f"[{table}] {key}", option_key(table, key), value, axes)
            except InputError as error:
                yield (table, key), error
                return
    yield from _schedule_problems(strategy)


def _dims_problems(strategy: Strategy, known: tuple[str, ...]) -> Iterator[Problem]:
    for axis, entries in strategy.dims.items():
        if axis not in strategy.mesh.names:
            yield ("dims", axis), unknown_axis("[dims]", axis, strategy.mesh.names)
        for at, entry in enumerate(entries):
            if entry not in known:
                yield ("dims", axis, at), InputError(f"[dims] {axis} names unknown dim '{entry}'", name=entry,
                                                     valid=known)
            if entry in entries[:at]:
                yield ("dims", axis, at), InputError(f"[dims] {axis} names '{entry}' twice")
    for axis in strategy.mesh.names:
        if axis not in strategy.dims:
            yield ("mesh", axis), InputError(f"axis '{axis}' has no entry in [dims]: say which dims it splits, or []")


def _placement_problems(strategy: Strategy, path: Path, state: str, placement: StatePlacement) -> Iterator[Problem]:
    label = f"[{'.'.join(map(str, path[:-1]))}] {path[-1]}"
    if state not in STATES:
        yield path, InputError(f"unknown state '{state}'", name=state, valid=STATES)
    for axis, mode in placement.modes.items():
        here = (*path, axis)
        if axis not in strategy.mesh.names:
            yield here, unknown_axis(label, axis, strategy.mesh.names)
        if state == "activations" and axis in strategy.data_axes and mode is not Mode.S:
            yield here, InputError(f"{label} on {axis}: the batch is split over {axis}, so only S holds there")
        if state in ("optimizer", "gradients") and mode is Mode.GATHERED:
            yield here, InputError(f"{label} on {axis}: S* is for values that are used whole; say S")
        if state in ("parameters", "optimizer") and mode is Mode.M:
            yield here, InputError(f"{label} on {axis}: M holds nothing at rest, so nothing could be updated")
        if state == "parameters" and mode is Mode.S:
            yield here, InputError(f"{label} on {axis}: S says that the computation is sharded the same way, "
                                   f"but no dim of {axis} splits a parameter; say S* to gather them for use")
        if state == "gradients" and mode is Mode.M and strategy.option("schedule", "microbatches") != 1:
            yield here, InputError(f"{label} on {axis}: M, a full gradient that rests nowhere, needs [schedule] "
                                   "microbatches = 1")
    if placement.offloaded and state != "optimizer":
        yield path, InputError(f"{label}: only the optimizer state can be offloaded")


def _group_problems(strategy: Strategy, rule: GroupRule, earlier: tuple[GroupRule, ...]) -> Iterator[Problem]:
    path = ("groups", rule.name)
    if rule.name in {r.name for r in earlier}:
        yield path, InputError(f"[groups.{rule.name}] stands twice")
    if not rule.match.strip():
        yield path, InputError(f"[groups.{rule.name}] needs match, a pattern of parameter names")
    if rule.optimizer and rule.optimizer not in OPTIMIZERS:
        yield (*path, "optimizer"), InputError(f"[groups.{rule.name}] optimizer is '{rule.optimizer}'",
                                               name=rule.optimizer, valid=OPTIMIZERS)
    for state, placement in rule.states.items():
        yield from _placement_problems(strategy, (*path, state), state, placement)
    try:
        read_value(f"[groups.{rule.name}] types", SCHEMA["groups"]["types"], rule.types, strategy.mesh.names)
    except InputError as error:
        yield (*path, "types"), error


def _schedule_problems(strategy: Strategy) -> Iterator[Problem]:
    gathered = [strategy.state("parameters"), *(r.states.get("parameters", StatePlacement()) for r in strategy.groups)]
    for axis in strategy.option("schedule", "lifetime"):  # the value has been read above: it is a table
        if not any(p.mode(axis) is Mode.GATHERED for p in gathered):
            yield ("schedule", "lifetime", axis), InputError(
                f"[schedule] lifetime of {axis}: parameters are not S* on {axis}, so nothing is gathered there")


def strategy_on(name: str, axes: Mapping[str, int | None], **tables: Any) -> Strategy:
    """A Strategy from plain tables: `dims`, `states`, `groups`, and the option tables.

    >>> strategy_on("mine", {"dp": 8}, dims={"dp": ["batch"]}, states={"optimizer": {"dp": "S"}}).state("optimizer")
    {dp: S}
    """
    return overlay(Strategy(name), {"mesh": axes, **tables})


def overlay(base: Strategy, tables: Mapping[str, Any], where: Where = nowhere) -> Strategy:
    """`base` with what `tables` say: each key replaces the same key of the base's table.

    [mesh] binds sizes and appends axes. Every error stands at its place in the text.
    """
    for table in tables:
        if table not in SCHEMA:
            raise InputError(f"unknown table [{table}]", where=where((table,)), name=table, valid=SCHEMA)
        if not isinstance(tables[table], Mapping):
            raise InputError(f"[{table}] is not a table", where=where((table,)))
    mesh = _mesh(base, tables, where)
    axes = mesh.names

    def read(table: str) -> dict[str, Any]:
        values = {}
        for key, value in tables.get(table, {}).items():
            with placed(where, table, key):
                schema_key = known_key(table, key)
            values[key] = read_value(f"[{table}] {key}", schema_key, value, axes, where, (table, key))
        return values

    dims = {}
    for axis, entries in tables.get("dims", {}).items():
        with placed(where, "dims", axis):
            known_axis("[dims]", axis, axes)
            dims[axis] = read_value(f"[dims] {axis}", SCHEMA["dims"]["*"], entries, axes)
    options = {t: base.tables.get(t, FrozenMap[str, Any]()).plus(read(t)) for t in DEFAULTS if t in tables}
    return replace(base, mesh=mesh, dims=base.dims.plus(dims), states=base.states.plus(read("states")),
                   tables=base.tables.plus(options), groups=_groups(base, tables.get("groups", {}), axes, where))


def _mesh(base: Strategy, tables: Mapping[str, Any], where: Where) -> Mesh:
    axes = {a.name: a for a in base.mesh}
    for name, size in tables.get("mesh", {}).items():
        with placed(where, "mesh", name):
            if base.mesh.axes and name not in axes and name not in tables.get("dims", {}):
                raise InputError(f"unknown axis '{name}' (a new one also needs [dims])", name=name,
                                 valid=base.mesh.names)
            axes[name] = Axis(name, read_value(f"[mesh] {name}", SCHEMA["mesh"]["*"], size, ()))
    return Mesh(tuple(axes.values()))


def _groups(base: Strategy, tables: Mapping[str, Any], axes: tuple[str, ...], where: Where) -> tuple[GroupRule, ...]:
    rules = {r.name: r for r in base.groups}
    for name, said in tables.items():
        label = f"[groups.{name}]"
        if not isinstance(said, Mapping):
            raise InputError(f"{label} is not a table", where=where(("groups", name)))
        rule = rules.get(name, GroupRule(name, ""))
        for key, value in said.items():
            path: Path = ("groups", name, key)
            with placed(where, *path):
                schema_key = known_key("groups", key, label)
            read = read_value(f"{label} {key}", schema_key, value, axes, where, path)
            if key == "match":
                rule = replace(rule, match=read)
            elif key == "types":
                rule = replace(rule, types=read)
            elif key == "optimizer":
                chosen, placement = read
                rule = replace(rule, optimizer=chosen or rule.optimizer,
                               states=rule.states if placement is None else rule.states.plus({key: placement}))
            else:
                rule = replace(rule, states=rule.states.plus({key: read}))
        rules[name] = rule
    return tuple(rules.values())
