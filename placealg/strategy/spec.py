"""A strategy as data: where each state is placed on each mesh axis, and how the step is scheduled.

A Strategy holds exactly what was said; defaults are resolved when a field is read. That makes
composition a merge of tables, and associative. What only a model can tell (which dims and regions there are)
is left to `step/fit.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from placealg.errors import InputError, need
from placealg.frozen import FrozenMap
from placealg.mesh import ALONE, PREDICTION, STAGE_ENDS, Axis, Mesh
from placealg.notebook_display import Shown
from placealg.placement import REGION, Mode, StatePlacement
from placealg.strategy.kinds import DIMS, SIZE, Path, Where, known_axis, nowhere, placed
from placealg.strategy.options import DEFAULTS, SCHEMA, known_key
from placealg.strategy.precision import preset_bytes
from placealg.strategy.vocabulary import DATA_DIMS, EACH, LAYER, LIFETIMES, LOSSES, NONE, OPTIMIZERS

__all__ = ["DEFAULTS", "LIFETIMES", "LOSSES", "OPTIMIZERS", "GroupRule", "Strategy", "overlay", "strategy_on"]


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a whole name, `*` standing for any text; a leading `*.` may be left out.

    >>> matches("attn.q", "layer.attn.q"), matches("q", "layer.attn.seq")
    (True, False)
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Different placements, types, lifetimes or optimizer for the parameters whose names match; or they are frozen.

    What is frozen takes no gradient and has no optimizer state. `matrix` are the dims of one matrix, for optimizers
    that act on such; () where the parameters are none, None where the model says it.
    """

    name: str
    match: str
    states: FrozenMap[str, StatePlacement] = FrozenMap()
    types: FrozenMap[str, str] = FrozenMap()
    optimizer: str = ""
    frozen: bool = False
    lifetime: FrozenMap[str, str] = FrozenMap()
    wire: FrozenMap[str, str] = FrozenMap()
    matrix: tuple[str, ...] | None = None

    def matches(self, parameter: str) -> bool:
        """Whether the rule speaks of a parameter; a leading `*.` of the pattern may be left out.

        >>> GroupRule("norms", "norm*").matches("layer.norm1.weight")
        True
        """
        return matches(self.match, parameter)


@dataclass(frozen=True, slots=True)
class Strategy(Shown):
    """A placement of the four training states on a mesh, with its schedule.

    `dims` gives each axis its ordered list of entries `DIM`, `REGION.DIM`, `REGION.none`, `REGION.each`. `states` gives
    each state a mode per axis; activations also have one per `region:NAME`. `tables` holds what was said in
    [schedule], [optimizer], [loss], [types], [random]. The axes of `joins` share the states that a factor beside them
    shards (`sharing.py`).
    """

    name: str
    mesh: Mesh = Mesh()
    dims: FrozenMap[str, tuple[str, ...]] = FrozenMap()
    states: FrozenMap[str, StatePlacement] = FrozenMap()
    tables: FrozenMap[str, FrozenMap[str, Any]] = FrozenMap()
    groups: tuple[GroupRule, ...] = ()
    modifiers: tuple[str, ...] = field(default=(), compare=False)
    joins: tuple[str, ...] = field(default=(), compare=False)

    def state(self, name: str) -> StatePlacement:
        """The placement of `parameters`, `optimizer`, `gradients` or `activations`."""
        placement = self.states.get(name, StatePlacement())
        return replace(placement, offloaded=True) if self._said_tier(name) != "device" else placement

    def tier(self, name: str) -> str:
        """Where a state rests: on the device, or the tier that its table says, or (O alone) on the host.

        >>> strategy_on("mine", {"dp": 8}, states={"optimizer": {"dp": "S+O"}}).tier("optimizer")
        'host'
        """
        return self.offload_tier(name) if self.state(name).offloaded else "device"

    def offload_tier(self, name: str) -> str:
        """Where a state would rest that is offloaded: on the host, unless its table says nvme."""
        said = self._said_tier(name)
        return "host" if said == "device" else said

    @property
    def share_away(self) -> Fraction:
        """The share of the layers whose part of the optimizer state alone rests on another tier; 0: nothing is said.

        >>> strategy_on("mine", {"dp": 8}, optimizer={"offload_share": "1/4"}).share_away
        Fraction(1, 4)
        """
        return Fraction(str(self.option("optimizer", "offload_share") or 0))

    def _said_tier(self, name: str) -> str:
        said = "tier" in DEFAULTS.get(name, {}) and name != "activations"
        return str(self.option(name, "tier")) if said else "device"

    def mode_text(self, state: str, axis: str) -> str:
        """The mode of a state along an axis as users write it; what follows from the axis's dims names them.

        `S*(...)` are activations whose gathered copies are freed after use. Where dims split parameters, `else MODE`
        is what was said, which then holds of the parameters that no dim splits.

        >>> tp = strategy_on("mine", {"tp": 8}, dims={"tp": ["heads", "seq"]}, states={"activations": {"tp": "S*"}})
        >>> tp.mode_text("activations", "tp"), tp.mode_text("parameters", "tp")
        ('S*(heads, seq)', 'S(heads)')
        """
        placement, entries = self.state(state), self._split(axis)
        if state == "activations" and entries:
            return f"{'S*' if placement.mode(axis) is Mode.GATHERED else 'S'}({', '.join(entries)})"
        owned = [e for e in entries if parts(e)[1] not in DATA_DIMS]
        if state == "activations" or not owned:
            return placement.text(axis)
        split = (f"S({', '.join(owned)})" if state == "parameters" else "S") + ("+O" if placement.offloaded else "")
        said = placement.text(axis)
        return split if axis not in placement.modes or said == split else f"{split}, else {said}"

    def _split(self, axis: str) -> tuple[str, ...]:
        """The entries of an axis that split something."""
        return tuple(e for e in self.dims.get(axis, ()) if parts(e)[1] not in (NONE, EACH))

    def option(self, table: str, key: str) -> Any:
        """What was said in `table` under `key`, else its default."""
        said = self.tables.get(table, FrozenMap())
        return said[key] if key in said else DEFAULTS[table][key]

    def lifetime(self, axis: str) -> str:
        """How long a gathered copy lives along `axis`: leaf, use, microbatch or step."""
        return str(dict(self.option("schedule", "lifetime")).get(axis, "use"))

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The axes over which the tokens of the loss are split, in mesh order: by their batch or their seq.

        >>> strategy_on("mine", {"cp": 8, "tp": 2}, dims={"cp": ["seq"], "tp": ["loss.none", "seq"]}).data_axes
        ('cp',)
        """
        return tuple(a for a in self.mesh.names if self._of_loss(a) in ("batch", "seq"))

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes over which the sequences of a step are split, in mesh order."""
        return tuple(a for a in self.mesh.names if self._of_loss(a) == "batch")

    @property
    def microbatches(self) -> int | None:
        """The microbatches of a step, where the strategy says how many."""
        said = self.option("schedule", "microbatches")
        return said if isinstance(said, int) else None

    def _of_loss(self, axis: str) -> str:
        """What an axis says first of the token sum of the loss: batch, seq or none; "" where it says nothing."""
        said = (dim for region, dim in map(parts, self.dims.get(axis, ())) if region in ("", "loss"))
        return next((dim for dim in said if dim in ("batch", "seq", NONE)), "")

    @property
    def regions(self) -> FrozenMap[str, Mode]:
        """Region -> the mode that was said of its activations."""
        modes = self.state("activations").modes
        return FrozenMap({key.removeprefix(REGION): mode for key, mode in modes.items() if key.startswith(REGION)})

    @property
    def region_modes(self) -> FrozenMap[str, str]:
        """Region -> its mode and tier as users write them.

        >>> strategy_on("mine", {"dp": 8}, states={"activations": {"region:layer": "M+O"}}).region_modes
        {layer: M+O}
        """
        return FrozenMap({region: self.state("activations").text(f"{REGION}{region}") for region in self.regions})

    @property
    def recomputed(self) -> tuple[str, ...]:
        """The regions whose activations are materialized (M): backward computes them again."""
        return tuple(region for region, mode in self.regions.items() if mode is Mode.M)

    @property
    def offloaded(self) -> tuple[str, ...]:
        """The regions whose activations rest on another tier between forward and backward (O, or M+O).

        >>> strategy_on("mine", {"dp": 8}, states={"activations": {"region:layer": "M+O"}}).offloaded
        ('layer',)
        """
        return tuple(key.removeprefix(REGION) for key in self.state("activations").away)

    @property
    def sharded_activations(self) -> tuple[str, ...]:
        """The axes along which gathered activations are freed after use and gathered again (S*), in mesh order."""
        return tuple(a for a in self.mesh.names if self.state("activations").mode(a) is Mode.GATHERED)

    @property
    def pipeline_axis(self) -> str:
        """The axis that splits the model along its depth; "" where none does.

        >>> strategy_on("mine", {"dp": 8, "pp": 4}, dims={"dp": ["batch"], "pp": ["layer"]}).pipeline_axis
        'pp'
        """
        return next((a for a in self.mesh.names if LAYER in self.dims.get(a, ())), "")

    @property
    def stages_alone(self) -> tuple[str, ...]:
        """The parts "first", "prediction" and "last" whose stage has no layer, as `alone` or a 0 of `stages` says.

        Behind a stage that predicts alone stands the head, which has no layer then.

        >>> strategy_on("mine", {"pp": None}, dims={"pp": ["layer"]}, schedule={"alone": ["last"]}).stages_alone
        ('last',)
        """
        said, listed = self.option("schedule", "alone"), self.option("schedule", "stages")
        none = {end for end, layers in zip(STAGE_ENDS, (listed[0], listed[-1]), strict=True) if not layers} if (
            listed) else set()
        none |= {PREDICTION} if len(listed) > 2 and not any(listed[-2:]) else set()
        found = {*said, *none} | ({ALONE[-1]} if PREDICTION in {*said, *none} else set())
        return tuple(end for end in ALONE if self.pipeline_axis and end in found)

    @property
    def rings(self) -> tuple[str, ...]:
        """The axes along which activations are gathered by exchange between neighbours, in mesh order."""
        how = dict(self.option("schedule", "gather"))
        return tuple(a for a in self.mesh.names if how.get(a) == "ring")

    @property
    def detailed(self) -> bool:
        """Whether it is derived op by op: an axis names more than batch, activations have modes, or tokens attributes.

        >>> strategy_on("mine", {"dp": 8}, dims={"dp": ["batch"]}).detailed
        False
        """
        entries = (entry for axis in self.mesh.names for entry in self.dims.get(axis, ()))
        modes = self.regions or self.sharded_activations
        said = self.option("loss", "terms") or self.attributes
        return bool(modes or said) or any(entry != "batch" for entry in entries)

    @property
    def attributes(self) -> FrozenMap[str, Any]:
        """What it says of tokens that is not the default: their attributes as data, and what the loss is a mean over.

        >>> strategy_on("mine", {"dp": 8}, dims={"dp": ["batch"]}, tokens={"weights": True}).attributes
        {weights: True}
        """
        keys = {**dict.fromkeys(DEFAULTS["tokens"], "tokens"), "per": "loss", "predictions": "loss"}
        said = {key: self.option(table, key) for key, table in keys.items()}
        usual = {key: DEFAULTS[table][key] for key, table in keys.items()}
        samples = {"microbatch_mean": mean} if (mean := self.option("schedule", "microbatch_mean")) == "samples" else {}
        return FrozenMap({**{key: value for key, value in said.items() if value != usual[key]}, **samples})

    def loss(self, data: tuple[str, ...] | None = None) -> Mapping[str, Any]:
        """The loss normaliser with its preset filled in; `data` are the axes that split its tokens on a given model."""
        preset = self.option("loss", "preset")
        said = {k: v for k, v in self.tables.get("loss", FrozenMap()).items() if k != "preset"}
        full = {"preset": preset, "reference": DEFAULTS["loss"]["reference"], **LOSSES[preset], **said}
        if full["count_axes"] == "data":
            full["count_axes"] = (*(self.data_axes if data is None else data), "microbatch")
        return full

    def loss_of_terms(self, data: tuple[str, ...] | None = None) -> tuple[str, tuple[str, ...]]:
        """What divides the further terms of the loss, and the axes that this covers: as the loss where nothing is said.

        >>> strategy_on("mine", {"dp": 8}, dims={"dp": ["batch"]}, loss={"term_divisor": "count"}).loss_of_terms()
        ('count', ('dp', 'microbatch'))
        """
        loss, said = self.loss(data), self.tables.get("loss", FrozenMap())
        divisor = str(said.get("term_divisor", loss["divisor"]))
        usual = loss["count_axes"] if divisor == loss["divisor"] else None if divisor == "tokens" else "data"
        axes = said.get("term_axes", usual)
        everywhere = (*(self.data_axes if data is None else data), "microbatch")
        return divisor, everywhere if axes == "data" else tuple(axes or ())

    def optimizer(self, name: str = "") -> tuple[str, str, tuple[str, ...]]:
        """(name, locality, whole-matrix reads) of the optimizer `name`, or of the strategy's own.

        A strategy may say that its optimizer reads whole matrices; that Muon does not, no strategy can.
        """
        chosen = name or str(self.option("optimizer", "name"))
        locality, reads = OPTIMIZERS[chosen]
        said = self.tables.get("optimizer", FrozenMap())
        if not name and locality == "elementwise" and said.get("locality") == "matrix":
            return chosen, "matrix", ("grad_sum", "master", "moments")
        return chosen, locality, reads

    def __mul__(self, other: Strategy) -> Strategy:
        from placealg.strategy.compose import compose

        need(other, Strategy, "strategy to compose with")
        return compose(self, other)


def parts(entry: str) -> tuple[str, str]:
    """(region, dim) of an entry of [dims]; the region is "" where none is named.

    >>> parts("core.heads"), parts("seq")
    (('core', 'heads'), ('', 'seq'))
    """
    region, _, dim = entry.rpartition(".")
    return region, dim


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
                row = known_key(table, key)
            values[key] = row.kind.read(f"[{table}] {key}", value, axes, where, (table, key))
        return preset_bytes(values) if table == "types" else values

    dims = {}
    for axis, entries in tables.get("dims", {}).items():
        with placed(where, "dims", axis):
            known_axis("[dims]", axis, axes)
            dims[axis] = DIMS.read(f"[dims] {axis}", entries, axes, where, ("dims", axis))
    options = {t: base.tables.get(t, FrozenMap[str, Any]()).plus(read(t)) for t in DEFAULTS if t in tables}
    made = replace(base, mesh=mesh, dims=base.dims.plus(dims), states=base.states.plus(read("states")),
                   tables=base.tables.plus(options), groups=_groups(base, tables.get("groups", {}), axes, where))
    chosen, locality, _ = made.optimizer()
    if "locality" in tables.get("optimizer", {}) and made.option("optimizer", "locality") != locality:
        raise InputError(f"[optimizer] locality is 'elementwise', but {chosen} updates a matrix at a time",
                         where=where(("optimizer", "locality")))
    return made


def _mesh(base: Strategy, tables: Mapping[str, Any], where: Where) -> Mesh:
    axes = {a.name: a for a in base.mesh}
    for name, size in tables.get("mesh", {}).items():
        with placed(where, "mesh", name):
            if base.mesh.axes and name not in axes and name not in tables.get("dims", {}):
                raise InputError(f"unknown axis '{name}' (a new one also needs [dims])", name=name,
                                 valid=base.mesh.names)
            axes[name] = Axis(name, SIZE.read(f"[mesh] {name}", size))
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
                row = known_key("groups", key, label)
            read = row.kind.read(f"{label} {key}", value, axes, where, path)
            if key == "match":
                rule = replace(rule, match=read)
            elif key == "types":
                rule = replace(rule, types=read)
            elif key in ("frozen", "lifetime", "wire", "matrix"):
                rule = replace(rule, **{key: read})
            elif key == "optimizer":
                chosen, placement = read
                rule = replace(rule, optimizer=chosen or rule.optimizer,
                               states=rule.states if placement is None else rule.states.plus({key: placement}))
            else:
                rule = replace(rule, states=rule.states.plus({key: read}))
        rules[name] = rule
    return tuple(rules.values())
