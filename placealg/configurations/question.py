"""What is asked of a search: the model, its sizes, devices, a machine, memory and margin, parameters of times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from placealg.configurations.layouts import Devices
from placealg.configurations.programs import Program
from placealg.configurations.space import Space
from placealg.configurations.stages import Units, unit_counts
from placealg.cost.machines import Machine
from placealg.cost.sizing import NO_MARGIN, Margin
from placealg.cost.times import PARAMETERS
from placealg.errors import InputError
from placealg.frozen import FrozenMap
from placealg.mesh import SYMBOLS, check_size, meant_size
from placealg.models.model import Model
from placealg.step.compatibility import check_length
from placealg.step.pipeline import counted, flying, starting
from placealg.step.place import ANY

OBJECTIVES: Mapping[str, str] = FrozenMap({
    "estimate": "what a step takes about, by the named parameters",
    "bound": "what a step takes at least",
    "memory": "what a device needs at least",
    "card": "what a card carries at least in a step",
})
"""Objective -> its meaning; the smallest wins."""


def open_sizes(model: Model, sizes: Mapping[str, Fraction]) -> list[str]:
    """The sizes that neither the model nor `sizes` give, without the sequences of a device, which a search finds.

    >>> from placealg.models.config import resolve_model
    >>> open_sizes(resolve_model("gpt2"), {})
    ['s']
    """
    return sorted({n for d in model.graph.dims.values() for n in d.names()} - {*model.sizes, *sizes, "b"})


def check_sizes(model: Model, sizes: Mapping[str, Fraction]) -> None:
    """Refuse sizes that are none of the model's, no whole numbers or other than the model's, and sizes that lack.

    >>> from placealg.models.config import resolve_model
    >>> check_sizes(resolve_model("gpt2"), {"s": Fraction(3, 2)})
    Traceback (most recent call last):
    placealg.errors.InputError: s = 3/2 is not a whole number
    """
    for name, size in sizes.items():
        if name not in SYMBOLS or name in ("b", "m", "v"):
            raise InputError(f"'{name}' is no size of the model: a search finds degrees, b, m and v",
                             name=name, valid=SYMBOLS, near=meant_size(name, SYMBOLS))
        check_size(name, size)
        if size.denominator != 1 and SYMBOLS[name].assumption != "positive rational":
            raise InputError(f"{name} = {size} is not a whole number")
        if model.sizes.get(name, size) != size:
            raise InputError(f"{name} = {size} contradicts {model.name}'s {name} = {model.sizes[name]}")
    check_length(model, sizes)
    if left := open_sizes(model, sizes):
        raise InputError(f"{model.name} leaves {', '.join(left)} open: give {left[0]} a number")


@dataclass(frozen=True, slots=True)
class Question:
    """A search: `sizes` are numbers beside the model's, `memory` is that of a device in bytes, `parameters` of times.

    `host` is the memory of the host that a device may use, None if that is not limited.
    """

    model: Model
    devices: Devices
    machine: Machine
    memory: Fraction
    space: Space
    sizes: FrozenMap[str, Fraction] = FrozenMap()
    margin: Margin = NO_MARGIN
    objective: str = "estimate"
    parameters: FrozenMap[str, Fraction] = PARAMETERS

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"unknown objective '{self.objective}'", name=self.objective, valid=OBJECTIVES)
        for name in self.parameters:
            if name not in PARAMETERS:
                raise InputError(f"the estimate has no parameter '{name}'", name=name, valid=PARAMETERS)
        check_sizes(self.model, self.sizes)
        degrees = {n: size for n, size in self.space.fixed.items() if n not in ("b", "m", "v")}
        passes = {n: size for n, size in self.space.fixed.items() if n in ("b", "m")}
        for counts, what, fixed in (((self.devices.count,), "devices", degrees),
                                    (self.devices.batches, "sequences", passes)):
            if all(count % prod(fixed.values()) for count in counts):
                raise InputError(f"{' or '.join(map(str, counts))} {what} are no multiple of what is fixed: "
                                 f"{', '.join(f'{n} = {size}' for n, size in fixed.items())}")

    @property
    def compared(self) -> tuple[str, ...]:
        """What is compared of two configurations, one after the other: the objective, then the others."""
        return tuple(dict.fromkeys((self.objective, *OBJECTIVES)))

    @property
    def units(self) -> Units:
        """The repeated units of the model, each with the number of its instances."""
        return unit_counts(self.model, self.sizes)

    def constants(self, program: Program) -> dict[str, Fraction]:
        """Every number that is the same in all layouts: element sizes, the sizes that are said, rates, parameters."""
        return {**program.values, **self.sizes, **self.machine.values, **PARAMETERS, **self.parameters}

    def fixed(self, program: Program, columns: Iterable[str]) -> dict[str, Fraction]:
        """The constants but for those that columns of layouts have, or a stage of one."""
        stage = {ANY, *(name(unit) for unit, _ in self.units for name in (counted, flying, starting))}
        return {n: v for n, v in self.constants(program).items() if n not in stage and n not in columns}

    def by_sequence(self, value: Fraction, sizes: Mapping[str, Any]) -> Fraction:
        """What a step takes or carries, by the sequence where layouts have several batches."""
        return value / int(sizes["batch"]) if "batch" in sizes else value

    def needed(self, peak: Fraction, states: Fraction) -> Fraction:
        """What is held against the memory: the peak with the margin."""
        return states + (peak - states) * self.margin.factor + self.margin.reserve

    def to_json(self) -> dict[str, Any]:
        """The question as data, exact numbers as text."""
        return {"model": self.model.name, "devices": self.devices.count, "per_node": self.devices.per_node,
                "batch": self.devices.batch if not self.devices.more else list(self.devices.batches),
                "machine": self.machine.name,
                "rates": {n: str(v) for n, v in self.machine.rates.items()}, "memory": str(self.memory),
                "sizes": {n: str(v) for n, v in self.sizes.items()},
                "reserve": str(self.margin.reserve), "activation_factor": str(self.margin.factor),
                "objective": self.objective,
                "parameters": {n: str(v) for n, v in {**PARAMETERS, **self.parameters}.items()},
                "space": self.space.to_json()}
