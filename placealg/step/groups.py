"""Parameter groups, and the plan of each: on which axes its states are sharded, summed, gathered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.models.model import Model, Parameter, Unit
from placealg.models.split_layers import AWAY
from placealg.placement import Mode, StatePlacement
from placealg.step.program import Clause, Group
from placealg.strategy.spec import GroupRule, Strategy
from placealg.strategy.vocabulary import AVG, LAYER, NONE, OPTIMIZERS, WIRE_W, WITH_VECTORS


@dataclass(frozen=True, slots=True)
class Plan:
    """Where one group's states are placed, as axis sets in mesh order.

    `gathered`: parameters rest sharded and are gathered for use. `owned`: the optimizer state is sharded. `scattered`:
    gradients rest sharded. `summed`: the gradient of one rank is a partial sum. Along the axes of `group.split` all of
    this is decided: a rank holds, uses and updates what it owns; along those in `cut` it holds parts of each matrix,
    along the others whole matrices of its stage or of its part of a stack. `tiers` are those on which parameters and
    the optimizer state rest, `gather_bytes` is the element size of gathered weights ("" for their own), `lifetimes` are
    those of gathered copies, along each of `gathered`. Along `all_reduced` gradients are summed whole before an owner
    keeps its part; `wires` are the bytes of an element while it is reduced, along axes where they differ. `averaged` is
    the state as which an average of the weights rests: none, optimizer, parameters; `average_bytes` is its element size
    where it crosses a link ("" for its own).
    """

    group: Group
    axes: tuple[str, ...]
    gathered: tuple[str, ...]
    owned: tuple[str, ...]
    scattered: tuple[str, ...]
    summed: tuple[str, ...]
    tiers: FrozenMap[str, str]
    materialized: bool
    gather_bytes: str = ""
    cut: tuple[str, ...] = ()
    all_reduced: tuple[str, ...] = ()
    wires: FrozenMap[str, str] = FrozenMap()
    lifetimes: FrozenMap[str, str] = FrozenMap()
    averaged: str = "none"
    average_bytes: str = ""

    @property
    def reduced_each_microbatch(self) -> tuple[str, ...]:
        """Axes over which every microbatch's gradient is reduced, because gradients rest sharded there."""
        return tuple(a for a in self.summed if a in self.scattered)

    @property
    def reduced_once(self) -> tuple[str, ...]:
        """Axes over which the accumulated gradient is reduced, once per step."""
        return tuple(a for a in self.summed if a not in self.scattered)

    @property
    def grad_sum_axes(self) -> tuple[str, ...]:
        """Axes over which the reduced gradient is sharded when the optimizer reads it.

        If the gradient goes to the host after its reduction, each rank keeps what it owns, also along axes without a
        sum.
        """
        follows = self.updates_on_host and not self.accumulates_on_host
        apart = self.axes if follows else self.reduced_once
        return tuple(a for a in self.axes if a in self.scattered or (a in self.owned and a in apart))

    @property
    def updates_on_host(self) -> bool:
        """Whether the host runs the optimizer, because its state rests there or beyond."""
        return self.state_tier != "device"

    @property
    def accumulates_on_host(self) -> bool:
        """Whether the gradient's final reduction is in the loop, so that its sum accumulates on the host."""
        return self.updates_on_host and bool(self.summed) and not self.reduced_once

    @property
    def average_rests(self) -> tuple[tuple[str, ...], str]:
        """The axes over which the average of the weights is sharded, and the tier on which it rests."""
        return (self.owned, self.state_tier) if self.averaged == "optimizer" else (self.gathered, self.weight_tier)

    @property
    def weight_tier(self) -> str:
        """The tier on which parameters rest."""
        return self.tiers["parameters"]

    @property
    def state_tier(self) -> str:
        """The tier on which master copy and moments rest."""
        return self.tiers["optimizer"]

    @property
    def update_tier(self) -> str:
        """The tier on which the optimizer runs."""
        return "host" if self.updates_on_host else "device"

    @property
    def grad_sum_tier(self) -> str:
        """The tier on which gradients accumulate."""
        return "host" if self.accumulates_on_host else "device"


def owners(axes: tuple[str, ...]) -> tuple[Clause, ...]:
    """The condition that a rank is the owner along every one of `axes`."""
    return tuple(Clause(a) for a in axes)


Summed = Mapping[str, tuple[str, ...]]
"""Parameter -> the axes along which the gradient of one rank is a partial sum."""

Split = Mapping[str, Mapping[str, str]]
"""Parameter -> axis -> the dim by which it is split there."""

_NOTHING: FrozenMap[str, Any] = FrozenMap()

_BUFFER: FrozenMap[str, str] = FrozenMap({"w": "4", "g": "4", "wire": "4", "o": "4"})
"""The bytes of an element of a state that is no parameter: its two copies and what is summed for it are fp32."""

LEAF = "leaf"
"""The lifetime of a copy that is gathered for the ops of one leaf module."""


def group_parameters(strategy: Strategy, model: Model, summed: Summed = _NOTHING,
                     split: Split = _NOTHING) -> tuple[Plan, ...]:
    """One plan per group, in forward order of the units.

    Parameters of a unit that are used, placed and updated alike form one group. The largest such class of a unit is
    called `<unit>.weight`, or by its first parameter if another class has one of that name; every other parameter is a
    group under its own name. A parameter that `summed` lacks is summed over the axes that split the batch.
    """
    for rule in strategy.groups:
        if not any(rule.matches(p.name) for p in model.parameters):
            raise InputError(f"[groups.{rule.name}] match = '{rule.match}' matches no parameter of {model.name}",
                             name=rule.match, valid=[p.name for p in model.parameters])
    return tuple(_plan(strategy, group, rule, summed.get(group.parameters[0], strategy.data_axes),
                       split.get(group.parameters[0], _NOTHING))
                 for unit in model.units for group, rule in _groups_of(strategy, model, unit, summed, split))


def _groups_of(strategy: Strategy, model: Model, unit: Unit, summed: Summed,
               split: Split) -> Iterator[tuple[Group, GroupRule | None]]:
    classes: dict[tuple[object, ...], list[Parameter]] = {}
    for parameter in model.of_unit(unit.name):
        if not parameter.sites:
            raise InputError(f"parameter '{parameter.name}' of {model.name} is used by no unit")
        if parameter.sites[0] != unit.name:
            raise InputError(f"parameter '{parameter.name}' of {model.name} belongs to unit '{unit.name}', and unit "
                             f"'{parameter.sites[0]}' uses it first: it belongs to that one")
        rule = rule_of(strategy, parameter)
        axes = tuple(split.get(parameter.name, ()))
        lives = {a: (rule.lifetime if rule else {}).get(a, strategy.lifetime(a)) for a in strategy.mesh.names}
        leaf = leaf_of(parameter.name) if LEAF in lives.values() else ""
        key = (leaf, parameter.sites, rule, _optimizer(strategy, rule, parameter, model.abstract), axes,
               summed.get(parameter.name), parameter.name in model.statistics, _frozen(model, parameter),
               _stacked(_optimizer(strategy, rule, parameter, model.abstract)[0], rule, parameter,
                        split.get(parameter.name, {})))
        classes.setdefault(key, []).append(parameter)
    if not classes:
        return
    largest = max(classes.values(), key=lambda members: sum(_size(model, p) for p in members))
    taken = {p.name for members in classes.values() if members is not largest for p in members}
    whole = f"{unit.name}.weight" if f"{unit.name}.weight" not in taken else largest[0].name
    for members in classes.values():
        named = [(whole, members)] if members is largest else [(p.name, [p]) for p in members]
        for name, parameters in named:
            rule = rule_of(strategy, parameters[0])
            optimizer, locality, reads = _optimizer(strategy, rule, parameters[0], model.abstract)
            found, still = model.statistics.get(parameters[0].name), _frozen(model, parameters[0])
            types = rule.types if rule else FrozenMap()
            if found and (found.of or found.merge == "max"):
                types = _BUFFER.plus(types)
            if found and found.of and found.merge == "max":
                types = types.plus({"o": str(4 * int(strategy.option("optimizer", "fp8_history")))})
            if found and found.merge == "sum":
                optimizer, locality, reads = "load", "matrix", ("grad_sum",)
            elif found or still:
                optimizer, locality, reads = "running" if found else NONE, "elementwise", ()
            averaged = strategy.option("optimizer", "average") != "none" and not found and not still
            numbered = tuple(_numbering(optimizer, rule, p) for p in parameters)
            yield Group(name, unit.name, parameters[0].sites, tuple(p.name for p in parameters),
                        tuple(p.elements for p in parameters), unit.count, optimizer, locality, reads,
                        types, tuple(split.get(parameters[0].name, ())),
                        tuple(FrozenMap({d: p.dims[d] for d in p.rows or p.dims}) for p in parameters),
                        found is not None, still,
                        _stacked(optimizer, rule, parameters[0], split.get(parameters[0].name, {})),
                        averaged, *((found.of, found.merge) if found else ("", "mean")),
                        numbered if any(numbered) else ()), rule


def leaf_of(parameter: str) -> str:
    """The module that holds a parameter: its name without the last word.

    >>> leaf_of("layer.attn.q.weight")
    'layer.attn.q'
    """
    return parameter.rpartition(".")[0]


def _frozen(model: Model, parameter: Parameter) -> bool:
    found = model.graph.tensors.get(parameter.name)
    return found is not None and found.frozen and parameter.name not in model.statistics


def rule_of(strategy: Strategy, parameter: Parameter) -> GroupRule | None:
    """The first group rule that matches a parameter."""
    return next((r for r in strategy.groups if r.matches(parameter.name)), None)


def _size(model: Model, parameter: Parameter) -> Fraction:
    names = parameter.elements.names()
    return parameter.elements.evaluate({n: model.sizes.get(n, 1000) for n in names})


def _optimizer(strategy: Strategy, rule: GroupRule | None, parameter: Parameter,
               abstract: bool) -> tuple[str, str, tuple[str, ...]]:
    """The optimizer of a parameter, its locality, and what its update reads whole.

    Those who run Muon leave the embedding, the head, norms and biases to AdamW, as Jordan (2024) does, who proposed it,
    and DeepSpeed and LLaMA-Factory after him; a rule that names an optimizer for a table means it.
    """
    name, locality, reads = strategy.optimizer(rule.optimizer if rule else "")
    no_matrix = len(_matrix(rule, parameter)) < 2 or (is_table(parameter.rows or parameter.dims)
                                                      and not (rule and rule.optimizer))
    if name in WITH_VECTORS and no_matrix and not abstract:
        return "adamw", "elementwise", ()
    return name, locality, reads


def is_table(rows: Iterable[str]) -> bool:
    """Whether a parameter with these dims in rows has a row, or a column, of each token or position."""
    return not {"vocab", "position"}.isdisjoint(rows)


def _matrix(rule: GroupRule | None, parameter: Parameter) -> tuple[str, ...]:
    """The dims of one matrix of a parameter: those that its group declares, or else the model's."""
    return parameter.matrix if rule is None or rule.matrix is None else rule.matrix


def _numbering(optimizer: str, rule: GroupRule | None, parameter: Parameter) -> tuple[str, ...]:
    """The dims that number the matrices of a parameter, if the optimizer acts on each matrix by itself."""
    declared = rule is not None and rule.matrix is not None and OPTIMIZERS.get(optimizer, ("",))[0] == "matrix"
    if optimizer not in WITH_VECTORS and not declared:
        return ()
    return tuple(d for d in parameter.dims if d not in _matrix(rule, parameter))


def _stacked(optimizer: str, rule: GroupRule | None, parameter: Parameter, dims: Mapping[str, str]) -> tuple[str, ...]:
    """The axes that split a stack of matrices, if the optimizer acts on each matrix by itself."""
    numbering = _numbering(optimizer, rule, parameter)
    return tuple(a for a, dim in dims.items() if dim in numbering)


def placements(strategy: Strategy, group: Group, rule: GroupRule | None) -> tuple[StatePlacement, ...]:
    """How parameters, optimizer and gradients of a group are placed, by the strategy and by the rule of the group."""
    def state(name: str) -> StatePlacement:
        alone = group.taken or group.merge == "max"
        placement = StatePlacement() if alone else strategy.state(name)
        if rule is None or name not in rule.states:
            return placement
        mine = rule.states[name]
        return mine if alone else StatePlacement(placement.modes.plus(mine.modes),
                                                 placement.offloaded or mine.offloaded)

    return tuple(map(state, ("parameters", "optimizer", "gradients")))


def _plan(strategy: Strategy, group: Group, rule: GroupRule | None, summed: tuple[str, ...],
          dims: Mapping[str, str]) -> Plan:
    axes = tuple(a for a in strategy.mesh.names if a not in group.split)
    parameters, optimizer, gradients = placements(strategy, group, rule)
    away = {"parameters": parameters.offloaded, "optimizer": optimizer.offloaded}
    if strategy.share_away and not (rule and "optimizer" in rule.states and rule.states["optimizer"].offloaded):
        away["optimizer"] = group.unit == AWAY and not group.statistic
    tiers = {name: strategy.offload_tier(name) if elsewhere else "device" for name, elsewhere in away.items()}
    said = {**strategy.tables.get("types", _NOTHING), **group.types}
    return Plan(
        group=replace(group, shares=tuple(tuple(a for a in axes if state.sharded(a))
                                          for state in (parameters, optimizer, gradients))),
        axes=axes,
        gathered=tuple(a for a in axes if parameters.sharded(a)),
        owned=tuple(a for a in axes if optimizer.sharded(a)),
        scattered=tuple(a for a in axes if gradients.sharded(a)),
        summed=summed,
        tiers=FrozenMap(tiers),
        materialized=any(gradients.mode(a) is Mode.M for a in axes),
        gather_bytes=WIRE_W if WIRE_W in said else "",
        cut=tuple(a for a, dim in dims.items() if dim != LAYER and a not in group.stacked),
        all_reduced=tuple(a for a, how in strategy.option("schedule", "reduction").items() if how == "all_reduce"),
        wires=FrozenMap({**strategy.option("schedule", "wire"), **(rule.wire if rule else {})}),
        averaged=str(strategy.option("optimizer", "average")) if group.averaged else "none",
        average_bytes=AVG if AVG in said else "",
        lifetimes=FrozenMap({a: (rule.lifetime if rule else {}).get(a, strategy.lifetime(a)) for a in axes}),
    )
